/* SPDX-License-Identifier: AGPL-3.0-only */
/* pn_http_reply.c - heads are built on the side, so that the queue takes a reply as a whole. */
#include "serve/pn_http_reply.h"

#include "serve/pn_http.h"

#include <inttypes.h>
#include <stdio.h>

#define REPLY_CHUNK_MAX (sizeof(size_t) * 2 + 4)    /* of a chunk's size line and the CRLF behind it */

PN_INTERNAL const char *pn_http_reason(int status)
{
    switch (status) {
    case 100: return "Continue";
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 301: return "Moved Permanently";
    case 302: return "Found";
    case 304: return "Not Modified";
    case 307: return "Temporary Redirect";
    case 308: return "Permanent Redirect";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 406: return "Not Acceptable";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Content";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    case 507: return "Insufficient Storage";
    case 529: return "Overloaded";
    default: return "Unknown";
    }
}

PN_INTERNAL void pn_http_date(int64_t unix_s, char out[30])
{
    static const char day_name[7][4] = {"Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"};
    static const char month_name[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct",
                                           "Nov", "Dec"};
    static const uint8_t month_days[12] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int64_t s = PN_MIN(PN_MAX(unix_s, (int64_t)0), (int64_t)253402300799);      /* 9999-12-31T23:59:59 */
    unsigned days = (unsigned)(s / 86400), in_day = (unsigned)(s % 86400), year = 1970, month = 0;
    unsigned week_day = days % 7;
    for (;; year++) {
        bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        unsigned n = leap ? 366 : 365;
        if (days >= n) {
            days -= n;
            continue;
        }
        for (; days >= month_days[month] + (unsigned)(leap && month == 1); month++)
            days -= month_days[month] + (unsigned)(leap && month == 1);
        break;
    }
    char text[80];      /* gcc reckons with 10 digits a number */
    snprintf(text, sizeof text, "%s, %02u %s %04u %02u:%02u:%02u GMT", day_name[week_day], days + 1,
             month_name[month], year, in_day / 3600, in_day / 60 % 60, in_day % 60);
    memcpy(out, text, 29);
    out[29] = 0;
}

/* ------------------------------------------------------------------------------------------
 * Heads
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_http_add_n(pn_str *s, const char *name, const char *value, size_t n)
{
    if (!pn_http_is_token(name, strlen(name)) || !pn_http_is_value(value, n)) {
        s->failed = true;
        return;
    }
    pn_str_addz(s, name);
    pn_str_add(s, ": ", 2);
    pn_str_add(s, value, n);
    pn_str_add(s, "\r\n", 2);
}

PN_INTERNAL void pn_http_add(pn_str *s, const char *name, const char *value)
{
    pn_http_add_n(s, name, value, strlen(value));
}

static bool reply_bodiless(const pn_http_reply *r) { return r->head || r->status == 204 || r->status == 304; }

/* Everything up to the fields that say how the body is framed. */
static void reply_begin(pn_str *s, const pn_http_reply *r)
{
    pn_str_addf(s, "HTTP/1.1 %d %s\r\n", r->status, pn_http_reason(r->status));
    if (r->date)
        pn_http_add(s, "Date", r->date);
    if (r->content_type)
        pn_http_add(s, "Content-Type", r->content_type);
    if (r->fields) {
        pn_str_add(s, pn_str_cstr(r->fields), r->fields->len);
        s->failed |= r->fields->failed;
    }
    if (r->close)
        pn_http_add(s, "Connection", "close");
    else if (r->http10)
        pn_http_add(s, "Connection", "keep-alive");
}

/* Queue the head in s, which is freed, with n bytes of body behind it. */
static pn_status reply_queue(pn_sendq *q, pn_str *s, const char *body, size_t n)
{
    pn_str_add(s, "\r\n", 2);
    pn_status st = s->failed || n > SIZE_MAX - s->len ? PN_E_NOMEM : pn_sendq_reserve(q, s->len + n, 0);
    if (st == PN_OK) {
        pn_sendq_put(q, s->data, s->len);
        pn_sendq_put(q, body, n);
    }
    pn_str_fini(s);
    return st;
}

