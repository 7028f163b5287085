/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Generation: prefill, pick, deliver, evaluate.
 *
 * Text comes as whole characters.  Where it goes is a route: straight to the caller, or through the
 * parser of a conversation; both end in a pn_emit, which holds back what may become a stop string.
 * When one was met, the session is cut back to the tokens whose text was delivered wholly.
 */
#include "engine/pn_generate.h"

#include <inttypes.h>

#include "base/pn_str.h"
#include "engine/pn_cache.h"
#include "engine/pn_park.h"
#include "engine/pn_tier.h"
#include "sample/pn_budget.h"
#include "sample/pn_sampler.h"

/* ------------------------------------------------------------------------------------------
 * Choosing
 * ------------------------------------------------------------------------------------------ */

/* The budget's token when it may dictate, or the sampler's choice of what the grammar allows. */
static pn_status generate_choose(pn_gen *g, bool dictated, pn_token *t, pn_err *err)
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
static pn_status generate_next(pn_gen *g, pn_token *t, pn_err *err)
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

static bool generate_stopped(const pn_gen *g) { return pn_emit_stopped(g->route.emit); }

/* Tell the sampler and the budget, and send the token's text on its way. */
static pn_status generate_deliver(pn_gen *g, pn_token t, pn_err *err)
{
    const char *text = NULL;
    size_t len = 0;
    pn_status st = pn_emit_push(g->route.emit, t, pn_session_logits(g->s), err);
    if (!st)
        st = pn_sampler_accept(g->sampler, t, 1, err);
    if (!st)
        st = pn_detok_push(g->detok, t, &text, &len, err);
    if (st)
        return st;
    if (g->budget)
        pn_budget_accept(g->budget, t, pn_detok_is_whole(g->detok));
    g->r.n_generated++;
    return g->route.text(g->route.user, t, text, len, err);
}

/* ------------------------------------------------------------------------------------------
 * The object
 * ------------------------------------------------------------------------------------------ */

enum {
    GENERATE_GRANT = 1024,      /* tokens by which a grant is extended (memory sheet 6.2) */
    GENERATE_LEAST = 16         /* fewest tokens of an answer that is worth beginning */
};

/* Memory for the next token: what was reserved, another grant, or at last what there is.  False: the answer ends here. */
static bool generate_granted(pn_gen *g)
{
    pn_session *s = g->s;
    if (s->kv.length < g->granted)
        return true;
    uint64_t end = PN_MIN((uint64_t)g->granted + GENERATE_GRANT, (uint64_t)g->r.n_context + g->r.max_tokens);
    pn_status st = pn_session_reserve(s, end, NULL);
    if (st && s->budget.max_context_now > g->granted) {
        end = s->budget.max_context_now;
        st = pn_session_reserve(s, end, NULL);
    }
    g->r.stopped_by_memory = st != PN_OK;
    g->granted = st ? g->granted : (uint32_t)end;
    return !st;
}

/* Why it ends now, after a token was delivered and, if it was to be, evaluated. */
static void generate_check(pn_gen *g)
{
    const pn_session *s = g->s;
    if (generate_stopped(g) || pn_constraint_done(&g->constraint))
        g->r.finish = PN_FINISH_STOP;
    else if (g->route.emit->refused)
        g->r.finish = PN_FINISH_CALLBACK;
    else if (atomic_load(&g->s->cancelled))
        g->r.finish = PN_FINISH_CANCELLED;
    else if (g->p.max_tokens && g->r.n_generated >= g->p.max_tokens)
        g->r.finish = PN_FINISH_LENGTH;
    else if (s->kv.length >= s->n_ctx)
        g->r.finish = PN_FINISH_CONTEXT;
    else if ((g->p.may_shrink > 0 && g->r.n_generated >= g->r.max_tokens) || !generate_granted(g))
        g->r.finish = PN_FINISH_LENGTH;
}

/* From the session's logits: the next token, delivered and to be evaluated.  It is part of the session
 * even when it is the last: a later turn continues from it.  One that ends a stop string is not. */
static pn_status generate_token(pn_gen *g, pn_err *err)
{
    pn_status st = generate_next(g, &g->chosen, err);
    if (st)
        return st;
    if (pn_vocab_ends(g->s->model->vocab, g->chosen)) {
        g->r.finish = PN_FINISH_STOP;
        return PN_OK;
    }
    st = generate_deliver(g, g->chosen, err);
    if (st)
        return st;
    if (generate_stopped(g) || g->s->kv.length >= g->s->n_ctx) {
        generate_check(g);
        return PN_OK;
    }
    g->next = &g->chosen;
    g->n_next = 1;
    g->at = 0;
    return PN_OK;
}

