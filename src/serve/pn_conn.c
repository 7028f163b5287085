/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_conn.c - the state machine.  Input and the clock only leave notes (eof, gone, fed, now); every
 * change of state but the first of a request happens in pn_conn_next or in a reply, so the owner
 * sees them in one order.
 */
#include "serve/pn_conn.h"

#include <stdio.h>

_Static_assert(sizeof(pn_conn) <= 4096, "an idle connection is cheap");

PN_INTERNAL void pn_conn_init(pn_conn *c, pn_mem *mem, const pn_conn_params *params, uint64_t now_ms)
{
    memset(c, 0, sizeof *c);
    c->mem = mem;
    if (params)
        c->params = *params;
    const struct { uint32_t *value, usual; } defaults[] = {
        {&c->params.pending_max, 16u << 10}, {&c->params.idle_ms, 60000}, {&c->params.head_ms, 15000},
        {&c->params.body_ms, 30000}, {&c->params.body_rate, 1024}, {&c->params.write_ms, 60000},
        {&c->params.linger_ms, 2000}, {&c->params.linger_max, 64u << 20},
        {&c->params.ping_ms, 15000},
    };
    for (size_t i = 0; i < PN_COUNT_OF(defaults); i++)
        if (!*defaults[i].value)
            *defaults[i].value = defaults[i].usual;
    pn_http_init(&c->http, mem, &c->params.http);
    pn_sendq_init(&c->out, mem, &c->params.queue);
    c->sse.ended = true;
    c->now = c->since = now_ms;
}

static void conn_drop_pending(pn_conn *c)
{
    pn_mem_free(c->mem, PN_ACCT_MISC, c->pending, c->pending_cap);
    c->pending = NULL;
    c->pending_at = c->pending_len = c->pending_cap = 0;
}

/* The request stays until pn_conn_fini: the owner may still want to log it. */
static void conn_close(pn_conn *c)
{
    pn_sendq_fini(&c->out);
    conn_drop_pending(c);
    c->sse.ended = true;
    c->state = PN_CONN_CLOSED;
}

PN_INTERNAL void pn_conn_fini(pn_conn *c)
{
    conn_close(c);
    pn_http_fini(&c->http);
}

static bool conn_at_work(const pn_conn *c)
{
    return c->state == PN_CONN_HANDLING || c->state == PN_CONN_STREAMING;
}

/* The client is gone: the owner has to know when it works for it. */
static void conn_lost(pn_conn *c)
{
    c->abort_due = conn_at_work(c);
    conn_close(c);
}

/* ------------------------------------------------------------------------------------------
 * Input
 * ------------------------------------------------------------------------------------------ */

static bool conn_reads(const pn_conn *c) { return c->state == PN_CONN_IDLE || c->state == PN_CONN_READING; }

static size_t conn_pending(const pn_conn *c) { return c->pending_len - c->pending_at; }

PN_INTERNAL size_t pn_conn_room(const pn_conn *c)
{
    if (c->eof || c->state == PN_CONN_CLOSED)
        return 0;
    return c->state == PN_CONN_LINGERING ? c->params.pending_max : c->params.pending_max - conn_pending(c);
}

/* A fault of the connection's own, told like one of the parser's. */
static void conn_fault(pn_conn *c, int status, const char *message)
{
    c->http.status = status;
    snprintf(c->http.message, sizeof c->http.message, "%s", message);
    c->fed = PN_FEED_FAULT;
}

/* Keep what cannot be parsed yet. */
static void conn_keep(pn_conn *c, const char *data, size_t n)
{
    PN_ASSERT(n <= c->params.pending_max - conn_pending(c));
    if (n > c->pending_cap - c->pending_len) {
        size_t len = conn_pending(c);
        if (len + n > c->pending_cap) {
            size_t cap = PN_MIN(PN_MAX(2 * (len + n), (size_t)1024), (size_t)c->params.pending_max);
            char *to = pn_mem_alloc(c->mem, PN_ACCT_MISC, cap);
            if (!to) {
                c->gone = true;         /* bytes are lost: nothing sensible can follow */
                return;
            }
            if (len)
                memcpy(to, c->pending + c->pending_at, len);
            conn_drop_pending(c);
            c->pending = to;
            c->pending_cap = cap;
        } else {
            memmove(c->pending, c->pending + c->pending_at, len);
        }
        c->pending_at = 0;
        c->pending_len = len;
    }
    memcpy(c->pending + c->pending_len, data, n);
    c->pending_len += n;
}

