/*
 * pn_net.h - what the server needs of the system: sockets, waiting for many of them, clocks.
 *
 * Everything is non-blocking and closed on exec, and no call here raises SIGPIPE.  Addresses are texts:
 *
 *     127.0.0.1:8080   [::1]:8080   :8080 (every interface)   port 0: any free one
 *     unix:/run/pantheon.sock       a socket file, replaced when nobody listens on it any more
 *     fd:3                          handed over by the parent (systemd)
 *
 * Waiting is epoll on Linux (pn_poller_epoll.c), poll elsewhere (pn_poller_poll.c).
 *
 * Threads: one owner each; pn_wake_send from any thread and from signal handlers.
 */
#ifndef PN_NET_H
#define PN_NET_H

#include "base/pn_err.h"
#include "base/pn_mem.h"

#include <stdatomic.h>

/* --- listening and talking ---------------------------------------------------------------------- */

typedef struct pn_listener {
    int fd;                     /* -1: none */
    char name[160];             /* "127.0.0.1:8080" with the port in effect, "unix:/path" */
    char unlink_path[108];      /* the socket file to remove; "": none */
    bool tcp;
} pn_listener;

typedef struct pn_peer {
    bool local;                 /* this host: loopback, or a Unix socket */
    char name[64];              /* its address without the port; "unix" */
} pn_peer;

PN_INTERNAL pn_status pn_listener_open(pn_listener *l, const char *address, pn_err *err);
PN_INTERNAL void pn_listener_close(pn_listener *l);

/* A connection's descriptor, or -1: nobody is waiting; -2: the system has none left (try again later). */
PN_INTERNAL int pn_listener_accept(const pn_listener *l, pn_peer *peer);

/* --- calling others ------------------------------------------------------------------------------- */

typedef struct pn_target {
    char name[160];             /* "http://127.0.0.1:8080", "unix:/path" */
    char host[80];              /* for the Host field: "127.0.0.1:8080"; "localhost" of a socket file */
    unsigned char address[128]; /* a sockaddr, [len] */
    unsigned len;
    int family;
} pn_target;

/* "http://HOST[:PORT]" or "unix:PATH".  The name is looked up here, once; that may take a while.  PN_E_INVALID: it is
 * neither; PN_E_IO: there is no such host. */
PN_INTERNAL pn_status pn_target_find(pn_target *t, const char *url, pn_err *err);

/* A descriptor whose connection is being made (writable when that is over), or -1: refused at once; -2: the system
 * has no descriptor left. */
PN_INTERNAL int pn_target_connect(const pn_target *t);
PN_INTERNAL bool pn_target_connected(int fd);          /* and did it work? */

typedef enum pn_io {
    PN_IO_DONE = 0,             /* some bytes, at least one */
    PN_IO_AGAIN,                /* none now */
    PN_IO_END,                  /* the peer sends no more */
    PN_IO_GONE                  /* broken */
} pn_io;

/* *n: in the room or the bytes given, out those used. */
PN_INTERNAL pn_io pn_net_read(int fd, void *buf, size_t *n);
PN_INTERNAL pn_io pn_net_write(int fd, const void *bytes, size_t *n);
PN_INTERNAL void pn_net_shutdown(int fd);              /* the writing side */
PN_INTERNAL void pn_net_close(int fd);

/* --- waiting ---------------------------------------------------------------------------------- */

enum {
    PN_READY_READ = 1, PN_READY_WRITE = 2,
    PN_READY_END = 4,           /* the peer sends no more, told even if nobody reads (where the system can) */
    PN_READY_GONE = 8           /* the connection is broken; told unasked */
};

typedef struct pn_ready {
    void *who;
    unsigned events;
} pn_ready;

typedef struct pn_poller {
    pn_mem *mem;                /* borrowed */
    int fd;                     /* readable when pn_poller_wait would find something; -1: this system has none */
    struct pn_poller_entry *list;       /* owned, [cap]; poll only */
    size_t n, cap;
} pn_poller;

PN_INTERNAL pn_status pn_poller_open(pn_poller *p, pn_mem *mem, pn_err *err);
PN_INTERNAL void pn_poller_close(pn_poller *p);
PN_INTERNAL bool pn_poller_add(pn_poller *p, int fd, unsigned events, void *who);
PN_INTERNAL void pn_poller_change(pn_poller *p, int fd, unsigned events, void *who);
PN_INTERNAL void pn_poller_remove(pn_poller *p, int fd);       /* before the descriptor is closed */

/* How many are in ready[0..cap); timeout_ms -1: wait for ever. */
PN_INTERNAL size_t pn_poller_wait(pn_poller *p, pn_ready *ready, size_t cap, int timeout_ms);

/* --- waking who waits --------------------------------------------------------------------------- */

typedef struct pn_wake {
    int read_fd, write_fd;
    atomic_bool sent;           /* a byte is under way: another one would tell nothing new */
} pn_wake;

PN_INTERNAL pn_status pn_wake_open(pn_wake *w, pn_err *err);
PN_INTERNAL void pn_wake_close(pn_wake *w);
PN_INTERNAL void pn_wake_send(pn_wake *w);
PN_INTERNAL void pn_wake_clear(pn_wake *w);            /* before looking at what there is to do */

/* --- clocks and chance -------------------------------------------------------------------------- */

PN_INTERNAL uint64_t pn_net_now_ms(void);              /* monotonic */
PN_INTERNAL int64_t pn_net_unix_s(void);
PN_INTERNAL void pn_net_random(void *out, size_t n);   /* from the system; where it has none, from clocks and addresses */

#endif /* PN_NET_H */
