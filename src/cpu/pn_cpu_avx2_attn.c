/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_avx2_attn.c - attention over one page, AVX2: queries in groups, scores for four keys at a time.
 *
 * A single query reads keys and values where they lie and decodes them in registers.  For a group they
 * are decoded once, keys four tokens at a time and values of a block type 32 columns at a time, into a
 * tile that all its queries read.  Either way the same floats meet in the same order (cpu/pn_cpu.h).
 * The AVX-512 tables bring products of their own (pn_x86_attn_ops).
 */
#include "cpu/pn_cpu_x86_attn.h"

#include "cpu/pn_cpu_avx2_kv.h"

#if PN_CPU_X64

#include <math.h>

typedef pn_x86_attn_group attn_group;
typedef pn_x86_attn_cols attn_cols;

/* ------------------------------------------------------------------------------------------
 * Scores
 * ------------------------------------------------------------------------------------------ */

/* q . k of n <= 16 elements at the end of a key, into the two halves of its partial sums. */
PN_AVX2_INLINE void attn_score_tail(const float *q, const uint8_t *k, size_t n, __m256 s[2], const uint32_t type)
{
    for (size_t part = 0; n; part++) {
        size_t m = PN_MIN(n, (size_t)8);
        __m256 v = m == 8 ? pn_avx2_kv8(k, type) : pn_avx2_kv_tail(k, m, type);
        s[part] = _mm256_fmadd_ps(_mm256_maskload_ps(q, pn_avx2_mask(m)), v, s[part]);
        q += m;
        k += pn_kv_elem_bytes(type, m);
        n -= m;
    }
}

/* q . k for four keys. */
PN_AVX2_INLINE void attn_score4(const float *q, const uint8_t *const k[4], size_t d, float out[4], const uint32_t type)
{
    __m256 s[4][2];
    size_t i = 0;
    PN_UNROLL
    for (size_t t = 0; t < 4; t++)
        s[t][0] = s[t][1] = _mm256_setzero_ps();
    for (; i + 32 <= d; i += 32) {
        size_t at = pn_kv_elem_bytes(type, i);
        PN_UNROLL
        for (size_t t = 0; t < 4; t++) {
            __m256 v[4];
            pn_avx2_kv32(k[t] + at, v, type);
            s[t][0] = _mm256_fmadd_ps(_mm256_loadu_ps(q + i), v[0], s[t][0]);
            s[t][1] = _mm256_fmadd_ps(_mm256_loadu_ps(q + i + 8), v[1], s[t][1]);
            s[t][0] = _mm256_fmadd_ps(_mm256_loadu_ps(q + i + 16), v[2], s[t][0]);
            s[t][1] = _mm256_fmadd_ps(_mm256_loadu_ps(q + i + 24), v[3], s[t][1]);
        }
    }
    if (!pn_kv_is_block(type))
        for (; i < d; i += 16)
            PN_UNROLL
            for (size_t t = 0; t < 4; t++)
                attn_score_tail(q + i, k[t] + pn_kv_elem_bytes(type, i), PN_MIN((size_t)16, d - i), s[t], type);
    PN_UNROLL
    for (size_t t = 0; t < 4; t++)
        out[t] = pn_avx2_tree16(s[t][0], s[t][1]);
}

/* Scores of the group; `decode`: keys become floats first. */
PN_AVX2_INLINE void attn_scores_as(attn_group *w, const bool decode, const uint32_t type)
{
    _Alignas(32) float keys[4][PN_X86_ATTN_KEY];
    const pn_cpu_attn *a = w->a;
    size_t key_bytes = pn_kv_elem_bytes(a->k_type, a->d_k);
    for (size_t t = w->lo; t < w->hi; t += 4) {
        const uint8_t *k[4];
        float out[4];
        PN_UNROLL
        for (size_t i = 0; i < 4; i++) {
            k[i] = (const uint8_t *)a->k + PN_MIN(t + i, w->hi - 1) * key_bytes;
            if (decode) {
                pn_avx2_kv_decode(a->k_type, k[i], keys[i], a->d_k);
                k[i] = (const uint8_t *)keys[i];
            }
        }
        for (uint32_t j = 0; j < w->n; j++) {
            attn_score4(a->q[w->j0 + j], k, a->d_k, out, type);
            PN_UNROLL
            for (size_t i = 0; i < 4; i++)
                w->p[j][t + i] = out[i];
        }
    }
}

