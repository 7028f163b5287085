/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Sampling and generation: the loop of prefill, pick, deliver, evaluate.
 *
 * Text comes as whole characters.  Where it goes is a route: straight to the caller, or through the
 * parser of a conversation; both end in a pn_emit, which holds back what may become a stop string.
 * When one was met, the session is cut back to the tokens whose text was delivered wholly.
 */
#include "engine/pn_engine_int.h"

#include <inttypes.h>

#include "base/pn_str.h"
#include "engine/pn_constraint.h"
#include "engine/pn_emit.h"
#include "sample/pn_budget.h"
#include "sample/pn_sampler.h"

struct pn_sampler {
    pn_engine *engine;
    pn_chain *chain;
};

static const pn_sampling generate_defaults = {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f};

/* What a model's file recommends, when it is a number within [lo, hi]. */
static bool generate_advice(const pn_weights *w, const char *key, double lo, double hi, double *v)
{
    const pn_gguf_kv *kv = pn_weights_meta(w, key);
    return kv && pn_gguf_f64(kv, 0, v) && *v >= lo && *v <= hi;
}

PN_API void pn_sampling_default(const pn_model *m, pn_sampling *out)
{
    const pn_weights *w = &m->file.weights;
    double v;
    *out = generate_defaults;
    out->size = sizeof *out;
    if (generate_advice(w, "general.sampling.temp", 0, 100, &v))
        out->temperature = (float)v;
    if (generate_advice(w, "general.sampling.top_k", 0, 1e9, &v))
        out->top_k = (int32_t)v;
    if (generate_advice(w, "general.sampling.top_p", 1e-30, 1, &v))
        out->top_p = (float)v;
    if (generate_advice(w, "general.sampling.min_p", 0, 1, &v))
        out->min_p = (float)v;
    if (generate_advice(w, "general.sampling.penalty_repeat", 1e-30, 100, &v))
        out->repeat_penalty = (float)v;
    if (generate_advice(w, "general.sampling.penalty_last_n", -1, 1e9, &v))
        out->repeat_last_n = (int32_t)v;
    if (generate_advice(w, "general.sampling.xtc_probability", 0, 1, &v))
        out->xtc_probability = (float)v;
    if (generate_advice(w, "general.sampling.xtc_threshold", 1e-30, 1, &v))
        out->xtc_threshold = (float)v;
    if (generate_advice(w, "general.sampling.mirostat", 0, 2, &v) && (v == 0 || v == 2))
        out->mirostat = (int32_t)v;
    if (generate_advice(w, "general.sampling.mirostat_tau", 1e-30, 1000, &v))
        out->mirostat_tau = (float)v;
    if (generate_advice(w, "general.sampling.mirostat_eta", 1e-30, 1000, &v))
        out->mirostat_eta = (float)v;
}

/* Tokens for which `want` holds, as a list of the engine's memory. */
static pn_status generate_ends(const pn_model *m, pn_token **out, size_t *n, size_t *cap, pn_err *err)
{
    for (uint32_t t = 0; t < pn_vocab_n_tokens(m->vocab); t++)
        if (pn_vocab_ends(m->vocab, (pn_token)t)) {
            if (!pn_mem_grow(pn_engine_mem(m->engine), PN_ACCT_MISC, (void **)out, cap, *n + 1, sizeof **out))
                return pn_fail_nomem(err, "the end tokens", (*n + 1) * sizeof **out);
            (*out)[(*n)++] = (pn_token)t;
        }
    return PN_OK;
}

/* tokenizer.ggml.suppress_tokens: never to be generated. */
static pn_status generate_never(const pn_model *m, pn_token **out, size_t *n, size_t *cap, pn_err *err)
{
    const pn_gguf_kv *kv = pn_weights_meta(&m->file.weights, "tokenizer.ggml.suppress_tokens");
    int64_t id;
    for (uint64_t i = 0; kv && kv->type == PN_META_ARRAY && i < kv->count; i++) {
        if (!pn_gguf_i64(kv, i, &id) || id < 0 || id >= pn_vocab_n_tokens(m->vocab))
            continue;
        if (!pn_mem_grow(pn_engine_mem(m->engine), PN_ACCT_MISC, (void **)out, cap, *n + 1, sizeof **out))
            return pn_fail_nomem(err, "the suppressed tokens", (*n + 1) * sizeof **out);
        (*out)[(*n)++] = (pn_token)id;
    }
    return PN_OK;
}

static pn_bytes generate_piece(void *user, pn_token t)
{
    char tmp[8];
    const pn_model *m = user;
    return pn_vocab_piece(m->vocab, t, true, tmp);
}

