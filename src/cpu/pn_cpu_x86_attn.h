/*
 * pn_cpu_x86_attn.h - a group of queries before a page: what AVX2's attention (pn_cpu_avx2_attn.c) shares with AVX-512.
 */
#ifndef PN_CPU_X86_ATTN_H
#define PN_CPU_X86_ATTN_H

#include "cpu/pn_cpu_x86_mm.h"

#if PN_CPU_X64

enum {
    PN_X86_ATTN_GROUP = 32,             /* queries whose probabilities are kept at once */
    PN_X86_ATTN_KEY = 512               /* longest key that is decoded for a group */
};

typedef struct pn_x86_attn_group {
    const pn_cpu_attn *a;
    const struct pn_x86_attn_ops *ops;  /* or NULL */
    uint32_t j0, n;                     /* queries j0 .. j0+n */
    size_t lo, hi;                      /* tokens that any of them sees */
    float p[PN_X86_ATTN_GROUP][PN_KV_PAGE_TOKENS + 16];     /* scores, then probabilities */
    float ea[PN_X86_ATTN_GROUP], eb[PN_X86_ATTN_GROUP];     /* factors of what was there and of the page */
} pn_x86_attn_group;

/* Some columns of tokens lo .. hi: token t's are at v + t * row_bytes. */
typedef struct pn_x86_attn_cols {
    const uint8_t *v;
    size_t row_bytes, lo, hi;
} pn_x86_attn_cols;

/* What a wider instruction set does itself. */
typedef struct pn_x86_attn_ops {
    /* p[j][t] of all queries and of lo <= t < hi; 15 more may be written.  False: not for these keys. */
    bool (*scores)(pn_x86_attn_group *w);
    /* Columns i .. i+n of queries j .. j+nq (to 4), which c holds as `type`; returns how many of them, 0 or all whole 16. */
    size_t (*columns)(const pn_x86_attn_group *w, const pn_x86_attn_cols *c, uint32_t type, uint32_t j, uint32_t nq, size_t i,
                      size_t n);
} pn_x86_attn_ops;

PN_INTERNAL void pn_x86_attn(const pn_cpu_attn *a, const pn_x86_attn_ops *ops);

#endif /* PN_CPU_X64 */

#endif /* PN_CPU_X86_ATTN_H */
