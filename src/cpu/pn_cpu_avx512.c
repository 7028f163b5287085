/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_avx512.c - prefill of quantised weights with AVX-512 (F BW VL DQ), 16 rows in the lanes.
 *
 * The arithmetic is pn_cpu_avx2.c's, twice as wide; everything else is AVX2's by name.  int8
 * weights have no 512-bit sign instruction: codes w + 128 would saturate maddubs, so those types
 * stay with the AVX2 kernel.
 */
#include "cpu/pn_cpu_avx512_many.h"

#if PN_CPU_X64

PN_AVX512 static inline __m512i avx512_splat4(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

#define AVX512_W(k) PN_AVX512_PAIR(q0 + 32 * (k), q1 + 32 * (k))
#define AVX512_MUL(k) \
    do { \
        w = AVX512_W(k); \
        t0 = _mm512_maddubs_epi16(w, avx512_splat4(x[0].q + e + 4 * (k))); \
        t1 = _mm512_maddubs_epi16(w, avx512_splat4(x[1].q + e + 4 * (k))); \
        t2 = _mm512_maddubs_epi16(w, avx512_splat4(x[2].q + e + 4 * (k))); \
        t3 = _mm512_maddubs_epi16(w, avx512_splat4(x[3].q + e + 4 * (k))); \
    } while (0)
#define AVX512_ADD(k) \
    do { \
        w = AVX512_W(k); \
        t0 = _mm512_add_epi16(t0, _mm512_maddubs_epi16(w, avx512_splat4(x[0].q + e + 4 * (k)))); \
        t1 = _mm512_add_epi16(t1, _mm512_maddubs_epi16(w, avx512_splat4(x[1].q + e + 4 * (k)))); \
        t2 = _mm512_add_epi16(t2, _mm512_maddubs_epi16(w, avx512_splat4(x[2].q + e + 4 * (k)))); \
        t3 = _mm512_add_epi16(t3, _mm512_maddubs_epi16(w, avx512_splat4(x[3].q + e + 4 * (k)))); \
    } while (0)
#define AVX512_SUM(c) \
    do { \
        i0 = _mm512_add_epi32(i0, _mm512_madd_epi16(t0, c)); \
        i1 = _mm512_add_epi32(i1, _mm512_madd_epi16(t1, c)); \
        i2 = _mm512_add_epi32(i2, _mm512_madd_epi16(t2, c)); \
        i3 = _mm512_add_epi32(i3, _mm512_madd_epi16(t3, c)); \
    } while (0)
/* i* -= c times the pair of sums of q at s */
#define AVX512_CORRECT(c, at) \
    do { \
        i0 = _mm512_sub_epi32(i0, _mm512_madd_epi16(c, avx512_splat4(x[0].s + (at)))); \
        i1 = _mm512_sub_epi32(i1, _mm512_madd_epi16(c, avx512_splat4(x[1].s + (at)))); \
        i2 = _mm512_sub_epi32(i2, _mm512_madd_epi16(c, avx512_splat4(x[2].s + (at)))); \
        i3 = _mm512_sub_epi32(i3, _mm512_madd_epi16(c, avx512_splat4(x[3].s + (at)))); \
    } while (0)
#define AVX512_ZERO() i0 = i1 = i2 = i3 = _mm512_setzero_si512()
#define AVX512_SCALES(lo, hi) _mm512_castsi512_ps(PN_AVX512_PAIR(lo, hi))
#define AVX512_FMA(dw, b) \
    do { \
        __m512 d_ = dw; \
        a0 = _mm512_fmadd_ps(_mm512_mul_ps(d_, _mm512_set1_ps(x[0].d[b])), _mm512_cvtepi32_ps(i0), a0); \
        a1 = _mm512_fmadd_ps(_mm512_mul_ps(d_, _mm512_set1_ps(x[1].d[b])), _mm512_cvtepi32_ps(i1), a1); \
        a2 = _mm512_fmadd_ps(_mm512_mul_ps(d_, _mm512_set1_ps(x[2].d[b])), _mm512_cvtepi32_ps(i2), a2); \
        a3 = _mm512_fmadd_ps(_mm512_mul_ps(d_, _mm512_set1_ps(x[3].d[b])), _mm512_cvtepi32_ps(i3), a3); \
    } while (0)
#define AVX512_STORE() \
    do { \
        _mm512_store_ps(sum[0], a0); \
        _mm512_store_ps(sum[1], a1); \
        _mm512_store_ps(sum[2], a2); \
        _mm512_store_ps(sum[3], a3); \
    } while (0)

/* Blocks of 32; narrow codes (to 31: four results of maddubs fit). */
PN_AVX512 static void avx512_many32(const pn_x86_panel *p0, const pn_x86_panel *p1, pn_cpu_form f, size_t k,
                                    const pn_x86_x x[PN_AVX512_X], float sum[PN_AVX512_X][16])
{
    const __m512i one = _mm512_set1_epi16(1), offs = _mm512_set1_epi16(f.off), minus = _mm512_set1_epi16(-1);
    __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
    for (size_t b = 0; b < k / 32; b++) {
        const uint8_t *q0 = p0[b / 8].q[b % 8 * 8][0], *q1 = p1[b / 8].q[b % 8 * 8][0];
        size_t e = 32 * b, c = b / 8, i = b % 8;
        __m512i w, t0, t1, t2, t3, i0, i1, i2, i3;
        AVX512_ZERO();
        AVX512_MUL(0); AVX512_ADD(1); AVX512_ADD(2); AVX512_ADD(3); AVX512_SUM(one);
        AVX512_MUL(4); AVX512_ADD(5); AVX512_ADD(6); AVX512_ADD(7); AVX512_SUM(one);
        if (!f.has_min)
            AVX512_CORRECT(offs, 2 * b);
        AVX512_FMA(AVX512_SCALES(p0[c].u.b32.d[i], p1[c].u.b32.d[i]), b);
        if (f.has_min) {
            AVX512_ZERO();
            AVX512_CORRECT(minus, 2 * b);
            AVX512_FMA(AVX512_SCALES(p0[c].u.b32.m[i], p1[c].u.b32.m[i]), b);
        }
    }
    AVX512_STORE();
}

PN_AVX512 static void avx512_many16(const pn_x86_panel *p0, const pn_x86_panel *p1, pn_cpu_form f, size_t k,
                                    const pn_x86_x x[PN_AVX512_X], float sum[PN_AVX512_X][16])
{
    const __m512i one = _mm512_set1_epi16(1), off0 = _mm512_set1_epi32(f.off);
    const __m512i off1 = _mm512_set1_epi32(f.off * 65536);
    __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
    for (size_t b = 0; b < k / 32; b++) {
        const uint8_t *q0 = p0[b / 8].q[b % 8 * 8][0], *q1 = p1[b / 8].q[b % 8 * 8][0];
        size_t e = 32 * b, c = b / 8, i = b % 8 * 2;
        __m512i w, t0, t1, t2, t3, i0, i1, i2, i3;
        AVX512_ZERO();
        AVX512_MUL(0); AVX512_ADD(1); AVX512_ADD(2); AVX512_ADD(3); AVX512_SUM(one);
        AVX512_CORRECT(off0, 2 * b);
        AVX512_FMA(AVX512_SCALES(p0[c].u.d16[i], p1[c].u.d16[i]), b);
        AVX512_ZERO();
        AVX512_MUL(4); AVX512_ADD(5); AVX512_ADD(6); AVX512_ADD(7); AVX512_SUM(one);
        AVX512_CORRECT(off1, 2 * b);
        AVX512_FMA(AVX512_SCALES(p0[c].u.d16[i + 1], p1[c].u.d16[i + 1]), b);
    }
    AVX512_STORE();
}

PN_AVX512 static void avx512_many256(const pn_x86_panel *p0, const pn_x86_panel *p1, pn_cpu_form f, size_t k,
                                     const pn_x86_x x[PN_AVX512_X], float sum[PN_AVX512_X][16])
{
    const __m512 sign = _mm512_set1_ps(-0.0f);
    __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
    for (size_t b = 0; b < k / 256; b++, p0++, p1++) {
        __m512i w, t0, t1, t2, t3, i0, i1, i2, i3;
        AVX512_ZERO();
        for (size_t t = 0; t < 16; t++) {
            const uint8_t *q0 = p0->q[4 * t][0], *q1 = p1->q[4 * t][0];
            size_t e = 256 * b + 16 * t;
            __m512i sc = PN_AVX512_PAIR(p0->u.b256.sc[t], p1->u.b256.sc[t]);
            AVX512_MUL(0);
            if (f.cmax > 63) {
                AVX512_SUM(sc);
                AVX512_MUL(1); AVX512_SUM(sc);
                AVX512_MUL(2); AVX512_SUM(sc);
                AVX512_MUL(3); AVX512_SUM(sc);
            } else if (f.cmax > 31) {
                AVX512_ADD(1); AVX512_SUM(sc);
                AVX512_MUL(2); AVX512_ADD(3); AVX512_SUM(sc);
            } else {
                AVX512_ADD(1); AVX512_ADD(2); AVX512_ADD(3); AVX512_SUM(sc);
            }
        }
        if (!f.has_min)
            for (size_t t = 0; t < 8; t++)
                AVX512_CORRECT(PN_AVX512_PAIR(p0->u.b256.cr[t], p1->u.b256.cr[t]), 16 * b + 2 * t);
        AVX512_FMA(AVX512_SCALES(p0->u.b256.d, p1->u.b256.d), b);
        if (f.has_min) {
            AVX512_ZERO();
            for (size_t t = 0; t < 8; t++)
                AVX512_CORRECT(PN_AVX512_PAIR(p0->u.b256.cr[t], p1->u.b256.cr[t]), 16 * b + 2 * t);
            /* Both factors negated: the same product. */
            AVX512_FMA(_mm512_xor_ps(AVX512_SCALES(p0->u.b256.m, p1->u.b256.m), sign), b);
        }
    }
    AVX512_STORE();
}

#undef AVX512_W
#undef AVX512_MUL
#undef AVX512_ADD
#undef AVX512_SUM
#undef AVX512_CORRECT
#undef AVX512_ZERO
#undef AVX512_SCALES
#undef AVX512_FMA
#undef AVX512_STORE

static void avx512_matmul(const pn_cpu_mm *a)
{
    pn_cpu_form f = pn_cpu_form_of(a->dtype);
    if (f.family == PN_CPU_FLOAT || a->m <= 4 || f.cmax == 255)
        pn_avx2_matmul(a);
    else
        pn_avx512_frame(a, f, f.family == PN_CPU_B256  ? avx512_many256
                              : f.family == PN_CPU_B16 ? avx512_many16
                                                       : avx512_many32);
}

PN_INTERNAL const pn_cpu_kernels *pn_cpu_avx512(void)
{
    static const pn_cpu_kernels table = {
        .name = "avx512", .quant = pn_avx2_quant, .matmul = avx512_matmul,
        .matmul_exact = pn_avx2_matmul_exact, .rms_norm = pn_avx2_rms_norm, .add = pn_avx2_add,
        .axpy = pn_avx2_axpy, .scale = pn_avx2_scale, .glu = pn_avx2_glu,
        .softcap = pn_avx2_softcap, .rope = pn_avx2_rope, .kv_encode = pn_avx2_kv_encode,
        .kv_decode = pn_avx2_kv_decode, .hadamard = pn_avx2_hadamard, .attn = pn_avx2_attn, .softmax = pn_avx2_softmax,
    };
    return pn_x86_probe() >= PN_X86_AVX512 ? &table : NULL;
}

#else

PN_INTERNAL const pn_cpu_kernels *pn_cpu_avx512(void) { return NULL; }

#endif
