/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_schema_str.c - strings and enumerations.
 *
 * A string is a body between quotes, and each demand on it is a regular language over bodies: its
 * length, its patterns, its format, what it must not be.  They are intersected as automata by the
 * builder.  Formats are written as regular expressions: one engine, and a reader sees at once what
 * is meant.
 *
 * An enumeration is a list of the document's own nodes, filtered by the other keywords, and is
 * spelled in one way: canonical JSON, numbers as the schema has them, optional white space inside
 * arrays and objects as everywhere.  Strings become one trie.
 */
#include "sample/pn_schema_int.h"
#include "base/pn_err.h"
#include "base/pn_utf8.h"

/* A product with a length has states for every character of it, and maxLength is often a round number
 * that nobody means to reach. */
enum { SCHSTR_PRODUCT = 256 };

/* --- spelling -----------------------------------------------------------------------------------

 * JSON strings are bodies with escapes between quotes.  Bare text (s->until) has no escapes, so a body
 * is the text itself; it must not contain what ends it. */

static bool schstr_is_bare(const pn_sch *s) { return s->until != NULL; }

static pn_gnode schstr_any(pn_sch *s)
{
    return pn_gir_class(s->g, NULL, 0, true);
}

static pn_gnode schstr_without(pn_gir *g, pn_gnode text, const char *end)
{
    const pn_gnode some = pn_gir_repeat(g, pn_gir_class(g, NULL, 0, true), 0, PN_GIR_MANY);
    return pn_gir_and_not(g, text, pn_gir_seq3(g, some, pn_gir_text(g, end), some));
}

PN_INTERNAL void pn_schema_avoid(pn_gir *g, const char *avoid, pn_schema_options *o)
{
    const char first[2] = {avoid[0], 0};
    o->avoid = avoid;
    o->avoid_body = schstr_without(g, pn_gir_json_body(g, 0, PN_GIR_MANY), avoid);
    o->avoid_char = pn_gir_and_not(g, pn_gir_json_char(g), pn_gir_text(g, first));
}

/* What strings may not contain: the end of bare text, or what JSON has to avoid; NULL: nothing. */
static const char *schstr_end(const pn_sch *s) { return s->until ? s->until : s->o.avoid; }

static pn_gnode schstr_without_end(pn_sch *s, pn_gnode text)
{
    return schstr_end(s) ? schstr_without(s->g, text, schstr_end(s)) : text;
}

PN_INTERNAL bool pn_sch_ends_inside(const pn_sch *s, pn_bytes text)
{
    const char *end = schstr_end(s);
    const size_t n = end ? strlen(end) : 0;
    for (size_t i = 0; n && i + n <= text.len; i++)
        if (memcmp(text.data + i, end, n) == 0)
            return true;
    return false;
}

/* JSON without what has to be avoided.  A product with a bound on the number of characters would be as
 * large as the bound, so then the first byte is left out, but for escapes. */
static pn_gnode schstr_json(pn_sch *s, uint32_t min, uint32_t max)
{
    if (!s->o.avoid)
        return pn_gir_json_body(s->g, min, max);
    return min == 0 && max == PN_GIR_MANY ? s->o.avoid_body : pn_gir_repeat(s->g, s->o.avoid_char, min, max);
}

/* The same for keys but these texts: characters that stand for themselves. */
static pn_gnode schstr_json_not(pn_sch *s, const pn_bytes *texts, uint32_t n)
{
    if (!s->o.avoid)
        return pn_gir_json_not(s->g, texts, n);
    const uint32_t first = (unsigned char)s->o.avoid[0];
    const pn_cp_range special[] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {first, first}};
    const pn_gnode plain = pn_gir_repeat(s->g, pn_gir_class(s->g, special, PN_COUNT_OF(special), true), 0, PN_GIR_MANY);
    return pn_gir_and_not(s->g, plain, pn_gir_words(s->g, texts, n));
}

