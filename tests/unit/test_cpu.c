/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_cpu.c - every kernel of every instruction set this machine has, against the definition.
 *
 * ref is checked against decoded weights and double precision; the others against ref, bit for bit
 * where they have fused multiply-adds, and against themselves over shapes: an output may not depend
 * on how many rows it is computed with.  Buffers are allocated to the byte so that the sanitizers
 * see a read past the end.
 */
#include "cpu/pn_cpu_unpack.h"

#include "num/pn_half.h"
#include "num/pn_math.h"
#include "num/pn_quant.h"
#include "pn_test.h"

typedef struct fmt { uint32_t type; int f16_at[2]; } fmt;

/* Every weight type with the offsets of its f16 factors (-1: none). */
static const fmt formats[] = {
    {PN_DTYPE_F32, {-1, -1}},     {PN_DTYPE_F16, {-1, -1}},     {PN_DTYPE_BF16, {-1, -1}},
    {PN_DTYPE_Q4_0, {0, -1}},     {PN_DTYPE_Q4_1, {0, 2}},      {PN_DTYPE_Q5_0, {0, -1}},
    {PN_DTYPE_Q5_1, {0, 2}},      {PN_DTYPE_Q8_0, {0, -1}},     {PN_DTYPE_Q2_K, {80, 82}},
    {PN_DTYPE_Q3_K, {108, -1}},   {PN_DTYPE_Q4_K, {0, 2}},      {PN_DTYPE_Q5_K, {0, 2}},
    {PN_DTYPE_Q6_K, {208, -1}},   {PN_DTYPE_IQ2_XXS, {0, -1}},  {PN_DTYPE_IQ2_XS, {0, -1}},
    {PN_DTYPE_IQ2_S, {0, -1}},    {PN_DTYPE_IQ3_XXS, {0, -1}},  {PN_DTYPE_IQ3_S, {0, -1}},
    {PN_DTYPE_IQ1_S, {0, -1}},    {PN_DTYPE_IQ1_M, {-1, -1}},   {PN_DTYPE_IQ4_NL, {0, -1}},
    {PN_DTYPE_IQ4_XS, {0, -1}},   {PN_DTYPE_TQ1_0, {52, -1}},   {PN_DTYPE_TQ2_0, {64, -1}},
    {PN_DTYPE_MXFP4, {-1, -1}},   {PN_DTYPE_NVFP4, {-1, -1}},   {PN_DTYPE_Q1_0, {0, -1}},
    {PN_DTYPE_Q2_0, {0, -1}},
};

static uint64_t seed = 88172645463325252u;

static float rand_unit(void) { return (float)((double)(pn_test_rand(&seed) >> 40) * 0x1p-23 - 1.0); }

static void put_f16(uint8_t *p, float f)
{
    uint16_t h = pn_f16_from_f32(f);
    memcpy(p, &h, 2);
}

/* mode 0: random bytes; 1: all bits set; 2: all clear; 3: 0x80 (smallest int8). */
static void fill_block(const fmt *f, uint8_t *p, size_t bytes, int mode)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = mode == 0 ? (uint8_t)(pn_test_rand(&seed) >> 33) : mode == 1 ? 255 : mode == 2 ? 0 : 0x80;
    for (int i = 0; i < 2; i++)
        if (f->f16_at[i] >= 0)
            put_f16(p + f->f16_at[i], rand_unit() * 0.02f);
    if (f->type == PN_DTYPE_MXFP4)
        p[0] = (uint8_t)(110 + (p[0] & 15));
    if (f->type == PN_DTYPE_IQ1_M) {
        uint16_t h = pn_f16_from_f32(rand_unit() * 0.05f);
        for (int i = 0; i < 4; i++)
            p[49 + 2 * i] = (uint8_t)((p[49 + 2 * i] & 15) | (h >> (4 * i) & 15) << 4);
    }
}

/* rows x k weights at an address that is only as aligned as the format promises. */
static uint8_t *make_weights(const fmt *f, size_t rows, size_t k, uint8_t **base, size_t *stride)
{
    const pn_dtype_info *t = pn_dtype_get(f->type);
    size_t shift = f->type == PN_DTYPE_F32 ? 4 : f->type == PN_DTYPE_MXFP4 ? 1 : 2;
    *stride = k / t->block_elems * t->block_bytes;
    *base = malloc(rows * *stride + shift);
    uint8_t *w = *base + shift;
    if (t->block_elems > 1) {
        for (size_t i = 0; i < rows * k / t->block_elems; i++)
            fill_block(f, w + i * t->block_bytes, t->block_bytes, i % 11 == 3 ? (int)(i / 11 % 4) : 0);
        return w;
    }
    for (size_t i = 0; i < rows * k; i++) {
        float v = rand_unit();
        uint16_t h = f->type == PN_DTYPE_F16 ? pn_f16_from_f32(v) : pn_bf16_from_f32(v);
        memcpy(w + i * t->block_bytes, f->type == PN_DTYPE_F32 ? (void *)&v : (void *)&h, t->block_bytes);
    }
    return w;
}