PN_AVX2 static void attn_scores(attn_group *w)
{
    const pn_cpu_attn *a = w->a;
    if (w->ops && w->ops->scores(w))
        return;
    if (w->n > 1 && a->k_type != PN_DTYPE_F32 && a->d_k <= PN_X86_ATTN_KEY) {
        attn_scores_as(w, true, PN_DTYPE_F32);
        return;
    }
    switch (a->k_type) {
#define ATTN_CASE(t) case PN_DTYPE_##t: attn_scores_as(w, false, PN_DTYPE_##t); break;
    PN_KV_EACH_TYPE(ATTN_CASE)
#undef ATTN_CASE
    default: PN_ASSERT(0); break;
    }
}

/* Scores p of one query to probabilities, zeros where others see tokens that it does not.  Returns the maximum. */
PN_AVX2 static float attn_page_softmax(const attn_group *w, float *p, size_t lo, size_t hi)
{
    const pn_cpu_attn *a = w->a;
    const __m256 scale = _mm256_set1_ps(a->scale), cap = _mm256_set1_ps(a->softcap), none = _mm256_set1_ps(-INFINITY);
    __m256 top = none;
    for (size_t t = lo; t < hi; t += 8) {       /* p has room for 8 more */
        __m256 s = _mm256_mul_ps(_mm256_loadu_ps(p + t), scale);
        s = a->softcap != 0 ? pn_avx2_softcap8(s, cap) : s;
        _mm256_storeu_ps(p + t, s);
        s = _mm256_blendv_ps(none, s, _mm256_castsi256_ps(pn_avx2_mask(PN_MIN(hi - t, (size_t)8))));
        top = _mm256_max_ps(s, top);            /* of NaN and m: m */
    }
    __m128 h = _mm_max_ps(_mm256_extractf128_ps(top, 1), _mm256_castps256_ps128(top));
    h = _mm_max_ps(_mm_movehl_ps(h, h), h);
    h = _mm_max_ss(_mm_movehdup_ps(h), h);
    const float m = _mm_cvtss_f32(h);
    for (size_t t = lo; t < hi; t += 8)
        _mm256_storeu_ps(p + t, pn_avx2_exp(_mm256_sub_ps(_mm256_loadu_ps(p + t), _mm256_set1_ps(m))));
    for (size_t t = w->lo; t < lo; t++)
        p[t] = 0;
    for (size_t t = hi; t < w->hi; t++)
        p[t] = 0;
    return m;
}

/* Sums of the probabilities of queries j .. j+8, each in ascending order: eight additions wait for each other at once. */
PN_AVX2 static void attn_sums8(const attn_group *w, uint32_t j, float sum[8])
{
    const float *p[8];
    float l[8] = {0};
    for (uint32_t i = 0; i < 8; i++)
        p[i] = w->p[PN_MIN(j + i, w->n - 1)];
    for (size_t t = w->lo; t < w->hi; t++)
        PN_UNROLL
        for (size_t i = 0; i < 8; i++)
            l[i] = l[i] + p[i][t];
    memcpy(sum, l, sizeof l);
}

