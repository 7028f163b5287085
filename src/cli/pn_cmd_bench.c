/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cmd_bench.c - `pantheon bench`: tokens per second, measured like llama-bench.
 *
 * A prompt row evaluates p random tokens in steps of --batch; a decode row generates n tokens one at
 * a time.  Both start from a session that already holds d tokens (depth).  Each test runs once to
 * warm up and then r times; the samples are kept apart, because one number hides what a busy machine
 * does.  Neither samples nor detokenises: the model alone is timed.
 *
 * With --streams several sessions do the same at once, as requests: their steps are shared, and each
 * token is chosen (greedily) from what came of the last one.
 *
 * Names of the JSON members shared with llama-bench mean the same (docs/cli.md).
 */
#include "cli/pn_cli.h"

#ifdef PANTHEON_CLI

#include "base/pn_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static const pn_flag bench_flags[] = {
    PN_ROW_MODEL,
    {"n-prompt", NULL, 'p', PN_FLAG_INTS, false, 0, 1 << 24, "N,..", "512", "tokens of a prompt; 0: no such test"},
    {"n-gen", NULL, 'n', PN_FLAG_INTS, false, 0, 1 << 24, "N,..", "128", "tokens to generate; 0: no such test"},
    {"n-depth", NULL, 'd', PN_FLAG_INTS, false, 0, 1 << 24, "N,..", "0", "tokens in the session before a test"},
    {"streams", NULL, 0, PN_FLAG_INTS, false, 1, 64, "N,..", "1", "sessions that work at once"},
    {"repetitions", NULL, 'r', PN_FLAG_INT, false, 1, 1000, "N", "5", "times a test is repeated"},
    {"threads", NULL, 't', PN_FLAG_INTS, false, 1, 1024, "N,..", "usable cores", "threads that compute"},
    {"output", NULL, 'o', PN_FLAG_CHOICE, false, 0, 0, "table|json|csv", "table", "how results are printed"},
    {"kv-gate", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "instead: what each type of keys and values costs the model's answers"},
    PN_ROW_BATCH,
    PN_ROW_KV_TYPE,
    PN_ROW_MEM_LIMIT,
    PN_ROWS_RESIDENCY(false),
    PN_ROW_EXACT,
    PN_ROW_QUIET,
    PN_ROW_END
};

typedef enum bench_format { BENCH_TABLE, BENCH_JSON, BENCH_CSV } bench_format;

typedef struct bench_state {
    pn_cli *c;
    bench_format format;
    pn_model_info model;
    char name[96];
    uint32_t reps, n_threads;
    double *samples;            /* owned, [reps], tokens per second */
    pn_ids ids;                 /* random tokens for the longest test */
    pn_str out;                 /* JSON gathers here: half an array helps nobody */
    size_t rows;
} bench_state;

typedef struct bench_test {
    uint32_t n_prompt, n_gen, depth;    /* one of the first two is 0 */
    uint32_t n_streams;
} bench_test;

typedef struct bench_result {
    double avg, stddev;
    double read_gbs;            /* decode: weight bytes read a second, 10^9; prompt: 0 */
    double int8_tops;           /* prompt: 2 x weights used a token x rate, 10^12; decode: 0 */
} bench_result;

/* --- measuring -------------------------------------------------------------------------------- */

/* xorshift64*, fixed seed: the same tokens on every run and machine. */
static int bench_tokens(bench_state *b, size_t n)
{
    uint64_t x = 0x9E3779B97F4A7C15u;
    uint32_t n_vocab = pn_vocab_size(b->c->model);
    if (!pn_ids_reserve(&b->ids, n))
        return pn_cli_nomem(b->c);
    for (b->ids.n = 0; b->ids.n < n; b->ids.n++) {
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        b->ids.data[b->ids.n] = (pn_token)((x * 0x2545F4914F6CDD1Du >> 33) % n_vocab);
    }
    return PN_EXIT_OK;
}

