/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_hf_gguf.c - a folder's vocabulary as the keys of a GGUF file have it.
 *
 * A GGUF file names a tokenizer instead of describing it, so not everything fits.  What would cut text
 * differently throughout is refused; what differs at the edges (normal forms, spaces around special
 * tokens) is noted, which is what files in that format do without.
 *
 * Where pieces are characters and not bytes GGUF's tokenizer is SentencePiece's, which has scores where
 * a tokenizer.json has merges.  The two agree when each token's merges stand together in the list, and
 * no pair spells a token without being in it; what does not is counted.
 */
#include "text/pn_hf_impl.h"

#include <inttypes.h>
#include <stdio.h>

#define HFG_LAST (-1e6f)        /* a token no merge makes: after all that some merge makes */

typedef struct hfg_write {
    pn_hf_vocab *h;
    pn_hf_gguf *g;
    pn_err *err;
} hfg_write;

static pn_status hfg_lost(hfg_write *w, const char *what)
{
    return pn_fail(w->err, PN_E_UNSUPPORTED, "a GGUF file cannot say this vocabulary: %s", what);
}

/* Texts for ids without token, to `dst` (NULL: measure). */
static size_t hfg_pads(hfg_write *w, char *dst)
{
    size_t at = 0;
    for (uint32_t i = 0; i < w->h->n_rows; i++) {
        char text[24];
        bool have = i < w->h->n_tokens && w->h->tokens[i].len;
        if (have && dst)
            w->g->tokens[i] = w->h->tokens[i];
        if (have)
            continue;
        size_t n = (size_t)snprintf(text, sizeof text, "[PAD%" PRIu32 "]", i);
        if (dst) {
            memcpy(dst + at, text, n);
            w->g->tokens[i] = (pn_bytes){dst + at, n};
        }
        at += n;
    }
    return at;
}

/* "left right" for each merge that counts, the last of equal pairs; to `dst` (NULL: measure). */
static bool hfg_merges(hfg_write *w, char *dst, size_t *used, bool *spaces)
{
    const pn_hf_vocab *h = w->h;
    pn_map seen;
    bool ok = true;
    size_t at = 0;
    uint32_t n = 0;
    pn_map_init(&seen, h->mem, PN_ACCT_VOCAB);
    for (uint32_t i = h->n_merges; i-- && ok;) {        /* the first two fields of a merge are the key */
        const pn_rules_merge *m = &h->merges[i];
        pn_bytes a = h->tokens[m->left], b = h->tokens[m->right];
        bool twice = false;
        ok = pn_map_put(&seen, (const char *)m, 2 * sizeof m->left, i, &twice) != NULL;
        *spaces = *spaces || memchr(a.data + 1, ' ', a.len - 1) || b.data[0] == ' ';
        if (!ok || twice)
            continue;
        if (dst) {
            memcpy(dst + at, a.data, a.len);
            dst[at + a.len] = ' ';
            memcpy(dst + at + a.len + 1, b.data, b.len);
            w->g->merges[n] = (pn_bytes){dst + at, a.len + 1 + b.len};
        }
        at += a.len + 1 + b.len;
        n++;
    }
    pn_map_fini(&seen);
    for (uint32_t i = 0; dst && i < n / 2; i++) {       /* they were written last first */
        pn_bytes swap = w->g->merges[i];
        w->g->merges[i] = w->g->merges[n - 1 - i];
        w->g->merges[n - 1 - i] = swap;
    }
    w->g->src.n_merges = n;
    *used = at;
    return ok;
}

