/*
 * pn_upstream.h - a connection to a server we ask: one request out, its answer in, and again.
 *
 * As pn_conn.h on the other side: no sockets and no clock inside, the caller reads, writes, polls and tells the time.
 *
 *     CONNECTING --connected--> IDLE --begin--> BUSY --answer read to its end--> IDLE ... CLOSED
 *          `---begin---> (waits) BUSY
 *
 * A request may be begun while the connection is still being made.  Its bytes are borrowed until the answer's end or
 * pn_upstream_fini: nothing is copied, and the caller can send the same bytes elsewhere when this fails.
 *
 * Invariants
 *   1. One request at a time; after PN_RESPONSE_DONE the next may begin if pn_upstream_reusable says so.
 *   2. A server that answers before it has read the whole request is listened to; so is one that stops reading.
 *      Such a connection is not used again, nor is one that brought a byte nobody asked for.
 *   3. An idle connection holds no buffers after pn_upstream_rest.
 *
 * Threads: one owner.  Pure but for memory.
 */
#ifndef PN_UPSTREAM_H
#define PN_UPSTREAM_H

#include "serve/pn_http_client.h"

/* Zero means the default. */
typedef struct pn_upstream_params {
    pn_http_limits http;
    uint32_t connect_ms;        /* until the connection stands; 5,000 */
    uint32_t answer_ms;         /* without a byte in either direction; 600,000 */
    uint32_t idle_ms;           /* between requests; 15,000: before the server gives up on us, so that no request
                                   crosses its farewell */
} pn_upstream_params;

typedef enum pn_upstream_state { PN_UPSTREAM_CONNECTING = 0, PN_UPSTREAM_IDLE, PN_UPSTREAM_BUSY, PN_UPSTREAM_CLOSED } pn_upstream_state;

typedef struct pn_upstream {
    pn_upstream_params params;
    pn_upstream_state state;
    pn_response_parser answer;  /* the one being read; its texts live until the next request begins */
    pn_bytes part[2];           /* head and body of the request, borrowed */
    size_t sent;                /* bytes of both */
    bool asked;                 /* there is a request, perhaps waiting for the connection */
    bool deaf;                  /* the server reads no more */
    bool spoiled;               /* nothing may follow on this connection */
    bool done;                  /* PN_RESPONSE_DONE was told */
    bool timed_out;
    uint64_t since;             /* ms: of the state, of the last byte while BUSY */
    uint64_t n_answers;         /* complete ones: 0 tells a fresh connection from a used one */
} pn_upstream;

PN_INTERNAL void pn_upstream_init(pn_upstream *u, pn_mem *mem, const pn_upstream_params *params, uint64_t now_ms);
PN_INTERNAL void pn_upstream_fini(pn_upstream *u);

PN_INTERNAL void pn_upstream_connected(pn_upstream *u, uint64_t now_ms);

/* Ask.  Only while IDLE or CONNECTING (assert).  to_head: the method is HEAD. */
PN_INTERNAL void pn_upstream_begin(pn_upstream *u, pn_bytes head, pn_bytes body, bool to_head, uint64_t now_ms);

/* The next bytes to write; len 0: none. */
PN_INTERNAL pn_bytes pn_upstream_output(const pn_upstream *u);
PN_INTERNAL void pn_upstream_sent(pn_upstream *u, size_t n, uint64_t now_ms);
PN_INTERNAL void pn_upstream_deaf(pn_upstream *u);             /* writing failed: listen on */

/* Has all of the request gone out?  Then its bytes are the caller's again. */
PN_INTERNAL bool pn_upstream_release(pn_upstream *u);

/* Take bytes from data[*at..n), moving *at on, until there is something to tell (pn_response_fed); call again after
 * PN_RESPONSE_HEAD and PN_RESPONSE_BODY, even with nothing left.  Bytes for which nobody asked spoil the connection
 * and are dropped. */
PN_INTERNAL pn_response_fed pn_upstream_input(pn_upstream *u, const char *data, size_t n, size_t *at, pn_bytes *piece, uint64_t now_ms);

/* Reading gave the end, or an error (`broken`; then a body that ends with the connection is cut short, too). */
PN_INTERNAL pn_response_fed pn_upstream_end(pn_upstream *u, bool broken);

/* Free the answer's texts: the connection is going to wait for the next request. */
PN_INTERNAL void pn_upstream_rest(pn_upstream *u);

/* May another request follow? */
PN_INTERNAL bool pn_upstream_reusable(const pn_upstream *u);

/* When the time is up: pn_upstream_overdue then; UINT64_MAX: never. */
PN_INTERNAL uint64_t pn_upstream_deadline(const pn_upstream *u);
PN_INTERNAL void pn_upstream_overdue(pn_upstream *u);          /* says why in answer.message; CLOSED */

#endif /* PN_UPSTREAM_H */
