/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_avx2_unpack.c - weights of 8 rows to byte codes and scales, one function a format.
 *
 * These are the only x86 functions that know block layouts; dot products see codes.  Each reads
 * exactly the bytes of its blocks (the last block of a mapped file may end at a page) and writes an
 * oct.  The codes stay in the first-level cache until they are multiplied, which costs a store and
 * a load for 32 codes beside the 10 to 20 instructions around them, and spares a copy of every dot
 * product for every format.
 *
 * Scales are computed as whole vectors: 2-byte stores that are read back as 32 bytes at once cannot
 * be forwarded and stall (it halved the speed of the IQ formats).
 */
#include "cpu/pn_cpu_avx2_codes.h"

#if PN_CPU_X64

#include "num/pn_half.h"
#include "num/pn_tab_iq.h"

/* ------------------------------------------------------------------------------------------
 * Blocks of 32
 * ------------------------------------------------------------------------------------------ */

PN_AVX2 static void unp_q1_0(const uint8_t *const *p, size_t n, pn_x86_oct *o)
{
    _Alignas(16) uint16_t d[2][8];
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t b = 0; b < n / 128; b++, s += 18) {
            uint8_t *q = o->q[r] + 128 * b;
            unp_store32(q, unp_bits(pn_le32(s + 2), 2));
            unp_store32(q + 32, unp_bits(pn_le32(s + 6), 2));
            unp_store32(q + 64, unp_bits(pn_le32(s + 10), 2));
            unp_store32(q + 96, unp_bits(pn_le32(s + 14), 2));
            memcpy(&d[b][r], s, 2);
        }
    }
    for (size_t b = 0; b < n / 32; b++)
        unp_halves(d[b / 4], o->d[b], 1.0f);
}

/* 8 bytes of 2-bit codes, lowest first, to 32 codes. */
PN_AVX2_INLINE __m256i unp_pairs(const uint8_t *p)
{
    const __m256i spread = _mm256_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303,
                                             0x04040404, 0x05050505, 0x06060606, 0x07070707);
    const __m256i one = _mm256_set1_epi32(0x40100401), two = _mm256_set1_epi32((int)0x80200802u);
    __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi64x((long long)pn_le64(p)), spread);
    __m256i a = unp_and(_mm256_cmpeq_epi8(_mm256_and_si256(v, one), one), 1);
    __m256i b = unp_and(_mm256_cmpeq_epi8(_mm256_and_si256(v, two), two), 2);
    return _mm256_or_si256(a, b);
}

PN_AVX2 static void unp_q2_0(const uint8_t *const *p, size_t n, pn_x86_oct *o)
{
    _Alignas(16) uint16_t d[4][8];
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t b = 0; b < n / 64; b++, s += 18) {
            unp_store32(o->q[r] + 64 * b, unp_pairs(s + 2));
            unp_store32(o->q[r] + 64 * b + 32, unp_pairs(s + 10));
            memcpy(&d[b][r], s, 2);
        }
    }
    for (size_t b = 0; b < n / 32; b++)
        unp_halves(d[b / 2], o->d[b], 1.0f);
}

PN_AVX2 static void unp_nvfp4(const uint8_t *const *p, size_t n, pn_x86_oct *o)
{
    const __m256i table = unp_table(pn_tab_fp4(), 12);
    uint8_t d[16][8];
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t e = 0; e < n; e += 64, s += 36) {
            for (size_t i = 0; i < 2; i++) {
                __m128i v = unp_load16(s + 4 + 16 * i), h = _mm_srli_epi16(v, 4);
                __m256i w = _mm256_set_m128i(_mm_unpackhi_epi64(v, h), _mm_unpacklo_epi64(v, h));
                unp_store32(o->q[r] + e + 32 * i, _mm256_shuffle_epi8(table, unp_and(w, 15)));
            }
            for (size_t i = 0; i < 4; i++)
                d[e / 16 + i][r] = s[i];
        }
    }
    for (size_t i = 0; i < n / 16; i++)
        unp_ue4m3(d[i], o->d[i]);
}

/* ------------------------------------------------------------------------------------------
 * IQ and ternary
 * ------------------------------------------------------------------------------------------ */

PN_AVX2_INLINE void unp_scales(int16_t *sc, __m256i v, int16_t *cr, int shift)
{
    unp_store32(sc, v);
    unp_store32(cr, _mm256_slli_epi16(v, shift));
}

