/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_special.c - tokens that are recognised in the text before anything else.
 *
 * One pass, leftmost match first, the longest at each place.  Which tokens count depends on the call:
 *
 *     kind                      plain    PN_ENC_SPECIAL    with spans
 *     user-defined              yes      yes               inside a span; words, spaces: anywhere
 *     control, unknown          no       yes               inside a span
 *     marker of another kind    no       no                inside a span
 *
 * With spans, text outside them is somebody else's: PN_TA_GUARD tokens neither match here nor come
 * out of the encoders by way of merges (pn_enc_allows).  What lies between two matches is encoded as
 * one stretch even when a span ends inside it, so that a template's " " and a message's first word
 * merge as they did in training.
 */
#include "text/pn_vocab_impl.h"

PN_INTERNAL bool pn_special_build(pn_vocab *v)
{
    uint32_t n = 0;
    for (int fill = 0; fill < 2; fill++) {
        uint32_t k = 0;
        for (uint32_t i = 0; i < v->n_tokens; i++) {
            unsigned kind = v->attr[i] & PN_TA_KIND;
            if (kind != PN_TOKEN_CONTROL && kind != PN_TOKEN_USER_DEFINED && kind != PN_TOKEN_UNKNOWN &&
                !(v->attr[i] & PN_TA_MARKER))
                continue;
            if (fill)
                v->special.ids[k] = i;
            k++;
        }
        n = k;
        if (!fill && !(v->special.ids = pn_vocab_alloc(v, n, sizeof *v->special.ids)))
            return false;
        v->special.cap = n;
    }
    v->special.n = n;
    v->special.texts = v->tokens;
    return pn_lex_build(&v->special, v->mem);
}

typedef struct special_scan {
    const pn_enc *e;
    const char *s;
    size_t n;
    unsigned flags;
    const pn_span *spans;       /* those that do not end before the current place */
    size_t n_spans;
    bool spanned;
} special_scan;

static bool special_counts(const special_scan *sc, uint32_t t, size_t at, size_t end)
{
    unsigned a = sc->e->v->attr[t], kind = a & PN_TA_KIND;
    if (!sc->spanned)
        return kind == PN_TOKEN_USER_DEFINED ||
               ((sc->flags & PN_ENC_SPECIAL) && (kind == PN_TOKEN_CONTROL || kind == PN_TOKEN_UNKNOWN));
    if (!(a & PN_TA_GUARD))
        return true;
    return sc->n_spans && sc->spans[0].begin <= at && end <= sc->spans[0].end;
}

/* Length of the longest special token at `at`, 0: none. */
static size_t special_match(special_scan *sc, size_t at, pn_token *t)
{
    const pn_lex *l = &sc->e->v->special;
    uint8_t c = (uint8_t)sc->s[at];
    size_t len = 0;
    if (l->first[c] == l->first[c + 1])
        return 0;
    while (sc->n_spans && sc->spans[0].end <= at) {
        sc->spans++;
        sc->n_spans--;
    }
    pn_lex_walk w;
    pn_lex_begin(l, &w);
    for (int32_t here; (here = pn_lex_next(l, &w, sc->s + at, sc->n - at)) >= 0;)
        if (special_counts(sc, (uint32_t)here, at, at + w.depth)) {
            *t = here;
            len = w.depth;
        }
    return len;
}

static bool special_raw(pn_enc *e, const char *s, size_t n, bool after_special)
{
    if (!n)
        return true;
    switch (e->v->model) {
    case PN_VOCAB_SPM: return pn_spm_encode(e, s, n, e->v->add_space_prefix && after_special);
    case PN_VOCAB_BPE: return pn_bpe_encode(e, s, n);
    case PN_VOCAB_WPM: return pn_wordpiece_encode(e, s, n);
    case PN_VOCAB_UGM: return pn_unigram_encode(e, s, n);
    case PN_VOCAB_RWKV: return pn_rwkv_encode(e, s, n);
    case PN_VOCAB_NONE: break;
    }
    return true;
}

static bool special_is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

PN_INTERNAL bool pn_special_encode(pn_enc *e, const char *s, size_t n, unsigned flags,
                                   const pn_span *spans, size_t n_spans)
{
    special_scan sc = {e, s, n, flags, spans, n_spans, spans != NULL};
    size_t raw = 0;
    bool after_special = true;              /* the beginning counts as such */
    for (size_t i = 0; i < n;) {
        pn_token t = -1;
        size_t len = special_match(&sc, i, &t);
        if (!len) {
            i++;
            continue;
        }
        size_t end = i;
        while ((e->v->attr[t] & PN_TA_LSTRIP) && end > raw && special_is_space(s[end - 1]))
            end--;
        if (!special_raw(e, s + raw, end - raw, after_special) || !pn_enc_push(e, t))
            return false;
        i += len;
        while ((e->v->attr[t] & PN_TA_RSTRIP) && i < n && special_is_space(s[i]))
            i++;
        raw = i;
        after_special = true;
    }
    return special_raw(e, s + raw, n - raw, after_special);
}
