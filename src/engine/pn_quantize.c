/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_quantize.c - a model file with its matrices in another number format.
 *
 * The sizes of all tensors follow from the header alone, so the new header is written first and
 * the data are streamed behind it, tensor by tensor in the old order, in blocks of rows: read,
 * decode to f32, encode, write.  At no time is more than one block (about QUANTIZE_BLOCK bytes, at
 * least one row) and its result in memory, whatever the model's size.
 *
 * Rows are independent, so a block is shared among the engine's threads; the bytes written do not
 * depend on how many there are.  The output appears under its name only when it is complete.
 *
 * A matrix of a quantised folder is, as everywhere, the f32 that its codes mean (pn_packed.h); so the output is that of the folder
 * with its weights decoded.
 *
 * A Hugging Face folder becomes the file that a converter would write: its vocabulary is put into keys, and rows of q and k
 * are permuted where the family's files have them so.
 *
 * Decoding an already quantised model and encoding it again loses more than encoding the original
 * once; nothing here forbids it.
 */
#include "engine/pn_retype.h"

#include <inttypes.h>

enum { QUANTIZE_BLOCK = 2 << 20 };

typedef struct quantize_job {
    pn_engine *engine;
    pn_weights in;
    pn_mix mix;
    pn_team *team;
    pn_os_out out;
    bool out_open;
    bool unpair;                /* rows of q and k are those of a folder whose family's GGUF files permute them */
    uint32_t *types;            /* [in.n_tensors] what each tensor becomes */
    uint64_t done, total;       /* bytes of the input's tensors */
    pn_progress_fn progress;
    void *progress_user;
} quantize_job;

/* ------------------------------------------------------------------------------------------
 * Header
 * ------------------------------------------------------------------------------------------ */

/* How rows of q and k of a folder are turned: heads in them, 0: as they are.  Where a GGUF file of the family permutes them
 * (rope.pairing is "neox" in a folder, and no key in a file), row t d/2 + j of a head becomes row 2 j + t. */
static uint32_t quantize_turned(const quantize_job *q, const pn_dir_tensor *d)
{
    static const struct { char end[20], key[32]; } rows[] = {{".attn_q.weight", "attention.head_count"}, {".attn_q.bias", "attention.head_count"},
                                                            {".attn_k.weight", "attention.head_count_kv"}, {".attn_k.bias", "attention.head_count_kv"}};
    size_t n = strlen(d->file->name);
    for (size_t i = 0; i < PN_COUNT_OF(rows) && q->unpair; i++)
        if (n > strlen(rows[i].end) && strcmp(d->file->name + n - strlen(rows[i].end), rows[i].end) == 0)
            return pn_retype_fact(&q->in, rows[i].key);
    return 0;
}

static bool quantize_key_is(const pn_gguf_kv *kv, const char *key)
{
    return kv->key.len == strlen(key) && memcmp(kv->key.data, key, kv->key.len) == 0;
}

static const char quantize_file_type[] = "general.file_type", quantize_version[] = "general.quantization_version";

/* Everything as it is, but for what is no longer true: the type (which comes last), and being one part of several. */
static void quantize_put_meta(const quantize_job *q, pn_gguf_writer *w)
{
    const pn_gguf *g = &q->in.gguf[0];
    for (size_t i = 0; i < g->n_kv; i++) {
        const pn_gguf_kv *kv = &g->kv[i];
        bool split = kv->key.len > 6 && memcmp(kv->key.data, "split.", 6) == 0;
        bool pairing = q->unpair && kv->key.len > 13 && memcmp(kv->key.data + kv->key.len - 13, ".rope.pairing", 13) == 0;
        if (!split && !pairing && !quantize_key_is(kv, quantize_file_type) && !quantize_key_is(kv, quantize_version))
            pn_gguf_put_kv(w, kv);
    }
}

static pn_status quantize_put_tensors(const quantize_job *q, pn_gguf_writer *w, pn_err *err)
{
    for (size_t i = 0; i < q->in.n_tensors; i++) {
        const pn_gguf_tensor *t = q->in.tensors[i].file;
        uint64_t row, bytes = t->bytes;
        if (q->types[i] != t->dtype &&
            (!pn_dtype_row_bytes(q->types[i], t->ne[0], &row) || !pn_mul_u64(row, t->n_elems / t->ne[0], &bytes)))
            return pn_fail(err, PN_E_UNSUPPORTED, "tensor '%s': rows of %" PRIu64 " elements do not fit type %s", t->name,
                           t->ne[0], pn_dtype_name((pn_dtype)q->types[i]));
        pn_gguf_put_tensor(w, t->name, q->types[i], t->n_dims, t->ne, bytes);
    }
    return PN_OK;
}

