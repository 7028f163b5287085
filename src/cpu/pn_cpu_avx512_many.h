/*
 * pn_cpu_avx512_many.h - products of quantised weights over wide panels, 16 rows in the lanes.
 *
 * Included by pn_cpu_avx512.c and pn_cpu_avx512vnni.c, which differ in how four products are added: with VNNI one
 * instruction, whose activations come from memory and spread over the lanes on the way.  All bits are those of the
 * AVX2 kernels.
 */
#ifndef PN_CPU_AVX512_MANY_H
#define PN_CPU_AVX512_MANY_H

#include "cpu/pn_cpu_avx2_codes.h"
#include "cpu/pn_cpu_x86_mm.h"

#if PN_CPU_X64

#define PN_AVX512_INLINE PN_AVX512 static inline __attribute__((always_inline))

enum { PN_AVX512_X = 8 };       /* activation rows run over a panel together, at most */

/* A chunk of nx = 4 or 8 activation rows: number i of row j at [i * nx + j]. */
typedef struct pn_avx512_x {
    _Alignas(64) int32_t q[PN_CPU_CHUNK / 4 * PN_AVX512_X];     /* four codes */
    int32_t d[8 * PN_AVX512_X];                                 /* bits of a block's factor (B256: one) */
    int32_t s[16 * PN_AVX512_X];    /* B32: a block's sum of q, times -off, or with a minimum as f32; B16, B256: the same of 16
                                       elements, with a minimum pairs of sums */
} pn_avx512_x;

/* step bytes from p on are asked for with every 32 elements; p NULL: nothing is. */
typedef struct avx512_next {
    const uint8_t *p;
    size_t step;
} avx512_next;

/* ------------------------------------------------------------------------------------------
 * Activations
 * ------------------------------------------------------------------------------------------ */

/* Dwords 0 .. n - 1 of 8 rows, transposed. */
PN_AVX2_INLINE void avx512_put(const __m256i t[8], size_t n, const size_t nx, const size_t step, int32_t *out)
{
    for (size_t i = 0; i < n; i++) {
        if (nx == 8)
            _mm256_store_si256((__m256i *)(void *)(out + 8 * step * i), t[i]);
        else
            _mm_store_si128((__m128i *)(void *)(out + 4 * step * i), _mm256_castsi256_si128(t[i]));
    }
}

PN_AVX2_INLINE void avx512_pack_rows(pn_avx512_x *o, pn_cpu_form f, const pn_x86_x *x, const size_t nx, size_t n)
{
    const uint8_t *q[8], *d[8], *s[8];
    const size_t blocks = f.family == PN_CPU_B256 ? 1 : n / 32;
    const __m256i off = _mm256_set1_epi32(-f.off);
    __m256i t[8], even[8];
    for (size_t j = 0; j < 8; j++) {
        q[j] = (const uint8_t *)x[j % nx].q;
        d[j] = (const uint8_t *)x[j % nx].d;
        s[j] = (const uint8_t *)x[j % nx].s;
    }
    for (size_t e = 0; e < n; e += 32) {
        unp_transpose8(q, e, t);
        avx512_put(t, 8, nx, 1, o->q + e / 4 * nx);
    }
    unp_transpose8(d, 0, t);            /* sections of a row are padded to 64 bytes */
    avx512_put(t, blocks, nx, 1, o->d);
    unp_transpose8(s, 0, t);
    if (f.family == PN_CPU_B256 && f.has_min) {
        avx512_put(t, 8, nx, 1, o->s);
        return;
    }
    PN_UNROLL
    for (size_t i = 0; i < 8; i++) {
        even[i] = _mm256_srai_epi32(_mm256_slli_epi32(t[i], 16), 16);
        t[i] = _mm256_srai_epi32(t[i], 16);
        if (f.family != PN_CPU_B32) {
            even[i] = _mm256_mullo_epi32(even[i], off);
            t[i] = _mm256_mullo_epi32(t[i], off);
            continue;
        }
        t[i] = _mm256_add_epi32(t[i], even[i]);
        t[i] = f.has_min ? _mm256_castps_si256(_mm256_cvtepi32_ps(t[i])) : _mm256_mullo_epi32(t[i], off);
    }
    if (f.family == PN_CPU_B32) {
        avx512_put(t, n / 32, nx, 1, o->s);
    } else {
        avx512_put(even, n / 32, nx, 2, o->s);
        avx512_put(t, n / 32, nx, 2, o->s + nx);
    }
}

