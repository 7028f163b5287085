/* SPDX-License-Identifier: AGPL-3.0-only */
#include "engine/pn_cache.h"

#include "engine/pn_tier.h"

enum {
    CACHE_SHARE = 10,               /* memory sheet 18: a tenth of the budget */
    CACHE_HIT_TICKS = 16            /* look-ups by which twice as many hits outlive fewer */
};
static const uint64_t cache_unknown = UINT64_C(256) << 20;     /* where nobody knows how much memory there is */

PN_INTERNAL void pn_cache_limit(pn_engine *e, const pn_engine_params *p)
{
    uint64_t total, available, budget = p->mem_limit ? p->mem_limit : UINT64_MAX;
    pn_os_memory(&total, &available);
    budget = total ? PN_MIN(budget, total) : budget;
    uint64_t share = budget == UINT64_MAX ? cache_unknown : budget / CACHE_SHARE;
    for (uint32_t i = 0; i < e->n_dies; i++) {
        pn_die *d = &e->dies[i];
        uint64_t own = d->simulated ? PN_MIN(share, d->sim.bytes / CACHE_SHARE) : share;
        d->cache.bytes_max = p->no_prefix ? 0 : p->prefix_bytes ? PN_MAX(p->prefix_bytes / e->n_dies, UINT64_C(1)) : own;
    }
}

PN_INTERNAL void pn_cache_close(pn_die *die)
{
    pn_prefix_free(die->cache.tree);
    pn_mutex_fini(&die->cache.lock);
}

/* ------------------------------------------------------------------------------------------
 * Looking up
 * ------------------------------------------------------------------------------------------ */

/* 1 + the space of this session's pages; 0: nothing was kept yet. */
static uint32_t *cache_space(const pn_session *s)
{
    return &s->model->spaces[2 * s->kv_type + s->plans[0]->long_ctx];
}

/* With the lock held.  False: nothing is known of the session's kind. */
static bool cache_key(const pn_session *s, uint64_t salt, const pn_token *tokens, size_t n, pn_prefix_key *k)
{
    uint32_t space = *cache_space(s);
    *k = (pn_prefix_key){.space = space - 1, .salt = salt, .tokens = tokens, .n = n};
    return space && n >= PN_KV_PAGE_TOKENS;
}

/* Snapshots are the tree's to hold like anybody's. */
static void cache_drop_state(void *user, uint64_t state)
{
    (void)user;
    pn_snap_release((pn_snap *)(uintptr_t)state);
}

static bool cache_state_held(void *user, uint64_t state)
{
    (void)user;
    return atomic_load(&((pn_snap *)(uintptr_t)state)->refs) > 1;
}

/* With the lock held: the tree and the session's space, made on first use.  False: no memory. */
static bool cache_ready(pn_session *s)
{
    pn_die *die = pn_session_die(s);
    pn_cache *c = &die->cache;
    uint32_t *space = cache_space(s);
    const pn_prefix_params p = {.bytes_max = c->bytes_max, .hit_ticks = CACHE_HIT_TICKS, .drop_state = cache_drop_state,
                                .state_held = cache_state_held};
    if (!c->tree && pn_prefix_new(&c->tree, pn_die_mem(die), &p, NULL))
        return false;
    if (!*space && pn_prefix_space_new(c->tree, s->kv.spec, s->kv_type, space, NULL) == PN_OK)
        ++*space;
    return *space != 0;
}

/* What the disk knows and memory does not comes into the tree. */
static void cache_restore(pn_session *s, uint64_t salt, const pn_token *tokens, size_t n)
{
    pn_cache *c = &pn_session_die(s)->cache;
    pn_prefix_key k;
    if (!s->model->engine->cold)
        return;
    pn_mutex_lock(&c->lock);
    bool ready = cache_ready(s) && cache_key(s, salt, tokens, n, &k);
    pn_mutex_unlock(&c->lock);
    if (ready)
        pn_tier_restore(s, &k);
}

PN_INTERNAL uint32_t pn_cache_adopt(pn_session *s, uint64_t salt, const pn_token *tokens, size_t n)
{
    pn_cache *c = &pn_session_die(s)->cache;
    pn_prefix_hit hit;
    pn_prefix_key k;
    if (!c->bytes_max || !n)
        return 0;
    cache_restore(s, salt, tokens, n - 1);
    pn_mutex_lock(&c->lock);
    c->n_queries++;
    c->tokens_asked += n;
    if (cache_key(s, salt, tokens, n - 1, &k) && pn_prefix_find(c->tree, &k, ++c->tick, &hit)) {
        if (pn_kv_adopt(&s->kv, hit.pages, hit.n_tokens, (pn_snap *)(uintptr_t)hit.state)) {
            memcpy(s->tokens, tokens, hit.n_tokens * sizeof *tokens);
            c->n_hits++;
            c->tokens_hit += hit.n_tokens;
        }
        pn_prefix_unpin(c->tree, &hit);
    }
    pn_mutex_unlock(&c->lock);
    return s->kv.length;
}

