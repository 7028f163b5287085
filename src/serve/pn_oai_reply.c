/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_oai_reply.c - chunks and bodies of chat completions.
 *
 * What clients rely on (and servers have got wrong): `choices` is always an array and every choice has a
 * delta; the role's chunk has content "", not null; no name, id or type is ever repeated or empty; refusal is
 * there and null; no number is NaN or infinite.
 */
#include "serve/pn_oai_reply.h"

#include <math.h>
#include <stdio.h>

#include "base/pn_err.h"

typedef struct chatr_choice {
    pn_str content, reasoning;  /* gathered when not streaming */
    pn_str calls;               /* the elements of tool_calls, so far */
    pn_str args;                /* of the call that is open */
    pn_str entries;             /* of logprobs.content that are not out yet, commas between */
    uint32_t n_calls;
    pn_finish why;
} chatr_choice;

typedef struct chatr_chat {
    pn_reply base;
    bool include_usage, logprobs;
    chatr_choice *choices;      /* owned, [base.p.n_choices] */
    uint32_t n_ended;
} chatr_chat;

/* ------------------------------------------------------------------------------------------
 * Pieces of both APIs
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_oai_reply_head(pn_reply *r, const char *prefix, const char *object)
{
    pn_str *s = &r->out;
    pn_str_addf(s, "{\"id\":\"%s%s\"", prefix, r->p.id);
    pn_json_key(s, "object");
    pn_json_write_strz(s, object);
    pn_json_key(s, "created");
    pn_json_write_i64(s, r->p.created);
    pn_json_key(s, "model");
    pn_json_write_strz(s, r->p.model);
    pn_json_key(s, "system_fingerprint");
    pn_json_write_strz(s, r->p.fingerprint);
    pn_json_key(s, "choices");
    pn_str_addc(s, '[');
}

PN_INTERNAL void pn_oai_reply_usage(pn_str *s, const pn_oai_usage *u)
{
    pn_json_key(s, "usage");
    pn_str_addf(s, "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,\"prompt_tokens_details\":{\"cached_tokens\":%u},"
                "\"completion_tokens_details\":{\"reasoning_tokens\":%u}}", (unsigned)u->prompt, (unsigned)u->completion,
                (unsigned)(u->prompt + u->completion), (unsigned)u->cached, (unsigned)u->reasoning);
}

PN_INTERNAL bool pn_oai_reply_fail(pn_reply *r, const pn_oai_error *e)
{
    pn_str_clear(&r->out);
    pn_oai_error_json(e, &r->out);
    return pn_reply_send(r, NULL);
}

PN_INTERNAL void pn_oai_reply_log(pn_str *s, float v) { pn_json_write_f64(s, isfinite(v) ? (double)v : -9999.0); }

/* ------------------------------------------------------------------------------------------
 * Chunks
 * ------------------------------------------------------------------------------------------ */

/* A chunk up to its delta's content; chatr_close has the rest. */
static pn_str *chatr_open(chatr_chat *r, uint32_t choice)
{
    pn_oai_reply_head(&r->base, "chatcmpl-", "chat.completion.chunk");
    pn_str_addf(&r->base.out, "{\"index\":%u,\"delta\":{", (unsigned)choice);
    return &r->base.out;
}

/* The entries that wait, as the value of "logprobs". */
static void chatr_logprobs(chatr_chat *r, chatr_choice *c)
{
    pn_str *s = &r->base.out;
    pn_json_key(s, "logprobs");
    if (!r->logprobs || (!c->entries.len && r->base.p.stream)) {
        pn_str_addz(s, "null");
        return;
    }
    pn_str_addz(s, "{\"content\":[");
    pn_str_add(s, pn_str_cstr(&c->entries), c->entries.len);
    pn_str_addz(s, "],\"refusal\":null}");
    pn_str_clear(&c->entries);
}

