/*
 * test_prefix.c - the prefix tree against a plain list of everything cached, compared token by token,
 * over random requests, evictions, limits and failing allocations.
 *
 * No model: a "step" writes one stamp a position, a hash of all tokens up to there, so a page tells
 * whether it is what a sequence with these tokens would have computed.
 */
#include "store/pn_prefix.h"

#include "base/pn_hash.h"
#include "mem/pn_ledger.h"

#include "pn_test.h"

enum { P = PN_KV_PAGE_TOKENS, RIG_PAGES = 9, RIG_CTX = RIG_PAGES * P, RIG_BATCH = 2 * P, RIG_SEQS = 4, RIG_PINS = 3,
       RIG_NODES = 1000, RIG_SPACES = 3 };

static const pn_state_spec rig_spec[RIG_SPACES] = {
    {.group = {{.n_layers = 1, .n_heads = 1, .d_k = 2, .d_v = 2}}, .n_groups = 1},
    {.group = {{.n_layers = 1, .n_heads = 1, .d_k = 2, .d_v = 2}, {.n_layers = 2, .n_heads = 1, .d_k = 2, .d_v = 2, .window = 100}},
     .n_groups = 2},
    {.group = {{.n_layers = 1, .n_heads = 1, .d_k = 2, .d_v = 4}}, .n_groups = 1, .slot_bytes = 5000}};

/* What the cache holds, as a list.  The key is the whole way: space, salt, tokens. */
typedef struct rig_entry {
    uint32_t space, depth, pins;
    uint64_t salt, last_use, state, value;
    uint32_t hits;
    pn_token tokens[RIG_CTX];
    pn_kv_page *pages[2];
    const pn_prefix_node *node, *parent;
    bool busy;                          /* pinned or used, itself or something below */
} rig_entry;

typedef struct rig_list {
    rig_entry e[RIG_NODES];
    uint32_t n;
} rig_list;

typedef struct rig_seq {
    pn_kv kv;
    bool open;
    uint32_t space;
    uint64_t salt;
    pn_token tokens[RIG_CTX];
} rig_seq;

typedef struct rig {
    pn_test_mem m, snaps;               /* snaps: what sequences begin with */
    pn_prefix *c;
    uint32_t space[RIG_SPACES];
    rig_seq seq[RIG_SEQS];
    pn_prefix_hit pin[RIG_PINS];
    uint8_t state_live[4000];           /* by id */
    uint64_t n_states, tick, seed, hit_ticks;
    rig_list list, next;
} rig;

static uint64_t rig_rand(rig *r, uint64_t below) { return pn_test_rand(&r->seed) % below; }

static void rig_drop_state(void *user, uint64_t state)
{
    rig *r = user;
    PN_CHECK(state && state <= r->n_states && r->state_live[state], "snapshot %" PRIu64 " dropped twice", state);
    r->state_live[state] = 0;
}

static uint32_t rig_stamp(const pn_token *tokens, uint32_t n) { return (uint32_t)pn_hash(tokens, n * sizeof *tokens, 7); }

/* Page i of a sequence or hit must be what tokens[0..) give; `to` positions of it are written. */
static bool rig_page_right(const pn_kv_page *p, const pn_token *tokens, uint32_t i, uint32_t to)
{
    for (uint32_t pos = i * P; pos < to && pos < (i + 1) * P; pos += 21)
        if (((const uint32_t *)p->data)[pos % P] != rig_stamp(tokens, pos + 1))
            return false;
    return true;
}

/* ---- the list ----------------------------------------------------------------------------- */

static void rig_see(void *user, const pn_prefix_view *v)
{
    rig *r = user;
    if (!PN_CHECK(r->next.n < RIG_NODES && v->depth <= RIG_PAGES, "a node at depth %u", (unsigned)v->depth))
        return;
    rig_entry *e = &r->next.e[r->next.n++];
    memset(e, 0, offsetof(rig_entry, tokens));
    e->space = v->space;
    e->depth = v->depth;
    e->pins = v->pins;
    e->salt = v->salt;
    e->state = v->state;
    e->value = v->value;
    memcpy(e->tokens + (size_t)(v->depth - 1) * P, v->tokens, P * sizeof *v->tokens);
    e->pages[0] = v->pages[0];
    e->pages[1] = rig_spec[v->space].n_groups > 1 ? v->pages[1] : NULL;
    e->node = v->node;
    e->parent = v->parent;
    e->busy = false;
}

static rig_entry *rig_by_node(rig_list *l, const pn_prefix_node *node)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (l->e[i].node == node)
            return &l->e[i];
    return NULL;
}

/* The entry for these tokens, or NULL: the slow way. */
static rig_entry *rig_by_tokens(rig_list *l, uint32_t space, uint64_t salt, const pn_token *tokens, uint32_t depth)
{
    for (uint32_t i = 0; i < l->n; i++) {
        rig_entry *e = &l->e[i];
        if (e->depth == depth && e->space == space && e->salt == salt &&
            memcmp(e->tokens, tokens, (size_t)depth * P * sizeof *tokens) == 0)
            return e;
    }
    return NULL;
}

static uint64_t rig_value(const rig *r, const rig_entry *e)
{
    uint64_t v = e->last_use;
    for (uint64_t h = (uint64_t)e->hits + 1; h > 1; h /= 2)
        v += r->hit_ticks;
    return v;
}

static bool rig_before(const rig *r, const rig_entry *a, const rig_entry *b)
{
    uint64_t va = rig_value(r, a), vb = rig_value(r, b);
    return va != vb ? va < vb : a->depth > b->depth;
}

/* Was there a snapshot behind this entry's?  Before or after: what made room may have taken that one next. */
static bool rig_is_followed(const rig *r, const rig_entry *e)
{
    const rig_list *lists[] = {&r->list, &r->next};
    for (size_t k = 0; k < PN_COUNT_OF(lists); k++)
        for (uint32_t i = 0; i < lists[k]->n; i++) {
            const rig_entry *x = &lists[k]->e[i];
            if (x->state && x->depth > e->depth && x->space == e->space && x->salt == e->salt &&
                memcmp(x->tokens, e->tokens, (size_t)e->depth * P * sizeof *e->tokens) == 0)
                return true;
        }
    return false;
}

/* Read the tree anew into r->next, keep what is known about entries that stayed, compare all else.
 * `tokens` (or NULL): what was just inserted, up to `reached` tokens. */
