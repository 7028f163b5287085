/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Loading a model: directory, description, residency, vocabulary; and the cache of its plans.
 */
#include "engine/pn_cache.h"

#include "sample/pn_grammar.h"

#include <inttypes.h>
#include <stdio.h>

/* ------------------------------------------------------------------------------------------
 * Plans
 * ------------------------------------------------------------------------------------------ */

/* Contexts differ in their plan only where the family has two rotary tables. */
static bool model_long_ctx(const pn_model *m, uint32_t n_ctx)
{
    return m->desc.n_ropes > 1 && n_ctx > m->desc.u.longrope.ctx_short;
}

static pn_status model_new_plan(pn_model *m, uint32_t max_rows, uint32_t n_ctx, pn_plan_result result, pn_cached_plan **out,
                                pn_err *err)
{
    pn_mem *mem = pn_engine_mem(m->engine);
    pn_cached_plan *c = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *c);
    if (!c)
        return pn_fail_nomem(err, "a plan", sizeof *c);
    pn_status st = result == PN_RESULT_HIDDEN ? pn_desc_plan_hidden(&m->desc, &c->plan, max_rows, max_rows, n_ctx, m->exact, err)
                                              : pn_desc_plan(&m->desc, &c->plan, max_rows, max_rows, n_ctx, m->exact, err);
    if (st) {
        pn_mem_free(mem, PN_ACCT_MISC, c, sizeof *c);
        return st;
    }
    c->max_rows = max_rows;
    c->long_ctx = model_long_ctx(m, n_ctx);
    *out = c;
    return PN_OK;
}

static void model_free_plan(pn_model *m, pn_cached_plan *c)
{
    pn_mem *mem = pn_engine_mem(m->engine);
    pn_plan_free(&c->plan, mem);
    pn_mem_free(mem, PN_ACCT_MISC, c, sizeof *c);
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
        if (c && c->max_rows == max_rows && c->long_ctx == model_long_ctx(m, n_ctx) && c->plan.result == result)
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

static pn_status model_open_weights(pn_model *m, const pn_model_params *p, pn_err *err)
{
    const pn_residency_params rp = {.mode = p->residency, .lease_rows = p->lease_rows, .progress = p->progress,
                                    .progress_user = p->progress_user};
    pn_status st = pn_residency_open(&m->store, pn_engine_mem(m->engine), &m->file.weights, m->desc.weights,
                                     m->desc.tensors, (uint32_t)m->desc.n_weights, &rp, err);
    if (!st && !m->store.anon) {
        m->mapped_bytes = m->desc.weight_bytes;
        pn_ledger_note_map(&m->engine->ledger, (int64_t)m->mapped_bytes);
    }
    return st;
}

/* m->file.weights is open; everything else follows from it. */
static pn_status model_open(pn_model *m, const pn_model_params *p, pn_err *err)
{
    pn_bytes s;
    pn_status st = PN_OK;
    if (!p->vocab_only)
        st = pn_desc_open(&m->desc, pn_engine_mem(m->engine), &m->file.weights, false, err);
    if (!st)
        st = pn_vocab_from_file(&m->vocab, &m->token_text, &m->n_token_text, m->engine, &m->file.weights,
                                m->desc.n_vocab, err);
    if (!st && !p->vocab_only)
        st = model_open_weights(m, p, err);
    if (st)
        return pn_err_prefix(err, st, "%s", m->file.weights.parts[0].src.name);
    const pn_gguf_kv *kv = pn_weights_meta(&m->file.weights, "tokenizer.chat_template");
    if (kv && pn_gguf_str(kv, 0, &s))
        m->chat_template = s;
    if (!p->vocab_only)
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
static bool model_maps(const pn_model_params *p) { return p->residency != PN_RESIDENCY_ANON; }

static pn_status model_finish(pn_model *m, pn_status st, const pn_model_params *p, pn_model **out, pn_err *err)
{
    m->exact = p->exact != 0;
    m->vocab_only = p->vocab_only != 0;
    if (!st)
        st = model_open(m, p, err);
    if (st)
        pn_model_free(m);
    else
        *out = m;
    return st;
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
    pn_cache_forget(m);
    for (size_t i = 0; i < ENGINE_PLANS; i++)
        if (m->plans[i])
            model_free_plan(m, m->plans[i]);
    pn_residency_close(&m->store);
    if (m->mapped_bytes)
        pn_ledger_note_map(&m->engine->ledger, -(int64_t)m->mapped_bytes);
    pn_gtrie_free(m->trie);
    pn_vocab_free(m->vocab);
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
}
