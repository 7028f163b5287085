/*
 * pn_tpl.h - inside the template interpreter: values, program, one run.  For pn_tpl_*.c alone.
 *
 *     pn_tpl_lex.c     text to tokens, white space rules
 *     pn_tpl_parse.c   tokens to a tree of nodes
 *     pn_tpl_value.c   arena, strings with provenance, containers, comparing, printing
 *     pn_tpl_print.c   values as text: str, repr, JSON, printf and strftime
 *     pn_tpl_eval.c    walking the tree
 *     pn_tpl_methods.c 'x'.split(), d.items(), range(), ...
 *     pn_tpl_filters.c x|trim, x is string
 *     pn_template.c    the interface
 *
 * Provenance.  A tpl_str is bytes and, per byte, a mark: 1 the template's own, 0 not.  Most strings are
 * of one kind, so `marks` is NULL and `trust` holds for all.  Numbers, booleans and containers carry one
 * flag, for the text they would print as.  Text is only ever made by a tpl_buf, from bytes with a mark
 * or from stretches of strings with theirs; that is why untrusted text stays so.
 *
 * Errors stick: the first one is kept in run->st, everything afterwards returns undefined at once or
 * soon.  So callers test run->st where going on would be costly or wrong, not after each call.
 *
 * Memory of a run is one arena, freed at the end; nothing is freed earlier.
 */
#ifndef PN_TPL_H
#define PN_TPL_H

#include "base/pn_err.h"
#include "text/pn_template.h"

enum {
    TPL_MAX_SOURCE = 1 << 20,   /* bytes of a template */
    TPL_MAX_AST = 256,          /* depth of the tree */
    TPL_MAX_DEPTH = 800,        /* C recursion of the evaluator, macros included */
    TPL_MAX_MACROS = 64,        /* macros inside each other */
    TPL_MAX_VALUE = 200,        /* containers inside each other, where they are compared or printed */
    TPL_MAX_RANGE = 100000
};

/* ---- arena ---- */

typedef struct tpl_chunk tpl_chunk;
typedef struct tpl_arena {
    pn_mem *mem;
    tpl_chunk *top;
    size_t used, limit;         /* bytes taken from mem; most allowed */
    bool over;                  /* the last failure was the limit, not the system */
} tpl_arena;

PN_INTERNAL void pn_tpl_arena_init(tpl_arena *a, pn_mem *mem, size_t limit);
PN_INTERNAL void pn_tpl_arena_fini(tpl_arena *a);
PN_INTERNAL void *pn_tpl_arena_take(tpl_arena *a, size_t n);       /* aligned to 8; NULL */
/* A larger block with the same content; in place when it was the last one taken. */
PN_INTERNAL void *pn_tpl_arena_grow(tpl_arena *a, void *p, size_t old, size_t n);

/* ---- values ---- */

typedef enum tpl_type {
    TPL_UNDEF, TPL_NONE, TPL_BOOL, TPL_INT, TPL_BIG, TPL_FLOAT, TPL_STR, TPL_LIST, TPL_TUPLE, TPL_DICT,
    TPL_NS, TPL_MACRO, TPL_GLOBAL, TPL_METHOD, TPL_LOOP, TPL_JOINER, TPL_CYCLER,
    TPL_ABSENT                  /* an argument not given; never a value of the language */
} tpl_type;

typedef struct tpl_str {
    const char *p;              /* [len], in an arena or a document that outlives the run */
    const uint8_t *marks;       /* [len] 1: trusted; NULL: all bytes as `trust` */
    uint32_t len;
    uint32_t n_chars;           /* code points; UINT32_MAX: not counted yet */
    bool trust;
} tpl_str;

typedef struct tpl_list tpl_list;
typedef struct tpl_dict tpl_dict;
typedef struct tpl_loop tpl_loop;
typedef struct tpl_macro tpl_macro;
typedef struct tpl_method tpl_method;

