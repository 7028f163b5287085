/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * From metadata to a vocabulary: format/ knows files, text/ knows tokens, this joins them.
 */
#include "engine/pn_engine_int.h"

#include <inttypes.h>

typedef struct join_arrays {
    pn_bytes *tokens, *merges, *cuts;
    float *scores;
    int32_t *types;
    uint64_t n_tokens, n_merges, n_cuts;
} join_arrays;

static int64_t join_id(const pn_weights *w, const char *key)
{
    const pn_gguf_kv *kv = pn_weights_meta(w, key);
    int64_t v;
    return kv && pn_gguf_i64(kv, 0, &v) ? v : -1;
}

static int join_flag(const pn_weights *w, const char *key)
{
    const pn_gguf_kv *kv = pn_weights_meta(w, key);
    double v;
    return kv && pn_gguf_f64(kv, 0, &v) ? v != 0 : -1;
}

static pn_bytes join_str(const pn_weights *w, const char *key)
{
    const pn_gguf_kv *kv = pn_weights_meta(w, key);
    pn_bytes s = {NULL, 0};
    if (kv)
        pn_gguf_str(kv, 0, &s);
    return s;
}

static void join_ids(const pn_weights *w, pn_vocab_source *s)
{
    s->chat_template = join_str(w, "tokenizer.chat_template");
    s->bos = join_id(w, "tokenizer.ggml.bos_token_id");
    s->eos = join_id(w, "tokenizer.ggml.eos_token_id");
    s->eot = join_id(w, "tokenizer.ggml.eot_token_id");
    s->eom = join_id(w, "tokenizer.ggml.eom_token_id");
    s->unk = join_id(w, "tokenizer.ggml.unknown_token_id");
    s->sep = join_id(w, "tokenizer.ggml.seperator_token_id");
    s->pad = join_id(w, "tokenizer.ggml.padding_token_id");
    s->mask = join_id(w, "tokenizer.ggml.mask_token_id");
    s->cls = join_id(w, "tokenizer.ggml.cls_token_id");
    s->fim_pre = join_id(w, "tokenizer.ggml.fim_pre_token_id");
    s->fim_suf = join_id(w, "tokenizer.ggml.fim_suf_token_id");
    s->fim_mid = join_id(w, "tokenizer.ggml.fim_mid_token_id");
    s->fim_pad = join_id(w, "tokenizer.ggml.fim_pad_token_id");
    s->fim_rep = join_id(w, "tokenizer.ggml.fim_rep_token_id");
    s->fim_sep = join_id(w, "tokenizer.ggml.fim_sep_token_id");
    if (s->fim_pre < 0)
        s->fim_pre = join_id(w, "tokenizer.ggml.prefix_token_id");
    if (s->fim_suf < 0)
        s->fim_suf = join_id(w, "tokenizer.ggml.suffix_token_id");
    if (s->fim_mid < 0)
        s->fim_mid = join_id(w, "tokenizer.ggml.middle_token_id");
    s->add_bos = join_flag(w, "tokenizer.ggml.add_bos_token");
    s->add_eos = join_flag(w, "tokenizer.ggml.add_eos_token");
    s->add_sep = join_flag(w, "tokenizer.ggml.add_sep_token");
    s->add_space_prefix = join_flag(w, "tokenizer.ggml.add_space_prefix");
    s->remove_extra_whitespaces = join_flag(w, "tokenizer.ggml.remove_extra_whitespaces");
    s->lowercase = join_flag(w, "tokenizer.ggml.normalizer.lowercase");
    s->strip_accents = join_flag(w, "tokenizer.ggml.normalizer.strip_accents");
}

/* An array of strings as views into the file's metadata. */
static pn_status join_strings(pn_mem *mem, const pn_gguf_kv *kv, const char *key, pn_bytes **out, uint64_t *n, pn_err *err)
{
    if (kv->type != PN_META_ARRAY || kv->elem != PN_META_STRING)
        return pn_fail(err, PN_E_FORMAT, "key '%s' is not an array of strings", key);
    *out = pn_mem_calloc(mem, PN_ACCT_VOCAB, kv->count, sizeof **out);
    if (!*out)
        return pn_fail_nomem(err, key, kv->count * sizeof **out);
    *n = kv->count;
    for (uint64_t i = 0; i < kv->count; i++)
        pn_gguf_str(kv, i, &(*out)[i]);
    return PN_OK;
}

