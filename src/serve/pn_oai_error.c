/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_oai_error.c - errors with the words that clients look for.
 */
#include "serve/pn_oai_error.h"

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

PN_INTERNAL void pn_oai_error_memory(pn_oai_error *e, const char *text, bool waiting_helps, uint32_t retry_ms)
{
    if (waiting_helps)
        pn_oai_error_set(e, 429, "memory_busy", "insufficient_memory", "", "not enough memory is free now: %s", text);
    else
        pn_oai_error_set(e, 400, "context_over_budget", "context_length_exceeded", "messages",
                         "the request exceeds the available context size that memory allows: %s", text);
    e->retry_ms = waiting_helps ? retry_ms : 0;
}

/* ------------------------------------------------------------------------------------------
 * Too long
 * ------------------------------------------------------------------------------------------ */

/* "maximum context length is N tokens", "prompt is too long: N tokens > N maximum", "exceeds the available
 * context size" and "reduce the length of the messages" are what the patterns of agents match; words about
 * limits of rate would make them wait instead. */
PN_INTERNAL void pn_oai_error_context(pn_oai_error *e, uint32_t prompt, uint32_t output, uint32_t limit)
{
    char asked[64] = "";
    if (output)
        snprintf(asked, sizeof asked, " and %u tokens of output were asked for", (unsigned)output);
    pn_oai_error_set(e, 400, "context_over_budget", "context_length_exceeded", "messages",
                     "the maximum context length is %u tokens, but the prompt has %u%s: the prompt is too long: %u tokens > %u maximum, "
                     "which exceeds the available context size; reduce the length of the messages",
                     (unsigned)limit, (unsigned)prompt, asked, (unsigned)prompt, (unsigned)limit);
    snprintf(e->extra, sizeof e->extra, "\"n_prompt_tokens\":%u,\"n_ctx\":%u", (unsigned)prompt, (unsigned)limit);
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
