/*
 * pn_cpu_neon_kv.h - AArch64: stored keys and values as vectors of floats.
 *
 * What num/pn_quant decodes them to, bit for bit: d * code has at most 19 significant bits, so a
 * fused d * code + m rounds once as the sum does.
 */
#ifndef PN_CPU_NEON_KV_H
#define PN_CPU_NEON_KV_H

#include "cpu/pn_cpu_neon_math.h"

#if PN_CPU_ARM64

/* 4 of F32 or F16. */
PN_NEON_INLINE float32x4_t pn_neon_kv4(const uint8_t *p, const uint32_t type)
{
    if (type == PN_DTYPE_F16)
        return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
    return vreinterpretq_f32_u8(vld1q_u8(p));
}

/* n < 4 of them, zeros after them. */
PN_NEON_INLINE float32x4_t pn_neon_kv_tail(const uint8_t *p, size_t n, const uint32_t type)
{
    uint8_t v[16] = {0};
    for (size_t i = 0; i < pn_kv_elem_bytes(type, n); i++)
        v[i] = p[i];
    return pn_neon_kv4(v, type);
}

PN_NEON_INLINE float32x4_t pn_neon_kv_f16(const uint8_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16((uint16_t)pn_le16(p)))); }

/* 16 bits to bytes of 0 or 16. */
PN_NEON_INLINE uint8x16_t pn_neon_kv_fifth(const uint8_t *p)
{
    const uint8x8_t bit = vcreate_u8(0x8040201008040201u);
    uint8x16_t on = vtstq_u8(vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1])), vcombine_u8(bit, bit));
    return vandq_u8(on, vdupq_n_u8(16));
}

/* The 32 codes of a block, signed. */
PN_NEON_INLINE void pn_neon_kv_codes(const uint8_t *b, int8x16_t c[2], const uint32_t type)
{
    if (type == PN_DTYPE_Q8_0) {
        c[0] = vreinterpretq_s8_u8(vld1q_u8(b + 2));
        c[1] = vreinterpretq_s8_u8(vld1q_u8(b + 18));
        return;
    }
    const uint8_t *qs = b + pn_kv_elem_bytes(type, 32) - 16;
    const int off = type == PN_DTYPE_Q4_0 ? 8 : type == PN_DTYPE_Q5_0 ? 16 : 0;
    uint8x16_t n = vld1q_u8(qs), half[2] = {vandq_u8(n, vdupq_n_u8(15)), vshrq_n_u8(n, 4)};
    PN_UNROLL
    for (size_t i = 0; i < 2; i++) {
        if (type == PN_DTYPE_Q5_0 || type == PN_DTYPE_Q5_1)
            half[i] = vorrq_u8(half[i], pn_neon_kv_fifth(qs - 4 + 2 * i));
        c[i] = vsubq_s8(vreinterpretq_s8_u8(half[i]), vdupq_n_s8((int8_t)off));
    }
}

/* 32 of any type; one block of a block type. */
PN_NEON_INLINE void pn_neon_kv32(const uint8_t *p, float32x4_t v[8], const uint32_t type)
{
    if (!pn_kv_is_block(type)) {
        PN_UNROLL
        for (size_t i = 0; i < 8; i++)
            v[i] = pn_neon_kv4(p + pn_kv_elem_bytes(type, 4 * i), type);
        return;
    }
    int8x16_t c[2];
    float32x4_t d = pn_neon_kv_f16(p);
    pn_neon_kv_codes(p, c, type);
    PN_UNROLL
    for (size_t i = 0; i < 2; i++) {
        int16x8_t lo = vmovl_s8(vget_low_s8(c[i])), hi = vmovl_high_s8(c[i]);
        v[4 * i] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo)));
        v[4 * i + 1] = vcvtq_f32_s32(vmovl_high_s16(lo));
        v[4 * i + 2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi)));
        v[4 * i + 3] = vcvtq_f32_s32(vmovl_high_s16(hi));
    }
    PN_UNROLL
    for (size_t i = 0; i < 8; i++)
        v[i] = type == PN_DTYPE_Q4_1 || type == PN_DTYPE_Q5_1 ? vfmaq_f32(pn_neon_kv_f16(p + 2), d, v[i]) : vmulq_f32(d, v[i]);
}

#endif /* PN_CPU_ARM64 */

#endif /* PN_CPU_NEON_KV_H */
