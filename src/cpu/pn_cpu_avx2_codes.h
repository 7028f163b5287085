/*
 * pn_cpu_avx2_codes.h - AVX2 pieces of unpacking: nibbles, bits, tables, small scales, and the codes
 * of a block of 32.  Shared by the unpackers and by the products that do without them.
 */
#ifndef PN_CPU_AVX2_CODES_H
#define PN_CPU_AVX2_CODES_H

#include "cpu/pn_cpu_x86.h"
#include "num/pn_half.h"
#include "num/pn_tab_iq.h"

#if PN_CPU_X64

PN_AVX2_INLINE __m128i unp_load16(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
PN_AVX2_INLINE __m256i unp_load32(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
PN_AVX2_INLINE void unp_store32(void *p, __m256i v) { _mm256_store_si256((__m256i *)p, v); }

PN_AVX2_INLINE __m256i unp_and(__m256i v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8((char)mask)); }

/* 16 bytes of nibbles to 32 codes: low nibbles first. */
PN_AVX2_INLINE __m256i unp_nibbles(const uint8_t *p)
{
    const __m256i high = _mm256_setr_epi64x(0, 0, 4, 4);
    return unp_and(_mm256_srlv_epi64(_mm256_broadcastsi128_si256(unp_load16(p)), high), 15);
}

/* 32 bits to 32 bytes of 0 or `value`; bit j belongs to byte j. */
PN_AVX2_INLINE __m256i unp_bits(uint32_t bits, int value)
{
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), spread), bit);
    return unp_and(_mm256_cmpeq_epi8(v, bit), value);
}

PN_AVX2_INLINE __m256i unp_table(const int8_t *table16, int add)
{
    __m128i t = _mm_add_epi8(unp_load16(table16), _mm_set1_epi8((char)add));
    return _mm256_broadcastsi128_si256(t);
}

/* 8 f16 to f32. */
PN_AVX2_INLINE void unp_halves(const uint16_t *h, float *d, float factor)
{
    __m256 v = _mm256_cvtph_ps(unp_load16(h));
    _mm256_store_ps(d, factor == 1.0f ? v : _mm256_mul_ps(v, _mm256_set1_ps(factor)));
}

/* 8 E8M0 bytes to half their values (pn_f32_from_e8m0_half). */
PN_AVX2_INLINE __m256 unp_e8m0(__m128i e)
{
    __m256i v = _mm256_cvtepu8_epi32(e);
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(v, _mm256_set1_epi32(1)), 23);
    __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), v);
    normal = _mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), v));
    return _mm256_castsi256_ps(normal);
}

/* The f16 at p[r] + at of 8 rows. */
PN_AVX2_INLINE __m256 unp_halves8(const uint8_t *const *p, size_t at)
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
PN_AVX2_INLINE __m256 unp_e8m0_8(const uint8_t *const *p, size_t at)
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

/* The 32-bit word at p[r] + at of 8 rows. */
PN_AVX2_INLINE __m256i unp_words8(const uint8_t *const *p, size_t at)
{
    __m128i a = _mm_cvtsi32_si128((int)pn_le32(p[0] + at)), b = _mm_cvtsi32_si128((int)pn_le32(p[4] + at));
    a = _mm_insert_epi32(a, (int)pn_le32(p[1] + at), 1);
    b = _mm_insert_epi32(b, (int)pn_le32(p[5] + at), 1);
    a = _mm_insert_epi32(a, (int)pn_le32(p[2] + at), 2);
    b = _mm_insert_epi32(b, (int)pn_le32(p[6] + at), 2);
    a = _mm_insert_epi32(a, (int)pn_le32(p[3] + at), 3);
    b = _mm_insert_epi32(b, (int)pn_le32(p[7] + at), 3);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}

