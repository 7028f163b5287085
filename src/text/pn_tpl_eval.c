/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_tpl_eval.c - walking the tree: expressions to values, statements to text.
 *
 * Names.  A for, macro, with or block opens a scope; an if does not.  A name is looked for from the
 * innermost scope outwards, then among the variables of the template (run->root, an array by name),
 * then among the functions everybody has.  A scope that a macro refers to is kept; the others are used
 * again for the next round of a loop, which starts without the names of the last one.
 *
 * The recursion is bounded by TPL_MAX_DEPTH; frames are small because the large cases are functions
 * of their own.
 */
#include "text/pn_tpl.h"

#include "num/pn_math.h"

#include <math.h>

static tpl_val tple_eval(tpl_run *r, const tpl_node *n);

static bool tple_enter(tpl_run *r, const tpl_node *n)
{
    r->line = n->line;
    if (PN_UNLIKELY(++r->depth > TPL_MAX_DEPTH))
        pn_tpl_fail(r, "limit reached: expressions, blocks and macros nested deeper than %d", (int)TPL_MAX_DEPTH);
    return pn_tpl_charge(r, 1);
}

/* ------------------------------------------------------------------------------------------
 * Names and scopes
 * ------------------------------------------------------------------------------------------ */

static tpl_scope *tple_push_scope(tpl_run *r)
{
    tpl_scope *s = pn_tpl_take(r, sizeof *s);
    if (s) {
        memset(s, 0, sizeof *s);
        s->up = r->scope;
        r->scope = s;
    }
    return s;
}

static tpl_val *tple_local(tpl_scope *s, uint32_t name)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->v[i].name == name)
            return &s->v[i].v;
    return NULL;
}

static void tple_assign(tpl_run *r, uint32_t name, tpl_val v)
{
    tpl_scope *s = r->scope;
    if (r->st)
        return;
    if (!s) {
        r->root[name] = v;
        return;
    }
    tpl_val *slot = tple_local(s, name);
    if (slot) {
        *slot = v;
        return;
    }
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 4;
        tpl_var *p = pn_tpl_take(r, cap * sizeof *p);
        if (!p)
            return;
        if (s->n)
            memcpy(p, s->v, s->n * sizeof *p);
        s->v = p;
        s->cap = cap;
    }
    s->v[s->n++] = (tpl_var){name, v};
}

static tpl_val tple_lookup(tpl_run *r, uint32_t name)
{
    for (tpl_scope *s = r->scope; s; s = s->up) {
        tpl_val *v = tple_local(s, name);
        if (v)
            return *v;
    }
    if (r->root[name].type != TPL_ABSENT)
        return r->root[name];
    tpl_val v = tpl_undef();
    uint16_t id = pn_tpl_global_find(r->t->names[name]);
    if (id != TPL_NOT_FOUND)
        v = (tpl_val){TPL_GLOBAL, true, id, {0}};
    else
        v.u.s = r->t->names[name];
    return v;
}

static tpl_val tple_undefined(tpl_run *r, tpl_val v)
{
    if (v.u.s)
        return pn_tpl_fail(r, "'%.*s' is undefined", (int)PN_MIN(v.u.s->len, 100u), v.u.s->p);
    return pn_tpl_fail(r, "a value that does not exist is used (undefined)");
}

/* Assign to a target: name, ns.attr or a tuple of them. */
static void tple_unpack(tpl_run *r, const tpl_node *target, tpl_val v)
{
    if (r->st)
        return;
    if (target->kind == TPL_N_NAME) {
        tple_assign(r, target->name, v);
    } else if (target->kind == TPL_N_ATTR) {
        tpl_val ns = tple_eval(r, target->a);
        if (!r->st && ns.type != TPL_NS)
            pn_tpl_fail(r, "cannot assign attribute on non-namespace object");
        if (!r->st)
            pn_tpl_dict_set(r, ns.u.d, tpl_of_str(r->t->names[target->name]), v);
    } else {
        tpl_list *l = pn_tpl_iter(r, v);
        uint32_t i = 0, n = 0;
        for (const tpl_node *t = target->a; t; t = t->next)
            n++;
        if (l && l->n != n) {
            pn_tpl_fail(r, "expected %u values to unpack, found %u", (unsigned)n, (unsigned)l->n);
            return;
        }
        for (const tpl_node *t = target->a; l && t && i < l->n; t = t->next, i++)
            tple_unpack(r, t, l->v[i]);
    }
}

/* ------------------------------------------------------------------------------------------
 * Attributes, items, slices
 * ------------------------------------------------------------------------------------------ */

static tpl_val tple_loop_attr(tpl_run *r, tpl_loop *l, const tpl_str *name)
{
    int64_t n = l->seq.u.l->n, i = l->index;
    if (pn_tpl_is_z(name, "index")) return tpl_int(i + 1, true);
    if (pn_tpl_is_z(name, "index0")) return tpl_int(i, true);
    if (pn_tpl_is_z(name, "revindex")) return tpl_int(n - i, true);
    if (pn_tpl_is_z(name, "revindex0")) return tpl_int(n - i - 1, true);
    if (pn_tpl_is_z(name, "first")) return tpl_bool(i == 0);
    if (pn_tpl_is_z(name, "last")) return tpl_bool(i + 1 >= n);
    if (pn_tpl_is_z(name, "length")) return tpl_int(n, true);
    if (pn_tpl_is_z(name, "depth")) return tpl_int(l->depth, true);
    if (pn_tpl_is_z(name, "depth0")) return tpl_int((int64_t)l->depth - 1, true);
    if (pn_tpl_is_z(name, "previtem")) return i > 0 ? l->seq.u.l->v[i - 1] : tpl_undef();
    if (pn_tpl_is_z(name, "nextitem")) return i + 1 < n ? l->seq.u.l->v[i + 1] : tpl_undef();
    (void)r;
    return tpl_absent();
}

