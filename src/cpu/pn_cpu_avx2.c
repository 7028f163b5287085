/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_avx2.c - products of quantised weights, AVX2 with FMA.
 *
 * Three ways to the same bits, all with output rows in the lanes of a float accumulator:
 *   one     one or two activation rows: codes go from the block to the products in registers
 *           (grids: pn_cpu_avx2_grid.c).
 *   few     up to 4 rows and a format that `one` does not know or whose codes come from grids: 8
 *           weight rows of a chunk are unpacked to the first-level cache and multiplied there, row
 *           by row; 8 vectors of partial sums are transposed into one vector of 8 sums.
 *   many    8 weight rows of a chunk become a panel, whose lanes are rows, and 4 or 8 activation
 *           rows, spread over all lanes, run over it.
 * Integer sums are exact, so only the chain of float additions matters, and it is the same.
 *
 * maddubs (u8 x i8) adds pairs with saturation at 16 bits.  Codes up to 129 are safe
 * (2 * 129 * 127 < 2^15), and for small codes several results fit before widening: `n` below is
 * how many.  int8 weights ("wide"): one row takes |w| * sign(x, w), as |w| <= 128 and |x| <= 127; many
 * take them apart into nibbles.
 */
#include "cpu/pn_cpu_avx2_codes.h"
#include "cpu/pn_cpu_avx2_mm.h"

#if PN_CPU_X64

/* Rows of activations up to which unpacking into panels does not pay. */
#define AVX2_FEW 4
#define AVX2_X 8                /* activation rows run over a panel together, at most */

/* ------------------------------------------------------------------------------------------
 * Few activation rows
 * ------------------------------------------------------------------------------------------ */

/* 32 products in 8 int32, without saturation. */
PN_AVX2_INLINE __m256i avx2_mul32(__m256i c, __m256i x, const bool wide)
{
    const __m256i one = _mm256_set1_epi16(1);
    if (wide)
        return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(c), _mm256_sign_epi8(x, c)), one);
    return _mm256_madd_epi16(_mm256_maddubs_epi16(c, x), one);
}

PN_AVX2_INLINE __m256i avx2_dot32(const uint8_t *w, __m256i x) { return avx2_mul32(avx2_load(w), x, false); }

/* Blocks of 32 of one chunk and one activation row; off: what codes carry. */
PN_AVX2_INLINE __m256 avx2_few32(const pn_x86_oct *o, size_t n, pn_x86_x x, int off, __m256 acc)
{
    const __m256i offs = _mm256_set1_epi16((short)off);
    for (size_t b = 0; b < n / 32; b++) {
        const uint8_t *w = o->q[0] + 32 * b;
        __m256i q = avx2_loadu(x.q + 32 * b), s = avx2_splat4(x.s + 2 * b);
        __m256i lo = avx2_tree4(avx2_dot32(w, q), avx2_dot32(w + 256, q), avx2_dot32(w + 512, q), avx2_dot32(w + 768, q));
        __m256i hi = avx2_tree4(avx2_dot32(w + 1024, q), avx2_dot32(w + 1280, q), avx2_dot32(w + 1536, q),
                                avx2_dot32(w + 1792, q));
        __m256i i = _mm256_add_epi32(_mm256_permute2x128_si256(lo, hi, 0x20),
                                     _mm256_permute2x128_si256(lo, hi, 0x31));
        i = _mm256_sub_epi32(i, _mm256_madd_epi16(offs, s));
        acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(o->d[b]), _mm256_broadcast_ss(x.d + b)),
                              _mm256_cvtepi32_ps(i), acc);
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
        __m256i lo = avx2_tree4(avx2_dot32(w, q), avx2_dot32(w + 256, q),
                                avx2_dot32(w + 512, q), avx2_dot32(w + 768, q));
        __m256i hi = avx2_tree4(avx2_dot32(w + 1024, q), avx2_dot32(w + 1280, q),
                                avx2_dot32(w + 1536, q), avx2_dot32(w + 1792, q));
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
PN_AVX2_INLINE __m256i avx2_dot32_scaled(const uint8_t *w, const int8_t *x, const int16_t *sc)
{
    const __m256i halves = _mm256_setr_epi64x(0x0100010001000100, 0x0100010001000100,
                                              0x0302030203020302, 0x0302030203020302);
    return avx2_mul32_scaled(avx2_load(w), avx2_loadu(x), _mm256_shuffle_epi8(avx2_splat4(sc), halves), false);
}

