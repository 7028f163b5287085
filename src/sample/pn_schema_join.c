/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_schema_join.c - one leaf: what the keywords of several schema nodes add up to.
 *
 * Types first (what the nodes say, else what their keywords speak about), then per remaining type
 * the keywords of that type: bounds become tighter, lengths too, patterns and formats are
 * intersected, enumerations are intersected and filtered by everything else.  Keywords of types
 * that the leaf cannot have are skipped, which is what JSON Schema says about them.
 *
 * A keyword that cannot be enforced is looked at last, when it is known whether it matters.
 */
#include "sample/pn_schema_int.h"

typedef struct schjoin_late {   /* to be refused when the leaf has one of these types */
    uint32_t node, types;
    const char *kw, *why;
} schjoin_late;

enum { SCHJOIN_LATE = 16 };     /* the first few are enough to refuse; when lenient, to report */

typedef struct schjoin {
    pn_sch *s;
    pn_sch_leaf *l;
    bool names_only;
    bool typed;
    uint32_t implied, removed;  /* types that keywords speak about; that `not` takes away */
    uint32_t *nots;             /* [n_nots] values that are forbidden */
    uint32_t n_nots, cap_nots;
    uint32_t not_node;          /* the schema node that forbids them */
    schjoin_late late[SCHJOIN_LATE];
    uint32_t n_late;
} schjoin;

static void schjoin_defer(schjoin *j, uint32_t node, const char *kw, uint32_t types, const char *why)
{
    if (j->n_late < SCHJOIN_LATE) {
        const schjoin_late late = {node, types, kw, why};
        j->late[j->n_late++] = late;
    }
}

/* --- types -------------------------------------------------------------------------------------- */

static bool schjoin_type_name(schjoin *j, uint32_t node, uint32_t value, uint32_t *types)
{
    static const struct schjoin_name {
        const char *name;
        uint32_t types;
    } names[] = {
        {"string", PN_SCH_STR}, {"number", PN_SCH_NUMBER}, {"integer", PN_SCH_INT}, {"object", PN_SCH_OBJ},
        {"array", PN_SCH_ARR}, {"boolean", PN_SCH_BOOL}, {"null", PN_SCH_NULL},
    };
    pn_bytes t = {"", 0};
    if (pn_json_str(j->s->d, value, &t)) {
        for (size_t i = 0; i < PN_COUNT_OF(names); i++)
            if (t.len == strlen(names[i].name) && memcmp(t.data, names[i].name, t.len) == 0) {
                *types |= names[i].types;
                return true;
            }
        return pn_sch_fail(j->s, PN_E_INVALID, node, "type", "expected string, number, integer, object, array, boolean or null, "
                                                             "found \"%.60s\"", t.data);
    }
    pn_json_num(j->s->d, value, &t);
    return pn_sch_fail(j->s, PN_E_INVALID, node, "type", "expected the name of a type, found %s %.40s",
                       pn_sch_kind(j->s, value), t.data);
}

static bool schjoin_type(schjoin *j, uint32_t node, uint32_t value, uint32_t *types)
{
    const pn_json_doc *d = j->s->d;
    bool nullable;
    *types = 0;
    if (pn_json_type_of(d, value) == PN_JSON_ARRAY) {
        for (uint32_t c = pn_json_first(d, value); c != PN_JSON_NONE; c = pn_json_next(d, c))
            if (!schjoin_type_name(j, node, c, types))
                return false;
    } else if (!schjoin_type_name(j, node, value, types)) {
        return false;
    }
    if (pn_json_bool(d, pn_json_get(d, node, "nullable"), &nullable) && nullable)       /* OpenAPI 3.0 */
        *types |= PN_SCH_NULL;
    return true;
}

/* --- enumerations --------------------------------------------------------------------------------- */

static bool schjoin_charge(schjoin *j, uint32_t node, uint32_t value)
{
    pn_sch *s = j->s;
    pn_bytes t = {"", 0};
    pn_json_str(s->d, value, &t);
    s->value_bytes += t.len;
    if (++s->n_values > 20000)
        return pn_sch_fail(s, PN_E_INVALID, node, "enum", "more than 20000 enum values in all");
    if (s->value_bytes > (1u << 20))
        return pn_sch_fail(s, PN_E_INVALID, node, "enum", "more than 1048576 bytes of enum values in all");
    return true;
}

