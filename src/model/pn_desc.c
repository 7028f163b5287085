/* SPDX-License-Identifier: AGPL-3.0-only */
#include "model/pn_desc.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/pn_err.h"
#include "num/pn_quant.h"

enum {
    DESC_MAX_LAYERS = 1024,
    DESC_MAX_HEADS = 4096,
    DESC_MAX_WIDTH = 1 << 20,       /* of any hidden size: a bound for hostile files */
    DESC_MAX_VOCAB = 1 << 22
};

PN_INTERNAL void pn_desc_fail(pn_desc *d, pn_status st, const char *fmt, ...)
{
    if (d->status)
        return;
    d->status = st;
    if (d->err) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(d->err->text, sizeof d->err->text, fmt, ap);
        va_end(ap);
        d->err->status = st;
    }
}

/* ------------------------------------------------------------------------------------------
 * Keys
 * ------------------------------------------------------------------------------------------ */

static const pn_gguf_kv *desc_kv(const pn_desc *d, const char *key, char name[160])
{
    snprintf(name, 160, "%s.%s", d->arch_name, key);
    return pn_weights_meta(d->file, name);
}

PN_INTERNAL bool pn_hp_has(pn_desc *d, const char *key)
{
    char name[160];
    return desc_kv(d, key, name) != NULL;
}

static uint32_t desc_u32(pn_desc *d, const char *key, uint32_t il, uint32_t lo, uint32_t hi, uint32_t absent,
                         bool required)
{
    char name[160];
    const pn_gguf_kv *kv = desc_kv(d, key, name);
    uint64_t v;
    if (!kv) {
        if (required)
            pn_desc_fail(d, PN_E_FORMAT, "key '%s' is missing", name);
        return absent;
    }
    bool array = kv->type == PN_META_ARRAY;
    if (array && il >= kv->count) {
        pn_desc_fail(d, PN_E_FORMAT, "key '%s' has %" PRIu64 " entries, expected one for each of %" PRIu32 " layers",
                     name, kv->count, d->n_layers);
        return absent;
    }
    double b;
    if (!pn_gguf_u64(kv, array ? il : 0, &v)) {
        if ((array ? kv->elem : kv->type) != PN_META_BOOL || !pn_gguf_f64(kv, array ? il : 0, &b)) {
            pn_desc_fail(d, PN_E_FORMAT, "key '%s' is not a non-negative integer", name);
            return absent;
        }
        v = b != 0;
    }
    if (v < lo || v > hi) {
        pn_desc_fail(d, PN_E_FORMAT, "key '%s' is %" PRIu64 ", expected %" PRIu32 " to %" PRIu32, name, v, lo, hi);
        return absent;
    }
    return (uint32_t)v;
}

PN_INTERNAL uint32_t pn_hp_u32(pn_desc *d, const char *key, uint32_t lo, uint32_t hi)
{
    return desc_u32(d, key, 0, lo, hi, lo, true);
}

PN_INTERNAL uint32_t pn_hp_u32_or(pn_desc *d, const char *key, uint32_t lo, uint32_t hi, uint32_t absent)
{
    return desc_u32(d, key, 0, lo, hi, absent, false);
}

PN_INTERNAL uint32_t pn_hp_u32_at(pn_desc *d, const char *key, uint32_t il, uint32_t lo, uint32_t hi, uint32_t absent)
{
    return desc_u32(d, key, il, lo, hi, absent, false);
}

static float desc_f32(pn_desc *d, const char *key, float absent, bool required)
{
    char name[160];
    const pn_gguf_kv *kv = desc_kv(d, key, name);
    double v;
    if (!kv) {
        if (required)
            pn_desc_fail(d, PN_E_FORMAT, "key '%s' is missing", name);
        return absent;
    }
    if (!pn_gguf_f64(kv, 0, &v) || !(fabs(v) <= 3e38)) {
        pn_desc_fail(d, PN_E_FORMAT, "key '%s' is not a finite number", name);
        return absent;
    }
    return (float)v;
}

