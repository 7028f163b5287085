/*
 * pn_prefix.h - which KV pages already hold the start of this prompt?
 *
 * Agents resend a whole conversation on every turn, so most of a prompt has been computed before.  A
 * tree over token ids maps a prompt to the longest run of full KV pages with the same tokens at the
 * same positions.  Why pages and not tokens: a page is the unit that is shared and evicted; a step
 * recomputes the rest of one faster than anybody could look it up.
 *
 *     space, salt ─┬─ [page 0] ── [page 1] ─┬─ [page 2]
 *                  │                        └─ [page 2'] ── [page 3']
 *                  └─ [page 0']
 *
 * One node is one page of every group.  Edges that hold whole runs, as in a textbook radix tree,
 * would save a few hundred bytes beside pages of a hundred KiB to some MiB, and cost splitting,
 * joining and evicting half an edge.  The children of a node are found through one hash table over
 * (parent, tokens of the page), seeded: n tokens cost n / PN_KV_PAGE_TOKENS look-ups however many
 * siblings a hostile client has made.  No recursion anywhere.
 *
 * What makes a hit.  At a boundary of k pages a sequence needs every page of groups without a window,
 * the last window of every windowed group, and, where the model is recurrent (slot_bytes), a snapshot
 * of its state exactly there.  A node may lack the page of a windowed group: it had been recycled
 * when the prompt was inserted.  Then it is only a part of the way.  A later insert fills the gap.
 *
 * What is evicted.  The node of least value that nobody needs:
 *
 *     value = tick of last use + hit_ticks * floor(log2(1 + hits))        in the caller's ticks
 *
 * that is least recently used, plus an allowance for what many have used, which runs out in the end.
 * A use counts for the whole way to the hit, so a parent is worth at least as much as its child, and
 * among equals the deeper goes first: the least valuable node is a leaf.  Size and depth need no term
 * of their own: nodes of a space have one size, and depth speaks through the order.
 * Before any node, snapshots go that others follow (pn_prefix_thin): they may be as large as hundreds of pages, and
 * help only who leaves the way just there.
 *
 * Invariants
 *   1. A node holds one reference on each page it names (pn_kv_share, pn_kv_release).
 *   2. A page in the tree is common: never written again; a sequence that diverges inside it copies.
 *   3. bytes counts all that the cache answers for: nodes, tables, pages, snapshots.  No call lets it
 *      grow beyond bytes_max; it is above only after a smaller limit, while that much is in use.  In
 *      the ledger, PN_ACCT_PREFIX is this without snapshots (PN_ACCT_STATE, their owner's), plus
 *      common pages that sequences use and the cache has forgotten.
 *   4. Leaf first: a node goes after its children.  A pinned node stays, and so its ancestors; one
 *      whose pages a sequence still uses stays too, since evicting it would free nothing.
 *
 * Below it there may be a slower store (pn_cold.h), of which the cache knows nothing: nodes carry a name for it,
 * pn_prefix_follow() shows what a prompt's way holds, pn_prefix_go() puts in what came back, a page at a time.
 *
 * Threads: one owner at a time, under the lock of the pages (pn_kv.h).  No call blocks, does I/O or looks
 * at a clock.
 */
#ifndef PN_PREFIX_H
#define PN_PREFIX_H

#include "base/pn_base.h"
#include "store/pn_kv.h"

typedef struct pn_prefix pn_prefix;
typedef struct pn_prefix_node pn_prefix_node;

typedef struct pn_prefix_params {
    uint64_t bytes_max;         /* 0: what the ledger allows */
    uint64_t hit_ticks;         /* what twice as many hits are worth; 0: plain least recently used */
    /* A snapshot is not needed any more; would that give nothing back, because others hold it, too?  Must not call the
     * cache; may be NULL where models have none. */
    void (*drop_state)(void *user, uint64_t state);
    bool (*state_held)(void *user, uint64_t state);
    void *user;
} pn_prefix_params;

/* Whose tokens.  Spaces and salts never mix: a space is a model and KV type (below), a salt is for the
 * caller's tenants, adapters, whatever else changes what a token means. */
