/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_gmask.c - which tokens may come next: the vocabulary as a trie, walked along the states.
 *
 * The trie lies flat, depth first: a node is its byte, how many nodes its subtree has (itself
 * included), and where its subtree's tokens begin in a list in the same order.  Walking is a loop:
 * a byte that is allowed goes on to the next node, one that is not skips the subtree.
 *
 *     node   0 'a' size 3   1 'b' size 1   2 'c' size 1   3 'b' size 2   4 'a' size 1
 *     text     a              ab             ac             b              ba
 *
 * Inside a string nearly everything is allowed, so nothing is skipped.  But there a state leads to one
 * and the same state by every harmless character (whole UTF-8, no control, quote, backslash): to
 * itself in a free string, to the one with the next count in a string of bounded length.  Where that
 * goes on for k characters (checked once for a state), all harmless tokens of up to k characters are
 * allowed; their bitmaps are made once, and only the smaller trie of the others is walked.
 *
 * Masks are kept per state, least recently used ones dropped first.
 */
#include "sample/pn_gram_impl.h"

#include "base/pn_utf8.h"

typedef struct gmask_node {
    uint32_t byte_size;         /* byte | size << 8 */
    uint32_t first_token;
} gmask_node;

typedef struct gmask_tree {
    PN_GVEC(gmask_node) nodes;
    PN_GVEC(uint32_t) tokens;
} gmask_tree;

/* Harmless tokens up to a length, and the trie of all other tokens. */
typedef struct gmask_slice {
    uint32_t *safe;             /* [words] bitmap, owned */
    gmask_tree rest;
} gmask_slice;

enum { GMASK_MAX_NODES = 1 << 24, GMASK_SLICES = 3 };

/* The shortest serves strings that are about to reach their bound. */
static uint32_t gmask_slice_most(size_t i) { return i == 0 ? UINT32_MAX : i == 1 ? 16 : 8; }

struct pn_gtrie {
    pn_mem *mem;
    uint32_t n_tokens, words;
    uint64_t serial;            /* a hash of everything: masks of another trie are not ours */
    char *text;                 /* owned, [text_len]: pieces one after another */
    size_t text_len;
    uint32_t *at;               /* [n_tokens + 1] where each piece begins in text */
    uint32_t *ends;             /* [words] bitmap */
    gmask_tree all;
    gmask_slice slice[GMASK_SLICES];    /* longest first */
};

/* ---- building ------------------------------------------------------------------------------------ */

static bool gmask_grow(pn_gtrie *t, void **v, size_t *cap, size_t need, size_t size)
{
    return pn_mem_grow(t->mem, PN_ACCT_GRAMMAR, v, cap, need, size);
}

/* Characters of a harmless piece; 0: it is not harmless. */
static uint32_t gmask_safe_chars(pn_bytes p)
{
    uint32_t n = 0;
    for (size_t i = 0; i < p.len; i++) {
        uint8_t c = (uint8_t)p.data[i];
        if (c < 0x20 || c == '"' || c == '\\' || c == 0x7F)
            return 0;
        n += (c & 0xC0) != 0x80;
    }
    return pn_utf8_valid(p.data, p.len) == p.len ? n : 0;
}

/* Close path[n..depth): their subtrees end here. */
static void gmask_close(gmask_tree *tree, const uint32_t *path, size_t n, size_t depth)
{
    for (size_t k = depth; k-- > n;)
        tree->nodes.v[path[k]].byte_size |= (uint32_t)(tree->nodes.n - path[k]) << 8;
}

/* path[k] is the node after k + 1 bytes of the piece before. */
static bool gmask_tree_add(pn_gtrie *t, gmask_tree *tree, pn_bytes before, pn_bytes piece, uint32_t id, uint32_t *path)
{
    size_t k = 0, most = PN_MIN(before.len, piece.len);
    while (k < most && before.data[k] == piece.data[k])
        k++;
    gmask_close(tree, path, k, before.len);
    if (!gmask_grow(t, (void **)&tree->nodes.v, &tree->nodes.cap, tree->nodes.n + piece.len - k, sizeof *tree->nodes.v) ||
        !gmask_grow(t, (void **)&tree->tokens.v, &tree->tokens.cap, tree->tokens.n + 1, sizeof *tree->tokens.v))
        return false;
    for (; k < piece.len; k++) {
        path[k] = (uint32_t)tree->nodes.n;
        tree->nodes.v[tree->nodes.n++] = (gmask_node){(uint8_t)piece.data[k], (uint32_t)tree->tokens.n};
    }
    tree->tokens.v[tree->tokens.n++] = id;
    return true;
}