PN_INTERNAL float pn_hp_f32(pn_desc *d, const char *key) { return desc_f32(d, key, 0, true); }
PN_INTERNAL float pn_hp_f32_or(pn_desc *d, const char *key, float absent) { return desc_f32(d, key, absent, false); }

PN_INTERNAL bool pn_hp_str_is(pn_desc *d, const char *key, const char *value)
{
    char name[160];
    const pn_gguf_kv *kv = desc_kv(d, key, name);
    pn_bytes s;
    return kv && pn_gguf_str(kv, 0, &s) && s.len == strlen(value) && memcmp(s.data, value, s.len) == 0;
}

/* ------------------------------------------------------------------------------------------
 * Tensors
 * ------------------------------------------------------------------------------------------ */

static void desc_shape_error(pn_desc *d, const pn_gguf_tensor *t, const uint64_t want[3])
{
    pn_desc_fail(d, PN_E_FORMAT,
                 "tensor '%s' has shape [%" PRIu64 ", %" PRIu64 ", %" PRIu64 "], expected [%" PRIu64 ", %" PRIu64
                 ", %" PRIu64 "]", t->name, t->ne[0], t->ne[1], t->ne[2], want[0], want[1], want[2]);
}

static bool desc_push(pn_desc *d, const pn_dir_tensor *t)
{
    if (!pn_mem_grow(d->mem, PN_ACCT_MISC, (void **)&d->weights, &d->cap_weights, d->n_weights + 1,
                     sizeof *d->weights) ||
        !pn_mem_grow(d->mem, PN_ACCT_MISC, (void **)&d->tensors, &d->cap_tensors, d->n_weights + 1,
                     sizeof *d->tensors)) {
        pn_desc_fail(d, PN_E_NOMEM, "out of memory: binding %zu tensors", d->n_weights + 1);
        return false;
    }
    const pn_gguf_tensor *g = t->t;
    d->weights[d->n_weights] = (pn_weight){.name = g->name, .dtype = g->dtype, .cols = (uint32_t)g->ne[0],
                                           .rows = g->ne[1] * g->ne[2], .rows_per_expert = (uint32_t)g->ne[1],
                                           .row_bytes = g->row_bytes};
    d->tensors[d->n_weights] = t;
    d->n_params += g->n_elems;
    d->weight_bytes += g->bytes;
    return true;
}

static const pn_dir_tensor *desc_find(pn_desc *d, const char *fmt, uint32_t il, const uint64_t want[3], bool required)
{
    char name[128];
    if (d->status)
        return NULL;
#if defined(__GNUC__) || defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#endif
    snprintf(name, sizeof name, fmt, (unsigned)il);
#if defined(__GNUC__) || defined(__clang__)
#pragma GCC diagnostic pop
#endif
    const pn_dir_tensor *t = pn_weights_find(d->file, name);
    if (!t) {
        if (required)
            pn_desc_fail(d, PN_E_FORMAT, "tensor '%s' is missing (expected shape [%" PRIu64 ", %" PRIu64 ", %" PRIu64
                         "] for architecture '%s')", name, want[0], want[1], want[2], d->arch_name);
        return NULL;
    }
    const pn_gguf_tensor *g = t->t;
    if (g->ne[0] != want[0] || g->ne[1] != want[1] || g->ne[2] != want[2] || g->ne[3] != 1) {
        desc_shape_error(d, g, want);
        return NULL;
    }
    if (!pn_dtype_is_weight(g->dtype)) {
        pn_desc_fail(d, PN_E_UNSUPPORTED, "tensor '%s' has type %s, which cannot hold weights", g->name,
                     pn_dtype_name((pn_dtype)g->dtype));
        return NULL;
    }
    return t;
}

/* NVFP4 checkpoints carry a factor beside each matrix (X.weight, X.scale).  Nobody applies it yet, so
 * a file that has one is refused rather than computed wrongly. */
