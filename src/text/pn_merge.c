/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_merge.c - the search and the heap.
 *
 * Heap entries are (priority << 32 | index of the left symbol, joint length, result).  A symbol never
 * moves its start and only grows, so an entry is stale exactly when the left symbol is gone or the
 * two lengths no longer add up.
 */
#include "text/pn_merge.h"

#define MERGE_SCAN 32
#define MERGE_NONE UINT32_MAX

PN_INTERNAL void pn_merge_init(pn_merge *m, pn_mem *mem) { *m = (pn_merge){.mem = mem, .scan_max = MERGE_SCAN}; }

PN_INTERNAL void pn_merge_fini(pn_merge *m)
{
    if (m->syms)
        pn_mem_free(m->mem, PN_ACCT_MISC, m->syms, m->cap * sizeof *m->syms);
    if (m->heap)
        pn_mem_free(m->mem, PN_ACCT_MISC, m->heap, m->cap_heap * sizeof *m->heap);
    m->syms = NULL;
    m->heap = NULL;
    m->n = m->cap = m->n_heap = m->cap_heap = 0;
}

PN_INTERNAL bool pn_merge_reserve(pn_merge *m, size_t n)
{
    return pn_mem_grow(m->mem, PN_ACCT_MISC, (void **)&m->syms, &m->cap, n, sizeof *m->syms);
}

/* Priorities of all pairs on the stack, the best found by looking at each. */
static void merge_by_scan(pn_merge *m, pn_merge_lookup lookup, const void *ctx)
{
    uint32_t prio[MERGE_SCAN];
    int32_t to[MERGE_SCAN];             /* what pair i, i + 1 becomes */
    bool can[MERGE_SCAN];
    pn_sym *s = m->syms;
    size_t n = m->n;
    for (size_t i = 0; i + 1 < n; i++)
        can[i] = lookup(ctx, &s[i], &s[i + 1], &prio[i], &to[i]);
    while (n > 1) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++)
            if (can[i] && (best == n || prio[i] < prio[best]))
                best = i;
        if (best == n)
            break;
        s[best].len += s[best + 1].len;
        s[best].id = to[best];
        for (size_t i = best + 1; i + 1 < n; i++) {
            s[i] = s[i + 1];
            can[i] = i + 2 < n && can[i + 1];
            if (can[i]) {
                prio[i] = prio[i + 1];
                to[i] = to[i + 1];
            }
        }
        n--;
        can[best] = best + 1 < n && lookup(ctx, &s[best], &s[best + 1], &prio[best], &to[best]);
        if (best)
            can[best - 1] = lookup(ctx, &s[best - 1], &s[best], &prio[best - 1], &to[best - 1]);
    }
    m->n = n;
}

static bool merge_push(pn_merge *m, pn_merge_lookup lookup, const void *ctx, uint32_t left)
{
    pn_sym *a = &m->syms[left];
    uint32_t prio;
    int32_t id;
    if (a->next == MERGE_NONE || !lookup(ctx, a, &m->syms[a->next], &prio, &id))
        return true;
    if (!pn_mem_grow(m->mem, PN_ACCT_MISC, (void **)&m->heap, &m->cap_heap, m->n_heap + 1, sizeof *m->heap))
        return false;
    pn_merge_cand c = {(uint64_t)prio << 32 | left, a->len + m->syms[a->next].len, id};
    size_t i = m->n_heap++;
    for (; i && m->heap[(i - 1) / 2].key > c.key; i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = c;
    return true;
}

static pn_merge_cand merge_pop(pn_merge *m)
{
    pn_merge_cand top = m->heap[0], c = m->heap[--m->n_heap];
    size_t i = 0, n = m->n_heap;
    for (size_t k; (k = 2 * i + 1) < n; i = k) {
        if (k + 1 < n && m->heap[k + 1].key < m->heap[k].key)
            k++;
        if (c.key <= m->heap[k].key)
            break;
        m->heap[i] = m->heap[k];
    }
    m->heap[i] = c;
    return top;
}

static bool merge_by_heap(pn_merge *m, pn_merge_lookup lookup, const void *ctx)
{
    pn_sym *s = m->syms;
    uint32_t n = (uint32_t)m->n;
    m->n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        s[i].prev = i ? i - 1 : MERGE_NONE;
        s[i].next = i + 1 < n ? i + 1 : MERGE_NONE;
    }
    for (uint32_t i = 0; i + 1 < n; i++)
        if (!merge_push(m, lookup, ctx, i))
            return false;
    while (m->n_heap) {
        pn_merge_cand c = merge_pop(m);
        uint32_t left = (uint32_t)c.key;
        pn_sym *a = &s[left];
        if (!a->len || a->next == MERGE_NONE || a->len + s[a->next].len != c.len)
            continue;
        pn_sym *b = &s[a->next];
        a->len = c.len;
        a->id = c.id;
        b->len = 0;
        a->next = b->next;
        if (b->next != MERGE_NONE)
            s[b->next].prev = left;
        if (!merge_push(m, lookup, ctx, left) || (a->prev != MERGE_NONE && !merge_push(m, lookup, ctx, a->prev)))
            return false;
    }
    size_t live = 0;
    for (uint32_t i = 0; i < n; i++)
        if (s[i].len)
            s[live++] = s[i];
    m->n = live;
    return true;
}

PN_INTERNAL bool pn_merge_run(pn_merge *m, pn_merge_lookup lookup, const void *ctx)
{
    if (m->n > MERGE_SCAN || m->n > m->scan_max)
        return merge_by_heap(m, lookup, ctx);
    merge_by_scan(m, lookup, ctx);
    return true;
}

#undef MERGE_SCAN
#undef MERGE_NONE