static bool gmask_tree_build(pn_gtrie *t, gmask_tree *tree, const pn_bytes *pieces, const uint32_t *order, const uint32_t *but,
                             uint32_t *path)
{
    pn_bytes before = {"", 0};
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        pn_bytes piece = pieces[order[i]];
        if (piece.len == 0 || (but && pn_gset_has(but, order[i])))
            continue;
        if (!gmask_tree_add(t, tree, before, piece, order[i], path))
            return false;
        before = piece;
    }
    gmask_close(tree, path, 0, before.len);
    return true;
}

/* Our own copy of the pieces that count as text; the others become empty. */
static bool gmask_copy(pn_gtrie *t, const pn_gtrie_source *src, pn_bytes *pieces, size_t *longest)
{
    size_t total = 0;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        bool out = pn_gset_has(t->ends, i) || (src->exclude && pn_gset_has(src->exclude, i));
        pieces[i] = out ? (pn_bytes){"", 0} : src->pieces[i];
        total += pieces[i].len;
        *longest = PN_MAX(*longest, pieces[i].len);
    }
    if (total >= GMASK_MAX_NODES || !(t->text = pn_mem_alloc(t->mem, PN_ACCT_GRAMMAR, total)))
        return false;
    t->text_len = total;
    total = 0;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        t->at[i] = (uint32_t)total;
        if (pieces[i].len)
            memcpy(t->text + total, pieces[i].data, pieces[i].len);
        pieces[i].data = t->text + total;
        total += pieces[i].len;
        uint32_t chars = gmask_safe_chars(pieces[i]);
        for (size_t k = 0; k < GMASK_SLICES && chars; k++)
            if (chars <= gmask_slice_most(k))
                pn_gset_add(t->slice[k].safe, i);
    }
    t->at[t->n_tokens] = (uint32_t)total;
    t->serial = pn_hash(t->text, t->text_len, pn_hash(t->at, ((size_t)t->n_tokens + 1) * sizeof *t->at,
                                                     pn_hash(t->ends, (size_t)t->words * sizeof *t->ends, t->words)));
    return true;
}

static bool gmask_build(pn_gtrie *t, const pn_gtrie_source *src)
{
    size_t longest = 0;
    pn_bytes *pieces = pn_mem_calloc(t->mem, PN_ACCT_GRAMMAR, t->n_tokens, sizeof *pieces);
    uint32_t *order = pn_mem_calloc(t->mem, PN_ACCT_GRAMMAR, t->n_tokens, sizeof *order);
    bool ok = pieces && order && gmask_copy(t, src, pieces, &longest) &&
              pn_gram_sort_texts(t->mem, pieces, order, t->n_tokens);
    uint32_t *path = ok ? pn_mem_calloc(t->mem, PN_ACCT_GRAMMAR, longest, sizeof *path) : NULL;
    ok = path && gmask_tree_build(t, &t->all, pieces, order, NULL, path);
    for (size_t k = 0; k < GMASK_SLICES && ok; k++)
        ok = gmask_tree_build(t, &t->slice[k].rest, pieces, order, t->slice[k].safe, path);
    pn_mem_free(t->mem, PN_ACCT_GRAMMAR, pieces, t->n_tokens * sizeof *pieces);
    pn_mem_free(t->mem, PN_ACCT_GRAMMAR, order, t->n_tokens * sizeof *order);
    pn_mem_free(t->mem, PN_ACCT_GRAMMAR, path, longest * sizeof *path);
    return ok;
}