/* The turn's memory: all of it, or the first grant.  What could not be had even alone may become less. */
static pn_status generate_reserve(pn_gen *g, pn_err *err)
{
    pn_session *s = g->s;
    const pn_generate_params *p = &g->p;
    uint32_t room = s->n_ctx - g->r.n_context;
    if (p->may_shrink < 0 && p->max_tokens > room) {
        pn_session_note_context(s, g->r.n_context, (uint64_t)g->r.n_context + p->max_tokens);
        return pn_fail(err, PN_E_CONTEXT, "%" PRIu32 " tokens and %" PRIu32 " more do not fit: the context holds %" PRIu32, g->r.n_context,
                       p->max_tokens, s->n_ctx);
    }
    g->r.max_tokens = p->max_tokens ? PN_MIN(p->max_tokens, room) : room;
    uint32_t first = p->grant ? PN_MIN(p->grant, g->r.max_tokens) : g->r.max_tokens;
    pn_status st = pn_session_reserve(s, (uint64_t)g->r.n_context + first, err);
    if (st == PN_E_BUDGET) {
        uint32_t alone = s->budget.max_context_alone;
        s->budget.prompt_tokens = g->r.n_context;
        s->budget.max_new_tokens = first;
        if (p->may_shrink > 0 && !s->budget.retryable && alone >= g->r.n_context + GENERATE_LEAST) {
            g->r.max_tokens = first = alone - g->r.n_context;
            st = pn_session_reserve(s, alone, err);
        }
        if (st && !s->budget.retryable && s->budget.max_context_alone >= g->r.n_context + GENERATE_LEAST)
            s->budget.suggestion = PN_SUGGEST_FEWER_TOKENS;
    }
    g->granted = g->r.n_context + first;
    return st;
}

/* An empty session may have a part of the prompt already.  Then the turn's memory. */
static pn_status generate_begin(pn_gen *g, pn_err *err)
{
    pn_session *s = g->s;
    const pn_generate_params *p = &g->p;
    pn_session_choose_type(s);
    if (s->kv.length == 0) {
        s->salt = p->salt;
        s->apart = p->no_cache != 0;
        g->at = p->no_cache ? 0 : pn_cache_adopt(s, p->salt, p->prompt, p->n_prompt);
        g->saved = (uint32_t)g->at;
    } else if (p->no_cache || p->salt != s->salt) {
        s->apart = true;
    }
    s->keeps_state = !s->apart;
    g->r.n_cached = s->kv.length;
    g->r.kv_type = (pn_dtype)s->kv_type;
    pn_status st = generate_reserve(g, err);
    if (st && g->at)
        (void)pn_session_truncate(s, 0, NULL);
    return st;
}

/* Tell the prefix cache what the session holds: at an end, or because the next step lets go of pages that a
 * window has passed, and nobody could start there any more.  Of a recurrent model what is before a snapshot, and as
 * soon as there is one that stays: they are large, and the cache says how many there may be. */
static void generate_save(pn_gen *g, bool end)
{
    pn_session *s = g->s;
    const pn_state_spec *spec = s->kv.spec;
    uint32_t full = spec->slot_bytes ? pn_state_marked(&s->kv.state, end) : s->kv.length / PN_KV_PAGE_TOKENS * PN_KV_PAGE_TOKENS;
    bool due = end || spec->slot_bytes;
    for (uint32_t i = 0; i < spec->n_groups && !due; i++)
        due = pn_kv_first_page(spec, i, full) * PN_KV_PAGE_TOKENS > g->saved;
    if (!due || s->apart || full <= g->saved)
        return;
    pn_cache_insert(s, end);
    g->saved = full;
}

