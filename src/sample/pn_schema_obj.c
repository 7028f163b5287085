/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_schema_obj.c - objects and arrays: what they contain, and their nodes.
 *
 * Both are lists with commas between elements of which some may be missing, and what decides whether
 * a comma is due is whether anything came before.  Written as a chain that is two states an element,
 * and as nodes it is a tree of halves:
 *
 *     rest(a, b)    elements a..b-1, each after a comma        = rest(a, m) rest(m, b)
 *     first(a, b)   at least one of them, the first bare       = first(a, m) rest(m, b)
 *                                                                | first(m, b) if a..m-1 may miss
 *
 * which is linear in size and logarithmic in depth for any number of properties.  Counted lists
 * (minProperties beside optional members) are a table of (element, count) instead.
 *
 * Keys: a declared member's key has one spelling.  Further members have keys out of a language that
 * excludes the declared ones however they are spelled; where patterns decide, only the canonical
 * spelling is allowed, for a pattern cannot see through \u0061.
 */
#include "sample/pn_schema_int.h"

enum { SCHOBJ_TABLE = 8192, SCHOBJ_SETS = 8, SCHOBJ_PREFIX = 4096, SCHOBJ_OPTIONAL = 400 };

/* --- lists ---------------------------------------------------------------------------------------- */

typedef struct schobj_elem {
    pn_gnode node;
    bool optional;
} schobj_elem;

typedef struct schobj_part {
    pn_gnode first, rest;
    bool optional;
} schobj_part;

static pn_gnode schobj_comma(pn_sch *s) { return pn_gir_seq2(s->g, pn_gir_text(s->g, ","), s->ws); }

static pn_gnode schobj_repeat(pn_sch *s, pn_gnode x, uint32_t min, uint32_t max)
{
    return pn_gir_repeat(s->g, pn_gir_seq2(s->g, schobj_comma(s), x), min, max == PN_SCH_MANY ? PN_GIR_MANY : max);
}

static schobj_part schobj_halves(pn_sch *s, const schobj_elem *e, uint32_t a, uint32_t b)
{
    pn_gir *g = s->g;
    schobj_part out;
    if (b - a == 1) {
        const pn_gnode rest = pn_gir_seq2(g, schobj_comma(s), e[a].node);
        out.first = e[a].node;
        out.rest = e[a].optional ? pn_gir_opt(g, rest) : rest;
        out.optional = e[a].optional;
        return out;
    }
    const uint32_t m = a + (b - a) / 2;
    const schobj_part l = schobj_halves(s, e, a, m), r = schobj_halves(s, e, m, b);
    out.rest = pn_gir_seq2(g, l.rest, r.rest);
    out.first = pn_gir_seq2(g, l.first, r.rest);
    if (l.optional)
        out.first = pn_gir_alt2(g, out.first, r.first);
    out.optional = l.optional && r.optional;
    return out;
}

/* After a comma any of the optional elements up to the next one that is not may follow, and a matcher
 * follows all of them: what would break its limit is refused here and not in the middle of a text. */
static bool schobj_runs(pn_sch *s, const schobj_elem *e, uint32_t n, uint32_t at)
{
    uint32_t run = 0;
    for (uint32_t i = 0; i < n; i++) {
        run = e[i].optional ? run + 1 : 0;
        if (run > SCHOBJ_OPTIONAL)
            return pn_sch_fail(s, PN_E_INVALID, at, NULL, "more than %d optional properties in a row", (int)SCHOBJ_OPTIONAL);
    }
    return true;
}

/* Not empty, any number: e[0..n), then any number of tail (NONE: no tail). */
static pn_gnode schobj_list(pn_sch *s, const schobj_elem *e, uint32_t n, pn_gnode tail)
{
    pn_gir *g = s->g;
    pn_gnode more = PN_GNODE_NONE, alone = PN_GNODE_NONE;
    if (tail != PN_GNODE_NONE) {
        more = schobj_repeat(s, tail, 0, PN_SCH_MANY);
        alone = pn_gir_seq2(g, tail, more);
    }
    if (n == 0)
        return tail == PN_GNODE_NONE ? pn_gir_never(g) : alone;
    const schobj_part p = schobj_halves(s, e, 0, n);
    if (tail == PN_GNODE_NONE)
        return p.first;
    const pn_gnode with = pn_gir_seq2(g, p.first, more);
    return p.optional ? pn_gir_alt2(g, with, alone) : with;
}

static uint32_t schobj_minus(uint32_t n, uint32_t k) { return n == PN_SCH_MANY ? n : n > k ? n - k : 0; }

