/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Sessions: admission, evaluation in steps, truncation.
 *
 * A step is cut to n_batch rows and runs on the die under its lock; between two advance() calls the
 * tick callback may look at the clock and the cancel flag.  Keys and values of a step count only
 * once it is finished (pn_kv_commit), so a torn step leaves nothing behind.
 */
#include "engine/pn_cache.h"
#include "engine/pn_park.h"
#include "engine/pn_rungs.h"
#include "engine/pn_sched.h"

#include <inttypes.h>
#include <stdio.h>

enum { SESSION_LITTLE = 4 << 20 };

static const double session_slice = 0.002;      /* seconds between two ticks */

static uint32_t session_bucket_rows(const pn_session *s, uint32_t i)
{
    static const uint16_t rows[ENGINE_BUCKETS] = {1, 16, 64, 0xffff};
    return PN_MIN((uint32_t)rows[i], s->n_batch);
}

/* ------------------------------------------------------------------------------------------
 * Whose it is at the moment
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_session_enter(pn_session *s)
{
    for (unsigned n = atomic_load(&s->users);;) {
        if (n == SESSION_TAKEN) {
            pn_thread_yield();
            n = atomic_load(&s->users);
        } else if (atomic_compare_exchange_weak(&s->users, &n, n + 1)) {
            return;
        }
    }
}

PN_INTERNAL void pn_session_leave(pn_session *s) { atomic_fetch_sub(&s->users, 1u); }

PN_INTERNAL bool pn_session_try_take(pn_session *s)
{
    unsigned none = 0;
    return atomic_compare_exchange_strong(&s->users, &none, (unsigned)SESSION_TAKEN);
}

PN_INTERNAL void pn_session_untake(pn_session *s) { atomic_store(&s->users, 0u); }

PN_INTERNAL uint32_t pn_session_rows(const pn_session *s)
{
    uint32_t rows = s->n_batch;
    for (uint32_t i = 0; i < s->model->n_dies; i++)
        rows = PN_MIN(rows, atomic_load(&s->model->dies[i]->max_rows));
    return rows;
}

/* ------------------------------------------------------------------------------------------
 * Opening
 * ------------------------------------------------------------------------------------------ */

/* What opening the session takes: *need now, *whole once its context is full. */
static pn_status session_need(const pn_session *s, const pn_session_params *p, pn_need *need, pn_need *whole, pn_err *err)
{
    const pn_model *m = s->model;
    pn_session_need n;
    pn_status st = pn_session_needs(&m->desc, s->n_ctx, pn_session_rows(s), m->engine->n_threads, s->kv_type, m->exact, &n, err);
    if (st)
        return st;
    whole->all = need->all = n.misc_bytes;
    for (uint32_t i = 0; i < m->n_dies; i++) {
        const pn_state_spec part = pn_state_part(&m->desc.state, i);
        uint64_t had = m->dies[i]->work_bytes, work = n.work_part[i] - PN_MIN(n.work_part[i], had);
        whole->die[i] = n.kv_part[i] + work;
        need->die[i] = p->by_turn ? pn_kv_bare_bytes(&part, s->n_ctx, s->n_batch) + work : whole->die[i];
        whole->all += whole->die[i];
        need->all += need->die[i];
    }
    return PN_OK;
}

/* Its largest step wants more working memory than its dies have. */
static bool session_grows(const pn_session *s)
{
    const pn_model *m = s->model;
    pn_session_need n;
    if (pn_session_needs(&m->desc, s->n_ctx, pn_session_rows(s), m->engine->n_threads, s->kv_type, m->exact, &n, NULL))
        return true;
    for (uint32_t i = 0; i < m->n_dies; i++)
        if (n.work_part[i] > atomic_load(&m->dies[i]->work_bytes))
            return true;
    return false;
}

/* Fewer rows of a step than the default, where nobody asked for a number. */
static bool session_fewer_rows(pn_session *s, const pn_session_params *p)
{
    if (p->n_batch || s->n_batch <= ENGINE_LEAST_BATCH)
        return false;
    s->n_batch = s->n_batch > 64 ? 64 : ENGINE_LEAST_BATCH;
    return true;
}

