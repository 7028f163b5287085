/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_gir.c - the nodes of a grammar under construction.
 *
 * Nodes live in one array and name each other by index; a child's index is smaller than its
 * parent's, so whoever walks the array forwards meets children first.  The small algebra done here
 * (empty and never vanish from sequences and alternatives, literal neighbours join, nested
 * repetitions multiply) is not for speed alone: it keeps hostile shapes such as ((a?){1000}){1000}
 * from reaching the run time as they are.
 *
 * Invariants
 *   1. nodes.v[0] is PN_GK_NONE and is never a child.
 *   2. After the first error nothing is appended any more.
 */
#include "sample/pn_gram_impl.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- limits, errors, room -------------------------------------------------------------------- */

PN_INTERNAL void pn_gram_limits_fill(pn_gram_limits *out, const pn_gram_limits *in)
{
    static const pn_gram_limits usual = {
        1u << 20, 10000, 200000, 200, 1000000, 4096, 50000, 5000000, (size_t)64 << 20, (size_t)32 << 20,
        2048, 1000, 20000000,
    };
    *out = in ? *in : usual;
#define GIR_DEFAULT(field) if (!out->field) out->field = usual.field
    GIR_DEFAULT(text_bytes);
    GIR_DEFAULT(rules);
    GIR_DEFAULT(elements);
    GIR_DEFAULT(nesting);
    GIR_DEFAULT(repeat);
    GIR_DEFAULT(regex_bytes);
    GIR_DEFAULT(dfa_states);
    GIR_DEFAULT(compile_steps);
    GIR_DEFAULT(compiled_bytes);
    GIR_DEFAULT(cache_bytes);
    GIR_DEFAULT(configs);
    GIR_DEFAULT(depth);
    GIR_DEFAULT(mask_steps);
#undef GIR_DEFAULT
}

PN_INTERNAL pn_status pn_gir_new(pn_gir **out, pn_mem *mem, const pn_gram_limits *limits, pn_err *err)
{
    pn_gir *b = pn_mem_calloc(mem, PN_ACCT_GRAMMAR, 1, sizeof *b);
    if (!b)
        return pn_fail_nomem(err, "a grammar builder", sizeof *b);
    b->mem = mem;
    pn_gram_limits_fill(&b->limits, limits);
    if (!PN_GIR_ROOM(b, b->nodes, 1)) {
        pn_status status = pn_gir_status(b, err);
        pn_gir_free(b);
        return status;
    }
    memset(&b->nodes.v[b->nodes.n++], 0, sizeof *b->nodes.v);
    *out = b;
    return PN_OK;
}

#define GIR_FREE(b, vec) pn_mem_free((b)->mem, PN_ACCT_GRAMMAR, (vec).v, (vec).cap * sizeof *(vec).v)

PN_INTERNAL void pn_gir_free(pn_gir *b)
{
    if (!b)
        return;
    GIR_FREE(b, b->nodes);
    GIR_FREE(b, b->kids);
    GIR_FREE(b, b->text);
    GIR_FREE(b, b->sets);
    GIR_FREE(b, b->dstates);
    GIR_FREE(b, b->dedges);
    GIR_FREE(b, b->rules);
    GIR_FREE(b, b->groups);
    GIR_FREE(b, b->parts);
    GIR_FREE(b, b->work);
    GIR_FREE(b, b->reached);
    pn_mem_free(b->mem, PN_ACCT_GRAMMAR, b, sizeof *b);
}

PN_INTERNAL const pn_gram_limits *pn_gir_limits(const pn_gir *b) { return &b->limits; }
PN_INTERNAL bool pn_gir_ok(const pn_gir *b) { return b->err.status == PN_OK; }

PN_INTERNAL pn_status pn_gir_status(const pn_gir *b, pn_err *err)
{
    if (b->err.status != PN_OK && err)
        *err = b->err;
    return b->err.status;
}

PN_INTERNAL pn_gnode pn_gir_fail(pn_gir *b, pn_status status, const char *fmt, ...)
{
    if (b->err.status == PN_OK) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(b->err.text, sizeof b->err.text, fmt, ap);
        va_end(ap);
        b->err.status = status;
    }
    return PN_GNODE_NONE;
}

