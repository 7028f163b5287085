/*
 * test_embed.c - embeddings: their vectors are what the output matrix multiplies, pooling is arithmetic, the
 * bits depend on nothing but the tokens, and a refusal leaves a session that works.
 */
#include "pantheon.h"
#include "pn_api_test.h"

enum { EMBED_TOKENS = 150, EMBED_CTX = 256, EMBED_MAX = 1024 };

static const char *const embed_models[] = {
    "models/demo.gguf",
    "tests/vectors/golden/arch/gemma3.gguf",        /* windows, two rotary bases */
    "tests/vectors/golden/arch/qwen3moe.gguf",      /* experts */
    "tests/vectors/golden/arch/lfm2.gguf",          /* recurrent layers */
    "tests/vectors/golden/quant/q2_k.gguf",
};

typedef struct bench {
    pn_engine *e;
    pn_model *m;
    pn_session *s;
    pn_token t[EMBED_TOKENS];
    uint32_t D;
} bench;

static void bench_close(bench *b)
{
    pn_session_free(b->s);
    pn_model_free(b->m);
    pn_engine_close(b->e);
}

static pn_status bench_open(bench *b, const char *path, const pn_engine_params *ep, uint32_t batch, pn_err *err)
{
    const pn_session_params sp = {.n_ctx = EMBED_CTX, .n_batch = batch};
    pn_model_info mi;
    uint64_t seed = 88172645463325252u;
    memset(b, 0, sizeof *b);
    pn_status st = pn_engine_open(&b->e, ep, err);
    if (!st)
        st = pn_model_load(b->e, path, NULL, &b->m, err);
    if (!st)
        st = pn_session_new(b->m, &sp, &b->s, err);
    if (st)
        return st;
    pn_model_describe(b->m, &mi);
    b->D = mi.n_embd;
    PN_CHECK(b->D <= EMBED_MAX);
    for (size_t i = 0; i < EMBED_TOKENS; i++)
        b->t[i] = (pn_token)(pn_test_rand(&seed) % pn_vocab_size(b->m));
    return PN_OK;
}

static int opens(bench *b, const char *path, uint32_t threads, uint32_t batch)
{
    const pn_engine_params ep = {.n_threads = threads};
    pn_err err = {0};
    int ok = PN_CHECK(bench_open(b, path, &ep, batch, &err) == PN_OK, "%s: %s", path, err.text);
    if (!ok)
        bench_close(b);
    return ok;
}

static int embeds(bench *b, size_t n, pn_pooling pooling, int normalize, float *out)
{
    pn_err err = {0};
    return PN_CHECK(pn_session_embed(b->s, b->t, n, pooling, normalize, out, &err) == PN_OK, "%s", err.text) &&
           PN_CHECK(pn_session_length(b->s) == 0 && !pn_session_logits(b->s));
}

/* ------------------------------------------------------------------------------------------
 * Against an implementation that is not ours
 * ------------------------------------------------------------------------------------------ */

/* A tensor of an F32 file, malloc'd; NULL: it has none of that name. */
static float *f32_tensor(pn_file *f, const char *path, const char *name, uint64_t *n)
{
    for (size_t i = 0; i < pn_file_tensor_count(f); i++) {
        pn_tensor_info t;
        if (pn_file_tensor_at(f, i, &t) || strcmp(t.name, name) != 0 || t.dtype != PN_DTYPE_F32)
            continue;
        size_t len;
        char *file = api_read_file(path, &len);
        float *out = malloc((size_t)t.bytes);
        if (file && out && t.offset <= len && t.bytes <= len - t.offset)
            memcpy(out, file + t.offset, (size_t)t.bytes);
        free(file);
        *n = t.bytes / 4;
        return out;
    }
    return NULL;
}

