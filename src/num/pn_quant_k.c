/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_quant_k.c - decoders of the K-quants: 256 elements a block, scales for every 16 or 32.
 *
 *             bytes  layout (offset:size)                                     x
 *     Q2_K      84   scales 0:16, qs 16:64, d 80:2, dmin 82:2                 d s c - dmin m
 *     Q3_K     110   hmask 0:32, qs 32:64, scales 96:12, d 108:2              d s q
 *     Q4_K     144   d 0:2, dmin 2:2, scales 4:12, qs 16:128                  d s c - dmin m
 *     Q5_K     176   d 0:2, dmin 2:2, scales 4:12, qh 16:32, qs 48:128        d s c - dmin m
 *     Q6_K     210   ql 0:128, qh 128:64, scales int8 192:16, d 208:2         d s q
 *     Q8_K     292   d f32 0:4, q int8 4:256, bsums int16 260:32              d q
 *
 * Low bits lie in planes: of 32 elements within each half of 128 (Q2_K, Q3_K, Q6_K) or within each
 * 64 (Q4_K, Q5_K), so that one shift of a whole vector serves a plane.  The scale products are exact;
 * the only rounding is the subtraction of the minimum.
 *
 * The packing of 6-bit scales in 12 bytes is shared with pn_quant_kenc.c, the encoders.
 */
#include "num/pn_quant.h"

#include "num/pn_half.h"

/* Two bits of element e where 32 elements share a byte plane, four planes in each 32 bytes. */
static uint32_t k_two_bits(const uint8_t *qs, int e)
{
    return qs[e / 128 * 32 + e % 32] >> 2 * (e % 128 / 32) & 3;
}

static void k_decode_q2(const uint8_t *b, float *y)
{
    float d = pn_f32_from_f16(pn_le16(b + 80)), dmin = pn_f32_from_f16(pn_le16(b + 82));
    for (int s = 0; s < 16; s++) {
        float scale = d * (float)(b[s] & 15), min = dmin * (float)(b[s] >> 4);
        for (int e = 16 * s; e < 16 * s + 16; e++)
            y[e] = scale * (float)k_two_bits(b + 16, e) - min;
    }
}

static void k_decode_q3(const uint8_t *b, float *y)
{
    const uint8_t *hmask = b, *sc = b + 96;
    float d = pn_f32_from_f16(pn_le16(b + 108));
    for (int s = 0; s < 16; s++) {
        int low = s < 8 ? sc[s] & 15 : sc[s - 8] >> 4, high = sc[8 + s % 4] >> 2 * (s / 4) & 3;
        float scale = d * (float)(low + 16 * high - 32);
        for (int e = 16 * s; e < 16 * s + 16; e++) {
            int set = hmask[e % 32] >> e / 32 & 1;          /* clear means: subtract 4 */
            y[e] = scale * (float)((int)k_two_bits(b + 32, e) - 4 * (1 - set));
        }
    }
}

PN_INTERNAL void pn_k_scale_min(const uint8_t *sc, int s, uint32_t *scale, uint32_t *min)
{
    if (s < 4) {
        *scale = sc[s] & 63;
        *min = sc[s + 4] & 63;
    } else {
        *scale = (uint32_t)((sc[s + 4] & 15) | sc[s - 4] >> 6 << 4);
        *min = (uint32_t)(sc[s + 4] >> 4 | sc[s] >> 6 << 4);
    }
}

/* Q4_K and Q5_K; qh is NULL or holds the fifth bits. */
static void k_decode_q45(const uint8_t *b, const uint8_t *qh, const uint8_t *qs, float *y)
{
    float d = pn_f32_from_f16(pn_le16(b)), dmin = pn_f32_from_f16(pn_le16(b + 2));
    for (int s = 0; s < 8; s++) {
        uint32_t sc, m;
        pn_k_scale_min(b + 4, s, &sc, &m);
        float scale = d * (float)sc, min = dmin * (float)m;
        for (int j = 0; j < 32; j++) {
            uint32_t c = qs[s / 2 * 32 + j] >> 4 * (s % 2) & 15;
            if (qh)
                c |= (uint32_t)(qh[j] >> s & 1) << 4;
            y[32 * s + j] = scale * (float)c - min;
        }
    }
}

static void k_decode_q4(const uint8_t *b, float *y) { k_decode_q45(b, NULL, b + 16, y); }

static void k_decode_q5(const uint8_t *b, float *y) { k_decode_q45(b, b + 16, b + 48, y); }

static void k_decode_q6(const uint8_t *b, float *y)
{
    float d = pn_f32_from_f16(pn_le16(b + 208));
    for (int e = 0; e < 256; e++) {
        int n = e / 128, plane = e % 128 / 32, l = e % 32;
        int low = b[64 * n + l + 32 * (plane % 2)] >> 4 * (plane / 2) & 15;
        int high = b[128 + 32 * n + l] >> 2 * plane & 3;
        y[e] = d * (float)(int8_t)b[192 + e / 16] * (float)(low + 16 * high - 32);
    }
}

static void k_decode_q8(const uint8_t *b, float *y)
{
    float d = pn_f32_from_bits(pn_le32(b));
    for (int e = 0; e < 256; e++)
        y[e] = d * (float)(int8_t)b[4 + e];
}

PN_INTERNAL pn_block_decode pn_block_decode_k(uint32_t type)
{
    switch (type) {
    case PN_DTYPE_Q2_K: return k_decode_q2;
    case PN_DTYPE_Q3_K: return k_decode_q3;
    case PN_DTYPE_Q4_K: return k_decode_q4;
    case PN_DTYPE_Q5_K: return k_decode_q5;
    case PN_DTYPE_Q6_K: return k_decode_q6;
    case PN_DTYPE_Q8_K: return k_decode_q8;
    default: return NULL;
    }
}
