/* SPDX-License-Identifier: AGPL-3.0-only */
#include "engine/pn_retype.h"

#include "format/pn_packed.h"
#include "num/pn_quant.h"

enum { RETYPE_BLOCK = 256 << 10 };      /* bytes of the file's rows, a thread */

/* ------------------------------------------------------------------------------------------
 * What becomes of each tensor
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL const pn_gguf_kv *pn_retype_kv(const pn_weights *w, const char *key)
{
    char name[160];
    pn_bytes arch;
    const pn_gguf_kv *kv = pn_weights_meta(w, "general.architecture");
    if (!kv || !pn_gguf_str(kv, 0, &arch) || arch.len + strlen(key) + 2 > sizeof name)
        return NULL;
    memcpy(name, arch.data, arch.len);
    name[arch.len] = '.';
    memcpy(name + arch.len + 1, key, strlen(key) + 1);
    return pn_weights_meta(w, name);
}

PN_INTERNAL uint32_t pn_retype_fact(const pn_weights *w, const char *key)
{
    uint64_t v = 0;
    const pn_gguf_kv *kv = pn_retype_kv(w, key);
    return kv && pn_gguf_u64(kv, 0, &v) && v <= UINT32_MAX ? (uint32_t)v : 0;
}

PN_INTERNAL pn_status pn_retype_choose(pn_mix *m, const pn_weights *w, uint32_t **types, pn_err *err)
{
    m->n_layers = pn_retype_fact(w, "block_count");
    m->n_heads = pn_retype_fact(w, "attention.head_count");
    m->n_heads_kv = pn_retype_fact(w, "attention.head_count_kv");
    m->n_expert = pn_retype_fact(w, "expert_count");
    if (m->n_heads_kv == 0)
        m->n_heads_kv = m->n_heads;
    uint32_t *out = *types = pn_mem_calloc(w->mem, PN_ACCT_MISC, w->n_tensors, sizeof *out);
    if (!out)
        return pn_fail_nomem(err, "a list of types", w->n_tensors * sizeof *out);
    for (size_t i = 0; i < w->n_tensors; i++)
        pn_mix_note(m, w->tensors[i].file->name);
    for (size_t i = 0; i < w->n_tensors; i++) {
        const pn_gguf_tensor *t = w->tensors[i].file;
        out[i] = t->bytes ? pn_mix_type(m, t->name, t->dtype, t->n_dims, t->ne) : t->dtype;
    }
    return PN_OK;
}

static bool retype_is_wide(uint32_t dtype) { return dtype == PN_DTYPE_F32 || dtype == PN_DTYPE_F16 || dtype == PN_DTYPE_BF16; }

PN_INTERNAL pn_status pn_retype_place(const pn_weights *w, pn_residency how, pn_err *err)
{
    for (size_t i = 0; i < w->n_tensors && (how == PN_RESIDENCY_MAP || how == PN_RESIDENCY_STREAM); i++) {
        const pn_dir_tensor *d = &w->tensors[i];
        if (d->packed)
            return pn_fail(err, PN_E_INVALID, "tensor '%s' is %s with scales, which becomes %s in memory of its own and cannot be %s: expected residency auto or anon",
                           d->file->name, pn_packed_name(d->packed), pn_dtype_name((pn_dtype)d->t->dtype), how == PN_RESIDENCY_MAP ? "mapped" : "streamed");
    }
    return PN_OK;
}

PN_INTERNAL pn_status pn_retype_open(pn_weights *w, const char *type, pn_residency how, pn_mix *m, pn_err *err)
{
    uint32_t *types = NULL;
    pn_status st = pn_mix_open(m, type, err);
    if (st)
        return pn_err_prefix(err, st, "load type");
    if (how == PN_RESIDENCY_MAP || how == PN_RESIDENCY_STREAM)
        return pn_fail(err, PN_E_INVALID, "load type %s makes weights in memory of their own, which cannot be %s: expected residency auto or anon",
                       pn_mix_name(m), how == PN_RESIDENCY_MAP ? "mapped" : "streamed");
    st = pn_retype_choose(m, w, &types, err);
    for (size_t i = 0; i < w->n_tensors && !st; i++)
        if (!retype_is_wide(w->tensors[i].file->dtype))
            types[i] = w->tensors[i].file->dtype;
    if (!st)
        st = pn_weights_retype(w, types, err);
    pn_mem_free(w->mem, PN_ACCT_MISC, types, w->n_tensors * sizeof *types);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Rows
 * ------------------------------------------------------------------------------------------ */

/* A thread's share of a quantised matrix: rows that follow each other, for scales are read some at a time. */
static void retype_packed(pn_retype_block *b, float *row, uint32_t thread)
{
    uint64_t r = b->n_rows * thread / b->n_threads, end = b->n_rows * (thread + 1) / b->n_threads;
    pn_err err = {.status = PN_OK};
    pn_status st = PN_OK;
    if (b->packed->repacked)
        st = pn_packed_move(b->file, b->packed, b->row0 + r, end - r, b->dst + r * b->to_bytes, &err);
    else
        for (; r < end && !st; r++) {
            st = pn_weights_read(b->file, b->packed, (b->row0 + r) * b->from_bytes, row, (size_t)b->from_bytes, &err);
            if (!st)
                pn_quant_row(b->to, row, b->dst + r * b->to_bytes, (size_t)b->n_cols);
        }
    if (st && !atomic_exchange(&b->failed, true)) {
        b->status = st;
        b->err = err;
    }
}

