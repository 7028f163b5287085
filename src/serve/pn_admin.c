/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_admin.c - what the server tells about itself, and loading and unloading.
 *
 * Answered at once, on the I/O thread, from what it knows; a load that is waited for is answered when the
 * loader has finished (serve_admin_waiters).
 */
#include "serve/pn_accept.h"
#include "serve/pn_page.h"
#include "serve/pn_server_int.h"

#include <inttypes.h>
#include <stdio.h>

static const char admin_json[] = "application/json; charset=utf-8";

static void admin_field(pn_str *s, const char *key, uint64_t v)
{
    pn_json_key(s, key);
    pn_json_write_u64(s, v);
}

static void admin_text(pn_str *s, const char *key, const char *v)
{
    pn_json_key(s, key);
    pn_json_write_strz(s, v);
}

static const char *admin_kv_type(const serve_model *m)
{
    return pn_kv_type_name(m->params.has_kv_type ? m->params.kv_type : PN_DTYPE_F16);
}

/* Where the weights are. */
static const char *admin_residency(const serve_model *m)
{
    const serve_replica *r = m->replicas;
    bool made = r && r->state == SERVE_MODEL_READY && r->plan.load_bytes;    /* before, the plan is the loader's */
    return m->params.residency == PN_RESIDENCY_STREAM ? "stream" : m->params.residency == PN_RESIDENCY_ANON || made ? "anon" : "map";
}

/* ------------------------------------------------------------------------------------------
 * Models
 * ------------------------------------------------------------------------------------------ */

/* What a conversation may hold wherever it is answered. */
static uint32_t admin_context(const serve_model *m)
{
    serve_state best = serve_model_best(m)->state;
    uint32_t n = UINT32_MAX;
    for (const serve_replica *r = m->replicas; r; r = r->next)
        n = r->state == best ? PN_MIN(n, r->n_ctx) : n;
    return n;
}

/* An entry of /v1/models: OpenAI's members, then those that agents look for, then ours. */
static void admin_model(pn_str *s, const serve_model *m)
{
    const serve_replica *r = serve_model_best(m);
    bool ready = r->m != NULL && (r->state == SERVE_MODEL_READY || r->state == SERVE_DRAINING);
    uint32_t n_ctx = admin_context(m);
    pn_str_addc(s, '{');
    admin_text(s, "id", m->name);
    admin_text(s, "object", "model");
    admin_field(s, "created", (uint64_t)(m->created ? m->created : m->server->started_unix));
    admin_text(s, "owned_by", "pantheon");
    admin_text(s, "state", serve_state_name(r->state));
    if (ready) {
        admin_field(s, "context_length", n_ctx);
        admin_field(s, "max_model_len", n_ctx);
        admin_field(s, "floor_context", PN_MIN(n_ctx, serve_model_best(m)->info.floor_tokens));
        admin_text(s, "kv_type", admin_kv_type(m));
        admin_text(s, "residency", admin_residency(m));
        admin_field(s, "replicas", serve_model_replicas(m));
        pn_json_key(s, "meta");
        pn_str_addf(s, "{\"n_ctx\":%" PRIu32 ",\"n_ctx_train\":%" PRIu32 ",\"n_vocab\":%" PRIu32 ",\"n_params\":%" PRIu64 ",\"size\":%" PRIu64
                    ",\"n_embd\":%" PRIu32, n_ctx, r->info.n_ctx_train, r->info.n_vocab, r->info.n_params, r->info.weight_bytes, r->info.n_embd);
        admin_text(s, "arch", r->info.arch);
        admin_text(s, "type", r->info.type);
        pn_str_addc(s, '}');
    }
    pn_json_key(s, "aliases");
    pn_str_addc(s, '[');
    for (const char *p = pn_str_cstr(&m->aliases), *end = p + m->aliases.len; p < end; p += strlen(p) + 1) {
        pn_json_item(s);
        pn_json_write_strz(s, p);
    }
    pn_str_addz(s, "]}");
}

static void admin_models(serve_conn *c, pn_str *s)
{
    pn_str_addz(s, "{\"object\":\"list\",\"data\":[");
    for (const serve_model *m = c->server->models; m; m = m->next) {
        if (serve_model_best(m)->state == SERVE_FAILED)
            continue;                   /* agents offer what they find here; its error is on /admin/models */
        pn_json_item(s);
        admin_model(s, m);
    }
    pn_str_addz(s, "]}");
}

