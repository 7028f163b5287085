/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_router_health.c - who is up, and which models they have.
 *
 *     UNKNOWN --200--> ANSWERS <--200--> DRAINING (503: alive, but no new requests)
 *        |                ^ 200              |
 *        +--failure--> DOWN <--2 failures in a row
 *
 * A check asks GET /ready and, of who is ready, GET /v1/models.  A request whose connection fails counts like a check
 * that failed, so that a dead backend is not tried for seconds; what is under way there is left alone.
 */
#include "serve/pn_router_int.h"

#include <stdio.h>

enum { HEALTH_BODY_MAX = 4 << 20 };     /* bytes of a list of models */

PN_INTERNAL const char *router_state_name(router_state s)
{
    static const char *const names[] = {"unknown", "up", "draining", "down"};
    return names[s];
}

static void health_state(router_backend *b, router_state st, const char *why)
{
    if (b->state == st)
        return;
    router_logf(b->router, st == ROUTER_DOWN ? PN_LOG_WARN : PN_LOG_INFO, "%s: %s%s%s", b->target.name, router_state_name(st), why[0] ? ": " : "", why);
    b->state = st;
    if (st == ROUTER_DOWN)              /* when it comes back its memory of prompts is gone */
        pn_affinity_forget(&b->router->affinity, (uint64_t)1 << b->index);
}

static void health_fail(router_backend *b, const char *why)
{
    b->n_fails += b->n_fails < ROUTER_FAILS;
    if (b->n_fails == ROUTER_FAILS || b->state == ROUTER_UNKNOWN)
        health_state(b, ROUTER_DOWN, why);
}

PN_INTERNAL void router_health_failed(router_backend *b, const char *why)
{
    health_fail(b, why);
    b->check_at = PN_MIN(b->check_at, b->router->now);          /* look at once */
    b->router->sweep_at = PN_MIN(b->router->sweep_at, b->check_at);
}

/* ------------------------------------------------------------------------------------------
 * Checking
 * ------------------------------------------------------------------------------------------ */

static void health_end(router_backend *b, bool reuse)
{
    router_up *u = b->check;
    pn_router *r = b->router;
    b->check = NULL;
    b->settled = true;
    b->check_at = r->now + r->params.health_ms;
    r->sweep_at = PN_MIN(r->sweep_at, b->check_at);
    pn_str_fini(&b->check_body);
    if (u && reuse)
        router_up_put(u);
    else if (u)
        router_up_close(u);
}

static void health_ask(router_backend *b, router_up *u, const char *path)
{
    pn_str *s = &b->check_head;
    pn_str_clear(s);
    pn_str_addf(s, "GET %s HTTP/1.1\r\nHost: %s\r\nX-Forwarded-For: unknown\r\n", path, b->target.host);
    if (b->router->backend_key && b->check_models)
        pn_str_addf(s, "Authorization: Bearer %s\r\n", b->router->backend_key);
    pn_str_addz(s, "\r\n");
    b->check = u;
    u->check = true;
    if (s->failed)
        health_end(b, false);
    else
        router_up_begin(u, (pn_bytes){s->data, s->len}, (pn_bytes){NULL, 0}, false);
}

static void health_begin(router_backend *b, bool models)
{
    bool full;
    b->check_models = models;
    if (!models)
        b->check_until = b->router->now + b->router->params.connect_ms;
    router_up *u = router_up_get(b, &full);
    if (u) {
        health_ask(b, u, models ? "/v1/models" : "/ready");
        return;
    }
    if (!full)
        health_fail(b, "the connection was refused");
    health_end(b, false);
}

PN_INTERNAL void router_health_lost(router_backend *b)
{
    const char *why = b->check->u.answer.message;
    health_fail(b, why[0] ? why : "the connection failed");
    health_end(b, false);
}