/* Query j of the group, of whose page m is the maximum and l the sum: what the page and the old sums weigh. */
PN_AVX2 static void attn_merge_sums(attn_group *w, uint32_t j, float m, float l)
{
    const pn_cpu_attn *a = w->a;
    float *run_m = a->m + w->j0 + j, *run_l = a->l + w->j0 + j;
    const float top = *run_m > m ? *run_m : m;
    __m256 e = pn_avx2_exp(_mm256_setr_ps(*run_m - top, m - top, 0, 0, 0, 0, 0, 0));
    w->ea[j] = _mm_cvtss_f32(_mm256_castps256_ps128(e));
    w->eb[j] = _mm_cvtss_f32(_mm_movehdup_ps(_mm256_castps256_ps128(e)));
    __m128 merged = _mm_fmadd_ss(_mm_set_ss(*run_l), _mm_set_ss(w->ea[j]), _mm_set_ss(l * w->eb[j]));
    *run_l = _mm_cvtss_f32(merged);
    *run_m = top;
}

/* All of the group's scores to probabilities. */
PN_AVX2 static void attn_softmax(attn_group *w)
{
    const uint16_t *lo = w->a->lo + w->j0, *hi = w->a->hi + w->j0;
    float m[PN_X86_ATTN_GROUP], l[8];
    for (uint32_t j = 0; j < w->n; j++)
        m[j] = lo[j] < hi[j] ? attn_page_softmax(w, w->p[j], lo[j], hi[j]) : attn_page_softmax(w, w->p[j], w->hi, w->hi);
    for (uint32_t j = 0; j < w->n; j += 8) {
        attn_sums8(w, j, l);
        for (uint32_t i = 0; i < 8 && j + i < w->n; i++)
            if (lo[j + i] < hi[j + i])
                attn_merge_sums(w, j + i, m[j + i], l[i]);
    }
}

/* ------------------------------------------------------------------------------------------
 * Values
 * ------------------------------------------------------------------------------------------ */

PN_AVX2_INLINE attn_cols attn_cols_from(const attn_cols *c, size_t i, const uint32_t type)
{
    return (attn_cols){c->v + pn_kv_elem_bytes(type, i), c->row_bytes, c->lo, c->hi};
}

PN_AVX2_INLINE void attn_merge8(float *o, __m256 page, __m256 ea, __m256 eb)
{
    _mm256_storeu_ps(o, _mm256_fmadd_ps(_mm256_loadu_ps(o), ea, _mm256_mul_ps(page, eb)));
}

/* n <= 8 columns of one query. */
PN_AVX2_INLINE void attn_values_tail(attn_cols c, const float *p, float *o, size_t n, float ea, float eb, const uint32_t type)
{
    __m256 s = _mm256_setzero_ps();
    __m256i mask = pn_avx2_mask(n);
    for (size_t t = c.lo; t < c.hi; t++) {
        const uint8_t *v = c.v + t * c.row_bytes;
        s = _mm256_fmadd_ps(_mm256_broadcast_ss(p + t), n == 8 ? pn_avx2_kv8(v, type) : pn_avx2_kv_tail(v, n, type), s);
    }
    s = _mm256_mul_ps(s, _mm256_set1_ps(eb));
    s = _mm256_fmadd_ps(_mm256_maskload_ps(o, mask), _mm256_set1_ps(ea), s);
    _mm256_maskstore_ps(o, mask, s);
}

/* 32 columns of one query. */
PN_AVX2_INLINE void attn_values32(attn_cols c, const float *p, float *o, float ea, float eb, const uint32_t type)
{
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0, av = _mm256_set1_ps(ea), bv = _mm256_set1_ps(eb);
    for (size_t t = c.lo; t < c.hi; t++) {
        __m256 pv = _mm256_broadcast_ss(p + t), v[4];
        pn_avx2_kv32(c.v + t * c.row_bytes, v, type);
        s0 = _mm256_fmadd_ps(pv, v[0], s0);
        s1 = _mm256_fmadd_ps(pv, v[1], s1);
        s2 = _mm256_fmadd_ps(pv, v[2], s2);
        s3 = _mm256_fmadd_ps(pv, v[3], s3);
    }
    attn_merge8(o, s0, av, bv);
    attn_merge8(o + 8, s1, av, bv);
    attn_merge8(o + 16, s2, av, bv);
    attn_merge8(o + 24, s3, av, bv);
}

