/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_wordpiece.c - greedy longest pieces of words (model "bert").
 *
 * Words are what white space and punctuation leave, cleaned of accents and case.  Model files store
 * the first piece of a word with U+2581 in front and the others as they are, so a word is matched as
 * U+2581 and its letters.  If any part of it matches nothing the whole word is one unknown token.
 */
#include "text/pn_vocab_impl.h"

PN_INTERNAL pn_status pn_wordpiece_build(pn_vocab *v, pn_err *err)
{
    v->lex.ids = pn_vocab_alloc(v, v->n_tokens, sizeof *v->lex.ids);
    if (!v->lex.ids)
        return pn_fail_nomem(err, "the token list", (uint64_t)v->n_tokens * 4);
    v->lex.cap = v->n_tokens;
    v->lex.texts = v->tokens;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        if ((v->attr[i] & PN_TA_KIND) == PN_TOKEN_NORMAL || (v->attr[i] & PN_TA_KIND) == PN_TOKEN_USER_DEFINED)
            v->lex.ids[v->lex.n++] = i;
    if (!pn_lex_build(&v->lex, v->mem))
        return pn_fail_nomem(err, "sorting the tokens", (uint64_t)v->n_tokens * 32);
    return PN_OK;
}

/* The word gathered in e->buf, if any; leaves it empty. */
static bool wordpiece_flush(pn_enc *e)
{
    const pn_vocab *v = e->v;
    size_t first = *e->n;
    if (e->buf.failed)
        return false;
    for (size_t at = 0, len; at < e->buf.len; at += len) {
        pn_lex_walk w;
        int32_t best = -1;
        len = 0;
        pn_lex_begin(&v->lex, &w);
        for (int32_t t; (t = pn_lex_next(&v->lex, &w, e->buf.data + at, e->buf.len - at)) >= 0;)
            if (pn_enc_allows(e, t)) {
                best = t;
                len = w.depth;
            }
        if (best < 0) {
            *e->n = first;
            if (v->unk >= 0 && !pn_enc_push(e, v->unk))
                return false;
            break;
        }
        if (!pn_enc_push(e, best))
            return false;
    }
    pn_str_clear(&e->buf);
    return true;
}

/* BERT's ideographs; one range is a digit off in the reference implementation, and so here. */
static bool wordpiece_is_cjk(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

PN_INTERNAL bool pn_wordpiece_encode(pn_enc *e, const char *s, size_t n)
{
    const pn_vocab *v = e->v;
    pn_str_clear(&e->buf);
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        char utf8[4];
        len = pn_utf8_decode(s + i, n - i, &cp);
        if (v->strip_accents)
            cp = pn_uni_decomp_first(cp);
        uint64_t m = pn_uni_class(cp);
        if (m & PN_US_WS) {
            if (!wordpiece_flush(e))
                return false;
            continue;
        }
        if (cp == 0 || cp == 0xFFFD || (m & PN_US_C) || (v->strip_accents && (m & PN_US_M)))
            continue;
        if (v->lowercase)
            cp = pn_uni_lower(cp);
        bool alone = (m & PN_US_P) || (cp < 0x7F && (m & PN_US_S)) || wordpiece_is_cjk(cp);
        if (alone && !wordpiece_flush(e))
            return false;
        if (!e->buf.len)
            pn_enc_escape(&e->buf, " ", 1);
        pn_str_add(&e->buf, utf8, pn_utf8_encode(cp, utf8));
        if (alone && !wordpiece_flush(e))
            return false;
    }
    return wordpiece_flush(e);
}
