/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_rungs_kv.c - the lossy rungs: keys and values in smaller types (memory sheet 7, rungs 6, 7, 8 and 17).
 *
 *     step 0   as configured        step 1   Q8_0        step 2   the smallest that the engine and the gate allow
 *
 * Rung 6 moves a die's step for sequences that begin; 7 and 8 convert pages of those that exist to the step's type,
 * 17 to the smallest, recent pages too.  A type that the gate has not passed on a model is not used for it, so as long
 * as nobody has probed there is nothing to gain here.  Probing takes seconds: the engine's own thread does it when it
 * has been idle for a while on a machine that has been short of memory (pn_rungs_probe); others call
 * pn_model_kv_gate() when it suits them.
 */
#include "engine/pn_cache.h"
#include "engine/pn_gate.h"
#include "engine/pn_rungs.h"
#include "engine/pn_sched.h"
#include "engine/pn_smaller.h"

#include <stdio.h>

enum { RUNG_KV_STEPS = 2 };

static pn_kv_gate_params rung_kv_limits(const pn_engine *e)
{
    return (pn_kv_gate_params){.size = sizeof(pn_kv_gate_params), .max_kl = e->kv_max_kl, .min_top1 = e->kv_min_top1};
}

static uint64_t rung_kv_token(const pn_model *m, uint32_t type) { return pn_kv_bytes_per_token(&m->desc.state, type); }

PN_INTERNAL uint32_t pn_rungs_kv_type(pn_model *m, uint32_t step)
{
    const pn_kv_gate_params limits = rung_kv_limits(m->engine);
    uint32_t whole = m->exact ? PN_DTYPE_F32 : PN_DTYPE_F16, least = step == 1 ? (uint32_t)PN_DTYPE_Q8_0 : m->engine->kv_least;
    if (step == 0 || m->exact || rung_kv_token(m, least) < rung_kv_token(m, m->engine->kv_least))
        return whole;
    return pn_gate_smallest(m, least, &limits);
}

/* ------------------------------------------------------------------------------------------
 * 6  sequences that begin
 * ------------------------------------------------------------------------------------------ */

/* Would the next step be a smaller type for some model on the die?  Its share of what is held now. */
static double rung_kv_saves(pn_die *die)
{
    pn_engine *e = die->engine;
    uint32_t step = atomic_load(&die->kv_step);
    double saves = 0;
    if (step == RUNG_KV_STEPS)
        return 0;
    pn_mutex_lock(&e->models_lock);
    for (pn_model *m = e->models; m; m = m->next)
        if (m->n_dies && m->dies[0] == die) {
            double now = (double)rung_kv_token(m, pn_rungs_kv_type(m, step)), then = (double)rung_kv_token(m, pn_rungs_kv_type(m, step + 1));
            saves = then < now ? PN_MAX(saves, 1 - then / now) : saves;
        }
    pn_mutex_unlock(&e->models_lock);
    return saves;
}

static uint64_t rung_new_gain(void *user, uint32_t resource)
{
    pn_engine *e = user;
    uint64_t held = atomic_load(&e->ledger.used[PN_ACCT_KV]) + atomic_load(&e->ledger.used[PN_ACCT_KV_RESERVE]);
    double saves = 0;
    for (pn_die *die = NULL; (die = pn_rungs_die(e, resource, die));)
        saves = PN_MAX(saves, rung_kv_saves(die));
    return (uint64_t)((double)held * saves);
}

static pn_rung_state rung_new_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    pn_engine *e = user;
    (void)want, (void)deadline, (void)freed;
    for (pn_die *die = NULL; (die = pn_rungs_die(e, resource, die));)
        if (rung_kv_saves(die) > 0)
            atomic_fetch_add(&die->kv_step, 1u);
    return PN_RUNG_DONE;
}

static pn_rung_state rung_new_undo(void *user, uint32_t resource, double deadline)
{
    pn_engine *e = user;
    pn_rung_state more = PN_RUNG_DONE;
    (void)deadline;
    for (pn_die *die = NULL; (die = pn_rungs_die(e, resource, die));)
        if (atomic_load(&die->kv_step) && atomic_fetch_sub(&die->kv_step, 1u) > 1)
            more = PN_RUNG_MORE;
    return more;
}

/* ------------------------------------------------------------------------------------------
 * 7, 8, 17  pages of sequences that exist
 * ------------------------------------------------------------------------------------------ */

