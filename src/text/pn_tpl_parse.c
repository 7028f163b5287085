/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_tpl_parse.c - tokens to the tree of nodes that pn_tpl_eval.c walks.
 *
 * Recursive descent, one function a level of precedence, in the order of the reference grammar.  Two
 * things bound the recursion: `nesting` counts brackets and blocks while parsing, `depth` of a node
 * counts the tree below it (a + b + c + ... is parsed in a loop but evaluated recursively).
 *
 * Filters and tests are looked up here, so an unknown one is found when the model is loaded.
 */
#include "text/pn_tpl.h"

#include "base/pn_hash.h"
#include "base/pn_utf8.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct tplp_parser {
    pn_tpl *t;
    const tpl_tok *tok, *end;   /* the next one, and EOF, which is never passed: see tplp_next */
    pn_map names;               /* identifier -> index */
    uint32_t nesting, loops;
    tpl_node *macro;            /* the innermost being read, or NULL */
    pn_err *err;
    pn_status st;
} tplp_parser;

static tpl_node *tplp_expr(tplp_parser *p);
static tpl_node *tplp_unary(tplp_parser *p, bool with_filter);
static tpl_node *tplp_body(tplp_parser *p, const char *const *ends);

/* ------------------------------------------------------------------------------------------
 * Errors, tokens, nodes
 * ------------------------------------------------------------------------------------------ */

static void *tplp_fail(tplp_parser *p, const char *fmt, ...) PN_PRINTF(2, 3);
static void *tplp_fail(tplp_parser *p, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    if (p->st)
        return NULL;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->st = pn_tpl_syntax(p->t, p->tok->at, p->err, "%s", text);
    return NULL;
}

static void *tplp_expected(tplp_parser *p, const char *what)
{
    if (p->tok->type == TPL_T_EOF)
        return tplp_fail(p, "expected %s, found the end of the template", what);
    return tplp_fail(p, "expected %s, found \"%.*s\"", what, (int)PN_MIN(p->tok->len, 40u), p->t->src + p->tok->at);
}

/* The only way forward.  After an error callers may still look at the next token on their way out. */
static void tplp_next(tplp_parser *p)
{
    if (p->tok < p->end)
        p->tok++;
}

static bool tplp_is(const tplp_parser *p, const char *op)
{
    const tpl_tok *k = p->tok;
    return k->type == TPL_T_OP && k->op[0] == op[0] && k->op[1] == op[1];
}

static bool tplp_is_word(const tplp_parser *p, const char *word)
{
    const tpl_tok *k = p->tok;
    return k->type == TPL_T_NAME && k->len == strlen(word) && memcmp(p->t->src + k->at, word, k->len) == 0;
}

static bool tplp_skip(tplp_parser *p, const char *op)
{
    if (p->st || !tplp_is(p, op))
        return false;
    tplp_next(p);
    return true;
}

static bool tplp_skip_word(tplp_parser *p, const char *word)
{
    if (p->st || !tplp_is_word(p, word))
        return false;
    tplp_next(p);
    return true;
}

static void tplp_need(tplp_parser *p, const char *op)
{
    char what[8];
    if (p->st || tplp_skip(p, op))
        return;
    snprintf(what, sizeof what, "\"%s\"", op);
    tplp_expected(p, what);
}

static void tplp_need_type(tplp_parser *p, tpl_tok_type type, const char *what)
{
    if (p->st)
        return;
    if (p->tok->type != type)
        tplp_expected(p, what);
    else
        tplp_next(p);
}

static void *tplp_take(tplp_parser *p, size_t n)
{
    void *m = p->st ? NULL : pn_tpl_arena_take(&p->t->arena, n);
    if (m)
        memset(m, 0, n);
    else if (!p->st)
        p->st = p->t->arena.over ? pn_fail(p->err, PN_E_FORMAT, "the template's program needs more than 64 MiB")
                                 : pn_fail_nomem(p->err, "the template's program", n);
    return m;
}

static tpl_node *tplp_node(tplp_parser *p, tpl_kind kind, tpl_node *a, tpl_node *b)
{
    tpl_node *n = tplp_take(p, sizeof *n);
    if (!n)
        return NULL;
    n->kind = (uint8_t)kind;
    n->line = p->tok->at;               /* an offset; tplp_lines makes it a line */
    n->name = TPL_NO_NAME;
    n->a = a;
    n->b = b;
    return n;
}

/* Depth of n from its children.  The evaluator recurses into a..e and walks along `next`. */
static tpl_node *tplp_done(tplp_parser *p, tpl_node *n)
{
    if (p->st || !n)
        return NULL;
    tpl_node *child[5] = {n->a, n->b, n->c, n->d, n->e};
    uint32_t deep = 0;
    for (int i = 0; i < 5; i++)
        for (tpl_node *c = child[i]; c; c = c->next)
            deep = PN_MAX(deep, c->depth);
    if (deep + 1 > TPL_MAX_AST)
        return tplp_fail(p, "expected at most %d levels of expressions and blocks, found more", (int)TPL_MAX_AST);
    n->depth = (uint16_t)(deep + 1);
    return n;
}

