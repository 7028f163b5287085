/*
 * pn_kv.h - the keys and values of one sequence, in pages, some of them shared with others; and its recurrent state
 * (pn_state.h), which is reserved, moved and given up along with them.
 *
 *     group 0  [page][page][page]...          every token
 *     group 1  [ -- ][page][page]             a window: pages behind it are recycled
 *
 * A step allocates nothing, and an admitted sequence cannot run out: its reserve is taken before.  One
 * opened with pn_kv_open() has all pages it can ever need from then on.  One opened with pn_kv_open_bare()
 * has none; pn_kv_reserve() takes what the positions up to some n need, at the beginning of a turn, and
 * pn_kv_trim() gives back what the turn did not use.  (Memory that has not been written to is not resident
 * yet on systems that back it lazily.)
 *
 * Where page memory lives.  Every page is a block of its own, header in front, so it can outlive the
 * sequence that wrote it and go back to the system alone.  It is in one of two states:
 *
 *     own      part of one sequence's reserve, on its free stack or in its table; PN_ACCT_KV_RESERVE until
 *              it is first taken for writing, then PN_ACCT_KV
 *     common   part of nobody's reserve, counted by its holders, never written; PN_ACCT_PREFIX
 *
 * To share an own page is to make it common, and the sequence gets a fresh page for it where its reserve
 * needs one: whoever shares pays, and a share that finds no memory fails without harm - a cache that
 * cannot grow does not grow.  Why not a pool that counts promises instead: a sequence that has to drop a
 * shared page (its window moves on, it is truncated) needs another one in the middle of a step, at a time
 * when nobody could still be refused.  By the turn a page in front of `length` is only missed when a window
 * moves past it: a truncated sequence reserves anew before it writes.
 *
 * Smaller pages.  Under pressure pages of a sequence by the turn are converted to a smaller type, one at a
 * time (pn_kv_requant); a sequence may mix types, and whatever writes or reads a page looks at its header.
 * A converted page is not for others that come: what is behind it was computed from it, and a page that is given
 * away has to be what a cold run would have made.  One that several have is converted once for all of them, if all
 * of them rest (pn_kv_rest): it is common like the one before, and each lets its table name it (pn_kv_inherit).
 *
 * Invariants
 *   1. table[g][i] is the page with positions [i * PN_KV_PAGE_TOKENS, ...), or NULL: not written
 *      yet, or behind the window.
 *   2. Positions [0, length) are written; those behind a group's window may be gone.
 *   3. A window keeps the pages that the page boundary before `length` and later positions can see, so
 *      that others can start from there; truncating further back than that is refused.
 *   4. Own pages on the free stack and in the table together are n_pages, until pn_kv_retire().  A table
 *      never has more than max_pages entries at once, common ones included.  Opened whole, n_pages is
 *      max_pages: there is an own page for each entry, and prepare() can copy a common page before it is
 *      written, always.  By the turn, n_pages is at least max_pages or what positions [length, reserved)
 *      need beyond the own pages in the table, whichever is less: prepare() within `reserved` cannot fail.
 *      Pages on the free stack are of the sequence's type.  A converted page counts while it is in the table;
 *      dropped, it goes back to the system and n_pages falls.  That takes nothing from the reserve: only
 *      groups without a window have converted pages, there only truncation drops a page, and after that the
 *      sequence reserves anew.
 *   5. A page's refs are its holders: 0 on a free stack, 1 for an own page in a table.  A common page
 *      goes back to the system when the last holder releases it.
 *
 * Threads: a sequence has one owner at a time.  Calls that touch what others may hold (prepare, truncate,
 * share, adopt, retain, release, retire, close, requant) come under one lock for all sequences that share pages;
 * the engine's is pn_cache.lock.  Opening, reserving and trimming are the owner's alone.
 */
#ifndef PN_KV_H
#define PN_KV_H

#include "base/pn_mem.h"
#include "plan/pn_plan_types.h"
#include "store/pn_state.h"

typedef struct pn_kv_group {
    uint32_t n_pages;           /* the reserve: own pages */
    uint32_t max_pages;         /* most that can be in use at once */
    uint64_t page_bytes;        /* without header */
    pn_mem *mem;                /* where its pages come from: its die's */
    pn_kv_page **free;          /* [max_pages] stack of own pages */
    uint32_t n_free;
    pn_kv_page **table;         /* [n_table] */
    uint32_t n_table;
    uint32_t oldest;            /* first table entry that may hold a page */
} pn_kv_group;

typedef struct pn_kv {
    pn_mem *mem;                /* NULL: not open */
    const pn_state_spec *spec;  /* borrowed from the model */
    uint32_t n_ctx, n_batch, length;
    uint32_t type;              /* pn_dtype of keys and values */
    bool by_turn, retired;
    uint32_t reserved;          /* by_turn: the reserve reaches to this position */
    pn_kv_group group[PN_MAX_GROUPS];
    pn_state state;             /* of recurrent layers */
} pn_kv;

