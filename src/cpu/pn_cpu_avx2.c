/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_avx2.c - products of quantised weights, AVX2 with FMA.
 *
 * Three ways to the same bits, all with output rows in the lanes of a float accumulator:
 *   one activation row    codes go from the block to the product in registers (common formats).
 *   few                   8 weight rows of a chunk are unpacked to the first-level cache and
 *                         multiplied there, row by row; 8 vectors of partial sums are transposed
 *                         into one vector of 8 sums.
 *   many                  8 rows (several times, as the tile has room) are unpacked once into
 *                         panels whose lanes are rows; 4 activation rows at a time run over them.
 * Integer sums are exact, so only the chain of float additions matters, and it is the same.
 *
 * maddubs (u8 x i8) adds pairs with saturation at 16 bits.  Codes up to 129 are safe
 * (2 * 129 * 127 < 2^15), and for small codes several results fit before widening: `n` below is
 * how many.  int8 weights ("wide") are multiplied as |w| * sign(x, w): |w| <= 128, |x| <= 127.
 */
#include "cpu/pn_cpu_avx2_codes.h"
#include "cpu/pn_cpu_x86_mm.h"

#if PN_CPU_X64

/* Rows of activations up to which unpacking into panels does not pay. */
#define AVX2_FEW 4
#define AVX2_X 4                /* activation rows run over a panel together */

PN_AVX2_INLINE __m256i avx2_load(const void *p) { return _mm256_load_si256((const __m256i *)p); }
PN_AVX2_INLINE __m256i avx2_loadu(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* Four bytes (or two int16) in every lane. */
PN_AVX2_INLINE __m256i avx2_splat4(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

/* sum[r] lanes = rows: y = (sum + bias) + res for rows r0 .. of activation row j. */
PN_AVX2 static void avx2_store(const pn_cpu_mm *a, uint32_t r0, uint32_t j, __m256 sum)
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

/* ------------------------------------------------------------------------------------------
 * Few activation rows
 * ------------------------------------------------------------------------------------------ */

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

/* 32 products in 8 int32, without saturation. */
PN_AVX2_INLINE __m256i avx2_mul32(__m256i c, __m256i x, const bool wide)
{
    const __m256i one = _mm256_set1_epi16(1);
    if (wide)
        return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(c), _mm256_sign_epi8(x, c)), one);
    return _mm256_madd_epi16(_mm256_maddubs_epi16(c, x), one);
}

PN_AVX2_INLINE __m256i avx2_dot32(const uint8_t *w, __m256i x, const bool wide)
{
    return avx2_mul32(avx2_load(w), x, wide);
}

/* Blocks of 32 of one chunk and one activation row; off: what narrow codes carry. */
PN_AVX2_INLINE __m256 avx2_few32(const pn_x86_oct *o, size_t n, pn_x86_x x, int off, __m256 acc,
                                 const bool wide, const bool has_min)
{
    const __m256i offs = _mm256_set1_epi16((short)off), one = _mm256_set1_epi16(1);
    for (size_t b = 0; b < n / 32; b++) {
        const uint8_t *w = o->q[0] + 32 * b;
        __m256i q = avx2_loadu(x.q + 32 * b), s = avx2_splat4(x.s + 2 * b);
        __m256 dx = _mm256_broadcast_ss(x.d + b);
        __m256i lo = avx2_tree4(avx2_dot32(w, q, wide), avx2_dot32(w + 256, q, wide),
                                avx2_dot32(w + 512, q, wide), avx2_dot32(w + 768, q, wide));
        __m256i hi = avx2_tree4(avx2_dot32(w + 1024, q, wide), avx2_dot32(w + 1280, q, wide),
                                avx2_dot32(w + 1536, q, wide), avx2_dot32(w + 1792, q, wide));
        __m256i i = _mm256_add_epi32(_mm256_permute2x128_si256(lo, hi, 0x20),
                                     _mm256_permute2x128_si256(lo, hi, 0x31));
        if (!wide && !has_min)
            i = _mm256_sub_epi32(i, _mm256_madd_epi16(offs, s));
        acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(o->d[b]), dx), _mm256_cvtepi32_ps(i), acc);
        if (has_min)
            acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(o->m[b]), dx),
                                  _mm256_cvtepi32_ps(_mm256_madd_epi16(one, s)), acc);
    }
    return acc;
}

/* NVFP4: the two halves of 32 products have factors of their own. */
PN_AVX2_INLINE __m256 avx2_few16(const pn_x86_oct *o, size_t n, pn_x86_x x, int off, __m256 acc)
{
    const __m256i off0 = _mm256_set1_epi32(off), off1 = _mm256_set1_epi32(off * 65536);
    for (size_t b = 0; b < n / 32; b++) {
        const uint8_t *w = o->q[0] + 32 * b;
        __m256i q = avx2_loadu(x.q + 32 * b), s = avx2_splat4(x.s + 2 * b);
        __m256 dx = _mm256_broadcast_ss(x.d + b);
        __m256i lo = avx2_tree4(avx2_dot32(w, q, false), avx2_dot32(w + 256, q, false),
                                avx2_dot32(w + 512, q, false), avx2_dot32(w + 768, q, false));
        __m256i hi = avx2_tree4(avx2_dot32(w + 1024, q, false), avx2_dot32(w + 1280, q, false),
                                avx2_dot32(w + 1536, q, false), avx2_dot32(w + 1792, q, false));
        __m256i i0 = _mm256_permute2x128_si256(lo, hi, 0x20), i1 = _mm256_permute2x128_si256(lo, hi, 0x31);
        i0 = _mm256_sub_epi32(i0, _mm256_madd_epi16(off0, s));
        i1 = _mm256_sub_epi32(i1, _mm256_madd_epi16(off1, s));
        acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(o->d[2 * b]), dx), _mm256_cvtepi32_ps(i0), acc);
        acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(o->d[2 * b + 1]), dx), _mm256_cvtepi32_ps(i1), acc);
    }
    return acc;
}

