/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_grammar.c - the handles: grammars counted by reference, matchers that stand in them.
 *
 * A matcher is little more than a state's number and the numbers before it.  All matchers of a grammar
 * are in a list, because their numbers change when the grammar forgets states it no longer needs.
 *
 * Every function takes the grammar's lock once; what is_complete and its like tell is copied into
 * the matcher, so they need none.
 */
#include "sample/pn_gram_impl.h"

#define GRAMMAR_FINISHED 0x80000000u    /* in a history entry: the matcher was finished */

/* ---- grammars ----------------------------------------------------------------------------------- */

PN_INTERNAL pn_gram *pn_gram_retain(pn_gram *g)
{
    pn_mutex_lock(&g->lock);
    g->refs++;
    pn_mutex_unlock(&g->lock);
    return g;
}

PN_INTERNAL void pn_gram_release(pn_gram *g)
{
    if (!g)
        return;
    pn_mutex_lock(&g->lock);
    uint32_t left = --g->refs;
    pn_mutex_unlock(&g->lock);
    if (left)
        return;
    pn_gram_free_states(g);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g->p.code.v, g->p.code.cap * sizeof *g->p.code.v);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g->p.sets.v, g->p.sets.cap * sizeof *g->p.sets.v);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g->p.edges.v, g->p.edges.cap * sizeof *g->p.edges.v);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g->p.list.v, g->p.list.cap * sizeof *g->p.list.v);
    pn_mutex_fini(&g->lock);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g, sizeof *g);
}

PN_INTERNAL size_t pn_gram_bytes(pn_gram *g)
{
    pn_mutex_lock(&g->lock);
    size_t n = g->program_bytes + pn_gram_cache_bytes(g);
    pn_mutex_unlock(&g->lock);
    return n;
}

/* Long texts are taken in pieces, so that states left behind can be forgotten in between. */
enum { GRAMMAR_PIECE = 4096 };

PN_INTERNAL int pn_gram_matches(pn_gram *g, const char *text, size_t len, pn_err *err)
{
    pn_matcher *m = NULL;
    pn_err why;
    pn_status status = pn_matcher_new(&m, g->mem, g, NULL, err);
    if (status != PN_OK)
        return status;
    why.text[0] = 0;
    for (size_t i = 0; i < len && status == PN_OK; i += GRAMMAR_PIECE)
        status = pn_matcher_accept_bytes(m, text + i, PN_MIN(len - i, (size_t)GRAMMAR_PIECE), &why);
    int result = status == PN_OK ? pn_matcher_is_complete(m) : status == PN_E_STATE ? 0 : (int)status;
    if (result < 0 && err)
        *err = why;
    pn_matcher_free(m);
    return result;
}

/* ---- matchers ------------------------------------------------------------------------------------- */

static void grammar_link(pn_matcher *m)
{
    m->prev = NULL;
    m->next = m->gram->matchers;
    if (m->next)
        m->next->prev = m;
    m->gram->matchers = m;
}

PN_INTERNAL pn_status pn_matcher_new(pn_matcher **out, pn_mem *mem, pn_gram *g, const pn_gtrie *trie, pn_err *err)
{
    pn_matcher *m = pn_mem_calloc(mem, PN_ACCT_GRAMMAR, 1, sizeof *m);
    if (!m)
        return pn_fail_nomem(err, "a grammar matcher", sizeof *m);
    m->mem = mem;
    m->trie = trie;
    m->gram = g;
    pn_mutex_lock(&g->lock);
    g->refs++;
    grammar_link(m);
    m->state = g->start;
    m->flags = g->states.v[g->start].flags;
    pn_mutex_unlock(&g->lock);
    *out = m;
    return PN_OK;
}

PN_INTERNAL pn_status pn_matcher_fork(pn_matcher **out, const pn_matcher *from, pn_err *err)
{
    pn_matcher *m = pn_mem_calloc(from->mem, PN_ACCT_GRAMMAR, 1, sizeof *m);
    if (!m)
        return pn_fail_nomem(err, "a grammar matcher", sizeof *m);
    pn_mutex_lock(&from->gram->lock);
    *m = *from;
    m->gram->refs++;
    grammar_link(m);
    pn_mutex_unlock(&from->gram->lock);
    *out = m;
    return PN_OK;
}

PN_INTERNAL void pn_matcher_free(pn_matcher *m)
{
    if (!m)
        return;
    pn_gram *g = m->gram;
    pn_mutex_lock(&g->lock);
    if (m->prev)
        m->prev->next = m->next;
    else
        g->matchers = m->next;
    if (m->next)
        m->next->prev = m->prev;
    pn_mutex_unlock(&g->lock);
    pn_mem_free(m->mem, PN_ACCT_GRAMMAR, m, sizeof *m);
    pn_gram_release(g);
}

PN_INTERNAL void pn_matcher_reset(pn_matcher *m)
{
    pn_mutex_lock(&m->gram->lock);
    m->state = m->gram->start;
    m->flags = m->gram->states.v[m->state].flags;
    m->finished = false;
    m->accepts = 0;
    pn_mutex_unlock(&m->gram->lock);
}

/* Remember where we were, then stand at `state`. */
static void grammar_go(pn_matcher *m, uint32_t state, bool finished)
{
    m->history[m->accepts++ % PN_MATCHER_HISTORY] = m->state | (m->finished ? GRAMMAR_FINISHED : 0);
    m->state = state;
    m->flags = m->gram->states.v[state].flags;
    m->finished = finished;
}