/* The two f16 there. */
PN_AVX2_INLINE void unp_halves_pair8(const uint8_t *const *p, size_t at, __m256 *first, __m256 *second)
{
    __m256i w = unp_words8(p, at);
    w = _mm256_packus_epi32(_mm256_and_si256(w, _mm256_set1_epi32(0xffff)), _mm256_srli_epi32(w, 16));
    w = _mm256_permute4x64_epi64(w, 0xd8);
    *first = _mm256_cvtph_ps(_mm256_castsi256_si128(w));
    *second = _mm256_cvtph_ps(_mm256_extracti128_si256(w, 1));
}

/* 8 UE4M3 bytes to half their values (pn_f32_from_ue4m3_half). */
PN_AVX2_INLINE void unp_ue4m3(const uint8_t *u, float *d)
{
    const __m256i nan = _mm256_set1_epi32(0x7f);
    __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)u));
    v = _mm256_and_si256(v, nan);
    __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(v, 20), _mm256_set1_epi32(119 << 23));
    __m256 tiny = _mm256_mul_ps(_mm256_cvtepi32_ps(v), _mm256_set1_ps(0x1p-10f));
    __m256i y = _mm256_blendv_epi8(normal, _mm256_castps_si256(tiny), _mm256_cmpgt_epi32(_mm256_set1_epi32(8), v));
    unp_store32(d, _mm256_andnot_si256(_mm256_cmpeq_epi32(v, nan), y));
}

PN_AVX2_INLINE __m256i unp_codes32(const int type, const uint8_t *p, __m256i table)
{
    switch (type) {
    case PN_DTYPE_Q4_0: return unp_nibbles(p + 2);
    case PN_DTYPE_Q4_1: return unp_nibbles(p + 4);
    case PN_DTYPE_Q5_0: return _mm256_or_si256(unp_nibbles(p + 6), unp_bits(pn_le32(p + 2), 16));
    case PN_DTYPE_Q5_1: return _mm256_or_si256(unp_nibbles(p + 8), unp_bits(pn_le32(p + 4), 16));
    case PN_DTYPE_Q8_0: return unp_load32(p + 2);
    case PN_DTYPE_IQ4_NL: return _mm256_shuffle_epi8(table, unp_nibbles(p + 2));
    default: return _mm256_shuffle_epi8(table, unp_nibbles(p + 1));     /* MXFP4 */
    }
}

PN_AVX2_INLINE __m256i unp_or(__m256i a, __m256i b) { return _mm256_or_si256(a, b); }

/* The four 2-bit planes of 32 bytes. */
PN_AVX2_INLINE void unp_planes2(const uint8_t *p, __m256i c[4])
{
    __m256i v = unp_load32(p);
    c[0] = unp_and(v, 3);
    c[1] = unp_and(_mm256_srli_epi16(v, 2), 3);
    c[2] = unp_and(_mm256_srli_epi16(v, 4), 3);
    c[3] = unp_and(_mm256_srli_epi16(v, 6), 3);
}

/* Low and high nibbles of 32 bytes. */
PN_AVX2_INLINE void unp_planes4(const uint8_t *p, __m256i c[2])
{
    __m256i v = unp_load32(p);
    c[0] = unp_and(v, 15);
    c[1] = unp_and(_mm256_srli_epi16(v, 4), 15);
}

/* 64 bytes of nibbles and 32 of 2-bit tops: half of a Q6_K block. */
PN_AVX2_INLINE void unp_half_q6(const uint8_t *ql, const uint8_t *qh, __m256i c[4])
{
    __m256i a = unp_load32(ql), b = unp_load32(ql + 32), h = unp_load32(qh);
    c[0] = unp_or(unp_and(a, 15), unp_and(_mm256_slli_epi16(h, 4), 48));
    c[1] = unp_or(unp_and(b, 15), unp_and(_mm256_slli_epi16(h, 2), 48));
    c[2] = unp_or(unp_and(_mm256_srli_epi16(a, 4), 15), unp_and(h, 48));
    c[3] = unp_or(unp_and(_mm256_srli_epi16(b, 4), 15), unp_and(_mm256_srli_epi16(h, 2), 48));
}