/* m rows of k floats; row 3 is all zero, row 1 has one huge element. */
static float *make_x(size_t m, size_t k)
{
    float *x = malloc(m * k * 4);
    for (size_t i = 0; i < m * k; i++)
        x[i] = i / k == 3 ? 0 : rand_unit() * 3;
    if (m > 1)
        x[k + k / 2] = 1000;
    return x;
}

static uint8_t *quant_rows(const pn_cpu_kernels *c, pn_act_kind kind, const float *x, size_t m, size_t k)
{
    pn_act_layout l = pn_act_layout_of(kind, k);
    uint8_t *out = aligned_alloc(64, m * l.row_bytes);
    for (size_t j = 0; j < m; j++)
        c->quant(kind, x + j * k, out + j * l.row_bytes, k);
    return out;
}

static size_t n_isas(void)
{
    size_t n = 0;
    while (pn_cpu_isa_at(n))
        n++;
    return n;
}

static const pn_cpu_kernels *isa_at(size_t i)
{
    pn_err err;
    PN_CHECK(pn_cpu_force(pn_cpu_isa_at(i), &err) == PN_OK, "%s", err.text);
    return pn_cpu_get();
}

static bool has_fma(const pn_cpu_kernels *c) { return strcmp(c->name, "sse41") != 0; }

/* Bit equality, or closeness relative to `mag` where there is no FMA. */
static bool same(const pn_cpu_kernels *c, float a, float b, double mag)
{
    if (has_fma(c))
        return pn_f32_bits(a) == pn_f32_bits(b);
    return fabs((double)a - (double)b) <= 2e-5 * mag + 1e-30;
}

/* ------------------------------------------------------------------------------------------ */

static void test_unpack_agrees_with_dequantisation(void)
{
    for (size_t i = 0; i < PN_COUNT_OF(formats); i++) {
        const fmt *f = &formats[i];
        pn_cpu_form form = pn_cpu_form_of(f->type);
        if (form.family == PN_CPU_FLOAT)
            continue;
        size_t k = 1024, stride;
        uint8_t *base, *w = make_weights(f, 1, k, &base, &stride);
        float *y = malloc(k * 4);
        pn_cpu_chunk c;
        int bad = 0;
        pn_dequant_row(f->type, w, y, k);
        for (size_t e = 0; e < k; e += 256) {
            memset(&c, 0xff, sizeof c);
            pn_cpu_unpack(f->type, w, e, 256, &c);
            for (size_t j = 0; j < 256; j++) {
                double v, s = 0;
                if (form.family == PN_CPU_B256) {
                    v = (double)c.d[0] * c.sc[j / 16] * c.w[j];
                    s = form.has_min ? (double)c.m[0] * c.mn[j / 16] : 0;
                } else {
                    v = (double)c.d[form.family == PN_CPU_B16 ? j / 16 : j / 32] * c.w[j];
                    s = form.has_min ? (double)c.m[j / 32] : 0;
                }
                bad += fabs(v + s - (double)y[e + j]) > 1e-6 * (fabs(v) + fabs(s));
                bad += c.w[j] + form.off < 0 || c.w[j] + form.off > form.cmax;
            }
        }
        PN_CHECK(bad == 0, "%s: %d elements", pn_dtype_get(f->type)->name, bad);
        free(y);
        free(base);
    }
}

static void test_quant_is_the_reference_quantiser(void)
{
    static const size_t sizes[] = {32, 64, 96, 256, 512, 768, 2048};
    const pn_cpu_kernels *ref = pn_cpu_ref();
    for (size_t i = 0; i < n_isas(); i++) {
        const pn_cpu_kernels *c = isa_at(i);
        for (size_t s = 0; s < PN_COUNT_OF(sizes); s++) {
            for (int kind = PN_ACT_F32; kind <= PN_ACT_Q8_256; kind++) {
                size_t k = sizes[s];
                if (kind == PN_ACT_Q8_256 && k % 256)
                    continue;
                float *x = make_x(5, k);
                x[k + 1] = 0x1p-130f;
                for (size_t j = 4 * k; j < 5 * k; j++)
                    x[j] = 0x1p-120f;
                size_t bytes = 5 * pn_act_layout_of((pn_act_kind)kind, k).row_bytes;
                uint8_t *a = quant_rows(ref, (pn_act_kind)kind, x, 5, k);
                uint8_t *b = quant_rows(c, (pn_act_kind)kind, x, 5, k);
                PN_CHECK(memcmp(a, b, bytes) == 0, "%s kind %d k %zu", c->name, kind, k);
                free(a);
                free(b);
                free(x);
            }
        }
    }
}

