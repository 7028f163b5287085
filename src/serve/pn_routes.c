/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_routes.c - which path is whose, and who may call it.
 *
 * Every route exists with and without "/v1" before it: clients are configured either way.  What can be refused is
 * refused when the head is known, before a body is sent.
 */
#include "serve/pn_server_int.h"

#include <stdio.h>

enum { ROUTE_OPEN = 1, ROUTE_ADMIN = 2, ROUTE_BELOW = 4, ROUTE_ANTHROPIC = 8 };      /* BELOW: what follows is a name */

typedef struct route {
    const char *path;
    pn_method method;
    unsigned flags;
    bool ask;
    int what;                   /* serve_kind or serve_admin */
} route;

#define ROUTE_GET(path, what, flags) {path, PN_METHOD_GET, flags, false, what}
#define ROUTE_POST(path, what, flags) {path, PN_METHOD_POST, flags, false, what}
#define ROUTE_ASK(path, what, flags) {path, PN_METHOD_POST, flags, true, what}

static const route routes[] = {
    ROUTE_ASK("/chat/completions", SERVE_CHAT, 0), ROUTE_ASK("/completions", SERVE_COMPLETION, 0),
    ROUTE_ASK("/responses", SERVE_RESPONSES, 0), ROUTE_ASK("/messages", SERVE_MESSAGES, ROUTE_ANTHROPIC),
    ROUTE_ASK("/embeddings", SERVE_EMBED, 0), ROUTE_ASK("/tokenize", SERVE_TOKENIZE, 0), ROUTE_ASK("/detokenize", SERVE_DETOKENIZE, 0),
    ROUTE_ASK("/apply-template", SERVE_TEMPLATE, 0), ROUTE_ASK("/chat/completions/input_tokens", SERVE_COUNT, 0),
    ROUTE_ASK("/responses/input_tokens", SERVE_COUNT_RESPONSES, 0), ROUTE_ASK("/messages/count_tokens", SERVE_COUNT_MESSAGES, ROUTE_ANTHROPIC),
    ROUTE_GET("/models", SERVE_MODELS, 0), ROUTE_GET("/models/", SERVE_MODEL, ROUTE_BELOW),
    ROUTE_GET("/", SERVE_ROOT, ROUTE_OPEN), ROUTE_GET("/health", SERVE_HEALTH, ROUTE_OPEN), ROUTE_GET("/healthz", SERVE_HEALTH, ROUTE_OPEN),
    ROUTE_GET("/livez", SERVE_HEALTH, ROUTE_OPEN), ROUTE_GET("/ping", SERVE_HEALTH, ROUTE_OPEN), ROUTE_GET("/ready", SERVE_READY_, ROUTE_OPEN),
    ROUTE_GET("/readyz", SERVE_READY_, ROUTE_OPEN), ROUTE_GET("/version", SERVE_VERSION, 0), ROUTE_GET("/metrics", SERVE_METRICS, 0),
    ROUTE_GET("/admin/models", SERVE_ADMIN_MODELS, ROUTE_ADMIN), ROUTE_POST("/admin/models/load", SERVE_ADMIN_LOAD, ROUTE_ADMIN),
    ROUTE_POST("/admin/models/unload", SERVE_ADMIN_UNLOAD, ROUTE_ADMIN), ROUTE_GET("/admin/dies", SERVE_ADMIN_DIES, ROUTE_ADMIN),
    ROUTE_GET("/admin/memory", SERVE_ADMIN_MEMORY, ROUTE_ADMIN),
};

static bool route_is(const route *r, pn_bytes path)
{
    size_t n = strlen(r->path);
    return path.len >= n && memcmp(path.data, r->path, n) == 0 && (r->flags & ROUTE_BELOW ? path.len > n : path.len == n);
}

static bool route_takes(pn_method route_method, pn_method m)
{
    return m == route_method || (m == PN_METHOD_HEAD && route_method == PN_METHOD_GET);
}

/* The path without "/v1". */
static pn_bytes route_path(const pn_http_request *r)
{
    pn_bytes p = r->path;
    if (p.len > 4 && memcmp(p.data, "/v1/", 4) == 0)
        p = (pn_bytes){p.data + 3, p.len - 3};
    return p;
}

/* NULL: none; *method_only: there is one for another method. */
static const route *route_find(const pn_http_request *q, const route **method_only)
{
    pn_bytes path = route_path(q);
    *method_only = NULL;
    for (size_t i = 0; i < PN_COUNT_OF(routes); i++) {
        if (!route_is(&routes[i], path))
            continue;
        if (route_takes(routes[i].method, q->method))
            return &routes[i];
        *method_only = &routes[i];
    }
    return NULL;
}

static const serve_route_own *route_own(const pn_server *s, const pn_http_request *q)
{
    for (const serve_route_own *r = s->own; r; r = r->next)
        if (route_takes(r->method, q->method) && strlen(r->path) == q->path.len && memcmp(r->path, q->path.data, q->path.len) == 0)
            return r;
    return NULL;
}

/* ------------------------------------------------------------------------------------------
 * May they?
 * ------------------------------------------------------------------------------------------ */

/* An address, or this very host.  Any other name may be a web site's that was made to lead here. */
static bool route_host_is_ours(pn_bytes host)
{
    static const char here[] = "localhost";
    size_t n = sizeof here - 1, i = 0;
    const char *allowed = host.len && host.data[0] == '[' ? "0123456789abcdefABCDEF.:[]" : "0123456789.:";
    if (host.len >= n && memcmp(host.data, here, n) == 0 && (host.len == n || host.data[n] == ':'))
        return true;
    while (i < host.len && strchr(allowed, host.data[i]))
        i++;
    return i == host.len;
}

