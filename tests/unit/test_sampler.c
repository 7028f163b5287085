/* SPDX-License-Identifier: AGPL-3.0-only */
/* The sampler chain: vectors, ties, broken logits, draws, hostile parameters. */
#include "pn_test.h"

#include "num/pn_math.h"
#include "sample/pn_grammar.h"
#include "sample/pn_sampler.h"

#include <float.h>

enum { N_MAX = 512 };

static pn_test_mem mem;

static pn_chain *make(const pn_sampling *p, uint32_t n_vocab, uint32_t n_live, const pn_token *ends, size_t n_ends)
{
    pn_chain *c = NULL;
    pn_err err = {0};
    pn_status st = pn_chain_new(&c, &mem.mem, p, n_vocab, n_live, ends, n_ends, NULL, 0, &err);
    PN_CHECK(st == PN_OK, "%s", err.text);
    return c;
}

/* Ids that survive for logits log(p), renormalised: "1:0.4286 0:0.5714" in draw order. */
static size_t survivors(pn_chain *c, const float *logits, pn_token *ids, double *prob)
{
    float out[N_MAX];
    size_t n = pn_chain_candidates(c, logits, ids, out, N_MAX);
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += prob[i] = exp((double)out[i] - (double)out[0]);
    for (size_t i = 0; i < n; i++)
        prob[i] /= sum;
    return n;
}

/* --- vectors ---------------------------------------------------------------------------------- */

typedef struct vector_case {
    char name[32];
    pn_sampling p;
    pn_token prompt[64], generated[64], id[64], breaker[8][64];
    size_t n_prompt, n_generated, n_out, n_breakers, n_breaker[8];
    double draw;                /* 0: any */
    double logit[64], prob[64];
} vector_case;

static size_t read_tokens(char *rest, pn_token *out)
{
    size_t n = 0;
    for (char *end; n < 64; rest = end) {
        long v = strtol(rest, &end, 10);
        if (end == rest)
            break;
        out[n++] = (pn_token)v;
    }
    return n;
}

static void set_field(pn_sampling *p, const char *name, double v)
{
    if (!strcmp(name, "temperature")) p->temperature = (float)v;
    else if (!strcmp(name, "top_k")) p->top_k = (int32_t)v;
    else if (!strcmp(name, "top_p")) p->top_p = (float)v;
    else if (!strcmp(name, "min_p")) p->min_p = (float)v;
    else if (!strcmp(name, "repeat_penalty")) p->repeat_penalty = (float)v;
    else if (!strcmp(name, "frequency_penalty")) p->frequency_penalty = (float)v;
    else if (!strcmp(name, "presence_penalty")) p->presence_penalty = (float)v;
    else if (!strcmp(name, "repeat_last_n")) p->repeat_last_n = (int32_t)v;
    else if (!strcmp(name, "typical_p")) p->typical_p = (float)v;
    else if (!strcmp(name, "top_n_sigma")) p->top_n_sigma = (float)v;
    else if (!strcmp(name, "xtc_probability")) p->xtc_probability = (float)v;
    else if (!strcmp(name, "xtc_threshold")) p->xtc_threshold = (float)v;
    else if (!strcmp(name, "dry_multiplier")) p->dry_multiplier = (float)v;
    else if (!strcmp(name, "dry_base")) p->dry_base = (float)v;
    else if (!strcmp(name, "dry_allowed_length")) p->dry_allowed_length = (int32_t)v;
    else if (!strcmp(name, "dry_penalty_last_n")) p->dry_penalty_last_n = (int32_t)v;
    else if (!strcmp(name, "dynatemp_range")) p->dynatemp_range = (float)v;
    else if (!strcmp(name, "dynatemp_exponent")) p->dynatemp_exponent = (float)v;
    else if (!strcmp(name, "mirostat")) p->mirostat = (int32_t)v;
    else if (!strcmp(name, "mirostat_tau")) p->mirostat_tau = (float)v;
    else if (!strcmp(name, "mirostat_eta")) p->mirostat_eta = (float)v;
    else if (!strcmp(name, "min_keep")) p->min_keep = (uint32_t)v;
    else PN_CHECK(0, "unknown field %s", name);
}

/* A seed whose number at `pos` is within 0.02 of u for XTC, after `pos` generated tokens. */
static uint64_t seed_for(double u, size_t pos)
{
    uint64_t seed = 0;
    while (fabs(pn_chain_unit(seed, pos, 1) - u) > .02)
        seed++;
    return seed;
}

static void give_breakers(pn_chain *c, const vector_case *v)
{
    pn_breakers b;
    pn_breakers_init(&b, &mem.mem);
    for (size_t i = 0; i < v->n_breakers; i++)
        PN_CHECK(pn_breakers_add(&b, v->breaker[i][0], v->breaker[i] + 1, v->n_breaker[i] - 1));
    PN_CHECK(pn_chain_take_breakers(c, &b, NULL) == PN_OK && !b.n);
    pn_breakers_fini(&b);
}

static void run_case(const vector_case *v, const float *logits, size_t n, int number)
{
    pn_sampling p = v->p;
    p.has_seed = 1;
    p.seed = v->draw > 0 ? seed_for(v->draw, v->n_generated) : 1;
    pn_chain *c = make(&p, (uint32_t)n, (uint32_t)n, NULL, 0);
    pn_token ids[N_MAX];
    float out[N_MAX];
    double prob[N_MAX];
    if (!c)
        return;
    if (pn_chain_wants_breakers(c))
        give_breakers(c, v);
    for (size_t i = 0; i < v->n_prompt; i++)
        PN_CHECK(pn_chain_accept(c, v->prompt[i], false, NULL) == PN_OK);
    for (size_t i = 0; i < v->n_generated; i++)
        PN_CHECK(pn_chain_accept(c, v->generated[i], true, NULL) == PN_OK);
    size_t got = survivors(c, logits, ids, prob);
    pn_chain_candidates(c, logits, ids, out, N_MAX);
    PN_CHECK(got == v->n_out, "case %d %s: %zu survive, not %zu", number, v->name, got, v->n_out);
    for (size_t i = 0; i < got; i++) {
        size_t k = 0;
        while (k < v->n_out && v->id[k] != ids[i])
            k++;
        if (!PN_CHECK(k < v->n_out, "case %d %s: token %d", number, v->name, (int)ids[i]))
            continue;
        PN_CHECK(fabs((double)out[i] - v->logit[k]) < 2e-6 * PN_MAX(1, fabs(v->logit[k])),
                 "case %d %s: %g, not %g", number, v->name, (double)out[i], v->logit[k]);
        PN_CHECK(fabs(prob[i] - v->prob[k]) < 1e-6, "case %d %s", number, v->name);
    }
    pn_chain_free(c);
}

static void test_vectors(void)
{
    char *text = pn_test_read_file("tests/vectors/sampling/samplers.txt", NULL);
    float logits[64];
    size_t n = 0;
    int number = 0;
    vector_case v = {0};
    if (!PN_CHECK(text, "tests/vectors/sampling/samplers.txt is missing"))
        return;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *rest = strchr(line, ' '), name[32];
        double a, b;
        int id;
        if (!strncmp(line, "logits ", 7)) {
            for (char *end; n < 64; rest = end) {
                double x = strtod(rest, &end);
                if (end == rest)
                    break;
                logits[n++] = (float)x;
            }
        } else if (!strncmp(line, "case ", 5)) {
            memset(&v, 0, sizeof v);
            snprintf(v.name, sizeof v.name, "%s", line + 5);
        } else if (sscanf(line, "set %31s %lf", name, &a) == 2)
            set_field(&v.p, name, a);
        else if (!strncmp(line, "order ", 6))
            PN_CHECK(pn_sampling_parse_order(line + 6, v.p.order, NULL) == PN_OK);
        else if (sscanf(line, "draw %lf", &a) == 1)
            v.draw = a;
        else if (!strncmp(line, "breaker ", 8) && PN_CHECK(v.n_breakers < 8)) {
            v.n_breaker[v.n_breakers] = read_tokens(rest, v.breaker[v.n_breakers]);
            v.n_breakers++;
        } else if (!strncmp(line, "prompt ", 7))
            v.n_prompt = read_tokens(rest, v.prompt);
        else if (!strncmp(line, "generated ", 10))
            v.n_generated = read_tokens(rest, v.generated);
        else if (sscanf(line, "out %d %lf %lf", &id, &a, &b) == 3) {
            v.id[v.n_out] = id;
            v.logit[v.n_out] = a;
            v.prob[v.n_out++] = b;
        } else if (!strcmp(line, "end"))
            run_case(&v, logits, n, ++number);
    }
    PN_CHECK(number == 63, "%d cases", number);
    free(text);
}