PN_INTERNAL pn_status pn_gen_open(pn_gen *g, pn_session *s, const pn_generate_params *p, const pn_generate_route *route,
                                  struct pn_budget *budget, pn_err *err)
{
    static const pn_sampling greedy = {.size = sizeof(pn_sampling)};
    *g = (pn_gen){.s = s, .p = *p, .route = *route, .budget = budget, .next = p->prompt, .n_next = p->n_prompt, .in_prompt = true,
                  .r = {.stop_index = -1, .n_prompt = (uint32_t)p->n_prompt}};
    atomic_store(&s->cancelled, false);
    pn_session_enter(s);
    g->since = pn_os_now();
    pn_status st = pn_session_unpark(s, 0, err);
    if (st)
        return st;
    if (!p->n_prompt && !s->has_logits)
        return pn_fail(err, PN_E_STATE, "nothing to continue from: the prompt is empty and the session has no logits");
    st = pn_session_check_more(s, p->prompt, p->n_prompt, err);
    if (st == PN_E_CONTEXT)
        pn_session_note_context(s, s->kv.length + (uint64_t)p->n_prompt, s->kv.length + (uint64_t)p->n_prompt + p->max_tokens);
    if (st)
        return st;
    g->r.n_context = s->kv.length + (uint32_t)p->n_prompt;
    st = pn_sampler_new(s->model, p->sampling ? p->sampling : &greedy, &g->sampler, err);
    if (!st)
        g->r.seed = pn_sampler_seed(g->sampler);
    if (!st)
        st = pn_detok_new(s->model, route->emit->special, &g->detok, err);
    if (!st)
        st = pn_constraint_open(&g->constraint, s->model, p, err);
    for (uint32_t i = 0; i < s->kv.length && !st; i++)
        st = pn_sampler_accept(g->sampler, s->tokens[i], 0, err);
    for (size_t i = 0; i < p->n_prompt && !st; i++)
        st = pn_sampler_accept(g->sampler, p->prompt[i], 0, err);
    if (!st)
        st = generate_begin(g, err);
    return !st && !p->n_prompt ? pn_gen_computed(g, 0, err) : st;
}

PN_INTERNAL size_t pn_gen_wants(const pn_gen *g, const pn_token **tokens)
{
    *tokens = g->next + g->at;
    return g->r.finish == PN_FINISH_NONE ? g->n_next - g->at : 0;
}

PN_INTERNAL pn_status pn_gen_computed(pn_gen *g, size_t n, pn_err *err)
{
    pn_level level = (pn_level)atomic_load(&g->s->model->engine->govern.worst);
    g->at += n;
    g->r.level_max = PN_MAX(g->r.level_max, level);
    if (g->in_prompt || g->s->kv.state.slot_bytes)
        generate_save(g, g->in_prompt && g->at == g->n_next);
    if (g->at < g->n_next)
        return PN_OK;
    if (g->in_prompt) {
        double now = pn_os_now();
        g->r.prefill_seconds = now - g->since;
        pn_tier_note_prefill(g->s->model, g->s->kv.length - PN_MIN(g->s->kv.length, g->r.n_cached), g->r.prefill_seconds);
        g->since = now;
        g->first = g->s->kv.length;
        g->in_prompt = false;
    } else {
        generate_check(g);
    }
    return g->r.finish == PN_FINISH_NONE ? generate_token(g, err) : PN_OK;
}

/* Nothing follows: what was held back goes out, and may still be a stop string. */
static pn_status generate_end(pn_gen *g, pn_err *err)
{
    const char *text = NULL;
    size_t len = 0;
    if (generate_stopped(g))
        return PN_OK;
    pn_status st = pn_detok_flush(g->detok, &text, &len, err);
    if (!st && len)
        st = g->route.text(g->route.user, -1, text, len, err);
    if (!st && !generate_stopped(g))
        st = g->route.end(g->route.user, err);
    if (!st && generate_stopped(g))
        g->r.finish = PN_FINISH_STOP;
    return st;
}

/* The session keeps the tokens whose text was delivered; what a window does not let go stays. */
static void generate_keep(pn_gen *g, size_t *raw_len)
{
    pn_session *s = g->s;
    g->r.stop_index = g->route.emit->stop_index;
    g->r.n_reasoning = g->route.emit->n_reasoning;
    g->r.n_kept = (uint32_t)pn_emit_kept(g->route.emit, s->kv.length - g->first, raw_len);
    if (generate_stopped(g) && s->kv.length > g->first + g->r.n_kept)
        (void)pn_session_truncate(s, g->first + g->r.n_kept, NULL);
}