static void rig_reread(rig *r, uint32_t space, uint64_t salt, const pn_token *tokens, size_t reached)
{
    r->next.n = 0;
    pn_prefix_visit(r->c, rig_see, r);
    for (uint32_t i = 0; i < r->next.n; i++) {          /* whole ways */
        rig_entry *e = &r->next.e[i], *up = rig_by_node(&r->next, e->parent);
        bool busy = e->pins || (e->pages[0] && e->pages[0]->refs > 1) || (e->pages[1] && e->pages[1]->refs > 1);
        for (rig_entry *b = e; busy && b && !b->busy; b = rig_by_node(&r->next, b->parent))
            b->busy = true;
        for (; up; up = rig_by_node(&r->next, up->parent))
            memcpy(e->tokens + (size_t)(up->depth - 1) * P, up->tokens + (size_t)(up->depth - 1) * P, P * sizeof(pn_token));
    }
    for (uint32_t i = 0; i < r->next.n; i++) {
        rig_entry *e = &r->next.e[i], *was = rig_by_tokens(&r->list, e->space, e->salt, e->tokens, e->depth);
        bool fresh = tokens && e->space == space && e->salt == salt && (size_t)e->depth * P <= reached &&
                     memcmp(e->tokens, tokens, (size_t)e->depth * P * sizeof *tokens) == 0;
        PN_CHECK(rig_by_tokens(&r->next, e->space, e->salt, e->tokens, e->depth) == e, "two nodes for the same tokens");
        /* An insertion that makes room may evict the far end of its own way and put it back: another node,
         * maybe at the same address. */
        bool same = was && was->node == e->node && (!was->state || !e->state || was->state == e->state || fresh);
        PN_CHECK(!was || !was->state || e->state || fresh || rig_is_followed(r, e), "a snapshot left that no other one follows");
        for (int g = 0; g < 2; g++) {
            same = same && (!was->pages[g] || was->pages[g] == e->pages[g]);
            PN_CHECK(!e->pages[g] || rig_page_right(e->pages[g], e->tokens, e->depth - 1, e->depth * P), "wrong content");
        }
        e->hits = same ? was->hits : 0;
        e->last_use = same && !fresh ? was->last_use : r->tick;
        if (same && fresh && rig_value(r, e) != e->value)
            e->hits = 0;
        PN_CHECK(same || fresh, "a node that nobody inserted, or that changed");
        PN_CHECK(rig_value(r, e) == e->value, "value %" PRIu64 ", expected %" PRIu64, e->value, rig_value(r, e));
    }
    /* Whoever left was worth less than whoever could have left and did not. */
    for (uint32_t i = 0; i < r->list.n; i++) {
        rig_entry *gone = &r->list.e[i], *same = rig_by_node(&r->next, gone->node);
        if (same && same->depth == gone->depth && memcmp(same->tokens, gone->tokens, gone->depth * P * sizeof(pn_token)) == 0)
            continue;
        PN_CHECK(!gone->pins, "a pinned node left");
        for (uint32_t j = 0; j < r->next.n; j++) {
            rig_entry *e = &r->next.e[j];
            rig_entry *old = rig_by_node(&r->list, e->node);
            bool on_way = tokens && e->space == space && e->salt == salt && e->last_use == r->tick;
            if (old && !e->busy && !old->busy && !on_way)
                PN_CHECK(rig_before(r, gone, e), "value %" PRIu64 " left, %" PRIu64 " stayed", rig_value(r, gone), rig_value(r, e));
        }
    }
    memcpy(&r->list, &r->next, offsetof(rig_list, e) + r->next.n * sizeof r->next.e[0]);
    r->list.n = r->next.n;
}

/* ---- bytes and references ----------------------------------------------------------------- */

static uint32_t rig_holders(const rig *r, const pn_kv_page *p)
{
    uint32_t n = 0;
    for (uint32_t q = 0; q < RIG_SEQS; q++)
        for (uint32_t g = 0; r->seq[q].open && g < r->seq[q].kv.spec->n_groups; g++)
            for (uint32_t i = 0; i < RIG_PAGES; i++)
                n += r->seq[q].kv.group[g].table[i] == p;
    for (uint32_t i = 0; i < r->list.n; i++)
        n += (r->list.e[i].pages[0] == p) + (r->list.e[i].pages[1] == p);
    return n;
}

/* What a holder of this page answers for: its part of a common page, nothing of an own one. */
static double rig_part(const rig *r, const pn_kv_page *p, const pn_state_spec *spec, uint32_t g)
{
    uint32_t holders = p ? rig_holders(r, p) : 0;
    PN_CHECK(!p || p->refs == holders, "%u references, %u holders", p ? (unsigned)p->refs : 0, (unsigned)holders);
    return p && p->common ? (double)pn_kv_page_cost(spec, g, PN_DTYPE_F16) / holders : 0;
}

static void rig_check(rig *r)
{
    pn_prefix_stats s;
    pn_prefix_get_stats(r->c, &s);
    PN_CHECK(pn_prefix_sound(r->c), "unsound");
    PN_CHECK(s.nodes == r->list.n && s.inserted - s.evicted == s.nodes, "%" PRIu64 " nodes", s.nodes);
    PN_CHECK(s.bytes <= s.bytes_max, "%" PRIu64 " bytes of %" PRIu64, s.bytes, s.bytes_max);
    double common = 0;
    uint64_t bytes = s.bytes, states = 0;
    for (uint32_t q = 0; q < RIG_SEQS; q++) {
        const rig_seq *x = &r->seq[q];
        uint64_t one, pages;
        if (!x->open)
            continue;
        pn_kv_bytes(x->kv.spec, RIG_CTX, RIG_BATCH, PN_DTYPE_F16, &one, &pages);
        bytes += one + pn_state_turn_bytes(x->kv.spec->slot_bytes);
        for (uint32_t g = 0; g < x->kv.spec->n_groups; g++) {
            uint32_t own = x->kv.group[g].n_free;
            for (uint32_t i = 0; i < RIG_PAGES; i++) {
                const pn_kv_page *p = x->kv.group[g].table[i];
                common += rig_part(r, p, x->kv.spec, g);
                own += p && !p->common;
                if (p && i * P < x->kv.length)
                    PN_CHECK(rig_page_right(p, x->tokens, i, x->kv.length), "sequence %u, page %u", (unsigned)q, (unsigned)i);
            }
            PN_CHECK(own == x->kv.group[g].n_pages, "the reserve of sequence %u is not whole", (unsigned)q);
        }
    }
    for (uint32_t i = 0; i < r->list.n; i++) {
        const rig_entry *e = &r->list.e[i];
        for (uint32_t g = 0; g < rig_spec[e->space].n_groups; g++) {
            common += rig_part(r, e->pages[g], &rig_spec[e->space], g);
            bytes -= e->pages[g] ? pn_kv_page_cost(&rig_spec[e->space], g, PN_DTYPE_F16) : 0;
        }
        bytes -= e->state ? pn_snap_cost(rig_spec[e->space].slot_bytes) : 0;
        states += e->state != 0;
        PN_CHECK(!e->state || r->state_live[e->state], "a dead snapshot");
    }
    for (uint64_t i = 1; i <= r->n_states; i++)
        states -= r->state_live[i];
    PN_CHECK(states == 0, "snapshots were lost");
    PN_CHECK(bytes + (uint64_t)(common + 0.5) == r->m.bytes, "%" PRIu64 " bytes, taken %" PRIu64, bytes + (uint64_t)(common + 0.5),
             r->m.bytes);
}