PN_INTERNAL pn_gnode pn_sch_chars(pn_sch *s, uint32_t min, uint32_t max)
{
    return schstr_is_bare(s) ? pn_gir_repeat(s->g, schstr_any(s), min, max) : schstr_json(s, min, max);
}

PN_INTERNAL pn_gnode pn_sch_text(pn_sch *s, pn_bytes text)
{
    if (!s->until && pn_sch_ends_inside(s, text))
        return pn_gir_never(s->g);
    return schstr_is_bare(s) ? pn_gir_bytes(s->g, text.data, text.len) : pn_gir_json_text(s->g, text.data, text.len);
}

PN_INTERNAL pn_gnode pn_sch_not(pn_sch *s, const pn_bytes *texts, uint32_t n)
{
    if (!schstr_is_bare(s))
        return schstr_json_not(s, texts, n);
    return pn_gir_and_not(s->g, pn_sch_chars(s, 0, PN_GIR_MANY), pn_gir_words(s->g, texts, n));
}

/* What a key without quotes consists of; its reader takes 256 bytes. */
static pn_gnode schstr_word(pn_sch *s)
{
    static const pn_cp_range chars[] = {{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {'_', '_'}, {'-', '.'}, {'/', '/'}, {'$', '$'}, {0x80, 0x10FFFF}};
    const uint32_t n = PN_COUNT_OF(chars);
    return pn_gir_alt2(s->g, pn_gir_repeat(s->g, pn_gir_class(s->g, chars, n - 1, false), 1, 256),
                       pn_gir_repeat(s->g, pn_gir_class(s->g, chars, n, false), 1, 64));
}

PN_INTERNAL pn_gnode pn_sch_key(pn_sch *s, pn_gnode body)
{
    if (s->o.quote)
        return pn_gir_seq2(s->g, pn_gir_and(s->g, body, schstr_word(s)), pn_gir_text(s->g, ":"));
    return pn_gir_seq3(s->g, pn_gir_text(s->g, "\""), body, pn_gir_text(s->g, "\":"));
}

PN_INTERNAL pn_gnode pn_sch_string(pn_sch *s, pn_gnode body)
{
    const pn_gnode quote = s->o.quote_node != PN_GNODE_NONE ? s->o.quote_node : pn_gir_text(s->g, s->o.quote ? s->o.quote : "\"");
    return pn_gir_seq3(s->g, quote, body, quote);
}

/* --- formats ------------------------------------------------------------------------------------ */

/* RFC 3339 with the lengths of months and leap years; not the year 0, which few calendars know. */
#define SCHSTR_YEAR "(?:\\d{3}[1-9]|\\d\\d[1-9]0|\\d[1-9]00|[1-9]000)"
#define SCHSTR_DATE \
    "(?:" SCHSTR_YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|" \
    "02-(?:0[1-9]|1\\d|2[0-8]))|(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
#define SCHSTR_TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
/* RFC 3339 appendix A: units without a gap. */
#define SCHSTR_N "\\d{1,9}"
#define SCHSTR_DAYS "(?:" SCHSTR_N "Y(?:" SCHSTR_N "M(?:" SCHSTR_N "D)?)?|" SCHSTR_N "M(?:" SCHSTR_N "D)?|" SCHSTR_N "D)"
#define SCHSTR_HOURS "T(?:" SCHSTR_N "H(?:" SCHSTR_N "M(?:" SCHSTR_N "S)?)?|" SCHSTR_N "M(?:" SCHSTR_N "S)?|" SCHSTR_N "S)"
#define SCHSTR_OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define SCHSTR_V4 SCHSTR_OCTET "(?:\\." SCHSTR_OCTET "){3}"
#define SCHSTR_H "[0-9A-Fa-f]{1,4}"
#define SCHSTR_HC "(?:" SCHSTR_H ":)"
#define SCHSTR_CH "(?::" SCHSTR_H ")"
/* RFC 1123; the 253 of the whole name is left out: it would square the automaton.  (label.)*label and
 * not label(.label)*: then all labels share their states.  The labels of an e-mail are shorter, so
 * that the product with a maxLength of 255, which is common, stays within the limit on states. */
#define SCHSTR_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define SCHSTR_SHORT "[A-Za-z0-9](?:[A-Za-z0-9-]{0,28}[A-Za-z0-9])?"
#define SCHSTR_ATEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define SCHSTR_PCHAR "(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})"

static const struct schstr_format {
    const char *name, *pattern;
} schstr_formats[] = {
    {"date", "^" SCHSTR_DATE "$"},
    {"time", "^" SCHSTR_TIME "$"},
    {"date-time", "^" SCHSTR_DATE "T" SCHSTR_TIME "$"},
    {"duration", "^P(?:" SCHSTR_N "W|" SCHSTR_DAYS "(?:" SCHSTR_HOURS ")?|" SCHSTR_HOURS ")$"},
    {"uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"},
    {"ipv4", "^" SCHSTR_V4 "$"},
    {"ipv6", "^(?:" SCHSTR_HC "{7}" SCHSTR_H "|" SCHSTR_HC "{1,7}:|" SCHSTR_HC "{1,6}" SCHSTR_CH "|" SCHSTR_HC "{1,5}" SCHSTR_CH "{1,2}|"
             SCHSTR_HC "{1,4}" SCHSTR_CH "{1,3}|" SCHSTR_HC "{1,3}" SCHSTR_CH "{1,4}|" SCHSTR_HC "{1,2}" SCHSTR_CH "{1,5}|"
             SCHSTR_HC SCHSTR_CH "{1,6}|:(?:" SCHSTR_CH "{1,7}|:)|" SCHSTR_HC "{6}" SCHSTR_V4 "|:" SCHSTR_CH "{0,5}:" SCHSTR_V4 "|"
             SCHSTR_HC SCHSTR_CH "{0,4}:" SCHSTR_V4 "|" SCHSTR_HC "{2}" SCHSTR_CH "{0,3}:" SCHSTR_V4 "|"
             SCHSTR_HC "{3}" SCHSTR_CH "{0,2}:" SCHSTR_V4 "|" SCHSTR_HC "{4}" SCHSTR_CH "{0,1}:" SCHSTR_V4 "|"
             SCHSTR_HC "{5}:" SCHSTR_V4 ")$"},
    {"hostname", "^(?:" SCHSTR_LABEL "\\.)*" SCHSTR_LABEL "$"},
    {"email", "^" SCHSTR_ATEXT "(?:\\." SCHSTR_ATEXT ")*@(?:" SCHSTR_SHORT "\\.)+" SCHSTR_SHORT "$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]*:" SCHSTR_PCHAR "+(?:#" SCHSTR_PCHAR "*)?$"},
};

PN_INTERNAL pn_gnode pn_sch_format(pn_sch *s, pn_bytes name)
{
    for (size_t i = 0; i < PN_COUNT_OF(schstr_formats); i++) {
        const struct schstr_format *f = &schstr_formats[i];
        if (name.len != strlen(f->name) || memcmp(name.data, f->name, name.len) != 0)
            continue;
        pn_err e = {PN_OK, {0}};
        if (s->formats[i] != PN_GNODE_NONE)
            return s->formats[i];
        const pn_status status = pn_gir_regex(s->g, f->pattern, strlen(f->pattern), schstr_is_bare(s) ? 0 : PN_REGEX_JSON,
                                              &s->formats[i], &e);
        if (status != PN_OK)
            pn_sch_fail(s, status, s->root, NULL, "format \"%s\": %.180s", f->name, e.text);
        return s->formats[i];
    }
    return PN_GNODE_NONE;
}

PN_INTERNAL pn_gnode pn_sch_pattern(pn_sch *s, uint32_t node, const char *kw, pn_bytes pattern, bool *dropped)
{
    pn_gnode out = PN_GNODE_NONE;
    pn_err e = {PN_OK, {0}};
    *dropped = false;
    bool existed;
    const uint32_t *known = pn_map_find(&s->pattern_of, pattern.data, pattern.len);
    if (known)
        return *known;
    const pn_status status = pn_gir_regex(s->g, pattern.data, pattern.len,
                                          (schstr_is_bare(s) ? 0 : PN_REGEX_JSON) | PN_REGEX_SEARCH, &out, &e);
    if (status == PN_E_UNSUPPORTED)
        *dropped = pn_sch_refuse(s, node, kw, e.text);
    else if (status != PN_OK)
        pn_sch_fail(s, status, node, kw, "%.250s", e.text);
    else if (!pn_map_put(&s->pattern_of, pattern.data, pattern.len, out, &existed))
        pn_sch_nomem(s);
    return *dropped ? PN_GNODE_NONE : out;
}

/* The strings of `body` that have min..max characters. */
static pn_gnode schstr_bounded(pn_sch *s, pn_gnode body, uint32_t min, uint32_t max)
{
    const uint32_t wanted[3] = {body, min, max};
    const uint32_t *known = pn_map_find(&s->body_of, (const char *)wanted, sizeof wanted);
    bool existed;
    if (known)
        return *known;
    char *key = pn_sch_alloc(s, 1, sizeof wanted);
    const pn_gnode out = key ? pn_gir_and(s->g, body, pn_sch_chars(s, min, max)) : PN_GNODE_NONE;
    if (out == PN_GNODE_NONE)
        return out;
    memcpy(key, wanted, sizeof wanted);
    if (!pn_map_put(&s->body_of, key, sizeof wanted, out, &existed))
        pn_sch_nomem(s);
    return out;
}

static pn_gnode schstr_body(pn_sch *s, const pn_sch_leaf *l)
{
    const bool any = l->min_len == 0 && l->max_len == PN_SCH_MANY;
    if (l->body != PN_GNODE_NONE && any)
        return l->body;
    uint32_t max = l->max_len == PN_SCH_MANY ? PN_GIR_MANY : l->max_len;
    if ((l->body != PN_GNODE_NONE || schstr_is_bare(s)) && max != PN_GIR_MANY)
        max = PN_MIN(max, PN_MAX(l->min_len, (uint32_t)SCHSTR_PRODUCT));
    return l->body != PN_GNODE_NONE ? schstr_bounded(s, l->body, l->min_len, max) : pn_sch_chars(s, l->min_len, max);
}

PN_INTERNAL pn_gnode pn_sch_body(pn_sch *s, const pn_sch_leaf *l)
{
    const bool any = l->body == PN_GNODE_NONE && l->min_len == 0 && l->max_len == PN_SCH_MANY;
    if (any && s->any_body != PN_GNODE_NONE)
        return s->any_body;
    pn_gnode body = schstr_body(s, l);
    if (schstr_is_bare(s) || (body == l->body && body != PN_GNODE_NONE))
        body = schstr_without_end(s, body);
    if (any)
        s->any_body = body;
    return body;
}

/* --- values ------------------------------------------------------------------------------------- */

/* No point and no exponent: what most numbers are, and then the text tells type and value. */
static bool schstr_plain(pn_bytes text)
{
    for (size_t i = 0; i < text.len; i++)
        if ((text.data[i] < '0' || text.data[i] > '9') && text.data[i] != '-')
            return false;
    return true;
}

PN_INTERNAL uint32_t pn_sch_value_type(pn_sch *s, uint32_t v)
{
    pn_bytes text;
    pn_sch_dec dec;
    if (v == PN_SCH_V_NULL)
        return PN_SCH_NULL;
    if (v == PN_SCH_V_TRUE || v == PN_SCH_V_FALSE)
        return PN_SCH_BOOL;
    switch (pn_json_type_of(s->d, v)) {
    case PN_JSON_NULL: return PN_SCH_NULL;
    case PN_JSON_BOOL: return PN_SCH_BOOL;
    case PN_JSON_STRING: return PN_SCH_STR;
    case PN_JSON_ARRAY: return PN_SCH_ARR;
    case PN_JSON_OBJECT: return PN_SCH_OBJ;
    default: break;
    }
    if (!pn_json_num(s->d, v, &text) || !pn_sch_steps(s, s->root, text.len / 8))
        return 0;
    if (schstr_plain(text))
        return PN_SCH_INT;
    const pn_sch_mark mark = pn_sch_marked(s);
    const bool ok = pn_sch_steps(s, s->root, 4) && pn_sch_dec_parse(s, text, &dec);
    pn_sch_rewind(s, mark);                             /* the lengths in dec stay true */
    if (!ok)
        return 0;
    return dec.n == 0 || dec.point >= (int64_t)dec.n ? PN_SCH_INT : PN_SCH_FRAC;     /* 1.0 is an integer */
}

static bool schstr_truth(const pn_sch *s, uint32_t v)
{
    bool b = v == PN_SCH_V_TRUE;
    if (v < PN_SCH_V_FALSE)
        pn_json_bool(s->d, v, &b);
    return b;
}

static bool schstr_equal_scalars(pn_sch *s, uint32_t a, uint32_t b, uint32_t type)
{
    pn_bytes x, y;
    if (type == PN_SCH_NULL)
        return true;
    if (type == PN_SCH_BOOL)
        return schstr_truth(s, a) == schstr_truth(s, b);
    if (type == PN_SCH_STR)
        return pn_json_str(s->d, a, &x) && pn_json_str(s->d, b, &y) && x.len == y.len && pn_sch_steps(s, s->root, x.len / 64) &&
               memcmp(x.data, y.data, x.len) == 0;
    pn_sch_dec p, q;
    if (!pn_json_num(s->d, a, &x) || !pn_json_num(s->d, b, &y) || !pn_sch_steps(s, s->root, (x.len + y.len) / 8))
        return false;
    if (schstr_plain(x) && schstr_plain(y) && x.data[0] != '-' && y.data[0] != '-')     /* "-0" equals "0" */
        return x.len == y.len && memcmp(x.data, y.data, x.len) == 0;
    if (!pn_sch_steps(s, s->root, 8))
        return false;
    const pn_sch_mark mark = pn_sch_marked(s);
    const bool same = pn_sch_dec_parse(s, x, &p) && pn_sch_dec_parse(s, y, &q) && pn_sch_dec_cmp(&p, &q) == 0;
    pn_sch_rewind(s, mark);
    return same;
}

static bool schstr_equal(pn_sch *s, uint32_t a, uint32_t b, uint32_t depth)
{
    const uint32_t type = pn_sch_value_type(s, a);
    if (depth == 0 || type != pn_sch_value_type(s, b) || !pn_sch_steps(s, s->root, type & (PN_SCH_ARR | PN_SCH_OBJ) ? 6 : 2))
        return false;
    if (type != PN_SCH_ARR && type != PN_SCH_OBJ)
        return schstr_equal_scalars(s, a, b, type);
    if (pn_json_count(s->d, a) != pn_json_count(s->d, b))
        return false;
    uint32_t y = pn_json_first(s->d, b);
    for (uint32_t x = pn_json_first(s->d, a); x != PN_JSON_NONE; x = pn_json_next(s->d, x)) {
        if (type == PN_SCH_OBJ) {
            const pn_bytes key = pn_json_key_of(s->d, x);
            if (!pn_sch_steps(s, s->root, 3 + key.len / 8))
                return false;
            y = pn_json_find(s->d, b, key.data, key.len);
        }
        if (y == PN_JSON_NONE || !schstr_equal(s, x, y, depth - 1))
            return false;
        if (type == PN_SCH_ARR)
            y = pn_json_next(s->d, y);
    }
    return true;
}

/* Recursion is bound by the depth that the JSON reader allows. */
PN_INTERNAL bool pn_sch_equal(pn_sch *s, uint32_t a, uint32_t b)
{
    return a == b || schstr_equal(s, a, b, 200);
}

static uint32_t schstr_length(pn_bytes t)
{
    uint32_t n = 0;
    for (size_t i = 0; i < t.len; i++)
        n += ((unsigned char)t.data[i] & 0xC0) != 0x80;
    return n;
}

PN_INTERNAL bool pn_sch_scalar_fits(pn_sch *s, const pn_sch_leaf *l, uint32_t v)
{
    const uint32_t type = pn_sch_value_type(s, v);
    pn_bytes text;
    if (type & PN_SCH_NUMBER) {
        pn_sch_dec dec;
        return pn_json_num(s->d, v, &text) && pn_sch_dec_parse(s, text, &dec) && pn_sch_num_has(&l->num, &dec);
    }
    if (type == PN_SCH_STR && pn_json_str(s->d, v, &text)) {
        const uint32_t n = schstr_length(text);
        if (n < l->min_len || n > l->max_len)
            return false;
        if (l->body == PN_GNODE_NONE)
            return true;
        return !pn_gir_is_never(s->g, pn_gir_and(s->g, pn_sch_text(s, text), l->body));
    }
    return true;
}

/* --- listing the values of a goal ----------------------------------------------------------------- */

static uint32_t schstr_leaf_values(const pn_sch_leaf *l, uint32_t *out)
{
    uint32_t n = 0;
    if (l->is_enum) {
        memcpy(out, l->values, l->n_values * sizeof *out);
        return l->n_values;
    }
    if (l->types & PN_SCH_NULL)
        out[n++] = PN_SCH_V_NULL;
    if (l->types & PN_SCH_BOOL) {
        out[n++] = PN_SCH_V_TRUE;
        out[n++] = PN_SCH_V_FALSE;
    }
    return n;
}

PN_INTERNAL bool pn_sch_enumerate(pn_sch *s, uint32_t goal, uint32_t **values, uint32_t *n)
{
    const pn_sch_goal *g = &s->goals[goal];
    uint64_t most = 0;
    for (uint32_t i = 0; i < g->n_leaves; i++) {
        const pn_sch_leaf *l = g->leaves[i];
        if (!l->is_enum && (l->types & ~(uint32_t)(PN_SCH_NULL | PN_SCH_BOOL)))
            return false;
        most += l->is_enum ? l->n_values : 3;
    }
    uint32_t *all = pn_sch_alloc(s, most + 1, sizeof *all), found = 0, kept = 0;
    if (!all)
        return false;
    for (uint32_t i = 0; i < g->n_leaves; i++)
        found += schstr_leaf_values(g->leaves[i], all + found);
    if (!pn_sch_steps(s, s->root, (uint64_t)found * found / 8))
        return false;
    for (uint32_t i = 0; i < found; i++) {
        bool twice = false;
        for (uint32_t j = 0; j < kept && !twice; j++)
            twice = pn_sch_equal(s, all[j], all[i]);
        if (!twice)
            all[kept++] = all[i];
    }
    *values = all;
    *n = kept;
    return s->status == PN_OK;
}

/* --- values as text ------------------------------------------------------------------------------- */

/* White space may stand after [ { , : and before ] }.  The parts of one value in a row. */
typedef struct schstr_text {
    pn_sch *s;
    pn_str run;                 /* bytes since the last white space */
    pn_gnode *parts;
    size_t n, cap;
    bool ends;                  /* it contains what strings may not */
} schstr_text;

static bool schstr_part(schstr_text *t, pn_gnode node)
{
    if (!pn_mem_grow(t->s->mem, PN_ACCT_GRAMMAR, (void **)&t->parts, &t->cap, t->n + 1, sizeof *t->parts))
        return pn_sch_nomem(t->s);
    t->parts[t->n++] = node;
    return true;
}

static bool schstr_flush(schstr_text *t, bool ws)
{
    if (t->run.failed)
        return pn_sch_nomem(t->s);
    t->ends = t->ends || pn_sch_ends_inside(t->s, (pn_bytes){pn_str_cstr(&t->run), t->run.len});
    if (t->run.len > 0 && !schstr_part(t, pn_gir_bytes(t->s->g, t->run.data, t->run.len)))
        return false;
    pn_str_clear(&t->run);
    return !ws || t->s->o.compact || schstr_part(t, t->s->ws);
}

/* Canonical spelling, as pn_gir_json_text has it (the base's writer escapes a few more characters). */
static void schstr_quoted(pn_str *out, pn_bytes text)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    pn_str_addc(out, '"');
    for (size_t i = 0; i < text.len; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        const char *p = c ? strchr(from, c) : NULL;
        if (p) {
            pn_str_addc(out, '\\');
            pn_str_addc(out, to[p - from]);
        } else if (c < 0x20) {
            pn_str_addf(out, "\\u%04x", c);
        } else {
            pn_str_addc(out, (char)c);
        }
    }
    pn_str_addc(out, '"');
}