/* A NaN has to reach the logits: its block gets a NaN scale, the others stay as they are. */
static void test_quant_keeps_a_nan(void)
{
    for (size_t i = 0; i < n_isas(); i++)
        for (int kind = PN_ACT_Q8_32; kind <= PN_ACT_Q8_256; kind++)
            for (size_t at = 0; at < 512; at += 37) {
                size_t bs = kind == PN_ACT_Q8_32 ? 32 : 256;
                pn_act_layout l = pn_act_layout_of((pn_act_kind)kind, 512);
                _Alignas(64) static uint8_t row[2048];
                float x[512], d[16] = {0};
                for (size_t k = 0; k < 512; k++)
                    x[k] = (float)(k % 13) - 6;
                x[at] = NAN;
                isa_at(i)->quant((pn_act_kind)kind, x, row, 512);
                memcpy(d, row + l.off_d, 512 / bs * 4);
                for (size_t b = 0; b < 512 / bs; b++)
                    PN_CHECK((d[b] != d[b]) == (b == at / bs), "%s: block %zu, NaN at %zu", isa_at(i)->name, b, at);
            }
}

/* ref's result against double precision over decoded weights and decoded activations. */
static void test_ref_matmul_computes_the_product(void)
{
    const pn_cpu_kernels *ref = pn_cpu_ref();
    for (size_t i = 0; i < PN_COUNT_OF(formats); i++) {
        const fmt *f = &formats[i];
        const char *name = pn_dtype_get(f->type)->name;
        size_t rows = 5, m = 4, k = 512, stride;
        pn_act_kind kind = pn_cpu_act_kind(f->type);
        pn_act_layout l = pn_act_layout_of(kind, k);
        uint8_t *base, *w = make_weights(f, rows, k, &base, &stride);
        float *x = make_x(m, k), *y = malloc(rows * m * 4), *wf = malloc(k * 4);
        uint8_t *xq = quant_rows(ref, kind, x, m, k);
        void *tile = aligned_alloc(64, pn_align_up(pn_cpu_tile_bytes((uint32_t)k), 64));
        pn_cpu_mm a = {.w = w, .w_stride = stride, .dtype = f->type, .rows = (uint32_t)rows,
                       .m = (uint32_t)m, .k = (uint32_t)k, .x = xq, .x_stride = l.row_bytes,
                       .y = y, .y_stride = rows, .tile = tile};
        ref->matmul(&a);
        for (size_t r = 0; r < rows; r++) {
            pn_dequant_row(f->type, w + r * stride, wf, k);
            for (size_t j = 0; j < m; j++) {
                double sum = 0, mag = 0;
                for (size_t e = 0; e < k; e++) {
                    const uint8_t *row = xq + j * l.row_bytes;
                    double v = (double)((const float *)(void *)row)[kind == PN_ACT_F32 ? e : 0];
                    if (kind != PN_ACT_F32)
                        v = (double)((const float *)(const void *)(row + l.off_d))[e / (kind == PN_ACT_Q8_32 ? 32 : 256)] * (int8_t)row[e];
                    sum += wf[e] * v;
                    mag += fabs(wf[e] * v);
                }
                PN_CHECK(fabs(sum - (double)y[j * rows + r]) <= 3e-6 * mag, "%s row %zu: %g, not %g",
                         name, r, (double)y[j * rows + r], sum);
            }
        }
        free(base);
        free(x);
        free(y);
        free(wf);
        free(xq);
        free(tile);
    }
}

enum { ROWS = 33, M = 64 };

/* Every entry of y (rows x m at r0) must be the entry of `want` (ROWS x M). */
static int count_bad(const pn_cpu_kernels *c, const float *want, const double *mag, const float *y,
                     size_t r0, size_t rows, size_t m)
{
    int bad = 0;
    for (size_t j = 0; j < m; j++)
        for (size_t r = 0; r < rows; r++)
            bad += !same(c, y[j * rows + r], want[j * ROWS + r0 + r], mag[j * ROWS + r0 + r]);
    return bad;
}

static void check_shapes(const pn_cpu_kernels *c, const pn_cpu_mm *whole, const float *want,
                         const double *mag, bool exact)
{
    static const uint32_t ms[] = {1, 2, 3, 5, 8, 17, 64}, rs[] = {1, 7, 8, 15, 16, 17, 33};
    for (size_t i = 0; i < PN_COUNT_OF(ms); i++) {
        for (size_t j = 0; j < PN_COUNT_OF(rs); j++) {
            uint32_t r0 = (uint32_t)((i * 5 + j * 3) % (ROWS - rs[j] + 1));
            pn_cpu_mm a = *whole;
            float *y = malloc(4 * (size_t)rs[j] * ms[i]);
            a.w = (const uint8_t *)whole->w + r0 * a.w_stride;
            a.rows = rs[j];
            a.m = ms[i];
            a.y = y;
            a.y_stride = rs[j];
            (exact ? c->matmul_exact : c->matmul)(&a);
            int bad = count_bad(c, want, mag, y, r0, rs[j], ms[i]);
            PN_CHECK(bad == 0, "%s %s%s k %u rows %u m %u: %d", c->name, pn_dtype_get(a.dtype)->name,
                     exact ? " exact" : "", (unsigned)a.k, (unsigned)rs[j], (unsigned)ms[i], bad);
            free(y);
        }
    }
}

