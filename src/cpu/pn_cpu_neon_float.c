/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_neon_float.c - products of float weights (and of any weights decoded to float), AArch64.
 *
 * 16 partial sums along k are four vectors.  One or two activation rows: four weight rows at a time,
 * read where they lie.  More: three weight rows, converted to f32 in the tile (F32 stays in place),
 * times two activation rows, which is 24 accumulators of the 32 registers; activation rows pass in
 * groups that fit half of a 512 KiB L2 cache, so weights are read from the first level.
 */
#include "cpu/pn_cpu_neon_math.h"

#include "num/pn_quant.h"

#if PN_CPU_ARM64

#define NFLT_W 3
#define NFLT_X_BYTES ((size_t)256 << 10)

PN_NEON_INLINE float32x4_t nflt_load(const void *w, size_t i, const int type)
{
    if (type == PN_DTYPE_F32)
        return vld1q_f32((const float *)w + i);
    if (type == PN_DTYPE_F16)
        return pn_neon_from_f16((const uint16_t *)w + i);
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)w + i), 16));
}

/* n < 4 values, zeros after them. */
PN_NEON_INLINE float32x4_t nflt_load_tail(const void *w, size_t i, size_t n, const int type)
{
    if (type == PN_DTYPE_F32)
        return pn_neon_load_tail((const float *)w + i, n);
    uint16_t h[4] = {0, 0, 0, 0};
    for (size_t e = 0; e < n; e++)
        h[e] = ((const uint16_t *)w)[i + e];
    return nflt_load(h, 0, type);
}

/* What is left of a dot product after whole sixteens, and the first half of the tree. */
PN_NEON_INLINE float32x4_t nflt_tail(const void *w, const float *x, size_t i, size_t k, float32x4_t p0,
                                     float32x4_t p1, float32x4_t p2, float32x4_t p3, const int type)
{
    if (i < k) {
        float32x4_t p[4] = {p0, p1, p2, p3};
        for (size_t part = 0; i < k; i += 4, part++) {
            size_t n = PN_MIN((size_t)4, k - i);
            float32x4_t v = n == 4 ? nflt_load(w, i, type) : nflt_load_tail(w, i, n, type);
            p[part] = vfmaq_f32(p[part], v, pn_neon_load_tail(x + i, n));
        }
        return pn_neon_tree4(p[0], p[1], p[2], p[3]);
    }
    return pn_neon_tree4(p0, p1, p2, p3);
}

PN_NEON_INLINE void nflt_dot4(const void *const w[4], const float *x, size_t k, float out[4], const int type)
{
    float32x4_t a0 = vdupq_n_f32(0), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    float32x4_t c0 = a0, c1 = a0, c2 = a0, c3 = a0, d0 = a0, d1 = a0, d2 = a0, d3 = a0;
    const void *wa = w[0], *wb = w[1], *wc = w[2], *wd = w[3];
    size_t i = 0;
    for (; i + 16 <= k; i += 16) {
        float32x4_t x0 = vld1q_f32(x + i), x1 = vld1q_f32(x + i + 4);
        float32x4_t x2 = vld1q_f32(x + i + 8), x3 = vld1q_f32(x + i + 12);
        a0 = vfmaq_f32(a0, nflt_load(wa, i, type), x0);
        a1 = vfmaq_f32(a1, nflt_load(wa, i + 4, type), x1);
        a2 = vfmaq_f32(a2, nflt_load(wa, i + 8, type), x2);
        a3 = vfmaq_f32(a3, nflt_load(wa, i + 12, type), x3);
        b0 = vfmaq_f32(b0, nflt_load(wb, i, type), x0);
        b1 = vfmaq_f32(b1, nflt_load(wb, i + 4, type), x1);
        b2 = vfmaq_f32(b2, nflt_load(wb, i + 8, type), x2);
        b3 = vfmaq_f32(b3, nflt_load(wb, i + 12, type), x3);
        c0 = vfmaq_f32(c0, nflt_load(wc, i, type), x0);
        c1 = vfmaq_f32(c1, nflt_load(wc, i + 4, type), x1);
        c2 = vfmaq_f32(c2, nflt_load(wc, i + 8, type), x2);
        c3 = vfmaq_f32(c3, nflt_load(wc, i + 12, type), x3);
        d0 = vfmaq_f32(d0, nflt_load(wd, i, type), x0);
        d1 = vfmaq_f32(d1, nflt_load(wd, i + 4, type), x1);
        d2 = vfmaq_f32(d2, nflt_load(wd, i + 8, type), x2);
        d3 = vfmaq_f32(d3, nflt_load(wd, i + 12, type), x3);
    }
    a0 = nflt_tail(wa, x, i, k, a0, a1, a2, a3, type);
    b0 = nflt_tail(wb, x, i, k, b0, b1, b2, b3, type);
    c0 = nflt_tail(wc, x, i, k, c0, c1, c2, c3, type);
    d0 = nflt_tail(wd, x, i, k, d0, d1, d2, d3, type);
    vst1q_f32(out, pn_neon_tree1x4(a0, b0, c0, d0));
}

