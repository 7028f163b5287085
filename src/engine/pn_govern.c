/* SPDX-License-Identifier: AGPL-3.0-only */
#include "engine/pn_cache.h"
#include "engine/pn_lend.h"
#include "engine/pn_rungs.h"
#include "engine/pn_sched.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/pn_os.h"

static const double govern_fresh = 1;           /* seconds: memory sheet 2.4 */
static const double govern_slice = 0.01;        /* seconds on the ladder between two steps: memory sheet 7 rule 3; */
static const double govern_share = 0.2;         /* where that is between each two, this much of them at most */
static const double govern_disk = 500e6;        /* bytes a second: what refaults are measured by until a disk has been */
static const double govern_hint = 5;
static const double govern_lending = 1;         /* seconds between two looks at most, while something is lent */
static const double govern_rest = 5;            /* seconds without work before the gate is looked at, */
static const double govern_rest_short = 30;     /* and while memory is short: what it takes would keep the level up */

static double govern_now(const pn_governor *g) { return g->clock ? g->clock(g->clock_user) : pn_os_now(); }

/* ------------------------------------------------------------------------------------------
 * What there is
 * ------------------------------------------------------------------------------------------ */

static uint64_t govern_promised(const pn_engine *e) { return atomic_load(&e->ledger.used[PN_ACCT_KV_RESERVE]); }

/* What the ledger holds and the system knows of. */
static uint64_t govern_touched(const pn_engine *e) { return pn_sub_sat(atomic_load(&e->ledger.total), govern_promised(e)); }

static uint64_t govern_limit(const pn_engine *e) { return atomic_load(&e->ledger.limit); }

static uint64_t govern_lent(const pn_engine *e) { return atomic_load(&e->lent); }

/* Growth of a counter a second, or -1. */
static double govern_rate(const pn_mem_sample *a, const pn_mem_sample *b, uint32_t which, uint64_t from, uint64_t to, double dt)
{
    return (a->known & b->known & which) && dt > 0 ? (double)pn_sub_sat(to, from) / dt : -1;
}

/* With the lock held. */
static void govern_read(pn_engine *e)
{
    pn_governor *g = &e->govern;
    const pn_msrc_use use = {.r_map = atomic_load(&e->ledger.used[PN_ACCT_WEIGHTS_MAP]), .ledger_total = atomic_load(&e->ledger.total)};
    const pn_mem_sample last = g->sample;
    pn_mem_sample *s = &g->sample;
    g->then = govern_touched(e);
    pn_msrc_read(&g->source, &use, s);
    if (s->counted > last.counted)
        g->refault_rate = govern_rate(&last, s, PN_HOST_REFAULT, last.refault, s->refault, s->counted - last.counted);
    if (s->t > last.t)
        g->stall = govern_rate(&last, s, PN_HOST_PSI, last.psi_us, s->psi_us, (s->t - last.t) * 1e6);
}

/* Of the host, with the lock held: `reading` now. */
static uint64_t govern_since(const pn_engine *e, uint64_t reading)
{
    uint64_t touched = govern_touched(e), grown = pn_sub_sat(touched, e->govern.then), shrunk = pn_sub_sat(e->govern.then, touched);
    if (reading == UINT64_MAX)
        return reading;
    return pn_sub_sat(pn_add_sat(reading, shrunk), grown + govern_promised(e));
}

static uint64_t govern_capped(const pn_engine *e, uint64_t bytes)
{
    uint64_t limit = govern_limit(e);
    return limit ? PN_MIN(bytes, pn_sub_sat(limit, atomic_load(&e->ledger.total))) : bytes;
}

static uint64_t govern_budget(const pn_engine *e)
{
    uint64_t limit = govern_limit(e), budget = e->govern.sample.budget;
    return limit && (!budget || limit < budget) ? limit : budget;
}

static uint64_t govern_reserve(const pn_governor *g, bool alone)
{
    return g->reserve ? g->reserve : pn_pressure_threshold(&g->pressure[0], alone ? PN_LEVEL_CRITICAL : PN_LEVEL_TIGHT);
}

static uint64_t govern_available(const pn_engine *e, uint32_t resource)
{
    return resource ? pn_die_free_bytes(&e->dies[resource - 1])
                    : pn_add_sat(govern_capped(e, govern_since(e, e->govern.sample.soft)), govern_lent(e));
}

