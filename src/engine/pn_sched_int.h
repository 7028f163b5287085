/*
 * pn_sched_int.h - what the parts of the scheduler share; nobody else includes it.
 *
 *     pn_sched.c         running steps on all dies, what came of them, jobs that come and go
 *     pn_sched_form.c    whose rows are in the next step
 *     pn_sched_aside.c   requests that the ladder puts aside
 */
#ifndef PN_SCHED_INT_H
#define PN_SCHED_INT_H

#include "engine/pn_sched.h"

static inline pn_sched *sched_of(const pn_job *j) { return pn_session_die(j->s)->sched; }

static inline pn_queue *sched_queue(const pn_job *j) { return &j->s->model->queue; }

static inline void sched_append(pn_job **list, pn_job *j)
{
    while (*list)
        list = &(*list)->next;
    *list = j;
    j->next = NULL;
}

static inline void sched_take_out(pn_job **list, const pn_job *j)
{
    while (*list != j)
        list = &(*list)->next;
    *list = j->next;
}

/* ---- pn_sched_form.c; with the lock held ---------------------------------------------------- */

/* One more, or one less, of j's client is under way. */
PN_INTERNAL void pn_sched_count_peers(const pn_job *j, int more);

/* The list of the model whose turn it is: of those with work the one that has had the least time.  NULL: nobody's. */
PN_INTERNAL pn_job *pn_sched_first(pn_sched *q);
/* Of those that may share a step with `first`, the one that takes the longest prompts. */
PN_INTERNAL pn_session *pn_sched_widest(pn_job *first);
/* Runs and rows of the next step, at most so many. */
PN_INTERNAL void pn_sched_fill(pn_sched *q, pn_job *first, uint32_t max_rows);
/* It, with tokens and wanted rows side by side. */
PN_INTERNAL pn_step pn_sched_step(pn_sched *q);

/* ---- pn_sched.c ----------------------------------------------------------------------------- */

/* fn for each scheduler that has no step open, entered, on the stepping thread; the sum of what it returns. */
PN_INTERNAL uint64_t pn_sched_each_idle(pn_engine *e, uint64_t (*fn)(pn_sched *q, void *user), void *user);
/* With the lock held, and the job in no step. */
PN_INTERNAL void pn_sched_hold_job(pn_job *j, int held);
/* The job is over; the lock is not held. */
PN_INTERNAL void pn_sched_end(pn_sched *q, pn_job *j, pn_status st);

#endif /* PN_SCHED_INT_H */