/* What may follow c members at the end of the declared ones. */
static pn_gnode schobj_end(pn_sch *s, pn_gnode tail, uint32_t c, uint32_t min, uint32_t max)
{
    pn_gir *g = s->g;
    if (max != PN_SCH_MANY && c > max)
        return pn_gir_never(g);
    if (tail == PN_GNODE_NONE)
        return c >= min && c > 0 ? pn_gir_empty(g) : pn_gir_never(g);
    if (c > 0)
        return schobj_repeat(s, tail, schobj_minus(min, c), schobj_minus(max, c));
    if (max == 0)
        return pn_gir_never(g);
    return pn_gir_seq2(g, tail, schobj_repeat(s, tail, schobj_minus(min, 1), schobj_minus(max, 1)));
}

/* Not empty, min..max members: row[c] is what may follow when c members are out. */
static pn_gnode schobj_counted(pn_sch *s, const schobj_elem *e, uint32_t n, pn_gnode tail, uint32_t min, uint32_t max,
                               uint32_t at, const char *kw)
{
    pn_gir *g = s->g;
    if (n == 0)
        return schobj_end(s, tail, 0, min, max);
    const uint32_t bound = max == PN_SCH_MANY ? min : max, cap = PN_MIN(bound, n);
    if ((uint64_t)(n + 1) * (cap + 2) > SCHOBJ_TABLE) {
        pn_sch_refuse(s, at, kw, "too many members to count");
        return s->status == PN_OK ? schobj_list(s, e, n, tail) : PN_GNODE_NONE;
    }
    /* Beyond cap: for min alone enough is enough; for max nothing more may come. */
    const bool more = max == PN_SCH_MANY || max > n;
    pn_gnode *row = pn_sch_alloc(s, (uint64_t)cap + 2, sizeof *row);
    if (!row)
        return PN_GNODE_NONE;
    for (uint32_t c = 0; c <= cap; c++)
        row[c] = schobj_end(s, tail, c, min, max);
    row[cap + 1] = more ? row[cap] : pn_gir_never(g);
    for (uint32_t i = n; i-- > 0;) {
        for (uint32_t c = 0; c <= cap; c++) {
            const pn_gnode item = c ? pn_gir_seq2(g, schobj_comma(s), e[i].node) : e[i].node;
            const pn_gnode take = pn_gir_seq2(g, item, c == cap && more ? row[cap] : row[c + 1]);
            row[c] = e[i].optional ? pn_gir_alt2(g, take, row[c]) : take;
        }
        row[cap + 1] = more ? row[cap] : pn_gir_never(g);
    }
    return row[0];
}

/* open ws (close | list ws close); list NONE or never: only the empty form. */
static pn_gnode schobj_wrap(pn_sch *s, const char *open, const char *close, pn_gnode list, bool may_be_empty)
{
    pn_gir *g = s->g;
    pn_gnode inside = pn_gir_seq3(g, list, s->ws, pn_gir_text(g, close));
    if (may_be_empty)
        inside = pn_gir_alt2(g, inside, pn_gir_text(g, close));
    return pn_gir_seq3(g, pn_gir_text(g, open), s->ws, inside);
}

/* --- objects: joining ------------------------------------------------------------------------------- */

typedef struct schobj_pattern {
    pn_bytes text;
    pn_gnode node;
    uint32_t at, value;         /* where it is first written, for messages */
} schobj_pattern;

typedef struct schobj_base {    /* what a base node has to say about keys: asked for each of them */
    uint32_t props, patterns, additional;
} schobj_base;

typedef struct schobj {
    pn_sch *s;
    pn_sch_leaf *l;
    pn_map index;               /* key to number of the property */
    uint32_t cap_props, n_declared;
    schobj_base *bases;         /* [l->n_base] */
    schobj_pattern *patterns;
    uint32_t n_patterns;
    bool has_patterns;
    pn_gnode names;             /* keys that propertyNames allows; NONE: all */
} schobj;

static pn_sch_prop *schobj_prop(schobj *o, uint32_t node, pn_bytes key)
{
    pn_sch *s = o->s;
    pn_sch_leaf *l = o->l;
    bool existed;
    const uint32_t *slot = pn_map_put(&o->index, key.data, key.len, l->n_props, &existed);
    if (!slot)
        return pn_sch_nomem(s), NULL;
    if (existed)
        return &l->props[*slot];
    if (l->n_props == 5000 || s->n_props == 20000) {
        pn_sch_fail(s, PN_E_INVALID, node, "properties", "more than %s", l->n_props == 5000 ? "5000 properties in one object"
                                                                                          : "20000 properties in all");
        return NULL;
    }
    if (l->n_props == o->cap_props) {
        const uint32_t cap = o->cap_props ? o->cap_props * 2 : 8;
        pn_sch_prop *grown = pn_sch_alloc(s, cap, sizeof *grown);
        if (!grown)
            return NULL;
        if (l->n_props)
            memcpy(grown, l->props, l->n_props * sizeof *grown);
        l->props = grown;
        o->cap_props = cap;
    }
    s->n_props++;
    pn_sch_prop *p = &l->props[l->n_props++];
    p->key = key;
    p->goal = PN_SCH_NONE;
    return p;
}

