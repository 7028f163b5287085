/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_ask.c - a request for text on its way through the server.
 *
 *     PARSING --model found--> QUEUED --a place is free--> BEGINNING --> RUNNING --all told--> CLOSING --> (gone)
 *     (lane)                      ^                        (lane)         |                    (lane)
 *                                 +------ no memory beside the others ----+
 *
 * What comes out of the engine's thread goes into the box, under the ask's lock; here it is fetched and given to
 * the connection as fast as that takes it.  A box that nobody empties pauses the ask's requests: who does not
 * read is not computed for, and holds nobody else up.
 *
 * Once its connection is gone an ask only has to end: its requests are cancelled, and it closes when they are
 * done.  Nothing here waits for that.
 */
#include "serve/pn_server_int.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/pn_hash.h"

enum { ASK_BOX_HIGH = 256 << 10, ASK_OVERTAKES = 4 };     /* memory sheet 6.2 */

static serve_ask *ask_of(pn_task *t) { return (serve_ask *)(void *)((char *)t - offsetof(serve_ask, task)); }

static void ask_go(serve_ask *a, serve_phase phase)
{
    a->phase = phase;
    pn_lane_add(a->computes && phase == SERVE_BEGINNING ? &a->server->slow : &a->server->lane, &a->task);
}

/* ------------------------------------------------------------------------------------------
 * Counting
 * ------------------------------------------------------------------------------------------ */

static double ask_seconds(uint64_t from, uint64_t to) { return from && to > from ? (double)(to - from) / 1000 : 0; }

static bool ask_generates(const serve_ask *a) { return a->kind <= SERVE_MESSAGES; }

/* Once: how it ended. */
static void ask_ended(serve_ask *a, pn_metric_ended how)
{
    static const pn_metric_endpoint endpoints[] = {PN_ENDPOINT_CHAT, PN_ENDPOINT_COMPLETIONS, PN_ENDPOINT_RESPONSES, PN_ENDPOINT_MESSAGES,
                                                   PN_ENDPOINT_EMBEDDINGS};
    if (a->counted || !a->model)
        return;
    a->counted = true;
    pn_metrics_ended(a->server->metrics, a->model->metrics,
                     (size_t)a->kind < PN_COUNT_OF(endpoints) ? endpoints[a->kind] : PN_ENDPOINT_OTHER, how);
}

/* Times between tokens since the last look; with the lock held. */
static void ask_gaps(serve_ask *a)
{
    for (uint32_t i = 0; i < a->n_gaps; i++)
        pn_metrics_observe(a->server->metrics, PN_METRIC_ITL, a->model->metrics, (double)a->gaps[i] / 1000);
    a->n_gaps = 0;
}

static void ask_metrics(serve_ask *a)
{
    pn_metrics *m = a->server->metrics;
    const pn_oai_usage *u = &a->usage;
    uint32_t at = a->model->metrics;
    if (!ask_generates(a))
        return;
    const struct { pn_metric id; double v; } sums[] = {
        {PN_METRIC_PROMPT_TOKENS, u->prompt}, {PN_METRIC_CACHED_TOKENS, u->cached}, {PN_METRIC_GENERATION_TOKENS, u->completion},
        {PN_METRIC_PREFIX_QUERIES, u->prompt}, {PN_METRIC_PREFIX_HITS, u->cached},
    }, seen[] = {
        {PN_METRIC_TTFT, ask_seconds(a->asked_ms, a->first_ms)}, {PN_METRIC_E2E, ask_seconds(a->asked_ms, a->server->now)},
        {PN_METRIC_QUEUE, ask_seconds(a->queued_ms, a->begun_ms)}, {PN_METRIC_PREFILL, a->prefill}, {PN_METRIC_DECODE, a->decode},
        {PN_METRIC_REQUEST_PROMPT, u->prompt}, {PN_METRIC_REQUEST_GENERATION, u->completion},
    };
    for (size_t i = 0; i < PN_COUNT_OF(sums); i++)
        pn_metrics_add(m, sums[i].id, at, 0, sums[i].v);
    for (size_t i = 0; i < PN_COUNT_OF(seen); i++)
        pn_metrics_observe(m, seen[i].id, at, seen[i].v);
    if (a->worst.parked_seconds > 0)
        pn_metrics_observe(m, PN_METRIC_PARKED, at, a->worst.parked_seconds);
}

