/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_avx512vnni.c - quantised weights with AVX-512 VNNI.
 *
 * dpbusd adds four u8 x i8 products to 32 bits without saturating, so no code is too large: int8 weights are used as
 * w + 128, and 128 times the sum of q comes off like any other offset (the sum starts there).
 */
#include "cpu/pn_cpu_avx512_attn.h"
#include "cpu/pn_cpu_avx512_float.h"
#include "cpu/pn_cpu_avx512_many.h"

#if PN_CPU_X64

PN_AVX512_MANY(vnni_b16, avx512_many16(p, k, x, next, acc, nx, true, 1))
PN_AVX512_MANY(vnni_b32, avx512_many32(p, k, x, next, acc, nx, true, 1, false))
PN_AVX512_MANY(vnni_b32_min, avx512_many32(p, k, x, next, acc, nx, true, 1, true))
PN_AVX512_MANY(vnni_ones, avx512_many256(p, x, next, acc, nx, true, 1, AVX512_ONES, false))
PN_AVX512_MANY(vnni_halves, avx512_many256(p, x, next, acc, nx, true, 1, AVX512_HALVES, false))
PN_AVX512_MANY(vnni_halves_min, avx512_many256(p, x, next, acc, nx, true, 1, AVX512_HALVES, true))
PN_AVX512_MANY(vnni_pairs, avx512_many256(p, x, next, acc, nx, true, 1, AVX512_PAIRS, false))
PN_AVX512_MANY(vnni_pairs_min, avx512_many256(p, x, next, acc, nx, true, 1, AVX512_PAIRS, true))
PN_AVX512_MANY(vnni_words, avx512_many256(p, x, next, acc, nx, true, 1, AVX512_WORDS, false))

static const avx512_many *vnni_many_of(uint32_t dtype, pn_cpu_form f)
{
    static const avx512_many b16 = PN_AVX512_BOTH(vnni_b16), b32 = PN_AVX512_BOTH(vnni_b32);
    static const avx512_many b32_min = PN_AVX512_BOTH(vnni_b32_min), ones = PN_AVX512_BOTH(vnni_ones);
    static const avx512_many halves = PN_AVX512_BOTH(vnni_halves), halves_min = PN_AVX512_BOTH(vnni_halves_min);
    static const avx512_many pairs = PN_AVX512_BOTH(vnni_pairs), pairs_min = PN_AVX512_BOTH(vnni_pairs_min);
    static const avx512_many words = PN_AVX512_BOTH(vnni_words);
    if (f.family != PN_CPU_B256)
        return f.family == PN_CPU_B16 ? &b16 : f.has_min ? &b32_min : &b32;
    switch (avx512_scaling_of(dtype, f)) {
    case AVX512_ONES: return &ones;
    case AVX512_HALVES: return f.has_min ? &halves_min : &halves;
    case AVX512_PAIRS: return f.has_min ? &pairs_min : &pairs;
    default: return &words;
    }
}

static void vnni_matmul(const pn_cpu_mm *a)
{
    pn_cpu_form f = pn_cpu_form_of(a->dtype);
    if (f.family == PN_CPU_FLOAT)
        avx512_matmul_exact(a);
    else if (a->m <= 2)
        pn_avx2_matmul(a);
    else
        pn_avx512_frame(a, f, vnni_many_of(a->dtype, f));
}

PN_INTERNAL const pn_cpu_kernels *pn_cpu_avx512vnni(void)
{
    static const pn_cpu_kernels table = {
        .name = "avx512vnni", .quant = pn_avx2_quant, .matmul = vnni_matmul,
        .matmul_exact = avx512_matmul_exact, .rms_norm = pn_avx2_rms_norm, .add = pn_avx2_add,
        .axpy = pn_avx2_axpy, .scale = pn_avx2_scale, .glu = pn_avx2_glu,
        .softcap = pn_avx2_softcap, .rope = pn_avx2_rope, .kv_encode = pn_avx2_kv_encode,
        .kv_decode = pn_avx2_kv_decode, .hadamard = pn_avx2_hadamard, .attn = avx512_attn, .softmax = pn_avx2_softmax,
    };
    return pn_x86_probe() >= PN_X86_AVX512VNNI ? &table : NULL;
}

#else

PN_INTERNAL const pn_cpu_kernels *pn_cpu_avx512vnni(void) { return NULL; }

#endif
