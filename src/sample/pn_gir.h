/*
 * pn_gir.h - building a grammar piece by piece: what GBNF, regular expressions and JSON Schema share.
 *
 * A builder holds nodes; a node is a language over bytes, named by a number.  Nodes are made from
 * nodes, so a front end reads like its own definition:
 *
 *     pn_gir *b;
 *     pn_gir_new(&b, mem, NULL, err);
 *     uint32_t list = pn_gir_rule(b, "list");                 // may be referred to before defined
 *     pn_gnode items[] = {pn_gir_bytes(b, "[", 1), pn_gir_opt(b, pn_gir_ref(b, list)), pn_gir_bytes(b, "]", 1)};
 *     pn_gir_define(b, list, pn_gir_seq(b, items, 3));
 *     status = pn_gir_finish(b, pn_gir_ref(b, list), &gram, err);
 *     pn_gir_free(b);
 *
 * Errors are sticky: the first one (memory, a limit) is kept, later calls do nothing and return
 * PN_GNODE_NONE, which every call accepts.  So nobody checks in between; pn_gir_finish (or pn_gir_status)
 * tells.  Front ends may record an error of their own with pn_gir_fail.
 *
 * A node may be used any number of times, everywhere: large ones that are used twice are compiled
 * once and called.  Children exist before their parents, so cycles go through rules only.
 *
 * What finish checks: every rule referred to is defined; no left recursion (nullable prefixes
 * included); the root has a sentence.  Parts that cannot be completed are cut away.
 *
 * Threads: one builder, one thread.
 */
#ifndef PN_GIR_H
#define PN_GIR_H

#include "sample/pn_grammar.h"

typedef struct pn_gir pn_gir;
typedef uint32_t pn_gnode;

#define PN_GNODE_NONE 0u                /* what a failed call returns */
#define PN_GIR_MANY UINT32_MAX          /* as max of a repetition: no upper bound */

PN_INTERNAL pn_status pn_gir_new(pn_gir **out, pn_mem *mem, const pn_gram_limits *limits, pn_err *err);
PN_INTERNAL void pn_gir_free(pn_gir *b);
PN_INTERNAL const pn_gram_limits *pn_gir_limits(const pn_gir *b);      /* with defaults filled in */

PN_INTERNAL bool pn_gir_ok(const pn_gir *b);
PN_INTERNAL pn_status pn_gir_status(const pn_gir *b, pn_err *err);     /* the first error, copied to *err */
PN_INTERNAL pn_gnode pn_gir_fail(pn_gir *b, pn_status status, const char *fmt, ...) PN_PRINTF(3, 4);

/* Count work against compile_steps; false (and a sticky error) when it is used up. */
PN_INTERNAL bool pn_gir_steps(pn_gir *b, uint64_t n);

/* --- leaves --------------------------------------------------------------------------------- */

PN_INTERNAL pn_gnode pn_gir_empty(pn_gir *b);                  /* exactly the empty text */
PN_INTERNAL pn_gnode pn_gir_never(pn_gir *b);                  /* nothing at all */
PN_INTERNAL pn_gnode pn_gir_bytes(pn_gir *b, const char *bytes, size_t n);     /* these bytes; n may be 0 */
PN_INTERNAL pn_gnode pn_gir_text(pn_gir *b, const char *zero_terminated);
PN_INTERNAL pn_gnode pn_gir_byte_range(pn_gir *b, uint8_t lo, uint8_t hi);     /* one byte */
PN_INTERNAL pn_gnode pn_gir_byte_set(pn_gir *b, const uint32_t set[8]);        /* one byte; bit c & 31 of word c / 32 */

typedef struct pn_cp_range { uint32_t lo, hi; } pn_cp_range;   /* code points, both included */

/* One character out of the ranges (any order, may overlap), as UTF-8.  negated: one that is in none.
 * Surrogates and what is above U+10FFFF are never matched; nothing left: never. */
PN_INTERNAL pn_gnode pn_gir_class(pn_gir *b, const pn_cp_range *ranges, size_t n, bool negated);

/* One whole token by its id; negated: any one token but this (and no end token). */
PN_INTERNAL pn_gnode pn_gir_token(pn_gir *b, pn_token id, bool negated);

/* A marker such as "<|channel|>final": where `find` knows a token of three bytes or more, that token and
 * no spelling from pieces; bytes between.  find NULL: all bytes. */
PN_INTERNAL pn_gnode pn_gir_mark(pn_gir *b, const char *text, pn_gram_find_token find, void *user);

/* --- combining ------------------------------------------------------------------------------ */

PN_INTERNAL pn_gnode pn_gir_seq(pn_gir *b, const pn_gnode *parts, size_t n);   /* n 0: empty */
PN_INTERNAL pn_gnode pn_gir_seq2(pn_gir *b, pn_gnode x, pn_gnode y);
PN_INTERNAL pn_gnode pn_gir_seq3(pn_gir *b, pn_gnode x, pn_gnode y, pn_gnode z);
PN_INTERNAL pn_gnode pn_gir_alt(pn_gir *b, const pn_gnode *parts, size_t n);   /* n 0: never */
PN_INTERNAL pn_gnode pn_gir_alt2(pn_gir *b, pn_gnode x, pn_gnode y);
PN_INTERNAL pn_gnode pn_gir_opt(pn_gir *b, pn_gnode x);

