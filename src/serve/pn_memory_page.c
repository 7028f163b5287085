/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_memory_page.c - what the engine tells of memory, as JSON for /admin/memory and as samples for /metrics; and its
 * events, a line each, for the log.
 *
 * Everything here was asked of the engine a moment ago: nothing is kept, so nothing can be out of date.
 */
#include "serve/pn_server_int.h"

#include <inttypes.h>

enum { MEMORY_RUNGS = 128, MEMORY_EVENTS = 64, MEMORY_RANK_ASIDE = 15 };

static void memory_text(pn_str *s, const char *key, const char *value)
{
    pn_json_key(s, key);
    pn_json_write_strz(s, value);
}

static void memory_number(pn_str *s, const char *key, uint64_t value)
{
    pn_json_key(s, key);
    pn_json_write_u64(s, value);
}

/* null: unknown. */
static void memory_rate(pn_str *s, const char *key, double value)
{
    pn_json_key(s, key);
    if (value < 0)
        pn_str_addz(s, "null");
    else
        pn_json_write_f64(s, value);
}

/* "host", "die0": what the engine calls a resource. */
static const char *memory_name(pn_server *v, uint32_t resource, pn_mem_state *state)
{
    return pn_mem_get(v->e, resource, state) == PN_OK ? state->name : "?";
}

/* ------------------------------------------------------------------------------------------
 * JSON
 * ------------------------------------------------------------------------------------------ */

static void memory_resources(pn_server *v, pn_str *s)
{
    pn_mem_state r;
    pn_json_key(s, "resources");
    pn_str_addc(s, '[');
    for (uint32_t i = 0; i <= v->n_dies; i++) {
        if (pn_mem_get(v->e, i, &r) != PN_OK)
            continue;
        pn_json_item(s);
        pn_str_addc(s, '{');
        memory_text(s, "name", r.name);
        memory_text(s, "level", pn_level_name(r.level));
        memory_text(s, "why", r.why);
        memory_number(s, "budget", r.budget);
        memory_number(s, "available_hard", r.hard);
        memory_number(s, "available_soft", r.soft);
        memory_number(s, "watch_below", r.watch);
        memory_number(s, "tight_below", r.tight);
        memory_number(s, "critical_below", r.critical);
        memory_rate(s, "stall", r.stall);
        memory_rate(s, "refault_bytes_per_s", r.refault_rate);
        memory_number(s, "oom_kills", r.oom_kills);
        memory_number(s, "lent", r.lent);
        pn_str_addc(s, '}');
    }
    pn_str_addc(s, ']');
}

/* in_force: those alone. */
static void memory_rungs(pn_server *v, pn_str *s, const char *key, bool in_force)
{
    pn_mem_rung all[MEMORY_RUNGS];
    pn_mem_state state;
    size_t n = pn_mem_rungs(v->e, all, MEMORY_RUNGS);
    pn_json_key(s, key);
    pn_str_addc(s, '[');
    for (size_t i = 0; i < PN_MIN(n, (size_t)MEMORY_RUNGS); i++) {
        if (in_force && !all[i].in_force)
            continue;
        pn_json_item(s);
        pn_str_addc(s, '{');
        memory_number(s, "rank", all[i].rank);
        memory_text(s, "name", all[i].name);
        memory_text(s, "resource", memory_name(v, all[i].resource, &state));
        memory_text(s, "level", pn_level_name(all[i].level));
        pn_str_addz(s, all[i].in_force ? ",\"in_force\":true" : ",\"in_force\":false");
        memory_number(s, "applied", all[i].n_applied);
        memory_number(s, "undone", all[i].n_undone);
        memory_number(s, "freed", all[i].freed);
        pn_str_addc(s, '}');
    }
    pn_str_addc(s, ']');
}

