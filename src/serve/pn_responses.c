/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_responses.c - requests of the Responses API, said as chat requests.
 *
 * What an assistant did in one turn is a row of items here - reasoning, a message, calls - and one message there.
 * Items are gathered in `turn` until one comes that belongs to another.
 */
#include "serve/pn_responses.h"

#include <stdio.h>

#include "serve/pn_oai_translate.h"

typedef struct resp_translator {
    pn_oai_translator t;        /* first */
    pn_str reasoning;           /* text */
    pn_str parts, calls;        /* elements */
} resp_translator;

static resp_translator *resp_of(pn_oai_parser *p) { return (resp_translator *)p; }
static pn_str *resp_out(pn_oai_parser *p) { return &pn_oai_translator_of(p)->out; }

/* ------------------------------------------------------------------------------------------
 * Messages
 * ------------------------------------------------------------------------------------------ */

static pn_str *resp_open(pn_oai_parser *p, pn_bytes role)
{
    pn_str *s = &pn_oai_translator_of(p)->messages;
    pn_json_item(s);
    pn_str_addz(s, "{\"role\":");
    pn_json_write_str(s, role.data, role.len);
    pn_json_key(s, "content");
    pn_str_addc(s, '[');
    return s;
}

/* The assistant's turn is over: its message. */
static void resp_end_turn(pn_oai_parser *p)
{
    resp_translator *r = resp_of(p);
    pn_str *const all[] = {&r->reasoning, &r->parts, &r->calls};
    if (!r->reasoning.len && !r->parts.len && !r->calls.len)
        return;
    pn_str *s = resp_open(p, (pn_bytes){"assistant", 9});
    pn_str_add(s, pn_str_cstr(&r->parts), r->parts.len);
    pn_str_addc(s, ']');
    if (r->reasoning.len) {
        pn_json_key(s, "reasoning_content");
        pn_json_write_str(s, r->reasoning.data, r->reasoning.len);
    }
    if (r->calls.len) {
        pn_json_key(s, "tool_calls");
        pn_str_addc(s, '[');
        pn_str_add(s, r->calls.data, r->calls.len);
        pn_str_addc(s, ']');
    }
    pn_str_addc(s, '}');
    for (size_t i = 0; i < PN_COUNT_OF(all); i++) {
        s->failed |= all[i]->failed;
        pn_str_clear(all[i]);
    }
}

static void resp_text_part(pn_str *s, pn_bytes text)
{
    pn_json_item(s);
    pn_str_addz(s, "{\"type\":\"text\",\"text\":");
    pn_json_write_str(s, text.data, text.len);
    pn_str_addc(s, '}');
}

/* One part of a message or of a result. */
static bool resp_part(pn_oai_parser *p, pn_str *s, const char *at, uint32_t part)
{
    char param[96];
    pn_bytes type, text;
    if (!pn_oai_translate_member(p, at, part, "type", &type))
        return false;
    bool refusal = pn_oai_same(type, "refusal");
    if (!refusal && !pn_oai_same(type, "input_text") && !pn_oai_same(type, "output_text") && !pn_oai_same(type, "text")) {
        snprintf(param, sizeof param, "%s.type", at);
        return pn_oai_fail(p, param, "%s: the model takes text alone, found a part of type '%.*s'", param, (int)PN_MIN(type.len, (size_t)40), type.data);
    }
    if (!pn_oai_translate_member(p, at, part, refusal ? "refusal" : "text", &text))
        return false;
    resp_text_part(s, text);
    return true;
}

