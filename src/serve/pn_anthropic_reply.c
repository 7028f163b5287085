/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_anthropic_reply.c - messages of the Messages API, whole or as events.
 *
 * An answer is a row of blocks: thinking, text, calls.  One is open at a time; what belongs to another closes
 * it.  Streaming and not, the same blocks come out.
 */
#include "serve/pn_anthropic.h"

#include <stdio.h>

typedef enum anthr_block { ANTHR_NONE, ANTHR_THINKING, ANTHR_TEXT, ANTHR_CALL } anthr_block;

typedef struct anthr_reply {
    pn_reply base;
    anthr_block open;
    uint32_t n_blocks, n_calls;
    pn_str blocks;              /* elements of content, but for the open one's; not when streaming */
    pn_str text;                /* of the open block, a call's: its arguments */
    pn_finish why;
    bool stopped;               /* by a stop string, which is in `stop` */
    pn_str stop;
} anthr_reply;

/* ------------------------------------------------------------------------------------------
 * Events
 * ------------------------------------------------------------------------------------------ */

static pn_str *anthr_event_open(anthr_reply *r, const char *type)
{
    pn_str_addf(&r->base.out, "{\"type\":\"%s\"", type);
    return &r->base.out;
}

static bool anthr_event_send(anthr_reply *r, const char *type)
{
    pn_str_addc(&r->base.out, '}');
    return pn_reply_send(&r->base, type);
}

/* One of a block: its index is that of the open one. */
static pn_str *anthr_block_event(anthr_reply *r, const char *type)
{
    pn_str *s = anthr_event_open(r, type);
    pn_str_addf(s, ",\"index\":%u", (unsigned)r->n_blocks);
    return s;
}

static bool anthr_delta(anthr_reply *r, const char *type, const char *key, const char *text, size_t len)
{
    pn_str *s = anthr_block_event(r, "content_block_delta");
    pn_str_addf(s, ",\"delta\":{\"type\":\"%s\",\"%s\":", type, key);
    pn_json_write_str(s, text, len);
    pn_str_addc(s, '}');
    return anthr_event_send(r, "content_block_delta");
}

/* ------------------------------------------------------------------------------------------
 * Blocks
 * ------------------------------------------------------------------------------------------ */

/* {"type":"tool_use","id":...,"name":... */
static void anthr_call_head(anthr_reply *r, pn_str *s, const pn_output_event *e)
{
    char id[40];
    pn_reply_id(&r->base, "toolu_", 0, e->call, id);
    pn_str_addz(s, "{\"type\":\"tool_use\",\"id\":");
    if (e->id_len)
        pn_json_write_str(s, e->id, e->id_len);
    else
        pn_json_write_strz(s, id);
    pn_json_key(s, "name");
    pn_json_write_str(s, e->text, e->len);
}

/* Arguments as an object; what was cut off in the middle is none. */
static void anthr_input(anthr_reply *r, pn_str *s)
{
    pn_json_doc d;
    pn_status st = pn_json_parse(&d, r->base.p.mem, PN_ACCT_CONN, pn_str_cstr(&r->text), r->text.len, &(pn_json_params){.fix_surrogates = true}, NULL);
    if (st == PN_OK && pn_json_type_of(&d, PN_JSON_ROOT) == PN_JSON_OBJECT)
        pn_json_write_node(s, &d, PN_JSON_ROOT);
    else
        pn_str_addz(s, "{}");
    s->failed |= st == PN_E_NOMEM;
    pn_json_fini(&d);
}

/* The rest of an element of content, whose beginning was written when it was opened. */
static bool anthr_close_gathered(anthr_reply *r)
{
    pn_str *s = &r->blocks;
    pn_json_key(s, r->open == ANTHR_TEXT ? "text" : r->open == ANTHR_THINKING ? "thinking" : "input");
    if (r->open == ANTHR_CALL)
        anthr_input(r, s);
    else
        pn_json_write_str(s, pn_str_cstr(&r->text), r->text.len);
    pn_str_addz(s, r->open == ANTHR_THINKING ? ",\"signature\":\"\"}" : "}");
    return pn_reply_kept(&r->base, s);
}

