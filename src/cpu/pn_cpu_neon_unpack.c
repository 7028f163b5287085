/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_neon_unpack.c - weights of 8 rows to signed byte codes and scales, one function a format.
 *
 * These are the only AArch64 functions that know block layouts; dot products see codes.  Each reads
 * exactly the bytes of its blocks (the last block of a mapped file may end at a page) and writes an
 * oct: the codes of pn_cpu_unpack in file order.
 */
#include "cpu/pn_cpu_arm.h"

#include "num/pn_half.h"
#include "num/pn_tab_iq.h"

#if PN_CPU_ARM64

PN_NEON_INLINE void nunp_store(int8_t *p, uint8x16_t v) { vst1q_s8(p, vreinterpretq_s8_u8(v)); }

/* v - off, both as bytes: codes with their offset taken away. */
PN_NEON_INLINE uint8x16_t nunp_less(uint8x16_t v, int off) { return vsubq_u8(v, vdupq_n_u8((uint8_t)off)); }

PN_NEON_INLINE uint8x16_t nunp_low(uint8x16_t v) { return vandq_u8(v, vdupq_n_u8(15)); }

/* 16 bits at p to 16 bytes of 0 or 255; bit j belongs to byte j. */
PN_NEON_INLINE uint8x16_t nunp_bits(const uint8_t *p)
{
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    return vtstq_u8(vcombine_u8(vld1_dup_u8(p), vld1_dup_u8(p + 1)), bit);
}

PN_NEON_INLINE uint8x16_t nunp_table(const int8_t *table16) { return vreinterpretq_u8_s8(vld1q_s8(table16)); }

/* 8 halves to floats, times a power of two (or -1). */
PN_NEON_INLINE void nunp_halves(const uint16_t *h, float *d, float factor)
{
    float32x4_t a = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h)));
    float32x4_t b = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h + 4)));
    vst1q_f32(d, factor == 1.0f ? a : vmulq_n_f32(a, factor));
    vst1q_f32(d + 4, factor == 1.0f ? b : vmulq_n_f32(b, factor));
}

/* ------------------------------------------------------------------------------------------
 * Blocks of 32
 * ------------------------------------------------------------------------------------------ */

/* Nibbles with a fifth bit each: the value less `off` (0, or 16 where the bit is a sign). */
PN_NEON_INLINE uint8x16_t nunp_fifth(uint8x16_t nibbles, uint8x16_t bits, const int off)
{
    const uint8x16_t v16 = vdupq_n_u8(16);
    return off ? vsubq_u8(nibbles, vbicq_u8(v16, bits)) : vorrq_u8(nibbles, vandq_u8(bits, v16));
}

/* Codes of the block at s. */
PN_NEON_INLINE void nunp_codes32(const int type, const uint8_t *s, uint8x16_t table, int8_t *q)
{
    const size_t at = type == PN_DTYPE_MXFP4 ? 1
                      : type == PN_DTYPE_Q4_1 ? 4
                      : type == PN_DTYPE_Q5_0 ? 6
                      : type == PN_DTYPE_Q5_1 ? 8 : 2;
    uint8x16_t v = vld1q_u8(s + at), a = nunp_low(v), b = vshrq_n_u8(v, 4);
    switch (type) {
    case PN_DTYPE_Q8_0:
        a = v;
        b = vld1q_u8(s + 18);
        break;
    case PN_DTYPE_Q4_0:
        a = nunp_less(a, 8);
        b = nunp_less(b, 8);
        break;
    case PN_DTYPE_Q5_0:
        a = nunp_fifth(a, nunp_bits(s + 2), 16);
        b = nunp_fifth(b, nunp_bits(s + 4), 16);
        break;
    case PN_DTYPE_Q5_1:
        a = nunp_fifth(a, nunp_bits(s + 4), 0);
        b = nunp_fifth(b, nunp_bits(s + 6), 0);
        break;
    case PN_DTYPE_Q4_1:
        break;
    default: /* IQ4_NL MXFP4 */
        a = vqtbl1q_u8(table, a);
        b = vqtbl1q_u8(table, b);
    }
    nunp_store(q, a);
    nunp_store(q + 16, b);
}

