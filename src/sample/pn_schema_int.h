/*
 * pn_schema_int.h - what the files of the schema front end share; nobody else includes it.
 *
 * Words
 *   goal   a list of schema nodes that a value must satisfy all at once (a property declared in two
 *          branches of an allOf has two).  Goals are made once per list and compiled from a queue,
 *          so recursion in the schema is a loop between goals and never recursion in C.
 *   leaf   one alternative of a goal, with $ref, allOf, anyOf and oneOf resolved: a list of schema
 *          nodes of which only their own keywords count, and what these keywords add up to.
 *
 * The steps: flatten (goals to leaves, pn_schema.c), join (keywords to a leaf's fields,
 * pn_schema_join.c, pn_schema_obj.c), check oneOf, find which goals have values at all, emit nodes.
 */
#ifndef PN_SCHEMA_INT_H
#define PN_SCHEMA_INT_H

#include "sample/pn_schema.h"
#include "base/pn_hash.h"

enum {                          /* types of JSON values; a number is INT, or FRAC with a point */
    PN_SCH_NULL = 1, PN_SCH_BOOL = 2, PN_SCH_INT = 4, PN_SCH_FRAC = 8, PN_SCH_STR = 16, PN_SCH_ARR = 32,
    PN_SCH_OBJ = 64, PN_SCH_NUMBER = 12, PN_SCH_ANY = 127
};

#define PN_SCH_NONE UINT32_MAX          /* no node, no goal */
#define PN_SCH_MANY UINT32_MAX          /* no upper bound */
#define PN_SCH_COUNT_MAX 1000000u       /* longest string, array or object that is counted */

/* Values of an enumeration that stand in no document. */
#define PN_SCH_V_NULL (UINT32_MAX - 1)
#define PN_SCH_V_TRUE (UINT32_MAX - 2)
#define PN_SCH_V_FALSE (UINT32_MAX - 3)

/* A decimal number, exactly: 0.d1d2... * 10^point, no zeros at either end; zero has n = 0. */
typedef struct pn_sch_dec {
    const char *digits;
    uint32_t n;
    int64_t point;
    bool neg;
} pn_sch_dec;

typedef struct pn_sch_num {
    pn_sch_dec lo, hi;
    bool has_lo, has_hi, lo_open, hi_open;      /* open: the bound itself is excluded */
    uint32_t mod, mod_digits;                   /* multiple of mod / 10^mod_digits; mod 0: of anything */
} pn_sch_num;

typedef struct pn_sch_prop {
    pn_bytes key;
    uint32_t goal;
    bool required, forbidden;
} pn_sch_prop;

typedef struct pn_sch_class {           /* further members: keys of a language, values of a goal */
    pn_gnode body;
    uint32_t goal;
} pn_sch_class;

typedef struct pn_sch_tag {             /* which branch of which oneOf this leaf took */
    uint32_t choice, branch;
} pn_sch_tag;

typedef struct pn_sch_leaf {
    const uint32_t *base;       /* [n_base] schema nodes */
    const pn_sch_tag *tags;     /* [n_tags] */
    uint32_t n_base, n_tags;
    uint32_t types;             /* what is generated */
    uint32_t accepts;           /* what the schema allows: explicit types only */
    bool is_enum, never;
    uint32_t *values;           /* [n_values] of an enumeration, all types */
    uint32_t n_values;
    pn_sch_num num;
    pn_gnode number;            /* what num allows */
    uint32_t min_len, max_len;
    pn_gnode body;              /* strings between their quotes; NONE: any of min_len..max_len */
    uint32_t *prefix;           /* [n_prefix] goals of the first elements */
    uint32_t n_prefix, items;   /* goal of the others; NONE: there are none */
    uint32_t min_items, max_items;
    uint32_t unique;            /* schema node that says uniqueItems, or NONE */
    pn_sch_prop *props;         /* [n_props] in order */
    pn_sch_class *classes;      /* [n_classes] */
    uint32_t n_props, n_classes, min_props, max_props;
} pn_sch_leaf;

typedef struct pn_sch_goal {
    const uint32_t *src;        /* [n_src] schema nodes */
    pn_sch_leaf **leaves;
    uint32_t n_src, n_leaves, cap_leaves;
    uint32_t rule;
    pn_gnode node;              /* what stands for it: scalars themselves, else a call of the rule */
    bool sat;                   /* it has a value */
} pn_sch_goal;

typedef struct pn_sch_chunk pn_sch_chunk;

enum { PN_SCH_FORMATS = 16, PN_SCH_NUMBERS = 32 };

typedef struct pn_sch_made {            /* a bounded number, and its node */
    pn_sch_num num;
    bool fractions;
    pn_gnode node;
} pn_sch_made;

