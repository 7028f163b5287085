/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_quant_iq.c - decoders of the grid formats: IQ1, IQ2, IQ3 (256 elements a block).
 *
 * A group of 8 (or 4) weights is a point of a grid; the block stores its index, and for IQ2 and IQ3
 * the signs.  Below, k counts octets (0..31), g = k / 4 groups of 32, l = k mod 4.  nu is a small
 * integer scale.  Scales with fractions are applied as d * (2 nu + 1) * 2^-n, which is exact.
 *
 *                bytes  layout (offset:size)
 *     IQ2_XXS      66   d 0:2, per group 4 index bytes and a u32: 4 x 7 sign bits, 4 bits nu
 *     IQ2_XS       74   d 0:2, u16 per octet: 9 bits index, 7 sign bits; scales 66:8
 *     IQ2_S        82   d 0:2, index 2:32, signs 34:32, index high 66:8, scales 74:8
 *     IQ3_XXS      98   d 0:2, index 2:64, u32 per group 66:32 as IQ2_XXS
 *     IQ3_S       110   d 0:2, index 2:64, index high 66:8, signs 74:32, scales 106:4
 *     IQ1_S        50   d 0:2, index 2:32, u16 per group 34:16: 4 x 3 bits index, 3 bits nu, shift
 *     IQ1_M        56   index 0:32, per octet 4 bits 32:16, scales and d 48:8
 *
 * There are no encoders: they need searches over neighbours in the grid, and an importance matrix.
 */
#include "num/pn_quant.h"

#include "num/pn_half.h"
#include "num/pn_tab_iq.h"

/* Eight weights: scale * element * sign. */
static void iq_octet(float *y, float scale, uint64_t grid, uint32_t signs)
{
    for (int j = 0; j < 8; j++) {
        float v = scale * (float)(grid >> 8 * j & 255);
        y[j] = signs >> j & 1 ? -v : v;
    }
}

/* The same for two points of a four-dimensional grid. */
static uint64_t iq_pair(uint32_t low, uint32_t high) { return low | (uint64_t)high << 32; }

static void iq_decode_iq2_xxs(const uint8_t *b, float *y)
{
    const uint64_t *grid = pn_grid_iq2_xxs();
    const uint8_t *ksigns = pn_tab_ksigns();
    float d = pn_f32_from_f16(pn_le16(b));
    for (int g = 0; g < 8; g++) {
        const uint8_t *p = b + 2 + 8 * g;
        uint32_t w = pn_le32(p + 4);
        float scale = d * (float)(2 * (w >> 28) + 1) * 0.125f;
        for (int l = 0; l < 4; l++)
            iq_octet(y + 32 * g + 8 * l, scale, grid[p[l]], ksigns[w >> 7 * l & 127]);
    }
}

static void iq_decode_iq2_xs(const uint8_t *b, float *y)
{
    const uint64_t *grid = pn_grid_iq2_xs();
    const uint8_t *ksigns = pn_tab_ksigns();
    float d = pn_f32_from_f16(pn_le16(b));
    for (int k = 0; k < 32; k++) {
        uint32_t h = pn_le16(b + 2 + 2 * k), nu = b[66 + k / 4] >> 4 * (k % 4 / 2) & 15;
        float scale = d * (float)(2 * nu + 1) * 0.125f;
        iq_octet(y + 8 * k, scale, grid[h & 511], ksigns[h >> 9]);
    }
}

static void iq_decode_iq2_s(const uint8_t *b, float *y)
{
    const uint64_t *grid = pn_grid_iq2_s();
    float d = pn_f32_from_f16(pn_le16(b));
    for (int k = 0; k < 32; k++) {
        uint32_t high = b[66 + k / 4] >> 2 * (k % 4) & 3, nu = b[74 + k / 4] >> 4 * (k % 4 / 2) & 15;
        float scale = d * (float)(2 * nu + 1) * 0.125f;
        iq_octet(y + 8 * k, scale, grid[b[2 + k] | high << 8], b[34 + k]);
    }
}

