/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_avx2_kv.c - keys and values to and from their stored types, and the rotation of keys, AVX2.
 *
 * The encoders give the bytes of num/pn_quant_32.c.  What it does in an order that matters is done in
 * its order: every product is rounded before anything is added to it (akv_mul), a NaN loses against a
 * number where it does there, and the first of several extreme elements decides the sign of a scale.
 */
#include "cpu/pn_cpu_avx2_kv.h"
#include "cpu/pn_cpu_ref.h"
#include "cpu/pn_cpu_x86_mm.h"

#if PN_CPU_X64

/* ------------------------------------------------------------------------------------------
 * Encoding
 * ------------------------------------------------------------------------------------------ */

/* a * b, rounded before anything is added to it: gcc would fuse the two under gnu11. */
PN_AVX2_INLINE __m256 akv_mul(__m256 a, __m256 b)
{
    __m256 v = _mm256_mul_ps(a, b);
    __asm__("" : "+x"(v));
    return v;
}

PN_AVX2_INLINE __m256 akv_clamp(__m256 v, float lo, float hi)      /* NaN gives lo */
{
    return _mm256_min_ps(_mm256_max_ps(v, _mm256_set1_ps(lo)), _mm256_set1_ps(hi));
}

PN_AVX2_INLINE float akv_max8(__m256 m)
{
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

/* Largest magnitude, at least 0; NaN does not count. */
PN_AVX2_INLINE float akv_abs_max(const __m256 v[4])
{
    __m256 m = _mm256_setzero_ps();
    PN_UNROLL
    for (size_t i = 0; i < 4; i++)          /* max(NaN, m) is m */
        m = _mm256_max_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), v[i]), m);
    return akv_max8(m);
}

PN_AVX2_INLINE void akv_put_f16(uint8_t *p, float f)
{
    uint16_t h = (uint16_t)_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(f), _MM_FROUND_TO_NEAREST_INT), 0);
    memcpy(p, &h, 2);
}

/* 32 integers to bytes in order. */
PN_AVX2_INLINE __m256i akv_bytes(const __m256i n[4])
{
    __m256i v = _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Nibbles to the block's end, fifth bits in front of them. */
PN_AVX2_INLINE void akv_put_codes(uint8_t *end, __m256i c, const bool five)
{
    const __m128i low = _mm_set1_epi8(15);
    __m128i a = _mm_and_si128(_mm256_castsi256_si128(c), low), b = _mm_and_si128(_mm256_extracti128_si256(c, 1), low);
    _mm_storeu_si128((__m128i *)(void *)(end - 16), _mm_or_si128(a, _mm_slli_epi16(b, 4)));
    if (five) {
        int high = _mm256_movemask_epi8(_mm256_slli_epi16(c, 3));
        memcpy(end - 20, &high, 4);
    }
}

PN_AVX2_INLINE void akv_encode_q8_0(const __m256 v[4], uint8_t *b)
{
    /* The largest float below one half, towards the sign: truncating then rounds half away from zero. */
    const __m256 half = _mm256_set1_ps(0x1.fffffep-2f), sign = _mm256_set1_ps(-0.0f);
    float d = akv_abs_max(v) / 127.0f;
    __m256 id = _mm256_set1_ps(d != 0 ? 1.0f / d : 0.0f);
    __m256i n[4];
    PN_UNROLL
    for (size_t i = 0; i < 4; i++) {
        __m256 t = akv_clamp(akv_mul(v[i], id), -127, 127);
        n[i] = _mm256_cvttps_epi32(_mm256_add_ps(t, _mm256_or_ps(half, _mm256_and_ps(t, sign))));
    }
    akv_put_f16(b, d);
    _mm256_storeu_si256((__m256i *)(void *)(b + 2), akv_bytes(n));
}

/* Q4_0 (half 8), Q5_0 (half 16). */
PN_AVX2_INLINE void akv_encode_centred(const float *x, const __m256 v[4], uint8_t *b, const int half)
{
    float most = akv_abs_max(v), d;
    __m256 want = _mm256_set1_ps(most), sign = _mm256_set1_ps(-0.0f);
    uint32_t at = 0;
    PN_UNROLL
    for (size_t i = 0; i < 4; i++)
        at |= (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_andnot_ps(sign, v[i]), want, _CMP_EQ_OQ)) << 8 * i;
    d = (most > 0 ? x[__builtin_ctz(at)] : 0.0f) / (float)-half;
    __m256 id = _mm256_set1_ps(d != 0 ? 1.0f / d : 0.0f), middle = _mm256_set1_ps((float)half + 0.5f);
    __m256i n[4];
    PN_UNROLL
    for (size_t i = 0; i < 4; i++)
        n[i] = _mm256_cvttps_epi32(akv_clamp(_mm256_add_ps(akv_mul(v[i], id), middle), 0, (float)(2 * half - 1)));
    akv_put_f16(b, d);
    akv_put_codes(b + (half == 8 ? 18 : 22), akv_bytes(n), half == 16);
}

