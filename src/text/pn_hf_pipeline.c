/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_hf_pipeline.c - the four steps around the model of a tokenizer.json.
 *
 * Each of normalizer, pre_tokenizer, post_processor and decoder is one element or a "Sequence" of them,
 * which may hold Sequences; they are laid out flat first, with a stack of fixed depth.  Then each
 * element becomes a field of pn_vocab_rules, or the file is refused with the element's name.
 */
#include "text/pn_hf_impl.h"

#include <inttypes.h>

#define HFP_MAX_DEPTH 8
#define HFP_MAX_ELEMENTS 16
#define HFP_META "\xE2\x96\x81"

typedef struct hfp_list {
    const pn_json_doc *d;
    const char *section;        /* "pre_tokenizer" */
    uint32_t nodes[HFP_MAX_ELEMENTS];
    size_t n;
} hfp_list;

static pn_bytes hfp_type(const hfp_list *l, size_t i) { return pn_hf_text(l->d, l->nodes[i], "type"); }

/* The elements of a section in order, Sequences opened.  children: the key of a Sequence's list. */
static pn_status hfp_flatten(pn_hf_read *r, hfp_list *l, const char *section, const char *children)
{
    const pn_json_doc *d = &r->tokenizer;
    uint32_t next[HFP_MAX_DEPTH + 1];           /* what comes after the element in hand, per level */
    size_t depth = 0;
    *l = (hfp_list){.d = d, .section = section};
    next[0] = pn_json_get(d, 0, section);
    if (pn_json_type_of(d, next[0]) == PN_JSON_NULL)
        return PN_OK;
    for (bool root = true; next[0] != PN_JSON_NONE || depth;) {
        uint32_t c = next[depth];
        if (c == PN_JSON_NONE) {
            depth--;
            continue;
        }
        next[depth] = root ? PN_JSON_NONE : pn_json_next(d, c);
        root = false;
        if (pn_json_type_of(d, c) != PN_JSON_OBJECT)
            return pn_fail(r->err, PN_E_FORMAT, "%s: %s holds something that is not an object", r->file, section);
        if (pn_hf_is(pn_hf_text(d, c, "type"), "Sequence")) {
            uint32_t list = pn_json_get(d, c, children);
            if (pn_json_type_of(d, list) != PN_JSON_ARRAY)
                return pn_fail(r->err, PN_E_FORMAT, "%s: %s: a Sequence without a list \"%s\"", r->file, section, children);
            if (++depth > HFP_MAX_DEPTH)
                return pn_fail(r->err, PN_E_FORMAT, "%s: %s: Sequences inside each other more than %d deep", r->file, section, HFP_MAX_DEPTH);
            next[depth] = pn_json_first(d, list);
            continue;
        }
        if (l->n == HFP_MAX_ELEMENTS)
            return pn_fail(r->err, PN_E_UNSUPPORTED, "%s: %s has more than %d elements", r->file, section, HFP_MAX_ELEMENTS);
        l->nodes[l->n++] = c;
    }
    return PN_OK;
}

static pn_status hfp_refuse(pn_hf_read *r, const hfp_list *l, size_t i, const char *why)
{
    pn_bytes t = hfp_type(l, i);
    return pn_fail(r->err, PN_E_UNSUPPORTED, "%s: %s \"%.*s\" %s", r->file, l->section, pn_hf_len(t), t.len ? t.data : "", why);
}

/* pattern: {"String": s} or a {"Regex": s}.  False: neither. */
static bool hfp_pattern(const hfp_list *l, size_t i, pn_bytes *s, bool *regex)
{
    uint32_t p = pn_json_get(l->d, l->nodes[i], "pattern");
    *regex = pn_json_str(l->d, pn_json_get(l->d, p, "Regex"), s);
    return *regex || pn_json_str(l->d, pn_json_get(l->d, p, "String"), s);
}

/* A regular expression without anything special in it is a text. */
static bool hfp_plain(pn_bytes s)
{
    for (size_t i = 0; i < s.len; i++)
        if (strchr("\\.[]{}()*+?^$|", s.data[i]))           /* NUL counts: strchr finds it */
            return false;
    return s.len > 0;
}

/* --- normalizer --------------------------------------------------------------------------- */

