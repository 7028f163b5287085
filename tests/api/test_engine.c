/*
 * test_engine.c - promises 4 and 6 through the public API: the same bits however a text is computed,
 * and nothing lost when memory, time or the caller runs out.
 */
#define _GNU_SOURCE 1      /* mkstemp, ftruncate */

#include "pantheon.h"
#include "pn_api_test.h"

#include <unistd.h>

static const char *const engine_models[] = {
    "models/demo.gguf",
    "tests/vectors/golden/arch/gemma3.gguf",        /* windows, two rotary bases */
    "tests/vectors/golden/arch/qwen3moe.gguf",      /* experts */
    "tests/vectors/golden/arch/phi3.gguf",          /* fused matrices */
    "tests/vectors/golden/quant/q2_k.gguf",         /* Q2_K Q3_K Q4_K Q6_K */
    "tests/vectors/golden/quant/q5_1.gguf",         /* blocks with a minimum */
    "tests/vectors/golden/quant/f16.gguf",
    "tests/vectors/golden/arch/lfm2.gguf",          /* recurrent layers */
};
enum { ENGINE_TOKENS = 150 };

static pn_engine *engine_open(uint32_t threads, api_heap *h)
{
    pn_engine *e = NULL;
    pn_err err = {0};
    pn_engine_params p = {.n_threads = threads};
    if (h)
        p.allocator = (pn_allocator){api_heap_alloc, api_heap_free, h};
    PN_CHECK(pn_engine_open(&e, &p, &err) == PN_OK || (h && h->fail_at), "%s", err.text);
    return e;
}

static void engine_tokens(const pn_model *m, pn_token *t, size_t n)
{
    uint64_t seed = 88172645463325252u;
    uint32_t v = pn_vocab_size(m);
    for (size_t i = 0; i < n; i++)
        t[i] = (pn_token)(pn_test_rand(&seed) % v);
}

/* Logits of every position; one call, or calls of `call` tokens. */
static float *engine_logits(pn_engine *e, const char *path, const pn_model_params *mp, uint32_t batch, size_t call)
{
    pn_err err = {0};
    pn_model *m = NULL;
    pn_session *s = NULL;
    pn_token t[ENGINE_TOKENS];
    float *out = NULL;
    const pn_session_params sp = {.n_ctx = 256, .n_batch = batch};
    if (!PN_CHECK(pn_model_load(e, path, mp, &m, &err) == PN_OK, "%s", err.text))
        return NULL;
    engine_tokens(m, t, ENGINE_TOKENS);
    size_t V = pn_vocab_size(m);
    if (PN_CHECK(pn_session_new(m, &sp, &s, &err) == PN_OK, "%s", err.text) &&
        (out = malloc(V * ENGINE_TOKENS * sizeof *out)) != NULL)
        for (size_t i = 0; i < ENGINE_TOKENS; i += call) {
            size_t n = call < ENGINE_TOKENS - i ? call : ENGINE_TOKENS - i;
            PN_CHECK(pn_session_eval_all(s, t + i, n, out + i * V, &err) == PN_OK, "%s", err.text);
        }
    pn_session_free(s);
    pn_model_free(m);
    return out;
}

static size_t engine_logit_bytes(pn_engine *e, const char *path)
{
    pn_model *m = NULL;
    size_t n = 0;
    if (pn_model_load(e, path, NULL, &m, NULL) == PN_OK)
        n = (size_t)pn_vocab_size(m) * ENGINE_TOKENS * sizeof(float);
    pn_model_free(m);
    return n;
}

static void bits_do_not_depend_on_threads_batch_calls_or_residency(void)
{
    static const struct { uint32_t threads, batch; size_t call; pn_model_params mp; const char *what; } ways[] = {
        {2, 512, ENGINE_TOKENS, {0}, "2 threads"},
        {3, 64, ENGINE_TOKENS, {0}, "3 threads, batch 64"},
        {2, 7, ENGINE_TOKENS, {0}, "2 threads, batch 7"},
        {1, 1, ENGINE_TOKENS, {0}, "batch 1"},
        {1, 512, 41, {0}, "calls of 41"},
        {2, 512, ENGINE_TOKENS, {.residency = PN_RESIDENCY_ANON}, "weights in memory"},
        {1, 512, ENGINE_TOKENS, {.lease_rows = 1}, "a ring of one row"},
        {2, 512, ENGINE_TOKENS, {.lease_rows = 24}, "a ring of 24 rows, 2 threads"},
        {2, 512, ENGINE_TOKENS, {.residency = PN_RESIDENCY_STREAM}, "streamed"},
        {1, 64, 41, {.residency = PN_RESIDENCY_STREAM, .stream_block = 12000, .stream_depth = 2, .pin_bytes = 60000}, "partly pinned"},
    };
    for (size_t k = 0; k < sizeof engine_models / sizeof *engine_models; k++) {
        pn_engine *e = engine_open(1, NULL);
        size_t bytes = engine_logit_bytes(e, engine_models[k]);
        float *want = engine_logits(e, engine_models[k], NULL, 512, ENGINE_TOKENS);
        pn_engine_close(e);
        for (size_t i = pn_test_quick() ? k % 3 : 0; want && i < sizeof ways / sizeof *ways; i += pn_test_quick() ? 3 : 1) {
            e = engine_open(ways[i].threads, NULL);
            float *got = engine_logits(e, engine_models[k], &ways[i].mp, ways[i].batch, ways[i].call);
            PN_CHECK(got && memcmp(got, want, bytes) == 0, "%s: %s gives other bits", engine_models[k], ways[i].what);
            free(got);
            pn_engine_close(e);
        }
        free(want);
    }
}