/* ---- requests ----------------------------------------------------------------------------- */

/* Pages are drawn from a few that differ in one token, at either end or in the middle. */
static void rig_tokens(rig *r, pn_token *tokens, uint32_t from, uint32_t n)
{
    for (uint32_t i = from; i < n; i++) {
        if (i % P == 0 || i == from) {
            for (uint32_t k = i; k < PN_MIN(n, (i / P + 1) * P); k++)
                tokens[k] = 5;
            static const uint8_t at[] = {0, 31, 63};
            uint32_t k = i / P * P + at[rig_rand(r, 3)];
            if (k >= i && k < n)
                tokens[k] = (pn_token)rig_rand(r, 3);
        }
    }
}

/* The longest way in the list a sequence can start from: every boundary, every page, token by token. */
static uint32_t rig_longest(rig *r, uint32_t space, uint64_t salt, const pn_token *tokens, uint32_t n, uint64_t *state)
{
    for (uint32_t k = n / P; k; k--) {
        bool ok = true;
        for (uint32_t i = 1; i <= k && ok; i++) {
            rig_entry *e = rig_by_tokens(&r->list, space, salt, tokens, i);
            ok = e && e->pages[0];
            uint32_t w = rig_spec[space].group[1].window;
            if (ok && rig_spec[space].n_groups > 1 && i * P + w > k * P + 1)    /* has a token the query at k * P sees */
                ok = e->pages[1] != NULL;
            if (ok && i == k && rig_spec[space].slot_bytes) {
                ok = e->state != 0;
                *state = e->state;
            }
        }
        if (ok)
            return k * P;
    }
    *state = 0;
    return 0;
}

static void rig_compute(rig *r, rig_seq *s, uint32_t n)
{
    while (s->kv.length < n) {
        uint32_t rows = 1 + (uint32_t)rig_rand(r, RIG_BATCH);
        rows = PN_MIN(rows, n - s->kv.length);
        long calls = r->m.n_calls;
        pn_kv_prepare(&s->kv, rows);
        for (uint32_t pos = s->kv.length; pos < s->kv.length + rows; pos++)
            for (uint32_t g = 0; g < s->kv.spec->n_groups; g++) {
                PN_CHECK(!s->kv.group[g].table[pos / P]->common, "a common page would be written");
                ((uint32_t *)s->kv.group[g].table[pos / P]->data)[pos % P] = rig_stamp(s->tokens, pos + 1);
            }
        pn_kv_commit(&s->kv, rows);
        PN_CHECK(r->m.n_calls == calls, "a step allocated");
    }
}

static void rig_find(rig *r, rig_seq *s, uint32_t n, pn_prefix_hit *hit)
{
    pn_prefix_key k = {r->space[s->space], s->salt, s->tokens, n};
    long calls = r->m.n_calls;
    uint64_t state = 0;
    uint32_t want = rig_longest(r, s->space, s->salt, s->tokens, n, &state);
    uint32_t got = pn_prefix_find(r->c, &k, r->tick, hit);
    PN_CHECK(got == want && hit->n_tokens == got && hit->state == state, "found %u tokens, there are %u", (unsigned)got,
             (unsigned)want);
    PN_CHECK(r->m.n_calls == calls, "finding allocated");
    for (uint32_t i = 0; i < got / P; i++) {
        rig_entry *e = rig_by_tokens(&r->list, s->space, s->salt, s->tokens, i + 1);
        e->hits++;
        e->last_use = r->tick;
        e->pins += i + 1 == got / P;
        for (uint32_t g = 0; g < rig_spec[s->space].n_groups; g++)
            PN_CHECK(hit->pages[g][i] == e->pages[g], "page %u of group %u", (unsigned)i, (unsigned)g);
    }
}

static void rig_insert(rig *r, rig_seq *s, uint32_t n)
{
    pn_prefix_key k = {r->space[s->space], s->salt, s->tokens, n};
    uint64_t state = 0;
    if (rig_spec[s->space].slot_bytes && n % P == 0 && r->n_states + 1 < PN_COUNT_OF(r->state_live)) {
        state = ++r->n_states;
        r->state_live[state] = 1;
    }
    size_t got = pn_prefix_insert(r->c, &k, &s->kv, state, r->tick);
    PN_CHECK(got % P == 0 && got <= n, "inserted %zu of %u", got, (unsigned)n);
    rig_reread(r, s->space, s->salt, s->tokens, got);
    for (uint32_t i = 1; i <= got / P; i++)
        PN_CHECK(rig_by_tokens(&r->list, s->space, s->salt, s->tokens, i), "page %u is not there", (unsigned)i);
    pn_prefix_stats st;
    pn_prefix_get_stats(r->c, &st);
    PN_CHECK(got == n / P * P || st.bytes_max < UINT64_MAX || r->m.fail_at, "without a limit everything fits");
}

/* A request: find, adopt, compute the rest, insert, answer, insert again. */
static void rig_request(rig *r, rig_seq *s)
{
    uint32_t n = 1 + (uint32_t)rig_rand(r, RIG_CTX), keep = rig_rand(r, 2) ? (uint32_t)rig_rand(r, RIG_CTX) : 0;
    uint32_t prompt = 1 + (uint32_t)rig_rand(r, n);
    pn_prefix_hit hit;
    if (!rig_rand(r, 3))
        n = prompt = (n + P - 1) / P * P;       /* whole pages: snapshots */
    const rig_seq *like = &r->seq[rig_rand(r, RIG_SEQS)];
    if (like != s && like->space == s->space && rig_rand(r, 2)) {
        memcpy(s->tokens, like->tokens, sizeof s->tokens);
        s->salt = like->salt;
    }
    rig_tokens(r, s->tokens, keep, RIG_CTX);
    pn_kv_truncate(&s->kv, 0);
    if (rig_find(r, s, prompt - 1, &hit), hit.n_tokens) {
        pn_snap *in = s->kv.spec->slot_bytes ? pn_snap_new((pn_mem *const[2]){&r->snaps.mem, NULL}, s->kv.spec->slot_bytes, 0) : NULL;
        PN_CHECK(!in || !pn_kv_adopt(&s->kv, hit.pages, hit.n_tokens, NULL), "pages without state");
        PN_CHECK(pn_kv_adopt(&s->kv, hit.pages, hit.n_tokens, in) && s->kv.length == hit.n_tokens, "adopting a hit");
        pn_snap_release(in);
        uint32_t p = (uint32_t)rig_rand(r, RIG_PINS);
        if (r->pin[p].n_tokens)
            rig_by_node(&r->list, r->pin[p].node)->pins--;
        pn_prefix_unpin(r->c, &r->pin[p]);
        r->pin[p] = hit;                        /* held for some time */
        rig_reread(r, 0, 0, NULL, 0);
    }
    rig_check(r);
    rig_compute(r, s, prompt);
    rig_insert(r, s, prompt);
    rig_check(r);
    rig_compute(r, s, n);
    if (rig_rand(r, 2))
        rig_insert(r, s, n);
}

