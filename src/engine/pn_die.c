/* SPDX-License-Identifier: AGPL-3.0-only */
#include "engine/pn_cache.h"
#include "engine/pn_sched.h"

#include <inttypes.h>
#include <stdio.h>

#include "device/pn_device_cpu.h"

/* ------------------------------------------------------------------------------------------
 * Memory of its own
 * ------------------------------------------------------------------------------------------ */

static pn_die *die_of(pn_mem *m) { return ((pn_die_door *)(void *)m)->die; }

/* Keys and values make room for themselves, in larger pieces, and the cache's lock may be held. */
static void *die_mem_take(pn_mem *m, pn_account a, size_t size)
{
    pn_die *die = die_of(m);
    bool pages = a == PN_ACCT_KV || a == PN_ACCT_KV_RESERVE || a == PN_ACCT_PREFIX || a == PN_ACCT_STATE;
    pn_sim_taken how = pn_sim_take(&die->memory, size);
    if (how == PN_SIM_FULL && !pages && pn_cache_give(die, size))
        how = pn_sim_take(&die->memory, size);
    if (how != PN_SIM_OK) {
        pn_govern_failed(die->engine, 1 + die->index, size);
        return NULL;
    }
    void *p = pn_mem_alloc(pn_engine_mem(die->engine), a, size);
    if (!p)
        pn_sim_give(&die->memory, size);
    return p;
}

static void die_mem_put(pn_mem *m, pn_account a, void *ptr, size_t size)
{
    pn_mem_free(pn_engine_mem(die_of(m)->engine), a, ptr, size);
    pn_sim_give(&die_of(m)->memory, size);
}

static void die_mem_move(pn_mem *m, pn_account from, pn_account to, size_t size)
{
    pn_mem_move(pn_engine_mem(die_of(m)->engine), from, to, size);
}

PN_INTERNAL pn_mem *pn_die_mem(pn_die *die) { return die->simulated ? &die->door.mem : pn_engine_mem(die->engine); }

PN_INTERNAL uint64_t pn_die_free_bytes(pn_die *die)
{
    return die->simulated ? pn_sub_sat(pn_sim_free_bytes(&die->memory), atomic_load(&die->floor_owed)) : UINT64_MAX;
}

PN_INTERNAL pn_status pn_die_upload(pn_die *die, uint64_t bytes, pn_err *err)
{
    pn_sim_taken how = die->simulated ? pn_sim_take(&die->memory, bytes) : PN_SIM_OK;
    if (how == PN_SIM_FULL && pn_cache_give(die, bytes))
        how = pn_sim_take(&die->memory, bytes);
    if (how == PN_SIM_FAILED)
        return pn_fail(err, PN_E_NOMEM, "out of memory on die %" PRIu32 ": the weights need %" PRIu64 " bytes", die->index, bytes);
    if (how == PN_SIM_FULL)
        return pn_fail(err, PN_E_BUDGET, "the weights need %" PRIu64 " bytes on die %" PRIu32 ", of whose %" PRIu64 " bytes %" PRIu64 " are free",
                       bytes, die->index, die->sim.bytes, pn_sim_free_bytes(&die->memory));
    pn_mutex_lock(&die->lock);
    die->n_models++;
    pn_mutex_unlock(&die->lock);
    return PN_OK;
}

PN_INTERNAL void pn_die_unload(pn_die *die, uint64_t bytes)
{
    if (die->simulated)
        pn_sim_give(&die->memory, bytes);
    pn_mutex_lock(&die->lock);
    die->n_models--;
    pn_mutex_unlock(&die->lock);
}

