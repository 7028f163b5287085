/*
 * test_cache.c - the prefix cache of an engine: what a generation begins with was computed by others, and its
 * text, tokens and logits are those of a cold one; it gives way, keeps tenants apart, and leaves nothing behind.
 */
#include "cache_rig.h"

/* full attention; windows of 32 and 12 tokens; two rotary tables */
static const char *const cache_models[] = {"models/demo.gguf", "tests/vectors/golden/arch/gemma3.gguf",
                                           "tests/vectors/golden/arch/gemma2.gguf", "tests/vectors/golden/arch/phi3.gguf"};
static const char cache_hybrid[] = "tests/vectors/golden/arch/lfm2.gguf";       /* test_hybrid.c has what is different there */

static void warm_and_cold_are_the_same(const char *path)
{
    cache_rig r;
    if (cache_open(&r, path)) {
        cache_said cold, cold_other;
        cache_cold(&r, r.ids, CACHE_PROMPT, &cold);
        cache_cold(&r, r.other, CACHE_PROMPT, &cold_other);
        const pn_generate_params p = cache_ask(r.ids, CACHE_PROMPT), q = cache_ask(r.other, CACHE_PROMPT);
        PN_CHECK(pn_model_cached(r.m, r.ids, CACHE_PROMPT) == 0, "something is known");
        for (int by_turn = 0; by_turn < 2; by_turn++) {
            PN_CHECK(cache_run(&r, &p, by_turn, &cold, path) == (by_turn ? 4 * P : 0), "%s: not what is known", path);
            PN_CHECK(pn_model_cached(r.m, r.ids, CACHE_PROMPT) == 4 * P && pn_model_cached(r.m, r.ids, 4 * P) == 3 * P &&
                     pn_model_cached(r.m, r.other, CACHE_PROMPT) == (by_turn ? 4 * P : 2 * P), "%s: what is known", path);
            PN_CHECK(cache_run(&r, &p, by_turn, &cold, path) == 4 * P, "%s: the same again", path);
            PN_CHECK(cache_run(&r, &q, by_turn, &cold_other, path) == (by_turn ? 4 * P : 2 * P), "%s: another way inside a page", path);
        }
        /* The answer is known, too: the whole text and more. */
        pn_token more[CACHE_PROMPT + CACHE_NEW + 40];
        memcpy(more, cold.tokens, cold.n * sizeof *more);
        memcpy(more + cold.n, r.ids, 40 * sizeof *more);
        cache_said longer;
        cache_cold(&r, more, cold.n + 40, &longer);
        const pn_generate_params l = cache_ask(more, cold.n + 40);
        PN_CHECK(cold.n == 320 && cache_run(&r, &l, 1, &longer, path) == 5 * P, "%s: an answer", path);
        pn_prefix_info i = cache_info(r.e);
        PN_CHECK(i.queries == 7 && i.hits == 6 && i.tokens_hit == 23 * P && i.tokens_asked == 6 * CACHE_PROMPT + cold.n + 40 && i.bytes <= i.bytes_max &&
                 i.pages >= 7 && i.evicted == 0, "%s: %u of %u hit, %u tokens", path, (unsigned)i.hits, (unsigned)i.queries, (unsigned)i.tokens_hit);
        free(cold.logits);
        free(cold_other.logits);
        free(longer.logits);
    }
    cache_close(&r);
}

