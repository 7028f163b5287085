/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_responses_reply.c - answers of the Responses API, whole or as events.
 *
 * An answer is a row of items: reasoning, messages, calls.  One is open at a time; what belongs to another closes
 * it.  The response object comes with the first events and with the last, which has all items once more; so
 * items are gathered in any case.
 */
#include "serve/pn_responses.h"

#include <inttypes.h>
#include <stdio.h>

#include "serve/pn_oai_reply.h"

typedef enum respr_kind { RESPR_NONE, RESPR_REASONING, RESPR_MESSAGE, RESPR_CALL } respr_kind;

typedef struct respr_reply {
    pn_reply base;
    const pn_responses *q;
    uint64_t sequence;
    uint32_t n_items;
    pn_str items;               /* elements of output, but for the open one */
    respr_kind open;
    char id[40];                /* of the open item, and below what else it has */
    pn_str text;                /* a call's: its arguments */
    pn_str name, call_id;       /* JSON strings */
    pn_str logprobs, fresh;     /* elements; fresh: not in a delta yet */
    pn_finish why;
} respr_reply;

/* ------------------------------------------------------------------------------------------
 * Events
 * ------------------------------------------------------------------------------------------ */

static pn_str *respr_event_open(respr_reply *r, const char *type)
{
    pn_str_addf(&r->base.out, "{\"type\":\"%s\",\"sequence_number\":%" PRIu64, type, r->sequence++);
    return &r->base.out;
}

static bool respr_event_send(respr_reply *r, const char *type)
{
    pn_str_addc(&r->base.out, '}');
    return pn_reply_send(&r->base, type);
}

/* One about the open item's content. */
static pn_str *respr_content_event(respr_reply *r, const char *type)
{
    pn_str *s = respr_event_open(r, type);
    pn_str_addf(s, ",\"item_id\":\"%s\",\"output_index\":%u", r->id, (unsigned)r->n_items);
    if (r->open != RESPR_CALL)
        pn_str_addz(s, ",\"content_index\":0");
    return s;
}

static void respr_member(pn_str *s, const char *key, const pn_str *text)
{
    pn_json_key(s, key);
    pn_json_write_str(s, pn_str_cstr(text), text->len);
}

static void respr_list(pn_str *s, const char *key, const pn_str *elements)
{
    pn_json_key(s, key);
    pn_str_addc(s, '[');
    pn_str_add(s, pn_str_cstr(elements), elements->len);
    pn_str_addc(s, ']');
}

/* ------------------------------------------------------------------------------------------
 * Items
 * ------------------------------------------------------------------------------------------ */

static void respr_part(respr_reply *r, pn_str *s)
{
    pn_str_addf(s, "{\"type\":\"%s\"", r->open == RESPR_MESSAGE ? "output_text" : "reasoning_text");
    respr_member(s, "text", &r->text);
    if (r->open == RESPR_MESSAGE) {
        pn_str_addz(s, ",\"annotations\":[]");
        respr_list(s, "logprobs", &r->logprobs);
    }
    pn_str_addc(s, '}');
}

/* The open item as it is now; with its content when it is done. */
static void respr_item(respr_reply *r, pn_str *s, const char *status, bool done)
{
    static const char *const types[] = {"", "reasoning", "message", "function_call"};
    pn_str_addf(s, "{\"id\":\"%s\",\"type\":\"%s\",\"status\":\"%s\"", r->id, types[r->open], status);
    if (r->open == RESPR_CALL) {
        pn_str_addf(s, ",\"call_id\":%s,\"name\":%s", pn_str_cstr(&r->call_id), pn_str_cstr(&r->name));
        respr_member(s, "arguments", &r->text);
    } else {
        pn_str_addz(s, r->open == RESPR_MESSAGE ? ",\"role\":\"assistant\",\"content\":[" : ",\"summary\":[],\"content\":[");
        if (done)
            respr_part(r, s);
        pn_str_addc(s, ']');
    }
    pn_str_addc(s, '}');
}

