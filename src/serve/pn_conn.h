/*
 * pn_conn.h - one connection: requests in, replies out, and every way it can end.
 *
 * No sockets and no clock inside: the caller reads, writes, polls and tells the time, so all of it can
 * be tested byte by byte and millisecond by millisecond.
 *
 *     IDLE --byte--> READING --request--> HANDLING --whole reply--> WRITING --sent--> IDLE
 *       |               |  fault, early reply |                        |  ^            or
 *       |               +---------------------+-----begin--> STREAMING-+--+           LINGERING
 *       +-- idle too long, end of input --> CLOSED <-- peer gone, too slow -- any      then CLOSED
 *
 * The owner's loop, for each connection with something to do:
 *
 *     read:   n = read(fd, buf, min(sizeof buf, pn_conn_room(c)));   pn_conn_input / _eof / _gone
 *     events: while ((e = pn_conn_next(c, now)) != PN_CONN_NOTHING) handle it
 *     write:  pn_conn_output, write, pn_conn_sent; then events again: what was sent may allow more
 *     poll:   for pn_conn_wants, until pn_conn_deadline
 *
 * Invariants
 *   1. Requests are answered in their order, one at a time; what a client sends meanwhile waits in
 *      `pending`, bounded, and beyond that in the kernel (which slows the client down).
 *   2. PN_CONN_REQUEST and PN_CONN_FAULT are answered by exactly one reply; PN_CONN_HEAD may be; if
 *      there is a body, which has not been read then, that ends the connection.
 *   3. If the client goes away between PN_CONN_REQUEST (or FAULT) and the moment the reply has been
 *      handed over, there is exactly one PN_CONN_ABORT; after it nothing is sent.
 *   4. An idle connection holds no buffers: sizeof(pn_conn) is all.
 *
 * Threads: one owner.  Pure but for memory.
 */
#ifndef PN_CONN_H
#define PN_CONN_H

#include "serve/pn_http.h"
#include "serve/pn_sse.h"

/* Zero means the default. */
typedef struct pn_conn_params {
    pn_http_limits http;
    pn_sendq_limits queue;
    uint32_t pending_max;       /* bytes; 16 KiB: also the most one read may bring */
    uint32_t idle_ms;           /* between requests; 60,000 */
    uint32_t head_ms;           /* from the first byte of a request to the end of its head; 15,000 */
    uint32_t body_ms;           /* without a byte of the body, and see body_rate; 30,000 */
    uint32_t body_rate;         /* bytes a second a body must come to, after body_ms; 1,024 */
    uint32_t write_ms;          /* without a byte taken by the client; 60,000 */
    uint32_t ping_ms;           /* silence of a stream before a comment is sent into it; 15,000 */
    uint32_t linger_ms;         /* reading on after a reply that cut the request short; 2,000 */
    uint32_t linger_max;        /* bytes read and dropped meanwhile; 64 MiB */
    bool half_close;            /* the end of input while a request is handled is no abort: answer, then
                                   close.  By default it is one: nearly always the client has gone,
                                   and computing for nobody costs others */
} pn_conn_params;

typedef enum pn_conn_event {
    PN_CONN_NOTHING = 0,
    PN_CONN_HEAD,               /* the head of c->http.req is known: reply now to refuse it before its body, or
                                   just go on (a client that waits for 100 Continue then gets it) */
    PN_CONN_REQUEST,            /* it is complete: reply, now or later */
    PN_CONN_FAULT,              /* c->http.status and .message: reply with them; 408: the client was too slow */
    PN_CONN_ABORT,              /* the client is gone: stop working on its request */
    PN_CONN_SHUTDOWN,           /* shut the writing side down, keep reading */
    PN_CONN_CLOSE               /* close the socket; pn_conn_fini */
} pn_conn_event;

typedef enum pn_conn_state {
    PN_CONN_IDLE = 0, PN_CONN_READING, PN_CONN_HANDLING, PN_CONN_STREAMING, PN_CONN_WRITING, PN_CONN_LINGERING,
    PN_CONN_CLOSED
} pn_conn_state;

