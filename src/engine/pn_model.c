/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Loading a model: directory, description, residency, vocabulary; and the cache of its plans.
 */
#include "engine/pn_cache.h"
#include "engine/pn_fit.h"
#include "engine/pn_lend.h"
#include "engine/pn_retype.h"
#include "engine/pn_tier.h"

#include "format/pn_hf_dir.h"
#include "sample/pn_grammar.h"
#include "text/pn_hf_vocab.h"

#include <inttypes.h>
#include <stdio.h>

enum { MODEL_CUT_CTX = 8192 };      /* most tokens of keys and values that weigh in where a model is cut */
enum { MODEL_WORTH_TRYING = 64 << 20, MODEL_TRIAL = 32 << 20 };         /* bytes of weights whose disk is tried; with so many */

/* ------------------------------------------------------------------------------------------
 * Plans
 * ------------------------------------------------------------------------------------------ */

/* Contexts differ in their plan only where the family has two rotary tables. */
static bool model_long_ctx(const pn_model *m, uint32_t n_ctx)
{
    return m->desc.n_ropes > 1 && n_ctx > m->desc.u.longrope.ctx_short;
}

static void model_free_plan(pn_model *m, pn_cached_plan *c)
{
    pn_mem *mem = pn_engine_mem(m->engine);
    for (uint32_t i = 0; i < m->n_dies; i++)
        pn_plan_free(&c->part[i], mem);
    pn_mem_free(mem, PN_ACCT_MISC, c, sizeof *c);
}

static pn_status model_new_plan(pn_model *m, uint32_t max_rows, uint32_t n_ctx, pn_plan_result result, pn_cached_plan **out,
                                pn_err *err)
{
    pn_mem *mem = pn_engine_mem(m->engine);
    pn_cached_plan *c = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *c);
    if (!c)
        return pn_fail_nomem(err, "a plan", sizeof *c);
    pn_status st = PN_OK;
    for (uint32_t i = 0; i < m->n_dies && !st; i++)
        st = pn_desc_plan_part(&m->desc, &c->part[i], m->desc.cut, i, result, max_rows, n_ctx, m->exact, err);
    if (st) {
        model_free_plan(m, c);
        return st;
    }
    c->max_rows = max_rows;
    c->long_ctx = model_long_ctx(m, n_ctx);
    *out = c;
    return PN_OK;
}

static pn_status model_get_plan(pn_model *m, uint32_t max_rows, uint32_t n_ctx, pn_plan_result result, pn_cached_plan **out,
                                pn_err *err)
{
    pn_cached_plan *found = NULL;
    size_t slot = ENGINE_PLANS;
    pn_status st = PN_OK;
    pn_mutex_lock(&m->lock);
    for (size_t i = 0; i < ENGINE_PLANS && !found; i++) {
        pn_cached_plan *c = m->plans[i];
        if (c && c->max_rows == max_rows && c->long_ctx == model_long_ctx(m, n_ctx) && c->part[0].result == result)
            found = c;
        else if (!c || (c->users == 0 && slot == ENGINE_PLANS))
            slot = i;
    }
    if (!found && slot == ENGINE_PLANS)
        st = pn_fail(err, PN_E_UNSUPPORTED, "sessions of one model use more than %d different batch sizes", ENGINE_PLANS);
    if (!found && !st) {
        st = model_new_plan(m, max_rows, n_ctx, result, &found, err);
        if (!st) {
            if (m->plans[slot])
                model_free_plan(m, m->plans[slot]);
            m->plans[slot] = found;
        }
    }
    if (found) {
        found->users++;
        *out = found;
    }
    pn_mutex_unlock(&m->lock);
    return st;
}

PN_INTERNAL pn_status pn_model_get_plan(pn_model *m, uint32_t max_rows, uint32_t n_ctx, pn_cached_plan **out,
                                        pn_err *err)
{
    return model_get_plan(m, max_rows, n_ctx, PN_RESULT_LOGITS, out, err);
}

PN_INTERNAL pn_status pn_model_get_hidden_plan(pn_model *m, uint32_t max_rows, uint32_t n_ctx, pn_cached_plan **out,
                                               pn_err *err)
{
    return model_get_plan(m, max_rows, n_ctx, PN_RESULT_HIDDEN, out, err);
}

