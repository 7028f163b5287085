/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_pattern.c - the tree becomes a program; the program walks a text from its end.
 *
 * A program is a list of places.  The value of a place at position i says how matching goes on from
 * there: where the match ends, or that it fails.
 *
 *     MATCH          i
 *     CHAR, SET      the value of the next place at i + one character, if that character fits
 *     ALT            the value of the first of two places, or if that fails the second's
 *     LOOK           the value of the next place if another place, a program of its own, does (not) fail
 *     ENTER          the value of an atomic group, below
 *     ASSERT         the value of the next place if the characters around i are right
 *
 * So a row of values at i needs the row of the next character and itself.  Places are sorted such that
 * what a place needs of its own row stands before it; where that cannot be, a repetition would go on
 * without taking a character, and the pattern is refused.  Those that need nothing come first, by kind, so
 * that most of a row is two short loops without a branch (half the time of one loop over all kinds).
 *
 * An atomic group keeps what it took even when what follows fails, and then the whole group fails.
 * Failure has a level for that: inside a group of depth d a place fails with d, behind it with less.  A
 * choice inside tries its second way only when the first failed with at least its own depth: had it come
 * out of the group and failed later, there is nothing more to try.  ENTER makes of a failure inside one of
 * its own depth.
 */
#include "text/pn_pattern_impl.h"

#define PAT_FAIL 0x80000000u            /* | depth; values below are positions */
#define PAT_MAX_OPS 4096
#define PAT_MAX_WORK 65536              /* nodes turned into places, counting repetitions */

/* In the order in which they are sorted. */
typedef enum pat_kind { PAT_MATCH, PAT_FOUND, PAT_SET, PAT_CHAR, PAT_ALT, PAT_LOOK, PAT_ENTER, PAT_ASSERT } pat_kind;

typedef struct pat_op {
    uint8_t kind, what;         /* pat_kind, pn_pat_assert */
    bool negated;
    uint16_t a, b;              /* ALT: first, second; LOOK: next, what is looked for; else a: next */
    uint32_t arg;               /* character, or number of a set */
    uint32_t fail;              /* PAT_FAIL | depth */
} pat_op;

struct pn_pattern {
    pn_mem *mem;
    pat_op *ops;                /* owned, [n_ops], sorted */
    uint32_t n_ops, entry;
    uint32_t sets, chars, rest; /* where each kind begins: MATCH and FOUND, SET, CHAR, the others */
    size_t cap_ops;
    uint32_t *starts;           /* owned, [n_starts]: code points from here on ... */
    uint64_t *bits;             /* owned, [n_starts]: ... are in these sets */
    size_t n_starts, cap_starts, cap_bits;
    uint64_t latin[256];
};

/* ------------------------------------------------------------------------------------------
 * The tree to places, each knowing what follows it
 * ------------------------------------------------------------------------------------------ */

typedef struct pat_build {
    pn_pattern *p;
    const pn_pat_tree *t;
    uint32_t work;
    pn_status st;
    pn_err *err;
} pat_build;

static uint16_t pat_refuse(pat_build *b, const char *what)
{
    if (!b->st)
        b->st = pn_fail(b->err, PN_E_UNSUPPORTED, "%s", what);
    return 0;
}

static uint16_t pat_emit(pat_build *b, unsigned depth, pat_op op)
{
    pn_pattern *p = b->p;
    if (b->st)
        return 0;
    if (p->n_ops == PAT_MAX_OPS)
        return pat_refuse(b, "too long with its repetitions written out");
    if (!pn_mem_grow(p->mem, PN_ACCT_VOCAB, (void **)&p->ops, &p->cap_ops, (size_t)p->n_ops + 1, sizeof *p->ops)) {
        b->st = pn_fail_nomem(b->err, "the program of a regular expression", p->cap_ops * sizeof *p->ops);
        return 0;
    }
    op.fail = PAT_FAIL | depth;
    p->ops[p->n_ops] = op;
    return (uint16_t)p->n_ops++;
}