/* entries_of: the choice whose waiting entries go with this chunk, or NULL. */
static bool chatr_close(chatr_chat *r, chatr_choice *entries_of, const char *finish)
{
    pn_str *s = &r->base.out;
    pn_str_addc(s, '}');
    if (entries_of)
        chatr_logprobs(r, entries_of);
    else
        pn_str_addz(s, ",\"logprobs\":null");
    pn_json_key(s, "finish_reason");
    pn_json_write_strz(s, finish);
    pn_str_addz(s, "}]");
    if (r->include_usage)
        pn_str_addz(s, ",\"usage\":null");
    else if (finish && r->n_ended == r->base.p.n_choices)
        pn_reply_report(&r->base);
    pn_str_addc(s, '}');
    return pn_reply_send(&r->base, NULL);
}

static bool chatr_begin(pn_reply *base, const pn_oai_usage *so_far)
{
    chatr_chat *r = (chatr_chat *)base;
    (void)so_far;
    for (uint32_t i = 0; base->p.stream && !base->dead && i < base->p.n_choices; i++) {
        pn_str_addz(chatr_open(r, i), "\"role\":\"assistant\",\"content\":\"\"");
        chatr_close(r, NULL, NULL);
    }
    return !base->dead;
}

/* ------------------------------------------------------------------------------------------
 * Log-probabilities
 * ------------------------------------------------------------------------------------------ */

/* Not closed: text of the token (what is no UTF-8 replaced), its number, its exact bytes. */
static void chatr_entry(pn_str *s, const pn_token_logprob *t)
{
    pn_str_addc(s, '{');
    pn_json_key(s, "token");
    pn_json_write_str(s, t->bytes, t->len);
    pn_json_key(s, "logprob");
    pn_oai_reply_log(s, t->logprob);
    pn_json_key(s, "bytes");
    pn_str_addc(s, '[');
    for (size_t i = 0; i < t->len; i++)
        pn_str_addf(s, "%s%u", i ? "," : "", (unsigned)(unsigned char)t->bytes[i]);
    pn_str_addc(s, ']');
}

PN_INTERNAL void pn_oai_reply_token(pn_str *s, const pn_token_logprob *t)
{
    chatr_entry(s, t);
    pn_json_key(s, "top_logprobs");
    pn_str_addc(s, '[');
    for (uint32_t i = 0; i < t->n_top; i++) {
        if (i)
            pn_str_addc(s, ',');
        chatr_entry(s, &t->top[i]);
        pn_str_addc(s, '}');
    }
    pn_str_addz(s, "]}");
}

static bool chatr_logprob(pn_reply *base, uint32_t choice, const pn_token_logprob *t)
{
    chatr_chat *r = (chatr_chat *)base;
    pn_str *s = &r->choices[choice].entries;
    if (!r->logprobs || t->part != PN_PART_CONTENT)
        return !base->dead;
    if (s->len)
        pn_str_addc(s, ',');
    pn_oai_reply_token(s, t);
    return pn_reply_kept(base, s);
}

/* ------------------------------------------------------------------------------------------
 * Events
 * ------------------------------------------------------------------------------------------ */

/* The model's own id, or call_ and 24 digits that no two calls of two answers share. */
static void chatr_call_id(const chatr_chat *r, uint32_t choice, const pn_output_event *e, pn_str *s)
{
    char id[40];
    pn_reply_id(&r->base, "call_", choice, e->call, id);
    if (e->id_len)
        pn_json_write_str(s, e->id, e->id_len);
    else
        pn_json_write_strz(s, id);
}

