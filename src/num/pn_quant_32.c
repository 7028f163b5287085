/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_quant_32.c - the simple blocks: one scale, perhaps one offset, evenly spaced codes.
 *
 *           elems bytes  layout (offset:size)                       x
 *     Q4_0     32    18  d 0:2, qs 2:16                             d (c - 8)
 *     Q4_1     32    20  d 0:2, m 2:2, qs 4:16                      d c + m
 *     Q5_0     32    22  d 0:2, qh u32 2:4, qs 6:16                 d (c - 16)
 *     Q5_1     32    24  d 0:2, m 2:2, qh u32 4:4, qs 8:16          d c + m
 *     Q8_0     32    34  d 0:2, q int8 2:32                         d q
 *     Q8_1     32    36  d 0:2, s 2:2, q int8 4:32                  d q      s = f16(d * sum of q)
 *     Q1_0    128    18  d 0:2, bits 2:16                           d or -d
 *     Q2_0     64    18  d 0:2, qs 2:16                             d (c - 1)
 *
 * Nibbles lie in halves: low nibbles are elements 0..15, high ones 16..31.  Bit j of qh is the fifth
 * bit of element j.
 *
 * Encoders round in three ways, as the reference does: half away from zero (Q8, Q2_0), or truncation
 * after adding one half (the 4- and 5-bit types).  Codes come from the f32 scale, not from the f16
 * one that is stored.
 */
#include "num/pn_quant.h"

#include "num/pn_half.h"
#include "num/pn_strict.h"

/* ------------------------------------------------------------------------------------------
 * Decoders
 * ------------------------------------------------------------------------------------------ */

static int q32_nibble(const uint8_t *qs, int j) { return j < 16 ? qs[j] & 15 : qs[j - 16] >> 4; }

static int q32_five_bits(const uint8_t *qs, uint32_t qh, int j)
{
    return q32_nibble(qs, j) | (int)(qh >> j & 1) << 4;
}

static void q32_decode_q4_0(const uint8_t *b, float *y)
{
    float d = pn_f32_from_f16(pn_le16(b));
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(q32_nibble(b + 2, j) - 8);
}

static void q32_decode_q4_1(const uint8_t *b, float *y)
{
    float d = pn_f32_from_f16(pn_le16(b)), m = pn_f32_from_f16(pn_le16(b + 2));
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)q32_nibble(b + 4, j) + m;
}

static void q32_decode_q5_0(const uint8_t *b, float *y)
{
    float d = pn_f32_from_f16(pn_le16(b));
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(q32_five_bits(b + 6, pn_le32(b + 2), j) - 16);
}

static void q32_decode_q5_1(const uint8_t *b, float *y)
{
    float d = pn_f32_from_f16(pn_le16(b)), m = pn_f32_from_f16(pn_le16(b + 2));
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)q32_five_bits(b + 8, pn_le32(b + 4), j) + m;
}

static void q32_decode_q8(const uint8_t *b, const uint8_t *q, float *y)
{
    float d = pn_f32_from_f16(pn_le16(b));
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(int8_t)q[j];
}

static void q32_decode_q8_0(const uint8_t *b, float *y) { q32_decode_q8(b, b + 2, y); }

static void q32_decode_q8_1(const uint8_t *b, float *y) { q32_decode_q8(b, b + 4, y); }

static void q32_decode_q1_0(const uint8_t *b, float *y)
{
    float d = pn_f32_from_f16(pn_le16(b));
    for (int j = 0; j < 128; j++)
        y[j] = b[2 + j / 8] >> j % 8 & 1 ? d : -d;
}

static void q32_decode_q2_0(const uint8_t *b, float *y)
{
    float d = pn_f32_from_f16(pn_le16(b));
    for (int j = 0; j < 64; j++)
        y[j] = d * (float)((b[2 + j / 4] >> 2 * (j % 4) & 3) - 1);
}

PN_INTERNAL pn_block_decode pn_block_decode_32(uint32_t type)
{
    switch (type) {
    case PN_DTYPE_Q4_0: return q32_decode_q4_0;
    case PN_DTYPE_Q4_1: return q32_decode_q4_1;
    case PN_DTYPE_Q5_0: return q32_decode_q5_0;
    case PN_DTYPE_Q5_1: return q32_decode_q5_1;
    case PN_DTYPE_Q8_0: return q32_decode_q8_0;
    case PN_DTYPE_Q8_1: return q32_decode_q8_1;
    case PN_DTYPE_Q1_0: return q32_decode_q1_0;
    case PN_DTYPE_Q2_0: return q32_decode_q2_0;
    default: return NULL;
    }
}

/* ------------------------------------------------------------------------------------------
 * Encoders
 * ------------------------------------------------------------------------------------------ */

/* The element of largest magnitude, sign included; the first one of several. */
static float q32_extreme(const float *x, int n)
{
    float most = 0, at = 0;
    for (int j = 0; j < n; j++) {
        float a = x[j] < 0 ? -x[j] : x[j];
        if (a > most) {
            most = a;
            at = x[j];
        }
    }
    return at;
}

static float q32_abs_max(const float *x, int n)
{
    float m = q32_extreme(x, n);
    return m < 0 ? -m : m;
}

static float q32_inverse(float d) { return d != 0 ? pn_divf(1.0f, d) : 0.0f; }

