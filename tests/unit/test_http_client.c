/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Responses: what RFC 9112 allows is read the same way however it is cut, and an answer whose end two readers could
 * see in two places is refused.  Every case runs whole, byte by byte and cut in two at every place.  Then the
 * connection around it, without sockets.
 */
#include "pn_test.h"

#include "serve/pn_upstream.h"

static pn_test_mem mem;

static void tell(pn_str *out, const pn_http_response *r)
{
    pn_str_addf(out, "%d", r->status);
    PN_CHECK(!(r->chunked && r->has_length) && r->no_body + r->until_close < 2);
    if (r->http10)
        pn_str_addz(out, " 1.0");
    if (r->keep_alive)
        pn_str_addz(out, " keep");
    if (r->chunked)
        pn_str_addz(out, " chunked");
    if (r->no_body)
        pn_str_addz(out, " none");
    if (r->until_close)
        pn_str_addz(out, " close");
    for (uint32_t i = 0; i < r->n_fields; i++) {
        pn_bytes name = pn_response_field_name(r, i), v = pn_response_field_value(r, i);
        PN_CHECK(strlen(name.data) == name.len && strlen(v.data) == v.len);
        pn_str_addf(out, " %s=<%s>", name.data, v.data);
    }
    pn_str_addz(out, " [");
}

static void read_pieces(pn_str *out, const char *s, size_t n, size_t cut, bool to_head, const pn_http_limits *limits)
{
    pn_response_parser p;
    pn_response_fed fed = PN_RESPONSE_MORE;
    pn_response_init(&p, &mem.mem, limits);
    pn_response_next(&p, to_head);
    for (size_t at = 0, piece; at < n && fed != PN_RESPONSE_FAULT; at += piece) {
        piece = cut == SIZE_MAX ? 1 : at < cut ? PN_MIN(cut, n) - at : n - at;
        char *copy = malloc(piece);             /* exactly as long: sanitizers see a byte too many */
        memcpy(copy, s + at, piece);
        size_t done = 0, used;
        do {
            pn_bytes body;
            fed = pn_response_feed(&p, copy + done, piece - done, &used, &body);
            done += used;
            PN_CHECK(done <= piece && (fed != PN_RESPONSE_MORE || done == piece) && (fed == PN_RESPONSE_BODY) == (body.len > 0));
            if (fed == PN_RESPONSE_HEAD)
                tell(out, &p.r);
            if (fed == PN_RESPONSE_BODY) {
                PN_CHECK(body.data >= copy && body.data + body.len <= copy + done);
                pn_str_add(out, body.data, body.len);
            }
            if (fed == PN_RESPONSE_DONE) {
                pn_str_addz(out, "]\n");
                pn_response_next(&p, to_head);
                PN_CHECK(mem.outstanding == 1);
            }
        } while (fed != PN_RESPONSE_FAULT && (fed == PN_RESPONSE_HEAD || fed == PN_RESPONSE_BODY || done < piece));
        free(copy);
    }
    if (fed == PN_RESPONSE_MORE && p.begun) {
        fed = pn_response_end(&p);
        pn_str_addz(out, fed == PN_RESPONSE_DONE ? "].\n" : " cut");
    } else if (fed == PN_RESPONSE_FAULT) {
        size_t more;
        pn_bytes body;
        PN_CHECK(p.message[0] && p.message[strlen(p.message) - 1] == '.', "%s", p.message);
        PN_CHECK(pn_response_feed(&p, "x", 1, &more, &body) == PN_RESPONSE_FAULT && more == 0 && pn_response_end(&p) == PN_RESPONSE_FAULT);
        pn_str_addz(out, " !");
    }
    pn_response_fini(&p);
}

static void expect_n(const char *s, size_t n, const char *want, bool to_head, const pn_http_limits *limits)
{
    pn_str got;
    pn_str_init(&got, &mem.mem, PN_ACCT_MISC);
    for (size_t at = 0; at <= n; at = n > 5000 && at > 300 && at < n - 300 ? at + 97 : at + 1) {
        pn_str_clear(&got);
        pn_str_addc(&got, ' ');                 /* so that it holds its one block from the start */
        read_pieces(&got, s, n, at == n ? SIZE_MAX : at, to_head, limits);
        if (!PN_CHECK(strcmp(pn_str_cstr(&got) + 1, want) == 0, "\n%.*s cut at %zu gives\n%s\nnot\n%s", (int)PN_MIN(n, (size_t)300), s, at,
                      pn_str_cstr(&got) + 1, want))
            break;
    }
    pn_str_fini(&got);
    PN_CHECK(mem.outstanding == 0);
}