/* --- quick checks over p = .1 .2 .3 .4 ---------------------------------------------------------- */

/* expect: probabilities in draw order, 0 ends. */
static void quick(const char *what, pn_sampling p, const double *expect)
{
    static const double base[] = {.1, .2, .3, .4};
    float logits[4];
    pn_token ids[N_MAX];
    double prob[N_MAX];
    size_t want = 0;
    for (size_t i = 0; i < 4; i++)
        logits[i] = (float)log(base[i]);
    if (p.temperature == 0)
        p.temperature = 1;
    pn_chain *c = make(&p, 4, 4, NULL, 0);
    if (!c)
        return;
    size_t n = survivors(c, logits, ids, prob);
    while (want < 4 && expect[want] > 0)
        want++;
    PN_CHECK(n == want, "%s: %zu survive, not %zu", what, n, want);
    for (size_t i = 0; i < PN_MIN(n, want); i++)
        PN_CHECK(fabs(prob[i] - expect[i]) < 1e-4, "%s: %g, not %g", what, prob[i], expect[i]);
    pn_chain_free(c);
}

static void test_quick_checks(void)
{
    static const double all[5] = {.4, .3, .2, .1}, one[5] = {1}, two[5] = {.5714, .4286},
                        three[5] = {.4444, .3333, .2222};
    quick("top_k 1", (pn_sampling){.top_k = 1}, one);
    quick("top_k 3", (pn_sampling){.top_k = 3}, three);
    quick("top_k 0", (pn_sampling){.top_k = 0}, all);
    quick("top_k -1", (pn_sampling){.top_k = -1}, all);
    quick("top_k 100", (pn_sampling){.top_k = INT32_MAX}, all);
    quick("top_p tiny", (pn_sampling){.top_p = 1e-30f}, one);
    quick("top_p .7", (pn_sampling){.top_p = .7f}, two);
    quick("top_p .8", (pn_sampling){.top_p = .8f}, three);
    quick("top_p 1", (pn_sampling){.top_p = 1}, all);
    quick("min_p .24", (pn_sampling){.min_p = .24f}, all);
    quick("min_p .26", (pn_sampling){.min_p = .26f}, three);
    quick("min_p .49", (pn_sampling){.min_p = .49f}, three);
    quick("min_p .51", (pn_sampling){.min_p = .51f}, two);
    quick("min_p .74", (pn_sampling){.min_p = .74f}, two);
    quick("min_p .76", (pn_sampling){.min_p = .76f}, one);
    quick("min_p 1", (pn_sampling){.min_p = 1}, one);
}

static void test_more_quick_checks(void)
{
    static const double all[5] = {.4, .3, .2, .1}, one[5] = {1}, two[5] = {.5714, .4286},
                        xtc09[5] = {1}, xtc19[5] = {.6667, .3333}, xtc29[5] = {.5, .3333, .1667};
    quick("top_n_sigma 1", (pn_sampling){.top_n_sigma = 1}, two);
    quick("top_n_sigma 3", (pn_sampling){.top_n_sigma = 3}, all);
    quick("top_n_sigma -1", (pn_sampling){.top_n_sigma = -1}, all);
    quick("xtc .09", (pn_sampling){.xtc_probability = 1, .xtc_threshold = .09f}, xtc09);
    quick("xtc .19", (pn_sampling){.xtc_probability = 1, .xtc_threshold = .19f}, xtc19);
    quick("xtc .29", (pn_sampling){.xtc_probability = 1, .xtc_threshold = .29f}, xtc29);
    quick("xtc .39", (pn_sampling){.xtc_probability = 1, .xtc_threshold = .39f}, all);
    quick("xtc .6", (pn_sampling){.xtc_probability = 1, .xtc_threshold = .6f}, all);
    quick("xtc min_keep", (pn_sampling){.xtc_probability = 1, .xtc_threshold = .09f, .min_keep = 2}, all);
    quick("typical 1", (pn_sampling){.typical_p = 1}, all);
    quick("typical tiny", (pn_sampling){.typical_p = 1e-30f}, one + 0);
    quick("min_p min_keep", (pn_sampling){.min_p = 1, .min_keep = 2}, two);
    quick("top_p min_keep", (pn_sampling){.top_p = 1e-30f, .min_keep = 2}, two);
    quick("min_keep too large", (pn_sampling){.top_p = .5f, .min_p = .9f, .min_keep = 99}, all);
    quick("dynatemp frozen", (pn_sampling){.temperature = 1e-4f, .dynatemp_range = 1e-4f, .dynatemp_exponent = 50},
          one);
}

static void test_dry_quick_checks(void)
{
    static const struct {
        int vocab, allowed;
        float base, multiplier;
        pn_token hist[8];
        int n, breaker;
        double prob[5];
    } rows[] = {
        {4, 2, 1.1f, 1, {0, 1}, 2, -1, {.25, .25, .25, .25}},
        {4, 2, 1.1f, 1, {0, 1, 2, 0, 1}, 5, -1, {.2969, .2969, .1092, .2969}},
        {5, 2, 1.1f, 1, {0, 1, 3, 4, 0, 1}, 6, 3, {.2, .2, .2, .2, .2}},
        {5, 2, 1.1f, 2, {0, 1, 2, 0, 1}, 5, -1, {.2418, .2418, .0327, .2418, .2418}},
        {5, 4, 1.1f, 1, {0, 1, 2, 3, 4, 0, 1}, 7, -1, {.2, .2, .2, .2, .2}},
    };
    for (size_t k = 0; k < PN_COUNT_OF(rows); k++) {
        float logits[5] = {0};
        pn_token ids[N_MAX];
        double prob[N_MAX];
        pn_sampling p = {.temperature = 1, .dry_multiplier = rows[k].multiplier, .dry_base = rows[k].base,
                         .dry_allowed_length = rows[k].allowed};
        vector_case v = {.n_breakers = rows[k].breaker >= 0, .n_breaker = {1}, .breaker = {{rows[k].breaker}}};
        pn_chain *c = make(&p, (uint32_t)rows[k].vocab, (uint32_t)rows[k].vocab, NULL, 0);
        PN_CHECK(pn_chain_wants_breakers(c));
        give_breakers(c, &v);
        for (int i = 0; i < rows[k].n; i++)
            PN_CHECK(pn_chain_accept(c, rows[k].hist[i], i % 2, NULL) == PN_OK);
        size_t n = survivors(c, logits, ids, prob);
        PN_CHECK(n == (size_t)rows[k].vocab);
        for (size_t i = 0; i < n; i++)
            PN_CHECK(fabs(prob[i] - rows[k].prob[ids[i]]) < 1e-4, "row %zu token %d: %g", k, (int)ids[i], prob[i]);
        pn_chain_free(c);
    }
}

/* --- DRY against its definition ------------------------------------------------------------------- */

/* The longest common suffix of h[0..e] and h[0..n), for each e: quadratic.  m[t]: what t continues. */
static void slow_dry(const pn_token *h, int n, int allowed, const pn_breakers *b, int *m, int vocab)
{
    int limit = n;
    for (int t = 0; t < vocab; t++)
        m[t] = 0;
    for (int i = 0; i < n && limit == n; i++) {
        int longest = -1;
        for (size_t k = 0; k < b->n; k++) {
            int tail = (int)b->list[k].n_tail;
            if (b->list[k].head == h[n - 1 - i] && tail <= i && tail > longest &&
                (tail == 0 || memcmp(h + n - i, b->tails + b->list[k].tail, (size_t)tail * sizeof *h) == 0))
                longest = tail;
        }
        if (longest >= 0) {
            limit = i - longest;
            break;
        }
    }
    if (n <= allowed || limit < allowed)
        return;
    for (int e = 0; e < n - 1; e++) {
        int len = 0;
        while (len <= e && h[e - len] == h[n - 1 - len])
            len++;
        len = PN_MIN(len, limit);
        if (len >= allowed)
            m[h[e + 1]] = PN_MAX(m[h[e + 1]], len);
    }
    for (size_t k = 0; k < b->n; k++)
        if (b->list[k].n_tail == 0)
            m[b->list[k].head] = 0;
}