static tpl_node *tplp_make(tplp_parser *p, tpl_kind kind, tpl_node *a, tpl_node *b)
{
    return tplp_done(p, tplp_node(p, kind, a, b));
}

static bool tplp_enter(tplp_parser *p)
{
    if (p->st)
        return false;
    if (++p->nesting > TPL_MAX_AST)
        tplp_fail(p, "expected at most %d brackets and blocks inside each other, found more", (int)TPL_MAX_AST);
    return !p->st;
}

/* A list being made. */
typedef struct tplp_list { tpl_node *first, *last; } tplp_list;

static void tplp_append(tplp_list *l, tpl_node *n)
{
    if (!n)
        return;
    if (l->last)
        l->last->next = n;
    else
        l->first = n;
    l->last = n;
}

static uint32_t tplp_intern(tplp_parser *p, const char *s, size_t len)
{
    pn_tpl *t = p->t;
    bool existed = false;
    if (p->st)
        return 0;
    uint32_t *slot = pn_map_put(&p->names, s, len, t->n_names, &existed);
    if (slot && existed)
        return *slot;
    tpl_str *str = pn_tpl_str(&t->arena, s, len, true);
    if (!slot || !str ||
        !pn_mem_grow(t->mem, PN_ACCT_MISC, (void **)&t->names, &t->cap_names, t->n_names + 1, sizeof *t->names)) {
        p->st = pn_fail_nomem(p->err, "the template's names", sizeof *t->names);
        return 0;
    }
    pn_tpl_chars(str);                  /* now: names are shared by threads */
    t->names[t->n_names] = str;
    return t->n_names++;
}

/* The identifier that comes now. */
static uint32_t tplp_name(tplp_parser *p)
{
    if (p->st)
        return 0;
    if (p->tok->type != TPL_T_NAME) {
        tplp_expected(p, "a name");
        return 0;
    }
    uint32_t id = tplp_intern(p, p->t->src + p->tok->at, p->tok->len);
    tplp_next(p);
    if (p->macro && (id == p->t->n_varargs || id == p->t->n_kwargs))
        p->macro->flag = true;
    return id;
}

/* ------------------------------------------------------------------------------------------
 * Constants
 * ------------------------------------------------------------------------------------------ */

static tpl_node *tplp_const(tplp_parser *p, tpl_val v)
{
    tpl_node *n = tplp_make(p, TPL_N_CONST, NULL, NULL);
    if (n)
        n->value = v;
    return n;
}

static tpl_node *tplp_str_const(tplp_parser *p, const char *s, size_t len)
{
    tpl_str *str = p->st ? NULL : pn_tpl_str(&p->t->arena, s, len, true);
    if (!str && !p->st)
        p->st = pn_fail_nomem(p->err, "a string of the template", len);
    if (str)
        pn_tpl_chars(str);              /* counted now: a constant is shared by threads */
    return str ? tplp_const(p, tpl_of_str(str)) : NULL;
}

static int tplp_hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The escape at s[i] == '\\' (more follows), written to out; returns the bytes read.  Python's rules:
 * what is not an escape stays as it is. */
static size_t tplp_escape(tplp_parser *p, const char *s, size_t n, char *out, size_t *len)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = s[1];
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        out[(*len)++] = to[at - from];
        return 2;
    }
    if (c == '\n')
        return 2;
    uint32_t cp = 0;
    size_t used = 1;
    if (c >= '0' && c <= '7') {
        while (used < 4 && used < n && s[used] >= '0' && s[used] <= '7')
            cp = cp * 8 + (uint32_t)(s[used++] - '0');
    } else if (c == 'x' || c == 'u' || c == 'U') {
        size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        for (used = 2; used < 2 + digits; used++) {
            int h = used < n ? tplp_hex(s[used]) : -1;
            if (h < 0) {
                tplp_fail(p, "expected %zu hexadecimal digits after \\%c in a string", digits, c);
                return n;
            }
            cp = cp << 4 | (uint32_t)h;
        }
    } else {
        out[(*len)++] = '\\';
        return 1;
    }
    *len += pn_utf8_encode(cp, out + *len);
    return used;
}

/* One or more string tokens, which concatenate. */
static tpl_node *tplp_strings(tplp_parser *p)
{
    size_t total = 0, len = 0;
    for (const tpl_tok *k = p->tok; k->type == TPL_T_STRING; k++)
        total += k->len;
    char *out = tplp_take(p, total + 4);
    for (; out && !p->st && p->tok->type == TPL_T_STRING; tplp_next(p)) {
        const char *s = p->t->src + p->tok->at;
        size_t n = p->tok->len;
        for (size_t i = 0; i < n && !p->st;) {
            if (s[i] == '\\' && i + 1 < n)
                i += tplp_escape(p, s + i, n - i, out, &len);
            else
                out[len++] = s[i++];
        }
    }
    return out && !p->st ? tplp_str_const(p, out, len) : NULL;
}

