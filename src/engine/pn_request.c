/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_request.c - requests of pantheon.h: a generation in a session or an answer in a conversation, handed to
 * the scheduler.
 *
 * A request owns a copy of what the caller gave: the prompt, the sampling parameters; stop strings, grammar,
 * budget strings and callbacks stay the caller's until it is freed.  Freed from a callback it lives on, silent,
 * until the scheduler has done with it.
 */
#include "engine/pn_answer.h"
#include "engine/pn_sched.h"

struct pn_request {
    pn_job job;                 /* first: the scheduler's view */
    pn_engine *e;
    pn_generate_params p;       /* of a session's request */
    pn_sampling sampling;
    pn_token *prompt;           /* owned, [n_prompt] */
    size_t n_prompt;
    pn_plain plain;
    pn_answer *answer;          /* of a conversation's, else NULL */
    pn_generate_result result;
    pn_status st;
    uint32_t n_context, n_cached;   /* as the generation began */
};

static pn_request *request_of(pn_job *j) { return (pn_request *)j; }

static void request_free(pn_request *r)
{
    pn_mem *mem = pn_engine_mem(r->e);
    if (!r->answer)
        pn_plain_close(&r->plain);
    pn_mem_free(mem, PN_ACCT_MISC, r->prompt, r->n_prompt * sizeof *r->prompt);
    pn_mem_free(mem, PN_ACCT_MISC, r, sizeof *r);
}

/* The generation is over, for whatever reason. */
static void request_close(pn_job *j, pn_status st)
{
    pn_request *r = request_of(j);
    size_t raw_len = 0;
    j->s->busy = false;
    r->st = pn_gen_close(&j->gen, st, &r->result, &raw_len, &j->err);
    if (r->answer)
        r->st = pn_answer_close(r->answer, r->st, &r->result, raw_len, &j->err);
}

static void request_dispose(pn_job *j) { request_free(request_of(j)); }

/* Nothing had to be computed.  Once it is over, on_done or another thread may free it. */
static void request_over(pn_request *r)
{
    void (*on_done)(void *) = r->job.gen.p.on_done;
    void *user = r->job.gen.p.done_user;
    request_close(&r->job, PN_OK);
    atomic_store(&r->job.over, true);
    if (on_done)
        on_done(user);
}

/* The generation is open: to the scheduler with it, or over already. */
static pn_status request_begin(pn_request *r, pn_session *s, const pn_generate_params *p, const pn_generate_route *route,
                               struct pn_budget *budget, pn_request **out, pn_err *err)
{
    const pn_token *tokens;
    r->job.s = s;
    r->job.ended = request_close;
    r->job.dispose = request_dispose;
    pn_status st = pn_gen_open(&r->job.gen, s, p, route, budget, err);
    if (st) {
        size_t raw_len = 0;
        pn_gen_close(&r->job.gen, st, NULL, &raw_len, NULL);
        return st;
    }
    s->busy = true;
    r->n_context = r->job.gen.r.n_context;
    r->n_cached = r->job.gen.r.n_cached;
    *out = r;
    if (pn_gen_wants(&r->job.gen, &tokens))
        pn_sched_add(&r->job);
    else
        request_over(r);
    return PN_OK;
}

static pn_request *request_new(pn_engine *e, pn_err *err)
{
    pn_request *r = pn_mem_calloc(pn_engine_mem(e), PN_ACCT_MISC, 1, sizeof *r);
    if (!r) {
        pn_fail_nomem(err, "a request", sizeof *r);
        return NULL;
    }
    r->e = e;
    r->result.stop_index = -1;
    return r;
}

PN_API pn_status pn_request_new(pn_session *s, const pn_generate_params *params, pn_request **out, pn_err *err)
{
    if (!s || !params || !out)
        return pn_fail(err, PN_E_INVALID, "pn_request_new: session, parameters and out must be given");
    if (pn_session_idle(s, err))
        return PN_E_STATE;
    pn_request *r = request_new(s->model->engine, err);
    if (!r)
        return PN_E_NOMEM;
    pn_params_copy(&r->p, sizeof r->p, params, params->size);
    pn_status st = pn_plain_open(&r->plain, s->model, &r->p, err);
    r->n_prompt = r->p.n_prompt;
    r->prompt = pn_mem_calloc(pn_engine_mem(r->e), PN_ACCT_MISC, r->n_prompt, sizeof *r->prompt);
    if (!st && !r->prompt)
        st = pn_fail_nomem(err, "a prompt", r->n_prompt * sizeof *r->prompt);
    if (!r->prompt)
        r->n_prompt = 0;
    if (!st && r->n_prompt)
        memcpy(r->prompt, r->p.prompt, r->n_prompt * sizeof *r->prompt);
    r->p.prompt = r->prompt;
    if (r->p.sampling) {
        pn_params_copy(&r->sampling, sizeof r->sampling, r->p.sampling, r->p.sampling->size);
        r->sampling.size = sizeof r->sampling;
        r->p.sampling = &r->sampling;
    }
    if (!st)
        st = request_begin(r, s, &r->p, &r->plain.route, NULL, out, err);
    if (st)
        request_free(r);
    return st;
}

PN_API pn_status pn_request_chat(pn_chat *c, const pn_chat_reply_params *params, pn_request **out, pn_err *err)
{
    pn_answer *a;
    if (!out)
        return pn_fail(err, PN_E_INVALID, "pn_request_chat: out must be given");
    pn_status st = pn_answer_open(c, params, &a, err);
    if (st)
        return st;
    pn_session *s = pn_chat_session(c);
    pn_request *r = request_new(s->model->engine, err);
    if (r)
        r->answer = a;
    st = r ? request_begin(r, s, &a->generate, &a->route, a->budget, out, err) : PN_E_NOMEM;
    if (st) {
        pn_answer_close(a, st, NULL, 0, NULL);
        if (r)
            request_free(r);
    }
    return st;
}

PN_API int pn_request_done(const pn_request *r) { return atomic_load(&r->job.over); }

PN_API int pn_request_parked(const pn_request *r) { return (atomic_load(&r->job.held) & SCHED_PARKED) != 0; }

PN_API void pn_request_prompt(const pn_request *r, uint32_t *n_prompt, uint32_t *n_cached)
{
    if (n_prompt)
        *n_prompt = r->n_context;
    if (n_cached)
        *n_cached = r->n_cached;
}

PN_API pn_status pn_request_result(const pn_request *r, pn_generate_result *out, pn_err *err)
{
    if (!atomic_load(&r->job.over))
        return pn_fail(err, PN_E_STATE, "the request is not done");
    if (out)
        *out = r->result;
    if (r->st && err)
        *err = r->job.err;
    return r->st;
}

PN_API void pn_request_cancel(pn_request *r)
{
    if (atomic_load(&r->job.over))
        return;
    pn_session_cancel(r->job.s);
    pn_sched_wake(r->e);
}

PN_API void pn_request_pause(pn_request *r, int paused)
{
    if (!atomic_load(&r->job.over))
        pn_sched_pause(&r->job, paused != 0);
}

PN_API void pn_request_free(pn_request *r)
{
    if (!r)
        return;
    pn_request_cancel(r);
    pn_sched_left how = pn_sched_remove(&r->job);
    if (how != PN_SCHED_OVER)
        r->job.gen.route.emit->refused = true;          /* nothing is said any more */
    if (how == PN_SCHED_LATER)
        return;
    if (how == PN_SCHED_REMOVED)
        request_close(&r->job, PN_E_CANCELLED);
    request_free(r);
}
