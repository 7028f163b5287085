/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_quant_kenc.c - encoders of the K-quants, byte for byte the reference quantiser's (no importance
 * matrix).
 *
 * Each sub-block of 16 or 32 is fitted alone: a symmetric fit (scale) for Q3_K and Q6_K, an affine
 * one (scale and minimum) for Q2_K, Q4_K and Q5_K.  Then the fitted scales are themselves quantised
 * against the block's largest, and the codes computed again with what was stored.
 *
 * Bytes depend on the order and rounding of every operation, so the sums run in index order, products
 * from left to right, and all arithmetic goes through pn_strict.h.  Do not "simplify" an expression.
 */
#include "num/pn_quant.h"

#include <math.h>

#include "num/pn_half.h"
#include "num/pn_strict.h"

#define KENC_TINY 1e-15f        /* a sub-block below this is all zeros (reference) */
#define KENC_RNE_MAX 4194304.0f /* 2^22: where the reference's rounding trick ends */

static float kenc_abs(float x) { return x < 0 ? -x : x; }

/* The element of largest magnitude, sign included; the first one of several. */
static float kenc_extreme(const float *x, int n)
{
    float at = 0;
    for (int i = 0; i < n; i++)
        if (kenc_abs(x[i]) > kenc_abs(at))
            at = x[i];
    return at;
}

/* Store d as f16; returns what was stored. */
static float kenc_put_f16(uint8_t *p, float d)
{
    uint16_t h = pn_f16_from_f32(d);
    pn_put16(p, h);
    return pn_f32_from_f16(h);
}

/* ------------------------------------------------------------------------------------------
 * Affine fit: x ~ scale * code - min, codes 0..top
 * ------------------------------------------------------------------------------------------ */

typedef struct kenc_affine {
    int n, top;             /* elements, largest code */
    float from, step;       /* candidates are (from + step * t + top) / range */
    int tries;              /* t = 0..tries */
    bool absolute;          /* loss |e|, else e^2 */
} kenc_affine;

static const kenc_affine kenc_q2 = {16, 3, -0.5f, 0.1f, 15, true};
static const kenc_affine kenc_q4 = {32, 15, -1.0f, 0.1f, 20, false};
static const kenc_affine kenc_q5 = {32, 31, -0.5f, 0.1f, 15, false};

static float kenc_loss(const kenc_affine *p, const float *x, const float *w, const uint8_t *code,
                       float scale, float low)
{
    float sum = 0;
    for (int i = 0; i < p->n; i++) {
        float e = pn_subf(pn_addf(pn_mulf(scale, (float)code[i]), low), x[i]);
        e = p->absolute ? kenc_abs(e) : pn_mulf(e, e);
        sum = pn_addf(sum, pn_mulf(w[i], e));
    }
    return sum;
}

/* Codes for the inverse scale, and what the least-squares solution needs: sums of w q, w q^2, w q x.
 * False: out of range. */
static bool kenc_candidate(const kenc_affine *p, const float *x, const float *w, float inverse, float low,
                           uint8_t *code, float sum[3])
{
    sum[0] = sum[1] = sum[2] = 0;
    for (int i = 0; i < p->n; i++) {
        float v = pn_mulf(inverse, pn_subf(x[i], low));
        if (!(v < KENC_RNE_MAX && v > -KENC_RNE_MAX))
            return false;
        int32_t q = pn_rne_clamp(v, 0, p->top);
        float wq = pn_mulf(w[i], (float)q);
        code[i] = (uint8_t)q;
        sum[0] = pn_addf(sum[0], wq);
        sum[1] = pn_addf(sum[1], pn_mulf(wq, (float)q));
        sum[2] = pn_addf(sum[2], pn_mulf(wq, x[i]));
    }
    return true;
}

