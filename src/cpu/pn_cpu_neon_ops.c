/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_neon_ops.c - everything but matrix products, AArch64: activations, norms, gates, attention.
 *
 * Tails are copied into a zeroed vector, so no buffer needs padding; a zero lane adds fma(0, 0, p),
 * which leaves a partial sum as it is.
 */
#include "cpu/pn_cpu_neon_math.h"

#if PN_CPU_ARM64

#include <math.h>

/* ------------------------------------------------------------------------------------------
 * Activations
 * ------------------------------------------------------------------------------------------ */

PN_NEON_INLINE float nops_absmax(const float *x, size_t n)
{
    float32x4_t a = vdupq_n_f32(0), b = a;
    for (size_t i = 0; i < n; i += 8) {     /* max keeps a NaN */
        a = vmaxq_f32(a, vabsq_f32(vld1q_f32(x + i)));
        b = vmaxq_f32(b, vabsq_f32(vld1q_f32(x + i + 4)));
    }
    return vmaxvq_f32(vmaxq_f32(a, b));
}

PN_NEON_INLINE int32x4_t nops_round4(const float *x, float inv)
{
    float32x4_t v = vmulq_n_f32(vld1q_f32(x), inv);
    v = vmaxnmq_f32(v, vdupq_n_f32(-127.0f));
    return vcvtnq_s32_f32(vminnmq_f32(v, vdupq_n_f32(127.0f)));
}

/* 16 floats to int8; returns their sum. */
PN_NEON_INLINE int16_t nops_quant16(const float *x, float inv, int8_t *q)
{
    int16x8_t a = vmovn_high_s32(vmovn_s32(nops_round4(x, inv)), nops_round4(x + 4, inv));
    int16x8_t b = vmovn_high_s32(vmovn_s32(nops_round4(x + 8, inv)), nops_round4(x + 12, inv));
    int8x16_t v = vmovn_high_s16(vmovn_s16(a), b);
    vst1q_s8(q, v);
    return vaddlvq_s8(v);
}

PN_INTERNAL void pn_neon_quant(pn_act_kind kind, const float *x, void *dst, size_t k)
{
    pn_act_layout l = pn_act_layout_of(kind, k);
    uint8_t *out = dst;
    if (kind == PN_ACT_F32) {
        memcpy(out, x, 4 * k);
        memset(out + 4 * k, 0, l.row_bytes - 4 * k);
        return;
    }
    size_t bs = kind == PN_ACT_Q8_32 ? 32 : 256;
    float *d = (float *)(void *)(out + l.off_d);
    int16_t *s = (int16_t *)(void *)(out + l.off_s);
    memset(out + k, 0, l.off_d - k);
    memset(d + k / bs, 0, l.off_s - l.off_d - k / bs * 4);
    memset(s + k / 16, 0, l.row_bytes - l.off_s - k / 16 * 2);
    for (size_t b = 0; b < k / bs; b++) {
        float m = nops_absmax(x + b * bs, bs), inv = m < 0x1p-118f ? 0.0f : 127.0f / m;
        d[b] = m < 0x1p-118f ? 0.0f : m / 127.0f;
        for (size_t e = b * bs; e < (b + 1) * bs; e += 16)
            s[e / 16] = nops_quant16(x + e, inv, (int8_t *)out + e);
    }
}

PN_INTERNAL void pn_neon_f16_from_f32(const float *x, uint16_t *y, size_t n)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
    if (i < n) {
        uint16_t h[4];
        vst1_u16(h, vreinterpret_u16_f16(vcvt_f16_f32(pn_neon_load_tail(x + i, n - i))));
        memcpy(y + i, h, 2 * (n - i));
    }
}

/* ------------------------------------------------------------------------------------------
 * Element by element
 * ------------------------------------------------------------------------------------------ */

