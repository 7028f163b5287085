/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_router_ask.c - a request on its way.
 *
 *     new -> choose -> send --head of an answer--> pass on --end--> done
 *             ^          |  connection failed,        |  backend broke: error event, or the connection ends
 *             +----------+  503, 429
 *
 * An ask is gone when a function here has told its client something final; who calls them does not look at it again.
 */
#include "serve/pn_router_int.h"

#include <inttypes.h>
#include <stdio.h>

#include "serve/pn_anthropic.h"

enum { RASK_TAIL_MAX = 64 << 10 };       /* bytes of a frame that is waited for */

/* ------------------------------------------------------------------------------------------
 * Ends
 * ------------------------------------------------------------------------------------------ */

/* Its backend is done with it. */
static void rask_detach(router_ask *a, bool reuse)
{
    router_up *u = a->up;
    if (!u)
        return;
    a->conn->router->servers[u->backend->index].running--;
    a->up = NULL;
    u->ask = NULL;
    if (reuse)
        router_up_put(u);
    else
        router_up_close(u);
}

static void rask_end(router_ask *a, bool reuse)
{
    router_conn *c = a->conn;
    pn_router *r = c->router;
    rask_detach(a, reuse);
    if (c->backend && c->status >= 100 && c->status < 100 + ROUTER_STATUSES)
        r->backends[c->backend->index].n_status[c->status - 100]++;
    router_log_request(c);
    pn_str_fini(&a->head);
    pn_str_fini(&a->body);
    pn_str_fini(&a->model);
    pn_str_fini(&a->tail);
    pn_mem_free(r->mem, PN_ACCT_CONN, a, sizeof *a);
    c->ask = NULL;
    r->n_asks--;
}

/* An answer of ours instead of a backend's. */
static void rask_refuse(router_ask *a, int status, const char *type, const char *code, const char *text)
{
    router_conn *c = a->conn;
    pn_oai_error e;
    pn_oai_error_set(&e, status, type, code, "", "%s", text);
    if (status == 503)
        e.retry_ms = c->router->params.health_ms;
    router_error(c, &e);
    c->backend = NULL;
    rask_end(a, false);
}

/* Nobody is left who could answer. */
static void rask_nobody(router_ask *a)
{
    a->conn->router->n_none++;
    rask_refuse(a, 503, "unavailable_error", "no_backend",
               a->tried ? "the backends that could answer failed or have no room; try again later" : "no backend can take this request now; try again later");
}

/* An answer that has begun cannot go on: say so where events can, else end the connection. */
static void rask_break(router_ask *a, const char *text)
{
    pn_conn *c = &a->conn->c;
    pn_oai_error e;
    pn_str body;
    pn_oai_error_set(&e, 502, "server_error", "backend_failed", "", "%s", text);
    pn_str_init(&body, a->conn->router->mem, PN_ACCT_CONN);
    if (a->anthropic)
        pn_anthropic_error_json(&e, &body);
    else
        pn_oai_error_json(&e, &body);
    pn_status st = a->events && !body.failed ? PN_OK : PN_E_UNSUPPORTED;
    if (!st && a->split)
        st = pn_conn_put(c, "\n\n", 2);         /* what has been sent of a frame must not hide the next one */
    if (!st)
        st = pn_sse_last_event(&c->sse, a->anthropic ? "error" : NULL, body.data, body.len);
    if (!st)
        st = pn_sse_end(&c->sse, false);
    pn_str_fini(&body);
    if (st)
        pn_conn_abort(c);
    rask_end(a, false);
}

PN_INTERNAL void router_ask_abort(router_ask *a)
{
    a->conn->status = 499;
    rask_end(a, false);
}

PN_INTERNAL void router_ask_stop(router_ask *a)
{
    if (a->passed)
        rask_break(a, "the router is stopping");
    else
        rask_refuse(a, 503, "unavailable_error", "stopping", "the router is stopping");
}

/* ------------------------------------------------------------------------------------------
 * Choosing
 * ------------------------------------------------------------------------------------------ */

static uint64_t rask_others(const router_ask *a)
{
    return router_health_eligible(a->conn->router, (pn_bytes){pn_str_cstr(&a->model), a->model.len}) & ~a->tried;
}