/* Without a wish for n_ctx: the largest of which all fits, down to a floor.  Then smaller steps. */
static pn_status session_admit(pn_session *s, const pn_session_params *p, pn_err *err)
{
    pn_model *m = s->model;
    pn_need need = {0}, whole = {0};
    pn_lack lack;
    for (;;) {
        pn_status st = session_need(s, p, &need, &whole, err);
        if (st)
            return st;
        bool smaller = p->n_ctx == 0 && s->n_ctx > 512;
        bool little = p->by_turn && !session_grows(s) && need.all <= SESSION_LITTLE;    /* its turns ask for what counts */
        if ((little && !smaller) || pn_model_make_room(m, true, smaller ? &whole : &need, &need, &lack))
            return PN_OK;
        if (!smaller && !session_fewer_rows(s, p))
            break;
        if (smaller)
            s->n_ctx = PN_MAX(512u, s->n_ctx / 2 / PN_KV_PAGE_TOKENS * PN_KV_PAGE_TOKENS);
        s->n_batch = PN_MIN(s->n_batch, s->n_ctx);
    }
    return pn_fail(err, PN_E_BUDGET, "a session of %" PRIu32 " tokens needs %" PRIu64 " bytes (%" PRIu64
                   " a token), %" PRIu64 " are available%s", s->n_ctx, lack.need,
                   pn_kv_bytes_per_token(&m->desc.state, s->kv_type), lack.available, lack.where);
}

/* Pages of each part come from its die. */
static pn_status session_open_kv(const pn_session *s, pn_kv *kv, uint32_t type, bool by_turn, pn_err *err)
{
    const pn_model *m = s->model;
    pn_mem *mem[PN_MAX_PARTS];
    for (uint32_t i = 0; i < PN_MAX_PARTS; i++)
        mem[i] = pn_die_mem(m->dies[PN_MIN(i, m->n_dies - 1)]);
    return pn_kv_open_parts(kv, mem, &m->desc.state, s->n_ctx, s->n_batch, type, by_turn, err);
}

PN_INTERNAL void pn_session_choose_type(pn_session *s)
{
    pn_kv kv;
    uint32_t type = s->auto_type && s->kv.by_turn && !s->kv.length ? pn_rungs_kv_type(s->model, atomic_load(&pn_session_die(s)->kv_step)) : s->kv_type;
    pn_mutex *pages = &pn_session_die(s)->cache.lock;
    if (type == s->kv_type || session_open_kv(s, &kv, type, true, NULL))
        return;
    pn_mutex_lock(pages);
    pn_kv_close(&s->kv);
    s->kv = kv;
    s->kv_type = type;
    pn_mutex_unlock(pages);
}

static pn_status session_alloc(pn_session *s, bool by_turn, pn_err *err)
{
    pn_model *m = s->model;
    pn_mem *mem = pn_engine_mem(m->engine);
    s->tokens = pn_mem_calloc(mem, PN_ACCT_MISC, s->n_ctx, sizeof *s->tokens);
    s->logits = pn_mem_calloc(mem, PN_ACCT_SCRATCH, m->desc.n_vocab, sizeof *s->logits);
    s->out_rows = pn_mem_calloc(mem, PN_ACCT_MISC, s->n_batch, sizeof *s->out_rows);
    if (!s->tokens || !s->logits || !s->out_rows)
        return pn_fail_nomem(err, "a session", (uint64_t)s->n_ctx * 4 + (uint64_t)m->desc.n_vocab * 4);
    pn_mutex_lock(&m->engine->admit_lock);
    pn_status st = session_open_kv(s, &s->kv, s->kv_type, by_turn, err);
    if (st == PN_E_NOMEM && pn_cache_give_all(m->engine, UINT64_MAX))   /* somebody else was faster */
        st = session_open_kv(s, &s->kv, s->kv_type, by_turn, err);
    pn_mutex_unlock(&m->engine->admit_lock);
    for (uint32_t i = 0; i < ENGINE_BUCKETS && !st; i++)
        st = pn_model_get_plan(m, session_bucket_rows(s, i), s->n_ctx, &s->plans[i], err);
    for (uint32_t i = 0; i < ENGINE_BUCKETS && !st; i++)
        if (s->plans[i]->max_rows <= pn_session_rows(s))
            st = pn_model_reserve(m, s->plans[i], err);
    return st;
}