PN_INTERNAL uint32_t pn_cache_holds(pn_session *s, uint64_t salt, const pn_token *tokens, size_t n)
{
    pn_cache *c = &pn_session_die(s)->cache;
    pn_prefix_key k;
    pn_mutex_lock(&c->lock);
    uint32_t held = n && cache_key(s, salt, tokens, n - 1, &k) ? pn_prefix_peek(c->tree, &k) : 0;
    pn_mutex_unlock(&c->lock);
    return held;
}

PN_API uint32_t pn_model_cached(pn_model *m, const pn_token *tokens, size_t n)
{
    uint32_t best = 0;
    if (!m->n_dies)
        return 0;
    pn_cache *c = &m->dies[0]->cache;
    pn_mutex_lock(&c->lock);
    for (size_t i = 0; i < ENGINE_SPACES && n > PN_KV_PAGE_TOKENS; i++) {
        const pn_prefix_key k = {.space = m->spaces[i] - 1, .tokens = tokens, .n = n - 1};
        if (m->spaces[i])
            best = PN_MAX(best, pn_prefix_peek(c->tree, &k));
    }
    pn_mutex_unlock(&c->lock);
    return best;
}

/* ------------------------------------------------------------------------------------------
 * Keeping
 * ------------------------------------------------------------------------------------------ */

/* With the lock held: the pages of the key's tokens; of a recurrent model those before each snapshot, which is the tree's
 * from then on whatever happens.  Returns the tokens that are cached. */
static size_t cache_put(pn_session *s, pn_prefix_key *k, bool whole)
{
    pn_cache *c = &pn_session_die(s)->cache;
    size_t n = 0;
    uint32_t pos;
    if (!s->kv.state.slot_bytes)
        return pn_prefix_insert(c->tree, k, &s->kv, 0, ++c->tick);
    c->tick++;
    for (pn_snap *snap; (snap = pn_state_take(&s->kv.state, whole, &pos)) != NULL;) {
        k->n = pos;
        n = pn_prefix_insert(c->tree, k, &s->kv, (uint64_t)(uintptr_t)snap, c->tick);
    }
    return n;
}

PN_INTERNAL void pn_cache_insert(pn_session *s, bool whole)
{
    pn_cache *c = &pn_session_die(s)->cache;
    pn_prefix_key k;
    pn_prefix_stats st;
    if (!c->bytes_max || s->kv.length < PN_KV_PAGE_TOKENS || s->parked)
        return;
    uint64_t available = pn_model_available(s->model);
    bool held = atomic_load(&c->held);
    pn_mutex_lock(&c->lock);
    if (cache_ready(s) && cache_key(s, s->salt, s->tokens, s->kv.length, &k)) {
        pn_prefix_get_stats(c->tree, &st);
        pn_prefix_limit(c->tree, PN_MIN(c->bytes_max, st.bytes + (held ? 0 : available / 2)));
        k.n = cache_put(s, &k, whole);
        pn_tier_save(s, &k);
    }
    pn_mutex_unlock(&c->lock);
}

/* With the lock held: what the cache may know the session's pages by. */
static bool cache_own_key(const pn_session *s, pn_prefix_key *k)
{
    return !s->apart && cache_key(s, s->salt, s->tokens, s->kv.length, k);
}

PN_INTERNAL void pn_cache_rest(pn_session *s)
{
    pn_prefix_key k;
    if (cache_own_key(s, &k))
        pn_prefix_rest(pn_session_die(s)->cache.tree, &k);
}

PN_INTERNAL void pn_cache_rest_over(pn_session *s)
{
    pn_prefix_key k;
    if (cache_own_key(s, &k))
        pn_prefix_rest_over(pn_session_die(s)->cache.tree, &k);
}

PN_INTERNAL uint64_t pn_cache_let_go(pn_session *s, uint32_t depth)
{
    pn_prefix_key k;
    return cache_own_key(s, &k) ? pn_prefix_let_go(pn_session_die(s)->cache.tree, &k, depth) : 0;
}

/* Where memory is short it is left to what has to be there. */
PN_INTERNAL bool pn_cache_wants_state(const pn_session *s, bool *last_only)
{
    const pn_cache *c = &pn_session_die(s)->cache;
    uint64_t cost = pn_snap_cost(s->kv.state.slot_bytes);
    *last_only = atomic_load(&c->few_states);
    return cost && s->keeps_state && cost <= c->bytes_max / 2 && !atomic_load(&c->held) && pn_model_available(s->model) / 2 >= cost;
}

typedef struct cache_state_at {
    uint32_t depth;
    uint64_t state;
} cache_state_at;

static bool cache_see_state(void *user, const pn_prefix_stop *p)
{
    cache_state_at *a = user;
    a->state = p->depth == a->depth ? p->state : 0;
    return p->depth < a->depth;
}

