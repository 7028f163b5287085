/* SPDX-License-Identifier: AGPL-3.0-only */
#include "engine/pn_tier.h"

#include "engine/pn_lend.h"

enum { TIER_PAGE = PN_KV_PAGE_TOKENS };

PN_INTERNAL pn_status pn_tier_open(pn_engine *e, const pn_engine_params *p, pn_err *err)
{
    e->cold_always = p->session_always != 0;
    return p->session_dir ? pn_cold_open(&e->cold, pn_engine_mem(e), p->session_dir, p->session_quota, err) : PN_OK;
}

PN_INTERNAL void pn_tier_close(pn_engine *e)
{
    pn_cold_close(e->cold);
    e->cold = NULL;
}

PN_INTERNAL void pn_tier_know(pn_model *m)
{
    pn_err err = {0};
    if (!m->engine->cold)
        return;
    m->identified = pn_model_identity(m, &m->identity, &err) == PN_OK;
    if (!m->identified)
        pn_engine_logf(m->engine, PN_LOG_WARN, "conversations are not kept on disk: %s", err.text);
}

PN_INTERNAL void pn_tier_note_prefill(pn_model *m, size_t n, double seconds)
{
    double rate = (double)n / PN_MAX(seconds, 1e-6);
    if (n >= TIER_PAGE)             /* a shorter one says more about the step than about the tokens */
        atomic_store(&m->prefill_rate, (unsigned)PN_MAX(1.0, PN_MIN(rate, 1e9)));
}

PN_API void pn_engine_cold(pn_engine *e, pn_cold_info *out)
{
    memset(out, 0, sizeof *out);
    if (e->cold)
        pn_cold_report(e->cold, out);
}

static pn_cold_kind tier_kind(const pn_session *s)
{
    return (pn_cold_kind){.model = &s->model->identity, .spec = s->kv.spec, .type = s->kv_type};
}

static pn_cold_key tier_root(const pn_session *s, uint64_t salt)
{
    const pn_cold_kind kind = tier_kind(s);
    return pn_cold_root(&kind, s->plans[0]->long_ctx, salt);
}

static bool tier_has(const pn_session *s) { return s->model->engine->cold && s->model->identified; }

static uint32_t tier_groups(const pn_prefix_stop *p)
{
    uint32_t groups = 0;
    for (uint32_t g = 0; g < p->n_groups; g++)
        groups |= p->pages[g] ? UINT32_C(1) << g : 0;
    return groups | (p->state ? UINT32_C(1) << PN_COLD_STATE : 0);
}

/* ------------------------------------------------------------------------------------------
 * Down
 * ------------------------------------------------------------------------------------------ */

typedef struct tier_saving {
    pn_session *s;
    pn_cold_key before;         /* of the page before, or the root */
} tier_saving;

/* A snapshot stands for more tokens than those of its page. */
static bool tier_worth(const pn_session *s, const pn_prefix_stop *p)
{
    const pn_engine *e = s->model->engine;
    uint64_t state = p->state ? pn_snap_cost(s->kv.spec->slot_bytes) : 0, bytes = p->bytes - state + state * TIER_PAGE / PN_STATE_EVERY;
    return e->cold_always || pn_cold_worth(e->cold, bytes, atomic_load(&s->model->prefill_rate));
}

static bool tier_save_page(void *user, const pn_prefix_stop *p)
{
    tier_saving *t = user;
    pn_cold *cold = t->s->model->engine->cold;
    pn_cold_unit u = {.kind = tier_kind(t->s), .parent = t->before, .tokens = p->tokens};
    PN_ASSERT(sizeof u.key == 2 * sizeof *p->name);
    if (!p->name[0] && !p->name[1]) {
        u.key = pn_cold_next(&t->before, p->tokens);
        memcpy(p->name, &u.key, sizeof u.key);
    }
    memcpy(&u.key, p->name, sizeof u.key);
    t->before = u.key;
    uint32_t groups = tier_groups(p);
    if (!(groups & ~pn_cold_known(cold, &u.key)))
        return true;
    if (!tier_worth(t->s, p))
        return false;
    pn_cold_save(cold, &u, p->pages, (pn_snap *)(uintptr_t)p->state, &pn_session_die(t->s)->cache.lock);
    return true;
}

PN_INTERNAL void pn_tier_save(pn_session *s, const pn_prefix_key *k)
{
    if (!tier_has(s))
        return;
    tier_saving t = {.s = s, .before = tier_root(s, k->salt)};
    pn_prefix_follow(pn_session_die(s)->cache.tree, k, tier_save_page, &t);
}

/* ------------------------------------------------------------------------------------------
 * Up
 * ------------------------------------------------------------------------------------------ */

