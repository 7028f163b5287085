/*
 * emulated_avx512.h - the AVX-512 intrinsics that src/cpu uses, as pairs of AVX2 ones.
 *
 * Most machines that run the tests have no AVX-512.  With these the AVX-512 and VNNI kernels are
 * compiled and compared with ref bit for bit anyway: same lanes, same order, same fused operations;
 * only the registers are two halves.  Include before the kernels' .c files.
 */
#ifndef EMULATED_AVX512_H
#define EMULATED_AVX512_H

#include "cpu/pn_cpu_x86_mm.h"

#if PN_CPU_X64

#undef PN_AVX512
#define PN_AVX512 PN_AVX2

typedef struct emu_i { __m256i a, b; } emu_i;
typedef struct emu_f { __m256 a, b; } emu_f;

/* emu_NAME(x, y) = both halves through _mm256_INTRINSIC */
#define EMU_2(type, name, op) PN_AVX2_INLINE type name(type x, type y) { return (type){op(x.a, y.a), op(x.b, y.b)}; }
EMU_2(emu_i, emu_add32, _mm256_add_epi32)
EMU_2(emu_i, emu_add16, _mm256_add_epi16)
EMU_2(emu_i, emu_madd, _mm256_madd_epi16)
EMU_2(emu_i, emu_maddubs, _mm256_maddubs_epi16)
EMU_2(emu_i, emu_mullo, _mm256_mullo_epi32)
EMU_2(emu_i, emu_and, _mm256_and_si256)
EMU_2(emu_f, emu_mul, _mm256_mul_ps)
EMU_2(emu_f, emu_addf, _mm256_add_ps)
#undef EMU_2

PN_AVX2_INLINE emu_i emu_both(__m256i v) { return (emu_i){v, v}; }
PN_AVX2_INLINE emu_f emu_bothf(__m256 v) { return (emu_f){v, v}; }
PN_AVX2_INLINE emu_i emu_srai(emu_i x, int n) { return (emu_i){_mm256_srai_epi32(x.a, n), _mm256_srai_epi32(x.b, n)}; }
PN_AVX2_INLINE emu_f emu_cvt(emu_i x) { return (emu_f){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
PN_AVX2_INLINE emu_f emu_bits(emu_i x) { return (emu_f){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
PN_AVX2_INLINE emu_f emu_fma(emu_f x, emu_f y, emu_f z)
{
    return (emu_f){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
PN_AVX2_INLINE emu_f emu_cvtph(__m256i x)
{
    return (emu_f){_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
}
PN_AVX2_INLINE emu_i emu_widen(__m256i x)
{
    return (emu_i){_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)), _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1))};
}
PN_AVX2_INLINE emu_i emu_slli(emu_i x, int n) { return (emu_i){_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)}; }
PN_AVX2_INLINE emu_i emu_load(const void *p)
{
    const __m256i *v = p;
    return (emu_i){_mm256_load_si256(v), _mm256_load_si256(v + 1)};
}
PN_AVX2_INLINE emu_f emu_loadf(const float *p) { return (emu_f){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PN_AVX2_INLINE void emu_store(float *p, emu_f x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}

/* vpdpbusd: four products u8 x i8 into each int32, no saturation.  (In registers: arrays here, in every inlined copy, had
 * a sanitizing compiler busy for minutes.) */
PN_AVX2_INLINE __m256i emu_dot4(__m256i acc, __m256i u, __m256i s)
{
    const __m256i lo = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(u)), _mm256_cvtepi8_epi16(_mm256_castsi256_si128(s)));
    const __m256i hi = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_extracti128_si256(u, 1)), _mm256_cvtepi8_epi16(_mm256_extracti128_si256(s, 1)));
    return _mm256_add_epi32(acc, _mm256_permute4x64_epi64(_mm256_hadd_epi32(lo, hi), 0xd8));
}
/* What the kernels say in assembly. */
#define PN_AVX512_EMULATED 1
PN_AVX2_INLINE emu_i avx512_dpbusd(emu_i i, emu_i w, const int32_t *x)
{
    const __m256i s = _mm256_set1_epi32(*x);
    return (emu_i){emu_dot4(i.a, w.a, s), emu_dot4(i.b, w.b, s)};
}
PN_AVX2_INLINE emu_i avx512_dpwssd(emu_i i, emu_i a, emu_i b) { return emu_add32(i, emu_madd(a, b)); }

/* As if the machine had everything, where it has AVX2 at all. */
static pn_x86_level emu_probe(void) { return pn_x86_probe() >= PN_X86_AVX2 ? PN_X86_AVX512VNNI : PN_X86_NONE; }

#undef _mm512_srai_epi32
#define __m512i emu_i
#define __m512 emu_f
#define _mm512_add_epi32 emu_add32
#define _mm512_add_epi16 emu_add16
#define _mm512_madd_epi16 emu_madd
#define _mm512_maddubs_epi16 emu_maddubs
#define _mm512_mullo_epi32 emu_mullo
#define _mm512_and_si512 emu_and
#define _mm512_srai_epi32 emu_srai
#define _mm512_set1_epi32(v) emu_both(_mm256_set1_epi32(v))
#define _mm512_set1_epi16(v) emu_both(_mm256_set1_epi16(v))
#define _mm512_setzero_si512() emu_both(_mm256_setzero_si256())
#define _mm512_load_si512 emu_load
#define _mm512_load_ps emu_loadf
#define _mm512_loadu_ps emu_loadf
#define _mm512_storeu_ps emu_store
#undef _mm512_cvtph_ps
#undef _mm512_slli_epi32
#define _mm512_cvtepu16_epi32 emu_widen
#define _mm512_slli_epi32 emu_slli
#undef _mm512_shuffle_f32x4
#undef _mm512_shuffle_ps
#define EMU_LANES(v, n) _mm256_permute2f128_ps((v).a, (v).b, ((n) & 3) | ((n) >> 2 & 3) << 4)
#define _mm512_shuffle_f32x4(x, y, n) ((emu_f){EMU_LANES(x, n), EMU_LANES(y, (n) >> 4)})
#define _mm512_shuffle_ps(x, y, n) ((emu_f){_mm256_shuffle_ps((x).a, (y).a, n), _mm256_shuffle_ps((x).b, (y).b, n)})
#define _mm512_cvtph_ps emu_cvtph
#define _mm512_add_ps emu_addf
#define _mm512_setzero_ps() emu_bothf(_mm256_setzero_ps())
#define _mm512_set1_ps(v) emu_bothf(_mm256_set1_ps(v))
#define _mm512_mul_ps emu_mul
#define _mm512_fmadd_ps emu_fma
#define _mm512_cvtepi32_ps emu_cvt
#define _mm512_castsi512_ps emu_bits
#define _mm512_store_ps emu_store
#define pn_x86_probe emu_probe

#endif /* PN_CPU_X64 */

#endif /* EMULATED_AVX512_H */
