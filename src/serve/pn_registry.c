/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_registry.c - models by name, each with one or more replicas on dies of their own.
 *
 * A replica:
 *
 *     LOADING --loaded--> READY --unload--> DRAINING --nobody runs--> UNLOADING --freed--> (gone)
 *        \--> FAILED (stays, so that its error can be read; another load with its name replaces it)
 *
 * A name is in the best of its replicas' states, in the order READY, LOADING, DRAINING, UNLOADING, FAILED, and goes
 * with the last of them.  The CPU holds many models, one of a name; any other die holds one replica unless told which
 * to share, and a name that is loaded again without a die gets one that is free.
 *
 * One loader, so models are loaded one at a time and what one needs is known when the next is planned.
 * A second load of a model that is loading or ready is the first one: sixteen clients that race to it cause
 * one load and all get its result.
 */
#include "serve/pn_server_int.h"

#include <inttypes.h>
#include <stdio.h>

enum { REGISTRY_SLOTS = 8, REGISTRY_NAME_MAX = 200 };

PN_INTERNAL const char *serve_state_name(serve_state st)
{
    static const char *const names[] = {"loading", "ready", "draining", "draining", "failed", "parked"};
    return names[st];
}

PN_INTERNAL uint32_t serve_replica_slots(const serve_replica *r) { return r->max_concurrent ? r->max_concurrent : (uint32_t)REGISTRY_SLOTS; }

PN_INTERNAL serve_replica *serve_model_best(const serve_model *m)
{
    static const uint8_t rank[] = {1, 0, 3, 4, 5, 2};   /* by serve_state */
    serve_replica *best = m->replicas;
    for (serve_replica *r = best->next; r; r = r->next)
        if (rank[r->state] < rank[best->state])
            best = r;
    return best;
}

PN_INTERNAL uint32_t serve_model_replicas(const serve_model *m)
{
    uint32_t n = 0;
    for (const serve_replica *r = m->replicas; r; r = r->next)
        n += r->state == SERVE_MODEL_READY;
    return n;
}

PN_INTERNAL uint32_t serve_model_slots(const serve_model *m)
{
    serve_state best = serve_model_best(m)->state;
    uint32_t n = 0;
    for (const serve_replica *r = m->replicas; r; r = r->next)
        n += r->state == best ? serve_replica_slots(r) : 0;
    return n;
}

PN_INTERNAL serve_replica *serve_model_on(const serve_model *m, const uint32_t *dies, size_t n)
{
    serve_replica *r = m->replicas;
    while (r && (r->state == SERVE_FAILED || r->n_dies != n || memcmp(r->dies, dies, n * sizeof *dies) != 0))
        r = r->next;
    return r;
}

/* ------------------------------------------------------------------------------------------
 * Finding one
 * ------------------------------------------------------------------------------------------ */

static bool registry_same(pn_bytes a, const char *b) { return a.len == strlen(b) && memcmp(a.data, b, a.len) == 0; }

static bool registry_called(const serve_model *m, pn_bytes name)
{
    if (registry_same(name, m->name))
        return true;
    for (const char *p = pn_str_cstr(&m->aliases), *end = p + m->aliases.len; p < end; p += strlen(p) + 1)
        if (registry_same(name, p))
            return true;
    return false;
}

PN_INTERNAL serve_model *serve_model_find(const pn_server *s, pn_bytes name)
{
    serve_model *m = s->models;
    while (m && !registry_called(m, name))
        m = m->next;
    return m;
}

PN_INTERNAL void serve_model_unknown(const pn_server *s, pn_bytes name, pn_oai_error *e)
{
    const char *names[32];
    size_t n = 0;
    for (serve_model *m = s->models; m && n < PN_COUNT_OF(names); m = m->next)
        if (serve_model_best(m)->state != SERVE_FAILED)
            names[n++] = m->name;
    pn_oai_error_model(e, name, names, n);
}

