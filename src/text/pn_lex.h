/*
 * pn_lex.h - which tokens begin here?  A sorted list of tokens walked byte by byte.
 *
 * Special tokens, Unigram, WordPiece and RWKV all ask for the tokens that are prefixes of the text
 * at a place.  A trie answers that but costs tens of bytes a node; a sorted list of ids answers it by
 * bisection within a shrinking range and costs four bytes a token, which matters at 250,000 tokens.
 * Duplicate texts keep the last token, as everywhere.
 */
#ifndef PN_LEX_H
#define PN_LEX_H

#include "base/pn_mem.h"

typedef struct pn_lex {
    const pn_bytes *texts;      /* [..] by id, borrowed; or, when NULL, */
    const char *arena;          /* texts are arena[off[id] .. off[id + 1]), borrowed */
    const uint32_t *off;
    uint32_t *ids;              /* owned, [n], sorted by text; room for `cap` */
    uint32_t n, cap;
    uint32_t first[257];        /* ids[first[c] .. first[c + 1]) begin with byte c */
} pn_lex;

/* Sort the ids put into l->ids[0..n) (from pn_mem_alloc, VOCAB, n * 4 bytes) and index them; empty
 * texts are dropped.  False: out of memory.  Free with pn_lex_fini(). */
PN_INTERNAL bool pn_lex_build(pn_lex *l, pn_mem *mem);
PN_INTERNAL void pn_lex_fini(pn_lex *l, pn_mem *mem);

/* A walk: tokens ids[lo..hi) share the first `depth` bytes of the text. */
typedef struct pn_lex_walk {
    uint32_t lo, hi;
    size_t depth;
} pn_lex_walk;

/* The tokens s[0..n) begins with, shortest first: their ids, lengths in w->depth; -1: no more. */
PN_INTERNAL void pn_lex_begin(const pn_lex *l, pn_lex_walk *w);
PN_INTERNAL int32_t pn_lex_next(const pn_lex *l, pn_lex_walk *w, const char *s, size_t n);

#endif /* PN_LEX_H */
