/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_ref.c - the canonical order in plain C: what every other kernel has to compute.
 *
 * Slow, short and portable.  All fused multiply-adds are written as pn_fmaf, so the compiler has no
 * sum of a product left to contract, whatever its defaults are.  Rows of weights are unpacked to
 * integers chunk by chunk and multiplied with up to REF_M activation rows at once, which changes
 * nothing for a single output: its blocks still come in file order.
 */
#include "cpu/pn_cpu_ref.h"

#include "num/pn_half.h"
#include "num/pn_math.h"
#include "num/pn_quant.h"

#include <math.h>

#define REF_M 16

/* ------------------------------------------------------------------------------------------
 * Activations
 * ------------------------------------------------------------------------------------------ */

/* A NaN stays: a poisoned block must not look like a quiet one. */
static float ref_absmax(const float *x, size_t n)
{
    float m = 0;
    for (size_t i = 0; i < n && m == m; i++) {
        float a = fabsf(x[i]);
        m = a <= m ? m : a;
    }
    return m;
}

static void ref_quant_block(const float *x, size_t n, int8_t *q, float *d)
{
    float m = ref_absmax(x, n);
    /* Below 2^-118 127 / m is not finite; such a block is zero for all purposes. */
    float inv = m < 0x1p-118f ? 0.0f : 127.0f / m;
    *d = m < 0x1p-118f ? 0.0f : m / 127.0f;
    for (size_t i = 0; i < n; i++) {
        float v = x[i] * inv;
        v = v > -127.0f ? v : -127.0f;
        v = v < 127.0f ? v : 127.0f;
        q[i] = (int8_t)rintf(v);
    }
}

PN_INTERNAL void pn_ref_quant(pn_act_kind kind, const float *x, void *dst, size_t k)
{
    pn_act_layout l = pn_act_layout_of(kind, k);
    uint8_t *out = dst;
    if (kind == PN_ACT_F32) {
        memcpy(out, x, 4 * k);
        memset(out + 4 * k, 0, l.row_bytes - 4 * k);
        return;
    }
    size_t bs = kind == PN_ACT_Q8_32 ? 32 : 256;
    memset(out, 0, l.row_bytes);
    for (size_t b = 0; b < k / bs; b++) {
        float d;
        ref_quant_block(x + b * bs, bs, (int8_t *)out + b * bs, &d);
        memcpy(out + l.off_d + 4 * b, &d, 4);
    }
    for (size_t t = 0; t < k / 16; t++) {
        int sum = 0;
        for (size_t i = 0; i < 16; i++)
            sum += (int8_t)out[16 * t + i];
        int16_t s = (int16_t)sum;
        memcpy(out + l.off_s + 2 * t, &s, 2);
    }
}

/* ------------------------------------------------------------------------------------------
 * Matrix products
 * ------------------------------------------------------------------------------------------ */

static const uint8_t *ref_x(const pn_cpu_mm *a, uint32_t j)
{
    return (const uint8_t *)a->x + (size_t)(a->x_index ? a->x_index[j] : j) * a->x_stride;
}

static void ref_store(const pn_cpu_mm *a, uint32_t r, uint32_t j, float sum)
{
    size_t yi = a->y_index ? a->y_index[j] : j;
    if (a->bias)
        sum = sum + a->bias[r];
    if (a->res)
        sum = sum + a->res[yi * a->res_stride + r];
    a->y[yi * a->y_stride + r] = sum;
}

static int32_t ref_isum(const int8_t *w, const int8_t *q, size_t n)
{
    int32_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += w[i] * q[i];
    return sum;
}

/* One block of 256: scales and mins enter as integers. */
static float ref_block256(const pn_cpu_chunk *c, bool has_min, const int8_t *q, float dx,
                          const int16_t *s, float acc)
{
    int32_t isum = 0, msum = 0;
    for (size_t t = 0; t < 16; t++) {
        isum += c->sc[t] * ref_isum(c->w + 16 * t, q + 16 * t, 16);
        if (has_min)
            msum += c->mn[t] * s[t];
    }
    float dd = c->d[0] * dx;
    acc = pn_fmaf(dd, (float)isum, acc);
    if (has_min) {
        float md = c->m[0] * dx;
        acc = pn_fmaf(md, (float)msum, acc);
    }
    return acc;
}

/* n elements in blocks of 32 (or 16: NVFP4), one activation scale per 32. */
static float ref_blocks32(const pn_cpu_chunk *c, pn_cpu_form f, size_t n, const int8_t *q,
                          const float *dx, const int16_t *s, float acc)
{
    size_t bs = f.family == PN_CPU_B16 ? 16 : 32;
    for (size_t e = 0; e < n; e += bs) {
        float dd = c->d[e / bs] * dx[e / 32];
        acc = pn_fmaf(dd, (float)ref_isum(c->w + e, q + e, bs), acc);
        if (f.has_min) {
            float md = c->m[e / 32] * dx[e / 32];
            acc = pn_fmaf(md, (float)(s[e / 16] + s[e / 16 + 1]), acc);
        }
    }
    return acc;
}

