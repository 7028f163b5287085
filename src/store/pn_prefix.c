/* SPDX-License-Identifier: AGPL-3.0-only */
#include "store/pn_prefix.h"

#include <inttypes.h>

#include "base/pn_err.h"
#include "base/pn_hash.h"

enum { PREFIX_PAGE = PN_KV_PAGE_TOKENS };

struct pn_prefix_node {
    pn_prefix_node *parent;             /* NULL: first page */
    pn_prefix_node *chain;              /* next in the bucket */
    uint64_t hash, salt;
    uint64_t last_use, value;
    uint64_t state;                     /* snapshot behind this page; 0: none */
    uint32_t space, hits, pins, n_children;
    uint32_t depth;                     /* pages up to here, this one included */
    uint32_t heap_at;                   /* place in the heap, if a leaf */
    uint64_t name[2];                   /* for the store below */
    bool covered;                       /* pn_prefix_thin's: a node behind it has a snapshot */
    bool goes;                          /* pn_prefix_rest's: it could, and so many of its children */
    uint32_t n_going;
    pn_token tokens[PREFIX_PAGE];
    pn_kv_page *pages[];                /* [n_groups of the space]; NULL: a window had passed */
};

typedef struct prefix_space {
    const pn_state_spec *spec;          /* borrowed; NULL: a free entry */
    uint32_t type;
} prefix_space;

struct pn_prefix {
    pn_mem *mem;
    pn_prefix_params params;
    uint64_t seed;
    pn_prefix_stats stats;
    prefix_space *spaces;
    uint32_t n_spaces;                  /* entries, free ones included */
    pn_prefix_node **bucket;            /* [n_buckets], a power of two or 0 */
    size_t n_buckets;
    pn_prefix_node **heap;              /* [heap_cap >= nodes]: leaves, least value first */
    size_t n_heap, heap_cap;
    pn_prefix_node **way;               /* [way_cap >= deepest node]: the last way found */
    pn_kv_page **way_pages;             /* [PN_MAX_GROUPS][way_cap] */
    size_t way_cap;
    bool thin;                          /* there was no snapshot that could go alone when we last looked, and none has come */
};

/* ------------------------------------------------------------------------------------------
 * Leaves by value: a binary heap
 * ------------------------------------------------------------------------------------------ */

static bool prefix_before(const pn_prefix_node *a, const pn_prefix_node *b)
{
    return a->value != b->value ? a->value < b->value : a->depth > b->depth;
}

static void prefix_heap_set(pn_prefix *c, size_t at, pn_prefix_node *n)
{
    c->heap[at] = n;
    n->heap_at = (uint32_t)at;
}

/* Put n where it belongs, starting at `at`, whose entry is free. */
static void prefix_heap_sift(pn_prefix *c, size_t at, pn_prefix_node *n)
{
    for (; at && prefix_before(n, c->heap[(at - 1) / 2]); at = (at - 1) / 2)
        prefix_heap_set(c, at, c->heap[(at - 1) / 2]);
    for (size_t kid; (kid = 2 * at + 1) < c->n_heap; at = kid) {
        if (kid + 1 < c->n_heap && prefix_before(c->heap[kid + 1], c->heap[kid]))
            kid++;
        if (!prefix_before(c->heap[kid], n))
            break;
        prefix_heap_set(c, at, c->heap[kid]);
    }
    prefix_heap_set(c, at, n);
}

static void prefix_heap_push(pn_prefix *c, pn_prefix_node *n)
{
    PN_ASSERT(c->n_heap < c->heap_cap);
    c->n_heap++;
    prefix_heap_sift(c, c->n_heap - 1, n);
}

static void prefix_heap_remove(pn_prefix *c, const pn_prefix_node *n)
{
    size_t at = n->heap_at;
    PN_ASSERT(at < c->n_heap && c->heap[at] == n);
    pn_prefix_node *last = c->heap[--c->n_heap];
    if (last != n)
        prefix_heap_sift(c, at, last);
}

/* ------------------------------------------------------------------------------------------
 * Nodes
 * ------------------------------------------------------------------------------------------ */

static uint32_t prefix_n_groups(const pn_prefix *c, uint32_t space) { return c->spaces[space].spec->n_groups; }

static size_t prefix_node_size(uint32_t n_groups)
{
    return sizeof(pn_prefix_node) + n_groups * sizeof(pn_kv_page *);
}

static uint64_t prefix_hash(const pn_prefix *c, const pn_prefix_key *k, const pn_prefix_node *parent,
                            const pn_token *tokens)
{
    const uint64_t whose[2] = {parent ? (uint64_t)(uintptr_t)parent : k->space, parent ? UINT64_MAX : k->salt};
    return pn_hash(tokens, PREFIX_PAGE * sizeof *tokens, pn_hash(whose, sizeof whose, c->seed));
}

