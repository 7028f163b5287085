/*
 * pn_cpu.h - the arithmetic of a step, one table of kernels an instruction set.
 *
 * THE CANONICAL ORDER (promise 4).  For one instruction set the bits of every result are defined
 * here, per output element, independent of how many rows are computed together, of threads, and of
 * tiles.  `ref` is that definition in plain C; a test compares every kernel with itself over
 * shapes, and with ref within a tolerance (bit for bit where the arithmetic is the same).
 *
 *   Quantised weights x q8 activations, one output y = sum over blocks b in file order:
 *       isum  = exact integer sum inside the block (sub-block scales of K-quants multiplied in as
 *               integers; formats with fractional steps use the integer multiple, e.g. 8 x for IQ1)
 *       acc   = fma(dw * dx, (float)isum, acc)          dw: f32 of the block's scale (with the
 *               format's constant factor folded in exactly), dx: the activation block's scale;
 *               dw * dx rounded to f32 first, acc starts at +0
 *       then, for formats with a minimum, acc = fma(mw * dx, (float)msum, acc), where mw is the
 *               signed f32 factor (m, or -dmin) and msum the integer sum (of q, or of min_s * q)
 *       A block here is 32 elements (Q4_0 ... Q8_0, IQ4_NL, MXFP4; Q1_0 and Q2_0 give 4 and 2 such
 *       blocks with one scale), 16 (NVFP4: 4 a block) or 256 (K, IQ, TQ).
 *       Without FMA (sse41) the product is rounded before the addition.
 *   Float weights (F32 F16 BF16; and everything decoded to f32 in exact mode) x f32 activations:
 *       16 partial sums p[k mod 16] = fma(w[k], x[k], p), k ascending; then
 *       s8[i] = p[i] + p[i+8]; s4[i] = s8[i] + s8[i+4]; s2[i] = s4[i] + s4[i+2]; s2[0] + s2[1].
 *   Bias is added to the finished sum, then the residual: (sum + bias) + residual.
 *   Attention, per query and KV page: scores s_t = dot(q, k_t) in the float order above, times scale,
 *       softcap; m = max over visible t; p_t = exp(s_t - m); l = sum of p_t, t ascending;
 *       o[i] = fma(p_t, v_t[i], o[i]), t ascending.  Pages merge in ascending order:
 *       M' = max(M, m); a = exp(M - M'), b = exp(m - M'); L' = fma(L, a, l * b);
 *       O'[i] = fma(O[i], a, o[i] * b).  The first page starts from M = -inf, L = 0, O = 0 with
 *       exp(-inf) = 0.  An attention sink joins last as a page with m = sink, l = 1, o = 0.
 *       k_t and v_t are the f32 values that num/pn_quant decodes the page's bytes to: d * code, which
 *       is exact, and with a minimum m one rounding of d * code + m.  So the order knows no types, and
 *       no kernel multiplies codes as integers here.
 *   Rotation (hadamard): each run of b elements, b the largest power of two that divides the row (at
 *       most PN_CPU_ROTATION_MAX), in stages of distance 1, 2, 4, ... b/2: (x, y) -> (x + y, x - y);
 *       then every element times the f32 nearest to 1/sqrt(b).  No sum depends on a vector's width.
 *   RMS norm: sum of squares in the 16-partial-sum order above (fma), mean, then
 *       y = (x * (1 / sqrt(mean + eps))) * w.
 *   Short convolution of T taps, per column: u_t = b_t * x_t, rounded; s = w[0] * u_(t-T+1), rounded; then
 *       s = s + w[k] * u_(t-T+1+k) for k = 1 to T-1, each product rounded before it is added; y = c_t * s.  Tokens before
 *       the first have u = +0 and take part.  The state is u itself, so where a prompt was cut does not
 *       show.  No fused operation: the same bits for every instruction set.
 *   exp, tanh, silu, gelu: the polynomials of num/pn_math.c, step by step.
 *
 * One file an ISA; accessors return NULL when compiler or machine lack it.  The choice is made once
 * and stored atomically: with the list of backends it is the only process-wide state.
 */
#ifndef PN_CPU_H
#define PN_CPU_H

#include "num/pn_dtype.h"

/* In front of a loop of up to 8 rounds over an array of vectors: written out, so that the array lives in
 * registers.  gcc does not do that by itself at -O2. */