/* Back to `depth` tokens.  Models with windows may not be able to go back: then from the start. */
static pn_status bench_rewind(bench_state *b, uint32_t depth)
{
    pn_session *s = b->c->session;
    pn_err *err = &b->c->err;
    if (pn_session_length(s) > depth && pn_session_truncate(s, depth, err) != PN_OK) {
        pn_status st = pn_session_truncate(s, 0, err);
        if (st)
            return st;
    }
    uint32_t have = pn_session_length(s);
    return have < depth ? pn_session_eval(s, b->ids.data + have, depth - have, err) : PN_OK;
}

/* Evaluate the test's tokens (at most `n`, for warming up); *seconds gets the time. */
static pn_status bench_once(bench_state *b, const bench_test *t, uint32_t n, double *seconds)
{
    const pn_token *ids = b->ids.data + t->depth;
    pn_session *s = b->c->session;
    pn_status st = bench_rewind(b, t->depth);
    double start = pn_out_now();
    if (st)
        return st;
    if (t->n_prompt)
        st = pn_session_eval(s, ids, n, &b->c->err);
    else
        for (uint32_t i = 0; i < n && !st; i++)
            st = pn_session_eval(s, ids + i, 1, &b->c->err);
    *seconds = pn_out_now() - start;
    return st;
}

/* --- several at once --------------------------------------------------------------------------- */

typedef struct bench_streams {
    pn_session *s[64];
    pn_request *q[64];
} bench_streams;

static pn_status bench_streams_rewind(bench_state *b, const bench_test *t, pn_session *s)
{
    pn_session *own = b->c->session;
    b->c->session = s;
    pn_status st = bench_rewind(b, t->depth);
    b->c->session = own;
    return st;
}

/* Every stream evaluates the test's tokens: a prompt and one more, or one token and what follows from it. */
static pn_status bench_streams_once(bench_state *b, const bench_test *t, bench_streams *x, double *seconds)
{
    const pn_sampling greedy = {.size = sizeof greedy, .ignore_eos = 1};
    const pn_generate_params p = {.size = sizeof p, .prompt = b->ids.data + t->depth, .n_prompt = t->n_prompt ? t->n_prompt : 1,
                                  .max_tokens = t->n_gen > 1 ? t->n_gen - 1 : 1, .sampling = &greedy};
    pn_status st = PN_OK;
    uint32_t active = 1;
    for (uint32_t i = 0; i < t->n_streams && !st; i++)
        st = bench_streams_rewind(b, t, x->s[i]);
    double start = pn_out_now();
    for (uint32_t i = 0; i < t->n_streams && !st; i++)
        st = pn_request_new(x->s[i], &p, &x->q[i], &b->c->err);
    while (!st && active)
        st = pn_cli_interrupted() ? PN_E_CANCELLED : pn_engine_step(b->c->engine, 0, &active, &b->c->err);
    *seconds = pn_out_now() - start;
    for (uint32_t i = 0; i < t->n_streams; i++) {
        if (!st)
            st = pn_request_result(x->q[i], NULL, &b->c->err);
        pn_request_free(x->q[i]);
        x->q[i] = NULL;
    }
    return st;
}

static int bench_measure_streams(bench_state *b, const bench_test *t)
{
    pn_cli *c = b->c;
    bench_streams x;
    pn_status st = PN_OK;
    double seconds = 0;
    memset(&x, 0, sizeof x);
    for (uint32_t i = 0; i < t->n_streams && !st; i++) {
        int code = pn_cli_open_session(c, t->depth + t->n_prompt + t->n_gen + 1);
        x.s[i] = c->session;                /* opened as the flags say, and ours from here on */
        c->session = NULL;
        st = code ? PN_E_STATE : PN_OK;
    }
    bool told = st != PN_OK;
    if (!st)
        st = bench_streams_once(b, t, &x, &seconds);
    for (uint32_t i = 0; i < b->reps && !st; i++) {
        pn_cli_bar(c, t->n_prompt ? "prompt" : "decode", i, b->reps);
        st = bench_streams_once(b, t, &x, &seconds);
        b->samples[i] = seconds > 0 ? (double)t->n_streams * (t->n_prompt + t->n_gen) / seconds : 0;
    }
    pn_cli_bar_end(c);
    for (uint32_t i = 0; i < t->n_streams; i++)
        pn_session_free(x.s[i]);
    return told ? PN_EXIT_FAILED : st ? pn_cli_fail(c, st) : PN_EXIT_OK;
}

