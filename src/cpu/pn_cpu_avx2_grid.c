/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_avx2_grid.c - one or two activation rows and weights that are points of a grid (IQ1, IQ2, IQ3) or ternary digits.
 *
 * Points are looked up one by one, four or eight loads for 32 weights, and nothing else should cost as much.  So what a
 * look-up needs, indices of a block of 256 and its sign bits, is computed for the whole block in vectors, and read
 * back from the stack as numbers.  Magnitudes stay unsigned and their signs go to the activations, so codes carry no
 * offset that would have to be taken off again.
 */
#include "cpu/pn_cpu_avx2_codes.h"
#include "cpu/pn_cpu_avx2_mm.h"

#if PN_CPU_X64

/* What is computed of a block before its points are looked up. */
typedef struct grid_block {
    _Alignas(32) uint16_t at[64];       /* indices */
    _Alignas(32) uint32_t neg[8];       /* a bit for each weight */
    _Alignas(32) int16_t sc[16];
} grid_block;

/* It is in memory now: else gcc takes its numbers out of vectors, one by one. */
#define GRID_WRITTEN(b) __asm__("" : "+m"(b))

/* ------------------------------------------------------------------------------------------
 * Indices, signs and scales of a block
 * ------------------------------------------------------------------------------------------ */

/* 16 indices: bytes at p and, above them, bits of the words in `high`, shifted into `mask` by products: up to the left,
 * 16 - down to the right. */
PN_AVX2_INLINE void grid_indices(uint16_t *at, const uint8_t *p, __m256i high, __m256i up, __m256i down, int mask)
{
    high = _mm256_or_si256(_mm256_mullo_epi16(high, up), _mm256_mulhi_epu16(high, down));
    high = _mm256_and_si256(high, _mm256_set1_epi16((short)mask));
    unp_store32(at, _mm256_or_si256(_mm256_cvtepu8_epi16(unp_load16(p)), high));
}

PN_AVX2_INLINE __m256i grid_four(short a, short b, short c, short d)
{
    return _mm256_setr_epi16(a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d);
}

/* 32 indices with three bits each in words of four: IQ1. */
PN_AVX2_INLINE void grid_indices_iq1(uint16_t *at, const uint8_t *p, __m128i words, __m256i up, __m256i down)
{
    const __m256i first = _mm256_setr_epi64x(0x0100010001000100, 0x0302030203020302, 0x0504050405040504, 0x0706070607060706);
    const __m256i w = _mm256_broadcastsi128_si256(words), next = _mm256_set1_epi8(8);
    grid_indices(at, p, _mm256_shuffle_epi8(w, first), up, down, 0x700);
    grid_indices(at + 16, p + 16, _mm256_shuffle_epi8(w, _mm256_add_epi8(first, next)), up, down, 0x700);
}

/* 32 indices with two bits each in 8 bytes. */
PN_AVX2_INLINE void grid_indices_iq2_s(uint16_t *at, const uint8_t *p, const uint8_t *high)
{
    const __m256i first = _mm256_setr_epi32((int)0x80008000u, (int)0x80008000u, (int)0x80018001u, (int)0x80018001u, (int)0x80028002u,
                                            (int)0x80028002u, (int)0x80038003u, (int)0x80038003u);
    const __m256i h = _mm256_set1_epi64x((long long)pn_le64(high)), next = _mm256_set1_epi16(4);
    const __m256i up = grid_four(256, 64, 16, 4), none = _mm256_setzero_si256();
    grid_indices(at, p, _mm256_shuffle_epi8(h, first), up, none, 0x300);
    grid_indices(at + 16, p + 16, _mm256_shuffle_epi8(h, _mm256_add_epi8(first, next)), up, none, 0x300);
}

/* 64 indices with one bit each in 8 bytes. */
PN_AVX2_INLINE void grid_indices_iq3_s(uint16_t *at, const uint8_t *p, const uint8_t *high)
{
    const __m256i first = _mm256_setr_epi64x((long long)0x8000800080008000u, (long long)0x8000800080008000u,
                                             (long long)0x8001800180018001u, (long long)0x8001800180018001u);
    const __m256i h = _mm256_set1_epi64x((long long)pn_le64(high)), next = _mm256_set1_epi16(2);
    const __m256i up = _mm256_setr_epi16(256, 128, 64, 32, 16, 8, 4, 2, 256, 128, 64, 32, 16, 8, 4, 2), none = _mm256_setzero_si256();
    __m256i which = first;
    PN_UNROLL
    for (size_t i = 0; i < 64; i += 16, which = _mm256_add_epi8(which, next))
        grid_indices(at + i, p + i, _mm256_shuffle_epi8(h, which), up, none, 0x100);
}

