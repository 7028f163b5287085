/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_neon_kv.c - keys and values to and from their stored types, and the rotation of keys, AArch64.
 *
 * The encoders give the bytes of num/pn_quant_32.c.  What it does in an order that matters is done in
 * its order: every product is rounded before anything is added to it (pn_neon_mul), a NaN loses against
 * a number where it does there, and the first of several extreme elements decides the sign of a scale.
 */
#include "cpu/pn_cpu_neon_kv.h"
#include "cpu/pn_cpu_ref.h"

#if PN_CPU_ARM64

/* ------------------------------------------------------------------------------------------
 * Encoding
 * ------------------------------------------------------------------------------------------ */

PN_NEON_INLINE float32x4_t nkv_clamp(float32x4_t v, float lo, float hi)      /* NaN gives lo */
{
    return vminnmq_f32(vmaxnmq_f32(v, vdupq_n_f32(lo)), vdupq_n_f32(hi));
}

/* Largest magnitude, at least 0; NaN does not count. */
PN_NEON_INLINE float nkv_abs_max(const float32x4_t v[8])
{
    float32x4_t m = vdupq_n_f32(0);
    PN_UNROLL
    for (size_t i = 0; i < 8; i++)
        m = vmaxnmq_f32(m, vabsq_f32(v[i]));
    return vmaxnmvq_f32(m);
}

PN_NEON_INLINE void nkv_put_f16(uint8_t *p, float f)
{
    uint16_t h = vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(f))), 0);
    memcpy(p, &h, 2);
}

/* 16 integers to bytes in order. */
PN_NEON_INLINE int8x16_t nkv_bytes(const int32x4_t n[4])
{
    int16x8_t a = vmovn_high_s32(vmovn_s32(n[0]), n[1]), b = vmovn_high_s32(vmovn_s32(n[2]), n[3]);
    return vmovn_high_s16(vmovn_s16(a), b);
}

/* Which of 32 lanes are all ones: four bits each, 16 lanes to a word. */
PN_NEON_INLINE void nkv_mask(const uint32x4_t m[8], uint64_t bits[2])
{
    PN_UNROLL
    for (size_t i = 0; i < 2; i++) {
        uint16x8_t a = vmovn_high_u32(vmovn_u32(m[4 * i]), m[4 * i + 1]), b = vmovn_high_u32(vmovn_u32(m[4 * i + 2]), m[4 * i + 3]);
        uint8x16_t v = vmovn_high_u16(vmovn_u16(a), b);
        bits[i] = vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(v), 4)), 0);
    }
}

/* Nibbles to the block's end, fifth bits in front of them. */
PN_NEON_INLINE void nkv_put_codes(uint8_t *end, const int32x4_t n[8], const bool five)
{
    uint8x16_t a = vreinterpretq_u8_s8(nkv_bytes(n)), b = vreinterpretq_u8_s8(nkv_bytes(n + 4));
    vst1q_u8(end - 16, vsliq_n_u8(a, b, 4));
    if (five) {
        const uint8x8_t bit = vcreate_u8(0x8040201008040201u);
        uint8x16_t c[2] = {vtstq_u8(a, vdupq_n_u8(16)), vtstq_u8(b, vdupq_n_u8(16))};
        PN_UNROLL
        for (size_t i = 0; i < 2; i++) {
            end[2 * i - 20] = vaddv_u8(vand_u8(vget_low_u8(c[i]), bit));
            end[2 * i - 19] = vaddv_u8(vand_u8(vget_high_u8(c[i]), bit));
        }
    }
}

PN_NEON_INLINE void nkv_encode_q8_0(const float32x4_t v[8], uint8_t *b)
{
    float d = nkv_abs_max(v) / 127.0f, id = d != 0 ? 1.0f / d : 0.0f;
    int32x4_t n[8];
    PN_UNROLL
    for (size_t i = 0; i < 8; i++)          /* half away from zero */
        n[i] = vcvtaq_s32_f32(nkv_clamp(vmulq_n_f32(v[i], id), -127, 127));
    nkv_put_f16(b, d);
    vst1q_u8(b + 2, vreinterpretq_u8_s8(nkv_bytes(n)));
    vst1q_u8(b + 18, vreinterpretq_u8_s8(nkv_bytes(n + 4)));
}