PN_NEON_INLINE void nunp_rows32(const int type, const size_t bytes, const uint8_t *const *p, size_t n,
                                pn_arm_oct *o)
{
    const bool has_min = type == PN_DTYPE_Q4_1 || type == PN_DTYPE_Q5_1;
    uint16_t d[8][8], m[8][8];
    uint8x16_t table = vdupq_n_u8(0);
    if (type == PN_DTYPE_IQ4_NL)
        table = nunp_table(pn_tab_iq4nl());
    if (type == PN_DTYPE_MXFP4)
        table = nunp_table(pn_tab_fp4());
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t b = 0; b < n / 32; b++, s += bytes) {
            nunp_codes32(type, s, table, o->q[r] + 32 * b);
            if (type == PN_DTYPE_MXFP4)
                o->d[b][r] = pn_f32_from_e8m0_half(s[0]);
            else
                memcpy(&d[b][r], s, 2);
            if (has_min)
                memcpy(&m[b][r], s + 2, 2);
        }
    }
    for (size_t b = 0; b < n / 32; b++) {
        if (type != PN_DTYPE_MXFP4)
            nunp_halves(d[b], o->d[b], 1.0f);
        if (has_min)
            nunp_halves(m[b], o->m[b], 1.0f);
    }
}

#define NUNP_ROWS32(name, type, bytes) \
    static void name(const uint8_t *const *p, size_t n, pn_arm_oct *o) { nunp_rows32(type, bytes, p, n, o); }
NUNP_ROWS32(nunp_q4_0, PN_DTYPE_Q4_0, 18)
NUNP_ROWS32(nunp_q4_1, PN_DTYPE_Q4_1, 20)
NUNP_ROWS32(nunp_q5_0, PN_DTYPE_Q5_0, 22)
NUNP_ROWS32(nunp_q5_1, PN_DTYPE_Q5_1, 24)
NUNP_ROWS32(nunp_q8_0, PN_DTYPE_Q8_0, 34)
NUNP_ROWS32(nunp_iq4_nl, PN_DTYPE_IQ4_NL, 18)
NUNP_ROWS32(nunp_mxfp4, PN_DTYPE_MXFP4, 17)
#undef NUNP_ROWS32

static void nunp_q1_0(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    const uint8x16_t two = vdupq_n_u8(2);
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t e = 0; e < n; e += 128, s += 18) {
            float d = pn_f32_from_f16(pn_le16(s));
            for (size_t i = 0; i < 8; i++)
                nunp_store(o->q[r] + e + 16 * i, nunp_less(vandq_u8(nunp_bits(s + 2 + 2 * i), two), 1));
            for (size_t i = 0; i < 4; i++)
                o->d[e / 32 + i][r] = d;
        }
    }
}

static void nunp_q2_0(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    const int8x16_t shift = vreinterpretq_s8_u32(vdupq_n_u32(0xfafcfe00u));     /* 0 -2 -4 -6 */
    const uint8x16_t three = vdupq_n_u8(3);
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t e = 0; e < n; e += 64, s += 18) {
            uint8x16_t v = vld1q_u8(s + 2), a = vzip1q_u8(v, v), b = vzip2q_u8(v, v);
            uint8x16_t c[4] = {vzip1q_u8(a, a), vzip2q_u8(a, a), vzip1q_u8(b, b), vzip2q_u8(b, b)};
            for (size_t i = 0; i < 4; i++)
                nunp_store(o->q[r] + e + 16 * i, nunp_less(vandq_u8(vshlq_u8(c[i], shift), three), 1));
            o->d[e / 32][r] = o->d[e / 32 + 1][r] = pn_f32_from_f16(pn_le16(s));
        }
    }
}