/* The child of `parent` (NULL: the start of the key's space and salt) with these tokens, or NULL. */
static pn_prefix_node *prefix_child(const pn_prefix *c, const pn_prefix_key *k, const pn_prefix_node *parent,
                                    const pn_token *tokens, uint64_t hash)
{
    if (!c->n_buckets)
        return NULL;
    pn_prefix_node *n = c->bucket[hash & (c->n_buckets - 1)];
    while (n && !(n->hash == hash && n->parent == parent && n->space == k->space && n->salt == k->salt &&
                  memcmp(n->tokens, tokens, sizeof n->tokens) == 0))
        n = n->chain;
    return n;
}

static void prefix_value(pn_prefix *c, pn_prefix_node *n, uint64_t tick)
{
    uint64_t doublings = 0, extra;
    for (uint64_t h = (uint64_t)n->hits + 1; h > 1; h /= 2)
        doublings++;
    n->last_use = PN_MAX(n->last_use, tick);
    if (!pn_mul_u64(c->params.hit_ticks, doublings, &extra) || !pn_add_u64(n->last_use, extra, &n->value))
        n->value = UINT64_MAX;
    if (!n->n_children)
        prefix_heap_sift(c, n->heap_at, n);
}

static void prefix_unhash(pn_prefix *c, const pn_prefix_node *n)
{
    pn_prefix_node **at = &c->bucket[n->hash & (c->n_buckets - 1)];
    while (*at != n)
        at = &(*at)->chain;
    *at = n->chain;
}

/* What a snapshot costs whoever keeps it. */
static uint64_t prefix_state_bytes(const pn_prefix *c, uint32_t space) { return pn_snap_cost(c->spaces[space].spec->slot_bytes); }

/* All that goes with the node. */
static uint64_t prefix_node_bytes(const pn_prefix *c, const pn_prefix_node *n)
{
    const prefix_space *s = &c->spaces[n->space];
    uint64_t bytes = prefix_node_size(s->spec->n_groups) + (n->state ? prefix_state_bytes(c, n->space) : 0);
    for (uint32_t g = 0; g < s->spec->n_groups; g++)
        bytes += n->pages[g] ? pn_kv_page_cost(s->spec, g, s->type) : 0;
    return bytes;
}

static void prefix_put_page(pn_prefix *c, pn_prefix_node *n, uint32_t g)
{
    const prefix_space *s = &c->spaces[n->space];
    if (!n->pages[g])
        return;
    c->stats.bytes -= pn_kv_page_cost(s->spec, g, s->type);
    pn_kv_release(n->pages[g]);
    n->pages[g] = NULL;
}

static void prefix_drop_state(pn_prefix *c, uint64_t state)
{
    if (state && c->params.drop_state)
        c->params.drop_state(c->params.user, state);
}

static void prefix_put_state(pn_prefix *c, pn_prefix_node *n)
{
    if (!n->state)
        return;
    c->stats.bytes -= prefix_state_bytes(c, n->space);
    prefix_drop_state(c, n->state);
    n->state = 0;
}

/* Pages, snapshot and memory; the node is in no table any more. */
static void prefix_node_free(pn_prefix *c, pn_prefix_node *n)
{
    uint32_t n_groups = prefix_n_groups(c, n->space);
    for (uint32_t g = 0; g < n_groups; g++)
        prefix_put_page(c, n, g);
    prefix_put_state(c, n);
    c->stats.bytes -= prefix_node_size(n_groups);
    pn_mem_free(c->mem, PN_ACCT_PREFIX, n, prefix_node_size(n_groups));
}

/* A leaf that is out of the heap leaves the tree. */
static void prefix_remove_leaf(pn_prefix *c, pn_prefix_node *n)
{
    prefix_unhash(c, n);
    if (n->parent && --n->parent->n_children == 0)
        prefix_heap_push(c, n->parent);
    prefix_node_free(c, n);
    c->stats.nodes--;
    c->stats.evicted++;
}

/* ------------------------------------------------------------------------------------------
 * Room
 * ------------------------------------------------------------------------------------------ */

/* Others hold its snapshot, too. */
static bool prefix_state_held(const pn_prefix *c, const pn_prefix_node *n)
{
    return n->state && c->params.state_held && c->params.state_held(c->params.user, n->state);
}

static bool prefix_in_use(const pn_prefix *c, const pn_prefix_node *n)
{
    for (uint32_t g = 0; g < prefix_n_groups(c, n->space); g++)
        if (n->pages[g] && n->pages[g]->refs > 1)
            return true;
    return prefix_state_held(c, n);
}

static pn_prefix_stop prefix_stop(const pn_prefix *c, pn_prefix_node *n)
{
    return (pn_prefix_stop){.name = n->name, .tokens = n->tokens, .pages = n->pages, .depth = n->depth,
                            .n_groups = prefix_n_groups(c, n->space), .state = n->state, .bytes = prefix_node_bytes(c, n)};
}

