/*
 * test_real.c - real weights: the demo model of this repository always, SmolLM2 where it is at hand
 * (PANTHEON_MODELS, default ../shared/models).
 *
 * In exact arithmetic the prompt's ids, the last logits and the certain part of a greedy continuation
 * must be the reference's; in normal arithmetic our own logits may differ from our exact ones by a
 * mean KL that the fixture states.
 */
#include "pantheon.h"
#include "pn_api_test.h"

static float *real_eval_all(pn_model *m, pn_dtype kv, const pn_token *t, size_t n)
{
    pn_err err = {0};
    pn_session *s = NULL;
    float *out = malloc(n * pn_vocab_size(m) * sizeof *out);
    const pn_session_params sp = {.n_ctx = 256, .kv_type = kv, .has_kv_type = 1};
    PN_CHECK(pn_session_new(m, &sp, &s, &err) == PN_OK, "%s", err.text);
    PN_CHECK(s && pn_session_eval_all(s, t, n, out, &err) == PN_OK, "%s", err.text);
    pn_session_free(s);
    return out;
}

static double real_mean_kl(const float *p, const float *q, size_t n, size_t V)
{
    double kl = 0;
    for (size_t i = 0; i < n; i++, p += V, q += V) {
        double mp = -1e30, mq = -1e30, sp = 0, sq = 0, d = 0;
        for (size_t k = 0; k < V; k++) {
            mp = fmax(mp, p[k]);
            mq = fmax(mq, q[k]);
        }
        for (size_t k = 0; k < V; k++) {
            sp += exp(p[k] - mp);
            sq += exp(q[k] - mq);
        }
        double lp = mp + log(sp), lq = mq + log(sq);
        for (size_t k = 0; k < V; k++)
            d += exp(p[k] - lp) * ((p[k] - lp) - (q[k] - lq));
        kl += d / (double)n;
    }
    return kl;
}

static void real_greedy(pn_model *exact, const pn_token *t, size_t n, const pn_token *want, long n_want, const float *ref,
                        double max_abs, const char *name)
{
    pn_err err = {0};
    pn_session *s = NULL;
    long V = (long)pn_vocab_size(exact);
    double worst = 0;
    PN_CHECK(pn_session_new(exact, &(pn_session_params){.n_ctx = 256}, &s, &err) == PN_OK, "%s", err.text);
    if (!s || !PN_CHECK(pn_session_eval(s, t, n, &err) == PN_OK, "%s", err.text))
        return;
    for (long k = 0; k < V; k++)
        worst = fmax(worst, fabs((double)pn_session_logits(s)[k] - (double)ref[k]));
    PN_CHECK(worst <= max_abs, "%s: last logits differ by %g > %g", name, worst, max_abs);
    for (long i = 0; i < n_want; i++) {
        pn_token best = (pn_token)api_argmax(pn_session_logits(s), V);
        if (!PN_CHECK(best == want[i], "%s: greedy token %ld is %d, expected %d", name, i, (int)best, (int)want[i]))
            break;
        if (pn_session_eval(s, &best, 1, &err))
            break;
    }
    pn_session_free(s);
}

static void real_case(pn_model *exact, pn_model *normal, const char *json, const float *ref)
{
    char name[64] = "", text[4096];
    pn_token ids[512];
    size_t n = 0, V = pn_vocab_size(exact);
    long n_want = 0, n_greedy = 0;
    pn_err err = {0};
    api_json_str(json, "name", name, sizeof name);
    api_json_str(json, "text", text, sizeof text);
    pn_token *want = api_json_ints(json, "tokens", &n_want), *greedy = api_json_ints(json, "greedy", &n_greedy);
    long must = (long)api_json_num(json, "must_match");
    PN_CHECK(pn_tokenize(exact, text, strlen(text), PN_TOKENIZE_SPECIAL, ids, 512, &n, &err) == PN_OK, "%s", err.text);
    PN_CHECK(n == (size_t)n_want && memcmp(ids, want, n * sizeof *ids) == 0, "%s: other token ids", name);
    real_greedy(exact, want, (size_t)n_want, greedy, must < n_greedy ? must : n_greedy, ref, api_json_num(json, "max_abs"),
                name);
    float *a = real_eval_all(exact, PN_DTYPE_F32, want, (size_t)n_want);
    float *b = real_eval_all(normal, PN_DTYPE_F16, want, (size_t)n_want);
    double kl = real_mean_kl(a, b, (size_t)n_want, V), limit = api_json_num(json, "mean_kl");
    PN_CHECK(kl <= limit, "%s: exact and normal logits differ by a mean KL of %g > %g", name, kl, limit);
    free(a);
    free(b);
    free(want);
    free(greedy);
}

static void real_model(const char *path, const char *dir, const char *name)
{
    char file[600];
    size_t len;
    pn_engine *e = NULL;
    pn_model *exact = NULL, *normal = NULL;
    pn_err err = {0};
    FILE *there = fopen(path, "rb");
    if (!there) {
        pn_test_skip("%s is not here", path);
        return;
    }
    fclose(there);
    snprintf(file, sizeof file, "%s/%s.json", dir, name);
    char *json = api_read_file(file, NULL);
    snprintf(file, sizeof file, "%s/%s.last.f32", dir, name);
    float *ref = (float *)(void *)api_read_file(file, &len);
    if (!json || !ref) {
        pn_test_skip("%s is not here", file);
        return;
    }
    PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_model_load(e, path, &(pn_model_params){.exact = 1}, &exact, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_model_load(e, path, NULL, &normal, &err) == PN_OK, "%s", err.text);
    if (exact && normal) {
        size_t V = pn_vocab_size(exact), i = 0;
        for (const char *c = strstr(json, "\"name\":"); c; c = strstr(c + 7, "\"name\":"), i++)
            if (PN_CHECK((i + 1) * V * sizeof(float) <= len, "%s has only %zu cases", file, i))
                real_case(exact, normal, c, ref + i * V);
        PN_CHECK(i > 0, "no cases in the fixture of %s", name);
    }
    pn_model_free(exact);
    pn_model_free(normal);
    pn_engine_close(e);
    free(json);
    free(ref);
}

int main(void)
{
    char path[600], dir[600];
    const char *models = getenv("PANTHEON_MODELS");
    real_model("models/demo.gguf", "tests/vectors/golden/real", "demo");
    snprintf(path, sizeof path, "%s/SmolLM2-135M-Instruct.Q4_1.gguf", models ? models : "../shared/models");
    snprintf(dir, sizeof dir, "%s/real", api_golden_dir());
    real_model(path, dir, "smollm2");
    return pn_test_end();
}
