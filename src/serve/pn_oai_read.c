/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_oai_read.c - opening a body, and the fields that all requests which generate share.
 */
#include "serve/pn_oai_read.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "base/pn_hash.h"
#include "base/pn_utf8.h"

/* A node takes 28 bytes where an element of a list may take two of the text: the limit on bodies alone would
 * let a small one fill the memory. */
enum { OAI_NODES = 1 << 22, OAI_STRINGS = 64, OAI_BIASES = 4096, OAI_TOP_LOGPROBS = 20 };

/* ------------------------------------------------------------------------------------------
 * Errors and kinds of values
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL bool pn_oai_fail(pn_oai_parser *p, const char *param, const char *fmt, ...)
{
    va_list ap;
    pn_oai_error_set(p->e, 400, "invalid_request_error", "invalid_value", param, "%s", "");
    va_start(ap, fmt);
    vsnprintf(p->e->message, sizeof p->e->message, fmt, ap);
    va_end(ap);
    return false;
}

PN_INTERNAL bool pn_oai_fail_memory(pn_oai_parser *p)
{
    pn_oai_error_status(p->e, PN_E_NOMEM, "out of memory while the request was read");
    return false;
}

PN_INTERNAL bool pn_oai_expected(pn_oai_parser *p, const char *param, const char *what, uint32_t node)
{
    return pn_oai_fail(p, param, "%s: expected %s, found %s", param, what, pn_json_type_name(pn_json_type_of(&p->q->body, node)));
}

PN_INTERNAL bool pn_oai_read_bool(pn_oai_parser *p, const char *name, uint32_t node, bool *out)
{
    *out = false;                       /* for compilers that do not see what false means */
    return pn_json_bool(&p->q->body, node, out) || pn_oai_expected(p, name, "true or false", node);
}

PN_INTERNAL bool pn_oai_read_int(pn_oai_parser *p, const char *name, uint32_t node, int64_t lo, int64_t hi, int64_t *out)
{
    *out = lo;
    if (!pn_json_i64(&p->q->body, node, out))
        return pn_oai_expected(p, name, "an integer", node);
    if (*out >= lo && *out <= hi)
        return true;
    return pn_oai_fail(p, name, "%s: expected %" PRId64 " to %" PRId64 ", found %" PRId64, name, lo, hi, *out);
}

PN_INTERNAL bool pn_oai_read_text(pn_oai_parser *p, const char *name, uint32_t node, pn_bytes *out)
{
    *out = (pn_bytes){NULL, 0};
    return pn_json_str(&p->q->body, node, out) || pn_oai_expected(p, name, "a string", node);
}

PN_INTERNAL bool pn_oai_read_nothing(pn_oai_parser *p, const char *name, uint32_t node)
{
    (void)p, (void)name, (void)node;
    return true;
}