/* Q4_0 (half 8), Q5_0 (half 16). */
PN_NEON_INLINE void nkv_encode_centred(const float *x, const float32x4_t v[8], uint8_t *b, const int half)
{
    float most = nkv_abs_max(v), d = 0;
    uint32x4_t is[8];
    uint64_t at[2];
    PN_UNROLL
    for (size_t i = 0; i < 8; i++)
        is[i] = vceqq_f32(vabsq_f32(v[i]), vdupq_n_f32(most));
    nkv_mask(is, at);
    if (most > 0)
        d = x[at[0] ? __builtin_ctzll(at[0]) / 4 : 16 + __builtin_ctzll(at[1]) / 4];
    d = d / (float)-half;
    float32x4_t id = vdupq_n_f32(d != 0 ? 1.0f / d : 0.0f), middle = vdupq_n_f32((float)half + 0.5f);
    int32x4_t n[8];
    PN_UNROLL
    for (size_t i = 0; i < 8; i++)
        n[i] = vcvtq_s32_f32(nkv_clamp(vaddq_f32(pn_neon_mul(v[i], id), middle), 0, (float)(2 * half - 1)));
    nkv_put_f16(b, d);
    nkv_put_codes(b + (half == 8 ? 18 : 22), n, half == 16);
}

/* Q4_1 (top 15), Q5_1 (top 31).  A NaN's place and the sign of a zero minimum matter: rare, and left to ref. */
PN_NEON_INLINE void nkv_encode_offset(const float *x, const float32x4_t v[8], uint8_t *b, const int top)
{
    float32x4_t hi = v[0], lo = v[0];
    PN_UNROLL
    for (size_t i = 1; i < 8; i++) {        /* both keep a NaN */
        hi = vmaxq_f32(hi, v[i]);
        lo = vminq_f32(lo, v[i]);
    }
    float max = vmaxvq_f32(hi), min = vminvq_f32(lo);
    if (PN_UNLIKELY(min == 0 || min != min)) {
        pn_ref_kv_encode(top == 15 ? PN_DTYPE_Q4_1 : PN_DTYPE_Q5_1, x, b, 32);
        return;
    }
    float d = (max - min) / (float)top;
    float32x4_t id = vdupq_n_f32(d != 0 ? 1.0f / d : 0.0f), least = vdupq_n_f32(min);
    int32x4_t n[8];
    PN_UNROLL
    for (size_t i = 0; i < 8; i++) {
        float32x4_t t = pn_neon_mul(vsubq_f32(v[i], least), id);
        n[i] = vcvtq_s32_f32(nkv_clamp(vaddq_f32(t, vdupq_n_f32(0.5f)), 0, (float)top));
    }
    nkv_put_f16(b, d);
    nkv_put_f16(b + 2, min);
    nkv_put_codes(b + (top == 15 ? 20 : 24), n, top == 31);
}

PN_NEON_INLINE void nkv_encode_blocks(const float *x, uint8_t *b, size_t n, const uint32_t type)
{
    for (; n; n -= 32, x += 32, b += pn_kv_elem_bytes(type, 32)) {
        float32x4_t v[8];
        PN_UNROLL
        for (size_t i = 0; i < 8; i++)
            v[i] = vld1q_f32(x + 4 * i);
        if (type == PN_DTYPE_Q8_0)
            nkv_encode_q8_0(v, b);
        else if (type == PN_DTYPE_Q4_0 || type == PN_DTYPE_Q5_0)
            nkv_encode_centred(x, v, b, type == PN_DTYPE_Q4_0 ? 8 : 16);
        else
            nkv_encode_offset(x, v, b, type == PN_DTYPE_Q4_1 ? 15 : 31);
    }
}

static void nkv_f16_from_f32(const float *x, uint16_t *y, size_t n)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
    if (i < n) {
        uint16_t h[4];
        vst1_u16(h, vreinterpret_u16_f16(vcvt_f16_f32(pn_neon_load_tail(x + i, n - i))));
        memcpy(y + i, h, 2 * (n - i));
    }
}

PN_INTERNAL void pn_neon_kv_encode(uint32_t type, const float *x, void *dst, size_t n)
{
    switch (type) {
    case PN_DTYPE_F32: memcpy(dst, x, 4 * n); break;
    case PN_DTYPE_F16: nkv_f16_from_f32(x, dst, n); break;
    case PN_DTYPE_Q8_0: nkv_encode_blocks(x, dst, n, PN_DTYPE_Q8_0); break;
    case PN_DTYPE_Q5_1: nkv_encode_blocks(x, dst, n, PN_DTYPE_Q5_1); break;
    case PN_DTYPE_Q5_0: nkv_encode_blocks(x, dst, n, PN_DTYPE_Q5_0); break;
    case PN_DTYPE_Q4_1: nkv_encode_blocks(x, dst, n, PN_DTYPE_Q4_1); break;
    default: nkv_encode_blocks(x, dst, n, PN_DTYPE_Q4_0); break;
    }
}

