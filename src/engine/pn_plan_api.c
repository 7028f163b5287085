/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_file_plan: every byte before anything is loaded.  The numbers come from the functions that
 * later do the allocating (pn_kv_bytes, the planner's placement, the device's work_bytes), not from
 * formulas of their own, so they cannot drift apart.
 */
#include "engine/pn_cache.h"
#include "engine/pn_fit.h"
#include "engine/pn_retype.h"
#include "engine/pn_sched.h"
#include "format/pn_hf_dir.h"

#include <inttypes.h>

enum { PLAN_CTX_STEP = 64 };

PN_INTERNAL pn_status pn_session_needs(const pn_desc *d, uint32_t n_ctx, uint32_t n_batch, uint32_t n_threads,
                                       uint32_t kv_type, bool exact, pn_session_need *out, pn_err *err)
{
    const pn_device_ops *ops = pn_backend_cpu();
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < (d->cut ? 2u : 1u); i++) {
        const pn_state_spec part = pn_state_part(&d->state, i);
        uint64_t pages;
        pn_plan plan;
        if (!pn_kv_bytes(&part, n_ctx, n_batch, kv_type, &out->kv_part[i], &pages) ||
            !pn_add_u64(out->kv_bytes, out->kv_part[i], &out->kv_bytes))
            return pn_fail(err, PN_E_INVALID, "keys and values of %" PRIu32 " tokens overflow 64 bits", n_ctx);
        uint64_t state = pn_state_turn_part(&d->state, i);
        out->state_bytes += state;
        if (!pn_add_u64(out->kv_part[i], state, &out->kv_part[i]))
            return pn_fail(err, PN_E_INVALID, "the recurrent state of a session overflows 64 bits");
        pn_status st = pn_desc_plan_part(d, &plan, d->cut, i, PN_RESULT_LOGITS, n_batch, n_ctx, exact, err);
        if (st)
            return st;
        out->kv_pages += pages;
        out->work_bytes += out->work_part[i] = ops->work_bytes(n_threads, &plan);
        pn_plan_free(&plan, d->mem);
    }
    out->misc_bytes = (uint64_t)n_ctx * sizeof(pn_token) + (uint64_t)d->n_vocab * sizeof(float) +
                      (uint64_t)n_batch * sizeof(uint32_t) + sizeof(pn_session);
    return PN_OK;
}

enum { PLAN_FOLDER_TOKEN = 128 };      /* bytes a token of a folder takes, with its text and its merge */

/* Token table, hash, merges, decoded pieces: what the text layer holds for a vocabulary of this
 * size, from the lengths in the header; of a folder, whose tokenizer files are not opened for this, from its rows. */
static uint64_t plan_vocab_bytes(const pn_weights *w, uint32_t n_vocab)
{
    if (w->hf)
        return (uint64_t)n_vocab * PLAN_FOLDER_TOKEN;
    const pn_gguf_kv *t = pn_weights_meta(w, "tokenizer.ggml.tokens"), *m = pn_weights_meta(w, "tokenizer.ggml.merges");
    uint64_t n = t && t->type == PN_META_ARRAY ? t->count : 0, nm = m && m->type == PN_META_ARRAY ? m->count : 0;
    return n * 64 + nm * 24 + (t ? t->data_len : 0);
}

/* What of a folder is in memory before any weight is. */
static uint64_t plan_folder_bytes(const pn_weights *w) { return w->hf ? pn_hf_dir_bytes(w->hf) : 0; }

static uint64_t plan_mapped_file_anon(const pn_desc *d, uint64_t vocab, const pn_session_need *n, uint32_t sessions)
{
    return plan_folder_bytes(d->file) + d->pinned_bytes + vocab + n->work_bytes + (n->kv_bytes + n->state_bytes + n->misc_bytes) * sessions;
}