static int bench_measure(bench_state *b, const bench_test *t)
{
    pn_cli *c = b->c;
    uint32_t n = t->n_prompt + t->n_gen;
    double seconds;
    int code = pn_cli_open_session(c, t->depth + n);
    if (code)
        return code;
    pn_session_on_tick(c->session, NULL, NULL);        /* a callback is no part of the measurement */
    pn_status st = bench_once(b, t, t->n_prompt ? n : 1, &seconds);
    for (uint32_t i = 0; i < b->reps && !st; i++) {
        pn_cli_bar(c, t->n_prompt ? "prompt" : "decode", i, b->reps);
        st = pn_cli_interrupted() ? PN_E_CANCELLED : bench_once(b, t, n, &seconds);
        b->samples[i] = seconds > 0 ? n / seconds : 0;
    }
    pn_cli_bar_end(c);
    pn_cli_close_session(c);
    return st ? pn_cli_fail(c, st) : PN_EXIT_OK;
}

static bench_result bench_reduce(const bench_state *b, const bench_test *t)
{
    bench_result r = {0, 0, 0, 0};
    const pn_model_info *m = &b->model;
    for (uint32_t i = 0; i < b->reps; i++)
        r.avg += b->samples[i] / b->reps;
    for (uint32_t i = 0; i < b->reps; i++)
        r.stddev += (b->samples[i] - r.avg) * (b->samples[i] - r.avg);
    r.stddev = b->reps > 1 ? sqrt(r.stddev / (b->reps - 1)) : 0;
    if (t->n_gen)
        r.read_gbs = (double)m->weight_bytes_per_token * r.avg / t->n_streams * 1e-9;     /* a step reads them once */
    else if (m->weight_bytes)       /* of a mixture of experts only the part a token uses */
        r.int8_tops = 2.0 * (double)m->n_params * ((double)m->weight_bytes_per_token / (double)m->weight_bytes) *
                      r.avg * 1e-12;
    return r;
}

/* --- printing --------------------------------------------------------------------------------- */

static const char *bench_kv_name(const bench_state *b)
{
    return pn_args_text(&b->c->args, "kv-type", pn_args_on(&b->c->args, "exact") ? "f32" : "f16");
}

static void bench_test_name(const bench_test *t, char *buf, size_t cap)
{
    int n = snprintf(buf, cap, t->n_prompt ? "pp%" PRIu32 : "tg%" PRIu32, t->n_prompt ? t->n_prompt : t->n_gen);
    if (t->depth && n > 0 && (size_t)n < cap)
        n += snprintf(buf + n, cap - (size_t)n, " @ d%" PRIu32, t->depth);
    if (t->n_streams > 1 && n > 0 && (size_t)n < cap)
        snprintf(buf + n, cap - (size_t)n, " x%" PRIu32, t->n_streams);
}

static int bench_name_width(const bench_state *b) { return (int)PN_MAX(strlen(b->name), (size_t)5); }

static void bench_table_head(const bench_state *b)
{
    static const char dashes[] = "----------------------------------------------------------------"
                                 "--------------------------------";
    int w = bench_name_width(b);
    printf("| %-*s | %10s | %9s | %-8s | %-8s | %-11s | %7s | %-4s | %16s | %18s | %7s |\n", w, "model", "size",
           "params", "type", "backend", "isa", "threads", "kv", "test", "tok/s", "GB/s");
    printf("| %.*s | %.9s: | %.8s: | %.8s | %.8s | %.11s | %.6s: | %.4s | %.15s: | %.17s: | %.6s: |\n", w, dashes,
           dashes, dashes, dashes, dashes, dashes, dashes, dashes, dashes, dashes, dashes);
}

