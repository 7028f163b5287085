/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_pattern_read.c - the text of a regular expression to a tree.
 *
 * Descent by groups, no deeper than PN_PAT_MAX_NEST.  Each construct was tried on the engine that
 * Hugging Face's tokenizers run (Oniguruma, its own syntax), and what it reads in a way of its own is
 * refused here or done like that:
 *
 *   - ^ and $ are those of lines, . is all but \n, (?i) in the middle is refused
 *   - {m,n}+ is not possessive there but ({m,n})+, and {m}? is not lazy but ({m})?
 *   - \w outside brackets, and \b, count the Latin-1 digits U+00B2, B3, B9 and fractions U+00BC to BE;
 *     \w inside brackets does not
 *   - without case, \p{..} and \w outside brackets are what they are with case; inside brackets they
 *     would gain partners that only that engine's tables have: refused
 *   - a negated class inside another that leaves nothing beyond ASCII makes the outer one lose what it has
 *     there: refused
 */
#include "text/pn_pattern_impl.h"

typedef struct patr {
    pn_pat_tree *t;
    const char *s;
    size_t n, at;
    pn_status st;
    pn_err *err;
    unsigned depth;
    uint32_t last;              /* the letter just read without case, that the next may be joined to; 0: none */
} patr;

/* Always -1: `return patr_no(...)`. */
static int32_t patr_no(patr *r, size_t at, const char *what)
{
    if (!r->st)
        r->st = pn_fail(r->err, PN_E_UNSUPPORTED, "offset %zu: %s", at, what);
    return -1;
}

static int32_t patr_nomem(patr *r)
{
    if (!r->st)
        r->st = pn_fail_nomem(r->err, "a regular expression", r->n);
    return -1;
}

/* A set could not grow. */
static int32_t patr_full(patr *r, const pn_pat_set *s)
{
    return s->n == PN_PAT_MAX_RANGES ? patr_no(r, r->at, "a class of too many ranges") : patr_nomem(r);
}

static int patr_peek(const patr *r, size_t ahead) { return ahead < r->n - r->at ? (uint8_t)r->s[r->at + ahead] : -1; }

static bool patr_is(const patr *r, const char *text)
{
    size_t n = strlen(text);
    return n <= r->n - r->at && memcmp(r->s + r->at, text, n) == 0;
}

static bool patr_take(patr *r, const char *text)
{
    bool is = patr_is(r, text);
    r->at += is ? strlen(text) : 0;
    return is;
}

static int32_t patr_node(patr *r, pn_pat_node node)
{
    pn_pat_tree *t = r->t;
    if (!pn_mem_grow(t->mem, PN_ACCT_VOCAB, (void **)&t->nodes, &t->cap_nodes, t->n_nodes + 1, sizeof *t->nodes))
        return patr_nomem(r);
    node.prev = -1;
    t->nodes[t->n_nodes] = node;
    return (int32_t)t->n_nodes++;
}

static int32_t patr_over(patr *r, pn_pat_kind kind, int32_t child)
{
    return child < 0 ? -1 : patr_node(r, (pn_pat_node){.kind = kind, .child = child});
}

/* Keep a sorted set; its number, or -1.  *s is taken over. */
static int32_t patr_set(patr *r, pn_pat_set *s)
{
    pn_pat_tree *t = r->t;
    for (uint32_t i = 0; i < t->n_sets; i++)
        if (pn_pat_set_same(&t->sets[i], s)) {
            pn_pat_set_fini(s);
            return (int32_t)i;
        }
    if (t->n_sets == PN_PAT_MAX_SETS) {
        pn_pat_set_fini(s);
        return patr_no(r, r->at, "more than 64 different classes");
    }
    t->sets[t->n_sets] = *s;
    return (int32_t)t->n_sets++;
}

static int32_t patr_set_node(patr *r, pn_pat_set *s)
{
    int32_t set = patr_set(r, s);
    return set < 0 ? -1 : patr_node(r, (pn_pat_node){.kind = PN_PAT_SET, .cp = (uint32_t)set, .child = -1});
}

/* ------------------------------------------------------------------------------------------
 * Characters
 * ------------------------------------------------------------------------------------------ */

