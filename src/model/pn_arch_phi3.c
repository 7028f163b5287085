/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * phi3: Phi-3, 3.5, 4 and their minis (arch sheet 1, section 12).
 *
 * q, k, v are one matrix, gate and up another ([gate | up]).  Part of a head may rotate (NEOX).
 * With long-rope tables the short one serves contexts up to the original, the long one those
 * beyond; the choice hangs on the context a session was opened with, never on memory or position.
 * The sliding window that the file may declare is not applied, as in the reference.
 */
#include "model/pn_blocks.h"

#include <math.h>

static void phi3_load(pn_desc *d)
{
    pn_rope_spec s = pn_hp_rope(d, true, 0);
    uint32_t half = d->n_rot / 2;
    uint32_t lng = pn_bind_vec_opt(d, "rope_factors_long.weight", 0, half);
    uint32_t shrt = pn_bind_vec_opt(d, "rope_factors_short.weight", 0, half);
    if (lng == PN_NO_WEIGHT && shrt == PN_NO_WEIGHT)
        s.magnitude = 1;                    /* the attention factor belongs to the tables */
    d->u.longrope.ctx_short = (uint32_t)s.ctx_orig;
    s.factors = pn_desc_vec(d, shrt);
    d->u.longrope.rope_short = pn_desc_rope(d, &s);
    s.factors = pn_desc_vec(d, lng);
    d->u.longrope.rope_long = pn_desc_rope(d, &s);
    pn_block *layers = d->layers;
    for (uint32_t il = 0; il < d->n_layers && !d->status; il++) {
        pn_block_bind_attn(d, &layers[il], il, 0);
        pn_block_bind_ffn(d, &layers[il], il, true);
    }
}

static void phi3_build(const pn_desc *d, pn_builder *b, uint32_t n_ctx)
{
    uint32_t rope = n_ctx > d->u.longrope.ctx_short ? d->u.longrope.rope_long : d->u.longrope.rope_short;
    uint32_t x = pn_b_embed(b, d->w_embd, 1);
    const pn_attn_args a = {.table = pn_b_rope_table(b, rope), .rope = rope, .q_scale = 1 / sqrtf((float)d->d_k),
                            .scale = 1};
    const pn_block *k = d->layers;
    for (uint32_t il = 0; il < d->n_layers; il++, k++) {
        x = pn_b_layer(b, il, x, d->n_embd);
        uint32_t n = pn_b_norm(b, x, k->attn_norm, d->eps);
        x = pn_b_matmul(b, k->o, pn_block_attn(d, b, k, n, &a), k->b_o, x);
        n = pn_b_norm(b, x, k->ffn_norm, d->eps);
        x = pn_block_ffn(d, b, k, n, PN_GLU_SILU, x);
    }
    x = pn_b_layer(b, d->n_layers, x, d->n_embd);
    pn_block_logits(d, b, x, 0);
}

PN_INTERNAL const pn_arch *pn_arch_phi3(void)
{
    static const char *const names[] = {"phi3", NULL};
    static const pn_arch arch = {names, phi3_load, phi3_build, sizeof(pn_block), NULL, false};
    return &arch;
}