static void rask_try(router_ask *a)
{
    router_conn *c = a->conn;
    pn_router *r = c->router;
    for (uint64_t set; (set = rask_others(a)) != 0;) {
        bool full;
        uint32_t i = pn_affinity_choose(&r->affinity, r->params.affinity, &a->keys, r->servers, set, &a->by);
        router_backend *b = &r->backends[i];
        a->tried |= (uint64_t)1 << i;
        c->n_tries++;
        c->backend = b;
        a->up = router_up_get(b, &full);
        if (a->up) {
            r->servers[i].running++;
            a->up->ask = a;
            router_up_begin(a->up, (pn_bytes){a->head.data, a->head.len}, (pn_bytes){pn_str_cstr(&a->body), a->body.len}, a->to_head);
            return;
        }
        if (full) {
            rask_refuse(a, 503, "unavailable_error", NULL, "the router has no descriptor or memory left for another connection");
            return;
        }
        b->n_failures++;
        router_health_failed(b, "the connection was refused");
        b->n_retries += rask_others(a) != 0;
    }
    rask_nobody(a);
}

/* The same request to somebody else; false: there is nobody. */
static bool rask_again(router_ask *a)
{
    if (!rask_others(a))
        return false;
    a->up->backend->n_retries++;
    rask_detach(a, false);
    rask_try(a);
    return true;
}

PN_INTERNAL void router_ask_lost(router_ask *a)
{
    router_up *u = a->up;
    router_backend *b = u->backend;
    b->n_failures++;
    router_logf(b->router, PN_LOG_WARN, "%s: a request failed: %s", b->target.name, u->u.answer.message[0] ? u->u.answer.message : "no connection");
    if (u->u.timed_out) {
        if (a->passed)
            rask_break(a, "the backend has fallen silent in the middle of the answer");
        else
            rask_refuse(a, 504, "server_error", "backend_timeout", "the backend did not answer in time");
        return;
    }
    router_health_failed(b, "a request failed");
    if (a->passed)
        rask_break(a, "the backend failed in the middle of the answer");
    else if (!rask_again(a))
        rask_nobody(a);
}

/* ------------------------------------------------------------------------------------------
 * The answer
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL bool router_named(pn_bytes list, pn_bytes name)
{
    pn_bytes e;
    for (size_t at = 0; list.data && pn_http_list(list, &at, &e);)
        if (pn_http_is(e, name.data))
            return true;
    return false;
}

PN_INTERNAL bool router_hop_field(pn_bytes name)
{
    static const char *const hop[] = {"connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te",
                                      "trailer", "transfer-encoding", "upgrade", "content-length"};
    for (size_t i = 0; i < PN_COUNT_OF(hop); i++)
        if (pn_http_is(name, hop[i]))
            return true;
    return false;
}

static bool rask_hop_response(const pn_http_response *r, pn_bytes name)
{
    for (uint32_t i = 0; i < r->n_fields; i++)
        if (pn_http_is(pn_response_field_name(r, i), "connection") && router_named(pn_response_field_value(r, i), name))
            return true;
    return router_hop_field(name);
}

/* The head goes to the client; the body follows. */
static void rask_pass(router_ask *a)
{
    router_conn *c = a->conn;
    const pn_http_response *q = &a->up->u.answer.r;
    pn_bytes type = pn_response_get(q, "content-type");
    pn_str fields;
    pn_str_init(&fields, c->router->mem, PN_ACCT_CONN);
    for (uint32_t i = 0; i < q->n_fields; i++) {
        pn_bytes name = pn_response_field_name(q, i), v = pn_response_field_value(q, i);
        if (!rask_hop_response(q, name))
            pn_http_add_n(&fields, name.data, v.data, v.len);
    }
    if (!pn_response_get(q, "x-request-id").data)
        pn_http_add(&fields, "x-request-id", c->request_id);
    const pn_http_reply r = {.status = q->status, .fields = &fields, .has_length = q->has_length, .length = q->content_length};
    pn_status st = pn_conn_relay(&c->c, &r);
    pn_str_fini(&fields);
    c->status = q->status;
    a->passed = true;
    a->events = !q->has_length && !a->to_head && type.len >= 17 && pn_http_is((pn_bytes){type.data, 17}, "text/event-stream");
    if (pn_upstream_release(&a->up->u)) {
        pn_str_fini(&a->body);
        pn_str_fini(&a->head);
    }
    if (st) {
        pn_conn_abort(&c->c);
        rask_end(a, false);
    }
}

static void rask_answered(router_ask *a)
{
    router_conn *c = a->conn;
    pn_router *r = c->router;
    router_backend *b = a->up->backend;
    int status = a->up->u.answer.r.status;
    bool busy = status == 503 || status == 429;
    if (busy && rask_others(a)) {
        b->n_status[status - 100]++;
        rask_again(a);
        return;
    }
    r->n_by[a->by]++;
    if (!busy && status < 500)
        pn_affinity_learn(&r->affinity, r->params.affinity, &a->keys, b->index);
    if (a->merge && status == 200)
        c->status = status;             /* its list is dropped, ours goes out when it is complete */
    else
        rask_pass(a);
}

