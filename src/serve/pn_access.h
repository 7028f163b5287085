/*
 * pn_access.h - who may call: API keys, and which web pages (CORS).
 *
 * Keys come from a file, one a line, and are compared in a time that does not depend on how much of
 * a guess is right.  Clients send them in any of the ways their SDKs do: "Authorization: Bearer K",
 * "Authorization: K", "x-api-key: K" (Anthropic), "api-key: K" (Azure).
 *
 * CORS tells a browser which pages may read our answers; it protects users, not the server.
 *
 * Threads: read-only once loaded, so any.
 */
#ifndef PN_ACCESS_H
#define PN_ACCESS_H

#include "base/pn_err.h"
#include "serve/pn_http.h"
#include "serve/pn_http_reply.h"

/* --- keys ------------------------------------------------------------------------------------- */

#define PN_KEY_BYTES_MAX 512u   /* of one key */

typedef struct pn_keys {
    pn_str text;                /* owned: the keys one after another, each followed by a NUL */
    size_t n;
} pn_keys;

PN_INTERNAL void pn_keys_init(pn_keys *k, pn_mem *mem);
PN_INTERNAL void pn_keys_fini(pn_keys *k);             /* overwrites the keys first */

/* One key: visible ASCII without spaces and '#', up to PN_KEY_BYTES_MAX. */
PN_INTERNAL pn_status pn_keys_add(pn_keys *k, const char *key, size_t n, pn_err *err);

/* A key file's text: a key a line, white space around it, comments from '#' to the end of the line.
 * A fault names the line, never the key; what stood before it has been added. */
PN_INTERNAL pn_status pn_keys_load(pn_keys *k, const char *text, size_t n, pn_err *err);

typedef enum pn_key_check {
    PN_KEY_OK = 0,              /* one of the keys; or there are none, and the server is open */
    PN_KEY_MISSING,             /* the request has none */
    PN_KEY_WRONG
} pn_key_check;

PN_INTERNAL pn_key_check pn_keys_check(const pn_keys *k, const pn_http_request *r);

/* Is s[0..n) one of the keys?  Time depends on n and the keys' total length alone. */
PN_INTERNAL bool pn_keys_have(const pn_keys *k, const char *s, size_t n);

/* --- CORS ------------------------------------------------------------------------------------- */

typedef struct pn_cors {
    const char *const *origins; /* [n_origins], "https://example.org" as browsers send it, or "*";
                                   borrowed */
    size_t n_origins;           /* 0: no fields at all, pages of other origins cannot read us */
    bool credentials;           /* cookies and the like may be sent: the origin is named, never "*" */
    uint32_t max_age_s;         /* how long a browser may remember a preflight; 0: 600 */
} pn_cors;

/* The fields that every response to r needs, onto `fields`. */
PN_INTERNAL void pn_cors_add(pn_str *fields, const pn_cors *c, const pn_http_request *r);

/* Is this the question a browser asks before the real request? */
PN_INTERNAL bool pn_cors_is_preflight(const pn_http_request *r);

/* The answer's fields, in addition to pn_cors_add's: for a 204, and for any other OPTIONS too. */
PN_INTERNAL void pn_cors_add_preflight(pn_str *fields, const pn_cors *c, const pn_http_request *r);

#endif /* PN_ACCESS_H */
