/*
 * pn_desc.h - a model's description: hyper-parameters read, weights bound and checked, state laid
 * out.  It says what is computed; it owns no weight bytes and runs nothing.
 *
 * A family (one file, pn_arch_<family>.c) offers a pn_arch:
 *
 *     load    reads its keys with pn_hp_*, binds its tensors with pn_bind, declares ropes and
 *             stream groups.  Errors are sticky: the first one is kept, later calls do nothing,
 *             so load reads straight down.
 *     build   writes the forward pass with the builder of plan/pn_plan.h.
 *
 * Adding a family: that file, a line below, one in pn_arch_list.c and one in amalgamate.sh.
 */
#ifndef PN_DESC_H
#define PN_DESC_H

#include "format/pn_weights.h"
#include "plan/pn_plan.h"

typedef struct pn_desc pn_desc;

typedef struct pn_arch {
    const char *const *names;               /* values of general.architecture, NULL-terminated */
    void (*load)(pn_desc *d);
    void (*build)(const pn_desc *d, pn_builder *b, uint32_t n_ctx);
    size_t layer_bytes;                     /* size of the family's per-layer struct; d->layers */
    const char *final_norm;                 /* what its files call output_norm.weight; NULL: that */
    bool hybrid;                            /* some layers have no attention: their head_count_kv is 0 */
} pn_arch;

struct pn_desc {
    pn_mem *mem;
    pn_weights *file;                       /* borrowed */
    const pn_arch *arch;
    char arch_name[32];
    bool header_only;                       /* do not read vectors: planning without weights */

    /* hyper-parameters every family has (arch sheet 1, section 2) */
    uint32_t n_ctx_train, n_embd, n_layers, n_heads, n_heads_kv, n_ff, n_vocab;
    uint32_t n_ctx_most;                    /* no longer context can be computed rightly; 0: any can */
    uint32_t d_k, d_v, n_rot;
    uint32_t n_expert, n_expert_used;
    float eps;

    /* weights: parallel tables */
    pn_weight *weights;
    const pn_dir_tensor **tensors;
    size_t n_weights, cap_weights, cap_tensors;
    uint32_t w_embd, w_out, w_out_norm, w_out_bias;     /* w_out == w_embd when tied */
    uint64_t n_params, weight_bytes, pinned_bytes;

    pn_rope *ropes;
    size_t n_ropes, cap_ropes;
    pn_state_spec state;
    uint32_t cut;                           /* split: layers from here on are the second part; 0: not split */

    void *layers;                           /* [n_layers] of arch->layer_bytes, zeroed; owned */
    union {                                 /* what else a family wants to remember */
        struct { uint32_t rope_short, rope_long, ctx_short; } longrope;
        struct { uint32_t rope_swa; float q_scale, attn_cap, logit_cap; } gemma;
        struct { bool moe_norm; } qwen;
        struct { uint32_t taps; } lfm2;
    } u;

    pn_status status;                       /* first failure */
    pn_err *err;                            /* borrowed during load */
};

/* Read header keys and bind tensors.  On failure *d is empty. */
PN_INTERNAL pn_status pn_desc_open(pn_desc *d, pn_mem *mem, pn_weights *file, bool header_only, pn_err *err);
/* The same, split: layers [0, cut) with the embedding are the first part, the others with the head the second. */
PN_INTERNAL pn_status pn_desc_open_cut(pn_desc *d, pn_mem *mem, pn_weights *file, bool header_only, uint32_t cut, pn_err *err);
PN_INTERNAL void pn_desc_close(pn_desc *d);

/* Build the plan of a step of at most max_rows rows and max_outs wanted rows, for a context cap of
 * n_ctx (it selects long-rope tables). */
PN_INTERNAL pn_status pn_desc_plan(const pn_desc *d, pn_plan *plan, uint32_t max_rows, uint32_t max_outs,
                                   uint32_t n_ctx, bool exact, pn_err *err);

/* The plan of one part, as if the model were cut at `cut` (0: all of it is part 0): what part 0 leaves in the step's
 * carry, part 1 goes on with.  With PN_RESULT_HIDDEN there is no head, its input is what comes out.  The groups of keys and
 * values are those of the description, so a model is run with the cut it was opened with. */
PN_INTERNAL pn_status pn_desc_plan_part(const pn_desc *d, pn_plan *plan, uint32_t cut, uint32_t part, pn_plan_result result,
                                        uint32_t max_rows, uint32_t n_ctx, bool exact, pn_err *err);

/* Bytes of weights a single decode step reads: matrices once, of experts the share that is used, of
 * the embedding table one row (all of it when it is the output matrix too). */
PN_INTERNAL uint64_t pn_desc_bytes_per_token(const pn_desc *d);

