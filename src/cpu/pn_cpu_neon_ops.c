/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_neon_ops.c - what is neither matrix product nor attention, AArch64: activations, norms, gates.
 *
 * Tails are copied into a zeroed vector, so no buffer needs padding; a zero lane adds fma(0, 0, p),
 * which leaves a partial sum as it is.
 */
#include "cpu/pn_cpu_neon_math.h"

#if PN_CPU_ARM64

#include <math.h>

/* ------------------------------------------------------------------------------------------
 * Activations
 * ------------------------------------------------------------------------------------------ */

PN_NEON_INLINE float nops_absmax(const float *x, size_t n)
{
    float32x4_t a = vdupq_n_f32(0), b = a;
    for (size_t i = 0; i < n; i += 8) {     /* max keeps a NaN */
        a = vmaxq_f32(a, vabsq_f32(vld1q_f32(x + i)));
        b = vmaxq_f32(b, vabsq_f32(vld1q_f32(x + i + 4)));
    }
    return vmaxvq_f32(vmaxq_f32(a, b));
}

PN_NEON_INLINE int32x4_t nops_round4(const float *x, float inv)
{
    float32x4_t v = vmulq_n_f32(vld1q_f32(x), inv);
    v = vmaxnmq_f32(v, vdupq_n_f32(-127.0f));
    return vcvtnq_s32_f32(vminnmq_f32(v, vdupq_n_f32(127.0f)));
}

/* 16 floats to int8; returns their sum. */
PN_NEON_INLINE int16_t nops_quant16(const float *x, float inv, int8_t *q)
{
    int16x8_t a = vmovn_high_s32(vmovn_s32(nops_round4(x, inv)), nops_round4(x + 4, inv));
    int16x8_t b = vmovn_high_s32(vmovn_s32(nops_round4(x + 8, inv)), nops_round4(x + 12, inv));
    int8x16_t v = vmovn_high_s16(vmovn_s16(a), b);
    vst1q_s8(q, v);
    return vaddlvq_s8(v);
}

PN_INTERNAL void pn_neon_quant(pn_act_kind kind, const float *x, void *dst, size_t k)
{
    pn_act_layout l = pn_act_layout_of(kind, k);
    uint8_t *out = dst;
    if (kind == PN_ACT_F32) {
        memcpy(out, x, 4 * k);
        memset(out + 4 * k, 0, l.row_bytes - 4 * k);
        return;
    }
    size_t bs = kind == PN_ACT_Q8_32 ? 32 : 256;
    float *d = (float *)(void *)(out + l.off_d);
    int16_t *s = (int16_t *)(void *)(out + l.off_s);
    memset(out + k, 0, l.off_d - k);
    memset(d + k / bs, 0, l.off_s - l.off_d - k / bs * 4);
    memset(s + k / 16, 0, l.row_bytes - l.off_s - k / 16 * 2);
    for (size_t b = 0; b < k / bs; b++) {
        float m = nops_absmax(x + b * bs, bs), inv = m < 0x1p-118f ? 0.0f : 127.0f / m;
        d[b] = m < 0x1p-118f ? 0.0f : m / 127.0f;
        for (size_t e = b * bs; e < (b + 1) * bs; e += 16)
            s[e / 16] = nops_quant16(x + e, inv, (int8_t *)out + e);
    }
}

/* ------------------------------------------------------------------------------------------
 * Element by element
 * ------------------------------------------------------------------------------------------ */

/* y[0..n) = expr in terms of NOPS_AT(p), 4 values at a time, the tail through copies. */
#define NOPS_EACH(n, expr, tail_expr) \
    do { \
        size_t i = 0; \
        for (; i + 4 <= (n); i += 4) \
            vst1q_f32(y + i, (expr)); \
        if (i < (n)) { \
            size_t rest = (n) - i; \
            pn_neon_store_tail(y + i, (tail_expr), rest); \
        } \
    } while (0)
#define NOPS_LOAD(p) vld1q_f32((p) + i)
#define NOPS_TAIL(p) pn_neon_load_tail((p) + i, rest)

/* Sum of squares in the canonical order. */
static float nops_squares(const float *x, size_t n)
{
    float32x4_t p[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)}, v;
    size_t e = 0;
    for (; e + 16 <= n; e += 16) {
        v = vld1q_f32(x + e), p[0] = vfmaq_f32(p[0], v, v);
        v = vld1q_f32(x + e + 4), p[1] = vfmaq_f32(p[1], v, v);
        v = vld1q_f32(x + e + 8), p[2] = vfmaq_f32(p[2], v, v);
        v = vld1q_f32(x + e + 12), p[3] = vfmaq_f32(p[3], v, v);
    }
    float32x4_t t[4] = {p[0], p[1], p[2], p[3]};
    for (size_t part = 0; e < n; e += 4, part++) {
        v = pn_neon_load_tail(x + e, PN_MIN((size_t)4, n - e));
        t[part] = vfmaq_f32(t[part], v, v);
    }
    return pn_neon_tree1(pn_neon_tree4(t[0], t[1], t[2], t[3]));
}