PN_INTERNAL bool pn_gir_steps(pn_gir *b, uint64_t n)
{
    if (b->err.status != PN_OK)
        return false;
    if (n > b->limits.compile_steps - b->steps) {
        pn_gir_fail(b, PN_E_INVALID, "the grammar takes too much work to compile (limit compile_steps: %llu)",
                    (unsigned long long)b->limits.compile_steps);
        return false;
    }
    b->steps += n;
    return true;
}

PN_INTERNAL bool pn_gir_room(pn_gir *b, void **v, size_t *cap, size_t n, size_t extra, size_t size)
{
    if (b->err.status != PN_OK)
        return false;
    if (extra > b->limits.compiled_bytes / size || n + extra > b->limits.compiled_bytes / size ||
        n + extra > UINT32_MAX / 2) {
        pn_gir_fail(b, PN_E_INVALID, "the grammar is too large (limit compiled_bytes: %zu)", b->limits.compiled_bytes);
        return false;
    }
    if (!pn_mem_grow(b->mem, PN_ACCT_GRAMMAR, v, cap, n + extra, size)) {
        b->err.status = pn_fail_nomem(&b->err, "a grammar", (uint64_t)(n + extra) * size);
        return false;
    }
    return true;
}

static void *gir_purse_alloc(pn_mem *m, pn_account a, size_t size)
{
    pn_gir_purse *p = (pn_gir_purse *)m;
    if (size > p->most - p->used) {
        p->spent = true;
        return NULL;
    }
    void *block = pn_mem_alloc(p->from, a, size);
    p->used += block ? size : 0;
    return block;
}

static void gir_purse_free(pn_mem *m, pn_account a, void *ptr, size_t size)
{
    pn_gir_purse *p = (pn_gir_purse *)m;
    p->used -= size;
    pn_mem_free(p->from, a, ptr, size);
}

PN_INTERNAL void pn_gir_purse_init(pn_gir_purse *p, pn_mem *from, const pn_gram_limits *limits)
{
    pn_gram_limits filled;
    pn_gram_limits_fill(&filled, limits);
    *p = (pn_gir_purse){{gir_purse_alloc, gir_purse_free, NULL}, from, filled.compiled_bytes, 0, false};
}

PN_INTERNAL pn_status pn_gir_purse_close(const pn_gir_purse *p, pn_gram *g, pn_status status, pn_err *err)
{
    if (g)
        g->mem = p->from;
    if (status == PN_E_NOMEM && p->spent)
        return pn_fail(err, PN_E_INVALID, "compiling takes too much memory (limit compiled_bytes: %zu)", p->most);
    return status;
}

static pn_gnode gir_add(pn_gir *b, pn_gkind kind, uint32_t x, uint32_t y)
{
    if (b->err.status != PN_OK)
        return PN_GNODE_NONE;
    if (b->nodes.n > b->limits.elements)
        return pn_gir_fail(b, PN_E_INVALID, "the grammar has too many elements (limit elements: %lu)",
                           (unsigned long)b->limits.elements);
    if (!pn_gir_steps(b, 2) || !PN_GIR_ROOM(b, b->nodes, 1))
        return PN_GNODE_NONE;
    b->nodes.v[b->nodes.n] = (pn_gnode_rec){(uint32_t)kind, x, y, 0, 0};
    return (pn_gnode)b->nodes.n++;
}

/* ---- leaves ------------------------------------------------------------------------------------ */

PN_INTERNAL pn_gnode pn_gir_empty(pn_gir *b) { return gir_add(b, PN_GK_EMPTY, 0, 0); }
PN_INTERNAL pn_gnode pn_gir_never(pn_gir *b) { return gir_add(b, PN_GK_NEVER, 0, 0); }

/* Bytes kept by the builder; false after an error. */
static bool gir_keep(pn_gir *b, const char *bytes, size_t n, uint32_t *at)
{
    if (!PN_GIR_ROOM(b, b->text, n))
        return false;
    if (n)
        memcpy(b->text.v + b->text.n, bytes, n);
    *at = (uint32_t)b->text.n;
    b->text.n += n;
    return true;
}

