/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_anthropic.c - requests of the Messages API, said as chat requests.
 *
 * The one difference in kind is where results of tools are: blocks of a user's turn here, messages of their own
 * there.  They go before the turn's text, since a template wants them right behind the calls.
 *
 * is_error of a result has no counterpart; the text says it.
 */
#include "serve/pn_anthropic.h"

#include <stdio.h>

#include "serve/pn_oai_translate.h"

/* ------------------------------------------------------------------------------------------
 * Errors
 * ------------------------------------------------------------------------------------------ */

static const struct { int status; const char *type; } anth_errors[] = {
    {401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"}, {413, "request_too_large"},
    {429, "rate_limit_error"}, {503, "overloaded_error"}, {529, "overloaded_error"},
};

static const char *anth_error_type(int status)
{
    for (size_t i = 0; i < PN_COUNT_OF(anth_errors); i++)
        if (anth_errors[i].status == status)
            return anth_errors[i].type;
    return status >= 500 ? "api_error" : "invalid_request_error";
}

PN_INTERNAL int pn_anthropic_error_status(const pn_oai_error *e) { return e->status == 503 ? 529 : e->status; }

PN_INTERNAL void pn_anthropic_error_json(const pn_oai_error *e, pn_str *out)
{
    pn_str_addf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", anth_error_type(e->status));
    pn_json_write_strz(out, e->message);
    pn_str_addz(out, "}}");
}

/* ------------------------------------------------------------------------------------------
 * Text
 * ------------------------------------------------------------------------------------------ */

/* Where the five characters are that a client changes with every request, which no prefix cache would survive:
 * "x-anthropic-billing-header: ...; cch=1a2b3;" at the start of the first text of the system prompt. */
static size_t anth_billing_hash(pn_bytes text)
{
    static const char head[] = "x-anthropic-billing-header:", mark[] = "cch=";
    if (text.len < sizeof head - 1 || memcmp(text.data, head, sizeof head - 1) != 0)
        return SIZE_MAX;
    for (size_t i = sizeof head - 1; i + 10 <= text.len && text.data[i] != '\n'; i++) {
        if (memcmp(text.data + i, mark, sizeof mark - 1) != 0 || text.data[i + 9] != ';')
            continue;
        size_t n = 0;
        while (n < 5 && text.data[i + 4 + n] && strchr("0123456789abcdefABCDEF", text.data[i + 4 + n]))
            n++;
        if (n == 5)
            return i + 4;
    }
    return SIZE_MAX;
}

static void anth_system_text(pn_str *s, pn_bytes text)
{
    size_t at = anth_billing_hash(text);
    pn_str same;
    if (at == SIZE_MAX) {
        pn_json_write_str(s, text.data, text.len);
        return;
    }
    pn_str_init(&same, s->mem, PN_ACCT_CONN);
    pn_str_add(&same, text.data, at);
    pn_str_addz(&same, "00000");
    pn_str_add(&same, text.data + at + 5, text.len - at - 5);
    pn_json_write_str(s, pn_str_cstr(&same), same.len);
    s->failed |= same.failed;
    pn_str_fini(&same);
}

/* ------------------------------------------------------------------------------------------
 * Blocks
 * ------------------------------------------------------------------------------------------ */

/* The type of a block, one of those in `known` (NULL ends them). */
static bool anth_type(pn_oai_parser *p, const char *at, uint32_t block, const char *const *known, pn_bytes *type)
{
    char param[96];
    if (!pn_oai_translate_member(p, at, block, "type", type))
        return false;
    for (; *known; known++)
        if (pn_oai_same(*type, *known))
            return true;
    snprintf(param, sizeof param, "%s.type", at);
    return pn_oai_fail(p, param, "%s: the model takes text alone, found a block of type '%.*s'", param, (int)PN_MIN(type->len, (size_t)40), type->data);
}

/* The i-th part of an array of them. */
static void anth_part(pn_str *s, bool first, pn_bytes text, bool system)
{
    pn_str_addz(s, first ? "{\"type\":\"text\",\"text\":" : ",{\"type\":\"text\",\"text\":");
    if (first && system)
        anth_system_text(s, text);
    else
        pn_json_write_str(s, text.data, text.len);
    pn_str_addc(s, '}');
}

/* A string or an array of text blocks, as an array of parts; nothing is no parts. */
static bool anth_texts(pn_oai_parser *p, pn_str *s, const char *at, uint32_t node, bool system)
{
    static const char *const known[] = {"text", NULL};
    const pn_json_doc *d = &p->q->body;
    char param[80];
    pn_bytes text, type;
    uint32_t i = 0;
    bool one = pn_json_str(d, node, &text);
    if (!one && pn_oai_given(d, node) && pn_json_type_of(d, node) != PN_JSON_ARRAY)
        return pn_oai_expected(p, at, "a string or an array of blocks", node);
    pn_str_addc(s, '[');
    if (one)
        anth_part(s, true, text, system);
    for (uint32_t c = one ? PN_JSON_NONE : pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c), i++) {
        snprintf(param, sizeof param, "%s[%u]", at, (unsigned)i);
        if (!anth_type(p, param, c, known, &type) || !pn_oai_translate_member(p, param, c, "text", &text))
            return false;
        anth_part(s, i == 0, text, system);
    }
    pn_str_addc(s, ']');
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Messages
 * ------------------------------------------------------------------------------------------ */

/* A message up to its content. */
static pn_str *anth_open(pn_oai_parser *p, const char *role)
{
    pn_str *s = &pn_oai_translator_of(p)->messages;
    pn_json_item(s);
    pn_str_addf(s, "{\"role\":\"%s\",\"content\":", role);
    return s;
}

/* The texts of a turn's text blocks, as an array of parts. */
static bool anth_turn_texts(pn_oai_parser *p, const char *at, uint32_t content, pn_str *s)
{
    const pn_json_doc *d = &p->q->body;
    char param[64];
    pn_bytes text, type;
    uint32_t i = 0, n = 0;
    pn_str_addc(s, '[');
    for (uint32_t c = pn_json_first(d, content); c != PN_JSON_NONE; c = pn_json_next(d, c), i++) {
        if (!pn_json_str(d, pn_json_get(d, c, "type"), &type) || !pn_oai_same(type, "text"))
            continue;
        snprintf(param, sizeof param, "%s[%u]", at, (unsigned)i);
        if (!pn_oai_translate_member(p, param, c, "text", &text))
            return false;
        anth_part(s, n++ == 0, text, false);
    }
    pn_str_addc(s, ']');
    return true;
}

static bool anth_result(pn_oai_parser *p, const char *at, uint32_t block)
{
    const pn_json_doc *d = &p->q->body;
    char param[80];
    pn_bytes id;
    if (!pn_oai_translate_member(p, at, block, "tool_use_id", &id))
        return false;
    pn_str *s = anth_open(p, "tool");
    snprintf(param, sizeof param, "%s.content", at);
    if (!anth_texts(p, s, param, pn_json_get(d, block, "content"), false))
        return false;
    pn_json_key(s, "tool_call_id");
    pn_json_write_str(s, id.data, id.len);
    pn_str_addc(s, '}');
    return true;
}

/* Results first, each a message; then the text, when there is some or nothing else. */
static bool anth_user(pn_oai_parser *p, const char *at, uint32_t content)
{
    static const char *const known[] = {"text", "tool_result", NULL};
    const pn_json_doc *d = &p->q->body;
    char param[64];
    pn_bytes type;
    uint32_t i = 0, n_results = 0;
    for (uint32_t c = pn_json_first(d, content); c != PN_JSON_NONE; c = pn_json_next(d, c), i++) {
        snprintf(param, sizeof param, "%s[%u]", at, (unsigned)i);
        if (!anth_type(p, param, c, known, &type))
            return false;
        if (!pn_oai_same(type, "tool_result"))
            continue;
        n_results++;
        if (!anth_result(p, param, c))
            return false;
    }
    if (n_results == i && i)
        return true;
    pn_str *s = anth_open(p, "user");
    bool ok = anth_turn_texts(p, at, content, s);
    pn_str_addc(s, '}');
    return ok;
}

static bool anth_thoughts(pn_oai_parser *p, const char *at, uint32_t content, pn_str *out)
{
    const pn_json_doc *d = &p->q->body;
    char param[64];
    pn_bytes text, type;
    uint32_t i = 0;
    for (uint32_t c = pn_json_first(d, content); c != PN_JSON_NONE; c = pn_json_next(d, c), i++) {
        if (!pn_json_str(d, pn_json_get(d, c, "type"), &type) || !pn_oai_same(type, "thinking"))
            continue;
        snprintf(param, sizeof param, "%s[%u]", at, (unsigned)i);
        if (!pn_oai_translate_member(p, param, c, "thinking", &text))
            return false;
        pn_str_add(out, text.data, text.len);
    }
    return true;
}

static bool anth_reasoning(pn_oai_parser *p, const char *at, uint32_t content, pn_str *s)
{
    pn_str thoughts;
    pn_str_init(&thoughts, s->mem, PN_ACCT_CONN);
    bool ok = anth_thoughts(p, at, content, &thoughts);
    if (thoughts.len) {
        pn_json_key(s, "reasoning_content");
        pn_json_write_str(s, thoughts.data, thoughts.len);
    }
    s->failed |= thoughts.failed;
    pn_str_fini(&thoughts);
    return ok;
}

static bool anth_call(pn_oai_parser *p, const char *at, uint32_t block, pn_str *s)
{
    const pn_json_doc *d = &p->q->body;
    uint32_t input = pn_json_get(d, block, "input");
    pn_bytes id, name;
    if (!pn_oai_translate_member(p, at, block, "id", &id) || !pn_oai_translate_member(p, at, block, "name", &name))
        return false;
    pn_str_addz(s, "{\"type\":\"function\",\"id\":");
    pn_json_write_str(s, id.data, id.len);
    pn_str_addz(s, ",\"function\":{\"name\":");
    pn_json_write_str(s, name.data, name.len);
    pn_json_key(s, "arguments");
    if (pn_oai_given(d, input))
        pn_json_write_node(s, d, input);
    else
        pn_str_addz(s, "{}");
    pn_str_addz(s, "}}");
    return true;
}

static bool anth_calls(pn_oai_parser *p, const char *at, uint32_t content, pn_str *s)
{
    const pn_json_doc *d = &p->q->body;
    char param[64];
    pn_bytes type;
    uint32_t i = 0, n = 0;
    for (uint32_t c = pn_json_first(d, content); c != PN_JSON_NONE; c = pn_json_next(d, c), i++) {
        if (!pn_json_str(d, pn_json_get(d, c, "type"), &type) || !pn_oai_same(type, "tool_use"))
            continue;
        snprintf(param, sizeof param, "%s[%u]", at, (unsigned)i);
        pn_str_addz(s, n++ ? "," : ",\"tool_calls\":[");
        if (!anth_call(p, param, c, s))
            return false;
    }
    if (n)
        pn_str_addc(s, ']');
    return true;
}

static bool anth_assistant(pn_oai_parser *p, const char *at, uint32_t content)
{
    static const char *const known[] = {"text", "tool_use", "thinking", "redacted_thinking", NULL};
    const pn_json_doc *d = &p->q->body;
    char param[64];
    pn_bytes type;
    uint32_t i = 0;
    for (uint32_t c = pn_json_first(d, content); c != PN_JSON_NONE; c = pn_json_next(d, c), i++) {
        snprintf(param, sizeof param, "%s[%u]", at, (unsigned)i);
        if (!anth_type(p, param, c, known, &type))
            return false;
    }
    pn_str *s = anth_open(p, "assistant");
    bool ok = anth_turn_texts(p, at, content, s) && anth_reasoning(p, at, content, s) && anth_calls(p, at, content, s);
    pn_str_addc(s, '}');
    return ok;
}

static bool anth_message(pn_oai_parser *p, uint32_t message, uint32_t i)
{
    static const char *const roles[] = {"user", "assistant", "system"};
    const pn_json_doc *d = &p->q->body;
    char param[48];
    pn_bytes role;
    size_t k = 0;
    snprintf(param, sizeof param, "messages[%u].role", (unsigned)i);
    if (!pn_oai_read_text(p, param, pn_json_get(d, message, "role"), &role))
        return false;
    while (k < PN_COUNT_OF(roles) && !pn_oai_same(role, roles[k]))
        k++;
    if (k == PN_COUNT_OF(roles))
        return pn_oai_fail(p, param, "%s: expected user or assistant, found '%.*s'", param, (int)PN_MIN(role.len, (size_t)40), role.data);
    uint32_t content = pn_json_get(d, message, "content");
    snprintf(param, sizeof param, "messages[%u].content", (unsigned)i);
    if (pn_json_type_of(d, content) == PN_JSON_ARRAY && k != 2)
        return k == 0 ? anth_user(p, param, content) : anth_assistant(p, param, content);
    if (!pn_oai_given(d, content))
        return pn_oai_expected(p, param, "a string or an array of blocks", content);
    pn_str *s = anth_open(p, roles[k]);
    bool ok = anth_texts(p, s, param, content, k == 2);
    pn_str_addc(s, '}');
    return ok;
}

static bool anth_messages(pn_oai_parser *p)
{
    const pn_json_doc *d = &p->q->body;
    uint32_t messages = pn_json_get(d, PN_JSON_ROOT, "messages"), system = pn_json_get(d, PN_JSON_ROOT, "system"), i = 0;
    if (pn_json_type_of(d, messages) != PN_JSON_ARRAY || !pn_json_count(d, messages))
        return pn_oai_expected(p, "messages", "an array, not empty", messages);
    if (pn_oai_given(d, system)) {
        pn_str *s = anth_open(p, "system");
        if (!anth_texts(p, s, "system", system, true))
            return false;
        pn_str_addc(s, '}');
    }
    for (uint32_t c = pn_json_first(d, messages); c != PN_JSON_NONE; c = pn_json_next(d, c), i++)
        if (!anth_message(p, c, i))
            return false;
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Tools
 * ------------------------------------------------------------------------------------------ */

/* {"name","description","input_schema"}; those with another type than "custom" run at Anthropic's. */
static bool anth_tool(pn_oai_parser *p, pn_str *s, uint32_t tool, uint32_t i)
{
    static const char *const known[] = {"custom", NULL};
    static const char *const keys[][2] = {{"description", "description"}, {"input_schema", "parameters"}, {"strict", "strict"}};
    const pn_json_doc *d = &p->q->body;
    char param[48];
    pn_bytes name, type;
    snprintf(param, sizeof param, "tools[%u]", (unsigned)i);
    if (pn_oai_given(d, pn_json_get(d, tool, "type")) && !anth_type(p, param, tool, known, &type))
        return pn_oai_fail(p, param, "%s: expected a tool of the client's own (custom); others are not there", param);
    if (!pn_oai_translate_member(p, param, tool, "name", &name))
        return false;
    pn_str_addz(s, i ? ",{\"type\":\"function\",\"function\":{\"name\":" : "{\"type\":\"function\",\"function\":{\"name\":");
    pn_json_write_str(s, name.data, name.len);
    for (size_t k = 0; k < PN_COUNT_OF(keys); k++) {
        uint32_t value = pn_json_get(d, tool, keys[k][0]);
        if (!pn_oai_given(d, value))
            continue;
        pn_json_key(s, keys[k][1]);
        pn_json_write_node(s, d, value);
    }
    pn_str_addz(s, "}}");
    return true;
}

static bool anth_tools(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    pn_str *s = &pn_oai_translator_of(p)->out;
    uint32_t i = 0;
    if (pn_json_type_of(d, node) != PN_JSON_ARRAY)
        return pn_oai_expected(p, name, "an array", node);
    pn_json_key(s, "tools");
    pn_str_addc(s, '[');
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c), i++)
        if (!anth_tool(p, s, c, i))
            return false;
    pn_str_addc(s, ']');
    return true;
}