/* ---- sources ---- */

typedef struct test_source {
    const char *bytes;
    long calls, fail_at;
} test_source;

static pn_status source_read(void *user, uint64_t offset, void *dst, size_t n)
{
    test_source *s = user;
    if (++s->calls == s->fail_at)
        return PN_E_IO;
    memcpy(dst, s->bytes + offset, n);
    return PN_OK;
}

static void bits_do_not_depend_on_the_source(void)
{
    const char *path = engine_models[0];
    size_t len;
    pn_engine *e = engine_open(2, NULL);
    pn_err err = {0};
    char *bytes = api_read_file(path, &len);
    float *want[3] = {NULL, NULL, NULL};
    size_t V = 0;
    for (int way = 0; way < 3 && bytes; way++) {
        pn_file *f = NULL;
        pn_model *m = NULL;
        pn_session *s = NULL;
        test_source src = {.bytes = bytes};
        const pn_reader r = {.read = source_read, .user = &src, .size = len, .name = "callback"};
        pn_status st = way == 0   ? pn_file_open(e, path, &f, &err)
                       : way == 1 ? pn_file_open_memory(e, bytes, len, &f, &err)
                                  : pn_file_open_reader(e, &r, &f, &err);
        PN_CHECK(st == PN_OK, "%s", err.text);
        PN_CHECK(pn_model_load_file(f, NULL, &m, &err) == PN_OK, "%s", err.text);
        pn_file_close(f);
        if (m && pn_session_new(m, NULL, &s, &err) == PN_OK) {
            pn_token t[32];
            V = pn_vocab_size(m);
            engine_tokens(m, t, 32);
            PN_CHECK(pn_session_eval(s, t, 32, &err) == PN_OK, "%s", err.text);
            want[way] = malloc(V * sizeof(float));
            memcpy(want[way], pn_session_logits(s), V * sizeof(float));
        }
        pn_session_free(s);
        pn_model_free(m);
    }
    for (int way = 1; way < 3; way++)
        PN_CHECK(want[0] && want[way] && memcmp(want[0], want[way], V * sizeof(float)) == 0, "source %d gives other bits",
                 way);
    for (int way = 0; way < 3; way++)
        free(want[way]);
    /* every read may fail */
    for (long k = 1; bytes && k < 200; k++) {
        test_source src = {.bytes = bytes, .fail_at = k};
        const pn_reader r = {.read = source_read, .user = &src, .size = len, .name = "callback"};
        pn_file *f = NULL;
        pn_model *m = NULL;
        pn_status st = pn_file_open_reader(e, &r, &f, &err);
        if (!st)
            st = pn_model_load_file(f, NULL, &m, &err);
        pn_model_free(m);
        pn_file_close(f);
        if (src.calls < k) {
            PN_CHECK(st == PN_OK, "%s", err.text);
            break;
        }
        PN_CHECK(st == PN_E_IO && err.text[0], "failing read %ld gives %s: %s", k, pn_status_name(st), err.text);
    }
    free(bytes);
    pn_engine_close(e);
}

/* ---- stopping ---- */

typedef struct test_tick {
    pn_session *s;
    long count, stop_at;
} test_tick;

static int tick_stop(void *user, uint32_t done, uint32_t total)
{
    test_tick *t = user;
    (void)done, (void)total;
    return ++t->count == t->stop_at;
}