/* Cut the leaf's values down to list[0..n). */
static bool schjoin_values(schjoin *j, uint32_t node, uint32_t *list, uint32_t n)
{
    pn_sch_leaf *l = j->l;
    if (!l->is_enum) {
        l->is_enum = true;
        l->values = list;
        l->n_values = n;
        return true;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->n_values; i++) {
        if (!pn_sch_steps(j->s, node, n / 2 + 1))
            return false;
        bool in = false;
        for (uint32_t k = 0; k < n && !in; k++)
            in = pn_sch_equal(j->s, l->values[i], list[k]);
        if (in)
            l->values[kept++] = l->values[i];
    }
    l->n_values = kept;
    return j->s->status == PN_OK;
}

static bool schjoin_enum(schjoin *j, uint32_t node, uint32_t value, bool is_const)
{
    const pn_json_doc *d = j->s->d;
    if (!is_const && pn_json_type_of(d, value) != PN_JSON_ARRAY)
        return pn_sch_fail(j->s, PN_E_INVALID, node, "enum", "expected an array, found %s", pn_sch_kind(j->s, value));
    const uint32_t n = is_const ? 1 : pn_json_count(d, value);
    uint32_t *list = pn_sch_alloc(j->s, (uint64_t)n + 1, sizeof *list), k = 0;
    if (!list)
        return false;
    for (uint32_t c = is_const ? value : pn_json_first(d, value); k < n; c = is_const ? c : pn_json_next(d, c)) {
        if (!schjoin_charge(j, node, c))
            return false;
        list[k++] = c;
    }
    return schjoin_values(j, node, list, n);
}

/* --- not -------------------------------------------------------------------------------------------- */

static bool schjoin_not_value(schjoin *j, uint32_t node, uint32_t value)
{
    if (j->n_nots == j->cap_nots) {
        const uint32_t cap = j->cap_nots ? j->cap_nots * 2 : 16;
        uint32_t *grown = pn_sch_alloc(j->s, cap, sizeof *grown);
        if (!grown)
            return false;
        if (j->n_nots)
            memcpy(grown, j->nots, j->n_nots * sizeof *grown);
        j->nots = grown;
        j->cap_nots = cap;
    }
    j->not_node = node;
    j->nots[j->n_nots++] = value;
    return schjoin_charge(j, node, value);
}

/* `not` of a type takes types away; of values, those values; of everything, everything. */
static bool schjoin_not(schjoin *j, uint32_t node, uint32_t sub)
{
    const pn_json_doc *d = j->s->d;
    bool truth;
    uint32_t types = PN_SCH_ANY, n_kw = 0;
    if (!pn_sch_is_schema(j->s, sub))
        return false;
    if (pn_json_bool(d, sub, &truth)) {
        j->l->never |= truth;
        return true;
    }
    for (uint32_t c = pn_json_first(d, sub); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        const pn_sch_kw kw = pn_sch_keyword(pn_json_key_of(d, c), NULL);
        n_kw += kw != PN_SCH_K_NOTE && kw != PN_SCH_K_NULLABLE;
    }
    const uint32_t type = pn_json_get(d, sub, "type"), one = pn_json_get(d, sub, "const"), many = pn_json_get(d, sub, "enum");
    const uint32_t n_known = (type != PN_JSON_NONE) + (one != PN_JSON_NONE) + (many != PN_JSON_NONE);
    if (n_kw == 0) {
        j->l->never = true;
        return true;
    }
    if (n_kw != n_known || (one != PN_JSON_NONE && many != PN_JSON_NONE)) {
        schjoin_defer(j, node, "not", PN_SCH_ANY, "only not {}, enum, const and type");
        return true;
    }
    if (type != PN_JSON_NONE && !schjoin_type(j, sub, type, &types))
        return false;
    if (one == PN_JSON_NONE && many == PN_JSON_NONE) {
        j->removed |= types;
        return true;
    }
    if (many != PN_JSON_NONE && pn_json_type_of(d, many) != PN_JSON_ARRAY)
        return pn_sch_fail(j->s, PN_E_INVALID, sub, "enum", "expected an array");
    if (one != PN_JSON_NONE && (pn_sch_value_type(j->s, one) & types) && !schjoin_not_value(j, node, one))
        return false;
    for (uint32_t c = pn_json_first(d, many); c != PN_JSON_NONE; c = pn_json_next(d, c))
        if ((pn_sch_value_type(j->s, c) & types) && !schjoin_not_value(j, node, c))
            return false;
    return j->s->status == PN_OK;
}

