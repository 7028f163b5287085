/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_avx2_ops.c - everything but matrix products, AVX2: activations, norms, gates, attention.
 *
 * Tails go through masked loads and stores, so no buffer needs padding; a masked-off lane adds
 * fma(0, 0, p), which leaves a partial sum as it is.
 */
#include "cpu/pn_cpu_avx2_math.h"
#include "cpu/pn_cpu_x86_mm.h"

#if PN_CPU_X64

#include <math.h>

/* ------------------------------------------------------------------------------------------
 * Activations
 * ------------------------------------------------------------------------------------------ */

/* NaN when one of x is. */
PN_AVX2_INLINE float ops_absmax(const float *x, size_t n)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 m = _mm256_setzero_ps(), bad = m;
    for (size_t i = 0; i < n; i += 8) {     /* max(NaN, m) is m */
        __m256 v = _mm256_loadu_ps(x + i);
        m = _mm256_max_ps(_mm256_andnot_ps(sign, v), m);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    }
    if (PN_UNLIKELY(_mm256_movemask_ps(bad)))
        return NAN;
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}

PN_AVX2_INLINE __m256i ops_round8(const float *x, __m256 inv)
{
    __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x), inv);
    v = _mm256_max_ps(v, _mm256_set1_ps(-127.0f));
    return _mm256_cvtps_epi32(_mm256_min_ps(v, _mm256_set1_ps(127.0f)));
}

/* 32 floats to int8 and the two sums over 16. */
PN_AVX2_INLINE void ops_quant32(const float *x, __m256 inv, int8_t *q, int16_t *s)
{
    __m256i a = _mm256_packs_epi32(ops_round8(x, inv), ops_round8(x + 8, inv));
    __m256i b = _mm256_packs_epi32(ops_round8(x + 16, inv), ops_round8(x + 24, inv));
    __m256i v = _mm256_packs_epi16(a, b);
    v = _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q, v);
    __m256i t = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), v), _mm256_set1_epi16(1));
    t = _mm256_add_epi32(t, _mm256_shuffle_epi32(t, 0x4e));
    t = _mm256_add_epi32(t, _mm256_shuffle_epi32(t, 0xb1));
    s[0] = (int16_t)_mm_cvtsi128_si32(_mm256_castsi256_si128(t));
    s[1] = (int16_t)_mm_cvtsi128_si32(_mm256_extracti128_si256(t, 1));
}

PN_AVX2 PN_INTERNAL void pn_avx2_quant(pn_act_kind kind, const float *x, void *dst, size_t k)
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
        float m = ops_absmax(x + b * bs, bs);
        __m256 inv = _mm256_set1_ps(m < 0x1p-118f ? 0.0f : 127.0f / m);
        d[b] = m < 0x1p-118f ? 0.0f : m / 127.0f;
        for (size_t e = b * bs; e < (b + 1) * bs; e += 32)
            ops_quant32(x + e, inv, (int8_t *)out + e, s + e / 16);
    }
}

PN_AVX2 PN_INTERNAL void pn_avx2_f16_from_f32(const float *x, uint16_t *y, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
    if (i < n) {
        uint16_t h[8];
        __m256 v = _mm256_maskload_ps(x + i, pn_avx2_mask(n - i));
        _mm_storeu_si128((__m128i *)(void *)h, _mm256_cvtps_ph(v, 0));
        memcpy(y + i, h, 2 * (n - i));
    }
}

/* ------------------------------------------------------------------------------------------
 * Element by element
 * ------------------------------------------------------------------------------------------ */

/* y[0..n) = expr, 8 values at a time; the tail the same with masked loads. */
#define OPS_EACH(n, expr, tail_expr) \
    do { \
        size_t i = 0; \
        for (; i + 8 <= (n); i += 8) \
            _mm256_storeu_ps(y + i, (expr)); \
        if (i < (n)) { \
            __m256i tail = pn_avx2_mask((n) - i); \
            _mm256_maskstore_ps(y + i, tail, (tail_expr)); \
        } \
    } while (0)
#define OPS_LOAD(p) _mm256_loadu_ps((p) + i)
#define OPS_TAIL(p) _mm256_maskload_ps((p) + i, tail)