static tpl_node *tplp_number(tplp_parser *p)
{
    char buf[64];
    size_t len = 0;
    const char *s = p->t->src + p->tok->at;
    for (size_t i = 0; i < p->tok->len; i++) {
        if (s[i] == '_')
            continue;
        if (len + 1 >= sizeof buf)
            return tplp_fail(p, "a number of more than %zu digits", sizeof buf - 1);
        buf[len++] = s[i];
    }
    buf[len] = 0;
    int64_t i;
    double f = 0;
    bool is_int = p->tok->type == TPL_T_INT && pn_parse_i64(buf, 0, INT64_MAX, &i);
    if (!is_int)
        pn_tpl_parse_float(buf, len, &f);
    tplp_next(p);
    return tplp_const(p, is_int ? tpl_int(i, true) : tpl_float(f, true));
}

/* ------------------------------------------------------------------------------------------
 * Expressions
 * ------------------------------------------------------------------------------------------ */

/* Does something that can start an expression come now?  Else a tuple ends here. */
static bool tplp_tuple_ends(const tplp_parser *p, const char *extra)
{
    uint8_t t = p->tok->type;
    return t == TPL_T_VAR_END || t == TPL_T_BLOCK_END || t == TPL_T_EOF || tplp_is(p, ")") || tplp_is(p, "=") ||
           (extra && tplp_is_word(p, extra));
}

static tpl_node *tplp_or(tplp_parser *p);

/* a  or  a, b, c  (a tuple).  cond false: without "x if y" (the list of a for). */
static tpl_node *tplp_tuple(tplp_parser *p, bool cond, const char *extra, bool parenthesised)
{
    tplp_list l = {NULL, NULL};
    bool comma = false;
    while (!p->st && !tplp_tuple_ends(p, extra)) {
        tplp_append(&l, cond ? tplp_expr(p) : tplp_or(p));
        if (!tplp_skip(p, ","))
            break;
        comma = true;
    }
    if (p->st)
        return NULL;
    if (!comma && l.first)
        return l.first;
    if (!l.first && !parenthesised)
        return tplp_expected(p, "an expression");
    return tplp_make(p, TPL_N_TUPLE, l.first, NULL);
}

static tpl_node *tplp_dict(tplp_parser *p)
{
    tplp_list l = {NULL, NULL};
    while (!p->st && !tplp_is(p, "}")) {
        tpl_node *k = tplp_expr(p);
        tplp_need(p, ":");
        tpl_node *v = tplp_expr(p);
        tplp_append(&l, tplp_make(p, TPL_N_PAIR, k, v));
        if (!tplp_skip(p, ","))
            break;
    }
    tplp_need(p, "}");
    return tplp_make(p, TPL_N_DICT, l.first, NULL);
}

static tpl_node *tplp_word(tplp_parser *p)
{
    static const char *const reserved[] = {"and", "or", "not", "in", "is", "if", "else", "elif"};
    if (tplp_skip_word(p, "true") || tplp_skip_word(p, "True"))
        return tplp_const(p, tpl_bool(true));
    if (tplp_skip_word(p, "false") || tplp_skip_word(p, "False"))
        return tplp_const(p, tpl_bool(false));
    if (tplp_skip_word(p, "none") || tplp_skip_word(p, "None"))
        return tplp_const(p, tpl_none());
    for (size_t i = 0; i < PN_COUNT_OF(reserved); i++)
        if (tplp_is_word(p, reserved[i]))
            return tplp_expected(p, "an expression");
    tpl_node *n = tplp_make(p, TPL_N_NAME, NULL, NULL);
    uint32_t id = tplp_name(p);
    if (n)
        n->name = id;
    return n;
}

static tpl_node *tplp_primary(tplp_parser *p)
{
    tpl_node *n = NULL;
    if (!tplp_enter(p))
        return NULL;
    switch (p->tok->type) {
    case TPL_T_NAME: n = tplp_word(p); break;
    case TPL_T_STRING: n = tplp_strings(p); break;
    case TPL_T_INT: case TPL_T_FLOAT: n = tplp_number(p); break;
    default:
        if (tplp_skip(p, "(")) {
            n = tplp_tuple(p, true, NULL, true);
            tplp_need(p, ")");
        } else if (tplp_skip(p, "[")) {
            tplp_list l = {NULL, NULL};
            while (!p->st && !tplp_is(p, "]")) {
                tplp_append(&l, tplp_expr(p));
                if (!tplp_skip(p, ","))
                    break;
            }
            tplp_need(p, "]");
            n = tplp_make(p, TPL_N_LIST, l.first, NULL);
        } else if (tplp_skip(p, "{")) {
            n = tplp_dict(p);
        } else {
            tplp_expected(p, "an expression");
        }
    }
    p->nesting--;
    return n;
}