/* One walk over sessions: what converting would free, or convert until there is enough or the slice is over. */
typedef struct rung_walk {
    uint32_t resource;
    bool smallest;              /* rung 17: the last step's type, recent pages too */
    bool convert;
    uint64_t want;
    double deadline;            /* pn_os_now(); 0: none */
    uint64_t bytes;             /* found, or freed */
} rung_walk;

static bool rung_walk_over(const rung_walk *w)
{
    return w->convert && (w->bytes >= w->want || (w->deadline > 0 && pn_os_now() >= w->deadline));
}

static bool rung_walk_on(const rung_walk *w, const pn_model *m) { return w->resource == 0 || w->resource == 1 + m->dies[0]->index; }

/* What pages of m become; not with the model's lock held. */
static uint32_t rung_walk_type(const rung_walk *w, pn_model *m)
{
    uint32_t step = atomic_load(&m->dies[0]->kv_step);
    return pn_rungs_kv_type(m, w->smallest ? (uint32_t)RUNG_KV_STEPS : PN_MAX(1u, step));
}

static double rung_walk_until(const rung_walk *w) { return w->deadline > 0 ? w->deadline : pn_os_now() + 0.01; }

static void rung_walk_idle(pn_engine *e, rung_walk *w)
{
    pn_mutex_lock(&e->models_lock);
    for (pn_model *m = e->models; m; m = m->next) {
        if (!m->n_dies || !rung_walk_on(w, m) || rung_walk_over(w))
            continue;
        uint32_t type = rung_walk_type(w, m);
        w->bytes += w->convert ? pn_smaller_idle(m, type, w->smallest, w->want - w->bytes, rung_walk_until(w)) : pn_smaller_idle_gain(m, type, w->smallest);
    }
    pn_mutex_unlock(&e->models_lock);
}

/* True: it was made smaller.  What somebody chose a type for keeps it. */
static bool rung_walk_session(rung_walk *w, pn_session *s, uint32_t type)
{
    if (!s->auto_type || rung_walk_over(w) || rung_kv_token(s->model, type) >= rung_kv_token(s->model, s->kv_type))
        return false;
    uint64_t n = w->convert ? pn_session_requant(s, type, w->smallest, rung_walk_until(w)) : pn_session_requant_gain(s, type, w->smallest);
    w->bytes += n;
    return w->convert && n > 0;
}

/* Rung 8 leaves a hybrid whose pages are little of what it holds; rung 17 takes that, too.  One that is put aside is left: its
 * pages are being moved. */
static void rung_walk_job(void *user, pn_job *j)
{
    rung_walk *w = user;
    pn_model *m = j->s->model;
    if (j->s->parked)
        return;
    uint32_t type = rung_walk_on(w, m) ? rung_walk_type(w, m) : j->s->kv_type;
    if ((w->smallest || pn_session_requant_pays(j->s, type)) && rung_walk_session(w, j->s, type))
        j->gen.r.kv_degraded = 1;
}

static void rung_walk_live(pn_engine *e, rung_walk *w) { (void)pn_sched_each(e, rung_walk_job, w); }

static uint64_t rung_walk_gain(pn_engine *e, uint32_t resource, bool smallest, void (*walk)(pn_engine *, rung_walk *))
{
    rung_walk w = {.resource = resource, .smallest = smallest};
    walk(e, &w);
    return w.bytes;
}

static pn_rung_state rung_walk_apply(pn_engine *e, rung_walk w, void (*walk)(pn_engine *, rung_walk *), uint64_t *freed)
{
    w.convert = true;
    walk(e, &w);
    *freed = w.bytes;
    return w.bytes && w.bytes < w.want && rung_walk_gain(e, w.resource, w.smallest, walk) ? PN_RUNG_MORE : PN_RUNG_DONE;
}

static uint64_t rung_kvidle_gain(void *user, uint32_t resource) { return rung_walk_gain(user, resource, false, rung_walk_idle); }

static pn_rung_state rung_kvidle_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    return rung_walk_apply(user, (rung_walk){.resource = resource, .want = want, .deadline = deadline}, rung_walk_idle, freed);
}

static uint64_t rung_live_gain(void *user, uint32_t resource) { return rung_walk_gain(user, resource, false, rung_walk_live); }

static pn_rung_state rung_live_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    return rung_walk_apply(user, (rung_walk){.resource = resource, .want = want, .deadline = deadline}, rung_walk_live, freed);
}