/* Bytes a sequence of n_ctx tokens takes, exactly: pages, headers and tables; not its recurrent state, which takes
 * pn_state_turn_bytes().  pages_only: pages alone.  false: overflows. */
PN_INTERNAL bool pn_kv_bytes(const pn_state_spec *spec, uint32_t n_ctx, uint32_t n_batch, uint32_t type,
                             uint64_t *bytes, uint64_t *pages_only);

/* Bytes a further token costs, before any window caps it. */
PN_INTERNAL uint64_t pn_kv_bytes_per_token(const pn_state_spec *spec, uint32_t type);

/* A type for keys and values of all groups, or PN_E_UNSUPPORTED with what stands against it. */
PN_INTERNAL pn_status pn_kv_check_type(const pn_state_spec *spec, uint32_t type, pn_err *err);

/* type: one that pn_kv_check_type() is content with, for keys and values. */
PN_INTERNAL pn_status pn_kv_open(pn_kv *kv, pn_mem *mem, const pn_state_spec *spec, uint32_t n_ctx, uint32_t n_batch,
                                 uint32_t type, pn_err *err);
/* The same without pages: tables alone, of pn_kv_bare_bytes(). */
PN_INTERNAL pn_status pn_kv_open_bare(pn_kv *kv, pn_mem *mem, const pn_state_spec *spec, uint32_t n_ctx, uint32_t n_batch,
                                      uint32_t type, pn_err *err);
/* Either, with the memory of each part of a split model: mem[part of the group]. */
PN_INTERNAL pn_status pn_kv_open_parts(pn_kv *kv, pn_mem *const mem[2], const pn_state_spec *spec, uint32_t n_ctx, uint32_t n_batch,
                                       uint32_t type, bool bare, pn_err *err);
PN_INTERNAL uint64_t pn_kv_bare_bytes(const pn_state_spec *spec, uint32_t n_ctx, uint32_t n_batch);
PN_INTERNAL void pn_kv_close(pn_kv *kv);

/* By the turn: pages for all positions before n <= n_ctx, until the sequence is truncated or adopts.
 * False and nothing changed: no memory.
 * pn_kv_reserve_bytes: what it would take of one part's memory.  Opened whole: a no-op, and 0. */
PN_INTERNAL bool pn_kv_reserve(pn_kv *kv, uint32_t n);
PN_INTERNAL uint64_t pn_kv_reserve_bytes(const pn_kv *kv, uint32_t n, uint32_t part);

/* What pages for n tokens take of one part's memory altogether, by the turn. */
PN_INTERNAL uint64_t pn_kv_turn_bytes(const pn_kv *kv, uint32_t n, uint32_t part);

/* By the turn: the turn is over, pages that hold nothing go back. */
PN_INTERNAL void pn_kv_trim(pn_kv *kv);

/* The sequence's part in a step of n rows, prepared: tables and slots.  Borrowed until the commit; the caller sets
 * row0, and marks if it wants any. */
PN_INTERNAL pn_run pn_kv_run(const pn_kv *kv, uint32_t n);

/* Pages for positions [length, length + n), n <= n_batch; recycles pages behind windows, copies a
 * common page that is about to be written.  Cannot fail within n_ctx, by the turn within the reserve. */
PN_INTERNAL void pn_kv_prepare(pn_kv *kv, uint32_t n);
PN_INTERNAL void pn_kv_commit(pn_kv *kv, uint32_t n);

/* Forget positions >= n.  False: a window has moved past what n would need, or there is recurrent state, which only
 * knows the way forward, and n is not 0.  Then pn_kv_rewind() with a snapshot at n, which is retained. */
PN_INTERNAL bool pn_kv_truncate(pn_kv *kv, uint32_t n);
PN_INTERNAL bool pn_kv_rewind(pn_kv *kv, uint32_t n, pn_snap *state);

/* ---- sharing ------------------------------------------------------------------------------ */

/* First page of group g that a sequence of n tokens still needs to go on: 0 without a window. */
PN_INTERNAL uint32_t pn_kv_first_page(const pn_state_spec *spec, uint32_t g, uint32_t n);

/* Page i of group g for somebody else, who must release it; it becomes common if it was not.  NULL:
 * nothing is written there or the window has passed, it was converted, or there is no memory for a replacement. */
PN_INTERNAL pn_kv_page *pn_kv_share(pn_kv *kv, uint32_t g, uint32_t i);
PN_INTERNAL void pn_kv_retain(pn_kv_page *p);
PN_INTERNAL void pn_kv_release(pn_kv_page *p);                  /* NULL is a no-op */

/* A common page of a group with one holder, the caller, whose content is anything: to be filled before somebody else
 * gets it.  NULL: no memory. */
PN_INTERNAL pn_kv_page *pn_kv_page_new(pn_mem *mem, const pn_stream_group *g, uint32_t type);

/* What sharing this page costs whoever keeps it: header and data. */
PN_INTERNAL uint64_t pn_kv_page_cost(const pn_state_spec *spec, uint32_t g, uint32_t type);

