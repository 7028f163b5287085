/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_counts.c - which tokens were seen, and how often: what the penalties go by.
 *
 * Repetition looks at the last `window` tokens, prompt included; presence and frequency at all
 * generated ones.  Counts sit in a small hash table of the tokens really seen, so the cost follows
 * the window and not the vocabulary.
 *
 * Invariant: in_window counts the ring's tokens; never full, so a search ends at a free slot.
 */
#include "sample/pn_sampler_int.h"

/* The slot of token t, or the free one where it belongs. */
static pn_seen *counts_slot(const pn_counts *k, pn_token t)
{
    size_t mask = k->cap_seen - 1, i = (size_t)pn_chain_mix((uint64_t)t) & mask;
    while (k->seen[i].token != t && k->seen[i].token != -1)
        i = (i + 1) & mask;
    return &k->seen[i];
}

static bool counts_live(const pn_seen *s)
{
    return s->token != -1 && (s->in_window || s->generated);
}

/* Room for one more token; tokens that left the window and were never generated go. */
static bool counts_reserve(pn_counts *k)
{
    if (k->n_seen + 1 <= k->cap_seen / 4 * 3)
        return true;
    size_t live = 0, cap = 64, old_cap = k->cap_seen;
    pn_seen *old = k->seen;
    for (size_t i = 0; i < old_cap; i++)
        live += counts_live(&old[i]);
    while (cap / 2 < live + 1)
        cap *= 2;
    pn_seen *grown = pn_mem_calloc(k->mem, PN_ACCT_MISC, cap, sizeof *grown);
    if (!grown)
        return false;
    for (size_t i = 0; i < cap; i++)
        grown[i].token = -1;
    k->seen = grown;
    k->cap_seen = cap;
    k->n_seen = live;
    for (size_t i = 0; i < old_cap; i++)
        if (counts_live(&old[i]))
            *counts_slot(k, old[i].token) = old[i];
    pn_mem_free(k->mem, PN_ACCT_MISC, old, old_cap * sizeof *old);
    return true;
}

/* Put t into the window; what falls out of it is counted no more.  Room was made before. */
static void counts_push(pn_counts *k, pn_token t)
{
    if (k->window == SIZE_MAX)
        return;                         /* the whole session: nothing ever falls out */
    if (k->n_ring < k->window) {
        k->ring[k->n_ring++] = t;
        return;
    }
    counts_slot(k, k->ring[k->ring_at])->in_window--;
    k->ring[k->ring_at] = t;
    k->ring_at = (k->ring_at + 1) % k->n_ring;
}

PN_INTERNAL bool pn_counts_init(pn_counts *k, pn_mem *mem, size_t window)
{
    *k = (pn_counts){.mem = mem, .window = window};
    return counts_reserve(k);
}

PN_INTERNAL void pn_counts_fini(pn_counts *k)
{
    pn_mem_free(k->mem, PN_ACCT_MISC, k->seen, k->cap_seen * sizeof *k->seen);
    pn_mem_free(k->mem, PN_ACCT_MISC, k->ring, k->cap_ring * sizeof *k->ring);
}

PN_INTERNAL bool pn_counts_add(pn_counts *k, pn_token t, bool generated)
{
    if (k->window != SIZE_MAX && k->n_ring < k->window &&
        !pn_mem_grow(k->mem, PN_ACCT_MISC, (void **)&k->ring, &k->cap_ring, k->n_ring + 1, sizeof *k->ring))
        return false;
    if (!counts_reserve(k))
        return false;
    counts_push(k, t);
    pn_seen *s = counts_slot(k, t);
    if (s->token == -1) {
        *s = (pn_seen){.token = t};
        k->n_seen++;
    }
    s->in_window++;
    s->generated += generated;
    return true;
}

PN_INTERNAL const pn_seen *pn_counts_find(const pn_counts *k, pn_token t) { return counts_slot(k, t); }