static void nunp_nvfp4(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    const uint8x16_t table = nunp_table(pn_tab_fp4());
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t e = 0; e < n; e += 64, s += 36) {
            for (size_t i = 0; i < 4; i++) {
                uint8x8_t v = vld1_u8(s + 4 + 8 * i);
                uint8x16_t c = vcombine_u8(vand_u8(v, vdup_n_u8(15)), vshr_n_u8(v, 4));
                nunp_store(o->q[r] + e + 16 * i, vqtbl1q_u8(table, c));
                o->d[e / 16 + i][r] = pn_f32_from_ue4m3_half(s[i]);
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------
 * K-quants
 * ------------------------------------------------------------------------------------------ */

/* 16 signed bytes to int16. */
PN_NEON_INLINE void nunp_scales(int16_t *sc, int8x16_t v)
{
    vst1q_s16(sc, vmovl_s8(vget_low_s8(v)));
    vst1q_s16(sc + 8, vmovl_high_s8(v));
}

/* Four planes of 2 bits of the 16 bytes v, each less off, 32 elements apart. */
PN_NEON_INLINE void nunp_planes(uint8x16_t v, int8_t *q, int off)
{
    const uint8x16_t three = vdupq_n_u8(3);
    nunp_store(q, nunp_less(vandq_u8(v, three), off));
    nunp_store(q + 32, nunp_less(vandq_u8(vshrq_n_u8(v, 2), three), off));
    nunp_store(q + 64, nunp_less(vandq_u8(vshrq_n_u8(v, 4), three), off));
    nunp_store(q + 96, nunp_less(vshrq_n_u8(v, 6), off));
}

static void nunp_q2_k(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    uint16_t d[8], m[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        int8_t *q = o->q[r];
        uint8x16_t sc = vld1q_u8(s);
        for (size_t i = 0; i < 4; i++)
            nunp_planes(vld1q_u8(s + 16 + 16 * i), q + 128 * (i / 2) + 16 * (i % 2), 0);
        nunp_scales(o->sc[r], vreinterpretq_s8_u8(nunp_low(sc)));
        nunp_scales(o->mn[r], vreinterpretq_s8_u8(vshrq_n_u8(sc, 4)));
        memcpy(&d[r], s + 80, 2);
        memcpy(&m[r], s + 82, 2);
    }
    nunp_halves(d, o->d[0], 1.0f);
    nunp_halves(m, o->m[0], -1.0f);
}

PN_NEON_INLINE int8x16_t nunp_scales_q3(const uint8_t *b)
{
    const uint32_t nib = 0x0f0f0f0f, two = 0x03030303;
    uint32_t l0 = pn_le32(b), l1 = pn_le32(b + 4), h = pn_le32(b + 8);
    uint32_t s0 = (l0 & nib) | (h & two) << 4, s1 = (l1 & nib) | (h >> 2 & two) << 4;
    uint32_t s2 = (l0 >> 4 & nib) | (h >> 4 & two) << 4, s3 = (l1 >> 4 & nib) | (h >> 6 & two) << 4;
    uint8x16_t v = vcombine_u8(vcreate_u8(s0 | (uint64_t)s1 << 32), vcreate_u8(s2 | (uint64_t)s3 << 32));
    return vreinterpretq_s8_u8(nunp_less(v, 32));
}

/* Plane j of 2 bits with a third one from h: value less 4. */
PN_NEON_INLINE uint8x16_t nunp_third(uint8x16_t two, uint8x16_t h, int bit)
{
    return vsubq_u8(two, vbicq_u8(vdupq_n_u8(4), vtstq_u8(h, vdupq_n_u8((uint8_t)(1 << bit)))));
}

static void nunp_q3_k(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    const uint8x16_t three = vdupq_n_u8(3);
    uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t i = 0; i < 4; i++) {
            int8_t *q = o->q[r] + 128 * (i / 2) + 16 * (i % 2);
            uint8x16_t v = vld1q_u8(s + 32 + 16 * i), h = vld1q_u8(s + 16 * (i % 2));
            h = i < 2 ? h : vshrq_n_u8(h, 4);
            nunp_store(q, nunp_third(vandq_u8(v, three), h, 0));
            nunp_store(q + 32, nunp_third(vandq_u8(vshrq_n_u8(v, 2), three), h, 1));
            nunp_store(q + 64, nunp_third(vandq_u8(vshrq_n_u8(v, 4), three), h, 2));
            nunp_store(q + 96, nunp_third(vshrq_n_u8(v, 6), h, 3));
        }
        nunp_scales(o->sc[r], nunp_scales_q3(s + 96));
        memcpy(&d[r], s + 108, 2);
    }
    nunp_halves(d, o->d[0], 1.0f);
}