static bool respr_item_event(respr_reply *r, const char *type, const char *status, bool done)
{
    pn_str *s = respr_event_open(r, type);
    pn_str_addf(s, ",\"output_index\":%u", (unsigned)r->n_items);
    pn_json_key(s, "item");
    respr_item(r, s, status, done);
    return respr_event_send(r, type);
}

static bool respr_part_event(respr_reply *r, const char *type)
{
    pn_str *s = respr_content_event(r, type);
    pn_json_key(s, "part");
    respr_part(r, s);
    return respr_event_send(r, type);
}

static const char *respr_delta_type(respr_kind k)
{
    return k == RESPR_MESSAGE ? "response.output_text.delta" : k == RESPR_CALL ? "response.function_call_arguments.delta" : "response.reasoning_text.delta";
}

static const char *respr_done_type(respr_kind k)
{
    return k == RESPR_MESSAGE ? "response.output_text.done" : k == RESPR_CALL ? "response.function_call_arguments.done" : "response.reasoning_text.done";
}

/* The events that end the open item. */
static bool respr_close_events(respr_reply *r, const char *status)
{
    const char *type = respr_done_type(r->open);
    pn_str *s = respr_content_event(r, type);
    respr_member(s, r->open == RESPR_CALL ? "arguments" : "text", &r->text);
    if (r->open == RESPR_CALL)
        pn_str_addf(s, ",\"name\":%s", pn_str_cstr(&r->name));
    if (r->open == RESPR_MESSAGE)
        respr_list(s, "logprobs", &r->logprobs);
    if (!respr_event_send(r, type))
        return false;
    if (r->open == RESPR_MESSAGE && !respr_part_event(r, "response.content_part.done"))
        return false;
    return respr_item_event(r, "response.output_item.done", status, true);
}

static bool respr_close(respr_reply *r, const char *status)
{
    if (r->open == RESPR_NONE || r->base.dead)
        return !r->base.dead;
    if (r->base.p.stream && !respr_close_events(r, status))
        return false;
    pn_json_item(&r->items);
    respr_item(r, &r->items, status, true);
    r->open = RESPR_NONE;
    r->n_items++;
    pn_str_clear(&r->text);
    pn_str_clear(&r->logprobs);
    pn_str_clear(&r->fresh);
    return pn_reply_kept(&r->base, &r->items);
}

static bool respr_open(respr_reply *r, respr_kind kind)
{
    static const char *const prefixes[] = {"", "rs_", "msg_", "fc_"};
    if (!respr_close(r, "completed"))
        return false;
    r->open = kind;
    pn_reply_id(&r->base, prefixes[kind], (uint32_t)kind, r->n_items, r->id);
    if (!r->base.p.stream)
        return true;
    return respr_item_event(r, "response.output_item.added", "in_progress", false) &&
           (kind != RESPR_MESSAGE || respr_part_event(r, "response.content_part.added"));
}

/* ------------------------------------------------------------------------------------------
 * What is told
 * ------------------------------------------------------------------------------------------ */

static bool respr_add(respr_reply *r, respr_kind kind, const pn_output_event *e)
{
    if (!e->len)
        return !r->base.dead;
    if (r->open != kind && !respr_open(r, kind))
        return false;
    pn_str_add(&r->text, e->text, e->len);
    if (!pn_reply_kept(&r->base, &r->text) || !r->base.p.stream)
        return !r->base.dead;
    pn_str *s = respr_content_event(r, respr_delta_type(kind));
    pn_json_key(s, "delta");
    pn_json_write_str(s, e->text, e->len);
    if (kind == RESPR_MESSAGE) {
        respr_list(s, "logprobs", &r->fresh);
        pn_str_clear(&r->fresh);
    }
    return respr_event_send(r, respr_delta_type(kind));
}

static bool respr_call(respr_reply *r, const pn_output_event *e)
{
    char id[40];
    if (!respr_close(r, "completed"))
        return false;
    pn_reply_id(&r->base, "call_", 0, e->call, id);
    pn_str_clear(&r->name);
    pn_str_clear(&r->call_id);
    pn_json_write_str(&r->name, e->text, e->len);
    if (e->id_len)
        pn_json_write_str(&r->call_id, e->id, e->id_len);
    else
        pn_json_write_strz(&r->call_id, id);
    return pn_reply_kept(&r->base, &r->name) && pn_reply_kept(&r->base, &r->call_id) && respr_open(r, RESPR_CALL);
}