/* ------------------------------------------------------------------------------------------
 * Leaving
 * ------------------------------------------------------------------------------------------ */

/* The connection has its reply. */
static void ask_part(serve_ask *a)
{
    if (a->conn)
        a->conn->ask = NULL;
    a->conn = NULL;
}

static void ask_log(const serve_ask *a, const serve_conn *c)
{
    static const pn_oai_usage none;         /* before it runs the lane may be writing it */
    serve_log_request(c, a->model ? a->model->name : NULL, a->phase == SERVE_RUNNING ? &a->usage : &none);
}

/* Answer with a->error and close. */
static void ask_refuse(serve_ask *a)
{
    serve_conn *c = a->conn;
    ask_ended(a, a->error.status == 429 ? PN_ENDED_REJECTED : PN_ENDED_ERROR);
    if (c) {
        serve_error(c, &a->error);
        ask_log(a, c);
        ask_part(a);
        serve_turn(c);
    }
    ask_go(a, SERVE_CLOSING);
}

static void ask_unqueue(serve_ask *a)
{
    serve_model *m = a->model;
    serve_ask **p = &m->queue;
    while (*p != a)
        p = &(*p)->behind;
    *p = a->behind;
    if (!*p)
        m->queue_end = p;
    m->n_queued--;
}

static void ask_cancel(serve_ask *a)
{
    atomic_store(&a->cancelled, true);
    if (a->phase != SERVE_RUNNING)
        return;
    pn_mutex_lock(&a->lock);
    for (uint32_t i = 0; i < a->n_choices; i++)
        if (a->choice[i].begun)
            pn_request_cancel(a->choice[i].request);
    pn_mutex_unlock(&a->lock);
}

PN_INTERNAL void serve_ask_abort(serve_ask *a)
{
    if (a->conn)
        ask_log(a, a->conn);
    ask_ended(a, PN_ENDED_ABORT);
    ask_part(a);
    if (a->phase == SERVE_QUEUED) {
        ask_unqueue(a);
        ask_go(a, SERVE_CLOSING);
        serve_model_settle(a->model);
    } else {
        ask_cancel(a);
    }
}

static void ask_stopping(pn_oai_error *e)
{
    pn_oai_error_loading(e, "the server is stopping", 5000);
}

PN_INTERNAL void serve_asks_stop(pn_server *s)
{
    for (serve_ask *a = s->asks, *next; a; a = next) {
        next = a->next;
        if (a->cancelled || a->phase == SERVE_CLOSING)
            continue;
        if (a->phase == SERVE_QUEUED) {
            ask_unqueue(a);
            ask_stopping(&a->error);
            ask_refuse(a);
        } else {
            ask_cancel(a);              /* it learns why when it is done */
        }
    }
}

/* Its place is free. */
static void ask_leave(serve_ask *a)
{
    a->at->n_running--;
    a->at->used_ms = a->server->now;
    a->at = NULL;
    a->model->n_running--;
    a->server->n_running--;
}

/* On the lane everything was taken apart. */
static void ask_free(serve_ask *a)
{
    pn_server *s = a->server;
    serve_model *m = a->at ? a->model : NULL;
    *(a->prev ? &a->prev->next : &s->asks) = a->next;
    if (a->next)
        a->next->prev = a->prev;
    s->n_asks--;
    if (m) {
        double took = ask_seconds(a->begun_ms, s->now);
        if (ask_generates(a))
            m->seconds = m->seconds > 0 ? 0.8 * m->seconds + 0.2 * took : took;
        ask_leave(a);
        s->n_closed++;
    }
    pn_mutex_fini(&a->lock);
    pn_mem_free(&s->mem, PN_ACCT_CONN, a, sizeof *a);
    if (!m)
        return;
    for (serve_model *all = s->models; all; all = all->next)
        serve_ask_pump(all);            /* the memory it held may be what another one waits for */
    serve_model_settle(m);
}

/* ------------------------------------------------------------------------------------------
 * Waiting for a place
 * ------------------------------------------------------------------------------------------ */

