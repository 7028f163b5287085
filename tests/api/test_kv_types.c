/*
 * test_kv_types.c - keys and values of every type: the same bits whatever the threads, the chunks, the neighbours
 * and the prefix cache; close to f16; counted to the byte; refused where heads are no whole blocks.
 */
#include "pantheon.h"
#include "pn_api_test.h"

enum { P = 64, N_IDS = 200, N_TYPES = 7 };

static const pn_dtype types[N_TYPES] = {PN_DTYPE_F32, PN_DTYPE_F16, PN_DTYPE_Q8_0, PN_DTYPE_Q5_1, PN_DTYPE_Q5_0, PN_DTYPE_Q4_1, PN_DTYPE_Q4_0};

static const char story[] =
    "Once upon a time there was a small house at the edge of the forest. In the house lived an old woman and her cat. Every morning the old "
    "woman went to the well, and every morning the cat went with her. One day the well was empty. The old woman looked at the cat, and the cat "
    "looked at the old woman. Then they heard a small voice from below: please do not be afraid, it said, I am only very thirsty. The old woman "
    "let down the bucket, and in the bucket sat a frog with a golden ring. Take the ring, said the frog, and give me a little water. But there "
    "is no water, said the old woman. Then the cat began to cry, and the well was full again before the sun went down behind the trees.";

typedef struct kvt_rig {
    pn_engine *e;
    pn_model *m;
    uint32_t V;
    pn_token ids[N_IDS];
    size_t n;
    float *logits[N_TYPES];     /* owned: what one thread and one step make of ids */
} kvt_rig;

