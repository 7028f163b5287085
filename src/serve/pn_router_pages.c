/* SPDX-License-Identifier: AGPL-3.0-only */
/* pn_router_pages.c - what the router answers itself: is it well, what has it done, which models are there. */
#include "serve/pn_router_int.h"

#include <inttypes.h>
#include <stdio.h>

static const char pages_json[] = "application/json; charset=utf-8";

typedef enum pages_which { PAGES_NONE = 0, PAGES_HEALTH, PAGES_READY, PAGES_METRICS } pages_which;

/* The path without "/v1". */
static pn_bytes pages_path(const pn_http_request *q)
{
    pn_bytes p = q->path;
    return p.len > 4 && memcmp(p.data, "/v1/", 4) == 0 ? (pn_bytes){p.data + 3, p.len - 3} : p;
}

static bool pages_is(pn_bytes path, const char *what) { return path.len == strlen(what) && memcmp(path.data, what, path.len) == 0; }

static pages_which pages_find(const pn_http_request *q)
{
    static const struct { const char *path; pages_which which; } pages[] = {
        {"/health", PAGES_HEALTH}, {"/healthz", PAGES_HEALTH}, {"/livez", PAGES_HEALTH}, {"/ping", PAGES_HEALTH},
        {"/ready", PAGES_READY}, {"/readyz", PAGES_READY}, {"/metrics", PAGES_METRICS},
    };
    pn_bytes path = pages_path(q);
    for (size_t i = 0; i < PN_COUNT_OF(pages); i++)
        if (pages_is(path, pages[i].path))
            return pages[i].which;
    return PAGES_NONE;
}

PN_INTERNAL bool router_is_list(const pn_http_request *q) { return q->method == PN_METHOD_GET && pages_is(pages_path(q), "/models"); }

/* Administration concerns one process, and is meant for its own host. */
static bool pages_is_admin(const pn_http_request *q)
{
    pn_bytes path = pages_path(q);
    return pages_is(path, "/admin") || (path.len > 7 && memcmp(path.data, "/admin/", 7) == 0);
}

PN_INTERNAL void router_head(router_conn *c)
{
    const pn_http_request *q = &c->c.http.req;
    pn_oai_error e;
    if (pages_is_admin(q)) {
        pn_oai_error_set(&e, 403, "permission_error", NULL, "", "%s", "administration is not passed on: call the backend itself, from its own host");
        router_error(c, &e);
    } else if (pages_find(q) && q->method != PN_METHOD_GET && q->method != PN_METHOD_HEAD && q->method != PN_METHOD_OPTIONS) {
        pn_oai_error_method(&e, q->method_text, "GET");
        router_error(c, &e);
    }
}

/* ------------------------------------------------------------------------------------------
 * Health
 * ------------------------------------------------------------------------------------------ */

static void pages_health(const pn_router *r, pn_str *s)
{
    pn_str_addz(s, "{\"status\":\"ok\",\"backends\":[");
    for (uint32_t i = 0; i < r->n_backends; i++) {
        const router_backend *b = &r->backends[i];
        pn_json_item(s);
        pn_str_addz(s, "{\"url\":");
        pn_json_write_strz(s, b->target.name);
        pn_json_key(s, "state");
        pn_json_write_strz(s, router_state_name(b->state));
        pn_json_key(s, "running");
        pn_json_write_u64(s, r->servers[i].running);
        pn_str_addc(s, '}');
    }
    pn_str_addz(s, "]}");
}

static bool pages_ready(const pn_router *r)
{
    for (uint32_t i = 0; i < r->n_backends; i++)
        if (r->backends[i].state == ROUTER_ANSWERS && !r->draining)
            return true;
    return false;
}

/* ------------------------------------------------------------------------------------------
 * Metrics
 * ------------------------------------------------------------------------------------------ */

static void pages_family(pn_str *s, const char *name, const char *kind, const char *help)
{
    pn_str_addf(s, "# HELP pantheon_router_%s %s\n# TYPE pantheon_router_%s %s\n", name, help, name, kind);
}

/* A label's value; the text is printable ASCII or UTF-8 from a command line. */
static void pages_value(pn_str *s, const char *text)
{
    for (const char *p = text; *p; p++) {
        if (*p == '\\' || *p == '"')
            pn_str_addc(s, '\\');
        pn_str_addc(s, *p == '\n' ? ' ' : *p);
    }
}

static void pages_backend(pn_str *s, const char *name, const router_backend *b)
{
    pn_str_addf(s, "pantheon_router_%s{backend=\"", name);
    pages_value(s, b->target.name);
    pn_str_addc(s, '"');
}

static uint64_t pages_count(const pn_router *r, const router_backend *b, int what)
{
    switch (what) {
    case 0: return b->state == ROUTER_ANSWERS;
    case 1: return b->state == ROUTER_DRAINING;
    case 2: return r->servers[b->index].running;
    case 3: return b->n_retries;
    default: return b->n_failures;
    }
}

