/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_avx2_ops.c - what is neither matrix product nor attention, AVX2: activations, norms, gates.
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

#endif /* PN_CPU_X64 */

typedef int pn_cpu_avx2_ops_not_empty;          /* ISO C wants a declaration in every file */
