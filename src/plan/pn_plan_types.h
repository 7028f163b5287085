/*
 * pn_plan_types.h - what a step is: ops, operands, state, the step itself.  Types and inline
 * functions only, so that every drop agrees on them (PN_PLAN_ABI and the sizes are checked when a
 * backend registers).
 *
 *   plan   the ops of one step shape with every operand placed; made once per bucket of rows
 *   step   what varies: tokens, runs, wanted rows, where the pages of each run are
 *   run    one sequence's contiguous rows in the step
 *
 * Row counts are symbolic: an operand has `dim` rows times `mul`.  Offsets are assigned for the
 * bucket's largest counts, so a smaller step uses the same plan.
 */
#ifndef PN_PLAN_TYPES_H
#define PN_PLAN_TYPES_H

#include "num/pn_dtype.h"

#define PN_PLAN_ABI 6
#define PN_MAX_GROUPS 8             /* stream groups of one model */
#define PN_NO_WEIGHT UINT32_MAX
#define PN_NO_OPERAND UINT32_MAX

/* ---- weights, as a plan sees them --------------------------------------------------------- */

/* A matrix (or stack of matrices) in the model's weight table.  Row r of a stack [ne2][ne1][ne0] is
 * r = i2 * ne1 + i1; a lease is a range of such rows. */
typedef struct pn_weight {
    const char *name;               /* borrowed from the model */
    uint32_t dtype;
    uint32_t cols;                  /* ne0: elements of a row */
    uint64_t rows;                  /* ne1 * ne2 */
    uint32_t rows_per_expert;       /* ne1 */
    uint64_t row_bytes;
    const float *pinned;            /* vectors (norms, biases): f32 [cols], owned by the model, always
                                       there; NULL for matrices, which are leased */
} pn_weight;

/* ---- state -------------------------------------------------------------------------------- */

/* Layers whose keys and values have one geometry, one lifetime and one die share pages. */
typedef struct pn_stream_group {
    uint32_t n_layers, n_heads, d_k, d_v;
    uint32_t window;                /* tokens a query sees, itself included; 0: all */
    uint32_t part;                  /* of a model that is split over two dies: whose layers these are */
} pn_stream_group;

typedef struct pn_state_spec {
    pn_stream_group group[PN_MAX_GROUPS];
    uint32_t n_groups;
    uint64_t slot_bytes;            /* recurrent state of one sequence; 0: none.  Layers have places of their own in it
                                       (model/pn_desc.h); all zeros before the first token */
    uint64_t slot_second;           /* of these, of the second part's layers */
} pn_state_spec;

/* Where a layer's state is: at a byte of its part's share of the slot. */
typedef struct pn_slot_at {
    uint64_t at;
    uint32_t part;
} pn_slot_at;

/* The groups of one part alone, without recurrent state. */
static inline pn_state_spec pn_state_part(const pn_state_spec *s, uint32_t part)
{
    pn_state_spec p = {0};
    for (uint32_t g = 0; g < s->n_groups; g++)
        if (s->group[g].part == part)
            p.group[p.n_groups++] = s->group[g];
    return p;
}

/* One page: PN_KV_PAGE_TOKENS tokens of every layer of a group.  The header travels with the page.  A
 * page that is `common` may have several holders and is not written any more (store/pn_kv.h). */
typedef struct pn_kv_page {
    void *data;
    uint8_t k_type, v_type;         /* pn_dtype */
    uint8_t rotated;                /* K was multiplied by a Hadamard matrix after RoPE (cpu/pn_cpu.h says which);
                                       so are the keys of every block type, and no others */
    uint8_t common;
    uint32_t refs;                  /* holders: page tables, nodes of a prefix tree */
    uint64_t last_use;
} pn_kv_page;

/* Can the group's pages be of this type? */
static inline bool pn_kv_type_fits(const pn_stream_group *g, uint32_t type)
{
    return !pn_kv_is_block(type) || (g->d_k % 32 == 0 && g->d_v % 32 == 0);
}