PN_INTERNAL void pn_model_put_plan(pn_model *m, pn_cached_plan *p)
{
    if (!p)
        return;
    pn_mutex_lock(&m->lock);
    p->users--;
    pn_mutex_unlock(&m->lock);
}

/* What crosses the cut, for steps of so many rows; with all dies of the model. */
static pn_status model_grow_carry(pn_model *m, uint32_t rows, pn_err *err)
{
    pn_mem *mem = pn_engine_mem(m->engine);
    size_t row = m->desc.n_embd * sizeof *m->carry;
    if (m->n_dies < 2 || rows <= m->carry_rows)
        return PN_OK;
    float *p = pn_mem_calloc(mem, PN_ACCT_STAGE, rows, row);
    if (!p)
        return pn_fail_nomem(err, "what one die hands to the other", (uint64_t)rows * row);
    pn_mem_free(mem, PN_ACCT_STAGE, m->carry, m->carry_rows * row);
    m->carry = p;
    m->carry_rows = rows;
    return PN_OK;
}

PN_INTERNAL pn_status pn_model_reserve(pn_model *m, const pn_cached_plan *plan, pn_err *err)
{
    pn_status st = PN_OK;
    for (uint32_t i = 0; i < m->n_dies && !st; i++)
        st = pn_die_reserve(m->dies[i], &plan->part[i], err);
    if (st || m->n_dies < 2)
        return st;
    pn_model_take(m);
    st = model_grow_carry(m, plan->max_rows, err);
    pn_model_give(m);
    return st;
}

/* In the order of their numbers, so two who need both never wait for each other. */
PN_INTERNAL void pn_model_take(const pn_model *m)
{
    bool turned = m->n_dies > 1 && m->dies[0]->index > m->dies[1]->index;
    for (uint32_t i = 0; i < m->n_dies; i++)
        pn_die_take(m->dies[turned ? m->n_dies - 1 - i : i]);
}

PN_INTERNAL pn_die *pn_model_try(const pn_model *m, struct pn_sched *q)
{
    for (uint32_t i = 0; i < m->n_dies; i++)
        if (!pn_die_try(m->dies[i], q)) {
            while (i--)
                pn_die_give(m->dies[i]);
            return m->dies[i + 1];
        }
    return NULL;
}

PN_INTERNAL void pn_model_give(const pn_model *m)
{
    for (uint32_t i = 0; i < m->n_dies; i++)
        pn_die_give(m->dies[i]);
}

/* ------------------------------------------------------------------------------------------
 * Placing
 * ------------------------------------------------------------------------------------------ */

static uint64_t model_weight_bytes(const pn_desc *d, uint32_t w)
{
    return w == PN_NO_WEIGHT ? 0 : d->weights[w].rows * d->weights[w].row_bytes;
}

/* Weights that a part reads, and f16 keys and values of a token.  Within a part each weight has one op; an embedding
 * that is the head, too, is read by both parts. */
static pn_status model_part_bytes(const pn_desc *d, uint32_t cut, uint32_t part, uint64_t *weights, uint64_t *kv, pn_err *err)
{
    pn_plan p;
    *weights = *kv = 0;
    pn_status st = pn_desc_plan_part(d, &p, cut, part, PN_RESULT_LOGITS, 1, d->n_ctx_train, false, err);
    if (st)
        return st;
    for (uint32_t i = 0; i < p.n_ops; i++) {
        const pn_op *op = &p.ops[i];
        *weights += model_weight_bytes(d, op->w) + model_weight_bytes(d, op->w2);
        if (op->code == PN_OP_ROPE_STORE && op->u.store.store) {
            const pn_stream_group *g = &d->state.group[op->u.store.group];
            *kv += (uint64_t)g->n_heads * (g->d_k + g->d_v) * 2;
        }
    }
    pn_plan_free(&p, d->mem);
    return PN_OK;
}

/* Where to cut for dies with so many bytes free: the layer at which the fuller of the two is emptiest, for a
 * context as trained. */