static void bench_table_row(const bench_state *b, const bench_test *t, const bench_result *r)
{
    char test[40], rate[40], gbs[24] = "";
    bench_test_name(t, test, sizeof test);
    snprintf(rate, sizeof rate, "%.2f ± %.2f", r->avg, r->stddev);
    if (t->n_gen)
        snprintf(gbs, sizeof gbs, "%.2f", r->read_gbs);
    /* The sign takes two bytes and one column, hence 19 for 18. */
    printf("| %-*s | %10s | %9s | %-8s | %-8s | %-11s | %7" PRIu32 " | %-4s | %16s | %19s | %7s |\n",
           bench_name_width(b), b->name, pn_out_bytes(b->model.weight_bytes).text, pn_out_count(b->model.n_params).text,
           b->model.type, pn_backend_name(b->c->engine), pn_cpu_isa(), b->n_threads, bench_kv_name(b), test, rate, gbs);
}

/* Not measured, or meaningless for this kind of row: null. */
static void bench_json_or_null(pn_str *s, const char *key, double v)
{
    if (v > 0)
        pn_out_json_real(s, key, v);
    else
        pn_out_json_text(s, key, NULL);
}

static void bench_json_row(bench_state *b, const bench_test *t, const bench_result *r)
{
    pn_str *s = &b->out;
    pn_str_addz(s, b->rows ? ",\n  {" : "[\n  {");
    pn_out_json_text(s, "model", b->name);
    pn_out_json_u64(s, "n_params", b->model.n_params);
    pn_out_json_u64(s, "size_bytes", b->model.weight_bytes);
    pn_out_json_text(s, "type", b->model.type);
    pn_out_json_text(s, "backend", pn_backend_name(b->c->engine));
    pn_out_json_text(s, "isa", pn_cpu_isa());
    pn_out_json_u64(s, "n_threads", b->n_threads);
    pn_out_json_u64(s, "n_batch", (uint64_t)pn_args_int(&b->c->args, "batch", 512));
    pn_out_json_text(s, "kv_type", bench_kv_name(b));
    pn_out_json_u64(s, "n_prompt", t->n_prompt);
    pn_out_json_u64(s, "n_gen", t->n_gen);
    pn_out_json_u64(s, "n_depth", t->depth);
    pn_out_json_u64(s, "n_streams", t->n_streams);
    pn_json_key(s, "samples_ts");
    pn_str_addc(s, '[');
    for (uint32_t i = 0; i < b->reps; i++) {
        pn_json_item(s);
        pn_json_write_f64(s, b->samples[i]);
    }
    pn_str_addc(s, ']');
    pn_out_json_real(s, "avg_ts", r->avg);
    pn_out_json_real(s, "stddev_ts", r->stddev);
    pn_out_json_u64(s, "weight_bytes_per_token", b->model.weight_bytes_per_token);
    bench_json_or_null(s, "read_gbs", r->read_gbs);
    bench_json_or_null(s, "int8_tops", r->int8_tops);
    bench_json_or_null(s, "share_of_limit", 0);
    pn_str_addc(s, '}');
}

/* RFC 4180: quotes doubled. */
static void bench_csv_text(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"')
            putchar('"');
        putchar(*text);
    }
    putchar('"');
}

static void bench_csv_head(void)
{
    puts("model,n_params,size_bytes,type,backend,isa,n_threads,n_batch,kv_type,n_prompt,n_gen,n_depth,n_streams,"
         "avg_ts,stddev_ts,weight_bytes_per_token,read_gbs,int8_tops,share_of_limit");
}

