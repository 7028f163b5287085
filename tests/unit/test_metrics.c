/* SPDX-License-Identifier: AGPL-3.0-only */
/* The page is read back as Prometheus reads it: every family told once, every series once, histograms sound. */
#include "pn_test.h"

#include "serve/pn_metrics.h"

#include <ctype.h>

static pn_test_mem mem;

/* ------------------------------------------------------------------------------------------
 * A reader of the format
 * ------------------------------------------------------------------------------------------ */

typedef struct sample {
    char name[96], family[96], type[16];
    char labels[400];           /* name=value;..., unescaped, without le */
    double le, v;               /* le NAN: none */
} sample;

static sample page[8192];
static size_t n_page;

/* "le" goes to s->le, the others are gathered.  Returns what follows the '}'; NULL: not the format. */
static const char *read_labels(sample *s, const char *p)
{
    size_t n = 0;
    do {
        char name[64], value[200];
        size_t k = 0;
        for (p++; isalnum((unsigned char)*p) || *p == '_'; p++)
            name[k++] = *p;
        name[k] = 0;
        if (*p++ != '=' || *p++ != '"' || !k)
            return NULL;
        for (k = 0; *p != '"'; p++) {
            if (!*p || *p == '\n')
                return NULL;
            bool escaped = *p == '\\';
            if (escaped && *++p != 'n' && *p != '\\' && *p != '"')
                return NULL;
            value[k++] = escaped && *p == 'n' ? '\n' : *p;
        }
        value[k] = 0;
        p++;
        if (strcmp(name, "le") == 0)
            s->le = strcmp(value, "+Inf") == 0 ? (double)INFINITY : strtod(value, NULL);
        else
            n += (size_t)snprintf(s->labels + n, sizeof s->labels - n, "%s=%s;", name, value);
    } while (*p == ',');
    return *p == '}' ? p + 1 : NULL;
}

static bool read_sample(sample *s, const char *p)
{
    size_t k = 0;
    s->le = (double)NAN;
    s->labels[0] = 0;
    for (; isalnum((unsigned char)*p) || *p == '_' || *p == ':'; p++)
        s->name[k++] = *p;
    s->name[k] = 0;
    if (*p == '{' && !(p = read_labels(s, p)))
        return false;
    char *end;
    s->v = strtod(p + 1, &end);
    return *p == ' ' && end > p + 1 && *end == '\n';
}

/* Is `name` a sample's name in the family? */
static bool belongs(const char *name, const char *family, const char *type)
{
    size_t n = strlen(family);
    if (strncmp(name, family, n) != 0)
        return false;
    if (strcmp(type, "histogram") != 0)
        return !name[n];
    return strcmp(name + n, "_bucket") == 0 || strcmp(name + n, "_sum") == 0 || strcmp(name + n, "_count") == 0;
}

static void read_page(const char *text)
{
    char family[96] = "", type[16] = "", help[96] = "", seen[80][96];
    size_t n_seen = 0;
    n_page = 0;
    for (const char *p = text; *p; p = strchr(p, '\n') + 1) {
        if (strncmp(p, "# HELP ", 7) == 0) {
            int at = 0;
            PN_CHECK(sscanf(p, "# HELP %95s %n", help, &at) == 1 && at && p[at] != '\n', "%.60s", p);
        } else if (strncmp(p, "# TYPE ", 7) == 0) {
            PN_CHECK(sscanf(p, "# TYPE %95s %15s", family, type) == 2 && strcmp(family, help) == 0, "%.60s", p);
            for (size_t i = 0; i < n_seen; i++)
                PN_CHECK(strcmp(seen[i], family) != 0, "%s comes twice", family);
            strcpy(seen[n_seen++], family);
            size_t n = strlen(family);
            bool total = n > 6 && strcmp(family + n - 6, "_total") == 0;
            PN_CHECK(total == (strcmp(type, "counter") == 0), "%s %s", family, type);
        } else {
            sample *s = &page[n_page++];
            PN_CHECK(read_sample(s, p), "%.80s", p);
            PN_CHECK(belongs(s->name, family, type), "%s in %s", s->name, family);
            strcpy(s->family, family);
            strcpy(s->type, type);
        }
        PN_CHECK(strchr(p, '\n'), "the last line has an end");
    }
    for (size_t i = 0; i < n_page; i++) {
        size_t k = 0;
        while (k < i && (strcmp(page[i].name, page[k].name) != 0 || strcmp(page[i].labels, page[k].labels) != 0 ||
                         (!isnan(page[i].le) && page[i].le != page[k].le)))
            k++;
        PN_CHECK(k == i, "%s{%s} comes twice", page[i].name, page[i].labels);
    }
}

