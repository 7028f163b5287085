/*
 * pn_http_client.h - HTTP/1.1 responses out of bytes as they come: RFC 9112 (syntax, framing), RFC 9110 (meaning).
 *
 * The other side of pn_http.h, for whoever asks a server something and passes the answer on.  The head is
 * gathered; the body is not: it is given out piece by piece, each a slice of the bytes just fed, because an answer
 * may be a stream that lasts for minutes.
 *
 * As strict as pn_http.h, for the same reason: if we read an answer's end elsewhere than its sender does, the next
 * client gets a stranger's answer.  Lines end in CRLF, a field name is a token with its colon right behind it, no
 * folded lines, and the length of the body has exactly one reading.  After a fault no more bytes are taken.
 *
 * Invariants
 *   1. The result (head, the pieces put together, end or fault) does not depend on how the bytes were cut.
 *   2. Memory is bounded by what has arrived: twice the bytes of the head, at most line_max + head_max (1 KiB at the
 *      least; while the buffer grows, its old half too).  The body takes none.
 *   3. Work is linear in the bytes; nothing recurses.
 *   4. After PN_RESPONSE_HEAD the response's texts stay where they are until pn_response_next or pn_response_fini.
 *      Each is followed by a NUL and holds none.
 *   5. Bytes behind an answer are not taken: whoever has some got what nobody asked for.
 *
 * Threads: one parser, one thread.  Pure but for its memory.
 */
#ifndef PN_HTTP_CLIENT_H
#define PN_HTTP_CLIENT_H

#include "serve/pn_http.h"

/* Texts are borrowed from the parser. */
typedef struct pn_http_response {
    int status;                 /* 200..599: interim answers (1xx) are read and dropped */
    bool http10;
    bool keep_alive;            /* another request may follow when this answer has been read to its end */
    bool chunked;
    bool has_length;            /* there was a Content-Length; to HEAD and with 304 it is not the body's */
    bool no_body;               /* to HEAD, 204, 304 */
    bool until_close;           /* the body ends with the connection */
    uint64_t content_length;    /* 0 without one */
    const char *head;           /* what the fields point into */
    uint32_t n_fields;
    pn_http_field fields[PN_HTTP_FIELDS_MAX];       /* in order; [n_fields] */
} pn_http_response;

typedef enum pn_response_fed {
    PN_RESPONSE_MORE = 0,       /* all bytes taken, more are needed */
    PN_RESPONSE_HEAD,           /* once an answer: everything but the body is known */
    PN_RESPONSE_BODY,           /* *piece: the next bytes of the body, at least one */
    PN_RESPONSE_DONE,           /* complete */
    PN_RESPONSE_FAULT           /* see `message` */
} pn_response_fed;

typedef struct pn_response_parser {
    pn_mem *mem;                /* borrowed */
    pn_http_limits limits;      /* body_max does not count */
    pn_http_response r;
    char message[120];          /* after PN_RESPONSE_FAULT: one sentence, never a byte of the server's */
    bool to_head;               /* the question was HEAD: there is no body, whatever the head says */
    bool begun;                 /* a byte of an answer has come */

    /* private */
    int step;                   /* enum client_step */
    char *head;                 /* owned, [head_cap] */
    size_t head_len, head_cap;
    size_t line_at;             /* where the line being read begins in head */
    size_t fields_at;           /* where the field lines begin */
    uint32_t n_interim;
    pn_http_framing framing;
    uint64_t left;              /* bytes of the body or of the chunk still to come */
    pn_http_chunks chunks;
} pn_response_parser;

/* Nothing is allocated before the first byte.  limits NULL: defaults. */
PN_INTERNAL void pn_response_init(pn_response_parser *p, pn_mem *mem, const pn_http_limits *limits);
PN_INTERNAL void pn_response_fini(pn_response_parser *p);

/* Ready for the next answer of the connection; frees the buffer, forgets a fault. */
PN_INTERNAL void pn_response_next(pn_response_parser *p, bool to_head);

/* Take bytes.  *used: how many; less than n only when the result is not PN_RESPONSE_MORE.  After PN_RESPONSE_HEAD and
 * PN_RESPONSE_BODY call again with what is left, even if that is nothing: the answer may be complete then.  After
 * PN_RESPONSE_DONE and PN_RESPONSE_FAULT nothing is taken until pn_response_next. */
PN_INTERNAL pn_response_fed pn_response_feed(pn_response_parser *p, const char *data, size_t n, size_t *used, pn_bytes *piece);

/* The connection has ended: PN_RESPONSE_DONE, or PN_RESPONSE_FAULT when the answer was cut short. */
PN_INTERNAL pn_response_fed pn_response_end(pn_response_parser *p);

/* --- looking at a response -------------------------------------------------------------------- */

PN_INTERNAL pn_bytes pn_response_field_name(const pn_http_response *r, uint32_t i);
PN_INTERNAL pn_bytes pn_response_field_value(const pn_http_response *r, uint32_t i);

/* The first value of a field of this name, in any case; data NULL: none. */
PN_INTERNAL pn_bytes pn_response_get(const pn_http_response *r, const char *name);

#endif /* PN_HTTP_CLIENT_H */