/* The only one there is, or NULL.  What could not be loaded is none, unless it is all there is. */
static serve_model *registry_only(const pn_server *s)
{
    serve_model *only = NULL;
    for (serve_model *m = s->models; m; m = m->next) {
        if (serve_model_best(m)->state == SERVE_FAILED && s->models->next)
            continue;
        if (only)
            return NULL;
        only = m;
    }
    return only;
}

PN_INTERNAL serve_model *serve_model_route(pn_server *s, pn_bytes name, pn_oai_error *e)
{
    serve_model *m = serve_model_find(s, name);
    if (!m)
        m = registry_only(s);           /* tools send names out of habit */
    if (!m) {
        serve_model_unknown(s, name, e);
        return NULL;
    }
    serve_replica *r = serve_model_best(m);
    if (r->state == SERVE_MODEL_READY)
        return m;
    if (r->state == SERVE_PARKED)
        serve_replica_wake(r);
    if (r->state == SERVE_FAILED) {
        pn_oai_error_set(e, 503, "unavailable_error", NULL, "model", "The model '%s' could not be loaded: %.300s", m->name, r->err.text);
        e->no_retry = true;
        return NULL;
    }
    char what[REGISTRY_NAME_MAX + 40];
    snprintf(what, sizeof what, "the model '%s' is %s", m->name, r->state == SERVE_LOADING ? "loading" : "being unloaded");
    pn_oai_error_loading(e, what, r->state == SERVE_LOADING ? 2000 : 5000);
    return NULL;
}

/* ------------------------------------------------------------------------------------------
 * Loading: on the loader's lane
 * ------------------------------------------------------------------------------------------ */

static serve_replica *registry_of(pn_task *t) { return (serve_replica *)(void *)((char *)t - offsetof(serve_replica, task)); }

enum { REGISTRY_FLOOR = 512 };        /* tokens of the smallest conversation that is worth a model */

/* Does it fit?  The plan of one conversation of the length wanted, and what that length comes to: turns ask for their
 * memory when they begin, so a model fits where its floor does. */
static pn_status registry_plan(serve_replica *r, pn_file *f, pn_err *err)
{
    const pn_server_model *of = &r->model->params;
    const pn_plan_params p = {.n_ctx = r->ctx_cap, .kv_type = of->kv_type, .has_kv_type = of->has_kv_type, .dies = r->dies, .n_dies = r->n_dies,
                              .residency = of->residency, .pin_bytes = of->pin_bytes, .stream_block = of->stream_block,
                              .stream_depth = of->stream_depth, .expert_cache_bytes = of->expert_cache_bytes,
                              .load_type = of->load_type};
    pn_status st = pn_file_plan(f, &p, &r->plan, err);
    if (st)
        return st;
    const pn_plan_info *i = &r->plan;
    uint32_t cap = r->ctx_cap ? PN_MIN(r->ctx_cap, i->n_ctx_train) : i->n_ctx_train;
    r->n_ctx = i->available_bytes && !r->ctx_cap ? PN_MIN(cap, PN_MAX(i->n_ctx_fits, (uint32_t)REGISTRY_FLOOR)) : cap;
    if (i->available_bytes && i->floor_bytes > i->available_bytes)
        return pn_fail(err, PN_E_BUDGET, "%" PRIu64 " bytes are needed at least (weights %" PRIu64 ", %" PRIu64 " to stream them; a conversation of %d tokens), %"
                       PRIu64 " are available", i->floor_bytes, i->weight_bytes, i->stage_bytes + i->expert_floor_bytes, REGISTRY_FLOOR, i->available_bytes);
    return PN_OK;
}