static bool admin_one(serve_conn *c, pn_bytes name, pn_str *s)
{
    const serve_model *m = serve_model_find(c->server, name);
    pn_oai_error e;
    if (m) {
        admin_model(s, m);
        return true;
    }
    serve_model_unknown(c->server, name, &e);
    serve_error(c, &e);
    return false;
}

static void admin_accounts(const pn_server *s, pn_str *out)
{
    pn_mem_info info;
    pn_engine_memory(s->e, &info);
    pn_str_addc(out, '{');
    for (int i = 0; i < PN_ACCT_COUNT; i++) {
        pn_json_key(out, pn_account_name((pn_account)i));
        pn_str_addf(out, "{\"used\":%" PRIu64 ",\"peak\":%" PRIu64 "}", info.used[i], info.peak[i]);
    }
    pn_str_addc(out, '}');
}

static void admin_dies_of(pn_str *s, const serve_replica *r)
{
    for (uint32_t i = 0; i < r->n_dies; i++) {
        pn_json_item(s);
        pn_json_write_u64(s, r->dies[i]);
    }
}

static void admin_replica(pn_str *s, const serve_replica *r)
{
    pn_str_addz(s, "{\"dies\":[");
    admin_dies_of(s, r);
    pn_str_addc(s, ']');
    admin_text(s, "state", serve_state_name(r->state));
    if (r->state == SERVE_FAILED)
        admin_text(s, "error", r->err.text);
    admin_field(s, "running", r->n_running);
    admin_field(s, "served", r->n_served);
    admin_field(s, "max_concurrent", serve_replica_slots(r));
    admin_field(s, "context_length", r->n_ctx);
    pn_str_addc(s, '}');
}

/* As an administrator sees it: who works, who waits, what it was planned to take. */
static void admin_model_full(pn_str *s, const serve_model *m)
{
    const serve_replica *best = serve_model_best(m);
    pn_str_addc(s, '{');
    admin_text(s, "name", m->name);
    admin_text(s, "path", m->path);
    admin_text(s, "state", serve_state_name(best->state));
    if (best->state == SERVE_FAILED)
        admin_text(s, "error", best->err.text);
    pn_str_addz(s, ",\"dies\":[");
    for (const serve_replica *r = m->replicas; r; r = r->next)
        admin_dies_of(s, r);
    pn_str_addz(s, "],\"replicas\":[");
    for (const serve_replica *r = m->replicas; r; r = r->next) {
        pn_json_item(s);
        admin_replica(s, r);
    }
    pn_str_addc(s, ']');
    admin_field(s, "running", m->n_running);
    admin_field(s, "queued", m->n_queued);
    admin_field(s, "max_concurrent", serve_model_slots(m));
    admin_field(s, "max_sessions", m->params.max_sessions);
    admin_field(s, "ctx_cap", m->params.ctx_cap);
    if (m->params.has_reasoning_budget)
        admin_field(s, "reasoning_budget", m->params.reasoning_budget);
    if (best->state == SERVE_MODEL_READY || best->state == SERVE_DRAINING) {
        const pn_plan_info *p = &best->plan;
        admin_field(s, "context_length", admin_context(m));
        admin_text(s, "kv_type", admin_kv_type(m));
        admin_text(s, "residency", admin_residency(m));
        pn_str_addf(s, ",\"plan\":{\"weights\":%" PRIu64 ",\"kv_per_token\":%" PRIu64 ",\"kv_per_session\":%" PRIu64 ",\"scratch\":%" PRIu64
                    ",\"vocab\":%" PRIu64 ",\"total\":%" PRIu64 ",\"floor\":%" PRIu64 "}", p->weight_bytes, p->kv_bytes_per_token, p->kv_bytes_per_session,
                    p->scratch_bytes, p->vocab_bytes, p->total_bytes, p->floor_bytes);
    }
    pn_str_addc(s, '}');
}