/* The 256 codes of a K-quant, IQ4_XS or TQ2_0 block. */
PN_AVX2_INLINE void unp_codes_k(const int type, const uint8_t *s, __m256i c[8])
{
    if (type == PN_DTYPE_Q6_K) {
        unp_half_q6(s, s + 128, c);
        unp_half_q6(s + 64, s + 160, c + 4);
    } else if (type == PN_DTYPE_Q2_K) {
        unp_planes2(s + 16, c);
        unp_planes2(s + 48, c + 4);
    } else if (type == PN_DTYPE_TQ2_0) {
        unp_planes2(s, c);
        unp_planes2(s + 32, c + 4);
    } else if (type == PN_DTYPE_IQ4_XS) {
        const __m256i table = unp_table(pn_tab_iq4nl(), 0);
        c[0] = _mm256_shuffle_epi8(table, unp_nibbles(s + 8));
        c[1] = _mm256_shuffle_epi8(table, unp_nibbles(s + 24));
        c[2] = _mm256_shuffle_epi8(table, unp_nibbles(s + 40));
        c[3] = _mm256_shuffle_epi8(table, unp_nibbles(s + 56));
        c[4] = _mm256_shuffle_epi8(table, unp_nibbles(s + 72));
        c[5] = _mm256_shuffle_epi8(table, unp_nibbles(s + 88));
        c[6] = _mm256_shuffle_epi8(table, unp_nibbles(s + 104));
        c[7] = _mm256_shuffle_epi8(table, unp_nibbles(s + 120));
    } else if (type == PN_DTYPE_Q3_K) {
        __m256i h = unp_load32(s);
        unp_planes2(s + 32, c);
        unp_planes2(s + 64, c + 4);
        c[0] = unp_or(c[0], unp_and(_mm256_slli_epi16(h, 2), 4));
        c[1] = unp_or(c[1], unp_and(_mm256_slli_epi16(h, 1), 4));
        c[2] = unp_or(c[2], unp_and(h, 4));
        c[3] = unp_or(c[3], unp_and(_mm256_srli_epi16(h, 1), 4));
        c[4] = unp_or(c[4], unp_and(_mm256_srli_epi16(h, 2), 4));
        c[5] = unp_or(c[5], unp_and(_mm256_srli_epi16(h, 3), 4));
        c[6] = unp_or(c[6], unp_and(_mm256_srli_epi16(h, 4), 4));
        c[7] = unp_or(c[7], unp_and(_mm256_srli_epi16(h, 5), 4));
    } else {
        const uint8_t *q = s + (type == PN_DTYPE_Q4_K ? 16 : 48);
        unp_planes4(q, c);
        unp_planes4(q + 32, c + 2);
        unp_planes4(q + 64, c + 4);
        unp_planes4(q + 96, c + 6);
        if (type == PN_DTYPE_Q5_K) {
            __m256i h = unp_load32(s + 16);
            c[0] = unp_or(c[0], unp_and(_mm256_slli_epi16(h, 4), 16));
            c[1] = unp_or(c[1], unp_and(_mm256_slli_epi16(h, 3), 16));
            c[2] = unp_or(c[2], unp_and(_mm256_slli_epi16(h, 2), 16));
            c[3] = unp_or(c[3], unp_and(_mm256_slli_epi16(h, 1), 16));
            c[4] = unp_or(c[4], unp_and(h, 16));
            c[5] = unp_or(c[5], unp_and(_mm256_srli_epi16(h, 1), 16));
            c[6] = unp_or(c[6], unp_and(_mm256_srli_epi16(h, 2), 16));
            c[7] = unp_or(c[7], unp_and(_mm256_srli_epi16(h, 3), 16));
        }
    }
}