/* y[0..n) = expr in terms of NOPS_AT(p), 4 values at a time, the tail through copies. */
#define NOPS_EACH(n, expr, tail_expr) \
    do { \
        size_t i = 0; \
        for (; i + 4 <= (n); i += 4) \
            vst1q_f32(y + i, (expr)); \
        if (i < (n)) { \
            size_t rest = (n) - i; \
            pn_neon_store_tail(y + i, (tail_expr), rest); \
        } \
    } while (0)
#define NOPS_LOAD(p) vld1q_f32((p) + i)
#define NOPS_TAIL(p) pn_neon_load_tail((p) + i, rest)

/* Sum of squares in the canonical order. */
static float nops_squares(const float *x, size_t n)
{
    float32x4_t p[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)}, v;
    size_t e = 0;
    for (; e + 16 <= n; e += 16) {
        v = vld1q_f32(x + e), p[0] = vfmaq_f32(p[0], v, v);
        v = vld1q_f32(x + e + 4), p[1] = vfmaq_f32(p[1], v, v);
        v = vld1q_f32(x + e + 8), p[2] = vfmaq_f32(p[2], v, v);
        v = vld1q_f32(x + e + 12), p[3] = vfmaq_f32(p[3], v, v);
    }
    float32x4_t t[4] = {p[0], p[1], p[2], p[3]};
    for (size_t part = 0; e < n; e += 4, part++) {
        v = pn_neon_load_tail(x + e, PN_MIN((size_t)4, n - e));
        t[part] = vfmaq_f32(t[part], v, v);
    }
    return pn_neon_tree1(pn_neon_tree4(t[0], t[1], t[2], t[3]));
}

PN_INTERNAL void pn_neon_rms_norm(const float *x, const float *w, float *y, size_t n, float eps)
{
    float mean = nops_squares(x, n) / (float)n, inv = 1.0f / sqrtf(mean + eps);
    if (w)
        NOPS_EACH(n, vmulq_f32(vmulq_n_f32(NOPS_LOAD(x), inv), NOPS_LOAD(w)),
                  vmulq_f32(vmulq_n_f32(NOPS_TAIL(x), inv), NOPS_TAIL(w)));
    else
        NOPS_EACH(n, vmulq_n_f32(NOPS_LOAD(x), inv), vmulq_n_f32(NOPS_TAIL(x), inv));
}

PN_INTERNAL void pn_neon_add(const float *a, const float *b, float *y, size_t n)
{
    NOPS_EACH(n, vaddq_f32(NOPS_LOAD(a), NOPS_LOAD(b)), vaddq_f32(NOPS_TAIL(a), NOPS_TAIL(b)));
}

PN_INTERNAL void pn_neon_axpy(float s, const float *x, float *y, size_t n)
{
    float32x4_t sv = vdupq_n_f32(s);
    NOPS_EACH(n, vfmaq_f32(NOPS_LOAD(y), sv, NOPS_LOAD(x)), vfmaq_f32(NOPS_TAIL(y), sv, NOPS_TAIL(x)));
}

PN_INTERNAL void pn_neon_scale(const float *x, float s, float *y, size_t n)
{
    NOPS_EACH(n, vmulq_n_f32(NOPS_LOAD(x), s), vmulq_n_f32(NOPS_TAIL(x), s));
}

PN_INTERNAL void pn_neon_glu(pn_glu_kind kind, const float *gate, const float *up, float *y, size_t n)
{
    if (kind == PN_GLU_SILU)
        NOPS_EACH(n, vmulq_f32(pn_neon_silu(NOPS_LOAD(gate)), NOPS_LOAD(up)),
                  vmulq_f32(pn_neon_silu(NOPS_TAIL(gate)), NOPS_TAIL(up)));
    else
        NOPS_EACH(n, vmulq_f32(pn_neon_gelu(NOPS_LOAD(gate)), NOPS_LOAD(up)),
                  vmulq_f32(pn_neon_gelu(NOPS_TAIL(gate)), NOPS_TAIL(up)));
}