/* One session more of the model, within its caps. */
static pn_status session_count(pn_session *s, pn_model *m, uint32_t n_ctx, pn_err *err)
{
    pn_status st = PN_OK;
    pn_mutex_lock(&m->lock);
    uint32_t most = m->caps.ctx ? PN_MIN(m->caps.ctx, m->desc.n_ctx_train) : m->desc.n_ctx_train;
    if (m->caps.sessions && m->n_sessions >= m->caps.sessions)
        st = pn_fail(err, PN_E_BUDGET, "the model has %" PRIu32 " sessions, as many as it may", m->n_sessions);
    else if (m->caps.ctx && n_ctx > m->caps.ctx)
        st = pn_fail(err, PN_E_BUDGET, "a session of %" PRIu32 " tokens was asked for, the model's may have %" PRIu32, n_ctx, m->caps.ctx);
    else if (m->desc.n_ctx_most && n_ctx > m->desc.n_ctx_most)
        st = pn_fail(err, PN_E_UNSUPPORTED, "a session of %" PRIu32 " tokens was asked for, this model's positions are known up to %" PRIu32, n_ctx, m->desc.n_ctx_most);
    else
        m->n_sessions++;
    pn_mutex_unlock(&m->lock);
    s->n_ctx = n_ctx ? n_ctx : most;
    if (!st)
        s->model = m;
    return st;
}

/* What the ladder finds. */
static void session_list(pn_session *s)
{
    pn_model *m = s->model;
    pn_mutex_lock(&m->lock);
    s->next = m->sessions;
    if (s->next)
        s->next->prev = s;
    m->sessions = s;
    pn_mutex_unlock(&m->lock);
}

/* Listed or not. */
static void session_unlist(pn_session *s)
{
    pn_model *m = s->model;
    pn_mutex_lock(&m->lock);
    m->n_sessions--;
    if (s->prev)
        s->prev->next = s->next;
    else if (m->sessions == s)
        m->sessions = s->next;
    if (s->next)
        s->next->prev = s->prev;
    pn_mutex_unlock(&m->lock);
}

PN_API pn_status pn_session_new(pn_model *m, const pn_session_params *params, pn_session **out, pn_err *err)
{
    pn_session_params p;
    pn_params_copy(&p, sizeof p, params, params ? params->size : 0);
    if (!m || m->vocab_only)
        return pn_fail(err, PN_E_INVALID, "%s", m ? "the model was loaded without weights" : "no model given");
    uint32_t kv_type = p.has_kv_type ? (uint32_t)p.kv_type : m->exact ? PN_DTYPE_F32 : PN_DTYPE_F16;
    pn_status st = pn_kv_check_type(&m->desc.state, kv_type, err);
    if (st)
        return st;
    if (p.n_batch > ENGINE_MAX_BATCH)
        return pn_fail(err, PN_E_INVALID, "n_batch is %" PRIu32 ", expected 1 to %d (0: the default)", p.n_batch,
                       ENGINE_MAX_BATCH);
    if (p.n_ctx > 1u << 30)
        return pn_fail(err, PN_E_INVALID, "n_ctx is %" PRIu32 ", expected at most 2^30", p.n_ctx);
    pn_mem *mem = pn_engine_mem(m->engine);
    pn_session *s = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *s);
    if (!s)
        return pn_fail_nomem(err, "a session", sizeof *s);
    st = session_count(s, m, p.n_ctx, err);
    if (st) {
        pn_mem_free(mem, PN_ACCT_MISC, s, sizeof *s);
        return st;
    }
    s->kv_type = kv_type;
    s->auto_type = !p.has_kv_type;
    s->n_batch = PN_MIN(p.n_batch ? p.n_batch : (uint32_t)ENGINE_DEFAULT_BATCH, s->n_ctx);
    st = session_admit(s, &p, err);
    if (!st)
        st = session_alloc(s, p.by_turn != 0, err);
    if (st) {
        pn_session_free(s);
        return st;
    }
    session_list(s);
    *out = s;
    return PN_OK;
}

