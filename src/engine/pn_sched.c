/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_sched.c - running a step in slices, handing out what came of it.
 *
 * Memory is taken between steps, never in one; when there is none the step has fewer runs.  A step of one
 * run needs no memory of ours: its tokens and logits lie where they belong.  Tokens and logits are the machine's
 * memory, whatever die computes.
 */
#include "engine/pn_sched_int.h"

#include "engine/pn_rungs.h"

#include <inttypes.h>

static const double sched_slice = 0.002;        /* seconds between two looks at the cancel flags */
static const double sched_look = 0.05;          /* the same while all requests are paused */

PN_INTERNAL void pn_sched_init(pn_sched *q, pn_die *die)
{
    q->die = die;
    pn_mutex_init(&q->lock);
    pn_cond_init(&q->settled);
}

PN_INTERNAL void pn_sched_fini(pn_sched *q)
{
    pn_sched_settle(q);
    (void)pn_sched_idle_bytes(q, true);
    pn_cond_fini(&q->settled);
    pn_mutex_fini(&q->lock);
}

/* ------------------------------------------------------------------------------------------
 * For the ladder
 * ------------------------------------------------------------------------------------------ */

static uint64_t sched_buffer_bytes(const pn_sched *q)
{
    return q->cap_rows * sizeof *q->tokens + q->cap_runs * sizeof *q->out_rows + q->cap_logits * sizeof *q->logits;
}

static void sched_drop_buffers(pn_sched *q)
{
    pn_mem *mem = pn_engine_mem(q->die->engine);
    pn_mem_free(mem, PN_ACCT_SCRATCH, q->tokens, q->cap_rows * sizeof *q->tokens);
    pn_mem_free(mem, PN_ACCT_SCRATCH, q->out_rows, q->cap_runs * sizeof *q->out_rows);
    pn_mem_free(mem, PN_ACCT_SCRATCH, q->logits, q->cap_logits * sizeof *q->logits);
    q->tokens = NULL;
    q->out_rows = NULL;
    q->logits = NULL;
    q->cap_rows = q->cap_runs = q->cap_logits = 0;
}

PN_INTERNAL uint64_t pn_sched_idle_bytes(pn_sched *q, bool drop)
{
    pn_mutex_lock(&q->lock);
    bool idle = !q->n_jobs && !q->open && !q->computed && !q->entered && !q->settling;
    uint64_t n = idle ? sched_buffer_bytes(q) : 0;
    if (idle && drop)
        sched_drop_buffers(q);
    pn_mutex_unlock(&q->lock);
    return n;
}

PN_INTERNAL uint32_t pn_sched_at_work(pn_sched *q, uint32_t *n_ready)
{
    uint32_t most = 0;
    *n_ready = 0;
    pn_mutex_lock(&q->lock);
    for (const pn_model *m = q->models; m; m = m->queue.next) {
        most = PN_MAX(most, m->queue.n_work);
        *n_ready = PN_MAX(*n_ready, m->queue.n_ready);
    }
    pn_mutex_unlock(&q->lock);
    return most;
}

/* ------------------------------------------------------------------------------------------
 * Running it
 * ------------------------------------------------------------------------------------------ */

/* The next part of the step, on its die. */
static void sched_submit_part(pn_sched *q)
{
    pn_die *die = q->model->dies[q->part];
    q->st = pn_die_grow(die, &q->plan->part[q->part], &q->err);
    if (!q->st)
        q->st = die->ops->submit(die->dev, &q->plan->part[q->part], &q->step, &q->model->store.host, die->work, &q->exec, &q->err);
}

/* The step is over, whatever it came to. */
static void sched_finish(pn_sched *q)
{
    pn_model *m = q->model;
    double took = pn_die_computed(m->dies, m->n_dies, m->share, q->n_rows);
    pn_govern_disk(m->engine, pn_residency_stepped(&m->store, q->n_rows, pn_os_now() - q->began));
    pn_model_give(m);
    pn_mutex_lock(&q->lock);
    m->queue.served += took > 0 ? took : pn_os_now() - q->began;
    pn_mutex_unlock(&q->lock);
    q->open = false;
    q->computed = true;
}

