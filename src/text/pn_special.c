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
 *
 * Where the file says every step (pn_rules.h) only its added tokens count, and markers within spans.
 * Some of them are looked for a second time round, in the rewritten text of each stretch; a place there
 * is held against the spans by where it comes from.
 */
#include "text/pn_unicode.h"
#include "text/pn_vocab_impl.h"

/* Is token i looked for in the text at all, and on which of the two rounds? */
static bool special_is_candidate(const pn_vocab *v, uint32_t i)
{
    unsigned kind = v->attr[i] & PN_TA_KIND;
    if (v->attr[i] & PN_TA_MARKER)
        return !v->special_norm.n || !(v->flags[i] & PN_TF_ADDED) || !(v->flags[i] & PN_TF_NORMALIZED);
    if (v->rules)
        return (v->flags[i] & PN_TF_ADDED) && !(v->special_norm.n && (v->flags[i] & PN_TF_NORMALIZED));
    return kind == PN_TOKEN_CONTROL || kind == PN_TOKEN_USER_DEFINED || kind == PN_TOKEN_UNKNOWN;
}

PN_INTERNAL bool pn_special_build(pn_vocab *v)
{
    uint32_t n = 0;
    for (int fill = 0; fill < 2; fill++) {
        uint32_t k = 0;
        for (uint32_t i = 0; i < v->n_tokens; i++) {
            if (!special_is_candidate(v, i))
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

/* Looking through s[0..n), which is the text or one rewritten stretch of it. */
typedef struct special_scan {
    const pn_enc *e;
    const pn_lex *lex;
    const char *s;
    size_t n;
    unsigned flags;
    const pn_span *spans;       /* those that do not end before the current place */
    size_t n_spans;
    bool spanned;
    const uint32_t *src;        /* [n] rewritten and with spans: where a byte comes from, after src_at */
    size_t src_at, src_end;     /* the stretch of the text this is */
    size_t run_from, run_to;    /* known: bytes that come from one place */
} special_scan;

/* Where in the text the byte at `at` begins, and where the one before `end` ends. */
static size_t special_begin(const special_scan *sc, size_t at) { return sc->src_at + (sc->src ? sc->src[at] : at); }

static size_t special_end(special_scan *sc, size_t end)
{
    if (!sc->src)
        return sc->src_at + end;
    if (end - 1 < sc->run_from || end - 1 >= sc->run_to) {      /* else seen before, however long it is */
        sc->run_from = end - 1;
        sc->run_to = end;
        while (sc->run_to < sc->n && sc->src[sc->run_to] == sc->src[end - 1])
            sc->run_to++;
    }
    return sc->run_to < sc->n ? sc->src_at + sc->src[sc->run_to] : sc->src_end;
}

/* A letter, mark, digit or connector at s[at], or, `before`, the one that ends there. */
static bool special_is_word(const char *s, size_t n, size_t at, bool before)
{
    uint32_t cp;
    if (before ? at == 0 : at == n)
        return false;
    if (before)
        for (at--; at && ((uint8_t)s[at] & 0xC0) == 0x80;)
            at--;
    pn_utf8_decode(s + at, n - at, &cp);
    return pn_uni_class(cp) & (PN_US_L | PN_US_M | PN_US(ND) | PN_US(NL) | PN_US(PC));
}

static bool special_counts(special_scan *sc, uint32_t t, size_t at, size_t end)
{
    const pn_vocab *v = sc->e->v;
    unsigned a = v->attr[t], kind = a & PN_TA_KIND;
    if (v->flags && (v->flags[t] & PN_TF_SINGLE_WORD) &&
        (special_is_word(sc->s, sc->n, at, true) || special_is_word(sc->s, sc->n, end, false)))
        return false;
    if (!sc->spanned && v->rules && !(v->flags[t] & PN_TF_ADDED))
        return false;                           /* a marker by its looks, within spans only */
    if (!sc->spanned)
        return kind == PN_TOKEN_USER_DEFINED ||
               ((sc->flags & PN_ENC_SPECIAL) && (kind == PN_TOKEN_CONTROL || kind == PN_TOKEN_UNKNOWN));
    if (!(a & PN_TA_GUARD))
        return true;
    return sc->n_spans && sc->spans[0].begin <= special_begin(sc, at) && special_end(sc, end) <= sc->spans[0].end;
}

/* Length of the longest special token at `at`, 0: none.  *t < 0: a folder's token that does not count
 * here; as in the reference, it keeps others from being found within it. */
static size_t special_match(special_scan *sc, size_t at, pn_token *t)
{
    const pn_lex *l = sc->lex;
    uint8_t c = (uint8_t)sc->s[at];
    size_t len = 0;
    if (l->first[c] == l->first[c + 1])
        return 0;
    while (sc->n_spans && sc->spans[0].end <= special_begin(sc, at)) {
        sc->spans++;
        sc->n_spans--;
    }
    pn_lex_walk w;
    pn_lex_begin(l, &w);
    for (int32_t here; (here = pn_lex_next(l, &w, sc->s + at, sc->n - at)) >= 0;) {
        bool counts = special_counts(sc, (uint32_t)here, at, at + w.depth);
        if (!counts && (sc->spanned || !sc->e->v->rules || !(sc->e->v->flags[here] & PN_TF_ADDED)))
            continue;
        *t = counts ? here : -1;
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

/* Bytes of white space s[0..n) ends with; with a folder's flags Unicode's, else ASCII's. */
static size_t special_space_before(const pn_vocab *v, const char *s, size_t n)
{
    size_t at = n;
    while (at) {
        size_t one = at - 1;
        uint32_t cp;
        while (v->flags && one && ((uint8_t)s[one] & 0xC0) == 0x80)
            one--;
        size_t len = pn_utf8_decode(s + one, at - one, &cp);
        bool space = v->flags ? len == at - one && (pn_uni_class(cp) & PN_US_WS) : s[one] == ' ' || (s[one] >= '\t' && s[one] <= '\r');
        if (!space)
            break;
        at = one;
    }
    return n - at;
}

static size_t special_space_after(const pn_vocab *v, const char *s, size_t n)
{
    size_t at = 0;
    while (at < n) {
        uint32_t cp;
        size_t len = pn_utf8_decode(s + at, n - at, &cp);
        bool space = v->flags ? (pn_uni_class(cp) & PN_US_WS) != 0 : s[at] == ' ' || (s[at] >= '\t' && s[at] <= '\r');
        if (!space)
            break;
        at += len;
    }
    return at;
}

/* What to do with a stretch [from, to) of what is scanned; `after`: it follows a special token or begins. */
typedef bool (*special_stretch)(pn_enc *e, special_scan *sc, size_t from, size_t to, bool after, void *user);

static bool special_cut(pn_enc *e, special_scan *sc, special_stretch stretch, void *user)
{
    size_t raw = 0, spaces = 0;                 /* all white space up to here, from any place looked at since */
    for (size_t i = 0; i < sc->n;) {
        pn_token t = -1;
        size_t len = special_match(sc, i, &t);
        if (!len || t < 0) {
            i += len ? len : 1;
            continue;
        }
        size_t end = PN_MAX(i, raw), after = i + len;
        if (e->v->attr[t] & PN_TA_LSTRIP)
            end -= special_space_before(e->v, sc->s + raw, end - raw);
        if ((e->v->attr[t] & PN_TA_RSTRIP) && after >= spaces)
            spaces = after + special_space_after(e->v, sc->s + after, sc->n - after);
        if (e->v->attr[t] & PN_TA_RSTRIP)
            after = spaces;
        bool gone = (e->v->attr[t] & PN_TA_LSTRIP) && end >= after;     /* swallowed by the one before it */
        if (!stretch(e, sc, raw, end, true, user) || (!gone && !pn_enc_push(e, t)))
            return false;
        i = e->v->rules ? i + len : after;      /* with rules a token of white space is found there all the same */
        raw = after;
    }
    return stretch(e, sc, raw, sc->n, true, user);
}

static bool special_stretch_raw(pn_enc *e, special_scan *sc, size_t from, size_t to, bool after, void *user)
{
    (void)user;
    return special_raw(e, sc->s + from, to - from, after);
}

/* Between added tokens of the second round: words and merges. */
static bool special_stretch_words(pn_enc *e, special_scan *sc, size_t from, size_t to, bool after, void *user)
{
    (void)after, (void)user;
    return from == to || pn_rules_encode(e, sc->s + from, to - from, sc->src_at == 0 && (sc->src ? sc->src[from] == 0 : from == 0));
}

/* Between those of the first: the steps, then the second round.  user: its scan, whose spans move on. */
static bool special_stretch_steps(pn_enc *e, special_scan *sc, size_t from, size_t to, bool after, void *user)
{
    const pn_vocab *v = e->v;
    special_scan *second = user;
    (void)after;
    if (from == to)
        return true;
    second->s = sc->s + from;
    second->n = to - from;
    second->src_at = from;
    second->src_end = to;
    second->src = NULL;
    second->run_from = second->run_to = 0;
    if (v->rules->n_steps) {
        bool track = (second->spanned && v->special_norm.n) || v->rules->space == PN_SPACE_FIRST;
        if (!pn_norm_run(&e->norm, v->rules->steps, v->rules->n_steps, second->s, second->n, track))
            return false;
        second->s = pn_str_cstr(&e->norm.out.text);
        second->n = e->norm.out.text.len;
        second->src = track ? e->norm.out.src : NULL;
    }
    if (!v->special_norm.n)
        return special_stretch_words(e, second, 0, second->n, true, NULL);
    return special_cut(e, second, special_stretch_words, NULL);
}

PN_INTERNAL bool pn_special_encode(pn_enc *e, const char *s, size_t n, unsigned flags,
                                   const pn_span *spans, size_t n_spans)
{
    const pn_vocab *v = e->v;
    special_scan sc = {.e = e, .lex = &v->special, .s = s, .n = n, .flags = flags, .spans = spans, .n_spans = n_spans,
                       .spanned = spans != NULL};
    special_scan second = sc;
    second.lex = &v->special_norm;
    return special_cut(e, &sc, v->rules ? special_stretch_steps : special_stretch_raw, &second);
}
