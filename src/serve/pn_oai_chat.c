/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_oai_chat.c - the fields of a chat completions request, one row of a table each.
 */
#include "serve/pn_oai_read.h"

#include <stdio.h>

enum { OCHAT_TOOLS_MAX = 1024 };

static pn_oai_chat *ochat_of(const pn_oai_parser *p) { return (pn_oai_chat *)p->q; }

/* ------------------------------------------------------------------------------------------
 * Fields one by one
 * ------------------------------------------------------------------------------------------ */

static bool ochat_messages(pn_oai_parser *p, const char *name, uint32_t node)
{
    ochat_of(p)->messages = node;
    return pn_json_type_of(&p->q->body, node) == PN_JSON_ARRAY || pn_oai_expected(p, name, "an array", node);
}

/* max_completion_tokens has the last word; -1 is llama-server's "no limit". */
static bool ochat_max_tokens(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    int64_t v;
    if (!pn_json_i64(d, node, &v))
        return pn_oai_expected(p, name, "an integer", node);
    if (v != -1 && (v < 1 || v > INT32_MAX))
        return pn_oai_fail(p, name, "%s: expected at least 1, found %lld", name, (long long)v);
    if (strcmp(name, "max_tokens") != 0 || !pn_oai_given(d, pn_json_get(d, PN_JSON_ROOT, "max_completion_tokens")))
        p->q->max_tokens = v < 0 ? 0 : (uint32_t)v;
    return true;
}

static bool ochat_logprobs(pn_oai_parser *p, const char *name, uint32_t node) { return pn_oai_read_bool(p, name, node, &p->q->logprobs); }

static bool ochat_top_logprobs(pn_oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    if (!pn_oai_read_int(p, name, node, 0, 20, &v))
        return false;
    p->q->top_logprobs = (uint32_t)v;
    return true;
}

/* Only text comes out. */
static bool ochat_modalities(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    if (pn_json_type_of(d, node) != PN_JSON_ARRAY)
        return pn_oai_expected(p, name, "an array", node);
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes word;
        if (!pn_oai_read_text(p, name, c, &word))
            return false;
        if (!pn_oai_same(word, "text"))
            return pn_oai_fail(p, name, "modalities: expected text alone, found '%.*s'", (int)PN_MIN(word.len, (size_t)60), word.data);
    }
    return true;
}

/* Reasoning is always told apart ("deepseek"); leaving it in the content is not there. */
static bool ochat_reasoning_format(pn_oai_parser *p, const char *name, uint32_t node)
{
    pn_bytes word;
    if (!pn_oai_read_text(p, name, node, &word))
        return false;
    if (!pn_oai_same(word, "auto") && !pn_oai_same(word, "deepseek"))
        pn_oai_ignore(p, name, strlen(name));
    return true;
}

/* Asking for these and not getting them would be another answer than the one asked for. */
static const struct { const char *name, *why; } ochat_refusals[] = {
    {"audio", "this server has no audio"}, {"web_search_options", "this server does not search the web"},
    {"functions", "the deprecated form of tools is not there: send tools"},
    {"function_call", "the deprecated form of tool_choice is not there: send tool_choice"},
    {"chat_template", "templates of clients are not taken, the model's own is used"},
};

static bool ochat_refused(pn_oai_parser *p, const char *name, uint32_t node)
{
    size_t i = 0;
    (void)node;
    while (strcmp(ochat_refusals[i].name, name) != 0)
        i++;
    return pn_oai_fail(p, name, "%s: %s", name, ochat_refusals[i].why);
}

/* ------------------------------------------------------------------------------------------
 * Tools
 * ------------------------------------------------------------------------------------------ */

static bool ochat_tool(pn_oai_parser *p, uint32_t tool, uint32_t i)
{
    const pn_json_doc *d = &p->q->body;
    char param[64];
    pn_bytes text;
    uint32_t kind = pn_json_get(d, tool, "type");
    snprintf(param, sizeof param, "tools[%u].type", (unsigned)i);
    if (pn_json_type_of(d, tool) != PN_JSON_OBJECT)
        return pn_oai_expected(p, param, "an object", tool);
    if (pn_oai_given(d, kind) && (!pn_json_str(d, kind, &text) || !pn_oai_same(text, "function")))
        return pn_oai_fail(p, param, "%s: expected \"function\"; other kinds of tools are not there", param);
    snprintf(param, sizeof param, "tools[%u].function.name", (unsigned)i);
    return pn_oai_read_text(p, param, pn_json_get(d, pn_json_get(d, tool, "function"), "name"), &text);
}

