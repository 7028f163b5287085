/*
 * pn_http_wire.h - what requests and responses have in common on the wire: what their fields say about the length of
 * the body and the connection, and the framing of chunks.
 *
 * Two readers of one message must not come to two lengths, so there is one reading of each: RFC 9112 6.3 and 7.1.
 *
 * Threads: none.  Pure.
 */
#ifndef PN_HTTP_WIRE_H
#define PN_HTTP_WIRE_H

#include "base/pn_base.h"

/* --- fields ------------------------------------------------------------------------------------- */

/* What the fields of a head come to; the codings of all lines make one list. */
typedef struct pn_http_framing {
    bool has_length;
    uint64_t content_length;    /* UINT64_MAX: larger than that */
    uint32_t n_codings;
    bool coding_chunked;        /* the last transfer coding named so far */
    bool coding_other, coding_bad;      /* bad: an empty element, a parameter, chunked not last or twice */
    bool ask_close, ask_keep;   /* options of Connection */
} pn_http_framing;

/* Look at a field.  NULL, or what is wrong with it (a sentence; static). */
PN_INTERNAL const char *pn_http_framing_field(pn_http_framing *f, pn_bytes name, pn_bytes value);

/* A field line without its CRLF into name and value.  NULL, or what is wrong with it. */
PN_INTERNAL const char *pn_http_split_field(const char *s, size_t n, pn_bytes *name, pn_bytes *value);

/* --- chunks ------------------------------------------------------------------------------------- */

/* Zeroed: before the first chunk. */
typedef struct pn_http_chunks {
    int step;                   /* enum chunk_step */
    uint64_t left;              /* bytes of data still to come, which are the caller's to count */
    uint32_t n_digits;
    uint32_t extra, trailer;    /* bytes of extensions and of trailer lines so far */
} pn_http_chunks;

typedef enum pn_http_chunked {
    PN_CHUNKED_MORE = 0,
    PN_CHUNKED_DATA,            /* `left` bytes of data are next, at least one; then the framing goes on */
    PN_CHUNKED_END,
    PN_CHUNKED_FAULT            /* *message: what is wrong (static), *too_much: it is too large rather than wrong */
} pn_http_chunked;

/* One byte of the framing. */
PN_INTERNAL pn_http_chunked pn_http_chunks_byte(pn_http_chunks *k, char c, const char **message, bool *too_much);

#endif /* PN_HTTP_WIRE_H */