/* 32 products, pairs times the scales s. */
PN_AVX2_INLINE __m256i avx2_mul32_scaled(__m256i c, __m256i q, __m256i s, const bool wide)
{
    if (wide)
        return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(c), _mm256_sign_epi8(q, c)), s);
    return _mm256_madd_epi16(_mm256_maddubs_epi16(c, q), s);
}

/* 32 products times the two scales of their halves. */
PN_AVX2_INLINE __m256i avx2_dot32_scaled(const uint8_t *w, const int8_t *x, const int16_t *sc, const bool wide)
{
    const __m256i halves = _mm256_setr_epi64x(0x0100010001000100, 0x0100010001000100,
                                              0x0302030203020302, 0x0302030203020302);
    return avx2_mul32_scaled(avx2_load(w), avx2_loadu(x), _mm256_shuffle_epi8(avx2_splat4(sc), halves), wide);
}

/* One block of 256 and one activation row. */
PN_AVX2_INLINE __m256 avx2_few256(const pn_x86_oct *o, pn_x86_x x, __m256 acc, const bool wide, const bool has_min)
{
    __m256i v[8], u[8], s = avx2_loadu(x.s);
    __m256 dx = _mm256_broadcast_ss(x.d);
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *w = o->q[r];
        const int16_t *sc = o->sc[r];
        __m256i a = avx2_dot32_scaled(w, x.q, sc, wide);
        __m256i b = avx2_dot32_scaled(w + 32, x.q + 32, sc + 2, wide);
        a = _mm256_add_epi32(a, avx2_dot32_scaled(w + 64, x.q + 64, sc + 4, wide));
        b = _mm256_add_epi32(b, avx2_dot32_scaled(w + 96, x.q + 96, sc + 6, wide));
        a = _mm256_add_epi32(a, avx2_dot32_scaled(w + 128, x.q + 128, sc + 8, wide));
        b = _mm256_add_epi32(b, avx2_dot32_scaled(w + 160, x.q + 160, sc + 10, wide));
        a = _mm256_add_epi32(a, avx2_dot32_scaled(w + 192, x.q + 192, sc + 12, wide));
        b = _mm256_add_epi32(b, avx2_dot32_scaled(w + 224, x.q + 224, sc + 14, wide));
        a = _mm256_add_epi32(a, b);
        if (!wide) {
            u[r] = _mm256_madd_epi16(avx2_load(o->cr[r]), s);
            if (!has_min)
                a = _mm256_sub_epi32(a, u[r]);
        }
        v[r] = a;
    }
    acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(o->d[0]), dx), _mm256_cvtepi32_ps(avx2_tree8(v)), acc);
    if (has_min)
        acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(o->m[0]), dx), _mm256_cvtepi32_ps(avx2_tree8(u)), acc);
    return acc;
}

/* Ternary: codes up to 2, all scales 1, so 16-bit sums hold the whole block. */
PN_AVX2_INLINE __m256 avx2_few_ternary(const pn_x86_oct *o, pn_x86_x x, __m256 acc)
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i v[8], s = _mm256_madd_epi16(avx2_loadu(x.s), one);
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *w = o->q[r];
        __m256i a = _mm256_maddubs_epi16(avx2_load(w), avx2_loadu(x.q));
        __m256i b = _mm256_maddubs_epi16(avx2_load(w + 32), avx2_loadu(x.q + 32));
        a = _mm256_add_epi16(a, _mm256_maddubs_epi16(avx2_load(w + 64), avx2_loadu(x.q + 64)));
        b = _mm256_add_epi16(b, _mm256_maddubs_epi16(avx2_load(w + 96), avx2_loadu(x.q + 96)));
        a = _mm256_add_epi16(a, _mm256_maddubs_epi16(avx2_load(w + 128), avx2_loadu(x.q + 128)));
        b = _mm256_add_epi16(b, _mm256_maddubs_epi16(avx2_load(w + 160), avx2_loadu(x.q + 160)));
        a = _mm256_add_epi16(a, _mm256_maddubs_epi16(avx2_load(w + 192), avx2_loadu(x.q + 192)));
        b = _mm256_add_epi16(b, _mm256_maddubs_epi16(avx2_load(w + 224), avx2_loadu(x.q + 224)));
        v[r] = _mm256_sub_epi32(_mm256_madd_epi16(_mm256_add_epi16(a, b), one), s);
    }
    __m256 d = _mm256_mul_ps(_mm256_load_ps(o->d[0]), _mm256_broadcast_ss(x.d));
    return _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(avx2_tree8(v)), acc);
}