/* After "(": arguments up to ")".  ARG nodes, the named ones last. */
static tpl_node *tplp_args(tplp_parser *p)
{
    tplp_list l = {NULL, NULL};
    bool named = false;
    while (!p->st && !tplp_is(p, ")")) {
        uint32_t name = TPL_NO_NAME;
        if (tplp_is(p, "*") || tplp_is(p, "**"))
            return tplp_fail(p, "unpacking arguments with * is not supported");
        if (p->tok->type == TPL_T_NAME && p->tok[1].type == TPL_T_OP && p->tok[1].op[0] == '=' && !p->tok[1].op[1]) {
            name = tplp_name(p);
            tplp_next(p);
            named = true;
        } else if (named) {
            return tplp_expected(p, "name=value after the first named argument");
        }
        tpl_node *arg = tplp_node(p, TPL_N_ARG, tplp_expr(p), NULL);
        if (arg)
            arg->name = name;
        tplp_append(&l, tplp_done(p, arg));
        if (!tplp_skip(p, ","))
            break;
    }
    tplp_need(p, ")");
    return l.first;
}

/* After "[": an index, a slice, or several (a tuple). */
static tpl_node *tplp_index(tplp_parser *p, tpl_node *of)
{
    tpl_node *part[3] = {NULL, NULL, NULL};
    int colons = 0;
    if (!tplp_is(p, ":"))
        part[0] = tplp_expr(p);
    while (!p->st && colons < 2 && tplp_skip(p, ":")) {
        colons++;
        if (!tplp_is(p, "]") && !tplp_is(p, ":"))
            part[colons] = tplp_expr(p);
    }
    tplp_need(p, "]");
    if (!colons)
        return tplp_make(p, TPL_N_ITEM, of, part[0]);
    tpl_node *n = tplp_node(p, TPL_N_SLICE, of, part[0]);
    if (n) {
        n->c = part[1];
        n->d = part[2];
    }
    return tplp_done(p, n);
}

static tpl_node *tplp_call(tplp_parser *p, tpl_node *f)
{
    tpl_node *n = tplp_node(p, TPL_N_CALL, f, NULL);
    tpl_node *args = tplp_args(p);
    if (n)
        n->b = args;
    return tplp_done(p, n);
}

static tpl_node *tplp_postfix(tplp_parser *p, tpl_node *n)
{
    for (;;) {
        if (p->st)
            return NULL;
        if (tplp_skip(p, ".")) {
            if (p->tok->type == TPL_T_INT) {
                tpl_node *i = tplp_number(p);
                n = tplp_make(p, TPL_N_ITEM, n, i);
                continue;
            }
            tpl_node *attr = tplp_node(p, TPL_N_ATTR, n, NULL);
            uint32_t id = tplp_name(p);
            if (attr)
                attr->name = id;
            n = tplp_done(p, attr);
        } else if (tplp_skip(p, "[")) {
            n = tplp_index(p, n);
        } else if (tplp_skip(p, "(")) {
            n = tplp_call(p, n);
        } else {
            return n;
        }
    }
}

/* After "|": name, perhaps arguments. */
static tpl_node *tplp_filter(tplp_parser *p, tpl_node *n)
{
    if (p->st)
        return NULL;
    if (p->tok->type != TPL_T_NAME)
        return tplp_expected(p, "the name of a filter");
    const char *name = p->t->src + p->tok->at;
    uint16_t id = pn_tpl_filter_find(name, p->tok->len);
    if (id == TPL_NOT_FOUND)
        return tplp_fail(p, "expected a filter, found the unknown name \"%.*s\"", (int)PN_MIN(p->tok->len, 60u), name);
    tpl_node *f = tplp_node(p, TPL_N_FILTER, n, NULL);
    tplp_next(p);
    tpl_node *args = tplp_skip(p, "(") ? tplp_args(p) : NULL;
    if (f) {
        f->id = id;
        f->b = args;
    }
    return tplp_done(p, f);
}

static bool tplp_starts_test_arg(const tplp_parser *p)
{
    switch (p->tok->type) {
    case TPL_T_NAME: return !tplp_is_word(p, "else") && !tplp_is_word(p, "or") && !tplp_is_word(p, "and") &&
                            !tplp_is_word(p, "if") && !tplp_is_word(p, "is") && !tplp_is_word(p, "not");
    case TPL_T_STRING: case TPL_T_INT: case TPL_T_FLOAT: return true;
    default: return tplp_is(p, "[") || tplp_is(p, "{");
    }
}

/* After "is": a test, "not" before it, an argument after it. */
static tpl_node *tplp_test(tplp_parser *p, tpl_node *n)
{
    bool negated = tplp_skip_word(p, "not");
    if (p->st)
        return NULL;
    const char *name = p->t->src + p->tok->at;
    uint16_t id = p->tok->type == TPL_T_NAME ? pn_tpl_test_find(name, p->tok->len) : TPL_NOT_FOUND;
    if (p->tok->type != TPL_T_NAME)
        return tplp_expected(p, "the name of a test");
    if (id == TPL_NOT_FOUND)
        return tplp_fail(p, "expected a test, found the unknown name \"%.*s\"", (int)PN_MIN(p->tok->len, 60u), name);
    tpl_node *test = tplp_node(p, TPL_N_TEST, n, NULL), *args = NULL;
    tplp_next(p);
    if (tplp_skip(p, "(")) {
        args = tplp_args(p);
    } else if (tplp_starts_test_arg(p)) {
        tpl_node *arg = tplp_primary(p);
        args = tplp_make(p, TPL_N_ARG, tplp_postfix(p, arg), NULL);
    }
    if (test) {
        test->id = id;
        test->flag = negated;
        test->b = args;
    }
    return tplp_done(p, test);
}