/* One weight row against activation rows j0 .. j0+n. */
static void ref_row_quant(const pn_cpu_mm *a, uint32_t r, uint32_t j0, uint32_t n)
{
    pn_cpu_form f = pn_cpu_form_of(a->dtype);
    pn_act_layout l = pn_act_layout_of(pn_cpu_act_kind(a->dtype), a->k);
    const uint8_t *row = (const uint8_t *)a->w + r * a->w_stride;
    float acc[REF_M] = {0};
    pn_cpu_chunk c;
    for (size_t e = 0; e < a->k; e += PN_CPU_CHUNK) {
        size_t ne = PN_MIN((size_t)PN_CPU_CHUNK, a->k - e);
        pn_cpu_unpack(a->dtype, row, e, ne, &c);
        for (uint32_t j = 0; j < n; j++) {
            const uint8_t *x = ref_x(a, j0 + j);
            const int8_t *q = (const int8_t *)x + e;
            const float *d = (const float *)(const void *)(x + l.off_d);
            const int16_t *s = (const int16_t *)(const void *)(x + l.off_s) + e / 16;
            acc[j] = f.family == PN_CPU_B256
                         ? ref_block256(&c, f.has_min, q, d[e / 256], s, acc[j])
                         : ref_blocks32(&c, f, ne, q, d + e / 32, s, acc[j]);
        }
    }
    for (uint32_t j = 0; j < n; j++)
        ref_store(a, r, j0 + j, acc[j]);
}

/* The order of float dot products: 16 partial sums, then a fixed tree. */
static float ref_dot(const float *w, const float *x, size_t n)
{
    float p[16] = {0};
    for (size_t i = 0; i < n; i++)
        p[i % 16] = pn_fmaf(w[i], x[i], p[i % 16]);
    for (size_t half = 8; half; half /= 2)
        for (size_t i = 0; i < half; i++)
            p[i] = p[i] + p[i + half];
    return p[0];
}

static void ref_matmul_exact(const pn_cpu_mm *a)
{
    float *row = a->tile;
    for (uint32_t r = 0; r < a->rows; r++) {
        pn_dequant_row(a->dtype, (const uint8_t *)a->w + r * a->w_stride, row, a->k);
        for (uint32_t j = 0; j < a->m; j++)
            ref_store(a, r, j, ref_dot(row, (const float *)(const void *)ref_x(a, j), a->k));
    }
}

static void ref_matmul(const pn_cpu_mm *a)
{
    if (pn_cpu_act_kind(a->dtype) == PN_ACT_F32) {
        ref_matmul_exact(a);
        return;
    }
    for (uint32_t r = 0; r < a->rows; r++)
        for (uint32_t j = 0; j < a->m; j += REF_M)
            ref_row_quant(a, r, j, PN_MIN(REF_M, a->m - j));
}

/* ------------------------------------------------------------------------------------------
 * Element by element
 * ------------------------------------------------------------------------------------------ */

static void ref_rms_norm(const float *x, const float *w, float *y, size_t n, float eps)
{
    float mean = ref_dot(x, x, n) / (float)n;
    float inv = 1.0f / sqrtf(mean + eps);
    for (size_t i = 0; i < n; i++) {
        float v = x[i] * inv;
        y[i] = w ? v * w[i] : v;
    }
}

PN_INTERNAL void pn_ref_add(const float *a, const float *b, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

PN_INTERNAL void pn_ref_axpy(float s, const float *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = pn_fmaf(s, x[i], y[i]);
}

PN_INTERNAL void pn_ref_scale(const float *x, float s, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * s;
}

PN_INTERNAL void pn_ref_glu(pn_glu_kind kind, const float *gate, const float *up, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (kind == PN_GLU_SILU ? pn_siluf(gate[i]) : pn_geluf(gate[i])) * up[i];
}

PN_INTERNAL void pn_ref_softcap(const float *x, float cap, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = cap * pn_tanhf(x[i] / cap);
}

PN_INTERNAL void pn_ref_rope(float *head, const float *cs, uint32_t n_rot, bool neox)
{
    uint32_t half = n_rot / 2;
    for (uint32_t i = 0; i < half; i++) {
        float *a = head + (neox ? i : 2 * i), *b = head + (neox ? i + half : 2 * i + 1);
        float c = cs[2 * i], s = cs[2 * i + 1], bs = *b * s, bc = *b * c, av = *a;
        *a = pn_fmaf(av, c, -bs);
        *b = pn_fmaf(av, s, bc);
    }
}

PN_INTERNAL void pn_ref_softmax(float *x, size_t n)
{
    float m = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
    for (size_t i = 0; i < n; i++) {
        x[i] = pn_expf(x[i] - m);
        sum = sum + x[i];
    }
    float inv = 1.0f / sum;
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] * inv;
}