static void sched_submit(pn_sched *q, pn_session *wide)
{
    q->model = wide->model;
    pn_model_unpark(q->model);
    q->plan = pn_session_plan(wide, q->n_rows);
    q->part = 0;
    q->began = pn_os_now();
    q->step = pn_sched_step(q);
    q->step.carry = q->model->carry;
    sched_submit_part(q);
    q->open = true;
    if (q->st)
        sched_finish(q);
}

/* Everyone in the step has been cancelled. */
static bool sched_unwanted(const pn_sched *q)
{
    for (uint32_t i = 0; i < q->n_runs; i++)
        if (!atomic_load(&q->in[i]->s->cancelled))
            return false;
    return true;
}

/* Work on the open step until it is finished or `deadline` (0: none) has passed. */
static void sched_advance(pn_sched *q, double deadline)
{
    while (q->open) {
        const pn_device_ops *ops = q->model->dies[q->part]->ops;
        double until = pn_os_now() + sched_slice;
        until = deadline > 0 ? PN_MIN(deadline, until) : until;
        pn_exec_state x = ops->advance(q->exec, until);
        if (x == PN_EXEC_WAIT_IO)
            pn_residency_wait(&q->model->store, until);
        bool unwanted = sched_unwanted(q);
        if (x == PN_EXEC_FAILED)
            q->st = pn_residency_failed(&q->model->store, &q->err);
        else if (x == PN_EXEC_CANCELLED || (x != PN_EXEC_DONE && unwanted))
            q->st = pn_fail(&q->err, PN_E_CANCELLED, "cancelled in the middle of a step");
        else if (x != PN_EXEC_DONE && deadline > 0 && pn_os_now() >= deadline)
            return;
        if (x != PN_EXEC_DONE && !q->st)
            continue;
        ops->end(q->exec);
        bool last = q->st || ++q->part == q->model->n_dies;
        if (!last)
            sched_submit_part(q);
        if (last || q->st)
            sched_finish(q);
    }
}

/* With the lock held, and nobody at the open step. */
static void sched_settle(pn_sched *q)
{
    q->settling = true;
    pn_mutex_unlock(&q->lock);
    sched_advance(q, 0);
    pn_mutex_lock(&q->lock);
    q->settling = false;
    pn_cond_broadcast(&q->settled);
}

PN_INTERNAL void pn_sched_settle(pn_sched *q)
{
    pn_mutex_lock(&q->lock);
    while (q->settling)
        pn_cond_wait(&q->settled, &q->lock);
    if (!q->entered && q->open)
        sched_settle(q);
    pn_mutex_unlock(&q->lock);
}

/* ------------------------------------------------------------------------------------------
 * What came of it
 * ------------------------------------------------------------------------------------------ */

/* With the lock held. */
static void sched_unlist(pn_sched *q, pn_job *j)
{
    pn_queue *w = sched_queue(j);
    pn_model **m = &q->models;
    PN_ASSERT(j->listed);
    sched_take_out(j->begun ? &w->work : &w->waiting, j);
    w->n_work -= j->begun;
    w->n_ready -= !j->begun && !j->held;
    if (j->begun)
        pn_sched_count_peers(j, -1);
    j->listed = false;
    q->n_jobs--;
    pn_die_leave(j->s->model->dies, j->s->model->n_dies);
    if (w->work || w->waiting)
        return;
    while (*m != j->s->model)
        m = &(*m)->queue.next;
    *m = w->next;
}

/* The owner may have freed the job when on_done is called: what that needs has been copied. */
static void sched_tell(pn_sched *q, void (*on_done)(void *), void *user)
{
    on_done(user);
    pn_mutex_lock(&q->lock);
    q->telling = NULL;
    pn_cond_broadcast(&q->settled);
    pn_mutex_unlock(&q->lock);
}

