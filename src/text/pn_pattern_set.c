/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_pattern_set.c - sets of code points as ranges.
 */
#include "text/pn_pattern_impl.h"

#define PSET_TOP 0x10FFFFu

PN_INTERNAL void pn_pat_set_fini(pn_pat_set *s)
{
    pn_mem_free(s->mem, PN_ACCT_VOCAB, s->r, s->cap * sizeof *s->r);
    s->r = NULL;
    s->n = s->cap = 0;
}

PN_INTERNAL bool pn_pat_set_add(pn_pat_set *s, uint32_t a, uint32_t b)
{
    if (s->n && a == s->r[s->n - 1].b + 1 && b >= a) {
        s->r[s->n - 1].b = b;                   /* what comes in order stays short */
        return true;
    }
    if (s->n == PN_PAT_MAX_RANGES || !pn_mem_grow(s->mem, PN_ACCT_VOCAB, (void **)&s->r, &s->cap, s->n + 1, sizeof *s->r))
        return false;
    s->r[s->n++] = (pn_uni_pair){a, b};
    return true;
}

PN_INTERNAL bool pn_pat_set_join(pn_pat_set *s, const pn_pat_set *other)
{
    bool ok = true;
    for (size_t i = 0; i < other->n && ok; i++)
        ok = pn_pat_set_add(s, other->r[i].a, other->r[i].b);
    return ok;
}

PN_INTERNAL void pn_pat_set_sort(pn_pat_set *s)
{
    size_t joined = 0;
    for (size_t gap = s->n / 2; gap; gap /= 2)          /* shell sort: no libc qsort, no recursion */
        for (size_t i = gap; i < s->n; i++) {
            pn_uni_pair p = s->r[i];
            size_t at = i;
            for (; at >= gap && s->r[at - gap].a > p.a; at -= gap)
                s->r[at] = s->r[at - gap];
            s->r[at] = p;
        }
    for (size_t i = 0; i < s->n; i++)
        if (joined && s->r[i].a <= s->r[joined - 1].b + 1)
            s->r[joined - 1].b = PN_MAX(s->r[joined - 1].b, s->r[i].b);
        else
            s->r[joined++] = s->r[i];
    s->n = joined;
}

PN_INTERNAL bool pn_pat_set_not(pn_pat_set *s)
{
    pn_pat_set out = {.mem = s->mem};
    uint32_t next = 0;
    bool ok = true;
    for (size_t i = 0; i < s->n && ok; i++) {
        if (s->r[i].a > next)
            ok = pn_pat_set_add(&out, next, s->r[i].a - 1);
        next = s->r[i].b + 1;
    }
    if (ok && next <= PSET_TOP)
        ok = pn_pat_set_add(&out, next, PSET_TOP);
    pn_pat_set_fini(s);
    *s = out;
    return ok;
}

PN_INTERNAL bool pn_pat_set_and(pn_pat_set *s, const pn_pat_set *other)
{
    pn_pat_set out = {.mem = s->mem};
    bool ok = true;
    for (size_t i = 0, k = 0; i < s->n && k < other->n && ok;) {
        uint32_t a = PN_MAX(s->r[i].a, other->r[k].a), b = PN_MIN(s->r[i].b, other->r[k].b);
        if (a <= b)
            ok = pn_pat_set_add(&out, a, b);
        if (s->r[i].b < other->r[k].b)
            i++;
        else
            k++;
    }
    pn_pat_set_fini(s);
    *s = out;
    return ok;
}

PN_INTERNAL bool pn_pat_set_same(const pn_pat_set *a, const pn_pat_set *b)
{
    return a->n == b->n && (!a->n || memcmp(a->r, b->r, a->n * sizeof *a->r) == 0);
}

/* The table has runs of one category each, so no code point is looked up by itself. */
PN_INTERNAL bool pn_pat_set_class(pn_pat_set *s, uint64_t mask, const pn_uni_pair *more, bool negated)
{
    static const pn_uni_pair spaces[] = {
        {0x09, 0x0D}, {0x20, 0x20}, {0x85, 0x85}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A},
        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
    };
    const pn_uni_tables *t = pn_uni_tab();
    uint64_t categories = mask & (PN_US_WS - 1);
    pn_pat_set own = {.mem = s->mem};
    bool ok = true;
    for (size_t i = 0; i < t->n_runs && ok && categories; i++)
        if (categories >> (t->runs[i] & 31) & 1)
            ok = pn_pat_set_add(&own, t->runs[i] >> 5, i + 1 < t->n_runs ? (t->runs[i + 1] >> 5) - 1 : PSET_TOP);
    for (size_t i = 0; i < PN_COUNT_OF(spaces) && ok && (mask & PN_US_WS); i++)
        ok = pn_pat_set_add(&own, spaces[i].a, spaces[i].b);
    for (size_t i = 0; i < t->n_han && ok && (mask & PN_US_HAN); i++)
        ok = pn_pat_set_add(&own, t->han[i].a, t->han[i].b);
    for (; more && more->b && ok; more++)
        ok = pn_pat_set_add(&own, more->a, more->b);
    pn_pat_set_sort(&own);
    ok = ok && (!negated || pn_pat_set_not(&own)) && pn_pat_set_join(s, &own);
    pn_pat_set_fini(&own);
    return ok;
}

#undef PSET_TOP