PN_INTERNAL bool pn_cache_rewind(pn_session *s, uint32_t n)
{
    pn_cache *c = &pn_session_die(s)->cache;
    cache_state_at at = {.depth = n / PN_KV_PAGE_TOKENS};
    pn_prefix_key k;
    bool done = false;
    if (!s->kv.state.slot_bytes || n % PN_KV_PAGE_TOKENS || !n || s->apart)
        return false;
    pn_mutex_lock(&c->lock);
    if (cache_key(s, s->salt, s->tokens, n, &k)) {
        pn_prefix_follow(c->tree, &k, cache_see_state, &at);
        done = at.state && pn_kv_rewind(&s->kv, n, (pn_snap *)(uintptr_t)at.state);
    }
    pn_mutex_unlock(&c->lock);
    return done;
}

/* ------------------------------------------------------------------------------------------
 * Giving back
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL uint64_t pn_cache_droppable(pn_die *die)
{
    pn_cache *c = &die->cache;
    pn_mutex_lock(&c->lock);
    uint64_t bytes = c->tree ? pn_prefix_droppable(c->tree) : 0;
    if (die->engine->cold)
        bytes += pn_cold_waiting(die->engine->cold, &c->lock);
    pn_mutex_unlock(&c->lock);
    return bytes;
}

/* With the lock held: to `bytes`, of which `missing` are to come back.  Before they are short, what only waits for the
 * disk is not saved. */
static uint64_t cache_shrink(pn_die *die, uint64_t bytes, uint64_t missing)
{
    pn_cache *c = &die->cache;
    uint64_t given = pn_prefix_shrink(c->tree, bytes);
    if (given < missing && die->engine->cold && pn_cold_waiting(die->engine->cold, &c->lock)) {
        pn_cold_forget(die->engine->cold, &c->lock);
        given += pn_prefix_shrink(c->tree, bytes);
    }
    return given;
}

PN_INTERNAL uint64_t pn_cache_give(pn_die *die, uint64_t bytes)
{
    pn_cache *c = &die->cache;
    pn_prefix_stats st;
    uint64_t given = 0;
    pn_mutex_lock(&c->lock);
    if (c->tree) {
        pn_prefix_get_stats(c->tree, &st);
        given = cache_shrink(die, st.bytes - PN_MIN(st.bytes, bytes), bytes);
    }
    pn_mutex_unlock(&c->lock);
    return given;
}

PN_INTERNAL uint64_t pn_cache_state_bytes(pn_die *die)
{
    pn_cache *c = &die->cache;
    pn_mutex_lock(&c->lock);
    uint64_t bytes = c->tree ? pn_prefix_thin_bytes(c->tree) : 0;
    pn_mutex_unlock(&c->lock);
    return bytes;
}

PN_INTERNAL uint64_t pn_cache_give_states(pn_die *die, uint64_t bytes)
{
    pn_cache *c = &die->cache;
    pn_mutex_lock(&c->lock);
    uint64_t given = c->tree ? pn_prefix_thin(c->tree, bytes) : 0;
    pn_mutex_unlock(&c->lock);
    return given;
}

PN_INTERNAL void pn_cache_few_states(pn_die *die, bool few) { atomic_store(&die->cache.few_states, few); }

PN_INTERNAL uint64_t pn_cache_droppable_all(pn_engine *e)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < e->n_dies; i++)
        bytes += pn_cache_droppable(&e->dies[i]);
    return bytes;
}

PN_INTERNAL uint64_t pn_cache_give_all(pn_engine *e, uint64_t bytes)
{
    uint64_t given = 0;
    for (uint32_t i = 0; i < e->n_dies && given < bytes; i++)
        given += pn_cache_give(&e->dies[i], bytes - given);
    return given;
}

PN_INTERNAL void pn_cache_forget(pn_model *m)
{
    if (!m->n_dies)
        return;
    pn_cache *c = &m->dies[0]->cache;
    pn_mutex_lock(&c->lock);
    for (size_t i = 0; i < ENGINE_SPACES; i++)
        if (m->spaces[i])
            pn_prefix_space_drop(c->tree, m->spaces[i] - 1);
    pn_mutex_unlock(&c->lock);
}

PN_API void pn_engine_prefix(pn_engine *e, pn_prefix_info *out)
{
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < e->n_dies; i++) {
        pn_cache *c = &e->dies[i].cache;
        pn_prefix_stats st = {0};
        pn_mutex_lock(&c->lock);
        if (c->tree)
            pn_prefix_get_stats(c->tree, &st);
        out->bytes += st.bytes;
        out->bytes_max += c->bytes_max;
        out->pages += st.nodes;
        out->queries += c->n_queries;
        out->hits += c->n_hits;
        out->tokens_asked += c->tokens_asked;
        out->tokens_hit += c->tokens_hit;
        out->evicted += st.evicted;
        pn_mutex_unlock(&c->lock);
    }
}
