/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_unpack.c - every quantised format as integer codes, integer scales and f32 factors.
 *
 * Plain C with one function a format: the definition that the vector unpackers are tested against.
 * Layouts are those of docs/formats.md.  Fractional steps are made integer by a power of two that
 * goes into the factor, where it is exact: IQ2 counts in eighths of d, IQ3_XXS in quarters, IQ1 in
 * eighths.
 */
#include "cpu/pn_cpu_unpack.h"

#include "num/pn_half.h"
#include "num/pn_tab_iq.h"

static float unpack_f16(const uint8_t *p) { return pn_f32_from_f16(pn_le16(p)); }

PN_INTERNAL pn_cpu_form pn_cpu_form_of(uint32_t dtype)
{
    switch (dtype) {
    case PN_DTYPE_Q4_0: return (pn_cpu_form){PN_CPU_B32, 0, 8, 15};
    case PN_DTYPE_Q4_1: return (pn_cpu_form){PN_CPU_B32, 1, 0, 15};
    case PN_DTYPE_Q5_0: return (pn_cpu_form){PN_CPU_B32, 0, 16, 31};
    case PN_DTYPE_Q5_1: return (pn_cpu_form){PN_CPU_B32, 1, 0, 31};
    case PN_DTYPE_Q8_0: return (pn_cpu_form){PN_CPU_B32, 0, 128, 255};
    case PN_DTYPE_IQ4_NL: return (pn_cpu_form){PN_CPU_B32, 0, 128, 255};
    case PN_DTYPE_MXFP4: return (pn_cpu_form){PN_CPU_B32, 0, 12, 24};
    case PN_DTYPE_NVFP4: return (pn_cpu_form){PN_CPU_B16, 0, 12, 24};
    case PN_DTYPE_Q1_0: return (pn_cpu_form){PN_CPU_B32, 0, 1, 2};
    case PN_DTYPE_Q2_0: return (pn_cpu_form){PN_CPU_B32, 0, 1, 3};
    case PN_DTYPE_Q2_K: return (pn_cpu_form){PN_CPU_B256, 1, 0, 3};
    case PN_DTYPE_Q3_K: return (pn_cpu_form){PN_CPU_B256, 0, 4, 7};
    case PN_DTYPE_Q4_K: return (pn_cpu_form){PN_CPU_B256, 1, 0, 15};
    case PN_DTYPE_Q5_K: return (pn_cpu_form){PN_CPU_B256, 1, 0, 31};
    case PN_DTYPE_Q6_K: return (pn_cpu_form){PN_CPU_B256, 0, 32, 63};
    case PN_DTYPE_IQ2_XXS:
    case PN_DTYPE_IQ2_XS:
    case PN_DTYPE_IQ2_S:
    case PN_DTYPE_IQ3_XXS: return (pn_cpu_form){PN_CPU_B256, 0, 64, 126};
    case PN_DTYPE_IQ3_S: return (pn_cpu_form){PN_CPU_B256, 0, 16, 31};
    case PN_DTYPE_IQ1_S:
    case PN_DTYPE_IQ1_M: return (pn_cpu_form){PN_CPU_B256, 0, 9, 18};
    case PN_DTYPE_IQ4_XS: return (pn_cpu_form){PN_CPU_B256, 0, 128, 255};
    case PN_DTYPE_TQ1_0:
    case PN_DTYPE_TQ2_0: return (pn_cpu_form){PN_CPU_B256, 0, 1, 3};
    default: return (pn_cpu_form){PN_CPU_FLOAT, 0, 0, 0};
    }
}

/* ------------------------------------------------------------------------------------------
 * Blocks of 32
 * ------------------------------------------------------------------------------------------ */

/* 16 bytes of nibbles: low ones are elements 0..15, high ones 16..31. */
static void unpack_nibbles(const uint8_t *q, int8_t *w, int off)
{
    for (int i = 0; i < 16; i++) {
        w[i] = (int8_t)((q[i] & 15) - off);
        w[i + 16] = (int8_t)((q[i] >> 4) - off);
    }
}