static void admin_list(serve_conn *c, pn_str *s)
{
    pn_str_addz(s, "{\"models\":[");
    for (const serve_model *m = c->server->models; m; m = m->next) {
        pn_json_item(s);
        admin_model_full(s, m);
    }
    pn_str_addc(s, ']');
    pn_json_key(s, "accounts");
    admin_accounts(c->server, s);
    pn_str_addc(s, '}');
}

/* ------------------------------------------------------------------------------------------
 * Loading and unloading
 * ------------------------------------------------------------------------------------------ */

/* The keys of a load, checked. */
typedef struct admin_load {
    pn_json_doc doc;
    pn_bytes name, path;
    pn_server_model p;
    uint32_t dies[8];
    bool wait;
} admin_load;

static bool admin_refuse(serve_conn *c, const char *key, const char *expected)
{
    pn_oai_error e;
    pn_oai_error_set(&e, 400, "invalid_request_error", "invalid_value", key, "%s: expected %s", key, expected);
    serve_error(c, &e);
    return false;
}

static bool admin_number(serve_conn *c, const admin_load *l, const char *key, uint32_t node, uint32_t *out)
{
    int64_t v;
    if (!pn_json_i64(&l->doc, node, &v) || v < 0 || v > INT32_MAX)
        return admin_refuse(c, key, "a number from 0 to 2147483647");
    *out = (uint32_t)v;
    return true;
}

static bool admin_dies(serve_conn *c, admin_load *l, uint32_t node)
{
    if (pn_json_type_of(&l->doc, node) != PN_JSON_ARRAY || pn_json_count(&l->doc, node) > PN_COUNT_OF(l->dies))
        return admin_refuse(c, "dies", "an array of at most 8 numbers");
    l->p.dies = l->dies;
    for (uint32_t i = pn_json_first(&l->doc, node); i != PN_JSON_NONE; i = pn_json_next(&l->doc, i))
        if (!admin_number(c, l, "dies", i, &l->dies[l->p.n_dies++]))
            return false;
    return true;
}

static bool admin_key(serve_conn *c, admin_load *l, pn_bytes key, uint32_t node)
{
    const struct { const char *name; uint32_t *value; } numbers[] = {{"ctx_cap", &l->p.ctx_cap}, {"max_sessions", &l->p.max_sessions},
        {"max_concurrent", &l->p.max_concurrent}, {"reasoning_budget", &l->p.reasoning_budget}};
    for (size_t i = 0; i < PN_COUNT_OF(numbers); i++)
        if (strcmp(key.data, numbers[i].name) == 0) {
            l->p.has_reasoning_budget |= numbers[i].value == &l->p.reasoning_budget;
            return admin_number(c, l, numbers[i].name, node, numbers[i].value);
        }
    if (strcmp(key.data, "name") == 0)
        return pn_json_str(&l->doc, node, &l->name) || admin_refuse(c, "name", "a string");
    if (strcmp(key.data, "path") == 0)
        return pn_json_str(&l->doc, node, &l->path) || admin_refuse(c, "path", "a string");
    if (strcmp(key.data, "wait") == 0)
        return pn_json_bool(&l->doc, node, &l->wait) || admin_refuse(c, "wait", "true or false");
    if (strcmp(key.data, "dies") == 0)
        return admin_dies(c, l, node);
    return admin_refuse(c, key.data, "name, path, dies, ctx_cap, max_sessions, max_concurrent, reasoning_budget or wait");
}

/* False: it has been answered. */
static bool admin_read(serve_conn *c, admin_load *l)
{
    pn_err err;
    const pn_http_request *q = &c->c.http.req;
    memset(l, 0, sizeof *l);
    l->wait = true;
    if (pn_json_parse(&l->doc, &c->server->mem, PN_ACCT_CONN, q->body.data, q->body.len, NULL, &err) != PN_OK) {
        serve_errorf(c, 400, "invalid_request_error", "invalid_value", "the body is not JSON: %s", err.text);
        return false;
    }
    bool ok = pn_json_type_of(&l->doc, PN_JSON_ROOT) == PN_JSON_OBJECT || admin_refuse(c, "body", "a JSON object");
    for (uint32_t i = pn_json_first(&l->doc, PN_JSON_ROOT); ok && i != PN_JSON_NONE; i = pn_json_next(&l->doc, i))
        if (pn_json_type_of(&l->doc, i) != PN_JSON_NULL)
            ok = admin_key(c, l, pn_json_key_of(&l->doc, i), i);
    if (!ok)
        pn_json_fini(&l->doc);
    return ok;
}

