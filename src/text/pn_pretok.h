/*
 * pn_pretok.h - cutting text into the words within which BPE may merge.
 *
 * Every published pre-tokenizer is a short list of regular expressions, but of a very narrow kind:
 * optional prefix character, a run of one class, a run of another.  So a pattern here is a table of
 * such rules over character classes, tried in order at each place, and each rule is linear by
 * construction: there is nothing to backtrack into, whatever the text.
 *
 * A pattern that no table knows is a program instead (pn_pattern.h), which is linear too.
 *
 * Where published patterns and common approximations of them differ (upper and lower case beyond
 * ASCII, marks, the Han script) the published patterns are followed.
 */
#ifndef PN_PRETOK_H
#define PN_PRETOK_H

#include "text/pn_pattern.h"
#include "text/pn_unicode.h"

enum {
    PN_PRETOK_IGNORE_MERGES = 1,    /* a word that is a token as a whole is that token */
    PN_PRETOK_ADD_BOS = 2,          /* default of add_bos */
    PN_PRETOK_NO_BOS = 4,           /* no default BOS id */
    PN_PRETOK_RAW = 8,              /* tokens are stored as UTF-8, not in the byte alphabet */
    PN_PRETOK_ESCAPE = 16,          /* U+0020 becomes U+2581 first */
    PN_PRETOK_FORCE_BOS = 32,       /* add_bos whatever the file says */
    PN_PRETOK_DROP_GAPS = 64,       /* what no rule matches is dropped */
    PN_PRETOK_WHOLE_NEWLINES = 128  /* a run of newlines that is a token is that token */
};

typedef struct pn_pretok pn_pretok;

/* By the file's name for it; NULL: unknown. */
PN_INTERNAL const pn_pretok *pn_pretok_find(const char *name, size_t len);
PN_INTERNAL unsigned pn_pretok_flags(const pn_pretok *p);

/* One word; false stops the split. */
typedef bool (*pn_pretok_emit)(void *user, const char *word, size_t len);

/* Cut text[0..n): the words in order, together the whole text (but for what is removed).  n < 2^31.  mem:
 * scratch of patterns that are programs.  False when emit said so or memory ran out. */
PN_INTERNAL bool pn_pretok_split(const pn_pretok *p, pn_mem *mem, const char *text, size_t n, pn_pretok_emit emit, void *user);

/* --- between pn_pretok.c and the tables in pn_pretok_rules.c -------------------------------- */

/* A class of characters: (one of the bits of `in`, or within `add`) and none of `out` and `sub`.
 * Ranges are sorted, inclusive, and end with {0, 0}; NULL: none. */
typedef struct pn_pretok_set {
    uint64_t in, out;
    const pn_uni_pair *add, *sub;
} pn_pretok_set;

typedef enum pn_pretok_kind {
    PN_PRE_SEQ,             /* pre? body{min,max} tail{0,tail_max} */
    PN_PRE_SEQ_MUST,        /* the same, prefix required */
    PN_PRE_CONTRACTION,     /* 's 't 're 've 'm 'll 'd */
    PN_PRE_CONTRACTION_CI,  /* in any case */
    PN_PRE_CASED,           /* pre? body* tail+ (CI)? | pre? body+ tail* (CI)?; body upper, tail lower */
    PN_PRE_CASED_PLAIN,     /* the same without contractions */
    PN_PRE_NEWLINES,        /* \s*[\r\n]+ */
    PN_PRE_SPACE_AHEAD,     /* \s+(?!\S) */
    PN_PRE_SPACE_END,       /* \s+$ */
    PN_PRE_SPACE_POW2,      /* \s{512}(?!\S)|...|\s{4}(?!\S)|\s{1,2}(?!\S)|\s */
    PN_PRE_RIGHT3,          /* a run of body in groups of three counted from its end */
    PN_PRE_RIGHT3_WORD,     /* the same where the run ends at a word boundary */
    PN_PRE_RIGHT3_EDGE,     /* (?=(body{3})+(?!body)): between two such places */
    PN_PRE_SUPERWORD,       /* pre? (L M* ( L M*)*)+ */
    PN_PRE_SENTINEL,        /* <sentinel:[0-9]+> */
    PN_PRE_IMAGE,           /* IMGIMG[A-I]{1,4}Z */
    PN_PRE_INDENT           /* \t | \n | four spaces | two spaces */
} pn_pretok_kind;

typedef struct pn_pretok_rule {
    pn_pretok_kind kind;
    const pn_pretok_set *pre, *body, *tail;
    uint8_t min, max, tail_max;     /* max, tail_max 0: no limit */
} pn_pretok_rule;

/* What becomes of the matches and of what lies between them ("behavior" of a tokenizer.json). */
typedef enum pn_pretok_cut {
    PN_CUT_ISOLATED,        /* each is a piece */
    PN_CUT_REMOVED,         /* what lies between is, the matches are dropped */
    PN_CUT_WITH_PREVIOUS,   /* a match goes with what lies in front of it */
    PN_CUT_WITH_NEXT,       /* and with what lies behind it */
    PN_CUT_CONTIGUOUS       /* matches that touch are one piece */
} pn_pretok_cut;

typedef struct pn_pretok_pattern {
    const pn_pretok_rule *rules;
    size_t n_rules;
    pn_pattern *program;        /* instead of rules; who made it frees it */
    pn_pretok_cut cut;
    bool invert;                /* matches are what lies between them, and the other way round */
} pn_pretok_pattern;

#define PN_PRETOK_MAX_LEVELS 8

struct pn_pretok {
    const char *names;              /* separated and surrounded by spaces */
    unsigned flags;
    const pn_pretok_pattern *levels[PN_PRETOK_MAX_LEVELS];     /* applied to each other's pieces */
};

PN_INTERNAL const pn_pretok *pn_pretok_table(size_t *n);

/* --- putting a list together (tokenizer.json) ------------------------------------------------ */

typedef enum pn_pretok_piece {
    PN_PIECE_GPT2,          /* ByteLevel's own pattern */
    PN_PIECE_DIGIT,         /* each number character by itself */
    PN_PIECE_DIGITS,        /* runs of them */
    PN_PIECE_PUNCT,         /* each punctuation character by itself */
    PN_PIECE_PUNCTS,        /* runs of them */
    PN_PIECE_METASPACE      /* cut before each U+2581 */
} pn_pretok_piece;

PN_INTERNAL const pn_pretok_pattern *pn_pretok_pattern_of(pn_pretok_piece piece);
PN_INTERNAL const char *pn_pretok_regex_of(pn_pretok_piece piece);      /* the expression for it; "": none */

/* The pattern a published regular expression stands for, compared character by character (a CR or LF
 * may stand for its escape, and a class of ranges for its members in any order).  NULL: unknown.
 * *total: its matches cover every text, so nothing lies between them. */
PN_INTERNAL const pn_pretok_pattern *pn_pretok_regex(const char *s, size_t n, bool *total);

/* The first name in the table for these levels and these of the flags IGNORE_MERGES, RAW, ESCAPE;
 * {NULL, 0}: it has none. */
PN_INTERNAL pn_bytes pn_pretok_name(const pn_pretok *p);

#endif /* PN_PRETOK_H */
