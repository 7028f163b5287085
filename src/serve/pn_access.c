/* SPDX-License-Identifier: AGPL-3.0-only */
/* pn_access.c - all keys are compared, found or not: where a search ends early a clock can follow it. */
#include "serve/pn_access.h"

#include <stdio.h>

/* ------------------------------------------------------------------------------------------
 * Keys
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_keys_init(pn_keys *k, pn_mem *mem)
{
    pn_str_init(&k->text, mem, PN_ACCT_MISC);
    k->n = 0;
}

/* A plain memset of memory that is freed next may be optimised away. */
static void access_wipe(char *s, size_t n)
{
    for (volatile char *p = s; n; n--)
        *p++ = 0;
}

PN_INTERNAL void pn_keys_fini(pn_keys *k)
{
    access_wipe(k->text.data, k->text.cap);
    pn_str_fini(&k->text);
    k->n = 0;
}

/* Grow by hand: what the old block held is overwritten before it is freed. */
static bool access_room(pn_str *s, size_t n)
{
    if (n <= s->cap - s->len)
        return true;
    size_t cap = PN_MAX(2 * (s->len + n), (size_t)256);
    char *to = pn_mem_alloc(s->mem, s->account, cap);
    if (!to)
        return false;
    memset(to, 0, cap);
    if (s->len)
        memcpy(to, s->data, s->len);
    access_wipe(s->data, s->cap);
    pn_mem_free(s->mem, s->account, s->data, s->cap);
    s->data = to;
    s->cap = cap;
    return true;
}

PN_INTERNAL pn_status pn_keys_add(pn_keys *k, const char *key, size_t n, pn_err *err)
{
    if (!n || n > PN_KEY_BYTES_MAX)
        return pn_fail(err, PN_E_FORMAT, "API key: expected 1 to %u characters, found %zu", PN_KEY_BYTES_MAX, n);
    for (size_t i = 0; i < n; i++)
        if (key[i] <= 0x20 || key[i] >= 0x7F || key[i] == '#')
            return pn_fail(err, PN_E_FORMAT, "API key: expected visible ASCII without '#', found byte 0x%02X at %zu",
                           (unsigned)(uint8_t)key[i], i);
    if (!access_room(&k->text, n + 2))
        return pn_fail_nomem(err, "API keys", k->text.len + n + 2);
    pn_str_add(&k->text, key, n);
    pn_str_addc(&k->text, 0);
    k->n++;
    return PN_OK;
}

static bool access_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

PN_INTERNAL pn_status pn_keys_load(pn_keys *k, const char *text, size_t n, pn_err *err)
{
    size_t line = 1, at = n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;  /* an editor's mark */
    for (; at < n; line++) {
        const char *s = text + at, *lf = memchr(s, '\n', n - at), *stop = lf ? lf : text + n;
        const char *comment = memchr(s, '#', (size_t)(stop - s));
        at = (size_t)(stop - text) + 1;
        if (comment)
            stop = comment;
        while (s < stop && access_space(*s))
            s++;
        while (s < stop && access_space(stop[-1]))
            stop--;
        pn_status st = s < stop ? pn_keys_add(k, s, (size_t)(stop - s), err) : PN_OK;
        if (st)
            return pn_err_prefix(err, st, "line %zu", line);
    }
    return PN_OK;
}

PN_INTERNAL bool pn_keys_have(const pn_keys *k, const char *s, size_t n)
{
    unsigned found = 0;
    for (size_t i = 0, at = 0; i < k->n; i++) {
        const char *key = k->text.data + at;
        size_t len = strlen(key);
        unsigned differs = len != n;
        for (size_t j = 0; j < len; j++)        /* the guess, over and over if it is shorter */
            differs |= (unsigned)((uint8_t)key[j] ^ (uint8_t)(n ? s[j % n] : 0));
        found |= !differs;
        at += len + 1;
    }
    return found != 0;
}

/* "Bearer K" in any case, or K alone. */
static pn_bytes access_bearer(pn_bytes v)
{
    if (v.len > 7 && pn_http_is((pn_bytes){v.data, 6}, "bearer") && v.data[6] == ' ') {
        v.data += 7;
        v.len -= 7;
        while (v.len && *v.data == ' ')
            v.data++, v.len--;
    }
    return v;
}

