/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_gcompile.c - from nodes to a program.
 *
 * First three questions about each node that the root reaches: can it be empty, has it a sentence at
 * all, does it come back to itself without a byte (left recursion)?  The first two are least fixed
 * points, found by propagating from the leaves upwards, each node once; rules make the graph cyclic,
 * so walking from the root down would not do.  Then code: each node is written as "behave as this
 * node, then go to `next`", so a sequence needs no glue and the last call of a rule returns straight
 * to the caller's caller (right recursion does not grow the stack).
 *
 * Nodes that are large and used more than once are written once, as if they were rules; else a node
 * used twice within a node used twice ... would double each time.
 *
 * No function here calls itself: grammars are strangers' and nest as deep as they like.
 */
#include "sample/pn_gram_impl.h"

typedef struct gcompile_item { uint32_t node, at, next; } gcompile_item;

typedef struct gcompile {
    pn_gir *b;
    pn_gprogram *p;
    pn_gwork *w;                /* the builder's: by node */
    uint32_t n_reached;
    uint32_t *order, *stack;    /* [n_reached] reached nodes, ascending; scratch */
    uint32_t *parents, n_edges; /* [n_edges] who uses a node */
    PN_GVEC(gcompile_item) todo;
} gcompile;

enum { GCOMPILE_NULLABLE = 1, GCOMPILE_PRODUCTIVE = 2 };    /* pn_gwork.has */

enum { GCOMPILE_STEPS = 150,    /* what even the smallest costs */
       GCOMPILE_RET = 0, GCOMPILE_SHARE = 16, GCOMPILE_COPIES = 8, GCOMPILE_COPY_SIZE = 64, GCOMPILE_INLINE_DFA = 12 };

/* A rule that is referred to is its body's only child of the reference, so the graph is uniform. */
static const uint32_t *gcompile_kids(const pn_gir *b, uint32_t node, uint32_t *n)
{
    const pn_gnode_rec *r = &b->nodes.v[node];
    *n = 1;
    switch (r->kind) {
    case PN_GK_SEQ: case PN_GK_ALT: *n = r->b; return b->kids.v + r->a;
    case PN_GK_REPEAT: return &r->a;
    case PN_GK_REF: return &b->rules.v[r->a].body;
    default: *n = 0; return NULL;
    }
}

static bool gcompile_nullable(const gcompile *c, uint32_t node) { return (c->w[node].has & GCOMPILE_NULLABLE) != 0; }
static bool gcompile_productive(const gcompile *c, uint32_t node) { return (c->w[node].has & GCOMPILE_PRODUCTIVE) != 0; }

static void *gcompile_alloc(gcompile *c, uint64_t n, size_t size)
{
    void *p = pn_gir_ok(c->b) ? pn_mem_calloc(c->b->mem, PN_ACCT_GRAMMAR, n, size) : NULL;
    if (!p && pn_gir_ok(c->b))
        c->b->err.status = pn_fail_nomem(&c->b->err, "compiling a grammar", n * size);
    return p;
}

/* What was written about nodes is taken back: the next grammar of this builder starts from zeroes, and
 * a small one does not pay for all nodes that there are. */
static void gcompile_fini(gcompile *c)
{
    pn_mem *m = c->b->mem;
    for (uint32_t i = 0; c->order && i < c->n_reached; i++) {
        memset(&c->w[c->order[i]], 0, sizeof *c->w);
        c->b->reached.v[c->order[i] / 32] = 0;
    }
    pn_mem_free(m, PN_ACCT_GRAMMAR, c->order, (size_t)c->n_reached * sizeof(uint32_t));
    pn_mem_free(m, PN_ACCT_GRAMMAR, c->stack, (size_t)c->n_reached * sizeof(uint32_t));
    pn_mem_free(m, PN_ACCT_GRAMMAR, c->parents, (size_t)c->n_edges * sizeof(uint32_t));
    pn_mem_free(m, PN_ACCT_GRAMMAR, c->todo.v, c->todo.cap * sizeof *c->todo.v);
}