PN_INTERNAL void pn_oai_ignore(pn_oai_parser *p, const char *name, size_t len)
{
    if (p->q->ignored.len)
        pn_str_addc(&p->q->ignored, ',');
    pn_json_write_str(&p->q->ignored, name, len);
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

static bool oai_number_field(pn_oai_parser *p, size_t i, uint32_t node)
{
    const oai_number *f = &oai_numbers[i];
    char *at = (char *)&p->q->sampling + f->at;
    double v;
    int64_t n;
    if (!f->real) {
        if (!pn_oai_read_int(p, f->name, node, (int64_t)f->lo, (int64_t)f->hi, &n))
            return false;
        int32_t small = (int32_t)n;
        memcpy(at, &small, sizeof small);
    } else {
        if (!pn_json_f64(&p->q->body, node, &v))
            return pn_oai_expected(p, f->name, "a number", node);
        if (!(v >= (double)f->lo && v <= (double)f->hi))
            return pn_oai_fail(p, f->name, "%s: expected %g to %g, found %g", f->name, (double)f->lo, (double)f->hi, v);
        float real = v == 0 && f->off > 0 ? f->off : (float)v;
        memcpy(at, &real, sizeof real);
    }
    p->q->given |= (uint64_t)1 << i;
    return true;
}

PN_INTERNAL void pn_oai_sampling(const pn_oai_common *q, pn_sampling *s)
{
    for (size_t i = 0; i < PN_COUNT_OF(oai_numbers); i++)
        if (q->given >> i & 1)
            memcpy((char *)s + oai_numbers[i].at, (const char *)&q->sampling + oai_numbers[i].at, 4);
    s->seed = q->sampling.seed;
    s->has_seed = q->sampling.has_seed;
    s->ignore_eos = q->sampling.ignore_eos;
    s->min_tokens = q->sampling.min_tokens;
    s->mirostat = q->sampling.mirostat ? q->sampling.mirostat : s->mirostat;
    if (q->sampling.order[0])
        memcpy(s->order, q->sampling.order, sizeof s->order);
    if (q->breakers) {
        s->dry_breakers = q->breakers;
        s->n_dry_breakers = q->n_breakers;
    }
    s->bias = q->bias;
    s->n_bias = q->sampling.n_bias;
}

/* ------------------------------------------------------------------------------------------
 * Fields one by one
 * ------------------------------------------------------------------------------------------ */

static bool oai_model(pn_oai_parser *p, const char *name, uint32_t node) { return pn_oai_read_text(p, name, node, &p->q->model); }
static bool oai_session(pn_oai_parser *p, const char *name, uint32_t node) { return pn_oai_read_text(p, name, node, &p->q->session); }
static bool oai_stream(pn_oai_parser *p, const char *name, uint32_t node) { return pn_oai_read_bool(p, name, node, &p->q->stream); }

static bool oai_strict_budget(pn_oai_parser *p, const char *name, uint32_t node) { return pn_oai_read_bool(p, name, node, &p->q->strict_budget); }

static bool oai_no_wait(pn_oai_parser *p, const char *name, uint32_t node) { return pn_oai_read_bool(p, name, node, &p->q->no_wait); }

static bool oai_n(pn_oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    bool ok = pn_oai_read_int(p, name, node, 1, p->n_max, &v);
    if (ok)
        p->q->n = (uint32_t)v;
    return ok;
}

static bool oai_stream_options(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    if (pn_json_type_of(d, node) != PN_JSON_OBJECT)
        return pn_oai_expected(p, name, "an object", node);
    uint32_t usage = pn_json_get(d, node, "include_usage");
    return !pn_oai_given(d, usage) || pn_oai_read_bool(p, "stream_options.include_usage", usage, &p->q->include_usage);
}

/* Texts of the body in a growing list; empty ones are left out. */
typedef struct oai_list { const char ***list; size_t *n, *cap; } oai_list;

static bool oai_add_string(pn_oai_parser *p, const char *name, uint32_t node, oai_list to)
{
    pn_bytes s;
    if (!pn_oai_read_text(p, name, node, &s))
        return false;
    if (memchr(s.data, 0, s.len))
        return pn_oai_fail(p, name, "%s: expected text, found a NUL", name);
    if (*to.n == OAI_STRINGS)
        return pn_oai_fail(p, name, "%s: expected at most %d strings, found more", name, (int)OAI_STRINGS);
    if (s.len)
        (*to.list)[(*to.n)++] = s.data;
    return true;
}

/* A string, or an array of them. */
static bool oai_strings(pn_oai_parser *p, const char *name, uint32_t node, oai_list to)
{
    const pn_json_doc *d = &p->q->body;
    bool one = pn_json_type_of(d, node) == PN_JSON_STRING;
    if (!one && pn_json_type_of(d, node) != PN_JSON_ARRAY)
        return pn_oai_expected(p, name, "a string or an array of strings", node);
    if (!pn_mem_grow(p->q->mem, PN_ACCT_CONN, (void **)to.list, to.cap, OAI_STRINGS, sizeof **to.list))
        return pn_oai_fail_memory(p);
    if (one)
        return oai_add_string(p, name, node, to);
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c))
        if (!oai_add_string(p, name, c, to))
            return false;
    return true;
}

static bool oai_stop(pn_oai_parser *p, const char *name, uint32_t node)
{
    return oai_strings(p, name, node, (oai_list){&p->q->stop, &p->q->n_stop, &p->q->cap_stop});
}

