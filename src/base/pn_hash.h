/*
 * pn_hash.h - one hash function and one hash table: byte strings to 32-bit values; and a check sum.
 *
 * Used for metadata keys, tensor names and vocabularies.  Open addressing, linear probing, power of
 * two, at most 3/4 full; keys are borrowed (they point into the file or an arena that outlives the
 * table).  The hash is seeded per table and mixes all bytes, so a hostile file cannot make look-ups
 * quadratic by choosing names with equal low bits.
 */
#ifndef PN_HASH_H
#define PN_HASH_H

#include "base/pn_mem.h"

/* 64-bit hash of n bytes: 64 x 64 -> 128-bit multiply, folded. */
PN_INTERNAL uint64_t pn_hash(const void *bytes, size_t n, uint64_t seed);

/* CRC-32C (RFC 3720, 12.1), eight bytes at a time, without the instruction: 0.9 GB/s of a core that others used, too.
 * The tables are the caller's, so that there is no state here. */
typedef struct pn_crc32c {
    uint32_t t[8][256];
} pn_crc32c;

PN_INTERNAL void pn_crc32c_init(pn_crc32c *c);
/* Of what came before, which was `crc` (0: nothing), and these n bytes. */
PN_INTERNAL uint32_t pn_crc32c_add(const pn_crc32c *c, uint32_t crc, const void *bytes, size_t n);

typedef struct pn_map_slot {
    const char *key;        /* borrowed; NULL: free */
    uint32_t len;
    uint32_t value;
    uint32_t tag;           /* high bits of the hash, compared before the bytes */
} pn_map_slot;

typedef struct pn_map {
    pn_mem *mem;
    pn_account account;
    pn_map_slot *slots;     /* owned, [cap] */
    uint32_t cap, count;
    uint64_t seed;
} pn_map;

PN_INTERNAL void pn_map_init(pn_map *m, pn_mem *mem, pn_account account);
PN_INTERNAL void pn_map_fini(pn_map *m);
PN_INTERNAL bool pn_map_reserve(pn_map *m, uint32_t n);        /* false: out of memory */

/* The value stored under key, or NULL. */
PN_INTERNAL uint32_t *pn_map_find(const pn_map *m, const char *key, size_t len);

/* Insert; *existed tells whether key was there before (then the old value stays).  Returns where
 * the value lives, valid until the next insertion; NULL when out of memory. */
PN_INTERNAL uint32_t *pn_map_put(pn_map *m, const char *key, size_t len, uint32_t value, bool *existed);

#endif /* PN_HASH_H */
