/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_hf_tokenizer.c - the model of a tokenizer.json: its tokens and merges; and the older pair of files.
 */
#include "text/pn_hf_impl.h"

#include <inttypes.h>

static pn_status hft_merges(pn_hf_read *r, uint32_t node)
{
    const pn_json_doc *d = &r->tokenizer;
    pn_status st = PN_OK;
    uint64_t rank = 0;
    pn_json_type all = PN_JSON_ABSENT;
    if (pn_json_type_of(d, node) != PN_JSON_ARRAY)
        return pn_fail(r->err, PN_E_FORMAT, "%s: model.merges is not a list", r->file);
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE && !st; c = pn_json_next(d, c), rank++) {
        pn_json_type t = pn_json_type_of(d, c);
        pn_bytes left, right;
        uint32_t a = pn_json_first(d, c), b = pn_json_next(d, a);
        all = all == PN_JSON_ABSENT ? t : all;
        if (t != all)
            return pn_fail(r->err, PN_E_FORMAT, "%s: model.merges[%" PRIu64 "]: merges are texts or pairs, not both", r->file, rank);
        if (pn_json_str(d, c, &left))
            st = pn_hf_split_merge(r, "model.merges", rank, left);
        else if (t == PN_JSON_ARRAY && pn_json_count(d, c) == 2 && pn_json_str(d, a, &left) && pn_json_str(d, b, &right))
            st = pn_hf_add_merge(r, "model.merges", rank, left, right);
        else
            return pn_fail(r->err, PN_E_FORMAT, "%s: model.merges[%" PRIu64 "] is not a pair of texts", r->file, rank);
    }
    return st;
}

/* "<0xHH>" is a byte where characters may fall back to bytes. */
static bool hft_is_byte(pn_bytes t)
{
    if (t.len != 6 || memcmp(t.data, "<0x", 3) != 0 || t.data[5] != '>')
        return false;
    for (size_t i = 3; i < 5; i++)
        if (!((t.data[i] >= '0' && t.data[i] <= '9') || (t.data[i] >= 'A' && t.data[i] <= 'F')))
            return false;
    return true;
}

static void hft_mark(pn_hf_read *r, bool bytes, int64_t unk)
{
    pn_hf_vocab *h = r->h;
    for (uint32_t i = 0; i < h->n_tokens && bytes; i++)
        if (h->types[i] == PN_TOKEN_NORMAL && hft_is_byte(h->tokens[i]))
            h->types[i] = PN_TOKEN_BYTE;
    if (unk >= 0)
        h->types[unk] = PN_TOKEN_UNKNOWN;
    h->unk = unk;
}

static pn_status hft_no_affix(pn_hf_read *r, uint32_t model, const char *key)
{
    pn_bytes s = pn_hf_text(&r->tokenizer, model, key);
    if (!s.len)
        return PN_OK;
    return pn_fail(r->err, PN_E_UNSUPPORTED, "%s: model.%s is \"%.*s\"; such pieces of words are not supported", r->file, key,
                   pn_hf_len(s), s.data);
}

static pn_status hft_bpe(pn_hf_read *r, uint32_t model)
{
    const pn_json_doc *d = &r->tokenizer;
    pn_vocab_rules *rules = &r->h->rules;
    pn_status st = hft_no_affix(r, model, "continuing_subword_prefix");
    if (!st)
        st = hft_no_affix(r, model, "end_of_word_suffix");
    if (!st)
        st = pn_hf_read_vocab(r, d, pn_json_get(d, model, "vocab"), "model.vocab");
    if (!st)
        st = hft_merges(r, pn_json_get(d, model, "merges"));
    if (st)
        return st;
    pn_bytes unk = pn_hf_text(d, model, "unk_token");
    int64_t unk_id = pn_hf_find(r, unk);
    if (unk.len && unk_id < 0)
        pn_hf_warn(r, "tokenizer.json: unk_token \"%.*s\" is not in the vocabulary; unknown characters are dropped", pn_hf_len(unk), unk.data);
    rules->byte_fallback = pn_hf_flag(d, model, "byte_fallback", false);
    rules->fuse_unk = pn_hf_flag(d, model, "fuse_unk", false);
    rules->unk = (int32_t)unk_id;
    rules->pretok.flags = pn_hf_flag(d, model, "ignore_merges", false) ? PN_PRETOK_IGNORE_MERGES : 0;
    hft_mark(r, rules->byte_fallback, unk_id);
    r->h->model = (pn_bytes){"gpt2", 4};
    r->h->has_rules = true;
    return PN_OK;
}

