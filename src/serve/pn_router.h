/*
 * pn_router.h - one port in front of several `pantheon serve` processes.
 *
 * Requests are passed on whole, answers as they come; which process gets one is pn_affinity.h's to say.  One thread,
 * one poller, nothing blocks but waiting in it.
 *
 * Promises
 *   1. A request goes to a backend at most once, and to another one only while no byte of an answer has been passed
 *      on: when the connection failed, or the answer was 503 or 429 and somebody else may have room.
 *   2. A client that reads slowly slows down its own backend request and nothing else; per request the router holds
 *      the request's body until it has been sent and an answer begun, and at most some 100 KiB of the answer.
 *   3. A client that leaves is told to its backend, by the end of the connection.
 *   4. What fails midway looks like it: a stream of events ends with an error event, any other answer with the
 *      connection, never with what looks like an end.
 *   5. /admin is not passed on.
 *
 * Threads: one owner; pn_router_stop from any thread and from signal handlers.
 */
#ifndef PN_ROUTER_H
#define PN_ROUTER_H

#include "base/pn_err.h"
#include "base/pn_mem.h"
#include "serve/pn_affinity.h"

/* Zero means the default. */
typedef struct pn_router_params {
    const char *const *backends;        /* [n_backends], "http://HOST:PORT" or "unix:PATH"; for the call of pn_router_new */
    size_t n_backends;                  /* 1 to PN_AFFINITY_SERVERS */
    pn_affinity_mode affinity;
    const char *backend_key;            /* an API key for the router's own questions; NULL: none */
    uint64_t max_body;                  /* bytes; 32 MiB */
    uint32_t max_connections;           /* of clients; 4,096 */
    uint32_t idle_ms;                   /* of clients; 60,000 */
    uint32_t drain_ms;                  /* 30,000 */
    uint32_t health_ms;                 /* between two checks of a backend; 2,000 */
    uint32_t connect_ms;                /* 5,000; also the most a check may take */
    uint32_t answer_ms;                 /* silence of a backend at work; 600,000 */
    const char *build;                  /* for /metrics; borrowed */
    void (*log)(void *user, pn_log_level level, const char *text);
    void *log_user;
    bool log_json;
} pn_router_params;

typedef struct pn_router pn_router;

/* PN_E_INVALID: a malformed or repeated backend; PN_E_IO: one that has no address. */
PN_INTERNAL pn_status pn_router_new(pn_mem *mem, const pn_router_params *params, pn_router **out, pn_err *err);
PN_INTERNAL void pn_router_free(pn_router *r);                 /* NULL is a no-op */

/* As pn_server_listen. */
PN_INTERNAL pn_status pn_router_listen(pn_router *r, const char *address, char *bound, size_t cap, pn_err *err);

/* Wait, at most timeout_ms (-1: for ever), and do what there is to do. */
PN_INTERNAL pn_status pn_router_poll(pn_router *r, int timeout_ms, pn_err *err);

/* Has every backend been looked at once? */
PN_INTERNAL bool pn_router_settled(const pn_router *r);

/* The first call lets what is under way finish, the second does not. */
PN_INTERNAL void pn_router_stop(pn_router *r);
PN_INTERNAL bool pn_router_running(const pn_router *r);

#endif /* PN_ROUTER_H */