/* Until about one of those ahead is through. */
static uint32_t ask_retry_ms(const serve_model *m)
{
    double each = m->seconds > 0 ? m->seconds : 1, wait = each * (double)(m->n_queued + 1) / (double)PN_MAX(serve_model_slots(m), 1u);
    return (uint32_t)(1000 * (wait < 1 ? 1 : wait > 55 ? 55 : wait));      /* clients do not heed a minute or more */
}

static void ask_queue(serve_ask *a)
{
    serve_model *m = a->model;
    if (m->n_queued >= a->server->params.queue) {
        pn_oai_error_queue(&a->error, m->n_queued, ask_retry_ms(m));
        ask_refuse(a);
        return;
    }
    a->phase = SERVE_QUEUED;
    a->queued_ms = a->server->now;
    a->behind = NULL;
    *m->queue_end = a;
    m->queue_end = &a->behind;
    m->n_queued++;
    serve_ask_pump(m);
}

static uint32_t ask_running_of(const serve_model *m, uint64_t client)
{
    uint32_t n = 0;
    for (const serve_ask *a = m->server->asks; a; a = a->next)
        n += a->model == m && a->begun_ms && a->client == client;
    return n;
}

/* Nothing has changed since there was no memory for it. */
static bool ask_waits(const serve_ask *a) { return a->retry && a->retry_at == a->server->n_closed && a->server->n_running; }

/* The oldest of the client that has the fewest running, of those that a replica has a place for: *at.  Who waits for
 * memory is overtaken by a few, then all behind it wait as well. */
static serve_ask *ask_choose(const serve_model *m, serve_replica **at)
{
    serve_ask *best = NULL;
    uint32_t fewest = UINT32_MAX;
    for (serve_ask *a = m->queue; a; a = a->behind) {
        if (ask_waits(a) && a->overtaken >= ASK_OVERTAKES)
            break;
        if (ask_waits(a))
            continue;
        uint32_t n = ask_running_of(m, a->client);
        serve_replica *r = n < fewest ? serve_replica_for(a) : NULL;
        if (r) {
            best = a;
            *at = r;
            fewest = n;
        }
    }
    return best;
}

static void ask_start(serve_ask *a, serve_replica *at)
{
    a->at = at;
    at->n_running++;
    at->n_served++;
    at->used_ms = a->server->now;
    serve_replica_learn(a);
    a->model->n_running++;
    a->server->n_running++;
    a->begun_ms = PN_MAX(a->server->now, (uint64_t)1);
    ask_go(a, SERVE_BEGINNING);
}

PN_INTERNAL void serve_ask_pump(serve_model *m)
{
    while (m->n_queued && serve_model_has_place(m)) {
        serve_replica *at = NULL;
        serve_ask *a = ask_choose(m, &at);
        if (!a)
            return;
        for (serve_ask *b = m->queue; b != a; b = b->behind)
            b->overtaken += ask_waits(b);
        ask_unqueue(a);
        ask_start(a, at);
    }
}

/* ------------------------------------------------------------------------------------------
 * Sending
 * ------------------------------------------------------------------------------------------ */

/* Records: the lengths of name and text, the two with a NUL behind each.  */
typedef struct ask_record { uint32_t name, text; } ask_record;

/* With the lock held, as for the next. */
static void ask_pause(serve_ask *a, int paused)
{
    for (uint32_t i = 0; i < a->n_choices; i++)
        if (a->choice[i].begun)
            pn_request_pause(a->choice[i].request, paused);
}

PN_INTERNAL int serve_ask_emit(void *user, const char *event, const char *json, size_t len)
{
    serve_ask *a = user;
    const ask_record r = {event ? (uint32_t)strlen(event) : 0, (uint32_t)len};
    if (len > UINT32_MAX)
        return 1;
    pn_str_add(&a->box, &r, sizeof r);
    pn_str_add(&a->box, event ? event : "", r.name + 1);
    pn_str_add(&a->box, json, len);
    pn_str_addc(&a->box, 0);
    atomic_store(&a->news, true);
    if (a->stream && a->box.len > ASK_BOX_HIGH && !a->paused) {
        a->paused = true;
        ask_pause(a, 1);
    }
    return a->box.failed;
}