/* The reference has logits for every token, and logits = W h, so W times our h of every prefix must give them. */
static void head_times_vector_is_the_reference_logit(const char *name, const char *cap_key)
{
    char path[128], file[128];
    bench b;
    snprintf(path, sizeof path, "tests/vectors/golden/arch/%s.json", name);
    char *json = api_read_file(path, NULL);
    long n = 0, V = (long)api_json_num(json, "n_vocab");
    pn_token *tokens = api_json_ints(json, "tokens", &n);
    snprintf(file, sizeof file, "tests/vectors/golden/arch/%s.f32", name);
    float *ref = (float *)(void *)api_read_file(file, NULL);
    snprintf(path, sizeof path, "tests/vectors/golden/arch/%s.gguf", name);
    if (!PN_CHECK(json && tokens && ref, "%s is not there", name) || !opens(&b, path, 2, 16))
        return;
    pn_file *f = NULL;
    pn_session *s = NULL;
    pn_err err = {0};
    uint64_t n_w = 0;
    float h[EMBED_MAX], *w = NULL;
    const pn_session_params sp = {.n_ctx = 512, .n_batch = 16, .has_kv_type = 1, .kv_type = PN_DTYPE_F32};
    double worst = 0, cap = 0, limit = api_json_num(strstr(json, "\"tolerance\""), "max_abs");
    PN_CHECK(pn_file_open(b.e, path, &f, &err) == PN_OK && pn_session_new(b.m, &sp, &s, &err) == PN_OK, "%s", err.text);
    if (f && cap_key)
        PN_CHECK(pn_file_meta_number(f, cap_key, 0, &cap) == PN_OK && cap > 0);
    if (f && (w = f32_tensor(f, path, "output.weight", &n_w)) == NULL)
        w = f32_tensor(f, path, "token_embd.weight", &n_w);
    if (s && PN_CHECK(w && n_w == (uint64_t)V * b.D, "%s has no matrix", name))
        for (long i = 0; i < n; i += n > 60 ? 13 : 1) {
            PN_CHECK(pn_session_embed(s, tokens, (size_t)i + 1, PN_POOLING_LAST, 0, h, &err) == PN_OK, "%s", err.text);
            for (long v = 0; v < V; v++) {
                double logit = 0;
                for (uint32_t k = 0; k < b.D; k++)
                    logit += (double)w[(size_t)v * b.D + k] * (double)h[k];
                if (cap > 0)
                    logit = cap * tanh(logit / cap);
                worst = fmax(worst, fabs(logit - (double)ref[i * V + v]));
            }
        }
    PN_CHECK(worst < limit && limit < 0.1, "%s: |d| %g > %g", name, worst, limit);
    free(w);
    free(ref);
    free(tokens);
    free(json);
    pn_session_free(s);
    pn_file_close(f);
    bench_close(&b);
}

/* ------------------------------------------------------------------------------------------
 * Pooling
 * ------------------------------------------------------------------------------------------ */

static void the_mean_is_the_average_of_every_prefixs_last(void)
{
    for (size_t k = 0; k < sizeof embed_models / sizeof *embed_models; k += pn_test_quick() ? 2 : 1) {
        bench b;
        enum { N = 37 };
        float h[EMBED_MAX], mean[EMBED_MAX], unit[EMBED_MAX];
        double sum[EMBED_MAX] = {0}, length = 0, cosine = 0, size = 0;
        if (!opens(&b, embed_models[k], 2, 16))
            continue;
        for (size_t n = 1; n <= N; n++) {
            embeds(&b, n, PN_POOLING_LAST, 0, h);
            for (uint32_t i = 0; i < b.D; i++)
                sum[i] += (double)h[i];
        }
        embeds(&b, N, PN_POOLING_MEAN, 0, mean);
        for (uint32_t i = 0; i < b.D; i++)
            PN_CHECK(mean[i] == (float)(sum[i] / N), "%s: %u: %g, not %g", embed_models[k], (unsigned)i, (double)mean[i], sum[i] / N);
        embeds(&b, N, PN_POOLING_MEAN, 1, unit);
        for (uint32_t i = 0; i < b.D; i++) {
            length += (double)unit[i] * (double)unit[i];
            size += (double)mean[i] * (double)mean[i];
            cosine += (double)unit[i] * (double)mean[i];
        }
        PN_CHECK(fabs(sqrt(length) - 1) < 1e-6 && fabs(cosine / sqrt(size) - 1) < 1e-6, "%g", length);
        embeds(&b, 1, PN_POOLING_LAST, 0, h);
        embeds(&b, 1, PN_POOLING_MEAN, 0, mean);
        PN_CHECK(memcmp(h, mean, b.D * sizeof *h) == 0, "one token has one vector");
        bench_close(&b);
    }
}

static void put(char **p, const void *bytes, size_t n)
{
    memcpy(*p, bytes, n);
    *p += n;
}

