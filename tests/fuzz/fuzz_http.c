/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_http.c - any bytes as what a client sends.  The requests must not depend on how the bytes are
 * cut, memory must follow what has arrived, and a connection must come to its end.
 */
#include "pn_fuzz.h"

#include "serve/pn_access.h"
#include "serve/pn_conn.h"

#define FUZZ_HTTP_BODY_MAX 4096u

/* A pn_mem that counts, for the bound. */
typedef struct fuzz_http_mem {
    pn_mem mem, libc;
    size_t bytes, most;
    long blocks;
} fuzz_http_mem;

static void *fuzz_http_alloc(pn_mem *m, pn_account a, size_t size)
{
    fuzz_http_mem *f = (fuzz_http_mem *)m;
    f->bytes += size;
    f->most = PN_MAX(f->most, f->bytes);
    f->blocks++;
    return pn_mem_alloc(&f->libc, a, size);
}

static void fuzz_http_free(pn_mem *m, pn_account a, void *ptr, size_t size)
{
    fuzz_http_mem *f = (fuzz_http_mem *)m;
    f->bytes -= size;
    f->blocks--;
    pn_mem_free(&f->libc, a, ptr, size);
}

static void fuzz_http_mem_init(fuzz_http_mem *f)
{
    *f = (fuzz_http_mem){.mem = {fuzz_http_alloc, fuzz_http_free}};
    pn_mem_init_libc(&f->libc);
}

static uint64_t fuzz_http_mix(uint64_t h, const void *data, size_t n)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001B3u;
    return (h ^ n) * 0x100000001B3u;
}

static uint64_t fuzz_http_text(uint64_t h, pn_bytes b)
{
    if (b.data && (b.data[b.len] != 0 || memchr(b.data, 0, b.len)))
        abort();
    return fuzz_http_mix(h, b.data ? b.data : "-", b.data ? b.len : 1);
}

/* Everything a server would look at. */
static uint64_t fuzz_http_head(uint64_t h, const pn_http_request *r)
{
    const bool bits[] = {r->http10, r->keep_alive, r->chunked, r->has_length, r->expect_continue};
    if (r->chunked && r->has_length)
        abort();
    if (r->path.len == 0 || (r->path.data[0] != '/' && r->method != PN_METHOD_OPTIONS))
        abort();
    h = fuzz_http_mix(h, bits, sizeof bits);
    h = fuzz_http_text(fuzz_http_text(h, r->method_text), r->path);
    h = fuzz_http_text(fuzz_http_text(h, r->query), r->host);
    for (uint32_t i = 0; i < r->n_fields; i++) {
        pn_bytes name = pn_http_field_name(r, i), v = pn_http_field_value(r, i);
        h = fuzz_http_text(fuzz_http_text(h, name), v);
        if (!pn_http_is_token(name.data, name.len) || !pn_http_is_value(v.data, v.len) || pn_http_find(r, name.data, 0) > i)
            abort();
    }
    return h;
}

/* Parse in pieces that `cut` chooses (0: at once, 1: bytes); a digest of what came out. */
static uint64_t fuzz_http_parse(const uint8_t *data, size_t size, uint64_t cut)
{
    const pn_http_limits limits = {.line_max = 1024, .head_max = 4096, .body_max = FUZZ_HTTP_BODY_MAX};
    fuzz_http_mem m;
    pn_http_parser p;
    uint64_t h = 0xCBF29CE484222325u;
    pn_feed fed = PN_FEED_MORE;
    fuzz_http_mem_init(&m);
    pn_http_init(&p, &m.mem, &limits);
    for (size_t at = 0; at < size && fed != PN_FEED_FAULT;) {
        size_t left = size - at, piece = cut > 1 ? (size_t)(pn_test_rand(&cut) % 40) : 1;
        size_t n = cut == 0 ? left : PN_MIN(left, piece);
        for (size_t used; ; n -= used) {
            fed = pn_http_feed(&p, (const char *)data + at, n, &used);
            at += used;
            if (fed == PN_FEED_MORE)
                break;
            h = fuzz_http_mix(h, &fed, sizeof fed);
            if (fed == PN_FEED_HEAD)
                h = fuzz_http_head(h, &p.req);
            if (fed == PN_FEED_REQUEST) {
                h = fuzz_http_mix(h, p.req.body.data, p.req.body.len);
                pn_http_next(&p);
                if (m.blocks)
                    abort();
                if (used == n)
                    break;
            }
            if (fed == PN_FEED_FAULT) {
                h = fuzz_http_mix(h, &p.status, sizeof p.status);
                h = fuzz_http_text(h, pn_http_get(&p.req, "origin"));   /* as the answer to it does */
                break;
            }
        }
    }
    h = fuzz_http_mix(h, &(bool){pn_http_begun(&p)}, sizeof(bool));
    pn_http_fini(&p);
    if (m.blocks || m.most > 3 * (1024 + 4096 + FUZZ_HTTP_BODY_MAX) || m.most > 6 * size + 4096)
        abort();
    return h;
}