static bool anthr_close(anthr_reply *r)
{
    bool ok = !r->base.dead;
    if (r->open == ANTHR_NONE || !ok)
        return ok;
    if (!r->base.p.stream) {
        ok = anthr_close_gathered(r);
    } else {
        if (r->open == ANTHR_THINKING)
            anthr_delta(r, "signature_delta", "signature", "", 0);
        anthr_block_event(r, "content_block_stop");
        ok = anthr_event_send(r, "content_block_stop");
    }
    r->open = ANTHR_NONE;
    r->n_blocks++;
    pn_str_clear(&r->text);
    return ok;
}

/* e: the call's beginning, or NULL. */
static bool anthr_open(anthr_reply *r, anthr_block what, const pn_output_event *e)
{
    bool stream = r->base.p.stream;
    if (!anthr_close(r))
        return false;
    pn_str *s = stream ? anthr_block_event(r, "content_block_start") : &r->blocks;
    if (stream)
        pn_json_key(s, "content_block");
    else
        pn_json_item(s);
    if (what == ANTHR_CALL)
        anthr_call_head(r, s, e);
    else
        pn_str_addf(s, "{\"type\":\"%s\"", what == ANTHR_TEXT ? "text" : "thinking");
    r->open = what;
    if (!stream)
        return pn_reply_kept(&r->base, s);
    pn_str_addz(s, what == ANTHR_CALL ? ",\"input\":{}}" : what == ANTHR_TEXT ? ",\"text\":\"\"}" : ",\"thinking\":\"\",\"signature\":\"\"}");
    return anthr_event_send(r, "content_block_start");
}

/* Text of the block that is open. */
static bool anthr_add(anthr_reply *r, const char *type, const char *key, const pn_output_event *e)
{
    if (r->base.p.stream)
        return anthr_delta(r, type, key, e->text, e->len);
    pn_str_add(&r->text, e->text, e->len);
    return pn_reply_kept(&r->base, &r->text);
}

static bool anthr_text(anthr_reply *r, anthr_block what, const char *type, const char *key, const pn_output_event *e)
{
    if (!e->len)
        return !r->base.dead;
    if (r->open != what && !anthr_open(r, what, NULL))
        return false;
    return anthr_add(r, type, key, e);
}

static bool anthr_event(pn_reply *base, uint32_t choice, const pn_output_event *e)
{
    anthr_reply *r = (anthr_reply *)base;
    (void)choice;
    switch (e->kind) {
    case PN_OUTPUT_REASONING: return anthr_text(r, ANTHR_THINKING, "thinking_delta", "thinking", e);
    case PN_OUTPUT_CONTENT: return anthr_text(r, ANTHR_TEXT, "text_delta", "text", e);
    case PN_OUTPUT_CALL_BEGIN: r->n_calls++; return anthr_open(r, ANTHR_CALL, e);
    case PN_OUTPUT_ARGUMENTS: return anthr_add(r, "input_json_delta", "partial_json", e);
    default: return anthr_close(r);
    }
}

static bool anthr_logprob(pn_reply *base, uint32_t choice, const pn_token_logprob *t)
{
    (void)choice, (void)t;
    return !base->dead;
}

/* ------------------------------------------------------------------------------------------
 * Beginning and end
 * ------------------------------------------------------------------------------------------ */

/* Tokens read from the cache are counted apart in this API. */
static void anthr_usage(pn_str *s, const pn_oai_usage *u)
{
    pn_json_key(s, "usage");
    pn_str_addf(s, "{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%u,\"output_tokens\":%u}",
                (unsigned)(u->prompt - PN_MIN(u->cached, u->prompt)), (unsigned)u->cached, (unsigned)u->completion);
}

static void anthr_message_head(anthr_reply *r)
{
    pn_str *s = &r->base.out;
    pn_str_addf(s, "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\"", r->base.p.id);
    pn_json_key(s, "model");
    pn_json_write_strz(s, r->base.p.model);
    pn_json_key(s, "content");
}