static void test_dry_against_the_quadratic_definition(void)
{
    static const int32_t windows[] = {1, 5, 64, -1};
    enum { STEPS = 400 };
    for (int round = 0; round < 40; round++) {
        int vocab = 2 + round % 5, allowed = 1 + round % 3;
        int32_t last_n = windows[round / 5 % 4];
        pn_token hist[STEPS];
        uint64_t rng = 1000 + (uint64_t)round;
        pn_breakers b, copy;
        pn_breakers_init(&b, &mem.mem);
        pn_breakers_init(&copy, &mem.mem);
        for (int k = 0; k < round % 4; k++) {
            pn_token seq[3];
            size_t n_tail = pn_test_rand(&rng) % 3;
            for (int i = 0; i < 3; i++)
                seq[i] = (pn_token)(pn_test_rand(&rng) % (uint64_t)vocab);
            PN_CHECK(pn_breakers_add(&b, seq[0], seq + 1, n_tail) && pn_breakers_add(&copy, seq[0], seq + 1, n_tail));
        }
        pn_sampling p = {.temperature = 1, .dry_multiplier = 1, .dry_base = 1, .dry_allowed_length = allowed,
                         .dry_penalty_last_n = last_n};
        p.dry_base = 1.25f;
        pn_chain *c = make(&p, (uint32_t)vocab, (uint32_t)vocab, NULL, 0);
        PN_CHECK(pn_chain_take_breakers(c, &b, NULL) == PN_OK);
        for (int s = 0; s < STEPS; s++) {
            float logits[8] = {0}, out[8];
            pn_token ids[8];
            int m[8];
            hist[s] = (pn_token)(pn_test_rand(&rng) % 4 ? s % vocab : (int)(pn_test_rand(&rng) % (uint64_t)vocab));
            PN_CHECK(pn_chain_accept(c, hist[s], true, NULL) == PN_OK);
            if (s % 7)
                continue;
            int n = last_n < 0 ? s + 1 : PN_MIN(s + 1, last_n);
            slow_dry(hist + s + 1 - n, n, allowed, &copy, m, vocab);
            size_t got = pn_chain_candidates(c, logits, ids, out, 8);
            PN_CHECK(got == (size_t)vocab);
            for (size_t k = 0; k < got; k++) {
                double want = m[ids[k]] ? -pow(1.25, PN_MIN(m[ids[k]] - allowed, floor(88.7228391 / log(1.25)))) : 0;
                PN_CHECK(fabs((double)out[k] - want) <= 1e-5 * fabs(want), "round %d step %d token %d: %g, not %g", round,
                         s, (int)ids[k], (double)out[k], want);
            }
        }
        pn_chain_free(c);
        pn_breakers_fini(&b);
        pn_breakers_fini(&copy);
    }
}

static const char *const words[] = {"a", "b\n", "\n", "x:", "User", "Us", "er", ":", "er:", "U", "s", "\n\n", "serU", ""};

static pn_bytes word_piece(void *user, pn_token t)
{
    (void)user;
    return (pn_bytes){words[t], strlen(words[t])};
}

/* Longest match first. */
static pn_status word_tokens(void *user, const char *text, size_t len, pn_token **out, size_t *n, size_t *cap,
                             pn_err *err)
{
    pn_test_mem *m = user;
    (void)err;
    while (len) {
        pn_token best = -1;
        for (size_t t = 0; t < PN_COUNT_OF(words); t++) {
            size_t w = strlen(words[t]);
            if (w && w <= len && memcmp(words[t], text, w) == 0 && (best < 0 || w > strlen(words[best])))
                best = (pn_token)t;
        }
        if (best < 0 || !pn_mem_grow(&m->mem, PN_ACCT_MISC, (void **)out, cap, *n + 1, sizeof **out))
            return PN_E_NOMEM;
        (*out)[(*n)++] = best;
        text += strlen(words[best]);
        len -= strlen(words[best]);
    }
    return PN_OK;
}

static bool has_breaker(const pn_breakers *b, pn_token head, size_t n_tail, pn_token t0, pn_token t1)
{
    for (size_t i = 0; i < b->n; i++) {
        const pn_token *tail = b->tails ? b->tails + b->list[i].tail : NULL;      /* no list has one */
        if (b->list[i].head == head && b->list[i].n_tail == n_tail && (n_tail < 1 || tail[0] == t0) &&
            (n_tail < 2 || tail[1] == t1))
            return true;
    }
    return false;
}

static void test_breaker_texts_become_tokens(void)
{
    const pn_breaker_text vocab = {PN_COUNT_OF(words), word_piece, word_tokens, &mem};
    pn_breakers b;
    pn_err err = {0};
    pn_breakers_init(&b, &mem.mem);
    PN_CHECK(pn_breakers_add_text(&b, "\n", &vocab, &err) == PN_OK && b.n == 3);
    PN_CHECK(has_breaker(&b, 1, 0, 0, 0) && has_breaker(&b, 2, 0, 0, 0) && has_breaker(&b, 11, 0, 0, 0));
    pn_breakers_fini(&b);
    PN_CHECK(pn_breakers_add_text(&b, "User:", &vocab, &err) == PN_OK && b.n == 4, "%zu", b.n);
    PN_CHECK(has_breaker(&b, 4, 1, 7, 0));                  /* User + : */
    PN_CHECK(has_breaker(&b, 5, 1, 8, 0));                  /* Us + er: */
    PN_CHECK(has_breaker(&b, 9, 2, 10, 8) && has_breaker(&b, 12, 2, 10, 8));       /* U, serU + s, er: */
    pn_breakers_fini(&b);
    PN_CHECK(pn_breakers_add_text(&b, "", &vocab, &err) == PN_E_INVALID && strstr(err.text, "dry_breakers"));
    PN_CHECK(pn_breakers_add_text(&b, NULL, &vocab, &err) == PN_E_INVALID);
    for (long k = 1;; k++) {
        pn_test_mem m;
        pn_test_mem_init(&m, k);
        pn_breaker_text failing = {PN_COUNT_OF(words), word_piece, word_tokens, &m};
        pn_breakers_init(&b, &m.mem);
        pn_status st = pn_breakers_add_text(&b, "User:", &failing, &err);
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM);
        pn_breakers_fini(&b);
        PN_CHECK(m.outstanding == 0);
        if (st == PN_OK)
            break;
    }
}

/* An end of the answer is never punished, and matches do not reach across it. */
static void test_dry_leaves_the_ends_alone(void)
{
    float logits[] = {0, 0, 0, 0};
    pn_token ends[] = {2}, hist[] = {0, 1, 2, 0, 1}, ids[4];
    float out[4];
    pn_sampling p = {.temperature = 1, .dry_multiplier = 1};
    pn_chain *c = make(&p, 4, 4, ends, 1);
    for (size_t i = 0; i < PN_COUNT_OF(hist); i++)
        PN_CHECK(pn_chain_accept(c, hist[i], true, NULL) == PN_OK);
    PN_CHECK(pn_chain_candidates(c, logits, ids, out, 4) == 4 && out[3] == 0);
    pn_chain_free(c);
}

/* --- typical, mirostat, XTC, masks ------------------------------------------------------------------ */

static void test_typical_against_a_whole_sort(void)
{
    enum { N = 2000 };
    static float logits[N], out[N];
    static pn_token ids[N];
    static bool kept[N];
    static const float shares[] = {.05f, .3f, .6f, .95f, .999f};
    for (size_t k = 0; k < 2 * PN_COUNT_OF(shares); k++) {
        uint64_t rng = 40 + k;
        double z = 0, h = 0, sum = 0, worst = 0;
        float spread = k % 2 ? 12 : 2;
        for (int i = 0; i < N; i++)
            logits[i] = (float)(pn_test_rand(&rng) % 4096) / 4096 * spread;
        pn_sampling p = {.temperature = 1, .typical_p = shares[k / 2]};
        pn_chain *c = make(&p, N, N, NULL, 0);
        size_t n = pn_chain_candidates(c, logits, ids, out, N);
        for (int i = 0; i < N; i++) {
            z += exp((double)logits[i]);
            kept[i] = false;
        }
        for (int i = 0; i < N; i++)
            h -= exp((double)logits[i]) / z * ((double)logits[i] - log(z));
        for (size_t i = 0; i < n; i++) {
            kept[ids[i]] = true;
            sum += exp((double)out[i]) / z;
            worst = PN_MAX(worst, fabs(log(z) - (double)out[i] - h));
        }
        PN_CHECK(sum > (double)p.typical_p, "share %g: %g", (double)p.typical_p, sum);
        for (int i = 0; i < N; i++)
            PN_CHECK(kept[i] || fabs(log(z) - (double)logits[i] - h) >= worst - 1e-9);
        pn_chain_free(c);
    }
}