/* ------------------------------------------------------------------------------------------
 * Keys and values
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_ref_kv_encode(uint32_t type, const float *x, void *dst, size_t n)
{
    bool known = pn_quant_row(type, x, dst, n);
    PN_ASSERT(known);
    (void)known;
}

PN_INTERNAL void pn_ref_kv_decode(uint32_t type, const void *src, float *y, size_t n) { pn_dequant_row(type, src, y, n); }

PN_INTERNAL void pn_ref_hadamard(float *x, size_t n, size_t b)
{
    float scale = pn_cpu_rotation_scale(b);
    for (size_t h = 1; h < b; h *= 2)
        for (size_t i = 0; i < n; i++)
            if (!(i & h)) {
                float s = x[i] + x[i + h], d = x[i] - x[i + h];
                x[i] = s;
                x[i + h] = d;
            }
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] * scale;
}

/* Up to 32 elements from i on, a multiple of 32. */
static void ref_kv(const void *base, uint32_t type, size_t i, float *y, size_t n)
{
    pn_dequant_row(type, (const uint8_t *)base + pn_kv_elem_bytes(type, i), y, n);
}

static float ref_score(const pn_cpu_attn *a, const float *q, size_t t)
{
    float p[16] = {0}, k[32];
    for (size_t i = 0; i < a->d_k; i++) {
        if (i % 32 == 0)
            ref_kv(a->k, a->k_type, t * a->d_k + i, k, PN_MIN((size_t)32, a->d_k - i));
        p[i % 16] = pn_fmaf(q[i], k[i % 32], p[i % 16]);
    }
    for (size_t half = 8; half; half /= 2)
        for (size_t i = 0; i < half; i++)
            p[i] = p[i] + p[i + half];
    float s = p[0] * a->scale;
    return a->softcap != 0 ? a->softcap * pn_tanhf(s / a->softcap) : s;
}

/* o = o ea + (sum over t of p v) eb for n <= 32 columns from i on. */
static void ref_values(const pn_cpu_attn *a, uint32_t j, const float *p, size_t i, float ea, float eb)
{
    float sum[32] = {0}, v[32];
    size_t n = PN_MIN((size_t)32, a->d_v - i);
    for (size_t t = a->lo[j]; t < a->hi[j]; t++) {
        ref_kv(a->v, a->v_type, t * a->d_v + i, v, n);
        for (size_t c = 0; c < n; c++)
            sum[c] = pn_fmaf(p[t], v[c], sum[c]);
    }
    for (size_t c = 0; c < n; c++) {
        float ob = sum[c] * eb;
        a->o[j][i + c] = pn_fmaf(a->o[j][i + c], ea, ob);
    }
}

/* One query: the page's (max, sum, out), then the merge with what came before. */
static void ref_attn_query(const pn_cpu_attn *a, uint32_t j)
{
    float p[PN_KV_PAGE_TOKENS], m = -INFINITY, l = 0;
    size_t lo = a->lo[j], hi = a->hi[j];
    if (lo >= hi)
        return;
    for (size_t t = lo; t < hi; t++) {
        p[t] = ref_score(a, a->q[j], t);
        m = p[t] > m ? p[t] : m;
    }
    for (size_t t = lo; t < hi; t++) {
        p[t] = pn_expf(p[t] - m);
        l = l + p[t];
    }
    float top = a->m[j] > m ? a->m[j] : m;
    float ea = pn_expf(a->m[j] - top), eb = pn_expf(m - top), lb = l * eb;
    for (size_t i = 0; i < a->d_v; i += 32)
        ref_values(a, j, p, i, ea, eb);
    a->l[j] = pn_fmaf(a->l[j], ea, lb);
    a->m[j] = top;
}

static void ref_attn(const pn_cpu_attn *a)
{
    for (uint32_t j = 0; j < a->n_q; j++)
        ref_attn_query(a, j);
}

PN_INTERNAL const pn_cpu_kernels *pn_cpu_ref(void)
{
    static const pn_cpu_kernels table = {
        .name = "ref", .quant = pn_ref_quant, .matmul = ref_matmul, .matmul_exact = ref_matmul_exact,
        .rms_norm = ref_rms_norm, .add = pn_ref_add, .axpy = pn_ref_axpy, .scale = pn_ref_scale,
        .glu = pn_ref_glu, .softcap = pn_ref_softcap, .rope = pn_ref_rope,
        .kv_encode = pn_ref_kv_encode, .kv_decode = pn_ref_kv_decode, .hadamard = pn_ref_hadamard,
        .attn = ref_attn, .softmax = pn_ref_softmax,
    };
    return &table;
}

#undef REF_M