static void expect(const char *s, const char *want) { expect_n(s, strlen(s), want, false, NULL); }
static void expect_head(const char *s, const char *want) { expect_n(s, strlen(s), want, true, NULL); }

#define OK "HTTP/1.1 200 OK\r\n"
#define LEN(n) "Content-Length: " n "\r\n\r\n"
#define CHUNKS OK "Transfer-Encoding: chunked\r\n\r\n"
#define SAID "200 keep chunked Transfer-Encoding=<chunked> ["

/* ------------------------------------------------------------------------------------------ */

static void an_answer_is_read(void)
{
    expect("", "");
    expect(OK LEN("5") "hello", "200 keep Content-Length=<5> [hello]\n");
    expect(OK LEN("0"), "200 keep Content-Length=<0> []\n");
    expect(OK "A:  b c \t\r\nX:\r\n" LEN("1") "x", "200 keep A=<b c> X=<> Content-Length=<1> [x]\n");
    expect("HTTP/1.1 404 \r\n" LEN("0"), "404 keep Content-Length=<0> []\n");
    expect("HTTP/1.1 404\r\n" LEN("0"), "404 keep Content-Length=<0> []\n");
    expect("HTTP/1.1 599 \xC3\xA9\xFF a\tb\r\n" LEN("0"), "599 keep Content-Length=<0> []\n");
    expect("HTTP/1.9 200 OK\r\n" LEN("0"), "200 keep Content-Length=<0> []\n");
    expect("HTTP/1.1 204 No Content\r\n\r\n", "204 keep none []\n");
    expect("HTTP/1.1 204 No Content\r\n" LEN("0"), "204 keep none Content-Length=<0> []\n");
    expect("HTTP/1.1 304 Not Modified\r\n" LEN("10"), "304 keep none Content-Length=<10> []\n");
    expect(OK "Content-Length: 1\r\n" LEN("1") "x", "200 keep Content-Length=<1> Content-Length=<1> [x]\n");
}

static void one_answer_follows_another(void)
{
    expect(OK LEN("1") "a" OK LEN("2") "bc", "200 keep Content-Length=<1> [a]\n200 keep Content-Length=<2> [bc]\n");
    expect(CHUNKS "1\r\nx\r\n0\r\n\r\n" OK LEN("0"), SAID "x]\n200 keep Content-Length=<0> []\n");
    expect_head(OK LEN("5") OK LEN("7"), "200 keep none Content-Length=<5> []\n200 keep none Content-Length=<7> []\n");
    expect_head(CHUNKS, "200 keep chunked none Transfer-Encoding=<chunked> []\n");
    expect(OK LEN("1") "ab", "200 keep Content-Length=<1> [a]\n cut");
}

static void interim_answers_are_dropped(void)
{
    expect("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" OK LEN("1") "a", "200 keep Content-Length=<1> [a]\n");
    expect_head("HTTP/1.1 100 Continue\r\n\r\n" OK LEN("1"), "200 keep none Content-Length=<1> []\n");
    expect("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", " !");
    expect("HTTP/1.1 100 Continue\r\n" LEN("1") "x", " !");
    expect("HTTP/1.1 100 Continue\r\nTransfer-Encoding: chunked\r\n\r\n", " !");
    expect("HTTP/1.1 100 Continue\r\n\r\n", " cut");
    char many[1024] = "";
    for (int i = 0; i < 8; i++)
        strcat(many, "HTTP/1.1 102 P\r\n\r\n");
    char nine[1100];
    snprintf(nine, sizeof nine, "%sHTTP/1.1 102 P\r\n\r\n" OK LEN("0"), many);
    strcat(many, OK LEN("0"));
    expect(many, "200 keep Content-Length=<0> []\n");
    expect(nine, " !");
}

