/*
 * pn_router_int.h - the router's own structs, for its files only.
 *
 *     pn_router.c         sockets, connections of clients, the loop; what is public
 *     pn_router_ask.c     a request: choosing, passing on, trying again, failing
 *     pn_router_up.c      connections to backends: making, pooling, reading and writing
 *     pn_router_health.c  who is up, and which models they have
 *     pn_router_pages.c   what the router answers itself
 *
 * Who owns what.  A client's connection owns its ask; an ask borrows a connection to a backend (up) while it is at
 * work, a check likewise; otherwise that one is in its backend's pool.  Structs of closed sockets stay until the end
 * of the turn (dead), because the poller may have told of them already.
 */
#ifndef PN_ROUTER_INT_H
#define PN_ROUTER_INT_H

#include "base/pn_json.h"
#include "serve/pn_conn_net.h"
#include "serve/pn_net.h"
#include "serve/pn_oai_error.h"
#include "serve/pn_router.h"
#include "serve/pn_upstream.h"

#include <stdatomic.h>

typedef struct router_conn router_conn;
typedef struct router_ask router_ask;
typedef struct router_up router_up;
typedef struct router_backend router_backend;

enum {
    ROUTER_LISTENERS = 8, ROUTER_READY = 64,
    ROUTER_POOL = 32,                   /* idle connections kept to a backend */
    ROUTER_FAILS = 2,                   /* failures in a row that make a backend down */
    ROUTER_STATUSES = 500               /* 100..599 */
};

/* What the poller knows; first member of what it is. */
typedef enum router_kind { ROUTER_WAKE = 0, ROUTER_LISTENER, ROUTER_CONN, ROUTER_UP } router_kind;

typedef struct router_listener {
    router_kind kind;
    pn_listener l;
} router_listener;

struct router_conn {
    router_kind kind;
    pn_router *router;
    pn_conn c;
    int fd;
    unsigned events;            /* what the poller waits for */
    pn_peer peer;
    router_conn *prev, *next;   /* all of them */
    router_ask *ask;            /* owned; at work for it, or NULL */
    bool dead;
    char request_id[65];
    uint64_t began;             /* ms */
    int status;                 /* of the reply */
    const router_backend *backend;      /* who answered; NULL: we did */
    uint32_t n_tries;
};

/* ------------------------------------------------------------------------------------------
 * Requests
 * ------------------------------------------------------------------------------------------ */

struct router_ask {
    router_conn *conn;
    router_up *up;              /* borrowed; NULL: between two tries */
    pn_str head, body;          /* owned: what is sent; of the body nothing once it is not needed any more */
    pn_str model;               /* owned: its name; empty: none */
    pn_affinity_keys keys;
    pn_affinity_by by;
    uint64_t tried;             /* backends */
    bool to_head;               /* the method is HEAD */
    bool anthropic;             /* whose errors the client understands */
    bool merge;                 /* the list of models: one backend says whether the client may see it, we say what is in it */
    bool passed;                /* the head of an answer has been passed on: no way back */
    bool events;                /* the answer is a stream of events: it is passed on frame by frame */
    pn_str tail;                /* owned: a frame that is not complete */
    size_t line_len;            /* of the frame's line being read */
    bool split;                 /* a frame was too large to wait for: its begin has been passed on */
};

/* ------------------------------------------------------------------------------------------
 * Backends
 * ------------------------------------------------------------------------------------------ */

struct router_up {
    router_kind kind;
    router_backend *backend;
    pn_upstream u;
    int fd;
    unsigned events;
    router_up *prev, *next;     /* all of them */
    router_up *pooled;          /* the next in the pool */
    router_ask *ask;            /* whom it works for; NULL: a check, or nobody */
    bool check;
    bool parked;                /* broken, with bytes to be read when the client has taken those before: not in the poller */
    bool dead;
};

typedef enum router_state { ROUTER_UNKNOWN = 0, ROUTER_ANSWERS, ROUTER_DRAINING, ROUTER_DOWN } router_state;

struct router_backend {
    pn_router *router;
    uint32_t index;
    pn_target target;
    router_state state;
    uint32_t n_fails;           /* in a row */
    bool settled;               /* it has been looked at once */
    router_up *pool;            /* idle connections, the one used last first */
    uint32_t n_pool;
    router_up *check;           /* under way; NULL: none */
    bool check_models;          /* it asks for the models, not whether the backend is ready */
    pn_str check_head, check_body;      /* owned */
    uint64_t check_at, check_until;     /* ms: when the next begins, when this one is given up */
    bool has_models;
    pn_json_doc models;         /* its answer to /v1/models */
    uint64_t n_retries, n_failures;
    uint64_t n_status[ROUTER_STATUSES]; /* answers passed on; 499: the client had gone */
};

