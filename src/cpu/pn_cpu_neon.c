/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_neon.c - products of quantised weights on AArch64: the frame, and its dots in plain NEON.
 *
 * The frame unpacks a chunk of 8 weight rows (an oct, 3 KiB, in the first-level cache) and runs all
 * activation rows of the step over it, then goes to the next chunk; the sums wait in the tile.  So
 * weights are read and unpacked once, whatever m is, and an output's blocks still come in file order.
 * Instruction sets differ in the dots alone.
 *
 * Plain NEON multiplies along k: smull and smlal add products at 16 bits, two of any codes
 * (2 * 128 * 127 < 2^15), four of codes up to 64.  The lanes are partial sums of one row; pairwise
 * additions turn four such vectors into one of four rows.
 */
#include "cpu/pn_cpu_arm.h"

#if PN_CPU_ARM64

/* ------------------------------------------------------------------------------------------
 * The frame
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_arm_form pn_arm_form_of(uint32_t dtype)
{
    pn_cpu_form f = pn_cpu_form_of(dtype);
    bool fine = dtype == PN_DTYPE_Q2_K || dtype == PN_DTYPE_Q3_K || dtype == PN_DTYPE_Q6_K ||
                dtype == PN_DTYPE_IQ2_XS || dtype == PN_DTYPE_IQ2_S || dtype == PN_DTYPE_IQ1_M;
    return (pn_arm_form){f.family, f.has_min != 0, f.cmax == 255, f.family == PN_CPU_B256 && !fine};
}

/* Rows r0 .. r0+8 of the weights at element e0 (rows past the end repeat the last one). */
static void neon_row_pointers(const pn_cpu_mm *a, uint32_t r0, size_t e0, const uint8_t *p[8])
{
    const pn_dtype_info *t = pn_dtype_get(a->dtype);
    size_t at = e0 / t->block_elems * t->block_bytes;
    for (uint32_t r = 0; r < 8; r++)
        p[r] = (const uint8_t *)a->w + PN_MIN(r0 + r, a->rows - 1) * a->w_stride + at;
}

/* Activation row j from element e on. */
static pn_arm_x neon_x_at(const pn_cpu_mm *a, const pn_act_layout *l, size_t bs, uint32_t j, size_t e)
{
    const uint8_t *p = pn_arm_x_row(a, j);
    return (pn_arm_x){(const int8_t *)p + e, (const float *)(const void *)(p + l->off_d) + e / bs,
                      (const int16_t *)(const void *)(p + l->off_s) + e / 16};
}

/* Rows r .. r+8 times activation rows j0 .. j0+m, sums in acc[m][8]. */
static void neon_rows(const pn_cpu_mm *a, const pn_arm_dots *dots, uint32_t r, uint32_t j0, uint32_t m,
                      float *acc)
{
    pn_arm_unpack_fn unpack = pn_neon_unpack_of(a->dtype);
    pn_arm_form f = pn_arm_form_of(a->dtype);
    pn_act_kind kind = f.family == PN_CPU_B256 ? PN_ACT_Q8_256 : PN_ACT_Q8_32;
    pn_act_layout l = pn_act_layout_of(kind, a->k);
    size_t bs = kind == PN_ACT_Q8_256 ? 256 : 32;
    bool panels = dots->four && m > 4;      /* below, transposing costs more than it saves */
    pn_arm_oct o;
    pn_arm_panel p;
    for (size_t e = 0; e < a->k; e += PN_CPU_CHUNK) {
        size_t n = PN_MIN((size_t)PN_CPU_CHUNK, a->k - e);
        const uint8_t *w[8];
        pn_arm_x x[4];
        uint32_t j = 0;
        neon_row_pointers(a, r, e, w);
        unpack(w, n, &o);
        if (panels)
            dots->transpose(&o, f, n, &p);
        for (; panels && j + 4 <= m; j += 4) {
            for (uint32_t i = 0; i < 4; i++)
                x[i] = neon_x_at(a, &l, bs, j0 + j + i, e);
            dots->four(&o, &p, f, n, x, acc + 8 * j);
        }
        for (; j < m; j++) {
            x[0] = neon_x_at(a, &l, bs, j0 + j, e);
            dots->one(&o, f, n, x, acc + 8 * j);
        }
    }
}