PN_INTERNAL void pn_neon_softcap(const float *x, float cap, float *y, size_t n)
{
    float32x4_t c = vdupq_n_f32(cap);
    NOPS_EACH(n, pn_neon_softcap4(NOPS_LOAD(x), c), pn_neon_softcap4(NOPS_TAIL(x), c));
}

PN_INTERNAL void pn_neon_softmax(float *x, size_t n)
{
    float *y = x, m = -INFINITY, sum = 0;
    for (size_t e = 0; e < n; e++)
        m = x[e] > m ? x[e] : m;
    float32x4_t mv = vdupq_n_f32(m);
    NOPS_EACH(n, pn_neon_exp(vsubq_f32(NOPS_LOAD(x), mv)), pn_neon_exp(vsubq_f32(NOPS_TAIL(x), mv)));
    for (size_t e = 0; e < n; e++)
        sum = sum + x[e];
    float inv = 1.0f / sum;
    NOPS_EACH(n, vmulq_n_f32(NOPS_LOAD(x), inv), vmulq_n_f32(NOPS_TAIL(x), inv));
}

#undef NOPS_EACH
#undef NOPS_LOAD
#undef NOPS_TAIL

static void nops_rope1(float *a, float *b, float c, float s)
{
    float av = *a, bs = *b * s, bc = *b * c;
    *a = fmaf(av, c, -bs);
    *b = fmaf(av, s, bc);
}

PN_INTERNAL void pn_neon_rope(float *head, const float *cs, uint32_t n_rot, bool neox)
{
    uint32_t half = n_rot / 2, i = 0;
    for (; i + 4 <= half; i += 4) {
        float32x4x2_t t = vld2q_f32(cs + 2 * i), v;
        float *a = head + (neox ? i : 2 * i), *b = head + half + i;
        if (neox) {
            v.val[0] = vld1q_f32(a);
            v.val[1] = vld1q_f32(b);
        } else {
            v = vld2q_f32(a);
        }
        float32x4_t bs = vmulq_f32(v.val[1], t.val[1]), bc = vmulq_f32(v.val[1], t.val[0]);
        float32x4_t old = v.val[0];
        v.val[0] = vfmaq_f32(vnegq_f32(bs), old, t.val[0]);
        v.val[1] = vfmaq_f32(bc, old, t.val[1]);
        if (neox) {
            vst1q_f32(a, v.val[0]);
            vst1q_f32(b, v.val[1]);
        } else {
            vst2q_f32(a, v);
        }
    }
    for (; i < half; i++)
        nops_rope1(head + (neox ? i : 2 * i), head + (neox ? i + half : 2 * i + 1), cs[2 * i], cs[2 * i + 1]);
}

/* ------------------------------------------------------------------------------------------
 * Attention: queries in groups, scores for four keys at a time
 * ------------------------------------------------------------------------------------------ */

#define NOPS_GROUP 8                    /* queries whose probabilities are kept at once */
#define NOPS_KEY_MAX 512                /* longest key that is converted for a group */

PN_NEON_INLINE float32x4_t nops_load(const void *base, size_t i, const bool half)
{
    if (half)
        return pn_neon_from_f16((const uint16_t *)base + i);
    return vld1q_f32((const float *)base + i);
}

/* n < 4 values, zeros after them. */
PN_NEON_INLINE float32x4_t nops_load_tail(const void *base, size_t i, size_t n, const bool half)
{
    if (half) {
        uint16_t h[4] = {0, 0, 0, 0};
        for (size_t e = 0; e < n; e++)
            h[e] = ((const uint16_t *)base)[i + e];
        return pn_neon_from_f16(h);
    }
    return pn_neon_load_tail((const float *)base + i, n);
}

