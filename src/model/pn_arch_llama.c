/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * llama: Llama 1-3, Mistral, Mixtral, SmolLM2, TinyLlama; mistral3: Ministral 3 and later Mistral.
 *
 *     x = E[token]
 *     x = x + Wo attn(rope(Wq n), rope(Wk n), Wv n)       n = RMS(x)
 *     x = x + W2 (silu(W1 n) * W3 n)                      n = RMS(x), or a mixture of experts
 *     logits = Wout RMS(x)
 *
 * Rows of Wq and Wk are stored so that rotary pairs are neighbours (arch sheet 1, section 0.1), unless the key
 * rope.pairing says that they are halves of a head, as in a Hugging Face folder.
 * mistral3 adds a yarn log multiplier and a query temperature that grows with position.
 */
#include "model/pn_blocks.h"

#include <math.h>

static bool llama_is_mistral3(const pn_desc *d) { return strcmp(d->arch_name, "mistral3") == 0; }

/* rope_freqs (Llama 3), or the long/short tables when the file says longrope. */
static void llama_ropes(pn_desc *d)
{
    bool m3 = llama_is_mistral3(d);
    pn_rope_spec s = pn_hp_rope(d, false, m3 ? pn_hp_f32_or(d, "rope.scaling.yarn_log_multiplier", 0) : 0);
    if (m3) {
        s.temp_beta = pn_hp_f32_or(d, "attention.temperature_scale", 0);
        s.temp_ctx = (uint32_t)s.ctx_orig;
    }
    uint32_t half = d->n_rot / 2, freqs = pn_bind_vec_opt(d, "rope_freqs.weight", 0, half);
    uint32_t lng = PN_NO_WEIGHT, shrt = PN_NO_WEIGHT;
    if (freqs == PN_NO_WEIGHT && pn_hp_str_is(d, "rope.scaling.type", "longrope")) {
        lng = pn_bind_vec(d, "rope_factors_long.weight", 0, half);
        shrt = pn_bind_vec(d, "rope_factors_short.weight", 0, half);
    }
    s.factors = pn_desc_vec(d, freqs != PN_NO_WEIGHT ? freqs : shrt);
    d->u.longrope.rope_short = d->u.longrope.rope_long = pn_desc_rope(d, &s);
    d->u.longrope.ctx_short = (uint32_t)s.ctx_orig;
    if (lng != PN_NO_WEIGHT) {
        s.factors = pn_desc_vec(d, lng);
        d->u.longrope.rope_long = pn_desc_rope(d, &s);
    }
}

static void llama_load(pn_desc *d)
{
    llama_ropes(d);
    if (!d->status && d->n_rot != d->d_k)
        pn_desc_fail(d, PN_E_UNSUPPORTED, "key '%s.rope.dimension_count' is %u, expected the head size %u",
                     d->arch_name, (unsigned)d->n_rot, (unsigned)d->d_k);
    pn_block *layers = d->layers;
    for (uint32_t il = 0; il < d->n_layers && !d->status; il++) {
        pn_block_bind_attn(d, &layers[il], il, 0);
        if (d->n_expert)
            pn_block_bind_moe(d, &layers[il], il, pn_hp_u32_at(d, "feed_forward_length", il, 1, 1 << 20, 1));
        else
            pn_block_bind_ffn(d, &layers[il], il, false);
    }
}

static void llama_build(const pn_desc *d, pn_builder *b, uint32_t n_ctx)
{
    uint32_t rope = n_ctx > d->u.longrope.ctx_short ? d->u.longrope.rope_long : d->u.longrope.rope_short;
    uint32_t x = pn_b_embed(b, d->w_embd, 1);
    const pn_attn_args a = {.table = pn_b_rope_table(b, rope), .rope = rope, .q_scale = 1,
                            .scale = 1 / sqrtf((float)d->d_k)};
    const pn_block *k = d->layers;
    for (uint32_t il = 0; il < d->n_layers; il++, k++) {
        x = pn_b_layer(b, il, x, d->n_embd);
        uint32_t n = pn_b_norm(b, x, k->attn_norm, d->eps);
        x = pn_b_matmul(b, k->o, pn_block_attn(d, b, k, n, &a), k->b_o, x);
        n = pn_b_norm(b, x, k->ffn_norm, d->eps);
        x = d->n_expert ? pn_block_moe(d, b, k, n, true, x) : pn_block_ffn(d, b, k, n, PN_GLU_SILU, x);
    }
    x = pn_b_layer(b, d->n_layers, x, d->n_embd);
    pn_block_logits(d, b, x, 0);
}

PN_INTERNAL const pn_arch *pn_arch_llama(void)
{
    static const char *const names[] = {"llama", "mistral3", NULL};
    static const pn_arch arch = {names, llama_load, llama_build, sizeof(pn_block), NULL, false};
    return &arch;
}