static bool ochat_tools(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    uint32_t i = 0;
    if (pn_json_type_of(d, node) != PN_JSON_ARRAY)
        return pn_oai_expected(p, name, "an array", node);
    if (pn_json_count(d, node) > OCHAT_TOOLS_MAX)
        return pn_oai_fail(p, name, "tools: expected at most %d, found %u", (int)OCHAT_TOOLS_MAX, (unsigned)pn_json_count(d, node));
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c), i++)
        if (!ochat_tool(p, c, i))
            return false;
    ochat_of(p)->tools = i ? node : PN_JSON_NONE;
    return true;
}

/* auto, none, required; of `allowed_tools`, its mode. */
static bool ochat_choice_word(pn_oai_parser *p, const char *param, uint32_t node)
{
    pn_bytes word;
    if (!pn_oai_read_text(p, param, node, &word))
        return false;
    bool required = pn_oai_same(word, "required"), none = pn_oai_same(word, "none");
    if (!required && !none && !pn_oai_same(word, "auto"))
        return pn_oai_fail(p, param, "%s: expected auto, none, required or a function, found '%.*s'", param,
                           (int)PN_MIN(word.len, (size_t)60), word.data);
    ochat_of(p)->tool_choice = required ? PN_TOOLS_REQUIRED : none ? PN_TOOLS_NONE : PN_TOOLS_AUTO;
    return true;
}

/* {"function":{"name":...}}, or the name beside the type as the Responses API has it. */
static bool ochat_function_name(const pn_json_doc *d, uint32_t node, pn_bytes *out)
{
    return pn_json_str(d, pn_json_get(d, pn_json_get(d, node, "function"), "name"), out) || pn_json_str(d, pn_json_get(d, node, "name"), out);
}

static bool ochat_tool_choice(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    pn_oai_chat *q = ochat_of(p);
    uint32_t allowed = pn_json_get(d, node, "allowed_tools");
    if (pn_json_type_of(d, node) == PN_JSON_STRING)
        return ochat_choice_word(p, name, node);
    if (pn_oai_given(d, allowed)) {
        q->allowed = pn_json_get(d, allowed, "tools");
        if (pn_json_type_of(d, q->allowed) != PN_JSON_ARRAY || pn_json_count(d, q->allowed) > OCHAT_TOOLS_MAX)
            return pn_oai_expected(p, "tool_choice.allowed_tools.tools", "an array of some tools", q->allowed);
        return ochat_choice_word(p, "tool_choice.allowed_tools.mode", pn_json_get(d, allowed, "mode"));
    }
    if (!ochat_function_name(d, node, &q->tool_name))
        return pn_oai_fail(p, name, "tool_choice: expected auto, none, required or {\"type\":\"function\",\"function\":{\"name\":...}}");
    q->tool_choice = PN_TOOLS_REQUIRED;
    return true;
}

static bool ochat_parallel(pn_oai_parser *p, const char *name, uint32_t node)
{
    bool v;
    bool ok = pn_oai_read_bool(p, name, node, &v);
    if (ok)
        ochat_of(p)->single_call = !v;
    return ok;
}

static bool ochat_is_among(const pn_json_doc *d, uint32_t list, pn_bytes name)
{
    for (uint32_t c = pn_json_first(d, list); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes other;
        if (ochat_function_name(d, c, &other) && other.len == name.len && memcmp(other.data, name.data, name.len) == 0)
            return true;
    }
    return false;
}

static bool ochat_check_name(pn_oai_parser *p, pn_bytes name)
{
    return ochat_is_among(&p->q->body, ochat_of(p)->tools, name) ||
           pn_oai_fail(p, "tool_choice", "tool_choice: there is no tool '%.*s' among tools", (int)PN_MIN(name.len, (size_t)64), name.data);
}

