/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_sendq.c - one buffer with a hole at its front.
 *
 * When the end is reached the live bytes move to the front if the hole is at least as large as they
 * are, else the buffer doubles: either way a byte pays for its own move once.
 */
#include "serve/pn_sendq.h"

#define SENDQ_MAX (1u << 20)
#define SENDQ_FIRST 2048u       /* the first buffer: a reply's head and a short body */

PN_INTERNAL void pn_sendq_init(pn_sendq *q, pn_mem *mem, const pn_sendq_limits *limits)
{
    memset(q, 0, sizeof *q);
    q->mem = mem;
    if (limits)
        q->limits = *limits;
    if (!q->limits.max)
        q->limits.max = SENDQ_MAX;
    q->limits.max = PN_MIN(q->limits.max, SIZE_MAX / 4);
    if (!q->limits.high)
        q->limits.high = q->limits.max / 4;
    if (!q->limits.low)
        q->limits.low = q->limits.max / 16;
    pn_str_init(&q->body, mem, PN_ACCT_MISC);
}

PN_INTERNAL void pn_sendq_fini(pn_sendq *q)
{
    pn_mem_free(q->mem, PN_ACCT_MISC, q->data, q->cap);
    q->data = NULL;
    q->at = q->end = q->cap = q->body_at = 0;
    q->paused = false;
    pn_str_fini(&q->body);
}

PN_INTERNAL pn_status pn_sendq_reserve(pn_sendq *q, size_t n, size_t spare)
{
    size_t len = q->end - q->at, max = q->limits.max - PN_MIN(spare, q->limits.max);
    if (q->body.len)
        return PN_E_STATE;
    if (n > max)
        return PN_E_INVALID;
    if (len > max - n)
        return PN_E_BUDGET;
    if (n <= q->cap - q->end)
        return PN_OK;
    if (q->at >= len && len + n <= q->cap) {
        memmove(q->data, q->data + q->at, len);
    } else {
        size_t cap = PN_MAX(2 * (len + n), SENDQ_FIRST);
        cap = PN_MIN(cap, 2 * q->limits.max);
        char *to = pn_mem_alloc(q->mem, PN_ACCT_MISC, cap);
        if (!to)
            return PN_E_NOMEM;
        if (len)
            memcpy(to, q->data + q->at, len);
        pn_mem_free(q->mem, PN_ACCT_MISC, q->data, q->cap);
        q->data = to;
        q->cap = cap;
    }
    q->at = 0;
    q->end = len;
    return PN_OK;
}

PN_INTERNAL void pn_sendq_put(pn_sendq *q, const void *bytes, size_t n)
{
    PN_ASSERT(n <= q->cap - q->end);
    if (n)
        memcpy(q->data + q->end, bytes, n);
    q->end += n;
    if (q->end - q->at >= q->limits.high)
        q->paused = true;
}

PN_INTERNAL void pn_sendq_putz(pn_sendq *q, const char *text) { pn_sendq_put(q, text, strlen(text)); }

PN_INTERNAL void pn_sendq_give_body(pn_sendq *q, pn_str *s)
{
    PN_ASSERT(!q->body.len);
    pn_str_fini(&q->body);
    q->body = *s;
    q->body_at = 0;
    pn_str_init(s, s->mem, s->account);
}

PN_INTERNAL size_t pn_sendq_len(const pn_sendq *q) { return q->end - q->at + (q->body.len - q->body_at); }

PN_INTERNAL pn_bytes pn_sendq_peek(const pn_sendq *q)
{
    if (q->at < q->end)
        return (pn_bytes){q->data + q->at, q->end - q->at};
    return (pn_bytes){pn_str_cstr(&q->body) + q->body_at, q->body.len - q->body_at};
}

PN_INTERNAL void pn_sendq_drop(pn_sendq *q, size_t n)
{
    if (q->at < q->end) {
        PN_ASSERT(n <= q->end - q->at);
        q->at += n;
        if (q->at == q->end)
            q->at = q->end = 0;
    } else {
        PN_ASSERT(n <= q->body.len - q->body_at);
        q->body_at += n;
        if (q->body_at == q->body.len) {
            pn_str_fini(&q->body);
            q->body_at = 0;
        }
    }
    if (q->end - q->at <= q->limits.low)
        q->paused = false;
}

PN_INTERNAL bool pn_sendq_paused(const pn_sendq *q) { return q->paused; }

#undef SENDQ_MAX
#undef SENDQ_FIRST