static bool chatr_call_begin(chatr_chat *r, uint32_t choice, const pn_output_event *e)
{
    chatr_choice *c = &r->choices[choice];
    bool stream = r->base.p.stream;
    pn_str *s = stream ? chatr_open(r, choice) : &c->calls;
    if (stream)
        pn_str_addf(s, "\"tool_calls\":[{\"index\":%u,\"id\":", (unsigned)c->n_calls);
    else
        pn_str_addz(s, c->n_calls ? ",{\"id\":" : "{\"id\":");
    chatr_call_id(r, choice, e, s);
    pn_str_addz(s, ",\"type\":\"function\",\"function\":{\"name\":");
    pn_json_write_str(s, e->text, e->len);
    c->n_calls++;
    pn_str_clear(&c->args);
    if (!stream)
        return pn_reply_kept(&r->base, s);
    pn_str_addz(s, ",\"arguments\":\"\"}}]");
    return chatr_close(r, NULL, NULL);
}

static bool chatr_arguments(chatr_chat *r, uint32_t choice, const pn_output_event *e)
{
    chatr_choice *c = &r->choices[choice];
    if (!r->base.p.stream) {
        pn_str_add(&c->args, e->text, e->len);
        return pn_reply_kept(&r->base, &c->args);
    }
    pn_str *s = chatr_open(r, choice);
    pn_str_addf(s, "\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", (unsigned)(c->n_calls - 1));
    pn_json_write_str(s, e->text, e->len);
    pn_str_addz(s, "}}]");
    return chatr_close(r, NULL, NULL);
}

/* A call's arguments are a string in this API. */
static bool chatr_call_end(chatr_chat *r, chatr_choice *c)
{
    if (r->base.p.stream)
        return !r->base.dead;
    pn_str_addz(&c->calls, ",\"arguments\":");
    pn_json_write_str(&c->calls, pn_str_cstr(&c->args), c->args.len);
    pn_str_addz(&c->calls, "}}");
    return pn_reply_kept(&r->base, &c->calls);
}

static bool chatr_text(chatr_chat *r, uint32_t choice, const pn_output_event *e, bool content)
{
    chatr_choice *c = &r->choices[choice];
    pn_str *gathered = content ? &c->content : &c->reasoning;
    if (!e->len)
        return !r->base.dead;
    if (!r->base.p.stream) {
        pn_str_add(gathered, e->text, e->len);
        return pn_reply_kept(&r->base, gathered);
    }
    pn_str *s = chatr_open(r, choice);
    pn_json_key(s, content ? "content" : "reasoning_content");
    pn_json_write_str(s, e->text, e->len);
    return chatr_close(r, content ? c : NULL, NULL);
}

static bool chatr_event(pn_reply *base, uint32_t choice, const pn_output_event *e)
{
    chatr_chat *r = (chatr_chat *)base;
    switch (e->kind) {
    case PN_OUTPUT_REASONING: return chatr_text(r, choice, e, false);
    case PN_OUTPUT_CONTENT: return chatr_text(r, choice, e, true);
    case PN_OUTPUT_CALL_BEGIN: return chatr_call_begin(r, choice, e);
    case PN_OUTPUT_ARGUMENTS: return chatr_arguments(r, choice, e);
    default: return chatr_call_end(r, &r->choices[choice]);
    }
}

/* ------------------------------------------------------------------------------------------
 * The end
 * ------------------------------------------------------------------------------------------ */

static const char *chatr_finish(const chatr_choice *c)
{
    return pn_reply_cut_short(c->why) ? "length" : c->n_calls ? "tool_calls" : "stop";
}

static bool chatr_choice_end(pn_reply *base, uint32_t choice, const pn_reply_finish *f)
{
    chatr_chat *r = (chatr_chat *)base;
    chatr_choice *c = &r->choices[choice];
    c->why = f->why;
    r->n_ended++;
    if (!base->p.stream)
        return !base->dead;
    chatr_open(r, choice);
    return chatr_close(r, c, chatr_finish(c));
}

