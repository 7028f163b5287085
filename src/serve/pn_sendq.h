/*
 * pn_sendq.h - the bytes a connection still has to send, bounded.
 *
 * Producers (replies, events) reserve room for a whole frame and then put it, so a frame is queued
 * entirely or not at all.  The socket's side peeks and drops.  Between them stand two marks: a queue
 * that has grown to `high` is paused, until it is down to `low` again; a producer looks at that
 * before it makes the next token.
 *
 * The body of a whole reply may be larger than any bound for streams; it is handed over instead of
 * copied, and goes out after the bytes queued before it.
 *
 * Invariants
 *   1. At most `max` bytes are queued beside a body; at most twice as many are allocated.
 *   2. While there is a body nothing can be queued behind it.
 *   3. Each byte is moved a constant number of times, whatever the order of puts and drops.
 *
 * Threads: one owner.
 */
#ifndef PN_SENDQ_H
#define PN_SENDQ_H

#include "base/pn_str.h"

/* Zero means the default. */
typedef struct pn_sendq_limits {
    size_t max;                 /* bytes; 1 MiB */
    size_t high, low;           /* bytes; a quarter and a sixteenth of max */
} pn_sendq_limits;

typedef struct pn_sendq {
    pn_mem *mem;                /* borrowed */
    pn_sendq_limits limits;
    char *data;                 /* owned, [cap]; data[at..end) is queued */
    size_t at, end, cap;
    pn_str body;                /* owned; its bytes from body_at on follow data's */
    size_t body_at;
    bool paused;
} pn_sendq;

PN_INTERNAL void pn_sendq_init(pn_sendq *q, pn_mem *mem, const pn_sendq_limits *limits);
PN_INTERNAL void pn_sendq_fini(pn_sendq *q);           /* leaves an empty, usable queue */

/* Room for n more bytes, of which the last `spare` bytes of the bound are not for this caller:
 * PN_OK; PN_E_BUDGET: not now; PN_E_INVALID: never, n is larger than the bound; PN_E_NOMEM; PN_E_STATE:
 * there is a body. */
PN_INTERNAL pn_status pn_sendq_reserve(pn_sendq *q, size_t n, size_t spare);

/* Within what was reserved last. */
PN_INTERNAL void pn_sendq_put(pn_sendq *q, const void *bytes, size_t n);
PN_INTERNAL void pn_sendq_putz(pn_sendq *q, const char *text);

/* Hand over a body: s is empty afterwards.  There is none yet (assert). */
PN_INTERNAL void pn_sendq_give_body(pn_sendq *q, pn_str *s);

PN_INTERNAL size_t pn_sendq_len(const pn_sendq *q);    /* with the body */
PN_INTERNAL pn_bytes pn_sendq_peek(const pn_sendq *q); /* the next bytes, borrowed until the next call */
PN_INTERNAL void pn_sendq_drop(pn_sendq *q, size_t n); /* at most what peek gave */

/* At high water, and not yet down to low. */
PN_INTERNAL bool pn_sendq_paused(const pn_sendq *q);

#endif /* PN_SENDQ_H */