typedef struct pn_prefix_key {
    uint32_t space;
    uint64_t salt;
    const pn_token *tokens;     /* [n], borrowed */
    size_t n;
} pn_prefix_key;

typedef struct pn_prefix_hit {
    uint32_t n_tokens;          /* a multiple of PN_KV_PAGE_TOKENS; 0: nothing */
    uint64_t state;             /* snapshot at n_tokens, still the cache's; 0: the model has none */
    /* pages[g][i], i < n_tokens / PN_KV_PAGE_TOKENS: for pn_kv_adopt().  Borrowed until the next call
     * that finds or inserts. */
    pn_kv_page *const *pages[PN_MAX_GROUPS];
    pn_prefix_node *node;       /* what is pinned */
} pn_prefix_hit;

typedef struct pn_prefix_stats {
    uint64_t bytes, bytes_max;
    uint64_t nodes;
    uint64_t queries, hits;                     /* find() */
    uint64_t tokens_asked, tokens_hit;
    uint64_t inserted, evicted;                 /* nodes, ever */
} pn_prefix_stats;

PN_INTERNAL pn_status pn_prefix_new(pn_prefix **out, pn_mem *mem, const pn_prefix_params *p, pn_err *err);
/* Pages that sequences still use outlive the cache.  Nothing may be pinned.  NULL is a no-op. */
PN_INTERNAL void pn_prefix_free(pn_prefix *c);

/* A space for one model and KV type; spec is borrowed until the space is dropped with all in it. */
PN_INTERNAL pn_status pn_prefix_space_new(pn_prefix *c, const pn_state_spec *spec, uint32_t type, uint32_t *space,
                                          pn_err *err);
PN_INTERNAL void pn_prefix_space_drop(pn_prefix *c, uint32_t space);

/* Longest cached prefix of the key's tokens that a sequence can go on from, pinned until
 * pn_prefix_unpin().  A caller who wants logits asks for one token less than it has.  tick: any
 * count that does not run backwards.  Returns hit->n_tokens. */
PN_INTERNAL uint32_t pn_prefix_find(pn_prefix *c, const pn_prefix_key *k, uint64_t tick, pn_prefix_hit *hit);
PN_INTERNAL void pn_prefix_unpin(pn_prefix *c, pn_prefix_hit *hit);     /* n_tokens 0 is a no-op */

/* What find() would return; it is no use, and nothing is counted or pinned. */
PN_INTERNAL uint32_t pn_prefix_peek(pn_prefix *c, const pn_prefix_key *k);

/* Keep the full pages of the key's tokens, which are those `kv` begins with (n <= kv->length), as far as
 * they are what a cold run would have made (pn_kv_pristine).
 * state: a snapshot at n, then a multiple of PN_KV_PAGE_TOKENS, which is the cache's from now on
 * whatever happens; 0: none.  Makes room by evicting; stops where there is none.  Returns the tokens
 * that are cached now: a multiple of PN_KV_PAGE_TOKENS, at most n. */
PN_INTERNAL size_t pn_prefix_insert(pn_prefix *c, const pn_prefix_key *k, pn_kv *kv, uint64_t state, uint64_t tick);

/* Sequences rest whose tokens the keys are, all of which pn_kv_rest() knows; one call for each.  The cache agrees
 * (pn_kv_note_tree) that pages become theirs alone which nobody else holds, which are behind the first of their way, and behind
 * which nobody else goes on.  _over: no more; for each, too.
 * _let_go: it does, of what it agreed to behind the way's first `depth` pages, as far as nobody has come to it since; returns
 * what that gives back. */
PN_INTERNAL void pn_prefix_rest(pn_prefix *c, const pn_prefix_key *k);
PN_INTERNAL void pn_prefix_rest_over(pn_prefix *c, const pn_prefix_key *k);
PN_INTERNAL uint64_t pn_prefix_let_go(pn_prefix *c, const pn_prefix_key *k, uint32_t depth);