/* The golden llama with one key more, of type u32 (4) or bool (7), in memory; a second key keeps the data aligned. */
static char *with_key(const char *key, uint32_t type, uint32_t value, size_t *len)
{
    char *file = api_read_file("tests/vectors/golden/arch/llama_gqa_tied.gguf", len);
    char *out = malloc(*len + 256), *p = out;
    uint64_t n_kv, key_len = strlen(key), filler_len = 7, text_len;
    uint32_t string = 8;
    size_t bytes = 8 + key_len + 4 + (type == 7 ? 1 : 4) + 8 + filler_len + 4 + 8;
    static const char blank[32] = "                               ";
    text_len = (32 - bytes % 32) % 32;
    memcpy(&n_kv, file + 16, 8);
    n_kv += 2;
    put(&p, file, 16);
    put(&p, &n_kv, 8);
    put(&p, &key_len, 8);
    put(&p, key, key_len);
    put(&p, &type, 4);
    put(&p, &value, type == 7 ? 1 : 4);     /* little-endian hosts only, like the files */
    put(&p, &filler_len, 8);
    put(&p, "x.blank", 7);
    put(&p, &string, 4);
    put(&p, &text_len, 8);
    put(&p, blank, text_len);
    put(&p, file + 24, *len - 24);
    *len = (size_t)(p - out);
    free(file);
    return out;
}

static void the_default_pooling_is_the_models(void)
{
    static const struct { uint32_t type; pn_pooling want; } cases[] = {
        {0, PN_POOLING_MEAN}, {1, PN_POOLING_MEAN}, {2, PN_POOLING_MEAN}, {3, PN_POOLING_LAST}, {4, PN_POOLING_MEAN},
        {77, PN_POOLING_MEAN},
    };
    const pn_token t[] = {5, 6, 7};
    pn_engine *e = NULL;
    pn_err err = {0};
    PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t len;
        char *bytes = with_key("llama.pooling_type", 4, cases[i].type, &len);
        pn_file *f = NULL;
        pn_model *m = NULL;
        pn_session *s = NULL;
        float a[EMBED_MAX] = {1}, b[EMBED_MAX] = {2}, other[EMBED_MAX] = {3};
        pn_status st = pn_file_open_memory(e, bytes, len, &f, &err);
        if (!st)
            st = pn_model_load_file(f, NULL, &m, &err);
        if (!st)
            st = pn_session_new(m, NULL, &s, &err);
        if (PN_CHECK(st == PN_OK, "%s", err.text)) {
            PN_CHECK(pn_model_pooling(m) == cases[i].want, "%u", (unsigned)cases[i].type);
            PN_CHECK(pn_session_embed(s, t, 3, PN_POOLING_DEFAULT, 1, a, &err) == PN_OK);
            PN_CHECK(pn_session_embed(s, t, 3, cases[i].want, 1, b, &err) == PN_OK);
            PN_CHECK(pn_session_embed(s, t, 3, cases[i].want == PN_POOLING_LAST ? PN_POOLING_MEAN : PN_POOLING_LAST, 1, other, &err) == PN_OK);
            PN_CHECK(memcmp(a, b, sizeof(float) * 8) == 0 && memcmp(a, other, sizeof(float) * 8) != 0);
        }
        pn_session_free(s);
        pn_model_free(m);
        pn_file_close(f);
        free(bytes);
    }
    size_t len;
    char *bytes = with_key("llama.attention.causal", 7, 0, &len);
    pn_file *f = NULL;
    pn_model *m = NULL;
    PN_CHECK(pn_file_open_memory(e, bytes, len, &f, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_model_load_file(f, NULL, &m, &err) == PN_E_UNSUPPORTED && strstr(err.text, "llama.attention.causal"), "%s", err.text);
    pn_file_close(f);
    free(bytes);
    pn_engine_close(e);
}

/* ------------------------------------------------------------------------------------------
 * Same bits
 * ------------------------------------------------------------------------------------------ */

static int other_text(void *user, const char *text, size_t len, pn_token t)
{
    (void)text;
    (void)len;
    (void)t;
    ++*(int *)user;
    return 0;
}