static bool schobj_expect(pn_sch *s, uint32_t node, const char *kw, uint32_t value, pn_json_type type)
{
    const pn_json_type is = pn_json_type_of(s->d, value);
    return is == type || pn_sch_fail(s, PN_E_INVALID, node, kw, "expected an %s, found %s", pn_json_type_name(type),
                                     pn_json_type_name(is));
}

static bool schobj_declare(schobj *o)
{
    pn_sch *s = o->s;
    for (uint32_t i = 0; i < o->l->n_base; i++) {
        const uint32_t b = o->l->base[i], props = pn_json_get(s->d, b, "properties");
        if (props == PN_JSON_NONE)
            continue;
        if (!schobj_expect(s, b, "properties", props, PN_JSON_OBJECT))
            return false;
        for (uint32_t c = pn_json_first(s->d, props); c != PN_JSON_NONE; c = pn_json_next(s->d, c))
            if (!pn_sch_steps(s, b, 8 + pn_json_key_of(s->d, c).len / 8) || !schobj_prop(o, b, pn_json_key_of(s->d, c)))
                return false;
    }
    o->n_declared = o->l->n_props;
    return true;
}

static bool schobj_require(schobj *o)
{
    pn_sch *s = o->s;
    for (uint32_t i = 0; i < o->l->n_base; i++) {
        const uint32_t b = o->l->base[i], req = pn_json_get(s->d, b, "required");
        bool draft3;
        if (req == PN_JSON_NONE || pn_json_bool(s->d, req, &draft3))
            continue;                           /* draft 3 had a boolean here, which others ignore */
        if (!schobj_expect(s, b, "required", req, PN_JSON_ARRAY))
            return false;
        for (uint32_t c = pn_json_first(s->d, req); c != PN_JSON_NONE; c = pn_json_next(s->d, c)) {
            pn_bytes key;
            if (!pn_json_str(s->d, c, &key))
                return pn_sch_fail(s, PN_E_INVALID, b, "required", "expected names, found %s", pn_sch_kind(s, c));
            if (!pn_sch_steps(s, b, 4 + key.len / 8))
                return false;
            pn_sch_prop *p = schobj_prop(o, b, key);
            if (!p)
                return false;
            p->required = true;
        }
    }
    return true;
}

static bool schobj_pattern_known(const schobj *o, pn_bytes text)
{
    for (uint32_t i = 0; i < o->n_patterns; i++)
        if (o->patterns[i].text.len == text.len && memcmp(o->patterns[i].text.data, text.data, text.len) == 0)
            return true;
    return false;
}

static bool schobj_patterns(schobj *o)
{
    pn_sch *s = o->s;
    uint64_t most = 0;
    for (uint32_t i = 0; i < o->l->n_base; i++)
        most += pn_json_count(s->d, pn_json_get(s->d, o->l->base[i], "patternProperties"));
    o->patterns = pn_sch_alloc(s, most + 1, sizeof *o->patterns);
    if (!o->patterns)
        return false;
    for (uint32_t i = 0; i < o->l->n_base; i++) {
        const uint32_t b = o->l->base[i], pats = pn_json_get(s->d, b, "patternProperties");
        if (pats == PN_JSON_NONE)
            continue;
        if (!schobj_expect(s, b, "patternProperties", pats, PN_JSON_OBJECT))
            return false;
        for (uint32_t c = pn_json_first(s->d, pats); c != PN_JSON_NONE; c = pn_json_next(s->d, c)) {
            bool dropped = false;
            const pn_bytes text = pn_json_key_of(s->d, c);
            o->has_patterns = true;
            if (schobj_pattern_known(o, text))
                continue;
            if (o->n_patterns == 64)
                return pn_sch_fail(s, PN_E_INVALID, b, "patternProperties", "more than 64 patterns");
            schobj_pattern *p = &o->patterns[o->n_patterns];
            p->text = text;
            p->at = b;
            p->value = c;
            p->node = pn_sch_pattern(s, b, "patternProperties", text, &dropped);
            if (!dropped && !pn_sch_built(s, b, "patternProperties"))
                return false;
            o->n_patterns += !dropped;
        }
    }
    return true;
}