static bool ask_next_record(const serve_ask *a, ask_record *r, const char **name, const char **text)
{
    if (a->out_at >= a->out.len)
        return false;
    memcpy(r, a->out.data + a->out_at, sizeof *r);
    *name = a->out.data + a->out_at + sizeof *r;
    *text = *name + r->name + 1;
    return true;
}

/* What is in the box, once all that was fetched before is sent. */
static void ask_fetch(serve_ask *a)
{
    if (a->out_at < a->out.len)
        return;
    pn_str_clear(&a->out);
    a->out_at = 0;
    pn_mutex_lock(&a->lock);
    pn_str t = a->out;
    a->out = a->box;
    a->box = t;
    if (a->paused)
        ask_pause(a, 0);
    a->paused = false;
    pn_mutex_unlock(&a->lock);
}

/* A stream that cannot go on must not look complete. */
static void ask_break(serve_ask *a)
{
    serve_conn *c = a->conn;
    pn_conn_abort(&c->c);
    ask_part(a);
    ask_cancel(a);
}

/* As many events as the connection takes.  True: all that is there. */
static bool ask_send_events(serve_ask *a)
{
    serve_conn *c = a->conn;
    ask_record r;
    const char *name, *text;
    for (ask_fetch(a); ask_next_record(a, &r, &name, &text); ask_fetch(a)) {
        pn_status st = pn_sse_paused(&c->c.sse) ? PN_E_BUDGET : pn_sse_event(&c->c.sse, r.name ? name : NULL, text, r.text);
        if (st == PN_E_BUDGET)
            return false;
        if (st) {
            ask_break(a);
            return false;
        }
        a->out_at += sizeof r + r.name + 1 + r.text + 1;
    }
    return true;
}

static void ask_send_body(serve_ask *a)
{
    ask_record r;
    const char *name, *text;
    ask_fetch(a);
    if (a->error.status)
        serve_error(a->conn, &a->error);
    else if (ask_next_record(a, &r, &name, &text) && !a->out.failed)
        serve_reply(a->conn, 200, "application/json; charset=utf-8", text, r.text);
    else
        serve_errorf(a->conn, 503, "server_error", NULL, "out of memory while the answer was written");
}

/* A stream stays open while its request stands aside: a comment says why nothing comes. */
static void ask_tell_parked(serve_ask *a)
{
    bool aside = false;
    pn_mutex_lock(&a->lock);
    for (uint32_t i = 0; i < a->n_choices; i++)
        aside = aside || (a->choice[i].begun && !a->choice[i].done && pn_request_parked(a->choice[i].request));
    pn_mutex_unlock(&a->lock);
    if (aside != a->aside && pn_sse_comment(&a->conn->c.sse, aside ? "pn parked" : "pn resumed") == PN_OK)
        a->aside = aside;
}

PN_INTERNAL void serve_ask_flow(serve_ask *a)
{
    serve_conn *c = a->conn;
    if (!c || a->phase != SERVE_RUNNING)
        return;
    if (!a->stream) {
        if (!a->ended)
            return;
        ask_send_body(a);
    } else {
        if (!a->streaming && !(a->streaming = serve_stream(c))) {
            ask_break(a);
            return;
        }
        ask_tell_parked(a);
        if (!ask_send_events(a) || !a->ended)
            return;
        if (a->failed && !a->error.status) {
            ask_break(a);
            return;
        }
        if (pn_sse_end(&c->c.sse, a->reply->ops->done_marker && !a->error.status) != PN_OK) {
            ask_break(a);
            return;
        }
    }
    ask_log(a, c);
    ask_part(a);
}

/* ------------------------------------------------------------------------------------------
 * What the engine says
 * ------------------------------------------------------------------------------------------ */

/* A request of this ask has failed: that is the answer, unless there is a reason already. */
static void ask_failed(serve_ask *a, pn_status st, const pn_err *err)
{
    if (!a->error.status)
        pn_oai_error_status(&a->error, st, err->text);
}

