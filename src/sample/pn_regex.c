/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_regex.c - regular expressions (the ECMA syntax of JSON Schema) to nodes.
 *
 * Only what an automaton can do: look-around, back-references, \b and anchors inside are refused by
 * name, not approximated.  There is no backtracking anywhere, so no pattern can be slow on some text.
 *
 * In a JSON string the pattern speaks about the decoded text, but what is generated is its spelling.
 * Each class is therefore cut in two: characters that stand for themselves, and those that only an
 * escape can write (quote, backslash, controls).  One spelling each is enough to generate.
 *
 * Groups are on the builder's stack, above what is there already.
 */
#include "sample/pn_gram_impl.h"

#include "base/pn_utf8.h"
#include "text/pn_unicode.h"

typedef struct regex_parser {
    pn_gir *b;
    const char *text;
    size_t len, at;
    unsigned flags;
    pn_status status;           /* of the pattern; the builder's own error is separate */
    pn_err *err;
    size_t outside;             /* groups that were open before */
    PN_GVEC(pn_cp_range) ranges;
    bool begin_anchor, end_anchor;  /* of the top-level alternative being read */
    pn_gnode last_any;          /* "any text", made once */
} regex_parser;

enum { REGEX_NEST = 100, REGEX_REPEAT = 10000, REGEX_TOP = 0x10FFFF };

/* Always false: `return regex_bad(...)`. */
static bool regex_bad(regex_parser *p, size_t at, const char *what)
{
    if (p->status == PN_OK && pn_gir_ok(p->b))
        p->status = pn_fail(p->err, PN_E_INVALID, "pattern, offset %zu: %s", at, what);
    return false;
}

static bool regex_cannot(regex_parser *p, size_t at, const char *what)
{
    if (p->status == PN_OK && pn_gir_ok(p->b))
        p->status = pn_fail(p->err, PN_E_UNSUPPORTED, "pattern, offset %zu: %s cannot be enforced", at, what);
    return false;
}

static bool regex_ok(const regex_parser *p) { return p->status == PN_OK && pn_gir_ok(p->b); }

static int regex_peek(const regex_parser *p, size_t ahead)
{
    return p->at + ahead < p->len ? (uint8_t)p->text[p->at + ahead] : -1;
}

/* ---- sets of characters ---------------------------------------------------------------------------- */

static bool regex_range(regex_parser *p, uint32_t lo, uint32_t hi)
{
    if (lo > hi)
        return true;
    if (!PN_GIR_ROOM(p->b, p->ranges, 1))
        return false;
    p->ranges.v[p->ranges.n++] = (pn_cp_range){lo, hi};
    return true;
}

/* Ranges r[0..n), ascending and disjoint, or what lies between them. */
static bool regex_ranges(regex_parser *p, const pn_cp_range *r, size_t n, bool negated)
{
    uint32_t next = 0;
    for (size_t i = 0; i < n; i++) {
        if (!negated && !regex_range(p, r[i].lo, r[i].hi))
            return false;
        if (negated && r[i].lo > next && !regex_range(p, next, r[i].lo - 1))
            return false;
        next = r[i].hi + 1;
    }
    return !negated || regex_range(p, next, REGEX_TOP);
}

/* \d \w \s and their complements. */
static bool regex_shorthand(regex_parser *p, int letter)
{
    static const pn_cp_range digit[] = {{'0', '9'}};
    static const pn_cp_range word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const pn_cp_range space[] = {{9, 13}, {32, 32}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A},
        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    switch (letter) {
    case 'd': case 'D': return regex_ranges(p, digit, 1, letter == 'D');
    case 'w': case 'W': return regex_ranges(p, word, PN_COUNT_OF(word), letter == 'W');
    default: return regex_ranges(p, space, PN_COUNT_OF(space), letter == 'S');
    }
}

