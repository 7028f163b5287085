/* SPDX-License-Identifier: AGPL-3.0-only */
#include "mem/pn_pressure.h"

#include <math.h>

/* All of memory sheet 5, but what says otherwise. */
#define PRESS_MIB ((uint64_t)1 << 20)
#define PRESS_SMALL_HOST (1536 * PRESS_MIB)     /* below, thresholds are plain shares */
static const double press_confirm_s = 0.2;      /* between the two samples that raise to WATCH or TIGHT */
static const double press_calm_s = 5, press_calm_critical_s = 3, press_dwell_s = 2;
static const double press_lost_s = 5;           /* 14.1 */
/* With more than this part of the budget unused, what is read again is somebody's in a smaller box: a container beside us. */
enum { PRESS_UNUSED = 16 };
static const double press_rate_s = 2;           /* how long refaults or swapping must last */
static const double press_refault[2] = {0.05, 0.25};            /* of B_disk: WATCH, TIGHT */
static const double press_swapin = 1048576;                     /* bytes a second: TIGHT */
static const double press_psi[3] = {0.05, 0.15, 0.40}, press_psi_s = 2;
static const double press_oom_s = 30, press_alloc_s = 5;
static const double press_fast_s = 0.25, press_recent_s = 1, press_slow_s = 5, press_recent_for_s = 60;

PN_API const char *pn_level_name(pn_level l)
{
    static const char *const names[] = {"OK", "WATCH", "TIGHT", "CRITICAL"};
    return (unsigned)l < PN_COUNT_OF(names) ? names[l] : "?";
}

/* ------------------------------------------------------------------------------------------
 * Thresholds
 * ------------------------------------------------------------------------------------------ */

/* percent of b, without overflow. */
static uint64_t press_share(uint64_t b, uint64_t percent) { return b / 100 * percent + b % 100 * percent / 100; }

static uint64_t press_clamp(uint64_t v, uint64_t lo, uint64_t hi) { return PN_MIN(PN_MAX(v, lo), hi); }

static void press_set_thresholds(pn_pressure *p, uint64_t b, bool own)
{
    uint64_t *e = p->enter;
    p->budget = b;
    if (b == 0) {                               /* unknown: nothing is below it */
        e[PN_LEVEL_WATCH] = e[PN_LEVEL_TIGHT] = e[PN_LEVEL_CRITICAL] = 0;
    } else if (p->device) {
        e[PN_LEVEL_WATCH] = press_share(b, 12);
        e[PN_LEVEL_TIGHT] = press_share(b, 6);
        e[PN_LEVEL_CRITICAL] = press_share(b, 2);
    } else if (b < PRESS_SMALL_HOST) {
        uint64_t least = own ? 0 : 8 * PRESS_MIB;       /* below 80 MiB of a machine the least rules */
        e[PN_LEVEL_CRITICAL] = PN_MAX(press_share(b, 4), least);
        e[PN_LEVEL_TIGHT] = PN_MAX(press_share(b, 10), e[PN_LEVEL_CRITICAL]);
        e[PN_LEVEL_WATCH] = PN_MAX(press_share(b, 20), e[PN_LEVEL_TIGHT]);
    } else {
        e[PN_LEVEL_WATCH] = press_clamp(press_share(b, 20), 256 * PRESS_MIB, 4096 * PRESS_MIB);
        e[PN_LEVEL_TIGHT] = press_clamp(press_share(b, 10), 128 * PRESS_MIB, 2048 * PRESS_MIB);
        e[PN_LEVEL_CRITICAL] = press_clamp(press_share(b, 4), 64 * PRESS_MIB, 768 * PRESS_MIB);
    }
}

/* What must be available before a level may fall. */
static uint64_t press_leave(const pn_pressure *p, int level) { return pn_add_sat(p->enter[level], press_share(p->enter[level], 30)); }

PN_INTERNAL uint64_t pn_pressure_threshold(const pn_pressure *p, pn_level level) { return p->enter[level]; }

PN_INTERNAL uint64_t pn_pressure_deficit(const pn_pressure *p)
{
    return p->sampled ? pn_sub_sat(press_leave(p, p->level), p->available) : 0;
}

/* ------------------------------------------------------------------------------------------
 * Overrides
 * ------------------------------------------------------------------------------------------ */

/* Follow a counter: since when has it grown by more than each of two rates (bytes a second)? */
static void press_rate_feed(pn_pressure_rate *r, bool known, double t, uint64_t value, const double rates[2])
{
    if (!known || !r->known || value < r->value) {      /* the first, or of another control group */
        *r = (pn_pressure_rate){.known = known, .t = t, .value = value, .since = {-1, -1}};
        return;
    }
    if (t <= r->t)                                      /* not counted anew */
        return;
    double rate = (double)(value - r->value) / (t - r->t);
    for (int i = 0; i < 2; i++)
        if (rate > rates[i])
            r->since[i] = r->since[i] < 0 ? r->t : r->since[i];
        else
            r->since[i] = -1;
    r->t = t;
    r->value = value;
}

