/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_bpe.c - byte-pair encoding by a table of merges (gpt2 and its many relatives).
 *
 * Merges come as text, "left right".  They are turned into one hash table (left, right) -> (rank,
 * result) over symbol numbers, so encoding never touches strings.  A symbol number below n_tokens is
 * a token.  Merges may also name pieces that are no tokens; those get numbers from n_tokens up and
 * dissolve into bytes at the end if they are still there, as the string form of the algorithm has it.
 *
 * Most vocabularies write bytes in GPT-2's alphabet: printable bytes stand for themselves, the other
 * 68 are U+0100 onwards.  Text is never converted: byte_sym[] says which symbol a byte is.
 */
#include "text/pn_vocab_impl.h"

PN_INTERNAL uint32_t pn_bpe_byte_to_cp(uint8_t b)
{
    if (b <= 0x20)
        return 0x100u + b;
    if (b >= 0x7F && b <= 0xA0)
        return 0x121u + (b - 0x7Fu);
    return b == 0xAD ? 0x143 : b;
}

PN_INTERNAL int pn_bpe_cp_to_byte(uint32_t cp)
{
    if (cp < 0x100)
        return pn_bpe_byte_to_cp((uint8_t)cp) == cp ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)(cp - 0x100);
    if (cp <= 0x142)
        return (int)(cp - 0x121 + 0x7F);
    return cp == 0x143 ? 0xAD : -1;
}

/* --- building ----------------------------------------------------------------------------- */

typedef struct bpe_build {
    pn_vocab *v;
    pn_map extra;           /* pieces that are no tokens -> symbol number */
    char **blocks;          /* their text, where nobody else holds it */
    size_t n_blocks, cap_blocks, block_used, block_size;
    pn_str joint;
} bpe_build;

#define BPE_BLOCK ((size_t)1 << 16)

/* A copy of s[0..n) that lives as long as the build; NULL: out of memory. */
static const char *bpe_keep(bpe_build *b, const char *s, size_t n)
{
    if (!b->n_blocks || b->block_size - b->block_used < n) {
        size_t size = PN_MAX(n, BPE_BLOCK);
        if (!pn_mem_grow(b->v->mem, PN_ACCT_VOCAB, (void **)&b->blocks, &b->cap_blocks, b->n_blocks + 1, sizeof *b->blocks))
            return NULL;
        char *p = pn_mem_alloc(b->v->mem, PN_ACCT_VOCAB, size + sizeof size);
        if (!p)
            return NULL;
        memcpy(p, &size, sizeof size);
        b->blocks[b->n_blocks++] = p;
        b->block_size = size;
        b->block_used = 0;
    }
    char *at = b->blocks[b->n_blocks - 1] + sizeof(size_t) + b->block_used;
    memcpy(at, s, n);
    b->block_used += n;
    return at;
}

static void bpe_build_fini(bpe_build *b)
{
    for (size_t i = 0; i < b->n_blocks; i++) {
        size_t size;
        memcpy(&size, b->blocks[i], sizeof size);
        pn_mem_free(b->v->mem, PN_ACCT_VOCAB, b->blocks[i], size + sizeof size);
    }
    if (b->blocks)
        pn_mem_free(b->v->mem, PN_ACCT_VOCAB, b->blocks, b->cap_blocks * sizeof *b->blocks);
    pn_map_fini(&b->extra);
    pn_str_fini(&b->joint);
}

/* The symbol of a piece of text, made when there is none.  `keep`: the text must be copied.  -1: out
 * of memory. */
static int32_t bpe_symbol(bpe_build *b, const char *s, size_t n, bool keep)
{
    pn_token t = pn_vocab_find(b->v, s, n);
    if (t >= 0)
        return t;
    uint32_t *known = pn_map_find(&b->extra, s, n);
    if (known)
        return (int32_t)*known;
    const char *text = keep ? bpe_keep(b, s, n) : s;
    uint64_t id = (uint64_t)b->v->n_tokens + b->extra.count;
    if (!text || id > INT32_MAX || !pn_map_put(&b->extra, text, n, (uint32_t)id, NULL))
        return -1;
    return (int32_t)id;
}

