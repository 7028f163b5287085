/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_rungs_weights.c - rungs that move weights: none of them changes a bit (memory sheet 7, rungs 4, 12, 13, 16).
 *
 *      4  expert caches a quarter smaller, down to what a token uses
 *     12  idle models that are mapped do not count as needed, and their page cache goes
 *     13  mapped weights are streamed; of streamed ones fewer are pinned
 *     16  nothing is pinned, experts at their least
 *
 * Undoing 13 keeps a twentieth of the weights more at a time; when all of them would be pinned they are mapped again.  All
 * of this machine's memory: a die's own holds copies (pn_die_upload), so there is nothing to gain on resource 1 + i.
 *
 * All of it is done in slices, the smallest of which is a span, an expert, a few MiB of page cache; and none of it reads: what
 * is to be pinned is read by the streamer's own threads (pn_ring.h).  The list of models is held during a slice, and the
 * model's dies are: nobody computes with it meanwhile.
 */
#include "engine/pn_cache.h"
#include "engine/pn_lend.h"
#include "engine/pn_rungs.h"
#include "engine/pn_sched.h"

enum { RUNG_EXPERT_STEPS = 4, RUNG_PIN_STEPS = 20 };

/* Of one model: bytes that may be had; or a slice of moving, which has more to do, and returns bytes that came free. */
typedef uint64_t (*rung_bytes_fn)(pn_model *m, uint64_t want);
typedef uint64_t (*rung_move_fn)(pn_model *m, uint64_t want, double deadline, bool *more);

/* Sum over models. */
static uint64_t rung_models(pn_engine *e, rung_bytes_fn of, uint64_t want)
{
    uint64_t n = 0;
    pn_mutex_lock(&e->models_lock);
    for (pn_model *m = e->models; m && n < want; m = m->next)
        n += m->n_dies ? of(m, want - n) : 0;
    pn_mutex_unlock(&e->models_lock);
    return n;
}

static uint64_t rung_gain(void *user, uint32_t resource, rung_bytes_fn of)
{
    return resource ? 0 : rung_models(user, of, UINT64_MAX);
}

/* One model after the other, each to the end of what it was asked for. */
static bool rung_move(pn_engine *e, rung_move_fn move, uint64_t want, double deadline, uint64_t *freed)
{
    bool more = false;
    pn_mutex_lock(&e->models_lock);
    for (pn_model *m = e->models; m && !more && *freed < want; m = m->next)
        if (m->n_dies)
            *freed += move(m, want - *freed, deadline, &more);
    pn_mutex_unlock(&e->models_lock);
    return more;
}

static pn_rung_state rung_do(void *user, rung_move_fn shrink, rung_bytes_fn left, uint64_t want, double deadline, uint64_t *freed)
{
    *freed = 0;
    bool more = rung_move(user, shrink, want, deadline, freed);
    return more ? PN_RUNG_SLICE : *freed && *freed < want && rung_models(user, left, UINT64_MAX) ? PN_RUNG_MORE : PN_RUNG_DONE;
}

/* A goal is kept as long as there is more to do until it is reached. */
static void rung_goal_after(uint64_t *goal, bool goes_on, bool *more)
{
    *goal = goes_on ? *goal : 0;
    *more = *more || goes_on;
}

/* A step back of the first model that misses something; the next one's comes when that has it all. */
static pn_rung_state rung_redo(pn_engine *e, rung_move_fn grow, rung_bytes_fn missing, double deadline)
{
    bool more = false;
    pn_mutex_lock(&e->models_lock);
    pn_model *m = e->models;
    while (m && !(m->n_dies && missing(m, 0)))
        m = m->next;
    if (m)
        (void)grow(m, 0, deadline, &more);
    pn_mutex_unlock(&e->models_lock);
    return more ? PN_RUNG_SLICE : rung_models(e, missing, UINT64_MAX) ? PN_RUNG_MORE : PN_RUNG_DONE;
}

static uint64_t rung_retake(void *user, uint32_t resource, rung_bytes_fn missing) { return resource ? 0 : rung_models(user, missing, 1); }

static pn_residency_info rung_info(pn_model *m)
{
    pn_residency_info i;
    pn_model_residency(m, &i);
    return i;
}

/* ------------------------------------------------------------------------------------------
 * 4, 16  experts
 * ------------------------------------------------------------------------------------------ */