static bool schobj_disjoint(schobj *o)
{
    pn_sch *s = o->s;
    for (uint32_t i = 0; i < o->n_patterns; i++)
        for (uint32_t k = 0; k < i; k++) {
            const bool apart = pn_gir_is_never(s->g, pn_gir_and(s->g, o->patterns[i].node, o->patterns[k].node));
            if (!pn_sch_built(s, o->patterns[i].at, "patternProperties"))
                return false;
            if (!apart && !pn_sch_refuse(s, o->patterns[i].at, "patternProperties", "two of its patterns match the same key"))
                return false;
        }
    return true;
}

static bool schobj_names(schobj *o)
{
    pn_sch *s = o->s;
    uint32_t *nodes = pn_sch_alloc(s, (uint64_t)o->l->n_base + 1, sizeof *nodes), n = 0;
    if (!nodes)
        return false;
    for (uint32_t i = 0; i < o->l->n_base; i++) {
        const uint32_t v = pn_json_get(s->d, o->l->base[i], "propertyNames");
        if (v == PN_JSON_NONE)
            continue;
        if (!pn_sch_is_schema(s, v))
            return false;
        nodes[n++] = v;
    }
    if (n > 0)
        o->names = pn_sch_names(s, nodes, n);
    return n == 0 || pn_sch_built(s, nodes[0], NULL);
}

static bool schobj_key_in(schobj *o, pn_bytes key, pn_gnode language)
{
    return !pn_gir_is_never(o->s->g, pn_gir_and(o->s->g, pn_sch_text(o->s, key), language));
}

/* What base node b says about a key that stands in `pattern`s of it or nowhere: its schemas are
 * appended to nodes.  closed: it says no. */
static bool schobj_about(schobj *o, const schobj_base *b, pn_bytes key, uint32_t **nodes, uint32_t *n, bool *known, bool *closed)
{
    pn_sch *s = o->s;
    const uint32_t here = pn_json_find(s->d, b->props, key.data, key.len), add = b->additional;
    bool mine = here != PN_JSON_NONE;
    if (mine)
        (*nodes)[(*n)++] = here;
    for (uint32_t i = 0; i < o->n_patterns && b->patterns != PN_JSON_NONE; i++) {
        const uint32_t v = pn_json_find(s->d, b->patterns, o->patterns[i].text.data, o->patterns[i].text.len);
        if (v == PN_JSON_NONE || !schobj_key_in(o, key, o->patterns[i].node))
            continue;
        (*nodes)[(*n)++] = v;
        mine = true;
    }
    *known |= mine;
    bool open;
    if (mine || add == PN_JSON_NONE)
        return true;
    if (!pn_sch_is_schema(s, add))
        return false;
    if (!pn_json_bool(s->d, add, &open))
        (*nodes)[(*n)++] = add;
    else
        *closed |= !open;
    return true;
}

/* The goal of each property: every base node has its say. */
static bool schobj_goals(schobj *o)
{
    pn_sch *s = o->s;
    pn_sch_leaf *l = o->l;
    uint32_t *nodes = pn_sch_alloc(s, (uint64_t)l->n_base * (o->n_patterns + 2) + 1, sizeof *nodes);
    o->bases = pn_sch_alloc(s, (uint64_t)l->n_base + 1, sizeof *o->bases);
    if (!nodes || !o->bases)
        return false;
    for (uint32_t k = 0; k < l->n_base; k++)
        o->bases[k] = (schobj_base){pn_json_get(s->d, l->base[k], "properties"), pn_json_get(s->d, l->base[k], "patternProperties"),
                                    pn_json_get(s->d, l->base[k], "additionalProperties")};
    for (uint32_t i = 0; i < l->n_props; i++) {
        pn_sch_prop *p = &l->props[i];
        uint32_t n = 0;
        bool known = false, closed = false;
        if (!pn_sch_steps(s, l->base[0], 4 + (2 + p->key.len / 16) * (uint64_t)l->n_base))
            return false;
        for (uint32_t k = 0; k < l->n_base; k++)
            if (!schobj_about(o, &o->bases[k], p->key, &nodes, &n, &known, &closed))
                return false;
        for (uint32_t k = 0; k < n; k++)
            if (!pn_sch_is_schema(s, nodes[k]))
                return false;
        p->goal = pn_sch_goal_for(s, nodes, n);
        if (p->goal == PN_SCH_NONE)
            return false;
        p->forbidden = (!known && closed) || (o->names != PN_GNODE_NONE && !schobj_key_in(o, p->key, o->names));
        if (!pn_sch_built(s, l->base[0], NULL))
            return false;
        l->never |= p->forbidden && p->required;
    }
    return true;
}

