/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_oai_chat.c - the fields of a chat completions request, one row of a table each.
 *
 * A field without a row is unknown: SDKs add fields all the time, so it is no error, but it is listed.
 */
#include "serve/pn_oai.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

enum { OAI_STOPS = 16, OAI_BIASES = 4096, OAI_TOP_LOGPROBS = 20 };

typedef struct oai_parser {
    pn_oai_chat *q;
    pn_oai_error *e;
    uint32_t n_max;
} oai_parser;

/* ------------------------------------------------------------------------------------------
 * Errors
 * ------------------------------------------------------------------------------------------ */

static bool oai_fail(oai_parser *p, const char *param, const char *fmt, ...) PN_PRINTF(3, 4);
static bool oai_fail(oai_parser *p, const char *param, const char *fmt, ...)
{
    va_list ap;
    *p->e = (pn_oai_error){.status = 400, .type = "invalid_request_error", .code = "invalid_value"};
    snprintf(p->e->param, sizeof p->e->param, "%s", param);
    va_start(ap, fmt);
    vsnprintf(p->e->message, sizeof p->e->message, fmt, ap);
    va_end(ap);
    return false;
}

static bool oai_nomem(oai_parser *p)
{
    *p->e = (pn_oai_error){.status = 500, .type = "server_error", .code = NULL};
    snprintf(p->e->message, sizeof p->e->message, "out of memory while the request was read");
    return false;
}

static const pn_json_doc *oai_doc(const oai_parser *p) { return &p->q->body; }

static bool oai_expected(oai_parser *p, const char *param, const char *what, uint32_t node)
{
    return oai_fail(p, param, "%s: expected %s, found %s", param, what, pn_json_type_name(pn_json_type_of(oai_doc(p), node)));
}

PN_INTERNAL void pn_oai_error_json(const pn_oai_error *e, pn_str *out)
{
    pn_str_addz(out, "{\"error\":{\"message\":");
    pn_json_write_strz(out, e->message);
    pn_json_key(out, "type");
    pn_json_write_strz(out, e->type);
    pn_json_key(out, "param");
    pn_json_write_strz(out, e->param[0] ? e->param : NULL);
    pn_json_key(out, "code");
    pn_json_write_strz(out, e->code);
    pn_str_addz(out, "}}");
}

/* ------------------------------------------------------------------------------------------
 * Kinds of values
 * ------------------------------------------------------------------------------------------ */

static bool oai_bool(oai_parser *p, const char *name, uint32_t node, bool *out)
{
    return pn_json_bool(oai_doc(p), node, out) || oai_expected(p, name, "true or false", node);
}

static bool oai_int(oai_parser *p, const char *name, uint32_t node, int64_t lo, int64_t hi, int64_t *out)
{
    if (!pn_json_i64(oai_doc(p), node, out))
        return oai_expected(p, name, "an integer", node);
    if (*out >= lo && *out <= hi)
        return true;
    return oai_fail(p, name, "%s: expected %" PRId64 " to %" PRId64 ", found %" PRId64, name, lo, hi, *out);
}

static bool oai_text(oai_parser *p, const char *name, uint32_t node, pn_bytes *out)
{
    return pn_json_str(oai_doc(p), node, out) || oai_expected(p, name, "a string", node);
}

static bool oai_same(pn_bytes b, const char *text) { return b.len == strlen(text) && memcmp(b.data, text, b.len) == 0; }

static void oai_ignore(oai_parser *p, pn_bytes name)
{
    if (p->q->ignored.len)
        pn_str_addc(&p->q->ignored, ',');
    pn_json_write_str(&p->q->ignored, name.data, name.len);
}

/* ------------------------------------------------------------------------------------------
 * Sampling: numbers that go where they belong
 * ------------------------------------------------------------------------------------------ */

typedef struct oai_number {
    const char *name;
    uint16_t at;                /* in pn_sampling */
    bool real;                  /* float, else int32_t */
    float lo, hi;
    float off;                  /* what the API's 0 becomes, where 0 is our default; 0: itself */
} oai_number;

#define OAI_F(name, field, lo, hi, off) {name, (uint16_t)offsetof(pn_sampling, field), true, lo, hi, off}
#define OAI_I(name, field, lo, hi, off) {name, (uint16_t)offsetof(pn_sampling, field), false, lo, hi, off}

