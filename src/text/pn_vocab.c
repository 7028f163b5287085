/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_vocab.c - loading, looking up, and the frame of an encoding.
 *
 * Built in an order that lets each step use the one before: kinds, text index, the model's tables,
 * roles (which retype tokens), pieces, the list of special tokens, newline.  Token bytes stay where
 * they are; what is made here is numbers, and the rendered pieces, which differ from the stored text
 * in most vocabularies.
 *
 * Whole-sequence decoding: put the pieces together; where pn_vocab_strips_leading_space() holds the
 * first piece's leading space is the one encoding put there, and goes.
 */
#include "text/pn_vocab_impl.h"

#include <stdio.h>

PN_INTERNAL void *pn_vocab_alloc(pn_vocab *v, uint64_t n, size_t size)
{
    void *p = pn_mem_calloc(v->mem, PN_ACCT_VOCAB, n, size);
    if (p)
        v->bytes += n * size;
    return p;
}

static void vocab_release(pn_vocab *v, void *p, size_t bytes) { pn_mem_free(v->mem, PN_ACCT_VOCAB, p, bytes); }

PN_INTERNAL void pn_vocab_free(pn_vocab *v)
{
    if (!v)
        return;
    size_t n = v->n_tokens;
    vocab_release(v, v->attr, n);
    vocab_release(v, v->pieces, v->pieces_len);
    vocab_release(v, v->piece_off, (n + 1) * sizeof *v->piece_off);
    vocab_release(v, v->index, v->n_index * sizeof *v->index);
    vocab_release(v, v->prio, n * sizeof *v->prio);
    vocab_release(v, v->scores, n * sizeof *v->scores);
    vocab_release(v, v->pairs, v->n_pairs * sizeof *v->pairs);
    vocab_release(v, v->flags, n);
    vocab_release(v, v->rules, sizeof *v->rules);
    vocab_release(v, v->norm_text, v->norm_len);
    vocab_release(v, v->norm_off, (n + 1) * sizeof *v->norm_off);
    pn_cuts_fini(&v->cuts);
    pn_lex_fini(&v->special, v->mem);
    pn_lex_fini(&v->special_norm, v->mem);
    pn_lex_fini(&v->lex, v->mem);
    vocab_release(v, v, sizeof *v);
}

/* --- loading ------------------------------------------------------------------------------ */

static bool vocab_is(pn_bytes b, const char *text) { return b.len == strlen(text) && memcmp(b.data, text, b.len) == 0; }

static pn_status vocab_model(pn_vocab *v, pn_bytes model, pn_err *err)
{
    static const struct { const char *name; pn_vocab_model model; } known[] = {
        {"llama", PN_VOCAB_SPM}, {"gpt2", PN_VOCAB_BPE}, {"gemma4", PN_VOCAB_BPE}, {"whitespace", PN_VOCAB_BPE},
        {"bert", PN_VOCAB_WPM}, {"t5", PN_VOCAB_UGM}, {"rwkv", PN_VOCAB_RWKV}, {"none", PN_VOCAB_NONE},
        {"no_vocab", PN_VOCAB_NONE},
    };
    for (size_t i = 0; i < PN_COUNT_OF(known); i++)
        if (vocab_is(model, known[i].name)) {
            v->model = known[i].model;
            return PN_OK;
        }
    return pn_fail(err, PN_E_UNSUPPORTED, "unknown vocabulary type \"%.*s\" (tokenizer.ggml.model); known are llama, "
                   "gpt2, gemma4, whitespace, bert, t5, rwkv", (int)PN_MIN(model.len, (size_t)64), model.len ? model.data : "");
}

static pn_status vocab_kinds(pn_vocab *v, const pn_vocab_source *src, pn_err *err)
{
    v->attr = pn_vocab_alloc(v, v->n_tokens, 1);
    if (!v->attr)
        return pn_fail_nomem(err, "token kinds", v->n_tokens);
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        int32_t t = src->types ? src->types[i] : PN_TOKEN_NORMAL;
        v->attr[i] = (uint8_t)(t >= PN_TOKEN_UNDEFINED && t <= PN_TOKEN_BYTE ? t : PN_TOKEN_UNDEFINED);
        v->max_len = PN_MAX(v->max_len, v->tokens[i].len);
        if (v->tokens[i].len > INT32_MAX)
            return pn_fail(err, PN_E_FORMAT, "token %lu is longer than 2 GiB", (unsigned long)i);
    }
    return PN_OK;
}