/* After \p or \P. */
static bool regex_property(regex_parser *p, size_t at, bool negated)
{
    size_t begin = p->at + 1, end = begin;
    while (end < p->len && p->text[end] != '}')
        end++;
    if (regex_peek(p, 0) != '{' || end >= p->len)
        return regex_bad(p, at, "expected {category} after \\p");
    uint64_t set = pn_uni_category(p->text + begin, end - begin);
    if (!set)
        return regex_cannot(p, at, "a Unicode property other than a general category");
    p->at = end + 1;
    const pn_uni_tables *tab = pn_uni_tab();
    if (!pn_gir_steps(p->b, tab->n_runs))
        return false;
    for (size_t i = 0; i < tab->n_runs; i++) {
        uint32_t first = tab->runs[i] >> 5, next = i + 1 < tab->n_runs ? tab->runs[i + 1] >> 5 : REGEX_TOP + 1u;
        bool in = ((uint64_t)1 << (tab->runs[i] & 31) & set) != 0;
        if (in != negated && next > first && !regex_range(p, first, next - 1))
            return false;
    }
    return true;
}

/* ---- escapes ---------------------------------------------------------------------------------------- */

static int regex_digit(int c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Exactly n hex digits at `at`; false when there are not. */
static bool regex_hex(const regex_parser *p, size_t at, uint32_t n, uint32_t *v)
{
    *v = 0;
    for (uint32_t i = 0; i < n; i++) {
        int d = at + i < p->len ? regex_digit((uint8_t)p->text[at + i]) : -1;
        if (d < 0)
            return false;
        *v = *v << 4 | (uint32_t)d;
    }
    return true;
}

/* After \u: four digits, a pair of surrogates, or {H...}. */
static bool regex_unicode(regex_parser *p, size_t at, uint32_t *cp)
{
    uint32_t low;
    if (regex_peek(p, 0) == '{') {
        size_t i = p->at + 1;
        for (*cp = 0; i < p->len && p->text[i] != '}'; i++) {
            int d = regex_digit((uint8_t)p->text[i]);
            if (d < 0 || (*cp = *cp << 4 | (uint32_t)d) > REGEX_TOP)
                return regex_bad(p, at, "expected a code point in \\u{}");
        }
        if (i >= p->len || i == p->at + 1)
            return regex_bad(p, at, "expected a code point in \\u{}");
        p->at = i + 1;
        return true;
    }
    if (!regex_hex(p, p->at, 4, cp))
        return regex_bad(p, at, "expected four hex digits after \\u");
    p->at += 4;
    if (*cp >= 0xD800 && *cp <= 0xDBFF && regex_peek(p, 0) == '\\' && regex_peek(p, 1) == 'u' &&
        regex_hex(p, p->at + 2, 4, &low) && low >= 0xDC00 && low <= 0xDFFF) {
        *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
        p->at += 6;
    }
    return true;
}

static bool regex_letter(int c, uint32_t *cp)
{
    switch (c) {
    case 't': *cp = '\t'; return true;
    case 'n': *cp = '\n'; return true;
    case 'r': *cp = '\r'; return true;
    case 'f': *cp = '\f'; return true;
    case 'v': *cp = '\v'; return true;
    default: return false;
    }
}

/* An escape (at the backslash).  *is_set: its ranges were added; else *cp is the character. */
static bool regex_escape(regex_parser *p, bool in_class, uint32_t *cp, bool *is_set)
{
    size_t at = p->at++;
    int c = regex_peek(p, 0);
    *is_set = false;
    if (c < 0)
        return regex_bad(p, at, "a backslash at the end");
    p->at++;
    if (regex_letter(c, cp))
        return true;
    switch (c) {
    case 'd': case 'D': case 'w': case 'W': case 's': case 'S':
        *is_set = true;
        return regex_shorthand(p, c);
    case 'p': case 'P':
        *is_set = true;
        return regex_property(p, at, c == 'P');
    case 'x':
        if (!regex_hex(p, p->at, 2, cp))
            return regex_bad(p, at, "expected two hex digits after \\x");
        p->at += 2;
        return true;
    case 'u':
        return regex_unicode(p, at, cp);
    case 'c':
        c = regex_peek(p, 0);
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')))
            return regex_bad(p, at, "expected a letter after \\c");
        p->at++;
        *cp = (uint32_t)c & 31;
        return true;
    case 'b':
        *cp = 8;
        return in_class || regex_cannot(p, at, "\\b");
    case 'B': return regex_cannot(p, at, "\\B");
    case 'k': return regex_cannot(p, at, "a back-reference");
    case '0':
        *cp = 0;
        if (regex_digit(regex_peek(p, 0)) >= 0 && regex_peek(p, 0) <= '9')
            return regex_bad(p, at, "octal escapes do not exist");
        return true;
    default: break;
    }
    if (c >= '1' && c <= '9')
        return regex_cannot(p, at, "a back-reference");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return regex_bad(p, at, "an escape that does not exist");
    p->at--;                                    /* punctuation, or any other character, is itself */
    size_t used = pn_utf8_decode(p->text + p->at, p->len - p->at, cp);
    p->at += used;
    return !(used == 1 && *cp == PN_UTF8_BAD) || regex_bad(p, at, "not UTF-8");
}

static bool regex_char(regex_parser *p, uint32_t *cp)
{
    size_t used = pn_utf8_decode(p->text + p->at, p->len - p->at, cp);
    if (used == 1 && *cp == PN_UTF8_BAD)
        return regex_bad(p, p->at, "not UTF-8");
    p->at += used;
    return true;
}

/* ---- characters to nodes ------------------------------------------------------------------------------ */

/* The letter of the short escape that writes cp in a JSON string; 0: \u00XX. */
static char regex_short(uint32_t cp)
{
    static const char controls[] = "\0\0\0\0\0\0\0\0btn\0fr";
    return cp == '"' || cp == '\\' ? (char)cp : cp < 14 ? controls[cp] : 0;
}

static bool regex_in(const regex_parser *p, size_t first, bool negated, uint32_t cp)
{
    for (size_t i = first; i < p->ranges.n; i++)
        if (p->ranges.v[i].lo <= cp && cp <= p->ranges.v[i].hi)
            return !negated;
    return negated;
}

/* The escapes of those characters of the class that only an escape can write. */
static pn_gnode regex_escaped(regex_parser *p, size_t first, bool negated)
{
    pn_gnode forms[36];
    size_t n = 0;
    for (uint32_t cp = 0; cp <= '\\'; cp++) {
        static const char hex[] = "0123456789abcdef";
        char letter = regex_short(cp);
        if ((cp >= 0x20 && cp != '"' && cp != '\\') || !regex_in(p, first, negated, cp))
            continue;
        const char two[2] = {'\\', letter}, six[6] = {'\\', 'u', '0', '0', hex[cp >> 4 & 15], hex[cp & 15]};
        forms[n++] = letter ? pn_gir_bytes(p->b, two, 2) : pn_gir_bytes(p->b, six, 6);
    }
    return pn_gir_alt(p->b, forms, n);
}

/* The class ranges[first..] of decoded characters, as spelled; the ranges are used up. */
static pn_gnode regex_class(regex_parser *p, size_t first, bool negated)
{
    static const pn_cp_range special[] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    pn_gnode node;
    if (!(p->flags & PN_REGEX_JSON)) {
        node = pn_gir_class(p->b, p->ranges.v ? p->ranges.v + first : NULL, p->ranges.n - first, negated);
        p->ranges.n = first;
        return node;
    }
    pn_gnode escaped = regex_escaped(p, first, negated);
    if (negated) {
        for (size_t i = 0; i < PN_COUNT_OF(special); i++)
            regex_range(p, special[i].lo, special[i].hi);
    } else {                                    /* take the special ones out, range by range */
        size_t end = p->ranges.n;
        for (size_t i = first; i < end && pn_gir_ok(p->b); i++) {
            pn_cp_range r = p->ranges.v[i];
            uint32_t lo = PN_MAX(r.lo, 0x20u);
            regex_range(p, lo, PN_MIN(r.hi, 0x21u));
            regex_range(p, PN_MAX(lo, 0x23u), PN_MIN(r.hi, 0x5Bu));
            regex_range(p, PN_MAX(lo, 0x5Du), r.hi);
        }
        if (pn_gir_ok(p->b) && p->ranges.n) {
            memmove(p->ranges.v + first, p->ranges.v + end, (p->ranges.n - end) * sizeof *p->ranges.v);
            p->ranges.n -= end - first;
        }
    }
    node = pn_gir_ok(p->b) ? pn_gir_class(p->b, p->ranges.v ? p->ranges.v + first : NULL, p->ranges.n - first, negated) : PN_GNODE_NONE;
    p->ranges.n = first;
    return pn_gir_alt2(p->b, node, escaped);
}

static pn_gnode regex_one(regex_parser *p, uint32_t cp)
{
    size_t first = p->ranges.n;
    if (!(p->flags & PN_REGEX_JSON) || (cp >= 0x20 && cp != '"' && cp != '\\')) {
        char bytes[4];
        if (cp >= 0xD800 && cp <= 0xDFFF)
            return pn_gir_never(p->b);
        return pn_gir_bytes(p->b, bytes, pn_utf8_encode(cp, bytes));
    }
    regex_range(p, cp, cp);
    return regex_class(p, first, false);
}

/* "[...]" at the bracket */
static pn_gnode regex_bracket(regex_parser *p)
{
    size_t begin = p->at++;
    bool negated = regex_peek(p, 0) == '^';
    p->at += negated;
    p->ranges.n = 0;
    while (regex_peek(p, 0) != ']') {
        uint32_t lo, hi;
        bool set_lo = false, set_hi = false;
        size_t at = p->at;
        if (regex_peek(p, 0) < 0)
            return regex_bad(p, begin, "a class without its ]");
        if (!(regex_peek(p, 0) == '\\' ? regex_escape(p, true, &lo, &set_lo) : regex_char(p, &lo)))
            return PN_GNODE_NONE;
        bool range = regex_peek(p, 0) == '-' && regex_peek(p, 1) != ']' && regex_peek(p, 1) >= 0;
        if (!range) {
            if (!set_lo && !regex_range(p, lo, lo))
                return PN_GNODE_NONE;
            continue;
        }
        p->at++;
        if (!(regex_peek(p, 0) == '\\' ? regex_escape(p, true, &hi, &set_hi) : regex_char(p, &hi)))
            return PN_GNODE_NONE;
        if (set_lo || set_hi) {                 /* [\w-x]: the dash is itself, as browsers read it */
            if (!regex_range(p, '-', '-') || (!set_lo && !regex_range(p, lo, lo)) || (!set_hi && !regex_range(p, hi, hi)))
                return PN_GNODE_NONE;
        } else if (lo > hi) {
            return regex_bad(p, at, "a range that is reversed");
        } else if (!regex_range(p, lo, hi)) {
            return PN_GNODE_NONE;
        }
    }
    p->at++;
    return regex_class(p, 0, negated);
}

/* ---- repetition ---------------------------------------------------------------------------------------- */

/* {m} {m,} {m,n} at the brace; false without an error: the brace is a character. */
static bool regex_bounds(regex_parser *p, uint32_t *min, uint32_t *max)
{
    uint64_t v[2] = {0, 0};
    size_t i = p->at + 1, digits = 0, parts = 0;
    bool open = false;
    for (; i < p->len; i++) {
        char c = p->text[i];
        if (c >= '0' && c <= '9') {
            v[parts] = PN_MIN(v[parts] * 10 + (uint64_t)(c - '0'), (uint64_t)1 << 40);
            digits++;
            open = false;
        } else if (c == ',' && parts == 0 && digits) {
            parts = 1;
            open = true;
        } else {
            break;
        }
    }
    if (i >= p->len || p->text[i] != '}' || digits == 0)
        return false;
    if (v[0] > REGEX_REPEAT || v[1] > REGEX_REPEAT)
        return regex_bad(p, p->at, "a repetition of more than 10000");
    *min = (uint32_t)v[0];
    *max = parts == 0 ? *min : open ? PN_GIR_MANY : (uint32_t)v[1];
    if (*max < *min)
        return regex_bad(p, p->at, "a repetition that is reversed");
    p->at = i + 1;
    return true;
}

static bool regex_quantifier(regex_parser *p, uint32_t *min, uint32_t *max)
{
    int c = regex_peek(p, 0);
    *min = c == '+';
    *max = c == '?' ? 1 : PN_GIR_MANY;
    if (c == '*' || c == '+' || c == '?')
        p->at++;
    else if (c != '{' || !regex_bounds(p, min, max))
        return false;
    if (regex_peek(p, 0) == '?')                /* lazy: the same language */
        p->at++;
    c = regex_peek(p, 0);
    if (c == '*' || c == '+' || c == '?')
        return regex_bad(p, p->at, "a repetition of a repetition");
    return true;
}

static bool regex_item(regex_parser *p, pn_gnode node)
{
    uint32_t min, max;
    if (!regex_ok(p))
        return false;
    if (p->end_anchor)
        return regex_cannot(p, p->at, "an anchor inside the pattern");
    if (regex_quantifier(p, &min, &max))
        node = pn_gir_repeat(p->b, node, min, max);
    return regex_ok(p) && pn_gir_group_item(p->b, node);
}

/* ---- groups --------------------------------------------------------------------------------------------- */

/* Groups of this pattern: 1 for itself, and those within. */
static size_t regex_depth(const regex_parser *p) { return p->b->groups.n - p->outside; }

static bool regex_open(regex_parser *p)
{
    if (regex_depth(p) > REGEX_NEST)
        return regex_bad(p, p->at, "groups nested deeper than 100");
    return pn_gir_group_open(p->b, p->at);
}

/* "(" and what may follow it */
static bool regex_group_open(regex_parser *p)
{
    size_t at = p->at++;
    if (p->end_anchor)
        return regex_cannot(p, at, "an anchor inside the pattern");
    if (regex_peek(p, 0) == '?') {
        int c = regex_peek(p, 1), d = regex_peek(p, 2);
        if (c == '=' || c == '!' || (c == '<' && (d == '=' || d == '!')))
            return regex_cannot(p, at, "look-around");
        if (c == ':') {
            p->at += 2;
        } else if (c == '<') {
            while (regex_peek(p, 0) >= 0 && regex_peek(p, 0) != '>')
                p->at++;
            if (regex_peek(p, 0) != '>')
                return regex_bad(p, at, "a group name without its >");
            p->at++;
        } else {
            return regex_cannot(p, at, "this kind of group");
        }
    }
    return regex_open(p);
}

/* Any text, around a side of a search that has no anchor. */
static pn_gnode regex_any(regex_parser *p)
{
    if (!p->last_any) {
        if (p->flags & PN_REGEX_JSON)
            p->last_any = pn_gir_json_body(p->b, 0, PN_GIR_MANY);
        else
            p->last_any = pn_gir_repeat(p->b, pn_gir_class(p->b, NULL, 0, true), 0, PN_GIR_MANY);
    }
    return p->last_any;
}

static bool regex_alternative(regex_parser *p)
{
    pn_gnode node = pn_gir_group_sequence(p->b);
    if (regex_depth(p) == 1) {
        if (p->flags & PN_REGEX_SEARCH && !p->begin_anchor)
            node = pn_gir_seq2(p->b, regex_any(p), node);
        if (p->flags & PN_REGEX_SEARCH && !p->end_anchor)
            node = pn_gir_seq2(p->b, node, regex_any(p));
        p->begin_anchor = p->end_anchor = false;
    }
    return pn_gir_group_alternative(p->b, node);
}

static pn_gnode regex_close(regex_parser *p) { return regex_alternative(p) ? pn_gir_group_close(p->b) : PN_GNODE_NONE; }

/* An anchor counts at the ends of a top-level alternative alone. */
static bool regex_anchor(regex_parser *p, bool begin)
{
    size_t at = p->at++;
    bool begun = p->b->parts.n > p->b->groups.v[p->b->groups.n - 1].items;
    if (regex_depth(p) > 1 || (begin && (begun || p->end_anchor)))
        return regex_cannot(p, at, "an anchor inside the pattern");
    *(begin ? &p->begin_anchor : &p->end_anchor) = true;
    int c = regex_peek(p, 0);
    if (c == '*' || c == '+' || c == '?')
        return regex_bad(p, p->at, "a repetition of an anchor");
    return true;
}

static pn_gnode regex_dot(regex_parser *p)
{
    p->at++;
    p->ranges.n = 0;
    if (!regex_range(p, '\n', '\n') || !regex_range(p, '\r', '\r') || !regex_range(p, 0x2028, 0x2029))
        return PN_GNODE_NONE;
    return regex_class(p, 0, true);
}

static pn_gnode regex_backslash(regex_parser *p)
{
    uint32_t cp = 0;
    bool is_set;
    p->ranges.n = 0;
    if (!regex_escape(p, false, &cp, &is_set))
        return PN_GNODE_NONE;
    return is_set ? regex_class(p, 0, false) : regex_one(p, cp);
}

static bool regex_element(regex_parser *p)
{
    uint32_t cp, min, max;
    size_t at = p->at;
    switch (regex_peek(p, 0)) {
    case '(': return regex_group_open(p);
    case ')':
        if (regex_depth(p) < 2)
            return regex_bad(p, p->at, "a ) without its (");
        p->at++;
        return regex_item(p, regex_close(p));
    case '|':
        p->at++;
        return regex_alternative(p);
    case '^': return regex_anchor(p, true);
    case '$': return regex_anchor(p, false);
    case '[': return regex_item(p, regex_bracket(p));
    case '.': return regex_item(p, regex_dot(p));
    case '\\': return regex_item(p, regex_backslash(p));
    case '*': case '+': case '?': return regex_bad(p, p->at, "a repetition of nothing");
    case '{':
        if (regex_bounds(p, &min, &max))
            return regex_bad(p, at, "a repetition of nothing");
        /* fall through */
    default: return regex_char(p, &cp) && regex_item(p, regex_one(p, cp));
    }
}

static pn_gnode regex_run(regex_parser *p)
{
    if (!regex_open(p))
        return PN_GNODE_NONE;
    while (p->at < p->len)
        if (!regex_element(p) || !regex_ok(p))
            return PN_GNODE_NONE;
    if (regex_depth(p) > 1)
        return regex_bad(p, p->len, "a ( without its )");
    return regex_close(p);
}

PN_INTERNAL pn_status pn_gir_regex(pn_gir *b, const char *pattern, size_t len, unsigned flags, pn_gnode *out, pn_err *err)
{
    regex_parser p;
    if (!pn_gir_ok(b))
        return pn_gir_status(b, err);
    if (len > b->limits.regex_bytes)
        return pn_fail(err, PN_E_INVALID, "the pattern has %zu bytes (limit regex_bytes: %zu)", len, b->limits.regex_bytes);
    memset(&p, 0, sizeof p);
    p.b = b;
    p.text = pattern;
    p.len = len;
    p.flags = flags;
    p.err = err;
    p.outside = b->groups.n;
    pn_gnode node = regex_run(&p);
    pn_gir_group_unwind(b, p.outside);
    pn_mem_free(b->mem, PN_ACCT_GRAMMAR, p.ranges.v, p.ranges.cap * sizeof *p.ranges.v);
    if (p.status != PN_OK)
        return p.status;
    if (!pn_gir_ok(b))
        return pn_gir_status(b, err);
    *out = node;
    return PN_OK;
}

PN_INTERNAL pn_status pn_gram_from_regex(pn_gram **out, pn_mem *mem, const char *text, size_t len,
                                         const pn_gram_limits *limits, pn_err *err)
{
    pn_gir *b = NULL;
    pn_gnode node = PN_GNODE_NONE;
    pn_gir_purse purse;
    *out = NULL;
    pn_gir_purse_init(&purse, mem, limits);
    pn_status status = pn_gir_new(&b, &purse.mem, limits, err);
    if (status == PN_OK)
        status = pn_gir_regex(b, text, len, 0, &node, err);
    if (status == PN_OK)
        status = pn_gir_finish(b, node, out, err);
    pn_gir_free(b);
    return pn_gir_purse_close(&purse, *out, status, err);
}