PN_INTERNAL void pn_neon_matmul_quant(const pn_cpu_mm *a, const pn_arm_dots *dots)
{
    float *acc = a->tile;
    uint32_t room = (uint32_t)(pn_cpu_tile_bytes(a->k) / (8 * sizeof *acc)) & ~3u;
    for (uint32_t j = 0; j < a->m; j += room) {
        uint32_t m = PN_MIN(room, a->m - j);
        for (uint32_t r = 0; r < a->rows; r += 8) {
            memset(acc, 0, (size_t)m * 8 * sizeof *acc);
            neon_rows(a, dots, r, j, m, acc);
            for (uint32_t i = 0; i < m; i++)
                pn_arm_store_rows(a, r, PN_MIN(8u, a->rows - r), j + i, acc + (size_t)8 * i);
        }
    }
}

/* ------------------------------------------------------------------------------------------
 * Dots
 * ------------------------------------------------------------------------------------------ */

/* Four vectors of four partial sums to a vector of four sums. */
PN_NEON_INLINE int32x4_t neon_tree(int32x4_t a, int32x4_t b, int32x4_t c, int32x4_t d)
{
    return vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
}

/* 16 products as 8 sums of two. */
PN_NEON_INLINE int16x8_t neon_mul16(int8x16_t w, int8x16_t x)
{
    return vmlal_high_s8(vmull_s8(vget_low_s8(w), vget_low_s8(x)), w, x);
}

/* The same added to t. */
PN_NEON_INLINE int16x8_t neon_add16(int16x8_t t, int8x16_t w, int8x16_t x)
{
    return vmlal_high_s8(vmlal_s8(t, vget_low_s8(w), vget_low_s8(x)), w, x);
}

/* 32 products as 4 sums. */
PN_NEON_INLINE int32x4_t neon_dot32(const int8_t *w, int8x16_t x0, int8x16_t x1, const bool wide)
{
    int8x16_t w0 = vld1q_s8(w), w1 = vld1q_s8(w + 16);
    if (wide)
        return vpadalq_s16(vpaddlq_s16(neon_mul16(w0, x0)), neon_mul16(w1, x1));
    return vpaddlq_s16(neon_add16(neon_mul16(w0, x0), w1, x1));
}

/* acc + (d * dx) * i for four rows. */
PN_NEON_INLINE float32x4_t neon_fma(float32x4_t acc, const float *d, float dx, int32x4_t i)
{
    return vfmaq_f32(acc, vmulq_n_f32(vld1q_f32(d), dx), vcvtq_f32_s32(i));
}

PN_NEON_INLINE void neon_one32(const pn_arm_oct *o, size_t n, const pn_arm_x *x, float *acc, const bool wide,
                               const bool has_min)
{
    float32x4_t lo = vld1q_f32(acc), hi = vld1q_f32(acc + 4);
    for (size_t b = 0; b < n / 32; b++) {
        const int8_t *w = o->q[0] + 32 * b;
        int8x16_t x0 = vld1q_s8(x->q + 32 * b), x1 = vld1q_s8(x->q + 32 * b + 16);
        float dx = x->d[b];
        int32x4_t i = neon_tree(neon_dot32(w, x0, x1, wide), neon_dot32(w + 256, x0, x1, wide),
                                neon_dot32(w + 512, x0, x1, wide), neon_dot32(w + 768, x0, x1, wide));
        lo = neon_fma(lo, o->d[b], dx, i);
        w += 1024;
        i = neon_tree(neon_dot32(w, x0, x1, wide), neon_dot32(w + 256, x0, x1, wide),
                      neon_dot32(w + 512, x0, x1, wide), neon_dot32(w + 768, x0, x1, wide));
        hi = neon_fma(hi, o->d[b] + 4, dx, i);
        if (has_min) {
            int32x4_t s = vdupq_n_s32(x->s[2 * b] + x->s[2 * b + 1]);
            lo = neon_fma(lo, o->m[b], dx, s);
            hi = neon_fma(hi, o->m[b] + 4, dx, s);
        }
    }
    vst1q_f32(acc, lo);
    vst1q_f32(acc + 4, hi);
}

