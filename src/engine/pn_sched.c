/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_sched.c - forming a step, running it in slices, handing out what came of it.
 *
 * Memory is taken between steps, never in one; when there is none the step has fewer runs.  A step of one
 * run needs no memory of ours: its tokens and logits lie where they belong.
 */
#include "engine/pn_sched.h"

#include <inttypes.h>

static const double sched_slice = 0.002;        /* seconds between two looks at the cancel flags */
static const double sched_look = 0.05;          /* the same while all requests are paused */

PN_INTERNAL void pn_sched_init(pn_sched *q)
{
    pn_mutex_init(&q->lock);
    pn_cond_init(&q->settled);
    pn_cond_init(&q->work);
}

PN_INTERNAL void pn_sched_fini(pn_engine *e)
{
    pn_sched *q = e->sched;
    pn_mem *mem = pn_engine_mem(e);
    pn_engine_stop(e);
    pn_sched_settle(e);
    pn_mem_free(mem, PN_ACCT_SCRATCH, q->tokens, q->cap_rows * sizeof *q->tokens);
    pn_mem_free(mem, PN_ACCT_SCRATCH, q->out_rows, q->cap_runs * sizeof *q->out_rows);
    pn_mem_free(mem, PN_ACCT_SCRATCH, q->logits, q->cap_logits * sizeof *q->logits);
    pn_cond_fini(&q->work);
    pn_cond_fini(&q->settled);
    pn_mutex_fini(&q->lock);
}

/* ------------------------------------------------------------------------------------------
 * Forming a step
 * ------------------------------------------------------------------------------------------ */

static pn_queue *sched_queue(const pn_job *j) { return &j->s->model->queue; }

static void sched_append(pn_job **list, pn_job *j)
{
    while (*list)
        list = &(*list)->next;
    *list = j;
    j->next = NULL;
}

static void sched_take_out(pn_job **list, const pn_job *j)
{
    while (*list != j)
        list = &(*list)->next;
    *list = j->next;
}

/* One more, or one less, of j's client is under way. */
static void sched_count_peers(const pn_job *j, int more)
{
    pn_job *lists[] = {sched_queue(j)->work, sched_queue(j)->waiting};
    for (size_t i = 0; i < PN_COUNT_OF(lists); i++)
        for (pn_job *k = lists[i]; k; k = k->next)
            if (k->gen.p.client == j->gen.p.client)
                k->peers += (uint32_t)more;
}

static void sched_begin_job(pn_job *j)
{
    pn_queue *w = sched_queue(j);
    sched_take_out(&w->waiting, j);
    sched_append(&w->work, j);
    w->n_work++;
    w->n_ready--;
    j->begun = true;
    sched_count_peers(j, 1);
}

/* The oldest of the client that has the fewest under way; where all may begin, the oldest. */
static pn_job *sched_next(const pn_queue *w, bool all)
{
    pn_job *best = NULL;
    for (pn_job *j = w->waiting; j && !(best && (all || best->peers == 0)); j = j->next)
        if (!j->paused && (!best || j->peers < best->peers))
            best = j;
    return best;
}

/* As many as the model's cap lets begin do. */
static void sched_admit(pn_model *m)
{
    pn_queue *w = &m->queue;
    pn_mutex_lock(&m->lock);
    uint32_t cap = m->caps.concurrent ? m->caps.concurrent : UINT32_MAX;
    pn_mutex_unlock(&m->lock);
    while (w->n_ready && w->n_work < cap)
        sched_begin_job(sched_next(w, cap == UINT32_MAX));
}

/* May the two be in one step?  One plan and one type of keys and values for all of its runs. */
static bool sched_fits(const pn_session *a, const pn_session *b)
{
    return a->model == b->model && a->kv_type == b->kv_type && a->plans[0] == b->plans[0];
}

/* Whose turn it is: of the models with work the one that has had the least time; of its jobs the one that
 * began first. */
