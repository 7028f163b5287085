/* SPDX-License-Identifier: AGPL-3.0-only */
/* Replies whose body comes from elsewhere: framed as the client understands, and nothing of ours in between. */
#include "pn_test.h"

#include "serve/pn_conn.h"

static pn_test_mem mem;

static pn_str got;

static void drain(pn_conn *c, uint64_t now)
{
    for (pn_bytes b; (b = pn_conn_output(c)).len;) {
        pn_str_add(&got, b.data, b.len);
        pn_conn_sent(c, b.len, now);
    }
}

/* Ask, relay `pieces`, end; what the client gets. */
static void relay(const char *request, const pn_http_reply *r, const char *const *pieces, const char *want, bool closes)
{
    pn_conn c;
    pn_conn_init(&c, &mem.mem, NULL, 0);
    pn_str_clear(&got);
    pn_conn_input(&c, request, strlen(request), 0);
    PN_CHECK(pn_conn_next(&c, 0) == PN_CONN_HEAD && pn_conn_next(&c, 0) == PN_CONN_REQUEST);
    PN_CHECK(pn_conn_relay(&c, r) == PN_OK && pn_conn_relay(&c, r) == PN_E_STATE);
    drain(&c, 0);
    PN_CHECK(pn_conn_next(&c, 100000) == PN_CONN_NOTHING && pn_conn_output(&c).len == 0 && pn_conn_deadline(&c) == UINT64_MAX);
    for (; *pieces; pieces++) {
        PN_CHECK(pn_conn_put(&c, *pieces, strlen(*pieces)) == PN_OK);
        drain(&c, 100000);
    }
    PN_CHECK(pn_sse_end(&c.sse, false) == PN_OK && pn_conn_put(&c, "x", 1) == PN_E_STATE);
    drain(&c, 100000);
    PN_CHECK(pn_conn_next(&c, 100000) == (closes ? PN_CONN_CLOSE : PN_CONN_NOTHING));
    PN_CHECK(strcmp(pn_str_cstr(&got), want) == 0, "\n%s\nnot\n%s", pn_str_cstr(&got), want);
    if (!closes) {
        PN_CHECK(c.state == PN_CONN_IDLE && !c.quiet);
        pn_conn_input(&c, request, strlen(request), 100000);
        PN_CHECK(pn_conn_next(&c, 100000) == PN_CONN_HEAD);
    }
    pn_conn_fini(&c);
}

#define GET "GET / HTTP/1.1\r\nHost: h\r\n\r\n"
#define LIST(...) (const char *const[]){__VA_ARGS__, NULL}

static void bodies_are_framed_as_the_client_understands(void)
{
    const pn_http_reply open = {.status = 200}, five = {.status = 404, .has_length = true, .length = 5}, none = {.status = 204}, same = {.status = 304, .has_length = true, .length = 9};
    relay(GET, &open, LIST("ab", "c"), "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", false);
    relay(GET, &five, LIST("ab", "cde"), "HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nabcde", false);
    relay("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n", &five, LIST("ab"), "HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\n", false);
    relay("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", &open, LIST("ab", "c"), "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc", true);
    relay("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", &five, LIST("abcde"),
          "HTTP/1.1 404 Not Found\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nabcde", false);
    relay(GET, &none, LIST("x"), "HTTP/1.1 204 No Content\r\n\r\n", false);
    relay(GET, &same, LIST("x"), "HTTP/1.1 304 Not Modified\r\n\r\n", false);
    relay("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", &five, LIST("abcde"),
          "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 5\r\n\r\nabcde", true);
}

static void a_client_that_leaves_is_noticed(void)
{
    pn_conn c;
    pn_conn_init(&c, &mem.mem, NULL, 0);
    pn_conn_input(&c, GET, sizeof GET - 1, 0);
    PN_CHECK(pn_conn_next(&c, 0) == PN_CONN_HEAD && pn_conn_next(&c, 0) == PN_CONN_REQUEST);
    PN_CHECK(pn_conn_relay(&c, &(pn_http_reply){.status = 200}) == PN_OK && pn_conn_put(&c, "x", 1) == PN_OK);
    PN_CHECK(pn_conn_next(&c, 0) == PN_CONN_NOTHING && pn_conn_deadline(&c) == 60000);     /* it should read */
    PN_CHECK(pn_conn_next(&c, 60000) == PN_CONN_ABORT && pn_conn_next(&c, 60000) == PN_CONN_CLOSE);
    PN_CHECK(pn_conn_put(&c, "x", 1) == PN_E_STATE);
    pn_conn_fini(&c);
}

int main(void)
{
    pn_mem libc;
    pn_test_mem_init(&mem, 0);
    pn_mem_init_libc(&libc);
    pn_str_init(&got, &libc, PN_ACCT_MISC);
    bodies_are_framed_as_the_client_understands();
    a_client_that_leaves_is_noticed();
    pn_str_fini(&got);
    PN_CHECK(mem.outstanding == 0);
    return pn_test_end();
}
