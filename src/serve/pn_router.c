/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_router.c - the loop: sockets that are ready, checks that are due, whose time is up.  A client's connection is
 * worked on until it wants nothing (router_turn); nothing here waits but pn_poller_wait.
 */
#include "serve/pn_router_int.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/pn_hash.h"
#include "serve/pn_anthropic.h"

enum {
    ROUTER_READS = 64, ROUTER_ACCEPTS = 64, ROUTER_RETRY_MS = 100,
    ROUTER_LAST_MS = 1000,              /* for errors to go out after the time to drain */
    ROUTER_QUEUE = 256 << 10            /* bytes of an answer that wait for a client; paused from a quarter on */
};

/* ------------------------------------------------------------------------------------------
 * Log
 * ------------------------------------------------------------------------------------------ */

static void router_log(const pn_router *r, pn_log_level level, char *text)
{
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)       /* clients choose paths */
            *p = '?';
    r->params.log(r->params.log_user, level, text);
}

static void router_log_json(const pn_router *r, pn_log_level level, const char *event, const char *members)
{
    static const char *const levels[] = {"error", "warn", "info", "debug"};
    pn_str line;
    pn_str_init(&line, r->mem, PN_ACCT_CONN);
    pn_str_addf(&line, "{\"level\":\"%s\",\"time\":%" PRId64, levels[level], pn_net_unix_s());
    pn_json_key(&line, "event");
    pn_json_write_strz(&line, event);
    pn_str_addf(&line, "%s}", members);
    if (!line.failed)
        router_log(r, level, line.data);
    pn_str_fini(&line);
}

PN_INTERNAL void router_logf(pn_router *r, pn_log_level level, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (!r->params.log)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (r->params.log_json)
        router_log_json(r, level, text, "");
    else
        router_log(r, level, text);
}

PN_INTERNAL void router_log_request(router_conn *c)
{
    pn_router *r = c->router;
    const pn_http_request *q = &c->c.http.req;
    const char *to = c->backend ? c->backend->target.name : NULL;
    uint64_t ms = r->now - c->began;
    if (!r->params.log)
        return;
    if (!r->params.log_json) {
        router_logf(r, PN_LOG_INFO, "%s %s %.*s %.200s %d %" PRIu64 "ms backend=%s tries=%" PRIu32, c->peer.name, c->request_id, (int)q->method_text.len,
                    q->method_text.data ? q->method_text.data : "", q->path.data ? q->path.data : "-", c->status, ms, to ? to : "-", c->n_tries);
        return;
    }
    pn_str m;
    pn_str_init(&m, r->mem, PN_ACCT_CONN);
    pn_str_addz(&m, ",\"peer\":");
    pn_json_write_strz(&m, c->peer.name);
    pn_json_key(&m, "request_id");
    pn_json_write_strz(&m, c->request_id);
    pn_json_key(&m, "path");
    pn_json_write_str(&m, q->path.data ? q->path.data : "", q->path.len);
    pn_json_key(&m, "backend");
    pn_json_write_strz(&m, to);
    pn_str_addf(&m, ",\"status\":%d,\"ms\":%" PRIu64 ",\"tries\":%" PRIu32, c->status, ms, c->n_tries);
    if (!m.failed)
        router_log_json(r, PN_LOG_INFO, "request", m.data);
    pn_str_fini(&m);
}

/* ------------------------------------------------------------------------------------------
 * Replies of our own
 * ------------------------------------------------------------------------------------------ */

static void router_reply_with(router_conn *c, int status, const char *type, pn_str *body, uint32_t retry_ms)
{
    pn_str fields;
    char date[30], text[24];
    pn_str_init(&fields, c->router->mem, PN_ACCT_CONN);
    pn_http_add(&fields, "x-request-id", c->request_id);
    if (retry_ms) {
        snprintf(text, sizeof text, "%" PRIu32, (retry_ms + 999) / 1000);
        pn_http_add(&fields, "Retry-After", text);
        snprintf(text, sizeof text, "%" PRIu32, retry_ms);
        pn_http_add(&fields, "retry-after-ms", text);
    }
    pn_http_date(pn_net_unix_s(), date);
    const pn_http_reply r = {.status = status, .content_type = type, .date = date, .fields = &fields};
    pn_status st = body->failed ? PN_E_NOMEM : pn_conn_reply_give(&c->c, &r, body);
    pn_str_fini(&fields);
    pn_str_fini(body);
    c->status = status;
    if (st)
        pn_conn_abort(&c->c);
}