static pn_gnode schobj_other_keys(schobj *o, pn_gnode among)
{
    pn_sch *s = o->s;
    const pn_sch_leaf *l = o->l;
    if (o->names != PN_GNODE_NONE)
        among = among == PN_GNODE_NONE ? o->names : pn_gir_and(s->g, among, o->names);
    if (l->n_props == 0)
        return among == PN_GNODE_NONE ? pn_sch_chars(s, 0, PN_GIR_MANY) : among;
    pn_bytes *keys = pn_sch_alloc(s, l->n_props, sizeof *keys);
    if (!keys)
        return PN_GNODE_NONE;
    for (uint32_t i = 0; i < l->n_props; i++)
        keys[i] = l->props[i].key;
    const pn_gnode others = pn_sch_not(s, keys, l->n_props);
    return among == PN_GNODE_NONE ? others : pn_gir_and(s->g, among, others);
}

static bool schobj_add_class(schobj *o, pn_gnode body, const uint32_t *nodes, uint32_t n)
{
    pn_sch *s = o->s;
    if (!pn_sch_built(s, o->l->base[0], NULL))
        return false;
    if (pn_gir_is_never(s->g, body))
        return pn_sch_built(s, o->l->base[0], NULL);
    for (uint32_t i = 0; i < n; i++)
        if (!pn_sch_is_schema(s, nodes[i]))
            return false;
    const uint32_t goal = pn_sch_goal_for(s, nodes, n);
    if (goal == PN_SCH_NONE)
        return false;
    o->l->classes[o->l->n_classes].body = body;
    o->l->classes[o->l->n_classes++].goal = goal;
    return true;
}

/* Members whose keys match a pattern. */
static bool schobj_pattern_classes(schobj *o, uint32_t *nodes)
{
    pn_sch *s = o->s;
    const pn_sch_leaf *l = o->l;
    for (uint32_t i = 0; i < o->n_patterns; i++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < l->n_base; k++) {
            const uint32_t add = pn_json_get(s->d, l->base[k], "additionalProperties");
            const uint32_t v = pn_json_find(s->d, pn_json_get(s->d, l->base[k], "patternProperties"), o->patterns[i].text.data,
                                            o->patterns[i].text.len);
            if (v != PN_JSON_NONE)
                nodes[n++] = v;
            else if (pn_json_type_of(s->d, add) == PN_JSON_OBJECT)
                nodes[n++] = add;
        }
        if (!schobj_add_class(o, schobj_other_keys(o, o->patterns[i].node), nodes, n))
            return false;
    }
    return true;
}

/* All other members, if there may be any. */
static bool schobj_additional(schobj *o, uint32_t *nodes)
{
    static const char *const kws[] = {"additionalProperties", "unevaluatedProperties"};
    pn_sch *s = o->s;
    const pn_sch_leaf *l = o->l;
    uint32_t n = 0;
    bool said = false;
    for (uint32_t k = 0; k < l->n_base; k++)
        for (size_t w = 0; w < PN_COUNT_OF(kws); w++) {
            const uint32_t add = pn_json_get(s->d, l->base[k], kws[w]);
            bool open;
            if (add == PN_JSON_NONE)
                continue;
            if (!pn_sch_is_schema(s, add))
                return false;
            said = true;
            if (!pn_json_bool(s->d, add, &open))
                nodes[n++] = add;
            else if (!open)
                return true;
        }
    if (!said && (o->n_declared > 0 || o->has_patterns) && l->min_props <= l->n_props)
        return true;                                    /* closed unless it says otherwise */
    pn_gnode among = PN_GNODE_NONE;
    if (o->n_patterns > 0) {
        static const char all[] = "[\\s\\S]*";
        pn_err e;
        pn_gnode *pats = pn_sch_alloc(s, o->n_patterns, sizeof *pats);
        if (!pats)
            return false;
        for (uint32_t i = 0; i < o->n_patterns; i++)
            pats[i] = o->patterns[i].node;
        const pn_status status = pn_gir_regex(s->g, all, sizeof all - 1, PN_REGEX_JSON, &among, &e);
        if (status != PN_OK)
            return pn_sch_fail(s, status, l->base[0], NULL, "%.200s", e.text);
        among = pn_gir_and_not(s->g, among, pn_gir_alt(s->g, pats, o->n_patterns));
    }
    return schobj_add_class(o, schobj_other_keys(o, among), nodes, n);
}

static bool schobj_counts(pn_sch *s, pn_sch_leaf *l)
{
    for (uint32_t i = 0; i < l->n_base; i++) {
        const uint32_t b = l->base[i], lo = pn_json_get(s->d, b, "minProperties"), hi = pn_json_get(s->d, b, "maxProperties");
        uint32_t n;
        if (lo != PN_JSON_NONE) {
            if (!pn_sch_count(s, b, "minProperties", lo, &n))
                return false;
            if (n == PN_SCH_MANY)
                return pn_sch_fail(s, PN_E_INVALID, b, "minProperties", "at most %u", (unsigned)PN_SCH_COUNT_MAX);
            l->min_props = PN_MAX(l->min_props, n);
        }
        if (hi != PN_JSON_NONE) {
            if (!pn_sch_count(s, b, "maxProperties", hi, &n))
                return false;
            l->max_props = PN_MIN(l->max_props, PN_MIN(n, PN_SCH_COUNT_MAX));
        }
    }
    return true;
}