static void schstr_scalar(pn_sch *s, pn_str *out, uint32_t v)
{
    const uint32_t type = pn_sch_value_type(s, v);
    pn_bytes text = {"", 0};
    if (type == PN_SCH_NULL) {
        pn_str_addz(out, s->o.python ? "None" : "null");
    } else if (type == PN_SCH_BOOL) {
        const char *const words[] = {"false", "true", "False", "True"};
        pn_str_addz(out, words[2 * s->o.python + schstr_truth(s, v)]);
    } else if (type == PN_SCH_STR) {
        pn_json_str(s->d, v, &text);
        if (schstr_is_bare(s))
            pn_str_add(out, text.data, text.len);
        else
            schstr_quoted(out, text);
    } else {
        pn_json_num(s->d, v, &text);
        pn_str_add(out, text.data, text.len);
    }
}

static bool schstr_open(schstr_text *t, uint32_t v)
{
    const pn_json_doc *d = t->s->d;
    const pn_json_type type = pn_json_type_of(d, v);
    pn_bytes text;
    if (t->s->o.quote && pn_json_str(d, v, &text))
        return schstr_flush(t, false) && schstr_part(t, pn_sch_string(t->s, pn_sch_text(t->s, text)));
    if (type != PN_JSON_ARRAY && type != PN_JSON_OBJECT) {
        schstr_scalar(t->s, &t->run, v);
        return true;
    }
    const bool object = type == PN_JSON_OBJECT;
    if (pn_json_count(d, v) == 0) {
        pn_str_addz(&t->run, object ? "{}" : "[]");
        return true;
    }
    pn_str_addc(&t->run, object ? '{' : '[');
    return schstr_flush(t, true);
}