PN_INTERNAL pn_status pn_gen_close(pn_gen *g, pn_status st, pn_generate_result *result, size_t *raw_len, pn_err *err)
{
    pn_session_park_stop(g->s);
    *(g->in_prompt ? &g->r.prefill_seconds : &g->r.decode_seconds) = pn_os_now() - g->since;
    if (g->in_prompt)
        g->first = g->s->kv.length;
    if (st == PN_E_CANCELLED) {
        g->r.finish = PN_FINISH_CANCELLED;
        st = PN_OK;
    }
    if (!st && g->s->kv.length < g->first)
        st = pn_fail(err, PN_E_IO, "the keys and values of the session were lost while it was parked");
    if (!st)
        st = generate_end(g, err);
    if (!st)
        generate_keep(g, raw_len);
    pn_session_end_turn(g->s);
    if (!st)
        generate_save(g, true);
    g->s->keeps_state = false;
    pn_state_unmark(&g->s->kv.state, true);
    pn_dtype wanted = g->s->model->exact ? PN_DTYPE_F32 : PN_DTYPE_F16, smallest;
    pn_session_kv_types(g->s, NULL, &smallest, NULL);
    g->r.kv_degraded |= smallest != (g->s->auto_type ? wanted : (pn_dtype)g->s->kv_type);
    pn_session_leave(g->s);
    if (result)
        *result = g->r;
    pn_constraint_close(&g->constraint);
    pn_detok_free(g->detok);
    pn_sampler_free(g->sampler);
    return st;
}

PN_INTERNAL pn_status pn_generate_run(pn_session *s, const pn_generate_params *p, const pn_generate_route *route,
                                      struct pn_budget *budget, pn_generate_result *result, size_t *raw_len, pn_err *err)
{
    pn_gen g;
    const pn_token *tokens;
    size_t n;
    pn_status st = pn_gen_open(&g, s, p, route, budget, err);
    while (!st && (n = pn_gen_wants(&g, &tokens)) > 0) {
        n = PN_MIN(n, (size_t)pn_session_rows(s));
        st = pn_session_chunk(s, tokens, (uint32_t)n, (uint32_t)g.at, (uint32_t)g.n_next, err);
        if (!st)
            st = pn_gen_computed(&g, n, err);
    }
    return pn_gen_close(&g, st, result, raw_len, err);
}

/* ------------------------------------------------------------------------------------------
 * Straight to the caller
 * ------------------------------------------------------------------------------------------ */

static int generate_give(void *user, const char *text, size_t n)
{
    pn_plain *g = user;
    if (g->now < 0 && n == 0)
        return 0;
    return g->p->on_text ? g->p->on_text(g->p->user, text, n, g->now) : 0;
}

static pn_status generate_text(void *user, pn_token t, const char *text, size_t len, pn_err *err)
{
    pn_plain *g = user;
    g->now = t;
    pn_emit_text(&g->emit, text, len, g->at);
    g->at += len;
    pn_emit_settle(&g->emit, g->at);
    return g->emit.failed ? pn_fail_nomem(err, "generated text", g->emit.held.len) : PN_OK;
}

static pn_status generate_rest(void *user, pn_err *err)
{
    pn_plain *g = user;
    g->now = -1;
    pn_emit_release(&g->emit);
    pn_emit_settle(&g->emit, SIZE_MAX);
    return g->emit.failed ? pn_fail_nomem(err, "generated text", g->emit.held.len) : PN_OK;
}

PN_INTERNAL pn_status pn_plain_open(pn_plain *t, const pn_model *m, const pn_generate_params *p, pn_err *err)
{
    *t = (pn_plain){.p = p};
    t->route = (pn_generate_route){&t->emit, generate_text, generate_rest, t};
    return pn_emit_open(&t->emit, m, p, false, generate_give, t, err);
}

PN_INTERNAL void pn_plain_close(pn_plain *t) { pn_emit_close(&t->emit); }

PN_API pn_status pn_session_generate(pn_session *s, const pn_generate_params *params, pn_generate_result *result,
                                     pn_err *err)
{
    pn_generate_params p;
    size_t raw_len;
    if (!s || !params)
        return pn_fail(err, PN_E_INVALID, "%s", s ? "no parameters given" : "no session given");
    pn_params_copy(&p, sizeof p, params, params->size);
    if (result)
        *result = (pn_generate_result){.stop_index = -1};
    if (pn_session_idle(s, err))
        return PN_E_STATE;
    pn_plain t;
    pn_status st = pn_plain_open(&t, s->model, &p, err);
    if (!st)
        st = pn_generate_run(s, &p, &t.route, NULL, result, &raw_len, err);
    pn_plain_close(&t);
    return st;
}