static bool prefix_allows(const pn_prefix *c, pn_prefix_node *n, pn_prefix_see may, void *user)
{
    const pn_prefix_stop s = prefix_stop(c, n);
    return may(user, &s);
}

/* Evict until `bytes` are left or nothing more can go.  used_too: pages of sequences as well.  may: NULL or what else
 * has to agree.  Leaves that must stay are set aside at the end of the heap's memory; those in use are at most one a
 * sequence. */
static void prefix_evict_if(pn_prefix *c, uint64_t bytes, bool used_too, pn_prefix_see may, void *user)
{
    size_t aside = c->heap_cap;
    while (c->stats.bytes > bytes && c->n_heap) {
        pn_prefix_node *n = c->heap[0];
        prefix_heap_remove(c, n);
        if (n->pins || (!used_too && prefix_in_use(c, n)) || (may && !prefix_allows(c, n, may, user)))
            c->heap[--aside] = n;
        else
            prefix_remove_leaf(c, n);
    }
    while (aside < c->heap_cap)
        prefix_heap_push(c, c->heap[aside++]);
}

static void prefix_evict(pn_prefix *c, uint64_t bytes, bool used_too) { prefix_evict_if(c, bytes, used_too, NULL, NULL); }

/* Which nodes have a snapshot behind them on the one way there is: where ways part, the last before serves them all. */
static void prefix_cover(pn_prefix *c)
{
    for (size_t i = 0; i < c->n_buckets; i++)
        for (pn_prefix_node *n = c->bucket[i]; n; n = n->chain)
            n->covered = false;
    for (size_t i = 0; i < c->n_buckets; i++)
        for (pn_prefix_node *n = c->bucket[i]; n; n = n->chain)
            for (pn_prefix_node *p = n->state ? n->parent : NULL; p && p->n_children == 1 && !p->covered; p = p->parent)
                p->covered = true;
}

/* Its snapshot may go: others are behind it, and nobody is at it. */
static bool prefix_thins(const pn_prefix *c, const pn_prefix_node *n)
{
    return n->state && n->covered && !n->pins && !prefix_state_held(c, n);
}

PN_INTERNAL uint64_t pn_prefix_thin(pn_prefix *c, uint64_t bytes)
{
    uint64_t before = c->stats.bytes;
    prefix_cover(c);
    while (before - c->stats.bytes < bytes) {
        pn_prefix_node *least = NULL;
        for (size_t i = 0; i < c->n_buckets; i++)
            for (pn_prefix_node *n = c->bucket[i]; n; n = n->chain)
                if (prefix_thins(c, n) && (!least || prefix_before(n, least)))
                    least = n;
        if (!least) {
            c->thin = true;
            break;
        }
        prefix_put_state(c, least);
    }
    return before - c->stats.bytes;
}

/* Down to `bytes` with what hurts least: snapshots that others follow, then nodes. */
static void prefix_shrink(pn_prefix *c, uint64_t bytes)
{
    if (!c->thin && c->stats.bytes > bytes)
        (void)pn_prefix_thin(c, c->stats.bytes - bytes);
    prefix_evict(c, bytes, false);
}

static bool prefix_room(pn_prefix *c, uint64_t need)
{
    uint64_t max = c->params.bytes_max;
    if (need > max)
        return false;
    prefix_shrink(c, max - need);
    return c->stats.bytes <= max - need;
}

/* Memory within the budget, or NULL.  Free with prefix_put_mem(). */
static void *prefix_get_mem(pn_prefix *c, uint64_t n, size_t size)
{
    uint64_t bytes;
    if (!pn_mul_u64(n, size, &bytes) || !prefix_room(c, bytes))
        return NULL;
    void *p = pn_mem_calloc(c->mem, PN_ACCT_PREFIX, n, size);
    if (p)
        c->stats.bytes += bytes;
    return p;
}

static void prefix_put_mem(pn_prefix *c, void *p, size_t bytes)
{
    if (!p)
        return;
    pn_mem_free(c->mem, PN_ACCT_PREFIX, p, bytes);
    c->stats.bytes -= bytes;
}

static bool prefix_grow_buckets(pn_prefix *c)
{
    size_t n = c->n_buckets ? 2 * c->n_buckets : 16;
    pn_prefix_node **b = prefix_get_mem(c, n, sizeof(pn_prefix_node *));
    if (!b)
        return false;
    for (size_t i = 0; i < c->n_buckets; i++)
        for (pn_prefix_node *x = c->bucket[i], *next; x; x = next) {
            next = x->chain;
            x->chain = b[x->hash & (n - 1)];
            b[x->hash & (n - 1)] = x;
        }
    prefix_put_mem(c, c->bucket, c->n_buckets * sizeof(pn_prefix_node *));
    c->bucket = b;
    c->n_buckets = n;
    return true;
}