PN_INTERNAL void router_reply(router_conn *c, int status, const char *type, pn_str *body)
{
    router_reply_with(c, status, type, body, 0);
}

PN_INTERNAL void router_error(router_conn *c, const pn_oai_error *e)
{
    pn_str body;
    bool anthropic = c->ask && c->ask->anthropic;
    pn_str_init(&body, c->router->mem, PN_ACCT_CONN);
    if (anthropic)
        pn_anthropic_error_json(e, &body);
    else
        pn_oai_error_json(e, &body);
    router_reply_with(c, anthropic ? pn_anthropic_error_status(e) : e->status, "application/json; charset=utf-8", &body, e->retry_ms);
}

/* ------------------------------------------------------------------------------------------
 * Connections of clients
 * ------------------------------------------------------------------------------------------ */

static void router_random_id(char out[25])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char bytes[24];
    pn_net_random(bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        out[i] = digits[bytes[i] % (sizeof digits - 1)];
    out[sizeof bytes] = 0;
}

static void router_request_id(router_conn *c)
{
    pn_bytes id = pn_http_get(&c->c.http.req, "x-request-id");
    bool sane = id.len > 0 && id.len < sizeof c->request_id;
    for (size_t i = 0; sane && i < id.len; i++)
        sane = id.data[i] > ' ' && id.data[i] < 127;
    if (sane)
        snprintf(c->request_id, sizeof c->request_id, "%.*s", (int)id.len, id.data);
    else
        router_random_id(c->request_id);
}

static void router_kill(router_conn *c)
{
    if (c->dead)
        return;
    c->dead = true;
    c->router->n_dead++;
    if (c->ask)
        router_ask_abort(c->ask);
    pn_poller_remove(&c->router->poller, c->fd);
    pn_net_close(c->fd);
    c->fd = -1;
}

static void router_event(router_conn *c, pn_conn_event e)
{
    pn_oai_error error;
    switch (e) {
    case PN_CONN_HEAD:
        c->began = c->router->now;
        c->status = 0;
        c->backend = NULL;
        c->n_tries = 0;
        router_request_id(c);
        router_head(c);
        break;
    case PN_CONN_REQUEST:
        if (!router_own(c))
            router_ask_new(c, router_is_list(&c->c.http.req));
        break;
    case PN_CONN_FAULT:
        if (!c->request_id[0])
            router_random_id(c->request_id);
        pn_oai_error_set(&error, c->c.http.status, "invalid_request_error", c->c.http.status == 413 ? "request_too_large" : NULL, "", "%s",
                         c->c.http.message);
        router_error(c, &error);
        break;
    case PN_CONN_ABORT:
        if (c->ask)
            router_ask_abort(c->ask);
        break;
    case PN_CONN_SHUTDOWN: pn_net_shutdown(c->fd); break;
    case PN_CONN_CLOSE: router_kill(c); break;
    case PN_CONN_NOTHING: break;
    }
}

PN_INTERNAL void router_turn(router_conn *c)
{
    pn_router *r = c->router;
    pn_conn_event e;
    do {
        while (!c->dead && (e = pn_conn_next(&c->c, r->now)) != PN_CONN_NOTHING)
            router_event(c, e);
    } while (!c->dead && pn_conn_net_write(&c->c, c->fd, r->now) != PN_IO_AGAIN);
    if (c->dead)
        return;
    if (c->ask && c->ask->up)
        router_up_flow(c->ask->up);
    unsigned events = pn_conn_net_wants(&c->c);
    if (events != c->events)
        pn_poller_change(&r->poller, c->fd, events, c);
    c->events = events;
    r->sweep_at = PN_MIN(r->sweep_at, pn_conn_deadline(&c->c));
}

/* Take what the socket has; several times, but others have a turn, too. */
static void router_ready(router_conn *c, unsigned events)
{
    for (int i = 0; i < ROUTER_READS && (events & PN_READY_READ) && !c->dead && pn_conn_net_read(&c->c, c->fd, c->router->now); i++)
        router_turn(c);
    if (c->dead)
        return;
    pn_conn_net_told(&c->c, events);
    router_turn(c);
}

/* ------------------------------------------------------------------------------------------
 * New connections
 * ------------------------------------------------------------------------------------------ */