/* x_index, y_index, bias and a residual in the memory of y. */
static void check_gather(const pn_cpu_kernels *c, const pn_cpu_mm *whole, const float *want,
                         const double *mag, bool exact)
{
    static const uint32_t xi[] = {7, 0, 63, 7, 12, 1, 30, 2, 9}, yi[] = {3, 1, 0, 8, 7, 2, 5, 4, 6};
    enum { N = PN_COUNT_OF(xi) };
    float bias[ROWS], *y = malloc(4 * N * (ROWS + 3)), *before = malloc(4 * N * (ROWS + 3));
    for (int i = 0; i < ROWS; i++)
        bias[i] = rand_unit();
    for (int i = 0; i < N * (ROWS + 3); i++)
        y[i] = before[i] = rand_unit();
    for (uint32_t m = 2; m <= N; m += N - 2) {
        pn_cpu_mm a = *whole;
        int bad = 0;
        memcpy(y, before, 4 * N * (ROWS + 3));
        a.m = m;
        a.x_index = xi;
        a.y_index = yi;
        a.y = y;
        a.y_stride = ROWS + 3;
        a.res = y;
        a.res_stride = ROWS + 3;
        a.bias = bias;
        (exact ? c->matmul_exact : c->matmul)(&a);
        for (uint32_t j = 0; j < m; j++)
            for (uint32_t r = 0; r < ROWS; r++) {
                size_t at = yi[j] * (ROWS + 3) + r;
                float v = want[xi[j] * ROWS + r] + bias[r];
                float sum = v + before[at];
                bad += !same(c, y[at], sum, mag[xi[j] * ROWS + r] + 2);
            }
        PN_CHECK(bad == 0, "%s %s m %u: %d", c->name, pn_dtype_get(a.dtype)->name, (unsigned)m, bad);
    }
    free(y);
    free(before);
}

static void check_format(const fmt *f, size_t k, bool exact)
{
    const pn_cpu_kernels *ref = pn_cpu_ref();
    size_t stride;
    pn_act_kind kind = exact ? PN_ACT_F32 : pn_cpu_act_kind(f->type);
    pn_act_layout l = pn_act_layout_of(kind, k);
    uint8_t *base, *w = make_weights(f, ROWS, k, &base, &stride);
    float *x = make_x(M, k), *want = malloc(4 * ROWS * M);
    double *mag = malloc(8 * ROWS * M);
    uint8_t *xq = quant_rows(ref, kind, x, M, k);
    void *tile = aligned_alloc(64, pn_align_up(pn_cpu_tile_bytes((uint32_t)k), 64));
    pn_cpu_mm a = {.w = w, .w_stride = stride, .dtype = f->type, .rows = ROWS, .m = M,
                   .k = (uint32_t)k, .x = xq, .x_stride = l.row_bytes, .y = want,
                   .y_stride = ROWS, .tile = tile};
    (exact ? ref->matmul_exact : ref->matmul)(&a);
    float *wf = malloc(4 * k);
    for (size_t r = 0; r < ROWS; r++) {
        pn_dequant_row(f->type, w + r * stride, wf, k);
        for (size_t j = 0; j < M; j++) {
            double sum = 0;
            for (size_t e = 0; e < k; e++)
                sum += fabs((double)wf[e] * (double)x[j * k + e]);
            mag[j * ROWS + r] = sum;
        }
    }
    for (size_t i = 0; i < n_isas(); i++) {
        const pn_cpu_kernels *c = isa_at(i);
        check_shapes(c, &a, want, mag, exact);
        check_gather(c, &a, want, mag, exact);
    }
    free(wf);
    free(mag);
    free(base);
    free(x);
    free(want);
    free(xq);
    free(tile);
}

static void test_matmul_is_ref_for_every_type_and_shape(void)
{
    for (size_t i = 0; i < PN_COUNT_OF(formats); i++) {
        size_t be = pn_dtype_get(formats[i].type)->block_elems;
        check_format(&formats[i], be == 1 ? 40 : be, false);
        check_format(&formats[i], be == 1 ? 331 : be == 256 ? 768 : 5 * be, false);
        check_format(&formats[i], be == 256 ? 1024 : be == 32 ? 416 : 640, false);
    }
}

static void test_matmul_exact_is_ref_for_every_type(void)
{
    for (size_t i = 0; i < PN_COUNT_OF(formats); i++) {
        size_t be = pn_dtype_get(formats[i].type)->block_elems;
        check_format(&formats[i], be == 1 ? 100 : be <= 64 ? 3 * be : be, true);
    }
}

/* ------------------------------------------------------------------------------------------ */

static const uint32_t kv_types[] = {PN_DTYPE_F32, PN_DTYPE_F16, PN_DTYPE_Q8_0, PN_DTYPE_Q5_1, PN_DTYPE_Q5_0, PN_DTYPE_Q4_1, PN_DTYPE_Q4_0};

enum { ATTN_QUERIES = 48, ATTN_PAGES = 3 };     /* most of a case: more than any kernel takes together */