static bool oai_breakers(pn_oai_parser *p, const char *name, uint32_t node)
{
    return oai_strings(p, name, node, (oai_list){&p->q->breakers, &p->q->n_breakers, &p->q->cap_breakers});
}

/* ["top_k","temperature"] or "top_k;temperature": which samplers, in which order. */
static bool oai_samplers(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    char order[256] = "";
    pn_err err;
    bool one = pn_json_type_of(d, node) == PN_JSON_STRING;
    if (!one && pn_json_type_of(d, node) != PN_JSON_ARRAY)
        return pn_oai_expected(p, name, "an array of strings", node);
    for (uint32_t c = one ? node : pn_json_first(d, node); c != PN_JSON_NONE; c = one ? PN_JSON_NONE : pn_json_next(d, c)) {
        size_t at = strlen(order);
        pn_bytes word;
        if (!pn_oai_read_text(p, name, c, &word))
            return false;
        if (at + word.len + 2 > sizeof order)
            return pn_oai_fail(p, name, "samplers: expected each of a few names once");
        snprintf(order + at, sizeof order - at, "%s;", word.data);
    }
    return !pn_sampling_parse_order(order, p->q->sampling.order, &err) || pn_oai_fail(p, name, "samplers: %s", err.text);
}

/* Any number is a seed: one that does not fit is folded. */
static bool oai_seed(pn_oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    pn_bytes text;
    if (!pn_json_num(&p->q->body, node, &text))
        return pn_oai_expected(p, name, "an integer", node);
    p->q->sampling.seed = pn_json_i64(&p->q->body, node, &v) ? (uint64_t)v : pn_hash(text.data, text.len, 0);
    p->q->sampling.has_seed = 1;
    return true;
}

static bool oai_add_bias(pn_oai_parser *p, int64_t token, double bias)
{
    pn_oai_common *q = p->q;
    if (token < 0 || token > INT32_MAX || !(bias >= -100 && bias <= 100))
        return pn_oai_fail(p, "logit_bias", "logit_bias: expected token ids with a bias of -100 to 100, found %" PRId64 ": %g", token, bias);
    if (q->sampling.n_bias == OAI_BIASES)
        return pn_oai_fail(p, "logit_bias", "logit_bias: expected at most %d tokens, found more", (int)OAI_BIASES);
    if (!pn_mem_grow(q->mem, PN_ACCT_CONN, (void **)&q->bias, &q->cap_bias, q->sampling.n_bias + 1, sizeof *q->bias))
        return pn_oai_fail_memory(p);
    q->bias[q->sampling.n_bias++] = (pn_logit_bias){(pn_token)token, (float)bias};
    return true;
}

/* {"17": -1.5} or [[17, -1.5]] */
static bool oai_logit_bias(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    pn_json_type type = pn_json_type_of(d, node);
    if (type != PN_JSON_OBJECT && type != PN_JSON_ARRAY)
        return pn_oai_expected(p, name, "an object", node);
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes key = pn_json_key_of(d, c);
        int64_t id = -1;
        double v;
        uint32_t value = type == PN_JSON_OBJECT ? c : pn_json_next(d, pn_json_first(d, c));
        bool ok = type == PN_JSON_OBJECT ? pn_parse_i64(key.data, 0, INT32_MAX, &id) : pn_json_i64(d, pn_json_first(d, c), &id);
        if (!ok || !pn_json_f64(d, value, &v))
            return pn_oai_fail(p, name, "logit_bias: expected token ids and numbers");
        if (!oai_add_bias(p, id, v))
            return false;
    }
    return true;
}

static bool oai_min_tokens(pn_oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    bool ok = pn_oai_read_int(p, name, node, 0, INT32_MAX, &v);
    if (ok)
        p->q->sampling.min_tokens = (uint32_t)v;
    return ok;
}

static bool oai_ignore_eos(pn_oai_parser *p, const char *name, uint32_t node)
{
    bool v;
    bool ok = pn_oai_read_bool(p, name, node, &v);
    if (ok)
        p->q->sampling.ignore_eos = v;
    return ok;
}

