/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_rungs_weights.c - rungs that move weights: none of them changes a bit (memory sheet 7, rungs 4, 12, 13, 16).
 *
 *      4  expert caches a quarter smaller, down to what a token uses
 *     12  idle models that are mapped do not count as needed, and their page cache goes
 *     13  mapped weights are streamed; of streamed ones fewer are pinned
 *     16  nothing is pinned, experts at their least
 *
 * Undoing 13 pins a twentieth of the weights at a time; when all of them would be pinned they are mapped again.  All
 * of this machine's memory: a die's own holds copies (pn_die_upload), so there is nothing to gain on resource 1 + i.
 *
 * The list of models is held while one is converted, and its dies are: nobody computes with it meanwhile.
 */
#include "engine/pn_cache.h"
#include "engine/pn_rungs.h"
#include "engine/pn_sched.h"

enum { RUNG_EXPERT_STEPS = 4, RUNG_PIN_STEPS = 20 };

static const double rung_pin_slice = 0.25;      /* seconds of reading in one step back */

/* Sum over models. */
static uint64_t rung_models(pn_engine *e, uint64_t (*of)(pn_model *m, uint64_t want), uint64_t want)
{
    uint64_t n = 0;
    pn_mutex_lock(&e->models_lock);
    for (pn_model *m = e->models; m && n < want; m = m->next)
        n += m->n_dies ? of(m, want - n) : 0;
    pn_mutex_unlock(&e->models_lock);
    return n;
}

static uint64_t rung_gain(void *user, uint32_t resource, uint64_t (*of)(pn_model *m, uint64_t want))
{
    return resource ? 0 : rung_models(user, of, UINT64_MAX);
}

static pn_rung_state rung_do(void *user, uint64_t (*of)(pn_model *m, uint64_t want), uint64_t (*left)(pn_model *m, uint64_t want), uint64_t want,
                             uint64_t *freed)
{
    *freed = rung_models(user, of, want);
    return *freed && *freed < want && rung_models(user, left, UINT64_MAX) ? PN_RUNG_MORE : PN_RUNG_DONE;
}

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

static uint64_t rung_experts_to(pn_model *m, uint64_t bytes)
{
    pn_model_take(m);
    uint64_t before = rung_info(m).expert_bytes;
    (void)pn_residency_resize_experts(&m->store, bytes, NULL);
    uint64_t after = rung_info(m).expert_bytes;
    pn_model_give(m);
    return pn_sub_sat(before, after);
}

static uint64_t rung_experts_shrink(pn_model *m, uint64_t want)
{
    uint64_t held = rung_experts_held(m, want), step = PN_MAX(m->experts_whole / RUNG_EXPERT_STEPS, UINT64_C(1));
    if (!held)
        return 0;
    if (!m->experts_whole) {
        m->experts_whole = rung_info(m).expert_bytes;
        step = m->experts_whole / RUNG_EXPERT_STEPS;
    }
    return rung_experts_to(m, rung_experts_floor(m) + pn_sub_sat(held, step));
}

static uint64_t rung_experts_gain(void *user, uint32_t resource) { return rung_gain(user, resource, rung_experts_held); }

static pn_rung_state rung_experts_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    (void)resource, (void)deadline;
    return rung_do(user, rung_experts_shrink, rung_experts_held, want, freed);
}

static uint64_t rung_experts_missing(pn_model *m, uint64_t want)
{
    (void)want;
    return m->store.stream ? PN_MIN(pn_sub_sat(m->experts_whole, rung_info(m).expert_bytes), m->experts_whole / RUNG_EXPERT_STEPS + 1) : 0;
}

static uint64_t rung_experts_retake(void *user, uint32_t resource)
{
    (void)resource;
    return rung_models(user, rung_experts_missing, UINT64_MAX);
}

static uint64_t rung_experts_grow(pn_model *m, uint64_t want)
{
    uint64_t missing = rung_experts_missing(m, want);
    return missing ? rung_experts_to(m, rung_info(m).expert_bytes + missing) : 0;
}

static pn_rung_state rung_experts_undo(void *user, uint32_t resource, double deadline)
{
    (void)resource, (void)deadline;
    (void)rung_models(user, rung_experts_grow, UINT64_MAX);
    return rung_models(user, rung_experts_missing, UINT64_MAX) ? PN_RUNG_MORE : PN_RUNG_DONE;
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

static uint64_t rung_idle_park(pn_model *m, uint64_t want)
{
    uint64_t bytes = rung_idle_mapped(m, want);
    if (bytes)
        pn_model_park(m);
    return bytes;
}

static uint64_t rung_park_gain(void *user, uint32_t resource) { return rung_gain(user, resource, rung_idle_mapped); }

static pn_rung_state rung_park_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    (void)resource, (void)deadline;
    return rung_do(user, rung_idle_park, rung_idle_mapped, want, freed);
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
    if (m->store.stream)
        return rung_info(m).pinned_bytes;
    return rung_may_stream(m) ? pn_sub_sat(m->mapped_bytes, m->stage_bytes) : 0;
}