PN_AVX2 static __m256 avx2_few_chunk(const pn_x86_oct *o, pn_cpu_form f, size_t n, pn_x86_x x, __m256 acc)
{
    bool wide = f.cmax == 255;
    if (f.family == PN_CPU_B256 && f.off == 1)
        return avx2_few_ternary(o, x, acc);
    if (f.family == PN_CPU_B256)
        return wide        ? avx2_few256(o, x, acc, true, false)
               : f.has_min ? avx2_few256(o, x, acc, false, true)
                           : avx2_few256(o, x, acc, false, false);
    if (f.family == PN_CPU_B16)
        return avx2_few16(o, n, x, f.off, acc);
    return wide        ? avx2_few32(o, n, x, 0, acc, true, false)
           : f.has_min ? avx2_few32(o, n, x, 0, acc, false, true)
                       : avx2_few32(o, n, x, f.off, acc, false, false);
}

/* m <= AVX2_FEW. */
PN_AVX2 static void avx2_matmul_few(const pn_cpu_mm *a, pn_cpu_form f)
{
    pn_x86_unpack_fn unpack = pn_x86_unpack_of(a->dtype);
    pn_x86_x x[AVX2_FEW];
    pn_x86_oct o;
    size_t step = pn_x86_chunk_bytes(a->dtype);
    for (uint32_t j = 0; j < a->m; j++)
        x[j] = pn_x86_x_at(a, f, j);
    for (uint32_t r = 0; r < a->rows; r += 8) {
        const uint8_t *p[8];
        __m256 acc[AVX2_FEW];
        pn_x86_row_pointers(a, r, p);
        for (uint32_t j = 0; j < a->m; j++)
            acc[j] = _mm256_setzero_ps();
        for (size_t e = 0; e < a->k; e += PN_CPU_CHUNK) {
            size_t n = PN_MIN((size_t)PN_CPU_CHUNK, a->k - e);
            /* A panel ahead: the hardware's prefetchers stop at pages and see 8 short streams.
             * (Q4_K from memory: 50 cycles a block so, 80 to 90 without or along the rows.) */
            if (r + 16 <= a->rows)
                pn_x86_prefetch((const uint8_t *)a->w + (r + 8) * a->w_stride + e / PN_CPU_CHUNK * 8 * step,
                                8 * step);
            unpack(p, n, &o);
            for (int i = 0; i < 8; i++)
                p[i] += step;
            for (uint32_t j = 0; j < a->m; j++)
                acc[j] = avx2_few_chunk(&o, f, n, pn_x86_x_from(x[j], f, e), acc[j]);
        }
        for (uint32_t j = 0; j < a->m; j++)
            avx2_store(a, r, j, acc[j]);
    }
}

/* ------------------------------------------------------------------------------------------
 * One activation row: codes go from the block to the product in registers
 * ------------------------------------------------------------------------------------------ */

#define AVX2_ONE(r) avx2_mul32(unp_codes32(type, p[r] + at, table), q, wide)

/* The f16 at p[r] + at of 8 rows. */
PN_AVX2_INLINE __m256 avx2_halves8(const uint8_t *const *p, size_t at)
{
    __m128i h = _mm_cvtsi32_si128(pn_le16(p[0] + at));
    h = _mm_insert_epi16(h, pn_le16(p[1] + at), 1);
    h = _mm_insert_epi16(h, pn_le16(p[2] + at), 2);
    h = _mm_insert_epi16(h, pn_le16(p[3] + at), 3);
    h = _mm_insert_epi16(h, pn_le16(p[4] + at), 4);
    h = _mm_insert_epi16(h, pn_le16(p[5] + at), 5);
    h = _mm_insert_epi16(h, pn_le16(p[6] + at), 6);
    h = _mm_insert_epi16(h, pn_le16(p[7] + at), 7);
    return _mm256_cvtph_ps(h);
}

/* The E8M0 byte at p[r] + at of 8 rows. */
PN_AVX2_INLINE __m256 avx2_e8m0_8(const uint8_t *const *p, size_t at)
{
    __m128i e = _mm_cvtsi32_si128(p[0][at]);
    e = _mm_insert_epi8(e, p[1][at], 1);
    e = _mm_insert_epi8(e, p[2][at], 2);
    e = _mm_insert_epi8(e, p[3][at], 3);
    e = _mm_insert_epi8(e, p[4][at], 4);
    e = _mm_insert_epi8(e, p[5][at], 5);
    e = _mm_insert_epi8(e, p[6][at], 6);
    e = _mm_insert_epi8(e, p[7][at], 7);
    return unp_e8m0(e);
}

PN_AVX2_INLINE void avx2_one32(const pn_cpu_mm *a, pn_cpu_form f, const int type, const size_t bytes,
                               const bool wide, const bool has_min)
{
    const __m256i offs = _mm256_set1_epi16(f.off), one = _mm256_set1_epi16(1), table = unp_table_of(type);
    const pn_x86_x x = pn_x86_x_at(a, f, 0);
    for (uint32_t r0 = 0; r0 < a->rows; r0 += 8) {
        const uint8_t *p[8], *next = (const uint8_t *)a->w + (size_t)r0 * a->w_stride;
        __m256 acc = _mm256_setzero_ps();
        if (r0 + 16 <= a->rows)
            next += 8 * a->w_stride;
        pn_x86_row_pointers(a, r0, p);
        for (size_t b = 0, at = 0; b < a->k / 32; b++, at += bytes, next += 8 * bytes) {
            __m256i q = avx2_loadu(x.q + 32 * b), s = avx2_splat4(x.s + 2 * b);
            __m256 dx = _mm256_broadcast_ss(x.d + b);
            pn_x86_prefetch(next, 8 * bytes);
            __m256i lo = avx2_tree4(AVX2_ONE(0), AVX2_ONE(1), AVX2_ONE(2), AVX2_ONE(3));
            __m256i hi = avx2_tree4(AVX2_ONE(4), AVX2_ONE(5), AVX2_ONE(6), AVX2_ONE(7));
            __m256i i = _mm256_add_epi32(_mm256_permute2x128_si256(lo, hi, 0x20),
                                         _mm256_permute2x128_si256(lo, hi, 0x31));
            if (!wide && !has_min)
                i = _mm256_sub_epi32(i, _mm256_madd_epi16(offs, s));
            __m256 d = type == PN_DTYPE_MXFP4 ? avx2_e8m0_8(p, at) : avx2_halves8(p, at);
            acc = _mm256_fmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(i), acc);
            if (has_min)
                acc = _mm256_fmadd_ps(_mm256_mul_ps(avx2_halves8(p, at + 2), dx),
                                      _mm256_cvtepi32_ps(_mm256_madd_epi16(one, s)), acc);
        }
        avx2_store(a, r0, 0, acc);
    }
}