/* Of the host, less the reserve; the limit aside.  lent: bytes of that to be counted as free. */
static uint64_t govern_host_room(pn_engine *e, bool alone, uint64_t lent)
{
    pn_governor *g = &e->govern;
    pn_mutex_lock(&g->lock);
    if (govern_now(g) - g->sample.t > govern_fresh)
        govern_read(e);
    uint64_t room = govern_since(e, g->sample.soft);
    room = room == UINT64_MAX ? room : pn_sub_sat(pn_add_sat(room, lent), govern_reserve(g, alone) + atomic_load(&e->floor_owed));
    pn_mutex_unlock(&g->lock);
    return room;
}

static uint64_t govern_room(pn_engine *e, bool alone, uint64_t lent)
{
    uint64_t host = govern_host_room(e, alone, lent);
    return govern_limit(e) ? PN_MIN(host, pn_sub_sat(pn_add_sat(govern_capped(e, UINT64_MAX), lent), atomic_load(&e->floor_owed))) : host;
}

PN_INTERNAL uint64_t pn_govern_slack(pn_engine *e)
{
    uint64_t buffers = pn_sub_sat(atomic_load(&e->govern.headroom), atomic_load(&e->ledger.used[PN_ACCT_CONN]));
    return govern_limit(e) ? GOVERN_SLACK + buffers : 0;
}

PN_INTERNAL uint64_t pn_govern_room_mapped(pn_engine *e) { return govern_host_room(e, false, govern_lent(e)); }

PN_INTERNAL uint64_t pn_govern_room(pn_engine *e, uint32_t resource, bool alone)
{
    return resource ? pn_die_free_bytes(&e->dies[resource - 1]) : govern_room(e, alone, govern_lent(e));
}

PN_INTERNAL uint64_t pn_govern_room_free(pn_engine *e, bool alone) { return govern_room(e, alone, 0); }

PN_INTERNAL void pn_govern_spare(pn_engine *e, uint64_t filling, uint64_t *spare, uint64_t *missing)
{
    pn_governor *g = &e->govern;
    pn_mutex_lock(&g->lock);
    if (govern_now(g) - g->sample.t > govern_fresh)
        govern_read(e);
    uint64_t read = govern_since(e, g->sample.soft), least = PN_MAX(govern_reserve(g, false), pn_pressure_threshold(&g->pressure[0], PN_LEVEL_WATCH));
    uint64_t mark = least + least / 10, soft = atomic_load(&e->ledger.soft);
    uint64_t is = govern_capped(e, read == UINT64_MAX ? read : pn_sub_sat(read, filling));
    is = soft ? PN_MIN(is, pn_sub_sat(soft, atomic_load(&e->ledger.total))) : is;       /* above it caches shrink, for which nothing is lent */
    bool known = is != UINT64_MAX, ok = g->level[0] == PN_LEVEL_OK;
    is = pn_sub_sat(is, atomic_load(&e->floor_owed));
    *spare = known && ok ? pn_sub_sat(is, mark) : 0;
    *missing = !ok ? UINT64_MAX : known && is < least ? mark - is : 0;
    pn_mutex_unlock(&g->lock);
}

/* Sequences, promises and what is kept of old ones. */
static uint64_t govern_passing(const pn_engine *e)
{
    static const pn_account passing[] = {PN_ACCT_KV, PN_ACCT_KV_RESERVE, PN_ACCT_STATE, PN_ACCT_PREFIX};
    uint64_t n = 0;
    for (size_t i = 0; i < PN_COUNT_OF(passing); i++)
        n += atomic_load(&e->ledger.used[passing[i]]);
    return pn_sub_sat(n, pn_sub_sat(atomic_load(&e->floor_bytes), atomic_load(&e->ledger.used[PN_ACCT_FLOOR])));   /* lent floors stay */
}

PN_INTERNAL uint64_t pn_govern_room_alone(pn_engine *e, uint32_t resource)
{
    if (resource)
        return e->dies[resource - 1].sim.bytes;
    uint64_t room = pn_govern_room(e, 0, true);
    return room == UINT64_MAX ? room : room + govern_passing(e);
}