static void router_hear(pn_router *r, bool on)
{
    if (on == r->listening)
        return;
    r->listening = on;
    for (uint32_t i = 0; i < r->n_listeners; i++) {
        if (!on)
            pn_poller_remove(&r->poller, r->listener[i].l.fd);
        else if (!pn_poller_add(&r->poller, r->listener[i].l.fd, PN_READY_READ, &r->listener[i]))
            router_logf(r, PN_LOG_ERROR, "cannot wait for connections on %s", r->listener[i].l.name);
    }
}

static bool router_adopt(pn_router *r, int fd, const pn_peer *peer)
{
    router_conn *c = pn_mem_calloc(r->mem, PN_ACCT_CONN, 1, sizeof *c);
    if (!c || !pn_poller_add(&r->poller, fd, PN_READY_READ | PN_READY_END, c)) {
        pn_mem_free(r->mem, PN_ACCT_CONN, c, sizeof *c);
        pn_net_close(fd);
        return false;
    }
    c->kind = ROUTER_CONN;
    c->router = r;
    c->fd = fd;
    c->peer = *peer;
    c->events = PN_READY_READ | PN_READY_END;
    pn_conn_init(&c->c, r->mem, &r->conn_params, r->now);
    c->next = r->conns;
    if (r->conns)
        r->conns->prev = c;
    r->conns = c;
    r->n_conns++;
    r->sweep_at = PN_MIN(r->sweep_at, pn_conn_deadline(&c->c));
    return true;
}

static void router_accept(pn_router *r, const pn_listener *l)
{
    for (int i = 0; i < ROUTER_ACCEPTS; i++) {
        pn_peer peer;
        int fd = r->n_conns < r->params.max_connections ? pn_listener_accept(l, &peer) : -2;
        if (fd == -1)
            return;
        if (fd == -2 || !router_adopt(r, fd, &peer)) {
            router_hear(r, false);
            r->sweep_at = PN_MIN(r->sweep_at, r->now + ROUTER_RETRY_MS);
            return;
        }
    }
}

/* ------------------------------------------------------------------------------------------
 * The end
 * ------------------------------------------------------------------------------------------ */

/* What was closed in this turn.  An ask's up is dead before its client is, so both lists can go. */
static void router_bury(pn_router *r)
{
    if (!r->n_dead)
        return;
    r->n_dead = 0;
    for (router_up *u = r->ups, *next; u; u = next) {
        next = u->next;
        if (!u->dead)
            continue;
        *(u->prev ? &u->prev->next : &r->ups) = u->next;
        if (u->next)
            u->next->prev = u->prev;
        pn_upstream_fini(&u->u);
        pn_mem_free(r->mem, PN_ACCT_CONN, u, sizeof *u);
    }
    for (router_conn *c = r->conns, *next; c; c = next) {
        next = c->next;
        if (!c->dead)
            continue;
        *(c->prev ? &c->prev->next : &r->conns) = c->next;
        if (c->next)
            c->next->prev = c->prev;
        r->n_conns--;
        pn_conn_fini(&c->c);
        pn_mem_free(r->mem, PN_ACCT_CONN, c, sizeof *c);
    }
}

static void router_drain(pn_router *r)
{
    r->draining = true;
    r->drain_until = r->now + r->params.drain_ms;
    router_hear(r, false);
    for (uint32_t i = 0; i < r->n_listeners; i++)
        pn_listener_close(&r->listener[i].l);
    r->n_listeners = 0;
    router_logf(r, PN_LOG_INFO, "stopping: %" PRIu32 " connections, %" PRIu32 " requests under way", r->n_conns, r->n_asks);
    for (router_conn *c = r->conns; c; c = c->next)
        if (!c->dead) {
            pn_conn_drain(&c->c);
            router_turn(c);
        }
}

static void router_stopping(pn_router *r)
{
    unsigned stops = atomic_load(&r->stops);
    if (stops && !r->draining)
        router_drain(r);
    if (!r->draining)
        return;
    bool late = r->now >= r->drain_until;
    if (stops > 1 || (late && r->killing))
        for (router_conn *c = r->conns; c; c = c->next)
            router_kill(c);
    else if (late) {
        r->killing = true;
        r->drain_until = r->now + ROUTER_LAST_MS;
        for (router_conn *c = r->conns; c; c = c->next)
            if (!c->dead && c->ask) {
                router_ask_stop(c->ask);
                router_turn(c);
            }
    }
    router_bury(r);
    if (!r->n_conns)
        r->running = false;
}

PN_INTERNAL void pn_router_stop(pn_router *r)
{
    atomic_fetch_add(&r->stops, 1);
    pn_wake_send(&r->wake);
}

