/*
 * pn_plan.h - the builder: a forward pass written down once, placed to the byte.
 *
 * A model calls the functions below in the order of the paper; each returns an operand.  Errors are
 * sticky (b->status), so model code reads straight down and looks once, in pn_builder_finish().
 *
 * Finishing does three things:
 *   1. stages.  Ops run in stages with a barrier between them.  An op starts a new stage when it
 *      reads what a wide op of this stage wrote, when it is wide and reads what this stage wrote,
 *      or when it overwrites what a differently cut op of this stage reads.  Row-local ops that
 *      follow each other form a chain that one thread runs on the same rows without a barrier.
 *   2. liveness, in stages: an operand occupies memory from the stage that writes it to the last
 *      that uses it, so nothing inside a stage can collide.
 *   3. placement: largest first, lowest gap that is free during its life.  The peak is exact:
 *      the same function sizes a dry run and the real one.
 *
 * Quantised activations are operands too: pn_b_matmul asks for them, and two matmuls of one input
 * share one.
 */
#ifndef PN_PLAN_H
#define PN_PLAN_H

#include "base/pn_mem.h"
#include "cpu/pn_cpu.h"
#include "plan/pn_plan_types.h"

typedef struct pn_builder pn_builder;

struct pn_builder {
    pn_mem *mem;
    pn_plan *plan;
    size_t cap_ops, cap_operands, cap_groups;
    bool exact;
    pn_status status;
    struct { uint32_t x, q; uint8_t act; } quants[8];   /* recent quantised copies, newest first */
    uint32_t layer0, layer1;    /* the part's layers; layer1 0: all */
    bool outside;               /* the layer being written is none of them: its ops are left out */
};

typedef struct pn_plan_env {
    pn_mem *mem;
    const pn_weight *weights;
    const pn_rope *ropes;
    const pn_state_spec *state;
    uint32_t n_vocab, max_rows, max_outs;
    bool exact;
    pn_plan_result result;
    uint32_t layer0, layer1;    /* a plan of layers [layer0, layer1) alone, see pn_b_layer; layer1 0: of all */
} pn_plan_env;

PN_INTERNAL pn_status pn_builder_begin(pn_builder *b, pn_plan *plan, const pn_plan_env *env);
/* Stages, liveness, placement.  On failure the plan is freed. */
PN_INTERNAL pn_status pn_builder_finish(pn_builder *b, pn_err *err);
PN_INTERNAL void pn_plan_free(pn_plan *p, pn_mem *mem);

/* ---- operands: [rows, cols] f32 unless said otherwise ---- */

PN_INTERNAL uint32_t pn_b_embed(pn_builder *b, uint32_t w, float scale);
/* Layer il begins, or after the last one the head (il = number of layers); x: the rows between two layers, which the
 * next ops are to work on.  This is where a model is cut: in the plan of some of its layers everything outside of
 * them is left out, but for rope tables; the first of them finds x in the step's carry, and the last one's x is
 * left there. */
PN_INTERNAL uint32_t pn_b_layer(pn_builder *b, uint32_t il, uint32_t x, uint32_t n_embd);
/* y = RMS(x; w) over each of `groups` equal parts of a row; w PN_NO_WEIGHT: no weight. */
PN_INTERNAL uint32_t pn_b_norm(pn_builder *b, uint32_t x, uint32_t w, float eps);
PN_INTERNAL void pn_b_norm_heads(pn_builder *b, uint32_t x, uint32_t w, float eps, uint32_t groups);  /* in place */
/* y = W x + bias + res; bias PN_NO_WEIGHT, res PN_NO_OPERAND: none.  With res the result replaces it. */
PN_INTERNAL uint32_t pn_b_matmul(pn_builder *b, uint32_t w, uint32_t x, uint32_t bias, uint32_t res);
/* Columns [col, col + cols) of x. */
PN_INTERNAL uint32_t pn_b_view(pn_builder *b, uint32_t x, uint32_t col, uint32_t cols);
PN_INTERNAL uint32_t pn_b_rope_table(pn_builder *b, uint32_t rope);
/* Rotate q and k in place, q *= q_scale, store k and v as layer `layer` of `group`.  store false:
 * q only (keys and values belong to another layer). */
PN_INTERNAL void pn_b_rope_store(pn_builder *b, uint32_t q, uint32_t k, uint32_t v, uint32_t table, uint32_t rope,
                                 uint32_t group, uint32_t layer, uint32_t n_heads, float q_scale);
PN_INTERNAL uint32_t pn_b_attn(pn_builder *b, uint32_t q, uint32_t group, uint32_t layer, uint32_t n_heads,
                               float scale, float softcap, uint32_t sinks);
PN_INTERNAL uint32_t pn_b_glu(pn_builder *b, uint8_t kind, uint32_t gate, uint32_t up);
PN_INTERNAL uint32_t pn_b_add(pn_builder *b, uint32_t x, uint32_t y);          /* result replaces y */
PN_INTERNAL void pn_b_scale(pn_builder *b, uint32_t x, float s, uint32_t w);   /* in place */
PN_INTERNAL void pn_b_softcap(pn_builder *b, uint32_t x, float cap);           /* in place */
PN_INTERNAL uint32_t pn_b_gather(pn_builder *b, uint32_t x);                   /* [outs, cols] */
/* y = sigmoid(s) * x + res, s [rows, 1]; the result replaces res. */
PN_INTERNAL uint32_t pn_b_gate_add(pn_builder *b, uint32_t s, uint32_t x, uint32_t res);

/* y = c * conv(b * x): bcx [rows, 3n] holds b, c and x side by side, w [n][taps] is pinned, state: where the layer's
 * is. */
PN_INTERNAL uint32_t pn_b_short_conv(pn_builder *b, uint32_t w, uint32_t bcx, uint32_t taps, pn_slot_at state);

typedef struct pn_moe_spec {
    uint32_t gate, up, down;        /* stacks; gate PN_NO_WEIGHT: up is fused [gate | up] */
    uint32_t bias;                  /* selection bias or PN_NO_WEIGHT */
    uint32_t down_scale;            /* one number an expert, or PN_NO_WEIGHT */
    uint32_t n_expert, n_used, n_groups, n_groups_used;
    uint8_t gating, norm, act;
    float scale;
} pn_moe_spec;

/* y = sum of the chosen experts + res; logits [rows, n_expert].  With res the result replaces it. */
PN_INTERNAL uint32_t pn_b_moe(pn_builder *b, const pn_moe_spec *s, uint32_t x, uint32_t logits, uint32_t res);

/* The last matmul: its result is the step's logits.  In a plan for PN_RESULT_HIDDEN it is left out, and the
 * result is x, which has to be an operand of its own (no view) that nothing changes any more. */
PN_INTERNAL void pn_b_logits(pn_builder *b, uint32_t w, uint32_t x, uint32_t bias, float scale, float softcap);

/* Graphviz text of the plan. */
PN_INTERNAL pn_status pn_plan_dot(const pn_plan *p, pn_mem *mem, pn_write_fn write, void *user, pn_err *err);
PN_INTERNAL const char *pn_opcode_name(uint32_t code);

#endif /* PN_PLAN_H */
