/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_dotprod.c - products of quantised weights with ARMv8.2's sdot; the rest is plain NEON.
 *
 * sdot adds four products of signed bytes to an int32, so nothing can overflow and no step depends
 * on how large codes are.  One activation row multiplies an oct along k; four run over a panel, 8
 * rows in two vectors, by elements of a vector of activations: 32 sdots for 12 loads.
 *
 * Every function with vectors carries the target, helpers too (see pn_cpu_arm.h).
 */
#include "cpu/pn_cpu_arm.h"

#if PN_CPU_DOTPROD

#if defined(__linux__) && !defined(__ARM_FEATURE_DOTPROD)
#include <sys/auxv.h>
#elif defined(__APPLE__) && !defined(__ARM_FEATURE_DOTPROD)
#include <sys/sysctl.h>
#endif

static bool sdot_probe(void)
{
#if defined(__ARM_FEATURE_DOTPROD)
    return true;
#elif defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1;           /* HWCAP_ASIMDDP */
#elif defined(__APPLE__)
    int yes = 0;
    size_t size = sizeof yes;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &yes, &size, NULL, 0) == 0 && yes;
#else
    return false;
#endif
}

PN_DOTPROD_INLINE int32x4_t sdot_tree(int32x4_t a, int32x4_t b, int32x4_t c, int32x4_t d)
{
    return vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
}

/* acc + (d * dx) * i for four rows. */
PN_DOTPROD_INLINE float32x4_t sdot_fma(float32x4_t acc, float32x4_t d, float dx, int32x4_t i)
{
    return vfmaq_f32(acc, vmulq_n_f32(d, dx), vcvtq_f32_s32(i));
}

/* ------------------------------------------------------------------------------------------
 * One activation row
 * ------------------------------------------------------------------------------------------ */

PN_DOTPROD_INLINE int32x4_t sdot_16(const int8_t *w, int8x16_t x)
{
    return vdotq_s32(vdupq_n_s32(0), vld1q_s8(w), x);
}

PN_DOTPROD_INLINE int32x4_t sdot_32(const int8_t *w, int8x16_t x0, int8x16_t x1)
{
    return vdotq_s32(sdot_16(w, x0), vld1q_s8(w + 16), x1);
}

PN_DOTPROD_INLINE void sdot_one32(const pn_arm_oct *o, size_t n, const pn_arm_x *x, float *acc,
                                  const bool has_min)
{
    float32x4_t lo = vld1q_f32(acc), hi = vld1q_f32(acc + 4);
    for (size_t b = 0; b < n / 32; b++) {
        const int8_t *w = o->q[0] + 32 * b, *v = w + 1024;
        int8x16_t x0 = vld1q_s8(x->q + 32 * b), x1 = vld1q_s8(x->q + 32 * b + 16);
        float dx = x->d[b];
        lo = sdot_fma(lo, vld1q_f32(o->d[b]), dx,
                     sdot_tree(sdot_32(w, x0, x1), sdot_32(w + 256, x0, x1), sdot_32(w + 512, x0, x1),
                              sdot_32(w + 768, x0, x1)));
        hi = sdot_fma(hi, vld1q_f32(o->d[b] + 4), dx,
                     sdot_tree(sdot_32(v, x0, x1), sdot_32(v + 256, x0, x1), sdot_32(v + 512, x0, x1),
                              sdot_32(v + 768, x0, x1)));
        if (has_min) {
            int32x4_t s = vdupq_n_s32(x->s[2 * b] + x->s[2 * b + 1]);
            lo = sdot_fma(lo, vld1q_f32(o->m[b]), dx, s);
            hi = sdot_fma(hi, vld1q_f32(o->m[b] + 4), dx, s);
        }
    }
    vst1q_f32(acc, lo);
    vst1q_f32(acc + 4, hi);
}

/* NVFP4: 16 codes have factors of their own. */
PN_DOTPROD_INLINE void sdot_one16(const pn_arm_oct *o, size_t n, const pn_arm_x *x, float *acc)
{
    float32x4_t lo = vld1q_f32(acc), hi = vld1q_f32(acc + 4);
    for (size_t t = 0; t < n / 16; t++) {
        const int8_t *w = o->q[0] + 16 * t, *v = w + 1024;
        int8x16_t q = vld1q_s8(x->q + 16 * t);
        float dx = x->d[t / 2];
        lo = sdot_fma(lo, vld1q_f32(o->d[t]), dx,
                     sdot_tree(sdot_16(w, q), sdot_16(w + 256, q), sdot_16(w + 512, q), sdot_16(w + 768, q)));
        hi = sdot_fma(hi, vld1q_f32(o->d[t] + 4), dx,
                     sdot_tree(sdot_16(v, q), sdot_16(v + 256, q), sdot_16(v + 512, q), sdot_16(v + 768, q)));
    }
    vst1q_f32(acc, lo);
    vst1q_f32(acc + 4, hi);
}

