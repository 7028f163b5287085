/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_avx2_panel.c - blocks of 8 rows straight to a panel, one function a format.
 *
 * A panel wants dword i of 8 rows side by side.  Where codes are nibbles or bit planes they are transposed as the
 * file packs them and spread afterwards: half or a quarter of the shuffles, and nothing goes through memory in
 * between.  Formats that look their codes up in grids are unpacked row by row (pn_cpu_avx2_unpack.c) and transposed
 * from there.
 *
 * Every function reads exactly the bytes of its blocks: the last one of a mapped file may end at a page.
 */
#include "cpu/pn_cpu_avx2_codes.h"

#if PN_CPU_X64

/* ------------------------------------------------------------------------------------------
 * Transposing
 * ------------------------------------------------------------------------------------------ */

/* Rows r and r + 4 in the halves of a vector. */
PN_AVX2_INLINE __m256i pan_rows2(const uint8_t *const *p, size_t r, size_t at)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(unp_load16(p[r] + at)), unp_load16(p[r + 4] + at), 1);
}

/* The 16 bytes at p[r] + at of 8 rows: out[i] holds dword i of rows 0..7. */
PN_AVX2_INLINE void pan_dwords4(const uint8_t *const *p, size_t at, __m256i out[4])
{
    __m256i a = pan_rows2(p, 0, at), b = pan_rows2(p, 1, at), c = pan_rows2(p, 2, at), d = pan_rows2(p, 3, at);
    __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b);
    __m256i cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
    out[0] = _mm256_unpacklo_epi64(ab0, cd0);
    out[1] = _mm256_unpackhi_epi64(ab0, cd0);
    out[2] = _mm256_unpacklo_epi64(ab1, cd1);
    out[3] = _mm256_unpackhi_epi64(ab1, cd1);
}

/* Vector i of a panel; `wide`: of half a wide one. */
PN_AVX2_INLINE void pan_put(uint8_t *o, const bool wide, size_t i, __m256i v) { unp_store32(o + i * (wide ? 64 : 32), v); }
PN_AVX2_INLINE void pan_putf(uint8_t *o, const bool wide, size_t i, __m256 v) { pan_put(o, wide, i, _mm256_castps_si256(v)); }

/* Bits `shift` and up of every byte, as far as the mask lets through. */
PN_AVX2_INLINE __m256i pan_bits(__m256i v, const int shift, const int mask)
{
    return unp_and(shift > 0 ? _mm256_srli_epi16(v, shift) : shift < 0 ? _mm256_slli_epi16(v, -shift) : v, mask);
}

/* ------------------------------------------------------------------------------------------
 * Blocks of 32
 * ------------------------------------------------------------------------------------------ */

/* Bits 4 i .. 4 i + 3 of 8 words as 16 or 0 in their four bytes. */
PN_AVX2_INLINE __m256i pan_fifth(__m256i h, const int i)
{
    const __m256i bit = _mm256_set1_epi32(i % 2 ? (int)0x80402010u : 0x08040201);
    const __m256i spread = _mm256_add_epi8(_mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c,
                                                             0, 0x04040404, 0x08080808, 0x0c0c0c0c),
                                           _mm256_set1_epi8((char)(i / 2)));
    __m256i v = _mm256_and_si256(_mm256_shuffle_epi8(h, spread), bit);
    return unp_and(_mm256_cmpeq_epi8(v, bit), 16);
}

/* b: the block's number in the chunk. */
PN_AVX2_INLINE void pan_codes32(const int type, const uint8_t *const *p, size_t at, uint8_t *o, const bool wide, size_t b)
{
    const __m256i table = wide && type == PN_DTYPE_IQ4_NL ? unp_table(pn_tab_iq4nl(), 128) : unp_table_of(type);
    const __m256i flip = _mm256_set1_epi8(wide ? -128 : 0);
    const bool fifth = type == PN_DTYPE_Q5_0 || type == PN_DTYPE_Q5_1;
    __m256i v[4], h = _mm256_setzero_si256();
    if (type == PN_DTYPE_Q8_0) {
        for (size_t half = 0; half < 2; half++) {
            pan_dwords4(p, at + 2 + 16 * half, v);
            PN_UNROLL
            for (size_t i = 0; i < 4; i++)
                pan_put(o, wide, 8 * b + 4 * half + i, _mm256_xor_si256(v[i], flip));
        }
        return;
    }
    if (fifth)
        h = unp_words8(p, at + (type == PN_DTYPE_Q5_0 ? 2 : 4));
    pan_dwords4(p, at + (type == PN_DTYPE_MXFP4 ? 1 : type == PN_DTYPE_Q4_1 ? 4 : type == PN_DTYPE_Q5_0 ? 6 :
                         type == PN_DTYPE_Q5_1 ? 8 : 2), v);
    PN_UNROLL
    for (int i = 0; i < 4; i++) {
        __m256i low = unp_and(v[i], 15), high = unp_and(_mm256_srli_epi16(v[i], 4), 15);
        if (type == PN_DTYPE_IQ4_NL || type == PN_DTYPE_MXFP4) {
            low = _mm256_shuffle_epi8(table, low);
            high = _mm256_shuffle_epi8(table, high);
        }
        if (fifth) {
            low = unp_or(low, pan_fifth(h, i));
            high = unp_or(high, pan_fifth(h, i + 4));
        }
        pan_put(o, wide, 8 * b + (size_t)i, low);
        pan_put(o, wide, 8 * b + 4 + (size_t)i, high);
    }
}

