/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_unigram.c - the most probable segmentation (model "t5").
 *
 * First the text is normalised with the vocabulary's "charsmap", a double-array trie of replacements:
 *
 *     u32 LE size of the trie in bytes, the trie as u32 LE units, NUL-terminated replacements
 *     unit w: label = w & 0x800000FF, leaf follows = bit 8, offset = (w >> 10) << ((w & 512) >> 6),
 *             value = w & 0x7FFFFFFF (of a leaf: where its replacement begins)
 *
 * and white space is folded into U+2581.  Then best[i] is the best sum of scores of tokens that spell
 * the first i bytes; the tokens are read off backwards.  A character no token covers costs the worst
 * score less ten and becomes "unknown"; a run of those is one token.  (User-defined tokens need no
 * care here: they were cut out of the text before.)
 *
 * Where no token reaches across the beginning of a word each word is solved alone: the same answer
 * with a table of a word's length.
 */
#include "text/pn_vocab_impl.h"

typedef struct unigram_best { double score; uint32_t from; int32_t id; } unigram_best;

#define UNIGRAM_LABEL(w) ((w) & 0x800000FFu)
#define UNIGRAM_OFFSET(w) (((w) >> 10) << (((w) & 512u) >> 6))
#define UNIGRAM_UNK_PENALTY 10.0
#define UNIGRAM_NEVER (-1.7e308)
#define UNIGRAM_MAX_REPLACEMENT 255     /* real ones are below 40 bytes; bounds what a hostile file inflates */

static pn_status unigram_check_charsmap(const pn_vocab *v, pn_err *err)
{
    if (!v->charsmap_len)
        return PN_OK;
    uint32_t trie = v->charsmap_len >= 4 ? pn_le32(v->charsmap) : 0;
    if (v->charsmap_len < 8 || trie < 4 || trie % 4 || trie > v->charsmap_len - 4)
        return pn_fail(err, PN_E_FORMAT, "precompiled_charsmap: a trie of %lu bytes does not fit %lu bytes of data",
                       (unsigned long)trie, (unsigned long)v->charsmap_len);
    if (trie == v->charsmap_len - 4 || v->charsmap[v->charsmap_len - 1] != 0)
        return pn_fail(err, PN_E_FORMAT, "precompiled_charsmap: the replacement texts do not end in a zero byte");
    return PN_OK;
}

PN_INTERNAL pn_status pn_unigram_build(pn_vocab *v, const pn_vocab_source *src, pn_err *err)
{
    pn_status st = unigram_check_charsmap(v, err);
    if (st)
        return st;
    v->scores = pn_vocab_alloc(v, v->n_tokens, sizeof *v->scores);
    v->lex.ids = pn_vocab_alloc(v, v->n_tokens, sizeof *v->lex.ids);
    if (!v->scores || !v->lex.ids) {
        v->lex.cap = v->lex.ids ? v->n_tokens : 0;
        return pn_fail_nomem(err, "the token list", (uint64_t)v->n_tokens * 8);
    }
    v->lex.cap = v->n_tokens;
    v->lex.texts = v->tokens;
    float worst = 0;
    bool any = false;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        unsigned kind = v->attr[i] & PN_TA_KIND;
        float s = src->scores ? src->scores[i] : 0;
        v->scores[i] = kind == PN_TOKEN_USER_DEFINED || !(s > -1e30f && s < 1e30f) ? 0 : s;
        if (kind == PN_TOKEN_NORMAL && (!any || v->scores[i] < worst)) {
            worst = v->scores[i];
            any = true;
        }
        if (kind == PN_TOKEN_NORMAL || kind == PN_TOKEN_USER_DEFINED || kind == PN_TOKEN_UNUSED)
            v->lex.ids[v->lex.n++] = i;
    }
    v->unk_score = (double)worst - UNIGRAM_UNK_PENALTY;
    if (!pn_lex_build(&v->lex, v->mem))
        return pn_fail_nomem(err, "sorting the tokens", (uint64_t)v->n_tokens * 32);
    return PN_OK;
}

/* --- normalisation ------------------------------------------------------------------------ */

/* Unit i of the trie; false when the walk left it. */
static bool unigram_unit(const pn_vocab *v, uint32_t i, uint32_t *w)
{
    if (i >= pn_le32(v->charsmap) / 4)
        return false;
    *w = pn_le32(v->charsmap + 4 + (size_t)i * 4);
    return true;
}

/* The replacement of the longest key s begins with; its key length, 0: none. */
static size_t unigram_replace(const pn_vocab *v, const char *s, size_t n, pn_bytes *to)
{
    uint32_t w, i;
    size_t found = 0;
    if (!v->charsmap_len || !unigram_unit(v, 0, &w))
        return 0;
    size_t texts = 4 + (size_t)pn_le32(v->charsmap), texts_len = v->charsmap_len - texts;
    i = UNIGRAM_OFFSET(w);
    for (size_t k = 0; k < n && s[k]; k++) {
        uint32_t leaf;
        i ^= (uint8_t)s[k];
        if (!unigram_unit(v, i, &w) || UNIGRAM_LABEL(w) != (uint8_t)s[k])
            break;
        i ^= UNIGRAM_OFFSET(w);
        if (!(w & 256) || !unigram_unit(v, i, &leaf) || (leaf & 0x7FFFFFFFu) >= texts_len)
            continue;
        to->data = (const char *)v->charsmap + texts + (leaf & 0x7FFFFFFFu);
        to->len = strlen(to->data);             /* the blob ends in a zero byte */
        found = to->len <= UNIGRAM_MAX_REPLACEMENT ? k + 1 : found;
    }
    return found;
}