static uint16_t pat_node(pat_build *b, int32_t at, uint16_t next, unsigned depth);

static uint16_t pat_choice(pat_build *b, unsigned depth, bool lazy, uint16_t more, uint16_t next)
{
    return pat_emit(b, depth, (pat_op){.kind = PAT_ALT, .a = lazy ? next : more, .b = lazy ? more : next});
}

static uint16_t pat_repeat(pat_build *b, const pn_pat_node *n, uint16_t next, unsigned depth)
{
    uint16_t out = next;
    uint32_t must = n->min;
    if (n->max == PN_PAT_MANY) {
        uint16_t again = pat_choice(b, depth, n->lazy, next, next);
        uint16_t body = pat_node(b, n->child, again, depth);
        if (b->st)
            return 0;
        *(n->lazy ? &b->p->ops[again].b : &b->p->ops[again].a) = body;
        out = must ? body : again;
        must -= must != 0;
    } else {
        for (uint32_t i = n->min; i < n->max && !b->st; i++)
            out = pat_choice(b, depth, n->lazy, pat_node(b, n->child, out, depth), next);
    }
    for (; must && !b->st; must--)
        out = pat_node(b, n->child, out, depth);
    return out;
}

static uint16_t pat_alternatives(pat_build *b, const pn_pat_node *n, uint16_t next, unsigned depth)
{
    int32_t c = n->child;
    uint16_t out = pat_node(b, c, next, depth);
    for (c = b->t->nodes[c].prev; c >= 0 && !b->st; c = b->t->nodes[c].prev)
        out = pat_choice(b, depth, false, pat_node(b, c, next, depth), out);
    return out;
}

/* Places for a node with `next` behind it; the first of them. */
static uint16_t pat_node(pat_build *b, int32_t at, uint16_t next, unsigned depth)
{
    const pn_pat_node *n = &b->t->nodes[at];
    if (b->st)
        return 0;
    if (++b->work > PAT_MAX_WORK)
        return pat_refuse(b, "too long with its repetitions written out");
    switch (n->kind) {
    case PN_PAT_CHAR: return pat_emit(b, depth, (pat_op){.kind = PAT_CHAR, .arg = n->cp, .a = next});
    case PN_PAT_SET: return pat_emit(b, depth, (pat_op){.kind = PAT_SET, .arg = n->cp, .a = next});
    case PN_PAT_SEQ:
        for (int32_t c = n->child; c >= 0 && !b->st; c = b->t->nodes[c].prev)
            next = pat_node(b, c, next, depth);
        return next;
    case PN_PAT_ALT: return pat_alternatives(b, n, next, depth);
    case PN_PAT_REPEAT: return pat_repeat(b, n, next, depth);
    case PN_PAT_ATOMIC: return pat_emit(b, depth, (pat_op){.kind = PAT_ENTER, .a = pat_node(b, n->child, next, depth + 1)});
    case PN_PAT_LOOK: {
        uint16_t found = pat_emit(b, depth, (pat_op){.kind = PAT_FOUND});
        uint16_t what = pat_node(b, n->child, found, depth);
        return pat_emit(b, depth, (pat_op){.kind = PAT_LOOK, .negated = n->negated, .a = next, .b = what});
    }
    case PN_PAT_ASSERT:
        return pat_emit(b, depth, (pat_op){.kind = PAT_ASSERT, .what = (uint8_t)n->cp, .arg = n->set, .negated = n->negated, .a = next});
    }
    return next;
}

/* ------------------------------------------------------------------------------------------
 * Sorting the places
 * ------------------------------------------------------------------------------------------ */

enum { PAT_NEW, PAT_OPEN, PAT_DONE };

typedef struct pat_order {
    uint16_t place[PAT_MAX_OPS];    /* the new number of each */
    uint16_t list[PAT_MAX_OPS];     /* and the old one, in the order they were found in */
    uint16_t stack[PAT_MAX_OPS];
    uint8_t state[PAT_MAX_OPS], edge[PAT_MAX_OPS];
    uint32_t n;
    pat_op ops[PAT_MAX_OPS];
} pat_order;

