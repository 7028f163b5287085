/*
 * test_hf.c - models as published: Hugging Face folders through the public API, against what transformers computes.
 *
 *     llama_bf16     two shards, BF16, stretched rotary waves    qwen3_tied     norms on heads, tied
 *     phi3_f16       fused matrices, two rotary tables           mixtral_f32    experts that lie scattered
 *
 * Single misreadings - a permuted head, a wrong base, a swapped expert - move some logit by 1.9 and more.
 */
#define _XOPEN_SOURCE 700       /* getpid, mkdtemp */
#include "golden_case.h"

#include <unistd.h>

static const char hf_root[] = "tests/vectors/hf";
static const char *const hf_models[] = {"llama_bf16", "qwen3_tied", "phi3_f16", "mixtral_f32"};
enum { HF_MODELS = sizeof hf_models / sizeof *hf_models };

typedef struct hf_way {
    const char *what;
    uint32_t threads, batch;
    pn_model_params p;
    const char *sim;            /* dies, or NULL */
} hf_way;

/* Logits of the whole prompt, malloc'd; and greedy tokens, when wanted. */
static float *hf_logits(const golden_case *c, const char *path, const hf_way *w, pn_token *greedy, long n_greedy)
{
    pn_engine *e = NULL;
    pn_model *m = NULL;
    pn_session *s = NULL;
    pn_err err = {0};
    float *out = malloc((size_t)(c->n * c->n_vocab) * sizeof *out);
    const pn_session_params sp = {.n_ctx = (uint32_t)c->n_ctx, .n_batch = w->batch, .has_kv_type = 1, .kv_type = PN_DTYPE_F32};
    int ok = PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.n_threads = w->threads, .sim_dies = w->sim}, &err) == PN_OK, "%s", err.text) &&
             PN_CHECK(pn_model_load(e, path, &w->p, &m, &err) == PN_OK, "%s: %s", w->what, err.text) &&
             PN_CHECK(pn_session_new(m, &sp, &s, &err) == PN_OK, "%s", err.text) &&
             PN_CHECK(pn_session_eval_all(s, c->tokens, (size_t)c->n, out, &err) == PN_OK, "%s: %s", w->what, err.text);
    for (long i = 0; i < n_greedy && ok; i++) {
        greedy[i] = (pn_token)api_argmax(pn_session_logits(s), c->n_vocab);
        ok = PN_CHECK(pn_session_eval(s, &greedy[i], 1, &err) == PN_OK, "%s", err.text);
    }
    pn_session_free(s);
    pn_model_free(m);
    pn_engine_close(e);
    return out;
}

static void logits_are_the_references(const golden_case *c, const char *name)
{
    for (size_t i = 0; pn_cpu_isa_at(i); i++)
        for (int exact = 0; exact < 2; exact++)
            for (int step = 0; step < 2; step++) {
                const hf_way w = {.what = step ? "token by token" : "at once", .threads = 1, .batch = step ? 1 : 512, .p = {.exact = exact}};
                pn_token greedy[64];
                long n = c->greedy_steps < 64 ? c->greedy_steps : 64;
                double worst;
                pn_err err = {0};
                PN_CHECK(pn_cpu_force(pn_cpu_isa_at(i), &err) == PN_OK, "%s", err.text);
                float *our = hf_logits(c, c->path, &w, greedy, n);
                golden_compare(c, c->logits, our, &worst);
                PN_CHECK(worst <= c->max_abs, "%s %s %s exact %d: |d| %g > %g", pn_cpu_isa(), name, w.what, exact, worst, c->max_abs);
                PN_CHECK(golden_flips(c, our) == 0, "%s %s: argmax differs", pn_cpu_isa(), name);
                for (long k = 0; k < n && k < c->n_greedy; k++)
                    PN_CHECK(greedy[k] == c->greedy[k], "%s %s: greedy token %ld is %d, expected %d", pn_cpu_isa(), name, k, (int)greedy[k], (int)c->greedy[k]);
                if (!step)
                    printf("%-12s %-12s %s: |d| %.2g of %.2g\n", name, pn_cpu_isa(), exact ? "exact" : "usual", worst, c->max_abs);
                free(our);
            }
    pn_cpu_force(pn_cpu_isa_at(0), NULL);
}