/* The i-th family; NULL past the end.  One accessor a family file. */
PN_INTERNAL const pn_arch *pn_arch_at(size_t i);
PN_INTERNAL const pn_arch *pn_arch_llama(void);
PN_INTERNAL const pn_arch *pn_arch_qwen(void);
PN_INTERNAL const pn_arch *pn_arch_phi3(void);
PN_INTERNAL const pn_arch *pn_arch_gemma(void);
PN_INTERNAL const pn_arch *pn_arch_lfm2(void);

/* ---- for families: keys -------------------------------------------------------------------- */

PN_INTERNAL void pn_desc_fail(pn_desc *d, pn_status st, const char *fmt, ...) PN_PRINTF(3, 4);

/* "{arch}." + key.  The two-argument forms are required keys; _or have a default.  il: layer for
 * keys that may be arrays.  Values out of [lo, hi] are errors naming key, value and range. */
PN_INTERNAL uint32_t pn_hp_u32(pn_desc *d, const char *key, uint32_t lo, uint32_t hi);
PN_INTERNAL uint32_t pn_hp_u32_or(pn_desc *d, const char *key, uint32_t lo, uint32_t hi, uint32_t absent);
PN_INTERNAL uint32_t pn_hp_u32_at(pn_desc *d, const char *key, uint32_t il, uint32_t lo, uint32_t hi, uint32_t absent);
PN_INTERNAL float pn_hp_f32(pn_desc *d, const char *key);
PN_INTERNAL float pn_hp_f32_or(pn_desc *d, const char *key, float absent);
PN_INTERNAL bool pn_hp_str_is(pn_desc *d, const char *key, const char *value);
PN_INTERNAL bool pn_hp_has(pn_desc *d, const char *key);

/* ---- for families: tensors ----------------------------------------------------------------- */

/* Bind a matrix [ne1][ne0] (or stack [ne2][ne1][ne0]); a trailing 1 may be missing in the file.
 * Returns its number; PN_NO_WEIGHT when optional and absent, or after an error.  The name is a
 * format with at most one %u, the layer. */
PN_INTERNAL uint32_t pn_bind(pn_desc *d, const char *name, uint32_t il, uint64_t ne0, uint64_t ne1, uint64_t ne2);
PN_INTERNAL uint32_t pn_bind_opt(pn_desc *d, const char *name, uint32_t il, uint64_t ne0, uint64_t ne1, uint64_t ne2);

/* Bind a vector: read as f32 into memory of the description (pinned). */
PN_INTERNAL uint32_t pn_bind_vec(pn_desc *d, const char *name, uint32_t il, uint64_t ne0);
PN_INTERNAL uint32_t pn_bind_vec_opt(pn_desc *d, const char *name, uint32_t il, uint64_t ne0);

/* Bind a small matrix, pinned as f32 [ne1][ne0] in one piece: a vector of ne0 * ne1. */
PN_INTERNAL uint32_t pn_bind_pinned(pn_desc *d, const char *name, uint32_t il, uint64_t ne0, uint64_t ne1);

/* ---- for families: state and rope ---------------------------------------------------------- */

/* The group of layers with this geometry, and of the same part as layer il, made on first use; *layer gets the index
 * within it. */
PN_INTERNAL uint32_t pn_desc_stream(pn_desc *d, uint32_t il, uint32_t n_heads, uint32_t d_k, uint32_t d_v, uint32_t window,
                                    uint32_t *layer);

/* Is layer il one with attention?  (Of a hybrid family; others have no other.) */
PN_INTERNAL bool pn_desc_attends(pn_desc *d, uint32_t il);

/* So many bytes of recurrent state for layer il in its sequence's slot; returns where that is, a multiple of 64.  A layer
 * may ask several times. */
PN_INTERNAL pn_slot_at pn_desc_state(pn_desc *d, uint32_t il, uint64_t bytes);

typedef struct pn_rope_spec {
    uint32_t n_rot;
    double base;
    double factor;              /* expansion f; frequencies are multiplied by 1/f */
    bool yarn;
    double beta_fast, beta_slow, ctx_orig;
    bool fractional;            /* yarn's ramp may begin and end between dimensions */
    float magnitude;
    const float *factors;       /* [n_rot/2] divisors, or NULL */
    bool neox;
    float temp_beta;
    uint32_t temp_ctx;
} pn_rope_spec;

/* What {arch}.rope.* says: base, scaling type and factor, yarn with its magnitude.  `neox`: pairs are halves of a head
 * in this family's files, unless the key rope.pairing ("neox", "norm") says otherwise.  `lambda`: the yarn log
 * multiplier where the family reads one, else 0. */
PN_INTERNAL pn_rope_spec pn_hp_rope(pn_desc *d, bool neox, float lambda);

/* Make the frequencies; returns the rope's number. */
PN_INTERNAL uint32_t pn_desc_rope(pn_desc *d, const pn_rope_spec *s);

/* f32 contents of a bound vector, NULL when it is absent or this is a header-only description. */
PN_INTERNAL const float *pn_desc_vec(const pn_desc *d, uint32_t w);

#endif /* PN_DESC_H */