/* The eighth sign of each byte makes their number even: bits 0-6 to bit 7. */
PN_AVX2_INLINE __m256i grid_even(__m256i v)
{
    const __m256i odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    const __m256i low = unp_and(v, 15), high = unp_and(_mm256_srli_epi16(v, 4), 7);
    return _mm256_or_si256(v, _mm256_xor_si256(_mm256_shuffle_epi8(odd, low), _mm256_shuffle_epi8(odd, high)));
}

/* Words of four times seven sign bits, and four bits of scale at the top: IQ2_XXS, IQ3_XXS. */
PN_AVX2_INLINE void grid_words_xxs(grid_block *b, __m256i w)
{
    __m256i v = _mm256_and_si256(w, _mm256_set1_epi32(0x7f));
    v = _mm256_or_si256(v, _mm256_and_si256(_mm256_slli_epi32(w, 1), _mm256_set1_epi32(0x7f00)));
    v = _mm256_or_si256(v, _mm256_and_si256(_mm256_slli_epi32(w, 2), _mm256_set1_epi32(0x7f0000)));
    v = _mm256_or_si256(v, _mm256_and_si256(_mm256_slli_epi32(w, 3), _mm256_set1_epi32(0x7f000000)));
    unp_store32(b->neg, grid_even(v));
    unp_store32(b->sc, unp_top_scales(w));
}

/* The signs in the upper seven bits of 32 words. */
PN_AVX2_INLINE void grid_words_xs(grid_block *b, __m256i w0, __m256i w1)
{
    const __m256i mask = _mm256_set1_epi16(511);
    unp_store32(b->at, _mm256_and_si256(w0, mask));
    unp_store32(b->at + 16, _mm256_and_si256(w1, mask));
    __m256i v = _mm256_packus_epi16(_mm256_srli_epi16(w0, 9), _mm256_srli_epi16(w1, 9));
    unp_store32(b->neg, grid_even(_mm256_permute4x64_epi64(v, 0xd8)));
}

/* ------------------------------------------------------------------------------------------
 * Points
 * ------------------------------------------------------------------------------------------ */

static const void *grid_of(const int type)
{
    switch (type) {
    case PN_DTYPE_IQ2_XXS: return pn_grid_iq2_xxs();
    case PN_DTYPE_IQ2_XS: return pn_grid_iq2_xs();
    case PN_DTYPE_IQ2_S: return pn_grid_iq2_s();
    case PN_DTYPE_IQ3_XXS: return pn_grid_iq3_xxs();
    case PN_DTYPE_IQ3_S: return pn_grid_iq3_s();
    default: return pn_grid_iq1();
    }
}

/* Two points of four, in a general register: pairs by vector instructions cost twice as many. */
static inline long long grid_two(const uint32_t *g, unsigned a, unsigned b)
{
    uint64_t v = g[a] | (uint64_t)g[b] << 32;
    __asm__("" : "+r"(v));
    return (long long)v;
}

PN_AVX2_INLINE __m256i grid_points4(const uint32_t *g, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned h, unsigned i)
{
    return _mm256_setr_epi64x(grid_two(g, a, b), grid_two(g, c, d), grid_two(g, e, f), grid_two(g, h, i));
}

/* Group i of 32. */
PN_AVX2_INLINE __m256i grid_points(const int type, const void *grid, const uint8_t *s, const grid_block *b, size_t i)
{
    const uint8_t *q = s + 2 + 8 * i;
    const uint16_t *at = b->at + (type == PN_DTYPE_IQ3_S ? 8 : 4) * i;
    switch (type) {
    case PN_DTYPE_IQ2_XXS: return unp_grid8(grid, q[0], q[1], q[2], q[3]);
    case PN_DTYPE_IQ3_XXS: return grid_points4(grid, q[0], q[1], q[2], q[3], q[4], q[5], q[6], q[7]);
    case PN_DTYPE_IQ3_S: return grid_points4(grid, at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]);
    default: return unp_grid8(grid, at[0], at[1], at[2], at[3]);
    }
}

