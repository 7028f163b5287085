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

PN_INTERNAL pn_status pn_constraint_open(pn_constraint *c, pn_model *m, const pn_generate_params *p, pn_err *err)
{
    const pn_grammar *g = p->grammar;
    c->guide = NULL;
    if (!g)
        return PN_OK;
    if (g->engine != m->engine)
        return pn_fail(err, PN_E_INVALID, "the grammar belongs to another engine");
    pn_status st = constraint_trie(m, err);
    pn_guide_params q = {.gram = g->is_calls ? g->calls.gram : g->gram, .trie = m->trie, .lanes = g->is_calls, .single = g->single,
                         .forbid = g->none, .after = p->grammar_after && *p->grammar_after ? p->grammar_after : NULL, .think_open = p->think_open, .think_close = p->think_close,
                         .find = pn_grammar_find_marker, .user = m->vocab};
    if (g->is_calls) {
        q.triggers = g->calls.triggers;
        q.n_triggers = g->calls.n_triggers;
        q.watch = g->calls.watch;
        q.owed = g->required;
    }
    return st ? st : pn_guide_new(&c->guide, pn_engine_mem(m->engine), &q, err);
}

PN_INTERNAL void pn_constraint_close(pn_constraint *c)
{
    pn_guide_free(c->guide);
    c->guide = NULL;
}

PN_INTERNAL pn_status pn_constraint_mask(pn_constraint *c, const uint32_t **allowed, pn_err *err)
{
    *allowed = NULL;
    return c->guide ? pn_guide_mask(c->guide, allowed, err) : PN_OK;
}

PN_INTERNAL pn_status pn_constraint_accept(pn_constraint *c, pn_token t, pn_bytes piece, pn_err *err)
{
    pn_status st = c->guide ? pn_guide_accept(c->guide, t, piece, err) : PN_OK;
    if (st == PN_E_STATE)
        pn_guide_ban(c->guide, t);
    return st;
}

PN_INTERNAL bool pn_constraint_done(const pn_constraint *c) { return c->guide && pn_guide_done(c->guide); }