PN_INTERNAL pn_key_check pn_keys_check(const pn_keys *k, const pn_http_request *r)
{
    static const char *const names[] = {"authorization", "x-api-key", "api-key"};
    bool given = false, found = false;
    if (!k->n)
        return PN_KEY_OK;
    for (size_t i = 0; i < PN_COUNT_OF(names); i++)
        for (uint32_t f = pn_http_find(r, names[i], 0); f < r->n_fields; f = pn_http_find(r, names[i], f + 1)) {
            pn_bytes v = pn_http_field_value(r, f);
            if (i == 0)
                v = access_bearer(v);
            given |= v.len != 0;
            found |= v.len <= PN_KEY_BYTES_MAX && pn_keys_have(k, v.data, v.len);
        }
    return found ? PN_KEY_OK : given ? PN_KEY_WRONG : PN_KEY_MISSING;
}

/* ------------------------------------------------------------------------------------------
 * CORS: fetch.spec.whatwg.org, section 3.3
 * ------------------------------------------------------------------------------------------ */

typedef enum cors_match { CORS_NO, CORS_LISTED, CORS_ANY } cors_match;

static cors_match cors_find(const pn_cors *c, pn_bytes origin)
{
    cors_match m = CORS_NO;
    for (size_t i = 0; i < c->n_origins; i++) {
        if (strcmp(c->origins[i], "*") == 0)
            m = CORS_ANY;
        else if (origin.data && pn_http_is(origin, c->origins[i]))
            return CORS_LISTED;
    }
    return m;
}

/* "null" is the origin of files and sandboxed frames, everybody's in other words: only a plain "*"
 * covers it, never an echo. */
static bool cors_allowed(const pn_cors *c, pn_bytes origin)
{
    cors_match m = cors_find(c, origin);
    if (m == CORS_ANY && c->credentials)
        return origin.data && !pn_http_is(origin, "null");
    return m != CORS_NO;
}

PN_INTERNAL void pn_cors_add(pn_str *fields, const pn_cors *c, const pn_http_request *r)
{
    pn_bytes origin = pn_http_get(r, "origin");
    bool plain = cors_find(c, (pn_bytes){NULL, 0}) == CORS_ANY && !c->credentials;
    if (!c->n_origins)
        return;
    if (!plain)
        pn_http_add(fields, "Vary", "Origin");      /* also when refused: caches must not mix them up */
    if (!cors_allowed(c, origin))
        return;
    if (plain)
        pn_http_add(fields, "Access-Control-Allow-Origin", "*");
    else
        pn_http_add_n(fields, "Access-Control-Allow-Origin", origin.data, origin.len);
    if (c->credentials)
        pn_http_add(fields, "Access-Control-Allow-Credentials", "true");
    /* Scripts see only a few headers by themselves; these are the ones SDKs read. */
    pn_http_add(fields, "Access-Control-Expose-Headers",
                "x-request-id, retry-after, retry-after-ms, x-should-retry, x-pantheon-ignored, x-pantheon-pressure");
}

PN_INTERNAL bool pn_cors_is_preflight(const pn_http_request *r)
{
    return r->method == PN_METHOD_OPTIONS && pn_http_get(r, "origin").data &&
           pn_http_get(r, "access-control-request-method").data;
}

/* Is it a list of field names?  It goes back into a field of ours. */
static bool cors_names(pn_bytes list)
{
    pn_bytes e;
    if (!list.data || list.len > 4096)
        return false;
    for (size_t at = 0; pn_http_list(list, &at, &e);)
        if (!pn_http_is_token(e.data, e.len))
            return false;
    return true;
}

PN_INTERNAL void pn_cors_add_preflight(pn_str *fields, const pn_cors *c, const pn_http_request *r)
{
    pn_bytes asked = pn_http_get(r, "access-control-request-headers");
    pn_bytes private_network = pn_http_get(r, "access-control-request-private-network");
    char age[16];
    if (!cors_allowed(c, pn_http_get(r, "origin")))
        return;
    snprintf(age, sizeof age, "%u", (unsigned)(c->max_age_s ? c->max_age_s : 600));
    pn_http_add(fields, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    /* "*" covers neither Authorization nor, with credentials, anything: what is asked for is named. */
    if (cors_names(asked))
        pn_http_add_n(fields, "Access-Control-Allow-Headers", asked.data, asked.len);
    else
        pn_http_add(fields, "Access-Control-Allow-Headers",
                    c->credentials ? "Authorization, Content-Type, x-api-key, api-key, anthropic-version, "
                                     "anthropic-beta"
                                   : "*, Authorization");
    pn_http_add(fields, "Access-Control-Max-Age", age);
    if (private_network.data && pn_http_is(private_network, "true"))
        pn_http_add(fields, "Access-Control-Allow-Private-Network", "true");
}