static void rig_close(rig *r, rig_seq *s)
{
    if (rig_rand(r, 2)) {
        pn_kv_retire(&s->kv);
        rig_insert(r, s, s->kv.length);
    }
    pn_kv_close(&s->kv);
    s->open = false;
    r->tick += 1000;        /* what was busy is not any more: a new start for the order */
    rig_reread(r, 0, 0, NULL, 0);
}

static void rig_unpin(rig *r, pn_prefix_hit *hit)
{
    rig_entry *e = rig_by_node(&r->list, hit->node);
    if (e)
        e->pins--;
    pn_prefix_unpin(r->c, hit);
    rig_reread(r, 0, 0, NULL, 0);
}

static void rig_limit(rig *r, uint64_t bytes)
{
    pn_prefix_stats s;
    for (int i = 0; i < RIG_PINS; i++)
        rig_unpin(r, &r->pin[i]);
    pn_prefix_limit(r->c, bytes);
    rig_reread(r, 0, 0, NULL, 0);
    pn_prefix_get_stats(r->c, &s);
    if (s.bytes > s.bytes_max)      /* sequences use that much: only clear() is stronger */
        pn_prefix_clear(r->c);
    pn_prefix_get_stats(r->c, &s);
    if (s.bytes > s.bytes_max)      /* tables alone */
        pn_prefix_limit(r->c, 0);
    r->list.n = 0;
    r->next.n = 0;
    pn_prefix_visit(r->c, rig_see, r);
    PN_CHECK(r->next.n == s.nodes, "%u nodes", (unsigned)r->next.n);
}

static void rig_one(rig *r)
{
    rig_seq *s = &r->seq[rig_rand(r, RIG_SEQS)];
    uint32_t what = (uint32_t)rig_rand(r, 20);
    r->tick += 1000;
    if (!s->open) {
        s->space = (uint32_t)rig_rand(r, RIG_SPACES);
        s->salt = rig_rand(r, 2);
        s->open = pn_kv_open(&s->kv, &r->m.mem, &rig_spec[s->space], RIG_CTX, RIG_BATCH, PN_DTYPE_F16, NULL) == PN_OK;
    } else if (what == 0) {
        rig_close(r, s);
    } else if (what <= 2) {         /* go back and diverge: shared pages are copied */
        uint32_t n = (uint32_t)rig_rand(r, s->kv.length + 1);
        if (pn_kv_truncate(&s->kv, n)) {
            rig_tokens(r, s->tokens, n, RIG_CTX);
            rig_compute(r, s, n + (uint32_t)rig_rand(r, RIG_CTX - n + 1));
        }
        rig_reread(r, 0, 0, NULL, 0);
    } else if (what == 3) {
        rig_unpin(r, &r->pin[rig_rand(r, RIG_PINS)]);
    } else if (what == 4) {
        pn_prefix_stats b, a;
        pn_prefix_get_stats(r->c, &b);
        uint64_t freed = pn_prefix_shrink(r->c, b.bytes - rig_rand(r, b.bytes / 4));
        pn_prefix_get_stats(r->c, &a);
        PN_CHECK(freed == b.bytes - a.bytes, "%" PRIu64 " bytes freed", freed);
        rig_reread(r, 0, 0, NULL, 0);
    } else {
        rig_request(r, s);
    }
    rig_check(r);
}

static bool rig_open(rig *r, uint64_t seed, long fail_at, uint64_t bytes_max, uint64_t hit_ticks)
{
    memset(r, 0, sizeof *r);
    pn_test_mem_init(&r->m, fail_at);
    pn_test_mem_init(&r->snaps, 0);
    r->seed = seed;
    r->hit_ticks = hit_ticks;
    const pn_prefix_params p = {.bytes_max = bytes_max, .hit_ticks = hit_ticks, .drop_state = rig_drop_state, .user = r};
    pn_err err;
    pn_status st = pn_prefix_new(&r->c, &r->m.mem, &p, &err);
    for (uint32_t i = 0; i < RIG_SPACES && !st; i++) {
        st = pn_prefix_space_new(r->c, &rig_spec[i], PN_DTYPE_F16, &r->space[i], &err);
        PN_CHECK(st || r->space[i] == i, "space %u", (unsigned)r->space[i]);
    }
    PN_CHECK(!st || (fail_at && st == PN_E_NOMEM), "%s", st ? err.text : "");
    if (st)
        pn_prefix_free(r->c);
    return !st;
}

static long rig_end(rig *r)
{
    for (int i = 0; i < RIG_PINS; i++)
        pn_prefix_unpin(r->c, &r->pin[i]);
    for (int q = 0; q < RIG_SEQS; q += 2)
        if (r->seq[q].open)
            pn_kv_close(&r->seq[q].kv);
    if (r->seed % 2)
        pn_prefix_space_drop(r->c, 1);
    PN_CHECK(pn_prefix_sound(r->c), "after dropping a space");
    pn_prefix_free(r->c);
    for (int q = 1; q < RIG_SEQS; q += 2)       /* pages in use outlive the cache */
        if (r->seq[q].open)
            pn_kv_close(&r->seq[q].kv);
    for (uint64_t i = 1; i <= r->n_states; i++)
        PN_CHECK(!r->state_live[i], "snapshot %" PRIu64 " left", i);
    PN_CHECK(r->m.outstanding == 0 && r->m.bytes == 0 && r->snaps.outstanding == 0, "%ld blocks left", r->m.outstanding);
    return r->m.n_calls;
}

static rig the_rig;

