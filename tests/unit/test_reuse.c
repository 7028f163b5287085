/*
 * test_reuse.c - a sequence that starts from the pages of another one computes the bits of a cold run:
 * found in the prefix tree, adopted, gone on from; with the writer alive, diverged, or long gone.
 */
#include "engine/pn_engine_int.h"
#include "store/pn_prefix.h"

#include "pn_test.h"

enum { P = PN_KV_PAGE_TOKENS, REUSE_CTX = 400, REUSE_BATCH = 300, REUSE_PROMPT = 280, REUSE_KNOWN = 200, REUSE_ANSWER = 4 };

/* full attention; windows of 32 and 12 tokens; experts; long RoPE */
static const char *const reuse_models[] = {"models/demo.gguf", "tests/vectors/golden/arch/gemma3.gguf",
                                           "tests/vectors/golden/arch/gemma2.gguf", "tests/vectors/golden/arch/qwen2moe.gguf",
                                           "tests/vectors/golden/arch/llama_yarn.gguf"};

typedef struct reuse_rig {
    pn_engine *e;
    pn_model *m;
    pn_cached_plan *plan;
    pn_prefix *c;
    uint32_t space, type;
    uint64_t tick;
    pn_token prompt[REUSE_CTX], other[REUSE_CTX];       /* the same up to inside the page of token 190 */
} reuse_rig;

static bool reuse_open(reuse_rig *r, const char *path, uint32_t threads, uint32_t type)
{
    pn_err err = {0};
    memset(r, 0, sizeof *r);
    r->type = type;
    if (!PN_CHECK(pn_engine_open(&r->e, &(pn_engine_params){.n_threads = threads}, &err) == PN_OK, "%s", err.text) ||
        !PN_CHECK(pn_model_load(r->e, path, NULL, &r->m, &err) == PN_OK, "%s", err.text) ||
        !PN_CHECK(pn_model_get_plan(r->m, REUSE_BATCH, REUSE_CTX, &r->plan, &err) == PN_OK, "%s", err.text) ||
        !PN_CHECK(pn_die_reserve(&r->e->dies[0], &r->plan->part[0], &err) == PN_OK, "%s", err.text))
        return false;
    uint64_t s = 12345;
    for (uint32_t i = 0; i < REUSE_CTX; i++) {
        r->prompt[i] = (pn_token)(pn_test_rand(&s) % r->m->desc.n_vocab);
        r->other[i] = i < 190 ? r->prompt[i] : (pn_token)(pn_test_rand(&s) % r->m->desc.n_vocab);
    }
    return PN_CHECK(pn_prefix_new(&r->c, &r->e->ledger.mem, &(pn_prefix_params){0}, &err) == PN_OK &&
                    pn_prefix_space_new(r->c, &r->m->desc.state, type, &r->space, &err) == PN_OK, "%s", err.text);
}

static void reuse_close(reuse_rig *r)
{
    pn_prefix_free(r->c);
    if (r->plan)
        pn_model_put_plan(r->m, r->plan);
    if (r->e) {
        PN_CHECK(r->e->ledger.used[PN_ACCT_KV] == 0 && r->e->ledger.used[PN_ACCT_PREFIX] == 0, "pages left");
        pn_model_free(r->m);
    }
    pn_engine_close(r->e);
}

static void reuse_seq(reuse_rig *r, pn_kv *kv)
{
    pn_err err = {0};
    PN_CHECK(pn_kv_open(kv, &r->e->ledger.mem, &r->m->desc.state, REUSE_CTX, REUSE_BATCH, r->type, &err) == PN_OK, "%s", err.text);
}

/* Evaluate tokens[length, n) in chunks; the logits of the last one. */
static void reuse_eval(reuse_rig *r, pn_kv *kv, const pn_token *tokens, uint32_t n, uint32_t chunk, float *logits)
{
    pn_die *die = &r->e->dies[0];
    pn_err err = {0};
    while (kv->length < n) {
        uint32_t rows = PN_MIN(chunk, n - kv->length), last = rows - 1;
        pn_kv_prepare(kv, rows);
        const pn_run run = pn_kv_run(kv, rows);
        const pn_step step = {.tokens = tokens + kv->length, .n_rows = rows, .runs = &run, .n_runs = 1, .out_rows = &last,
                              .n_outs = 1, .logits = logits};
        pn_exec *x = NULL;
        if (!PN_CHECK(die->ops->submit(die->dev, &r->plan->part[0], &step, &r->m->store.host, die->work, &x, &err) == PN_OK, "%s",
                      err.text))
            return;
        pn_exec_state st;
        while ((st = die->ops->advance(x, 0)) == PN_EXEC_YIELD)
            ;
        PN_CHECK(st == PN_EXEC_DONE, "state %d", (int)st);
        die->ops->end(x);
        pn_kv_commit(kv, rows);
    }
}