static const oai_number oai_numbers[] = {
    OAI_F("temperature", temperature, 0, 100, 0), OAI_F("top_p", top_p, 0, 1, 1e-30f), OAI_I("top_k", top_k, -1, 1 << 30, 0),
    OAI_F("min_p", min_p, 0, 1, 0), OAI_F("typical_p", typical_p, 0, 1, 1e-30f), OAI_F("top_n_sigma", top_n_sigma, -1, 1000, 0),
    OAI_F("repeat_penalty", repeat_penalty, 1e-3f, 1000, 0), OAI_F("repetition_penalty", repeat_penalty, 1e-3f, 1000, 0),
    OAI_I("repeat_last_n", repeat_last_n, -1, 1 << 30, 0), OAI_F("presence_penalty", presence_penalty, -100, 100, 0),
    OAI_F("frequency_penalty", frequency_penalty, -100, 100, 0), OAI_F("xtc_probability", xtc_probability, 0, 1, 0),
    OAI_F("xtc_threshold", xtc_threshold, 0, 1, 1e-30f), OAI_F("dry_multiplier", dry_multiplier, 0, 1000, 0),
    OAI_F("dry_base", dry_base, 0, 1000, 0), OAI_I("dry_allowed_length", dry_allowed_length, 1, 1 << 30, 0),
    OAI_I("dry_penalty_last_n", dry_penalty_last_n, -1, 1 << 30, 0), OAI_F("dynatemp_range", dynatemp_range, 0, 1000, 0),
    OAI_F("dynatemp_exponent", dynatemp_exponent, 1e-3f, 1000, 0), OAI_F("mirostat_tau", mirostat_tau, 1e-3f, 1000, 0),
    OAI_F("mirostat_eta", mirostat_eta, 1e-6f, 1000, 0),
};

static bool oai_number_field(oai_parser *p, size_t i, uint32_t node)
{
    const oai_number *f = &oai_numbers[i];
    char *at = (char *)&p->q->sampling + f->at;
    double v;
    int64_t n;
    if (!f->real) {
        if (!oai_int(p, f->name, node, (int64_t)f->lo, (int64_t)f->hi, &n))
            return false;
        int32_t small = (int32_t)n;
        memcpy(at, &small, sizeof small);
    } else {
        if (!pn_json_f64(oai_doc(p), node, &v))
            return oai_expected(p, f->name, "a number", node);
        if (!(v >= (double)f->lo && v <= (double)f->hi))
            return oai_fail(p, f->name, "%s: expected %g to %g, found %g", f->name, (double)f->lo, (double)f->hi, v);
        float real = v == 0 && f->off > 0 ? f->off : (float)v;
        memcpy(at, &real, sizeof real);
    }
    p->q->given |= (uint64_t)1 << i;
    return true;
}

PN_INTERNAL void pn_oai_chat_sampling(const pn_oai_chat *q, pn_sampling *s)
{
    for (size_t i = 0; i < PN_COUNT_OF(oai_numbers); i++)
        if (q->given >> i & 1)
            memcpy((char *)s + oai_numbers[i].at, (const char *)&q->sampling + oai_numbers[i].at, 4);
    s->seed = q->sampling.seed;
    s->has_seed = q->sampling.has_seed;
    s->ignore_eos = q->sampling.ignore_eos;
    s->min_tokens = q->sampling.min_tokens;
    s->mirostat = q->sampling.mirostat ? q->sampling.mirostat : s->mirostat;
    s->bias = q->bias;
    s->n_bias = q->sampling.n_bias;
}

/* ------------------------------------------------------------------------------------------
 * Fields one by one
 * ------------------------------------------------------------------------------------------ */

typedef bool (*oai_reader)(oai_parser *p, const char *name, uint32_t node);

static bool oai_model(oai_parser *p, const char *name, uint32_t node) { return oai_text(p, name, node, &p->q->model); }
static bool oai_session(oai_parser *p, const char *name, uint32_t node) { return oai_text(p, name, node, &p->q->session); }
static bool oai_stream(oai_parser *p, const char *name, uint32_t node) { return oai_bool(p, name, node, &p->q->stream); }
static bool oai_logprobs(oai_parser *p, const char *name, uint32_t node) { return oai_bool(p, name, node, &p->q->logprobs); }

static bool oai_messages(oai_parser *p, const char *name, uint32_t node)
{
    p->q->messages = node;
    return pn_json_type_of(oai_doc(p), node) == PN_JSON_ARRAY || oai_expected(p, name, "an array", node);
}