/* A sample's value; NAN: it is not there. */
static double value(const char *name, const char *labels)
{
    for (size_t i = 0; i < n_page; i++)
        if (strcmp(page[i].name, name) == 0 && strcmp(page[i].labels, labels) == 0 && isnan(page[i].le))
            return page[i].v;
    return (double)NAN;
}

static void histograms_are_sound(void)
{
    size_t n = 0;
    for (size_t i = 0; i < n_page; i++) {
        if (strcmp(page[i].type, "histogram") != 0 || isnan(page[i].le))
            continue;
        bool same = i && strcmp(page[i - 1].name, page[i].name) == 0 && strcmp(page[i - 1].labels, page[i].labels) == 0;
        PN_CHECK(!same || (page[i].le > page[i - 1].le && page[i].v >= page[i - 1].v), "%s", page[i].name);
        if (!isinf(page[i].le))
            continue;
        char count[128];
        snprintf(count, sizeof count, "%s_count", page[i].family);
        PN_CHECK(value(count, page[i].labels) == page[i].v, "%s{%s}", count, page[i].labels);
        n++;
    }
    PN_CHECK(n > 0);
}

/* ------------------------------------------------------------------------------------------
 * What must hold
 * ------------------------------------------------------------------------------------------ */

static const pn_metrics_build build = {"0.1.0", "abc\"1\"", "cpu", "avx2"};

static void write_and_read(const pn_metrics *m, bool vllm)
{
    pn_str s;
    pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
    pn_metrics_write(m, &s, vllm);
    PN_CHECK(!s.failed);
    read_page(pn_str_cstr(&s));
    pn_str_fini(&s);
}

/* Something of everything. */
static void fill(pn_metrics *m, uint32_t a, uint32_t b)
{
    pn_mem_info mi = {.used = {1}, .peak = {2}, .total_used = 1, .host_total = 1ull << 33};
    pn_metrics_add(m, PN_METRIC_RUNNING, a, 0, 1);
    pn_metrics_add(m, PN_METRIC_RUNNING, a, 0, 1);
    pn_metrics_add(m, PN_METRIC_RUNNING, a, 0, -1);
    pn_metrics_set(m, PN_METRIC_KV_RATIO, b, 0, 0.125);
    pn_metrics_set(m, PN_METRIC_BLOCK_TOKENS, a, 0, 64);
    pn_metrics_set(m, PN_METRIC_BLOCKS, a, 0, 1000000);
    pn_metrics_add(m, PN_METRIC_PROMPT_TOKENS, a, 0, 9007199254740991.0);
    pn_metrics_set(m, PN_METRIC_PREFIX_HITS, b, 0, 10);
    pn_metrics_set(m, PN_METRIC_PREFIX_HITS, b, 0, 9);      /* a counter does not fall */
    pn_metrics_add(m, PN_METRIC_PREFIX_HITS, b, 0, -5);
    pn_metrics_ended(m, a, PN_ENDPOINT_CHAT, PN_ENDED_STOP);
    pn_metrics_ended(m, a, PN_ENDPOINT_CHAT, PN_ENDED_TOOL_CALLS);
    pn_metrics_ended(m, a, PN_ENDPOINT_EMBEDDINGS, PN_ENDED_STOP);
    pn_metrics_ended(m, a, PN_ENDPOINT_CHAT, PN_ENDED_ABORT);
    pn_metrics_ended(m, a, PN_ENDPOINT_CHAT, PN_ENDED_ERROR);
    const double seconds[] = {0, 0.001, 0.0010001, 3, 1e9, -1};
    for (size_t i = 0; i < PN_COUNT_OF(seconds); i++)
        pn_metrics_observe(m, PN_METRIC_TTFT, a, seconds[i]);
    pn_metrics_observe(m, PN_METRIC_REQUEST_PROMPT, b, 1e6);
    pn_metrics_responded(m, 200);
    pn_metrics_responded(m, 429);
    pn_metrics_responded(m, 404);
    pn_metrics_set(m, PN_METRIC_START, 0, 0, 1785000000.25);
    pn_metrics_memory(m, &mi);
}