static bool ochat_check_tools(pn_oai_parser *p)
{
    const pn_json_doc *d = &p->q->body;
    const pn_oai_chat *q = ochat_of(p);
    if (q->tool_choice == PN_TOOLS_REQUIRED && q->tools == PN_JSON_NONE)
        return pn_oai_fail(p, "tool_choice", "tool_choice: a call is required, but there are no tools");
    if (q->tool_name.data && !ochat_check_name(p, q->tool_name))
        return false;
    for (uint32_t c = pn_json_first(d, q->allowed); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes name;
        if (!ochat_function_name(d, c, &name))
            return pn_oai_fail(p, "tool_choice.allowed_tools.tools", "tool_choice.allowed_tools.tools: expected functions with a name");
        if (!ochat_check_name(p, name))
            return false;
    }
    return true;
}

PN_INTERNAL void pn_oai_chat_tools(const pn_oai_chat *q, pn_str *out)
{
    const pn_json_doc *d = &q->common.body;
    size_t start = out->len;
    for (uint32_t c = pn_json_first(d, q->tools); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes name = {NULL, 0};
        if (q->allowed != PN_JSON_NONE && (!ochat_function_name(d, c, &name) || !ochat_is_among(d, q->allowed, name)))
            continue;
        pn_str_addc(out, out->len == start ? '[' : ',');
        pn_json_write_node(out, d, c);
    }
    if (out->len > start)
        pn_str_addc(out, ']');
}

/* ------------------------------------------------------------------------------------------
 * Reasoning and the template's variables
 * ------------------------------------------------------------------------------------------ */

static pn_str *ochat_variable(pn_oai_parser *p, const char *name)
{
    pn_str *s = &ochat_of(p)->variables;
    if (!s->len)
        pn_str_addc(s, '{');
    pn_json_key(s, name);
    return s;
}

static bool ochat_enable_thinking(pn_oai_parser *p, const char *name, uint32_t node)
{
    bool v;
    if (!pn_oai_read_bool(p, name, node, &v))
        return false;
    pn_json_write_bool(ochat_variable(p, "enable_thinking"), v);
    return true;
}

static bool ochat_reasoning_effort(pn_oai_parser *p, const char *name, uint32_t node)
{
    pn_bytes v;
    if (!pn_oai_read_text(p, name, node, &v))
        return false;
    if (pn_oai_same(v, "none"))
        pn_json_write_bool(ochat_variable(p, "enable_thinking"), false);
    pn_json_write_str(ochat_variable(p, "reasoning_effort"), v.data, v.len);
    return true;
}

static bool ochat_documents(pn_oai_parser *p, const char *name, uint32_t node)
{
    if (pn_json_type_of(&p->q->body, node) != PN_JSON_ARRAY)
        return pn_oai_expected(p, name, "an array", node);
    pn_json_write_node(ochat_variable(p, name), &p->q->body, node);
    return true;
}

/* Last, so that it has the last word. */
static bool ochat_template_kwargs(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    if (pn_json_type_of(d, node) != PN_JSON_OBJECT)
        return pn_oai_expected(p, name, "an object", node);
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes key = pn_json_key_of(d, c);
        bool b;
        if (pn_oai_same(key, "messages") || pn_oai_same(key, "tools"))
            return pn_oai_fail(p, name, "chat_template_kwargs: messages and tools are fields of the request");
        if (pn_oai_same(key, "enable_thinking") && !pn_json_bool(d, c, &b))
            return pn_oai_expected(p, "chat_template_kwargs.enable_thinking", "true or false", c);
        pn_json_write_node(ochat_variable(p, key.data), d, c);
    }
    return true;
}

static bool ochat_reasoning_budget(pn_oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    if (!pn_oai_read_int(p, name, node, -1, INT32_MAX, &v))
        return false;
    ochat_of(p)->has_reasoning_budget = v >= 0;
    ochat_of(p)->reasoning_budget = v < 0 ? 0 : (uint32_t)v;
    return true;
}