static void desc_refuse_scale(pn_desc *d, const char *weight)
{
    char name[128];
    size_t n = strlen(weight);
    if (n < 7 || n >= sizeof name || strcmp(weight + n - 7, ".weight") != 0)
        return;
    memcpy(name, weight, n - 6);
    memcpy(name + n - 6, "scale", 6);
    if (pn_weights_find(d->file, name))
        pn_desc_fail(d, PN_E_UNSUPPORTED, "tensor '%s' scales the products of '%s', which this build does not do", name,
                     weight);
}

static uint32_t desc_bind(pn_desc *d, const char *name, uint32_t il, uint64_t n0, uint64_t n1, uint64_t n2, bool req)
{
    const uint64_t want[3] = {n0, n1, n2};
    const pn_dir_tensor *t = desc_find(d, name, il, want, req);
    if (!t || !desc_push(d, t))
        return PN_NO_WEIGHT;
    desc_refuse_scale(d, t->t->name);
    return (uint32_t)d->n_weights++;
}

PN_INTERNAL uint32_t pn_bind(pn_desc *d, const char *name, uint32_t il, uint64_t n0, uint64_t n1, uint64_t n2)
{
    return desc_bind(d, name, il, n0, n1, n2, true);
}

PN_INTERNAL uint32_t pn_bind_opt(pn_desc *d, const char *name, uint32_t il, uint64_t n0, uint64_t n1, uint64_t n2)
{
    return desc_bind(d, name, il, n0, n1, n2, false);
}

/* Vectors are read now and kept as f32: they are small, and kernels take them as they are. */
static const float *desc_pin(pn_desc *d, const pn_dir_tensor *t)
{
    const pn_gguf_tensor *g = t->t;
    size_t n = (size_t)g->n_elems;
    float *v = pn_mem_calloc(d->mem, PN_ACCT_WEIGHTS, n, sizeof *v);
    void *raw = g->dtype == PN_DTYPE_F32 ? v : pn_mem_alloc(d->mem, PN_ACCT_STAGE, (size_t)g->bytes);
    if (!v || !raw) {
        pn_mem_free(d->mem, PN_ACCT_WEIGHTS, v, n * sizeof *v);
        pn_desc_fail(d, PN_E_NOMEM, "out of memory: tensor '%s' needs %zu bytes", g->name, n * sizeof *v);
        return NULL;
    }
    if (!d->header_only && pn_weights_read(d->file, t, 0, raw, (size_t)g->bytes, d->err)) {
        if (!d->status)
            d->status = d->err ? d->err->status : PN_E_IO;
    } else if (!d->header_only && raw != v)
        pn_dequant_row(g->dtype, raw, v, n);
    if (raw != v)
        pn_mem_free(d->mem, PN_ACCT_STAGE, raw, (size_t)g->bytes);
    d->pinned_bytes += n * sizeof *v;
    return v;
}

static uint32_t desc_bind_vec(pn_desc *d, const char *name, uint32_t il, uint64_t n0, uint64_t n1, bool req)
{
    const uint64_t want[3] = {n0, n1, 1};
    const pn_dir_tensor *t = desc_find(d, name, il, want, req);
    if (!t || !desc_push(d, t))
        return PN_NO_WEIGHT;
    uint32_t w = (uint32_t)d->n_weights;
    pn_weight *W = &d->weights[w];
    W->cols = (uint32_t)(n0 * n1);
    W->row_bytes *= n1;
    W->rows = W->rows_per_expert = 1;
    d->weights[w].pinned = desc_pin(d, t);
    if (!d->weights[w].pinned)
        return PN_NO_WEIGHT;
    d->n_weights++;
    return w;
}

PN_INTERNAL uint32_t pn_bind_vec(pn_desc *d, const char *name, uint32_t il, uint64_t n0)
{
    return desc_bind_vec(d, name, il, n0, 1, true);
}

PN_INTERNAL uint32_t pn_bind_vec_opt(pn_desc *d, const char *name, uint32_t il, uint64_t n0)
{
    return desc_bind_vec(d, name, il, n0, 1, false);
}