/* Pass on whole frames only, so that an error event never ends up inside of one. */
static pn_status rask_frames(router_ask *a, pn_bytes piece)
{
    size_t end = 0;                     /* of the last frame that ends here */
    for (size_t i = 0; i < piece.len; i++) {
        char ch = piece.data[i];
        if (ch == '\n' && !a->line_len)
            end = i + 1;
        a->line_len = ch == '\n' ? 0 : a->line_len + (ch != '\r');
    }
    if (end)
        a->split = false;
    if ((end ? 0 : a->tail.len) + (piece.len - end) > RASK_TAIL_MAX) {
        end = piece.len;
        a->split = true;
    }
    pn_status st = PN_OK;
    if (end && a->tail.len) {
        pn_str_add(&a->tail, piece.data, end);
        st = a->tail.failed ? PN_E_NOMEM : pn_conn_put(&a->conn->c, a->tail.data, a->tail.len);
        pn_str_clear(&a->tail);
    } else if (end) {
        st = pn_conn_put(&a->conn->c, piece.data, end);
    }
    if (!st && end < piece.len)
        pn_str_add(&a->tail, piece.data + end, piece.len - end);
    return st ? st : a->tail.failed ? PN_E_NOMEM : PN_OK;
}

static void rask_body(router_ask *a, pn_bytes piece)
{
    pn_conn *c = &a->conn->c;
    if (!a->passed)
        return;
    pn_status st = a->events ? rask_frames(a, piece) : pn_conn_put(c, piece.data, piece.len);
    if (st) {
        pn_conn_abort(c);
        rask_end(a, false);
    }
}

static void rask_done(router_ask *a)
{
    router_conn *c = a->conn;
    if (!a->passed) {
        pn_str body;
        pn_str_init(&body, c->router->mem, PN_ACCT_CONN);
        router_models(c->router, &body);
        router_reply(c, 200, "application/json; charset=utf-8", &body);
    } else {
        pn_status st = a->tail.len ? pn_conn_put(&c->c, a->tail.data, a->tail.len) : PN_OK;
        if (!st)
            st = pn_sse_end(&c->c.sse, false);
        if (st)
            pn_conn_abort(&c->c);
    }
    rask_end(a, true);
}

PN_INTERNAL void router_ask_fed(router_ask *a, pn_response_fed fed, pn_bytes piece)
{
    switch (fed) {
    case PN_RESPONSE_MORE: break;
    case PN_RESPONSE_HEAD: rask_answered(a); break;
    case PN_RESPONSE_BODY: rask_body(a, piece); break;
    case PN_RESPONSE_DONE: rask_done(a); break;
    case PN_RESPONSE_FAULT:
        a->up->backend->n_failures++;
        router_logf(a->conn->router, PN_LOG_WARN, "%s: an answer is no HTTP: %s", a->up->backend->target.name, a->up->u.answer.message);
        if (a->passed)
            rask_break(a, "the backend failed in the middle of the answer");
        else
            rask_refuse(a, 502, "server_error", "backend_failed", "the backend's answer is malformed");
        break;
    }
}

/* ------------------------------------------------------------------------------------------
 * The request
 * ------------------------------------------------------------------------------------------ */