static bool gcompile_init(gcompile *c, pn_gir *b, pn_gprogram *p)
{
    const size_t n = b->nodes.n, had = b->work.n, words = b->reached.n;
    memset(c, 0, sizeof *c);
    c->b = b;
    c->p = p;
    if (!PN_GIR_ROOM(b, b->work, n - had) || !PN_GIR_ROOM(b, b->reached, n / 32 + 1 - words))
        return false;
    memset(b->work.v + had, 0, (n - had) * sizeof *b->work.v);
    memset(b->reached.v + words, 0, (n / 32 + 1 - words) * sizeof *b->reached.v);
    b->work.n = n;
    b->reached.n = n / 32 + 1;
    c->w = b->work.v;
    return true;
}

/* ---- what is reached, and by whom --------------------------------------------------------------- */

static bool gcompile_undefined(gcompile *c, uint32_t node)
{
    const pn_grule *r = &c->b->rules.v[c->b->nodes.v[node].a];
    pn_gir_fail(c->b, PN_E_INVALID, "rule '%.*s' is used but not defined", (int)PN_MIN(r->name_len, 100u),
                c->b->text.v ? c->b->text.v + r->name : "");
    return false;
}

/* Mark what the root reaches and count who uses it. */
static bool gcompile_mark(gcompile *c, uint32_t root)
{
    PN_GVEC(uint32_t) todo = {NULL, 0, 0};
    pn_gir *b = c->b;
    bool ok = PN_GIR_ROOM(b, todo, 1);
    if (ok)
        todo.v[todo.n++] = root;
    pn_gset_add(b->reached.v, root);
    while (ok && todo.n) {
        uint32_t node = todo.v[--todo.n], n;
        const uint32_t *kids = gcompile_kids(b, node, &n);
        c->n_reached++;
        c->n_edges += n;
        c->w[node].seen = 1;
        ok = PN_GIR_ROOM(b, todo, n);
        for (uint32_t i = 0; ok && i < n; i++) {
            if (kids[i] == PN_GNODE_NONE) {
                ok = gcompile_undefined(c, node);
                break;
            }
            c->w[kids[i]].n_parents++;
            if (!pn_gset_has(b->reached.v, kids[i])) {
                pn_gset_add(b->reached.v, kids[i]);
                todo.v[todo.n++] = kids[i];
            }
        }
    }
    pn_mem_free(b->mem, PN_ACCT_GRAMMAR, todo.v, todo.cap * sizeof *todo.v);
    return ok;
}

static bool gcompile_reach(gcompile *c, uint32_t root)
{
    uint32_t at = 0;
    if (!gcompile_mark(c, root))
        return false;
    c->order = gcompile_alloc(c, c->n_reached, sizeof(uint32_t));
    c->stack = gcompile_alloc(c, c->n_reached, sizeof(uint32_t));
    for (uint32_t i = 0; c->order && i < c->b->reached.n; i++)
        for (uint32_t word = c->b->reached.v[i], bit = 0; word; word >>= 1, bit++)
            if (word & 1)
                c->order[at++] = i * 32 + bit;
    return c->stack && pn_gir_steps(c->b, GCOMPILE_STEPS + c->n_reached + c->n_edges + c->b->nodes.n / 512);
}

/* Counts become offsets, then the lists are filled from the back. */
static bool gcompile_parents(gcompile *c)
{
    uint32_t sum = 0, n;
    c->parents = gcompile_alloc(c, c->n_edges, sizeof(uint32_t));
    if (!c->parents)
        return false;
    for (uint32_t i = 0; i < c->n_reached; i++) {
        sum += c->w[c->order[i]].n_parents;
        c->w[c->order[i]].first_parent = sum;
    }
    for (uint32_t i = 0; i < c->n_reached; i++) {
        const uint32_t *kids = gcompile_kids(c->b, c->order[i], &n);
        for (uint32_t j = 0; j < n; j++)
            c->parents[--c->w[kids[j]].first_parent] = c->order[i];
    }
    return true;
}

/* ---- empty? any sentence? ------------------------------------------------------------------------ */

