/*
 * pn_sse.h - server-sent events (WHATWG HTML 9.2) onto a connection's queue.
 *
 * A frame is an optional "event: name" line (Anthropic's API has one, OpenAI's none), one "data: "
 * line and an empty line, sent as one chunk.  A frame is queued entirely or not at all.
 *
 * Back-pressure: while pn_sse_paused says so the producer should stop; if it goes on until the
 * queue's bound, PN_E_BUDGET says that the frame was not taken and may be offered again.  The last PN_SSE_SPARE
 * bytes of the bound are kept for what ends a stream, so a slow reader still learns why.
 *
 * A stream ends once: after pn_sse_end nothing more is taken (PN_E_STATE).  Threads: one owner, the queue's.
 */
#ifndef PN_SSE_H
#define PN_SSE_H

#include "serve/pn_http_reply.h"

#define PN_SSE_SPARE 4096u      /* bytes: an error event, [DONE] and the last chunk */

typedef struct pn_sse {
    pn_sendq *q;                /* borrowed */
    pn_framing framing;
    bool ended;
} pn_sse;

/* Queue the head of the reply and begin.  r's content_type and status are set here: text/event-stream,
 * 200; with Cache-Control: no-cache and X-Accel-Buffering: no (proxies must not hold events back). */
PN_INTERNAL pn_status pn_sse_begin(pn_sse *s, pn_sendq *q, const pn_http_reply *r);

/* One frame.  event NULL: no such line.  PN_E_INVALID: data or event hold a line break or a NUL, or the
 * frame can never fit; PN_E_BUDGET: the queue is full; PN_E_NOMEM. */
PN_INTERNAL pn_status pn_sse_event(pn_sse *s, const char *event, const char *data, size_t n);

/* The same with the spare room: what tells of an error just before the end. */
PN_INTERNAL pn_status pn_sse_last_event(pn_sse *s, const char *event, const char *data, size_t n);

/* ": text" and an empty line: keeps proxies and clients from giving up while nothing is to be said.
 * Dropped when the queue is not empty (then bytes are under way anyway). */
PN_INTERNAL pn_status pn_sse_ping(pn_sse *s);

/* ": text", which clients ignore; of one line.  PN_E_BUDGET: the queue is full. */
PN_INTERNAL pn_status pn_sse_comment(pn_sse *s, const char *text);

/* "data: [DONE]", then the end of the body; with done == false only the end. */
PN_INTERNAL pn_status pn_sse_end(pn_sse *s, bool done);

PN_INTERNAL bool pn_sse_paused(const pn_sse *s);

#endif /* PN_SSE_H */