/* The rest of a prompt and an answer, one token a step: REUSE_ANSWER + 1 rows of logits. */
static float *reuse_go_on(reuse_rig *r, pn_kv *kv, const pn_token *tokens, uint32_t chunk)
{
    size_t V = r->m->desc.n_vocab;
    float *logits = calloc((REUSE_ANSWER + 1) * V, sizeof *logits);
    reuse_eval(r, kv, tokens, REUSE_PROMPT, chunk, logits);
    for (uint32_t i = 1; i <= REUSE_ANSWER; i++)
        reuse_eval(r, kv, tokens, REUSE_PROMPT + i, 1, logits + i * V);
    return logits;
}

static float *reuse_cold(reuse_rig *r, const pn_token *tokens)
{
    pn_kv kv;
    reuse_seq(r, &kv);
    float *logits = reuse_go_on(r, &kv, tokens, REUSE_BATCH);
    pn_kv_close(&kv);
    return logits;
}

/* Start from the tree and compare with the cold run. */
static void reuse_warm(reuse_rig *r, const pn_token *tokens, uint32_t want_hit, const float *want, const char *when)
{
    pn_kv kv;
    pn_prefix_hit hit;
    const pn_prefix_key k = {r->space, 0, tokens, REUSE_PROMPT - 1};
    reuse_seq(r, &kv);
    PN_CHECK(pn_prefix_find(r->c, &k, ++r->tick, &hit) == want_hit, "%s: %u tokens found", when, (unsigned)hit.n_tokens);
    PN_CHECK(!hit.n_tokens || pn_kv_adopt(&kv, hit.pages, hit.n_tokens, NULL), "%s", when);
    pn_prefix_unpin(r->c, &hit);
    float *got = reuse_go_on(r, &kv, tokens, 50);
    PN_CHECK(memcmp(got, want, (REUSE_ANSWER + 1) * r->m->desc.n_vocab * sizeof *got) == 0, "%s: other bits than a cold run", when);
    free(got);
    pn_kv_close(&kv);
}

static void adopted_pages_give_the_bits_of_a_cold_run(const char *path, uint32_t threads, uint32_t type)
{
    reuse_rig r;
    pn_kv a;
    if (!reuse_open(&r, path, threads, type)) {
        reuse_close(&r);
        return;
    }
    float *want = reuse_cold(&r, r.prompt), *want_other = reuse_cold(&r, r.other);
    float *row = calloc(r.m->desc.n_vocab, sizeof *row);
    const pn_prefix_key known = {r.space, 0, r.prompt, REUSE_KNOWN};
    reuse_seq(&r, &a);
    reuse_eval(&r, &a, r.prompt, REUSE_KNOWN, 37, row);
    PN_CHECK(pn_prefix_insert(r.c, &known, &a, 0, ++r.tick) == 3 * P, "%s", path);
    reuse_warm(&r, r.prompt, 3 * P, want, "the writer stands still");
    /* The writer goes back into the last shared page and takes another way. */
    PN_CHECK(pn_kv_truncate(&a, 190), "%s", path);
    float *got = reuse_go_on(&r, &a, r.other, 41);
    PN_CHECK(memcmp(got, want_other, (REUSE_ANSWER + 1) * r.m->desc.n_vocab * sizeof *got) == 0, "%s: the writer's own bits", path);
    free(got);
    reuse_warm(&r, r.prompt, 3 * P, want, "the writer went another way");
    /* Both ways are known now, whole prompts. */
    const pn_prefix_key other = {r.space, 0, r.other, REUSE_PROMPT};
    PN_CHECK(pn_prefix_insert(r.c, &other, &a, 0, ++r.tick) == 4 * P, "%s", path);
    pn_kv_close(&a);
    reuse_warm(&r, r.other, 4 * P, want_other, "the writer is gone");
    reuse_warm(&r, r.prompt, 3 * P, want, "the writer is gone");
    pn_prefix_clear(r.c);
    reuse_warm(&r, r.prompt, 0, want, "nothing is known");
    free(row);
    free(want);
    free(want_other);
    reuse_close(&r);
}

int main(void)
{
    for (size_t i = 0; i < sizeof reuse_models / sizeof *reuse_models; i++)
        for (uint32_t threads = 1; threads <= 2; threads++)
            adopted_pages_give_the_bits_of_a_cold_run(reuse_models[i], threads, threads == 1 ? PN_DTYPE_F16 : PN_DTYPE_F32);
    return pn_test_end();
}