PN_AVX2 PN_INTERNAL void pn_avx2_rms_norm(const float *x, const float *w, float *y, size_t n, float eps)
{
    __m256 p0 = _mm256_setzero_ps(), p1 = p0;
    size_t e = 0;
    for (; e + 16 <= n; e += 16) {
        __m256 a = _mm256_loadu_ps(x + e), b = _mm256_loadu_ps(x + e + 8);
        p0 = _mm256_fmadd_ps(a, a, p0);
        p1 = _mm256_fmadd_ps(b, b, p1);
    }
    if (e < n) {
        size_t rest = n - e;
        __m256 a = _mm256_maskload_ps(x + e, pn_avx2_mask(rest));
        p0 = _mm256_fmadd_ps(a, a, p0);
        if (rest > 8) {
            __m256 b = _mm256_maskload_ps(x + e + 8, pn_avx2_mask(rest - 8));
            p1 = _mm256_fmadd_ps(b, b, p1);
        }
    }
    float mean = pn_avx2_tree16(p0, p1) / (float)n;
    __m256 inv = _mm256_set1_ps(1.0f / sqrtf(mean + eps));
    if (w)
        OPS_EACH(n, _mm256_mul_ps(_mm256_mul_ps(OPS_LOAD(x), inv), OPS_LOAD(w)),
                        _mm256_mul_ps(_mm256_mul_ps(OPS_TAIL(x), inv), OPS_TAIL(w)));
    else
        OPS_EACH(n, _mm256_mul_ps(OPS_LOAD(x), inv), _mm256_mul_ps(OPS_TAIL(x), inv));
}

PN_AVX2 PN_INTERNAL void pn_avx2_add(const float *a, const float *b, float *y, size_t n)
{
    OPS_EACH(n, _mm256_add_ps(OPS_LOAD(a), OPS_LOAD(b)), _mm256_add_ps(OPS_TAIL(a), OPS_TAIL(b)));
}

PN_AVX2 PN_INTERNAL void pn_avx2_axpy(float s, const float *x, float *y, size_t n)
{
    __m256 sv = _mm256_set1_ps(s);
    OPS_EACH(n, _mm256_fmadd_ps(sv, OPS_LOAD(x), OPS_LOAD(y)),
                    _mm256_fmadd_ps(sv, OPS_TAIL(x), OPS_TAIL(y)));
}

PN_AVX2 PN_INTERNAL void pn_avx2_scale(const float *x, float s, float *y, size_t n)
{
    __m256 sv = _mm256_set1_ps(s);
    OPS_EACH(n, _mm256_mul_ps(OPS_LOAD(x), sv), _mm256_mul_ps(OPS_TAIL(x), sv));
}

PN_AVX2 PN_INTERNAL void pn_avx2_glu(pn_glu_kind kind, const float *gate, const float *up, float *y, size_t n)
{
    if (kind == PN_GLU_SILU)
        OPS_EACH(n, _mm256_mul_ps(pn_avx2_silu(OPS_LOAD(gate)), OPS_LOAD(up)),
                        _mm256_mul_ps(pn_avx2_silu(OPS_TAIL(gate)), OPS_TAIL(up)));
    else
        OPS_EACH(n, _mm256_mul_ps(pn_avx2_gelu(OPS_LOAD(gate)), OPS_LOAD(up)),
                        _mm256_mul_ps(pn_avx2_gelu(OPS_TAIL(gate)), OPS_TAIL(up)));
}

PN_AVX2 PN_INTERNAL void pn_avx2_softcap(const float *x, float cap, float *y, size_t n)
{
    __m256 c = _mm256_set1_ps(cap);
    OPS_EACH(n, pn_avx2_softcap8(OPS_LOAD(x), c), pn_avx2_softcap8(OPS_TAIL(x), c));
}

PN_AVX2 PN_INTERNAL void pn_avx2_softmax(float *x, size_t n)
{
    float *y = x, m = -INFINITY, sum = 0;
    for (size_t e = 0; e < n; e++)
        m = x[e] > m ? x[e] : m;
    __m256 mv = _mm256_set1_ps(m);
    OPS_EACH(n, pn_avx2_exp(_mm256_sub_ps(OPS_LOAD(x), mv)),
                    pn_avx2_exp(_mm256_sub_ps(OPS_TAIL(x), mv)));
    for (size_t e = 0; e < n; e++)
        sum = sum + x[e];
    __m256 inv = _mm256_set1_ps(1.0f / sum);
    OPS_EACH(n, _mm256_mul_ps(OPS_LOAD(x), inv), _mm256_mul_ps(OPS_TAIL(x), inv));
}

#undef OPS_EACH
#undef OPS_LOAD
#undef OPS_TAIL