static void chunks_are_joined(void)
{
    expect(CHUNKS "5\r\nhello\r\n0\r\n\r\n", SAID "hello]\n");
    expect(CHUNKS "1\r\nh\r\nA;x=y\r\n0123456789\r\n00\r\n\r\n", SAID "h0123456789]\n");
    expect(CHUNKS "2 ;a\r\nxy\r\n0\r\nTrailer: z\r\nT: \r\n\r\n", SAID "xy]\n");
    expect(CHUNKS "0000000000000001\r\nx\r\n0\r\n\r\n", SAID "x]\n");
    static const char *const bad[] = {
        "00000000000000001\r\nx\r\n0\r\n\r\n", "\r\n", "g\r\n", " 1\r\nx", "1\nx", "1\r\nxy", "-1\r\n", "0x1\r\n", "1 \r\nx\r\n", "1;\x01\r\nx", "1\rx\n",
    };
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
        char text[200];
        pn_str got;
        snprintf(text, sizeof text, CHUNKS "%s", bad[i]);
        pn_str_init(&got, &mem.mem, PN_ACCT_MISC);
        read_pieces(&got, text, strlen(text), 0, false, NULL);
        PN_CHECK(got.len && got.data[got.len - 1] == '!', "%s gives %s", bad[i], pn_str_cstr(&got));
        char *first = strdup(pn_str_cstr(&got));
        for (size_t at = 1; at < strlen(text); at++) {
            pn_str_clear(&got);
            pn_str_addc(&got, 'x');
            read_pieces(&got, text, strlen(text), at, false, NULL);
            PN_CHECK(strcmp(got.data + 1, first) == 0, "%s cut at %zu: %s", bad[i], at, got.data);
        }
        free(first);
        pn_str_fini(&got);
    }
    expect(CHUNKS "0\r\nno name\r\n\r\n", SAID " !");
    expect(CHUNKS "0\r\n: x\r\n\r\n", SAID " !");
    expect(CHUNKS "0\r\nA: \x7F\r\n\r\n", SAID " !");
    expect(CHUNKS "0\r\n\rx", SAID " !");
}

static void the_end_may_be_that_of_the_connection(void)
{
    expect(OK "\r\nall the rest\r\n", "200 close [all the rest\r\n].\n");
    expect("HTTP/1.0 200 OK\r\n\r\nx", "200 1.0 close [x].\n");
    expect(OK "Connection: keep-alive\r\n\r\nx", "200 close Connection=<keep-alive> [x].\n");
    expect(OK LEN("5") "hell", "200 keep Content-Length=<5> [hell cut");
    expect(CHUNKS "5\r\nhello\r\n", SAID "hello cut");
    expect(CHUNKS "5\r\nhello\r\n0\r\n", SAID "hello cut");
    expect(OK "A: b\r\n", " cut");
    expect("H", " cut");
}

static void the_connection_lives_as_both_sides_wish(void)
{
    expect(OK "Connection: close\r\n" LEN("0"), "200 Connection=<close> Content-Length=<0> []\n");
    expect(OK "connection: x, CLOSE\r\n" LEN("0"), "200 connection=<x, CLOSE> Content-Length=<0> []\n");
    expect("HTTP/1.0 200 OK\r\n" LEN("0"), "200 1.0 Content-Length=<0> []\n");
    expect("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" LEN("0"), "200 1.0 keep Connection=<keep-alive> Content-Length=<0> []\n");
}

static void two_ways_to_read_are_refused(void)
{
    static const char *const bad[] = {
        "\r\n" OK, "GET / HTTP/1.1\r\n", "HTTP/2.0 200 OK\r\n\r\n", "HTTP/1.1  200 OK\r\n\r\n", "HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n", "HTTP/1.1 600 OK\r\n\r\n", "HTTP/1.1 200\tOK\r\n\r\n", "HTTP/1.1 200 O\rK\r\n\r\n", "HTTP/1.1 200 OK\n\r\n",
        "http/1.1 200 OK\r\n\r\n", "HTTP/1.1 -20 OK\r\n\r\n", "HTTP/1.1\r\n\r\n",
        OK "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", OK "Content-Length: 5, 5\r\n\r\n", OK "Content-Length: +5\r\n\r\n", OK "Content-Length:\r\n\r\n",
        OK "Content-Length: 0x5\r\n\r\n", OK "Content-Length: 18446744073709551616\r\n\r\n", OK "Content-Length: -1\r\n\r\n",
        OK "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", OK "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
        OK "Transfer-Encoding: gzip\r\n\r\n", OK "Transfer-Encoding: gzip, chunked\r\n\r\n", OK "Transfer-Encoding: chunked, chunked\r\n\r\n",
        OK "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", OK "Transfer-Encoding: chunked, \r\n\r\n", OK "Transfer-Encoding:\r\n\r\n",
        OK "Transfer-Encoding: \x0B" "chunked\r\n\r\n", OK "Transfer-Encoding: chunked;q=1\r\n\r\n", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK "Transfer-Encoding : chunked\r\n\r\n", OK " folded: x\r\n\r\n", OK "A: b\r\n c\r\n\r\n", OK "no colon\r\n\r\n", OK ": x\r\n\r\n", OK "A: b\n\r\n",
        OK "A\x01: b\r\n\r\n", OK "A: \x01\r\n\r\n", OK "A: b\rC: d\r\n\r\n", "HTTP/1.1 204 No\r\nContent-Length: 1\r\n\r\n",
        "HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n",
    };
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++)
        expect(bad[i], " !");
    expect_n("HTTP/1.1 200 O\0K\r\n\r\n", 20, " !", false, NULL);
    expect_n(OK "A: b\0c\r\n\r\n", sizeof OK - 1 + 10, " !", false, NULL);
}