static void what_is_recorded_is_written(void)
{
    pn_metrics *m = NULL;
    uint32_t a = 9, b = 9;
    PN_CHECK(pn_metrics_new(&m, &mem.mem, &build, NULL) == PN_OK);
    PN_CHECK(pn_metrics_model(m, "qwen3-4b", 8, &a, NULL) == PN_OK && pn_metrics_model(m, "b", 1, &b, NULL) == PN_OK);
    fill(m, a, b);
    write_and_read(m, false);
    histograms_are_sound();
    PN_CHECK(value("pantheon_requests_running", "model=qwen3-4b;") == 1 && value("pantheon_requests_running", "model=b;") == 0);
    PN_CHECK(value("pantheon_kv_cache_usage_ratio", "model=b;") == 0.125);
    PN_CHECK(value("pantheon_cache_config_info", "model=qwen3-4b;block_size=64;num_blocks=1000000;") == 1);
    PN_CHECK(value("pantheon_prompt_tokens_total", "model=qwen3-4b;") == 9007199254740991.0);
    PN_CHECK(value("pantheon_prefix_cache_hit_tokens_total", "model=b;") == 10);
    PN_CHECK(value("pantheon_requests_total", "model=qwen3-4b;endpoint=chat;finished_reason=stop;") == 1);
    PN_CHECK(value("pantheon_requests_total", "model=qwen3-4b;endpoint=embeddings;finished_reason=stop;") == 1);
    PN_CHECK(isnan(value("pantheon_requests_total", "model=b;endpoint=chat;finished_reason=stop;")));
    PN_CHECK(value("pantheon_time_to_first_token_seconds_count", "model=qwen3-4b;") == 6);
    PN_CHECK(value("pantheon_time_to_first_token_seconds_sum", "model=qwen3-4b;") == 0.001 + 0.0010001 + 3 + 1e9);
    for (size_t i = 0; i < n_page; i++)     /* bounds belong to their bucket */
        if (strcmp(page[i].name, "pantheon_time_to_first_token_seconds_bucket") == 0 && strstr(page[i].labels, "qwen")) {
            double le = page[i].le;
            PN_CHECK(page[i].v == (le < 0.005 ? 3 : le < 5 ? 4 : isinf(le) ? 6 : 5), "%g: %g", le, page[i].v);
        }
    PN_CHECK(value("pantheon_http_responses_total", "class=4xx;") == 2 && value("pantheon_http_responses_total", "class=5xx;") == 0);
    PN_CHECK(value("pantheon_mem_bytes", "account=misc;") == 1 && value("pantheon_mem_peak_bytes", "account=misc;") == 2);
    PN_CHECK(isnan(value("pantheon_mem_limit_bytes", "")) && value("pantheon_mem_host_bytes", "") == 8589934592.0);
    PN_CHECK(value("process_start_time_seconds", "") == 1785000000.25);
    PN_CHECK(value("pantheon_build_info", "version=0.1.0;build=abc\"1\";backend=cpu;isa=avx2;") == 1);
    for (size_t i = 0; i < n_page; i++)
        PN_CHECK(!strchr(page[i].name, ':'));
    PN_CHECK(pn_metrics_get(m, PN_METRIC_TTFT, a, 0) == 6 && pn_metrics_get(m, PN_METRIC_RUNNING, a, 0) == 1);
    PN_CHECK(pn_metrics_get(m, PN_METRIC_MEM_LIMIT, 0, 0) == 0 && pn_metrics_get(m, PN_METRIC_RUNNING, 7, 0) == 0);
    pn_metrics_free(m);
    PN_CHECK(mem.outstanding == 0);
}