/* {"type":"enabled","budget_tokens":1024}; "adaptive" leaves it to the model. */
static bool ochat_thinking(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    pn_bytes type;
    uint32_t budget = pn_json_get(d, node, "budget_tokens");
    if (pn_json_type_of(d, node) != PN_JSON_OBJECT)
        return pn_oai_expected(p, name, "an object", node);
    if (!pn_oai_read_text(p, "thinking.type", pn_json_get(d, node, "type"), &type))
        return false;
    bool enabled = pn_oai_same(type, "enabled");
    if (!enabled && !pn_oai_same(type, "disabled") && !pn_oai_same(type, "adaptive"))
        return pn_oai_fail(p, "thinking.type", "thinking.type: expected enabled, disabled or adaptive, found '%.*s'",
                           (int)PN_MIN(type.len, (size_t)60), type.data);
    if (!pn_oai_same(type, "adaptive"))
        pn_json_write_bool(ochat_variable(p, "enable_thinking"), enabled);
    return !pn_oai_given(d, budget) || ochat_reasoning_budget(p, "thinking.budget_tokens", budget);
}

/* ------------------------------------------------------------------------------------------
 * The table
 * ------------------------------------------------------------------------------------------ */

static const pn_oai_field ochat_fields[] = {
    {"messages", ochat_messages}, {"max_tokens", ochat_max_tokens}, {"max_completion_tokens", ochat_max_tokens},
    {"logprobs", ochat_logprobs}, {"top_logprobs", ochat_top_logprobs}, {"modalities", ochat_modalities}, {"tools", ochat_tools},
    {"tool_choice", ochat_tool_choice}, {"parallel_tool_calls", ochat_parallel}, {"enable_thinking", ochat_enable_thinking},
    {"reasoning_effort", ochat_reasoning_effort}, {"reasoning_budget_tokens", ochat_reasoning_budget},
    {"thinking_budget_tokens", ochat_reasoning_budget}, {"thinking", ochat_thinking}, {"reasoning_format", ochat_reasoning_format},
    {"documents", ochat_documents}, {"chat_template_kwargs", pn_oai_read_nothing}, {"audio", ochat_refused},
    {"web_search_options", ochat_refused}, {"functions", ochat_refused}, {"function_call", ochat_refused}, {"chat_template", ochat_refused},
};

/* ------------------------------------------------------------------------------------------
 * Messages
 * ------------------------------------------------------------------------------------------ */

static bool ochat_check_parts(pn_oai_parser *p, uint32_t content, const char *param)
{
    const pn_json_doc *d = &p->q->body;
    char at[80];
    uint32_t j = 0;
    for (uint32_t c = pn_json_first(d, content); c != PN_JSON_NONE; c = pn_json_next(d, c), j++) {
        pn_bytes type;
        snprintf(at, sizeof at, "%s[%u].type", param, (unsigned)j);
        if (!pn_json_str(d, pn_json_get(d, c, "type"), &type))
            return pn_oai_fail(p, at, "%s: expected the type of a part, a string", at);
        if (!pn_oai_same(type, "text") && !pn_oai_same(type, "refusal"))
            return pn_oai_fail(p, at, "%s: the model takes text alone, found a part of type '%.*s'", at, (int)PN_MIN(type.len, (size_t)40), type.data);
        uint32_t text = pn_json_get(d, c, pn_oai_same(type, "text") ? "text" : "refusal");
        snprintf(at, sizeof at, "%s[%u].%s", param, (unsigned)j, pn_oai_same(type, "text") ? "text" : "refusal");
        if (pn_json_type_of(d, text) != PN_JSON_STRING)
            return pn_oai_expected(p, at, "a string", text);
    }
    return true;
}

static bool ochat_check_message(pn_oai_parser *p, uint32_t message, uint32_t i)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    const pn_json_doc *d = &p->q->body;
    char param[64];
    pn_bytes role;
    size_t k = 0;
    snprintf(param, sizeof param, "messages[%u].role", (unsigned)i);
    if (!pn_json_str(d, pn_json_get(d, message, "role"), &role))
        return pn_oai_fail(p, param, "%s: expected an object with a role, a string", param);
    while (k < PN_COUNT_OF(roles) && !pn_oai_same(role, roles[k]))
        k++;
    if (k == PN_COUNT_OF(roles))
        return pn_oai_fail(p, param, "%s: expected system, developer, user, assistant or tool, found '%.*s'", param, (int)PN_MIN(role.len, (size_t)40),
                           role.data);
    uint32_t content = pn_json_get(d, message, "content");
    pn_json_type type = pn_json_type_of(d, content);
    snprintf(param, sizeof param, "messages[%u].content", (unsigned)i);
    if (type == PN_JSON_ARRAY)
        return ochat_check_parts(p, content, param);
    bool may_lack = k >= 3;                     /* assistants call tools; tools may have nothing to say */
    if (type == PN_JSON_STRING || (type <= PN_JSON_NULL && may_lack))
        return true;
    return pn_oai_expected(p, param, "a string or an array of parts", content);
}