PN_AVX2 static void avx512_pack(pn_avx512_x *o, pn_cpu_form f, const pn_x86_x *x, size_t nx, size_t n)
{
    if (nx == 8)
        avx512_pack_rows(o, f, x, 8, n);
    else
        avx512_pack_rows(o, f, x, 4, n);
}

/* ------------------------------------------------------------------------------------------
 * Products
 * ------------------------------------------------------------------------------------------ */

/* For every activation row j. */
#define AVX512_EACH PN_UNROLL for (size_t j = 0; j < nx; j++)

PN_AVX512_INLINE __m512i avx512_load(const void *p) { return _mm512_load_si512(p); }
PN_AVX512_INLINE __m512i avx512_all(const int32_t *x) { return _mm512_set1_epi32(*x); }
PN_AVX512_INLINE __m512 avx512_allf(const int32_t *x) { return _mm512_castsi512_ps(_mm512_set1_epi32(*x)); }

#ifndef PN_AVX512_EMULATED
/* i + the four products of bytes of w and of *x.  In assembly, as the function is for machines without it as well
 * (`vnni` below), and compilers load the activation apart. */
PN_AVX512_INLINE __m512i avx512_dpbusd(__m512i i, __m512i w, const int32_t *x)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(i) : "v"(w), "m"(*x));
    return i;
}

/* i + the two products of halves. */
PN_AVX512_INLINE __m512i avx512_dpwssd(__m512i i, __m512i a, __m512i b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(i) : "v"(a), "v"(b));
    return i;
}
#endif

PN_AVX512_INLINE __m512i avx512_pairs(__m512i i, __m512i a, __m512i b, const bool vnni)
{
    return vnni ? avx512_dpwssd(i, a, b) : _mm512_add_epi32(i, _mm512_madd_epi16(a, b));
}

/* i[j] += products of 16 elements.  n, without VNNI: results of maddubs that fit in 16 bits. */
PN_AVX512_INLINE void avx512_dot16(const uint8_t *q, const int32_t *x, const size_t nx, const bool vnni, const int n,
                                   __m512i *i)
{
    const __m512i one = _mm512_set1_epi16(1);
    __m512i t[PN_AVX512_X];
    PN_UNROLL
    for (int k = 0; k < 4; k++) {
        const __m512i w = avx512_load(q + 64 * k);
        AVX512_EACH {
            const int32_t *xk = x + (size_t)k * nx + j;
            if (vnni) {
                i[j] = avx512_dpbusd(i[j], w, xk);
                continue;
            }
            const __m512i v = _mm512_maddubs_epi16(w, avx512_all(xk));
            t[j] = k % n ? _mm512_add_epi16(t[j], v) : v;
            if (k % n == n - 1)
                i[j] = _mm512_add_epi32(i[j], _mm512_madd_epi16(t[j], one));
        }
    }
}

/* acc[j] += (d dx) i[j]. */
PN_AVX512_INLINE void avx512_add_scaled(const float *d, const int32_t *dx, const size_t nx, const __m512i *i, __m512 *acc)
{
    const __m512 dw = _mm512_load_ps(d);
    AVX512_EACH
        acc[j] = _mm512_fmadd_ps(_mm512_mul_ps(dw, avx512_allf(dx + j)), _mm512_cvtepi32_ps(i[j]), acc[j]);
}

/* Ask for the weights that come next, a piece with every 32 elements: in one go they would fill the buffers of the
 * first-level cache, and products would wait for them.  Into the second level, since 16 rows may be more than the first. */
PN_AVX512_INLINE void avx512_ask(const avx512_next *next, size_t b)
{
    if (next->p)
        for (size_t i = 0; i < next->step; i += 64)
            __builtin_prefetch(next->p + b * next->step + i, 0, 2);
}

PN_AVX512_INLINE void avx512_many32(const pn_x86_panel16 *p, size_t k, const pn_avx512_x *x, const avx512_next *next,
                                    __m512 *acc, const size_t nx, const bool vnni, const int n, const bool has_min)
{
    for (size_t b = 0; b < k / 32; b++) {
        avx512_ask(next, b);
        const int32_t *s = x->s + b * nx, *d = x->d + b * nx, *xq = x->q + b * 8 * nx;
        __m512i i[PN_AVX512_X];
        AVX512_EACH
            i[j] = has_min ? _mm512_setzero_si512() : avx512_all(s + j);
        avx512_dot16(p->q[b * 8][0], xq, nx, vnni, n, i);
        avx512_dot16(p->q[b * 8 + 4][0], xq + 4 * nx, nx, vnni, n, i);
        avx512_add_scaled(p->u.b32.d[b], d, nx, i, acc);
        if (has_min) {
            const __m512 m = _mm512_load_ps(p->u.b32.m[b]);
            AVX512_EACH
                acc[j] = _mm512_fmadd_ps(_mm512_mul_ps(m, avx512_allf(d + j)), avx512_allf(s + j), acc[j]);
        }
    }
}