static void bench_csv_row(const bench_state *b, const bench_test *t, const bench_result *r)
{
    bench_csv_text(b->name);
    printf(",%" PRIu64 ",%" PRIu64 ",%s,%s,%s,%" PRIu32 ",%" PRId64 ",%s,%" PRIu32 ",%" PRIu32 ",%" PRIu32
           ",%" PRIu32 ",%.6g,%.6g,%" PRIu64 ",",
           b->model.n_params, b->model.weight_bytes, b->model.type, pn_backend_name(b->c->engine), pn_cpu_isa(),
           b->n_threads, pn_args_int(&b->c->args, "batch", 512), bench_kv_name(b), t->n_prompt, t->n_gen, t->depth, t->n_streams,
           r->avg, r->stddev, b->model.weight_bytes_per_token);
    if (r->read_gbs > 0)
        printf("%.6g", r->read_gbs);
    putchar(',');
    if (r->int8_tops > 0)
        printf("%.6g", r->int8_tops);
    puts(",");
}

static int bench_report(bench_state *b, const bench_test *t)
{
    bench_result r = bench_reduce(b, t);
    if (b->format == BENCH_JSON) {
        bench_json_row(b, t, &r);
    } else if (b->format == BENCH_CSV) {
        if (!b->rows)
            bench_csv_head();
        bench_csv_row(b, t, &r);
    } else {
        if (!b->rows)
            bench_table_head(b);
        bench_table_row(b, t, &r);
    }
    b->rows++;
    return pn_cli_flush(b->c, PN_EXIT_OK);
}

/* --- the tests -------------------------------------------------------------------------------- */

static int bench_one(bench_state *b, uint32_t n_prompt, uint32_t n_gen, uint32_t depth, uint32_t n_streams)
{
    bench_test t = {n_prompt, n_gen, depth, n_streams};
    if (n_prompt + n_gen == 0)
        return PN_EXIT_OK;
    int code = bench_tokens(b, (size_t)depth + n_prompt + n_gen);
    if (!code)
        code = n_streams > 1 ? bench_measure_streams(b, &t) : bench_measure(b, &t);
    return code ? code : bench_report(b, &t);
}

static void bench_find_name(bench_state *b)
{
    pn_str s;
    const char *name;
    pn_model_describe(b->c->model, &b->model);
    name = b->model.name[0] ? b->model.name : pn_out_basename(pn_args_text(&b->c->args, "model", ""));
    pn_str_init(&s, &b->c->mem, PN_ACCT_MISC);
    pn_out_safe(&s, name, strlen(name), 40);
    snprintf(b->name, sizeof b->name, "%s", pn_str_cstr(&s));
    pn_str_fini(&s);
}

/* Every smaller type of keys and values against f16. */
static int bench_gate(bench_state *b)
{
    static const pn_dtype types[] = {PN_DTYPE_Q8_0, PN_DTYPE_Q5_1, PN_DTYPE_Q5_0, PN_DTYPE_Q4_1, PN_DTYPE_Q4_0};
    const pn_kv_gate_params how = {.size = sizeof how, .tick = pn_cli_tick, .user = b->c};
    for (size_t i = 0; i < PN_COUNT_OF(types); i++) {
        pn_kv_gate g;
        pn_status st = pn_model_kv_gate(b->c->model, types[i], &how, &g, &b->c->err);
        if (st)
            return pn_cli_fail(b->c, st);
        if (b->format == BENCH_JSON) {
            pn_str *s = &b->out;
            pn_str_addz(s, b->rows ? ",\n  {" : "[\n  {");
            pn_out_json_text(s, "model", b->name);
            pn_out_json_text(s, "kv_type", pn_kv_type_name(types[i]));
            pn_out_json_u64(s, "n_positions", g.n_positions);
            pn_out_json_real(s, "kl", g.kl);
            pn_out_json_real(s, "top1", g.top1);
            pn_out_json_u64(s, "eligible", (uint64_t)g.eligible);
            pn_str_addc(s, '}');
        } else if (b->format == BENCH_CSV) {
            printf("%s%s,%" PRIu32 ",%.6g,%.6g,%d\n", b->rows ? "" : "kv_type,n_positions,kl,top1,eligible\n", pn_kv_type_name(types[i]),
                   g.n_positions, g.kl, g.top1, g.eligible);
        } else {
            printf("%s  %-5s %9" PRIu32 "  %8.5f  %11.2f %%  %s\n", b->rows ? "" : "  type  positions  mean KL  same likeliest  passes\n",
                   pn_kv_type_name(types[i]), g.n_positions, g.kl, 100 * g.top1, g.eligible ? "yes" : "no");
        }
        b->rows++;
        (void)pn_cli_flush(b->c, PN_EXIT_OK);
    }
    return PN_EXIT_OK;
}

