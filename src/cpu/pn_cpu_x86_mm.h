/*
 * pn_cpu_x86_mm.h - the scalar frame around the x86 matrix kernels.
 *
 * Pointers into activation rows, filling panels, storing a tail of outputs; and the AVX2 functions
 * that the AVX-512 tables borrow by name.
 */
#ifndef PN_CPU_X86_MM_H
#define PN_CPU_X86_MM_H

#include "cpu/pn_cpu_x86.h"

/* An activation row: values, scales, sums over 16. */
typedef struct pn_x86_x {
    const int8_t *q;
    const float *d;
    const int16_t *s;
} pn_x86_x;

static inline pn_x86_x pn_x86_x_at(const pn_cpu_mm *a, pn_cpu_form f, uint32_t j)
{
    pn_act_layout l = pn_act_layout_of(f.family == PN_CPU_B256 ? PN_ACT_Q8_256 : PN_ACT_Q8_32, a->k);
    const uint8_t *p = pn_x86_x_row(a, j);
    return (pn_x86_x){(const int8_t *)p, (const float *)(const void *)(p + l.off_d),
                      (const int16_t *)(const void *)(p + l.off_s)};
}

/* The same row from element e on. */
static inline pn_x86_x pn_x86_x_from(pn_x86_x x, pn_cpu_form f, size_t e)
{
    return (pn_x86_x){x.q + e, x.d + e / (f.family == PN_CPU_B256 ? 256 : 32), x.s + e / 16};
}

/* y[yi][r0 .. r0+n] = (v + bias) + res, one by one. */
static inline void pn_x86_store_rows(const pn_cpu_mm *a, uint32_t r0, uint32_t n, size_t yi, const float *v)
{
    for (uint32_t r = 0; r < n; r++) {
        float sum = v[r];
        if (a->bias)
            sum = sum + a->bias[r0 + r];
        if (a->res)
            sum = sum + a->res[yi * a->res_stride + r0 + r];
        a->y[yi * a->y_stride + r0 + r] = sum;
    }
}

/* Ask for `n` bytes from p on. */
static inline void pn_x86_prefetch(const uint8_t *p, size_t n)
{
#if PN_CPU_X86
    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch(p + i, 0, 3);
#else
    (void)p, (void)n;
#endif
}

#if PN_CPU_X64
/* Elements e .. e+n, a chunk, of rows r .. r+8 into a panel or half a wide one; those of the rows `ahead` are asked for
 * meanwhile (0: of none). */
static inline void pn_x86_panel_fill(const pn_cpu_mm *a, pn_cpu_form f, uint32_t r, size_t e, size_t n, uint32_t ahead,
                                     uint8_t *panel, bool wide)
{
    const pn_x86_panel_fn fill = pn_x86_panel_of(a->dtype, wide);
    const size_t chunk = pn_x86_chunk_bytes(a->dtype), bytes = chunk * n / PN_CPU_CHUNK, at = chunk * (e / PN_CPU_CHUNK);
    const uint8_t *p[8];
    pn_x86_row_pointers(a, r, at, p);
    if (ahead && r + ahead + 8 <= a->rows)
        for (uint32_t i = 0; i < 8; i++)
            pn_x86_prefetch(p[i] + ahead * a->w_stride, bytes);
    if (fill) {
        fill(p, n, panel);
    } else {
        pn_x86_oct o;
        pn_x86_unpack_of(a->dtype)(p, n, &o);
        pn_x86_transpose(&o, f, panel, wide);
    }
}

/* Float products of several activation rows: blocks of some weight rows go through k in pieces. */
enum {
    PN_X86_FLOAT_W = 6,         /* weight rows of a block */
    PN_X86_FLOAT_X = 32,        /* activation rows of a block */
    PN_X86_FLOAT_K = 512        /* elements of a piece */
};

typedef float pn_x86_float_part[16];    /* partial sums of an output between two pieces */

/* p[j][r] += weight rows w times activation rows j0 .. j0+n, without the last k mod 16 elements; three rows behind p[n - 1]
 * are spare. */
typedef void (*pn_x86_float_block)(const pn_cpu_mm *a, const void *const w[PN_X86_FLOAT_W], uint32_t j0, uint32_t n,
                                   pn_x86_float_part (*p)[PN_X86_FLOAT_W]);

typedef struct pn_x86_float_blocks {
    pn_x86_float_block f32, f16, bf16;
} pn_x86_float_blocks;

static inline const float *pn_x86_float_x(const pn_cpu_mm *a, uint32_t j) { return (const float *)(const void *)pn_x86_x_row(a, j); }

/* Quantised weights are decoded to f32. */
PN_INTERNAL void pn_x86_float_many(const pn_cpu_mm *a, const pn_x86_float_blocks *blocks);

PN_INTERNAL void pn_avx2_quant(pn_act_kind kind, const float *x, void *dst, size_t k);
PN_INTERNAL void pn_avx2_matmul(const pn_cpu_mm *a);
PN_INTERNAL void pn_avx2_matmul_float(const pn_cpu_mm *a);
PN_INTERNAL void pn_avx2_matmul_exact(const pn_cpu_mm *a);
PN_INTERNAL void pn_avx2_rms_norm(const float *x, const float *w, float *y, size_t n, float eps);
PN_INTERNAL void pn_avx2_add(const float *a, const float *b, float *y, size_t n);
PN_INTERNAL void pn_avx2_axpy(float s, const float *x, float *y, size_t n);
PN_INTERNAL void pn_avx2_scale(const float *x, float s, float *y, size_t n);
PN_INTERNAL void pn_avx2_glu(pn_glu_kind kind, const float *gate, const float *up, float *y, size_t n);
PN_INTERNAL void pn_avx2_softcap(const float *x, float cap, float *y, size_t n);
PN_INTERNAL void pn_avx2_rope(float *head, const float *cs, uint32_t n_rot, bool neox);
PN_INTERNAL void pn_avx2_kv_encode(uint32_t type, const float *x, void *dst, size_t n);
PN_INTERNAL void pn_avx2_kv_decode(uint32_t type, const void *src, float *y, size_t n);
PN_INTERNAL void pn_avx2_hadamard(float *x, size_t n, size_t b);
PN_INTERNAL void pn_avx2_attn(const pn_cpu_attn *a);
PN_INTERNAL void pn_avx2_softmax(float *x, size_t n);
#endif

#endif /* PN_CPU_X86_MM_H */
