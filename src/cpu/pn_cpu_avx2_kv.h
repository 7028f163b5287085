/*
 * pn_cpu_avx2_kv.h - AVX2: stored keys and values as vectors of floats.
 *
 * What num/pn_quant decodes them to, bit for bit: d * code has at most 19 significant bits, so a
 * fused d * code + m rounds once as the sum does.
 */
#ifndef PN_CPU_AVX2_KV_H
#define PN_CPU_AVX2_KV_H

#include "cpu/pn_cpu_avx2_codes.h"
#include "cpu/pn_cpu_avx2_math.h"

#if PN_CPU_X64

/* 8 of F32 or F16. */
PN_AVX2_INLINE __m256 pn_avx2_kv8(const uint8_t *p, const uint32_t type)
{
    return type == PN_DTYPE_F16 ? _mm256_cvtph_ps(unp_load16(p)) : _mm256_loadu_ps((const float *)(const void *)p);
}

/* n < 8 of them, zeros after them. */
PN_AVX2_INLINE __m256 pn_avx2_kv_tail(const uint8_t *p, size_t n, const uint32_t type)
{
    if (type == PN_DTYPE_F16) {
        uint16_t h[8] = {0};
        memcpy(h, p, 2 * n);
        return pn_avx2_kv8((const uint8_t *)h, type);
    }
    return _mm256_maskload_ps((const float *)(const void *)p, pn_avx2_mask(n));
}

PN_AVX2_INLINE __m256 pn_avx2_kv_f16x8(const uint8_t *p) { return _mm256_cvtph_ps(_mm_set1_epi16((short)pn_le16(p))); }

/* The 32 codes of a block, signed. */
PN_AVX2_INLINE __m256i pn_avx2_kv_codes(const uint8_t *b, const uint32_t type)
{
    __m256i c = unp_codes32((int)type, b, _mm256_setzero_si256());
    if (type == PN_DTYPE_Q4_0 || type == PN_DTYPE_Q5_0)
        c = _mm256_sub_epi8(c, _mm256_set1_epi8(type == PN_DTYPE_Q4_0 ? 8 : 16));
    return c;
}

/* 32 of any type; one block of a block type. */
PN_AVX2_INLINE void pn_avx2_kv32(const uint8_t *p, __m256 v[4], const uint32_t type)
{
    if (!pn_kv_is_block(type)) {
        PN_UNROLL
        for (size_t i = 0; i < 4; i++)
            v[i] = pn_avx2_kv8(p + pn_kv_elem_bytes(type, 8 * i), type);
        return;
    }
    __m256i c = pn_avx2_kv_codes(p, type);
    __m128i lo = _mm256_castsi256_si128(c), hi = _mm256_extracti128_si256(c, 1);
    __m256 d = pn_avx2_kv_f16x8(p);
    v[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(lo));
    v[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(lo, 8)));
    v[2] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(hi));
    v[3] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(hi, 8)));
    PN_UNROLL
    for (size_t i = 0; i < 4; i++)
        v[i] = type == PN_DTYPE_Q4_1 || type == PN_DTYPE_Q5_1 ? _mm256_fmadd_ps(d, v[i], pn_avx2_kv_f16x8(p + 2))
                                                               : _mm256_mul_ps(d, v[i]);
}

#endif /* PN_CPU_X64 */

#endif /* PN_CPU_AVX2_KV_H */
