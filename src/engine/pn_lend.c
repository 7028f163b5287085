/* SPDX-License-Identifier: AGPL-3.0-only */
#include "engine/pn_lend.h"

#include <math.h>

#include "engine/pn_fit.h"

static const double lend_rest = 10;         /* seconds: memory sheet 7 rule 4 */
static const double lend_slice = 0.01;      /* of one thread's, for which others wait */

enum {
    LEND_WAITS = 100,           /* slices without a byte: what is to go is being read, and the disk may be gone */
    LEND_WORTH = 50,            /* less than a fiftieth of a model is not worth moving */
    LEND_BESIDE = 1 << 20       /* bytes: who takes memory needs a little beside it, for plans and texts */
};

static uint64_t lend_pinned(const pn_model *m) { return pn_model_streams(m) ? m->store.stream->ring.pinned_bytes : 0; }

static void lend_is(pn_model *m, uint64_t lent)
{
    uint64_t was = atomic_exchange(&m->lent, lent);
    atomic_fetch_add(&m->engine->lent, lent - was);     /* or less: it wraps */
}

/* Of one conversation in steps as usual: what will be asked for first. */
static uint64_t lend_first_turn(const pn_model *m)
{
    const pn_desc *d = &m->desc;
    pn_session_need n;
    uint32_t n_ctx = PN_MIN((uint32_t)PN_FIT_CTX, d->n_ctx_train), type = m->exact ? PN_DTYPE_F32 : PN_DTYPE_F16;
    pn_status st = pn_session_needs(d, n_ctx, PN_MIN((uint32_t)ENGINE_DEFAULT_BATCH, n_ctx), m->engine->n_threads, type, m->exact, &n, NULL);
    return st ? UINT64_MAX : pn_session_need_sum(&n);
}

PN_INTERNAL pn_status pn_lend_open(pn_model *m, pn_err *err)
{
    uint64_t spare, missing;
    bool done;
    m->pin_kept = lend_pinned(m);
    if (!m->lends || !m->store.stream)
        return PN_OK;
    pn_govern_spare(m->engine, 0, &spare, &missing);
    spare = pn_sub_sat(spare, lend_first_turn(m));
    (void)pn_residency_repin(&m->store, m->pin_kept + spare, INFINITY, &done, NULL);    /* as much as there is */
    return pn_stream_prime(m->store.stream, err);
}

PN_INTERNAL void pn_lend_note(pn_model *m) { lend_is(m, m->lends ? pn_sub_sat(lend_pinned(m), m->pin_kept) : 0); }

PN_INTERNAL void pn_lend_close(pn_model *m)
{
    m->lends = false;
    lend_is(m, 0);
}

/* ------------------------------------------------------------------------------------------
 * Back
 * ------------------------------------------------------------------------------------------ */

/* With the model's dies.  Counted as gone before it is free: nobody takes the same bytes twice. */
static uint64_t lend_shrink(pn_model *m, uint64_t want, double deadline)
{
    uint64_t before = lend_pinned(m), left = pn_sub_sat(atomic_load(&m->lent), want);
    bool done;
    lend_is(m, left);
    (void)pn_residency_repin(&m->store, m->pin_kept + left, deadline, &done, NULL);
    pn_lend_note(m);
    atomic_store(&m->engine->lend_taken, true);
    return before - lend_pinned(m);
}

PN_INTERNAL uint64_t pn_lend_shrink(pn_model *m, uint64_t want, double deadline)
{
    pn_model_take(m);
    uint64_t given = atomic_load(&m->lent) ? lend_shrink(m, want, deadline) : 0;
    pn_model_give(m);
    return given;
}

static pn_model *lend_first(const pn_engine *e)
{
    pn_model *m = e->models;
    while (m && !atomic_load(&m->lent))
        m = m->next;
    return m;
}

/* Of one model.  *busy: a die that somebody has, or NULL. */
static uint64_t lend_back_some(pn_engine *e, uint64_t want, pn_die **busy)
{
    uint64_t given = 0;
    pn_mutex_lock(&e->models_lock);
    pn_model *m = lend_first(e);
    *busy = m ? pn_model_try(m, NULL) : NULL;
    if (m && !*busy) {
        given = lend_shrink(m, want, pn_os_now() + lend_slice);
        if (!given)                             /* the last one is being read */
            pn_residency_wait(&m->store, pn_os_now() + lend_slice);
        pn_model_give(m);
    }
    pn_mutex_unlock(&e->models_lock);
    return given;
}

PN_INTERNAL uint64_t pn_lend_back(pn_engine *e, uint64_t want, bool patient)
{
    uint64_t given = 0;
    pn_die *busy = NULL;
    want = want ? pn_add_sat(want, LEND_BESIDE) : 0;
    for (uint32_t waits = 0; given < want && waits < LEND_WAITS && atomic_load(&e->lent) && (patient || !busy);) {
        uint64_t some = lend_back_some(e, want - given, &busy);
        given += some;
        waits += !some && !busy;
        if (busy && patient)
            pn_die_wait(busy);
    }
    return given;
}

/* ------------------------------------------------------------------------------------------
 * Between steps
 * ------------------------------------------------------------------------------------------ */

/* Bytes that are pinned already and not read yet: no reading shows that they are taken. */
static uint64_t lend_filling(const pn_engine *e)
{
    uint64_t n = 0;
    for (pn_model *m = e->models; m; m = m->next)
        n += m->n_dies ? pn_residency_filling(&m->store) : 0;
    return n;
}

static bool lend_may_grow(const pn_model *m, uint64_t spare)
{
    if (!m->lends || !pn_model_streams(m) || m->dies[0]->simulated)
        return false;
    const pn_ring *g = &m->store.stream->ring;
    return g->n_pinned < g->n_spans && spare >= m->desc.weight_bytes / LEND_WORTH;
}

static void lend_grow(pn_model *m, uint64_t spare, double deadline)
{
    bool done;
    pn_model_take(m);
    pn_status st = pn_residency_repin(&m->store, pn_add_sat(lend_pinned(m), spare), deadline, &done, NULL);
    pn_lend_note(m);
    pn_model_give(m);
    if (st)
        atomic_store(&m->engine->lend_taken, true);
}

PN_INTERNAL bool pn_lend_keep(pn_engine *e, double now, bool fresh, double deadline)
{
    bool more = false;
    uint64_t spare, missing;
    pn_mutex_lock(&e->models_lock);
    pn_govern_spare(e, lend_filling(e), &spare, &missing);
    for (pn_model *m = e->models; m && missing; m = m->next) {
        uint64_t given = atomic_load(&m->lent) ? pn_lend_shrink(m, missing, deadline) : 0;
        missing = pn_sub_sat(missing, given);
        more = more || (missing && atomic_load(&m->lent));
    }
    if (atomic_exchange(&e->lend_taken, false))
        e->lend_again = now + lend_rest;
    for (pn_model *m = e->models; m && fresh && spare && now >= e->lend_again && !atomic_load(&e->n_loading); m = m->next)
        if (lend_may_grow(m, spare)) {
            lend_grow(m, spare, deadline);
            break;
        }
    pn_mutex_unlock(&e->models_lock);
    return more;
}
