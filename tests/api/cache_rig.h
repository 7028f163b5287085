/*
 * cache_rig.h - an engine, a model, two prompts that part inside a page, and what a cold run makes of them.
 */
#ifndef PN_CACHE_RIG_H
#define PN_CACHE_RIG_H

#include "pantheon.h"
#include "pn_api_test.h"

enum { P = 64, CACHE_PROMPT = 300, CACHE_NEW = 20 };

static const pn_sampling cache_how = {.size = sizeof cache_how, .ignore_eos = 1, .temperature = 0.7f, .has_seed = 1, .seed = 3, .repeat_penalty = 1.1f,
                                      .repeat_last_n = -1};

typedef struct cache_rig {
    pn_engine *e;
    pn_model *m;
    uint32_t V;
    pn_token ids[CACHE_PROMPT], other[CACHE_PROMPT];    /* the same up to inside the page of token 150 */
} cache_rig;

/* Simulated dies: the model is split over the first two. */
static inline int cache_open_with(cache_rig *r, const char *path, const pn_engine_params *p)
{
    static const uint32_t both[] = {0, 1};
    pn_err err = {0};
    uint64_t seed = 99;
    memset(r, 0, sizeof *r);
    if (!PN_CHECK(pn_engine_open(&r->e, p, &err) == PN_OK, "%s", err.text) ||
        !PN_CHECK(pn_model_load(r->e, path, &(pn_model_params){.dies = both, .n_dies = p->sim_dies ? 2 : 0}, &r->m, &err) == PN_OK, "%s", err.text))
        return 0;
    r->V = pn_vocab_size(r->m);
    for (size_t i = 0; i < CACHE_PROMPT; i++) {
        r->ids[i] = (pn_token)(pn_test_rand(&seed) % r->V);
        r->other[i] = i < 150 ? r->ids[i] : (pn_token)(pn_test_rand(&seed) % r->V);
    }
    return 1;
}

static inline int cache_open(cache_rig *r, const char *path) { return cache_open_with(r, path, &(pn_engine_params){.n_threads = 1}); }

static inline void cache_close(cache_rig *r)
{
    pn_model_free(r->m);
    pn_engine_close(r->e);
}

static inline pn_prefix_info cache_info(pn_engine *e)
{
    pn_prefix_info i;
    pn_engine_prefix(e, &i);
    return i;
}

static inline pn_session *cache_session(cache_rig *r, uint32_t n_ctx, int by_turn)
{
    pn_session *s = NULL;
    pn_err err = {0};
    PN_CHECK(pn_session_new(r->m, &(pn_session_params){.n_ctx = n_ctx, .n_batch = 100, .by_turn = by_turn}, &s, &err) == PN_OK, "%s", err.text);
    return s;
}

static inline pn_generate_params cache_ask(const pn_token *ids, size_t n)
{
    return (pn_generate_params){.prompt = ids, .n_prompt = n, .max_tokens = CACHE_NEW, .sampling = &cache_how};
}

/* What came of it, to compare with. */
typedef struct cache_said {
    pn_token tokens[2 * CACHE_PROMPT];
    uint32_t n;
    float *logits;              /* owned */
} cache_said;

static inline void cache_keep(cache_rig *r, pn_session *s, cache_said *a)
{
    a->n = pn_session_length(s);
    memcpy(a->tokens, pn_session_tokens(s), a->n * sizeof(pn_token));
    a->logits = malloc(r->V * sizeof(float));
    memcpy(a->logits, pn_session_logits(s), r->V * sizeof(float));
}

static inline void cache_same(cache_rig *r, pn_session *s, const cache_said *a, const char *when)
{
    PN_CHECK(pn_session_length(s) == a->n && memcmp(pn_session_tokens(s), a->tokens, a->n * sizeof(pn_token)) == 0, "%s: other tokens", when);
    PN_CHECK(pn_session_logits(s) && memcmp(pn_session_logits(s), a->logits, r->V * sizeof(float)) == 0, "%s: other bits", when);
}

/* One generation in a new session, compared with the cold one; how many tokens were cached. */
static inline uint32_t cache_run(cache_rig *r, const pn_generate_params *p, int by_turn, const cache_said *want, const char *when)
{
    pn_err err = {0};
    pn_generate_result g = {0};
    pn_session *s = cache_session(r, 600, by_turn);
    PN_CHECK(pn_session_generate(s, p, &g, &err) == PN_OK, "%s: %s", when, err.text);
    PN_CHECK(g.n_context == p->n_prompt && g.n_prompt == p->n_prompt && g.n_generated == CACHE_NEW, "%s: %u tokens of context", when, (unsigned)g.n_context);
    if (want)
        cache_same(r, s, want, when);
    pn_session_free(s);
    return g.n_cached;
}

static inline void cache_cold(cache_rig *r, const pn_token *ids, size_t n, cache_said *a)
{
    pn_err err = {0};
    pn_session *s = cache_session(r, 600, 0);
    pn_generate_params p = cache_ask(ids, n);
    p.no_cache = 1;
    pn_prefix_info before = cache_info(r->e), after;
    PN_CHECK(pn_session_generate(s, &p, NULL, &err) == PN_OK, "%s", err.text);
    after = cache_info(r->e);
    PN_CHECK(after.queries == before.queries && after.pages == before.pages, "a generation without cache used it");
    cache_keep(r, s, a);
    pn_session_free(s);
}

#endif /* PN_CACHE_RIG_H */
