/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_http.c - the parser: lines of the head are gathered whole and then read, the framing of a body
 * is read byte by byte.
 *
 *     START -> LINE -> FIELDS -> HEAD -+-> DONE                                        (no body)
 *       ^ empty lines                  +-> FIXED -> DONE                               (Content-Length)
 *                                      +-> CHUNKS -> DATA -> CHUNKS ... -> DONE        (chunked: pn_http_wire.h)
 *
 * Delimiters (colon, CR, the spaces of the request line) are overwritten with NULs and escapes decoded
 * in place, so no text is copied.  The head may move while it grows: fields are offsets, and the few
 * pointers of the request line move along (http_move).
 */
#include "serve/pn_http.h"

#include "base/pn_utf8.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define HTTP_LINE_MAX (16u << 10)
#define HTTP_HEAD_MAX (64u << 10)
#define HTTP_BODY_MAX (32u << 20)
#define HTTP_ANY_MAX (16u << 20)    /* offsets in the head have 32 bits */
#define HTTP_BLANK_MAX 4u           /* old clients send a CRLF after a body; nobody sends many */

enum http_step {
    HTTP_START, HTTP_START_LF, HTTP_LINE, HTTP_FIELDS, HTTP_HEAD, HTTP_FIXED,
    HTTP_CHUNKS, HTTP_DATA,
    HTTP_DONE, HTTP_FAULT
};

/* ------------------------------------------------------------------------------------------
 * Characters
 * ------------------------------------------------------------------------------------------ */

static bool http_alnum(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* tchar, RFC 9110 5.6.2 */
static bool http_tchar(char c) { return http_alnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c)); }

/* VCHAR, obs-text, SP and HTAB, RFC 9110 5.5: no control character gets into a value. */
static bool http_vchar(char c) { return ((uint8_t)c >= 0x20 && c != 0x7F) || c == '\t'; }

/* pchar and '/', RFC 3986 3.3 */
static bool http_path_char(char c) { return http_alnum(c) || (c && strchr("-._~!$&'()*+,;=:@/%", c)); }

/* Browsers leave more unescaped in a query than RFC 3986 has: {}|\^` (WHATWG URL, query set). */
static bool http_query_char(char c) { return c > 0x20 && c < 0x7F && !strchr("\"#<>", c); }

/* uri-host [ ":" port ], RFC 9110 7.2, by its characters */
static bool http_host_char(char c) { return http_alnum(c) || (c && strchr("-._~!$&'()*+;=:%[]", c)); }

static int http_hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static char http_lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

PN_INTERNAL bool pn_http_is(pn_bytes a, const char *b)
{
    if (strlen(b) != a.len)
        return false;
    for (size_t i = 0; i < a.len; i++)
        if (http_lower(a.data[i]) != http_lower(b[i]))
            return false;
    return true;
}

static bool http_all(const char *s, size_t n, bool (*ok)(char c))
{
    for (size_t i = 0; i < n; i++)
        if (!ok(s[i]))
            return false;
    return true;
}

PN_INTERNAL bool pn_http_is_token(const char *s, size_t n) { return n && http_all(s, n, http_tchar); }

PN_INTERNAL bool pn_http_is_value(const char *s, size_t n) { return http_all(s, n, http_vchar); }

static pn_bytes http_trim(const char *s, size_t n)
{
    while (n && (*s == ' ' || *s == '\t'))
        s++, n--;
    while (n && (s[n - 1] == ' ' || s[n - 1] == '\t'))
        n--;
    return (pn_bytes){s, n};
}

