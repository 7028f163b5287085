/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_sampler_api.c - samplers of pantheon.h: defaults, what a model's file recommends, end and suppressed
 * tokens, DRY's breakers as tokens of the vocabulary.
 */
#include "engine/pn_generate.h"

#include <inttypes.h>

#include "sample/pn_sampler.h"

static const pn_sampling sampling_defaults = {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f};

/* What a model's file recommends, when it is a number within [lo, hi]. */
static bool sampling_advice(const pn_weights *w, const char *key, double lo, double hi, double *v)
{
    const pn_gguf_kv *kv = pn_weights_meta(w, key);
    return kv && pn_gguf_f64(kv, 0, v) && *v >= lo && *v <= hi;
}

PN_API void pn_sampling_default(const pn_model *m, pn_sampling *out)
{
    const pn_weights *w = &m->file.weights;
    double v;
    *out = sampling_defaults;
    out->size = sizeof *out;
    if (sampling_advice(w, "general.sampling.temp", 0, 100, &v))
        out->temperature = (float)v;
    if (sampling_advice(w, "general.sampling.top_k", 0, 1e9, &v))
        out->top_k = (int32_t)v;
    if (sampling_advice(w, "general.sampling.top_p", 1e-30, 1, &v))
        out->top_p = (float)v;
    if (sampling_advice(w, "general.sampling.min_p", 0, 1, &v))
        out->min_p = (float)v;
    if (sampling_advice(w, "general.sampling.penalty_repeat", 1e-30, 100, &v))
        out->repeat_penalty = (float)v;
    if (sampling_advice(w, "general.sampling.penalty_last_n", -1, 1e9, &v))
        out->repeat_last_n = (int32_t)v;
    if (sampling_advice(w, "general.sampling.xtc_probability", 0, 1, &v))
        out->xtc_probability = (float)v;
    if (sampling_advice(w, "general.sampling.xtc_threshold", 1e-30, 1, &v))
        out->xtc_threshold = (float)v;
    if (sampling_advice(w, "general.sampling.mirostat", 0, 2, &v) && (v == 0 || v == 2))
        out->mirostat = (int32_t)v;
    if (sampling_advice(w, "general.sampling.mirostat_tau", 1e-30, 1000, &v))
        out->mirostat_tau = (float)v;
    if (sampling_advice(w, "general.sampling.mirostat_eta", 1e-30, 1000, &v))
        out->mirostat_eta = (float)v;
}

/* Tokens for which `want` holds, as a list of the engine's memory. */
static pn_status sampling_ends(const pn_model *m, pn_token **out, size_t *n, size_t *cap, pn_err *err)
{
    for (uint32_t t = 0; t < pn_vocab_n_tokens(m->vocab); t++)
        if (pn_vocab_ends(m->vocab, (pn_token)t)) {
            if (!pn_mem_grow(pn_engine_mem(m->engine), PN_ACCT_MISC, (void **)out, cap, *n + 1, sizeof **out))
                return pn_fail_nomem(err, "the end tokens", (*n + 1) * sizeof **out);
            (*out)[(*n)++] = (pn_token)t;
        }
    return PN_OK;
}

/* tokenizer.ggml.suppress_tokens: never to be generated. */
static pn_status sampling_never(const pn_model *m, pn_token **out, size_t *n, size_t *cap, pn_err *err)
{
    const pn_gguf_kv *kv = pn_weights_meta(&m->file.weights, "tokenizer.ggml.suppress_tokens");
    int64_t id;
    for (uint64_t i = 0; kv && kv->type == PN_META_ARRAY && i < kv->count; i++) {
        if (!pn_gguf_i64(kv, i, &id) || id < 0 || id >= pn_vocab_n_tokens(m->vocab))
            continue;
        if (!pn_mem_grow(pn_engine_mem(m->engine), PN_ACCT_MISC, (void **)out, cap, *n + 1, sizeof **out))
            return pn_fail_nomem(err, "the suppressed tokens", (*n + 1) * sizeof **out);
        (*out)[(*n)++] = (pn_token)id;
    }
    return PN_OK;
}

static pn_bytes sampling_piece(void *user, pn_token t)
{
    char tmp[8];
    const pn_model *m = user;
    return pn_vocab_piece(m->vocab, t, true, tmp);
}

/* With nothing trusted: a breaker is ordinary text. */
static pn_status sampling_tokens(void *user, const char *text, size_t len, pn_token **out, size_t *n, size_t *cap,
                                 pn_err *err)
{
    const pn_model *m = user;
    const pn_span none = {0, 0};
    return pn_vocab_encode(m->vocab, pn_engine_mem(m->engine), text, len, 0, &none, 0, out, n, cap, err);
}