static pn_status hft_unigram(pn_hf_read *r, uint32_t model)
{
    const pn_json_doc *d = &r->tokenizer;
    uint32_t list = pn_json_get(d, model, "vocab");
    int64_t id = 0, unk = -1;
    if (pn_json_type_of(d, list) != PN_JSON_ARRAY)
        return pn_fail(r->err, PN_E_FORMAT, "%s: model.vocab of a Unigram model is not a list", r->file);
    if (pn_hf_flag(d, model, "byte_fallback", false))
        return pn_fail(r->err, PN_E_UNSUPPORTED, "%s: model.byte_fallback of a Unigram model is not supported", r->file);
    for (uint32_t c = pn_json_first(d, list); c != PN_JSON_NONE; c = pn_json_next(d, c), id++) {
        pn_bytes text;
        double score;
        uint32_t a = pn_json_first(d, c);
        if (pn_json_count(d, c) != 2 || !pn_json_str(d, a, &text) || !pn_json_f64(d, pn_json_next(d, a), &score))
            return pn_fail(r->err, PN_E_FORMAT, "%s: model.vocab[%" PRId64 "] is not a text and a score", r->file, id);
        pn_status st = pn_hf_put(r, "model.vocab", text, id, PN_TOKEN_NORMAL, PN_TF_MODEL, (float)score);
        if (st)
            return st;
    }
    uint32_t at = pn_json_get(d, model, "unk_id");
    if (pn_json_type_of(d, at) == PN_JSON_NUMBER && (!pn_json_i64(d, at, &unk) || unk < 0 || unk >= id))
        return pn_fail(r->err, PN_E_FORMAT, "%s: model.unk_id is not one of %" PRId64 " tokens", r->file, id);
    hft_mark(r, false, unk);
    r->h->model = (pn_bytes){"t5", 2};
    return PN_OK;
}

static pn_status hft_model(pn_hf_read *r, uint32_t model)
{
    const pn_json_doc *d = &r->tokenizer;
    pn_bytes type = pn_hf_text(d, model, "type");
    if (!type.len && pn_json_type_of(d, pn_json_get(d, model, "merges")) == PN_JSON_ARRAY)
        return hft_bpe(r, model);               /* old files do not say */
    if (!type.len && pn_json_type_of(d, pn_json_get(d, model, "vocab")) == PN_JSON_ARRAY)
        return hft_unigram(r, model);
    if (pn_hf_is(type, "BPE"))
        return hft_bpe(r, model);
    if (pn_hf_is(type, "Unigram"))
        return hft_unigram(r, model);
    return pn_fail(r->err, PN_E_UNSUPPORTED, "%s: model.type \"%.*s\" is not supported; known are BPE and Unigram", r->file,
                   pn_hf_len(type), type.len ? type.data : "");
}

PN_INTERNAL pn_status pn_hf_read_tokenizer(pn_hf_read *r)
{
    const pn_json_doc *d = &r->tokenizer;
    uint32_t model = pn_json_get(d, 0, "model");
    r->file = "tokenizer.json";
    if (pn_json_type_of(d, model) != PN_JSON_OBJECT)
        return pn_fail(r->err, PN_E_FORMAT, "%s: there is no object \"model\"", r->file);
    pn_status st = hft_model(r, model);
    if (!st)
        st = pn_hf_read_added(r, d, pn_json_get(d, 0, "added_tokens"), "added_tokens");
    if (!st && r->h->unk >= 0)
        r->h->types[r->h->unk] = PN_TOKEN_UNKNOWN;          /* whatever the list of added tokens calls it */
    return st ? st : pn_hf_read_pipeline(r);
}

/* --- vocab.json and merges.txt ------------------------------------------------------------ */