PN_AVX2_INLINE void ops_rope1(float *a, float *b, float c, float s)
{
    float av = *a, bs = *b * s, bc = *b * c;
    __m128 x = _mm_set_ss(av);
    *a = _mm_cvtss_f32(_mm_fmsub_ss(x, _mm_set_ss(c), _mm_set_ss(bs)));
    *b = _mm_cvtss_f32(_mm_fmadd_ss(x, _mm_set_ss(s), _mm_set_ss(bc)));
}

/* 8 pairs of cos, sin to a vector of each. */
PN_AVX2_INLINE void ops_cos_sin(const float *cs, __m256 *c, __m256 *s)
{
    __m256 a = _mm256_loadu_ps(cs), b = _mm256_loadu_ps(cs + 8);
    __m256 lo = _mm256_permute2f128_ps(a, b, 0x20), hi = _mm256_permute2f128_ps(a, b, 0x31);
    *c = _mm256_shuffle_ps(lo, hi, 0x88);
    *s = _mm256_shuffle_ps(lo, hi, 0xdd);
}

PN_AVX2 PN_INTERNAL void pn_avx2_rope(float *head, const float *cs, uint32_t n_rot, bool neox)
{
    uint32_t half = n_rot / 2, i = 0;
    if (neox) {
        for (; i + 8 <= half; i += 8) {
            __m256 c, s, a = _mm256_loadu_ps(head + i), b = _mm256_loadu_ps(head + half + i);
            ops_cos_sin(cs + 2 * i, &c, &s);
            _mm256_storeu_ps(head + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
            _mm256_storeu_ps(head + half + i, _mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c)));
        }
        for (; i < half; i++)
            ops_rope1(head + i, head + half + i, cs[2 * i], cs[2 * i + 1]);
        return;
    }
    for (; i < half; i++)
        ops_rope1(head + 2 * i, head + 2 * i + 1, cs[2 * i], cs[2 * i + 1]);
}

/* ------------------------------------------------------------------------------------------
 * Attention: queries in groups, scores for four keys at a time
 * ------------------------------------------------------------------------------------------ */

#define OPS_GROUP 8                     /* queries whose probabilities are kept at once */
#define OPS_KEY_MAX 512                 /* longest key that is converted for a group */

PN_AVX2_INLINE __m256 ops_load(const void *base, size_t i, const bool half)
{
    if (half)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)base + i)));
    return _mm256_loadu_ps((const float *)base + i);
}

/* n < 8 values, zeros after them. */
PN_AVX2_INLINE __m256 ops_load_tail(const void *base, size_t i, size_t n, const bool half)
{
    if (half) {
        uint16_t h[8] = {0};
        memcpy(h, (const uint16_t *)base + i, 2 * n);
        return ops_load(h, 0, true);
    }
    return _mm256_maskload_ps((const float *)base + i, pn_avx2_mask(n));
}

/* q . k for four keys. */
PN_AVX2_INLINE void ops_score4(const float *q, const void *const k[4], size_t d, float out[4], const bool half)
{
    __m256 a0 = _mm256_setzero_ps(), a1 = a0, b0 = a0, b1 = a0, c0 = a0, c1 = a0, d0 = a0, d1 = a0;
    size_t i = 0;
    for (; i + 16 <= d; i += 16) {
        __m256 q0 = _mm256_loadu_ps(q + i), q1 = _mm256_loadu_ps(q + i + 8);
        a0 = _mm256_fmadd_ps(q0, ops_load(k[0], i, half), a0);
        a1 = _mm256_fmadd_ps(q1, ops_load(k[0], i + 8, half), a1);
        b0 = _mm256_fmadd_ps(q0, ops_load(k[1], i, half), b0);
        b1 = _mm256_fmadd_ps(q1, ops_load(k[1], i + 8, half), b1);
        c0 = _mm256_fmadd_ps(q0, ops_load(k[2], i, half), c0);
        c1 = _mm256_fmadd_ps(q1, ops_load(k[2], i + 8, half), c1);
        d0 = _mm256_fmadd_ps(q0, ops_load(k[3], i, half), d0);
        d1 = _mm256_fmadd_ps(q1, ops_load(k[3], i + 8, half), d1);
    }
    for (int part = 0; i < d; i += 8, part++) {
        size_t n = PN_MIN((size_t)8, d - i);
        __m256 qv = _mm256_maskload_ps(q + i, pn_avx2_mask(n)), v[4];
        for (int t = 0; t < 4; t++)
            v[t] = n == 8 ? ops_load(k[t], i, half) : ops_load_tail(k[t], i, n, half);
        if (part == 0) {
            a0 = _mm256_fmadd_ps(qv, v[0], a0);
            b0 = _mm256_fmadd_ps(qv, v[1], b0);
            c0 = _mm256_fmadd_ps(qv, v[2], c0);
            d0 = _mm256_fmadd_ps(qv, v[3], d0);
        } else {
            a1 = _mm256_fmadd_ps(qv, v[0], a1);
            b1 = _mm256_fmadd_ps(qv, v[1], b1);
            c1 = _mm256_fmadd_ps(qv, v[2], c1);
            d1 = _mm256_fmadd_ps(qv, v[3], d1);
        }
    }
    out[0] = pn_avx2_tree16(a0, a1);
    out[1] = pn_avx2_tree16(b0, b1);
    out[2] = pn_avx2_tree16(c0, c1);
    out[3] = pn_avx2_tree16(d0, d1);
}