static void limits_are_kept_to_the_byte(void)
{
    const pn_http_limits l = {.line_max = 20, .head_max = 22};
    const char line[] = "HTTP/1.1 200 abcde\r\n";       /* 20 */
    char text[200];
    snprintf(text, sizeof text, "%sContent-Length: 0\r\nx\r\n\r\n", line);
    expect_n(text, strlen(text), " !", false, &l);      /* a line without a colon */
    snprintf(text, sizeof text, "%sContent-Length: 0\r\n\r\n", line);                  /* 19 + 2 */
    expect_n(text, strlen(text), "200 keep Content-Length=<0> []\n", false, &l);
    snprintf(text, sizeof text, "%sContent-Length: 00\r\n\r\n", line);
    expect_n(text, strlen(text), "200 keep Content-Length=<00> []\n", false, &l);
    snprintf(text, sizeof text, "%sContent-Length: 000\r\n\r\n", line);
    expect_n(text, strlen(text), " !", false, &l);
    expect_n("HTTP/1.1 200 abcdef\r\n\r\n", 23, " !", false, &l);
    pn_str s;
    pn_mem libc;
    pn_mem_init_libc(&libc);
    pn_str_init(&s, &libc, PN_ACCT_MISC);
    pn_str_addz(&s, OK);
    for (int i = 0; i < 101; i++)
        pn_str_addz(&s, "a:\r\n");
    pn_str_addz(&s, "\r\n");
    expect_n(s.data, s.len, " !", false, NULL);
    pn_str_clear(&s);
    pn_str_addz(&s, CHUNKS);
    for (int i = 0; i < 1100; i++)
        pn_str_addz(&s, "1;012345678901234\r\nx\r\n");
    pn_response_parser p;
    pn_response_init(&p, &mem.mem, NULL);
    size_t at = 0, used, body = 0;
    pn_response_fed fed;
    do {
        pn_bytes piece;
        fed = pn_response_feed(&p, s.data + at, s.len - at, &used, &piece);
        at += used;
        body += piece.len;
    } while (fed == PN_RESPONSE_HEAD || fed == PN_RESPONSE_BODY);
    PN_CHECK(fed == PN_RESPONSE_FAULT && body == 1024, "%d %zu", fed, body);            /* 16 bytes of extension each */
    pn_response_fini(&p);
    pn_str_fini(&s);
}

static void memory_follows_what_has_arrived(void)
{
    pn_response_parser p;
    pn_bytes piece;
    size_t used;
    char block[4096];
    memset(block, 'x', sizeof block);
    pn_response_init(&p, &mem.mem, NULL);
    PN_CHECK(mem.outstanding == 0);
    PN_CHECK(pn_response_feed(&p, OK LEN("1000000000000"), 50, &used, &piece) == PN_RESPONSE_HEAD && used == 50);
    PN_CHECK(mem.bytes <= 1024);
    for (int i = 0; i < 100; i++)
        PN_CHECK(pn_response_feed(&p, block, sizeof block, &used, &piece) == PN_RESPONSE_BODY && piece.len == sizeof block);
    PN_CHECK(mem.bytes <= 1024);
    pn_response_fini(&p);
    PN_CHECK(mem.outstanding == 0);
    for (long fail_at = 1, failed = 1; failed; fail_at++) {
        pn_test_mem m;
        pn_test_mem_init(&m, fail_at);
        pn_response_init(&p, &m.mem, NULL);
        pn_response_fed fed = pn_response_feed(&p, OK, sizeof OK - 1, &used, &piece);
        for (int i = 0; i < 20 && fed == PN_RESPONSE_MORE; i++) {
            fed = pn_response_feed(&p, "Y: ", 3, &used, &piece);
            if (fed == PN_RESPONSE_MORE)
                fed = pn_response_feed(&p, block, 200, &used, &piece);
            if (fed == PN_RESPONSE_MORE)
                fed = pn_response_feed(&p, "\r\n", 2, &used, &piece);
        }
        failed = fed == PN_RESPONSE_FAULT;
        PN_CHECK(fail_at < 20);
        pn_response_fini(&p);
        PN_CHECK(m.outstanding == 0);
    }
}