static void a_cancelled_step_leaves_no_trace(void)
{
    pn_engine *e = engine_open(2, NULL);
    pn_err err = {0};
    pn_model *m = NULL;
    pn_session *s = NULL, *clean = NULL;
    pn_token t[ENGINE_TOKENS];
    /* a ring of one row makes a step long enough to be interrupted many times */
    const pn_model_params mp = {.lease_rows = 1};
    PN_CHECK(pn_model_load(e, engine_models[0], &mp, &m, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_session_new(m, NULL, &s, &err) == PN_OK && pn_session_new(m, NULL, &clean, &err) == PN_OK, "%s", err.text);
    engine_tokens(m, t, ENGINE_TOKENS);
    PN_CHECK(pn_session_eval(clean, t, ENGINE_TOKENS, &err) == PN_OK, "%s", err.text);
    int cancelled = 0;
    for (long k = 1; k < 40; k += pn_test_quick() ? 9 : 3) {
        test_tick tick = {.stop_at = k};
        pn_session_on_tick(s, tick_stop, &tick);
        PN_CHECK(pn_session_truncate(s, 0, &err) == PN_OK, "%s", err.text);
        pn_status st = pn_session_eval(s, t, ENGINE_TOKENS, &err);
        PN_CHECK(st == PN_OK || st == PN_E_CANCELLED, "%s", err.text);
        if (st != PN_E_CANCELLED)
            break;
        cancelled++;
        PN_CHECK(pn_session_length(s) == 0 && pn_session_logits(s) == NULL, "a torn step left %u tokens",
                 (unsigned)pn_session_length(s));
    }
    PN_CHECK(cancelled > 0, "no step was ever interrupted");
    pn_session_on_tick(s, NULL, NULL);
    pn_session_truncate(s, 0, NULL);
    PN_CHECK(pn_session_eval(s, t, ENGINE_TOKENS, &err) == PN_OK, "%s", err.text);
    PN_CHECK(memcmp(pn_session_logits(s), pn_session_logits(clean), pn_vocab_size(m) * sizeof(float)) == 0,
             "other bits after cancelled steps");
    pn_session_free(s);
    pn_session_free(clean);
    pn_model_free(m);
    pn_engine_close(e);
}

static void truncating_and_going_on_gives_the_bits_of_a_fresh_run(void)
{
    pn_engine *e = engine_open(2, NULL);
    for (size_t k = 0; k < 2; k++) {
        pn_err err = {0};
        pn_model *m = NULL;
        pn_session *s = NULL, *fresh = NULL;
        pn_token t[ENGINE_TOKENS];
        PN_CHECK(pn_model_load(e, engine_models[k], NULL, &m, &err) == PN_OK, "%s", err.text);
        const pn_session_params sp = {.n_ctx = 256, .n_batch = 32};
        PN_CHECK(pn_session_new(m, &sp, &s, &err) == PN_OK && pn_session_new(m, &sp, &fresh, &err) == PN_OK, "%s", err.text);
        engine_tokens(m, t, ENGINE_TOKENS);
        PN_CHECK(pn_session_eval(s, t, ENGINE_TOKENS, &err) == PN_OK, "%s", err.text);
        PN_CHECK(pn_session_truncate(s, ENGINE_TOKENS + 1, &err) == PN_E_INVALID, "%s", err.text);
        pn_status st = pn_session_truncate(s, 20, &err);
        if (k == 1) {       /* gemma3: a window of 32 has moved past token 20 */
            PN_CHECK(st == PN_E_STATE, "%s", err.text);
            PN_CHECK(pn_session_truncate(s, ENGINE_TOKENS - 3, &err) == PN_OK, "%s", err.text);
            PN_CHECK(pn_session_truncate(s, 0, &err) == PN_OK, "%s", err.text);
            PN_CHECK(pn_session_eval(s, t, 20, &err) == PN_OK, "%s", err.text);
        } else
            PN_CHECK(st == PN_OK && pn_session_logits(s) == NULL, "%s", err.text);
        PN_CHECK(pn_session_eval(s, t + 60, 50, &err) == PN_OK, "%s", err.text);
        memmove(t + 20, t + 60, 50 * sizeof *t);
        PN_CHECK(pn_session_eval(fresh, t, 70, &err) == PN_OK, "%s", err.text);
        PN_CHECK(memcmp(pn_session_logits(s), pn_session_logits(fresh), pn_vocab_size(m) * sizeof(float)) == 0,
                 "%s: other bits after truncation", engine_models[k]);
        PN_CHECK(memcmp(pn_session_tokens(s), t, 70 * sizeof *t) == 0, "tokens of the session");
        pn_session_free(s);
        pn_session_free(fresh);
        pn_model_free(m);
    }
    pn_engine_close(e);
}

/* ---- running out ---- */

static pn_status whole_life(pn_engine *e, const char *path, pn_err *err)
{
    pn_model *m = NULL;
    pn_session *s = NULL;
    pn_status st = pn_model_load(e, path, NULL, &m, err);
    if (!st)
        st = pn_session_new(m, &(pn_session_params){.n_ctx = 128, .n_batch = 16}, &s, err);
    if (!st) {
        const pn_token prompt[] = {3, 5, 8, 13, 21};
        pn_generate_params g = {.prompt = prompt, .n_prompt = 5, .max_tokens = 3};
        const pn_sampling warm = {.temperature = 1, .top_k = 5};
        g.sampling = &warm;
        st = pn_session_generate(s, &g, NULL, err);
    }
    pn_session_free(s);
    pn_model_free(m);
    return st;
}

static void every_allocation_may_fail(void)
{
    static const char *const paths[] = {"tests/vectors/golden/arch/llama_gqa_tied.gguf",
                                        "tests/vectors/golden/arch/qwen3moe.gguf",
                                        "tests/vectors/golden/arch/gemma3.gguf"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        long k = 1;
        for (;; k++) {
            api_heap h = {.fail_at = k};
            pn_err err = {0};
            pn_engine *e = engine_open(2, &h);
            pn_status st = e ? whole_life(e, paths[i], &err) : PN_E_NOMEM;
            pn_engine_close(e);
            PN_CHECK(h.out == 0, "%s: failing allocation %ld leaks %ld blocks", paths[i], k, h.out);
            if (h.calls < k) {
                PN_CHECK(st == PN_OK, "%s", err.text);
                break;
            }
            PN_CHECK(st == PN_E_NOMEM || st == PN_OK, "%s: failing allocation %ld gives %s: %s", paths[i], k,
                     pn_status_name(st), err.text);
        }
        PN_CHECK(k > 50, "only %ld allocations were tried", k);
    }
}

static void a_budget_is_kept_and_refusals_have_numbers(void)
{
    pn_engine *e = NULL;
    pn_err err = {0};
    pn_model *m = NULL;
    pn_session *s = NULL;
    PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.mem_limit = 24 << 20, .n_threads = 2}, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_model_load(e, engine_models[0], NULL, &m, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = 200000}, &s, &err) == PN_E_BUDGET, "%s", err.text);
    PN_CHECK(strstr(err.text, "200000 tokens") && strstr(err.text, "bytes"), "%s", err.text);
    PN_CHECK(pn_session_new(m, &(pn_session_params){.n_batch = 64}, &s, &err) == PN_OK, "%s", err.text);
    pn_mem_info mem;
    pn_engine_memory(e, &mem);
    PN_CHECK(mem.limit == 24 << 20 && mem.total_peak <= mem.limit, "peak %" PRIu64, mem.total_peak);
    PN_CHECK(mem.used[PN_ACCT_KV] > 0 && mem.used[PN_ACCT_WEIGHTS_MAP] > 0, "accounts are empty");
    pn_session_free(s);
    pn_model_free(m);
    pn_engine_memory(e, &mem);
    PN_CHECK(mem.used[PN_ACCT_KV] == 0 && mem.used[PN_ACCT_KV_RESERVE] == 0 && mem.used[PN_ACCT_VOCAB] == 0 && mem.used[PN_ACCT_WEIGHTS_MAP] == 0,
             "bytes left after closing");
    pn_engine_close(e);
}