PN_INTERNAL bool pn_http_list(pn_bytes list, size_t *at, pn_bytes *element)
{
    if (*at > list.len)
        return false;
    const char *from = list.data + *at, *comma = list.len > *at ? memchr(from, ',', list.len - *at) : NULL;
    size_t n = comma ? (size_t)(comma - from) : list.len - *at;
    *element = http_trim(from, n);
    *at += n + 1;
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Life and faults
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_http_init(pn_http_parser *p, pn_mem *mem, const pn_http_limits *limits)
{
    memset(p, 0, sizeof *p);
    p->mem = mem;
    if (limits)
        p->limits = *limits;
    if (!p->limits.line_max)
        p->limits.line_max = HTTP_LINE_MAX;
    if (!p->limits.head_max)
        p->limits.head_max = HTTP_HEAD_MAX;
    if (!p->limits.body_max)
        p->limits.body_max = HTTP_BODY_MAX;
    p->limits.line_max = PN_MIN(p->limits.line_max, HTTP_ANY_MAX);
    p->limits.head_max = PN_MIN(p->limits.head_max, HTTP_ANY_MAX);
    p->limits.body_max = PN_MIN(p->limits.body_max, (uint64_t)SIZE_MAX / 2);
    pn_str_init(&p->body, mem, PN_ACCT_MISC);
}

PN_INTERNAL void pn_http_fini(pn_http_parser *p)
{
    pn_mem_free(p->mem, PN_ACCT_MISC, p->head, p->head_cap);
    p->head = NULL;
    p->head_len = p->head_cap = 0;
    pn_str_fini(&p->body);
}

PN_INTERNAL void pn_http_next(pn_http_parser *p)
{
    pn_http_limits limits = p->limits;
    pn_http_fini(p);
    pn_http_init(p, p->mem, &limits);
}

PN_INTERNAL bool pn_http_begun(const pn_http_parser *p) { return p->step >= HTTP_LINE; }

static bool http_fault(pn_http_parser *p, int status, const char *fmt, ...) PN_PRINTF(3, 4);

/* Always false: `return http_fault(...)`. */
static bool http_fault(pn_http_parser *p, int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->message, sizeof p->message, fmt, ap);
    va_end(ap);
    p->status = status;
    p->step = HTTP_FAULT;
    return false;
}

static bool http_nomem(pn_http_parser *p)
{
    return http_fault(p, 503, "There is not enough memory for this request right now.");
}

/* "request entity too large": what agents look for to shorten a conversation. */
static void http_too_large(pn_http_parser *p)
{
    http_fault(p, 413, "Request entity too large: the body may have %" PRIu64 " bytes.", p->limits.body_max);
}

/* ------------------------------------------------------------------------------------------
 * The request line
 * ------------------------------------------------------------------------------------------ */

static pn_method http_method(pn_bytes s)
{
    static const struct { char name[8]; pn_method method; } known[] = {
        {"GET", PN_METHOD_GET}, {"HEAD", PN_METHOD_HEAD}, {"POST", PN_METHOD_POST}, {"PUT", PN_METHOD_PUT},
        {"PATCH", PN_METHOD_PATCH}, {"DELETE", PN_METHOD_DELETE}, {"OPTIONS", PN_METHOD_OPTIONS},
    };
    for (size_t i = 0; i < PN_COUNT_OF(known); i++)     /* methods are case-sensitive */
        if (strlen(known[i].name) == s.len && memcmp(known[i].name, s.data, s.len) == 0)
            return known[i].method;
    return PN_METHOD_OTHER;
}

/* %XX in place; the new length, or SIZE_MAX when an escape is broken. */
static size_t http_unescape(char *s, size_t n)
{
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] != '%') {
            s[to++] = s[i];
            continue;
        }
        int hi = i + 1 < n ? http_hex(s[i + 1]) : -1, lo = i + 2 < n ? http_hex(s[i + 2]) : -1;
        if (hi < 0 || lo < 0)
            return SIZE_MAX;
        s[to++] = (char)(hi << 4 | lo);
        i += 2;
    }
    return to;
}

/* A segment "." or "..": clients resolve them, so one that is still there wants to climb. */
static bool http_dots(const char *s, size_t n)
{
    for (size_t i = 0, begin = 0; i <= n; i++)
        if (i == n || s[i] == '/') {
            size_t len = i - begin;
            if ((len == 1 || len == 2) && s[begin] == '.' && s[i - 1] == '.')
                return true;
            begin = i + 1;
        }
    return false;
}

/* The path at s[0..n), decoded in place.  An escaped slash becomes a slash: names of models hold
 * slashes, and some clients escape them. */
static bool http_path(pn_http_parser *p, char *s, size_t n)
{
    if (!http_all(s, n, http_path_char))
        return http_fault(p, 400, "The request target holds a character that must be percent-encoded.");
    n = http_unescape(s, n);
    if (n == SIZE_MAX)
        return http_fault(p, 400, "The request target has a broken percent-encoding.");
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)s[i] < 0x20 || s[i] == 0x7F)
            return http_fault(p, 400, "The path holds a control character.");
    if (pn_utf8_valid(s, n) != n)
        return http_fault(p, 400, "The path is not UTF-8.");
    if (http_dots(s, n))
        return http_fault(p, 400, "The path holds a dot segment.");
    s[n] = 0;
    p->req.path = (pn_bytes){s, n};
    return true;
}