PN_INTERNAL void pn_sched_end(pn_sched *q, pn_job *j, pn_status st)
{
    pn_mutex_lock(&q->lock);
    sched_unlist(q, j);
    pn_mutex_unlock(&q->lock);
    j->ended(j, st);
    pn_mutex_lock(&q->lock);
    bool left = j->left;
    void (*on_done)(void *) = left || j->leaving ? NULL : j->gen.p.on_done;
    void *user = j->gen.p.done_user;
    q->telling = on_done ? j : NULL;
    atomic_store(&j->over, true);           /* unless it was left its owner may free it from now on */
    pn_cond_broadcast(&q->settled);
    pn_mutex_unlock(&q->lock);
    if (left)
        j->dispose(j);
    if (on_done)
        sched_tell(q, on_done, user);
}

/* The rows of a finished step belong to their sessions; each generation goes on or ends. */
static void sched_results(pn_sched *q)
{
    uint32_t k = 0, V = q->model->desc.n_vocab;
    q->computed = false;
    for (uint32_t i = 0; i < q->n_runs; i++) {
        pn_job *j = q->in[i];
        const pn_token *tokens;
        k += q->wanted[i];
        if (!j)
            continue;
        pn_gen_wants(&j->gen, &tokens);
        pn_status st = q->st;
        if (st) {
            j->err = q->err;
        } else {
            pn_session *s = j->s;
            memcpy(s->tokens + s->kv.length, tokens, j->rows * sizeof *tokens);
            pn_kv_commit(&s->kv, j->rows);
            s->has_logits = q->wanted[i];
            if (q->wanted[i] && q->n_runs > 1)
                memcpy(s->logits, q->logits + (size_t)(k - 1) * V, V * sizeof *s->logits);
            st = pn_gen_computed(&j->gen, j->rows, &j->err);
            if (!st && pn_gen_wants(&j->gen, &tokens) && atomic_load(&s->cancelled))
                st = pn_fail(&j->err, PN_E_CANCELLED, "cancelled");
        }
        if (st || !pn_gen_wants(&j->gen, &tokens))
            pn_sched_end(q, j, st);
    }
    q->n_runs = 0;
}

static pn_job *sched_cancelled(pn_sched *q)
{
    pn_job *found = NULL;
    pn_mutex_lock(&q->lock);
    for (const pn_model *m = q->models; m && !found; m = m->queue.next) {
        pn_job *lists[] = {m->queue.work, m->queue.waiting};
        for (size_t i = 0; i < PN_COUNT_OF(lists) && !found; i++)
            for (found = lists[i]; found && !atomic_load(&found->s->cancelled);)
                found = found->next;
    }
    pn_mutex_unlock(&q->lock);
    return found;
}

/* Those that were cancelled; none of them is in a step. */
static void sched_reap(pn_sched *q)
{
    if (!atomic_exchange(&q->cancelled, false))
        return;
    for (pn_job *j; (j = sched_cancelled(q)) != NULL;) {
        pn_fail(&j->err, PN_E_CANCELLED, "cancelled");
        pn_sched_end(q, j, PN_E_CANCELLED);
    }
}

/* Form and submit the next step, if there is work.  Returns the die that somebody else has, for which it waits. */
static pn_die *sched_begin(pn_sched *q)
{
    sched_reap(q);
    pn_mutex_lock(&q->lock);                /* the list stays as it is while the step is formed */
    q->n_runs = q->n_rows = q->n_outs = 0;
    q->st = PN_OK;
    pn_job *first = pn_sched_first(q);
    pn_die *busy = first ? pn_model_try(first->s->model, q) : NULL;
    pn_session *wide = first && !busy ? pn_sched_widest(first) : NULL;
    if (wide)
        pn_sched_fill(q, first, pn_session_rows(wide));
    pn_mutex_unlock(&q->lock);
    if (q->n_runs)
        sched_submit(q, wide);
    else if (wide)
        pn_model_give(wide->model);
    return busy;
}