static tpl_node *tplp_filters(tplp_parser *p, tpl_node *n)
{
    for (;;) {
        if (p->st)
            return NULL;
        if (tplp_skip(p, "|"))
            n = tplp_filter(p, n);
        else if (tplp_skip_word(p, "is"))
            n = tplp_test(p, n);
        else if (tplp_skip(p, "("))
            n = tplp_call(p, n);
        else
            return n;
    }
}

static tpl_node *tplp_unary(tplp_parser *p, bool with_filter)
{
    tpl_node *n;
    if (!tplp_enter(p))
        return NULL;
    if (tplp_skip(p, "-"))
        n = tplp_make(p, TPL_N_NEG, tplp_unary(p, false), NULL);
    else if (tplp_skip(p, "+"))
        n = tplp_make(p, TPL_N_POS, tplp_unary(p, false), NULL);
    else
        n = tplp_primary(p);
    n = tplp_postfix(p, n);
    p->nesting--;
    return with_filter ? tplp_filters(p, n) : n;
}

static tpl_node *tplp_binary(tplp_parser *p, tpl_op op, tpl_node *a, tpl_node *b)
{
    tpl_node *n = tplp_node(p, TPL_N_BIN, a, b);
    if (n)
        n->op = (uint8_t)op;
    return tplp_done(p, n);
}

static tpl_node *tplp_pow(tplp_parser *p)
{
    tpl_node *n = tplp_unary(p, true);
    while (tplp_skip(p, "**"))
        n = tplp_binary(p, TPL_OP_POW, n, tplp_unary(p, true));
    return n;
}

static tpl_node *tplp_product(tplp_parser *p)
{
    static const char *const ops[] = {"*", "/", "//", "%"};
    static const uint8_t codes[] = {TPL_OP_MUL, TPL_OP_DIV, TPL_OP_FLOORDIV, TPL_OP_MOD};
    tpl_node *n = tplp_pow(p);
    for (size_t i = 0; i < PN_COUNT_OF(ops);) {
        if (tplp_skip(p, ops[i])) {
            n = tplp_binary(p, (tpl_op)codes[i], n, tplp_pow(p));
            i = 0;
        } else {
            i++;
        }
    }
    return n;
}

static tpl_node *tplp_concat(tplp_parser *p)
{
    tplp_list l = {NULL, NULL};
    tplp_append(&l, tplp_product(p));
    if (p->st || !tplp_is(p, "~"))
        return l.first;
    while (tplp_skip(p, "~"))
        tplp_append(&l, tplp_product(p));
    return tplp_make(p, TPL_N_CONCAT, l.first, NULL);
}

static tpl_node *tplp_sum(tplp_parser *p)
{
    tpl_node *n = tplp_concat(p);
    for (;;) {
        if (tplp_skip(p, "+"))
            n = tplp_binary(p, TPL_OP_ADD, n, tplp_concat(p));
        else if (tplp_skip(p, "-"))
            n = tplp_binary(p, TPL_OP_SUB, n, tplp_concat(p));
        else
            return n;
    }
}

/* The comparison that comes now, skipped; -1: none. */
static int tplp_compare_op(tplp_parser *p)
{
    static const char *const ops[] = {"==", "!=", "<", "<=", ">", ">="};
    static const uint8_t codes[] = {TPL_OP_EQ, TPL_OP_NE, TPL_OP_LT, TPL_OP_LE, TPL_OP_GT, TPL_OP_GE};
    for (size_t i = 0; i < PN_COUNT_OF(ops); i++)
        if (tplp_skip(p, ops[i]))
            return codes[i];
    if (tplp_skip_word(p, "in"))
        return TPL_OP_IN;
    const tpl_tok *k = p->tok;
    if (!p->st && tplp_is_word(p, "not") && k[1].type == TPL_T_NAME && k[1].len == 2 &&
        memcmp(p->t->src + k[1].at, "in", 2) == 0) {
        tplp_next(p);
        tplp_next(p);
        return TPL_OP_NOTIN;
    }
    return -1;
}

static tpl_node *tplp_compare(tplp_parser *p)
{
    tpl_node *n = tplp_sum(p);
    tplp_list links = {NULL, NULL};
    int op;
    while ((op = tplp_compare_op(p)) >= 0) {
        tpl_node *link = tplp_node(p, TPL_N_ARG, NULL, NULL), *with = tplp_sum(p);
        if (link) {
            link->op = (uint8_t)op;
            link->a = with;
        }
        tplp_append(&links, tplp_done(p, link));
    }
    return links.first ? tplp_make(p, TPL_N_COMPARE, n, links.first) : n;
}

static tpl_node *tplp_not(tplp_parser *p)
{
    tpl_node *n;
    if (!tplp_enter(p))
        return NULL;
    if (tplp_skip_word(p, "not"))
        n = tplp_make(p, TPL_N_NOT, tplp_not(p), NULL);
    else
        n = tplp_compare(p);
    p->nesting--;
    return n;
}

