/*
 * pn_grammar_api.h - grammars and vocabularies together, for whoever constrains a session.
 */
#ifndef PN_GRAMMAR_API_H
#define PN_GRAMMAR_API_H

#include "engine/pn_engine_int.h"
#include "sample/pn_grammar.h"

struct pn_grammar {
    pn_engine *engine;          /* borrowed */
    pn_gram *gram;              /* retained */
};

/* The vocabulary as a trie: all but control, unused and unknown tokens and those that end an answer. */
PN_INTERNAL pn_status pn_gtrie_from_vocab(pn_gtrie **out, pn_mem *mem, const pn_vocab *v, pn_err *err);

#endif /* PN_GRAMMAR_API_H */