static tpl_val tple_method(tpl_run *r, tpl_val self, uint16_t id)
{
    tpl_method *m = pn_tpl_take(r, sizeof *m);
    tpl_val v = {TPL_METHOD, true, 0, {0}};
    if (!m)
        return tpl_undef();
    *m = (tpl_method){self, id};
    v.u.method = m;
    return v;
}

static tpl_val tple_missing(tpl_val name)
{
    tpl_val v = tpl_undef();
    if (name.type == TPL_STR)
        v.u.s = name.u.s;
    return v;
}

PN_INTERNAL tpl_val pn_tpl_attr(tpl_run *r, tpl_val v, tpl_val name)
{
    if (v.type == TPL_UNDEF)
        return tple_undefined(r, v);
    if (v.type == TPL_LOOP) {
        tpl_val a = tple_loop_attr(r, v.u.loop, name.u.s);
        if (tpl_given(a))
            return a;
    }
    if (v.type == TPL_CYCLER && pn_tpl_is_z(name.u.s, "current") && v.u.l->n)
        return v.u.l->v[v.u.l->pos];
    if (v.type == TPL_MACRO && pn_tpl_is_z(name.u.s, "name"))
        return tpl_of_str(r->t->names[v.u.macro->node->name]);
    uint16_t id = pn_tpl_method_find(v, name.u.s);
    if (id != TPL_NOT_FOUND)
        return tple_method(r, v, id);
    tpl_val *item = v.type == TPL_DICT || v.type == TPL_NS ? pn_tpl_dict_get(r, v.u.d, name) : NULL;
    return item ? *item : tple_missing(name);
}

/* v[i] of a sequence of n: the position, or -1. */
static int64_t tple_position(int64_t i, int64_t n)
{
    if (i < 0)
        i += n;
    return i >= 0 && i < n ? i : -1;
}

PN_INTERNAL tpl_val pn_tpl_item(tpl_run *r, tpl_val v, tpl_val key)
{
    if (v.type == TPL_UNDEF)
        return tple_undefined(r, v);
    if (v.type == TPL_DICT || v.type == TPL_NS) {
        tpl_val *item = pn_tpl_dict_get(r, v.u.d, key);
        if (item)
            return *item;
    } else if (key.type == TPL_INT || key.type == TPL_BOOL) {
        int64_t i = key.type == TPL_INT ? key.u.i : key.u.b;
        if (tpl_is_list(v)) {
            i = tple_position(i, v.u.l->n);
            return i < 0 ? tpl_undef() : v.u.l->v[i];
        }
        if (v.type == TPL_STR) {
            i = tple_position(i, pn_tpl_chars(v.u.s));
            if (i < 0)
                return tpl_undef();
            size_t at = pn_tpl_offset(r, v.u.s, i), n = 1;
            while (at + n < v.u.s->len && ((uint8_t)v.u.s->p[at + n] & 0xC0) == 0x80)
                n++;
            return pn_tpl_sub(r, v.u.s, at, n);
        }
    }
    if (key.type == TPL_STR && v.type != TPL_NONE)
        return pn_tpl_attr(r, v, key);
    return tple_missing(key);
}

PN_INTERNAL tpl_val pn_tpl_path(tpl_run *r, tpl_val v, tpl_val path)
{
    if (path.type != TPL_STR)
        return pn_tpl_item(r, v, path);
    const tpl_str *s = path.u.s;
    for (size_t i = 0; i <= s->len && !r->st;) {
        const char *dot = memchr(s->p + i, '.', s->len - i);
        size_t end = dot ? (size_t)(dot - s->p) : s->len;
        tpl_val part = pn_tpl_sub(r, s, i, end - i);
        int64_t index = 0;
        bool digits = end > i && end - i < 10;
        for (size_t k = i; k < end && digits; k++) {
            digits = s->p[k] >= '0' && s->p[k] <= '9';
            index = index * 10 + (s->p[k] - '0');
        }
        if (v.type == TPL_UNDEF)
            return i ? tple_undefined(r, v) : v;
        v = r->st ? tpl_undef() : pn_tpl_item(r, v, digits ? tpl_int(index, true) : part);
        i = end + 1;
    }
    return v;
}

/* One bound of a slice: *out unless the value is none or absent. */
static void tple_bound(tpl_run *r, tpl_val v, int64_t *out)
{
    if (v.type == TPL_INT || v.type == TPL_BOOL)
        *out = v.type == TPL_INT ? v.u.i : v.u.b;
    else if (v.type != TPL_NONE && v.type != TPL_ABSENT)
        pn_tpl_fail(r, "slice indices must be integers or None, not %s", pn_tpl_type_name(v));
}

static int64_t tple_clamp(int64_t i, int64_t n, int64_t lo, int64_t hi)
{
    if (i < 0)
        i = i < -n ? -1 : i + n;
    return i < lo ? lo : i > hi ? hi : i;
}