/* "http://host:port" at s: where the path begins; NULL after a fault.  Servers must understand
 * targets meant for proxies, RFC 9112 3.2.2. */
static char *http_authority(pn_http_parser *p, char *s, char *end)
{
    size_t n = (size_t)(end - s), scheme = n > 7 && pn_http_is((pn_bytes){s, 7}, "http://") ? 7
                                         : n > 8 && pn_http_is((pn_bytes){s, 8}, "https://") ? 8 : 0;
    char *host = s + scheme, *stop = host;
    while (stop < end && *stop != '/' && *stop != '?')
        stop++;
    if (!scheme || stop == host || !http_all(host, (size_t)(stop - host), http_host_char)) {
        http_fault(p, 400, "The request target is neither a path nor a URL.");
        return NULL;
    }
    size_t len = (size_t)(stop - host);
    memmove(host - 1, host, len);       /* over a slash of the scheme: makes room for the NUL */
    host[len - 1] = 0;
    p->req.host = (pn_bytes){host - 1, len};
    return stop;
}

/* The target at s[0..n), followed by a space that may be overwritten. */
static bool http_target(pn_http_parser *p, char *s, size_t n)
{
    char *end = s + n, *path = s;
    if (n == 1 && *s == '*' && p->req.method == PN_METHOD_OPTIONS) {
        s[1] = 0;
        p->req.path = (pn_bytes){s, 1};
        return true;
    }
    if ((n == 0 || *s != '/') && !(path = http_authority(p, s, end)))
        return false;
    char *mark = memchr(path, '?', (size_t)(end - path));
    if (mark) {
        if (!http_all(mark + 1, (size_t)(end - mark - 1), http_query_char))
            return http_fault(p, 400, "The query holds a character that must be percent-encoded.");
        p->req.query = (pn_bytes){mark + 1, (size_t)(end - mark - 1)};
        *end = 0;
        end = mark;
    }
    *end = 0;
    if (path == end) {              /* "http://host": its path is "/", in the place of the scheme */
        *s = '/';
        path = s;
        end = s + 1;
    }
    return http_path(p, path, (size_t)(end - path));
}

/* The request line at s[0..n), without its CRLF: method SP target SP version, RFC 9112 3. */
static bool http_request_line(pn_http_parser *p, char *s, size_t n)
{
    char *space = memchr(s, ' ', n), *last = s + n;
    size_t method_len = space ? (size_t)(space - s) : n;
    if (!pn_http_is_token(s, method_len))
        return http_fault(p, 400, "The method is not a token.");
    if (!space)
        return http_fault(p, 400, "The request line has no target.");
    p->req.method_text = (pn_bytes){s, method_len};
    p->req.method = http_method(p->req.method_text);
    *space = 0;
    while (last[-1] != ' ' && last[-1] != 0)
        last--;
    if (last[-1] == 0)
        return http_fault(p, 400, "The request line has no version.");
    size_t version_len = (size_t)(s + n - last);
    if (version_len != 8 || memcmp(last, "HTTP/", 5) != 0 || last[5] < '0' || last[5] > '9' || last[6] != '.' ||
        last[7] < '0' || last[7] > '9')
        return http_fault(p, 400, "The request line does not end in an HTTP version.");
    if (last[5] != '1')
        return http_fault(p, 505, "This server speaks HTTP/1.1.");
    p->req.http10 = last[7] == '0';
    if (method_len == 7 && memcmp(s, "CONNECT", 7) == 0)
        return http_fault(p, 501, "This server is no proxy.");
    return http_target(p, space + 1, (size_t)(last - 1 - (space + 1)));
}

/* ------------------------------------------------------------------------------------------
 * Field lines
 * ------------------------------------------------------------------------------------------ */

static void http_host(pn_http_parser *p, pn_bytes v)
{
    if (p->n_hosts++) {
        http_fault(p, 400, "There are two Host fields.");
        return;
    }
    if (!http_all(v.data, v.len, http_host_char)) {
        http_fault(p, 400, "Host is not a name with an optional port.");
        return;
    }
    if (!p->req.host.data)          /* that of an absolute target counts */
        p->req.host = v;
}