PN_INTERNAL pn_gnode pn_gir_bytes(pn_gir *b, const char *bytes, size_t n)
{
    uint32_t at;
    if (n == 0)
        return pn_gir_empty(b);
    if (n > b->limits.elements)
        return pn_gir_fail(b, PN_E_INVALID, "a literal of %zu bytes is too long (limit elements: %lu)", n,
                           (unsigned long)b->limits.elements);
    return gir_keep(b, bytes, n, &at) ? gir_add(b, PN_GK_BYTES, at, (uint32_t)n) : PN_GNODE_NONE;
}

PN_INTERNAL pn_gnode pn_gir_text(pn_gir *b, const char *zero_terminated)
{
    return pn_gir_bytes(b, zero_terminated, strlen(zero_terminated));
}

PN_INTERNAL pn_gnode pn_gir_byte_range(pn_gir *b, uint8_t lo, uint8_t hi)
{
    uint32_t set[8] = {0};
    for (uint32_t c = lo; c <= hi; c++)
        pn_gset_add(set, c);
    return pn_gir_byte_set(b, set);
}

PN_INTERNAL pn_gnode pn_gir_byte_set(pn_gir *b, const uint32_t set[8])
{
    uint32_t n = 0, lo = 0, hi = 0;
    for (uint32_t c = 0; c < 256; c++)
        if (pn_gset_has(set, c)) {
            lo = n++ ? lo : c;
            hi = c;
        }
    if (!n)
        return pn_gir_never(b);
    if (!PN_GIR_ROOM(b, b->sets, 1))
        return PN_GNODE_NONE;
    memcpy(b->sets.v[b->sets.n].w, set, sizeof b->sets.v[0].w);
    b->sets.n++;
    pn_gnode r = gir_add(b, PN_GK_SET, (uint32_t)b->sets.n - 1, n == hi - lo + 1);
    if (r) {
        b->nodes.v[r].min = lo;
        b->nodes.v[r].max = hi;
    }
    return r;
}

PN_INTERNAL pn_gnode pn_gir_token(pn_gir *b, pn_token id, bool negated)
{
    if (id < 0)
        return pn_gir_fail(b, PN_E_INVALID, "there is no token %ld", (long)id);
    return gir_add(b, PN_GK_TOKEN, (uint32_t)id, negated);
}

/* Bytes of the longest token at text; 0: none. */
static size_t gir_token_at(const char *text, pn_gram_find_token find, void *user, pn_token *id)
{
    for (size_t n = find ? strlen(text) : 0; n >= 3; n--) {
        *id = find(user, text, n);
        if (*id >= 0)
            return n;
    }
    return 0;
}

PN_INTERNAL pn_gnode pn_gir_mark(pn_gir *b, const char *text, pn_gram_find_token find, void *user)
{
    pn_gnode out = pn_gir_empty(b);
    size_t run = 0;
    for (const char *s = text;; s++) {
        pn_token id = -1;
        size_t n = *s ? gir_token_at(s, find, user, &id) : 0;
        if ((!*s || n) && run)
            out = pn_gir_seq2(b, out, pn_gir_bytes(b, s - run, run));
        if (!*s)
            return out;
        run = n ? 0 : run + 1;
        if (n) {
            out = pn_gir_seq2(b, out, pn_gir_token(b, id, false));
            s += n - 1;
        }
    }
}

/* ---- automata ----------------------------------------------------------------------------------- */

/* Count the edges of each state and check that they are sane. */
static bool gir_dfa_count(pn_gir *b, const pn_gedge *edges, size_t n_edges, uint32_t n_states, pn_gdstate *st)
{
    for (size_t i = 0; i < n_edges; i++) {
        if (edges[i].from >= n_states || edges[i].to >= n_states || edges[i].lo > edges[i].hi) {
            pn_gir_fail(b, PN_E_INVALID, "edge %zu of an automaton of %lu states is out of range", i,
                        (unsigned long)n_states);
            return false;
        }
        st[edges[i].from].n_edges++;
    }
    return true;
}