typedef struct hfp_state {
    bool spaces_gone;           /* no U+0020 is left after the normalizer */
    bool collapses;             /* it makes one of several spaces */
    bool byte_level;
} hfp_state;

/* Unigram: the encoder has its own steps; what says the same as they do is theirs. */
static pn_status hfp_unigram_step(pn_hf_read *r, const hfp_list *l, size_t i, hfp_state *s)
{
    pn_bytes t = hfp_type(l, i), from = {NULL, 0};
    bool regex;
    if (pn_hf_is(t, "Replace") && hfp_pattern(l, i, &from, &regex) && regex && pn_hf_is(from, " {2,}")) {
        s->collapses = true;
        return PN_OK;
    }
    if (pn_hf_is(t, "Strip"))
        return PN_OK;
    return hfp_refuse(r, l, i, "is not supported with a Unigram model");
}

static const struct { const char *name; pn_norm_kind kind; } hfp_forms[] = {
    {"NFC", PN_NORM_NFC}, {"NFD", PN_NORM_NFD}, {"NFKC", PN_NORM_NFKC}, {"NFKD", PN_NORM_NFKD},
    {"Lowercase", PN_NORM_LOWERCASE}, {"StripAccents", PN_NORM_STRIP_MARKS},
};

static pn_status hfp_replace(pn_hf_read *r, const hfp_list *l, size_t i, hfp_state *s, pn_norm_step *step)
{
    bool regex;
    if (!hfp_pattern(l, i, &step->from, &regex) || !pn_json_str(l->d, pn_json_get(l->d, l->nodes[i], "content"), &step->to) ||
        !step->from.len)
        return pn_fail(r->err, PN_E_FORMAT, "%s: normalizer \"Replace\" without a pattern and a content", r->file);
    if (regex && !hfp_plain(step->from))
        return pn_fail(r->err, PN_E_UNSUPPORTED, "%s: normalizer \"Replace\" has the regular expression \"%.*s\"; only plain text is "
                       "supported", r->file, pn_hf_len(step->from), step->from.data);
    step->kind = PN_NORM_REPLACE;
    if (pn_hf_is(step->from, " "))
        s->spaces_gone = !memchr(step->to.len ? step->to.data : "", ' ', step->to.len);
    return PN_OK;
}

static pn_status hfp_step(pn_hf_read *r, const hfp_list *l, size_t i, hfp_state *s)
{
    pn_vocab_rules *rules = &r->h->rules;
    pn_bytes t = hfp_type(l, i);
    if (rules->n_steps == PN_RULES_MAX_STEPS)
        return hfp_refuse(r, l, i, "is one step too many");
    pn_norm_step step = {0};
    pn_status st = PN_OK;
    bool known = false;
    for (size_t k = 0; k < PN_COUNT_OF(hfp_forms); k++)
        if (pn_hf_is(t, hfp_forms[k].name)) {
            step.kind = hfp_forms[k].kind;
            known = true;
        }
    if (pn_hf_is(t, "Strip")) {
        step = (pn_norm_step){.kind = PN_NORM_TRIM, .left = pn_hf_flag(l->d, l->nodes[i], "strip_left", true),
                              .right = pn_hf_flag(l->d, l->nodes[i], "strip_right", true)};
    } else if (pn_hf_is(t, "Replace")) {
        st = hfp_replace(r, l, i, s, &step);
    } else if (pn_hf_is(t, "Prepend")) {
        step.kind = PN_NORM_PREPEND;
        if (!pn_json_str(l->d, pn_json_get(l->d, l->nodes[i], "prepend"), &step.to))
            return pn_fail(r->err, PN_E_FORMAT, "%s: normalizer \"Prepend\" without a text", r->file);
    } else if (!known) {
        return hfp_refuse(r, l, i, "is not supported");
    }
    rules->steps[rules->n_steps++] = step;
    return st;
}

/* RFC 4648, in place of the text it came from.  False: not base64. */
static bool hfp_base64(pn_bytes in, char *out, size_t *n)
{
    uint32_t acc = 0;
    int bits = 0;
    size_t k = 0;
    while (in.len && in.data[in.len - 1] == '=')
        in.len--;
    for (size_t i = 0; i < in.len; i++) {
        char c = in.data[i];
        int v = c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : c >= '0' && c <= '9' ? c - '0' + 52
              : c == '+' ? 62 : c == '/' ? 63 : -1;
        if (v < 0)
            return false;
        acc = (acc << 6 | (uint32_t)v) & 0xFFFFFF;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            out[k++] = (char)(acc >> bits);
        }
    }
    *n = k;
    return true;
}