/* max_completion_tokens has the last word; -1 is llama-server's "no limit". */
static bool oai_max_tokens(oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    if (!pn_json_i64(oai_doc(p), node, &v))
        return oai_expected(p, name, "an integer", node);
    if (v != -1 && (v < 1 || v > INT32_MAX))
        return oai_fail(p, name, "%s: expected at least 1, found %" PRId64, name, v);
    uint32_t other = pn_json_get(oai_doc(p), PN_JSON_ROOT, "max_completion_tokens");
    if (strcmp(name, "max_tokens") != 0 || pn_json_type_of(oai_doc(p), other) <= PN_JSON_NULL)
        p->q->max_tokens = v < 0 ? 0 : (uint32_t)v;
    return true;
}

static bool oai_n(oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    bool ok = oai_int(p, name, node, 1, p->n_max, &v);
    if (ok)
        p->q->n = (uint32_t)v;
    return ok;
}

static bool oai_stream_options(oai_parser *p, const char *name, uint32_t node)
{
    if (pn_json_type_of(oai_doc(p), node) != PN_JSON_OBJECT)
        return oai_expected(p, name, "an object", node);
    uint32_t usage = pn_json_get(oai_doc(p), node, "include_usage");
    return pn_json_type_of(oai_doc(p), usage) <= PN_JSON_NULL || oai_bool(p, "stream_options.include_usage", usage, &p->q->include_usage);
}

static bool oai_stop(oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = oai_doc(p);
    bool many = pn_json_type_of(d, node) == PN_JSON_ARRAY;
    pn_bytes s;
    if (!many && pn_json_type_of(d, node) != PN_JSON_STRING)
        return oai_expected(p, name, "a string or an array of strings", node);
    for (uint32_t c = many ? pn_json_first(d, node) : node; c != PN_JSON_NONE; c = many ? pn_json_next(d, c) : PN_JSON_NONE) {
        if (!oai_text(p, name, c, &s))
            return false;
        if (memchr(s.data, 0, s.len))
            return oai_fail(p, name, "stop: expected text, found a NUL");
        if (p->q->n_stop == OAI_STOPS)
            return oai_fail(p, name, "stop: expected at most %d strings, found more", (int)OAI_STOPS);
        if (!s.len)
            continue;
        if (!pn_mem_grow(p->q->mem, PN_ACCT_CONN, (void **)&p->q->stop, &p->q->cap_stop, p->q->n_stop + 1, sizeof *p->q->stop))
            return oai_nomem(p);
        p->q->stop[p->q->n_stop++] = s.data;
    }
    return true;
}

static bool oai_seed(oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    if (!pn_json_i64(oai_doc(p), node, &v))
        return oai_expected(p, name, "an integer", node);
    p->q->sampling.seed = (uint64_t)v;
    p->q->sampling.has_seed = 1;
    return true;
}

static bool oai_add_bias(oai_parser *p, int64_t token, double bias)
{
    pn_oai_chat *q = p->q;
    if (token < 0 || token > INT32_MAX || !(bias >= -100 && bias <= 100))
        return oai_fail(p, "logit_bias", "logit_bias: expected token ids with a bias of -100 to 100, found %" PRId64 ": %g", token, bias);
    if (q->sampling.n_bias == OAI_BIASES)
        return oai_fail(p, "logit_bias", "logit_bias: expected at most %d tokens, found more", (int)OAI_BIASES);
    if (!pn_mem_grow(q->mem, PN_ACCT_CONN, (void **)&q->bias, &q->cap_bias, q->sampling.n_bias + 1, sizeof *q->bias))
        return oai_nomem(p);
    q->bias[q->sampling.n_bias++] = (pn_logit_bias){(pn_token)token, (float)bias};
    return true;
}

/* {"17": -1.5} or [[17, -1.5]] */
static bool oai_logit_bias(oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = oai_doc(p);
    pn_json_type type = pn_json_type_of(d, node);
    if (type != PN_JSON_OBJECT && type != PN_JSON_ARRAY)
        return oai_expected(p, name, "an object", node);
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes key = pn_json_key_of(d, c);
        int64_t id = -1;
        double v;
        uint32_t value = type == PN_JSON_OBJECT ? c : pn_json_next(d, pn_json_first(d, c));
        bool ok = type == PN_JSON_OBJECT ? pn_parse_i64(key.data, 0, INT32_MAX, &id) : pn_json_i64(d, pn_json_first(d, c), &id);
        if (!ok || !pn_json_f64(d, value, &v))
            return oai_fail(p, name, "logit_bias: expected token ids and numbers");
        if (!oai_add_bias(p, id, v))
            return false;
    }
    return true;
}