/* In the order of the largest first, and a fixed one among equals. */
static bool admin_before(const serve_replica *a, const serve_replica *b)
{
    uint64_t x = serve_replica_bytes(a), y = serve_replica_bytes(b);
    return x != y ? x > y : a < b;
}

/* Who has the memory: the largest models, as many as the error has room for. */
static void admin_consumers(pn_server *s, pn_oai_error *e)
{
    const serve_replica *last = NULL, *next;
    pn_str list;
    pn_str_init(&list, &s->mem, PN_ACCT_CONN);
    pn_str_addz(&list, ",\"consumers\":[");
    do {
        size_t before = list.len;
        next = NULL;
        for (serve_model *m = s->models; m; m = m->next)
            for (serve_replica *r = m->replicas; r; r = r->next)
                if (r->state == SERVE_MODEL_READY && (!last || admin_before(last, r)) && (!next || admin_before(r, next)))
                    next = r;
        if (next) {
            pn_json_item(&list);
            pn_str_addz(&list, "{\"name\":");
            pn_json_write_strz(&list, next->model->name);
            pn_str_addf(&list, ",\"bytes\":%" PRIu64 "}", serve_replica_bytes(next));
        }
        if (strlen(e->extra) + list.len + sizeof "]" > sizeof e->extra) {
            list.len = before;
            next = NULL;
        }
        last = next;
    } while (next);
    pn_str_addc(&list, ']');
    if (!list.failed)
        snprintf(e->extra + strlen(e->extra), sizeof e->extra - strlen(e->extra), "%.*s", (int)list.len, list.data);
    pn_str_fini(&list);
}

static void admin_loaded(serve_conn *c, const serve_replica *r)
{
    const char *name = r->model->name;
    pn_oai_error e;
    pn_str s;
    if (r->state == SERVE_FAILED) {
        pn_oai_error_status(&e, r->err.status, r->err.text);
        if (r->err.status == PN_E_BUDGET) {
            pn_oai_error_load(&e, name, &r->plan, r->err.text);
            admin_consumers(c->server, &e);
        } else if (e.status >= 500)
            pn_oai_error_set(&e, 400, "invalid_request_error", "invalid_value", "path", "%s", r->err.text);
        e.no_retry = true;
        serve_error(c, &e);
        return;
    }
    pn_str_init(&s, &c->server->mem, PN_ACCT_CONN);
    pn_str_addc(&s, '{');
    admin_text(&s, "name", name);
    admin_text(&s, "state", r->state == SERVE_UNLOADING ? "unloaded" : serve_state_name(r->state));
    pn_str_addz(&s, ",\"die\":[");
    admin_dies_of(&s, r);
    pn_str_addc(&s, ']');
    if (r->state == SERVE_MODEL_READY) {
        const pn_plan_info *p = &r->plan;
        pn_str_addf(&s, ",\"plan\":{\"weights\":%" PRIu64 ",\"kv_per_token\":%" PRIu64 ",\"scratch\":%" PRIu64 ",\"total\":%" PRIu64
                    ",\"available\":%" PRIu64 ",\"context_length\":%" PRIu32 "}", p->weight_bytes, p->kv_bytes_per_token, p->scratch_bytes, p->total_bytes,
                    p->available_bytes, r->n_ctx);
    }
    pn_str_addc(&s, '}');
    serve_reply_give(c, r->state == SERVE_LOADING ? 202 : 200, admin_json, &s, NULL);
}

/* What they want next may be to load or unload this very model: that has to wait. */
PN_INTERNAL void serve_admin_waiters(serve_conn **list, const serve_replica *r)
{
    while (*list) {
        serve_conn *c = *list;
        *list = c->waiting;
        admin_loaded(c, r);
        serve_turn_later(c);
    }
}

static void admin_wait(serve_conn *c, serve_conn **list)
{
    c->waiting = *list;
    *list = c;
}