/* How the weights would be loaded now, and what of streamed ones is in memory then. */
static pn_status plan_residency(pn_file *f, const pn_desc *d, const pn_plan_params *p, pn_plan_info *o, pn_err *err)
{
    bool simulated = f->engine->dies[0].simulated;
    pn_fit_params fit = {.residency = p->residency, .file = f->weights.parts[0].path && !pn_weights_reads(&f->weights) && !simulated,
                         .vocab_bytes = o->vocab_bytes + plan_folder_bytes(&f->weights), .n_threads = o->n_threads, .kv_type = o->kv_type,
                         .exact = p->exact != 0,
                         .load_bytes = pn_retype_stage(d->file, o->n_threads),
                         .stream = {.block_bytes = p->stream_block, .depth = p->stream_depth, .pin_bytes = p->pin_bytes,
                                    .expert_bytes = p->expert_cache_bytes}};
    pn_stream_bytes n = {0};
    pn_status st = pn_fit_choose(f->engine, d, &fit, err);
    if (st == PN_E_BUDGET)      /* the sums tell */
        st = PN_OK;
    if (!st && fit.residency == PN_RESIDENCY_STREAM)
        st = pn_fit_stream(d, &fit.stream, p->exact != 0, &n, err);
    o->residency = fit.residency == PN_RESIDENCY_AUTO ? PN_RESIDENCY_MAP : fit.residency;
    o->pinned_bytes = n.pinned;
    o->stage_bytes = n.stage;
    o->expert_bytes = n.experts;
    o->expert_floor_bytes = n.experts_floor;
    o->streamed_bytes = n.streamed;
    return st;
}

/* What is held when the last matrix has been converted: every one on a line of its own (pn_residency.c). */
static uint64_t plan_load_bytes(const pn_desc *d, const pn_plan_info *o)
{
    uint64_t stage = pn_retype_stage(d->file, o->n_threads), sum = d->pinned_bytes + o->vocab_bytes;
    for (size_t i = 0; i < d->n_weights; i++)
        if (!d->weights[i].pinned)
            sum += pn_align_up(d->weights[i].rows * d->weights[i].row_bytes, 64);
    return stage ? pn_add_sat(sum, stage) : 0;
}

/* Memory of the weights, mapped or not, and the least it can be. */
static uint64_t plan_resident(const pn_plan_info *o)
{
    return o->stage_bytes ? o->pinned_bytes + o->stage_bytes + o->expert_bytes : o->weight_bytes;
}

static uint64_t plan_resident_floor(const pn_plan_info *o)
{
    return o->stage_bytes ? o->stage_bytes + o->expert_floor_bytes : o->weight_bytes;
}

/* Largest context (a multiple of a page) for which everything fits in `available`. */
static uint32_t plan_ctx_fits(const pn_desc *d, const pn_plan_info *p, uint32_t n_threads, bool exact)
{
    uint32_t lo = 0, hi = PN_MAX(p->n_ctx_train, p->n_ctx) / PLAN_CTX_STEP;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo + 1) / 2;
        pn_session_need n;
        bool ok = pn_session_needs(d, mid * PLAN_CTX_STEP, p->n_batch, n_threads, p->kv_type, exact, &n, NULL) == PN_OK;
        if (ok && plan_mapped_file_anon(d, p->vocab_bytes, &n, p->n_sessions) + pn_sched_bytes(p->n_sessions, p->n_batch, d->n_vocab) +
                      plan_resident(p) <= p->available_bytes)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo * PLAN_CTX_STEP;
}