static pn_status hfp_charsmap(pn_hf_read *r, const hfp_list *l, size_t i)
{
    pn_bytes b = pn_hf_text(l->d, l->nodes[i], "precompiled_charsmap");
    size_t n = 0;
    if (!b.len)
        return PN_OK;
    /* The document's own block, which is ours until the reading ends: the result is shorter. */
    if (!hfp_base64(b, r->tokenizer.text + (b.data - r->tokenizer.text), &n))
        return pn_fail(r->err, PN_E_FORMAT, "%s: normalizer \"Precompiled\": precompiled_charsmap is not base64", r->file);
    r->h->charsmap = (pn_bytes){b.data, n};
    return PN_OK;
}

static pn_status hfp_normalizer(pn_hf_read *r, hfp_state *s)
{
    hfp_list l;
    pn_status st = hfp_flatten(r, &l, "normalizer", "normalizers");
    for (size_t i = 0; i < l.n && !st; i++) {
        if (!r->h->has_rules && pn_hf_is(hfp_type(&l, i), "Precompiled") && i == 0)
            st = hfp_charsmap(r, &l, i);
        else if (!r->h->has_rules)
            st = hfp_unigram_step(r, &l, i, s);
        else
            st = hfp_step(r, &l, i, s);
    }
    return st;
}

/* --- pre_tokenizer ------------------------------------------------------------------------ */

static pn_status hfp_level(pn_hf_read *r, const hfp_list *l, size_t i, const pn_pretok_pattern *p)
{
    pn_pretok *t = &r->h->rules.pretok;
    for (size_t k = 0; k < PN_PRETOK_MAX_LEVELS; k++)
        if (!t->levels[k]) {
            t->levels[k] = p;
            return PN_OK;
        }
    return hfp_refuse(r, l, i, "is one level too many");
}

/* Cut by a pattern; what it is in words is kept for a GGUF file. */
static pn_status hfp_pattern_level(pn_hf_read *r, const hfp_list *l, size_t i, pn_bytes p, bool literal, pn_pretok_cut cut, bool invert)
{
    pn_hf_vocab *h = r->h;
    const pn_pretok_pattern *level = NULL;
    pn_err why = {0};
    pn_bytes t = hfp_type(l, i);
    pn_status st = pn_cuts_level(&h->cuts, r->mem, p, literal, cut, invert, &level, &why);
    if (st == PN_E_UNSUPPORTED)
        return pn_fail(r->err, st, "%s: pre_tokenizer \"%.*s\": the %s \"%.*s\" is not supported: %s", r->file, pn_hf_len(t),
                       t.len ? t.data : "", literal ? "text" : "regular expression", (int)PN_MIN(p.len, (size_t)160), p.data, why.text);
    if (!st)
        pn_cuts_write(&h->cut_words, p, literal, cut, invert);
    if (st || h->cut_words.failed)
        return pn_fail_nomem(r->err, "a pattern", p.len);
    st = hfp_level(r, l, i, level);
    if (!st)
        h->cut_ends[h->n_cut_words++] = h->cut_words.len;
    return st;
}

static pn_status hfp_piece(pn_hf_read *r, const hfp_list *l, size_t i, pn_pretok_piece piece, pn_pretok_cut cut)
{
    const char *regex = pn_pretok_regex_of(piece);
    return hfp_pattern_level(r, l, i, (pn_bytes){regex, strlen(regex)}, false, cut, false);
}

/* "behavior" of an element; absent: *cut is left.  False: it is none of those there are. */
static bool hfp_cut(const hfp_list *l, size_t i, pn_pretok_cut *cut)
{
    static const struct { const char *name; pn_pretok_cut cut; } known[] = {
        {"Isolated", PN_CUT_ISOLATED}, {"Removed", PN_CUT_REMOVED}, {"MergedWithPrevious", PN_CUT_WITH_PREVIOUS},
        {"MergedWithNext", PN_CUT_WITH_NEXT}, {"Contiguous", PN_CUT_CONTIGUOUS},
    };
    pn_bytes how = pn_hf_text(l->d, l->nodes[i], "behavior");
    for (size_t k = 0; k < PN_COUNT_OF(known); k++)
        if (pn_hf_is(how, known[k].name)) {
            *cut = known[k].cut;
            return true;
        }
    return !how.len;
}