/* What is loaded already, or loading: the same name and path, and the same dies where some are given. */
static serve_replica *admin_same(const pn_server *s, const admin_load *l)
{
    serve_model *m = serve_model_find(s, l->name.data ? l->name : serve_file_name(l->path.data));
    if (!m || strcmp(m->path, l->path.data) != 0)
        return NULL;
    serve_replica *r = l->p.n_dies ? serve_model_on(m, l->p.dies, l->p.n_dies) : serve_model_best(m);
    return r && (r->state == SERVE_LOADING || r->state == SERVE_MODEL_READY) ? r : NULL;
}

static void admin_load_call(serve_conn *c)
{
    admin_load l;
    pn_err err;
    pn_server *s = c->server;
    if (!admin_read(c, &l))
        return;
    if (!l.path.data) {
        admin_refuse(c, "path", "the path of a model file");
        pn_json_fini(&l.doc);
        return;
    }
    l.p.path = l.path.data;
    l.p.name = l.name.data;
    serve_replica *r = admin_same(s, &l);
    pn_status st = r ? PN_OK : serve_model_load(s, &l.p, &r, &err);
    pn_json_fini(&l.doc);
    if (st)
        serve_errorf(c, 400, "invalid_request_error", "invalid_value", "%s", err.text);
    else if (r->state == SERVE_LOADING && l.wait)
        admin_wait(c, &r->waiters);
    else
        admin_loaded(c, r);
}

/* The replica on those dies, or all; answered when they are gone. */
static void admin_unload(serve_conn *c, serve_model *m, const admin_load *l)
{
    serve_replica *one = l->p.n_dies ? serve_model_on(m, l->p.dies, l->p.n_dies) : NULL;
    pn_oai_error e;
    pn_err err;
    if (l->p.n_dies && !one) {
        pn_oai_error_set(&e, 404, "invalid_request_error", "model_not_found", "dies", "The model '%s' has no replica on those dies", m->name);
        serve_error(c, &e);
        return;
    }
    pn_status st = PN_OK;
    for (serve_replica *r = m->replicas; r && !st; r = r->next)
        if ((!one || r == one) && r->state == SERVE_LOADING)
            st = serve_replica_unload(r, &err);         /* refused, and nothing has been done yet */
    if (st) {
        pn_oai_error_loading(&e, err.text, 2000);
        serve_error(c, &e);
        return;
    }
    admin_wait(c, one ? &one->waiters : &m->gone);
    for (serve_replica *r = m->replicas; r; r = r->next)
        if (!one || r == one)
            (void)serve_replica_unload(r, &err);
}

static void admin_unload_call(serve_conn *c)
{
    admin_load l;
    pn_oai_error e;
    if (!admin_read(c, &l))
        return;
    serve_model *m = l.name.data ? serve_model_find(c->server, l.name) : NULL;
    if (!l.name.data) {
        admin_refuse(c, "name", "the name of a model");
    } else if (!m) {
        serve_model_unknown(c->server, l.name, &e);
        serve_error(c, &e);
    } else {
        admin_unload(c, m, &l);
    }
    pn_json_fini(&l.doc);
}

/* ------------------------------------------------------------------------------------------
 * The server
 * ------------------------------------------------------------------------------------------ */

/* Its own script and style, this server, and nothing else. */
static void admin_page(serve_conn *c)
{
    char nonce[25], policy[400];
    pn_str fields, s;
    serve_random_id(nonce, sizeof nonce - 1);
    snprintf(policy, sizeof policy, "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; img-src data:; base-uri 'none'; "
             "form-action 'none'; frame-ancestors 'none'", nonce, nonce);
    pn_str_init(&fields, &c->server->mem, PN_ACCT_CONN);
    pn_http_add(&fields, "Content-Security-Policy", policy);
    pn_http_add(&fields, "X-Content-Type-Options", "nosniff");
    pn_http_add(&fields, "Referrer-Policy", "no-referrer");
    pn_http_add(&fields, "Cache-Control", "no-store");
    pn_http_add(&fields, "Vary", "Accept");
    pn_str_init(&s, &c->server->mem, PN_ACCT_CONN);
    const char *line;
    for (size_t i = 0; (line = pn_page_line(i)) != NULL; i++) {
        const char *at = strstr(line, PN_PAGE_NONCE);
        if (at) {
            pn_str_add(&s, line, (size_t)(at - line));
            pn_str_addz(&s, nonce);
            line = at + sizeof PN_PAGE_NONCE - 1;
        }
        pn_str_addz(&s, line);
    }
    serve_reply_give(c, 200, "text/html; charset=utf-8", &s, &fields);
    pn_str_fini(&fields);
}

