/* SPDX-License-Identifier: AGPL-3.0-only */
#include "model/pn_blocks.h"

PN_INTERNAL void pn_block_bind_attn(pn_desc *d, pn_block *k, uint32_t il, uint32_t window)
{
    uint64_t D = d->n_embd, H = (uint64_t)d->n_heads * d->d_k, K = (uint64_t)d->n_heads_kv * d->d_k;
    uint64_t V = (uint64_t)d->n_heads_kv * d->d_v, O = (uint64_t)d->n_heads * d->d_v;
    memset(k, 0xff, sizeof *k);             /* PN_NO_WEIGHT everywhere */
    window = pn_hp_u32_at(d, "attention.layer_windows", il, 0, 1u << 30, window);
    k->windowed = window != 0;
    k->attn_norm = pn_bind_vec(d, "blk.%u.attn_norm.weight", il, D);
    k->qkv = pn_bind_opt(d, "blk.%u.attn_qkv.weight", il, D, H + K + V, 1);
    k->b_qkv = pn_bind_vec_opt(d, "blk.%u.attn_qkv.bias", il, H + K + V);
    if (k->qkv == PN_NO_WEIGHT) {
        k->q = pn_bind(d, "blk.%u.attn_q.weight", il, D, H, 1);
        k->k = pn_bind(d, "blk.%u.attn_k.weight", il, D, K, 1);
        k->v = pn_bind(d, "blk.%u.attn_v.weight", il, D, V, 1);
        k->b_q = pn_bind_vec_opt(d, "blk.%u.attn_q.bias", il, H);
        k->b_k = pn_bind_vec_opt(d, "blk.%u.attn_k.bias", il, K);
        k->b_v = pn_bind_vec_opt(d, "blk.%u.attn_v.bias", il, V);
    }
    k->o = pn_bind(d, "blk.%u.attn_output.weight", il, O, D, 1);
    k->b_o = pn_bind_vec_opt(d, "blk.%u.attn_output.bias", il, D);
    k->ffn_norm = pn_bind_vec(d, "blk.%u.ffn_norm.weight", il, D);
    k->group = pn_desc_stream(d, il, d->n_heads_kv, d->d_k, d->d_v, window, &k->index);
}

PN_INTERNAL void pn_block_bind_qk_norm(pn_desc *d, pn_block *k, uint32_t il)
{
    k->q_norm = pn_bind_vec(d, "blk.%u.attn_q_norm.weight", il, d->d_k);
    k->k_norm = pn_bind_vec(d, "blk.%u.attn_k_norm.weight", il, d->d_k);
}

PN_INTERNAL void pn_block_bind_ffn(pn_desc *d, pn_block *k, uint32_t il, bool fused)
{
    uint64_t D = d->n_embd, F = pn_hp_u32_at(d, "feed_forward_length", il, 1, 1 << 20, 0);
    if (!d->status && F == 0)
        pn_desc_fail(d, PN_E_FORMAT, "key '%s.feed_forward_length' is missing", d->arch_name);
    if (!fused) {
        k->gate = pn_bind(d, "blk.%u.ffn_gate.weight", il, D, F, 1);
        k->b_gate = pn_bind_vec_opt(d, "blk.%u.ffn_gate.bias", il, F);
    }
    k->up = pn_bind(d, "blk.%u.ffn_up.weight", il, D, fused ? 2 * F : F, 1);
    k->b_up = pn_bind_vec_opt(d, "blk.%u.ffn_up.bias", il, fused ? 2 * F : F);
    k->down = pn_bind(d, "blk.%u.ffn_down.weight", il, F, D, 1);
    k->b_down = pn_bind_vec_opt(d, "blk.%u.ffn_down.bias", il, D);
}