static bool schstr_key(schstr_text *t, uint32_t v)
{
    const pn_bytes key = pn_json_key_of(t->s->d, v);
    if (!key.data)
        return true;
    if (t->s->o.quote)
        pn_str_add(&t->run, key.data, key.len);
    else
        schstr_quoted(&t->run, key);
    pn_str_addc(&t->run, ':');
    return schstr_flush(t, true);
}

/* Walk down and up along the document's own links; `top` is not left. */
static bool schstr_write(schstr_text *t, uint32_t top)
{
    const pn_json_doc *d = t->s->d;
    uint32_t v = top;
    for (;;) {
        if (!pn_sch_steps(t->s, t->s->root, 1) || !schstr_open(t, v))
            return false;
        uint32_t next = pn_json_first(d, v);
        while (next == PN_JSON_NONE && v != top) {
            next = pn_json_next(d, v);
            if (next != PN_JSON_NONE) {
                pn_str_addc(&t->run, ',');
                if (!schstr_flush(t, true))
                    return false;
                break;
            }
            v = d->nodes[v].parent;
            if (!schstr_flush(t, true))
                return false;
            pn_str_addc(&t->run, pn_json_type_of(d, v) == PN_JSON_OBJECT ? '}' : ']');
        }
        if (next == PN_JSON_NONE)
            return schstr_flush(t, false);
        v = next;
        if (!schstr_key(t, v))
            return false;
    }
}

