/*
 * pn_gram_impl.h - what the files of the grammar engine share: builder, program, memory of states.
 *
 *     pn_gir.c       nodes                            pn_gbnf.c    GBNF text -> nodes
 *     pn_gchars.c    characters, words, JSON strings  pn_regex.c   regex text -> nodes
 *     pn_gproduct.c  intersection and difference
 *     pn_gcompile.c  nodes -> program                 pn_gmatch.c  program + bytes -> states
 *     pn_grammar.c   handles                          pn_gmask.c   states + vocabulary -> masks
 */
#ifndef PN_GRAM_IMPL_H
#define PN_GRAM_IMPL_H

#include "base/pn_base.h"
#include "base/pn_err.h"
#include "base/pn_hash.h"
#include "base/pn_thread.h"
#include "sample/pn_gir.h"
#include "sample/pn_grammar.h"

/* --- builder --------------------------------------------------------------------------------- */

typedef enum pn_gkind {
    PN_GK_NONE = 0,         /* index 0: what a failed call returned */
    PN_GK_EMPTY, PN_GK_NEVER,
    PN_GK_BYTES,            /* a: offset in text, b: length >= 1 */
    PN_GK_SET,              /* a: index in sets, min..max: lowest and highest byte, b: and all between */
    PN_GK_DFA,              /* a: first state in dstates, b: count */
    PN_GK_TOKEN,            /* a: id, b: negated */
    PN_GK_SEQ, PN_GK_ALT,   /* a: first in kids, b: count >= 2 */
    PN_GK_REPEAT,           /* a: child, b unused, min, max */
    PN_GK_REF               /* a: rule */
} pn_gkind;

typedef struct pn_gnode_rec {
    uint32_t kind, a, b, min, max;
} pn_gnode_rec;

typedef struct pn_gset256 { uint32_t w[8]; } pn_gset256;

/* One state of an automaton node; `to` of its edges counts from the node's first state. */
typedef struct pn_gdstate { uint32_t first_edge, n_edges, accept; } pn_gdstate;
typedef struct pn_gdedge { uint8_t lo, hi; uint32_t to; } pn_gdedge;

typedef struct pn_grule {
    uint32_t body;          /* node; 0: not defined */
    uint32_t name, name_len;    /* in text */
} pn_grule;

/* An open group in pn_gir.parts: its alternatives from `first` on, then the items from `items` on. */
typedef struct pn_ggroup { uint32_t first, items; size_t at; } pn_ggroup;

/* What pn_gcompile.c finds out about a node; zeroes between two grammars of one builder. */
typedef struct pn_gwork {
    uint32_t first_parent, n_parents;   /* who uses it, in a list of the compiler's */
    uint32_t need;                      /* children that must have the property looked at */
    uint32_t at_kid;                    /* where a walk has got to */
    uint32_t size, uses;                /* instructions of a copy; copies wanted */
    uint32_t entry;                     /* where a shared node's code begins; 0: not yet */
    uint8_t has, seen;                  /* properties; 0 not reached, 1 new, 2 open, 3 done */
} pn_gwork;

#define PN_GVEC(type) struct { type *v; size_t n, cap; }

struct pn_gir {
    pn_mem *mem;
    pn_gram_limits limits;
    pn_err err;             /* sticky */
    uint64_t steps;
    PN_GVEC(pn_gnode_rec) nodes;
    PN_GVEC(uint32_t) kids;
    PN_GVEC(char) text;
    PN_GVEC(pn_gset256) sets;
    PN_GVEC(pn_gdstate) dstates;
    PN_GVEC(pn_gdedge) dedges;
    PN_GVEC(pn_grule) rules;
    PN_GVEC(pn_ggroup) groups;
    PN_GVEC(pn_gnode) parts;
    PN_GVEC(pn_gwork) work;     /* [<= nodes] */
    PN_GVEC(uint32_t) reached;  /* bitmap of nodes */
    pn_gnode json_char;     /* made on first use */
};

/* Make room for `extra` more elements of vector `vec` (a PN_GVEC) of builder b; false: sticky error. */
#define PN_GIR_ROOM(b, vec, extra) \
    pn_gir_room((b), (void **)&(vec).v, &(vec).cap, (vec).n, (extra), sizeof *(vec).v)
PN_INTERNAL bool pn_gir_room(pn_gir *b, void **v, size_t *cap, size_t n, size_t extra, size_t size);

