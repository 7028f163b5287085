/* SPDX-License-Identifier: AGPL-3.0-only */
#include "serve/pn_conn_net.h"

enum { CONN_NET_READ = 16 << 10 };

PN_INTERNAL pn_io pn_conn_net_write(pn_conn *c, int fd, uint64_t now_ms)
{
    pn_bytes out = pn_conn_output(c);
    size_t n = out.len;
    if (!n)
        return PN_IO_AGAIN;
    pn_io io = pn_net_write(fd, out.data, &n);
    if (io == PN_IO_GONE)
        pn_conn_gone(c);
    else
        pn_conn_sent(c, n, now_ms);
    return io;
}

PN_INTERNAL bool pn_conn_net_read(pn_conn *c, int fd, uint64_t now_ms)
{
    char buf[CONN_NET_READ];
    size_t n = PN_MIN(sizeof buf, pn_conn_room(c));
    pn_io io = n ? pn_net_read(fd, buf, &n) : PN_IO_AGAIN;
    if (io == PN_IO_DONE)
        pn_conn_input(c, buf, n, now_ms);
    else if (io == PN_IO_END)
        pn_conn_eof(c);
    else if (io == PN_IO_GONE)
        pn_conn_gone(c);
    return io != PN_IO_AGAIN;
}

PN_INTERNAL void pn_conn_net_told(pn_conn *c, unsigned events)
{
    if (events & PN_READY_GONE)
        pn_conn_gone(c);
    else if ((events & PN_READY_END) && !pn_conn_room(c))
        pn_conn_eof(c);
}

PN_INTERNAL unsigned pn_conn_net_wants(const pn_conn *c)
{
    unsigned wants = pn_conn_wants(c);
    return (wants & PN_CONN_WANTS_READ ? (unsigned)PN_READY_READ : 0u) | (wants & PN_CONN_WANTS_WRITE ? (unsigned)PN_READY_WRITE : 0u) |
           (c->eof ? 0u : (unsigned)PN_READY_END);
}