/* n columns of one query. */
PN_AVX2_INLINE void attn_values_as(const attn_cols *c, const float *p, float *o, size_t n, const float e[2], const uint32_t type)
{
    size_t i = 0;
    for (; i + 32 <= n; i += 32)
        attn_values32(attn_cols_from(c, i, type), p, o + i, e[0], e[1], type);
    if (!pn_kv_is_block(type))
        for (; i < n; i += 8)
            attn_values_tail(attn_cols_from(c, i, type), p, o + i, PN_MIN((size_t)8, n - i), e[0], e[1], type);
}

PN_AVX2 static void attn_values(const attn_cols *c, uint32_t type, const float *p, float *o, size_t n, const float e[2])
{
    switch (type) {
#define ATTN_CASE(t) case PN_DTYPE_##t: attn_values_as(c, p, o, n, e, PN_DTYPE_##t); break;
    PN_KV_EACH_TYPE(ATTN_CASE)
#undef ATTN_CASE
    default: PN_ASSERT(0); break;
    }
}

/* 16 columns of the group's queries j .. j+4, which see the same tokens. */
PN_AVX2_INLINE void attn_values16x4(const attn_group *w, attn_cols c, uint32_t j, size_t i, const uint32_t type)
{
    __m256 a0 = _mm256_setzero_ps(), a1 = a0, b0 = a0, b1 = a0, c0 = a0, c1 = a0, d0 = a0, d1 = a0;
    for (size_t t = c.lo; t < c.hi; t++) {
        const uint8_t *v = c.v + t * c.row_bytes;
        __m256 v0 = pn_avx2_kv8(v, type), v1 = pn_avx2_kv8(v + pn_kv_elem_bytes(type, 8), type);
        __m256 pa = _mm256_broadcast_ss(w->p[j] + t), pb = _mm256_broadcast_ss(w->p[j + 1] + t);
        __m256 pc = _mm256_broadcast_ss(w->p[j + 2] + t), pd = _mm256_broadcast_ss(w->p[j + 3] + t);
        a0 = _mm256_fmadd_ps(pa, v0, a0);
        a1 = _mm256_fmadd_ps(pa, v1, a1);
        b0 = _mm256_fmadd_ps(pb, v0, b0);
        b1 = _mm256_fmadd_ps(pb, v1, b1);
        c0 = _mm256_fmadd_ps(pc, v0, c0);
        c1 = _mm256_fmadd_ps(pc, v1, c1);
        d0 = _mm256_fmadd_ps(pd, v0, d0);
        d1 = _mm256_fmadd_ps(pd, v1, d1);
    }
    const __m256 sum[4][2] = {{a0, a1}, {b0, b1}, {c0, c1}, {d0, d1}};
    PN_UNROLL
    for (uint32_t n = 0; n < 4; n++) {
        float *o = w->a->o[w->j0 + j + n] + i;
        attn_merge8(o, sum[n][0], _mm256_set1_ps(w->ea[j + n]), _mm256_set1_ps(w->eb[j + n]));
        attn_merge8(o + 8, sum[n][1], _mm256_set1_ps(w->ea[j + n]), _mm256_set1_ps(w->eb[j + n]));
    }
}

/* Columns i .. i+n of four queries, as many as whole sixteens; returns their number. */
PN_AVX2 static size_t attn_values_x4(const attn_group *w, const attn_cols *c, uint32_t type, uint32_t j, size_t i, size_t n)
{
    size_t done = 0;
    for (; done + 16 <= n; done += 16) {
        if (type == PN_DTYPE_F16)
            attn_values16x4(w, attn_cols_from(c, done, PN_DTYPE_F16), j, i + done, PN_DTYPE_F16);
        else
            attn_values16x4(w, attn_cols_from(c, done, PN_DTYPE_F32), j, i + done, PN_DTYPE_F32);
    }
    return done;
}

