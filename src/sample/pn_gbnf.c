/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_gbnf.c - GBNF text to a grammar.
 *
 *     rule ::= alternatives            until a newline or the end, unless inside ( ) or after ::= or |
 *     "literal" [a-z] [^a-z] . name ( ... )   each with * + ? {m} {m,} {m,n}
 *     <[id]> !<[id]> <text> !<text>    one whole token
 *     # comment
 *
 * A hand-written parser over a cursor that knows its end; groups are on the builder's stack.  A line
 * that ends is the end of a rule only where the rule could end, which is what lets people put the
 * next alternative on the next line after "|".
 *
 * Stricter than some: a reversed range, an empty class, and {m,n} with m > n are errors.
 */
#include "sample/pn_gram_impl.h"

#include "base/pn_utf8.h"

typedef struct gbnf {
    pn_gir *b;
    const char *text;
    size_t len, at;
    pn_map names;                       /* rule name -> rule */
    pn_gram_find_token find;
    void *user;
    PN_GVEC(pn_cp_range) ranges;
    PN_GVEC(size_t) used_at;            /* by rule: where it was first referred to, + 1 */
} gbnf;

/* ---- where are we ----------------------------------------------------------------------------------- */

static int gbnf_peek(const gbnf *p, size_t ahead)
{
    return p->at + ahead < p->len ? (uint8_t)p->text[p->at + ahead] : -1;
}

/* Sets the sticky error: line and column of `at`, then what was expected. */
static bool gbnf_fail(gbnf *p, size_t at, const char *expected)
{
    unsigned long line = 1, column = 1;
    if (!pn_gir_ok(p->b))
        return false;
    for (size_t i = 0; i < at && i < p->len; i++) {
        char c = p->text[i];
        bool newline = c == '\n' || (c == '\r' && !(i + 1 < p->len && p->text[i + 1] == '\n'));
        if (newline)
            line++, column = 1;
        else if (((uint8_t)c & 0xC0) != 0x80)
            column++;
    }
    char found[24] = "the end";
    if (at < p->len && (uint8_t)p->text[at] > 0x20 && (uint8_t)p->text[at] < 0x7F)
        memcpy(found, (char[4]){'\'', p->text[at], '\'', 0}, 4);
    else if (at < p->len)
        memcpy(found, "another byte", 13);
    pn_gir_fail(p->b, PN_E_INVALID, "grammar line %lu column %lu: expected %s, found %s", line, column, expected, found);
    return false;
}

/* Spaces and comments; newlines too when asked. */
static void gbnf_space(gbnf *p, bool newlines)
{
    for (;;) {
        int c = gbnf_peek(p, 0);
        if (c == '#') {
            while (c >= 0 && c != '\n' && c != '\r') {
                p->at++;
                c = gbnf_peek(p, 0);
            }
        } else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r'))) {
            p->at++;
        } else {
            return;
        }
    }
}

static bool gbnf_is_name(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static pn_bytes gbnf_name(gbnf *p)
{
    size_t begin = p->at;
    while (gbnf_is_name(gbnf_peek(p, 0)))
        p->at++;
    return (pn_bytes){p->text + begin, p->at - begin};
}

/* The rule of this name, made when it is new. */
static bool gbnf_rule(gbnf *p, pn_bytes name, uint32_t *rule)
{
    uint32_t *known = pn_map_find(&p->names, name.data, name.len);
    bool existed;
    if (known) {
        *rule = *known;
        return true;
    }
    *rule = pn_gir_rule_n(p->b, name.data, name.len);
    if (!pn_gir_ok(p->b) || !PN_GIR_ROOM(p->b, p->used_at, 1))
        return false;
    p->used_at.v[p->used_at.n++] = 0;
    if (!pn_map_put(&p->names, name.data, name.len, *rule, &existed)) {
        p->b->err.status = pn_fail_nomem(&p->b->err, "the rules of a grammar", name.len);
        return false;
    }
    return true;
}

/* ---- characters --------------------------------------------------------------------------------------- */

static bool gbnf_hex(gbnf *p, uint32_t digits, uint32_t *cp)
{
    size_t begin = p->at;
    *cp = 0;
    for (uint32_t i = 0; i < digits; i++, p->at++) {
        int c = gbnf_peek(p, 0);
        uint32_t d = c >= '0' && c <= '9' ? (uint32_t)(c - '0') : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10) :
                     c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10) : 16;
        if (d == 16)
            return gbnf_fail(p, p->at, digits == 2 ? "2 hex digits" : digits == 4 ? "4 hex digits" : "8 hex digits");
        *cp = *cp << 4 | d;
    }
    return *cp <= 0x10FFFF || gbnf_fail(p, begin, "a code point up to 10FFFF");
}

