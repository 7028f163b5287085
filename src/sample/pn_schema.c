/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_schema.c - a JSON Schema becomes goals, goals become leaves, leaves become nodes.
 *
 * 1. Flatten.  A goal is a list of schema nodes.  $ref and allOf add to the list, anyOf and oneOf fork
 *    it, until a leaf is left: nodes of which only their own keywords count.  A schema that comes back
 *    to itself on this way consumes no character and is refused; a fork of forks meets the limit of
 *    256 leaves.  The parts of the work wait on a stack of ours.
 * 2. Join (pn_schema_join.c).  Makes the goals of properties and elements, which go to the end of the
 *    queue; equal lists are the same goal, and so recursion closes.
 * 3. oneOf (pn_schema_oneof.c).
 * 4. Which goals have a value at all: the least fixpoint, so that {"properties": {"a": {"$ref": "#"}},
 *    "required": ["a"]} has none, and optional members without a value are left out.
 * 5. Emit.  Scalars as themselves, arrays and objects as rules.
 */
#include "sample/pn_schema.h"
#include "sample/pn_schema_int.h"
#include "base/pn_err.h"

enum {
    SCHEMA_TEXT = 1 << 20, SCHEMA_GOALS = 50000, SCHEMA_LEAVES = 256, SCHEMA_PARTS = 4096,
    SCHEMA_ALIASES = 64, SCHEMA_DEPTH = 256
};

/* --- 1. flatten ---------------------------------------------------------------------------------------- */

typedef struct schema_path {            /* how a node was reached within one goal */
    uint32_t node, depth;
    const struct schema_path *up;
} schema_path;

typedef struct schema_item {            /* a node to expand, or, with own, to take as it is */
    uint32_t node;
    bool own;
    const schema_path *up;
} schema_item;

typedef struct schema_choice {
    uint32_t node;                      /* whose */
    bool one;                           /* oneOf, not anyOf */
    const schema_path *up;
} schema_choice;

typedef struct schema_list {            /* of any of these, in the arena */
    void *data;
    uint32_t n, cap;
} schema_list;

typedef struct schema_part {
    schema_list todo, base, seen, choices, tags;
} schema_part;

static void *schema_push(pn_sch *s, schema_list *a, size_t size)
{
    if (a->n == a->cap) {
        const uint32_t cap = a->cap ? a->cap * 2 : 8;
        void *grown = pn_sch_alloc(s, cap, size);
        if (!grown)
            return NULL;
        if (a->n)
            memcpy(grown, a->data, a->n * size);
        a->data = grown;
        a->cap = cap;
    }
    return (char *)a->data + a->n++ * size;
}

static bool schema_push_u32(pn_sch *s, schema_list *a, uint32_t v)
{
    uint32_t *p = schema_push(s, a, sizeof *p);
    if (p)
        *p = v;
    return p != NULL;
}

static bool schema_push_item(pn_sch *s, schema_list *a, uint32_t node, bool own, const schema_path *up)
{
    schema_item *p = schema_push(s, a, sizeof *p);
    if (!p)
        return false;
    p->node = node;
    p->own = own;
    p->up = up;
    return true;
}

static bool schema_in(const schema_list *a, uint32_t v)
{
    const uint32_t *p = a->data;
    for (uint32_t i = 0; i < a->n; i++)
        if (p[i] == v)
            return true;
    return false;
}

/* A list for its own use: appending to the copy leaves the original alone. */
static bool schema_copy(pn_sch *s, schema_list *to, const schema_list *from, size_t size)
{
    to->n = to->cap = from->n;
    to->data = from->n ? pn_sch_alloc(s, from->n, size) : NULL;
    if (from->n && !to->data)
        return false;
    if (from->n)
        memcpy(to->data, from->data, from->n * size);
    return true;
}

