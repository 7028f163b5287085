/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_synth.c - models of well-known shapes with random weights.
 *
 * For planning, measuring and testing without a download: same tensors, sizes and formats as the
 * real model, meaningless text.  Header first, then the data are streamed; nothing of the model is
 * ever in memory but a few pools.
 *
 * Encoding every weight of a large model would take minutes, and more randomness than a few
 * hundred thousand weights have is of no use.  So a matrix is tiled from a pool: SYNTH_POOL
 * chunks of up to 256 weights, encoded once for each pair of format and row length.  Chunk c of row
 * r is pool entry
 *
 *     (start[c] + r * step[c] + (r / SYNTH_POOL) * skip[c]) mod SYNTH_POOL,     step odd
 *
 * with numbers drawn for each tensor.  Rows of one chunk repeat after SYNTH_POOL rows; with two
 * chunks or more, equal rows are as rare as chance makes them, so logits have no exact ties.
 *
 * Weights are near normal with deviation 1/sqrt(row length), which keeps activations at about one;
 * norms are 1.  All of it is integer arithmetic and single correctly rounded operations: the same
 * seed gives the same bytes on every machine.
 *
 * The vocabulary is SPM with all byte tokens, so any text can be tokenised, then ChatML markers,
 * then every printable ASCII character and the letter strings a, b, ... aa, ab, ...: ordinary words
 * come out at a few letters a token, as real ones do.
 */
#include "engine/pn_presets.h"
#include "engine/pn_engine_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "num/pn_quant.h"
#include "num/pn_strict.h"

enum {
    SYNTH_POOL = 1024,          /* chunks in a pool; a power of two */
    SYNTH_CHUNK = 256,          /* most weights in a chunk */
    SYNTH_POOLS = 8,            /* pools kept: pairs of format and row length of one model */
    SYNTH_CHUNKS = 128,         /* most chunks in a row */
    SYNTH_BUFFER = 1 << 20,     /* bytes written at once */
    SYNTH_MIN_VOCAB = 261,      /* specials, bytes, markers */
    SYNTH_MAX_VOCAB = 1 << 22,
    SYNTH_IM_START = 259,
    SYNTH_IM_END = 260
};

/* ------------------------------------------------------------------------------------------
 * Shapes (public configurations of the models named)
 * ------------------------------------------------------------------------------------------ */

typedef struct synth_shape {
    const char *name, *label;
    uint32_t n_embd, n_layers, n_heads, n_heads_kv, d_head, n_ff;
    uint32_t n_expert, n_expert_used;   /* n_ff is an expert's; 0: dense */
    float rope_base, eps;
    bool tied;                  /* no output matrix of its own */
    uint32_t n_vocab;           /* default */
} synth_shape;

static const synth_shape synth_shapes[] = {
    {"tiny", "tiny", 128, 4, 4, 2, 32, 512, 0, 0, 1e4f, 1e-5f, false, 512},
    {"135m", "SmolLM2 135M", 576, 30, 9, 3, 64, 1536, 0, 0, 1e5f, 1e-5f, true, 32000},
    {"1b", "Llama 3.2 1B", 2048, 16, 32, 8, 64, 8192, 0, 0, 5e5f, 1e-5f, true, 32000},
    {"3b", "Llama 3.2 3B", 3072, 28, 24, 8, 128, 8192, 0, 0, 5e5f, 1e-5f, true, 32000},
    {"8b", "Llama 3.1 8B", 4096, 32, 32, 8, 128, 14336, 0, 0, 5e5f, 1e-5f, false, 32000},
    {"moe64", "Qwen3 mixture of 64 experts", 2048, 8, 32, 4, 128, 768, 64, 8, 1e6f, 1e-6f, false, 32000}
};

static const synth_shape *synth_find_shape(const char *name, pn_err *err)
{
    for (size_t i = 0; i < PN_COUNT_OF(synth_shapes); i++)
        if (name && strcmp(name, synth_shapes[i].name) == 0)
            return &synth_shapes[i];
    pn_fail(err, PN_E_INVALID, "'%.40s' is no known shape, expected tiny, 135m, 1b, 3b, 8b or moe64", name ? name : "");
    return NULL;
}

/* ------------------------------------------------------------------------------------------
 * Randomness
 * ------------------------------------------------------------------------------------------ */