static void bits_do_not_depend_on_threads_or_batch(void)
{
    static const struct { uint32_t threads, batch; } ways[] = {{2, 512}, {1, 64}, {3, 7}, {2, 1}};
    static const pn_pooling poolings[] = {PN_POOLING_MEAN, PN_POOLING_LAST};
    for (size_t k = 0; k < sizeof embed_models / sizeof *embed_models; k++)
        for (size_t p = pn_test_quick() ? k % 2 : 0; p < 2; p += pn_test_quick() ? 2 : 1) {
            float first[EMBED_MAX], out[EMBED_MAX];
            for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
                bench b;
                if (!opens(&b, embed_models[k], ways[w].threads, ways[w].batch))
                    continue;
                embeds(&b, EMBED_TOKENS, poolings[p], 1, w ? out : first);
                PN_CHECK(w == 0 || memcmp(first, out, b.D * sizeof *out) == 0, "%s: %u threads, batch %u, pooling %d",
                         embed_models[k], (unsigned)ways[w].threads, (unsigned)ways[w].batch, (int)poolings[p]);
                bench_close(&b);
            }
        }
}

/* In the middle of another request's step, after other texts in the same session, and without harm to either. */
static void others_neither_disturb_nor_are_disturbed(void)
{
    bench b;
    pn_err err = {0};
    pn_session *other = NULL;
    pn_request *r = NULL;
    float alone[EMBED_MAX], beside[EMBED_MAX];
    int n_text = 0;
    uint32_t active = 1, V;
    pn_token plain[20];
    const pn_session_params sp = {.n_ctx = EMBED_CTX};
    if (!opens(&b, embed_models[0], 2, 32))
        return;
    V = pn_vocab_size(b.m);
    float *logits = malloc(V * sizeof *logits);
    PN_CHECK(pn_session_eval(b.s, b.t, 100, &err) == PN_OK);
    memcpy(logits, pn_session_logits(b.s), V * sizeof *logits);
    embeds(&b, 90, PN_POOLING_MEAN, 1, alone);      /* the 100 tokens are gone */
    PN_CHECK(pn_session_eval(b.s, b.t, 100, &err) == PN_OK);
    PN_CHECK(memcmp(logits, pn_session_logits(b.s), V * sizeof *logits) == 0, "a text after an embedding");
    PN_CHECK(pn_session_new(b.m, &sp, &other, &err) == PN_OK);
    const pn_generate_params gp = {.prompt = b.t, .n_prompt = 120, .max_tokens = 20, .on_text = other_text, .user = &n_text,
                                   .sampling = &(pn_sampling){.ignore_eos = 1}};
    for (int with = 0; with < 2; with++) {
        PN_CHECK(pn_session_truncate(other, 0, &err) == PN_OK && pn_request_new(other, &gp, &r, &err) == PN_OK, "%s", err.text);
        PN_CHECK(pn_session_embed(other, b.t, 3, PN_POOLING_MEAN, 0, beside, &err) == PN_E_STATE);
        for (active = 1; active;) {
            PN_CHECK(pn_engine_step(b.e, with ? 1e-6 : 0, &active, &err) == PN_OK, "%s", err.text);
            if (with && active && pn_session_length(other) < 140) {
                embeds(&b, 90, PN_POOLING_MEAN, 1, beside);
                PN_CHECK(memcmp(alone, beside, b.D * sizeof *alone) == 0);
            }
        }
        PN_CHECK(pn_session_length(other) >= 139, "%u", (unsigned)pn_session_length(other));
        if (with)
            PN_CHECK(memcmp(plain, pn_session_tokens(other) + 120, 19 * sizeof *plain) == 0, "a request beside embeddings");
        else
            memcpy(plain, pn_session_tokens(other) + 120, 19 * sizeof *plain);
        pn_request_free(r);
    }
    free(logits);
    pn_session_free(other);
    bench_close(&b);
}

/* ------------------------------------------------------------------------------------------
 * Refusals and memory
 * ------------------------------------------------------------------------------------------ */

static int stop_now(void *user, uint32_t done, uint32_t total)
{
    (void)done;
    (void)total;
    ++*(int *)user;
    return 1;
}