/* Q4_1 (top 15), Q5_1 (top 31).  A NaN's place and the sign of a zero minimum matter: rare, and left to ref. */
PN_AVX2_INLINE void akv_encode_offset(const float *x, const __m256 v[4], uint8_t *b, const int top)
{
    const uint32_t type = top == 15 ? PN_DTYPE_Q4_1 : PN_DTYPE_Q5_1;
    __m256 hi = _mm256_max_ps(_mm256_max_ps(v[0], v[1]), _mm256_max_ps(v[2], v[3]));
    __m256 lo = _mm256_min_ps(_mm256_min_ps(v[0], v[1]), _mm256_min_ps(v[2], v[3]));
    __m256 bad = _mm256_or_ps(_mm256_cmp_ps(v[0], v[1], _CMP_UNORD_Q), _mm256_cmp_ps(v[2], v[3], _CMP_UNORD_Q));
    float max = akv_max8(hi), min = -akv_max8(_mm256_xor_ps(lo, _mm256_set1_ps(-0.0f)));
    if (PN_UNLIKELY(min == 0 || _mm256_movemask_ps(bad))) {
        pn_ref_kv_encode(type, x, b, 32);
        return;
    }
    float d = (max - min) / (float)top;
    __m256 id = _mm256_set1_ps(d != 0 ? 1.0f / d : 0.0f), least = _mm256_set1_ps(min);
    __m256i n[4];
    PN_UNROLL
    for (size_t i = 0; i < 4; i++) {
        __m256 t = akv_mul(_mm256_sub_ps(v[i], least), id);
        n[i] = _mm256_cvttps_epi32(akv_clamp(_mm256_add_ps(t, _mm256_set1_ps(0.5f)), 0, (float)top));
    }
    akv_put_f16(b, d);
    akv_put_f16(b + 2, min);
    akv_put_codes(b + (top == 15 ? 20 : 24), akv_bytes(n), top == 31);
}

PN_AVX2_INLINE void akv_encode_blocks(const float *x, uint8_t *b, size_t n, const uint32_t type)
{
    for (; n; n -= 32, x += 32, b += pn_kv_elem_bytes(type, 32)) {
        __m256 v[4] = {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24)};
        if (type == PN_DTYPE_Q8_0)
            akv_encode_q8_0(v, b);
        else if (type == PN_DTYPE_Q4_0 || type == PN_DTYPE_Q5_0)
            akv_encode_centred(x, v, b, type == PN_DTYPE_Q4_0 ? 8 : 16);
        else
            akv_encode_offset(x, v, b, type == PN_DTYPE_Q4_1 ? 15 : 31);
    }
}