typedef struct pn_conn {
    pn_mem *mem;                /* borrowed */
    pn_conn_params params;
    pn_conn_state state;
    pn_http_parser http;        /* the request being read or answered; its texts live until the reply
                                   has been sent, or pn_conn_fini */
    pn_sendq out;
    pn_sse sse;                 /* while STREAMING */
    uint64_t n_requests;        /* complete ones */

    /* private */
    char *pending;              /* owned, [pending_cap]; pending[pending_at..pending_len) is not read yet */
    size_t pending_at, pending_len, pending_cap;
    pn_feed fed;                /* what the parser said last, not told yet when it is not MORE */
    bool head_told, head_passed;        /* told: PN_CONN_HEAD went out; passed: it was not refused */
    bool cut;                   /* the request was not read to its end: nothing can follow */
    bool last;                  /* close after this reply */
    bool quiet;                 /* nothing of ours goes into the stream */
    bool draining, eof, gone, abort_due;
    bool waiting;               /* for the client to take bytes, since write_at */
    uint64_t now;               /* as told last; all times in ms */
    uint64_t since;             /* the state's begin; while READING the first byte's time */
    uint64_t body_at, body_last;        /* the end of the head; the last byte of the body */
    uint64_t write_at;
    uint64_t body_seen, lingered;       /* bytes */
} pn_conn;

/* params NULL: defaults.  now_ms: any monotonic clock. */
PN_INTERNAL void pn_conn_init(pn_conn *c, pn_mem *mem, const pn_conn_params *params, uint64_t now_ms);
PN_INTERNAL void pn_conn_fini(pn_conn *c);

/* --- what the socket says --------------------------------------------------------------------- */

/* How many bytes pn_conn_input takes now; 0: do not read. */
PN_INTERNAL size_t pn_conn_room(const pn_conn *c);

PN_INTERNAL void pn_conn_input(pn_conn *c, const char *data, size_t n, uint64_t now_ms);
PN_INTERNAL void pn_conn_eof(pn_conn *c);              /* read gave 0 */
PN_INTERNAL void pn_conn_gone(pn_conn *c);             /* reset, hang-up, write error */

/* The next bytes to write, borrowed until the next call; len 0: none. */
PN_INTERNAL pn_bytes pn_conn_output(const pn_conn *c);
PN_INTERNAL void pn_conn_sent(pn_conn *c, size_t n, uint64_t now_ms);

/* A full `pending` stops reading; then only POLLRDHUP (where there is one) and errors tell that the
 * client has left. */
enum { PN_CONN_WANTS_READ = 1, PN_CONN_WANTS_WRITE = 2 };
PN_INTERNAL unsigned pn_conn_wants(const pn_conn *c);

/* Call pn_conn_next at this time at the latest; UINT64_MAX: nothing is due. */
PN_INTERNAL uint64_t pn_conn_deadline(const pn_conn *c);

/* --- what there is to do ---------------------------------------------------------------------- */

PN_INTERNAL pn_conn_event pn_conn_next(pn_conn *c, uint64_t now_ms);

/* Replies: after HEAD, REQUEST or FAULT.  `head`, `http10` and `close` of r are added to by what the request
 * and the connection demand.  Status as of pn_http_reply_*; on failure nothing was sent and another
 * reply may be tried (a short one, or pn_conn_abort). */
PN_INTERNAL pn_status pn_conn_reply(pn_conn *c, const pn_http_reply *r, const char *body, size_t n);
PN_INTERNAL pn_status pn_conn_reply_give(pn_conn *c, const pn_http_reply *r, pn_str *body);

/* Events follow, by pn_sse_* on c->sse, until pn_sse_end. */
PN_INTERNAL pn_status pn_conn_stream(pn_conn *c, const pn_http_reply *r);

/* A reply whose body is passed on from elsewhere: of r->length bytes, if r->has_length, or as it comes.  Pieces follow
 * by pn_conn_put, then pn_sse_end(&c->sse, false); no comments are sent into its silence. */
PN_INTERNAL pn_status pn_conn_relay(pn_conn *c, const pn_http_reply *r);
PN_INTERNAL pn_status pn_conn_put(pn_conn *c, const char *data, size_t n);     /* a piece; PN_E_STATE: the stream has ended */

/* Give the connection up: a stream that cannot go on must not look complete.  No PN_CONN_ABORT follows. */
PN_INTERNAL void pn_conn_abort(pn_conn *c);

/* The server is going down: finish what is under way, take no further request. */
PN_INTERNAL void pn_conn_drain(pn_conn *c);

#endif /* PN_CONN_H */