/* After a backslash. */
static bool gbnf_escape(gbnf *p, bool in_class, uint32_t *cp)
{
    int c = gbnf_peek(p, 0);
    p->at++;
    switch (c) {
    case 'x': return gbnf_hex(p, 2, cp);
    case 'u': return gbnf_hex(p, 4, cp);
    case 'U': return gbnf_hex(p, 8, cp);
    case 't': *cp = '\t'; return true;
    case 'r': *cp = '\r'; return true;
    case 'n': *cp = '\n'; return true;
    case '\\': case '"': case '[': case ']': *cp = (uint32_t)c; return true;
    case '-': case '^':
        if (in_class) {
            *cp = (uint32_t)c;
            return true;
        }
        break;
    default: break;
    }
    return gbnf_fail(p, p->at - 1, "an escape: one of \\x \\u \\U \\t \\r \\n \\\\ \\\" \\[ \\]");
}

static bool gbnf_char(gbnf *p, bool in_class, uint32_t *cp)
{
    if (gbnf_peek(p, 0) == '\\') {
        p->at++;
        return gbnf_escape(p, in_class, cp);
    }
    size_t n = pn_utf8_decode(p->text + p->at, p->len - p->at, cp);
    if (n == 1 && *cp == PN_UTF8_BAD)
        return gbnf_fail(p, p->at, "valid UTF-8");
    p->at += n;
    return true;
}

/* ---- items ----------------------------------------------------------------------------------------------- */

static pn_gnode gbnf_literal(gbnf *p)
{
    size_t begin = p->at++;
    char *bytes = NULL;
    size_t n = 0, cap = 0;
    pn_gnode node = PN_GNODE_NONE;
    for (;;) {
        uint32_t cp;
        int c = gbnf_peek(p, 0);
        if (c < 0) {
            gbnf_fail(p, begin, "a closing quote for this literal");
            break;
        }
        if (c == '"') {
            p->at++;
            node = pn_gir_bytes(p->b, bytes, n);
            break;
        }
        if (!gbnf_char(p, false, &cp) || !pn_gir_room(p->b, (void **)&bytes, &cap, n, 4, 1))
            break;
        if (cp >= 0xD800 && cp <= 0xDFFF) {
            gbnf_fail(p, begin, "a literal without surrogates");
            break;
        }
        n += pn_utf8_encode(cp, bytes + n);
    }
    pn_mem_free(p->b->mem, PN_ACCT_GRAMMAR, bytes, cap);
    return node;
}

static pn_gnode gbnf_class(gbnf *p)
{
    size_t begin = p->at++;
    bool negated = gbnf_peek(p, 0) == '^';
    p->at += negated;
    p->ranges.n = 0;
    while (gbnf_peek(p, 0) != ']') {
        pn_cp_range r;
        size_t at = p->at;
        if (gbnf_peek(p, 0) < 0)
            return gbnf_fail(p, begin, "a closing ] for this class");
        if (!gbnf_char(p, true, &r.lo))
            return PN_GNODE_NONE;
        r.hi = r.lo;
        if (gbnf_peek(p, 0) == '-' && gbnf_peek(p, 1) != ']' && gbnf_peek(p, 1) >= 0) {
            p->at++;
            if (!gbnf_char(p, true, &r.hi))
                return PN_GNODE_NONE;
        }
        if (r.lo > r.hi)
            return gbnf_fail(p, at, "a range from low to high");
        if (!PN_GIR_ROOM(p->b, p->ranges, 1))
            return PN_GNODE_NONE;
        p->ranges.v[p->ranges.n++] = r;
    }
    if (p->ranges.n == 0)
        return gbnf_fail(p, p->at, "a character: a class may not be empty");
    p->at++;
    return pn_gir_class(p->b, p->ranges.v, p->ranges.n, negated);
}

/* <[123]> or <text> */
static pn_gnode gbnf_token(gbnf *p, bool negated)
{
    size_t begin = p->at++;
    if (gbnf_peek(p, 0) == '[') {
        uint64_t id = 0;
        size_t digits = ++p->at;
        for (int c; (c = gbnf_peek(p, 0)) >= '0' && c <= '9' && id <= INT32_MAX; p->at++)
            id = id * 10 + (uint64_t)(c - '0');
        if (p->at == digits || id > INT32_MAX)
            return gbnf_fail(p, digits, "a token id");
        if (gbnf_peek(p, 0) != ']' || gbnf_peek(p, 1) != '>')
            return gbnf_fail(p, p->at, "]>");
        p->at += 2;
        return pn_gir_token(p->b, (pn_token)id, negated);
    }
    while (gbnf_peek(p, 0) >= 0 && gbnf_peek(p, 0) != '>' && gbnf_peek(p, 0) != '\n')
        p->at++;
    if (gbnf_peek(p, 0) != '>')
        return gbnf_fail(p, begin, "a closing > for this token");
    p->at++;
    pn_token t = p->find ? p->find(p->user, p->text + begin, p->at - begin) : -1;
    if (t < 0)
        return gbnf_fail(p, begin, p->find ? "the text of exactly one token of the model" :
                                             "<[id]>: without a model a token's text says nothing");
    return pn_gir_token(p->b, t, negated);
}