static void bits_are_the_same_wherever_weights_are(const golden_case *c, const char *name)
{
    static const uint32_t both[] = {0, 1};
    const hf_way ways[] = {
        {"mapped", 1, 512, {.residency = PN_RESIDENCY_MAP}, NULL},
        {"mapped, token by token, two threads", 2, 1, {.residency = PN_RESIDENCY_MAP}, NULL},
        {"mapped, five rows a lease", 2, 512, {.residency = PN_RESIDENCY_MAP, .lease_rows = 5}, NULL},
        {"in memory", 2, 512, {.residency = PN_RESIDENCY_ANON}, NULL},
        {"split over two dies", 1, 512, {.dies = both, .n_dies = 2}, "2;bytes=16M"},
        {"streamed", 1, 512, {.residency = PN_RESIDENCY_STREAM}, NULL},
        {"streamed, small blocks, two threads", 2, 7, {.residency = PN_RESIDENCY_STREAM, .stream_block = 8192, .stream_depth = 2}, NULL},
        {"streamed, some pinned", 2, 1, {.residency = PN_RESIDENCY_STREAM, .stream_block = 8192, .stream_depth = 1, .pin_bytes = 100000}, NULL},
    };
    size_t bytes = (size_t)(c->n * c->n_vocab) * sizeof(float);
    float *want = hf_logits(c, c->path, &ways[0], NULL, 0);
    for (size_t i = 1; i < sizeof ways / sizeof *ways; i++) {
        float *got = hf_logits(c, c->path, &ways[i], NULL, 0);
        PN_CHECK(memcmp(want, got, bytes) == 0, "%s, %s: other bits", name, ways[i].what);
        free(got);
    }
    free(want);
}

static const char *const hf_files[] = {"model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"};

/* The same folder with other words in its config.json, no longer than those that are there; in dir, a template. */
static int hf_reworded(const golden_case *c, char *dir, const char *words, const char *others)
{
    char from[1024], to[1024];
    snprintf(from, sizeof from, "%s/config.json", c->path);
    char *config = api_read_file(from, NULL), *at = config ? strstr(config, words) : NULL, *here = realpath(c->path, NULL);
    if (!PN_CHECK(at && here && mkdtemp(dir)))
        return 0;
    memset(at, ' ', strlen(words));
    memcpy(at, others, strlen(others));
    for (size_t i = 0; i < 3; i++) {
        snprintf(from, sizeof from, "%s/%s", here, hf_files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, hf_files[i]);
        PN_CHECK(symlink(from, to) == 0);
    }
    snprintf(to, sizeof to, "%s/config.json", dir);
    FILE *f = fopen(to, "wb");
    if (PN_CHECK(f && fwrite(config, strlen(config), 1, f) == 1))
        fclose(f);
    free(config);
    free(here);
    return 1;
}

static void hf_remove(const char *dir)
{
    char path[1024];
    for (size_t i = 0; i < sizeof hf_files / sizeof *hf_files; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, hf_files[i]);
        unlink(path);
    }
    PN_CHECK(rmdir(dir) == 0);
}

static void windows_hide_what_is_far(const golden_case *c)
{
    enum { W = 16 };
    const hf_way w = {.what = "window", .threads = 1, .batch = 512}, s = {.what = "window, token by token", .threads = 1, .batch = 1};
    char dir[] = "/tmp/pn_hf_XXXXXX";
    size_t row = (size_t)c->n_vocab * sizeof(float), bytes = (size_t)c->n * row;
    if (!hf_reworded(c, dir, "\"sliding_window\": null", "\"sliding_window\": 16"))
        return;
    float *all = hf_logits(c, c->path, &w, NULL, 0), *some = hf_logits(c, dir, &w, NULL, 0), *step = hf_logits(c, dir, &s, NULL, 0);
    PN_CHECK(memcmp(all, some, W * row) == 0 && memcmp((char *)all + W * row, (char *)some + W * row, row) != 0);
    PN_CHECK(memcmp(some, step, bytes) == 0);
    free(all);
    free(some);
    free(step);
    hf_remove(dir);
}