static inline uint32_t bpe_slot(const pn_vocab *v, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u ^ v->seed;
    h = (h ^ h >> 32) * 0xd1b54a32d192ed03u;
    return (uint32_t)(((h >> 32) * v->n_pairs) >> 32);
}

static void bpe_put(pn_vocab *v, uint32_t left, uint32_t right, uint32_t rank, uint32_t to)
{
    uint32_t i = bpe_slot(v, left, right);
    for (; v->pairs[i].rank != UINT32_MAX; i = i + 1 == v->n_pairs ? 0 : i + 1)
        if (v->pairs[i].left == left && v->pairs[i].right == right) {
            if (!v->rules)
                return;                         /* the first of equal pairs wins */
            break;                              /* the last, in a tokenizer.json */
        }
    v->pairs[i] = (pn_bpe_pair){left, right, rank, to};
}

static bool bpe_add_merge_ids(pn_vocab *v, pn_rules_merge m, uint32_t rank)
{
    if (m.left >= v->n_tokens || m.right >= v->n_tokens || m.to >= v->n_tokens)
        return false;
    bpe_put(v, m.left, m.right, rank, m.to);
    return true;
}

/* One merge.  False: out of memory; *bad counts entries that are no pair. */
static bool bpe_add_merge(bpe_build *b, pn_bytes m, uint32_t rank, uint32_t *bad)
{
    const char *space = m.len > 2 ? memchr(m.data + 1, ' ', m.len - 1) : NULL;
    size_t at = space ? (size_t)(space - m.data) : 0;
    if (!space || at + 1 == m.len) {
        ++*bad;
        return true;
    }
    int32_t left = bpe_symbol(b, m.data, at, false);
    int32_t right = bpe_symbol(b, m.data + at + 1, m.len - at - 1, false);
    pn_str_clear(&b->joint);
    pn_str_add(&b->joint, m.data, at);
    pn_str_add(&b->joint, m.data + at + 1, m.len - at - 1);
    if (left < 0 || right < 0 || b->joint.failed)
        return false;
    int32_t to = bpe_symbol(b, b->joint.data, b->joint.len, true);
    if (to < 0)
        return false;
    bpe_put(b->v, (uint32_t)left, (uint32_t)right, rank, (uint32_t)to);
    return true;
}

static void bpe_byte_symbols(bpe_build *b)
{
    for (unsigned c = 0; c < 256; c++) {
        char utf8[4];
        size_t n = pn_utf8_encode(pn_bpe_byte_to_cp((uint8_t)c), utf8);
        pn_token t = pn_vocab_find(b->v, utf8, n);
        uint32_t *extra = t < 0 ? pn_map_find(&b->extra, utf8, n) : NULL;
        t = pn_vocab_of_model(b->v, t) ? t : -1;
        b->v->byte_sym[c] = extra ? (int32_t)*extra : t;
    }
}

static pn_status bpe_find_pretok(pn_vocab *v, const pn_vocab_source *src, pn_vocab_warn warn, void *user, pn_err *err)
{
    pn_bytes pre = src->pre;
    if (v->rules) {
        v->pretok = &v->rules->pretok;
        v->pretok_flags = v->pretok->flags;
        return PN_OK;
    }
    if (pre.len == sizeof PN_CUTS_NAME - 1 && memcmp(pre.data, PN_CUTS_NAME, pre.len) == 0) {
        v->pretok = &v->own_pretok;
        v->pretok_flags = v->own_pretok.flags = src->ignore_merges ? PN_PRETOK_IGNORE_MERGES : 0;
        pn_status st = pn_cuts_read(&v->cuts, v->mem, &v->own_pretok, src->cuts, src->n_cuts, err);
        v->bytes += pn_cuts_bytes(&v->cuts);
        return st;
    }
    if (src->model.len == 6 && memcmp(src->model.data, "gemma4", 6) == 0)
        pre = (pn_bytes){"gemma4", 6};
    else if (src->model.len == 10 && memcmp(src->model.data, "whitespace", 10) == 0)
        pre = (pn_bytes){"whitespace", 10};
    if (!pre.len) {
        if (warn)
            warn(user, "the file names no pre-tokenizer (tokenizer.ggml.pre); using \"default\", text may be cut "
                       "differently from training");
        pre = (pn_bytes){"default", 7};
    }
    v->pretok = pn_pretok_find(pre.data, pre.len);
    if (!v->pretok)
        return pn_fail(err, PN_E_UNSUPPORTED, "unknown pre-tokenizer \"%.*s\" (tokenizer.ggml.pre)",
                       (int)PN_MIN(pre.len, (size_t)64), pre.data);
    v->pretok_flags = pn_pretok_flags(v->pretok);
    return PN_OK;
}