/* A fixed temperature may change places with top-k, a dynamic one may not. */
static void test_dynamic_temperature_sees_what_comes_before_it(void)
{
    float logits[] = {3, 2, 1, 0, -1}, out[5];
    pn_token ids[5];
    for (int k = 0; k < 2; k++) {
        pn_sampling p = {.temperature = 1, .dynatemp_range = .5f, .top_k = 2};
        double z = 0, h = 0, n = 5;
        if (k) {
            p.order[0] = PN_SAMPLER_TOP_K;
            p.order[1] = PN_SAMPLER_TEMPERATURE;
            n = 2;
        }
        for (int i = 0; i < (int)n; i++)
            z += exp((double)logits[i]);
        for (int i = 0; i < (int)n; i++)
            h -= exp((double)logits[i]) / z * ((double)logits[i] - log(z));
        double t = .5 + h / log(n);
        pn_chain *c = make(&p, 5, 5, NULL, 0);
        PN_CHECK(pn_chain_candidates(c, logits, ids, out, 5) == 2);
        PN_CHECK(fabs((double)out[0] - 3 / t) < 1e-5 && fabs((double)out[1] - 2 / t) < 1e-5, "%g", (double)out[0]);
        pn_chain_free(c);
    }
}

/* With many tokens the mean surprise settles at tau. */
static void test_mirostat_reaches_its_surprise(void)
{
    enum { N = 400, STEPS = 4000 };
    float logits[N];
    for (int i = 0; i < N; i++)
        logits[i] = -(float)i * .02f;
    for (int tau = 2; tau <= 5; tau++) {
        pn_sampling p = {.temperature = 1, .mirostat = 2, .mirostat_tau = (float)tau, .has_seed = 1, .seed = 9,
                         .top_k = 1};
        pn_chain *c = make(&p, N, N, NULL, 0);
        double mu = 2 * tau, mean = 0;
        for (int s = 0; s < STEPS; s++) {
            double z = 0, left = 0;
            pn_token t = -1, again = -2;
            int n = 0;
            for (int i = 0; i < N; i++)
                z += exp((double)logits[i]);
            for (; n < N && (n == 0 || -log2(exp((double)logits[n]) / z) <= mu); n++)
                left += exp((double)logits[n]);
            PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK && t < n, "token %d of %d", (int)t, n);
            PN_CHECK(pn_chain_pick(c, logits, &again, NULL) == PN_OK && again == t);
            double surprise = -log2(exp((double)logits[t]) / left);
            mu -= (double).1f * (surprise - tau);
            mean += surprise / STEPS;
            PN_CHECK(pn_chain_accept(c, t, true, NULL) == PN_OK);
        }
        PN_CHECK(fabs(mean - tau) < .05, "tau %d: %g", tau, mean);
        pn_chain_free(c);
    }
}

static void test_xtc_acts_as_often_as_asked_and_leaves_the_draw(void)
{
    float logits[] = {2, 2, 1, 0};
    int acted = 0;
    pn_sampling p = {.temperature = 1, .xtc_probability = .25f, .has_seed = 1, .seed = 77};
    pn_sampling off = {.temperature = 1, .has_seed = 1, .seed = 77};
    pn_chain *c = make(&p, 4, 4, NULL, 0), *d = make(&off, 4, 4, NULL, 0);
    for (int i = 0; i < 4000; i++) {
        pn_token ids[4], t = -1, u = -1;
        float out[4];
        bool cut = pn_chain_candidates(c, logits, ids, out, 4) < 4;
        acted += cut;
        PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK && pn_chain_pick(d, logits, &u, NULL) == PN_OK);
        PN_CHECK(cut || t == u);
        pn_chain_accept(c, t, true, NULL);
        pn_chain_accept(d, t, true, NULL);
    }
    PN_CHECK(acted > 880 && acted < 1120, "%d of 4000", acted);
    pn_chain_free(c);
    pn_chain_free(d);
}

static void test_only_allowed_tokens_are_picked(void)
{
    float logits[70];
    uint32_t allowed[3] = {0, 0, 0}, none[3] = {0, 0, 0xffffffc0u}, all[3] = {~0u, ~0u, ~0u};
    pn_logit_bias bias = {69, -INFINITY};
    pn_err err = {0};
    for (int i = 0; i < 70; i++)
        logits[i] = (float)i;
    allowed[0] = 1u << 5 | 1u << 31;
    allowed[1] = 1u << 0 | 1u << 30;
    allowed[2] = 1u << 5;                   /* 69, which the bias bans below */
    static const pn_sampling modes[] = {
        {.temperature = 0}, {.temperature = 1, .top_k = 1}, {.temperature = 1, .top_p = 1e-30f},
        {.temperature = 1, .min_p = 1}, {.temperature = 0, .repeat_penalty = 2}, {.temperature = 1e-4f},
        {.temperature = 1, .mirostat = 2, .mirostat_tau = 1e-6f}, {.temperature = 1, .top_n_sigma = 1e-3f},
    };
    for (size_t k = 0; k < PN_COUNT_OF(modes); k++) {
        pn_sampling p = modes[k];
        pn_token t = -1;
        pn_chain *c = make(&p, 70, 70, NULL, 0);
        PN_CHECK(pn_chain_pick_masked(c, logits, allowed, &t, NULL) == PN_OK && t == 69, "mode %zu: %d", k, (int)t);
        PN_CHECK(pn_chain_pick_masked(c, logits, all, &t, NULL) == PN_OK && t == 69);
        PN_CHECK(pn_chain_pick_masked(c, logits, none, &t, &err) == PN_E_NUMERIC && strstr(err.text, "allowed"), "%s",
                 err.text);
        PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK && t == 69);
        pn_chain_free(c);
        p.bias = &bias;
        p.n_bias = 1;
        c = make(&p, 70, 70, NULL, 0);
        PN_CHECK(pn_chain_pick_masked(c, logits, allowed, &t, NULL) == PN_OK && t == 62, "mode %zu: %d", k, (int)t);
        pn_chain_free(c);
    }
    /* XTC cannot remove the only legal token */
    uint32_t single[3] = {1u << 3, 0, 0};
    pn_sampling p = {.temperature = 1, .xtc_probability = 1, .xtc_threshold = 1e-9f, .typical_p = .1f, .top_n_sigma = 1};
    pn_chain *c = make(&p, 70, 70, NULL, 0);
    pn_token t = -1;
    PN_CHECK(pn_chain_pick_masked(c, logits, single, &t, NULL) == PN_OK && t == 3);
    logits[3] = NAN;
    PN_CHECK(pn_chain_pick_masked(c, logits, single, &t, &err) == PN_E_NUMERIC && strstr(err.text, "the 1 of 70"));
    pn_chain_free(c);
}