static const schema_path *schema_enter(pn_sch *s, uint32_t node, const schema_path *up)
{
    for (const schema_path *p = up; p; p = p->up)
        if (p->node == node) {
            pn_sch_fail(s, PN_E_INVALID, node, NULL, "the schema refers to itself without an array or object between");
            return NULL;
        }
    if (up && up->depth >= SCHEMA_DEPTH) {
        pn_sch_fail(s, PN_E_INVALID, node, NULL, "more than %d references and combinations in a row", (int)SCHEMA_DEPTH);
        return NULL;
    }
    schema_path *p = pn_sch_alloc(s, 1, sizeof *p);
    if (!p)
        return NULL;
    p->node = node;
    p->depth = up ? up->depth + 1 : 0;
    p->up = up;
    return p;
}

static bool schema_expand_all_of(pn_sch *s, schema_list *out, uint32_t node, uint32_t list, const schema_path *here)
{
    if (pn_json_type_of(s->d, list) != PN_JSON_ARRAY || pn_json_count(s->d, list) == 0)
        return pn_sch_fail(s, PN_E_INVALID, node, "allOf", "expected a non-empty array");
    for (uint32_t c = pn_json_first(s->d, list); c != PN_JSON_NONE; c = pn_json_next(s->d, c))
        if (!schema_push_item(s, out, c, false, here))
            return false;
    return true;
}

static bool schema_add_choice(pn_sch *s, schema_part *p, uint32_t node, bool one, const schema_path *here)
{
    const uint32_t list = pn_json_get(s->d, node, one ? "oneOf" : "anyOf");
    if (pn_json_type_of(s->d, list) != PN_JSON_ARRAY || pn_json_count(s->d, list) == 0)
        return pn_sch_fail(s, PN_E_INVALID, node, one ? "oneOf" : "anyOf", "expected a non-empty array");
    schema_choice *c = schema_push(s, &p->choices, sizeof *c);
    if (!c)
        return false;
    c->node = node;
    c->one = one;
    c->up = here;
    return true;
}

/* An object schema: what it refers to, and itself, go on the stack so that they come off in the
 * order of the text (the order of members follows from it). */
static bool schema_expand(pn_sch *s, schema_part *p, uint32_t node, const schema_path *here)
{
    schema_list found = {NULL, 0, 0};
    bool own = false;
    for (uint32_t c = pn_json_first(s->d, node); c != PN_JSON_NONE; c = pn_json_next(s->d, c)) {
        const pn_sch_kw kw = pn_sch_keyword(pn_json_key_of(s->d, c), NULL);
        bool ok = true;
        if (kw == PN_SCH_K_REF) {
            const uint32_t to = pn_sch_deref(s, node);
            ok = to != PN_SCH_NONE && schema_push_item(s, &found, to, false, here);
        } else if (kw == PN_SCH_K_ALLOF) {
            ok = schema_expand_all_of(s, &found, node, c, here);
        } else if (kw == PN_SCH_K_ANYOF || kw == PN_SCH_K_ONEOF) {
            ok = schema_add_choice(s, p, node, kw == PN_SCH_K_ONEOF, here);
        } else if (kw != PN_SCH_K_NOTE && !own) {
            own = true;
            ok = schema_push_item(s, &found, node, true, here);
        }
        if (!ok || !pn_sch_steps(s, node, 2))
            return false;
    }
    const schema_item *items = found.data;
    for (uint32_t i = found.n; i-- > 0;)
        if (!schema_push_item(s, &p->todo, items[i].node, items[i].own, items[i].up))
            return false;
    return true;
}

/* Work off p->todo.  *dead: a schema was `false`. */
static bool schema_settle(pn_sch *s, schema_part *p, bool *dead)
{
    while (p->todo.n > 0) {
        const schema_item it = ((const schema_item *)p->todo.data)[--p->todo.n];
        bool truth;
        if (!pn_sch_steps(s, it.node, 1 + p->seen.n / 8))
            return false;
        if (it.own) {
            if (!schema_push_u32(s, &p->base, it.node))
                return false;
            continue;
        }
        if (!pn_sch_is_schema(s, it.node))
            return false;
        if (pn_json_bool(s->d, it.node, &truth)) {
            *dead |= !truth;
            continue;
        }
        const schema_path *here = schema_enter(s, it.node, it.up);
        if (!here)
            return false;
        if (schema_in(&p->seen, it.node))
            continue;
        if (!schema_push_u32(s, &p->seen, it.node) || !schema_expand(s, p, it.node, here))
            return false;
    }
    return true;
}