/* Solve for scale and low (at most 0); false when the codes are all alike. */
static bool kenc_solve(float w_all, float wx_all, const float sum[3], float *scale, float *low)
{
    float det = pn_subf(pn_mulf(w_all, sum[1]), pn_mulf(sum[0], sum[0]));
    if (!(det > 0))
        return false;
    *scale = pn_divf(pn_subf(pn_mulf(w_all, sum[2]), pn_mulf(wx_all, sum[0])), det);
    *low = pn_divf(pn_subf(pn_mulf(sum[1], wx_all), pn_mulf(sum[0], sum[2])), det);
    if (*low > 0) {
        *low = 0;
        *scale = pn_divf(sum[2], sum[1]);
    }
    return true;
}

/* Returns the scale; *min >= 0.  Later candidates start from the best minimum so far, as in the
 * reference. */
static float kenc_fit_affine(const kenc_affine *p, const float *x, const float *w, uint8_t *code, float *min)
{
    float low = x[0], high = x[0], w_all = 0, wx_all = 0, sum[3];
    uint8_t trial[32];
    for (int i = 0; i < p->n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        w_all = pn_addf(w_all, w[i]);
        wx_all = pn_addf(wx_all, pn_mulf(w[i], x[i]));
    }
    low = low > 0 ? 0 : low;
    for (int i = 0; i < p->n; i++)
        code[i] = 0;
    *min = -low;
    if (!(high > low))
        return 0;
    float inverse = pn_divf((float)p->top, pn_subf(high, low)), scale = pn_divf(1.0f, inverse);
    for (int i = 0; i < p->n; i++)
        code[i] = (uint8_t)pn_rne_clamp(pn_mulf(inverse, pn_subf(x[i], low)), 0, p->top);
    float best = kenc_loss(p, x, w, code, scale, low);
    for (int t = 0; t <= p->tries && high > low; t++) {
        float s, l, steps = pn_addf(pn_addf(p->from, pn_mulf(p->step, (float)t)), (float)p->top);
        if (!kenc_candidate(p, x, w, pn_divf(steps, pn_subf(high, low)), low, trial, sum))
            continue;
        if (!kenc_solve(w_all, wx_all, sum, &s, &l))
            continue;
        float loss = kenc_loss(p, x, w, trial, s, l);
        if (loss < best) {
            memcpy(code, trial, (size_t)p->n);
            best = loss;
            scale = s;
            low = l;
        }
    }
    *min = -low;
    return scale;
}

/* Fit all sub-blocks.  Weights: |x|, plus the root mean square for blocks of 32. */
static void kenc_fit_block(const kenc_affine *p, const float *x, uint8_t *code, float *scale, float *min)
{
    float w[32];
    for (int s = 0; s < 256 / p->n; s++) {
        const float *xs = x + s * p->n;
        float mean = 0, square = 0;
        if (p->n == 32) {
            for (int i = 0; i < 32; i++)
                square = pn_addf(square, pn_mulf(xs[i], xs[i]));
            mean = pn_keepf(sqrtf(pn_divf(square, 32.0f)));
        }
        for (int i = 0; i < p->n; i++)
            w[i] = pn_addf(mean, kenc_abs(xs[i]));
        scale[s] = kenc_fit_affine(p, xs, w, code + s * p->n, &min[s]);
    }
}

/* Quantise n factors >= 0 to 0..top; the step is stored at p and returned as stored. */
static float kenc_factors(const float *f, int n, int top, uint8_t *q, uint8_t *p)
{
    float most = 0;
    for (int s = 0; s < n; s++)
        most = f[s] > most ? f[s] : most;
    float inverse = most > 0 ? pn_divf((float)top, most) : 0.0f;
    for (int s = 0; s < n; s++)
        q[s] = (uint8_t)pn_rne_clamp(pn_mulf(inverse, f[s]), 0, top);
    return kenc_put_f16(p, most > 0 ? pn_divf(most, (float)top) : 0.0f);
}

/* Codes again, with the stored scale and minimum; a zero scale leaves them. */
static void kenc_recode(const float *x, int n, int top, float scale, float min, uint8_t *code)
{
    if (scale == 0)
        return;
    for (int i = 0; i < n; i++)
        code[i] = (uint8_t)pn_rne_clamp(pn_divf(pn_addf(x[i], min), scale), 0, top);
}