/* A page of the prompt: groups that memory has, that the disk has. */
typedef struct tier_page {
    pn_cold_key key;
    uint32_t have, disk;
} tier_page;

typedef struct tier_way {
    pn_session *s;
    const pn_prefix_key *k;
    pn_cold_key root;
    tier_page *page;            /* owned, [n] */
    uint32_t n;
} tier_way;

static bool tier_note_page(void *user, const pn_prefix_stop *p)
{
    tier_way *w = user;
    w->page[p->depth - 1].have = tier_groups(p);
    return p->depth < w->n;
}

/* What there is of the prompt, here and there; returns the pages that are somewhere. */
static uint32_t tier_survey(tier_way *w)
{
    pn_cache *c = &pn_session_die(w->s)->cache;
    uint32_t i = 0;
    pn_mutex_lock(&c->lock);
    pn_prefix_follow(c->tree, w->k, tier_note_page, w);
    pn_mutex_unlock(&c->lock);
    for (const pn_cold_key *before = &w->root; i < w->n; before = &w->page[i++].key) {
        tier_page *p = &w->page[i];
        p->key = pn_cold_next(before, w->k->tokens + (size_t)i * TIER_PAGE);
        p->disk = pn_cold_groups(w->s->model->engine->cold, &p->key);
        if (!(p->have | p->disk))
            break;
    }
    return i;
}

/* The deepest of the first `depth` pages from which a sequence can go on (as pn_prefix.c has it), with what memory has
 * and, if disk_too, what the disk has. */
static uint32_t tier_usable(const tier_way *w, uint32_t depth, bool disk_too)
{
    const pn_state_spec *spec = w->s->kv.spec;
    uint32_t in_a_row[PN_MAX_GROUPS] = {0}, best = 0;
    for (uint32_t i = 0; i < depth; i++) {
        uint32_t groups = w->page[i].have | (disk_too ? w->page[i].disk : 0);
        bool whole = groups != 0 && (!spec->slot_bytes || groups >> PN_COLD_STATE & 1);
        for (uint32_t g = 0; g < spec->n_groups; g++) {
            in_a_row[g] = groups >> g & 1 ? in_a_row[g] + 1 : 0;
            whole = whole && in_a_row[g] + pn_kv_first_page(spec, g, (i + 1) * TIER_PAGE) >= i + 1;
        }
        if (!groups)
            break;
        best = whole ? i + 1 : best;
    }
    return best;
}

/* Groups that page i needs for a sequence of `depth` pages. */
static uint32_t tier_needs(const pn_state_spec *spec, uint32_t i, uint32_t depth)
{
    uint32_t groups = spec->slot_bytes && i + 1 == depth ? UINT32_C(1) << PN_COLD_STATE : 0;
    for (uint32_t g = 0; g < spec->n_groups; g++)
        groups |= i >= pn_kv_first_page(spec, g, depth * TIER_PAGE) ? UINT32_C(1) << g : 0;
    return groups;
}

static pn_status tier_read(const tier_way *w, uint32_t i, uint32_t want, pn_kv_page *pages[PN_MAX_GROUPS], pn_snap **state)
{
    const pn_model *m = w->s->model;
    pn_mem *const mem[2] = {pn_die_mem(m->dies[0]), pn_die_mem(m->dies[m->n_dies - 1])};
    const pn_cold_unit u = {.kind = tier_kind(w->s), .key = w->page[i].key, .parent = i ? w->page[i - 1].key : w->root,
                            .tokens = w->k->tokens + (size_t)i * TIER_PAGE};
    return pn_cold_load(m->engine->cold, &u, want, mem, pages, state, NULL);
}

/* From *at to page i, from memory or with what is read.  False: it ends here; so it does where a page was there in part
 * when we looked, and has gone since. */
static bool tier_step(const tier_way *w, uint32_t i, uint32_t needs, pn_prefix_node **at, uint64_t tick)
{
    pn_cache *c = &pn_session_die(w->s)->cache;
    pn_kv_page *pages[PN_MAX_GROUPS];
    pn_snap *state;
    const tier_page *p = &w->page[i];
    uint32_t lacks = needs & ~p->have;
    pn_mutex_lock(&c->lock);
    bool there = !lacks && pn_prefix_go(c->tree, w->k, at, NULL, 0, tick);
    pn_mutex_unlock(&c->lock);
    if (there)
        return true;
    if (tier_read(w, i, lacks ? lacks : needs, pages, &state))
        return false;
    pn_mutex_lock(&c->lock);
    bool ok = pn_prefix_go(c->tree, w->k, at, pages, (uint64_t)(uintptr_t)state, tick);
    for (uint32_t g = 0; g < PN_MAX_GROUPS; g++)
        pn_kv_release(pages[g]);
    pn_mutex_unlock(&c->lock);
    return ok;
}