/* Is there one scale for each 32, not for each 16? */
static inline bool grid_one_scale(const int type)
{
    return type == PN_DTYPE_IQ2_XXS || type == PN_DTYPE_IQ3_XXS || type == PN_DTYPE_IQ3_S || type == PN_DTYPE_IQ1_S;
}

PN_AVX2_INLINE __m256i grid_scale(const int type, const grid_block *b, size_t i)
{
    const __m256i halves = _mm256_setr_epi64x(0x0100010001000100, 0x0100010001000100, 0x0302030203020302, 0x0302030203020302);
    __m256i v = avx2_splat4(b->sc + 2 * i);
    return grid_one_scale(type) ? v : _mm256_shuffle_epi8(v, halves);
}

/* ------------------------------------------------------------------------------------------
 * A block of one weight row: v[j] gets its partial sums
 * ------------------------------------------------------------------------------------------ */

PN_AVX2_INLINE void grid_open(const int type, const uint8_t *s, grid_block *b)
{
    if (type == PN_DTYPE_IQ2_XXS) {
        __m256 low = _mm256_castsi256_ps(unp_load32(s + 2)), high = _mm256_castsi256_ps(unp_load32(s + 34));
        grid_words_xxs(b, _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xdd)), 0xd8));
    } else if (type == PN_DTYPE_IQ3_XXS) {
        grid_words_xxs(b, unp_load32(s + 66));
    } else if (type == PN_DTYPE_IQ2_XS) {
        grid_words_xs(b, unp_load32(s + 2), unp_load32(s + 34));
        unp_store32(b->sc, unp_odd_scales(s + 66));
    } else if (type == PN_DTYPE_IQ2_S) {
        grid_indices_iq2_s(b->at, s + 2, s + 66);
        unp_store32(b->neg, unp_load32(s + 34));
        unp_store32(b->sc, unp_odd_scales(s + 74));
    } else {
        grid_indices_iq3_s(b->at, s + 2, s + 66);
        unp_store32(b->neg, unp_load32(s + 74));
        unp_store32(b->sc, unp_scales_iq3_s(s + 106));
    }
}

PN_AVX2_INLINE void grid_row_signed(const int type, const void *grid, const uint8_t *s, const pn_x86_x *x, const size_t nx, __m256i *v)
{
    const __m256i one = _mm256_set1_epi8(1);
    grid_block b;
    grid_open(type, s, &b);
    GRID_WRITTEN(b);
    PN_UNROLL
    for (size_t i = 0; i < 8; i++) {
        const __m256i g = grid_points(type, grid, s, &b, i), sc = grid_scale(type, &b, i);
        const __m256i sign = _mm256_or_si256(unp_bits(b.neg[i], 255), one);
        AVX2_EACH {
            __m256i t = _mm256_sign_epi8(avx2_loadu(x[j].q + 32 * i), sign);
            t = _mm256_madd_epi16(_mm256_maddubs_epi16(g, t), sc);
            v[j] = i ? _mm256_add_epi32(v[j], t) : t;
        }
    }
}

/* Eight times a point and its delta, which is the same for 32: that needs sums of q over 16 only. */
PN_AVX2_INLINE void grid_row_iq1_s(const void *grid, const uint8_t *s, const pn_x86_x *x, const size_t nx, __m256i *v)
{
    const __m256i one = _mm256_set1_epi8(1);
    const __m128i h = unp_load16(s + 34), odd = _mm_set1_epi16(1);
    const __m128i sc = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(h, 11), _mm_set1_epi16(14)), odd);
    const __m256i delta = unp_double16(_mm_sign_epi16(sc, _mm_or_si128(h, odd)));
    grid_block b;
    grid_indices_iq1(b.at, s + 2, h, grid_four(256, 32, 4, 0), grid_four(0, 0, 0, -32768));
    unp_store32(b.sc, unp_double16(sc));
    GRID_WRITTEN(b);
    PN_UNROLL
    for (size_t i = 0; i < 8; i++) {
        const __m256i g = grid_points(PN_DTYPE_IQ1_S, grid, s, &b, i), scale = grid_scale(PN_DTYPE_IQ1_S, &b, i);
        AVX2_EACH {
            __m256i t = _mm256_maddubs_epi16(one, _mm256_sign_epi8(avx2_loadu(x[j].q + 32 * i), g));
            t = _mm256_madd_epi16(t, scale);
            v[j] = i ? _mm256_add_epi32(v[j], t) : t;
        }
    }
    AVX2_EACH
        v[j] = _mm256_add_epi32(_mm256_slli_epi32(v[j], 3), _mm256_madd_epi16(delta, avx2_loadu(x[j].s)));
}