typedef struct pn_sch {
    pn_mem *mem;
    pn_gir *g;
    const pn_json_doc *d;
    uint32_t root;
    pn_schema_options o;
    const char *until;          /* not NULL: strings are bare text that does not contain it */
    pn_str *widened;
    pn_err *err;
    pn_status status;           /* the first failure; everything stops */
    pn_sch_chunk *chunks;       /* arena */
    pn_sch_chunk *spare;        /* one of the usual size, or NULL: rewinding at its edge must not cost a free and
                                   an allocation each time */
    uint64_t arena_bytes;
    pn_map goal_of;             /* list of nodes to goal */
    pn_map reported;            /* pointers already in *widened */
    pn_map anchors;             /* "$id" and "$anchor" to node, filled when first needed */
    bool anchors_known;
    pn_map pattern_of;          /* pattern to node: the same automaton serves all who name it */
    pn_map body_of;             /* strings and their lengths to node: the same product once */
    pn_gnode formats[PN_SCH_FORMATS];
    pn_sch_made numbers[PN_SCH_NUMBERS];
    uint32_t n_numbers;
    pn_sch_goal *goals;
    size_t n_goals, cap_goals;
    uint32_t n_props, n_values;
    size_t value_bytes;
    pn_gnode ws, string, integer, number, any_body;     /* shared parts; NONE until first used */
} pn_sch;

/* --- pn_schema_load.c: memory, errors, keywords, references ----------------------------------- */

typedef enum pn_sch_kw {
    PN_SCH_K_NOTE = 0,          /* an annotation, or nothing we know */
    PN_SCH_K_REF, PN_SCH_K_ALLOF, PN_SCH_K_ANYOF, PN_SCH_K_ONEOF,
    PN_SCH_K_TYPE, PN_SCH_K_NULLABLE, PN_SCH_K_ENUM, PN_SCH_K_CONST, PN_SCH_K_NOT,
    PN_SCH_K_MIN, PN_SCH_K_MAX, PN_SCH_K_XMIN, PN_SCH_K_XMAX, PN_SCH_K_MULTIPLE,
    PN_SCH_K_MINLEN, PN_SCH_K_MAXLEN, PN_SCH_K_PATTERN, PN_SCH_K_FORMAT,
    PN_SCH_K_ITEMS, PN_SCH_K_PREFIX, PN_SCH_K_ADDITEMS, PN_SCH_K_UNEVITEMS, PN_SCH_K_MINITEMS,
    PN_SCH_K_MAXITEMS, PN_SCH_K_UNIQUE, PN_SCH_K_CONTAINS, PN_SCH_K_PROPS, PN_SCH_K_PATPROPS,
    PN_SCH_K_ADDPROPS, PN_SCH_K_UNEVPROPS, PN_SCH_K_NAMES, PN_SCH_K_REQUIRED, PN_SCH_K_MINPROPS,
    PN_SCH_K_MAXPROPS,
    PN_SCH_K_THEN,              /* counts only beside `if` */
    PN_SCH_K_REFUSED            /* part of the language, beyond a grammar */
} pn_sch_kw;

PN_INTERNAL void *pn_sch_alloc(pn_sch *s, uint64_t n, size_t size);    /* zeroed; NULL: failed */
PN_INTERNAL void pn_sch_fini(pn_sch *s);

/* For what is needed for a moment and often: back to the arena as it was. */
typedef struct pn_sch_mark {
    pn_sch_chunk *chunk;
    size_t used;
} pn_sch_mark;
PN_INTERNAL pn_sch_mark pn_sch_marked(const pn_sch *s);
PN_INTERNAL void pn_sch_rewind(pn_sch *s, pn_sch_mark mark);

/* Record a failure at keyword kw (may be NULL) of a schema node; false. */
PN_INTERNAL bool pn_sch_fail(pn_sch *s, pn_status status, uint32_t node, const char *kw, const char *fmt, ...) PN_PRINTF(5, 6);
PN_INTERNAL bool pn_sch_nomem(pn_sch *s);

/* The keyword cannot be enforced: false, or, when lenient, true and its pointer is noted. */
PN_INTERNAL bool pn_sch_refuse(pn_sch *s, uint32_t node, const char *kw, const char *why);

/* The builder's sticky error, if any, with the pointer in front.  True: none. */
PN_INTERNAL bool pn_sch_built(pn_sch *s, uint32_t node, const char *kw);
PN_INTERNAL bool pn_sch_steps(pn_sch *s, uint32_t node, uint64_t n);

/* What the key means and which types it speaks about (0: all). */
PN_INTERNAL pn_sch_kw pn_sch_keyword(pn_bytes key, uint32_t *types);

/* "array" and so on, for messages. */
PN_INTERNAL const char *pn_sch_kind(const pn_sch *s, uint32_t node);

/* Is it a schema, an object or a boolean? */
PN_INTERNAL bool pn_sch_is_schema(pn_sch *s, uint32_t node);

/* Where the node's $ref leads; PN_SCH_NONE: failed. */
PN_INTERNAL uint32_t pn_sch_deref(pn_sch *s, uint32_t node);

/* A count, as minLength has; above PN_SCH_COUNT_MAX it becomes PN_SCH_MANY. */
PN_INTERNAL bool pn_sch_count(pn_sch *s, uint32_t node, const char *kw, uint32_t value, uint32_t *out);

/* --- pn_schema.c ------------------------------------------------------------------------------- */