PN_AVX2 static void ops_score4_f32(const float *q, const void *const k[4], size_t d, float out[4])
{
    ops_score4(q, k, d, out, false);
}

PN_AVX2 static void ops_score4_f16(const float *q, const void *const k[4], size_t d, float out[4])
{
    ops_score4(q, k, d, out, true);
}

PN_AVX2 static void ops_f32_from_f16(const uint16_t *x, float *y, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, ops_load(x, i, true));
    if (i < n)
        _mm256_maskstore_ps(y + i, pn_avx2_mask(n - i), ops_load_tail(x, i, n - i, true));
}

/* Scores of queries j0 .. j0+g for tokens lo .. hi into p[query][token]. */
PN_AVX2 static void ops_scores(const pn_cpu_attn *a, uint32_t j0, uint32_t g, size_t lo, size_t hi,
                               float p[OPS_GROUP][PN_KV_PAGE_TOKENS + 8])
{
    _Alignas(32) float keys[4][OPS_KEY_MAX];
    bool half = a->type == PN_DTYPE_F16, convert = half && g > 1 && a->d_k <= OPS_KEY_MAX;
    size_t key_bytes = (size_t)a->d_k * (half ? 2 : 4);
    for (size_t t = lo; t < hi; t += 4) {
        const void *k[4];
        float out[4];
        for (size_t i = 0; i < 4; i++) {
            k[i] = (const uint8_t *)a->k + PN_MIN(t + i, hi - 1) * key_bytes;
            if (convert) {
                ops_f32_from_f16(k[i], keys[i], a->d_k);
                k[i] = keys[i];
            }
        }
        for (uint32_t j = 0; j < g; j++) {
            if (half && !convert)
                ops_score4_f16(a->q[j0 + j], k, a->d_k, out);
            else
                ops_score4_f32(a->q[j0 + j], k, a->d_k, out);
            for (size_t i = 0; i < 4; i++)
                p[j][t + i] = out[i];
        }
    }
}

/* Scores to probabilities.  Returns the sum; *top gets the maximum. */
PN_AVX2 static float ops_page_softmax(const pn_cpu_attn *a, float *p, size_t lo, size_t hi, float *top)
{
    __m256 scale = _mm256_set1_ps(a->scale), cap = _mm256_set1_ps(a->softcap);
    float m = -INFINITY, l = 0;
    for (size_t t = lo; t < hi; t += 8) {       /* p has room for 8 more */
        __m256 s = _mm256_mul_ps(_mm256_loadu_ps(p + t), scale);
        _mm256_storeu_ps(p + t, a->softcap != 0 ? pn_avx2_softcap8(s, cap) : s);
    }
    for (size_t t = lo; t < hi; t++)
        m = p[t] > m ? p[t] : m;
    for (size_t t = lo; t < hi; t += 8)
        _mm256_storeu_ps(p + t, pn_avx2_exp(_mm256_sub_ps(_mm256_loadu_ps(p + t), _mm256_set1_ps(m))));
    for (size_t t = lo; t < hi; t++)
        l = l + p[t];
    *top = m;
    return l;
}

PN_AVX2_INLINE void ops_merge8(float *o, __m256 page, __m256 ea, __m256 eb)
{
    _mm256_storeu_ps(o, _mm256_fmadd_ps(_mm256_loadu_ps(o), ea, _mm256_mul_ps(page, eb)));
}

