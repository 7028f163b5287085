/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_hf_vocab.c - the order in which a folder's files are read, and the tokens they put together.
 *
 * While reading, texts stay where they are (parsed documents, the files themselves) and a hash finds
 * them; at the end they are copied into one block, the documents go, and what is left is as compact
 * as a vocabulary from a GGUF file.
 */
#include "text/pn_hf_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

PN_INTERNAL void pn_hf_warn(pn_hf_read *r, const char *fmt, ...)
{
    char text[256];
    va_list args;
    if (!r->warn)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    r->warn(r->user, text);
}

PN_INTERNAL bool pn_hf_flag(const pn_json_doc *d, uint32_t node, const char *key, bool dflt)
{
    bool v;
    return pn_json_bool(d, pn_json_get(d, node, key), &v) ? v : dflt;
}

PN_INTERNAL pn_bytes pn_hf_text(const pn_json_doc *d, uint32_t node, const char *key)
{
    pn_bytes s;
    return pn_json_str(d, pn_json_get(d, node, key), &s) ? s : (pn_bytes){NULL, 0};
}

PN_INTERNAL bool pn_hf_is(pn_bytes b, const char *text) { return b.len == strlen(text) && memcmp(b.data, text, b.len) == 0; }

PN_INTERNAL int pn_hf_len(pn_bytes b) { return (int)PN_MIN(b.len, (size_t)80); }

/* --- tokens ------------------------------------------------------------------------------- */

static bool hfv_room(pn_hf_read *r, uint32_t n)
{
    pn_hf_vocab *h = r->h;
    uint32_t old = h->n_tokens;
    if (n <= old)
        return true;
    if (!pn_mem_grow(r->mem, PN_ACCT_VOCAB, (void **)&h->tokens, &h->cap_tokens, n, sizeof *h->tokens) ||
        !pn_mem_grow(r->mem, PN_ACCT_VOCAB, (void **)&h->types, &h->cap_types, n, sizeof *h->types) ||
        !pn_mem_grow(r->mem, PN_ACCT_VOCAB, (void **)&h->flags, &h->cap_flags, n, sizeof *h->flags) ||
        !pn_mem_grow(r->mem, PN_ACCT_VOCAB, (void **)&h->scores, &h->cap_scores, n, sizeof *h->scores))
        return false;
    for (uint32_t i = old; i < n; i++) {
        h->tokens[i] = (pn_bytes){"", 0};
        h->types[i] = PN_TOKEN_UNUSED;
        h->flags[i] = 0;
        h->scores[i] = 0;
    }
    h->n_tokens = n;
    return true;
}

PN_INTERNAL int64_t pn_hf_find(const pn_hf_read *r, pn_bytes text)
{
    uint32_t *id = text.len ? pn_map_find(&r->index, text.data, text.len) : NULL;
    return id ? (int64_t)*id : -1;
}

PN_INTERNAL pn_status pn_hf_put(pn_hf_read *r, const char *where, pn_bytes text, int64_t id, int32_t kind, unsigned flags, float score)
{
    pn_hf_vocab *h = r->h;
    if (id < 0 || id >= (int64_t)r->n_rows)
        return pn_fail(r->err, PN_E_FORMAT, "%s: %s: token \"%.*s\" has id %" PRId64 ", but the embedding has %" PRIu32 " rows",
                       r->file, where, pn_hf_len(text), text.data, id, r->n_rows);
    if (text.len > INT32_MAX)
        return pn_fail(r->err, PN_E_FORMAT, "%s: %s: token %" PRId64 " is longer than 2 GiB", r->file, where, id);
    int64_t same = pn_hf_find(r, text);
    if (same >= 0 && same != id)
        return pn_fail(r->err, PN_E_FORMAT, "%s: %s: token \"%.*s\" has id %" PRId64 ", but was %" PRId64 " before", r->file, where,
                       pn_hf_len(text), text.data, id, same);
    if (!hfv_room(r, (uint32_t)id + 1))
        return pn_fail_nomem(r->err, "tokens", (uint64_t)r->n_rows * sizeof *h->tokens);
    pn_bytes had = h->tokens[id];
    bool known = h->flags[id] & (PN_TF_MODEL | PN_TF_ADDED);
    if (known && (had.len != text.len || (text.len && memcmp(had.data, text.data, text.len) != 0)))
        return pn_fail(r->err, PN_E_FORMAT, "%s: %s: token \"%.*s\" has id %" PRId64 ", which is \"%.*s\"", r->file, where,
                       pn_hf_len(text), text.data, id, pn_hf_len(had), had.data);
    if (!known && text.len && !pn_map_put(&r->index, text.data, text.len, (uint32_t)id, NULL))
        return pn_fail_nomem(r->err, "the index of tokens", (uint64_t)h->n_tokens * sizeof(pn_map_slot));
    if (!known) {
        h->tokens[id] = text;
        h->scores[id] = score;
    }
    h->types[id] = kind;
    h->flags[id] |= (uint8_t)flags;
    return PN_OK;
}