static bool prefix_grow_heap(pn_prefix *c)
{
    size_t n = c->heap_cap ? 2 * c->heap_cap : 16;
    pn_prefix_node **h = n <= UINT32_MAX ? prefix_get_mem(c, n, sizeof(pn_prefix_node *)) : NULL;
    if (!h)
        return false;
    if (c->n_heap)
        memcpy(h, c->heap, c->n_heap * sizeof(pn_prefix_node *));
    prefix_put_mem(c, c->heap, c->heap_cap * sizeof(pn_prefix_node *));
    c->heap = h;
    c->heap_cap = n;
    return true;
}

static void prefix_put_way(pn_prefix *c)
{
    prefix_put_mem(c, c->way, c->way_cap * sizeof(pn_prefix_node *));
    prefix_put_mem(c, c->way_pages, c->way_cap * PN_MAX_GROUPS * sizeof(pn_kv_page *));
}

static bool prefix_grow_way(pn_prefix *c)
{
    size_t n = c->way_cap ? 2 * c->way_cap : 16;
    pn_prefix_node **way = prefix_get_mem(c, n, sizeof(pn_prefix_node *));
    pn_kv_page **pages = way ? prefix_get_mem(c, n, PN_MAX_GROUPS * sizeof(pn_kv_page *)) : NULL;
    if (!pages) {
        prefix_put_mem(c, way, n * sizeof(pn_prefix_node *));
        return false;
    }
    prefix_put_way(c);
    c->way = way;
    c->way_pages = pages;
    c->way_cap = n;
    return true;
}

/* Tables that hold one node more, at this depth. */
static bool prefix_grow(pn_prefix *c, size_t depth)
{
    return (c->stats.nodes < c->n_buckets || prefix_grow_buckets(c)) &&
           (c->stats.nodes < c->heap_cap || prefix_grow_heap(c)) && (depth <= c->way_cap || prefix_grow_way(c));
}

/* ------------------------------------------------------------------------------------------
 * The cache
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_prefix_new(pn_prefix **out, pn_mem *mem, const pn_prefix_params *p, pn_err *err)
{
    pn_prefix *c = pn_mem_calloc(mem, PN_ACCT_PREFIX, 1, sizeof *c);
    *out = c;
    if (!c)
        return pn_fail_nomem(err, "a prefix cache", sizeof *c);
    c->mem = mem;
    c->params = *p;
    if (!c->params.bytes_max)
        c->params.bytes_max = UINT64_MAX;
    c->seed = (uint64_t)(uintptr_t)c * 0x9e3779b97f4a7c15u;     /* order is never observable */
    c->stats.bytes = sizeof *c;
    return PN_OK;
}

PN_INTERNAL void pn_prefix_free(pn_prefix *c)
{
    if (!c)
        return;
    pn_prefix_clear(c);
    PN_ASSERT(c->stats.nodes == 0);
    prefix_put_mem(c, c->bucket, c->n_buckets * sizeof(pn_prefix_node *));
    prefix_put_mem(c, c->heap, c->heap_cap * sizeof(pn_prefix_node *));
    prefix_put_way(c);
    prefix_put_mem(c, c->spaces, c->n_spaces * sizeof *c->spaces);
    PN_ASSERT(c->stats.bytes == sizeof *c);
    pn_mem_free(c->mem, PN_ACCT_PREFIX, c, sizeof *c);
}

PN_INTERNAL pn_status pn_prefix_space_new(pn_prefix *c, const pn_state_spec *spec, uint32_t type, uint32_t *space,
                                          pn_err *err)
{
    uint32_t i = 0;
    while (i < c->n_spaces && c->spaces[i].spec)
        i++;
    if (i == c->n_spaces) {
        prefix_space *s = prefix_get_mem(c, (uint64_t)i + 4, sizeof *s);
        if (!s)
            return pn_fail_nomem(err, "a space of the prefix cache", ((uint64_t)i + 4) * sizeof *s);
        if (i)
            memcpy(s, c->spaces, i * sizeof *s);
        prefix_put_mem(c, c->spaces, i * sizeof *s);
        c->spaces = s;
        c->n_spaces = i + 4;
    }
    c->spaces[i] = (prefix_space){.spec = spec, .type = type};
    *space = i;
    return PN_OK;
}

/* All nodes of a space go at once, so no parent has to become a leaf on the way. */
PN_INTERNAL void pn_prefix_space_drop(pn_prefix *c, uint32_t space)
{
    for (size_t i = 0; i < c->n_buckets; i++)
        for (pn_prefix_node **at = &c->bucket[i]; *at;) {
            pn_prefix_node *n = *at;
            if (n->space != space) {
                at = &n->chain;
                continue;
            }
            PN_ASSERT(!n->pins);
            *at = n->chain;
            if (!n->n_children)
                prefix_heap_remove(c, n);
            prefix_node_free(c, n);
            c->stats.nodes--;
            c->stats.evicted++;
        }
    c->spaces[space].spec = NULL;
}