/* The grammar's word comes before top-k, so the one token that top-k leaves is a legal one. */
static void test_a_grammar_that_forbids_the_best_token_leaves_the_next(void)
{
    static const char text[] = "root ::= [bc]+";
    static const pn_bytes pieces[] = {{"a", 1}, {"b", 1}, {"c", 1}, {"", 0}};
    static const pn_token ends[] = {3};
    const pn_gtrie_source source = {pieces, 4, 4, NULL, ends, 1};
    const float logits[] = {9, 1, 2, 8}, all_nan[] = {NAN, NAN, NAN, NAN}, nan_where_legal[] = {9, NAN, NAN, 8};
    pn_mem mem;
    pn_gram *g = NULL;
    pn_gtrie *trie = NULL;
    pn_matcher *m = NULL;
    pn_err err = {0};
    pn_mem_init_libc(&mem);
    PN_CHECK(pn_gram_from_gbnf(&g, &mem, text, sizeof text - 1, NULL, NULL, NULL, NULL) == PN_OK);
    PN_CHECK(pn_gtrie_new(&trie, &mem, &source, NULL) == PN_OK);
    PN_CHECK(pn_matcher_new(&m, &mem, g, trie, NULL) == PN_OK);
    for (int mode = 0; mode < 2; mode++) {
        pn_sampling p = {.temperature = (float)mode, .top_k = 1, .has_seed = 1};
        pn_chain *c = make(&p, 4, 4, NULL, 0);
        uint32_t mask[1] = {0};
        pn_token t = -1;
        pn_matcher_reset(m);
        PN_CHECK(pn_matcher_mask(m, mask, NULL, NULL) == PN_OK);
        PN_CHECK(pn_chain_pick_masked(c, logits, mask, &t, NULL) == PN_OK && t == 2, "%d", (int)t);
        PN_CHECK(pn_chain_pick_masked(c, all_nan, mask, &t, &err) == PN_E_NUMERIC && err.text[0]);
        PN_CHECK(pn_chain_pick_masked(c, nan_where_legal, mask, &t, &err) == PN_E_NUMERIC && strstr(err.text, "the 2 of 4"), "%s", err.text);
        PN_CHECK(pn_matcher_accept_token(m, 2, NULL) == PN_OK && pn_matcher_mask(m, mask, NULL, NULL) == PN_OK);
        PN_CHECK(pn_chain_pick_masked(c, logits, mask, &t, NULL) == PN_OK && t == 3, "%d", (int)t);      /* now it may end */
        pn_chain_free(c);
    }
    pn_matcher_free(m);
    pn_gtrie_free(trie);
    pn_gram_release(g);
}

static void test_logprobs(void)
{
    enum { N = 600, LIVE = 590 };
    static float logits[N];
    pn_token ids[N];
    float lp[N], chosen;
    uint64_t rng = 8;
    double z = 0;
    for (int i = 0; i < N; i++)
        logits[i] = i < LIVE ? (float)(pn_test_rand(&rng) % 64) * .25f - 8 : 100;
    logits[17] = NAN;
    logits[18] = -INFINITY;
    for (int i = 0; i < LIVE; i++)
        z += i == 17 || i == 18 ? 0 : exp((double)logits[i]);
    static const uint32_t tops[] = {0, 1, 2, 20, LIVE};
    for (size_t k = 0; k < PN_COUNT_OF(tops); k++) {
        PN_CHECK(pn_chain_logprobs(logits, N, LIVE, 5, tops[k], ids, lp, &chosen, NULL) == PN_OK);
        PN_CHECK(fabs((double)chosen - ((double)logits[5] - log(z))) < 1e-6);
        for (uint32_t i = 0; i < tops[k] && i < LIVE - 2; i++) {
            PN_CHECK(fabs((double)lp[i] - ((double)logits[ids[i]] - log(z))) < 1e-6);
            if (i)
                PN_CHECK(lp[i - 1] > lp[i] || (lp[i - 1] == lp[i] && ids[i - 1] < ids[i]));
        }
    }
    PN_CHECK(ids[LIVE - 2] == 17 && ids[LIVE - 1] == 18 && lp[LIVE - 1] < -FLT_MAX);
    PN_CHECK(pn_chain_logprobs(logits, N, LIVE, -1, 0, NULL, NULL, NULL, NULL) == PN_OK);
    PN_CHECK(pn_chain_logprobs(logits, N, LIVE, 17, 0, NULL, NULL, &chosen, NULL) == PN_OK && chosen < -FLT_MAX);
    PN_CHECK(pn_chain_logprobs(logits, N, LIVE, LIVE, 0, NULL, NULL, &chosen, NULL) == PN_E_INVALID);
    PN_CHECK(pn_chain_logprobs(logits, N, LIVE, 0, LIVE + 1, ids, lp, NULL, NULL) == PN_E_INVALID);
    logits[0] = INFINITY;
    PN_CHECK(pn_chain_logprobs(logits, N, LIVE, 0, 1, ids, lp, &chosen, NULL) == PN_OK && chosen == 0 && ids[0] == 0);
    PN_CHECK(pn_chain_logprobs(logits + 17, 2, 2, 0, 1, ids, lp, &chosen, NULL) == PN_E_NUMERIC);
}

static void test_penalties_quick_checks(void)
{
    float logits[5];
    pn_token ids[N_MAX];
    double prob[N_MAX];
    for (int i = 0; i < 5; i++)
        logits[i] = logf(.2f);
    pn_sampling p = {.temperature = 1, .repeat_penalty = 50};
    pn_chain *c = make(&p, 5, 5, NULL, 0);
    pn_chain_accept(c, 0, true, NULL);
    size_t n = survivors(c, logits, ids, prob);
    PN_CHECK(n == 5 && ids[0] == 1 && fabs(prob[0] - .25) < 1e-5 && ids[4] == 0 && prob[4] < 1e-5);
    pn_chain_free(c);

    p = (pn_sampling){.temperature = 1, .frequency_penalty = 5, .presence_penalty = 5};
    c = make(&p, 5, 5, NULL, 0);
    for (int i = 0; i < 3; i++)
        pn_chain_accept(c, i, true, NULL);
    n = survivors(c, logits, ids, prob);
    PN_CHECK(n == 5 && ids[0] == 3 && fabs(prob[0] - .499966) < 1e-5 && fabs(prob[4] - .000023) < 1e-6);
    pn_chain_free(c);
}

/* The same with the list cut before: look-up by candidate instead of by token. */
static void test_penalties_after_truncation(void)
{
    float logits[] = {1, 2, 3, 4, 0};
    pn_token ids[N_MAX];
    float out[N_MAX];
    pn_sampling p = {.temperature = 1, .repeat_penalty = 2, .top_k = 2,
                     .order = {PN_SAMPLER_TOP_K, PN_SAMPLER_PENALTIES}};
    pn_chain *c = make(&p, 5, 5, NULL, 0);
    pn_chain_accept(c, 3, false, NULL);
    pn_chain_accept(c, 0, false, NULL);
    size_t n = pn_chain_candidates(c, logits, ids, out, N_MAX);
    PN_CHECK(n == 2 && ids[0] == 2 && ids[1] == 3 && out[0] == 3 && out[1] == 2);
    pn_chain_free(c);
}

/* Against a slow count over the last n accepted tokens. */
static void test_penalty_window_against_slow_count(void)
{
    enum { VOCAB = 37, STEPS = 500 };
    static const int32_t windows[] = {1, 2, 7, 64, 300, -1};
    for (size_t w = 0; w < PN_COUNT_OF(windows); w++) {
        pn_sampling p = {.temperature = 1, .repeat_penalty = 1.5f, .frequency_penalty = .25f,
                         .presence_penalty = .5f, .repeat_last_n = windows[w]};
        pn_chain *c = make(&p, VOCAB, VOCAB, NULL, 0);
        pn_token hist[STEPS];
        bool gen[STEPS];
        float logits[VOCAB], out[N_MAX];
        pn_token ids[N_MAX];
        uint64_t rng = 7 + w;
        for (int s = 0; s < STEPS; s++) {
            hist[s] = (pn_token)(pn_test_rand(&rng) % VOCAB);
            gen[s] = pn_test_rand(&rng) % 3 == 0;
            PN_CHECK(pn_chain_accept(c, hist[s], gen[s], NULL) == PN_OK);
            if (s % 50 != 49)
                continue;
            for (int i = 0; i < VOCAB; i++)
                logits[i] = (float)((int)(pn_test_rand(&rng) % 200) - 100) * .0625f;
            size_t n = pn_chain_candidates(c, logits, ids, out, N_MAX);
            PN_CHECK(n == VOCAB);
            for (size_t k = 0; k < n; k++) {
                int from = windows[w] < 0 || s + 1 < windows[w] ? 0 : s + 1 - windows[w], rep = 0, g = 0;
                for (int j = 0; j <= s; j++) {
                    rep += j >= from && hist[j] == ids[k];
                    g += gen[j] && hist[j] == ids[k];
                }
                float l = logits[ids[k]];
                if (rep)
                    l = l > 0 ? l / 1.5f : l * 1.5f;
                if (g)
                    l -= (float)g * .25f + .5f;
                PN_CHECK(fabsf(out[k] - l) < 1e-5f, "window %d step %d token %d", (int)windows[w], s, (int)ids[k]);
            }
        }
        pn_chain_free(c);
    }
}

