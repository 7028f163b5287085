/*
 * pn_ledger.h - one ledger owns every byte: who holds how much, how much at most, and no more.
 *
 * It implements base/pn_mem.h over the caller's allocator, so every layer below is counted by
 * passing its mem pointer around.  Counters are atomic; the limit is exact: a request that would
 * cross it is refused before the allocator is asked.
 *
 * Page cache of mapped weights is noted apart (pn_ledger_note_map): it is not ours to free, but
 * plans and reports want it.
 */
#ifndef PN_LEDGER_H
#define PN_LEDGER_H

#include "base/pn_mem.h"

#include <stdatomic.h>

typedef struct pn_ledger {
    pn_mem mem;                             /* first: a ledger is a pn_mem */
    pn_allocator under;
    atomic_ullong limit;                    /* 0: none */
    atomic_ullong soft;                     /* above it caches shrink; 0: none */
    atomic_ullong used[PN_ACCT_COUNT], peak[PN_ACCT_COUNT];
    atomic_ullong total, total_peak;        /* without PN_ACCT_WEIGHTS_MAP */
} pn_ledger;

/* allocator NULL or with NULL functions: malloc and free. */
PN_INTERNAL void pn_ledger_init(pn_ledger *l, const pn_allocator *allocator, uint64_t limit);

/* Bytes above the soft limit; 0: none. */
PN_INTERNAL uint64_t pn_ledger_over(const pn_ledger *l);

/* Mapped bytes came or went. */
PN_INTERNAL void pn_ledger_note_map(pn_ledger *l, int64_t bytes);

PN_INTERNAL void pn_ledger_report(const pn_ledger *l, pn_mem_info *out);

#endif /* PN_LEDGER_H */