/* SplitMix64's finaliser: a bijection in which every input bit reaches every output bit. */
static uint64_t synth_mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Four 16-bit uniforms added: near normal, deviation 37837.23, an exact integer. */
static float synth_normal(uint64_t bits, float scale)
{
    int32_t sum = (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) + (int32_t)(bits >> 32 & 0xffff) +
                  (int32_t)(bits >> 48);
    return pn_mulf((float)(sum - 131070), scale);
}

/* ------------------------------------------------------------------------------------------
 * Pools
 * ------------------------------------------------------------------------------------------ */

typedef struct synth_pool {
    uint32_t dtype, chunk;      /* chunk: weights in an entry */
    uint64_t n_cols;
    size_t entry_bytes;
    uint8_t *entries;           /* [SYNTH_POOL, entry_bytes], owned; NULL: unused */
} synth_pool;

typedef struct synth_tensor {
    char name[64];
    uint32_t dtype, n_dims;
    uint64_t ne[4], bytes;
    bool ones;                  /* a norm */
} synth_tensor;

typedef struct synth_job {
    pn_mem *mem;
    const synth_shape *shape;
    uint32_t n_vocab, n_ctx;
    uint64_t seed;
    pn_mix mix;
    synth_tensor *tensors;      /* owned */
    size_t n_tensors, cap_tensors;
    synth_pool pools[SYNTH_POOLS];
    uint32_t next_pool;         /* replaced when all are used */
    uint8_t *buffer;            /* [SYNTH_BUFFER] */
    pn_os_out out;
    uint64_t done, total;
    pn_progress_fn progress;
    void *progress_user;
} synth_job;

/* Largest power of two up to SYNTH_CHUNK that divides a row, which makes it a multiple of any block
 * that does; short rows get four chunks where the block allows, so that they differ. */
static uint32_t synth_chunk(uint32_t dtype, uint64_t n_cols)
{
    uint32_t c = SYNTH_CHUNK;
    while (n_cols % c != 0 || (c > pn_dtype_get(dtype)->block_elems && c * 4 > n_cols))
        c /= 2;
    return c;
}

static void synth_fill_pool(const synth_job *j, synth_pool *p)
{
    float x[SYNTH_CHUNK];
    float scale = pn_divf(1.0f, pn_mulf(37837.23f, sqrtf((float)p->n_cols)));
    uint64_t key = synth_mix(j->seed ^ synth_mix(p->n_cols << 8 | p->dtype));
    for (uint32_t i = 0; i < SYNTH_POOL; i++) {
        for (uint32_t k = 0; k < p->chunk; k++)
            x[k] = synth_normal(synth_mix(key + i * SYNTH_CHUNK + k), scale);
        pn_quant_row(p->dtype, x, p->entries + i * p->entry_bytes, p->chunk);
    }
}

/* The pool of a format and row length, made when first asked for; NULL: out of memory. */
static const synth_pool *synth_get_pool(synth_job *j, uint32_t dtype, uint64_t n_cols)
{
    for (uint32_t i = 0; i < SYNTH_POOLS; i++)
        if (j->pools[i].entries && j->pools[i].dtype == dtype && j->pools[i].n_cols == n_cols)
            return &j->pools[i];
    synth_pool *p = &j->pools[j->next_pool++ % SYNTH_POOLS];
    pn_mem_free(j->mem, PN_ACCT_STAGE, p->entries, SYNTH_POOL * p->entry_bytes);
    const pn_dtype_info *t = pn_dtype_get(dtype);
    *p = (synth_pool){.dtype = dtype, .chunk = synth_chunk(dtype, n_cols), .n_cols = n_cols};
    p->entry_bytes = (size_t)p->chunk / t->block_elems * t->block_bytes;
    p->entries = pn_mem_alloc(j->mem, PN_ACCT_STAGE, SYNTH_POOL * p->entry_bytes);
    if (!p->entries)
        return NULL;
    synth_fill_pool(j, p);
    return p;
}

/* ------------------------------------------------------------------------------------------
 * The tensors
 * ------------------------------------------------------------------------------------------ */

PN_PRINTF(6, 7)
static bool synth_add(synth_job *j, uint32_t n_dims, uint64_t n0, uint64_t n1, uint64_t n2, const char *fmt, ...)
{
    if (!pn_mem_grow(j->mem, PN_ACCT_MISC, (void **)&j->tensors, &j->cap_tensors, j->n_tensors + 1, sizeof *j->tensors))
        return false;
    synth_tensor *t = &j->tensors[j->n_tensors++];
    *t = (synth_tensor){.n_dims = n_dims, .ne = {n0, n1, n2, 1}, .ones = n_dims == 1};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t->name, sizeof t->name, fmt, ap);
    va_end(ap);
    pn_mix_note(&j->mix, t->name);
    return true;
}

