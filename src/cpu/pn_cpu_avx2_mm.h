/*
 * pn_cpu_avx2_mm.h - pieces that the AVX2 products of quantised weights share.
 */
#ifndef PN_CPU_AVX2_MM_H
#define PN_CPU_AVX2_MM_H

#include "cpu/pn_cpu_x86_mm.h"

#if PN_CPU_X64

PN_AVX2_INLINE __m256i avx2_load(const void *p) { return _mm256_load_si256((const __m256i *)p); }
PN_AVX2_INLINE __m256i avx2_loadu(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* Four bytes (or two int16) in every lane. */
PN_AVX2_INLINE __m256i avx2_splat4(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

/* Four vectors of eight partial sums to sums over 128-bit lanes: (a b c d | a b c d). */
PN_AVX2_INLINE __m256i avx2_tree4(__m256i a, __m256i b, __m256i c, __m256i d)
{
    __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
}

PN_AVX2_INLINE __m256i avx2_tree8(const __m256i v[8])
{
    __m256i a = avx2_tree4(v[0], v[1], v[2], v[3]), b = avx2_tree4(v[4], v[5], v[6], v[7]);
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

/* sum[r] lanes = rows: y = (sum + bias) + res for rows r0 .. of activation row j. */
PN_AVX2 static inline void avx2_store(const pn_cpu_mm *a, uint32_t r0, uint32_t j, __m256 sum)
{
    size_t yi = a->y_index ? a->y_index[j] : j;
    float *y = a->y + yi * a->y_stride + r0;
    if (a->rows - r0 >= 8) {
        if (a->bias)
            sum = _mm256_add_ps(sum, _mm256_loadu_ps(a->bias + r0));
        if (a->res)
            sum = _mm256_add_ps(sum, _mm256_loadu_ps(a->res + yi * a->res_stride + r0));
        _mm256_storeu_ps(y, sum);
        return;
    }
    float v[8];
    _mm256_storeu_ps(v, sum);
    pn_x86_store_rows(a, r0, a->rows - r0, yi, v);
}

/* For each of nx activation rows j. */
#define AVX2_EACH PN_UNROLL for (size_t j = 0; j < nx; j++)

/* A product of one or of two activation rows: `call` is compiled for each nx. */
#define AVX2_ONE(name, call) \
    PN_AVX2 static void name(const pn_cpu_mm *a, pn_cpu_form f) \
    { \
        if (a->m == 1) { \
            const size_t nx = 1; \
            call; \
        } else { \
            const size_t nx = 2; \
            call; \
        } \
    }

/* m <= 2, weights of grids and ternary digits.  False: the type is none of them. */
PN_INTERNAL bool pn_avx2_matmul_grid(const pn_cpu_mm *a, pn_cpu_form f);

#endif /* PN_CPU_X64 */

#endif /* PN_CPU_AVX2_MM_H */