/* ------------------------------------------------------------------------------------------
 * Opening
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_die_open(pn_die *die, pn_engine *e, uint32_t index, const pn_sim_params *sim, uint32_t n_threads, pn_err *err)
{
    *die = (pn_die){.engine = e, .index = index, .ops = pn_device_cpu_ops(), .n_threads = n_threads, .simulated = sim != NULL};
    pn_mutex_init(&die->lock);
    pn_cond_init(&die->idle);
    atomic_init(&die->slots, UINT32_MAX);
    atomic_init(&die->max_rows, UINT32_MAX);
    if (sim) {
        die->door = (pn_die_door){{die_mem_take, die_mem_put, die_mem_move}, die};
        die->sim = *sim;
        pn_sim_memory_init(&die->memory, sim);
    }
    pn_mutex_init(&die->cache.lock);
    die->sched = pn_mem_calloc(pn_engine_mem(e), PN_ACCT_MISC, 1, sizeof *die->sched);
    if (!die->sched)
        return pn_fail_nomem(err, "a die", sizeof *die->sched);
    pn_sched_init(die->sched, die);
    return die->ops->open(&die->dev, pn_engine_mem(e), n_threads, err);
}

PN_INTERNAL void pn_die_close(pn_die *die)
{
    if (!die->engine)
        return;
    if (die->sched)
        pn_sched_fini(die->sched);
    pn_cache_close(die);
    pn_mem_free(pn_engine_mem(die->engine), PN_ACCT_MISC, die->sched, sizeof *die->sched);
    die->ops->close(die->dev);
    pn_mem_free(pn_die_mem(die), PN_ACCT_SCRATCH, die->work, (size_t)die->work_bytes);
    if (die->simulated)
        pn_sim_memory_fini(&die->memory);
    pn_cond_fini(&die->idle);
    pn_mutex_fini(&die->lock);
}

/* ------------------------------------------------------------------------------------------
 * Whose turn it is
 * ------------------------------------------------------------------------------------------ */

/* With the lock held, until nobody has it. */
static void die_wait(pn_die *die)
{
    while (die->busy) {
        struct pn_sched *q = die->holder;
        if (!die->parked) {
            pn_cond_wait(&die->idle, &die->lock);
            continue;
        }
        pn_mutex_unlock(&die->lock);
        pn_sched_settle(q);
        pn_mutex_lock(&die->lock);
    }
}

PN_INTERNAL void pn_die_take(pn_die *die)
{
    pn_mutex_lock(&die->lock);
    die_wait(die);
    die->busy = true;
    die->holder = NULL;
    pn_mutex_unlock(&die->lock);
}

PN_INTERNAL void pn_die_wait(pn_die *die)
{
    pn_mutex_lock(&die->lock);
    die_wait(die);
    pn_mutex_unlock(&die->lock);
}

PN_INTERNAL bool pn_die_try(pn_die *die, struct pn_sched *q)
{
    pn_mutex_lock(&die->lock);
    bool own = die->sched == q, ok = !die->busy && !(own && die->wanted);
    if (own)
        die->wanted = false;
    else
        die->wanted = !ok;
    if (ok) {
        die->busy = true;
        die->holder = q;
    }
    pn_mutex_unlock(&die->lock);
    return ok;
}

PN_INTERNAL void pn_die_give(pn_die *die)
{
    pn_mutex_lock(&die->lock);
    die->busy = die->parked = false;
    pn_cond_broadcast(&die->idle);
    pn_mutex_unlock(&die->lock);
}

PN_INTERNAL void pn_die_park(pn_die *die, bool parked)
{
    pn_mutex_lock(&die->lock);
    die->parked = parked;
    pn_cond_broadcast(&die->idle);
    pn_mutex_unlock(&die->lock);
}

PN_INTERNAL pn_status pn_die_grow(pn_die *die, const pn_plan *plan, pn_err *err)
{
    pn_mem *mem = pn_die_mem(die);
    uint64_t need = die->ops->work_bytes(die->n_threads, plan), had = die->work_bytes;
    if (need <= had)
        return PN_OK;
    if (need > SIZE_MAX)
        return pn_fail(err, PN_E_NOMEM, "a step needs %" PRIu64 " bytes, more than this system can address", need);
    pn_mem_free(mem, PN_ACCT_SCRATCH, die->work, (size_t)had);
    die->work = pn_mem_alloc(mem, PN_ACCT_SCRATCH, (size_t)need);
    die->work_bytes = die->work ? need : 0;
    if (die->work)
        return PN_OK;
    if (had)                    /* what other sessions' steps need; submit() refuses if this fails, too */
        die->work = pn_mem_alloc(mem, PN_ACCT_SCRATCH, (size_t)had);
    die->work_bytes = die->work ? had : 0;
    return pn_fail_nomem(err, "the working memory of a step", need);
}

PN_INTERNAL pn_status pn_die_reserve(pn_die *die, const pn_plan *plan, pn_err *err)
{
    pn_die_take(die);
    pn_status st = pn_die_grow(die, plan, err);
    pn_die_give(die);
    return st;
}

