/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_http_client.c - any bytes as what a server answers.  What comes out must not depend on how the bytes are cut,
 * memory must follow what has arrived, and a connection that was not left clean must not be used again.  Also as the
 * body of a request whose affinity is wanted.
 */
#include "pn_fuzz.h"

#include "serve/pn_affinity.h"
#include "serve/pn_upstream.h"

/* A pn_mem that counts, for the bound. */
typedef struct fuzz_client_mem {
    pn_mem mem, libc;
    size_t bytes, most;
    long blocks;
} fuzz_client_mem;

static void *fuzz_client_alloc(pn_mem *m, pn_account a, size_t size)
{
    fuzz_client_mem *f = (fuzz_client_mem *)m;
    f->bytes += size;
    f->most = PN_MAX(f->most, f->bytes);
    f->blocks++;
    return pn_mem_alloc(&f->libc, a, size);
}

static void fuzz_client_free(pn_mem *m, pn_account a, void *ptr, size_t size)
{
    fuzz_client_mem *f = (fuzz_client_mem *)m;
    f->bytes -= size;
    f->blocks--;
    pn_mem_free(&f->libc, a, ptr, size);
}

static void fuzz_client_mem_init(fuzz_client_mem *f)
{
    *f = (fuzz_client_mem){.mem = {fuzz_client_alloc, fuzz_client_free, NULL}};
    pn_mem_init_libc(&f->libc);
}

static uint64_t fuzz_client_mix(uint64_t h, const void *data, size_t n)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001B3u;
    return h;
}

static uint64_t fuzz_client_head(uint64_t h, const pn_http_response *r)
{
    const bool bits[] = {r->http10, r->keep_alive, r->chunked, r->has_length, r->no_body, r->until_close};
    if (r->status < 200 || r->status > 599 || (r->chunked && r->has_length) || (r->until_close && (r->chunked || r->has_length || r->no_body || r->keep_alive)))
        abort();
    h = fuzz_client_mix(h, bits, sizeof bits);
    h = fuzz_client_mix(h, &r->status, sizeof r->status);
    for (uint32_t i = 0; i < r->n_fields; i++) {
        pn_bytes name = pn_response_field_name(r, i), v = pn_response_field_value(r, i);
        if (!pn_http_is_token(name.data, name.len) || !pn_http_is_value(v.data, v.len) || name.data[name.len] || v.data[v.len])
            abort();
        if (!pn_response_get(r, name.data).data)
            abort();
        h = fuzz_client_mix(fuzz_client_mix(h, name.data, name.len + 1), v.data, v.len + 1);
    }
    return h;
}

/* Parse in pieces that `cut` chooses (0: at once, 1: bytes); a digest of what came out. */
static uint64_t fuzz_client_parse(const uint8_t *data, size_t size, uint64_t cut, bool to_head)
{
    const pn_http_limits limits = {.line_max = 256, .head_max = 4096};
    fuzz_client_mem m;
    pn_response_parser p;
    uint64_t h = 0xCBF29CE484222325u, body = 0, n_body = 0;
    pn_response_fed fed = PN_RESPONSE_MORE;
    fuzz_client_mem_init(&m);
    pn_response_init(&p, &m.mem, &limits);
    pn_response_next(&p, to_head);
    for (size_t at = 0; at < size && fed != PN_RESPONSE_FAULT;) {
        size_t left = size - at, piece = cut > 1 ? (size_t)(pn_test_rand(&cut) % 40) : 1;
        size_t n = cut == 0 ? left : PN_MIN(left, piece), used;
        do {
            pn_bytes b;
            fed = pn_response_feed(&p, (const char *)data + at, n, &used, &b);
            at += used;
            n -= used;
            if ((fed == PN_RESPONSE_BODY) != (b.len != 0) || (fed == PN_RESPONSE_MORE && n))
                abort();
            if (fed == PN_RESPONSE_HEAD) {
                h = fuzz_client_head(h, &p.r);
                body = n_body = 0;
            }
            body = fuzz_client_mix(body, b.data, b.len);
            n_body += b.len;
            if (fed == PN_RESPONSE_DONE) {
                if ((p.r.no_body && n_body) || (!p.r.no_body && p.r.has_length && n_body != p.r.content_length))
                    abort();
                h = fuzz_client_mix(h, &body, sizeof body);
                pn_response_next(&p, to_head);
                if (m.blocks)
                    abort();
            }
        } while (fed == PN_RESPONSE_HEAD || fed == PN_RESPONSE_BODY || (fed == PN_RESPONSE_DONE && n));
    }
    bool fault = fed == PN_RESPONSE_FAULT, begun = p.begun;
    fed = pn_response_end(&p);
    if (fault && fed != PN_RESPONSE_FAULT)
        abort();
    if (begun) {
        h = fuzz_client_mix(h, &body, sizeof body);
        h = fuzz_client_mix(h, p.message, strlen(p.message));
    }
    pn_response_fini(&p);
    if (m.blocks || m.most > 3 * (256 + 4096) + 2048 || m.most > 6 * size + 4096)
        abort();
    return h;
}