/* One block of 256 and one activation row. */
PN_AVX2_INLINE __m256 avx2_few256(const pn_x86_oct *o, pn_x86_x x, __m256 acc)
{
    __m256i v[8], s = avx2_loadu(x.s);
    __m256 dx = _mm256_broadcast_ss(x.d);
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *w = o->q[r];
        const int16_t *sc = o->sc[r];
        __m256i a = avx2_dot32_scaled(w, x.q, sc);
        __m256i b = avx2_dot32_scaled(w + 32, x.q + 32, sc + 2);
        a = _mm256_add_epi32(a, avx2_dot32_scaled(w + 64, x.q + 64, sc + 4));
        b = _mm256_add_epi32(b, avx2_dot32_scaled(w + 96, x.q + 96, sc + 6));
        a = _mm256_add_epi32(a, avx2_dot32_scaled(w + 128, x.q + 128, sc + 8));
        b = _mm256_add_epi32(b, avx2_dot32_scaled(w + 160, x.q + 160, sc + 10));
        a = _mm256_add_epi32(a, avx2_dot32_scaled(w + 192, x.q + 192, sc + 12));
        b = _mm256_add_epi32(b, avx2_dot32_scaled(w + 224, x.q + 224, sc + 14));
        v[r] = _mm256_sub_epi32(_mm256_add_epi32(a, b), _mm256_madd_epi16(avx2_load(o->cr[r]), s));
    }
    return _mm256_fmadd_ps(_mm256_mul_ps(_mm256_load_ps(o->d[0]), dx), _mm256_cvtepi32_ps(avx2_tree8(v)), acc);
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
    if (f.family == PN_CPU_B256)
        return f.off == 1 ? avx2_few_ternary(o, x, acc) : avx2_few256(o, x, acc);
    return f.family == PN_CPU_B16 ? avx2_few16(o, n, x, f.off, acc) : avx2_few32(o, n, x, f.off, acc);
}

/* m <= AVX2_FEW, and formats that are unpacked to an oct (no minimum, no wide codes). */
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
        pn_x86_row_pointers(a, r, 0, p);
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
 * One or two activation rows (nx): codes go from the block to the product in registers
 * ------------------------------------------------------------------------------------------ */

/* A block of 32 of weight rows r .. r+4, their sums over 128-bit lanes. */
PN_AVX2_INLINE void avx2_one_four(const int type, const uint8_t *const *p, size_t at, __m256i table, const __m256i *q,
                                  const size_t nx, const bool wide, __m256i *out)
{
    const __m256i c0 = unp_codes32(type, p[0] + at, table), c1 = unp_codes32(type, p[1] + at, table);
    const __m256i c2 = unp_codes32(type, p[2] + at, table), c3 = unp_codes32(type, p[3] + at, table);
    AVX2_EACH
        out[j] = avx2_tree4(avx2_mul32(c0, q[j], wide), avx2_mul32(c1, q[j], wide), avx2_mul32(c2, q[j], wide),
                            avx2_mul32(c3, q[j], wide));
}

PN_AVX2_INLINE void avx2_one32(const pn_cpu_mm *a, pn_cpu_form f, const int type, const size_t bytes, const bool wide,
                               const bool has_min, const size_t nx)
{
    const __m256i offs = _mm256_set1_epi16(f.off), one = _mm256_set1_epi16(1), table = unp_table_of(type);
    const pn_x86_x x[2] = {pn_x86_x_at(a, f, 0), pn_x86_x_at(a, f, (uint32_t)nx - 1)};
    for (uint32_t r0 = 0; r0 < a->rows; r0 += 8) {
        const uint8_t *p[8], *next = (const uint8_t *)a->w + (size_t)r0 * a->w_stride;
        __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        if (r0 + 16 <= a->rows)
            next += 8 * a->w_stride;
        pn_x86_row_pointers(a, r0, 0, p);
        for (size_t b = 0, at = 0; b < a->k / 32; b++, at += bytes, next += 8 * bytes) {
            __m256i q[2], lo[2], hi[2];
            AVX2_EACH
                q[j] = avx2_loadu(x[j].q + 32 * b);
            pn_x86_prefetch(next, 8 * bytes);
            avx2_one_four(type, p, at, table, q, nx, wide, lo);
            avx2_one_four(type, p + 4, at, table, q, nx, wide, hi);
            const __m256 d = type == PN_DTYPE_MXFP4 ? unp_e8m0_8(p, at) : unp_halves8(p, at);
            const __m256 m = has_min ? unp_halves8(p, at + 2) : d;
            AVX2_EACH {
                __m256i s = avx2_splat4(x[j].s + 2 * b);
                __m256i i = _mm256_add_epi32(_mm256_permute2x128_si256(lo[j], hi[j], 0x20),
                                             _mm256_permute2x128_si256(lo[j], hi[j], 0x31));
                __m256 dx = _mm256_broadcast_ss(x[j].d + b);
                if (!wide && !has_min)
                    i = _mm256_sub_epi32(i, _mm256_madd_epi16(offs, s));
                acc[j] = _mm256_fmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(i), acc[j]);
                if (has_min)
                    acc[j] = _mm256_fmadd_ps(_mm256_mul_ps(m, dx), _mm256_cvtepi32_ps(_mm256_madd_epi16(one, s)), acc[j]);
            }
        }
        AVX2_EACH
            avx2_store(a, r0, (uint32_t)j, acc[j]);
    }
}