typedef struct tpl_val {
    uint8_t type;               /* tpl_type */
    bool trust;                 /* of the text it prints as; strings have their own */
    uint16_t id;                /* TPL_GLOBAL: which; TPL_STR: 1 after |safe, see pn_tpl_escape */
    union {
        tpl_str *s;             /* first: {0} is NULL.  TPL_STR; TPL_BIG: digits; TPL_UNDEF: its name */
        bool b;
        int64_t i;
        double f;
        tpl_list *l;            /* TPL_LIST, TPL_TUPLE, TPL_JOINER (separator, used), TPL_CYCLER */
        tpl_dict *d;            /* TPL_DICT, TPL_NS */
        tpl_loop *loop;
        tpl_macro *macro;
        tpl_method *method;
    } u;
} tpl_val;

struct tpl_list {
    tpl_val *v;                 /* [cap] */
    uint32_t n, cap;
    uint32_t pos;               /* TPL_CYCLER */
};

typedef struct tpl_entry { tpl_val k, v; uint64_t hash; } tpl_entry;
struct tpl_dict {
    tpl_entry *e;               /* [cap] in order of insertion */
    uint32_t n, cap;
    uint32_t *index;            /* [n_index] entry + 1, 0: free; NULL while small */
    uint32_t n_index;
};

struct tpl_method { tpl_val self; uint16_t id; };

/* ---- the program ---- */

typedef enum tpl_kind {
    TPL_N_CONST, TPL_N_NAME, TPL_N_LIST, TPL_N_TUPLE, TPL_N_DICT, TPL_N_ATTR, TPL_N_ITEM, TPL_N_SLICE,
    TPL_N_CALL, TPL_N_FILTER, TPL_N_TEST, TPL_N_NEG, TPL_N_POS, TPL_N_NOT, TPL_N_BIN, TPL_N_AND, TPL_N_OR,
    TPL_N_COMPARE, TPL_N_COND, TPL_N_CONCAT,
    TPL_N_ARG, TPL_N_PAIR,      /* parts of calls and dicts */
    TPL_N_TEXT, TPL_N_PRINT, TPL_N_IF, TPL_N_FOR, TPL_N_SET, TPL_N_SETBLOCK, TPL_N_MACRO, TPL_N_CALLBLOCK,
    TPL_N_FILTERBLOCK, TPL_N_WITH, TPL_N_BREAK, TPL_N_CONTINUE, TPL_N_SCOPED, TPL_N_DO
} tpl_kind;

/* Operators: of TPL_N_BIN, and of the links of TPL_N_COMPARE. */
typedef enum tpl_op {
    TPL_OP_ADD, TPL_OP_SUB, TPL_OP_MUL, TPL_OP_DIV, TPL_OP_FLOORDIV, TPL_OP_MOD, TPL_OP_POW,
    TPL_OP_EQ, TPL_OP_NE, TPL_OP_LT, TPL_OP_LE, TPL_OP_GT, TPL_OP_GE, TPL_OP_IN, TPL_OP_NOTIN
} tpl_op;

/* One struct for all kinds; `next` links siblings of a list.  What a, b, c, d are:
 *   ATTR a.name   ITEM a[b]   SLICE a[b:c:d]   CALL a(list b)   FILTER a|id(list b)   TEST a is id(list b)
 *   NEG POS NOT a   BIN a op b   AND OR a b   COND a if b else c   CONCAT LIST TUPLE list a
 *   COMPARE a, then list b of ARG nodes {op, a}   DICT list a of PAIR {a: b}   ARG {name or none, a}
 *   PRINT a   IF list a of ARG {a condition or NULL, b body}   FOR a in b if c: body d, else e
 *   SET a = b   SETBLOCK a, filters c (FILTER chain ending in NULL), body d   MACRO name, parameters list b
 *   (ARG {name, a default}), body d   CALLBLOCK parameters b, call a, body d   FILTERBLOCK chain c, body d
 *   WITH list b of ARG {a target, b value}, body d   SCOPED body d   DO a */