/* Where text belongs in the index: its slot, or the free one it would take. */
static uint32_t vocab_probe(const pn_vocab *v, const char *s, size_t n, uint32_t *tag)
{
    uint64_t h = pn_hash(s, n, v->seed);
    *tag = (uint32_t)h;
    uint32_t i = (uint32_t)(((h >> 32) * v->n_index) >> 32);
    for (; v->index[i]; i = i + 1 == v->n_index ? 0 : i + 1) {
        if ((uint32_t)(v->index[i] >> 32) != *tag)
            continue;
        pn_bytes t = v->tokens[(uint32_t)v->index[i] - 1];
        if (t.len == n && memcmp(t.data, s, n) == 0)
            break;
    }
    return i;
}

static pn_status vocab_index(pn_vocab *v, pn_err *err)
{
    uint64_t slots = (uint64_t)v->n_tokens * 4 / 3 + 8;
    v->seed = (uint64_t)(uintptr_t)v * 0x9e3779b97f4a7c15u;         /* order is never observable */
    v->index = pn_vocab_alloc(v, slots, sizeof *v->index);
    if (!v->index)
        return pn_fail_nomem(err, "the token index", slots * sizeof *v->index);
    v->n_index = (uint32_t)slots;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        uint32_t tag;
        if (!v->tokens[i].len)
            continue;                           /* an empty text names nothing */
        uint32_t at = vocab_probe(v, v->tokens[i].data, v->tokens[i].len, &tag);
        v->index[at] = (uint64_t)tag << 32 | (i + 1);               /* the last of equal texts */
    }
    return PN_OK;
}

/* No token has U+2581 behind another character: what stands before a word cannot join with it.  (An
 * unknown U+2581 could be one with the unknown character before it.) */
static bool vocab_words_apart(const pn_vocab *v)
{
    if (v->rules && !pn_vocab_of_model(v, pn_vocab_find(v, "\xE2\x96\x81", 3)))
        return false;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        const char *s = v->tokens[i].data;
        size_t n = v->tokens[i].len;
        if (n > 3 && pn_vocab_of_model(v, (pn_token)i) && pn_vocab_word(v, s, n) < n)
            return false;
    }
    return true;
}

PN_INTERNAL size_t pn_vocab_word(const pn_vocab *v, const char *s, size_t n)
{
    if (!v->words_apart)
        return n;
    bool other = false;                 /* seen something that is not U+2581 */
    for (size_t i = 0; i < n;) {
        const char *p = memchr(s + i, 0xE2, n - i);
        size_t at = p ? (size_t)(p - s) : n;
        other = other || at > i;
        if (at == n || n - at < 3 || memcmp(p, "\xE2\x96\x81", 3) != 0) {
            other = true;
            i = at + 1;
            continue;
        }
        if (other)
            return at;
        i = at + 3;
    }
    return n;
}

static int vocab_hex(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; }

/* "<0xHH>" to its byte, -1: not that. */
static int vocab_byte_text(pn_bytes t)
{
    if (t.len != 6 || memcmp(t.data, "<0x", 3) != 0 || t.data[5] != '>' || vocab_hex(t.data[3]) < 0 || vocab_hex(t.data[4]) < 0)
        return -1;
    return vocab_hex(t.data[3]) * 16 + vocab_hex(t.data[4]);
}

static void vocab_byte_tokens(pn_vocab *v)
{
    for (unsigned c = 0; c < 256; c++) {
        static const char digits[] = "0123456789ABCDEF";
        char text[7] = {'<', '0', 'x', digits[c >> 4], digits[c & 15], '>', 0}, one = (char)c;
        v->byte_tok[c] = pn_vocab_find(v, text, 6);
        if (v->byte_tok[c] < 0 && v->model == PN_VOCAB_SPM)
            v->byte_tok[c] = pn_vocab_find(v, &one, 1);
    }
}