/* Edges of a state in byte order; neighbours with the same target join. */
static void gir_dfa_sort(pn_gir *b, pn_gdstate *s)
{
    pn_gdedge *e = b->dedges.v + s->first_edge;
    uint32_t kept = 0;
    for (uint32_t i = 1; i < s->n_edges; i++) {         /* few, and mostly in order already */
        pn_gdedge x = e[i];
        uint32_t j = i;
        for (; j > 0 && e[j - 1].lo > x.lo; j--)
            e[j] = e[j - 1];
        e[j] = x;
    }
    for (uint32_t i = 0; i < s->n_edges; i++) {
        if (kept && e[kept - 1].to == e[i].to && e[kept - 1].hi + 1 == e[i].lo)
            e[kept - 1].hi = e[i].hi;
        else
            e[kept++] = e[i];
    }
    s->n_edges = kept;
}

/* Cut edges into states from which no accepting state can be reached.  useful[] is scratch; false:
 * the start is such a state itself.  Backwards, because most edges lead to higher states. */
static bool gir_dfa_prune(pn_gir *b, pn_gdstate *st, uint32_t n_states, uint8_t *useful)
{
    bool again = true;
    for (uint32_t i = 0; i < n_states; i++)
        useful[i] = st[i].accept != 0;
    while (again && pn_gir_steps(b, n_states)) {
        again = false;
        for (uint32_t i = n_states; i-- > 0;)
            for (uint32_t j = 0; j < st[i].n_edges && !useful[i]; j++)
                if (useful[b->dedges.v[st[i].first_edge + j].to])
                    useful[i] = 1, again = true;
    }
    for (uint32_t i = 0; i < n_states; i++) {
        pn_gdedge *e = b->dedges.v + st[i].first_edge;
        uint32_t kept = 0;
        for (uint32_t j = 0; j < st[i].n_edges; j++)
            if (useful[e[j].to])
                e[kept++] = e[j];
        st[i].n_edges = kept;
    }
    return useful[0];
}

PN_INTERNAL pn_gnode pn_gir_dfa(pn_gir *b, const pn_gedge *edges, size_t n_edges, const uint8_t *accept, uint32_t n_states)
{
    if (n_states == 0)
        return pn_gir_never(b);
    if (n_states > b->limits.elements)
        return pn_gir_fail(b, PN_E_INVALID, "an automaton of %lu states is too large (limit elements: %lu)",
                           (unsigned long)n_states, (unsigned long)b->limits.elements);
    if (!pn_gir_steps(b, (n_edges + n_states) / 2) || !PN_GIR_ROOM(b, b->dstates, n_states) || !PN_GIR_ROOM(b, b->dedges, n_edges + 1))
        return PN_GNODE_NONE;
    pn_gdstate *st = b->dstates.v + b->dstates.n;
    memset(st, 0, n_states * sizeof *st);
    if (!gir_dfa_count(b, edges, n_edges, n_states, st))
        return PN_GNODE_NONE;
    uint32_t at = (uint32_t)b->dedges.n;
    for (uint32_t i = 0; i < n_states; i++) {
        st[i].first_edge = at;
        at += st[i].n_edges;
        st[i].n_edges = 0;
        st[i].accept = accept[i] != 0;
    }
    for (size_t i = 0; i < n_edges; i++) {
        pn_gdstate *s = &st[edges[i].from];
        b->dedges.v[s->first_edge + s->n_edges++] = (pn_gdedge){edges[i].lo, edges[i].hi, edges[i].to};
    }
    for (uint32_t i = 0; i < n_states; i++)
        gir_dfa_sort(b, &st[i]);
    uint8_t *useful = pn_mem_alloc(b->mem, PN_ACCT_GRAMMAR, n_states);
    if (!useful) {
        b->err.status = pn_fail_nomem(&b->err, "an automaton", n_states);
        return PN_GNODE_NONE;
    }
    bool any = gir_dfa_prune(b, st, n_states, useful);
    pn_mem_free(b->mem, PN_ACCT_GRAMMAR, useful, n_states);
    if (!any)
        return pn_gir_never(b);
    b->dstates.n += n_states;
    b->dedges.n += n_edges;
    return gir_add(b, PN_GK_DFA, (uint32_t)(b->dstates.n - n_states), n_states);
}

/* ---- combining ---------------------------------------------------------------------------------- */