/* A string or an array of parts, as the elements of an array of parts. */
static bool resp_parts(pn_oai_parser *p, pn_str *s, const char *at, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    char param[80];
    pn_bytes text;
    uint32_t i = 0;
    if (pn_json_str(d, node, &text)) {
        resp_text_part(s, text);
        return true;
    }
    if (pn_json_type_of(d, node) != PN_JSON_ARRAY)
        return pn_oai_expected(p, at, "a string or an array of parts", node);
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c), i++) {
        snprintf(param, sizeof param, "%s[%u]", at, (unsigned)i);
        if (!resp_part(p, s, param, c))
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Items
 * ------------------------------------------------------------------------------------------ */

typedef bool (*resp_reader)(pn_oai_parser *p, const char *at, uint32_t item);

static bool resp_message(pn_oai_parser *p, const char *at, uint32_t item)
{
    static const char *const roles[] = {"user", "system", "developer", "assistant"};
    resp_translator *r = resp_of(p);
    char param[64];
    pn_bytes role;
    size_t k = 0;
    if (!pn_oai_translate_member(p, at, item, "role", &role))
        return false;
    while (k < PN_COUNT_OF(roles) && !pn_oai_same(role, roles[k]))
        k++;
    snprintf(param, sizeof param, "%s.role", at);
    if (k == PN_COUNT_OF(roles))
        return pn_oai_fail(p, param, "%s: expected user, assistant, system or developer, found '%.*s'", param, (int)PN_MIN(role.len, (size_t)40), role.data);
    snprintf(param, sizeof param, "%s.content", at);
    uint32_t content = pn_json_get(&p->q->body, item, "content");
    if (k == 3) {
        if (r->parts.len || r->calls.len)
            resp_end_turn(p);
        return resp_parts(p, &r->parts, param, content);
    }
    resp_end_turn(p);
    pn_str *s = resp_open(p, role);
    if (!resp_parts(p, s, param, content))
        return false;
    pn_str_addz(s, "]}");
    return true;
}

static bool resp_call(pn_oai_parser *p, const char *at, uint32_t item)
{
    pn_str *s = &resp_of(p)->calls;
    pn_bytes id, name, arguments;
    if (!pn_oai_translate_member(p, at, item, "call_id", &id) || !pn_oai_translate_member(p, at, item, "name", &name) ||
        !pn_oai_translate_member(p, at, item, "arguments", &arguments))
        return false;
    pn_json_item(s);
    pn_str_addz(s, "{\"type\":\"function\",\"id\":");
    pn_json_write_str(s, id.data, id.len);
    pn_str_addz(s, ",\"function\":{\"name\":");
    pn_json_write_str(s, name.data, name.len);
    pn_json_key(s, "arguments");
    pn_json_write_str(s, arguments.data, arguments.len);
    pn_str_addz(s, "}}");
    return true;
}

static bool resp_result(pn_oai_parser *p, const char *at, uint32_t item)
{
    char param[64];
    pn_bytes id;
    if (!pn_oai_translate_member(p, at, item, "call_id", &id))
        return false;
    resp_end_turn(p);
    pn_str *s = resp_open(p, (pn_bytes){"tool", 4});
    snprintf(param, sizeof param, "%s.output", at);
    if (!resp_parts(p, s, param, pn_json_get(&p->q->body, item, "output")))
        return false;
    pn_str_addc(s, ']');
    pn_json_key(s, "tool_call_id");
    pn_json_write_str(s, id.data, id.len);
    pn_str_addc(s, '}');
    return true;
}

/* What was thought, or else its summary. */
static bool resp_reasoning(pn_oai_parser *p, const char *at, uint32_t item)
{
    const pn_json_doc *d = &p->q->body;
    resp_translator *r = resp_of(p);
    uint32_t content = pn_json_get(d, item, "content");
    (void)at;
    if (r->parts.len || r->calls.len)
        resp_end_turn(p);
    if (!pn_json_count(d, content))
        content = pn_json_get(d, item, "summary");
    for (uint32_t c = pn_json_first(d, content); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes text;
        if (pn_json_str(d, pn_json_get(d, c, "text"), &text))
            pn_str_add(&r->reasoning, text.data, text.len);
    }
    return true;
}

static const struct { const char *type; resp_reader read; } resp_items[] = {
    {"message", resp_message}, {"function_call", resp_call}, {"function_call_output", resp_result}, {"reasoning", resp_reasoning},
};

/* A message need not say that it is one. */
static bool resp_item(pn_oai_parser *p, uint32_t item, uint32_t i)
{
    const pn_json_doc *d = &p->q->body;
    char at[32], param[48];
    pn_bytes type = {"message", 7};
    uint32_t node = pn_json_get(d, item, "type");
    snprintf(at, sizeof at, "input[%u]", (unsigned)i);
    snprintf(param, sizeof param, "%s.type", at);
    if (pn_json_type_of(d, item) != PN_JSON_OBJECT)
        return pn_oai_expected(p, at, "an object", item);
    if (pn_oai_given(d, node) && !pn_oai_read_text(p, param, node, &type))
        return false;
    for (size_t k = 0; k < PN_COUNT_OF(resp_items); k++)
        if (pn_oai_same(type, resp_items[k].type))
            return resp_items[k].read(p, at, item);
    return pn_oai_fail(p, param, "%s: expected message, reasoning, function_call or function_call_output, found '%.*s'", param,
                       (int)PN_MIN(type.len, (size_t)40), type.data);
}

static bool resp_input(pn_oai_parser *p)
{
    const pn_json_doc *d = &p->q->body;
    uint32_t instructions = pn_json_get(d, PN_JSON_ROOT, "instructions"), input = pn_json_get(d, PN_JSON_ROOT, "input"), i = 0;
    pn_bytes text;
    if (pn_oai_given(d, instructions)) {
        pn_str *s = resp_open(p, (pn_bytes){"system", 6});
        if (!resp_parts(p, s, "instructions", instructions))
            return false;
        pn_str_addz(s, "]}");
    }
    if (pn_json_str(d, input, &text)) {
        pn_str *s = resp_open(p, (pn_bytes){"user", 4});
        resp_text_part(s, text);
        pn_str_addz(s, "]}");
        return true;
    }
    if (pn_json_type_of(d, input) != PN_JSON_ARRAY || !pn_json_count(d, input))
        return pn_oai_expected(p, "input", "a string or an array of items, not empty", input);
    for (uint32_t c = pn_json_first(d, input); c != PN_JSON_NONE; c = pn_json_next(d, c), i++)
        if (!resp_item(p, c, i))
            return false;
    resp_end_turn(p);
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Tools
 * ------------------------------------------------------------------------------------------ */

/* Name and schema lie beside the type here, and in an object of their own there. */
static bool resp_function(pn_oai_parser *p, pn_str *s, const char *at, uint32_t tool)
{
    static const char *const keys[] = {"description", "parameters", "strict"};
    const pn_json_doc *d = &p->q->body;
    pn_bytes name;
    if (!pn_oai_translate_member(p, at, tool, "name", &name))
        return false;
    pn_json_item(s);
    pn_str_addz(s, "{\"type\":\"function\",\"function\":{\"name\":");
    pn_json_write_str(s, name.data, name.len);
    for (size_t k = 0; k < PN_COUNT_OF(keys); k++) {
        uint32_t value = pn_json_get(d, tool, keys[k]);
        if (!pn_oai_given(d, value))
            continue;
        pn_json_key(s, keys[k]);
        pn_json_write_node(s, d, value);
    }
    pn_str_addz(s, "}}");
    return true;
}

/* Agents offer what OpenAI has (web_search, custom, ...) beside their own; the model is not told of it. */
static bool resp_tools(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    pn_str *s = resp_out(p);
    char at[32];
    pn_bytes type;
    uint32_t i = 0;
    if (pn_json_type_of(d, node) != PN_JSON_ARRAY)
        return pn_oai_expected(p, name, "an array", node);
    pn_json_key(s, "tools");
    pn_str_addc(s, '[');
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c), i++) {
        snprintf(at, sizeof at, "tools[%u]", (unsigned)i);
        if (!pn_oai_translate_member(p, at, c, "type", &type))
            return false;
        if (!pn_oai_same(type, "function"))
            pn_oai_ignore(p, at, strlen(at));
        else if (!resp_function(p, s, at, c))
            return false;
    }
    pn_str_addc(s, ']');
    return true;
}