/* Bytes of one head's K and V planes in a page, and of the whole page.
 *     page = [layer][head] { K [tokens][d_k], V [tokens][d_v] } */
static inline uint64_t pn_kv_head_bytes(const pn_stream_group *g, uint32_t k_type, uint32_t v_type)
{
    return pn_kv_elem_bytes(k_type, (uint64_t)PN_KV_PAGE_TOKENS * g->d_k) +
           pn_kv_elem_bytes(v_type, (uint64_t)PN_KV_PAGE_TOKENS * g->d_v);
}

static inline uint64_t pn_kv_page_bytes(const pn_stream_group *g, uint32_t k_type, uint32_t v_type)
{
    return pn_kv_head_bytes(g, k_type, v_type) * g->n_heads * g->n_layers;
}

static inline void *pn_kv_k_plane(const pn_stream_group *g, const pn_kv_page *p, uint32_t layer, uint32_t head)
{
    return (uint8_t *)p->data +
           pn_kv_head_bytes(g, p->k_type, p->v_type) * ((uint64_t)layer * g->n_heads + head);
}

static inline void *pn_kv_v_plane(const pn_stream_group *g, const pn_kv_page *p, uint32_t layer, uint32_t head)
{
    return (uint8_t *)pn_kv_k_plane(g, p, layer, head) +
           pn_kv_elem_bytes(p->k_type, (uint64_t)PN_KV_PAGE_TOKENS * g->d_k);
}

/* ---- operands ----------------------------------------------------------------------------- */

typedef enum pn_dim {
    PN_DIM_ROWS = 0,                /* rows of the step */
    PN_DIM_OUTS,                    /* rows whose result is wanted */
    PN_DIM_ONE
} pn_dim;

typedef enum pn_where {
    PN_AT_SCRATCH = 0,
    PN_AT_OUTPUT,                   /* the step's result */
    PN_AT_CARRY                     /* what one part of a split model hands to the next */
} pn_where;

/* act: pn_act_kind of cpu/pn_cpu.h (0: f32).  A row of a quantised operand is opaque to the plan;
 * stride is its size in bytes for every kind. */
typedef struct pn_operand {
    const char *name;               /* static, for DOT and messages */
    uint8_t where, dim, act;
    uint32_t mul;                   /* rows = dim * mul */
    uint32_t cols;                  /* elements of a row */
    uint64_t stride;                /* bytes between rows */
    uint64_t extra;                 /* bytes after the rows (tables of fixed size) */
    uint32_t parent;                /* a view of `parent` starting at byte col_at of each row, or itself */
    uint64_t col_at;
    uint64_t offset, bytes;         /* scratch placement for the bucket's maximum; set by the planner */
    uint32_t first, last;           /* stages in which it lives */
} pn_operand;

/* ---- ops ---------------------------------------------------------------------------------- */

typedef enum pn_opcode {
    PN_OP_EMBED = 0,                /* out[row] = W[token] * scale */
    PN_OP_NORM,                     /* RMS over each of n groups of a row, weight optional */
    PN_OP_QUANT,                    /* f32 row to q8 row */
    PN_OP_MATMUL,                   /* out = W in (+ bias) (+ residual) */
    PN_OP_ROPE_TABLE,               /* cos, sin of each row's position */
    PN_OP_ROPE_STORE,               /* rotate q and k, scale q, store k and v */
    PN_OP_ATTN,
    PN_OP_GLU,                      /* act(a) * b */
    PN_OP_ADD,
    PN_OP_SCALE,                    /* by a constant, and by a one-element weight if given */
    PN_OP_SOFTCAP,
    PN_OP_GATHER,                   /* rows whose result is wanted */
    PN_OP_MOE_ROUTE,                /* router logits to (expert, weight) pairs */
    PN_OP_MOE_GROUP,                /* pairs sorted by expert: index lists for MOE_MATMUL */
    PN_OP_MOE_MATMUL,               /* each pair's row times its expert's matrix */
    PN_OP_MOE_COMBINE,              /* weighted sum in top-k order (+ residual) */
    PN_OP_GATE_ADD,                 /* out = sigmoid(s) * a + b, s one number a row */
    PN_OP_SHORT_CONV,               /* gated causal convolution of a few taps a column; has recurrent state */
    PN_OP_COUNT
} pn_opcode;