static pn_status model_choose_cut(const pn_desc *d, const uint64_t free_bytes[2], uint32_t *cut, pn_err *err)
{
    double best = 0;
    *cut = 0;
    for (uint32_t c = 1; c < d->n_layers; c++) {
        double load = 0;
        for (uint32_t part = 0; part < 2; part++) {
            uint64_t weights, kv;
            pn_status st = model_part_bytes(d, c, part, &weights, &kv, err);
            if (st)
                return st;
            double need = (double)weights + (double)kv * PN_MIN(d->n_ctx_train, (uint32_t)MODEL_CUT_CTX);
            load = PN_MAX(load, need / PN_MAX((double)free_bytes[part], 1.0));
        }
        if (!*cut || load < best) {
            *cut = c;
            best = load;
        }
    }
    return *cut ? PN_OK : pn_fail(err, PN_E_UNSUPPORTED, "a model of one layer cannot be split over two dies");
}

/* The die with most bytes free. */
static pn_die *model_emptiest(pn_engine *e)
{
    pn_die *best = &e->dies[0];
    for (uint32_t i = 1; i < e->n_dies; i++)
        if (pn_die_free_bytes(&e->dies[i]) > pn_die_free_bytes(best))
            best = &e->dies[i];
    return best;
}

PN_INTERNAL pn_status pn_engine_find_dies(pn_engine *e, const uint32_t *list, size_t n, pn_die *out[PN_MAX_PARTS], uint32_t *n_out, pn_err *err)
{
    if (n > PN_MAX_PARTS)
        return pn_fail(err, PN_E_UNSUPPORTED, "%zu dies for one model, expected at most %d", n, PN_MAX_PARTS);
    for (size_t i = 0; i < n; i++) {
        if (list[i] >= e->n_dies)
            return e->n_dies == 1 ? pn_fail(err, PN_E_INVALID, "there is no die %" PRIu32 ": die 0 (%s) is all there is", list[i],
                                            e->dies[0].simulated ? "simulated" : "the CPU")
                                  : pn_fail(err, PN_E_INVALID, "there is no die %" PRIu32 ": there are 0 to %" PRIu32, list[i], e->n_dies - 1);
        out[i] = &e->dies[list[i]];
    }
    if (n == 2 && out[0] == out[1])
        return pn_fail(err, PN_E_INVALID, "die %" PRIu32 " is named twice", list[0]);
    if (!n)
        out[0] = model_emptiest(e);
    *n_out = n ? (uint32_t)n : 1;
    return PN_OK;
}

/* The cut, from a description of the header alone; 0 for a model on one die. */
static pn_status model_cut(pn_model *m, uint32_t *cut, pn_err *err)
{
    pn_desc d;
    *cut = 0;
    if (m->n_dies < 2)
        return PN_OK;
    pn_status st = pn_desc_open(&d, pn_engine_mem(m->engine), &m->file.weights, true, err);
    if (st)
        return st;
    const uint64_t bytes[2] = {pn_die_free_bytes(m->dies[0]), pn_die_free_bytes(m->dies[1])};
    st = model_choose_cut(&d, bytes, cut, err);
    pn_desc_close(&d);
    return st;
}

static pn_status model_upload(pn_model *m, pn_err *err)
{
    uint32_t n = m->n_dies;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = m->desc.weight_bytes, kv;
        pn_status st = n > 1 ? model_part_bytes(&m->desc, m->desc.cut, i, &bytes, &kv, err) : PN_OK;
        if (!st)
            st = pn_die_upload(m->dies[i], bytes, err);
        if (st)
            return st;
        m->uploaded[m->n_uploaded++] = bytes;
        m->share[i] = n < 2 ? 1 : (double)(i ? m->desc.n_layers - m->desc.cut : m->desc.cut) / m->desc.n_layers;
    }
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * Loading
 * ------------------------------------------------------------------------------------------ */