static void iq_decode_iq3_xxs(const uint8_t *b, float *y)
{
    const uint32_t *grid = pn_grid_iq3_xxs();
    const uint8_t *ksigns = pn_tab_ksigns();
    float d = pn_f32_from_f16(pn_le16(b));
    for (int k = 0; k < 32; k++) {
        uint32_t w = pn_le32(b + 66 + 4 * (k / 4));
        float scale = d * (float)(2 * (w >> 28) + 1) * 0.25f;
        uint64_t point = iq_pair(grid[b[2 + 2 * k]], grid[b[3 + 2 * k]]);
        iq_octet(y + 8 * k, scale, point, ksigns[w >> 7 * (k % 4) & 127]);
    }
}

static void iq_decode_iq3_s(const uint8_t *b, float *y)
{
    const uint32_t *grid = pn_grid_iq3_s();
    float d = pn_f32_from_f16(pn_le16(b));
    for (int k = 0; k < 32; k++) {
        uint32_t nu = b[106 + k / 8] >> 4 * (k / 4 % 2) & 15;
        uint32_t high = b[66 + k / 4] >> 2 * (k % 4);       /* a bit for each quartet */
        uint32_t low = grid[b[2 + 2 * k] | (high & 1) << 8];
        uint32_t up = grid[b[3 + 2 * k] | (high & 2) << 7];
        iq_octet(y + 8 * k, d * (float)(2 * nu + 1), iq_pair(low, up), b[74 + k]);
    }
}

/* Eight weights of IQ1: scale * (element +- 1/8). */
static void iq_octet_shifted(float *y, float scale, uint64_t grid, bool minus)
{
    float delta = minus ? -0.125f : 0.125f;
    for (int j = 0; j < 8; j++)
        y[j] = scale * ((float)(int8_t)(grid >> 8 * j & 255) + delta);
}

static void iq_decode_iq1_s(const uint8_t *b, float *y)
{
    const uint64_t *grid = pn_grid_iq1();
    float d = pn_f32_from_f16(pn_le16(b));
    for (int k = 0; k < 32; k++) {
        uint32_t h = pn_le16(b + 34 + 2 * (k / 4)), high = h >> 3 * (k % 4) & 7;
        float scale = d * (float)(2 * (h >> 12 & 7) + 1);
        iq_octet_shifted(y + 8 * k, scale, grid[b[2 + k] | high << 8], h >> 15);
    }
}

static void iq_decode_iq1_m(const uint8_t *b, float *y)
{
    const uint64_t *grid = pn_grid_iq1();
    uint32_t c[4], bits = 0;            /* the top nibbles of the scales spell d */
    for (int i = 0; i < 4; i++) {
        c[i] = pn_le16(b + 48 + 2 * i);
        bits |= c[i] >> 12 << 4 * i;
    }
    float d = pn_f32_from_f16((uint16_t)bits);
    for (int k = 0; k < 32; k++) {
        uint32_t h = b[32 + k / 2] >> 4 * (k % 2) & 15, nu = c[k / 8] >> 3 * (k / 2 % 4) & 7;
        iq_octet_shifted(y + 8 * k, d * (float)(2 * nu + 1), grid[b[k] | (h & 7) << 8], h >> 3);
    }
}

PN_INTERNAL pn_block_decode pn_block_decode_iq(uint32_t type)
{
    switch (type) {
    case PN_DTYPE_IQ2_XXS: return iq_decode_iq2_xxs;
    case PN_DTYPE_IQ2_XS: return iq_decode_iq2_xs;
    case PN_DTYPE_IQ2_S: return iq_decode_iq2_s;
    case PN_DTYPE_IQ3_XXS: return iq_decode_iq3_xxs;
    case PN_DTYPE_IQ3_S: return iq_decode_iq3_s;
    case PN_DTYPE_IQ1_S: return iq_decode_iq1_s;
    case PN_DTYPE_IQ1_M: return iq_decode_iq1_m;
    default: return NULL;
    }
}