/* Start an empty sequence (length 0) with n tokens that others have computed.  pages[g][i], i <
 * ceil(n / PN_KV_PAGE_TOKENS), as a page table; entries before pn_kv_first_page() are not looked at.
 * All must be common, of this sequence's model and type; they are retained.  The last one may be
 * partly filled.  state: the snapshot at n, retained; NULL where the model has none.  False and nothing changed: a page
 * or the snapshot is missing, or n > n_ctx. */
PN_INTERNAL bool pn_kv_adopt(pn_kv *kv, pn_kv_page *const *const pages[PN_MAX_GROUPS], uint32_t n, pn_snap *state);

/* The sequence is finished and will only be shared from and closed.  Gives back the unused reserve
 * at once; sharing needs no memory any more. */
PN_INTERNAL void pn_kv_retire(pn_kv *kv);

/* ---- parking ------------------------------------------------------------------------------ */

/* By the turn: every page goes back, state and reserve included; length and reserve are remembered.  Until the pages in
 * its table are back (pn_kv_put_page for each, pn_state_put, then pn_kv_reserve to kv->reserved) nothing but this,
 * pn_kv_trim and pn_kv_close may be called.  _unload_page: of them this one. */
PN_INTERNAL void pn_kv_unload(pn_kv *kv);
PN_INTERNAL void pn_kv_unload_page(pn_kv *kv, uint32_t g, uint32_t i);

/* An own page of this type as entry i of group g, for the caller to fill, promised until that is said; NULL: no memory. */
PN_INTERNAL pn_kv_page *pn_kv_put_page(pn_kv *kv, uint32_t g, uint32_t i, uint32_t type);
PN_INTERNAL void pn_kv_filled(pn_kv *kv, uint32_t g, uint32_t i);

/* ---- smaller pages ------------------------------------------------------------------------- */

/* Convert page i of group g to a smaller type, by taking a smaller page first: the peak is one page more.
 * Returns the bytes that this freed, exactly what the ledger shows; 0 and nothing changed: the page may not
 * be converted, or there was no memory.  What may not: page 0, where attention sinks are; pages of a group
 * with a window, which are recent and recycled soon; pages that others hold too, for that would free nothing, but for
 * those below; any page of a sequence that was opened whole.  A common page that nobody else holds becomes own again. */
PN_INTERNAL uint64_t pn_kv_requant(pn_kv *kv, uint32_t g, uint32_t i, uint32_t type);

/* The same for up to max_pages pages, oldest first; the last two of the sequence stay unless also_recent. */
PN_INTERNAL uint64_t pn_kv_requant_some(pn_kv *kv, uint32_t type, bool also_recent, uint32_t max_pages);
/* What converting all that may be would free. */
PN_INTERNAL uint64_t pn_kv_requant_gain(const pn_kv *kv, uint32_t type, bool also_recent);

/* Of several at once.  Between pn_kv_rest() and pn_kv_rest_over() nobody works on the sequence; its common pages know of
 * one holder more that agrees, or of one that keeps them as they are, because they are its first or recent (also_recent: but
 * those).  A page whose holders all agree may be converted: by pn_kv_requant_next(), which takes the first such page of
 * group *g from *i on, and leaves the place.  Shared, it comes to the others, and the bytes, once each has called
 * pn_kv_inherit(); until then there is a page more.
 * let_go: before that, a tree's part in the page, where it has one (pn_kv_note_tree). */
PN_INTERNAL void pn_kv_rest(pn_kv *kv, uint32_t type, bool also_recent);
PN_INTERNAL void pn_kv_rest_over(pn_kv *kv);
PN_INTERNAL bool pn_kv_requant_next(const pn_kv *kv, uint32_t type, bool also_recent, uint32_t *g, uint32_t *i);
PN_INTERNAL void pn_kv_inherit(pn_kv *kv, uint32_t g, uint32_t i);
/* What it would free, each page counted for the first that asks. */
PN_INTERNAL uint64_t pn_kv_rest_gain(pn_kv *kv, uint32_t type, bool also_recent);

/* For a prefix tree: holders that rest; it agrees as well, or does so no more; does it? */
PN_INTERNAL uint32_t pn_kv_resting(const pn_kv_page *p);
PN_INTERNAL void pn_kv_note_tree(pn_kv_page *p, bool agrees);
PN_INTERNAL bool pn_kv_is_tree(const pn_kv_page *p);

/* Would that, with what was converted before, be a tenth of what the sequence would hold whole, recurrent state included?
 * Without such state: always. */
PN_INTERNAL bool pn_kv_requant_pays(const pn_kv *kv, uint32_t type);

/* Tokens before the first converted page: what may be shared. */
PN_INTERNAL uint32_t pn_kv_pristine(const pn_kv *kv);
/* The smallest type of any page; the sequence's own where none is converted. */
PN_INTERNAL uint32_t pn_kv_smallest(const pn_kv *kv);

#endif /* PN_KV_H */