static void admin_root_json(const serve_conn *c, pn_str *s)
{
    const pn_server *v = c->server;
    uint32_t n = 0;
    for (const serve_model *m = v->models; m; m = m->next)
        n++;
    pn_str_addz(s, "{\"name\":\"pantheon\"");
    admin_text(s, "version", pn_version());
    admin_text(s, "backend", pn_backend_name(v->e));
    admin_text(s, "build", v->build);
    admin_text(s, "isa", pn_cpu_isa());
    admin_field(s, "threads", pn_engine_threads(v->e));
    admin_field(s, "uptime_seconds", (v->now - v->started) / 1000);
    admin_field(s, "models", n);
    admin_field(s, "connections", v->n_conns);
    admin_field(s, "requests", v->n_requests);
    pn_str_addz(s, ",\"endpoints\":[\"/v1/chat/completions\",\"/v1/completions\",\"/v1/responses\",\"/v1/messages\",\"/v1/embeddings\",\"/v1/models\","
                   "\"/tokenize\",\"/detokenize\",\"/apply-template\",\"/health\",\"/ready\",\"/metrics\",\"/admin/models\",\"/admin/dies\",\"/admin/memory\"]}");
}

/* JSON for programs, the page for browsers. */
static void admin_root(serve_conn *c)
{
    pn_str fields, s;
    if (pn_accept_html(&c->c.http.req)) {
        admin_page(c);
        return;
    }
    pn_str_init(&fields, &c->server->mem, PN_ACCT_CONN);
    pn_http_add(&fields, "Vary", "Accept");
    pn_str_init(&s, &c->server->mem, PN_ACCT_CONN);
    admin_root_json(c, &s);
    serve_reply_give(c, 200, admin_json, &s, &fields);
    pn_str_fini(&fields);
}

static void admin_ready(serve_conn *c)
{
    const pn_server *s = c->server;
    const serve_model *m = s->models;
    pn_oai_error e;
    while (m && serve_model_best(m)->state != SERVE_MODEL_READY)
        m = m->next;
    if (m && !s->draining) {
        static const char yes[] = "{\"status\":\"ready\"}";
        serve_reply(c, 200, admin_json, yes, sizeof yes - 1);
        return;
    }
    pn_oai_error_loading(&e, s->draining ? "the server is stopping" : s->models ? "no model is ready" : "no model is loaded", 2000);
    serve_error(c, &e);
}

/* Names of the models with a replica there. */
static void admin_models_on(const pn_server *v, uint32_t die, pn_str *s)
{
    for (const serve_model *m = v->models; m; m = m->next)
        for (const serve_replica *r = m->replicas; r; r = r->next)
            for (uint32_t i = 0; i < r->n_dies; i++)
                if (r->dies[i] == die && r->state != SERVE_FAILED) {
                    pn_json_item(s);
                    pn_json_write_strz(s, m->name);
                }
}

static void admin_die(const pn_server *v, uint32_t die, pn_str *s)
{
    pn_die_info d;
    if (pn_engine_die(v->e, die, &d) != PN_OK)
        return;
    pn_json_item(s);
    pn_str_addf(s, "{\"index\":%" PRIu32, die);
    admin_text(s, "kind", d.kind);
    admin_text(s, "name", d.name);
    admin_field(s, "total_bytes", d.total_bytes);
    admin_field(s, "free_bytes", d.free_bytes);
    pn_mem_state mem;
    bool own = pn_mem_get(v->e, 1 + die, &mem) == PN_OK || pn_mem_get(v->e, 0, &mem) == PN_OK;
    admin_text(s, "level", pn_level_name(own ? mem.level : PN_LEVEL_OK));
    if (strcmp(d.kind, "sim") == 0) {
        pn_json_key(s, "clock_seconds");
        pn_json_write_f64(s, d.clock_seconds);
    }
    pn_str_addz(s, ",\"models\":[");
    admin_models_on(v, die, s);
    pn_str_addz(s, "]}");
}