/* 16 codes (32 with one scale) of rows a and b. */
#define SDOT_16(k) \
    do { \
        int8x16_t xv = vld1q_s8(x + 16 * (k)); \
        ia = vmlaq_laneq_s32(ia, sdot_16(a + 16 * (k), xv), sa, k); \
        ib = vmlaq_laneq_s32(ib, sdot_16(b + 16 * (k), xv), sb, k); \
    } while (0)
#define SDOT_32(k) \
    do { \
        int8x16_t xv = vld1q_s8(x + 16 * (k)), xu = vld1q_s8(x + 16 * (k) + 16); \
        ia = vmlaq_laneq_s32(ia, sdot_32(a + 16 * (k), xv, xu), sa, k); \
        ib = vmlaq_laneq_s32(ib, sdot_32(b + 16 * (k), xv, xu), sb, k); \
    } while (0)

/* 256 scaled products of two rows (a, and b 256 bytes on) as 4 sums each. */
PN_DOTPROD_INLINE void sdot_256x2(const int8_t *a, const int16_t *sc, const int8_t *x, int32x4_t out[2],
                                 const bool pair)
{
    int32x4_t ia = vdupq_n_s32(0), ib = ia;
    for (size_t h = 0; h < 4; h++, a += 64, x += 64, sc += 4) {
        const int8_t *b = a + PN_CPU_CHUNK;
        int32x4_t sa = vmovl_s16(vld1_s16(sc)), sb = vmovl_s16(vld1_s16(sc + 16));
        if (pair) {
            SDOT_32(0);
            SDOT_32(2);
        } else {
            SDOT_16(0);
            SDOT_16(1);
            SDOT_16(2);
            SDOT_16(3);
        }
    }
    out[0] = ia;
    out[1] = ib;
}

#undef SDOT_16
#undef SDOT_32

/* The 16 products of mins and sums of q, as 4 sums. */
PN_DOTPROD_INLINE int32x4_t sdot_mins(const int16_t *mn, int16x8_t s0, int16x8_t s1)
{
    int16x8_t m0 = vld1q_s16(mn), m1 = vld1q_s16(mn + 8);
    int32x4_t i = vmlal_high_s16(vmull_s16(vget_low_s16(m0), vget_low_s16(s0)), m0, s0);
    return vmlal_high_s16(vmlal_s16(i, vget_low_s16(m1), vget_low_s16(s1)), m1, s1);
}

PN_DOTPROD_INLINE void sdot_one256(const pn_arm_oct *o, const pn_arm_x *x, float *acc, const bool pair,
                                  const bool has_min)
{
    for (size_t r = 0; r < 8; r += 4) {
        int32x4_t v[4];
        float32x4_t sum = vld1q_f32(acc + r);
        sdot_256x2(o->q[r], o->sc[r], x->q, v, pair);
        sdot_256x2(o->q[r + 2], o->sc[r + 2], x->q, v + 2, pair);
        sum = sdot_fma(sum, vld1q_f32(o->d[0] + r), x->d[0], sdot_tree(v[0], v[1], v[2], v[3]));
        if (has_min) {
            int16x8_t s0 = vld1q_s16(x->s), s1 = vld1q_s16(x->s + 8);
            int32x4_t i = sdot_tree(sdot_mins(o->mn[r], s0, s1), sdot_mins(o->mn[r + 1], s0, s1),
                                   sdot_mins(o->mn[r + 2], s0, s1), sdot_mins(o->mn[r + 3], s0, s1));
            sum = sdot_fma(sum, vld1q_f32(o->m[0] + r), x->d[0], i);
        }
        vst1q_f32(acc + r, sum);
    }
}

PN_DOTPROD static void sdot_one(const pn_arm_oct *o, pn_arm_form f, size_t n, const pn_arm_x *x, float *acc)
{
    if (f.family == PN_CPU_B16)
        sdot_one16(o, n, x, acc);
    else if (f.family == PN_CPU_B32)
        f.has_min ? sdot_one32(o, n, x, acc, true) : sdot_one32(o, n, x, acc, false);
    else if (f.pair)
        f.has_min ? sdot_one256(o, x, acc, true, true) : sdot_one256(o, x, acc, true, false);
    else
        f.has_min ? sdot_one256(o, x, acc, false, true) : sdot_one256(o, x, acc, false, false);
}

