/* SPDX-License-Identifier: AGPL-3.0-only */
#include "engine/pn_constraint.h"

/* One trie a model, made when the first grammar is used. */
static pn_status constraint_trie(pn_model *m, pn_err *err)
{
    pn_status st = PN_OK;
    pn_mutex_lock(&m->lock);
    if (!m->trie)
        st = pn_gtrie_from_vocab(&m->trie, pn_engine_mem(m->engine), m->vocab, err);
    pn_mutex_unlock(&m->lock);
    return st;
}

PN_INTERNAL pn_status pn_constraint_open(pn_constraint *c, pn_model *m, const pn_grammar *g, const char *after,
                                         pn_err *err)
{
    *c = (pn_constraint){.mem = pn_engine_mem(m->engine), .model = m};
    if (!g)
        return PN_OK;
    if (g->engine != m->engine)
        return pn_fail(err, PN_E_INVALID, "the grammar belongs to another engine");
    c->after_len = after ? strlen(after) : 0;
    if (c->after_len >= sizeof c->after)
        return pn_fail(err, PN_E_INVALID, "grammar_after has %zu bytes, expected at most %d", c->after_len,
                       CONSTRAINT_MARKER_MAX - 1);
    if (after)
        memcpy(c->after, after, c->after_len);
    c->active = c->after_len == 0;
    pn_status st = constraint_trie(m, err);
    if (!st)
        st = pn_matcher_new(&c->matcher, c->mem, g->gram, m->trie, err);
    if (!st) {
        c->n_words = pn_gtrie_words(m->trie);
        c->mask = pn_mem_calloc(c->mem, PN_ACCT_GRAMMAR, c->n_words, sizeof *c->mask);
        if (!c->mask)
            st = pn_fail_nomem(err, "a token mask", c->n_words * sizeof *c->mask);
    }
    if (st)
        pn_constraint_close(c);
    return st;
}

PN_INTERNAL void pn_constraint_close(pn_constraint *c)
{
    pn_matcher_free(c->matcher);
    pn_mem_free(c->mem, PN_ACCT_GRAMMAR, c->mask, c->n_words * sizeof *c->mask);
    c->matcher = NULL;
    c->mask = NULL;
}

PN_INTERNAL pn_status pn_constraint_mask(pn_constraint *c, const uint32_t **allowed, pn_err *err)
{
    *allowed = NULL;
    if (!c->matcher || !c->active)
        return PN_OK;
    uint32_t n = 0;
    pn_status st = pn_matcher_mask(c->matcher, c->mask, &n, err);
    if (!st && n == 0)
        st = pn_fail(err, PN_E_NUMERIC, "no token of the vocabulary can continue the grammar");
    if (!st)
        *allowed = c->mask;
    return st;
}

/* Free text: is the marker complete?  What stands behind it in the same piece belongs to the grammar,
 * blanks apart, which models like to put there. */
static pn_status constraint_watch(pn_constraint *c, pn_bytes piece, pn_err *err)
{
    for (size_t i = 0; i < piece.len && !c->active; i++) {
        if (c->tail_len == c->after_len)
            memmove(c->tail, c->tail + 1, --c->tail_len);
        c->tail[c->tail_len++] = piece.data[i];
        if (c->tail_len < c->after_len || memcmp(c->tail, c->after, c->after_len) != 0)
            continue;
        c->active = true;
        pn_bytes rest = {piece.data + i + 1, piece.len - i - 1};
        while (rest.len && (*rest.data == ' ' || *rest.data == '\n')) {
            rest.data++;
            rest.len--;
        }
        return rest.len ? pn_matcher_accept_bytes(c->matcher, rest.data, rest.len, err) : PN_OK;
    }
    return PN_OK;
}

PN_INTERNAL pn_status pn_constraint_accept(pn_constraint *c, pn_token t, pn_bytes piece, pn_err *err)
{
    if (!c->matcher)
        return PN_OK;
    return c->active ? pn_matcher_accept_token(c->matcher, t, err) : constraint_watch(c, piece, err);
}

PN_INTERNAL bool pn_constraint_done(const pn_constraint *c)
{
    return c->matcher && c->active && pn_matcher_only_end(c->matcher);
}