/* Of keys and values in pages that are on disk only. */
static uint64_t tier_bytes(const tier_way *w, uint32_t depth)
{
    const pn_state_spec *spec = w->s->kv.spec;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < depth; i++)
        for (uint32_t g = 0; g < spec->n_groups; g++)
            sum += (tier_needs(spec, i, depth) & ~w->page[i].have) >> g & 1 ? pn_kv_page_cost(spec, g, w->s->kv_type) : 0;
    return sum;
}

static void tier_bring(const tier_way *w, uint32_t depth)
{
    pn_engine *e = w->s->model->engine;
    pn_cache *c = &pn_session_die(w->s)->cache;
    pn_prefix_node *at = NULL;
    pn_prefix_stats st;
    (void)pn_lend_back(e, pn_sub_sat(tier_bytes(w, depth), pn_govern_room_free(e, false)), true);
    uint64_t available = pn_model_available(w->s->model);
    pn_mutex_lock(&c->lock);
    uint64_t tick = ++c->tick;
    pn_prefix_get_stats(c->tree, &st);
    pn_prefix_limit(c->tree, PN_MIN(c->bytes_max, pn_add_sat(st.bytes, available)));
    pn_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < depth && tier_step(w, i, tier_needs(w->s->kv.spec, i, depth), &at, tick); i++)
        ;
    pn_mutex_lock(&c->lock);
    pn_prefix_leave(at);
    pn_mutex_unlock(&c->lock);
}

PN_INTERNAL void pn_tier_restore(pn_session *s, const pn_prefix_key *k)
{
    pn_mem *mem = pn_engine_mem(s->model->engine);
    tier_way w = {.s = s, .k = k, .n = (uint32_t)(k->n / TIER_PAGE)};
    if (!tier_has(s) || !w.n || !(w.page = pn_mem_calloc(mem, PN_ACCT_MISC, w.n, sizeof *w.page)))
        return;
    w.root = tier_root(s, k->salt);
    uint32_t depth = tier_survey(&w), best = tier_usable(&w, depth, true);
    if (best > tier_usable(&w, depth, false))
        tier_bring(&w, best);
    pn_mem_free(mem, PN_ACCT_MISC, w.page, w.n * sizeof *w.page);
}

/* ------------------------------------------------------------------------------------------
 * Rung 9.  What is worth saving is on its way to the disk since it came into the tree, so nothing is written here: a
 * slice never waits for a device.  What is not there yet follows when it is.
 * ------------------------------------------------------------------------------------------ */

typedef struct tier_rung {
    pn_cold *cold;
    uint64_t bytes;
} tier_rung;

static bool tier_on_disk(void *user, const pn_prefix_stop *p)
{
    const tier_rung *t = user;
    pn_cold_key key;
    memcpy(&key, p->name, sizeof key);
    return (p->name[0] || p->name[1]) && !(tier_groups(p) & ~pn_cold_groups(t->cold, &key));
}

static bool tier_count(void *user, const pn_prefix_stop *p)
{
    tier_rung *t = user;
    t->bytes += tier_on_disk(t, p) ? p->bytes : 0;
    return true;
}

PN_INTERNAL uint64_t pn_tier_gain(void *engine, uint32_t resource)
{
    pn_engine *e = engine;
    tier_rung t = {.cold = e->cold};
    for (uint32_t i = 0; i < e->n_dies; i++) {
        pn_cache *c = &e->dies[i].cache;
        if (resource && resource != 1 + i)
            continue;
        pn_mutex_lock(&c->lock);
        if (c->tree)
            pn_prefix_each(c->tree, tier_count, &t);
        pn_mutex_unlock(&c->lock);
    }
    return t.bytes;
}

PN_INTERNAL pn_rung_state pn_tier_apply(void *engine, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    pn_engine *e = engine;
    tier_rung t = {.cold = e->cold};
    pn_prefix_stats st;
    (void)deadline;
    for (uint32_t i = 0; i < e->n_dies && *freed < want; i++) {
        pn_cache *c = &e->dies[i].cache;
        if (resource && resource != 1 + i)
            continue;
        pn_mutex_lock(&c->lock);
        if (c->tree) {
            pn_prefix_get_stats(c->tree, &st);
            *freed += pn_prefix_shrink_if(c->tree, st.bytes - PN_MIN(st.bytes, want - *freed), tier_on_disk, &t);
        }
        pn_mutex_unlock(&c->lock);
    }
    return PN_RUNG_DONE;
}