PN_INTERNAL void pn_block_bind_moe(pn_desc *d, pn_block *k, uint32_t il, uint32_t n_ff_exp)
{
    uint64_t D = d->n_embd, E = d->n_expert, F = n_ff_exp;
    k->router = pn_bind(d, "blk.%u.ffn_gate_inp.weight", il, D, E, 1);
    k->exp_gate = pn_bind(d, "blk.%u.ffn_gate_exps.weight", il, D, F, E);
    k->exp_up = pn_bind(d, "blk.%u.ffn_up_exps.weight", il, D, F, E);
    k->exp_down = pn_bind(d, "blk.%u.ffn_down_exps.weight", il, F, D, E);
}

PN_INTERNAL uint32_t pn_block_attn(const pn_desc *d, pn_builder *b, const pn_block *k, uint32_t x,
                                   const pn_attn_args *a)
{
    uint32_t q, key, v, H = d->n_heads * d->d_k, K = d->n_heads_kv * d->d_k, V = d->n_heads_kv * d->d_v;
    if (k->qkv != PN_NO_WEIGHT) {
        uint32_t qkv = pn_b_matmul(b, k->qkv, x, k->b_qkv, PN_NO_OPERAND);
        q = pn_b_view(b, qkv, 0, H);
        key = pn_b_view(b, qkv, H, K);
        v = pn_b_view(b, qkv, H + K, V);
    } else {
        q = pn_b_matmul(b, k->q, x, k->b_q, PN_NO_OPERAND);
        key = pn_b_matmul(b, k->k, x, k->b_k, PN_NO_OPERAND);
        v = pn_b_matmul(b, k->v, x, k->b_v, PN_NO_OPERAND);
    }
    if (k->q_norm != PN_NO_WEIGHT) {
        pn_b_norm_heads(b, q, k->q_norm, d->eps, d->n_heads);
        pn_b_norm_heads(b, key, k->k_norm, d->eps, d->n_heads_kv);
    }
    pn_b_rope_store(b, q, key, v, a->table, a->rope, k->group, k->index, d->n_heads, a->q_scale);
    return pn_b_attn(b, q, k->group, k->index, d->n_heads, a->scale, a->softcap, PN_NO_WEIGHT);
}

PN_INTERNAL uint32_t pn_block_ffn(const pn_desc *d, pn_builder *b, const pn_block *k, uint32_t x, uint8_t act,
                                  uint32_t res)
{
    uint32_t up = pn_b_matmul(b, k->up, x, k->b_up, PN_NO_OPERAND), gate;
    if (k->gate != PN_NO_WEIGHT)
        gate = pn_b_matmul(b, k->gate, x, k->b_gate, PN_NO_OPERAND);
    else {
        uint32_t half = (uint32_t)(d->weights[k->up].rows / 2);
        gate = pn_b_view(b, up, 0, half);
        up = pn_b_view(b, up, half, half);
    }
    return pn_b_matmul(b, k->down, pn_b_glu(b, act, gate, up), k->b_down, res);
}

PN_INTERNAL uint32_t pn_block_moe(const pn_desc *d, pn_builder *b, const pn_block *k, uint32_t x, bool norm,
                                  uint32_t res)
{
    const pn_moe_spec s = {.gate = k->exp_gate, .up = k->exp_up, .down = k->exp_down, .bias = k->exp_bias,
                           .down_scale = PN_NO_WEIGHT, .n_expert = d->n_expert, .n_used = d->n_expert_used,
                           .gating = PN_GATE_SOFTMAX, .norm = norm, .act = PN_GLU_SILU, .scale = 1};
    uint32_t logits = pn_b_matmul(b, k->router, x, PN_NO_WEIGHT, PN_NO_OPERAND);
    return pn_b_moe(b, &s, x, logits, res);
}

PN_INTERNAL void pn_block_logits(const pn_desc *d, pn_builder *b, uint32_t x, float softcap)
{
    uint32_t last = pn_b_gather(b, x);
    pn_b_logits(b, d->w_out, pn_b_norm(b, last, d->w_out_norm, d->eps), d->w_out_bias, 1, softcap);
}