#undef AVX2_ONE

#define AVX2_ONE32(name, type, bytes, wide, has_min) \
    PN_AVX2 static void name(const pn_cpu_mm *a, pn_cpu_form f) { avx2_one32(a, f, type, bytes, wide, has_min); }
AVX2_ONE32(avx2_one_q4_0, PN_DTYPE_Q4_0, 18, false, false)
AVX2_ONE32(avx2_one_q4_1, PN_DTYPE_Q4_1, 20, false, true)
AVX2_ONE32(avx2_one_q5_0, PN_DTYPE_Q5_0, 22, false, false)
AVX2_ONE32(avx2_one_q5_1, PN_DTYPE_Q5_1, 24, false, true)
AVX2_ONE32(avx2_one_q8_0, PN_DTYPE_Q8_0, 34, true, false)
AVX2_ONE32(avx2_one_iq4_nl, PN_DTYPE_IQ4_NL, 18, true, false)
AVX2_ONE32(avx2_one_mxfp4, PN_DTYPE_MXFP4, 17, false, false)
#undef AVX2_ONE32

/* Codes to 2 and no scales: 16-bit sums hold the whole block. */
PN_AVX2_INLINE void avx2_one_row_ternary(const __m256i c[8], pn_x86_x x, __m256i *v, __m256i *u)
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i a = _mm256_maddubs_epi16(c[0], avx2_loadu(x.q)), b = _mm256_maddubs_epi16(c[1], avx2_loadu(x.q + 32));
    a = _mm256_add_epi16(a, _mm256_maddubs_epi16(c[2], avx2_loadu(x.q + 64)));
    b = _mm256_add_epi16(b, _mm256_maddubs_epi16(c[3], avx2_loadu(x.q + 96)));
    a = _mm256_add_epi16(a, _mm256_maddubs_epi16(c[4], avx2_loadu(x.q + 128)));
    b = _mm256_add_epi16(b, _mm256_maddubs_epi16(c[5], avx2_loadu(x.q + 160)));
    a = _mm256_add_epi16(a, _mm256_maddubs_epi16(c[6], avx2_loadu(x.q + 192)));
    b = _mm256_add_epi16(b, _mm256_maddubs_epi16(c[7], avx2_loadu(x.q + 224)));
    *v = _mm256_madd_epi16(_mm256_add_epi16(a, b), one);
    *u = _mm256_madd_epi16(one, avx2_loadu(x.s));
}

/* A block of 256 of one row: *v gets the partial sums of the products, *u those of the sums of q. */
PN_AVX2_INLINE void avx2_one_row_k(const int type, const uint8_t *s, pn_x86_x x, __m256i *v, __m256i *u)
{
    const __m256i halves = _mm256_setr_epi64x(0x0100010001000100, 0x0100010001000100,
                                              0x0302030203020302, 0x0302030203020302);
    _Alignas(32) int16_t scales[16];
    const bool wide = type == PN_DTYPE_IQ4_XS;
    __m256i c[8], sc, cr, a, b;
    unp_codes_k(type, s, c);
    if (type == PN_DTYPE_TQ2_0) {
        avx2_one_row_ternary(c, x, v, u);
        return;
    }
    unp_scales_k(type, s, &sc, &cr);
    unp_store32(scales, sc);
#define AVX2_TERM(i) \
    avx2_mul32_scaled(c[i], avx2_loadu(x.q + 32 * (i)), \
                      _mm256_shuffle_epi8(avx2_splat4(scales + 2 * (i)), halves), wide)
    a = AVX2_TERM(0);
    b = AVX2_TERM(1);
    a = _mm256_add_epi32(a, AVX2_TERM(2));
    b = _mm256_add_epi32(b, AVX2_TERM(3));
    a = _mm256_add_epi32(a, AVX2_TERM(4));
    b = _mm256_add_epi32(b, AVX2_TERM(5));
    a = _mm256_add_epi32(a, AVX2_TERM(6));
    b = _mm256_add_epi32(b, AVX2_TERM(7));
#undef AVX2_TERM
    *v = _mm256_add_epi32(a, b);
    *u = _mm256_madd_epi16(cr, avx2_loadu(x.s));
}