/* Two bits of each code in planes of 32 within each half of 128. */
static void kenc_pack_two_bits(const uint8_t *code, uint8_t *qs)
{
    memset(qs, 0, 64);
    for (int e = 0; e < 256; e++)
        qs[e / 128 * 32 + e % 32] |= (uint8_t)((code[e] & 3) << 2 * (e % 128 / 32));
}

static void kenc_encode_q2(const float *x, uint8_t *b)
{
    uint8_t code[256], sc[16], mn[16];
    float scale[16], min[16];
    kenc_fit_block(&kenc_q2, x, code, scale, min);
    float d = kenc_factors(scale, 16, 15, sc, b + 80), dmin = kenc_factors(min, 16, 15, mn, b + 82);
    for (int s = 0; s < 16; s++) {
        b[s] = (uint8_t)(sc[s] | mn[s] << 4);
        kenc_recode(x + 16 * s, 16, 3, pn_mulf(d, sc[s]), pn_mulf(dmin, mn[s]), code + 16 * s);
    }
    kenc_pack_two_bits(code, b + 16);
}

/* The 12 bytes of Q4_K and Q5_K from eight scales and eight minima of 6 bits (see pn_k_scale_min). */
static void kenc_pack_scales(const uint8_t *sc, const uint8_t *mn, uint8_t *b)
{
    for (int s = 0; s < 4; s++) {
        b[s] = (uint8_t)(sc[s] | sc[s + 4] >> 4 << 6);
        b[s + 4] = (uint8_t)(mn[s] | mn[s + 4] >> 4 << 6);
        b[s + 8] = (uint8_t)((sc[s + 4] & 15) | (mn[s + 4] & 15) << 4);
    }
}

/* Fit, header and final codes of Q4_K and Q5_K. */
static void kenc_encode_q45(const kenc_affine *p, const float *x, uint8_t *b, uint8_t *code)
{
    uint8_t sc[8], mn[8];
    float scale[8], min[8];
    kenc_fit_block(p, x, code, scale, min);
    float d = kenc_factors(scale, 8, 63, sc, b), dmin = kenc_factors(min, 8, 63, mn, b + 2);
    kenc_pack_scales(sc, mn, b + 4);
    for (int s = 0; s < 8; s++)
        kenc_recode(x + 32 * s, 32, p->top, pn_mulf(d, sc[s]), pn_mulf(dmin, mn[s]), code + 32 * s);
}

static void kenc_pack_nibbles(const uint8_t *code, uint8_t *qs)
{
    for (int g = 0; g < 4; g++)
        for (int j = 0; j < 32; j++)
            qs[32 * g + j] = (uint8_t)((code[64 * g + j] & 15) | (code[64 * g + 32 + j] & 15) << 4);
}

static void kenc_encode_q4(const float *x, uint8_t *b)
{
    uint8_t code[256];
    kenc_encode_q45(&kenc_q4, x, b, code);
    kenc_pack_nibbles(code, b + 16);
}

static void kenc_encode_q5(const float *x, uint8_t *b)
{
    uint8_t code[256];
    kenc_encode_q45(&kenc_q5, x, b, code);
    memset(b + 16, 0, 32);
    for (int e = 0; e < 256; e++)
        b[16 + e % 32] |= (uint8_t)(code[e] >> 4 << e / 32);
    kenc_pack_nibbles(code, b + 48);
}

/* ------------------------------------------------------------------------------------------
 * Symmetric fits: x ~ scale * q, q in -half..half - 1; codes are q + half
 * ------------------------------------------------------------------------------------------ */

/* Codes for an inverse scale; sums of w q x and w q q with w = x^2. */
static void kenc_symmetric(const float *x, int half, float inverse, int8_t *q, float *wqx, float *wqq)
{
    *wqx = *wqq = 0;
    for (int i = 0; i < 16; i++) {
        int32_t v = pn_rne_clamp(pn_mulf(inverse, x[i]), -half, half - 1);
        float w = pn_mulf(x[i], x[i]);
        q[i] = (int8_t)v;
        *wqx = pn_addf(*wqx, pn_mulf(pn_mulf(w, x[i]), (float)v));
        *wqq = pn_addf(*wqq, pn_mulf(pn_mulf(w, (float)v), (float)v));
    }
}