/* 16 scales, int8. */
PN_AVX2_INLINE __m128i unp_scales_q3(const uint8_t *b)
{
    uint32_t l0 = pn_le32(b), l1 = pn_le32(b + 4), h = pn_le32(b + 8);
    uint32_t nib = 0x0f0f0f0f, two = 0x03030303;
    __m128i v = _mm_setr_epi32((int)((l0 & nib) | (h & two) << 4), (int)((l1 & nib) | (h >> 2 & two) << 4),
                               (int)((l0 >> 4 & nib) | (h >> 4 & two) << 4),
                               (int)((l1 >> 4 & nib) | (h >> 6 & two) << 4));
    return _mm_sub_epi8(v, _mm_set1_epi8(32));
}

/* 6-bit scales and mins of 8 groups of 32: 8 bytes each; p: the block, bytes 4..15 hold them. */
PN_AVX2_INLINE __m128i unp_scales_k4(const uint8_t *p)
{
    const __m128i low_mask = _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f);
    const __m128i high_mask = _mm_setr_epi32(0, 0x30303030, 0, 0x30303030);
    __m128i v = unp_load16(p);                              /* dwords: d and dmin, x, y, z */
    __m128i low = _mm_shuffle_epi32(v, 0xed);               /* x z y z */
    low = _mm_and_si128(_mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4)), low_mask);
    __m128i high = _mm_shuffle_epi32(v, 0x94);              /* - x - y */
    high = _mm_and_si128(_mm_srli_epi32(high, 2), high_mask);
    return _mm_or_si128(low, high);
}

/* 8 int16 to 16, each twice. */
PN_AVX2_INLINE __m256i unp_double16(__m128i v)
{
    return _mm256_set_m128i(_mm_unpackhi_epi16(v, v), _mm_unpacklo_epi16(v, v));
}

/* 8 scales, each twice, int8. */
PN_AVX2_INLINE __m128i unp_scales_iq4(const uint8_t *s)
{
    const __m128i up = _mm_setr_epi16(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1);
    __m128i l = _mm_cvtsi32_si128((int)pn_le32(s + 4)), nib = _mm_set1_epi8(15);
    __m128i low = _mm_unpacklo_epi8(_mm_and_si128(l, nib), _mm_and_si128(_mm_srli_epi16(l, 4), nib));
    __m128i high = _mm_srli_epi16(_mm_mullo_epi16(_mm_set1_epi16((short)pn_le16(s + 2)), up), 14);
    __m128i v = _mm_or_si128(_mm_cvtepu8_epi16(low), _mm_slli_epi16(high, 4));
    v = _mm_sub_epi16(v, _mm_set1_epi16(32));
    v = _mm_packs_epi16(v, v);
    return _mm_unpacklo_epi8(v, v);
}

/* Scales, and mins or scales times the codes' offset. */
PN_AVX2_INLINE void unp_scales_k(const int type, const uint8_t *s, __m256i *sc, __m256i *cr)
{
    if (type == PN_DTYPE_Q2_K) {
        __m128i v = unp_load16(s), low = _mm_set1_epi8(15);
        *sc = _mm256_cvtepu8_epi16(_mm_and_si128(v, low));
        *cr = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(v, 4), low));
    } else if (type == PN_DTYPE_Q3_K) {
        *sc = _mm256_cvtepi8_epi16(unp_scales_q3(s + 96));
        *cr = _mm256_slli_epi16(*sc, 2);
    } else if (type == PN_DTYPE_TQ2_0) {
        *sc = *cr = _mm256_set1_epi16(1);
    } else if (type == PN_DTYPE_IQ4_XS) {
        *sc = _mm256_cvtepi8_epi16(unp_scales_iq4(s));
        *cr = _mm256_slli_epi16(*sc, 7);
    } else if (type == PN_DTYPE_Q6_K) {
        *sc = _mm256_cvtepi8_epi16(unp_load16(s + 192));
        *cr = _mm256_slli_epi16(*sc, 5);
    } else {
        __m128i v = unp_scales_k4(s);
        *sc = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(v, v));
        *cr = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(v, v));
    }
}