/* One part for each branch of p's first choice. */
static bool schema_fork(pn_sch *s, schema_list *parts, const schema_part *p)
{
    const schema_choice first = ((const schema_choice *)p->choices.data)[0];
    const uint32_t list = pn_json_get(s->d, first.node, first.one ? "oneOf" : "anyOf"), n = pn_json_count(s->d, list);
    const uint32_t bottom = parts->n;
    uint32_t branch = 0;
    if (n > SCHEMA_PARTS)
        return pn_sch_fail(s, PN_E_INVALID, first.node, NULL, "more than %d branches after distribution", (int)SCHEMA_LEAVES);
    for (uint32_t c = pn_json_first(s->d, list); c != PN_JSON_NONE; c = pn_json_next(s->d, c), branch++) {
        schema_part q;
        memset(&q, 0, sizeof q);
        if (!pn_sch_steps(s, first.node, 8 + p->base.n + p->seen.n + 2 * p->choices.n + p->tags.n) ||
            !schema_copy(s, &q.base, &p->base, sizeof(uint32_t)) ||
            !schema_copy(s, &q.seen, &p->seen, sizeof(uint32_t)) ||
            !schema_copy(s, &q.choices, &p->choices, sizeof(schema_choice)) ||
            !schema_copy(s, &q.tags, &p->tags, sizeof(pn_sch_tag)) ||
            !schema_push_item(s, &q.todo, c, false, first.up))
            return false;
        q.choices.n--;
        memmove(q.choices.data, (schema_choice *)q.choices.data + 1, q.choices.n * sizeof(schema_choice));
        if (first.one) {
            pn_sch_tag *t = schema_push(s, &q.tags, sizeof *t);
            if (!t)
                return false;
            t->choice = first.node;
            t->branch = branch;
        }
        schema_part *slot = schema_push(s, parts, sizeof *slot);
        if (!slot)
            return false;
        *slot = q;
    }
    schema_part *a = (schema_part *)parts->data + bottom;
    for (uint32_t i = 0, k = n; i + 1 < k; i++) {        /* the first branch comes off first */
        const schema_part swap = a[i];
        a[i] = a[--k];
        a[k] = swap;
    }
    return true;
}

static bool schema_known(pn_sch_leaf *const *leaves, uint32_t n, const pn_sch_leaf *l)
{
    for (uint32_t i = 0; i < n; i++) {
        const pn_sch_leaf *o = leaves[i];
        if (o->n_base == l->n_base && o->n_tags == l->n_tags && memcmp(o->base, l->base, l->n_base * sizeof *l->base) == 0 &&
            (l->n_tags == 0 || memcmp(o->tags, l->tags, l->n_tags * sizeof *l->tags) == 0))
            return true;
    }
    return false;
}

/* A settled part without choices is a leaf.  Leaves without a value are dropped. */
static bool schema_leaf(pn_sch *s, schema_part *p, bool names_only, schema_list *leaves)
{
    pn_sch_leaf *l = pn_sch_alloc(s, 1, sizeof *l);
    const uint32_t n_base = p->base.n;
    if (!l || !schema_push_u32(s, &p->base, s->root))    /* so that base[0] exists, for messages */
        return false;
    l->base = p->base.data;
    l->n_base = n_base;
    l->tags = p->tags.data;
    l->n_tags = p->tags.n;
    if (schema_known(leaves->data, leaves->n, l))
        return true;
    if (!pn_sch_join(s, l, names_only))
        return false;
    if (l->never)
        return true;
    pn_sch_leaf **slot = schema_push(s, leaves, sizeof *slot);
    if (!slot)
        return false;
    *slot = l;
    return true;
}