PN_INTERNAL pn_status pn_gtrie_new(pn_gtrie **out, pn_mem *mem, const pn_gtrie_source *src, pn_err *err)
{
    uint64_t bytes = 0;
    if (src->n_vocab < src->n_tokens || src->n_vocab > INT32_MAX)
        return pn_fail(err, PN_E_INVALID, "a vocabulary of %lu tokens in %lu columns of logits", (unsigned long)src->n_tokens,
                       (unsigned long)src->n_vocab);
    for (uint32_t i = 0; i < src->n_tokens; i++)
        bytes += src->pieces[i].len;
    if (bytes >= GMASK_MAX_NODES)
        return pn_fail(err, PN_E_UNSUPPORTED, "the texts of the vocabulary have %llu bytes; at most %d are supported",
                       (unsigned long long)bytes, GMASK_MAX_NODES);
    pn_gtrie *t = pn_mem_calloc(mem, PN_ACCT_GRAMMAR, 1, sizeof *t);
    if (!t)
        return pn_fail_nomem(err, "a token trie", sizeof *t);
    t->mem = mem;
    t->n_tokens = src->n_tokens;
    t->words = src->n_vocab / 32 + (src->n_vocab % 32 != 0);
    t->at = pn_mem_calloc(mem, PN_ACCT_GRAMMAR, (uint64_t)t->n_tokens + 1, sizeof *t->at);
    t->ends = pn_mem_calloc(mem, PN_ACCT_GRAMMAR, t->words, sizeof *t->ends);
    bool ok = t->at && t->ends;
    for (size_t k = 0; k < GMASK_SLICES; k++) {
        t->slice[k].safe = pn_mem_calloc(mem, PN_ACCT_GRAMMAR, t->words, sizeof *t->slice[k].safe);
        ok = ok && t->slice[k].safe;
    }
    for (size_t i = 0; i < src->n_ends && t->ends; i++)
        if (src->ends[i] >= 0 && (uint32_t)src->ends[i] < t->n_tokens)
            pn_gset_add(t->ends, (uint32_t)src->ends[i]);
    if (!ok || !gmask_build(t, src)) {
        pn_gtrie_free(t);
        return pn_fail_nomem(err, "a token trie", 16 * bytes);
    }
    *out = t;
    return PN_OK;
}

static void gmask_tree_free(pn_gtrie *t, gmask_tree *tree)
{
    pn_mem_free(t->mem, PN_ACCT_GRAMMAR, tree->nodes.v, tree->nodes.cap * sizeof *tree->nodes.v);
    pn_mem_free(t->mem, PN_ACCT_GRAMMAR, tree->tokens.v, tree->tokens.cap * sizeof *tree->tokens.v);
}

PN_INTERNAL void pn_gtrie_free(pn_gtrie *t)
{
    if (!t)
        return;
    gmask_tree_free(t, &t->all);
    for (size_t k = 0; k < GMASK_SLICES; k++) {
        gmask_tree_free(t, &t->slice[k].rest);
        pn_mem_free(t->mem, PN_ACCT_GRAMMAR, t->slice[k].safe, t->words * sizeof *t->slice[k].safe);
    }
    pn_mem_free(t->mem, PN_ACCT_GRAMMAR, t->text, t->text_len);
    pn_mem_free(t->mem, PN_ACCT_GRAMMAR, t->at, ((size_t)t->n_tokens + 1) * sizeof *t->at);
    pn_mem_free(t->mem, PN_ACCT_GRAMMAR, t->ends, t->words * sizeof *t->ends);
    pn_mem_free(t->mem, PN_ACCT_GRAMMAR, t, sizeof *t);
}

static size_t gmask_tree_bytes(const gmask_tree *tree)
{
    return tree->nodes.cap * sizeof *tree->nodes.v + tree->tokens.cap * sizeof *tree->tokens.v;
}

PN_INTERNAL size_t pn_gtrie_bytes(const pn_gtrie *t)
{
    size_t n = sizeof *t + t->text_len + ((size_t)t->n_tokens + 1) * sizeof *t->at + gmask_tree_bytes(&t->all);
    for (size_t k = 0; k < GMASK_SLICES; k++)
        n += gmask_tree_bytes(&t->slice[k].rest);
    return n + (1 + GMASK_SLICES) * (size_t)t->words * sizeof *t->ends;
}