/* 6-bit scales and mins of 8 groups of 32, each doubled. */
PN_NEON_INLINE void nunp_scales_k4(const uint8_t *b, int16_t *sc, int16_t *mn)
{
    const uint32_t six = 0x3f3f3f3f, nib = 0x0f0f0f0f, two = 0x03030303;
    uint32_t x = pn_le32(b), y = pn_le32(b + 4), z = pn_le32(b + 8);
    uint64_t s = (x & six) | (uint64_t)((z & nib) | (x >> 6 & two) << 4) << 32;
    uint64_t m = (y & six) | (uint64_t)((z >> 4 & nib) | (y >> 6 & two) << 4) << 32;
    int8x8_t sv = vcreate_s8(s), mv = vcreate_s8(m);
    nunp_scales(sc, vcombine_s8(vzip1_s8(sv, sv), vzip2_s8(sv, sv)));
    nunp_scales(mn, vcombine_s8(vzip1_s8(mv, mv), vzip2_s8(mv, mv)));
}

static void nunp_q4_k(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    uint16_t d[8], m[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t g = 0; g < 4; g++) {
            uint8x16_t a = vld1q_u8(s + 16 + 32 * g), b = vld1q_u8(s + 32 + 32 * g);
            int8_t *q = o->q[r] + 64 * g;
            nunp_store(q, nunp_low(a));
            nunp_store(q + 16, nunp_low(b));
            nunp_store(q + 32, vshrq_n_u8(a, 4));
            nunp_store(q + 48, vshrq_n_u8(b, 4));
        }
        nunp_scales_k4(s + 4, o->sc[r], o->mn[r]);
        memcpy(&d[r], s, 2);
        memcpy(&m[r], s + 2, 2);
    }
    nunp_halves(d, o->d[0], 1.0f);
    nunp_halves(m, o->m[0], -1.0f);
}

/* 64 codes: nibbles at s, fifth bits are bits 2g and 2g+1 of h. */
PN_NEON_INLINE void nunp_q5_group(const uint8_t *s, uint8x16_t h0, uint8x16_t h1, int g, int8_t *q)
{
    const uint8x16_t b0 = vdupq_n_u8((uint8_t)(1 << (2 * g))), b1 = vdupq_n_u8((uint8_t)(2 << (2 * g)));
    uint8x16_t a = vld1q_u8(s), b = vld1q_u8(s + 16);
    nunp_store(q, nunp_fifth(nunp_low(a), vtstq_u8(h0, b0), 0));
    nunp_store(q + 16, nunp_fifth(nunp_low(b), vtstq_u8(h1, b0), 0));
    nunp_store(q + 32, nunp_fifth(vshrq_n_u8(a, 4), vtstq_u8(h0, b1), 0));
    nunp_store(q + 48, nunp_fifth(vshrq_n_u8(b, 4), vtstq_u8(h1, b1), 0));
}

static void nunp_q5_k(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    uint16_t d[8], m[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        uint8x16_t h0 = vld1q_u8(s + 16), h1 = vld1q_u8(s + 32);
        for (int g = 0; g < 4; g++)
            nunp_q5_group(s + 48 + 32 * g, h0, h1, g, o->q[r] + 64 * g);
        nunp_scales_k4(s + 4, o->sc[r], o->mn[r]);
        memcpy(&d[r], s, 2);
        memcpy(&m[r], s + 2, 2);
    }
    nunp_halves(d, o->d[0], 1.0f);
    nunp_halves(m, o->m[0], -1.0f);
}