/* One step of pinning, with all dies. */
static uint64_t rung_pin_to(pn_model *m, uint64_t bytes)
{
    bool done;
    pn_model_take(m);
    uint64_t before = rung_info(m).pinned_bytes;
    (void)pn_residency_repin(&m->store, bytes, &done, NULL);
    uint64_t after = rung_info(m).pinned_bytes;
    pn_model_give(m);
    return before > after ? before - after : after - before;
}

/* Streamed from now on, nothing pinned.  How much of the mapped pages is left to take their place nobody knows: who
 * presses has taken of them already, and pinned ones cannot be taken back by the system, which kills instead.  The way
 * back pins what is seen to be free. */
static uint64_t rung_stream(pn_model *m)
{
    uint64_t mapped = m->mapped_bytes;
    const pn_model_params p = {.residency = PN_RESIDENCY_STREAM};
    if (pn_model_convert(m, &p, NULL) != PN_OK)
        return 0;
    pn_residency_info i = rung_info(m);
    return pn_sub_sat(mapped, i.ring_bytes + i.expert_bytes);
}

static uint64_t rung_weights_shrink(pn_model *m, uint64_t want)
{
    uint64_t held = rung_weights_held(m, want);
    if (!held)
        return 0;
    return m->store.stream ? rung_pin_to(m, pn_sub_sat(rung_info(m).pinned_bytes, PN_MAX(want, m->desc.weight_bytes / RUNG_PIN_STEPS))) : rung_stream(m);
}

static uint64_t rung_weights_gain(void *user, uint32_t resource) { return rung_gain(user, resource, rung_weights_held); }

static pn_rung_state rung_weights_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    (void)resource, (void)deadline;
    return rung_do(user, rung_weights_shrink, rung_weights_held, want, freed);
}

/* What the next step back takes: a twentieth pinned, or at last the whole mapped. */
static uint64_t rung_weights_missing(pn_model *m, uint64_t want)
{
    (void)want;
    if (!m->store.stream || !m->was_mapped)
        return 0;
    pn_residency_info i = rung_info(m);
    uint64_t step = m->desc.weight_bytes / RUNG_PIN_STEPS, rest = pn_sub_sat(m->desc.weight_bytes, i.pinned_bytes);
    return rest <= 2 * step ? pn_sub_sat(rest, i.ring_bytes + i.expert_bytes) + 1 : step;
}

static uint64_t rung_weights_retake(void *user, uint32_t resource)
{
    (void)resource;
    return rung_models(user, rung_weights_missing, UINT64_MAX);
}

/* Half of what is above the mark at which WATCH ends: what steps back may take at once. */
static uint64_t rung_spare(pn_engine *e)
{
    pn_mem_state s;
    return pn_mem_get(e, 0, &s) == PN_OK ? pn_sub_sat(s.soft, s.watch + s.watch / 10 * 3) / 2 : 0;
}

static uint64_t rung_weights_grow(pn_model *m, uint64_t want)
{
    if (!rung_weights_missing(m, want))
        return 0;
    uint64_t step = m->desc.weight_bytes / RUNG_PIN_STEPS, pinned = rung_info(m).pinned_bytes;
    const pn_model_params p = {.residency = PN_RESIDENCY_MAP};
    if (pn_sub_sat(m->desc.weight_bytes, pinned) <= 2 * step) {
        (void)pn_model_convert(m, &p, NULL);
        return 0;
    }
    double until = pn_os_now() + rung_pin_slice;
    uint64_t n = rung_pin_to(m, pinned + step);    /* the ladder has looked that there is room for it */
    for (uint64_t room = rung_spare(m->engine); n && pn_os_now() < until && rung_weights_missing(m, want) <= room; room -= PN_MIN(room, n))
        n = rung_pin_to(m, rung_info(m).pinned_bytes + step);
    return 0;
}

static pn_rung_state rung_weights_undo(void *user, uint32_t resource, double deadline)
{
    (void)resource, (void)deadline;
    (void)rung_models(user, rung_weights_grow, UINT64_MAX);
    return rung_models(user, rung_weights_missing, UINT64_MAX) ? PN_RUNG_MORE : PN_RUNG_DONE;
}

/* ------------------------------------------------------------------------------------------
 * 16  all of it
 * ------------------------------------------------------------------------------------------ */

static uint64_t rung_least_held(pn_model *m, uint64_t want) { return m->store.stream ? rung_weights_held(m, want) + rung_experts_held(m, want) : 0; }

static uint64_t rung_least_shrink(pn_model *m, uint64_t want)
{
    uint64_t n = rung_weights_shrink(m, want);
    if (!m->experts_whole)
        m->experts_whole = rung_info(m).expert_bytes;
    return n + (rung_experts_held(m, want) ? rung_experts_to(m, rung_experts_floor(m)) : 0);
}

static uint64_t rung_least_gain(void *user, uint32_t resource) { return rung_gain(user, resource, rung_least_held); }

static pn_rung_state rung_least_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    (void)resource, (void)deadline;
    return rung_do(user, rung_least_shrink, rung_least_held, want, freed);
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