PN_AVX512_INLINE void avx512_many16(const pn_x86_panel16 *p, size_t k, const pn_avx512_x *x, const avx512_next *next,
                                    __m512 *acc, const size_t nx, const bool vnni, const int n)
{
    for (size_t h = 0; h < k / 16; h++) {
        if (h % 2 == 0)
            avx512_ask(next, h / 2);
        __m512i i[PN_AVX512_X];
        AVX512_EACH
            i[j] = avx512_all(x->s + h * nx + j);
        avx512_dot16(p->q[h * 4][0], x->q + h * 4 * nx, nx, vnni, n, i);
        avx512_add_scaled(p->u.d16[h], x->d + h / 2 * nx, nx, i, acc);
    }
}

/* How sums of blocks of 256 meet their scales. */
typedef enum avx512_scaling {
    AVX512_ONES,        /* there are none (ternary) */
    AVX512_HALVES,      /* a sum of 16 products fits in 16 bits: |w| <= 16 */
    AVX512_PAIRS,       /* 32 elements have one scale */
    AVX512_WORDS        /* 16 have */
} avx512_scaling;

/* sum[j] += the scaled products of 32 elements from 32 g on. */
PN_AVX512_INLINE void avx512_group32(const pn_x86_panel16 *p, const pn_avx512_x *x, const size_t nx, const bool vnni,
                                     const int n, const avx512_scaling how, const bool has_min, size_t g, __m512i *sum)
{
    const int32_t *s = x->s + 2 * g * nx, *xq = x->q + 8 * g * nx;
    __m512i t[PN_AVX512_X];
    if (how == AVX512_ONES) {
        AVX512_EACH
            sum[j] = _mm512_add_epi32(sum[j], _mm512_add_epi32(avx512_all(s + j), avx512_all(s + nx + j)));
        avx512_dot16(p->q[8 * g][0], xq, nx, vnni, n, sum);
        avx512_dot16(p->q[8 * g + 4][0], xq + 4 * nx, nx, vnni, n, sum);
        return;
    }
    PN_UNROLL
    for (size_t h = 0; h < 2; h++) {
        const __m512i sc = avx512_load(p->u.b256.sc[2 * g + h]);
        if (how != AVX512_PAIRS || h == 0)
            AVX512_EACH
                t[j] = has_min ? _mm512_setzero_si512() : avx512_all(s + h * nx + j);
        else if (!has_min)
            AVX512_EACH
                t[j] = _mm512_add_epi32(t[j], avx512_all(s + nx + j));
        avx512_dot16(p->q[8 * g + 4 * h][0], xq + 4 * h * nx, nx, vnni, n, t);
        if (how == AVX512_HALVES) {
            const __m512i low = _mm512_and_si512(sc, _mm512_set1_epi32(0xffff));
            AVX512_EACH
                sum[j] = avx512_pairs(sum[j], t[j], low, vnni);
        } else if (how == AVX512_WORDS || h == 1) {
            const __m512i word = _mm512_srai_epi32(sc, 16);
            AVX512_EACH
                sum[j] = _mm512_add_epi32(sum[j], _mm512_mullo_epi32(t[j], word));
        }
    }
}

PN_AVX512_INLINE void avx512_many256(const pn_x86_panel16 *p, const pn_avx512_x *x, const avx512_next *next, __m512 *acc,
                                     const size_t nx, const bool vnni, const int n, const avx512_scaling how,
                                     const bool has_min)
{
    __m512i i[PN_AVX512_X];
    AVX512_EACH
        i[j] = _mm512_setzero_si512();
    for (size_t g = 0; g < 8; g++) {
        avx512_ask(next, g);
        avx512_group32(p, x, nx, vnni, n, how, has_min, g, i);
    }
    avx512_add_scaled(p->u.b256.d, x->d, nx, i, acc);
    if (has_min) {
        AVX512_EACH
            i[j] = _mm512_setzero_si512();
        for (size_t t = 0; t < 8; t++) {
            const __m512i c = avx512_load(p->u.b256.cr[t]);
            AVX512_EACH
                i[j] = avx512_pairs(i[j], c, avx512_all(x->s + t * nx + j), vnni);
        }
        avx512_add_scaled(p->u.b256.m, x->d, nx, i, acc);
    }
}

