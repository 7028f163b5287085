/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Requests: what RFC 9112 allows is read the same way however it is cut, and what two readers could
 * read in two ways is refused.  Every case runs whole, byte by byte and cut in two at every place.
 */
#include "pn_test.h"

#include "serve/pn_http.h"

static pn_test_mem mem;

/* All that the parser says about a request. */
static void tell(pn_str *out, const pn_http_request *r)
{
    pn_str_add(out, r->method_text.data, r->method_text.len);
    PN_CHECK(r->path.data[r->path.len] == 0 && r->method_text.data[r->method_text.len] == 0);
    pn_str_addf(out, " %s", r->path.data);
    if (r->query.data) {
        PN_CHECK(r->query.data[r->query.len] == 0);
        pn_str_addf(out, "?%s", r->query.data);
    }
    pn_str_addf(out, r->http10 ? " 1.0" : " 1.1");
    if (r->host.data) {
        PN_CHECK(r->host.data[r->host.len] == 0);
        pn_str_addf(out, " host=%s", r->host.data);
    }
    if (r->keep_alive)
        pn_str_addz(out, " keep");
    if (r->chunked)
        pn_str_addz(out, " chunked");
    if (r->expect_continue)
        pn_str_addz(out, " expect");
    for (uint32_t i = 0; i < r->n_fields; i++) {
        pn_bytes name = pn_http_field_name(r, i), v = pn_http_field_value(r, i);
        PN_CHECK(name.data[name.len] == 0 && v.data[v.len] == 0 && strlen(v.data) == v.len);
        if (!pn_http_is(name, "host"))
            pn_str_addf(out, " %s=<%s>", name.data, v.data);
    }
}

/* Read n bytes in pieces and write down what comes out.  cut: 0 all at once, SIZE_MAX byte by byte,
 * else two pieces. */
static void read_pieces(pn_str *out, const char *s, size_t n, size_t cut, const pn_http_limits *limits)
{
    pn_http_parser p;
    pn_http_init(&p, &mem.mem, limits);
    pn_feed fed = PN_FEED_MORE;
    for (size_t at = 0, piece; at < n && fed != PN_FEED_FAULT; at += piece) {
        piece = cut == SIZE_MAX ? 1 : at < cut ? PN_MIN(cut, n) - at : n - at;
        char *copy = malloc(piece);         /* exactly as long: sanitizers see a byte too many */
        memcpy(copy, s + at, piece);
        for (size_t done = 0, used;; done += used) {
            fed = pn_http_feed(&p, copy + done, piece - done, &used);
            PN_CHECK(used <= piece - done && (fed != PN_FEED_MORE || used == piece - done));
            if (fed == PN_FEED_HEAD)
                tell(out, &p.req);
            else if (fed == PN_FEED_REQUEST) {
                PN_CHECK(p.req.body.data && p.req.body.data[p.req.body.len] == 0);
                pn_str_addz(out, " [");
                pn_str_add(out, p.req.body.data, p.req.body.len);
                pn_str_addz(out, "]\n");
                pn_http_next(&p);
                PN_CHECK(mem.outstanding == 1);
            } else if (fed == PN_FEED_FAULT) {
                pn_str_addf(out, " !%d", p.status);
                PN_CHECK(p.message[0] && p.message[strlen(p.message) - 1] == '.', "%s", p.message);
                size_t more;
                PN_CHECK(pn_http_feed(&p, "x", 1, &more) == PN_FEED_FAULT && more == 0);
                for (uint32_t i = 0; i < p.req.n_fields; i++)   /* who answers looks at the fields there are */
                    PN_CHECK(strlen(pn_http_field_name(&p.req, i).data) == pn_http_field_name(&p.req, i).len);
                break;
            }
            if (fed == PN_FEED_MORE || (fed == PN_FEED_REQUEST && done + used == piece))
                break;
        }
        free(copy);
    }
    if (fed == PN_FEED_MORE && n)
        pn_str_addz(out, pn_http_begun(&p) ? " ..." : "~");
    pn_http_fini(&p);
}