/* One event, an object; memory sheet 15 names the keys. */
static void memory_event(pn_server *v, const pn_mem_event *ev, pn_str *s)
{
    static const char *const names[] = {"mem.level", "mem.rung", "mem.admit", "mem.gate", "mem.bug"};
    pn_mem_state state;
    pn_str_addc(s, '{');
    memory_text(s, "ev", names[ev->kind]);
    pn_json_key(s, "t");
    pn_json_write_f64(s, ev->seconds);
    memory_text(s, "res", memory_name(v, ev->resource, &state));
    switch (ev->kind) {
    case PN_MEM_LEVEL:
        memory_text(s, "from", pn_level_name(ev->from));
        memory_text(s, "to", pn_level_name(ev->level));
        memory_text(s, "why", ev->what);
        break;
    case PN_MEM_RUNG:
        memory_number(s, "rung", ev->rank);
        memory_text(s, "name", ev->what);
        memory_text(s, "dir", ev->undone ? "undo" : "apply");
        memory_number(s, "freed", ev->bytes);
        memory_text(s, "level", pn_level_name(ev->level));
        break;
    case PN_MEM_ADMIT:
        memory_text(s, "decision", ev->what);
        memory_number(s, "need", ev->bytes);
        break;
    case PN_MEM_GATE:
        memory_text(s, "type", ev->what);
        memory_rate(s, "kl", ev->kl);
        memory_rate(s, "top1", ev->top1);
        pn_str_addz(s, ev->eligible ? ",\"eligible\":true" : ",\"eligible\":false");
        break;
    case PN_MEM_BUG:
        memory_text(s, "what", ev->what);
        memory_number(s, "need", ev->bytes);
        break;
    }
    memory_number(s, "avail", ev->available);
    memory_number(s, "budget", ev->budget);
    pn_str_addc(s, '}');
}

PN_INTERNAL void serve_memory_json(pn_server *v, pn_str *s)
{
    pn_mem_event events[MEMORY_EVENTS];
    memory_text(s, "level", pn_level_name(pn_mem_level(v->e)));
    memory_resources(v, s);
    memory_rungs(v, s, "rungs", true);
    memory_rungs(v, s, "ladder", false);
    memory_number(s, "running", v->n_running);
    uint32_t queued = 0;
    for (const serve_model *m = v->models; m; m = m->next)
        queued += m->n_queued;
    memory_number(s, "queued", queued);
    pn_json_key(s, "events");
    pn_str_addc(s, '[');
    size_t n = pn_mem_events(v->e, events, MEMORY_EVENTS);
    for (size_t i = 0; i < n; i++) {
        pn_json_item(s);
        memory_event(v, &events[i], s);
    }
    pn_str_addc(s, ']');
}

/* ------------------------------------------------------------------------------------------
 * Samples for Prometheus
 * ------------------------------------------------------------------------------------------ */

static void memory_head(pn_str *s, const char *name, const char *type, const char *help)
{
    pn_str_addf(s, "# HELP pantheon_mem_%s %s\n# TYPE pantheon_mem_%s %s\n", name, help, name, type);
}

static void memory_gauges(pn_server *v, pn_str *s)
{
    static const struct { const char *name, *help; size_t at; } gauges[] = {
        {"budget_bytes", "Most memory there can ever be.", offsetof(pn_mem_state, budget)},
        {"available_hard_bytes", "What can be taken without being killed.", offsetof(pn_mem_state, hard)},
        {"available_soft_bytes", "What can be taken without losing mapped weights.", offsetof(pn_mem_state, soft)},
    };
    pn_mem_state r;
    for (size_t k = 0; k < PN_COUNT_OF(gauges); k++) {
        memory_head(s, gauges[k].name, "gauge", gauges[k].help);
        for (uint32_t i = 0; i <= v->n_dies; i++)
            if (pn_mem_get(v->e, i, &r) == PN_OK) {
                uint64_t bytes;
                memcpy(&bytes, (const char *)&r + gauges[k].at, sizeof bytes);
                pn_str_addf(s, "pantheon_mem_%s{resource=\"%s\"} %" PRIu64 "\n", gauges[k].name, r.name, bytes);
            }
    }
    memory_head(s, "level", "gauge", "0 OK, 1 WATCH, 2 TIGHT, 3 CRITICAL.");
    for (uint32_t i = 0; i <= v->n_dies; i++)
        if (pn_mem_get(v->e, i, &r) == PN_OK)
            pn_str_addf(s, "pantheon_mem_level{resource=\"%s\"} %d\n", r.name, (int)r.level);
}

