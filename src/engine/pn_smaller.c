/* SPDX-License-Identifier: AGPL-3.0-only */
#include "engine/pn_smaller.h"

#include "engine/pn_cache.h"

/* Sessions of a model that rest and permit it; with the model's lock held, so the list stays as it is. */
typedef struct smaller_walk {
    pn_model *m;
    uint32_t type;
    bool also_recent;
} smaller_walk;

/* Those that were taken: nobody else takes any. */
static bool smaller_has(const smaller_walk *w, const pn_session *s)
{
    return atomic_load(&s->users) == SESSION_TAKEN && s->auto_type && s->kv.by_turn &&
           pn_kv_bytes_per_token(&w->m->desc.state, w->type) < pn_kv_bytes_per_token(&w->m->desc.state, s->kv_type);
}

static pn_session *smaller_next(const smaller_walk *w, pn_session *s)
{
    for (s = s ? s->next : w->m->sessions; s && !smaller_has(w, s);)
        s = s->next;
    return s;
}

/* All that rest are taken, and what they hold knows it. */
static void smaller_begin(const smaller_walk *w)
{
    pn_mutex *pages = &w->m->dies[0]->cache.lock;
    for (pn_session *s = w->m->sessions; s; s = s->next)
        (void)pn_session_try_take(s);
    pn_mutex_lock(pages);
    for (pn_session *s = NULL; (s = smaller_next(w, s)) != NULL;)
        pn_kv_rest(&s->kv, w->type, w->also_recent);
    for (pn_session *s = NULL; (s = smaller_next(w, s)) != NULL;)
        pn_cache_rest(s);
    pn_mutex_unlock(pages);
}

static void smaller_end(const smaller_walk *w)
{
    pn_mutex *pages = &w->m->dies[0]->cache.lock;
    pn_mutex_lock(pages);
    for (pn_session *s = NULL; (s = smaller_next(w, s)) != NULL;) {
        pn_cache_rest_over(s);
        pn_kv_rest_over(&s->kv);
    }
    pn_mutex_unlock(pages);
    for (pn_session *s = w->m->sessions; s; s = s->next)
        if (atomic_load(&s->users) == SESSION_TAKEN)
            pn_session_untake(s);
}

/* With the pages' lock held: the next page of s that may be, from *g, *i on, for all who have it.  Where the cache has come to
 * need it meanwhile, it is left.  0: there is none. */
static uint64_t smaller_page(const smaller_walk *w, pn_session *s, uint32_t *g, uint32_t *i)
{
    uint64_t bytes = 0, freed = 0;
    for (; !freed && pn_kv_requant_next(&s->kv, w->type, w->also_recent, g, i); ++*g) {
        const pn_kv_page *p = s->kv.group[*g].table[*i];
        bool tree = p->common && pn_kv_is_tree(p), common = p->common;
        for (pn_session *t = NULL; tree && (t = smaller_next(w, t)) != NULL;)
            bytes += *i < t->kv.group[*g].n_table && t->kv.group[*g].table[*i] == p ? pn_cache_let_go(t, *i) : 0;
        if (tree && pn_kv_is_tree(p))
            continue;
        freed = pn_kv_requant(&s->kv, *g, *i, w->type);
        for (pn_session *t = NULL; common && freed && (t = smaller_next(w, t)) != NULL;)
            pn_kv_inherit(&t->kv, *g, *i);
    }
    return bytes + freed;
}

PN_INTERNAL uint64_t pn_smaller_idle(pn_model *m, uint32_t type, bool also_recent, uint64_t want, double deadline)
{
    const smaller_walk w = {m, type, also_recent};
    pn_mutex *pages = &m->dies[0]->cache.lock;
    uint64_t bytes = 0;
    pn_mutex_lock(&m->lock);
    smaller_begin(&w);
    for (pn_session *s = NULL; (!bytes || (bytes < want && pn_os_now() < deadline)) && (s = smaller_next(&w, s)) != NULL;) {
        uint32_t g = 0, i = 0;
        uint64_t freed;
        do {                    /* the lock is others', too */
            pn_mutex_lock(pages);
            freed = smaller_page(&w, s, &g, &i);
            pn_mutex_unlock(pages);
            bytes += freed;
        } while (freed && bytes < want && pn_os_now() < deadline);
    }
    smaller_end(&w);
    pn_mutex_unlock(&m->lock);
    return bytes;
}

PN_INTERNAL uint64_t pn_smaller_idle_gain(pn_model *m, uint32_t type, bool also_recent)
{
    const smaller_walk w = {m, type, also_recent};
    pn_mutex *pages = &m->dies[0]->cache.lock;
    uint64_t bytes = 0;
    pn_mutex_lock(&m->lock);
    smaller_begin(&w);
    pn_mutex_lock(pages);
    for (pn_session *s = NULL; (s = smaller_next(&w, s)) != NULL;)
        bytes += pn_kv_rest_gain(&s->kv, type, also_recent);
    pn_mutex_unlock(pages);
    smaller_end(&w);
    pn_mutex_unlock(&m->lock);
    return bytes;
}