/* d_at, m_at: offsets of the f16 factors; m_at 0: no mins. */
PN_AVX2_INLINE void avx2_one_k(const pn_cpu_mm *a, pn_cpu_form f, const int type, const size_t bytes,
                               const size_t d_at, const size_t m_at)
{
    const pn_x86_x x = pn_x86_x_at(a, f, 0);
    for (uint32_t r0 = 0; r0 < a->rows; r0 += 8) {
        const uint8_t *p[8], *next = (const uint8_t *)a->w + (size_t)r0 * a->w_stride;
        __m256 acc = _mm256_setzero_ps();
        if (r0 + 16 <= a->rows)
            next += 8 * a->w_stride;
        pn_x86_row_pointers(a, r0, p);
        for (size_t b = 0, at = 0; b < a->k / 256; b++, at += bytes) {
            __m256i v[8], u[8];
            pn_x86_x xb = pn_x86_x_from(x, f, 256 * b);
            __m256 dx = _mm256_broadcast_ss(xb.d);
            for (size_t r = 0; r < 8; r++, next += bytes) {
                pn_x86_prefetch(next, bytes);
                avx2_one_row_k(type, p[r] + at, xb, &v[r], &u[r]);
                if (!m_at && type != PN_DTYPE_IQ4_XS)
                    v[r] = _mm256_sub_epi32(v[r], u[r]);
            }
            acc = _mm256_fmadd_ps(_mm256_mul_ps(avx2_halves8(p, at + d_at), dx), _mm256_cvtepi32_ps(avx2_tree8(v)), acc);
            if (m_at) {
                __m256 m = _mm256_xor_ps(avx2_halves8(p, at + m_at), _mm256_set1_ps(-0.0f));
                acc = _mm256_fmadd_ps(_mm256_mul_ps(m, dx), _mm256_cvtepi32_ps(avx2_tree8(u)), acc);
            }
        }
        avx2_store(a, r0, 0, acc);
    }
}

#define AVX2_ONE_K(name, type, bytes, d_at, m_at) \
    PN_AVX2 static void name(const pn_cpu_mm *a, pn_cpu_form f) { avx2_one_k(a, f, type, bytes, d_at, m_at); }
AVX2_ONE_K(avx2_one_q2_k, PN_DTYPE_Q2_K, 84, 80, 82)
AVX2_ONE_K(avx2_one_q3_k, PN_DTYPE_Q3_K, 110, 108, 0)
AVX2_ONE_K(avx2_one_q4_k, PN_DTYPE_Q4_K, 144, 0, 2)
AVX2_ONE_K(avx2_one_q5_k, PN_DTYPE_Q5_K, 176, 0, 2)
AVX2_ONE_K(avx2_one_q6_k, PN_DTYPE_Q6_K, 210, 208, 0)
AVX2_ONE_K(avx2_one_iq4_xs, PN_DTYPE_IQ4_XS, 136, 0, 0)
AVX2_ONE_K(avx2_one_tq2_0, PN_DTYPE_TQ2_0, 66, 64, 0)
#undef AVX2_ONE_K

/* False: no such kernel for the type. */
static bool avx2_matmul_one(const pn_cpu_mm *a, pn_cpu_form f)
{
    switch (a->dtype) {
    case PN_DTYPE_Q4_0: avx2_one_q4_0(a, f); return true;
    case PN_DTYPE_Q4_1: avx2_one_q4_1(a, f); return true;
    case PN_DTYPE_Q5_0: avx2_one_q5_0(a, f); return true;
    case PN_DTYPE_Q5_1: avx2_one_q5_1(a, f); return true;
    case PN_DTYPE_Q8_0: avx2_one_q8_0(a, f); return true;
    case PN_DTYPE_IQ4_NL: avx2_one_iq4_nl(a, f); return true;
    case PN_DTYPE_MXFP4: avx2_one_mxfp4(a, f); return true;
    case PN_DTYPE_Q2_K: avx2_one_q2_k(a, f); return true;
    case PN_DTYPE_Q3_K: avx2_one_q3_k(a, f); return true;
    case PN_DTYPE_Q4_K: avx2_one_q4_k(a, f); return true;
    case PN_DTYPE_Q5_K: avx2_one_q5_k(a, f); return true;
    case PN_DTYPE_Q6_K: avx2_one_q6_k(a, f); return true;
    case PN_DTYPE_IQ4_XS: avx2_one_iq4_xs(a, f); return true;
    case PN_DTYPE_TQ2_0: avx2_one_tq2_0(a, f); return true;
    default: return false;
    }
}

/* ------------------------------------------------------------------------------------------
 * Many activation rows: 4 of them (x0 .. x3) over one panel
 * ------------------------------------------------------------------------------------------ */

/* t* = 4 products of 8 rows (two int16 a row) at dword k of the panel; ADD4 adds to them. */
#define AVX2_MUL(k) \
    do { \
        w = avx2_load(q + 32 * (k)); \
        t0 = _mm256_maddubs_epi16(w, avx2_splat4(x0 + 4 * (k))); \
        t1 = _mm256_maddubs_epi16(w, avx2_splat4(x1 + 4 * (k))); \
        t2 = _mm256_maddubs_epi16(w, avx2_splat4(x2 + 4 * (k))); \
        t3 = _mm256_maddubs_epi16(w, avx2_splat4(x3 + 4 * (k))); \
    } while (0)
#define AVX2_ADD(k) \
    do { \
        w = avx2_load(q + 32 * (k)); \
        t0 = _mm256_add_epi16(t0, _mm256_maddubs_epi16(w, avx2_splat4(x0 + 4 * (k)))); \
        t1 = _mm256_add_epi16(t1, _mm256_maddubs_epi16(w, avx2_splat4(x1 + 4 * (k)))); \
        t2 = _mm256_add_epi16(t2, _mm256_maddubs_epi16(w, avx2_splat4(x2 + 4 * (k)))); \
        t3 = _mm256_add_epi16(t3, _mm256_maddubs_epi16(w, avx2_splat4(x3 + 4 * (k)))); \
    } while (0)