PN_INTERNAL uint32_t pn_bind_pinned(pn_desc *d, const char *name, uint32_t il, uint64_t n0, uint64_t n1)
{
    return desc_bind_vec(d, name, il, n0, n1, true);
}

PN_INTERNAL const float *pn_desc_vec(const pn_desc *d, uint32_t w)
{
    return w == PN_NO_WEIGHT || d->header_only ? NULL : d->weights[w].pinned;
}

PN_INTERNAL uint32_t pn_desc_stream(pn_desc *d, uint32_t il, uint32_t n_heads, uint32_t d_k, uint32_t d_v, uint32_t window,
                                    uint32_t *layer)
{
    pn_state_spec *s = &d->state;
    uint32_t g = 0, part = d->cut && il >= d->cut;
    for (; g < s->n_groups; g++)
        if (s->group[g].n_heads == n_heads && s->group[g].d_k == d_k && s->group[g].d_v == d_v &&
            s->group[g].window == window && s->group[g].part == part)
            break;
    uint32_t most = PN_MAX_GROUPS - (d->arch->hybrid ? 1u : 0u);       /* state takes a place among them, in a file */
    if (g == most) {
        pn_desc_fail(d, PN_E_UNSUPPORTED, "layers have more than %" PRIu32 " different key/value shapes", most);
        return 0;
    }
    if (g == s->n_groups)
        s->group[s->n_groups++] = (pn_stream_group){.n_heads = n_heads, .d_k = d_k, .d_v = d_v, .window = window, .part = part};
    *layer = s->group[g].n_layers++;
    return g;
}

PN_INTERNAL pn_slot_at pn_desc_state(pn_desc *d, uint32_t il, uint64_t bytes)
{
    pn_state_spec *s = &d->state;
    uint32_t second = d->cut && il >= d->cut;
    const pn_slot_at at = {second ? s->slot_second : s->slot_bytes - s->slot_second, second};
    s->slot_bytes += pn_align_up(bytes, 64);
    s->slot_second += second ? pn_align_up(bytes, 64) : 0;
    return at;
}

/* ------------------------------------------------------------------------------------------
 * Opening
 * ------------------------------------------------------------------------------------------ */

static const pn_arch *desc_find_arch(const char *name)
{
    const pn_arch *a;
    for (size_t i = 0; (a = pn_arch_at(i)) != NULL; i++)
        for (size_t k = 0; a->names[k]; k++)
            if (strcmp(a->names[k], name) == 0)
                return a;
    return NULL;
}

static void desc_known_archs(char *out, size_t cap)
{
    const pn_arch *a;
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; (a = pn_arch_at(i)) != NULL; i++)
        for (size_t k = 0; a->names[k]; k++) {
            int w = snprintf(out + n, cap - n, "%s%s", n ? ", " : "", a->names[k]);
            if (w < 0 || (size_t)w >= cap - n)
                return;
            n += (size_t)w;
        }
}

static void desc_arch(pn_desc *d)
{
    const pn_gguf_kv *kv = pn_weights_meta(d->file, "general.architecture");
    pn_bytes s;
    if (!kv || !pn_gguf_str(kv, 0, &s)) {
        pn_desc_fail(d, PN_E_FORMAT, "key 'general.architecture' is missing or not a string");
        return;
    }
    size_t n = PN_MIN(s.len, sizeof d->arch_name - 1);
    for (size_t i = 0; i < n; i++)          /* it will be printed and looked up: keep it plain */
        d->arch_name[i] = s.data[i] > 32 && s.data[i] < 127 ? s.data[i] : '?';
    d->arch = n == s.len ? desc_find_arch(d->arch_name) : NULL;
    if (!d->arch) {
        char known[256];
        desc_known_archs(known, sizeof known);
        pn_desc_fail(d, PN_E_UNSUPPORTED, "architecture '%s' is not one this build can run (%s)", d->arch_name, known);
    }
}

