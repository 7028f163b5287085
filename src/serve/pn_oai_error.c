/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_oai_error.c - errors with the words that clients look for.
 */
#include "serve/pn_oai_error.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/pn_json.h"

static const char oai_error_invalid[] = "invalid_request_error";

/* ------------------------------------------------------------------------------------------
 * Any error
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_oai_error_set(pn_oai_error *e, int status, const char *type, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    *e = (pn_oai_error){.status = status, .type = type, .code = code};
    snprintf(e->param, sizeof e->param, "%s", param);
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
}

PN_INTERNAL void pn_oai_error_object(const pn_oai_error *e, pn_str *out)
{
    pn_str_addz(out, "{\"message\":");
    pn_json_write_strz(out, e->message);
    pn_json_key(out, "type");
    pn_json_write_strz(out, e->type);
    pn_json_key(out, "param");
    pn_json_write_strz(out, e->param[0] ? e->param : NULL);
    pn_json_key(out, "code");
    pn_json_write_strz(out, e->code);
    if (e->extra[0])
        pn_str_addf(out, ",%s", e->extra);
    pn_str_addc(out, '}');
}

PN_INTERNAL void pn_oai_error_json(const pn_oai_error *e, pn_str *out)
{
    pn_str_addz(out, "{\"error\":");
    pn_oai_error_object(e, out);
    pn_str_addc(out, '}');
}

/* ------------------------------------------------------------------------------------------
 * Where the request went
 * ------------------------------------------------------------------------------------------ */

static int oai_error_cut(pn_bytes b) { return (int)PN_MIN(b.len, (size_t)120); }

PN_INTERNAL void pn_oai_error_model(pn_oai_error *e, pn_bytes asked, const char *const *served, size_t n_served)
{
    pn_oai_error_set(e, 404, oai_error_invalid, "model_not_found", "model", "the model '%.*s' does not exist; this server has ",
                     oai_error_cut(asked), asked.data ? asked.data : "");
    size_t at = strlen(e->message);
    if (!n_served)
        snprintf(e->message + at, sizeof e->message - at, "none");
    for (size_t i = 0; i < n_served; i++) {
        at = strlen(e->message);
        bool room = at + strlen(served[i]) + sizeof ", and more" < sizeof e->message;
        snprintf(e->message + at, sizeof e->message - at, "%s%s", i ? ", " : "", room ? served[i] : "and more");
        if (!room)
            break;
    }
}

PN_INTERNAL void pn_oai_error_route(pn_oai_error *e, pn_bytes path)
{
    pn_oai_error_set(e, 404, oai_error_invalid, "not_found", "", "there is nothing at '%.*s'", oai_error_cut(path), path.data ? path.data : "");
}

PN_INTERNAL void pn_oai_error_method(pn_oai_error *e, pn_bytes method, const char *allowed)
{
    pn_oai_error_set(e, 405, oai_error_invalid, "method_not_allowed", "", "expected the method %s, found '%.*s'", allowed,
                     oai_error_cut(method), method.data ? method.data : "");
    e->allow = allowed;
}

PN_INTERNAL void pn_oai_error_key(pn_oai_error *e, bool given)
{
    pn_oai_error_set(e, 401, "authentication_error", "invalid_api_key", "", "%s",
                     given ? "the API key is not one that this server knows" : "expected an API key, as 'Authorization: Bearer KEY'");
}

/* ------------------------------------------------------------------------------------------
 * What the server cannot do now
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_oai_error_queue(pn_oai_error *e, uint32_t waiting, uint32_t retry_ms)
{
    pn_oai_error_set(e, 429, "rate_limit_error", "queue_full", "", "the queue is full: %u requests are waiting; try again later",
                     (unsigned)waiting);
    e->retry_ms = retry_ms;
}

PN_INTERNAL void pn_oai_error_loading(pn_oai_error *e, const char *what, uint32_t retry_ms)
{
    pn_oai_error_set(e, 503, "unavailable_error", "loading", "", "%s; try again later", what);
    e->retry_ms = retry_ms;
}

/* ------------------------------------------------------------------------------------------
 * Too long
 * ------------------------------------------------------------------------------------------ */

/* "maximum context length is N tokens", "prompt is too long: N tokens > N maximum", "exceeds the available
 * context size" and "reduce the length of the messages" are what the patterns of agents match; words about
 * limits of rate would make them wait instead. */
static void oai_error_long(pn_oai_error *e, const pn_budget_info *b)
{
    bool context = b->limited_by == PN_BY_CONTEXT;
    uint32_t most = context ? b->ctx_cap : b->max_context_alone;
    char asked[64] = "", too_long[96] = "";
    if (b->max_new_tokens)
        snprintf(asked, sizeof asked, " and %u tokens of output were asked for", (unsigned)b->max_new_tokens);
    if (b->prompt_tokens >= most)
        snprintf(too_long, sizeof too_long, ": the prompt is too long: %u tokens > %u maximum", (unsigned)b->prompt_tokens, (unsigned)most);
    pn_oai_error_set(e, 400, "context_over_budget", "context_length_exceeded", "messages",
                     "the maximum context length is %u tokens%s, but the prompt has %u%s%s, which exceeds the available context size; "
                     "reduce the length of the messages", (unsigned)most, context ? "" : " with the memory there is now", (unsigned)b->prompt_tokens,
                     asked, too_long);
}