PN_API void pn_session_free(pn_session *s)
{
    if (!s)
        return;
    pn_mem *mem = pn_engine_mem(s->model->engine);
    pn_session_enter(s);
    session_unlist(s);
    for (uint32_t i = 0; i < ENGINE_BUCKETS; i++)
        pn_model_put_plan(s->model, s->plans[i]);
    pn_embed_free(s);
    pn_session_park_drop(s);
    pn_mutex_lock(&pn_session_die(s)->cache.lock);
    pn_kv_close(&s->kv);
    pn_mutex_unlock(&pn_session_die(s)->cache.lock);
    pn_mem_free(mem, PN_ACCT_MISC, s->tokens, s->n_ctx * sizeof *s->tokens);
    pn_mem_free(mem, PN_ACCT_SCRATCH, s->logits, s->model->desc.n_vocab * sizeof *s->logits);
    pn_mem_free(mem, PN_ACCT_MISC, s->out_rows, s->n_batch * sizeof *s->out_rows);
    pn_mem_free(mem, PN_ACCT_MISC, s, sizeof *s);
}

PN_API uint32_t pn_session_capacity(const pn_session *s) { return s->n_ctx; }
PN_API uint32_t pn_session_length(const pn_session *s) { return s->kv.length; }
PN_API const pn_token *pn_session_tokens(const pn_session *s) { return s->tokens; }
PN_API const float *pn_session_logits(const pn_session *s) { return s->has_logits ? s->logits : NULL; }

PN_API pn_status pn_session_truncate(pn_session *s, uint32_t n, pn_err *err)
{
    if (pn_session_idle(s, err))
        return PN_E_STATE;
    if (n == s->kv.length)
        return PN_OK;
    if (n > s->kv.length)
        return pn_fail(err, PN_E_INVALID, "cannot truncate to %" PRIu32 " tokens, the session has %" PRIu32, n,
                       s->kv.length);
    pn_session_enter(s);
    pn_status st = n ? pn_session_unpark(s, 0, err) : PN_OK;
    if (st) {
        pn_session_leave(s);
        return st;
    }
    pn_session_park_drop(s);
    pn_mutex_lock(&pn_session_die(s)->cache.lock);
    bool done = pn_kv_truncate(&s->kv, n);
    pn_mutex_unlock(&pn_session_die(s)->cache.lock);
    done = done || pn_cache_rewind(s, n);
    if (done)
        pn_session_end_turn(s);
    pn_session_leave(s);
    if (!done)
        return pn_fail(err, PN_E_STATE, "%s position %" PRIu32 ": truncate to 0 and evaluate again",
                       s->kv.state.slot_bytes ? "the model is recurrent and has no snapshot of its state at"
                                              : "the model's sliding window has moved past", n);
    s->has_logits = false;
    if (n == 0) {
        s->salt = 0;
        s->apart = false;
    }
    return PN_OK;
}

PN_INTERNAL uint64_t pn_session_requant(pn_session *s, uint32_t type, bool also_recent, double deadline)
{
    pn_mutex *pages = &pn_session_die(s)->cache.lock;
    uint64_t bytes = 0, freed;
    do {                        /* the lock is others', too: one page at a time */
        pn_mutex_lock(pages);
        freed = pn_kv_requant_some(&s->kv, type, also_recent, 1);
        pn_mutex_unlock(pages);
        bytes += freed;
    } while (freed && pn_os_now() < deadline);
    return bytes;
}

PN_INTERNAL uint64_t pn_session_requant_gain(pn_session *s, uint32_t type, bool also_recent)
{
    pn_mutex *pages = &pn_session_die(s)->cache.lock;
    pn_mutex_lock(pages);
    uint64_t bytes = pn_kv_requant_gain(&s->kv, type, also_recent);
    pn_mutex_unlock(pages);
    return bytes;
}

PN_INTERNAL bool pn_session_requant_pays(pn_session *s, uint32_t type)
{
    pn_mutex *pages = &pn_session_die(s)->cache.lock;
    pn_mutex_lock(pages);
    bool pays = pn_kv_requant_pays(&s->kv, type);
    pn_mutex_unlock(pages);
    return pays;
}