/* Rows thread, thread + n_threads, ... of a block. */
static void retype_rows(void *arg, uint32_t thread)
{
    pn_retype_block *b = arg;
    size_t n = (size_t)b->n_cols;
    float *row = b->rows + thread * n;
    if (b->packed) {
        retype_packed(b, row, thread);
        return;
    }
    for (uint64_t r = thread; r < b->n_rows; r += b->n_threads) {
        pn_dequant_row(b->from, b->src + r * b->from_bytes, row, n);
        pn_quant_row(b->to, row, b->dst + r * b->to_bytes, n);
    }
}

PN_INTERNAL pn_status pn_retype_run(pn_team *t, pn_retype_block *b, pn_err *err)
{
    b->n_threads = pn_team_size(t);
    pn_team_run(t, retype_rows, b);
    if (b->status && err)
        *err = b->err;
    return b->status;
}

/* Rows of a tensor that are under way at once. */
static uint64_t retype_rows_at_once(const pn_gguf_tensor *t, uint32_t n_threads)
{
    uint64_t rows = PN_MAX((uint64_t)RETYPE_BLOCK * n_threads / t->row_bytes, UINT64_C(1));
    return PN_MIN(rows, t->bytes / t->row_bytes);
}

/* Bytes of a block, and floats of one decoded row. */
static void retype_sizes(const pn_weights *w, uint32_t n_threads, uint64_t *block, uint64_t *cols)
{
    *block = *cols = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        const pn_gguf_tensor *t = w->tensors[i].file;
        if (!pn_weights_retyped(&w->tensors[i]))
            continue;
        if (!w->tensors[i].packed)
            *block = PN_MAX(*block, retype_rows_at_once(t, n_threads) * t->row_bytes);
        *cols = PN_MAX(*cols, t->ne[0]);
    }
}

PN_INTERNAL uint64_t pn_retype_stage(const pn_weights *w, uint32_t n_threads)
{
    uint64_t block, cols, rows, all;
    retype_sizes(w, n_threads, &block, &cols);
    return pn_mul_u64(cols, (uint64_t)n_threads * sizeof(float), &rows) && pn_add_u64(rows, block, &all) ? all : UINT64_MAX;
}

PN_INTERNAL pn_status pn_retyper_open(pn_retyper *r, pn_mem *mem, const pn_weights *file, uint32_t n_threads, pn_err *err)
{
    *r = (pn_retyper){.mem = mem, .file = file};
    pn_status st = pn_team_new(&r->team, mem, n_threads, err);
    if (st)
        return st;
    uint64_t block, cols, bytes = pn_retype_stage(file, pn_team_size(r->team));
    retype_sizes(file, pn_team_size(r->team), &block, &cols);
    r->row_floats = cols * pn_team_size(r->team);
    r->stage_bytes = (size_t)bytes;
    r->stage = bytes > SIZE_MAX / 2 ? NULL : pn_mem_alloc(mem, PN_ACCT_STAGE, r->stage_bytes);
    if (r->stage)
        return PN_OK;
    r->stage_bytes = 0;
    pn_retyper_close(r);
    return pn_fail_nomem(err, "rows that change their type", bytes);
}

PN_INTERNAL void pn_retyper_close(pn_retyper *r)
{
    pn_team_free(r->team);
    pn_mem_free(r->mem, PN_ACCT_STAGE, r->stage, r->stage_bytes);
    r->team = NULL;
    r->stage = NULL;
}

PN_INTERNAL pn_status pn_retyper_rows(void *user, const pn_dir_tensor *t, uint64_t row, uint64_t n, uint8_t *dst, pn_err *err)
{
    pn_retyper *r = user;
    uint8_t *src = r->stage + r->row_floats * sizeof(float);
    uint64_t most = t->packed ? n : retype_rows_at_once(t->file, pn_team_size(r->team));
    pn_retype_block b = {.from = t->file->dtype, .to = t->t->dtype, .n_cols = t->file->ne[0], .from_bytes = t->file->row_bytes,
                         .to_bytes = t->t->row_bytes, .src = src, .dst = dst, .rows = (float *)(void *)r->stage};
    pn_status st = PN_OK;
    if (t->packed) {
        b.file = r->file;
        b.packed = t;
    }
    for (; n && !st; n -= b.n_rows, row += b.n_rows, b.dst += b.n_rows * b.to_bytes) {
        b.n_rows = PN_MIN(n, most);
        b.row0 = row;
        if (!t->packed)
            st = pn_weights_read(r->file, t, row * b.from_bytes, src, (size_t)(b.n_rows * b.from_bytes), err);
        if (!st)
            st = pn_retype_run(r->team, &b, err);
    }
    return st;
}