static tpl_node *tplp_and(tplp_parser *p)
{
    tpl_node *n = tplp_not(p);
    while (tplp_skip_word(p, "and"))
        n = tplp_make(p, TPL_N_AND, n, tplp_not(p));
    return n;
}

static tpl_node *tplp_or(tplp_parser *p)
{
    tpl_node *n = tplp_and(p);
    while (tplp_skip_word(p, "or"))
        n = tplp_make(p, TPL_N_OR, n, tplp_and(p));
    return n;
}

static tpl_node *tplp_expr(tplp_parser *p)
{
    if (!tplp_enter(p))
        return NULL;
    tpl_node *n = tplp_or(p);
    while (tplp_skip_word(p, "if")) {
        tpl_node *c = tplp_node(p, TPL_N_COND, n, tplp_or(p));
        if (c && tplp_skip_word(p, "else"))
            c->c = tplp_expr(p);
        n = tplp_done(p, c);
    }
    p->nesting--;
    return n;
}

/* ------------------------------------------------------------------------------------------
 * Statements
 * ------------------------------------------------------------------------------------------ */

static void tplp_block_end(tplp_parser *p) { tplp_need_type(p, TPL_T_BLOCK_END, "\"%}\""); }

/* "{% word %}" that ended a body. */
static void tplp_close(tplp_parser *p, const char *word)
{
    if (!p->st && !tplp_skip_word(p, word))
        tplp_expected(p, word);
    if (!p->st && p->tok->type == TPL_T_NAME)           /* {% endmacro name %} */
        tplp_next(p);
    tplp_block_end(p);
}

static tpl_node *tplp_if(tplp_parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    tplp_list branches = {NULL, NULL};
    tpl_node *n = tplp_node(p, TPL_N_IF, NULL, NULL);
    bool more = true;
    for (bool last = false; more && !p->st;) {
        tpl_node *branch = tplp_node(p, TPL_N_ARG, NULL, NULL);
        tpl_node *cond = last ? NULL : tplp_tuple(p, true, NULL, false);
        tplp_block_end(p);
        tpl_node *body = tplp_body(p, ends);
        if (branch) {
            branch->a = cond;
            branch->b = body;
        }
        tplp_append(&branches, tplp_done(p, branch));
        more = !tplp_is_word(p, "endif");
        if (more && last)
            return tplp_expected(p, "endif");
        if (more) {
            last = tplp_is_word(p, "else");
            tplp_next(p);
        }
    }
    tplp_close(p, "endif");
    if (n)
        n->a = branches.first;
    return tplp_done(p, n);
}

/* a   a, b   (a, b)   ns.a */
static tpl_node *tplp_target(tplp_parser *p, const char *until)
{
    tplp_list l = {NULL, NULL};
    bool paren = tplp_skip(p, "("), comma = false;
    while (!p->st) {
        if (l.first && (tplp_tuple_ends(p, until)))
            break;
        tpl_node *n;
        if (tplp_is(p, "(")) {
            if (!tplp_enter(p))
                return NULL;
            n = tplp_target(p, until);
            p->nesting--;
        } else {
            n = tplp_make(p, TPL_N_NAME, NULL, NULL);
            uint32_t id = tplp_name(p);
            if (n)
                n->name = id;
            if (tplp_skip(p, ".")) {
                tpl_node *attr = tplp_node(p, TPL_N_ATTR, n, NULL);
                id = tplp_name(p);
                if (attr)
                    attr->name = id;
                n = tplp_done(p, attr);
            }
        }
        tplp_append(&l, n);
        if (!tplp_skip(p, ","))
            break;
        comma = true;
    }
    if (paren)
        tplp_need(p, ")");
    return comma ? tplp_make(p, TPL_N_TUPLE, l.first, NULL) : l.first;
}

static tpl_node *tplp_for(tplp_parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const ends2[] = {"endfor", NULL};
    tpl_node *n = tplp_node(p, TPL_N_FOR, NULL, NULL);
    tpl_node *target = tplp_target(p, "in");
    if (!p->st && !tplp_skip_word(p, "in"))
        return tplp_expected(p, "\"in\"");
    tpl_node *seq = tplp_tuple(p, false, NULL, false);
    tpl_node *cond = tplp_skip_word(p, "if") ? tplp_expr(p) : NULL;
    if (!p->st && tplp_is_word(p, "recursive"))
        return tplp_fail(p, "recursive loops are not supported");
    tplp_block_end(p);
    p->loops++;
    tpl_node *body = tplp_body(p, ends), *otherwise = NULL;
    p->loops--;
    if (tplp_skip_word(p, "else")) {
        tplp_block_end(p);
        otherwise = tplp_body(p, ends2);
    }
    tplp_close(p, "endfor");
    if (n) {
        n->a = target;
        n->b = seq;
        n->c = cond;
        n->d = body;
        n->e = otherwise;
    }
    return tplp_done(p, n);
}

