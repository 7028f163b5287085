/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_avx512.c - quantised weights with AVX-512 (F BW VL DQ), for machines without VNNI.
 *
 * maddubs saturates at 16 bits: as in pn_cpu_avx2.c several results are added there for as long as the codes allow.
 * int8 weights allow none, codes w + 128 are too large for one: those types stay with the AVX2 kernel.
 */
#include "cpu/pn_cpu_avx512_attn.h"
#include "cpu/pn_cpu_avx512_float.h"
#include "cpu/pn_cpu_avx512_many.h"

#if PN_CPU_X64

PN_AVX512_MANY(avx512_b16, avx512_many16(p, k, x, next, acc, nx, false, 4))
PN_AVX512_MANY(avx512_b32, avx512_many32(p, k, x, next, acc, nx, false, 4, false))
PN_AVX512_MANY(avx512_b32_min, avx512_many32(p, k, x, next, acc, nx, false, 4, true))
PN_AVX512_MANY(avx512_ones, avx512_many256(p, x, next, acc, nx, false, 4, AVX512_ONES, false))
PN_AVX512_MANY(avx512_halves, avx512_many256(p, x, next, acc, nx, false, 4, AVX512_HALVES, false))
PN_AVX512_MANY(avx512_halves_min, avx512_many256(p, x, next, acc, nx, false, 4, AVX512_HALVES, true))
PN_AVX512_MANY(avx512_pairs_min, avx512_many256(p, x, next, acc, nx, false, 4, AVX512_PAIRS, true))
PN_AVX512_MANY(avx512_words_63, avx512_many256(p, x, next, acc, nx, false, 2, AVX512_WORDS, false))
PN_AVX512_MANY(avx512_words_126, avx512_many256(p, x, next, acc, nx, false, 1, AVX512_WORDS, false))

static const avx512_many *avx512_many_of(uint32_t dtype, pn_cpu_form f)
{
    static const avx512_many b16 = PN_AVX512_BOTH(avx512_b16), b32 = PN_AVX512_BOTH(avx512_b32);
    static const avx512_many b32_min = PN_AVX512_BOTH(avx512_b32_min), ones = PN_AVX512_BOTH(avx512_ones);
    static const avx512_many halves = PN_AVX512_BOTH(avx512_halves), halves_min = PN_AVX512_BOTH(avx512_halves_min);
    static const avx512_many pairs_min = PN_AVX512_BOTH(avx512_pairs_min);
    static const avx512_many words_63 = PN_AVX512_BOTH(avx512_words_63), words_126 = PN_AVX512_BOTH(avx512_words_126);
    if (f.family != PN_CPU_B256)
        return f.family == PN_CPU_B16 ? &b16 : f.has_min ? &b32_min : &b32;
    switch (avx512_scaling_of(dtype, f)) {
    case AVX512_ONES: return &ones;
    case AVX512_HALVES: return f.has_min ? &halves_min : &halves;
    case AVX512_PAIRS: return &pairs_min;       /* of the two types the one without int8 codes */
    default: return f.cmax <= 63 ? &words_63 : &words_126;
    }
}

static void avx512_matmul(const pn_cpu_mm *a)
{
    pn_cpu_form f = pn_cpu_form_of(a->dtype);
    if (f.family == PN_CPU_FLOAT)
        avx512_matmul_exact(a);
    else if (a->m <= 2 || f.cmax == 255)
        pn_avx2_matmul(a);
    else
        pn_avx512_frame(a, f, avx512_many_of(a->dtype, f));
}

PN_INTERNAL const pn_cpu_kernels *pn_cpu_avx512(void)
{
    static const pn_cpu_kernels table = {
        .name = "avx512", .quant = pn_avx2_quant, .matmul = avx512_matmul,
        .matmul_exact = avx512_matmul_exact, .rms_norm = pn_avx2_rms_norm, .add = pn_avx2_add,
        .axpy = pn_avx2_axpy, .scale = pn_avx2_scale, .glu = pn_avx2_glu,
        .softcap = pn_avx2_softcap, .rope = pn_avx2_rope, .kv_encode = pn_avx2_kv_encode,
        .kv_decode = pn_avx2_kv_decode, .hadamard = pn_avx2_hadamard, .attn = avx512_attn, .softmax = pn_avx2_softmax,
    };
    return pn_x86_probe() >= PN_X86_AVX512 ? &table : NULL;
}

#else

PN_INTERNAL const pn_cpu_kernels *pn_cpu_avx512(void) { return NULL; }

#endif