static bool oai_top_logprobs(oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    if (!oai_int(p, name, node, 0, OAI_TOP_LOGPROBS, &v))
        return false;
    p->q->top_logprobs = (uint32_t)v;
    return true;
}

static bool oai_min_tokens(oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    bool ok = oai_int(p, name, node, 0, INT32_MAX, &v);
    if (ok)
        p->q->sampling.min_tokens = (uint32_t)v;
    return ok;
}

static bool oai_ignore_eos(oai_parser *p, const char *name, uint32_t node)
{
    bool v;
    bool ok = oai_bool(p, name, node, &v);
    if (ok)
        p->q->sampling.ignore_eos = v;
    return ok;
}

static bool oai_mirostat(oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    if (!oai_int(p, name, node, 0, 2, &v))
        return false;
    if (v == 1)
        return oai_fail(p, name, "mirostat: expected 0 or 2, found 1: version 1 is not there");
    p->q->sampling.mirostat = (int32_t)v;
    return true;
}

/* ------------------------------------------------------------------------------------------
 * What the answer has to look like
 * ------------------------------------------------------------------------------------------ */

static bool oai_set_format(oai_parser *p, const char *name, pn_oai_format format, uint32_t schema, pn_bytes grammar)
{
    if (p->q->format != PN_OAI_TEXT)
        return oai_fail(p, name, "%s: the request says already what the answer has to look like; expected one such field", name);
    p->q->format = format;
    p->q->schema = schema;
    p->q->grammar = grammar;
    return true;
}

static bool oai_is_schema(const pn_json_doc *d, uint32_t node)
{
    return pn_json_type_of(d, node) == PN_JSON_OBJECT || pn_json_type_of(d, node) == PN_JSON_BOOL;
}

static bool oai_response_format(oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = oai_doc(p);
    const pn_bytes none = {NULL, 0};
    pn_bytes type;
    if (pn_json_type_of(d, node) != PN_JSON_OBJECT)
        return oai_expected(p, name, "an object", node);
    if (!oai_text(p, "response_format.type", pn_json_get(d, node, "type"), &type))
        return false;
    if (oai_same(type, "text"))
        return true;
    uint32_t schema = pn_json_get(d, pn_json_get(d, node, "json_schema"), "schema");
    if (schema == PN_JSON_NONE)
        schema = pn_json_get(d, node, "schema");
    if (oai_same(type, "json_object") && pn_json_type_of(d, schema) <= PN_JSON_NULL)
        return oai_set_format(p, name, PN_OAI_JSON_OBJECT, PN_JSON_NONE, none);
    if (!oai_same(type, "json_schema") && !oai_same(type, "json_object"))
        return oai_fail(p, "response_format.type", "response_format.type: expected text, json_object or json_schema, found '%.*s'",
                        (int)PN_MIN(type.len, (size_t)60), type.data);
    if (!oai_is_schema(d, schema))
        return oai_expected(p, "response_format.json_schema.schema", "a JSON Schema", schema);
    return oai_set_format(p, name, PN_OAI_SCHEMA, schema, none);
}

static bool oai_json_schema(oai_parser *p, const char *name, uint32_t node)
{
    const pn_bytes none = {NULL, 0};
    if (!oai_is_schema(oai_doc(p), node))
        return oai_expected(p, name, "a JSON Schema", node);
    return oai_set_format(p, name, PN_OAI_SCHEMA, node, none);
}

static bool oai_grammar(oai_parser *p, const char *name, uint32_t node)
{
    pn_bytes text;
    return oai_text(p, name, node, &text) && (!text.len || oai_set_format(p, name, PN_OAI_GBNF, PN_JSON_NONE, text));
}

/* ------------------------------------------------------------------------------------------
 * Tools
 * ------------------------------------------------------------------------------------------ */

