/* SPDX-License-Identifier: AGPL-3.0-only */
#include "serve/pn_net.h"

#if defined(__linux__) && PN_ENABLE_EPOLL

#include <errno.h>
#include <sys/epoll.h>

enum { EPOLLER_BATCH = 64 };

PN_INTERNAL pn_status pn_poller_open(pn_poller *p, pn_mem *mem, pn_err *err)
{
    *p = (pn_poller){.mem = mem, .fd = epoll_create1(EPOLL_CLOEXEC)};
    return p->fd >= 0 ? PN_OK : pn_fail(err, PN_E_IO, "cannot wait for sockets: %s", strerror(errno));
}

PN_INTERNAL void pn_poller_close(pn_poller *p)
{
    pn_net_close(p->fd);
    p->fd = -1;
}

static struct epoll_event epoller_event(unsigned events, void *who)
{
    struct epoll_event e = {.data.ptr = who};
    e.events = (events & PN_READY_READ ? (uint32_t)EPOLLIN : 0u) | (events & PN_READY_WRITE ? (uint32_t)EPOLLOUT : 0u) |
               (events & PN_READY_END ? (uint32_t)EPOLLRDHUP : 0u);
    return e;
}

PN_INTERNAL bool pn_poller_add(pn_poller *p, int fd, unsigned events, void *who)
{
    struct epoll_event e = epoller_event(events, who);
    return epoll_ctl(p->fd, EPOLL_CTL_ADD, fd, &e) == 0;
}

PN_INTERNAL void pn_poller_change(pn_poller *p, int fd, unsigned events, void *who)
{
    struct epoll_event e = epoller_event(events, who);
    epoll_ctl(p->fd, EPOLL_CTL_MOD, fd, &e);
}

PN_INTERNAL void pn_poller_remove(pn_poller *p, int fd)
{
    struct epoll_event e = {.events = 0};
    epoll_ctl(p->fd, EPOLL_CTL_DEL, fd, &e);
}

PN_INTERNAL size_t pn_poller_wait(pn_poller *p, pn_ready *ready, size_t cap, int timeout_ms)
{
    struct epoll_event got[EPOLLER_BATCH];
    int n = epoll_wait(p->fd, got, (int)PN_MIN(cap, (size_t)EPOLLER_BATCH), timeout_ms);
    for (int i = 0; i < n; i++) {
        uint32_t e = got[i].events;
        ready[i] = (pn_ready){got[i].data.ptr, (e & EPOLLIN ? (unsigned)PN_READY_READ : 0u) | (e & EPOLLOUT ? (unsigned)PN_READY_WRITE : 0u) |
                                               (e & EPOLLRDHUP ? (unsigned)PN_READY_END : 0u) | (e & (EPOLLHUP | EPOLLERR) ? (unsigned)PN_READY_GONE : 0u)};
    }
    return n > 0 ? (size_t)n : 0;
}

#endif