static pn_status hfp_split(pn_hf_read *r, const hfp_list *l, size_t i, const hfp_state *s)
{
    pn_bytes p, how = pn_hf_text(l->d, l->nodes[i], "behavior");
    bool regex, invert = pn_hf_flag(l->d, l->nodes[i], "invert", false);
    pn_pretok_cut cut = PN_CUT_ISOLATED;
    if (!hfp_pattern(l, i, &p, &regex) || !p.len)
        return pn_fail(r->err, PN_E_FORMAT, "%s: pre_tokenizer \"Split\" without a pattern", r->file);
    if (!hfp_cut(l, i, &cut) || !how.len)
        return pn_fail(r->err, PN_E_FORMAT, "%s: pre_tokenizer \"Split\": behavior \"%.*s\" is none of Isolated, Removed, "
                       "MergedWithPrevious, MergedWithNext, Contiguous", r->file, pn_hf_len(how), how.len ? how.data : "");
    if (p.data[0] == ' ' && s->spaces_gone && (!regex || hfp_plain(p)) && (cut != PN_CUT_REMOVED || !invert))
        return PN_OK;                           /* there are none left to split at */
    return hfp_pattern_level(r, l, i, p, !regex, cut, invert);
}

static pn_status hfp_metaspace(pn_hf_read *r, const hfp_list *l, size_t i)
{
    pn_vocab_rules *rules = &r->h->rules;
    uint32_t node = l->nodes[i];
    pn_bytes with = pn_hf_text(l->d, node, "replacement"), scheme = pn_hf_text(l->d, node, "prepend_scheme");
    if (!pn_hf_is(with, HFP_META))
        return pn_fail(r->err, PN_E_UNSUPPORTED, "%s: pre_tokenizer \"Metaspace\": replacement \"%.*s\" is not supported, only U+2581",
                       r->file, pn_hf_len(with), with.len ? with.data : "");
    if (i)
        return hfp_refuse(r, l, i, "behind another element is not supported with a BPE model");
    rules->metaspace = true;
    if (!scheme.len)
        rules->space = pn_hf_flag(l->d, node, "add_prefix_space", true) ? PN_SPACE_ALWAYS : PN_SPACE_NEVER;
    else if (pn_hf_is(scheme, "always"))
        rules->space = PN_SPACE_ALWAYS;
    else if (pn_hf_is(scheme, "first"))
        rules->space = PN_SPACE_FIRST;
    else if (!pn_hf_is(scheme, "never"))
        return pn_fail(r->err, PN_E_FORMAT, "%s: pre_tokenizer \"Metaspace\": prepend_scheme \"%.*s\" is none of always, first, never",
                       r->file, pn_hf_len(scheme), scheme.data);
    if (pn_hf_flag(l->d, node, "split", true))
        return hfp_level(r, l, i, pn_pretok_pattern_of(PN_PIECE_METASPACE));
    return PN_OK;
}

static pn_status hfp_byte_level(pn_hf_read *r, const hfp_list *l, size_t i, hfp_state *s)
{
    pn_vocab_rules *rules = &r->h->rules;
    s->byte_level = true;
    if (rules->metaspace)
        return hfp_refuse(r, l, i, "behind Metaspace is not supported");
    if (pn_hf_flag(l->d, l->nodes[i], "add_prefix_space", true)) {
        if (i)
            return hfp_refuse(r, l, i, "with add_prefix_space behind another element is not supported");
        rules->space = PN_SPACE_ALWAYS;
    }
    if (pn_hf_flag(l->d, l->nodes[i], "use_regex", true))
        return hfp_piece(r, l, i, PN_PIECE_GPT2, PN_CUT_ISOLATED);
    return PN_OK;
}