PN_AVX2_INLINE void pan_rows32(const int type, const size_t bytes, const uint8_t *const *p, size_t n, uint8_t *o,
                               const bool wide)
{
    for (size_t b = 0, at = 0; b < n / 32; b++, at += bytes) {
        pan_codes32(type, p, at, o, wide, b);
        if (type == PN_DTYPE_Q4_1 || type == PN_DTYPE_Q5_1) {
            __m256 d, m;
            unp_halves_pair8(p, at, &d, &m);
            pan_putf(o, wide, PN_X86_PANEL_D32 + b, d);
            pan_putf(o, wide, PN_X86_PANEL_M32 + b, m);
        } else {
            pan_putf(o, wide, PN_X86_PANEL_D32 + b, type == PN_DTYPE_MXFP4 ? unp_e8m0_8(p, at) : unp_halves8(p, at));
        }
    }
}

/* Pointers of the function's own: stores through uint8_t might change the caller's. */
#define PAN_POINTERS {r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7]}

#define PAN_FUNCTION(name, call) \
    PN_AVX2 static void name(const uint8_t *const *r, size_t n, uint8_t *o) \
    { \
        const uint8_t *const p[8] = PAN_POINTERS; \
        (void)n; \
        call; \
    }
#define PAN_ROWS32(name, type, bytes) \
    PAN_FUNCTION(name, pan_rows32(type, bytes, p, n, o, false)) \
    PAN_FUNCTION(name##_wide, pan_rows32(type, bytes, p, n, o, true))
PAN_ROWS32(pan_q4_0, PN_DTYPE_Q4_0, 18)
PAN_ROWS32(pan_q4_1, PN_DTYPE_Q4_1, 20)
PAN_ROWS32(pan_q5_0, PN_DTYPE_Q5_0, 22)
PAN_ROWS32(pan_q5_1, PN_DTYPE_Q5_1, 24)
PAN_ROWS32(pan_q8_0, PN_DTYPE_Q8_0, 34)
PAN_ROWS32(pan_iq4_nl, PN_DTYPE_IQ4_NL, 18)
PAN_ROWS32(pan_mxfp4, PN_DTYPE_MXFP4, 17)
#undef PAN_ROWS32

/* ------------------------------------------------------------------------------------------
 * Blocks of 256: codes
 * ------------------------------------------------------------------------------------------ */

/* Four 2-bit planes in each of two times 32 bytes at `at`; bit_at: 32 bytes of third bits, a bit a plane, or 0. */
PN_AVX2_INLINE void pan_planes2(const uint8_t *const *p, size_t at, const bool third, const size_t bit_at, uint8_t *o,
                                const bool wide)
{
    PN_UNROLL
    for (size_t half = 0; half < 2; half++)     /* 16 of the 32 bytes */
        for (size_t top = 0; top < 2; top++) {
            __m256i v[4], h[4];
            pan_dwords4(p, at + 32 * top + 16 * half, v);
            if (third)
                pan_dwords4(p, bit_at + 16 * half, h);
            PN_UNROLL
            for (size_t i = 0; i < 4; i++) {
                __m256i c0 = pan_bits(v[i], 0, 3), c1 = pan_bits(v[i], 2, 3);
                __m256i c2 = pan_bits(v[i], 4, 3), c3 = pan_bits(v[i], 6, 3);
                if (third) {
                    __m256i g = top ? _mm256_srli_epi16(h[i], 4) : h[i];
                    c0 = unp_or(c0, pan_bits(g, -2, 4));
                    c1 = unp_or(c1, pan_bits(g, -1, 4));
                    c2 = unp_or(c2, pan_bits(g, 0, 4));
                    c3 = unp_or(c3, pan_bits(g, 1, 4));
                }
                pan_put(o, wide, 32 * top + 4 * half + i, c0);
                pan_put(o, wide, 32 * top + 8 + 4 * half + i, c1);
                pan_put(o, wide, 32 * top + 16 + 4 * half + i, c2);
                pan_put(o, wide, 32 * top + 24 + 4 * half + i, c3);
            }
        }
}

/* Nibbles of 32 bytes: low ones, then high ones; four times.  fifth: a bit each in the 32 bytes at 16. */
PN_AVX2_INLINE void pan_planes4(const uint8_t *const *p, size_t at, const bool fifth, uint8_t *o, const bool wide)
{
    for (size_t half = 0; half < 2; half++) {
        __m256i h[4];
        if (fifth)
            pan_dwords4(p, 16 + 16 * half, h);
        for (size_t g = 0; g < 4; g++) {
            __m256i v[4];
            pan_dwords4(p, at + 32 * g + 16 * half, v);
            PN_UNROLL
            for (size_t i = 0; i < 4; i++) {
                __m256i low = pan_bits(v[i], 0, 15), high = pan_bits(v[i], 4, 15);
                if (fifth) {
                    low = unp_or(low, pan_bits(h[i], -4, 16));
                    high = unp_or(high, pan_bits(h[i], -3, 16));
                    h[i] = _mm256_srli_epi16(h[i], 2);
                }
                pan_put(o, wide, 16 * g + 4 * half + i, low);
                pan_put(o, wide, 16 * g + 8 + 4 * half + i, high);
            }
        }
    }
}

PN_AVX2_INLINE void pan_codes_q6(const uint8_t *const *p, uint8_t *o, const bool wide)
{
    for (size_t top = 0; top < 2; top++)
        for (size_t half = 0; half < 2; half++) {
            __m256i a[4], b[4], h[4];
            pan_dwords4(p, 64 * top + 16 * half, a);
            pan_dwords4(p, 64 * top + 32 + 16 * half, b);
            pan_dwords4(p, 128 + 32 * top + 16 * half, h);
            PN_UNROLL
            for (size_t i = 0; i < 4; i++) {
                pan_put(o, wide, 32 * top + 4 * half + i, unp_or(pan_bits(a[i], 0, 15), pan_bits(h[i], -4, 48)));
                pan_put(o, wide, 32 * top + 8 + 4 * half + i, unp_or(pan_bits(b[i], 0, 15), pan_bits(h[i], -2, 48)));
                pan_put(o, wide, 32 * top + 16 + 4 * half + i, unp_or(pan_bits(a[i], 4, 15), pan_bits(h[i], 0, 48)));
                pan_put(o, wide, 32 * top + 24 + 4 * half + i, unp_or(pan_bits(b[i], 4, 15), pan_bits(h[i], 2, 48)));
            }
        }
}

PN_AVX2_INLINE void pan_codes_iq4(const uint8_t *const *p, uint8_t *o, const bool wide)
{
    const __m256i table = unp_table(pn_tab_iq4nl(), wide ? 128 : 0);
    for (size_t b = 0; b < 8; b++) {
        __m256i v[4];
        pan_dwords4(p, 8 + 16 * b, v);
        PN_UNROLL
        for (size_t i = 0; i < 4; i++) {
            pan_put(o, wide, 8 * b + i, _mm256_shuffle_epi8(table, pan_bits(v[i], 0, 15)));
            pan_put(o, wide, 8 * b + i + 4, _mm256_shuffle_epi8(table, pan_bits(v[i], 4, 15)));
        }
    }
}

/* ------------------------------------------------------------------------------------------
 * Blocks of 256: scales
 * ------------------------------------------------------------------------------------------ */

/* Byte j of every dword to the top of both halves: a shift to the right makes an int16 of it, doubled. */
PN_AVX2_INLINE __m256i pan_byte(__m256i v, const int j)
{
    const __m256i to = _mm256_setr_epi32((int)0x00800080u, (int)0x04800480u, (int)0x08800880u, (int)0x0c800c80u,
                                         (int)0x00800080u, (int)0x04800480u, (int)0x08800880u, (int)0x0c800c80u);
    return _mm256_shuffle_epi8(v, _mm256_add_epi8(to, _mm256_set1_epi16((short)(j << 8))));
}

/* Bytes j and j + 1 of every dword to the tops of its halves. */
PN_AVX2_INLINE __m256i pan_bytes2(__m256i v, const int j)
{
    const __m256i to = _mm256_setr_epi32((int)0x01800080u, (int)0x05800480u, (int)0x09800880u, (int)0x0d800c80u,
                                         (int)0x01800080u, (int)0x05800480u, (int)0x09800880u, (int)0x0d800c80u);
    return _mm256_shuffle_epi8(v, _mm256_add_epi8(to, _mm256_set1_epi16((short)(j << 8))));
}

/* Sixteen int8 scales a row (dwords of 8 rows in v); `times`: 1 << times is the codes' offset, cr the product. */
PN_AVX2_INLINE void pan_scales16(const __m256i v[4], const int times, uint8_t *o, const bool wide)
{
    PN_UNROLL
    for (int i = 0; i < 4; i++) {
        pan_put(o, wide, PN_X86_PANEL_SC + 4 * i, _mm256_srai_epi16(pan_byte(v[i], 0), 8));
        pan_put(o, wide, PN_X86_PANEL_SC + 4 * i + 1, _mm256_srai_epi16(pan_byte(v[i], 1), 8));
        pan_put(o, wide, PN_X86_PANEL_SC + 4 * i + 2, _mm256_srai_epi16(pan_byte(v[i], 2), 8));
        pan_put(o, wide, PN_X86_PANEL_SC + 4 * i + 3, _mm256_srai_epi16(pan_byte(v[i], 3), 8));
        pan_put(o, wide, PN_X86_PANEL_CR + 2 * i, _mm256_srai_epi16(pan_bytes2(v[i], 0), 8 - times));
        pan_put(o, wide, PN_X86_PANEL_CR + 2 * i + 1, _mm256_srai_epi16(pan_bytes2(v[i], 2), 8 - times));
    }
}

/* Eight scales (v[0], v[1]) and eight mins (v[2], v[3]) a row, bytes, each for 32 elements. */
PN_AVX2_INLINE void pan_scales8(const __m256i v[4], uint8_t *o, const bool wide)
{
    PN_UNROLL
    for (int g = 0; g < 8; g++) {
        __m256i sc = _mm256_srli_epi16(pan_byte(v[g / 4], g % 4), 8);
        pan_put(o, wide, PN_X86_PANEL_SC + 2 * g, sc);
        pan_put(o, wide, PN_X86_PANEL_SC + 2 * g + 1, sc);
        pan_put(o, wide, PN_X86_PANEL_CR + g, _mm256_srli_epi16(pan_byte(v[2 + g / 4], g % 4), 8));
    }
}

PN_AVX2_INLINE void pan_scales(const int type, const uint8_t *const *p, uint8_t *o, const bool wide)
{
    __m256i v[4];
    if (type == PN_DTYPE_Q6_K) {
        pan_dwords4(p, 192, v);
        pan_scales16(v, 5, o, wide);
    } else if (type == PN_DTYPE_Q2_K) {
        pan_dwords4(p, 0, v);
        PN_UNROLL
        for (int i = 0; i < 4; i++) {
            __m256i sc = unp_and(v[i], 15), mn = unp_and(_mm256_srli_epi16(v[i], 4), 15);
            pan_put(o, wide, PN_X86_PANEL_SC + 4 * i, _mm256_srli_epi16(pan_byte(sc, 0), 8));
            pan_put(o, wide, PN_X86_PANEL_SC + 4 * i + 1, _mm256_srli_epi16(pan_byte(sc, 1), 8));
            pan_put(o, wide, PN_X86_PANEL_SC + 4 * i + 2, _mm256_srli_epi16(pan_byte(sc, 2), 8));
            pan_put(o, wide, PN_X86_PANEL_SC + 4 * i + 3, _mm256_srli_epi16(pan_byte(sc, 3), 8));
            pan_put(o, wide, PN_X86_PANEL_CR + 2 * i, _mm256_srli_epi16(pan_bytes2(mn, 0), 8));
            pan_put(o, wide, PN_X86_PANEL_CR + 2 * i + 1, _mm256_srli_epi16(pan_bytes2(mn, 2), 8));
        }
    } else if (type == PN_DTYPE_TQ2_0) {
        PN_UNROLL
        for (int i = 0; i < 8; i++) {
            pan_put(o, wide, PN_X86_PANEL_SC + 2 * i, _mm256_set1_epi16(1));
            pan_put(o, wide, PN_X86_PANEL_SC + 2 * i + 1, _mm256_set1_epi16(1));
            pan_put(o, wide, PN_X86_PANEL_CR + i, _mm256_set1_epi16(1));
        }
    } else {
        /* Their bits lie about: a row at a time to bytes, which are transposed then. */
        _Alignas(16) uint8_t bytes[8][16];
        const uint8_t *row[8];
        for (size_t r = 0; r < 8; r++) {
            __m128i s = type == PN_DTYPE_Q3_K    ? unp_scales_q3(p[r] + 96)
                        : type == PN_DTYPE_IQ4_XS ? unp_scales_iq4(p[r])
                                                  : unp_scales_k4(p[r]);
            _mm_store_si128((__m128i *)(void *)bytes[r], s);
            row[r] = bytes[r];
        }
        pan_dwords4(row, 0, v);
        if (type == PN_DTYPE_Q3_K)
            pan_scales16(v, 2, o, wide);
        else if (type == PN_DTYPE_IQ4_XS)
            pan_scales16(v, 7, o, wide);
        else
            pan_scales8(v, o, wide);
    }
}

/* d_at, m_at: offsets of the f16 factors; m_at 0: no mins. */
PN_AVX2_INLINE void pan_rows_k(const int type, const size_t d_at, const size_t m_at, const uint8_t *const *p, uint8_t *o,
                               const bool wide)
{
    if (type == PN_DTYPE_Q2_K)
        pan_planes2(p, 16, false, 0, o, wide);
    else if (type == PN_DTYPE_Q3_K)
        pan_planes2(p, 32, true, 0, o, wide);
    else if (type == PN_DTYPE_TQ2_0)
        pan_planes2(p, 0, false, 0, o, wide);
    else if (type == PN_DTYPE_Q4_K)
        pan_planes4(p, 16, false, o, wide);
    else if (type == PN_DTYPE_Q5_K)
        pan_planes4(p, 48, true, o, wide);
    else if (type == PN_DTYPE_Q6_K)
        pan_codes_q6(p, o, wide);
    else
        pan_codes_iq4(p, o, wide);
    pan_scales(type, p, o, wide);
    pan_putf(o, wide, PN_X86_PANEL_D, unp_halves8(p, d_at));
    if (m_at)
        pan_putf(o, wide, PN_X86_PANEL_M, _mm256_xor_ps(unp_halves8(p, m_at), _mm256_set1_ps(-0.0f)));
}

#define PAN_ROWS_K(name, type, d_at, m_at) \
    PAN_FUNCTION(name, pan_rows_k(type, d_at, m_at, p, o, false)) \
    PAN_FUNCTION(name##_wide, pan_rows_k(type, d_at, m_at, p, o, true))
PAN_ROWS_K(pan_q2_k, PN_DTYPE_Q2_K, 80, 82)
PAN_ROWS_K(pan_q3_k, PN_DTYPE_Q3_K, 108, 0)
PAN_ROWS_K(pan_q4_k, PN_DTYPE_Q4_K, 0, 2)
PAN_ROWS_K(pan_q5_k, PN_DTYPE_Q5_K, 0, 2)
PAN_ROWS_K(pan_q6_k, PN_DTYPE_Q6_K, 208, 0)
PAN_ROWS_K(pan_iq4_xs, PN_DTYPE_IQ4_XS, 0, 0)
PAN_ROWS_K(pan_tq2_0, PN_DTYPE_TQ2_0, 64, 0)
#undef PAN_ROWS_K
#undef PAN_FUNCTION
#undef PAN_POINTERS

#define PAN_CASE(type, name) case type: return wide ? name##_wide : name
PN_INTERNAL pn_x86_panel_fn pn_x86_panel_of(uint32_t dtype, bool wide)
{
    switch (dtype) {
    PAN_CASE(PN_DTYPE_Q4_0, pan_q4_0);
    PAN_CASE(PN_DTYPE_Q4_1, pan_q4_1);
    PAN_CASE(PN_DTYPE_Q5_0, pan_q5_0);
    PAN_CASE(PN_DTYPE_Q5_1, pan_q5_1);
    PAN_CASE(PN_DTYPE_Q8_0, pan_q8_0);
    PAN_CASE(PN_DTYPE_IQ4_NL, pan_iq4_nl);
    PAN_CASE(PN_DTYPE_MXFP4, pan_mxfp4);
    PAN_CASE(PN_DTYPE_Q2_K, pan_q2_k);
    PAN_CASE(PN_DTYPE_Q3_K, pan_q3_k);
    PAN_CASE(PN_DTYPE_Q4_K, pan_q4_k);
    PAN_CASE(PN_DTYPE_Q5_K, pan_q5_k);
    PAN_CASE(PN_DTYPE_Q6_K, pan_q6_k);
    PAN_CASE(PN_DTYPE_IQ4_XS, pan_iq4_xs);
    PAN_CASE(PN_DTYPE_TQ2_0, pan_tq2_0);
    default: return NULL;
    }
}
#undef PAN_CASE

#endif /* PN_CPU_X64 */

typedef int pn_cpu_avx2_panel_not_empty;        /* ISO C wants a declaration in every file */
