/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_metrics.c - the table of families, cells, and the text.
 *
 * A gauge that has not been set holds NaN and is left out where the table says so: no value is better than a
 * wrong one.  Everything else begins at 0 and is written from the beginning, since a rate can only be computed
 * from a series that was there before its first event.  The exception is requests_total, whose many
 * combinations appear when they first happen.
 */
#include "serve/pn_metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/pn_json.h"
#include "base/pn_utf8.h"

/* ------------------------------------------------------------------------------------------
 * The table
 * ------------------------------------------------------------------------------------------ */

typedef enum metrics_kind { METRICS_GAUGE = 0, METRICS_COUNTER, METRICS_HISTOGRAM, METRICS_LABEL } metrics_kind;

typedef enum metrics_buckets { METRICS_TTFT = 0, METRICS_ITL, METRICS_LATENCY, METRICS_TOKENS } metrics_buckets;

typedef struct metrics_bounds {
    uint32_t n;
    double le[22];              /* [n], ascending, without +Inf */
} metrics_bounds;

/* vLLM's, by which dashboards compute their quantiles. */
static const metrics_bounds metrics_bounds_of[] = {
    [METRICS_TTFT] = {22, {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
                           80, 160, 640, 2560}},
    [METRICS_ITL] = {19, {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}},
    [METRICS_LATENCY] = {21, {0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}},
    [METRICS_TOKENS] = {19, {1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6}},
};

typedef struct metrics_family {
    const char *name, *help;    /* NULL name: not written by itself */
    uint8_t kind;               /* metrics_kind */
    bool per_model;
    bool sparse;                /* what is 0 or has not been set is left out */
    uint8_t buckets;            /* metrics_buckets, of histograms */
    const char *label;          /* besides the model; NULL: none */
    uint32_t n_label;           /* its values */
} metrics_family;