typedef enum pn_gating { PN_GATE_SOFTMAX = 1, PN_GATE_SIGMOID = 2, PN_GATE_SOFTMAX_TOPK = 3 } pn_gating;

/* RoPE of one kind of layer: angle of pair i at position p is p * freq[i]; freq already holds base,
 * factors and scaling (model/pn_rope.c); cos and sin are multiplied by `magnitude`. */
typedef struct pn_rope {
    const double *freq;             /* [n_rot/2], owned by the model */
    uint32_t n_rot;
    uint8_t neox;
    float magnitude;
    float temp_beta;                /* mistral3: q *= 1 + beta ln(1 + floor(p / temp_ctx)); 0: off */
    uint32_t temp_ctx;
} pn_rope;

typedef struct pn_op {
    uint8_t code;
    uint8_t sync;                   /* starts a new stage: everything before it is finished */
    uint8_t exact;                  /* f32 arithmetic on decoded weights */
    uint8_t in_place;               /* planner: out shares memory with an input on purpose */
    uint32_t out, a, b, c;          /* operands or PN_NO_OPERAND; see the code's line below */
    uint32_t w, w2;                 /* weights or PN_NO_WEIGHT */
    union {
        struct { float scale; } embed;                          /* w */
        struct { float eps; uint32_t groups; } norm;            /* a, w */
        struct { uint32_t res; } matmul;                        /* a, w, w2 bias, res operand */
        struct { uint32_t rope; } table;                        /* out */
        struct { uint32_t rope, group, layer; float q_scale; uint32_t n_heads; uint8_t store; } store;
                                                                /* a q, b k, c v, out table */
        struct { uint32_t group, layer, n_heads; float scale, softcap; } attn;     /* a q, w sinks */
        struct { uint8_t kind; } glu;                           /* a gate, b up */
        struct { float s; } scale;                              /* a, w */
        struct { float cap; } softcap;                          /* a */
        struct { uint8_t gating, norm; uint32_t n_expert, n_used, n_groups, n_groups_used; float scale; } route;
                                                                /* a logits, w selection bias */
        struct { uint32_t n_expert, n_used, stack; } moe;       /* GROUP: a route, stack: the weight that is read first.
                                                                   MATMUL: a rows, b index, w.  COMBINE: a expert rows,
                                                                   b route, c residual, w2 per-expert scale */
        struct { pn_slot_at state; uint32_t taps; } conv;       /* a [rows, 3n]: b, c, x; w [n][taps]; its state
                                                                   f32 [taps - 1][n]: the last b * x, oldest first */
    } u;
} pn_op;

/* A group is a chain of row-local ops done by one thread on the same rows, or one wide op. */
typedef struct pn_op_group {
    uint32_t op0, n_ops;
    uint32_t stage;
    uint8_t row_local;
} pn_op_group;

/* What a step gives for each wanted row. */
typedef enum pn_plan_result {
    PN_RESULT_LOGITS = 0,           /* f32 [n_vocab] */
    PN_RESULT_HIDDEN                /* f32 [n_embd]: the final norm's row, which the head would multiply */
} pn_plan_result;

typedef struct pn_plan {
    pn_op *ops;
    uint32_t n_ops;
    pn_operand *operands;
    uint32_t n_operands;
    pn_op_group *groups;
    uint32_t n_groups, n_stages;
    uint32_t max_rows, max_outs;
    uint64_t scratch_bytes;         /* peak of all operands: exact */
    uint32_t max_cols;              /* widest weight row: tiles are sized by it */
    uint32_t max_head_dim, max_group_heads;     /* attention temporaries are sized by them */
    /* borrowed from the model */
    const pn_weight *weights;
    const pn_rope *ropes;
    const pn_state_spec *state;
    uint32_t n_vocab;
    uint8_t result;                 /* pn_plan_result */
} pn_plan;

