/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_sse41.c - kernels for x86 without AVX2: SSSE3's maddubs and SSE4.1's conversions.
 *
 * Kept small: weights come from the portable unpacker (one chunk of one row, then all activation
 * rows), dot products of int8 are |w| * sign(x, w), which cannot saturate.  There is no fused
 * multiply-add, so a product is rounded before it is added: the bits differ from ref in the last
 * places and are the same for every shape.  What is not a dot product is ref's.
 */
#include "cpu/pn_cpu_ref.h"
#include "cpu/pn_cpu_x86_mm.h"

#if PN_CPU_X86

#include "num/pn_half.h"
#include "num/pn_math.h"
#include "num/pn_quant.h"

#include <math.h>

#define SSE_M 16                /* activation rows for which a chunk is unpacked once */

PN_SSE41 static inline __m128i sse_load(const void *p) { return _mm_loadu_si128((const __m128i *)p); }

/* 16 products as four int32, times the scale in every int16 of s. */
PN_SSE41 static inline __m128i sse_dot16(const int8_t *w, const int8_t *q, __m128i s)
{
    __m128i v = sse_load(w);
    return _mm_madd_epi16(_mm_maddubs_epi16(_mm_abs_epi8(v), _mm_sign_epi8(sse_load(q), v)), s);
}

PN_SSE41 static inline int32_t sse_sum(__m128i v)
{
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1)));
}

/* acc + (dw dx) isum, each operation rounded (the compiler cannot fuse intrinsics it has no
 * instruction for, and sees no plain sum of a product). */
PN_SSE41 static inline float sse_step(float acc, float dw, float dx, int32_t isum)
{
    __m128 d = _mm_mul_ss(_mm_set_ss(dw), _mm_set_ss(dx));
    d = _mm_mul_ss(d, _mm_cvtsi32_ss(_mm_setzero_ps(), isum));
    return _mm_cvtss_f32(_mm_add_ss(_mm_set_ss(acc), d));
}

PN_SSE41 static float sse_block256(const pn_cpu_chunk *c, bool has_min, pn_x86_x x, float acc)
{
    __m128i v = _mm_setzero_si128();
    for (size_t t = 0; t < 16; t++)
        v = _mm_add_epi32(v, sse_dot16(c->w + 16 * t, x.q + 16 * t, _mm_set1_epi16(c->sc[t])));
    acc = sse_step(acc, c->d[0], x.d[0], sse_sum(v));
    if (has_min) {
        v = _mm_add_epi32(_mm_madd_epi16(sse_load(c->mn), sse_load(x.s)),
                          _mm_madd_epi16(sse_load(c->mn + 8), sse_load(x.s + 8)));
        acc = sse_step(acc, c->m[0], x.d[0], sse_sum(v));
    }
    return acc;
}

PN_SSE41 static float sse_blocks32(const pn_cpu_chunk *c, pn_cpu_form f, size_t n, pn_x86_x x, float acc)
{
    const __m128i one = _mm_set1_epi16(1);
    for (size_t b = 0; b < n / 32; b++) {
        __m128i lo = sse_dot16(c->w + 32 * b, x.q + 32 * b, one);
        __m128i hi = sse_dot16(c->w + 32 * b + 16, x.q + 32 * b + 16, one);
        if (f.family == PN_CPU_B16) {
            acc = sse_step(acc, c->d[2 * b], x.d[b], sse_sum(lo));
            acc = sse_step(acc, c->d[2 * b + 1], x.d[b], sse_sum(hi));
            continue;
        }
        acc = sse_step(acc, c->d[b], x.d[b], sse_sum(_mm_add_epi32(lo, hi)));
        if (f.has_min)
            acc = sse_step(acc, c->m[b], x.d[b], x.s[2 * b] + x.s[2 * b + 1]);
    }
    return acc;
}