/* Give the parser bytes; how many it took. */
static size_t conn_feed(pn_conn *c, const char *data, size_t n)
{
    size_t used;
    bool body = c->head_passed;
    c->fed = pn_http_feed(&c->http, data, n, &used);
    if (c->state == PN_CONN_IDLE && pn_http_begun(&c->http)) {
        c->state = PN_CONN_READING;
        c->since = c->now;
    }
    if (body && used) {
        c->body_seen += used;
        c->body_last = c->now;
    }
    return used;
}

PN_INTERNAL void pn_conn_input(pn_conn *c, const char *data, size_t n, uint64_t now_ms)
{
    c->now = now_ms;
    if (c->state == PN_CONN_LINGERING)
        c->lingered += n;
    if (c->state == PN_CONN_LINGERING || c->state == PN_CONN_CLOSED)
        return;
    size_t used = 0;
    /* While a head has been told and not passed, the owner may still be about to refuse it. */
    if (conn_reads(c) && c->fed == PN_FEED_MORE && c->head_told == c->head_passed && !conn_pending(c))
        used = conn_feed(c, data, n);
    if (used < n)
        conn_keep(c, data + used, n - used);
}

PN_INTERNAL void pn_conn_eof(pn_conn *c) { c->eof = true; }

PN_INTERNAL void pn_conn_gone(pn_conn *c) { c->gone = true; }

/* ------------------------------------------------------------------------------------------
 * Output
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_bytes pn_conn_output(const pn_conn *c) { return pn_sendq_peek(&c->out); }

PN_INTERNAL void pn_conn_sent(pn_conn *c, size_t n, uint64_t now_ms)
{
    c->now = now_ms;
    pn_sendq_drop(&c->out, n);
    if (n) {
        c->waiting = pn_sendq_len(&c->out) != 0;
        c->write_at = now_ms;
    }
}

PN_INTERNAL unsigned pn_conn_wants(const pn_conn *c)
{
    return (pn_conn_room(c) ? PN_CONN_WANTS_READ : 0u) | (pn_sendq_len(&c->out) ? PN_CONN_WANTS_WRITE : 0u);
}

/* ------------------------------------------------------------------------------------------
 * Time
 * ------------------------------------------------------------------------------------------ */

/* Until when a body may take: body_ms without a byte is too long, and so is what comes drop by drop
 * below body_rate, which would hold the memory of a large body for hours. */
static uint64_t conn_body_deadline(const pn_conn *c)
{
    uint64_t still = c->body_last + c->params.body_ms;
    uint64_t slow = c->body_at + c->params.body_ms + c->body_seen / c->params.body_rate * 1000;
    return PN_MIN(still, slow);
}

PN_INTERNAL uint64_t pn_conn_deadline(const pn_conn *c)
{
    uint64_t at = UINT64_MAX;
    switch (c->state) {
    case PN_CONN_IDLE: at = c->since + c->params.idle_ms; break;
    case PN_CONN_READING: at = c->head_passed ? conn_body_deadline(c) : c->since + c->params.head_ms; break;
    case PN_CONN_STREAMING: at = pn_sendq_len(&c->out) || c->quiet ? at : c->write_at + c->params.ping_ms; break;
    case PN_CONN_LINGERING: at = c->since + c->params.linger_ms; break;
    case PN_CONN_HANDLING: case PN_CONN_WRITING: case PN_CONN_CLOSED: break;
    }
    if (c->state != PN_CONN_CLOSED && pn_sendq_len(&c->out))
        at = PN_MIN(at, (c->waiting ? c->write_at : c->now) + c->params.write_ms);
    return at;
}