PN_INTERNAL pn_status pn_hf_add_merge(pn_hf_read *r, const char *where, uint64_t rank, pn_bytes left, pn_bytes right)
{
    pn_hf_vocab *h = r->h;
    int64_t a = pn_hf_find(r, left), b = pn_hf_find(r, right);
    pn_bytes lost = a < 0 ? left : right;
    if (a < 0 || b < 0)
        return pn_fail(r->err, PN_E_FORMAT, "%s: %s[%" PRIu64 "]: \"%.*s\" is not in the vocabulary", r->file, where, rank,
                       pn_hf_len(lost), lost.data);
    pn_str_clear(&r->scratch);
    pn_str_add(&r->scratch, left.data, left.len);
    pn_str_add(&r->scratch, right.data, right.len);
    if (r->scratch.failed)
        return pn_fail_nomem(r->err, "a merge", left.len + right.len);
    pn_bytes both = {r->scratch.data, r->scratch.len};
    int64_t to = pn_hf_find(r, both);
    if (to < 0)
        return pn_fail(r->err, PN_E_FORMAT, "%s: %s[%" PRIu64 "]: \"%.*s\", which \"%.*s\" and \"%.*s\" become, is not in the vocabulary",
                       r->file, where, rank, pn_hf_len(both), both.data, pn_hf_len(left), left.data, pn_hf_len(right), right.data);
    if (h->n_merges >= INT32_MAX ||
        !pn_mem_grow(r->mem, PN_ACCT_VOCAB, (void **)&h->merges, &h->cap_merges, (size_t)h->n_merges + 1, sizeof *h->merges))
        return pn_fail_nomem(r->err, "merges", ((uint64_t)h->n_merges + 1) * sizeof *h->merges);
    h->merges[h->n_merges++] = (pn_rules_merge){(uint32_t)a, (uint32_t)b, (uint32_t)to};
    return PN_OK;
}

PN_INTERNAL pn_status pn_hf_split_merge(pn_hf_read *r, const char *where, uint64_t rank, pn_bytes both)
{
    const char *space = both.len ? memchr(both.data, ' ', both.len) : NULL;
    size_t at = space ? (size_t)(space - both.data) : 0;
    if (!space || !at || at + 1 == both.len || memchr(space + 1, ' ', both.len - at - 1))
        return pn_fail(r->err, PN_E_FORMAT, "%s: %s[%" PRIu64 "]: \"%.*s\" is not two pieces with one space between them", r->file,
                       where, rank, pn_hf_len(both), both.len ? both.data : "");
    return pn_hf_add_merge(r, where, rank, (pn_bytes){both.data, at}, (pn_bytes){space + 1, both.len - at - 1});
}

PN_INTERNAL pn_status pn_hf_read_vocab(pn_hf_read *r, const pn_json_doc *d, uint32_t node, const char *where)
{
    if (pn_json_type_of(d, node) != PN_JSON_OBJECT)
        return pn_fail(r->err, PN_E_FORMAT, "%s: %s is not an object of texts and ids", r->file, where);
    if (!pn_map_reserve(&r->index, pn_json_count(d, node)))
        return pn_fail_nomem(r->err, "the index of tokens", (uint64_t)pn_json_count(d, node) * sizeof(pn_map_slot));
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        int64_t id;
        pn_bytes text = pn_json_key_of(d, c);
        if (!pn_json_i64(d, c, &id))
            return pn_fail(r->err, PN_E_FORMAT, "%s: %s: the id of \"%.*s\" is not an integer", r->file, where, pn_hf_len(text), text.data);
        pn_status st = pn_hf_put(r, where, text, id, PN_TOKEN_NORMAL, PN_TF_MODEL, 0);
        if (st)
            return st;
    }
    return PN_OK;
}

