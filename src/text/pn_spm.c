/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_spm.c - SentencePiece BPE (model "llama"): merge by score.
 *
 * Spaces become U+2581 and one is put in front of the text (and after every special token).  Two
 * neighbours merge when what they spell together is a token; the highest score goes first.  Scores
 * are turned into integers that sort the other way round, so that the same machinery serves as for
 * ranks.  In almost every vocabulary no token continues from a character into U+2581; then words
 * cannot influence each other and are encoded one at a time, which keeps the work and the memory of
 * long texts small.
 */
#include "text/pn_vocab_impl.h"

/* Order of floats as order of integers, best (highest) lowest; NaN is worst. */
static uint32_t spm_prio(float score)
{
    if (score != score)
        return UINT32_MAX;
    uint32_t u = pn_f32_bits(score + 0.0f);         /* -0 counts as 0 */
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return UINT32_MAX - u;
}

PN_INTERNAL pn_status pn_spm_build(pn_vocab *v, const pn_vocab_source *src, pn_err *err)
{
    v->prio = pn_vocab_alloc(v, v->n_tokens, sizeof *v->prio);
    if (!v->prio)
        return pn_fail_nomem(err, "token scores", (uint64_t)v->n_tokens * sizeof *v->prio);
    for (uint32_t i = 0; i < v->n_tokens; i++)
        v->prio[i] = spm_prio(src->scores ? src->scores[i] : 0);
    return PN_OK;
}

static bool spm_lookup(const void *ctx, const pn_sym *a, const pn_sym *b, uint32_t *prio, int32_t *id)
{
    const pn_enc *e = ctx;
    size_t n = (size_t)a->len + b->len;
    if (n > e->v->max_len)
        return false;
    pn_token t = pn_vocab_find(e->v, e->word + a->at, n);
    if (t < 0 || !pn_enc_allows(e, t))
        return false;
    *prio = e->v->prio[t];
    *id = t;
    return true;
}

static bool spm_word(pn_enc *e, const char *word, size_t n)
{
    const pn_vocab *v = e->v;
    if (!pn_merge_reserve(&e->merge, n))
        return false;
    size_t k = 0;
    for (size_t i = 0, len; i < n; i += len, k++) {
        uint32_t cp;
        len = pn_utf8_decode(word + i, n - i, &cp);
        e->merge.syms[k] = (pn_sym){.at = (uint32_t)i, .len = (uint32_t)len, .id = pn_vocab_find(v, word + i, len)};
    }
    e->merge.n = k;
    e->word = word;
    if (!pn_merge_run(&e->merge, spm_lookup, e))
        return false;
    for (size_t i = 0; i < e->merge.n; i++) {
        const pn_sym *s = &e->merge.syms[i];
        if (s->id >= 0 && pn_enc_allows(e, s->id)) {
            if (!pn_enc_push(e, s->id))
                return false;
            continue;
        }
        for (uint32_t j = 0; j < s->len; j++) {
            int32_t t = v->byte_tok[(uint8_t)word[s->at + j]];
            t = t >= 0 && pn_enc_allows(e, t) ? t : v->unk;
            if (t >= 0 && !pn_enc_push(e, t))
                return false;
        }
    }
    return true;
}

PN_INTERNAL bool pn_spm_encode(pn_enc *e, const char *s, size_t n, bool prefix)
{
    pn_str_clear(&e->buf);
    if (prefix)
        pn_enc_escape(&e->buf, " ", 1);
    pn_enc_escape(&e->buf, s, n);
    if (e->buf.failed)
        return false;
    for (size_t i = 0, len; i < e->buf.len; i += len) {
        len = pn_vocab_word(e->v, e->buf.data + i, e->buf.len - i);
        if (!spm_word(e, e->buf.data + i, len))
            return false;
    }
    return true;
}