/* Low-level evaluation neither looks nor adds; what came with several salts, or with none wanted, is not added. */
static void salts_and_wishes_are_kept_apart(void)
{
    cache_rig r;
    pn_err err = {0};
    if (cache_open(&r, cache_models[0])) {
        cache_said cold;
        cache_cold(&r, r.ids, CACHE_PROMPT, &cold);
        pn_session *s = cache_session(&r, 600, 0);
        PN_CHECK(pn_session_eval(s, r.ids, CACHE_PROMPT, &err) == PN_OK && cache_info(r.e).pages == 0, "%s", err.text);
        pn_generate_params p = cache_ask(r.ids, CACHE_PROMPT), rest = cache_ask(r.ids, 10);
        for (p.salt = 0; p.salt < 3; p.salt++) {
            PN_CHECK(cache_run(&r, &p, 1, &cold, "a salt") == 0, "salt %u finds another's", (unsigned)p.salt);
            PN_CHECK(cache_run(&r, &p, 0, &cold, "a salt") == 4 * P, "salt %u does not find its own", (unsigned)p.salt);
        }
        p.no_cache = 1;
        PN_CHECK(cache_run(&r, &p, 1, &cold, "no cache") == 0, "nobody asked for it");
        uint64_t pages = cache_info(r.e).pages;
        /* First with one salt, then with another; first without a cache. */
        for (int i = 0; i < 2; i++) {
            pn_generate_params first = cache_ask(r.other, CACHE_PROMPT);
            first.salt = 7 + (uint64_t)i;
            first.no_cache = i;
            PN_CHECK(pn_session_truncate(s, 0, &err) == PN_OK && pn_session_generate(s, &first, NULL, &err) == PN_OK, "%s", err.text);
            pages += i ? 0 : 5;
            rest.salt = 8;
            PN_CHECK(pn_session_generate(s, &rest, NULL, &err) == PN_OK && cache_info(r.e).pages == pages, "%u pages", (unsigned)cache_info(r.e).pages);
        }
        /* Evaluated first, and then gone on from: nobody's yet. */
        const pn_generate_params on = cache_ask(r.ids, 10);
        PN_CHECK(pn_session_truncate(s, 0, &err) == PN_OK && pn_session_eval(s, r.other + 64, 2 * P, &err) == PN_OK &&
                 pn_session_generate(s, &on, NULL, &err) == PN_OK && cache_info(r.e).pages == pages + 2, "%u pages", (unsigned)cache_info(r.e).pages);
        pn_session_free(s);
        free(cold.logits);
    }
    cache_close(&r);
}

/* Types of keys and values, rotary tables and models do not mix. */
static void kinds_are_kept_apart(void)
{
    cache_rig r;
    pn_err err = {0};
    if (cache_open(&r, "tests/vectors/golden/arch/phi3_longrope.gguf")) {
        pn_model *exact = NULL;
        pn_generate_params p = {.prompt = r.ids, .n_prompt = 80, .max_tokens = 4, .sampling = &cache_how};
        PN_CHECK(pn_model_load(r.e, "tests/vectors/golden/arch/phi3_longrope.gguf", &(pn_model_params){.exact = 1}, &exact, &err) == PN_OK, "%s", err.text);
        for (int kind = 0; kind < 5; kind++)
            for (int again = 0; again < 2; again++) {
                pn_session *s = NULL;
                pn_generate_result g = {0};
                const pn_session_params how = {.n_ctx = kind % 2 ? 90 : 4000, .has_kv_type = 1, .kv_type = kind / 2 % 2 ? PN_DTYPE_F32 : PN_DTYPE_F16};
                PN_CHECK(pn_session_new(kind == 4 ? exact : r.m, &how, &s, &err) == PN_OK && pn_session_generate(s, &p, &g, &err) == PN_OK, "%s", err.text);
                PN_CHECK(g.n_cached == (again ? P : 0), "kind %d: %u cached", kind, (unsigned)g.n_cached);
                pn_session_free(s);
            }
        pn_model_free(exact);
    }
    cache_close(&r);
}

/* ------------------------------------------------------------------------------------------
 * Conversations, requests
 * ------------------------------------------------------------------------------------------ */

static const char long_question[] =
    "Once upon a time there was a small house at the edge of the forest. In the house lived an old woman and her cat. Every morning the old "
    "woman went to the well, and every morning the cat went with her. One day the well was empty. The old woman looked at the cat, and the cat "
    "looked at the old woman. What is my name?";