AVX2_ONE(avx2_one_q4_0, avx2_one32(a, f, PN_DTYPE_Q4_0, 18, false, false, nx))
AVX2_ONE(avx2_one_q4_1, avx2_one32(a, f, PN_DTYPE_Q4_1, 20, false, true, nx))
AVX2_ONE(avx2_one_q5_0, avx2_one32(a, f, PN_DTYPE_Q5_0, 22, false, false, nx))
AVX2_ONE(avx2_one_q5_1, avx2_one32(a, f, PN_DTYPE_Q5_1, 24, false, true, nx))
AVX2_ONE(avx2_one_q8_0, avx2_one32(a, f, PN_DTYPE_Q8_0, 34, true, false, nx))
AVX2_ONE(avx2_one_iq4_nl, avx2_one32(a, f, PN_DTYPE_IQ4_NL, 18, true, false, nx))
AVX2_ONE(avx2_one_mxfp4, avx2_one32(a, f, PN_DTYPE_MXFP4, 17, false, false, nx))

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

/* A block of 256 of one weight row: v[j] gets the partial sums of the products, u[j] those of the sums of q. */
PN_AVX2_INLINE void avx2_one_row_k(const int type, const uint8_t *s, const pn_x86_x *x, const size_t nx, __m256i *v,
                                   __m256i *u)
{
    const __m256i halves = _mm256_setr_epi64x(0x0100010001000100, 0x0100010001000100,
                                              0x0302030203020302, 0x0302030203020302);
    _Alignas(32) int16_t scales[16];
    const bool wide = type == PN_DTYPE_IQ4_XS;
    __m256i c[8], sc, cr;
    unp_codes_k(type, s, c);
    if (type == PN_DTYPE_TQ2_0) {
        AVX2_EACH
            avx2_one_row_ternary(c, x[j], &v[j], &u[j]);
        return;
    }
    unp_scales_k(type, s, &sc, &cr);
    unp_store32(scales, sc);
#define AVX2_TERM(i) \
    avx2_mul32_scaled(c[i], avx2_loadu(x[j].q + 32 * (i)), \
                      _mm256_shuffle_epi8(avx2_splat4(scales + 2 * (i)), halves), wide)
    AVX2_EACH {
        __m256i a = AVX2_TERM(0), b = AVX2_TERM(1);
        a = _mm256_add_epi32(a, AVX2_TERM(2));
        b = _mm256_add_epi32(b, AVX2_TERM(3));
        a = _mm256_add_epi32(a, AVX2_TERM(4));
        b = _mm256_add_epi32(b, AVX2_TERM(5));
        a = _mm256_add_epi32(a, AVX2_TERM(6));
        b = _mm256_add_epi32(b, AVX2_TERM(7));
        v[j] = _mm256_add_epi32(a, b);
        u[j] = _mm256_madd_epi16(cr, avx2_loadu(x[j].s));
    }
#undef AVX2_TERM
}

