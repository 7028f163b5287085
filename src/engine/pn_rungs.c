/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_rungs.c - what this engine can give up, and how it takes it back (memory sheet 7; docs/memory.md for users).
 *
 * A rung gets a resource: 0 is this machine's memory, where everything of every die lies; 1 + i is die i's own.  They
 * are called between steps, on the thread that steps or watches, with no lock held; what each locks is its own business
 * and stands in pn_engine_int.h's order.  None allocates more than what takes the place of something larger.
 */
#include "engine/pn_rungs.h"

#include "engine/pn_cache.h"
#include "engine/pn_sched.h"
#include "engine/pn_tier.h"

PN_INTERNAL pn_die *pn_rungs_die(pn_engine *e, uint32_t resource, pn_die *before)
{
    if (resource)
        return before || resource > e->n_dies ? NULL : &e->dies[resource - 1];
    pn_die *next = before ? before + 1 : e->dies;
    return next < e->dies + e->n_dies ? next : NULL;
}

static uint64_t rungs_sum(pn_engine *e, uint32_t resource, uint64_t (*of)(pn_die *die))
{
    uint64_t n = 0;
    for (pn_die *die = NULL; (die = pn_rungs_die(e, resource, die));)
        n += of(die);
    return n;
}

/* ------------------------------------------------------------------------------------------
 * 1  buffers that nobody uses
 * ------------------------------------------------------------------------------------------ */

static uint64_t rung_buffers_of(pn_die *die) { return pn_sched_idle_bytes(die->sched, false); }
static uint64_t rung_buffers_drop(pn_die *die) { return pn_sched_idle_bytes(die->sched, true); }

static uint64_t rung_buffers_gain(void *user, uint32_t resource) { return resource ? 0 : rungs_sum(user, 0, rung_buffers_of); }

static pn_rung_state rung_buffers_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    (void)want, (void)deadline;
    *freed = rungs_sum(user, resource, rung_buffers_drop);
    return PN_RUNG_DONE;
}

/* ------------------------------------------------------------------------------------------
 * 2  the prefix cache: what is missing of half of it, then of the rest; it takes no more meanwhile
 * ------------------------------------------------------------------------------------------ */

static uint64_t rung_prefix_of(pn_die *die) { return pn_cache_droppable(die); }

static uint64_t rung_prefix_gain(void *user, uint32_t resource) { return rungs_sum(user, resource, rung_prefix_of); }

static pn_rung_state rung_prefix_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    pn_engine *e = user;
    (void)deadline;
    for (pn_die *die = NULL; (die = pn_rungs_die(e, resource, die));) {
        uint64_t half = (pn_cache_droppable(die) + 1) / 2, missing = want - PN_MIN(want, *freed);
        atomic_store(&die->cache.held, true);
        *freed += pn_cache_give(die, PN_MIN(missing, half));
    }
    return *freed < want && rung_prefix_gain(user, resource) ? PN_RUNG_MORE : PN_RUNG_DONE;
}

static pn_rung_state rung_prefix_undo(void *user, uint32_t resource, double deadline)
{
    pn_engine *e = user;
    (void)deadline;
    for (pn_die *die = NULL; (die = pn_rungs_die(e, resource, die));)
        atomic_store(&die->cache.held, false);
    return PN_RUNG_DONE;
}

/* ------------------------------------------------------------------------------------------
 * 3  snapshots of recurrent state: of each conversation the last one stays.  Those of conversations that are used, for what
 *    nobody uses has gone with rung 2.  They come again as prompts are computed
 * ------------------------------------------------------------------------------------------ */

static uint64_t rung_states_gain(void *user, uint32_t resource) { return rungs_sum(user, resource, pn_cache_state_bytes); }

static pn_rung_state rung_states_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    pn_engine *e = user;
    (void)deadline;
    for (pn_die *die = NULL; (die = pn_rungs_die(e, resource, die));) {
        pn_cache_few_states(die, true);
        *freed += pn_cache_give_states(die, want - PN_MIN(want, *freed));
    }
    return PN_RUNG_DONE;
}

static pn_rung_state rung_states_undo(void *user, uint32_t resource, double deadline)
{
    pn_engine *e = user;
    (void)deadline;
    for (pn_die *die = NULL; (die = pn_rungs_die(e, resource, die));)
        pn_cache_few_states(die, false);
    return PN_RUNG_DONE;
}