PN_INTERNAL bool pn_router_running(const pn_router *r) { return r->running; }

PN_INTERNAL bool pn_router_settled(const pn_router *r)
{
    for (uint32_t i = 0; i < r->n_backends; i++)
        if (!r->backends[i].settled)
            return false;
    return true;
}

/* ------------------------------------------------------------------------------------------
 * The loop
 * ------------------------------------------------------------------------------------------ */

static void router_sweep(pn_router *r)
{
    if (r->now < r->sweep_at)
        return;
    r->sweep_at = UINT64_MAX;
    for (router_up *u = r->ups; u; u = u->next)
        router_up_sweep(u);
    for (router_conn *c = r->conns; c; c = c->next)
        if (!c->dead) {
            if (r->now >= pn_conn_deadline(&c->c))
                router_turn(c);
            if (!c->dead)
                r->sweep_at = PN_MIN(r->sweep_at, pn_conn_deadline(&c->c));
        }
    if (!r->draining && !r->listening && r->n_listeners && r->n_conns < r->params.max_connections)
        router_hear(r, true);
    router_health_due(r);
}

static int router_timeout(const pn_router *r, int asked)
{
    uint64_t at = PN_MIN(r->sweep_at, r->draining ? r->drain_until : UINT64_MAX), now = pn_net_now_ms();
    int due = at == UINT64_MAX ? -1 : at <= now ? 0 : (int)PN_MIN(at - now, (uint64_t)3600000);
    return due < 0 || (asked >= 0 && asked < due) ? asked : due;
}