static void nunp_q6_k(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    const uint8x16_t two = vdupq_n_u8(48);
    uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t i = 0; i < 4; i++) {
            const uint8_t *low = s + 64 * (i / 2) + 16 * (i % 2);
            int8_t *q = o->q[r] + 128 * (i / 2) + 16 * (i % 2);
            uint8x16_t a = vld1q_u8(low), b = vld1q_u8(low + 32), h = vld1q_u8(s + 128 + 16 * i);
            nunp_store(q, nunp_less(vorrq_u8(nunp_low(a), vandq_u8(vshlq_n_u8(h, 4), two)), 32));
            nunp_store(q + 32, nunp_less(vorrq_u8(nunp_low(b), vandq_u8(vshlq_n_u8(h, 2), two)), 32));
            nunp_store(q + 64, nunp_less(vorrq_u8(vshrq_n_u8(a, 4), vandq_u8(h, two)), 32));
            nunp_store(q + 96, nunp_less(vorrq_u8(vshrq_n_u8(b, 4), vandq_u8(vshrq_n_u8(h, 2), two)), 32));
        }
        nunp_scales(o->sc[r], vreinterpretq_s8_u8(vld1q_u8(s + 192)));
        memcpy(&d[r], s + 208, 2);
    }
    nunp_halves(d, o->d[0], 1.0f);
}

/* ------------------------------------------------------------------------------------------
 * IQ and ternary
 * ------------------------------------------------------------------------------------------ */

static void nunp_iq4_xs(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    const uint8x16_t table = nunp_table(pn_tab_iq4nl());
    uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        unsigned high = pn_le16(s + 2);
        for (size_t g = 0; g < 8; g++) {
            uint8x16_t v = vld1q_u8(s + 8 + 16 * g);
            int low = s[4 + g / 2] >> (4 * (g % 2)) & 15;
            nunp_store(o->q[r] + 32 * g, vqtbl1q_u8(table, nunp_low(v)));
            nunp_store(o->q[r] + 32 * g + 16, vqtbl1q_u8(table, vshrq_n_u8(v, 4)));
            o->sc[r][2 * g] = o->sc[r][2 * g + 1] = (int16_t)((low | (high >> (2 * g) & 3) << 4) - 32);
        }
        memcpy(&d[r], s, 2);
    }
    nunp_halves(d, o->d[0], 1.0f);
}

/* Two points of 8 of a grid. */
PN_NEON_INLINE int8x16_t nunp_grid8(const uint64_t *grid, unsigned a, unsigned b)
{
    return vcombine_s8(vcreate_s8(grid[a]), vcreate_s8(grid[b]));
}

/* Four points of 4. */
PN_NEON_INLINE int8x16_t nunp_grid4(const uint32_t *g, unsigned a, unsigned b, unsigned c, unsigned d)
{
    return vcombine_s8(vcreate_s8(g[a] | (uint64_t)g[b] << 32), vcreate_s8(g[c] | (uint64_t)g[d] << 32));
}

/* Magnitudes with the signs of two bytes of bits: the table holds them as +-1. */
PN_NEON_INLINE void nunp_signed(int8_t *q, int8x16_t v, const uint64_t *signs, unsigned a, unsigned b)
{
    vst1q_s8(q, vmulq_s8(v, nunp_grid8(signs, a, b)));
}

static void nunp_iq2_xxs(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    const uint64_t *grid = pn_grid_iq2_xxs(), *signs = pn_tab_signs();
    const uint8_t *ks = pn_tab_ksigns();
    uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        int8_t *q = o->q[r];
        for (size_t g = 0; g < 8; g++, q += 32) {
            const uint8_t *i = s + 2 + 8 * g;
            uint32_t w = pn_le32(i + 4);
            nunp_signed(q, nunp_grid8(grid, i[0], i[1]), signs, ks[w & 127], ks[w >> 7 & 127]);
            nunp_signed(q + 16, nunp_grid8(grid, i[2], i[3]), signs, ks[w >> 14 & 127], ks[w >> 21 & 127]);
            o->sc[r][2 * g] = o->sc[r][2 * g + 1] = (int16_t)(2 * (w >> 28) + 1);
        }
        memcpy(&d[r], s, 2);
    }
    nunp_halves(d, o->d[0], 0.125f);
}