static bool schema_flatten(pn_sch *s, const uint32_t *src, uint32_t n_src, bool names_only, schema_list *leaves)
{
    schema_list parts = {NULL, 0, 0};
    uint32_t done = 0;
    const uint32_t at = n_src ? src[0] : s->root;
    schema_part *p = schema_push(s, &parts, sizeof *p);
    if (!p)
        return false;
    for (uint32_t i = n_src; i-- > 0;)
        if (!schema_push_item(s, &p->todo, src[i], false, NULL))
            return false;
    while (parts.n > 0) {
        schema_part q = ((schema_part *)parts.data)[--parts.n];
        bool dead = false;
        if (!schema_settle(s, &q, &dead))
            return false;
        if (++done > SCHEMA_PARTS || leaves->n > SCHEMA_LEAVES)
            return pn_sch_fail(s, PN_E_INVALID, at, NULL, "more than %d branches after distribution", (int)SCHEMA_LEAVES);
        if (dead)
            continue;
        if (!(q.choices.n > 0 ? schema_fork(s, &parts, &q) : schema_leaf(s, &q, names_only, leaves)))
            return false;
    }
    return true;
}

/* --- goals --------------------------------------------------------------------------------------------- */

/* A node that says nothing but $ref is what it refers to. */
static uint32_t schema_alias(pn_sch *s, uint32_t node)
{
    for (uint32_t i = 0;; i++) {
        bool only = true;
        for (uint32_t c = pn_json_first(s->d, node); c != PN_JSON_NONE && only; c = pn_json_next(s->d, c)) {
            const pn_sch_kw kw = pn_sch_keyword(pn_json_key_of(s->d, c), NULL);
            only = kw == PN_SCH_K_NOTE || kw == PN_SCH_K_REF;
        }
        if (!only || pn_json_type_of(s->d, node) != PN_JSON_OBJECT || pn_json_get(s->d, node, "$ref") == PN_JSON_NONE)
            return node;
        if (i == SCHEMA_ALIASES) {
            pn_sch_fail(s, PN_E_INVALID, node, "$ref", "more than %d references in a row, or a circle of them",
                        (int)SCHEMA_ALIASES);
            return PN_SCH_NONE;
        }
        node = pn_sch_deref(s, node);
        if (node == PN_SCH_NONE || !pn_sch_steps(s, node, 2))
            return PN_SCH_NONE;
    }
}

PN_INTERNAL uint32_t pn_sch_goal_for(pn_sch *s, const uint32_t *nodes, uint32_t n)
{
    schema_list src = {NULL, 0, 0};
    bool truth, existed;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t node = schema_alias(s, nodes[i]);
        if (node == PN_SCH_NONE)
            return PN_SCH_NONE;
        if ((pn_json_bool(s->d, node, &truth) && truth) || schema_in(&src, node))
            continue;
        if (!schema_push_u32(s, &src, node))
            return PN_SCH_NONE;
    }
    if (!src.data) {                                    /* anything; a key must not be NULL */
        src.data = pn_sch_alloc(s, 1, sizeof(uint32_t));
        if (!src.data)
            return PN_SCH_NONE;
    }
    const uint32_t id = (uint32_t)s->n_goals;
    const uint32_t *slot = pn_map_put(&s->goal_of, src.data, src.n * sizeof(uint32_t), id, &existed);
    if (!slot)
        return pn_sch_nomem(s), PN_SCH_NONE;
    if (existed)
        return *slot;
    if (id == SCHEMA_GOALS) {
        pn_sch_fail(s, PN_E_INVALID, n ? nodes[0] : s->root, NULL, "more than %d schema nodes", (int)SCHEMA_GOALS);
        return PN_SCH_NONE;
    }
    if (!pn_mem_grow(s->mem, PN_ACCT_GRAMMAR, (void **)&s->goals, &s->cap_goals, s->n_goals + 1, sizeof *s->goals))
        return pn_sch_nomem(s), PN_SCH_NONE;
    pn_sch_goal *g = &s->goals[s->n_goals++];
    memset(g, 0, sizeof *g);
    g->src = src.data;
    g->n_src = src.n;
    return id;
}