static void plans_agree_with_the_ledger(void)
{
    for (size_t k = 0; k < sizeof engine_models / sizeof *engine_models; k++) {
        pn_engine *e = engine_open(2, NULL);
        pn_err err = {0};
        pn_file *f = NULL;
        pn_model *m = NULL;
        pn_session *s = NULL;
        pn_plan_info p;
        pn_mem_info mem;
        PN_CHECK(pn_file_open(e, engine_models[k], &f, &err) == PN_OK, "%s", err.text);
        PN_CHECK(pn_file_plan(f, &(pn_plan_params){.n_ctx = 1000, .n_batch = 128}, &p, &err) == PN_OK, "%s", err.text);
        PN_CHECK(pn_model_load_file(f, NULL, &m, &err) == PN_OK, "%s", err.text);
        PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = 1000, .n_batch = 128}, &s, &err) == PN_OK, "%s", err.text);
        pn_engine_memory(e, &mem);
        PN_CHECK(mem.used[PN_ACCT_KV] + mem.used[PN_ACCT_KV_RESERVE] == p.kv_bytes, "%s: KV planned %" PRIu64 ", taken %" PRIu64, engine_models[k],
                 p.kv_bytes, mem.used[PN_ACCT_KV] + mem.used[PN_ACCT_KV_RESERVE]);
        PN_CHECK(mem.used[PN_ACCT_WEIGHTS_MAP] == p.weight_bytes, "%s: weights", engine_models[k]);
        PN_CHECK(mem.used[PN_ACCT_SCRATCH] <= p.scratch_bytes && mem.used[PN_ACCT_SCRATCH] * 10 >= p.scratch_bytes * 9,
                 "%s: scratch planned %" PRIu64 ", taken %" PRIu64, engine_models[k], p.scratch_bytes,
                 mem.used[PN_ACCT_SCRATCH]);
        PN_CHECK(mem.total_used < p.anon_bytes + (1 << 20), "%s: planned %" PRIu64 ", taken %" PRIu64, engine_models[k],
                 p.anon_bytes, mem.total_used);
        pn_session_free(s);
        pn_model_free(m);
        pn_file_close(f);
        pn_engine_close(e);
    }
}

