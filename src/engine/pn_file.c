/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_file: the header of a model, as the public API shows it.
 */
#include "engine/pn_engine_int.h"

#include "format/pn_hf_dir.h"
#include "format/pn_packed.h"

static pn_file *file_new(pn_engine *e, pn_err *err)
{
    pn_file *f = e ? pn_mem_calloc(pn_engine_mem(e), PN_ACCT_MISC, 1, sizeof *f) : NULL;
    if (!e)
        pn_fail(err, PN_E_INVALID, "no engine given");
    else if (!f)
        pn_fail_nomem(err, "a file handle", sizeof *f);
    else
        f->engine = e;
    return f;
}

static pn_status file_done(pn_file *f, pn_status st, pn_file **out)
{
    if (st)
        pn_mem_free(pn_engine_mem(f->engine), PN_ACCT_MISC, f, sizeof *f);
    else
        *out = f;
    return st;
}

PN_API pn_status pn_file_open(pn_engine *e, const char *path, pn_file **out, pn_err *err)
{
    if (!path)
        return pn_fail(err, PN_E_INVALID, "no path given");
    pn_file *f = file_new(e, err);
    if (!f)
        return e ? PN_E_NOMEM : PN_E_INVALID;
    return file_done(f, pn_weights_look(&f->weights, pn_engine_mem(e), path, err), out);
}

PN_API pn_status pn_file_open_memory(pn_engine *e, const void *bytes, size_t n, pn_file **out, pn_err *err)
{
    if (!bytes)
        return pn_fail(err, PN_E_INVALID, "no bytes given");
    pn_file *f = file_new(e, err);
    if (!f)
        return e ? PN_E_NOMEM : PN_E_INVALID;
    f->bytes = bytes;
    f->n_bytes = n;
    return file_done(f, pn_weights_open_memory(&f->weights, pn_engine_mem(e), bytes, n, err), out);
}

PN_API pn_status pn_file_open_reader(pn_engine *e, const pn_reader *reader, pn_file **out, pn_err *err)
{
    if (!reader || !reader->read)
        return pn_fail(err, PN_E_INVALID, "no read callback given");
    pn_file *f = file_new(e, err);
    if (!f)
        return e ? PN_E_NOMEM : PN_E_INVALID;
    f->reader = *reader;
    return file_done(f, pn_weights_open_reader(&f->weights, pn_engine_mem(e), &f->reader, err), out);
}

PN_API void pn_file_close(pn_file *f)
{
    if (!f)
        return;
    pn_weights_close(&f->weights);
    pn_mem_free(pn_engine_mem(f->engine), PN_ACCT_MISC, f, sizeof *f);
}

static void file_meta(const pn_gguf_kv *kv, pn_meta *out)
{
    *out = (pn_meta){.key = kv->key.data, .key_len = kv->key.len, .type = (pn_meta_type)kv->type,
                     .elem = (pn_meta_type)kv->elem, .count = kv->count};
}

PN_API size_t pn_file_meta_count(const pn_file *f) { return f->weights.gguf[0].n_kv; }

PN_API pn_status pn_file_meta_at(const pn_file *f, size_t i, pn_meta *out)
{
    if (i >= f->weights.gguf[0].n_kv)
        return PN_E_INVALID;
    file_meta(&f->weights.gguf[0].kv[i], out);
    return PN_OK;
}

PN_API pn_status pn_file_meta_find(const pn_file *f, const char *key, pn_meta *out)
{
    const pn_gguf_kv *kv = key ? pn_weights_meta(&f->weights, key) : NULL;
    if (!kv)
        return PN_E_INVALID;
    file_meta(kv, out);
    return PN_OK;
}

PN_API pn_status pn_file_meta_number(const pn_file *f, const char *key, uint64_t index, double *out)
{
    const pn_gguf_kv *kv = key ? pn_weights_meta(&f->weights, key) : NULL;
    return kv && pn_gguf_f64(kv, index, out) ? PN_OK : PN_E_INVALID;
}

PN_API pn_status pn_file_meta_string(const pn_file *f, const char *key, uint64_t index, const char **text, size_t *len)
{
    const pn_gguf_kv *kv = key ? pn_weights_meta(&f->weights, key) : NULL;
    pn_bytes s;
    if (!kv || !pn_gguf_str(kv, index, &s))
        return PN_E_INVALID;
    *text = s.data;
    *len = s.len;
    return PN_OK;
}

PN_API size_t pn_file_tensor_count(const pn_file *f) { return f->weights.n_tensors; }

PN_API pn_status pn_file_tensor_at(const pn_file *f, size_t i, pn_tensor_info *out)
{
    if (i >= f->weights.n_tensors)
        return PN_E_INVALID;
    const pn_dir_tensor *d = &f->weights.tensors[i];
    const pn_gguf_tensor *t = d->file;
    *out = (pn_tensor_info){.name = t->name, .dtype = (pn_dtype)t->dtype, .n_dims = t->n_dims, .bytes = t->bytes,
                            .offset = t->offset, .part = d->part};
    out->type = f->weights.bare ? pn_hf_dir_type(f->weights.hf, i) : pn_dtype_name(out->dtype);
    memcpy(out->ne, t->ne, sizeof out->ne);
    if (d->packed) {
        out->dtype = PN_DTYPE_COUNT;
        out->type = pn_packed_name(d->packed);
        out->bytes = pn_packed_bytes(d->packed) * t->ne[2];
    }
    return PN_OK;
}

PN_API uint32_t pn_file_part_count(const pn_file *f) { return f->weights.n_parts; }