static tpl_node *tplp_set(tplp_parser *p)
{
    static const char *const ends[] = {"endset", NULL};
    tpl_node *n = tplp_node(p, TPL_N_SET, NULL, NULL), *target = tplp_target(p, NULL);
    if (tplp_skip(p, "=")) {
        tpl_node *v = tplp_tuple(p, true, NULL, false);
        tplp_block_end(p);
        if (n) {
            n->a = target;
            n->b = v;
        }
        return tplp_done(p, n);
    }
    tpl_node *chain = NULL;
    while (tplp_skip(p, "|"))
        chain = tplp_filter(p, chain);
    tplp_block_end(p);
    tpl_node *body = tplp_body(p, ends);
    tplp_close(p, "endset");
    if (n) {
        n->kind = TPL_N_SETBLOCK;
        n->a = target;
        n->c = chain;
        n->d = body;
    }
    return tplp_done(p, n);
}

/* After "(": parameters with defaults. */
static tpl_node *tplp_params(tplp_parser *p)
{
    tplp_list l = {NULL, NULL};
    while (!p->st && !tplp_is(p, ")")) {
        tpl_node *n = tplp_node(p, TPL_N_ARG, NULL, NULL);
        uint32_t id = tplp_name(p);
        tpl_node *value = tplp_skip(p, "=") ? tplp_expr(p) : NULL;
        if (n) {
            n->name = id;
            n->a = value;
        }
        tplp_append(&l, tplp_done(p, n));
        if (!tplp_skip(p, ","))
            break;
    }
    tplp_need(p, ")");
    return l.first;
}

/* The body of a macro or call block: a loop around it does not reach in. */
static tpl_node *tplp_macro_body(tplp_parser *p, tpl_node *n, const char *const *ends)
{
    tpl_node *outer = p->macro;
    uint32_t loops = p->loops;
    p->macro = n;
    p->loops = 0;
    tpl_node *body = tplp_body(p, ends);
    p->macro = outer;
    p->loops = loops;
    return body;
}

static tpl_node *tplp_macro(tplp_parser *p)
{
    static const char *const ends[] = {"endmacro", NULL};
    tpl_node *n = tplp_node(p, TPL_N_MACRO, NULL, NULL);
    uint32_t id = tplp_name(p);
    tplp_need(p, "(");
    tpl_node *params = tplp_params(p);
    tplp_block_end(p);
    tpl_node *body = tplp_macro_body(p, n, ends);
    tplp_close(p, "endmacro");
    if (n) {
        n->name = id;
        n->b = params;
        n->d = body;
    }
    return tplp_done(p, n);
}

static tpl_node *tplp_callblock(tplp_parser *p)
{
    static const char *const ends[] = {"endcall", NULL};
    tpl_node *n = tplp_node(p, TPL_N_CALLBLOCK, NULL, NULL);
    tpl_node *params = tplp_skip(p, "(") ? tplp_params(p) : NULL, *call = tplp_expr(p);
    if (!p->st && call->kind != TPL_N_CALL)
        return tplp_expected(p, "a call");
    tplp_block_end(p);
    tpl_node *body = tplp_macro_body(p, n, ends);
    tplp_close(p, "endcall");
    if (n) {
        n->a = call;
        n->b = params;
        n->d = body;
    }
    return tplp_done(p, n);
}

static tpl_node *tplp_filterblock(tplp_parser *p)
{
    static const char *const ends[] = {"endfilter", NULL};
    tpl_node *n = tplp_node(p, TPL_N_FILTERBLOCK, NULL, NULL), *chain = tplp_filter(p, NULL);
    while (tplp_skip(p, "|"))
        chain = tplp_filter(p, chain);
    tplp_block_end(p);
    tpl_node *body = tplp_body(p, ends);
    tplp_close(p, "endfilter");
    if (n) {
        n->c = chain;
        n->d = body;
    }
    return tplp_done(p, n);
}

static tpl_node *tplp_with(tplp_parser *p)
{
    static const char *const ends[] = {"endwith", NULL};
    tpl_node *n = tplp_node(p, TPL_N_WITH, NULL, NULL);
    tplp_list l = {NULL, NULL};
    while (!p->st && p->tok->type != TPL_T_BLOCK_END) {
        tpl_node *target = tplp_target(p, NULL);
        tplp_need(p, "=");
        tpl_node *v = tplp_expr(p);
        tplp_append(&l, tplp_make(p, TPL_N_ARG, target, v));
        if (!tplp_skip(p, ","))
            break;
    }
    tplp_block_end(p);
    tpl_node *body = tplp_body(p, ends);
    tplp_close(p, "endwith");
    if (n) {
        n->b = l.first;
        n->d = body;
    }
    return tplp_done(p, n);
}

static tpl_node *tplp_generation(tplp_parser *p)
{
    static const char *const ends[] = {"endgeneration", NULL};
    tpl_node *n = tplp_node(p, TPL_N_SCOPED, NULL, NULL);
    tplp_block_end(p);
    tpl_node *body = tplp_body(p, ends);
    tplp_close(p, "endgeneration");
    if (n)
        n->d = body;
    return tplp_done(p, n);
}