typedef struct tpl_node tpl_node;
struct tpl_node {
    uint8_t kind, op;
    uint16_t depth, id;         /* of the subtree; filter or test */
    bool flag;                  /* TEST: is not; MACRO: takes varargs or kwargs */
    uint32_t line, name;        /* name: index into the template's names */
    tpl_node *a, *b, *c, *d, *e, *next;
    tpl_val value;              /* CONST, TEXT */
};

#define TPL_NO_NAME UINT32_MAX

struct pn_tpl {
    pn_mem *mem;
    tpl_arena arena;            /* the nodes and all constants */
    char *src;                  /* in the arena: [src_len], newlines normalised */
    size_t src_len;
    tpl_node *body;
    tpl_str **names;            /* owned, [cap_names]: distinct identifiers */
    uint32_t n_names;
    size_t cap_names;
    uint32_t n_loop, n_caller, n_varargs, n_kwargs;     /* names with a meaning */
};

/* ---- tokens ---- */

typedef enum tpl_tok_type {
    TPL_T_TEXT, TPL_T_BLOCK, TPL_T_BLOCK_END, TPL_T_VAR, TPL_T_VAR_END, TPL_T_NAME, TPL_T_STRING, TPL_T_INT,
    TPL_T_FLOAT, TPL_T_OP, TPL_T_EOF
} tpl_tok_type;

typedef struct tpl_tok {
    uint8_t type;
    char op[2];                 /* "==", "+\0" */
    uint32_t at, len;           /* stretch of the source; strings without their quotes */
} tpl_tok;

typedef struct tpl_toks { tpl_tok *v; size_t n, cap; } tpl_toks;       /* owned, account MISC */

PN_INTERNAL pn_status pn_tpl_lex(const pn_tpl *t, tpl_toks *out, pn_err *err);
PN_INTERNAL pn_status pn_tpl_parse(pn_tpl *t, const tpl_toks *toks, pn_err *err);
PN_INTERNAL pn_status pn_tpl_syntax(const pn_tpl *t, size_t at, pn_err *err, const char *fmt, ...) PN_PRINTF(4, 5);
PN_INTERNAL uint32_t pn_tpl_line_of(const pn_tpl *t, size_t at);

/* ---- a run ---- */

/* Text being made.  Marks appear with the first byte whose mark differs. */
typedef struct tpl_buf {
    char *p;                    /* [cap] in the run's arena */
    uint8_t *marks;
    size_t len, cap, cap_marks;
    bool trust;                 /* of all bytes while marks is NULL */
} tpl_buf;

typedef struct tpl_var { uint32_t name; tpl_val v; } tpl_var;
typedef struct tpl_scope tpl_scope;
struct tpl_scope {
    tpl_scope *up;              /* NULL: the next one is run->root */
    tpl_var *v;
    uint32_t n, cap;
    bool kept;                  /* a macro or caller refers to it: may not be used again */
};

struct tpl_macro {
    const tpl_node *node;       /* MACRO or CALLBLOCK */
    tpl_scope *scope;           /* where it was defined */
};

struct tpl_loop {
    tpl_val seq;                /* TPL_LIST */
    uint32_t index;             /* from 0 */
    uint32_t depth;
    tpl_val changed;            /* TPL_ABSENT: never asked */
};

typedef enum tpl_flow { TPL_FLOW_NEXT, TPL_FLOW_BREAK, TPL_FLOW_CONTINUE } tpl_flow;