static pn_status hfg_texts(hfg_write *w, bool merges)
{
    pn_hf_vocab *h = w->h;
    pn_hf_gguf *g = w->g;
    size_t pads = hfg_pads(w, NULL), used = 0;
    bool spaces = false;
    if (merges && !hfg_merges(w, NULL, &used, &spaces))
        return pn_fail_nomem(w->err, "merges", (uint64_t)h->n_merges * 16);
    if (spaces)
        return hfg_lost(w, "a merge holds a space, which separates the two halves there");
    g->tokens = pn_mem_calloc(h->mem, PN_ACCT_VOCAB, h->n_rows, sizeof *g->tokens);
    g->types = pn_mem_calloc(h->mem, PN_ACCT_VOCAB, h->n_rows, sizeof *g->types);
    g->merges = merges ? pn_mem_calloc(h->mem, PN_ACCT_VOCAB, h->n_merges, sizeof *g->merges) : NULL;
    g->text = pn_mem_alloc(h->mem, PN_ACCT_VOCAB, pads + used);
    if (!g->tokens || !g->types || (merges && !g->merges) || !g->text) {
        g->text_len = g->text ? pads + used : 0;
        return pn_fail_nomem(w->err, "the texts of a vocabulary", pads + used);
    }
    g->text_len = pads + used;
    hfg_pads(w, g->text);
    for (uint32_t i = 0; i < h->n_rows; i++)
        g->types[i] = i < h->n_tokens && h->tokens[i].len ? h->types[i] : PN_TOKEN_UNUSED;
    if (merges && !hfg_merges(w, g->text + pads, &used, &spaces))
        return pn_fail_nomem(w->err, "merges", (uint64_t)h->n_merges * 16);
    g->src.tokens = g->tokens;
    g->src.types = g->types;
    g->src.n_tokens = h->n_rows;
    g->src.merges = g->merges;
    return PN_OK;
}

/* --- merges as scores --------------------------------------------------------------------- */

/* How many ways to cut token i in two give tokens that SentencePiece would join. */
static bool hfg_splits(const hfg_write *w, const pn_map *index, uint32_t i, uint32_t *n)
{
    pn_bytes t = w->h->tokens[i];
    *n = 0;
    if (t.len > 1024)
        return false;
    for (size_t at = 1; at < t.len; at++)
        if (((uint8_t)t.data[at] & 0xC0) != 0x80 && pn_map_find(index, t.data, at) && pn_map_find(index, t.data + at, t.len - at))
            ++*n;
    return true;
}

static pn_status hfg_scores(hfg_write *w)
{
    pn_hf_vocab *h = w->h;
    pn_hf_gguf *g = w->g;
    pn_map index, seen;
    uint32_t apart = 0, other = 0;              /* tokens whose merges are not together; tokens spelt by other pairs */
    bool ok = true;
    uint32_t *ways = pn_mem_calloc(h->mem, PN_ACCT_VOCAB, h->n_tokens, sizeof *ways);
    g->scores = pn_mem_calloc(h->mem, PN_ACCT_VOCAB, h->n_rows, sizeof *g->scores);
    pn_map_init(&index, h->mem, PN_ACCT_VOCAB);
    pn_map_init(&seen, h->mem, PN_ACCT_VOCAB);
    ok = ways && g->scores;
    for (uint32_t i = 0; i < h->n_tokens && ok; i++)
        ok = !h->tokens[i].len || pn_map_put(&index, h->tokens[i].data, h->tokens[i].len, i, NULL);
    for (uint32_t i = h->n_merges; i-- && ok;) {        /* of equal pairs the last counts */
        const pn_rules_merge *m = &h->merges[i];
        bool twice = false;
        ok = pn_map_put(&seen, (const char *)m, 2 * sizeof m->left, i, &twice) != NULL;
        if (!ok || twice)
            continue;
        apart += ways[m->to]++ && h->merges[i + 1].to != m->to;
        g->scores[m->to] = -(float)(i + 1);
    }
    for (uint32_t i = 0; i < h->n_rows && ok; i++) {
        uint32_t n = 0;
        if (i < h->n_tokens && (!hfg_splits(w, &index, i, &n) || n != ways[i]))
            other++;
        if (i >= h->n_tokens || (!ways[i] && h->types[i] == PN_TOKEN_NORMAL && n))
            g->scores[i] = HFG_LAST;
    }
    pn_map_fini(&index);
    pn_map_fini(&seen);
    pn_mem_free(h->mem, PN_ACCT_VOCAB, ways, h->n_tokens * sizeof *ways);
    if (!ok)
        return pn_fail_nomem(w->err, "scores", (uint64_t)h->n_rows * 4);
    if (apart || other)
        pn_str_addf(&g->notes, "merges became scores; %" PRIu32 " merges and %" PRIu32 " tokens are then ordered or spelt differently\n",
                    apart, other);
    g->src.scores = g->scores;
    return PN_OK;
}

/* --- the two kinds of rules --------------------------------------------------------------- */