/* ------------------------------------------------------------------------------------------
 * Grids and ternary digits
 * ------------------------------------------------------------------------------------------ */

PN_AVX2_INLINE __m256i unp_grid8(const uint64_t *g, unsigned a, unsigned b, unsigned c, unsigned d)
{
    return _mm256_setr_epi64x((long long)g[a], (long long)g[b], (long long)g[c], (long long)g[d]);
}

/* The top 4 bits of 8 words, one for 32 elements: 2 nu + 1, doubled. */
PN_AVX2_INLINE __m256i unp_top_scales(__m256i w)
{
    __m256i v = _mm256_srli_epi32(w, 28);
    v = _mm256_or_si256(v, _mm256_slli_epi32(v, 16));
    return _mm256_add_epi16(_mm256_add_epi16(v, v), _mm256_set1_epi16(1));
}

/* 8 bytes of nibbles, low ones first, to 16 odd scales 2 nu + 1. */
PN_AVX2_INLINE __m256i unp_odd_scales(const uint8_t *p)
{
    __m128i v = _mm_loadl_epi64((const __m128i *)(const void *)p), nib = _mm_set1_epi8(15);
    v = _mm_unpacklo_epi8(_mm_and_si128(v, nib), _mm_and_si128(_mm_srli_epi16(v, 4), nib));
    v = _mm_add_epi8(_mm_add_epi8(v, v), _mm_set1_epi8(1));
    return _mm256_cvtepu8_epi16(v);
}

/* 4 bytes of nibbles to 8 odd scales, each twice. */
PN_AVX2_INLINE __m256i unp_scales_iq3_s(const uint8_t *p)
{
    __m128i v = _mm_cvtsi32_si128((int)pn_le32(p)), nib = _mm_set1_epi8(15);
    v = _mm_unpacklo_epi8(_mm_and_si128(v, nib), _mm_and_si128(_mm_srli_epi16(v, 4), nib));
    return unp_double16(_mm_cvtepu8_epi16(_mm_add_epi8(_mm_add_epi8(v, v), _mm_set1_epi8(1))));
}

/* Three bits of a word for each of its four sub-blocks, moved to the top by a product: 16 odd scales. */
PN_AVX2_INLINE __m256i unp_scales_iq1_m(uint64_t words)
{
    const __m256i up = _mm256_set1_epi64x((1ll << 13) | (1ll << 26) | (1ll << 39) | (1ll << 52));
    const __m256i spread = _mm256_setr_epi64x(0x0100010001000100, 0x0302030203020302, 0x0504050405040504, 0x0706070607060706);
    __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi64x((long long)words), spread);
    v = _mm256_and_si256(_mm256_srli_epi16(_mm256_mullo_epi16(v, up), 12), _mm256_set1_epi16(14));
    return _mm256_or_si256(v, _mm256_set1_epi16(1));
}

/* The top four bits of the same words. */
static inline uint16_t unp_factor_iq1_m(uint64_t words)
{
    return (uint16_t)((words >> 12 & 15) | (words >> 24 & 0xf0) | (words >> 36 & 0xf00) | (words >> 48 & 0xf000));
}

/* 8 G + 9 + delta; `base` holds 9 + delta. */
PN_AVX2_INLINE __m256i unp_iq1(__m256i grid, __m256i base)
{
    return _mm256_add_epi8(unp_and(_mm256_slli_epi16(grid, 3), 0xf8), base);
}