/* Memory sheet 13; n_prompt_tokens is another name that clients know. */
static void oai_error_numbers(pn_oai_error *e, const pn_budget_info *b, bool waits)
{
    static const char *const by[] = {"context", "host", "device"}, *const say[] = {"compact", "lower_max_tokens", "retry_later"};
    char retry[16] = "null";
    if (waits)
        snprintf(retry, sizeof retry, "%u", (unsigned)e->retry_ms);
    snprintf(e->extra, sizeof e->extra,
             "\"requested_tokens\":%u,\"prompt_tokens\":%u,\"n_prompt_tokens\":%u,\"max_new_tokens\":%u,\"n_ctx\":%u,\"kv_bytes_per_token\":%" PRIu64
             ",\"kv_bytes_needed\":%" PRIu64 ",\"kv_bytes_available\":%" PRIu64 ",\"fixed_bytes_needed\":%" PRIu64
             ",\"max_context_now\":%u,\"max_context_alone\":%u,\"max_context_unpressured\":%u,\"kv_type\":\"%s\",\"limited_by\":\"%s\",\"pressure\":"
             "{\"level\":\"%s\",\"host_available\":%" PRIu64 ",\"budget\":%" PRIu64 "},\"retryable\":%s,\"retry_after_ms\":%s,\"suggestion\":\"%s\"",
             (unsigned)b->requested_tokens, (unsigned)b->prompt_tokens, (unsigned)b->prompt_tokens, (unsigned)b->max_new_tokens, (unsigned)b->ctx_cap,
             b->kv_bytes_per_token, b->kv_bytes_needed, b->kv_bytes_available, b->fixed_bytes_needed, (unsigned)b->max_context_now,
             (unsigned)b->max_context_alone, (unsigned)b->max_context_unpressured, pn_kv_type_name(b->kv_type), by[b->limited_by],
             pn_level_name(b->level), b->available, b->budget, waits ? "true" : "false", retry, say[b->suggestion]);
}

PN_INTERNAL void pn_oai_error_budget(pn_oai_error *e, const pn_budget_info *b, bool waits, uint32_t retry_ms)
{
    if (waits) {
        pn_oai_error_set(e, 429, "memory_busy", "queue_full", "",
                         "not enough memory is free now: this request needs %u tokens, %u fit beside those that run; try again later",
                         (unsigned)b->requested_tokens, (unsigned)b->max_context_now);
        e->retry_ms = retry_ms;
    } else {
        oai_error_long(e, b);
        e->no_retry = true;
    }
    oai_error_numbers(e, b, waits);
}

PN_INTERNAL void pn_oai_error_memory(pn_oai_error *e, const char *text, bool waits, uint32_t retry_ms)
{
    if (waits)
        pn_oai_error_set(e, 429, "memory_busy", "insufficient_memory", "", "not enough memory is free now: %s", text);
    else
        pn_oai_error_set(e, 400, "context_over_budget", "context_length_exceeded", "messages",
                         "the request exceeds the available context size that memory allows: %s", text);
    e->retry_ms = waits ? retry_ms : 0;
}

PN_INTERNAL void pn_oai_error_load(pn_oai_error *e, const char *name, const pn_plan_info *p, const char *text)
{
    pn_oai_error_set(e, 507, "model_over_budget", "insufficient_memory", "", "The model '%s' does not fit: %s", name, text);
    snprintf(e->extra, sizeof e->extra,
             "\"plan\":{\"weights\":%" PRIu64 ",\"pinned\":%" PRIu64 ",\"stage\":%" PRIu64 ",\"experts\":%" PRIu64
             ",\"kv_per_token\":%" PRIu64 ",\"kv\":%" PRIu64 ",\"state\":%" PRIu64 ",\"scratch\":%" PRIu64 ",\"vocab\":%" PRIu64
             ",\"total\":%" PRIu64 ",\"least\":%" PRIu64 ",\"available\":%" PRIu64 ",\"short\":%" PRIu64 "}",
             p->weight_bytes, p->pinned_bytes, p->stage_bytes, p->expert_bytes, p->kv_bytes_per_token, p->kv_bytes,
             p->state_bytes, p->scratch_bytes, p->vocab_bytes, p->total_bytes, p->floor_bytes, p->available_bytes,
             p->floor_bytes > p->available_bytes ? p->floor_bytes - p->available_bytes : 0);
    e->no_retry = true;
}

/* ------------------------------------------------------------------------------------------
 * What the library said
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_oai_error_status(pn_oai_error *e, pn_status st, const char *text)
{
    switch (st) {
    case PN_E_INVALID: case PN_E_FORMAT: case PN_E_UNSUPPORTED:         /* of a template, a schema, a grammar */
        pn_oai_error_set(e, 400, oai_error_invalid, "invalid_value", "", "%s", text);
        return;
    case PN_E_CONTEXT:
        pn_oai_error_set(e, 400, "context_over_budget", "context_length_exceeded", "messages",
                         "the request exceeds the available context size: %s", text);
        return;
    case PN_E_BUDGET:
        pn_oai_error_memory(e, text, true, 1000);
        return;
    case PN_E_NOMEM:
        pn_oai_error_set(e, 503, "unavailable_error", "insufficient_memory", "", "%s", text);
        e->retry_ms = 1000;
        return;
    case PN_E_CANCELLED:
        pn_oai_error_set(e, 503, "unavailable_error", "cancelled", "", "%s", text);
        return;
    default:
        pn_oai_error_set(e, 500, "server_error", NULL, "", "%s", text);
        e->no_retry = true;
    }
}
