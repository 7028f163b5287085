/*
 * pn_grammar.h - text that must follow a grammar: compiled once, matched token by token.
 *
 * Three objects:
 *
 *     pn_gram      a compiled grammar (from GBNF here; from JSON Schema in pn_schema.h; by hand
 *                  with pn_gir.h).  Reference-counted, the same for all users.
 *     pn_gtrie     the vocabulary as a tree of bytes; one per model, made once.
 *     pn_matcher   where one text stands in one grammar.
 *
 * How it works.  A grammar is a small program over bytes (so a token that ends in the middle of a
 * character is no special case).  A matcher stands at a *set of configurations*; a configuration is
 * a place in the program and a stack.  Stacks are immutable, shared, and equal ones are the same
 * object, and so are sets: the state of a matcher is one number.  Hence fork and rollback copy a
 * number, an ambiguous grammar does not multiply anything, and what a state does with a byte is
 * computed once and looked up afterwards, as in a DFA made on demand.  A mask is a walk over the
 * trie along these look-ups, kept per state in a cache bounded in bytes.
 *
 * Why not a DFA from the start: nested JSON has no finite one, and most states of the finite parts
 * are never visited.
 *
 * Invariants
 *   1. Each live state can be extended to a sentence (alternatives that cannot end were cut off
 *      when the grammar was compiled), unless the stack limit is reached.
 *   2. A set holds at most `configs` configurations, a stack at most `depth` frames; what would
 *      deepen a full stack is not allowed, so the model is made to close brackets.
 *   3. pn_matcher_mask sets a token's bit exactly when pn_matcher_accept_token would succeed.
 *
 * Threads: a grammar and a trie may be shared by any number of threads (the look-ups of a grammar are
 * guarded by its lock); one matcher belongs to one thread at a time.
 */
#ifndef PN_GRAMMAR_H
#define PN_GRAMMAR_H

#include "base/pn_mem.h"
#include "base/pn_str.h"

typedef struct pn_gram pn_gram;
typedef struct pn_gtrie pn_gtrie;
typedef struct pn_matcher pn_matcher;

/* Zero means the default for every field.  What is beyond a limit gives PN_E_INVALID with the limit's
 * name and value in the text. */
typedef struct pn_gram_limits {
    size_t text_bytes;          /* of grammar text; 1 MiB */
    uint32_t rules;             /* 10,000 */
    uint32_t elements;          /* nodes built, and states of the program: 200,000 */
    uint32_t nesting;           /* groups in GBNF: 200; in regex: 100 */
    uint32_t repeat;            /* a bound, and products of nested bounds; 1,000,000 */
    size_t regex_bytes;         /* 4 KiB */
    uint32_t dfa_states;        /* of a product or complement; 50,000 */
    uint64_t compile_steps;     /* one is about 20 ns; 5,000,000 */
    size_t compiled_bytes;      /* while compiling: document, builder and grammar; 64 MiB */
    size_t cache_bytes;         /* states and masks remembered at run time; 32 MiB */
    uint32_t configs;           /* 512 */
    uint32_t depth;             /* 1,000 */
    uint64_t mask_steps;        /* trie nodes and transitions of one mask; 20,000,000 */
} pn_gram_limits;

/* --- grammars ------------------------------------------------------------------------------- */

/* The id of the token whose text is exactly this (special tokens included), -1: none. */
typedef pn_token (*pn_gram_find_token)(void *user, const char *text, size_t len);

/* Compile GBNF.  limits may be NULL.  find may be NULL: then `<text>` terminals are an error and
 * `<[id]>` are taken as they are.  PN_E_INVALID: the text names line, column and what was expected. */
PN_INTERNAL pn_status pn_gram_from_gbnf(pn_gram **out, pn_mem *mem, const char *text, size_t len,
                                        const pn_gram_limits *limits, pn_gram_find_token find, void *user,
                                        pn_err *err);

/* A whole answer that matches a regular expression (anchors optional: both ends are bound). */
PN_INTERNAL pn_status pn_gram_from_regex(pn_gram **out, pn_mem *mem, const char *text, size_t len,
                                         const pn_gram_limits *limits, pn_err *err);

PN_INTERNAL pn_gram *pn_gram_retain(pn_gram *g);
PN_INTERNAL void pn_gram_release(pn_gram *g);                  /* NULL is a no-op */
PN_INTERNAL size_t pn_gram_bytes(pn_gram *g);                  /* program and what is remembered */

