/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * One connection from its first byte to its last, without sockets: a small server that answers at
 * once stands behind it, and the clock is a variable.
 */
#include "pn_test.h"

#include "serve/pn_conn.h"

static pn_test_mem mem;

/* A client and a server around one connection. */
typedef struct desk {
    pn_conn c;
    uint64_t now;
    pn_str got;                 /* what the client has received */
    pn_str log;                 /* the events: H head, R request, F fault, A abort, S shutdown, C close */
    bool hold;                  /* do not answer requests */
    bool stream;                /* answer with a stream, left open */
    int refuse;                 /* answer heads with this status */
    bool deaf;                  /* the client does not read */
} desk;

static void desk_open(desk *d, const pn_conn_params *params)
{
    memset(d, 0, sizeof *d);
    d->now = 1000;
    pn_conn_init(&d->c, &mem.mem, params, d->now);
    static pn_mem libc;
    pn_mem_init_libc(&libc);
    pn_str_init(&d->got, &libc, PN_ACCT_MISC);
    pn_str_init(&d->log, &libc, PN_ACCT_MISC);
}

static void desk_close(desk *d)
{
    pn_conn_fini(&d->c);
    PN_CHECK(mem.outstanding == 0, "%ld", mem.outstanding);
    pn_str_fini(&d->got);
    pn_str_fini(&d->log);
}

static void desk_answer(desk *d)
{
    char text[300];
    const pn_http_request *r = &d->c.http.req;
    snprintf(text, sizeof text, "<%s:%.100s>", r->path.data, r->body.data);
    if (d->stream)
        PN_CHECK(pn_conn_stream(&d->c, &(pn_http_reply){0}) == PN_OK);
    else if (!d->hold)
        PN_CHECK(pn_conn_reply(&d->c, &(pn_http_reply){.status = 200}, text, strlen(text)) == PN_OK);
}

static void desk_events(desk *d)
{
    for (int i = 0; i < 1000; i++) {
        pn_conn_event e = pn_conn_next(&d->c, d->now);
        if (e == PN_CONN_NOTHING)
            break;
        pn_str_addc(&d->log, ".HRFASC"[e]);
        if (e == PN_CONN_HEAD && d->refuse)
            PN_CHECK(pn_conn_reply(&d->c, &(pn_http_reply){.status = d->refuse}, "no", 2) == PN_OK);
        if (e == PN_CONN_REQUEST)
            desk_answer(d);
        if (e == PN_CONN_FAULT)
            PN_CHECK(pn_conn_reply(&d->c, &(pn_http_reply){.status = d->c.http.status}, "bad", 3) == PN_OK);
        if (e == PN_CONN_CLOSE)
            break;
    }
    PN_CHECK(pn_conn_next(&d->c, d->now) == (d->c.state == PN_CONN_CLOSED ? PN_CONN_CLOSE : PN_CONN_NOTHING));
}

/* Let the server work and the client read until nothing moves. */
static void desk_turn(desk *d)
{
    desk_events(d);
    for (pn_bytes b; !d->deaf && (b = pn_conn_output(&d->c)).len;) {
        size_t n = PN_MIN(b.len, (size_t)37);
        pn_str_add(&d->got, b.data, n);
        pn_conn_sent(&d->c, n, d->now);
        desk_events(d);
    }
}

/* Send in pieces of `piece` bytes; false: the server does not read any more. */
static bool desk_send_n(desk *d, const char *s, size_t n, size_t piece)
{
    while (n) {
        size_t k = PN_MIN(PN_MIN(piece, n), pn_conn_room(&d->c));
        if (!k)
            return false;
        pn_conn_input(&d->c, s, k, d->now);
        s += k;
        n -= k;
        desk_turn(d);
    }
    return true;
}

static bool desk_send(desk *d, const char *s) { return desk_send_n(d, s, strlen(s), 1u << 20); }

static void logs(desk *d, const char *want)
{
    PN_CHECK(strcmp(pn_str_cstr(&d->log), want) == 0, "%s not %s; got %s", pn_str_cstr(&d->log), want, pn_str_cstr(&d->got));
}