/* 32 codes of 4 or 5 bits; qh is NULL for 4. */
static void q32_pack(const int32_t *code, uint8_t *qs, uint8_t *qh)
{
    uint32_t high = 0;
    for (int j = 0; j < 16; j++)
        qs[j] = (uint8_t)((code[j] & 15) | (code[j + 16] & 15) << 4);
    if (!qh)
        return;
    for (int j = 0; j < 32; j++)
        high |= (uint32_t)(code[j] >> 4 & 1) << j;
    pn_put32(qh, high);
}

/* Q4_0 (half = 8) and Q5_0 (half = 16): the extreme element gets code 0, so d may be negative. */
static void q32_encode_centred(const float *x, int half, uint8_t *b, uint8_t *qs, uint8_t *qh)
{
    int32_t code[32];
    float d = pn_divf(q32_extreme(x, 32), (float)-half), id = q32_inverse(d);
    for (int j = 0; j < 32; j++)
        code[j] = pn_trunc_clamp(pn_addf(pn_mulf(x[j], id), (float)half + 0.5f), 0, 2 * half - 1);
    pn_put16(b, pn_f16_from_f32(d));
    q32_pack(code, qs, qh);
}

static void q32_encode_q4_0(const float *x, uint8_t *b) { q32_encode_centred(x, 8, b, b + 2, NULL); }

static void q32_encode_q5_0(const float *x, uint8_t *b) { q32_encode_centred(x, 16, b, b + 6, b + 2); }

/* Q4_1 (top = 15) and Q5_1 (top = 31): codes count steps above the minimum. */
static void q32_encode_offset(const float *x, int top, uint8_t *b, uint8_t *qs, uint8_t *qh)
{
    int32_t code[32];
    float min = x[0], max = x[0];
    for (int j = 1; j < 32; j++) {
        min = x[j] < min ? x[j] : min;
        max = x[j] > max ? x[j] : max;
    }
    float d = pn_divf(pn_subf(max, min), (float)top), id = q32_inverse(d);
    for (int j = 0; j < 32; j++)
        code[j] = pn_trunc_clamp(pn_addf(pn_mulf(pn_subf(x[j], min), id), 0.5f), 0, top);
    pn_put16(b, pn_f16_from_f32(d));
    pn_put16(b + 2, pn_f16_from_f32(min));
    q32_pack(code, qs, qh);
}

static void q32_encode_q4_1(const float *x, uint8_t *b) { q32_encode_offset(x, 15, b, b + 4, NULL); }

static void q32_encode_q5_1(const float *x, uint8_t *b) { q32_encode_offset(x, 31, b, b + 8, b + 4); }

/* Returns the f32 scale; *sum gets the sum of the codes. */
static float q32_encode_q8(const float *x, uint8_t *q, int32_t *sum)
{
    float d = pn_divf(q32_abs_max(x, 32), 127.0f), id = q32_inverse(d);
    *sum = 0;
    for (int j = 0; j < 32; j++) {
        int32_t v = pn_rha_clamp(pn_mulf(x[j], id), -127, 127);
        q[j] = (uint8_t)v;
        *sum += v;
    }
    return d;
}

static void q32_encode_q8_0(const float *x, uint8_t *b)
{
    int32_t sum;
    pn_put16(b, pn_f16_from_f32(q32_encode_q8(x, b + 2, &sum)));
}

static void q32_encode_q8_1(const float *x, uint8_t *b)
{
    int32_t sum;
    float d = q32_encode_q8(x, b + 4, &sum);
    pn_put16(b, pn_f16_from_f32(d));
    pn_put16(b + 2, pn_f16_from_f32(pn_mulf(d, (float)sum)));
}

/* Sign bits; the scale is the mean magnitude. */
static void q32_encode_q1_0(const float *x, uint8_t *b)
{
    float sum = 0;
    memset(b + 2, 0, 16);
    for (int j = 0; j < 128; j++) {
        sum = pn_addf(sum, x[j] < 0 ? -x[j] : x[j]);
        if (x[j] >= 0)
            b[2 + j / 8] |= (uint8_t)(1 << j % 8);
    }
    pn_put16(b, pn_f16_from_f32(pn_divf(sum, 128.0f)));
}

static void q32_encode_q2_0(const float *x, uint8_t *b)
{
    float d = q32_abs_max(x, 64), id = q32_inverse(d);
    memset(b + 2, 0, 16);
    for (int j = 0; j < 64; j++)
        b[2 + j / 4] |= (uint8_t)((pn_rha_clamp(pn_mulf(x[j], id), -1, 2) + 1) << 2 * (j % 4));
    pn_put16(b, pn_f16_from_f32(d));
}

PN_INTERNAL pn_block_encode pn_block_encode_32(uint32_t type)
{
    switch (type) {
    case PN_DTYPE_Q4_0: return q32_encode_q4_0;
    case PN_DTYPE_Q4_1: return q32_encode_q4_1;
    case PN_DTYPE_Q5_0: return q32_encode_q5_0;
    case PN_DTYPE_Q5_1: return q32_encode_q5_1;
    case PN_DTYPE_Q8_0: return q32_encode_q8_0;
    case PN_DTYPE_Q8_1: return q32_encode_q8_1;
    case PN_DTYPE_Q1_0: return q32_encode_q1_0;
    case PN_DTYPE_Q2_0: return q32_encode_q2_0;
    default: return NULL;
    }
}
