/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * RoPE frequencies (arch sheet 1, section 3).
 *
 *     plain       freq_i = base^(-2i/n) / ff_i
 *     linear      freq_i = s base^(-2i/n) / ff_i                    s = 1 / factor
 *     yarn        freq_i = ((1 - r_i) s + r_i) base^(-2i/n) / ff_i  (Peng et al. 2023, section 3.2)
 *                 r_i falls from 1 (high frequency, kept) to 0 (interpolated) between the dimensions
 *                 that turn beta_fast and beta_slow times within the original context; whole dimensions, unless
 *                 the file says not to truncate them
 *     magnitude   yarn: A (1 + 0.1 ln f), or A ms(1)/ms(lambda) with a log multiplier lambda
 *
 * Angles are products of a position and a double, reduced in double (num/pn_math.c), so a position
 * of a million is as exact as position one.
 */
#include "model/pn_desc.h"

#include <math.h>

#include "num/pn_math.h"

static const double rope_pi = 3.14159265358979323846;

/* Dimension (of n) whose wave turns `beta` times within ctx tokens. */
static double rope_corr_dim(double n, double ctx, double beta, double base)
{
    return n * pn_log(ctx / (beta * 2 * rope_pi)) / (2 * pn_log(base));
}

static double rope_magnitude_step(double factor, double x) { return factor <= 1 ? 1 : 1 + 0.1 * x * pn_log(factor); }

/* A key of our own: rows of q and k that were not permuted, whatever the family's files do. */
static bool rope_neox(pn_desc *d, bool neox)
{
    if (!pn_hp_has(d, "rope.pairing"))
        return neox;
    if (!pn_hp_str_is(d, "rope.pairing", "neox") && !pn_hp_str_is(d, "rope.pairing", "norm"))
        pn_desc_fail(d, PN_E_UNSUPPORTED, "key '%s.rope.pairing' is none of neox, norm", d->arch_name);
    return pn_hp_str_is(d, "rope.pairing", "neox");
}

PN_INTERNAL pn_rope_spec pn_hp_rope(pn_desc *d, bool neox, float lambda)
{
    pn_rope_spec s = {.n_rot = d->n_rot, .neox = rope_neox(d, neox), .factor = 1, .magnitude = 1};
    s.base = (double)pn_hp_f32_or(d, "rope.freq_base", 10000.0f);
    if (!(s.base > 0))
        pn_desc_fail(d, PN_E_FORMAT, "key '%s.rope.freq_base' is %g, expected a positive number", d->arch_name, s.base);
    double factor = (double)pn_hp_f32_or(d, "rope.scaling.factor", pn_hp_f32_or(d, "rope.scale_linear", 0.0f));
    s.ctx_orig = (double)pn_hp_u32_or(d, "rope.scaling.original_context_length", 1, 1u << 30, d->n_ctx_train);
    s.magnitude = pn_hp_f32_or(d, "rope.scaling.attn_factor", 1.0f);
    s.yarn = pn_hp_str_is(d, "rope.scaling.type", "yarn");
    bool linear = !pn_hp_has(d, "rope.scaling.type") || pn_hp_str_is(d, "rope.scaling.type", "linear");
    if (!s.yarn && !linear && !pn_hp_str_is(d, "rope.scaling.type", "none") &&
        !pn_hp_str_is(d, "rope.scaling.type", "longrope"))
        pn_desc_fail(d, PN_E_UNSUPPORTED, "key '%s.rope.scaling.type' is none of none, linear, yarn, longrope",
                     d->arch_name);
    if ((s.yarn || linear) && factor > 0)
        s.factor = factor;
    s.beta_fast = (double)pn_hp_f32_or(d, "rope.scaling.yarn_beta_fast", 32);
    s.beta_slow = (double)pn_hp_f32_or(d, "rope.scaling.yarn_beta_slow", 1);
    s.fractional = !pn_hp_u32_or(d, "rope.scaling.yarn_truncate", 0, 1, 1);
    if (s.yarn) {
        double m = rope_magnitude_step(s.factor, 1);
        if (lambda != 0)
            m /= rope_magnitude_step(s.factor, (double)lambda);
        s.magnitude = (float)((double)s.magnitude * m);
    }
    return s;
}

PN_INTERNAL uint32_t pn_desc_rope(pn_desc *d, const pn_rope_spec *s)
{
    if (d->status)
        return 0;
    uint32_t half = s->n_rot / 2;
    double *freq = pn_mem_calloc(d->mem, PN_ACCT_MISC, half, sizeof *freq);
    if (!freq || !pn_mem_grow(d->mem, PN_ACCT_MISC, (void **)&d->ropes, &d->cap_ropes, d->n_ropes + 1,
                              sizeof *d->ropes)) {
        pn_mem_free(d->mem, PN_ACCT_MISC, freq, half * sizeof *freq);
        pn_desc_fail(d, PN_E_NOMEM, "out of memory: rotary frequencies");
        return 0;
    }
    double n = s->n_rot, low = 0, high = 0;
    if (s->yarn) {
        low = rope_corr_dim(n, s->ctx_orig, s->beta_fast, s->base);
        high = rope_corr_dim(n, s->ctx_orig, s->beta_slow, s->base);
        low = PN_MAX(0.0, s->fractional ? low : floor(low));
        high = PN_MIN(n - 1, s->fractional ? high : ceil(high));
    }
    for (uint32_t i = 0; i < half; i++) {
        double f = pn_pow(s->base, -2.0 * i / n), mix = 0;
        if (s->factors)
            f /= (double)s->factors[i];
        if (s->yarn) {
            double y = ((double)i - low) / PN_MAX(0.001, high - low);
            mix = 1 - PN_MIN(1.0, PN_MAX(0.0, y));
        }
        freq[i] = (1 - mix) * f / s->factor + mix * f;
    }
    d->ropes[d->n_ropes] = (pn_rope){.freq = freq, .n_rot = s->n_rot, .neox = s->neox, .magnitude = s->magnitude,
                                     .temp_beta = s->temp_beta, .temp_ctx = s->temp_ctx};
    return (uint32_t)d->n_ropes++;
}