/* The other spellings of an ASCII letter: its other case, the long s, the Kelvin sign. */
static bool patr_fold(pn_pat_set *s, uint32_t cp)
{
    uint32_t small = cp | 0x20;
    if (small < 'a' || small > 'z')
        return pn_pat_set_add(s, cp, cp);
    return pn_pat_set_add(s, small, small) && pn_pat_set_add(s, small - 0x20, small - 0x20) &&
           (small != 's' || pn_pat_set_add(s, 0x17F, 0x17F)) && (small != 'k' || pn_pat_set_add(s, 0x212A, 0x212A));
}

/* Has cp no other case, whoever's table it is? */
static bool patr_caseless(uint32_t cp)
{
    return cp < 0x80 || (pn_uni_class(cp) & (PN_US(LO) | PN_US(ND) | PN_US(NO) | PN_US_P | PN_US(SM) | PN_US(SC) | PN_US(SK) | PN_US(ZS)));
}

/* a, then b, in a text without case: is there one character for both? */
static bool patr_ligature(uint32_t a, uint32_t b)
{
    a |= 0x20;
    b |= 0x20;
    return (a == 's' && (b == 's' || b == 't')) || (a == 'f' && (b == 'f' || b == 'i' || b == 'l'));
}

static int32_t patr_char(patr *r, uint32_t cp, bool ci)
{
    bool letter = (cp | 0x20) >= 'a' && (cp | 0x20) <= 'z';
    uint32_t last = r->last;
    r->last = ci ? cp : 0;
    if (ci && !patr_caseless(cp))
        return patr_no(r, r->at, "a letter beyond ASCII without case");
    if (ci && cp >= 0x80 && last)
        return patr_no(r, r->at, "ASCII and other characters next to each other without case");
    if (ci && last && (last >= 0x80 || patr_ligature(last, cp)))
        return patr_no(r, r->at, "characters next to each other that one character may stand for without case");
    if (!ci || !letter)
        return patr_node(r, (pn_pat_node){.kind = PN_PAT_CHAR, .cp = cp, .child = -1});
    pn_pat_set s = {.mem = r->t->mem};
    if (!patr_fold(&s, cp)) {
        pn_pat_set_fini(&s);
        return patr_nomem(r);
    }
    pn_pat_set_sort(&s);
    return patr_set_node(r, &s);
}

static int32_t patr_hex(patr *r, size_t at, size_t min, size_t max)
{
    uint32_t v = 0;
    size_t k = 0;
    for (; k < max; k++, r->at++) {
        int c = patr_peek(r, 0), d = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
        if (d < 0)
            break;
        v = v << 4 | (uint32_t)d;
    }
    if (k < min || v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF))
        return patr_no(r, at, "an escape that is no character");
    return (int32_t)v;
}