static bool resp_tool_choice(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    pn_str *s = resp_out(p);
    pn_bytes type;
    if (pn_json_type_of(d, node) == PN_JSON_STRING) {
        pn_oai_translate_as(p, name, node);
        return true;
    }
    if (!pn_oai_translate_member(p, name, node, "type", &type))
        return false;
    if (pn_oai_same(type, "function")) {
        pn_oai_translate_as(p, name, node);
        return true;
    }
    if (!pn_oai_same(type, "allowed_tools"))
        return pn_oai_fail(p, "tool_choice.type", "tool_choice.type: expected function or allowed_tools, found '%.*s'",
                           (int)PN_MIN(type.len, (size_t)40), type.data);
    pn_json_key(s, "tool_choice");
    pn_str_addz(s, "{\"type\":\"allowed_tools\",\"allowed_tools\":");
    pn_json_write_node(s, d, node);
    pn_str_addc(s, '}');
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Other fields
 * ------------------------------------------------------------------------------------------ */

static bool resp_max(pn_oai_parser *p, const char *name, uint32_t node)
{
    (void)name;
    pn_oai_translate_as(p, "max_completion_tokens", node);
    return true;
}

/* Members but `known` are listed with their way. */
static void resp_ignore_others(pn_oai_parser *p, const char *name, uint32_t node, const char *known)
{
    const pn_json_doc *d = &p->q->body;
    char way[64];
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes key = pn_json_key_of(d, c);
        if (!pn_oai_given(d, c) || pn_oai_same(key, known))
            continue;
        int n = snprintf(way, sizeof way, "%s.%s", name, key.data);
        pn_oai_ignore(p, way, PN_MIN((size_t)n, sizeof way - 1));
    }
}

static bool resp_text(pn_oai_parser *p, const char *name, uint32_t node)
{
    uint32_t format = pn_json_get(&p->q->body, node, "format");
    if (pn_json_type_of(&p->q->body, node) != PN_JSON_OBJECT)
        return pn_oai_expected(p, name, "an object", node);
    if (pn_oai_given(&p->q->body, format))
        pn_oai_translate_as(p, "response_format", format);
    resp_ignore_others(p, name, node, "format");
    return true;
}

