/*
 * test_sharing.c - threads whose sessions begin alike: pages are found, shared, copied and evicted while others
 * compute, and every answer is that of a cold run.  For the thread sanitizer.
 */
#include "cache_rig.h"

#include <pthread.h>
#include <sched.h>

typedef struct share_worker {
    cache_rig *r;
    const cache_said *cold, *cold_other;
    int id, wrong;              /* wrong: results that were not as expected; the test's counters are one thread's */
} share_worker;

static int share_differs(cache_rig *r, pn_session *s, const cache_said *a)
{
    return pn_session_length(s) != a->n || memcmp(pn_session_tokens(s), a->tokens, a->n * sizeof(pn_token)) != 0 || !pn_session_logits(s) ||
           memcmp(pn_session_logits(s), a->logits, r->V * sizeof(float)) != 0;
}

/* Generations and requests in sessions that come and go, beside each other and the engine's own steps. */
static void *share_work(void *user)
{
    share_worker *w = user;
    cache_rig *r = w->r;
    for (int i = 0; i < 4; i++) {
        int which = (i + w->id) % 2, cut_short = w->id && i == 2;
        const pn_generate_params p = cache_ask(which ? r->ids : r->other, CACHE_PROMPT);
        const pn_session_params how = {.n_ctx = 600, .n_batch = 100, .by_turn = i % 2};
        pn_session *s = NULL;
        pn_request *q = NULL;
        w->wrong += pn_session_new(r->m, &how, &s, NULL) != PN_OK;
        if (w->id == 0) {
            w->wrong += pn_session_generate(s, &p, NULL, NULL) != PN_OK;
        } else {
            w->wrong += pn_request_new(s, &p, &q, NULL) != PN_OK;
            while (!cut_short && !pn_request_done(q))
                sched_yield();
            pn_request_free(q);
        }
        if (!cut_short)
            w->wrong += share_differs(r, s, which ? w->cold : w->cold_other);
        w->wrong += pn_model_cached(r->m, r->ids, CACHE_PROMPT) > 4 * P || cache_info(r->e).bytes > cache_info(r->e).bytes_max;
        pn_session_free(s);
    }
    return NULL;
}

/* The budget is small, so that pages are evicted meanwhile. */
static void sessions_of_many_threads_share(const char *path, uint64_t budget)
{
    cache_rig r;
    pn_err err = {0};
    if (cache_open_with(&r, path, &(pn_engine_params){.n_threads = 2, .prefix_bytes = budget})) {
        cache_said cold, cold_other;
        share_worker w[3];
        pthread_t t[3];
        cache_cold(&r, r.ids, CACHE_PROMPT, &cold);
        cache_cold(&r, r.other, CACHE_PROMPT, &cold_other);
        PN_CHECK(pn_engine_start(r.e, &err) == PN_OK, "%s", err.text);
        for (int i = 0; i < 3; i++) {
            w[i] = (share_worker){&r, &cold, &cold_other, i, 0};
            PN_CHECK(pthread_create(&t[i], NULL, share_work, &w[i]) == 0);
        }
        for (int i = 0; i < 3; i++) {
            pthread_join(t[i], NULL);
            PN_CHECK(w[i].wrong == 0, "%s, thread %d: %d wrong", path, i, w[i].wrong);
        }
        pn_engine_stop(r.e);
        PN_CHECK(cache_info(r.e).hits > 0, "%s: no hits", path);
        free(cold.logits);
        free(cold_other.logits);
    }
    cache_close(&r);
}

int main(void)
{
    sessions_of_many_threads_share("models/demo.gguf", 0);
    sessions_of_many_threads_share("models/demo.gguf", 600000);
    sessions_of_many_threads_share("tests/vectors/golden/arch/gemma3.gguf", 100000);
    sessions_of_many_threads_share("tests/vectors/golden/arch/lfm2.gguf", 100000);
    return pn_test_end();
}