/* o[0..n) of one query, n <= 8 columns at i. */
PN_AVX2_INLINE void ops_values_tail(const pn_cpu_attn *a, const float *p, float *o, size_t i, size_t n,
                                    size_t lo, size_t hi, float ea, float eb, const bool half)
{
    __m256 s = _mm256_setzero_ps();
    __m256i mask = pn_avx2_mask(n);
    for (size_t t = lo; t < hi; t++) {
        __m256 v = n == 8 ? ops_load(a->v, t * a->d_v + i, half) : ops_load_tail(a->v, t * a->d_v + i, n, half);
        s = _mm256_fmadd_ps(_mm256_broadcast_ss(p + t), v, s);
    }
    s = _mm256_mul_ps(s, _mm256_set1_ps(eb));
    s = _mm256_fmadd_ps(_mm256_maskload_ps(o + i, mask), _mm256_set1_ps(ea), s);
    _mm256_maskstore_ps(o + i, mask, s);
}

/* 32 columns of one query. */
PN_AVX2_INLINE void ops_values32(const pn_cpu_attn *a, const float *p, float *o, size_t i, size_t lo,
                                 size_t hi, float ea, float eb, const bool half)
{
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    for (size_t t = lo; t < hi; t++) {
        __m256 pv = _mm256_broadcast_ss(p + t);
        size_t at = t * a->d_v + i;
        s0 = _mm256_fmadd_ps(pv, ops_load(a->v, at, half), s0);
        s1 = _mm256_fmadd_ps(pv, ops_load(a->v, at + 8, half), s1);
        s2 = _mm256_fmadd_ps(pv, ops_load(a->v, at + 16, half), s2);
        s3 = _mm256_fmadd_ps(pv, ops_load(a->v, at + 24, half), s3);
    }
    __m256 av = _mm256_set1_ps(ea), bv = _mm256_set1_ps(eb);
    ops_merge8(o + i, s0, av, bv);
    ops_merge8(o + i + 8, s1, av, bv);
    ops_merge8(o + i + 16, s2, av, bv);
    ops_merge8(o + i + 24, s3, av, bv);
}

/* 16 columns of four queries that see the same tokens. */
PN_AVX2_INLINE void ops_values16x4(const pn_cpu_attn *a, const float *const p[4], float *const *o, size_t i,
                                   size_t lo, size_t hi, const float *ea, const float *eb, const bool half)
{
    __m256 a0 = _mm256_setzero_ps(), a1 = a0, b0 = a0, b1 = a0, c0 = a0, c1 = a0, d0 = a0, d1 = a0;
    for (size_t t = lo; t < hi; t++) {
        size_t at = t * a->d_v + i;
        __m256 v0 = ops_load(a->v, at, half), v1 = ops_load(a->v, at + 8, half);
        __m256 pa = _mm256_broadcast_ss(p[0] + t), pb = _mm256_broadcast_ss(p[1] + t);
        __m256 pc = _mm256_broadcast_ss(p[2] + t), pd = _mm256_broadcast_ss(p[3] + t);
        a0 = _mm256_fmadd_ps(pa, v0, a0);
        a1 = _mm256_fmadd_ps(pa, v1, a1);
        b0 = _mm256_fmadd_ps(pb, v0, b0);
        b1 = _mm256_fmadd_ps(pb, v1, b1);
        c0 = _mm256_fmadd_ps(pc, v0, c0);
        c1 = _mm256_fmadd_ps(pc, v1, c1);
        d0 = _mm256_fmadd_ps(pd, v0, d0);
        d1 = _mm256_fmadd_ps(pd, v1, d1);
    }
    ops_merge8(o[0] + i, a0, _mm256_set1_ps(ea[0]), _mm256_set1_ps(eb[0]));
    ops_merge8(o[0] + i + 8, a1, _mm256_set1_ps(ea[0]), _mm256_set1_ps(eb[0]));
    ops_merge8(o[1] + i, b0, _mm256_set1_ps(ea[1]), _mm256_set1_ps(eb[1]));
    ops_merge8(o[1] + i + 8, b1, _mm256_set1_ps(ea[1]), _mm256_set1_ps(eb[1]));
    ops_merge8(o[2] + i, c0, _mm256_set1_ps(ea[2]), _mm256_set1_ps(eb[2]));
    ops_merge8(o[2] + i + 8, c1, _mm256_set1_ps(ea[2]), _mm256_set1_ps(eb[2]));
    ops_merge8(o[3] + i, d0, _mm256_set1_ps(ea[3]), _mm256_set1_ps(eb[3]));
    ops_merge8(o[3] + i + 8, d1, _mm256_set1_ps(ea[3]), _mm256_set1_ps(eb[3]));
}