static void fields_are_found(void)
{
    pn_response_parser p;
    pn_bytes piece, v;
    size_t used;
    static const char text[] = OK "a: 1\r\nContent-TYPE: text/event-stream; x\r\nA: 2\r\n\r\n";
    pn_response_init(&p, &mem.mem, NULL);
    PN_CHECK(pn_response_feed(&p, text, sizeof text - 1, &used, &piece) == PN_RESPONSE_HEAD);
    v = pn_response_get(&p.r, "content-type");
    PN_CHECK(v.data && strcmp(v.data, "text/event-stream; x") == 0);
    v = pn_response_get(&p.r, "A");
    PN_CHECK(v.data && strcmp(v.data, "1") == 0);
    PN_CHECK(!pn_response_get(&p.r, "b").data);
    pn_response_fini(&p);
}

/* ------------------------------------------------------------------------------------------
 * The connection
 * ------------------------------------------------------------------------------------------ */

static const pn_bytes q_head = {"HEAD", 4}, q_body = {"body", 4};

/* Feed text; a letter an event, the body's bytes. */
static void feed(pn_upstream *u, const char *text, const char *want)
{
    pn_str got;
    pn_mem libc;
    size_t at = 0, n = strlen(text);
    pn_response_fed fed;
    pn_mem_init_libc(&libc);
    pn_str_init(&got, &libc, PN_ACCT_MISC);
    do {
        pn_bytes piece;
        fed = pn_upstream_input(u, text, n, &at, &piece, 1000);
        if (fed)
            pn_str_addc(&got, ".HBDF"[fed]);
        pn_str_add(&got, piece.data, piece.len);
    } while (fed == PN_RESPONSE_HEAD || fed == PN_RESPONSE_BODY);
    PN_CHECK(strcmp(pn_str_cstr(&got), want) == 0, "%s gives %s, not %s", text, pn_str_cstr(&got), want);
    PN_CHECK(at == n || fed == PN_RESPONSE_FAULT);
    pn_str_fini(&got);
}

static void send_all(pn_upstream *u, const char *want)
{
    pn_str got;
    pn_mem libc;
    pn_mem_init_libc(&libc);
    pn_str_init(&got, &libc, PN_ACCT_MISC);
    for (pn_bytes out; (out = pn_upstream_output(u)).len;) {
        size_t n = PN_MIN(out.len, (size_t)3);
        pn_str_add(&got, out.data, n);
        pn_upstream_sent(u, n, 1000);
    }
    PN_CHECK(strcmp(pn_str_cstr(&got), want) == 0, "%s", pn_str_cstr(&got));
    pn_str_fini(&got);
}

static void a_connection_asks_again_and_again(void)
{
    pn_upstream u;
    pn_upstream_init(&u, &mem.mem, NULL, 0);
    PN_CHECK(u.state == PN_UPSTREAM_CONNECTING && pn_upstream_deadline(&u) == 5000 && !pn_upstream_reusable(&u));
    pn_upstream_begin(&u, q_head, q_body, false, 10);
    PN_CHECK(pn_upstream_output(&u).len == 0);          /* not yet */
    pn_upstream_connected(&u, 20);
    PN_CHECK(u.state == PN_UPSTREAM_BUSY && pn_upstream_deadline(&u) == 600020 && !pn_upstream_release(&u));
    send_all(&u, "HEADbody");
    PN_CHECK(pn_upstream_release(&u));
    feed(&u, OK "Content-Le", "");
    feed(&u, "ngth: 2\r\n\r\na", "HBa");
    feed(&u, "b", "BbD");
    PN_CHECK(pn_upstream_reusable(&u) && u.n_answers == 1 && pn_upstream_deadline(&u) == 16000);
    PN_CHECK(u.answer.r.status == 200 && mem.outstanding == 1);
    pn_upstream_rest(&u);
    PN_CHECK(mem.outstanding == 0);
    pn_upstream_begin(&u, q_head, (pn_bytes){NULL, 0}, true, 2000);
    send_all(&u, "HEAD");
    feed(&u, OK LEN("2"), "HD");
    PN_CHECK(pn_upstream_reusable(&u));
    feed(&u, "x", "");                                  /* nobody asked */
    PN_CHECK(!pn_upstream_reusable(&u));
    pn_upstream_fini(&u);
    PN_CHECK(mem.outstanding == 0);
}