PN_INTERNAL uint64_t pn_govern_room_unpressured(pn_engine *e)
{
    pn_governor *g = &e->govern;
    uint64_t stays = pn_sub_sat(atomic_load(&e->ledger.total), govern_passing(e) + govern_lent(e)), limit = govern_limit(e);
    pn_mutex_lock(&g->lock);
    uint64_t room = g->sample.budget ? pn_sub_sat(g->sample.budget, govern_reserve(g, true) + atomic_load(&e->ledger.used[PN_ACCT_WEIGHTS_MAP]) + stays)
                                     : UINT64_MAX;
    pn_mutex_unlock(&g->lock);
    return limit ? PN_MIN(room, pn_sub_sat(limit, stays)) : room;
}

PN_INTERNAL void pn_govern_host(pn_engine *e, uint64_t *total, uint64_t *available)
{
    pn_governor *g = &e->govern;
    pn_mutex_lock(&g->lock);
    if (govern_now(g) - g->sample.t > govern_fresh)
        govern_read(e);
    *total = g->sample.budget;
    *available = g->sample.hard == UINT64_MAX ? 0 : PN_MAX(g->sample.hard, UINT64_C(1));
    pn_mutex_unlock(&g->lock);
}

/* ------------------------------------------------------------------------------------------
 * Events
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_govern_event(pn_engine *e, const pn_mem_event *event)
{
    pn_governor *g = &e->govern;
    pn_mem_event ev = *event;
    pn_mutex_lock(&g->lock);
    ev.seconds = govern_now(g);
    ev.level = g->level[ev.resource];
    ev.available = govern_available(e, ev.resource);
    ev.budget = ev.resource ? e->dies[ev.resource - 1].sim.bytes : govern_budget(e);
    g->events[g->n_events++ % GOVERN_EVENTS] = ev;
    pn_mutex_unlock(&g->lock);
    if (g->on_event)
        g->on_event(g->event_user, &ev);
}

PN_API void pn_mem_on_event(pn_engine *e, void (*fn)(void *user, const pn_mem_event *ev), void *user)
{
    e->govern.event_user = user;
    e->govern.on_event = fn;
}

PN_API size_t pn_mem_events(pn_engine *e, pn_mem_event *out, size_t cap)
{
    pn_governor *g = &e->govern;
    pn_mutex_lock(&g->lock);
    size_t n = (size_t)PN_MIN(g->n_events, (uint64_t)PN_MIN(cap, (size_t)GOVERN_EVENTS));
    for (size_t i = 0; i < n; i++)
        out[i] = g->events[(g->n_events - n + i) % GOVERN_EVENTS];
    pn_mutex_unlock(&g->lock);
    return n;
}

/* ------------------------------------------------------------------------------------------
 * Levels
 * ------------------------------------------------------------------------------------------ */

static bool govern_has(const pn_engine *e, uint32_t resource) { return resource == 0 || e->dies[resource - 1].simulated; }

/* What the pressure of a resource is to be told.  With the lock held. */
static pn_mem_sample govern_sample(const pn_engine *e, uint32_t resource, double now)
{
    pn_mem_sample s = e->govern.sample;
    if (resource) {
        const pn_die *die = &e->dies[resource - 1];
        return (pn_mem_sample){.t = now, .host_total = die->sim.bytes, .budget = die->sim.bytes,
                               .hard = govern_available(e, resource), .soft = govern_available(e, resource)};
    }
    s.budget = govern_budget(e);
    s.own_budget = s.budget != e->govern.sample.budget;
    s.soft = govern_available(e, 0);
    s.hard = govern_capped(e, govern_since(e, s.hard));
    return s;
}

/* True: the level of that resource changed. */
static bool govern_feed(pn_engine *e, uint32_t resource, double now, bool active, pn_level *from)
{
    pn_governor *g = &e->govern;
    const pn_mem_sample s = govern_sample(e, resource, now);
    if (now >= g->hinted_until)
        pn_pressure_hint(&g->pressure[resource], PN_LEVEL_OK, now);
    if (atomic_load(&g->failed[resource]))
        pn_pressure_failed_alloc(&g->pressure[resource], now, false);
    if (resource == 0)
        pn_pressure_disk(&g->pressure[0], atomic_load(&g->disk) ? (double)atomic_load(&g->disk) : govern_disk);
    *from = g->level[resource];
    g->level[resource] = pn_pressure_feed(&g->pressure[resource], &s, active ? PN_WORK_ACTIVE : e->n_models || *from ? PN_WORK_IDLE : PN_WORK_NONE);
    return g->level[resource] != *from;
}

static pn_level govern_worst(const pn_governor *g)
{
    pn_level worst = PN_LEVEL_OK;
    for (uint32_t r = 0; r < g->n; r++)
        worst = PN_MAX(worst, g->level[r]);
    return worst;
}