/* ---- generation ---- */

typedef struct test_text {
    char text[4096];
    size_t len;
    long calls, stop_at;
} test_text;

static int text_collect(void *user, const char *text, size_t len, pn_token t)
{
    test_text *x = user;
    (void)t;
    if (x->len + len < sizeof x->text)
        memcpy(x->text + x->len, text, len);
    x->len += len;
    return ++x->calls == x->stop_at;
}

static pn_generate_result generate(pn_model *m, const char *prompt, pn_generate_params *g, test_text *x, uint32_t n_ctx)
{
    pn_err err = {0};
    pn_session *s = NULL;
    pn_generate_result r = {0};
    pn_token t[512];
    size_t n;
    PN_CHECK(pn_tokenize(m, prompt, strlen(prompt), PN_TOKENIZE_BOS, t, 512, &n, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = n_ctx}, &s, &err) == PN_OK, "%s", err.text);
    g->prompt = t;
    g->n_prompt = n;
    g->on_text = text_collect;
    g->user = x;
    if (s)
        PN_CHECK(pn_session_generate(s, g, &r, &err) == PN_OK, "%s", err.text);
    pn_session_free(s);
    return r;
}

static void generation_ends_for_the_reason_it_says(void)
{
    pn_engine *e = engine_open(2, NULL);
    pn_err err = {0};
    pn_model *m = NULL;
    test_text a = {0}, b = {0}, c = {0}, d = {0}, f = {0}, h = {0};
    PN_CHECK(pn_model_load(e, engine_models[0], NULL, &m, &err) == PN_OK, "%s", err.text);
    pn_generate_params g = {.max_tokens = 40};
    pn_generate_result r = generate(m, "Once upon a time", &g, &a, 0);
    PN_CHECK(r.finish == PN_FINISH_LENGTH ? r.n_generated == 40 : r.finish == PN_FINISH_STOP, "finish %d after %u",
             (int)r.finish, (unsigned)r.n_generated);
    generate(m, "Once upon a time", &g, &b, 0);
    PN_CHECK(a.len == b.len && memcmp(a.text, b.text, a.len) == 0, "greedy text differs");
    const pn_sampling warm = {.temperature = 1, .has_seed = 1, .seed = 7}, endless = {.ignore_eos = 1};
    g.sampling = &warm;
    generate(m, "Once upon a time", &g, &c, 0);
    generate(m, "Once upon a time", &g, &d, 0);
    PN_CHECK(c.len == d.len && memcmp(c.text, d.text, c.len) == 0, "the same seed gives another text");
    g.sampling = &endless;
    g.max_tokens = 0;
    r = generate(m, "Once upon a time", &g, &f, 40);
    PN_CHECK(r.finish == PN_FINISH_CONTEXT && r.n_prompt + r.n_generated == 40, "finish %d at %u", (int)r.finish,
             (unsigned)(r.n_prompt + r.n_generated));
    h.stop_at = 3;
    r = generate(m, "Once upon a time", &g, &h, 0);
    PN_CHECK(r.finish == PN_FINISH_CALLBACK && r.n_generated == 3, "finish %d", (int)r.finish);
    pn_model_free(m);
    pn_engine_close(e);
}