static bool ochat_has_text(const pn_json_doc *d, uint32_t content)
{
    pn_bytes text;
    if (pn_json_str(d, content, &text))
        return text.len != 0;
    for (uint32_t c = pn_json_first(d, content); c != PN_JSON_NONE; c = pn_json_next(d, c))
        if ((pn_json_str(d, pn_json_get(d, c, "text"), &text) || pn_json_str(d, pn_json_get(d, c, "refusal"), &text)) && text.len)
            return true;
    return false;
}

/* Nothing said or called. */
static bool ochat_is_empty_assistant(const pn_json_doc *d, uint32_t message)
{
    pn_bytes role;
    return pn_json_str(d, pn_json_get(d, message, "role"), &role) && pn_oai_same(role, "assistant") &&
           !ochat_has_text(d, pn_json_get(d, message, "content")) && pn_json_count(d, pn_json_get(d, message, "tool_calls")) == 0 &&
           !pn_oai_given(d, pn_json_get(d, message, "function_call"));
}

/* Clients leave empty messages of the assistant at the end, where the answer is to come. */
static bool ochat_check_messages(pn_oai_parser *p)
{
    const pn_json_doc *d = &p->q->body;
    pn_oai_chat *q = ochat_of(p);
    uint32_t i = 0;
    for (uint32_t c = pn_json_first(d, q->messages); c != PN_JSON_NONE; c = pn_json_next(d, c), i++) {
        if (!ochat_check_message(p, c, i))
            return false;
        if (!ochat_is_empty_assistant(d, c))
            q->n_messages = i + 1;
    }
    return q->n_messages || pn_oai_fail(p, "messages", "messages: expected at least one message");
}

static bool ochat_check(pn_oai_parser *p)
{
    const pn_oai_chat *q = ochat_of(p);
    bool gbnf = p->q->format == PN_OAI_GBNF;
    if (!ochat_check_messages(p) || !ochat_check_tools(p))
        return false;
    if (p->q->top_logprobs && !p->q->logprobs)
        return pn_oai_fail(p, "top_logprobs", "top_logprobs: expected logprobs to be true");
    if (p->q->format != PN_OAI_TEXT && q->tools != PN_JSON_NONE)
        return pn_oai_fail(p, gbnf ? "grammar" : "response_format", "an answer held to a %s calls no tools; expected one of the two",
                           gbnf ? "grammar" : "schema");
    return true;
}

/* ------------------------------------------------------------------------------------------
 * All of it
 * ------------------------------------------------------------------------------------------ */

static bool ochat_read(pn_oai_parser *p)
{
    const pn_json_doc *d = &p->q->body;
    pn_str *variables = &ochat_of(p)->variables;
    uint32_t kwargs = pn_json_get(d, PN_JSON_ROOT, "chat_template_kwargs");
    if (!pn_oai_read_fields(p, ochat_fields, PN_COUNT_OF(ochat_fields), true))
        return false;
    if (pn_oai_given(d, kwargs) && !ochat_template_kwargs(p, "chat_template_kwargs", kwargs))
        return false;
    if (variables->len)
        pn_str_addc(variables, '}');
    return variables->failed ? pn_oai_fail_memory(p) : ochat_check(p);
}

PN_INTERNAL bool pn_oai_chat_parse(pn_oai_chat *out, pn_mem *mem, const char *text, size_t len, uint32_t n_max, pn_oai_error *e)
{
    pn_oai_parser p = {&out->common, e, n_max};
    memset(out, 0, sizeof *out);
    out->messages = out->tools = out->allowed = PN_JSON_NONE;
    pn_str_init(&out->variables, mem, PN_ACCT_CONN);
    bool ok = pn_oai_open(&p, mem, text, len) && ochat_read(&p);
    if (!ok)
        pn_oai_chat_fini(out);
    return ok;
}

PN_INTERNAL void pn_oai_chat_fini(pn_oai_chat *q)
{
    pn_oai_close(&q->common);
    pn_str_fini(&q->variables);
}