/* d_at, m_at: offsets of the f16 factors; m_at 0: no mins. */
PN_AVX2_INLINE void avx2_one_k(const pn_cpu_mm *a, pn_cpu_form f, const int type, const size_t bytes, const size_t d_at,
                               const size_t m_at, const size_t nx)
{
    const pn_x86_x x[2] = {pn_x86_x_at(a, f, 0), pn_x86_x_at(a, f, (uint32_t)nx - 1)};
    for (uint32_t r0 = 0; r0 < a->rows; r0 += 8) {
        const uint8_t *p[8], *next = (const uint8_t *)a->w + (size_t)r0 * a->w_stride;
        __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        if (r0 + 16 <= a->rows)
            next += 8 * a->w_stride;
        pn_x86_row_pointers(a, r0, 0, p);
        for (size_t b = 0, at = 0; b < a->k / 256; b++, at += bytes) {
            __m256i v[2][8], u[2][8];
            const pn_x86_x xb[2] = {pn_x86_x_from(x[0], f, 256 * b), pn_x86_x_from(x[1], f, 256 * b)};
            for (size_t r = 0; r < 8; r++, next += bytes) {
                __m256i vr[2], ur[2];
                pn_x86_prefetch(next, bytes);
                avx2_one_row_k(type, p[r] + at, xb, nx, vr, ur);
                AVX2_EACH {
                    v[j][r] = !m_at && type != PN_DTYPE_IQ4_XS ? _mm256_sub_epi32(vr[j], ur[j]) : vr[j];
                    u[j][r] = ur[j];
                }
            }
            const __m256 d = unp_halves8(p, at + d_at);
            const __m256 m = m_at ? _mm256_xor_ps(unp_halves8(p, at + m_at), _mm256_set1_ps(-0.0f)) : d;
            AVX2_EACH {
                __m256 dx = _mm256_broadcast_ss(xb[j].d);
                acc[j] = _mm256_fmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(avx2_tree8(v[j])), acc[j]);
                if (m_at)
                    acc[j] = _mm256_fmadd_ps(_mm256_mul_ps(m, dx), _mm256_cvtepi32_ps(avx2_tree8(u[j])), acc[j]);
            }
        }
        AVX2_EACH
            avx2_store(a, r0, (uint32_t)j, acc[j]);
    }
}

AVX2_ONE(avx2_one_q2_k, avx2_one_k(a, f, PN_DTYPE_Q2_K, 84, 80, 82, nx))
AVX2_ONE(avx2_one_q3_k, avx2_one_k(a, f, PN_DTYPE_Q3_K, 110, 108, 0, nx))
AVX2_ONE(avx2_one_q4_k, avx2_one_k(a, f, PN_DTYPE_Q4_K, 144, 0, 2, nx))
AVX2_ONE(avx2_one_q5_k, avx2_one_k(a, f, PN_DTYPE_Q5_K, 176, 0, 2, nx))
AVX2_ONE(avx2_one_q6_k, avx2_one_k(a, f, PN_DTYPE_Q6_K, 210, 208, 0, nx))
AVX2_ONE(avx2_one_iq4_xs, avx2_one_k(a, f, PN_DTYPE_IQ4_XS, 136, 0, 0, nx))
AVX2_ONE(avx2_one_tq2_0, avx2_one_k(a, f, PN_DTYPE_TQ2_0, 66, 64, 0, nx))

/* m <= 2.  False: no such kernel for the type. */
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
 * More activation rows over panels
 * ------------------------------------------------------------------------------------------ */

/* A chunk of up to 8 activation rows, every dword already in all lanes: products take it from memory as it lies, and
 * all panels of a tile share it.  Made for nx rows, arrays are [..][nx][8 lanes]. */
typedef struct avx2_spread {
    _Alignas(64) int8_t q[PN_CPU_CHUNK / 4 * AVX2_X * 32];
    float d[8 * AVX2_X * 8];            /* a block's factor (B256: one) */
    union {
        int32_t i[16 * AVX2_X * 8];     /* what the codes' offset adds, to be taken off: B32 a block, B16 a half block */
        float f[16 * AVX2_X * 8];       /* B32 with a minimum: sums of q, a block */
        int16_t s[8 * AVX2_X * 16];     /* B256: pairs of sums over 16 */
    } u;
} avx2_spread;

/* Eight numbers, those of blocks 0 .. n - 1, each in all lanes: block b of row j at out[b][j]. */
PN_AVX2_INLINE void avx2_spread8(__m256 v, size_t n, size_t nx, float *out)
{
    _Alignas(32) float tmp[8];
    _mm256_store_ps(tmp, v);
    for (size_t b = 0; b < n; b++)
        _mm256_store_ps(out + 8 * nx * b, _mm256_broadcast_ss(tmp + b));
}

/* n elements of x[nx]. */
PN_AVX2_INLINE void avx2_spread_codes(avx2_spread *o, const pn_x86_x *x, const size_t nx, size_t n)
{
    const int8_t *q[AVX2_X];
    PN_UNROLL
    for (size_t j = 0; j < nx; j++)
        q[j] = x[j].q;
    for (size_t i = 0; i < n; i += 4) {
        __m256i *to = (__m256i *)(void *)(o->q + 8 * i * nx);
        PN_UNROLL
        for (size_t j = 0; j < nx; j++)
            _mm256_store_si256(to + j, avx2_splat4(q[j] + i));
    }
}