PN_INTERNAL bool pn_sch_join_object(pn_sch *s, pn_sch_leaf *l)
{
    schobj o;
    memset(&o, 0, sizeof o);
    o.s = s;
    o.l = l;
    pn_map_init(&o.index, s->mem, PN_ACCT_GRAMMAR);
    bool ok = schobj_declare(&o) && schobj_require(&o) && schobj_patterns(&o) && schobj_disjoint(&o) && schobj_names(&o) &&
              schobj_goals(&o) && schobj_counts(s, l);
    l->classes = ok ? pn_sch_alloc(s, (uint64_t)o.n_patterns + 1, sizeof *l->classes) : NULL;
    uint32_t *nodes = ok ? pn_sch_alloc(s, 2 * (uint64_t)l->n_base + 1, sizeof *nodes) : NULL;
    ok = ok && l->classes && nodes && schobj_pattern_classes(&o, nodes) && schobj_additional(&o, nodes);
    pn_map_fini(&o.index);
    return ok;
}

/* --- objects: emitting -------------------------------------------------------------------------------- */

PN_INTERNAL bool pn_sch_object_sat(pn_sch *s, const pn_sch_leaf *l)
{
    uint32_t n = 0, required = 0;
    for (uint32_t i = 0; i < l->n_props; i++) {
        const pn_sch_prop *p = &l->props[i];
        const bool sat = !p->forbidden && s->goals[p->goal].sat;
        if (p->required && !sat)
            return false;
        n += sat;
        required += p->required;
    }
    bool more = false;
    for (uint32_t i = 0; i < l->n_classes; i++)
        more |= s->goals[l->classes[i].goal].sat;
    return required <= l->max_props && l->min_props <= l->max_props && (more || n >= l->min_props);
}

static pn_gnode schobj_member(pn_sch *s, pn_gnode body, uint32_t goal)
{
    pn_gir *g = s->g;
    return pn_gir_seq3(g, pn_sch_key(s, body), s->ws, s->goals[goal].node);
}

static pn_gnode schobj_others(pn_sch *s, const pn_sch_leaf *l)
{
    pn_gnode *alts = pn_sch_alloc(s, (uint64_t)l->n_classes + 1, sizeof *alts);
    uint32_t n = 0;
    for (uint32_t i = 0; alts && i < l->n_classes; i++)
        if (s->goals[l->classes[i].goal].sat)
            alts[n++] = schobj_member(s, l->classes[i].body, l->classes[i].goal);
    return n ? pn_gir_alt(s->g, alts, n) : PN_GNODE_NONE;
}

PN_INTERNAL pn_gnode pn_sch_emit_object(pn_sch *s, const pn_sch_leaf *l)
{
    schobj_elem *e = pn_sch_alloc(s, (uint64_t)l->n_props + 1, sizeof *e);
    uint32_t n = 0, required = 0;
    if (!e)
        return PN_GNODE_NONE;
    for (uint32_t i = 0; i < l->n_props; i++) {
        const pn_sch_prop *p = &l->props[i];
        if (p->forbidden || !s->goals[p->goal].sat)
            continue;
        e[n].optional = !p->required;
        e[n++].node = schobj_member(s, pn_sch_text(s, p->key), p->goal);
        required += p->required;
    }
    if (!schobj_runs(s, e, n, l->base[0]))
        return PN_GNODE_NONE;
    const pn_gnode tail = schobj_others(s, l);
    const bool counts = l->min_props > required || (l->max_props != PN_SCH_MANY && (tail != PN_GNODE_NONE || l->max_props < n));
    pn_gnode list;
    if (!counts) {
        list = schobj_list(s, e, n, tail);
    } else if (required == n && n > 0) {
        list = schobj_list(s, e, n, PN_GNODE_NONE);
        if (tail != PN_GNODE_NONE)
            list = pn_gir_seq2(s->g, list, schobj_repeat(s, tail, schobj_minus(l->min_props, n), schobj_minus(l->max_props, n)));
    } else {
        const char *kw = l->min_props > required ? "minProperties" : "maxProperties";
        list = schobj_counted(s, e, n, tail, l->min_props, l->max_props, l->base[0], kw);
    }
    return schobj_wrap(s, "{", "}", list, required == 0 && l->min_props == 0);
}

/* --- arrays --------------------------------------------------------------------------------------------- */