/* ------------------------------------------------------------------------------------------
 * Decoding
 * ------------------------------------------------------------------------------------------ */

PN_NEON_INLINE void nkv_decode_as(const uint8_t *p, float *y, size_t n, const uint32_t type)
{
    for (; n >= 32; n -= 32, y += 32, p += pn_kv_elem_bytes(type, 32)) {
        float32x4_t v[8];
        pn_neon_kv32(p, v, type);
        PN_UNROLL
        for (size_t i = 0; i < 8; i++)
            vst1q_f32(y + 4 * i, v[i]);
    }
    if (pn_kv_is_block(type))
        return;
    for (; n >= 4; n -= 4, y += 4, p += pn_kv_elem_bytes(type, 4))
        vst1q_f32(y, pn_neon_kv4(p, type));
    if (n)
        pn_neon_store_tail(y, pn_neon_kv_tail(p, n, type), n);
}

PN_INTERNAL void pn_neon_kv_decode(uint32_t type, const void *src, float *y, size_t n)
{
    switch (type) {
#define NKV_CASE(t) case PN_DTYPE_##t: nkv_decode_as(src, y, n, PN_DTYPE_##t); break;
    PN_KV_EACH_TYPE(NKV_CASE)
#undef NKV_CASE
    default: PN_ASSERT(0); break;
    }
}

/* ------------------------------------------------------------------------------------------
 * Rotation
 * ------------------------------------------------------------------------------------------ */

/* Every lane's partner, plus or minus the lane: x + y where the sign is clear, y - x where it is set. */
PN_NEON_INLINE float32x4_t nkv_pair(float32x4_t x, float32x4_t partner, uint32x4_t sign)
{
    return vaddq_f32(partner, vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x), sign)));
}

PN_NEON_INLINE void nkv_stage(float32x4_t *a, float32x4_t *b)
{
    float32x4_t s = vaddq_f32(*a, *b), d = vsubq_f32(*a, *b);
    *a = s;
    *b = d;
}

/* Stages 1 to 16 of 32 elements. */
PN_NEON_INLINE void nkv_rotate32(float *x, float scale)
{
    const uint32x4_t s1 = vcombine_u32(vcreate_u32(0x8000000000000000u), vcreate_u32(0x8000000000000000u));
    const uint32x4_t s2 = vcombine_u32(vcreate_u32(0), vcreate_u32(0x8000000080000000u));
    float32x4_t v[8];
    PN_UNROLL
    for (size_t i = 0; i < 8; i++) {
        v[i] = vld1q_f32(x + 4 * i);
        v[i] = nkv_pair(v[i], vrev64q_f32(v[i]), s1);
        v[i] = nkv_pair(v[i], vextq_f32(v[i], v[i], 2), s2);
    }
    PN_UNROLL
    for (size_t h = 1; h < 8; h *= 2)
        PN_UNROLL
        for (size_t i = 0; i < 8; i++)
            if (!(i & h))
                nkv_stage(v + i, v + i + h);
    PN_UNROLL
    for (size_t i = 0; i < 8; i++)
        vst1q_f32(x + 4 * i, vmulq_n_f32(v[i], scale));
}

PN_INTERNAL void pn_neon_hadamard(float *x, size_t n, size_t b)
{
    if (b < 32) {
        pn_ref_hadamard(x, n, b);
        return;
    }
    float scale = pn_cpu_rotation_scale(b);
    for (size_t i = 0; i < n; i += 32)
        nkv_rotate32(x + i, b == 32 ? scale : 1.0f);
    for (size_t h = 32; h < b; h *= 2) {
        float f = 2 * h == b ? scale : 1.0f;
        for (size_t at = 0; at < n; at += 2 * h)
            for (size_t i = at; i < at + h; i += 4) {
                float32x4_t lo = vld1q_f32(x + i), hi = vld1q_f32(x + i + h);
                nkv_stage(&lo, &hi);
                vst1q_f32(x + i, vmulq_n_f32(lo, f));
                vst1q_f32(x + i + h, vmulq_n_f32(hi, f));
            }
    }
}

#endif /* PN_CPU_ARM64 */

typedef int pn_cpu_neon_kv_not_empty;           /* ISO C wants a declaration in every file */
