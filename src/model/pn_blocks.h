/*
 * pn_blocks.h - the attention and feed-forward blocks that most families share (arch sheet 1,
 * sections 4 to 6).  A family that differs writes its own; these take no family flags beyond what
 * tensors are there.
 */
#ifndef PN_BLOCKS_H
#define PN_BLOCKS_H

#include "model/pn_desc.h"

/* Weights of one decoder layer; PN_NO_WEIGHT where the family or the file has none. */
typedef struct pn_block {
    uint32_t attn_norm, qkv, b_qkv, q, b_q, k, b_k, v, b_v, o, b_o, q_norm, k_norm, post_attn_norm;
    uint32_t ffn_norm, gate, b_gate, up, b_up, down, b_down, post_ffn_norm;
    uint32_t router, exp_bias, exp_gate, exp_up, exp_down;
    uint32_t sh_gate, sh_up, sh_down, sh_router;
    uint32_t group, index;          /* where keys and values are kept */
    uint8_t windowed;
} pn_block;

/* attn_norm, projections (fused or not) with optional biases, output, ffn_norm.  window: tokens of this layer in
 * the family's files, 0: all; the key attention.layer_windows, one number a layer, overrides it. */
PN_INTERNAL void pn_block_bind_attn(pn_desc *d, pn_block *k, uint32_t il, uint32_t window);
PN_INTERNAL void pn_block_bind_qk_norm(pn_desc *d, pn_block *k, uint32_t il);      /* required */

/* Dense gate/up/down of width n_ff with optional biases.  fused: ffn_up holds [gate | up]. */
PN_INTERNAL void pn_block_bind_ffn(pn_desc *d, pn_block *k, uint32_t il, bool fused);
PN_INTERNAL void pn_block_bind_moe(pn_desc *d, pn_block *k, uint32_t il, uint32_t n_ff_exp);

typedef struct pn_attn_args {
    uint32_t table, rope;           /* cos/sin operand, rope number */
    float q_scale, scale, softcap;
} pn_attn_args;

/* q, k, v of the normed input; per-head norms; rope; store; attention.  Returns the heads' outputs,
 * before the output projection. */
PN_INTERNAL uint32_t pn_block_attn(const pn_desc *d, pn_builder *b, const pn_block *k, uint32_t x,
                                   const pn_attn_args *a);

/* down(act(gate x) * up x) (+ res).  act: pn_glu_kind. */
PN_INTERNAL uint32_t pn_block_ffn(const pn_desc *d, pn_builder *b, const pn_block *k, uint32_t x, uint8_t act,
                                  uint32_t res);

/* Softmax-routed experts (+ res); norm: weights of the chosen are renormalised. */
PN_INTERNAL uint32_t pn_block_moe(const pn_desc *d, pn_builder *b, const pn_block *k, uint32_t x, bool norm,
                                  uint32_t res);

/* norm, gather, output matrix. */
PN_INTERNAL void pn_block_logits(const pn_desc *d, pn_builder *b, uint32_t x, float softcap);

#endif /* PN_BLOCKS_H */