static void govern_look(pn_engine *e, double now, bool active)
{
    pn_governor *g = &e->govern;
    bool changed[PN_LADDER_RESOURCES] = {false};
    pn_level from[PN_LADDER_RESOURCES];
    const char *why[PN_LADDER_RESOURCES];       /* another thread may look while this one tells */
    pn_mutex_lock(&g->lock);
    govern_read(e);
    for (uint32_t r = 0; r < g->n; r++) {
        changed[r] = govern_has(e, r) && govern_feed(e, r, now, active, &from[r]);
        why[r] = g->pressure[r].why;
    }
    g->due = now + PN_MIN(pn_pressure_due(&g->pressure[0], now), govern_lent(e) ? govern_lending : INFINITY);
    atomic_store(&g->worst, govern_worst(g));
    g->was_short = g->was_short || g->level[0] > PN_LEVEL_OK;
    g->idle_since = active ? -1 : g->idle_since < 0 ? now : g->idle_since;
    pn_mutex_unlock(&g->lock);
    for (uint32_t r = 0; r < g->n; r++)
        if (changed[r]) {
            pn_mem_event ev = {.kind = PN_MEM_LEVEL, .resource = r, .from = from[r]};
            snprintf(ev.what, sizeof ev.what, "%s", why[r]);
            pn_govern_event(e, &ev);
        }
}

PN_INTERNAL void pn_govern_disk(pn_engine *e, double bytes_per_s)
{
    if (bytes_per_s >= 1)
        atomic_store(&e->govern.disk, (unsigned long long)PN_MIN(bytes_per_s, 1e15));
}

PN_INTERNAL void pn_govern_failed(pn_engine *e, uint32_t resource, uint64_t bytes)
{
    unsigned long long had = atomic_load(&e->govern.failed[resource]);
    atomic_fetch_add(&e->govern.n_failed, 1u);
    while (bytes > had && !atomic_compare_exchange_weak(&e->govern.failed[resource], &had, bytes))
        ;
}

/* ------------------------------------------------------------------------------------------
 * The ladder
 * ------------------------------------------------------------------------------------------ */

static pn_ladder_view govern_view(pn_engine *e, uint32_t resource, double now)
{
    pn_governor *g = &e->govern;
    pn_mutex_lock(&g->lock);
    const pn_pressure *p = &g->pressure[resource];
    pn_ladder_view v = {.now = now, .level = g->level[resource], .available = govern_available(e, resource),
                        .threshold = {0, pn_pressure_threshold(p, PN_LEVEL_WATCH), pn_pressure_threshold(p, PN_LEVEL_TIGHT),
                                      pn_pressure_threshold(p, PN_LEVEL_CRITICAL)}};
    uint64_t wanted = atomic_exchange(&g->failed[resource], 0);
    bool bytes = !p->why || strcmp(p->why, "avail") == 0 || strcmp(p->why, "lost") == 0;
    if (!wanted && v.level && !bytes && v.available >= v.threshold[v.level])    /* it holds for another reason */
        wanted = v.threshold[PN_LEVEL_CRITICAL] / 4;
    v.goal = wanted ? pn_add_sat(v.available, wanted) : 0;
    pn_mutex_unlock(&g->lock);
    return v;
}

static void govern_show(pn_governor *g)
{
    pn_mutex_lock(&g->lock);
    memcpy(g->shown, g->ladder.state, sizeof g->shown);
    pn_mutex_unlock(&g->lock);
}

static void govern_move(pn_engine *e, uint32_t resource, double now, double until)
{
    pn_governor *g = &e->govern;
    pn_ladder_view v = govern_view(e, resource, now);
    pn_ladder_change c;
    while (pn_os_now() < until && pn_ladder_step(&g->ladder, resource, &v, until, &c)) {
        pn_mem_event ev = {.kind = PN_MEM_RUNG, .resource = resource, .rank = c.rung->rank, .undone = c.undone, .bytes = c.freed};
        const pn_ladder_state *is = pn_ladder_find(&g->ladder, c.rung->rank, resource);
        snprintf(ev.what, sizeof ev.what, "%s", c.rung->name);
        govern_show(g);
        if (c.freed || !(is->unfinished || is->undoing))        /* a slice that only prepared something is no news */
            pn_govern_event(e, &ev);
    }
}