/* What token i renders as, to dst (NULL: measure).  Never longer than its stored text. */
static size_t vocab_render(const pn_vocab *v, uint32_t i, char *dst)
{
    pn_bytes t = v->tokens[i];
    unsigned kind = v->attr[i] & PN_TA_KIND;
    bool alphabet = v->model == PN_VOCAB_BPE && !(v->pretok_flags & PN_PRETOK_RAW);
    int byte = kind == PN_TOKEN_BYTE ? vocab_byte_text(t) : -1;
    size_t n = 0;
    if (kind == PN_TOKEN_UNUSED || kind == PN_TOKEN_UNDEFINED)
        return 0;
    if (byte >= 0) {
        if (dst)
            dst[0] = (char)byte;
        return 1;
    }
    if (kind != PN_TOKEN_NORMAL) {
        if (dst && t.len)
            memcpy(dst, t.data, t.len);
        return t.len;
    }
    if (v->model == PN_VOCAB_RWKV)
        return pn_rwkv_unescape(t, dst);
    for (size_t at = 0, len; at < t.len; at += len) {
        uint32_t cp;
        len = pn_utf8_decode(t.data + at, t.len - at, &cp);
        bool space = !alphabet && cp == 0x2581;
        int b = space ? ' ' : alphabet && !(cp == 0xFFFD && len == 1) ? pn_bpe_cp_to_byte(cp) : -1;
        if (dst && b >= 0)
            dst[n] = (char)b;
        else if (dst)
            memcpy(dst + n, t.data + at, len);
        n += b >= 0 ? 1 : len;
    }
    return n;
}

static pn_status vocab_pieces(pn_vocab *v, pn_err *err)
{
    v->piece_off = pn_vocab_alloc(v, (uint64_t)v->n_tokens + 1, sizeof *v->piece_off);
    if (!v->piece_off)
        return pn_fail_nomem(err, "token pieces", ((uint64_t)v->n_tokens + 1) * 4);
    uint64_t total = 0;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        total += vocab_render(v, i, NULL);
        if (total > INT32_MAX)
            return pn_fail(err, PN_E_UNSUPPORTED, "the texts of the tokens are longer than 2 GiB together");
        v->piece_off[i + 1] = (uint32_t)total;
    }
    v->pieces = pn_vocab_alloc(v, total, 1);
    if (!v->pieces)
        return pn_fail_nomem(err, "token pieces", total);
    v->pieces_len = (size_t)total;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        vocab_render(v, i, v->pieces + v->piece_off[i]);
    return PN_OK;
}

static bool vocab_flag(int given, bool dflt) { return given < 0 ? dflt : given != 0; }

static void vocab_flags(pn_vocab *v, const pn_vocab_source *src)
{
    bool spm = v->model == PN_VOCAB_SPM, ugm = v->model == PN_VOCAB_UGM;
    v->add_bos = vocab_flag(src->add_bos, spm || v->model == PN_VOCAB_WPM || (v->pretok_flags & PN_PRETOK_ADD_BOS));
    v->add_bos = v->add_bos || (v->pretok_flags & PN_PRETOK_FORCE_BOS);
    v->add_eos = vocab_flag(src->add_eos, ugm);
    v->add_space_prefix = (spm || ugm) && vocab_flag(src->add_space_prefix, spm);
    v->remove_extra_ws = ugm && vocab_flag(src->remove_extra_whitespaces, false);
    v->lowercase = vocab_flag(src->lowercase, true);
    v->strip_accents = vocab_flag(src->strip_accents, v->lowercase);
    if (v->model == PN_VOCAB_RWKV)
        v->add_bos = v->add_eos = false;
}

static pn_status vocab_tables(pn_vocab *v, const pn_vocab_source *src, pn_vocab_warn warn, void *user, pn_err *err)
{
    switch (v->model) {
    case PN_VOCAB_SPM: return pn_spm_build(v, src, err);
    case PN_VOCAB_BPE: return pn_bpe_build(v, src, warn, user, err);
    default: return PN_OK;                      /* the others need the roles first */
    }
}

