/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_registry.c - models by name.
 *
 *     LOADING --loaded--> READY --unload--> DRAINING --nobody runs--> UNLOADING --freed--> (gone)
 *        \--> FAILED (stays, so that its error can be read; another load with its name replaces it)
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
    static const char *const names[] = {"loading", "ready", "draining", "draining", "failed"};
    return names[st];
}

PN_INTERNAL uint32_t serve_model_slots(const serve_model *m)
{
    return m->params.max_concurrent ? m->params.max_concurrent : (uint32_t)REGISTRY_SLOTS;
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
    for (const serve_model *m = s->models; m && n < PN_COUNT_OF(names); m = m->next)
        names[n++] = m->name;
    pn_oai_error_model(e, name, names, n);
}

/* The only one there is, or NULL.  What could not be loaded is none, unless it is all there is. */
static serve_model *registry_only(const pn_server *s)
{
    serve_model *only = NULL;
    for (serve_model *m = s->models; m; m = m->next) {
        if (m->state == SERVE_FAILED && s->models->next)
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
    if (m->state == SERVE_MODEL_READY)
        return m;
    if (m->state == SERVE_FAILED) {
        pn_oai_error_set(e, 503, "unavailable_error", NULL, "model", "The model '%s' could not be loaded: %.300s", m->name, m->err.text);
        e->no_retry = true;
        return NULL;
    }
    char what[REGISTRY_NAME_MAX + 40];
    snprintf(what, sizeof what, "the model '%s' is %s", m->name, m->state == SERVE_LOADING ? "loading" : "being unloaded");
    pn_oai_error_loading(e, what, m->state == SERVE_LOADING ? 2000 : 5000);
    return NULL;
}

/* ------------------------------------------------------------------------------------------
 * Loading: on the loader's lane
 * ------------------------------------------------------------------------------------------ */

static serve_model *registry_of(pn_task *t) { return (serve_model *)(void *)((char *)t - offsetof(serve_model, task)); }

/* Does it fit?  The plan of one conversation of the length wanted, and what that length comes to. */
static pn_status registry_plan(serve_model *m, pn_file *f, pn_err *err)
{
    const pn_plan_params p = {.n_ctx = m->params.ctx_cap, .kv_type = m->params.kv_type, .has_kv_type = m->params.has_kv_type};
    pn_status st = pn_file_plan(f, &p, &m->plan, err);
    if (st)
        return st;
    const pn_plan_info *i = &m->plan;
    uint32_t cap = m->params.ctx_cap ? PN_MIN(m->params.ctx_cap, i->n_ctx_train) : i->n_ctx_train;
    m->n_ctx = i->n_ctx_fits ? PN_MIN(cap, i->n_ctx_fits) : i->available_bytes ? 0 : cap;
    if (!m->n_ctx || (m->params.ctx_cap && m->n_ctx < cap))
        return pn_fail(err, PN_E_BUDGET, "%" PRIu64 " bytes are needed (weights %" PRIu64 ", keys and values of %" PRIu32 " tokens %" PRIu64
                       ", scratch %" PRIu64 "), %" PRIu64 " are available; the longest context that fits is %" PRIu32 " tokens",
                       i->total_bytes, i->weight_bytes, i->n_ctx, i->kv_bytes, i->scratch_bytes, i->available_bytes, i->n_ctx_fits);
    return PN_OK;
}

static pn_status registry_load(serve_model *m, pn_err *err)
{
    pn_file *f;
    pn_status st = pn_file_open(m->server->e, m->path, &f, err);
    if (st)
        return st;
    const pn_model_params p = {.residency = m->params.residency};
    st = registry_plan(m, f, err);
    if (!st)
        st = pn_model_load_file(f, &p, &m->m, err);
    pn_file_close(f);
    if (st)
        return st;
    pn_model_describe(m->m, &m->info);
    const pn_model_caps caps = {.ctx = m->n_ctx, .sessions = m->params.max_sessions, .concurrent = serve_model_slots(m)};
    st = pn_model_cap(m->m, &caps, err);
    if (!st && m->template_text.len)
        st = pn_template_open(m->server->e, m->template_text.data, m->template_text.len, &m->tpl, err);
    else if (!st && m->info.has_chat_template)
        pn_template_open_model(m->m, &m->tpl, NULL);    /* without it there is still the built-in format */
    return st;
}

static void registry_run(pn_task *t)
{
    serve_model *m = registry_of(t);
    if (m->state == SERVE_LOADING)
        m->err.status = registry_load(m, &m->err);
    if (m->state == SERVE_LOADING && !m->err.status)
        return;
    pn_template_close(m->tpl);
    pn_model_free(m->m);
    m->tpl = NULL;
    m->m = NULL;
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
    pn_str_fini(&m->aliases);
    pn_str_fini(&m->template_text);
    pn_mem_free(&s->mem, PN_ACCT_CONN, m, sizeof *m);
}

static void registry_remove(serve_model *m)
{
    serve_model **p = &m->server->models;
    while (*p != m)
        p = &(*p)->next;
    *p = m->next;
}

static void registry_done(pn_task *t)
{
    serve_model *m = registry_of(t);
    pn_server *s = m->server;
    if (m->state == SERVE_UNLOADING) {
        serve_logf(s, PN_LOG_INFO, "model %s: unloaded", m->name);
        serve_admin_waiters(m);
        registry_remove(m);
        registry_free(m);
        return;
    }
    m->state = m->err.status ? SERVE_FAILED : SERVE_MODEL_READY;
    m->created = pn_net_unix_s();
    if (m->err.status)
        serve_logf(s, PN_LOG_ERROR, "model %s: %s", m->name, m->err.text);
    else
        serve_logf(s, PN_LOG_INFO, "model %s: ready, %s %s, context %" PRIu32 ", %" PRIu32 " at once", m->name, m->info.arch, m->info.type,
                   m->n_ctx, serve_model_slots(m));
    serve_admin_waiters(m);
}

/* The file's name without folder and ".gguf". */
static pn_bytes registry_file_name(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = strlen(name);
    return (pn_bytes){name, n > 5 && memcmp(name + n - 5, ".gguf", 5) == 0 ? n - 5 : n};
}

static pn_status registry_new(pn_server *s, const pn_server_model *p, pn_bytes name, serve_model **out, pn_err *err)
{
    serve_model *m = pn_mem_calloc(&s->mem, PN_ACCT_CONN, 1, sizeof *m);
    if (!m)
        return pn_fail_nomem(err, "a model's entry", sizeof *m);
    m->server = s;
    m->params = *p;
    m->queue_end = &m->queue;
    m->task = (pn_task){.run = registry_run, .done = registry_done};
    pn_str_init(&m->aliases, &s->mem, PN_ACCT_CONN);
    pn_str_init(&m->template_text, &s->mem, PN_ACCT_CONN);
    for (size_t i = 0; i < p->n_aliases; i++)
        pn_str_add(&m->aliases, p->aliases[i], strlen(p->aliases[i]) + 1);
    if (p->template_text)
        pn_str_addz(&m->template_text, p->template_text);
    m->name = pn_mem_strndup(&s->mem, PN_ACCT_CONN, name.data, name.len);
    m->path = pn_mem_strndup(&s->mem, PN_ACCT_CONN, p->path, strlen(p->path));
    m->metrics = UINT32_MAX;            /* of nobody: when there are too many it is not counted */
    if (m->name)
        pn_metrics_model(s->metrics, m->name, name.len, &m->metrics, NULL);
    if (!m->name || !m->path || m->aliases.failed || m->template_text.failed) {
        registry_free(m);
        return pn_fail_nomem(err, "a model's entry", name.len);
    }
    *out = m;
    return PN_OK;
}

/* Is a name free?  A model that could not be loaded gives its own back. */
static pn_status registry_name(pn_server *s, pn_bytes name, pn_err *err)
{
    serve_model *m = serve_model_find(s, name);
    if (!name.len || name.len > REGISTRY_NAME_MAX)
        return pn_fail(err, PN_E_INVALID, "a model's name: expected 1 to %d bytes", REGISTRY_NAME_MAX);
    if (m && m->state == SERVE_FAILED && !m->waiters) {
        registry_remove(m);
        registry_free(m);
        m = NULL;
    }
    return m ? pn_fail(err, PN_E_INVALID, "there is a model called '%.*s' already; another copy of it would need a die of its own, and this "
                       "machine has the CPU alone", (int)name.len, name.data) : PN_OK;
}

PN_API pn_status pn_server_load(pn_server *s, const pn_server_model *params, pn_err *err)
{
    pn_server_model p;
    serve_model *m = NULL;
    memset(&p, 0, sizeof p);
    if (params)
        memcpy(&p, params, params->size ? PN_MIN(params->size, sizeof p) : sizeof p);
    if (!p.path)
        return pn_fail(err, PN_E_INVALID, "pn_server_load: a path must be given");
    pn_bytes name = p.name ? (pn_bytes){p.name, strlen(p.name)} : registry_file_name(p.path);
    for (size_t i = 0; i < p.n_dies; i++)
        if (p.dies[i] != 0)
            return pn_fail(err, PN_E_UNSUPPORTED, "die %" PRIu32 ": this machine has no such die (0, the CPU, is all there is)", p.dies[i]);
    pn_status st = registry_name(s, name, err);
    for (size_t i = 0; !st && i < p.n_aliases; i++)
        st = registry_name(s, (pn_bytes){p.aliases[i], strlen(p.aliases[i])}, err);
    if (!st)
        st = registry_new(s, &p, name, &m, err);
    if (st)
        return st;
    serve_model **end = &s->models;
    while (*end)
        end = &(*end)->next;
    *end = m;
    serve_logf(s, PN_LOG_INFO, "model %s: loading %s", m->name, m->path);
    pn_lane_add(&s->loader, &m->task);
    return PN_OK;
}

PN_API pn_status pn_server_ready(const pn_server *s, pn_err *err)
{
    pn_status st = PN_OK;
    for (const serve_model *m = s->models; m; m = m->next) {
        if (m->state == SERVE_FAILED)
            return pn_fail(err, m->err.status, "%s: %.400s", m->name, m->err.text);
        if (m->state == SERVE_LOADING)
            st = pn_fail(err, PN_E_STATE, "the model '%s' is loading", m->name);
    }
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Going
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void serve_model_settle(serve_model *m)
{
    if (m->state != SERVE_DRAINING || m->n_running || m->n_queued)
        return;
    m->state = SERVE_UNLOADING;
    pn_lane_add(&m->server->loader, &m->task);
}

PN_INTERNAL pn_status serve_model_unload(serve_model *m, pn_err *err)
{
    if (m->state == SERVE_LOADING)
        return pn_fail(err, PN_E_STATE, "the model '%s' is loading: unload it when it is ready", m->name);
    if (m->state == SERVE_UNLOADING || m->state == SERVE_DRAINING)
        return PN_OK;
    m->state = SERVE_DRAINING;
    serve_model_settle(m);
    return PN_OK;
}

/* Nobody asks anything any more.  A load that is under way is waited for. */
PN_INTERNAL void serve_models_free(pn_server *s)
{
    for (serve_model *m = s->models; m; m = m->next)
        m->waiters = NULL;
    while (s->models) {
        serve_model *m = s->models;
        pn_ready ready[SERVE_READY];
        if (m->state == SERVE_MODEL_READY || m->state == SERVE_FAILED)
            serve_model_unload(m, NULL);
        if (s->loader.threaded)
            pn_poller_wait(&s->poller, ready, SERVE_READY, 20);
        pn_wake_clear(&s->wake);
        pn_lane_done(&s->loader);
    }
}