/* What is overdue.  A stalled write first: whatever the state, the client does not listen. */
static void conn_overdue(pn_conn *c)
{
    if (pn_sendq_len(&c->out) && c->now >= c->write_at + c->params.write_ms)
        conn_lost(c);
    else if (c->state == PN_CONN_READING)
        conn_fault(c, 408, c->head_passed ? "The body of the request came too slowly."
                                          : "The head of the request came too slowly.");
    else
        conn_close(c);
}

/* ------------------------------------------------------------------------------------------
 * Events
 * ------------------------------------------------------------------------------------------ */

/* The reply has been sent: another request, or the end. */
static pn_conn_event conn_finish(pn_conn *c)
{
    bool linger = (c->cut || conn_pending(c)) && !c->eof;
    if (c->last && linger) {
        /* Closing with unread input makes the kernel reset the connection, which can reach the client
         * before it has read the reply: so say that we are done, and read on for a while. */
        pn_http_fini(&c->http);
        pn_sendq_fini(&c->out);
        conn_drop_pending(c);
        c->state = PN_CONN_LINGERING;
        c->since = c->now;
        return PN_CONN_SHUTDOWN;
    }
    if (c->last) {
        conn_close(c);
        return PN_CONN_CLOSE;
    }
    pn_http_next(&c->http);
    pn_sendq_fini(&c->out);
    c->state = PN_CONN_IDLE;
    c->since = c->now;
    c->fed = PN_FEED_MORE;
    c->head_told = c->head_passed = c->quiet = false;
    return PN_CONN_NOTHING;
}

/* A stream that has been silent for a while shows that it lives.  If there is no memory for that, the
 * next one may come through. */
static void conn_ping(pn_conn *c)
{
    if (!c->quiet && !pn_sendq_len(&c->out) && c->now >= c->write_at + c->params.ping_ms) {
        pn_sse_ping(&c->sse);
        c->write_at = c->now;
    }
}

/* The owner has seen the head and did not refuse it. */
static void conn_pass_head(pn_conn *c)
{
    c->head_passed = true;
    c->body_at = c->body_last = c->now;
    c->body_seen = 0;
    if (c->http.req.expect_continue && !conn_pending(c) && pn_http_reply_continue(&c->out) != PN_OK)
        conn_fault(c, 503, "There is not enough memory for this request right now.");
}

/* One step of reading. */
static pn_conn_event conn_read(pn_conn *c)
{
    if (c->head_told && !c->head_passed)
        conn_pass_head(c);
    if (c->fed == PN_FEED_MORE) {
        size_t n = conn_pending(c);
        c->pending_at += conn_feed(c, n ? c->pending + c->pending_at : "", n);
        if (!conn_pending(c))
            conn_drop_pending(c);
    }
    switch (c->fed) {
    case PN_FEED_HEAD:
        c->fed = PN_FEED_MORE;
        c->head_told = true;
        return PN_CONN_HEAD;
    case PN_FEED_REQUEST:
        c->n_requests++;
        c->state = PN_CONN_HANDLING;
        return PN_CONN_REQUEST;
    case PN_FEED_FAULT:
        c->state = PN_CONN_HANDLING;
        c->cut = true;
        return PN_CONN_FAULT;
    case PN_FEED_MORE:
        break;
    }
    if (c->eof || (c->draining && c->state == PN_CONN_IDLE))
        conn_close(c);
    return PN_CONN_NOTHING;
}

PN_INTERNAL pn_conn_event pn_conn_next(pn_conn *c, uint64_t now_ms)
{
    c->now = now_ms;
    if (c->state == PN_CONN_STREAMING && !c->sse.ended)
        conn_ping(c);
    if (!c->waiting && pn_sendq_len(&c->out)) {
        c->waiting = true;
        c->write_at = now_ms;
    }
    if (c->state == PN_CONN_STREAMING && c->sse.ended)
        c->state = PN_CONN_WRITING;
    if (c->state != PN_CONN_CLOSED && (c->gone || (c->eof && conn_at_work(c) && !c->params.half_close)))
        conn_lost(c);
    if (c->state == PN_CONN_WRITING && !pn_sendq_len(&c->out)) {
        pn_conn_event e = conn_finish(c);
        if (e)
            return e;
    }
    if (conn_reads(c)) {
        pn_conn_event e = conn_read(c);
        if (e)
            return e;
    }
    if (c->state == PN_CONN_LINGERING && (c->eof || c->lingered > c->params.linger_max))
        conn_close(c);
    if (now_ms >= pn_conn_deadline(c)) {
        conn_overdue(c);
        if (conn_reads(c))
            return conn_read(c);        /* tells of the 408 */
    }
    if (c->abort_due) {
        c->abort_due = false;
        return PN_CONN_ABORT;
    }
    return c->state == PN_CONN_CLOSED ? PN_CONN_CLOSE : PN_CONN_NOTHING;
}