typedef struct tpl_run {
    const pn_tpl *t;
    tpl_arena arena;
    pn_status st;               /* the first error */
    pn_err *err;
    uint32_t line;              /* of the node at work */
    uint64_t steps, max_steps, next_clock;
    uint32_t loops, max_loops;
    double deadline;
    uint32_t depth, macros;
    size_t written, max_output;
    tpl_buf *out;               /* a block's text; NULL: the prompt */
    pn_prompt *prompt;
    tpl_scope *scope;           /* NULL: root */
    tpl_val *root;              /* [n_names] TPL_ABSENT: not set */
    tpl_flow flow;
    uint64_t seed;
    int64_t now;
} tpl_run;

typedef struct tpl_kw { const tpl_str *name; tpl_val v; } tpl_kw;
typedef struct tpl_args {
    tpl_val *pos;
    tpl_kw *kw;
    uint32_t n, n_kw;
    tpl_val caller;             /* TPL_ABSENT: none */
} tpl_args;

/* -- pn_tpl_value.c -- */

/* "template line N: ..." with PN_E_INVALID, unless there is an error already; returns undefined. */
PN_INTERNAL tpl_val pn_tpl_fail(tpl_run *r, const char *fmt, ...) PN_PRINTF(2, 3);
PN_INTERNAL void *pn_tpl_take(tpl_run *r, size_t n);           /* NULL: r->st is set */
PN_INTERNAL bool pn_tpl_charge(tpl_run *r, uint64_t n);        /* steps; false: stop */

static inline tpl_val tpl_undef(void) { return (tpl_val){TPL_UNDEF, true, 0, {0}}; }
static inline tpl_val tpl_none(void) { return (tpl_val){TPL_NONE, true, 0, {0}}; }
static inline tpl_val tpl_absent(void) { return (tpl_val){TPL_ABSENT, false, 0, {0}}; }
static inline tpl_val tpl_bool(bool b)
{
    tpl_val v = {TPL_BOOL, true, 0, {0}};
    v.u.b = b;
    return v;
}
static inline tpl_val tpl_int(int64_t i, bool trust)
{
    tpl_val v = {TPL_INT, trust, 0, {0}};
    v.u.i = i;
    return v;
}
static inline tpl_val tpl_float(double f, bool trust)
{
    tpl_val v = {TPL_FLOAT, trust, 0, {0}};
    v.u.f = f;
    return v;
}
static inline tpl_val tpl_of_str(tpl_str *s)
{
    tpl_val v = {TPL_STR, false, 0, {0}};
    v.u.s = s;
    return s ? v : tpl_undef();
}
static inline tpl_val tpl_of_list(tpl_list *l, tpl_type type)
{
    tpl_val v = {(uint8_t)type, true, 0, {0}};
    v.u.l = l;
    return l ? v : tpl_undef();
}
static inline tpl_val tpl_of_dict(tpl_dict *d, tpl_type type)
{
    tpl_val v = {(uint8_t)type, true, 0, {0}};
    v.u.d = d;
    return d ? v : tpl_undef();
}
static inline bool tpl_is_list(tpl_val v) { return v.type == TPL_LIST || v.type == TPL_TUPLE; }
static inline bool tpl_is_num(tpl_val v) { return v.type == TPL_BOOL || (v.type >= TPL_INT && v.type <= TPL_FLOAT); }
static inline bool tpl_given(tpl_val v) { return v.type != TPL_ABSENT; }

PN_INTERNAL tpl_str *pn_tpl_str(tpl_arena *a, const char *p, size_t len, bool trust);  /* p is borrowed */
PN_INTERNAL tpl_val pn_tpl_text(tpl_run *r, const char *text);         /* ours, static: trusted */
PN_INTERNAL tpl_val pn_tpl_sub(tpl_run *r, const tpl_str *s, size_t from, size_t len);
PN_INTERNAL bool pn_tpl_trusted(const tpl_str *s);                     /* all of it */
PN_INTERNAL uint32_t pn_tpl_chars(tpl_str *s);
PN_INTERNAL size_t pn_tpl_offset(tpl_run *r, tpl_str *s, int64_t chars);   /* byte where that character starts */
PN_INTERNAL int64_t pn_tpl_find(tpl_run *r, const tpl_str *hay, size_t from, const tpl_str *needle);   /* -1 */
PN_INTERNAL bool pn_tpl_is_z(const tpl_str *s, const char *z);
PN_INTERNAL bool pn_tpl_space(uint32_t cp);

