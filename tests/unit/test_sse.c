/* SPDX-License-Identifier: AGPL-3.0-only */
/* Events are whole or absent, a slow reader is seen, and a queue stays within its bound. */
#include "pn_test.h"

#include "serve/pn_sse.h"

static pn_test_mem mem;

static const char *sent(pn_sendq *q)
{
    static char text[65536];
    size_t n = 0;
    for (pn_bytes b = pn_sendq_peek(q); b.len; b = pn_sendq_peek(q)) {
        memcpy(text + n, b.data, b.len);
        n += b.len;
        pn_sendq_drop(q, b.len);
    }
    text[n] = 0;
    return text;
}

static void says(pn_sse *s, pn_status st, const char *want)
{
    const char *got = sent(s->q);
    PN_CHECK(st == PN_OK && strcmp(got, want) == 0, "%d\n%s\nnot\n%s", (int)st, got, want);
}

static void a_stream_of_events_is_framed(void)
{
    pn_sendq q;
    pn_sse s;
    pn_sendq_init(&q, &mem.mem, NULL);
    says(&s, pn_sse_begin(&s, &q, &(pn_http_reply){.status = 500, .content_type = "x", .date = "D"}),
         "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
         "X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n");
    says(&s, pn_sse_event(&s, NULL, "{\"a\":1}", 7), "f\r\ndata: {\"a\":1}\n\n\r\n");
    says(&s, pn_sse_event(&s, "ping", "{}", 2), "16\r\nevent: ping\ndata: {}\n\n\r\n");
    says(&s, pn_sse_event(&s, NULL, "", 0), "8\r\ndata: \n\n\r\n");
    says(&s, pn_sse_ping(&s), "8\r\n: ping\n\n\r\n");
    PN_CHECK(pn_sse_event(&s, NULL, "x", 1) == PN_OK && pn_sse_ping(&s) == PN_OK);
    says(&s, PN_OK, "9\r\ndata: x\n\n\r\n");                /* no ping behind bytes that wait */
    says(&s, pn_sse_end(&s, true), "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
    PN_CHECK(pn_sse_event(&s, NULL, "x", 1) == PN_E_STATE && pn_sse_end(&s, true) == PN_E_STATE);
    PN_CHECK(pn_sse_ping(&s) == PN_E_STATE && pn_sendq_len(&q) == 0);
    PN_CHECK(pn_sse_begin(&s, &q, &(pn_http_reply){.http10 = true}) == PN_OK);
    PN_CHECK(s.framing == PN_FRAMING_CLOSE && strstr(sent(&q), "Connection: close\r\n"));
    says(&s, pn_sse_event(&s, NULL, "x", 1), "data: x\n\n");
    says(&s, pn_sse_end(&s, false), "");
    pn_sendq_fini(&q);
    PN_CHECK(mem.outstanding == 0);
}

static void data_stays_on_its_line(void)
{
    static const struct { const char *event, *data; size_t n; } bad[] = {
        {NULL, "a\nb", 3}, {NULL, "a\r", 2}, {NULL, "a\0b", 3}, {"e\nx", "a", 1}, {"\r", "a", 1},
    };
    pn_sendq q;
    pn_sse s;
    pn_sendq_init(&q, &mem.mem, NULL);
    PN_CHECK(pn_sse_begin(&s, &q, &(pn_http_reply){0}) == PN_OK);
    sent(&q);
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++)
        PN_CHECK(pn_sse_event(&s, bad[i].event, bad[i].data, bad[i].n) == PN_E_INVALID && pn_sendq_len(&q) == 0);
    pn_sendq_fini(&q);
}

