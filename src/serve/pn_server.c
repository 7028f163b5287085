/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_server.c - the loop: sockets that are ready, what the lanes have finished, what the engine has computed,
 * whose time is up.  A connection is worked on until it wants nothing (serve_turn); nothing here waits but
 * pn_poller_wait.
 */
#include "serve/pn_server_int.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "serve/pn_anthropic.h"

enum { SERVER_READS = 64, SERVER_ACCEPTS = 64, SERVER_RETRY_MS = 100 };

static const double server_slice = 0.005;       /* seconds of computing in one pn_server_poll, without threads */

/* ------------------------------------------------------------------------------------------
 * Memory, log, chance
 * ------------------------------------------------------------------------------------------ */

static void *server_alloc(pn_mem *m, pn_account account, size_t size)
{
    (void)account;
    return pn_alloc(((pn_server *)(void *)m)->e, PN_ACCT_CONN, size);
}

static void server_free(pn_mem *m, pn_account account, void *ptr, size_t size)
{
    (void)account;
    pn_free(((pn_server *)(void *)m)->e, PN_ACCT_CONN, ptr, size);
}

static void server_log(const pn_server *s, pn_log_level level, char *text)
{
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)       /* clients choose paths and names */
            *p = '?';
    s->params.log(s->params.log_user, level, text);
}

/* {"level":"info","time":...,"event":...} with more members behind. */
static void server_log_json(pn_server *s, pn_log_level level, const char *event, const char *members)
{
    static const char *const levels[] = {"error", "warn", "info", "debug"};
    pn_str line;
    pn_str_init(&line, &s->mem, PN_ACCT_CONN);
    pn_str_addf(&line, "{\"level\":\"%s\",\"time\":%" PRId64, levels[level], pn_net_unix_s());
    pn_json_key(&line, "event");
    pn_json_write_strz(&line, event);
    pn_str_addf(&line, "%s}", members);
    if (!line.failed)
        server_log(s, level, line.data);
    pn_str_fini(&line);
}

PN_INTERNAL void serve_log_object(pn_server *s, pn_log_level level, const char *event, const char *json)
{
    char text[512];
    pn_str member;
    if (!s->params.log)
        return;
    if (!s->params.log_json) {
        snprintf(text, sizeof text, "%s: %s", event, json);
        server_log(s, level, text);
        return;
    }
    pn_str_init(&member, &s->mem, PN_ACCT_CONN);
    pn_str_addf(&member, ",\"%s\":%s", event, json);
    if (!member.failed)
        server_log_json(s, level, event, member.data);
    pn_str_fini(&member);
}

PN_INTERNAL void serve_logf(pn_server *s, pn_log_level level, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (!s->params.log)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (s->params.log_json)
        server_log_json(s, level, text, "");
    else
        server_log(s, level, text);
}

PN_INTERNAL void serve_log_request(const serve_conn *c, const char *model, const pn_oai_usage *u)
{
    pn_server *s = c->server;
    const pn_http_request *q = &c->c.http.req;
    uint64_t ms = s->now - c->began;
    if (!s->params.log)
        return;
    if (!s->params.log_json) {
        serve_logf(s, PN_LOG_INFO, "%s %s %.*s %.200s %d %" PRIu64 "ms model=%s prompt=%" PRIu32 " cached=%" PRIu32 " completion=%" PRIu32, c->peer.name,
                   c->request_id, (int)q->method_text.len, q->method_text.data ? q->method_text.data : "", q->path.data ? q->path.data : "-", c->status, ms,
                   model ? model : "-", u->prompt, u->cached, u->completion);
        return;
    }
    pn_str m;
    pn_str_init(&m, &s->mem, PN_ACCT_CONN);
    pn_str_addz(&m, ",\"peer\":");
    pn_json_write_strz(&m, c->peer.name);
    pn_json_key(&m, "request_id");
    pn_json_write_strz(&m, c->request_id);
    pn_json_key(&m, "path");
    pn_json_write_str(&m, q->path.data ? q->path.data : "", q->path.len);
    pn_json_key(&m, "model");
    pn_json_write_strz(&m, model);
    pn_str_addf(&m, ",\"status\":%d,\"ms\":%" PRIu64 ",\"prompt_tokens\":%" PRIu32 ",\"cached_tokens\":%" PRIu32 ",\"completion_tokens\":%" PRIu32, c->status,
                ms, u->prompt, u->cached, u->completion);
    if (!m.failed)
        server_log_json(s, PN_LOG_INFO, "request", m.data);
    pn_str_fini(&m);
}