/* Columns i .. i+n of the whole group, which v holds as `type`. */
PN_AVX2 static void attn_columns(const attn_group *w, const void *v, size_t row_bytes, uint32_t type, size_t i, size_t n)
{
    const uint16_t *lo = w->a->lo + w->j0, *hi = w->a->hi + w->j0;
    for (uint32_t j = 0, same; j < w->n; j += same) {
        const attn_cols c = {v, row_bytes, lo[j], hi[j]};
        size_t done = 0;
        for (same = 1; same < 4 && j + same < w->n && lo[j + same] == lo[j] && hi[j + same] == hi[j];)
            same++;
        if (c.lo >= c.hi)
            continue;
        if (w->ops)
            done = w->ops->columns(w, &c, type, j, same, i, n);
        else if (same == 4)
            done = attn_values_x4(w, &c, type, j, i, n);
        for (uint32_t m = 0; m < same && done < n; m++) {
            const float e[2] = {w->ea[j + m], w->eb[j + m]};
            const attn_cols rest = {c.v + pn_kv_elem_bytes(type, done), row_bytes, c.lo, c.hi};
            attn_values(&rest, type, w->p[j + m], w->a->o[w->j0 + j + m] + i + done, n - done, e);
        }
    }
}

/* Values of a block type for several queries: 32 columns at a time become floats. */
PN_AVX2 static void attn_tiles(const attn_group *w)
{
    _Alignas(32) float tile[PN_KV_PAGE_TOKENS][32];
    const pn_cpu_attn *a = w->a;
    size_t row_bytes = pn_kv_elem_bytes(a->v_type, a->d_v);
    for (size_t i = 0; i < a->d_v; i += 32) {
        const uint8_t *v = (const uint8_t *)a->v + pn_kv_elem_bytes(a->v_type, i);
        for (size_t t = w->lo; t < w->hi; t++)
            pn_avx2_kv_decode(a->v_type, v + t * row_bytes, tile[t], 32);
        attn_columns(w, tile, sizeof tile[0], PN_DTYPE_F32, i, 32);
    }
}

/* ------------------------------------------------------------------------------------------ */

/* Fetch what is needed after this: planes are a few pages of memory each, and the hardware foresees nothing beyond one. */
static void attn_fetch(const void *p, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch((const uint8_t *)p + i, 0, 2);
}

PN_AVX2 static void attn_page(attn_group *w)
{
    const pn_cpu_attn *a = w->a;
    const size_t v_bytes = pn_kv_elem_bytes(a->v_type, a->d_v);
    w->lo = PN_KV_PAGE_TOKENS;
    w->hi = 0;
    for (uint32_t j = w->j0; j < w->j0 + w->n; j++) {
        if (a->lo[j] < a->hi[j]) {
            w->lo = PN_MIN(w->lo, (size_t)a->lo[j]);
            w->hi = PN_MAX(w->hi, (size_t)a->hi[j]);
        }
    }
    if (w->lo >= w->hi)
        return;
    if (w->j0 == 0)
        attn_fetch((const uint8_t *)a->v + w->lo * v_bytes, (w->hi - w->lo) * v_bytes);
    attn_scores(w);
    if (w->j0 == 0)
        attn_fetch(a->next_k, a->next_k_bytes);
    attn_softmax(w);
    if (w->n > 1 && pn_kv_is_block(a->v_type))
        attn_tiles(w);
    else
        attn_columns(w, a->v, v_bytes, a->v_type, 0, a->d_v);
}

PN_AVX2 PN_INTERNAL void pn_x86_attn(const pn_cpu_attn *a, const pn_x86_attn_ops *ops)
{
    attn_group w;
    w.a = a;
    w.ops = ops;
    for (w.j0 = 0; w.j0 < a->n_q; w.j0 += PN_X86_ATTN_GROUP) {
        w.n = PN_MIN((uint32_t)PN_X86_ATTN_GROUP, a->n_q - w.j0);
        attn_page(&w);
    }
}

PN_INTERNAL void pn_avx2_attn(const pn_cpu_attn *a) { pn_x86_attn(a, NULL); }

#endif /* PN_CPU_X64 */

typedef int pn_cpu_avx2_attn_not_empty;         /* ISO C wants a declaration in every file */