static void random_requests_agree_with_the_plain_list(void)
{
    static const uint64_t budget[] = {20000, 40000, 100000, 200000};
    pn_prefix_stats s, sum = {0};
    for (uint64_t seed = 1; seed <= 12; seed++) {
        rig *r = &the_rig;
        rig_open(r, seed, 0, budget[seed % PN_COUNT_OF(budget)], seed % 3 ? 1237 : 0);
        for (int i = 0; i < 400; i++)
            rig_one(r);
        pn_prefix_get_stats(r->c, &s);
        sum.hits += s.hits;
        sum.queries += s.queries;
        sum.evicted += s.evicted;
        sum.inserted += s.inserted;
        rig_limit(r, 3000 + seed * 1000);
        rig_end(r);
    }
    PN_CHECK(sum.hits * 5 > sum.queries && sum.hits < sum.queries && sum.evicted > 1000,
             "%" PRIu64 " hits of %" PRIu64 ", %" PRIu64 " of %" PRIu64 " evicted: a test that shows little", sum.hits,
             sum.queries, sum.evicted, sum.inserted);
}

static void a_failing_allocation_costs_a_page_and_nothing_else(void)
{
    for (long k = 1, calls = 1; k <= calls; k++)
        if (rig_open(&the_rig, 5, k, 0, 0)) {
            for (int i = 0; i < 12; i++)
                rig_one(&the_rig);
            long n = rig_end(&the_rig);
            calls = PN_MAX(calls, n);
        } else {
            PN_CHECK(the_rig.m.outstanding == 0, "%ld blocks left", the_rig.m.outstanding);
            calls++;
        }
}

/* ---- single facts ------------------------------------------------------------------------- */

static void fact_open(rig *r, uint32_t space, uint64_t bytes_max)
{
    rig_open(r, 1, 0, bytes_max, 0);
    for (uint32_t q = 0; q < 2; q++) {
        rig_seq *s = &r->seq[q];
        s->space = space;
        s->open = pn_kv_open(&s->kv, &r->m.mem, &rig_spec[space], RIG_CTX, RIG_BATCH, PN_DTYPE_F16, NULL) == PN_OK;
        for (uint32_t i = 0; i < RIG_CTX; i++)
            s->tokens[i] = (pn_token)i;
    }
}

static size_t fact_insert(rig *r, rig_seq *s, uint32_t n)
{
    const pn_prefix_key k = {r->space[s->space], s->salt, s->tokens, n};
    return pn_prefix_insert(r->c, &k, &s->kv, 0, ++r->tick);
}

static uint32_t fact_find(rig *r, const rig_seq *s, uint32_t n)
{
    const pn_prefix_key k = {r->space[s->space], s->salt, s->tokens, n};
    pn_prefix_hit hit;
    uint32_t got = pn_prefix_find(r->c, &k, ++r->tick, &hit);
    pn_prefix_unpin(r->c, &hit);
    return got;
}

static void only_whole_pages_of_the_same_space_and_salt_are_found(void)
{
    rig *r = &the_rig;
    fact_open(r, 0, 0);
    rig_compute(r, &r->seq[0], 200);
    PN_CHECK(fact_insert(r, &r->seq[0], 200) == 3 * P, " ");
    rig_seq *o = &r->seq[1];
    PN_CHECK(fact_find(r, o, 3 * P) == 3 * P && fact_find(r, o, 3 * P - 1) == 2 * P && fact_find(r, o, 0) == 0, " ");
    PN_CHECK(fact_find(r, o, RIG_CTX) == 3 * P, "no further than it is known");
    o->tokens[P]++;
    PN_CHECK(fact_find(r, o, RIG_CTX) == P, "the same start");
    o->tokens[0]++;
    PN_CHECK(fact_find(r, o, RIG_CTX) == 0, "another start");
    o->tokens[0]--;
    o->salt = 9;
    PN_CHECK(fact_find(r, o, RIG_CTX) == 0, "another salt");
    o->salt = 0;
    o->space = 2;
    PN_CHECK(fact_find(r, o, RIG_CTX) == 0, "another space");
    pn_prefix_clear(r->c);
    PN_CHECK(fact_find(r, &r->seq[0], RIG_CTX) == 0, "after clear()");
    pn_prefix_stats s;
    pn_prefix_get_stats(r->c, &s);
    PN_CHECK(s.nodes == 0 && s.queries == 9 && s.hits == 4 && s.tokens_hit == 9 * P, "%" PRIu64 " tokens", s.tokens_hit);
    rig_end(r);
}

/* Window 100: going on at 512 needs positions 413 and later, pages 6 and 7. */
static void a_hit_needs_the_last_window(void)
{
    rig *r = &the_rig;
    fact_open(r, 1, 0);
    rig_compute(r, &r->seq[0], 8 * P);
    pn_kv_prepare(&r->seq[0].kv, 1);            /* recycles what the next token does not see */
    PN_CHECK(!r->seq[0].kv.group[1].table[5] && r->seq[0].kv.group[1].table[6], " ");
    PN_CHECK(fact_insert(r, &r->seq[0], 8 * P) == 8 * P, " ");
    PN_CHECK(fact_find(r, &r->seq[1], 8 * P) == 8 * P, "the end");
    PN_CHECK(fact_find(r, &r->seq[1], 7 * P) == 0, "page 5 of the window is gone");
    rig_compute(r, &r->seq[1], 4 * P);
    PN_CHECK(fact_insert(r, &r->seq[1], 4 * P) == 4 * P && fact_find(r, &r->seq[1], 5 * P) == 4 * P, "gaps are filled");
    rig_end(r);
}

static void pinned_and_used_pages_stay(void)
{
    rig *r = &the_rig;
    fact_open(r, 0, 0);
    rig_compute(r, &r->seq[0], 4 * P);
    fact_insert(r, &r->seq[0], 4 * P);
    PN_CHECK(pn_prefix_shrink(r->c, 0) == 0, "the sequence uses them");
    const pn_prefix_key k = {r->space[0], 0, r->seq[0].tokens, 2 * P};
    pn_prefix_hit hit;
    pn_prefix_find(r->c, &k, 1, &hit);
    pn_kv_close(&r->seq[0].kv);
    r->seq[0].open = false;
    pn_prefix_clear(r->c);
    PN_CHECK(fact_find(r, &r->seq[1], RIG_CTX) == 2 * P, "pinned, and what leads there");
    PN_CHECK(pn_kv_adopt(&r->seq[1].kv, hit.pages, 2 * P, NULL), " ");
    pn_prefix_unpin(r->c, &hit);
    PN_CHECK(pn_prefix_shrink(r->c, 0) == 0, "adopted");
    pn_prefix_clear(r->c);
    PN_CHECK(fact_find(r, &r->seq[1], RIG_CTX) == 0 && rig_page_right(r->seq[1].kv.group[0].table[1], r->seq[1].tokens, 1, 2 * P),
             "forgotten, but not for its sequence");
    rig_end(r);
}