static void expect_n(const char *s, size_t n, const char *want, const pn_http_limits *limits)
{
    pn_str whole;
    pn_str_init(&whole, &mem.mem, PN_ACCT_MISC);
    pn_str_addc(&whole, ' ');               /* so that it holds its one block from the start */
    read_pieces(&whole, s, n, 0, limits);
    PN_CHECK(strcmp(pn_str_cstr(&whole) + 1, want) == 0, "\n%.*s gives\n%s\nnot\n%s", (int)PN_MIN(n, (size_t)300), s,
             pn_str_cstr(&whole) + 1, want);
    char *first = malloc(whole.len + 1);
    memcpy(first, pn_str_cstr(&whole), whole.len + 1);
    for (size_t at = 1; at <= n; at = n > 5000 && at > 300 && at < n - 300 ? at + 97 : at + 1) {
        pn_str_clear(&whole);
        pn_str_addc(&whole, ' ');
        read_pieces(&whole, s, n, at == n ? SIZE_MAX : at, limits);
        if (!PN_CHECK(strcmp(pn_str_cstr(&whole), first) == 0, "\n%.*s cut at %zu gives\n%s\nnot\n%s",
                      (int)PN_MIN(n, (size_t)300), s, at, pn_str_cstr(&whole), first))
            break;
    }
    free(first);
    pn_str_fini(&whole);
    PN_CHECK(mem.outstanding == 0);
}

static void expect(const char *s, const char *want) { expect_n(s, strlen(s), want, NULL); }

#define HOST "Host: h\r\n"
#define POST "POST /p HTTP/1.1\r\n" HOST
#define SAID "POST /p 1.1 host=h keep"

/* ------------------------------------------------------------------------------------------ */

static void a_request_is_read(void)
{
    expect("", "");
    expect("GET / HTTP/1.1\r\nHost: a.b:80\r\n\r\n", "GET / 1.1 host=a.b:80 keep []\n");
    expect("GET /v1/models?x=1&y HTTP/1.1\r\nhOsT:[::1]:8080\r\nAccept:  */* \t \r\nX:\r\nY:  \r\nZ:a\tb\r\n\r\n",
           "GET /v1/models?x=1&y 1.1 host=[::1]:8080 keep Accept=<*/*> X=<> Y=<> Z=<a\tb> []\n");
    expect(POST "Content-Length: 5\r\n\r\nhello", SAID " Content-Length=<5> [hello]\n");
    expect(POST "Content-Length: 0\r\n\r\n", SAID " Content-Length=<0> []\n");
    expect(POST "\r\n", SAID " []\n");
    expect("GET /? HTTP/1.1\r\nHost:\r\n\r\n", "GET /? 1.1 host= keep []\n");
    expect("BREW /pot HTTP/1.1\r\n" HOST "\r\n", "BREW /pot 1.1 host=h keep []\n");
    expect("GET / HTTP/1.7\r\n" HOST "\r\n", "GET / 1.1 host=h keep []\n");
    expect("GET / HTTP/1.1\r\n" HOST "X: \xC3\xA9\xFF\r\n\r\n", "GET / 1.1 host=h keep X=<\xC3\xA9\xFF> []\n");
    expect("GET /q?{\"a\" HTTP/1.1\r\n" HOST "\r\n", " !400");
    expect("GET /q?{a|b}[^`] HTTP/1.1\r\n" HOST "\r\n", "GET /q?{a|b}[^`] 1.1 host=h keep []\n");
}

static void an_unfinished_request_waits(void)
{
    static const char text[] = POST "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: v\r\n\r\n";
    for (size_t n = 1; n < sizeof text - 1; n++) {
        pn_http_parser p;
        size_t used;
        pn_feed fed = PN_FEED_MORE;
        pn_http_init(&p, &mem.mem, NULL);
        PN_CHECK(!pn_http_begun(&p));
        for (size_t at = 0; at < n; at += used)
            fed = pn_http_feed(&p, text + at, n - at, &used);
        PN_CHECK(fed == PN_FEED_MORE || fed == PN_FEED_HEAD, "after %zu bytes: %d", n, (int)fed);
        PN_CHECK(pn_http_begun(&p));
        pn_http_fini(&p);
    }
    PN_CHECK(mem.outstanding == 0);
    expect("\r\n\r\n", "~");
    expect("GET", " ...");
}