static pn_job *sched_first(pn_sched *q)
{
    pn_model *best = NULL;
    for (pn_model *m = q->models; m; m = m->queue.next)
        if ((m->queue.n_work || m->queue.n_ready) && (!best || m->queue.served < best->queue.served))
            best = m;
    if (!best)
        return NULL;
    sched_admit(best);
    return best->queue.work;
}

/* Of those that may share a step with `first`, the one that takes the longest prompts. */
static pn_session *sched_widest(pn_job *first)
{
    pn_session *s = first->s;
    for (pn_job *j = first; j; j = j->next)
        if (sched_fits(j->s, first->s) && j->s->n_batch > s->n_batch)
            s = j->s;
    return s;
}

static void sched_take(pn_sched *q, pn_job *j, uint32_t n)
{
    const pn_token *tokens;
    size_t wants = pn_gen_wants(&j->gen, &tokens);
    pn_session *s = j->s;
    pn_session_prepare(s, n);
    pn_run *run = &q->runs[q->n_runs];
    *run = (pn_run){.row0 = q->n_rows, .n_rows = n, .pos0 = s->kv.length};
    for (uint32_t g = 0; g < s->model->desc.state.n_groups; g++)
        run->pages[g] = s->kv.group[g].table;
    j->rows = n;
    q->wanted[q->n_runs] = n == wants;
    q->in[q->n_runs++] = j;
    q->n_rows += n;
    q->n_outs += n == wants;
}

PN_INTERNAL uint64_t pn_sched_bytes(uint64_t n_sessions, uint32_t n_batch, uint32_t n_vocab)
{
    uint64_t runs = PN_MIN(n_sessions, (uint64_t)SCHED_RUNS);
    return runs < 2 ? 0 : runs * (sizeof(float) * (uint64_t)n_vocab + sizeof(uint32_t)) + n_batch * sizeof(pn_token);
}

/* Exactly `need` elements, or what there was; the content is nobody's. */
static bool sched_grow(pn_mem *mem, void **ptr, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap)
        return true;
    void *p = pn_mem_calloc(mem, PN_ACCT_SCRATCH, need, size);
    if (!p)
        return false;
    pn_mem_free(mem, PN_ACCT_SCRATCH, *ptr, *cap * size);
    *ptr = p;
    *cap = need;
    return true;
}

/* Room for a step of `rows` rows and `runs` runs of a model, as far as there is memory. */
static uint32_t sched_room(pn_engine *e, uint32_t rows, uint32_t runs, uint32_t n_vocab)
{
    pn_sched *q = e->sched;
    pn_mem *mem = pn_engine_mem(e);
    runs = PN_MIN(runs, (uint32_t)SCHED_RUNS);
    if (runs < 2 || !sched_grow(mem, (void **)&q->tokens, &q->cap_rows, rows, sizeof *q->tokens) ||
        !sched_grow(mem, (void **)&q->out_rows, &q->cap_runs, runs, sizeof *q->out_rows))
        return 1;
    (void)sched_grow(mem, (void **)&q->logits, &q->cap_logits, (size_t)runs * n_vocab, sizeof *q->logits);
    return PN_MAX(1u, (uint32_t)PN_MIN(q->cap_logits / n_vocab, (size_t)runs));
}