static bool schobj_item_counts(pn_sch *s, pn_sch_leaf *l)
{
    for (uint32_t i = 0; i < l->n_base; i++) {
        const uint32_t b = l->base[i], lo = pn_json_get(s->d, b, "minItems"), hi = pn_json_get(s->d, b, "maxItems");
        bool unique = false;
        uint32_t n;
        if (lo != PN_JSON_NONE) {
            if (!pn_sch_count(s, b, "minItems", lo, &n))
                return false;
            if (n == PN_SCH_MANY)
                return pn_sch_fail(s, PN_E_INVALID, b, "minItems", "at most %u", (unsigned)PN_SCH_COUNT_MAX);
            l->min_items = PN_MAX(l->min_items, n);
        }
        if (hi != PN_JSON_NONE) {
            if (!pn_sch_count(s, b, "maxItems", hi, &n))
                return false;
            l->max_items = PN_MIN(l->max_items, PN_MIN(n, PN_SCH_COUNT_MAX));
        }
        if (pn_json_bool(s->d, pn_json_get(s->d, b, "uniqueItems"), &unique) && unique)
            l->unique = b;
    }
    return true;
}

/* The list of first elements and the schema of the others, in the new spelling or the old one. */
static bool schobj_item_nodes(pn_sch *s, uint32_t b, uint32_t *prefix, uint32_t *items)
{
    *prefix = pn_json_get(s->d, b, "prefixItems");
    *items = pn_json_get(s->d, b, "items");
    if (pn_json_type_of(s->d, *items) == PN_JSON_ARRAY) {
        *prefix = *items;
        *items = pn_json_get(s->d, b, "additionalItems");
    }
    if (*items == PN_JSON_NONE)
        *items = pn_json_get(s->d, b, "unevaluatedItems");
    if (*prefix != PN_JSON_NONE && !schobj_expect(s, b, "prefixItems", *prefix, PN_JSON_ARRAY))
        return false;
    return *items == PN_JSON_NONE || pn_sch_is_schema(s, *items);
}

PN_INTERNAL bool pn_sch_join_array(pn_sch *s, pn_sch_leaf *l)
{
    const uint32_t nb = l->n_base;
    uint32_t *at = pn_sch_alloc(s, (uint64_t)nb + 1, sizeof *at), *items = pn_sch_alloc(s, (uint64_t)nb + 1, sizeof *items);
    uint32_t *nodes = pn_sch_alloc(s, (uint64_t)nb + 1, sizeof *nodes), n = 0;
    bool said = false;
    if (!at || !items || !nodes || !schobj_item_counts(s, l))
        return false;
    for (uint32_t i = 0; i < nb; i++) {
        uint32_t prefix;
        if (!schobj_item_nodes(s, l->base[i], &prefix, &items[i]))
            return false;
        at[i] = pn_json_first(s->d, prefix);
        l->n_prefix = PN_MAX(l->n_prefix, pn_json_count(s->d, prefix));
        said |= items[i] != PN_JSON_NONE;
    }
    if (l->n_prefix > SCHOBJ_PREFIX)
        return pn_sch_fail(s, PN_E_INVALID, l->base[0], "prefixItems", "more than %d", (int)SCHOBJ_PREFIX);
    l->prefix = pn_sch_alloc(s, (uint64_t)l->n_prefix + 1, sizeof *l->prefix);
    if (!l->prefix)
        return false;
    for (uint32_t k = 0; k <= l->n_prefix; k++) {       /* the last turn is for what follows */
        n = 0;
        if (!pn_sch_steps(s, l->base[0], 4 + nb / 4))
            return false;
        for (uint32_t i = 0; i < nb; i++) {
            const uint32_t node = at[i] != PN_JSON_NONE ? at[i] : items[i];
            if (node == PN_JSON_NONE)
                continue;
            if (!pn_sch_is_schema(s, node))
                return false;
            nodes[n++] = node;
            if (at[i] != PN_JSON_NONE)
                at[i] = pn_json_next(s->d, at[i]);
        }
        if (k == l->n_prefix && l->n_prefix > 0 && !said && l->min_items <= l->n_prefix)
            break;                                      /* a tuple ends with its last element */
        const uint32_t goal = pn_sch_goal_for(s, nodes, n);
        if (goal == PN_SCH_NONE)
            return false;
        *(k < l->n_prefix ? &l->prefix[k] : &l->items) = goal;
    }
    return true;
}

/* How many elements there may be when goals without a value end the array. */
static uint32_t schobj_most(const pn_sch *s, const pn_sch_leaf *l, uint32_t *n_prefix)
{
    *n_prefix = l->n_prefix;
    for (uint32_t i = 0; i < l->n_prefix; i++)
        if (!s->goals[l->prefix[i]].sat) {
            *n_prefix = i;
            return PN_MIN(l->max_items, i);
        }
    if (l->items == PN_SCH_NONE || !s->goals[l->items].sat)
        return PN_MIN(l->max_items, l->n_prefix);
    return l->max_items;
}