/* Q6_K: the best of 19 inverse scales around -half / extreme. */
static float kenc_fit_search(const float *x, int half, int8_t *q)
{
    int8_t trial[16];
    float m = kenc_extreme(x, 16), wqx, wqq;
    memset(q, -half, 16);       /* stored as 0, as the reference leaves an empty sub-block */
    if (!(kenc_abs(m) >= KENC_TINY))
        return 0;
    kenc_symmetric(x, half, pn_divf((float)-half, m), q, &wqx, &wqq);
    float scale = wqq != 0 ? pn_divf(wqx, wqq) : 0.0f, best = pn_mulf(scale, wqx);
    for (int t = -9; t <= 9; t++) {
        if (t == 0)
            continue;
        float steps = pn_addf((float)half, pn_mulf(0.1f, (float)t));
        kenc_symmetric(x, half, pn_divf(-steps, m), trial, &wqx, &wqq);
        if (wqq > 0 && pn_mulf(wqx, wqx) > pn_mulf(best, wqq)) {
            memcpy(q, trial, 16);
            scale = pn_divf(wqx, wqq);
            best = pn_mulf(scale, wqx);
        }
    }
    return scale;
}

/* One sweep of coordinate descent over the codes; returns whether any changed. */
static bool kenc_descend(const float *x, int half, int8_t *q, float *wqx, float *wqq)
{
    bool changed = false;
    for (int i = 0; i < 16; i++) {
        float w = pn_mulf(x[i], x[i]), old = (float)q[i];
        float a = pn_subf(*wqx, pn_mulf(pn_mulf(w, x[i]), old));
        if (!(a > 0))
            continue;
        float b = pn_subf(*wqq, pn_mulf(pn_mulf(w, old), old));
        int32_t v = pn_rne_clamp(pn_divf(pn_mulf(x[i], b), a), -half, half - 1);
        if (v == q[i])
            continue;
        a = pn_addf(a, pn_mulf(pn_mulf(w, x[i]), (float)v));
        b = pn_addf(b, pn_mulf(pn_mulf(w, (float)v), (float)v));
        if (b > 0 && pn_mulf(pn_mulf(a, a), *wqq) > pn_mulf(pn_mulf(*wqx, *wqx), b)) {
            q[i] = (int8_t)v;
            *wqx = a;
            *wqq = b;
            changed = true;
        }
    }
    return changed;
}

/* Q3_K: one inverse scale, then up to five sweeps. */
static float kenc_fit_descent(const float *x, int half, int8_t *q)
{
    float m = kenc_extreme(x, 16), wqx, wqq;
    memset(q, -half, 16);       /* stored as 0, as the reference leaves an empty sub-block */
    if (!(kenc_abs(m) >= KENC_TINY))
        return 0;
    kenc_symmetric(x, half, pn_divf((float)-half, m), q, &wqx, &wqq);
    for (int sweep = 0; sweep < 5; sweep++)
        if (!kenc_descend(x, half, q, &wqx, &wqq))
            break;
    return wqq > 0 ? pn_divf(wqx, wqq) : 0.0f;
}

/* Codes again, with the stored scale; a zero scale leaves them. */
static void kenc_recode_symmetric(const float *x, int half, float scale, int8_t *q)
{
    if (scale == 0)
        return;
    for (int i = 0; i < 16; i++)
        q[i] = (int8_t)pn_rne_clamp(pn_divf(x[i], scale), -half, half - 1);
}

/* The 12 bytes of Q3_K from sixteen 6-bit scales (biased by 32). */
static void kenc_pack_q3_scales(const uint8_t *sc, uint8_t *b)
{
    memset(b, 0, 12);
    for (int s = 0; s < 16; s++) {
        b[s % 8] |= (uint8_t)((sc[s] & 15) << s / 8 * 4);
        b[8 + s % 4] |= (uint8_t)(sc[s] >> 4 << 2 * (s / 4));
    }
}