/* ------------------------------------------------------------------------------------------
 * 10  fewer at once: half of those that are worked on go on, the others wait; one more every 10 s
 * ------------------------------------------------------------------------------------------ */

static uint32_t rung_slots_used(pn_die *die)
{
    uint32_t ready, n = pn_sched_at_work(die->sched, &ready);
    return PN_MIN(n, atomic_load(&die->slots));
}

static uint64_t rung_slots_gain(void *user, uint32_t resource)
{
    pn_engine *e = user;
    uint64_t gain = 0;
    for (pn_die *die = NULL; (die = pn_rungs_die(e, resource, die));)
        if (rung_slots_used(die) > 1)   /* what those that wait then have reserved comes back when the others have ended */
            gain = (atomic_load(&e->ledger.used[PN_ACCT_KV]) + atomic_load(&e->ledger.used[PN_ACCT_KV_RESERVE]) +
                    atomic_load(&e->ledger.used[PN_ACCT_STATE])) / 2;
    return gain;
}

static pn_rung_state rung_slots_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    pn_engine *e = user;
    (void)want, (void)deadline, (void)freed;
    for (pn_die *die = NULL; (die = pn_rungs_die(e, resource, die));) {
        uint32_t n = rung_slots_used(die);
        if (n > 1)
            atomic_store(&die->slots, (n + 1) / 2);
    }
    return PN_RUNG_DONE;
}

static pn_rung_state rung_slots_undo(void *user, uint32_t resource, double deadline)
{
    pn_engine *e = user;
    pn_rung_state more = PN_RUNG_DONE;
    (void)deadline;
    for (pn_die *die = NULL; (die = pn_rungs_die(e, resource, die));) {
        uint32_t ready, slots = atomic_load(&die->slots);
        if (slots == UINT32_MAX)
            continue;
        bool all = slots + 1 >= pn_sched_at_work(die->sched, &ready) + ready;
        atomic_store(&die->slots, all ? UINT32_MAX : slots + 1);
        if (!all)
            more = PN_RUNG_MORE;
    }
    return more;
}

/* ------------------------------------------------------------------------------------------
 * 11  smaller steps, whose working memory is smaller: of 64 rows, then of 16
 * ------------------------------------------------------------------------------------------ */

static uint32_t rung_rows_below(uint32_t rows) { return rows > 64 ? 64 : 16; }
static uint32_t rung_rows_above(uint32_t rows) { return rows < 64 ? 64 : UINT32_MAX; }

/* Working memory of the largest step of at most `rows` rows that any session on the die may ask for. */
static uint64_t rung_rows_bytes(pn_die *die, uint32_t rows)
{
    pn_engine *e = die->engine;
    uint64_t most = 0;
    pn_mutex_lock(&e->models_lock);
    for (pn_model *m = e->models; m; m = m->next) {
        pn_mutex_lock(&m->lock);
        for (uint32_t k = 0; k < ENGINE_PLANS; k++)
            for (uint32_t i = 0; m->plans[k] && m->plans[k]->max_rows <= rows && i < m->n_dies; i++)
                if (m->dies[i] == die)
                    most = PN_MAX(most, die->ops->work_bytes(die->n_threads, &m->plans[k]->part[i]));
        pn_mutex_unlock(&m->lock);
    }
    pn_mutex_unlock(&e->models_lock);
    return most;
}

static uint64_t rung_rows_of(pn_die *die)
{
    uint32_t rows = atomic_load(&die->max_rows);
    uint64_t had = die->work_bytes, need = rung_rows_bytes(die, rung_rows_below(rows));
    return rows > 16 && need && need < had ? had - need : 0;
}

static uint64_t rung_rows_gain(void *user, uint32_t resource) { return rungs_sum(user, resource, rung_rows_of); }

static uint64_t rung_rows_clamp(pn_die *die)
{
    uint64_t had = die->work_bytes;
    if (!rung_rows_of(die))
        return 0;
    uint32_t before = atomic_load(&die->max_rows), rows = rung_rows_below(before);
    atomic_store(&die->max_rows, rows);
    if (!pn_die_resize(die, rung_rows_bytes(die, rows)))
        atomic_store(&die->max_rows, before);
    uint64_t has = die->work_bytes;
    return had - PN_MIN(had, has);
}

static pn_rung_state rung_rows_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    (void)deadline;
    *freed = rungs_sum(user, resource, rung_rows_clamp);
    return *freed < want && rung_rows_gain(user, resource) ? PN_RUNG_MORE : PN_RUNG_DONE;
}

