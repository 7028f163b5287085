/*
 * test_sharing.c - threads whose sessions begin alike: pages are found, shared, copied and evicted while others
 * compute, and every answer is that of a cold run.  For the thread sanitizer.
 */
#include "cache_rig.h"

#include <pthread.h>
#include <sched.h>

typedef struct cache_worker {
    cache_rig *r;
    const cache_said *cold, *cold_other;
    int id;
} cache_worker;

/* Generations and requests in sessions that come and go, beside each other and the engine's own steps. */
static void *cache_work(void *user)
{
    cache_worker *w = user;
    cache_rig *r = w->r;
    for (int i = 0; i < 6; i++) {
        pn_err err = {0};
        int which = (i + w->id) % 2;
        const pn_generate_params p = cache_ask(which ? r->ids : r->other, CACHE_PROMPT);
        pn_session *s = cache_session(r, 600, i % 2);
        pn_request *q = NULL;
        if (w->id == 0) {
            PN_CHECK(pn_session_generate(s, &p, NULL, &err) == PN_OK, "%s", err.text);
        } else {
            PN_CHECK(pn_request_new(s, &p, &q, &err) == PN_OK, "%s", err.text);
            while (i != 3 && !pn_request_done(q))
                sched_yield();
            pn_request_free(q);
        }
        if (i != 3 || w->id == 0)
            cache_same(r, s, which ? w->cold : w->cold_other, "beside others");
        if (i == 4)
            PN_CHECK(pn_model_cached(r->m, r->ids, CACHE_PROMPT) <= 4 * P && cache_info(r->e).queries > 0);
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
        cache_worker w[3];
        pthread_t t[3];
        cache_cold(&r, r.ids, CACHE_PROMPT, &cold);
        cache_cold(&r, r.other, CACHE_PROMPT, &cold_other);
        PN_CHECK(pn_engine_start(r.e, &err) == PN_OK, "%s", err.text);
        for (int i = 0; i < 3; i++) {
            w[i] = (cache_worker){&r, &cold, &cold_other, i};
            PN_CHECK(pthread_create(&t[i], NULL, cache_work, &w[i]) == 0);
        }
        for (int i = 0; i < 3; i++)
            pthread_join(t[i], NULL);
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
    return pn_test_end();
}