static void a_slow_reader_pauses_the_producer(void)
{
    const pn_sendq_limits limits = {.max = 16384, .high = 8192, .low = 1024};
    static char data[16384];        /* frames take the first 1,000; one is larger than the bound */
    pn_sendq q;
    pn_sse s;
    size_t n = 0;
    memset(data, 'x', sizeof data);
    pn_sendq_init(&q, &mem.mem, &limits);
    PN_CHECK(pn_sse_begin(&s, &q, &(pn_http_reply){0}) == PN_OK);
    sent(&q);
    for (; !pn_sse_paused(&s) && n < 100; n++)
        PN_CHECK(pn_sse_event(&s, NULL, data, 1000) == PN_OK);
    PN_CHECK(pn_sendq_len(&q) >= 8192 && pn_sendq_len(&q) < 8192 + 1100 && n == 9);
    /* A producer that does not listen meets the bound, and no frame is cut by it. */
    pn_status st;
    while ((st = pn_sse_event(&s, NULL, data, 1000)) == PN_OK)
        n++;
    size_t len = pn_sendq_len(&q);
    PN_CHECK(st == PN_E_BUDGET && len <= 16384 - PN_SSE_SPARE && mem.bytes <= 2 * 16384);
    PN_CHECK(pn_sse_event(&s, NULL, data, 1000) == PN_E_BUDGET && pn_sendq_len(&q) == len);
    while (pn_sse_paused(&s) && pn_sendq_len(&q)) {
        PN_CHECK(pn_sendq_len(&q) > 1024);
        pn_sendq_drop(&q, 100);
    }
    PN_CHECK(pn_sendq_len(&q) <= 1024 && pn_sendq_len(&q) > 900);
    /* What was queued is whole frames. */
    while (pn_sse_event(&s, NULL, data, 1000) == PN_OK)
        ;
    PN_CHECK(pn_sse_event(&s, NULL, data, sizeof data) == PN_E_INVALID);     /* never */
    PN_CHECK(pn_sse_last_event(&s, "error", data, 1000) == PN_OK && pn_sse_end(&s, true) == PN_OK);
    PN_CHECK(pn_sendq_len(&q) <= 16384);
    const char *text = sent(&q), *end = strstr(text, "0\r\n\r\n");
    PN_CHECK(end && !end[5] && strstr(text, "event: error\ndata: xxx") && strstr(text, "\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0"));
    pn_sendq_fini(&q);
    PN_CHECK(mem.outstanding == 0);
}

/* Random puts and drops against a plain copy: order, bound, marks, and the work of moving. */
static void the_queue_keeps_every_byte_in_order(void)
{
    const pn_sendq_limits limits = {.max = 300, .high = 200, .low = 50};
    uint64_t seed = 7;
    uint8_t in = 0, out = 0;
    size_t len = 0;
    bool paused = false;
    pn_sendq q;
    pn_sendq_init(&q, &mem.mem, &limits);
    for (int i = 0; i < 20000; i++) {
        size_t n = (size_t)(pn_test_rand(&seed) % 90);
        if (pn_test_rand(&seed) % 2) {
            pn_status st = pn_sendq_reserve(&q, n, 10);
            PN_CHECK(st == (len + n <= 290 ? PN_OK : PN_E_BUDGET));
            for (size_t k = 0; !st && k < n; k++, in++)
                pn_sendq_put(&q, &in, 1);
            len += st ? 0 : n;
        } else {
            pn_bytes b = pn_sendq_peek(&q);
            PN_CHECK(b.len == len);
            n = PN_MIN(n, b.len);
            for (size_t k = 0; k < n; k++)
                PN_CHECK((uint8_t)b.data[k] == out++);
            pn_sendq_drop(&q, n);
            len -= n;
        }
        paused = len >= 200 || (paused && len > 50);
        PN_CHECK(pn_sendq_len(&q) == len && pn_sendq_paused(&q) == paused && mem.bytes <= 2048);
    }
    PN_CHECK(pn_sendq_reserve(&q, 291, 10) == PN_E_INVALID && pn_sendq_reserve(&q, 1, 1000) == PN_E_INVALID);
    pn_sendq_fini(&q);
    PN_CHECK(mem.outstanding == 0 && !pn_sendq_paused(&q));
}

static void out_of_memory_leaves_the_stream_usable(void)
{
    int n_failed = 0;
    for (long fail_at = 1; fail_at < 20; fail_at++) {
        pn_test_mem m;
        pn_sendq q;
        pn_sse s;
        char data[3000];
        memset(data, 'x', sizeof data);
        pn_test_mem_init(&m, fail_at);
        pn_sendq_init(&q, &m.mem, NULL);
        pn_status st = pn_sse_begin(&s, &q, &(pn_http_reply){0});
        if (st) {
            PN_CHECK(st == PN_E_NOMEM && s.ended && pn_sendq_len(&q) == 0);
            n_failed++;
        } else {
            size_t had = pn_sendq_len(&q);
            st = pn_sse_event(&s, NULL, data, sizeof data);
            if (st) {
                PN_CHECK(st == PN_E_NOMEM && pn_sendq_len(&q) == had);
                st = pn_sse_event(&s, NULL, data, sizeof data);
                n_failed++;
            }
            PN_CHECK(st == PN_OK && pn_sse_end(&s, true) == PN_OK);
        }
        pn_sendq_fini(&q);
        PN_CHECK(m.outstanding == 0);
    }
    PN_CHECK(n_failed >= 4, "%d", n_failed);
}

int main(void)
{
    pn_test_mem_init(&mem, 0);
    a_stream_of_events_is_framed();
    data_stays_on_its_line();
    a_slow_reader_pauses_the_producer();
    the_queue_keeps_every_byte_in_order();
    out_of_memory_leaves_the_stream_usable();
    return pn_test_end();
}