static bool oai_mirostat(pn_oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    if (!pn_oai_read_int(p, name, node, 0, 2, &v))
        return false;
    if (v == 1)
        return pn_oai_fail(p, name, "mirostat: expected 0 or 2, found 1: version 1 is not there");
    p->q->sampling.mirostat = (int32_t)v;
    return true;
}

/* ------------------------------------------------------------------------------------------
 * What the answer has to look like
 * ------------------------------------------------------------------------------------------ */

static bool oai_set_format(pn_oai_parser *p, const char *name, pn_oai_format format, uint32_t schema, pn_bytes grammar)
{
    if (p->q->format != PN_OAI_TEXT)
        return pn_oai_fail(p, name, "%s: the request says already what the answer has to look like; expected one such field", name);
    p->q->format = format;
    p->q->schema = schema;
    p->q->grammar = grammar;
    return true;
}

static bool oai_is_schema(const pn_json_doc *d, uint32_t node)
{
    return pn_json_type_of(d, node) == PN_JSON_OBJECT || pn_json_type_of(d, node) == PN_JSON_BOOL;
}

static bool oai_response_format(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    const pn_bytes none = {NULL, 0};
    pn_bytes type;
    if (pn_json_type_of(d, node) != PN_JSON_OBJECT)
        return pn_oai_expected(p, name, "an object", node);
    if (!pn_oai_read_text(p, "response_format.type", pn_json_get(d, node, "type"), &type))
        return false;
    if (pn_oai_same(type, "text"))
        return true;
    uint32_t schema = pn_json_get(d, pn_json_get(d, node, "json_schema"), "schema");
    if (schema == PN_JSON_NONE)
        schema = pn_json_get(d, node, "schema");
    if (pn_oai_same(type, "json_object") && !pn_oai_given(d, schema))
        return oai_set_format(p, name, PN_OAI_JSON_OBJECT, PN_JSON_NONE, none);
    if (!pn_oai_same(type, "json_schema") && !pn_oai_same(type, "json_object"))
        return pn_oai_fail(p, "response_format.type", "response_format.type: expected text, json_object or json_schema, found '%.*s'",
                           (int)PN_MIN(type.len, (size_t)60), type.data);
    if (!oai_is_schema(d, schema))
        return pn_oai_expected(p, "response_format.json_schema.schema", "a JSON Schema", schema);
    return oai_set_format(p, name, PN_OAI_SCHEMA, schema, none);
}

static bool oai_json_schema(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_bytes none = {NULL, 0};
    if (!oai_is_schema(&p->q->body, node))
        return pn_oai_expected(p, name, "a JSON Schema", node);
    return oai_set_format(p, name, PN_OAI_SCHEMA, node, none);
}

static bool oai_grammar(pn_oai_parser *p, const char *name, uint32_t node)
{
    pn_bytes text;
    return pn_oai_read_text(p, name, node, &text) && (!text.len || oai_set_format(p, name, PN_OAI_GBNF, PN_JSON_NONE, text));
}

static bool oai_regex(pn_oai_parser *p, const char *name, uint32_t node)
{
    (void)node;
    return pn_oai_fail(p, name, "%s: answers held to a regular expression are not there: send a grammar", name);
}

/* A literal of GBNF. */
static void oai_literal(pn_str *s, pn_bytes text)
{
    pn_str_addc(s, '"');
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if (c < 0x20 || c == '"' || c == '\\' || c == 0x7f)
            pn_str_addf(s, "\\x%02X", (unsigned)c);
        else
            pn_str_addc(s, (char)c);
    }
    pn_str_addc(s, '"');
}

PN_INTERNAL bool pn_oai_read_choices(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    pn_str *s = &p->q->choice_grammar;
    if (pn_json_type_of(d, node) != PN_JSON_ARRAY || !pn_json_count(d, node))
        return pn_oai_expected(p, name, "an array of strings, not empty", node);
    pn_str_addz(s, "root ::= ");
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes text;
        if (!pn_oai_read_text(p, name, c, &text))
            return false;
        if (c != pn_json_first(d, node))
            pn_str_addz(s, " | ");
        oai_literal(s, text);
    }
    if (s->failed)
        return pn_oai_fail_memory(p);
    return oai_set_format(p, name, PN_OAI_GBNF, PN_JSON_NONE, (pn_bytes){s->data, s->len});
}