static bool gir_valid(pn_gir *b, pn_gnode x)
{
    if (b->err.status != PN_OK)
        return false;
    if (x == PN_GNODE_NONE || x >= b->nodes.n) {
        pn_gir_fail(b, PN_E_INTERNAL, "a grammar node that does not exist was used");
        return false;
    }
    return true;
}

static bool gir_kid(pn_gir *b, pn_gnode x)
{
    if (!PN_GIR_ROOM(b, b->kids, 1))
        return false;
    b->kids.v[b->kids.n++] = x;
    return true;
}

/* Close a list of kids that began at `first`: 0 kids give `none`, one is itself. */
static pn_gnode gir_list(pn_gir *b, pn_gkind kind, size_t first, pn_gkind none)
{
    size_t n = b->kids.n - first;
    if (b->err.status != PN_OK)
        return PN_GNODE_NONE;
    if (n == 0)
        return gir_add(b, none, 0, 0);
    if (n == 1) {
        b->kids.n = first;
        return b->kids.v[first];
    }
    return gir_add(b, kind, (uint32_t)first, (uint32_t)n);
}

/* Append literal x to the literal that is the last kid, when there is one. */
static bool gir_join(pn_gir *b, size_t first, pn_gnode x, bool *joined)
{
    *joined = false;
    if (b->kids.n == first || b->nodes.v[x].kind != PN_GK_BYTES)
        return true;
    pn_gnode last = b->kids.v[b->kids.n - 1];
    pn_gnode_rec l = b->nodes.v[last], r = b->nodes.v[x];
    if (l.kind != PN_GK_BYTES)
        return true;
    if (l.a + l.b == r.a) {                     /* they are neighbours already */
        last = gir_add(b, PN_GK_BYTES, l.a, l.b + r.b);
    } else {
        if (l.b + r.b > 4096)                   /* do not copy long ones again and again */
            return true;
        if (!PN_GIR_ROOM(b, b->text, (size_t)l.b + r.b))
            return false;
        memcpy(b->text.v + b->text.n, b->text.v + l.a, l.b);
        memcpy(b->text.v + b->text.n + l.b, b->text.v + r.a, r.b);
        b->text.n += (size_t)l.b + r.b;
        last = gir_add(b, PN_GK_BYTES, (uint32_t)(b->text.n - l.b - r.b), l.b + r.b);
    }
    b->kids.v[b->kids.n - 1] = last;
    *joined = true;
    return last != PN_GNODE_NONE;
}

PN_INTERNAL pn_gnode pn_gir_seq(pn_gir *b, const pn_gnode *parts, size_t n)
{
    size_t first = b->kids.n;
    for (size_t i = 0; i < n; i++) {
        bool joined;
        if (!gir_valid(b, parts[i]))
            return PN_GNODE_NONE;
        uint32_t kind = b->nodes.v[parts[i]].kind;
        if (kind == PN_GK_EMPTY)
            continue;
        if (kind == PN_GK_NEVER) {
            b->kids.n = first;
            return parts[i];
        }
        if (!gir_join(b, first, parts[i], &joined) || (!joined && !gir_kid(b, parts[i])))
            return PN_GNODE_NONE;
    }
    return gir_list(b, PN_GK_SEQ, first, PN_GK_EMPTY);
}

PN_INTERNAL pn_gnode pn_gir_seq2(pn_gir *b, pn_gnode x, pn_gnode y)
{
    const pn_gnode parts[2] = {x, y};
    return pn_gir_seq(b, parts, 2);
}

PN_INTERNAL pn_gnode pn_gir_seq3(pn_gir *b, pn_gnode x, pn_gnode y, pn_gnode z)
{
    const pn_gnode parts[3] = {x, y, z};
    return pn_gir_seq(b, parts, 3);
}