static void unpack_nibbles_high(const uint8_t *q, uint32_t high, int8_t *w, int off)
{
    for (int i = 0; i < 16; i++) {
        w[i] = (int8_t)(((q[i] & 15) | (high >> i & 1) << 4) - (uint32_t)off);
        w[i + 16] = (int8_t)(((q[i] >> 4) | (high >> (i + 16) & 1) << 4) - (uint32_t)off);
    }
}

static void unpack_nibbles_tab(const uint8_t *q, const int8_t *tab, int8_t *w, int half)
{
    for (int i = 0; i < half; i++) {
        w[i] = tab[q[i] & 15];
        w[i + half] = tab[q[i] >> 4];
    }
}

static void unpack_b32(uint32_t dtype, const uint8_t *p, pn_cpu_chunk *c, size_t b)
{
    int8_t *w = c->w + 32 * b;
    switch (dtype) {
    case PN_DTYPE_Q4_0:
        unpack_nibbles(p + 2, w, 8);
        break;
    case PN_DTYPE_Q4_1:
        unpack_nibbles(p + 4, w, 0);
        c->m[b] = unpack_f16(p + 2);
        break;
    case PN_DTYPE_Q5_0:
        unpack_nibbles_high(p + 6, pn_le32(p + 2), w, 16);
        break;
    case PN_DTYPE_Q5_1:
        unpack_nibbles_high(p + 8, pn_le32(p + 4), w, 0);
        c->m[b] = unpack_f16(p + 2);
        break;
    case PN_DTYPE_Q8_0:
        memcpy(w, p + 2, 32);
        break;
    case PN_DTYPE_IQ4_NL:
        unpack_nibbles_tab(p + 2, pn_tab_iq4nl(), w, 16);
        break;
    default: /* MXFP4 */
        unpack_nibbles_tab(p + 1, pn_tab_fp4(), w, 16);
        c->d[b] = pn_f32_from_e8m0_half(p[0]);
        return;
    }
    c->d[b] = unpack_f16(p);
}

/* 128 signs with one scale: four blocks of 32. */
static void unpack_q1_0(const uint8_t *p, pn_cpu_chunk *c, size_t e)
{
    for (size_t i = 0; i < 128; i++)
        c->w[e + i] = (p[2 + i / 8] >> (i % 8) & 1) ? 1 : -1;
    for (size_t b = 0; b < 4; b++)
        c->d[e / 32 + b] = unpack_f16(p);
}

static void unpack_q2_0(const uint8_t *p, pn_cpu_chunk *c, size_t e)
{
    for (size_t i = 0; i < 64; i++)
        c->w[e + i] = (int8_t)((p[2 + i / 4] >> (2 * (i % 4)) & 3) - 1);
    c->d[e / 32] = c->d[e / 32 + 1] = unpack_f16(p);
}

static void unpack_nvfp4(const uint8_t *p, pn_cpu_chunk *c, size_t e)
{
    for (size_t s = 0; s < 4; s++) {
        unpack_nibbles_tab(p + 4 + 8 * s, pn_tab_fp4(), c->w + e + 16 * s, 8);
        c->d[e / 16 + s] = pn_f32_from_ue4m3_half(p[s]);
    }
}

/* ------------------------------------------------------------------------------------------
 * K-quants
 * ------------------------------------------------------------------------------------------ */

/* Two bits of each byte of 64, in planes of 32 elements (Q2_K, Q3_K, TQ2_0). */
static int unpack_plane2(const uint8_t *q, int e)
{
    return q[32 * (e / 128) + e % 32] >> (2 * (e % 128 / 32)) & 3;
}

static void unpack_q2_k(const uint8_t *p, pn_cpu_chunk *c)
{
    for (int e = 0; e < 256; e++)
        c->w[e] = (int8_t)unpack_plane2(p + 16, e);
    for (int t = 0; t < 16; t++) {
        c->sc[t] = p[t] & 15;
        c->mn[t] = p[t] >> 4;
    }
    c->d[0] = unpack_f16(p + 80);
    c->m[0] = -unpack_f16(p + 82);
}