/* How many children must have the property before the node has it; 0: it has it by itself. */
static uint32_t gcompile_need(const gcompile *c, uint32_t node, bool nullable)
{
    const pn_gnode_rec *r = &c->b->nodes.v[node];
    switch (r->kind) {
    case PN_GK_EMPTY: return 0;
    case PN_GK_BYTES: case PN_GK_SET: case PN_GK_TOKEN: return nullable ? UINT32_MAX : 0;
    case PN_GK_DFA: return nullable && !c->b->dstates.v[r->a].accept ? UINT32_MAX : 0;
    case PN_GK_SEQ: return r->b;
    case PN_GK_REPEAT: return r->min == 0 ? 0 : 1;
    case PN_GK_ALT: case PN_GK_REF: return 1;
    default: return UINT32_MAX;
    }
}

static void gcompile_property(gcompile *c, bool nullable)
{
    const uint8_t has = nullable ? GCOMPILE_NULLABLE : GCOMPILE_PRODUCTIVE;
    uint32_t n_stack = 0;
    for (uint32_t i = 0; i < c->n_reached; i++) {
        uint32_t node = c->order[i];
        c->w[node].need = gcompile_need(c, node, nullable);
        if (c->w[node].need == 0) {
            c->w[node].has |= has;
            c->stack[n_stack++] = node;
        }
    }
    while (n_stack) {
        uint32_t node = c->stack[--n_stack];
        for (uint32_t i = 0; i < c->w[node].n_parents; i++) {
            pn_gwork *up = &c->w[c->parents[c->w[node].first_parent + i]];
            if (!(up->has & has) && --up->need == 0) {
                up->has |= has;
                c->stack[n_stack++] = (uint32_t)(up - c->w);
            }
        }
    }
}

/* ---- left recursion -------------------------------------------------------------------------------- */

static bool gcompile_left_error(gcompile *c, uint32_t n_stack, uint32_t node)
{
    const char *name = "";
    uint32_t len = 0;
    for (uint32_t i = n_stack; i-- > 0;) {      /* the first rule named on the way around */
        const pn_gnode_rec *r = &c->b->nodes.v[c->stack[i]];
        if (r->kind == PN_GK_REF) {
            name = c->b->text.v ? c->b->text.v + c->b->rules.v[r->a].name : "";
            len = c->b->rules.v[r->a].name_len;
        }
        if (c->stack[i] == node)
            break;
    }
    pn_gir_fail(c->b, PN_E_INVALID, "left recursion: rule '%.*s' can come back to itself without a character in between",
                (int)PN_MIN(len, 100u), name);
    return false;
}

/* Depth-first over the edges that can be taken without a byte; a node met while it is still open
 * closes a cycle.  seen: 1 new, 2 open, 3 done. */
static bool gcompile_left(gcompile *c)
{
    for (uint32_t i = 0; i < c->n_reached; i++) {
        uint32_t n_stack = 0;
        if (c->w[c->order[i]].seen != 1)
            continue;
        c->stack[n_stack++] = c->order[i];
        c->w[c->order[i]].seen = 2;
        while (n_stack) {
            uint32_t node = c->stack[n_stack - 1], n, k = c->w[node].at_kid++;
            const uint32_t *kids = gcompile_kids(c->b, node, &n);
            bool past = c->b->nodes.v[node].kind == PN_GK_SEQ && k > 0 && k < n && !gcompile_nullable(c, kids[k - 1]);
            if (k >= n || past) {
                c->w[node].seen = 3;
                n_stack--;
            } else if (c->w[kids[k]].seen == 2) {
                return gcompile_left_error(c, n_stack, kids[k]);
            } else if (c->w[kids[k]].seen == 1) {
                c->w[kids[k]].seen = 2;
                c->stack[n_stack++] = kids[k];
            }
        }
    }
    return true;
}

/* ---- sizes ------------------------------------------------------------------------------------------- */