/* Many literals side by side become one trie, in place among the kids. */
static bool gir_alt_words(pn_gir *b, size_t first)
{
    size_t n_words = 0, keep = first;
    for (size_t i = first; i < b->kids.n; i++)
        n_words += b->nodes.v[b->kids.v[i]].kind == PN_GK_BYTES;
    if (n_words < 3)
        return true;
    pn_bytes *words = pn_mem_calloc(b->mem, PN_ACCT_GRAMMAR, n_words, sizeof *words);
    size_t at = 0;
    if (!words) {
        b->err.status = pn_fail_nomem(&b->err, "a list of literals", (uint64_t)n_words * sizeof *words);
        return false;
    }
    for (size_t i = first; i < b->kids.n; i++) {
        pn_gnode_rec r = b->nodes.v[b->kids.v[i]];
        if (r.kind == PN_GK_BYTES)
            words[at++] = (pn_bytes){b->text.v + r.a, r.b};
        else
            b->kids.v[keep++] = b->kids.v[i];
    }
    b->kids.n = keep;
    pn_gnode trie = pn_gir_words(b, words, at);         /* does not touch text, so words stay valid */
    pn_mem_free(b->mem, PN_ACCT_GRAMMAR, words, n_words * sizeof *words);
    return trie && gir_kid(b, trie);
}

PN_INTERNAL pn_gnode pn_gir_alt(pn_gir *b, const pn_gnode *parts, size_t n)
{
    size_t first = b->kids.n;
    bool empty = false;
    for (size_t i = 0; i < n; i++) {
        if (!gir_valid(b, parts[i]))
            return PN_GNODE_NONE;
        uint32_t kind = b->nodes.v[parts[i]].kind;
        if (kind == PN_GK_NEVER || (kind == PN_GK_EMPTY && empty))
            continue;
        empty = empty || kind == PN_GK_EMPTY;
        if (!gir_kid(b, parts[i]))
            return PN_GNODE_NONE;
    }
    if (!gir_alt_words(b, first))
        return PN_GNODE_NONE;
    return gir_list(b, PN_GK_ALT, first, PN_GK_NEVER);
}

PN_INTERNAL pn_gnode pn_gir_alt2(pn_gir *b, pn_gnode x, pn_gnode y)
{
    const pn_gnode parts[2] = {x, y};
    return pn_gir_alt(b, parts, 2);
}

PN_INTERNAL pn_gnode pn_gir_opt(pn_gir *b, pn_gnode x) { return pn_gir_repeat(b, x, 0, 1); }

/* (x{m1,n1}){m2,n2} is x{m1 m2, n1 n2} when the ranges k m1 .. k n1 leave no gap for k = m2 .. n2. */
static bool gir_repeat_merges(const pn_gnode_rec *in, uint32_t min, uint32_t max)
{
    if (in->max == PN_GIR_MANY)
        return in->min <= 1 || min == max || min >= 1;
    if (min == max)
        return true;
    if (min == 0)
        return in->min <= 1;
    return (uint64_t)min * in->max + 1 >= (uint64_t)(min + 1) * in->min;
}

static uint64_t gir_times(uint32_t x, uint32_t y)
{
    if (x == 0 || y == 0)
        return 0;
    if (x == PN_GIR_MANY || y == PN_GIR_MANY)
        return PN_GIR_MANY;
    return (uint64_t)x * y;
}

PN_INTERNAL pn_gnode pn_gir_repeat(pn_gir *b, pn_gnode x, uint32_t min, uint32_t max)
{
    if (!gir_valid(b, x))
        return PN_GNODE_NONE;
    pn_gnode_rec in = b->nodes.v[x];
    if (max < min)
        return pn_gir_fail(b, PN_E_INVALID, "a repetition of at least %lu and at most %lu times is reversed",
                           (unsigned long)min, (unsigned long)max);
    uint32_t inner = in.kind != PN_GK_REPEAT ? 1 : in.max != PN_GIR_MANY ? in.max : PN_MAX(in.min, 1u);
    uint32_t bound = max == PN_GIR_MANY ? min : max;
    if ((uint64_t)PN_MAX(bound, 1u) * PN_MAX(inner, 1u) > b->limits.repeat)
        return pn_gir_fail(b, PN_E_INVALID, "a repetition of %lu times %lu is too large (limit repeat: %lu)",
                           (unsigned long)bound, (unsigned long)inner, (unsigned long)b->limits.repeat);
    if (max == 0 || in.kind == PN_GK_EMPTY)
        return pn_gir_empty(b);
    if (in.kind == PN_GK_NEVER)
        return min == 0 ? pn_gir_empty(b) : x;
    if (min == 1 && max == 1)
        return x;
    if (in.kind == PN_GK_REPEAT && gir_repeat_merges(&in, min, max)) {
        uint64_t lo = gir_times(min, in.min), hi = gir_times(max, in.max);
        x = in.a;
        min = (uint32_t)lo;
        max = (uint32_t)PN_MIN(hi, (uint64_t)PN_GIR_MANY);
    }
    pn_gnode r = gir_add(b, PN_GK_REPEAT, x, 0);
    if (r) {
        b->nodes.v[r].min = min;
        b->nodes.v[r].max = max;
    }
    return r;
}