/* ------------------------------------------------------------------------------------------
 * Replies
 * ------------------------------------------------------------------------------------------ */

/* Has a head been told that may be refused? */
static bool conn_early(const pn_conn *c) { return c->state == PN_CONN_READING && c->head_told && !c->head_passed; }

/* May there be a reply now, and how does the connection go on after it? */
static bool conn_reply_head(const pn_conn *c, const pn_http_reply *r, pn_http_reply *out)
{
    const pn_http_request *q = &c->http.req;
    bool unread = conn_early(c) && (q->chunked || q->content_length);
    *out = *r;
    out->head |= q->method == PN_METHOD_HEAD;
    out->http10 |= q->http10;
    out->close |= unread || c->cut || c->draining || !q->keep_alive;
    return conn_early(c) || c->state == PN_CONN_HANDLING;
}

static pn_status conn_replied(pn_conn *c, pn_status st, pn_conn_state next, bool last)
{
    if (st != PN_OK)
        return st;
    if (conn_early(c)) {
        if (c->http.req.chunked || c->http.req.content_length)
            c->cut = true;
        else
            c->n_requests++;            /* there is no body: the request was complete */
    }
    c->last = last;
    c->state = next;
    return PN_OK;
}

PN_INTERNAL pn_status pn_conn_reply(pn_conn *c, const pn_http_reply *r, const char *body, size_t n)
{
    pn_http_reply h;
    if (!conn_reply_head(c, r, &h))
        return PN_E_STATE;
    return conn_replied(c, pn_http_reply_whole(&c->out, &h, body, n), PN_CONN_WRITING, h.close);
}

PN_INTERNAL pn_status pn_conn_reply_give(pn_conn *c, const pn_http_reply *r, pn_str *body)
{
    pn_http_reply h;
    if (!conn_reply_head(c, r, &h))
        return PN_E_STATE;
    return conn_replied(c, pn_http_reply_give(&c->out, &h, body), PN_CONN_WRITING, h.close);
}

PN_INTERNAL pn_status pn_conn_stream(pn_conn *c, const pn_http_reply *r)
{
    pn_http_reply h;
    if (!conn_reply_head(c, r, &h))
        return PN_E_STATE;
    pn_status st = pn_sse_begin(&c->sse, &c->out, &h);
    return conn_replied(c, st, PN_CONN_STREAMING, h.close || c->sse.framing == PN_FRAMING_CLOSE);
}

PN_INTERNAL pn_status pn_conn_relay(pn_conn *c, const pn_http_reply *r)
{
    pn_http_reply h;
    pn_framing framing;
    if (!conn_reply_head(c, r, &h))
        return PN_E_STATE;
    pn_status st = pn_http_reply_stream(&c->out, &h, &framing);
    if (st == PN_OK) {
        c->sse = (pn_sse){.q = &c->out, .framing = framing};
        c->quiet = true;
    }
    return conn_replied(c, st, PN_CONN_STREAMING, h.close || framing == PN_FRAMING_CLOSE);
}

PN_INTERNAL pn_status pn_conn_put(pn_conn *c, const char *data, size_t n)
{
    const pn_bytes piece = {data, n};
    return c->sse.ended ? PN_E_STATE : pn_http_stream_put(&c->out, c->sse.framing, &piece, 1, PN_SSE_SPARE);
}

PN_INTERNAL void pn_conn_abort(pn_conn *c) { conn_close(c); }

PN_INTERNAL void pn_conn_drain(pn_conn *c) { c->draining = true; }