/* A connection with a slow writer and a server that ends when it likes. */
static void fuzz_client_connection(const uint8_t *data, size_t size, uint64_t seed)
{
    fuzz_client_mem m;
    pn_upstream u;
    uint64_t now = 0;
    fuzz_client_mem_init(&m);
    pn_upstream_init(&u, &m.mem, NULL, now);
    pn_upstream_begin(&u, (pn_bytes){"HEAD", 4}, (pn_bytes){"body", seed & 4}, seed & 8, now);
    pn_upstream_connected(&u, now);
    while (u.state == PN_UPSTREAM_BUSY) {
        size_t some = (size_t)(pn_test_rand(&seed) % 64), n = PN_MIN(size, some), at = 0;
        pn_bytes out = pn_upstream_output(&u);
        pn_response_fed fed;
        if (pn_test_rand(&seed) % 32 == 0)
            pn_upstream_deaf(&u);
        else
            pn_upstream_sent(&u, (size_t)(pn_test_rand(&seed) % (out.len + 1)), now);
        do {
            pn_bytes piece;
            fed = pn_upstream_input(&u, (const char *)data, n, &at, &piece, now);
        } while (fed == PN_RESPONSE_HEAD || fed == PN_RESPONSE_BODY);
        data += at;
        size -= at;
        if (fed == PN_RESPONSE_DONE && pn_upstream_reusable(&u)) {
            pn_upstream_rest(&u);
            if (m.blocks || at != n)
                abort();
            pn_upstream_begin(&u, (pn_bytes){"x", 1}, (pn_bytes){NULL, 0}, seed & 1, now);
        }
        if (u.state == PN_UPSTREAM_BUSY && !size) {
            fed = pn_upstream_end(&u, seed & 1);
            if (fed != PN_RESPONSE_DONE && fed != PN_RESPONSE_FAULT)
                abort();
            if (fed == PN_RESPONSE_FAULT && !u.answer.message[0])
                abort();
        }
        if (u.state != PN_UPSTREAM_BUSY && pn_upstream_output(&u).len)
            abort();
        now++;
    }
    pn_upstream_fini(&u);
    if (m.blocks)
        abort();
}

static void fuzz_client_affinity(const uint8_t *data, size_t size, uint64_t seed)
{
    fuzz_client_mem m;
    pn_affinity_fields f;
    pn_affinity_keys k, again;
    pn_str name;
    const char *body = (const char *)data;
    fuzz_client_mem_init(&m);
    pn_affinity_scan(body, size, &f);
    const pn_bytes all[] = {f.model, f.session_id, f.prompt_cache_key, f.messages, f.prompt, f.input};
    for (size_t i = 0; i < PN_COUNT_OF(all); i++)
        if (all[i].data && (all[i].data < body || all[i].data + all[i].len > body + size || !all[i].len))
            abort();
    pn_str_init(&name, &m.mem, PN_ACCT_MISC);
    pn_affinity_text(&m.mem, f.model, &name);
    pn_affinity_read(&k, &f, f.model, f.session_id, seed);
    pn_affinity_read(&again, &f, f.model, f.session_id, seed);
    if (memcmp(&k, &again, sizeof k) != 0 || k.n_marks > PN_AFFINITY_MARKS || k.n_keep > PN_AFFINITY_BYTES + 1)
        abort();
    for (uint32_t i = 0; i < k.n_marks; i++)
        if (!k.mark[i])
            abort();
    pn_str_fini(&name);
    if (m.blocks)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t seed = fuzz_client_mix(1, data, size) | 2;
    for (int to_head = 0; to_head < 2; to_head++) {
        uint64_t whole = fuzz_client_parse(data, size, 0, to_head);
        if (whole != fuzz_client_parse(data, size, 1, to_head) || whole != fuzz_client_parse(data, size, seed, to_head))
            abort();
    }
    fuzz_client_connection(data, size, seed);
    fuzz_client_affinity(data, size, seed);
    return 0;
}
