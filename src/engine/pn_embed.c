/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Embeddings: a text evaluated like any other, but with a plan that ends at the final norm, and its rows
 * gathered into one vector.
 *
 *     h[t] = RMS(x[t]; w)                     what the head would multiply, f32
 *     v    = 1/n sum h[t]  or  h[n - 1]
 *     out  = v / |v|                          if wanted
 *
 * Same bits: rows do not depend on the steps they were computed in, and their sum is kept in f64 and grows token
 * by token in the order of the text.  v is rounded to f32 before its squares are summed (again f64, ascending):
 * products of two f32 are exact there, so a compiler that fuses multiply and add gives the same length.
 *
 * Most sessions never embed, so plan, rows and sum are taken by the first one that does.
 */
#include "engine/pn_engine_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct pn_embed {
    pn_cached_plan *plan;       /* of n_batch rows; smaller steps use it, too */
    float *rows;                /* [n_batch, n_embd] hidden rows of a step */
    double *sum;                /* [n_embd] */
} pn_embed;

static uint64_t embed_row_bytes(uint32_t n_batch, uint32_t n_embd)
{
    return ((uint64_t)n_batch * sizeof(float) + sizeof(double)) * n_embd;
}

PN_INTERNAL pn_status pn_embed_needs(const pn_desc *d, uint32_t n_ctx, uint32_t n_batch, uint32_t n_threads, bool exact,
                                     const uint64_t work_part[PN_MAX_PARTS], pn_need *out, pn_err *err)
{
    *out = (pn_need){.all = sizeof(pn_embed) + embed_row_bytes(n_batch, d->n_embd)};
    for (uint32_t i = 0; i < (d->cut ? 2u : 1u); i++) {
        pn_plan plan;
        pn_status st = pn_desc_plan_part(d, &plan, d->cut, i, PN_RESULT_HIDDEN, n_batch, n_ctx, exact, err);
        if (st)
            return st;
        uint64_t work = pn_backend_cpu()->work_bytes(n_threads, &plan);
        pn_plan_free(&plan, d->mem);
        out->all += out->die[i] = work - PN_MIN(work, work_part[i]);
    }
    return PN_OK;
}

PN_INTERNAL void pn_embed_free(pn_session *s)
{
    pn_embed *e = s->embed;
    pn_mem *mem = pn_engine_mem(s->model->engine);
    uint32_t D = s->model->desc.n_embd;
    if (!e)
        return;
    pn_model_put_plan(s->model, e->plan);
    pn_mem_free(mem, PN_ACCT_SCRATCH, e->rows, (size_t)s->n_batch * D * sizeof *e->rows);
    pn_mem_free(mem, PN_ACCT_SCRATCH, e->sum, D * sizeof *e->sum);
    pn_mem_free(mem, PN_ACCT_MISC, e, sizeof *e);
    s->embed = NULL;
}

/* s->embed is there afterwards, entirely or not at all. */
static pn_status embed_open(pn_session *s, pn_err *err)
{
    pn_model *m = s->model;
    pn_mem *mem = pn_engine_mem(m->engine);
    uint64_t work[PN_MAX_PARTS] = {0};
    pn_need need;
    pn_lack lack;
    if (s->embed)
        return PN_OK;
    for (uint32_t i = 0; i < m->n_dies; i++)
        work[i] = m->dies[i]->work_bytes;
    pn_status st = pn_embed_needs(&m->desc, s->n_ctx, s->n_batch, m->engine->n_threads, m->exact, work, &need, err);
    if (st)
        return st;
    if (!pn_model_make_room(m, true, &need, &need, &lack))
        return pn_fail(err, PN_E_BUDGET, "embeddings in steps of %" PRIu32 " tokens need %" PRIu64 " bytes, %" PRIu64
                       " are available%s", s->n_batch, lack.need, lack.available, lack.where);
    pn_embed *e = s->embed = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *e);
    if (!e)
        return pn_fail_nomem(err, "an embedding", sizeof *e);
    e->rows = pn_mem_calloc(mem, PN_ACCT_SCRATCH, (uint64_t)s->n_batch * m->desc.n_embd, sizeof *e->rows);
    e->sum = pn_mem_calloc(mem, PN_ACCT_SCRATCH, m->desc.n_embd, sizeof *e->sum);
    if (!e->rows || !e->sum)
        st = pn_fail_nomem(err, "an embedding", embed_row_bytes(s->n_batch, m->desc.n_embd));
    if (!st)
        st = pn_model_get_hidden_plan(m, s->n_batch, s->n_ctx, &e->plan, err);
    if (!st)
        st = pn_model_reserve(m, e->plan, err);
    if (st)
        pn_embed_free(s);
    return st;
}