/* A server that answers somehow, and a client that is slow, deaf or leaves. */
static void fuzz_http_serve(const uint8_t *data, size_t size, uint64_t seed)
{
    const pn_conn_params params = {
        .http = {.line_max = 1024, .head_max = 4096, .body_max = FUZZ_HTTP_BODY_MAX},
        .queue = {.max = 16384}, .pending_max = 2048, .half_close = seed & 1,
    };
    static const char *const any[] = {"*"};
    const pn_cors cors = {.origins = any, .n_origins = 1, .credentials = seed & 2};
    fuzz_http_mem m;
    pn_conn c;
    pn_keys keys;
    uint64_t now = 0;
    bool closed = false, at_work = false;      /* at_work: asked, and not yet answered */
    fuzz_http_mem_init(&m);
    pn_keys_init(&keys, &m.mem);
    pn_keys_add(&keys, "sk-1", 4, NULL);
    pn_conn_init(&c, &m.mem, &params, now);
    for (int idle = 0; !closed; idle++) {
        size_t piece = (size_t)(pn_test_rand(&seed) % 300), room = pn_conn_room(&c);
        size_t n = PN_MIN(PN_MIN(size, room), piece);
        pn_conn_input(&c, (const char *)data, n, now);
        data += n;
        size -= n;
        if (!size)
            pn_conn_eof(&c);
        for (pn_conn_event e; (e = pn_conn_next(&c, now)) != PN_CONN_NOTHING;) {
            unsigned pick = (unsigned)(pn_test_rand(&seed) % 8);
            pn_str f, q;
            pn_str_init(&f, &m.mem, PN_ACCT_MISC);
            pn_str_init(&q, &m.mem, PN_ACCT_MISC);
            pn_http_reply r = {.status = e == PN_CONN_FAULT ? c.http.status : 200, .fields = &f};
            if (e == PN_CONN_HEAD || e == PN_CONN_REQUEST || e == PN_CONN_FAULT) {
                pn_cors_add(&f, &cors, &c.http.req);
                pn_cors_add_preflight(&f, &cors, &c.http.req);
                pn_http_query(&c.http.req, "a", &q);
                if (f.failed)
                    abort();
                if (pn_keys_check(&keys, &c.http.req) == PN_KEY_WRONG)
                    r.status = 401;
            }
            if ((e == PN_CONN_HEAD && pick == 0) || e == PN_CONN_FAULT || (e == PN_CONN_REQUEST && pick < 4)) {
                if (pn_conn_reply(&c, &r, "x", pick & 1) != PN_OK)
                    abort();
            } else if (e == PN_CONN_REQUEST && pick < 6) {
                if (pn_conn_stream(&c, &r) != PN_OK)
                    abort();
            }
            if ((e == PN_CONN_REQUEST && at_work) || (e == PN_CONN_ABORT && !at_work))
                abort();
            at_work = e == PN_CONN_REQUEST || e == PN_CONN_FAULT;
            pn_str_fini(&f);
            pn_str_fini(&q);
            if (e == PN_CONN_CLOSE) {
                closed = true;
                break;
            }
        }
        if (c.state == PN_CONN_HANDLING && pn_test_rand(&seed) % 4 == 0 &&
            pn_conn_reply(&c, &(pn_http_reply){.status = 200}, "late", 4) != PN_OK)
            abort();
        if (c.state == PN_CONN_STREAMING && pn_test_rand(&seed) % 4)
            pn_sse_event(&c.sse, NULL, "{}", 2);
        else if (c.state == PN_CONN_STREAMING)
            pn_sse_end(&c.sse, true);
        at_work = at_work && (c.state == PN_CONN_HANDLING || (c.state == PN_CONN_STREAMING && !c.sse.ended));
        pn_bytes out = pn_conn_output(&c);
        pn_conn_sent(&c, (size_t)(pn_test_rand(&seed) % (out.len + 1)), now);
        now += pn_test_rand(&seed) % 64 ? 1 : 10000;
        if (idle > 1 << 20)
            abort();
    }
    pn_conn_fini(&c);
    pn_keys_fini(&keys);
    if (m.blocks)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t seed = fuzz_http_mix(1, data, size) | 2, whole = fuzz_http_parse(data, size, 0);
    if (whole != fuzz_http_parse(data, size, 1) || whole != fuzz_http_parse(data, size, seed))
        abort();
    fuzz_http_serve(data, size, seed);
    /* Also as the text of a key file. */
    fuzz_http_mem m;
    pn_keys keys;
    fuzz_http_mem_init(&m);
    pn_keys_init(&keys, &m.mem);
    pn_keys_load(&keys, (const char *)data, size, NULL);
    if (keys.n && !pn_keys_have(&keys, keys.text.data, strlen(keys.text.data)))
        abort();
    pn_keys_fini(&keys);
    if (m.blocks)
        abort();
    return 0;
}