/* One thread at a time: the others need not wait, somebody is at it. */
static bool govern_enter(pn_governor *g, bool enter)
{
    pn_mutex_lock(&g->lock);
    bool ok = !enter || !g->moving;
    if (ok)
        g->moving = enter;
    pn_mutex_unlock(&g->lock);
    return ok;
}

/* fresh: memory has been read; else it goes on, for a share of the time since the last slice. */
static void govern_climb(pn_engine *e, double now, bool fresh)
{
    pn_governor *g = &e->govern;
    if (!govern_enter(g, true))
        return;
    double slice = fresh ? govern_slice : PN_MIN(govern_slice, govern_share * (pn_os_now() - g->climbed));
    bool lends = pn_lend_keep(e, now, fresh, pn_os_now() + slice);
    for (uint32_t r = 0; r < g->n; r++)
        if (govern_has(e, r))
            govern_move(e, r, now, pn_os_now() + slice);
    g->climbed = pn_os_now();
    atomic_store(&g->goes_on, lends || pn_ladder_goes_on(&g->ladder));
    govern_enter(g, false);
}

/* Floors that could not be kept again when their turn ended. */
static void govern_refill(pn_engine *e)
{
    pn_mutex_lock(&e->models_lock);
    for (pn_model *m = e->models; m; m = m->next)
        pn_floor_refill(m);
    pn_mutex_unlock(&e->models_lock);
}

/* With nobody left at work the first of those put aside comes back.  share: as above.  Whom it tells may want the ladder. */
static void govern_resume(pn_engine *e, double share)
{
    pn_governor *g = &e->govern;
    if (!govern_enter(g, true))
        return;
    double now = pn_os_now(), until = now + PN_MIN(govern_slice, share * (now - g->climbed));
    const pn_ladder_state *aside = pn_ladder_find(&g->ladder, PN_RUNG_ASIDE, 0);
    bool goes_on = aside && aside->unfinished;
    govern_enter(g, false);
    (void)pn_sched_resume(e, true, goes_on, until);
    if (govern_enter(g, true)) {
        g->climbed = pn_os_now();
        govern_enter(g, false);
    }
}

PN_INTERNAL void pn_govern_tick(pn_engine *e, bool active)
{
    pn_governor *g = &e->govern;
    double now = govern_now(g);
    pn_mutex_lock(&g->lock);
    bool due = now >= g->due;
    pn_mutex_unlock(&g->lock);
    if (!due) {
        if (atomic_load(&g->goes_on))
            govern_climb(e, now, false);
        if (atomic_load(&g->returning))
            govern_resume(e, active ? govern_share : 1e9);
        return;
    }
    govern_look(e, now, active);
    govern_climb(e, now, true);
    govern_refill(e);
    govern_resume(e, 1e9);
}

PN_INTERNAL void pn_govern_glance(pn_engine *e)
{
    pn_governor *g = &e->govern;
    double now = govern_now(g);
    pn_mutex_lock(&g->lock);
    bool due = now >= g->due;
    pn_mutex_unlock(&g->lock);
    if (due)
        govern_look(e, now, false);
}

PN_INTERNAL bool pn_govern_idle(pn_engine *e)
{
    pn_governor *g = &e->govern;
    pn_mutex_lock(&g->lock);
    double rest = g->level[0] ? govern_rest_short : govern_rest;
    bool idle = g->was_short && atomic_load(&g->worst) <= PN_LEVEL_WATCH && g->idle_since >= 0 && govern_now(g) - g->idle_since >= rest;
    pn_mutex_unlock(&g->lock);
    return idle;
}

PN_INTERNAL double pn_govern_wait(pn_engine *e)
{
    pn_governor *g = &e->govern;
    pn_mutex_lock(&g->lock);
    double wait = g->due - govern_now(g);
    pn_mutex_unlock(&g->lock);
    if (atomic_load(&g->goes_on))
        wait = PN_MIN(wait, govern_slice / govern_share);
    if (atomic_load(&g->returning))
        wait = 0.001;           /* others may be stepping */
    return e->n_models || atomic_load(&g->worst) ? PN_MAX(wait, 0.0) : -1;
}