/* DRY's sequence breakers as tokens of this vocabulary. */
static pn_status sampling_breakers(const pn_model *m, pn_chain *chain, const pn_sampling *p, pn_err *err)
{
    static const char *const usual[] = {"\n", ":", "\"", "*"};
    const char *const *text = p->dry_breakers ? p->dry_breakers : usual;
    size_t n = p->dry_breakers ? p->n_dry_breakers : PN_COUNT_OF(usual);
    const pn_breaker_text vocab = {pn_vocab_n_tokens(m->vocab), sampling_piece, sampling_tokens, (void *)(uintptr_t)m};
    pn_breakers b;
    pn_status st = PN_OK;
    pn_breakers_init(&b, pn_engine_mem(m->engine));
    for (size_t i = 0; i < n && !st; i++)
        st = pn_breakers_add_text(&b, text[i], &vocab, err);
    if (!st)
        st = pn_chain_take_breakers(chain, &b, err);
    pn_breakers_fini(&b);
    return st;
}

PN_API pn_status pn_sampler_new(const pn_model *m, const pn_sampling *p, pn_sampler **out, pn_err *err)
{
    if (!m || !p)
        return pn_fail(err, PN_E_INVALID, "%s", m ? "no sampling parameters given" : "no model given");
    pn_mem *mem = pn_engine_mem(m->engine);
    pn_sampling full;
    pn_params_copy(&full, sizeof full, p, p->size);
    pn_token *ends = NULL, *never = NULL;
    size_t n_ends = 0, cap_ends = 0, n_never = 0, cap_never = 0;
    pn_sampler *s = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *s);
    pn_status st = s ? PN_OK : pn_fail_nomem(err, "a sampler", sizeof *s);
    if (!st)
        st = sampling_ends(m, &ends, &n_ends, &cap_ends, err);
    if (!st)
        st = sampling_never(m, &never, &n_never, &cap_never, err);
    if (!st)
        st = pn_chain_new(&s->chain, mem, &full, pn_vocab_n_logits(m->vocab), pn_vocab_n_tokens(m->vocab), ends, n_ends,
                          never, n_never, err);
    if (!st && pn_chain_wants_breakers(s->chain))
        st = sampling_breakers(m, s->chain, &full, err);
    pn_mem_free(mem, PN_ACCT_MISC, ends, cap_ends * sizeof *ends);
    pn_mem_free(mem, PN_ACCT_MISC, never, cap_never * sizeof *never);
    if (st) {
        if (s)
            pn_chain_free(s->chain);
        pn_mem_free(mem, PN_ACCT_MISC, s, sizeof *s);
        return st;
    }
    s->engine = m->engine;
    *out = s;
    return PN_OK;
}

PN_API void pn_sampler_free(pn_sampler *s)
{
    if (!s)
        return;
    pn_chain_free(s->chain);
    pn_mem_free(pn_engine_mem(s->engine), PN_ACCT_MISC, s, sizeof *s);
}

PN_API uint64_t pn_sampler_seed(const pn_sampler *s) { return pn_chain_seed(s->chain); }

PN_API pn_status pn_sampler_pick(pn_sampler *s, const float *logits, pn_token *out, pn_err *err)
{
    if (!logits)
        return pn_fail(err, PN_E_STATE, "there are no logits yet: evaluate a token first");
    return pn_chain_pick(s->chain, logits, out, err);
}

PN_API pn_status pn_sampler_accept(pn_sampler *s, pn_token t, int generated, pn_err *err)
{
    return pn_chain_accept(s->chain, t, generated != 0, err);
}

PN_API pn_status pn_logprobs(const pn_model *m, const float *logits, pn_token chosen, uint32_t n_top, pn_token *ids,
                             float *lp, float *chosen_lp, pn_err *err)
{
    if (!m)
        return pn_fail(err, PN_E_INVALID, "no model given");
    if (!logits)
        return pn_fail(err, PN_E_STATE, "there are no logits yet: evaluate a token first");
    if (n_top && (!ids || !lp))
        return pn_fail(err, PN_E_INVALID, "pn_logprobs: ids and lp must be given for the %" PRIu32 " likeliest", n_top);
    return pn_chain_logprobs(logits, pn_vocab_n_logits(m->vocab), pn_vocab_n_tokens(m->vocab), chosen, n_top, ids, lp,
                             chosen_lp, err);
}
