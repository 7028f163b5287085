/*
 * test_turns.c - sessions by the turn: memory for keys and values comes with a turn and goes with it, an
 * admitted turn never runs out, one that does not fit is refused and harms nothing, and the bits are the same.
 */
#include "pantheon.h"
#include "pn_api_test.h"

static const char *const turn_models[] = {"models/demo.gguf", "tests/vectors/golden/arch/gemma3.gguf", "tests/vectors/golden/arch/phi3.gguf"};

static const pn_sampling turn_on = {.size = sizeof turn_on, .ignore_eos = 1};

static uint64_t turn_kv(pn_engine *e)
{
    pn_mem_info i;
    pn_engine_memory(e, &i);
    return i.used[PN_ACCT_KV] + i.used[PN_ACCT_KV_RESERVE];
}

typedef struct turn_rig {
    pn_engine *e;
    pn_model *m;
    uint32_t V;
    pn_token ids[600];
} turn_rig;

static int turn_open(turn_rig *r, const char *path, uint64_t limit, int no_prefix)
{
    pn_err err = {0};
    uint64_t seed = 7;
    memset(r, 0, sizeof *r);
    if (!PN_CHECK(pn_engine_open(&r->e, &(pn_engine_params){.n_threads = 2, .mem_limit = limit, .no_prefix = no_prefix}, &err) == PN_OK, "%s", err.text) ||
        !PN_CHECK(pn_model_load(r->e, path, NULL, &r->m, &err) == PN_OK, "%s", err.text))
        return 0;
    r->V = pn_vocab_size(r->m);
    for (size_t i = 0; i < 600; i++)
        r->ids[i] = (pn_token)(pn_test_rand(&seed) % r->V);
    return 1;
}

static void turn_close(turn_rig *r)
{
    pn_model_free(r->m);
    pn_engine_close(r->e);
}

static pn_session *turn_session(turn_rig *r, uint32_t n_ctx, int by_turn)
{
    pn_session *s = NULL;
    pn_err err = {0};
    PN_CHECK(pn_session_new(r->m, &(pn_session_params){.n_ctx = n_ctx, .n_batch = 50, .by_turn = by_turn}, &s, &err) == PN_OK, "%s", err.text);
    return s;
}

static int turn_measure(void *user, const char *text, size_t len, pn_token token)
{
    uint64_t *most = ((void **)user)[1], now = turn_kv(((void **)user)[0]);
    (void)text, (void)len, (void)token;
    *most = now > *most ? now : *most;
    return 0;
}

static void turns_give_the_same_bits(turn_rig *r, const char *path)
{
    pn_session *whole = turn_session(r, 600, 0), *s = turn_session(r, 600, 1);
    pn_err err = {0};
    uint64_t before = turn_kv(r->e), most = 0;
    void *seen[] = {r->e, &most};
    uint32_t at = 0;
    for (int turn = 0; turn < 4; turn++) {
        static const uint32_t n_prompt[] = {200, 1, 70, 30}, n_new[] = {40, 5, 30, 150};
        const pn_generate_params p = {.prompt = r->ids + at, .n_prompt = n_prompt[turn], .max_tokens = n_new[turn], .sampling = &turn_on,
                                      .on_text = turn_measure, .user = seen};
        pn_generate_result a, b;
        at += n_prompt[turn];
        PN_CHECK(pn_session_generate(whole, &p, &a, &err) == PN_OK && pn_session_generate(s, &p, &b, &err) == PN_OK, "%s: %s", path, err.text);
        uint32_t n = pn_session_length(whole);
        PN_CHECK(a.n_generated == n_new[turn] && b.n_generated == a.n_generated && a.n_context == n - n_new[turn] && b.n_context == a.n_context &&
                 pn_session_length(s) == n && memcmp(pn_session_tokens(whole), pn_session_tokens(s), n * sizeof(pn_token)) == 0 &&
                 memcmp(pn_session_logits(whole), pn_session_logits(s), r->V * sizeof(float)) == 0, "%s, turn %d", path, turn);
    }
    PN_CHECK(most > before, "%s: %u bytes", path, (unsigned)most);
    PN_CHECK(pn_session_truncate(s, 0, &err) == PN_OK && turn_kv(r->e) == before, "%s: %u bytes left of empty", path, (unsigned)turn_kv(r->e));
    for (uint32_t i = 0; i < 300; i += 60)
        PN_CHECK(pn_session_eval(s, r->ids + i, 60, &err) == PN_OK, "%s: %s", path, err.text);
    uint64_t full = turn_kv(r->e);
    PN_CHECK(pn_session_truncate(whole, 0, &err) == PN_OK && pn_session_eval(whole, r->ids, 300, &err) == PN_OK && turn_kv(r->e) == full &&
             memcmp(pn_session_logits(whole), pn_session_logits(s), r->V * sizeof(float)) == 0, "%s: evaluated by pieces", path);
    pn_session_free(s);
    pn_session_free(whole);
}