static void a_context_beyond_what_is_known_is_refused(const golden_case *c)
{
    char dir[] = "/tmp/pn_hf_XXXXXX";
    pn_engine *e = NULL;
    pn_model *m = NULL;
    pn_session *s = NULL;
    pn_err err = {0};
    if (!hf_reworded(c, dir, "\"rope_type\": \"default\"", "\"rope_type\": \"dynamic\""))
        return;
    if (PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK && pn_model_load(e, dir, NULL, &m, &err) == PN_OK, "%s", err.text)) {
        PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = 513}, &s, &err) == PN_E_UNSUPPORTED && strstr(err.text, "513") && strstr(err.text, "512"), "%s", err.text);
        PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = 512}, &s, &err) == PN_OK, "%s", err.text);
    }
    pn_session_free(s);
    pn_model_free(m);
    pn_engine_close(e);
    hf_remove(dir);
}

/* --- what is around the weights ------------------------------------------------------------------- */

/* The next object of an array of the fixture, copied; *at goes on behind it.  NULL: there are no more. */
static char *hf_next(const char **at)
{
    const char *p = *at;
    while (*p && *p != '{' && *p != ']')
        p++;
    if (*p != '{')
        return NULL;
    int depth = 0, text = 0;
    const char *from = p;
    do {
        if (*p == '"')
            text = !text;
        else if (text && *p == '\\')
            p++;
        else if (!text)
            depth += *p == '{' ? 1 : *p == '}' ? -1 : 0;
        p++;
    } while (depth && *p);
    char *out = malloc((size_t)(p - from) + 1);
    memcpy(out, from, (size_t)(p - from));
    out[p - from] = 0;
    *at = p;
    return out;
}

static void text_becomes_the_references_tokens(const golden_case *c, const pn_model *m)
{
    static const struct { const char *key; unsigned flags; } ways[] = {
        {"special", PN_TOKENIZE_SPECIAL}, {"bos_special", PN_TOKENIZE_SPECIAL | PN_TOKENIZE_BOS}};
    const char *at = api_json_find(c->json, "tokenize");
    for (char *one; (one = hf_next(&at)) != NULL; free(one)) {
        char text[4096];
        if (strstr(one, "\\u0000") || !api_json_str(one, "text", text, sizeof text))
            continue;
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            long n_want = 0;
            size_t n = 0;
            pn_err err = {0};
            pn_token got[4096];
            pn_token *want = api_json_ints(one, ways[k].key, &n_want);
            PN_CHECK(pn_tokenize(m, text, strlen(text), ways[k].flags, got, 4096, &n, &err) == PN_OK, "%s", err.text);
            PN_CHECK(want && n == (size_t)n_want && memcmp(got, want, n * sizeof *got) == 0, "%s: %zu tokens of %s, expected %ld", c->path, n, one, n_want);
            free(want);
        }
    }
}

static void chats_are_written_by_the_folders_template(const golden_case *c, const pn_model *m)
{
    const char *at = api_json_find(c->json, "chat");
    pn_template *t = NULL;
    pn_err err = {0};
    int n = 0;
    if (!PN_CHECK(pn_template_open_model(m, &t, &err) == PN_OK, "%s: %s", c->path, err.text))
        return;
    for (char *one; (one = hf_next(&at)) != NULL; free(one), n++) {
        char want[4096];
        pn_rendered *r = NULL;
        if (PN_CHECK(api_json_str(one, "text", want, sizeof want)) &&
            PN_CHECK(pn_template_render_json(t, one, strlen(one), PN_RENDER_RAW, &r, &err) == PN_OK, "%s: %s", c->path, err.text))
            PN_CHECK(strcmp(pn_rendered_text(r, NULL), want) == 0, "%s: %s, expected %s", c->path, pn_rendered_text(r, NULL), want);
        pn_rendered_free(r);
    }
    PN_CHECK(n > 0);
    pn_template_close(t);
}