static void vllm_names_show_the_same_values(void)
{
    pn_metrics *m = NULL;
    uint32_t a = 0, b = 0;
    size_t n = 0;
    PN_CHECK(pn_metrics_new(&m, &mem.mem, NULL, NULL) == PN_OK);
    PN_CHECK(pn_metrics_model(m, "x", 1, &a, NULL) == PN_OK && pn_metrics_model(m, "y", 1, &b, NULL) == PN_OK);
    fill(m, a, b);
    write_and_read(m, true);
    histograms_are_sound();
    PN_CHECK(value("vllm:num_requests_running", "model_name=x;engine=0;") == 1);
    PN_CHECK(value("vllm:num_requests_waiting", "model_name=x;engine=0;") == 0);
    PN_CHECK(value("vllm:kv_cache_usage_perc", "model_name=y;engine=0;") == 0.125);
    PN_CHECK(value("vllm:cache_config_info", "model_name=x;engine=0;block_size=64;num_gpu_blocks=1000000;") == 1);
    PN_CHECK(value("vllm:prefix_cache_hits_total", "model_name=y;engine=0;") == 10);
    PN_CHECK(value("vllm:request_success_total", "model_name=x;engine=0;finished_reason=stop;") == 3);
    PN_CHECK(value("vllm:request_success_total", "model_name=x;engine=0;finished_reason=abort;") == 1);
    PN_CHECK(value("vllm:request_success_total", "model_name=x;engine=0;finished_reason=length;") == 0);
    PN_CHECK(value("vllm:time_to_first_token_seconds_count", "model_name=x;engine=0;") == 6);
    PN_CHECK(value("pantheon_time_to_first_token_seconds_count", "model=x;") == 6);
    PN_CHECK(isnan(value("pantheon_build_info", "")));
    for (size_t i = 0; i < n_page; i++)
        n += strncmp(page[i].name, "vllm:", 5) == 0;
    PN_CHECK(n > 200 && n < n_page);
    pn_metrics_free(m);
}

static void any_name_is_a_label(void)
{
    static const struct { const char *name; size_t len; const char *shown; } names[] = {
        {"a\"b", 3, "a\"b"}, {"a\\n", 3, "a\\n"}, {"a\nb", 3, "a\nb"}, {"\\", 1, "\\"}, {"caf\xC3\xA9", 5, "caf\xC3\xA9"},
        {"a\xFFz", 3, "a\xEF\xBF\xBDz"}, {"}", 1, "}"}, {"a,b=\"c", 6, "a,b=\"c"}, {"\xEF\xBF\xBD!", 4, "\xEF\xBF\xBD!"},
    };
    pn_metrics *m = NULL;
    char labels[128];
    PN_CHECK(pn_metrics_new(&m, &mem.mem, NULL, NULL) == PN_OK);
    for (size_t i = 0; i < PN_COUNT_OF(names); i++) {
        uint32_t id = 0;
        PN_CHECK(pn_metrics_model(m, names[i].name, names[i].len, &id, NULL) == PN_OK && id == i);
        pn_metrics_set(m, PN_METRIC_WAITING, id, 0, (double)i + 1);
    }
    write_and_read(m, false);
    for (size_t i = 0; i < PN_COUNT_OF(names); i++) {
        snprintf(labels, sizeof labels, "model=%s;", names[i].shown);
        PN_CHECK(value("pantheon_requests_waiting", labels) == (double)i + 1, "%s", labels);
    }
    pn_metrics_free(m);
}

static void models_are_known_once_and_bounded(void)
{
    pn_metrics *m = NULL;
    pn_err err;
    uint32_t id = 77;
    static char long_name[PN_METRICS_NAME_BYTES + 1];
    PN_CHECK(pn_metrics_new(&m, &mem.mem, NULL, NULL) == PN_OK);
    for (uint32_t i = 0; i < PN_METRICS_MODELS; i++) {
        char name[16];
        size_t len = (size_t)snprintf(name, sizeof name, "m%u", (unsigned)i);
        PN_CHECK(pn_metrics_model(m, name, len, &id, NULL) == PN_OK && id == i);
    }
    PN_CHECK(pn_metrics_model(m, "m7", 2, &id, NULL) == PN_OK && id == 7);
    PN_CHECK(pn_metrics_model(m, "one more", 8, &id, &err) == PN_E_BUDGET && id == 7 && strstr(err.text, "256"));
    PN_CHECK(pn_metrics_model(m, "", 0, &id, &err) == PN_E_INVALID);
    PN_CHECK(pn_metrics_model(m, long_name, sizeof long_name, &id, &err) == PN_E_INVALID && id == 7);
    pn_metrics_free(m);
    pn_metrics_free(NULL);
}