/* The type that holds most weight bytes, or the preset's name when the file states one that fits. */
static void model_type_name(pn_model *m)
{
    static const struct { uint8_t id; uint8_t base; char name[8]; } presets[] = {
        {10, PN_DTYPE_Q2_K, "Q2_K"}, {11, PN_DTYPE_Q3_K, "Q3_K_S"}, {12, PN_DTYPE_Q3_K, "Q3_K_M"},
        {13, PN_DTYPE_Q3_K, "Q3_K_L"}, {14, PN_DTYPE_Q4_K, "Q4_K_S"}, {15, PN_DTYPE_Q4_K, "Q4_K_M"},
        {16, PN_DTYPE_Q5_K, "Q5_K_S"}, {17, PN_DTYPE_Q5_K, "Q5_K_M"}, {18, PN_DTYPE_Q6_K, "Q6_K"}};
    uint64_t bytes[PN_DTYPE_COUNT] = {0}, ft = UINT64_MAX;
    uint32_t best = 0;
    for (size_t i = 0; i < m->desc.n_weights; i++)
        if (!m->desc.weights[i].pinned)
            bytes[m->desc.weights[i].dtype] += m->desc.weights[i].rows * m->desc.weights[i].row_bytes;
    for (uint32_t t = 1; t < PN_DTYPE_COUNT; t++)
        if (bytes[t] > bytes[best])
            best = t;
    snprintf(m->type_name, sizeof m->type_name, "%s", pn_dtype_name((pn_dtype)best));
    const pn_gguf_kv *kv = pn_weights_meta(&m->file.weights, "general.file_type");
    if (kv && pn_gguf_u64(kv, 0, &ft))
        for (size_t i = 0; i < PN_COUNT_OF(presets); i++)
            if (presets[i].id == ft && presets[i].base == best)
                snprintf(m->type_name, sizeof m->type_name, "%s", presets[i].name);
}

static pn_stream_params model_stream_params(const pn_model_params *p)
{
    return (pn_stream_params){.block_bytes = p->stream_block, .depth = p->stream_depth, .pin_bytes = p->pin_bytes,
                              .expert_bytes = p->expert_cache_bytes};
}

/* The store's wishes; for streamed weights with the plans of all parts, which model_free_plans() frees. */
static pn_status model_residency_params(pn_model *m, const pn_model_params *p, pn_plan plans[PN_MAX_PARTS], pn_residency_params *out, pn_err *err)
{
    pn_status st = PN_OK;
    *out = (pn_residency_params){.mode = p->residency, .lease_rows = p->lease_rows, .progress = p->progress,
                                 .progress_user = p->progress_user, .stream = model_stream_params(p), .plans = plans};
    if (p->residency == PN_RESIDENCY_STREAM)
        for (; out->n_plans < m->n_dies && !st; out->n_plans += !st)
            st = pn_desc_plan_part(&m->desc, &plans[out->n_plans], m->desc.cut, out->n_plans, PN_RESULT_LOGITS, 1,
                                   m->desc.n_ctx_train, m->exact, err);
    return st;
}

static void model_free_plans(pn_model *m, pn_plan *plans, uint32_t n)
{
    while (n)
        pn_plan_free(&plans[--n], pn_engine_mem(m->engine));
}

/* The page cache that mapped weights need. */
static void model_note_map(pn_model *m)
{
    uint64_t bytes = pn_residency_mapped(&m->store, m->desc.weight_bytes);
    pn_ledger_note_map(&m->engine->ledger, (int64_t)bytes - (int64_t)m->mapped_bytes);
    m->mapped_bytes = bytes;
}

/* What streaming them would take, known before anybody is short of memory. */
static pn_status model_note_stage(pn_model *m, pn_err *err)
{
    pn_stream_bytes n = {.stage = UINT64_MAX};
    pn_status st = pn_fit_stream(&m->desc, &(pn_stream_params){.block_bytes = 0}, m->exact, &n, err);
    m->stage_bytes = st ? UINT64_MAX : n.stage + n.experts;
    return st == PN_E_UNSUPPORTED ? PN_OK : st;
}