typedef struct attn_case {
    uint32_t k_type, v_type, d_k, d_v, n_q, pages;
    float softcap;
} attn_case;

/* Two or three pages, queries one by one or together; returns normalised outputs [n_q][d_v]. */
static void run_attn(const pn_cpu_kernels *c, const attn_case *t, const float *q, const uint8_t *k,
                     const uint8_t *v, const uint16_t *lo, const uint16_t *hi, uint32_t group, float *out)
{
    const float *qp[ATTN_QUERIES];
    float *op[ATTN_QUERIES], m[ATTN_QUERIES], l[ATTN_QUERIES];
    for (uint32_t j = 0; j < t->n_q; j++) {
        qp[j] = q + j * t->d_k;
        op[j] = out + j * t->d_v;
        m[j] = -INFINITY;
        l[j] = 0;
        memset(op[j], 0, 4 * t->d_v);
    }
    for (uint32_t p = 0; p < t->pages; p++) {
        for (uint32_t j = 0; j < t->n_q; j += group) {
            pn_cpu_attn a = {.q = qp + j, .lo = lo + p * t->n_q + j, .hi = hi + p * t->n_q + j,
                             .n_q = PN_MIN(group, t->n_q - j),
                             .k = k + p * PN_KV_PAGE_TOKENS * pn_kv_elem_bytes(t->k_type, t->d_k),
                             .v = v + p * PN_KV_PAGE_TOKENS * pn_kv_elem_bytes(t->v_type, t->d_v),
                             .k_type = t->k_type, .v_type = t->v_type, .d_k = t->d_k, .d_v = t->d_v,
                             .scale = 0.11f, .softcap = t->softcap, .m = m + j, .l = l + j, .o = op + j};
            c->attn(&a);
        }
    }
    for (uint32_t j = 0; j < t->n_q; j++)
        for (uint32_t i = 0; i < t->d_v; i++)
            op[j][i] /= l[j];
}

/* The whole softmax in double precision, over the decoded keys [tokens, d_k] and values. */
static void oracle_attn(const attn_case *t, const float *q, const float *k, const float *v,
                        const uint16_t *lo, const uint16_t *hi, double *out)
{
    for (uint32_t j = 0; j < t->n_q; j++) {
        double sum = 0;
        double *o = out + j * t->d_v;
        memset(o, 0, 8 * t->d_v);
        for (uint32_t p = 0; p < t->pages; p++)
            for (uint32_t n = lo[p * t->n_q + j]; n < hi[p * t->n_q + j]; n++) {
                size_t row = p * PN_KV_PAGE_TOKENS + n;
                double s = 0;
                for (uint32_t i = 0; i < t->d_k; i++)
                    s += (double)q[j * t->d_k + i] * (double)k[row * t->d_k + i];
                s *= (double)0.11f;
                if (t->softcap != 0)
                    s = (double)t->softcap * tanh(s / (double)t->softcap);
                double e = exp(s);
                sum += e;
                for (uint32_t i = 0; i < t->d_v; i++)
                    o[i] += e * (double)v[row * t->d_v + i];
            }
        for (uint32_t i = 0; i < t->d_v; i++)
            o[i] /= sum;
    }
}

/* n random elements stored as `type`; *plain gets what they decode to.  Free both. */
static uint8_t *make_kv(uint32_t type, size_t n, float **plain)
{
    size_t bytes = pn_kv_elem_bytes(type, n);
    uint8_t *p = malloc(bytes);
    float *x = malloc(4 * n);
    for (size_t i = 0; i < n; i++)
        x[i] = rand_unit();
    PN_CHECK(pn_quant_row(type, x, p, n), "%u", (unsigned)type);
    pn_dequant_row(type, p, x, n);
    *plain = x;
    return p;
}

