/*
 * pn_grammar_api.h - grammars and vocabularies together, for whoever constrains a session.
 */
#ifndef PN_GRAMMAR_API_H
#define PN_GRAMMAR_API_H

#include "engine/pn_engine_int.h"
#include "sample/pn_calls.h"

struct pn_grammar {
    pn_engine *engine;          /* borrowed */
    pn_gram *gram;              /* retained; NULL for tool calls */
    pn_calls calls;             /* of pn_grammar_tools */
    bool is_calls, required, single, none;
    bool is_document;           /* of pn_grammar_json_schema */
};

/* The vocabulary as a trie: all but control, unused and unknown tokens and those that end an answer. */
PN_INTERNAL pn_status pn_gtrie_from_vocab(pn_gtrie **out, pn_mem *mem, const pn_vocab *v, pn_err *err);

/* A pn_gram_find_token over a pn_vocab: control and user-defined tokens by their text. */
PN_INTERNAL pn_token pn_grammar_find_marker(void *vocab, const char *text, size_t len);

/* pn_grammar_tools when the family and the document are known; v may be NULL. */
PN_INTERNAL pn_status pn_grammar_calls(pn_engine *e, const pn_vocab *v, const pn_calls_params *p, pn_grammar **out, pn_err *err);

#endif /* PN_GRAMMAR_API_H */