/* The ledger: a page passes from its sequence to the cache, to another sequence, to nobody. */
static void accounts_follow_the_pages(void)
{
    pn_ledger l;
    pn_kv a, b;
    pn_prefix *c;
    uint32_t space;
    pn_prefix_hit hit;
    static const pn_token tokens[4 * P] = {1};
    const pn_state_spec *spec = &rig_spec[0];
    uint64_t kv, pages, page = pn_kv_page_cost(spec, 0, PN_DTYPE_F16), empty;
    pn_kv_bytes(spec, 4 * P, P, PN_DTYPE_F16, &kv, &pages);
    pn_ledger_init(&l, NULL, 0);
    PN_CHECK(!pn_prefix_new(&c, &l.mem, &(pn_prefix_params){0}, NULL) && !pn_prefix_space_new(c, spec, PN_DTYPE_F16, &space, NULL) &&
             !pn_kv_open(&a, &l.mem, spec, 4 * P, P, PN_DTYPE_F16, NULL), " ");
    for (int i = 0; i < 3; i++) {
        pn_kv_prepare(&a, P);
        memset(a.group[0].table[i]->data, i, (size_t)(page - 64));
        pn_kv_commit(&a, P);
    }
    PN_CHECK(l.used[PN_ACCT_KV] + l.used[PN_ACCT_KV_RESERVE] == kv, "%llu", (unsigned long long)(l.used[PN_ACCT_KV] + l.used[PN_ACCT_KV_RESERVE]));
    const pn_prefix_key k = {space, 0, tokens, 3 * P};
    pn_prefix_insert(c, &k, &a, 0, 1);
    pn_prefix_stats s;
    pn_prefix_get_stats(c, &s);
    PN_CHECK(l.used[PN_ACCT_KV] + l.used[PN_ACCT_KV_RESERVE] == kv && l.used[PN_ACCT_PREFIX] == s.bytes && s.bytes > 3 * page, "inserted");
    pn_kv_close(&a);
    PN_CHECK(l.used[PN_ACCT_KV] == 0 && l.used[PN_ACCT_PREFIX] == s.bytes, "the cache alone");
    PN_CHECK(!pn_kv_open(&b, &l.mem, spec, 4 * P, P, PN_DTYPE_F16, NULL), " ");
    PN_CHECK(pn_prefix_find(c, &k, 2, &hit) == 3 * P && pn_kv_adopt(&b, hit.pages, 3 * P, NULL), " ");
    pn_prefix_unpin(c, &hit);
    PN_CHECK(l.used[PN_ACCT_KV] + l.used[PN_ACCT_KV_RESERVE] == kv && l.used[PN_ACCT_PREFIX] == s.bytes, "adopting is free");
    pn_prefix_clear(c);
    pn_prefix_get_stats(c, &s);
    empty = s.bytes;
    PN_CHECK(l.used[PN_ACCT_PREFIX] == empty + 3 * page, "used, not cached");
    pn_kv_truncate(&b, 0);
    PN_CHECK(l.used[PN_ACCT_PREFIX] == empty && l.used[PN_ACCT_KV] + l.used[PN_ACCT_KV_RESERVE] == kv, "nobody's");
    /* A full ledger: the page that a share needs is taken from the cache. */
    for (int i = 0; i < 2; i++) {
        pn_kv_prepare(&b, P);
        pn_kv_commit(&b, P);
    }
    const pn_prefix_key one = {space, 1, tokens, P}, two = {space, 2, tokens + P, P};
    pn_prefix_insert(c, &one, &b, 0, 3);
    pn_kv_truncate(&b, 0);
    pn_kv_prepare(&b, P);
    pn_kv_commit(&b, P);
    l.limit = l.total + 500;        /* a node, but no page */
    PN_CHECK(pn_prefix_insert(c, &two, &b, 0, 4) == P && pn_prefix_find(c, &one, 5, &hit) == 0 && pn_prefix_find(c, &two, 5, &hit) == P,
             "the older one gave way");
    pn_prefix_unpin(c, &hit);
    pn_kv_close(&b);
    pn_prefix_free(c);
    PN_CHECK(l.total == 0 && l.used[PN_ACCT_KV] == 0 && l.used[PN_ACCT_PREFIX] == 0, "%llu bytes left",
             (unsigned long long)l.total);
}

/* Equal ticks: the end of a long way goes before a short one, whichever came first. */
static void among_equals_the_deeper_goes_first(void)
{
    for (uint32_t first = 0; first < 2; first++) {
        rig *r = &the_rig;
        pn_prefix_stats s;
        fact_open(r, 0, 0);
        r->seq[1].tokens[0] = 77;
        for (uint32_t i = 0; i < 2; i++) {
            rig_seq *q = &r->seq[first ^ i];
            uint32_t n = q == &r->seq[1] ? P : 3 * P;
            rig_compute(r, q, n);
            r->tick = 0;
            PN_CHECK(fact_insert(r, q, n) == n, " ");
            pn_kv_close(&q->kv);
            q->open = false;
        }
        pn_prefix_get_stats(r->c, &s);
        pn_prefix_shrink(r->c, s.bytes - 1);
        PN_CHECK(fact_find(r, &r->seq[0], 3 * P) == 2 * P && fact_find(r, &r->seq[1], P) == P, "order %u", (unsigned)first);
        rig_end(r);
    }
}