/* What of its own row a place needs; -1: no more. */
static int32_t pat_needs(const pat_op *op, unsigned k)
{
    if (op->kind == PAT_MATCH || op->kind == PAT_FOUND || op->kind == PAT_CHAR || op->kind == PAT_SET)
        return -1;
    if (k == 0)
        return op->a;
    return k == 1 && (op->kind == PAT_ALT || op->kind == PAT_LOOK) ? op->b : -1;
}

/* `root` and what it needs, depth first.  False: it needs itself. */
static bool pat_visit(const pn_pattern *p, pat_order *o, uint16_t root)
{
    size_t depth = 0;
    if (o->state[root] != PAT_NEW)
        return true;
    o->stack[depth++] = root;
    o->state[root] = PAT_OPEN;
    while (depth) {
        uint16_t at = o->stack[depth - 1];
        int32_t need = pat_needs(&p->ops[at], o->edge[at]++);
        if (need < 0) {
            o->state[at] = PAT_DONE;
            o->list[o->n++] = at;
            depth--;
        } else if (o->state[need] == PAT_OPEN) {
            return false;
        } else if (o->state[need] == PAT_NEW) {
            o->state[need] = PAT_OPEN;
            o->stack[depth++] = (uint16_t)need;
        }
    }
    return true;
}

/* The new order: by kind what needs nothing, then the others as they were found. */
static void pat_place(pn_pattern *p, pat_order *o)
{
    static const pat_kind last[] = {PAT_FOUND, PAT_SET, PAT_CHAR, PAT_ASSERT};
    uint32_t *begins[] = {&p->sets, &p->chars, &p->rest, &p->n_ops}, n = 0;
    for (unsigned k = 0; k < PN_COUNT_OF(last); k++) {
        for (uint32_t i = 0; i < o->n; i++) {
            pat_kind kind = (pat_kind)p->ops[o->list[i]].kind;
            if (kind > last[k] || (k && kind <= last[k - 1]))
                continue;
            o->place[o->list[i]] = (uint16_t)n;
            o->ops[n++] = p->ops[o->list[i]];
        }
        *begins[k] = n;
    }
    for (uint32_t i = 0; i < n; i++) {
        p->ops[i] = o->ops[i];
        p->ops[i].a = o->place[o->ops[i].a];
        p->ops[i].b = o->place[o->ops[i].b];
    }
}

static pn_status pat_sort(pat_build *b, uint16_t entry)
{
    pn_pattern *p = b->p;
    pat_order *o = pn_mem_calloc(p->mem, PN_ACCT_VOCAB, 1, sizeof *o);
    if (!o)
        return pn_fail_nomem(b->err, "the program of a regular expression", sizeof *o);
    bool ok = pat_visit(p, o, entry);
    for (uint32_t i = 0; i < o->n && ok; i++) {         /* o->n grows: what is needed of the next row */
        const pat_op *op = &p->ops[o->list[i]];
        if (op->kind == PAT_CHAR || op->kind == PAT_SET)
            ok = pat_visit(p, o, op->a);
    }
    if (ok) {
        pat_place(p, o);
        p->entry = o->place[entry];
    }
    pn_mem_free(p->mem, PN_ACCT_VOCAB, o, sizeof *o);
    return ok ? PN_OK : pn_fail(b->err, PN_E_UNSUPPORTED, "a repetition without limit of something that may be empty");
}

/* ------------------------------------------------------------------------------------------
 * Which sets is a character in?
 * ------------------------------------------------------------------------------------------ */