/* 8 bytes of nibbles, low ones first, to 16 odd scales 2 nu + 1. */
PN_NEON_INLINE void nunp_odd_scales(const uint8_t *p, int16_t *sc)
{
    uint8x8_t v = vld1_u8(p), a = vand_u8(v, vdup_n_u8(15)), b = vshr_n_u8(v, 4);
    uint8x16_t z = vcombine_u8(vzip1_u8(a, b), vzip2_u8(a, b));
    nunp_scales(sc, vreinterpretq_s8_u8(vorrq_u8(vshlq_n_u8(z, 1), vdupq_n_u8(1))));
}

static void nunp_iq2_xs(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    const uint64_t *grid = pn_grid_iq2_xs(), *signs = pn_tab_signs();
    const uint8_t *ks = pn_tab_ksigns();
    uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t g = 0; g < 16; g++) {
            unsigned h0 = pn_le16(s + 2 + 4 * g), h1 = pn_le16(s + 4 + 4 * g);
            nunp_signed(o->q[r] + 16 * g, nunp_grid8(grid, h0 & 511, h1 & 511), signs, ks[h0 >> 9],
                        ks[h1 >> 9]);
        }
        nunp_odd_scales(s + 66, o->sc[r]);
        memcpy(&d[r], s, 2);
    }
    nunp_halves(d, o->d[0], 0.125f);
}

static void nunp_iq2_s(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    const uint64_t *grid = pn_grid_iq2_s(), *signs = pn_tab_signs();
    uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t g = 0; g < 8; g++) {
            const uint8_t *i = s + 2 + 4 * g, *t = s + 34 + 4 * g;
            unsigned h = s[66 + g];
            int8x16_t a = nunp_grid8(grid, i[0] | (h << 8 & 0x300), i[1] | (h << 6 & 0x300));
            int8x16_t b = nunp_grid8(grid, i[2] | (h << 4 & 0x300), i[3] | (h << 2 & 0x300));
            nunp_signed(o->q[r] + 32 * g, a, signs, t[0], t[1]);
            nunp_signed(o->q[r] + 32 * g + 16, b, signs, t[2], t[3]);
        }
        nunp_odd_scales(s + 74, o->sc[r]);
        memcpy(&d[r], s, 2);
    }
    nunp_halves(d, o->d[0], 0.125f);
}

static void nunp_iq3_xxs(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    const uint32_t *grid = pn_grid_iq3_xxs();
    const uint64_t *signs = pn_tab_signs();
    const uint8_t *ks = pn_tab_ksigns();
    uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        int8_t *q = o->q[r];
        for (size_t g = 0; g < 8; g++, q += 32) {
            const uint8_t *i = s + 2 + 8 * g;
            uint32_t w = pn_le32(s + 66 + 4 * g);
            nunp_signed(q, nunp_grid4(grid, i[0], i[1], i[2], i[3]), signs, ks[w & 127], ks[w >> 7 & 127]);
            nunp_signed(q + 16, nunp_grid4(grid, i[4], i[5], i[6], i[7]), signs, ks[w >> 14 & 127],
                        ks[w >> 21 & 127]);
            o->sc[r][2 * g] = o->sc[r][2 * g + 1] = (int16_t)(2 * (w >> 28) + 1);
        }
        memcpy(&d[r], s, 2);
    }
    nunp_halves(d, o->d[0], 0.25f);
}