static tpl_val tple_slice_list(tpl_run *r, tpl_val v, int64_t start, int64_t stop, int64_t step)
{
    tpl_list *out = pn_tpl_list(r, 0);
    for (int64_t i = start; out && !r->st && (step > 0 ? i < stop : i > stop);) {
        pn_tpl_push(r, out, v.u.l->v[i]);
        if (step > 0 ? step > stop - i : step < stop - i)
            break;
        i += step;
    }
    tpl_val made = tpl_of_list(out, (tpl_type)v.type);
    made.trust = v.trust;
    return made;
}

static tpl_val tple_slice_str(tpl_run *r, tpl_str *s, int64_t start, int64_t stop, int64_t step)
{
    if (step == 1) {
        size_t a = pn_tpl_offset(r, s, start), b = pn_tpl_offset(r, s, stop);
        return pn_tpl_sub(r, s, PN_MIN(a, b), b > a ? b - a : 0);
    }
    tpl_list *chars = pn_tpl_iter(r, tpl_of_str(s));
    tpl_buf b;
    pn_tpl_buf_init(&b);
    for (int64_t i = start; chars && !r->st && (step > 0 ? i < stop : i > stop);) {
        tpl_str *c = chars->v[i].u.s;
        pn_tpl_buf_sub(r, &b, c, 0, c->len);
        if (step > 0 ? step > stop - i : step < stop - i)
            break;
        i += step;
    }
    return pn_tpl_buf_str(r, &b);
}

static tpl_val tple_slice(tpl_run *r, const tpl_node *n)
{
    tpl_val v = tple_eval(r, n->a), a = tpl_absent(), b = tpl_absent(), c = tpl_absent();
    if (n->b) a = tple_eval(r, n->b);
    if (n->c) b = tple_eval(r, n->c);
    if (n->d) c = tple_eval(r, n->d);
    if (r->st)
        return tpl_undef();
    if (v.type == TPL_UNDEF)
        return v.u.s ? tple_undefined(r, v) : tpl_undef();
    if (!tpl_is_list(v) && v.type != TPL_STR)
        return pn_tpl_fail(r, "'%s' cannot be sliced", pn_tpl_type_name(v));
    int64_t len = v.type == TPL_STR ? pn_tpl_chars(v.u.s) : v.u.l->n, step = 1;
    tple_bound(r, c, &step);
    if (step == 0)
        return pn_tpl_fail(r, "slice step cannot be zero");
    int64_t start = step > 0 ? 0 : len - 1, stop = step > 0 ? len : -1, given = INT64_MIN;
    tple_bound(r, a, &given);
    if (given != INT64_MIN)
        start = step > 0 ? tple_clamp(given, len, 0, len) : tple_clamp(given, len, -1, len - 1);
    given = INT64_MIN;
    tple_bound(r, b, &given);
    if (given != INT64_MIN)
        stop = step > 0 ? tple_clamp(given, len, 0, len) : tple_clamp(given, len, -1, len - 1);
    if (r->st)
        return tpl_undef();
    return v.type == TPL_STR ? tple_slice_str(r, v.u.s, start, stop, step) : tple_slice_list(r, v, start, stop, step);
}

/* ------------------------------------------------------------------------------------------
 * Arithmetic
 * ------------------------------------------------------------------------------------------ */

static const char *tple_op_name(int op)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    return op <= TPL_OP_POW ? names[op] : "?";
}

static tpl_val tple_type_error(tpl_run *r, int op, tpl_val a, tpl_val b)
{
    if (a.type == TPL_UNDEF)
        return tple_undefined(r, a);
    if (b.type == TPL_UNDEF)
        return tple_undefined(r, b);
    if (op == TPL_OP_ADD && a.type == TPL_STR)
        return pn_tpl_fail(r, "can only concatenate str (not \"%s\") to str", pn_tpl_type_name(b));
    return pn_tpl_fail(r, "unsupported operand types for %s: '%s' and '%s'", tple_op_name(op), pn_tpl_type_name(a),
                       pn_tpl_type_name(b));
}

/* Integers: false when the result does not fit. */
static bool tple_int_op(int op, int64_t a, int64_t b, int64_t *out)
{
    int64_t q, m, p = 1;
    switch (op) {
    case TPL_OP_ADD:
        if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b)
            return false;
        *out = a + b;
        return true;
    case TPL_OP_SUB:
        if (b < 0 ? a > INT64_MAX + b : a < INT64_MIN + b)
            return false;
        *out = a - b;
        return true;
    case TPL_OP_MUL: {
        uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b, z;
        if (!pn_mul_u64(x, y, &z) || z > INT64_MAX)
            return false;
        *out = (a < 0) != (b < 0) ? -(int64_t)z : (int64_t)z;
        return true;
    }
    case TPL_OP_FLOORDIV: case TPL_OP_MOD:
        if (b == -1 || b == 0) {
            if (b == 0 || a == INT64_MIN)
                return false;
            *out = op == TPL_OP_MOD ? 0 : -a;
            return true;
        }
        q = a / b;
        m = a % b;
        if (m != 0 && (m < 0) != (b < 0)) {
            q--;
            m += b;
        }
        *out = op == TPL_OP_MOD ? m : q;
        return true;
    case TPL_OP_POW:
        if (b < 0)
            return false;
        if (a == 0 || a == 1 || a == -1) {
            *out = b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a;
            return true;
        }
        for (int64_t i = 0; i < b; i++)         /* |a| >= 2: overflows within 64 rounds */
            if (!tple_int_op(TPL_OP_MUL, p, a, &p))
                return false;
        *out = p;
        return true;
    default: return false;
    }
}

