/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * lfm2: short gated convolutions, and attention in a few layers.
 *
 *     x = x + op(RMS(x))
 *     x = x + W2 (silu(W1 n) * W3 n)                      n = RMS(x)
 *
 *     op, where head_count_kv is 0:   b, c, u = Win n;  Wout (c * conv(b * u))
 *     op elsewhere:                   attention, a norm on each head of q and k
 *
 * conv is causal and has shortconv.l_cache taps a column, so such a layer remembers the last l_cache - 1 rows of
 * b * u and nothing else.  Rotary pairs are halves of a head (NEOX); the head is the embedding.  The files call
 * the final norm token_embd_norm.
 *
 * There is no sheet for this family: shapes are those of the golden model's tensors, and its logits agree.
 */
#include "model/pn_blocks.h"

#include <math.h>

typedef struct lfm2_layer {
    pn_block block;             /* of a layer with attention all of it, else the norms and the feed-forward */
    uint32_t in, conv, out;
    pn_slot_at state;
    bool attends;
} lfm2_layer;

static void lfm2_bind_conv(pn_desc *d, lfm2_layer *k, uint32_t il)
{
    uint64_t D = d->n_embd;
    memset(&k->block, 0xff, sizeof k->block);           /* PN_NO_WEIGHT everywhere */
    k->block.attn_norm = pn_bind_vec(d, "blk.%u.attn_norm.weight", il, D);
    k->in = pn_bind(d, "blk.%u.shortconv.in_proj.weight", il, D, 3 * D, 1);
    k->conv = pn_bind_pinned(d, "blk.%u.shortconv.conv.weight", il, d->u.lfm2.taps, D);
    k->out = pn_bind(d, "blk.%u.shortconv.out_proj.weight", il, D, D, 1);
    k->block.ffn_norm = pn_bind_vec(d, "blk.%u.ffn_norm.weight", il, D);
    k->state = pn_desc_state(d, il, (d->u.lfm2.taps - 1) * D * sizeof(float));
}

static void lfm2_load(pn_desc *d)
{
    pn_rope_spec s = pn_hp_rope(d, true, 0);
    pn_desc_rope(d, &s);
    d->u.lfm2.taps = pn_hp_u32(d, "shortconv.l_cache", 2, PN_CPU_TAPS);
    lfm2_layer *layers = d->layers;
    for (uint32_t il = 0; il < d->n_layers && !d->status; il++) {
        lfm2_layer *k = &layers[il];
        k->attends = pn_desc_attends(d, il);
        if (k->attends) {
            pn_block_bind_attn(d, &k->block, il, 0);
            pn_block_bind_qk_norm(d, &k->block, il);
        } else {
            lfm2_bind_conv(d, k, il);
        }
        pn_block_bind_ffn(d, &k->block, il, false);
    }
}

static void lfm2_build(const pn_desc *d, pn_builder *b, uint32_t n_ctx)
{
    (void)n_ctx;
    uint32_t x = pn_b_embed(b, d->w_embd, 1);
    const pn_attn_args a = {.table = pn_b_rope_table(b, 0), .rope = 0, .q_scale = 1,
                            .scale = 1 / sqrtf((float)d->d_k)};
    const lfm2_layer *k = d->layers;
    for (uint32_t il = 0; il < d->n_layers; il++, k++) {
        x = pn_b_layer(b, il, x, d->n_embd);
        uint32_t n = pn_b_norm(b, x, k->block.attn_norm, d->eps);
        if (k->attends) {
            x = pn_b_matmul(b, k->block.o, pn_block_attn(d, b, &k->block, n, &a), k->block.b_o, x);
        } else {
            uint32_t bcx = pn_b_matmul(b, k->in, n, PN_NO_WEIGHT, PN_NO_OPERAND);
            x = pn_b_matmul(b, k->out, pn_b_short_conv(b, k->conv, bcx, d->u.lfm2.taps, k->state), PN_NO_WEIGHT, x);
        }
        n = pn_b_norm(b, x, k->block.ffn_norm, d->eps);
        x = pn_block_ffn(d, b, &k->block, n, PN_GLU_SILU, x);
    }
    x = pn_b_layer(b, d->n_layers, x, d->n_embd);
    pn_block_logits(d, b, x, 0);
}

PN_INTERNAL const pn_arch *pn_arch_lfm2(void)
{
    static const char *const names[] = {"lfm2", NULL};
    static const pn_arch arch = {names, lfm2_load, lfm2_build, sizeof(lfm2_layer), "token_embd_norm.weight", true};
    return &arch;
}