/* AUTO becomes what memory suggests.  Simulated dies have their own. */
static pn_status model_choose_residency(const pn_model *m, pn_model_params *p, pn_err *err)
{
    const pn_part *part = &m->file.weights.parts[0];
    pn_fit_params fit = {.residency = p->residency, .file = part->path && !pn_weights_reads(&m->file.weights), .n_threads = m->engine->n_threads,
                         .kv_type = m->exact ? PN_DTYPE_F32 : PN_DTYPE_F16, .exact = m->exact, .stream = model_stream_params(p),
                         .load_bytes = pn_retype_stage(&m->file.weights, m->engine->n_threads)};
    if (fit.load_bytes)
        p->residency = PN_RESIDENCY_ANON;
    if (m->dies[0]->simulated || p->lease_rows)
        return PN_OK;
    pn_status st = pn_fit_choose(m->engine, &m->desc, &fit, err);
    p->residency = fit.residency;
    p->stream_block = fit.stream.block_bytes;
    p->stream_depth = fit.stream.depth;
    p->pin_bytes = fit.stream.pin_bytes;
    p->expert_cache_bytes = fit.stream.expert_bytes;
    return st;
}

PN_INTERNAL void pn_model_park(pn_model *m, double deadline, bool *done)
{
    uint64_t at = atomic_load(&m->park_at);
    pn_model_take(m);
    do
        *done = !pn_weights_drop_cache(&m->file.weights, &at);
    while (!*done && pn_os_now() < deadline);
    atomic_store(&m->park_at, *done ? 0 : at);
    if (*done && m->mapped_bytes && !atomic_exchange(&m->parked, true))
        pn_ledger_note_map(&m->engine->ledger, -(int64_t)m->mapped_bytes);
    pn_model_give(m);
}

PN_INTERNAL void pn_model_unpark(pn_model *m)
{
    atomic_store(&m->park_at, 0);
    if (atomic_load(&m->parked) && atomic_exchange(&m->parked, false))
        pn_ledger_note_map(&m->engine->ledger, (int64_t)m->mapped_bytes);
}

/* Types in memory, before anything is described. */
static pn_status model_retype(pn_model *m, const pn_model_params *p, pn_err *err)
{
    pn_mix mix;
    if (m->vocab_only)
        return PN_OK;
    pn_status st = pn_retype_place(&m->file.weights, p->residency, err);
    if (st || !p->load_type)
        return st;
    st = pn_retype_open(&m->file.weights, p->load_type, p->residency, &mix, err);
    if (!st && m->file.weights.n_retyped)
        snprintf(m->type_name, sizeof m->type_name, "%s", pn_mix_name(&mix));
    else if (!st)
        pn_engine_logf(m->engine, PN_LOG_WARN, "%s: no matrix of 16 or 32 bits that would become %s: loaded as it is",
                       m->file.weights.parts[0].src.name, pn_mix_name(&mix));
    return st;
}

static pn_status model_open_store(pn_model *m, pn_residency_params *rp, pn_err *err)
{
    pn_weights *w = &m->file.weights;
    pn_mem *mem = pn_engine_mem(m->engine);
    pn_retyper r = {.mem = mem};
    pn_status st = w->n_retyped ? pn_retyper_open(&r, mem, w, m->engine->n_threads, err) : PN_OK;
    rp->make_rows = pn_retyper_rows;
    rp->make_user = &r;
    if (!st)
        st = pn_residency_open(&m->store, mem, w, m->desc.weights, m->desc.tensors, (uint32_t)m->desc.n_weights, rp, err);
    pn_retyper_close(&r);
    return st;
}

/* Of the shortest conversation, with the smallest keys and values the model may have: no plan names less. */
static uint64_t model_least(const pn_model *m)
{
    pn_session_need n;
    bool ok = (!m->exact && pn_session_needs(&m->desc, 1, 1, m->engine->n_threads, PN_DTYPE_Q4_0, false, &n, NULL) == PN_OK) ||
              pn_session_needs(&m->desc, 1, 1, m->engine->n_threads, m->exact ? PN_DTYPE_F32 : PN_DTYPE_F16, m->exact, &n, NULL) == PN_OK;
    return ok ? pn_session_need_sum(&n) : 0;
}

/* Mapped weights are read again by the system when it has thrown them out: how fast it could, says how bad that is.
 * It is done in memory that the first conversation will take; where there is none, nothing has to give way. */