static tpl_val tple_numbers(tpl_run *r, int op, tpl_val a, tpl_val b)
{
    bool trust = a.trust && b.trust, ints = a.type <= TPL_INT && b.type <= TPL_INT;
    int64_t i;
    if (ints && op != TPL_OP_DIV &&
        tple_int_op(op, a.type == TPL_INT ? a.u.i : a.u.b, b.type == TPL_INT ? b.u.i : b.u.b, &i))
        return tpl_int(i, trust);
    double x = pn_tpl_number(a), y = pn_tpl_number(b);
    if (y == 0 && (op == TPL_OP_DIV || op == TPL_OP_FLOORDIV || op == TPL_OP_MOD))
        return pn_tpl_fail(r, "division by zero");
    switch (op) {
    case TPL_OP_ADD: return tpl_float(x + y, trust);
    case TPL_OP_SUB: return tpl_float(x - y, trust);
    case TPL_OP_MUL: return tpl_float(x * y, trust);
    case TPL_OP_DIV: return tpl_float(x / y, trust);
    case TPL_OP_FLOORDIV: return tpl_float(floor(x / y), trust);
    case TPL_OP_MOD: return tpl_float(x - y * floor(x / y), trust);
    default: break;
    }
    double whole = floor(y);
    if (x > 0)
        return tpl_float(pn_pow(x, y), trust);
    if (y == 0)
        return tpl_float(1, trust);
    if (x == 0 ? y < 0 : whole != y)
        return pn_tpl_fail(r, "the power is not a real number");
    if (x == 0)
        return tpl_float(0, trust);
    double m = pn_pow(-x, y);
    return tpl_float(whole / 2 != floor(whole / 2) ? -m : m, trust);
}

static tpl_val tple_add_text(tpl_run *r, tpl_val a, tpl_val b)
{
    tpl_buf buf;
    uint16_t safe = a.id | b.id;
    pn_tpl_buf_init(&buf);
    if (a.id != b.id && !a.id)
        a = pn_tpl_escape(r, a.u.s);
    else if (a.id != b.id)
        b = pn_tpl_escape(r, b.u.s);
    if (r->st)
        return tpl_undef();
    pn_tpl_buf_sub(r, &buf, a.u.s, 0, a.u.s->len);
    pn_tpl_buf_sub(r, &buf, b.u.s, 0, b.u.s->len);
    tpl_val v = pn_tpl_buf_str(r, &buf);
    v.id = safe;
    return v;
}

static tpl_val tple_add_lists(tpl_run *r, tpl_val a, tpl_val b)
{
    tpl_list *l = pn_tpl_list(r, (size_t)a.u.l->n + b.u.l->n);
    for (uint32_t i = 0; l && i < a.u.l->n; i++)
        pn_tpl_push(r, l, a.u.l->v[i]);
    for (uint32_t i = 0; l && i < b.u.l->n; i++)
        pn_tpl_push(r, l, b.u.l->v[i]);
    tpl_val v = tpl_of_list(l, (tpl_type)a.type);
    v.trust = a.trust && b.trust;
    return v;
}

static tpl_val tple_repeat(tpl_run *r, tpl_val v, tpl_val times)
{
    int64_t n = times.type == TPL_BOOL ? times.u.b : times.u.i;
    if (v.type == TPL_STR) {
        tpl_buf b;
        pn_tpl_buf_init(&b);
        for (int64_t i = 0; i < n && v.u.s->len && pn_tpl_charge(r, 1); i++)
            pn_tpl_buf_sub(r, &b, v.u.s, 0, v.u.s->len);
        return pn_tpl_buf_str(r, &b);
    }
    tpl_list *l = pn_tpl_list(r, 0);
    for (int64_t i = 0; i < n && v.u.l->n && !r->st; i++)
        for (uint32_t k = 0; k < v.u.l->n; k++)
            pn_tpl_push(r, l, v.u.l->v[k]);
    tpl_val made = tpl_of_list(l, (tpl_type)v.type);
    made.trust = v.trust;
    return made;
}

static tpl_val tple_binary(tpl_run *r, int op, tpl_val a, tpl_val b)
{
    if (r->st)
        return tpl_undef();
    if (tpl_is_num(a) && tpl_is_num(b))
        return tple_numbers(r, op, a, b);
    if (op == TPL_OP_ADD && a.type == TPL_STR && b.type == TPL_STR)
        return tple_add_text(r, a, b);
    if (op == TPL_OP_ADD && tpl_is_list(a) && a.type == b.type)
        return tple_add_lists(r, a, b);
    bool a_int = a.type == TPL_INT || a.type == TPL_BOOL, b_int = b.type == TPL_INT || b.type == TPL_BOOL;
    if (op == TPL_OP_MUL && b_int && (a.type == TPL_STR || tpl_is_list(a)))
        return tple_repeat(r, a, b);
    if (op == TPL_OP_MUL && a_int && (b.type == TPL_STR || tpl_is_list(b)))
        return tple_repeat(r, b, a);
    if (op == TPL_OP_MOD && a.type == TPL_STR)
        return pn_tpl_printf(r, a.u.s, b);
    return tple_type_error(r, op, a, b);
}

