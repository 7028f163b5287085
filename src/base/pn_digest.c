/* SPDX-License-Identifier: AGPL-3.0-only */
#include "base/pn_digest.h"

/* RFC 7693, 2.6 and 2.7. */
static const uint32_t digest_iv[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
static const uint8_t digest_sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

static uint32_t digest_turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void digest_mix(uint32_t v[16], int a, int b, int c, int d, uint32_t x, uint32_t y)
{
    v[a] += v[b] + x;
    v[d] = digest_turn(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = digest_turn(v[b] ^ v[c], 12);
    v[a] += v[b] + y;
    v[d] = digest_turn(v[d] ^ v[a], 8);
    v[c] += v[d];
    v[b] = digest_turn(v[b] ^ v[c], 7);
}

/* d->block, which ends `total` bytes of input. */
static void digest_block(pn_digest *d, bool last)
{
    uint32_t v[16], m[16];
    for (int i = 0; i < 8; i++) {
        v[i] = d->h[i];
        v[i + 8] = digest_iv[i];
    }
    for (int i = 0; i < 16; i++)
        m[i] = pn_le32(d->block + 4 * i);
    v[12] ^= (uint32_t)d->total;
    v[13] ^= (uint32_t)(d->total >> 32);
    v[14] ^= last ? UINT32_MAX : 0;
    for (int r = 0; r < 10; r++) {
        const uint8_t *s = digest_sigma[r];
        for (int i = 0; i < 4; i++)
            digest_mix(v, i, i + 4, i + 8, i + 12, m[s[2 * i]], m[s[2 * i + 1]]);
        for (int i = 0; i < 4; i++)
            digest_mix(v, i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
    }
    for (int i = 0; i < 8; i++)
        d->h[i] ^= v[i] ^ v[i + 8];
}

PN_INTERNAL void pn_digest_begin(pn_digest *d, size_t n_out)
{
    *d = (pn_digest){.n = 0};
    memcpy(d->h, digest_iv, sizeof d->h);
    d->h[0] ^= 0x01010000u ^ (uint32_t)n_out;
}

/* A full block waits for more: the last one is mixed differently. */
PN_INTERNAL void pn_digest_add(pn_digest *d, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    while (n) {
        if (d->n == sizeof d->block) {
            d->total += d->n;
            digest_block(d, false);
            d->n = 0;
        }
        size_t take = PN_MIN(n, sizeof d->block - d->n);
        memcpy(d->block + d->n, p, take);
        d->n += (uint32_t)take;
        p += take;
        n -= take;
    }
}

PN_INTERNAL void pn_digest_end(pn_digest *d, void *out, size_t n_out)
{
    uint8_t *o = out;
    memset(d->block + d->n, 0, sizeof d->block - d->n);
    d->total += d->n;
    digest_block(d, true);
    for (size_t i = 0; i < n_out; i++)
        o[i] = (uint8_t)(d->h[i / 4] >> 8 * (i % 4));
}

PN_INTERNAL void pn_digest_add_u64(pn_digest *d, uint64_t v)
{
    uint8_t b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)(v >> 8 * i);
    pn_digest_add(d, b, sizeof b);
}