/* All borders of all sets, and between them one word of bits. */
static pn_status pat_classes(pat_build *b)
{
    pn_pattern *p = b->p;
    const pn_pat_tree *t = b->t;
    size_t at[PN_PAT_MAX_SETS] = {0};
    for (uint32_t from = 0; from <= 0x10FFFF;) {
        uint32_t next = 0x110000;
        uint64_t bits = 0;
        for (uint32_t i = 0; i < t->n_sets; i++) {
            const pn_pat_set *s = &t->sets[i];
            while (at[i] < s->n && s->r[at[i]].b < from)
                at[i]++;
            if (at[i] == s->n)
                continue;
            bool in = s->r[at[i]].a <= from;
            bits |= (uint64_t)in << i;
            next = PN_MIN(next, in ? s->r[at[i]].b + 1 : s->r[at[i]].a);
        }
        if (!pn_mem_grow(p->mem, PN_ACCT_VOCAB, (void **)&p->starts, &p->cap_starts, p->n_starts + 1, sizeof *p->starts) ||
            !pn_mem_grow(p->mem, PN_ACCT_VOCAB, (void **)&p->bits, &p->cap_bits, p->n_starts + 1, sizeof *p->bits))
            return pn_fail_nomem(b->err, "the classes of a regular expression", p->n_starts * sizeof *p->bits);
        p->starts[p->n_starts] = from;
        p->bits[p->n_starts++] = bits;
        for (uint32_t c = from; c < 256 && c < next; c++)
            p->latin[c] = bits;
        from = next;
    }
    return PN_OK;
}

static uint64_t pat_bits(const pn_pattern *p, uint32_t cp)
{
    size_t lo = 0, hi = p->n_starts;
    if (cp < 256)
        return p->latin[cp];
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (p->starts[mid] <= cp)
            lo = mid;
        else
            hi = mid;
    }
    return p->bits[lo];
}

PN_INTERNAL pn_status pn_pattern_new(pn_pattern **out, pn_mem *mem, const char *s, size_t n, bool literal, pn_err *err)
{
    pn_pat_tree t;
    pn_pattern *p = pn_mem_calloc(mem, PN_ACCT_VOCAB, 1, sizeof *p);
    if (!p)
        return pn_fail_nomem(err, "a regular expression", sizeof *p);
    p->mem = mem;
    pat_build b = {.p = p, .t = &t, .err = err};
    b.st = pn_pat_read(&t, mem, s, n, literal, err);
    if (!b.st) {
        uint16_t match = pat_emit(&b, 0, (pat_op){.kind = PAT_MATCH});
        uint16_t entry = pat_node(&b, t.root, match, 0);
        b.st = b.st ? b.st : pat_sort(&b, entry);
    }
    if (!b.st)
        b.st = pat_classes(&b);
    pn_pat_tree_fini(&t);
    if (b.st) {
        pn_pattern_free(p);
        return b.st;
    }
    *out = p;
    return PN_OK;
}

PN_INTERNAL void pn_pattern_free(pn_pattern *p)
{
    if (!p)
        return;
    pn_mem_free(p->mem, PN_ACCT_VOCAB, p->ops, p->cap_ops * sizeof *p->ops);
    pn_mem_free(p->mem, PN_ACCT_VOCAB, p->starts, p->cap_starts * sizeof *p->starts);
    pn_mem_free(p->mem, PN_ACCT_VOCAB, p->bits, p->cap_bits * sizeof *p->bits);
    pn_mem_free(p->mem, PN_ACCT_VOCAB, p, sizeof *p);
}

PN_INTERNAL uint64_t pn_pattern_bytes(const pn_pattern *p)
{
    return sizeof *p + p->cap_ops * sizeof *p->ops + p->cap_starts * sizeof *p->starts + p->cap_bits * sizeof *p->bits;
}

/* ------------------------------------------------------------------------------------------
 * The walk
 * ------------------------------------------------------------------------------------------ */

/* A character, or what lies beyond an end of the text: no code point, in no set. */
typedef struct pat_char {
    uint32_t cp, len;
    uint64_t bits;
} pat_char;

/* The character that ends at s + pos.  Reading forward gives the same ones, for no character begins
 * inside another. */