static tpl_val tple_sign(tpl_run *r, const tpl_node *n)
{
    tpl_val v = tple_eval(r, n->a);
    if (r->st)
        return v;
    if (v.type == TPL_UNDEF)
        return tple_undefined(r, v);
    if (!tpl_is_num(v))
        return pn_tpl_fail(r, "bad operand type for unary %s: '%s'", n->kind == TPL_N_NEG ? "-" : "+", pn_tpl_type_name(v));
    if (v.type == TPL_BOOL)
        v = tpl_int(v.u.b, v.trust);
    if (n->kind == TPL_N_POS)
        return v;
    if (v.type == TPL_INT && v.u.i != INT64_MIN)
        return tpl_int(-v.u.i, v.trust);
    return tpl_float(-pn_tpl_number(v), v.trust);
}

static bool tple_compare_one(tpl_run *r, int op, tpl_val a, tpl_val b)
{
    if (r->st)
        return false;
    if (op == TPL_OP_EQ || op == TPL_OP_NE)
        return pn_tpl_equal(r, a, b) == (op == TPL_OP_EQ);
    if (op == TPL_OP_IN || op == TPL_OP_NOTIN)
        return pn_tpl_contains(r, b, a) == (op == TPL_OP_IN);
    if (a.type == TPL_UNDEF || b.type == TPL_UNDEF) {
        tple_undefined(r, a.type == TPL_UNDEF ? a : b);
        return false;
    }
    int c = pn_tpl_order(r, a, b);
    switch (op) {
    case TPL_OP_LT: return c < 0;
    case TPL_OP_LE: return c <= 0;
    case TPL_OP_GT: return c > 0;
    default: return c >= 0;
    }
}

static tpl_val tple_compare(tpl_run *r, const tpl_node *n)
{
    tpl_val a = tple_eval(r, n->a);
    for (const tpl_node *link = n->b; link && !r->st; link = link->next) {
        tpl_val b = tple_eval(r, link->a);
        if (!tple_compare_one(r, link->op, a, b))
            return tpl_bool(false);
        a = b;
    }
    return tpl_bool(true);
}

static tpl_val tple_concat(tpl_run *r, const tpl_node *n)
{
    tpl_buf b;
    pn_tpl_buf_init(&b);
    for (const tpl_node *c = n->a; c && !r->st; c = c->next) {
        tpl_str *s = pn_tpl_string(r, tple_eval(r, c));
        if (s)
            pn_tpl_buf_sub(r, &b, s, 0, s->len);
    }
    return pn_tpl_buf_str(r, &b);
}

/* ------------------------------------------------------------------------------------------
 * Calls
 * ------------------------------------------------------------------------------------------ */

static bool tple_args(tpl_run *r, const tpl_node *list, tpl_args *out)
{
    uint32_t n = 0, n_kw = 0;
    memset(out, 0, sizeof *out);
    out->caller = tpl_absent();
    for (const tpl_node *a = list; a; a = a->next) {
        n += a->name == TPL_NO_NAME;
        n_kw += a->name != TPL_NO_NAME;
    }
    if (n)
        out->pos = pn_tpl_take(r, n * sizeof *out->pos);
    if (n_kw)
        out->kw = pn_tpl_take(r, n_kw * sizeof *out->kw);
    for (const tpl_node *a = list; a && !r->st; a = a->next) {
        tpl_val v = tple_eval(r, a->a);
        if (r->st)
            break;
        if (a->name == TPL_NO_NAME)
            out->pos[out->n++] = v;
        else
            out->kw[out->n_kw++] = (tpl_kw){r->t->names[a->name], v};
    }
    return !r->st;
}

static void tple_keep_scopes(tpl_run *r)
{
    for (tpl_scope *s = r->scope; s && !s->kept; s = s->up)
        s->kept = true;
}

static tpl_val tple_closure(tpl_run *r, const tpl_node *n)
{
    tpl_macro *m = pn_tpl_take(r, sizeof *m);
    tpl_val v = {TPL_MACRO, true, 0, {0}};
    if (!m)
        return tpl_undef();
    *m = (tpl_macro){n, r->scope};
    tple_keep_scopes(r);
    v.u.macro = m;
    return v;
}

static tpl_val *tple_kw(const tpl_args *args, const tpl_str *name)
{
    for (uint32_t i = 0; i < args->n_kw; i++)
        if (args->kw[i].name->len == name->len && memcmp(args->kw[i].name->p, name->p, name->len) == 0)
            return &args->kw[i].v;
    return NULL;
}

/* Parameters into the macro's new scope; what is left over into varargs and kwargs. */
static void tple_bind_macro(tpl_run *r, const tpl_node *n, const tpl_args *args)
{
    uint32_t i = 0, used_kw = 0;
    for (const tpl_node *p = n->b; p && !r->st; p = p->next, i++) {
        tpl_val *named = tple_kw(args, r->t->names[p->name]), v = tpl_undef();
        v.u.s = r->t->names[p->name];
        if (i < args->n) {
            v = args->pos[i];
        } else if (named) {
            v = *named;
            used_kw++;
        } else if (p->a) {
            v = tple_eval(r, p->a);
        }
        tple_assign(r, p->name, v);
    }
    if (!n->flag && (args->n > i || args->n_kw > used_kw)) {
        pn_tpl_fail(r, "a macro got more arguments than it takes (%u)", (unsigned)i);
        return;
    }
    if (!n->flag)
        return;
    tpl_list *rest = pn_tpl_list(r, 0);
    tpl_dict *kw = pn_tpl_dict(r);
    for (uint32_t k = i; k < args->n; k++)
        pn_tpl_push(r, rest, args->pos[k]);
    for (uint32_t k = 0; k < args->n_kw && !r->st; k++) {
        bool param = false;
        for (const tpl_node *p = n->b; p; p = p->next)
            param = param || r->t->names[p->name] == args->kw[k].name;
        if (!param)
            pn_tpl_dict_set(r, kw, tpl_of_str((tpl_str *)(uintptr_t)args->kw[k].name), args->kw[k].v);
    }
    tple_assign(r, r->t->n_varargs, tpl_of_list(rest, TPL_TUPLE));
    tple_assign(r, r->t->n_kwargs, tpl_of_dict(kw, TPL_DICT));
}