static void answers_end_where_the_folder_says(const golden_case *c, const pn_model *m)
{
    long n = 0;
    int32_t *ends = api_json_ints(c->json, "end_tokens", &n);
    PN_CHECK(n > 0);
    for (long i = 0; i < n; i++)
        PN_CHECK(pn_token_ends(m, ends[i]), "%s: %d", c->path, (int)ends[i]);
    PN_CHECK(!pn_token_ends(m, 5));
    free(ends);
}

static void the_sampler_is_the_folders(const pn_model *m, const char *name)
{
    static const struct { const char *name; float temperature; int top_k; float top_p; } rows[] = {
        {"llama_bf16", 0.6f, 40, 0.9f}, {"qwen3_tied", 0.6f, 20, 0.95f}, {"phi3_f16", 0.8f, 40, 0.95f}};
    pn_sampling s;
    pn_sampling_default(m, &s);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        PN_CHECK(strcmp(rows[i].name, name) || (s.temperature == rows[i].temperature && s.top_k == rows[i].top_k && s.top_p == rows[i].top_p), "%s: %g %d %g", name,
                 (double)s.temperature, (int)s.top_k, (double)s.top_p);
}

/* The header alone: what it says, what it would need; and models made from it, or from one of its files. */
static void a_folder_is_a_file(const golden_case *c, pn_engine *e, const char *name)
{
    pn_err err = {0};
    pn_file *f = NULL;
    pn_model *m = NULL;
    pn_plan_info p;
    pn_model_info info;
    double v = 0;
    const char *arch = NULL;
    size_t len = 0;
    if (!PN_CHECK(pn_file_open(e, c->path, &f, &err) == PN_OK, "%s", err.text))
        return;
    PN_CHECK(pn_file_meta_string(f, "general.name", 0, &arch, &len) == PN_OK && len == strlen(name) && memcmp(arch, name, len) == 0);
    PN_CHECK(pn_file_meta_string(f, "general.architecture", 0, &arch, &len) == PN_OK);
    char key[64];
    snprintf(key, sizeof key, "%.*s.vocab_size", (int)len, arch);
    PN_CHECK(pn_file_meta_number(f, key, 0, &v) == PN_OK && v == (double)c->n_vocab, "%s %g", key, v);
    PN_CHECK(pn_file_plan(f, &(pn_plan_params){.n_ctx = 64}, &p, &err) == PN_OK && p.n_vocab == (uint32_t)c->n_vocab && p.vocab_bytes > 0, "%s", err.text);
    uint64_t mapped = p.weight_bytes;
    PN_CHECK(pn_file_plan(f, &(pn_plan_params){.n_ctx = 64, .residency = PN_RESIDENCY_STREAM, .stream_block = 8192}, &p, &err) == PN_OK && p.stage_bytes > 0 &&
             (p.expert_bytes > 0) == (strcmp(name, "mixtral_f32") == 0), "%s", err.text);
    if (PN_CHECK(pn_model_load_file(f, NULL, &m, &err) == PN_OK, "%s", err.text)) {
        pn_model_describe(m, &info);
        PN_CHECK(info.weight_bytes == mapped && info.n_vocab == (uint32_t)c->n_vocab && info.has_chat_template && strcmp(info.name, name) == 0);
        PN_CHECK(strcmp(info.type, strstr(name, "bf16") ? "BF16" : strstr(name, "f16") ? "F16" : "F32") == 0, "%s", info.type);
    }
    pn_model_free(m);
    pn_file_close(f);
}

static void one_file_brings_its_folder(const golden_case *c)
{
    char path[800];
    const hf_way w = {.what = "one file", .threads = 1, .batch = 512};
    snprintf(path, sizeof path, "%s/%s", c->path, strstr(c->path, "llama") ? "model-00002-of-00002.safetensors" : "model.safetensors");
    float *a = hf_logits(c, c->path, &w, NULL, 0), *b = hf_logits(c, path, &w, NULL, 0);
    PN_CHECK(memcmp(a, b, (size_t)(c->n * c->n_vocab) * sizeof *a) == 0);
    free(a);
    free(b);
}

/* --- one model, many containers ------------------------------------------------------------------- */

enum { WEIGHTS_MAX = 1 << 20 };