PN_INTERNAL pn_gnode pn_sch_value(pn_sch *s, uint32_t v)
{
    schstr_text t = {s, {0}, NULL, 0, 0, false};
    pn_gnode out = PN_GNODE_NONE;
    pn_str_init(&t.run, s->mem, PN_ACCT_GRAMMAR);
    bool ok = true;
    if (s->o.quote || (pn_sch_value_type(s, v) & (PN_SCH_ARR | PN_SCH_OBJ))) {
        ok = schstr_write(&t, v);
    } else {
        schstr_scalar(s, &t.run, v);
        ok = schstr_flush(&t, false);
    }
    if (ok)
        out = pn_gir_seq(s->g, t.parts, t.n);
    if (t.ends)
        out = pn_gir_never(s->g);
    pn_mem_free(s->mem, PN_ACCT_GRAMMAR, t.parts, t.cap * sizeof *t.parts);
    pn_str_fini(&t.run);
    return out;
}

/* Values of these types, scalars all, as one trie. */
static pn_gnode schstr_words(pn_sch *s, const uint32_t *values, uint32_t n, uint32_t types)
{
    pn_bytes *words = pn_sch_alloc(s, (uint64_t)n + 1, sizeof *words);
    size_t *starts = pn_sch_alloc(s, (uint64_t)n + 1, sizeof *starts);
    pn_str all;
    pn_str_init(&all, s->mem, PN_ACCT_GRAMMAR);
    pn_gnode out = PN_GNODE_NONE;
    uint32_t k = 0;
    for (uint32_t i = 0; words && starts && i < n; i++) {
        if (!(pn_sch_value_type(s, values[i]) & types))
            continue;
        starts[k] = all.len;
        schstr_scalar(s, &all, values[i]);
        words[k].len = all.len - starts[k];
        if (pn_sch_ends_inside(s, (pn_bytes){pn_str_cstr(&all) + starts[k], words[k].len}))
            all.len = starts[k];
        else
            k++;
    }
    if (all.failed)
        pn_sch_nomem(s);
    for (uint32_t i = 0; i < k && !all.failed; i++)
        words[i].data = all.data + starts[i];
    if (s->status == PN_OK)
        out = pn_gir_words(s->g, words, k);
    pn_str_fini(&all);
    return out;
}