static void what_follows_a_request_is_the_next(void)
{
    expect(POST "Content-Length: 2\r\n\r\nab" POST "Transfer-Encoding: chunked\r\n\r\n1\r\nc\r\n0\r\n\r\n\r\nGET /x HTTP/1.1\r\n"
           HOST "\r\nGET",
           SAID " Content-Length=<2> [ab]\n" SAID " chunked Transfer-Encoding=<chunked> [c]\n"
           "GET /x 1.1 host=h keep []\n ...");
    expect("\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\n" HOST "\r\n", "GET / 1.1 host=h keep []\n");
    expect("\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\n" HOST "\r\n", " !400");
}

static void the_connection_lives_as_both_sides_wish(void)
{
    expect("GET / HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", "GET / 1.1 host=h Connection=<close> []\n");
    expect("GET / HTTP/1.1\r\n" HOST "Connection: Foo, CLOSE\r\n\r\n", "GET / 1.1 host=h Connection=<Foo, CLOSE> []\n");
    expect("GET / HTTP/1.1\r\n" HOST "Connection: keep-alive\r\nConnection: close\r\n\r\n",
           "GET / 1.1 host=h Connection=<keep-alive> Connection=<close> []\n");
    expect("GET / HTTP/1.1\r\n" HOST "Connection: closed\r\n\r\n", "GET / 1.1 host=h keep Connection=<closed> []\n");
    expect("GET / HTTP/1.0\r\n\r\n", "GET / 1.0 []\n");
    expect("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", "GET / 1.0 keep Connection=<Keep-Alive> []\n");
    expect("GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n",
           "GET / 1.0 Connection=<keep-alive, close> []\n");
}

static void expectations_are_met_or_refused(void)
{
    expect(POST "Expect: 100-Continue\r\nContent-Length: 1\r\n\r\nx",
           SAID " expect Expect=<100-Continue> Content-Length=<1> [x]\n");
    expect(POST "Expect: 100-continue\r\n\r\n", SAID " Expect=<100-continue> []\n");
    expect("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
           "POST / 1.0 Expect=<100-continue> Content-Length=<1> [x]\n");
    expect(POST "Expect: a-miracle\r\n\r\n", " !417");
    expect(POST "Expect: 100-continue, a-miracle\r\n\r\n", " !417");
}

static void targets_are_decoded_and_checked(void)
{
    static const char *const good[][2] = {
        {"/v1/models/org%2Fname%3aq4", "/v1/models/org/name:q4"},
        {"/%E2%82%AC", "/\xE2\x82\xAC"},
        {"/a//b/", "/a//b/"},
        {"/...", "/..."},
        {"/.a/..b/c.", "/.a/..b/c."},
        {"/a%20b+c", "/a b+c"},
        {"/x?/../y", "/x?/../y"},
        {"http://host:1/p?q", "/p?q"},
        {"HTTPS://host", "/"},
        {"http://host?q", "/?q"},
        {"http://host/", "/"},
    };
    static const char *const bad[] = {
        "", "x", "*", "//\x01", "/a b", "/\xC3\xA9", "/%", "/%4", "/%zz", "/%00", "/%0a", "/%7F", "/%FF", "/%C0%80",
        "/.", "/..", "/./a", "/a/..", "/a/../b", "/%2e%2E/x", "/a/.%2e", "/a%2f..%2fb", "/a#b", "/\"", "/<", "/a?b#c",
        "/a?b\x7F", "/|", "/a\\b", "http://", "http:///x", "http:/x", "ftp://h/", "http://u@h/", "http://h x/", "h:80",
        "http://h/..", "/a?\xC3\xA9",
    };
    char text[256], want[256];
    for (size_t i = 0; i < PN_COUNT_OF(good); i++) {
        bool url = strstr(good[i][0], "://") != NULL;
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\n" HOST "\r\n", good[i][0]);
        snprintf(want, sizeof want, "GET %s 1.1 host=%s keep []\n", good[i][1],
                 !url ? "h" : strstr(good[i][0], ":1") ? "host:1" : "host");
        expect(text, want);
    }
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\n" HOST "\r\n", bad[i]);
        expect(text, " !400");
    }
    expect("OPTIONS * HTTP/1.1\r\n" HOST "\r\n", "OPTIONS * 1.1 host=h keep []\n");
    expect("CONNECT h:80 HTTP/1.1\r\n" HOST "\r\n", " !501");
    expect_n("GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n", 29, " !400", NULL);
}

