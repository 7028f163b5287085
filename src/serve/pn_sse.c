/* SPDX-License-Identifier: AGPL-3.0-only */
/* pn_sse.c - frames are joined from their parts straight into the queue. */
#include "serve/pn_sse.h"

PN_INTERNAL pn_status pn_sse_begin(pn_sse *s, pn_sendq *q, const pn_http_reply *r)
{
    pn_http_reply head = *r;
    pn_str fields;
    *s = (pn_sse){.q = q, .ended = true};
    pn_str_init(&fields, q->mem, PN_ACCT_MISC);
    pn_http_add(&fields, "Cache-Control", "no-cache");
    pn_http_add(&fields, "X-Accel-Buffering", "no");
    if (r->fields) {
        pn_str_add(&fields, pn_str_cstr(r->fields), r->fields->len);
        fields.failed |= r->fields->failed;
    }
    head.status = 200;
    head.content_type = "text/event-stream; charset=utf-8";
    head.fields = &fields;
    pn_status st = pn_http_reply_stream(q, &head, &s->framing);
    s->ended = st != PN_OK;
    pn_str_fini(&fields);
    return st;
}

/* What would end the line, or the event, early.  CR alone ends a line too. */
static bool sse_one_line(const char *s, size_t n)
{
    return !n || (!memchr(s, '\n', n) && !memchr(s, '\r', n) && !memchr(s, 0, n));
}

static pn_status sse_put(pn_sse *s, const char *event, const char *data, size_t n, size_t spare)
{
    size_t event_len = event ? strlen(event) : 0;
    pn_bytes parts[] = {
        {"event: ", event ? 7 : 0}, {event, event_len}, {"\n", event ? 1 : 0}, {"data: ", 6}, {data, n}, {"\n\n", 2},
    };
    if (s->ended)
        return PN_E_STATE;
    if (!sse_one_line(data, n) || !sse_one_line(event, event_len))
        return PN_E_INVALID;
    return pn_http_stream_put(s->q, s->framing, parts, PN_COUNT_OF(parts), spare);
}

PN_INTERNAL pn_status pn_sse_event(pn_sse *s, const char *event, const char *data, size_t n)
{
    return sse_put(s, event, data, n, PN_SSE_SPARE);
}

PN_INTERNAL pn_status pn_sse_last_event(pn_sse *s, const char *event, const char *data, size_t n)
{
    return sse_put(s, event, data, n, 64);      /* for [DONE] and the last chunk */
}

PN_INTERNAL pn_status pn_sse_comment(pn_sse *s, const char *text)
{
    const pn_bytes parts[] = {{": ", 2}, {text, strlen(text)}, {"\n\n", 2}};
    return s->ended ? PN_E_STATE : pn_http_stream_put(s->q, s->framing, parts, PN_COUNT_OF(parts), PN_SSE_SPARE);
}

PN_INTERNAL pn_status pn_sse_ping(pn_sse *s) { return s->ended || !pn_sendq_len(s->q) ? pn_sse_comment(s, "ping") : PN_OK; }

PN_INTERNAL pn_status pn_sse_end(pn_sse *s, bool done)
{
    if (s->ended)
        return PN_E_STATE;
    /* Room for both, so that [DONE] is not queued twice when the end has to be tried again. */
    pn_status st = pn_sendq_reserve(s->q, 64, 0);
    if (st == PN_OK && done)
        st = sse_put(s, NULL, "[DONE]", 6, 0);
    if (st == PN_OK)
        st = pn_http_stream_end(s->q, s->framing);
    s->ended = st == PN_OK;
    return st;
}

PN_INTERNAL bool pn_sse_paused(const pn_sse *s) { return pn_sendq_paused(s->q); }