PN_AVX2 static void avx2_spread_rows(avx2_spread *o, pn_cpu_form f, const pn_x86_x *x, size_t nx, size_t n)
{
    const __m256i off = _mm256_set1_epi16(f.has_min ? 1 : f.off);
    if (nx == 8)
        avx2_spread_codes(o, x, 8, n);
    else
        avx2_spread_codes(o, x, 4, n);
    for (size_t j = 0; j < nx; j++) {
        const __m256i s = avx2_loadu(x[j].s);           /* 16: sections are padded */
        if (f.family == PN_CPU_B256) {
            _mm256_store_ps(o->d + 8 * j, _mm256_broadcast_ss(x[j].d));
            for (size_t i = 0; i < 8; i++)
                _mm256_store_si256((__m256i *)(void *)(o->u.s + 16 * (i * nx + j)), avx2_splat4(x[j].s + 2 * i));
            continue;
        }
        for (size_t b = 0; b < n / 32; b++)
            _mm256_store_ps(o->d + 8 * (b * nx + j), _mm256_broadcast_ss(x[j].d + b));
        if (f.family == PN_CPU_B16) {
            __m256i even = _mm256_srai_epi32(_mm256_slli_epi32(s, 16), 16), odd = _mm256_srai_epi32(s, 16);
            even = _mm256_mullo_epi32(even, _mm256_set1_epi32(f.off));
            odd = _mm256_mullo_epi32(odd, _mm256_set1_epi32(f.off));
            avx2_spread8(_mm256_castsi256_ps(even), n / 32, 2 * nx, o->u.f + 8 * j);
            avx2_spread8(_mm256_castsi256_ps(odd), n / 32, 2 * nx, o->u.f + 8 * (nx + j));
        } else {
            __m256i sum = _mm256_madd_epi16(s, off);
            avx2_spread8(f.has_min ? _mm256_cvtepi32_ps(sum) : _mm256_castsi256_ps(sum), n / 32, nx, o->u.f + 8 * j);
        }
    }
}

/* The value is in a register now.  Without it gcc adds in another order, computes all products first and spills them. */
#define AVX2_KEEP(v) __asm__("" : "+x"(v))

/* i[j] = (more: +=) t[j] times c. */
PN_AVX2_INLINE void avx2_widen(const __m256i *t, const size_t nx, __m256i c, const bool more, __m256i *i)
{
    AVX2_EACH {
        __m256i v = _mm256_madd_epi16(t[j], c);
        i[j] = more ? _mm256_add_epi32(i[j], v) : v;
        AVX2_KEEP(i[j]);
    }
}

/* Codes of dword k of a panel's 8 rows.  Of int8 ones (w + 128) & 15 or (w + 128) >> 4: nibbles leave 16 bits room for
 * eight sums, while |w| times x with w's sign leaves none, and costs as many instructions as both nibbles. */
typedef enum avx2_part { AVX2_WHOLE, AVX2_LOW, AVX2_HIGH } avx2_part;

PN_AVX2_INLINE __m256i avx2_codes(const uint8_t *q, const size_t k, const avx2_part part)
{
    const __m256i low = _mm256_set1_epi8(15), eight = _mm256_set1_epi8(8);
    __m256i w = avx2_load(q + 32 * k);
    return part == AVX2_WHOLE ? w
           : part == AVX2_LOW ? _mm256_and_si256(w, low)
                              : _mm256_xor_si256(_mm256_and_si256(_mm256_srli_epi16(w, 4), low), eight);
}

/* t[j] = (more: +=) products of dword k, two int16 each. */
PN_AVX2_INLINE void avx2_products(const uint8_t *q, const int8_t *x, const size_t nx, const size_t k,
                                  const avx2_part part, const bool more, __m256i *t)
{
    const __m256i w = avx2_codes(q, k, part);
    AVX2_EACH {
        __m256i v = _mm256_maddubs_epi16(w, avx2_load(x + 32 * (k * nx + j)));
        t[j] = more ? _mm256_add_epi16(t[j], v) : v;
        AVX2_KEEP(t[j]);
    }
}

