/*
 * pn_norm.h - rewriting text before it is cut into tokens: normal forms, case, replacements.
 *
 * Files of the Hugging Face kind say which rewriting their vocabulary was trained with, as a list of
 * steps.  A step reads one buffer and writes the other.  When asked to, the result also says for each
 * byte from where in the original it comes, so that a token found in rewritten text can be held
 * against the stretches of the original that are trusted (pn_vocab_encode).
 *
 * Bytes that are not UTF-8 pass through every step; they combine with nothing.
 */
#ifndef PN_NORM_H
#define PN_NORM_H

#include "base/pn_str.h"

typedef enum pn_norm_kind {
    PN_NORM_NFC, PN_NORM_NFD, PN_NORM_NFKC, PN_NORM_NFKD,
    PN_NORM_LOWERCASE,      /* full mapping of each character by itself */
    PN_NORM_STRIP_MARKS,    /* drop \p{M} */
    PN_NORM_TRIM,           /* white space off: left, right */
    PN_NORM_REPLACE,        /* every `from`, left to right, becomes `to` */
    PN_NORM_PREPEND         /* `to` in front, unless the text is empty */
} pn_norm_kind;

typedef struct pn_norm_step {
    pn_norm_kind kind;
    bool left, right;
    pn_bytes from, to;      /* borrowed; from: not empty */
} pn_norm_step;

typedef struct pn_norm_text {
    pn_str text;
    uint32_t *src;          /* owned, [text.len] when tracked: where the original of a byte begins */
    size_t cap_src;
} pn_norm_text;

typedef struct pn_norm_char { uint32_t cp, src; uint8_t ccc; } pn_norm_char;

/* The working memory of one caller; reused from text to text. */
typedef struct pn_norm {
    pn_mem *mem;
    pn_norm_text out, in;   /* the result is in `out` */
    bool track;
    pn_norm_char *seg, *sorted;     /* owned: a character with its marks, and room to order them */
    size_t n_seg, cap_seg, cap_sorted;
} pn_norm;

PN_INTERNAL void pn_norm_init(pn_norm *nm, pn_mem *mem);
PN_INTERNAL void pn_norm_fini(pn_norm *nm);

/* s[0..n), below 2 GiB, through the steps to nm->out.text, with nm->out.src when `track`.  Linear in
 * the text and what it grows to.  False: out of memory. */
PN_INTERNAL bool pn_norm_run(pn_norm *nm, const pn_norm_step *steps, size_t n_steps, const char *s, size_t n, bool track);

/* --- the tables, for pn_norm.c --------------------------------------------------------------- */

typedef struct pn_norm_class { uint32_t first, last; uint8_t ccc; } pn_norm_class;
typedef struct pn_norm_decomp { uint32_t cp; uint16_t at; uint8_t n, compat; } pn_norm_decomp;
typedef struct pn_norm_comp { uint32_t a, b, to; } pn_norm_comp;
typedef struct pn_norm_tables {
    const pn_norm_class *classes;       /* sorted */
    const pn_norm_decomp *decomp;       /* sorted by cp, then compat */
    const uint16_t *pool;
    const pn_norm_comp *comp;           /* sorted by a, then b */
    size_t n_classes, n_decomp, n_comp;
} pn_norm_tables;

PN_INTERNAL const pn_norm_tables *pn_norm_tab(void);

#endif /* PN_NORM_H */
