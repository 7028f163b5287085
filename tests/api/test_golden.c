/*
 * test_golden.c - logits of tiny models against a trusted implementation: every architecture, every
 * weight format, every instruction set of this machine; in one go, token by token, and greedily on.
 *
 * Cases in tests/vectors/golden always run; the full set runs where PANTHEON_GOLDEN points at it.
 */
#include "golden_case.h"

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
                                       "phi3_longrope_long", "gemma2", "gemma3", "lfm2"};
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