PN_INTERNAL void pn_tpl_buf_init(tpl_buf *b);
PN_INTERNAL void pn_tpl_buf_add(tpl_run *r, tpl_buf *b, const char *p, size_t n, bool trust);
PN_INTERNAL void pn_tpl_buf_sub(tpl_run *r, tpl_buf *b, const tpl_str *s, size_t from, size_t n);
PN_INTERNAL tpl_val pn_tpl_buf_str(tpl_run *r, tpl_buf *b);

PN_INTERNAL tpl_list *pn_tpl_list(tpl_run *r, size_t cap);
PN_INTERNAL bool pn_tpl_push(tpl_run *r, tpl_list *l, tpl_val v);
PN_INTERNAL tpl_dict *pn_tpl_dict(tpl_run *r);
PN_INTERNAL tpl_val *pn_tpl_dict_get(tpl_run *r, const tpl_dict *d, tpl_val k);        /* NULL: none */
PN_INTERNAL tpl_val *pn_tpl_dict_getz(tpl_run *r, const tpl_dict *d, const char *k);
PN_INTERNAL void pn_tpl_dict_set(tpl_run *r, tpl_dict *d, tpl_val k, tpl_val v);
PN_INTERNAL void pn_tpl_dict_remove(tpl_run *r, tpl_dict *d, tpl_val k);
PN_INTERNAL tpl_val pn_tpl_dict_items(tpl_run *r, const tpl_dict *d);  /* list of tuples */

PN_INTERNAL bool pn_tpl_truth(tpl_val v);
PN_INTERNAL bool pn_tpl_equal(tpl_run *r, tpl_val a, tpl_val b);
PN_INTERNAL int pn_tpl_order(tpl_run *r, tpl_val a, tpl_val b);        /* <0 0 >0; fails on mixed types */
PN_INTERNAL bool pn_tpl_contains(tpl_run *r, tpl_val seq, tpl_val v);
PN_INTERNAL double pn_tpl_number(tpl_val v);                           /* of a tpl_is_num */
PN_INTERNAL const char *pn_tpl_type_name(tpl_val v);                   /* as Python calls it */
PN_INTERNAL tpl_list *pn_tpl_iter(tpl_run *r, tpl_val v);              /* NULL: r->st is set */
PN_INTERNAL tpl_val pn_tpl_from_json(tpl_run *r, const pn_json_doc *d, uint32_t node, bool trust);
PN_INTERNAL tpl_val pn_tpl_parse_json(tpl_run *r, const tpl_str *s);

/* -- pn_tpl_print.c -- */
PN_INTERNAL void pn_tpl_print(tpl_run *r, tpl_buf *b, tpl_val v);      /* str(v) */
PN_INTERNAL tpl_str *pn_tpl_string(tpl_run *r, tpl_val v);             /* str(v); NULL: r->st is set */

typedef struct tpl_json_style { tpl_str *item, *key, *indent; bool ascii, sort; } tpl_json_style;
PN_INTERNAL void pn_tpl_json(tpl_run *r, tpl_buf *b, tpl_val v, const tpl_json_style *style);
PN_INTERNAL tpl_val pn_tpl_printf(tpl_run *r, tpl_str *fmt, tpl_val args);     /* '%s' % args */
PN_INTERNAL tpl_val pn_tpl_format(tpl_run *r, tpl_str *fmt, const tpl_args *args);     /* '{}'.format() */
PN_INTERNAL tpl_val pn_tpl_strftime(tpl_run *r, tpl_str *fmt);
PN_INTERNAL bool pn_tpl_parse_float(const char *p, size_t n, double *out);     /* all of p[0..n) */