/* The text that a body prints. */
static tpl_val tple_capture(tpl_run *r, const tpl_node *body)
{
    tpl_buf b, *outer = r->out;
    pn_tpl_buf_init(&b);
    r->out = &b;
    pn_tpl_exec(r, body);
    r->out = outer;
    return pn_tpl_buf_str(r, &b);
}

static tpl_val tple_call_macro(tpl_run *r, const tpl_macro *m, const tpl_args *args)
{
    tpl_scope *outer = r->scope;
    tpl_flow flow = r->flow;
    uint32_t line = r->line;
    tpl_val v = tpl_undef();
    if (++r->macros > TPL_MAX_MACROS)
        pn_tpl_fail(r, "limit reached: macros called inside each other more than %d deep", (int)TPL_MAX_MACROS);
    r->scope = m->scope;
    if (!r->st && tple_push_scope(r)) {
        if (tpl_given(args->caller))
            tple_assign(r, r->t->n_caller, args->caller);
        tple_bind_macro(r, m->node, args);
        r->flow = TPL_FLOW_NEXT;
        if (!r->st)
            v = tple_capture(r, m->node->d);
    }
    r->macros--;
    r->scope = outer;
    r->flow = flow;
    if (!r->st)
        r->line = line;
    return v;
}

PN_INTERNAL tpl_val pn_tpl_call(tpl_run *r, tpl_val f, const tpl_args *args)
{
    if (r->st)
        return tpl_undef();
    switch (f.type) {
    case TPL_MACRO: return tple_call_macro(r, f.u.macro, args);
    case TPL_GLOBAL: return pn_tpl_global_call(r, f.id, args);
    case TPL_METHOD: return pn_tpl_method_call(r, f.u.method->self, f.u.method->id, args);
    case TPL_JOINER:
        if (f.u.l->n == 1)
            return f.u.l->pos++ ? f.u.l->v[0] : pn_tpl_text(r, "");
        return tpl_undef();
    case TPL_UNDEF: return tple_undefined(r, f);
    default: return pn_tpl_fail(r, "'%s' object is not callable", pn_tpl_type_name(f));
    }
}

static tpl_val tple_call(tpl_run *r, const tpl_node *n, tpl_val caller)
{
    tpl_args args;
    tpl_val self = tpl_absent(), f = tpl_undef();
    uint16_t id = TPL_NOT_FOUND;
    if (n->a->kind == TPL_N_ATTR) {             /* a method, without making a value of it */
        self = tple_eval(r, n->a->a);
        if (r->st)
            return f;
        id = self.type == TPL_UNDEF ? TPL_NOT_FOUND : pn_tpl_method_find(self, r->t->names[n->a->name]);
        if (id == TPL_NOT_FOUND)
            f = pn_tpl_attr(r, self, tpl_of_str(r->t->names[n->a->name]));
        if (id == TPL_NOT_FOUND && f.type == TPL_UNDEF)
            return pn_tpl_fail(r, "'%s' object has no method '%.*s'", pn_tpl_type_name(self),
                               (int)PN_MIN(r->t->names[n->a->name]->len, 60u), r->t->names[n->a->name]->p);
    } else {
        f = tple_eval(r, n->a);
    }
    if (r->st || !tple_args(r, n->b, &args))
        return tpl_undef();
    r->line = n->line;
    args.caller = caller;
    return id != TPL_NOT_FOUND ? pn_tpl_method_call(r, self, id, &args) : pn_tpl_call(r, f, &args);
}

/* A filter over a value, or a chain of them that starts at nothing: over `given`. */
static tpl_val tple_filter(tpl_run *r, const tpl_node *n, tpl_val given)
{
    tpl_args args;
    tpl_val v = !n->a ? given : n->a->kind == TPL_N_FILTER ? tpl_undef() : tple_eval(r, n->a);
    if (n->a && n->a->kind == TPL_N_FILTER) {
        if (tple_enter(r, n->a))
            v = tple_filter(r, n->a, given);
        r->depth--;
    }
    if (r->st || !tple_args(r, n->b, &args))
        return tpl_undef();
    r->line = n->line;
    return pn_tpl_filter(r, n->id, v, &args);
}

static tpl_val tple_test(tpl_run *r, const tpl_node *n)
{
    tpl_args args;
    tpl_val v = tple_eval(r, n->a);
    if (r->st || !tple_args(r, n->b, &args))
        return tpl_undef();
    return tpl_bool(pn_tpl_test(r, n->id, v, &args) != n->flag);
}

static tpl_val tple_list(tpl_run *r, const tpl_node *n)
{
    tpl_list *l = pn_tpl_list(r, 0);
    for (const tpl_node *c = n->a; c && l && !r->st; c = c->next)
        pn_tpl_push(r, l, tple_eval(r, c));
    return tpl_of_list(l, n->kind == TPL_N_LIST ? TPL_LIST : TPL_TUPLE);
}