static bool oai_tools(oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = oai_doc(p);
    char param[64];
    uint32_t i = 0;
    if (pn_json_type_of(d, node) != PN_JSON_ARRAY)
        return oai_expected(p, name, "an array", node);
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c), i++) {
        pn_bytes type;
        snprintf(param, sizeof param, "tools[%u].type", (unsigned)i);
        if (pn_json_type_of(d, c) != PN_JSON_OBJECT)
            return oai_expected(p, param, "an object", c);
        uint32_t kind = pn_json_get(d, c, "type");
        if (pn_json_type_of(d, kind) > PN_JSON_NULL && (!pn_json_str(d, kind, &type) || !oai_same(type, "function")))
            return oai_fail(p, param, "%s: expected \"function\"; other kinds of tools are not there", param);
    }
    p->q->tools = i ? node : PN_JSON_NONE;
    return true;
}

static bool oai_tool_choice(oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = oai_doc(p);
    pn_bytes word;
    if (pn_json_str(d, node, &word)) {
        bool required = oai_same(word, "required");
        if (!required && !oai_same(word, "auto") && !oai_same(word, "none"))
            return oai_fail(p, name, "tool_choice: expected auto, none, required or a function, found '%.*s'", (int)PN_MIN(word.len, (size_t)60),
                            word.data);
        p->q->tool_choice = required ? PN_TOOLS_REQUIRED : word.data[0] == 'n' ? PN_TOOLS_NONE : PN_TOOLS_AUTO;
        return true;
    }
    uint32_t f = pn_json_get(d, node, "function");
    if (!pn_json_str(d, pn_json_get(d, f, "name"), &p->q->tool_name))
        return oai_fail(p, name, "tool_choice: expected auto, none, required or {\"type\":\"function\",\"function\":{\"name\":...}}");
    p->q->tool_choice = PN_TOOLS_REQUIRED;
    return true;
}

static bool oai_parallel(oai_parser *p, const char *name, uint32_t node)
{
    bool v;
    bool ok = oai_bool(p, name, node, &v);
    if (ok)
        p->q->single_call = !v;
    return ok;
}

/* ------------------------------------------------------------------------------------------
 * Reasoning and the template's variables
 * ------------------------------------------------------------------------------------------ */

static void oai_variable(oai_parser *p, const char *name)
{
    pn_str *s = &p->q->variables;
    if (!s->len)
        pn_str_addc(s, '{');
    pn_json_key(s, name);
}

static bool oai_enable_thinking(oai_parser *p, const char *name, uint32_t node)
{
    bool v;
    if (!oai_bool(p, name, node, &v))
        return false;
    oai_variable(p, "enable_thinking");
    pn_json_write_bool(&p->q->variables, v);
    return true;
}

static bool oai_reasoning_effort(oai_parser *p, const char *name, uint32_t node)
{
    pn_bytes v;
    if (!oai_text(p, name, node, &v))
        return false;
    if (oai_same(v, "none")) {
        oai_variable(p, "enable_thinking");
        pn_json_write_bool(&p->q->variables, false);
    }
    oai_variable(p, "reasoning_effort");
    pn_json_write_str(&p->q->variables, v.data, v.len);
    return true;
}

/* Last, so that it has the last word. */
static bool oai_template_kwargs(oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = oai_doc(p);
    if (pn_json_type_of(d, node) != PN_JSON_OBJECT)
        return oai_expected(p, name, "an object", node);
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes key = pn_json_key_of(d, c);
        bool b;
        if (oai_same(key, "messages") || oai_same(key, "tools"))
            return oai_fail(p, name, "chat_template_kwargs: messages and tools are fields of the request");
        if (oai_same(key, "enable_thinking") && !pn_json_bool(d, c, &b))
            return oai_expected(p, "chat_template_kwargs.enable_thinking", "true or false", c);
        oai_variable(p, key.data);
        pn_json_write_node(&p->q->variables, d, c);
    }
    return true;
}

static bool oai_reasoning_budget(oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    if (!oai_int(p, name, node, -1, INT32_MAX, &v))
        return false;
    p->q->has_reasoning_budget = v >= 0;
    p->q->reasoning_budget = v < 0 ? 0 : (uint32_t)v;
    return true;
}

/* ------------------------------------------------------------------------------------------
 * The table
 * ------------------------------------------------------------------------------------------ */