static void stop_strings_are_exact_across_tokens(void)
{
    pn_engine *e = engine_open(2, NULL);
    pn_err err = {0};
    pn_model *m = NULL;
    test_text whole = {0};
    PN_CHECK(pn_model_load(e, engine_models[0], NULL, &m, &err) == PN_OK, "%s", err.text);
    const pn_sampling endless = {.ignore_eos = 1};
    pn_generate_params g = {.max_tokens = 40, .sampling = &endless};
    generate(m, "Once upon a time", &g, &whole, 0);
    if (!PN_CHECK(whole.len > 20, "the demo model says nothing: %zu bytes", whole.len))
        return;
    for (size_t at = 3; at < 18; at += pn_test_quick() ? 4 : 1)          /* every three bytes of the text, wherever tokens end */
        for (size_t n = 1; n <= 3; n++) {
            char stop[8] = {0};
            memcpy(stop, whole.text + at, n);
            whole.text[whole.len] = 0;
            size_t first = (size_t)(strstr(whole.text, stop) - whole.text);
            const char *stops[] = {"\x01never", stop};
            test_text cut = {0};
            g.stop = stops;
            g.n_stop = 2;
            pn_generate_result r = generate(m, "Once upon a time", &g, &cut, 0);
            PN_CHECK(r.finish == PN_FINISH_STOP && cut.len == first && memcmp(cut.text, whole.text, first) == 0,
                     "stop '%s' at %zu: got %zu bytes", stop, first, cut.len);
        }
    pn_model_free(m);
    pn_engine_close(e);
}

/* ---- samplers that need the vocabulary, log-probabilities ---- */

/* Some token would continue a text that goes in circles.  1: a sampler that has seen the text avoids
 * it although it is the likeliest. */
static int avoids_repeating(const pn_model *m, const char *text, const pn_sampling *p)
{
    pn_err err = {0};
    pn_token t[64], next = -1, got = -1;
    size_t n = 0, same, period = 0;
    pn_sampler *s = NULL;
    float *logits = calloc(pn_vocab_size(m), sizeof *logits);
    PN_CHECK(pn_tokenize(m, text, strlen(text), 0, t, 64, &n, &err) == PN_OK && n <= 64, "%s", err.text);
    do {
        period++;
        for (same = 0; same < period && t[n - 1 - same] == t[n - 1 - same - period];)
            same++;
    } while (same < period && 2 * period + 2 <= n);
    next = t[n - period];
    PN_CHECK(same == period && pn_sampler_new(m, p, &s, &err) == PN_OK, "%s", err.text);
    for (size_t i = 0; i < n; i++)
        PN_CHECK(pn_sampler_accept(s, t[i], 0, &err) == PN_OK, "%s", err.text);
    logits[next] = 5;
    PN_CHECK(pn_sampler_pick(s, logits, &got, &err) == PN_OK, "%s", err.text);
    pn_sampler_free(s);
    free(logits);
    return got != next;
}

static void dry_knows_its_breakers_in_any_vocabulary(void)
{
    pn_engine *e = engine_open(2, NULL);
    pn_err err = {0};
    pn_model *m = NULL;
    pn_sampler *s = NULL;
    const char *circle = "Tess met Tess met Tess met Tess met Tess met", *form = "Tess: Tess: Tess: Tess: Tess";
    const char *const odd[] = {"met Tess", "a breaker longer than all tokens: \xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", ""};
    PN_CHECK(pn_model_load(e, engine_models[0], NULL, &m, &err) == PN_OK, "%s", err.text);
    pn_sampling p = {.dry_penalty_last_n = -1, .dry_allowed_length = 1};
    PN_CHECK(!avoids_repeating(m, circle, &p) && !avoids_repeating(m, form, &p), "off, and yet at work");
    p.dry_multiplier = 100;
    PN_CHECK(avoids_repeating(m, circle, &p), "a repetition is not punished");
    PN_CHECK(!avoids_repeating(m, form, &p), "a colon is a breaker");
    p.dry_breakers = odd;
    PN_CHECK(avoids_repeating(m, form, &p), "without breakers a form is punished");
    p.n_dry_breakers = 2;
    PN_CHECK(avoids_repeating(m, form, &p), "a colon is no breaker now");
    p.n_dry_breakers = 3;
    PN_CHECK(pn_sampler_new(m, &p, &s, &err) == PN_E_INVALID && strstr(err.text, "dry_breakers"), "%s", err.text);
    pn_model_free(m);
    pn_engine_close(e);
}