/* With nothing trusted: a breaker is ordinary text. */
static pn_status generate_tokens(void *user, const char *text, size_t len, pn_token **out, size_t *n, size_t *cap,
                                 pn_err *err)
{
    const pn_model *m = user;
    const pn_span none = {0, 0};
    return pn_vocab_encode(m->vocab, pn_engine_mem(m->engine), text, len, 0, &none, 0, out, n, cap, err);
}

/* DRY's sequence breakers as tokens of this vocabulary. */
static pn_status generate_breakers(const pn_model *m, pn_chain *chain, const pn_sampling *p, pn_err *err)
{
    static const char *const usual[] = {"\n", ":", "\"", "*"};
    const char *const *text = p->dry_breakers ? p->dry_breakers : usual;
    size_t n = p->dry_breakers ? p->n_dry_breakers : PN_COUNT_OF(usual);
    const pn_breaker_text vocab = {pn_vocab_n_tokens(m->vocab), generate_piece, generate_tokens, (void *)(uintptr_t)m};
    pn_breakers b;
    pn_status st = PN_OK;
    pn_breakers_init(&b, pn_engine_mem(m->engine));
    for (size_t i = 0; i < n && !st; i++)
        st = pn_breakers_add_text(&b, text[i], &vocab, err);
    if (!st)
        st = pn_chain_take_breakers(chain, &b, err);
    pn_breakers_fini(&b);
    return st;
}

PN_API pn_status pn_sampler_new(const pn_model *m, const pn_sampling *p, pn_sampler **out, pn_err *err)
{
    if (!m || !p)
        return pn_fail(err, PN_E_INVALID, "%s", m ? "no sampling parameters given" : "no model given");
    pn_mem *mem = pn_engine_mem(m->engine);
    pn_sampling full;
    pn_params_copy(&full, sizeof full, p, p->size);
    pn_token *ends = NULL, *never = NULL;
    size_t n_ends = 0, cap_ends = 0, n_never = 0, cap_never = 0;
    pn_sampler *s = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *s);
    pn_status st = s ? PN_OK : pn_fail_nomem(err, "a sampler", sizeof *s);
    if (!st)
        st = generate_ends(m, &ends, &n_ends, &cap_ends, err);
    if (!st)
        st = generate_never(m, &never, &n_never, &cap_never, err);
    if (!st)
        st = pn_chain_new(&s->chain, mem, &full, pn_vocab_n_logits(m->vocab), pn_vocab_n_tokens(m->vocab), ends, n_ends,
                          never, n_never, err);
    if (!st && pn_chain_wants_breakers(s->chain))
        st = generate_breakers(m, s->chain, &full, err);
    pn_mem_free(mem, PN_ACCT_MISC, ends, cap_ends * sizeof *ends);
    pn_mem_free(mem, PN_ACCT_MISC, never, cap_never * sizeof *never);
    if (st) {
        if (s)
            pn_chain_free(s->chain);
        pn_mem_free(mem, PN_ACCT_MISC, s, sizeof *s);
        return st;
    }
    s->engine = m->engine;
    *out = s;
    return PN_OK;
}

PN_API void pn_sampler_free(pn_sampler *s)
{
    if (!s)
        return;
    pn_chain_free(s->chain);
    pn_mem_free(pn_engine_mem(s->engine), PN_ACCT_MISC, s, sizeof *s);
}

PN_API uint64_t pn_sampler_seed(const pn_sampler *s) { return pn_chain_seed(s->chain); }

PN_API pn_status pn_sampler_pick(pn_sampler *s, const float *logits, pn_token *out, pn_err *err)
{
    if (!logits)
        return pn_fail(err, PN_E_STATE, "there are no logits yet: evaluate a token first");
    return pn_chain_pick(s->chain, logits, out, err);
}

PN_API pn_status pn_sampler_accept(pn_sampler *s, pn_token t, int generated, pn_err *err)
{
    return pn_chain_accept(s->chain, t, generated != 0, err);
}

PN_API pn_status pn_logprobs(const pn_model *m, const float *logits, pn_token chosen, uint32_t n_top, pn_token *ids,
                             float *lp, float *chosen_lp, pn_err *err)
{
    if (!m)
        return pn_fail(err, PN_E_INVALID, "no model given");
    if (!logits)
        return pn_fail(err, PN_E_STATE, "there are no logits yet: evaluate a token first");
    if (n_top && (!ids || !lp))
        return pn_fail(err, PN_E_INVALID, "pn_logprobs: ids and lp must be given for the %" PRIu32 " likeliest", n_top);
    return pn_chain_logprobs(logits, pn_vocab_n_logits(m->vocab), pn_vocab_n_tokens(m->vocab), chosen, n_top, ids, lp,
                             chosen_lp, err);
}

/* ------------------------------------------------------------------------------------------
 * The loop
 * ------------------------------------------------------------------------------------------ */