/* Magnitudes with one sign bit each, plus an offset: off + G or off - G. */
PN_AVX2_INLINE __m256i unp_signed(__m256i grid, uint32_t signs, int off)
{
    __m256i neg = unp_bits(signs, 255);
    grid = _mm256_sub_epi8(_mm256_xor_si256(grid, neg), neg);
    return _mm256_add_epi8(grid, _mm256_set1_epi8((char)off));
}

/* Four 7-bit sign indices to 32 sign bits. */
PN_AVX2_INLINE uint32_t unp_signs7(const uint8_t *ks, uint32_t w)
{
    return ks[w & 127] | (uint32_t)ks[w >> 7 & 127] << 8 | (uint32_t)ks[w >> 14 & 127] << 16 |
           (uint32_t)ks[w >> 21 & 127] << 24;
}

PN_AVX2 static void unp_iq2_xxs(const uint8_t *const *p, size_t n, pn_x86_oct *o)
{
    const uint64_t *grid = pn_grid_iq2_xxs();
    const uint8_t *ks = pn_tab_ksigns();
    _Alignas(16) uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t g = 0; g < 8; g++) {
            const uint8_t *i = s + 2 + 8 * g;
            uint32_t w = pn_le32(i + 4);
            unp_store32(o->q[r] + 32 * g, unp_signed(unp_grid8(grid, i[0], i[1], i[2], i[3]), unp_signs7(ks, w), 64));
        }
        __m256i a = unp_load32(s + 2), b = unp_load32(s + 34);
        a = _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd));
        unp_scales(o->sc[r], unp_top_scales(_mm256_permute4x64_epi64(a, 0xd8)), o->cr[r], 6);
        memcpy(&d[r], s, 2);
    }
    unp_halves(d, o->d[0], 0.125f);
}

PN_AVX2 static void unp_iq2_xs(const uint8_t *const *p, size_t n, pn_x86_oct *o)
{
    const uint64_t *grid = pn_grid_iq2_xs();
    const uint8_t *ks = pn_tab_ksigns();
    _Alignas(16) uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t g = 0; g < 8; g++) {
            uint64_t h = pn_le64(s + 2 + 8 * g);
            unsigned h0 = h & 0xffff, h1 = h >> 16 & 0xffff, h2 = h >> 32 & 0xffff, h3 = (unsigned)(h >> 48);
            uint32_t signs = ks[h0 >> 9] | (uint32_t)ks[h1 >> 9] << 8 | (uint32_t)ks[h2 >> 9] << 16 |
                             (uint32_t)ks[h3 >> 9] << 24;
            __m256i v = unp_grid8(grid, h0 & 511, h1 & 511, h2 & 511, h3 & 511);
            unp_store32(o->q[r] + 32 * g, unp_signed(v, signs, 64));
        }
        unp_scales(o->sc[r], unp_odd_scales(s + 66), o->cr[r], 6);
        memcpy(&d[r], s, 2);
    }
    unp_halves(d, o->d[0], 0.125f);
}

PN_AVX2 static void unp_iq2_s(const uint8_t *const *p, size_t n, pn_x86_oct *o)
{
    const uint64_t *grid = pn_grid_iq2_s();
    _Alignas(16) uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t g = 0; g < 8; g++) {
            const uint8_t *i = s + 2 + 4 * g;
            unsigned h = s[66 + g];
            __m256i v = unp_grid8(grid, i[0] | (h << 8 & 0x300), i[1] | (h << 6 & 0x300),
                                  i[2] | (h << 4 & 0x300), i[3] | (h << 2 & 0x300));
            unp_store32(o->q[r] + 32 * g, unp_signed(v, pn_le32(s + 34 + 4 * g), 64));
        }
        unp_scales(o->sc[r], unp_odd_scales(s + 74), o->cr[r], 6);
        memcpy(&d[r], s, 2);
    }
    unp_halves(d, o->d[0], 0.125f);
}

/* 8 indices of points of 4, bit k of `high` being bit 8 of index k. */
PN_AVX2_INLINE __m256i unp_grid4(const uint32_t *g, const uint8_t *i, unsigned high)
{
    return _mm256_setr_epi32((int)g[i[0] | (high << 8 & 256)], (int)g[i[1] | (high << 7 & 256)],
                             (int)g[i[2] | (high << 6 & 256)], (int)g[i[3] | (high << 5 & 256)],
                             (int)g[i[4] | (high << 4 & 256)], (int)g[i[5] | (high << 3 & 256)],
                             (int)g[i[6] | (high << 2 & 256)], (int)g[i[7] | (high << 1 & 256)]);
}