#define AVX2_MULW(k) \
    do { \
        w = avx2_load(q + 32 * (k)); \
        __m256i aw = _mm256_abs_epi8(w); \
        t0 = _mm256_maddubs_epi16(aw, _mm256_sign_epi8(avx2_splat4(x0 + 4 * (k)), w)); \
        t1 = _mm256_maddubs_epi16(aw, _mm256_sign_epi8(avx2_splat4(x1 + 4 * (k)), w)); \
        t2 = _mm256_maddubs_epi16(aw, _mm256_sign_epi8(avx2_splat4(x2 + 4 * (k)), w)); \
        t3 = _mm256_maddubs_epi16(aw, _mm256_sign_epi8(avx2_splat4(x3 + 4 * (k)), w)); \
    } while (0)
/* i* = (or +=) t* widened and multiplied by c (ones, or scales). */
#define AVX2_SET(c) \
    do { \
        i0 = _mm256_madd_epi16(t0, c); \
        i1 = _mm256_madd_epi16(t1, c); \
        i2 = _mm256_madd_epi16(t2, c); \
        i3 = _mm256_madd_epi16(t3, c); \
    } while (0)
#define AVX2_SUM(c) \
    do { \
        i0 = _mm256_add_epi32(i0, _mm256_madd_epi16(t0, c)); \
        i1 = _mm256_add_epi32(i1, _mm256_madd_epi16(t1, c)); \
        i2 = _mm256_add_epi32(i2, _mm256_madd_epi16(t2, c)); \
        i3 = _mm256_add_epi32(i3, _mm256_madd_epi16(t3, c)); \
    } while (0)
/* i* -= c times pairs of sums of q. */
#define AVX2_CORRECT(c, at) \
    do { \
        i0 = _mm256_sub_epi32(i0, _mm256_madd_epi16(c, avx2_splat4(s0 + (at)))); \
        i1 = _mm256_sub_epi32(i1, _mm256_madd_epi16(c, avx2_splat4(s1 + (at)))); \
        i2 = _mm256_sub_epi32(i2, _mm256_madd_epi16(c, avx2_splat4(s2 + (at)))); \
        i3 = _mm256_sub_epi32(i3, _mm256_madd_epi16(c, avx2_splat4(s3 + (at)))); \
    } while (0)
/* acc* += (dw * dx) * i*, dx at index b of the activation's scales. */
#define AVX2_FMA(dw, b) \
    do { \
        a0 = _mm256_fmadd_ps(_mm256_mul_ps(dw, _mm256_broadcast_ss(x[0].d + (b))), _mm256_cvtepi32_ps(i0), a0); \
        a1 = _mm256_fmadd_ps(_mm256_mul_ps(dw, _mm256_broadcast_ss(x[1].d + (b))), _mm256_cvtepi32_ps(i1), a1); \
        a2 = _mm256_fmadd_ps(_mm256_mul_ps(dw, _mm256_broadcast_ss(x[2].d + (b))), _mm256_cvtepi32_ps(i2), a2); \
        a3 = _mm256_fmadd_ps(_mm256_mul_ps(dw, _mm256_broadcast_ss(x[3].d + (b))), _mm256_cvtepi32_ps(i3), a3); \
    } while (0)
#define AVX2_SPREAD(name, i) \
    const int8_t *name##0 = x[0].q + (i), *name##1 = x[1].q + (i), *name##2 = x[2].q + (i), *name##3 = x[3].q + (i)
#define AVX2_SPREAD_S(i) \
    const int16_t *s0 = x[0].s + (i), *s1 = x[1].s + (i), *s2 = x[2].s + (i), *s3 = x[3].s + (i)

/* n: results of maddubs that fit in 16 bits; 0: wide. */
PN_AVX2_INLINE void avx2_many32(const pn_x86_panel *p, size_t k, const pn_x86_x x[AVX2_X], int off,
                                __m256 acc[AVX2_X], const int n, const bool has_min)
{
    const __m256i one = _mm256_set1_epi16(1), offs = _mm256_set1_epi16((short)off);
    __m256 a0 = acc[0], a1 = acc[1], a2 = acc[2], a3 = acc[3];
    for (size_t b = 0; b < k / 32; b++) {
        const uint8_t *q = p[b / 8].q[b % 8 * 8][0];
        AVX2_SPREAD(x, 32 * b);
        AVX2_SPREAD_S(2 * b);
        __m256i w, t0, t1, t2, t3, i0, i1, i2, i3;
        if (n == 0) {
            AVX2_MULW(0); AVX2_SET(one);
            AVX2_MULW(1); AVX2_SUM(one);
            AVX2_MULW(2); AVX2_SUM(one);
            AVX2_MULW(3); AVX2_SUM(one);
            AVX2_MULW(4); AVX2_SUM(one);
            AVX2_MULW(5); AVX2_SUM(one);
            AVX2_MULW(6); AVX2_SUM(one);
            AVX2_MULW(7); AVX2_SUM(one);
        } else {
            AVX2_MUL(0); AVX2_ADD(1); AVX2_ADD(2); AVX2_ADD(3);
            if (n == 4) {
                AVX2_SET(one);
                AVX2_MUL(4);
            } else {
                AVX2_ADD(4);
            }
            AVX2_ADD(5); AVX2_ADD(6); AVX2_ADD(7);
            if (n == 4)
                AVX2_SUM(one);
            else
                AVX2_SET(one);
        }
        if (n && !has_min)
            AVX2_CORRECT(offs, 0);
        __m256 d = _mm256_load_ps(p[b / 8].u.b32.d[b % 8]);
        AVX2_FMA(d, b);
        if (has_min) {
            d = _mm256_load_ps(p[b / 8].u.b32.m[b % 8]);
            i0 = _mm256_madd_epi16(one, avx2_splat4(s0));
            i1 = _mm256_madd_epi16(one, avx2_splat4(s1));
            i2 = _mm256_madd_epi16(one, avx2_splat4(s2));
            i3 = _mm256_madd_epi16(one, avx2_splat4(s3));
            AVX2_FMA(d, b);
        }
    }
    acc[0] = a0, acc[1] = a1, acc[2] = a2, acc[3] = a3;
}