static void nunp_iq3_s(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    const uint32_t *grid = pn_grid_iq3_s();
    const uint64_t *signs = pn_tab_signs();
    uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        int8_t *q = o->q[r];
        for (size_t g = 0; g < 8; g++, q += 32) {
            const uint8_t *i = s + 2 + 8 * g, *t = s + 74 + 4 * g;
            unsigned h = s[66 + g];
            int8x16_t a = nunp_grid4(grid, i[0] | (h << 8 & 256), i[1] | (h << 7 & 256),
                                     i[2] | (h << 6 & 256), i[3] | (h << 5 & 256));
            int8x16_t b = nunp_grid4(grid, i[4] | (h << 4 & 256), i[5] | (h << 3 & 256),
                                     i[6] | (h << 2 & 256), i[7] | (h << 1 & 256));
            nunp_signed(q, a, signs, t[0], t[1]);
            nunp_signed(q + 16, b, signs, t[2], t[3]);
            o->sc[r][2 * g] = o->sc[r][2 * g + 1] = (int16_t)(2 * (s[106 + g / 2] >> (4 * (g & 1)) & 15) + 1);
        }
        memcpy(&d[r], s, 2);
    }
    nunp_halves(d, o->d[0], 1.0f);
}

/* 8 G + delta. */
PN_NEON_INLINE void nunp_iq1(int8_t *q, int8x16_t grid, int8x16_t delta)
{
    vst1q_s8(q, vaddq_s8(vshlq_n_s8(grid, 3), delta));
}

static void nunp_iq1_s(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    const uint64_t *grid = pn_grid_iq1();
    uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t g = 0; g < 8; g++) {
            const uint8_t *i = s + 2 + 4 * g;
            unsigned h = pn_le16(s + 34 + 2 * g);
            int8x16_t delta = vdupq_n_s8(h & 0x8000 ? -1 : 1);
            int8x16_t a = nunp_grid8(grid, i[0] | (h << 8 & 0x700), i[1] | (h << 5 & 0x700));
            int8x16_t b = nunp_grid8(grid, i[2] | (h << 2 & 0x700), i[3] | (h >> 1 & 0x700));
            nunp_iq1(o->q[r] + 32 * g, a, delta);
            nunp_iq1(o->q[r] + 32 * g + 16, b, delta);
            o->sc[r][2 * g] = o->sc[r][2 * g + 1] = (int16_t)(2 * (h >> 12 & 7) + 1);
        }
        memcpy(&d[r], s, 2);
    }
    nunp_halves(d, o->d[0], 0.125f);
}

static void nunp_iq1_m(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    static const uint64_t delta[2] = {0x0101010101010101u, 0xffffffffffffffffu};
    const uint64_t *grid = pn_grid_iq1();
    uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t g = 0; g < 16; g++) {
            const uint8_t *i = s + 2 * g;
            unsigned h = s[32 + g];
            nunp_iq1(o->q[r] + 16 * g, nunp_grid8(grid, i[0] | (h << 8 & 0x700), i[1] | (h << 4 & 0x700)),
                     nunp_grid8(delta, h >> 3 & 1, h >> 7 & 1));
        }
        uint64_t c = pn_le64(s + 48);
        for (size_t t = 0; t < 16; t++)
            o->sc[r][t] = (int16_t)(2 * (c >> (16 * (t / 4) + 3 * (t % 4)) & 7) + 1);
        d[r] = (uint16_t)((c >> 12 & 15) | (c >> 24 & 0xf0) | (c >> 36 & 0xf00) | (c >> 48 & 0xf000));
    }
    nunp_halves(d, o->d[0], 0.125f);
}

PN_NEON_INLINE void nunp_ones(int16_t *sc)
{
    vst1q_s16(sc, vdupq_n_s16(1));
    vst1q_s16(sc + 8, vdupq_n_s16(1));
}

/* The leading ternary digit of each byte less 1, floor(3 v / 256) - 1: thresholds 86 and 171. */
PN_NEON_INLINE uint8x16_t nunp_trit(uint8x16_t v)
{
    uint8x16_t a = vcgeq_u8(v, vdupq_n_u8(86)), b = vcgeq_u8(v, vdupq_n_u8(171));
    return vsubq_u8(vmvnq_u8(a), b);        /* -1 - a - b, a and b being 0 or -1 */
}

