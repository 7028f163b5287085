/*
 * pn_cpu_avx512_attn.h - scores and values of a group of queries with AVX-512.
 *
 * Scores have tokens in the lanes: 16 keys become columns once for all queries, each of the 16 partial sums of a score
 * is a vector, and the tree that joins them needs no shuffles.  Included by both AVX-512 tables.
 */
#ifndef PN_CPU_AVX512_ATTN_H
#define PN_CPU_AVX512_ATTN_H

#include "cpu/pn_cpu_avx512_many.h"
#include "cpu/pn_cpu_x86_attn.h"

#if PN_CPU_X64

/* 16 of F32 or F16. */
PN_AVX512_INLINE __m512 avx512_kv16(const uint8_t *p, const uint32_t type)
{
    return type == PN_DTYPE_F16 ? _mm512_cvtph_ps(unp_load32(p)) : _mm512_loadu_ps((const float *)(const void *)p);
}

/* ------------------------------------------------------------------------------------------
 * Scores
 * ------------------------------------------------------------------------------------------ */

/* Keys t .. t+16, those past the last one repeat it: column i to cols[i]. */
PN_AVX2 static void avx512_key_columns(const pn_cpu_attn *a, size_t t, size_t last, float (*cols)[16])
{
    _Alignas(32) float rows[16][32];
    const uint8_t *row[16];
    const size_t key_bytes = pn_kv_elem_bytes(a->k_type, a->d_k);
    for (size_t r = 0; r < 16; r++)
        row[r] = (const uint8_t *)rows[r];
    for (size_t i = 0; i < a->d_k; i += 32) {
        const size_t n = PN_MIN((size_t)32, a->d_k - i);
        for (size_t r = 0; r < 16; r++)
            pn_avx2_kv_decode(a->k_type, (const uint8_t *)a->k + PN_MIN(t + r, last) * key_bytes +
                              pn_kv_elem_bytes(a->k_type, i), rows[r], n);
        for (size_t c = 0; c < n; c += 8) {
            __m256i lower[8], upper[8];
            unp_transpose8(row, 4 * c, lower);
            unp_transpose8(row + 8, 4 * c, upper);
            for (size_t u = 0; u < 8 && c + u < n; u++) {
                unp_store32(cols[i + c + u], lower[u]);
                unp_store32(cols[i + c + u] + 8, upper[u]);
            }
        }
    }
}

/* p[r] + p[r + 8] of four queries. */
PN_AVX512_INLINE void avx512_score8(float (*cols)[16], const float *const q[4], size_t d, size_t r, __m512 out[4])
{
    __m512 a[4], b[4];
    PN_UNROLL
    for (size_t j = 0; j < 4; j++)
        a[j] = b[j] = _mm512_setzero_ps();
    for (size_t i = r; i < d; i += 16) {
        __m512 k = _mm512_load_ps(cols[i]);
        PN_UNROLL
        for (size_t j = 0; j < 4; j++)
            a[j] = _mm512_fmadd_ps(k, _mm512_set1_ps(q[j][i]), a[j]);
        if (i + 8 >= d)
            break;
        k = _mm512_load_ps(cols[i + 8]);
        PN_UNROLL
        for (size_t j = 0; j < 4; j++)
            b[j] = _mm512_fmadd_ps(k, _mm512_set1_ps(q[j][i + 8]), b[j]);
    }
    PN_UNROLL
    for (size_t j = 0; j < 4; j++)
        out[j] = _mm512_add_ps(a[j], b[j]);
}

PN_AVX512_INLINE void avx512_add4(__m512 a[4], const __m512 b[4])
{
    PN_UNROLL
    for (size_t j = 0; j < 4; j++)
        a[j] = _mm512_add_ps(a[j], b[j]);
}

PN_AVX512_INLINE void avx512_score4(float (*cols)[16], const float *const q[4], size_t d, size_t r, __m512 out[4])
{
    __m512 b[4];
    avx512_score8(cols, q, d, r, out);
    avx512_score8(cols, q, d, r + 4, b);
    avx512_add4(out, b);
}

PN_AVX512_INLINE void avx512_score2(float (*cols)[16], const float *const q[4], size_t d, size_t r, __m512 out[4])
{
    __m512 b[4];
    avx512_score4(cols, q, d, r, out);
    avx512_score4(cols, q, d, r + 2, b);
    avx512_add4(out, b);
}