static uint64_t rung_rows_back(pn_die *die)
{
    uint32_t rows = atomic_load(&die->max_rows);
    uint64_t had = die->work_bytes, need = rung_rows_bytes(die, rung_rows_above(rows));
    return rows == UINT32_MAX ? 0 : need - PN_MIN(need, had);
}

static uint64_t rung_rows_retake(void *user, uint32_t resource) { return rungs_sum(user, resource, rung_rows_back); }

static uint64_t rung_rows_widen(pn_die *die)
{
    uint32_t rows = rung_rows_above(atomic_load(&die->max_rows));
    if (rung_rows_back(die) == 0 || pn_die_resize(die, rung_rows_bytes(die, rows)))
        atomic_store(&die->max_rows, rows);
    return atomic_load(&die->max_rows) != UINT32_MAX;
}

static pn_rung_state rung_rows_undo(void *user, uint32_t resource, double deadline)
{
    (void)deadline;
    return rungs_sum(user, resource, rung_rows_widen) ? PN_RUNG_MORE : PN_RUNG_DONE;
}

/* ------------------------------------------------------------------------------------------
 * 15  one at a time: the others stand aside, newest first, their keys and values on disk; they go on oldest first.
 *     The last slices of one that comes back are the governor's: it has its memory, whatever becomes of the level
 * ------------------------------------------------------------------------------------------ */

static uint64_t rung_aside_gain(void *user, uint32_t resource) { return resource ? 0 : pn_sched_parkable(user); }

static pn_rung_state rung_aside_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    if (pn_sched_park(user, deadline, freed))
        return PN_RUNG_SLICE;
    return *freed && *freed < want && rung_aside_gain(user, resource) ? PN_RUNG_MORE : PN_RUNG_DONE;
}

static uint64_t rung_aside_retake(void *user, uint32_t resource)
{
    (void)resource;
    return pn_sched_parked(user);
}

static pn_rung_state rung_aside_undo(void *user, uint32_t resource, double deadline)
{
    (void)resource;
    (void)pn_sched_resume(user, false, false, deadline);
    return pn_sched_parked(user) ? PN_RUNG_MORE : PN_RUNG_DONE;
}

/* ------------------------------------------------------------------------------------------
 * All of them
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_rungs_register(pn_engine *e, const pn_rung *rungs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        pn_rung r = rungs[i];
        r.user = e;
        bool room = pn_ladder_add(&e->govern.ladder, &r);
        PN_ASSERT(room);
        (void)room;
    }
}

PN_INTERNAL void pn_rungs_add(pn_engine *e)
{
    const pn_rung rungs[] = {
        {.rank = 1, .name = "idle_buffers", .level = PN_LEVEL_WATCH, .gain = rung_buffers_gain, .apply = rung_buffers_apply},
        {.rank = 2, .name = "prefix_cache", .level = PN_LEVEL_WATCH, .gain = rung_prefix_gain, .apply = rung_prefix_apply, .undo = rung_prefix_undo},
        {.rank = 3, .name = "snapshots", .level = PN_LEVEL_WATCH, .gain = rung_states_gain, .apply = rung_states_apply, .undo = rung_states_undo},
        {.rank = 10, .name = "slots", .level = PN_LEVEL_TIGHT, .gain = rung_slots_gain, .apply = rung_slots_apply, .undo = rung_slots_undo},
        {.rank = 11, .name = "step_rows", .level = PN_LEVEL_TIGHT, .gain = rung_rows_gain, .apply = rung_rows_apply, .retake = rung_rows_retake,
         .undo = rung_rows_undo},
    };
    const pn_rung disk[] = {
        {.rank = 9, .name = "cold", .level = PN_LEVEL_TIGHT, .gain = pn_tier_gain, .apply = pn_tier_apply},
        {.rank = PN_RUNG_ASIDE, .name = "one_at_a_time", .level = PN_LEVEL_CRITICAL, .gain = rung_aside_gain, .apply = rung_aside_apply, .retake = rung_aside_retake,
         .undo = rung_aside_undo},
    };
    pn_rungs_register(e, rungs, PN_COUNT_OF(rungs));
    if (e->cold)
        pn_rungs_register(e, disk, PN_COUNT_OF(disk));
    pn_rungs_add_kv(e);
    pn_rungs_add_weights(e);
}