static pn_status registry_load(serve_replica *r, pn_err *err)
{
    const serve_model *m = r->model;
    pn_engine *e = m->server->e;
    pn_file *f;
    pn_status st = pn_file_open(e, m->path, &f, err);
    if (st)
        return st;
    const pn_server_model *of = &m->params;
    st = registry_plan(r, f, err);
    const pn_model_params p = {.floor_tokens = PN_MIN(m->server->params.ctx_floor, r->n_ctx ? r->n_ctx : UINT32_MAX), .residency = of->residency, .dies = r->dies, .n_dies = r->n_dies, .pin_bytes = of->pin_bytes,
                               .stream_block = of->stream_block, .stream_depth = of->stream_depth, .expert_cache_bytes = of->expert_cache_bytes,
                               .load_type = of->load_type};
    if (!st)
        st = pn_model_load_file(f, &p, &r->m, err);
    pn_file_close(f);
    if (st)
        return st;
    pn_model_describe(r->m, &r->info);
    const pn_model_caps caps = {.ctx = r->n_ctx, .sessions = r->max_sessions, .concurrent = serve_replica_slots(r)};
    st = pn_model_cap(r->m, &caps, err);
    if (!st && m->template_text.len)
        st = pn_template_open(e, m->template_text.data, m->template_text.len, &r->tpl, err);
    else if (!st && r->info.has_chat_template)
        pn_template_open_model(r->m, &r->tpl, NULL);    /* without it there is still the built-in format */
    return st;
}

static void registry_run(pn_task *t)
{
    serve_replica *r = registry_of(t);
    if (r->state == SERVE_LOADING)
        r->err.status = registry_load(r, &r->err);
    if (r->state == SERVE_LOADING && !r->err.status)
        return;
    pn_template_close(r->tpl);
    pn_model_free(r->m);
    r->tpl = NULL;
    r->m = NULL;
}

/* ------------------------------------------------------------------------------------------
 * Entries
 * ------------------------------------------------------------------------------------------ */

static void registry_free(serve_model *m)
{
    pn_server *s = m->server;
    if (m->name)
        pn_mem_free(&s->mem, PN_ACCT_CONN, m->name, strlen(m->name) + 1);
    if (m->path)
        pn_mem_free(&s->mem, PN_ACCT_CONN, m->path, strlen(m->path) + 1);
    if (m->load_type)
        pn_mem_free(&s->mem, PN_ACCT_CONN, m->load_type, strlen(m->load_type) + 1);
    pn_str_fini(&m->aliases);
    pn_str_fini(&m->template_text);
    pn_mem_free(&s->mem, PN_ACCT_CONN, m, sizeof *m);
}

/* A replica is no more, and with the last one goes the name. */
static void registry_remove(serve_replica *r)
{
    serve_model *m = r->model;
    pn_server *s = m->server;
    serve_replica **p = &m->replicas;
    while (*p != r)
        p = &(*p)->next;
    *p = r->next;
    if (r->bit)
        pn_affinity_forget(&s->seen, r->bit);
    pn_mem_free(&s->mem, PN_ACCT_CONN, r, sizeof *r);
    if (m->replicas)
        return;
    serve_model **q = &s->models;
    while (*q != m)
        q = &(*q)->next;
    *q = m->next;
    registry_free(m);
}

/* "0" or "0,1". */
static const char *registry_dies_text(const serve_replica *r, char *text, size_t cap)
{
    snprintf(text, cap, r->n_dies > 1 ? "%" PRIu32 ",%" PRIu32 : "%" PRIu32, r->dies[0], r->dies[r->n_dies - 1]);
    return text;
}

static void registry_unloaded(serve_replica *r)
{
    serve_model *m = r->model;
    if (r->parks) {
        r->parks = false;
        r->state = SERVE_PARKED;
        return;
    }
    serve_logf(m->server, PN_LOG_INFO, "model %s: unloaded", m->name);
    serve_admin_waiters(&r->waiters, r);
    if (m->replicas == r && !r->next)
        serve_admin_waiters(&m->gone, r);
    registry_remove(r);
}