static void kenc_encode_q3(const float *x, uint8_t *b)
{
    int8_t q[256];
    uint8_t code[256], sc[16] = {0};
    float scale[16];
    for (int s = 0; s < 16; s++)
        scale[s] = kenc_fit_descent(x + 16 * s, 4, q + 16 * s);
    float m = kenc_extreme(scale, 16), inverse = m != 0 ? pn_divf(-32.0f, m) : 0.0f;
    float d = kenc_put_f16(b + 108, m != 0 ? pn_divf(1.0f, inverse) : 0.0f);
    memset(b, 0, 32);
    for (int s = 0; s < 16; s++) {
        int32_t v = 0;
        if (m != 0) {
            v = pn_rne_clamp(pn_mulf(inverse, scale[s]), -32, 31);
            sc[s] = (uint8_t)(v + 32);
        }
        kenc_recode_symmetric(x + 16 * s, 4, pn_mulf(d, (float)v), q + 16 * s);
    }
    kenc_pack_q3_scales(sc, b + 96);
    for (int e = 0; e < 256; e++) {
        code[e] = (uint8_t)(q[e] + 4);
        b[e % 32] |= (uint8_t)(code[e] >> 2 << e / 32);
    }
    kenc_pack_two_bits(code, b + 32);
}

static void kenc_encode_q6(const float *x, uint8_t *b)
{
    int8_t q[256];
    float scale[16];
    for (int s = 0; s < 16; s++)
        scale[s] = kenc_fit_search(x + 16 * s, 32, q + 16 * s);
    float m = kenc_extreme(scale, 16);
    memset(b, 0, 210);
    if (!(kenc_abs(m) >= KENC_TINY))
        return;
    float inverse = pn_divf(-128.0f, m);
    float d = kenc_put_f16(b + 208, pn_divf(1.0f, inverse));
    for (int s = 0; s < 16; s++) {
        int32_t v = pn_rne_clamp(pn_mulf(inverse, scale[s]), -128, 127);
        b[192 + s] = (uint8_t)v;
        kenc_recode_symmetric(x + 16 * s, 32, pn_mulf(d, (float)v), q + 16 * s);
    }
    for (int e = 0; e < 256; e++) {
        int n = e / 128, plane = e % 128 / 32, l = e % 32, code = q[e] + 32;
        b[64 * n + l + 32 * (plane % 2)] |= (uint8_t)((code & 15) << 4 * (plane / 2));
        b[128 + 32 * n + l] |= (uint8_t)(code >> 4 << 2 * plane);
    }
}

/* Activations: the extreme element becomes -127, so d may be negative. */
static void kenc_encode_q8(const float *x, uint8_t *b)
{
    float m = kenc_extreme(x, 256), inverse = m != 0 ? pn_divf(-127.0f, m) : 0.0f;
    pn_put32(b, pn_f32_bits(m != 0 ? pn_divf(1.0f, inverse) : 0.0f));
    for (int s = 0; s < 16; s++) {
        int32_t sum = 0;
        for (int e = 16 * s; e < 16 * s + 16; e++) {
            int32_t v = pn_rne_clamp(pn_mulf(inverse, x[e]), -127, 127);
            b[4 + e] = (uint8_t)v;
            sum += v;
        }
        pn_put16(b + 260 + 2 * s, (uint32_t)sum);
    }
}

PN_INTERNAL pn_block_encode pn_block_encode_k(uint32_t type)
{
    switch (type) {
    case PN_DTYPE_Q2_K: return kenc_encode_q2;
    case PN_DTYPE_Q3_K: return kenc_encode_q3;
    case PN_DTYPE_Q4_K: return kenc_encode_q4;
    case PN_DTYPE_Q5_K: return kenc_encode_q5;
    case PN_DTYPE_Q6_K: return kenc_encode_q6;
    case PN_DTYPE_Q8_K: return kenc_encode_q8;
    default: return NULL;
    }
}

#undef KENC_TINY
#undef KENC_RNE_MAX