static bool anth_tool_choice(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    pn_str *s = &pn_oai_translator_of(p)->out;
    uint32_t single = pn_json_get(d, node, "disable_parallel_tool_use");
    pn_bytes type, tool;
    bool one;
    if (!pn_oai_translate_member(p, name, node, "type", &type))
        return false;
    pn_json_key(s, "tool_choice");
    if (pn_oai_same(type, "tool")) {
        if (!pn_oai_translate_member(p, name, node, "name", &tool))
            return false;
        pn_str_addz(s, "{\"type\":\"function\",\"function\":{\"name\":");
        pn_json_write_str(s, tool.data, tool.len);
        pn_str_addz(s, "}}");
    } else if (pn_oai_same(type, "any")) {
        pn_str_addz(s, "\"required\"");
    } else if (pn_oai_same(type, "auto") || pn_oai_same(type, "none")) {
        pn_json_write_str(s, type.data, type.len);
    } else {
        return pn_oai_fail(p, "tool_choice.type", "tool_choice.type: expected auto, any, tool or none, found '%.*s'",
                           (int)PN_MIN(type.len, (size_t)40), type.data);
    }
    if (!pn_oai_given(d, single))
        return true;
    if (!pn_oai_read_bool(p, "tool_choice.disable_parallel_tool_use", single, &one))
        return false;
    pn_json_key(s, "parallel_tool_calls");
    pn_json_write_bool(s, !one);
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Other fields, and all of it
 * ------------------------------------------------------------------------------------------ */

static bool anth_stop(pn_oai_parser *p, const char *name, uint32_t node)
{
    (void)name;
    pn_oai_translate_as(p, "stop", node);
    return true;
}

static bool anth_output_format(pn_oai_parser *p, const char *name, uint32_t node)
{
    (void)name;
    pn_oai_translate_as(p, "response_format", node);
    return true;
}

static bool anth_output_config(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    uint32_t effort = pn_json_get(d, node, "effort"), format = pn_json_get(d, node, "format");
    if (pn_json_type_of(d, node) != PN_JSON_OBJECT)
        return pn_oai_expected(p, name, "an object", node);
    if (pn_oai_given(d, effort))
        pn_oai_translate_as(p, "reasoning_effort", effort);
    if (pn_oai_given(d, format))
        pn_oai_translate_as(p, "response_format", format);
    return true;
}

static const pn_oai_field anth_fields[] = {
    {"messages", pn_oai_read_nothing}, {"system", pn_oai_read_nothing}, {"tools", anth_tools}, {"tool_choice", anth_tool_choice},
    {"stop_sequences", anth_stop}, {"output_format", anth_output_format}, {"output_config", anth_output_config},
    {"n", pn_oai_translate_ignore}, {"logprobs", pn_oai_translate_ignore}, {"top_logprobs", pn_oai_translate_ignore},
    {"stream_options", pn_oai_translate_ignore},
};

static const pn_oai_rename anth_names[] = {
    {"stop", "stop_sequences"}, {"response_format", "output_config.format"}, {"reasoning_effort", "output_config.effort"},
};

PN_INTERNAL bool pn_anthropic_parse(pn_oai_chat *out, pn_mem *mem, const char *text, size_t len, pn_oai_error *e)
{
    pn_oai_translator t;
    memset(out, 0, sizeof *out);
    bool ok = pn_oai_translate_open(&t, mem, text, len, e) && anth_messages(&t.p) &&
              pn_oai_translate_fields(&t, anth_fields, PN_COUNT_OF(anth_fields));
    if (ok && !pn_oai_given(&t.in.body, pn_json_get(&t.in.body, PN_JSON_ROOT, "max_tokens"))) {
        pn_json_key(&t.out, "max_tokens");
        pn_json_write_u64(&t.out, 4096);
    }
    ok = ok && pn_oai_translate_end(&t, out, anth_names, PN_COUNT_OF(anth_names));
    pn_oai_translate_close(&t);
    return ok;
}
