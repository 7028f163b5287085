/*
 * pn_cuts.h - how text is cut, in words that a file can hold.
 *
 * A GGUF file has names for the published ways to cut text and for no others.  Where a tokenizer.json has
 * another, a file of ours holds it as it is, under keys of our own and a name that nobody knows, so that
 * other programs refuse the file and do not cut text in a way of theirs:
 *
 *     tokenizer.ggml.pre                  "pantheon-patterns"
 *     pantheon.tokenizer.patterns         [string], one a level: a cut, a space, a regular expression
 *     pantheon.tokenizer.ignore_merges    bool: a word that is a token as a whole is that token
 *
 * The cut is one of isolated, removed, previous, next, contiguous; with ! behind it, it is inverted.
 */
#ifndef PN_CUTS_H
#define PN_CUTS_H

#include "base/pn_str.h"
#include "text/pn_pretok.h"

#define PN_CUTS_NAME "pantheon-patterns"

/* Levels that have no table; their programs are owned. */
typedef struct pn_cuts {
    pn_pretok_pattern own[PN_PRETOK_MAX_LEVELS];
    uint32_t n;
} pn_cuts;

PN_INTERNAL void pn_cuts_fini(pn_cuts *c);
PN_INTERNAL uint64_t pn_cuts_bytes(const pn_cuts *c);          /* memory held by programs */

/* The level that does this: a table when a published pattern is used as it was published, else one of
 * c->own.  literal: a text and not an expression.  PN_E_UNSUPPORTED with place and reason; PN_E_NOMEM. */
PN_INTERNAL pn_status pn_cuts_level(pn_cuts *c, pn_mem *mem, pn_bytes pattern, bool literal, pn_pretok_cut cut, bool invert,
                                    const pn_pretok_pattern **level, pn_err *err);

/* The same in words, behind what *out holds; out->failed: no memory. */
PN_INTERNAL void pn_cuts_write(pn_str *out, pn_bytes pattern, bool literal, pn_pretok_cut cut, bool invert);

/* A list of such words, into p->levels.  *c owns what was made, also of a list that fails. */
PN_INTERNAL pn_status pn_cuts_read(pn_cuts *c, pn_mem *mem, pn_pretok *p, const pn_bytes *words, size_t n, pn_err *err);

#endif /* PN_CUTS_H */