static bool respr_event(pn_reply *base, uint32_t choice, const pn_output_event *e)
{
    respr_reply *r = (respr_reply *)base;
    (void)choice;
    switch (e->kind) {
    case PN_OUTPUT_REASONING: return respr_add(r, RESPR_REASONING, e);
    case PN_OUTPUT_CONTENT: return respr_add(r, RESPR_MESSAGE, e);
    case PN_OUTPUT_CALL_BEGIN: return respr_call(r, e);
    case PN_OUTPUT_ARGUMENTS: return respr_add(r, RESPR_CALL, e);
    default: return respr_close(r, e->complete ? "completed" : "incomplete");
    }
}

static bool respr_logprob(pn_reply *base, uint32_t choice, const pn_token_logprob *t)
{
    respr_reply *r = (respr_reply *)base;
    pn_str *const both[] = {&r->logprobs, &r->fresh};
    size_t n = base->p.stream ? 2 : 1;
    (void)choice;
    if (!r->q->chat.common.logprobs || t->part != PN_PART_CONTENT)
        return !base->dead;
    if (r->open != RESPR_MESSAGE && !respr_open(r, RESPR_MESSAGE))
        return false;
    for (size_t i = 0; i < n; i++) {
        pn_json_item(both[i]);
        pn_oai_reply_token(both[i], t);
        pn_reply_kept(base, both[i]);
    }
    return !base->dead;
}

/* ------------------------------------------------------------------------------------------
 * The response object
 * ------------------------------------------------------------------------------------------ */

/* What an answer repeats of the request, and what it says where the request said nothing. */
static const struct { const char *key, *absent; } respr_echo[] = {
    {"instructions", "null"}, {"max_output_tokens", "null"}, {"max_tool_calls", "null"}, {"parallel_tool_calls", "true"},
    {"reasoning", "{\"effort\":null,\"summary\":null}"}, {"temperature", "1"}, {"text", "{\"format\":{\"type\":\"text\"}}"},
    {"tool_choice", "\"auto\""}, {"tools", "[]"}, {"top_p", "1"}, {"truncation", "\"disabled\""}, {"metadata", "{}"},
};

static void respr_usage(pn_str *s, const pn_oai_usage *u)
{
    pn_json_key(s, "usage");
    if (!u) {
        pn_str_addz(s, "null");
        return;
    }
    pn_str_addf(s, "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u},\"output_tokens\":%u,"
                "\"output_tokens_details\":{\"reasoning_tokens\":%u},\"total_tokens\":%u}", (unsigned)u->prompt, (unsigned)u->cached,
                (unsigned)u->completion, (unsigned)u->reasoning, (unsigned)(u->prompt + u->completion));
}

static void respr_error(pn_str *s, const pn_oai_error *e)
{
    pn_json_key(s, "error");
    if (!e) {
        pn_str_addz(s, "null");
        return;
    }
    pn_str_addz(s, "{\"code\":");
    pn_json_write_strz(s, e->code ? e->code : "server_error");
    pn_json_key(s, "message");
    pn_json_write_strz(s, e->message);
    pn_str_addc(s, '}');
}

static void respr_object(respr_reply *r, const char *status, const pn_oai_usage *usage, const pn_oai_error *e)
{
    const pn_json_doc *d = &r->q->body;
    pn_str *s = &r->base.out;
    pn_str_addf(s, "{\"id\":\"resp_%s\",\"object\":\"response\",\"created_at\":%" PRId64 ",\"status\":\"%s\",\"background\":false", r->base.p.id,
                r->base.p.created, status);
    respr_error(s, e);
    pn_str_addz(s, strcmp(status, "incomplete") == 0 ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}" : ",\"incomplete_details\":null");
    pn_json_key(s, "model");
    pn_json_write_strz(s, r->base.p.model);
    respr_list(s, "output", &r->items);
    for (size_t i = 0; i < PN_COUNT_OF(respr_echo); i++) {
        uint32_t node = pn_json_get(d, PN_JSON_ROOT, respr_echo[i].key);
        pn_json_key(s, respr_echo[i].key);
        if (pn_json_type_of(d, node) > PN_JSON_NULL)
            pn_json_write_node(s, d, node);
        else
            pn_str_addz(s, respr_echo[i].absent);
    }
    pn_str_addz(s, ",\"previous_response_id\":null,\"store\":false");
    respr_usage(s, usage);
    if (usage)
        pn_reply_report(&r->base);
    pn_str_addc(s, '}');
}