/* Rows of the embedding are the vocabulary: the key may be absent, the token list may be shorter. */
static void desc_vocab(pn_desc *d)
{
    const pn_dir_tensor *e = pn_weights_find(d->file, "token_embd.weight");
    if (!e) {
        pn_desc_fail(d, PN_E_FORMAT, "tensor 'token_embd.weight' is missing");
        return;
    }
    if (e->t->ne[1] < 1 || e->t->ne[1] > DESC_MAX_VOCAB) {
        pn_desc_fail(d, PN_E_FORMAT, "tensor 'token_embd.weight' has %" PRIu64 " rows, expected 1 to %d", e->t->ne[1],
                     DESC_MAX_VOCAB);
        return;
    }
    d->n_vocab = (uint32_t)e->t->ne[1];
    const pn_gguf_kv *tokens = pn_weights_meta(d->file, "tokenizer.ggml.tokens");
    if (tokens && tokens->type == PN_META_ARRAY && tokens->count > d->n_vocab)
        pn_desc_fail(d, PN_E_FORMAT, "the vocabulary has %" PRIu64 " tokens but 'token_embd.weight' only %" PRIu32
                     " rows", tokens->count, d->n_vocab);
}

/* Bidirectional attention (some embedding models) computes something else altogether. */
static void desc_causal(pn_desc *d)
{
    char name[160];
    const pn_gguf_kv *kv = desc_kv(d, "attention.causal", name);
    double causal = 1;
    if (kv && (!pn_gguf_f64(kv, 0, &causal) || causal != 1))
        pn_desc_fail(d, PN_E_UNSUPPORTED, "key '%s' is not true: attention to later tokens is not supported", name);
}

PN_INTERNAL bool pn_desc_attends(pn_desc *d, uint32_t il)
{
    return !d->arch->hybrid || pn_hp_u32_at(d, "attention.head_count_kv", il, 0, DESC_MAX_HEADS, d->n_heads_kv) != 0;
}

/* The first layer with attention says how many heads; the others have as many, or of a hybrid none. */
static uint32_t desc_first_attends(pn_desc *d)
{
    uint32_t il = 0;
    d->n_heads_kv = 1;              /* where the key is missing */
    while (il < d->n_layers && !d->status && !pn_desc_attends(d, il))
        il++;
    if (il == d->n_layers)
        pn_desc_fail(d, PN_E_UNSUPPORTED, "key '%s.attention.head_count_kv' is 0 for every layer, expected one with attention",
                     d->arch_name);
    return il;
}