static const metrics_family metrics_table[PN_METRIC_COUNT] = {
    [PN_METRIC_RUNNING] = {"pantheon_requests_running", "Requests being worked on.", METRICS_GAUGE, .per_model = true},
    [PN_METRIC_WAITING] = {"pantheon_requests_waiting", "Requests waiting for their turn.", METRICS_GAUGE, .per_model = true},
    [PN_METRIC_KV_RATIO] = {"pantheon_kv_cache_usage_ratio", "Share of the model's key/value pages in use, 0 to 1.",
                            METRICS_GAUGE, .per_model = true},
    [PN_METRIC_BLOCK_TOKENS] = {"pantheon_cache_config_info",
                                "Key/value pages: tokens in a page, and pages; the value is always 1.", METRICS_LABEL,
                                .per_model = true, .sparse = true},
    [PN_METRIC_BLOCKS] = {NULL, NULL, METRICS_LABEL, .per_model = true, .sparse = true},
    [PN_METRIC_REQUESTS] = {"pantheon_requests_total", "Requests that came to an end, by endpoint and reason.",
                            METRICS_COUNTER, .per_model = true, .sparse = true, .label = "endpoint",
                            .n_label = PN_ENDPOINT_COUNT * PN_ENDED_COUNT},
    [PN_METRIC_PROMPT_TOKENS] = {"pantheon_prompt_tokens_total", "Tokens of prompts, cached ones included.",
                                 METRICS_COUNTER, .per_model = true},
    [PN_METRIC_CACHED_TOKENS] = {"pantheon_prompt_cached_tokens_total", "Tokens of prompts that were not computed anew.",
                                 METRICS_COUNTER, .per_model = true},
    [PN_METRIC_GENERATION_TOKENS] = {"pantheon_generation_tokens_total", "Tokens generated.", METRICS_COUNTER,
                                     .per_model = true},
    [PN_METRIC_PREFIX_QUERIES] = {"pantheon_prefix_cache_queried_tokens_total", "Tokens looked up in the prefix cache.",
                                  METRICS_COUNTER, .per_model = true},
    [PN_METRIC_PREFIX_HITS] = {"pantheon_prefix_cache_hit_tokens_total", "Tokens found in the prefix cache.",
                               METRICS_COUNTER, .per_model = true},
    [PN_METRIC_TTFT] = {"pantheon_time_to_first_token_seconds", "From the request to the first token of its answer.",
                        METRICS_HISTOGRAM, .per_model = true, .buckets = METRICS_TTFT},
    [PN_METRIC_ITL] = {"pantheon_inter_token_latency_seconds", "From one token of an answer to the next.",
                       METRICS_HISTOGRAM, .per_model = true, .buckets = METRICS_ITL},
    [PN_METRIC_E2E] = {"pantheon_e2e_request_latency_seconds", "From the request to the end of its answer.",
                       METRICS_HISTOGRAM, .per_model = true, .buckets = METRICS_LATENCY},
    [PN_METRIC_QUEUE] = {"pantheon_request_queue_seconds", "Time a request waited for its turn.", METRICS_HISTOGRAM,
                         .per_model = true, .buckets = METRICS_LATENCY},
    [PN_METRIC_PARKED] = {"pantheon_request_parked_seconds", "Time a request stood aside for want of memory, of those that did.",
                          METRICS_HISTOGRAM, .per_model = true, .buckets = METRICS_LATENCY},
    [PN_METRIC_PREFILL] = {"pantheon_request_prefill_seconds", "Time a request's prompt took.", METRICS_HISTOGRAM,
                           .per_model = true, .buckets = METRICS_LATENCY},
    [PN_METRIC_DECODE] = {"pantheon_request_decode_seconds", "Time a request's answer took.", METRICS_HISTOGRAM,
                          .per_model = true, .buckets = METRICS_LATENCY},
    [PN_METRIC_REQUEST_PROMPT] = {"pantheon_request_prompt_tokens", "Tokens of a request's prompt.", METRICS_HISTOGRAM,
                                  .per_model = true, .buckets = METRICS_TOKENS},
    [PN_METRIC_REQUEST_GENERATION] = {"pantheon_request_generation_tokens", "Tokens of a request's answer.",
                                      METRICS_HISTOGRAM, .per_model = true, .buckets = METRICS_TOKENS},
    [PN_METRIC_CONNECTIONS] = {"pantheon_http_connections", "Open HTTP connections.", .kind = METRICS_GAUGE},
    [PN_METRIC_RESPONSES] = {"pantheon_http_responses_total", "HTTP responses, by class of their status.",
                             METRICS_COUNTER, .label = "class", .n_label = 5},
    [PN_METRIC_MEM] = {"pantheon_mem_bytes", "Bytes held, by account.", METRICS_GAUGE, .sparse = true, .label = "account",
                       .n_label = PN_ACCT_COUNT},
    [PN_METRIC_MEM_PEAK] = {"pantheon_mem_peak_bytes", "Most bytes ever held, by account.", METRICS_GAUGE, .sparse = true,
                            .label = "account", .n_label = PN_ACCT_COUNT},
    [PN_METRIC_MEM_LIMIT] = {"pantheon_mem_limit_bytes", "Limit of all accounts but weights_map.", METRICS_GAUGE,
                             .sparse = true},
    [PN_METRIC_MEM_HOST] = {"pantheon_mem_host_bytes", "Memory of the host, or of its tightest cgroup.", METRICS_GAUGE,
                            .sparse = true},
    [PN_METRIC_MEM_AVAILABLE] = {"pantheon_mem_host_available_bytes", "Memory that can still be taken from the host.",
                                 METRICS_GAUGE, .sparse = true},
    [PN_METRIC_START] = {"process_start_time_seconds", "When the process began, seconds since 1970.", METRICS_GAUGE,
                         .sparse = true},
    [PN_METRIC_BUILD] = {"pantheon_build_info", "What is running; the value is always 1.", .kind = METRICS_LABEL},
};