PN_INTERNAL pn_status pn_router_poll(pn_router *r, int timeout_ms, pn_err *err)
{
    pn_ready ready[ROUTER_READY];
    if (!r->running)
        return pn_fail(err, PN_E_STATE, "the router has stopped");
    size_t n = pn_poller_wait(&r->poller, ready, ROUTER_READY, router_timeout(r, timeout_ms));
    r->now = pn_net_now_ms();
    for (size_t i = 0; i < n; i++) {
        switch (*(const router_kind *)ready[i].who) {
        case ROUTER_WAKE: pn_wake_clear(&r->wake); break;
        case ROUTER_LISTENER: router_accept(r, &((const router_listener *)ready[i].who)->l); break;
        case ROUTER_CONN: router_ready(ready[i].who, ready[i].events); break;
        case ROUTER_UP: router_up_ready(ready[i].who, ready[i].events); break;
        }
    }
    router_up_parked(r);
    router_stopping(r);
    router_sweep(r);
    router_bury(r);
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * Opening and closing
 * ------------------------------------------------------------------------------------------ */

static void router_defaults(pn_router *r)
{
    pn_router_params *p = &r->params;
    const struct { uint32_t *value, usual; } defaults[] = {
        {&p->idle_ms, 60000}, {&p->drain_ms, 30000}, {&p->health_ms, 2000}, {&p->connect_ms, 5000}, {&p->answer_ms, 600000},
        {&p->max_connections, 4096},
    };
    for (size_t i = 0; i < PN_COUNT_OF(defaults); i++)
        if (!*defaults[i].value)
            *defaults[i].value = defaults[i].usual;
    r->conn_params = (pn_conn_params){.idle_ms = p->idle_ms, .http.body_max = p->max_body, .queue.max = ROUTER_QUEUE};
    r->up_params = (pn_upstream_params){.connect_ms = p->connect_ms, .answer_ms = p->answer_ms};
}

static pn_status router_backends(pn_router *r, pn_err *err)
{
    const pn_router_params *p = &r->params;
    if (!p->n_backends || p->n_backends > PN_AFFINITY_SERVERS)
        return pn_fail(err, PN_E_INVALID, "expected 1 to %d backends, found %zu", PN_AFFINITY_SERVERS, p->n_backends);
    r->backends = pn_mem_calloc(r->mem, PN_ACCT_CONN, p->n_backends, sizeof *r->backends);
    if (!r->backends)
        return pn_fail_nomem(err, "the backends", p->n_backends * sizeof *r->backends);
    r->n_backends = (uint32_t)p->n_backends;
    for (uint32_t i = 0; i < r->n_backends; i++) {
        router_backend *b = &r->backends[i];
        b->router = r;
        b->index = i;
        pn_str_init(&b->check_head, r->mem, PN_ACCT_CONN);
        pn_str_init(&b->check_body, r->mem, PN_ACCT_CONN);
        pn_status st = pn_target_find(&b->target, p->backends[i], err);
        if (st)
            return st;
        for (uint32_t j = 0; j < i; j++)
            if (r->backends[j].target.len == b->target.len && memcmp(r->backends[j].target.address, b->target.address, b->target.len) == 0)
                return pn_fail(err, PN_E_INVALID, "%s: this backend was given twice", p->backends[i]);
        r->servers[i].name = pn_hash(b->target.name, strlen(b->target.name), 0);
    }
    return PN_OK;
}

PN_INTERNAL pn_status pn_router_new(pn_mem *mem, const pn_router_params *params, pn_router **out, pn_err *err)
{
    pn_router *r = pn_mem_calloc(mem, PN_ACCT_CONN, 1, sizeof *r);
    if (!r)
        return pn_fail_nomem(err, "a router", sizeof *r);
    r->mem = mem;
    r->params = *params;
    r->poller = (pn_poller){.mem = mem, .fd = -1};
    r->wake.read_fd = r->wake.write_fd = -1;
    r->now = pn_net_now_ms();
    r->running = r->listening = true;
    router_defaults(r);
    pn_net_random(&r->seed, sizeof r->seed);
    pn_status st = router_backends(r, err);
    if (!st && params->backend_key) {
        r->backend_key = pn_mem_strndup(mem, PN_ACCT_CONN, params->backend_key, strlen(params->backend_key));
        if (!pn_http_is_value(params->backend_key, strlen(params->backend_key)))
            st = pn_fail(err, PN_E_INVALID, "the backends' API key holds a control character");
        else if (!r->backend_key)
            st = pn_fail_nomem(err, "a key", strlen(params->backend_key));
    }
    if (!st && pn_affinity_init(&r->affinity, mem, 0) != PN_OK)
        st = pn_fail_nomem(err, "the table of prefixes", r->affinity.n * sizeof *r->affinity.table);
    if (!st)
        st = pn_wake_open(&r->wake, err);
    if (!st)
        st = pn_poller_open(&r->poller, mem, err);
    if (!st && !pn_poller_add(&r->poller, r->wake.read_fd, PN_READY_READ, &r->wake_kind))
        st = pn_fail(err, PN_E_IO, "cannot wait for a pipe");
    if (st) {
        pn_router_free(r);
        return st;
    }
    *out = r;
    return PN_OK;
}

PN_INTERNAL pn_status pn_router_listen(pn_router *r, const char *address, char *bound, size_t cap, pn_err *err)
{
    if (r->n_listeners == ROUTER_LISTENERS)
        return pn_fail(err, PN_E_INVALID, "expected at most %d addresses to listen on", ROUTER_LISTENERS);
    router_listener *l = &r->listener[r->n_listeners];
    l->kind = ROUTER_LISTENER;
    pn_status st = pn_listener_open(&l->l, address, err);
    if (st)
        return st;
    if (r->listening && !pn_poller_add(&r->poller, l->l.fd, PN_READY_READ, l)) {
        pn_listener_close(&l->l);
        return pn_fail(err, PN_E_IO, "cannot wait for connections on %s", address);
    }
    r->n_listeners++;
    snprintf(bound, cap, "%s", l->l.name);
    return PN_OK;
}

PN_INTERNAL void pn_router_free(pn_router *r)
{
    if (!r)
        return;
    for (router_conn *c = r->conns; c; c = c->next)
        router_kill(c);
    for (router_up *u = r->ups; u; u = u->next)
        router_up_close(u);
    router_bury(r);
    for (uint32_t i = 0; i < r->n_listeners; i++)
        pn_listener_close(&r->listener[i].l);
    for (uint32_t i = 0; i < r->n_backends; i++) {
        router_backend *b = &r->backends[i];
        if (b->has_models)
            pn_json_fini(&b->models);
        if (b->router) {                        /* else it was not reached */
            pn_str_fini(&b->check_head);
            pn_str_fini(&b->check_body);
        }
    }
    pn_mem_free(r->mem, PN_ACCT_CONN, r->backends, r->n_backends * sizeof *r->backends);
    if (r->backend_key)
        pn_mem_free(r->mem, PN_ACCT_CONN, r->backend_key, strlen(r->backend_key) + 1);
    if (r->affinity.mem)
        pn_affinity_fini(&r->affinity);
    pn_poller_close(&r->poller);
    pn_wake_close(&r->wake);
    pn_mem_free(r->mem, PN_ACCT_CONN, r, sizeof *r);
}