/* What the parser itself has to know of a field. */
static void http_field(pn_http_parser *p, pn_bytes name, pn_bytes v)
{
    pn_bytes e;
    const char *wrong = pn_http_framing_field(&p->framing, name, v);
    if (wrong)
        http_fault(p, 400, "%s", wrong);
    if (pn_http_is(name, "host"))
        http_host(p, v);
    if (pn_http_is(name, "expect"))
        for (size_t at = 0; pn_http_list(v, &at, &e);) {
            p->req.expect_continue |= pn_http_is(e, "100-continue");
            p->expect_other |= e.len && !pn_http_is(e, "100-continue");
        }
}

/* The field line at s[0..n), without its CRLF but with room for a NUL behind it. */
static void http_field_line(pn_http_parser *p, char *s, size_t n)
{
    pn_bytes name, v;
    const char *wrong = pn_http_split_field(s, n, &name, &v);
    if (wrong) {
        http_fault(p, 400, "%s", wrong);
        return;
    }
    if (p->req.n_fields == PN_HTTP_FIELDS_MAX) {
        http_fault(p, 431, "There are more than %d header lines.", PN_HTTP_FIELDS_MAX);
        return;
    }
    s[name.len] = 0;
    p->head[(size_t)(v.data - p->head) + v.len] = 0;
    p->req.fields[p->req.n_fields++] = (pn_http_field){
        (uint32_t)(s - p->head), (uint32_t)name.len, (uint32_t)(v.data - p->head), (uint32_t)v.len,
    };
    http_field(p, name, v);
}

/* The empty line: what the fields mean together.  RFC 9112 6.3 for the length of the body. */
static void http_head_end(pn_http_parser *p)
{
    pn_http_request *r = &p->req;
    const pn_http_framing *f = &p->framing;
    r->keep_alive = !f->ask_close && (!r->http10 || f->ask_keep);
    r->chunked = f->n_codings != 0;
    r->has_length = f->has_length;
    r->content_length = f->content_length;
    if (!r->http10 && !p->n_hosts) {
        http_fault(p, 400, "There is no Host field.");
    } else if (r->chunked && r->has_length) {
        http_fault(p, 400, "There are both Content-Length and Transfer-Encoding.");
    } else if (r->chunked && r->http10) {
        http_fault(p, 400, "HTTP/1.0 has no Transfer-Encoding.");
    } else if (r->chunked && (!f->coding_chunked || f->coding_bad)) {
        http_fault(p, 400, "Transfer-Encoding does not end in chunked, once.");
    } else if (r->chunked && f->coding_other) {
        http_fault(p, 501, "The only Transfer-Encoding this server knows is chunked.");
    } else if (p->expect_other && !r->http10) {
        http_fault(p, 417, "The only expectation this server knows is 100-continue.");
    } else if (r->content_length > p->limits.body_max) {
        http_too_large(p);
    } else {
        r->expect_continue &= !r->http10 && (r->chunked || r->content_length);
        p->step = HTTP_HEAD;
    }
}

/* ------------------------------------------------------------------------------------------
 * Gathering lines
 * ------------------------------------------------------------------------------------------ */

/* The unread part of what the caller gave. */
typedef struct http_in {
    const char *at, *end;
} http_in;

static void http_move(pn_http_parser *p, char *to)
{
    pn_bytes *moved[] = {&p->req.method_text, &p->req.path, &p->req.query, &p->req.host};
    for (size_t i = 0; i < PN_COUNT_OF(moved); i++)
        if (moved[i]->data)
            moved[i]->data = to + (moved[i]->data - p->head);
}

static bool http_head_add(pn_http_parser *p, const char *s, size_t n)
{
    if (n > p->head_cap - p->head_len) {
        size_t cap = PN_MAX(p->head_cap * 2, PN_MAX(p->head_len + n, (size_t)1024));
        cap = PN_MIN(cap, PN_MAX((size_t)p->limits.line_max + p->limits.head_max, p->head_len + n));
        char *to = pn_mem_alloc(p->mem, PN_ACCT_MISC, cap);
        if (!to)
            return http_nomem(p);
        if (p->head)
            memcpy(to, p->head, p->head_len);
        http_move(p, to);
        pn_mem_free(p->mem, PN_ACCT_MISC, p->head, p->head_cap);
        p->head = to;
        p->head_cap = cap;
        p->req.head = to;       /* at any time: who refuses a head half read looks at the fields there are */
    }
    memcpy(p->head + p->head_len, s, n);
    p->head_len += n;
    return true;
}

/* Take the rest of a line that may have `max` bytes with its CRLF.  The line without it: *s, *len.
 * False: it is not complete yet, or there was a fault. */