/* The stack of a parser of expressions, which must not recurse: b->groups.  It opens a group for the whole
 * text and one for each bracket; after an error these return false and PN_GNODE_NONE. */
PN_INTERNAL bool pn_gir_group_open(pn_gir *b, size_t at);              /* at: in the text, for messages */
PN_INTERNAL bool pn_gir_group_item(pn_gir *b, pn_gnode x);
PN_INTERNAL pn_gnode pn_gir_group_sequence(pn_gir *b);                 /* the items, which are used up */
PN_INTERNAL bool pn_gir_group_alternative(pn_gir *b, pn_gnode x);
PN_INTERNAL pn_gnode pn_gir_group_close(pn_gir *b);                    /* any of the alternatives */
PN_INTERNAL void pn_gir_group_unwind(pn_gir *b, size_t depth);         /* give up groups[depth..] */

/* --- program ---------------------------------------------------------------------------------- */

typedef enum pn_gop {
    PN_GOP_RET = 0,         /* back to the frame's place; without a frame: a sentence ends here */
    PN_GOP_RANGE,           /* a byte in lo..hi, then a */
    PN_GOP_SET,             /* a byte of sets[b], then a */
    PN_GOP_EDGES,           /* a byte of edges[b .. b + n), then where that edge says */
    PN_GOP_TOKEN,           /* token b (flag: any but b), then a */
    PN_GOP_JUMP,            /* a */
    PN_GOP_SPLIT,           /* any of list[b .. b + n) */
    PN_GOP_CALL,            /* push (return to b), then a */
    PN_GOP_COUNT,           /* push (counter 0 of the loop at a), then a */
    PN_GOP_LOOP             /* body a, then back here; after min..max rounds b */
} pn_gop;

enum { PN_GF_ACCEPT = 1, PN_GF_NEGATED = 2, PN_GF_NULLABLE = 4 };

typedef struct pn_ginstr {
    uint8_t op, flags, lo, hi;
    uint32_t a, b, n;       /* EDGES with PN_GF_ACCEPT: a is where the automaton may be left to */
    uint32_t min, max;
} pn_ginstr;

typedef struct pn_gprogram {
    PN_GVEC(pn_ginstr) code;
    PN_GVEC(pn_gset256) sets;
    PN_GVEC(pn_gdedge) edges;   /* to: place in code */
    PN_GVEC(uint32_t) list;
    uint32_t entry;
    uint32_t n_classes;         /* bytes that nothing in the program tells apart share a class */
    uint8_t class_of[256], byte_of[256];
    bool has_tokens;
} pn_gprogram;

/* --- states ------------------------------------------------------------------------------------- */

/* An immutable stack: this entry on top of `parent`.  Number 0 is the empty stack. */
typedef struct pn_gframe { uint32_t ret, count, parent, depth; } pn_gframe;

/* A place and a stack. */
typedef struct pn_gconfig { uint32_t pc, frame; } pn_gconfig;

enum {
    PN_GS_DEAD = 0,                     /* the set without configurations */
    PN_GS_ACCEPT = 1, PN_GS_BYTES = 2, PN_GS_TOKENS = 4     /* flags: may end; bytes, tokens may follow */
};
#define PN_GS_UNKNOWN UINT32_MAX        /* a transition not computed yet */
#define PN_GS_FAIL (UINT32_MAX - 1)     /* a transition that could not be computed: see fail */

typedef struct pn_gmask_entry pn_gmask_entry;

typedef struct pn_gstate {
    uint32_t first, n;                  /* in configs, sorted by pc and frame */
    uint32_t flags;
    uint32_t hash;
    uint32_t trans;                     /* offset of [n_classes] states in trans; UINT32_MAX: none yet */
    uint32_t safe_next;                 /* where every harmless character leads (pn_gmask.c); PN_GS_DEAD: not
                                           to one state; PN_GS_UNKNOWN: not looked at */
    pn_gmask_entry *mask;               /* borrowed from the list of masks, or NULL */
} pn_gstate;

struct pn_gmask_entry {
    pn_gmask_entry *prev, *next;        /* most recently used first */
    uint32_t state;
    uint32_t words, n_allowed;
    uint64_t serial;                    /* of the trie */
    uint32_t bits[];                    /* [words] */
};

