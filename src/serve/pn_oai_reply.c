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

#include "base/pn_hash.h"

PN_INTERNAL void pn_oai_reply_init(pn_oai_reply *r, pn_mem *mem, const pn_oai_reply_params *p)
{
    pn_str *all[] = {&r->content, &r->reasoning, &r->calls, &r->args, &r->entries, &r->out};
    memset(r, 0, sizeof *r);
    r->mem = mem;
    r->p = *p;
    for (size_t i = 0; i < PN_COUNT_OF(all); i++)
        pn_str_init(all[i], mem, PN_ACCT_CONN);
}

PN_INTERNAL void pn_oai_reply_fini(pn_oai_reply *r)
{
    pn_str *all[] = {&r->content, &r->reasoning, &r->calls, &r->args, &r->entries, &r->out};
    for (size_t i = 0; i < PN_COUNT_OF(all); i++)
        pn_str_fini(all[i]);
}

static bool reply_ok(const pn_oai_reply *r)
{
    return !r->stopped && !r->content.failed && !r->reasoning.failed && !r->calls.failed && !r->args.failed && !r->entries.failed && !r->out.failed;
}

static bool reply_send(pn_oai_reply *r)
{
    if (!r->out.failed && !r->stopped)
        r->stopped = r->p.emit(r->p.user, pn_str_cstr(&r->out), r->out.len) != 0;
    return reply_ok(r);
}

/* ------------------------------------------------------------------------------------------
 * Pieces
 * ------------------------------------------------------------------------------------------ */