static void unpack_q3_k(const uint8_t *p, pn_cpu_chunk *c)
{
    const uint8_t *s = p + 96;
    for (int e = 0; e < 256; e++)
        c->w[e] = (int8_t)(unpack_plane2(p + 32, e) - ((p[e % 32] >> (e / 32) & 1) ? 0 : 4));
    for (int t = 0; t < 16; t++) {
        int low = t < 8 ? s[t] & 15 : s[t - 8] >> 4, high = s[8 + t % 4] >> (2 * (t / 4)) & 3;
        c->sc[t] = (int16_t)((low | high << 4) - 32);
    }
    c->d[0] = unpack_f16(p + 108);
}

static void unpack_scales_k4(const uint8_t *b, pn_cpu_chunk *c)
{
    for (int s = 0; s < 8; s++) {
        int sc = s < 4 ? b[s] & 63 : (b[s + 4] & 15) | (b[s - 4] >> 6) << 4;
        int mn = s < 4 ? b[s + 4] & 63 : (b[s + 4] >> 4) | (b[s] >> 6) << 4;
        c->sc[2 * s] = c->sc[2 * s + 1] = (int16_t)sc;
        c->mn[2 * s] = c->mn[2 * s + 1] = (int16_t)mn;
    }
}

static void unpack_q45_k(const uint8_t *p, const uint8_t *qh, const uint8_t *qs, pn_cpu_chunk *c)
{
    for (int e = 0; e < 256; e++) {
        int v = qs[32 * (e / 64) + e % 32];
        v = e % 64 < 32 ? v & 15 : v >> 4;
        if (qh)
            v |= (qh[e % 32] >> (e / 32) & 1) << 4;
        c->w[e] = (int8_t)v;
    }
    unpack_scales_k4(p + 4, c);
    c->d[0] = unpack_f16(p);
    c->m[0] = -unpack_f16(p + 2);
}

static void unpack_q6_k(const uint8_t *p, pn_cpu_chunk *c)
{
    for (int e = 0; e < 256; e++) {
        int n = e / 128, plane = e % 128 / 32, l = e % 32;
        int low = p[64 * n + l + 32 * (plane % 2)] >> (plane < 2 ? 0 : 4) & 15;
        int high = p[128 + 32 * n + l] >> (2 * plane) & 3;
        c->w[e] = (int8_t)((low | high << 4) - 32);
    }
    for (int t = 0; t < 16; t++)
        c->sc[t] = (int8_t)p[192 + t];
    c->d[0] = unpack_f16(p + 208);
}

/* ------------------------------------------------------------------------------------------
 * IQ and ternary
 * ------------------------------------------------------------------------------------------ */

static void unpack_iq4_xs(const uint8_t *p, pn_cpu_chunk *c)
{
    for (int g = 0; g < 8; g++) {
        int low = p[4 + g / 2] >> (4 * (g % 2)) & 15, high = pn_le16(p + 2) >> (2 * g) & 3;
        unpack_nibbles_tab(p + 8 + 16 * g, pn_tab_iq4nl(), c->w + 32 * g, 16);
        c->sc[2 * g] = c->sc[2 * g + 1] = (int16_t)((low | high << 4) - 32);
    }
    c->d[0] = unpack_f16(p);
}

/* Eight magnitudes with signs: bit j of `signs` negates element j. */
static void unpack_octet(int8_t *w, uint64_t grid, unsigned signs)
{
    for (int j = 0; j < 8; j++) {
        int v = (int)(grid >> (8 * j) & 255);
        w[j] = (int8_t)(signs >> j & 1 ? -v : v);
    }
}

static uint64_t unpack_pair(const uint32_t *grid, unsigned i, unsigned j)
{
    return grid[i] | (uint64_t)grid[j] << 32;
}

static void unpack_iq2_xxs(const uint8_t *p, pn_cpu_chunk *c)
{
    const uint64_t *grid = pn_grid_iq2_xxs();
    const uint8_t *ks = pn_tab_ksigns();
    for (int k = 0; k < 32; k++) {
        const uint8_t *g = p + 2 + 8 * (k / 4);
        uint32_t word = pn_le32(g + 4);
        unpack_octet(c->w + 8 * k, grid[g[k % 4]], ks[word >> (7 * (k % 4)) & 127]);
        c->sc[k / 2] = (int16_t)(2 * (word >> 28) + 1);
    }
    c->d[0] = unpack_f16(p) * 0.125f;
}