/* --- the first pass: types and what concerns all of them ---------------------------------------------- */

static bool schjoin_contains(schjoin *j, uint32_t node)
{
    int64_t least;
    const pn_json_doc *d = j->s->d;
    if (pn_json_i64(d, pn_json_get(d, node, "minContains"), &least) && least == 0 &&
        pn_json_get(d, node, "maxContains") == PN_JSON_NONE)
        return true;                                    /* asks for nothing */
    schjoin_defer(j, node, "contains", PN_SCH_ARR, "a grammar cannot count which elements match");
    return true;
}

static bool schjoin_keyword(schjoin *j, uint32_t node, uint32_t c)
{
    uint32_t types;
    const pn_bytes key = pn_json_key_of(j->s->d, c);
    const pn_sch_kw kw = pn_sch_keyword(key, &types);
    j->implied |= types;
    switch (kw) {
    case PN_SCH_K_TYPE:
        if (!schjoin_type(j, node, c, &types))
            return false;
        j->typed = true;
        j->l->accepts &= types;
        return true;
    case PN_SCH_K_ENUM: return schjoin_enum(j, node, c, false);
    case PN_SCH_K_CONST: return schjoin_enum(j, node, c, true);
    case PN_SCH_K_NOT: return schjoin_not(j, node, c);
    case PN_SCH_K_CONTAINS: return schjoin_contains(j, node);
    case PN_SCH_K_THEN:
        if (pn_json_get(j->s->d, node, "if") != PN_JSON_NONE)
            schjoin_defer(j, node, key.data, PN_SCH_ANY, "a condition is not a grammar");
        return true;
    case PN_SCH_K_REFUSED:
        schjoin_defer(j, node, key.data, types ? types : PN_SCH_ANY, "it is beyond a grammar");
        return true;
    default: return true;
    }
}

static bool schjoin_types(schjoin *j)
{
    const pn_json_doc *d = j->s->d;
    pn_sch_leaf *l = j->l;
    l->accepts = PN_SCH_ANY;
    for (uint32_t i = 0; i < l->n_base; i++)
        for (uint32_t c = pn_json_first(d, l->base[i]); c != PN_JSON_NONE; c = pn_json_next(d, c))
            if (!pn_sch_steps(j->s, l->base[i], 8) || !schjoin_keyword(j, l->base[i], c))
                return false;
    l->types = j->typed || l->is_enum || !j->implied || j->names_only ? l->accepts : j->implied;
    /* Numbers without the integers would need a point in them that is not followed by zeros alone. */
    const uint32_t numbers = l->types & PN_SCH_NUMBER & ~j->removed;
    if (!l->is_enum && numbers == PN_SCH_FRAC) {
        schjoin_defer(j, l->base[0], "not", PN_SCH_FRAC, "numbers that are no integers");
        if (!j->s->o.lenient)
            j->removed &= ~(uint32_t)PN_SCH_NUMBER;
    }
    l->types &= ~j->removed;
    l->accepts &= ~j->removed;
    return true;
}

/* --- numbers ------------------------------------------------------------------------------------------ */

static void schjoin_lower(pn_sch_num *r, const pn_sch_dec *v, bool open)
{
    const int c = r->has_lo ? pn_sch_dec_cmp(v, &r->lo) : 1;
    if (c > 0)
        r->lo = *v, r->lo_open = open;
    else if (c == 0)
        r->lo_open |= open;
    r->has_lo = true;
}

static void schjoin_upper(pn_sch_num *r, const pn_sch_dec *v, bool open)
{
    const int c = r->has_hi ? pn_sch_dec_cmp(v, &r->hi) : -1;
    if (c < 0)
        r->hi = *v, r->hi_open = open;
    else if (c == 0)
        r->hi_open |= open;
    r->has_hi = true;
}

