/*
 * test_golden.c - logits of tiny models against a trusted implementation: every architecture, every
 * weight format, every instruction set of this machine; in one go, token by token, and greedily on.
 *
 * Cases in tests/vectors/golden always run; the full set runs where PANTHEON_GOLDEN points at it.
 */
#include "pantheon.h"
#include "pn_api_test.h"

typedef struct golden_case {
    char *json, path[700];
    pn_token *tokens;
    float *logits, *ideal;              /* [n, n_vocab]; ideal NULL for F32 models */
    long n, n_vocab, n_ctx, greedy_steps, n_greedy;
    pn_token *greedy;
    double max_abs, mean_kl, ideal_max_abs;
    int f32_kv;
} golden_case;

static float *golden_floats(const char *dir, const char *file, long n)
{
    char path[512];
    size_t len;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    char *raw = api_read_file(path, &len);
    if (raw && len != (size_t)n * 4) {
        free(raw);
        return NULL;
    }
    return (float *)(void *)raw;        /* little-endian hosts only, like the files */
}

static int golden_load(golden_case *c, const char *dir, const char *name)
{
    char path[512], file[256];
    memset(c, 0, sizeof *c);
    snprintf(path, sizeof path, "%s/%s.json", dir, name);
    c->json = api_read_file(path, NULL);
    if (!c->json || !api_json_str(c->json, "model", file, sizeof file))
        return 0;
    snprintf(c->path, sizeof c->path, "%s/%s", dir, file);
    c->tokens = api_json_ints(c->json, "tokens", &c->n);
    c->greedy = api_json_ints(c->json, "greedy", &c->n_greedy);
    c->n_vocab = (long)api_json_num(c->json, "n_vocab");
    c->n_ctx = (long)api_json_num(c->json, "n_ctx");
    c->greedy_steps = (long)api_json_num(c->json, "greedy_steps");
    const char *tol = strstr(c->json, "\"tolerance\"");
    c->max_abs = api_json_num(tol, "max_abs");
    c->mean_kl = strstr(tol, "\"mean_kl\"") ? api_json_num(tol, "mean_kl") : -1;
    c->ideal_max_abs = strstr(tol, "\"ideal_max_abs\"") ? api_json_num(tol, "ideal_max_abs") : -1;
    c->f32_kv = api_json_str(c->json, "kv_type", file, sizeof file) && strcmp(file, "f32") == 0;
    if (api_json_str(c->json, "logits", file, sizeof file))
        c->logits = golden_floats(dir, file, c->n * c->n_vocab);
    if (api_json_str(c->json, "ideal_logits", file, sizeof file))
        c->ideal = golden_floats(dir, file, c->n * c->n_vocab);
    return c->tokens && c->logits;
}

static void golden_free(golden_case *c)
{
    free(c->json);
    free(c->tokens);
    free(c->greedy);
    free(c->logits);
    free(c->ideal);
}

/* Mean KL(reference || ours) in nats, and the largest difference. */
static double golden_compare(const golden_case *c, const float *ref, const float *our, double *max_abs)
{
    double kl = 0;
    *max_abs = 0;
    for (long i = 0; i < c->n; i++) {
        const float *a = ref + i * c->n_vocab, *b = our + i * c->n_vocab;
        double ma = -1e30, mb = -1e30, sa = 0, sb = 0;
        for (long k = 0; k < c->n_vocab; k++) {
            if (!(fabs((double)b[k]) < 1e30))
                *max_abs = INFINITY;
            *max_abs = fmax(*max_abs, fabs((double)a[k] - (double)b[k]));
            ma = fmax(ma, a[k]);
            mb = fmax(mb, b[k]);
        }
        for (long k = 0; k < c->n_vocab; k++) {
            sa += exp(a[k] - ma);
            sb += exp(b[k] - mb);
        }
        double la = ma + log(sa), lb = mb + log(sb);
        for (long k = 0; k < c->n_vocab; k++)
            kl += exp(a[k] - la) * ((a[k] - la) - (b[k] - lb)) / (double)c->n;
    }
    return kl;
}

/* The argmax must be the reference's wherever its lead is larger than twice the tolerance. */
static long golden_flips(const golden_case *c, const float *our)
{
    long flips = 0;
    for (long i = 0; i < c->n; i++) {
        const float *a = c->logits + i * c->n_vocab;
        long best = api_argmax(a, c->n_vocab);
        float second = -INFINITY;
        for (long k = 0; k < c->n_vocab; k++)
            if (k != best && a[k] > second)
                second = a[k];
        flips += a[best] - second > 2 * c->max_abs && api_argmax(our + i * c->n_vocab, c->n_vocab) != best;
    }
    return flips;
}