static void registry_done(pn_task *t)
{
    serve_replica *r = registry_of(t);
    serve_model *m = r->model;
    pn_server *s = m->server;
    char dies[24];
    if (r->state == SERVE_UNLOADING) {
        registry_unloaded(r);
        return;
    }
    if (r->err.status == PN_E_BUDGET && serve_relief_for(r)) {
        pn_lane_add(&s->loader, &r->task);      /* behind the other's end: once more */
        return;
    }
    r->state = r->err.status ? SERVE_FAILED : SERVE_MODEL_READY;
    r->used_ms = s->now;
    m->created = m->created ? m->created : pn_net_unix_s();
    if (r->err.status)
        serve_logf(s, PN_LOG_ERROR, "model %s: %s", m->name, r->err.text);
    else if (s->n_dies > 1)
        serve_logf(s, PN_LOG_INFO, "model %s: ready on die %s, %s %s, context %" PRIu32 ", %" PRIu32 " at once", m->name,
                   registry_dies_text(r, dies, sizeof dies), r->info.arch, r->info.type, r->n_ctx, serve_replica_slots(r));
    else
        serve_logf(s, PN_LOG_INFO, "model %s: ready, %s %s, context %" PRIu32 ", %" PRIu32 " at once", m->name, r->info.arch, r->info.type,
                   r->n_ctx, serve_replica_slots(r));
    serve_admin_waiters(&r->waiters, r);
    serve_ask_pump(m);
}

PN_INTERNAL pn_bytes serve_file_name(const char *path)
{
    static const char ends[][13] = {".safetensors", ".pth", ".pt", ".bin"};     /* their folder has the name */
    size_t end = strlen(path), from;
    for (size_t i = 0, len = end; i < PN_COUNT_OF(ends) && strchr(path, '/'); i++) {
        size_t k = strlen(ends[i]);
        if (len > k && memcmp(path + len - k, ends[i], k) == 0)
            while (path[end - 1] != '/')
                end--;
    }
    while (end > 1 && path[end - 1] == '/')
        end--;
    for (from = end; from && path[from - 1] != '/'; from--)
        ;
    size_t n = end - from;
    return (pn_bytes){path + from, n > 5 && memcmp(path + end - 5, ".gguf", 5) == 0 ? n - 5 : n};
}

static pn_status registry_new(pn_server *s, const pn_server_model *p, pn_bytes name, serve_model **out, pn_err *err)
{
    serve_model *m = pn_mem_calloc(&s->mem, PN_ACCT_CONN, 1, sizeof *m);
    if (!m)
        return pn_fail_nomem(err, "a model's entry", sizeof *m);
    m->server = s;
    m->params = *p;
    m->queue_end = &m->queue;
    m->params.dies = NULL;
    pn_str_init(&m->aliases, &s->mem, PN_ACCT_CONN);
    pn_str_init(&m->template_text, &s->mem, PN_ACCT_CONN);
    for (size_t i = 0; i < p->n_aliases; i++)
        pn_str_add(&m->aliases, p->aliases[i], strlen(p->aliases[i]) + 1);
    if (p->template_text)
        pn_str_addz(&m->template_text, p->template_text);
    m->name = pn_mem_strndup(&s->mem, PN_ACCT_CONN, name.data, name.len);
    m->path = pn_mem_strndup(&s->mem, PN_ACCT_CONN, p->path, strlen(p->path));
    if (p->load_type)
        m->load_type = pn_mem_strndup(&s->mem, PN_ACCT_CONN, p->load_type, strlen(p->load_type));
    m->params.load_type = m->load_type;
    m->metrics = UINT32_MAX;            /* of nobody: when there are too many it is not counted */
    if (m->name)
        pn_metrics_model(s->metrics, m->name, name.len, &m->metrics, NULL);
    if (!m->name || !m->path || (p->load_type && !m->load_type) || m->aliases.failed || m->template_text.failed) {
        registry_free(m);
        return pn_fail_nomem(err, "a model's entry", name.len);
    }
    *out = m;
    return PN_OK;
}

static serve_replica **registry_end(serve_model *m)
{
    serve_replica **end = &m->replicas;
    while (*end)
        end = &(*end)->next;
    return end;
}

