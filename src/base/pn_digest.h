/*
 * pn_digest.h - names that nobody can make two things share: BLAKE2s (RFC 7693), unkeyed.
 *
 * For what is found again by its content: a page of keys and values by all tokens before it, a model by its
 * parts.  pn_hash() is quicker, but who knows it can make collisions, and then one conversation would go on from
 * another's keys.  Pure: no state but the caller's.
 */
#ifndef PN_DIGEST_H
#define PN_DIGEST_H

#include "base/pn_base.h"

enum { PN_DIGEST_BYTES = 16 };      /* 128 of the 256 bits: 2^64 tries for any two that are alike */

typedef struct pn_digest {
    uint32_t h[8];
    uint8_t block[64];
    uint32_t n;                     /* bytes in block */
    uint64_t total;                 /* bytes hashed before those */
} pn_digest;

/* n_out: 1 to 32 bytes that pn_digest_end() will give. */
PN_INTERNAL void pn_digest_begin(pn_digest *d, size_t n_out);
PN_INTERNAL void pn_digest_add(pn_digest *d, const void *bytes, size_t n);
PN_INTERNAL void pn_digest_end(pn_digest *d, void *out, size_t n_out);

/* The eight bytes of a number, little-endian. */
PN_INTERNAL void pn_digest_add_u64(pn_digest *d, uint64_t v);

#endif /* PN_DIGEST_H */