/* The whole of it is there at the first token, and what was not needed is gone at the end. */
static void a_turn_takes_all_it_may_need_at_once(void)
{
    turn_rig r;
    pn_plan_info plan;
    pn_file *f = NULL;
    pn_err err = {0};
    if (turn_open(&r, turn_models[0], 0, 1) && PN_CHECK(pn_file_open(r.e, turn_models[0], &f, &err) == PN_OK, "%s", err.text)) {
        PN_CHECK(pn_file_plan(f, &(pn_plan_params){.n_ctx = 600, .n_batch = 50}, &plan, &err) == PN_OK, "%s", err.text);
        uint64_t page = plan.kv_bytes_per_token * 64 + 64, none = turn_kv(r.e), most = 0;
        void *seen[] = {r.e, &most};
        pn_session *s = turn_session(&r, 600, 1);
        uint64_t tables = turn_kv(r.e) - none;
        PN_CHECK(tables == 2 * 10 * sizeof(void *), "%u bytes of an empty session", (unsigned)tables);
        pn_generate_params p = {.prompt = r.ids, .n_prompt = 100, .max_tokens = 29, .sampling = &turn_on, .on_text = turn_measure, .user = seen};
        PN_CHECK(pn_session_generate(s, &p, NULL, &err) == PN_OK && most == none + tables + 3 * page, "%u bytes, %u a page", (unsigned)most, (unsigned)page);
        most = 0;
        PN_CHECK(pn_session_truncate(s, 0, &err) == PN_OK, "%s", err.text);
        p.on_text = NULL;
        PN_CHECK(pn_session_generate(s, &p, NULL, &err) == PN_OK && turn_kv(r.e) == none + tables + 3 * page, "%u bytes at its end", (unsigned)turn_kv(r.e));
        pn_request *q = NULL;
        p = (pn_generate_params){.prompt = r.ids, .n_prompt = 10, .sampling = &turn_on};
        PN_CHECK(pn_request_new(s, &p, &q, &err) == PN_OK && turn_kv(r.e) == none + tables + 10 * page, "%u bytes without max_tokens", (unsigned)turn_kv(r.e));
        pn_request_free(q);
        PN_CHECK(turn_kv(r.e) == none + tables + 3 * page, "%u bytes after a request that was freed", (unsigned)turn_kv(r.e));
        pn_session_free(s);
        PN_CHECK(turn_kv(r.e) == none, "%u bytes", (unsigned)turn_kv(r.e));
    }
    pn_file_close(f);
    turn_close(&r);
}