PN_API void pn_session_kv_types(const pn_session *s, pn_dtype *configured, pn_dtype *smallest, int *degraded)
{
    pn_mutex *pages = &pn_session_die(s)->cache.lock;
    pn_mutex_lock(pages);
    uint32_t type = pn_kv_smallest(&s->kv);
    pn_mutex_unlock(pages);
    if (configured)
        *configured = (pn_dtype)s->kv_type;
    if (smallest)
        *smallest = (pn_dtype)type;
    if (degraded)
        *degraded = type != s->kv_type;
}

PN_API void pn_session_on_tick(pn_session *s, pn_tick_fn tick, void *user)
{
    s->tick = tick;
    s->tick_user = user;
}

/* Atomic stores: safe in a signal handler.  session_advance() looks at the session's every slice, the driver of
 * the engine at the other when it has nothing else to do. */
PN_API void pn_session_cancel(pn_session *s)
{
    atomic_store(&s->cancelled, true);
    atomic_store(&pn_session_die(s)->sched->cancelled, true);
}

/* ------------------------------------------------------------------------------------------
 * Steps
 * ------------------------------------------------------------------------------------------ */

/* Drive one exec to its end. */
static pn_status session_advance(pn_session *s, const pn_device_ops *ops, pn_exec *x, uint32_t done, uint32_t total, pn_err *err)
{
    for (;;) {
        double until = pn_os_now() + session_slice;
        pn_exec_state st = ops->advance(x, until);
        if (st == PN_EXEC_DONE)
            return PN_OK;
        if (st == PN_EXEC_FAILED)
            return pn_residency_failed(&s->model->store, err);
        if (st == PN_EXEC_WAIT_IO)
            pn_residency_wait(&s->model->store, until);
        if (s->tick && s->tick(s->tick_user, done, total))
            atomic_store(&s->cancelled, true);
        if (st == PN_EXEC_CANCELLED || atomic_load(&s->cancelled))
            return pn_fail(err, PN_E_CANCELLED, "cancelled after %" PRIu32 " of %" PRIu32 " tokens", done, total);
    }
}

PN_INTERNAL const pn_cached_plan *pn_session_plan(const pn_session *s, uint32_t rows)
{
    uint32_t bucket = 0;
    while (session_bucket_rows(s, bucket) < rows)
        bucket++;
    return s->plans[bucket];
}

PN_INTERNAL pn_status pn_session_idle(const pn_session *s, pn_err *err)
{
    return s->busy ? pn_fail(err, PN_E_STATE, "a request works on the session: wait for its end, or free it") : PN_OK;
}

PN_INTERNAL pn_run pn_session_run(pn_session *s, uint32_t n)
{
    pn_mutex *pages = &pn_session_die(s)->cache.lock;
    uint32_t n_marks = 0;
    bool last_only;
    pn_mutex_lock(pages);
    pn_kv_prepare(&s->kv, n);
    pn_mutex_unlock(pages);
    pn_state_unmark(&s->kv.state, false);
    if (s->kv.length / PN_KV_PAGE_TOKENS < (s->kv.length + n) / PN_KV_PAGE_TOKENS && pn_cache_wants_state(s, &last_only))
        n_marks = pn_state_mark_step(&s->kv.state, s->kv.length, n, last_only, s->marks);
    pn_run run = pn_kv_run(&s->kv, n);
    run.marks = s->marks;
    run.n_marks = n_marks;
    return run;
}

PN_INTERNAL pn_status pn_session_step(pn_session *s, const pn_session_part *p, pn_err *err)
{
    const pn_model *m = s->model;
    const pn_run run = pn_session_run(s, p->n);
    pn_status st = PN_OK;
    pn_die_arrive(m->dies, m->n_dies);
    pn_model_take(m);
    double began = pn_os_now();
    const pn_step step = {.tokens = p->tokens, .n_rows = p->n, .runs = &run, .n_runs = 1, .out_rows = s->out_rows,
                          .n_outs = p->n_outs, .logits = p->out, .carry = m->carry};
    for (uint32_t i = 0; i < m->n_dies && !st; i++) {
        const pn_die *die = m->dies[i];
        pn_exec *x;
        st = pn_die_grow(m->dies[i], &p->plan->part[i], err);
        if (!st)
            st = die->ops->submit(die->dev, &p->plan->part[i], &step, &m->store.host, die->work, &x, err);
        if (st)
            break;
        st = session_advance(s, die->ops, x, p->done, p->total, err);
        die->ops->end(x);
    }
    (void)pn_die_computed(m->dies, m->n_dies, m->share, p->n);
    pn_govern_disk(m->engine, pn_residency_stepped(&s->model->store, p->n, pn_os_now() - began));
    pn_model_give(m);
    pn_die_leave(m->dies, m->n_dies);
    if (!st) {
        memcpy(s->tokens + s->kv.length, p->tokens, p->n * sizeof *p->tokens);
        pn_kv_commit(&s->kv, p->n);
    }
    return st;
}