/* A whole file, malloc'd; empty when there is none. */
static char *hf_bytes(const char *path, size_t *n)
{
    char *bytes = malloc(WEIGHTS_MAX);
    FILE *f = fopen(path, "rb");
    *n = f ? fread(bytes, 1, WEIGHTS_MAX, f) : 0;
    if (f)
        fclose(f);
    return bytes;
}

static int hf_same_bytes(const char *a, const char *b)
{
    size_t n, m;
    char *x = hf_bytes(a, &n), *y = hf_bytes(b, &m);
    int same = n && n == m && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

static void hf_copy(const char *from, const char *to)
{
    size_t n;
    char *bytes = hf_bytes(from, &n);
    FILE *f = fopen(to, "wb");
    if (PN_CHECK(f && n, "%s to %s", from, to))
        PN_CHECK(fwrite(bytes, 1, n, f) == n);
    if (f)
        fclose(f);
    free(bytes);
}

/* Same bits of the weights, same bits of the logits: as they are stored, and as F32.  Where a GGUF file permutes the rows of q and k
 * (general.architecture is llama) sums over a head have another order. */
static void containers_give_the_same_bits(const golden_case *c, pn_engine *e, const char *name)
{
    const char *presets[] = {"F32", strstr(name, "bf16") ? "BF16" : strstr(name, "f16") ? "F16" : "F32"};
    size_t bytes = (size_t)(c->n * c->n_vocab) * sizeof(float);
    const hf_way w = {.what = "as a container", .threads = 1, .batch = 512};
    int permuted = strncmp(name, "llama", 5) == 0 || strncmp(name, "mixtral", 7) == 0;
    char path[2][100];
    float *got[2], *want = hf_logits(c, c->path, &w, NULL, 0);
    pn_err err = {0};
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "/tmp/pn_hf_%ld_%d.gguf", (long)getpid(), i);
        PN_CHECK(pn_quantize(e, c->path, path[i], &(pn_quantize_params){.preset = presets[i]}, &err) == PN_OK, "%s", err.text);
        got[i] = hf_logits(c, path[i], &w, NULL, 0);
        PN_CHECK((memcmp(got[i], want, bytes) == 0) == !permuted, "%s as %s", name, presets[i]);
    }
    PN_CHECK(memcmp(got[0], got[1], bytes) == 0, "%s as %s and as F32", name, presets[1]);
    free(got[0]);
    free(got[1]);
    free(want);
    /* Quantised at once or by way of F32. */
    static const char *const types[] = {"Q8_0", "Q4_K_M"};
    for (int i = 0; i < 2; i++) {
        char via[120];
        snprintf(via, sizeof via, "%s.via", path[1]);
        PN_CHECK(pn_quantize(e, c->path, path[1], &(pn_quantize_params){.preset = types[i]}, &err) == PN_OK, "%s", err.text);
        PN_CHECK(pn_quantize(e, path[0], via, &(pn_quantize_params){.preset = types[i]}, &err) == PN_OK, "%s", err.text);
        PN_CHECK(hf_same_bytes(path[1], via), "%s as %s: other bytes by way of F32", name, types[i]);
        remove(via);
    }
    remove(path[0]);
    remove(path[1]);
}