typedef struct unigram_fold { bool started, in_word; } unigram_fold;

/* Normalised bytes to e->buf, spaces folded. */
static void unigram_fold_bytes(pn_enc *e, unigram_fold *f, const char *s, size_t n)
{
    const pn_vocab *v = e->v;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == ' ') {
            f->in_word = false;
            if (!v->remove_extra_ws)
                pn_enc_escape(&e->buf, " ", 1);
            continue;
        }
        if (!f->in_word && ((v->add_space_prefix && !f->started) || v->remove_extra_ws)) {
            pn_enc_escape(&e->buf, " ", 1);
            f->started = true;
        }
        f->in_word = true;
        pn_str_addc(&e->buf, s[i]);
    }
}

static bool unigram_normalise(pn_enc *e, const char *s, size_t n)
{
    unigram_fold f = {false, false};
    pn_str_clear(&e->buf);
    for (size_t i = 0, len; i < n; i += len) {
        pn_bytes to = {NULL, 0};
        uint32_t cp;
        len = unigram_replace(e->v, s + i, n - i, &to);
        if (len) {
            unigram_fold_bytes(e, &f, to.data, to.len);
            continue;
        }
        len = pn_utf8_decode(s + i, n - i, &cp);
        if (cp == 0xFFFD && len == 1)
            unigram_fold_bytes(e, &f, "\xEF\xBF\xBD", 3);
        else
            unigram_fold_bytes(e, &f, s + i, len);
    }
    return !e->buf.failed;
}

/* --- segmentation ------------------------------------------------------------------------- */

/* Extend the best path to byte `at` of s[0..n) by every token that begins there. */
static void unigram_extend(const pn_enc *e, const char *s, size_t n, size_t at, unigram_best *best)
{
    const pn_vocab *v = e->v;
    uint32_t cp;
    size_t one = pn_utf8_decode(s + at, n - at, &cp);
    bool covered = false;
    pn_lex_walk w;
    pn_lex_begin(&v->lex, &w);
    for (int32_t t; (t = pn_lex_next(&v->lex, &w, s + at, n - at)) >= 0;) {
        if (!pn_enc_allows(e, t))
            continue;
        size_t end = at + w.depth;
        double score = best[at].score + (double)v->scores[t];
        covered = covered || end - at == one;
        if (score > best[end].score)
            best[end] = (unigram_best){score, (uint32_t)at, t};
    }
    double score = best[at].score + v->unk_score;
    if (!covered && score > best[at + one].score)
        best[at + one] = (unigram_best){score, (uint32_t)at, -1};
}

/* *unk: the token before this word was "unknown", so another one is not said again. */
static bool unigram_word(pn_enc *e, const char *s, size_t n, bool *unk)
{
    uint64_t bytes = ((uint64_t)n + 1) * sizeof(unigram_best);
    if (bytes > SIZE_MAX || !pn_mem_grow(e->mem, PN_ACCT_MISC, &e->best, &e->n_best, (size_t)bytes, 1))
        return false;
    unigram_best *best = e->best;
    for (size_t i = 0; i <= n; i++)
        best[i] = (unigram_best){UNIGRAM_NEVER, 0, -1};
    best[0].score = 0;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = pn_utf8_decode(s + i, n - i, &cp);
        if (best[i].score > UNIGRAM_NEVER)
            unigram_extend(e, s, n, i, best);
    }
    size_t first = *e->n;
    bool next_unk = false;
    for (size_t at = n; at; at = best[at].from) {           /* backwards, then reversed */
        int32_t t = best[at].id;
        if (t < 0 && !next_unk && e->v->unk >= 0 && !pn_enc_push(e, e->v->unk))
            return false;
        if (t >= 0 && !pn_enc_push(e, t))
            return false;
        next_unk = t < 0;
    }
    pn_token *out = *e->out;
    for (size_t i = first, j = *e->n; i + 1 < j; i++) {
        pn_token swap = out[i];
        out[i] = out[--j];
        out[j] = swap;
    }
    if (*unk && next_unk && *e->n > first) {                /* one run of unknowns across the border */
        memmove(out + first, out + first + 1, (*e->n - first - 1) * sizeof *out);
        --*e->n;
    }
    *unk = best[n].id < 0;
    return true;
}

PN_INTERNAL bool pn_unigram_encode(pn_enc *e, const char *s, size_t n)
{
    bool unk = false;
    if (!unigram_normalise(e, s, n))
        return false;
    for (size_t i = 0, len; i < e->buf.len; i += len) {
        len = pn_vocab_word(e->v, e->buf.data + i, e->buf.len - i);
        if (!unigram_word(e, e->buf.data + i, len, &unk))
            return false;
    }
    return true;
}

#undef UNIGRAM_LABEL
#undef UNIGRAM_OFFSET
#undef UNIGRAM_UNK_PENALTY
#undef UNIGRAM_NEVER
#undef UNIGRAM_MAX_REPLACEMENT