PN_INTERNAL bool pn_sch_array_sat(pn_sch *s, const pn_sch_leaf *l)
{
    uint32_t n_prefix, *values, n;
    const uint32_t most = schobj_most(s, l, &n_prefix);
    if (l->unique != PN_SCH_NONE && l->min_items > 1 && l->n_prefix == 0 && l->items != PN_SCH_NONE &&
        pn_sch_enumerate(s, l->items, &values, &n) && n < l->min_items)
        return false;
    return l->min_items <= most;
}

/* All orders of distinct values: what may follow depends on the set of those already out. */
static pn_gnode schobj_sets(pn_sch *s, const schobj_elem *e, uint32_t n, uint32_t min, uint32_t max)
{
    pn_gir *g = s->g;
    pn_gnode after[1 << SCHOBJ_SETS], alts[SCHOBJ_SETS + 1];
    for (uint32_t set = 1u << n; set-- > 0;) {
        uint32_t size = 0, k = 0;
        for (uint32_t i = 0; i < n; i++)
            size += set >> i & 1;
        for (uint32_t i = 0; i < n && size < max; i++)
            if (!(set >> i & 1)) {
                const pn_gnode item = set ? pn_gir_seq2(g, schobj_comma(s), e[i].node) : e[i].node;
                alts[k++] = pn_gir_seq2(g, item, after[set | 1u << i]);
            }
        if (set && size >= min)
            alts[k++] = pn_gir_empty(g);
        after[set] = pn_gir_alt(g, alts, k);
    }
    return after[0];
}

/* Distinct elements.  Few values: any order; many: in the order of the enumeration, like members. */
static pn_gnode schobj_unique(pn_sch *s, const pn_sch_leaf *l, uint32_t max)
{
    uint32_t *values, n;
    if (l->n_prefix > 0 || !pn_sch_enumerate(s, l->items, &values, &n)) {
        pn_sch_refuse(s, l->unique, "uniqueItems", "its elements are not an enumeration");
        return PN_GNODE_NONE;
    }
    schobj_elem *e = pn_sch_alloc(s, (uint64_t)n + 1, sizeof *e);
    for (uint32_t i = 0; e && i < n; i++) {
        e[i].node = pn_sch_value(s, values[i]);
        e[i].optional = true;
    }
    if (!e || !schobj_runs(s, e, n, l->unique))
        return PN_GNODE_NONE;
    if (n <= SCHOBJ_SETS)
        return schobj_sets(s, e, n, l->min_items, max);
    if (l->min_items <= 1 && max >= n)
        return schobj_list(s, e, n, PN_GNODE_NONE);
    return schobj_counted(s, e, n, PN_GNODE_NONE, l->min_items, max, l->unique, "uniqueItems");
}

static pn_gnode schobj_elements(pn_sch *s, const pn_sch_leaf *l, uint32_t n_prefix, uint32_t max)
{
    pn_gir *g = s->g;
    const bool more = max > n_prefix;
    const uint32_t min = l->min_items;
    if (n_prefix == 0) {
        const pn_gnode item = s->goals[l->items].node;
        return pn_gir_seq2(g, item, schobj_repeat(s, item, schobj_minus(min, 1), schobj_minus(max, 1)));
    }
    n_prefix = PN_MIN(n_prefix, max);
    pn_gnode list = pn_gir_empty(g);
    if (more)
        list = schobj_repeat(s, s->goals[l->items].node, schobj_minus(min, n_prefix), schobj_minus(max, n_prefix));
    for (uint32_t i = n_prefix; i-- > 1;) {
        list = pn_gir_seq3(g, schobj_comma(s), s->goals[l->prefix[i]].node, list);
        if (i >= min)
            list = pn_gir_opt(g, list);
    }
    return pn_gir_seq2(g, s->goals[l->prefix[0]].node, list);
}

PN_INTERNAL pn_gnode pn_sch_emit_array(pn_sch *s, const pn_sch_leaf *l)
{
    uint32_t n_prefix;
    const uint32_t max = schobj_most(s, l, &n_prefix);
    pn_gnode list = PN_GNODE_NONE;
    if (max == 0)
        return schobj_wrap(s, "[", "]", pn_gir_never(s->g), true);
    if (l->unique != PN_SCH_NONE && max > 1)
        list = schobj_unique(s, l, max);
    if (s->status != PN_OK)
        return PN_GNODE_NONE;
    if (list == PN_GNODE_NONE)
        list = schobj_elements(s, l, n_prefix, max);
    return schobj_wrap(s, "[", "]", list, l->min_items == 0);
}