PN_INTERNAL pn_gnode pn_sch_values(pn_sch *s, const uint32_t *values, uint32_t n)
{
    pn_gnode *alts = pn_sch_alloc(s, (uint64_t)n + 2, sizeof *alts);
    const uint32_t scalars = PN_SCH_ANY & ~(uint32_t)(PN_SCH_ARR | PN_SCH_OBJ);
    uint32_t k = 0;
    if (!alts)
        return PN_GNODE_NONE;
    if (s->o.quote) {
        alts[k++] = schstr_words(s, values, n, scalars & ~(uint32_t)PN_SCH_STR);
        alts[k++] = pn_sch_string(s, schstr_words(s, values, n, PN_SCH_STR));
    } else {
        alts[k++] = schstr_words(s, values, n, scalars);
    }
    for (uint32_t i = 0; i < n; i++)
        if (pn_sch_value_type(s, values[i]) & (PN_SCH_ARR | PN_SCH_OBJ))
            alts[k++] = pn_sch_value(s, values[i]);
    return pn_gir_alt(s->g, alts, k);
}

#undef SCHSTR_YEAR
#undef SCHSTR_DATE
#undef SCHSTR_TIME
#undef SCHSTR_N
#undef SCHSTR_DAYS
#undef SCHSTR_HOURS
#undef SCHSTR_OCTET
#undef SCHSTR_V4
#undef SCHSTR_H
#undef SCHSTR_HC
#undef SCHSTR_CH
#undef SCHSTR_LABEL
#undef SCHSTR_SHORT
#undef SCHSTR_ATEXT
#undef SCHSTR_PCHAR
