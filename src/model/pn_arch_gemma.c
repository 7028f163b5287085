/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * gemma2 and gemma3 (arch sheet 1, sections 12a and 13).
 *
 *     x = sqrt(D) E[token]
 *     x = x + RMS(Wo attn(c rope(q), rope(k), v))         of n = RMS(x), norms after the block too
 *     x = x + RMS(W2 (gelu(W1 n) * W3 n))
 *     logits = cap tanh(E RMS(x) / cap)
 *
 * gemma2: a window on even layers, scores capped.  gemma3: a window on five layers of six with a
 * rotary base of its own and no scaling, a norm on each head of q and k.  Norm weights are stored
 * with the +1 already added.
 */
#include "model/pn_blocks.h"

#include <math.h>

static bool gemma_is_2(const pn_desc *d) { return strcmp(d->arch_name, "gemma2") == 0; }

/* Tokens that layer il sees; 0: all. */
static uint32_t gemma_window(pn_desc *d, uint32_t il)
{
    if (gemma_is_2(d)) {
        uint32_t w = pn_hp_u32_or(d, "attention.sliding_window", 0, 1u << 30, 4096);
        return il % 2 == 0 ? w : 0;
    }
    uint32_t w = pn_hp_u32_or(d, "attention.sliding_window", 0, 1u << 30, 0), period = 6;
    const pn_gguf_kv *kv = pn_weights_meta(d->file, "gemma3.attention.sliding_window_pattern");
    if (kv && kv->type != PN_META_ARRAY)
        period = pn_hp_u32_or(d, "attention.sliding_window_pattern", 1, 1024, 6);
    return il % period < period - 1 ? w : 0;
}

static void gemma_load(pn_desc *d)
{
    bool v2 = gemma_is_2(d);
    pn_rope_spec s = pn_hp_rope(d, true, 0);
    pn_desc_rope(d, &s);
    if (!v2) {
        s.base = (double)pn_hp_f32_or(d, "rope.freq_base_swa", 10000.0f);
        s.factor = 1;
        if (!(s.base > 0))
            pn_desc_fail(d, PN_E_FORMAT, "key 'gemma3.rope.freq_base_swa' is %g, expected a positive number", s.base);
        d->u.gemma.rope_swa = pn_desc_rope(d, &s);
    }
    uint32_t big = v2 ? 46 : 62;            /* the 27B of each generation scales by D / heads */
    float scalar = d->n_layers == big ? (float)d->n_embd / (float)d->n_heads : (float)d->d_k;
    scalar = pn_hp_f32_or(d, "attention.query_scalar", scalar);
    if (!(scalar > 0))
        pn_desc_fail(d, PN_E_FORMAT, "key '%s.attention.query_scalar' is %g, expected a positive number", d->arch_name, (double)scalar);
    d->u.gemma.q_scale = 1 / sqrtf(scalar);
    d->u.gemma.attn_cap = v2 ? pn_hp_f32_or(d, "attn_logit_softcapping", 50) : 0;
    d->u.gemma.logit_cap = pn_hp_f32_or(d, "final_logit_softcapping", v2 ? 30 : 0);
    pn_block *layers = d->layers;
    for (uint32_t il = 0; il < d->n_layers && !d->status; il++) {
        pn_block *k = &layers[il];
        pn_block_bind_attn(d, k, il, gemma_window(d, il));
        k->post_attn_norm = pn_bind_vec(d, "blk.%u.post_attention_norm.weight", il, d->n_embd);
        k->post_ffn_norm = pn_bind_vec(d, "blk.%u.post_ffw_norm.weight", il, d->n_embd);
        if (!v2)
            pn_block_bind_qk_norm(d, k, il);
        pn_block_bind_ffn(d, k, il, false);
    }
}

static void gemma_build(const pn_desc *d, pn_builder *b, uint32_t n_ctx)
{
    (void)n_ctx;
    uint32_t x = pn_b_embed(b, d->w_embd, sqrtf((float)d->n_embd));
    pn_attn_args full = {.table = pn_b_rope_table(b, 0), .rope = 0, .q_scale = d->u.gemma.q_scale, .scale = 1,
                         .softcap = d->u.gemma.attn_cap};
    pn_attn_args swa = full;
    if (!gemma_is_2(d)) {
        swa.rope = d->u.gemma.rope_swa;
        swa.table = pn_b_rope_table(b, swa.rope);
    }
    const pn_block *k = d->layers;
    for (uint32_t il = 0; il < d->n_layers; il++, k++) {
        x = pn_b_layer(b, il, x, d->n_embd);
        uint32_t n = pn_b_norm(b, x, k->attn_norm, d->eps);
        uint32_t a = pn_block_attn(d, b, k, n, k->windowed ? &swa : &full);
        a = pn_b_matmul(b, k->o, a, k->b_o, PN_NO_OPERAND);
        x = pn_b_add(b, pn_b_norm(b, a, k->post_attn_norm, d->eps), x);
        n = pn_b_norm(b, x, k->ffn_norm, d->eps);
        uint32_t f = pn_block_ffn(d, b, k, n, PN_GLU_GELU, PN_NO_OPERAND);
        x = pn_b_add(b, pn_b_norm(b, f, k->post_ffn_norm, d->eps), x);
    }
    x = pn_b_layer(b, d->n_layers, x, d->n_embd);
    pn_block_logits(d, b, x, d->u.gemma.logit_cap);
}

PN_INTERNAL const pn_arch *pn_arch_gemma(void)
{
    static const char *const names[] = {"gemma2", "gemma3", NULL};
    static const pn_arch arch = {names, gemma_load, gemma_build, sizeof(pn_block), NULL, false};
    return &arch;
}