PN_INTERNAL pn_status pn_bpe_build(pn_vocab *v, const pn_vocab_source *src, pn_vocab_warn warn, void *user, pn_err *err)
{
    pn_status st = bpe_find_pretok(v, src, warn, user, err);
    if (st)
        return st;
    uint32_t n_merges = v->rules ? v->rules->n_merges : src->n_merges;
    uint64_t slots = (uint64_t)n_merges * 4 / 3 + 8;
    if (slots > UINT32_MAX)
        return pn_fail(err, PN_E_FORMAT, "%lu merges: more than this build can index", (unsigned long)n_merges);
    v->pairs = pn_vocab_alloc(v, slots, sizeof *v->pairs);
    if (!v->pairs)
        return pn_fail_nomem(err, "the merge table", slots * sizeof *v->pairs);
    v->n_pairs = (uint32_t)slots;
    for (uint32_t i = 0; i < v->n_pairs; i++)
        v->pairs[i].rank = UINT32_MAX;
    if (!n_merges && warn)
        warn(user, "the vocabulary has no merges (tokenizer.ggml.merges); text falls apart into single characters");

    bpe_build b = {.v = v};
    pn_map_init(&b.extra, v->mem, PN_ACCT_VOCAB);
    pn_str_init(&b.joint, v->mem, PN_ACCT_VOCAB);
    uint32_t bad = 0;
    for (uint32_t i = 0; v->rules && i < n_merges && !st; i++)
        if (!bpe_add_merge_ids(v, v->rules->merges[i], i))
            st = pn_fail(err, PN_E_INVALID, "merge %lu names a token out of range", (unsigned long)i);
    for (uint32_t i = 0; !v->rules && i < n_merges && !st; i++)
        if (!bpe_add_merge(&b, src->merges[i], i, &bad))
            st = pn_fail_nomem(err, "merge pieces that are no tokens", b.joint.len);
    if (!st)
        bpe_byte_symbols(&b);
    bpe_build_fini(&b);
    if (v->rules)
        v->rules->merges = NULL;                /* the caller's, and only now */
    if (!st && bad && warn)
        warn(user, "some merges are not two pieces separated by a space; they are ignored");
    return st;
}

/* --- encoding ----------------------------------------------------------------------------- */

static bool bpe_lookup(const void *ctx, const pn_sym *a, const pn_sym *b, uint32_t *prio, int32_t *id)
{
    const pn_enc *e = ctx;
    const pn_vocab *v = e->v;
    if (a->id < 0 || b->id < 0)
        return false;
    uint32_t left = (uint32_t)a->id, right = (uint32_t)b->id, i = bpe_slot(v, left, right);
    for (; v->pairs[i].rank != UINT32_MAX; i = i + 1 == v->n_pairs ? 0 : i + 1) {
        const pn_bpe_pair *p = &v->pairs[i];
        if (p->left == left && p->right == right) {
            if (p->to < v->n_tokens && !pn_enc_allows(e, (int32_t)p->to))
                return false;
            *prio = p->rank;
            *id = (int32_t)p->to;
            return true;
        }
    }
    return false;
}