static pn_status quantize_header(quantize_job *q, pn_err *err)
{
    pn_gguf_writer w;
    pn_str header;
    pn_mem *mem = pn_engine_mem(q->engine);
    pn_gguf_writer_init(&w, mem);
    pn_str_init(&header, mem, PN_ACCT_MISC);
    quantize_put_meta(q, &w);
    pn_status st = q->in.hf ? pn_folder_put_vocab(&w, q->engine, &q->in, err) : PN_OK;
    pn_gguf_put_u32(&w, quantize_version, 2);
    pn_gguf_put_u32(&w, quantize_file_type, q->mix.file_type);
    if (!st)
        st = quantize_put_tensors(q, &w, err);
    if (!st && !pn_gguf_header(&w, &header))
        st = pn_fail_nomem(err, "a header", w.kv.len + w.table.len);
    if (!st)
        st = pn_os_write(&q->out, header.data, header.len, err);
    pn_str_fini(&header);
    pn_gguf_writer_fini(&w);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Data
 * ------------------------------------------------------------------------------------------ */

static pn_status quantize_report(quantize_job *q, uint64_t bytes, pn_err *err)
{
    q->done += bytes;
    if (q->progress && q->progress(q->progress_user, q->done, q->total))
        return pn_fail(err, PN_E_CANCELLED, "stopped by the caller after %" PRIu64 " of %" PRIu64 " bytes", q->done,
                       q->total);
    return PN_OK;
}

/* Rows [row, row + n) of what is written, `bytes` each; heads: as quantize_turned() says. */
static pn_status quantize_read(quantize_job *q, const pn_dir_tensor *d, uint64_t row, uint64_t n, uint64_t bytes, uint32_t heads, uint8_t *dst, pn_err *err)
{
    if (!heads)
        return pn_weights_read(&q->in, d, row * bytes, dst, (size_t)(n * bytes), err);
    if (d->file->n_dims == 1) {         /* a bias: its elements are the rows */
        bytes /= d->file->ne[0];
        n *= d->file->ne[0];
    }
    uint64_t size = d->file->bytes / bytes / heads;     /* of a head */
    pn_status st = PN_OK;
    for (uint64_t r = row; r < row + n && !st; r++, dst += bytes) {
        uint64_t k = r % size, from = r - k + k % 2 * (size / 2) + k / 2;
        st = pn_weights_read(&q->in, d, from * bytes, dst, (size_t)bytes, err);
    }
    return st;
}

/* Stream tensor t through buffers for `rows` rows at a time. */
static pn_status quantize_stream(quantize_job *q, const pn_dir_tensor *d, pn_retype_block *b, uint64_t rows,
                                 uint8_t *src, pn_err *err)
{
    uint64_t n_rows = d->file->bytes / b->from_bytes;
    uint32_t heads = quantize_turned(q, d);
    pn_status st = PN_OK;
    for (uint64_t r = 0; r < n_rows && !st; r += rows) {
        b->n_rows = PN_MIN(rows, n_rows - r);
        size_t n = (size_t)(b->n_rows * b->from_bytes);
        st = quantize_read(q, d, r, b->n_rows, b->from_bytes, heads, src, err);
        if (!st && b->to != b->from)
            st = pn_retype_run(q->team, b, err);
        if (!st)
            st = pn_os_write(&q->out, b->to != b->from ? b->dst : src, (size_t)(b->n_rows * b->to_bytes), err);
        if (!st)
            st = quantize_report(q, n, err);
    }
    return st;
}

static pn_status quantize_pad(quantize_job *q, uint64_t bytes, pn_err *err)
{
    static const char zeroes[32];
    return pn_os_write(&q->out, zeroes, (size_t)pn_gguf_pad(bytes), err);
}

static pn_status quantize_tensor(quantize_job *q, const pn_dir_tensor *d, uint32_t to, pn_err *err)
{
    pn_mem *mem = pn_engine_mem(q->engine);
    const pn_gguf_tensor *t = d->file;
    pn_retype_block b = {.from = t->dtype, .to = to, .n_cols = t->ne[0], .from_bytes = t->row_bytes,
                        .to_bytes = t->row_bytes};
    uint64_t src_bytes, dst_bytes = 0, row_floats = 0;
    if (t->bytes == 0)
        return PN_OK;
    if (to != t->dtype && (!pn_dtype_row_bytes(to, t->ne[0], &b.to_bytes) ||
                           !pn_mul_u64(t->ne[0], (uint64_t)pn_team_size(q->team) * sizeof(float), &row_floats)))
        return pn_fail(err, PN_E_UNSUPPORTED, "tensor '%s': rows of %" PRIu64 " elements are too long", t->name,
                       t->ne[0]);
    uint64_t rows = PN_MAX(QUANTIZE_BLOCK / PN_MAX(b.from_bytes, b.to_bytes), 1u);
    rows = PN_MIN(rows, t->bytes / t->row_bytes);
    src_bytes = rows * b.from_bytes;            /* at most a block or one row, which the file holds */
    dst_bytes = to != t->dtype ? rows * b.to_bytes : 0;
    if (src_bytes > SIZE_MAX || dst_bytes > SIZE_MAX || row_floats > SIZE_MAX)
        return pn_fail_nomem(err, t->name, PN_MAX(PN_MAX(src_bytes, dst_bytes), row_floats));
    uint8_t *src = pn_mem_alloc(mem, PN_ACCT_STAGE, (size_t)src_bytes);
    b.src = src;
    b.dst = pn_mem_alloc(mem, PN_ACCT_STAGE, (size_t)dst_bytes);
    b.rows = pn_mem_alloc(mem, PN_ACCT_STAGE, (size_t)row_floats);
    pn_status st = src && b.dst && b.rows ? quantize_stream(q, d, &b, rows, src, err)
                                          : pn_fail_nomem(err, t->name, src_bytes + dst_bytes + row_floats);
    pn_mem_free(mem, PN_ACCT_STAGE, src, (size_t)src_bytes);
    pn_mem_free(mem, PN_ACCT_STAGE, b.dst, (size_t)dst_bytes);
    pn_mem_free(mem, PN_ACCT_STAGE, b.rows, (size_t)row_floats);
    return st ? st : quantize_pad(q, b.to_bytes * (t->bytes / t->row_bytes), err);
}

/* ------------------------------------------------------------------------------------------
 * The whole
 * ------------------------------------------------------------------------------------------ */

static pn_status quantize_open(quantize_job *q, const char *in, const char *out, pn_err *err)
{
    pn_status st = pn_weights_open_path(&q->in, pn_engine_mem(q->engine), in, true, err);
    for (uint32_t i = 0; i < q->in.n_parts && !st; i++)
        if (pn_os_same_file(q->in.parts[i].path, out))
            st = pn_fail(err, PN_E_INVALID, "'%s' is read from: expected another name to write to", out);
    if (!st) {
        pn_bytes pairing;
        const pn_gguf_kv *kv = pn_retype_kv(&q->in, "rope.pairing");
        q->unpair = kv && pn_gguf_str(kv, 0, &pairing) && pairing.len == 4 && memcmp(pairing.data, "neox", 4) == 0;
        st = pn_retype_choose(&q->mix, &q->in, &q->types, err);
    }
    for (size_t i = 0; i < q->in.n_tensors && !st && q->in.hf; i++) {
        const pn_gguf_tensor *t = q->in.tensors[i].file;        /* what no format touches is f32 in GGUF files */
        if ((t->dtype == PN_DTYPE_F16 || t->dtype == PN_DTYPE_BF16) && pn_mix_keeps(t->name, t->n_dims, t->ne))
            q->types[i] = PN_DTYPE_F32;
    }
    for (size_t i = 0; i < q->in.n_tensors && !st; i++)
        q->total += q->in.tensors[i].file->bytes;
    if (!st)
        st = pn_team_new(&q->team, pn_engine_mem(q->engine), q->engine->n_threads, err);
    if (!st)
        st = pn_os_create(&q->out, out, err);
    q->out_open = !st;
    return st;
}

static void quantize_close(quantize_job *q)
{
    if (q->out_open)
        pn_os_abandon(&q->out);
    pn_team_free(q->team);
    pn_mem_free(pn_engine_mem(q->engine), PN_ACCT_MISC, q->types, q->in.n_tensors * sizeof *q->types);
    pn_weights_close(&q->in);
}

PN_API pn_status pn_quantize(pn_engine *e, const char *in, const char *out, const pn_quantize_params *params, pn_err *err)
{
    pn_quantize_params p;
    quantize_job q = {.engine = e};
    if (!e || !in || !out)
        return pn_fail(err, PN_E_INVALID, "no %s given", !e ? "engine" : in ? "output path" : "input path");
    pn_params_copy(&p, sizeof p, params, params ? params->size : 0);
    pn_status st = p.preset ? pn_mix_open(&q.mix, p.preset, err) : pn_mix_open_type(&q.mix, (uint32_t)p.type, err);
    if (st)
        return st;
    q.mix.keep_output = p.keep_output_type != 0;
    q.progress = p.progress;
    q.progress_user = p.progress_user;
    st = quantize_open(&q, in, out, err);
    if (!st)
        st = quantize_header(&q, err);
    for (size_t i = 0; i < q.in.n_tensors && !st; i++)
        st = quantize_tensor(&q, &q.in.tensors[i], q.types[i], err);
    if (!st)
        st = pn_os_commit(&q.out, err);
    quantize_close(&q);
    return st;
}
