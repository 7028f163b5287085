/*
 * test_requant.c - a session whose pages were made smaller: it goes on, close to what it would have said; its caller
 * can tell; what it computes from then on is not offered to others; memory is what the ledger says.
 */
#include "engine/pn_cache.h"
#include "engine/pn_gate.h"
#include "engine/pn_smaller.h"

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

/* With the type asked for, which is then nobody's to change; that it computes with is the same. */
static pn_session *rq_session_of(rq_rig *r, int by_turn)
{
    pn_session *s = NULL;
    pn_err err = {0};
    const pn_session_params p = {.n_ctx = N + 200, .n_batch = 128, .by_turn = by_turn, .has_kv_type = 1, .kv_type = PN_DTYPE_F16};
    PN_CHECK(pn_session_new(r->m, &p, &s, &err) == PN_OK, "%s", err.text);
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
    uint64_t had = rq_kv_bytes(r), gain = pn_session_requant_gain(s, type, false);
    pn_session_kv_types(s, &now, &small, &degraded);
    PN_CHECK(gain && !degraded && small == PN_DTYPE_F16, " ");
    PN_CHECK(pn_session_requant(s, type, false, 0) == gain / 5, "a deadline that has passed: one page of five");
    PN_CHECK(gain / 5 * 4 == pn_session_requant(s, type, false, pn_os_now() + 60) && had - rq_kv_bytes(r) == gain, "freed is what the ledger says");
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
        (void)pn_session_requant(s, PN_DTYPE_Q8_0, true, pn_os_now() + 60);
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
    PN_CHECK(pn_session_eval(s, p.prompt, 400, &err) == PN_OK && pn_session_requant(s, PN_DTYPE_Q8_0, false, 0) > 0, "%s", err.text);
    pn_generate_params on = {.prompt = p.prompt + 400, .n_prompt = 1, .max_tokens = 40, .sampling = &rq_how};
    PN_CHECK(pn_session_generate(s, &on, &g, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_model_cached(r->m, p.prompt, 400) == P, "%u tokens are kept", (unsigned)pn_model_cached(r->m, p.prompt, 400));
    PN_CHECK(pn_session_generate(t, &p, &g, &err) == PN_OK && g.n_cached == P && pn_model_cached(r->m, p.prompt, 400) == 6 * P, "%u", (unsigned)g.n_cached);
    PN_CHECK(pn_session_requant_gain(t, PN_DTYPE_Q8_0, false) == 0 && pn_session_requant(t, PN_DTYPE_Q8_0, false, 1e18) == 0, "the tree holds its pages");
    /* Once the tree has let go of them they may be. */
    pn_cache *c = &pn_session_die(t)->cache;
    pn_mutex_lock(&c->lock);
    pn_prefix_clear(c->tree);
    pn_mutex_unlock(&c->lock);
    uint64_t had = rq_kv_bytes(r), gain = pn_session_requant_gain(t, PN_DTYPE_Q8_0, false);
    PN_CHECK(gain && pn_session_requant(t, PN_DTYPE_Q8_0, false, 1e18) == gain && had - rq_kv_bytes(r) == gain, " ");
    PN_CHECK(pn_session_generate(t, &on, &g, &err) == PN_OK && pn_model_cached(r->m, p.prompt, 400) == P, "%s", err.text);
    pn_session_free(s);
    pn_session_free(t);
}

/* A turn of `n` tokens from ids[from..), and 40 more. */
static pn_generate_result rq_turn(rq_rig *r, pn_session *s, const pn_token *ids, size_t n, int no_cache)
{
    const pn_generate_params p = {.prompt = ids, .n_prompt = n, .max_tokens = 40, .sampling = &rq_how, .no_cache = no_cache};
    pn_generate_result g = {0};
    pn_err err = {0};
    (void)r;
    PN_CHECK(pn_session_generate(s, &p, &g, &err) == PN_OK && g.n_generated == 40, "%s", err.text);
    return g;
}

static uint64_t rq_page(const pn_session *s) { return pn_kv_page_cost(s->kv.spec, 0, PN_DTYPE_F16) - pn_kv_page_cost(s->kv.spec, 0, PN_DTYPE_Q8_0); }

static uint64_t rq_gain(rq_rig *r) { return pn_smaller_idle_gain(r->m, PN_DTYPE_Q8_0, false); }

static const pn_prefix *rq_tree(const pn_session *s) { return pn_session_die(s)->cache.tree; }

static int rq_degraded(const pn_session *s)
{
    int d;
    pn_session_kv_types(s, NULL, NULL, &d);
    return d;
}

/* All that may be, of all that rest: what the ledger says, and nothing is left. */
static void rq_smaller(rq_rig *r, uint64_t gain, bool with_nodes)
{
    uint64_t had = pn_mem_used(r->e), freed = pn_smaller_idle(r->m, PN_DTYPE_Q8_0, false, UINT64_MAX, 1e18);
    PN_CHECK(freed >= gain && (with_nodes || freed == gain) && had - pn_mem_used(r->e) == freed && rq_gain(r) == 0, "%llu of %llu, the ledger %llu",
             (unsigned long long)freed, (unsigned long long)gain, (unsigned long long)(had - pn_mem_used(r->e)));
}

/* An idle session's pages that the cache has beside it become smaller, for the cache lets go of them.  Freed is what the ledger
 * says; what is cached afterwards has the bits of a cold run. */
static void what_the_cache_holds_beside_an_idle_session_becomes_smaller(rq_rig *r)
{
    const pn_token *ids = r->ids + 5;
    pn_session *cold = rq_session_of(r, 1), *s = rq_session(r, 1), *t;
    rq_turn(r, cold, ids, 400, 1);
    PN_CHECK(rq_turn(r, s, ids, 400, 0).n_cached == 0 && pn_model_cached(r->m, ids, 400) == 6 * P, "not kept");
    PN_CHECK(pn_session_requant_gain(s, PN_DTYPE_Q8_0, false) == 0, "without the cache's leave");
    uint64_t page = rq_page(s), gain = rq_gain(r), had = pn_mem_used(r->e);
    PN_CHECK(gain == 4 * page, "%llu bytes, a page gives %llu", (unsigned long long)gain, (unsigned long long)page);
    uint64_t freed = pn_smaller_idle(r->m, PN_DTYPE_Q8_0, false, UINT64_MAX, 0);
    PN_CHECK(freed > page && freed < 2 * page && had - pn_mem_used(r->e) == freed && rq_gain(r) == 3 * page, "a deadline that has passed: one page and the cache's nodes");
    freed = pn_smaller_idle(r->m, PN_DTYPE_Q8_0, false, 1, 1e18);
    PN_CHECK(freed == page, "one is enough");
    rq_smaller(r, 2 * page, false);
    PN_CHECK(pn_model_cached(r->m, ids, 400) == P && pn_prefix_sound(rq_tree(s)) && rq_degraded(s), "the cache");
    t = rq_session(r, 1);
    PN_CHECK(rq_turn(r, t, ids, 400, 0).n_cached == P && !rq_degraded(t) &&
             memcmp(pn_session_logits(t), pn_session_logits(cold), pn_vocab_size(r->m) * sizeof(float)) == 0, "other bits");
    pn_session_free(s);
    pn_session_free(t);
    pn_session_free(cold);
}

/* Two texts that part in their fourth page. */
static void rq_two(rq_rig *r, const pn_token **one, pn_token two[400])
{
    *one = r->ids + 7;
    memcpy(two, *one, 400 * sizeof *two);
    for (int i = 3 * P + 10; i < 400; i++)
        two[i] = r->ids[i + 300];
}

/* Sessions that began alike: what they share is converted once, and goes on with the bits of one that was alone; the cache lets
 * go of both ways; each says so in its next answer. */
static void shared_pages_become_smaller_once(rq_rig *r, int n_more)
{
    const pn_token *one;
    pn_token two[400];
    const uint32_t V = pn_vocab_size(r->m);
    pn_err err = {0};
    rq_two(r, &one, two);
    pn_session *alone = rq_session_of(r, 1), *s = rq_session(r, 1), *t = rq_session(r, 1), *more[8] = {NULL};
    rq_turn(r, alone, two, 400, 1);
    rq_turn(r, s, one, 400, 0);
    PN_CHECK(rq_turn(r, t, two, 400, 0).n_cached == 3 * P, "they do not share");
    for (int i = 0; i < n_more; i++) {
        more[i] = rq_session(r, 1);
        PN_CHECK(rq_turn(r, more[i], i & 1 ? two : one, 300 + 10 * (size_t)i, 0).n_cached >= 3 * P, "they do not share");
    }
    uint64_t page = rq_page(s), gain = rq_gain(r), had = pn_mem_used(r->e);
    PN_CHECK(n_more || gain == 6 * page, "%llu bytes, a page gives %llu", (unsigned long long)gain, (unsigned long long)page);
    uint64_t freed = pn_smaller_idle(r->m, PN_DTYPE_Q8_0, false, UINT64_MAX, 0);
    pn_kv_page *shared = s->kv.group[0].table[1];
    PN_CHECK(freed > page && had - pn_mem_used(r->e) == freed && rq_gain(r) == gain - page, "one page of several: %llu, the ledger %llu", (unsigned long long)freed,
             (unsigned long long)(had - pn_mem_used(r->e)));
    PN_CHECK(shared == t->kv.group[0].table[1] && shared->k_type == PN_DTYPE_Q8_0 && shared->common && shared->refs == 2u + (uint32_t)n_more, "one page for all");
    for (int i = 0; i < n_more; i++)
        PN_CHECK(more[i]->kv.group[0].table[1] == shared && rq_degraded(more[i]), "for all");
    rq_smaller(r, gain - page, n_more > 0);
    PN_CHECK(rq_degraded(s) && rq_degraded(t) && pn_prefix_sound(rq_tree(s)) && pn_model_cached(r->m, one, 400) == P, "flags, or the cache");
    for (int i = 0; i < n_more; i++)
        pn_session_free(more[i]);
    rq_smaller(r, rq_gain(r), true);            /* what was recent in one of those */
    (void)pn_session_requant(alone, PN_DTYPE_Q8_0, false, 1e18);
    pn_token next = 11;
    pn_generate_result g = rq_turn(r, s, &next, 1, 0);
    PN_CHECK(g.kv_degraded, "the answer does not say so");
    PN_CHECK(rq_turn(r, t, &next, 1, 0).kv_degraded && rq_turn(r, alone, &next, 1, 1).kv_degraded, "the answer does not say so");
    PN_CHECK(memcmp(pn_session_logits(t), pn_session_logits(alone), V * sizeof(float)) == 0, "other bits");
    /* Back into the middle of a shared page: it is copied as it is. */
    pn_session *both[] = {t, alone};
    for (int i = 0; i < 2; i++)
        PN_CHECK(pn_session_truncate(both[i], P + 20, &err) == PN_OK && pn_session_eval(both[i], r->ids + 300, 30, &err) == PN_OK &&
                 both[i]->kv.group[0].table[1]->k_type == PN_DTYPE_Q8_0, "%s", err.text);
    PN_CHECK(s->kv.group[0].table[1] == shared && shared->refs == 1 && t->kv.group[0].table[1] != shared &&
             memcmp(pn_session_logits(t), pn_session_logits(alone), V * sizeof(float)) == 0, "other bits when copied");
    pn_session_free(alone);
    rq_smaller(r, rq_gain(r), true);
    pn_session_free(s);
    pn_session_free(t);
}

/* What one of the holders works on, or has chosen the type of, stays as it is, and so does what the cache has of it. */
static void one_holder_may_keep_it(rq_rig *r)
{
    const pn_token *one;
    pn_token two[400];
    for (int why = 0; why < 3; why++) {
        rq_two(r, &one, two);
        pn_session *s = rq_session(r, 1), *t = why == 0 ? rq_session_of(r, 1) : rq_session(r, 1);
        rq_turn(r, s, one, 400, 0);
        PN_CHECK(rq_turn(r, t, two, 400, 0).n_cached == 3 * P, "they do not share");
        uint64_t page = rq_page(s);
        if (why == 1)
            pn_session_enter(t);
        pn_kv_page *held = NULL;
        if (why == 2) {         /* somebody else has one of them, as the disk's queue does */
            pn_mutex_lock(&pn_session_die(s)->cache.lock);
            pn_kv_retain(held = s->kv.group[0].table[2]);
            pn_mutex_unlock(&pn_session_die(s)->cache.lock);
        }
        uint64_t gain = rq_gain(r);
        PN_CHECK(gain == (why == 2 ? 4 : 2) * page, "%d: %llu pages", why, (unsigned long long)(gain / page));       /* own tails */
        rq_smaller(r, gain, true);
        PN_CHECK(s->kv.group[0].table[1]->k_type == PN_DTYPE_F16 && s->kv.group[0].table[2]->k_type == PN_DTYPE_F16 && pn_prefix_sound(rq_tree(s)) &&
                 pn_model_cached(r->m, two, 400) == (why == 2 ? 3 : 6) * P && rq_degraded(t) == (why == 2), "%d: what it shares", why);
        if (why == 1)
            pn_session_leave(t);
        if (why == 2) {
            pn_mutex_lock(&pn_session_die(s)->cache.lock);
            pn_kv_release(held);
            pn_mutex_unlock(&pn_session_die(s)->cache.lock);
        }
        if (why)
            rq_smaller(r, why == 1 ? 4 * page : 2 * page, true);
        pn_session_free(s);
        pn_session_free(t);
        pn_mutex_lock(&r->m->dies[0]->cache.lock);
        pn_prefix_clear(r->m->dies[0]->cache.tree);
        pn_mutex_unlock(&r->m->dies[0]->cache.lock);
    }
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
    shared_pages_become_smaller_once(&r, 0);
    shared_pages_become_smaller_once(&r, 5);
    one_holder_may_keep_it(&r);
    the_prefix_cache_gets_no_degraded_page(&r);
    the_gate_is_asked_by_type(&r);
    rq_close(&r);
    return pn_test_end();
}