static bool press_rate_lasts(const pn_pressure_rate *r, int i)
{
    return r->since[i] >= 0 && r->t - r->since[i] >= press_rate_s;
}

/* The share of the last two seconds in which all tasks waited.  Of the points only one need be older
 * than that; points closer than the confirming time are left out, so that 16 are enough. */
static void press_psi_feed(pn_pressure *p, bool known, double t, uint64_t us)
{
    uint32_t n = p->psi_n && us >= p->psi_us[p->psi_n - 1] ? p->psi_n : 0, drop = 0;
    p->psi_share = 0;
    p->psi_n = 0;
    if (!known)
        return;
    while (drop + 1 < n && t - p->psi_t[drop + 1] >= press_psi_s)
        drop++;
    n -= drop;
    memmove(p->psi_t, p->psi_t + drop, n * sizeof p->psi_t[0]);
    memmove(p->psi_us, p->psi_us + drop, n * sizeof p->psi_us[0]);
    if (n && t - p->psi_t[0] >= press_psi_s)
        p->psi_share = (double)(us - p->psi_us[0]) * 1e-6 / (t - p->psi_t[0]);
    if (n < PN_PRESSURE_POINTS && (n == 0 || t - p->psi_t[n - 1] >= press_confirm_s)) {
        p->psi_t[n] = t;
        p->psi_us[n++] = us;
    }
    p->psi_n = n;
}

static void press_oom_feed(pn_pressure *p, bool known, double t, uint64_t oom)
{
    if (known && p->oom_known && oom > p->oom)
        p->oom_until = t + press_oom_s;
    p->oom_known = known;
    p->oom = oom;
}

static void press_counters(pn_pressure *p, const pn_mem_sample *s)
{
    const double refault[2] = {press_refault[0] * p->disk_rate, press_refault[1] * p->disk_rate};
    const double swapin[2] = {press_swapin, press_swapin};
    bool full = s->unused <= s->budget / PRESS_UNUSED;
    if (p->device)
        return;
    press_rate_feed(&p->refault, full && (s->known & PN_HOST_REFAULT) && p->disk_rate > 0, s->counted, s->refault, refault);
    press_rate_feed(&p->swapin, full && (s->known & PN_HOST_SWAPIN), s->counted, s->swapin, swapin);
    press_psi_feed(p, s->known & PN_HOST_PSI, s->t, s->psi_us);
    press_oom_feed(p, s->known & PN_HOST_OOM, s->t, s->oom);
    p->thrashing = press_rate_lasts(&p->refault, 0);
}

static void press_demand(pn_level *most, const char **why, pn_level level, const char *reason)
{
    if (level > *most) {
        *most = level;
        *why = reason;
    }
}

/* The highest level that an override demands now. */
static pn_level press_overrides(const pn_pressure *p, double now, const char **why)
{
    pn_level most = PN_LEVEL_OK;
    press_demand(&most, why, now < p->oom_until ? PN_LEVEL_CRITICAL : PN_LEVEL_OK, "oom");
    press_demand(&most, why, now < p->alloc_until ? p->alloc_level : PN_LEVEL_OK, "alloc");
    press_demand(&most, why, p->hint, "hint");
    for (int i = 0; i < 2; i++)
        if (press_rate_lasts(&p->refault, i))
            press_demand(&most, why, (pn_level)(PN_LEVEL_WATCH + i), "refault");
    if (press_rate_lasts(&p->swapin, 0))
        press_demand(&most, why, PN_LEVEL_TIGHT, "swapin");
    for (int i = 0; i < 3; i++)
        if (p->psi_share >= press_psi[i])
            press_demand(&most, why, (pn_level)(PN_LEVEL_WATCH + i), "psi");
    return most;
}

/* ------------------------------------------------------------------------------------------
 * The level
 * ------------------------------------------------------------------------------------------ */

static void press_change(pn_pressure *p, pn_level to, double now, const char *why)
{
    p->level = to;
    p->changed = now;
    p->why = why;
}

static void press_raise(pn_pressure *p, pn_level to, double now, const char *why)
{
    if (to > p->level)
        press_change(p, to, now, why);
}

/* An override that comes between two samples: what was calm until now is so no longer. */
static void press_event(pn_pressure *p, pn_level level, double now, const char *why)
{
    for (int l = PN_LEVEL_WATCH; l <= (int)level; l++)
        p->calm[l] = -1;
    press_raise(p, level, now, why);
}