PN_INTERNAL void serve_wake(void *server) { pn_wake_send(&((pn_server *)server)->wake); }

PN_INTERNAL void serve_random_id(char *out, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char bytes[64];
    PN_ASSERT(n <= sizeof bytes);
    pn_net_random(bytes, n);
    for (size_t i = 0; i < n; i++)
        out[i] = digits[bytes[i] % (sizeof digits - 1)];
    out[n] = 0;
}

/* ------------------------------------------------------------------------------------------
 * Replies
 * ------------------------------------------------------------------------------------------ */

/* Fields that every reply has, and the ones of errors. */
static void server_fields(serve_conn *c, pn_str *fields, const pn_oai_error *e)
{
    pn_http_add(fields, "x-request-id", c->request_id);
    pn_cors_add(fields, &c->server->cors, &c->c.http.req);
    if (c->api == SERVE_ANTHROPIC && c->ask)
        serve_ask_ignored(c->ask, fields);
    if (c->ask)
        pn_http_add(fields, "x-pantheon-pressure", pn_level_name(pn_mem_level(c->server->e)));
    if (!e)
        return;
    if (e->status == 401)
        pn_http_add(fields, "WWW-Authenticate", "Bearer");
    if (e->allow)
        pn_http_add(fields, "Allow", strcmp(e->allow, "GET") == 0 ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
    if (e->retry_ms) {
        char text[24];
        snprintf(text, sizeof text, "%" PRIu32, (e->retry_ms + 999) / 1000);
        pn_http_add(fields, "Retry-After", text);
        snprintf(text, sizeof text, "%" PRIu32, e->retry_ms);
        pn_http_add(fields, "retry-after-ms", text);
    }
    if (e->no_retry)
        pn_http_add(fields, "x-should-retry", "false");
}

/* `body` is handed over; empty afterwards.  more: field lines, or NULL. */
static void server_reply(serve_conn *c, int status, const char *type, pn_str *body, const pn_oai_error *e, const pn_str *more)
{
    pn_str fields;
    char date[30];
    if (c->dead)
        return;
    pn_str_init(&fields, &c->server->mem, PN_ACCT_CONN);
    server_fields(c, &fields, e);
    if (more)
        pn_str_add(&fields, pn_str_cstr(more), more->len);
    if (c->c.http.req.method == PN_METHOD_OPTIONS)
        pn_cors_add_preflight(&fields, &c->server->cors, &c->c.http.req);
    pn_http_date(pn_net_unix_s(), date);
    const pn_http_reply r = {.status = status, .content_type = type, .date = date, .fields = &fields};
    pn_status st = body->failed ? PN_E_NOMEM : pn_conn_reply_give(&c->c, &r, body);
    pn_str_fini(&fields);
    pn_str_fini(body);
    c->status = status;
    pn_metrics_responded(c->server->metrics, status);
    if (st)
        pn_conn_abort(&c->c);           /* not even memory for an error */
}

PN_INTERNAL void serve_reply(serve_conn *c, int status, const char *type, const char *body, size_t n)
{
    pn_str copy;
    pn_str_init(&copy, &c->server->mem, PN_ACCT_CONN);
    pn_str_add(&copy, body, n);
    server_reply(c, status, type, &copy, NULL, NULL);
}

PN_INTERNAL void serve_reply_give(serve_conn *c, int status, const char *type, pn_str *body, const pn_str *fields)
{
    if (body->failed || (fields && fields->failed))
        serve_errorf(c, 503, "server_error", NULL, "out of memory while the answer was written");
    else
        server_reply(c, status, type, body, NULL, fields);
    pn_str_fini(body);
}

PN_INTERNAL void serve_error(serve_conn *c, const pn_oai_error *e)
{
    pn_str body;
    pn_str_init(&body, &c->server->mem, PN_ACCT_CONN);
    bool anthropic = c->api == SERVE_ANTHROPIC;
    if (anthropic)
        pn_anthropic_error_json(e, &body);
    else
        pn_oai_error_json(e, &body);
    server_reply(c, anthropic ? pn_anthropic_error_status(e) : e->status, "application/json; charset=utf-8", &body, e, NULL);
}

PN_INTERNAL void serve_errorf(serve_conn *c, int status, const char *type, const char *code, const char *fmt, ...)
{
    pn_oai_error e;
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pn_oai_error_set(&e, status, type, code, "", "%s", text);
    serve_error(c, &e);
}

PN_INTERNAL bool serve_stream(serve_conn *c)
{
    pn_str fields;
    char date[30];
    pn_str_init(&fields, &c->server->mem, PN_ACCT_CONN);
    server_fields(c, &fields, NULL);
    pn_http_date(pn_net_unix_s(), date);
    const pn_http_reply r = {.status = 200, .date = date, .fields = &fields};
    pn_status st = pn_conn_stream(&c->c, &r);
    pn_str_fini(&fields);
    c->status = 200;
    pn_metrics_responded(c->server->metrics, 200);
    if (st)
        pn_conn_abort(&c->c);
    return st == PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * Connections
 * ------------------------------------------------------------------------------------------ */

static void server_unlink(serve_conn *c)
{
    pn_server *s = c->server;
    *(c->prev ? &c->prev->next : &s->conns) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    s->n_conns--;
}

/* Nobody answers it any more. */
static void server_forget(serve_conn *c)
{
    if (c->ask)
        serve_ask_abort(c->ask);
    c->ask = NULL;
    serve_waiters_remove(c->server, c);
}

/* The socket goes at once, the struct when nobody can be holding it. */
static void server_kill(serve_conn *c)
{
    if (c->dead)
        return;
    c->dead = true;
    server_forget(c);
    pn_poller_remove(&c->server->poller, c->fd);
    pn_net_close(c->fd);
    c->fd = -1;
}

static void server_bury(pn_server *s)
{
    for (serve_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        if (!c->dead)
            continue;
        server_unlink(c);
        pn_conn_fini(&c->c);
        pn_mem_free(&s->mem, PN_ACCT_CONN, c, sizeof *c);
    }
}

static void server_request_id(serve_conn *c)
{
    pn_bytes id = pn_http_get(&c->c.http.req, "x-request-id");
    bool sane = id.len > 0 && id.len < sizeof c->request_id;
    for (size_t i = 0; sane && i < id.len; i++)
        sane = id.data[i] > ' ' && id.data[i] < 127;
    if (sane)
        snprintf(c->request_id, sizeof c->request_id, "%.*s", (int)id.len, id.data);
    else
        serve_random_id(c->request_id, 24);
}

static void server_event(serve_conn *c, pn_conn_event e)
{
    switch (e) {
    case PN_CONN_HEAD:
        c->began = c->server->now;
        c->status = 0;
        server_request_id(c);
        serve_head(c);
        break;
    case PN_CONN_REQUEST:
        c->server->n_requests++;
        serve_request_complete(c);
        break;
    case PN_CONN_FAULT:
        c->api = SERVE_OPENAI;
        if (!c->request_id[0])
            serve_random_id(c->request_id, 24);
        serve_errorf(c, c->c.http.status, "invalid_request_error", c->c.http.status == 413 ? "request_too_large" : NULL, "%s", c->c.http.message);
        break;
    case PN_CONN_ABORT:
        c->status = 499;
        server_forget(c);
        break;
    case PN_CONN_SHUTDOWN: pn_net_shutdown(c->fd); break;
    case PN_CONN_CLOSE: server_kill(c); break;
    case PN_CONN_NOTHING: break;
    }
}

/* One write; false: nothing more goes now. */
static bool server_write(serve_conn *c)
{
    pn_io io = pn_conn_net_write(&c->c, c->fd, c->server->now);
    if (io == PN_IO_DONE && c->ask)
        serve_ask_flow(c->ask);
    return io != PN_IO_AGAIN;
}

PN_INTERNAL void serve_turn(serve_conn *c)
{
    pn_server *s = c->server;
    pn_conn_event e;
    do {
        while (!c->dead && (e = pn_conn_next(&c->c, s->now)) != PN_CONN_NOTHING)
            server_event(c, e);
    } while (!c->dead && server_write(c));
    if (c->dead)
        return;
    unsigned events = pn_conn_net_wants(&c->c);
    if (events != c->events)
        pn_poller_change(&s->poller, c->fd, events, c);
    c->events = events;
    s->sweep_at = PN_MIN(s->sweep_at, pn_conn_deadline(&c->c));
}

/* A socket that is waited for until it can be written to is ready at once. */
PN_INTERNAL void serve_turn_later(serve_conn *c)
{
    if (c->dead)
        return;
    c->events |= PN_READY_WRITE;
    pn_poller_change(&c->server->poller, c->fd, c->events, c);
}

/* Take what the socket has; several times, but others have a turn, too. */
static void server_ready(serve_conn *c, unsigned events)
{
    for (int i = 0; i < SERVER_READS && (events & PN_READY_READ) && !c->dead && pn_conn_net_read(&c->c, c->fd, c->server->now); i++)
        serve_turn(c);
    if (c->dead)
        return;
    pn_conn_net_told(&c->c, events);
    serve_turn(c);
}

/* ------------------------------------------------------------------------------------------
 * New connections
 * ------------------------------------------------------------------------------------------ */

static void server_listen(pn_server *s, bool on)
{
    if (on == s->listening)
        return;
    s->listening = on;
    for (uint32_t i = 0; i < s->n_listeners; i++) {
        if (!on)
            pn_poller_remove(&s->poller, s->listener[i].fd);
        else if (!pn_poller_add(&s->poller, s->listener[i].fd, PN_READY_READ, &s->listener[i]))
            serve_logf(s, PN_LOG_ERROR, "cannot wait for connections on %s", s->listener[i].name);
    }
}

static bool server_adopt(pn_server *s, int fd, const pn_peer *peer)
{
    serve_conn *c = pn_mem_calloc(&s->mem, PN_ACCT_CONN, 1, sizeof *c);
    if (!c || !pn_poller_add(&s->poller, fd, PN_READY_READ | PN_READY_END, c)) {
        pn_mem_free(&s->mem, PN_ACCT_CONN, c, sizeof *c);
        pn_net_close(fd);
        return false;
    }
    c->server = s;
    c->fd = fd;
    c->peer = *peer;
    c->events = PN_READY_READ | PN_READY_END;
    pn_conn_init(&c->c, &s->mem, &s->conn_params, s->now);
    c->next = s->conns;
    if (s->conns)
        s->conns->prev = c;
    s->conns = c;
    s->n_conns++;
    s->sweep_at = PN_MIN(s->sweep_at, pn_conn_deadline(&c->c));
    return true;
}

/* Take who waits; when there is no room, or the system has none, wait until some connection has gone. */
static void server_accept(pn_server *s, const pn_listener *l)
{
    for (int i = 0; i < SERVER_ACCEPTS; i++) {
        pn_peer peer;
        int fd = s->n_conns < s->params.max_connections ? pn_listener_accept(l, &peer) : -2;
        if (fd == -1)
            return;
        if (fd == -2 || !server_adopt(s, fd, &peer)) {
            server_listen(s, false);
            s->sweep_at = PN_MIN(s->sweep_at, s->now + SERVER_RETRY_MS);
            return;
        }
    }
}

/* ------------------------------------------------------------------------------------------
 * The end
 * ------------------------------------------------------------------------------------------ */

static void server_drain(pn_server *s)
{
    s->draining = true;
    s->drain_until = s->now + s->params.drain_ms;
    server_listen(s, false);
    for (uint32_t i = 0; i < s->n_listeners; i++)
        pn_listener_close(&s->listener[i]);
    s->n_listeners = 0;
    serve_logf(s, PN_LOG_INFO, "stopping: %" PRIu32 " connections, %" PRIu32 " requests under way", s->n_conns, s->n_asks);
    for (serve_conn *c = s->conns; c; c = c->next)
        if (!c->dead) {
            pn_conn_drain(&c->c);
            serve_turn(c);
        }
}

static void server_stopping(pn_server *s)
{
    unsigned stops = atomic_load(&s->stops);
    if (stops && !s->draining)
        server_drain(s);
    if (!s->draining)
        return;
    if (stops > 1 || s->now >= s->drain_until) {
        serve_asks_stop(s);
        s->drain_until = UINT64_MAX;            /* errors go out; who does not take them is cut off below */
        s->sweep_at = PN_MIN(s->sweep_at, s->now + SERVER_RETRY_MS);
        for (serve_conn *c = s->conns; c; c = c->next)
            if (!c->dead && !c->ask)
                server_kill(c);
    }
}

PN_API void pn_server_stop(pn_server *s)
{
    atomic_fetch_add(&s->stops, 1);
    pn_wake_send(&s->wake);
}

PN_API int pn_server_running(const pn_server *s) { return s->running; }

/* ------------------------------------------------------------------------------------------
 * The loop
 * ------------------------------------------------------------------------------------------ */

static void server_sweep(pn_server *s)
{
    if (s->now < s->sweep_at)
        return;
    s->sweep_at = UINT64_MAX;
    for (serve_conn *c = s->conns; c; c = c->next)
        if (!c->dead) {
            if (s->now >= pn_conn_deadline(&c->c))
                serve_turn(c);
            if (!c->dead)
                s->sweep_at = PN_MIN(s->sweep_at, pn_conn_deadline(&c->c));
        }
    if (!s->draining && !s->listening && s->n_listeners && s->n_conns < s->params.max_connections)
        server_listen(s, true);
}

PN_API int pn_server_timeout(const pn_server *s)
{
    uint64_t at = PN_MIN(s->sweep_at, s->draining ? s->drain_until : UINT64_MAX), now = pn_net_now_ms();
    if (s->params.inline_work && s->n_asks)
        return 0;
    return at == UINT64_MAX ? -1 : at <= now ? 0 : (int)PN_MIN(at - now, (uint64_t)3600000);
}

PN_API int pn_server_fd(const pn_server *s) { return s->poller.fd; }

PN_API pn_status pn_server_poll(pn_server *s, int timeout_ms, pn_err *err)
{
    pn_ready ready[SERVE_READY];
    int due = pn_server_timeout(s);
    if (!s->running)
        return pn_fail(err, PN_E_STATE, "the server has stopped");
    size_t n = pn_poller_wait(&s->poller, ready, SERVE_READY, due < 0 || (timeout_ms >= 0 && timeout_ms < due) ? timeout_ms : due);
    s->now = pn_net_now_ms();
    for (size_t i = 0; i < n; i++) {
        if (ready[i].who == &s->wake)
            pn_wake_clear(&s->wake);
        else if ((pn_listener *)ready[i].who >= s->listener && (pn_listener *)ready[i].who < s->listener + SERVE_LISTENERS)
            server_accept(s, ready[i].who);
        else
            server_ready(ready[i].who, ready[i].events);
    }
    pn_lane_done(&s->loader);
    pn_lane_done(&s->slow);
    pn_lane_done(&s->lane);
    pn_status st = s->params.inline_work ? pn_engine_step(s->e, server_slice, NULL, err) : PN_OK;
    serve_ask_look(s);
    serve_relieve(s);
    server_stopping(s);
    server_sweep(s);
    server_bury(s);
    if (s->draining && !s->n_conns && !s->n_asks)       /* at once: with nobody left nothing would wake us */
        s->running = false;
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Opening and closing
 * ------------------------------------------------------------------------------------------ */

static pn_status server_keys(pn_server *s, pn_err *err)
{
    const struct { pn_keys *to; const char *text; } both[] = {{&s->keys, s->params.api_keys}, {&s->admin_keys, s->params.admin_keys}};
    for (size_t i = 0; i < PN_COUNT_OF(both); i++) {
        pn_keys_init(both[i].to, &s->mem);
        pn_status st = both[i].text ? pn_keys_load(both[i].to, both[i].text, strlen(both[i].text), err) : PN_OK;
        if (!st && both[i].text && !both[i].to->n)
            st = pn_fail(err, PN_E_INVALID, "a key file without a key: expected one a line");
        if (st)
            return st;
    }
    return PN_OK;
}

/* The caller's texts become ours. */
static pn_status server_texts(pn_server *s, pn_err *err)
{
    const pn_server_params *p = &s->params;
    pn_str_init(&s->cors_text, &s->mem, PN_ACCT_CONN);
    for (size_t i = 0; i < p->n_cors; i++)
        pn_str_add(&s->cors_text, p->cors[i], strlen(p->cors[i]) + 1);
    s->cors_list = pn_mem_calloc(&s->mem, PN_ACCT_CONN, p->n_cors, sizeof *s->cors_list);
    s->build = pn_mem_strndup(&s->mem, PN_ACCT_CONN, p->build ? p->build : "none", strlen(p->build ? p->build : "none"));
    if (s->cors_text.failed || !s->cors_list || !s->build)
        return pn_fail_nomem(err, "a server", s->cors_text.len);
    const char *at = pn_str_cstr(&s->cors_text);
    for (size_t i = 0; i < p->n_cors; i++, at += strlen(at) + 1)
        s->cors_list[i] = at;
    s->cors = (pn_cors){.origins = s->cors_list, .n_origins = p->n_cors};
    snprintf(s->fingerprint, sizeof s->fingerprint, "pn-%s-%.16s", pn_version(), pn_cpu_isa());
    return server_keys(s, err);
}

static void server_defaults(pn_server *s)
{
    pn_server_params *p = &s->params;
    const struct { uint32_t *value, usual; } defaults[] = {
        {&p->queue, 64}, {&p->default_max_new, 2048}, {&p->idle_ms, 60000}, {&p->drain_ms, 30000}, {&p->max_body, 32u << 20},
        {&p->max_connections, 4096}, {&p->ctx_floor, 4096},
    };
    for (size_t i = 0; i < PN_COUNT_OF(defaults); i++)
        if (!*defaults[i].value)
            *defaults[i].value = defaults[i].usual;
    s->conn_params = (pn_conn_params){.idle_ms = p->idle_ms, .http.body_max = p->max_body};
}

PN_API pn_status pn_server_new(pn_engine *e, const pn_server_params *params, pn_server **out, pn_err *err)
{
    if (!e || !out)
        return pn_fail(err, PN_E_INVALID, "pn_server_new: an engine and out must be given");
    pn_server *s = pn_alloc(e, PN_ACCT_CONN, sizeof *s);
    if (!s)
        return pn_fail_nomem(err, "a server", sizeof *s);
    memset(s, 0, sizeof *s);
    s->mem = (pn_mem){.alloc = server_alloc, .free = server_free};
    s->e = e;
    if (params)
        memcpy(&s->params, params, params->size ? PN_MIN(params->size, sizeof s->params) : sizeof s->params);
    server_defaults(s);
    s->poller.fd = s->wake.read_fd = s->wake.write_fd = -1;
    s->now = s->started = pn_net_now_ms();
    s->started_unix = pn_net_unix_s();
    s->sweep_at = UINT64_MAX;
    s->running = s->listening = true;
    pn_lane_open(&s->lane, !s->params.inline_work, serve_wake, s);
    pn_lane_open(&s->slow, !s->params.inline_work, serve_wake, s);
    pn_lane_open(&s->loader, !s->params.inline_work, serve_wake, s);
    pn_status st = server_texts(s, err);
    if (!st)
        st = serve_seen_init(s, err);
    const pn_metrics_build about = {pn_version(), s->build, pn_backend_name(e), pn_cpu_isa()};
    if (!st)
        st = pn_metrics_new(&s->metrics, &s->mem, &about, err);
    if (!st)
        st = pn_wake_open(&s->wake, err);
    if (!st)
        st = pn_poller_open(&s->poller, &s->mem, err);
    if (!st && !pn_poller_add(&s->poller, s->wake.read_fd, PN_READY_READ, &s->wake))
        st = pn_fail(err, PN_E_IO, "cannot wait for a pipe");
    if (!st)
        st = serve_relief_open(s, err);
    if (!st && s->params.log)
        pn_mem_on_event(e, serve_memory_event, s);
    if (!st && !s->params.inline_work) {
        s->drives = pn_engine_start(e, NULL) == PN_OK;
        s->params.inline_work = !s->drives && !s->lane.threaded;        /* a build without threads */
    }
    if (st) {
        pn_server_free(s);
        return st;
    }
    *out = s;
    return PN_OK;
}

PN_API pn_status pn_server_listen(pn_server *s, const char *address, char *bound, size_t cap, pn_err *err)
{
    if (s->n_listeners == SERVE_LISTENERS)
        return pn_fail(err, PN_E_INVALID, "expected at most %d addresses to listen on", SERVE_LISTENERS);
    pn_listener *l = &s->listener[s->n_listeners];
    pn_status st = pn_listener_open(l, address, err);
    if (st)
        return st;
    if (s->listening && !pn_poller_add(&s->poller, l->fd, PN_READY_READ, l)) {
        pn_listener_close(l);
        return pn_fail(err, PN_E_IO, "cannot wait for connections on %s", address);
    }
    s->n_listeners++;
    if (bound)
        snprintf(bound, cap, "%s", l->name);
    return PN_OK;
}

/* Asks need the lanes and the engine to let go of what they have: go round until they have. */
static void server_abandon(pn_server *s)
{
    for (serve_conn *c = s->conns; c; c = c->next)
        server_kill(c);
    while (s->n_asks) {
        pn_ready ready[SERVE_READY];
        if (s->params.inline_work)
            pn_engine_step(s->e, 0, NULL, NULL);
        else
            pn_poller_wait(&s->poller, ready, SERVE_READY, SERVER_RETRY_MS);
        pn_wake_clear(&s->wake);
        pn_lane_done(&s->slow);
        pn_lane_done(&s->lane);
        serve_ask_look(s);
    }
    server_bury(s);
}

PN_API void pn_server_free(pn_server *s)
{
    if (!s)
        return;
    server_abandon(s);
    pn_lane_close(&s->lane);
    pn_lane_close(&s->slow);
    serve_models_free(s);
    pn_lane_close(&s->loader);
    if (s->drives)
        pn_engine_stop(s->e);
    if (s->params.log)
        pn_mem_on_event(s->e, NULL, NULL);
    serve_relief_close(s);
    for (uint32_t i = 0; i < s->n_listeners; i++)
        pn_listener_close(&s->listener[i]);
    for (serve_route_own *r = s->own, *next; r; r = next) {
        next = r->next;
        pn_mem_free(&s->mem, PN_ACCT_CONN, r->path, strlen(r->path) + 1);
        pn_mem_free(&s->mem, PN_ACCT_CONN, r, sizeof *r);
    }
    pn_poller_close(&s->poller);
    pn_wake_close(&s->wake);
    pn_metrics_free(s->metrics);
    if (s->seen.mem)
        pn_affinity_fini(&s->seen);
    pn_keys_fini(&s->keys);
    pn_keys_fini(&s->admin_keys);
    pn_str_fini(&s->cors_text);
    pn_mem_free(&s->mem, PN_ACCT_CONN, s->cors_list, s->params.n_cors * sizeof *s->cors_list);
    if (s->build)
        pn_mem_free(&s->mem, PN_ACCT_CONN, s->build, strlen(s->build) + 1);
    pn_free(s->e, PN_ACCT_CONN, s, sizeof *s);
}