static bool http_gather(pn_http_parser *p, http_in *in, size_t max, char **s, size_t *len)
{
    size_t have = p->head_len - p->line_at, n = PN_MIN((size_t)(in->end - in->at), max - have);
    const char *lf = n ? memchr(in->at, '\n', n) : NULL;
    if (lf)
        n = (size_t)(lf - in->at) + 1;
    if (n && !http_head_add(p, in->at, n))
        return false;
    in->at += n;
    have += n;
    if (!lf) {
        if (have == max && p->step == HTTP_LINE)
            http_fault(p, 414, "The request line is longer than %" PRIu32 " bytes.", p->limits.line_max);
        else if (have == max)
            http_fault(p, 431, "The headers are longer than %" PRIu32 " bytes.", p->limits.head_max);
        return false;
    }
    *s = p->head + p->line_at;
    if (have < 2 || (*s)[have - 2] != '\r')
        return http_fault(p, 400, "A line of the head does not end in CRLF.");
    *len = have - 2;
    p->line_at = p->head_len;
    return true;
}

/* ------------------------------------------------------------------------------------------
 * The body
 * ------------------------------------------------------------------------------------------ */

/* Room for n more bytes and the NUL.  Doubling, but never beyond what the body can come to. */
static bool http_body_room(pn_http_parser *p, size_t n)
{
    pn_str *b = &p->body;
    uint64_t most = p->req.has_length ? p->req.content_length : p->limits.body_max;
    size_t need = b->len + n + 1, cap = PN_MAX(b->cap, (size_t)1024);
    if (need <= b->cap)
        return true;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    cap = (size_t)PN_MIN((uint64_t)cap, most + 1);
    char *to = pn_mem_resize(p->mem, PN_ACCT_MISC, b->data, b->cap, cap);
    if (!to)
        return http_nomem(p);
    b->data = to;
    b->cap = cap;
    return true;
}

/* Up to p->left bytes of the body. */
static bool http_body_take(pn_http_parser *p, http_in *in)
{
    size_t n = (size_t)PN_MIN((uint64_t)(in->end - in->at), p->left);
    if (n && !http_body_room(p, n))
        return false;
    if (n) {
        pn_str_add(&p->body, in->at, n);
        in->at += n;
        p->left -= n;
    }
    return true;
}

static void http_done(pn_http_parser *p)
{
    p->req.body = (pn_bytes){pn_str_cstr(&p->body), p->body.len};
    p->step = HTTP_DONE;
}

/* One byte of the framing of chunks. */
static void http_chunks_byte(pn_http_parser *p, char c)
{
    const char *wrong;
    bool too_much;
    switch (pn_http_chunks_byte(&p->chunks, c, &wrong, &too_much)) {
    case PN_CHUNKED_FAULT: http_fault(p, too_much ? 431 : 400, "%s", wrong); break;
    case PN_CHUNKED_END: http_done(p); break;
    case PN_CHUNKED_DATA:
        p->left = p->chunks.left;
        if (p->left > p->limits.body_max - p->body.len)
            http_too_large(p);
        else
            p->step = HTTP_DATA;
        break;
    case PN_CHUNKED_MORE: break;
    }
}

/* ------------------------------------------------------------------------------------------
 * Feeding
 * ------------------------------------------------------------------------------------------ */

static void http_begin_body(pn_http_parser *p)
{
    p->left = p->req.content_length;
    if (p->req.chunked)
        p->step = HTTP_CHUNKS;
    else if (p->left)
        p->step = HTTP_FIXED;
    else
        http_done(p);
}

/* Before the request line. */
static void http_start_byte(pn_http_parser *p, http_in *in)
{
    char c = *in->at;
    if (p->step == HTTP_START_LF) {
        in->at++;
        p->step = HTTP_START;
        if (c != '\n')
            http_fault(p, 400, "A line of the head does not end in CRLF.");
        else if (++p->n_blank > HTTP_BLANK_MAX)
            http_fault(p, 400, "There are too many empty lines before the request.");
    } else if (c == '\r') {
        in->at++;
        p->step = HTTP_START_LF;
    } else if (http_tchar(c)) {
        p->step = HTTP_LINE;
    } else {
        http_fault(p, 400, "This is not an HTTP request.");         /* TLS, most likely */
    }
}

