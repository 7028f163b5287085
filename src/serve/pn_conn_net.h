/*
 * pn_conn_net.h - a connection (pn_conn.h) on its socket: what the loops of the server and the router have in common.
 *
 * Whoever calls handles the connection's events between the calls; nothing here waits.
 */
#ifndef PN_CONN_NET_H
#define PN_CONN_NET_H

#include "serve/pn_conn.h"
#include "serve/pn_net.h"

/* One write of what there is.  PN_IO_AGAIN: nothing (more) goes now; after PN_IO_DONE and _GONE there may be events. */
PN_INTERNAL pn_io pn_conn_net_write(pn_conn *c, int fd, uint64_t now_ms);

/* One read.  False: nothing came, or there is no room; else there may be events. */
PN_INTERNAL bool pn_conn_net_read(pn_conn *c, int fd, uint64_t now_ms);

/* The poller says that the peer is gone, or sends no more while nobody reads. */
PN_INTERNAL void pn_conn_net_told(pn_conn *c, unsigned events);

/* What to wait for. */
PN_INTERNAL unsigned pn_conn_net_wants(const pn_conn *c);

#endif /* PN_CONN_NET_H */