/* 20,000 prompts that differ in their last token, and one of 2,000 pages: both in a moment. */
static void many_siblings_and_long_ways_are_cheap(void)
{
    enum { SIBLINGS = 20000, LONG = 2000 };
    pn_test_mem m;
    pn_kv kv;
    pn_prefix *c;
    pn_prefix_hit hit;
    uint32_t space;
    pn_prefix_stats s;
    pn_token *tokens = calloc(LONG * P, sizeof *tokens);
    pn_test_mem_init(&m, 0);
    PN_CHECK(!pn_prefix_new(&c, &m.mem, &(pn_prefix_params){0}, NULL), " ");
    PN_CHECK(!pn_prefix_space_new(c, &rig_spec[0], PN_DTYPE_F16, &space, NULL), " ");
    PN_CHECK(!pn_kv_open(&kv, &m.mem, &rig_spec[0], LONG * P, P, PN_DTYPE_F16, NULL), " ");
    for (int i = 0; i < LONG; i++) {
        pn_kv_prepare(&kv, P);
        pn_kv_commit(&kv, P);
    }
    const pn_prefix_key all = {space, 0, tokens, LONG * P};
    PN_CHECK(pn_prefix_insert(c, &all, &kv, 0, 1) == LONG * P && pn_prefix_find(c, &all, 2, &hit) == LONG * P, " ");
    pn_prefix_unpin(c, &hit);
    pn_prefix_get_stats(c, &s);
    pn_kv_close(&kv);
    pn_prefix_limit(c, s.bytes + SIBLINGS / 2 * 1000u);         /* half of them has to go again */
    PN_CHECK(!pn_kv_open(&kv, &m.mem, &rig_spec[0], P, P, PN_DTYPE_F16, NULL), " ");
    for (int i = 0; i < SIBLINGS; i++) {
        tokens[P - 1] = i + 1;
        const pn_prefix_key k = {space, 0, tokens, P};
        pn_kv_truncate(&kv, 0);
        pn_kv_prepare(&kv, P);
        pn_kv_commit(&kv, P);
        PN_CHECK(pn_prefix_insert(c, &k, &kv, 0, (uint64_t)i + 3) == P && pn_prefix_find(c, &k, (uint64_t)i + 3, &hit) == P, " ");
        pn_prefix_unpin(c, &hit);
    }
    pn_kv_close(&kv);
    PN_CHECK(pn_prefix_sound(c), " ");
    pn_prefix_get_stats(c, &s);
    PN_CHECK(s.bytes <= s.bytes_max && s.evicted > SIBLINGS / 4, "%" PRIu64 " evicted", s.evicted);
    pn_prefix_free(c);
    PN_CHECK(m.outstanding == 0, "%ld blocks left", m.outstanding);
    free(tokens);
}

/* ---- with a store below ------------------------------------------------------------------- */

static bool rig_count_stop(void *user, const pn_prefix_stop *s)
{
    uint32_t *n = user;
    n[0]++;
    n[1] += s->name[0] == 7;
    s->name[0] = 7;
    return n[0] < 3;
}

static bool rig_first_alone(void *user, const pn_prefix_stop *s)
{
    (void)user;
    return s->depth > 1;
}

/* Pages come back one by one, some without what a window had passed; half a page is refused. */
static void what_came_back_is_put_in(void)
{
    pn_test_mem m;
    pn_prefix *c = NULL;
    pn_kv_page *p[3][2];
    pn_token tokens[3 * P];
    uint32_t space, n[2] = {0};
    pn_prefix_hit hit;
    pn_prefix_stats st;
    pn_test_mem_init(&m, 0);
    PN_CHECK(pn_prefix_new(&c, &m.mem, &(pn_prefix_params){.bytes_max = 1 << 20}, NULL) == PN_OK && pn_prefix_space_new(c, &rig_spec[1], PN_DTYPE_F16, &space, NULL) == PN_OK);
    for (int i = 0; i < 3 * P; i++)
        tokens[i] = i;
    for (int i = 0; i < 6; i++)
        p[i / 2][i % 2] = pn_kv_page_new(&m.mem, &rig_spec[1].group[i % 2], PN_DTYPE_F16);
    const pn_prefix_key k = {.space = space, .tokens = tokens, .n = 3 * P};
    pn_prefix_node *at = NULL;
    PN_CHECK(!pn_prefix_go(c, &k, &at, NULL, 0, 1) && !pn_prefix_go(c, &k, &at, (pn_kv_page *[]){NULL, p[0][1]}, 0, 1) && !at, "made of nothing");
    for (int i = 0; i < 3; i++)
        PN_CHECK(pn_prefix_go(c, &k, &at, (pn_kv_page *[]){p[i][0], i == 1 ? NULL : p[i][1]}, 0, 1) && pn_prefix_sound(c), "page %d", i);
    pn_prefix_leave(at);
    PN_CHECK(pn_prefix_peek(c, &k) == P, "a window is missing: %u", (unsigned)pn_prefix_peek(c, &k));
    at = NULL;
    PN_CHECK(pn_prefix_go(c, &k, &at, NULL, 0, 2) && pn_prefix_go(c, &k, &at, (pn_kv_page *[]){NULL, p[1][1]}, 0, 2) && pn_prefix_go(c, &k, &at, NULL, 0, 2), "filled");
    pn_prefix_leave(at);
    for (int i = 0; i < 6; i++) {
        PN_CHECK(p[i / 2][i % 2]->refs == 2, "page %d has %u holders", i, (unsigned)p[i / 2][i % 2]->refs);
        pn_kv_release(p[i / 2][i % 2]);
    }
    PN_CHECK(pn_prefix_sound(c) && pn_prefix_find(c, &k, 3, &hit) == 3 * P && hit.pages[1][1] == p[1][1], "%u tokens", (unsigned)hit.n_tokens);
    pn_prefix_unpin(c, &hit);
    pn_prefix_follow(c, &k, rig_count_stop, n);
    PN_CHECK(n[0] == 3 && n[1] == 0, "%u stops", (unsigned)n[0]);
    n[0] = 0;
    pn_prefix_each(c, rig_count_stop, n);
    PN_CHECK(n[0] == 3 && n[1] == 3, "names are not kept");
    PN_CHECK(pn_prefix_shrink_if(c, 0, rig_first_alone, NULL) > 0 && pn_prefix_peek(c, &k) == P && pn_prefix_sound(c), "others went, too");
    pn_prefix_limit(c, 1);
    pn_prefix_get_stats(c, &st);
    PN_CHECK(st.nodes == 0, "%u nodes", (unsigned)st.nodes);
    pn_prefix_free(c);
    PN_CHECK(m.outstanding == 0, "%ld blocks leak", m.outstanding);
}

static uint64_t thin_dropped[8];
static uint32_t thin_n;

static void thin_drop(void *user, uint64_t state)
{
    (void)user;
    if (thin_n < PN_COUNT_OF(thin_dropped))
        thin_dropped[thin_n++] = state;
}

