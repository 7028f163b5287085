/* SPDX-License-Identifier: AGPL-3.0-only */
/* Replies are framed as their status, method and version demand; keys and origins are checked. */
#include "pn_test.h"

#include "serve/pn_access.h"
#include "serve/pn_http_reply.h"

static pn_test_mem mem;

/* All that is queued, as text; the queue is empty afterwards.  Valid until the next call. */
static const char *sent(pn_sendq *q)
{
    static char text[16384];
    size_t n = 0;
    for (pn_bytes b = pn_sendq_peek(q); b.len; b = pn_sendq_peek(q)) {
        if (n + b.len >= sizeof text)
            break;
        memcpy(text + n, b.data, b.len);
        n += b.len;
        pn_sendq_drop(q, b.len);
    }
    text[n] = 0;
    return text;
}

static void says(pn_sendq *q, pn_status st, const char *want)
{
    const char *got = sent(q);
    PN_CHECK(st == PN_OK && strcmp(got, want) == 0, "%d\n%s\nnot\n%s", (int)st, got, want);
}

static void whole_replies_have_a_length(void)
{
    pn_sendq q;
    pn_sendq_init(&q, &mem.mem, NULL);
    pn_http_reply r = {.status = 200, .content_type = "text/plain"};
    says(&q, pn_http_reply_whole(&q, &r, "hello", 5),
         "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello");
    says(&q, pn_http_reply_whole(&q, &(pn_http_reply){.status = 404, .close = true, .date = "D"}, "", 0),
         "HTTP/1.1 404 Not Found\r\nDate: D\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    says(&q, pn_http_reply_whole(&q, &(pn_http_reply){.status = 200, .head = true}, "hello", 5),
         "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    says(&q, pn_http_reply_whole(&q, &(pn_http_reply){.status = 204}, "x", 1), "HTTP/1.1 204 No Content\r\n\r\n");
    says(&q, pn_http_reply_whole(&q, &(pn_http_reply){.status = 304}, "x", 1), "HTTP/1.1 304 Not Modified\r\n\r\n");
    says(&q, pn_http_reply_whole(&q, &(pn_http_reply){.status = 200, .http10 = true}, "x", 1),
         "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx");
    says(&q, pn_http_reply_whole(&q, &(pn_http_reply){.status = 599}, NULL, 0),
         "HTTP/1.1 599 Unknown\r\nContent-Length: 0\r\n\r\n");
    says(&q, pn_http_reply_continue(&q), "HTTP/1.1 100 Continue\r\n\r\n");
    pn_sendq_fini(&q);
    PN_CHECK(mem.outstanding == 0);
}

static void a_body_is_handed_over_not_copied(void)
{
    pn_sendq q;
    pn_str body;
    pn_sendq_init(&q, &mem.mem, &(pn_sendq_limits){.max = 100});
    pn_str_init(&body, &mem.mem, PN_ACCT_MISC);
    for (int i = 0; i < 1000; i++)
        pn_str_addf(&body, "%d,", i % 10);
    const char *at = body.data;
    PN_CHECK(pn_http_reply_whole(&q, &(pn_http_reply){.status = 200}, body.data, body.len) == PN_E_INVALID);
    PN_CHECK(pn_http_reply_give(&q, &(pn_http_reply){.status = 200}, &body) == PN_OK && body.len == 0 && !body.data);
    PN_CHECK(pn_sendq_len(&q) == 2000 + strlen("HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n"));
    PN_CHECK(pn_sendq_reserve(&q, 1, 0) == PN_E_STATE);
    pn_sendq_drop(&q, pn_sendq_peek(&q).len);
    PN_CHECK(pn_sendq_peek(&q).data == at && pn_sendq_peek(&q).len == 2000);
    pn_sendq_drop(&q, 1999);
    PN_CHECK(pn_sendq_peek(&q).len == 1 && pn_sendq_len(&q) == 1);
    pn_sendq_drop(&q, 1);
    PN_CHECK(pn_sendq_len(&q) == 0 && mem.outstanding == 1);    /* the head's buffer */
    pn_str_addz(&body, "x");
    PN_CHECK(pn_http_reply_give(&q, &(pn_http_reply){.status = 200, .head = true}, &body) == PN_OK && !body.data);
    PN_CHECK(strstr(sent(&q), "Content-Length: 1\r\n\r\n"));
    PN_CHECK(pn_http_reply_give(&q, &(pn_http_reply){.status = 200}, &body) == PN_OK);
    PN_CHECK(strstr(sent(&q), "Content-Length: 0\r\n\r\n"));
    pn_sendq_fini(&q);
    PN_CHECK(mem.outstanding == 0);
}

static void streams_are_chunked_where_the_client_knows_chunks(void)
{
    pn_sendq q;
    pn_framing f;
    const pn_bytes parts[] = {{"ab", 2}, {"", 0}, {"cdefghijklmnop", 14}};
    pn_sendq_init(&q, &mem.mem, NULL);
    says(&q, pn_http_reply_stream(&q, &(pn_http_reply){.status = 200}, &f),
         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    PN_CHECK(f == PN_FRAMING_CHUNKS);
    says(&q, pn_http_stream_put(&q, f, parts, 3, 0), "10\r\nabcdefghijklmnop\r\n");
    says(&q, pn_http_stream_put(&q, f, parts + 1, 1, 0), "");
    says(&q, pn_http_stream_end(&q, f), "0\r\n\r\n");
    says(&q, pn_http_reply_stream(&q, &(pn_http_reply){.status = 200, .http10 = true}, &f),
         "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    PN_CHECK(f == PN_FRAMING_CLOSE);
    says(&q, pn_http_stream_put(&q, f, parts, 1, 0), "ab");
    says(&q, pn_http_stream_end(&q, f), "");
    says(&q, pn_http_reply_stream(&q, &(pn_http_reply){.status = 200, .head = true}, &f),
         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    PN_CHECK(f == PN_FRAMING_NONE);
    says(&q, pn_http_stream_put(&q, f, parts, 1, 0), "");
    says(&q, pn_http_stream_end(&q, f), "");
    pn_sendq_fini(&q);
    PN_CHECK(mem.outstanding == 0);
}

static void fields_cannot_split_a_reply(void)
{
    static const char *const bad[][2] = {
        {"X", "a\r\nY: b"}, {"X", "a\n"}, {"X", "\x7F"}, {"X y", "a"}, {"", "a"}, {"X:", "a"}, {"X\r\n", "a"},
    };
    pn_sendq q;
    pn_str f;
    pn_sendq_init(&q, &mem.mem, NULL);
    pn_str_init(&f, &mem.mem, PN_ACCT_MISC);
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
        pn_http_add(&f, bad[i][0], bad[i][1]);
        PN_CHECK(f.failed && f.len == 0);
        PN_CHECK(pn_http_reply_whole(&q, &(pn_http_reply){.status = 200, .fields = &f}, "", 0) == PN_E_NOMEM);
        PN_CHECK(pn_http_reply_whole(&q, &(pn_http_reply){.status = 200, .content_type = "a\nb"}, "", 0) == PN_E_NOMEM);
        PN_CHECK(pn_sendq_len(&q) == 0);
        pn_str_clear(&f);
    }
    pn_http_add(&f, "X-A", "1");
    pn_http_add(&f, "X-B", "");
    says(&q, pn_http_reply_whole(&q, &(pn_http_reply){.status = 200, .fields = &f}, "", 0),
         "HTTP/1.1 200 OK\r\nX-A: 1\r\nX-B: \r\nContent-Length: 0\r\n\r\n");
    pn_str_fini(&f);
    pn_sendq_fini(&q);
    PN_CHECK(mem.outstanding == 0);
}

static void dates_are_written_as_http_wants(void)
{
    static const struct { int64_t s; const char *text; } known[] = {
        {784111777, "Sun, 06 Nov 1994 08:49:37 GMT"},       /* RFC 9110 5.6.7 */
        {0, "Thu, 01 Jan 1970 00:00:00 GMT"},
        {-5, "Thu, 01 Jan 1970 00:00:00 GMT"},
        {951782400, "Tue, 29 Feb 2000 00:00:00 GMT"},
        {951868799, "Tue, 29 Feb 2000 23:59:59 GMT"},
        {951868800, "Wed, 01 Mar 2000 00:00:00 GMT"},
        {1735689599, "Tue, 31 Dec 2024 23:59:59 GMT"},
        {4107542400, "Mon, 01 Mar 2100 00:00:00 GMT"},
        {INT64_MAX, "Fri, 31 Dec 9999 23:59:59 GMT"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(known); i++) {
        char out[30];
        pn_http_date(known[i].s, out);
        PN_CHECK(strcmp(out, known[i].text) == 0, "%s not %s", out, known[i].text);
    }
}

static void a_reply_is_queued_whole_or_not_at_all(void)
{
    long fail_at = 1;
    for (bool ok = false; !ok && fail_at < 50; fail_at++) {
        pn_test_mem m;
        pn_sendq q;
        pn_str body, f;
        pn_framing framing;
        pn_test_mem_init(&m, fail_at);
        pn_sendq_init(&q, &m.mem, NULL);
        pn_str_init(&body, &m.mem, PN_ACCT_MISC);
        pn_str_init(&f, &m.mem, PN_ACCT_MISC);
        pn_http_add(&f, "X-Long", "0123456789012345678901234567890123456789012345678901234567890123456789");
        pn_http_reply r = {.status = 200, .fields = &f, .content_type = "a/b"};
        pn_status st = pn_http_reply_whole(&q, &r, "hello", 5);
        PN_CHECK(st == PN_OK ? pn_sendq_len(&q) != 0 : st == PN_E_NOMEM && pn_sendq_len(&q) == 0);
        ok = st == PN_OK;
        size_t had = pn_sendq_len(&q);
        pn_str_addz(&body, "0123456789");
        st = pn_http_reply_stream(&q, &r, &framing);
        PN_CHECK(st == PN_OK || (st == PN_E_NOMEM && pn_sendq_len(&q) == had));
        ok &= st == PN_OK;
        had = pn_sendq_len(&q);
        st = pn_http_reply_give(&q, &r, &body);
        PN_CHECK(st == PN_OK ? !body.data : st == PN_E_NOMEM && pn_sendq_len(&q) == had && (body.data || body.failed));
        ok &= st == PN_OK;
        pn_str_fini(&f);
        pn_str_fini(&body);
        pn_sendq_fini(&q);
        PN_CHECK(m.outstanding == 0);
    }
    PN_CHECK(fail_at > 6 && fail_at < 50);
}

/* ------------------------------------------------------------------------------------------ */

/* A parser that has read a head with these field lines, "GET / HTTP/1.1" if no line is given. */
static void request(pn_http_parser *p, const char *line, const char *fields)
{
    char text[2048];
    size_t used;
    snprintf(text, sizeof text, "%s\r\nHost: h\r\n%s\r\n", line, fields);
    pn_http_init(p, &mem.mem, NULL);
    PN_CHECK(pn_http_feed(p, text, strlen(text), &used) == PN_FEED_HEAD, "%s: %s", fields, p->message);
}

static void keys_open_the_door(void)
{
    static const struct { const char *fields; pn_key_check want; } tries[] = {
        {"", PN_KEY_MISSING},
        {"Authorization: Bearer sk-one\r\n", PN_KEY_OK}, {"authorization: bearer   sk-two\r\n", PN_KEY_OK},
        {"Authorization: sk-two\r\n", PN_KEY_OK}, {"X-Api-Key: sk-one\r\n", PN_KEY_OK}, {"api-key: sk-two\r\n", PN_KEY_OK},
        {"Authorization: Bearer sk-on\r\n", PN_KEY_WRONG}, {"Authorization: Bearer sk-onee\r\n", PN_KEY_WRONG},
        {"Authorization: Bearer SK-ONE\r\n", PN_KEY_WRONG}, {"Authorization: Bearersk-one\r\n", PN_KEY_WRONG},
        {"Authorization: Basic sk-one\r\n", PN_KEY_WRONG}, {"Authorization: Bearer\r\n", PN_KEY_WRONG},
        {"Authorization:\r\n", PN_KEY_MISSING}, {"Authorization: Bearer sk-one x\r\n", PN_KEY_WRONG},
        {"x-api-key: Bearer sk-one\r\n", PN_KEY_WRONG}, {"x-api-key: sk-onesk-one\r\n", PN_KEY_WRONG},
        {"x-api-key: bad\r\nAuthorization: Bearer sk-one\r\n", PN_KEY_OK},
        {"Authorization: Bearer bad\r\nAuthorization: Bearer sk-one\r\n", PN_KEY_OK},
        {"cookie: sk-one\r\n", PN_KEY_MISSING},
    };
    static const char file[] = "\xEF\xBB\xBF# ours\r\n\r\n  sk-one\t# alice\r\n#sk-three\nsk-two";
    pn_keys k;
    pn_http_parser p;
    pn_err err = {0};
    pn_keys_init(&k, &mem.mem);
    request(&p, "GET / HTTP/1.1", "");
    PN_CHECK(pn_keys_check(&k, &p.req) == PN_KEY_OK);
    pn_http_fini(&p);
    PN_CHECK(pn_keys_load(&k, file, sizeof file - 1, &err) == PN_OK && k.n == 2, "%s", err.text);
    for (size_t i = 0; i < PN_COUNT_OF(tries); i++) {
        request(&p, "GET / HTTP/1.1", tries[i].fields);
        PN_CHECK(pn_keys_check(&k, &p.req) == tries[i].want, "%s", tries[i].fields);
        pn_http_fini(&p);
    }
    PN_CHECK(!pn_keys_have(&k, "", 0) && !pn_keys_have(&k, "sk-one\0sk-two", 13) && pn_keys_have(&k, "sk-one", 6));
    pn_keys_fini(&k);
    PN_CHECK(mem.outstanding == 0);
}

static void bad_key_files_are_told_by_line(void)
{
    static const char *const bad[][2] = {
        {"ok\nsec ret\n", "line 2:"}, {"s\xC3\xA9" "cret", "line 1:"}, {"\n\na\x01" "b", "line 3:"},
    };
    pn_keys k;
    pn_err err;
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
        pn_keys_init(&k, &mem.mem);
        PN_CHECK(pn_keys_load(&k, bad[i][0], strlen(bad[i][0]), &err) == PN_E_FORMAT);
        PN_CHECK(strstr(err.text, bad[i][1]) && !strstr(err.text, "sec") && !strstr(err.text, "cret"), "%s", err.text);
        pn_keys_fini(&k);
    }
    char key[PN_KEY_BYTES_MAX + 1];
    memset(key, 'k', sizeof key);
    pn_keys_init(&k, &mem.mem);
    PN_CHECK(pn_keys_add(&k, key, sizeof key, NULL) == PN_E_FORMAT && pn_keys_add(&k, key, 0, NULL) == PN_E_FORMAT);
    PN_CHECK(pn_keys_add(&k, key, sizeof key - 1, NULL) == PN_OK && pn_keys_have(&k, key, sizeof key - 1));
    PN_CHECK(pn_keys_load(&k, "", 0, NULL) == PN_OK && k.n == 1);
    pn_keys_fini(&k);
    for (long fail_at = 1; fail_at < 10; fail_at++) {
        pn_test_mem m;
        pn_test_mem_init(&m, fail_at);
        pn_keys_init(&k, &m.mem);
        pn_status st = PN_OK;
        for (int i = 0; i < 4 && !st; i++)
            st = pn_keys_add(&k, key, 200, &err);
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM);
        PN_CHECK((st ? k.n < 4 : k.n == 4) && (!k.n || pn_keys_have(&k, key, 200)));
        pn_keys_fini(&k);
        PN_CHECK(m.outstanding == 0);
    }
    PN_CHECK(mem.outstanding == 0);
}

static void cors(const pn_cors *c, const char *line, const char *fields, const char *want)
{
    pn_http_parser p;
    pn_str s;
    pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
    request(&p, line, fields);
    pn_cors_add(&s, c, &p.req);
    if (pn_cors_is_preflight(&p.req))
        pn_cors_add_preflight(&s, c, &p.req);
    PN_CHECK(!s.failed && strcmp(pn_str_cstr(&s), want) == 0, "%s gives\n%s\nnot\n%s", fields, pn_str_cstr(&s), want);
    pn_str_fini(&s);
    pn_http_fini(&p);
}

#define EXPOSE "Access-Control-Expose-Headers: x-request-id, retry-after, retry-after-ms, x-should-retry, x-pantheon-ignored, x-pantheon-pressure\r\n"
#define ASK "Access-Control-Request-Method: POST\r\n"
#define METHODS "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\n"

static void origins_get_what_they_may(void)
{
    static const char *const any[] = {"*"}, *const two[] = {"http://a", "https://b:1"};
    const pn_cors none = {0}, open = {.origins = any, .n_origins = 1}, list = {.origins = two, .n_origins = 2},
                  trusted = {.origins = any, .n_origins = 1, .credentials = true};
    const char *get = "GET / HTTP/1.1", *options = "OPTIONS /v1/x HTTP/1.1";
    cors(&none, get, "Origin: http://a\r\n", "");
    cors(&none, options, "Origin: http://a\r\n" ASK, "");
    cors(&open, get, "", "Access-Control-Allow-Origin: *\r\n" EXPOSE);
    cors(&open, get, "Origin: null\r\n", "Access-Control-Allow-Origin: *\r\n" EXPOSE);
    cors(&list, get, "Origin: https://b:1\r\n", "Vary: Origin\r\nAccess-Control-Allow-Origin: https://b:1\r\n" EXPOSE);
    cors(&list, get, "Origin: https://b\r\n", "Vary: Origin\r\n");
    cors(&list, get, "Origin: http://a.evil\r\n", "Vary: Origin\r\n");
    cors(&list, get, "", "Vary: Origin\r\n");
    cors(&list, options, "Origin: http://c\r\n" ASK, "Vary: Origin\r\n");
    cors(&trusted, get, "Origin: http://x\r\n",
         "Vary: Origin\r\nAccess-Control-Allow-Origin: http://x\r\nAccess-Control-Allow-Credentials: true\r\n" EXPOSE);
    cors(&trusted, get, "Origin: null\r\n", "Vary: Origin\r\n");
    cors(&open, options, "Origin: http://a\r\n" ASK,
         "Access-Control-Allow-Origin: *\r\n" EXPOSE METHODS "Access-Control-Allow-Headers: *, Authorization\r\n"
         "Access-Control-Max-Age: 600\r\n");
    cors(&open, options, "Origin: http://a\r\n" ASK "Access-Control-Request-Headers: authorization, x-stainless-os\r\n"
         "Access-Control-Request-Private-Network: true\r\n",
         "Access-Control-Allow-Origin: *\r\n" EXPOSE METHODS
         "Access-Control-Allow-Headers: authorization, x-stainless-os\r\nAccess-Control-Max-Age: 600\r\n"
         "Access-Control-Allow-Private-Network: true\r\n");
    cors(&trusted, options, "Origin: http://a\r\n" ASK "Access-Control-Request-Headers: a b\r\n",
         "Vary: Origin\r\nAccess-Control-Allow-Origin: http://a\r\nAccess-Control-Allow-Credentials: true\r\n" EXPOSE METHODS
         "Access-Control-Allow-Headers: Authorization, Content-Type, x-api-key, api-key, anthropic-version, anthropic-beta\r\n"
         "Access-Control-Max-Age: 600\r\n");
    cors(&open, "POST / HTTP/1.1", "Origin: http://a\r\n" ASK, "Access-Control-Allow-Origin: *\r\n" EXPOSE);
    PN_CHECK(mem.outstanding == 0);
}

int main(void)
{
    pn_test_mem_init(&mem, 0);
    whole_replies_have_a_length();
    a_body_is_handed_over_not_copied();
    streams_are_chunked_where_the_client_knows_chunks();
    fields_cannot_split_a_reply();
    dates_are_written_as_http_wants();
    a_reply_is_queued_whole_or_not_at_all();
    keys_open_the_door();
    bad_key_files_are_told_by_line();
    origins_get_what_they_may();
    return pn_test_end();
}