/* Repetitions are written out when that is small, else they are a loop or a counter. */
static uint32_t gcompile_copies(const gcompile *c, const pn_gnode_rec *r)
{
    uint32_t n = r->max == PN_GIR_MANY ? r->min : r->max;
    if (r->max == PN_GIR_MANY && r->min <= 1)
        return 1;
    if (n > GCOMPILE_COPIES || (uint64_t)n * c->w[r->a].size > GCOMPILE_COPY_SIZE)
        return 0;                               /* counter */
    return r->max == PN_GIR_MANY ? n + 1 : n;
}

static void gcompile_sizes(gcompile *c)
{
    for (uint32_t i = 0; i < c->n_reached; i++) {
        uint32_t node = c->order[i], n;
        const pn_gnode_rec *r = &c->b->nodes.v[node];
        const uint32_t *kids = gcompile_kids(c->b, node, &n);
        uint64_t size = r->kind == PN_GK_BYTES || r->kind == PN_GK_DFA ? r->b : 1;
        uint32_t copies = r->kind == PN_GK_REPEAT ? PN_MAX(gcompile_copies(c, r), 1u) : 1;
        for (uint32_t j = 0; j < n; j++) {
            if (r->kind != PN_GK_REF)
                size += (uint64_t)c->w[kids[j]].size * copies;
            c->w[kids[j]].uses += copies;
        }
        c->w[node].size = (uint32_t)PN_MIN(size, (uint64_t)1 << 20);
        if (r->kind == PN_GK_REF)
            c->w[kids[0]].uses += 2;              /* a rule's body is always shared */
    }
}

static bool gcompile_shared(const gcompile *c, uint32_t node)
{
    return c->w[node].uses > 1 && c->w[node].size >= GCOMPILE_SHARE && c->b->nodes.v[node].kind != PN_GK_REF;
}

/* ---- code ---------------------------------------------------------------------------------------------- */

/* n new instructions, all RET for the moment; the first one's place. */
static uint32_t gcompile_new(gcompile *c, uint32_t n)
{
    uint64_t most = 4 * (uint64_t)c->b->limits.elements;
    if (pn_gir_ok(c->b) && c->p->code.n + n > most)
        pn_gir_fail(c->b, PN_E_INVALID, "the compiled grammar is too large (limit: 4 times elements, %lu)",
                    (unsigned long)c->b->limits.elements);
    if (!pn_gir_steps(c->b, 4 * (uint64_t)n) || !PN_GIR_ROOM(c->b, c->p->code, n))
        return 0;
    memset(c->p->code.v + c->p->code.n, 0, n * sizeof *c->p->code.v);
    c->p->code.n += n;
    return (uint32_t)(c->p->code.n - n);
}

static void gcompile_later(gcompile *c, uint32_t node, uint32_t at, uint32_t next)
{
    if (PN_GIR_ROOM(c->b, c->todo, 1))
        c->todo.v[c->todo.n++] = (gcompile_item){node, at, next};
}

static void gcompile_put(gcompile *c, uint32_t at, pn_ginstr in)
{
    if (pn_gir_ok(c->b))
        c->p->code.v[at] = in;
}

static void gcompile_jump(gcompile *c, uint32_t at, uint32_t to)
{
    gcompile_put(c, at, (pn_ginstr){.op = PN_GOP_JUMP, .a = to});
}

/* Code that is called: written when it is first asked for. */
static void gcompile_call(gcompile *c, uint32_t node, uint32_t at, uint32_t next)
{
    if (!c->w[node].entry) {
        c->w[node].entry = gcompile_new(c, 1);
        if (pn_gir_ok(c->b))
            gcompile_later(c, node, c->w[node].entry, GCOMPILE_RET);
    }
    if (next == GCOMPILE_RET)
        gcompile_jump(c, at, c->w[node].entry);
    else
        gcompile_put(c, at, (pn_ginstr){.op = PN_GOP_CALL, .a = c->w[node].entry, .b = next});
}

static void gcompile_bytes(gcompile *c, const pn_gnode_rec *r, uint32_t at, uint32_t next)
{
    uint32_t more = r->b > 1 ? gcompile_new(c, r->b - 1) : 0;
    for (uint32_t i = 0; i < r->b && pn_gir_ok(c->b); i++) {
        uint8_t byte = (uint8_t)c->b->text.v[r->a + i];
        uint32_t to = i + 1 < r->b ? more + i : next;
        c->p->code.v[i ? more + i - 1 : at] = (pn_ginstr){.op = PN_GOP_RANGE, .lo = byte, .hi = byte, .a = to};
    }
}