typedef struct generate_state {
    pn_session *s;
    pn_sampler *sampler;
    const pn_generate_route *route;
    pn_constraint constraint;
    pn_budget *budget;          /* borrowed, or NULL */
    pn_detok *detok;
    uint32_t first;             /* the answer's tokens are the session's from here on */
    pn_generate_result r;
} generate_state;

static pn_status generate_prompt(generate_state *g, const pn_generate_params *p, pn_err *err)
{
    double t0 = pn_os_now();
    pn_status st = PN_OK;
    for (uint32_t i = 0; i < g->s->kv.length && !st; i++)
        st = pn_sampler_accept(g->sampler, g->s->tokens[i], 0, err);
    for (size_t i = 0; i < p->n_prompt && !st; i++)
        st = pn_sampler_accept(g->sampler, p->prompt[i], 0, err);
    if (!st)
        st = pn_session_more(g->s, p->prompt, p->n_prompt, NULL, err);
    g->r.n_prompt = (uint32_t)p->n_prompt;
    g->r.prefill_seconds = pn_os_now() - t0;
    return st;
}

/* The budget's token when it may dictate, or the sampler's choice of what the grammar allows. */
static pn_status generate_choose(generate_state *g, bool dictated, pn_token *t, pn_err *err)
{
    const uint32_t *allowed;
    *t = dictated ? pn_budget_next(g->budget) : -1;
    if (*t >= 0)
        return PN_OK;
    pn_status st = pn_constraint_mask(&g->constraint, &allowed, err);
    return st ? st : pn_chain_pick_masked(g->sampler->chain, pn_session_logits(g->s), allowed, t, err);
}

/* A token that the grammar takes; one that ends the answer is none of its business.  A refused token is
 * out of the next mask, so this ends.  The grammar refuses the budget's token where no reasoning is open but
 * in the budget's eyes; then the model chooses. */
static pn_status generate_next(generate_state *g, pn_token *t, pn_err *err)
{
    char tmp[8];
    for (bool dictated = g->budget != NULL;; dictated = false) {
        pn_status st = generate_choose(g, dictated, t, err);
        if (st || pn_vocab_ends(g->s->model->vocab, *t))
            return st;
        st = pn_constraint_accept(&g->constraint, *t, pn_vocab_piece(g->s->model->vocab, *t, true, tmp), err);
        if (st != PN_E_STATE)
            return st;
    }
}

static bool generate_stopped(const generate_state *g) { return pn_emit_stopped(g->route->emit); }

/* Tell the sampler and the budget, and send the token's text on its way. */
static pn_status generate_deliver(generate_state *g, pn_token t, pn_err *err)
{
    const char *text = NULL;
    size_t len = 0;
    pn_status st = pn_emit_push(g->route->emit, t, pn_session_logits(g->s), err);
    if (!st)
        st = pn_sampler_accept(g->sampler, t, 1, err);
    if (!st)
        st = pn_detok_push(g->detok, t, &text, &len, err);
    if (st)
        return st;
    if (g->budget)
        pn_budget_accept(g->budget, t, pn_detok_is_whole(g->detok));
    g->r.n_generated++;
    return g->route->text(g->route->user, t, text, len, err);
}

/* One token: pick, deliver, evaluate.  g->r.finish says when to stop. */
static pn_status generate_token(generate_state *g, const pn_generate_params *p, pn_err *err)
{
    pn_token t = 0;
    pn_status st = generate_next(g, &t, err);
    if (st)
        return st;
    if (pn_vocab_ends(g->s->model->vocab, t)) {
        g->r.finish = PN_FINISH_STOP;
        return PN_OK;
    }
    st = generate_deliver(g, t, err);
    if (st)
        return st;
    /* The token is part of the session even when it is the last: a later turn continues from it.  One
     * that ends a stop string is not. */
    if (!generate_stopped(g) && g->s->kv.length < g->s->n_ctx)
        st = pn_session_more(g->s, &t, 1, NULL, err);
    if (generate_stopped(g) || pn_constraint_done(&g->constraint))
        g->r.finish = PN_FINISH_STOP;
    else if (g->route->emit->refused)
        g->r.finish = PN_FINISH_CALLBACK;
    else if (atomic_load(&g->s->cancelled))
        g->r.finish = PN_FINISH_CANCELLED;
    else if (p->max_tokens && g->r.n_generated >= p->max_tokens)
        g->r.finish = PN_FINISH_LENGTH;
    else if (g->s->kv.length >= g->s->n_ctx)
        g->r.finish = PN_FINISH_CONTEXT;
    return st;
}