static pn_status vocab_lexicon(pn_vocab *v, const pn_vocab_source *src, pn_err *err)
{
    switch (v->model) {
    case PN_VOCAB_WPM: return pn_wordpiece_build(v, err);
    case PN_VOCAB_UGM: return pn_unigram_build(v, src, err);
    case PN_VOCAB_RWKV: return pn_rwkv_build(v, err);
    default: return PN_OK;
    }
}

/* The token of a line's end, for samplers that treat it apart. */
static pn_status vocab_newline(pn_vocab *v, pn_err *err)
{
    pn_token *out = NULL;
    size_t n = 0, cap = 0;
    v->newline = v->pad;
    if (v->model == PN_VOCAB_WPM || v->model == PN_VOCAB_NONE)
        return PN_OK;
    if (v->rules && (v->pretok_flags & PN_PRETOK_RAW))         /* encoding it may put a space in front */
        v->newline = pn_vocab_find(v, "\n", 1);
    if (v->model == PN_VOCAB_SPM || (v->rules && (v->pretok_flags & PN_PRETOK_RAW))) {
        v->newline = v->rules && v->newline >= 0 ? v->newline : v->byte_tok['\n'];
        return PN_OK;
    }
    pn_status st = pn_vocab_encode(v, v->mem, "\n", 1, 0, NULL, 0, &out, &n, &cap, err);
    if (!st && n)
        v->newline = out[0];
    if (out)
        pn_mem_free(v->mem, PN_ACCT_MISC, out, cap * sizeof *out);
    return st;
}

/* What a Hugging Face folder says beyond GGUF's keys. */
static pn_status vocab_folder(pn_vocab *v, const pn_vocab_source *src, pn_err *err)
{
    if (src->n_prefix > PN_VOCAB_MAX_AROUND || src->n_suffix > PN_VOCAB_MAX_AROUND ||
        (src->rules && (!src->flags || v->model != PN_VOCAB_BPE || src->rules->n_steps > PN_RULES_MAX_STEPS)))
        return pn_fail(err, PN_E_INVALID, "a vocabulary whose rules do not fit its kind");
    memcpy(v->prefix, src->prefix, sizeof v->prefix);
    memcpy(v->suffix, src->suffix, sizeof v->suffix);
    v->n_prefix = src->n_prefix;
    v->n_suffix = src->n_suffix;
    for (uint32_t i = 0; i < v->n_prefix + v->n_suffix; i++) {
        pn_token t = i < v->n_prefix ? v->prefix[i] : v->suffix[i - v->n_prefix];
        if (t < 0 || (uint32_t)t >= v->n_tokens)
            return pn_fail(err, PN_E_FORMAT, "token %ld around every text is not one of %lu", (long)t, (unsigned long)v->n_tokens);
    }
    if (src->flags && !(v->flags = pn_vocab_alloc(v, v->n_tokens, 1)))
        return pn_fail_nomem(err, "token flags", v->n_tokens);
    if (src->flags && v->n_tokens)
        memcpy(v->flags, src->flags, v->n_tokens);
    if (src->rules && !(v->rules = pn_vocab_alloc(v, 1, sizeof *v->rules)))
        return pn_fail_nomem(err, "the rules of a vocabulary", sizeof *v->rules);
    if (src->rules)
        *v->rules = *src->rules;
    return PN_OK;
}

static pn_status vocab_build(pn_vocab *v, const pn_vocab_source *src, pn_vocab_warn warn, void *user, pn_err *err)
{
    pn_status st = vocab_model(v, src->model, err);
    if (!st)
        st = vocab_folder(v, src, err);
    if (!st)
        st = vocab_kinds(v, src, err);
    if (!st)
        st = vocab_index(v, err);
    if (!st)
        st = vocab_tables(v, src, warn, user, err);
    if (st)
        return st;
    vocab_byte_tokens(v);
    vocab_flags(v, src);
    v->words_apart = true;              /* for the question itself */
    v->words_apart = vocab_words_apart(v);
    pn_vocab_roles(v, src, warn, user);
    st = vocab_pieces(v, err);
    if (!st)
        st = vocab_lexicon(v, src, err);
    if (!st && ((v->rules && !pn_rules_build(v)) || !pn_special_build(v)))
        st = pn_fail_nomem(err, "the list of special tokens", (uint64_t)v->n_tokens * 4);
    return st ? st : vocab_newline(v, err);
}