PN_INTERNAL bool pn_die_resize(pn_die *die, uint64_t bytes)
{
    pn_mem *mem = pn_die_mem(die);
    pn_die_take(die);
    void *work = bytes <= SIZE_MAX ? pn_mem_alloc(mem, PN_ACCT_SCRATCH, (size_t)bytes) : NULL;
    if (work) {
        pn_mem_free(mem, PN_ACCT_SCRATCH, die->work, (size_t)die->work_bytes);
        die->work = work;
        die->work_bytes = bytes;
    }
    pn_die_give(die);
    return work != NULL;
}

/* ------------------------------------------------------------------------------------------
 * The clock
 * ------------------------------------------------------------------------------------------ */

static double die_now(const pn_engine *e)
{
    double least = -1, greatest = 0;
    for (uint32_t i = 0; i < e->n_dies; i++) {
        const pn_die *d = &e->dies[i];
        greatest = PN_MAX(greatest, d->clock);
        if (d->n_work && (least < 0 || d->clock < least))
            least = d->clock;
    }
    return least < 0 ? greatest : least;
}

PN_INTERNAL void pn_die_arrive(pn_die *const *dies, uint32_t n)
{
    pn_engine *e = dies[0]->engine;
    if (!dies[0]->simulated)
        return;
    pn_mutex_lock(&e->clock_lock);
    double now = die_now(e);
    for (uint32_t i = 0; i < n; i++)
        if (dies[i]->n_work++ == 0)
            dies[i]->clock = PN_MAX(dies[i]->clock, now);
    pn_mutex_unlock(&e->clock_lock);
}

PN_INTERNAL void pn_die_leave(pn_die *const *dies, uint32_t n)
{
    pn_engine *e = dies[0]->engine;
    if (!dies[0]->simulated)
        return;
    pn_mutex_lock(&e->clock_lock);
    for (uint32_t i = 0; i < n; i++)
        dies[i]->n_work--;
    pn_mutex_unlock(&e->clock_lock);
}

PN_INTERNAL double pn_die_computed(pn_die *const *dies, uint32_t n, const double *share, uint32_t rows)
{
    pn_engine *e = dies[0]->engine;
    double at = 0, took = 0;
    if (!dies[0]->simulated)
        return 0;
    pn_mutex_lock(&e->clock_lock);
    for (uint32_t i = 0; i < n; i++) {
        at = PN_MAX(at, dies[i]->clock);
        took += share[i] * pn_sim_seconds(&dies[i]->sim, rows);
    }
    for (uint32_t i = 0; i < n; i++)
        dies[i]->clock = at + took;
    pn_mutex_unlock(&e->clock_lock);
    return took;
}

/* ------------------------------------------------------------------------------------------
 * What is there
 * ------------------------------------------------------------------------------------------ */

PN_API uint32_t pn_engine_die_count(const pn_engine *e) { return e->n_dies; }

PN_API pn_status pn_engine_die(const pn_engine *e, uint32_t index, pn_die_info *out)
{
    if (!e || !out || index >= e->n_dies)
        return PN_E_INVALID;
    pn_die *die = &e->dies[index];
    pn_die_info d = {.kind = "cpu"};
    if (die->simulated) {
        snprintf(d.kind, sizeof d.kind, "sim");
        snprintf(d.name, sizeof d.name, "simulated die %" PRIu32, index);
        d.total_bytes = die->sim.bytes;
        d.free_bytes = pn_sim_free_bytes(&die->memory);
        pn_mutex_lock(&die->engine->clock_lock);
        d.clock_seconds = die->clock;
        pn_mutex_unlock(&die->engine->clock_lock);
    } else {
        snprintf(d.name, sizeof d.name, "%s", pn_cpu_isa());
        pn_os_memory(&d.total_bytes, &d.free_bytes);
    }
    uint32_t slots = atomic_load(&die->slots), rows = atomic_load(&die->max_rows);
    d.max_requests = slots == UINT32_MAX ? 0 : slots;
    d.max_rows = rows == UINT32_MAX ? 0 : rows;
    pn_mutex_lock(&die->lock);
    d.n_models = die->n_models;
    pn_mutex_unlock(&die->lock);
    *out = d;
    return PN_OK;
}