static tpl_node *tplp_jump(tplp_parser *p, tpl_kind kind, const char *word)
{
    if (!p->loops)
        return tplp_fail(p, "%s outside of a loop", word);
    tpl_node *n = tplp_make(p, kind, NULL, NULL);
    tplp_block_end(p);
    return n;
}

static tpl_node *tplp_statement(tplp_parser *p)
{
    if (tplp_skip_word(p, "if")) return tplp_if(p);
    if (tplp_skip_word(p, "for")) return tplp_for(p);
    if (tplp_skip_word(p, "set")) return tplp_set(p);
    if (tplp_skip_word(p, "macro")) return tplp_macro(p);
    if (tplp_skip_word(p, "call")) return tplp_callblock(p);
    if (tplp_skip_word(p, "filter")) return tplp_filterblock(p);
    if (tplp_skip_word(p, "with")) return tplp_with(p);
    if (tplp_skip_word(p, "generation")) return tplp_generation(p);
    if (tplp_skip_word(p, "break")) return tplp_jump(p, TPL_N_BREAK, "break");
    if (tplp_skip_word(p, "continue")) return tplp_jump(p, TPL_N_CONTINUE, "continue");
    if (tplp_skip_word(p, "do")) {
        tpl_node *n = tplp_make(p, TPL_N_DO, tplp_tuple(p, true, NULL, false), NULL);
        tplp_block_end(p);
        return n;
    }
    return tplp_expected(p, "a statement (if, for, set, macro, call, filter, with, generation, break, continue, do, raw)");
}

static tpl_node *tplp_print(tplp_parser *p)
{
    tpl_node *n = tplp_make(p, TPL_N_PRINT, tplp_tuple(p, true, NULL, false), NULL);
    tplp_need_type(p, TPL_T_VAR_END, "\"}}\"");
    return n;
}

/* Up to a tag that starts with one of `ends` (it is not skipped); NULL: up to the end. */
static tpl_node *tplp_body(tplp_parser *p, const char *const *ends)
{
    tplp_list l = {NULL, NULL};
    if (!tplp_enter(p))
        return NULL;
    while (!p->st) {
        const tpl_tok *k = p->tok;
        if (k->type == TPL_T_EOF) {
            if (ends)
                tplp_expected(p, ends[0]);
            break;
        }
        tplp_next(p);
        if (k->type == TPL_T_TEXT) {
            tpl_node *n = tplp_str_const(p, p->t->src + k->at, k->len);
            if (n)
                n->kind = TPL_N_TEXT;
            tplp_append(&l, n);
        } else if (k->type == TPL_T_VAR) {
            tplp_append(&l, tplp_print(p));
        } else {
            bool end = false;
            for (const char *const *e = ends; e && *e; e++)
                end = end || tplp_is_word(p, *e);
            if (end)
                break;
            tplp_append(&l, tplp_statement(p));
        }
    }
    p->nesting--;
    return l.first;
}

/* Offsets to line numbers.  All nodes lie in the arena, but not side by side, so walk the tree; its
 * depth is bounded by now, and a table of line starts makes each look-up a bisection. */
typedef struct tplp_lines { uint32_t *start; uint32_t n; } tplp_lines;

static void tplp_set_lines(const tplp_lines *t, tpl_node *n)
{
    for (; n; n = n->next) {
        uint32_t lo = 0, hi = t->n;
        while (hi - lo > 1) {
            uint32_t mid = lo + (hi - lo) / 2;
            if (t->start[mid] <= n->line)
                lo = mid;
            else
                hi = mid;
        }
        n->line = lo + 1;
        tpl_node *child[5] = {n->a, n->b, n->c, n->d, n->e};
        for (int i = 0; i < 5; i++)
            tplp_set_lines(t, child[i]);
    }
}

static void tplp_number_lines(tplp_parser *p)
{
    pn_tpl *t = p->t;
    tplp_lines lines = {NULL, 1};
    for (size_t i = 0; i < t->src_len; i++)
        lines.n += t->src[i] == '\n';
    lines.start = tplp_take(p, lines.n * sizeof *lines.start);
    if (!lines.start)
        return;
    uint32_t k = 1;
    for (size_t i = 0; i < t->src_len; i++)
        if (t->src[i] == '\n')
            lines.start[k++] = (uint32_t)i + 1;
    tplp_set_lines(&lines, t->body);
}

PN_INTERNAL pn_status pn_tpl_parse(pn_tpl *t, const tpl_toks *toks, pn_err *err)
{
    tplp_parser p;
    memset(&p, 0, sizeof p);
    p.t = t;
    p.tok = toks->v;
    p.end = toks->v + toks->n - 1;
    p.err = err;
    pn_map_init(&p.names, t->mem, PN_ACCT_MISC);
    t->n_loop = tplp_intern(&p, "loop", 4);
    t->n_caller = tplp_intern(&p, "caller", 6);
    t->n_varargs = tplp_intern(&p, "varargs", 7);
    t->n_kwargs = tplp_intern(&p, "kwargs", 6);
    t->body = tplp_body(&p, NULL);
    tplp_number_lines(&p);
    pn_map_fini(&p.names);
    return p.st;
}
