/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_http_client.c - the same two ways of reading as pn_http.c: lines of the head whole, framing byte by byte.
 *
 *     START -> LINE -> FIELDS -+-> START                                        (1xx)
 *                              +-> HEAD -+-> DONE                               (no body)
 *                                        +-> FIXED -> DONE                      (Content-Length)
 *                                        +-> CLOSE -> DONE                      (until the connection ends)
 *                                        +-> CHUNKS -> DATA -> CHUNKS ... -> DONE (chunked)
 */
#include "serve/pn_http_client.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define CLIENT_LINE_MAX (16u << 10)
#define CLIENT_HEAD_MAX (64u << 10)
#define CLIENT_ANY_MAX (16u << 20)      /* offsets in the head have 32 bits */
#define CLIENT_INTERIM_MAX 8u           /* 100, 102, 103; nobody sends many */

enum client_step {
    CLIENT_START, CLIENT_LINE, CLIENT_FIELDS, CLIENT_HEAD, CLIENT_FIXED, CLIENT_CLOSE,
    CLIENT_CHUNKS, CLIENT_DATA,
    CLIENT_DONE, CLIENT_FAULT
};

/* The unread part of what the caller gave. */
typedef struct client_in {
    const char *at, *end;
} client_in;

/* ------------------------------------------------------------------------------------------
 * Life and faults
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_response_init(pn_response_parser *p, pn_mem *mem, const pn_http_limits *limits)
{
    memset(p, 0, sizeof *p);
    p->mem = mem;
    if (limits)
        p->limits = *limits;
    if (!p->limits.line_max)
        p->limits.line_max = CLIENT_LINE_MAX;
    if (!p->limits.head_max)
        p->limits.head_max = CLIENT_HEAD_MAX;
    p->limits.line_max = PN_MIN(p->limits.line_max, CLIENT_ANY_MAX);
    p->limits.head_max = PN_MIN(p->limits.head_max, CLIENT_ANY_MAX);
}

PN_INTERNAL void pn_response_fini(pn_response_parser *p)
{
    pn_mem_free(p->mem, PN_ACCT_MISC, p->head, p->head_cap);
    p->head = NULL;
    p->head_len = p->head_cap = 0;
}

PN_INTERNAL void pn_response_next(pn_response_parser *p, bool to_head)
{
    pn_http_limits limits = p->limits;
    pn_response_fini(p);
    pn_response_init(p, p->mem, &limits);
    p->to_head = to_head;
}

static bool client_fault(pn_response_parser *p, const char *fmt, ...) PN_PRINTF(2, 3);

/* Always false: `return client_fault(...)`. */
static bool client_fault(pn_response_parser *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->message, sizeof p->message, fmt, ap);
    va_end(ap);
    p->step = CLIENT_FAULT;
    return false;
}

/* ------------------------------------------------------------------------------------------
 * The status line
 * ------------------------------------------------------------------------------------------ */

static bool client_digit(char c) { return c >= '0' && c <= '9'; }

/* The line at s[0..n): HTTP-version SP status-code SP [ reason-phrase ], RFC 9112 4.  The second space is left out
 * by some servers when there is no reason; that can be read in one way only. */