static void logprobs_add_up(void)
{
    pn_engine *e = engine_open(2, NULL);
    pn_err err = {0};
    pn_model *m = NULL;
    pn_session *s = NULL;
    pn_token t[4] = {1, 2, 3, 4}, ids[20];
    float lp[20], chosen = 1;
    double sum = 0;
    PN_CHECK(pn_model_load(e, engine_models[0], NULL, &m, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = 16}, &s, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_logprobs(m, pn_session_logits(s), 0, 0, NULL, NULL, NULL, &err) == PN_E_STATE, "%s", err.text);
    PN_CHECK(pn_session_eval(s, t, 4, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_logprobs(m, pn_session_logits(s), 5, 20, ids, lp, &chosen, &err) == PN_OK, "%s", err.text);
    for (int i = 1; i < 20; i++)
        PN_CHECK(lp[i - 1] >= lp[i], "not descending");
    PN_CHECK(chosen <= lp[0] && chosen < 0, "chosen %g", (double)chosen);
    for (uint32_t i = 0; i < pn_vocab_size(m); i++)
        if (pn_logprobs(m, pn_session_logits(s), (pn_token)i, 0, NULL, NULL, &chosen, &err) == PN_OK)
            sum += exp((double)chosen);
    PN_CHECK(sum > 0.9999 && sum < 1.0001, "all tokens together: %g", sum);
    PN_CHECK(pn_logprobs(m, pn_session_logits(s), 0, 1, NULL, lp, NULL, &err) == PN_E_INVALID, "%s", err.text);
    pn_session_free(s);
    pn_model_free(m);
    pn_engine_close(e);
}

/* ---- misuse ---- */

static void misuse_is_an_error_with_words(void)
{
    pn_engine *e = engine_open(2, NULL);
    pn_err err = {0};
    pn_model *m = NULL, *none = NULL;
    pn_session *s = NULL;
    PN_CHECK(pn_model_load(e, "no/such/file.gguf", NULL, &none, &err) == PN_E_IO && strstr(err.text, "no/such/file.gguf"),
             "%s", err.text);
    PN_CHECK(pn_model_load(e, "tests/pn_check.h", NULL, &none, &err) == PN_E_FORMAT && strstr(err.text, "GGUF"), "%s",
             err.text);
    PN_CHECK(pn_model_load(e, engine_models[0], NULL, &m, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = 16}, &s, &err) == PN_OK, "%s", err.text);
    pn_token t[32] = {0};
    PN_CHECK(pn_session_eval(s, t, 32, &err) == PN_E_CONTEXT && strstr(err.text, "16"), "%s", err.text);
    t[3] = -1;
    PN_CHECK(pn_session_eval(s, t, 8, &err) == PN_E_INVALID && strstr(err.text, "-1"), "%s", err.text);
    t[3] = (pn_token)pn_vocab_size(m);
    PN_CHECK(pn_session_eval(s, t, 8, &err) == PN_E_INVALID, "%s", err.text);
    PN_CHECK(pn_session_length(s) == 0 && pn_session_logits(s) == NULL, "refused tokens left a trace");
    const pn_sampling cold = {.temperature = -1};
    pn_generate_params g = {.sampling = &cold};
    PN_CHECK(pn_session_generate(s, &g, NULL, &err) == PN_E_STATE, "%s", err.text);
    g.prompt = t;
    g.n_prompt = 1;
    PN_CHECK(pn_session_generate(s, &g, NULL, &err) == PN_E_INVALID && strstr(err.text, "temperature"), "%s", err.text);
    pn_session_free(s);
    pn_model_free(m);
    const pn_model_params vo = {.vocab_only = 1};
    PN_CHECK(pn_model_load(e, engine_models[0], &vo, &m, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_session_new(m, NULL, &s, &err) == PN_E_INVALID, "%s", err.text);
    pn_model_free(m);
    pn_engine_close(e);
}

/* Change bytes of a model in memory and see what loading says. */
static void patched(const char *find, const char *with, pn_status want, const char *word)
{
    size_t len;
    pn_err err = {0};
    pn_engine *e = engine_open(1, NULL);
    pn_file *f = NULL;
    pn_model *m = NULL;
    char *bytes = api_read_file("tests/vectors/golden/arch/llama_gqa_tied.gguf", &len);
    size_t n = strlen(find), hits = 0;
    for (size_t i = 0; bytes && i + n < len; i++)
        if (memcmp(bytes + i, find, n) == 0) {
            memcpy(bytes + i, with, n);
            hits++;
        }
    PN_CHECK(hits > 0, "'%s' is not in the file", find);
    pn_status st = pn_file_open_memory(e, bytes, len, &f, &err);
    if (!st)
        st = pn_model_load_file(f, NULL, &m, &err);
    PN_CHECK(st == want && strstr(err.text, word), "%s -> %s: %s: %s", find, with, pn_status_name(st), err.text);
    pn_model_free(m);
    pn_file_close(f);
    pn_engine_close(e);
    free(bytes);
}

static void models_that_lack_something_say_what(void)
{
    patched("general.architecture", "general.architectura", PN_E_FORMAT, "general.architecture");
    patched("blk.1.attn_q.weight", "blk.1.attn_X.weight", PN_E_FORMAT, "blk.1.attn_q.weight");
    patched("output_norm.weight", "output_morn.weight", PN_E_FORMAT, "output_norm.weight");
    patched("llama.context_length", "llama.context_lxngth", PN_E_FORMAT, "llama.context_length");
    patched("llama.attention.head_count", "llama.attention.head_cuont", PN_E_FORMAT, "llama.attention.head_count");
    patched("tokenizer.ggml.tokens", "tokenizer.ggml.tokenz", PN_E_FORMAT, "tokenizer.ggml.tokens");
}

/* In memory of our own: what happens to the file afterwards is no concern of ours. */
static void a_file_may_shrink_under_a_model_in_memory(void)
{
    char path[] = "/tmp/pantheon-test-XXXXXX";
    size_t len = 0;
    pn_err err = {0};
    pn_engine *e = engine_open(2, NULL);
    pn_model *m = NULL;
    test_text before = {0}, after = {0};
    char *bytes = api_read_file(engine_models[0], &len);
    int fd = mkstemp(path);
    if (fd < 0 || !bytes || write(fd, bytes, len) != (ssize_t)len) {
        pn_test_skip("cannot write %s", path);
        return;
    }
    const pn_model_params mp = {.residency = PN_RESIDENCY_ANON};
    PN_CHECK(pn_model_load(e, path, &mp, &m, &err) == PN_OK, "%s", err.text);
    pn_generate_params g = {.max_tokens = 30};
    generate(m, "Once upon a time", &g, &before, 0);
    PN_CHECK(ftruncate(fd, 100) == 0, "cannot truncate %s", path);
    generate(m, "Once upon a time", &g, &after, 0);
    PN_CHECK(before.len > 10 && before.len == after.len && memcmp(before.text, after.text, before.len) == 0,
             "another text after the file shrank");
    pn_model *again = NULL;
    PN_CHECK(pn_model_load(e, path, &mp, &again, &err) == PN_E_FORMAT && strstr(err.text, path), "%s", err.text);
    close(fd);
    unlink(path);
    free(bytes);
    pn_model_free(m);
    pn_engine_close(e);
}

/* One NaN in a norm: it must come out as an error, not as a confident wrong token. */
static void a_poisoned_weight_fails_the_request_alone(void)
{
    static const char *const paths[] = {"models/demo.gguf", "tests/vectors/golden/arch/qwen3.gguf",
                                        "tests/vectors/golden/quant/q2_k.gguf"};
    pn_engine *e = engine_open(2, NULL);
    for (size_t k = 0; k < sizeof paths / sizeof *paths; k++) {
        size_t len = 0;
        pn_err err = {0};
        pn_file *f = NULL;
        pn_model *m = NULL;
        pn_session *s = NULL;
        pn_tensor_info t;
        char *bytes = api_read_file(paths[k], &len);
        PN_CHECK(pn_file_open_memory(e, bytes, len, &f, &err) == PN_OK, "%s", err.text);
        for (size_t i = 0; pn_file_tensor_at(f, i, &t) == PN_OK; i++)
            if (strcmp(t.name, "blk.0.attn_norm.weight") == 0)
                memset(bytes + t.offset + 20, 0xff, 4);
        PN_CHECK(pn_model_load_file(f, NULL, &m, &err) == PN_OK, "%s", err.text);
        PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = 64}, &s, &err) == PN_OK, "%s", err.text);
        const pn_token prompt[] = {3, 5, 8};
        const pn_generate_params g = {.prompt = prompt, .n_prompt = 3, .max_tokens = 3};
        PN_CHECK(pn_session_generate(s, &g, NULL, &err) == PN_E_NUMERIC && err.text[0], "%s: %s", paths[k], err.text);
        pn_session_free(s);
        pn_model_free(m);
        pn_file_close(f);
        free(bytes);
        PN_CHECK(whole_life(e, paths[k], &err) == PN_OK, "the engine does not work any more: %s", err.text);
    }
    pn_engine_close(e);
}

int main(void)
{
    bits_do_not_depend_on_threads_batch_calls_or_residency();
    bits_do_not_depend_on_the_source();
    a_cancelled_step_leaves_no_trace();
    truncating_and_going_on_gives_the_bits_of_a_fresh_run();
    every_allocation_may_fail();
    a_budget_is_kept_and_refusals_have_numbers();
    plans_agree_with_the_ledger();
    generation_ends_for_the_reason_it_says();
    stop_strings_are_exact_across_tokens();
    dry_knows_its_breakers_in_any_vocabulary();
    logprobs_add_up();
    misuse_is_an_error_with_words();
    models_that_lack_something_say_what();
    a_poisoned_weight_fails_the_request_alone();
    a_file_may_shrink_under_a_model_in_memory();
    return pn_test_end();
}