/* One row for everyone who decodes, then prompts. */
static void sched_fill(pn_engine *e, pn_job *first, uint32_t max_rows)
{
    pn_sched *q = e->sched;
    const pn_token *tokens;
    uint32_t n = 0, prompts = 0;
    for (pn_job *j = first; j; j = j->next) {
        n += sched_fits(j->s, first->s);
        prompts += sched_fits(j->s, first->s) && j->gen.in_prompt;
    }
    uint32_t max_runs = PN_MIN(sched_room(e, max_rows, n, first->s->model->desc.n_vocab), max_rows);
    for (pn_job *j = first; j && q->n_runs < max_runs; j = j->next)
        if (sched_fits(j->s, first->s) && !j->gen.in_prompt && pn_gen_wants(&j->gen, &tokens))
            sched_take(q, j, 1);
    uint32_t room = max_rows - q->n_rows;
    if (q->n_runs)
        room = PN_MIN(room, (uint32_t)SCHED_CHUNK);
    for (pn_job *j = first; j && room && q->n_runs < max_runs; j = j->next) {
        size_t wants = pn_gen_wants(&j->gen, &tokens);
        if (!sched_fits(j->s, first->s) || !j->gen.in_prompt || !wants)
            continue;
        uint32_t share = PN_MAX(room / prompts, (uint32_t)SCHED_SHARE);        /* what one leaves is for the next */
        uint32_t rows = (uint32_t)PN_MIN(PN_MIN(wants, (size_t)PN_MIN(room, share)), (size_t)j->s->n_batch);
        sched_take(q, j, rows);
        room -= rows;
        prompts -= prompts > 1;
    }
}

/* Tokens and wanted rows side by side; one run's lie so already. */
static pn_step sched_step(pn_sched *q)
{
    pn_step step = {.n_rows = q->n_rows, .runs = q->runs, .n_runs = q->n_runs, .n_outs = q->n_outs};
    const pn_token *tokens;
    uint32_t k = 0;
    if (q->n_runs == 1) {
        pn_session *s = q->in[0]->s;
        pn_gen_wants(&q->in[0]->gen, &tokens);
        s->out_rows[0] = q->n_rows - 1;
        step.tokens = tokens;
        step.out_rows = s->out_rows;
        step.logits = s->logits;
        return step;
    }
    for (uint32_t i = 0; i < q->n_runs; i++) {
        const pn_job *j = q->in[i];
        pn_gen_wants(&j->gen, &tokens);
        memcpy(q->tokens + q->runs[i].row0, tokens, j->rows * sizeof *tokens);
        if (q->wanted[i])
            q->out_rows[k++] = q->runs[i].row0 + j->rows - 1;
    }
    step.tokens = q->tokens;
    step.out_rows = q->out_rows;
    step.logits = q->logits;
    return step;
}

/* ------------------------------------------------------------------------------------------
 * Running it
 * ------------------------------------------------------------------------------------------ */