static void gcompile_set(gcompile *c, const pn_gnode_rec *r, uint32_t at, uint32_t next)
{
    pn_ginstr in = {.op = PN_GOP_RANGE, .lo = (uint8_t)r->min, .hi = (uint8_t)r->max, .a = next};
    if (!r->b && PN_GIR_ROOM(c->b, c->p->sets, 1)) {
        in.op = PN_GOP_SET;
        in.b = (uint32_t)c->p->sets.n;
        c->p->sets.v[c->p->sets.n++] = c->b->sets.v[r->a];
    }
    gcompile_put(c, at, in);
}

/* Where state i of an automaton is: the start at `at`, one without edges is `next` itself. */
static uint32_t gcompile_dfa_place(const gcompile *c, const pn_gnode_rec *r, uint32_t i, uint32_t at, uint32_t more, uint32_t next)
{
    if (i == 0)
        return at;
    return c->b->dstates.v[r->a + i].n_edges ? more + i - 1 : next;
}

static void gcompile_dfa(gcompile *c, const pn_gnode_rec *r, uint32_t at, uint32_t next)
{
    uint32_t more = r->b > 1 ? gcompile_new(c, r->b - 1) : 0;
    for (uint32_t i = 0; i < r->b && pn_gir_ok(c->b); i++) {
        const pn_gdstate *s = &c->b->dstates.v[r->a + i];
        uint32_t place = i ? more + i - 1 : at;
        if (s->n_edges == 0) {
            gcompile_jump(c, place, next);
            continue;
        }
        if (!pn_gir_steps(c->b, s->n_edges / 4) || !PN_GIR_ROOM(c->b, c->p->edges, s->n_edges))
            return;
        pn_ginstr in = {.op = PN_GOP_EDGES, .a = next, .b = (uint32_t)c->p->edges.n, .n = s->n_edges};
        in.flags = s->accept ? PN_GF_ACCEPT : 0;
        for (uint32_t j = 0; j < s->n_edges; j++) {
            pn_gdedge e = c->b->dedges.v[s->first_edge + j];
            e.to = gcompile_dfa_place(c, r, e.to, at, more, next);
            c->p->edges.v[c->p->edges.n++] = e;
        }
        gcompile_put(c, place, in);
    }
}

static void gcompile_seq(gcompile *c, const pn_gnode_rec *r, uint32_t at, uint32_t next)
{
    uint32_t more = gcompile_new(c, r->b - 1);
    for (uint32_t i = 0; i < r->b; i++)
        gcompile_later(c, c->b->kids.v[r->a + i], i ? more + i - 1 : at, i + 1 < r->b ? more + i : next);
}

static void gcompile_split(gcompile *c, uint32_t at, const uint32_t *to, uint32_t n)
{
    if (!PN_GIR_ROOM(c->b, c->p->list, n))
        return;
    gcompile_put(c, at, (pn_ginstr){.op = PN_GOP_SPLIT, .b = (uint32_t)c->p->list.n, .n = n});
    memcpy(c->p->list.v + c->p->list.n, to, n * sizeof *to);
    c->p->list.n += n;
}

static void gcompile_alt(gcompile *c, const pn_gnode_rec *r, uint32_t at, uint32_t next)
{
    if (!PN_GIR_ROOM(c->b, c->p->list, r->b))
        return;
    uint32_t more = gcompile_new(c, r->b), first = (uint32_t)c->p->list.n, n = 0;
    for (uint32_t i = 0; i < r->b && pn_gir_ok(c->b); i++) {
        uint32_t kid = c->b->kids.v[r->a + i];
        if (!gcompile_productive(c, kid))
            continue;
        c->p->list.v[first + n++] = more + i;
        gcompile_later(c, kid, more + i, next);
    }
    c->p->list.n += n;
    gcompile_put(c, at, (pn_ginstr){.op = PN_GOP_SPLIT, .b = first, .n = n});
}

