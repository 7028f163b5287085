/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_neon_attn.c - attention over one page, AArch64: queries in groups, scores for four keys at a time.
 *
 * A single query reads keys and values where they lie and decodes them in registers.  For a group they
 * are decoded once, keys four tokens at a time and values of a block type 32 columns at a time, into a
 * tile that all its queries read.  Either way the same floats meet in the same order (cpu/pn_cpu.h).
 */
#include "cpu/pn_cpu_neon_kv.h"

#if PN_CPU_ARM64

#include <math.h>

#define NATTN_GROUP 8                   /* queries whose probabilities are kept at once */
#define NATTN_KEY_MAX 512               /* longest key that is decoded for a group */

typedef struct nattn_group {
    const pn_cpu_attn *a;
    uint32_t j0, n;                     /* queries j0 .. j0+n */
    size_t lo, hi;                      /* tokens that any of them sees */
    float p[NATTN_GROUP][PN_KV_PAGE_TOKENS + 4];    /* scores, then probabilities */
    float ea[NATTN_GROUP], eb[NATTN_GROUP];         /* factors of what was there and of the page */
} nattn_group;

/* ------------------------------------------------------------------------------------------
 * Scores
 * ------------------------------------------------------------------------------------------ */

/* q . k of n <= 16 elements at the end of a key, into the four quarters of its partial sums. */
PN_NEON_INLINE void nattn_score_tail(const float *q, const uint8_t *k, size_t n, float32x4_t s[4], const uint32_t type)
{
    for (size_t part = 0; n; part++) {
        size_t m = PN_MIN(n, (size_t)4);
        float32x4_t v = m == 4 ? pn_neon_kv4(k, type) : pn_neon_kv_tail(k, m, type);
        s[part] = vfmaq_f32(s[part], pn_neon_load_tail(q, m), v);
        q += m;
        k += pn_kv_elem_bytes(type, m);
        n -= m;
    }
}

/* q . k for four keys. */
PN_NEON_INLINE void nattn_score4(const float *q, const uint8_t *const k[4], size_t d, float out[4], const uint32_t type)
{
    float32x4_t s[4][4], sum[4];
    size_t i = 0;
    PN_UNROLL
    for (size_t t = 0; t < 4; t++)
        s[t][0] = s[t][1] = s[t][2] = s[t][3] = vdupq_n_f32(0);
    for (; i + 32 <= d; i += 32) {
        size_t at = pn_kv_elem_bytes(type, i);
        PN_UNROLL
        for (size_t t = 0; t < 4; t++) {
            float32x4_t v[8];
            pn_neon_kv32(k[t] + at, v, type);
            PN_UNROLL
            for (size_t e = 0; e < 8; e++)
                s[t][e % 4] = vfmaq_f32(s[t][e % 4], vld1q_f32(q + i + 4 * e), v[e]);
        }
    }
    if (!pn_kv_is_block(type))
        for (; i < d; i += 16)
            PN_UNROLL
            for (size_t t = 0; t < 4; t++)
                nattn_score_tail(q + i, k[t] + pn_kv_elem_bytes(type, i), PN_MIN((size_t)16, d - i), s[t], type);
    PN_UNROLL
    for (size_t t = 0; t < 4; t++)
        sum[t] = pn_neon_tree4(s[t][0], s[t][1], s[t][2], s[t][3]);
    vst1q_f32(out, pn_neon_tree1x4(sum[0], sum[1], sum[2], sum[3]));
}

/* Scores of the group; `decode`: keys become floats first. */
PN_NEON_INLINE void nattn_scores_as(nattn_group *w, const bool decode, const uint32_t type)
{
    float keys[4][NATTN_KEY_MAX];
    const pn_cpu_attn *a = w->a;
    size_t key_bytes = pn_kv_elem_bytes(a->k_type, a->d_k);
    for (size_t t = w->lo; t < w->hi; t += 4) {
        const uint8_t *k[4];
        PN_UNROLL
        for (size_t i = 0; i < 4; i++) {
            k[i] = (const uint8_t *)a->k + PN_MIN(t + i, w->hi - 1) * key_bytes;
            if (decode) {
                pn_neon_kv_decode(a->k_type, k[i], keys[i], a->d_k);
                k[i] = (const uint8_t *)keys[i];
            }
        }
        for (uint32_t j = 0; j < w->n; j++)
            nattn_score4(a->q[w->j0 + j], k, a->d_k, w->p[j] + t, type);
    }
}

