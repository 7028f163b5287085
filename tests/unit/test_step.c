/*
 * test_step.c - steps made of several runs, driven by hand: logits do not depend on the neighbours in
 * a batch, on time slices, on a cancelled step before, or on whether weights are streamed.
 */
#include "engine/pn_engine_int.h"

#include "pn_test.h"

enum { STEP_SEQS = 4, STEP_CTX = 256 };

static const char *const step_models[] = {"models/demo.gguf", "tests/vectors/golden/arch/gemma3.gguf",
                                          "tests/vectors/golden/arch/qwen2moe.gguf", "tests/vectors/golden/arch/lfm2.gguf"};

/* Tokens of sequence q at position i. */
static pn_token step_token(const pn_model *m, uint32_t q, uint32_t i)
{
    uint64_t s = 0x9e3779b97f4a7c15u * (q * 1000 + i + 1);
    return (pn_token)(pn_test_rand(&s) % m->desc.n_vocab);
}

typedef struct step_rig {
    pn_model *m;
    pn_cached_plan *plan;
    pn_kv kv[STEP_SEQS];
    float *logits;              /* [rows, n_vocab] */
} step_rig;

/* One step: n[q] new tokens of each sequence (0: not in it), logits of each run's last row.
 * slice > 0: advance() gets a deadline in the past, so every call does one piece. */
static void step_do(step_rig *r, const uint32_t n[STEP_SEQS], bool slice, long cancel_after, pn_exec_state want)
{
    pn_die *die = &r->m->engine->dies[0];
    pn_run runs[STEP_SEQS];
    pn_token tokens[512];
    uint32_t outs[STEP_SEQS], rows = 0, n_runs = 0;
    pn_err err = {0};
    for (uint32_t q = 0; q < STEP_SEQS; q++) {
        if (!n[q])
            continue;
        pn_run *u = &runs[n_runs];
        pn_kv_prepare(&r->kv[q], n[q]);
        *u = pn_kv_run(&r->kv[q], n[q]);
        u->row0 = rows;
        for (uint32_t i = 0; i < n[q]; i++)
            tokens[rows++] = step_token(r->m, q, u->pos0 + i);
        outs[n_runs++] = rows - 1;
    }
    const pn_step step = {.tokens = tokens, .n_rows = rows, .runs = runs, .n_runs = n_runs, .out_rows = outs,
                          .n_outs = n_runs, .logits = r->logits};
    pn_exec *x = NULL, *second = NULL;
    if (!PN_CHECK(die->ops->submit(die->dev, &r->plan->part[0], &step, &r->m->store.host, die->work, &x, &err) == PN_OK, "%s",
                  err.text))
        return;
    PN_CHECK(die->ops->submit(die->dev, &r->plan->part[0], &step, &r->m->store.host, die->work, &second, &err) == PN_E_STATE,
             "two steps at once");
    pn_exec_state st;
    long calls = 0;
    while ((st = die->ops->advance(x, slice ? 1e-9 : 0)) == PN_EXEC_YIELD || st == PN_EXEC_WAIT_IO) {
        if (++calls == cancel_after)
            die->ops->cancel(x);
        else if (st == PN_EXEC_WAIT_IO)
            pn_residency_wait(&r->m->store, pn_os_now() + 1);
    }
    PN_CHECK(st == want, "state %d after %ld slices", (int)st, calls);
    PN_CHECK(!slice || cancel_after || calls > 3, "a step of %u rows was never interrupted", (unsigned)rows);
    die->ops->end(x);
    for (uint32_t q = 0; q < STEP_SEQS && st == PN_EXEC_DONE; q++)
        if (n[q])
            pn_kv_commit(&r->kv[q], n[q]);
}