/* All tests with one number of threads. */
static int bench_with_threads(bench_state *b, uint32_t n_threads)
{
    pn_cli *c = b->c;
    uint32_t prompts[PN_FLAG_INTS_MAX], gens[PN_FLAG_INTS_MAX], depths[PN_FLAG_INTS_MAX], streams[PN_FLAG_INTS_MAX];
    size_t n_prompts = pn_args_ints(&c->args, "n-prompt", "512", prompts);
    size_t n_gens = pn_args_ints(&c->args, "n-gen", "128", gens);
    size_t n_depths = pn_args_ints(&c->args, "n-depth", "0", depths);
    size_t n_streams = pn_args_ints(&c->args, "streams", "1", streams);
    int code = pn_cli_open_engine(c, n_threads);
    if (!code)
        code = pn_cli_open_model(c);
    if (code)
        return code;
    bench_find_name(b);
    b->n_threads = pn_engine_threads(c->engine);
    if (pn_args_on(&c->args, "kv-gate"))
        return bench_gate(b);
    for (size_t k = 0; k < n_depths * n_streams; k++) {
        uint32_t depth = depths[k / n_streams], at_once = streams[k % n_streams];
        for (size_t i = 0; i < n_prompts && !code; i++)
            code = bench_one(b, prompts[i], 0, depth, at_once);
        for (size_t i = 0; i < n_gens && !code; i++)
            code = bench_one(b, 0, gens[i], depth, at_once);
    }
    return code;
}

static int bench_all(bench_state *b)
{
    pn_cli *c = b->c;
    uint32_t threads[PN_FLAG_INTS_MAX] = {0};
    size_t n = pn_args_has(&c->args, "threads") ? pn_args_ints(&c->args, "threads", "1", threads) : 1;
    int code = PN_EXIT_OK;
    for (size_t i = 0; i < n && !code; i++) {
        pn_cli_close_engine(c);
        code = bench_with_threads(b, threads[i]);
    }
    if (code || b->format != BENCH_JSON)
        return code;
    pn_str_addz(&b->out, b->rows ? "\n]" : "[]");
    return pn_out_print(c, &b->out);
}

static int bench_main(pn_cli *c)
{
    bench_state b;
    const char *format = pn_args_text(&c->args, "output", "table");
    memset(&b, 0, sizeof b);
    b.c = c;
    b.format = strcmp(format, "json") == 0 ? BENCH_JSON : strcmp(format, "csv") == 0 ? BENCH_CSV : BENCH_TABLE;
    b.reps = (uint32_t)pn_args_int(&c->args, "repetitions", 5);
    pn_ids_init(&b.ids, &c->mem);
    pn_str_init(&b.out, &c->mem, PN_ACCT_MISC);
    pn_cli_catch_interrupt();
    b.samples = pn_mem_calloc(&c->mem, PN_ACCT_MISC, b.reps, sizeof *b.samples);
    int code = b.samples ? bench_all(&b) : pn_cli_nomem(c);
    pn_mem_free(&c->mem, PN_ACCT_MISC, b.samples, b.reps * sizeof *b.samples);
    pn_str_fini(&b.out);
    pn_ids_fini(&b.ids);
    return code;
}

PN_INTERNAL const pn_cmd *pn_cmd_bench(void)
{
    static const pn_cmd cmd = {"bench", "-m FILE [FLAGS]", "tokens per second of prompts and of decoding",
                               bench_flags, 0, 0, bench_main};
    return &cmd;
}

#endif /* PANTHEON_CLI */