/* ------------------------------------------------------------------------------------------
 * Open, close
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_govern_open(pn_engine *e, const pn_engine_params *p, pn_err *err)
{
    pn_governor *g = &e->govern;
    g->clock = p->clock;
    g->clock_user = p->clock_user;
    g->reserve = p->mem_reserve;
    g->n = PN_MIN(1 + e->n_dies, (uint32_t)PN_LADDER_RESOURCES);
    g->stall = g->refault_rate = -1;
    pn_ladder_init(&g->ladder);
    const pn_msrc_params source = {.now = p->clock, .user = p->clock_user, .script_path = p->pressure_script, .mem = &e->ledger.mem};
    pn_status st = pn_msrc_open(&g->source, &source, err);
    if (st)
        return st;
    double now = govern_now(g);
    govern_read(e);
    g->oom_first = g->sample.oom;
    for (uint32_t r = 0; r < g->n; r++) {
        const pn_mem_sample s = govern_sample(e, r, now);
        pn_pressure_init(&g->pressure[r], r > 0, now);
        g->level[r] = pn_pressure_feed(&g->pressure[r], &s, PN_WORK_NONE);
    }
    pn_rungs_add(e);
    return PN_OK;
}

PN_INTERNAL void pn_govern_close(pn_engine *e)
{
    pn_msrc_close(&e->govern.source);
    pn_mutex_fini(&e->govern.lock);
}

/* ------------------------------------------------------------------------------------------
 * pantheon.h
 * ------------------------------------------------------------------------------------------ */

PN_API pn_status pn_mem_get(pn_engine *e, uint32_t resource, pn_mem_state *out)
{
    pn_governor *g = &e->govern;
    if (!out || resource >= g->n || !govern_has(e, resource))
        return PN_E_INVALID;
    *out = (pn_mem_state){.stall = -1, .refault_rate = -1};
    if (resource)
        snprintf(out->name, sizeof out->name, "die%" PRIu32, resource - 1);
    else
        snprintf(out->name, sizeof out->name, "host");
    pn_mutex_lock(&g->lock);
    const pn_mem_sample s = govern_sample(e, resource, g->sample.t);
    const pn_pressure *p = &g->pressure[resource];
    out->level = g->level[resource];
    out->why = p->why ? p->why : "";
    out->budget = s.budget;
    out->hard = s.hard;
    out->soft = s.soft;
    out->watch = pn_pressure_threshold(p, PN_LEVEL_WATCH);
    out->tight = pn_pressure_threshold(p, PN_LEVEL_TIGHT);
    out->critical = pn_pressure_threshold(p, PN_LEVEL_CRITICAL);
    if (!resource) {
        out->lent = govern_lent(e);
        out->stall = g->stall;
        out->refault_rate = g->refault_rate;
        out->refault_bytes = g->sample.known & PN_HOST_REFAULT ? g->sample.refault : 0;
        out->oom_kills = pn_sub_sat(g->sample.oom, g->oom_first);
        out->n_admitted = atomic_load(&g->n_admitted);
        out->n_busy = atomic_load(&g->n_busy);
        out->n_refused = atomic_load(&g->n_refused);
        out->n_failed = atomic_load(&g->n_failed);
    }
    pn_mutex_unlock(&g->lock);
    return PN_OK;
}

PN_API pn_level pn_mem_level(pn_engine *e) { return (pn_level)atomic_load(&e->govern.worst); }

PN_API size_t pn_mem_rungs(pn_engine *e, pn_mem_rung *out, size_t cap)
{
    pn_governor *g = &e->govern;
    size_t n = 0;
    pn_mutex_lock(&g->lock);
    for (uint32_t i = 0; i < g->ladder.n; i++)
        for (uint32_t r = 0; r < g->n; r++) {
            const pn_rung *rung = &g->ladder.rung[i];
            const pn_ladder_state *s = &g->shown[i][r];
            if (r && !s->n_applied)
                continue;
            if (n < cap)
                out[n] = (pn_mem_rung){.rank = rung->rank, .resource = r, .name = rung->name, .level = (pn_level)rung->level,
                                       .in_force = s->in_force, .n_applied = s->n_applied, .n_undone = s->n_undone, .freed = s->freed};
            n++;
        }
    pn_mutex_unlock(&g->lock);
    return n;
}