static void embed_add(double *sum, const float *rows, uint32_t n, uint32_t D)
{
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = 0; i < D; i++)
            sum[i] += (double)rows[(size_t)r * D + i];
}

/* sum [D] of n vectors to out [D]; on failure out is untouched. */
static pn_status embed_finish(const double *sum, uint32_t D, size_t n, bool normalize, float *out, pn_err *err)
{
    double square = 0, length = 1;
    for (uint32_t i = 0; i < D; i++) {
        double v = (double)(float)(sum[i] / (double)n);
        square += v * v;
    }
    if (!isfinite(square))
        return pn_fail(err, PN_E_NUMERIC, "the model produced no finite embedding");
    if (normalize && square > 0)
        length = sqrt(square);
    for (uint32_t i = 0; i < D; i++)
        out[i] = (float)((double)(float)(sum[i] / (double)n) / length);
    return PN_OK;
}

/* The text, step by step; the vectors that count are summed in s->embed->sum. */
static pn_status embed_text(pn_session *s, const pn_token *tokens, uint32_t total, pn_pooling pooling, pn_err *err)
{
    pn_embed *e = s->embed;
    uint32_t D = s->model->desc.n_embd;
    pn_status st = PN_OK;
    memset(e->sum, 0, D * sizeof *e->sum);
    for (uint32_t done = 0; done < total && !st;) {
        uint32_t n = PN_MIN(total - done, s->n_batch), n_outs = pooling == PN_POOLING_MEAN ? n : done + n == total;
        for (uint32_t i = 0; i < n_outs; i++)
            s->out_rows[i] = n - n_outs + i;
        const pn_session_part p = {.plan = e->plan, .tokens = tokens + done, .n = n, .n_outs = n_outs,
                                   .done = done, .total = total, .out = e->rows};
        st = pn_session_step(s, &p, err);
        if (!st)
            embed_add(e->sum, e->rows, n_outs, D);
        done += n;
    }
    return st;
}

PN_API pn_pooling pn_model_pooling(const pn_model *m)
{
    char key[64];
    uint64_t type;
    snprintf(key, sizeof key, "%s.pooling_type", m->desc.arch_name);
    const pn_gguf_kv *kv = pn_weights_meta(&m->file.weights, key);
    return kv && pn_gguf_u64(kv, 0, &type) && type == 3 ? PN_POOLING_LAST : PN_POOLING_MEAN;    /* 0 none, 1 mean, 2 cls, 3 last, 4 rank */
}

static void embed_empty(pn_session *s)
{
    pn_mutex *pages = &pn_session_die(s)->cache.lock;
    pn_mutex_lock(pages);
    pn_kv_truncate(&s->kv, 0);
    pn_session_end_turn(s);
    pn_mutex_unlock(pages);
    s->has_logits = s->apart = false;
    s->salt = 0;
}

static pn_status embed_all(pn_session *s, const pn_token *tokens, size_t n, pn_pooling pooling, bool normalize, float *out, pn_err *err)
{
    atomic_store(&s->cancelled, false);
    embed_empty(s);
    if (!n || !out || (unsigned)pooling > PN_POOLING_LAST)
        return pn_fail(err, PN_E_INVALID, "%s", !n ? "no tokens: an empty text has no embedding"
                                                : !out ? "no memory for the embedding given" : "there is no such pooling");
    if (pooling == PN_POOLING_DEFAULT)
        pooling = pn_model_pooling(s->model);
    pn_status st = pn_session_check_more(s, tokens, n, err);
    if (!st)
        st = embed_open(s, err);
    if (!st)
        st = pn_session_reserve(s, n, err);
    if (!st)
        st = embed_text(s, tokens, (uint32_t)n, pooling, err);
    if (!st)
        st = embed_finish(s->embed->sum, s->model->desc.n_embd, pooling == PN_POOLING_MEAN ? n : 1, normalize, out, err);
    embed_empty(s);
    return st;
}

PN_API pn_status pn_session_embed(pn_session *s, const pn_token *tokens, size_t n, pn_pooling pooling, int normalize,
                                  float *out, pn_err *err)
{
    if (!s)
        return pn_fail(err, PN_E_INVALID, "no session given");
    if (pn_session_idle(s, err))
        return PN_E_STATE;
    pn_session_enter(s);
    pn_status st = embed_all(s, tokens, n, pooling, normalize != 0, out, err);
    pn_session_leave(s);
    return st;
}
