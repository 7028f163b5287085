/*
 * pn_cpu_avx512_float.h - products of float weights with AVX-512: the 16 partial sums of an output are one vector.
 *
 * Six weight rows times four activation rows, 24 of the 32 registers; the frame, and up to two activation rows, which
 * wait for memory, are AVX2's.  Included by both AVX-512 tables.
 */
#ifndef PN_CPU_AVX512_FLOAT_H
#define PN_CPU_AVX512_FLOAT_H

#include "cpu/pn_cpu_avx512_many.h"

#if PN_CPU_X64

PN_AVX512_INLINE __m512 avx512_float_load(const void *w, size_t i, const int type)
{
    if (type == PN_DTYPE_F32)
        return _mm512_loadu_ps((const float *)w + i);
    const __m256i h = unp_load32((const uint16_t *)w + i);
    return type == PN_DTYPE_F16 ? _mm512_cvtph_ps(h) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* k elements (a multiple of 16) from e on of six weight rows and four activation rows x. */
PN_AVX512_INLINE void avx512_float6x4(const void *const w[PN_X86_FLOAT_W], size_t e, const float *const x[4], size_t k,
                                      pn_x86_float_part (*p)[PN_X86_FLOAT_W], const int type)
{
    __m512 s[4][PN_X86_FLOAT_W];
    PN_UNROLL
    for (size_t j = 0; j < 4; j++)
        PN_UNROLL
        for (size_t r = 0; r < PN_X86_FLOAT_W; r++)
            s[j][r] = _mm512_load_ps(p[j][r]);
    for (size_t i = 0; i < k; i += 16) {
        const __m512 x0 = _mm512_loadu_ps(x[0] + i), x1 = _mm512_loadu_ps(x[1] + i);
        const __m512 x2 = _mm512_loadu_ps(x[2] + i), x3 = _mm512_loadu_ps(x[3] + i);
        PN_UNROLL
        for (size_t r = 0; r < PN_X86_FLOAT_W; r++) {
            const __m512 v = avx512_float_load(w[r], e + i, type);
            s[0][r] = _mm512_fmadd_ps(v, x0, s[0][r]);
            s[1][r] = _mm512_fmadd_ps(v, x1, s[1][r]);
            s[2][r] = _mm512_fmadd_ps(v, x2, s[2][r]);
            s[3][r] = _mm512_fmadd_ps(v, x3, s[3][r]);
        }
    }
    PN_UNROLL
    for (size_t j = 0; j < 4; j++)
        PN_UNROLL
        for (size_t r = 0; r < PN_X86_FLOAT_W; r++)
            _mm512_store_ps(p[j][r], s[j][r]);
}

#define AVX512_FLOAT(name, type) \
    PN_AVX512 static void name(const pn_cpu_mm *a, const void *const w[PN_X86_FLOAT_W], uint32_t j0, uint32_t n, \
                               pn_x86_float_part (*p)[PN_X86_FLOAT_W]) \
    { \
        const size_t whole = a->k & ~(size_t)15; \
        for (size_t e = 0; e < whole; e += PN_X86_FLOAT_K) \
            for (uint32_t j = 0; j < n; j += 4) { \
                const float *x[4]; \
                for (uint32_t i = 0; i < 4; i++) \
                    x[i] = pn_x86_float_x(a, j0 + PN_MIN(j + i, n - 1)) + e; \
                avx512_float6x4(w, e, x, PN_MIN((size_t)PN_X86_FLOAT_K, whole - e), p + j, type); \
            } \
    }
AVX512_FLOAT(avx512_float_f32, PN_DTYPE_F32)
AVX512_FLOAT(avx512_float_f16, PN_DTYPE_F16)
AVX512_FLOAT(avx512_float_bf16, PN_DTYPE_BF16)
#undef AVX512_FLOAT

static void avx512_matmul_exact(const pn_cpu_mm *a)
{
    static const pn_x86_float_blocks blocks = {avx512_float_f32, avx512_float_f16, avx512_float_bf16};
    if (a->m > 2 || pn_dtype_is_quantised(a->dtype))
        pn_x86_float_many(a, &blocks);
    else
        pn_avx2_matmul_float(a);
}

#endif /* PN_CPU_X64 */

#endif /* PN_CPU_AVX512_FLOAT_H */