/* x{m,n} written out: m copies, then n - m that may be skipped, or a loop. */
static void gcompile_unrolled(gcompile *c, const pn_gnode_rec *r, uint32_t at, uint32_t next)
{
    uint32_t place = at;
    bool many = r->max == PN_GIR_MANY;
    if (many && r->min == 1) {                  /* x+: the body, then again or on */
        uint32_t loop = gcompile_new(c, 1), to[2] = {at, next};
        gcompile_later(c, r->a, at, loop);
        gcompile_split(c, loop, to, 2);
        return;
    }
    for (uint32_t i = 0; i < r->min; i++) {
        uint32_t after = i + 1 == r->max ? next : gcompile_new(c, 1);
        gcompile_later(c, r->a, place, after);
        place = after;
    }
    if (many) {
        uint32_t body = gcompile_new(c, 1), to[2] = {body, next};
        gcompile_later(c, r->a, body, place);
        gcompile_split(c, place, to, 2);
        return;
    }
    for (uint32_t i = r->min; i < r->max; i++) {
        uint32_t body = gcompile_new(c, 1), to[2] = {body, next};
        uint32_t after = i + 1 == r->max ? next : gcompile_new(c, 1);
        gcompile_split(c, place, to, 2);
        gcompile_later(c, r->a, body, after);
        place = after;
    }
}

static void gcompile_repeat(gcompile *c, const pn_gnode_rec *in, uint32_t at, uint32_t next)
{
    pn_gnode_rec r = *in;
    if (!gcompile_productive(c, r.a)) {
        gcompile_jump(c, at, next);
        return;
    }
    if (gcompile_nullable(c, r.a))                       /* rounds may be empty, so no least number binds */
        r.min = 0;
    if ((r.max == PN_GIR_MANY && r.min <= 1) || gcompile_copies(c, &r)) {
        gcompile_unrolled(c, &r, at, next);
        return;
    }
    uint32_t loop = gcompile_new(c, 2);
    gcompile_put(c, at, (pn_ginstr){.op = PN_GOP_COUNT, .a = loop});
    gcompile_put(c, loop, (pn_ginstr){.op = PN_GOP_LOOP, .flags = gcompile_nullable(c, r.a) ? PN_GF_NULLABLE : 0, .a = loop + 1,
                                      .b = next, .min = r.min, .max = r.max});
    gcompile_later(c, r.a, loop + 1, loop);
}

static void gcompile_node(gcompile *c, gcompile_item it)
{
    pn_gnode_rec r = c->b->nodes.v[it.node];
    if (gcompile_shared(c, it.node) && it.at != c->w[it.node].entry) {
        gcompile_call(c, it.node, it.at, it.next);
        return;
    }
    switch (r.kind) {
    case PN_GK_BYTES: gcompile_bytes(c, &r, it.at, it.next); break;
    case PN_GK_SET: gcompile_set(c, &r, it.at, it.next); break;
    case PN_GK_DFA: gcompile_dfa(c, &r, it.at, it.next); break;
    case PN_GK_TOKEN:
        c->p->has_tokens = true;
        gcompile_put(c, it.at, (pn_ginstr){.op = PN_GOP_TOKEN, .flags = r.b ? PN_GF_NEGATED : 0, .a = it.next, .b = r.a});
        break;
    case PN_GK_SEQ: gcompile_seq(c, &r, it.at, it.next); break;
    case PN_GK_ALT: gcompile_alt(c, &r, it.at, it.next); break;
    case PN_GK_REPEAT: gcompile_repeat(c, &r, it.at, it.next); break;
    case PN_GK_REF: gcompile_call(c, c->b->rules.v[r.a].body, it.at, it.next); break;
    default: gcompile_jump(c, it.at, it.next); break;
    }
}

/* ---- bytes that are told apart -------------------------------------------------------------------------- */

