/*
 * pn_cpu_neon_math.h - exp and its family on 4 floats: num/pn_math.c step by step, same bits.
 *
 * gcc writes vmulq_f32 and vaddq_f32 as plain operators and may fuse them into one rounding (gnu11).
 * No product here feeds a plain addition; pn_neon_mul is for those elsewhere that do.
 */
#ifndef PN_CPU_NEON_MATH_H
#define PN_CPU_NEON_MATH_H

#include "cpu/pn_cpu_arm.h"

#if PN_CPU_ARM64

/* a * b, rounded before anything is added to it. */
PN_NEON_INLINE float32x4_t pn_neon_mul(float32x4_t a, float32x4_t b)
{
    float32x4_t v = vmulq_f32(a, b);
    __asm__("" : "+w"(v));
    return v;
}

/* n < 4 floats, zeros after them. */
PN_NEON_INLINE float32x4_t pn_neon_load_tail(const float *p, size_t n)
{
    float v[4] = {0, 0, 0, 0};
    for (size_t i = 0; i < n; i++)
        v[i] = p[i];
    return vld1q_f32(v);
}

PN_NEON_INLINE void pn_neon_store_tail(float *p, float32x4_t v, size_t n)
{
    float t[4];
    vst1q_f32(t, v);
    for (size_t i = 0; i < n; i++)
        p[i] = t[i];
}

/* 4 halves to floats. */
PN_NEON_INLINE float32x4_t pn_neon_from_f16(const uint16_t *h)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h)));
}

/* The first half of the canonical tree: 16 partial sums to 4. */
PN_NEON_INLINE float32x4_t pn_neon_tree4(float32x4_t p0, float32x4_t p1, float32x4_t p2, float32x4_t p3)
{
    return vaddq_f32(vaddq_f32(p0, p2), vaddq_f32(p1, p3));
}

/* The rest of it, for one sum and for four. */
PN_NEON_INLINE float pn_neon_tree1(float32x4_t s4)
{
    float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}

PN_NEON_INLINE float32x4_t pn_neon_tree1x4(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d)
{
    float32x4_t ab = vaddq_f32(vcombine_f32(vget_low_f32(a), vget_low_f32(b)),
                               vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
    float32x4_t cd = vaddq_f32(vcombine_f32(vget_low_f32(c), vget_low_f32(d)),
                               vcombine_f32(vget_high_f32(c), vget_high_f32(d)));
    return vpaddq_f32(ab, cd);
}

PN_NEON_INLINE float32x4_t pn_neon_exp(float32x4_t x)
{
    const float32x4_t magic = vdupq_n_f32(12582912.0f), one = vdupq_n_f32(1.0f);
    float32x4_t t = vfmaq_f32(magic, x, vdupq_n_f32(0x1.715476p+0f)), n = vsubq_f32(t, magic);
    float32x4_t r = vfmaq_f32(x, n, vdupq_n_f32(-0x1.62e430p-1f));
    r = vfmaq_f32(r, n, vdupq_n_f32(0x1.05c610p-29f));
    float32x4_t p = vdupq_n_f32(0x1.6a23d0p-10f);
    p = vfmaq_f32(vdupq_n_f32(0x1.123a20p-7f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0x1.5558f2p-5f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0x1.555492p-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0x1.fffffcp-2f), p, r);
    p = vfmaq_f32(one, p, r);
    p = vfmaq_f32(one, p, r);
    uint32x4_t e = vshlq_n_u32(vreinterpretq_u32_f32(t), 23);
    uint32x4_t y = vaddq_u32(vreinterpretq_u32_f32(p), e);
    y = vbicq_u32(y, vcltq_f32(x, vdupq_n_f32(-87.33654f)));
    y = vbslq_u32(vcgtq_f32(x, vdupq_n_f32(88.72283f)), vdupq_n_u32(0x7f800000u), y);
    return vbslq_f32(vceqq_f32(x, x), vreinterpretq_f32_u32(y), x);
}

PN_NEON_INLINE float32x4_t pn_neon_tanh(float32x4_t x)
{
    const uint32x4_t sign_bit = vdupq_n_u32(0x80000000u);
    const float32x4_t one = vdupq_n_f32(1.0f);
    float32x4_t a = vabsq_f32(x), z = vmulq_f32(a, a);
    float32x4_t p = vdupq_n_f32(-0x1.75e1cep-8f);
    p = vfmaq_f32(vdupq_n_f32(0x1.52269cp-6f), p, z);
    p = vfmaq_f32(vdupq_n_f32(-0x1.b83c5ap-5f), p, z);
    p = vfmaq_f32(vdupq_n_f32(0x1.110726p-3f), p, z);
    p = vfmaq_f32(vdupq_n_f32(-0x1.555532p-2f), p, z);
    float32x4_t small = vfmaq_f32(a, vmulq_f32(a, z), p);
    float32x4_t e = vaddq_f32(pn_neon_exp(vaddq_f32(a, a)), one);
    float32x4_t large = vsubq_f32(one, vdivq_f32(vdupq_n_f32(2.0f), e));
    float32x4_t y = vbslq_f32(vcltq_f32(a, vdupq_n_f32(0.625f)), small, large);
    return vbslq_f32(sign_bit, x, y);
}

/* x / (1 + e^z) */
PN_NEON_INLINE float32x4_t pn_neon_gate(float32x4_t x, float32x4_t z)
{
    return vdivq_f32(x, vaddq_f32(vdupq_n_f32(1.0f), pn_neon_exp(z)));
}

PN_NEON_INLINE float32x4_t pn_neon_silu(float32x4_t x) { return pn_neon_gate(x, vnegq_f32(x)); }

PN_NEON_INLINE float32x4_t pn_neon_gelu(float32x4_t x)
{
    const float32x4_t k1 = vdupq_n_f32(-0x1.988454p+0f), k3 = vdupq_n_f32(-0x1.2444f2p-4f);
    return pn_neon_gate(x, vmulq_f32(x, vfmaq_f32(k1, vmulq_f32(x, x), k3)));
}

PN_NEON_INLINE float32x4_t pn_neon_softcap4(float32x4_t x, float32x4_t cap)
{
    return vmulq_f32(cap, pn_neon_tanh(vdivq_f32(x, cap)));
}

#endif /* PN_CPU_ARM64 */

#endif /* PN_CPU_NEON_MATH_H */
