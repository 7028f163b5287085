/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_quant_4.c - small code books: IQ4 (16 uneven levels), FP4 with shared scales, ternary.
 *
 *             elems bytes  layout (offset:size)
 *     IQ4_NL     32    18  d 0:2, qs 2:16
 *     IQ4_XS    256   136  d 0:2, scales high u16 2:2, scales low 4:4, qs 8:128
 *     MXFP4      32    17  E8M0 exponent 0:1, qs 1:16            (OCP Microscaling 1.0)
 *     NVFP4      64    36  UE4M3 scale for every 16 elements 0:4, qs 4:32
 *     TQ1_0     256    54  qs 0:48 (five trits a byte), qh 48:4 (four), d 52:2
 *     TQ2_0     256    66  qs 0:64, d 64:2
 *
 * FP4 values are kept doubled, so that they are integers, and scales halved.  Nibbles of 32 elements
 * lie in halves: low nibbles are elements 0..15, high ones 16..31 (8 and 8 in NVFP4).
 */
#include "num/pn_quant.h"

#include "num/pn_half.h"
#include "num/pn_strict.h"
#include "num/pn_tab_iq.h"

/* ------------------------------------------------------------------------------------------
 * Decoders
 * ------------------------------------------------------------------------------------------ */

/* y[0..2n) from n bytes: low nibbles first, then high ones. */
static void q4_levels(const uint8_t *qs, int n, float d, const int8_t *levels, float *y)
{
    for (int j = 0; j < n; j++) {
        y[j] = d * (float)levels[qs[j] & 15];
        y[n + j] = d * (float)levels[qs[j] >> 4];
    }
}

static void q4_decode_iq4_nl(const uint8_t *b, float *y)
{
    q4_levels(b + 2, 16, pn_f32_from_f16(pn_le16(b)), pn_tab_iq4nl(), y);
}

static void q4_decode_iq4_xs(const uint8_t *b, float *y)
{
    float d = pn_f32_from_f16(pn_le16(b));
    int high = pn_le16(b + 2);
    for (int g = 0; g < 8; g++) {
        int scale = (b[4 + g / 2] >> 4 * (g % 2) & 15) + 16 * (high >> 2 * g & 3) - 32;
        q4_levels(b + 8 + 16 * g, 16, d * (float)scale, pn_tab_iq4nl(), y + 32 * g);
    }
}

static void q4_decode_mxfp4(const uint8_t *b, float *y)
{
    q4_levels(b + 1, 16, pn_f32_from_e8m0_half(b[0]), pn_tab_fp4(), y);
}

static void q4_decode_nvfp4(const uint8_t *b, float *y)
{
    for (int s = 0; s < 4; s++)
        q4_levels(b + 4 + 8 * s, 8, pn_f32_from_ue4m3_half(b[s]), pn_tab_fp4(), y + 16 * s);
}

static void q4_decode_tq2(const uint8_t *b, float *y)
{
    float d = pn_f32_from_f16(pn_le16(b + 64));
    for (int e = 0; e < 256; e++)
        y[e] = d * (float)((b[e / 128 * 32 + e % 32] >> 2 * (e % 128 / 32) & 3) - 1);
}

/* Where element e of TQ1_0 lives: byte and trit (0: most significant). */
static int q4_trit_place(int e, int *trit)
{
    int base = e < 160 ? 0 : e < 240 ? 160 : 240;       /* runs of 32, 16 and 4 bytes */
    int run = e < 160 ? 32 : e < 240 ? 16 : 4, at = e < 160 ? 0 : e < 240 ? 32 : 48;
    *trit = (e - base) / run;
    return at + (e - base) % run;
}

static void q4_decode_tq1(const uint8_t *b, float *y)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    float d = pn_f32_from_f16(pn_le16(b + 52));
    for (int e = 0; e < 256; e++) {
        int trit, at = q4_trit_place(e, &trit);
        uint32_t fraction = (uint32_t)b[at] * power[trit] & 255;    /* the byte is 256 * 0.t0t1t2.. */
        y[e] = d * (float)((int)(fraction * 3 >> 8) - 1);
    }
}

PN_INTERNAL pn_block_decode pn_block_decode_4(uint32_t type)
{
    switch (type) {
    case PN_DTYPE_IQ4_NL: return q4_decode_iq4_nl;
    case PN_DTYPE_IQ4_XS: return q4_decode_iq4_xs;
    case PN_DTYPE_MXFP4: return q4_decode_mxfp4;
    case PN_DTYPE_NVFP4: return q4_decode_nvfp4;
    case PN_DTYPE_TQ1_0: return q4_decode_tq1;
    case PN_DTYPE_TQ2_0: return q4_decode_tq2;
    default: return NULL;
    }
}

/* ------------------------------------------------------------------------------------------
 * Encoders
 * ------------------------------------------------------------------------------------------ */

static float q4_abs(float x) { return x < 0 ? -x : x; }

/* The element of largest magnitude, sign included; the first one of several. */
static float q4_extreme(const float *x, int n)
{
    float at = 0;
    for (int j = 0; j < n; j++)
        if (q4_abs(x[j]) > q4_abs(at))
            at = x[j];
    return at;
}

/* Nearest level of IQ4; the upper of two at the same distance; NaN gives the lowest. */
static int q4_nearest_iq4(float v)
{
    const int8_t *level = pn_tab_iq4nl();
    int i = 0;
    while (i < 15 && pn_subf(v, (float)level[i]) >= pn_subf((float)level[i + 1], v))
        i++;
    return i;
}