static void unpack_iq2_xs(const uint8_t *p, pn_cpu_chunk *c)
{
    const uint64_t *grid = pn_grid_iq2_xs();
    const uint8_t *ks = pn_tab_ksigns();
    for (int k = 0; k < 32; k++) {
        unsigned h = pn_le16(p + 2 + 2 * k);
        unpack_octet(c->w + 8 * k, grid[h & 511], ks[h >> 9]);
        c->sc[k / 2] = (int16_t)(2 * (p[66 + k / 4] >> (4 * (k % 4 / 2)) & 15) + 1);
    }
    c->d[0] = unpack_f16(p) * 0.125f;
}

static void unpack_iq2_s(const uint8_t *p, pn_cpu_chunk *c)
{
    const uint64_t *grid = pn_grid_iq2_s();
    for (int k = 0; k < 32; k++) {
        unsigned i = p[2 + k] | (p[66 + k / 4] >> (2 * (k % 4)) & 3u) << 8;
        unpack_octet(c->w + 8 * k, grid[i], p[34 + k]);
        c->sc[k / 2] = (int16_t)(2 * (p[74 + k / 4] >> (4 * (k % 4 / 2)) & 15) + 1);
    }
    c->d[0] = unpack_f16(p) * 0.125f;
}

static void unpack_iq3_xxs(const uint8_t *p, pn_cpu_chunk *c)
{
    const uint32_t *grid = pn_grid_iq3_xxs();
    const uint8_t *ks = pn_tab_ksigns();
    for (int k = 0; k < 32; k++) {
        uint32_t word = pn_le32(p + 66 + 4 * (k / 4));
        unpack_octet(c->w + 8 * k, unpack_pair(grid, p[2 + 2 * k], p[3 + 2 * k]),
                     ks[word >> (7 * (k % 4)) & 127]);
        c->sc[k / 2] = (int16_t)(2 * (word >> 28) + 1);
    }
    c->d[0] = unpack_f16(p) * 0.25f;
}

static void unpack_iq3_s(const uint8_t *p, pn_cpu_chunk *c)
{
    const uint32_t *grid = pn_grid_iq3_s();
    for (int k = 0; k < 32; k++) {
        unsigned high = p[66 + k / 4] >> (2 * (k % 4));
        unsigned i = p[2 + 2 * k] | (high & 1) << 8, j = p[3 + 2 * k] | (high >> 1 & 1) << 8;
        unpack_octet(c->w + 8 * k, unpack_pair(grid, i, j), p[74 + k]);
        c->sc[k / 2] = (int16_t)(2 * (p[106 + k / 8] >> (4 * (k / 4 % 2)) & 15) + 1);
    }
    c->d[0] = unpack_f16(p);
}

/* 8 (G + delta) with delta = +-1/8. */
static void unpack_octet_iq1(int8_t *w, uint64_t grid, int delta)
{
    for (int j = 0; j < 8; j++)
        w[j] = (int8_t)(8 * (int8_t)(grid >> (8 * j) & 255) + delta);
}

static void unpack_iq1_s(const uint8_t *p, pn_cpu_chunk *c)
{
    const uint64_t *grid = pn_grid_iq1();
    for (int k = 0; k < 32; k++) {
        unsigned h = pn_le16(p + 34 + 2 * (k / 4));
        unpack_octet_iq1(c->w + 8 * k, grid[p[2 + k] | (h >> (3 * (k % 4)) & 7) << 8],
                         h & 0x8000 ? -1 : 1);
        c->sc[k / 2] = (int16_t)(2 * (h >> 12 & 7) + 1);
    }
    c->d[0] = unpack_f16(p) * 0.125f;
}

