/*
 * pn_cpu_avx2_math.h - exp and its family on 8 floats: num/pn_math.c step by step, same bits.
 */
#ifndef PN_CPU_AVX2_MATH_H
#define PN_CPU_AVX2_MATH_H

#include "cpu/pn_cpu_x86.h"

#if PN_CPU_X64

/* All bits in the first n of 8 lanes (n <= 8). */
PN_AVX2_INLINE __m256i pn_avx2_mask(size_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The tree of the canonical order over 16 partial sums. */
PN_AVX2_INLINE float pn_avx2_tree16(__m256 p0, __m256 p1)
{
    __m256 s8 = _mm256_add_ps(p0, p1);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

PN_AVX2_INLINE __m256 pn_avx2_exp(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(12582912.0f);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(0x1.715476p+0f), magic), n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0x1.62e430p-1f), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(0x1.05c610p-29f), r);
    __m256 p = _mm256_set1_ps(0x1.6a23d0p-10f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.123a20p-7f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.5558f2p-5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.555492p-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.fffffcp-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i e = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    __m256 y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
    const __m256 inf = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
    y = _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-87.33654f), _CMP_LT_OQ), y);
    y = _mm256_blendv_ps(y, inf, _mm256_cmp_ps(x, _mm256_set1_ps(88.72283f), _CMP_GT_OQ));
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

PN_AVX2_INLINE __m256 pn_avx2_tanh(__m256 x)
{
    const __m256 sign_bit = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    __m256 sign = _mm256_and_ps(x, sign_bit), a = _mm256_andnot_ps(sign_bit, x), z = _mm256_mul_ps(a, a);
    __m256 p = _mm256_set1_ps(-0x1.75e1cep-8f);
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(0x1.52269cp-6f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-0x1.b83c5ap-5f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(0x1.110726p-3f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-0x1.555532p-2f));
    __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(a, z), p, a);
    __m256 e = _mm256_add_ps(pn_avx2_exp(_mm256_add_ps(a, a)), one);
    __m256 large = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), e));
    __m256 y = _mm256_blendv_ps(large, small, _mm256_cmp_ps(a, _mm256_set1_ps(0.625f), _CMP_LT_OQ));
    return _mm256_or_ps(y, sign);
}

/* x / (1 + e^z) */
PN_AVX2_INLINE __m256 pn_avx2_gate(__m256 x, __m256 z)
{
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), pn_avx2_exp(z)));
}

PN_AVX2_INLINE __m256 pn_avx2_silu(__m256 x) { return pn_avx2_gate(x, _mm256_xor_ps(x, _mm256_set1_ps(-0.0f))); }

PN_AVX2_INLINE __m256 pn_avx2_gelu(__m256 x)
{
    const __m256 k1 = _mm256_set1_ps(-0x1.988454p+0f), k3 = _mm256_set1_ps(-0x1.2444f2p-4f);
    return pn_avx2_gate(x, _mm256_mul_ps(x, _mm256_fmadd_ps(_mm256_mul_ps(x, x), k3, k1)));
}

PN_AVX2_INLINE __m256 pn_avx2_softcap8(__m256 x, __m256 cap)
{
    return _mm256_mul_ps(cap, pn_avx2_tanh(_mm256_div_ps(x, cap)));
}

#endif /* PN_CPU_X64 */

#endif /* PN_CPU_AVX2_MATH_H */