static void model_try_disk(pn_model *m)
{
    pn_engine *e = m->engine;
    if (m->mapped_bytes >= MODEL_WORTH_TRYING && !m->dies[0]->simulated && !atomic_load(&e->govern.disk))
        pn_govern_disk(e, pn_reads_try_disk(&e->ledger.mem, &m->file.weights, MODEL_TRIAL, model_least(m)));
}

static pn_status model_open_weights(pn_model *m, const pn_model_params *wanted, pn_err *err)
{
    pn_plan plans[PN_MAX_PARTS];
    pn_residency_params rp = {.n_plans = 0};
    pn_model_params as = *wanted, *p = &as;
    pn_status st = model_choose_residency(m, p, err);
    (void)pn_lend_back(m->engine, UINT64_MAX, true);
    if (!st)
        st = model_residency_params(m, p, plans, &rp, err);
    if (!st)
        st = model_open_store(m, &rp, err);
    model_free_plans(m, plans, rp.n_plans);
    m->lends = wanted->residency != PN_RESIDENCY_STREAM && !wanted->pin_bytes;
    if (!st)
        model_note_map(m);
    if (!st && m->mapped_bytes) {
        model_try_disk(m);
        st = model_note_stage(m, err);
    }
    return st;
}

PN_INTERNAL pn_status pn_model_convert(pn_model *m, const pn_model_params *p, double deadline, bool *done, pn_err *err)
{
    pn_plan plans[PN_MAX_PARTS];
    pn_residency_params rp = {.mode = p->residency};
    pn_model_take(m);
    bool begins = !m->store.next && !pn_model_streams(m);
    pn_status st = begins ? model_residency_params(m, p, plans, &rp, err) : PN_OK;
    pn_model_unpark(m);
    *done = true;
    if (begins && p->residency == PN_RESIDENCY_STREAM)
        m->pin_kept = p->pin_bytes;
    if (!st)
        st = pn_residency_convert(&m->store, &rp, deadline, done, err);
    m->was_mapped = m->was_mapped || m->mapped_bytes;
    model_note_map(m);
    pn_lend_note(m);
    pn_model_give(m);
    model_free_plans(m, plans, rp.n_plans);
    return st;
}

/* With the template of its chats. */
static pn_status model_open_vocab(pn_model *m, pn_err *err)
{
    pn_weights *w = &m->file.weights;
    if (w->hf) {
        pn_status st = pn_vocab_from_folder(&m->vocab, &m->folder_vocab, m->engine, w, err);
        if (!st) {
            m->chat_template = pn_hf_vocab_template(m->folder_vocab, false);
            m->tool_template = pn_hf_vocab_template(m->folder_vocab, true);
        }
        if (!st && w->hf->warning)
            pn_engine_logf(m->engine, PN_LOG_WARN, "%s: %s", w->parts[0].path, w->hf->warning);
        return st;
    }
    const pn_gguf_kv *kv = pn_weights_meta(w, "tokenizer.chat_template"), *tools = pn_weights_meta(w, "tokenizer.chat_template.tool_use");
    if (kv)
        pn_gguf_str(kv, 0, &m->chat_template);
    if (tools)
        pn_gguf_str(tools, 0, &m->tool_template);
    return pn_vocab_from_file(&m->vocab, &m->token_text, &m->n_token_text, m->engine, w, m->desc.n_vocab, err);
}

/* m->file.weights is open; everything else follows from it. */
static pn_status model_open(pn_model *m, const pn_model_params *p, pn_err *err)
{
    uint32_t cut = 0;
    pn_status st = model_retype(m, p, err);
    if (!st && !p->vocab_only)
        st = model_cut(m, &cut, err);
    if (!st && !p->vocab_only)
        st = pn_desc_open_cut(&m->desc, pn_engine_mem(m->engine), &m->file.weights, false, cut, err);
    if (!st && !p->vocab_only)
        st = model_upload(m, err);
    if (!st)
        st = model_open_vocab(m, err);
    if (!st && !p->vocab_only)
        st = model_open_weights(m, p, err);
    if (st)
        return pn_err_prefix(err, st, "%s", m->file.weights.parts[0].src.name);
    if (!p->vocab_only && !m->type_name[0])
        model_type_name(m);
    return PN_OK;
}