PN_AVX2_INLINE void avx2_many16(const pn_x86_panel *p, size_t k, const pn_x86_x x[AVX2_X], int off,
                                __m256 acc[AVX2_X])
{
    const __m256i one = _mm256_set1_epi16(1);
    const __m256i off0 = _mm256_set1_epi32(off), off1 = _mm256_set1_epi32(off * 65536);
    __m256 a0 = acc[0], a1 = acc[1], a2 = acc[2], a3 = acc[3], d;
    for (size_t b = 0; b < k / 32; b++) {
        const uint8_t *q = p[b / 8].q[b % 8 * 8][0];
        AVX2_SPREAD(x, 32 * b);
        AVX2_SPREAD_S(2 * b);
        __m256i w, t0, t1, t2, t3, i0, i1, i2, i3;
        AVX2_MUL(0); AVX2_ADD(1); AVX2_ADD(2); AVX2_ADD(3);
        AVX2_SET(one);
        AVX2_CORRECT(off0, 0);
        d = _mm256_load_ps(p[b / 8].u.d16[b % 8 * 2]);
        AVX2_FMA(d, b);
        AVX2_MUL(4); AVX2_ADD(5); AVX2_ADD(6); AVX2_ADD(7);
        AVX2_SET(one);
        AVX2_CORRECT(off1, 0);
        d = _mm256_load_ps(p[b / 8].u.d16[b % 8 * 2 + 1]);
        AVX2_FMA(d, b);
    }
    acc[0] = a0, acc[1] = a1, acc[2] = a2, acc[3] = a3;
}

PN_AVX2_INLINE void avx2_many256(const pn_x86_panel *p, size_t k, const pn_x86_x x[AVX2_X],
                                 __m256 acc[AVX2_X], const int n, const bool has_min)
{
    __m256 a0 = acc[0], a1 = acc[1], a2 = acc[2], a3 = acc[3], d;
    for (size_t b = 0; b < k / 256; b++, p++) {
        __m256i w, t0, t1, t2, t3, i0, i1, i2, i3;
        i0 = i1 = i2 = i3 = _mm256_setzero_si256();
        for (size_t t = 0; t < 16; t++) {
            const uint8_t *q = p->q[4 * t][0];
            __m256i sc = avx2_load(p->u.b256.sc[t]);
            AVX2_SPREAD(x, 256 * b + 16 * t);
            if (n == 0) {
                AVX2_MULW(0); AVX2_SUM(sc);
                AVX2_MULW(1); AVX2_SUM(sc);
                AVX2_MULW(2); AVX2_SUM(sc);
                AVX2_MULW(3); AVX2_SUM(sc);
            } else if (n == 1) {
                AVX2_MUL(0); AVX2_SUM(sc);
                AVX2_MUL(1); AVX2_SUM(sc);
                AVX2_MUL(2); AVX2_SUM(sc);
                AVX2_MUL(3); AVX2_SUM(sc);
            } else {
                AVX2_MUL(0); AVX2_ADD(1);
                if (n == 2) {
                    AVX2_SUM(sc);
                    AVX2_MUL(2);
                } else {
                    AVX2_ADD(2);
                }
                AVX2_ADD(3); AVX2_SUM(sc);
            }
        }
        AVX2_SPREAD_S(16 * b);
        if (n && !has_min)
            for (size_t t = 0; t < 8; t++) {
                w = avx2_load(p->u.b256.cr[t]);
                AVX2_CORRECT(w, 2 * t);
            }
        d = _mm256_load_ps(p->u.b256.d);
        AVX2_FMA(d, b);
        if (has_min) {
            i0 = i1 = i2 = i3 = _mm256_setzero_si256();
            for (size_t t = 0; t < 8; t++) {
                w = avx2_load(p->u.b256.cr[t]);
                AVX2_CORRECT(w, 2 * t);
            }
            /* CORRECT subtracts and m is exact in sign: (-m) * (-sum) has the bits of m * sum. */
            d = _mm256_xor_ps(_mm256_load_ps(p->u.b256.m), _mm256_set1_ps(-0.0f));
            AVX2_FMA(d, b);
        }
    }
    acc[0] = a0, acc[1] = a1, acc[2] = a2, acc[3] = a3;
}

#undef AVX2_MUL
#undef AVX2_ADD
#undef AVX2_MULW
#undef AVX2_SET
#undef AVX2_SUM
#undef AVX2_CORRECT
#undef AVX2_FMA
#undef AVX2_SPREAD
#undef AVX2_SPREAD_S