static uint64_t rung_experts_floor(const pn_model *m) { return m->store.stream ? pn_stream_needs(m->store.stream).experts_floor : 0; }

static uint64_t rung_experts_held(pn_model *m, uint64_t want)
{
    (void)want;
    return m->store.stream ? pn_sub_sat(rung_info(m).expert_bytes, rung_experts_floor(m)) : 0;
}

/* Returns what is less, or more, than before. */
static uint64_t rung_experts_to(pn_model *m, uint64_t bytes, double deadline, bool *more)
{
    bool done;
    pn_model_take(m);
    uint64_t before = rung_info(m).expert_bytes;
    pn_status st = pn_residency_resize_experts(&m->store, bytes, deadline, &done, NULL);
    uint64_t after = rung_info(m).expert_bytes;
    pn_model_give(m);
    *more = *more || (!st && !done);
    return before > after ? before - after : after - before;
}

/* Where the cache is on its way to, in steps of a quarter of what it was. */
static uint64_t rung_experts_step(pn_model *m)
{
    if (!m->experts_whole)
        m->experts_whole = rung_info(m).expert_bytes;
    return PN_MAX(m->experts_whole / RUNG_EXPERT_STEPS, UINT64_C(1));
}

static uint64_t rung_experts_shrink(pn_model *m, uint64_t want, double deadline, bool *more)
{
    uint64_t held = rung_experts_held(m, want), step = held ? rung_experts_step(m) : 0, floor = rung_experts_floor(m);
    if (!held)
        return 0;
    if (!m->experts_goal || m->experts_goal >= floor + held)
        m->experts_goal = floor + pn_sub_sat(held, step);
    bool goes_on = false;
    uint64_t freed = rung_experts_to(m, m->experts_goal, deadline, &goes_on);
    rung_goal_after(&m->experts_goal, goes_on, more);
    return freed;
}

static uint64_t rung_experts_gain(void *user, uint32_t resource) { return rung_gain(user, resource, rung_experts_held); }

static pn_rung_state rung_experts_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    (void)resource;
    return rung_do(user, rung_experts_shrink, rung_experts_held, want, deadline, freed);
}

static uint64_t rung_experts_missing(pn_model *m, uint64_t want)
{
    (void)want;
    return m->store.stream ? PN_MIN(pn_sub_sat(m->experts_whole, rung_info(m).expert_bytes), m->experts_whole / RUNG_EXPERT_STEPS + 1) : 0;
}

static uint64_t rung_experts_retake(void *user, uint32_t resource)
{
    return rung_retake(user, resource, rung_experts_missing);
}

static uint64_t rung_experts_grow(pn_model *m, uint64_t want, double deadline, bool *more)
{
    uint64_t missing = rung_experts_missing(m, want);
    bool goes_on = false;
    if (!missing)
        return 0;
    if (!m->experts_goal || m->experts_goal <= rung_info(m).expert_bytes)
        m->experts_goal = rung_info(m).expert_bytes + missing;
    (void)rung_experts_to(m, m->experts_goal, deadline, &goes_on);
    rung_goal_after(&m->experts_goal, goes_on, more);
    return 0;
}

static pn_rung_state rung_experts_undo(void *user, uint32_t resource, double deadline)
{
    (void)resource;
    return rung_redo(user, rung_experts_grow, rung_experts_missing, deadline);
}

/* ------------------------------------------------------------------------------------------
 * 12  idle models
 * ------------------------------------------------------------------------------------------ */

static bool rung_is_idle(pn_model *m)
{
    bool idle = true;
    pn_mutex_lock(&m->dies[0]->sched->lock);
    idle = !m->queue.work && !m->queue.waiting;
    pn_mutex_unlock(&m->dies[0]->sched->lock);
    pn_mutex_lock(&m->lock);
    for (const pn_session *s = m->sessions; s; s = s->next)
        idle = idle && !atomic_load(&s->users);
    pn_mutex_unlock(&m->lock);
    return idle;
}

static uint64_t rung_idle_mapped(pn_model *m, uint64_t want)
{
    (void)want;
    return m->mapped_bytes && !atomic_load(&m->parked) && rung_is_idle(m) ? m->mapped_bytes : 0;
}

static uint64_t rung_idle_park(pn_model *m, uint64_t want, double deadline, bool *more)
{
    uint64_t bytes = rung_idle_mapped(m, want);
    bool done = true;
    if (bytes)
        pn_model_park(m, deadline, &done);
    *more = *more || !done;
    return done ? bytes : 0;
}