static void press_forget_timers(pn_pressure *p)
{
    for (int l = 0; l < 4; l++)
        p->below[l] = p->calm[l] = -1;
}

static void press_timer(double *since, bool holds, double now)
{
    *since = !holds ? -1 : *since < 0 ? now : *since;
}

/* The level that `available` alone says, as far as it is confirmed. */
static pn_level press_confirmed(const pn_pressure *p)
{
    if (p->below[PN_LEVEL_CRITICAL] >= 0)
        return PN_LEVEL_CRITICAL;
    for (int l = PN_LEVEL_TIGHT; l > PN_LEVEL_OK; l--)
        if (p->below[l] >= 0 && p->t - p->below[l] >= press_confirm_s)
            return (pn_level)l;
    return PN_LEVEL_OK;
}

static void press_fall(pn_pressure *p)
{
    double calm = p->level == PN_LEVEL_CRITICAL ? press_calm_critical_s : press_calm_s;
    if (p->level > PN_LEVEL_OK && p->calm[p->level] >= 0 && p->t - p->calm[p->level] >= calm &&
        p->t - p->changed >= press_dwell_s)
        press_change(p, (pn_level)(p->level - 1), p->t, "avail");
}

static void press_lost(pn_pressure *p, double now)
{
    press_timer(&p->lost, true, now);
    press_forget_timers(p);
    if (now - p->lost >= press_lost_s)
        press_raise(p, PN_LEVEL_WATCH, now, "lost");
}

PN_INTERNAL void pn_pressure_init(pn_pressure *p, bool device, double now)
{
    memset(p, 0, sizeof *p);
    p->why = "avail";
    p->device = device;
    p->changed = p->worked = p->t = p->looked = now;
    p->lost = p->oom_until = p->alloc_until = -1;
    press_forget_timers(p);
    for (int i = 0; i < 2; i++)
        p->refault.since[i] = p->swapin.since[i] = -1;
}

PN_INTERNAL void pn_pressure_disk(pn_pressure *p, double bytes_per_s) { p->disk_rate = bytes_per_s; }

PN_INTERNAL pn_level pn_pressure_feed(pn_pressure *p, const pn_mem_sample *s, pn_work work)
{
    p->work = work;
    p->looked = s->t;
    if (work == PN_WORK_ACTIVE)
        p->worked = s->t;
    if (s->lost) {
        press_lost(p, s->t);
        return p->level;
    }
    if (p->sampled && s->t <= p->t)
        return p->level;
    p->sampled = true;
    p->lost = -1;
    p->t = s->t;
    p->available = s->soft;
    if (s->budget != p->budget)
        press_set_thresholds(p, s->budget, s->own_budget);
    press_counters(p, s);

    const char *why = "avail";
    pn_level demanded = press_overrides(p, p->t, &why);
    for (int l = PN_LEVEL_WATCH; l <= PN_LEVEL_CRITICAL; l++) {
        press_timer(&p->below[l], s->soft < p->enter[l], p->t);
        press_timer(&p->calm[l], s->soft >= press_leave(p, l) && demanded < (pn_level)l, p->t);
    }
    press_demand(&demanded, &why, press_confirmed(p), "avail");
    if (demanded > p->level)
        press_raise(p, demanded, p->t, why);
    else
        press_fall(p);
    return p->level;
}

PN_INTERNAL pn_level pn_pressure_failed_alloc(pn_pressure *p, double now, bool floor_memory)
{
    pn_level level = floor_memory ? PN_LEVEL_CRITICAL : PN_LEVEL_TIGHT;
    p->floor_failures += floor_memory;
    p->alloc_level = now < p->alloc_until ? PN_MAX(p->alloc_level, level) : level;
    p->alloc_until = now + press_alloc_s;
    press_event(p, level, now, "alloc");
    return p->level;
}

PN_INTERNAL pn_level pn_pressure_hint(pn_pressure *p, pn_level level, double now)
{
    p->hint = level;
    press_event(p, level, now, "hint");
    return p->level;
}

PN_INTERNAL double pn_pressure_due(const pn_pressure *p, double now)
{
    double every = press_slow_s;
    if (p->work == PN_WORK_NONE)
        return INFINITY;
    if (p->work == PN_WORK_ACTIVE || p->level >= PN_LEVEL_WATCH)
        every = press_fast_s;
    else if (now - p->worked < press_recent_for_s)
        every = press_recent_s;
    double wait = p->looked + every - now;
    return wait > 0 ? wait : 0;
}

#undef PRESS_MIB
#undef PRESS_SMALL_HOST