static void rung_walk_all(pn_engine *e, rung_walk *w)
{
    rung_walk_idle(e, w);
    rung_walk_live(e, w);
}

static uint64_t rung_all_gain(void *user, uint32_t resource) { return rung_walk_gain(user, resource, true, rung_walk_all); }

static pn_rung_state rung_all_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    return rung_walk_apply(user, (rung_walk){.resource = resource, .smallest = true, .want = want, .deadline = deadline}, rung_walk_all, freed);
}

PN_INTERNAL void pn_rungs_add_kv(pn_engine *e)
{
    const pn_rung rungs[] = {
        {.rank = 6, .name = "kv_new_smaller", .level = PN_LEVEL_WATCH, .gain = rung_new_gain, .apply = rung_new_apply, .undo = rung_new_undo},
        {.rank = 7, .name = "kv_idle_smaller", .level = PN_LEVEL_WATCH, .gain = rung_kvidle_gain, .apply = rung_kvidle_apply},
        {.rank = 8, .name = "kv_live_smaller", .level = PN_LEVEL_WATCH, .gain = rung_live_gain, .apply = rung_live_apply},
        {.rank = 17, .name = "kv_all_smallest", .level = PN_LEVEL_CRITICAL, .gain = rung_all_gain, .apply = rung_all_apply},
    };
    pn_rungs_register(e, rungs, PN_COUNT_OF(rungs));
}

/* ------------------------------------------------------------------------------------------
 * The gate, in idle time
 * ------------------------------------------------------------------------------------------ */

/* What is worth knowing, in this order; the last only where the one before it does not pass. */
static const uint32_t rung_probed[] = {PN_DTYPE_Q8_0, PN_DTYPE_Q4_0, PN_DTYPE_Q5_0};

static uint32_t rung_unknown_type(pn_model *m)
{
    const pn_kv_gate_params limits = rung_kv_limits(m->engine);
    pn_kv_gate g;
    for (size_t i = 0; i < PN_COUNT_OF(rung_probed); i++) {
        if (rung_kv_token(m, rung_probed[i]) < rung_kv_token(m, m->engine->kv_least))
            continue;
        if (!pn_gate_known(m, rung_probed[i], &limits, &g))
            return rung_probed[i];
        if (rung_probed[i] == PN_DTYPE_Q4_0 && g.eligible)
            break;
    }
    return PN_DTYPE_F16;
}

/* A model that has not been probed, held so that it stays. */
static pn_model *rung_unknown_model(pn_engine *e, uint32_t *type)
{
    pn_model *found = NULL;
    pn_mutex_lock(&e->models_lock);
    for (pn_model *m = e->models; m && !found; m = m->next)
        if (m->n_dies && !m->exact && !m->gate_failed && (*type = rung_unknown_type(m)) != PN_DTYPE_F16) {
            atomic_store(&m->probing, true);
            found = m;
        }
    pn_mutex_unlock(&e->models_lock);
    return found;
}

typedef struct rung_probe {
    pn_model *m;
    uint64_t news;              /* since then: somebody wants something */
} rung_probe;

static int rung_probe_tick(void *user, uint32_t done, uint32_t total)
{
    const rung_probe *p = user;
    pn_engine *e = p->m->engine;
    (void)done, (void)total;
    pn_govern_glance(e);
    return atomic_load(&p->m->closing) || pn_mem_level(e) > PN_LEVEL_WATCH || pn_sched_news(e) != p->news;
}

PN_INTERNAL void pn_rungs_probe(pn_engine *e, uint64_t news)
{
    uint32_t type = PN_DTYPE_F16;
    pn_kv_gate g = {0};
    pn_model *m = rung_unknown_model(e, &type);
    if (!m)
        return;
    rung_probe p = {m, news};
    pn_kv_gate_params limits = rung_kv_limits(e);
    limits.tick = rung_probe_tick;
    limits.user = &p;
    pn_status st = pn_model_kv_gate(m, (pn_dtype)type, &limits, &g, NULL);
    m->gate_failed = st && st != PN_E_CANCELLED;        /* no memory, or the type does not suit: not again */
    atomic_store(&m->probing, false);                   /* from here on it may be gone */
    if (!st) {
        pn_mem_event ev = {.kind = PN_MEM_GATE, .kl = g.kl, .top1 = g.top1, .eligible = g.eligible};
        snprintf(ev.what, sizeof ev.what, "%s", pn_kv_type_name((pn_dtype)type));
        pn_govern_event(e, &ev);
    }
}