/* RFC 9110 8.6: no Content-Length in 204; after HEAD it is that of GET. */
static void reply_length(pn_str *s, const pn_http_reply *r, size_t n)
{
    if (r->status != 204 && r->status != 304)
        pn_str_addf(s, "Content-Length: %zu\r\n", n);
}

PN_INTERNAL pn_status pn_http_reply_whole(pn_sendq *q, const pn_http_reply *r, const char *body, size_t n)
{
    pn_str s;
    pn_str_init(&s, q->mem, PN_ACCT_MISC);
    reply_begin(&s, r);
    reply_length(&s, r, n);
    return reply_queue(q, &s, body, reply_bodiless(r) ? 0 : n);
}

PN_INTERNAL pn_status pn_http_reply_give(pn_sendq *q, const pn_http_reply *r, pn_str *body)
{
    pn_str s;
    pn_str_init(&s, q->mem, PN_ACCT_MISC);
    reply_begin(&s, r);
    reply_length(&s, r, body->len);
    s.failed |= body->failed;
    pn_status st = reply_queue(q, &s, NULL, 0);
    if (st == PN_OK && !reply_bodiless(r))
        pn_sendq_give_body(q, body);
    else if (st == PN_OK)
        pn_str_fini(body);
    return st;
}

PN_INTERNAL pn_status pn_http_reply_continue(pn_sendq *q)
{
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    pn_status st = pn_sendq_reserve(q, sizeof text - 1, 0);
    if (st == PN_OK)
        pn_sendq_put(q, text, sizeof text - 1);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Streams
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_http_reply_stream(pn_sendq *q, const pn_http_reply *r, pn_framing *framing)
{
    pn_http_reply head = *r;
    pn_str s;
    bool chunks = !r->has_length && !r->http10 && r->status != 204 && r->status != 304;
    *framing = reply_bodiless(r) ? PN_FRAMING_NONE : r->has_length ? PN_FRAMING_LENGTH : chunks ? PN_FRAMING_CHUNKS : PN_FRAMING_CLOSE;
    head.close |= *framing == PN_FRAMING_CLOSE;
    pn_str_init(&s, q->mem, PN_ACCT_MISC);
    reply_begin(&s, &head);
    if (chunks)
        pn_http_add(&s, "Transfer-Encoding", "chunked");
    if (r->has_length && r->status != 204 && r->status != 304)
        pn_str_addf(&s, "Content-Length: %" PRIu64 "\r\n", r->length);
    return reply_queue(q, &s, NULL, 0);
}

PN_INTERNAL pn_status pn_http_stream_put(pn_sendq *q, pn_framing framing, const pn_bytes *parts, size_t n_parts,
                                         size_t spare)
{
    size_t n = 0;
    char size[REPLY_CHUNK_MAX + 1];
    for (size_t i = 0; i < n_parts; i++) {
        if (parts[i].len > SIZE_MAX - REPLY_CHUNK_MAX - n)
            return PN_E_INVALID;
        n += parts[i].len;
    }
    if (!n || framing == PN_FRAMING_NONE)
        return PN_OK;
    bool chunks = framing == PN_FRAMING_CHUNKS;
    snprintf(size, sizeof size, "%zx\r\n", n);
    pn_status st = pn_sendq_reserve(q, n + (chunks ? strlen(size) + 2 : 0), spare);
    if (st)
        return st;
    if (chunks)
        pn_sendq_putz(q, size);
    for (size_t i = 0; i < n_parts; i++)
        pn_sendq_put(q, parts[i].data, parts[i].len);
    if (chunks)
        pn_sendq_put(q, "\r\n", 2);
    return PN_OK;
}

PN_INTERNAL pn_status pn_http_stream_end(pn_sendq *q, pn_framing framing)
{
    if (framing != PN_FRAMING_CHUNKS)
        return PN_OK;
    pn_status st = pn_sendq_reserve(q, 5, 0);
    if (st == PN_OK)
        pn_sendq_put(q, "0\r\n\r\n", 5);
    return st;
}

#undef REPLY_CHUNK_MAX
