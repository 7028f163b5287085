/*
 * pn_half.h - conversions between float and the small floating formats; exact, scalar, branch-light.
 *
 * f16: IEEE half, round to nearest even, NaN kept quiet.  bf16: round to nearest even, NaN kept.
 * e8m0: 2^(e-127) (OCP MX 1.0 section 5.4.1); ue4m3: unsigned 4-bit exponent, 3-bit mantissa.
 * e4m3, e5m2: signed, as checkpoints have them (OCP OFP8 1.0, tables 1 and 2).
 */
#ifndef PN_HALF_H
#define PN_HALF_H

#include "base/pn_base.h"

static inline float pn_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 0x3ff;
    if (exp == 31)
        return pn_f32_from_bits(sign | 0x7f800000u | man << 13);
    if (exp)
        return pn_f32_from_bits(sign | (exp + 112) << 23 | man << 13);
    float f = (float)man * 0x1p-24f;        /* subnormal: exact in f32 */
    return pn_f32_from_bits(sign | pn_f32_bits(f));
}

static inline uint16_t pn_f16_from_f32(float f)
{
    uint32_t u = pn_f32_bits(f), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000u)                   /* rounds to 65536 or is infinite */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000u) {                  /* below 2^-14: subnormal, let the FPU round */
        float g = pn_f32_from_bits(a) + 0x1p-1f;    /* ulp of [0.5,1) is 2^-24 */
        return (uint16_t)(sign | (pn_f32_bits(g) - 0x3f000000u));
    }
    uint32_t r = a + 0xfff + ((a >> 13) & 1) - (112u << 23);
    return (uint16_t)(sign | r >> 13);
}

static inline float pn_f32_from_bf16(uint16_t h) { return pn_f32_from_bits((uint32_t)h << 16); }

static inline uint16_t pn_bf16_from_f32(float f)
{
    uint32_t u = pn_f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 64);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* 2^(e-128): half of E8M0's value, for tables of doubled FP4 codes; e 0 and 1 are subnormal. */
static inline float pn_f32_from_e8m0_half(uint8_t e)
{
    return pn_f32_from_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

/* Half of UE4M3's value (doubled FP4 codes again); 0 and 0x7f give 0, bit 7 is ignored. */
static inline float pn_f32_from_ue4m3_half(uint8_t u)
{
    uint32_t e = (u >> 3) & 15, m = u & 7;
    if ((u & 0x7f) == 0x7f)
        return 0;
    return e ? pn_f32_from_bits((e + 119) << 23 | m << 20) : (float)m * 0x1p-10f;
}

/* Exponents 1 to 15 with bias 7, no infinity: the largest is 448, 0x7f and 0xff are NaN. */
static inline float pn_f32_from_e4m3(uint8_t u)
{
    uint32_t sign = (uint32_t)(u & 0x80) << 24, e = (u >> 3) & 15, m = u & 7;
    if ((u & 0x7f) == 0x7f)
        return pn_f32_from_bits(sign | 0x7fc00000u);
    float f = (float)m * 0x1p-9f;           /* subnormal: exact in f32 */
    return pn_f32_from_bits(sign | (e ? (e + 120) << 23 | m << 20 : pn_f32_bits(f)));
}

/* The upper byte of an f16. */
static inline float pn_f32_from_e5m2(uint8_t u) { return pn_f32_from_f16((uint16_t)(u << 8)); }

/* 2^(e-127); 255 is NaN. */
static inline float pn_f32_from_e8m0(uint8_t e)
{
    return pn_f32_from_bits(e == 255 ? 0x7fc00000u : e ? (uint32_t)e << 23 : 0x00400000u);
}

#endif /* PN_HALF_H */