static bool resp_effort(pn_oai_parser *p, const char *name, uint32_t node)
{
    uint32_t effort = pn_json_get(&p->q->body, node, "effort");
    if (pn_json_type_of(&p->q->body, node) != PN_JSON_OBJECT)
        return pn_oai_expected(p, name, "an object", node);
    if (pn_oai_given(&p->q->body, effort))
        pn_oai_translate_as(p, "reasoning_effort", effort);
    resp_ignore_others(p, name, node, "effort");
    return true;
}

/* Log-probabilities come when `include` or a number of alternatives asks for them. */
static bool resp_logprobs(pn_oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    pn_oai_translate_as(p, name, node);
    if (pn_json_i64(&p->q->body, node, &v) && v == 0)
        return true;
    pn_json_key(resp_out(p), "logprobs");
    pn_json_write_bool(resp_out(p), true);
    return true;
}

static bool resp_include(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    bool other = false;
    if (pn_json_type_of(d, node) != PN_JSON_ARRAY)
        return pn_oai_expected(p, name, "an array", node);
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes what;
        if (!pn_oai_read_text(p, name, c, &what))
            return false;
        bool logprobs = pn_oai_same(what, "message.output_text.logprobs");
        other |= !logprobs;
        if (!logprobs)
            continue;
        pn_json_key(resp_out(p), "logprobs");
        pn_json_write_bool(resp_out(p), true);
    }
    if (other)
        pn_oai_ignore(p, name, strlen(name));
    return true;
}

/* Nothing is kept: what asks for it is listed, what does without is as asked for. */
static bool resp_store(pn_oai_parser *p, const char *name, uint32_t node)
{
    bool v;
    if (!pn_oai_read_bool(p, name, node, &v))
        return false;
    if (v)
        pn_oai_ignore(p, name, strlen(name));
    return true;
}

static bool resp_truncation(pn_oai_parser *p, const char *name, uint32_t node)
{
    pn_bytes word;
    if (!pn_oai_read_text(p, name, node, &word))
        return false;
    if (!pn_oai_same(word, "disabled"))
        pn_oai_ignore(p, name, strlen(name));
    return true;
}

static bool resp_state(pn_oai_parser *p, const char *name, uint32_t node)
{
    bool v;
    if (pn_json_bool(&p->q->body, node, &v) && !v)
        return true;                            /* "background": false */
    return pn_oai_fail(p, name, "%s: this server keeps no answers: send the whole conversation as input, and wait for the answer", name);
}

static const pn_oai_field resp_fields[] = {
    {"input", pn_oai_read_nothing}, {"instructions", pn_oai_read_nothing}, {"metadata", pn_oai_read_nothing}, {"tools", resp_tools},
    {"tool_choice", resp_tool_choice}, {"max_output_tokens", resp_max}, {"text", resp_text}, {"reasoning", resp_effort},
    {"top_logprobs", resp_logprobs}, {"include", resp_include}, {"store", resp_store}, {"truncation", resp_truncation},
    {"previous_response_id", resp_state}, {"conversation", resp_state}, {"background", resp_state}, {"prompt", resp_state},
    {"stream_options", pn_oai_read_nothing}, {"messages", pn_oai_translate_ignore}, {"n", pn_oai_translate_ignore},
    {"logprobs", pn_oai_translate_ignore},
};

static const pn_oai_rename resp_names[] = {
    {"max_completion_tokens", "max_output_tokens"}, {"response_format.json_schema", "text.format"}, {"response_format", "text.format"},
    {"reasoning_effort", "reasoning.effort"}, {"messages", "input"}, {"tool_choice.allowed_tools", "tool_choice"},
};

PN_INTERNAL bool pn_responses_parse(pn_responses *out, pn_mem *mem, const char *text, size_t len, pn_oai_error *e)
{
    resp_translator r;
    pn_str *const own[] = {&r.reasoning, &r.parts, &r.calls};
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < PN_COUNT_OF(own); i++)
        pn_str_init(own[i], mem, PN_ACCT_CONN);
    bool ok = pn_oai_translate_open(&r.t, mem, text, len, e) && resp_input(&r.t.p) &&
              pn_oai_translate_fields(&r.t, resp_fields, PN_COUNT_OF(resp_fields)) &&
              pn_oai_translate_end(&r.t, &out->chat, resp_names, PN_COUNT_OF(resp_names));
    if (ok) {
        out->body = r.t.in.body;                /* it moves; what is closed below is empty */
        r.t.in.body = (pn_json_doc){.mem = NULL};
    }
    pn_oai_translate_close(&r.t);
    for (size_t i = 0; i < PN_COUNT_OF(own); i++)
        pn_str_fini(own[i]);
    return ok;
}

PN_INTERNAL void pn_responses_fini(pn_responses *q)
{
    pn_oai_chat_fini(&q->chat);
    pn_json_fini(&q->body);
}
