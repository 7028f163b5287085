/*
 * test_requant.c - a session whose pages were made smaller: it goes on, close to what it would have said; its caller
 * can tell; what it computes from then on is not offered to others; memory is what the ledger says.
 */
#include "engine/pn_cache.h"
#include "engine/pn_gate.h"

#include "pn_test.h"

enum { P = PN_KV_PAGE_TOKENS, N = 900 };

typedef struct rq_rig {
    pn_engine *e;
    pn_model *m;
    pn_token ids[N];
} rq_rig;

static void rq_open(rq_rig *r, uint64_t mem_limit)
{
    pn_err err = {0};
    size_t n = 0, cap = 16384;
    pn_str s;
    pn_mem mem;
    pn_mem_init_libc(&mem);
    pn_str_init(&s, &mem, PN_ACCT_MISC);
    pn_token *all = malloc(cap * sizeof *all);
    for (size_t i = 0; pn_gate_text(i); i++)
        pn_str_addz(&s, pn_gate_text(i));
    PN_CHECK(pn_engine_open(&r->e, &(pn_engine_params){.n_threads = 2, .mem_limit = mem_limit}, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_model_load(r->e, "models/demo.gguf", NULL, &r->m, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_tokenize(r->m, s.data, s.len, PN_TOKENIZE_BOS, all, cap, &n, &err) == PN_OK && n >= N, "%s", err.text);
    memcpy(r->ids, all, sizeof r->ids);
    free(all);
    pn_str_fini(&s);
}

static void rq_close(rq_rig *r)
{
    pn_model_free(r->m);
    pn_engine_close(r->e);
}

static pn_session *rq_session(rq_rig *r, int by_turn)
{
    pn_session *s = NULL;
    pn_err err = {0};
    PN_CHECK(pn_session_new(r->m, &(pn_session_params){.n_ctx = N + 200, .n_batch = 128, .by_turn = by_turn}, &s, &err) == PN_OK, "%s", err.text);
    return s;
}

static uint64_t rq_kv_bytes(const rq_rig *r)
{
    pn_mem_info i;
    pn_engine_memory(r->e, &i);
    return i.used[PN_ACCT_KV] + i.used[PN_ACCT_PREFIX];
}

static double rq_kl(const float *a, const float *b, uint32_t n)
{
    double ma = -1e30, mb = -1e30, sa = 0, sb = 0, kl = 0;
    for (uint32_t i = 0; i < n; i++) {
        ma = PN_MAX(ma, (double)a[i]);
        mb = PN_MAX(mb, (double)b[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        sa += exp((double)a[i] - ma);
        sb += exp((double)b[i] - mb);
    }
    for (uint32_t i = 0; i < n; i++) {
        double la = (double)a[i] - ma - log(sa), lb = (double)b[i] - mb - log(sb);
        kl += exp(la) * (la - lb);
    }
    return kl;
}

/* Half a text, conversion, the rest of it: mean divergence from a session that was left alone. */
static void live_pages_become_smaller(rq_rig *r, uint32_t type, double most)
{
    const uint32_t V = pn_vocab_size(r->m), half = 500, rest = N - half;
    float *want = malloc((size_t)rest * V * sizeof *want), *got = malloc((size_t)rest * V * sizeof *got);
    pn_err err = {0};
    pn_dtype now, small;
    int degraded;
    pn_session *calm = rq_session(r, 1), *s = rq_session(r, 1);
    PN_CHECK(pn_session_eval(calm, r->ids, half, &err) == PN_OK && pn_session_eval_all(calm, r->ids + half, rest, want, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_session_eval(s, r->ids, half, &err) == PN_OK, "%s", err.text);
    uint64_t had = rq_kv_bytes(r), gain = pn_session_requant_gain(s, type, false, false);
    pn_session_kv_types(s, &now, &small, &degraded);
    PN_CHECK(gain && !degraded && small == PN_DTYPE_F16, " ");
    PN_CHECK(pn_session_requant(s, type, false, false, 0) == gain / 5, "a deadline that has passed: one page of five");
    PN_CHECK(gain / 5 * 4 == pn_session_requant(s, type, false, false, pn_os_now() + 60) && had - rq_kv_bytes(r) == gain, "freed is what the ledger says");
    pn_session_kv_types(s, &now, &small, &degraded);
    PN_CHECK(degraded && now == PN_DTYPE_F16 && small == (pn_dtype)type, "%s", pn_kv_type_name(small));
    PN_CHECK(pn_session_eval_all(s, r->ids + half, rest, got, &err) == PN_OK, "%s", err.text);
    double kl = 0;
    for (size_t i = 0; i < rest; i++)
        kl += rq_kl(want + i * V, got + i * V, V);
    kl /= rest;
    printf("live f16 to %s: mean divergence %.2g\n", pn_kv_type_name((pn_dtype)type), kl);
    PN_CHECK(kl > 0 && kl < most, "%s: %g", pn_kv_type_name((pn_dtype)type), kl);
    /* Cut before the first converted page, it is what it was. */
    PN_CHECK(pn_session_truncate(s, P, &err) == PN_OK, "%s", err.text);
    pn_session_kv_types(s, NULL, &small, &degraded);
    PN_CHECK(!degraded && small == PN_DTYPE_F16, "still degraded");
    PN_CHECK(pn_session_eval(s, r->ids + P, N - P, &err) == PN_OK && memcmp(pn_session_logits(s), pn_session_logits(calm), V * sizeof(float)) == 0, "other bits");
    pn_session_free(calm);
    pn_session_free(s);
    free(want);
    free(got);
}

/* A mixed sequence gives the same bits in steps of any size: F16, Q8_0 and Q4_0 pages, some rotated. */
static void mixed_pages_do_not_show_chunks(rq_rig *r)
{
    const uint32_t V = pn_vocab_size(r->m);
    float *want = malloc(V * sizeof *want);
    pn_err err = {0};
    for (uint32_t chunk = 400; chunk; chunk /= 20) {
        pn_session *s = rq_session(r, 1);
        PN_CHECK(pn_session_eval(s, r->ids, 500, &err) == PN_OK, "%s", err.text);
        (void)pn_session_requant(s, PN_DTYPE_Q8_0, true, false, pn_os_now() + 60);
        pn_mutex_lock(&pn_session_die(s)->cache.lock);
        PN_CHECK(pn_kv_requant_some(&s->kv, PN_DTYPE_Q4_0, false, 3) > 0, " ");
        pn_mutex_unlock(&pn_session_die(s)->cache.lock);
        for (uint32_t at = 500; at < N && !err.text[0]; at += chunk)
            PN_CHECK(pn_session_eval(s, r->ids + at, PN_MIN(chunk, N - at), &err) == PN_OK, "%s", err.text);
        if (chunk == 400)
            memcpy(want, pn_session_logits(s), V * sizeof *want);
        PN_CHECK(memcmp(want, pn_session_logits(s), V * sizeof *want) == 0, "steps of %u: other bits", (unsigned)chunk);
        pn_session_free(s);
    }
    free(want);
}

static const pn_sampling rq_how = {.size = sizeof rq_how, .ignore_eos = 1};

/* What comes behind a converted page is not kept for others, and what the cache gave is not converted. */
static void the_prefix_cache_gets_no_degraded_page(rq_rig *r)
{
    pn_err err = {0};
    pn_generate_result g;
    pn_session *s = rq_session(r, 1), *t = rq_session(r, 1);
    pn_generate_params p = {.prompt = r->ids + 3, .n_prompt = 400, .max_tokens = 40, .sampling = &rq_how};
    PN_CHECK(pn_session_eval(s, p.prompt, 400, &err) == PN_OK && pn_session_requant(s, PN_DTYPE_Q8_0, false, false, 0) > 0, "%s", err.text);
    pn_generate_params on = {.prompt = p.prompt + 400, .n_prompt = 1, .max_tokens = 40, .sampling = &rq_how};
    PN_CHECK(pn_session_generate(s, &on, &g, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_model_cached(r->m, p.prompt, 400) == P, "%u tokens are kept", (unsigned)pn_model_cached(r->m, p.prompt, 400));
    PN_CHECK(pn_session_generate(t, &p, &g, &err) == PN_OK && g.n_cached == P && pn_model_cached(r->m, p.prompt, 400) == 6 * P, "%u", (unsigned)g.n_cached);
    PN_CHECK(pn_session_requant_gain(t, PN_DTYPE_Q8_0, false, false) == 0 && pn_session_requant(t, PN_DTYPE_Q8_0, false, false, 1e18) == 0, "the tree holds its pages");
    /* Once the tree has let go of them they may be. */
    pn_cache *c = &pn_session_die(t)->cache;
    pn_mutex_lock(&c->lock);
    pn_prefix_clear(c->tree);
    pn_mutex_unlock(&c->lock);
    uint64_t had = rq_kv_bytes(r), gain = pn_session_requant_gain(t, PN_DTYPE_Q8_0, false, false);
    PN_CHECK(gain && pn_session_requant(t, PN_DTYPE_Q8_0, false, false, 1e18) == gain && had - rq_kv_bytes(r) == gain, " ");
    PN_CHECK(pn_session_generate(t, &on, &g, &err) == PN_OK && pn_model_cached(r->m, p.prompt, 400) == P, "%s", err.text);
    pn_session_free(s);
    pn_session_free(t);
}

/* An idle session's pages that the cache has beside it become smaller, for the cache lets go of them: behind what others hold,
 * too, or go on from.  Freed is what the ledger says; what is cached afterwards has the bits of a cold run. */
static void what_the_cache_holds_beside_an_idle_session_becomes_smaller(rq_rig *r)
{
    pn_err err = {0};
    pn_generate_result g;
    pn_generate_params p = {.prompt = r->ids + 5, .n_prompt = 400, .max_tokens = 40, .sampling = &rq_how}, q = p;
    pn_session *cold = rq_session(r, 1), *s = rq_session(r, 1), *t = rq_session(r, 1);
    pn_token two[400];
    p.no_cache = 1;
    PN_CHECK(pn_session_generate(cold, &p, &g, &err) == PN_OK, "%s", err.text);
    p.no_cache = 0;
    PN_CHECK(pn_session_generate(s, &p, &g, &err) == PN_OK && g.n_cached == 0 && pn_model_cached(r->m, p.prompt, 400) == 6 * P, "%s", err.text);
    PN_CHECK(pn_session_requant_gain(s, PN_DTYPE_Q8_0, false, false) == 0, "without the cache's leave");
    uint64_t page = pn_kv_page_cost(s->kv.spec, 0, PN_DTYPE_F16) - pn_kv_page_cost(s->kv.spec, 0, PN_DTYPE_Q8_0);

    /* Another session shares three pages and parts: the others are the first's. */
    memcpy(two, p.prompt, sizeof two);
    for (int i = 3 * P + 10; i < 400; i++)
        two[i] = r->ids[i + 300];
    q.prompt = two;
    PN_CHECK(pn_session_generate(t, &q, &g, &err) == PN_OK && g.n_cached == 3 * P, "%u", (unsigned)g.n_cached);
    uint64_t gain = pn_session_requant_gain(s, PN_DTYPE_Q8_0, false, true), had = pn_mem_used(r->e);
    PN_CHECK(gain == 2 * page, "%llu bytes, a page gives %llu", (unsigned long long)gain, (unsigned long long)page);        /* 3 and 4; 5 and 6 are recent */
    uint64_t freed = pn_session_requant(s, PN_DTYPE_Q8_0, false, true, 1e18);
    PN_CHECK(freed >= gain && had - pn_mem_used(r->e) == freed, "%llu of %llu", (unsigned long long)freed, (unsigned long long)(had - pn_mem_used(r->e)));
    PN_CHECK(pn_prefix_sound(pn_session_die(s)->cache.tree) && pn_model_cached(r->m, p.prompt, 400) == 3 * P && pn_model_cached(r->m, two, 400) == 6 * P, "%u",
             (unsigned)pn_model_cached(r->m, p.prompt, 400));
    PN_CHECK(pn_session_requant_gain(s, PN_DTYPE_Q8_0, false, true) == 0, "what two sessions hold");
    pn_session_free(s);

    /* The other one has everything to itself now but the first page. */
    gain = pn_session_requant_gain(t, PN_DTYPE_Q8_0, false, true);
    PN_CHECK(gain == 4 * page && pn_session_requant(t, PN_DTYPE_Q8_0, false, true, 0) > page && pn_session_requant(t, PN_DTYPE_Q8_0, false, true, 1e18) == 3 * page &&
             pn_model_cached(r->m, two, 400) == P && pn_prefix_sound(pn_session_die(t)->cache.tree), "%u pages", (unsigned)(gain / page));
    s = rq_session(r, 1);
    PN_CHECK(pn_session_generate(s, &p, &g, &err) == PN_OK && g.n_cached == P && !g.kv_degraded &&
             memcmp(pn_session_logits(s), pn_session_logits(cold), pn_vocab_size(r->m) * sizeof(float)) == 0, "other bits");
    pn_session_free(s);
    pn_session_free(t);
    pn_session_free(cold);
}

static void the_gate_is_asked_by_type(rq_rig *r)
{
    pn_err err = {0};
    pn_kv_gate g;
    const pn_kv_gate_params loose = {.max_kl = 1, .min_top1 = 0.5};
    PN_CHECK(!pn_gate_known(r->m, PN_DTYPE_Q8_0, NULL, &g) && !pn_gate_known(r->m, PN_DTYPE_COUNT, NULL, &g), "nobody has probed");
    PN_CHECK(pn_gate_smallest(r->m, PN_DTYPE_Q4_0, &loose) == PN_DTYPE_F16, "what nobody has probed has not passed");
    PN_CHECK(pn_model_kv_gate(r->m, PN_DTYPE_Q8_0, NULL, &g, &err) == PN_OK && pn_model_kv_gate(r->m, PN_DTYPE_Q4_0, NULL, &g, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_gate_smallest(r->m, PN_DTYPE_Q4_0, NULL) == PN_DTYPE_Q8_0 && pn_gate_smallest(r->m, PN_DTYPE_Q4_0, &loose) == PN_DTYPE_Q4_0 &&
             pn_gate_smallest(r->m, PN_DTYPE_Q5_1, &loose) == PN_DTYPE_Q8_0 && pn_gate_smallest(r->m, PN_DTYPE_F16, &loose) == PN_DTYPE_F16, "the smallest that passes");
}

int main(void)
{
    rq_rig r = {0};
    rq_open(&r, 0);
    live_pages_become_smaller(&r, PN_DTYPE_Q8_0, 0.002);
    live_pages_become_smaller(&r, PN_DTYPE_Q4_0, 0.05);
    mixed_pages_do_not_show_chunks(&r);
    what_the_cache_holds_beside_an_idle_session_becomes_smaller(&r);
    the_prefix_cache_gets_no_degraded_page(&r);
    the_gate_is_asked_by_type(&r);
    rq_close(&r);
    return pn_test_end();
}