/* The list's name; GGUF's deepseek-llm cuts out runs of digits where the published list cuts each. */
static pn_bytes hfg_name(hfg_write *w)
{
    pn_pretok p = w->h->rules.pretok;
    pn_bytes name = pn_pretok_name(&p);
    size_t n = 0;
    while (n < PN_PRETOK_MAX_LEVELS && p.levels[n])
        n++;
    if (name.len || !n || p.levels[n - 1] != pn_pretok_pattern_of(PN_PIECE_DIGIT))
        return name;
    p.levels[n - 1] = pn_pretok_pattern_of(PN_PIECE_DIGITS);
    name = pn_pretok_name(&p);
    if (name.len)
        pn_str_addz(&w->g->notes, "numbers are not cut into digits\n");
    return name;
}

/* What has no name is said in words of our own, when all of it can be. */
static pn_bytes hfg_own_name(hfg_write *w)
{
    const pn_hf_vocab *h = w->h;
    pn_hf_gguf *g = w->g;
    uint32_t n = 0;
    while (n < PN_PRETOK_MAX_LEVELS && h->rules.pretok.levels[n])
        n++;
    if (!n || n != h->n_cut_words)
        return (pn_bytes){NULL, 0};
    for (uint32_t i = 0; i < n; i++) {
        size_t begin = i ? h->cut_ends[i - 1] : 0;
        g->cuts[i] = (pn_bytes){h->cut_words.data + begin, h->cut_ends[i] - begin};
    }
    g->src.cuts = g->cuts;
    g->src.n_cuts = n;
    g->src.ignore_merges = h->rules.pretok.flags & PN_PRETOK_IGNORE_MERGES;
    pn_str_addz(&g->notes, "how text is cut has no name there; the file keeps the patterns for this program, others refuse it\n");
    return (pn_bytes){PN_CUTS_NAME, sizeof PN_CUTS_NAME - 1};
}

static pn_status hfg_bytes(hfg_write *w)
{
    const pn_vocab_rules *r = &w->h->rules;
    pn_bytes name = hfg_name(w);
    for (uint32_t i = 0; i < r->n_steps; i++) {
        if (r->steps[i].kind != PN_NORM_NFC)
            return hfg_lost(w, "it rewrites text before cutting it");
        pn_str_addz(&w->g->notes, "text is not brought into normal form C\n");
    }
    if (r->space != PN_SPACE_NEVER)
        return hfg_lost(w, "it puts a space in front of a text");
    if (!name.len)
        name = hfg_own_name(w);
    if (!name.len)
        return hfg_lost(w, "no pre-tokenizer has a name that cuts text this way");
    w->g->src.model = (pn_bytes){"gpt2", 4};
    w->g->src.pre = name;
    return hfg_texts(w, true);
}

static pn_status hfg_characters(hfg_write *w)
{
    const pn_vocab_rules *r = &w->h->rules;
    bool prefix = r->metaspace && r->space != PN_SPACE_NEVER, escape = r->metaspace;
    for (uint32_t i = 0; i < r->n_steps; i++) {
        const pn_norm_step *s = &r->steps[i];
        bool meta = s->to.len == 3 && memcmp(s->to.data, "\xE2\x96\x81", 3) == 0;
        if (s->kind == PN_NORM_PREPEND && meta)
            prefix = true;
        else if (s->kind == PN_NORM_REPLACE && meta && pn_hf_is(s->from, " "))
            escape = true;
        else
            return hfg_lost(w, "it rewrites text before cutting it");
    }
    if (!escape)
        return hfg_lost(w, "its spaces are not U+2581");
    if (r->pretok.levels[0])
        return hfg_lost(w, "it cuts text into words");
    if (r->pretok.flags & PN_PRETOK_IGNORE_MERGES)
        return hfg_lost(w, "it takes whole stretches without merging (ignore_merges)");
    if (!r->byte_fallback)
        return hfg_lost(w, "characters do not fall back to bytes");
    if (r->metaspace && r->space == PN_SPACE_FIRST)
        pn_str_addz(&w->g->notes, "a space is put in front after special tokens too, not only of the text\n");
    if (r->metaspace && r->space != PN_SPACE_NEVER)
        pn_str_addz(&w->g->notes, "a space is put in front of a text that begins with one, too\n");
    w->g->src.model = (pn_bytes){"llama", 5};
    w->g->src.pre = (pn_bytes){"default", 7};
    w->g->src.add_space_prefix = prefix;
    pn_status st = hfg_texts(w, false);
    return st ? st : hfg_scores(w);
}