/* The pair of files does not say how text is cut: the class does. */
static pn_status hft_slow_rules(pn_hf_read *r)
{
    static const struct { const char *name; const char *pre; bool nfc; } known[] = {
        {"GPT2Tokenizer", "gpt-2", false}, {"GPT2TokenizerFast", "gpt-2", false}, {"CodeGenTokenizer", "gpt-2", false},
        {"CodeGenTokenizerFast", "gpt-2", false}, {"Qwen2Tokenizer", "qwen2", true}, {"Qwen2TokenizerFast", "qwen2", true},
        {"gpt2", "gpt-2", false}, {"qwen2", "qwen2", true}, {"qwen2_moe", "qwen2", true}, {"qwen3", "qwen2", true},
        {"qwen3_moe", "qwen2", true},
    };
    pn_vocab_rules *rules = &r->h->rules;
    pn_bytes name = pn_hf_text(&r->config, 0, "tokenizer_class");
    if (!name.len)
        name = pn_hf_text(&r->model_config, 0, "model_type");
    for (size_t i = 0; i < PN_COUNT_OF(known); i++) {
        if (!pn_hf_is(name, known[i].name))
            continue;
        rules->pretok = *pn_pretok_find(known[i].pre, strlen(known[i].pre));
        rules->pretok.flags = 0;
        rules->steps[0] = (pn_norm_step){.kind = PN_NORM_NFC};
        rules->n_steps = known[i].nfc;
        rules->unk = -1;
        r->h->model = (pn_bytes){"gpt2", 4};
        r->h->has_rules = true;
        return PN_OK;
    }
    return pn_fail(r->err, PN_E_UNSUPPORTED, "vocab.json and merges.txt without tokenizer.json: how \"%.*s\" (tokenizer_class, "
                   "model_type) cuts text is not known here", pn_hf_len(name), name.len ? name.data : "");
}

static pn_status hft_slow_merges(pn_hf_read *r)
{
    pn_bytes m = r->files->merges_txt;
    uint64_t rank = 0;
    r->file = "merges.txt";
    for (size_t at = 0; at < m.len;) {
        const char *end = memchr(m.data + at, '\n', m.len - at);
        size_t len = (end ? (size_t)(end - m.data) : m.len) - at, next = at + len + 1;
        pn_bytes line = {m.data + at, len && m.data[at + len - 1] == '\r' ? len - 1 : len};
        if (line.len && !(at == 0 && line.len > 8 && memcmp(line.data, "#version", 8) == 0)) {
            pn_status st = pn_hf_split_merge(r, "line", rank++, line);
            if (st)
                return st;
        }
        at = next;
    }
    return PN_OK;
}

/* added_tokens.json: texts and ids. */
static pn_status hft_slow_added(pn_hf_read *r)
{
    r->file = "added_tokens.json";
    for (uint32_t c = pn_json_first(&r->added, 0); c != PN_JSON_NONE; c = pn_json_next(&r->added, c)) {
        int64_t id;
        pn_bytes text = pn_json_key_of(&r->added, c);
        if (!pn_json_i64(&r->added, c, &id))
            return pn_fail(r->err, PN_E_FORMAT, "%s: the id of \"%.*s\" is not an integer", r->file, pn_hf_len(text), text.data);
        int64_t had = pn_hf_find(r, text);
        int32_t kind = had >= 0 && r->h->types[had] == PN_TOKEN_CONTROL ? PN_TOKEN_CONTROL : PN_TOKEN_USER_DEFINED;
        pn_status st = pn_hf_put(r, "an added token", text, id, kind, PN_TF_ADDED, 0);
        if (st)
            return st;
    }
    return PN_OK;
}

PN_INTERNAL pn_status pn_hf_read_slow(pn_hf_read *r)
{
    r->file = "vocab.json";
    pn_status st = hft_slow_rules(r);
    if (!st)
        st = pn_hf_read_vocab(r, &r->vocab, 0, "the vocabulary");
    if (!st)
        st = hft_slow_merges(r);
    r->file = "tokenizer_config.json";
    if (!st)
        st = pn_hf_read_added(r, &r->config, pn_json_get(&r->config, 0, "added_tokens_decoder"), "added_tokens_decoder");
    return st ? st : hft_slow_added(r);
}