static pn_status plan_fill(pn_file *f, const pn_desc *d, const pn_plan_params *p, pn_plan_info *o, pn_err *err)
{
    uint32_t threads = p->n_threads ? p->n_threads : f->engine->n_threads;
    o->n_ctx_train = d->n_ctx_train;
    o->n_ctx = p->n_ctx ? p->n_ctx : d->n_ctx_train;
    if (p->n_batch > ENGINE_MAX_BATCH)
        return pn_fail(err, PN_E_INVALID, "n_batch is %" PRIu32 ", expected 1 to %d (0: the default)", p->n_batch,
                       ENGINE_MAX_BATCH);
    o->n_batch = p->n_batch ? p->n_batch : (uint32_t)ENGINE_DEFAULT_BATCH;
    o->n_batch = PN_MIN(o->n_batch, o->n_ctx);
    o->n_sessions = p->n_sessions ? p->n_sessions : 1;
    o->n_threads = threads;
    o->kv_type = p->has_kv_type ? p->kv_type : p->exact ? PN_DTYPE_F32 : PN_DTYPE_F16;
    pn_status st = pn_kv_check_type(&d->state, o->kv_type, err);
    if (st)
        return st;
    memcpy(o->arch, d->arch_name, sizeof o->arch);
    o->n_params = d->n_params;
    o->weight_bytes = d->weight_bytes;
    o->weight_bytes_per_token = pn_desc_bytes_per_token(d);
    o->file_bytes = f->weights.file_bytes;
    o->vocab_bytes = plan_vocab_bytes(&f->weights, d->n_vocab);
    o->n_layers = d->n_layers;
    o->n_embd = d->n_embd;
    o->n_heads = d->n_heads;
    o->n_heads_kv = d->n_heads_kv;
    o->n_vocab = d->n_vocab;
    pn_session_need n, floor_need;
    pn_need embed;
    st = plan_residency(f, d, p, o, err);
    if (!st)
        st = pn_session_needs(d, o->n_ctx, o->n_batch, threads, o->kv_type, p->exact, &n, err);
    uint32_t floor_ctx = PN_MIN((uint32_t)PN_FIT_CTX, o->n_ctx);
    if (!st)
        st = pn_embed_needs(d, o->n_ctx, o->n_batch, threads, p->exact, n.work_part, &embed, err);
    if (!st)
        st = pn_session_needs(d, floor_ctx, PN_MIN((uint32_t)PN_FIT_BATCH, floor_ctx), threads, o->kv_type,
                              p->exact, &floor_need, err);
    if (st)
        return st;
    o->embed_bytes = embed.all;
    o->kv_bytes_per_token = pn_kv_bytes_per_token(&d->state, o->kv_type);
    o->kv_bytes_per_session = n.kv_bytes;
    uint64_t sessions;
    if (!pn_mul_u64(n.kv_bytes + n.state_bytes + n.misc_bytes, o->n_sessions, &sessions))
        return pn_fail(err, PN_E_INVALID, "%" PRIu32 " sessions overflow 64 bits", o->n_sessions);
    o->kv_bytes = n.kv_bytes * o->n_sessions;
    o->state_bytes = n.state_bytes * o->n_sessions;
    uint64_t together = pn_sched_bytes(o->n_sessions, o->n_batch, d->n_vocab);
    o->scratch_bytes = n.work_bytes + n.misc_bytes * o->n_sessions + together;
    o->anon_bytes = plan_mapped_file_anon(d, o->vocab_bytes, &n, o->n_sessions) + together;
    o->load_bytes = plan_load_bytes(d, o);
    o->total_bytes = PN_MAX(o->anon_bytes + plan_resident(o), o->load_bytes);
    if (o->stage_bytes || o->load_bytes)        /* nothing of them is page cache */
        o->anon_bytes = o->total_bytes;
    o->floor_bytes = PN_MAX(plan_mapped_file_anon(d, o->vocab_bytes, &floor_need, 1) + plan_resident_floor(o), o->load_bytes);
    return PN_OK;
}