struct pn_gram {
    pn_mem *mem;
    pn_gram_limits limits;
    pn_gprogram p;
    size_t program_bytes;
    pn_mutex lock;                      /* everything below */
    uint32_t refs;
    PN_GVEC(pn_gframe) frames;
    PN_GVEC(pn_gstate) states;
    PN_GVEC(pn_gconfig) configs;
    PN_GVEC(uint32_t) trans;
    uint32_t *frame_index, *state_index;    /* hash tables of numbers, 0: free */
    size_t frame_cap, state_cap;
    uint32_t start;
    uint64_t steps;                     /* work done, ever: for budgets */
    pn_status fail;                     /* why PN_GS_FAIL */
    const char *fail_what;
    uint64_t fail_value;
    PN_GVEC(pn_gconfig) work;           /* of one closure: every configuration met, in order */
    PN_GVEC(pn_gconfig) found;          /* those that wait for a byte or a token */
    bool found_accept;                  /* a sentence may end */
    uint64_t *seen;                     /* [seen_cap] set of work: stamp << 32 | index */
    size_t seen_cap;
    uint32_t stamp;                     /* of this closure: older slots are free */
    PN_GVEC(pn_gconfig) walk;           /* of one mask: (end of a subtree, state before it) */
    pn_gmask_entry *mask_head, *mask_tail;
    size_t mask_bytes;
    pn_matcher *matchers;               /* all of them: roots when states are thrown away */
};

struct pn_matcher {
    pn_mem *mem;
    pn_gram *gram;                      /* retained */
    const pn_gtrie *trie;               /* borrowed */
    pn_matcher *prev, *next;            /* in gram->matchers, under its lock */
    uint32_t state;                     /* under the lock: numbers may change when states are dropped */
    uint32_t flags;                     /* of the state: PN_GS_ACCEPT, ... */
    bool finished;
    uint64_t accepts;
    uint32_t history[PN_MATCHER_HISTORY];   /* state before accept i at i % PN_MATCHER_HISTORY; top bit:
                                               finished */
};

PN_INTERNAL void pn_gram_limits_fill(pn_gram_limits *out, const pn_gram_limits *in);

/* pn_gmatch.c; the lock is held (or g is not shared yet). */
PN_INTERNAL bool pn_gram_prepare(pn_gram *g);                  /* the start state; false: see fail */
PN_INTERNAL uint32_t pn_gram_step(pn_gram *g, uint32_t state, uint8_t byte);
PN_INTERNAL uint32_t pn_gram_step_bytes(pn_gram *g, uint32_t state, const char *bytes, size_t n, size_t *used);
PN_INTERNAL uint32_t pn_gram_step_token(pn_gram *g, uint32_t state, pn_token t, const char *bytes, size_t n, bool ends);
PN_INTERNAL bool pn_gram_takes_token(const pn_gram *g, uint32_t state, pn_token t);
PN_INTERNAL pn_status pn_gram_failed(const pn_gram *g, pn_err *err);
PN_INTERNAL size_t pn_gram_cache_bytes(const pn_gram *g);
PN_INTERNAL void pn_gram_free_states(pn_gram *g);
PN_INTERNAL void pn_gram_tidy(pn_gram *g);                     /* drop what no matcher needs when there is too much */
PN_INTERNAL void pn_gram_drop_masks(pn_gram *g, size_t keep_bytes);

/* pn_gchars.c: order[0..n) = the indices of `texts` in byte order, a prefix first, equal ones by
 * index.  False: out of memory. */
PN_INTERNAL bool pn_gram_sort_texts(pn_mem *mem, const pn_bytes *texts, uint32_t *order, uint32_t n);

/* pn_gcompile.c */
PN_INTERNAL pn_status pn_gram_compile(pn_gir *b, pn_gnode root, bool may_be_never, pn_gram **out, pn_err *err);

/* pn_gmask.c: the bytes of a token as text ({NULL, 0}: not text), and whether it ends an answer. */
PN_INTERNAL pn_bytes pn_gtrie_piece(const pn_gtrie *t, pn_token id);
PN_INTERNAL uint32_t pn_gtrie_count(const pn_gtrie *t);        /* tokens; higher ids are never allowed */
PN_INTERNAL bool pn_gtrie_ends(const pn_gtrie *t, pn_token id);

static inline bool pn_gset_has(const uint32_t *w, uint32_t i) { return w[i >> 5] >> (i & 31) & 1u; }
static inline void pn_gset_add(uint32_t *w, uint32_t i) { w[i >> 5] |= 1u << (i & 31); }

#endif /* PN_GRAM_IMPL_H */