static void check_attn(const attn_case *t)
{
    size_t tokens = (size_t)t->pages * PN_KV_PAGE_TOKENS, no = (size_t)t->n_q * t->d_v;
    float *q = malloc(4 * (size_t)t->n_q * t->d_k), *want = malloc(4 * no), *got = malloc(4 * no), *kf, *vf;
    uint8_t *k = make_kv(t->k_type, tokens * t->d_k, &kf), *v = make_kv(t->v_type, tokens * t->d_v, &vf);
    double *oracle = malloc(8 * no);
    uint16_t lo[ATTN_QUERIES * ATTN_PAGES], hi[ATTN_QUERIES * ATTN_PAGES];
    for (size_t i = 0; i < (size_t)t->n_q * t->d_k; i++)
        q[i] = rand_unit() * 4;
    for (uint32_t i = 0; i < t->n_q * t->pages; i++) {
        lo[i] = i < t->n_q ? (uint16_t)(i % 5 * 3) : 0;
        hi[i] = i < t->n_q * (t->pages - 1) ? PN_KV_PAGE_TOKENS : (uint16_t)(i * 7 % PN_KV_PAGE_TOKENS);
        if (i == 1)
            lo[i] = hi[i] = 0;
    }
    oracle_attn(t, q, kf, vf, lo, hi, oracle);
    run_attn(pn_cpu_ref(), t, q, k, v, lo, hi, 1, want);
    for (size_t i = 0; i < n_isas(); i++) {
        const pn_cpu_kernels *c = isa_at(i);
        for (uint32_t group = 1; group <= t->n_q; group += group < 3 ? 1 : t->n_q - 3 ? t->n_q - 3 : 1) {
            int bad = 0, far = 0;
            run_attn(c, t, q, k, v, lo, hi, group, got);
            for (size_t o = 0; o < no; o++) {
                bad += !same(c, got[o], want[o], 1);
                far += fabs((double)got[o] - oracle[o]) > 1e-5;
            }
            PN_CHECK(bad == 0 && far == 0, "%s types %u %u d_k %u d_v %u group %u: %d differ, %d far", c->name,
                     (unsigned)t->k_type, (unsigned)t->v_type, (unsigned)t->d_k, (unsigned)t->d_v, (unsigned)group, bad, far);
        }
    }
    /* A page of blocks is the page of what they decode to. */
    attn_case plain = *t;
    plain.k_type = plain.v_type = PN_DTYPE_F32;
    run_attn(pn_cpu_ref(), &plain, q, (uint8_t *)kf, (uint8_t *)vf, lo, hi, 1, got);
    PN_CHECK(memcmp(got, want, 4 * no) == 0, "types %u %u: not what decoded values give", (unsigned)t->k_type, (unsigned)t->v_type);
    free(k);
    free(v);
    free(kf);
    free(vf);
    free(q);
    free(want);
    free(got);
    free(oracle);
}

static void test_attention_is_ref_and_the_softmax(void)
{
    enum { H = PN_DTYPE_F16, S = PN_DTYPE_F32 };
    static const attn_case cases[] = {
        {H, H, 128, 128, 7, 3, 0}, {H, H, 64, 64, 4, 2, 0}, {S, S, 40, 24, 5, 2, 0},   {H, H, 20, 10, 6, 2, 0}, {H, S, 256, 256, 2, 2, 30},
        {S, S, 7, 3, 3, 2, 5},     {H, H, 192, 128, 16, 2, 0}, {H, H, 96, 96, 1, 3, 0}, {S, H, 80, 80, 9, 3, 50}, {H, H, 544, 33, 3, 2, 0},
        {H, H, 64, 64, 48, 3, 0},  {S, S, 100, 72, 37, 2, 0},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++)
        check_attn(&cases[i]);
    for (size_t i = 0; i < PN_COUNT_OF(kv_types); i++)
        for (size_t j = 0; j < PN_COUNT_OF(kv_types); j++) {
            const attn_case t = {kv_types[i], kv_types[j], i % 2 ? 64 : 96, j % 2 ? 32 : 128, (uint32_t)(5 + i + j) % 16 + 1, 2, j == 3 ? 20.0f : 0};
            check_attn(&t);
        }
    const attn_case large = {PN_DTYPE_Q5_0, PN_DTYPE_Q4_1, 576, 544, 5, 2, 0};     /* keys that are not decoded for a group */
    check_attn(&large);
}

/* n floats: ordinary, with one outlier, ties in magnitude, zeros of both signs, tiny, huge, NaN, infinite. */
static void fill_kv(float *x, size_t n, int mode)
{
    for (size_t i = 0; i < n; i++) {
        float u = rand_unit();
        x[i] = mode == 0 ? u * 5 : mode == 1 ? u + (i % 37 == 5 ? 60.0f : 0) : mode == 2 ? (u < 0 ? -1.5f : 1.5f)
             : mode == 3 ? (u < 0 ? -0.0f : 0.0f) : mode == 4 ? u * 0x1p-140f : mode == 5 ? u * 0x1p120f
             : mode == 6 ? (i % 7 ? u : NAN) : mode == 7 ? (i % 11 ? u : u < 0 ? -INFINITY : INFINITY)
             : mode == 8 ? (float)(int)(u * 254) * 0.5f : fabsf(u) * (float)(i % 32 != 3);
    }
}

/* The bytes of num/, and what it decodes them to. */
static void test_stored_types_are_those_of_num(void)
{
    for (size_t i = 0; i < n_isas(); i++)
        for (size_t t = 0; t < PN_COUNT_OF(kv_types); t++)
            for (int mode = 0; mode < 10; mode++)
                for (size_t n = kv_types[t] <= PN_DTYPE_F16 ? 1 : 32; n <= 512; n += kv_types[t] <= PN_DTYPE_F16 ? 13 : 32) {
                    const pn_cpu_kernels *c = isa_at(i);
                    size_t bytes = pn_kv_elem_bytes(kv_types[t], n);
                    float *x = malloc(4 * n), *want = malloc(4 * n);
                    uint8_t *a = malloc(bytes), *b = malloc(bytes);
                    fill_kv(x, n, mode);
                    pn_quant_row(kv_types[t], x, a, n);
                    c->kv_encode(kv_types[t], x, b, n);
                    PN_CHECK(memcmp(a, b, bytes) == 0, "%s encodes type %u, kind %d, %zu elements", c->name, (unsigned)kv_types[t], mode, n);
                    pn_dequant_row(kv_types[t], a, want, n);
                    c->kv_decode(kv_types[t], a, x, n);
                    int bad = 0;
                    for (size_t e = 0; e < n; e++)
                        bad += pn_f32_bits(x[e]) != pn_f32_bits(want[e]) && !(isnan(x[e]) && isnan(want[e]));
                    PN_CHECK(bad == 0, "%s decodes type %u, kind %d: %d of %zu", c->name, (unsigned)kv_types[t], mode, bad, n);
                    free(x);
                    free(want);
                    free(a);
                    free(b);
                }
}