PN_INTERNAL uint32_t pn_gtrie_words(const pn_gtrie *t) { return t->words; }
PN_INTERNAL uint32_t pn_gtrie_count(const pn_gtrie *t) { return t->n_tokens; }

PN_INTERNAL pn_bytes pn_gtrie_piece(const pn_gtrie *t, pn_token id)
{
    if (id < 0 || (uint32_t)id >= t->n_tokens)
        return (pn_bytes){NULL, 0};
    return (pn_bytes){t->text + t->at[id], t->at[id + 1] - t->at[id]};
}

PN_INTERNAL bool pn_gtrie_ends(const pn_gtrie *t, pn_token id)
{
    return id >= 0 && (uint32_t)id < t->n_tokens && pn_gset_has(t->ends, (uint32_t)id);
}

/* ---- states inside strings ------------------------------------------------------------------------- */

/* Do all bytes lo..hi, each followed by `more` continuation bytes, lead from `at` to `home`? */
static bool gmask_leads(pn_gram *g, uint32_t home, uint32_t at, uint32_t lo, uint32_t hi, uint32_t more)
{
    uint32_t last = PN_GS_UNKNOWN;
    for (uint32_t byte = lo; byte <= hi; byte++) {
        if (byte > lo && g->p.class_of[byte] == g->p.class_of[byte - 1])
            continue;
        uint32_t to = pn_gram_step(g, at, (uint8_t)byte);
        if (to == PN_GS_DEAD || to == PN_GS_FAIL || (more == 0 && to != home))
            return false;
        if (more && to != last && !gmask_leads(g, home, to, 0x80, 0xBF, more - 1))
            return false;
        last = to;
    }
    return true;
}

/* The same for one lead byte whose second byte has limits of its own. */
static bool gmask_lead(pn_gram *g, uint32_t home, uint32_t at, uint8_t lead, uint32_t lo, uint32_t hi, uint32_t more)
{
    uint32_t to = pn_gram_step(g, at, lead);
    return to != PN_GS_DEAD && to != PN_GS_FAIL && gmask_leads(g, home, to, lo, hi, more);
}

/* Where every harmless character leads from s; PN_GS_DEAD: not to one state. */
static uint32_t gmask_safe_next(pn_gram *g, uint32_t s)
{
    if (g->states.v[s].safe_next == PN_GS_UNKNOWN) {
        uint32_t h = pn_gram_step(g, s, ' ');
        bool is = h != PN_GS_DEAD && h != PN_GS_FAIL && gmask_leads(g, h, s, 0x20, 0x21, 0) &&
                  gmask_leads(g, h, s, 0x23, 0x5B, 0) && gmask_leads(g, h, s, 0x5D, 0x7E, 0) &&
                  gmask_leads(g, h, s, 0xC2, 0xDF, 1) && gmask_lead(g, h, s, 0xE0, 0xA0, 0xBF, 1) &&
                  gmask_leads(g, h, s, 0xE1, 0xEC, 2) && gmask_lead(g, h, s, 0xED, 0x80, 0x9F, 1) &&
                  gmask_leads(g, h, s, 0xEE, 0xEF, 2) && gmask_lead(g, h, s, 0xF0, 0x90, 0xBF, 2) &&
                  gmask_leads(g, h, s, 0xF1, 0xF3, 3) && gmask_lead(g, h, s, 0xF4, 0x80, 0x8F, 2);
        g->states.v[s].safe_next = is ? h : PN_GS_DEAD;
    }
    return g->states.v[s].safe_next;
}

/* For how many characters in a row does every harmless one lead to one state?  At most 16, or
 * UINT32_MAX: for ever. */
static uint32_t gmask_safe_run(pn_gram *g, uint32_t s)
{
    uint32_t k = 0;
    for (; k < 16; k++) {
        uint32_t to = gmask_safe_next(g, s);
        if (to == s)
            return UINT32_MAX;
        if (to == PN_GS_DEAD)
            break;
        s = to;
    }
    return k;
}

