/*
 * golden_case.h - one case of the golden models: tokens, the reference's logits, limits; and how far ours are off.
 */
#ifndef GOLDEN_CASE_H
#define GOLDEN_CASE_H

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

static inline float *golden_floats(const char *dir, const char *file, long n)
{
    char path[800];
    size_t len;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    char *raw = api_read_file(path, &len);
    if (raw && len != (size_t)n * 4) {
        free(raw);
        return NULL;
    }
    return (float *)(void *)raw;        /* little-endian hosts only, like the files */
}

static inline int golden_load(golden_case *c, const char *dir, const char *name)
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

static inline void golden_free(golden_case *c)
{
    free(c->json);
    free(c->tokens);
    free(c->greedy);
    free(c->logits);
    free(c->ideal);
}

/* Mean KL(reference || ours) in nats, and the largest difference. */
static inline double golden_compare(const golden_case *c, const float *ref, const float *our, double *max_abs)
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
static inline long golden_flips(const golden_case *c, const float *our)
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

#endif /* GOLDEN_CASE_H */
