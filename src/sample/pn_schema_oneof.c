/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_schema_oneof.c - may a oneOf be read as anyOf?
 *
 * A grammar is a union, and exactly-one needs that no text of one branch is valid for another.  So
 * for each pair of leaves that took different branches it must be shown, in both directions, that
 * what A generates B refuses.  A's side is what we generate (closed objects, order, inferred types:
 * the narrower the easier), B's side is what JSON Schema accepts (an object is open there unless it
 * says otherwise).  What cannot be shown is refused, or, when lenient, taken as anyOf.
 */
#include "sample/pn_schema_int.h"

static bool schone_values_apart(pn_sch *s, const uint32_t *a, uint32_t n_a, const uint32_t *b, uint32_t n_b)
{
    if (!pn_sch_steps(s, s->root, (uint64_t)n_a * n_b / 2))
        return false;
    for (uint32_t i = 0; i < n_a; i++)
        for (uint32_t k = 0; k < n_b; k++)
            if (pn_sch_equal(s, a[i], b[k]))
                return false;
    return true;
}

static uint32_t schone_types(const pn_sch_goal *g, bool accepts)
{
    uint32_t types = 0;
    for (uint32_t i = 0; i < g->n_leaves; i++)
        types |= accepts ? g->leaves[i]->accepts : g->leaves[i]->types;
    return types;
}

/* What goal a generates, goal b refuses: by type, or both are enumerations. */
static bool schone_goals_apart(pn_sch *s, uint32_t a, uint32_t b)
{
    uint32_t *va, *vb, na, nb;
    if (!(schone_types(&s->goals[a], false) & schone_types(&s->goals[b], true)))
        return true;
    return pn_sch_enumerate(s, a, &va, &na) && pn_sch_enumerate(s, b, &vb, &nb) && schone_values_apart(s, va, na, vb, nb);
}

static const pn_sch_prop *schone_find(const pn_sch_leaf *l, pn_bytes key)
{
    for (uint32_t i = 0; i < l->n_props; i++)
        if (l->props[i].key.len == key.len && memcmp(l->props[i].key.data, key.data, key.len) == 0)
            return &l->props[i];
    return NULL;
}

/* Does JSON Schema itself refuse the key in b?  Then some node of b closes the object without it. */
static bool schone_forbids(const pn_sch *s, const pn_sch_leaf *b, pn_bytes key)
{
    for (uint32_t i = 0; i < b->n_base; i++) {
        const uint32_t node = b->base[i];
        bool open;
        if (pn_json_bool(s->d, pn_json_get(s->d, node, "additionalProperties"), &open) && !open &&
            pn_json_find(s->d, pn_json_get(s->d, node, "properties"), key.data, key.len) == PN_JSON_NONE &&
            pn_json_get(s->d, node, "patternProperties") == PN_JSON_NONE)
            return true;
    }
    return false;
}

static bool schone_objects_apart(pn_sch *s, const pn_sch_leaf *a, const pn_sch_leaf *b)
{
    if (!pn_sch_steps(s, s->root, (uint64_t)a->n_props * (b->n_props + 1) + b->n_props))
        return false;
    for (uint32_t i = 0; i < a->n_props; i++) {
        const pn_sch_prop *p = &a->props[i], *q = schone_find(b, p->key);
        if (!p->required)
            continue;
        if (q ? schone_goals_apart(s, p->goal, q->goal) : schone_forbids(s, b, p->key))
            return true;
    }
    for (uint32_t i = 0; i < b->n_props && a->n_classes == 0; i++) {
        const pn_sch_prop *q = &b->props[i], *p = schone_find(a, q->key);
        if (q->required && (!p || p->forbidden))
            return true;                                /* a cannot write what b asks for */
    }
    return false;
}

static bool schone_numbers_apart(const pn_sch_num *a, const pn_sch_num *b)
{
    if (a->has_hi && b->has_lo) {
        const int c = pn_sch_dec_cmp(&a->hi, &b->lo);
        if (c < 0 || (c == 0 && (a->hi_open || b->lo_open)))
            return true;
    }
    if (a->has_lo && b->has_hi) {
        const int c = pn_sch_dec_cmp(&a->lo, &b->hi);
        if (c > 0 || (c == 0 && (a->lo_open || b->hi_open)))
            return true;
    }
    return false;
}

static bool schone_strings_apart(pn_sch *s, const pn_sch_leaf *a, const pn_sch_leaf *b)
{
    if (a->max_len < b->min_len || b->max_len < a->min_len)
        return true;
    if (a->body == PN_GNODE_NONE || b->body == PN_GNODE_NONE)
        return false;
    return pn_gir_is_never(s->g, pn_gir_and(s->g, a->body, b->body)) && pn_gir_ok(s->g);
}

/* Enumerated values of a that b accepts: none? */
static bool schone_enum_apart(pn_sch *s, const pn_sch_leaf *a, const pn_sch_leaf *b)
{
    if (b->is_enum)
        return schone_values_apart(s, a->values, a->n_values, b->values, b->n_values);
    for (uint32_t i = 0; i < a->n_values; i++) {
        const uint32_t type = pn_sch_value_type(s, a->values[i]);
        if (!(type & b->accepts))
            continue;
        if ((type & (PN_SCH_ARR | PN_SCH_OBJ)) || pn_sch_scalar_fits(s, b, a->values[i]))
            return false;
    }
    return true;
}

static bool schone_refuses(pn_sch *s, const pn_sch_leaf *a, const pn_sch_leaf *b)
{
    const uint32_t common = a->types & b->accepts;
    if (!common)
        return true;
    if (a->is_enum)
        return schone_enum_apart(s, a, b);
    if (b->is_enum || (common & (PN_SCH_NULL | PN_SCH_BOOL)))
        return false;
    if ((common & PN_SCH_NUMBER) && !schone_numbers_apart(&a->num, &b->num))
        return false;
    if ((common & PN_SCH_STR) && !schone_strings_apart(s, a, b))
        return false;
    if ((common & PN_SCH_ARR) && !(a->max_items < b->min_items || b->max_items < a->min_items))
        return false;
    return !(common & PN_SCH_OBJ) || schone_objects_apart(s, a, b);
}

/* The oneOf in which the leaves took different ways; NONE: there is none. */
static uint32_t schone_parted(const pn_sch_leaf *a, const pn_sch_leaf *b)
{
    for (uint32_t i = 0; i < a->n_tags; i++)
        for (uint32_t k = 0; k < b->n_tags; k++)
            if (a->tags[i].choice == b->tags[k].choice && a->tags[i].branch != b->tags[k].branch)
                return a->tags[i].choice;
    return PN_SCH_NONE;
}

PN_INTERNAL bool pn_sch_check_oneof(pn_sch *s, const pn_sch_goal *goal)
{
    for (uint32_t i = 0; i < goal->n_leaves; i++)
        for (uint32_t k = 0; k < i; k++) {
            const pn_sch_leaf *a = goal->leaves[i], *b = goal->leaves[k];
            const uint32_t choice = schone_parted(a, b);
            if (choice == PN_SCH_NONE)
                continue;
            const bool apart = pn_sch_steps(s, choice, 4) && schone_refuses(s, a, b) && schone_refuses(s, b, a);
            if (!pn_sch_built(s, choice, "oneOf"))
                return false;
            if (!apart && !pn_sch_refuse(s, choice, "oneOf", "a value may match two of its branches"))
                return false;
        }
    return true;
}
