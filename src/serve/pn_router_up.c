/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_router_up.c - connections to backends.
 *
 * Back-pressure: while the client's queue is at high water its backend is not read from; the kernel's buffers fill,
 * and the backend notices.  A backend that breaks the connection meanwhile is told by the poller without being asked,
 * again and again; its last bytes can still be read, so such a connection leaves the poller and waits (parked).
 */
#include "serve/pn_router_int.h"

enum { UP_READ = 16 << 10, UP_READS = 16 };

/* ------------------------------------------------------------------------------------------
 * Making and pooling
 * ------------------------------------------------------------------------------------------ */

/* An idle connection on which nothing has come: no end, no bytes. */
static bool up_quiet(const router_up *u)
{
    char byte;
    size_t n = 1;
    return pn_net_read(u->fd, &byte, &n) == PN_IO_AGAIN;
}

static void up_unpool(router_up *u)
{
    router_up **p = &u->backend->pool;
    while (*p && *p != u)
        p = &(*p)->pooled;
    if (!*p)
        return;
    *p = u->pooled;
    u->pooled = NULL;
    u->backend->n_pool--;
}

PN_INTERNAL void router_up_close(router_up *u)
{
    pn_router *r = u->backend->router;
    if (u->dead)
        return;
    up_unpool(u);
    if (!u->parked)
        pn_poller_remove(&r->poller, u->fd);
    r->n_parked -= u->parked;
    pn_net_close(u->fd);
    u->fd = -1;
    u->ask = NULL;
    u->dead = true;
    r->n_dead++;
    u->parked = false;
}

static router_up *up_new(router_backend *b, bool *full)
{
    pn_router *r = b->router;
    int fd = pn_target_connect(&b->target);
    *full = fd == -2;
    if (fd < 0)
        return NULL;
    router_up *u = pn_mem_calloc(r->mem, PN_ACCT_CONN, 1, sizeof *u);
    if (!u || !pn_poller_add(&r->poller, fd, PN_READY_WRITE, u)) {
        pn_mem_free(r->mem, PN_ACCT_CONN, u, sizeof *u);
        pn_net_close(fd);
        *full = true;
        return NULL;
    }
    u->kind = ROUTER_UP;
    u->backend = b;
    u->fd = fd;
    u->events = PN_READY_WRITE;
    pn_upstream_init(&u->u, r->mem, &r->up_params, r->now);
    u->next = r->ups;
    if (r->ups)
        r->ups->prev = u;
    r->ups = u;
    return u;
}

PN_INTERNAL router_up *router_up_get(router_backend *b, bool *full)
{
    *full = false;
    while (b->pool) {
        router_up *u = b->pool;
        up_unpool(u);
        if (pn_upstream_reusable(&u->u) && up_quiet(u))
            return u;
        router_up_close(u);
    }
    return up_new(b, full);
}

PN_INTERNAL uint64_t router_up_deadline(const router_up *u)
{
    uint64_t at = pn_upstream_deadline(&u->u);
    return u->check ? PN_MIN(at, u->backend->check_until) : at;
}

/* May bytes of the answer come? */
static bool up_reads(const router_up *u) { return !u->ask || !pn_sendq_paused(&u->ask->conn->c.out); }

/* Wait for what it is to do next. */
static void up_wait(router_up *u)
{
    pn_router *r = u->backend->router;
    unsigned events = u->u.state == PN_UPSTREAM_CONNECTING ? (unsigned)PN_READY_WRITE
                    : (up_reads(u) ? (unsigned)PN_READY_READ : 0u) | (pn_upstream_output(&u->u).len ? (unsigned)PN_READY_WRITE : 0u);
    if (u->dead)
        return;
    if (events != u->events && !u->parked)
        pn_poller_change(&r->poller, u->fd, events, u);
    u->events = events;
    r->sweep_at = PN_MIN(r->sweep_at, router_up_deadline(u));
}

PN_INTERNAL void router_up_put(router_up *u)
{
    router_backend *b = u->backend;
    u->ask = NULL;
    u->check = false;
    if (u->dead)
        return;
    if (!pn_upstream_reusable(&u->u) || u->parked || b->n_pool >= ROUTER_POOL || b->router->draining) {
        router_up_close(u);
        return;
    }
    pn_upstream_rest(&u->u);
    u->pooled = b->pool;
    b->pool = u;
    b->n_pool++;
    up_wait(u);
}

/* ------------------------------------------------------------------------------------------
 * Writing
 * ------------------------------------------------------------------------------------------ */