/* The slice of harmless tokens that are all allowed; NULL: none. */
static const gmask_slice *gmask_slice_of(pn_gram *g, const pn_gtrie *t, uint32_t state)
{
    uint32_t run = g->states.v[state].flags & PN_GS_BYTES ? gmask_safe_run(g, state) : 0;
    for (size_t k = 0; k < GMASK_SLICES; k++)
        if (run >= gmask_slice_most(k))
            return &t->slice[k];
    return NULL;
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

static inline uint32_t gmask_step(pn_gram *g, uint32_t state, uint8_t byte)
{
    uint32_t at = g->states.v[state].trans;
    if (PN_LIKELY(at != UINT32_MAX)) {
        uint32_t to = g->trans.v[at + g->p.class_of[byte]];
        if (PN_LIKELY(to != PN_GS_UNKNOWN))
            return to;
    }
    return pn_gram_step(g, state, byte);
}

static bool gmask_walk(pn_gram *g, const gmask_tree *tree, uint32_t state, uint32_t *bits)
{
    const gmask_node *nodes = tree->nodes.v;
    uint32_t n = (uint32_t)tree->nodes.n, depth = 0;
    uint64_t budget = g->limits.mask_steps, begin = g->steps;
    for (uint32_t i = 0; i < n;) {
        while (depth && i == g->walk.v[depth - 1].pc)
            state = g->walk.v[--depth].frame;
        uint32_t size = nodes[i].byte_size >> 8, to = gmask_step(g, state, (uint8_t)nodes[i].byte_size);
        if (to == PN_GS_FAIL)
            return false;
        if (budget-- == 0 || g->steps - begin > g->limits.mask_steps) {
            g->fail = PN_E_INVALID;
            g->fail_what = "mask_steps";
            g->fail_value = g->limits.mask_steps;
            return false;
        }
        if (to == PN_GS_DEAD) {
            i += size;
            continue;
        }
        uint32_t last = i + 1 < n ? nodes[i + 1].first_token : (uint32_t)tree->tokens.n;
        for (uint32_t k = nodes[i].first_token; k < last; k++)
            pn_gset_add(bits, tree->tokens.v[k]);
        if (size > 1) {
            if (depth == g->walk.cap && !pn_mem_grow(g->mem, PN_ACCT_GRAMMAR, (void **)&g->walk.v, &g->walk.cap, (size_t)depth + 1,
                                                    sizeof *g->walk.v)) {
                g->fail = PN_E_NOMEM;
                g->fail_value = (uint64_t)depth * sizeof *g->walk.v;
                return false;
            }
            g->walk.v[depth++] = (pn_gconfig){i + size, state};
            state = to;
        }
        i++;
    }
    return true;
}

/* Token terminals; an end token only where the grammar names it. */
static void gmask_terminals(const pn_gram *g, const pn_gtrie *t, uint32_t state, uint32_t *bits)
{
    pn_gstate s = g->states.v[state];
    for (uint32_t i = 0; i < s.n && s.flags & PN_GS_TOKENS; i++) {
        const pn_ginstr *in = &g->p.code.v[g->configs.v[s.first + i].pc];
        if (in->op != PN_GOP_TOKEN)
            continue;
        if (!(in->flags & PN_GF_NEGATED)) {
            if (in->b < t->n_tokens)
                pn_gset_add(bits, in->b);
            continue;
        }
        for (uint32_t k = 0; k < t->n_tokens; k++)
            if (k != in->b && !pn_gset_has(t->ends, k))
                pn_gset_add(bits, k);
    }
}

static bool gmask_compute(pn_gram *g, const pn_gtrie *t, uint32_t state, uint32_t *bits)
{
    const gmask_slice *slice = gmask_slice_of(g, t, state);
    if (slice)
        memcpy(bits, slice->safe, t->words * sizeof *bits);
    else
        memset(bits, 0, t->words * sizeof *bits);
    if (g->states.v[state].flags & PN_GS_BYTES && !gmask_walk(g, slice ? &slice->rest : &t->all, state, bits))
        return false;
    gmask_terminals(g, t, state, bits);
    for (uint32_t i = 0; i < t->words && g->states.v[state].flags & PN_GS_ACCEPT; i++)
        bits[i] |= t->ends[i];
    return true;
}

/* ---- what is remembered ----------------------------------------------------------------------------------- */

static void gmask_unlink(pn_gram *g, pn_gmask_entry *e)
{
    *(e->prev ? &e->prev->next : &g->mask_head) = e->next;
    *(e->next ? &e->next->prev : &g->mask_tail) = e->prev;
}

static void gmask_link(pn_gram *g, pn_gmask_entry *e)
{
    e->prev = NULL;
    e->next = g->mask_head;
    *(e->next ? &e->next->prev : &g->mask_tail) = e;
    g->mask_head = e;
}

static size_t gmask_entry_bytes(uint32_t words) { return sizeof(pn_gmask_entry) + (size_t)words * sizeof(uint32_t); }

static void gmask_drop(pn_gram *g, pn_gmask_entry *e)
{
    gmask_unlink(g, e);
    g->states.v[e->state].mask = NULL;
    g->mask_bytes -= gmask_entry_bytes(e->words);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, e, gmask_entry_bytes(e->words));
}