/* A symbol that is no token: its bytes one by one; bytes without a token are left out. */
static bool bpe_push_bytes(pn_enc *e, const char *s, size_t n)
{
    bool raw = e->v->pretok_flags & PN_PRETOK_RAW;
    for (size_t i = 0; i < n; i++) {
        int32_t t = raw ? e->v->byte_tok[(uint8_t)s[i]] : e->v->byte_sym[(uint8_t)s[i]];
        if (t < 0 || (uint32_t)t >= e->v->n_tokens || !pn_enc_allows(e, t))
            t = raw ? e->v->unk : -1;
        if (t >= 0 && !pn_enc_push(e, t))
            return false;
    }
    return true;
}

static bool bpe_push_symbols(pn_enc *e, const char *word)
{
    for (size_t i = 0; i < e->merge.n; i++) {
        const pn_sym *s = &e->merge.syms[i];
        bool ok = s->id >= 0 && (uint32_t)s->id < e->v->n_tokens && pn_enc_allows(e, s->id)
                      ? pn_enc_push(e, s->id)
                      : bpe_push_bytes(e, word + s->at, s->len);
        if (!ok)
            return false;
    }
    return true;
}

/* The token that is the whole word; -1.  In the byte alphabet the word must be spelt in it first. */
static pn_token bpe_whole(pn_enc *e, const char *word, size_t n)
{
    pn_token t;
    if (n > e->v->max_len)
        return -1;
    if (e->v->pretok_flags & PN_PRETOK_RAW) {
        t = pn_vocab_find(e->v, word, n);
    } else {
        pn_str_clear(&e->buf2);
        for (size_t i = 0; i < n; i++) {
            char utf8[4];
            pn_str_add(&e->buf2, utf8, pn_utf8_encode(pn_bpe_byte_to_cp((uint8_t)word[i]), utf8));
        }
        t = e->buf2.failed ? -1 : pn_vocab_find(e->v, e->buf2.data, e->buf2.len);
    }
    return t >= 0 && pn_vocab_of_model(e->v, t) && pn_enc_allows(e, t) ? t : -1;
}

static bool bpe_only_newlines(const char *s, size_t n)
{
    while (n && s[n - 1] == '\n')
        n--;
    return n == 0;
}

/* A word that is taken whole where there is a token for it; else room for its symbols.  *done: it was.  False: out of
 * memory. */
static bool bpe_begin_word(pn_enc *e, const char *word, size_t n, bool *done)
{
    unsigned f = e->v->pretok_flags;
    *done = false;
    if ((f & PN_PRETOK_IGNORE_MERGES) || ((f & PN_PRETOK_WHOLE_NEWLINES) && bpe_only_newlines(word, n))) {
        pn_token t = bpe_whole(e, word, n);
        *done = t >= 0;
        if (e->buf2.failed || *done)
            return !e->buf2.failed && pn_enc_push(e, t);
    }
    return pn_merge_reserve(&e->merge, n);
}

/* pn_pretok_emit: one word. */
static bool bpe_word(void *user, const char *word, size_t n)
{
    pn_enc *e = user;
    const pn_vocab *v = e->v;
    unsigned f = v->pretok_flags;
    bool done;
    if (!bpe_begin_word(e, word, n, &done))
        return false;
    if (done)
        return true;
    size_t k = 0;
    for (size_t i = 0, len; i < n; i += len, k++) {
        uint32_t cp;
        len = 1;
        int32_t id;
        if (f & PN_PRETOK_RAW) {
            len = pn_utf8_decode(word + i, n - i, &cp);
            id = pn_vocab_find(v, word + i, len);
        } else {
            id = v->byte_sym[(uint8_t)word[i]];
        }
        e->merge.syms[k] = (pn_sym){.at = (uint32_t)i, .len = (uint32_t)len, .id = id};
    }
    e->merge.n = k;
    return pn_merge_run(&e->merge, bpe_lookup, e) && bpe_push_symbols(e, word);
}

/* Symbols of a word, the way a tokenizer.json has it: bytes of a character without token, and unknown
 * ones, are symbols like others, and what is dropped is not in the way of a merge. */