/* vLLM's names for families of models, with labels model_name and engine instead of model. */
static const struct metrics_alias {
    const char *name, *help;
    uint8_t id;                 /* pn_metric */
} metrics_vllm[] = {
    {"vllm:num_requests_running", "Requests being worked on.", PN_METRIC_RUNNING},
    {"vllm:num_requests_waiting", "Requests waiting for their turn.", PN_METRIC_WAITING},
    {"vllm:kv_cache_usage_perc", "Share of the model's key/value pages in use; 1 is all.", PN_METRIC_KV_RATIO},
    {"vllm:cache_config_info", "Key/value pages: tokens in a page, and pages.", PN_METRIC_BLOCK_TOKENS},
    {"vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache.", PN_METRIC_PREFIX_QUERIES},
    {"vllm:prefix_cache_hits_total", "Tokens found in the prefix cache.", PN_METRIC_PREFIX_HITS},
    {"vllm:prompt_tokens_total", "Tokens of prompts.", PN_METRIC_PROMPT_TOKENS},
    {"vllm:generation_tokens_total", "Tokens generated.", PN_METRIC_GENERATION_TOKENS},
    {"vllm:request_success_total", "Requests that came to an end, by reason.", PN_METRIC_REQUESTS},
    {"vllm:time_to_first_token_seconds", "From the request to its first token.", PN_METRIC_TTFT},
    {"vllm:inter_token_latency_seconds", "From one token to the next.", PN_METRIC_ITL},
    {"vllm:time_per_output_token_seconds", "From one token to the next (older name).", PN_METRIC_ITL},
    {"vllm:e2e_request_latency_seconds", "From the request to the end of its answer.", PN_METRIC_E2E},
    {"vllm:request_queue_time_seconds", "Time a request waited for its turn.", PN_METRIC_QUEUE},
    {"vllm:request_prefill_time_seconds", "Time a request's prompt took.", PN_METRIC_PREFILL},
    {"vllm:request_decode_time_seconds", "Time a request's answer took.", PN_METRIC_DECODE},
    {"vllm:request_prompt_tokens", "Tokens of a request's prompt.", PN_METRIC_REQUEST_PROMPT},
    {"vllm:request_generation_tokens", "Tokens of a request's answer.", PN_METRIC_REQUEST_GENERATION},
};

static const char *const metrics_endpoints[PN_ENDPOINT_COUNT] = {"chat", "completions", "embeddings", "responses",
                                                                 "messages", "other"};
static const char *const metrics_reasons[PN_ENDED_COUNT] = {"stop", "length", "tool_calls", "abort", "rejected",
                                                               "error"};
static const char *const metrics_classes[] = {"1xx", "2xx", "3xx", "4xx", "5xx"};

/* ------------------------------------------------------------------------------------------
 * Cells
 * ------------------------------------------------------------------------------------------ */

typedef struct metrics_model {
    char *name;                 /* owned, [len + 1] */
    size_t len;
    double *cells;              /* owned, [n_cells[1]] */
} metrics_model;

struct pn_metrics {
    pn_mem *mem;
    pn_str build;               /* labels of build_info, written out; empty: not shown */
    uint32_t at[PN_METRIC_COUNT];   /* first cell of a family, among the server's or a model's */
    uint32_t n_cells[2];        /* of the server, of a model */
    double *cells;              /* owned, [n_cells[0]]: the server's */
    metrics_model *models;      /* owned, [cap], n in use */
    size_t n, cap;
};

static uint32_t metrics_width(const metrics_family *f)
{
    if (f->kind == METRICS_HISTOGRAM)
        return metrics_bounds_of[f->buckets].n + 2;     /* +Inf, sum */
    return f->label ? f->n_label : 1;
}

/* The server's cells (of_model 0) or a model's; NULL: out of memory. */
static double *metrics_new_cells(const pn_metrics *m, bool of_model)
{
    double *c = pn_mem_calloc(m->mem, PN_ACCT_MISC, m->n_cells[of_model], sizeof *c);
    for (uint32_t id = 0; c && id < PN_METRIC_COUNT; id++) {
        const metrics_family *f = &metrics_table[id];
        if (f->per_model == of_model && f->sparse && f->kind != METRICS_COUNTER)
            for (uint32_t i = 0; i < metrics_width(f); i++)
                c[m->at[id] + i] = NAN;
    }
    return c;
}