/* Punctuation(Contiguous), ByteLevel, Digits(false), Split([0-9][0-9][0-9]): the one list that goes on
 * behind the byte alphabet.  Numbers are runs of their own by then, which is what cutting them in threes
 * before the alphabet gives too. */
static bool hfp_is_falcon(const hfp_list *l)
{
    pn_bytes p;
    bool regex;
    return l->n == 4 && pn_hf_is(hfp_type(l, 0), "Punctuation") && pn_hf_is(pn_hf_text(l->d, l->nodes[0], "behavior"), "Contiguous") &&
           pn_hf_is(hfp_type(l, 1), "ByteLevel") && !pn_hf_flag(l->d, l->nodes[1], "add_prefix_space", true) &&
           pn_hf_flag(l->d, l->nodes[1], "use_regex", true) && pn_hf_is(hfp_type(l, 2), "Digits") &&
           !pn_hf_flag(l->d, l->nodes[2], "individual_digits", false) && pn_hf_is(hfp_type(l, 3), "Split") &&
           hfp_pattern(l, 3, &p, &regex) && regex && pn_hf_is(p, "[0-9][0-9][0-9]") &&
           pn_hf_is(pn_hf_text(l->d, l->nodes[3], "behavior"), "Isolated");
}

static pn_status hfp_element(pn_hf_read *r, const hfp_list *l, size_t i, hfp_state *s)
{
    static const char words[] = "[\\w\\u200C\\u200D]+|[^\\w\\u200C\\u200D\\s]+";
    pn_bytes t = hfp_type(l, i);
    pn_pretok_cut cut = PN_CUT_ISOLATED;
    if (s->byte_level)
        return hfp_refuse(r, l, i, "behind ByteLevel is not supported");
    if (pn_hf_is(t, "Split"))
        return hfp_split(r, l, i, s);
    if (pn_hf_is(t, "ByteLevel"))
        return hfp_byte_level(r, l, i, s);
    if (pn_hf_is(t, "Metaspace"))
        return hfp_metaspace(r, l, i);
    if (pn_hf_is(t, "Digits"))
        return hfp_piece(r, l, i, pn_hf_flag(l->d, l->nodes[i], "individual_digits", false) ? PN_PIECE_DIGIT : PN_PIECE_DIGITS, cut);
    if (pn_hf_is(t, "Punctuation") && hfp_cut(l, i, &cut))
        return cut == PN_CUT_CONTIGUOUS ? hfp_piece(r, l, i, PN_PIECE_PUNCTS, PN_CUT_ISOLATED) : hfp_piece(r, l, i, PN_PIECE_PUNCT, cut);
    if (pn_hf_is(t, "WhitespaceSplit"))
        return hfp_pattern_level(r, l, i, (pn_bytes){"\\s", 2}, false, PN_CUT_REMOVED, false);
    if (pn_hf_is(t, "Whitespace"))              /* \w+|[^\w\s]+ of an engine that counts the joiners as \w */
        return hfp_pattern_level(r, l, i, (pn_bytes){words, sizeof words - 1}, false, PN_CUT_REMOVED, true);
    return hfp_refuse(r, l, i, "is not supported with a BPE model");
}

/* Files of Mistral's larger vocabularies were published with another family's pattern.  What the file says
 * is done, and that it is said. */
static void hfp_doubt(pn_hf_read *r)
{
    static const char *const types[] = {"mistral", "mistral3", "ministral", "pixtral", "voxtral"};
    const pn_pretok *tekken = pn_pretok_find("tekken", 6);
    pn_bytes type = pn_hf_text(&r->model_config, 0, "model_type");
    if (r->h->n_tokens <= 100000 || r->h->rules.pretok.levels[0] == tekken->levels[0])
        return;
    for (size_t i = 0; i < PN_COUNT_OF(types); i++)
        if (pn_hf_is(type, types[i]))
            pn_hf_warn(r, "tokenizer.json: a %s vocabulary of %" PRIu32 " tokens without the pattern such models are trained with; "
                       "text may be cut differently from training", types[i], r->h->n_tokens);
}