static void sched_submit(pn_engine *e, pn_session *wide)
{
    pn_sched *q = e->sched;
    pn_die *die = &e->cpu;
    q->model = wide->model;
    q->began = pn_os_now();
    q->step = sched_step(q);
    pn_die_take(e, die);
    q->st = die->ops->submit(die->dev, pn_session_plan(wide, q->n_rows), &q->step, &wide->model->store.host, die->work, &q->exec, &q->err);
    q->open = q->st == PN_OK;
    q->computed = !q->open;
    if (!q->open)
        pn_die_give(die);
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
static void sched_advance(pn_engine *e, double deadline)
{
    pn_sched *q = e->sched;
    pn_die *die = &e->cpu;
    while (q->open) {
        double until = pn_os_now() + sched_slice;
        pn_exec_state x = die->ops->advance(q->exec, deadline > 0 ? PN_MIN(deadline, until) : until);
        bool unwanted = sched_unwanted(q);
        if (x == PN_EXEC_FAILED)
            q->st = pn_fail(&q->err, PN_E_IO, "the weights of '%s' cannot be read", q->model->file.weights.parts[0].src.name);
        else if (x == PN_EXEC_CANCELLED || (x != PN_EXEC_DONE && unwanted))
            q->st = pn_fail(&q->err, PN_E_CANCELLED, "cancelled in the middle of a step");
        else if (x != PN_EXEC_DONE && deadline > 0 && pn_os_now() >= deadline)
            return;
        if (x == PN_EXEC_DONE || q->st) {
            die->ops->end(q->exec);
            pn_die_give(die);
            pn_mutex_lock(&q->lock);
            q->model->queue.served += pn_os_now() - q->began;
            pn_mutex_unlock(&q->lock);
            q->open = false;
            q->computed = true;
        }
    }
}

/* With the lock held, and nobody at the open step. */
static void sched_settle(pn_engine *e)
{
    pn_sched *q = e->sched;
    q->settling = true;
    pn_mutex_unlock(&q->lock);
    sched_advance(e, 0);
    pn_mutex_lock(&q->lock);
    q->settling = false;
    pn_cond_broadcast(&q->settled);
}

PN_INTERNAL void pn_sched_settle(pn_engine *e)
{
    pn_sched *q = e->sched;
    pn_mutex_lock(&q->lock);
    while (q->settling)
        pn_cond_wait(&q->settled, &q->lock);
    if (!q->stepping && q->open)
        sched_settle(e);
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
    w->n_ready -= !j->begun && !j->paused;
    if (j->begun)
        sched_count_peers(j, -1);
    j->listed = false;
    q->n_jobs--;
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

static void sched_end(pn_sched *q, pn_job *j, pn_status st)
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
static void sched_results(pn_engine *e)
{
    pn_sched *q = e->sched;
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
            sched_end(q, j, st);
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
static void sched_reap(pn_engine *e)
{
    pn_sched *q = e->sched;
    if (!atomic_exchange(&e->cancelled, false))
        return;
    for (pn_job *j; (j = sched_cancelled(q)) != NULL;) {
        pn_fail(&j->err, PN_E_CANCELLED, "cancelled");
        sched_end(q, j, PN_E_CANCELLED);
    }
}

static void sched_begin(pn_engine *e)
{
    pn_sched *q = e->sched;
    sched_reap(e);
    pn_mutex_lock(&q->lock);                /* the list stays as it is while the step is formed */
    pn_job *first = sched_first(q);
    q->n_runs = q->n_rows = q->n_outs = 0;
    q->st = PN_OK;
    pn_session *wide = first ? sched_widest(first) : NULL;
    if (wide)
        sched_fill(e, first, wide->n_batch);
    pn_mutex_unlock(&q->lock);
    if (q->n_runs)
        sched_submit(e, wide);
}

PN_API pn_status pn_engine_step(pn_engine *e, double seconds, uint32_t *n_active, pn_err *err)
{
    if (!e || seconds < 0)
        return pn_fail(err, PN_E_INVALID, "%s", e ? "expected a time of 0 or more seconds" : "no engine given");
    pn_sched *q = e->sched;
    pn_mutex_lock(&q->lock);
    while (q->settling)
        pn_cond_wait(&q->settled, &q->lock);
    bool busy = q->stepping;
    q->stepping = true;
    if (!busy)
        q->stepper = pn_thread_self();
    pn_mutex_unlock(&q->lock);
    if (busy)
        return pn_fail(err, PN_E_STATE, "pn_engine_step is being called already: from a callback, or by another thread");
    pn_die_park(&e->cpu, false);
    if (!q->open && !q->computed)
        sched_begin(e);
    sched_advance(e, seconds > 0 ? pn_os_now() + seconds : 0);
    if (q->computed)
        sched_results(e);
    pn_mutex_lock(&q->lock);
    q->stepping = false;
    pn_cond_broadcast(&q->settled);
    bool open = q->open;
    if (n_active)
        *n_active = q->n_jobs;
    pn_mutex_unlock(&q->lock);
    if (open)
        pn_die_park(&e->cpu, true);
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * A thread of our own
 * ------------------------------------------------------------------------------------------ */

/* Is there nothing to do?  With the lock held. */
static bool sched_idle(const pn_engine *e)
{
    for (const pn_model *m = e->sched->models; m; m = m->queue.next)
        if (m->queue.n_work || m->queue.n_ready)
            return false;
    return !e->sched->models || !atomic_load(&e->cancelled);
}

/* A signal handler that cancels a paused request can wake nobody: look from time to time. */
static void sched_sleep(pn_sched *q)
{
    if (q->models)
        pn_cond_wait_for(&q->work, &q->lock, sched_look);
    else
        pn_cond_wait(&q->work, &q->lock);
}

static void sched_drive(void *engine)
{
    pn_engine *e = engine;
    pn_sched *q = e->sched;
    for (;;) {
        pn_mutex_lock(&q->lock);
        while (!q->stop && sched_idle(e))
            sched_sleep(q);
        bool stop = q->stop;
        pn_mutex_unlock(&q->lock);
        if (stop)
            return;
        if (pn_engine_step(e, 0, NULL, NULL) != PN_OK)
            pn_thread_yield();              /* somebody else drives as well */
    }
}

PN_API pn_status pn_engine_start(pn_engine *e, pn_err *err)
{
    if (!e)
        return pn_fail(err, PN_E_INVALID, "no engine given");
    pn_sched *q = e->sched;
    pn_mutex_lock(&q->lock);
    bool driving = q->driving;
    q->driving = true;
    pn_mutex_unlock(&q->lock);
    if (driving)
        return pn_fail(err, PN_E_STATE, "the engine drives its steps already");
    q->stop = false;
    if (pn_thread_start(&q->driver, sched_drive, e))
        return PN_OK;
    q->driving = false;
    return pn_fail(err, PN_E_UNSUPPORTED, "the system gives no thread");
}

PN_API void pn_engine_stop(pn_engine *e)
{
    pn_sched *q = e->sched;
    if (!q->driving)
        return;
    pn_mutex_lock(&q->lock);
    q->stop = true;
    pn_cond_broadcast(&q->work);
    pn_mutex_unlock(&q->lock);
    pn_thread_join(&q->driver);
    q->driving = false;
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

PN_INTERNAL void pn_sched_add(pn_engine *e, pn_job *j)
{
    pn_sched *q = e->sched;
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
    if (atomic_load(&j->s->cancelled))      /* before it could be found */
        atomic_store(&e->cancelled, true);
    pn_cond_broadcast(&q->work);
    pn_mutex_unlock(&q->lock);
}

/* It waits again, in front of those that have not begun yet. */
static void sched_put_back(pn_job *j)
{
    pn_queue *w = sched_queue(j);
    sched_count_peers(j, -1);
    sched_take_out(&w->work, j);
    j->next = w->waiting;
    w->waiting = j;
    w->n_work--;
    w->n_ready++;
    j->begun = false;
}

PN_INTERNAL void pn_sched_pause(pn_engine *e, pn_job *j, bool paused)
{
    pn_sched *q = e->sched;
    pn_mutex_lock(&q->lock);
    if (j->listed && j->paused != paused) {
        if (j->begun)
            sched_put_back(j);
        sched_queue(j)->n_ready += paused ? -1 : 1;
        j->paused = paused;
    }
    pn_cond_broadcast(&q->work);
    pn_mutex_unlock(&q->lock);
}

PN_INTERNAL void pn_sched_wake(pn_engine *e)
{
    pn_mutex_lock(&e->sched->lock);
    pn_cond_broadcast(&e->sched->work);
    pn_mutex_unlock(&e->sched->lock);
}

PN_INTERNAL pn_sched_left pn_sched_remove(pn_engine *e, pn_job *j)
{
    pn_sched *q = e->sched;
    pn_sched_left how = PN_SCHED_OVER;
    pn_mutex_lock(&q->lock);
    bool inside = q->stepping && pn_thread_is_self(q->stepper);
    j->leaving = true;
    while (!atomic_load(&j->over) && (q->stepping || q->settling || q->open)) {
        if (inside) {
            j->left = true;
            how = PN_SCHED_LATER;
            break;
        }
        if (q->stepping || q->settling)
            pn_cond_wait(&q->settled, &q->lock);
        else
            sched_settle(e);
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