/* min..max times (max PN_GIR_MANY: no bound).  Large bounds are a counter at run time, not copies. */
PN_INTERNAL pn_gnode pn_gir_repeat(pn_gir *b, pn_gnode x, uint32_t min, uint32_t max);

/* Any of n literal texts, as one trie: 20,000 enum values make no 20,000 parallel branches. */
PN_INTERNAL pn_gnode pn_gir_words(pn_gir *b, const pn_bytes *words, size_t n);

/* --- rules: names for nodes, and the only way to recursion ----------------------------------- */

/* A new rule; `name` (for messages; may be NULL) is copied.  Defining again replaces. */
PN_INTERNAL uint32_t pn_gir_rule(pn_gir *b, const char *name);
PN_INTERNAL uint32_t pn_gir_rule_n(pn_gir *b, const char *name, size_t len);
PN_INTERNAL void pn_gir_define(pn_gir *b, uint32_t rule, pn_gnode body);
PN_INTERNAL bool pn_gir_defined(const pn_gir *b, uint32_t rule);
PN_INTERNAL pn_gnode pn_gir_ref(pn_gir *b, uint32_t rule);

/* --- regular languages: automata, intersection, difference ------------------------------------ */

/* A deterministic automaton over bytes as a node: state 0 is the start.  Edges of one state must not
 * overlap.  Use it for digit bounds, remainders, calendars.  Arrays are borrowed during the call. */
typedef struct pn_gedge {
    uint32_t from, to;
    uint8_t lo, hi;                     /* bytes lo..hi */
} pn_gedge;
PN_INTERNAL pn_gnode pn_gir_dfa(pn_gir *b, const pn_gedge *edges, size_t n_edges, const uint8_t *accept, uint32_t n_states);

/* Both x and y; x but not y.  x and y must be regular: recursion, if any, has to be finite in the
 * states it reaches (else the limit dfa_states is met), and no token terminals.  Rules that x and y
 * refer to must be defined already.  The result is an automaton. */
PN_INTERNAL pn_gnode pn_gir_and(pn_gir *b, pn_gnode x, pn_gnode y);
PN_INTERNAL pn_gnode pn_gir_and_not(pn_gir *b, pn_gnode x, pn_gnode y);

/* Has x no sentence?  (true too after an error) */
PN_INTERNAL bool pn_gir_is_never(pn_gir *b, pn_gnode x);

/* --- JSON strings: "body" is what stands between the quotes --------------------------------- */

/* One character of a body in any spelling: itself, short escape, \uXXXX (pairs for what is above
 * U+FFFF; no lone surrogates).  Counts as one for lengths. */
PN_INTERNAL pn_gnode pn_gir_json_char(pn_gir *b);

/* min..max such characters. */
PN_INTERNAL pn_gnode pn_gir_json_body(pn_gir *b, uint32_t min, uint32_t max);

/* Exactly this (decoded, UTF-8) text in its canonical spelling: \" \\ \b \f \n \r \t, other controls
 * as \u00XX, all else raw.  No quotes around it. */
PN_INTERNAL pn_gnode pn_gir_json_text(pn_gir *b, const char *text, size_t n);

/* Any body whose decoded text is none of the (decoded, UTF-8) texts, however it is spelled. */
PN_INTERNAL pn_gnode pn_gir_json_not(pn_gir *b, const pn_bytes *texts, size_t n);

/* --- regular expressions (pn_regex.c) -------------------------------------------------------- */

enum {
    PN_REGEX_JSON = 1,                  /* the text is a JSON string's body: characters in canonical
                                           spelling (raw or the short escape); else raw text */
    PN_REGEX_SEARCH = 2                 /* as in JSON Schema: a side without an anchor may be
                                           anything; else both ends are bound in any case */
};

/* ECMA syntax without what no automaton can do.  On a bad or unsupported pattern the sticky error is
 * NOT set: PN_E_INVALID (syntax; the text has the offset) or PN_E_UNSUPPORTED (look-around, back
 * references, \b, inner anchors: the text names it) is returned and *out untouched, so that the
 * caller can add its JSON pointer or widen the node. */
PN_INTERNAL pn_status pn_gir_regex(pn_gir *b, const char *pattern, size_t len, unsigned flags, pn_gnode *out, pn_err *err);

/* --- what one compilation may use ------------------------------------------------------------- */

/* A memory that lends compiled_bytes of another in all (limits may be NULL); what is beyond gets NULL,
 * as if there were no more.  For the text read, the builder and the grammar together. */
typedef struct pn_gir_purse {
    pn_mem mem;                         /* first: cast back */
    pn_mem *from;
    size_t most, used;
    bool spent;                         /* something was refused */
} pn_gir_purse;
PN_INTERNAL void pn_gir_purse_init(pn_gir_purse *p, pn_mem *from, const pn_gram_limits *limits);

/* The end: a grammar made (*g, NULL after a failure) lives on in the memory behind the purse, and out of
 * memory is a limit when it was the purse's.  Returns status or PN_E_INVALID. */
PN_INTERNAL pn_status pn_gir_purse_close(const pn_gir_purse *p, pn_gram *g, pn_status status, pn_err *err);

/* --- done ------------------------------------------------------------------------------------ */

/* Compile.  The builder stays usable and is still to be freed. */
PN_INTERNAL pn_status pn_gir_finish(pn_gir *b, pn_gnode root, pn_gram **out, pn_err *err);

#endif /* PN_GIR_H */