struct pn_router {
    pn_mem *mem;                /* borrowed */
    pn_router_params params;    /* backends not valid any more */
    pn_conn_params conn_params;
    pn_upstream_params up_params;
    router_listener listener[ROUTER_LISTENERS];
    uint32_t n_listeners;
    bool listening;             /* the poller waits for new connections */
    pn_poller poller;
    router_kind wake_kind;      /* what the poller knows the wake by */
    pn_wake wake;
    router_conn *conns;
    uint32_t n_conns, n_asks;
    router_up *ups;
    uint32_t n_parked, n_dead;  /* dead: connections of both kinds whose structs are to be freed */
    router_backend *backends;   /* owned, [n_backends] */
    uint32_t n_backends;
    pn_affinity_server servers[PN_AFFINITY_SERVERS];
    pn_affinity affinity;
    uint64_t seed;
    char *backend_key;          /* owned, or NULL */
    uint64_t n_by[3];           /* choices, by pn_affinity_by */
    uint64_t n_none;            /* requests for which there was no backend */
    atomic_uint stops;          /* calls of pn_router_stop */
    bool draining, running, killing;
    uint64_t now;               /* ms, of this turn */
    uint64_t sweep_at;          /* when the first time is up */
    uint64_t drain_until;
};

/* --- pn_router.c -------------------------------------------------------------------------------- */

PN_INTERNAL void router_logf(pn_router *r, pn_log_level level, const char *fmt, ...) PN_PRINTF(3, 4);
PN_INTERNAL void router_log_request(router_conn *c);           /* answered, or given up */
PN_INTERNAL void router_turn(router_conn *c);                  /* work on it until nothing is left to do now */

PN_INTERNAL void router_reply(router_conn *c, int status, const char *type, pn_str *body);     /* body handed over */
PN_INTERNAL void router_error(router_conn *c, const pn_oai_error *e);

/* --- pn_router_ask.c ---------------------------------------------------------------------------- */

PN_INTERNAL void router_ask_new(router_conn *c, bool merge);
PN_INTERNAL void router_ask_abort(router_ask *a);              /* the client has gone */
PN_INTERNAL void router_ask_fed(router_ask *a, pn_response_fed fed, pn_bytes piece);   /* its up has something to tell */
PN_INTERNAL void router_ask_lost(router_ask *a);               /* its up has no connection: never had, broken, or too slow */
PN_INTERNAL void router_ask_stop(router_ask *a);               /* the time to drain is over */

/* Hop-by-hop: not for the other side, RFC 9110 7.6.1.  `connection`: the value of a Connection field; may be NULL. */
PN_INTERNAL bool router_hop_field(pn_bytes name);
PN_INTERNAL bool router_named(pn_bytes list, pn_bytes name);

/* --- pn_router_up.c ----------------------------------------------------------------------------- */

/* A connection, pooled or new: NULL: refused, or (*full) there is no descriptor or memory left. */
PN_INTERNAL router_up *router_up_get(router_backend *b, bool *full);
PN_INTERNAL void router_up_begin(router_up *u, pn_bytes head, pn_bytes body, bool to_head);
PN_INTERNAL void router_up_put(router_up *u);                  /* into the pool, or closed */
PN_INTERNAL void router_up_close(router_up *u);
PN_INTERNAL void router_up_ready(router_up *u, unsigned events);
PN_INTERNAL void router_up_flow(router_up *u);                 /* its client has taken bytes */
PN_INTERNAL void router_up_parked(pn_router *r);               /* look at those that wait outside the poller */
PN_INTERNAL void router_up_sweep(router_up *u);                /* is its time up? */
PN_INTERNAL uint64_t router_up_deadline(const router_up *u);

/* --- pn_router_health.c ------------------------------------------------------------------------- */

PN_INTERNAL void router_health_due(pn_router *r);              /* begin the checks that are due */
PN_INTERNAL void router_health_fed(router_backend *b, pn_response_fed fed, pn_bytes piece);
PN_INTERNAL void router_health_lost(router_backend *b);        /* the check's connection */
PN_INTERNAL void router_health_failed(router_backend *b, const char *why);     /* a request could not be passed to it */
PN_INTERNAL const char *router_state_name(router_state s);

/* Those that may get a request for this model (len 0: for any), as a set. */
PN_INTERNAL uint64_t router_health_eligible(const pn_router *r, pn_bytes model);

/* --- pn_router_pages.c -------------------------------------------------------------------------- */

/* The head is known: refuse it, or go on. */
PN_INTERNAL void router_head(router_conn *c);

/* Answer it, if it is ours to answer. */
PN_INTERNAL bool router_own(router_conn *c);
PN_INTERNAL bool router_is_list(const pn_http_request *q);     /* GET /v1/models */
PN_INTERNAL void router_models(const pn_router *r, pn_str *out);

#endif /* PN_ROUTER_INT_H */