static tpl_val tple_dict(tpl_run *r, const tpl_node *n)
{
    tpl_dict *d = pn_tpl_dict(r);
    for (const tpl_node *c = n->a; c && d && !r->st; c = c->next) {
        tpl_val k = tple_eval(r, c->a), v = tple_eval(r, c->b);
        pn_tpl_dict_set(r, d, k, v);
    }
    return tpl_of_dict(d, TPL_DICT);
}

static tpl_val tple_expr(tpl_run *r, const tpl_node *n)
{
    tpl_val v, w;
    switch (n->kind) {
    case TPL_N_CONST: return n->value;
    case TPL_N_NAME: return tple_lookup(r, n->name);
    case TPL_N_LIST: case TPL_N_TUPLE: return tple_list(r, n);
    case TPL_N_DICT: return tple_dict(r, n);
    case TPL_N_ATTR:
        v = tple_eval(r, n->a);
        return r->st ? tpl_undef() : pn_tpl_attr(r, v, tpl_of_str(r->t->names[n->name]));
    case TPL_N_ITEM:
        v = tple_eval(r, n->a);
        w = tple_eval(r, n->b);
        return r->st ? tpl_undef() : pn_tpl_item(r, v, w);
    case TPL_N_SLICE: return tple_slice(r, n);
    case TPL_N_CALL: return tple_call(r, n, tpl_absent());
    case TPL_N_FILTER: return tple_filter(r, n, tpl_undef());
    case TPL_N_TEST: return tple_test(r, n);
    case TPL_N_NEG: case TPL_N_POS: return tple_sign(r, n);
    case TPL_N_NOT: return tpl_bool(!pn_tpl_truth(tple_eval(r, n->a)));
    case TPL_N_BIN:
        v = tple_eval(r, n->a);
        w = tple_eval(r, n->b);
        return tple_binary(r, n->op, v, w);
    case TPL_N_AND:
        v = tple_eval(r, n->a);
        return pn_tpl_truth(v) ? tple_eval(r, n->b) : v;
    case TPL_N_OR:
        v = tple_eval(r, n->a);
        return pn_tpl_truth(v) ? v : tple_eval(r, n->b);
    case TPL_N_COMPARE: return tple_compare(r, n);
    case TPL_N_COND:
        if (pn_tpl_truth(tple_eval(r, n->b)))
            return tple_eval(r, n->a);
        return n->c ? tple_eval(r, n->c) : tpl_undef();
    case TPL_N_CONCAT: return tple_concat(r, n);
    default: return pn_tpl_fail(r, "not an expression");
    }
}

static tpl_val tple_eval(tpl_run *r, const tpl_node *n)
{
    tpl_val v = tpl_undef();
    if (tple_enter(r, n))
        v = tple_expr(r, n);
    r->depth--;
    return r->st ? tpl_undef() : v;
}

/* ------------------------------------------------------------------------------------------
 * Statements
 * ------------------------------------------------------------------------------------------ */

/* A trusted stretch of the prompt; neighbours become one. */
static void tple_span(tpl_run *r, size_t begin, size_t end)
{
    pn_prompt *p = r->prompt;
    if (p->n_spans && p->spans[p->n_spans - 1].end == begin) {
        p->spans[p->n_spans - 1].end = end;
        return;
    }
    if (!pn_mem_grow(p->text.mem, p->text.account, (void **)&p->spans, &p->cap_spans, p->n_spans + 1, sizeof *p->spans)) {
        if (!r->st)
            r->st = pn_fail_nomem(r->err, "the spans of a prompt", (p->n_spans + 1) * sizeof *p->spans);
        return;
    }
    p->spans[p->n_spans++] = (pn_span){begin, end};
}

PN_INTERNAL void pn_tpl_emit(tpl_run *r, const tpl_str *s)
{
    if (r->st || !s || !s->len)
        return;
    if (r->out) {
        pn_tpl_buf_sub(r, r->out, s, 0, s->len);
        return;
    }
    size_t at = r->prompt->text.len;
    if (s->len > r->max_output - PN_MIN(r->max_output, at)) {
        pn_tpl_fail(r, "limit reached: more than %zu bytes of output", r->max_output);
        return;
    }
    pn_str_add(&r->prompt->text, s->p, s->len);
    if (r->prompt->text.failed) {
        r->st = pn_fail_nomem(r->err, "a prompt", at + s->len);
        return;
    }
    if (!s->marks) {
        if (s->trust)
            tple_span(r, at, at + s->len);
        return;
    }
    for (size_t i = 0; i < s->len;) {
        size_t run = i;
        while (i < s->len && s->marks[i] == s->marks[run])
            i++;
        if (s->marks[run])
            tple_span(r, at + run, at + i);
    }
}

/* With a condition, only the elements for which it holds count. */
static tpl_list *tple_select(tpl_run *r, const tpl_node *n, tpl_list *all)
{
    tpl_list *some = pn_tpl_list(r, 0);
    tpl_scope *outer = r->scope, *scope = tple_push_scope(r);
    for (uint32_t i = 0; some && scope && i < all->n && !r->st; i++) {
        scope->n = 0;
        tple_unpack(r, n->a, all->v[i]);
        if (!r->st && pn_tpl_truth(tple_eval(r, n->c)))
            pn_tpl_push(r, some, all->v[i]);
    }
    r->scope = outer;
    return r->st ? NULL : some;
}