/* 16 codes of four rows, 256 apart. */
PN_NEON_INLINE int32x4_t neon_dot16x4(const int8_t *w, int8x16_t x)
{
    return neon_tree(vpaddlq_s16(neon_mul16(vld1q_s8(w), x)), vpaddlq_s16(neon_mul16(vld1q_s8(w + 256), x)),
                     vpaddlq_s16(neon_mul16(vld1q_s8(w + 512), x)),
                     vpaddlq_s16(neon_mul16(vld1q_s8(w + 768), x)));
}

/* NVFP4: 16 codes have factors of their own. */
PN_NEON_INLINE void neon_one16(const pn_arm_oct *o, size_t n, const pn_arm_x *x, float *acc)
{
    float32x4_t lo = vld1q_f32(acc), hi = vld1q_f32(acc + 4);
    for (size_t t = 0; t < n / 16; t++) {
        const int8_t *w = o->q[0] + 16 * t;
        int8x16_t q = vld1q_s8(x->q + 16 * t);
        float dx = x->d[t / 2];
        lo = neon_fma(lo, o->d[t], dx, neon_dot16x4(w, q));
        hi = neon_fma(hi, o->d[t] + 4, dx, neon_dot16x4(w + 1024, q));
    }
    vst1q_f32(acc, lo);
    vst1q_f32(acc + 4, hi);
}

/* i += scale (lane of sc) times the sums in t. */
#define NEON_SCALED(i, t, sc, lane) \
    (i = vmlal_laneq_s16(i, vget_low_s16(t), sc, lane), i = vmlal_high_laneq_s16(i, t, sc, lane))
/* 16 codes of rows a and b. */
#define NEON_16(k) \
    do { \
        int8x16_t xv = vld1q_s8(x + 16 * (k)); \
        int16x8_t ta = neon_mul16(vld1q_s8(a + 16 * (k)), xv); \
        int16x8_t tb = neon_mul16(vld1q_s8(b + 16 * (k)), xv); \
        NEON_SCALED(ia, ta, sa, k); \
        NEON_SCALED(ib, tb, sb, k); \
    } while (0)
/* 32 with one scale. */
#define NEON_32(k) \
    do { \
        int8x16_t xv = vld1q_s8(x + 16 * (k)), xu = vld1q_s8(x + 16 * (k) + 16); \
        int16x8_t ta = neon_mul16(vld1q_s8(a + 16 * (k)), xv); \
        int16x8_t tb = neon_mul16(vld1q_s8(b + 16 * (k)), xv); \
        ta = neon_add16(ta, vld1q_s8(a + 16 * (k) + 16), xu); \
        tb = neon_add16(tb, vld1q_s8(b + 16 * (k) + 16), xu); \
        NEON_SCALED(ia, ta, sa, k); \
        NEON_SCALED(ib, tb, sb, k); \
    } while (0)

/* 256 scaled products of two rows (a, and b 256 bytes on) as 4 sums each. */
PN_NEON_INLINE void neon_dot256x2(const int8_t *a, const int16_t *sc, const int8_t *x, int32x4_t out[2],
                                  const bool pair)
{
    int32x4_t ia = vdupq_n_s32(0), ib = ia;
    for (size_t h = 0; h < 2; h++, a += 128, x += 128, sc += 8) {
        const int8_t *b = a + PN_CPU_CHUNK;
        int16x8_t sa = vld1q_s16(sc), sb = vld1q_s16(sc + 16);
        if (pair) {
            NEON_32(0);
            NEON_32(2);
            NEON_32(4);
            NEON_32(6);
        } else {
            NEON_16(0);
            NEON_16(1);
            NEON_16(2);
            NEON_16(3);
            NEON_16(4);
            NEON_16(5);
            NEON_16(6);
            NEON_16(7);
        }
    }
    out[0] = ia;
    out[1] = ib;
}

