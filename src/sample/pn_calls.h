/*
 * pn_calls.h - tool calls that a model cannot get wrong: grammars in the syntax of its family.
 *
 * For each family of text/pn_out_family.h this builds what a call looks like: the tags around it, the
 * names of the tools there are, and arguments that satisfy the tool's schema.  Two uses:
 *
 *     required    the answer is calls and nothing else: lane 0 of the grammar is the whole answer.
 *     auto        text until a trigger (the opening tag, usually) and then a call: each trigger has a
 *                 lane, the language of what follows it.  pn_guide.h watches for triggers.
 *
 * One grammar holds all lanes, so that the arguments of a tool are compiled once: a text in lane k
 * starts with the two bytes k / 256, k % 256, which stand for nothing but the choice.
 *
 * What the family's parser reads as a call begins with a trigger, or pn_watch.h stops it; and it ends where
 * the lane does.  tests/unit/test_held.c holds the two against each other.
 *
 * A marker that is one token of the vocabulary has to be written with that token: spelled from pieces
 * it would be another text to the model that reads it back.
 *
 * Values.  JSON families take arguments as pn_schema.h generates them.  Tagged families write strings
 * as bare text, which cannot hold its closing tag, and everything else as JSON; members of up to
 * CALLS_ANY_ORDER parameters come in any order, those of more in the order of the schema.
 *
 * What a schema demands and a grammar cannot enforce is refused with the JSON pointer in the array of
 * tools, or, for a tool that is not strict and whose call is the model's own choice (auto), widened and
 * the pointer noted.
 *
 * Pure: no file-scope state.
 */
#ifndef PN_CALLS_H
#define PN_CALLS_H

#include "base/pn_json.h"
#include "sample/pn_grammar.h"
#include "sample/pn_watch.h"
#include "text/pn_toolcall.h"

typedef struct pn_calls_params {
    const pn_out_format *format;    /* whose syntax */
    const pn_json_doc *tools;       /* OpenAI's array of function tools; flat objects are taken too */
    pn_bytes only;                  /* the one function that may be called; data NULL: any of them */
    bool required;                  /* the answer is a call; else calls are the model's choice */
    bool single;                    /* one call and no more */
    bool none;                      /* triggers alone, to keep calls from coming about: no grammar */
    pn_gram_find_token find;        /* ids of control and user-defined tokens; NULL: markers are bytes */
    void *user;
} pn_calls_params;

typedef struct pn_trigger {
    char *text;                     /* owned */
    uint32_t len, lane;
    bool at_start;                  /* counts at the start of the answer only, white space apart */
    bool bare;                      /* stands for {"name": "f" in the spellings that pn_watch.h knows */
    bool last;                      /* behind its call the reader would take anything for more of it: the
                                       answer is over */
} pn_trigger;

typedef struct pn_calls {
    pn_mem *mem;
    pn_gram *gram;                  /* retained; NULL with none */
    pn_trigger *triggers;           /* owned, [n_triggers]; when required without lanes, to be kept from
                                       the reasoning */
    size_t n_triggers, cap_triggers;
    pn_watch_kind watch;            /* what else may become a call */
    pn_str widened;                 /* JSON pointers, a line each */
} pn_calls;

/* PN_E_INVALID: no tools, a tool without a name, no function called `only`, a schema that is none.
 * PN_E_UNSUPPORTED: a keyword that cannot be enforced, a name that cannot be told in the syntax.  The text starts with the JSON pointer.  Works in
 * tools' memory; on failure *out is empty. */
PN_INTERNAL pn_status pn_calls_new(pn_calls *out, pn_mem *mem, const pn_calls_params *p, pn_err *err);
PN_INTERNAL void pn_calls_fini(pn_calls *c);

#endif /* PN_CALLS_H */