/* The rotation is ref's, its own inverse up to rounding, and leaves scalar products alone. */
static void test_rotation_keeps_products(void)
{
    static const size_t rows[] = {1, 6, 12, 32, 64, 80, 96, 128, 192, 256, 576, 1024, 4096};
    for (size_t i = 0; i < n_isas(); i++)
        for (size_t r = 0; r < PN_COUNT_OF(rows); r++) {
            const pn_cpu_kernels *c = isa_at(i);
            size_t d = rows[r], n = 3 * d, b = pn_cpu_rotation(d);
            float *x = malloc(4 * n), *y = malloc(4 * n), *z = malloc(4 * n);
            for (size_t e = 0; e < n; e++)
                x[e] = y[e] = z[e] = rand_unit();
            pn_cpu_ref()->hadamard(y, n, b);
            c->hadamard(z, n, b);
            PN_CHECK(memcmp(y, z, 4 * n) == 0, "%s rotates rows of %zu", c->name, d);
            double before = 0, after = 0;
            for (size_t e = 0; e < d; e++) {
                before += (double)x[e] * (double)x[d + e];
                after += (double)y[e] * (double)y[d + e];
            }
            PN_CHECK(fabs(before - after) < 1e-5 * sqrt((double)d) && (b == 1 || y[0] != x[0]), "rows of %zu: %g became %g", d, before, after);
            c->hadamard(z, n, b);
            int bad = 0;
            for (size_t e = 0; e < n; e++)
                bad += fabs((double)z[e] - (double)x[e]) >= 1e-5;
            PN_CHECK(bad == 0, "rows of %zu: %d elements do not come back", d, bad);
            free(x);
            free(y);
            free(z);
        }
    PN_CHECK(pn_cpu_rotation(96) == 32 && pn_cpu_rotation(64) == 64 && pn_cpu_rotation(80) == 16 && pn_cpu_rotation(4096) == 2048, "blocks");
}

/* ------------------------------------------------------------------------------------------ */

static int diff(const pn_cpu_kernels *c, const float *a, const float *b, size_t n)
{
    int bad = 0;
    for (size_t i = 0; i < n; i++)
        bad += !same(c, a[i], b[i], fabs((double)b[i]));
    return bad;
}