/* A page comes back with its snapshot, or the snapshot alone to a page that is there; where nothing can be put it goes. */
static void a_snapshot_is_put_in(void)
{
    const pn_state_spec *spec = &rig_spec[2];
    uint64_t none = 0;
    pn_test_mem m;
    pn_prefix *c = NULL;
    pn_token tokens[2 * P];
    uint32_t space;
    pn_prefix_hit hit;
    pn_test_mem_init(&m, 0);
    thin_n = 0;
    const pn_prefix_params params = {.bytes_max = 1 << 20, .drop_state = thin_drop, .user = &none};
    PN_CHECK(pn_prefix_new(&c, &m.mem, &params, NULL) == PN_OK && pn_prefix_space_new(c, spec, PN_DTYPE_F16, &space, NULL) == PN_OK);
    for (int i = 0; i < 2 * P; i++)
        tokens[i] = i;
    pn_kv_page *p = pn_kv_page_new(&m.mem, &spec->group[0], PN_DTYPE_F16);
    const pn_prefix_key k = {.space = space, .tokens = tokens, .n = 2 * P};
    pn_prefix_node *at = NULL;
    PN_CHECK(!pn_prefix_go(c, &k, &at, (pn_kv_page *[]){NULL}, 1, 1) && thin_n == 1 && thin_dropped[0] == 1, "a snapshot without a page");
    PN_CHECK(pn_prefix_go(c, &k, &at, (pn_kv_page *[]){p}, 0, 1) && pn_prefix_peek(c, &k) == 0, "a page without one");
    PN_CHECK(pn_prefix_go(c, &k, &at, (pn_kv_page *[]){p}, 2, 1) && pn_prefix_peek(c, &k) == 2 * P, "both");
    pn_prefix_leave(at);
    at = NULL;
    PN_CHECK(pn_prefix_go(c, &k, &at, (pn_kv_page *[]){NULL}, 3, 2) && pn_prefix_go(c, &k, &at, (pn_kv_page *[]){NULL}, 4, 2) && thin_n == 2 &&
             thin_dropped[1] == 4, "to a page that has one");
    pn_prefix_leave(at);
    PN_CHECK(pn_prefix_sound(c) && pn_prefix_find(c, &(pn_prefix_key){.space = space, .tokens = tokens, .n = P}, 3, &hit) == P && hit.state == 3, "%u tokens",
             (unsigned)hit.n_tokens);
    pn_prefix_unpin(c, &hit);
    pn_kv_release(p);
    pn_prefix_free(c);
    PN_CHECK(m.outstanding == 0 && thin_n == 4, "%ld blocks leak", m.outstanding);
}

/* ---- snapshots alone ---------------------------------------------------------------------- */

static bool thin_held(void *user, uint64_t state) { return state == *(const uint64_t *)user; }

/* Two ways with snapshots, one of which others hold, another one pinned: those behind which there is one go, the least
 * valuable first, but not the one where the ways part; and the pages stay. */
static void thinning_leaves_each_way_its_last_snapshot(void)
{
    const pn_state_spec *spec = &rig_spec[2];
    uint64_t held = 3, slot = pn_snap_cost(spec->slot_bytes);
    pn_test_mem m;
    pn_prefix *c = NULL;
    pn_kv kv;
    pn_token tokens[6 * P];
    uint32_t space;
    pn_prefix_hit hit;
    pn_prefix_stats before, after;
    pn_test_mem_init(&m, 0);
    thin_n = 0;
    const pn_prefix_params params = {.drop_state = thin_drop, .state_held = thin_held, .user = &held};
    PN_CHECK(pn_prefix_new(&c, &m.mem, &params, NULL) == PN_OK && pn_prefix_space_new(c, spec, PN_DTYPE_F16, &space, NULL) == PN_OK &&
             pn_kv_open(&kv, &m.mem, spec, 6 * P, 6 * P, PN_DTYPE_F16, NULL) == PN_OK);
    pn_kv_prepare(&kv, 6 * P);
    pn_kv_commit(&kv, 6 * P);
    for (int way = 0; way < 2; way++) {                 /* snapshots 1 to 6 behind as many pages; of the other way 7 behind 6 */
        for (int i = 0; i < 6 * P; i++)
            tokens[i] = i < 4 * P ? i : i + way;
        for (uint32_t i = way ? 6 : 1; i <= 6; i++) {
            const pn_prefix_key k = {.space = space, .tokens = tokens, .n = (size_t)i * P};
            PN_CHECK(pn_prefix_insert(c, &k, &kv, way ? 7 : i, (uint64_t)100 - i) == (size_t)i * P, " ");
        }
    }
    const pn_prefix_key two = {.space = space, .tokens = tokens, .n = 2 * P};
    PN_CHECK(pn_prefix_find(c, &two, 100, &hit) == 2 * P && hit.state == 2, "%u tokens", (unsigned)hit.n_tokens);
    pn_prefix_get_stats(c, &before);
    PN_CHECK(pn_prefix_thin_bytes(c) == 2 * slot, "%u bytes", (unsigned)pn_prefix_thin_bytes(c));     /* 1 and 5 */
    PN_CHECK(pn_prefix_thin(c, 1) == slot && thin_n == 1 && thin_dropped[0] == 5, "%u went first", (unsigned)thin_dropped[0]);
    PN_CHECK(pn_prefix_thin(c, UINT64_MAX) == slot && thin_n == 2 && thin_dropped[1] == 1, "%u went", (unsigned)thin_n);
    PN_CHECK(pn_prefix_thin_bytes(c) == 0 && pn_prefix_thin(c, UINT64_MAX) == 0, "what others hold went");
    pn_prefix_unpin(c, &hit);
    held = 0;
    PN_CHECK(pn_prefix_thin(c, UINT64_MAX) == 2 * slot, "2 and 3 stay");
    pn_prefix_get_stats(c, &after);
    PN_CHECK(pn_prefix_sound(c) && after.nodes == before.nodes && before.bytes - after.bytes == 4 * slot, "pages went");
    PN_CHECK(pn_prefix_peek(c, &(pn_prefix_key){.space = space, .tokens = tokens, .n = 5 * P}) == 4 * P, "where the ways part nobody can go on");
    for (int way = 0; way < 2; way++) {
        const pn_prefix_key k = {.space = space, .tokens = tokens, .n = 6 * P};
        for (int i = 4 * P; i < 6 * P; i++)
            tokens[i] = i + way;
        PN_CHECK(pn_prefix_peek(c, &k) == 6 * P && pn_prefix_find(c, &k, 200, &hit) == 6 * P && hit.state == (way ? 7u : 6u), "way %d", way);
        pn_prefix_unpin(c, &hit);
    }
    pn_kv_close(&kv);
    pn_prefix_free(c);
    PN_CHECK(m.outstanding == 0 && thin_n == 7, "%ld blocks left", m.outstanding);
}

int main(void)
{
    only_whole_pages_of_the_same_space_and_salt_are_found();
    a_hit_needs_the_last_window();
    pinned_and_used_pages_stay();
    among_equals_the_deeper_goes_first();
    accounts_follow_the_pages();
    random_requests_agree_with_the_plain_list();
    a_failing_allocation_costs_a_page_and_nothing_else();
    many_siblings_and_long_ways_are_cheap();
    what_came_back_is_put_in();
    a_snapshot_is_put_in();
    thinning_leaves_each_way_its_last_snapshot();
    return pn_test_end();
}