static void nattn_scores(nattn_group *w)
{
    const pn_cpu_attn *a = w->a;
    if (w->n > 1 && a->k_type != PN_DTYPE_F32 && a->d_k <= NATTN_KEY_MAX) {
        nattn_scores_as(w, true, PN_DTYPE_F32);
        return;
    }
    switch (a->k_type) {
#define NATTN_CASE(t) case PN_DTYPE_##t: nattn_scores_as(w, false, PN_DTYPE_##t); break;
    PN_KV_EACH_TYPE(NATTN_CASE)
#undef NATTN_CASE
    default: PN_ASSERT(0); break;
    }
}

/* Scores of one query to probabilities.  Returns the sum; *top gets the maximum. */
static float nattn_page_softmax(const pn_cpu_attn *a, float *p, size_t lo, size_t hi, float *top)
{
    float32x4_t scale = vdupq_n_f32(a->scale), cap = vdupq_n_f32(a->softcap);
    float m = -INFINITY, l = 0;
    for (size_t t = lo; t < hi; t += 4) {       /* p has room for 4 more */
        float32x4_t s = pn_neon_mul(vld1q_f32(p + t), scale);
        vst1q_f32(p + t, a->softcap != 0 ? pn_neon_softcap4(s, cap) : s);
    }
    for (size_t t = lo; t < hi; t++)
        m = p[t] > m ? p[t] : m;
    for (size_t t = lo; t < hi; t += 4)
        vst1q_f32(p + t, pn_neon_exp(vsubq_f32(vld1q_f32(p + t), vdupq_n_f32(m))));
    for (size_t t = lo; t < hi; t++)
        l = l + p[t];
    *top = m;
    return l;
}

/* Query j of the group: its page's sums, and what they and the old ones weigh. */
static void nattn_merge_sums(nattn_group *w, uint32_t j)
{
    const pn_cpu_attn *a = w->a;
    uint32_t at = w->j0 + j;
    float m, l = nattn_page_softmax(a, w->p[j], a->lo[at], a->hi[at], &m);
    float top = a->m[at] > m ? a->m[at] : m, d[4] = {a->m[at] - top, m - top, 0, 0};
    float32x4_t e = pn_neon_exp(vld1q_f32(d));
    w->ea[j] = vgetq_lane_f32(e, 0);
    w->eb[j] = vgetq_lane_f32(e, 1);
    float lb = l * w->eb[j];
    a->l[at] = fmaf(a->l[at], w->ea[j], lb);
    a->m[at] = top;
}

/* ------------------------------------------------------------------------------------------
 * Values
 * ------------------------------------------------------------------------------------------ */

/* Some columns of tokens lo .. hi: token t's are at v + t * row_bytes. */
typedef struct nattn_cols {
    const uint8_t *v;
    size_t row_bytes, lo, hi;
} nattn_cols;

PN_NEON_INLINE nattn_cols nattn_cols_from(const nattn_cols *c, size_t i, const uint32_t type)
{
    return (nattn_cols){c->v + pn_kv_elem_bytes(type, i), c->row_bytes, c->lo, c->hi};
}

PN_NEON_INLINE float32x4_t nattn_merged(float32x4_t o, float32x4_t page, float ea, float eb)
{
    return vfmaq_n_f32(vmulq_n_f32(page, eb), o, ea);
}

PN_NEON_INLINE void nattn_merge4(float *o, float32x4_t page, float ea, float eb)
{
    vst1q_f32(o, nattn_merged(vld1q_f32(o), page, ea, eb));
}