static bool step_open(step_rig *r, pn_engine *e, const char *path, const pn_model_params *mp)
{
    pn_err err = {0};
    memset(r, 0, sizeof *r);
    if (!PN_CHECK(pn_model_load(e, path, mp, &r->m, &err) == PN_OK, "%s", err.text))
        return false;
    PN_CHECK(pn_model_get_plan(r->m, 512, STEP_CTX, &r->plan, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_die_reserve(&e->dies[0], &r->plan->part[0], &err) == PN_OK, "%s", err.text);
    r->logits = malloc(512 * r->m->desc.n_vocab * sizeof(float));
    for (int q = 0; q < STEP_SEQS; q++)
        PN_CHECK(pn_kv_open(&r->kv[q], &e->ledger.mem, &r->m->desc.state, STEP_CTX, 512, PN_DTYPE_F16, &err) == PN_OK, "%s",
                 err.text);
    return true;
}

static void step_close(step_rig *r)
{
    for (int q = 0; q < STEP_SEQS; q++)
        pn_kv_close(&r->kv[q]);
    pn_model_put_plan(r->m, r->plan);
    pn_model_free(r->m);
    free(r->logits);
}

/* Each sequence alone, in one go: the logits after `total` tokens. */
static float *step_alone(pn_engine *e, const char *path, const uint32_t total[STEP_SEQS], size_t *row)
{
    step_rig r;
    if (!step_open(&r, e, path, NULL))
        return NULL;
    size_t V = r.m->desc.n_vocab;
    float *want = malloc(STEP_SEQS * V * sizeof *want);
    for (uint32_t q = 0; q < STEP_SEQS; q++) {
        uint32_t n[STEP_SEQS] = {0};
        n[q] = total[q];
        step_do(&r, n, false, 0, PN_EXEC_DONE);
        memcpy(want + q * V, r.logits, V * sizeof *want);
    }
    step_close(&r);
    *row = V * sizeof *want;
    return want;
}

static void neighbours_slices_and_cancelled_steps_change_no_bit(const char *path, uint32_t threads, const pn_model_params *mp)
{
    /* prefill beside decode beside nothing; then everybody */
    static const uint32_t plan[][STEP_SEQS] = {{40, 1, 0, 70}, {1, 30, 17, 1}, {1, 1, 1, 1}, {3, 64, 1, 2}, {1, 1, 1, 1}};
    uint32_t total[STEP_SEQS] = {0};
    size_t row = 0, last = sizeof plan / sizeof *plan - 1;
    pn_engine *e = NULL;
    pn_err err;
    for (size_t i = 0; i <= last; i++)
        for (int q = 0; q < STEP_SEQS; q++)
            total[q] += plan[i][q];
    PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.n_threads = threads}, &err) == PN_OK, "%s", err.text);
    float *want = step_alone(e, path, total, &row);
    step_rig r;
    if (want && step_open(&r, e, path, mp)) {
        for (size_t i = 0; i <= last; i++) {
            step_do(&r, plan[i], true, 2, PN_EXEC_CANCELLED);       /* torn: leaves nothing */
            step_do(&r, plan[i], i % 2 == 1, 0, PN_EXEC_DONE);
        }
        for (uint32_t q = 0; q < STEP_SEQS; q++)
            PN_CHECK(memcmp((char *)want + q * row, (char *)r.logits + q * row, row) == 0,
                     "%s: sequence %u has other bits in a batch (%u threads)", path, (unsigned)q, (unsigned)threads);
        step_close(&r);
    }
    free(want);
    pn_engine_close(e);
}

int main(void)
{
    static const pn_model_params ways[] = {
        {0},
        {.residency = PN_RESIDENCY_STREAM, .stream_block = 8192, .stream_depth = 3},
        {.residency = PN_RESIDENCY_STREAM, .stream_block = 40000, .stream_depth = 2, .pin_bytes = 200000},
    };
    for (size_t i = 0; i < sizeof step_models / sizeof *step_models; i++)
        for (uint32_t threads = 1; threads <= 3; threads++)
            for (size_t way = 0; way < PN_COUNT_OF(ways); way++)
                if (!pn_test_quick() || way == threads % PN_COUNT_OF(ways))
                    neighbours_slices_and_cancelled_steps_change_no_bit(step_models[i], threads, &ways[way]);
    return pn_test_end();
}