PN_AVX2 static void unp_iq3_xxs(const uint8_t *const *p, size_t n, pn_x86_oct *o)
{
    const uint32_t *grid = pn_grid_iq3_xxs();
    const uint8_t *ks = pn_tab_ksigns();
    _Alignas(16) uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t g = 0; g < 8; g++) {
            uint32_t w = pn_le32(s + 66 + 4 * g);
            unp_store32(o->q[r] + 32 * g, unp_signed(unp_grid4(grid, s + 2 + 8 * g, 0), unp_signs7(ks, w), 64));
        }
        unp_scales(o->sc[r], unp_top_scales(unp_load32(s + 66)), o->cr[r], 6);
        memcpy(&d[r], s, 2);
    }
    unp_halves(d, o->d[0], 0.25f);
}

PN_AVX2 static void unp_iq3_s(const uint8_t *const *p, size_t n, pn_x86_oct *o)
{
    const uint32_t *grid = pn_grid_iq3_s();
    _Alignas(16) uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t g = 0; g < 8; g++) {
            __m256i v = unp_grid4(grid, s + 2 + 8 * g, s[66 + g]);
            unp_store32(o->q[r] + 32 * g, unp_signed(v, pn_le32(s + 74 + 4 * g), 16));
        }
        unp_scales(o->sc[r], unp_scales_iq3_s(s + 106), o->cr[r], 4);
        memcpy(&d[r], s, 2);
    }
    unp_halves(d, o->d[0], 1.0f);
}

/* Scales, and 9 times them. */
PN_AVX2_INLINE void unp_scales9(pn_x86_oct *o, size_t r, __m256i sc)
{
    unp_store32(o->sc[r], sc);
    unp_store32(o->cr[r], _mm256_add_epi16(_mm256_slli_epi16(sc, 3), sc));
}

PN_AVX2 static void unp_iq1_s(const uint8_t *const *p, size_t n, pn_x86_oct *o)
{
    const uint64_t *grid = pn_grid_iq1();
    _Alignas(16) uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t g = 0; g < 8; g++) {
            const uint8_t *i = s + 2 + 4 * g;
            unsigned h = pn_le16(s + 34 + 2 * g);
            __m256i v = unp_grid8(grid, i[0] | (h << 8 & 0x700), i[1] | (h << 5 & 0x700),
                                  i[2] | (h << 2 & 0x700), i[3] | (h >> 1 & 0x700));
            unp_store32(o->q[r] + 32 * g, unp_iq1(v, _mm256_set1_epi8(h & 0x8000 ? 8 : 10)));
        }
        __m128i sc = _mm_and_si128(_mm_srli_epi16(unp_load16(s + 34), 11), _mm_set1_epi16(14));
        unp_scales9(o, r, unp_double16(_mm_or_si128(sc, _mm_set1_epi16(1))));
        memcpy(&d[r], s, 2);
    }
    unp_halves(d, o->d[0], 0.125f);
}

PN_AVX2 static void unp_iq1_m(const uint8_t *const *p, size_t n, pn_x86_oct *o)
{
    const uint64_t *grid = pn_grid_iq1();
    _Alignas(16) uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t g = 0; g < 8; g++) {
            const uint8_t *i = s + 4 * g;
            unsigned h = pn_le16(s + 32 + 2 * g);
            __m256i v = unp_grid8(grid, i[0] | (h << 8 & 0x700), i[1] | (h << 4 & 0x700),
                                  i[2] | (h & 0x700), i[3] | (h >> 4 & 0x700));
            unp_store32(o->q[r] + 32 * g, unp_iq1(v, unp_base_iq1_m(s + 32 + 2 * g)));
        }
        uint64_t c = pn_le64(s + 48);
        unp_scales9(o, r, unp_scales_iq1_m(c));
        d[r] = unp_factor_iq1_m(c);
    }
    unp_halves(d, o->d[0], 0.125f);
}

PN_AVX2_INLINE void unp_ones(pn_x86_oct *o, size_t r)
{
    unp_store32(o->sc[r], _mm256_set1_epi16(1));
    unp_store32(o->cr[r], _mm256_set1_epi16(1));
}