static const struct { const char *name; oai_reader read; } oai_fields[] = {
    {"model", oai_model}, {"messages", oai_messages}, {"max_tokens", oai_max_tokens}, {"max_completion_tokens", oai_max_tokens},
    {"n", oai_n}, {"stream", oai_stream}, {"stream_options", oai_stream_options}, {"stop", oai_stop}, {"seed", oai_seed},
    {"logit_bias", oai_logit_bias}, {"logprobs", oai_logprobs}, {"top_logprobs", oai_top_logprobs}, {"min_tokens", oai_min_tokens},
    {"ignore_eos", oai_ignore_eos}, {"mirostat", oai_mirostat}, {"response_format", oai_response_format}, {"json_schema", oai_json_schema},
    {"guided_json", oai_json_schema}, {"grammar", oai_grammar}, {"guided_grammar", oai_grammar}, {"tools", oai_tools},
    {"tool_choice", oai_tool_choice}, {"parallel_tool_calls", oai_parallel}, {"enable_thinking", oai_enable_thinking},
    {"reasoning_effort", oai_reasoning_effort}, {"reasoning_budget_tokens", oai_reasoning_budget},
    {"thinking_budget_tokens", oai_reasoning_budget}, {"session_id", oai_session}, {"chat_template_kwargs", oai_template_kwargs},
};

/* Asking for these and not getting them would be another answer than the one asked for. */
static const struct { const char *name, *why; } oai_refused[] = {
    {"audio", "this server has no audio"}, {"web_search_options", "this server does not search the web"},
    {"functions", "the deprecated form of tools is not there: send tools"},
    {"function_call", "the deprecated form of tool_choice is not there: send tool_choice"},
};

static bool oai_field(oai_parser *p, const char *name, uint32_t node, bool *known)
{
    *known = true;
    for (size_t i = 0; i < PN_COUNT_OF(oai_numbers); i++)
        if (strcmp(oai_numbers[i].name, name) == 0)
            return oai_number_field(p, i, node);
    for (size_t i = 0; i < PN_COUNT_OF(oai_fields); i++)
        if (strcmp(oai_fields[i].name, name) == 0)
            return oai_fields[i].read(p, name, node);
    for (size_t i = 0; i < PN_COUNT_OF(oai_refused); i++)
        if (strcmp(oai_refused[i].name, name) == 0)
            return oai_fail(p, name, "%s: %s", name, oai_refused[i].why);
    *known = false;
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Messages
 * ------------------------------------------------------------------------------------------ */

static bool oai_check_parts(oai_parser *p, uint32_t content, const char *param)
{
    const pn_json_doc *d = oai_doc(p);
    char at[80];
    uint32_t j = 0;
    for (uint32_t c = pn_json_first(d, content); c != PN_JSON_NONE; c = pn_json_next(d, c), j++) {
        pn_bytes type;
        snprintf(at, sizeof at, "%s[%u].type", param, (unsigned)j);
        if (!pn_json_str(d, pn_json_get(d, c, "type"), &type))
            return oai_fail(p, at, "%s: expected the type of a part, a string", at);
        if (!oai_same(type, "text") && !oai_same(type, "refusal"))
            return oai_fail(p, at, "%s: the model takes text alone, found a part of type '%.*s'", at, (int)PN_MIN(type.len, (size_t)40), type.data);
    }
    return true;
}

static bool oai_check_message(oai_parser *p, uint32_t message, uint32_t i)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    const pn_json_doc *d = oai_doc(p);
    char param[64];
    pn_bytes role;
    size_t k = 0;
    snprintf(param, sizeof param, "messages[%u].role", (unsigned)i);
    if (!pn_json_str(d, pn_json_get(d, message, "role"), &role))
        return oai_fail(p, param, "%s: expected an object with a role, a string", param);
    while (k < PN_COUNT_OF(roles) && !oai_same(role, roles[k]))
        k++;
    if (k == PN_COUNT_OF(roles))
        return oai_fail(p, param, "%s: expected system, developer, user, assistant or tool, found '%.*s'", param, (int)PN_MIN(role.len, (size_t)40),
                        role.data);
    uint32_t content = pn_json_get(d, message, "content");
    pn_json_type type = pn_json_type_of(d, content);
    snprintf(param, sizeof param, "messages[%u].content", (unsigned)i);
    if (type == PN_JSON_ARRAY)
        return oai_check_parts(p, content, param);
    bool may_lack = k >= 3;                     /* assistants call tools; tools may have nothing to say */
    if (type == PN_JSON_STRING || (type <= PN_JSON_NULL && may_lack))
        return true;
    return oai_expected(p, param, "a string or an array of parts", content);
}