PN_API pn_status pn_mem_limit(pn_engine *e, int64_t soft, int64_t hard, pn_err *err)
{
    if (hard > 0) {
        uint64_t used = atomic_load(&e->ledger.total), limit = (uint64_t)hard;
        if (used > limit)
            pn_mem_release(e, used - limit, NULL);
        used = atomic_load(&e->ledger.total);
        if (used > limit)
            return pn_fail(err, PN_E_BUDGET, "a limit of %" PRIu64 " bytes: %" PRIu64 " are in use", limit, used);
    }
    if (hard >= 0)
        atomic_store(&e->ledger.limit, (uint64_t)hard);
    if (soft >= 0)
        atomic_store(&e->ledger.soft, (uint64_t)soft);
    uint64_t over = pn_sub_sat(atomic_load(&e->ledger.total), soft > 0 ? (uint64_t)soft : UINT64_MAX);
    if (over)
        pn_mem_release(e, over, NULL);
    return PN_OK;
}

PN_API void pn_mem_headroom(pn_engine *e, uint64_t bytes) { atomic_store(&e->govern.headroom, bytes); }

PN_API uint64_t pn_mem_used(pn_engine *e) { return atomic_load(&e->ledger.total); }

PN_API uint64_t pn_mem_highwater(pn_engine *e, int reset)
{
    uint64_t peak = atomic_load(&e->ledger.total_peak);
    if (reset)
        atomic_store(&e->ledger.total_peak, atomic_load(&e->ledger.total));
    return peak;
}

PN_API void pn_mem_release(pn_engine *e, uint64_t want, uint64_t *freed)
{
    uint64_t n = pn_lend_back(e, want, false);
    n += n < want ? pn_cache_give_all(e, want - n) : 0;
    if (freed)
        *freed = n;
}

PN_API void pn_mem_hint(pn_engine *e, pn_level level)
{
    pn_governor *g = &e->govern;
    double now = govern_now(g);
    pn_mutex_lock(&g->lock);
    for (uint32_t r = 0; r < g->n; r++)
        pn_pressure_hint(&g->pressure[r], level, now);
    g->hinted_until = now + govern_hint;
    g->due = now;
    pn_mutex_unlock(&g->lock);
}

PN_API void pn_mem_poll(pn_engine *e)
{
    double now = govern_now(&e->govern);
    govern_look(e, now, true);
    govern_climb(e, now, true);
}

/* ------------------------------------------------------------------------------------------
 * Rungs of the host program
 * ------------------------------------------------------------------------------------------ */

static uint64_t govern_own_gain(void *user, uint32_t resource)
{
    const pn_mem_rung_params *p = user;
    return resource ? 0 : p->gain(p->user);
}

static pn_rung_state govern_own_apply(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed)
{
    const pn_mem_rung_params *p = user;
    (void)resource, (void)deadline;
    *freed = p->apply(p->user, want);
    return PN_RUNG_DONE;
}

/* The ladder is ours alone until govern_enter(g, false). */
static void govern_hold(pn_governor *g)
{
    while (!govern_enter(g, true))
        pn_thread_yield();
}

PN_API pn_status pn_mem_rung_add(pn_engine *e, const pn_mem_rung_params *p, pn_err *err)
{
    pn_governor *g = &e->govern;
    pn_mem_rung_params *slot = g->own;
    if (!p || !p->gain || !p->apply || !p->name || !p->user || p->level < PN_LEVEL_WATCH || p->level > PN_LEVEL_CRITICAL)
        return pn_fail(err, PN_E_INVALID, "a rung has a name, a level above OK, a user, and tells what it gains and how it is applied");
    govern_hold(g);
    while (slot < g->own + GOVERN_RUNGS && slot->user)
        slot++;
    bool ok = slot < g->own + GOVERN_RUNGS;
    if (ok) {
        pn_params_copy(slot, sizeof *slot, p, p->size);
        const pn_rung r = {.rank = p->rank, .name = p->name, .level = (uint8_t)p->level, .gain = govern_own_gain, .apply = govern_own_apply, .user = slot};
        ok = pn_ladder_add(&g->ladder, &r);
    }
    govern_show(g);
    govern_enter(g, false);
    return ok ? PN_OK : pn_fail(err, PN_E_BUDGET, "the host program has %d rungs already", GOVERN_RUNGS);
}

PN_API void pn_mem_rung_remove(pn_engine *e, const void *user)
{
    pn_governor *g = &e->govern;
    govern_hold(g);
    for (size_t i = 0; i < GOVERN_RUNGS; i++)
        if (g->own[i].user == user) {
            pn_ladder_remove(&g->ladder, &g->own[i]);
            memset(&g->own[i], 0, sizeof g->own[i]);
        }
    govern_show(g);
    govern_enter(g, false);
}