/* A line of the head, if it is complete. */
static void http_head_line(pn_http_parser *p, http_in *in)
{
    char *s;
    size_t n;
    if (p->step == HTTP_LINE) {
        if (http_gather(p, in, p->limits.line_max, &s, &n) && http_request_line(p, s, n)) {
            p->fields_at = p->head_len;
            p->step = HTTP_FIELDS;
        }
        return;
    }
    size_t used = p->line_at - p->fields_at;
    if (!http_gather(p, in, p->limits.head_max - used, &s, &n))
        return;
    if (!n)
        http_head_end(p);
    else
        http_field_line(p, s, n);
}

/* A byte, a line or a run of the body. */
static void http_step_on(pn_http_parser *p, http_in *in)
{
    switch (p->step) {
    case HTTP_START: case HTTP_START_LF:
        http_start_byte(p, in);
        break;
    case HTTP_LINE: case HTTP_FIELDS:
        http_head_line(p, in);
        break;
    case HTTP_FIXED:
        if (http_body_take(p, in) && !p->left)
            http_done(p);
        break;
    case HTTP_DATA:
        if (http_body_take(p, in) && !p->left)
            p->step = HTTP_CHUNKS;
        break;
    case HTTP_CHUNKS:
        http_chunks_byte(p, *in->at++);
        break;
    default:
        PN_ASSERT(false);
    }
}

PN_INTERNAL pn_feed pn_http_feed(pn_http_parser *p, const char *data, size_t n, size_t *used)
{
    http_in in = {data, data + n};
    if (p->step == HTTP_HEAD)
        http_begin_body(p);
    while (in.at < in.end && p->step != HTTP_HEAD && p->step != HTTP_DONE && p->step != HTTP_FAULT)
        http_step_on(p, &in);
    *used = (size_t)(in.at - data);
    switch (p->step) {
    case HTTP_HEAD: return PN_FEED_HEAD;
    case HTTP_DONE: return PN_FEED_REQUEST;
    case HTTP_FAULT: return PN_FEED_FAULT;
    default: return PN_FEED_MORE;
    }
}

PN_INTERNAL void pn_http_take_body(pn_http_parser *p, pn_str *out)
{
    *out = p->body;
    pn_str_init(&p->body, p->mem, PN_ACCT_MISC);
    p->req.body = (pn_bytes){"", 0};
}

/* ------------------------------------------------------------------------------------------
 * Looking at a request
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_bytes pn_http_field_name(const pn_http_request *r, uint32_t i)
{
    PN_ASSERT(i < r->n_fields);
    return (pn_bytes){r->head + r->fields[i].name, r->fields[i].name_len};
}

PN_INTERNAL pn_bytes pn_http_field_value(const pn_http_request *r, uint32_t i)
{
    PN_ASSERT(i < r->n_fields);
    return (pn_bytes){r->head + r->fields[i].value, r->fields[i].value_len};
}

PN_INTERNAL uint32_t pn_http_find(const pn_http_request *r, const char *name, uint32_t from)
{
    while (from < r->n_fields && !pn_http_is(pn_http_field_name(r, from), name))
        from++;
    return from;
}

PN_INTERNAL pn_bytes pn_http_get(const pn_http_request *r, const char *name)
{
    uint32_t i = pn_http_find(r, name, 0);
    return i < r->n_fields ? pn_http_field_value(r, i) : (pn_bytes){NULL, 0};
}

PN_INTERNAL bool pn_http_query(const pn_http_request *r, const char *name, pn_str *out)
{
    size_t name_len = strlen(name);
    const char *s = r->query.data, *end = s ? s + r->query.len : NULL;
    for (const char *next; s; s = next) {
        const char *amp = memchr(s, '&', (size_t)(end - s)), *stop = amp ? amp : end;
        next = amp ? amp + 1 : NULL;
        if ((size_t)(stop - s) < name_len || memcmp(s, name, name_len) != 0)
            continue;
        const char *v = s + name_len;
        if (v < stop && *v != '=')
            continue;
        for (v += v < stop; v < stop; v++) {
            int hi = *v == '%' && stop - v > 2 ? http_hex(v[1]) : -1, lo = hi < 0 ? -1 : http_hex(v[2]);
            if (*v == '%' && lo < 0)
                return false;
            pn_str_addc(out, *v == '+' ? ' ' : *v == '%' ? (char)(hi << 4 | lo) : *v);
            v += *v == '%' ? 2 : 0;
        }
        return true;
    }
    return false;
}

#undef HTTP_LINE_MAX
#undef HTTP_HEAD_MAX
#undef HTTP_BODY_MAX
#undef HTTP_ANY_MAX
#undef HTTP_BLANK_MAX