/* A limit that a whole session would break: short turns fit, and a long one while nobody else has one. */
static void a_turn_that_does_not_fit_is_refused(void)
{
    turn_rig r;
    pn_err err = {0};
    pn_mem_info i;
    if (!turn_open(&r, turn_models[0], 0, 1))
        return;
    pn_session *probe = turn_session(&r, 8192, 1);
    const pn_generate_params one = {.prompt = r.ids, .n_prompt = 1, .max_tokens = 1};
    PN_CHECK(pn_session_generate(probe, &one, NULL, &err) == PN_OK, "%s", err.text);
    pn_session_free(probe);
    pn_engine_memory(r.e, &i);
    uint64_t limit = i.total_peak + (3 << 20);
    turn_close(&r);
    if (!turn_open(&r, turn_models[0], limit, 1))
        return;
    pn_session *whole = NULL;
    PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_ctx = 8192, .n_batch = 50}, &whole, &err) == PN_E_BUDGET, "%s", err.text);
    pn_session *a = turn_session(&r, 8192, 1), *b = turn_session(&r, 8192, 1);
    pn_generate_params p = {.prompt = r.ids, .n_prompt = 100, .max_tokens = 20, .sampling = &turn_on};
    PN_CHECK(pn_session_generate(a, &p, NULL, &err) == PN_OK, "%s", err.text);
    uint32_t n = pn_session_length(a);
    float *was = malloc(r.V * sizeof *was);
    memcpy(was, pn_session_logits(a), r.V * sizeof *was);
    uint64_t held = turn_kv(r.e);
    p.max_tokens = 0;
    pn_request *q = NULL, *w = NULL;
    PN_CHECK(pn_session_generate(a, &p, NULL, &err) == PN_E_BUDGET && strstr(err.text, "8192 tokens") && strstr(err.text, "bytes more"), "%s", err.text);
    PN_CHECK(pn_request_new(a, &p, &q, &err) == PN_E_BUDGET, "%s", err.text);
    PN_CHECK(pn_session_length(a) == n && memcmp(was, pn_session_logits(a), r.V * sizeof *was) == 0 && turn_kv(r.e) == held, "a refused turn left traces");
    for (p.max_tokens = 4000; pn_request_new(a, &p, &q, &err) == PN_E_BUDGET; p.max_tokens = p.max_tokens * 3 / 4)
        ;
    PN_CHECK(q != NULL && p.max_tokens > 50, "%u tokens fit: %s", (unsigned)p.max_tokens, err.text);
    PN_CHECK(pn_request_new(b, &p, &w, &err) == PN_E_BUDGET && pn_session_length(b) == 0, "both fit");
    pn_request_free(q);
    PN_CHECK(pn_request_new(b, &p, &w, &err) == PN_OK, "%s", err.text);
    pn_request_free(w);
    free(was);
    pn_session_free(a);
    pn_session_free(b);
    pn_session *any = NULL;
    PN_CHECK(pn_session_new(r.m, &(pn_session_params){.n_batch = 50, .by_turn = 1}, &any, &err) == PN_OK && pn_session_capacity(any) >= 512, "%s", err.text);
    pn_session_free(any);
    turn_close(&r);
}

static pn_status turn_life(pn_engine *e)
{
    pn_model *m = NULL;
    pn_session *s = NULL;
    pn_chat *c = NULL;
    static const pn_token ids[100] = {5, 6, 7};
    const pn_generate_params p = {.prompt = ids, .n_prompt = 100, .max_tokens = 40, .sampling = &turn_on}, short_one = {.max_tokens = 3};
    pn_status st = pn_model_load(e, "models/demo.gguf", NULL, &m, NULL);
    if (!st)
        st = pn_session_new(m, &(pn_session_params){.n_ctx = 400, .n_batch = 50, .by_turn = 1}, &s, NULL);
    if (!st)
        st = pn_session_generate(s, &p, NULL, NULL);
    if (!st)
        st = pn_session_eval(s, ids, 60, NULL);
    if (!st)
        st = pn_chat_new(s, NULL, &c, NULL);
    if (!st)
        st = pn_chat_say(c, "user", "Hi", 0, NULL);
    if (!st)
        st = pn_chat_reply(c, &(pn_chat_reply_params){.generate = &short_one}, NULL, NULL);
    pn_chat_free(c);
    pn_session_free(s);
    pn_model_free(m);
    return st;
}

static void every_allocation_may_fail(void)
{
    for (long k = 1;; k += k < 80 ? 1 : 1 + k / 60) {
        api_heap h = {.fail_at = k};
        pn_engine *e = NULL;
        pn_status st = pn_engine_open(&e, &(pn_engine_params){.n_threads = 1, .allocator = {api_heap_alloc, api_heap_free, &h}}, NULL);
        if (!st)
            st = turn_life(e);
        pn_engine_close(e);
        PN_CHECK(h.out == 0, "failing allocation %ld leaks %ld blocks", k, h.out);
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM || st == PN_E_BUDGET, "failing allocation %ld gives %s", k, pn_status_name(st));
        if (h.calls < k)
            break;
    }
}

int main(void)
{
    for (size_t i = 0; i < 2 * sizeof turn_models / sizeof *turn_models; i++) {
        turn_rig r;
        if (turn_open(&r, turn_models[i / 2], 0, i % 2))
            turns_give_the_same_bits(&r, turn_models[i / 2]);
        turn_close(&r);
    }
    a_turn_takes_all_it_may_need_at_once();
    a_turn_that_does_not_fit_is_refused();
    every_allocation_may_fail();
    return pn_test_end();
}