/* The first cell of a family; NULL: there is no such family or model. */
static double *metrics_cells(const pn_metrics *m, pn_metric id, uint32_t model)
{
    if ((unsigned)id >= PN_METRIC_COUNT || (metrics_table[id].per_model && model >= m->n))
        return NULL;
    return (metrics_table[id].per_model ? m->models[model].cells : m->cells) + m->at[id];
}

/* The cell of a gauge or counter; NULL: there is none. */
static double *metrics_cell(const pn_metrics *m, pn_metric id, uint32_t model, uint32_t label)
{
    double *c = metrics_cells(m, id, model);
    if (!c || metrics_table[id].kind == METRICS_HISTOGRAM)
        return NULL;
    if (!metrics_table[id].label)
        return c;
    return label < metrics_table[id].n_label ? c + label : NULL;
}

PN_INTERNAL void pn_metrics_add(pn_metrics *m, pn_metric id, uint32_t model, uint32_t label, double v)
{
    double *c = metrics_cell(m, id, model, label);
    if (!c || isnan(v) || (v < 0 && metrics_table[id].kind == METRICS_COUNTER))
        return;
    *c = isnan(*c) ? v : *c + v;
}

PN_INTERNAL void pn_metrics_set(pn_metrics *m, pn_metric id, uint32_t model, uint32_t label, double v)
{
    double *c = metrics_cell(m, id, model, label);
    if (!c || isnan(v) || (metrics_table[id].kind == METRICS_COUNTER && v < *c))
        return;
    *c = v;
}

PN_INTERNAL void pn_metrics_observe(pn_metrics *m, pn_metric id, uint32_t model, double v)
{
    double *c = metrics_cells(m, id, model);
    if (!c || metrics_table[id].kind != METRICS_HISTOGRAM || isnan(v))
        return;
    const metrics_bounds *b = &metrics_bounds_of[metrics_table[id].buckets];
    uint32_t i = 0;
    v = PN_MAX(v, 0.0);
    while (i < b->n && v > b->le[i])
        i++;
    c[i]++;
    c[b->n + 1] += v;
}

PN_INTERNAL void pn_metrics_ended(pn_metrics *m, uint32_t model, pn_metric_endpoint e, pn_metric_ended f)
{
    if ((unsigned)e < PN_ENDPOINT_COUNT && (unsigned)f < PN_ENDED_COUNT)
        pn_metrics_add(m, PN_METRIC_REQUESTS, model, (uint32_t)e * PN_ENDED_COUNT + (uint32_t)f, 1);
}

PN_INTERNAL void pn_metrics_responded(pn_metrics *m, int http_status)
{
    if (http_status >= 100 && http_status < 600)
        pn_metrics_add(m, PN_METRIC_RESPONSES, 0, (uint32_t)(http_status / 100 - 1), 1);
}

PN_INTERNAL void pn_metrics_memory(pn_metrics *m, const pn_mem_info *i)
{
    const struct { pn_metric id; uint64_t bytes; } some[] = {
        {PN_METRIC_MEM_LIMIT, i->limit}, {PN_METRIC_MEM_HOST, i->host_total}, {PN_METRIC_MEM_AVAILABLE, i->host_available},
    };
    for (uint32_t a = 0; a < PN_ACCT_COUNT; a++) {
        pn_metrics_set(m, PN_METRIC_MEM, 0, a, (double)i->used[a]);
        pn_metrics_set(m, PN_METRIC_MEM_PEAK, 0, a, (double)i->peak[a]);
    }
    for (size_t k = 0; k < PN_COUNT_OF(some); k++)      /* 0 is none, or unknown */
        *metrics_cell(m, some[k].id, 0, 0) = some[k].bytes ? (double)some[k].bytes : (double)NAN;
}

