/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_gproduct.c - intersection and difference of regular nodes, as an automaton.
 *
 * Both operands are compiled like whole grammars and run side by side: their states are numbers already
 * (pn_gmatch.c makes a DFA on demand), so the product is a breadth-first search over pairs of numbers,
 * one byte class at a time.  No separate determinisation, counters and shared stacks included.
 */
#include "sample/pn_gram_impl.h"

typedef struct gproduct {
    pn_gir *b;
    pn_gram *x, *y;
    bool negate;                    /* x and not y */
    PN_GVEC(uint64_t) pairs;        /* state of x << 32 | state of y; numbered as found */
    PN_GVEC(pn_gedge) edges;
    uint32_t n_parts;
    uint8_t part[256];              /* first bytes of the intervals that neither program divides */
    uint32_t *index;                /* hash table of pair number + 1 */
    size_t index_cap;
} gproduct;

static uint64_t gproduct_mix(uint64_t x)
{
    x = (x ^ (x >> 32)) * 0x9E3779B97F4A7C15u;
    return x ^ (x >> 29);
}

static bool gproduct_rehash(gproduct *p, size_t cap)
{
    uint32_t *index = pn_mem_calloc(p->b->mem, PN_ACCT_GRAMMAR, cap, sizeof *index);
    if (!index) {
        p->b->err.status = pn_fail_nomem(&p->b->err, "an automaton", (uint64_t)cap * sizeof *index);
        return false;
    }
    for (uint32_t i = 0; i < p->pairs.n; i++) {
        size_t at = (size_t)gproduct_mix(p->pairs.v[i]) & (cap - 1);
        while (index[at])
            at = (at + 1) & (cap - 1);
        index[at] = i + 1;
    }
    pn_mem_free(p->b->mem, PN_ACCT_GRAMMAR, p->index, p->index_cap * sizeof *index);
    p->index = index;
    p->index_cap = cap;
    return true;
}

/* The number of a pair; UINT32_MAX after an error. */
static uint32_t gproduct_pair(gproduct *p, uint32_t sx, uint32_t sy)
{
    uint64_t pair = (uint64_t)sx << 32 | sy;
    if (p->pairs.n * 2 >= p->index_cap && !gproduct_rehash(p, p->index_cap ? p->index_cap * 2 : 64))
        return UINT32_MAX;
    size_t at = (size_t)gproduct_mix(pair) & (p->index_cap - 1);
    for (; p->index[at]; at = (at + 1) & (p->index_cap - 1))
        if (p->pairs.v[p->index[at] - 1] == pair)
            return p->index[at] - 1;
    if (p->pairs.n >= p->b->limits.dfa_states) {
        pn_gir_fail(p->b, PN_E_INVALID, "a combination of patterns needs too many states (limit dfa_states: %lu)",
                    (unsigned long)p->b->limits.dfa_states);
        return UINT32_MAX;
    }
    if (!PN_GIR_ROOM(p->b, p->pairs, 1))
        return UINT32_MAX;
    p->pairs.v[p->pairs.n] = pair;
    p->index[at] = (uint32_t)p->pairs.n + 1;
    return (uint32_t)p->pairs.n++;
}

static uint32_t gproduct_step(gproduct *p, pn_gram *g, uint32_t state, uint8_t byte)
{
    uint64_t before = g->steps;
    uint32_t to = pn_gram_step(g, state, byte);
    if (to == PN_GS_FAIL)
        p->b->err.status = pn_gram_failed(g, &p->b->err);
    return pn_gir_steps(p->b, g->steps - before) ? to : PN_GS_FAIL;
}

/* All edges of pair number i, bytes that neither program tells apart at once. */
static bool gproduct_expand(gproduct *p, uint32_t i)
{
    uint32_t sx = (uint32_t)(p->pairs.v[i] >> 32), sy = (uint32_t)p->pairs.v[i];
    if (!pn_gir_steps(p->b, p->n_parts + 6))
        return false;
    for (uint32_t k = 0; k < p->n_parts; k++) {
        uint32_t lo = p->part[k], hi = k + 1 < p->n_parts ? p->part[k + 1] - 1u : 255;
        uint32_t tx = gproduct_step(p, p->x, sx, (uint8_t)lo), ty = PN_GS_DEAD, to;
        if (tx != PN_GS_DEAD && tx != PN_GS_FAIL)
            ty = gproduct_step(p, p->y, sy, (uint8_t)lo);
        if (tx == PN_GS_FAIL || ty == PN_GS_FAIL)
            return false;
        if (tx != PN_GS_DEAD && (p->negate || ty != PN_GS_DEAD)) {
            if ((to = gproduct_pair(p, tx, ty)) == UINT32_MAX || !PN_GIR_ROOM(p->b, p->edges, 1))
                return false;
            p->edges.v[p->edges.n++] = (pn_gedge){i, to, (uint8_t)lo, (uint8_t)hi};
        }
    }
    return true;
}