/* A .pth of any name with the rest of its folder, in both forms of torch; the tied head it repeats is the embedding. */
static void a_pth_is_the_model_it_was_saved_from(const golden_case *c, pn_engine *e)
{
    static const char *const rest[] = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"};
    static const char *const forms[] = {"qwen3_tied", "qwen3_tied_legacy"};
    const hf_way ways[] = {{"a .pth", 1, 512, {.residency = PN_RESIDENCY_MAP}, NULL}, {"a .pth in memory", 2, 7, {.residency = PN_RESIDENCY_ANON}, NULL},
                           {"a .pth, streamed", 1, 512, {.residency = PN_RESIDENCY_STREAM, .stream_block = 8192, .stream_depth = 2}, NULL}};
    float *want = hf_logits(c, c->path, &ways[0], NULL, 0);
    char dir[] = "/tmp/pn_hf_XXXXXX", from[800], to[200], path[200];
    if (!PN_CHECK(mkdtemp(dir) != NULL))
        return;
    snprintf(path, sizeof path, "%s/what I trained.pth", dir);
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        snprintf(from, sizeof from, "%s/%s", c->path, rest[i]);
        snprintf(to, sizeof to, "%s/%s", dir, rest[i]);
        hf_copy(from, to);
    }
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        pn_file *f = NULL;
        pn_plan_info p;
        pn_err err = {0};
        snprintf(from, sizeof from, "%s/pth/%s.pth", hf_root, forms[i]);
        hf_copy(from, path);
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            float *got = hf_logits(c, path, &ways[k], NULL, 0);
            PN_CHECK(memcmp(got, want, (size_t)(c->n * c->n_vocab) * sizeof *want) == 0, "%s, %s: other bits", forms[i], ways[k].what);
            free(got);
        }
        PN_CHECK(pn_file_open(e, path, &f, &err) == PN_OK && pn_file_plan(f, NULL, &p, &err) == PN_OK && p.n_params == 77168, "%s %d", err.text,
                 f ? (int)p.n_params : 0);
        pn_file_close(f);
    }
    free(want);
    remove(path);
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        snprintf(to, sizeof to, "%s/%s", dir, rest[i]);
        remove(to);
    }
    remove(dir);
}

/* As a converter would write it: rows of q and k are permuted where the family has them so. */
static void a_folder_becomes_a_file(const golden_case *c, pn_engine *e, const char *name)
{
    char path[100];
    pn_err err = {0};
    pn_file *f = NULL;
    const char *text = NULL;
    size_t len;
    double worst;
    const hf_way w = {.what = "quantize", .threads = 1, .batch = 512};
    snprintf(path, sizeof path, "/tmp/pn_hf_%ld.gguf", (long)getpid());
    if (PN_CHECK(pn_quantize(e, c->path, path, &(pn_quantize_params){.preset = "F32"}, &err) == PN_OK, "%s", err.text)) {
        float *our = hf_logits(c, path, &w, NULL, 0);
        golden_compare(c, c->logits, our, &worst);
        PN_CHECK(worst <= c->max_abs, "%s as a file: |d| %g > %g", name, worst, c->max_abs);
        PN_CHECK(pn_file_open(e, path, &f, &err) == PN_OK && pn_file_meta_string(f, "tokenizer.ggml.model", 0, &text, &len) == PN_OK &&
                 pn_file_meta_string(f, "tokenizer.chat_template", 0, &text, &len) == PN_OK &&
                 pn_file_meta_string(f, "llama.rope.pairing", 0, &text, &len) != PN_OK, "%s %s", name, err.text);
        for (size_t i = 0; i < pn_file_tensor_count(f); i++) {      /* others refuse vectors of 16 bits */
            pn_tensor_info t;
            PN_CHECK(pn_file_tensor_at(f, i, &t) == PN_OK && t.dtype == PN_DTYPE_F32, "%s: '%s' is not f32", name, t.name);
        }
        pn_file_close(f);
        free(our);
    }
    remove(path);
}

static void a_vocabulary_alone(const golden_case *c, pn_engine *e)
{
    pn_model *m = NULL;
    pn_err err = {0};
    PN_CHECK(pn_model_load(e, c->path, &(pn_model_params){.vocab_only = 1}, &m, &err) == PN_OK && pn_vocab_size(m) == (uint32_t)c->n_vocab, "%s", err.text);
    pn_model_free(m);
}

static void what_is_around_the_weights(const golden_case *c, const char *name)
{
    pn_engine *e = NULL;
    pn_model *m = NULL;
    pn_err err = {0};
    if (PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK, "%s", err.text) && PN_CHECK(pn_model_load(e, c->path, NULL, &m, &err) == PN_OK, "%s", err.text)) {
        text_becomes_the_references_tokens(c, m);
        chats_are_written_by_the_folders_template(c, m);
        answers_end_where_the_folder_says(c, m);
        the_sampler_is_the_folders(m, name);
        a_folder_is_a_file(c, e, name);
        a_vocabulary_alone(c, e);
        a_folder_becomes_a_file(c, e, name);
        containers_give_the_same_bits(c, e, name);
        if (strcmp(name, "qwen3_tied") == 0)
            a_pth_is_the_model_it_was_saved_from(c, e);
    }
    pn_model_free(m);
    pn_engine_close(e);
}