static pn_status hfv_added_one(pn_hf_read *r, const pn_json_doc *d, uint32_t c, const char *where)
{
    static const struct { const char *key; unsigned flag; } marks[] = {
        {"normalized", PN_TF_NORMALIZED}, {"lstrip", PN_TF_LSTRIP}, {"rstrip", PN_TF_RSTRIP}, {"single_word", PN_TF_SINGLE_WORD},
    };
    int64_t id = -1;
    pn_bytes text, key = pn_json_key_of(d, c);
    if (!pn_json_str(d, pn_json_get(d, c, "content"), &text) || !text.len)
        return pn_fail(r->err, PN_E_FORMAT, "%s: %s: an entry without a \"content\" text", r->file, where);
    bool have = key.data ? pn_parse_i64(key.data, 0, UINT32_MAX, &id) : pn_json_i64(d, pn_json_get(d, c, "id"), &id);
    if (!have)
        return pn_fail(r->err, PN_E_FORMAT, "%s: %s: the id of \"%.*s\" is not an integer", r->file, where, pn_hf_len(text), text.data);
    bool special = pn_hf_flag(d, c, "special", false);
    unsigned flags = PN_TF_ADDED;
    for (size_t i = 0; i < PN_COUNT_OF(marks); i++)     /* absent: normalized unless special, else no */
        if (pn_hf_flag(d, c, marks[i].key, marks[i].flag == PN_TF_NORMALIZED && !special))
            flags |= marks[i].flag;
    return pn_hf_put(r, where, text, id, special ? PN_TOKEN_CONTROL : PN_TOKEN_USER_DEFINED, flags, 0);
}

PN_INTERNAL pn_status pn_hf_read_added(pn_hf_read *r, const pn_json_doc *d, uint32_t node, const char *where)
{
    pn_status st = PN_OK;
    pn_json_type t = pn_json_type_of(d, node);
    if (t == PN_JSON_ABSENT || t == PN_JSON_NULL)
        return PN_OK;
    if (t != PN_JSON_ARRAY && t != PN_JSON_OBJECT)
        return pn_fail(r->err, PN_E_FORMAT, "%s: %s is not a list of tokens", r->file, where);
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE && !st; c = pn_json_next(d, c))
        st = hfv_added_one(r, d, c, where);
    return st;
}

/* --- reading a folder --------------------------------------------------------------------- */

static pn_status hfv_parse(pn_hf_read *r, pn_json_doc *d, pn_bytes file, const char *name)
{
    if (!file.data)
        return PN_OK;
    pn_status st = pn_json_parse(d, r->mem, PN_ACCT_VOCAB, file.data, file.len, NULL, r->err);
    if (st)
        return pn_err_prefix(r->err, st, "%s", name);
    if (pn_json_type_of(d, 0) != PN_JSON_OBJECT)
        return pn_fail(r->err, PN_E_FORMAT, "%s is not an object but a JSON %s", name, pn_json_type_name(pn_json_type_of(d, 0)));
    return PN_OK;
}

static pn_status hfv_read(pn_hf_read *r)
{
    const pn_hf_files *f = r->files;
    const struct { pn_json_doc *doc; pn_bytes file; const char *name; } docs[] = {
        {&r->config, f->tokenizer_config, "tokenizer_config.json"}, {&r->map, f->special_tokens_map, "special_tokens_map.json"},
        {&r->generation, f->generation_config, "generation_config.json"}, {&r->model_config, f->config, "config.json"},
        {&r->chat, f->chat_template_json, "chat_template.json"}, {&r->added, f->added_tokens, "added_tokens.json"},
        {&r->tokenizer, f->tokenizer_json, "tokenizer.json"},
    };
    pn_status st = PN_OK;
    for (size_t i = 0; i < PN_COUNT_OF(docs) && !st; i++)
        st = hfv_parse(r, docs[i].doc, docs[i].file, docs[i].name);
    bool slow = !f->tokenizer_json.data && !f->tokenizer_model.data && f->vocab_json.data && f->merges_txt.data;
    if (!st && slow)
        st = hfv_parse(r, &r->vocab, f->vocab_json, "vocab.json");
    if (st)
        return st;
    if (f->tokenizer_json.data)
        st = pn_hf_read_tokenizer(r);
    else if (f->tokenizer_model.data)
        st = pn_hf_read_spm(r);
    else if (slow)
        st = pn_hf_read_slow(r);
    else
        return pn_fail(r->err, PN_E_FORMAT, "the folder has no vocabulary: neither tokenizer.json nor tokenizer.model nor vocab.json "
                       "with merges.txt");
    return st ? st : pn_hf_read_special(r);
}