/* Evict down to `bytes`, as far as that goes.  Returns the bytes given back. */
PN_INTERNAL uint64_t pn_prefix_shrink(pn_prefix *c, uint64_t bytes);

/* Snapshots alone go, least value first, until `bytes` have come back: those behind which there is another one before any
 * ways part, so that every way keeps its last, and where ways part, the last before.  Returns what came back.
 * _thin_bytes: what there is of it. */
PN_INTERNAL uint64_t pn_prefix_thin(pn_prefix *c, uint64_t bytes);
PN_INTERNAL uint64_t pn_prefix_thin_bytes(pn_prefix *c);

/* ---- with a store below ------------------------------------------------------------------- */

/* A node of a way. */
typedef struct pn_prefix_stop {
    uint64_t *name;             /* [2] the caller's, zero at first */
    const pn_token *tokens;     /* [PN_KV_PAGE_TOKENS] */
    pn_kv_page *const *pages;   /* [n_groups]; NULL: a window had passed */
    uint32_t depth, n_groups;   /* pages up to here, this one included */
    uint64_t state;             /* snapshot behind it, still the cache's; 0: none */
    uint64_t bytes;             /* that evicting it gives back */
} pn_prefix_stop;

/* Every node that the key's tokens pass, from the first page on, until `see` says false. */
typedef bool (*pn_prefix_see)(void *user, const pn_prefix_stop *s);
PN_INTERNAL void pn_prefix_follow(pn_prefix *c, const pn_prefix_key *k, pn_prefix_see see, void *user);

/* From *at, pinned (NULL: the beginning), to the node of the key's next page, which is pinned instead.  pages NULL: to
 * the one that is there; else [n_groups] common pages, NULL for those there are not: the node is made, or what it
 * lacks filled in, with references of its own.  state: a snapshot behind it, which is the cache's from now on whatever
 * happens; 0: none.  False: it is not there and cannot be made of these, or there is no room; *at stays.  At the end
 * pn_prefix_leave(). */
PN_INTERNAL bool pn_prefix_go(pn_prefix *c, const pn_prefix_key *k, pn_prefix_node **at, pn_kv_page *const *pages, uint64_t state,
                              uint64_t tick);
PN_INTERNAL void pn_prefix_leave(pn_prefix_node *at);       /* not pinned any more; NULL is a no-op */

/* As pn_prefix_shrink(), but only what `may` allows goes.  _each: all that could go now, in no order. */
PN_INTERNAL uint64_t pn_prefix_shrink_if(pn_prefix *c, uint64_t bytes, pn_prefix_see may, void *user);
PN_INTERNAL void pn_prefix_each(pn_prefix *c, pn_prefix_see see, void *user);
/* Most that shrinking could give back now: a node behind which something is pinned or used counts, and stays. */
PN_INTERNAL uint64_t pn_prefix_droppable(const pn_prefix *c);
/* A new budget, kept from now on; shrinks at once. */
PN_INTERNAL void pn_prefix_limit(pn_prefix *c, uint64_t bytes_max);
/* Forget everything that is not pinned, pages in use included (their sequences keep them). */
PN_INTERNAL void pn_prefix_clear(pn_prefix *c);

PN_INTERNAL void pn_prefix_get_stats(const pn_prefix *c, pn_prefix_stats *out);

/* ---- for tests and reports ---------------------------------------------------------------- */

typedef struct pn_prefix_view {
    const pn_prefix_node *node, *parent;    /* to tell them apart */
    uint32_t space, depth, pins;            /* depth: pages, this one included */
    uint64_t salt, value, state;
    const pn_token *tokens;                 /* [PN_KV_PAGE_TOKENS] */
    pn_kv_page *const *pages;               /* [n_groups] */
} pn_prefix_view;

/* Every node, in no order. */
PN_INTERNAL void pn_prefix_visit(const pn_prefix *c, void (*see)(void *user, const pn_prefix_view *v), void *user);
/* The tables agree with each other and with what is counted. */
PN_INTERNAL bool pn_prefix_sound(const pn_prefix *c);

#endif /* PN_PREFIX_H */