static pn_status hfp_pretokenizer_bpe(pn_hf_read *r, hfp_state *s)
{
    hfp_list l;
    pn_vocab_rules *rules = &r->h->rules;
    pn_status st = hfp_flatten(r, &l, "pre_tokenizer", "pretokenizers");
    if (!st && hfp_is_falcon(&l)) {
        rules->pretok = *pn_pretok_find("falcon", 6);
        s->byte_level = true;
        return PN_OK;
    }
    for (size_t i = 0; i < l.n && !st; i++)
        st = hfp_element(r, &l, i, s);
    if (!st && !s->byte_level)
        rules->pretok.flags |= PN_PRETOK_RAW;
    if (!st)
        hfp_doubt(r);
    return st;
}

/* Unigram: [WhitespaceSplit,] Metaspace. */
static pn_status hfp_pretokenizer_unigram(pn_hf_read *r, const hfp_state *s)
{
    hfp_list l;
    pn_status st = hfp_flatten(r, &l, "pre_tokenizer", "pretokenizers");
    size_t i = 0;
    if (st)
        return st;
    bool words = l.n && pn_hf_is(hfp_type(&l, 0), "WhitespaceSplit");
    i += words;
    if (i + 1 != l.n || !pn_hf_is(hfp_type(&l, i), "Metaspace"))
        return i < l.n ? hfp_refuse(r, &l, i, "is not supported with a Unigram model")
                       : pn_fail(r->err, PN_E_UNSUPPORTED, "%s: a Unigram model without the pre_tokenizer \"Metaspace\" is not supported",
                                 r->file);
    pn_vocab_rules *rules = &r->h->rules;
    if ((st = hfp_metaspace(r, &(hfp_list){.d = l.d, .section = l.section, .nodes = {l.nodes[i]}, .n = 1}, 0)) != PN_OK)
        return st;
    r->h->add_space_prefix = rules->space != PN_SPACE_NEVER;
    r->h->remove_extra_whitespaces = words || s->collapses;
    *rules = (pn_vocab_rules){.unk = -1};
    return PN_OK;
}

/* --- post_processor ----------------------------------------------------------------------- */

static pn_status hfp_around(pn_hf_read *r, bool behind, int64_t id)
{
    pn_hf_vocab *h = r->h;
    uint32_t *n = behind ? &h->n_suffix : &h->n_prefix;
    if (id < 0 || id >= (int64_t)h->n_tokens)
        return pn_fail(r->err, PN_E_FORMAT, "%s: post_processor: token %" PRId64 " is not one of %" PRIu32, r->file, id, h->n_tokens);
    if (*n == PN_VOCAB_MAX_AROUND)
        return pn_fail(r->err, PN_E_UNSUPPORTED, "%s: post_processor puts more than %d tokens around a text", r->file, PN_VOCAB_MAX_AROUND);
    (behind ? h->suffix : h->prefix)[(*n)++] = (pn_token)id;
    return PN_OK;
}

static pn_status hfp_template(pn_hf_read *r, const hfp_list *l, size_t i)
{
    const pn_json_doc *d = l->d;
    uint32_t single = pn_json_get(d, l->nodes[i], "single"), texts = pn_json_get(d, l->nodes[i], "special_tokens");
    bool behind = false;
    if (pn_json_type_of(d, single) != PN_JSON_ARRAY)
        return pn_fail(r->err, PN_E_FORMAT, "%s: post_processor \"TemplateProcessing\" without a list \"single\"", r->file);
    for (uint32_t c = pn_json_first(d, single); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        if (pn_json_type_of(d, pn_json_get(d, c, "Sequence")) == PN_JSON_OBJECT) {
            behind = true;
            continue;
        }
        pn_bytes name = pn_hf_text(d, pn_json_get(d, c, "SpecialToken"), "id");
        uint32_t ids = pn_json_get(d, pn_json_find(d, texts, name.len ? name.data : "", name.len), "ids");
        if (pn_json_type_of(d, ids) != PN_JSON_ARRAY)
            return pn_fail(r->err, PN_E_FORMAT, "%s: post_processor: special token \"%.*s\" has no ids", r->file, pn_hf_len(name),
                           name.len ? name.data : "");
        for (uint32_t k = pn_json_first(d, ids); k != PN_JSON_NONE; k = pn_json_next(d, k)) {
            int64_t id = -1;
            pn_json_i64(d, k, &id);
            pn_status st = hfp_around(r, behind, id);
            if (st)
                return st;
        }
    }
    return PN_OK;
}