static void admin_dies_list(serve_conn *c, pn_str *s)
{
    pn_str_addz(s, "{\"dies\":[");
    for (uint32_t i = 0; i < c->server->n_dies; i++)
        admin_die(c->server, i, s);
    pn_str_addz(s, "]}");
}

static void admin_memory(serve_conn *c, pn_str *s)
{
    pn_mem_info info;
    pn_engine_memory(c->server->e, &info);
    pn_str_addf(s, "{\"host\":{\"total\":%" PRIu64 ",\"available\":%" PRIu64 "},\"limit\":%" PRIu64 ",\"used\":%" PRIu64 ",\"peak\":%" PRIu64, info.host_total,
                info.host_available, info.limit, info.total_used, info.total_peak);
    pn_json_key(s, "accounts");
    admin_accounts(c->server, s);
    serve_memory_json(c->server, s);
    pn_str_addc(s, '}');
}

static void admin_metrics(serve_conn *c, pn_str *s)
{
    pn_server *v = c->server;
    pn_mem_info info;
    pn_engine_memory(v->e, &info);
    pn_metrics_memory(v->metrics, &info);
    pn_metrics_set(v->metrics, PN_METRIC_CONNECTIONS, 0, 0, v->n_conns);
    pn_metrics_set(v->metrics, PN_METRIC_START, 0, 0, (double)v->started_unix);
    uint64_t kv = info.used[PN_ACCT_KV] + info.used[PN_ACCT_STATE] + info.used[PN_ACCT_PREFIX], room = kv + info.host_available;
    for (const serve_model *m = v->models; m; m = m->next) {
        uint64_t page = serve_model_best(m)->plan.kv_bytes_per_token * PN_KV_PAGE_TOKENS;
        pn_metrics_set(v->metrics, PN_METRIC_RUNNING, m->metrics, 0, m->n_running);
        pn_metrics_set(v->metrics, PN_METRIC_WAITING, m->metrics, 0, m->n_queued);
        pn_metrics_set(v->metrics, PN_METRIC_KV_RATIO, m->metrics, 0, room ? (double)kv / (double)room : 0);
        pn_metrics_set(v->metrics, PN_METRIC_BLOCK_TOKENS, m->metrics, 0, PN_KV_PAGE_TOKENS);
        pn_metrics_set(v->metrics, PN_METRIC_BLOCKS, m->metrics, 0, page ? (double)(room / page) : 0);
    }
    pn_metrics_write(v->metrics, s, v->params.metrics == PN_METRICS_VLLM);
    serve_memory_metrics(v, s);
}

PN_INTERNAL void serve_admin_answer(serve_conn *c, serve_admin what, pn_bytes rest)
{
    pn_str s;
    bool ok = true;
    const char *type = admin_json;
    pn_str_init(&s, &c->server->mem, PN_ACCT_CONN);
    switch (what) {
    case SERVE_ROOT: admin_root(c); ok = false; break;
    case SERVE_HEALTH: pn_str_addz(&s, "{\"status\":\"ok\"}"); break;
    case SERVE_VERSION: pn_str_addf(&s, "{\"version\":\"%s\"}", pn_version()); break;
    case SERVE_MODELS: admin_models(c, &s); break;
    case SERVE_MODEL: ok = admin_one(c, rest, &s); break;
    case SERVE_ADMIN_MODELS: admin_list(c, &s); break;
    case SERVE_ADMIN_DIES: admin_dies_list(c, &s); break;
    case SERVE_ADMIN_MEMORY: admin_memory(c, &s); break;
    case SERVE_METRICS:
        type = PN_METRICS_TYPE;
        ok = c->server->params.metrics != PN_METRICS_OFF;
        if (ok)
            admin_metrics(c, &s);
        else
            serve_errorf(c, 404, "not_found_error", NULL, "/metrics is switched off.");
        break;
    case SERVE_READY_: admin_ready(c); ok = false; break;
    case SERVE_ADMIN_LOAD: admin_load_call(c); ok = false; break;
    case SERVE_ADMIN_UNLOAD: admin_unload_call(c); ok = false; break;
    }
    if (ok)
        serve_reply_give(c, 200, type, &s, NULL);
    else
        pn_str_fini(&s);
}
