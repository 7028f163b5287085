/*
 * pn_http.h - HTTP/1.1 requests out of bytes as they come: RFC 9112 (syntax, framing), RFC 9110 (meaning).
 *
 * The parser is fed whatever the socket gave, cut anywhere, and stops twice: after the head, so that
 * a request can be refused before its body is sent, and after the body.  What follows a request is
 * left to the caller for the next one.
 *
 * Strict where a proxy in front might read the same bytes another way (request smuggling): lines end
 * in CRLF, a field name is a token with its colon right behind it, no folded lines, and the length of
 * the body has exactly one reading.  Everything else is refused and ends the connection; a parser
 * that has failed takes no more bytes, because nobody knows where the next request would begin.
 *
 * Invariants
 *   1. The result does not depend on how the bytes were cut.
 *   2. Memory is bounded by what has arrived, never by what was announced: twice the bytes of the
 *      head, at most line_max + head_max, and twice those of the body, at most body_max + 1 (1 KiB
 *      each at the least; while a buffer grows, its old half too).
 *   3. Work is linear in the bytes; nothing recurses.
 *   4. After PN_FEED_HEAD the request's texts stay where they are until pn_http_next or
 *      pn_http_fini.  Each is followed by a NUL and holds none.
 *
 * Threads: one parser, one thread.  Pure but for its memory.
 */
#ifndef PN_HTTP_H
#define PN_HTTP_H

#include "base/pn_str.h"
#include "serve/pn_http_wire.h"

/* Zero means the default. */
typedef struct pn_http_limits {
    uint32_t line_max;          /* request line with its CRLF, bytes; 16 KiB, at most 16 MiB */
    uint32_t head_max;          /* all field lines together, bytes; 64 KiB, at most 16 MiB */
    uint64_t body_max;          /* 32 MiB */
} pn_http_limits;

#define PN_HTTP_FIELDS_MAX 100  /* field lines of one head */

typedef enum pn_method {
    PN_METHOD_OTHER = 0,        /* a token, but none of these: 405 or 501 */
    PN_METHOD_GET,
    PN_METHOD_HEAD,             /* as GET; the reply has no body */
    PN_METHOD_POST,
    PN_METHOD_PUT,
    PN_METHOD_PATCH,
    PN_METHOD_DELETE,
    PN_METHOD_OPTIONS
} pn_method;

typedef struct pn_http_field {
    uint32_t name, name_len, value, value_len;      /* offsets into the head */
} pn_http_field;

/* Texts are borrowed from the parser. */
typedef struct pn_http_request {
    pn_method method;
    bool http10;                /* HTTP/1.0; everything else counts as 1.1 */
    bool keep_alive;            /* what the client wants of the connection */
    bool chunked;               /* the length of the body is not known in advance */
    bool has_length;            /* there was a Content-Length */
    bool expect_continue;       /* the client waits for 100 before it sends the body */
    uint64_t content_length;    /* 0 without one */
    pn_bytes method_text;
    pn_bytes path;              /* percent-decoded UTF-8, begins with '/', no control characters, no
                                   "." or ".." segment; "*" for OPTIONS of the whole server */
    pn_bytes query;             /* as sent, without '?'; data NULL: there was no '?' */
    pn_bytes host;              /* of an absolute target, else of Host; data NULL: HTTP/1.0 without */
    pn_bytes body;              /* complete after PN_FEED_REQUEST; never NULL then */
    const char *head;           /* what the fields point into */
    uint32_t n_fields;
    pn_http_field fields[PN_HTTP_FIELDS_MAX];       /* in order; [n_fields] */
} pn_http_request;

typedef enum pn_feed {
    PN_FEED_MORE = 0,           /* all bytes taken, more are needed */
    PN_FEED_HEAD,               /* once a request: everything but the body is known */
    PN_FEED_REQUEST,            /* complete */
    PN_FEED_FAULT               /* answer `status`, then close */
} pn_feed;

typedef struct pn_http_parser {
    pn_mem *mem;                /* borrowed */
    pn_http_limits limits;
    pn_http_request req;
    int status;                 /* after PN_FEED_FAULT: 400 413 414 417 431 501 503 505 */
    char message[120];          /* for humans, one sentence, never a byte of the client's */

    /* private */
    int step;                   /* enum http_step */
    char *head;                 /* owned, [head_cap] */
    size_t head_len, head_cap;
    size_t line_at;             /* where the line being read begins in head */
    size_t fields_at;           /* where the field lines begin */
    uint32_t n_blank;           /* empty lines before the request line */
    uint32_t n_hosts;
    pn_http_framing framing;
    bool expect_other;
    pn_str body;                /* owned */
    uint64_t left;              /* bytes of the body or of the chunk still to come */
    pn_http_chunks chunks;
} pn_http_parser;

/* Nothing is allocated before the first byte.  limits NULL: defaults. */
PN_INTERNAL void pn_http_init(pn_http_parser *p, pn_mem *mem, const pn_http_limits *limits);
PN_INTERNAL void pn_http_fini(pn_http_parser *p);

/* Ready for the next request of the connection; frees all buffers, forgets a fault. */
PN_INTERNAL void pn_http_next(pn_http_parser *p);

/* Take bytes.  *used: how many; less than n only when the result is not PN_FEED_MORE.  After
 * PN_FEED_HEAD call again with what is left, even if that is nothing: a request without a body is
 * complete then.  After PN_FEED_REQUEST and PN_FEED_FAULT nothing is taken until pn_http_next. */
PN_INTERNAL pn_feed pn_http_feed(pn_http_parser *p, const char *data, size_t n, size_t *used);

/* Has a byte of the request come?  Empty lines before it do not count. */
PN_INTERNAL bool pn_http_begun(const pn_http_parser *p);

/* Move the complete body out, into an uninitialised string the caller frees; req.body is empty
 * afterwards. */
PN_INTERNAL void pn_http_take_body(pn_http_parser *p, pn_str *out);

/* --- looking at a request --------------------------------------------------------------------- */

PN_INTERNAL pn_bytes pn_http_field_name(const pn_http_request *r, uint32_t i);
PN_INTERNAL pn_bytes pn_http_field_value(const pn_http_request *r, uint32_t i);

/* The index of the first field of this name at or after `from`, in any case; n_fields: none. */
PN_INTERNAL uint32_t pn_http_find(const pn_http_request *r, const char *name, uint32_t from);

/* The first value; data NULL: no such field. */
PN_INTERNAL pn_bytes pn_http_get(const pn_http_request *r, const char *name);

/* The value of a parameter of the query, decoded ('+' is a space) and appended to out.  False: it is
 * not there, or its escapes are wrong.  Names are compared as sent. */
PN_INTERNAL bool pn_http_query(const pn_http_request *r, const char *name, pn_str *out);

/* --- ASCII, for the other files of the server ------------------------------------------------- */

PN_INTERNAL bool pn_http_is(pn_bytes a, const char *b);        /* equal but for case */
PN_INTERNAL bool pn_http_is_token(const char *s, size_t n);    /* RFC 9110 5.6.2; not empty */
PN_INTERNAL bool pn_http_is_value(const char *s, size_t n);    /* fits into a field value */

/* The next element of a comma-separated list, trimmed; false at the end.  Start with *at = 0. */
PN_INTERNAL bool pn_http_list(pn_bytes list, size_t *at, pn_bytes *element);

#endif /* PN_HTTP_H */
