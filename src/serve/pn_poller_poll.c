/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_poller_poll.c - waiting with poll(): every system has it, and its cost is in the number of sockets, not in
 * what happens on them.
 */
#include "serve/pn_net.h"

#if !defined(__linux__) || !PN_ENABLE_EPOLL

#include <poll.h>

struct pn_poller_entry {
    struct pollfd want;         /* first and alone: the list is poll()'s array */
};

/* Whom an entry belongs to stands in the second half of the block: poll() wants its entries side by side. */
static void **poller_who(const pn_poller *p) { return (void **)(void *)(p->list + p->cap); }

static size_t poller_bytes(size_t cap) { return cap * (sizeof(struct pn_poller_entry) + sizeof(void *)); }

PN_INTERNAL pn_status pn_poller_open(pn_poller *p, pn_mem *mem, pn_err *err)
{
    (void)err;
    *p = (pn_poller){.mem = mem, .fd = -1};
    return PN_OK;
}

PN_INTERNAL void pn_poller_close(pn_poller *p)
{
    pn_mem_free(p->mem, PN_ACCT_CONN, p->list, poller_bytes(p->cap));
    p->list = NULL;
    p->n = p->cap = 0;
}

static short poller_events(unsigned events)
{
    return (short)((events & PN_READY_READ ? POLLIN : 0) | (events & PN_READY_WRITE ? POLLOUT : 0));
}

static bool poller_grow(pn_poller *p)
{
    size_t cap = PN_MAX(p->cap * 2, (size_t)16);
    struct pn_poller_entry *list = pn_mem_alloc(p->mem, PN_ACCT_CONN, poller_bytes(cap));
    if (!list)
        return false;
    if (p->n) {
        memcpy(list, p->list, p->n * sizeof *list);
        memcpy(list + cap, poller_who(p), p->n * sizeof(void *));
    }
    pn_mem_free(p->mem, PN_ACCT_CONN, p->list, poller_bytes(p->cap));
    p->list = list;
    p->cap = cap;
    return true;
}

static size_t poller_find(const pn_poller *p, int fd)
{
    size_t i = 0;
    while (i < p->n && p->list[i].want.fd != fd)
        i++;
    return i;
}

PN_INTERNAL bool pn_poller_add(pn_poller *p, int fd, unsigned events, void *who)
{
    if (p->n == p->cap && !poller_grow(p))
        return false;
    p->list[p->n].want = (struct pollfd){.fd = fd, .events = poller_events(events)};
    poller_who(p)[p->n++] = who;
    return true;
}

PN_INTERNAL void pn_poller_change(pn_poller *p, int fd, unsigned events, void *who)
{
    size_t i = poller_find(p, fd);
    if (i == p->n)
        return;
    p->list[i].want.events = poller_events(events);
    poller_who(p)[i] = who;
}

PN_INTERNAL void pn_poller_remove(pn_poller *p, int fd)
{
    size_t i = poller_find(p, fd);
    if (i == p->n)
        return;
    p->n--;
    p->list[i] = p->list[p->n];
    poller_who(p)[i] = poller_who(p)[p->n];
}

/* A peer that closes is told with POLLIN on some systems: then the last bytes are still to be read. */
static bool poller_gone(short got) { return (got & (POLLERR | POLLNVAL)) || ((got & POLLHUP) && !(got & POLLIN)); }

PN_INTERNAL size_t pn_poller_wait(pn_poller *p, pn_ready *ready, size_t cap, int timeout_ms)
{
    size_t n = 0;
    if (poll(p->list ? &p->list->want : NULL, (nfds_t)p->n, timeout_ms) <= 0)
        return 0;
    for (size_t i = 0; i < p->n && n < cap; i++) {
        short got = p->list[i].want.revents;
        if (got)
            ready[n++] = (pn_ready){poller_who(p)[i], (got & POLLIN ? (unsigned)PN_READY_READ : 0u) |
                                                     (got & POLLOUT ? (unsigned)PN_READY_WRITE : 0u) |
                                                     (poller_gone(got) ? (unsigned)PN_READY_GONE : 0u)};
    }
    return n;
}

#endif