static bool respr_object_event(respr_reply *r, const char *type, const char *status, const pn_oai_usage *usage, const pn_oai_error *e)
{
    pn_json_key(respr_event_open(r, type), "response");
    respr_object(r, status, usage, e);
    return respr_event_send(r, type);
}

/* ------------------------------------------------------------------------------------------
 * Beginning and end
 * ------------------------------------------------------------------------------------------ */

static bool respr_begin(pn_reply *base, const pn_oai_usage *so_far)
{
    respr_reply *r = (respr_reply *)base;
    (void)so_far;
    if (!base->p.stream)
        return !base->dead;
    return respr_object_event(r, "response.created", "in_progress", NULL, NULL) &&
           respr_object_event(r, "response.in_progress", "in_progress", NULL, NULL);
}

static bool respr_choice_end(pn_reply *base, uint32_t choice, const pn_reply_finish *f)
{
    respr_reply *r = (respr_reply *)base;
    (void)choice;
    r->why = f->why;
    return respr_close(r, pn_reply_cut_short(f->why) ? "incomplete" : "completed");
}

static bool respr_end(pn_reply *base, const pn_oai_usage *usage)
{
    respr_reply *r = (respr_reply *)base;
    bool cut = pn_reply_cut_short(r->why);
    const char *status = cut ? "incomplete" : "completed";
    if (base->dead)
        return false;
    if (base->p.stream)
        return respr_object_event(r, cut ? "response.incomplete" : "response.completed", status, usage, NULL);
    respr_object(r, status, usage, NULL);
    return pn_reply_send(base, NULL);
}

/* Some clients listen for the one event, some for the other. */
static bool respr_fail(pn_reply *base, const pn_oai_error *e)
{
    respr_reply *r = (respr_reply *)base;
    if (!base->p.stream)
        return pn_oai_reply_fail(base, e);
    pn_str *s = respr_event_open(r, "error");
    pn_json_key(s, "code");
    pn_json_write_strz(s, e->code ? e->code : "server_error");
    pn_json_key(s, "message");
    pn_json_write_strz(s, e->message);
    pn_json_key(s, "param");
    pn_json_write_strz(s, e->param[0] ? e->param : NULL);
    return respr_event_send(r, "error") && respr_object_event(r, "response.failed", "failed", NULL, e);
}

static void respr_free(pn_reply *base)
{
    respr_reply *r = (respr_reply *)base;
    pn_str *const all[] = {&r->items, &r->text, &r->name, &r->call_id, &r->logprobs, &r->fresh};
    for (size_t i = 0; i < PN_COUNT_OF(all); i++)
        pn_str_fini(all[i]);
    pn_reply_dispose(base, sizeof *r);
}

PN_INTERNAL pn_status pn_responses_reply_new(pn_reply **out, const pn_reply_params *p, const pn_responses *q, pn_err *err)
{
    static const pn_reply_ops ops = {respr_begin, respr_logprob, respr_event, respr_choice_end, respr_end, respr_fail, respr_free, false};
    respr_reply *r = (respr_reply *)pn_reply_alloc(sizeof *r, &ops, p, err);
    if (!r)
        return PN_E_NOMEM;
    pn_str *const all[] = {&r->items, &r->text, &r->name, &r->call_id, &r->logprobs, &r->fresh};
    for (size_t i = 0; i < PN_COUNT_OF(all); i++)
        pn_str_init(all[i], p->mem, PN_ACCT_CONN);
    r->q = q;
    *out = &r->base;
    return PN_OK;
}