static void golden_judge(const golden_case *c, const float *our, const char *how, int exact)
{
    double worst, kl = golden_compare(c, exact && c->ideal ? c->ideal : c->logits, our, &worst);
    if (exact && c->ideal)
        PN_CHECK(worst <= c->ideal_max_abs, "%s %s %s exact: |d| %g > %g", pn_cpu_isa(), c->path, how, worst, c->ideal_max_abs);
    else {
        PN_CHECK(worst <= c->max_abs, "%s %s %s: |d| %g > %g", pn_cpu_isa(), c->path, how, worst, c->max_abs);
        PN_CHECK(c->mean_kl < 0 || kl <= c->mean_kl, "%s %s %s: KL %g > %g", pn_cpu_isa(), c->path, how, kl, c->mean_kl);
        PN_CHECK(c->mean_kl >= 0 || golden_flips(c, our) == 0, "%s %s %s: argmax differs", pn_cpu_isa(), c->path, how);
    }
}

static void golden_run(pn_engine *e, const golden_case *c, int exact, size_t n_ways)
{
    pn_err err = {0};
    pn_model *m = NULL;
    const pn_model_params mp = {.exact = exact};
    if (!PN_CHECK(pn_model_load(e, c->path, &mp, &m, &err) == PN_OK, "%s", err.text))
        return;
    static const uint32_t batches[] = {512, 1};
    float *our = malloc((size_t)(c->n * c->n_vocab) * 4), *first = NULL;
    for (size_t b = 0; b < n_ways; b++) {
        pn_session *s = NULL;
        const pn_session_params sp = {.n_ctx = (uint32_t)c->n_ctx, .n_batch = batches[b], .has_kv_type = 1,
                                      .kv_type = exact || c->f32_kv ? PN_DTYPE_F32 : PN_DTYPE_F16};
        if (!PN_CHECK(pn_session_new(m, &sp, &s, &err) == PN_OK, "%s", err.text))
            break;
        if (PN_CHECK(pn_session_eval_all(s, c->tokens, (size_t)c->n, our, &err) == PN_OK, "%s: %s", c->path, err.text)) {
            golden_judge(c, our, b ? "token by token" : "at once", exact);
            if (b == 0 && !exact)
                for (long i = 0; i < c->greedy_steps && i < c->n_greedy && c->n + i < c->n_ctx; i++) {
                    pn_token t = (pn_token)api_argmax(pn_session_logits(s), c->n_vocab);
                    PN_CHECK(t == c->greedy[i], "%s %s: greedy token %ld is %d, expected %d", pn_cpu_isa(), c->path, i,
                             (int)t, (int)c->greedy[i]);
                    if (pn_session_eval(s, &t, 1, &err))
                        break;
                }
            if (b == 0) {
                first = our;
                our = malloc((size_t)(c->n * c->n_vocab) * 4);
            } else
                PN_CHECK(memcmp(first, our, (size_t)(c->n * c->n_vocab) * 4) == 0, "%s %s: bits depend on the batch",
                         pn_cpu_isa(), c->path);
        }
        pn_session_free(s);
    }
    free(our);
    free(first);
    pn_model_free(m);
}

/* best: the fastest instruction set; the others run the exact arithmetic in one way only. */
static void golden_all(pn_engine *e, const char *root, const char *const *names, int n, const char *dir, int best,
                       int quick)
{
    char where[400];
    snprintf(where, sizeof where, "%s/%s", root, dir);
    for (int i = 0; i < n; i++) {
        golden_case c;
        if (!golden_load(&c, where, names[i])) {
            pn_test_skip("%s/%s is not here", where, names[i]);
            golden_free(&c);
            continue;
        }
        golden_run(e, &c, 0, quick ? 1 : 2);
        if (c.ideal)
            golden_run(e, &c, 1, best && !quick ? 2 : 1);
        golden_free(&c);
    }
}

int main(void)
{
    static const char *const arch[] = {"llama_gqa_tied", "llama_rope_freqs", "llama_rope_linear", "llama_yarn", "llama_moe",
                                       "mistral3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "phi3", "phi3_longrope",
                                       "phi3_longrope_long", "gemma2", "gemma3"};
    static const char *const quant[] = {"f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4", "q2_k",
                                        "q5_k_m", "iq4_xs", "tq1_0", "tq2_0", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs",
                                        "iq2_s", "iq3_xxs", "iq3_s"};
    static const char *const more_arch[] = {"llama_gqa_tied_300"};
    static const char *const more_quant[] = {"q3_k_m", "q4_k_m", "q6_k"};
    const char *full = api_golden_dir();
    int quick = getenv("GOLDEN_QUICK") != NULL;     /* emulators: the best instruction set, in one way */
    for (size_t i = 0; pn_cpu_isa_at(i) && !(quick && i > 0); i++) {
        pn_engine *e = NULL;
        pn_err err = {0};
        PN_CHECK(pn_cpu_force(pn_cpu_isa_at(i), &err) == PN_OK, "%s", err.text);
        if (!PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK, "%s", err.text))
            continue;
        golden_all(e, "tests/vectors/golden", arch, (int)(sizeof arch / sizeof *arch), "arch", i == 0, quick);
        golden_all(e, "tests/vectors/golden", quant, (int)(sizeof quant / sizeof *quant), "quant", i == 0, quick);
        golden_all(e, full, more_arch, (int)(sizeof more_arch / sizeof *more_arch), "arch", i == 0, quick);
        golden_all(e, full, more_quant, (int)(sizeof more_quant / sizeof *more_quant), "quant", i == 0, quick);
        pn_engine_close(e);
    }
    return pn_test_end();
}