#if defined(__clang__)
#define PN_UNROLL _Pragma("unroll")
#elif defined(__GNUC__) && __GNUC__ >= 8
#define PN_UNROLL _Pragma("GCC unroll 8")
#else
#define PN_UNROLL
#endif

/* What a weight type is multiplied with. */
typedef enum pn_act_kind {
    PN_ACT_F32 = 0,         /* float rows as they are */
    PN_ACT_Q8_32,           /* int8 with a scale per 32 */
    PN_ACT_Q8_256           /* int8 with a scale per 256 */
} pn_act_kind;

PN_INTERNAL pn_act_kind pn_cpu_act_kind(uint32_t dtype);       /* partner of a weight type */

/* A quantised activation row of k elements (k a multiple of the weight's block):
 *     int8  q[k]           at 0        value = d * q, |q| <= 127
 *     float d[k / bs]      at off_d    bs = 32 or 256; d = max|x| / 127, q = rne(x * (127 / max|x|));
 *                                      NaN when an x of the block is NaN (it must reach the logits)
 *     int16 s[k / 16]      at off_s    sums of q over 16 elements
 * sections aligned to 64, zero padded (q padding is read by kernels). */
typedef struct pn_act_layout {
    size_t off_d, off_s, row_bytes;
} pn_act_layout;

static inline pn_act_layout pn_act_layout_of(pn_act_kind kind, size_t k)
{
    pn_act_layout l = {0, 0, 0};
    if (kind == PN_ACT_F32) {
        l.row_bytes = pn_align_up(k * 4, 64);
        return l;
    }
    size_t bs = kind == PN_ACT_Q8_32 ? 32 : 256;
    l.off_d = pn_align_up(k, 64);
    l.off_s = l.off_d + pn_align_up(k / bs * 4, 64);
    l.row_bytes = l.off_s + pn_align_up(k / 16 * 2, 64);
    return l;
}

/* y[yi(j)][r] = (W[r] . x[xi(j)] + bias[r]) + res[yi(j)][r]   for r < rows, j < m.
 * With x_index / y_index NULL, xi(j) = yi(j) = j.  y and res may be the same memory. */
typedef struct pn_cpu_mm {
    const void *w;              /* [rows, k] in the weight's format, rows w_stride bytes apart */
    size_t w_stride;
    uint32_t dtype;
    uint32_t rows, m, k;
    const void *x;              /* activation rows of pn_cpu_act_kind(dtype), x_stride bytes apart */
    size_t x_stride;
    const uint32_t *x_index, *y_index;      /* [m] or NULL (mixture of experts) */
    float *y;                   /* y_stride floats between rows */
    size_t y_stride;
    const float *bias;          /* [rows] or NULL */
    const float *res;           /* res_stride floats between rows, or NULL */
    size_t res_stride;
    void *tile;                 /* this thread's scratch, pn_cpu_tile_bytes(), 64-aligned */
} pn_cpu_mm;

typedef enum pn_glu_kind { PN_GLU_SILU = 0, PN_GLU_GELU } pn_glu_kind;

/* One kv head of one page against n_q queries (grouped heads and/or rows of a chunk). */
typedef struct pn_cpu_attn {
    const float *const *q;      /* [n_q] pointers to d_k floats */
    const uint16_t *lo, *hi;    /* [n_q] visible tokens of this page: lo <= t < hi; lo == hi: none */
    uint32_t n_q;
    const void *k, *v;          /* [PN_KV_PAGE_TOKENS][d_k], [..][d_v], row-major */
    uint32_t k_type, v_type;    /* PN_KV_EACH_TYPE; of a block type d_k, d_v are multiples of 32 */
    uint32_t d_k, d_v;
    float scale, softcap;       /* softcap 0: none; else cap * tanh(s / cap) */
    const void *next_k;         /* keys of the page that comes next, to be asked for; or NULL */
    uint32_t next_k_bytes;
    float *m, *l;               /* [n_q] running maximum and sum */
    float *const *o;            /* [n_q] pointers to d_v running outputs */
} pn_cpu_attn;