static void desc_common(pn_desc *d)
{
    d->n_ctx_train = pn_hp_u32(d, "context_length", 1, 1u << 30);
    d->n_ctx_most = pn_hp_u32_or(d, "context_limit", 1, 1u << 30, 0);
    d->n_embd = pn_hp_u32(d, "embedding_length", 1, DESC_MAX_WIDTH);
    d->n_layers = pn_hp_u32(d, "block_count", 1, DESC_MAX_LAYERS);
    d->n_layers -= PN_MIN(d->n_layers - 1, pn_hp_u32_or(d, "nextn_predict_layers", 0, DESC_MAX_LAYERS, 0));
    d->n_ff = pn_hp_u32_at(d, "feed_forward_length", 0, 0, DESC_MAX_WIDTH, 0);
    uint32_t first = desc_first_attends(d);
    d->n_heads = pn_hp_u32_at(d, "attention.head_count", first, 1, DESC_MAX_HEADS, 0);
    if (!d->status && !d->n_heads)
        pn_desc_fail(d, PN_E_FORMAT, "key '%s.attention.head_count' is missing", d->arch_name);
    if (d->status)
        return;
    d->n_heads_kv = pn_hp_u32_at(d, "attention.head_count_kv", first, 1, d->n_heads, d->n_heads);
    d->d_k = pn_hp_u32_or(d, "attention.key_length", 1, 65536, d->n_embd / d->n_heads);
    d->d_v = pn_hp_u32_or(d, "attention.value_length", 1, 65536, d->n_embd / d->n_heads);
    d->n_rot = pn_hp_u32_or(d, "rope.dimension_count", 0, 65536, d->d_k);
    d->n_expert = pn_hp_u32_or(d, "expert_count", 0, 65536, 0);
    d->n_expert_used = pn_hp_u32_at(d, "expert_used_count", 0, 0, 65536, 0);
    d->eps = pn_hp_f32(d, "attention.layer_norm_rms_epsilon");
    desc_causal(d);
    if (d->status)
        return;
    if (d->n_heads % d->n_heads_kv)
        pn_desc_fail(d, PN_E_FORMAT, "%" PRIu32 " attention heads cannot share %" PRIu32 " key/value heads evenly",
                     d->n_heads, d->n_heads_kv);
    if (d->d_k == 0 || d->d_v == 0)
        pn_desc_fail(d, PN_E_FORMAT, "%" PRIu32 " attention heads in a width of %" PRIu32 " leave a head size of 0",
                     d->n_heads, d->n_embd);
    if (d->n_rot % 2 || d->n_rot > d->d_k)
        pn_desc_fail(d, PN_E_FORMAT, "key '%s.rope.dimension_count' is %" PRIu32 ", expected an even number up to the "
                     "head size %" PRIu32, d->arch_name, d->n_rot, d->d_k);
    if (d->n_expert && (d->n_expert_used == 0 || d->n_expert_used > d->n_expert))
        pn_desc_fail(d, PN_E_FORMAT, "%" PRIu32 " of %" PRIu32 " experts used, expected 1 to all", d->n_expert_used,
                     d->n_expert);
    if (!(d->eps >= 0))
        pn_desc_fail(d, PN_E_FORMAT, "key '%s.attention.layer_norm_rms_epsilon' is negative", d->arch_name);
    for (uint32_t il = first + 1; il < d->n_layers && !d->status; il++)
        if (pn_desc_attends(d, il) &&
            (pn_hp_u32_at(d, "attention.head_count", il, 0, DESC_MAX_HEADS, d->n_heads) != d->n_heads ||
             pn_hp_u32_at(d, "attention.head_count_kv", il, 0, DESC_MAX_HEADS, d->n_heads_kv) != d->n_heads_kv))
            pn_desc_fail(d, PN_E_UNSUPPORTED, "layer %" PRIu32 " has another number of attention heads than layer %" PRIu32,
                         il, first);
}

static void desc_ends(pn_desc *d)
{
    d->w_embd = pn_bind(d, "token_embd.weight", 0, d->n_embd, d->n_vocab, 1);
    d->w_out_norm = d->arch->final_norm ? pn_bind_vec_opt(d, d->arch->final_norm, 0, d->n_embd) : PN_NO_WEIGHT;
    if (d->w_out_norm == PN_NO_WEIGHT)
        d->w_out_norm = pn_bind_vec(d, "output_norm.weight", 0, d->n_embd);
    d->w_out = pn_bind_opt(d, "output.weight", 0, d->n_embd, d->n_vocab, 1);
    if (d->w_out == PN_NO_WEIGHT)
        d->w_out = d->w_embd;
    d->w_out_bias = pn_bind_vec_opt(d, "output.bias", 0, d->n_vocab);
}

PN_INTERNAL pn_status pn_desc_open_cut(pn_desc *d, pn_mem *mem, pn_weights *file, bool header_only, uint32_t cut, pn_err *err)
{
    pn_err local;
    *d = (pn_desc){.mem = mem, .file = file, .header_only = header_only, .cut = cut, .err = err ? err : &local};
    if (file->bare)
        pn_desc_fail(d, PN_E_FORMAT, "%s: there is no config.json beside it, and tensors alone are no model", file->parts[0].path);
    else
        desc_arch(d);
    if (!d->status)
        desc_vocab(d);
    if (!d->status)
        desc_common(d);
    if (!d->status)
        desc_ends(d);
    if (!d->status && d->arch->layer_bytes) {
        d->layers = pn_mem_calloc(mem, PN_ACCT_MISC, d->n_layers, d->arch->layer_bytes);
        if (!d->layers)
            pn_desc_fail(d, PN_E_NOMEM, "out of memory: the layer table needs %zu bytes",
                         d->n_layers * d->arch->layer_bytes);
    }
    if (!d->status)
        d->arch->load(d);
    pn_status st = d->status;
    d->err = NULL;
    if (st)
        pn_desc_close(d);
    return st;
}