static void unpack_iq1_m(const uint8_t *p, pn_cpu_chunk *c)
{
    const uint64_t *grid = pn_grid_iq1();
    unsigned d = 0;
    for (int k = 0; k < 32; k++) {
        unsigned h = p[32 + k / 2] >> (4 * (k % 2)) & 15, t = (unsigned)k / 2;
        unpack_octet_iq1(c->w + 8 * k, grid[p[k] | (h & 7) << 8], h & 8 ? -1 : 1);
        c->sc[t] = (int16_t)(2 * (pn_le16(p + 48 + 2 * (t / 4)) >> (3 * (t % 4)) & 7) + 1);
    }
    for (unsigned i = 0; i < 4; i++)
        d |= (unsigned)(pn_le16(p + 48 + 2 * i) >> 12) << (4 * i);
    c->d[0] = pn_f32_from_f16((uint16_t)d) * 0.125f;
}

static void unpack_tq1_0(const uint8_t *p, pn_cpu_chunk *c)
{
    static const uint8_t pow3[5] = {1, 3, 9, 27, 81};
    for (int e = 0; e < 256; e++) {
        int byte = e < 160 ? e % 32 : e < 240 ? 32 + (e - 160) % 16 : 48 + (e - 240) % 4;
        int n = e < 160 ? e / 32 : e < 240 ? (e - 160) / 16 : (e - 240) / 4;
        uint8_t v = (uint8_t)(p[byte] * pow3[n]);
        c->w[e] = (int8_t)((3 * v >> 8) - 1);
    }
    for (int t = 0; t < 16; t++)
        c->sc[t] = 1;
    c->d[0] = unpack_f16(p + 52);
}

static void unpack_tq2_0(const uint8_t *p, pn_cpu_chunk *c)
{
    for (int e = 0; e < 256; e++)
        c->w[e] = (int8_t)(unpack_plane2(p, e) - 1);
    for (int t = 0; t < 16; t++)
        c->sc[t] = 1;
    c->d[0] = unpack_f16(p + 64);
}

static void unpack_b256(uint32_t dtype, const uint8_t *p, pn_cpu_chunk *c)
{
    switch (dtype) {
    case PN_DTYPE_Q2_K: unpack_q2_k(p, c); return;
    case PN_DTYPE_Q3_K: unpack_q3_k(p, c); return;
    case PN_DTYPE_Q4_K: unpack_q45_k(p, NULL, p + 16, c); return;
    case PN_DTYPE_Q5_K: unpack_q45_k(p, p + 16, p + 48, c); return;
    case PN_DTYPE_Q6_K: unpack_q6_k(p, c); return;
    case PN_DTYPE_IQ4_XS: unpack_iq4_xs(p, c); return;
    case PN_DTYPE_IQ2_XXS: unpack_iq2_xxs(p, c); return;
    case PN_DTYPE_IQ2_XS: unpack_iq2_xs(p, c); return;
    case PN_DTYPE_IQ2_S: unpack_iq2_s(p, c); return;
    case PN_DTYPE_IQ3_XXS: unpack_iq3_xxs(p, c); return;
    case PN_DTYPE_IQ3_S: unpack_iq3_s(p, c); return;
    case PN_DTYPE_IQ1_S: unpack_iq1_s(p, c); return;
    case PN_DTYPE_IQ1_M: unpack_iq1_m(p, c); return;
    case PN_DTYPE_TQ1_0: unpack_tq1_0(p, c); return;
    default: unpack_tq2_0(p, c); return;
    }
}

PN_INTERNAL void pn_cpu_unpack(uint32_t dtype, const void *row, size_t e0, size_t n, pn_cpu_chunk *c)
{
    const pn_dtype_info *info = pn_dtype_get(dtype);
    size_t step = info->block_elems;
    const uint8_t *p = (const uint8_t *)row + e0 / step * info->block_bytes;
    for (size_t e = 0; e < n; e += step, p += info->block_bytes) {
        switch (dtype) {
        case PN_DTYPE_Q1_0: unpack_q1_0(p, c, e); break;
        case PN_DTYPE_Q2_0: unpack_q2_0(p, c, e); break;
        case PN_DTYPE_NVFP4: unpack_nvfp4(p, c, e); break;
        default:
            if (step == 32)
                unpack_b32(dtype, p, c, e / 32);
            else
                unpack_b256(dtype, p, c);
        }
    }
}