static void nflt_dot4_f32(const void *const w[4], const float *x, size_t k, float out[4])
{
    nflt_dot4(w, x, k, out, PN_DTYPE_F32);
}

static void nflt_dot4_f16(const void *const w[4], const float *x, size_t k, float out[4])
{
    nflt_dot4(w, x, k, out, PN_DTYPE_F16);
}

static void nflt_dot4_bf16(const void *const w[4], const float *x, size_t k, float out[4])
{
    nflt_dot4(w, x, k, out, PN_DTYPE_BF16);
}

static const float *nflt_x(const pn_cpu_mm *a, uint32_t j)
{
    return (const float *)(const void *)pn_arm_x_row(a, j);
}

static void nflt_few(const pn_cpu_mm *a)
{
    void (*dot4)(const void *const w[4], const float *x, size_t k, float out[4]) =
        a->dtype == PN_DTYPE_F32 ? nflt_dot4_f32 : a->dtype == PN_DTYPE_F16 ? nflt_dot4_f16 : nflt_dot4_bf16;
    for (uint32_t r = 0; r < a->rows; r += 4) {
        const void *w[4];
        float sum[4];
        for (uint32_t i = 0; i < 4; i++)
            w[i] = (const uint8_t *)a->w + PN_MIN(r + i, a->rows - 1) * a->w_stride;
        for (uint32_t j = 0; j < a->m; j++) {
            dot4(w, nflt_x(a, j), a->k, sum);
            pn_arm_store_rows(a, r, PN_MIN(4u, a->rows - r), j, sum);
        }
    }
}

/* Vector by vector: 24 sums, 2 activations and 1 weight are in flight. */
#define NFLT_PART(n) \
    do { \
        s = vld1q_f32(x + i + 4 * (n)), t = vld1q_f32(y + i + 4 * (n)); \
        v = vld1q_f32(w0 + i + 4 * (n)), a##n = vfmaq_f32(a##n, v, s), d##n = vfmaq_f32(d##n, v, t); \
        v = vld1q_f32(w1 + i + 4 * (n)), b##n = vfmaq_f32(b##n, v, s), e##n = vfmaq_f32(e##n, v, t); \
        v = vld1q_f32(w2 + i + 4 * (n)), c##n = vfmaq_f32(c##n, v, s), f##n = vfmaq_f32(f##n, v, t); \
    } while (0)
#define NFLT_ZERO(s) float32x4_t s##0 = vdupq_n_f32(0), s##1 = s##0, s##2 = s##0, s##3 = s##0
#define NFLT_SUM(s, w, x) pn_neon_tree1(nflt_tail(w, x, i, k, s##0, s##1, s##2, s##3, PN_DTYPE_F32))