/* Nothing follows: what was held back goes out, and may still be a stop string. */
static pn_status generate_end(generate_state *g, pn_err *err)
{
    const char *text = NULL;
    size_t len = 0;
    if (generate_stopped(g))
        return PN_OK;
    pn_status st = pn_detok_flush(g->detok, &text, &len, err);
    if (!st && len)
        st = g->route->text(g->route->user, -1, text, len, err);
    if (!st && !generate_stopped(g))
        st = g->route->end(g->route->user, err);
    if (!st && generate_stopped(g))
        g->r.finish = PN_FINISH_STOP;
    return st;
}

/* The session keeps the tokens whose text was delivered; what a window does not let go stays. */
static void generate_keep(generate_state *g, size_t *raw_len)
{
    pn_session *s = g->s;
    g->r.stop_index = g->route->emit->stop_index;
    g->r.n_kept = (uint32_t)pn_emit_kept(g->route->emit, s->kv.length - g->first, raw_len);
    if (generate_stopped(g) && s->kv.length > g->first + g->r.n_kept)
        (void)pn_session_truncate(s, g->first + g->r.n_kept, NULL);
}

PN_INTERNAL pn_status pn_generate_run(pn_session *s, const pn_generate_params *p, const pn_generate_route *route,
                                      struct pn_budget *budget, pn_generate_result *result, size_t *raw_len, pn_err *err)
{
    static const pn_sampling greedy = {.size = sizeof(pn_sampling)};
    generate_state g = {.s = s, .budget = budget, .route = route, .r = {.stop_index = -1}};
    atomic_store(&s->cancelled, false);
    pn_status st = PN_OK;
    if (!p->n_prompt && !s->has_logits)
        st = pn_fail(err, PN_E_STATE, "nothing to continue from: the prompt is empty and the session has no logits");
    if (!st)
        st = pn_sampler_new(s->model, p->sampling ? p->sampling : &greedy, &g.sampler, err);
    if (!st)
        st = pn_detok_new(s->model, route->emit->special, &g.detok, err);
    if (!st)
        st = pn_constraint_open(&g.constraint, s->model, p, err);
    if (!st)
        st = generate_prompt(&g, p, err);
    if (g.sampler)
        g.r.seed = pn_sampler_seed(g.sampler);
    g.first = s->kv.length;
    double t0 = pn_os_now();
    while (!st && g.r.finish == PN_FINISH_NONE)
        st = generate_token(&g, p, err);
    g.r.decode_seconds = pn_os_now() - t0;
    if (st == PN_E_CANCELLED) {
        g.r.finish = PN_FINISH_CANCELLED;
        st = PN_OK;
    }
    if (!st)
        st = generate_end(&g, err);
    if (!st)
        generate_keep(&g, raw_len);
    if (result)
        *result = g.r;
    pn_constraint_close(&g.constraint);
    pn_detok_free(g.detok);
    pn_sampler_free(g.sampler);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Straight to the caller
 * ------------------------------------------------------------------------------------------ */

typedef struct generate_plain {
    const pn_generate_params *p;
    pn_emit emit;
    pn_token now;               /* the token whose text this is; -1: the end */
    size_t at;                  /* bytes of text so far */
} generate_plain;

static int generate_give(void *user, const char *text, size_t n)
{
    generate_plain *g = user;
    if (g->now < 0 && n == 0)
        return 0;
    return g->p->on_text ? g->p->on_text(g->p->user, text, n, g->now) : 0;
}

static pn_status generate_text(void *user, pn_token t, const char *text, size_t len, pn_err *err)
{
    generate_plain *g = user;
    g->now = t;
    pn_emit_text(&g->emit, text, len, g->at);
    g->at += len;
    pn_emit_settle(&g->emit, g->at);
    return g->emit.failed ? pn_fail_nomem(err, "generated text", g->emit.held.len) : PN_OK;
}

static pn_status generate_rest(void *user, pn_err *err)
{
    generate_plain *g = user;
    g->now = -1;
    pn_emit_release(&g->emit);
    pn_emit_settle(&g->emit, SIZE_MAX);
    return g->emit.failed ? pn_fail_nomem(err, "generated text", g->emit.held.len) : PN_OK;
}

PN_API pn_status pn_session_generate(pn_session *s, const pn_generate_params *params, pn_generate_result *result,
                                     pn_err *err)
{
    pn_generate_params p;
    size_t raw_len;
    if (!s || !params)
        return pn_fail(err, PN_E_INVALID, "%s", s ? "no parameters given" : "no session given");
    pn_params_copy(&p, sizeof p, params, params->size);
    generate_plain g = {.p = &p};
    const pn_generate_route route = {&g.emit, generate_text, generate_rest, &g};
    if (result)
        *result = (pn_generate_result){.stop_index = -1};
    pn_status st = pn_emit_open(&g.emit, s->model, &p, false, generate_give, &g, err);
    if (!st)
        st = pn_generate_run(s, &p, &route, NULL, result, &raw_len, err);
    pn_emit_close(&g.emit);
    return st;
}