static inline avx512_scaling avx512_scaling_of(uint32_t dtype, pn_cpu_form f)
{
    if (f.off == 1)
        return AVX512_ONES;
    if (PN_MAX(f.off, f.cmax - f.off) <= 16)
        return AVX512_HALVES;
    return dtype == PN_DTYPE_Q5_K || dtype == PN_DTYPE_IQ4_XS ? AVX512_PAIRS : AVX512_WORDS;
}

/* acc[j] for 4 and for 8 rows. */
typedef struct avx512_many {
    void (*run[2])(const pn_x86_panel16 *p, size_t k, const pn_avx512_x *x, const avx512_next *next, __m512 *sums);
} avx512_many;
#define PN_AVX512_BOTH(name) {{name##_4, name##_8}}

/* name_4 and name_8; `call` sees p, k, x, next, acc and nx. */
#define PN_AVX512_MANY_X(name, rows, call) \
    PN_AVX512 static void name##_##rows(const pn_x86_panel16 *p, size_t k, const pn_avx512_x *x, \
                                        const avx512_next *next, __m512 *sums) \
    { \
        const size_t nx = rows; \
        __m512 acc[rows]; \
        (void)k; \
        AVX512_EACH \
            acc[j] = sums[j]; \
        call; \
        AVX512_EACH \
            sums[j] = acc[j]; \
    }
#define PN_AVX512_MANY(name, call) PN_AVX512_MANY_X(name, 4, call) PN_AVX512_MANY_X(name, 8, call)

/* ------------------------------------------------------------------------------------------
 * The frame
 * ------------------------------------------------------------------------------------------ */

/* y = (sum + bias) + res for rows r0 .. of activation row j. */
PN_AVX512_INLINE void avx512_store(const pn_cpu_mm *a, uint32_t r0, uint32_t j, __m512 sum)
{
    const size_t yi = a->y_index ? a->y_index[j] : j;
    if (a->rows - r0 >= 16) {
        if (a->bias)
            sum = _mm512_add_ps(sum, _mm512_loadu_ps(a->bias + r0));
        if (a->res)
            sum = _mm512_add_ps(sum, _mm512_loadu_ps(a->res + yi * a->res_stride + r0));
        _mm512_storeu_ps(a->y + yi * a->y_stride + r0, sum);
        return;
    }
    _Alignas(64) float v[16];
    _mm512_store_ps(v, sum);
    pn_x86_store_rows(a, r0, a->rows - r0, yi, v);
}

/* Elements e .. e+n of rows r .. r+16. */
static inline void avx512_fill(const pn_cpu_mm *a, pn_cpu_form f, uint32_t r, size_t e, size_t n, bool ask,
                               pn_x86_panel16 *p)
{
    pn_x86_panel_fill(a, f, r, e, n, ask ? 16 : 0, p->q[0][0], true);
    pn_x86_panel_fill(a, f, r + 8, e, n, ask ? 16 : 0, p->q[0][8], true);
}

/* Chunk [e, e+n) of activation rows j .. j+nx, the last one again for those past the end. */
PN_AVX512 static void avx512_pack_at(const pn_cpu_mm *a, pn_cpu_form f, uint32_t j, uint32_t nx, size_t e, size_t n,
                                     pn_avx512_x *to)
{
    pn_x86_x x[PN_AVX512_X];
    for (uint32_t v = 0; v < nx; v++)
        x[v] = pn_x86_x_from(pn_x86_x_at(a, f, PN_MIN(j + v, a->m - 1)), f, e);
    avx512_pack(to, f, x, nx, n);
}

/* Activation rows that run over a panel together, of those from j on. */
static inline uint32_t avx512_nx(uint32_t left) { return left > 4 ? 8 : 4; }

/* Rows of activations whose sums wait together, and most panels that share a packed chunk of them. */
enum { AVX512_SLAB = 128, AVX512_PANELS = 16 };

/* Activation rows j0 .. j0+m, chunk by chunk of k: a panel is made where it is needed, in the first-level cache, and the
 * sums wait in the tile. */