/* ------------------------------------------------------------------------------------------
 * All dies
 * ------------------------------------------------------------------------------------------ */

/* With the lock held: an open step waits for whoever goes on with it; or does so no more. */
static void sched_park(pn_sched *q, bool parked)
{
    for (uint32_t i = 0; q->open && i < q->model->n_dies; i++)
        pn_die_park(q->model->dies[i], parked);
}

/* False: somebody else finishes its step just now. */
static bool sched_enter(pn_sched *q)
{
    pn_mutex_lock(&q->lock);
    q->entered = !q->settling;
    bool entered = q->entered;
    if (entered)
        sched_park(q, false);
    pn_mutex_unlock(&q->lock);
    return entered;
}

static void sched_leave(pn_sched *q)
{
    pn_mutex_lock(&q->lock);
    sched_park(q, true);
    q->entered = false;
    pn_cond_broadcast(&q->settled);
    pn_mutex_unlock(&q->lock);
}

static void sched_wait_settled(pn_sched *q)
{
    pn_mutex_lock(&q->lock);
    while (q->settling)
        pn_cond_wait(&q->settled, &q->lock);
    pn_mutex_unlock(&q->lock);
}

/* What a round over the dies found. */
typedef struct sched_round {
    uint32_t open;              /* steps that are not finished */
    bool ended;                 /* one has been, its results are handed out */
    pn_sched *settling;         /* one that somebody else finishes, or NULL */
    pn_die *busy;               /* one that somebody else has and a step waits for, or NULL */
} sched_round;

/* A step on every die that is free and has work. */
static sched_round sched_begin_all(pn_engine *e)
{
    sched_round r = {0};
    for (uint32_t i = 0; i < e->n_dies; i++) {
        pn_sched *q = e->dies[i].sched;
        if (!sched_enter(q)) {
            r.settling = q;
            continue;
        }
        pn_die *busy = q->open || q->computed ? NULL : sched_begin(q);
        r.busy = busy ? busy : r.busy;
        r.open += q->open || q->computed;
        sched_leave(q);
    }
    return r;
}

/* A slice for every open step, and what came of those that are finished. */
static sched_round sched_advance_all(pn_engine *e, double deadline)
{
    sched_round r = {0};
    for (uint32_t i = 0; i < e->n_dies; i++) {
        pn_sched *q = e->dies[i].sched;
        if (!sched_enter(q)) {
            r.settling = q;
            continue;
        }
        double slice = pn_os_now() + sched_slice;
        sched_advance(q, e->n_dies == 1 ? deadline : deadline > 0 ? PN_MIN(deadline, slice) : slice);
        r.ended = r.ended || q->computed;
        if (q->computed)
            sched_results(q);
        r.open += q->open;
        sched_leave(q);
    }
    return r;
}

static void sched_run(pn_engine *e, double deadline)
{
    sched_round r = sched_begin_all(e);
    while (!r.open && (r.settling || r.busy)) {     /* nothing else to do */
        if (r.settling)
            sched_wait_settled(r.settling);
        else
            pn_die_wait(r.busy);
        r = sched_begin_all(e);
    }
    while (r.open || r.settling) {
        r = sched_advance_all(e, deadline);
        if (r.ended || (deadline > 0 && pn_os_now() >= deadline))
            break;
        if (!r.open && r.settling)
            sched_wait_settled(r.settling);
    }
}

/* Jobs that are not over. */
static uint32_t sched_jobs(pn_engine *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_dies; i++) {
        pn_sched *q = e->dies[i].sched;
        pn_mutex_lock(&q->lock);
        n += q->n_jobs;
        pn_mutex_unlock(&q->lock);
    }
    return n;
}