PN_SSE41 static void sse_row_quant(const pn_cpu_mm *a, pn_cpu_form f, uint32_t r, uint32_t j0, uint32_t n)
{
    const uint8_t *row = (const uint8_t *)a->w + r * a->w_stride;
    float acc[SSE_M] = {0};
    pn_x86_x x[SSE_M];
    pn_cpu_chunk c;
    for (uint32_t j = 0; j < n; j++)
        x[j] = pn_x86_x_at(a, f, j0 + j);
    for (size_t e = 0; e < a->k; e += PN_CPU_CHUNK) {
        size_t ne = PN_MIN((size_t)PN_CPU_CHUNK, a->k - e);
        pn_cpu_unpack(a->dtype, row, e, ne, &c);
        for (uint32_t j = 0; j < n; j++) {
            pn_x86_x at = pn_x86_x_from(x[j], f, e);
            acc[j] = f.family == PN_CPU_B256 ? sse_block256(&c, f.has_min, at, acc[j])
                                             : sse_blocks32(&c, f, ne, at, acc[j]);
        }
    }
    for (uint32_t j = 0; j < n; j++)
        pn_x86_store_rows(a, r, 1, a->y_index ? a->y_index[j0 + j] : j0 + j, acc + j);
}

/* p += w x over n <= 16 elements of four partial sums of four. */
PN_SSE41 static inline void sse_dot_step(__m128 p[4], const float *w, const float *x)
{
    for (int i = 0; i < 4; i++)
        p[i] = _mm_add_ps(p[i], _mm_mul_ps(_mm_loadu_ps(w + 4 * i), _mm_loadu_ps(x + 4 * i)));
}

PN_SSE41 static float sse_dot(const float *w, const float *x, size_t n)
{
    __m128 z = _mm_setzero_ps(), p[4] = {z, z, z, z};
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        sse_dot_step(p, w + i, x + i);
    if (i < n) {
        float wt[16] = {0}, xt[16] = {0};
        memcpy(wt, w + i, 4 * (n - i));
        memcpy(xt, x + i, 4 * (n - i));
        sse_dot_step(p, wt, xt);
    }
    __m128 a = _mm_add_ps(p[0], p[2]), b = _mm_add_ps(p[1], p[3]);
    a = _mm_add_ps(a, b);
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}

PN_SSE41 static void sse_matmul_exact(const pn_cpu_mm *a)
{
    for (uint32_t r = 0; r < a->rows; r++) {
        const void *row = (const uint8_t *)a->w + r * a->w_stride;
        const float *w = a->dtype == PN_DTYPE_F32 ? row : a->tile;
        if (a->dtype != PN_DTYPE_F32)
            pn_dequant_row(a->dtype, row, a->tile, a->k);
        for (uint32_t j = 0; j < a->m; j++) {
            float sum = sse_dot(w, (const float *)(const void *)pn_x86_x_row(a, j), a->k);
            pn_x86_store_rows(a, r, 1, a->y_index ? a->y_index[j] : j, &sum);
        }
    }
}

PN_SSE41 static void sse_matmul(const pn_cpu_mm *a)
{
    pn_cpu_form f = pn_cpu_form_of(a->dtype);
    if (f.family == PN_CPU_FLOAT) {
        sse_matmul_exact(a);
        return;
    }
    for (uint32_t r = 0; r < a->rows; r++)
        for (uint32_t j = 0; j < a->m; j += SSE_M)
            sse_row_quant(a, f, r, j, PN_MIN((uint32_t)SSE_M, a->m - j));
}

PN_SSE41 static void sse_rms_norm(const float *x, const float *w, float *y, size_t n, float eps)
{
    float inv = 1.0f / sqrtf(sse_dot(x, x, n) / (float)n + eps);
    for (size_t i = 0; i < n; i++) {
        float v = x[i] * inv;
        y[i] = w ? v * w[i] : v;
    }
}

/* y += s x, rounded twice. */
PN_SSE41 static void sse_add_scaled(float s, const float *x, float *y, size_t n)
{
    __m128 sv = _mm_set1_ps(s);
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        _mm_storeu_ps(y + i, _mm_add_ps(_mm_loadu_ps(y + i), _mm_mul_ps(sv, _mm_loadu_ps(x + i))));
    for (; i < n; i++)
        _mm_store_ss(y + i, _mm_add_ss(_mm_load_ss(y + i), _mm_mul_ss(sv, _mm_load_ss(x + i))));
}