static void up_write(router_up *u)
{
    pn_io io = PN_IO_DONE;
    for (pn_bytes out; io == PN_IO_DONE && (out = pn_upstream_output(&u->u)).len;) {
        size_t n = out.len;
        io = pn_net_write(u->fd, out.data, &n);
        pn_upstream_sent(&u->u, n, u->backend->router->now);
    }
    if (io == PN_IO_GONE)
        pn_upstream_deaf(&u->u);        /* there may be an answer all the same: reading tells */
}

PN_INTERNAL void router_up_begin(router_up *u, pn_bytes head, pn_bytes body, bool to_head)
{
    pn_upstream_begin(&u->u, head, body, to_head, u->backend->router->now);
    up_write(u);
    up_wait(u);
}

/* ------------------------------------------------------------------------------------------
 * Reading
 * ------------------------------------------------------------------------------------------ */

static void up_tell(router_up *u, pn_response_fed fed, pn_bytes piece)
{
    if (u->check)
        router_health_fed(u->backend, fed, piece);
    else if (u->ask)
        router_ask_fed(u->ask, fed, piece);
}

/* There is no connection any more. */
static void up_lost(router_up *u)
{
    router_conn *c = u->ask ? u->ask->conn : NULL;
    if (u->check)
        router_health_lost(u->backend);
    else if (u->ask)
        router_ask_lost(u->ask);
    router_up_close(u);
    if (c)
        router_turn(c);
}

static void up_input(router_up *u, const char *data, size_t n)
{
    router_conn *c = u->ask ? u->ask->conn : NULL;
    pn_response_fed fed = PN_RESPONSE_HEAD;
    size_t at = 0;
    if (u->u.state != PN_UPSTREAM_BUSY) {       /* bytes for which nobody asked */
        router_up_close(u);
        return;
    }
    while (!u->dead && fed != PN_RESPONSE_MORE && fed != PN_RESPONSE_DONE && fed != PN_RESPONSE_FAULT) {
        pn_bytes piece;
        fed = pn_upstream_input(&u->u, data, n, &at, &piece, u->backend->router->now);
        if (fed != PN_RESPONSE_MORE)
            up_tell(u, fed, piece);
    }
    if (c)
        router_turn(c);
}

static void up_ended(router_up *u, bool broken)
{
    router_conn *c = u->ask ? u->ask->conn : NULL;
    if (pn_upstream_end(&u->u, broken) != PN_RESPONSE_DONE) {
        up_lost(u);
        return;
    }
    up_tell(u, PN_RESPONSE_DONE, (pn_bytes){NULL, 0});
    router_up_close(u);
    if (c)
        router_turn(c);
}

/* Take what the socket has, as far as the client can take it; others have a turn, too. */
static void up_read(router_up *u)
{
    char buf[UP_READ];
    for (int i = 0; i < UP_READS && !u->dead && up_reads(u); i++) {
        size_t n = sizeof buf;
        pn_io io = pn_net_read(u->fd, buf, &n);
        if (io == PN_IO_AGAIN)
            return;
        if (io == PN_IO_DONE)
            up_input(u, buf, n);
        else
            up_ended(u, io == PN_IO_GONE);
    }
}

/* ------------------------------------------------------------------------------------------
 * What the poller and the clock say
 * ------------------------------------------------------------------------------------------ */

static void up_park(router_up *u)
{
    pn_router *r = u->backend->router;
    pn_poller_remove(&r->poller, u->fd);
    u->parked = true;
    r->n_parked++;
}

PN_INTERNAL void router_up_ready(router_up *u, unsigned events)
{
    if (u->dead)
        return;
    if (u->u.state == PN_UPSTREAM_CONNECTING) {
        if (!pn_target_connected(u->fd)) {
            up_lost(u);
            return;
        }
        pn_upstream_connected(&u->u, u->backend->router->now);
        up_write(u);
    } else if (events & PN_READY_WRITE) {
        up_write(u);
    }
    if ((events & (PN_READY_READ | PN_READY_GONE)) && up_reads(u))
        up_read(u);
    else if (events & PN_READY_GONE)
        up_park(u);
    up_wait(u);
}

PN_INTERNAL void router_up_flow(router_up *u) { up_wait(u); }

PN_INTERNAL void router_up_parked(pn_router *r)
{
    if (r->n_parked)
        for (router_up *u = r->ups; u; u = u->next)
            while (u->parked && up_reads(u))    /* what a broken connection still has is little */
                up_read(u);
}

PN_INTERNAL void router_up_sweep(router_up *u)
{
    pn_router *r = u->backend->router;
    if (u->dead)
        return;
    if (r->now >= router_up_deadline(u)) {
        bool idle = u->u.state == PN_UPSTREAM_IDLE && !u->ask && !u->check;
        pn_upstream_overdue(&u->u);
        if (idle)
            router_up_close(u);
        else
            up_lost(u);
    } else {
        r->sweep_at = PN_MIN(r->sweep_at, router_up_deadline(u));
    }
}