PN_NEON_INLINE uint8x16_t nunp_times3(uint8x16_t v) { return vaddq_u8(vaddq_u8(v, v), v); }

static void nunp_tq1_0(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        int8_t *q = o->q[r];
        uint8x16_t v = vld1q_u8(s), w = vld1q_u8(s + 16), u = vld1q_u8(s + 32);
        uint8x16_t t = vreinterpretq_u8_u32(vdupq_n_u32(pn_le32(s + 48)));
        for (size_t i = 0; i < 5; i++) {
            nunp_store(q + 32 * i, nunp_trit(v));
            nunp_store(q + 32 * i + 16, nunp_trit(w));
            nunp_store(q + 160 + 16 * i, nunp_trit(u));
            if (i < 4) {
                uint32_t four = vgetq_lane_u32(vreinterpretq_u32_u8(nunp_trit(t)), 0);
                memcpy(q + 240 + 4 * i, &four, 4);
            }
            v = nunp_times3(v);
            w = nunp_times3(w);
            u = nunp_times3(u);
            t = nunp_times3(t);
        }
        nunp_ones(o->sc[r]);
        memcpy(&d[r], s + 52, 2);
    }
    nunp_halves(d, o->d[0], 1.0f);
}

static void nunp_tq2_0(const uint8_t *const *p, size_t n, pn_arm_oct *o)
{
    uint16_t d[8];
    (void)n;
    for (size_t r = 0; r < 8; r++) {
        const uint8_t *s = p[r];
        for (size_t i = 0; i < 4; i++)
            nunp_planes(vld1q_u8(s + 16 * i), o->q[r] + 128 * (i / 2) + 16 * (i % 2), 1);
        nunp_ones(o->sc[r]);
        memcpy(&d[r], s + 64, 2);
    }
    nunp_halves(d, o->d[0], 1.0f);
}

PN_INTERNAL pn_arm_unpack_fn pn_neon_unpack_of(uint32_t dtype)
{
    switch (dtype) {
    case PN_DTYPE_Q4_0: return nunp_q4_0;
    case PN_DTYPE_Q4_1: return nunp_q4_1;
    case PN_DTYPE_Q5_0: return nunp_q5_0;
    case PN_DTYPE_Q5_1: return nunp_q5_1;
    case PN_DTYPE_Q8_0: return nunp_q8_0;
    case PN_DTYPE_IQ4_NL: return nunp_iq4_nl;
    case PN_DTYPE_MXFP4: return nunp_mxfp4;
    case PN_DTYPE_NVFP4: return nunp_nvfp4;
    case PN_DTYPE_Q1_0: return nunp_q1_0;
    case PN_DTYPE_Q2_0: return nunp_q2_0;
    case PN_DTYPE_Q2_K: return nunp_q2_k;
    case PN_DTYPE_Q3_K: return nunp_q3_k;
    case PN_DTYPE_Q4_K: return nunp_q4_k;
    case PN_DTYPE_Q5_K: return nunp_q5_k;
    case PN_DTYPE_Q6_K: return nunp_q6_k;
    case PN_DTYPE_IQ4_XS: return nunp_iq4_xs;
    case PN_DTYPE_IQ2_XXS: return nunp_iq2_xxs;
    case PN_DTYPE_IQ2_XS: return nunp_iq2_xs;
    case PN_DTYPE_IQ2_S: return nunp_iq2_s;
    case PN_DTYPE_IQ3_XXS: return nunp_iq3_xxs;
    case PN_DTYPE_IQ3_S: return nunp_iq3_s;
    case PN_DTYPE_IQ1_S: return nunp_iq1_s;
    case PN_DTYPE_IQ1_M: return nunp_iq1_m;
    case PN_DTYPE_TQ1_0: return nunp_tq1_0;
    default: return nunp_tq2_0;
    }
}

#endif /* PN_CPU_ARM64 */

typedef int pn_cpu_neon_unpack_not_empty;       /* ISO C wants a declaration in every file */