#define SSE_PIECE 256           /* floats converted at a time; a multiple of 16 */

/* 16 of 32 bits, from byte `first` on, to bytes of 0 or 16. */
PN_SSE41 static inline __m128i sse_fifth(uint32_t bits, int first)
{
    const __m128i bit = _mm_set1_epi64x((long long)0x8040201008040201u);
    __m128i spread = _mm_add_epi8(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), _mm_set1_epi8((char)first));
    __m128i v = _mm_and_si128(_mm_shuffle_epi8(_mm_cvtsi32_si128((int)bits), spread), bit);
    return _mm_and_si128(_mm_cmpeq_epi8(v, bit), _mm_set1_epi8(16));
}

/* The 32 codes of a block of keys or values, signed. */
PN_SSE41 static void sse_kv_codes(const uint8_t *b, uint32_t type, __m128i c[2])
{
    size_t bytes = pn_kv_elem_bytes(type, 32);
    if (type == PN_DTYPE_Q8_0) {
        c[0] = _mm_loadu_si128((const __m128i *)(const void *)(b + 2));
        c[1] = _mm_loadu_si128((const __m128i *)(const void *)(b + 18));
        return;
    }
    const __m128i low = _mm_set1_epi8(15);
    __m128i n = _mm_loadu_si128((const __m128i *)(const void *)(b + bytes - 16));
    bool five = type == PN_DTYPE_Q5_0 || type == PN_DTYPE_Q5_1;
    __m128i off = _mm_set1_epi8(type == PN_DTYPE_Q4_0 ? 8 : type == PN_DTYPE_Q5_0 ? 16 : 0);
    for (int i = 0; i < 2; i++) {
        c[i] = _mm_and_si128(i ? _mm_srli_epi16(n, 4) : n, low);
        if (five)
            c[i] = _mm_or_si128(c[i], sse_fifth(pn_le32(b + bytes - 20), 2 * i));
        c[i] = _mm_sub_epi8(c[i], off);
    }
}

/* n values, whole blocks, as num/pn_quant decodes them: d * code is exact, so only the sum rounds. */
PN_SSE41 static void sse_kv_blocks(const uint8_t *b, uint32_t type, float *y, size_t n)
{
    bool has_min = type == PN_DTYPE_Q4_1 || type == PN_DTYPE_Q5_1;
    for (; n; n -= 32, y += 32, b += pn_kv_elem_bytes(type, 32)) {
        __m128 d = _mm_set1_ps(pn_f32_from_f16(pn_le16(b))), m = _mm_set1_ps(pn_f32_from_f16(pn_le16(b + 2)));
        __m128i c[2];
        sse_kv_codes(b, type, c);
        for (int i = 0; i < 8; i++) {
            __m128 v = _mm_mul_ps(d, _mm_cvtepi32_ps(_mm_cvtepi8_epi32(c[i / 4])));
            _mm_storeu_ps(y + 4 * i, has_min ? _mm_add_ps(v, m) : v);
            c[i / 4] = _mm_srli_si128(c[i / 4], 4);
        }
    }
}

/* n values at i as floats: where they lie, or converted into buf. */
PN_SSE41 static const float *sse_values(const void *base, uint32_t type, size_t i, size_t n, float *buf)
{
    const uint8_t *at = (const uint8_t *)base + pn_kv_elem_bytes(type, i);
    if (type == PN_DTYPE_F32)
        return (const float *)base + i;
    if (type != PN_DTYPE_F16)
        sse_kv_blocks(at, type, buf, n);
    for (size_t j = 0; type == PN_DTYPE_F16 && j < n; j++)
        buf[j] = pn_f32_from_f16(((const uint16_t *)base)[i + j]);
    return buf;
}