PN_INTERNAL pn_gnode pn_sch_names(pn_sch *s, const uint32_t *nodes, uint32_t n)
{
    schema_list leaves = {NULL, 0, 0};
    if (!schema_flatten(s, nodes, n, true, &leaves))
        return PN_GNODE_NONE;
    pn_gnode out = pn_gir_never(s->g);
    for (uint32_t i = 0; i < leaves.n; i++) {
        const pn_sch_leaf *l = ((pn_sch_leaf **)leaves.data)[i];
        if (l->n_tags > 0 && !pn_sch_refuse(s, l->tags[0].choice, "oneOf", "in propertyNames"))
            return PN_GNODE_NONE;
        pn_bytes text;
        if (!l->is_enum) {
            if (l->types & PN_SCH_STR)
                out = pn_gir_alt2(s->g, out, pn_sch_body(s, l));
            continue;
        }
        for (uint32_t k = 0; k < l->n_values; k++)
            if (pn_json_str(s->d, l->values[k], &text) && !pn_sch_ends_inside(s, text))
                out = pn_gir_alt2(s->g, out, pn_sch_text(s, text));
    }
    return out;
}

/* --- 4. which goals have a value ------------------------------------------------------------------------ */

static bool schema_leaf_sat(pn_sch *s, const pn_sch_leaf *l)
{
    if (l->is_enum || (l->types & ~(uint32_t)(PN_SCH_ARR | PN_SCH_OBJ)))
        return true;
    return ((l->types & PN_SCH_ARR) && pn_sch_array_sat(s, l)) || ((l->types & PN_SCH_OBJ) && pn_sch_object_sat(s, l));
}

/* Goals come before those that they contain, so going backwards settles all but loops at once. */
static bool schema_find_sat(pn_sch *s)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = s->n_goals; i-- > 0;) {
            pn_sch_goal *g = &s->goals[i];
            for (uint32_t k = 0; k < g->n_leaves && !g->sat; k++) {
                if (!pn_sch_steps(s, s->root, 1 + g->leaves[k]->n_props / 4))
                    return false;
                g->sat = schema_leaf_sat(s, g->leaves[k]);
                changed |= g->sat;
            }
        }
    }
    return s->status == PN_OK;
}

/* Nothing satisfies the goal: follow required members down to where it starts. */
static bool schema_unsat(pn_sch *s, uint32_t goal)
{
    uint32_t at = s->root;
    for (uint32_t hops = 0; hops < SCHEMA_ALIASES; hops++) {
        const pn_sch_goal *g = &s->goals[goal];
        uint32_t next = PN_SCH_NONE;
        if (g->n_src)
            at = g->src[0];
        for (uint32_t i = 0; g->n_leaves && i < g->leaves[0]->n_props && next == PN_SCH_NONE; i++)
            if (g->leaves[0]->props[i].required && !s->goals[g->leaves[0]->props[i].goal].sat)
                next = g->leaves[0]->props[i].goal;
        if (next == PN_SCH_NONE)
            break;
        goal = next;
    }
    return pn_sch_fail(s, PN_E_INVALID, at, NULL, "no value satisfies this schema");
}

/* --- 5. emit ---------------------------------------------------------------------------------------------- */

static bool schema_is_flat(const pn_sch_leaf *l) { return l->is_enum || !(l->types & (PN_SCH_ARR | PN_SCH_OBJ)); }

static pn_gnode schema_string(pn_sch *s, const pn_sch_leaf *l)
{
    const bool plain = l->body == PN_GNODE_NONE && l->min_len == 0 && l->max_len == PN_SCH_MANY;
    if (plain && s->string != PN_GNODE_NONE)
        return s->string;
    const pn_gnode out = pn_sch_string(s, pn_sch_body(s, l));
    if (plain)
        s->string = out;
    return out;
}