static void tple_rounds(tpl_run *r, const tpl_node *n, tpl_list *l)
{
    tpl_loop *loop = pn_tpl_take(r, sizeof *loop);
    tpl_val v = {TPL_LOOP, true, 0, {0}}, *up;
    tpl_scope *outer = r->scope, *scope = NULL;
    if (!loop)
        return;
    *loop = (tpl_loop){tpl_of_list(l, TPL_LIST), 0, 1, tpl_absent()};
    v.u.loop = loop;
    for (tpl_scope *s = outer; s; s = s->up)
        if ((up = tple_local(s, r->t->n_loop)) != NULL && up->type == TPL_LOOP) {
            loop->depth = up->u.loop->depth + 1;
            break;
        }
    for (uint32_t i = 0; i < l->n && !r->st; i++) {
        if (++r->loops > r->max_loops)
            pn_tpl_fail(r, "limit reached: more than %u rounds of loops", (unsigned)r->max_loops);
        loop->index = i;
        r->scope = outer;
        if (!scope || scope->kept)
            scope = tple_push_scope(r);
        if (!scope)
            break;
        r->scope = scope;
        scope->n = 0;
        tple_assign(r, r->t->n_loop, v);
        tple_unpack(r, n->a, l->v[i]);
        pn_tpl_exec(r, n->d);
        if (r->flow == TPL_FLOW_BREAK) {
            r->flow = TPL_FLOW_NEXT;
            break;
        }
        r->flow = TPL_FLOW_NEXT;
    }
    r->scope = outer;
}

static void tple_for(tpl_run *r, const tpl_node *n)
{
    tpl_val seq = tple_eval(r, n->b);
    tpl_list *l = r->st ? NULL : pn_tpl_iter(r, seq);
    if (l && n->c)
        l = tple_select(r, n, l);
    if (!l)
        return;
    if (l->n) {
        tple_rounds(r, n, l);
    } else if (n->e && tple_push_scope(r)) {
        tpl_scope *s = r->scope;
        pn_tpl_exec(r, n->e);
        r->scope = s->up;
    }
}

/* The text of a body in a scope of its own. */
static tpl_val tple_block(tpl_run *r, const tpl_node *n)
{
    tpl_scope *outer = r->scope;
    tpl_val v = tpl_undef();
    if (tple_push_scope(r))
        v = tple_capture(r, n->d);
    r->scope = outer;
    if (n->c && !r->st) {
        if (tple_enter(r, n->c))
            v = tple_filter(r, n->c, v);
        r->depth--;
    }
    return v;
}

static void tple_with(tpl_run *r, const tpl_node *n)
{
    tpl_scope *outer = r->scope, *scope = pn_tpl_take(r, sizeof *scope);
    if (!scope)
        return;
    memset(scope, 0, sizeof *scope);
    scope->up = outer;
    for (const tpl_node *a = n->b; a && !r->st; a = a->next) {
        tpl_val v = tple_eval(r, a->b);         /* outside: the values do not see each other */
        r->scope = scope;
        tple_unpack(r, a->a, v);
        r->scope = outer;
    }
    r->scope = scope;
    pn_tpl_exec(r, n->d);
    r->scope = outer;
}

static void tple_if(tpl_run *r, const tpl_node *n)
{
    for (const tpl_node *b = n->a; b && !r->st; b = b->next)
        if (!b->a || pn_tpl_truth(tple_eval(r, b->a))) {
            pn_tpl_exec(r, b->b);
            return;
        }
}

static void tple_print(tpl_run *r, const tpl_node *n)
{
    tpl_val v = tple_eval(r, n->a);
    if (!r->st)
        pn_tpl_emit(r, pn_tpl_string(r, v));
}

static void tple_statement(tpl_run *r, const tpl_node *n)
{
    tpl_val v;
    tpl_scope *outer = r->scope;
    switch (n->kind) {
    case TPL_N_TEXT: pn_tpl_emit(r, n->value.u.s); break;
    case TPL_N_PRINT: tple_print(r, n); break;
    case TPL_N_IF: tple_if(r, n); break;
    case TPL_N_FOR: tple_for(r, n); break;
    case TPL_N_SET: tple_unpack(r, n->a, tple_eval(r, n->b)); break;
    case TPL_N_SETBLOCK: tple_unpack(r, n->a, tple_block(r, n)); break;
    case TPL_N_MACRO: tple_assign(r, n->name, tple_closure(r, n)); break;
    case TPL_N_CALLBLOCK:
        v = tple_closure(r, n);
        v = r->st ? v : tple_call(r, n->a, v);
        if (!r->st)
            pn_tpl_emit(r, pn_tpl_string(r, v));
        break;
    case TPL_N_FILTERBLOCK:
        v = tple_block(r, n);
        if (!r->st)
            pn_tpl_emit(r, pn_tpl_string(r, v));
        break;
    case TPL_N_WITH: tple_with(r, n); break;
    case TPL_N_BREAK: r->flow = TPL_FLOW_BREAK; break;
    case TPL_N_CONTINUE: r->flow = TPL_FLOW_CONTINUE; break;
    case TPL_N_SCOPED:
        if (tple_push_scope(r))
            pn_tpl_exec(r, n->d);
        r->scope = outer;
        break;
    case TPL_N_DO: tple_eval(r, n->a); break;
    default: pn_tpl_fail(r, "not a statement"); break;
    }
}

PN_INTERNAL void pn_tpl_exec(tpl_run *r, const tpl_node *list)
{
    for (const tpl_node *n = list; n && !r->st && r->flow == TPL_FLOW_NEXT; n = n->next) {
        if (tple_enter(r, n))
            tple_statement(r, n);
        r->depth--;
    }
}