/* ---- groups -------------------------------------------------------------------------------------- */

PN_INTERNAL bool pn_gir_group_open(pn_gir *b, size_t at)
{
    if (!PN_GIR_ROOM(b, b->groups, 1))
        return false;
    b->groups.v[b->groups.n++] = (pn_ggroup){(uint32_t)b->parts.n, (uint32_t)b->parts.n, at};
    return true;
}

PN_INTERNAL bool pn_gir_group_item(pn_gir *b, pn_gnode x)
{
    if (!x || !PN_GIR_ROOM(b, b->parts, 1))
        return false;
    b->parts.v[b->parts.n++] = x;
    return true;
}

PN_INTERNAL pn_gnode pn_gir_group_sequence(pn_gir *b)
{
    size_t first = b->groups.v[b->groups.n - 1].items, n = b->parts.n - first;
    b->parts.n = first;
    return n ? pn_gir_seq(b, b->parts.v + first, n) : pn_gir_empty(b);
}

PN_INTERNAL bool pn_gir_group_alternative(pn_gir *b, pn_gnode x)
{
    if (!pn_gir_group_item(b, x))
        return false;
    b->groups.v[b->groups.n - 1].items = (uint32_t)b->parts.n;
    return true;
}

PN_INTERNAL pn_gnode pn_gir_group_close(pn_gir *b)
{
    size_t first = b->groups.v[--b->groups.n].first, n = b->parts.n - first;
    b->parts.n = first;
    return pn_gir_alt(b, b->parts.v + first, n);
}

PN_INTERNAL void pn_gir_group_unwind(pn_gir *b, size_t depth)
{
    if (depth < b->groups.n) {
        b->parts.n = b->groups.v[depth].first;
        b->groups.n = depth;
    }
}

/* ---- rules --------------------------------------------------------------------------------------- */

PN_INTERNAL uint32_t pn_gir_rule_n(pn_gir *b, const char *name, size_t len)
{
    uint32_t at = 0;
    if (b->err.status == PN_OK && b->rules.n >= b->limits.rules)
        pn_gir_fail(b, PN_E_INVALID, "the grammar has too many rules (limit rules: %lu)", (unsigned long)b->limits.rules);
    if (!gir_keep(b, name, len, &at) || !PN_GIR_ROOM(b, b->rules, 1))
        return 0;
    b->rules.v[b->rules.n] = (pn_grule){PN_GNODE_NONE, at, (uint32_t)len};
    return (uint32_t)b->rules.n++;
}

PN_INTERNAL uint32_t pn_gir_rule(pn_gir *b, const char *name)
{
    return pn_gir_rule_n(b, name ? name : "", name ? strlen(name) : 0);
}

PN_INTERNAL void pn_gir_define(pn_gir *b, uint32_t rule, pn_gnode body)
{
    if (!gir_valid(b, body))
        return;
    if (rule >= b->rules.n)
        pn_gir_fail(b, PN_E_INTERNAL, "a grammar rule that does not exist was defined");
    else
        b->rules.v[rule].body = body;
}

PN_INTERNAL bool pn_gir_defined(const pn_gir *b, uint32_t rule)
{
    return rule < b->rules.n && b->rules.v[rule].body != PN_GNODE_NONE;
}

PN_INTERNAL pn_gnode pn_gir_ref(pn_gir *b, uint32_t rule)
{
    if (b->err.status == PN_OK && rule >= b->rules.n)
        return pn_gir_fail(b, PN_E_INTERNAL, "a grammar rule that does not exist was used");
    return gir_add(b, PN_GK_REF, rule, 0);
}

#undef GIR_FREE