static pn_gnode schema_emit_leaf(pn_sch *s, const pn_sch_leaf *l)
{
    pn_gir *g = s->g;
    pn_gnode alts[7];
    size_t n = 0;
    if (l->is_enum)
        return pn_sch_values(s, l->values, l->n_values);
    if (l->types & PN_SCH_STR)
        alts[n++] = schema_string(s, l);
    if (l->types & PN_SCH_NUMBER)
        alts[n++] = l->number;
    if (l->types & PN_SCH_NULL)
        alts[n++] = pn_gir_text(g, s->o.python ? "None" : "null");
    if (l->types & PN_SCH_BOOL)
        alts[n++] = pn_gir_alt2(g, pn_gir_text(g, s->o.python ? "True" : "true"), pn_gir_text(g, s->o.python ? "False" : "false"));
    if ((l->types & PN_SCH_OBJ) && pn_sch_object_sat(s, l))
        alts[n++] = pn_sch_emit_object(s, l);
    if ((l->types & PN_SCH_ARR) && pn_sch_array_sat(s, l))
        alts[n++] = pn_sch_emit_array(s, l);
    return pn_gir_alt(g, alts, n);
}

static pn_gnode schema_emit_goal(pn_sch *s, const pn_sch_goal *goal)
{
    pn_gnode *alts = pn_sch_alloc(s, (uint64_t)goal->n_leaves + 1, sizeof *alts);
    uint32_t n = 0;
    for (uint32_t i = 0; alts && i < goal->n_leaves; i++)
        if (schema_leaf_sat(s, goal->leaves[i]))
            alts[n++] = schema_emit_leaf(s, goal->leaves[i]);
    return n == 1 ? alts[0] : pn_gir_alt(s->g, alts, n);
}

static bool schema_emit(pn_sch *s)
{
    for (size_t i = 0; i < s->n_goals; i++) {
        pn_sch_goal *g = &s->goals[i];
        bool flat = true;
        for (uint32_t k = 0; k < g->n_leaves; k++)
            flat &= schema_is_flat(g->leaves[k]);
        g->rule = PN_SCH_NONE;
        if (!g->sat)
            continue;
        if (flat) {
            g->node = schema_emit_goal(s, g);
        } else {
            g->rule = pn_gir_rule(s->g, NULL);
            g->node = pn_gir_ref(s->g, g->rule);
        }
        if (!pn_sch_built(s, g->n_src ? g->src[0] : s->root, NULL))
            return false;
    }
    for (size_t i = 0; i < s->n_goals; i++) {
        const pn_sch_goal *g = &s->goals[i];
        if (g->rule == PN_SCH_NONE)
            continue;
        pn_gir_define(s->g, g->rule, schema_emit_goal(s, g));
        if (!pn_sch_built(s, g->n_src ? g->src[0] : s->root, NULL))
            return false;
    }
    return true;
}

/* Empty, one blank, or one or two newlines and up to 20 blanks or tabs. */
static pn_gnode schema_white_space(pn_sch *s)
{
    pn_gir *g = s->g;
    if (s->o.compact)
        return pn_gir_empty(g);
    const pn_gnode blank = pn_gir_alt2(g, pn_gir_text(g, " "), pn_gir_text(g, "\t"));
    const pn_gnode lines = pn_gir_seq2(g, pn_gir_repeat(g, pn_gir_text(g, "\n"), 1, 2), pn_gir_repeat(g, blank, 0, 20));
    return pn_gir_opt(g, pn_gir_alt2(g, pn_gir_text(g, " "), lines));
}

/* --- the way in --------------------------------------------------------------------------------------------- */

static bool schema_run(pn_sch *s, uint32_t node, pn_gnode *out)
{
    s->ws = schema_white_space(s);
    if (!pn_sch_is_schema(s, node))
        return false;
    const uint32_t top = pn_sch_goal_for(s, &node, 1);
    if (top == PN_SCH_NONE)
        return false;
    for (size_t i = 0; i < s->n_goals; i++) {
        schema_list leaves = {NULL, 0, 0};
        if (!schema_flatten(s, s->goals[i].src, s->goals[i].n_src, false, &leaves))
            return false;
        s->goals[i].leaves = leaves.data;
        s->goals[i].n_leaves = leaves.n;
    }
    for (size_t i = 0; i < s->n_goals; i++)
        if (!pn_sch_check_oneof(s, &s->goals[i]))
            return false;
    if (!schema_find_sat(s))
        return false;
    if (!s->goals[top].sat)
        return schema_unsat(s, top);
    if (!schema_emit(s))
        return false;
    *out = s->goals[top].node;
    return pn_sch_built(s, s->root, NULL);
}