/* Deltas differ from eight to eight: codes 8 G + 9 + delta, as everywhere else. */
PN_AVX2_INLINE void grid_row_iq1_m(const void *grid, const uint8_t *s, const pn_x86_x *x, const size_t nx, __m256i *v)
{
    const __m128i h = unp_load16(s + 32);
    const __m256i sc = unp_scales_iq1_m(pn_le64(s + 48)), nine = _mm256_add_epi16(_mm256_slli_epi16(sc, 3), sc);
    grid_block b;
    grid_indices_iq1(b.at, s, h, grid_four(256, 16, 1, 0), grid_four(0, 0, 0, 4096));
    unp_store32(b.sc, sc);
    GRID_WRITTEN(b);
    PN_UNROLL
    for (size_t i = 0; i < 8; i++) {
        const __m256i c = unp_iq1(grid_points(PN_DTYPE_IQ1_M, grid, s, &b, i), unp_base_iq1_m(s + 32 + 2 * i));
        const __m256i scale = grid_scale(PN_DTYPE_IQ1_M, &b, i);
        AVX2_EACH {
            __m256i t = _mm256_madd_epi16(_mm256_maddubs_epi16(c, avx2_loadu(x[j].q + 32 * i)), scale);
            v[j] = i ? _mm256_add_epi32(v[j], t) : t;
        }
    }
    AVX2_EACH
        v[j] = _mm256_sub_epi32(v[j], _mm256_madd_epi16(nine, avx2_loadu(x[j].s)));
}

/* Five digits of 32 bytes, then of 16, then four of four; 16-bit sums hold the block. */
PN_AVX2_INLINE void grid_row_tq1_0(const uint8_t *s, const pn_x86_x *x, const size_t nx, __m256i *v)
{
    const __m256i one = _mm256_set1_epi16(1), top = _mm256_set1_epi8(-128);
    const __m128i top16 = _mm256_castsi256_si128(top);
    __m256i c[8], w = _mm256_xor_si256(unp_load32(s), top);
    __m128i t = _mm_xor_si128(_mm_cvtsi32_si128((int)pn_le32(s + 48)), top16), u[6];
    PN_UNROLL
    for (size_t i = 0; i < 5; i++, w = unp_times3(w))
        c[i] = unp_trit(w);
    u[0] = _mm_xor_si128(unp_load16(s + 32), top16);
    PN_UNROLL
    for (size_t i = 1; i < 5; i++)
        u[i] = unp_times3_16(u[i - 1]);
    t = _mm_unpacklo_epi32(t, unp_times3_16(t));            /* digits 0 and 1, then 2 and 3 */
    u[5] = _mm_unpacklo_epi64(t, unp_times3_16(unp_times3_16(t)));
    PN_UNROLL
    for (size_t i = 0; i < 3; i++)
        c[5 + i] = unp_trit(_mm256_set_m128i(u[2 * i + 1], u[2 * i]));
    AVX2_EACH {
        __m256i sum = _mm256_maddubs_epi16(c[0], avx2_loadu(x[j].q));
        PN_UNROLL
        for (size_t i = 1; i < 8; i++)
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(c[i], avx2_loadu(x[j].q + 32 * i)));
        v[j] = _mm256_madd_epi16(_mm256_sub_epi16(sum, avx2_loadu(x[j].s)), one);
    }
}

PN_AVX2_INLINE void grid_row(const int type, const void *grid, const uint8_t *s, const pn_x86_x *x, const size_t nx, __m256i *v)
{
    if (type == PN_DTYPE_IQ1_S)
        grid_row_iq1_s(grid, s, x, nx, v);
    else if (type == PN_DTYPE_IQ1_M)
        grid_row_iq1_m(grid, s, x, nx, v);
    else if (type == PN_DTYPE_TQ1_0)
        grid_row_tq1_0(s, x, nx, v);
    else
        grid_row_signed(type, grid, s, x, nx, v);
}

/* ------------------------------------------------------------------------------------------
 * All rows
 * ------------------------------------------------------------------------------------------ */