/* What can be taken for it: of this machine's memory, and of its dies'.  The limit does not count page cache. */
static pn_status plan_available(pn_engine *e, const pn_plan_params *p, const pn_plan_info *o, uint64_t *out, pn_err *err)
{
    pn_mem_info mem;
    uint64_t mapped = o->residency == PN_RESIDENCY_MAP ? o->weight_bytes : 0;
    pn_die *dies[PN_MAX_PARTS] = {NULL};
    uint32_t n = 0;
    pn_status st = pn_engine_find_dies(e, p->dies, p->n_dies, dies, &n, err);
    if (st)
        return st;
    pn_engine_memory(e, &mem);
    uint64_t left = pn_sub_sat(mem.limit, mem.total_used) + mapped;
    *out = mem.host_available;
    if (mem.limit && (*out == 0 || left < *out))
        *out = left;
    if (*out)
        *out += pn_cache_droppable_all(e) + atomic_load(&e->lent);
    uint64_t there = 0;
    for (uint32_t i = 0; i < n; i++)
        there += dies[i]->simulated ? pn_die_free_bytes(dies[i]) + pn_cache_droppable(dies[i]) : 0;
    if (dies[0]->simulated && (*out == 0 || there < *out))
        *out = PN_MAX(there, UINT64_C(1));
    return PN_OK;
}

/* The description of the header, with a directory of its own where types change. */
static pn_status plan_open(pn_file *f, const pn_plan_params *p, pn_weights *w, pn_desc *d, pn_err *err)
{
    pn_mix mix;
    pn_status st = pn_weights_share(w, &f->weights, err);
    if (!st)
        st = pn_retype_place(w, p->residency, err);
    if (!st && p->load_type)
        st = pn_retype_open(w, p->load_type, p->residency, &mix, err);
    if (!st)
        st = pn_desc_open(d, pn_engine_mem(f->engine), w, true, err);
    if (st)
        pn_weights_close(w);
    return st;
}

static void plan_close(pn_weights *w, pn_desc *d)
{
    pn_desc_close(d);
    pn_weights_close(w);
}

PN_API pn_status pn_file_plan(pn_file *f, const pn_plan_params *params, pn_plan_info *out, pn_err *err)
{
    pn_plan_params p;
    pn_params_copy(&p, sizeof p, params, params ? params->size : 0);
    pn_plan_info o = {0};
    pn_desc d;
    pn_weights w;
    pn_status st = plan_open(f, &p, &w, &d, err);
    if (st)
        return st;
    st = plan_fill(f, &d, &p, &o, err);
    if (!st)
        st = plan_available(f->engine, &p, &o, &o.available_bytes, err);
    if (!st) {
        o.fits = o.available_bytes == 0 || o.total_bytes <= o.available_bytes;
        o.n_ctx_fits = o.available_bytes ? plan_ctx_fits(&d, &o, o.n_threads, p.exact) : o.n_ctx;
        *out = o;
    }
    plan_close(&w, &d);
    return st;
}

PN_API pn_status pn_file_plan_dot(pn_file *f, const pn_plan_params *params, pn_write_fn write, void *user, pn_err *err)
{
    pn_plan_params p;
    pn_params_copy(&p, sizeof p, params, params ? params->size : 0);
    uint32_t rows = p.n_batch ? p.n_batch : ENGINE_DEFAULT_BATCH;
    if (rows > ENGINE_MAX_BATCH || !write)
        return pn_fail(err, PN_E_INVALID, "a plan of %" PRIu32 " rows: expected 1 to %d, and a function to write with",
                       rows, ENGINE_MAX_BATCH);
    pn_mem *mem = pn_engine_mem(f->engine);
    pn_desc d;
    pn_weights w;
    pn_plan plan;
    pn_status st = plan_open(f, &p, &w, &d, err);
    if (st)
        return st;
    st = pn_desc_plan(&d, &plan, rows, rows, p.n_ctx ? p.n_ctx : d.n_ctx_train, p.exact != 0, err);
    if (!st) {
        st = pn_plan_dot(&plan, mem, write, user, err);
        pn_plan_free(&plan, mem);
    }
    plan_close(&w, &d);
    return st;
}