static void ask_choice_end(serve_ask *a, serve_choice *c)
{
    pn_generate_result r;
    pn_err err = {PN_OK, {0}};
    pn_status st = pn_request_result(c->request, &r, &err);
    c->told = true;
    a->usage.completion += r.n_generated;
    a->usage.reasoning += r.n_reasoning;
    a->prefill = PN_MAX(a->prefill, r.prefill_seconds);
    a->decode = PN_MAX(a->decode, r.decode_seconds);
    if (st)
        ask_failed(a, st, &err);
    else if (r.finish == PN_FINISH_CANCELLED && !a->error.status)
        ask_stopping(&a->error);
    if (a->error.status || a->failed)
        return;
    serve_ask_report(a, &r);
    pn_reply_finish f = {.why = r.finish};
    if (r.stop_index >= 0)
        f.stop = (pn_bytes){c->generate.stop[r.stop_index], strlen(c->generate.stop[r.stop_index])};
    a->failed = !a->reply->ops->choice_end(a->reply, c->index, &f);
    ask_ended(a, r.finish != PN_FINISH_STOP ? PN_ENDED_LENGTH : c->calls ? PN_ENDED_TOOL_CALLS : PN_ENDED_STOP);
}

/* The choices behind the first ones.  When there is no memory for them beside those that run, they wait for one of
 * these to end. */
static void ask_more(serve_ask *a)
{
    bool alone = a->n_done == a->n_begun, memory = a->more_status == PN_E_BUDGET || a->more_status == PN_E_NOMEM;
    if (a->adding)
        return;
    if (a->more_status && (alone || !memory))
        ask_failed(a, a->more_status, &a->more_err);
    if (!a->more_due || a->error.status || a->failed || atomic_load(&a->cancelled))
        return;
    a->more_due = false;
    a->more_status = PN_OK;
    a->adding = true;
    ask_go(a, SERVE_RUNNING);
}

/* With the lock held. */
static void ask_tell(serve_ask *a)
{
    for (uint32_t i = 0; i < a->n_choices; i++)
        if (a->choice[i].done && !a->choice[i].told)
            ask_choice_end(a, &a->choice[i]);
    ask_gaps(a);
    ask_more(a);
    bool complete = a->n_begun == a->n_choices || a->error.status || a->failed || atomic_load(&a->cancelled);
    if (a->n_done < a->n_begun || a->adding || !complete || a->ended)
        return;
    a->ended = true;
    ask_ended(a, PN_ENDED_ERROR);           /* no choice has come to an end */
    ask_metrics(a);
    if (a->failed)
        return;
    if (!a->error.status)
        a->failed = !a->reply->ops->end(a->reply, &a->usage);
    else if (a->stream)
        a->failed = !a->reply->ops->fail(a->reply, &a->error);
}

static void ask_look(serve_ask *a)
{
    serve_conn *c = a->conn;
    pn_mutex_lock(&a->lock);
    ask_tell(a);
    pn_mutex_unlock(&a->lock);
    serve_ask_flow(a);
    if (c)
        serve_turn(c);
    if (a->ended && !a->conn && a->phase == SERVE_RUNNING)
        ask_go(a, SERVE_CLOSING);
}

PN_INTERNAL void serve_ask_look(pn_server *s)
{
    bool parks = atomic_exchange(&s->parks, false);
    for (serve_ask *a = s->asks, *next; a; a = next) {
        next = a->next;
        if (a->phase == SERVE_RUNNING && (atomic_exchange(&a->news, false) || (a->ended && !a->conn) || (parks && a->streaming)))
            ask_look(a);
    }
}

/* ------------------------------------------------------------------------------------------
 * Phases
 * ------------------------------------------------------------------------------------------ */

static void ask_run(pn_task *t)
{
    serve_ask *a = ask_of(t);
    switch (a->phase) {
    case SERVE_PARSING: serve_ask_parse(a); break;
    case SERVE_BEGINNING: serve_ask_begin(a); break;
    case SERVE_RUNNING: serve_ask_more(a); break;
    default: serve_ask_close(a); break;
    }
}

static void ask_served(serve_ask *a)
{
    if (serve_model_find(a->server, a->model_name) == a->model)
        pn_str_add(&a->served, a->model_name.data, a->model_name.len);
    else
        pn_str_addz(&a->served, a->model->name);
}