/* Bare strings: as names of properties are found, by the strings of each leaf alone. */
static bool schema_run_text(pn_sch *s, uint32_t node, pn_gnode *out)
{
    if (!pn_sch_is_schema(s, node))
        return false;
    *out = pn_sch_names(s, &node, 1);
    return pn_sch_built(s, node, NULL);
}

static pn_status schema_start(pn_gir *g, const pn_json_doc *d, uint32_t node, uint32_t root, const char *until,
                              const pn_schema_options *o, pn_gnode *out, pn_str *widened, pn_err *err)
{
    pn_sch s;
    pn_err mine;                        /* messages come with pointers also when nobody listens */
    memset(&s, 0, sizeof s);
    s.mem = d->mem;
    s.g = g;
    s.d = d;
    s.root = root;
    s.until = until ? until : o ? o->quote : NULL;
    s.widened = widened;
    s.err = err ? err : &mine;
    if (o)
        s.o = *o;
    *out = PN_GNODE_NONE;
    pn_map_init(&s.goal_of, s.mem, PN_ACCT_GRAMMAR);
    pn_map_init(&s.reported, s.mem, PN_ACCT_GRAMMAR);
    pn_map_init(&s.anchors, s.mem, PN_ACCT_GRAMMAR);
    pn_map_init(&s.pattern_of, s.mem, PN_ACCT_GRAMMAR);
    pn_map_init(&s.body_of, s.mem, PN_ACCT_GRAMMAR);
    if (!(until ? schema_run_text(&s, node, out) : schema_run(&s, node, out)) && s.status == PN_OK)
        s.status = pn_fail(s.err, PN_E_INTERNAL, "a JSON schema failed without a reason");
    pn_sch_fini(&s);
    return s.status;
}

PN_INTERNAL pn_status pn_schema_node(pn_gir *g, const pn_json_doc *d, uint32_t node, uint32_t root,
                                     const pn_schema_options *o, pn_gnode *out, pn_str *widened, pn_err *err)
{
    return schema_start(g, d, node, root, NULL, o, out, widened, err);
}

PN_INTERNAL pn_status pn_schema_text(pn_gir *g, const pn_json_doc *d, uint32_t node, uint32_t root, const char *until,
                                     const pn_schema_options *o, pn_gnode *out, pn_str *widened, pn_err *err)
{
    return schema_start(g, d, node, root, until, o, out, widened, err);
}

PN_INTERNAL pn_status pn_schema_compile(pn_gram **out, pn_mem *mem, const char *json, size_t len,
                                        const pn_schema_options *o, pn_err *err)
{
    const pn_json_params params = {.max_depth = 128, .max_nodes = 400000};
    pn_json_doc d;
    pn_gir *g = NULL;
    pn_gnode node = PN_GNODE_NONE;
    pn_gir_purse purse;
    *out = NULL;
    if (len > SCHEMA_TEXT)
        return pn_fail(err, PN_E_INVALID, "a JSON schema of %zu bytes; at most %d are read", len, (int)SCHEMA_TEXT);
    pn_gir_purse_init(&purse, mem, NULL);
    pn_status status = pn_json_parse(&d, &purse.mem, PN_ACCT_GRAMMAR, json, len, &params, err);
    if (status == PN_OK)
        status = pn_gir_new(&g, &purse.mem, NULL, err);
    if (status == PN_OK && !pn_gir_steps(g, 3 * (uint64_t)d.n_nodes))   /* reading it was work, too */
        status = pn_gir_status(g, err);
    if (status == PN_OK)
        status = pn_schema_node(g, &d, PN_JSON_ROOT, PN_JSON_ROOT, o, &node, NULL, err);
    if (status == PN_OK)
        status = pn_gir_finish(g, node, out, err);
    pn_gir_free(g);
    pn_json_fini(&d);
    return pn_gir_purse_close(&purse, *out, status, err);
}