/* A replica of m, on p's dies. */
static pn_status registry_add(serve_model *m, const pn_server_model *p, serve_replica **out, pn_err *err)
{
    pn_server *s = m->server;
    uint64_t taken = 0;
    for (const serve_model *k = s->models; k; k = k->next)
        for (const serve_replica *r = k->replicas; r; r = r->next)
            taken |= r->bit;
    if (taken == UINT64_MAX)
        return pn_fail(err, PN_E_INVALID, "there are 64 models already");
    serve_replica *r = pn_mem_calloc(&s->mem, PN_ACCT_CONN, 1, sizeof *r);
    if (!r)
        return pn_fail_nomem(err, "a model's entry", sizeof *r);
    r->model = m;
    r->n_dies = (uint32_t)p->n_dies;
    memcpy(r->dies, p->dies, p->n_dies * sizeof *r->dies);
    r->bit = s->n_dies > 1 ? ~taken & (taken + 1) : 0;
    r->ctx_cap = p->ctx_cap;
    r->max_sessions = p->max_sessions;
    r->max_concurrent = p->max_concurrent;
    r->task = (pn_task){.run = registry_run, .done = registry_done};
    *registry_end(m) = r;
    *out = r;
    return PN_OK;
}

/* Replicas that could not be loaded give their place back. */
static void registry_drop_failed(pn_server *s, pn_bytes name)
{
    const serve_model *m = serve_model_find(s, name);
    for (serve_replica *r = m ? m->replicas : NULL, *next; r; r = next) {
        next = r->next;
        if (r->state == SERVE_FAILED && !r->waiters)
            registry_remove(r);
    }
}

/* Is a name free, or of: may it be its?  of NULL: it has to be free. */
static pn_status registry_name(pn_server *s, pn_bytes name, const serve_model *of, pn_err *err)
{
    if (!name.len || name.len > REGISTRY_NAME_MAX)
        return pn_fail(err, PN_E_INVALID, "a model's name: expected 1 to %d bytes", REGISTRY_NAME_MAX);
    const serve_model *m = serve_model_find(s, name);
    if (!m || m == of)
        return PN_OK;
    if (s->n_dies > 1)
        return pn_fail(err, PN_E_INVALID, "there is a model called '%.*s' already", (int)name.len, name.data);
    return pn_fail(err, PN_E_INVALID, "there is a model called '%.*s' already; another copy of it would need a die of its own, and this "
                   "machine has the CPU alone", (int)name.len, name.data);
}

/* What is on a die, for who has to choose another: the first name, or NULL. */
static const char *registry_on(const pn_server *s, uint32_t die)
{
    for (const serve_model *m = s->models; m; m = m->next)
        for (const serve_replica *r = m->replicas; r; r = r->next)
            for (uint32_t i = 0; i < r->n_dies && r->state != SERVE_FAILED; i++)
                if (r->dies[i] == die)
                    return m->name;
    return NULL;
}

/* The dies of a model: as wished, or one that is free. */
static pn_status registry_dies(const pn_server *s, const pn_server_model *p, uint32_t dies[SERVE_PARTS], pn_err *err)
{
    if (p->n_dies > SERVE_PARTS)
        return pn_fail(err, PN_E_UNSUPPORTED, "%zu dies for one model: expected at most %d", p->n_dies, SERVE_PARTS);
    for (size_t i = 0; i < p->n_dies; i++) {
        if (p->dies[i] >= s->n_dies && s->n_dies == 1)
            return pn_fail(err, PN_E_UNSUPPORTED, "die %" PRIu32 ": this machine has no such die (0, the CPU, is all there is)", p->dies[i]);
        if (p->dies[i] >= s->n_dies)
            return pn_fail(err, PN_E_INVALID, "die %" PRIu32 ": there is no such die, there are 0 to %" PRIu32, p->dies[i], s->n_dies - 1);
        dies[i] = p->dies[i];
    }
    if (p->n_dies == 2 && dies[0] == dies[1])
        return pn_fail(err, PN_E_INVALID, "die %" PRIu32 " is named twice", dies[0]);
    if (p->n_dies)
        return PN_OK;
    dies[0] = 0;
    while (s->n_dies > 1 && dies[0] < s->n_dies && registry_on(s, dies[0]))
        dies[0]++;
    if (dies[0] < s->n_dies)
        return PN_OK;
    char there[300] = "";
    for (uint32_t i = 0, n = 0; i < s->n_dies && n + 40 < sizeof there; i++)
        n += (uint32_t)snprintf(there + n, sizeof there - n, "%s%" PRIu32 " has '%.24s'", i ? ", " : "", i, registry_on(s, i));
    return pn_fail(err, PN_E_INVALID, "no die is free (%s): name the dies it is to share", there);
}