PN_INTERNAL pn_status pn_vocab_new(pn_vocab **out, pn_mem *mem, const pn_vocab_source *src,
                                   pn_vocab_warn warn, void *user, pn_err *err)
{
    if (src->n_tokens > INT32_MAX / 2 || (src->n_tokens && !src->tokens) || (src->n_merges && !src->merges))
        return pn_fail(err, PN_E_INVALID, "a vocabulary of %lu tokens and %lu merges without their texts",
                       (unsigned long)src->n_tokens, (unsigned long)src->n_merges);
    if (src->n_logits && (src->n_logits < src->n_tokens || src->n_logits > INT32_MAX))
        return pn_fail(err, PN_E_FORMAT, "%lu tokens, but the output has only %lu rows", (unsigned long)src->n_tokens,
                       (unsigned long)src->n_logits);
    pn_vocab *v = pn_mem_calloc(mem, PN_ACCT_VOCAB, 1, sizeof *v);
    if (!v)
        return pn_fail_nomem(err, "a vocabulary", sizeof *v);
    v->mem = mem;
    v->bytes = sizeof *v;
    v->tokens = src->tokens;
    v->n_tokens = src->n_tokens;
    v->n_logits = src->n_logits ? src->n_logits : src->n_tokens;
    v->charsmap = src->charsmap;
    v->charsmap_len = src->charsmap ? src->charsmap_len : 0;
    pn_status st = vocab_build(v, src, warn, user, err);
    if (st) {
        pn_vocab_free(v);
        return st;
    }
    *out = v;
    return PN_OK;
}

/* --- encoding ----------------------------------------------------------------------------- */

PN_INTERNAL bool pn_enc_push(pn_enc *e, pn_token t)
{
    if (!pn_mem_grow(e->mem, PN_ACCT_MISC, (void **)e->out, e->cap, *e->n + 1, sizeof **e->out))
        return false;
    (*e->out)[(*e->n)++] = t;
    return true;
}

PN_INTERNAL void pn_enc_escape(pn_str *buf, const char *s, size_t n)
{
    while (n) {
        const char *space = memchr(s, ' ', n);
        size_t plain = space ? (size_t)(space - s) : n;
        pn_str_add(buf, s, plain);
        s += plain;
        n -= plain;
        if (n) {
            pn_str_add(buf, "\xE2\x96\x81", 3);
            s++;
            n--;
        }
    }
}

static bool vocab_encode_all(pn_enc *e, const char *text, size_t len, unsigned flags, const pn_span *spans, size_t n_spans)
{
    const pn_vocab *v = e->v;
    bool wpm = v->model == PN_VOCAB_WPM, ends = flags & PN_ENC_BOS;
    pn_token first = wpm ? v->cls : v->add_bos ? v->bos : -1, last = wpm ? v->sep : v->add_eos ? v->eos : -1;
    if (ends && v->n_prefix)
        first = -1;
    if (ends && v->n_suffix)
        last = -1;
    for (uint32_t i = 0; ends && i < v->n_prefix; i++)
        if (!pn_enc_push(e, v->prefix[i]))
            return false;
    if (ends && first >= 0 && !pn_enc_push(e, first))
        return false;
    if (!pn_special_encode(e, text, len, flags, spans, n_spans))
        return false;
    for (uint32_t i = 0; ends && i < v->n_suffix; i++)
        if (!pn_enc_push(e, v->suffix[i]))
            return false;
    return !ends || last < 0 || pn_enc_push(e, last);
}