/* One function a variant: in a single large one gcc spills the accumulators (30 % slower). */
typedef void (*avx2_many_fn)(const pn_x86_panel *p, size_t k, const pn_x86_x x[AVX2_X], int off,
                             __m256 acc[AVX2_X]);

#define AVX2_MANY(name, call) \
    PN_AVX2 static void name(const pn_x86_panel *p, size_t k, const pn_x86_x x[AVX2_X], int off, \
                             __m256 acc[AVX2_X]) \
    { \
        (void)off; \
        call; \
    }
AVX2_MANY(avx2_many_b16, avx2_many16(p, k, x, off, acc))
AVX2_MANY(avx2_many_b32_wide, avx2_many32(p, k, x, 0, acc, 0, false))
AVX2_MANY(avx2_many_b32_15, avx2_many32(p, k, x, off, acc, 8, false))
AVX2_MANY(avx2_many_b32_15_min, avx2_many32(p, k, x, 0, acc, 8, true))
AVX2_MANY(avx2_many_b32_31, avx2_many32(p, k, x, off, acc, 4, false))
AVX2_MANY(avx2_many_b32_31_min, avx2_many32(p, k, x, 0, acc, 4, true))
AVX2_MANY(avx2_many_b256_wide, avx2_many256(p, k, x, acc, 0, false))
AVX2_MANY(avx2_many_b256_31_min, avx2_many256(p, k, x, acc, 4, true))
AVX2_MANY(avx2_many_b256_31, avx2_many256(p, k, x, acc, 4, false))
AVX2_MANY(avx2_many_b256_63, avx2_many256(p, k, x, acc, 2, false))
AVX2_MANY(avx2_many_b256_126, avx2_many256(p, k, x, acc, 1, false))
#undef AVX2_MANY

static avx2_many_fn avx2_many_of(pn_cpu_form f)
{
    if (f.family == PN_CPU_B16)
        return avx2_many_b16;
    if (f.family == PN_CPU_B32) {
        if (f.cmax == 255)
            return avx2_many_b32_wide;
        if (f.cmax <= 15)
            return f.has_min ? avx2_many_b32_15_min : avx2_many_b32_15;
        return f.has_min ? avx2_many_b32_31_min : avx2_many_b32_31;
    }
    if (f.cmax == 255)
        return avx2_many_b256_wide;
    if (f.has_min)
        return avx2_many_b256_31_min;           /* Q2_K Q4_K Q5_K */
    return f.cmax <= 31 ? avx2_many_b256_31 : f.cmax <= 63 ? avx2_many_b256_63 : avx2_many_b256_126;
}

PN_AVX2 static void avx2_matmul_many(const pn_cpu_mm *a, pn_cpu_form f)
{
    pn_x86_panel *panels = a->tile;
    const avx2_many_fn many = avx2_many_of(f);
    size_t chunks = (a->k + PN_CPU_CHUNK - 1) / PN_CPU_CHUNK;
    uint32_t step = 8 * pn_x86_panels_in_tile(a->k);
    for (uint32_t r0 = 0; r0 < a->rows; r0 += step) {
        uint32_t r1 = PN_MIN(step, a->rows - r0) + r0;
        for (uint32_t r = r0; r < r1; r += 8)
            pn_x86_panel_fill(a, f, r, panels + (r - r0) / 8 * chunks);
        for (uint32_t j = 0; j < a->m; j += AVX2_X) {
            pn_x86_x x[AVX2_X];
            for (uint32_t i = 0; i < AVX2_X; i++)
                x[i] = pn_x86_x_at(a, f, PN_MIN(j + i, a->m - 1));
            for (uint32_t r = r0; r < r1; r += 8) {
                __m256 acc[AVX2_X] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
                many(panels + (r - r0) / 8 * chunks, a->k, x, f.off, acc);
                for (uint32_t i = 0; i < AVX2_X && j + i < a->m; i++)
                    avx2_store(a, r, j + i, acc[i]);
            }
        }
    }
}

PN_AVX2 PN_INTERNAL void pn_avx2_matmul(const pn_cpu_mm *a)
{
    pn_cpu_form f = pn_cpu_form_of(a->dtype);
    if (f.family == PN_CPU_FLOAT)
        pn_avx2_matmul_float(a);
    else if (a->m == 1 && avx2_matmul_one(a, f))
        return;
    else if (a->m <= AVX2_FEW)
        avx2_matmul_few(a, f);
    else
        avx2_matmul_many(a, f);
}

PN_INTERNAL const pn_cpu_kernels *pn_cpu_avx2(void)
{
    static const pn_cpu_kernels table = {
        .name = "avx2", .quant = pn_avx2_quant, .matmul = pn_avx2_matmul,
        .matmul_exact = pn_avx2_matmul_exact, .rms_norm = pn_avx2_rms_norm, .add = pn_avx2_add,
        .axpy = pn_avx2_axpy, .scale = pn_avx2_scale, .glu = pn_avx2_glu,
        .softcap = pn_avx2_softcap, .rope = pn_avx2_rope, .kv_encode = pn_avx2_kv_encode,
        .kv_decode = pn_avx2_kv_decode, .hadamard = pn_avx2_hadamard, .attn = pn_avx2_attn, .softmax = pn_avx2_softmax,
    };
    return pn_x86_probe() >= PN_X86_AVX2 ? &table : NULL;
}

#undef AVX2_FEW
#undef AVX2_X

#else

PN_INTERNAL const pn_cpu_kernels *pn_cpu_avx2(void) { return NULL; }

#endif