PN_INTERNAL void pn_gram_drop_masks(pn_gram *g, size_t keep_bytes)
{
    while (g->mask_tail && g->mask_bytes > keep_bytes)
        gmask_drop(g, g->mask_tail);
}

/* Keep a copy; when there is no memory, do without. */
static void gmask_remember(pn_gram *g, const pn_gtrie *t, uint32_t state, const uint32_t *bits, uint32_t n_allowed)
{
    size_t bytes = gmask_entry_bytes(t->words), most = g->limits.cache_bytes / 2;
    if (g->states.v[state].mask)
        gmask_drop(g, g->states.v[state].mask);
    if (bytes > most)
        return;
    pn_gram_drop_masks(g, most - bytes);
    pn_gmask_entry *e = pn_mem_alloc(g->mem, PN_ACCT_GRAMMAR, bytes);
    if (!e)
        return;
    e->state = state;
    e->words = t->words;
    e->n_allowed = n_allowed;
    e->serial = t->serial;
    memcpy(e->bits, bits, t->words * sizeof *bits);
    g->states.v[state].mask = e;
    g->mask_bytes += bytes;
    gmask_link(g, e);
}

static uint32_t gmask_count(const uint32_t *bits, uint32_t words)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < words; i++)
        for (uint32_t w = bits[i]; w; w &= w - 1)
            n++;
    return n;
}

static pn_status gmask_get(pn_gram *g, const pn_gtrie *t, uint32_t state, uint32_t *bits, uint32_t *n_allowed, pn_err *err)
{
    pn_gmask_entry *e = g->states.v[state].mask;
    if (e && e->serial == t->serial && e->words == t->words) {
        memcpy(bits, e->bits, t->words * sizeof *bits);
        *n_allowed = e->n_allowed;
        gmask_unlink(g, e);
        gmask_link(g, e);
        return PN_OK;
    }
    if (!gmask_compute(g, t, state, bits))
        return pn_gram_failed(g, err);
    *n_allowed = gmask_count(bits, t->words);
    gmask_remember(g, t, state, bits, *n_allowed);
    return PN_OK;
}

PN_INTERNAL pn_status pn_matcher_mask(pn_matcher *m, uint32_t *bits, uint32_t *n_allowed, pn_err *err)
{
    const pn_gtrie *t = m->trie;
    uint32_t n = 0;
    if (!t)
        return pn_fail(err, PN_E_STATE, "a matcher without a vocabulary has no mask");
    if (m->finished) {
        memset(bits, 0, t->words * sizeof *bits);
        if (n_allowed)
            *n_allowed = 0;
        return PN_OK;
    }
    pn_mutex_lock(&m->gram->lock);
    pn_gram_tidy(m->gram);
    pn_status status = gmask_get(m->gram, t, m->state, bits, &n, err);
    pn_mutex_unlock(&m->gram->lock);
    if (status == PN_OK && n_allowed)
        *n_allowed = n;
    return status;
}