static void malformed_heads_are_refused(void)
{
    static const struct { const char *text; int status; } bad[] = {
        {"\n", 400}, {" GET / HTTP/1.1\r\n", 400}, {"\x16\x03\x01", 400}, {"\rX", 400}, {"(GET / HTTP/1.1\r\n", 400},
        {"GET\r\n", 400}, {"GET /\r\n", 400}, {"GET / \r\n", 400}, {"GET / http/1.1\r\n", 400},
        {"GET / HTTP/1\r\n", 400}, {"GET / HTTP/1.10\r\n", 400}, {"GET / HTTP/1.1 \r\n", 400},
        {"GET  / HTTP/1.1\r\n", 400}, {"GET /  HTTP/1.1\r\n", 400}, {"GET\t/ HTTP/1.1\r\n", 400},
        {"GET / HTTP/2.0\r\n", 505}, {"PRI * HTTP/2.0\r\n", 505}, {"GET / HTTP/0.9\r\n", 505},
        {"GET / HTTP/1.1\n", 400}, {"GET / HTTP/1.1\r\r\n", 400}, {"G\xC3T / HTTP/1.1\r\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},                                    /* no Host */
        {"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400}, {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400}, {"GET http://a/ HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" HOST "X : y\r\n\r\n", 400}, {"GET / HTTP/1.1\r\n" HOST "X\t: y\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" HOST ": y\r\n\r\n", 400}, {"GET / HTTP/1.1\r\n" HOST "X\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" HOST "X: a\r\n b\r\n\r\n", 400}, {"GET / HTTP/1.1\r\n" HOST "X: a\r\n\tb\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n X: a\r\n" HOST "\r\n", 400}, {"GET / HTTP/1.1\r\n" HOST "X: a\rb\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" HOST "X: a\r\r\n\r\n", 400}, {"GET / HTTP/1.1\r\n" HOST "X: a\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" HOST "X: a\x01\r\n\r\n", 400}, {"GET / HTTP/1.1\r\n" HOST "X: a\x7F\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" HOST "X(: a\r\n\r\n", 400}, {"GET / HTTP/1.1\r\n" HOST "\n", 400},
    };
    char want[16];
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
        snprintf(want, sizeof want, " !%d", bad[i].status);
        expect(bad[i].text, want);
    }
    expect_n("GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n", 36, " !400", NULL);
}

/* Each of these has been used to make a proxy and a server disagree about where a request ends. */
static void smuggled_requests_are_refused(void)
{
    static const struct { const char *text; int status; } bad[] = {
        {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400},
        {"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400},
        {"Content-Length: 5\r\nContent-Length: 6\r\n", 400}, {"Content-Length: 5, 6\r\n", 400},
        {"Content-Length: 5, 5\r\n", 400}, {"Content-Length: 5\r\ncontent-length: 05x\r\n", 400},
        {"Content-Length: -5\r\n", 400}, {"Content-Length: +5\r\n", 400}, {"Content-Length: 0x5\r\n", 400},
        {"Content-Length: 5 5\r\n", 400}, {"Content-Length:\r\n", 400}, {"Content-Length: 5.0\r\n", 400},
        {"Content-Length: five\r\n", 400}, {"Content-Length: \"5\"\r\n", 400}, {"Content-Length: 5;\r\n", 400},
        {"Content-Length : 5\r\n", 400}, {"Content-Length\x0b: 5\r\n", 400}, {"Content_Length: 5\r\n Content-Length: 5\r\n", 400},
        {"Content-Length: 18446744073709551616\r\n", 413}, {"Content-Length: 99999999999999999999999999\r\n", 413},
        {"Content-Length: 33554433\r\n", 413},
        {"Transfer-Encoding: chunked, chunked\r\n", 400}, {"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400},
        {"Transfer-Encoding: chunked, gzip\r\n", 400}, {"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", 400},
        {"Transfer-Encoding: identity\r\n", 400}, {"Transfer-Encoding: xchunked\r\n", 400},
        {"Transfer-Encoding: \x0b" "chunked\r\n", 400}, {"Transfer-Encoding: chunked;q=1\r\n", 400},
        {"Transfer-Encoding: ,chunked\r\n", 400}, {"Transfer-Encoding: chunked,\r\n", 400}, {"Transfer-Encoding:\r\n", 400},
        {"Transfer-Encoding: \"chunked\"\r\n", 400}, {"Transfer-Encoding: chunk\xC3\xA9" "d\r\n", 400},
        {"Transfer-Encoding : chunked\r\n", 400}, {"Transfer-Encoding:\r\n chunked\r\n", 400},
        {" Transfer-Encoding: chunked\r\n", 400}, {"X: y\nTransfer-Encoding: chunked\r\n", 400},
        {"X: y\rTransfer-Encoding: chunked\r\n", 400}, {"Transfer-Encoding: chunked\r\r\n", 400},
        {"Transfer-Encoding: gzip, chunked\r\n", 501}, {"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", 501},
        {"Transfer-Encoding chunked\r\n", 400}, {"Transfer\tEncoding: chunked\r\n", 400},
    };
    char text[256], want[16];
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
        snprintf(text, sizeof text, POST "%s\r\n0\r\n\r\nGET /admin HTTP/1.1\r\n" HOST "\r\n", bad[i].text);
        snprintf(want, sizeof want, " !%d", bad[i].status);
        expect(text, want);
    }
    expect("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", " !400");
    /* Said twice, but with one meaning. */
    expect(POST "Content-Length: 1\r\nContent-Length: 01\r\n\r\nx", SAID " Content-Length=<1> Content-Length=<01> [x]\n");
    expect(POST "Transfer-Encoding: \tChunKed \r\n\r\n0\r\n\r\n", SAID " chunked Transfer-Encoding=<ChunKed> []\n");
}

#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"
#define SAID_CHUNKED SAID " chunked Transfer-Encoding=<chunked>"

static void chunks_are_joined(void)
{
    expect(CHUNKED "0\r\n\r\n", SAID_CHUNKED " []\n");
    expect(CHUNKED "5\r\nhello\r\n0001\r\n!\r\n00\r\n\r\n", SAID_CHUNKED " [hello!]\n");
    expect(CHUNKED "A\r\n0123456789\r\na;n=v;m=\"q\"\r\n0\r\n345678\n\r\n0 ; x\r\n\r\n",
           SAID_CHUNKED " [01234567890\r\n345678\n]\n");
    expect(CHUNKED "1\r\nx\r\n0\r\nTrailer-1: v\r\nT2:\r\n\r\nGET", SAID_CHUNKED " [x]\n ...");
    static const char *const bad[] = {
        "\r\n", "x\r\n", " 1\r\n", "-1\r\n", "+1\r\n", "0x1\r\n", "1 \r\n", "1\n", "1\rx", "1;a\n", "1;a\rb\r\n", "1 x\r\n", ";\r\n",
        "1;\x01\r\n", "1\r\nxy\r\n", "1\r\nx\n", "1\r\nx\rx", "11111111111111111\r\n", "00000000000000000\r\n",
        "0\r\nX\r\n\r\n", "0\r\nX : y\r\n", "0\r\n X: y\r\n", "0\r\nX: y\r\n z\r\n", "0\r\nX: y\n\r\n", "0\r\nX: \x01\r\n",
        "0\r\n\n", "0\r\n\rx", "0\r\n: y\r\n", "0\r\nX: y\rz",
    };
    char text[256];
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
        snprintf(text, sizeof text, CHUNKED "%s", bad[i]);
        expect(text, SAID_CHUNKED " !400");
    }
    expect(CHUNKED "FFFFFFFFFFFFFFFF\r\n", SAID_CHUNKED " !413");
    expect(CHUNKED "1\r\nx\r\nFFFFFFFFFFFFFFFF\r\n", SAID_CHUNKED " !413");
    expect(CHUNKED "2000001\r\n", SAID_CHUNKED " !413");
}

/* text with `n` times `pad` in the place of '@'. */
static char *padded(const char *text, size_t n, char pad, size_t *len)
{
    const char *at = strchr(text, '@');
    size_t before = (size_t)(at - text), after = strlen(at + 1);
    char *s = malloc(before + n + after + 1);
    memcpy(s, text, before);
    memset(s + before, pad, n);
    memcpy(s + before + n, at + 1, after + 1);
    *len = before + n + after;
    return s;
}

static void expect_padded(const char *text, size_t n, const char *want, const pn_http_limits *limits)
{
    size_t len;
    char *s = padded(text, n, 'a', &len);
    if (!want) {                    /* it is read */
        pn_str out;
        pn_str_init(&out, &mem.mem, PN_ACCT_MISC);
        pn_str_addc(&out, ' ');
        read_pieces(&out, s, len, 0, limits);
        PN_CHECK(!strchr(pn_str_cstr(&out), '!') && strstr(pn_str_cstr(&out), "]\n"), "%zu", n);
        pn_str_fini(&out);
    } else {
        expect_n(s, len, want, limits);
    }
    free(s);
}

static void limits_are_kept_to_the_byte(void)
{
    const pn_http_limits small = {.line_max = 100, .head_max = 200, .body_max = 10};
    size_t line = strlen("GET / HTTP/1.1\r\n"), head = strlen(HOST "X: \r\n\r\n");
    expect_padded("GET /@ HTTP/1.1\r\n" HOST "\r\n", 100 - line, NULL, &small);
    expect_padded("GET /@ HTTP/1.1\r\n" HOST "\r\n", 101 - line, " !414", &small);
    expect_padded("GET / HTTP/1.1\r\n" HOST "X: @\r\n\r\n", 200 - head, NULL, &small);
    expect_padded("GET / HTTP/1.1\r\n" HOST "X: @\r\n\r\n", 201 - head, " !431", &small);
    expect_padded("GET /@ HTTP/1.1\r\n" HOST "\r\n", (16u << 10) - line, NULL, NULL);
    expect_padded("GET /@", 16u << 10, " !414", NULL);
    expect_padded("GET / HTTP/1.1\r\n" HOST "X: @", 64u << 10, " !431", NULL);
    expect_padded("GET / HTTP/1.1\r\n@", 1u << 20, " !431", NULL);
    expect_n(POST "Content-Length: 10\r\n\r\n0123456789", strlen(POST) + 32, SAID " Content-Length=<10> [0123456789]\n", &small);
    expect_n(POST "Content-Length: 11\r\n\r\n", strlen(POST) + 22, " !413", &small);
    expect_n(CHUNKED "5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n", strlen(CHUNKED) + 25, SAID_CHUNKED " [0123456789]\n", &small);
    expect_n(CHUNKED "5\r\n01234\r\n6\r\n56789\r\n0\r\n\r\n", strlen(CHUNKED) + 25, SAID_CHUNKED " !413", &small);
    expect_padded(CHUNKED "1;@\r\nx\r\n0\r\n\r\n", (16u << 10) - 1, NULL, NULL);
    expect_padded(CHUNKED "1;@\r\nx\r\n0\r\n\r\n", 16u << 10, SAID_CHUNKED " !400", NULL);
    expect_padded(CHUNKED "0\r\nX: @\r\n\r\n", 8u << 10, SAID_CHUNKED " !431", NULL);
    pn_str s;
    pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
    pn_str_addz(&s, "GET / HTTP/1.1\r\n" HOST);
    for (int i = 1; i < 100; i++)
        pn_str_addz(&s, "X: y\r\n");
    pn_str_addz(&s, "\r\n");
    char *copy = malloc(s.len + 8);
    size_t n = s.len;
    memcpy(copy, s.data, n);
    pn_str_fini(&s);
    pn_http_parser p;
    size_t used;
    pn_http_init(&p, &mem.mem, NULL);
    PN_CHECK(pn_http_feed(&p, copy, n, &used) == PN_FEED_HEAD && p.req.n_fields == 100);
    pn_http_next(&p);
    memcpy(copy + n - 2, "X: y\r\n\r\n", 8);
    PN_CHECK(pn_http_feed(&p, copy, n + 6, &used) == PN_FEED_FAULT && p.status == 431);
    pn_http_fini(&p);
    free(copy);
}

/* What is announced costs nothing; what comes costs about what it weighs. */
static void memory_follows_what_has_arrived(void)
{
    pn_http_parser p;
    size_t used;
    char block[1000];
    memset(block, 'x', sizeof block);
    PN_CHECK(sizeof p < 3000);
    for (int chunked = 0; chunked < 2; chunked++) {
        const char *head = chunked ? CHUNKED "2000000\r\n" : POST "Content-Length: 33554432\r\n\r\n";
        uint64_t got = 0;
        pn_http_init(&p, &mem.mem, NULL);
        PN_CHECK(mem.outstanding == 0);
        PN_CHECK(pn_http_feed(&p, head, strlen(head), &used) == PN_FEED_HEAD);
        head += used;
        PN_CHECK(pn_http_feed(&p, head, strlen(head), &used) == PN_FEED_MORE && mem.bytes <= 2048);
        for (int i = 0; i < 200; i++) {
            PN_CHECK(pn_http_feed(&p, block, sizeof block, &used) == PN_FEED_MORE);
            got += sizeof block;
            PN_CHECK(mem.bytes <= 2 * got + 2048, "%" PRIu64 " bytes for %" PRIu64, mem.bytes, got);
        }
        pn_http_next(&p);
        PN_CHECK(mem.outstanding == 0);
        pn_http_fini(&p);
    }
    /* The last doubling stops at the limit. */
    const pn_http_limits limits = {.body_max = 1100};
    pn_http_init(&p, &mem.mem, &limits);
    PN_CHECK(pn_http_feed(&p, CHUNKED, strlen(CHUNKED), &used) == PN_FEED_HEAD);
    PN_CHECK(pn_http_feed(&p, "44C\r\n", 5, &used) == PN_FEED_MORE);
    pn_http_feed(&p, block, 1000, &used);
    pn_http_feed(&p, block, 100, &used);
    PN_CHECK(p.body.len == 1100 && p.body.cap == 1101);
    pn_http_fini(&p);
}

static void a_body_can_be_taken_away(void)
{
    pn_http_parser p;
    pn_str body;
    size_t used;
    pn_http_init(&p, &mem.mem, NULL);
    const char *s = POST "Content-Length: 5\r\n\r\nhello";
    PN_CHECK(pn_http_feed(&p, s, strlen(s), &used) == PN_FEED_HEAD);
    PN_CHECK(pn_http_feed(&p, s + used, strlen(s) - used, &used) == PN_FEED_REQUEST);
    pn_http_take_body(&p, &body);
    PN_CHECK(strcmp(body.data, "hello") == 0 && body.len == 5 && p.req.body.len == 0 && p.req.body.data[0] == 0);
    pn_http_next(&p);
    pn_str_fini(&body);
    pn_http_fini(&p);
    PN_CHECK(mem.outstanding == 0);
}

static void fields_and_parameters_are_found(void)
{
    static const char text[] = "GET /?a=1&b&ab=%41+c%2b&bad=%4&a=2&=e&end= HTTP/1.1\r\n" HOST "X-A: 1\r\nx-a: 2\r\nX-AB: 3\r\n\r\n";
    pn_http_parser p;
    pn_str out;
    size_t used;
    pn_str_init(&out, &mem.mem, PN_ACCT_MISC);
    pn_http_init(&p, &mem.mem, NULL);
    PN_CHECK(pn_http_feed(&p, text, sizeof text - 1, &used) == PN_FEED_HEAD);
    const pn_http_request *r = &p.req;
    PN_CHECK(r->method == PN_METHOD_GET && pn_http_find(r, "X-a", 0) == 1 && pn_http_find(r, "X-a", 2) == 2);
    PN_CHECK(pn_http_find(r, "X-a", 3) == r->n_fields && !pn_http_get(r, "none").data);
    PN_CHECK(pn_http_is(pn_http_get(r, "x-ab"), "3"));
    static const struct { const char *name, *value; } want[] = {
        {"a", "1"}, {"b", ""}, {"ab", "A c+"}, {"end", ""}, {"", "e"}, {"bad", NULL}, {"c", NULL}, {"en", NULL},
    };
    for (size_t i = 0; i < PN_COUNT_OF(want); i++) {
        pn_str_clear(&out);
        bool found = pn_http_query(r, want[i].name, &out);
        PN_CHECK(found == (want[i].value != NULL), "%s", want[i].name);
        PN_CHECK(!found || strcmp(pn_str_cstr(&out), want[i].value) == 0, "%s=%s", want[i].name, pn_str_cstr(&out));
    }
    pn_str_fini(&out);
    pn_http_fini(&p);
    pn_bytes e, list = {" a ,, b,", 8};
    size_t at = 0;
    PN_CHECK(pn_http_list(list, &at, &e) && pn_http_is(e, "a") && pn_http_list(list, &at, &e) && e.len == 0);
    PN_CHECK(pn_http_list(list, &at, &e) && pn_http_is(e, "B") && pn_http_list(list, &at, &e) && e.len == 0);
    PN_CHECK(!pn_http_list(list, &at, &e));
}

static void every_method_is_known(void)
{
    static const struct { const char *name; pn_method method; } all[] = {
        {"GET", PN_METHOD_GET}, {"HEAD", PN_METHOD_HEAD}, {"POST", PN_METHOD_POST}, {"PUT", PN_METHOD_PUT},
        {"PATCH", PN_METHOD_PATCH}, {"DELETE", PN_METHOD_DELETE}, {"OPTIONS", PN_METHOD_OPTIONS},
        {"get", PN_METHOD_OTHER}, {"GETS", PN_METHOD_OTHER}, {"TRACE", PN_METHOD_OTHER},
    };
    for (size_t i = 0; i < PN_COUNT_OF(all); i++) {
        char text[64];
        size_t used;
        pn_http_parser p;
        pn_http_init(&p, &mem.mem, NULL);
        snprintf(text, sizeof text, "%s / HTTP/1.1\r\n" HOST "\r\n", all[i].name);
        PN_CHECK(pn_http_feed(&p, text, strlen(text), &used) == PN_FEED_HEAD && p.req.method == all[i].method);
        pn_http_fini(&p);
    }
}

/* Each allocation fails in turn: 503, nothing leaks, and the parser can go on afterwards. */
static void out_of_memory_is_a_fault(void)
{
    static const char text[] = "POST /abc?q HTTP/1.1\r\n" HOST "X: " /* more than a first block */
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\r\n";
    long n_failed = 0;
    for (long fail_at = 1; fail_at < 100; fail_at++) {
        pn_test_mem m;
        pn_http_parser p;
        pn_feed fed = PN_FEED_MORE;
        size_t used;
        char block[3000];
        pn_test_mem_init(&m, fail_at);
        pn_http_init(&p, &m.mem, NULL);
        memset(block, 'x', sizeof block);
        fed = pn_http_feed(&p, text, sizeof text - 1, &used);
        for (int i = 0; i < 20 && fed == PN_FEED_MORE; i++) {
            fed = pn_http_feed(&p, "Y: ", 3, &used);
            if (fed == PN_FEED_MORE)
                fed = pn_http_feed(&p, block, 200, &used);
            if (fed == PN_FEED_MORE)
                fed = pn_http_feed(&p, "\r\n", 2, &used);
        }
        if (fed == PN_FEED_MORE)
            fed = pn_http_feed(&p, "Content-Length: 9000\r\n\r\n", 24, &used);
        for (int i = 0; i < 3 && (fed == PN_FEED_MORE || fed == PN_FEED_HEAD); i++)
            fed = pn_http_feed(&p, block, sizeof block, &used);
        if (fed == PN_FEED_FAULT) {
            PN_CHECK(p.status == 503);
            n_failed++;
        } else {
            PN_CHECK(fed == PN_FEED_REQUEST && p.req.body.len == 9000 && strcmp(p.req.path.data, "/abc") == 0);
            PN_CHECK(strcmp(p.req.host.data, "h") == 0 && strcmp(p.req.query.data, "q") == 0);
        }
        pn_http_next(&p);
        PN_CHECK(m.outstanding == 0);
        m.fail_at = 0;
        PN_CHECK(pn_http_feed(&p, "GET / HTTP/1.1\r\n" HOST "\r\n", 27, &used) == PN_FEED_HEAD);
        pn_http_fini(&p);
        PN_CHECK(m.outstanding == 0);
        if (fed != PN_FEED_FAULT)
            break;
    }
    PN_CHECK(n_failed >= 5, "%ld", n_failed);
}

int main(void)
{
    pn_test_mem_init(&mem, 0);
    a_request_is_read();
    an_unfinished_request_waits();
    what_follows_a_request_is_the_next();
    the_connection_lives_as_both_sides_wish();
    expectations_are_met_or_refused();
    targets_are_decoded_and_checked();
    malformed_heads_are_refused();
    smuggled_requests_are_refused();
    chunks_are_joined();
    limits_are_kept_to_the_byte();
    memory_follows_what_has_arrived();
    a_body_can_be_taken_away();
    fields_and_parameters_are_found();
    every_method_is_known();
    out_of_memory_is_a_fault();
    return pn_test_end();
}
