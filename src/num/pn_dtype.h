/*
 * pn_dtype.h - names and block sizes of every number format; sizes of rows.
 */
#ifndef PN_DTYPE_H
#define PN_DTYPE_H

#include "base/pn_base.h"

typedef struct pn_dtype_info {
    const char *name;           /* "Q4_K"; NULL: a hole in the numbering */
    uint16_t block_elems;
    uint16_t block_bytes;
} pn_dtype_info;

/* Never NULL; a hole or an id out of range has name NULL and sizes 0. */
PN_INTERNAL const pn_dtype_info *pn_dtype_get(uint32_t type);

/* A type that may hold the weights of a matrix (what pn_dequant can read). */
PN_INTERNAL bool pn_dtype_is_weight(uint32_t type);

/* What keys and values may be stored as, from large to small: X(F32) ... in that order. */
#define PN_KV_EACH_TYPE(X) X(F32) X(F16) X(Q8_0) X(Q5_1) X(Q5_0) X(Q4_1) X(Q4_0)

/* F32 and F16 are not. */
static inline bool pn_kv_is_block(uint32_t type) { return type != PN_DTYPE_F32 && type != PN_DTYPE_F16; }

/* Bytes of n elements; of a block type n is a multiple of 32.  Here and not a look-up, because kernels know the
 * type when they are compiled. */
static inline uint64_t pn_kv_elem_bytes(uint32_t type, uint64_t n)
{
    switch (type) {
    case PN_DTYPE_F32: return 4 * n;
    case PN_DTYPE_Q8_0: return n / 32 * 34;
    case PN_DTYPE_Q5_1: return n / 32 * 24;
    case PN_DTYPE_Q5_0: return n / 32 * 22;
    case PN_DTYPE_Q4_1: return n / 32 * 20;
    case PN_DTYPE_Q4_0: return n / 32 * 18;
    default: return 2 * n;
    }
}

/* A weight type whose blocks carry scales: everything but F32, F16, BF16 (and F64, I8...). */
PN_INTERNAL bool pn_dtype_is_quantised(uint32_t type);

/* Bytes of a row of n elements; false when n is not a multiple of the block or it overflows. */
PN_INTERNAL bool pn_dtype_row_bytes(uint32_t type, uint64_t n, uint64_t *bytes);

#endif /* PN_DTYPE_H */