/* A page of some web site may have told the browser to call us: then the address proves nothing. */
static bool route_from_here(const serve_conn *c)
{
    bool named = strcmp(c->peer.name, "unix") == 0 || route_host_is_ours(c->c.http.req.host);     /* browsers know no socket files */
    return c->peer.local && named && !pn_http_get(&c->c.http.req, "origin").data && !pn_http_get(&c->c.http.req, "x-forwarded-for").data;
}

static bool route_allowed(serve_conn *c, unsigned flags)
{
    const pn_server *s = c->server;
    const pn_keys *keys = flags & ROUTE_ADMIN && s->admin_keys.n ? &s->admin_keys : &s->keys;
    if (flags & ROUTE_OPEN)
        return true;
    if (flags & ROUTE_ADMIN && !s->admin_keys.n && !route_from_here(c)) {
        serve_errorf(c, 403, "permission_error", NULL, "Administration is open to this host only; an admin key file opens it to others.");
        return false;
    }
    pn_key_check check = pn_keys_check(keys, &c->c.http.req);
    if (check != PN_KEY_OK) {
        pn_oai_error e;
        pn_oai_error_key(&e, check == PN_KEY_WRONG);
        serve_error(c, &e);
    }
    return check == PN_KEY_OK;
}

static void route_missing(serve_conn *c, const route *other)
{
    const pn_http_request *q = &c->c.http.req;
    pn_oai_error e;
    if (other)
        pn_oai_error_method(&e, q->method_text, other->method == PN_METHOD_GET ? "GET" : "POST");
    else
        pn_oai_error_route(&e, q->path);
    serve_error(c, &e);
}

PN_INTERNAL void serve_head(serve_conn *c)
{
    const pn_http_request *q = &c->c.http.req;
    const route *other, *r = route_find(q, &other);
    const serve_route_own *own = route_own(c->server, q);
    c->api = (r && r->flags & ROUTE_ANTHROPIC) || (other && other->flags & ROUTE_ANTHROPIC) ? SERVE_ANTHROPIC : SERVE_OPENAI;
    if (q->method == PN_METHOD_OPTIONS)
        serve_reply(c, 204, NULL, "", 0);
    else if (own)
        route_allowed(c, own->open ? ROUTE_OPEN : 0);
    else if (!r)
        route_missing(c, other);
    else
        route_allowed(c, r->flags);
}

/* ------------------------------------------------------------------------------------------
 * Routes of the program around us
 * ------------------------------------------------------------------------------------------ */

PN_API const char *pn_server_field(const pn_server_request *request, const char *name)
{
    return pn_http_get(request->fields, name).data;
}

static void route_call(serve_conn *c, const serve_route_own *own)
{
    const pn_http_request *q = &c->c.http.req;
    char method[24];
    snprintf(method, sizeof method, "%.*s", (int)q->method_text.len, q->method_text.data);
    const pn_server_request request = {.method = method, .path = q->path.data, .query = q->query.data ? q->query.data : "",
                                       .body = q->body.data, .body_len = q->body.len, .peer = c->peer.name, .fields = q};
    pn_server_response r = {.status = 200, .content_type = "application/json"};
    own->fn(own->user, &request, &r);
    if (r.status < 200 || r.status > 599)
        r.status = 500;
    serve_reply(c, r.status ? r.status : 200, r.content_type, r.body ? r.body : "", r.body ? r.body_len : 0);
}

PN_API pn_status pn_server_handle(pn_server *s, const char *method, const char *path, int open, pn_server_handler fn,
                                  void *user, pn_err *err)
{
    static const struct { const char *name; pn_method m; } methods[] = {{"GET", PN_METHOD_GET}, {"POST", PN_METHOD_POST},
        {"PUT", PN_METHOD_PUT}, {"PATCH", PN_METHOD_PATCH}, {"DELETE", PN_METHOD_DELETE}};
    size_t i = 0;
    while (i < PN_COUNT_OF(methods) && (!method || strcmp(methods[i].name, method) != 0))
        i++;
    if (i == PN_COUNT_OF(methods) || !path || path[0] != '/' || !fn)
        return pn_fail(err, PN_E_INVALID, "pn_server_handle: expected GET, POST, PUT, PATCH or DELETE, a path that begins with '/', and a handler");
    serve_route_own *r = pn_mem_calloc(&s->mem, PN_ACCT_CONN, 1, sizeof *r);
    char *copy = pn_mem_strndup(&s->mem, PN_ACCT_CONN, path, strlen(path));
    if (!r || !copy) {
        pn_mem_free(&s->mem, PN_ACCT_CONN, r, sizeof *r);
        pn_mem_free(&s->mem, PN_ACCT_CONN, copy, strlen(path) + 1);
        return pn_fail_nomem(err, "a route", sizeof *r);
    }
    *r = (serve_route_own){.next = s->own, .path = copy, .method = methods[i].m, .open = open != 0, .fn = fn, .user = user};
    s->own = r;
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * Going there
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void serve_request_complete(serve_conn *c)
{
    const pn_http_request *q = &c->c.http.req;
    const route *other, *r = route_find(q, &other);
    const serve_route_own *own = route_own(c->server, q);
    if (own)
        route_call(c, own);
    else if (r && r->ask)
        serve_ask_new(c, (serve_kind)r->what);
    else if (r) {
        pn_bytes path = route_path(q);
        size_t n = strlen(r->path);
        serve_admin_answer(c, (serve_admin)r->what, (pn_bytes){path.data + n, path.len - n});
    }
}

#undef ROUTE_GET
#undef ROUTE_POST
#undef ROUTE_ASK