static void what_is_no_model_is_refused(void)
{
    static const char *const paths[] = {"tests/vectors/hf/st", "tests/vectors/hf/st/odd.safetensors", "tests/vectors/hf/hostile/index_missing"};
    pn_engine *e = NULL;
    pn_err err = {0};
    PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK, "%s", err.text);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        pn_model *m = NULL;
        PN_CHECK(pn_model_load(e, paths[i], NULL, &m, &err) == PN_E_FORMAT && strstr(err.text, "config.json") && strstr(err.text, paths[i]), "%s", err.text);
    }
    pn_engine_close(e);
}

/* Tensors alone can be looked at, not loaded. */
static void tensors_alone_can_be_looked_at(void)
{
    static const struct { const char *path, *name, *type; size_t n; uint32_t dtype; uint64_t ne[4]; } rows[] = {
        {"tests/vectors/hf/st/odd.safetensors", "f8", "F8_E4M3", 7, PN_DTYPE_COUNT, {1, 2, 1, 1}},
        {"tests/vectors/hf/pth/odd.pth", "transposed", "F32", 90, PN_DTYPE_F32, {4, 6, 1, 1}},
        {"tests/vectors/hf/pth/odd.pth", "bool", "BOOL", 90, PN_DTYPE_COUNT, {2, 1, 1, 1}},
        {"tests/vectors/hf/pth/qwen3_tied_legacy.pth", "lm_head.weight", "F32", 25, PN_DTYPE_F32, {48, 304, 1, 1}}};
    pn_engine *e = NULL;
    pn_err err = {0};
    PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK, "%s", err.text);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pn_file *f = NULL;
        pn_model *m = NULL;
        pn_tensor_info t;
        pn_plan_info p;
        int seen = 0;
        if (!PN_CHECK(pn_file_open(e, rows[i].path, &f, &err) == PN_OK, "%s", err.text))
            continue;
        PN_CHECK(pn_file_tensor_count(f) == rows[i].n && pn_file_meta_count(f) == 0, "%zu", pn_file_tensor_count(f));
        for (size_t k = 0; k < pn_file_tensor_count(f); k++)
            if (pn_file_tensor_at(f, k, &t) == PN_OK && strcmp(t.name, rows[i].name) == 0)
                seen += PN_CHECK(strcmp(t.type, rows[i].type) == 0 && (uint32_t)t.dtype == rows[i].dtype && memcmp(t.ne, rows[i].ne, sizeof t.ne) == 0 &&
                                 t.part == 1 && t.offset > 0, "%s %s %d", t.name, t.type, (int)t.ne[0]);
        PN_CHECK(seen == 1, "%s %s", rows[i].path, rows[i].name);
        PN_CHECK(pn_file_plan(f, NULL, &p, &err) == PN_E_FORMAT && strstr(err.text, "config.json") && strstr(err.text, rows[i].path), "%s", err.text);
        PN_CHECK(pn_model_load_file(f, NULL, &m, &err) == PN_E_FORMAT && strstr(err.text, "config.json"), "%s", err.text);
        pn_file_close(f);
    }
    pn_engine_close(e);
}

int main(void)
{
    tensors_alone_can_be_looked_at();
    what_is_no_model_is_refused();
    for (int i = 0; i < HF_MODELS; i++) {
        golden_case c;
        if (PN_CHECK(golden_load(&c, hf_root, hf_models[i]), "%s", hf_models[i])) {
            logits_are_the_references(&c, hf_models[i]);
            bits_are_the_same_wherever_weights_are(&c, hf_models[i]);
            what_is_around_the_weights(&c, hf_models[i]);
            one_file_brings_its_folder(&c);
            if (i == 1)
                a_context_beyond_what_is_known_is_refused(&c);
            if (i == 3)
                windows_hide_what_is_far(&c);
        }
        golden_free(&c);
    }
    return pn_test_end();
}