/* {"id":...,"object":...,"created":...,"model":...,"system_fingerprint":... */
static void reply_head(pn_oai_reply *r, const char *object)
{
    pn_str *s = &r->out;
    pn_str_clear(s);
    pn_str_addc(s, '{');
    pn_json_key(s, "id");
    pn_json_write_strz(s, r->p.id);
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

/* A chunk up to its delta's content; reply_close has the rest. */
static void reply_open(pn_oai_reply *r)
{
    reply_head(r, "chat.completion.chunk");
    pn_str_addz(&r->out, "{\"index\":");
    pn_json_write_u64(&r->out, r->p.choice);
    pn_str_addz(&r->out, ",\"delta\":{");
}

/* The entries that wait, as the value of "logprobs". */
static void reply_logprobs(pn_oai_reply *r)
{
    pn_json_key(&r->out, "logprobs");
    if (!r->p.logprobs || (!r->entries.len && r->p.stream)) {
        pn_str_addz(&r->out, "null");
        return;
    }
    pn_str_addz(&r->out, "{\"content\":[");
    pn_str_add(&r->out, pn_str_cstr(&r->entries), r->entries.len);
    pn_str_addz(&r->out, "],\"refusal\":null}");
    pn_str_clear(&r->entries);
}

static bool reply_close(pn_oai_reply *r, bool content, const char *finish)
{
    pn_str_addc(&r->out, '}');
    if (content || finish)
        reply_logprobs(r);
    else
        pn_str_addz(&r->out, ",\"logprobs\":null");
    pn_json_key(&r->out, "finish_reason");
    pn_json_write_strz(&r->out, finish);
    pn_str_addz(&r->out, "}]");
    if (r->p.include_usage)
        pn_str_addz(&r->out, ",\"usage\":null");
    pn_str_addc(&r->out, '}');
    return reply_send(r);
}

static bool reply_delta(pn_oai_reply *r, const char *key, const char *text, size_t len)
{
    reply_open(r);
    pn_json_key(&r->out, key);
    pn_json_write_str(&r->out, text, len);
    return reply_close(r, strcmp(key, "content") == 0, NULL);
}

static void reply_usage(pn_str *s, const pn_oai_usage *u)
{
    pn_json_key(s, "usage");
    pn_str_addf(s, "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,\"prompt_tokens_details\":{\"cached_tokens\":%u},"
                "\"completion_tokens_details\":{\"reasoning_tokens\":%u}}", (unsigned)u->prompt, (unsigned)u->completion,
                (unsigned)(u->prompt + u->completion), (unsigned)u->cached, (unsigned)u->reasoning);
}

static void reply_report(pn_oai_reply *r)
{
    pn_str_addz(&r->out, ",\"pantheon\":{\"ignored_params\":[");
    pn_str_addz(&r->out, r->p.ignored);
    pn_str_addz(&r->out, "]}");
}

/* ------------------------------------------------------------------------------------------
 * Log-probabilities
 * ------------------------------------------------------------------------------------------ */

/* Text of the token (what is no UTF-8 replaced), its number, its exact bytes. */
static void reply_entry(pn_str *s, const pn_token_logprob *t)
{
    pn_str_addc(s, '{');
    pn_json_key(s, "token");
    pn_json_write_str(s, t->bytes, t->len);
    pn_json_key(s, "logprob");
    pn_json_write_f64(s, isfinite(t->logprob) ? (double)t->logprob : -9999.0);
    pn_json_key(s, "bytes");
    pn_str_addc(s, '[');
    for (size_t i = 0; i < t->len; i++)
        pn_str_addf(s, "%s%u", i ? "," : "", (unsigned)(unsigned char)t->bytes[i]);
    pn_str_addc(s, ']');
}

PN_INTERNAL bool pn_oai_reply_logprob(pn_oai_reply *r, const pn_token_logprob *t)
{
    pn_str *s = &r->entries;
    if (!r->p.logprobs || t->part != PN_PART_CONTENT)
        return reply_ok(r);
    if (s->len)
        pn_str_addc(s, ',');
    reply_entry(s, t);
    pn_json_key(s, "top_logprobs");
    pn_str_addc(s, '[');
    for (uint32_t i = 0; i < t->n_top; i++) {
        if (i)
            pn_str_addc(s, ',');
        reply_entry(s, &t->top[i]);
        pn_str_addc(s, '}');
    }
    pn_str_addz(s, "]}");
    return reply_ok(r);
}

/* ------------------------------------------------------------------------------------------
 * Events
 * ------------------------------------------------------------------------------------------ */

/* The model's own id, or call_ and 24 digits that no two calls of two answers share. */
static void reply_call_id(const pn_oai_reply *r, const pn_output_event *e, pn_str *s)
{
    char id[40];
    if (e->id_len) {
        pn_json_write_str(s, e->id, e->id_len);
        return;
    }
    uint64_t a = pn_hash(r->p.id, strlen(r->p.id), r->p.seed + r->p.choice), b = pn_hash(&a, sizeof a, e->call + 1);
    snprintf(id, sizeof id, "call_%012llx%012llx", (unsigned long long)(a & 0xffffffffffffu), (unsigned long long)(b & 0xffffffffffffu));
    pn_json_write_strz(s, id);
}

static bool reply_call_begin(pn_oai_reply *r, const pn_output_event *e)
{
    pn_str *s = r->p.stream ? &r->out : &r->calls;
    if (r->p.stream) {
        reply_open(r);
        pn_str_addf(s, "\"tool_calls\":[{\"index\":%u,\"id\":", (unsigned)r->n_calls);
    } else {
        pn_str_addz(s, r->n_calls ? ",{\"id\":" : "{\"id\":");
    }
    reply_call_id(r, e, s);
    pn_str_addz(s, ",\"type\":\"function\",\"function\":{\"name\":");
    pn_json_write_str(s, e->text, e->len);
    r->n_calls++;
    if (!r->p.stream) {
        pn_str_clear(&r->args);
        return reply_ok(r);
    }
    pn_str_addz(s, ",\"arguments\":\"\"}}]");
    return reply_close(r, false, NULL);
}

static bool reply_arguments(pn_oai_reply *r, const pn_output_event *e)
{
    if (!r->p.stream) {
        pn_str_add(&r->args, e->text, e->len);
        return reply_ok(r);
    }
    reply_open(r);
    pn_str_addf(&r->out, "\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", (unsigned)(r->n_calls - 1));
    pn_json_write_str(&r->out, e->text, e->len);
    pn_str_addz(&r->out, "}}]");
    return reply_close(r, false, NULL);
}

/* A call's arguments are a string in this API. */
static bool reply_call_end(pn_oai_reply *r)
{
    if (r->p.stream)
        return reply_ok(r);
    pn_str_addz(&r->calls, ",\"arguments\":");
    pn_json_write_str(&r->calls, pn_str_cstr(&r->args), r->args.len);
    pn_str_addz(&r->calls, "}}");
    return reply_ok(r);
}

static bool reply_text(pn_oai_reply *r, const pn_output_event *e, pn_str *gathered, const char *key)
{
    if (!e->len)
        return reply_ok(r);
    if (r->p.stream)
        return reply_delta(r, key, e->text, e->len);
    pn_str_add(gathered, e->text, e->len);
    return reply_ok(r);
}

PN_INTERNAL bool pn_oai_reply_event(pn_oai_reply *r, const pn_output_event *e)
{
    switch (e->kind) {
    case PN_OUTPUT_REASONING: return reply_text(r, e, &r->reasoning, "reasoning_content");
    case PN_OUTPUT_CONTENT: return reply_text(r, e, &r->content, "content");
    case PN_OUTPUT_CALL_BEGIN: return reply_call_begin(r, e);
    case PN_OUTPUT_ARGUMENTS: return reply_arguments(r, e);
    default: return reply_call_end(r);
    }
}

PN_INTERNAL bool pn_oai_reply_begin(pn_oai_reply *r)
{
    if (!r->p.stream)
        return reply_ok(r);
    reply_open(r);
    pn_str_addz(&r->out, "\"role\":\"assistant\",\"content\":\"\"");
    return reply_close(r, false, NULL);
}

/* ------------------------------------------------------------------------------------------
 * The end
 * ------------------------------------------------------------------------------------------ */

static const char *reply_finish(const pn_oai_reply *r, pn_finish f)
{
    if (f == PN_FINISH_LENGTH || f == PN_FINISH_CONTEXT)
        return "length";
    return r->n_calls ? "tool_calls" : "stop";
}

static bool reply_body(pn_oai_reply *r, pn_finish finish, const pn_oai_usage *usage)
{
    pn_str *s = &r->out;
    reply_head(r, "chat.completion");
    pn_str_addz(s, "{\"index\":");
    pn_json_write_u64(s, r->p.choice);
    pn_str_addz(s, ",\"message\":{\"role\":\"assistant\",\"content\":");
    if (r->content.len || !r->n_calls)
        pn_json_write_str(s, pn_str_cstr(&r->content), r->content.len);
    else
        pn_str_addz(s, "null");
    pn_str_addz(s, ",\"refusal\":null");
    if (r->reasoning.len) {
        pn_json_key(s, "reasoning_content");
        pn_json_write_str(s, r->reasoning.data, r->reasoning.len);
    }
    if (r->n_calls) {
        pn_json_key(s, "tool_calls");
        pn_str_addc(s, '[');
        pn_str_add(s, pn_str_cstr(&r->calls), r->calls.len);
        pn_str_addc(s, ']');
    }
    pn_str_addc(s, '}');
    reply_logprobs(r);
    pn_json_key(s, "finish_reason");
    pn_json_write_strz(s, reply_finish(r, finish));
    pn_str_addz(s, "}]");
    reply_usage(s, usage);
    reply_report(r);
    pn_str_addc(s, '}');
    return reply_send(r);
}

PN_INTERNAL bool pn_oai_reply_end(pn_oai_reply *r, pn_finish finish, const pn_oai_usage *usage)
{
    if (!reply_ok(r))
        return false;
    if (!r->p.stream)
        return reply_body(r, finish, usage);
    reply_open(r);
    if (!reply_close(r, false, reply_finish(r, finish)))
        return false;
    if (!r->p.include_usage)
        return true;
    reply_head(r, "chat.completion.chunk");
    pn_str_addc(&r->out, ']');
    reply_usage(&r->out, usage);
    reply_report(r);
    pn_str_addc(&r->out, '}');
    return reply_send(r);
}