/* ------------------------------------------------------------------------------------------
 * Four activation rows
 * ------------------------------------------------------------------------------------------ */

/* Four vectors of four int32, rows to columns.  (No loops over vectors here: gcc keeps their arrays
 * in memory at -O2.) */
PN_DOTPROD_INLINE int32x4x4_t sdot_transpose4(int32x4_t v0, int32x4_t v1, int32x4_t v2, int32x4_t v3)
{
    int64x2_t a = vreinterpretq_s64_s32(vtrn1q_s32(v0, v1)), b = vreinterpretq_s64_s32(vtrn2q_s32(v0, v1));
    int64x2_t c = vreinterpretq_s64_s32(vtrn1q_s32(v2, v3)), d = vreinterpretq_s64_s32(vtrn2q_s32(v2, v3));
    int32x4x4_t t;
    t.val[0] = vreinterpretq_s32_s64(vtrn1q_s64(a, c));
    t.val[1] = vreinterpretq_s32_s64(vtrn1q_s64(b, d));
    t.val[2] = vreinterpretq_s32_s64(vtrn2q_s64(a, c));
    t.val[3] = vreinterpretq_s32_s64(vtrn2q_s64(b, d));
    return t;
}

PN_DOTPROD_INLINE int32x4_t sdot_dwords(const int8_t *q) { return vreinterpretq_s32_s8(vld1q_s8(q)); }

/* 16 codes of four rows to four dwords of a panel. */
PN_DOTPROD_INLINE void sdot_transpose_codes(const int8_t (*q)[PN_CPU_CHUNK], size_t e, int8_t *to)
{
    int32x4x4_t t = sdot_transpose4(sdot_dwords(q[0] + e), sdot_dwords(q[1] + e), sdot_dwords(q[2] + e),
                                    sdot_dwords(q[3] + e));
    vst1q_s8(to, vreinterpretq_s8_s32(t.val[0]));
    vst1q_s8(to + 32, vreinterpretq_s8_s32(t.val[1]));
    vst1q_s8(to + 64, vreinterpretq_s8_s32(t.val[2]));
    vst1q_s8(to + 96, vreinterpretq_s8_s32(t.val[3]));
}

/* Scales i .. i+4 of four rows as int32, rows in the lanes. */
PN_DOTPROD_INLINE int32x4x4_t sdot_transpose_scales(const int16_t (*sc)[16], size_t i)
{
    return sdot_transpose4(vmovl_s16(vld1_s16(sc[0] + i)), vmovl_s16(vld1_s16(sc[1] + i)),
                          vmovl_s16(vld1_s16(sc[2] + i)), vmovl_s16(vld1_s16(sc[3] + i)));
}

PN_DOTPROD static void sdot_transpose(const pn_arm_oct *o, pn_arm_form f, size_t n, pn_arm_panel *p)
{
    for (size_t e = 0; e < n; e += 16) {
        sdot_transpose_codes(o->q, e, p->q[e / 4][0]);
        sdot_transpose_codes(o->q + 4, e, p->q[e / 4][4]);
    }
    for (size_t r = 0; f.family == PN_CPU_B256 && r < 8; r += 4)
        for (size_t i = 0; i < 16; i += 4) {
            int32x4x4_t t = sdot_transpose_scales(o->sc + r, i);
            vst1q_s32(p->sc[i] + r, t.val[0]);
            vst1q_s32(p->sc[i + 1] + r, t.val[1]);
            vst1q_s32(p->sc[i + 2] + r, t.val[2]);
            vst1q_s32(p->sc[i + 3] + r, t.val[3]);
            if (!f.has_min)
                continue;
            t = sdot_transpose_scales(o->mn + r, i);
            vst1_s16(p->mn[i] + r, vmovn_s32(t.val[0]));
            vst1_s16(p->mn[i + 1] + r, vmovn_s32(t.val[1]));
            vst1_s16(p->mn[i + 2] + r, vmovn_s32(t.val[2]));
            vst1_s16(p->mn[i + 3] + r, vmovn_s32(t.val[3]));
        }
}