static const pn_oai_field oai_structures[] = {
    {"json", oai_json_schema}, {"regex", oai_regex}, {"choice", pn_oai_read_choices}, {"grammar", oai_grammar},
};

/* vLLM's {"json": SCHEMA} and so on. */
static bool oai_structured_outputs(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    char param[64];
    if (pn_json_type_of(d, node) != PN_JSON_OBJECT)
        return pn_oai_expected(p, name, "an object", node);
    for (size_t i = 0; i < PN_COUNT_OF(oai_structures); i++) {
        uint32_t c = pn_json_get(d, node, oai_structures[i].name);
        snprintf(param, sizeof param, "%s.%s", name, oai_structures[i].name);
        if (pn_oai_given(d, c) && !oai_structures[i].read(p, param, c))
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------
 * The table
 * ------------------------------------------------------------------------------------------ */

static const pn_oai_field oai_shared[] = {
    {"n", oai_n}, {"stream", oai_stream}, {"stream_options", oai_stream_options}, {"stop", oai_stop}, {"seed", oai_seed},
    {"logit_bias", oai_logit_bias}, {"min_tokens", oai_min_tokens}, {"ignore_eos", oai_ignore_eos}, {"mirostat", oai_mirostat},
    {"samplers", oai_samplers}, {"dry_sequence_breakers", oai_breakers},
    {"response_format", oai_response_format}, {"json_schema", oai_json_schema}, {"guided_json", oai_json_schema},
    {"grammar", oai_grammar}, {"guided_grammar", oai_grammar}, {"guided_choice", pn_oai_read_choices}, {"guided_regex", oai_regex},
    {"structured_outputs", oai_structured_outputs}, {"session_id", oai_session},
    {"strict_budget", oai_strict_budget}, {"no_wait", oai_no_wait},
};

static const pn_oai_field oai_model_row[] = {{"model", oai_model}};      /* for those that do not generate, too */

/* Switches that stand at what this server does anyway; at the other value they are listed. */
static const struct { const char *name; bool is; } oai_fixed[] = {
    {"skip_special_tokens", true}, {"include_stop_str_in_output", false}, {"cache_prompt", true}, {"timings_per_token", false},
    {"return_progress", false}, {"return_tokens", false}, {"return_token_ids", false}, {"add_generation_prompt", true},
    {"continue_final_message", false}, {"post_sampling_probs", false}, {"use_beam_search", false},
};

static bool oai_is_fixed(const pn_oai_parser *p, const char *name, uint32_t node)
{
    bool v;
    for (size_t i = 0; i < PN_COUNT_OF(oai_fixed); i++)
        if (strcmp(oai_fixed[i].name, name) == 0)
            return pn_json_bool(&p->q->body, node, &v) && v == oai_fixed[i].is;
    return false;
}

static const pn_oai_field *oai_row(const pn_oai_field *rows, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

static bool oai_generating_field(pn_oai_parser *p, const char *name, uint32_t node, bool *known)
{
    const pn_oai_field *row = oai_row(oai_shared, PN_COUNT_OF(oai_shared), name);
    for (size_t i = 0; i < PN_COUNT_OF(oai_numbers); i++)
        if (strcmp(oai_numbers[i].name, name) == 0)
            return oai_number_field(p, i, node);
    *known = row || oai_is_fixed(p, name, node);
    return !row || row->read(p, name, node);
}

PN_INTERNAL bool pn_oai_read_fields(pn_oai_parser *p, const pn_oai_field *own, size_t n_own, bool generates)
{
    const pn_json_doc *d = &p->q->body;
    for (uint32_t c = pn_json_first(d, PN_JSON_ROOT); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes name = pn_json_key_of(d, c);
        bool known = strlen(name.data) == name.len;
        const pn_oai_field *row = known ? oai_row(own, n_own, name.data) : NULL;
        if (!pn_oai_given(d, c))
            continue;
        if (!row && known)
            row = oai_row(oai_model_row, 1, name.data);
        if (row && !row->read(p, name.data, c))
            return false;
        if (!row && known && generates && !oai_generating_field(p, name.data, c, &known))
            return false;
        if (!row && (!known || !generates))
            pn_oai_ignore(p, name.data, name.len);
    }
    return !p->q->ignored.failed || pn_oai_fail_memory(p);
}

/* ------------------------------------------------------------------------------------------
 * Lists of inputs
 * ------------------------------------------------------------------------------------------ */

static bool oai_add_text(pn_oai_parser *p, pn_oai_inputs *in, pn_bytes text)
{
    if (!pn_mem_grow(p->q->mem, PN_ACCT_CONN, (void **)&in->pieces, &in->cap_pieces, in->n_pieces + 1, sizeof *in->pieces))
        return pn_oai_fail_memory(p);
    in->pieces[in->n_pieces++] = (pn_oai_piece){text, in->n_tokens, 0};
    in->list[in->n - 1].n_pieces++;
    return true;
}

static bool oai_add_token(pn_oai_parser *p, const char *param, pn_oai_inputs *in, uint32_t node)
{
    int64_t id;
    pn_oai_input *input = &in->list[in->n - 1];
    if (!pn_oai_read_int(p, param, node, 0, INT32_MAX, &id))
        return false;
    if (!input->n_pieces || in->pieces[in->n_pieces - 1].text.data) {
        if (!oai_add_text(p, in, (pn_bytes){NULL, 0}))
            return false;
    }
    if (!pn_mem_grow(p->q->mem, PN_ACCT_CONN, (void **)&in->tokens, &in->cap_tokens, in->n_tokens + 1, sizeof *in->tokens))
        return pn_oai_fail_memory(p);
    in->tokens[in->n_tokens++] = (pn_token)id;
    in->pieces[in->n_pieces - 1].n_tokens++;
    return true;
}

static bool oai_add_piece(pn_oai_parser *p, const char *param, pn_oai_inputs *in, uint32_t node)
{
    pn_bytes text;
    if (pn_json_str(&p->q->body, node, &text))
        return oai_add_text(p, in, text);
    return oai_add_token(p, param, in, node);
}

/* One input: a string, or a list of tokens and strings. */
static bool oai_add_input(pn_oai_parser *p, const char *param, pn_oai_inputs *in, uint32_t node, size_t most)
{
    const pn_json_doc *d = &p->q->body;
    if (in->n == most)
        return pn_oai_fail(p, param, "%s: expected at most %zu inputs, found more", param, most);
    if (!pn_mem_grow(p->q->mem, PN_ACCT_CONN, (void **)&in->list, &in->cap, in->n + 1, sizeof *in->list))
        return pn_oai_fail_memory(p);
    in->list[in->n++] = (pn_oai_input){in->n_pieces, 0};
    if (pn_json_type_of(d, node) != PN_JSON_ARRAY)
        return oai_add_piece(p, param, in, node);
    if (!pn_json_count(d, node))
        return pn_oai_fail(p, param, "%s: expected at least one token", param);
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c))
        if (!oai_add_piece(p, param, in, c))
            return false;
    return true;
}

static bool oai_has_number(const pn_json_doc *d, uint32_t node)
{
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c))
        if (pn_json_type_of(d, c) == PN_JSON_NUMBER)
            return true;
    return false;
}