PN_INTERNAL pn_status pn_desc_open(pn_desc *d, pn_mem *mem, pn_weights *file, bool header_only, pn_err *err)
{
    return pn_desc_open_cut(d, mem, file, header_only, 0, err);
}

PN_INTERNAL void pn_desc_close(pn_desc *d)
{
    if (!d->mem)
        return;
    for (size_t i = 0; i < d->n_weights; i++)
        pn_mem_free(d->mem, PN_ACCT_WEIGHTS, (void *)(uintptr_t)d->weights[i].pinned,
                    d->weights[i].cols * sizeof(float));
    for (size_t i = 0; i < d->n_ropes; i++)
        pn_mem_free(d->mem, PN_ACCT_MISC, (void *)(uintptr_t)d->ropes[i].freq, d->ropes[i].n_rot / 2 * sizeof(double));
    pn_mem_free(d->mem, PN_ACCT_MISC, d->weights, d->cap_weights * sizeof *d->weights);
    pn_mem_free(d->mem, PN_ACCT_MISC, d->tensors, d->cap_tensors * sizeof *d->tensors);
    pn_mem_free(d->mem, PN_ACCT_MISC, d->ropes, d->cap_ropes * sizeof *d->ropes);
    if (d->arch)
        pn_mem_free(d->mem, PN_ACCT_MISC, d->layers, d->n_layers * d->arch->layer_bytes);
    *d = (pn_desc){0};
}

static pn_status desc_plan(const pn_desc *d, pn_plan *plan, const pn_plan_env *env, uint32_t n_ctx, pn_err *err)
{
    pn_builder b;
    pn_builder_begin(&b, plan, env);
    d->arch->build(d, &b, n_ctx);
    return pn_builder_finish(&b, err);
}

PN_INTERNAL pn_status pn_desc_plan(const pn_desc *d, pn_plan *plan, uint32_t max_rows, uint32_t max_outs,
                                   uint32_t n_ctx, bool exact, pn_err *err)
{
    const pn_plan_env env = {.mem = d->mem, .weights = d->weights, .ropes = d->ropes, .state = &d->state,
                             .n_vocab = d->n_vocab, .max_rows = max_rows, .max_outs = max_outs, .exact = exact};
    return desc_plan(d, plan, &env, n_ctx, err);
}

PN_INTERNAL pn_status pn_desc_plan_part(const pn_desc *d, pn_plan *plan, uint32_t cut, uint32_t part, pn_plan_result result,
                                        uint32_t max_rows, uint32_t n_ctx, bool exact, pn_err *err)
{
    const pn_plan_env env = {.mem = d->mem, .weights = d->weights, .ropes = d->ropes, .state = &d->state,
                             .n_vocab = d->n_vocab, .max_rows = max_rows, .max_outs = max_rows, .exact = exact, .result = result,
                             .layer0 = part ? cut : 0, .layer1 = part ? d->n_layers + 1 : cut};
    return desc_plan(d, plan, &env, n_ctx, err);
}

PN_INTERNAL uint64_t pn_desc_bytes_per_token(const pn_desc *d)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < d->n_weights; i++) {
        const pn_weight *w = &d->weights[i];
        uint64_t b = w->rows * w->row_bytes;
        if (i == d->w_embd && d->w_out != d->w_embd)
            b = w->row_bytes;
        else if (w->rows != w->rows_per_expert)     /* a stack of experts */
            b = b / d->n_expert * d->n_expert_used;
        bytes += b;
    }
    return bytes;
}