/* t<x><half> += 4 codes of 8 rows (dword k of 4 at w) times element k of the activations x<x>. */
#define SDOT_K(k) \
    do { \
        int8x16_t wa = vld1q_s8(w + 32 * (k)), wb = vld1q_s8(w + 32 * (k) + 16); \
        t0a = vdotq_laneq_s32(t0a, wa, x0, k); \
        t0b = vdotq_laneq_s32(t0b, wb, x0, k); \
        t1a = vdotq_laneq_s32(t1a, wa, x1, k); \
        t1b = vdotq_laneq_s32(t1b, wb, x1, k); \
        t2a = vdotq_laneq_s32(t2a, wa, x2, k); \
        t2b = vdotq_laneq_s32(t2b, wb, x2, k); \
        t3a = vdotq_laneq_s32(t3a, wa, x3, k); \
        t3b = vdotq_laneq_s32(t3b, wb, x3, k); \
    } while (0)
/* 16 codes at element e: 32 sdots. */
#define SDOT_16(e) \
    do { \
        const int8_t *w = p->q[(e) / 4][0]; \
        int8x16_t x0 = vld1q_s8(x[0].q + (e)), x1 = vld1q_s8(x[1].q + (e)); \
        int8x16_t x2 = vld1q_s8(x[2].q + (e)), x3 = vld1q_s8(x[3].q + (e)); \
        SDOT_K(0); \
        SDOT_K(1); \
        SDOT_K(2); \
        SDOT_K(3); \
    } while (0)