/* --- order, ties, broken logits ----------------------------------------------------------------- */

static void test_ties_go_to_the_lowest_id(void)
{
    float logits[300];
    pn_token ids[N_MAX], t = -1;
    float out[N_MAX];
    for (int i = 0; i < 300; i++)
        logits[i] = (float)(i % 3);
    pn_sampling p = {.temperature = 1, .top_k = 150};
    pn_chain *c = make(&p, 300, 300, NULL, 0);
    size_t n = pn_chain_candidates(c, logits, ids, out, N_MAX);
    PN_CHECK(n == 150 && ids[0] == 2 && ids[1] == 5 && ids[99] == 299 && ids[100] == 1 && ids[149] == 148);
    pn_chain_free(c);
    p = (pn_sampling){0};
    c = make(&p, 300, 300, NULL, 0);
    PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK && t == 2);
    pn_chain_free(c);
    pn_logit_bias bias = {2, -1};       /* greedy through the list */
    p = (pn_sampling){.bias = &bias, .n_bias = 1};
    c = make(&p, 300, 300, NULL, 0);
    PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK && t == 5);
    pn_chain_free(c);
}

/* The partial sort against a whole one, at sizes around its steps. */
static void test_draw_order_is_descending_then_id(void)
{
    static const uint32_t sizes[] = {1, 2, 3, 255, 256, 257, 500};
    for (size_t k = 0; k < PN_COUNT_OF(sizes); k++) {
        float logits[N_MAX], out[N_MAX];
        pn_token ids[N_MAX];
        uint64_t rng = 99 + k;
        for (uint32_t i = 0; i < sizes[k]; i++)
            logits[i] = (float)(pn_test_rand(&rng) % 16);
        pn_sampling p = {.temperature = 1};
        pn_chain *c = make(&p, sizes[k], sizes[k], NULL, 0);
        size_t n = pn_chain_candidates(c, logits, ids, out, N_MAX);
        PN_CHECK(n == sizes[k]);
        for (size_t i = 1; i < n; i++)
            PN_CHECK(out[i - 1] > out[i] || (out[i - 1] == out[i] && ids[i - 1] < ids[i]));
        pn_chain_free(c);
    }
}

static void test_flat_top_p_extends_the_sort(void)
{
    static float logits[5000], out[5000];
    static pn_token ids[5000];
    uint64_t rng = 5;
    for (int i = 0; i < 5000; i++)
        logits[i] = (float)(pn_test_rand(&rng) % 1000) * 1e-4f;
    pn_sampling p = {.temperature = 1, .top_p = .9f};
    pn_chain *c = make(&p, 5000, 5000, NULL, 0);
    size_t n = pn_chain_candidates(c, logits, ids, out, 5000);
    double sum = 0, total = 0, last = 0;
    for (int i = 0; i < 5000; i++)
        total += exp((double)logits[i]);
    for (size_t i = 0; i < n; i++)
        sum += last = exp((double)out[i]);
    PN_CHECK(sum >= .9 * total * (1 - 2e-6) && sum - last < .9 * total, "%zu of 5000", n);
    pn_chain_free(c);
}

static void test_broken_logits(void)
{
    float logits[] = {NAN, 1, -INFINITY, 2, NAN};
    pn_err err;
    pn_token t = -7;
    for (int mode = 0; mode < 2; mode++) {
        pn_sampling p = {.temperature = (float)mode, .has_seed = 1, .seed = 3};
        pn_chain *c = make(&p, 5, 5, NULL, 0);
        logits[3] = 2;
        for (int i = 0; i < 100; i++) {
            PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK && (t == 3 || (t == 1 && mode)));
            pn_chain_accept(c, t, true, NULL);
        }
        logits[3] = INFINITY;
        PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK && t == 3);
        float all_nan[] = {NAN, NAN, NAN, NAN, NAN}, all_low[5], both[] = {NAN, -INFINITY, NAN, NAN, -INFINITY};
        for (int i = 0; i < 5; i++)
            all_low[i] = -INFINITY;
        t = -7;
        PN_CHECK(pn_chain_pick(c, all_nan, &t, &err) == PN_E_NUMERIC && err.status == PN_E_NUMERIC && t == -7);
        PN_CHECK(pn_chain_pick(c, all_low, &t, &err) == PN_E_NUMERIC);
        PN_CHECK(pn_chain_pick(c, both, NULL, NULL) == PN_E_NUMERIC);
        pn_token ids[5];
        float out[5];
        PN_CHECK(pn_chain_candidates(c, all_nan, ids, out, 5) == 0);
        pn_chain_free(c);
    }
}

static void test_extreme_values_survive_every_sampler(void)
{
    float logits[] = {FLT_MAX, -FLT_MAX, 0, INFINITY, NAN, 1e-40f};
    pn_logit_bias bias[] = {{0, 1e38f}, {1, -1e38f}};
    static const float temps[] = {1e-5f, 1e-4f, .5f, 1, 1e30f, FLT_MAX};
    for (size_t i = 0; i < PN_COUNT_OF(temps); i++) {
        pn_sampling p = {.temperature = temps[i], .top_k = 4, .top_p = .9f, .min_p = .1f, .repeat_penalty = 3,
                         .frequency_penalty = 1e38f, .bias = bias, .n_bias = 2, .typical_p = .9f, .top_n_sigma = 2,
                         .xtc_probability = 1, .xtc_threshold = 1e-30f, .dry_multiplier = FLT_MAX,
                         .dry_base = FLT_MAX, .dry_allowed_length = 1, .dynatemp_range = temps[i],
                         .dynatemp_exponent = FLT_MAX, .mirostat = i % 2 ? 2 : 0, .mirostat_tau = FLT_MAX,
                         .mirostat_eta = FLT_MAX, .min_keep = UINT32_MAX};
        pn_chain *c = make(&p, 6, 6, NULL, 0);
        pn_token t;
        for (int k = 0; k < 6; k++) {
            PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK && t >= 0 && t < 6 && t != 4);
            pn_chain_accept(c, k % 2 ? t : k % 3, true, NULL);
        }
        pn_chain_free(c);
    }
}

static void test_padding_is_never_chosen(void)
{
    float logits[] = {0, 1, 9, 9};
    for (int mode = 0; mode < 2; mode++) {
        pn_sampling p = {.temperature = (float)mode};
        pn_chain *c = make(&p, 4, 2, NULL, 0);
        pn_token t;
        for (int i = 0; i < 50; i++)
            PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK && t < 2);
        pn_chain_free(c);
    }
}

static void test_ends_bias_and_never(void)
{
    float logits[] = {5, 4, 3, 2};
    pn_token ends[] = {0, 99, -1}, never[] = {1}, t;
    pn_sampling p = {.min_tokens = 2};
    pn_chain *c = make(&p, 4, 4, ends, 3);
    PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK && t == 1);
    pn_chain_accept(c, 1, false, NULL);         /* a prompt token does not count */
    pn_chain_accept(c, 1, true, NULL);
    PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK && t == 1);
    pn_chain_accept(c, 1, true, NULL);
    PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK && t == 0);
    pn_chain_free(c);

    pn_logit_bias bias[] = {{2, -INFINITY}};
    p = (pn_sampling){.ignore_eos = 1, .bias = bias, .n_bias = 1};
    c = NULL;
    PN_CHECK(pn_chain_new(&c, &mem.mem, &p, 4, 4, ends, 3, never, 1, NULL) == PN_OK);
    bias[0].token = 3;                          /* ours was copied */
    PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK && t == 3);
    pn_chain_free(c);

    p = (pn_sampling){.ignore_eos = 1};         /* bans alone need no list of candidates */
    c = NULL;
    PN_CHECK(pn_chain_new(&c, &mem.mem, &p, 4, 4, ends, 3, never, 1, NULL) == PN_OK);
    PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK && t == 2);
    uint32_t allowed = 1u << 3 | 1u << 1 | 1u;
    PN_CHECK(pn_chain_pick_masked(c, logits, &allowed, &t, NULL) == PN_OK && t == 3);
    allowed = 3;
    PN_CHECK(pn_chain_pick_masked(c, logits, &allowed, &t, NULL) == PN_E_NUMERIC);
    pn_chain_free(c);

    /* ends are not punished */
    p = (pn_sampling){.repeat_penalty = 2};
    c = make(&p, 4, 4, ends, 3);
    pn_chain_accept(c, 0, true, NULL);
    PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK && t == 0);
    pn_chain_free(c);
}