static void kvt_open(kvt_rig *r, const char *path, uint32_t threads)
{
    pn_err err = {0};
    pn_token all[1024];
    memset(r, 0, sizeof *r);
    PN_CHECK(pn_engine_open(&r->e, &(pn_engine_params){.n_threads = threads}, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_model_load(r->e, path, NULL, &r->m, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_tokenize(r->m, story, strlen(story), PN_TOKENIZE_BOS, all, 1024, &r->n, &err) == PN_OK, "%s", err.text);
    r->n = r->n < N_IDS ? r->n : N_IDS;
    memcpy(r->ids, all, r->n * sizeof *all);
    r->V = pn_vocab_size(r->m);
}

static void kvt_close(kvt_rig *r)
{
    for (size_t t = 0; t < N_TYPES; t++)
        free(r->logits[t]);
    pn_model_free(r->m);
    pn_engine_close(r->e);
}

static pn_session *kvt_session(kvt_rig *r, pn_dtype type, uint32_t n_batch, int by_turn)
{
    pn_session *s = NULL;
    pn_err err = {0};
    const pn_session_params p = {.n_ctx = 600, .n_batch = n_batch, .has_kv_type = 1, .kv_type = type, .by_turn = by_turn};
    PN_CHECK(pn_session_new(r->m, &p, &s, &err) == PN_OK, "%s", err.text);
    return s;
}

/* ------------------------------------------------------------------------------------------ */

static void bits_do_not_depend_on_threads_or_chunks(void)
{
    static const uint32_t batches[] = {512, 1, 50};
    kvt_rig r[2];
    kvt_open(&r[0], "models/demo.gguf", 1);
    kvt_open(&r[1], "models/demo.gguf", 2);
    for (size_t t = 0; t < N_TYPES; t++)
        for (size_t b = 0; b < 3; b++)
            for (size_t i = 0; i < 2; i++) {
                pn_err err = {0};
                pn_dtype now = PN_DTYPE_COUNT, small = PN_DTYPE_COUNT;
                int degraded = 1;
                pn_session *s = kvt_session(&r[i], types[t], batches[b], b % 2);
                PN_CHECK(pn_session_eval(s, r[i].ids, r[i].n, &err) == PN_OK, "%s", err.text);
                if (!r[0].logits[t]) {
                    r[0].logits[t] = malloc(r[0].V * sizeof(float));
                    memcpy(r[0].logits[t], pn_session_logits(s), r[0].V * sizeof(float));
                }
                PN_CHECK(memcmp(r[0].logits[t], pn_session_logits(s), r[0].V * sizeof(float)) == 0, "%s, batches of %u, %zu threads: other bits",
                         pn_kv_type_name(types[t]), (unsigned)batches[b], i + 1);
                pn_session_kv_types(s, &now, &small, &degraded);
                PN_CHECK(now == types[t] && small == types[t] && !degraded, "%s", pn_kv_type_name(types[t]));
                /* Cut inside a page, and the same again. */
                PN_CHECK(pn_session_truncate(s, 100, &err) == PN_OK && pn_session_eval(s, r[i].ids + 100, r[i].n - 100, &err) == PN_OK, "%s", err.text);
                PN_CHECK(memcmp(r[0].logits[t], pn_session_logits(s), r[0].V * sizeof(float)) == 0, "%s: other bits after a cut", pn_kv_type_name(types[t]));
                pn_session_free(s);
            }
    for (size_t t = 1; t < N_TYPES; t++)
        PN_CHECK(memcmp(r[0].logits[0], r[0].logits[t], r[0].V * sizeof(float)) != 0, "%s is f32", pn_kv_type_name(types[t]));
    kvt_close(&r[0]);
    kvt_close(&r[1]);
}

static const pn_sampling kvt_how = {.temperature = 0.7f, .has_seed = 1, .seed = 5, .ignore_eos = 1};

/* Two of each type, all at once, are what each is alone; the second of each begins with what the first has left. */
static void neighbours_and_caches_do_not_show(void)
{
    kvt_rig r;
    pn_err err = {0};
    pn_session *s[2 * N_TYPES];
    pn_request *q[2 * N_TYPES] = {0};
    kvt_open(&r, "models/demo.gguf", 2);
    pn_generate_params p = {.prompt = r.ids, .n_prompt = 200, .max_tokens = 30, .sampling = &kvt_how, .no_cache = 1};
    for (size_t t = 0; t < N_TYPES; t++) {
        pn_session *alone = kvt_session(&r, types[t], 0, 0);
        PN_CHECK(pn_session_generate(alone, &p, NULL, &err) == PN_OK, "%s", err.text);
        r.logits[t] = malloc(r.V * sizeof(float));
        memcpy(r.logits[t], pn_session_logits(alone), r.V * sizeof(float));
        pn_session_free(alone);
    }
    p.no_cache = 0;
    for (size_t round = 0; round < 2; round++) {
        for (size_t i = 0; i < 2 * N_TYPES; i++) {
            s[i] = kvt_session(&r, types[i % N_TYPES], 50 + 14 * (uint32_t)(i % 3), i % 2);
            PN_CHECK(pn_request_new(s[i], &p, &q[i], &err) == PN_OK, "%s", err.text);
        }
        for (uint32_t active = 1; active;)
            PN_CHECK(pn_engine_step(r.e, 1, &active, &err) == PN_OK, "%s", err.text);
        for (size_t i = 0; i < 2 * N_TYPES; i++) {
            pn_generate_result g = {0};
            PN_CHECK(pn_request_result(q[i], &g, &err) == PN_OK && g.n_generated == 30, "%s", err.text);
            PN_CHECK(!round || g.n_cached == 3 * P, "%s: %u tokens were cached", pn_kv_type_name(types[i % N_TYPES]), (unsigned)g.n_cached);
            PN_CHECK(memcmp(r.logits[i % N_TYPES], pn_session_logits(s[i]), r.V * sizeof(float)) == 0, "round %zu, %s: other bits", round,
                     pn_kv_type_name(types[i % N_TYPES]));
            pn_request_free(q[i]);
            pn_session_free(s[i]);
        }
    }
    kvt_close(&r);
}

/* ------------------------------------------------------------------------------------------ */

static double kvt_kl(const float *a, const float *b, uint32_t n)
{
    double ma = -1e30, mb = -1e30, sa = 0, sb = 0, kl = 0;
    for (uint32_t i = 0; i < n; i++) {
        ma = fmax(ma, (double)a[i]);
        mb = fmax(mb, (double)b[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        sa += exp((double)a[i] - ma);
        sb += exp((double)b[i] - mb);
    }
    for (uint32_t i = 0; i < n; i++) {
        double la = (double)a[i] - ma - log(sa), lb = (double)b[i] - mb - log(sb);
        kl += exp(la) * (la - lb);
    }
    return kl;
}

/* Mean divergence from f16 over the second half of a text. */
static void smaller_types_stay_close(void)
{
    static const double most[N_TYPES] = {1e-3, 1e-12, 2e-3, 0.02, 0.02, 0.06, 0.06};
    kvt_rig r;
    pn_err err = {0};
    kvt_open(&r, "models/demo.gguf", 2);
    for (size_t i = 0; i < N_TYPES; i++) {
        size_t t = i == 0 ? 1 : i == 1 ? 0 : i;         /* f16 first */
        pn_session *s = kvt_session(&r, types[t], 0, 0);
        double kl = 0;
        r.logits[t] = malloc(r.n * r.V * sizeof(float));
        PN_CHECK(pn_session_eval_all(s, r.ids, r.n, r.logits[t], &err) == PN_OK, "%s", err.text);
        for (size_t k = r.n / 2; k < r.n; k++)
            kl += kvt_kl(r.logits[1] + k * r.V, r.logits[t] + k * r.V, r.V);
        kl /= (double)(r.n - r.n / 2);
        printf("%s: mean divergence from f16 %.2g\n", pn_kv_type_name(types[t]), kl);
        PN_CHECK(kl < most[t], "%s: %g", pn_kv_type_name(types[t]), kl);
        pn_session_free(s);
    }
    kvt_close(&r);
}

/* The plan is what is taken: four layers of two heads of 64. */
static void the_plan_is_exact(void)
{
    static const uint64_t token[N_TYPES] = {4096, 2048, 1088, 768, 704, 640, 576};
    pn_err err = {0};
    kvt_rig r;
    pn_file *f = NULL;
    kvt_open(&r, "models/demo.gguf", 1);
    PN_CHECK(pn_file_open(r.e, "models/demo.gguf", &f, &err) == PN_OK, "%s", err.text);
    for (size_t t = 0; t < N_TYPES; t++) {
        pn_plan_info i;
        pn_mem_info before, after;
        PN_CHECK(pn_file_plan(f, &(pn_plan_params){.n_ctx = 600, .has_kv_type = 1, .kv_type = types[t]}, &i, &err) == PN_OK, "%s", err.text);
        PN_CHECK(i.kv_type == types[t] && i.kv_bytes_per_token == token[t], "%s: %u bytes", pn_kv_type_name(types[t]), (unsigned)i.kv_bytes_per_token);
        pn_engine_memory(r.e, &before);
        pn_session *s = kvt_session(&r, types[t], 0, 0);
        pn_engine_memory(r.e, &after);
        PN_CHECK(after.used[PN_ACCT_KV] + after.used[PN_ACCT_KV_RESERVE] - before.used[PN_ACCT_KV] == i.kv_bytes_per_session, "%s: planned %u bytes", pn_kv_type_name(types[t]),
                 (unsigned)i.kv_bytes_per_session);
        pn_session_free(s);
    }
    pn_file_close(f);
    kvt_close(&r);
}

static void what_does_not_fit_is_refused(void)
{
    static const char path[] = "tests/vectors/golden/arch/gemma3.gguf";
    kvt_rig r;
    pn_err err = {0};
    pn_session *s = NULL;
    pn_file *f = NULL;
    pn_plan_info i;
    kvt_open(&r, path, 1);
    PN_CHECK(pn_session_new(r.m, &(pn_session_params){.has_kv_type = 1, .kv_type = PN_DTYPE_Q8_0}, &s, &err) == PN_E_UNSUPPORTED && !s &&
             strstr(err.text, "q8_0") && strstr(err.text, "32"), "%s", err.text);
    PN_CHECK(pn_session_new(r.m, &(pn_session_params){.has_kv_type = 1, .kv_type = PN_DTYPE_BF16}, &s, &err) == PN_E_UNSUPPORTED && !s, "%s", err.text);
    PN_CHECK(pn_file_open(r.e, path, &f, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_file_plan(f, &(pn_plan_params){.has_kv_type = 1, .kv_type = PN_DTYPE_Q4_0}, &i, &err) == PN_E_UNSUPPORTED, "%s", err.text);
    pn_file_close(f);
    kvt_close(&r);
    PN_CHECK(!pn_kv_type_name(PN_DTYPE_BF16) && !pn_kv_type_name(PN_DTYPE_COUNT) && strcmp(pn_kv_type_name(PN_DTYPE_Q5_1), "q5_1") == 0, "names");
}

/* ------------------------------------------------------------------------------------------ */

static int kvt_stop(void *user, uint32_t done, uint32_t total)
{
    (void)done;
    (void)total;
    return ++*(int *)user == 3;
}

static void the_gate_measures_once_and_judges_as_asked(void)
{
    kvt_rig r;
    pn_err err = {0};
    pn_kv_gate g = {0}, again = {0};
    pn_mem_info before, after;
    int ticks = 0;
    kvt_open(&r, "models/demo.gguf", 2);
    pn_engine_memory(r.e, &before);
    const pn_kv_gate_params stop = {.tick = kvt_stop, .user = &ticks};
    PN_CHECK(pn_model_kv_gate(r.m, PN_DTYPE_Q8_0, &stop, &g, &err) == PN_E_CANCELLED && ticks == 3, "%s", err.text);
    PN_CHECK(pn_model_kv_gate(r.m, PN_DTYPE_Q8_0, NULL, &g, &err) == PN_OK && g.eligible && g.n_positions == 1024, "%s", err.text);
    PN_CHECK(g.kl > 0 && g.kl < 0.002 && g.top1 > 0.97 && g.top1 < 1, "kl %g, the same likeliest token %g", g.kl, g.top1);
    const pn_kv_gate_params strict = {.max_kl = 1e-9, .tick = kvt_stop, .user = &ticks}, same = {.min_top1 = 0.9999};
    PN_CHECK(pn_model_kv_gate(r.m, PN_DTYPE_Q8_0, &strict, &again, &err) == PN_OK && !again.eligible && memcmp(&again.kl, &g.kl, sizeof g.kl) == 0 && ticks == 3,
             "another limit, no other probe: %s", err.text);
    PN_CHECK(pn_model_kv_gate(r.m, PN_DTYPE_Q8_0, &same, &again, &err) == PN_OK && !again.eligible, "%s", err.text);
    PN_CHECK(pn_model_kv_gate(r.m, PN_DTYPE_BF16, NULL, &g, &err) == PN_E_UNSUPPORTED, "%s", err.text);
    pn_engine_memory(r.e, &after);
    PN_CHECK(before.used[PN_ACCT_KV] == 0 && after.used[PN_ACCT_KV] == 0 && after.used[PN_ACCT_PREFIX] == 0, "something is left");
    kvt_close(&r);
}

static void a_gate_without_memory_says_so(void)
{
    pn_engine *e = NULL;
    pn_model *m = NULL;
    pn_err err = {0};
    pn_kv_gate g;
    PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.n_threads = 1, .mem_limit = 3 << 20}, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_model_load(e, "models/demo.gguf", NULL, &m, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_model_kv_gate(m, PN_DTYPE_Q8_0, NULL, &g, &err) == PN_E_BUDGET, "%s", err.text);
    pn_model_free(m);
    pn_engine_close(e);
    long tried = 0;
    pn_status st = PN_E_NOMEM;
    for (long k = 1; st != PN_OK; k++, tried++) {
        api_heap h = {0};
        PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.n_threads = 1, .allocator = {api_heap_alloc, api_heap_free, &h}}, &err) == PN_OK, "%s", err.text);
        PN_CHECK(pn_model_load(e, "tests/vectors/golden/arch/qwen3.gguf", NULL, &m, &err) == PN_OK, "%s", err.text);
        h.fail_at = h.calls + k;
        st = pn_model_kv_gate(m, PN_DTYPE_Q4_0, NULL, &g, &err);
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM, "failing allocation %ld: %s", k, err.text);
        pn_model_free(m);
        pn_engine_close(e);
        PN_CHECK(h.out == 0, "failing allocation %ld leaks %ld blocks", k, h.out);
    }
    PN_CHECK(tried > 20, "only %ld allocations were tried", tried);
}

int main(void)
{
    the_gate_measures_once_and_judges_as_asked();
    a_gate_without_memory_says_so();
    the_plan_is_exact();
    what_does_not_fit_is_refused();
    bits_do_not_depend_on_threads_or_chunks();
    neighbours_and_caches_do_not_show();
    smaller_types_stay_close();
    return pn_test_end();
}