/* PN_E_STATE: no sentence goes on so; PN_E_NOMEM, PN_E_INVALID: memory, a limit. */
PN_INTERNAL pn_status pn_matcher_accept_bytes(pn_matcher *m, const char *bytes, size_t n, pn_err *err)
{
    pn_gram *g = m->gram;
    size_t used = 0;
    if (m->finished)
        return pn_fail(err, PN_E_STATE, "the grammar's text has ended already");
    pn_mutex_lock(&g->lock);
    pn_gram_tidy(g);
    uint32_t to = pn_gram_step_bytes(g, m->state, bytes, n, &used);
    pn_status status = PN_OK;
    if (to == PN_GS_FAIL)
        status = pn_gram_failed(g, err);
    else if (to == PN_GS_DEAD)
        status = pn_fail(err, PN_E_STATE, "byte %zu (0x%02X) does not continue any sentence of the grammar", used,
                         used < n ? (unsigned)(uint8_t)bytes[used] : 0u);
    else
        grammar_go(m, to, false);
    pn_mutex_unlock(&g->lock);
    return status;
}

/* Where token t leads: PN_GS_DEAD or PN_GS_FAIL too.  *finished: by an end token. */
static uint32_t grammar_token(pn_matcher *m, uint32_t state, pn_token t, bool *finished)
{
    pn_bytes piece = m->trie ? pn_gtrie_piece(m->trie, t) : (pn_bytes){NULL, 0};
    bool ends = m->trie && pn_gtrie_ends(m->trie, t);
    *finished = false;
    bool known = t >= 0 && (!m->trie || (uint32_t)t < pn_gtrie_count(m->trie));
    uint32_t to = !known ? PN_GS_DEAD : pn_gram_step_token(m->gram, state, t, piece.data, piece.len, ends);
    if (to == PN_GS_DEAD && ends && m->gram->states.v[state].flags & PN_GS_ACCEPT) {
        *finished = true;
        return state;
    }
    return to;
}

PN_INTERNAL pn_status pn_matcher_accept_token(pn_matcher *m, pn_token t, pn_err *err)
{
    pn_gram *g = m->gram;
    bool finished;
    if (m->finished)
        return pn_fail(err, PN_E_STATE, "the grammar's text has ended already");
    pn_mutex_lock(&g->lock);
    pn_gram_tidy(g);
    uint32_t to = grammar_token(m, m->state, t, &finished);
    pn_status status = PN_OK;
    if (to == PN_GS_FAIL)
        status = pn_gram_failed(g, err);
    else if (to == PN_GS_DEAD)
        status = pn_fail(err, PN_E_STATE, "token %ld does not continue any sentence of the grammar", (long)t);
    else
        grammar_go(m, to, finished);
    pn_mutex_unlock(&g->lock);
    return status;
}

PN_INTERNAL pn_status pn_matcher_check(pn_matcher *m, const pn_token *tokens, size_t n, size_t *n_ok, pn_err *err)
{
    pn_gram *g = m->gram;
    bool finished = m->finished;
    size_t i = 0;
    pn_status status = PN_OK;
    pn_mutex_lock(&g->lock);
    pn_gram_tidy(g);
    for (uint32_t at = m->state; i < n && !finished; i++) {
        at = grammar_token(m, at, tokens[i], &finished);
        if (at == PN_GS_FAIL)
            status = pn_gram_failed(g, err);
        if (at == PN_GS_FAIL || at == PN_GS_DEAD)
            break;
    }
    pn_mutex_unlock(&g->lock);
    *n_ok = i;
    return status;
}

PN_INTERNAL bool pn_matcher_is_complete(const pn_matcher *m) { return (m->flags & PN_GS_ACCEPT) != 0; }

PN_INTERNAL bool pn_matcher_only_end(const pn_matcher *m)
{
    return (m->flags & (PN_GS_ACCEPT | PN_GS_BYTES | PN_GS_TOKENS)) == PN_GS_ACCEPT;
}

PN_INTERNAL bool pn_matcher_is_finished(const pn_matcher *m) { return m->finished; }
PN_INTERNAL uint64_t pn_matcher_mark(const pn_matcher *m) { return m->accepts; }

PN_INTERNAL pn_status pn_matcher_rollback(pn_matcher *m, uint64_t mark, pn_err *err)
{
    if (mark > m->accepts || m->accepts - mark > PN_MATCHER_HISTORY)
        return pn_fail(err, PN_E_STATE, "a matcher after %llu accepts cannot go back to when there were %llu (at most %d)",
                       (unsigned long long)m->accepts, (unsigned long long)mark, PN_MATCHER_HISTORY);
    if (mark == m->accepts)
        return PN_OK;
    pn_mutex_lock(&m->gram->lock);
    uint32_t was = m->history[mark % PN_MATCHER_HISTORY];
    m->state = was & ~GRAMMAR_FINISHED;
    m->finished = (was & GRAMMAR_FINISHED) != 0;
    m->flags = m->gram->states.v[m->state].flags;
    m->accepts = mark;
    pn_mutex_unlock(&m->gram->lock);
    return PN_OK;
}

#undef GRAMMAR_FINISHED