/* All of a block of 32; n: results that fit in 16 bits, 4 or 8. */
PN_AVX2_INLINE void avx2_products32(const uint8_t *q, const int8_t *x, const size_t nx, const avx2_part part, const int n,
                                    __m256i c, const bool more, __m256i *i)
{
    __m256i t[AVX2_X];
    avx2_products(q, x, nx, 0, part, false, t);
    avx2_products(q, x, nx, 1, part, true, t);
    avx2_products(q, x, nx, 2, part, true, t);
    avx2_products(q, x, nx, 3, part, true, t);
    if (n == 4)
        avx2_widen(t, nx, c, more, i);
    avx2_products(q, x, nx, 4, part, n > 4, t);
    avx2_products(q, x, nx, 5, part, true, t);
    avx2_products(q, x, nx, 6, part, true, t);
    avx2_products(q, x, nx, 7, part, true, t);
    avx2_widen(t, nx, c, more || n == 4, i);
}

/* acc[j] += (d dx) i[j]. */
PN_AVX2_INLINE void avx2_add_scaled(const float *d, const float *dx, const size_t nx, const __m256i *i, __m256 *acc)
{
    const __m256 dw = _mm256_load_ps(d);
    AVX2_EACH
        acc[j] = _mm256_fmadd_ps(_mm256_mul_ps(dw, _mm256_load_ps(dx + 8 * j)), _mm256_cvtepi32_ps(i[j]), acc[j]);
}

/* n: results of maddubs that fit in 16 bits; 0: wide. */
PN_AVX2_INLINE void avx2_many32(const pn_x86_panel *p, size_t k, const avx2_spread *x, __m256 *acc, const size_t nx,
                                const int n, const bool has_min)
{
    const __m256i one = _mm256_set1_epi16(1), sixteen = _mm256_set1_epi16(16);
    for (size_t b = 0; b < k / 32; b++) {
        const uint8_t *q = p->q[b * 8][0];
        const int8_t *xq = x->q + b * 8 * nx * 32;
        const size_t at = b * nx * 8;
        __m256i i[AVX2_X];
        if (n == 0) {
            avx2_products32(q, xq, nx, AVX2_LOW, 8, one, false, i);
            avx2_products32(q, xq, nx, AVX2_HIGH, 8, sixteen, true, i);
        } else {
            avx2_products32(q, xq, nx, AVX2_WHOLE, n, one, false, i);
        }
        if (!has_min)
            AVX2_EACH
                i[j] = _mm256_sub_epi32(i[j], avx2_load(x->u.i + at + 8 * j));
        avx2_add_scaled(p->u.b32.d[b], x->d + at, nx, i, acc);
        if (has_min) {
            const __m256 m = _mm256_load_ps(p->u.b32.m[b]);
            AVX2_EACH
                acc[j] = _mm256_fmadd_ps(_mm256_mul_ps(m, _mm256_load_ps(x->d + at + 8 * j)),
                                         _mm256_load_ps(x->u.f + at + 8 * j), acc[j]);
        }
    }
}

PN_AVX2_INLINE void avx2_many16(const pn_x86_panel *p, size_t k, const avx2_spread *x, __m256 *acc, const size_t nx)
{
    const __m256i one = _mm256_set1_epi16(1);
    for (size_t h = 0; h < k / 16; h++) {
        const uint8_t *q = p->q[h * 4][0];
        const int8_t *xq = x->q + h * 4 * nx * 32;
        __m256i t[AVX2_X], i[AVX2_X];
        avx2_products(q, xq, nx, 0, AVX2_WHOLE, false, t);
        avx2_products(q, xq, nx, 1, AVX2_WHOLE, true, t);
        avx2_products(q, xq, nx, 2, AVX2_WHOLE, true, t);
        avx2_products(q, xq, nx, 3, AVX2_WHOLE, true, t);
        avx2_widen(t, nx, one, false, i);
        AVX2_EACH
            i[j] = _mm256_sub_epi32(i[j], avx2_load(x->u.i + (h * nx + j) * 8));
        avx2_add_scaled(p->u.d16[h], x->d + h / 2 * nx * 8, nx, i, acc);
    }
}

/* i[j] -= the pairs of factors times pairs of sums. */
PN_AVX2_INLINE void avx2_correct(const pn_x86_panel *p, const avx2_spread *x, const size_t nx, __m256i *i)
{
    for (size_t t = 0; t < 8; t++) {
        const __m256i c = avx2_load(p->u.b256.cr[t]);
        AVX2_EACH
            i[j] = _mm256_sub_epi32(i[j], _mm256_madd_epi16(c, avx2_load(x->u.s + 16 * (t * nx + j))));
    }
}

