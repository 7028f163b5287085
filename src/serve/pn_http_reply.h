/*
 * pn_http_reply.h - responses: status line, fields, and a body that is whole or a stream.
 *
 * The caller says what is answered (pn_http_reply); how the body is framed follows from status,
 * method and version and is decided here, once: Content-Length for a whole body, chunks for a stream,
 * the end of the connection for a stream to an HTTP/1.0 client, nothing after HEAD, 204 and 304.
 *
 * Each call queues all of its bytes or none.  Pure but for memory: the date is the caller's.
 */
#ifndef PN_HTTP_REPLY_H
#define PN_HTTP_REPLY_H

#include "serve/pn_sendq.h"

typedef struct pn_http_reply {
    int status;                 /* 200..599 */
    bool head;                  /* to HEAD: the fields of GET, without the body */
    bool http10;                /* the client does not know chunks */
    bool close;                 /* the connection ends after this reply */
    const char *content_type;   /* NULL: none; borrowed like the others, for the call */
    const char *date;           /* pn_http_date's text; NULL: no Date */
    const pn_str *fields;       /* more field lines, made by pn_http_add; NULL: none */
    bool has_length;            /* of a stream: `length` bytes are going to come, exactly */
    uint64_t length;
} pn_http_reply;

/* "name: value" CRLF onto s.  A name that is no token or a value with a control character sets
 * s->failed instead: nobody smuggles a field into a reply. */
PN_INTERNAL void pn_http_add(pn_str *s, const char *name, const char *value);
PN_INTERNAL void pn_http_add_n(pn_str *s, const char *name, const char *value, size_t n);

/* A whole reply, its body copied (it counts against the queue's bound) or handed over (it does not;
 * on failure it stays the caller's).  Status as of pn_sendq_reserve; PN_E_NOMEM also when `fields`
 * has failed. */
PN_INTERNAL pn_status pn_http_reply_whole(pn_sendq *q, const pn_http_reply *r, const char *body, size_t n);
PN_INTERNAL pn_status pn_http_reply_give(pn_sendq *q, const pn_http_reply *r, pn_str *body);

typedef enum pn_framing {
    PN_FRAMING_NONE = 0,        /* no body at all: what is put is dropped */
    PN_FRAMING_CHUNKS,
    PN_FRAMING_LENGTH,          /* as many bytes as the head said: whoever puts them counts */
    PN_FRAMING_CLOSE            /* until the end of the connection; r->close must hold afterwards */
} pn_framing;

/* The head of a reply whose body comes in pieces, and how to frame them. */
PN_INTERNAL pn_status pn_http_reply_stream(pn_sendq *q, const pn_http_reply *r, pn_framing *framing);

/* A piece of the body; of n == 0 nothing is sent (an empty chunk would end the stream).  The parts
 * are put one after another as one chunk.  `spare`: pn_sendq_reserve. */
PN_INTERNAL pn_status pn_http_stream_put(pn_sendq *q, pn_framing framing, const pn_bytes *parts, size_t n_parts,
                                         size_t spare);
PN_INTERNAL pn_status pn_http_stream_end(pn_sendq *q, pn_framing framing);

/* The interim "100 Continue". */
PN_INTERNAL pn_status pn_http_reply_continue(pn_sendq *q);

/* "Not Found"; "Unknown" for what we never send.  Static. */
PN_INTERNAL const char *pn_http_reason(int status);

/* Unix seconds as "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110 5.6.7); before 1970 or after 9999 the
 * nearest of these. */
PN_INTERNAL void pn_http_date(int64_t unix_s, char out[30]);

#endif /* PN_HTTP_REPLY_H */