/* q . k in the canonical order, any length: what is left of a dot product after whole sixteens. */
PN_NEON_INLINE float32x4_t nops_dot_tail(const float *q, const void *k, size_t i, size_t d, float32x4_t p0,
                                         float32x4_t p1, float32x4_t p2, float32x4_t p3, const bool half)
{
    float32x4_t p[4] = {p0, p1, p2, p3};
    for (size_t part = 0; i < d; i += 4, part++) {
        size_t n = PN_MIN((size_t)4, d - i);
        float32x4_t kv = n == 4 ? nops_load(k, i, half) : nops_load_tail(k, i, n, half);
        p[part] = vfmaq_f32(p[part], pn_neon_load_tail(q + i, n), kv);
    }
    return pn_neon_tree4(p[0], p[1], p[2], p[3]);
}

/* q . k for four keys. */
PN_NEON_INLINE void nops_score4(const float *q, const void *const k[4], size_t d, float out[4],
                                const bool half)
{
    float32x4_t a0 = vdupq_n_f32(0), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    float32x4_t c0 = a0, c1 = a0, c2 = a0, c3 = a0, d0 = a0, d1 = a0, d2 = a0, d3 = a0;
    const void *ka = k[0], *kb = k[1], *kc = k[2], *kd = k[3];
    size_t i = 0;
    for (; i + 16 <= d; i += 16) {
        float32x4_t q0 = vld1q_f32(q + i), q1 = vld1q_f32(q + i + 4);
        float32x4_t q2 = vld1q_f32(q + i + 8), q3 = vld1q_f32(q + i + 12);
        a0 = vfmaq_f32(a0, q0, nops_load(ka, i, half));
        a1 = vfmaq_f32(a1, q1, nops_load(ka, i + 4, half));
        a2 = vfmaq_f32(a2, q2, nops_load(ka, i + 8, half));
        a3 = vfmaq_f32(a3, q3, nops_load(ka, i + 12, half));
        b0 = vfmaq_f32(b0, q0, nops_load(kb, i, half));
        b1 = vfmaq_f32(b1, q1, nops_load(kb, i + 4, half));
        b2 = vfmaq_f32(b2, q2, nops_load(kb, i + 8, half));
        b3 = vfmaq_f32(b3, q3, nops_load(kb, i + 12, half));
        c0 = vfmaq_f32(c0, q0, nops_load(kc, i, half));
        c1 = vfmaq_f32(c1, q1, nops_load(kc, i + 4, half));
        c2 = vfmaq_f32(c2, q2, nops_load(kc, i + 8, half));
        c3 = vfmaq_f32(c3, q3, nops_load(kc, i + 12, half));
        d0 = vfmaq_f32(d0, q0, nops_load(kd, i, half));
        d1 = vfmaq_f32(d1, q1, nops_load(kd, i + 4, half));
        d2 = vfmaq_f32(d2, q2, nops_load(kd, i + 8, half));
        d3 = vfmaq_f32(d3, q3, nops_load(kd, i + 12, half));
    }
    a0 = nops_dot_tail(q, ka, i, d, a0, a1, a2, a3, half);
    b0 = nops_dot_tail(q, kb, i, d, b0, b1, b2, b3, half);
    c0 = nops_dot_tail(q, kc, i, d, c0, c1, c2, c3, half);
    d0 = nops_dot_tail(q, kd, i, d, d0, d1, d2, d3, half);
    vst1q_f32(out, pn_neon_tree1x4(a0, b0, c0, d0));
}

static void nops_score4_f32(const float *q, const void *const k[4], size_t d, float out[4])
{
    nops_score4(q, k, d, out, false);
}

static void nops_score4_f16(const float *q, const void *const k[4], size_t d, float out[4])
{
    nops_score4(q, k, d, out, true);
}

static void nops_f32_from_f16(const uint16_t *x, float *y, size_t n)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(y + i, pn_neon_from_f16(x + i));
    if (i < n)
        pn_neon_store_tail(y + i, nops_load_tail(x, i, n - i, true), n - i);
}