/* --- draws -------------------------------------------------------------------------------------- */

static void test_random_is_splitmix64(void)
{
    PN_CHECK(pn_chain_random(1234567, 0, 0) == 6457827717110365317u);
    PN_CHECK(pn_chain_random(1234567, 1, 0) == 3203168211198807973u);
    PN_CHECK(pn_chain_random(1234567, 2, 0) == 9817491932198370423u);
    PN_CHECK(pn_chain_random(1234567, 0, 1) != pn_chain_random(1234567, 0, 0));
    for (uint64_t i = 0; i < 1000; i++) {
        double u = pn_chain_unit(0, i, 0);
        PN_CHECK(u >= 0 && u < 1);
    }
}

static void test_draws_follow_the_distribution(void)
{
    static const double p8[] = {.3, .2, .15, .12, .1, .07, .04, .02};
    enum { DRAWS = 100000 };
    float logits[8];
    double chi2 = 0;
    long hits[8] = {0};
    for (int i = 0; i < 8; i++)
        logits[i] = (float)log(p8[i]);
    pn_sampling p = {.temperature = 1, .has_seed = 1, .seed = 20240607};
    pn_chain *c = make(&p, 8, 8, NULL, 0);
    for (int i = 0; i < DRAWS; i++) {
        pn_token t = 0;
        pn_chain_pick(c, logits, &t, NULL);
        hits[t]++;
        pn_chain_accept(c, t, true, NULL);
    }
    for (int i = 0; i < 8; i++)
        chi2 += ((double)hits[i] - p8[i] * DRAWS) * ((double)hits[i] - p8[i] * DRAWS) / (p8[i] * DRAWS);
    PN_CHECK(chi2 < 29.88, "chi-square %g at 7 degrees of freedom (p 1e-4)", chi2);
    pn_chain_free(c);
}

static void test_same_seed_same_tokens(void)
{
    float logits[100];
    pn_token first[200];
    uint64_t rng = 3;
    for (int i = 0; i < 100; i++)
        logits[i] = (float)(pn_test_rand(&rng) % 100) * .05f;
    for (int round = 0; round < 3; round++) {
        pn_sampling p = {.temperature = .8f, .top_k = 40, .top_p = .95f, .has_seed = 1, .seed = round == 2};
        pn_chain *c = make(&p, 100, 100, NULL, 0);
        int same = 0;
        PN_CHECK(pn_chain_seed(c) == (round == 2));
        for (int i = 0; i < 200; i++) {
            pn_token t, again;
            PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK);
            PN_CHECK(pn_chain_pick(c, logits, &again, NULL) == PN_OK && again == t);
            if (round == 0)
                first[i] = t;
            same += first[i] == t;
            pn_chain_accept(c, t, true, NULL);
        }
        PN_CHECK(round == 2 ? same < 100 : same == 200);
        pn_chain_free(c);
    }
}

/* The draw halves the list; the slow way walks all of it, sorted. */
static void test_draw_agrees_with_a_whole_sort(void)
{
    enum { N = 3000 };
    static float logits[N], out[N];
    static pn_token ids[N];
    uint64_t rng = 17;
    for (int i = 0; i < N; i++)
        logits[i] = (float)(pn_test_rand(&rng) % 50) * .02f;        /* flat, with many ties */
    pn_sampling p = {.temperature = .9f, .has_seed = 1, .seed = 5};
    pn_chain *c = make(&p, N, N, NULL, 0);
    size_t n = pn_chain_candidates(c, logits, ids, out, N);
    double total = 0;
    int wrong = n != N;
    for (size_t i = 0; i < n; i++)
        total += exp((double)out[i] - (double)out[0]);
    for (uint64_t k = 0; k < 500; k++) {
        double need = pn_chain_unit(5, k, 0) * total, sum = 0;
        size_t at = 0;
        while (at < n && (sum += exp((double)out[at] - (double)out[0])) < need)
            at++;
        pn_token t = -1;
        pn_chain_pick(c, logits, &t, NULL);
        wrong += at == n || t != ids[at];
        pn_chain_accept(c, t, true, NULL);
    }
    PN_CHECK(wrong == 0, "%d of 500 draws differ", wrong);
    pn_chain_free(c);
}

/* Prompt tokens do not move the draw: a prefix-cache hit and a fresh prompt give one text. */
static void test_prompt_length_does_not_move_the_draw(void)
{
    float logits[] = {1, 1, 1, 1, 1, 1, 1, 1};
    pn_sampling p = {.temperature = 1, .has_seed = 1, .seed = 11};
    pn_chain *a = make(&p, 8, 8, NULL, 0), *b = make(&p, 8, 8, NULL, 0);
    for (int i = 0; i < 5; i++)
        pn_chain_accept(b, 1, false, NULL);
    for (int i = 0; i < 50; i++) {
        pn_token x, y;
        pn_chain_pick(a, logits, &x, NULL);
        pn_chain_pick(b, logits, &y, NULL);
        PN_CHECK(x == y);
        pn_chain_accept(a, x, true, NULL);
        pn_chain_accept(b, y, true, NULL);
    }
    pn_chain_free(a);
    pn_chain_free(b);
}

static void test_logits_are_not_changed(void)
{
    float logits[] = {1, NAN, 3, INFINITY, -2}, copy[5];
    memcpy(copy, logits, sizeof copy);
    pn_sampling p = {.temperature = .5f, .top_k = 3, .repeat_penalty = 2};
    pn_token t;
    pn_chain *c = make(&p, 5, 5, NULL, 0);
    pn_chain_accept(c, 0, true, NULL);
    pn_chain_pick(c, logits, &t, NULL);
    PN_CHECK(memcmp(copy, logits, sizeof copy) == 0);
    pn_chain_free(c);
}

/* --- hostile parameters, failing memory ----------------------------------------------------------- */

static void refuse(const char *field, pn_sampling p)
{
    pn_chain *c = NULL;
    pn_err err = {0};
    pn_status st = pn_chain_new(&c, &mem.mem, &p, 10, 10, NULL, 0, NULL, 0, &err);
    PN_CHECK(st == PN_E_INVALID && !c, "%s was accepted", field);
    PN_CHECK(strstr(err.text, field), "\"%s\" does not name %s", err.text, field);
    pn_chain_free(c);
}