/* One least-squares refit of the scale: sum w V x / sum w V^2 with w = x^2.  This is the reference's
 * row encoder; its file quantiser also searches over 15 scales, so files hold other bytes. */
static void q4_encode_iq4_nl(const float *x, uint8_t *b)
{
    const int8_t *level = pn_tab_iq4nl();
    float m = q4_extreme(x, 32), d = 0, sum_vx = 0, sum_vv = 0;
    int code[32];
    float id = m != 0 ? pn_divf(1.0f, pn_divf(m, (float)level[0])) : 0.0f;
    for (int j = 0; j < 32; j++) {
        code[j] = q4_nearest_iq4(pn_mulf(id, x[j]));
        float v = (float)level[code[j]], wv = pn_mulf(pn_mulf(x[j], x[j]), v);
        sum_vx = pn_addf(sum_vx, pn_mulf(wv, x[j]));
        sum_vv = pn_addf(sum_vv, pn_mulf(wv, v));
    }
    if (sum_vv > 0)
        d = pn_divf(sum_vx, sum_vv);
    pn_put16(b, pn_f16_from_f32(d));
    for (int j = 0; j < 16; j++)
        b[2 + j] = (uint8_t)(code[j] | code[j + 16] << 4);
}

/* The FP4 code with the smallest error; the lowest of several. */
static int q4_nearest_fp4(float x, float scale)
{
    const int8_t *value = pn_tab_fp4();
    int best = 0;
    float least = q4_abs(pn_subf(pn_mulf((float)value[0], scale), x));
    for (int i = 1; i < 16; i++) {
        float e = q4_abs(pn_subf(pn_mulf((float)value[i], scale), x));
        if (e < least) {
            least = e;
            best = i;
        }
    }
    return best;
}

static void q4_pack_fp4(const float *x, int n, float scale, uint8_t *qs)
{
    for (int j = 0; j < n; j++)
        qs[j] = (uint8_t)(q4_nearest_fp4(x[j], scale) | q4_nearest_fp4(x[j + n], scale) << 4);
}

/* Exponent: floor(log2 a) - 2 (the largest value, 6, is 1.5 * 2^2) + 127. */
static void q4_encode_mxfp4(const float *x, uint8_t *b)
{
    int32_t e = (int32_t)(pn_f32_bits(q4_abs(q4_extreme(x, 32))) >> 23) - 2;     /* biased by 127 */
    b[0] = (uint8_t)(e < 0 ? 0 : e > 254 ? 254 : e);
    q4_pack_fp4(x, 16, pn_f32_from_e8m0_half(b[0]), b + 1);
}

/* UE4M3 of a non-negative number: half rounds up, at most 0x7e (448); subnormals stay subnormal, as
 * in the reference. */
static uint8_t q4_ue4m3(float x)
{
    if (x < 0x1p-6f)
        return (uint8_t)pn_trunc_clamp(pn_addf(pn_mulf(x, 512.0f), 0.5f), 0, 7);
    uint32_t u = ((pn_f32_bits(x) + 0x80000u) >> 20) - (120u << 3);
    return (uint8_t)(u > 0x7e ? 0x7e : u);
}

static void q4_encode_nvfp4(const float *x, uint8_t *b)
{
    for (int s = 0; s < 4; s++) {
        b[s] = q4_ue4m3(pn_divf(q4_abs(q4_extreme(x + 16 * s, 16)), 6.0f));
        q4_pack_fp4(x + 16 * s, 8, pn_f32_from_ue4m3_half(b[s]), b + 4 + 8 * s);
    }
}

/* 256 trits 0..2, and the scale. */
static float q4_trits(const float *x, uint8_t *trit)
{
    float d = q4_abs(q4_extreme(x, 256)), id = d != 0 ? pn_divf(1.0f, d) : 0.0f;
    for (int e = 0; e < 256; e++)
        trit[e] = (uint8_t)(pn_rha_clamp(pn_mulf(x[e], id), -1, 1) + 1);
    return d;
}

static void q4_encode_tq2(const float *x, uint8_t *b)
{
    uint8_t trit[256];
    pn_put16(b + 64, pn_f16_from_f32(q4_trits(x, trit)));
    memset(b, 0, 64);
    for (int e = 0; e < 256; e++)
        b[e / 128 * 32 + e % 32] |= (uint8_t)(trit[e] << 2 * (e % 128 / 32));
}

/* A byte is ceil(256 Q / 243), Q the number its five trits spell: then multiplying by 3 shifts the
 * next trit out at the top. */
static void q4_encode_tq1(const float *x, uint8_t *b)
{
    static const uint8_t weight[5] = {81, 27, 9, 3, 1};
    uint8_t trit[256];
    uint32_t spelled[52] = {0};
    pn_put16(b + 52, pn_f16_from_f32(q4_trits(x, trit)));
    for (int e = 0; e < 256; e++) {
        int place, at = q4_trit_place(e, &place);
        spelled[at] += (uint32_t)trit[e] * weight[place];
    }
    for (int i = 0; i < 52; i++)
        b[i] = (uint8_t)((spelled[i] * 256 + 242) / 243);
}

PN_INTERNAL pn_block_encode pn_block_encode_4(uint32_t type)
{
    switch (type) {
    case PN_DTYPE_IQ4_NL: return q4_encode_iq4_nl;
    case PN_DTYPE_MXFP4: return q4_encode_mxfp4;
    case PN_DTYPE_NVFP4: return q4_encode_nvfp4;
    case PN_DTYPE_TQ1_0: return q4_encode_tq1;
    case PN_DTYPE_TQ2_0: return q4_encode_tq2;
    default: return NULL;
    }
}