/* n <= 4 columns of one query. */
PN_NEON_INLINE void nattn_values_tail(nattn_cols c, const float *p, float *o, size_t n, const float e[2], const uint32_t type)
{
    float32x4_t s = vdupq_n_f32(0);
    for (size_t t = c.lo; t < c.hi; t++) {
        const uint8_t *v = c.v + t * c.row_bytes;
        s = vfmaq_n_f32(s, n == 4 ? pn_neon_kv4(v, type) : pn_neon_kv_tail(v, n, type), p[t]);
    }
    pn_neon_store_tail(o, nattn_merged(pn_neon_load_tail(o, n), s, e[0], e[1]), n);
}

/* 32 columns of one query. */
PN_NEON_INLINE void nattn_values32(nattn_cols c, const float *p, float *o, const float e[2], const uint32_t type)
{
    float32x4_t s[8];
    PN_UNROLL
    for (size_t i = 0; i < 8; i++)
        s[i] = vdupq_n_f32(0);
    for (size_t t = c.lo; t < c.hi; t++) {
        float32x4_t v[8];
        pn_neon_kv32(c.v + t * c.row_bytes, v, type);
        PN_UNROLL
        for (size_t i = 0; i < 8; i++)
            s[i] = vfmaq_n_f32(s[i], v[i], p[t]);
    }
    PN_UNROLL
    for (size_t i = 0; i < 8; i++)
        nattn_merge4(o + 4 * i, s[i], e[0], e[1]);
}

/* n columns of one query. */
PN_NEON_INLINE void nattn_values_as(const nattn_cols *c, const float *p, float *o, size_t n, const float e[2], const uint32_t type)
{
    size_t i = 0;
    for (; i + 32 <= n; i += 32)
        nattn_values32(nattn_cols_from(c, i, type), p, o + i, e, type);
    if (!pn_kv_is_block(type))
        for (; i < n; i += 4)
            nattn_values_tail(nattn_cols_from(c, i, type), p, o + i, PN_MIN((size_t)4, n - i), e, type);
}

static void nattn_values(const nattn_cols *c, uint32_t type, const float *p, float *o, size_t n, const float e[2])
{
    switch (type) {
#define NATTN_CASE(t) case PN_DTYPE_##t: nattn_values_as(c, p, o, n, e, PN_DTYPE_##t); break;
    PN_KV_EACH_TYPE(NATTN_CASE)
#undef NATTN_CASE
    default: PN_ASSERT(0); break;
    }
}

