/* SPDX-License-Identifier: AGPL-3.0-only */
/* pn_upstream.c - bookkeeping around the parser of answers. */
#include "serve/pn_upstream.h"

#include <stdio.h>

PN_INTERNAL void pn_upstream_init(pn_upstream *u, pn_mem *mem, const pn_upstream_params *params, uint64_t now_ms)
{
    memset(u, 0, sizeof *u);
    if (params)
        u->params = *params;
    if (!u->params.connect_ms)
        u->params.connect_ms = 5000;
    if (!u->params.answer_ms)
        u->params.answer_ms = 600000;
    if (!u->params.idle_ms)
        u->params.idle_ms = 15000;
    pn_response_init(&u->answer, mem, &u->params.http);
    u->since = now_ms;
}

PN_INTERNAL void pn_upstream_fini(pn_upstream *u)
{
    pn_response_fini(&u->answer);
    u->part[0] = u->part[1] = (pn_bytes){NULL, 0};
    u->asked = false;
    u->state = PN_UPSTREAM_CLOSED;
}

static void upstream_go(pn_upstream *u, pn_upstream_state st, uint64_t now_ms)
{
    u->state = st;
    u->since = now_ms;
}

PN_INTERNAL void pn_upstream_connected(pn_upstream *u, uint64_t now_ms)
{
    if (u->state == PN_UPSTREAM_CONNECTING)
        upstream_go(u, u->asked ? PN_UPSTREAM_BUSY : PN_UPSTREAM_IDLE, now_ms);
}

PN_INTERNAL void pn_upstream_begin(pn_upstream *u, pn_bytes head, pn_bytes body, bool to_head, uint64_t now_ms)
{
    PN_ASSERT(!u->asked && (u->state == PN_UPSTREAM_IDLE || u->state == PN_UPSTREAM_CONNECTING));
    pn_response_next(&u->answer, to_head);
    u->part[0] = head;
    u->part[1] = body;
    u->sent = 0;
    u->asked = true;
    u->done = false;
    if (u->state == PN_UPSTREAM_IDLE)
        upstream_go(u, PN_UPSTREAM_BUSY, now_ms);
}

/* ------------------------------------------------------------------------------------------
 * Out
 * ------------------------------------------------------------------------------------------ */

static size_t upstream_left(const pn_upstream *u) { return u->part[0].len + u->part[1].len - u->sent; }

PN_INTERNAL pn_bytes pn_upstream_output(const pn_upstream *u)
{
    if (u->state != PN_UPSTREAM_BUSY || u->deaf || !u->asked)
        return (pn_bytes){NULL, 0};
    size_t n0 = u->part[0].len;
    if (u->sent < n0)
        return (pn_bytes){u->part[0].data + u->sent, n0 - u->sent};
    return (pn_bytes){u->part[1].data ? u->part[1].data + (u->sent - n0) : NULL, upstream_left(u)};
}

PN_INTERNAL void pn_upstream_sent(pn_upstream *u, size_t n, uint64_t now_ms)
{
    PN_ASSERT(n <= upstream_left(u));
    u->sent += n;
    if (n)
        u->since = now_ms;
}

PN_INTERNAL void pn_upstream_deaf(pn_upstream *u)
{
    u->deaf = u->spoiled = true;
}

PN_INTERNAL bool pn_upstream_release(pn_upstream *u)
{
    if (upstream_left(u))
        return false;
    u->part[0] = u->part[1] = (pn_bytes){NULL, 0};
    u->sent = 0;
    return true;
}

/* ------------------------------------------------------------------------------------------
 * In
 * ------------------------------------------------------------------------------------------ */

/* The answer is complete: the request's bytes are the caller's again. */
static pn_response_fed upstream_done(pn_upstream *u, uint64_t now_ms)
{
    if (upstream_left(u) || !u->answer.r.keep_alive)
        u->spoiled = true;
    u->part[0] = u->part[1] = (pn_bytes){NULL, 0};
    u->sent = 0;
    u->asked = false;
    u->done = true;
    u->n_answers++;
    upstream_go(u, u->spoiled ? PN_UPSTREAM_CLOSED : PN_UPSTREAM_IDLE, now_ms);
    return PN_RESPONSE_DONE;
}

PN_INTERNAL pn_response_fed pn_upstream_input(pn_upstream *u, const char *data, size_t n, size_t *at, pn_bytes *piece, uint64_t now_ms)
{
    size_t used;
    *piece = (pn_bytes){NULL, 0};
    if (u->state != PN_UPSTREAM_BUSY) {
        u->spoiled |= *at < n;
        *at = n;
        return PN_RESPONSE_MORE;
    }
    pn_response_fed fed = pn_response_feed(&u->answer, data + *at, n - *at, &used, piece);
    *at += used;
    if (used)
        u->since = now_ms;
    if (fed == PN_RESPONSE_DONE) {
        u->spoiled |= *at < n;
        *at = n;
        return upstream_done(u, now_ms);
    }
    if (fed == PN_RESPONSE_FAULT)
        u->state = PN_UPSTREAM_CLOSED;
    return fed;
}

PN_INTERNAL pn_response_fed pn_upstream_end(pn_upstream *u, bool broken)
{
    bool busy = u->state == PN_UPSTREAM_BUSY;
    u->spoiled = true;
    u->state = PN_UPSTREAM_CLOSED;
    if (!busy)
        return PN_RESPONSE_FAULT;
    if (broken && u->answer.r.until_close) {
        snprintf(u->answer.message, sizeof u->answer.message, "The connection broke in the middle of the answer.");
        return PN_RESPONSE_FAULT;
    }
    pn_response_fed fed = pn_response_end(&u->answer);
    return fed == PN_RESPONSE_DONE ? upstream_done(u, u->since) : fed;
}

PN_INTERNAL void pn_upstream_rest(pn_upstream *u)
{
    if (!u->asked)
        pn_response_next(&u->answer, false);
}

PN_INTERNAL bool pn_upstream_reusable(const pn_upstream *u) { return u->state == PN_UPSTREAM_IDLE && !u->spoiled; }

/* ------------------------------------------------------------------------------------------
 * Time
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL uint64_t pn_upstream_deadline(const pn_upstream *u)
{
    switch (u->state) {
    case PN_UPSTREAM_CONNECTING: return u->since + u->params.connect_ms;
    case PN_UPSTREAM_BUSY: return u->since + u->params.answer_ms;
    case PN_UPSTREAM_IDLE: return u->since + u->params.idle_ms;
    case PN_UPSTREAM_CLOSED: break;
    }
    return UINT64_MAX;
}

PN_INTERNAL void pn_upstream_overdue(pn_upstream *u)
{
    const char *why = u->state == PN_UPSTREAM_CONNECTING ? "The connection could not be made in time."
                    : u->state == PN_UPSTREAM_BUSY ? "The answer came too slowly." : "Nothing was asked for a while.";
    snprintf(u->answer.message, sizeof u->answer.message, "%s", why);
    u->timed_out = u->state == PN_UPSTREAM_BUSY;
    u->spoiled = true;
    u->state = PN_UPSTREAM_CLOSED;
}