typedef struct cache_talk {
    pn_session *s;
    pn_chat *c;
} cache_talk;

static cache_talk cache_talk_open(cache_rig *r, int by_turn)
{
    cache_talk t = {.s = cache_session(r, 1500, by_turn)};
    pn_err err = {0};
    PN_CHECK(pn_chat_new(t.s, &(pn_chat_params){.format = "chatml"}, &t.c, &err) == PN_OK, "%s", err.text);
    return t;
}

static void cache_talk_close(cache_talk *t)
{
    pn_chat_free(t->c);
    pn_session_free(t->s);
}

/* The answer's message, malloc'd. */
static char *cache_talk_ask(cache_rig *r, cache_talk *t, const char *text, int no_cache, int request, pn_generate_result *g)
{
    const pn_generate_params how = {.max_tokens = 24, .no_cache = no_cache, .sampling = &cache_how};
    const pn_chat_reply_params p = {.generate = &how};
    pn_err err = {0};
    uint32_t active = 1, n_prompt = 0, n_cached = 0;
    size_t len = 0;
    PN_CHECK(pn_chat_say(t->c, "user", text, 0, &err) == PN_OK, "%s", err.text);
    if (request) {
        pn_request *q = NULL;
        PN_CHECK(pn_request_chat(t->c, &p, &q, &err) == PN_OK, "%s", err.text);
        pn_request_prompt(q, &n_prompt, &n_cached);
        while (active)
            pn_engine_step(r->e, 0, &active, &err);
        PN_CHECK(pn_request_result(q, g, &err) == PN_OK && g->n_context == n_prompt && g->n_cached == n_cached, "%s", err.text);
        pn_request_free(q);
    } else {
        PN_CHECK(pn_chat_reply(t->c, &p, g, &err) == PN_OK, "%s", err.text);
    }
    PN_CHECK(g->n_context + g->n_generated >= pn_session_length(t->s) && g->n_cached < g->n_context && g->n_prompt <= g->n_context, "sums of a result");
    const char *m = pn_chat_message(t->c, pn_chat_length(t->c) - 1, &len);
    char *copy = malloc(len + 1);
    memcpy(copy, m, len);
    copy[len] = 0;
    return copy;
}

static void conversations_begin_with_what_is_known(const char *path, int by_turn)
{
    cache_rig r;
    if (!cache_open(&r, path)) {
        cache_close(&r);
        return;
    }
    static const char *const lines[] = {long_question, "Tell me about the cat.", long_question};
    char *cold[3], *warm[3];
    pn_generate_result g;
    cache_talk a = cache_talk_open(&r, by_turn);
    for (int i = 0; i < 3; i++)
        cold[i] = cache_talk_ask(&r, &a, lines[i], 1, 0, &g);
    cache_talk_close(&a);
    for (int way = 0; way < 3; way++) {             /* fills the cache; finds it; the same as requests */
        cache_talk b = cache_talk_open(&r, by_turn);
        uint32_t before = 0;
        for (int i = 0; i < 3; i++) {
            warm[i] = cache_talk_ask(&r, &b, lines[i], 0, way == 2, &g);
            PN_CHECK(strcmp(cold[i], warm[i]) == 0, "%s, turn %d: cold %s, warm %s", path, i, cold[i], warm[i]);
            PN_CHECK(i || (way ? g.n_cached >= 64 && g.n_cached % 64 == 0 : g.n_cached == 0), "%s: %u of the first prompt", path, (unsigned)g.n_cached);
            PN_CHECK(g.n_cached >= before, "%s: %u kept of %u", path, (unsigned)g.n_cached, (unsigned)before);
            before = g.n_cached;
            free(warm[i]);
        }
        cache_talk_close(&b);
    }
    /* Back and forth between two beginnings: the session keeps one of them, the cache both. */
    cache_talk c = cache_talk_open(&r, by_turn);
    for (int i = 0; i < 4; i++) {
        char other[sizeof long_question + 8];
        snprintf(other, sizeof other, "Hello! %s", long_question);
        char *m = cache_talk_ask(&r, &c, i % 2 ? other : long_question, 0, i / 2, &g);
        PN_CHECK(g.n_cached >= 64 || i == 1, "%s, time %d: %u cached", path, i, (unsigned)g.n_cached);
        PN_CHECK(i % 2 || strcmp(m, cold[0]) == 0, "%s: %s, cold %s", path, m, cold[0]);
        free(m);
        pn_chat_forget(c.c, 0);
    }
    cache_talk_close(&c);
    for (int i = 0; i < 3; i++)
        free(cold[i]);
    cache_close(&r);
}