#define SDOT_ZERO(t) (t##0a = t##0b = t##1a = t##1b = t##2a = t##2b = t##3a = t##3b = vdupq_n_s32(0))
#define SDOT_DECLARE(t) int32x4_t t##0a, t##0b, t##1a, t##1b, t##2a, t##2b, t##3a, t##3b
/* The sums continue in memory: they are touched once a block, and registers are full of integers. */
#define SDOT_FMA1(i, at, da, db, dx) \
    do { \
        vst1q_f32(acc + (at), sdot_fma(vld1q_f32(acc + (at)), da, dx, i##a)); \
        vst1q_f32(acc + (at) + 4, sdot_fma(vld1q_f32(acc + (at) + 4), db, dx, i##b)); \
    } while (0)
#define SDOT_FMA(t, dw, b) \
    do { \
        float32x4_t da = vld1q_f32(dw), db = vld1q_f32((dw) + 4); \
        SDOT_FMA1(t##0, 0, da, db, x[0].d[b]); \
        SDOT_FMA1(t##1, 8, da, db, x[1].d[b]); \
        SDOT_FMA1(t##2, 16, da, db, x[2].d[b]); \
        SDOT_FMA1(t##3, 24, da, db, x[3].d[b]); \
    } while (0)

PN_DOTPROD_INLINE void sdot_four32(const pn_arm_oct *o, const pn_arm_panel *p, size_t n, const pn_arm_x *x,
                                  float *acc, const bool has_min)
{
    for (size_t b = 0; b < n / 32; b++) {
        SDOT_DECLARE(t);
        SDOT_ZERO(t);
        SDOT_16(32 * b);
        SDOT_16(32 * b + 16);
        SDOT_FMA(t, o->d[b], b);
        if (has_min) {
            t0a = t0b = vdupq_n_s32(x[0].s[2 * b] + x[0].s[2 * b + 1]);
            t1a = t1b = vdupq_n_s32(x[1].s[2 * b] + x[1].s[2 * b + 1]);
            t2a = t2b = vdupq_n_s32(x[2].s[2 * b] + x[2].s[2 * b + 1]);
            t3a = t3b = vdupq_n_s32(x[3].s[2 * b] + x[3].s[2 * b + 1]);
            SDOT_FMA(t, o->m[b], b);
        }
    }
}

PN_DOTPROD_INLINE void sdot_four16(const pn_arm_oct *o, const pn_arm_panel *p, size_t n, const pn_arm_x *x,
                                  float *acc)
{
    for (size_t s = 0; s < n / 16; s++) {
        SDOT_DECLARE(t);
        SDOT_ZERO(t);
        SDOT_16(16 * s);
        SDOT_FMA(t, o->d[s], s / 2);
    }
}

/* i* += scales * t*. */
#define SDOT_SCALE(scale) \
    do { \
        int32x4_t sa = vld1q_s32(scale), sb = vld1q_s32((scale) + 4); \
        i0a = vmlaq_s32(i0a, t0a, sa); \
        i0b = vmlaq_s32(i0b, t0b, sb); \
        i1a = vmlaq_s32(i1a, t1a, sa); \
        i1b = vmlaq_s32(i1b, t1b, sb); \
        i2a = vmlaq_s32(i2a, t2a, sa); \
        i2b = vmlaq_s32(i2b, t2b, sb); \
        i3a = vmlaq_s32(i3a, t3a, sa); \
        i3b = vmlaq_s32(i3b, t3b, sb); \
    } while (0)

/* The sums of mins of one activation row, 8 rows. */
#define SDOT_MINS1(i, s) \
    do { \
        i##a = vmlal_n_s16(i##a, vget_low_s16(m), s); \
        i##b = vmlal_high_n_s16(i##b, m, s); \
    } while (0)

PN_DOTPROD_INLINE void sdot_four256(const pn_arm_oct *o, const pn_arm_panel *p, const pn_arm_x *x, float *acc,
                                   const bool pair, const bool has_min)
{
    SDOT_DECLARE(i);
    SDOT_ZERO(i);
    for (size_t s = 0; s < 16; s += pair ? 2 : 1) {
        SDOT_DECLARE(t);
        SDOT_ZERO(t);
        SDOT_16(16 * s);
        if (pair)
            SDOT_16(16 * s + 16);
        SDOT_SCALE(p->sc[s]);
    }
    SDOT_FMA(i, o->d[0], 0);
    if (!has_min)
        return;
    SDOT_ZERO(i);
    for (size_t s = 0; s < 16; s += pair ? 2 : 1) {
        int16x8_t m = vld1q_s16(p->mn[s]);
        SDOT_MINS1(i0, (int16_t)(x[0].s[s] + (pair ? x[0].s[s + 1] : 0)));
        SDOT_MINS1(i1, (int16_t)(x[1].s[s] + (pair ? x[1].s[s + 1] : 0)));
        SDOT_MINS1(i2, (int16_t)(x[2].s[s] + (pair ? x[2].s[s + 1] : 0)));
        SDOT_MINS1(i3, (int16_t)(x[3].s[s] + (pair ? x[3].s[s + 1] : 0)));
    }
    SDOT_FMA(i, o->m[0], 0);
}

#undef SDOT_K
#undef SDOT_16
#undef SDOT_ZERO
#undef SDOT_DECLARE
#undef SDOT_FMA1
#undef SDOT_FMA
#undef SDOT_SCALE
#undef SDOT_MINS1

PN_DOTPROD static void sdot_four(const pn_arm_oct *o, const pn_arm_panel *p, pn_arm_form f, size_t n,
                                const pn_arm_x *x, float *acc)
{
    if (f.family == PN_CPU_B16)
        sdot_four16(o, p, n, x, acc);
    else if (f.family == PN_CPU_B32)
        f.has_min ? sdot_four32(o, p, n, x, acc, true) : sdot_four32(o, p, n, x, acc, false);
    else if (f.pair)
        f.has_min ? sdot_four256(o, p, x, acc, true, true) : sdot_four256(o, p, x, acc, true, false);
    else
        f.has_min ? sdot_four256(o, p, x, acc, false, true) : sdot_four256(o, p, x, acc, false, false);
}

static void sdot_matmul(const pn_cpu_mm *a)
{
    static const pn_arm_dots dots = {.one = sdot_one, .four = sdot_four, .transpose = sdot_transpose};
    if (pn_cpu_act_kind(a->dtype) == PN_ACT_F32)
        pn_neon_matmul_float(a);
    else
        pn_neon_matmul_quant(a, &dots);
}

PN_INTERNAL const pn_cpu_kernels *pn_cpu_dotprod(void)
{
    static const pn_cpu_kernels table = {
        .name = "dotprod", .quant = pn_neon_quant, .matmul = sdot_matmul,
        .matmul_exact = pn_neon_matmul_exact, .rms_norm = pn_neon_rms_norm, .add = pn_neon_add,
        .axpy = pn_neon_axpy, .scale = pn_neon_scale, .glu = pn_neon_glu,
        .softcap = pn_neon_softcap, .rope = pn_neon_rope, .kv_encode = pn_neon_kv_encode,
        .kv_decode = pn_neon_kv_decode, .hadamard = pn_neon_hadamard, .attn = pn_neon_attn, .softmax = pn_neon_softmax,
    };
    return sdot_probe() ? &table : NULL;
}

#else

PN_INTERNAL const pn_cpu_kernels *pn_cpu_dotprod(void) { return NULL; }

#endif