/* "cls": [text, id] in front and "sep" behind. */
static pn_status hfp_pair(pn_hf_read *r, const hfp_list *l, size_t i)
{
    static const char *const keys[] = {"cls", "sep"};
    pn_status st = PN_OK;
    for (int k = 0; k < 2 && !st; k++) {
        int64_t id = -1;
        uint32_t pair = pn_json_get(l->d, l->nodes[i], keys[k]);
        pn_json_i64(l->d, pn_json_next(l->d, pn_json_first(l->d, pair)), &id);
        st = hfp_around(r, k, id);
    }
    return st;
}

static pn_status hfp_postprocessor(pn_hf_read *r)
{
    hfp_list l;
    pn_status st = hfp_flatten(r, &l, "post_processor", "processors");
    for (size_t i = 0; i < l.n && !st; i++) {
        pn_bytes t = hfp_type(&l, i);
        bool list = pn_hf_is(t, "TemplateProcessing"), pair = pn_hf_is(t, "BertProcessing") || pn_hf_is(t, "RobertaProcessing");
        if ((list || pair) && r->around)
            return hfp_refuse(r, &l, i, "behind another that puts tokens around a text is not supported");
        r->around = r->around || list || pair;
        if (list)
            st = hfp_template(r, &l, i);
        else if (pair)
            st = hfp_pair(r, &l, i);
        else if (!pn_hf_is(t, "ByteLevel"))
            return hfp_refuse(r, &l, i, "is not supported");
    }
    return st;
}

/* --- decoder ------------------------------------------------------------------------------ */

static pn_status hfp_decoder_element(pn_hf_read *r, const hfp_list *l, size_t i, bool byte_level)
{
    pn_bytes t = hfp_type(l, i), from = {NULL, 0};
    int64_t start = -1, stop = -1;
    bool regex;
    if (pn_hf_is(t, "ByteLevel") && byte_level)
        return PN_OK;
    if (pn_hf_is(t, "Fuse") || (!byte_level && pn_hf_is(t, "ByteFallback")))
        return PN_OK;
    if (!byte_level && pn_hf_is(t, "Metaspace")) {
        r->h->rules.strip_space = !pn_hf_is(pn_hf_text(l->d, l->nodes[i], "prepend_scheme"), "never") &&
                                  pn_hf_flag(l->d, l->nodes[i], "add_prefix_space", true);
        return PN_OK;
    }
    if (!byte_level && pn_hf_is(t, "Replace") && hfp_pattern(l, i, &from, &regex) && pn_hf_is(from, HFP_META) &&
        pn_hf_is(pn_hf_text(l->d, l->nodes[i], "content"), " "))
        return PN_OK;
    pn_json_i64(l->d, pn_json_get(l->d, l->nodes[i], "start"), &start);
    pn_json_i64(l->d, pn_json_get(l->d, l->nodes[i], "stop"), &stop);
    if (!byte_level && pn_hf_is(t, "Strip") && pn_hf_is(pn_hf_text(l->d, l->nodes[i], "content"), " ") && start <= 1 && start >= 0 && stop == 0) {
        r->h->rules.strip_space = start == 1;
        return PN_OK;
    }
    return hfp_refuse(r, l, i, byte_level ? "does not belong to a vocabulary of bytes" : "is not supported");
}

static pn_status hfp_decoder(pn_hf_read *r, bool byte_level)
{
    hfp_list l;
    pn_status st = hfp_flatten(r, &l, "decoder", "decoders");
    for (size_t i = 0; i < l.n && !st; i++)
        st = hfp_decoder_element(r, &l, i, byte_level);
    return st;
}

PN_INTERNAL pn_status pn_hf_read_pipeline(pn_hf_read *r)
{
    hfp_state s = {0};
    pn_status st = hfp_normalizer(r, &s);
    if (!st)
        st = r->h->has_rules ? hfp_pretokenizer_bpe(r, &s) : hfp_pretokenizer_unigram(r, &s);
    if (!st)
        st = hfp_postprocessor(r);
    return st ? st : hfp_decoder(r, s.byte_level);
}

#undef HFP_MAX_DEPTH
#undef HFP_MAX_ELEMENTS
#undef HFP_META