static void bpe_rules_symbols(pn_enc *e, const char *word, size_t n)
{
    const pn_vocab *v = e->v;
    const pn_vocab_rules *r = v->rules;
    pn_sym *syms = e->merge.syms;
    size_t k = 0;
    bool raw = v->pretok_flags & PN_PRETOK_RAW;
    pn_sym unk = {.id = r->unk};                /* waits (len > 0) for the next known character */
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = raw ? pn_utf8_decode(word + i, n - i, &cp) : 1;
        pn_token t = raw ? pn_vocab_find(v, word + i, len) : v->byte_sym[(uint8_t)word[i]];
        if (pn_vocab_of_model(v, t) && pn_enc_allows(e, t)) {
            if (unk.len)
                syms[k++] = unk;
            syms[k++] = (pn_sym){.at = (uint32_t)i, .len = (uint32_t)len, .id = t};
            unk.len = 0;
            continue;
        }
        bool bytes = raw && r->byte_fallback;
        for (size_t j = 0; j < len && bytes; j++) {
            t = v->byte_tok[(uint8_t)word[i + j]];
            bytes = pn_vocab_of_model(v, t) && pn_enc_allows(e, t);
        }
        for (size_t j = 0; j < len && bytes; j++)
            syms[k++] = (pn_sym){.at = (uint32_t)(i + j), .len = 1, .id = v->byte_tok[(uint8_t)word[i + j]]};
        if (bytes || r->unk < 0)
            continue;
        if (unk.len && !r->fuse_unk) {
            syms[k++] = unk;
            unk.len = 0;
        }
        unk.at = unk.len ? unk.at : (uint32_t)i;
        unk.len += (uint32_t)len;
    }
    if (unk.len)
        syms[k++] = unk;
    e->merge.n = k;
}

/* pn_pretok_emit: one word. */
static bool bpe_rules_word(void *user, const char *word, size_t n)
{
    pn_enc *e = user;
    bool done;
    if (!bpe_begin_word(e, word, n, &done))
        return false;
    if (done)
        return true;
    bpe_rules_symbols(e, word, n);
    if (!pn_merge_run(&e->merge, bpe_lookup, e))
        return false;
    for (size_t i = 0; i < e->merge.n; i++)
        if (!pn_enc_push(e, e->merge.syms[i].id))
            return false;
    return true;
}

PN_INTERNAL bool pn_bpe_words(pn_enc *e, const char *s, size_t n)
{
    const pn_vocab *v = e->v;
    if (v->pretok->levels[0] || !(v->pretok_flags & PN_PRETOK_RAW))
        return pn_pretok_split(v->pretok, e->mem, s, n, bpe_rules_word, e);
    for (size_t i = 0, len; i < n; i += len) {          /* nothing is cut, but words may stand alone */
        len = pn_vocab_word(v, s + i, n - i);
        if (!bpe_rules_word(e, s + i, len))
            return false;
    }
    return true;
}

/* Lower case for the "whitespace" model, in place of e->buf. */
static bool bpe_lower(pn_enc *e, const char *s, size_t n)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        char utf8[4];
        len = pn_utf8_decode(s + i, n - i, &cp);
        if (cp == 0xFFFD && len == 1)
            pn_str_add(&e->buf, s + i, 1);
        else
            pn_str_add(&e->buf, utf8, pn_utf8_encode(pn_uni_lower(cp), utf8));
    }
    return !e->buf.failed;
}

PN_INTERNAL bool pn_bpe_encode(pn_enc *e, const char *s, size_t n)
{
    unsigned f = e->v->pretok_flags;
    pn_str_clear(&e->buf);
    if (f & PN_PRETOK_ESCAPE)
        pn_enc_escape(&e->buf, s, n);
    else if ((f & PN_PRETOK_DROP_GAPS) && e->v->lowercase)
        bpe_lower(e, s, n);
    else
        return pn_pretok_split(e->v->pretok, e->mem, s, n, bpe_word, e);
    return !e->buf.failed && pn_pretok_split(e->v->pretok, e->mem, e->buf.data, e->buf.len, bpe_word, e);
}

#undef BPE_BLOCK