/* Of tokenizer.model: the terms are the same. */
static pn_status hfg_pieces(hfg_write *w)
{
    pn_status st = hfg_texts(w, false);
    if (st)
        return st;
    w->g->scores = pn_mem_calloc(w->h->mem, PN_ACCT_VOCAB, w->h->n_rows, sizeof *w->g->scores);
    if (!w->g->scores)
        return pn_fail_nomem(w->err, "scores", (uint64_t)w->h->n_rows * 4);
    for (uint32_t i = 0; i < w->h->n_rows; i++)
        w->g->scores[i] = i < w->h->n_tokens ? w->h->scores[i] : HFG_LAST;
    w->g->src.scores = w->g->scores;
    return PN_OK;
}

static void hfg_edges(hfg_write *w)
{
    const pn_hf_vocab *h = w->h;
    pn_vocab_source *s = &w->g->src;
    uint32_t strip = 0, word = 0;
    for (uint32_t i = 0; i < h->n_tokens; i++) {
        strip += (h->flags[i] & (PN_TF_LSTRIP | PN_TF_RSTRIP)) != 0;
        word += (h->flags[i] & PN_TF_SINGLE_WORD) != 0;
    }
    if (strip)
        pn_str_addf(&w->g->notes, "%" PRIu32 " tokens do not swallow the white space around them\n", strip);
    if (word)
        pn_str_addf(&w->g->notes, "%" PRIu32 " tokens are cut inside words too\n", word);
    if (h->n_prefix || h->n_suffix)
        pn_str_addz(&w->g->notes, "the tokens around a text are more than a beginning and an end\n");
    for (uint32_t i = 0; i < h->n_ends; i++) {
        if (h->ends[i] == s->eos || (uint32_t)h->ends[i] >= h->n_tokens)
            continue;
        if (s->eot < 0)
            s->eot = h->ends[i];
        else
            pn_str_addf(&w->g->notes, "token %" PRId32 " ends an answer only if its text is known for it\n", h->ends[i]);
    }
}

PN_INTERNAL pn_status pn_hf_vocab_gguf(pn_hf_vocab *h, pn_vocab_source *src, pn_str *notes, pn_err *err)
{
    pn_hf_gguf *g = &h->gguf;
    hfg_write w = {h, g, err};
    pn_status st = PN_OK;
    if (!g->made) {
        if (!h->types)
            return pn_fail(err, PN_E_INVALID, "a vocabulary that was trimmed");
        pn_hf_gguf_drop(h);
        pn_hf_vocab_source(h, &g->src);
        g->src.flags = NULL;
        g->src.rules = NULL;
        g->src.ends = NULL;
        g->src.n_ends = g->src.n_prefix = g->src.n_suffix = 0;
        g->src.scores = NULL;
        if (!h->has_rules)
            st = hfg_pieces(&w);
        else
            st = h->rules.pretok.flags & PN_PRETOK_RAW ? hfg_characters(&w) : hfg_bytes(&w);
        if (!st)
            hfg_edges(&w);
        if (!st && g->notes.failed)
            st = pn_fail_nomem(err, "notes", g->notes.len);
        if (st) {
            pn_hf_gguf_drop(h);
            return st;
        }
        g->made = true;
    }
    *src = g->src;
    pn_str_add(notes, g->notes.data, g->notes.len);
    return notes->failed ? pn_fail_nomem(err, "notes", g->notes.len) : PN_OK;
}

PN_INTERNAL void pn_hf_gguf_drop(pn_hf_vocab *h)
{
    pn_hf_gguf *g = &h->gguf;
    pn_mem_free(h->mem, PN_ACCT_VOCAB, g->tokens, h->n_rows * sizeof *g->tokens);
    pn_mem_free(h->mem, PN_ACCT_VOCAB, g->types, h->n_rows * sizeof *g->types);
    pn_mem_free(h->mem, PN_ACCT_VOCAB, g->merges, h->n_merges * sizeof *g->merges);
    pn_mem_free(h->mem, PN_ACCT_VOCAB, g->scores, h->n_rows * sizeof *g->scores);
    pn_mem_free(h->mem, PN_ACCT_VOCAB, g->text, g->text_len);
    pn_str_fini(&g->notes);
    *g = (pn_hf_gguf){.notes = g->notes};
}

#undef HFG_LAST