static pn_gnode gbnf_reference(gbnf *p)
{
    uint32_t rule;
    size_t at = p->at;
    if (!gbnf_rule(p, gbnf_name(p), &rule))
        return PN_GNODE_NONE;
    if (!p->used_at.v[rule])
        p->used_at.v[rule] = at + 1;
    return pn_gir_ref(p->b, rule);
}

static bool gbnf_number(gbnf *p, uint32_t *out)
{
    uint64_t v = 0;
    size_t begin = p->at;
    for (int c; (c = gbnf_peek(p, 0)) >= '0' && c <= '9'; p->at++)
        v = PN_MIN(v * 10 + (uint64_t)(c - '0'), (uint64_t)1 << 40);
    if (p->at == begin)
        return gbnf_fail(p, begin, "a number");
    if (v > p->b->limits.repeat) {
        pn_gir_fail(p->b, PN_E_INVALID, "a repetition of %llu times is too large (limit repeat: %lu)",
                    (unsigned long long)v, (unsigned long)p->b->limits.repeat);
        return false;
    }
    *out = (uint32_t)v;
    return true;
}

/* {m} {m,} {m,n} {,n}: after the brace */
static bool gbnf_bounds(gbnf *p, uint32_t *min, uint32_t *max)
{
    size_t begin = p->at;
    gbnf_space(p, true);
    if (!gbnf_number(p, min))
        return false;
    *max = *min;
    gbnf_space(p, true);
    if (gbnf_peek(p, 0) == ',') {
        p->at++;
        gbnf_space(p, true);
        *max = PN_GIR_MANY;
        if (gbnf_peek(p, 0) != '}' && !gbnf_number(p, max))
            return false;
        gbnf_space(p, true);
    }
    if (gbnf_peek(p, 0) != '}')
        return gbnf_fail(p, p->at, "}");
    p->at++;
    return *min <= *max || gbnf_fail(p, begin, "bounds from low to high");
}

/* What follows an item: as many repetitions as there are. */
static pn_gnode gbnf_repeats(gbnf *p, pn_gnode node)
{
    while (pn_gir_ok(p->b)) {
        uint32_t min = 0, max = PN_GIR_MANY;
        size_t at = p->at;
        gbnf_space(p, p->b->groups.n > 1);
        int c = gbnf_peek(p, 0);
        if (c == '+')
            min = 1;
        else if (c == '?')
            max = 1;
        else if (c != '*' && c != '{') {
            p->at = at;
            break;
        }
        p->at++;
        if (c == '{' && !gbnf_bounds(p, &min, &max))
            return PN_GNODE_NONE;
        node = pn_gir_repeat(p->b, node, min, max);
    }
    return node;
}

/* ---- groups, alternatives, rules ---------------------------------------------------------------------------- */

static bool gbnf_open(gbnf *p)
{
    if (p->b->groups.n > p->b->limits.nesting) {
        pn_gir_fail(p->b, PN_E_INVALID, "groups are nested too deeply (limit nesting: %lu)", (unsigned long)p->b->limits.nesting);
        return false;
    }
    return pn_gir_group_open(p->b, p->at);
}

/* The items since the last "|" are an alternative. */
static bool gbnf_alternative(gbnf *p) { return pn_gir_group_alternative(p->b, pn_gir_group_sequence(p->b)); }
static pn_gnode gbnf_close(gbnf *p) { return gbnf_alternative(p) ? pn_gir_group_close(p->b) : PN_GNODE_NONE; }
static bool gbnf_item(gbnf *p, pn_gnode node) { return pn_gir_group_item(p->b, gbnf_repeats(p, node)); }