PN_INTERNAL uint64_t pn_prefix_shrink(pn_prefix *c, uint64_t bytes)
{
    uint64_t before = c->stats.bytes;
    prefix_shrink(c, bytes);
    return before - c->stats.bytes;
}

PN_INTERNAL uint64_t pn_prefix_shrink_if(pn_prefix *c, uint64_t bytes, pn_prefix_see may, void *user)
{
    uint64_t before = c->stats.bytes;
    prefix_evict_if(c, bytes, false, may, user);
    return before - c->stats.bytes;
}

PN_INTERNAL void pn_prefix_each(pn_prefix *c, pn_prefix_see see, void *user)
{
    bool more = true;
    for (size_t i = 0; i < c->n_buckets && more; i++)
        for (pn_prefix_node *n = c->bucket[i]; n && more; n = n->chain)
            if (!n->pins && !prefix_in_use(c, n))
                more = prefix_allows(c, n, see, user);
}

PN_INTERNAL uint64_t pn_prefix_droppable(const pn_prefix *c)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < c->n_buckets; i++)
        for (const pn_prefix_node *n = c->bucket[i]; n; n = n->chain)
            if (!n->pins && !prefix_in_use(c, n))
                bytes += prefix_node_bytes(c, n);
    return bytes;
}

PN_INTERNAL uint64_t pn_prefix_thin_bytes(pn_prefix *c)
{
    uint64_t bytes = 0;
    prefix_cover(c);
    for (size_t i = 0; i < c->n_buckets; i++)
        for (const pn_prefix_node *n = c->bucket[i]; n; n = n->chain)
            bytes += prefix_thins(c, n) ? prefix_state_bytes(c, n->space) : 0;
    return bytes;
}

PN_INTERNAL void pn_prefix_limit(pn_prefix *c, uint64_t bytes_max)
{
    c->params.bytes_max = bytes_max ? bytes_max : UINT64_MAX;
    prefix_shrink(c, c->params.bytes_max);
}

PN_INTERNAL void pn_prefix_clear(pn_prefix *c) { prefix_evict(c, 0, true); }

PN_INTERNAL void pn_prefix_get_stats(const pn_prefix *c, pn_prefix_stats *out)
{
    *out = c->stats;
    out->bytes_max = c->params.bytes_max;
}

/* ------------------------------------------------------------------------------------------
 * Finding
 * ------------------------------------------------------------------------------------------ */

/* Follow the tokens as far as there are nodes, noting them in c->way.  Returns their number. */
static uint32_t prefix_walk(pn_prefix *c, const pn_prefix_key *k)
{
    pn_prefix_node *n = NULL;
    uint32_t depth = 0;
    for (; (size_t)depth + 1 <= k->n / PREFIX_PAGE; depth++) {
        const pn_token *t = k->tokens + (size_t)depth * PREFIX_PAGE;
        n = prefix_child(c, k, n, t, prefix_hash(c, k, n, t));
        if (!n)
            break;
        c->way[depth] = n;
    }
    return depth;
}

/* Pages of the way's first `depth` nodes into the tables behind; returns the depth of the deepest
 * node from which a sequence can go on. */
static uint32_t prefix_usable(pn_prefix *c, uint32_t space, uint32_t depth)
{
    const pn_state_spec *spec = c->spaces[space].spec;
    uint32_t in_a_row[PN_MAX_GROUPS] = {0}, best = 0;      /* pages without a gap, ending here */
    for (uint32_t i = 0; i < depth; i++) {
        pn_prefix_node *n = c->way[i];
        bool whole = !spec->slot_bytes || n->state;
        for (uint32_t g = 0; g < spec->n_groups; g++) {
            c->way_pages[g * c->way_cap + i] = n->pages[g];
            in_a_row[g] = n->pages[g] ? in_a_row[g] + 1 : 0;
            if (in_a_row[g] + pn_kv_first_page(spec, g, (i + 1) * PREFIX_PAGE) < i + 1)
                whole = false;
        }
        if (whole)
            best = i + 1;
    }
    return best;
}

PN_INTERNAL uint32_t pn_prefix_find(pn_prefix *c, const pn_prefix_key *k, uint64_t tick, pn_prefix_hit *hit)
{
    PN_ASSERT(k->space < c->n_spaces && c->spaces[k->space].spec);
    *hit = (pn_prefix_hit){0};
    uint32_t depth = prefix_usable(c, k->space, prefix_walk(c, k));
    c->stats.queries++;
    c->stats.tokens_asked += k->n;
    if (!depth)
        return 0;
    for (uint32_t i = 0; i < depth; i++) {
        pn_prefix_node *n = c->way[i];
        n->hits += n->hits < UINT32_MAX;
        prefix_value(c, n, tick);
    }
    hit->node = c->way[depth - 1];
    hit->node->pins++;
    hit->state = hit->node->state;
    hit->n_tokens = depth * PREFIX_PAGE;
    for (uint32_t g = 0; g < prefix_n_groups(c, k->space); g++)
        hit->pages[g] = c->way_pages + g * c->way_cap;
    c->stats.hits++;
    c->stats.tokens_hit += hit->n_tokens;
    return hit->n_tokens;
}