PN_AVX2_INLINE void ops_values_any(const pn_cpu_attn *a, const float *p, float *o, size_t i, size_t lo,
                                   size_t hi, float ea, float eb, const bool half)
{
    for (; i + 32 <= a->d_v; i += 32)
        ops_values32(a, p, o, i, lo, hi, ea, eb, half);
    for (; i < a->d_v; i += 8)
        ops_values_tail(a, p, o, i, PN_MIN((size_t)8, a->d_v - i), lo, hi, ea, eb, half);
}

PN_AVX2 static void ops_values(const pn_cpu_attn *a, const float *p, float *o, size_t i, size_t lo,
                               size_t hi, float ea, float eb)
{
    if (a->type == PN_DTYPE_F16)
        ops_values_any(a, p, o, i, lo, hi, ea, eb, true);
    else
        ops_values_any(a, p, o, i, lo, hi, ea, eb, false);
}

/* Returns the columns done: whole sixteens. */
PN_AVX2 static size_t ops_values_x4(const pn_cpu_attn *a, const float *const p[4], float *const *o,
                                    size_t lo, size_t hi, const float *ea, const float *eb)
{
    size_t i = 0;
    for (; i + 16 <= a->d_v; i += 16) {
        if (a->type == PN_DTYPE_F16)
            ops_values16x4(a, p, o, i, lo, hi, ea, eb, true);
        else
            ops_values16x4(a, p, o, i, lo, hi, ea, eb, false);
    }
    return i;
}

PN_AVX2 static void ops_attn_group(const pn_cpu_attn *a, uint32_t j0, uint32_t g)
{
    float p[OPS_GROUP][PN_KV_PAGE_TOKENS + 8], ea[OPS_GROUP], eb[OPS_GROUP];
    size_t lo = PN_KV_PAGE_TOKENS, hi = 0;
    for (uint32_t j = j0; j < j0 + g; j++) {
        if (a->lo[j] < a->hi[j]) {
            lo = PN_MIN(lo, (size_t)a->lo[j]);
            hi = PN_MAX(hi, (size_t)a->hi[j]);
        }
    }
    if (lo >= hi)
        return;
    ops_scores(a, j0, g, lo, hi, p);
    for (uint32_t j = 0; j < g; j++) {
        float top, m, l, *run_m = a->m + j0 + j, *run_l = a->l + j0 + j;
        if (a->lo[j0 + j] >= a->hi[j0 + j])
            continue;
        l = ops_page_softmax(a, p[j], a->lo[j0 + j], a->hi[j0 + j], &m);
        top = *run_m > m ? *run_m : m;
        __m256 e = pn_avx2_exp(_mm256_setr_ps(*run_m - top, m - top, 0, 0, 0, 0, 0, 0));
        ea[j] = _mm_cvtss_f32(_mm256_castps256_ps128(e));
        eb[j] = _mm_cvtss_f32(_mm_movehdup_ps(_mm256_castps256_ps128(e)));
        __m128 merged = _mm_fmadd_ss(_mm_set_ss(*run_l), _mm_set_ss(ea[j]), _mm_set_ss(l * eb[j]));
        *run_l = _mm_cvtss_f32(merged);
        *run_m = top;
    }
    for (uint32_t j = 0; j < g;) {
        size_t l0 = a->lo[j0 + j], h0 = a->hi[j0 + j], done = 0;
        uint32_t same = 1;
        while (same < 4 && j + same < g && a->lo[j0 + j + same] == l0 && a->hi[j0 + j + same] == h0)
            same++;
        if (l0 < h0 && same == 4) {
            const float *const four[4] = {p[j], p[j + 1], p[j + 2], p[j + 3]};
            done = ops_values_x4(a, four, a->o + j0 + j, l0, h0, ea + j, eb + j);
        }
        for (uint32_t n = 0; n < same && l0 < h0; n++)
            ops_values(a, p[j + n], a->o[j0 + j + n], done, l0, h0, ea[j + n], eb[j + n]);
        j += same;
    }
}

PN_AVX2 PN_INTERNAL void pn_avx2_attn(const pn_cpu_attn *a)
{
    for (uint32_t j = 0; j < a->n_q; j += OPS_GROUP)
        ops_attn_group(a, j, PN_MIN((uint32_t)OPS_GROUP, a->n_q - j));
}

#undef OPS_GROUP
#undef OPS_KEY_MAX

#endif /* PN_CPU_X64 */

typedef int pn_cpu_avx2_ops_not_empty;          /* ISO C wants a declaration in every file */