/* The body has been read. */
static void ask_parsed(serve_ask *a)
{
    if (a->server->draining && !a->error.status)
        ask_stopping(&a->error);
    if (!a->error.status)
        a->model = serve_model_route(a->server, a->model_name, &a->error);
    if (a->model)                           /* the name it was called by, if that is one of its own */
        ask_served(a);
    if (a->error.status || !a->conn)
        ask_refuse(a);
    else if (a->kind > SERVE_EMBED)
        ask_start(a, serve_replica_any(a->model));      /* nothing is computed: no place is needed */
    else
        ask_queue(a);
}

/* It runs, it was answered at once, it has to wait for memory, or it was wrong. */
static void ask_begun(serve_ask *a)
{
    pn_server *s = a->server;
    if (a->retry && !a->no_wait && !a->cancelled && a->conn && s->n_running > 1) {
        serve_model *m = a->model;
        ask_leave(a);
        a->begun_ms = 0;
        a->error.status = 0;
        a->retry_at = s->n_closed;
        a->phase = SERVE_QUEUED;
        a->behind = m->queue;           /* it was the first */
        m->queue = a;
        if (!a->behind)
            m->queue_end = &a->behind;
        m->n_queued++;
        return;
    }
    if (!a->reply && !a->ended) {
        if (a->retry && a->budget.size)
            pn_oai_error_budget(&a->error, &a->budget, true, ask_retry_ms(a->model));
        if (!a->error.status)
            pn_oai_error_status(&a->error, PN_E_INTERNAL, "the request was not begun");
        ask_refuse(a);
        return;
    }
    if (a->ended)
        ask_ended(a, PN_ENDED_STOP);
    a->phase = SERVE_RUNNING;
    if (a->cancelled || !a->conn)
        ask_cancel(a);
    ask_look(a);
}

static void ask_done(pn_task *t)
{
    serve_ask *a = ask_of(t);
    switch (a->phase) {
    case SERVE_PARSING: ask_parsed(a); break;
    case SERVE_BEGINNING: ask_begun(a); break;
    case SERVE_RUNNING:
        a->adding = false;
        if (atomic_load(&a->cancelled))
            ask_cancel(a);
        ask_look(a);
        break;
    default: ask_free(a); break;
    }
}

/* Whose it is: the key, else the address. */
static uint64_t ask_client(const serve_conn *c)
{
    const pn_http_request *q = &c->c.http.req;
    static const char *const names[] = {"authorization", "x-api-key", "api-key"};
    for (size_t i = 0; i < PN_COUNT_OF(names); i++) {
        pn_bytes key = pn_http_get(q, names[i]);
        if (key.len)
            return pn_hash(key.data, key.len, 1);
    }
    return pn_hash(c->peer.name, strlen(c->peer.name), 2);
}

PN_INTERNAL void serve_ask_new(serve_conn *c, serve_kind kind)
{
    pn_server *s = c->server;
    serve_ask *a = pn_mem_calloc(&s->mem, PN_ACCT_CONN, 1, sizeof *a);
    if (!a) {
        serve_errorf(c, 503, "server_error", NULL, "out of memory for another request");
        return;
    }
    a->server = s;
    a->kind = kind;
    a->conn = c;
    a->client = ask_client(c);
    a->asked_ms = PN_MAX(s->now, (uint64_t)1);
    a->task = (pn_task){.run = ask_run, .done = ask_done};
    pn_mutex_init(&a->lock);
    serve_random_id(a->id, 24);
    pn_http_take_body(&c->c.http, &a->body);
    pn_str *texts[] = {&a->session, &a->report, &a->served, &a->box, &a->out};
    for (size_t i = 0; i < PN_COUNT_OF(texts); i++)
        pn_str_init(texts[i], &s->mem, PN_ACCT_CONN);
    pn_bytes session = pn_http_get(&c->c.http.req, "x-session-id");
    pn_str_add(&a->session, session.data, session.len);
    a->next = s->asks;
    if (s->asks)
        s->asks->prev = a;
    s->asks = a;
    s->n_asks++;
    c->ask = a;
    ask_go(a, SERVE_PARSING);
}