static uint64_t rung_park_gain(void *user, uint32_t resource) { return rung_gain(user, resource, rung_idle_mapped); }

static pn_rung_state rung_park_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    (void)resource;
    return rung_do(user, rung_idle_park, rung_idle_mapped, want, deadline, freed);
}

/* ------------------------------------------------------------------------------------------
 * 13, 16  mapped to streamed, fewer pinned
 * ------------------------------------------------------------------------------------------ */

static bool rung_may_stream(const pn_model *m)
{
    return m->mapped_bytes && !atomic_load(&m->parked) && pn_weights_mapped(&m->file.weights) && !m->dies[0]->simulated && !m->store.lease_rows;
}

/* What streaming with nothing pinned, or pinning less, would give. */
static uint64_t rung_weights_held(pn_model *m, uint64_t want)
{
    (void)want;
    if (pn_model_streams(m))
        return m->pin_kept;
    return rung_may_stream(m) ? pn_sub_sat(m->mapped_bytes + rung_info(m).pinned_bytes, m->stage_bytes) : 0;
}

/* Fewer are kept.  What is lent goes first, and gives nothing: it counted as free. */
static uint64_t rung_keep_less(pn_model *m, uint64_t bytes, double deadline, bool *more)
{
    bool done = true;
    uint64_t before = m->pin_kept;
    if (atomic_load(&m->lent))
        (void)pn_lend_shrink(m, UINT64_MAX, deadline);
    *more = *more || atomic_load(&m->lent);
    if (atomic_load(&m->lent))
        return 0;
    pn_model_take(m);
    (void)pn_residency_repin(&m->store, bytes, deadline, &done, NULL);
    m->pin_kept = rung_info(m).pinned_bytes;
    pn_lend_note(m);
    pn_model_give(m);
    *more = *more || !done;
    return pn_sub_sat(before, m->pin_kept);
}

/* More are: of those that were lent, then others. */
static void rung_keep_more(pn_model *m, uint64_t bytes, double deadline, bool *more)
{
    bool done = true;
    pn_model_take(m);
    pn_status st = rung_info(m).pinned_bytes < bytes ? pn_residency_repin(&m->store, bytes, deadline, &done, NULL) : PN_OK;
    m->pin_kept = PN_MIN(bytes, rung_info(m).pinned_bytes);
    pn_lend_note(m);
    pn_model_give(m);
    *more = *more || (!st && !done);
}

/* What the model's weights take, the page cache of mapped ones with them. */
static uint64_t rung_footprint(pn_model *m)
{
    pn_residency_info i = rung_info(m);
    return m->mapped_bytes + i.pinned_bytes + i.ring_bytes + i.expert_bytes;
}

/* Streamed from now on, nothing pinned.  How much of the mapped pages is left to take their place nobody knows: who
 * presses has taken of them already, and pinned ones cannot be taken back by the system, which kills instead.  The way
 * back pins what is seen to be free. */
static uint64_t rung_stream(pn_model *m, double deadline, bool *more)
{
    uint64_t before = rung_footprint(m);
    bool done;
    const pn_model_params p = {.residency = PN_RESIDENCY_STREAM};
    pn_status st = pn_model_convert(m, &p, deadline, &done, NULL);
    *more = *more || (!st && !done);
    return pn_sub_sat(before, rung_footprint(m));
}

static uint64_t rung_weights_shrink(pn_model *m, uint64_t want, double deadline, bool *more)
{
    uint64_t held = rung_weights_held(m, want);
    if (!held)
        return 0;
    m->pin_goal = 0;
    if (!pn_model_streams(m))
        return rung_stream(m, deadline, more);
    return rung_keep_less(m, pn_sub_sat(held, PN_MAX(want, m->desc.weight_bytes / RUNG_PIN_STEPS)), deadline, more);
}

static uint64_t rung_weights_gain(void *user, uint32_t resource) { return rung_gain(user, resource, rung_weights_held); }

static pn_rung_state rung_weights_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    (void)resource;
    return rung_do(user, rung_weights_shrink, rung_weights_held, want, deadline, freed);
}

