/*
 * pn_kv.h - the keys and values of one sequence, in pages.
 *
 *     group 0  [page][page][page]...          every token
 *     group 1  [ -- ][page][page]             a window: pages behind it are recycled
 *
 * All pages a sequence can ever need are taken when it is opened, so a step allocates nothing and
 * an admitted sequence cannot run out.  (Memory that has not been written to is not resident yet on
 * systems that back it lazily.)
 *
 * Invariants
 *   1. table[g][i] is the page with positions [i * PN_KV_PAGE_TOKENS, ...), or NULL: not written
 *      yet, or behind the window.
 *   2. Positions [0, length) are written; those behind a group's window may be gone.
 *   3. A window keeps the pages that position `length` and later can see; truncating further back
 *      than that is refused.
 *
 * Threads: one owner.
 */
#ifndef PN_KV_H
#define PN_KV_H

#include "base/pn_mem.h"
#include "plan/pn_plan_types.h"

typedef struct pn_kv_group {
    pn_kv_page *pages;          /* [n_pages] headers */
    uint32_t n_pages;
    uint8_t *slab;              /* [n_pages * page_bytes] */
    uint64_t page_bytes;
    pn_kv_page **free;          /* [n_pages] stack */
    uint32_t n_free;
    pn_kv_page **table;         /* [n_table] */
    uint32_t n_table;
    uint32_t oldest;            /* first table entry that may hold a page */
} pn_kv_group;

typedef struct pn_kv {
    pn_mem *mem;
    const pn_state_spec *spec;  /* borrowed from the model */
    uint32_t n_ctx, n_batch, length;
    pn_kv_group group[PN_MAX_GROUPS];
} pn_kv;

/* Bytes a sequence of n_ctx tokens takes, exactly: pages, headers and tables.  kv_only: pages
 * alone.  false: overflows. */
PN_INTERNAL bool pn_kv_bytes(const pn_state_spec *spec, uint32_t n_ctx, uint32_t n_batch, uint32_t type,
                             uint64_t *bytes, uint64_t *pages_only);

/* Bytes a further token costs, before any window caps it. */
PN_INTERNAL uint64_t pn_kv_bytes_per_token(const pn_state_spec *spec, uint32_t type);

/* type: PN_DTYPE_F16 or PN_DTYPE_F32 for keys and values. */
PN_INTERNAL pn_status pn_kv_open(pn_kv *kv, pn_mem *mem, const pn_state_spec *spec, uint32_t n_ctx, uint32_t n_batch,
                                 uint32_t type, pn_err *err);
PN_INTERNAL void pn_kv_close(pn_kv *kv);

/* Pages for positions [length, length + n), n <= n_batch; recycles pages behind windows.  Cannot
 * fail within n_ctx. */
PN_INTERNAL void pn_kv_prepare(pn_kv *kv, uint32_t n);
PN_INTERNAL void pn_kv_commit(pn_kv *kv, uint32_t n);

/* Forget positions >= n.  False: a window has moved past what n would need. */
PN_INTERNAL bool pn_kv_truncate(pn_kv *kv, uint32_t n);

#endif /* PN_KV_H */