/* 16 columns of the group's queries j .. j+4, which see the same tokens. */
PN_NEON_INLINE void nattn_values16x4(const nattn_group *w, nattn_cols c, uint32_t j, size_t i, const uint32_t type)
{
    float32x4_t s[4][4];
    PN_UNROLL
    for (size_t n = 0; n < 4; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = vdupq_n_f32(0);
    for (size_t t = c.lo; t < c.hi; t++) {
        const uint8_t *v = c.v + t * c.row_bytes;
        float32x4_t v0 = pn_neon_kv4(v, type), v1 = pn_neon_kv4(v + pn_kv_elem_bytes(type, 4), type);
        float32x4_t v2 = pn_neon_kv4(v + pn_kv_elem_bytes(type, 8), type), v3 = pn_neon_kv4(v + pn_kv_elem_bytes(type, 12), type);
        PN_UNROLL
        for (size_t n = 0; n < 4; n++) {
            float32x4_t q = vld1q_dup_f32(w->p[j + n] + t);
            s[n][0] = vfmaq_f32(s[n][0], q, v0);
            s[n][1] = vfmaq_f32(s[n][1], q, v1);
            s[n][2] = vfmaq_f32(s[n][2], q, v2);
            s[n][3] = vfmaq_f32(s[n][3], q, v3);
        }
    }
    PN_UNROLL
    for (size_t n = 0; n < 4; n++)
        PN_UNROLL
        for (size_t e = 0; e < 4; e++)
            nattn_merge4(w->a->o[w->j0 + j + n] + i + 4 * e, s[n][e], w->ea[j + n], w->eb[j + n]);
}

/* Columns i .. i+n of four queries, as many as whole sixteens; returns their number. */
static size_t nattn_values_x4(const nattn_group *w, const nattn_cols *c, uint32_t type, uint32_t j, size_t i, size_t n)
{
    size_t done = 0;
    for (; done + 16 <= n; done += 16) {
        if (type == PN_DTYPE_F16)
            nattn_values16x4(w, nattn_cols_from(c, done, PN_DTYPE_F16), j, i + done, PN_DTYPE_F16);
        else
            nattn_values16x4(w, nattn_cols_from(c, done, PN_DTYPE_F32), j, i + done, PN_DTYPE_F32);
    }
    return done;
}

/* Columns i .. i+n of the whole group, which v holds as `type`. */
static void nattn_columns(const nattn_group *w, const void *v, size_t row_bytes, uint32_t type, size_t i, size_t n)
{
    const uint16_t *lo = w->a->lo + w->j0, *hi = w->a->hi + w->j0;
    for (uint32_t j = 0, same; j < w->n; j += same) {
        const nattn_cols c = {v, row_bytes, lo[j], hi[j]};
        size_t done = 0;
        for (same = 1; same < 4 && j + same < w->n && lo[j + same] == lo[j] && hi[j + same] == hi[j];)
            same++;
        if (c.lo >= c.hi)
            continue;
        if (same == 4)
            done = nattn_values_x4(w, &c, type, j, i, n);
        for (uint32_t m = 0; m < same && done < n; m++) {
            const float e[2] = {w->ea[j + m], w->eb[j + m]};
            const nattn_cols rest = {c.v + pn_kv_elem_bytes(type, done), row_bytes, c.lo, c.hi};
            nattn_values(&rest, type, w->p[j + m], w->a->o[w->j0 + j + m] + i + done, n - done, e);
        }
    }
}

/* Values of a block type for several queries: 32 columns at a time become floats. */
static void nattn_tiles(const nattn_group *w)
{
    float tile[PN_KV_PAGE_TOKENS][32];
    const pn_cpu_attn *a = w->a;
    size_t row_bytes = pn_kv_elem_bytes(a->v_type, a->d_v);
    for (size_t i = 0; i < a->d_v; i += 32) {
        const uint8_t *v = (const uint8_t *)a->v + pn_kv_elem_bytes(a->v_type, i);
        for (size_t t = w->lo; t < w->hi; t++)
            pn_neon_kv_decode(a->v_type, v + t * row_bytes, tile[t], 32);
        nattn_columns(w, tile, sizeof tile[0], PN_DTYPE_F32, i, 32);
    }
}

/* ------------------------------------------------------------------------------------------ */

static void nattn_page(nattn_group *w)
{
    const pn_cpu_attn *a = w->a;
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
    nattn_scores(w);
    for (uint32_t j = 0; j < w->n; j++)
        if (a->lo[w->j0 + j] < a->hi[w->j0 + j])
            nattn_merge_sums(w, j);
    if (w->n > 1 && pn_kv_is_block(a->v_type))
        nattn_tiles(w);
    else
        nattn_columns(w, a->v, pn_kv_elem_bytes(a->v_type, a->d_v), a->v_type, 0, a->d_v);
}

PN_INTERNAL void pn_neon_attn(const pn_cpu_attn *a)
{
    nattn_group w;
    w.a = a;
    for (w.j0 = 0; w.j0 < a->n_q; w.j0 += NATTN_GROUP) {
        w.n = PN_MIN((uint32_t)NATTN_GROUP, a->n_q - w.j0);
        nattn_page(&w);
    }
}

#undef NATTN_GROUP
#undef NATTN_KEY_MAX

#endif /* PN_CPU_ARM64 */

typedef int pn_cpu_neon_attn_not_empty;         /* ISO C wants a declaration in every file */