static void memory_rung_counters(pn_server *v, pn_str *s)
{
    pn_mem_rung all[MEMORY_RUNGS];
    pn_mem_state state;
    size_t n = PN_MIN(pn_mem_rungs(v->e, all, MEMORY_RUNGS), (size_t)MEMORY_RUNGS);
    memory_head(s, "rung_total", "counter", "Changes of a rung of the ladder.");
    for (size_t i = 0; i < n; i++) {
        const char *at = memory_name(v, all[i].resource, &state);
        pn_str_addf(s, "pantheon_mem_rung_total{rung=\"%s\",resource=\"%s\",dir=\"apply\"} %" PRIu64 "\n", all[i].name, at, all[i].n_applied);
        pn_str_addf(s, "pantheon_mem_rung_total{rung=\"%s\",resource=\"%s\",dir=\"undo\"} %" PRIu64 "\n", all[i].name, at, all[i].n_undone);
    }
    memory_head(s, "rung_freed_bytes_total", "counter", "Bytes that a rung gave back.");
    for (size_t i = 0; i < n; i++)
        pn_str_addf(s, "pantheon_mem_rung_freed_bytes_total{rung=\"%s\",resource=\"%s\"} %" PRIu64 "\n", all[i].name,
                    memory_name(v, all[i].resource, &state), all[i].freed);
}

/* What rungs 10 and 11 leave. */
static void memory_steps(pn_server *v, pn_str *s)
{
    static const struct { const char *name, *help; size_t at; } gauges[] = {
        {"slots_effective", "Requests that are worked on at once, where memory bounds them.", offsetof(pn_die_info, max_requests)},
        {"prefill_chunk", "Rows of a step, where memory bounds them.", offsetof(pn_die_info, max_rows)},
    };
    pn_die_info d;
    for (size_t k = 0; k < PN_COUNT_OF(gauges); k++) {
        memory_head(s, gauges[k].name, "gauge", gauges[k].help);
        for (uint32_t i = 0; i < v->n_dies; i++) {
            uint32_t n;
            if (pn_engine_die(v->e, i, &d) != PN_OK)
                continue;
            memcpy(&n, (const char *)&d + gauges[k].at, sizeof n);
            if (n)
                pn_str_addf(s, "pantheon_mem_%s{die=\"%" PRIu32 "\"} %" PRIu32 "\n", gauges[k].name, i, n);
        }
    }
}

/* Streamed weights; replicas are told apart by their first die. */
static void memory_weights(pn_server *v, pn_str *s)
{
    static const struct { const char *name, *type, *help; } families[] = {
        {"pinned_bytes", "gauge", "Streamed models: weights that stay in memory."},
        {"lent_bytes", "gauge", "Streamed models: of those, what goes as soon as anybody needs the memory."},
        {"disk_bandwidth_bytes", "gauge", "Streamed models: bytes a second that the disk gives."},
        {"expected_tps", "gauge", "Streamed models: tokens a second of one sequence that disk and processor allow."},
        {"stream_bytes_total", "counter", "Streamed models: bytes of weights read."},
        {"stream_wait_seconds_total", "counter", "Streamed models: seconds that steps waited for reads."},
        {"expert_hits_total", "counter", "Streamed models: experts that were in memory."},
        {"expert_misses_total", "counter", "Streamed models: experts that had to be read."},
    };
    for (size_t k = 0; k < PN_COUNT_OF(families); k++) {
        memory_head(s, families[k].name, families[k].type, families[k].help);
        for (const serve_model *m = v->models; m; m = m->next)
            for (const serve_replica *r = m->replicas; r; r = r->next) {
                pn_residency_info i = {.mode = PN_RESIDENCY_MAP};
                if (r->state == SERVE_MODEL_READY)
                    pn_model_residency(r->m, &i);
                if (i.mode != PN_RESIDENCY_STREAM)
                    continue;
                const double values[] = {(double)i.pinned_bytes, (double)i.lent_bytes, i.disk_bytes_per_second, i.expected_tps, (double)i.stream_bytes, i.stream_wait_seconds,
                                         (double)i.expert_hits, (double)i.expert_misses};
                pn_str_addf(s, "pantheon_mem_%s{model=\"", families[k].name);
                pn_metrics_escape(s, m->name, strlen(m->name));
                pn_str_addf(s, "\",die=\"%" PRIu32 "\"} ", r->dies[0]);
                pn_json_write_f64(s, values[k]);
                pn_str_addc(s, '\n');
            }
    }
}