PN_INTERNAL pn_status pn_vocab_encode(const pn_vocab *v, pn_mem *mem, const char *text, size_t len, unsigned flags,
                                      const pn_span *spans, size_t n_spans,
                                      pn_token **out, size_t *n, size_t *cap, pn_err *err)
{
    if (v->model == PN_VOCAB_NONE)
        return pn_fail(err, PN_E_UNSUPPORTED, "this model has no vocabulary; give token ids");
    if (len > INT32_MAX / 3)                    /* positions are 32 bits, a space may become three bytes */
        return pn_fail(err, PN_E_INVALID, "a text of %llu bytes is too long to tokenize", (unsigned long long)len);
    pn_enc e = {.v = v, .mem = mem, .out = out, .n = n, .cap = cap, .guard = spans != NULL};
    size_t before = *n;
    pn_merge_init(&e.merge, mem);
    pn_str_init(&e.buf, mem, PN_ACCT_MISC);
    pn_str_init(&e.buf2, mem, PN_ACCT_MISC);
    pn_norm_init(&e.norm, mem);
    bool ok = vocab_encode_all(&e, text, len, flags, spans, n_spans);
    pn_merge_fini(&e.merge);
    pn_str_fini(&e.buf);
    pn_str_fini(&e.buf2);
    pn_norm_fini(&e.norm);
    if (e.best)
        pn_mem_free(mem, PN_ACCT_MISC, e.best, e.n_best);
    if (ok)
        return PN_OK;
    *n = before;
    return pn_fail_nomem(err, "tokenizing a text", len);
}

/* --- looking up --------------------------------------------------------------------------- */

static bool vocab_has(const pn_vocab *v, pn_token t) { return t >= 0 && (uint32_t)t < v->n_tokens; }

PN_INTERNAL pn_bytes pn_vocab_piece(const pn_vocab *v, pn_token t, bool special, char tmp[8])
{
    (void)tmp;                                  /* byte tokens were rendered at load like all others */
    if (!vocab_has(v, t))
        return (pn_bytes){"", 0};
    unsigned kind = v->attr[t] & PN_TA_KIND;
    if (!special && (kind == PN_TOKEN_CONTROL || kind == PN_TOKEN_UNKNOWN))
        return (pn_bytes){"", 0};
    return (pn_bytes){v->pieces + v->piece_off[t], v->piece_off[t + 1] - v->piece_off[t]};
}

PN_INTERNAL pn_token pn_vocab_find(const pn_vocab *v, const char *text, size_t len)
{
    uint32_t tag;
    if (!len || len > v->max_len)
        return -1;
    uint64_t slot = v->index[vocab_probe(v, text, len, &tag)];
    return slot ? (pn_token)((uint32_t)slot - 1) : -1;
}

PN_INTERNAL pn_token pn_vocab_special(const pn_vocab *v, pn_special which)
{
    switch (which) {
    case PN_SPECIAL_BOS: return v->bos;
    case PN_SPECIAL_EOS: return v->eos;
    case PN_SPECIAL_EOT: return v->eot;
    case PN_SPECIAL_UNK: return v->unk;
    case PN_SPECIAL_PAD: return v->pad;
    case PN_SPECIAL_SEP: return v->sep;
    case PN_SPECIAL_MASK: return v->mask;
    case PN_SPECIAL_NEWLINE: return v->newline;
    }
    return -1;
}

PN_INTERNAL bool pn_vocab_strips_leading_space(const pn_vocab *v)
{
    return v->rules ? v->rules->strip_space : v->add_space_prefix || v->model == PN_VOCAB_WPM;
}

PN_INTERNAL uint32_t pn_vocab_n_tokens(const pn_vocab *v) { return v->n_tokens; }
PN_INTERNAL uint32_t pn_vocab_n_logits(const pn_vocab *v) { return v->n_logits; }
PN_INTERNAL bool pn_vocab_add_bos(const pn_vocab *v) { return v->add_bos; }
PN_INTERNAL bool pn_vocab_add_eos(const pn_vocab *v) { return v->add_eos; }
PN_INTERNAL uint64_t pn_vocab_bytes(const pn_vocab *v) { return v->bytes; }

PN_INTERNAL pn_token_kind pn_vocab_kind(const pn_vocab *v, pn_token t)
{
    return vocab_has(v, t) ? (pn_token_kind)(v->attr[t] & PN_TA_KIND) : PN_TOKEN_UNDEFINED;
}

PN_INTERNAL pn_bytes pn_vocab_text(const pn_vocab *v, pn_token t)
{
    return vocab_has(v, t) ? v->tokens[t] : (pn_bytes){"", 0};
}

PN_INTERNAL bool pn_vocab_ends(const pn_vocab *v, pn_token t) { return vocab_has(v, t) && (v->attr[t] & PN_TA_END); }
