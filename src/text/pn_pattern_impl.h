/*
 * pn_pattern_impl.h - what the files of pn_pattern share: sets of characters, and a pattern as a tree.
 *
 * Private to text/.
 */
#ifndef PN_PATTERN_IMPL_H
#define PN_PATTERN_IMPL_H

#include "text/pn_pattern.h"
#include "text/pn_unicode.h"

enum {
    PN_PAT_MAX_LEN = 8192,      /* bytes of a pattern; the longest published one has two thousand */
    PN_PAT_MAX_SETS = 64,       /* a character's membership is one word of bits */
    PN_PAT_MAX_RANGES = 1 << 16,
    PN_PAT_MAX_NEST = 32,
    PN_PAT_MAX_REPEAT = 1000
};

/* --- sets (pn_pattern_set.c) ------------------------------------------------------------------ */

/* Code points; ascending and apart after pn_pat_set_sort, in any order before.  Functions that add
 * return false when memory, or the number of ranges, ran out. */
typedef struct pn_pat_set {
    pn_mem *mem;
    pn_uni_pair *r;             /* owned, [n] inclusive */
    size_t n, cap;
} pn_pat_set;

PN_INTERNAL void pn_pat_set_fini(pn_pat_set *s);
PN_INTERNAL bool pn_pat_set_add(pn_pat_set *s, uint32_t a, uint32_t b);
PN_INTERNAL bool pn_pat_set_join(pn_pat_set *s, const pn_pat_set *other);
/* What pn_uni_class() gives one of the bits of `mask`, or everything else. */
PN_INTERNAL bool pn_pat_set_class(pn_pat_set *s, uint64_t mask, const pn_uni_pair *more, bool negated);
PN_INTERNAL void pn_pat_set_sort(pn_pat_set *s);
/* Of sorted sets: */
PN_INTERNAL bool pn_pat_set_not(pn_pat_set *s);
PN_INTERNAL bool pn_pat_set_and(pn_pat_set *s, const pn_pat_set *other);
PN_INTERNAL bool pn_pat_set_same(const pn_pat_set *a, const pn_pat_set *b);

/* --- the tree (pn_pattern_read.c) ------------------------------------------------------------- */

typedef enum pn_pat_kind {
    PN_PAT_CHAR,                /* cp */
    PN_PAT_SET,                 /* cp: number of the set */
    PN_PAT_SEQ,                 /* children one after the other; none: empty */
    PN_PAT_ALT,                 /* the first child that works */
    PN_PAT_REPEAT,              /* child {min,max} */
    PN_PAT_ATOMIC,              /* child, and what it took it keeps */
    PN_PAT_LOOK,                /* child follows (negated: does not) */
    PN_PAT_ASSERT               /* cp: pn_pat_assert; set: of BEHIND */
} pn_pat_kind;

typedef enum pn_pat_assert {
    PN_PAT_BEGIN, PN_PAT_END, PN_PAT_LINE_BEGIN, PN_PAT_LINE_END, PN_PAT_LAST_LINE_END, PN_PAT_BOUNDARY, PN_PAT_BEHIND
} pn_pat_assert;

#define PN_PAT_MANY UINT32_MAX

typedef struct pn_pat_node {
    pn_pat_kind kind;
    bool lazy, negated;
    uint32_t cp, set;
    uint32_t min, max;          /* max PN_PAT_MANY: no limit */
    int32_t child;              /* the last one, -1: none */
    int32_t prev;               /* the sibling in front, -1: none */
} pn_pat_node;

typedef struct pn_pat_tree {
    pn_mem *mem;
    pn_pat_node *nodes;         /* owned */
    size_t n_nodes, cap_nodes;
    int32_t root;
    pn_pat_set sets[PN_PAT_MAX_SETS];   /* sorted, no two the same */
    uint32_t n_sets;
} pn_pat_tree;

PN_INTERNAL pn_status pn_pat_read(pn_pat_tree *t, pn_mem *mem, const char *s, size_t n, bool literal, pn_err *err);
PN_INTERNAL void pn_pat_tree_fini(pn_pat_tree *t);

#endif /* PN_PATTERN_IMPL_H */