/* Conversations on disk. */
static void memory_cold(pn_server *v, pn_str *s)
{
    pn_cold_info c;
    pn_engine_cold(v->e, &c);
    const struct { const char *name, *type, *help; uint64_t value; } all[] = {
        {"cold_bytes", "gauge", "Bytes of conversations on disk.", c.bytes},
        {"evict_bytes_total", "counter", "Bytes of conversations written to disk.", c.saved_bytes},
        {"restore_bytes_total", "counter", "Bytes of conversations read from disk.", c.restored_bytes},
        {"restore_fail_total", "counter", "Pages on disk that could not be used.", c.failed_read + c.failed_damaged + c.failed_stranger + c.failed_memory},
    };
    for (size_t i = 0; i < PN_COUNT_OF(all) && c.bytes_max; i++) {
        memory_head(s, all[i].name, all[i].type, all[i].help);
        pn_str_addf(s, "pantheon_mem_%s %" PRIu64 "\n", all[i].name, all[i].value);
    }
}

PN_INTERNAL void serve_memory_metrics(pn_server *v, pn_str *s)
{
    pn_mem_state host;
    memory_gauges(v, s);
    memory_rung_counters(v, s);
    memory_steps(v, s);
    memory_weights(v, s);
    memory_cold(v, s);
    if (pn_mem_get(v->e, 0, &host) != PN_OK)
        return;
    memory_head(s, "admit_total", "counter", "Turns by what was decided about their memory.");
    pn_str_addf(s, "pantheon_mem_admit_total{decision=\"admitted\"} %" PRIu64 "\npantheon_mem_admit_total{decision=\"busy\"} %" PRIu64
                "\npantheon_mem_admit_total{decision=\"refused\"} %" PRIu64 "\n", host.n_admitted, host.n_busy, host.n_refused);
    memory_head(s, "alloc_fail_total", "counter", "Requests for memory that failed.");
    pn_str_addf(s, "pantheon_mem_alloc_fail_total %" PRIu64 "\n", host.n_failed);
    if (host.refault_rate >= 0 || host.refault_bytes) {
        memory_head(s, "refault_bytes_total", "counter", "Page cache that was read again after it had been dropped, of this control group or the system.");
        pn_str_addf(s, "pantheon_mem_refault_bytes_total %" PRIu64 "\n", host.refault_bytes);
    }
    memory_head(s, "oom_kill_events_total", "counter", "Kills for want of memory in this control group.");
    pn_str_addf(s, "pantheon_mem_oom_kill_events_total %" PRIu64 "\n", host.oom_kills);
}

/* ------------------------------------------------------------------------------------------
 * The log
 * ------------------------------------------------------------------------------------------ */

/* From any thread of the engine's. */
PN_INTERNAL void serve_memory_event(void *server, const pn_mem_event *ev)
{
    pn_server *v = server;
    pn_str s;
    if (ev->kind == PN_MEM_ADMIT)               /* the answer says it */
        return;
    pn_str_init(&s, &v->mem, PN_ACCT_CONN);
    memory_event(v, ev, &s);
    if (ev->kind == PN_MEM_RUNG && ev->rank == MEMORY_RANK_ASIDE) {
        atomic_store(&v->parks, true);
        serve_wake(v);
    }
    bool worse = ev->kind == PN_MEM_LEVEL && ev->level > ev->from;
    if (!s.failed)
        serve_log_object(v, ev->kind == PN_MEM_BUG ? PN_LOG_ERROR : worse ? PN_LOG_WARN : PN_LOG_INFO, "memory", s.data);
    pn_str_fini(&s);
}