/* Factors of the block at p[r] + at of 8 rows. */
PN_AVX2_INLINE __m256 grid_factors(const int type, const uint8_t *const *p, size_t at)
{
    const float times = type == PN_DTYPE_TQ1_0 || type == PN_DTYPE_IQ3_S ? 1.0f : type == PN_DTYPE_IQ3_XXS ? 0.25f : 0.125f;
    __m256 d;
    if (type == PN_DTYPE_IQ1_M) {
        _Alignas(16) uint16_t h[8];
        for (size_t r = 0; r < 8; r++)
            h[r] = unp_factor_iq1_m(pn_le64(p[r] + at + 48));
        d = _mm256_cvtph_ps(unp_load16(h));
    } else
        d = unp_halves8(p, type == PN_DTYPE_TQ1_0 ? at + 52 : at);
    return times == 1.0f ? d : _mm256_mul_ps(d, _mm256_set1_ps(times));
}

PN_AVX2_INLINE void grid_one(const pn_cpu_mm *a, pn_cpu_form f, const int type, const size_t bytes, const size_t nx)
{
    const pn_x86_x x[2] = {pn_x86_x_at(a, f, 0), pn_x86_x_at(a, f, (uint32_t)nx - 1)};
    const void *const grid = grid_of(type);
    for (uint32_t r0 = 0; r0 < a->rows; r0 += 8) {
        const uint8_t *p[8], *next = (const uint8_t *)a->w + (size_t)r0 * a->w_stride;
        __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        if (r0 + 16 <= a->rows)
            next += 8 * a->w_stride;
        pn_x86_row_pointers(a, r0, 0, p);
        for (size_t b = 0, at = 0; b < a->k / 256; b++, at += bytes) {
            const pn_x86_x xb[2] = {pn_x86_x_from(x[0], f, 256 * b), pn_x86_x_from(x[1], f, 256 * b)};
            __m256i v[2][8];
            for (size_t r = 0; r < 8; r++, next += bytes) {
                __m256i vr[2];
                pn_x86_prefetch(next, bytes);
                grid_row(type, grid, p[r] + at, xb, nx, vr);
                AVX2_EACH
                    v[j][r] = vr[j];
            }
            const __m256 d = grid_factors(type, p, at);
            AVX2_EACH
                acc[j] = _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_broadcast_ss(xb[j].d)), _mm256_cvtepi32_ps(avx2_tree8(v[j])), acc[j]);
        }
        AVX2_EACH
            avx2_store(a, r0, (uint32_t)j, acc[j]);
    }
}

AVX2_ONE(grid_one_iq2_xxs, grid_one(a, f, PN_DTYPE_IQ2_XXS, 66, nx))
AVX2_ONE(grid_one_iq2_xs, grid_one(a, f, PN_DTYPE_IQ2_XS, 74, nx))
AVX2_ONE(grid_one_iq2_s, grid_one(a, f, PN_DTYPE_IQ2_S, 82, nx))
AVX2_ONE(grid_one_iq3_xxs, grid_one(a, f, PN_DTYPE_IQ3_XXS, 98, nx))
AVX2_ONE(grid_one_iq3_s, grid_one(a, f, PN_DTYPE_IQ3_S, 110, nx))
AVX2_ONE(grid_one_iq1_s, grid_one(a, f, PN_DTYPE_IQ1_S, 50, nx))
AVX2_ONE(grid_one_iq1_m, grid_one(a, f, PN_DTYPE_IQ1_M, 56, nx))
AVX2_ONE(grid_one_tq1_0, grid_one(a, f, PN_DTYPE_TQ1_0, 54, nx))

PN_INTERNAL bool pn_avx2_matmul_grid(const pn_cpu_mm *a, pn_cpu_form f)
{
    switch (a->dtype) {
    case PN_DTYPE_IQ2_XXS: grid_one_iq2_xxs(a, f); return true;
    case PN_DTYPE_IQ2_XS: grid_one_iq2_xs(a, f); return true;
    case PN_DTYPE_IQ2_S: grid_one_iq2_s(a, f); return true;
    case PN_DTYPE_IQ3_XXS: grid_one_iq3_xxs(a, f); return true;
    case PN_DTYPE_IQ3_S: grid_one_iq3_s(a, f); return true;
    case PN_DTYPE_IQ1_S: grid_one_iq1_s(a, f); return true;
    case PN_DTYPE_IQ1_M: grid_one_iq1_m(a, f); return true;
    case PN_DTYPE_TQ1_0: grid_one_tq1_0(a, f); return true;
    default: return false;
    }
}

#undef GRID_WRITTEN

#endif /* PN_CPU_X64 */

typedef int pn_cpu_avx2_grid_not_empty;         /* ISO C wants a declaration in every file */