PN_INTERNAL uint32_t pn_prefix_peek(pn_prefix *c, const pn_prefix_key *k)
{
    PN_ASSERT(k->space < c->n_spaces && c->spaces[k->space].spec);
    return prefix_usable(c, k->space, prefix_walk(c, k)) * PREFIX_PAGE;
}

PN_INTERNAL void pn_prefix_unpin(pn_prefix *c, pn_prefix_hit *hit)
{
    if (hit->node) {
        PN_ASSERT(hit->node->pins);
        hit->node->pins--;
        c->thin = c->thin && !hit->node->state;
        prefix_shrink(c, c->params.bytes_max);          /* a smaller budget may have waited for this */
    }
    *hit = (pn_prefix_hit){0};
}

/* ------------------------------------------------------------------------------------------
 * Inserting
 * ------------------------------------------------------------------------------------------ */

/* Page i of group g from the sequence into the node, within the budget.  False: no room. */
static bool prefix_take_page(pn_prefix *c, pn_prefix_node *n, pn_kv *kv, uint32_t g)
{
    uint64_t cost = pn_kv_page_cost(kv->spec, g, kv->type);
    if (!prefix_room(c, cost))
        return false;
    n->pages[g] = pn_kv_share(kv, g, n->depth - 1);
    if (!n->pages[g]) {
        /* The ledger is full: a page less here may be the one that the sequence needs. */
        prefix_evict(c, c->stats.bytes - 1, false);
        n->pages[g] = pn_kv_share(kv, g, n->depth - 1);
    }
    if (n->pages[g])
        c->stats.bytes += cost;
    return n->pages[g] != NULL;
}

/* Pages the node lacks and the sequence has.  False: no room for one of them. */
static bool prefix_fill(pn_prefix *c, pn_prefix_node *n, pn_kv *kv)
{
    for (uint32_t g = 0; g < kv->spec->n_groups; g++) {
        bool there = kv->group[g].table[n->depth - 1] != NULL;
        PN_ASSERT(there || kv->spec->group[g].window);
        if (there && !n->pages[g] && !prefix_take_page(c, n, kv, g))
            return false;
    }
    return true;
}

/* A new child of `parent`, which is pinned if there is one, without pages and in no table yet; NULL: no room. */
static pn_prefix_node *prefix_node_new(pn_prefix *c, const pn_prefix_key *k, pn_prefix_node *parent, const pn_token *tokens, uint64_t hash)
{
    uint32_t depth = parent ? parent->depth + 1 : 1;
    if (!prefix_grow(c, depth))
        return NULL;
    pn_prefix_node *n = prefix_get_mem(c, 1, prefix_node_size(prefix_n_groups(c, k->space)));
    if (!n)
        return NULL;
    n->parent = parent;
    n->hash = hash;
    n->salt = k->salt;
    n->space = k->space;
    n->depth = depth;
    memcpy(n->tokens, tokens, sizeof n->tokens);
    return n;
}

/* It has its pages: into the tree with it. */
static pn_prefix_node *prefix_node_add(pn_prefix *c, pn_prefix_node *n)
{
    pn_prefix_node *parent = n->parent;
    n->chain = c->bucket[n->hash & (c->n_buckets - 1)];
    c->bucket[n->hash & (c->n_buckets - 1)] = n;
    if (parent && parent->n_children++ == 0)
        prefix_heap_remove(c, parent);
    prefix_heap_push(c, n);
    c->stats.nodes++;
    c->stats.inserted++;
    return n;
}

static pn_prefix_node *prefix_add(pn_prefix *c, const pn_prefix_key *k, pn_prefix_node *parent, const pn_token *tokens,
                                  uint64_t hash, pn_kv *kv)
{
    pn_prefix_node *n = prefix_node_new(c, k, parent, tokens, hash);
    if (n && !prefix_fill(c, n, kv)) {
        prefix_node_free(c, n);
        return NULL;
    }
    return n ? prefix_node_add(c, n) : NULL;
}

/* The snapshot goes to `n` if that has none and there is room, else it is dropped. */
static void prefix_add_state(pn_prefix *c, pn_prefix_node *n, uint64_t state)
{
    uint64_t bytes = n ? prefix_state_bytes(c, n->space) : 0;
    if (!n || n->state || !prefix_room(c, bytes)) {
        prefix_drop_state(c, state);
        return;
    }
    n->state = state;
    c->stats.bytes += bytes;
    c->thin = false;
}

