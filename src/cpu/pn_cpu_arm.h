/*
 * pn_cpu_arm.h - what the AArch64 kernels share: targets, weights in groups of 8 rows, the frame.
 *
 * All knowledge about compilers' names for instruction sets is here.  Baseline AArch64 has NEON, FMA
 * and conversions of halves, so only the dot-product files carry a target; their helpers carry it
 * too, because gcc refuses to inline across targets that are not a subset of the caller's.
 *
 * Weights are unpacked to signed bytes in file order (what both smull and sdot take), so there are
 * no offsets to correct.  Two layouts of a chunk of 8 rows:
 *   oct    row after row, as the unpackers write it.  A kernel multiplies it along k and turns
 *          vectors of partial sums into a vector of rows.
 *   panel  the same transposed: dword [e / 4][row] holds 4 codes of a row, so that the lanes of a
 *          vector are rows.  sdot by element multiplies it with many activation rows.
 * Either fits the first-level cache beside the activations it meets.
 */
#ifndef PN_CPU_ARM_H
#define PN_CPU_ARM_H

#include "cpu/pn_cpu_unpack.h"

#if PN_ENABLE_SIMD && (defined(__GNUC__) || defined(__clang__)) && defined(__aarch64__) && \
    defined(__ARM_NEON) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define PN_CPU_ARM64 1
#else
#define PN_CPU_ARM64 0
#endif

/* Can this compiler emit sdot, and with which words?  Where the command line allows it already,
 * no attribute is needed (and gcc's would take away what else the command line allows). */
#if PN_CPU_ARM64 && defined(__ARM_FEATURE_DOTPROD)
#define PN_CPU_DOTPROD 1
#define PN_DOTPROD
#elif PN_CPU_ARM64 && defined(__clang__)
#define PN_CPU_DOTPROD 1
#define PN_DOTPROD __attribute__((target("dotprod")))
#elif PN_CPU_ARM64 && __GNUC__ >= 8
#define PN_CPU_DOTPROD 1
#define PN_DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#else
#define PN_CPU_DOTPROD 0
#endif

#if PN_CPU_ARM64
/* Clang before 16 shows the intrinsics only where the whole file may use them; they work in a
 * function with the target attribute all the same. */
#if defined(__clang__) && !defined(__ARM_FEATURE_DOTPROD)
#define __ARM_FEATURE_DOTPROD 1
#include <arm_neon.h>
#undef __ARM_FEATURE_DOTPROD
#else
#include <arm_neon.h>
#endif
#define PN_NEON_INLINE static inline __attribute__((always_inline))
#if PN_CPU_DOTPROD
#define PN_DOTPROD_INLINE PN_DOTPROD static inline __attribute__((always_inline))
#endif

/* How a weight type combines: pn_cpu_form and what else these kernels distinguish. */
typedef struct pn_arm_form {
    uint8_t family;         /* pn_cpu_family */
    bool has_min;
    bool wide;              /* codes beyond +-64: four products do not fit in int16 */
    bool pair;              /* B256: scales 2i and 2i+1 are equal (and mins) */
} pn_arm_form;

PN_INTERNAL pn_arm_form pn_arm_form_of(uint32_t dtype);

typedef struct pn_arm_oct {
    _Alignas(64) int8_t q[8][PN_CPU_CHUNK];
    int16_t sc[8][16];      /* B256: scales per 16 */
    int16_t mn[8][16];      /* B256 with has_min: factors of the sums of q */
    float d[16][8];         /* [block][row] factors; B256: d[0]; B16: per 16 */
    float m[8][8];          /* [block][row] factors of the sums of q (has_min) */
} pn_arm_oct;

typedef struct pn_arm_panel {
    _Alignas(64) int8_t q[PN_CPU_CHUNK / 4][8][4];
    int32_t sc[16][8];      /* B256 */
    int16_t mn[16][8];
} pn_arm_panel;             /* the float factors stay in the oct */