/* "stop_reason":...,"stop_sequence":... */
static void anthr_reason(anthr_reply *r, pn_str *s)
{
    const char *why = pn_reply_cut_short(r->why) ? "max_tokens" : r->n_calls ? "tool_use" : r->stopped ? "stop_sequence" : "end_turn";
    pn_json_key(s, "stop_reason");
    pn_json_write_strz(s, why);
    pn_json_key(s, "stop_sequence");
    if (strcmp(why, "stop_sequence") == 0)
        pn_json_write_str(s, pn_str_cstr(&r->stop), r->stop.len);
    else
        pn_str_addz(s, "null");
}

static bool anthr_begin(pn_reply *base, const pn_oai_usage *so_far)
{
    anthr_reply *r = (anthr_reply *)base;
    if (!base->p.stream)
        return !base->dead;
    pn_str *s = anthr_event_open(r, "message_start");
    pn_json_key(s, "message");
    anthr_message_head(r);
    pn_str_addz(s, "[],\"stop_reason\":null,\"stop_sequence\":null");
    anthr_usage(s, so_far);
    pn_str_addc(s, '}');
    return anthr_event_send(r, "message_start");
}

static bool anthr_choice_end(pn_reply *base, uint32_t choice, const pn_reply_finish *f)
{
    anthr_reply *r = (anthr_reply *)base;
    (void)choice;
    r->why = f->why;
    r->stopped = f->stop.data != NULL;
    pn_str_add(&r->stop, f->stop.data, f->stop.len);
    pn_reply_kept(base, &r->stop);
    return anthr_close(r);
}

static bool anthr_body(anthr_reply *r, const pn_oai_usage *usage)
{
    pn_str *s = &r->base.out;
    anthr_message_head(r);
    pn_str_addc(s, '[');
    pn_str_add(s, pn_str_cstr(&r->blocks), r->blocks.len);
    pn_str_addc(s, ']');
    anthr_reason(r, s);
    anthr_usage(s, usage);
    pn_str_addc(s, '}');
    return pn_reply_send(&r->base, NULL);
}

static bool anthr_end(pn_reply *base, const pn_oai_usage *usage)
{
    anthr_reply *r = (anthr_reply *)base;
    if (base->dead || !base->p.stream)
        return !base->dead && anthr_body(r, usage);
    pn_str *s = anthr_event_open(r, "message_delta");
    pn_str_addz(s, ",\"delta\":{");
    anthr_reason(r, s);
    pn_str_addc(s, '}');
    anthr_usage(s, usage);
    if (!anthr_event_send(r, "message_delta"))
        return false;
    anthr_event_open(r, "message_stop");
    return anthr_event_send(r, "message_stop");
}

static bool anthr_fail(pn_reply *base, const pn_oai_error *e)
{
    pn_str_clear(&base->out);
    pn_anthropic_error_json(e, &base->out);
    return pn_reply_send(base, base->p.stream ? "error" : NULL);
}

static void anthr_free(pn_reply *base)
{
    anthr_reply *r = (anthr_reply *)base;
    pn_str_fini(&r->blocks);
    pn_str_fini(&r->text);
    pn_str_fini(&r->stop);
    pn_reply_dispose(base, sizeof *r);
}

PN_INTERNAL pn_status pn_anthropic_reply_new(pn_reply **out, const pn_reply_params *p, pn_err *err)
{
    static const pn_reply_ops ops = {anthr_begin, anthr_logprob, anthr_event, anthr_choice_end, anthr_end, anthr_fail, anthr_free, false};
    anthr_reply *r = (anthr_reply *)pn_reply_alloc(sizeof *r, &ops, p, err);
    if (!r)
        return PN_E_NOMEM;
    pn_str_init(&r->blocks, p->mem, PN_ACCT_CONN);
    pn_str_init(&r->text, p->mem, PN_ACCT_CONN);
    pn_str_init(&r->stop, p->mem, PN_ACCT_CONN);
    *out = &r->base;
    return PN_OK;
}