static int count(desk *d, const char *what)
{
    int n = 0;
    for (const char *s = pn_str_cstr(&d->got); (s = strstr(s, what)) != NULL; s += strlen(what))
        n++;
    return n;
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: h\r\n\r\n"
#define POST(n, body) "POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: " n "\r\n\r\n" body
#define OK(n, body) "HTTP/1.1 200 OK\r\nContent-Length: " n "\r\n\r\n" body

/* ------------------------------------------------------------------------------------------ */

static void requests_are_answered_in_order_however_cut(void)
{
    static const char in[] = GET("/a") POST("5", "hello") "\r\n" GET("/b")
        "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxy\r\n0\r\n\r\n" GET("/d");
    static const char want[] = OK("5", "</a:>") OK("10", "</p:hello>") OK("5", "</b:>") OK("7", "</c:xy>") OK("5", "</d:>");
    for (size_t piece = 1; piece < sizeof in; piece++) {
        desk d;
        desk_open(&d, NULL);
        PN_CHECK(desk_send_n(&d, in, sizeof in - 1, piece));
        PN_CHECK(strcmp(pn_str_cstr(&d.got), want) == 0, "pieces of %zu: %s", piece, pn_str_cstr(&d.got));
        logs(&d, "HRHRHRHRHR");
        PN_CHECK(d.c.n_requests == 5 && d.c.state == PN_CONN_IDLE && mem.outstanding == 0);
        pn_conn_eof(&d.c);
        desk_turn(&d);
        logs(&d, "HRHRHRHRHRC");
        desk_close(&d);
    }
}

static void an_idle_connection_holds_nothing(void)
{
    desk d;
    desk_open(&d, NULL);
    PN_CHECK(sizeof(pn_conn) <= 4096 && mem.outstanding == 0);
    PN_CHECK(desk_send(&d, GET("/a")) && mem.outstanding == 0);
    PN_CHECK(desk_send(&d, "\r\n") && mem.outstanding == 0 && d.c.state == PN_CONN_IDLE);
    desk_close(&d);
}

static void a_close_is_honoured(void)
{
    desk d;
    desk_open(&d, NULL);
    desk_send(&d, "GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    logs(&d, "HRC");
    PN_CHECK(count(&d, "Connection: close") == 1);
    desk_close(&d);
    desk_open(&d, NULL);
    desk_send(&d, "GET /a HTTP/1.0\r\n\r\n");
    logs(&d, "HRC");
    desk_close(&d);
    desk_open(&d, NULL);
    desk_send(&d, "GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    logs(&d, "HR");
    PN_CHECK(count(&d, "Connection: keep-alive") == 1 && d.c.state == PN_CONN_IDLE);
    desk_close(&d);
    desk_open(&d, NULL);                        /* more was sent than is wanted: read on before closing */
    desk_send(&d, "GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" GET("/b"));
    logs(&d, "HRS");
    PN_CHECK(count(&d, "200 OK") == 1 && d.c.state == PN_CONN_LINGERING && mem.outstanding == 0);
    pn_conn_eof(&d.c);
    desk_turn(&d);
    logs(&d, "HRSC");
    desk_close(&d);
    desk_open(&d, NULL);
    desk_send(&d, "HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n" GET("/b"));
    PN_CHECK(strcmp(pn_str_cstr(&d.got), "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" OK("5", "</b:>")) == 0);
    desk_close(&d);
}

static void a_fault_is_answered_and_ends_it(void)
{
    desk d;
    desk_open(&d, NULL);
    desk_send(&d, GET("/a") "GARBAGE\r\n" GET("/b"));
    logs(&d, "HRFS");
    PN_CHECK(count(&d, "400 Bad Request") == 1 && count(&d, "HTTP/1.1") == 2 && count(&d, "Connection: close") == 1);
    PN_CHECK(desk_send(&d, "more") && mem.outstanding == 0);
    d.now += 1999;
    desk_turn(&d);
    logs(&d, "HRFS");
    PN_CHECK(pn_conn_deadline(&d.c) == d.now + 1);
    d.now += 1;
    desk_turn(&d);
    logs(&d, "HRFSC");
    desk_close(&d);
    /* What is still sent is bounded too. */
    static char flood[1 << 16];
    desk_open(&d, &(pn_conn_params){.linger_max = 1 << 20});
    desk_send(&d, "GARBAGE\r\n");
    for (int i = 0; i < 32 && d.c.state != PN_CONN_CLOSED; i++)
        desk_send_n(&d, flood, sizeof flood, sizeof flood);
    logs(&d, "FSC");
    PN_CHECK(pn_conn_room(&d.c) == 0 && pn_conn_wants(&d.c) == 0);
    desk_close(&d);
}

static void a_head_can_be_refused_before_its_body(void)
{
    desk d;
    desk_open(&d, NULL);
    d.refuse = 401;
    desk_send(&d, "POST /p HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    logs(&d, "HS");
    PN_CHECK(count(&d, "401 ") == 1 && count(&d, "100 ") == 0 && count(&d, "Connection: close") == 1);
    desk_send(&d, "hello");
    logs(&d, "HS");
    desk_close(&d);
    desk_open(&d, NULL);                        /* without a body there is nothing to cut */
    d.refuse = 401;
    desk_send(&d, GET("/a") "HEAD /b HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n" GET("/c"));
    logs(&d, "HHH");
    PN_CHECK(count(&d, "401 ") == 3 && count(&d, "Connection") == 0 && d.c.state == PN_CONN_IDLE && mem.outstanding == 0);
    PN_CHECK(d.c.n_requests == 3 && count(&d, "\r\n\r\nno") == 2);
    desk_close(&d);
    desk_open(&d, NULL);                        /* it goes on: 100, body, reply */
    desk_send(&d, "POST /p HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    PN_CHECK(strcmp(pn_str_cstr(&d.got), "HTTP/1.1 100 Continue\r\n\r\n") == 0);
    desk_send(&d, "hello");
    PN_CHECK(strcmp(pn_str_cstr(&d.got), "HTTP/1.1 100 Continue\r\n\r\n" OK("10", "</p:hello>")) == 0);
    logs(&d, "HR");
    desk_close(&d);
    desk_open(&d, NULL);                        /* the body is there already: no 100 */
    desk_send(&d, "POST /p HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello");
    PN_CHECK(strcmp(pn_str_cstr(&d.got), OK("10", "</p:hello>")) == 0);
    desk_close(&d);
}

static void slow_clients_are_let_go(void)
{
    const pn_conn_params p = {.idle_ms = 100, .head_ms = 50, .body_ms = 40, .body_rate = 1000, .write_ms = 70};
    desk d;
    desk_open(&d, &p);                          /* idle */
    PN_CHECK(pn_conn_deadline(&d.c) == 1100);
    d.now = 1099;
    desk_send(&d, "\r\n");                      /* an empty line is not yet a request */
    logs(&d, "");
    d.now = 1100;
    desk_turn(&d);
    logs(&d, "C");
    PN_CHECK(d.got.len == 0);
    desk_close(&d);

    desk_open(&d, &p);                          /* a head that never ends */
    for (int i = 0; i < 60 && d.c.state != PN_CONN_LINGERING; i++, d.now++)
        desk_send(&d, i ? "X" : "G");
    logs(&d, "FS");
    PN_CHECK(count(&d, "408 ") == 1 && d.now <= 1052);
    desk_close(&d);

    desk_open(&d, &p);                          /* a body that stops */
    desk_send(&d, POST("9999", "hello"));
    PN_CHECK(pn_conn_deadline(&d.c) == 1040);
    d.now = 1030;
    desk_send(&d, "x");
    PN_CHECK(pn_conn_deadline(&d.c) == 1040);   /* below the rate: no more time for one byte */
    d.now = 1040;
    desk_turn(&d);
    logs(&d, "HFS");
    PN_CHECK(count(&d, "408 ") == 1);
    desk_close(&d);

    desk_open(&d, &p);                          /* a body that comes slowly, but fast enough */
    char block[1000];
    memset(block, 'x', sizeof block);
    desk_send(&d, "POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 20000\r\n\r\n");
    for (int i = 0; i < 20; i++, d.now += 39)
        desk_send_n(&d, block, sizeof block, 500);
    logs(&d, "HR");
    d.now -= 39;
    PN_CHECK(pn_conn_deadline(&d.c) == d.now + 100);
    desk_close(&d);

    desk_open(&d, &p);                          /* who does not read is gone */
    d.deaf = true;
    d.stream = true;
    desk_send(&d, GET("/a"));
    logs(&d, "HR");
    PN_CHECK(pn_conn_deadline(&d.c) == 1070);
    d.now = 1060;
    pn_conn_sent(&d.c, 5, d.now);
    desk_turn(&d);
    PN_CHECK(pn_conn_deadline(&d.c) == 1130);
    d.now = 1129;
    PN_CHECK(pn_sse_event(&d.c.sse, NULL, "x", 1) == PN_OK);
    desk_turn(&d);
    logs(&d, "HR");
    d.now = 1130;
    desk_turn(&d);
    logs(&d, "HRAC");
    PN_CHECK(pn_sse_event(&d.c.sse, NULL, "x", 1) == PN_E_STATE && pn_sendq_len(&d.c.out) == 0);
    desk_close(&d);

    desk_open(&d, &p);                          /* a long computation is nobody's fault */
    d.hold = true;
    desk_send(&d, GET("/a"));
    PN_CHECK(pn_conn_deadline(&d.c) == UINT64_MAX);
    d.now += 1000000;
    desk_turn(&d);
    logs(&d, "HR");
    desk_close(&d);
}

static void a_stream_runs_to_its_end(void)
{
    desk d;
    desk_open(&d, NULL);
    d.stream = true;
    desk_send(&d, "POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}");
    PN_CHECK(d.c.state == PN_CONN_STREAMING && count(&d, "text/event-stream") == 1);
    PN_CHECK(pn_conn_reply(&d.c, &(pn_http_reply){.status = 200}, "", 0) == PN_E_STATE);
    PN_CHECK(pn_conn_stream(&d.c, &(pn_http_reply){0}) == PN_E_STATE);
    PN_CHECK(pn_sse_event(&d.c.sse, NULL, "1", 1) == PN_OK);
    desk_turn(&d);
    d.stream = false;
    PN_CHECK(desk_send(&d, GET("/next")));      /* waits */
    logs(&d, "HR");
    PN_CHECK(count(&d, "data: 1\n\n") == 1 && count(&d, "/next") == 0);
    PN_CHECK(pn_sse_end(&d.c.sse, true) == PN_OK);
    desk_turn(&d);
    logs(&d, "HRHR");
    PN_CHECK(count(&d, "data: [DONE]\n\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n</next:>") == 1);
    desk_close(&d);
    desk_open(&d, NULL);                        /* silence is filled */
    d.stream = true;
    desk_send(&d, GET("/p"));
    for (int i = 0; i < 3; i++) {
        PN_CHECK(pn_conn_deadline(&d.c) == d.now + 15000);
        d.now += 14999;
        desk_turn(&d);
        PN_CHECK(count(&d, ": ping\n\n") == i);
        d.now += 1;
        desk_turn(&d);
        PN_CHECK(count(&d, "8\r\n: ping\n\n\r\n") == i + 1);
    }
    logs(&d, "HR");
    desk_close(&d);
    desk_open(&d, NULL);                        /* to HEAD, too, the clock must go on */
    d.stream = true;
    desk_send(&d, "HEAD /p HTTP/1.1\r\nHost: h\r\n\r\n");
    d.now += 15000;
    desk_turn(&d);
    PN_CHECK(pn_conn_deadline(&d.c) == d.now + 15000 && count(&d, "ping") == 0);
    PN_CHECK(pn_sse_end(&d.c.sse, true) == PN_OK);
    desk_turn(&d);
    PN_CHECK(d.c.state == PN_CONN_IDLE && count(&d, "DONE") == 0);
    desk_close(&d);
    desk_open(&d, NULL);                        /* HTTP/1.0: the end of the connection ends it */
    d.stream = true;
    desk_send(&d, "GET /p HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    PN_CHECK(pn_sse_event(&d.c.sse, NULL, "1", 1) == PN_OK && pn_sse_end(&d.c.sse, true) == PN_OK);
    desk_turn(&d);
    logs(&d, "HRC");
    PN_CHECK(count(&d, "\r\n\r\ndata: 1\n\ndata: [DONE]\n\n") == 1 && count(&d, "Connection: close") == 1);
    desk_close(&d);
    desk_open(&d, NULL);                        /* given up midway: no end is sent */
    d.stream = true;
    desk_send(&d, GET("/p"));
    pn_conn_abort(&d.c);
    desk_turn(&d);
    logs(&d, "HRC");
    PN_CHECK(count(&d, "0\r\n\r\n") == 0);
    desk_close(&d);
}

static void what_waits_is_bounded(void)
{
    desk d;
    size_t taken = 0;
    desk_open(&d, NULL);
    d.hold = true;
    desk_send(&d, GET("/first"));
    for (int i = 0; i < 100000; i++) {
        size_t room = pn_conn_room(&d.c), n = strlen(GET("/x"));
        if (!room)
            break;
        n = PN_MIN(room, n);
        pn_conn_input(&d.c, GET("/x"), n, d.now);
        taken += n;
    }
    PN_CHECK(taken == 16384 && pn_conn_wants(&d.c) == 0);
    PN_CHECK(mem.bytes <= 16384 + 2048, "%" PRIu64, mem.bytes);
    d.hold = false;
    PN_CHECK(pn_conn_reply(&d.c, &(pn_http_reply){.status = 200}, "", 0) == PN_OK);
    desk_turn(&d);
    PN_CHECK(d.c.n_requests == 1 + 16384 / strlen(GET("/x")) && pn_conn_room(&d.c) > 16000);
    desk_close(&d);
}

static void a_client_that_leaves_is_noticed(void)
{
    static const char *const how[] = {"eof", "gone"};
    for (int gone = 0; gone < 2; gone++) {
        void (*leave)(pn_conn *c) = gone ? pn_conn_gone : pn_conn_eof;
        desk d;
        desk_open(&d, NULL);
        leave(&d.c);
        desk_turn(&d);
        logs(&d, "C");
        desk_close(&d);
        desk_open(&d, NULL);                    /* in a head, in a body */
        desk_send(&d, "GET /");
        leave(&d.c);
        desk_turn(&d);
        logs(&d, "C");
        desk_close(&d);
        desk_open(&d, NULL);
        desk_send(&d, POST("5", "he"));
        leave(&d.c);
        desk_turn(&d);
        logs(&d, "HC");
        desk_close(&d);
        desk_open(&d, NULL);                    /* while it is worked on: once */
        d.hold = true;
        desk_send(&d, GET("/a") GET("/b"));
        leave(&d.c);
        desk_turn(&d);
        logs(&d, "HRAC");
        PN_CHECK(strcmp(d.c.http.req.path.data, "/a") == 0, "after %s", how[gone]);
        PN_CHECK(pn_conn_reply(&d.c, &(pn_http_reply){.status = 200}, "", 0) == PN_E_STATE);
        desk_turn(&d);
        logs(&d, "HRACC");
        desk_close(&d);
        desk_open(&d, NULL);                    /* in a stream */
        d.stream = true;
        desk_send(&d, GET("/a"));
        leave(&d.c);
        desk_turn(&d);
        logs(&d, "HRAC");
        desk_close(&d);
        desk_open(&d, NULL);                    /* while the reply is on its way */
        d.deaf = true;
        desk_send(&d, GET("/a"));
        leave(&d.c);
        d.deaf = gone;
        desk_turn(&d);
        logs(&d, "HRC");
        PN_CHECK(count(&d, "</a:>") == !gone);
        desk_close(&d);
    }
}

static void half_closed_clients_get_their_answers_when_allowed(void)
{
    desk d;
    desk_open(&d, &(pn_conn_params){.half_close = true});
    d.hold = true;
    desk_send(&d, GET("/a") GET("/b"));
    pn_conn_eof(&d.c);
    PN_CHECK(pn_conn_room(&d.c) == 0);
    desk_turn(&d);
    logs(&d, "HR");
    d.hold = false;
    desk_answer(&d);
    desk_turn(&d);
    logs(&d, "HRHRC");
    PN_CHECK(count(&d, "</a:>") == 1 && count(&d, "</b:>") == 1);
    desk_close(&d);
    desk_open(&d, &(pn_conn_params){.half_close = true});
    d.hold = true;
    desk_send(&d, GET("/a"));
    pn_conn_eof(&d.c);
    desk_turn(&d);
    pn_conn_gone(&d.c);
    desk_turn(&d);
    logs(&d, "HRAC");
    desk_close(&d);
}

static void a_server_that_stops_finishes_what_it_began(void)
{
    desk d;
    desk_open(&d, NULL);
    pn_conn_drain(&d.c);
    desk_turn(&d);
    logs(&d, "C");
    desk_close(&d);
    desk_open(&d, NULL);
    d.hold = true;
    desk_send(&d, GET("/a"));
    pn_conn_drain(&d.c);
    desk_turn(&d);
    logs(&d, "HR");
    d.hold = false;
    desk_answer(&d);
    desk_turn(&d);
    logs(&d, "HRC");
    PN_CHECK(count(&d, "Connection: close") == 1 && count(&d, "</a:>") == 1);
    desk_close(&d);
    desk_open(&d, NULL);
    desk_send(&d, "GET /a HTTP/1.1\r\nHo");
    pn_conn_drain(&d.c);
    desk_turn(&d);
    desk_send(&d, "st: h\r\n\r\n");
    logs(&d, "HRC");
    desk_close(&d);
}

static void a_large_body_goes_out_as_it_is(void)
{
    desk d;
    pn_str body;
    desk_open(&d, NULL);
    d.hold = true;
    desk_send(&d, GET("/a"));
    pn_str_init(&body, &mem.mem, PN_ACCT_MISC);
    for (int i = 0; i < 300000; i++)
        pn_str_addz(&body, "0123456789");
    PN_CHECK(pn_conn_reply(&d.c, &(pn_http_reply){.status = 200}, body.data, body.len) == PN_E_INVALID);
    PN_CHECK(pn_conn_reply_give(&d.c, &(pn_http_reply){.status = 200}, &body) == PN_OK);
    desk_turn(&d);
    logs(&d, "HR");
    PN_CHECK(d.got.len == 3000000 + strlen(OK("3000000", "")) && d.c.state == PN_CONN_IDLE && mem.outstanding == 0);
    desk_close(&d);
}

/* Each allocation fails in turn: the client gets 503 or is let go, nothing leaks, nothing hangs. */
static void out_of_memory_ends_one_connection(void)
{
    int n_ok = 0, n_bad = 0;
    for (long fail_at = 1; fail_at < 40; fail_at++) {
        pn_test_mem m;
        pn_conn c;
        const char *in = POST("5", "hello") GET("/b");
        pn_conn_event e = PN_CONN_NOTHING;
        pn_test_mem_init(&m, fail_at);
        pn_conn_init(&c, &m.mem, NULL, 0);
        pn_conn_input(&c, in, strlen(in), 0);
        for (int i = 0; i < 100 && e != PN_CONN_CLOSE; i++) {
            e = pn_conn_next(&c, 0);
            pn_status st = PN_OK;
            if (e == PN_CONN_REQUEST)
                st = pn_conn_reply(&c, &(pn_http_reply){.status = 200}, "ok", 2);
            if (e == PN_CONN_FAULT) {
                PN_CHECK(c.http.status == 503);
                st = pn_conn_reply(&c, &(pn_http_reply){.status = 503}, "", 0);
            }
            if (st) {
                PN_CHECK(st == PN_E_NOMEM);
                pn_conn_abort(&c);
            }
            while (pn_conn_output(&c).len)
                pn_conn_sent(&c, pn_conn_output(&c).len, 0);
            if (e == PN_CONN_SHUTDOWN || (e == PN_CONN_NOTHING && c.state == PN_CONN_IDLE))
                pn_conn_eof(&c);
        }
        PN_CHECK(e == PN_CONN_CLOSE);
        *(c.n_requests == 2 ? &n_ok : &n_bad) += 1;
        pn_conn_fini(&c);
        PN_CHECK(m.outstanding == 0);
    }
    PN_CHECK(n_ok >= 10 && n_bad >= 5, "%d %d", n_ok, n_bad);
}

int main(void)
{
    pn_test_mem_init(&mem, 0);
    requests_are_answered_in_order_however_cut();
    an_idle_connection_holds_nothing();
    a_close_is_honoured();
    a_fault_is_answered_and_ends_it();
    a_head_can_be_refused_before_its_body();
    slow_clients_are_let_go();
    a_stream_runs_to_its_end();
    what_waits_is_bounded();
    a_client_that_leaves_is_noticed();
    half_closed_clients_get_their_answers_when_allowed();
    a_server_that_stops_finishes_what_it_began();
    a_large_body_goes_out_as_it_is();
    out_of_memory_ends_one_connection();
    return pn_test_end();
}