PN_INTERNAL size_t pn_prefix_insert(pn_prefix *c, const pn_prefix_key *k, pn_kv *kv, uint64_t state, uint64_t tick)
{
    PN_ASSERT(k->space < c->n_spaces && c->spaces[k->space].spec == kv->spec && c->spaces[k->space].type == kv->type);
    PN_ASSERT(k->n <= kv->length && (!state || k->n % PREFIX_PAGE == 0));
    pn_prefix_node *n = NULL;
    size_t depth = 0, want = PN_MIN(k->n, (size_t)pn_kv_pristine(kv)) / PREFIX_PAGE;
    for (; depth < want; depth++) {
        const pn_token *t = k->tokens + depth * PREFIX_PAGE;
        uint64_t hash = prefix_hash(c, k, n, t);
        pn_prefix_node *next = prefix_child(c, k, n, t, hash);
        if (next) {
            next->pins++;           /* what makes room must not take the way itself */
            prefix_fill(c, next, kv);
        } else if ((next = prefix_add(c, k, n, t, hash, kv)) != NULL) {
            next->pins++;
        } else {
            break;
        }
        if (n)
            n->pins--;
        n = next;
        prefix_value(c, n, tick);
    }
    if (state)
        prefix_add_state(c, depth == k->n / PREFIX_PAGE ? n : NULL, state);
    if (n)
        n->pins--;
    return depth * PREFIX_PAGE;
}

/* ------------------------------------------------------------------------------------------
 * Letting go of what sequences hold that rest
 * ------------------------------------------------------------------------------------------ */

/* Nobody but sequences that rest holds pages of the node beside the cache, and they hold some. */
static bool prefix_rests(const pn_prefix *c, const pn_prefix_node *n)
{
    uint32_t some = 0;
    for (uint32_t g = 0; g < prefix_n_groups(c, n->space); g++) {
        uint32_t resting = n->pages[g] ? pn_kv_resting(n->pages[g]) : 0;
        if (n->pages[g] && n->pages[g]->refs != 1 + resting)
            return false;
        some += resting;
    }
    return some && !n->pins;
}

static void prefix_agree(pn_prefix *c, pn_prefix_node *n, bool agrees)
{
    n->goes = agrees;
    for (uint32_t g = 0; g < prefix_n_groups(c, n->space); g++)
        if (n->pages[g])
            pn_kv_note_tree(n->pages[g], agrees);
}

/* From the deepest node up, until one stays: its other children may agree later, and then the way goes on from there. */
PN_INTERNAL void pn_prefix_rest(pn_prefix *c, const pn_prefix_key *k)
{
    for (uint32_t i = prefix_walk(c, k); i > 1; i--) {
        pn_prefix_node *n = c->way[i - 1];
        if (n->goes || n->n_children != n->n_going || !prefix_rests(c, n))
            return;
        prefix_agree(c, n, true);
        n->parent->n_going++;
    }
}

PN_INTERNAL void pn_prefix_rest_over(pn_prefix *c, const pn_prefix_key *k)
{
    for (uint32_t i = prefix_walk(c, k); i > 0; i--) {
        c->way[i - 1]->n_going = 0;
        if (c->way[i - 1]->goes)
            prefix_agree(c, c->way[i - 1], false);
    }
}

PN_INTERNAL uint64_t pn_prefix_let_go(pn_prefix *c, const pn_prefix_key *k, uint32_t depth)
{
    uint64_t bytes = 0;
    for (uint32_t i = prefix_walk(c, k); i > depth; i--) {
        pn_prefix_node *n = c->way[i - 1];
        if (!n->goes || n->n_children || n->pins)
            break;
        bytes += prefix_node_bytes(c, n) - (prefix_state_held(c, n) ? prefix_state_bytes(c, n->space) : 0);
        for (uint32_t g = 0; g < prefix_n_groups(c, n->space); g++)
            bytes -= n->pages[g] && n->pages[g]->refs > 1 ? pn_kv_page_cost(c->spaces[n->space].spec, g, c->spaces[n->space].type) : 0;
        prefix_agree(c, n, false);
        n->parent->n_going--;
        prefix_heap_remove(c, n);
        prefix_remove_leaf(c, n);
    }
    return bytes;
}

/* ------------------------------------------------------------------------------------------
 * With a store below
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_prefix_follow(pn_prefix *c, const pn_prefix_key *k, pn_prefix_see see, void *user)
{
    uint32_t depth = prefix_walk(c, k);
    for (uint32_t i = 0; i < depth && prefix_allows(c, c->way[i], see, user); i++)
        ;
}

/* Those of the pages that the node lacks, as far as there is room; what is evicted for it must not be the node. */
static bool prefix_put_pages(pn_prefix *c, pn_prefix_node *n, pn_kv_page *const *pages)
{
    for (uint32_t g = 0; g < prefix_n_groups(c, n->space); g++) {
        uint64_t cost = pn_kv_page_cost(c->spaces[n->space].spec, g, c->spaces[n->space].type);
        if (!pages[g] || n->pages[g])
            continue;
        if (!prefix_room(c, cost))
            return false;
        pn_kv_retain(pages[g]);
        n->pages[g] = pages[g];
        c->stats.bytes += cost;
    }
    return true;
}