/* Numbers of any type, one a token at least; more are ignored. */
static pn_status join_numbers(pn_mem *mem, const pn_weights *w, const char *key, uint64_t n_tokens, float **f,
                              int32_t **i, pn_err *err)
{
    const pn_gguf_kv *kv = pn_weights_meta(w, key);
    if (!kv)
        return PN_OK;
    if (kv->type != PN_META_ARRAY || kv->count < n_tokens)
        return pn_fail(err, PN_E_FORMAT, "key '%s' has %" PRIu64 " entries, expected one for each of %" PRIu64 " tokens",
                       key, kv->type == PN_META_ARRAY ? kv->count : 0, n_tokens);
    void *list = pn_mem_calloc(mem, PN_ACCT_STAGE, n_tokens, 4);
    if (!list)
        return pn_fail_nomem(err, key, n_tokens * 4);
    if (f)
        *f = list;
    else
        *i = list;
    for (uint64_t k = 0; k < n_tokens; k++) {
        double v;
        if (!pn_gguf_f64(kv, k, &v) || (i && !(v >= -2147483648.0 && v <= 2147483647.0)))
            return pn_fail(err, PN_E_FORMAT, "key '%s', entry %" PRIu64 ": not a number of this kind", key, k);
        if (f)
            (*f)[k] = (float)v;
        else
            (*i)[k] = (int32_t)v;
    }
    return PN_OK;
}

static pn_status join_read(pn_mem *mem, const pn_weights *w, join_arrays *a, pn_err *err)
{
    const pn_gguf_kv *t = pn_weights_meta(w, "tokenizer.ggml.tokens"), *m = pn_weights_meta(w, "tokenizer.ggml.merges");
    const pn_gguf_kv *c = pn_weights_meta(w, "pantheon.tokenizer.patterns");
    if (!t)
        return pn_fail(err, PN_E_FORMAT, "key 'tokenizer.ggml.tokens' is missing: the file has no vocabulary");
    pn_status st = join_strings(mem, t, "tokenizer.ggml.tokens", &a->tokens, &a->n_tokens, err);
    if (!st && m)
        st = join_strings(mem, m, "tokenizer.ggml.merges", &a->merges, &a->n_merges, err);
    if (!st && c)
        st = join_strings(mem, c, "pantheon.tokenizer.patterns", &a->cuts, &a->n_cuts, err);
    if (!st && (a->n_tokens > INT32_MAX || a->n_merges > INT32_MAX))
        st = pn_fail(err, PN_E_FORMAT, "a vocabulary of %" PRIu64 " tokens and %" PRIu64 " merges is too large",
                     a->n_tokens, a->n_merges);
    if (!st)
        st = join_numbers(mem, w, "tokenizer.ggml.scores", a->n_tokens, &a->scores, NULL, err);
    if (!st)
        st = join_numbers(mem, w, "tokenizer.ggml.token_type", a->n_tokens, NULL, &a->types, err);
    return st;
}

static void join_warn(void *user, const char *text) { pn_engine_logf(user, PN_LOG_WARN, "%s", text); }

PN_INTERNAL pn_status pn_vocab_from_file(pn_vocab **out, pn_bytes **tokens, uint32_t *n, pn_engine *e,
                                         const pn_weights *w, uint32_t n_logits, pn_err *err)
{
    pn_mem *mem = pn_engine_mem(e);
    join_arrays a = {0};
    pn_status st = join_read(mem, w, &a, err);
    if (!st) {
        pn_vocab_source s = {.tokens = a.tokens, .scores = a.scores, .types = a.types, .n_tokens = (uint32_t)a.n_tokens,
                             .merges = a.merges, .n_merges = (uint32_t)a.n_merges, .n_logits = n_logits, .cuts = a.cuts,
                             .n_cuts = (uint32_t)PN_MIN(a.n_cuts, (uint64_t)UINT32_MAX)};
        s.model = join_str(w, "tokenizer.ggml.model");
        s.pre = join_str(w, "tokenizer.ggml.pre");
        s.ignore_merges = join_flag(w, "pantheon.tokenizer.ignore_merges") > 0;
        s.arch = join_str(w, "general.architecture");
        s.name = join_str(w, "general.name");
        join_ids(w, &s);
        const pn_gguf_kv *cm = pn_weights_meta(w, "tokenizer.ggml.precompiled_charsmap");
        if (cm && cm->type == PN_META_ARRAY && (cm->elem == PN_META_U8 || cm->elem == PN_META_I8)) {
            s.charsmap = cm->data;
            s.charsmap_len = (size_t)cm->data_len;
        }
        st = pn_vocab_new(out, mem, &s, join_warn, e, err);
    }
    pn_mem_free(mem, PN_ACCT_STAGE, a.scores, (size_t)a.n_tokens * 4);
    pn_mem_free(mem, PN_ACCT_STAGE, a.types, (size_t)a.n_tokens * 4);
    pn_mem_free(mem, PN_ACCT_VOCAB, a.merges, (size_t)a.n_merges * sizeof *a.merges);
    pn_mem_free(mem, PN_ACCT_VOCAB, a.cuts, (size_t)a.n_cuts * sizeof *a.cuts);
    if (st)
        pn_mem_free(mem, PN_ACCT_VOCAB, a.tokens, (size_t)a.n_tokens * sizeof *a.tokens);
    else {
        *tokens = a.tokens;
        *n = (uint32_t)a.n_tokens;
    }
    return st;
}