PN_INTERNAL pn_status pn_session_check_more(const pn_session *s, const pn_token *tokens, size_t n, pn_err *err)
{
    if (!s || (n && !tokens))
        return pn_fail(err, PN_E_INVALID, "%s", s ? "no tokens given" : "no session given");
    if (n > s->n_ctx - s->kv.length)
        return pn_fail(err, PN_E_CONTEXT, "%zu tokens do not fit: the context holds %" PRIu32 " and has %" PRIu32
                       " in use", n, s->n_ctx, s->kv.length);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= s->model->desc.n_vocab)
            return pn_fail(err, PN_E_INVALID, "token %" PRId32 " at %zu is not in the vocabulary of %" PRIu32, tokens[i],
                           i, s->model->desc.n_vocab);
    return PN_OK;
}

PN_INTERNAL pn_status pn_session_chunk(pn_session *s, const pn_token *tokens, uint32_t n, uint32_t done, uint32_t total, pn_err *err)
{
    bool last = done + n == total;
    s->has_logits = false;
    s->out_rows[0] = n - 1;
    const pn_session_part p = {.plan = pn_session_plan(s, n), .tokens = tokens, .n = n, .n_outs = last, .done = done, .total = total,
                               .out = s->logits};
    pn_status st = pn_session_step(s, &p, err);
    s->has_logits = last && !st;
    return st;
}

/* The same with the logits of all its rows. */
static pn_status session_chunk_all(pn_session *s, const pn_token *tokens, uint32_t n, uint32_t done, uint32_t total, float *logits,
                                   pn_err *err)
{
    uint32_t V = s->model->desc.n_vocab;
    s->has_logits = false;
    for (uint32_t i = 0; i < n; i++)
        s->out_rows[i] = i;
    const pn_session_part p = {.plan = pn_session_plan(s, n), .tokens = tokens, .n = n, .n_outs = n, .done = done, .total = total, .out = logits};
    pn_status st = pn_session_step(s, &p, err);
    s->has_logits = done + n == total && !st;
    if (s->has_logits)
        memcpy(s->logits, logits + (size_t)(n - 1) * V, V * sizeof *s->logits);
    return st;
}

/* A turn of its own.  all: logits of every token, or NULL. */
static pn_status session_eval(pn_session *s, const pn_token *tokens, size_t n, float *all, pn_err *err)
{
    if (s && pn_session_idle(s, err))
        return PN_E_STATE;
    pn_status st = pn_session_check_more(s, tokens, n, err);
    if (st)
        return st;
    atomic_store(&s->cancelled, false);
    pn_session_enter(s);
    st = pn_session_unpark(s, 0, err);
    if (!st)
        st = pn_session_reserve(s, s->kv.length + (uint64_t)n, err);
    for (uint32_t done = 0, rows; done < n && !st; done += rows) {
        rows = PN_MIN((uint32_t)n - done, pn_session_rows(s));
        st = all ? session_chunk_all(s, tokens + done, rows, done, (uint32_t)n, all + (size_t)done * s->model->desc.n_vocab, err)
                 : pn_session_chunk(s, tokens + done, rows, done, (uint32_t)n, err);
    }
    pn_session_end_turn(s);
    pn_session_leave(s);
    return st;
}

PN_API pn_status pn_session_eval(pn_session *s, const pn_token *tokens, size_t n, pn_err *err)
{
    return session_eval(s, tokens, n, NULL, err);
}

PN_API pn_status pn_session_eval_all(pn_session *s, const pn_token *tokens, size_t n, float *logits, pn_err *err)
{
    if (n && !logits)
        return pn_fail(err, PN_E_INVALID, "no memory for the logits given");
    return session_eval(s, tokens, n, logits, err);
}