/* A class begins wherever any test begins or ends; tests are intervals or sets of them. */
static void gcompile_classes(pn_gprogram *p)
{
    uint8_t begins[257] = {1};
    for (size_t i = 0; i < p->code.n; i++)
        if (p->code.v[i].op == PN_GOP_RANGE)
            begins[p->code.v[i].lo] = begins[p->code.v[i].hi + 1] = 1;
    for (size_t i = 0; i < p->edges.n; i++)
        begins[p->edges.v[i].lo] = begins[p->edges.v[i].hi + 1] = 1;
    uint32_t changes[8] = {0};                  /* bytes that are in a set where the byte before is not, or the reverse */
    for (size_t i = 0; i < p->sets.n; i++)
        for (uint32_t k = 0, before = 0; k < 8; before = p->sets.v[i].w[k++] >> 31)
            changes[k] |= p->sets.v[i].w[k] ^ (p->sets.v[i].w[k] << 1 | before);
    for (uint32_t b = 1; b < 256; b++)
        begins[b] |= pn_gset_has(changes, b);
    p->n_classes = 0;
    for (uint32_t b = 0; b < 256; b++) {
        if (begins[b])
            p->byte_of[p->n_classes++] = (uint8_t)b;
        p->class_of[b] = (uint8_t)(p->n_classes - 1);
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------- */

static bool gcompile_run(gcompile *c, uint32_t root, bool may_be_never)
{
    if (!gcompile_reach(c, root) || !gcompile_parents(c))
        return false;
    gcompile_property(c, true);
    gcompile_property(c, false);
    if (!gcompile_left(c))
        return false;
    if (!gcompile_productive(c, root) && !may_be_never) {
        pn_gir_fail(c->b, PN_E_INVALID, "the grammar cannot be satisfied: it has no sentence of finite length");
        return false;
    }
    gcompile_sizes(c);
    gcompile_new(c, 1);                         /* place 0: RET */
    c->p->entry = gcompile_new(c, 1);
    if (gcompile_productive(c, root))
        gcompile_later(c, root, c->p->entry, GCOMPILE_RET);
    else
        gcompile_put(c, c->p->entry, (pn_ginstr){.op = PN_GOP_SPLIT});
    while (c->todo.n && pn_gir_ok(c->b))
        gcompile_node(c, c->todo.v[--c->todo.n]);
    if (pn_gir_ok(c->b))
        gcompile_classes(c->p);
    return pn_gir_ok(c->b);
}

PN_INTERNAL pn_status pn_gram_compile(pn_gir *b, pn_gnode root, bool may_be_never, pn_gram **out, pn_err *err)
{
    gcompile c;
    if (pn_gir_ok(b) && (root == PN_GNODE_NONE || root >= b->nodes.n))
        pn_gir_fail(b, PN_E_INTERNAL, "a grammar node that does not exist was used");
    if (!pn_gir_ok(b))
        return pn_gir_status(b, err);
    pn_gram *g = pn_mem_calloc(b->mem, PN_ACCT_GRAMMAR, 1, sizeof *g);
    if (!g)
        return pn_fail_nomem(err, "a grammar", sizeof *g);
    g->mem = b->mem;
    g->limits = b->limits;
    g->refs = 1;
    pn_mutex_init(&g->lock);
    bool ok = gcompile_init(&c, b, &g->p) && gcompile_run(&c, root, may_be_never);
    gcompile_fini(&c);
    if (ok && !pn_gram_prepare(g)) {
        pn_status status = pn_gram_failed(g, err);
        pn_gram_release(g);
        return status;
    }
    if (!ok) {
        pn_gram_release(g);
        return pn_gir_status(b, err);
    }
    g->program_bytes = sizeof *g + g->p.code.cap * sizeof *g->p.code.v + g->p.sets.cap * sizeof *g->p.sets.v +
                       g->p.edges.cap * sizeof *g->p.edges.v + g->p.list.cap * sizeof *g->p.list.v;
    *out = g;
    return PN_OK;
}

PN_INTERNAL pn_status pn_gir_finish(pn_gir *b, pn_gnode root, pn_gram **out, pn_err *err)
{
    return pn_gram_compile(b, root, false, out, err);
}
