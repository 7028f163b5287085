/* SPDX-License-Identifier: AGPL-3.0-only */
#include "base/pn_hash.h"

/* 64 x 64 -> 128 bits, folded: every input bit reaches every output bit. */
static uint64_t hash_fold(uint64_t a, uint64_t b)
{
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    uint64_t ll = al * bl, lh = al * bh, hl = ah * bl, hh = ah * bh;
    uint64_t mid = (ll >> 32) + (uint32_t)lh + (uint32_t)hl;
    uint64_t lo = (mid << 32) | (uint32_t)ll, hi = hh + (lh >> 32) + (hl >> 32) + (mid >> 32);
    return lo ^ hi;
}

PN_INTERNAL uint64_t pn_hash(const void *bytes, size_t n, uint64_t seed)
{
    const uint8_t *p = bytes;
    const uint64_t k0 = 0x9e3779b97f4a7c15u, k1 = 0xd1b54a32d192ed03u;      /* odd, from golden ratios */
    uint64_t h = seed ^ k0, left = n;
    for (; left >= 8; left -= 8, p += 8)
        h = hash_fold(h ^ pn_le64(p), k1);
    uint64_t tail = 0;
    for (size_t i = 0; i < left; i++)
        tail |= (uint64_t)p[i] << (8 * i);
    h = hash_fold(h ^ tail, k0);
    return hash_fold(h ^ (uint64_t)n, k1);
}

/* t[0] is the table of one byte; t[k] is what a byte does that k more follow. */
PN_INTERNAL void pn_crc32c_init(pn_crc32c *c)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t r = i;
        for (int bit = 0; bit < 8; bit++)
            r = r >> 1 ^ (r & 1 ? 0x82f63b78u : 0);         /* 0x1edc6f41, reflected */
        c->t[0][i] = r;
    }
    for (uint32_t k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++)
            c->t[k][i] = c->t[k - 1][i] >> 8 ^ c->t[0][c->t[k - 1][i] & 255];
}

PN_INTERNAL uint32_t pn_crc32c_add(const pn_crc32c *c, uint32_t crc, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    uint32_t r = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t a = pn_le32(p) ^ r, b = pn_le32(p + 4);
        r = c->t[7][a & 255] ^ c->t[6][a >> 8 & 255] ^ c->t[5][a >> 16 & 255] ^ c->t[4][a >> 24] ^
            c->t[3][b & 255] ^ c->t[2][b >> 8 & 255] ^ c->t[1][b >> 16 & 255] ^ c->t[0][b >> 24];
    }
    for (; n; n--)
        r = r >> 8 ^ c->t[0][(r ^ *p++) & 255];
    return ~r;
}

PN_INTERNAL void pn_map_init(pn_map *m, pn_mem *mem, pn_account account)
{
    *m = (pn_map){.mem = mem, .account = account};
    m->seed = (uint64_t)(uintptr_t)m * 0x9e3779b97f4a7c15u;    /* order is never observable */
}

PN_INTERNAL void pn_map_fini(pn_map *m)
{
    if (m->slots)
        pn_mem_free(m->mem, m->account, m->slots, m->cap * sizeof *m->slots);
    m->slots = NULL;
    m->cap = m->count = 0;
}

/* The slot that holds key, or the free one where it belongs. */
static pn_map_slot *map_probe(const pn_map *m, const char *key, size_t len, uint64_t h)
{
    uint32_t mask = m->cap - 1, tag = (uint32_t)(h >> 32);
    for (uint32_t i = (uint32_t)h & mask;; i = (i + 1) & mask) {
        pn_map_slot *s = &m->slots[i];
        if (!s->key || (s->tag == tag && s->len == len && memcmp(s->key, key, len) == 0))
            return s;
    }
}

PN_INTERNAL bool pn_map_reserve(pn_map *m, uint32_t n)
{
    uint64_t cap = 16;
    while (cap * 3 / 4 < n)
        cap *= 2;
    if (cap <= m->cap)
        return true;
    if (cap > UINT32_MAX)
        return false;
    pn_map old = *m;
    pn_map_slot *slots = pn_mem_calloc(m->mem, m->account, cap, sizeof *slots);
    if (!slots)
        return false;
    m->slots = slots;
    m->cap = (uint32_t)cap;
    for (uint32_t i = 0; i < old.cap; i++) {
        const pn_map_slot *s = &old.slots[i];
        if (s->key)
            *map_probe(m, s->key, s->len, pn_hash(s->key, s->len, m->seed)) = *s;
    }
    if (old.slots)
        pn_mem_free(m->mem, m->account, old.slots, old.cap * sizeof *old.slots);
    return true;
}

PN_INTERNAL uint32_t *pn_map_find(const pn_map *m, const char *key, size_t len)
{
    if (!m->count)
        return NULL;
    pn_map_slot *s = map_probe(m, key, len, pn_hash(key, len, m->seed));
    return s->key ? &s->value : NULL;
}

PN_INTERNAL uint32_t *pn_map_put(pn_map *m, const char *key, size_t len, uint32_t value, bool *existed)
{
    if (len > UINT32_MAX || !pn_map_reserve(m, m->count + 1))
        return NULL;
    uint64_t h = pn_hash(key, len, m->seed);
    pn_map_slot *s = map_probe(m, key, len, h);
    if (existed)
        *existed = s->key != NULL;
    if (!s->key) {
        *s = (pn_map_slot){.key = key, .len = (uint32_t)len, .value = value, .tag = (uint32_t)(h >> 32)};
        m->count++;
    }
    return &s->value;
}