/* The character behind a backslash, r->at on it; -1: none, or not one that is understood. */
static int32_t patr_escaped(patr *r)
{
    static const char names[] = "tnrfvae", values[] = "\t\n\r\f\v\a\x1B";
    size_t at = r->at;
    int c = patr_peek(r, 0);
    if (c < 0)
        return patr_no(r, at, "a backslash at the end");
    r->at++;
    const char *name = strchr(names, c);
    if (c && name)
        return values[name - names];
    if (c == 'u')
        return patr_hex(r, at, 4, 4);
    if (c == 'x' && patr_take(r, "{")) {
        int32_t v = patr_hex(r, at, 1, 6);
        return v < 0 || patr_take(r, "}") ? v : patr_no(r, at, "an escape that is no character");
    }
    if (c == 'x') {
        int32_t v = patr_hex(r, at, 2, 2);
        return v < 0x80 ? v : patr_no(r, at, "an escaped byte of a character");
    }
    if (c <= ' ' || c >= 0x7F || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
        return c == ' ' ? ' ' : patr_no(r, at, "an escape that is not understood (a back reference, a property, an anchor)");
    return c;
}

/* ------------------------------------------------------------------------------------------
 * Classes
 * ------------------------------------------------------------------------------------------ */

#define PATR_WORD (PN_US_L | PN_US_M | PN_US(ND) | PN_US(NL) | PN_US(PC))
#define PATR_CASELESS (PN_US(ND) | PN_US(NO) | PN_US_P | PN_US(SM) | PN_US(SC) | PN_US(SK) | PN_US(ZS) | PN_US(ZL) | PN_US(ZP) | PN_US_WS | PN_US_HAN)

/* Alphabetic characters that are no letters, marks or numbers: circled and squared letters. */
static const pn_uni_pair patr_circled[] = {
    {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}, {0, 0},
};
static const pn_uni_pair patr_circled_latin1[] = {
    {0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}, {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}, {0, 0},
};

/* The set of a name in \p{..}; 0: unknown. */
static uint64_t patr_property(const char *name, size_t n)
{
    static const struct { const char *name; uint64_t set; } words[] = {
        {"Han", PN_US_HAN}, {"White_Space", PN_US_WS}, {"Letter", PN_US_L}, {"Mark", PN_US_M}, {"Number", PN_US_N},
        {"Punctuation", PN_US_P}, {"Symbol", PN_US_S}, {"Separator", PN_US(ZS) | PN_US(ZL) | PN_US(ZP)},
    };
    for (size_t i = 0; i < PN_COUNT_OF(words); i++)
        if (strlen(words[i].name) == n && memcmp(words[i].name, name, n) == 0)
            return words[i].set;
    return pn_uni_category(name, n);
}

/* A class with a name at r->at, behind the backslash: added to *s.  1: it was one, 0: none, -1: refused. */
static int patr_named(patr *r, pn_pat_set *s, bool inside, bool ci)
{
    size_t at = r->at;
    int c = patr_peek(r, 0), small = c | 0x20;
    bool negated = c != small;
    uint64_t mask = small == 's' ? PN_US_WS : small == 'd' ? PN_US(ND) : small == 'w' ? PATR_WORD : 0;
    const pn_uni_pair *more = small != 'w' ? NULL : inside ? patr_circled : patr_circled_latin1;
    if (c < 0 || (!mask && small != 'p'))
        return 0;
    r->at++;
    if (small == 'p') {
        if (!patr_take(r, "{"))
            return patr_no(r, at, "a property that is not in braces");
        negated ^= patr_take(r, "^");
        size_t begin = r->at;
        while (patr_peek(r, 0) >= 0 && patr_peek(r, 0) != '}')
            r->at++;
        mask = patr_property(r->s + begin, r->at - begin);
        if (!mask || !patr_take(r, "}"))
            return patr_no(r, at, "a property that is not known here");
    }
    if (inside && ci && (negated || (mask & ~PATR_CASELESS)))
        return patr_no(r, at, "a class of letters in brackets without case");
    return pn_pat_set_class(s, mask, more, negated) ? 1 : patr_full(r, s);
}

/* [:name:], r->at on it. */
static int patr_posix(patr *r, pn_pat_set *s)
{
    uint64_t mask = patr_take(r, "[:punct:]") ? PN_US_P | PN_US_S : patr_take(r, "[:space:]") ? PN_US_WS
                  : patr_take(r, "[:digit:]") ? PN_US(ND) : 0;
    if (!mask)
        return patr_no(r, r->at, "a class in [: :] that is not known here");
    return pn_pat_set_class(s, mask, NULL, false) ? 1 : patr_full(r, s);
}

/* A character of a class; -1: refused. */
static int32_t patr_member(patr *r)
{
    uint32_t cp;
    if (patr_take(r, "\\"))
        return patr_escaped(r);
    size_t len = pn_utf8_decode(r->s + r->at, r->n - r->at, &cp);
    if (!len || (len == 1 && cp >= 0x80))
        return patr_no(r, r->at, len ? "a byte that is no character" : "a class without end");
    r->at += len;
    return (int32_t)cp;
}

/* One character or range, into *s. */
static bool patr_range(patr *r, pn_pat_set *s, bool ci)
{
    size_t at = r->at;
    int32_t a = patr_member(r), b = a;
    if (a < 0)
        return false;
    if (patr_peek(r, 0) == '-' && patr_peek(r, 1) != ']') {
        r->at++;
        if (patr_is(r, "[") || patr_is(r, "&&") || patr_is(r, "-"))
            return patr_no(r, at, "a range without an end") >= 0;
        b = patr_member(r);
        if (b < 0)
            return false;
        if (b < a)
            return patr_no(r, at, "a range from a higher to a lower character") >= 0;
        if (patr_peek(r, 0) == '-' && patr_peek(r, 1) != ']')
            return patr_no(r, at, "a range that goes on") >= 0;
    }
    if (!ci)
        return pn_pat_set_add(s, (uint32_t)a, (uint32_t)b) || patr_full(r, s) >= 0;
    if (b >= 0x80 && (a != b || !patr_caseless((uint32_t)a)))
        return patr_no(r, at, "letters beyond ASCII without case") >= 0;
    for (int32_t c = a; c <= b; c++)
        if (!patr_fold(s, (uint32_t)c))
            return patr_full(r, s) >= 0;
    return true;
}

static bool patr_class(patr *r, pn_pat_set *out, bool ci, bool inside);

/* The members up to ] or &&, into *s, which is empty. */
static bool patr_members(patr *r, pn_pat_set *s, bool ci)
{
    for (size_t begin = r->at; !patr_is(r, "]") && !patr_is(r, "&&");) {
        size_t at = r->at;
        int named = 0;
        if (patr_is(r, "[:")) {
            named = patr_posix(r, s);
            if (ci && named > 0)
                return patr_no(r, at, "a class inside a class without case") >= 0;
        } else if (patr_peek(r, 0) == '[') {
            if (ci)
                return patr_no(r, at, "a class inside a class without case") >= 0;
            r->at++;
            pn_pat_set inner = {.mem = s->mem};
            bool ok = patr_class(r, &inner, ci, true);
            if (ok && !pn_pat_set_join(s, &inner))
                ok = patr_full(r, s) >= 0;
            pn_pat_set_fini(&inner);
            if (!ok)
                return false;
            named = 1;
        } else if (patr_peek(r, 0) == '\\') {
            r->at++;
            named = patr_named(r, s, true, ci);
            if (named == 0)
                r->at--;
        } else if (patr_peek(r, 0) == '-' && at != begin && patr_peek(r, 1) != ']') {
            return patr_no(r, at, "a hyphen between members of a class; it needs a backslash") >= 0;
        }
        if (named < 0 || (named == 0 && !patr_range(r, s, ci)))
            return false;
        if (named && patr_peek(r, 0) == '-' && patr_peek(r, 1) != ']')
            return patr_no(r, r->at, "a range of a class") >= 0;
    }
    pn_pat_set_sort(s);
    return true;
}

/* Behind the [: the set, sorted.  inside: another class. */
static bool patr_class(patr *r, pn_pat_set *out, bool ci, bool inside)
{
    size_t at = r->at;
    bool negated = patr_take(r, "^"), first = true, ok = true;
    if (r->depth == PN_PAT_MAX_NEST)
        return patr_no(r, at, "classes or groups too deep inside each other") >= 0;
    r->depth++;
    if (patr_is(r, "]"))
        ok = patr_no(r, at, "a class that is empty or begins with ]") >= 0;
    for (; ok; first = false) {
        pn_pat_set part = {.mem = out->mem};
        size_t begin = r->at;
        ok = patr_members(r, &part, ci);
        if (ok && r->at == begin)
            ok = patr_no(r, at, "an intersection with nothing") >= 0;
        if (ok && first)
            ok = pn_pat_set_join(out, &part) || patr_full(r, out) >= 0;
        else if (ok)
            ok = pn_pat_set_and(out, &part) || patr_full(r, out) >= 0;
        pn_pat_set_fini(&part);
        if (!ok || patr_take(r, "]"))
            break;
        if (!patr_take(r, "&&"))
            ok = patr_no(r, at, "a class without end") >= 0;
        else if (ci)
            ok = patr_no(r, at, "an intersection without case") >= 0;
    }
    r->depth--;
    if (ok && negated)
        ok = pn_pat_set_not(out) || patr_full(r, out) >= 0;
    if (ok && negated && inside && (!out->n || out->r[out->n - 1].b < 0x80))
        ok = patr_no(r, at, "a class inside a class that leaves nothing beyond ASCII") >= 0;
    return ok;
}

/* ------------------------------------------------------------------------------------------
 * Groups, sequences, repetitions
 * ------------------------------------------------------------------------------------------ */

static int32_t patr_alternatives(patr *r, bool ci);

static int32_t patr_assert(patr *r, pn_pat_assert what, bool negated)
{
    return patr_node(r, (pn_pat_node){.kind = PN_PAT_ASSERT, .cp = what, .negated = negated, .child = -1});
}

/* \b: its set goes first. */
static int32_t patr_boundary(patr *r, bool negated)
{
    pn_pat_set s = {.mem = r->t->mem};
    if (!pn_pat_set_class(&s, PATR_WORD, patr_circled_latin1, false)) {
        pn_pat_set_fini(&s);
        return patr_full(r, &s);
    }
    pn_pat_set_sort(&s);
    int32_t set = patr_set(r, &s);
    return set < 0 ? -1 : patr_node(r, (pn_pat_node){.kind = PN_PAT_ASSERT, .cp = PN_PAT_BOUNDARY, .set = (uint32_t)set,
                                                      .negated = negated, .child = -1});
}

/* A look behind at one character. */
static int32_t patr_behind(patr *r, size_t at, int32_t child, bool negated)
{
    if (child < 0)
        return -1;
    const pn_pat_node *c = &r->t->nodes[child];
    while ((c->kind == PN_PAT_SEQ || c->kind == PN_PAT_ALT) && c->child >= 0 && r->t->nodes[c->child].prev < 0)
        c = &r->t->nodes[c->child];
    uint32_t set = c->cp;
    if (c->kind != PN_PAT_CHAR && c->kind != PN_PAT_SET)
        return patr_no(r, at, "a look behind at more than one character");
    if (c->kind == PN_PAT_CHAR) {
        pn_pat_set s = {.mem = r->t->mem};
        if (!pn_pat_set_add(&s, c->cp, c->cp))
            return patr_nomem(r);
        int32_t had = patr_set(r, &s);
        if (had < 0)
            return -1;
        set = (uint32_t)had;
    }
    return patr_node(r, (pn_pat_node){.kind = PN_PAT_ASSERT, .cp = PN_PAT_BEHIND, .set = set, .negated = negated, .child = -1});
}

/* Behind the (. */
static int32_t patr_group(patr *r, bool ci)
{
    size_t at = r->at - 1;
    bool ahead = false, behind = false, negated = false, atomic = false;
    if (patr_take(r, "?i:"))
        ci = true;
    else if (patr_take(r, "?=") || patr_take(r, "?!"))
        ahead = true;
    else if (patr_take(r, "?<=") || patr_take(r, "?<!"))
        behind = true;
    else if (patr_take(r, "?>"))
        atomic = true;
    else if (!patr_take(r, "?:") && patr_is(r, "?"))
        return patr_no(r, at, "a group of a kind that is not understood");
    negated = r->s[r->at - 1] == '!' && (ahead || behind);
    if (r->depth == PN_PAT_MAX_NEST)
        return patr_no(r, at, "groups too deep inside each other");
    r->depth++;
    r->last = ahead || behind ? 0 : r->last;
    int32_t child = patr_alternatives(r, ci);
    r->last = ahead || behind ? 0 : r->last;
    r->depth--;
    if (child >= 0 && !patr_take(r, ")"))
        return patr_no(r, at, "a group without end");
    if (behind)
        return patr_behind(r, at, child, negated);
    int32_t node = ahead ? patr_over(r, PN_PAT_LOOK, child) : atomic ? patr_over(r, PN_PAT_ATOMIC, child) : child;
    if (node >= 0 && ahead)
        r->t->nodes[node].negated = negated;
    return node;
}

/* Behind a backslash: an anchor, a class or a character. */
static int32_t patr_escape(patr *r, bool ci)
{
    int c = patr_peek(r, 0);
    static const char anchors[] = "AzZbB";
    if (c > 0 && strchr(anchors, c)) {
        r->at++;
        r->last = 0;
        if (c == 'b' || c == 'B')
            return patr_boundary(r, c == 'B');
        return patr_assert(r, c == 'A' ? PN_PAT_BEGIN : c == 'z' ? PN_PAT_END : PN_PAT_LAST_LINE_END, false);
    }
    pn_pat_set s = {.mem = r->t->mem};
    int named = patr_named(r, &s, false, ci);
    if (named > 0) {
        pn_pat_set_sort(&s);
        r->last = 0;
        return patr_set_node(r, &s);
    }
    pn_pat_set_fini(&s);
    int32_t cp = named < 0 ? -1 : patr_escaped(r);
    return cp < 0 ? -1 : patr_char(r, (uint32_t)cp, ci);
}

static int32_t patr_bracket(patr *r, bool ci)
{
    pn_pat_set s = {.mem = r->t->mem};
    r->last = 0;
    if (!patr_class(r, &s, ci, false)) {
        pn_pat_set_fini(&s);
        return -1;
    }
    return patr_set_node(r, &s);
}

static int32_t patr_dot(patr *r)
{
    pn_pat_set s = {.mem = r->t->mem};
    r->last = 0;
    if (!pn_pat_set_add(&s, '\n', '\n') || !pn_pat_set_not(&s)) {
        pn_pat_set_fini(&s);
        return patr_nomem(r);
    }
    return patr_set_node(r, &s);
}

static int32_t patr_atom(patr *r, bool ci)
{
    uint32_t cp;
    size_t at = r->at, len = pn_utf8_decode(r->s + at, r->n - at, &cp);
    if (len == 1 && cp >= 0x80)
        return patr_no(r, at, "a byte that is no character");
    r->at += len;
    switch (cp) {
    case '(': return patr_group(r, ci);
    case '[': return patr_bracket(r, ci);
    case '\\': return patr_escape(r, ci);
    case '.': return patr_dot(r);
    case '^':
    case '$':
        r->last = 0;
        return patr_assert(r, cp == '^' ? PN_PAT_LINE_BEGIN : PN_PAT_LINE_END, false);
    case '?':
    case '*':
    case '+':
    case '{': return patr_no(r, at, "a repetition of nothing, or a brace that needs a backslash");
    default: return patr_char(r, cp, ci);
    }
}

/* Decimal digits; -1: none, or too large. */
static int32_t patr_count(patr *r)
{
    int32_t v = -1;
    for (int c; (c = patr_peek(r, 0)) >= '0' && c <= '9'; r->at++) {
        v = (v < 0 ? 0 : v * 10) + (c - '0');
        if (v > PN_PAT_MAX_REPEAT)
            return -1;
    }
    return v;
}

/* {m} {m,} {m,n}, behind the brace. */
static bool patr_braces(patr *r, size_t at, uint32_t *min, uint32_t *max)
{
    int32_t lo = patr_count(r), hi = lo;
    if (lo >= 0 && patr_take(r, ",")) {
        bool open = patr_peek(r, 0) == '}';
        hi = open ? 0 : patr_count(r);
        *max = open ? PN_PAT_MANY : (uint32_t)hi;
        if (!open && hi < lo)
            hi = -1;
    } else {
        *max = (uint32_t)hi;
    }
    *min = (uint32_t)lo;
    if (lo < 0 || hi < 0 || !patr_take(r, "}"))
        return patr_no(r, at, "a repetition that is not {m}, {m,} or {m,n} of at most 1000") >= 0;
    return true;
}

/* What stands behind an atom. */
static int32_t patr_repeat(patr *r, int32_t child)
{
    size_t at = r->at;
    int c = patr_peek(r, 0);
    pn_pat_node node = {.kind = PN_PAT_REPEAT, .child = child, .min = c == '+', .max = c == '?' ? 1 : PN_PAT_MANY};
    if (child < 0 || (c != '?' && c != '*' && c != '+' && c != '{'))
        return child;
    if (r->t->nodes[child].kind == PN_PAT_ASSERT || r->t->nodes[child].kind == PN_PAT_LOOK)
        return patr_no(r, at, "a repetition of something without length");
    r->at++;
    if (c == '{' && !patr_braces(r, at, &node.min, &node.max))
        return -1;
    bool exact = c == '{' && node.min == node.max, lazy = !exact && patr_take(r, "?");
    int behind = lazy ? 0 : patr_peek(r, 0);
    bool again = behind == '+' || (exact && behind == '?');
    r->at += again;
    int after = patr_peek(r, 0);
    if (after == '?' || after == '*' || after == '+' || after == '{')
        return patr_no(r, at, "a repetition of a repetition; it needs a group");
    node.lazy = lazy;
    int32_t repeat = patr_node(r, node);
    if (!again || repeat < 0)
        return repeat;
    if (c != '{')
        return patr_over(r, PN_PAT_ATOMIC, repeat);
    return patr_node(r, (pn_pat_node){.kind = PN_PAT_REPEAT, .child = repeat, .min = behind == '+', .max = behind == '+' ? PN_PAT_MANY : 1});
}

static int32_t patr_sequence(patr *r, bool ci)
{
    int32_t seq = patr_node(r, (pn_pat_node){.kind = PN_PAT_SEQ, .child = -1});
    while (seq >= 0 && r->at < r->n && r->s[r->at] != '|' && r->s[r->at] != ')') {
        int32_t item = patr_repeat(r, patr_atom(r, ci));
        if (item < 0)
            return -1;
        r->t->nodes[item].prev = r->t->nodes[seq].child;
        r->t->nodes[seq].child = item;
    }
    return seq;
}

static int32_t patr_alternatives(patr *r, bool ci)
{
    int32_t alt = patr_node(r, (pn_pat_node){.kind = PN_PAT_ALT, .child = -1});
    while (alt >= 0) {
        int32_t seq = patr_sequence(r, ci);
        if (seq < 0)
            return -1;
        r->t->nodes[seq].prev = r->t->nodes[alt].child;
        r->t->nodes[alt].child = seq;
        if (!patr_take(r, "|"))
            break;
        r->last = 0;
    }
    return alt;
}

static int32_t patr_literal(patr *r)
{
    int32_t seq = patr_node(r, (pn_pat_node){.kind = PN_PAT_SEQ, .child = -1});
    while (seq >= 0 && r->at < r->n) {
        uint32_t cp;
        size_t len = pn_utf8_decode(r->s + r->at, r->n - r->at, &cp);
        r->at += len;
        int32_t item = len == 1 && cp >= 0x80 ? patr_no(r, r->at - 1, "a byte that is no character") : patr_char(r, cp, false);
        if (item < 0)
            return -1;
        r->t->nodes[item].prev = r->t->nodes[seq].child;
        r->t->nodes[seq].child = item;
    }
    return seq;
}

PN_INTERNAL pn_status pn_pat_read(pn_pat_tree *t, pn_mem *mem, const char *s, size_t n, bool literal, pn_err *err)
{
    patr r = {.t = t, .s = s, .n = n, .err = err};
    *t = (pn_pat_tree){.mem = mem, .root = -1};
    if (n > PN_PAT_MAX_LEN)
        return pn_fail(err, PN_E_UNSUPPORTED, "%zu bytes; at most %d are read", n, PN_PAT_MAX_LEN);
    bool ci = !literal && patr_take(&r, "(?i)");
    t->root = literal ? patr_literal(&r) : patr_alternatives(&r, ci);
    if (!r.st && r.at < n)
        patr_no(&r, r.at, "a closing bracket too many");
    return r.st;
}

PN_INTERNAL void pn_pat_tree_fini(pn_pat_tree *t)
{
    for (uint32_t i = 0; i < t->n_sets; i++)
        pn_pat_set_fini(&t->sets[i]);
    pn_mem_free(t->mem, PN_ACCT_VOCAB, t->nodes, t->cap_nodes * sizeof *t->nodes);
    t->nodes = NULL;
    t->n_nodes = t->cap_nodes = 0;
    t->n_sets = 0;
}

#undef PATR_WORD
#undef PATR_CASELESS