/* Three weight rows times two activation rows, sum[x][w]. */
static void nflt_dot3x2(const float *const w[NFLT_W], const float *x, const float *y, size_t k,
                        float sum[2][NFLT_W])
{
    NFLT_ZERO(a);
    NFLT_ZERO(b);
    NFLT_ZERO(c);
    NFLT_ZERO(d);
    NFLT_ZERO(e);
    NFLT_ZERO(f);
    float32x4_t v, s, t;
    const float *w0 = w[0], *w1 = w[1], *w2 = w[2];
    size_t i = 0;
    for (; i + 16 <= k; i += 16) {
        NFLT_PART(0);
        NFLT_PART(1);
        NFLT_PART(2);
        NFLT_PART(3);
    }
    sum[0][0] = NFLT_SUM(a, w0, x), sum[0][1] = NFLT_SUM(b, w1, x), sum[0][2] = NFLT_SUM(c, w2, x);
    sum[1][0] = NFLT_SUM(d, w0, y), sum[1][1] = NFLT_SUM(e, w1, y), sum[1][2] = NFLT_SUM(f, w2, y);
}

#undef NFLT_ZERO
#undef NFLT_SUM
#undef NFLT_PART

static void nflt_convert(const void *w, float *out, size_t k, uint32_t dtype)
{
    size_t i = 0;
    if (dtype == PN_DTYPE_F16)
        for (; i + 4 <= k; i += 4)
            vst1q_f32(out + i, nflt_load(w, i, PN_DTYPE_F16));
    else if (dtype == PN_DTYPE_BF16)
        for (; i + 4 <= k; i += 4)
            vst1q_f32(out + i, nflt_load(w, i, PN_DTYPE_BF16));
    else {
        pn_dequant_row(dtype, w, out, k);
        return;
    }
    if (i < k)
        pn_dequant_row(dtype, (const uint16_t *)w + i, out + i, k - i);
}

/* Weight rows r .. r+3 as f32: in place, or converted into the tile. */
static void nflt_rows(const pn_cpu_mm *a, uint32_t r, const float *w[NFLT_W])
{
    for (uint32_t i = 0; i < NFLT_W; i++) {
        const uint8_t *row = (const uint8_t *)a->w + PN_MIN(r + i, a->rows - 1) * a->w_stride;
        float *to = (float *)a->tile + i * pn_align_up(a->k, 16);
        w[i] = to;
        if (a->dtype == PN_DTYPE_F32)
            w[i] = (const float *)(const void *)row;
        else if (r + i < a->rows)
            nflt_convert(row, to, a->k, a->dtype);
        else
            w[i] = w[i - 1];
    }
}

static void nflt_many(const pn_cpu_mm *a, uint32_t step)
{
    for (uint32_t j0 = 0; j0 < a->m; j0 += step) {
        uint32_t j1 = j0 + PN_MIN(step, a->m - j0);
        for (uint32_t r = 0; r < a->rows; r += NFLT_W) {
            const float *w[NFLT_W];
            float sum[2][NFLT_W];
            uint32_t n = PN_MIN((uint32_t)NFLT_W, a->rows - r);
            nflt_rows(a, r, w);
            for (uint32_t j = j0; j < j1; j += 2) {
                nflt_dot3x2(w, nflt_x(a, j), nflt_x(a, PN_MIN(j + 1, j1 - 1)), a->k, sum);
                pn_arm_store_rows(a, r, n, j, sum[0]);
                if (j + 1 < j1)
                    pn_arm_store_rows(a, r, n, j + 1, sum[1]);
            }
        }
    }
}

PN_INTERNAL void pn_neon_matmul_float(const pn_cpu_mm *a)
{
    if (a->m <= 2)
        nflt_few(a);
    else
        nflt_many(a, (uint32_t)PN_MAX((size_t)2, NFLT_X_BYTES / (4 * pn_align_up(a->k, 16)) & ~(size_t)1));
}

PN_INTERNAL void pn_neon_matmul_exact(const pn_cpu_mm *a)
{
    if (!pn_dtype_is_quantised(a->dtype))
        pn_neon_matmul_float(a);
    else
        nflt_many(a, UINT32_MAX & ~1u);     /* decoding is slow: once, whatever m */
}

#undef NFLT_W
#undef NFLT_X_BYTES

#endif /* PN_CPU_ARM64 */

typedef int pn_cpu_neon_float_not_empty;        /* ISO C wants a declaration in every file */