static pat_char pat_before(const pn_pattern *p, const char *s, size_t pos)
{
    pat_char c = {UINT32_MAX, 0, 0};
    uint8_t last = pos ? (uint8_t)s[pos - 1] : 0;
    if (!pos)
        return c;
    c = (pat_char){last, 1, 0};
    if (last >= 0x80) {
        c.cp = PN_UTF8_BAD;
        for (size_t k = 2; k <= 4 && k <= pos; k++) {
            uint32_t cp;
            if (pn_utf8_decode(s + pos - k, k, &cp) == k) {
                c = (pat_char){cp, (uint32_t)k, 0};
                break;
            }
        }
    }
    c.bits = pat_bits(p, c.cp);
    return c;
}

static bool pat_assert(const pat_op *op, const pat_char *before, const pat_char *at, size_t pos, size_t n)
{
    switch ((pn_pat_assert)op->what) {
    case PN_PAT_BEGIN: return pos == 0;
    case PN_PAT_END: return pos == n;
    case PN_PAT_LINE_BEGIN: return pos == 0 || (before->cp == '\n' && pos < n);
    case PN_PAT_LINE_END: return pos == n || at->cp == '\n';
    case PN_PAT_LAST_LINE_END: return pos == n || (at->cp == '\n' && pos + 1 == n);
    case PN_PAT_BOUNDARY: return (((before->bits ^ at->bits) >> op->arg & 1) != 0) != op->negated;
    case PN_PAT_BEHIND: return (before->bits >> op->arg & 1) != op->negated;
    }
    return false;
}

/* Masks, for which of these fit changes with every character. */
static void pat_sets(const pn_pattern *p, uint64_t bits, uint32_t *row, const uint32_t *later)
{
    const pat_op *ops = p->ops;
    for (uint32_t i = p->sets; i < p->chars; i++) {
        uint32_t in = 0u - (uint32_t)(bits >> ops[i].arg & 1);
        row[i] = (later[ops[i].a] & in) | (ops[i].fail & ~in);
    }
}

static void pat_chars(const pn_pattern *p, uint32_t cp, uint32_t *row, const uint32_t *later)
{
    const pat_op *ops = p->ops;
    for (uint32_t i = p->chars; i < p->rest; i++) {
        uint32_t in = 0u - (uint32_t)(cp == ops[i].arg);
        row[i] = (later[ops[i].a] & in) | (ops[i].fail & ~in);
    }
}

PN_INTERNAL size_t pn_pattern_scratch(const pn_pattern *p) { return 2 * (size_t)p->n_ops; }

PN_INTERNAL void pn_pattern_run(const pn_pattern *p, const char *text, size_t n, uint32_t *ends, uint32_t *scratch)
{
    uint32_t *row = scratch, *later = scratch + p->n_ops;
    pat_char at = {UINT32_MAX, 0, 0};
    memset(later, 0xFF, p->n_ops * sizeof *later);          /* behind the end everything fails */
    for (size_t pos = n;; pos -= at.len) {
        pat_char before = pat_before(p, text, pos);
        for (uint32_t i = 0; i < p->sets; i++)
            row[i] = p->ops[i].kind == PAT_MATCH ? (uint32_t)pos : 0;
        pat_sets(p, at.bits, row, later);
        pat_chars(p, at.cp, row, later);
        for (uint32_t i = p->rest; i < p->n_ops; i++) {
            const pat_op *op = &p->ops[i];
            uint32_t a = row[op->a], b = row[op->b];
            switch ((pat_kind)op->kind) {
            case PAT_LOOK: row[i] = (b < PAT_FAIL) != op->negated ? a : op->fail; break;
            case PAT_ENTER: row[i] = PN_MIN(a, op->fail); break;
            case PAT_ASSERT: row[i] = pat_assert(op, &before, &at, pos, n) ? a : op->fail; break;
            default: row[i] = a < op->fail ? a : b; break;              /* ALT */
            }
        }
        ends[pos] = row[p->entry] < PAT_FAIL ? row[p->entry] : PN_PATTERN_NONE;
        if (!pos)
            return;
        uint32_t *swap = row;
        row = later;
        later = swap;
        at = before;
    }
}

#undef PAT_FAIL
#undef PAT_MAX_OPS
#undef PAT_MAX_WORK