/* One step inside a body.  *done: the rule has ended. */
static bool gbnf_element(gbnf *p, bool *done)
{
    static const pn_cp_range any[] = {{0, 0x10FFFF}};
    gbnf_space(p, p->b->groups.n > 1);
    int c = gbnf_peek(p, 0);
    switch (c) {
    case '"': return gbnf_item(p, gbnf_literal(p));
    case '[': return gbnf_item(p, gbnf_class(p));
    case '<': return gbnf_item(p, gbnf_token(p, false));
    case '.':
        p->at++;
        return gbnf_item(p, pn_gir_class(p->b, any, 1, false));
    case '!':
        p->at++;
        return gbnf_peek(p, 0) == '<' ? gbnf_item(p, gbnf_token(p, true)) : gbnf_fail(p, p->at, "< after !");
    case '|':
        p->at++;
        gbnf_space(p, true);
        return gbnf_alternative(p);
    case '(':
        if (!gbnf_open(p))
            return false;
        p->at++;
        return true;
    case ')':
        if (p->b->groups.n < 2)
            return gbnf_fail(p, p->at, "no ) without a (");
        p->at++;
        return gbnf_item(p, gbnf_close(p));
    case -1: case '\n': case '\r':
        if (p->b->groups.n > 1)
            return gbnf_fail(p, p->b->groups.v[p->b->groups.n - 1].at, "a closing ) for this group");
        *done = true;
        return true;
    default:
        if (gbnf_is_name(c))
            return gbnf_item(p, gbnf_reference(p));
        return gbnf_fail(p, p->at, c == '*' || c == '+' || c == '?' || c == '{' ? "something to repeat" :
                         "a literal, class, rule name or group");
    }
}

static bool gbnf_definition(gbnf *p)
{
    uint32_t rule;
    bool done = false;
    pn_bytes name = gbnf_name(p);
    if (name.len == 0)
        return gbnf_fail(p, p->at, "a rule name");
    if (!gbnf_rule(p, name, &rule))
        return false;
    gbnf_space(p, false);
    if (gbnf_peek(p, 0) != ':' || gbnf_peek(p, 1) != ':' || gbnf_peek(p, 2) != '=')
        return gbnf_fail(p, p->at, "::=");
    p->at += 3;
    gbnf_space(p, true);
    if (!gbnf_open(p))
        return false;
    while (!done)
        if (!gbnf_element(p, &done))
            return false;
    pn_gir_define(p->b, rule, gbnf_close(p));
    return pn_gir_ok(p->b);
}

/* ---- all of it ------------------------------------------------------------------------------------------------- */

static bool gbnf_parse(gbnf *p, pn_gnode *root)
{
    if (p->len > p->b->limits.text_bytes) {
        pn_gir_fail(p->b, PN_E_INVALID, "the grammar has %zu bytes (limit text_bytes: %zu)", p->len, p->b->limits.text_bytes);
        return false;
    }
    gbnf_space(p, true);
    while (p->at < p->len) {
        if (!gbnf_definition(p))
            return false;
        gbnf_space(p, true);
    }
    for (uint32_t i = 0; i < p->used_at.n; i++)
        if (p->used_at.v[i] && !pn_gir_defined(p->b, i))
            return gbnf_fail(p, p->used_at.v[i] - 1, "a rule that is defined");
    uint32_t *rule = pn_map_find(&p->names, "root", 4);
    if (!rule)
        return gbnf_fail(p, p->len, "a rule named root");
    *root = pn_gir_ref(p->b, *rule);
    return pn_gir_ok(p->b);
}

PN_INTERNAL pn_status pn_gram_from_gbnf(pn_gram **out, pn_mem *mem, const char *text, size_t len,
                                        const pn_gram_limits *limits, pn_gram_find_token find, void *user, pn_err *err)
{
    gbnf p;
    pn_gnode root = PN_GNODE_NONE;
    pn_gir_purse purse;
    *out = NULL;
    memset(&p, 0, sizeof p);
    pn_gir_purse_init(&purse, mem, limits);
    pn_status status = pn_gir_new(&p.b, &purse.mem, limits, err);
    if (status != PN_OK)
        return pn_gir_purse_close(&purse, NULL, status, err);
    p.text = text;
    p.len = len;
    p.find = find;
    p.user = user;
    mem = &purse.mem;
    pn_map_init(&p.names, mem, PN_ACCT_GRAMMAR);
    gbnf_parse(&p, &root);
    status = pn_gir_status(p.b, err);
    if (status == PN_OK)
        status = pn_gir_finish(p.b, root, out, err);
    pn_map_fini(&p.names);
    pn_mem_free(mem, PN_ACCT_GRAMMAR, p.ranges.v, p.ranges.cap * sizeof *p.ranges.v);
    pn_mem_free(mem, PN_ACCT_GRAMMAR, p.used_at.v, p.used_at.cap * sizeof *p.used_at.v);
    pn_gir_free(p.b);
    return pn_gir_purse_close(&purse, *out, status, err);
}