static pn_model *model_new(pn_engine *e, pn_err *err)
{
    pn_model *m = pn_mem_calloc(pn_engine_mem(e), PN_ACCT_MISC, 1, sizeof *m);
    if (!m) {
        pn_fail_nomem(err, "a model handle", sizeof *m);
        return NULL;
    }
    m->engine = e;
    m->file.engine = e;
    pn_mutex_init(&m->lock);
    return m;
}

/* With weights in memory of our own nothing is left of the file's mapping, metadata included. */
static bool model_maps(const pn_model_params *p) { return p->residency != PN_RESIDENCY_ANON && p->residency != PN_RESIDENCY_STREAM; }

/* Pages, and working memory for the smallest steps. */
static pn_status model_open_floor(pn_model *m, uint32_t tokens, pn_err *err)
{
    pn_cached_plan *plan;
    pn_status st = pn_model_get_plan(m, ENGINE_LEAST_BATCH, m->desc.n_ctx_train, &plan, err);
    if (st)
        return st;
    st = pn_model_reserve(m, plan, err);
    pn_model_put_plan(m, plan);
    return st ? st : pn_floor_open(m, tokens, err);
}

/* What the ladder finds. */
static void model_list(pn_model *m)
{
    pn_engine *e = m->engine;
    pn_mutex_lock(&e->models_lock);
    m->listed = true;
    m->next = e->models;
    e->models = m;
    pn_lend_note(m);
    pn_mutex_unlock(&e->models_lock);
    atomic_fetch_add(&e->n_models, 1);
}

static void model_unlist(pn_model *m)
{
    pn_engine *e = m->engine;
    pn_model **p = &e->models;
    if (!m->listed)
        return;
    pn_mutex_lock(&e->models_lock);
    while (*p != m)
        p = &(*p)->next;
    *p = m->next;
    pn_mutex_unlock(&e->models_lock);
    atomic_fetch_sub(&e->n_models, 1);
}

static pn_status model_finish(pn_model *m, pn_status st, const pn_model_params *p, pn_model **out, pn_err *err)
{
    pn_engine *e = m->engine;
    m->exact = p->exact != 0;
    m->vocab_only = p->vocab_only != 0;
    if (!st && !m->vocab_only)
        st = pn_engine_find_dies(m->engine, p->dies, p->n_dies, m->dies, &m->n_dies, err);
    atomic_fetch_add(&e->n_loading, 1u);
    if (!st)
        st = model_open(m, p, err);
    if (!st && !m->vocab_only && p->floor_tokens)
        st = model_open_floor(m, p->floor_tokens, err);
    if (!st && !m->vocab_only)
        st = pn_lend_open(m, err);
    atomic_fetch_sub(&e->n_loading, 1u);
    if (st) {
        pn_model_free(m);
        return st;
    }
    if (!m->vocab_only)
        pn_tier_know(m);
    model_list(m);
    *out = m;
    return PN_OK;
}

PN_API pn_status pn_model_load(pn_engine *e, const char *path, const pn_model_params *params, pn_model **out,
                               pn_err *err)
{
    if (!e || !path)
        return pn_fail(err, PN_E_INVALID, "%s", e ? "no path given" : "no engine given");
    pn_model_params p;
    pn_params_copy(&p, sizeof p, params, params ? params->size : 0);
    pn_model *m = model_new(e, err);
    if (!m)
        return PN_E_NOMEM;
    pn_status st = pn_weights_open_path(&m->file.weights, pn_engine_mem(e), path, model_maps(&p), err);
    return model_finish(m, st, &p, out, err);
}

PN_API pn_status pn_model_load_file(pn_file *f, const pn_model_params *params, pn_model **out, pn_err *err)
{
    if (!f)
        return pn_fail(err, PN_E_INVALID, "no file given");
    pn_model_params p;
    pn_params_copy(&p, sizeof p, params, params ? params->size : 0);
    pn_mem *mem = pn_engine_mem(f->engine);
    pn_model *m = model_new(f->engine, err);
    if (!m)
        return PN_E_NOMEM;
    m->file.reader = f->reader;
    pn_status st;
    if (f->bytes)
        st = pn_weights_open_memory(&m->file.weights, mem, f->bytes, f->n_bytes, err);
    else if (f->reader.read)
        st = pn_weights_open_reader(&m->file.weights, mem, &m->file.reader, err);
    else
        st = pn_weights_open_path(&m->file.weights, mem, f->weights.parts[0].path, model_maps(&p), err);
    return model_finish(m, st, &p, out, err);
}