/* Keys x0 .. x3: the four sums of each that the tree has after p[i + 8] and p[i + 4] are added. */
PN_AVX512_INLINE __m512 avx512_join4(__m512 x0, __m512 x1, __m512 x2, __m512 x3)
{
    const __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(x0, x1, 0x44), _mm512_shuffle_f32x4(x0, x1, 0xee));
    const __m512 b = _mm512_add_ps(_mm512_shuffle_f32x4(x2, x3, 0x44), _mm512_shuffle_f32x4(x2, x3, 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

/* The rest of the tree: part[g] has keys g, g + 4, g + 8, g + 12; their scores in order. */
PN_AVX512_INLINE __m512 avx512_join16(const __m512 part[4])
{
    const __m512 a = _mm512_add_ps(_mm512_shuffle_ps(part[0], part[1], 0x44), _mm512_shuffle_ps(part[0], part[1], 0xee));
    const __m512 b = _mm512_add_ps(_mm512_shuffle_ps(part[2], part[3], 0x44), _mm512_shuffle_ps(part[2], part[3], 0xee));
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

/* Few queries: keys are read where they lie.  d_k a multiple of 16. */
PN_AVX512_INLINE void avx512_scores_few(pn_x86_attn_group *w, const size_t nq, const uint32_t type)
{
    const pn_cpu_attn *a = w->a;
    const size_t key_bytes = pn_kv_elem_bytes(type, a->d_k);
    const float *const *q = a->q + w->j0;
    for (size_t t = w->lo; t < w->hi; t += 16) {
        __m512 part[4][4];
        PN_UNROLL
        for (size_t g = 0; g < 4; g++) {
            const uint8_t *k[4];
            __m512 s[4][4];
            PN_UNROLL
            for (size_t x = 0; x < 4; x++)
                k[x] = (const uint8_t *)a->k + PN_MIN(t + g + 4 * x, w->hi - 1) * key_bytes;
            PN_UNROLL
            for (size_t j = 0; j < nq; j++)
                s[j][0] = s[j][1] = s[j][2] = s[j][3] = _mm512_setzero_ps();
            for (size_t i = 0; i < a->d_k; i += 16) {
                const size_t at = pn_kv_elem_bytes(type, i);
                const __m512 k0 = avx512_kv16(k[0] + at, type), k1 = avx512_kv16(k[1] + at, type);
                const __m512 k2 = avx512_kv16(k[2] + at, type), k3 = avx512_kv16(k[3] + at, type);
                PN_UNROLL
                for (size_t j = 0; j < nq; j++) {
                    const __m512 v = _mm512_loadu_ps(q[j] + i);
                    s[j][0] = _mm512_fmadd_ps(v, k0, s[j][0]);
                    s[j][1] = _mm512_fmadd_ps(v, k1, s[j][1]);
                    s[j][2] = _mm512_fmadd_ps(v, k2, s[j][2]);
                    s[j][3] = _mm512_fmadd_ps(v, k3, s[j][3]);
                }
            }
            PN_UNROLL
            for (size_t j = 0; j < nq; j++)
                part[j][g] = avx512_join4(s[j][0], s[j][1], s[j][2], s[j][3]);
        }
        PN_UNROLL
        for (size_t j = 0; j < nq; j++)
            _mm512_storeu_ps(w->p[j] + t, avx512_join16(part[j]));
    }
}

#define AVX512_FEW(nq) \
    PN_AVX512 static void avx512_scores_##nq(pn_x86_attn_group *w) \
    { \
        if (w->a->k_type == PN_DTYPE_F16) \
            avx512_scores_few(w, nq, PN_DTYPE_F16); \
        else \
            avx512_scores_few(w, nq, PN_DTYPE_F32); \
    }
AVX512_FEW(1)
AVX512_FEW(2)
AVX512_FEW(3)
AVX512_FEW(4)
#undef AVX512_FEW

PN_AVX512 static bool avx512_scores(pn_x86_attn_group *w)
{
    static void (*const few[5])(pn_x86_attn_group *) = {NULL, avx512_scores_1, avx512_scores_2, avx512_scores_3, avx512_scores_4};
    if (w->n <= 4 && !pn_kv_is_block(w->a->k_type) && w->a->d_k % 16 == 0) {
        few[w->n](w);
        return true;
    }
    if (w->n == 1 || w->a->d_k > PN_X86_ATTN_KEY)
        return false;
    _Alignas(64) float cols[PN_X86_ATTN_KEY][16];
    for (size_t t = w->lo; t < w->hi; t += 16) {
        avx512_key_columns(w->a, t, w->hi - 1, cols);
        for (uint32_t j = 0; j < w->n; j += 4) {
            const float *q[4];
            __m512 s[4], b[4];
            for (uint32_t i = 0; i < 4; i++)
                q[i] = w->a->q[w->j0 + PN_MIN(j + i, w->n - 1)];
            avx512_score2(cols, q, w->a->d_k, 0, s);
            avx512_score2(cols, q, w->a->d_k, 1, b);
            avx512_add4(s, b);
            for (uint32_t i = 0; i < 4 && j + i < w->n; i++)
                _mm512_storeu_ps(w->p[j + i] + t, s[i]);
        }
    }
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Values
 * ------------------------------------------------------------------------------------------ */

/* nv times 16 columns from i on of queries j .. j+nq, nq and nv to 4; v: the first token's. */
PN_AVX512_INLINE void avx512_values(const pn_x86_attn_group *w, const pn_x86_attn_cols *c, const uint8_t *v, uint32_t j,
                                    const size_t nq, size_t i, const size_t nv, const uint32_t type)
{
    __m512 sum[4][4];
    PN_UNROLL
    for (size_t m = 0; m < nq; m++)
        PN_UNROLL
        for (size_t u = 0; u < nv; u++)
            sum[m][u] = _mm512_setzero_ps();
    for (size_t t = c->lo; t < c->hi; t++) {
        __m512 x[4];
        PN_UNROLL
        for (size_t u = 0; u < nv; u++)
            x[u] = avx512_kv16(v + t * c->row_bytes + pn_kv_elem_bytes(type, 16 * u), type);
        PN_UNROLL
        for (size_t m = 0; m < nq; m++) {
            const __m512 p = _mm512_set1_ps(w->p[j + m][t]);
            PN_UNROLL
            for (size_t u = 0; u < nv; u++)
                sum[m][u] = _mm512_fmadd_ps(p, x[u], sum[m][u]);
        }
    }
    PN_UNROLL
    for (size_t m = 0; m < nq; m++) {
        float *o = w->a->o[w->j0 + j + m] + i;
        const __m512 ea = _mm512_set1_ps(w->ea[j + m]), eb = _mm512_set1_ps(w->eb[j + m]);
        PN_UNROLL
        for (size_t u = 0; u < nv; u++)
            _mm512_storeu_ps(o + 16 * u, _mm512_fmadd_ps(_mm512_loadu_ps(o + 16 * u), ea, _mm512_mul_ps(sum[m][u], eb)));
    }
}

PN_AVX512_INLINE size_t avx512_values_as(const pn_x86_attn_group *w, const pn_x86_attn_cols *c, uint32_t j, const size_t nq,
                                         size_t i, size_t n, const uint32_t type)
{
    size_t done = 0;
    for (; done + 64 <= n; done += 64)
        avx512_values(w, c, c->v + pn_kv_elem_bytes(type, done), j, nq, i + done, 4, type);
    for (; done + 32 <= n; done += 32)
        avx512_values(w, c, c->v + pn_kv_elem_bytes(type, done), j, nq, i + done, 2, type);
    for (; done + 16 <= n; done += 16)
        avx512_values(w, c, c->v + pn_kv_elem_bytes(type, done), j, nq, i + done, 1, type);
    return done;
}

#define AVX512_VALUES(nq) \
    PN_AVX512 static size_t avx512_values_##nq(const pn_x86_attn_group *w, const pn_x86_attn_cols *c, uint32_t type, uint32_t j, \
                                               size_t i, size_t n) \
    { \
        return type == PN_DTYPE_F16 ? avx512_values_as(w, c, j, nq, i, n, PN_DTYPE_F16) \
                                    : avx512_values_as(w, c, j, nq, i, n, PN_DTYPE_F32); \
    }
AVX512_VALUES(1)
AVX512_VALUES(2)
AVX512_VALUES(3)
AVX512_VALUES(4)
#undef AVX512_VALUES

static size_t avx512_columns(const pn_x86_attn_group *w, const pn_x86_attn_cols *c, uint32_t type, uint32_t j, uint32_t nq,
                             size_t i, size_t n)
{
    if (pn_kv_is_block(type))
        return 0;
    switch (nq) {
    case 1: return avx512_values_1(w, c, type, j, i, n);
    case 2: return avx512_values_2(w, c, type, j, i, n);
    case 3: return avx512_values_3(w, c, type, j, i, n);
    default: return avx512_values_4(w, c, type, j, i, n);
    }
}

static void avx512_attn(const pn_cpu_attn *a)
{
    static const pn_x86_attn_ops ops = {avx512_scores, avx512_columns};
    pn_x86_attn(a, &ops);
}

#endif /* PN_CPU_X64 */

#endif /* PN_CPU_AVX512_ATTN_H */