static void refusals_are_typed_and_leave_an_empty_session(void)
{
    bench b;
    pn_err err = {0};
    pn_token many[EMBED_CTX + 1] = {0}, bad[2] = {0, 0};
    float out[EMBED_MAX] = {42};
    int ticks = 0;
    if (!opens(&b, embed_models[0], 2, 16))
        return;
    bad[1] = (pn_token)pn_vocab_size(b.m);
    const struct { const pn_token *t; size_t n; pn_pooling p; float *out; pn_status want; const char *word; } cases[] = {
        {many, EMBED_CTX + 1, PN_POOLING_MEAN, out, PN_E_CONTEXT, "257"}, {bad, 2, PN_POOLING_MEAN, out, PN_E_INVALID, "vocabulary"},
        {many, 0, PN_POOLING_MEAN, out, PN_E_INVALID, "empty"}, {NULL, 2, PN_POOLING_MEAN, out, PN_E_INVALID, "tokens"},
        {many, 2, (pn_pooling)3, out, PN_E_INVALID, "pooling"}, {many, 2, PN_POOLING_LAST, NULL, PN_E_INVALID, "memory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        PN_CHECK(pn_session_eval(b.s, b.t, 3, &err) == PN_OK);
        pn_status st = pn_session_embed(b.s, cases[i].t, cases[i].n, cases[i].p, 1, cases[i].out, &err);
        PN_CHECK(st == cases[i].want && strstr(err.text, cases[i].word), "%zu: %s: %s", i, pn_status_name(st), err.text);
        PN_CHECK(pn_session_length(b.s) == 0 && !pn_session_logits(b.s) && out[0] == 42);
    }
    PN_CHECK(pn_session_embed(NULL, many, 1, PN_POOLING_MEAN, 1, out, &err) == PN_E_INVALID);
    pn_session_on_tick(b.s, stop_now, &ticks);
    pn_status st = PN_OK;
    for (int i = 0; i < 50 && !st; i++)     /* a fast machine may be done before the first tick */
        st = pn_session_embed(b.s, many, EMBED_CTX, PN_POOLING_MEAN, 1, out, &err);
    PN_CHECK(ticks == 0 || (st == PN_E_CANCELLED && pn_session_length(b.s) == 0), "%s", pn_status_name(st));
    pn_session_on_tick(b.s, NULL, NULL);
    PN_CHECK(pn_session_embed(b.s, many, EMBED_CTX, PN_POOLING_MEAN, 1, out, &err) == PN_OK, "%s", err.text);
    bench_close(&b);
}

/* What the plan says is what the first embedding takes, the second takes nothing, and a byte less is refused. */
static void memory_is_planned(void)
{
    for (size_t k = 0; k < sizeof embed_models / sizeof *embed_models; k++) {
        bench b;
        pn_err err = {0};
        pn_file *f = NULL;
        pn_mem_info before, first, second, plain;
        float out[EMBED_MAX];
        pn_plan_info p = {0};
        const pn_plan_params pp = {.n_ctx = EMBED_CTX, .n_batch = 128};
        if (!opens(&b, embed_models[k], 2, 128))
            continue;
        PN_CHECK(pn_file_open(b.e, embed_models[k], &f, &err) == PN_OK && pn_file_plan(f, &pp, &p, &err) == PN_OK);
        pn_file_close(f);
        pn_engine_memory(b.e, &before);
        embeds(&b, EMBED_TOKENS, PN_POOLING_MEAN, 1, out);
        pn_engine_memory(b.e, &first);
        embeds(&b, EMBED_TOKENS, PN_POOLING_LAST, 1, out);
        pn_engine_memory(b.e, &second);
        uint64_t took = first.used[PN_ACCT_SCRATCH] - before.used[PN_ACCT_SCRATCH];
        PN_CHECK(p.embed_bytes >= 128u * 4u * b.D && took <= p.embed_bytes && took + 64 >= p.embed_bytes,
                 "%s: planned %" PRIu64 ", took %" PRIu64, embed_models[k], p.embed_bytes, took);
        PN_CHECK(second.total_used == first.total_used);
        bench_close(&b);

        for (uint64_t more = p.embed_bytes - 1; more <= p.embed_bytes + 65536; more += 65537) {
            const pn_engine_params ep = {.n_threads = 2, .mem_limit = before.total_used + more};
            pn_status st = bench_open(&b, embed_models[k], &ep, 128, &err);
            if (st == PN_E_NOMEM) {         /* loading needs more for a while than it keeps */
                pn_test_skip("%s loads in no less than its embeddings need", embed_models[k]);
                bench_close(&b);
                break;
            }
            if (PN_CHECK(st == PN_OK, "%s", err.text)) {
                pn_engine_memory(b.e, &plain);
                st = pn_session_embed(b.s, b.t, 9, PN_POOLING_MEAN, 1, out, &err);
                if (more < p.embed_bytes)
                    PN_CHECK(strstr(err.text, "bytes") ? st == PN_E_BUDGET : st == PN_E_NOMEM && p.embed_bytes < 65536,
                             "%s %s", pn_status_name(st), err.text);      /* tiny models: the plan itself is more */
                else
                    PN_CHECK(st == PN_OK, "%s", err.text);
                PN_CHECK(pn_session_eval(b.s, b.t, 9, &err) == PN_OK, "%s", err.text);
            }
            bench_close(&b);
        }
    }
}

static void every_allocation_may_fail(void)
{
    api_heap probe = {0};
    pn_engine_params ep = {.n_threads = 2, .allocator = {api_heap_alloc, api_heap_free, &probe}};
    bench b;
    pn_err err = {0};
    float good[EMBED_MAX], out[EMBED_MAX];
    int n_failed = 0;
    const char *path = "tests/vectors/golden/arch/gemma3.gguf";
    PN_CHECK(bench_open(&b, path, &ep, 16, &err) == PN_OK, "%s", err.text);
    embeds(&b, 40, PN_POOLING_MEAN, 1, good);
    bench_close(&b);
    for (long k = 1; k < 200; k++) {
        api_heap h = {0};
        ep.allocator.user = &h;
        if (!PN_CHECK(bench_open(&b, path, &ep, 16, &err) == PN_OK, "%s", err.text))
            break;
        h.fail_at = h.calls + k;
        pn_status st = pn_session_embed(b.s, b.t, 40, PN_POOLING_MEAN, 1, out, &err);
        int ended = h.calls < h.fail_at;
        n_failed += st != PN_OK;
        PN_CHECK(st == PN_OK || (st == PN_E_NOMEM && pn_session_length(b.s) == 0), "%ld: %s", k, err.text);
        embeds(&b, 40, PN_POOLING_MEAN, 1, out);
        PN_CHECK(memcmp(good, out, b.D * sizeof *good) == 0);
        bench_close(&b);
        PN_CHECK(h.out == 0, "%ld: %ld blocks are left", k, h.out);
        if (ended)
            break;
    }
    PN_CHECK(n_failed > 10, "%d", n_failed);
}

/* A larger session takes the working memory that steps share; when that fails, the smaller one still has it. */
static void a_session_that_cannot_open_leaves_the_others_working(void)
{
    pn_err err = {0};
    int n_failed = 0;
    for (long k = 1; k < 300; k++) {
        api_heap h = {0};
        const pn_engine_params ep = {.n_threads = 2, .allocator = {api_heap_alloc, api_heap_free, &h}};
        const pn_session_params large = {.n_ctx = EMBED_CTX, .n_batch = 200};
        pn_session *s = NULL;
        bench b;
        if (!PN_CHECK(bench_open(&b, "tests/vectors/golden/arch/llama_gqa_tied.gguf", &ep, 4, &err) == PN_OK, "%s", err.text))
            break;
        h.fail_at = h.calls + k;
        pn_status st = pn_session_new(b.m, &large, &s, &err);
        int ended = h.calls < h.fail_at;
        n_failed += st != PN_OK;
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM, "%ld: %s", k, err.text);
        PN_CHECK(pn_session_eval(b.s, b.t, 20, &err) == PN_OK, "%ld: %s", k, err.text);
        pn_session_free(s);
        bench_close(&b);
        if (ended)
            break;
    }
    PN_CHECK(n_failed > 10, "%d", n_failed);
}

int main(void)
{
    static const struct { const char *name, *cap; } golden[] = {
        {"llama_gqa_tied", NULL}, {"llama_moe", NULL}, {"mistral3", NULL}, {"qwen2", NULL}, {"qwen3moe", NULL},
        {"phi3", NULL}, {"gemma2", "gemma2.final_logit_softcapping"}, {"gemma3", NULL},
    };
    size_t step = pn_test_quick() ? 3 : 1;         /* a tied head, one of its own, a cap */
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i += step)
        head_times_vector_is_the_reference_logit(golden[i].name, golden[i].cap);
    the_mean_is_the_average_of_every_prefixs_last();
    the_default_pooling_is_the_models();
    bits_do_not_depend_on_threads_or_batch();
    others_neither_disturb_nor_are_disturbed();
    refusals_are_typed_and_leave_an_empty_session();
    memory_is_planned();
    every_allocation_may_fail();
    a_session_that_cannot_open_leaves_the_others_working();
    return pn_test_end();
}
