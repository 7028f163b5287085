/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_avx2_float.c - products of float weights (and of any weights decoded to float), AVX2.
 *
 * 16 partial sums along k are two vectors.  One or two activation rows: four weight rows at a time.
 * Several: three weight rows times two activation rows, which is 12 accumulators of the 16 registers.
 * Blocks of 6 weight rows and 32 activation rows go through k in pieces of 512, so that the pieces of
 * weights (at most 12 KiB) stay in the first-level cache; partial sums wait in memory between pieces,
 * exactly.  Weights are converted as they are loaded: the conversion units are idle otherwise.
 */
#include "cpu/pn_cpu_avx2_math.h"
#include "cpu/pn_cpu_x86_mm.h"
#include "num/pn_quant.h"

#if PN_CPU_X64

#define FLT_W PN_X86_FLOAT_W
#define FLT_X PN_X86_FLOAT_X
#define FLT_K PN_X86_FLOAT_K

typedef pn_x86_float_part flt_part;

PN_AVX2_INLINE __m256 flt_load(const void *w, size_t i, const int type)
{
    if (type == PN_DTYPE_F32)
        return _mm256_loadu_ps((const float *)w + i);
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)w + i));
    if (type == PN_DTYPE_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* n < 8 values, zeros after them. */
PN_AVX2_INLINE __m256 flt_load_tail(const void *w, size_t i, size_t n, const int type)
{
    if (type == PN_DTYPE_F32)
        return _mm256_maskload_ps((const float *)w + i, pn_avx2_mask(n));
    uint16_t h[8] = {0};
    memcpy(h, (const uint16_t *)w + i, 2 * n);
    return flt_load(h, 0, type);
}

PN_AVX2_INLINE void flt_dot4(const void *const w[4], const float *x, size_t k, float out[4], const int type)
{
    __m256 a0 = _mm256_setzero_ps(), a1 = a0, b0 = a0, b1 = a0, c0 = a0, c1 = a0, d0 = a0, d1 = a0;
    size_t i = 0;
    for (; i + 16 <= k; i += 16) {
        __m256 x0 = _mm256_loadu_ps(x + i), x1 = _mm256_loadu_ps(x + i + 8);
        a0 = _mm256_fmadd_ps(flt_load(w[0], i, type), x0, a0);
        a1 = _mm256_fmadd_ps(flt_load(w[0], i + 8, type), x1, a1);
        b0 = _mm256_fmadd_ps(flt_load(w[1], i, type), x0, b0);
        b1 = _mm256_fmadd_ps(flt_load(w[1], i + 8, type), x1, b1);
        c0 = _mm256_fmadd_ps(flt_load(w[2], i, type), x0, c0);
        c1 = _mm256_fmadd_ps(flt_load(w[2], i + 8, type), x1, c1);
        d0 = _mm256_fmadd_ps(flt_load(w[3], i, type), x0, d0);
        d1 = _mm256_fmadd_ps(flt_load(w[3], i + 8, type), x1, d1);
    }
    for (int part = 0; i < k; i += 8, part++) {
        size_t n = PN_MIN((size_t)8, k - i);
        __m256 xv = _mm256_maskload_ps(x + i, pn_avx2_mask(n)), v[4];
        for (int r = 0; r < 4; r++)
            v[r] = n == 8 ? flt_load(w[r], i, type) : flt_load_tail(w[r], i, n, type);
        if (part == 0) {
            a0 = _mm256_fmadd_ps(v[0], xv, a0);
            b0 = _mm256_fmadd_ps(v[1], xv, b0);
            c0 = _mm256_fmadd_ps(v[2], xv, c0);
            d0 = _mm256_fmadd_ps(v[3], xv, d0);
        } else {
            a1 = _mm256_fmadd_ps(v[0], xv, a1);
            b1 = _mm256_fmadd_ps(v[1], xv, b1);
            c1 = _mm256_fmadd_ps(v[2], xv, c1);
            d1 = _mm256_fmadd_ps(v[3], xv, d1);
        }
    }
    out[0] = pn_avx2_tree16(a0, a1);
    out[1] = pn_avx2_tree16(b0, b1);
    out[2] = pn_avx2_tree16(c0, c1);
    out[3] = pn_avx2_tree16(d0, d1);
}

PN_AVX2 static void flt_dot4_f32(const void *const w[4], const float *x, size_t k, float out[4])
{
    flt_dot4(w, x, k, out, PN_DTYPE_F32);
}

PN_AVX2 static void flt_dot4_f16(const void *const w[4], const float *x, size_t k, float out[4])
{
    flt_dot4(w, x, k, out, PN_DTYPE_F16);
}

PN_AVX2 static void flt_dot4_bf16(const void *const w[4], const float *x, size_t k, float out[4])
{
    flt_dot4(w, x, k, out, PN_DTYPE_BF16);
}

static void flt_store(const pn_cpu_mm *a, uint32_t r0, uint32_t n, uint32_t j, const float *sum)
{
    pn_x86_store_rows(a, r0, n, a->y_index ? a->y_index[j] : j, sum);
}

PN_AVX2 static void flt_few(const pn_cpu_mm *a)
{
    void (*dot4)(const void *const w[4], const float *x, size_t k, float out[4]) =
        a->dtype == PN_DTYPE_F32 ? flt_dot4_f32 : a->dtype == PN_DTYPE_F16 ? flt_dot4_f16 : flt_dot4_bf16;
    for (uint32_t r = 0; r < a->rows; r += 4) {
        const void *w[4];
        float sum[4];
        for (uint32_t i = 0; i < 4; i++)
            w[i] = (const uint8_t *)a->w + PN_MIN(r + i, a->rows - 1) * a->w_stride;
        for (uint32_t j = 0; j < a->m; j++) {
            dot4(w, pn_x86_float_x(a, j), a->k, sum);
            flt_store(a, r, PN_MIN(4u, a->rows - r), j, sum);
        }
    }
}

/* gcc would load what two products share twice, as an operand of each. */
PN_AVX2_INLINE __m256 flt_once(__m256 v)
{
    __asm__("" : "+x"(v));
    return v;
}

/* k elements (a multiple of 16) of three weight rows times two activation rows, added to p[w] and
 * q[w]. */
PN_AVX2_INLINE void flt_dot3x2(const void *const w[3], size_t at, const float *x, const float *y, size_t k,
                               flt_part *p, flt_part *q, const int type)
{
    __m256 a0 = _mm256_load_ps(p[0]), a1 = _mm256_load_ps(p[0] + 8), b0 = _mm256_load_ps(p[1]);
    __m256 b1 = _mm256_load_ps(p[1] + 8), c0 = _mm256_load_ps(p[2]), c1 = _mm256_load_ps(p[2] + 8);
    __m256 d0 = _mm256_load_ps(q[0]), d1 = _mm256_load_ps(q[0] + 8), e0 = _mm256_load_ps(q[1]);
    __m256 e1 = _mm256_load_ps(q[1] + 8), f0 = _mm256_load_ps(q[2]), f1 = _mm256_load_ps(q[2] + 8), v;
    const void *u = w[0], *s = w[1], *t = w[2];
    for (size_t i = 0; i < k; i += 16) {
        __m256 x0 = _mm256_loadu_ps(x + i), y0 = _mm256_loadu_ps(y + i);
        v = flt_once(flt_load(u, at + i, type));
        a0 = _mm256_fmadd_ps(v, x0, a0);
        d0 = _mm256_fmadd_ps(v, y0, d0);
        v = flt_once(flt_load(s, at + i, type));
        b0 = _mm256_fmadd_ps(v, x0, b0);
        e0 = _mm256_fmadd_ps(v, y0, e0);
        v = flt_once(flt_load(t, at + i, type));
        c0 = _mm256_fmadd_ps(v, x0, c0);
        f0 = _mm256_fmadd_ps(v, y0, f0);
        x0 = _mm256_loadu_ps(x + i + 8), y0 = _mm256_loadu_ps(y + i + 8);
        v = flt_once(flt_load(u, at + i + 8, type));
        a1 = _mm256_fmadd_ps(v, x0, a1);
        d1 = _mm256_fmadd_ps(v, y0, d1);
        v = flt_once(flt_load(s, at + i + 8, type));
        b1 = _mm256_fmadd_ps(v, x0, b1);
        e1 = _mm256_fmadd_ps(v, y0, e1);
        v = flt_once(flt_load(t, at + i + 8, type));
        c1 = _mm256_fmadd_ps(v, x0, c1);
        f1 = _mm256_fmadd_ps(v, y0, f1);
    }
    _mm256_store_ps(p[0], a0), _mm256_store_ps(p[0] + 8, a1);
    _mm256_store_ps(p[1], b0), _mm256_store_ps(p[1] + 8, b1);
    _mm256_store_ps(p[2], c0), _mm256_store_ps(p[2] + 8, c1);
    _mm256_store_ps(q[0], d0), _mm256_store_ps(q[0] + 8, d1);
    _mm256_store_ps(q[1], e0), _mm256_store_ps(q[1] + 8, e1);
    _mm256_store_ps(q[2], f0), _mm256_store_ps(q[2] + 8, f1);
}

/* The n < 16 last elements of one weight row and one activation row. */
PN_AVX2_INLINE void flt_dot_tail(const void *w, size_t at, const float *x, size_t n, float *p, const int type)
{
    for (size_t i = 0; i < n; i += 8) {
        size_t part = PN_MIN((size_t)8, n - i);
        __m256 v = part == 8 ? flt_load(w, at + i, type) : flt_load_tail(w, at + i, part, type);
        __m256 xv = _mm256_maskload_ps(x + i, pn_avx2_mask(part));
        _mm256_store_ps(p + i, _mm256_fmadd_ps(v, xv, _mm256_load_ps(p + i)));
    }
}

/* FLT_W weight rows from w on times activation rows j0 .. j0+n (n <= FLT_X), k in pieces. */
PN_AVX2_INLINE void flt_block(const pn_cpu_mm *a, const void *const w[FLT_W], uint32_t j0, uint32_t n,
                              flt_part (*p)[FLT_W], const int type)
{
    size_t whole = a->k & ~(size_t)15;
    for (size_t e = 0; e < whole; e += FLT_K) {
        size_t k = PN_MIN((size_t)FLT_K, whole - e);
        for (uint32_t j = 0; j < n; j += 2) {       /* an odd last row is its own partner: p[n] is spare */
            const float *x = pn_x86_float_x(a, j0 + j) + e, *y = pn_x86_float_x(a, j0 + PN_MIN(j + 1, n - 1)) + e;
            flt_dot3x2(w, e, x, y, k, p[j], p[j + 1], type);
            flt_dot3x2(w + 3, e, x, y, k, p[j] + 3, p[j + 1] + 3, type);
        }
    }
}

/* The elements of k past the last sixteen. */
PN_AVX2 static void flt_tails(const pn_cpu_mm *a, const void *const w[FLT_W], uint32_t j0, uint32_t n, flt_part (*p)[FLT_W])
{
    size_t whole = a->k & ~(size_t)15;
    for (uint32_t j = 0; whole < a->k && j < n; j++)
        for (int r = 0; r < FLT_W; r++) {
            const float *x = pn_x86_float_x(a, j0 + j) + whole;
            if (a->dtype == PN_DTYPE_F16)
                flt_dot_tail(w[r], whole, x, a->k - whole, p[j][r], PN_DTYPE_F16);
            else if (a->dtype == PN_DTYPE_BF16)
                flt_dot_tail(w[r], whole, x, a->k - whole, p[j][r], PN_DTYPE_BF16);
            else
                flt_dot_tail(w[r], whole, x, a->k - whole, p[j][r], PN_DTYPE_F32);
        }
}

PN_AVX2 static void flt_block_f32(const pn_cpu_mm *a, const void *const w[FLT_W], uint32_t j0, uint32_t n,
                                  flt_part (*p)[FLT_W])
{
    flt_block(a, w, j0, n, p, PN_DTYPE_F32);
}

PN_AVX2 static void flt_block_f16(const pn_cpu_mm *a, const void *const w[FLT_W], uint32_t j0, uint32_t n,
                                  flt_part (*p)[FLT_W])
{
    flt_block(a, w, j0, n, p, PN_DTYPE_F16);
}

PN_AVX2 static void flt_block_bf16(const pn_cpu_mm *a, const void *const w[FLT_W], uint32_t j0, uint32_t n,
                                   flt_part (*p)[FLT_W])
{
    flt_block(a, w, j0, n, p, PN_DTYPE_BF16);
}

/* Weight rows r .. r+FLT_W: in place, or (quantised) decoded into the tile. */
static void flt_rows(const pn_cpu_mm *a, uint32_t r, const void *w[FLT_W], bool decode)
{
    for (uint32_t i = 0; i < FLT_W; i++) {
        const uint8_t *row = (const uint8_t *)a->w + PN_MIN(r + i, a->rows - 1) * a->w_stride;
        w[i] = row;
        if (decode && r + i < a->rows) {
            float *to = (float *)a->tile + i * pn_align_up(a->k, 16);
            pn_dequant_row(a->dtype, row, to, a->k);
            w[i] = to;
        } else if (decode) {
            w[i] = w[i - 1];
        }
    }
}

PN_AVX2 static void flt_store_block(const pn_cpu_mm *a, uint32_t r, uint32_t j0, uint32_t n, flt_part (*p)[FLT_W])
{
    for (uint32_t j = 0; j < n; j++) {
        float sum[FLT_W];
        for (int i = 0; i < FLT_W; i++)
            sum[i] = pn_avx2_tree16(_mm256_load_ps(p[j][i]), _mm256_load_ps(p[j][i] + 8));
        flt_store(a, r, PN_MIN((uint32_t)FLT_W, a->rows - r), j0 + j, sum);
    }
}

PN_AVX2 PN_INTERNAL void pn_x86_float_many(const pn_cpu_mm *a, const pn_x86_float_blocks *blocks)
{
    bool decode = pn_dtype_is_quantised(a->dtype);
    const pn_x86_float_block block = a->dtype == PN_DTYPE_F16 ? blocks->f16 : a->dtype == PN_DTYPE_BF16 ? blocks->bf16 : blocks->f32;
    _Alignas(64) flt_part p[FLT_X + 3][FLT_W];
    const void *w[FLT_W];
    uint32_t big = decode ? FLT_W : a->rows;        /* rows that stay while activations pass */
    for (uint32_t r0 = 0; r0 < a->rows; r0 += big) {
        for (uint32_t j0 = 0; j0 < a->m; j0 += FLT_X) {
            uint32_t n = PN_MIN((uint32_t)FLT_X, a->m - j0);
            for (uint32_t r = r0; r < a->rows && r - r0 < big; r += FLT_W) {
                if (!decode || j0 == 0)
                    flt_rows(a, r, w, decode);
                memset(p, 0, sizeof p);
                block(a, w, j0, n, p);
                flt_tails(a, w, j0, n, p);
                flt_store_block(a, r, j0, n, p);
            }
        }
    }
}

PN_AVX2 static void flt_many(const pn_cpu_mm *a)
{
    static const pn_x86_float_blocks blocks = {flt_block_f32, flt_block_f16, flt_block_bf16};
    pn_x86_float_many(a, &blocks);
}

PN_AVX2 PN_INTERNAL void pn_avx2_matmul_float(const pn_cpu_mm *a)
{
    if (a->m <= 2)
        flt_few(a);
    else
        flt_many(a);
}

PN_AVX2 PN_INTERNAL void pn_avx2_matmul_exact(const pn_cpu_mm *a)
{
    if (pn_dtype_is_quantised(a->dtype))
        flt_many(a);
    else
        pn_avx2_matmul_float(a);
}

#undef FLT_W
#undef FLT_X
#undef FLT_K

#endif /* PN_CPU_X64 */

typedef int pn_cpu_avx2_float_not_empty;        /* ISO C wants a declaration in every file */
