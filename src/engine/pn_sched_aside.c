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

/* With the lock held: the one whose keys and values are on their way, to the disk or back. */
static pn_job *sched_moving(pn_sched *q)
{
    for (pn_model *m = q->models; m; m = m->queue.next)
        for (pn_job *j = m->queue.waiting; j; j = j->next) {
            pn_park_stage stage = pn_session_park_stage(j->s);
            if ((j->held & SCHED_PARKED) && stage && stage != PN_PARK_THERE)
                return j;
        }
    return NULL;
}

/* What a visit is to do, and what came of it. */
typedef struct sched_aside {
    double deadline;
    bool idle_only, goes_on;
    uint64_t freed;
    bool more;                  /* it had to stop in the middle of one */
    uint32_t n_seen;            /* schedulers */
} sched_aside;

/* The one that is on its way, or another, which is held from now on.  Its keys and values are nobody else's while its
 * scheduler is entered, lock or no lock. */
static uint64_t sched_park_one(pn_sched *q, void *user)
{
    sched_aside *a = user;
    uint32_t n = 0;
    pn_mutex_lock(&q->lock);
    pn_job *j = sched_moving(q), *newest = sched_newest(q, &n);
    if (!j && n > 1) {
        j = newest;
        pn_sched_hold_job(j, j->held | SCHED_PARKED);
        j->parked_at = pn_os_now();
    }
    pn_mutex_unlock(&q->lock);
    if (!j)
        return 0;
    pn_status st = pn_session_park(j->s, a->deadline, &a->freed, NULL);
    a->more |= !st && pn_session_park_stage(j->s) != PN_PARK_THERE;
    if (!st)
        return 0;
    pn_mutex_lock(&q->lock);
    pn_sched_hold_job(j, j->held & ~SCHED_PARKED);
    pn_mutex_unlock(&q->lock);
    return 0;
}

/* With the lock held: who comes back whatever else is at work.  One that is on its way back has its memory; one that was to go
 * has still all of it, if nobody wants it any more. */
static pn_job *sched_returning(pn_sched *q, bool goes_on)
{
    pn_job *j = sched_moving(q);
    pn_park_stage stage = j ? pn_session_park_stage(j->s) : PN_PARK_NONE;
    if (stage == PN_PARK_GOING && !goes_on)
        pn_session_park_stop(j->s);             /* on disk with it */
    return stage == PN_PARK_BACK || (stage == PN_PARK_AWAY && !goes_on) ? j : NULL;
}

/* PN_E_IO ends it; anything else leaves it where it is. */
static uint64_t sched_resume_one(pn_sched *q, void *user)
{
    sched_aside *a = user;
    uint32_t n = 0;
    pn_mutex_lock(&q->lock);
    a->n_seen++;
    pn_job *returning = sched_returning(q, a->goes_on), *j = returning ? returning : sched_first_parked(q);
    (void)sched_newest(q, &n);
    pn_mutex_unlock(&q->lock);
    if (!j || (!returning && a->idle_only && n))
        return 0;
    pn_status st = pn_session_unpark(j->s, a->deadline, &j->err);
    if (st == PN_E_BUDGET || st == PN_E_NOMEM)
        return 0;
    if (pn_session_park_stage(j->s)) {
        a->more = true;
        return 1;
    }
    j->gen.r.parked_seconds += pn_os_now() - j->parked_at;
    j->gen.r.level_max = PN_LEVEL_CRITICAL;     /* nothing less puts anybody aside */
    pn_mutex_lock(&q->lock);
    pn_sched_hold_job(j, j->held & ~SCHED_PARKED);
    pn_mutex_unlock(&q->lock);
    if (st)
        pn_sched_end(q, j, st);
    return 1;
}

static uint64_t sched_turn_bytes(const pn_job *j)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < j->s->model->n_dies; i++)
        bytes += pn_kv_turn_bytes(&j->s->kv, j->s->kv.reserved, i);
    return bytes;
}

static uint64_t sched_parkable_one(pn_sched *q, void *user)
{
    uint32_t n = 0;
    (void)user;
    pn_mutex_lock(&q->lock);
    const pn_job *newest = sched_newest(q, &n), *moving = sched_moving(q);
    uint64_t bytes = (moving ? sched_turn_bytes(moving) : 0) + (n > 1 ? sched_turn_bytes(newest) * (n - 1) : 0);
    pn_mutex_unlock(&q->lock);
    return bytes;
}

static uint64_t sched_parked_one(pn_sched *q, void *user)
{
    (void)user;
    pn_mutex_lock(&q->lock);
    const pn_job *j = sched_first_parked(q);
    uint64_t bytes = j ? PN_MAX(pn_session_parked_bytes(j->s), UINT64_C(1)) : 0;
    pn_mutex_unlock(&q->lock);
    return bytes;
}

PN_INTERNAL bool pn_sched_park(pn_engine *e, double deadline, uint64_t *freed)
{
    sched_aside a = {.deadline = deadline};
    (void)pn_sched_each_idle(e, sched_park_one, &a);
    *freed += a.freed;
    return a.more;
}

PN_INTERNAL uint64_t pn_sched_parkable(pn_engine *e) { return pn_sched_each_idle(e, sched_parkable_one, NULL); }
PN_INTERNAL uint64_t pn_sched_parked(pn_engine *e) { return pn_sched_each_idle(e, sched_parked_one, NULL); }

PN_INTERNAL bool pn_sched_resume(pn_engine *e, bool idle_only, bool goes_on, double deadline)
{
    sched_aside a = {.deadline = deadline, .idle_only = idle_only, .goes_on = goes_on};
    bool went = pn_sched_each_idle(e, sched_resume_one, &a) > 0;
    if (a.more || a.n_seen == e->n_dies)        /* of those that were not seen nobody knows */
        atomic_store(&e->govern.returning, a.more);
    return went;
}
