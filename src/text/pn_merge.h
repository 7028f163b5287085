/*
 * pn_merge.h - merging neighbours, best pair first: the heart of both BPE and SPM.
 *
 * A word is a chain of symbols.  While some neighbouring pair can merge, the one of the lowest
 * priority value merges; among equals the leftmost.  Short words are searched anew each time;
 * long ones use a heap of candidate pairs in which stale entries are skipped, so a word of n symbols
 * costs n log n whatever it holds.  Both give the same result (a test compares).
 */
#ifndef PN_MERGE_H
#define PN_MERGE_H

#include "base/pn_mem.h"

typedef struct pn_sym {
    uint32_t at, len;       /* bytes of the word */
    int32_t id;             /* token, or the caller's code for "none" */
    uint32_t prev, next;    /* private */
} pn_sym;

/* May a and b, neighbours, merge?  Then their priority and what they become. */
typedef bool (*pn_merge_lookup)(const void *ctx, const pn_sym *a, const pn_sym *b, uint32_t *prio, int32_t *id);

typedef struct pn_merge_cand { uint64_t key; uint32_t len; int32_t id; } pn_merge_cand;

typedef struct pn_merge {
    pn_mem *mem;
    pn_sym *syms;           /* owned, [n] filled by the caller, room for cap */
    size_t n, cap;
    pn_merge_cand *heap;    /* owned */
    size_t n_heap, cap_heap;
    size_t scan_max;        /* longest word searched without the heap */
} pn_merge;

PN_INTERNAL void pn_merge_init(pn_merge *m, pn_mem *mem);
PN_INTERNAL void pn_merge_fini(pn_merge *m);
PN_INTERNAL bool pn_merge_reserve(pn_merge *m, size_t n);      /* room for n symbols; false: out of memory */

/* Merge syms[0..n) until nothing can; n and syms are what is left, in order.  False: out of memory. */
PN_INTERNAL bool pn_merge_run(pn_merge *m, pn_merge_lookup lookup, const void *ctx);

#endif /* PN_MERGE_H */