PN_AVX512 static void avx512_slab(const pn_cpu_mm *a, pn_cpu_form f, const avx512_many *many, uint32_t j0, uint32_t m)
{
    static const avx512_next nothing = {NULL, 0};
    const uint32_t rows16 = (a->rows + 15) / 16, mx = (m + 7) / 8 * 8;
    const size_t room = pn_cpu_tile_bytes(a->k) / (sizeof(pn_x86_panel16) + mx * sizeof(__m512));
    const uint32_t most = (uint32_t)PN_MIN(PN_MIN(room, (size_t)AVX512_PANELS), (size_t)rows16);
    pn_x86_panel16 *panels = a->tile;
    __m512 *sums = (__m512 *)(void *)(panels + most);      /* [panel][row] */
    pn_avx512_x packed;
    for (uint32_t p0 = 0, np; p0 < rows16; p0 += np) {
        np = PN_MIN(most, rows16 - p0);
        for (size_t i = 0; i < (size_t)np * mx; i++)
            sums[i] = _mm512_setzero_ps();
        for (size_t e = 0; e < a->k; e += PN_CPU_CHUNK) {
            const size_t n = PN_MIN((size_t)PN_CPU_CHUNK, a->k - e);
            for (uint32_t j = 0, nx; j < m; j += nx) {
                nx = avx512_nx(m - j);
                avx512_pack_at(a, f, j0 + j, nx, e, n, &packed);
                for (uint32_t p = 0; p < np; p++) {
                    if (j == 0)
                        avx512_fill(a, f, 16 * (p0 + p), e, n, true, panels + p);
                    many->run[nx / 8](panels + p, n, &packed, &nothing, sums + (size_t)p * mx + j);
                }
            }
        }
        for (uint32_t p = 0; p < np; p++)
            for (uint32_t j = 0; j < m; j++)
                avx512_store(a, 16 * (p0 + p), j0 + j, sums[(size_t)p * mx + j]);
    }
}

/* Most groups of activation rows that avx512_whole has room for. */
enum { AVX512_GROUPS = 8 };

static inline size_t avx512_groups(const pn_cpu_mm *a)
{
    const size_t chunks = (a->k + PN_CPU_CHUNK - 1) / PN_CPU_CHUNK;
    return PN_MIN((pn_cpu_tile_bytes(a->k) - sizeof(pn_x86_panel16)) / (chunks * sizeof(pn_avx512_x)), (size_t)AVX512_GROUPS);
}

/* All activation rows packed, in at most avx512_groups: weights are read from the first to the last byte, once. */
PN_AVX512 static void avx512_whole(const pn_cpu_mm *a, pn_cpu_form f, const avx512_many *many)
{
    const uint32_t groups = (a->m + 7) / 8;
    const size_t chunks = (a->k + PN_CPU_CHUNK - 1) / PN_CPU_CHUNK;
    pn_x86_panel16 *panel = a->tile;
    pn_avx512_x *packed = (pn_avx512_x *)(void *)(panel + 1);         /* [chunk][group] */
    __m512 sums[AVX512_GROUPS * PN_AVX512_X];
    avx512_next next = {NULL, 16 * pn_x86_chunk_bytes(a->dtype) / 8 / groups};
    for (size_t c = 0; c < chunks; c++)
        for (uint32_t g = 0; g < groups; g++) {
            const size_t e = c * PN_CPU_CHUNK, n = PN_MIN((size_t)PN_CPU_CHUNK, a->k - e);
            avx512_pack_at(a, f, 8 * g, avx512_nx(a->m - 8 * g), e, n, packed + c * groups + g);
        }
    for (uint32_t r = 0; r < a->rows; r += 16) {
        if (r + 32 <= a->rows)
            next.p = (const uint8_t *)a->w + (r + 16) * a->w_stride;
        for (uint32_t j = 0; j < groups * PN_AVX512_X; j++)
            sums[j] = _mm512_setzero_ps();
        for (size_t c = 0; c < chunks; c++) {
            const size_t e = c * PN_CPU_CHUNK, n = PN_MIN((size_t)PN_CPU_CHUNK, a->k - e);
            avx512_fill(a, f, r, e, n, false, panel);
            for (uint32_t g = 0; g < groups; g++) {
                many->run[avx512_nx(a->m - 8 * g) / 8](panel, n, packed + c * groups + g, &next, sums + 8 * g);
                next.p = next.p ? next.p + n / 32 * next.step : NULL;
            }
        }
        next.p = NULL;
        for (uint32_t j = 0; j < a->m; j++)
            avx512_store(a, r, j, sums[j]);
    }
}

static inline void pn_avx512_frame(const pn_cpu_mm *a, pn_cpu_form f, const avx512_many *many)
{
    if ((a->m + 7) / 8 <= avx512_groups(a))
        avx512_whole(a, f, many);
    else
        for (uint32_t j = 0; j < a->m; j += AVX512_SLAB)
            avx512_slab(a, f, many, j, PN_MIN(a->m - j, (uint32_t)AVX512_SLAB));
}

#endif /* PN_CPU_X64 */

#endif /* PN_CPU_AVX512_MANY_H */