static bool schjoin_number(schjoin *j, uint32_t node, pn_sch_kw kw, uint32_t value)
{
    const pn_json_doc *d = j->s->d;
    const bool exclusive = kw == PN_SCH_K_XMIN || kw == PN_SCH_K_XMAX;
    pn_sch_num *r = &j->l->num;
    pn_bytes text;
    pn_sch_dec v;
    bool open = false;
    if (exclusive && pn_json_type_of(d, value) == PN_JSON_BOOL)
        return true;                                    /* draft 4: looked at with its bound */
    if (!pn_json_num(d, value, &text))
        return pn_sch_fail(j->s, PN_E_INVALID, node, pn_json_key_of(d, value).data, "expected a number, found %s",
                           pn_sch_kind(j->s, value));
    if (!pn_sch_dec_parse(j->s, text, &v))
        return false;
    if (kw == PN_SCH_K_MULTIPLE)
        return pn_sch_num_join_mod(j->s, node, r, &v);
    const bool lower = kw == PN_SCH_K_MIN || kw == PN_SCH_K_XMIN;
    bool drop = false;
    if (exclusive)
        open = true;
    else
        pn_json_bool(d, pn_json_get(d, node, lower ? "exclusiveMinimum" : "exclusiveMaximum"), &open);
    if (!j->l->is_enum && !pn_sch_dec_fits(&v, lower, &open, &drop))
        return pn_sch_refuse(j->s, node, pn_json_key_of(d, value).data, "a bound of more than 64 digits");
    if (drop)
        return true;
    if (lower)
        schjoin_lower(r, &v, open);
    else
        schjoin_upper(r, &v, open);
    return true;
}

/* --- strings ------------------------------------------------------------------------------------------ */

static void schjoin_body(schjoin *j, pn_gnode body)
{
    pn_sch_leaf *l = j->l;
    l->body = l->body == PN_GNODE_NONE ? body : pn_gir_and(j->s->g, l->body, body);
}

static bool schjoin_string(schjoin *j, uint32_t node, pn_sch_kw kw, uint32_t value)
{
    pn_sch *s = j->s;
    pn_sch_leaf *l = j->l;
    const char *name = pn_json_key_of(s->d, value).data;
    pn_bytes text;
    uint32_t n;
    if (kw == PN_SCH_K_MINLEN || kw == PN_SCH_K_MAXLEN) {
        if (!pn_sch_count(s, node, name, value, &n))
            return false;
        if (kw == PN_SCH_K_MAXLEN)
            l->max_len = PN_MIN(l->max_len, PN_MIN(n, PN_SCH_COUNT_MAX));
        else if (n == PN_SCH_MANY)
            return pn_sch_fail(s, PN_E_INVALID, node, name, "at most %u", (unsigned)PN_SCH_COUNT_MAX);
        else
            l->min_len = PN_MAX(l->min_len, n);
        return true;
    }
    if (!pn_json_str(s->d, value, &text))
        return pn_sch_fail(s, PN_E_INVALID, node, name, "expected a string, found %s", pn_sch_kind(s, value));
    bool dropped = false;
    const pn_gnode body = kw == PN_SCH_K_FORMAT ? pn_sch_format(s, text) : pn_sch_pattern(s, node, name, text, &dropped);
    if (body != PN_GNODE_NONE)
        schjoin_body(j, body);
    return pn_sch_built(s, node, name);
}

static bool schjoin_not_strings(schjoin *j)
{
    pn_bytes *texts = pn_sch_alloc(j->s, (uint64_t)j->n_nots + 1, sizeof *texts);
    uint32_t n = 0;
    if (!texts)
        return false;
    for (uint32_t i = 0; i < j->n_nots; i++)
        n += pn_json_str(j->s->d, j->nots[i], &texts[n]);
    if (n > 0)
        schjoin_body(j, pn_sch_not(j->s, texts, n));
    return n == 0 || pn_sch_built(j->s, j->not_node, "not");
}

/* --- the second pass: what concerns one type ------------------------------------------------------------ */

static bool schjoin_scalars(schjoin *j)
{
    const pn_json_doc *d = j->s->d;
    const pn_sch_leaf *l = j->l;
    for (uint32_t i = 0; i < l->n_base; i++)
        for (uint32_t c = pn_json_first(d, l->base[i]); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
            uint32_t types;
            const pn_sch_kw kw = pn_sch_keyword(pn_json_key_of(d, c), &types);
            if (kw == PN_SCH_K_REFUSED || !(types & l->types))
                continue;
            if (types == PN_SCH_NUMBER && !schjoin_number(j, l->base[i], kw, c))
                return false;
            if (types == PN_SCH_STR && !schjoin_string(j, l->base[i], kw, c))
                return false;
        }
    return true;
}

/* Values are taken away one by one from an enumeration, from strings by a complement, null is a type;
 * of the other types the set without a value has no grammar here. */