PN_API void pn_model_free(pn_model *m)
{
    if (!m)
        return;
    model_unlist(m);
    pn_lend_close(m);
    atomic_store(&m->closing, true);
    while (atomic_load(&m->probing))
        pn_thread_yield();
    pn_floor_close(m);
    pn_cache_forget(m);
    for (size_t i = 0; i < ENGINE_PLANS; i++)
        if (m->plans[i])
            model_free_plan(m, m->plans[i]);
    for (uint32_t i = 0; i < m->n_uploaded; i++)
        pn_die_unload(m->dies[i], m->uploaded[i]);
    pn_mem_free(pn_engine_mem(m->engine), PN_ACCT_STAGE, m->carry, (size_t)m->carry_rows * m->desc.n_embd * sizeof *m->carry);
    pn_residency_close(&m->store);
    if (m->mapped_bytes && !atomic_load(&m->parked))
        pn_ledger_note_map(&m->engine->ledger, -(int64_t)m->mapped_bytes);
    pn_gtrie_free(m->trie);
    pn_vocab_free(m->vocab);
    pn_hf_vocab_free(m->folder_vocab);
    pn_mem_free(pn_engine_mem(m->engine), PN_ACCT_VOCAB, m->token_text, m->n_token_text * sizeof *m->token_text);
    pn_desc_close(&m->desc);
    pn_weights_close(&m->file.weights);
    pn_mutex_fini(&m->lock);
    pn_mem_free(pn_engine_mem(m->engine), PN_ACCT_MISC, m, sizeof *m);
}

PN_API pn_status pn_model_cap(pn_model *m, const pn_model_caps *caps, pn_err *err)
{
    if (!m || !caps)
        return pn_fail(err, PN_E_INVALID, "%s", m ? "no caps given" : "no model given");
    pn_mutex_lock(&m->lock);
    pn_params_copy(&m->caps, sizeof m->caps, caps, caps->size);
    pn_mutex_unlock(&m->lock);
    return PN_OK;
}

PN_API void pn_model_residency(pn_model *m, pn_residency_info *out)
{
    if (m->vocab_only)
        *out = (pn_residency_info){.mode = PN_RESIDENCY_MAP};
    else
        pn_residency_report(&m->store, out);
    out->mapped_bytes = atomic_load(&m->parked) ? 0 : m->mapped_bytes;
    out->lent_bytes = atomic_load(&m->lent);
}

PN_API const pn_file *pn_model_file(const pn_model *m) { return &m->file; }

PN_API void pn_model_describe(const pn_model *m, pn_model_info *out)
{
    const pn_desc *d = &m->desc;
    pn_bytes s;
    memset(out, 0, sizeof *out);
    memcpy(out->arch, d->arch_name, sizeof out->arch);
    memcpy(out->type, m->type_name, sizeof out->type);
    const pn_gguf_kv *kv = pn_weights_meta(&m->file.weights, "general.name");
    if (kv && pn_gguf_str(kv, 0, &s))
        memcpy(out->name, s.data, PN_MIN(s.len, sizeof out->name - 1));
    out->n_params = d->n_params;
    out->weight_bytes = d->weight_bytes;
    out->weight_bytes_per_token = m->vocab_only ? 0 : pn_desc_bytes_per_token(d);
    out->n_ctx_train = d->n_ctx_train;
    out->n_embd = d->n_embd;
    out->n_layers = d->n_layers;
    out->n_heads = d->n_heads;
    out->n_heads_kv = d->n_heads_kv;
    out->n_vocab = pn_vocab_size(m);
    out->has_chat_template = m->chat_template.len > 0;
    out->floor_tokens = m->floor_bytes ? m->floor_tokens : 0;
}