/* Scores of queries j0 .. j0+g for tokens lo .. hi into p[query][token]. */
static void nops_scores(const pn_cpu_attn *a, uint32_t j0, uint32_t g, size_t lo, size_t hi,
                        float p[NOPS_GROUP][PN_KV_PAGE_TOKENS + 4])
{
    float keys[4][NOPS_KEY_MAX];
    bool half = a->type == PN_DTYPE_F16, convert = half && g > 1 && a->d_k <= NOPS_KEY_MAX;
    size_t key_bytes = (size_t)a->d_k * (half ? 2 : 4);
    for (size_t t = lo; t < hi; t += 4) {
        const void *k[4];
        for (size_t i = 0; i < 4; i++) {
            k[i] = (const uint8_t *)a->k + PN_MIN(t + i, hi - 1) * key_bytes;
            if (convert) {
                nops_f32_from_f16(k[i], keys[i], a->d_k);
                k[i] = keys[i];
            }
        }
        for (uint32_t j = 0; j < g; j++) {
            if (half && !convert)
                nops_score4_f16(a->q[j0 + j], k, a->d_k, p[j] + t);
            else
                nops_score4_f32(a->q[j0 + j], k, a->d_k, p[j] + t);
        }
    }
}

/* Scores to probabilities.  Returns the sum; *top gets the maximum. */
static float nops_page_softmax(const pn_cpu_attn *a, float *p, size_t lo, size_t hi, float *top)
{
    float32x4_t scale = vdupq_n_f32(a->scale), cap = vdupq_n_f32(a->softcap);
    float m = -INFINITY, l = 0;
    for (size_t t = lo; t < hi; t += 4) {       /* p has room for 4 more */
        float32x4_t s = pn_neon_mul(vld1q_f32(p + t), scale);
        vst1q_f32(p + t, a->softcap != 0 ? pn_neon_softcap4(s, cap) : s);
    }
    for (size_t t = lo; t < hi; t++)
        m = p[t] > m ? p[t] : m;
    for (size_t t = lo; t < hi; t += 4)
        vst1q_f32(p + t, pn_neon_exp(vsubq_f32(vld1q_f32(p + t), vdupq_n_f32(m))));
    for (size_t t = lo; t < hi; t++)
        l = l + p[t];
    *top = m;
    return l;
}

PN_NEON_INLINE float32x4_t nops_merged(float32x4_t o, float32x4_t page, float ea, float eb)
{
    return vfmaq_n_f32(vmulq_n_f32(page, eb), o, ea);
}

PN_NEON_INLINE void nops_merge4(float *o, float32x4_t page, float ea, float eb)
{
    vst1q_f32(o, nops_merged(vld1q_f32(o), page, ea, eb));
}

/* n <= 4 columns of one query at i. */
PN_NEON_INLINE void nops_values_tail(const pn_cpu_attn *a, const float *p, float *o, size_t i, size_t n,
                                     size_t lo, size_t hi, float ea, float eb, const bool half)
{
    float32x4_t s = vdupq_n_f32(0);
    for (size_t t = lo; t < hi; t++) {
        size_t at = t * a->d_v + i;
        s = vfmaq_n_f32(s, n == 4 ? nops_load(a->v, at, half) : nops_load_tail(a->v, at, n, half), p[t]);
    }
    pn_neon_store_tail(o + i, nops_merged(pn_neon_load_tail(o + i, n), s, ea, eb), n);
}

