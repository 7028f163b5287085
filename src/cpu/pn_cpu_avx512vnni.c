/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_avx512vnni.c - prefill of quantised weights with AVX-512 VNNI.
 *
 * dpbusd adds four u8 x i8 products to 32 bits without saturating, so no code is too large: int8
 * weights are used as w + 128 (their sign bit flipped) and 128 times the sum of q comes off, like
 * any other offset.  Two chains of dpbusd for each activation row hide its latency of 5 cycles.
 */
#include "cpu/pn_cpu_avx512_many.h"

#if PN_CPU_X64

PN_AVX512VNNI static inline __m512i vnni_splat4(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

/* i* += dword k, t* += dword k + 1 */
#define VNNI_DOT2(k) \
    do { \
        w = _mm512_xor_si512(PN_AVX512_PAIR(q0 + 32 * (k), q1 + 32 * (k)), flip); \
        v = _mm512_xor_si512(PN_AVX512_PAIR(q0 + 32 * (k) + 32, q1 + 32 * (k) + 32), flip); \
        i0 = _mm512_dpbusd_epi32(i0, w, vnni_splat4(x[0].q + e + 4 * (k))); \
        i1 = _mm512_dpbusd_epi32(i1, w, vnni_splat4(x[1].q + e + 4 * (k))); \
        i2 = _mm512_dpbusd_epi32(i2, w, vnni_splat4(x[2].q + e + 4 * (k))); \
        i3 = _mm512_dpbusd_epi32(i3, w, vnni_splat4(x[3].q + e + 4 * (k))); \
        t0 = _mm512_dpbusd_epi32(t0, v, vnni_splat4(x[0].q + e + 4 * (k) + 4)); \
        t1 = _mm512_dpbusd_epi32(t1, v, vnni_splat4(x[1].q + e + 4 * (k) + 4)); \
        t2 = _mm512_dpbusd_epi32(t2, v, vnni_splat4(x[2].q + e + 4 * (k) + 4)); \
        t3 = _mm512_dpbusd_epi32(t3, v, vnni_splat4(x[3].q + e + 4 * (k) + 4)); \
    } while (0)
#define VNNI_ZERO() i0 = i1 = i2 = i3 = t0 = t1 = t2 = t3 = _mm512_setzero_si512()
#define VNNI_JOIN() \
    do { \
        i0 = _mm512_add_epi32(i0, t0); \
        i1 = _mm512_add_epi32(i1, t1); \
        i2 = _mm512_add_epi32(i2, t2); \
        i3 = _mm512_add_epi32(i3, t3); \
    } while (0)
#define VNNI_CORRECT(c, at) \
    do { \
        i0 = _mm512_sub_epi32(i0, _mm512_madd_epi16(c, vnni_splat4(x[0].s + (at)))); \
        i1 = _mm512_sub_epi32(i1, _mm512_madd_epi16(c, vnni_splat4(x[1].s + (at)))); \
        i2 = _mm512_sub_epi32(i2, _mm512_madd_epi16(c, vnni_splat4(x[2].s + (at)))); \
        i3 = _mm512_sub_epi32(i3, _mm512_madd_epi16(c, vnni_splat4(x[3].s + (at)))); \
    } while (0)
#define VNNI_SCALES(lo, hi) _mm512_castsi512_ps(PN_AVX512_PAIR(lo, hi))
#define VNNI_FMA(dw, b) \
    do { \
        __m512 d_ = dw; \
        a0 = _mm512_fmadd_ps(_mm512_mul_ps(d_, _mm512_set1_ps(x[0].d[b])), _mm512_cvtepi32_ps(i0), a0); \
        a1 = _mm512_fmadd_ps(_mm512_mul_ps(d_, _mm512_set1_ps(x[1].d[b])), _mm512_cvtepi32_ps(i1), a1); \
        a2 = _mm512_fmadd_ps(_mm512_mul_ps(d_, _mm512_set1_ps(x[2].d[b])), _mm512_cvtepi32_ps(i2), a2); \
        a3 = _mm512_fmadd_ps(_mm512_mul_ps(d_, _mm512_set1_ps(x[3].d[b])), _mm512_cvtepi32_ps(i3), a3); \
    } while (0)
#define VNNI_STORE() \
    do { \
        _mm512_store_ps(sum[0], a0); \
        _mm512_store_ps(sum[1], a1); \
        _mm512_store_ps(sum[2], a2); \
        _mm512_store_ps(sum[3], a3); \
    } while (0)
#define VNNI_FLIP(f) _mm512_set1_epi8((f).cmax == 255 ? -128 : 0)

PN_AVX512VNNI static void vnni_many32(const pn_x86_panel *p0, const pn_x86_panel *p1, pn_cpu_form f, size_t k,
                                      const pn_x86_x x[PN_AVX512_X], float sum[PN_AVX512_X][16])
{
    const __m512i offs = _mm512_set1_epi16(f.off), minus = _mm512_set1_epi16(-1), flip = VNNI_FLIP(f);
    __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
    for (size_t b = 0; b < k / 32; b++) {
        const uint8_t *q0 = p0[b / 8].q[b % 8 * 8][0], *q1 = p1[b / 8].q[b % 8 * 8][0];
        size_t e = 32 * b, c = b / 8, i = b % 8;
        __m512i w, v, t0, t1, t2, t3, i0, i1, i2, i3;
        VNNI_ZERO();
        VNNI_DOT2(0);
        VNNI_DOT2(2);
        VNNI_DOT2(4);
        VNNI_DOT2(6);
        VNNI_JOIN();
        if (!f.has_min)
            VNNI_CORRECT(offs, 2 * b);
        VNNI_FMA(VNNI_SCALES(p0[c].u.b32.d[i], p1[c].u.b32.d[i]), b);
        if (f.has_min) {
            VNNI_ZERO();
            VNNI_CORRECT(minus, 2 * b);
            VNNI_FMA(VNNI_SCALES(p0[c].u.b32.m[i], p1[c].u.b32.m[i]), b);
        }
    }
    VNNI_STORE();
}

PN_AVX512VNNI static void vnni_many16(const pn_x86_panel *p0, const pn_x86_panel *p1, pn_cpu_form f, size_t k,
                                      const pn_x86_x x[PN_AVX512_X], float sum[PN_AVX512_X][16])
{
    const __m512i off0 = _mm512_set1_epi32(f.off), off1 = _mm512_set1_epi32(f.off * 65536), flip = VNNI_FLIP(f);
    __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
    for (size_t b = 0; b < k / 32; b++) {
        const uint8_t *q0 = p0[b / 8].q[b % 8 * 8][0], *q1 = p1[b / 8].q[b % 8 * 8][0];
        size_t e = 32 * b, c = b / 8, i = b % 8 * 2;
        __m512i w, v, t0, t1, t2, t3, i0, i1, i2, i3;
        VNNI_ZERO();
        VNNI_DOT2(0);
        VNNI_DOT2(2);
        VNNI_JOIN();
        VNNI_CORRECT(off0, 2 * b);
        VNNI_FMA(VNNI_SCALES(p0[c].u.d16[i], p1[c].u.d16[i]), b);
        VNNI_ZERO();
        VNNI_DOT2(4);
        VNNI_DOT2(6);
        VNNI_JOIN();
        VNNI_CORRECT(off1, 2 * b);
        VNNI_FMA(VNNI_SCALES(p0[c].u.d16[i + 1], p1[c].u.d16[i + 1]), b);
    }
    VNNI_STORE();
}

PN_AVX512VNNI static void vnni_many256(const pn_x86_panel *p0, const pn_x86_panel *p1, pn_cpu_form f, size_t k,
                                       const pn_x86_x x[PN_AVX512_X], float sum[PN_AVX512_X][16])
{
    const __m512 sign = _mm512_set1_ps(-0.0f);
    const __m512i flip = VNNI_FLIP(f);
    __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
    for (size_t b = 0; b < k / 256; b++, p0++, p1++) {
        __m512i w, v, t0, t1, t2, t3, i0, i1, i2, i3, u0, u1, u2, u3;
        u0 = u1 = u2 = u3 = _mm512_setzero_si512();
        for (size_t t = 0; t < 16; t++) {
            const uint8_t *q0 = p0->q[4 * t][0], *q1 = p1->q[4 * t][0];
            size_t e = 256 * b + 16 * t;
            __m512i sc = _mm512_srai_epi32(PN_AVX512_PAIR(p0->u.b256.sc[t], p1->u.b256.sc[t]), 16);
            VNNI_ZERO();
            VNNI_DOT2(0);
            VNNI_DOT2(2);
            VNNI_JOIN();
            u0 = _mm512_add_epi32(u0, _mm512_mullo_epi32(i0, sc));
            u1 = _mm512_add_epi32(u1, _mm512_mullo_epi32(i1, sc));
            u2 = _mm512_add_epi32(u2, _mm512_mullo_epi32(i2, sc));
            u3 = _mm512_add_epi32(u3, _mm512_mullo_epi32(i3, sc));
        }
        i0 = u0, i1 = u1, i2 = u2, i3 = u3;
        if (!f.has_min)
            for (size_t t = 0; t < 8; t++)
                VNNI_CORRECT(PN_AVX512_PAIR(p0->u.b256.cr[t], p1->u.b256.cr[t]), 16 * b + 2 * t);
        VNNI_FMA(VNNI_SCALES(p0->u.b256.d, p1->u.b256.d), b);
        if (f.has_min) {
            VNNI_ZERO();
            for (size_t t = 0; t < 8; t++)
                VNNI_CORRECT(PN_AVX512_PAIR(p0->u.b256.cr[t], p1->u.b256.cr[t]), 16 * b + 2 * t);
            /* Both factors negated: the same product. */
            VNNI_FMA(_mm512_xor_ps(VNNI_SCALES(p0->u.b256.m, p1->u.b256.m), sign), b);
        }
    }
    VNNI_STORE();
}

#undef VNNI_DOT2
#undef VNNI_ZERO
#undef VNNI_JOIN
#undef VNNI_CORRECT
#undef VNNI_SCALES
#undef VNNI_FMA
#undef VNNI_STORE
#undef VNNI_FLIP

static void vnni_matmul(const pn_cpu_mm *a)
{
    pn_cpu_form f = pn_cpu_form_of(a->dtype);
    if (f.family == PN_CPU_FLOAT || a->m <= 4)
        pn_avx2_matmul(a);
    else
        pn_avx512_frame(a, f, f.family == PN_CPU_B256  ? vnni_many256
                              : f.family == PN_CPU_B16 ? vnni_many16
                                                       : vnni_many32);
}

PN_INTERNAL const pn_cpu_kernels *pn_cpu_avx512vnni(void)
{
    static const pn_cpu_kernels table = {
        .name = "avx512vnni", .quant = pn_avx2_quant, .matmul = vnni_matmul,
        .matmul_exact = pn_avx2_matmul_exact, .rms_norm = pn_avx2_rms_norm, .add = pn_avx2_add,
        .axpy = pn_avx2_axpy, .scale = pn_avx2_scale, .glu = pn_avx2_glu,
        .softcap = pn_avx2_softcap, .rope = pn_avx2_rope, .kv_encode = pn_avx2_kv_encode,
        .kv_decode = pn_avx2_kv_decode, .hadamard = pn_avx2_hadamard, .attn = pn_avx2_attn, .softmax = pn_avx2_softmax,
    };
    return pn_x86_probe() >= PN_X86_AVX512VNNI ? &table : NULL;
}

#else

PN_INTERNAL const pn_cpu_kernels *pn_cpu_avx512vnni(void) { return NULL; }

#endif