static void many_requests_share_a_beginning(const char *path)
{
    enum { N = 6 };
    cache_rig r;
    pn_err err = {0};
    if (cache_open(&r, path)) {
        cache_said cold, cold_other;
        cache_cold(&r, r.ids, CACHE_PROMPT, &cold);
        cache_cold(&r, r.other, CACHE_PROMPT, &cold_other);
        for (int round = 0; round < 3; round++) {
            pn_session *s[N];
            pn_request *q[N];
            pn_generate_result g;
            uint32_t active = 1;
            for (int i = 0; i < N; i++) {
                const pn_generate_params p = cache_ask(i % 3 ? r.ids : r.other, CACHE_PROMPT);
                s[i] = cache_session(&r, 600, i % 2);
                PN_CHECK(pn_request_new(s[i], &p, &q[i], &err) == PN_OK, "%s", err.text);
            }
            while (active)
                pn_engine_step(r.e, 0, &active, &err);
            for (int i = 0; i < N; i++) {
                PN_CHECK(pn_request_result(q[i], &g, &err) == PN_OK && g.n_cached == (round ? 4 * P : 0), "%s: %u cached", path, (unsigned)g.n_cached);
                cache_same(&r, s[i], i % 3 ? &cold : &cold_other, path);
                pn_request_free(q[i]);
            }
            for (int i = 0; i < N; i++)
                pn_session_free(s[i]);
        }
        free(cold.logits);
        free(cold_other.logits);
    }
    cache_close(&r);
}

/* ------------------------------------------------------------------------------------------
 * Memory
 * ------------------------------------------------------------------------------------------ */

static void a_small_budget_holds(const char *path)
{
    cache_rig r;
    pn_plan_info plan;
    pn_file *f = NULL;
    pn_err err = {0};
    if (cache_open(&r, path) && PN_CHECK(pn_file_open(r.e, path, &f, &err) == PN_OK && pn_file_plan(f, NULL, &plan, &err) == PN_OK, "%s", err.text)) {
        cache_said cold;
        uint64_t budget = 6 * (plan.kv_bytes_per_token * P + 1024) + 4096;
        pn_file_close(f);
        cache_cold(&r, r.ids, CACHE_PROMPT, &cold);
        cache_close(&r);
        if (!cache_open_with(&r, path, &(pn_engine_params){.n_threads = 1, .prefix_bytes = budget}))
            return;
        for (int i = 0; i < 12; i++) {
            pn_token mine[CACHE_PROMPT];
            memcpy(mine, r.ids, sizeof mine);
            mine[3] = (pn_token)(i % 4 ? i : r.ids[3]);
            const pn_generate_params p = cache_ask(mine, CACHE_PROMPT);
            cache_run(&r, &p, i % 2, i % 4 ? NULL : &cold, path);
            pn_prefix_info info = cache_info(r.e);
            PN_CHECK(info.bytes <= budget && info.bytes_max == budget && info.pages > 0, "%s: %u of %u bytes", path, (unsigned)info.bytes, (unsigned)budget);
        }
        PN_CHECK(cache_info(r.e).evicted > 10, "%s: %u evicted", path, (unsigned)cache_info(r.e).evicted);
        free(cold.logits);
    }
    cache_close(&r);
}