PN_AVX2_INLINE void avx2_many256(const pn_x86_panel *p, const avx2_spread *x, __m256 *acc, const size_t nx, const int n,
                                 const bool has_min)
{
    __m256i t[AVX2_X], i[AVX2_X];
    AVX2_EACH
        i[j] = _mm256_setzero_si256();
    for (size_t g = 0; g < 16; g++) {
        const uint8_t *q = p->q[4 * g][0];
        const int8_t *xq = x->q + g * 4 * nx * 32;
        const __m256i sc = avx2_load(p->u.b256.sc[g]);
        if (n == 0) {
            avx2_products(q, xq, nx, 0, AVX2_LOW, false, t);
            avx2_products(q, xq, nx, 1, AVX2_LOW, true, t);
            avx2_products(q, xq, nx, 2, AVX2_LOW, true, t);
            avx2_products(q, xq, nx, 3, AVX2_LOW, true, t);
            avx2_widen(t, nx, sc, true, i);
            avx2_products(q, xq, nx, 0, AVX2_HIGH, false, t);
            avx2_products(q, xq, nx, 1, AVX2_HIGH, true, t);
            avx2_products(q, xq, nx, 2, AVX2_HIGH, true, t);
            avx2_products(q, xq, nx, 3, AVX2_HIGH, true, t);
            avx2_widen(t, nx, _mm256_slli_epi16(sc, 4), true, i);
            continue;
        }
        avx2_products(q, xq, nx, 0, AVX2_WHOLE, false, t);
        if (n == 1)
            avx2_widen(t, nx, sc, true, i);
        avx2_products(q, xq, nx, 1, AVX2_WHOLE, n > 1, t);
        if (n <= 2)
            avx2_widen(t, nx, sc, true, i);
        avx2_products(q, xq, nx, 2, AVX2_WHOLE, n > 2, t);
        if (n == 1)
            avx2_widen(t, nx, sc, true, i);
        avx2_products(q, xq, nx, 3, AVX2_WHOLE, n > 1, t);
        avx2_widen(t, nx, sc, true, i);
    }
    if (!has_min)
        avx2_correct(p, x, nx, i);
    avx2_add_scaled(p->u.b256.d, x->d, nx, i, acc);
    if (has_min) {
        /* avx2_correct subtracts and m is exact in sign: (-m) * (-sum) has the bits of m * sum. */
        const __m256 m = _mm256_xor_ps(_mm256_load_ps(p->u.b256.m), _mm256_set1_ps(-0.0f));
        AVX2_EACH
            i[j] = _mm256_setzero_si256();
        avx2_correct(p, x, nx, i);
        AVX2_EACH
            acc[j] = _mm256_fmadd_ps(_mm256_mul_ps(m, _mm256_load_ps(x->d + 8 * j)), _mm256_cvtepi32_ps(i[j]), acc[j]);
    }
}

/* One function a variant: in a single large one gcc spills the accumulators (30 % slower). */
typedef void (*avx2_many_fn)(const pn_x86_panel *p, size_t k, const avx2_spread *x, __m256 *acc);

#define AVX2_MANY_X(name, rows, call) \
    PN_AVX2 static void name##_##rows(const pn_x86_panel *p, size_t k, const avx2_spread *x, __m256 *acc) \
    { \
        const size_t nx = rows; \
        (void)k; \
        call; \
    }
#define AVX2_MANY(name, call) AVX2_MANY_X(name, 4, call) AVX2_MANY_X(name, 8, call)
AVX2_MANY(avx2_many_b16, avx2_many16(p, k, x, acc, nx))
AVX2_MANY(avx2_many_b32_wide, avx2_many32(p, k, x, acc, nx, 0, false))
AVX2_MANY(avx2_many_b32_15, avx2_many32(p, k, x, acc, nx, 8, false))
AVX2_MANY(avx2_many_b32_15_min, avx2_many32(p, k, x, acc, nx, 8, true))
AVX2_MANY(avx2_many_b32_31, avx2_many32(p, k, x, acc, nx, 4, false))
AVX2_MANY(avx2_many_b32_31_min, avx2_many32(p, k, x, acc, nx, 4, true))
AVX2_MANY(avx2_many_b256_wide, avx2_many256(p, x, acc, nx, 0, false))
AVX2_MANY(avx2_many_b256_31_min, avx2_many256(p, x, acc, nx, 4, true))
AVX2_MANY(avx2_many_b256_31, avx2_many256(p, x, acc, nx, 4, false))
AVX2_MANY(avx2_many_b256_63, avx2_many256(p, x, acc, nx, 2, false))
AVX2_MANY(avx2_many_b256_126, avx2_many256(p, x, acc, nx, 1, false))
#undef AVX2_MANY
#undef AVX2_MANY_X
#undef AVX2_KEEP