/* The path was decoded; encode what may not stand in a target, RFC 3986 3.3. */
static void rask_target(pn_str *s, const pn_http_request *q)
{
    for (size_t i = 0; i < q->path.len; i++) {
        char ch = q->path.data[i];
        bool plain = (ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || strchr("-._~!$&'()*+,;=:@/", ch);
        if (plain)
            pn_str_addc(s, ch);
        else
            pn_str_addf(s, "%%%02X", (unsigned)(unsigned char)ch);
    }
    if (q->query.data) {
        pn_str_addc(s, '?');
        pn_str_add(s, q->query.data, q->query.len);
    }
}

static bool rask_hop_request(const pn_http_request *q, pn_bytes name)
{
    static const char *const ours[] = {"host", "expect", "x-request-id", "x-forwarded-for"};
    for (size_t i = 0; i < PN_COUNT_OF(ours); i++)
        if (pn_http_is(name, ours[i]))
            return true;
    for (uint32_t i = pn_http_find(q, "connection", 0); i < q->n_fields; i = pn_http_find(q, "connection", i + 1))
        if (router_named(pn_http_field_value(q, i), name))
            return true;
    return router_hop_field(name);
}

/* Who is asking, behind those whom others have told of.  It is never empty: a backend sees that the request is not of
 * its own host. */
static void rask_forwarded(pn_str *s, const router_conn *c)
{
    const pn_http_request *q = &c->c.http.req;
    pn_str_addz(s, "X-Forwarded-For: ");
    for (uint32_t i = pn_http_find(q, "x-forwarded-for", 0); i < q->n_fields; i = pn_http_find(q, "x-forwarded-for", i + 1)) {
        pn_bytes v = pn_http_field_value(q, i);
        if (v.len) {
            pn_str_add(s, v.data, v.len);
            pn_str_addz(s, ", ");
        }
    }
    pn_str_addf(s, "%s\r\n", strcmp(c->peer.name, "unix") == 0 ? "unknown" : c->peer.name);
}

static void rask_write_head(router_ask *a)
{
    const router_conn *c = a->conn;
    const pn_http_request *q = &c->c.http.req;
    pn_str *s = &a->head;
    bool body = a->body.len || q->method == PN_METHOD_POST || q->method == PN_METHOD_PUT || q->method == PN_METHOD_PATCH;
    pn_str_add(s, q->method_text.data, q->method_text.len);
    pn_str_addc(s, ' ');
    rask_target(s, q);
    pn_str_addz(s, " HTTP/1.1\r\n");
    pn_http_add(s, "Host", q->host.len ? q->host.data : "localhost");
    for (uint32_t i = 0; i < q->n_fields; i++) {
        pn_bytes name = pn_http_field_name(q, i), v = pn_http_field_value(q, i);
        if (!rask_hop_request(q, name))
            pn_http_add_n(s, name.data, v.data, v.len);
    }
    pn_http_add(s, "x-request-id", c->request_id);
    rask_forwarded(s, c);
    if (body)
        pn_str_addf(s, "Content-Length: %zu\r\n", a->body.len);
    pn_str_addz(s, "\r\n");
}

static bool rask_under(pn_bytes path, const char *prefix, pn_bytes *rest)
{
    size_t n = strlen(prefix);
    bool v1 = path.len > 4 && memcmp(path.data, "/v1/", 4) == 0;
    pn_bytes p = v1 ? (pn_bytes){path.data + 3, path.len - 3} : path;
    if (p.len < n || memcmp(p.data, prefix, n) != 0)
        return false;
    *rest = (pn_bytes){p.data + n, p.len - n};
    return true;
}

/* What it is known by. */
static void rask_keys(router_ask *a)
{
    router_conn *c = a->conn;
    pn_router *r = c->router;
    const pn_http_request *q = &c->c.http.req;
    pn_bytes rest, session = {NULL, 0}, header = pn_http_get(q, "x-session-id");
    pn_affinity_fields f;
    pn_str name;
    pn_affinity_scan(pn_str_cstr(&a->body), a->body.len, &f);
    a->anthropic = rask_under(q->path, "/messages", &rest);
    if (!pn_affinity_text(r->mem, f.model, &a->model)) {
        pn_str_clear(&a->model);
        if (rask_under(q->path, "/models/", &rest))
            pn_str_add(&a->model, rest.data, rest.len);
    }
    pn_str_init(&name, r->mem, PN_ACCT_CONN);
    if (pn_affinity_text(r->mem, f.session_id, &name) && name.len)
        session = (pn_bytes){name.data, name.len};
    else if (header.len)
        session = header;
    else if (pn_affinity_text(r->mem, f.prompt_cache_key, &name) && name.len)
        session = (pn_bytes){name.data, name.len};
    pn_affinity_read(&a->keys, &f, (pn_bytes){pn_str_cstr(&a->model), a->model.len}, session, r->seed);
    pn_str_fini(&name);
}

PN_INTERNAL void router_ask_new(router_conn *c, bool merge)
{
    pn_router *r = c->router;
    router_ask *a = pn_mem_calloc(r->mem, PN_ACCT_CONN, 1, sizeof *a);
    if (!a) {
        pn_oai_error e;
        pn_oai_error_set(&e, 503, "unavailable_error", NULL, "", "%s", "the router is out of memory");
        router_error(c, &e);
        return;
    }
    a->conn = c;
    a->merge = merge;
    a->to_head = c->c.http.req.method == PN_METHOD_HEAD;
    pn_str_init(&a->head, r->mem, PN_ACCT_CONN);
    pn_str_init(&a->model, r->mem, PN_ACCT_CONN);
    pn_str_init(&a->tail, r->mem, PN_ACCT_CONN);
    pn_http_take_body(&c->c.http, &a->body);
    c->ask = a;
    r->n_asks++;
    rask_keys(a);
    rask_write_head(a);
    if (a->head.failed || a->model.failed)
        rask_refuse(a, 503, "unavailable_error", NULL, "the router is out of memory");
    else
        rask_try(a);
}