/* y and z hold ref's and c's results; both start from the same contents. */
static void check_elementwise(const pn_cpu_kernels *c, size_t n, float range)
{
    const pn_cpu_kernels *ref = pn_cpu_ref();
    float *a = malloc(4 * n), *b = malloc(4 * n), *y = malloc(4 * n), *z = malloc(4 * n);
    for (size_t i = 0; i < n; i++) {
        a[i] = rand_unit() * range;
        b[i] = rand_unit();
    }
#define BOTH(call) \
    do { \
        const pn_cpu_kernels *isa = ref; \
        float *out = y; \
        memcpy(y, b, 4 * n); \
        memcpy(z, b, 4 * n); \
        call; \
        isa = c; \
        out = z; \
        call; \
        int bad = diff(c, z, y, n); \
        PN_CHECK(bad == 0, "%s " #call " n %zu range %g: %d", c->name, n, (double)range, bad); \
    } while (0)
    BOTH(isa->rms_norm(a, b, out, n, 1e-5f));
    BOTH(isa->rms_norm(a, NULL, out, n, 1e-6f));
    BOTH(isa->add(a, b, out, n));
    BOTH(isa->axpy(0.7f, a, out, n));
    BOTH(isa->scale(a, 0.3f, out, n));
    BOTH(isa->glu(PN_GLU_SILU, a, b, out, n));
    BOTH(isa->glu(PN_GLU_GELU, a, b, out, n));
    BOTH(isa->softcap(a, 30.0f, out, n));
    BOTH((memcpy(out, a, 4 * n), isa->softmax(out, n)));
    if (n % 2 == 0) {
        BOTH(isa->rope(out, a, (uint32_t)n, true));
        BOTH(isa->rope(out, a, (uint32_t)n, false));
    }
#undef BOTH
    free(a);
    free(b);
    free(y);
    free(z);
}

static void test_elementwise_ops_are_ref(void)
{
    for (size_t i = 0; i < n_isas(); i++) {
        const pn_cpu_kernels *c = isa_at(i);
        for (size_t n = 1; n <= 67; n++)
            check_elementwise(c, n, 4);
        check_elementwise(c, 1000, 1);
        check_elementwise(c, 4096, 20);
        check_elementwise(c, 4096, 200);
        check_elementwise(c, 4096, 70000);
    }
}

static void test_force_refuses_what_is_absent(void)
{
    pn_err err;
    PN_CHECK(pn_cpu_force("itanium", &err) == PN_E_UNSUPPORTED, "no such set");
    PN_CHECK(strstr(err.text, "itanium") != NULL, "%s", err.text);
    PN_CHECK(pn_cpu_force(NULL, &err) == PN_E_INVALID, "NULL");
    PN_CHECK(pn_cpu_force("ref", NULL) == PN_OK && strcmp(pn_cpu_isa(), "ref") == 0, "%s", pn_cpu_isa());
    PN_CHECK(strcmp(pn_cpu_isa_at(n_isas() - 1), "ref") == 0, "ref is last");
}

static void test_tile_bytes_are_modest(void)
{
    PN_CHECK(pn_cpu_tile_bytes(32768) <= 1u << 20, "%zu", pn_cpu_tile_bytes(32768));
    PN_CHECK(pn_cpu_tile_bytes(64) <= 64u << 10, "%zu", pn_cpu_tile_bytes(64));
}

/* The order of pn_cpu.h, each rounding on its own line; and near the exact sum. */
static void test_a_short_convolution_is_its_definition(void)
{
    enum { N = 37, ROWS = 12 };
    static float b[ROWS][N], c[N], x[ROWS][N], w[N * PN_CPU_TAPS], u[N], y[N];
    for (uint32_t taps = 2; taps <= PN_CPU_TAPS; taps++)
        for (uint32_t row = 0; row < ROWS; row++) {         /* the first rows have nothing before them, or what was kept */
            pn_cpu_tap tap[PN_CPU_TAPS];
            float kept[PN_CPU_TAPS][N];
            for (uint32_t i = 0; i < N; i++) {
                c[i] = rand_unit();
                for (uint32_t r = 0; r < ROWS; r++) {
                    b[r][i] = rand_unit();
                    x[r][i] = rand_unit();
                }
                for (uint32_t k = 0; k < taps; k++)
                    w[i * taps + k] = rand_unit();
            }
            for (uint32_t k = 0; k < taps; k++) {
                int32_t at = (int32_t)row + (int32_t)k - (int32_t)(taps - 1);
                tap[k] = at < 0 ? (pn_cpu_tap){NULL, NULL} : (pn_cpu_tap){b[at], x[at]};
                if (k % 2) {                                /* the same from a slot */
                    pn_cpu_tap_row(&tap[k], kept[k], N);
                    tap[k] = (pn_cpu_tap){kept[k], NULL};
                }
            }
            pn_cpu_short_conv(tap, taps, w, c, y, N);
            for (uint32_t i = 0; i < N; i++) {
                volatile float s = 0, p, in;
                double exact = 0;
                for (uint32_t k = 0; k < taps; k++) {
                    int32_t at = (int32_t)row + (int32_t)k - (int32_t)(taps - 1);
                    in = at < 0 ? 0 : b[at][i] * x[at][i];
                    p = w[i * taps + k] * in;
                    s = k ? s + p : p;
                    exact += at < 0 ? 0 : (double)w[i * taps + k] * b[at][i] * x[at][i];
                }
                p = c[i] * s;
                float want = p;
                PN_CHECK(pn_f32_bits(want) == pn_f32_bits(y[i]), "%u taps, row %u: %g, expected %g", (unsigned)taps, (unsigned)row, (double)y[i], (double)want);
                PN_CHECK(fabs((double)y[i] - exact * (double)c[i]) < 1e-6, "%u taps, row %u: %g", (unsigned)taps, (unsigned)row, (double)y[i]);
            }
        }
    const pn_cpu_tap none = {NULL, NULL};
    pn_cpu_tap_row(&none, u, N);
    for (uint32_t i = 0; i < N; i++)
        PN_CHECK(pn_f32_bits(u[i]) == 0, "not +0 before the beginning");
}

int main(void)
{
    for (size_t i = 0; i < n_isas(); i++)
        printf("%s ", pn_cpu_isa_at(i));
    printf("\n");
    test_tile_bytes_are_modest();
    test_force_refuses_what_is_absent();
    test_unpack_agrees_with_dequantisation();
    test_quant_is_the_reference_quantiser();
    test_quant_keeps_a_nan();
    test_ref_matmul_computes_the_product();
    test_elementwise_ops_are_ref();
    test_stored_types_are_those_of_num();
    test_rotation_keeps_products();
    test_attention_is_ref_and_the_softmax();
    test_a_short_convolution_is_its_definition();
    test_matmul_exact_is_ref_for_every_type();
    test_matmul_is_ref_for_every_type_and_shape();
    return pn_test_end();
}