/* May m have another replica of this file on these dies? */
static pn_status registry_another(const serve_model *m, const pn_server_model *p, const uint32_t *dies, size_t n, pn_err *err)
{
    if (strcmp(m->path, p->path) != 0)
        return pn_fail(err, PN_E_INVALID, "there is a model called '%s' already, of another file", m->name);
    for (const serve_replica *r = m->replicas; r; r = r->next)
        for (uint32_t i = 0; i < r->n_dies && r->state != SERVE_FAILED; i++)
            for (size_t k = 0; k < n; k++)
                if (r->dies[i] == dies[k])
                    return pn_fail(err, PN_E_INVALID, "the model '%s' is on die %" PRIu32 " already", m->name, dies[k]);
    return PN_OK;
}

/* More names of the model. */
static pn_status registry_alias(serve_model *m, const pn_server_model *p, pn_err *err)
{
    for (size_t i = 0; i < p->n_aliases; i++)
        if (!registry_called(m, (pn_bytes){p->aliases[i], strlen(p->aliases[i])}))
            pn_str_add(&m->aliases, p->aliases[i], strlen(p->aliases[i]) + 1);
    return m->aliases.failed ? pn_fail_nomem(err, "a model's entry", m->aliases.len) : PN_OK;
}

/* The entry of that name, made if need be, which may take the replica. */
static pn_status registry_entry(pn_server *s, const pn_server_model *p, pn_bytes name, const uint32_t *dies, serve_model **out, pn_err *err)
{
    registry_drop_failed(s, name);
    for (size_t i = 0; i < p->n_aliases; i++)
        registry_drop_failed(s, (pn_bytes){p->aliases[i], strlen(p->aliases[i])});
    serve_model *m = s->n_dies > 1 ? serve_model_find(s, name) : NULL;
    pn_status st = m ? registry_another(m, p, dies, PN_MAX(p->n_dies, (size_t)1), err) : registry_name(s, name, NULL, err);
    for (size_t i = 0; !st && i < p->n_aliases; i++)
        st = registry_name(s, (pn_bytes){p->aliases[i], strlen(p->aliases[i])}, m, err);
    if (!st)
        st = m ? registry_alias(m, p, err) : registry_new(s, p, name, &m, err);
    if (!st)
        *out = m;
    return st;
}

PN_INTERNAL pn_status serve_model_load(pn_server *s, const pn_server_model *params, serve_replica **out, pn_err *err)
{
    pn_server_model p;
    serve_model *m = NULL;
    serve_replica *r = NULL;
    uint32_t dies[SERVE_PARTS];
    memset(&p, 0, sizeof p);
    if (params)
        memcpy(&p, params, params->size ? PN_MIN(params->size, sizeof p) : sizeof p);
    if (!p.path)
        return pn_fail(err, PN_E_INVALID, "pn_server_load: a path must be given");
    pn_bytes name = p.name ? (pn_bytes){p.name, strlen(p.name)} : serve_file_name(p.path);
    pn_status st = registry_dies(s, &p, dies, err);
    if (!st)
        st = registry_entry(s, &p, name, dies, &m, err);
    p.dies = dies;
    p.n_dies = PN_MAX(p.n_dies, (size_t)1);
    if (!st)
        st = registry_add(m, &p, &r, err);
    if (st && m && !m->replicas)
        registry_free(m);
    if (st)
        return st;
    serve_model **end = &s->models;
    while (*end && *end != m)
        end = &(*end)->next;
    *end = m;
    serve_logf(s, PN_LOG_INFO, "model %s: loading %s", m->name, m->path);
    pn_lane_add(&s->loader, &r->task);
    if (out)
        *out = r;
    return PN_OK;
}