static bool synth_add_ffn(synth_job *j, unsigned il)
{
    const synth_shape *s = j->shape;
    uint64_t D = s->n_embd, F = s->n_ff, E = s->n_expert;
    if (E == 0)
        return synth_add(j, 2, D, F, 1, "blk.%u.ffn_gate.weight", il) &&
               synth_add(j, 2, D, F, 1, "blk.%u.ffn_up.weight", il) &&
               synth_add(j, 2, F, D, 1, "blk.%u.ffn_down.weight", il);
    return synth_add(j, 2, D, E, 1, "blk.%u.ffn_gate_inp.weight", il) &&
           synth_add(j, 3, D, F, E, "blk.%u.ffn_gate_exps.weight", il) &&
           synth_add(j, 3, D, F, E, "blk.%u.ffn_up_exps.weight", il) &&
           synth_add(j, 3, F, D, E, "blk.%u.ffn_down_exps.weight", il);
}

static bool synth_add_layer(synth_job *j, unsigned il)
{
    const synth_shape *s = j->shape;
    uint64_t D = s->n_embd, Q = (uint64_t)s->n_heads * s->d_head, K = (uint64_t)s->n_heads_kv * s->d_head;
    bool ok = synth_add(j, 1, D, 1, 1, "blk.%u.attn_norm.weight", il) &&
              synth_add(j, 2, D, Q, 1, "blk.%u.attn_q.weight", il) &&
              synth_add(j, 2, D, K, 1, "blk.%u.attn_k.weight", il) &&
              synth_add(j, 2, D, K, 1, "blk.%u.attn_v.weight", il) &&
              synth_add(j, 2, Q, D, 1, "blk.%u.attn_output.weight", il);
    if (ok && s->n_expert)
        ok = synth_add(j, 1, s->d_head, 1, 1, "blk.%u.attn_q_norm.weight", il) &&
             synth_add(j, 1, s->d_head, 1, 1, "blk.%u.attn_k_norm.weight", il);
    return ok && synth_add(j, 1, D, 1, 1, "blk.%u.ffn_norm.weight", il) && synth_add_ffn(j, il);
}