/* With a limit that a session, a turn or a buffer only meets when the cache gives way. */
static void the_cache_gives_way(void)
{
    cache_rig r;
    pn_err err = {0};
    pn_mem_info i;
    if (cache_open(&r, cache_models[0])) {
        const pn_generate_params p = cache_ask(r.ids, CACHE_PROMPT);
        cache_run(&r, &p, 0, NULL, "alone");
        pn_engine_memory(r.e, &i);
        uint64_t limit = i.total_peak + (2 << 20);
        cache_close(&r);
        if (!cache_open_with(&r, cache_models[0], &(pn_engine_params){.n_threads = 1, .mem_limit = limit, .prefix_bytes = limit}))
            return;
        for (int what = 0; what < 3; what++) {
            pn_session *s = NULL;
            void *buffer = NULL;
            cache_run(&r, &p, 0, NULL, "fills it");
            for (int k = 0; k < 3; k++) {
                pn_token mine[CACHE_PROMPT];
                memcpy(mine, r.ids, sizeof mine);
                mine[0] = 10 + k;
                const pn_generate_params another = cache_ask(mine, CACHE_PROMPT);
                cache_run(&r, &another, 1, NULL, "fills it");
            }
            pn_engine_memory(r.e, &i);
            uint64_t held = cache_info(r.e).bytes, left = limit - i.total_used;
            uint32_t fits = (uint32_t)(left / 2048 / P * P);    /* tokens of 2 KiB each */
            PN_CHECK(held > 500000, "%u bytes cached", (unsigned)held);
            if (what == 0) {
                PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_ctx = fits + 128, .n_batch = 100}, &s, &err) == PN_OK, "%s", err.text);
            } else if (what == 1) {
                s = cache_session(&r, 8000, 1);
                const pn_generate_params turn = {.prompt = r.other + 200, .n_prompt = 5, .max_tokens = fits + 128, .sampling = &cache_how};
                pn_request *q = NULL;
                PN_CHECK(pn_request_new(s, &turn, &q, &err) == PN_OK, "%s", err.text);
                pn_request_free(q);
            } else {
                buffer = pn_alloc(r.e, PN_ACCT_CONN, (size_t)left + 100000);
                PN_CHECK(buffer != NULL, "%u bytes", (unsigned)left + 100000);
            }
            PN_CHECK(cache_info(r.e).bytes < held, "case %d: the cache kept all", what);
            pn_session_free(s);
            if (buffer)
                pn_free(r.e, PN_ACCT_CONN, buffer, (size_t)left + 100000);
        }
        /* What would not fit without a cache either leaves it alone. */
        cache_run(&r, &p, 1, NULL, "fills it");
        uint64_t held = cache_info(r.e).bytes;
        pn_session *s = NULL;
        PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_ctx = 1 << 20}, &s, &err) == PN_E_BUDGET && cache_info(r.e).bytes == held, "%s", err.text);
    }
    cache_close(&r);
}