static bool client_status_line(pn_response_parser *p, const char *s, size_t n)
{
    if (n < 12 || memcmp(s, "HTTP/", 5) != 0 || !client_digit(s[5]) || s[6] != '.' || !client_digit(s[7]) || s[8] != ' ')
        return client_fault(p, "The status line does not begin with an HTTP version.");
    if (s[5] != '1')
        return client_fault(p, "The server does not speak HTTP/1.1.");
    if (!client_digit(s[9]) || !client_digit(s[10]) || !client_digit(s[11]) || (n > 12 && s[12] != ' '))
        return client_fault(p, "The status is not a number of three digits.");
    if (!pn_http_is_value(s + 12, n - 12))
        return client_fault(p, "The status line holds a control character.");
    p->r.http10 = s[7] == '0';
    p->r.status = (s[9] - '0') * 100 + (s[10] - '0') * 10 + (s[11] - '0');
    if (p->r.status < 100 || p->r.status > 599)
        return client_fault(p, "The status is not in 100 to 599.");
    if (p->r.status == 101)
        return client_fault(p, "The server changes the protocol, which nobody asked for.");
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Field lines
 * ------------------------------------------------------------------------------------------ */

/* The field line at s[0..n), without its CRLF but with room for a NUL behind it. */
static void client_field_line(pn_response_parser *p, char *s, size_t n)
{
    pn_bytes name, v;
    const char *wrong = pn_http_split_field(s, n, &name, &v);
    if (wrong) {
        client_fault(p, "%s", wrong);
        return;
    }
    if (p->r.n_fields == PN_HTTP_FIELDS_MAX) {
        client_fault(p, "There are more than %d header lines.", PN_HTTP_FIELDS_MAX);
        return;
    }
    s[name.len] = 0;
    p->head[(size_t)(v.data - p->head) + v.len] = 0;
    p->r.fields[p->r.n_fields++] = (pn_http_field){
        (uint32_t)(s - p->head), (uint32_t)name.len, (uint32_t)(v.data - p->head), (uint32_t)v.len,
    };
    wrong = pn_http_framing_field(&p->framing, name, v);
    if (wrong || p->framing.content_length == UINT64_MAX)
        client_fault(p, "%s", wrong ? wrong : "Content-Length is larger than any answer.");
}

/* An interim answer has no body; the real one begins behind it. */
static void client_interim(pn_response_parser *p)
{
    const bool to_head = p->to_head;
    const uint32_t n = p->n_interim + 1;
    if (n > CLIENT_INTERIM_MAX) {
        client_fault(p, "There are more than %u interim answers.", CLIENT_INTERIM_MAX);
        return;
    }
    pn_response_next(p, to_head);
    p->n_interim = n;
    p->begun = true;
}

/* The empty line: what the fields mean together.  RFC 9112 6.3 for the length of the body. */
static void client_head_end(pn_response_parser *p)
{
    pn_http_response *r = &p->r;
    const pn_http_framing *f = &p->framing;
    bool never = r->status < 200 || r->status == 204;
    r->head = p->head;
    r->chunked = f->n_codings != 0;
    r->has_length = f->has_length;
    r->content_length = f->content_length;
    if (r->chunked && r->has_length) {
        client_fault(p, "There are both Content-Length and Transfer-Encoding.");
    } else if (r->chunked && r->http10) {
        client_fault(p, "HTTP/1.0 has no Transfer-Encoding.");
    } else if (r->chunked && (!f->coding_chunked || f->coding_bad || f->coding_other)) {
        client_fault(p, "The only Transfer-Encoding that is understood is chunked, once.");
    } else if (never && (r->chunked || r->content_length)) {
        client_fault(p, "An answer that has no body tells a length of it.");
    } else if (r->status < 200) {
        client_interim(p);
    } else {
        r->no_body = p->to_head || never || r->status == 304;
        r->until_close = !r->no_body && !r->chunked && !r->has_length;
        r->keep_alive = !f->ask_close && !r->until_close && (!r->http10 || f->ask_keep);
        p->step = CLIENT_HEAD;
    }
}

/* ------------------------------------------------------------------------------------------
 * Gathering lines
 * ------------------------------------------------------------------------------------------ */

static bool client_head_add(pn_response_parser *p, const char *s, size_t n)
{
    if (n > p->head_cap - p->head_len) {
        size_t cap = PN_MAX(p->head_cap * 2, PN_MAX(p->head_len + n, (size_t)1024));
        cap = PN_MIN(cap, PN_MAX((size_t)p->limits.line_max + p->limits.head_max, p->head_len + n));
        char *to = pn_mem_alloc(p->mem, PN_ACCT_MISC, cap);
        if (!to)
            return client_fault(p, "There is not enough memory for the head of the answer.");
        if (p->head)
            memcpy(to, p->head, p->head_len);
        pn_mem_free(p->mem, PN_ACCT_MISC, p->head, p->head_cap);
        p->head = to;
        p->head_cap = cap;
    }
    memcpy(p->head + p->head_len, s, n);
    p->head_len += n;
    return true;
}

/* Take the rest of a line that may have `max` bytes with its CRLF.  The line without it: *s, *len.
 * False: it is not complete yet, or there was a fault. */
static bool client_gather(pn_response_parser *p, client_in *in, size_t max, char **s, size_t *len)
{
    size_t have = p->head_len - p->line_at, n = PN_MIN((size_t)(in->end - in->at), max - have);
    const char *lf = n ? memchr(in->at, '\n', n) : NULL;
    if (lf)
        n = (size_t)(lf - in->at) + 1;
    if (n && !client_head_add(p, in->at, n))
        return false;
    in->at += n;
    have += n;
    if (!lf) {
        if (have == max)
            client_fault(p, "The head of the answer is longer than %" PRIu32 " bytes.", p->step == CLIENT_LINE ? p->limits.line_max : p->limits.head_max);
        return false;
    }
    *s = p->head + p->line_at;
    if (have < 2 || (*s)[have - 2] != '\r')
        return client_fault(p, "A line of the head does not end in CRLF.");
    *len = have - 2;
    p->line_at = p->head_len;
    return true;
}

/* A line of the head, if it is complete. */
static void client_head_line(pn_response_parser *p, client_in *in)
{
    char *s;
    size_t n;
    if (p->step == CLIENT_LINE) {
        if (client_gather(p, in, p->limits.line_max, &s, &n) && client_status_line(p, s, n)) {
            p->fields_at = p->head_len;
            p->step = CLIENT_FIELDS;
        }
        return;
    }
    size_t used = p->line_at - p->fields_at;
    if (!client_gather(p, in, p->limits.head_max - used, &s, &n))
        return;
    if (!n)
        client_head_end(p);
    else
        client_field_line(p, s, n);
}

/* ------------------------------------------------------------------------------------------
 * The body
 * ------------------------------------------------------------------------------------------ */

/* One byte of the framing of chunks. */
static void client_chunks_byte(pn_response_parser *p, char c)
{
    const char *wrong;
    bool too_much;
    switch (pn_http_chunks_byte(&p->chunks, c, &wrong, &too_much)) {
    case PN_CHUNKED_FAULT: client_fault(p, "%s", wrong); break;
    case PN_CHUNKED_END: p->step = CLIENT_DONE; break;
    case PN_CHUNKED_DATA:
        p->left = p->chunks.left;
        p->step = CLIENT_DATA;
        break;
    case PN_CHUNKED_MORE: break;
    }
}

static void client_begin_body(pn_response_parser *p)
{
    const pn_http_response *r = &p->r;
    p->left = r->content_length;
    if (r->no_body || (r->has_length && !p->left))
        p->step = CLIENT_DONE;
    else if (r->chunked)
        p->step = CLIENT_CHUNKS;
    else
        p->step = r->until_close ? CLIENT_CLOSE : CLIENT_FIXED;
}

/* What there is of the body, or of a chunk. */
static pn_bytes client_take(pn_response_parser *p, client_in *in)
{
    size_t n = (size_t)(in->end - in->at);
    if (p->step != CLIENT_CLOSE) {
        n = (size_t)PN_MIN((uint64_t)n, p->left);
        p->left -= n;
        if (!p->left)
            p->step = p->step == CLIENT_FIXED ? CLIENT_DONE : CLIENT_CHUNKS;
    }
    pn_bytes piece = {in->at, n};
    in->at += n;
    return piece;
}

/* ------------------------------------------------------------------------------------------
 * Feeding
 * ------------------------------------------------------------------------------------------ */

/* A line of the head, or a byte of the framing. */
static void client_step_on(pn_response_parser *p, client_in *in)
{
    switch (p->step) {
    case CLIENT_START:
        p->begun = true;
        p->step = CLIENT_LINE;
        break;
    case CLIENT_LINE: case CLIENT_FIELDS:
        client_head_line(p, in);
        break;
    case CLIENT_CHUNKS:
        client_chunks_byte(p, *in->at++);
        break;
    default:
        PN_ASSERT(false);
    }
}

static bool client_stops(int step) { return step == CLIENT_HEAD || step == CLIENT_DONE || step == CLIENT_FAULT; }

static bool client_in_body(int step) { return step == CLIENT_FIXED || step == CLIENT_CLOSE || step == CLIENT_DATA; }

PN_INTERNAL pn_response_fed pn_response_feed(pn_response_parser *p, const char *data, size_t n, size_t *used, pn_bytes *piece)
{
    client_in in = {data, data + n};
    *piece = (pn_bytes){NULL, 0};
    if (p->step == CLIENT_HEAD)
        client_begin_body(p);
    while (in.at < in.end && !client_stops(p->step) && !piece->len) {
        if (client_in_body(p->step))
            *piece = client_take(p, &in);
        else
            client_step_on(p, &in);
    }
    *used = (size_t)(in.at - data);
    if (piece->len)
        return PN_RESPONSE_BODY;
    switch (p->step) {
    case CLIENT_HEAD: return PN_RESPONSE_HEAD;
    case CLIENT_DONE: return PN_RESPONSE_DONE;
    case CLIENT_FAULT: return PN_RESPONSE_FAULT;
    default: return PN_RESPONSE_MORE;
    }
}

PN_INTERNAL pn_response_fed pn_response_end(pn_response_parser *p)
{
    if (p->step == CLIENT_HEAD)
        client_begin_body(p);
    if (p->step == CLIENT_CLOSE)
        p->step = CLIENT_DONE;
    if (p->step != CLIENT_DONE && p->step != CLIENT_FAULT)
        client_fault(p, p->begun ? "The connection ended in the middle of the answer." : "The connection ended without an answer.");
    return p->step == CLIENT_DONE ? PN_RESPONSE_DONE : PN_RESPONSE_FAULT;
}

/* ------------------------------------------------------------------------------------------
 * Looking at a response
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_bytes pn_response_field_name(const pn_http_response *r, uint32_t i)
{
    PN_ASSERT(i < r->n_fields);
    return (pn_bytes){r->head + r->fields[i].name, r->fields[i].name_len};
}

PN_INTERNAL pn_bytes pn_response_field_value(const pn_http_response *r, uint32_t i)
{
    PN_ASSERT(i < r->n_fields);
    return (pn_bytes){r->head + r->fields[i].value, r->fields[i].value_len};
}

PN_INTERNAL pn_bytes pn_response_get(const pn_http_response *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_fields; i++)
        if (pn_http_is(pn_response_field_name(r, i), name))
            return pn_response_field_value(r, i);
    return (pn_bytes){NULL, 0};
}

#undef CLIENT_LINE_MAX
#undef CLIENT_HEAD_MAX
#undef CLIENT_ANY_MAX
#undef CLIENT_INTERIM_MAX
