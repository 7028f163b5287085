/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_ask_begin.c - what takes long about a request, on the lane: reading its body, rendering and tokenizing its
 * prompt, compiling its grammar, opening its sessions; and in the end giving all of that back.
 *
 * The server's own data is not touched here: an ask on the lane is the lane's, and its model stays loaded as
 * long as it runs for anybody.
 */
#include "serve/pn_ask_int.h"

#include <inttypes.h>
#include <stdio.h>

#include "serve/pn_anthropic.h"
#include "serve/pn_oai_reply.h"

static pn_status begin_nomem(serve_ask *a)
{
    pn_oai_error_status(&a->error, PN_E_NOMEM, "out of memory for this request");
    return PN_E_NOMEM;
}

/* The numbers of the first turn that was refused. */
static bool begin_budget(serve_ask *a)
{
    for (uint32_t i = 0; i < a->n_choices; i++)
        if (a->choice[i].session && pn_last_budget(a->choice[i].session, &a->budget) == PN_OK)
            return true;
    return false;
}

PN_INTERNAL pn_status serve_ask_refused(serve_ask *a, pn_status st, const pn_err *err)
{
    bool told = (st == PN_E_BUDGET || st == PN_E_CONTEXT) && begin_budget(a);
    a->retry = st == PN_E_NOMEM || (st == PN_E_BUDGET && (!told || a->budget.retryable));
    if (!told && st == PN_E_CONTEXT) {
        a->budget = (pn_budget_info){.size = sizeof a->budget, .prompt_tokens = serve_ask_count(a), .max_new_tokens = a->req->common->max_tokens,
                                     .ctx_cap = a->at->n_ctx, .die = -1};
        a->budget.requested_tokens = a->budget.prompt_tokens + a->budget.max_new_tokens;
        told = true;
    }
    if (told)
        pn_oai_error_budget(&a->error, &a->budget, a->retry, 1000);
    else if (st == PN_E_BUDGET)
        pn_oai_error_memory(&a->error, err->text, false, 0);
    else
        pn_oai_error_status(&a->error, st, err->text);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Parsing
 * ------------------------------------------------------------------------------------------ */

static bool parse_body(serve_ask *a, struct serve_request *q)
{
    pn_mem *mem = &a->server->mem;
    const char *text = pn_str_cstr(&a->body);
    size_t n = a->body.len;
    pn_oai_error *e = &a->error;
    switch (a->kind) {
    case SERVE_COMPLETION:
        q->common = &q->of.completion.common;
        return pn_oai_completion_parse(&q->of.completion, mem, text, n, SERVE_CHOICES, e);
    case SERVE_RESPONSES: case SERVE_COUNT_RESPONSES:
        q->chat = &q->of.responses.chat;
        q->common = &q->chat->common;
        return pn_responses_parse(&q->of.responses, mem, text, n, e);
    case SERVE_EMBED:
        q->common = &q->of.embeddings.common;
        return pn_oai_embeddings_parse(&q->of.embeddings, mem, text, n, e);
    case SERVE_DETOKENIZE:
        q->common = &q->of.detokenize.common;
        return pn_oai_detokenize_parse(&q->of.detokenize, mem, text, n, e);
    case SERVE_TOKENIZE: case SERVE_TEMPLATE:
        q->common = &q->of.tokenize.chat.common;
        q->chat = &q->of.tokenize.chat;
        return a->kind == SERVE_TOKENIZE ? pn_oai_tokenize_parse(&q->of.tokenize, mem, text, n, e)
                                         : pn_oai_template_parse(&q->of.tokenize, mem, text, n, e);
    case SERVE_MESSAGES: case SERVE_COUNT_MESSAGES:
        q->chat = &q->of.chat;
        q->common = &q->chat->common;
        return pn_anthropic_parse(q->chat, mem, text, n, e);
    case SERVE_CHAT: case SERVE_COUNT: break;
    }
    q->chat = &q->of.chat;
    q->common = &q->chat->common;
    return pn_oai_chat_parse(q->chat, mem, text, n, SERVE_CHOICES, e);
}

static void parse_fini(serve_ask *a)
{
    struct serve_request *q = a->req;
    switch (a->kind) {
    case SERVE_COMPLETION: pn_oai_completion_fini(&q->of.completion); break;
    case SERVE_RESPONSES: case SERVE_COUNT_RESPONSES: pn_responses_fini(&q->of.responses); break;
    case SERVE_EMBED: pn_oai_embeddings_fini(&q->of.embeddings); break;
    case SERVE_DETOKENIZE: pn_oai_detokenize_fini(&q->of.detokenize); break;
    case SERVE_TOKENIZE: case SERVE_TEMPLATE: pn_oai_tokenize_fini(&q->of.tokenize); break;
    default: pn_oai_chat_fini(&q->of.chat); break;
    }
}

PN_INTERNAL void serve_ask_parse(serve_ask *a)
{
    pn_mem *mem = &a->server->mem;
    struct serve_request *q = pn_mem_calloc(mem, PN_ACCT_CONN, 1, sizeof *q);
    if (!q) {
        begin_nomem(a);
        return;
    }
    a->req = q;
    pn_str_init(&q->tools, mem, PN_ACCT_CONN);
    pn_str_init(&q->echoed, mem, PN_ACCT_CONN);
    serve_ask_keys(a);
    q->open = parse_body(a, q);
    pn_str_fini(&a->body);
    if (!q->open)
        return;
    a->model_name = q->common->model;
    a->stream = a->kind <= SERVE_MESSAGES && q->common->stream;
    a->no_wait = q->common->no_wait;
    a->computes = a->kind == SERVE_EMBED || serve_ask_scores(a);
}

/* ------------------------------------------------------------------------------------------
 * What all generations have
 * ------------------------------------------------------------------------------------------ */

/* The grammar that the answer is held to, if the request has one. */
static pn_status begin_grammar(serve_ask *a)
{
    const pn_oai_common *q = a->req->common;
    pn_engine *e = a->server->e;
    pn_err err;
    pn_str schema;
    pn_status st = PN_OK;
    pn_str_init(&schema, &a->server->mem, PN_ACCT_CONN);
    switch (q->format) {
    case PN_OAI_TEXT: break;
    case PN_OAI_JSON_OBJECT: st = pn_grammar_json_schema(e, "{\"type\":\"object\"}", 17, &a->grammar, &err); break;
    case PN_OAI_SCHEMA:
        pn_json_write_node(&schema, &q->body, q->schema);
        st = schema.failed ? begin_nomem(a) : pn_grammar_json_schema(e, schema.data, schema.len, &a->grammar, &err);
        break;
    case PN_OAI_GBNF: st = pn_grammar_gbnf(e, q->grammar.data, q->grammar.len, &a->grammar, &err); break;
    }
    pn_str_fini(&schema);
    if (st && !a->error.status) {
        pn_oai_error_set(&a->error, 400, "invalid_request_error", "invalid_value", q->format == PN_OAI_GBNF ? "grammar" : "response_format", "%s",
                         err.text);
        if (st == PN_E_NOMEM)
            serve_ask_refused(a, st, &err);     /* not the request's fault */
    }
    return st;
}

/* With the lock held: the choice's prompt is computed, or will not be. */
static void begin_lead(serve_choice *c)
{
    serve_ask *a = c->ask;
    a->n_led += !c->led && c->index % a->req->common->n == 0;
    c->led = true;
    a->more_due = a->n_led == a->n_leaders && a->n_begun < a->n_choices;
    if (a->more_due)
        atomic_store(&a->news, true);
}

static int begin_event(void *user, const pn_output_event *e)
{
    serve_choice *c = user;
    serve_ask *a = c->ask;
    pn_mutex_lock(&a->lock);
    uint64_t now = pn_net_now_ms();
    if (!a->first_ms)
        a->first_ms = now;
    else if (a->n_gaps < SERVE_GAPS)
        a->gaps[a->n_gaps++] = (uint16_t)PN_MIN(now - a->last_ms, (uint64_t)UINT16_MAX);
    a->last_ms = now;
    c->calls |= e->kind == PN_OUTPUT_CALL_BEGIN;
    if (!c->led)
        begin_lead(c);
    a->failed = a->failed || !a->reply->ops->event(a->reply, c->index, e);
    bool failed = a->failed, news = a->box.len > 0 || a->more_due;
    pn_mutex_unlock(&a->lock);
    if (news)
        serve_wake(a->server);
    return failed;
}

static int begin_text(void *user, const char *text, size_t len, pn_token token)
{
    const pn_output_event e = {.kind = PN_OUTPUT_CONTENT, .text = text, .len = len, .id = ""};
    (void)token;
    return len ? begin_event(user, &e) : 0;
}

static int begin_logprob(void *user, const pn_token_logprob *t)
{
    serve_choice *c = user;
    serve_ask *a = c->ask;
    pn_mutex_lock(&a->lock);
    a->failed = a->failed || !a->reply->ops->logprob(a->reply, c->index, t);
    bool failed = a->failed;
    pn_mutex_unlock(&a->lock);
    return failed;
}

/* As soon as the lock is given back the ask may be gone. */
static void begin_done(void *user)
{
    serve_choice *c = user;
    serve_ask *a = c->ask;
    pn_server *s = a->server;
    pn_mutex_lock(&a->lock);
    c->done = true;
    a->n_done++;
    begin_lead(c);
    atomic_store(&a->news, true);
    pn_mutex_unlock(&a->lock);
    serve_wake(s);
}

static void begin_params(serve_ask *a, serve_choice *c)
{
    const pn_oai_common *q = a->req->common;
    pn_sampling_default(a->at->m, &c->sampling);
    pn_oai_sampling(q, &c->sampling);
    c->sampling.seed += c->sampling.has_seed ? c->index : 0;
    c->generate = (pn_generate_params){
        .size = sizeof c->generate, .max_tokens = q->max_tokens, .grant = q->max_tokens ? 0 : a->server->params.default_max_new,
        .may_shrink = q->strict_budget ? -1 : 1, .sampling = &c->sampling,
        .stop = q->stop, .n_stop = q->n_stop, .grammar = a->grammar, .on_logprob = q->logprobs ? begin_logprob : NULL, .logprob_user = c,
        .n_top = q->logprobs ? q->top_logprobs : 0, .client = a->client, .on_done = begin_done, .done_user = c};
}

static pn_status begin_session(serve_ask *a, serve_choice *c, pn_err *err)
{
    const serve_model *m = a->model;
    const pn_session_params p = {.n_ctx = a->at->n_ctx, .by_turn = 1, .kv_type = m->params.kv_type, .has_kv_type = m->params.has_kv_type};
    c->ask = a;
    begin_params(a, c);
    return pn_session_new(a->at->m, &p, &c->session, err);
}

/* ------------------------------------------------------------------------------------------
 * Conversations
 * ------------------------------------------------------------------------------------------ */

static pn_status begin_messages(serve_ask *a, serve_choice *c, pn_err *err)
{
    const pn_oai_chat *q = a->req->chat;
    pn_str text;
    uint32_t n = 0;
    pn_status st = PN_OK;
    pn_str_init(&text, &a->server->mem, PN_ACCT_CONN);
    for (uint32_t i = pn_json_first(&q->common.body, q->messages); i != PN_JSON_NONE && n < q->n_messages && !st;
         i = pn_json_next(&q->common.body, i), n++) {
        pn_str_clear(&text);
        pn_json_write_node(&text, &q->common.body, i);
        st = text.failed ? pn_fail_nomem(err, "a message", text.len) : pn_chat_add(c->chat, text.data, text.len, err);
    }
    pn_str_fini(&text);
    return st;
}

static pn_status begin_chat(serve_ask *a, serve_choice *c, pn_err *err)
{
    const pn_oai_chat *q = a->req->chat;
    const serve_model *m = a->model;
    const pn_str *tools = &a->req->tools;
    const pn_chat_params p = {
        .template_text = m->template_text.len ? m->template_text.data : NULL, .template_len = m->template_text.len,
        .variables = q->variables.len ? q->variables.data : NULL, .variables_len = q->variables.len,
        .tools = tools->len ? tools->data : NULL, .tools_len = tools->len};
    pn_status st = pn_chat_new(c->session, &p, &c->chat, err);
    if (!st)
        st = begin_messages(a, c, err);
    bool capped = m->params.has_reasoning_budget;
    uint32_t budget = q->has_reasoning_budget ? q->reasoning_budget : m->params.reasoning_budget;
    if (capped)
        budget = PN_MIN(budget, m->params.reasoning_budget);
    c->reply = (pn_chat_reply_params){.size = sizeof c->reply, .generate = &c->generate, .on_event = begin_event, .user = c,
                                      .has_reasoning_budget = capped || q->has_reasoning_budget, .reasoning_budget = budget,
                                      .tool_choice = q->tool_choice, .tool_name = q->tool_name.data, .single_call = q->single_call};
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Completions
 * ------------------------------------------------------------------------------------------ */

static pn_status begin_piece(serve_ask *a, const pn_oai_inputs *in, const pn_oai_piece *piece, bool first, serve_tokens *t, pn_err *err)
{
    unsigned flags = PN_TOKENIZE_SPECIAL | (first ? (unsigned)PN_TOKENIZE_BOS : 0u);
    size_t n = piece->n_tokens;
    pn_status st = piece->text.data ? pn_tokenize(a->at->m, piece->text.data, piece->text.len, flags, NULL, 0, &n, err) : PN_OK;
    if (st || !n)
        return st;
    pn_token *list = pn_mem_resize(&a->server->mem, PN_ACCT_CONN, t->list, t->n * sizeof *list, (t->n + n) * sizeof *list);
    if (!list)
        return pn_fail_nomem(err, "a prompt", n * sizeof *list);
    t->list = list;
    t->n += n;
    if (piece->text.data)
        return pn_tokenize(a->at->m, piece->text.data, piece->text.len, flags, list + t->n - n, n, &n, err);
    memcpy(list + t->n - n, in->tokens + piece->first, n * sizeof *list);
    return PN_OK;
}

PN_INTERNAL pn_status serve_ask_tokens(serve_ask *a, const pn_oai_inputs *in, size_t i, serve_tokens *t, pn_err *err)
{
    const pn_oai_input *input = &in->list[i];
    pn_status st = PN_OK;
    for (size_t k = 0; k < input->n_pieces && !st; k++)
        st = begin_piece(a, in, &in->pieces[input->first + k], k == 0, t, err);
    return st;
}

static pn_status begin_prompt(serve_ask *a, serve_choice *c, pn_err *err)
{
    const pn_oai_completion *q = &a->req->of.completion;
    if (q->suffix.data)
        return pn_fail(err, PN_E_INVALID, "suffix: this model is not known to fill in the middle");
    pn_status st = serve_ask_tokens(a, &q->prompts, c->index / q->common.n, &c->prompt, err);
    if (!st && !c->prompt.n && !q->prompt_only)
        st = pn_fail(err, PN_E_INVALID, "prompt: expected at least one token, found none, and this model has none to begin with");
    c->generate.prompt = c->prompt.list;
    c->generate.n_prompt = c->prompt.n;
    c->generate.on_text = begin_text;
    c->generate.user = c;
    return st;
}

/* A prompt's text, for who wants it in front of the answers. */
static pn_status begin_text_of(serve_ask *a, const serve_choice *c, pn_bytes *out, pn_err *err)
{
    pn_str *s = &a->req->echoed;
    size_t n, at = s->len;
    pn_status st = pn_detokenize(a->at->m, c->prompt.list, c->prompt.n, 0, NULL, 0, &n, err);
    if (st)
        return st;
    for (size_t i = 0; i < n; i++)
        pn_str_addc(s, 0);
    if (s->failed)
        return pn_fail_nomem(err, "a prompt's text", n);
    out->len = n;
    if (!n)
        return PN_OK;
    return pn_detokenize(a->at->m, c->prompt.list, c->prompt.n, 0, s->data + at, n, &n, err);
}

static pn_status begin_echo(serve_ask *a, pn_err *err)
{
    struct serve_request *q = a->req;
    uint32_t n = q->common->n;
    size_t at = 0;
    pn_status st = PN_OK;
    for (uint32_t i = 0; i < a->n_choices && !st; i += n)
        st = begin_text_of(a, &a->choice[i], &q->echo[i / n], err);
    for (uint32_t i = 0; i < a->n_choices / n; at += q->echo[i++].len)
        q->echo[i].data = pn_str_cstr(&q->echoed) + at;
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Replies
 * ------------------------------------------------------------------------------------------ */

static void begin_write_report(serve_ask *a)
{
    const pn_generate_result *w = &a->worst;
    a->report.len = a->report_head;
    pn_str_addf(&a->report, ",\"kv_type\":\"%s\",\"kv_degraded\":%s,\"effective_max_tokens\":%" PRIu32 ",\"stopped_by\":%s,\"parked_ms\":%.0f,"
                "\"level_max\":\"%s\"", pn_kv_type_name(w->kv_type), w->kv_degraded ? "true" : "false", w->max_tokens,
                w->stopped_by_memory ? "\"memory\"" : "null", 1000 * w->parked_seconds, pn_level_name(w->level_max));
    if (a->reply)
        a->reply->p.report = pn_str_cstr(&a->report);
}

PN_INTERNAL void serve_ask_report(serve_ask *a, const pn_generate_result *r)
{
    pn_generate_result *w = &a->worst;
    w->kv_type = r->kv_type;
    w->max_tokens = r->max_tokens;
    w->kv_degraded |= r->kv_degraded;
    w->stopped_by_memory |= r->stopped_by_memory;
    w->parked_seconds = PN_MAX(w->parked_seconds, r->parked_seconds);
    w->level_max = PN_MAX(w->level_max, r->level_max);
    begin_write_report(a);
}

/* Members of "pantheon" in the answer: what was not honoured, and what the answer is made with. */
static void begin_report(serve_ask *a)
{
    const serve_choice *c = &a->choice[0];
    bool nothing = !a->req->chat && a->req->of.completion.prompt_only;
    pn_str *s = &a->report;
    pn_str_addz(s, "\"ignored_params\":[");
    pn_str_add(s, pn_str_cstr(&a->req->common->ignored), a->req->common->ignored.len);
    for (const char *p = c->chat ? pn_chat_widened(c->chat) : "", *end; *p; p = end + (*end != 0)) {
        char pointer[256];
        end = p + strcspn(p, "\n");
        snprintf(pointer, sizeof pointer, "tools%.*s", (int)PN_MIN((size_t)(end - p), sizeof pointer - 8), p);
        pn_json_item(s);
        pn_json_write_strz(s, pointer);
    }
    pn_str_addc(s, ']');
    a->report_head = s->len;
    a->worst = (pn_generate_result){.kv_type = a->model->params.has_kv_type ? a->model->params.kv_type : PN_DTYPE_F16,
                                    .max_tokens = nothing ? 0 : c->generate.max_tokens};
    begin_write_report(a);
}

static pn_status begin_reply(serve_ask *a, pn_err *err)
{
    const pn_oai_common *q = a->req->common;
    begin_report(a);
    if (a->served.failed || a->report.failed)
        return pn_fail_nomem(err, "an answer", a->report.len);
    const pn_reply_params p = {.mem = &a->server->mem, .id = a->id, .model = a->served.data, .fingerprint = a->server->fingerprint,
                               .created = pn_net_unix_s(), .n_choices = a->n_choices, .stream = a->stream, .seed = a->begun_ms,
                               .report = a->report.data, .emit = serve_ask_emit, .user = a};
    if (a->kind == SERVE_RESPONSES)
        return pn_responses_reply_new(&a->reply, &p, &a->req->of.responses, err);
    if (a->kind == SERVE_MESSAGES)
        return pn_anthropic_reply_new(&a->reply, &p, err);
    if (a->req->chat)
        return pn_oai_chat_reply_new(&a->reply, &p, q->include_usage, q->logprobs, err);
    bool echo = a->req->of.completion.echo;
    pn_status st = echo ? begin_echo(a, err) : PN_OK;
    const pn_oai_completion_reply how = {.include_usage = q->include_usage, .logprobs = q->logprobs, .prompt_logprobs = serve_ask_scores(a),
                                         .n = q->n, .echo = echo ? a->req->echo : NULL};
    return st ? st : pn_oai_completion_reply_new(&a->reply, &p, &how, err);
}

/* ------------------------------------------------------------------------------------------
 * Beginning
 * ------------------------------------------------------------------------------------------ */

static void begin_usage(serve_ask *a, const serve_choice *c)
{
    uint32_t n_prompt, n_cached;
    pn_request_prompt(c->request, &n_prompt, &n_cached);
    if (c->index % a->req->common->n != 0)
        return;                             /* its prompt has been counted */
    a->usage.prompt += n_prompt;
    a->usage.cached += n_cached;
}

/* The engine may be at work on it before this returns. */
static pn_status begin_request(serve_ask *a, serve_choice *c, pn_err *err)
{
    return a->req->chat ? pn_request_chat(c->chat, &c->reply, &c->request, err) : pn_request_new(c->session, &c->generate, &c->request, err);
}

/* With the lock held: now others know of it. */
static void begin_count(serve_ask *a, serve_choice *c)
{
    a->n_begun++;
    c->begun = true;
    begin_usage(a, c);
    if (a->paused)
        pn_request_pause(c->request, 1);
}

/* max_tokens is 0: the prompts are counted, nothing is computed. */
static pn_status begin_nothing(serve_ask *a, pn_err *err)
{
    const pn_reply_finish f = {.why = PN_FINISH_LENGTH};
    for (uint32_t i = 0; i < a->n_choices; i += a->req->common->n)
        a->usage.prompt += (uint32_t)a->choice[i].prompt.n;
    bool ok = a->reply->ops->begin(a->reply, &a->usage);
    for (uint32_t i = 0; i < a->n_choices && ok; i++)
        ok = a->reply->ops->choice_end(a->reply, i, &f);
    a->n_begun = a->n_done = a->n_choices;
    return ok ? PN_OK : pn_fail_nomem(err, "an answer", 0);
}

/* The prompts' own log-probabilities come first, so they are computed here, and the requests go on from there. */
static pn_status begin_scored(serve_ask *a, pn_err *err)
{
    bool only = a->req->of.completion.prompt_only;
    const pn_reply_finish f = {.why = PN_FINISH_LENGTH};
    pn_status st = PN_OK;
    for (uint32_t i = 0; i < a->n_choices; i += a->req->common->n)
        a->usage.prompt += (uint32_t)a->choice[i].prompt.n;
    if (!a->reply->ops->begin(a->reply, &a->usage))
        return pn_fail_nomem(err, "an answer", 0);
    for (uint32_t i = 0; i < a->n_choices && !st; i++) {
        serve_choice *c = &a->choice[i];
        st = serve_ask_score(a, c, err);
        c->generate.n_prompt = 0;
        if (!st && only)
            st = a->reply->ops->choice_end(a->reply, i, &f) ? PN_OK : pn_fail_nomem(err, "an answer", 0);
        else if (!st)
            st = begin_request(a, c, err);
        pn_mutex_lock(&a->lock);
        a->failed = a->failed || st;
        a->n_begun += !st;
        a->n_done += !st && only;
        c->begun = !st && !only;
        pn_mutex_unlock(&a->lock);
    }
    return st;
}

static bool begin_leads(const serve_ask *a, uint32_t i) { return i % a->req->common->n == 0; }

/* One request for each prompt.  For whoever computes meanwhile the first of them and the reply's beginning are one. */
static pn_status begin_requests(serve_ask *a, pn_err *err)
{
    pn_status st = PN_OK;
    a->n_leaders = a->n_choices / a->req->common->n;
    for (uint32_t i = 0; i < a->n_choices && !st; i++) {
        if (!begin_leads(a, i))
            continue;
        if (i == 0)
            pn_mutex_lock(&a->lock);
        st = begin_request(a, &a->choice[i], err);
        if (i > 0)
            pn_mutex_lock(&a->lock);
        if (!st)
            begin_count(a, &a->choice[i]);
        if (!st && i == 0 && !a->reply->ops->begin(a->reply, &a->usage))
            st = pn_fail_nomem(err, "an answer", 0);
        a->failed = a->failed || st;
        pn_mutex_unlock(&a->lock);
    }
    return st;
}

PN_INTERNAL void serve_ask_more(serve_ask *a)
{
    pn_status st = PN_OK;
    pn_err err = {PN_OK, {0}};
    for (uint32_t i = 0; i < a->n_choices && !st && !atomic_load(&a->cancelled); i++) {
        if (a->choice[i].request)
            continue;
        st = begin_request(a, &a->choice[i], &err);
        pn_mutex_lock(&a->lock);
        if (!st)
            begin_count(a, &a->choice[i]);
        pn_mutex_unlock(&a->lock);
    }
    pn_mutex_lock(&a->lock);
    a->more_status = st;
    a->more_err = err;
    pn_mutex_unlock(&a->lock);
}

static pn_status begin_all(serve_ask *a, pn_err *err)
{
    struct serve_request *q = a->req;
    pn_status st = PN_OK;
    a->n_choices = q->chat ? q->common->n : (uint32_t)q->of.completion.prompts.n * q->common->n;
    if (q->chat && !q->tools.len)
        pn_oai_chat_tools(q->chat, &q->tools);
    if (q->tools.failed)
        return pn_fail_nomem(err, "tools", q->tools.len);
    for (uint32_t i = 0; i < a->n_choices && !st; i++) {
        serve_choice *c = &a->choice[i];
        c->index = i;
        st = begin_session(a, c, err);
        if (!st)
            st = q->chat ? begin_chat(a, c, err) : begin_prompt(a, c, err);
    }
    if (!st)
        st = begin_reply(a, err);
    if (st)
        return st;
    if (serve_ask_scores(a))
        return begin_scored(a, err);
    return !q->chat && q->of.completion.prompt_only ? begin_nothing(a, err) : begin_requests(a, err);
}

/* Requests first, then what they use. */
static void begin_undo(serve_ask *a)
{
    pn_mem *mem = &a->server->mem;
    for (uint32_t i = 0; i < a->n_choices; i++)
        pn_request_free(a->choice[i].request);
    for (uint32_t i = 0; i < a->n_choices; i++) {
        serve_choice *c = &a->choice[i];
        pn_chat_free(c->chat);
        pn_session_free(c->session);
        pn_mem_free(mem, PN_ACCT_CONN, c->prompt.list, c->prompt.n * sizeof *c->prompt.list);
        memset(c, 0, sizeof *c);
    }
    pn_grammar_free(a->grammar);
    if (a->reply)
        a->reply->ops->free(a->reply);
    a->grammar = NULL;
    a->reply = NULL;
    a->n_begun = a->n_done = a->n_choices = a->n_led = 0;
    a->failed = a->more_due = false;
    memset(&a->usage, 0, sizeof a->usage);
    a->report_head = 0;
    pn_str_clear(&a->box);
    pn_str_clear(&a->report);
}

PN_INTERNAL void serve_ask_begin(serve_ask *a)
{
    pn_err err;
    a->retry = false;
    a->budget.size = 0;
    pn_status st = a->kind > SERVE_MESSAGES ? PN_OK : begin_grammar(a);
    if (!st) {
        st = a->kind > SERVE_MESSAGES ? serve_ask_once(a, &err) : begin_all(a, &err);
        if (st)
            serve_ask_refused(a, st, &err);
    }
    if (st)
        begin_undo(a);
}

/* Names only: they are a header's value. */
PN_INTERNAL void serve_ask_ignored(const serve_ask *a, pn_str *fields)
{
    const pn_str *list = a->req && a->req->open ? &a->req->common->ignored : NULL;
    pn_str s;
    if (!list || !list->len)
        return;
    pn_str_init(&s, &a->server->mem, PN_ACCT_CONN);
    for (size_t i = 0; i < list->len; i++)
        if (list->data[i] > ' ' && list->data[i] < 127 && list->data[i] != '"')
            pn_str_addc(&s, list->data[i]);
    if (!s.failed && s.len < 1024)
        pn_http_add_n(fields, "x-pantheon-ignored", s.data, s.len);
    pn_str_fini(&s);
}

PN_INTERNAL void serve_ask_close(serve_ask *a)
{
    pn_mem *mem = &a->server->mem;
    struct serve_request *q = a->req;
    pn_str *texts[] = {&a->body, &a->session, &a->report, &a->served, &a->box, &a->out};
    begin_undo(a);
    if (q) {
        if (q->open)
            parse_fini(a);
        pn_str_fini(&q->tools);
        pn_str_fini(&q->echoed);
        pn_mem_free(mem, PN_ACCT_CONN, q, sizeof *q);
    }
    a->req = NULL;
    for (size_t i = 0; i < PN_COUNT_OF(texts); i++)
        pn_str_fini(texts[i]);
}