static bool oai_check(oai_parser *p)
{
    const pn_json_doc *d = oai_doc(p);
    pn_oai_chat *q = p->q;
    uint32_t i = 0;
    if (q->messages == PN_JSON_NONE || pn_json_count(d, q->messages) == 0)
        return oai_fail(p, "messages", "messages: expected at least one message");
    for (uint32_t c = pn_json_first(d, q->messages); c != PN_JSON_NONE; c = pn_json_next(d, c), i++)
        if (!oai_check_message(p, c, i))
            return false;
    if (q->top_logprobs && !q->logprobs)
        return oai_fail(p, "top_logprobs", "top_logprobs: expected logprobs to be true");
    if (q->tool_choice == PN_TOOLS_REQUIRED && q->tools == PN_JSON_NONE)
        return oai_fail(p, "tool_choice", "tool_choice: a call is required, but there are no tools");
    if (q->format != PN_OAI_TEXT && q->tools != PN_JSON_NONE)
        return oai_fail(p, q->format == PN_OAI_GBNF ? "grammar" : "response_format",
                        "an answer held to a %s calls no tools; expected one of the two", q->format == PN_OAI_GBNF ? "grammar" : "schema");
    return true;
}

/* ------------------------------------------------------------------------------------------
 * All of it
 * ------------------------------------------------------------------------------------------ */

static bool oai_read(oai_parser *p)
{
    const pn_json_doc *d = oai_doc(p);
    bool known = true;
    uint32_t last = pn_json_get(d, PN_JSON_ROOT, "chat_template_kwargs");
    if (pn_json_type_of(d, PN_JSON_ROOT) != PN_JSON_OBJECT)
        return oai_fail(p, "", "expected a JSON object, found %s", pn_json_type_name(pn_json_type_of(d, PN_JSON_ROOT)));
    for (uint32_t c = pn_json_first(d, PN_JSON_ROOT); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes name = pn_json_key_of(d, c);
        if (pn_json_type_of(d, c) == PN_JSON_NULL || c == last)
            continue;
        if (strlen(name.data) != name.len)
            known = false;
        else if (!oai_field(p, name.data, c, &known))
            return false;
        if (!known)
            oai_ignore(p, name);
    }
    if (pn_json_type_of(d, last) > PN_JSON_NULL && !oai_template_kwargs(p, "chat_template_kwargs", last))
        return false;
    if (p->q->variables.len)
        pn_str_addc(&p->q->variables, '}');
    if (p->q->variables.failed || p->q->ignored.failed)
        return oai_nomem(p);
    return oai_check(p);
}

PN_INTERNAL bool pn_oai_chat_parse(pn_oai_chat *out, pn_mem *mem, const char *text, size_t len, uint32_t n_max, pn_oai_error *e)
{
    const pn_json_params params = {.max_depth = 128, .fix_surrogates = true};
    oai_parser p = {out, e, n_max};
    pn_err err = {PN_OK, {0}};
    memset(out, 0, sizeof *out);
    out->mem = mem;
    out->messages = out->tools = out->schema = PN_JSON_NONE;
    out->n = 1;
    pn_str_init(&out->variables, mem, PN_ACCT_CONN);
    pn_str_init(&out->ignored, mem, PN_ACCT_CONN);
    pn_status st = pn_json_parse(&out->body, mem, PN_ACCT_CONN, text, len, &params, &err);
    bool ok = !st && oai_read(&p);
    if (st == PN_E_NOMEM)
        oai_nomem(&p);
    else if (st)
        oai_fail(&p, "", "the body is not JSON: %.400s", err.text);
    if (!ok)
        pn_oai_chat_fini(out);
    return ok;
}

PN_INTERNAL void pn_oai_chat_fini(pn_oai_chat *q)
{
    pn_mem_free(q->mem, PN_ACCT_CONN, q->bias, q->cap_bias * sizeof *q->bias);
    pn_mem_free(q->mem, PN_ACCT_CONN, (void *)q->stop, q->cap_stop * sizeof *q->stop);
    pn_str_fini(&q->variables);
    pn_str_fini(&q->ignored);
    pn_json_fini(&q->body);
    q->bias = NULL;
    q->stop = NULL;
    q->cap_bias = q->cap_stop = q->n_stop = 0;
}

#undef OAI_F
#undef OAI_I