/* A step of some die is under way; on the stepping thread. */
static bool sched_any_open(pn_engine *e)
{
    bool open = false;
    for (uint32_t i = 0; i < e->n_dies && !open; i++) {
        pn_sched *q = e->dies[i].sched;
        pn_mutex_lock(&q->lock);
        open = q->settling || q->open;          /* another thread that settles it writes `open` without the lock */
        pn_mutex_unlock(&q->lock);
    }
    return open;
}

static bool sched_inside(pn_engine *e)
{
    pn_mutex_lock(&e->drive.lock);
    bool inside = e->drive.stepping && pn_thread_is_self(e->drive.stepper);
    pn_mutex_unlock(&e->drive.lock);
    return inside;
}

/* The stepping thread, or nobody steps and now this one is it; false: another thread is. */
static bool sched_hold(pn_engine *e, bool *ours)
{
    pn_drive *d = &e->drive;
    pn_mutex_lock(&d->lock);
    *ours = !d->stepping;
    bool ok = *ours || pn_thread_is_self(d->stepper);
    if (*ours) {
        d->stepping = d->visiting = true;
        d->stepper = pn_thread_self();
    }
    pn_mutex_unlock(&d->lock);
    return ok;
}

static void sched_let_go(pn_engine *e)
{
    pn_mutex_lock(&e->drive.lock);
    if (e->drive.visiting)
        pn_cond_broadcast(&e->drive.work);
    e->drive.stepping = e->drive.visiting = false;
    pn_mutex_unlock(&e->drive.lock);
}

static void sched_visit(pn_sched *q, void (*fn)(void *user, pn_job *j), void *user)
{
    for (pn_model *m = q->models; m; m = m->queue.next) {
        pn_job *lists[] = {m->queue.work, m->queue.waiting};
        for (size_t i = 0; i < PN_COUNT_OF(lists); i++)
            for (pn_job *j = lists[i]; j; j = j->next)
                fn(user, j);
    }
}

PN_INTERNAL bool pn_sched_each(pn_engine *e, void (*fn)(void *user, pn_job *j), void *user)
{
    bool ours;
    if (!sched_hold(e, &ours))
        return false;
    for (uint32_t i = 0; i < e->n_dies; i++) {
        pn_sched *q = e->dies[i].sched;
        if (!sched_enter(q))
            continue;
        if (!q->open && !q->computed) {
            pn_mutex_lock(&q->lock);
            sched_visit(q, fn, user);
            pn_mutex_unlock(&q->lock);
        }
        sched_leave(q);
    }
    if (ours)
        sched_let_go(e);
    return true;
}

PN_INTERNAL uint64_t pn_sched_each_idle(pn_engine *e, uint64_t (*fn)(pn_sched *q, void *user), void *user)
{
    uint64_t sum = 0;
    bool ours;
    if (!sched_hold(e, &ours))
        return 0;
    for (uint32_t i = 0; i < e->n_dies; i++) {
        pn_sched *q = e->dies[i].sched;
        if (!sched_enter(q))
            continue;
        if (!q->open && !q->computed)
            sum += fn(q, user);
        sched_leave(q);
    }
    if (ours)
        sched_let_go(e);
    return sum;
}