PN_INTERNAL bool pn_oai_read_inputs(pn_oai_parser *p, const char *name, uint32_t node, size_t most, pn_oai_inputs *in)
{
    const pn_json_doc *d = &p->q->body;
    char param[64];
    uint32_t i = 0;
    if (pn_json_type_of(d, node) != PN_JSON_STRING && pn_json_type_of(d, node) != PN_JSON_ARRAY)
        return pn_oai_expected(p, name, "a string, an array of strings, or tokens", node);
    if (pn_json_type_of(d, node) == PN_JSON_STRING || oai_has_number(d, node))
        return oai_add_input(p, name, in, node, most);
    if (!pn_json_count(d, node))
        return pn_oai_fail(p, name, "%s: expected at least one, found an empty array", name);
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c), i++) {
        snprintf(param, sizeof param, "%s[%u]", name, (unsigned)i);
        if (!oai_add_input(p, param, in, c, most))
            return false;
    }
    return true;
}

PN_INTERNAL void pn_oai_inputs_fini(pn_mem *mem, pn_oai_inputs *in)
{
    pn_mem_free(mem, PN_ACCT_CONN, in->list, in->cap * sizeof *in->list);
    pn_mem_free(mem, PN_ACCT_CONN, in->pieces, in->cap_pieces * sizeof *in->pieces);
    pn_mem_free(mem, PN_ACCT_CONN, in->tokens, in->cap_tokens * sizeof *in->tokens);
    *in = (pn_oai_inputs){0};
}