/* The program as GBNF, appended to *out: byte sequences become characters again, rules are named p1,
 * p2, ... by their place.  PN_E_UNSUPPORTED: it tells apart bytes that are no characters. */
PN_INTERNAL pn_status pn_gram_print(pn_gram *g, pn_str *out, pn_err *err);

/* 1: the whole text is a sentence; 0: it is not; negative: PN_E_NOMEM, or PN_E_INVALID for a limit. */
PN_INTERNAL int pn_gram_matches(pn_gram *g, const char *text, size_t len, pn_err *err);

/* --- the vocabulary as a trie --------------------------------------------------------------- */

typedef struct pn_gtrie_source {
    const pn_bytes *pieces;     /* [n_tokens] bytes as they appear in text; borrowed during the call */
    uint32_t n_tokens;
    uint32_t n_vocab;           /* columns of the logits, >= n_tokens; the rest is never allowed */
    const uint32_t *exclude;    /* bitmap [n_tokens]: control, unused, unknown tokens: not matched as
                                   text; NULL: none.  Empty pieces and `ends` are excluded anyway */
    const pn_token *ends;       /* [n_ends] tokens that end an answer */
    size_t n_ends;
} pn_gtrie_source;

PN_INTERNAL pn_status pn_gtrie_new(pn_gtrie **out, pn_mem *mem, const pn_gtrie_source *src, pn_err *err);
PN_INTERNAL void pn_gtrie_free(pn_gtrie *t);                   /* after every matcher that used it */
PN_INTERNAL size_t pn_gtrie_bytes(const pn_gtrie *t);
PN_INTERNAL uint32_t pn_gtrie_words(const pn_gtrie *t);        /* uint32 words of a mask: n_vocab / 32, up */

/* --- matching ------------------------------------------------------------------------------- */

#define PN_MATCHER_HISTORY 128  /* how many accepts a rollback may undo at most */

/* Retains g.  trie may be NULL when only bytes are matched; else it must outlive the matcher. */
PN_INTERNAL pn_status pn_matcher_new(pn_matcher **out, pn_mem *mem, pn_gram *g, const pn_gtrie *trie, pn_err *err);
PN_INTERNAL pn_status pn_matcher_fork(pn_matcher **out, const pn_matcher *m, pn_err *err);
PN_INTERNAL void pn_matcher_free(pn_matcher *m);
PN_INTERNAL void pn_matcher_reset(pn_matcher *m);              /* back to the start */

/* Go on by these bytes.  PN_E_STATE: no sentence continues so (the text says at which byte); then,
 * and after PN_E_NOMEM or PN_E_INVALID (a limit), the matcher is where it was.  A call counts as one
 * accept for rollback, whatever its length. */
PN_INTERNAL pn_status pn_matcher_accept_bytes(pn_matcher *m, const char *bytes, size_t n, pn_err *err);

/* The same by one token.  An end token is accepted where a sentence may end; then the matcher is
 * finished and accepts nothing more. */
PN_INTERNAL pn_status pn_matcher_accept_token(pn_matcher *m, pn_token t, pn_err *err);

/* How many of tokens[0..n) could be accepted one after another; the matcher stays where it is. */
PN_INTERNAL pn_status pn_matcher_check(pn_matcher *m, const pn_token *tokens, size_t n, size_t *n_ok, pn_err *err);

PN_INTERNAL bool pn_matcher_is_complete(const pn_matcher *m);  /* what was accepted is a sentence */
PN_INTERNAL bool pn_matcher_only_end(const pn_matcher *m);     /* ... and nothing can follow it */
PN_INTERNAL bool pn_matcher_is_finished(const pn_matcher *m);  /* an end token was accepted */

/* Accepts so far, and back to when there were `mark`.  PN_E_STATE: more than PN_MATCHER_HISTORY ago. */
PN_INTERNAL uint64_t pn_matcher_mark(const pn_matcher *m);
PN_INTERNAL pn_status pn_matcher_rollback(pn_matcher *m, uint64_t mark, pn_err *err);

/* Which tokens may come next: bits[pn_gtrie_words], bit t & 31 of word t / 32.  End tokens exactly
 * where a sentence may end.  PN_E_INVALID: a limit (mask_steps, configs); sample first, then
 * pn_matcher_accept_token.  *n_allowed (may be NULL): how many bits are set. */
PN_INTERNAL pn_status pn_matcher_mask(pn_matcher *m, uint32_t *bits, uint32_t *n_allowed, pn_err *err);

#endif /* PN_GRAMMAR_H */