#define AVX2_PICK(name) (nx == 4 ? name##_4 : name##_8)

static avx2_many_fn avx2_many_of(pn_cpu_form f, size_t nx)
{
    if (f.family == PN_CPU_B16)
        return AVX2_PICK(avx2_many_b16);
    if (f.family == PN_CPU_B32) {
        if (f.cmax == 255)
            return AVX2_PICK(avx2_many_b32_wide);
        if (f.cmax <= 15)
            return f.has_min ? AVX2_PICK(avx2_many_b32_15_min) : AVX2_PICK(avx2_many_b32_15);
        return f.has_min ? AVX2_PICK(avx2_many_b32_31_min) : AVX2_PICK(avx2_many_b32_31);
    }
    if (f.cmax == 255)
        return AVX2_PICK(avx2_many_b256_wide);
    if (f.has_min)
        return AVX2_PICK(avx2_many_b256_31_min);        /* Q2_K Q4_K Q5_K */
    if (f.cmax <= 31)
        return AVX2_PICK(avx2_many_b256_31);
    return f.cmax <= 63 ? AVX2_PICK(avx2_many_b256_63) : AVX2_PICK(avx2_many_b256_126);
}

#undef AVX2_PICK

/* Rows of activations whose sums wait together, and most panels that share a spread chunk of them. */
enum { AVX2_SLAB = 128, AVX2_PANELS = 32 };

/* Chunk by chunk of k: a panel is made where it is needed, in the first-level cache, and the sums wait in the tile. */
PN_AVX2 static void avx2_matmul_slab(const pn_cpu_mm *a, pn_cpu_form f, uint32_t j0, uint32_t m)
{
    const uint32_t rows8 = (a->rows + 7) / 8, mx = m > 4 ? (m + 7) / 8 * 8 : 4;
    const size_t room = pn_cpu_tile_bytes(a->k) / (sizeof(pn_x86_panel) + mx * sizeof(__m256));
    const uint32_t most = (uint32_t)PN_MIN(PN_MIN(room, (size_t)AVX2_PANELS), (size_t)rows8);
    pn_x86_panel *panels = a->tile;
    __m256 *sums = (__m256 *)(void *)(panels + most);      /* [panel][row] */
    avx2_spread spread;
    for (uint32_t p0 = 0, np; p0 < rows8; p0 += np) {
        np = PN_MIN(most, rows8 - p0);
        for (size_t i = 0; i < (size_t)np * mx; i++)
            sums[i] = _mm256_setzero_ps();
        for (size_t e = 0; e < a->k; e += PN_CPU_CHUNK) {
            const size_t n = PN_MIN((size_t)PN_CPU_CHUNK, a->k - e);
            for (uint32_t j = 0, nx; j < mx; j += nx) {
                pn_x86_x x[AVX2_X];
                nx = PN_MIN(mx, (uint32_t)AVX2_X);
                const avx2_many_fn many = avx2_many_of(f, nx);
                for (uint32_t v = 0; v < nx; v++)
                    x[v] = pn_x86_x_from(pn_x86_x_at(a, f, j0 + PN_MIN(j + v, m - 1)), f, e);
                avx2_spread_rows(&spread, f, x, nx, n);
                for (uint32_t p = 0; p < np; p++) {
                    if (j == 0)
                        pn_x86_panel_fill(a, f, 8 * (p0 + p), e, n, 8, panels[p].q[0][0], false);
                    many(panels + p, n, &spread, sums + (size_t)p * mx + j);
                }
            }
        }
        for (uint32_t p = 0; p < np; p++)
            for (uint32_t j = 0; j < m; j++)
                avx2_store(a, 8 * (p0 + p), j0 + j, sums[(size_t)p * mx + j]);
    }
}

PN_AVX2 static void avx2_matmul_many(const pn_cpu_mm *a, pn_cpu_form f)
{
    for (uint32_t j = 0; j < a->m; j += AVX2_SLAB)
        avx2_matmul_slab(a, f, j, PN_MIN(a->m - j, (uint32_t)AVX2_SLAB));
}

PN_AVX2 PN_INTERNAL void pn_avx2_matmul(const pn_cpu_mm *a)
{
    pn_cpu_form f = pn_cpu_form_of(a->dtype);
    if (f.family == PN_CPU_FLOAT)
        pn_avx2_matmul_float(a);
    else if (a->m <= 2 && (avx2_matmul_one(a, f) || pn_avx2_matmul_grid(a, f)))
        return;
    else if (a->m <= AVX2_FEW && pn_x86_unpack_of(a->dtype))
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
