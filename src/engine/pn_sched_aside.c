/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_sched_aside.c - requests that the ladder puts aside: the one that began last goes first, and comes back last.
 */
#include "engine/pn_sched_int.h"

#include "engine/pn_park.h"

/* With the lock held: the one that began last, and how many there are. */
static pn_job *sched_newest(pn_sched *q, uint32_t *n)
{
    pn_job *newest = NULL;
    for (pn_model *m = q->models; m; m = m->queue.next)
        for (pn_job *j = m->queue.work; j; j = j->next) {
            newest = !newest || j->began_at >= newest->began_at ? j : newest;
            ++*n;
        }
    return newest;
}

/* With the lock held: the one that was put aside first. */
static pn_job *sched_first_parked(pn_sched *q)
{
    pn_job *first = NULL;
    for (pn_model *m = q->models; m; m = m->queue.next)
        for (pn_job *j = m->queue.waiting; j; j = j->next)
            if ((j->held & SCHED_PARKED) && (!first || j->parked_at < first->parked_at))
                first = j;
    return first;
}

/* Its keys and values are nobody else's while its scheduler is entered, lock or no lock. */
static uint64_t sched_park_one(pn_sched *q)
{
    uint32_t n = 0;
    uint64_t freed = 0;
    pn_mutex_lock(&q->lock);
    pn_job *j = sched_newest(q, &n);
    if (n > 1) {
        pn_sched_hold_job(j, j->held | SCHED_PARKED);
        j->parked_at = pn_os_now();
    }
    pn_mutex_unlock(&q->lock);
    if (n < 2 || pn_session_park(j->s, &freed, NULL) == PN_OK)
        return freed;
    pn_mutex_lock(&q->lock);
    pn_sched_hold_job(j, j->held & ~SCHED_PARKED);
    pn_mutex_unlock(&q->lock);
    return 0;
}

/* PN_E_IO ends it; anything else leaves it where it is. */
static bool sched_resume_one(pn_sched *q, bool idle_only)
{
    uint32_t n = 0;
    pn_mutex_lock(&q->lock);
    pn_job *j = sched_first_parked(q);
    (void)sched_newest(q, &n);
    pn_mutex_unlock(&q->lock);
    if (!j || (idle_only && n))
        return false;
    pn_status st = pn_session_unpark(j->s, &j->err);
    if (st == PN_E_BUDGET || st == PN_E_NOMEM)
        return false;
    j->gen.r.parked_seconds += pn_os_now() - j->parked_at;
    j->gen.r.level_max = PN_LEVEL_CRITICAL;     /* nothing less puts anybody aside */
    pn_mutex_lock(&q->lock);
    pn_sched_hold_job(j, j->held & ~SCHED_PARKED);
    pn_mutex_unlock(&q->lock);
    if (st)
        pn_sched_end(q, j, st);
    return true;
}

static uint64_t sched_park_call(pn_sched *q, bool flag)
{
    (void)flag;
    return sched_park_one(q);
}

static uint64_t sched_resume_call(pn_sched *q, bool idle_only) { return sched_resume_one(q, idle_only); }

static uint64_t sched_parkable_call(pn_sched *q, bool flag)
{
    uint64_t bytes = 0;
    uint32_t n = 0;
    (void)flag;
    pn_mutex_lock(&q->lock);
    const pn_job *newest = sched_newest(q, &n);
    if (n > 1)
        for (uint32_t i = 0; i < newest->s->model->n_dies; i++)
            bytes += pn_kv_turn_bytes(&newest->s->kv, newest->s->kv.reserved, i);
    pn_mutex_unlock(&q->lock);
    return bytes * (n ? n - 1 : 0);
}

static uint64_t sched_parked_call(pn_sched *q, bool flag)
{
    (void)flag;
    pn_mutex_lock(&q->lock);
    const pn_job *j = sched_first_parked(q);
    uint64_t bytes = j ? PN_MAX(pn_session_parked_bytes(j->s), UINT64_C(1)) : 0;
    pn_mutex_unlock(&q->lock);
    return bytes;
}

PN_INTERNAL uint64_t pn_sched_park(pn_engine *e) { return pn_sched_each_idle(e, sched_park_call, false); }
PN_INTERNAL uint64_t pn_sched_parkable(pn_engine *e) { return pn_sched_each_idle(e, sched_parkable_call, false); }
PN_INTERNAL uint64_t pn_sched_parked(pn_engine *e) { return pn_sched_each_idle(e, sched_parked_call, false); }
PN_INTERNAL bool pn_sched_resume(pn_engine *e, bool idle_only) { return pn_sched_each_idle(e, sched_resume_call, idle_only) > 0; }