static void pages_metrics(const pn_router *r, pn_str *s)
{
    static const struct { const char *name, *kind, *help; } of_backend[] = {
        {"up", "gauge", "1: the backend gets new requests."},
        {"draining", "gauge", "1: the backend is alive and gets no new requests."},
        {"requests_running", "gauge", "Requests under way at the backend."},
        {"retries_total", "counter", "Requests that went to another backend instead."},
        {"failures_total", "counter", "Requests whose connection failed or whose answer was broken."},
    };
    static const char *const by[] = {"load", "prefix", "session"};
    pages_family(s, "build_info", "gauge", "The program; the value is 1.");
    pn_str_addf(s, "pantheon_router_build_info{version=\"%s\",build=\"", pn_version());
    pages_value(s, r->params.build ? r->params.build : "none");
    pn_str_addz(s, "\"} 1\n");
    pages_family(s, "connections", "gauge", "Connections of clients.");
    pn_str_addf(s, "pantheon_router_connections %" PRIu32 "\n", r->n_conns);
    for (int k = 0; k < (int)PN_COUNT_OF(of_backend); k++) {
        pages_family(s, of_backend[k].name, of_backend[k].kind, of_backend[k].help);
        for (uint32_t i = 0; i < r->n_backends; i++) {
            pages_backend(s, of_backend[k].name, &r->backends[i]);
            pn_str_addf(s, "} %" PRIu64 "\n", pages_count(r, &r->backends[i], k));
        }
    }
    pages_family(s, "requests_total", "counter", "Answers of the backends by status; 499: the client went away.");
    for (uint32_t i = 0; i < r->n_backends; i++)
        for (int code = 0; code < ROUTER_STATUSES; code++)
            if (r->backends[i].n_status[code]) {
                pages_backend(s, "requests_total", &r->backends[i]);
                pn_str_addf(s, ",code=\"%d\"} %" PRIu64 "\n", code + 100, r->backends[i].n_status[code]);
            }
    pages_family(s, "chosen_total", "counter", "Why a request went where it went.");
    for (int i = 0; i < 3; i++)
        pn_str_addf(s, "pantheon_router_chosen_total{by=\"%s\"} %" PRIu64 "\n", by[i], r->n_by[i]);
    pages_family(s, "unroutable_total", "counter", "Requests for which there was no backend.");
    pn_str_addf(s, "pantheon_router_unroutable_total %" PRIu64 "\n", r->n_none);
}

PN_INTERNAL bool router_own(router_conn *c)
{
    pn_router *r = c->router;
    pages_which which = pages_find(&c->c.http.req);
    pn_str body;
    if (!which || c->c.http.req.method == PN_METHOD_OPTIONS)
        return false;
    pn_str_init(&body, r->mem, PN_ACCT_CONN);
    if (which == PAGES_METRICS)
        pages_metrics(r, &body);
    else
        pages_health(r, &body);
    if (which == PAGES_READY && !pages_ready(r)) {
        pn_oai_error e;
        pn_oai_error_set(&e, 503, "unavailable_error", NULL, "", "%s", r->draining ? "the router is stopping" : "no backend is ready");
        e.retry_ms = r->params.health_ms;
        router_error(c, &e);
    } else {
        router_reply(c, 200, which == PAGES_METRICS ? "text/plain; version=0.0.4; charset=utf-8" : pages_json, &body);
    }
    pn_str_fini(&body);
    return true;
}

/* ------------------------------------------------------------------------------------------
 * The list of models
 * ------------------------------------------------------------------------------------------ */

/* The entry of backend i whose id is the same; PN_JSON_NONE: it has none, or is not up. */
static uint32_t pages_entry(const pn_router *r, uint32_t i, pn_bytes id)
{
    const router_backend *b = &r->backends[i];
    const pn_json_doc *d = &b->models;
    pn_bytes other;
    if (!b->has_models || b->state != ROUTER_ANSWERS)
        return PN_JSON_NONE;
    for (uint32_t m = pn_json_first(d, pn_json_get(d, PN_JSON_ROOT, "data")); m != PN_JSON_NONE; m = pn_json_next(d, m))
        if (pn_json_str(d, pn_json_get(d, m, "id"), &other) && other.len == id.len && memcmp(other.data, id.data, id.len) == 0)
            return m;
    return PN_JSON_NONE;
}

/* As its first backend tells it, with the replicas of all. */
static void pages_model(const pn_router *r, uint32_t first, uint32_t m, pn_bytes id, pn_str *s)
{
    const pn_json_doc *d = &r->backends[first].models;
    int64_t replicas = 0, n;
    for (uint32_t i = first; i < r->n_backends; i++) {
        uint32_t e = pages_entry(r, i, id);
        const pn_json_doc *of = &r->backends[i].models;
        if (e != PN_JSON_NONE)
            replicas += pn_json_i64(of, pn_json_get(of, e, "replicas"), &n) && n >= 0 && n < 1 << 20 ? n : 1;
    }
    pn_json_item(s);
    pn_str_addc(s, '{');
    for (uint32_t f = pn_json_first(d, m); f != PN_JSON_NONE; f = pn_json_next(d, f)) {
        pn_bytes key = pn_json_key_of(d, f);
        if (pages_is(key, "replicas"))
            continue;
        pn_json_item(s);
        pn_json_write_str(s, key.data, key.len);
        pn_str_addc(s, ':');
        pn_json_write_node(s, d, f);
    }
    pn_json_key(s, "replicas");
    pn_json_write_i64(s, replicas);
    pn_str_addc(s, '}');
}

PN_INTERNAL void router_models(const pn_router *r, pn_str *out)
{
    pn_str_addz(out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < r->n_backends; i++) {
        const pn_json_doc *d = &r->backends[i].models;
        pn_bytes id;
        if (!r->backends[i].has_models || r->backends[i].state != ROUTER_ANSWERS)
            continue;
        for (uint32_t m = pn_json_first(d, pn_json_get(d, PN_JSON_ROOT, "data")); m != PN_JSON_NONE; m = pn_json_next(d, m)) {
            bool seen = !pn_json_str(d, pn_json_get(d, m, "id"), &id) || pages_entry(r, i, id) != m;
            for (uint32_t j = 0; j < i && !seen; j++)
                seen = pages_entry(r, j, id) != PN_JSON_NONE;
            if (!seen)
                pages_model(r, i, m, id, out);
        }
    }
    pn_str_addz(out, "]}");
}