typedef struct pn_cpu_kernels {
    const char *name;           /* as PN_CPU spells it */

    /* dst: one activation row in pn_act_layout_of(kind, k), padding included. */
    void (*quant)(pn_act_kind kind, const float *x, void *dst, size_t k);

    /* Any weight type with its partner activations. */
    void (*matmul)(const pn_cpu_mm *a);

    /* Any weight type with f32 activations: weights decoded to f32 exactly, float order. */
    void (*matmul_exact)(const pn_cpu_mm *a);

    void (*rms_norm)(const float *x, const float *w /* or NULL: 1 */, float *y, size_t n, float eps);
    void (*add)(const float *a, const float *b, float *y, size_t n);              /* y = a + b */
    void (*axpy)(float s, const float *x, float *y, size_t n);                    /* y = fma(s, x, y) */
    void (*scale)(const float *x, float s, float *y, size_t n);
    void (*glu)(pn_glu_kind kind, const float *gate, const float *up, float *y, size_t n);
    void (*softcap)(const float *x, float cap, float *y, size_t n);               /* cap tanh(x/cap) */

    /* Rotate one head in place.  cs: cos,sin interleaved, [n_rot/2][2].  neox: pairs (i, i+n_rot/2),
     * else (2i, 2i+1).  a' = a*cos - b*sin as fma(a, cos, -(b*sin)); b' = fma(a, sin, b*cos). */
    void (*rope)(float *head, const float *cs, uint32_t n_rot, bool neox);

    /* n elements to and from a type of keys and values (PN_KV_EACH_TYPE; n a multiple of its block):
     * the bytes and the values of num/pn_quant. */
    void (*kv_encode)(uint32_t type, const float *x, void *dst, size_t n);
    void (*kv_decode)(uint32_t type, const void *src, float *y, size_t n);

    /* n elements in place, as rows of which each is a multiple of b = pn_cpu_rotation(row). */
    void (*hadamard)(float *x, size_t n, size_t b);
    void (*attn)(const pn_cpu_attn *a);

    /* In place, max subtracted, sum in ascending order. */
    void (*softmax)(float *x, size_t n);
} pn_cpu_kernels;

#define PN_CPU_ROTATION_MAX 2048

/* How many elements of a row of n are rotated together, and the factor after the last stage. */
static inline size_t pn_cpu_rotation(size_t n) { return PN_MIN(n & (~n + 1), (size_t)PN_CPU_ROTATION_MAX); }

static inline float pn_cpu_rotation_scale(size_t b)
{
    float s = 1;
    for (; b >= 4; b /= 4)
        s *= 0.5f;
    return b == 2 ? s * 0x1.6a09e6p-1f : s;     /* 1/sqrt(2), rounded */
}

/* Scratch a thread needs for matmul and matmul_exact with rows of at most k elements and steps of m
 * rows; the same for every ISA, so that plans do not depend on the machine. */
PN_INTERNAL size_t pn_cpu_tile_bytes(uint32_t k);

/* ---- recurrences: one for all instruction sets (pn_cpu_recur.c) ----------------------------- */

enum { PN_CPU_TAPS = 8 };       /* most of a short convolution */

/* A row of n numbers: a[i] * b[i]; without b a[i]; without a zeros. */
typedef struct pn_cpu_tap {
    const float *a, *b;
} pn_cpu_tap;

PN_INTERNAL void pn_cpu_tap_row(const pn_cpu_tap *t, float *y, size_t n);
/* y = c * conv, [n] each, of tap[taps], the oldest first; w [n][taps]. */
PN_INTERNAL void pn_cpu_short_conv(const pn_cpu_tap *tap, uint32_t taps, const float *w, const float *c, float *y, size_t n);

/* The table in use; chosen on first call (PN_CPU is read by the programs, not here). */
PN_INTERNAL const pn_cpu_kernels *pn_cpu_get(void);

/* One accessor a file; NULL when the compiler, the machine or the OS lacks it. */
PN_INTERNAL const pn_cpu_kernels *pn_cpu_ref(void);
PN_INTERNAL const pn_cpu_kernels *pn_cpu_sse41(void);
PN_INTERNAL const pn_cpu_kernels *pn_cpu_avx2(void);
PN_INTERNAL const pn_cpu_kernels *pn_cpu_avx512(void);
PN_INTERNAL const pn_cpu_kernels *pn_cpu_avx512vnni(void);
PN_INTERNAL const pn_cpu_kernels *pn_cpu_neon(void);
PN_INTERNAL const pn_cpu_kernels *pn_cpu_dotprod(void);

#endif /* PN_CPU_H */