/* Pages of which a node can be made: those of groups without a window are all there. */
static bool prefix_makes_node(const pn_prefix *c, uint32_t space, pn_kv_page *const *pages)
{
    const pn_state_spec *spec = c->spaces[space].spec;
    for (uint32_t g = 0; g < spec->n_groups; g++)
        if (!pages[g] && !spec->group[g].window)
            return false;
    return true;
}

/* The node that takes *at's place, pinned. */
static pn_prefix_node *prefix_arrive(pn_prefix *c, pn_prefix_node *n, uint64_t tick)
{
    n->pins++;
    prefix_value(c, n, tick);
    return n;
}

static bool prefix_go(pn_prefix *c, const pn_prefix_key *k, pn_prefix_node **at, pn_kv_page *const *pages, uint64_t tick)
{
    pn_prefix_node *from = *at, *n;
    const pn_token *t = k->tokens + (from ? (size_t)from->depth * PREFIX_PAGE : 0);
    uint64_t hash = prefix_hash(c, k, from, t);
    n = prefix_child(c, k, from, t, hash);
    if (!n && (!pages || !prefix_makes_node(c, k->space, pages)))
        return false;
    if (n) {
        n = prefix_arrive(c, n, tick);          /* first: what makes room must not take it */
        if (pages)
            (void)prefix_put_pages(c, n, pages);
    } else {
        n = prefix_node_new(c, k, from, t, hash);
        if (n && !prefix_put_pages(c, n, pages)) {
            prefix_node_free(c, n);
            n = NULL;
        }
        if (!n)
            return false;
        n = prefix_arrive(c, prefix_node_add(c, n), tick);
    }
    pn_prefix_leave(from);
    *at = n;
    return true;
}

PN_INTERNAL bool pn_prefix_go(pn_prefix *c, const pn_prefix_key *k, pn_prefix_node **at, pn_kv_page *const *pages, uint64_t state,
                              uint64_t tick)
{
    bool there = prefix_go(c, k, at, pages, tick);
    if (state)
        prefix_add_state(c, there ? *at : NULL, state);
    return there;
}

PN_INTERNAL void pn_prefix_leave(pn_prefix_node *at)
{
    if (at)
        at->pins--;
}

/* ------------------------------------------------------------------------------------------
 * For tests and reports
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_prefix_visit(const pn_prefix *c, void (*see)(void *user, const pn_prefix_view *v), void *user)
{
    for (size_t i = 0; i < c->n_buckets; i++)
        for (const pn_prefix_node *n = c->bucket[i]; n; n = n->chain) {
            const pn_prefix_view v = {.node = n, .parent = n->parent, .space = n->space, .depth = n->depth,
                                      .pins = n->pins, .salt = n->salt, .value = n->value, .state = n->state,
                                      .tokens = n->tokens, .pages = n->pages};
            see(user, &v);
        }
}

PN_INTERNAL bool pn_prefix_sound(const pn_prefix *c)
{
    uint64_t bytes = sizeof *c + c->n_buckets * sizeof(void *) + c->heap_cap * sizeof(void *) +
                     c->way_cap * (1 + PN_MAX_GROUPS) * sizeof(void *) + c->n_spaces * sizeof *c->spaces;
    uint64_t nodes = 0, kids = 0, children = 0, leaves = 0;
    bool ok = true;
    for (size_t i = 0; i < c->n_buckets; i++)
        for (const pn_prefix_node *n = c->bucket[i]; n; n = n->chain) {
            const prefix_space *s = &c->spaces[n->space];
            bytes += prefix_node_bytes(c, n);
            for (uint32_t g = 0; g < s->spec->n_groups; g++)
                ok = ok && (n->pages[g] ? n->pages[g]->common && n->pages[g]->refs : s->spec->group[g].window != 0);
            nodes++;
            kids += n->parent != NULL;
            children += n->n_children;
            leaves += n->n_children == 0;
            ok = ok && (n->hash & (c->n_buckets - 1)) == i && n->depth == (n->parent ? n->parent->depth + 1 : 1);
            ok = ok && (!n->parent || (n->value <= n->parent->value && n->space == n->parent->space));
            ok = ok && (n->n_children || (n->heap_at < c->n_heap && c->heap[n->heap_at] == n));
        }
    for (size_t i = 1; i < c->n_heap; i++)
        ok = ok && !prefix_before(c->heap[i], c->heap[(i - 1) / 2]);
    return ok && bytes == c->stats.bytes && nodes == c->stats.nodes && kids == children && leaves == c->n_heap;
}