/* List the tensors, then choose their types: rules may look at all of them. */
static pn_status synth_plan(synth_job *j, pn_err *err)
{
    const synth_shape *s = j->shape;
    bool ok = synth_add(j, 2, s->n_embd, j->n_vocab, 1, "token_embd.weight");
    for (uint32_t il = 0; ok && il < s->n_layers; il++)
        ok = synth_add_layer(j, il);
    ok = ok && synth_add(j, 1, s->n_embd, 1, 1, "output_norm.weight");
    if (!s->tied)
        ok = ok && synth_add(j, 2, s->n_embd, j->n_vocab, 1, "output.weight");
    if (!ok)
        return pn_fail_nomem(err, "a list of tensors", j->n_tensors * sizeof *j->tensors);
    for (size_t i = 0; i < j->n_tensors; i++) {
        synth_tensor *t = &j->tensors[i];
        uint64_t row = 0;
        t->dtype = pn_mix_type(&j->mix, t->name, PN_DTYPE_F32, t->n_dims, t->ne);
        if (!pn_dtype_row_bytes(t->dtype, t->ne[0], &row) || t->ne[0] / synth_chunk(t->dtype, t->ne[0]) > SYNTH_CHUNKS)
            return pn_fail(err, PN_E_INTERNAL, "tensor '%s' does not fit type %s", t->name,
                           pn_dtype_name((pn_dtype)t->dtype));
        t->bytes = row * t->ne[1] * t->ne[2];       /* shapes are ours: far below 2^64 */
        j->total += t->bytes;
    }
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * Vocabulary
 * ------------------------------------------------------------------------------------------ */

/* The k-th of a, b, ... z, aa, ab, ...; returns its length (at most 6 for SYNTH_MAX_VOCAB). */
static size_t synth_letters(uint32_t k, char text[8])
{
    size_t len = 1;
    uint32_t count = 26;
    while (k >= count) {
        k -= count;
        count *= 26;
        len++;
    }
    for (size_t i = len; i-- > 0; k /= 26)
        text[i] = (char)('a' + k % 26);
    return len;
}

/* Printable ASCII without a-z, which begin the letter strings. */
static size_t synth_filler(uint32_t k, char text[8])
{
    enum { BEFORE = 'a' - '!', AFTER = '~' - 'z' };
    if (k == 0) {
        memcpy(text, "\xE2\x96\x81", 3);        /* U+2581: a space in SPM */
        return 3;
    }
    if (--k < BEFORE + AFTER) {
        text[0] = (char)(k < BEFORE ? '!' + k : '{' + (k - BEFORE));
        return 1;
    }
    return synth_letters(k - BEFORE - AFTER, text);
}

/* Text and kind of token `id`; returns the text's length. */
static size_t synth_token(uint32_t id, char text[16], uint32_t *kind)
{
    static const char *const special[] = {"<unk>", "<s>", "</s>"};
    *kind = id == 0 ? PN_TOKEN_UNKNOWN : PN_TOKEN_CONTROL;
    if (id < 3)
        return (size_t)snprintf(text, 16, "%s", special[id]);
    if (id == SYNTH_IM_START || id == SYNTH_IM_END)
        return (size_t)snprintf(text, 16, "%s", id == SYNTH_IM_START ? "<|im_start|>" : "<|im_end|>");
    *kind = id < SYNTH_IM_START ? PN_TOKEN_BYTE : PN_TOKEN_NORMAL;
    if (id < SYNTH_IM_START)
        return (size_t)snprintf(text, 16, "<0x%02X>", (unsigned)(id - 3));
    return synth_filler(id - SYNTH_MIN_VOCAB, text);
}

static void synth_le32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

/* Earlier fillers are likelier, as in a trained vocabulary. */
static void synth_put_tokens(pn_gguf_writer *w, uint32_t n, pn_bytes *items, char *texts, uint8_t *types, uint8_t *scores)
{
    for (uint32_t id = 0; id < n; id++) {
        uint32_t kind = 0;
        char *text = texts + (size_t)id * 16;
        items[id] = (pn_bytes){text, synth_token(id, text, &kind)};
        synth_le32(types + (size_t)id * 4, kind);
        synth_le32(scores + (size_t)id * 4, pn_f32_bits(id < SYNTH_MIN_VOCAB ? 0 : -(float)(id - SYNTH_MIN_VOCAB)));
    }
    pn_gguf_put_str_array(w, "tokenizer.ggml.tokens", n, items);
    pn_gguf_put_array(w, "tokenizer.ggml.scores", PN_META_F32, n, scores, (size_t)n * 4);
    pn_gguf_put_array(w, "tokenizer.ggml.token_type", PN_META_I32, n, types, (size_t)n * 4);
}

static pn_status synth_put_vocab(synth_job *j, pn_gguf_writer *w, pn_err *err)
{
    static const char chatml[] =
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    size_t n = j->n_vocab;
    pn_bytes *items = pn_mem_alloc(j->mem, PN_ACCT_STAGE, n * sizeof *items);
    char *texts = pn_mem_alloc(j->mem, PN_ACCT_STAGE, n * 24);
    pn_status st = PN_OK;
    pn_gguf_put_str(w, "tokenizer.ggml.model", "llama", 5);
    pn_gguf_put_str(w, "tokenizer.ggml.pre", "default", 7);
    if (items && texts)
        synth_put_tokens(w, j->n_vocab, items, texts, (uint8_t *)texts + n * 16, (uint8_t *)texts + n * 20);
    else
        st = pn_fail_nomem(err, "a vocabulary", n * (sizeof *items + 24));
    pn_gguf_put_u32(w, "tokenizer.ggml.bos_token_id", 1);
    pn_gguf_put_u32(w, "tokenizer.ggml.eos_token_id", 2);
    pn_gguf_put_u32(w, "tokenizer.ggml.eot_token_id", SYNTH_IM_END);
    pn_gguf_put_u32(w, "tokenizer.ggml.unknown_token_id", 0);
    pn_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", true);
    pn_gguf_put_bool(w, "tokenizer.ggml.add_eos_token", false);
    pn_gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", false);
    pn_gguf_put_str(w, "tokenizer.chat_template", chatml, sizeof chatml - 1);
    pn_mem_free(j->mem, PN_ACCT_STAGE, items, n * sizeof *items);
    pn_mem_free(j->mem, PN_ACCT_STAGE, texts, n * 24);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Header
 * ------------------------------------------------------------------------------------------ */

static void synth_put_shape(const synth_job *j, pn_gguf_writer *w)
{
    const synth_shape *s = j->shape;
    const char *arch = s->n_expert ? "qwen3moe" : "llama";
    const struct { const char *key; uint32_t value; } numbers[] = {
        {"vocab_size", j->n_vocab}, {"context_length", j->n_ctx}, {"embedding_length", s->n_embd},
        {"block_count", s->n_layers}, {"feed_forward_length", s->n_expert ? s->n_ff * s->n_expert_used : s->n_ff},
        {"attention.head_count", s->n_heads}, {"attention.head_count_kv", s->n_heads_kv},
        {"attention.key_length", s->d_head}, {"attention.value_length", s->d_head}, {"rope.dimension_count", s->d_head},
        {"expert_count", s->n_expert}, {"expert_used_count", s->n_expert_used},
        {"expert_feed_forward_length", s->n_expert ? s->n_ff : 0}};
    char key[64], name[64];
    int len = snprintf(name, sizeof name, "Random weights, shape of %s", s->label);
    pn_gguf_put_str(w, "general.architecture", arch, strlen(arch));
    pn_gguf_put_str(w, "general.type", "model", 5);
    pn_gguf_put_str(w, "general.name", name, (size_t)len);
    for (size_t i = 0; i < PN_COUNT_OF(numbers); i++) {
        snprintf(key, sizeof key, "%s.%s", arch, numbers[i].key);
        if (numbers[i].value)           /* what a dense model lacks is not written */
            pn_gguf_put_u32(w, key, numbers[i].value);
    }
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    pn_gguf_put_f32(w, key, s->rope_base);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    pn_gguf_put_f32(w, key, s->eps);
    pn_gguf_put_u32(w, "general.quantization_version", 2);
    pn_gguf_put_u32(w, "general.file_type", j->mix.file_type);
}

static pn_status synth_header(synth_job *j, pn_err *err)
{
    pn_gguf_writer w;
    pn_str header;
    pn_gguf_writer_init(&w, j->mem);
    pn_str_init(&header, j->mem, PN_ACCT_MISC);
    synth_put_shape(j, &w);
    pn_status st = synth_put_vocab(j, &w, err);
    for (size_t i = 0; i < j->n_tensors; i++) {
        const synth_tensor *t = &j->tensors[i];
        pn_gguf_put_tensor(&w, t->name, t->dtype, t->n_dims, t->ne, t->bytes);
    }
    if (!st && !pn_gguf_header(&w, &header))
        st = pn_fail_nomem(err, "a header", w.kv.len + w.table.len);
    if (!st)
        st = pn_os_write(&j->out, header.data, header.len, err);
    pn_str_fini(&header);
    pn_gguf_writer_fini(&w);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Data
 * ------------------------------------------------------------------------------------------ */

static pn_status synth_flush(synth_job *j, size_t n, pn_err *err)
{
    pn_status st = pn_os_write(&j->out, j->buffer, n, err);
    j->done += n;
    if (!st && j->progress && j->progress(j->progress_user, PN_MIN(j->done, j->total), j->total))
        st = pn_fail(err, PN_E_CANCELLED, "stopped by the caller after %" PRIu64 " of %" PRIu64 " bytes", j->done,
                     j->total);
    return st;
}

/* Vectors are all ones: they fit the buffer (n_embd floats). */
static pn_status synth_ones(synth_job *j, const synth_tensor *t, pn_err *err)
{
    for (size_t i = 0; i < t->ne[0]; i++)
        synth_le32(j->buffer + 4 * i, pn_f32_bits(1.0f));
    return synth_flush(j, (size_t)t->bytes, err);
}

typedef struct synth_walk {
    uint32_t start[SYNTH_CHUNKS], step[SYNTH_CHUNKS], skip[SYNTH_CHUNKS];
} synth_walk;

static void synth_begin_walk(const synth_job *j, size_t tensor, uint32_t n_chunks, synth_walk *w)
{
    uint64_t key = synth_mix(j->seed ^ synth_mix(0x7465 + tensor));
    for (uint32_t c = 0; c < n_chunks; c++) {
        uint64_t bits = synth_mix(key + c);
        w->start[c] = (uint32_t)bits;
        w->step[c] = (uint32_t)(bits >> 20) | 1;
        w->skip[c] = (uint32_t)(bits >> 40);
    }
}

static pn_status synth_matrix(synth_job *j, size_t tensor, pn_err *err)
{
    const synth_tensor *t = &j->tensors[tensor];
    const synth_pool *p = synth_get_pool(j, t->dtype, t->ne[0]);
    synth_walk w;
    if (!p)
        return pn_fail_nomem(err, t->name, SYNTH_POOL * SYNTH_CHUNK * sizeof(float));
    uint32_t n_chunks = (uint32_t)(t->ne[0] / p->chunk);
    size_t row_bytes = n_chunks * p->entry_bytes, at = 0;
    uint64_t n_rows = t->ne[1] * t->ne[2];
    pn_status st = PN_OK;
    synth_begin_walk(j, tensor, n_chunks, &w);
    for (uint64_t r = 0; r < n_rows && !st; r++) {
        uint32_t lap = (uint32_t)(r / SYNTH_POOL);
        for (uint32_t c = 0; c < n_chunks; c++, at += p->entry_bytes) {
            uint32_t i = (w.start[c] + (uint32_t)r * w.step[c] + lap * w.skip[c]) % SYNTH_POOL;
            memcpy(j->buffer + at, p->entries + i * p->entry_bytes, p->entry_bytes);
        }
        if (at + row_bytes > SYNTH_BUFFER || r + 1 == n_rows) {
            st = synth_flush(j, at, err);
            at = 0;
        }
    }
    return st;
}

static pn_status synth_data(synth_job *j, pn_err *err)
{
    static const char zeroes[32];
    pn_status st = PN_OK;
    for (size_t i = 0; i < j->n_tensors && !st; i++) {
        const synth_tensor *t = &j->tensors[i];
        st = t->ones ? synth_ones(j, t, err) : synth_matrix(j, i, err);
        if (!st)
            st = pn_os_write(&j->out, zeroes, (size_t)pn_gguf_pad(t->bytes), err);
    }
    return st;
}

static pn_status synth_write(synth_job *j, const char *path, pn_err *err)
{
    pn_status st = synth_plan(j, err);
    if (!st)
        st = pn_os_create(&j->out, path, err);
    if (st)
        return st;
    j->buffer = pn_mem_alloc(j->mem, PN_ACCT_STAGE, SYNTH_BUFFER);
    st = j->buffer ? synth_header(j, err) : pn_fail_nomem(err, "a write buffer", SYNTH_BUFFER);
    if (!st)
        st = synth_data(j, err);
    if (!st)
        st = pn_os_commit(&j->out, err);
    if (st)
        pn_os_abandon(&j->out);
    pn_mem_free(j->mem, PN_ACCT_STAGE, j->buffer, SYNTH_BUFFER);
    return st;
}

PN_API pn_status pn_synth(pn_engine *e, const char *out, const pn_synth_params *params, pn_err *err)
{
    pn_synth_params p;
    synth_job j = {0};
    if (!e || !out)
        return pn_fail(err, PN_E_INVALID, "%s", e ? "no output path given" : "no engine given");
    pn_params_copy(&p, sizeof p, params, params ? params->size : 0);
    j.shape = synth_find_shape(p.shape ? p.shape : "135m", err);
    if (!j.shape)
        return PN_E_INVALID;
    pn_status st = pn_mix_open(&j.mix, p.type ? p.type : "Q4_K_M", err);
    if (st)
        return st;
    j.mem = pn_engine_mem(e);
    j.n_vocab = p.n_vocab ? p.n_vocab : j.shape->n_vocab;
    j.n_ctx = p.n_ctx ? p.n_ctx : 8192;
    j.seed = p.seed;
    j.progress = p.progress;
    j.progress_user = p.progress_user;
    j.mix.n_layers = j.shape->n_layers;
    j.mix.n_heads = j.shape->n_heads;
    j.mix.n_heads_kv = j.shape->n_heads_kv;
    j.mix.n_expert = j.shape->n_expert;
    if (j.n_vocab < SYNTH_MIN_VOCAB || j.n_vocab > SYNTH_MAX_VOCAB)
        return pn_fail(err, PN_E_INVALID, "a vocabulary of %" PRIu32 " tokens, expected %d to %d", j.n_vocab,
                       SYNTH_MIN_VOCAB, SYNTH_MAX_VOCAB);
    st = synth_write(&j, out, err);
    for (uint32_t i = 0; i < SYNTH_POOLS; i++)
        pn_mem_free(j.mem, PN_ACCT_STAGE, j.pools[i].entries, SYNTH_POOL * j.pools[i].entry_bytes);
    pn_mem_free(j.mem, PN_ACCT_MISC, j.tensors, j.cap_tensors * sizeof *j.tensors);
    return st;
}