PN_AVX2 static void akv_f16_from_f32(const float *x, uint16_t *y, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    if (i < n) {
        uint16_t h[8];
        __m256 v = _mm256_maskload_ps(x + i, pn_avx2_mask(n - i));
        _mm_storeu_si128((__m128i *)(void *)h, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
        memcpy(y + i, h, 2 * (n - i));
    }
}

PN_AVX2 PN_INTERNAL void pn_avx2_kv_encode(uint32_t type, const float *x, void *dst, size_t n)
{
    switch (type) {
    case PN_DTYPE_F32: memcpy(dst, x, 4 * n); break;
    case PN_DTYPE_F16: akv_f16_from_f32(x, dst, n); break;
    case PN_DTYPE_Q8_0: akv_encode_blocks(x, dst, n, PN_DTYPE_Q8_0); break;
    case PN_DTYPE_Q5_1: akv_encode_blocks(x, dst, n, PN_DTYPE_Q5_1); break;
    case PN_DTYPE_Q5_0: akv_encode_blocks(x, dst, n, PN_DTYPE_Q5_0); break;
    case PN_DTYPE_Q4_1: akv_encode_blocks(x, dst, n, PN_DTYPE_Q4_1); break;
    default: akv_encode_blocks(x, dst, n, PN_DTYPE_Q4_0); break;
    }
}

/* ------------------------------------------------------------------------------------------
 * Decoding
 * ------------------------------------------------------------------------------------------ */

PN_AVX2_INLINE void akv_decode_as(const uint8_t *p, float *y, size_t n, const uint32_t type)
{
    for (; n >= 32; n -= 32, y += 32, p += pn_kv_elem_bytes(type, 32)) {
        __m256 v[4];
        pn_avx2_kv32(p, v, type);
        PN_UNROLL
        for (size_t i = 0; i < 4; i++)
            _mm256_storeu_ps(y + 8 * i, v[i]);
    }
    if (pn_kv_is_block(type))
        return;
    for (; n >= 8; n -= 8, y += 8, p += pn_kv_elem_bytes(type, 8))
        _mm256_storeu_ps(y, pn_avx2_kv8(p, type));
    if (n)
        _mm256_maskstore_ps(y, pn_avx2_mask(n), pn_avx2_kv_tail(p, n, type));
}

PN_AVX2 PN_INTERNAL void pn_avx2_kv_decode(uint32_t type, const void *src, float *y, size_t n)
{
    switch (type) {
#define AKV_CASE(t) case PN_DTYPE_##t: akv_decode_as(src, y, n, PN_DTYPE_##t); break;
    PN_KV_EACH_TYPE(AKV_CASE)
#undef AKV_CASE
    default: PN_ASSERT(0); break;
    }
}

/* ------------------------------------------------------------------------------------------
 * Rotation
 * ------------------------------------------------------------------------------------------ */

/* Every lane's partner, plus or minus the lane: x + y where the sign is clear, y - x where it is set. */
PN_AVX2_INLINE __m256 akv_pair(__m256 x, __m256 partner, __m256 sign) { return _mm256_add_ps(partner, _mm256_xor_ps(x, sign)); }

/* Stages 1, 2, 4. */
PN_AVX2_INLINE __m256 akv_rotate8(__m256 x)
{
    const __m256 s1 = _mm256_setr_ps(0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f);
    const __m256 s2 = _mm256_setr_ps(0.0f, 0.0f, -0.0f, -0.0f, 0.0f, 0.0f, -0.0f, -0.0f);
    const __m256 s4 = _mm256_setr_ps(0.0f, 0.0f, 0.0f, 0.0f, -0.0f, -0.0f, -0.0f, -0.0f);
    x = akv_pair(x, _mm256_permute_ps(x, 0xb1), s1);
    x = akv_pair(x, _mm256_permute_ps(x, 0x4e), s2);
    return akv_pair(x, _mm256_permute2f128_ps(x, x, 1), s4);
}

PN_AVX2_INLINE void akv_stage(__m256 *a, __m256 *b)
{
    __m256 s = _mm256_add_ps(*a, *b), d = _mm256_sub_ps(*a, *b);
    *a = s;
    *b = d;
}

/* Stages 1 to 16 of 32 elements. */
PN_AVX2_INLINE void akv_rotate32(float *x, float scale)
{
    __m256 v[4], f = _mm256_set1_ps(scale);
    PN_UNROLL
    for (size_t i = 0; i < 4; i++)
        v[i] = akv_rotate8(_mm256_loadu_ps(x + 8 * i));
    akv_stage(v, v + 1);
    akv_stage(v + 2, v + 3);
    akv_stage(v, v + 2);
    akv_stage(v + 1, v + 3);
    PN_UNROLL
    for (size_t i = 0; i < 4; i++)
        _mm256_storeu_ps(x + 8 * i, _mm256_mul_ps(v[i], f));
}

PN_AVX2 PN_INTERNAL void pn_avx2_hadamard(float *x, size_t n, size_t b)
{
    if (b < 32) {
        pn_ref_hadamard(x, n, b);
        return;
    }
    float scale = pn_cpu_rotation_scale(b);
    for (size_t i = 0; i < n; i += 32)
        akv_rotate32(x + i, b == 32 ? scale : 1.0f);
    for (size_t h = 32; h < b; h *= 2) {
        __m256 f = _mm256_set1_ps(2 * h == b ? scale : 1.0f);
        for (size_t at = 0; at < n; at += 2 * h)
            for (size_t i = at; i < at + h; i += 8) {
                __m256 lo = _mm256_loadu_ps(x + i), hi = _mm256_loadu_ps(x + i + h);
                akv_stage(&lo, &hi);
                _mm256_storeu_ps(x + i, _mm256_mul_ps(lo, f));
                _mm256_storeu_ps(x + i + h, _mm256_mul_ps(hi, f));
            }
    }
}

#endif /* PN_CPU_X64 */

typedef int pn_cpu_avx2_kv_not_empty;           /* ISO C wants a declaration in every file */