/* Put s, if any, at `at` of the block being filled (NULL: measure); it is borrowed from there then. */
static size_t hfv_keep(char *block, size_t at, pn_bytes *s)
{
    if (block && s->len) {
        memcpy(block + at, s->data, s->len);
        s->data = block + at;
    }
    return at + s->len;
}

/* Every text that lies in a document or a file moves into a block of our own. */
static pn_status hfv_settle(pn_hf_read *r)
{
    pn_hf_vocab *h = r->h;
    for (int fill = 0; fill < 2; fill++) {
        size_t at = 0;
        for (uint32_t i = 0; i < h->n_tokens; i++)
            at = hfv_keep(h->text, at, &h->tokens[i]);
        for (uint32_t i = 0; i < h->rules.n_steps; i++) {
            at = hfv_keep(h->text, at, &h->rules.steps[i].from);
            at = hfv_keep(h->text, at, &h->rules.steps[i].to);
        }
        at = hfv_keep(h->text, at, &h->charsmap);
        if (fill)
            break;
        if (at > INT32_MAX)
            return pn_fail(r->err, PN_E_FORMAT, "the texts of the tokens are longer than 2 GiB together");
        h->text = pn_mem_alloc(r->mem, PN_ACCT_VOCAB, at);
        if (!h->text)
            return pn_fail_nomem(r->err, "the texts of the tokens", at);
        h->text_len = at;
    }
    h->rules.merges = h->merges;
    h->rules.n_merges = h->n_merges;
    return PN_OK;
}

PN_INTERNAL pn_status pn_hf_vocab_new(pn_hf_vocab **out, pn_mem *mem, const pn_hf_files *files, uint32_t n_rows,
                                      pn_vocab_warn warn, void *user, pn_err *err)
{
    if (!n_rows || n_rows > INT32_MAX / 2)
        return pn_fail(err, PN_E_INVALID, "a vocabulary for an embedding of %" PRIu32 " rows", n_rows);
    pn_hf_vocab *h = pn_mem_calloc(mem, PN_ACCT_VOCAB, 1, sizeof *h);
    if (!h)
        return pn_fail_nomem(err, "a vocabulary", sizeof *h);
    h->mem = mem;
    h->n_rows = n_rows;
    h->bos = h->eos = h->unk = h->sep = h->pad = h->mask = h->cls = -1;
    h->add_bos = h->add_eos = h->add_space_prefix = h->remove_extra_whitespaces = -1;
    h->rules.unk = -1;
    pn_str_init(&h->chat, mem, PN_ACCT_VOCAB);
    pn_str_init(&h->chat_tools, mem, PN_ACCT_VOCAB);
    pn_str_init(&h->gguf.notes, mem, PN_ACCT_VOCAB);
    pn_str_init(&h->cut_words, mem, PN_ACCT_VOCAB);

    pn_hf_read r = {.h = h, .mem = mem, .files = files, .n_rows = n_rows, .warn = warn, .user = user, .err = err};
    pn_map_init(&r.index, mem, PN_ACCT_VOCAB);
    pn_str_init(&r.scratch, mem, PN_ACCT_VOCAB);
    pn_status st = hfv_read(&r);
    if (!st)
        st = hfv_settle(&r);
    pn_json_doc *docs[] = {&r.tokenizer, &r.config, &r.map, &r.added, &r.vocab, &r.generation, &r.model_config, &r.chat};
    for (size_t i = 0; i < PN_COUNT_OF(docs); i++)
        if (docs[i]->mem)
            pn_json_fini(docs[i]);
    pn_map_fini(&r.index);
    pn_str_fini(&r.scratch);
    if (st) {
        pn_hf_vocab_free(h);
        return st;
    }
    *out = h;
    return PN_OK;
}