/* -- pn_tpl_eval.c -- */
PN_INTERNAL void pn_tpl_exec(tpl_run *r, const tpl_node *list);
PN_INTERNAL void pn_tpl_emit(tpl_run *r, const tpl_str *s);
PN_INTERNAL tpl_val pn_tpl_call(tpl_run *r, tpl_val f, const tpl_args *args);
PN_INTERNAL tpl_val pn_tpl_attr(tpl_run *r, tpl_val v, tpl_val name);  /* v.name */
PN_INTERNAL tpl_val pn_tpl_item(tpl_run *r, tpl_val v, tpl_val key);   /* v[key] */
PN_INTERNAL tpl_val pn_tpl_path(tpl_run *r, tpl_val v, tpl_val path);  /* "function.name", or an index */

/* -- pn_tpl_methods.c -- */
#define TPL_NOT_FOUND UINT16_MAX
PN_INTERNAL uint16_t pn_tpl_global_find(const tpl_str *name);
PN_INTERNAL tpl_val pn_tpl_global_call(tpl_run *r, uint16_t id, const tpl_args *args);
PN_INTERNAL uint16_t pn_tpl_method_find(tpl_val self, const tpl_str *name);
PN_INTERNAL tpl_val pn_tpl_method_call(tpl_run *r, tpl_val self, uint16_t id, const tpl_args *args);
PN_INTERNAL tpl_val pn_tpl_upper(tpl_run *r, const tpl_str *s);
PN_INTERNAL tpl_val pn_tpl_lower(tpl_run *r, const tpl_str *s);
PN_INTERNAL tpl_val pn_tpl_capitalize(tpl_run *r, const tpl_str *s);
PN_INTERNAL tpl_val pn_tpl_strip(tpl_run *r, const tpl_str *s, const tpl_str *chars, bool left, bool right);
PN_INTERNAL tpl_val pn_tpl_split(tpl_run *r, tpl_str *s, const tpl_str *sep, int64_t max, bool from_right);
PN_INTERNAL tpl_val pn_tpl_lines(tpl_run *r, tpl_str *s);
PN_INTERNAL tpl_val pn_tpl_replace(tpl_run *r, tpl_str *s, const tpl_str *a, const tpl_str *b, int64_t max);
PN_INTERNAL void pn_tpl_buf_cp(tpl_run *r, tpl_buf *b, uint32_t cp, bool trust);
PN_INTERNAL uint32_t pn_tpl_upper_cp(uint32_t cp);
PN_INTERNAL bool pn_tpl_mark(const tpl_str *s, size_t at);

/* Arguments by position or name into a[0..n): `names` is "old,new,count"; what is not given is
 * TPL_ABSENT.  False, and an error: too many, unknown, or one of the first `need` missing. */
PN_INTERNAL bool pn_tpl_bind(tpl_run *r, const char *what, const tpl_args *args, const char *names, uint32_t need,
                             tpl_val *a, uint32_t n);

/* -- pn_tpl_filters.c -- */
PN_INTERNAL uint16_t pn_tpl_filter_find(const char *name, size_t len);
PN_INTERNAL tpl_val pn_tpl_filter(tpl_run *r, uint16_t id, tpl_val v, const tpl_args *args);
/* HTML entities for & < > ' ".  The reference escapes plain text that is added to a string marked safe,
 * and models were trained on what it gave. */
PN_INTERNAL tpl_val pn_tpl_escape(tpl_run *r, tpl_str *s);
PN_INTERNAL uint16_t pn_tpl_test_find(const char *name, size_t len);
PN_INTERNAL bool pn_tpl_test(tpl_run *r, uint16_t id, tpl_val v, const tpl_args *args);
PN_INTERNAL tpl_val pn_tpl_sort(tpl_run *r, tpl_list *l, tpl_val attribute, bool fold, bool reverse);

#endif /* PN_TPL_H */