static void what_is_not_there_is_ignored(void)
{
    pn_metrics *m = NULL;
    uint32_t a = 0;
    PN_CHECK(pn_metrics_new(&m, &mem.mem, NULL, NULL) == PN_OK && pn_metrics_model(m, "a", 1, &a, NULL) == PN_OK);
    pn_metrics_add(m, PN_METRIC_RUNNING, 1, 0, 1);
    pn_metrics_add(m, PN_METRIC_COUNT, 0, 0, 1);
    pn_metrics_add(m, PN_METRIC_RUNNING, a, 0, (double)NAN);
    pn_metrics_set(m, PN_METRIC_RUNNING, a, 0, (double)NAN);
    pn_metrics_add(m, PN_METRIC_TTFT, a, 0, 1);
    pn_metrics_observe(m, PN_METRIC_RUNNING, a, 1);
    pn_metrics_observe(m, PN_METRIC_TTFT, a, (double)NAN);
    pn_metrics_observe(m, PN_METRIC_TTFT, 1, 1);
    pn_metrics_add(m, PN_METRIC_MEM, 0, PN_ACCT_COUNT, 1);
    pn_metrics_ended(m, a, PN_ENDPOINT_COUNT, PN_ENDED_STOP);
    pn_metrics_ended(m, a, PN_ENDPOINT_CHAT, PN_ENDED_COUNT);
    pn_metrics_responded(m, 0);
    pn_metrics_responded(m, 600);
    write_and_read(m, true);
    for (size_t i = 0; i < n_page; i++)
        PN_CHECK(page[i].v == 0, "%s", page[i].name);
    pn_metrics_observe(m, PN_METRIC_ITL, a, (double)INFINITY);
    write_and_read(m, false);
    histograms_are_sound();
    PN_CHECK(isinf(value("pantheon_inter_token_latency_seconds_sum", "model=a;")));
    pn_metrics_free(m);
}

static void out_of_memory_is_a_status(void)
{
    int n_failed = 0;
    for (long fail_at = 1; fail_at < 2000; fail_at++) {
        pn_test_mem t;
        pn_metrics *m = NULL;
        pn_str s;
        pn_err err;
        uint32_t a = 77;
        pn_test_mem_init(&t, fail_at);
        pn_str_init(&s, &t.mem, PN_ACCT_MISC);
        pn_status st = pn_metrics_new(&m, &t.mem, &build, &err);
        if (!st)
            st = pn_metrics_model(m, "a", 1, &a, &err);
        PN_CHECK(st == PN_OK || (st == PN_E_NOMEM && a == 77));
        if (st && m)
            PN_CHECK(pn_metrics_model(m, "a", 1, &a, &err) == PN_OK && a == 0);     /* nothing stayed behind */
        if (!st) {
            fill(m, a, a);
            pn_metrics_write(m, &s, true);
            st = s.failed ? PN_E_NOMEM : PN_OK;
        }
        n_failed += st != PN_OK;
        pn_str_fini(&s);
        pn_metrics_free(m);
        PN_CHECK(t.outstanding == 0);
        if (t.n_calls < fail_at)
            break;
    }
    PN_CHECK(n_failed > 20, "%d", n_failed);
}

/* Prometheus's own linter, where it is installed (Debian: package prometheus). */
static void promtool_finds_no_fault(void)
{
    pn_metrics *m = NULL;
    uint32_t a = 0, b = 0;
    pn_str s;
    if (system("command -v promtool >/dev/null 2>&1") != 0) {
        pn_test_skip("promtool is not installed");
        return;
    }
    pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
    PN_CHECK(pn_metrics_new(&m, &mem.mem, &build, NULL) == PN_OK);
    PN_CHECK(pn_metrics_model(m, "a\\\"\n", 4, &a, NULL) == PN_OK && pn_metrics_model(m, "b", 1, &b, NULL) == PN_OK);
    fill(m, a, b);
    pn_metrics_write(m, &s, false);
    FILE *f = popen("promtool check metrics", "w");
    PN_CHECK(f && fwrite(pn_str_cstr(&s), 1, s.len, f) == s.len && pclose(f) == 0);
    pn_str_fini(&s);
    pn_metrics_free(m);
}

int main(void)
{
    pn_test_mem_init(&mem, 0);
    what_is_recorded_is_written();
    vllm_names_show_the_same_values();
    any_name_is_a_label();
    models_are_known_once_and_bounded();
    what_is_not_there_is_ignored();
    out_of_memory_is_a_status();
    promtool_finds_no_fault();
    PN_CHECK(mem.outstanding == 0);
    return pn_test_end();
}