static pn_upstream busy(bool sent)
{
    pn_upstream u;
    pn_upstream_init(&u, &mem.mem, NULL, 0);
    pn_upstream_connected(&u, 0);
    pn_upstream_begin(&u, q_head, q_body, false, 0);
    if (sent)
        send_all(&u, "HEADbody");
    return u;
}

static void what_is_not_clean_is_not_used_again(void)
{
    static const struct { const char *text, *want; bool sent; } cases[] = {
        {OK LEN("1") "a", "HBaD", true}, {OK LEN("1") "ab", "HBaD", true}, {OK LEN("1") "a", "HBaD", false}, {OK "Connection: close\r\n" LEN("0"), "HD", true},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        pn_upstream u = busy(cases[i].sent);
        feed(&u, cases[i].text, cases[i].want);
        PN_CHECK(pn_upstream_reusable(&u) == (i == 0) && pn_upstream_output(&u).len == 0);
        pn_upstream_fini(&u);
    }
    pn_upstream u = busy(false);                        /* it reads no more, but answers */
    pn_upstream_deaf(&u);
    PN_CHECK(pn_upstream_output(&u).len == 0);
    feed(&u, "HTTP/1.1 413 No\r\n" LEN("1") "a", "HBaD");
    PN_CHECK(!pn_upstream_reusable(&u));
    pn_upstream_fini(&u);
    u = busy(true);
    feed(&u, "garbage\r\n", "F");
    PN_CHECK(u.state == PN_UPSTREAM_CLOSED && u.answer.message[0]);
    pn_upstream_fini(&u);
    PN_CHECK(mem.outstanding == 0);
}

static void ends_and_times_are_told_apart(void)
{
    pn_upstream u = busy(true);
    PN_CHECK(pn_upstream_end(&u, false) == PN_RESPONSE_FAULT && strstr(u.answer.message, "without an answer"));
    pn_upstream_fini(&u);
    u = busy(true);
    feed(&u, OK "\r\nabc", "HBabc");
    PN_CHECK(pn_upstream_end(&u, false) == PN_RESPONSE_DONE && !pn_upstream_reusable(&u));
    pn_upstream_fini(&u);
    u = busy(true);
    feed(&u, OK "\r\nabc", "HBabc");                    /* a reset is no end */
    PN_CHECK(pn_upstream_end(&u, true) == PN_RESPONSE_FAULT);
    pn_upstream_fini(&u);
    u = busy(true);
    feed(&u, CHUNKS "1\r\nx\r\n", "HBx");
    PN_CHECK(pn_upstream_end(&u, false) == PN_RESPONSE_FAULT && strstr(u.answer.message, "in the middle"));
    pn_upstream_fini(&u);
    u = busy(true);
    PN_CHECK(pn_upstream_deadline(&u) == 601000);
    pn_upstream_overdue(&u);
    PN_CHECK(u.timed_out && u.state == PN_UPSTREAM_CLOSED && pn_upstream_deadline(&u) == UINT64_MAX);
    pn_upstream_fini(&u);
    pn_upstream_init(&u, &mem.mem, &(pn_upstream_params){.connect_ms = 7}, 100);
    PN_CHECK(pn_upstream_deadline(&u) == 107);
    pn_upstream_overdue(&u);
    PN_CHECK(!u.timed_out && u.answer.message[0] && pn_upstream_end(&u, true) == PN_RESPONSE_FAULT);
    pn_upstream_fini(&u);
    PN_CHECK(mem.outstanding == 0);
}

int main(void)
{
    pn_test_mem_init(&mem, 0);
    an_answer_is_read();
    one_answer_follows_another();
    interim_answers_are_dropped();
    chunks_are_joined();
    the_end_may_be_that_of_the_connection();
    the_connection_lives_as_both_sides_wish();
    two_ways_to_read_are_refused();
    limits_are_kept_to_the_byte();
    memory_follows_what_has_arrived();
    fields_are_found();
    a_connection_asks_again_and_again();
    what_is_not_clean_is_not_used_again();
    ends_and_times_are_told_apart();
    return pn_test_end();
}