/* ---- the step ----------------------------------------------------------------------------- */

/* Recurrent state as it is behind some row of a run, for others who go on from there. */
typedef struct pn_checkpoint {
    uint32_t rows;                  /* of the run that are done then: 1 to n_rows */
    void *slot[2];
} pn_checkpoint;

typedef struct pn_run {
    uint32_t row0, n_rows;          /* rows [row0, row0 + n_rows) of the step */
    uint32_t pos0;                  /* position of its first row */
    /* pages[g][i] holds positions [i * PN_KV_PAGE_TOKENS, ...) of group g; NULL where a window has
     * passed.  Borrowed during the step. */
    pn_kv_page *const *pages[PN_MAX_GROUPS];
    /* Recurrent state of each part's layers: read, and left behind the last row.  Never the same memory, so a torn step
     * loses nothing.  slot_in NULL: the sequence begins; slot_out NULL: there is none. */
    const void *slot_in[2];
    void *slot_out[2];
    const pn_checkpoint *marks;     /* [n_marks] */
    uint32_t n_marks;
} pn_run;

typedef struct pn_step {
    const pn_token *tokens;         /* [n_rows] */
    uint32_t n_rows;
    const pn_run *runs;             /* [n_runs], rows ascending, together all rows */
    uint32_t n_runs;
    const uint32_t *out_rows;       /* [n_outs] ascending */
    uint32_t n_outs;
    float *logits;                  /* [n_outs, n_vocab]; of a plan for PN_RESULT_HIDDEN [n_outs, n_embd] */
    float *carry;                   /* [n_rows, n_embd] of a split model: the rows between the layers of its parts.
                                       The first part's plan writes it, the second's reads it and may overwrite it */
} pn_step;

/* ---- weights: the lease ------------------------------------------------------------------- */

typedef enum pn_lease_state { PN_LEASE_OK = 0, PN_LEASE_WAIT, PN_LEASE_FAIL } pn_lease_state;

/* Rows [row0, row0 + rows) of a weight, readable until released.  The store may hand out fewer rows
 * than asked for (a ring block ends), never zero. */
typedef struct pn_lease {
    const void *ptr;
    uint64_t row0;
    uint32_t rows;
    uint32_t block;             /* private to the store */
} pn_lease;

/* acquire and pick never block.  One step at a time uses a store. */
typedef struct pn_host_ops {
    uint32_t abi, size;
    void *store;                /* first argument of all calls */
    uint64_t piece_bytes;       /* a lane had better not take more of a matrix at once; 0: as much as it likes */
    /* Before a step's first lease, no lane being at work: this is what will be read, in the order of the plan's ops. */
    void (*begin)(void *store, const pn_plan *plan, const pn_step *step);
    /* Rows of a matrix; every row that a matmul reads is acquired and released once a step. */
    pn_lease_state (*acquire)(void *store, uint32_t weight, uint64_t row0, uint64_t n, pn_lease *out);
    /* The row of an embedding that token i_token of the step selects. */
    pn_lease_state (*pick)(void *store, uint32_t weight, uint64_t row, uint32_t i_token, pn_lease *out);
    /* Once a step and layer: the experts that `stack` and the layer's other stacks will be read for.  The store may
     * put them into another order, in which they should then be acquired. */
    void (*want)(void *store, uint32_t stack, uint32_t *experts, uint32_t n);
    void (*release)(void *store, pn_lease *l);
} pn_host_ops;

static inline uint64_t pn_operand_rows(const pn_operand *o, uint64_t n_rows, uint64_t n_outs)
{
    return o->mul * (o->dim == PN_DIM_ROWS ? n_rows : o->dim == PN_DIM_OUTS ? n_outs : 1);
}

#endif /* PN_PLAN_TYPES_H */