/* 32 columns of one query. */
PN_NEON_INLINE void nops_values32(const pn_cpu_attn *a, const float *p, float *o, size_t i, size_t lo,
                                  size_t hi, float ea, float eb, const bool half)
{
    float32x4_t s0 = vdupq_n_f32(0), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
    for (size_t t = lo; t < hi; t++) {
        size_t at = t * a->d_v + i;
        float32x4_t pv = vdupq_n_f32(p[t]);
        s0 = vfmaq_f32(s0, pv, nops_load(a->v, at, half));
        s1 = vfmaq_f32(s1, pv, nops_load(a->v, at + 4, half));
        s2 = vfmaq_f32(s2, pv, nops_load(a->v, at + 8, half));
        s3 = vfmaq_f32(s3, pv, nops_load(a->v, at + 12, half));
        s4 = vfmaq_f32(s4, pv, nops_load(a->v, at + 16, half));
        s5 = vfmaq_f32(s5, pv, nops_load(a->v, at + 20, half));
        s6 = vfmaq_f32(s6, pv, nops_load(a->v, at + 24, half));
        s7 = vfmaq_f32(s7, pv, nops_load(a->v, at + 28, half));
    }
    nops_merge4(o + i, s0, ea, eb);
    nops_merge4(o + i + 4, s1, ea, eb);
    nops_merge4(o + i + 8, s2, ea, eb);
    nops_merge4(o + i + 12, s3, ea, eb);
    nops_merge4(o + i + 16, s4, ea, eb);
    nops_merge4(o + i + 20, s5, ea, eb);
    nops_merge4(o + i + 24, s6, ea, eb);
    nops_merge4(o + i + 28, s7, ea, eb);
}