/* An activation row from some element on: values, scales, sums over 16. */
typedef struct pn_arm_x {
    const int8_t *q;
    const float *d;
    const int16_t *s;
} pn_arm_x;

/* Chunk [n elements] of 8 rows; p[r] points at the chunk's first block in row r. */
typedef void (*pn_arm_unpack_fn)(const uint8_t *const *p, size_t n, pn_arm_oct *o);

/* Never NULL for a quantised type. */
PN_INTERNAL pn_arm_unpack_fn pn_neon_unpack_of(uint32_t dtype);

/* What an instruction set brings to the frame.  Both continue the sums of 8 rows in acc. */
typedef struct pn_arm_dots {
    /* One activation row: acc[8]. */
    void (*one)(const pn_arm_oct *o, pn_arm_form f, size_t n, const pn_arm_x *x, float *acc);
    /* Four: acc[4][8].  NULL with transpose: there is only `one`. */
    void (*four)(const pn_arm_oct *o, const pn_arm_panel *p, pn_arm_form f, size_t n, const pn_arm_x *x,
                 float *acc);
    void (*transpose)(const pn_arm_oct *o, pn_arm_form f, size_t n, pn_arm_panel *p);
} pn_arm_dots;

/* The matmul of a quantised type. */
PN_INTERNAL void pn_neon_matmul_quant(const pn_cpu_mm *a, const pn_arm_dots *dots);

PN_INTERNAL void pn_neon_quant(pn_act_kind kind, const float *x, void *dst, size_t k);
PN_INTERNAL void pn_neon_matmul_float(const pn_cpu_mm *a);
PN_INTERNAL void pn_neon_matmul_exact(const pn_cpu_mm *a);
PN_INTERNAL void pn_neon_rms_norm(const float *x, const float *w, float *y, size_t n, float eps);
PN_INTERNAL void pn_neon_add(const float *a, const float *b, float *y, size_t n);
PN_INTERNAL void pn_neon_axpy(float s, const float *x, float *y, size_t n);
PN_INTERNAL void pn_neon_scale(const float *x, float s, float *y, size_t n);
PN_INTERNAL void pn_neon_glu(pn_glu_kind kind, const float *gate, const float *up, float *y, size_t n);
PN_INTERNAL void pn_neon_softcap(const float *x, float cap, float *y, size_t n);
PN_INTERNAL void pn_neon_rope(float *head, const float *cs, uint32_t n_rot, bool neox);
PN_INTERNAL void pn_neon_kv_encode(uint32_t type, const float *x, void *dst, size_t n);
PN_INTERNAL void pn_neon_kv_decode(uint32_t type, const void *src, float *y, size_t n);
PN_INTERNAL void pn_neon_hadamard(float *x, size_t n, size_t b);
PN_INTERNAL void pn_neon_attn(const pn_cpu_attn *a);
PN_INTERNAL void pn_neon_softmax(float *x, size_t n);
#endif

static inline const uint8_t *pn_arm_x_row(const pn_cpu_mm *a, uint32_t j)
{
    return (const uint8_t *)a->x + (size_t)(a->x_index ? a->x_index[j] : j) * a->x_stride;
}

/* y[yi(j)][r0 .. r0+n] = (v + bias) + res, one by one. */
static inline void pn_arm_store_rows(const pn_cpu_mm *a, uint32_t r0, uint32_t n, uint32_t j, const float *v)
{
    size_t yi = a->y_index ? a->y_index[j] : j;
    for (uint32_t r = 0; r < n; r++) {
        float sum = v[r];
        if (a->bias)
            sum = sum + a->bias[r0 + r];
        if (a->res)
            sum = sum + a->res[yi * a->res_stride + r0 + r];
        a->y[yi * a->y_stride + r0 + r] = sum;
    }
}

#endif /* PN_CPU_ARM_H */