static void chatr_message(pn_str *s, const chatr_choice *c)
{
    pn_str_addz(s, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (c->content.len || !c->n_calls)
        pn_json_write_str(s, pn_str_cstr(&c->content), c->content.len);
    else
        pn_str_addz(s, "null");
    pn_str_addz(s, ",\"refusal\":null");
    if (c->reasoning.len) {
        pn_json_key(s, "reasoning_content");
        pn_json_write_str(s, c->reasoning.data, c->reasoning.len);
    }
    if (c->n_calls) {
        pn_json_key(s, "tool_calls");
        pn_str_addc(s, '[');
        pn_str_add(s, pn_str_cstr(&c->calls), c->calls.len);
        pn_str_addc(s, ']');
    }
    pn_str_addc(s, '}');
}

static bool chatr_body(chatr_chat *r, const pn_oai_usage *usage)
{
    pn_str *s = &r->base.out;
    pn_oai_reply_head(&r->base, "chatcmpl-", "chat.completion");
    for (uint32_t i = 0; i < r->base.p.n_choices; i++) {
        pn_str_addf(s, "%s{\"index\":%u,", i ? "," : "", (unsigned)i);
        chatr_message(s, &r->choices[i]);
        chatr_logprobs(r, &r->choices[i]);
        pn_json_key(s, "finish_reason");
        pn_json_write_strz(s, chatr_finish(&r->choices[i]));
        pn_str_addc(s, '}');
    }
    pn_str_addc(s, ']');
    pn_oai_reply_usage(s, usage);
    pn_reply_report(&r->base);
    pn_str_addc(s, '}');
    return pn_reply_send(&r->base, NULL);
}

static bool chatr_end(pn_reply *base, const pn_oai_usage *usage)
{
    chatr_chat *r = (chatr_chat *)base;
    if (base->dead || !base->p.stream)
        return !base->dead && chatr_body(r, usage);
    if (!r->include_usage)
        return true;
    pn_oai_reply_head(base, "chatcmpl-", "chat.completion.chunk");
    pn_str_addc(&base->out, ']');
    pn_oai_reply_usage(&base->out, usage);
    pn_reply_report(base);
    pn_str_addc(&base->out, '}');
    return pn_reply_send(base, NULL);
}

/* ------------------------------------------------------------------------------------------
 * Making one
 * ------------------------------------------------------------------------------------------ */

static void chatr_each_text(chatr_choice *c, pn_mem *mem)       /* mem NULL: the end of them */
{
    pn_str *all[] = {&c->content, &c->reasoning, &c->calls, &c->args, &c->entries};
    for (size_t i = 0; i < PN_COUNT_OF(all); i++)
        if (mem)
            pn_str_init(all[i], mem, PN_ACCT_CONN);
        else
            pn_str_fini(all[i]);
}

static void chatr_free(pn_reply *base)
{
    chatr_chat *r = (chatr_chat *)base;
    for (uint32_t i = 0; r->choices && i < base->p.n_choices; i++)
        chatr_each_text(&r->choices[i], NULL);
    pn_mem_free(base->p.mem, PN_ACCT_CONN, r->choices, base->p.n_choices * sizeof *r->choices);
    pn_reply_dispose(base, sizeof *r);
}

PN_INTERNAL pn_status pn_oai_chat_reply_new(pn_reply **out, const pn_reply_params *p, bool include_usage, bool logprobs, pn_err *err)
{
    static const pn_reply_ops ops = {chatr_begin, chatr_logprob, chatr_event, chatr_choice_end, chatr_end, pn_oai_reply_fail, chatr_free, true};
    chatr_chat *r = (chatr_chat *)pn_reply_alloc(sizeof *r, &ops, p, err);
    if (!r)
        return PN_E_NOMEM;
    r->include_usage = include_usage;
    r->logprobs = logprobs;
    r->choices = pn_mem_calloc(p->mem, PN_ACCT_CONN, p->n_choices, sizeof *r->choices);
    if (!r->choices) {
        chatr_free(&r->base);
        return pn_fail_nomem(err, "the choices of an answer", p->n_choices * sizeof *r->choices);
    }
    for (uint32_t i = 0; i < p->n_choices; i++)
        chatr_each_text(&r->choices[i], p->mem);
    *out = &r->base;
    return PN_OK;
}