/* Sums s of one query: += q * v, 16 columns. */
#define NOPS_ADD4(s) \
    (s##0 = vfmaq_f32(s##0, q, v0), s##1 = vfmaq_f32(s##1, q, v1), s##2 = vfmaq_f32(s##2, q, v2), \
     s##3 = vfmaq_f32(s##3, q, v3))

/* 16 columns of four queries that see the same tokens. */
PN_NEON_INLINE void nops_values16x4(const pn_cpu_attn *a, const float *const p[4], float *const *o, size_t i,
                                    size_t lo, size_t hi, const float *ea, const float *eb, const bool half)
{
    float32x4_t a0 = vdupq_n_f32(0), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    float32x4_t c0 = a0, c1 = a0, c2 = a0, c3 = a0, d0 = a0, d1 = a0, d2 = a0, d3 = a0;
    const float *pa = p[0], *pb = p[1], *pc = p[2], *pd = p[3];
    for (size_t t = lo; t < hi; t++) {
        size_t at = t * a->d_v + i;
        float32x4_t v0 = nops_load(a->v, at, half), v1 = nops_load(a->v, at + 4, half);
        float32x4_t v2 = nops_load(a->v, at + 8, half), v3 = nops_load(a->v, at + 12, half);
        float32x4_t q = vld1q_dup_f32(pa + t);
        NOPS_ADD4(a);
        q = vld1q_dup_f32(pb + t);
        NOPS_ADD4(b);
        q = vld1q_dup_f32(pc + t);
        NOPS_ADD4(c);
        q = vld1q_dup_f32(pd + t);
        NOPS_ADD4(d);
    }
    float32x4_t s[4][4] = {{a0, a1, a2, a3}, {b0, b1, b2, b3}, {c0, c1, c2, c3}, {d0, d1, d2, d3}};
    for (size_t j = 0; j < 4; j++)
        for (size_t n = 0; n < 4; n++)
            nops_merge4(o[j] + i + 4 * n, s[j][n], ea[j], eb[j]);
}

#undef NOPS_ADD4

PN_NEON_INLINE void nops_values_any(const pn_cpu_attn *a, const float *p, float *o, size_t i, size_t lo,
                                    size_t hi, float ea, float eb, const bool half)
{
    for (; i + 32 <= a->d_v; i += 32)
        nops_values32(a, p, o, i, lo, hi, ea, eb, half);
    for (; i < a->d_v; i += 4)
        nops_values_tail(a, p, o, i, PN_MIN((size_t)4, a->d_v - i), lo, hi, ea, eb, half);
}

/* Columns i .. d_v of one query. */
static void nops_values(const pn_cpu_attn *a, const float *p, float *o, size_t i, size_t lo, size_t hi,
                        float ea, float eb)
{
    if (a->type == PN_DTYPE_F16)
        nops_values_any(a, p, o, i, lo, hi, ea, eb, true);
    else
        nops_values_any(a, p, o, i, lo, hi, ea, eb, false);
}

/* Returns the columns done: whole sixteens. */
static size_t nops_values_x4(const pn_cpu_attn *a, const float *const p[4], float *const *o, size_t lo,
                             size_t hi, const float *ea, const float *eb)
{
    size_t i = 0;
    for (; i + 16 <= a->d_v; i += 16) {
        if (a->type == PN_DTYPE_F16)
            nops_values16x4(a, p, o, i, lo, hi, ea, eb, true);
        else
            nops_values16x4(a, p, o, i, lo, hi, ea, eb, false);
    }
    return i;
}

/* Merge the page's maximum and sum of query j into the running ones; *ea, *eb: factors for outputs. */
static void nops_merge_sums(const pn_cpu_attn *a, uint32_t j, float m, float l, float *ea, float *eb)
{
    float top = a->m[j] > m ? a->m[j] : m, d[4] = {a->m[j] - top, m - top, 0, 0};
    float32x4_t e = pn_neon_exp(vld1q_f32(d));
    *ea = vgetq_lane_f32(e, 0);
    *eb = vgetq_lane_f32(e, 1);
    float lb = l * *eb;
    a->l[j] = fmaf(a->l[j], *ea, lb);
    a->m[j] = top;
}

static void nops_attn_group(const pn_cpu_attn *a, uint32_t j0, uint32_t g)
{
    float p[NOPS_GROUP][PN_KV_PAGE_TOKENS + 4], ea[NOPS_GROUP], eb[NOPS_GROUP];
    size_t lo = PN_KV_PAGE_TOKENS, hi = 0;
    for (uint32_t j = j0; j < j0 + g; j++) {
        if (a->lo[j] < a->hi[j]) {
            lo = PN_MIN(lo, (size_t)a->lo[j]);
            hi = PN_MAX(hi, (size_t)a->hi[j]);
        }
    }
    if (lo >= hi)
        return;
    nops_scores(a, j0, g, lo, hi, p);
    for (uint32_t j = 0; j < g; j++) {
        float m, l;
        if (a->lo[j0 + j] >= a->hi[j0 + j])
            continue;
        l = nops_page_softmax(a, p[j], a->lo[j0 + j], a->hi[j0 + j], &m);
        nops_merge_sums(a, j0 + j, m, l, ea + j, eb + j);
    }
    for (uint32_t j = 0; j < g;) {
        size_t l0 = a->lo[j0 + j], h0 = a->hi[j0 + j], done = 0;
        uint32_t same = 1;
        while (same < 4 && j + same < g && a->lo[j0 + j + same] == l0 && a->hi[j0 + j + same] == h0)
            same++;
        if (l0 < h0 && same == 4) {
            const float *const four[4] = {p[j], p[j + 1], p[j + 2], p[j + 3]};
            done = nops_values_x4(a, four, a->o + j0 + j, l0, h0, ea + j, eb + j);
        }
        for (uint32_t n = 0; n < same && l0 < h0; n++)
            nops_values(a, p[j + n], a->o[j0 + j + n], done, l0, h0, ea[j + n], eb[j + n]);
        j += same;
    }
}

PN_INTERNAL void pn_neon_attn(const pn_cpu_attn *a)
{
    for (uint32_t j = 0; j < a->n_q; j += NOPS_GROUP)
        nops_attn_group(a, j, PN_MIN((uint32_t)NOPS_GROUP, a->n_q - j));
}

#undef NOPS_GROUP
#undef NOPS_KEY_MAX

#endif /* PN_CPU_ARM64 */

typedef int pn_cpu_neon_ops_not_empty;          /* ISO C wants a declaration in every file */