/* The model goes with what is cached of it, others' stays; the engine closes with pages in the tree. */
static void what_goes_takes_its_pages_along(void)
{
    api_heap h = {0};
    cache_rig r;
    pn_err err = {0};
    pn_mem_info i;
    if (cache_open_with(&r, cache_models[0], &(pn_engine_params){.n_threads = 1, .allocator = {api_heap_alloc, api_heap_free, &h}})) {
        cache_rig b = {.e = r.e};
        const pn_generate_params p = cache_ask(r.ids, CACHE_PROMPT);
        PN_CHECK(pn_model_load(r.e, cache_models[1], NULL, &b.m, &err) == PN_OK, "%s", err.text);
        b.V = pn_vocab_size(b.m);
        for (size_t k = 0; k < CACHE_PROMPT; k++)
            b.ids[k] = r.ids[k] % (pn_token)b.V;
        const pn_generate_params q = cache_ask(b.ids, CACHE_PROMPT);
        PN_CHECK(cache_run(&r, &p, 0, NULL, "one") == 0 && cache_run(&b, &q, 1, NULL, "other") == 0, "models share");
        uint64_t both = cache_info(r.e).pages;
        pn_model_free(r.m);
        r.m = NULL;
        PN_CHECK(cache_info(r.e).pages < both && cache_run(&b, &q, 1, NULL, "the other is there") == 4 * P, "%u pages", (unsigned)cache_info(r.e).pages);
        PN_CHECK(pn_model_load(r.e, cache_models[0], NULL, &r.m, &err) == PN_OK && cache_run(&r, &p, 0, NULL, "loaded again") == 0, "%s", err.text);
        pn_model_free(b.m);
        pn_model_free(r.m);
        r.m = NULL;
        pn_engine_memory(r.e, &i);
        PN_CHECK(i.used[PN_ACCT_KV] == 0 && cache_info(r.e).pages == 0 && i.used[PN_ACCT_PREFIX] == cache_info(r.e).bytes, "%u bytes of pages",
                 (unsigned)i.used[PN_ACCT_PREFIX]);
    }
    cache_close(&r);
    PN_CHECK(h.out == 0, "%ld blocks left", h.out);
}

static pn_status cache_life(pn_engine *e, const char *path)
{
    cache_rig r = {.e = e};
    static pn_token ids[200];
    pn_status st = pn_model_load(e, path, NULL, &r.m, NULL);
    for (size_t i = 0; i < 200; i++)
        ids[i] = (pn_token)(i % 50);
    for (int i = 0; i < 4 && !st; i++) {
        pn_session *s = NULL;
        pn_request *q = NULL;
        uint32_t active = 1;
        const pn_generate_params p = {.prompt = ids + i / 3, .n_prompt = 190, .max_tokens = 5, .sampling = &cache_how};
        st = pn_session_new(r.m, &(pn_session_params){.n_ctx = 256, .n_batch = 80, .by_turn = i % 2}, &s, NULL);
        if (!st && i < 2)
            st = pn_session_generate(s, &p, NULL, NULL);
        else if (!st)
            st = pn_request_new(s, &p, &q, NULL);
        while (q && active)
            pn_engine_step(e, 0, &active, NULL);
        if (q)
            st = pn_request_result(q, NULL, NULL);
        pn_request_free(q);
        pn_session_free(s);
    }
    pn_model_free(r.m);
    return st;
}

static void every_allocation_may_fail(const char *path)
{
    for (long k = 1;; k += 1 + k / 40) {
        api_heap h = {.fail_at = k};
        pn_engine *e = NULL;
        pn_status st = pn_engine_open(&e, &(pn_engine_params){.n_threads = 1, .allocator = {api_heap_alloc, api_heap_free, &h}}, NULL);
        if (!st)
            st = cache_life(e, path);
        pn_engine_close(e);
        PN_CHECK(h.out == 0, "failing allocation %ld leaks %ld blocks", k, h.out);
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM || st == PN_E_BUDGET, "failing allocation %ld gives %s", k, pn_status_name(st));
        if (h.calls < k)
            break;
    }
}

int main(void)
{
    for (size_t i = 0; i < sizeof cache_models / sizeof *cache_models; i++) {
        warm_and_cold_are_the_same(cache_models[i]);
        many_requests_share_a_beginning(cache_models[i]);
        a_small_budget_holds(cache_models[i]);
    }
    salts_and_wishes_are_kept_apart();
    kinds_are_kept_apart();
    for (int by_turn = 0; by_turn < 2; by_turn++) {
        conversations_begin_with_what_is_known(cache_models[0], by_turn);
        conversations_begin_with_what_is_known(cache_hybrid, by_turn);
    }
    many_requests_share_a_beginning(cache_hybrid);
    a_small_budget_holds(cache_hybrid);
    the_cache_gives_way();
    what_goes_takes_its_pages_along();
    every_allocation_may_fail(cache_models[1]);
    every_allocation_may_fail(cache_hybrid);
    return pn_test_end();
}