/* --- using the result --------------------------------------------------------------------- */

static void hfv_drop(pn_hf_vocab *h, void *p, size_t bytes) { pn_mem_free(h->mem, PN_ACCT_VOCAB, p, bytes); }

PN_INTERNAL void pn_hf_vocab_trim(pn_hf_vocab *h)
{
    pn_hf_gguf_drop(h);
    hfv_drop(h, h->types, h->cap_types * sizeof *h->types);
    hfv_drop(h, h->flags, h->cap_flags * sizeof *h->flags);
    hfv_drop(h, h->scores, h->cap_scores * sizeof *h->scores);
    hfv_drop(h, h->merges, h->cap_merges * sizeof *h->merges);
    hfv_drop(h, h->ends, h->cap_ends * sizeof *h->ends);
    h->types = NULL;
    h->flags = NULL;
    h->scores = NULL;
    h->merges = NULL;
    h->ends = NULL;
    h->cap_types = h->cap_flags = h->cap_scores = h->cap_merges = h->cap_ends = 0;
    h->n_merges = h->n_ends = 0;
}

PN_INTERNAL void pn_hf_vocab_free(pn_hf_vocab *h)
{
    if (!h)
        return;
    pn_cuts_fini(&h->cuts);
    pn_str_fini(&h->cut_words);
    pn_hf_vocab_trim(h);
    hfv_drop(h, h->tokens, h->cap_tokens * sizeof *h->tokens);
    hfv_drop(h, h->text, h->text_len);
    pn_str_fini(&h->chat);
    pn_str_fini(&h->chat_tools);
    hfv_drop(h, h, sizeof *h);
}

PN_INTERNAL uint64_t pn_hf_vocab_bytes(const pn_hf_vocab *h)
{
    return sizeof *h + pn_cuts_bytes(&h->cuts) + h->cut_words.cap + h->cap_tokens * sizeof *h->tokens + h->cap_types * sizeof *h->types + h->cap_flags +
           h->cap_scores * sizeof *h->scores + h->cap_merges * sizeof *h->merges + h->cap_ends * sizeof *h->ends + h->text_len +
           h->chat.cap + h->chat_tools.cap;
}

PN_INTERNAL pn_bytes pn_hf_vocab_template(const pn_hf_vocab *h, bool tools)
{
    const pn_str *s = tools && h->chat_tools.len ? &h->chat_tools : &h->chat;
    return s->len ? (pn_bytes){s->data, s->len} : (pn_bytes){NULL, 0};
}

PN_INTERNAL void pn_hf_vocab_source(const pn_hf_vocab *h, pn_vocab_source *src)
{
    *src = (pn_vocab_source){
        .model = h->model, .pre = h->pre, .tokens = h->tokens, .scores = h->scores, .types = h->types, .n_tokens = h->n_tokens,
        .bos = h->bos, .eos = h->eos, .unk = h->unk, .sep = h->sep, .pad = h->pad, .mask = h->mask, .cls = h->cls,
        .eot = -1, .eom = -1, .fim_pre = -1, .fim_suf = -1, .fim_mid = -1, .fim_pad = -1, .fim_rep = -1, .fim_sep = -1,
        .add_bos = h->add_bos, .add_eos = h->add_eos, .add_sep = -1, .add_space_prefix = h->add_space_prefix,
        .remove_extra_whitespaces = h->remove_extra_whitespaces, .lowercase = -1, .strip_accents = -1,
        .charsmap = (const uint8_t *)h->charsmap.data, .charsmap_len = h->charsmap.len,
        .chat_template = pn_hf_vocab_template(h, false), .n_logits = h->n_rows,
        .flags = h->flags, .ends = h->ends, .n_ends = h->n_ends, .n_prefix = h->n_prefix, .n_suffix = h->n_suffix,
        .rules = h->has_rules ? &h->rules : NULL,
    };
    memcpy(src->prefix, h->prefix, sizeof src->prefix);
    memcpy(src->suffix, h->suffix, sizeof src->suffix);
}