PN_API pn_status pn_server_load(pn_server *s, const pn_server_model *params, pn_err *err) { return serve_model_load(s, params, NULL, err); }

PN_API pn_status pn_server_ready(const pn_server *s, pn_err *err)
{
    pn_status st = PN_OK;
    for (const serve_model *m = s->models; m; m = m->next)
        for (const serve_replica *r = m->replicas; r; r = r->next) {
            if (r->state == SERVE_FAILED)
                return pn_fail(err, r->err.status, "%s: %.400s", m->name, r->err.text);
            if (r->state == SERVE_LOADING)
                st = pn_fail(err, PN_E_STATE, "the model '%s' is loading", m->name);     /* a parked one is as good as ready */
        }
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Going
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void serve_model_settle(serve_model *m)
{
    bool others = serve_model_best(m)->state == SERVE_MODEL_READY;
    for (serve_replica *r = m->replicas; r; r = r->next)
        if (r->state == SERVE_DRAINING && !r->n_running && (others || !m->n_queued)) {
            r->state = SERVE_UNLOADING;
            pn_lane_add(&m->server->loader, &r->task);
        }
}

PN_INTERNAL pn_status serve_replica_unload(serve_replica *r, pn_err *err)
{
    if (r->state == SERVE_LOADING)
        return pn_fail(err, PN_E_STATE, "the model '%s' is loading: unload it when it is ready", r->model->name);
    if (r->state == SERVE_UNLOADING || r->state == SERVE_DRAINING) {
        r->parks = r->parks && !err;    /* somebody wants it gone for good */
        return PN_OK;
    }
    r->state = SERVE_DRAINING;
    serve_model_settle(r->model);
    return PN_OK;
}

PN_INTERNAL void serve_replica_wake(serve_replica *r)
{
    pn_server *s = r->model->server;
    r->state = SERVE_LOADING;
    r->err = (pn_err){PN_OK, {0}};
    serve_logf(s, PN_LOG_INFO, "model %s: loading %s again", r->model->name, r->model->path);
    pn_lane_add(&s->loader, &r->task);
}

PN_INTERNAL void serve_waiters_remove(pn_server *s, const serve_conn *c)
{
    for (serve_model *m = s->models; m; m = m->next)
        for (serve_replica *r = NULL;;) {
            serve_conn **p = r ? &r->waiters : &m->gone;
            while (*p && *p != c)
                p = &(*p)->waiting;
            if (*p)
                *p = c->waiting;
            r = r ? r->next : m->replicas;
            if (!r)
                break;
        }
}

/* Nobody asks anything any more.  A load that is under way is waited for. */
PN_INTERNAL void serve_models_free(pn_server *s)
{
    while (s->models) {
        pn_ready ready[SERVE_READY];
        for (serve_model *m = s->models; m; m = m->next) {
            m->gone = NULL;
            for (serve_replica *r = m->replicas; r; r = r->next) {
                r->waiters = NULL;
                r->parks = false;
                if (r->state == SERVE_MODEL_READY || r->state == SERVE_FAILED || r->state == SERVE_PARKED)
                    serve_replica_unload(r, NULL);
            }
        }
        if (s->loader.threaded)
            pn_poller_wait(&s->poller, ready, SERVE_READY, 20);
        pn_wake_clear(&s->wake);
        pn_lane_done(&s->loader);
    }
}