PN_API pn_status pn_engine_step(pn_engine *e, double seconds, uint32_t *n_active, pn_err *err)
{
    if (!e || seconds < 0)
        return pn_fail(err, PN_E_INVALID, "%s", e ? "expected a time of 0 or more seconds" : "no engine given");
    pn_mutex_lock(&e->drive.lock);
    while (e->drive.visiting && !pn_thread_is_self(e->drive.stepper))
        pn_cond_wait(&e->drive.work, &e->drive.lock);
    bool busy = e->drive.stepping;
    e->drive.stepping = true;
    if (!busy)
        e->drive.stepper = pn_thread_self();
    pn_mutex_unlock(&e->drive.lock);
    if (busy)
        return pn_fail(err, PN_E_STATE, "pn_engine_step is being called already: from a callback, or by another thread");
    if (!sched_any_open(e))
        pn_govern_tick(e, sched_jobs(e) > 0);
    sched_run(e, seconds > 0 ? pn_os_now() + seconds : 0);
    uint32_t n = sched_jobs(e);
    sched_let_go(e);
    if (n_active)
        *n_active = n;
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * A thread of our own
 * ------------------------------------------------------------------------------------------ */

typedef enum sched_rest { SCHED_REST_NONE = 0, SCHED_REST_PAUSED, SCHED_REST_ALL } sched_rest;

/* Is there nothing to do?  PAUSED: there are jobs, all paused. */
static sched_rest sched_resting(pn_engine *e)
{
    sched_rest rest = SCHED_REST_ALL;
    for (uint32_t i = 0; i < e->n_dies && rest; i++) {
        pn_sched *q = e->dies[i].sched;
        pn_mutex_lock(&q->lock);
        if (q->models)
            rest = atomic_load(&q->cancelled) ? SCHED_REST_NONE : SCHED_REST_PAUSED;
        for (const pn_model *m = q->models; m; m = m->queue.next)
            if (m->queue.n_work || m->queue.n_ready)
                rest = SCHED_REST_NONE;
        pn_mutex_unlock(&q->lock);
    }
    return rest;
}

/* Until there is news, or memory has to be looked at.  A signal handler that cancels a paused request can wake nobody:
 * look from time to time. */
static bool sched_sleep(pn_engine *e, sched_rest rest, uint64_t seen)
{
    pn_drive *d = &e->drive;
    double wait = pn_govern_wait(e);
    if (rest == SCHED_REST_PAUSED)
        wait = wait < 0 ? sched_look : PN_MIN(wait, sched_look);
    pn_mutex_lock(&d->lock);
    while (rest && !d->stop && d->news == seen) {
        if (wait >= 0) {
            pn_cond_wait_for(&d->work, &d->lock, wait);
            break;
        }
        pn_cond_wait(&d->work, &d->lock);
    }
    bool stop = d->stop;
    pn_mutex_unlock(&d->lock);
    return !stop;
}

PN_INTERNAL uint64_t pn_sched_news(pn_engine *e)
{
    pn_mutex_lock(&e->drive.lock);
    uint64_t news = e->drive.news;
    pn_mutex_unlock(&e->drive.lock);
    return news;
}

static void sched_drive(void *engine)
{
    pn_engine *e = engine;
    uint64_t seen = pn_sched_news(e);
    for (sched_rest rest = sched_resting(e); sched_sleep(e, rest, seen); rest = sched_resting(e)) {
        if (rest)
            pn_govern_tick(e, false);
        if (rest == SCHED_REST_ALL && pn_govern_idle(e))
            pn_rungs_probe(e, seen);
        if (!rest && pn_engine_step(e, 0, NULL, NULL) != PN_OK)
            pn_thread_yield();              /* somebody else drives as well */
        seen = pn_sched_news(e);
    }
}

PN_API pn_status pn_engine_start(pn_engine *e, pn_err *err)
{
    if (!e)
        return pn_fail(err, PN_E_INVALID, "no engine given");
    pn_drive *d = &e->drive;
    pn_mutex_lock(&d->lock);
    bool driving = d->driving;
    d->driving = true;
    if (!driving)
        d->stop = false;
    pn_mutex_unlock(&d->lock);
    if (driving)
        return pn_fail(err, PN_E_STATE, "the engine drives its steps already");
    if (pn_thread_start(&d->driver, sched_drive, e))
        return PN_OK;
    d->driving = false;
    return pn_fail(err, PN_E_UNSUPPORTED, "the system gives no thread");
}

PN_API void pn_engine_stop(pn_engine *e)
{
    pn_drive *d = &e->drive;
    if (!d->driving)
        return;
    pn_mutex_lock(&d->lock);
    d->stop = true;
    d->news++;                  /* a probe ends */
    pn_cond_broadcast(&d->work);
    pn_mutex_unlock(&d->lock);
    pn_thread_join(&d->driver);
    d->driving = false;
}

/* ------------------------------------------------------------------------------------------
 * Jobs
 * ------------------------------------------------------------------------------------------ */

/* What a model did not use while it had no jobs it has not saved up. */
static void sched_add_model(pn_sched *q, pn_model *m)
{
    pn_model **end = &q->models;
    double least = -1;
    for (; *end; end = &(*end)->queue.next)
        least = least < 0 || (*end)->queue.served < least ? (*end)->queue.served : least;
    *end = m;
    m->queue.next = NULL;
    m->queue.served = PN_MAX(m->queue.served, least);
}

PN_INTERNAL void pn_sched_wake(pn_engine *e)
{
    pn_mutex_lock(&e->drive.lock);
    e->drive.news++;
    pn_cond_broadcast(&e->drive.work);
    pn_mutex_unlock(&e->drive.lock);
}

/* Once it is listed and the lock given back, it may be over and freed at any time. */
PN_INTERNAL void pn_sched_add(pn_job *j)
{
    pn_sched *q = sched_of(j);
    pn_queue *w = sched_queue(j);
    pn_mutex_lock(&q->lock);
    if (!w->work && !w->waiting)
        sched_add_model(q, j->s->model);
    for (const pn_job *k = w->work; k; k = k->next)
        j->peers += k->gen.p.client == j->gen.p.client;
    sched_append(&w->waiting, j);
    w->n_ready++;
    q->n_jobs++;
    j->listed = true;
    pn_die_arrive(j->s->model->dies, j->s->model->n_dies);
    if (atomic_load(&j->s->cancelled))      /* before it could be found */
        atomic_store(&q->cancelled, true);
    pn_mutex_unlock(&q->lock);
    pn_sched_wake(q->die->engine);
}

/* It waits again, in front of those that have not begun yet. */
static void sched_put_back(pn_job *j)
{
    pn_queue *w = sched_queue(j);
    pn_sched_count_peers(j, -1);
    sched_take_out(&w->work, j);
    j->next = w->waiting;
    w->waiting = j;
    w->n_work--;
    w->n_ready++;
    j->begun = false;
}

/* With the lock held, and the job in no step. */
PN_INTERNAL void pn_sched_hold_job(pn_job *j, int held)
{
    if (held && j->begun)
        sched_put_back(j);
    sched_queue(j)->n_ready += (j->held == 0) != (held == 0) ? held ? -1 : 1 : 0;
    atomic_store(&j->held, (unsigned char)held);
}

PN_INTERNAL void pn_sched_pause(pn_job *j, bool paused)
{
    pn_sched *q = sched_of(j);
    pn_mutex_lock(&q->lock);
    if (j->listed)
        pn_sched_hold_job(j, paused ? j->held | SCHED_PAUSED : j->held & ~SCHED_PAUSED);
    pn_mutex_unlock(&q->lock);
    pn_sched_wake(q->die->engine);
}

PN_INTERNAL pn_sched_left pn_sched_remove(pn_job *j)
{
    pn_sched *q = sched_of(j);
    pn_sched_left how = PN_SCHED_OVER;
    bool inside = sched_inside(q->die->engine);
    pn_mutex_lock(&q->lock);
    j->leaving = true;
    while (!atomic_load(&j->over) && (q->entered || q->settling || q->open)) {
        if (inside) {
            j->left = true;
            how = PN_SCHED_LATER;
            break;
        }
        if (q->entered || q->settling)
            pn_cond_wait(&q->settled, &q->lock);
        else
            sched_settle(q);
    }
    if (how == PN_SCHED_OVER && !atomic_load(&j->over)) {
        for (uint32_t i = 0; i < q->n_runs; i++)
            if (q->in[i] == j)
                q->in[i] = NULL;
        sched_unlist(q, j);
        how = PN_SCHED_REMOVED;
    }
    while (q->telling == j && !inside)
        pn_cond_wait(&q->settled, &q->lock);
    pn_mutex_unlock(&q->lock);
    return how;
}
