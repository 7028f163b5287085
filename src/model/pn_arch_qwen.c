/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * qwen2 (biases on q, k, v), qwen3 (a norm on each head of q and k), and their mixtures of experts.
 *
 *     qwen2moe    softmax over all experts, weights not renormalised, plus a shared expert that one
 *                 sigmoid gates
 *     qwen3moe    renormalised, no shared expert
 *
 * The key expert_weights_norm overrides that.
 *
 * Rotary pairs are halves of a head (NEOX), never permuted (arch sheet 1, sections 10 and 11).
 */
#include "model/pn_blocks.h"

#include <math.h>

static bool qwen_is(const pn_desc *d, const char *name) { return strcmp(d->arch_name, name) == 0; }

static void qwen_bind_shared(pn_desc *d, pn_block *k, uint32_t il)
{
    uint64_t D = d->n_embd, F = pn_hp_u32_or(d, "expert_shared_feed_forward_length", 1, 1 << 20, PN_MAX(d->n_ff, 1u));
    k->sh_router = pn_bind(d, "blk.%u.ffn_gate_inp_shexp.weight", il, D, 1, 1);   /* one row: a matrix */
    k->sh_gate = pn_bind(d, "blk.%u.ffn_gate_shexp.weight", il, D, F, 1);
    k->sh_up = pn_bind(d, "blk.%u.ffn_up_shexp.weight", il, D, F, 1);
    k->sh_down = pn_bind(d, "blk.%u.ffn_down_shexp.weight", il, F, D, 1);
}

static void qwen_load(pn_desc *d)
{
    bool v3 = qwen_is(d, "qwen3") || qwen_is(d, "qwen3moe"), moe = qwen_is(d, "qwen2moe") || qwen_is(d, "qwen3moe");
    pn_rope_spec s = pn_hp_rope(d, true, 0);
    pn_desc_rope(d, &s);
    if (!d->status && moe && d->n_expert == 0)
        pn_desc_fail(d, PN_E_FORMAT, "key '%s.expert_count' is missing", d->arch_name);
    if (!d->status && qwen_is(d, "qwen2moe") && d->w_out == d->w_embd)
        pn_desc_fail(d, PN_E_FORMAT, "tensor 'output.weight' is missing");
    d->u.qwen.moe_norm = pn_hp_u32_or(d, "expert_weights_norm", 0, 1, v3) != 0;
    uint32_t used = PN_MAX(d->n_expert_used, 1u);
    pn_block *layers = d->layers;
    for (uint32_t il = 0; il < d->n_layers && !d->status; il++) {
        pn_block *k = &layers[il];
        pn_block_bind_attn(d, k, il, 0);
        if (v3)
            pn_block_bind_qk_norm(d, k, il);
        if (!moe) {
            pn_block_bind_ffn(d, k, il, false);
            continue;
        }
        uint32_t F = pn_hp_u32_at(d, "expert_feed_forward_length", il, 1, 1 << 20, PN_MAX(d->n_ff / used, 1u));
        pn_block_bind_moe(d, k, il, F);
        if (!v3)
            qwen_bind_shared(d, k, il);
    }
}

/* y = x + routed(n) + sigmoid(gate n) shared(n) */
static uint32_t qwen_moe(const pn_desc *d, pn_builder *b, const pn_block *k, uint32_t n, uint32_t x)
{
    if (k->sh_up == PN_NO_WEIGHT)
        return pn_block_moe(d, b, k, n, d->u.qwen.moe_norm, x);
    pn_block shared = *k;
    shared.gate = k->sh_gate;
    shared.up = k->sh_up;
    shared.down = k->sh_down;
    shared.b_gate = shared.b_up = shared.b_down = PN_NO_WEIGHT;
    x = pn_block_moe(d, b, k, n, d->u.qwen.moe_norm, x);
    uint32_t s = pn_b_matmul(b, k->sh_router, n, PN_NO_WEIGHT, PN_NO_OPERAND);
    return pn_b_gate_add(b, s, pn_block_ffn(d, b, &shared, n, PN_GLU_SILU, PN_NO_OPERAND), x);
}

static void qwen_build(const pn_desc *d, pn_builder *b, uint32_t n_ctx)
{
    (void)n_ctx;
    uint32_t x = pn_b_embed(b, d->w_embd, 1);
    const pn_attn_args a = {.table = pn_b_rope_table(b, 0), .rope = 0, .q_scale = 1,
                            .scale = 1 / sqrtf((float)d->d_k)};
    const pn_block *k = d->layers;
    for (uint32_t il = 0; il < d->n_layers; il++, k++) {
        x = pn_b_layer(b, il, x, d->n_embd);
        uint32_t n = pn_b_norm(b, x, k->attn_norm, d->eps);
        x = pn_b_matmul(b, k->o, pn_block_attn(d, b, k, n, &a), k->b_o, x);
        n = pn_b_norm(b, x, k->ffn_norm, d->eps);
        x = k->exp_up != PN_NO_WEIGHT ? qwen_moe(d, b, k, n, x) : pn_block_ffn(d, b, k, n, PN_GLU_SILU, x);
    }
    x = pn_b_layer(b, d->n_layers, x, d->n_embd);
    pn_block_logits(d, b, x, 0);
}

PN_INTERNAL const pn_arch *pn_arch_qwen(void)
{
    static const char *const names[] = {"qwen2", "qwen2moe", "qwen3", "qwen3moe", NULL};
    static const pn_arch arch = {names, qwen_load, qwen_build, sizeof(pn_block), NULL, false};
    return &arch;
}