/* The list, if it is one, instead of the one before. */
static void health_models(router_backend *b)
{
    pn_json_doc d;
    bool ok = pn_json_parse(&d, b->router->mem, PN_ACCT_CONN, pn_str_cstr(&b->check_body), b->check_body.len, NULL, NULL) == PN_OK;
    if (!ok || pn_json_type_of(&d, pn_json_get(&d, PN_JSON_ROOT, "data")) != PN_JSON_ARRAY) {
        pn_json_fini(&d);
        return;
    }
    if (b->has_models)
        pn_json_fini(&b->models);
    b->models = d;
    b->has_models = true;
}

static void health_done(router_backend *b)
{
    router_up *u = b->check;
    int status = u->u.answer.r.status;
    if (b->check_models) {
        if (status == 200 && !b->check_body.failed)
            health_models(b);
        health_end(b, true);
        return;
    }
    if (status == 200 || status == 503)
        b->n_fails = 0;
    if (status == 200) {
        health_state(b, ROUTER_ANSWERS, "");
        pn_str_clear(&b->check_body);
        b->check = NULL;
        router_up_put(u);               /* and out of the pool again, if it can go on */
        health_begin(b, true);
        return;
    }
    if (status == 503)
        health_state(b, ROUTER_DRAINING, "");
    else
        health_fail(b, "/ready is answered with neither 200 nor 503");
    health_end(b, true);
}

PN_INTERNAL void router_health_fed(router_backend *b, pn_response_fed fed, pn_bytes piece)
{
    switch (fed) {
    case PN_RESPONSE_MORE: case PN_RESPONSE_HEAD:
        break;
    case PN_RESPONSE_BODY:
        if (b->check_body.len + piece.len > HEALTH_BODY_MAX)
            b->check_body.failed = true;
        else
            pn_str_add(&b->check_body, piece.data, piece.len);
        break;
    case PN_RESPONSE_DONE: health_done(b); break;
    case PN_RESPONSE_FAULT: router_health_lost(b); break;
    }
}

PN_INTERNAL void router_health_due(pn_router *r)
{
    for (uint32_t i = 0; i < r->n_backends && !r->draining; i++) {
        router_backend *b = &r->backends[i];
        if (b->check)
            continue;
        if (r->now >= b->check_at)
            health_begin(b, false);
        else
            r->sweep_at = PN_MIN(r->sweep_at, b->check_at);
    }
}

/* ------------------------------------------------------------------------------------------
 * Models
 * ------------------------------------------------------------------------------------------ */

static bool health_text_is(const pn_json_doc *d, uint32_t node, pn_bytes name)
{
    pn_bytes s;
    return pn_json_str(d, node, &s) && s.len == name.len && memcmp(s.data, name.data, s.len) == 0;
}

static bool health_has(const router_backend *b, pn_bytes model)
{
    const pn_json_doc *d = &b->models;
    if (!b->has_models)
        return false;
    for (uint32_t m = pn_json_first(d, pn_json_get(d, PN_JSON_ROOT, "data")); m != PN_JSON_NONE; m = pn_json_next(d, m)) {
        if (health_text_is(d, pn_json_get(d, m, "id"), model))
            return true;
        uint32_t aliases = pn_json_get(d, m, "aliases");
        if (pn_json_type_of(d, aliases) != PN_JSON_ARRAY)
            continue;
        for (uint32_t a = pn_json_first(d, aliases); a != PN_JSON_NONE; a = pn_json_next(d, a))
            if (health_text_is(d, a, model))
                return true;
    }
    return false;
}

/* A model that only somebody who is away has gets no backend: 503 and not another one's 404, because it will be back.
 * One that nobody has goes anywhere: that backend knows what to say.  Who does not tell its models may have any. */
PN_INTERNAL uint64_t router_health_eligible(const pn_router *r, pn_bytes model)
{
    uint64_t up = 0, has = 0;
    bool known = false;
    for (uint32_t i = 0; i < r->n_backends; i++) {
        const router_backend *b = &r->backends[i];
        uint64_t bit = (uint64_t)1 << i;
        bool serves = model.len && health_has(b, model);
        known |= serves;
        if (b->state != ROUTER_ANSWERS)
            continue;
        up |= bit;
        if (serves || !b->has_models)
            has |= bit;
    }
    return known ? has : up;
}