/* q . k in the float order, piece by piece. */
PN_SSE41 static float sse_score(const pn_cpu_attn *a, const float *q, size_t t)
{
    __m128 z = _mm_setzero_ps(), p[4] = {z, z, z, z};
    float buf[SSE_PIECE];
    for (size_t i = 0; i < a->d_k; i += SSE_PIECE) {
        size_t n = PN_MIN((size_t)SSE_PIECE, a->d_k - i), e = 0;
        const float *k = sse_values(a->k, a->k_type, t * a->d_k + i, n, buf);
        for (; e + 16 <= n; e += 16)
            sse_dot_step(p, k + e, q + i + e);
        if (e < n) {
            float kt[16] = {0}, qt[16] = {0};
            memcpy(kt, k + e, 4 * (n - e));
            memcpy(qt, q + i + e, 4 * (n - e));
            sse_dot_step(p, kt, qt);
        }
    }
    __m128 s = _mm_add_ps(_mm_add_ps(p[0], p[2]), _mm_add_ps(p[1], p[3]));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    float v = _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1))) * a->scale;
    return a->softcap != 0 ? a->softcap * pn_tanhf(v / a->softcap) : v;
}

/* o = o ea + (sum over t of p v) eb, for n <= SSE_PIECE columns at i. */
PN_SSE41 static void sse_merge(const pn_cpu_attn *a, const float *p, size_t lo, size_t hi, float *o,
                               size_t i, size_t n, float ea, float eb)
{
    float page[SSE_PIECE] = {0}, buf[SSE_PIECE];
    for (size_t t = lo; t < hi; t++)
        sse_add_scaled(p[t], sse_values(a->v, a->v_type, t * a->d_v + i, n, buf), page, n);
    for (size_t c = 0; c < n; c++) {
        o[i + c] = o[i + c] * ea;
        page[c] = page[c] * eb;
    }
    sse_add_scaled(1.0f, page, o + i, n);
}

PN_SSE41 static void sse_attn(const pn_cpu_attn *a)
{
    float p[PN_KV_PAGE_TOKENS];
    for (uint32_t j = 0; j < a->n_q; j++) {
        size_t lo = a->lo[j], hi = a->hi[j];
        float m = -INFINITY, l = 0;
        if (lo >= hi)
            continue;
        for (size_t t = lo; t < hi; t++) {
            p[t] = sse_score(a, a->q[j], t);
            m = p[t] > m ? p[t] : m;
        }
        for (size_t t = lo; t < hi; t++) {
            p[t] = pn_expf(p[t] - m);
            l = l + p[t];
        }
        float top = a->m[j] > m ? a->m[j] : m;
        float ea = pn_expf(a->m[j] - top), eb = pn_expf(m - top);
        for (size_t i = 0; i < a->d_v; i += SSE_PIECE)
            sse_merge(a, p, lo, hi, a->o[j], i, PN_MIN((size_t)SSE_PIECE, a->d_v - i), ea, eb);
        a->l[j] = a->l[j] * ea;
        sse_add_scaled(eb, &l, &a->l[j], 1);
        a->m[j] = top;
    }
}

PN_INTERNAL const pn_cpu_kernels *pn_cpu_sse41(void)
{
    static const pn_cpu_kernels table = {
        .name = "sse41", .quant = pn_ref_quant, .matmul = sse_matmul, .matmul_exact = sse_matmul_exact,
        .rms_norm = sse_rms_norm, .add = pn_ref_add, .axpy = sse_add_scaled, .scale = pn_ref_scale,
        .glu = pn_ref_glu, .softcap = pn_ref_softcap, .rope = pn_ref_rope,
        .kv_encode = pn_ref_kv_encode, .kv_decode = pn_ref_kv_decode, .hadamard = pn_ref_hadamard,
        .attn = sse_attn, .softmax = pn_ref_softmax,
    };
    return pn_x86_probe() >= PN_X86_SSE41 ? &table : NULL;
}

#undef SSE_M
#undef SSE_PIECE

#else

PN_INTERNAL const pn_cpu_kernels *pn_cpu_sse41(void) { return NULL; }

#endif