static bool schjoin_forbid(schjoin *j)
{
    pn_sch_leaf *l = j->l;
    if (l->is_enum || j->n_nots == 0)
        return true;
    for (uint32_t i = 0; i < j->n_nots; i++) {
        const uint32_t type = pn_sch_value_type(j->s, j->nots[i]);
        if (type == PN_SCH_NULL)
            l->types &= ~(uint32_t)PN_SCH_NULL, l->accepts &= ~(uint32_t)PN_SCH_NULL;
        else if (type != PN_SCH_STR)
            schjoin_defer(j, j->not_node, "not", type & PN_SCH_NUMBER ? PN_SCH_NUMBER : type,
                          "without an enum, only strings and null");
    }
    return !(l->types & PN_SCH_STR) || schjoin_not_strings(j);
}

/* A keyword that speaks about arrays or objects, beside an enumeration of such: the enumeration would
 * have to be validated, which nobody writes. */
static bool schjoin_no_containers(schjoin *j, uint32_t types)
{
    const pn_json_doc *d = j->s->d;
    const pn_sch_leaf *l = j->l;
    for (uint32_t i = 0; i < l->n_base; i++)
        for (uint32_t c = pn_json_first(d, l->base[i]); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
            uint32_t about;
            const pn_bytes key = pn_json_key_of(d, c);
            if (pn_sch_keyword(key, &about) != PN_SCH_K_REFUSED && (about & types & (PN_SCH_ARR | PN_SCH_OBJ)))
                return pn_sch_refuse(j->s, l->base[i], key.data, "beside an enum of arrays or objects");
        }
    return true;
}

static bool schjoin_filter(schjoin *j)
{
    pn_sch_leaf *l = j->l;
    uint32_t kept = 0, types = 0;
    for (uint32_t i = 0; i < l->n_values; i++) {
        const uint32_t v = l->values[i], type = pn_sch_value_type(j->s, v);
        bool in = (type & l->types) && pn_sch_scalar_fits(j->s, l, v);
        for (uint32_t k = 0; k < j->n_nots && in; k++)
            in = !pn_sch_equal(j->s, v, j->nots[k]);
        if (j->s->status != PN_OK || !pn_sch_built(j->s, l->base[0], "enum"))
            return false;
        if (in) {
            l->values[kept++] = v;
            types |= type;
        }
    }
    l->n_values = kept;
    l->types = types;
    l->accepts &= types;
    return schjoin_no_containers(j, types);
}

static bool schjoin_refusals(schjoin *j)
{
    for (uint32_t i = 0; i < j->n_late; i++) {
        const schjoin_late *late = &j->late[i];
        if ((late->types & j->l->types) && !pn_sch_refuse(j->s, late->node, late->kw, late->why))
            return false;
    }
    return true;
}

/* Which scalar types have a value at all. */
static bool schjoin_prune(schjoin *j)
{
    pn_sch *s = j->s;
    pn_sch_leaf *l = j->l;
    if (l->types & PN_SCH_STR) {
        const bool check = l->body != PN_GNODE_NONE;
        if (l->min_len > l->max_len || (check && pn_gir_is_never(s->g, pn_sch_body(s, l))))
            l->types &= ~(uint32_t)PN_SCH_STR;
    }
    if ((l->types & PN_SCH_NUMBER) && !j->names_only) {
        l->number = pn_sch_number(s, l);
        if (pn_gir_is_never(s->g, l->number))
            l->types &= ~(uint32_t)PN_SCH_NUMBER;
    }
    return pn_sch_built(s, l->n_base ? l->base[0] : s->root, NULL);
}

PN_INTERNAL bool pn_sch_join(pn_sch *s, pn_sch_leaf *l, bool names_only)
{
    schjoin j;
    memset(&j, 0, sizeof j);
    j.s = s;
    j.l = l;
    j.names_only = names_only;
    l->max_len = l->max_items = l->max_props = PN_SCH_MANY;
    l->items = l->unique = PN_SCH_NONE;
    if (!schjoin_types(&j) || !schjoin_scalars(&j) || !schjoin_forbid(&j))
        return false;
    if (l->is_enum && !schjoin_filter(&j))
        return false;
    if (!l->never && !schjoin_refusals(&j))
        return false;
    l->never |= l->types == 0;
    if (l->never || l->is_enum)
        return true;
    if (!schjoin_prune(&j))
        return false;
    if (!names_only && (l->types & PN_SCH_OBJ) && !pn_sch_join_object(s, l))
        return false;
    return names_only || !(l->types & PN_SCH_ARR) || pn_sch_join_array(s, l);
}