PN_INTERNAL double pn_metrics_get(const pn_metrics *m, pn_metric id, uint32_t model, uint32_t label)
{
    const double *c = metrics_cells(m, id, model);
    if (c && metrics_table[id].kind == METRICS_HISTOGRAM) {
        double n = 0;
        for (uint32_t i = 0; i <= metrics_bounds_of[metrics_table[id].buckets].n; i++)
            n += c[i];
        return n;
    }
    c = metrics_cell(m, id, model, label);
    return !c || isnan(*c) ? 0 : *c;
}

/* ------------------------------------------------------------------------------------------
 * Beginning and end
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_metrics_escape(pn_str *s, const char *value, size_t n)
{
    for (size_t i = 0, k; i < n; i += k) {
        uint32_t cp;
        k = pn_utf8_decode(value + i, n - i, &cp);
        if (value[i] == '\n')
            pn_str_addz(s, "\\n");
        else if (value[i] == '\\' || value[i] == '"')
            pn_str_add(s, (const char[]){'\\', value[i]}, 2);
        else if (k == 1 && cp == PN_UTF8_BAD)
            pn_str_addz(s, "\xEF\xBF\xBD");
        else
            pn_str_add(s, value + i, k);
    }
}

/* `{name="value"` or `,name="value"`. */
static void metrics_label(pn_str *s, bool *first, const char *name, const char *value, size_t n)
{
    pn_str_addz(s, *first ? "{" : ",");
    *first = false;
    pn_str_addz(s, name);
    pn_str_addz(s, "=\"");
    pn_metrics_escape(s, value, n);
    pn_str_addc(s, '"');
}

static void metrics_labelz(pn_str *s, bool *first, const char *name, const char *value)
{
    metrics_label(s, first, name, value ? value : "", value ? strlen(value) : 0);
}

PN_INTERNAL pn_status pn_metrics_new(pn_metrics **out, pn_mem *mem, const pn_metrics_build *build, pn_err *err)
{
    pn_metrics *m = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *m);
    if (!m)
        return pn_fail_nomem(err, "the metrics", sizeof *m);
    m->mem = mem;
    pn_str_init(&m->build, mem, PN_ACCT_MISC);
    for (uint32_t id = 0; id < PN_METRIC_COUNT; id++) {
        uint32_t *n = &m->n_cells[metrics_table[id].per_model];
        m->at[id] = *n;
        *n += metrics_width(&metrics_table[id]);
    }
    if (build) {
        bool first = true;
        metrics_labelz(&m->build, &first, "version", build->version);
        metrics_labelz(&m->build, &first, "build", build->build);
        metrics_labelz(&m->build, &first, "backend", build->backend);
        metrics_labelz(&m->build, &first, "isa", build->isa);
    }
    m->cells = metrics_new_cells(m, false);
    if (!m->cells || m->build.failed) {
        pn_status st = pn_fail_nomem(err, "the metrics", m->n_cells[0] * sizeof *m->cells);
        pn_metrics_free(m);
        return st;
    }
    *out = m;
    return PN_OK;
}

PN_INTERNAL void pn_metrics_free(pn_metrics *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n; i++) {
        pn_mem_free(m->mem, PN_ACCT_MISC, m->models[i].name, m->models[i].len + 1);
        pn_mem_free(m->mem, PN_ACCT_MISC, m->models[i].cells, m->n_cells[1] * sizeof(double));
    }
    pn_mem_free(m->mem, PN_ACCT_MISC, m->models, m->cap * sizeof *m->models);
    pn_mem_free(m->mem, PN_ACCT_MISC, m->cells, m->n_cells[0] * sizeof *m->cells);
    pn_str_fini(&m->build);
    pn_mem_free(m->mem, PN_ACCT_MISC, m, sizeof *m);
}