/* 9 + delta of 32 weights.  A bit of the word at p for each octet makes it negative; 8 bytes are read. */
PN_AVX2_INLINE __m256i unp_base_iq1_m(const uint8_t *p)
{
    const __m256i delta = _mm256_setr_epi64x(0x0008, 0x0080, 0x0800, 0x8000);
    __m256i v = _mm256_and_si256(_mm256_set1_epi64x((long long)pn_le64(p)), delta);
    return _mm256_add_epi8(_mm256_set1_epi8(10), unp_and(_mm256_cmpeq_epi64(v, delta), -2));
}

/* The leading ternary digit of each byte, floor(3 v / 256): thresholds 86 and 171.  Bytes come with the upper bit flipped, for
 * signed comparisons; unp_times3 keeps it so, as 3 * 128 = 128 modulo 256. */
PN_AVX2_INLINE __m256i unp_trit(__m256i v)
{
    __m256i a = _mm256_cmpgt_epi8(v, _mm256_set1_epi8(85 - 128)), b = _mm256_cmpgt_epi8(v, _mm256_set1_epi8(170 - 128));
    return _mm256_sub_epi8(_mm256_sub_epi8(_mm256_setzero_si256(), a), b);
}

PN_AVX2_INLINE __m256i unp_times3(__m256i v) { return _mm256_add_epi8(_mm256_add_epi8(v, v), v); }

PN_AVX2_INLINE __m128i unp_times3_16(__m128i v) { return _mm_add_epi8(_mm_add_epi8(v, v), v); }

/* The table that unp_codes32 looks codes up in. */
PN_AVX2_INLINE __m256i unp_table_of(const int type)
{
    return type == PN_DTYPE_IQ4_NL  ? unp_table(pn_tab_iq4nl(), 0)
           : type == PN_DTYPE_MXFP4 ? unp_table(pn_tab_fp4(), 12)
                                    : _mm256_setzero_si256();
}

/* 8 rows of 8 dwords, row r at p[r] + at, transposed: out[i] holds dword i of rows 0..7. */
PN_AVX2_INLINE void unp_transpose8(const uint8_t *const *p, size_t at, __m256i out[8])
{
    __m256i a = unp_load32(p[0] + at), b = unp_load32(p[1] + at), c = unp_load32(p[2] + at);
    __m256i d = unp_load32(p[3] + at), e = unp_load32(p[4] + at), f = unp_load32(p[5] + at);
    __m256i g = unp_load32(p[6] + at), h = unp_load32(p[7] + at);
    __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b);
    __m256i cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
    __m256i ef0 = _mm256_unpacklo_epi32(e, f), ef1 = _mm256_unpackhi_epi32(e, f);
    __m256i gh0 = _mm256_unpacklo_epi32(g, h), gh1 = _mm256_unpackhi_epi32(g, h);
    __m256i l0 = _mm256_unpacklo_epi64(ab0, cd0), l1 = _mm256_unpackhi_epi64(ab0, cd0);
    __m256i l2 = _mm256_unpacklo_epi64(ab1, cd1), l3 = _mm256_unpackhi_epi64(ab1, cd1);
    __m256i h0 = _mm256_unpacklo_epi64(ef0, gh0), h1 = _mm256_unpackhi_epi64(ef0, gh0);
    __m256i h2 = _mm256_unpacklo_epi64(ef1, gh1), h3 = _mm256_unpackhi_epi64(ef1, gh1);
    out[0] = _mm256_permute2x128_si256(l0, h0, 0x20);
    out[1] = _mm256_permute2x128_si256(l1, h1, 0x20);
    out[2] = _mm256_permute2x128_si256(l2, h2, 0x20);
    out[3] = _mm256_permute2x128_si256(l3, h3, 0x20);
    out[4] = _mm256_permute2x128_si256(l0, h0, 0x31);
    out[5] = _mm256_permute2x128_si256(l1, h1, 0x31);
    out[6] = _mm256_permute2x128_si256(l2, h2, 0x31);
    out[7] = _mm256_permute2x128_si256(l3, h3, 0x31);
}

#endif /* PN_CPU_X64 */

#endif /* PN_CPU_AVX2_CODES_H */