/* ------------------------------------------------------------------------------------------
 * The body
 * ------------------------------------------------------------------------------------------ */

/* What is not UTF-8 becomes U+FFFD, byte by byte. */
static void oai_repair(pn_str *out, const char *text, size_t len)
{
    for (size_t at = 0; at < len;) {
        size_t good = pn_utf8_valid(text + at, len - at);
        pn_str_add(out, text + at, good);
        at += good;
        if (at < len) {
            pn_str_addz(out, "\xEF\xBF\xBD");
            at++;
        }
    }
}

static pn_status oai_parse_repaired(pn_json_doc *d, pn_mem *mem, const char *text, size_t len, pn_err *err)
{
    const pn_json_params params = {.max_depth = 128, .max_nodes = OAI_NODES, .fix_surrogates = true};
    pn_str whole;
    if (pn_utf8_valid(text, len) == len)
        return pn_json_parse(d, mem, PN_ACCT_CONN, text, len, &params, err);
    pn_str_init(&whole, mem, PN_ACCT_CONN);
    oai_repair(&whole, text, len);
    pn_status st = whole.failed ? PN_E_NOMEM : pn_json_parse(d, mem, PN_ACCT_CONN, whole.data, whole.len, &params, err);
    pn_str_fini(&whole);
    return st;
}

PN_INTERNAL bool pn_oai_open(pn_oai_parser *p, pn_mem *mem, const char *text, size_t len)
{
    pn_oai_common *q = p->q;
    pn_err err = {PN_OK, {0}};
    memset(q, 0, sizeof *q);
    q->mem = mem;
    q->schema = PN_JSON_NONE;
    q->n = 1;
    pn_str_init(&q->ignored, mem, PN_ACCT_CONN);
    pn_str_init(&q->choice_grammar, mem, PN_ACCT_CONN);
    pn_status st = oai_parse_repaired(&q->body, mem, text, len, &err);
    if (st == PN_E_NOMEM)
        return pn_oai_fail_memory(p);
    if (st)
        return pn_oai_fail(p, "", "the body is not JSON: %.400s", err.text);
    if (pn_json_type_of(&q->body, PN_JSON_ROOT) != PN_JSON_OBJECT)
        return pn_oai_fail(p, "", "expected a JSON object, found %s", pn_json_type_name(pn_json_type_of(&q->body, PN_JSON_ROOT)));
    return true;
}

PN_INTERNAL void pn_oai_close(pn_oai_common *q)
{
    pn_mem_free(q->mem, PN_ACCT_CONN, q->bias, q->cap_bias * sizeof *q->bias);
    pn_mem_free(q->mem, PN_ACCT_CONN, (void *)q->stop, q->cap_stop * sizeof *q->stop);
    pn_mem_free(q->mem, PN_ACCT_CONN, (void *)q->breakers, q->cap_breakers * sizeof *q->breakers);
    pn_str_fini(&q->ignored);
    pn_str_fini(&q->choice_grammar);
    pn_json_fini(&q->body);
    q->bias = NULL;
    q->stop = q->breakers = NULL;
    q->cap_bias = q->cap_stop = q->n_stop = q->cap_breakers = q->n_breakers = 0;
}

#undef OAI_F
#undef OAI_I