static pn_gnode gproduct_finish(gproduct *p)
{
    uint32_t n = (uint32_t)p->pairs.n;
    uint8_t *accept = pn_mem_calloc(p->b->mem, PN_ACCT_GRAMMAR, n, 1);
    if (!accept) {
        p->b->err.status = pn_fail_nomem(&p->b->err, "an automaton", n);
        return PN_GNODE_NONE;
    }
    for (uint32_t i = 0; i < n; i++) {
        bool in_x = (p->x->states.v[p->pairs.v[i] >> 32].flags & PN_GS_ACCEPT) != 0;
        bool in_y = (p->y->states.v[(uint32_t)p->pairs.v[i]].flags & PN_GS_ACCEPT) != 0;
        accept[i] = in_x && in_y != p->negate;
    }
    pn_gnode node = pn_gir_dfa(p->b, p->edges.v, p->edges.n, accept, n);
    pn_mem_free(p->b->mem, PN_ACCT_GRAMMAR, accept, n);
    return node;
}

static pn_gnode gproduct_run(gproduct *p)
{
    if (p->x->p.has_tokens || p->y->p.has_tokens)
        return pn_gir_fail(p->b, PN_E_INTERNAL, "token terminals cannot be intersected");
    for (uint32_t c = 0; c < 256; c++)
        if (c == 0 || p->x->p.class_of[c] != p->x->p.class_of[c - 1] || p->y->p.class_of[c] != p->y->p.class_of[c - 1])
            p->part[p->n_parts++] = (uint8_t)c;
    if (gproduct_pair(p, p->x->start, p->y->start) == UINT32_MAX)
        return PN_GNODE_NONE;
    for (uint32_t i = 0; i < p->pairs.n; i++)
        if (!gproduct_expand(p, i))
            return PN_GNODE_NONE;
    return gproduct_finish(p);
}

static pn_gnode gproduct_node(pn_gir *b, pn_gnode x, pn_gnode y, bool negate)
{
    gproduct p;
    pn_gnode node = PN_GNODE_NONE;
    memset(&p, 0, sizeof p);
    p.b = b;
    p.negate = negate;
    pn_status status = pn_gram_compile(b, x, true, &p.x, &b->err);
    if (status == PN_OK)
        status = pn_gram_compile(b, y, true, &p.y, &b->err);
    if (status == PN_OK)
        node = gproduct_run(&p);
    pn_gram_release(p.x);
    pn_gram_release(p.y);
    pn_mem_free(b->mem, PN_ACCT_GRAMMAR, p.pairs.v, p.pairs.cap * sizeof *p.pairs.v);
    pn_mem_free(b->mem, PN_ACCT_GRAMMAR, p.edges.v, p.edges.cap * sizeof *p.edges.v);
    pn_mem_free(b->mem, PN_ACCT_GRAMMAR, p.index, p.index_cap * sizeof *p.index);
    return node;
}

PN_INTERNAL pn_gnode pn_gir_and(pn_gir *b, pn_gnode x, pn_gnode y) { return gproduct_node(b, x, y, false); }
PN_INTERNAL pn_gnode pn_gir_and_not(pn_gir *b, pn_gnode x, pn_gnode y) { return gproduct_node(b, x, y, true); }

PN_INTERNAL bool pn_gir_is_never(pn_gir *b, pn_gnode x)
{
    pn_gram *g;
    uint32_t kind = pn_gir_ok(b) && x < b->nodes.n ? b->nodes.v[x].kind : PN_GK_NONE;
    if (kind == PN_GK_DFA || kind == PN_GK_BYTES || kind == PN_GK_SET || kind == PN_GK_EMPTY)
        return false;                           /* an automaton without a sentence was never made */
    if (!pn_gir_ok(b) || pn_gram_compile(b, x, true, &g, &b->err) != PN_OK)
        return true;
    bool never = g->start == PN_GS_DEAD;
    pn_gram_release(g);
    return never;
}