/* The goal of these schema nodes together; PN_SCH_NONE: failed. */
PN_INTERNAL uint32_t pn_sch_goal_for(pn_sch *s, const uint32_t *nodes, uint32_t n);

/* Strings that satisfy the schema nodes, as bodies; for propertyNames. */
PN_INTERNAL pn_gnode pn_sch_names(pn_sch *s, const uint32_t *nodes, uint32_t n);

/* --- pn_schema_join.c: keywords of a leaf's nodes to its fields --------------------------------- */

/* Fill l from l->base.  names_only: strings alone matter, and no goals are made. */
PN_INTERNAL bool pn_sch_join(pn_sch *s, pn_sch_leaf *l, bool names_only);

/* --- pn_schema_obj.c: objects and arrays -------------------------------------------------------- */

PN_INTERNAL bool pn_sch_join_object(pn_sch *s, pn_sch_leaf *l);
PN_INTERNAL bool pn_sch_join_array(pn_sch *s, pn_sch_leaf *l);
PN_INTERNAL bool pn_sch_object_sat(pn_sch *s, const pn_sch_leaf *l);
PN_INTERNAL bool pn_sch_array_sat(pn_sch *s, const pn_sch_leaf *l);
PN_INTERNAL pn_gnode pn_sch_emit_object(pn_sch *s, const pn_sch_leaf *l);
PN_INTERNAL pn_gnode pn_sch_emit_array(pn_sch *s, const pn_sch_leaf *l);

/* --- pn_schema_oneof.c -------------------------------------------------------------------------- */

/* Leaves that took different branches of a oneOf must not overlap. */
PN_INTERNAL bool pn_sch_check_oneof(pn_sch *s, const pn_sch_goal *goal);

/* --- pn_schema_str.c: strings, enumerations ----------------------------------------------------- */

/* The strings that match the format, as bodies; PN_GNODE_NONE: not a format that we know. */
PN_INTERNAL pn_gnode pn_sch_format(pn_sch *s, pn_bytes name);
/* The strings that a regular expression finds itself in.  *dropped: it is beyond an automaton, and we
 * are lenient. */
PN_INTERNAL pn_gnode pn_sch_pattern(pn_sch *s, uint32_t node, const char *kw, pn_bytes pattern, bool *dropped);

/* l->body with its lengths applied. */
PN_INTERNAL pn_gnode pn_sch_body(pn_sch *s, const pn_sch_leaf *l);

/* Bodies in the spelling of the whole: min..max characters, this text, any but these texts; and the
 * key and string around a body. */
PN_INTERNAL pn_gnode pn_sch_chars(pn_sch *s, uint32_t min, uint32_t max);
PN_INTERNAL pn_gnode pn_sch_text(pn_sch *s, pn_bytes text);
PN_INTERNAL pn_gnode pn_sch_not(pn_sch *s, const pn_bytes *texts, uint32_t n);
PN_INTERNAL bool pn_sch_ends_inside(const pn_sch *s, pn_bytes text);   /* bare text cannot say this */
PN_INTERNAL pn_gnode pn_sch_key(pn_sch *s, pn_gnode body);
PN_INTERNAL pn_gnode pn_sch_string(pn_sch *s, pn_gnode body);

PN_INTERNAL bool pn_sch_equal(pn_sch *s, uint32_t a, uint32_t b);      /* as JSON values */
PN_INTERNAL uint32_t pn_sch_value_type(pn_sch *s, uint32_t v);
PN_INTERNAL bool pn_sch_scalar_fits(pn_sch *s, const pn_sch_leaf *l, uint32_t v);     /* but for types */

/* All values of a goal, when it has few enough to list: false: it has not. */
PN_INTERNAL bool pn_sch_enumerate(pn_sch *s, uint32_t goal, uint32_t **values, uint32_t *n);

PN_INTERNAL pn_gnode pn_sch_value(pn_sch *s, uint32_t v);
PN_INTERNAL pn_gnode pn_sch_values(pn_sch *s, const uint32_t *values, uint32_t n);

/* --- pn_schema_num.c ---------------------------------------------------------------------------- */

PN_INTERNAL bool pn_sch_dec_parse(pn_sch *s, pn_bytes text, pn_sch_dec *out);
/* Has few enough digits for the automaton.  A bound of very large or very small magnitude is
 * replaced by one that means the same for numbers of few digits. */
PN_INTERNAL bool pn_sch_dec_fits(pn_sch_dec *v, bool lower, bool *open, bool *drop);
PN_INTERNAL int pn_sch_dec_cmp(const pn_sch_dec *a, const pn_sch_dec *b);
PN_INTERNAL bool pn_sch_num_has(const pn_sch_num *r, const pn_sch_dec *v);
PN_INTERNAL bool pn_sch_num_join_mod(pn_sch *s, uint32_t node, pn_sch_num *r, const pn_sch_dec *v);
PN_INTERNAL pn_gnode pn_sch_number(pn_sch *s, const pn_sch_leaf *l);

#endif /* PN_SCHEMA_INT_H */