static void test_hostile_parameters_are_refused_by_name(void)
{
    pn_logit_bias outside = {10, 0}, negative = {-1, 0}, nan_bias = {1, NAN}, inf_bias = {1, INFINITY};
    refuse("temperature", (pn_sampling){.temperature = -1});
    refuse("temperature", (pn_sampling){.temperature = NAN});
    refuse("temperature", (pn_sampling){.temperature = INFINITY});
    refuse("top_p", (pn_sampling){.top_p = -.1f});
    refuse("top_p", (pn_sampling){.top_p = NAN});
    refuse("min_p", (pn_sampling){.min_p = -.1f});
    refuse("min_p", (pn_sampling){.min_p = 1.5f});
    refuse("min_p", (pn_sampling){.min_p = NAN});
    refuse("repeat_penalty", (pn_sampling){.repeat_penalty = -1});
    refuse("repeat_penalty", (pn_sampling){.repeat_penalty = 1e-45f});
    refuse("repeat_penalty", (pn_sampling){.repeat_penalty = NAN});
    refuse("repeat_penalty", (pn_sampling){.repeat_penalty = INFINITY});
    refuse("repeat_last_n", (pn_sampling){.repeat_last_n = -2});
    refuse("presence_penalty", (pn_sampling){.presence_penalty = INFINITY});
    refuse("frequency_penalty", (pn_sampling){.frequency_penalty = NAN});
    refuse("typical_p", (pn_sampling){.typical_p = -1});
    refuse("top_n_sigma", (pn_sampling){.top_n_sigma = NAN});
    refuse("xtc_probability", (pn_sampling){.xtc_probability = 1.5f});
    refuse("xtc_threshold", (pn_sampling){.xtc_threshold = -.1f});
    refuse("dry_multiplier", (pn_sampling){.dry_multiplier = -1});
    refuse("dry_base", (pn_sampling){.dry_base = INFINITY});
    refuse("dry_allowed_length", (pn_sampling){.dry_allowed_length = -1});
    refuse("dry_penalty_last_n", (pn_sampling){.dry_penalty_last_n = -2});
    refuse("dry_breakers", (pn_sampling){.n_dry_breakers = 1});
    refuse("dynatemp_range", (pn_sampling){.dynatemp_range = NAN});
    refuse("dynatemp_exponent", (pn_sampling){.dynatemp_exponent = -1});
    refuse("mirostat", (pn_sampling){.mirostat = 1});
    refuse("mirostat", (pn_sampling){.mirostat = 3});
    refuse("mirostat_tau", (pn_sampling){.mirostat_tau = -1});
    refuse("mirostat_eta", (pn_sampling){.mirostat_eta = NAN});
    refuse("order[0]", (pn_sampling){.order = {200}});
    refuse("order[1]", (pn_sampling){.order = {PN_SAMPLER_TOP_K, PN_SAMPLER_TOP_K}});
    refuse("bias", (pn_sampling){.n_bias = 1});
    refuse("bias[0].token", (pn_sampling){.bias = &outside, .n_bias = 1});
    refuse("bias[0].token", (pn_sampling){.bias = &negative, .n_bias = 1});
    refuse("bias[0].bias", (pn_sampling){.bias = &nan_bias, .n_bias = 1});
    refuse("bias[0].bias", (pn_sampling){.bias = &inf_bias, .n_bias = 1});

    pn_sampling p = {0};
    pn_chain *c = NULL;
    PN_CHECK(pn_chain_new(&c, &mem.mem, &p, 0, 0, NULL, 0, NULL, 0, NULL) == PN_E_INVALID);
    PN_CHECK(pn_chain_new(&c, &mem.mem, &p, 4, 5, NULL, 0, NULL, 0, NULL) == PN_E_INVALID);
    p.repeat_last_n = INT32_MAX;                /* costs what is used, not what is asked for */
    p.presence_penalty = 1;
    c = make(&p, 10, 10, NULL, 0);
    PN_CHECK(pn_chain_accept(c, 10, true, NULL) == PN_E_INVALID);
    PN_CHECK(pn_chain_accept(c, -1, true, NULL) == PN_E_INVALID);
    PN_CHECK(pn_chain_accept(c, 9, true, NULL) == PN_OK);
    PN_CHECK(mem.bytes < 8192);
    pn_chain_free(c);
}

static void test_each_failing_allocation_is_reported(void)
{
    pn_logit_bias bias = {1, 1};
    pn_token ends[] = {0}, never[] = {2}, t;
    float logits[300] = {0};
    for (long k = 1;; k++) {
        pn_test_mem m;
        pn_test_mem_init(&m, k);
        pn_sampling p = {.temperature = 1, .repeat_penalty = 2, .repeat_last_n = 200, .bias = &bias, .n_bias = 1,
                         .dry_multiplier = 1, .dry_penalty_last_n = 200};
        pn_chain *c = NULL;
        pn_err err = {0};
        bool failed = false;
        pn_status st = pn_chain_new(&c, &m.mem, &p, 300, 300, ends, 1, never, 1, &err);
        if (st != PN_OK) {
            PN_CHECK(st == PN_E_NOMEM && err.status == PN_E_NOMEM && !c);
            failed = true;
        } else {
            for (pn_token i = 1; i < 300; i++) {
                st = pn_chain_accept(c, i, true, &err);
                if (st != PN_OK) {
                    PN_CHECK(st == PN_E_NOMEM);
                    failed = true;
                    st = pn_chain_accept(c, i, true, &err);     /* once more works: state was kept */
                    PN_CHECK(st == PN_OK);
                }
            }
            PN_CHECK(pn_chain_pick(c, logits, &t, NULL) == PN_OK);
        }
        pn_chain_free(c);
        PN_CHECK(m.outstanding == 0, "%ld blocks leak at failure %ld", m.outstanding, k);
        if (!failed)
            break;
    }
}

static void test_order_text(void)
{
    uint8_t order[PN_SAMPLER_ORDER_MAX];
    pn_err err = {0};
    memset(order, 0xEE, sizeof order);
    PN_CHECK(pn_sampling_parse_order("penalties;Temperature;top_k", order, &err) == PN_OK);
    PN_CHECK(order[0] == PN_SAMPLER_PENALTIES && order[1] == PN_SAMPLER_TEMPERATURE &&
             order[2] == PN_SAMPLER_TOP_K && order[3] == PN_SAMPLER_END && order[15] == PN_SAMPLER_END);
    PN_CHECK(pn_sampling_parse_order("TOP-P; minp,temp", order, &err) == PN_OK);
    PN_CHECK(order[0] == PN_SAMPLER_TOP_P && order[1] == PN_SAMPLER_MIN_P && order[2] == PN_SAMPLER_TEMPERATURE);
    PN_CHECK(pn_sampling_parse_order("DRY;top_n_sigma;xtc;typ;nsigma", order, &err) == PN_E_INVALID);
    PN_CHECK(pn_sampling_parse_order("DRY;top_n_sigma;xtc;typ_p", order, &err) == PN_OK);
    PN_CHECK(order[0] == PN_SAMPLER_DRY && order[1] == PN_SAMPLER_TOP_N_SIGMA && order[2] == PN_SAMPLER_XTC &&
             order[3] == PN_SAMPLER_TYPICAL && order[4] == PN_SAMPLER_END);
    PN_CHECK(pn_sampling_parse_order("typical", order, &err) == PN_OK && order[0] == PN_SAMPLER_TYPICAL);
    uint8_t before[PN_SAMPLER_ORDER_MAX];
    memcpy(before, order, sizeof before);
    PN_CHECK(pn_sampling_parse_order("top_k;frobnicate", order, &err) == PN_E_INVALID);
    PN_CHECK(strstr(err.text, "frobnicate"));
    PN_CHECK(pn_sampling_parse_order("top_k;topk", order, &err) == PN_E_INVALID);
    PN_CHECK(pn_sampling_parse_order("", order, &err) == PN_E_INVALID);
    PN_CHECK(pn_sampling_parse_order(";;", order, &err) == PN_E_INVALID);
    PN_CHECK(pn_sampling_parse_order("top_kk", order, &err) == PN_E_INVALID);
    PN_CHECK(pn_sampling_parse_order("top_", order, &err) == PN_E_INVALID);
    PN_CHECK(memcmp(before, order, sizeof before) == 0);
}

int main(void)
{
    pn_test_mem_init(&mem, 0);
    test_vectors();
    test_quick_checks();
    test_more_quick_checks();
    test_dry_quick_checks();
    test_dry_against_the_quadratic_definition();
    test_breaker_texts_become_tokens();
    test_dry_leaves_the_ends_alone();
    test_typical_against_a_whole_sort();
    test_dynamic_temperature_sees_what_comes_before_it();
    test_mirostat_reaches_its_surprise();
    test_xtc_acts_as_often_as_asked_and_leaves_the_draw();
    test_only_allowed_tokens_are_picked();
    test_a_grammar_that_forbids_the_best_token_leaves_the_next();
    test_logprobs();
    test_penalties_quick_checks();
    test_penalties_after_truncation();
    test_penalty_window_against_slow_count();
    test_ties_go_to_the_lowest_id();
    test_draw_order_is_descending_then_id();
    test_flat_top_p_extends_the_sort();
    test_broken_logits();
    test_extreme_values_survive_every_sampler();
    test_padding_is_never_chosen();
    test_ends_bias_and_never();
    test_random_is_splitmix64();
    test_draws_follow_the_distribution();
    test_same_seed_same_tokens();
    test_draw_agrees_with_a_whole_sort();
    test_prompt_length_does_not_move_the_draw();
    test_logits_are_not_changed();
    test_hostile_parameters_are_refused_by_name();
    test_each_failing_allocation_is_reported();
    test_order_text();
    PN_CHECK(mem.outstanding == 0, "%ld blocks leak", mem.outstanding);
    return pn_test_end();
}