PN_INTERNAL pn_status pn_metrics_model(pn_metrics *m, const char *name, size_t len, uint32_t *model, pn_err *err)
{
    if (!len || len > PN_METRICS_NAME_BYTES)
        return pn_fail(err, PN_E_INVALID, "a model's name has %zu bytes, expected 1 to %u", len, PN_METRICS_NAME_BYTES);
    for (size_t i = 0; i < m->n; i++)
        if (m->models[i].len == len && memcmp(m->models[i].name, name, len) == 0) {
            *model = (uint32_t)i;
            return PN_OK;
        }
    if (m->n == PN_METRICS_MODELS)
        return pn_fail(err, PN_E_BUDGET, "metrics are kept for %u models, not more", PN_METRICS_MODELS);
    metrics_model add = {pn_mem_strndup(m->mem, PN_ACCT_MISC, name, len), len, metrics_new_cells(m, true)};
    if (!add.name || !add.cells ||
        !pn_mem_grow(m->mem, PN_ACCT_MISC, (void **)&m->models, &m->cap, m->n + 1, sizeof *m->models)) {
        pn_mem_free(m->mem, PN_ACCT_MISC, add.name, len + 1);
        pn_mem_free(m->mem, PN_ACCT_MISC, add.cells, m->n_cells[1] * sizeof *add.cells);
        return pn_fail_nomem(err, "a model's metrics", m->n_cells[1] * sizeof *add.cells);
    }
    *model = (uint32_t)m->n;
    m->models[m->n++] = add;
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * The page
 * ------------------------------------------------------------------------------------------ */

typedef struct metrics_page {
    const pn_metrics *m;
    pn_str *s;
    const char *name, *help;    /* of the family being written */
    uint8_t id;                 /* pn_metric */
    bool vllm, begun;
} metrics_page;

/* A sample's name and its first label, the model; HELP and TYPE before the family's first. */
static bool metrics_sample(metrics_page *p, const metrics_model *of, const char *suffix)
{
    static const char *const types[] = {"gauge", "counter", "histogram", "gauge"};
    bool first = true;
    if (!p->begun)
        pn_str_addf(p->s, "# HELP %s %s\n# TYPE %s %s\n", p->name, p->help, p->name, types[metrics_table[p->id].kind]);
    p->begun = true;
    pn_str_addz(p->s, p->name);
    pn_str_addz(p->s, suffix);
    if (of) {
        metrics_label(p->s, &first, p->vllm ? "model_name" : "model", of->name, of->len);
        if (p->vllm)
            metrics_labelz(p->s, &first, "engine", "0");
    }
    return first;
}

static void metrics_value(metrics_page *p, bool no_labels, double v)
{
    pn_str_addz(p->s, no_labels ? " " : "} ");
    if (isfinite(v))
        pn_json_write_f64(p->s, v);
    else
        pn_str_addz(p->s, isnan(v) ? "NaN" : v > 0 ? "+Inf" : "-Inf");
    pn_str_addc(p->s, '\n');
}

static void metrics_write_histogram(metrics_page *p, const metrics_model *of, const double *c)
{
    const metrics_bounds *b = &metrics_bounds_of[metrics_table[p->id].buckets];
    double n = 0;
    for (uint32_t i = 0; i <= b->n; i++) {
        bool first = metrics_sample(p, of, "_bucket");
        pn_str le;
        n += c[i];
        pn_str_init(&le, p->m->mem, PN_ACCT_MISC);
        if (i < b->n)
            pn_json_write_f64(&le, b->le[i]);
        metrics_labelz(p->s, &first, "le", i < b->n ? pn_str_cstr(&le) : "+Inf");
        p->s->failed |= le.failed;
        pn_str_fini(&le);
        metrics_value(p, false, n);
    }
    metrics_value(p, metrics_sample(p, of, "_sum"), c[b->n + 1]);
    metrics_value(p, metrics_sample(p, of, "_count"), n);
}

/* Tokens of a block and their number are labels; blocks are "gpu" ones to whoever asks for vLLM's. */
static void metrics_write_cache(metrics_page *p, const metrics_model *of)
{
    const double *c = of->cells;
    double block = c[p->m->at[PN_METRIC_BLOCK_TOKENS]], n = c[p->m->at[PN_METRIC_BLOCKS]];
    char text[32];
    if (!(block >= 0 && block < 1e15 && n >= 0 && n < 1e15))
        return;
    bool first = metrics_sample(p, of, "");
    snprintf(text, sizeof text, "%" PRIu64, (uint64_t)block);
    metrics_labelz(p->s, &first, "block_size", text);
    snprintf(text, sizeof text, "%" PRIu64, (uint64_t)n);
    metrics_labelz(p->s, &first, p->vllm ? "num_gpu_blocks" : "num_blocks", text);
    metrics_value(p, false, 1);
}

/* vLLM has three reasons for all endpoints together; what did not succeed is not among them. */
static void metrics_write_success(metrics_page *p, const metrics_model *of, const double *c)
{
    static const char *const reasons[] = {"stop", "length", "abort"};
    static const uint8_t reason_of[PN_ENDED_COUNT] = {0, 1, 0, 2, 3, 3};
    double n[4] = {0};
    for (uint32_t i = 0; i < PN_ENDPOINT_COUNT * PN_ENDED_COUNT; i++)
        n[reason_of[i % PN_ENDED_COUNT]] += c[i];
    for (uint32_t i = 0; i < PN_COUNT_OF(reasons); i++) {
        bool first = metrics_sample(p, of, "");
        metrics_labelz(p->s, &first, "finished_reason", reasons[i]);
        metrics_value(p, first, n[i]);
    }
}

static const char *metrics_label_value(uint8_t id, uint32_t i)
{
    switch (id) {
    case PN_METRIC_REQUESTS: return metrics_endpoints[i / PN_ENDED_COUNT];
    case PN_METRIC_RESPONSES: return metrics_classes[i];
    default: return pn_account_name((pn_account)i);
    }
}

static void metrics_write_cells(metrics_page *p, const metrics_model *of, const double *c)
{
    const metrics_family *f = &metrics_table[p->id];
    for (uint32_t i = 0; i < metrics_width(f); i++) {
        if (f->sparse && (isnan(c[i]) || (f->kind == METRICS_COUNTER && c[i] == 0)))
            continue;
        bool first = metrics_sample(p, of, "");
        if (f->label)
            metrics_labelz(p->s, &first, f->label, metrics_label_value(p->id, i));
        if (p->id == PN_METRIC_REQUESTS)
            metrics_labelz(p->s, &first, "finished_reason", metrics_reasons[i % PN_ENDED_COUNT]);
        metrics_value(p, first, c[i]);
    }
}

static void metrics_write_of(metrics_page *p, const metrics_model *of)
{
    const double *c = (of ? of->cells : p->m->cells) + p->m->at[p->id];
    if (metrics_table[p->id].kind == METRICS_HISTOGRAM) {
        metrics_write_histogram(p, of, c);
    } else if (p->id == PN_METRIC_BLOCK_TOKENS) {
        metrics_write_cache(p, of);
    } else if (p->id == PN_METRIC_REQUESTS && p->vllm) {
        metrics_write_success(p, of, c);
    } else if (p->id != PN_METRIC_BUILD) {
        metrics_write_cells(p, of, c);
    } else if (p->m->build.len) {
        metrics_sample(p, NULL, "");
        pn_str_add(p->s, p->m->build.data, p->m->build.len);
        metrics_value(p, false, 1);
    }
}

static void metrics_write_family(const pn_metrics *m, pn_str *out, bool vllm, const char *name, const char *help, uint8_t id)
{
    metrics_page p = {.m = m, .s = out, .name = name, .help = help, .id = id, .vllm = vllm};
    if (!metrics_table[id].per_model)
        metrics_write_of(&p, NULL);
    for (size_t i = 0; i < m->n && metrics_table[id].per_model; i++)
        metrics_write_of(&p, &m->models[i]);
}

PN_INTERNAL void pn_metrics_write(const pn_metrics *m, pn_str *out, bool vllm)
{
    for (uint8_t id = 0; id < PN_METRIC_COUNT; id++)
        if (metrics_table[id].name)
            metrics_write_family(m, out, false, metrics_table[id].name, metrics_table[id].help, id);
    for (size_t i = 0; i < PN_COUNT_OF(metrics_vllm) && vllm; i++)
        metrics_write_family(m, out, true, metrics_vllm[i].name, metrics_vllm[i].help, metrics_vllm[i].id);
}