/* What the next step back takes: a twentieth pinned, or at last the whole mapped. */
static uint64_t rung_weights_missing(pn_model *m, uint64_t want)
{
    (void)want;
    if (m->store.next || m->store.leaving)      /* on the way already */
        return 1;
    if (!m->store.stream || !m->was_mapped)
        return 0;
    pn_residency_info i = rung_info(m);
    uint64_t step = m->desc.weight_bytes / RUNG_PIN_STEPS, rest = pn_sub_sat(m->desc.weight_bytes, m->pin_kept);
    return rest <= 2 * step ? pn_sub_sat(rest, i.ring_bytes + i.expert_bytes) + 1 : step;
}

static uint64_t rung_weights_retake(void *user, uint32_t resource)
{
    return rung_retake(user, resource, rung_weights_missing);
}

/* Half of what is above the mark at which WATCH ends: what steps back may take at once. */
static uint64_t rung_spare(pn_engine *e)
{
    pn_mem_state s;
    return pn_mem_get(e, 0, &s) == PN_OK ? pn_sub_sat(s.soft, s.watch + s.watch / 10 * 3) / 2 : 0;
}

static uint64_t rung_weights_grow(pn_model *m, uint64_t want, double deadline, bool *more)
{
    if (!rung_weights_missing(m, want))
        return 0;
    uint64_t step = m->desc.weight_bytes / RUNG_PIN_STEPS, kept = m->pin_kept;
    const pn_model_params p = {.residency = PN_RESIDENCY_MAP};
    bool done, goes_on = false;
    if (!pn_model_streams(m) || pn_sub_sat(m->desc.weight_bytes, kept) <= 2 * step) {
        pn_status st = pn_model_convert(m, &p, deadline, &done, NULL);
        *more = *more || (!st && !done);
        return 0;
    }
    uint64_t room = pn_sub_sat(rung_spare(m->engine), pn_residency_filling(&m->store));
    if (!m->pin_goal)           /* the ladder has looked that there is room for a step */
        m->pin_goal = kept + PN_MAX(step, PN_MIN(room, m->desc.weight_bytes - kept));
    rung_keep_more(m, m->pin_goal, deadline, &goes_on);
    rung_goal_after(&m->pin_goal, goes_on, more);
    return 0;
}

static pn_rung_state rung_weights_undo(void *user, uint32_t resource, double deadline)
{
    (void)resource;
    return rung_redo(user, rung_weights_grow, rung_weights_missing, deadline);
}

/* ------------------------------------------------------------------------------------------
 * 16  all of it
 * ------------------------------------------------------------------------------------------ */

static uint64_t rung_least_held(pn_model *m, uint64_t want) { return pn_model_streams(m) ? rung_weights_held(m, want) + rung_experts_held(m, want) : 0; }

static uint64_t rung_least_shrink(pn_model *m, uint64_t want, double deadline, bool *more)
{
    if (!pn_model_streams(m))
        return 0;
    if (m->pin_kept)
        return rung_weights_shrink(m, want, deadline, more);
    if (!rung_experts_held(m, want))
        return 0;
    (void)rung_experts_step(m);
    m->experts_goal = 0;
    return rung_experts_to(m, rung_experts_floor(m), deadline, more);
}

static uint64_t rung_least_gain(void *user, uint32_t resource) { return rung_gain(user, resource, rung_least_held); }

static pn_rung_state rung_least_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    (void)resource;
    return rung_do(user, rung_least_shrink, rung_least_held, want, deadline, freed);
}

PN_INTERNAL void pn_rungs_add_weights(pn_engine *e)
{
    const pn_rung rungs[] = {
        {.rank = 4, .name = "expert_cache", .level = PN_LEVEL_WATCH, .gain = rung_experts_gain, .apply = rung_experts_apply,
         .retake = rung_experts_retake, .undo = rung_experts_undo},
        {.rank = 12, .name = "park_idle", .level = PN_LEVEL_TIGHT, .gain = rung_park_gain, .apply = rung_park_apply},
        {.rank = 13, .name = "stream_weights", .level = PN_LEVEL_TIGHT, .gain = rung_weights_gain, .apply = rung_weights_apply,
         .retake = rung_weights_retake, .undo = rung_weights_undo},
        {.rank = 16, .name = "weights_least", .level = PN_LEVEL_CRITICAL, .gain = rung_least_gain, .apply = rung_least_apply},
    };
    pn_rungs_register(e, rungs, PN_COUNT_OF(rungs));
}