#undef NEON_SCALED
#undef NEON_16
#undef NEON_32

/* The 16 products of mins and sums of q, as 4 sums. */
PN_NEON_INLINE int32x4_t neon_mins(const int16_t *mn, int16x8_t s0, int16x8_t s1)
{
    int16x8_t m0 = vld1q_s16(mn), m1 = vld1q_s16(mn + 8);
    int32x4_t i = vmlal_high_s16(vmull_s16(vget_low_s16(m0), vget_low_s16(s0)), m0, s0);
    return vmlal_high_s16(vmlal_s16(i, vget_low_s16(m1), vget_low_s16(s1)), m1, s1);
}

PN_NEON_INLINE void neon_one256(const pn_arm_oct *o, const pn_arm_x *x, float *acc, const bool pair,
                                const bool has_min)
{
    for (size_t r = 0; r < 8; r += 4) {
        int32x4_t v[4];
        float32x4_t sum = vld1q_f32(acc + r);
        neon_dot256x2(o->q[r], o->sc[r], x->q, v, pair);
        neon_dot256x2(o->q[r + 2], o->sc[r + 2], x->q, v + 2, pair);
        sum = neon_fma(sum, o->d[0] + r, x->d[0], neon_tree(v[0], v[1], v[2], v[3]));
        if (has_min) {
            int16x8_t s0 = vld1q_s16(x->s), s1 = vld1q_s16(x->s + 8);
            int32x4_t i = neon_tree(neon_mins(o->mn[r], s0, s1), neon_mins(o->mn[r + 1], s0, s1),
                                    neon_mins(o->mn[r + 2], s0, s1), neon_mins(o->mn[r + 3], s0, s1));
            sum = neon_fma(sum, o->m[0] + r, x->d[0], i);
        }
        vst1q_f32(acc + r, sum);
    }
}

static void neon_one(const pn_arm_oct *o, pn_arm_form f, size_t n, const pn_arm_x *x, float *acc)
{
    if (f.family == PN_CPU_B16)
        neon_one16(o, n, x, acc);
    else if (f.family == PN_CPU_B32)
        f.wide      ? neon_one32(o, n, x, acc, true, false)
        : f.has_min ? neon_one32(o, n, x, acc, false, true)
                    : neon_one32(o, n, x, acc, false, false);
    else if (f.pair && !f.wide)
        f.has_min ? neon_one256(o, x, acc, true, true) : neon_one256(o, x, acc, true, false);
    else
        f.has_min ? neon_one256(o, x, acc, false, true) : neon_one256(o, x, acc, false, false);
}

static void neon_matmul(const pn_cpu_mm *a)
{
    static const pn_arm_dots dots = {.one = neon_one};
    if (pn_cpu_act_kind(a->dtype) == PN_ACT_F32)
        pn_neon_matmul_float(a);
    else
        pn_neon_matmul_quant(a, &dots);
}

PN_INTERNAL const pn_cpu_kernels *pn_cpu_neon(void)
{
    static const pn_cpu_kernels table = {
        .name = "neon", .quant = pn_neon_quant, .matmul = neon_matmul,
        .matmul_exact = pn_neon_matmul_exact, .rms_norm = pn_neon_rms_norm, .add = pn_neon_add,
        .axpy = pn_neon_axpy, .scale = pn_neon_scale, .glu = pn_neon_glu,
        .softcap = pn_neon_softcap, .rope = pn_neon_rope, .kv_encode = pn_neon_kv_encode,
        .kv_decode = pn_neon_kv_decode, .hadamard = pn_neon_hadamard, .attn = pn_neon_attn, .softmax = pn_neon_softmax,
    };
    return &table;
}

#else

PN_INTERNAL const pn_cpu_kernels *pn_cpu_neon(void) { return NULL; }

#endif