PN_INTERNAL void pn_neon_rms_norm(const float *x, const float *w, float *y, size_t n, float eps)
{
    float mean = nops_squares(x, n) / (float)n, inv = 1.0f / sqrtf(mean + eps);
    if (w)
        NOPS_EACH(n, vmulq_f32(vmulq_n_f32(NOPS_LOAD(x), inv), NOPS_LOAD(w)),
                  vmulq_f32(vmulq_n_f32(NOPS_TAIL(x), inv), NOPS_TAIL(w)));
    else
        NOPS_EACH(n, vmulq_n_f32(NOPS_LOAD(x), inv), vmulq_n_f32(NOPS_TAIL(x), inv));
}

PN_INTERNAL void pn_neon_add(const float *a, const float *b, float *y, size_t n)
{
    NOPS_EACH(n, vaddq_f32(NOPS_LOAD(a), NOPS_LOAD(b)), vaddq_f32(NOPS_TAIL(a), NOPS_TAIL(b)));
}

PN_INTERNAL void pn_neon_axpy(float s, const float *x, float *y, size_t n)
{
    float32x4_t sv = vdupq_n_f32(s);
    NOPS_EACH(n, vfmaq_f32(NOPS_LOAD(y), sv, NOPS_LOAD(x)), vfmaq_f32(NOPS_TAIL(y), sv, NOPS_TAIL(x)));
}

PN_INTERNAL void pn_neon_scale(const float *x, float s, float *y, size_t n)
{
    NOPS_EACH(n, vmulq_n_f32(NOPS_LOAD(x), s), vmulq_n_f32(NOPS_TAIL(x), s));
}

PN_INTERNAL void pn_neon_glu(pn_glu_kind kind, const float *gate, const float *up, float *y, size_t n)
{
    if (kind == PN_GLU_SILU)
        NOPS_EACH(n, vmulq_f32(pn_neon_silu(NOPS_LOAD(gate)), NOPS_LOAD(up)),
                  vmulq_f32(pn_neon_silu(NOPS_TAIL(gate)), NOPS_TAIL(up)));
    else
        NOPS_EACH(n, vmulq_f32(pn_neon_gelu(NOPS_LOAD(gate)), NOPS_LOAD(up)),
                  vmulq_f32(pn_neon_gelu(NOPS_TAIL(gate)), NOPS_TAIL(up)));
}

PN_INTERNAL void pn_neon_softcap(const float *x, float cap, float *y, size_t n)
{
    float32x4_t c = vdupq_n_f32(cap);
    NOPS_EACH(n, pn_neon_softcap4(NOPS_LOAD(x), c), pn_neon_softcap4(NOPS_TAIL(x), c));
}

PN_INTERNAL void pn_neon_softmax(float *x, size_t n)
{
    float *y = x, m = -INFINITY, sum = 0;
    for (size_t e = 0; e < n; e++)
        m = x[e] > m ? x[e] : m;
    float32x4_t mv = vdupq_n_f32(m);
    NOPS_EACH(n, pn_neon_exp(vsubq_f32(NOPS_LOAD(x), mv)), pn_neon_exp(vsubq_f32(NOPS_TAIL(x), mv)));
    for (size_t e = 0; e < n; e++)
        sum = sum + x[e];
    float inv = 1.0f / sum;
    NOPS_EACH(n, vmulq_n_f32(NOPS_LOAD(x), inv), vmulq_n_f32(NOPS_TAIL(x), inv));
}

#undef NOPS_EACH
#undef NOPS_LOAD
#undef NOPS_TAIL

static void nops_rope1(float *a, float *b, float c, float s)
{
    float av = *a, bs = *b * s, bc = *b * c;
    *a = fmaf(av, c, -bs);
    *b = fmaf(av, s, bc);
}

PN_INTERNAL void pn_neon_rope(float *head, const float *cs, uint32_t n_rot, bool neox)
{
    uint32_t half = n_rot / 2, i = 0;
    for (; i + 4 <= half; i += 4) {
        float32x4x2_t t = vld2q_f32(cs + 2 * i), v;
        float *a = head + (neox ? i : 2 * i), *b = head + half + i;
        if (neox) {
            v.val[0] = vld1q_f32(a);
            v.val[1] = vld1q_f32(b);
        } else {
            v = vld2q_f32(a);
        }
        float32x4_t bs = vmulq_f32(v.val[1], t.val[1]), bc = vmulq_f32(v.val[1], t.val[0]);
        float32x4_t old = v.val[0];
        v.val[0] = vfmaq_f32(vnegq_f32(bs), old, t.val[0]);
        v.val[1] = vfmaq_f32(bc, old, t.val[1]);
        if (neox) {
            vst1q_f32(a, v.val[0]);
            vst1q_f32(b, v.val[1]);
        } else {
            vst2q_f32(a, v);
        }
    }
    for (; i < half; i++)
        nops_rope1(head + (neox ? i : 2 * i), head + (neox ? i + half : 2 * i + 1), cs[2 * i], cs[2 * i + 1]);
}

#endif /* PN_CPU_ARM64 */

typedef int pn_cpu_neon_ops_not_empty;          /* ISO C wants a declaration in every file */