PN_AVX2 static void unp_tq1_0(const uint8_t *const *p, size_t n, pn_x86_oct *o)
{
    _Alignas(16) uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        uint8_t *q = o->q[r];
        const __m256i top = _mm256_set1_epi8(-128);
        __m256i v = _mm256_xor_si256(unp_load32(s), top);
        __m256i u = _mm256_xor_si256(_mm256_castsi128_si256(unp_load16(s + 32)), top);
        __m256i t = _mm256_xor_si256(_mm256_castsi128_si256(_mm_cvtsi32_si128((int)pn_le32(s + 48))), top);
        for (size_t i = 0; i < 5; i++) {
            unp_store32(q + 32 * i, unp_trit(v));
            _mm_store_si128((__m128i *)(void *)(q + 160 + 16 * i), _mm256_castsi256_si128(unp_trit(u)));
            if (i < 4) {
                uint32_t four = (uint32_t)_mm_cvtsi128_si32(_mm256_castsi256_si128(unp_trit(t)));
                memcpy(q + 240 + 4 * i, &four, 4);
            }
            v = unp_times3(v);
            u = unp_times3(u);
            t = unp_times3(t);
        }
        unp_ones(o, r);
        memcpy(&d[r], s + 52, 2);
    }
    unp_halves(d, o->d[0], 1.0f);
}

PN_INTERNAL pn_x86_unpack_fn pn_x86_unpack_of(uint32_t dtype)
{
    switch (dtype) {
    case PN_DTYPE_NVFP4: return unp_nvfp4;
    case PN_DTYPE_Q1_0: return unp_q1_0;
    case PN_DTYPE_Q2_0: return unp_q2_0;
    case PN_DTYPE_IQ2_XXS: return unp_iq2_xxs;
    case PN_DTYPE_IQ2_XS: return unp_iq2_xs;
    case PN_DTYPE_IQ2_S: return unp_iq2_s;
    case PN_DTYPE_IQ3_XXS: return unp_iq3_xxs;
    case PN_DTYPE_IQ3_S: return unp_iq3_s;
    case PN_DTYPE_IQ1_S: return unp_iq1_s;
    case PN_DTYPE_IQ1_M: return unp_iq1_m;
    case PN_DTYPE_TQ1_0: return unp_tq1_0;
    default: return NULL;
    }
}

/* ------------------------------------------------------------------------------------------
 * Oct to panel
 * ------------------------------------------------------------------------------------------ */

PN_AVX2 PN_INTERNAL void pn_x86_transpose(const pn_x86_oct *o, pn_cpu_form f, uint8_t *panel, bool wide)
{
    const size_t step = wide ? 64 : 32;
    uint8_t *const codes = panel, *const factors = panel + PN_X86_PANEL_SC * step;
    const uint8_t *q[8], *sc[8], *cr[8];
    __m256i t[8];
    for (size_t r = 0; r < 8; r++) {
        q[r] = o->q[r];
        sc[r] = (const uint8_t *)o->sc[r];
        cr[r] = (const uint8_t *)o->cr[r];
    }
    for (size_t g = 0; g < 8; g++) {
        unp_transpose8(q, 32 * g, t);
        for (size_t i = 0; i < 8; i++)
            unp_store32(codes + (8 * g + i) * step, t[i]);
    }
    if (f.family != PN_CPU_B256) {          /* d16, or d32 and m32 behind it */
        for (size_t i = 0; i < 16; i++)
            unp_store32(factors + i * step, unp_load32(f.family == PN_CPU_B16 || i < 8 ? o->d[i] : o->m[i - 8]));
        return;
    }
    unp_transpose8(sc, 0, t);
    for (size_t i = 0; i < 8; i++) {        /* pairs of scales: one vector for each, doubled */
        __m256i low = _mm256_and_si256(t[i], _mm256_set1_epi32(0xffff));
        __m256i high = _mm256_srli_epi32(t[i], 16);
        unp_store32(factors + 2 * i * step, _mm256_or_si256(low, _mm256_slli_epi32(low, 16)));
        unp_store32(factors + (2 * i + 1) * step, _mm256_or_si256(high, _mm256_slli_epi32(high, 16)));
    }
    unp_transpose8(cr, 0, t);
    for (size_t i = 0; i < 8; i++)
        unp_store32(factors + (16 + i) * step, t[i]);
    unp_store32(factors + 24 * step, unp_load32(o->d[0]));
    unp_store32(factors + 25 * step, unp_load32(o->m[0]));
}

#endif /* PN_CPU_X64 */

typedef int pn_cpu_avx2_unpack_not_empty;       /* ISO C wants a declaration in every file */
