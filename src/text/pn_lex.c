/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_lex.c - sorting and bisection.
 *
 * The sort is a bottom-up merge sort of (first eight bytes, id): most comparisons end at the key, and
 * its depth and memory do not depend on what a hostile file puts into its tokens.
 */
#include "text/pn_lex.h"

typedef struct lex_item {
    uint64_t key;           /* first eight bytes, big-endian, zero-padded */
    uint32_t id;
} lex_item;

static inline pn_bytes lex_text(const pn_lex *l, uint32_t id)
{
    if (l->texts)
        return l->texts[id];
    return (pn_bytes){l->arena + l->off[id], l->off[id + 1] - l->off[id]};
}

static uint64_t lex_key(pn_bytes t)
{
    uint64_t k = 0;
    for (size_t i = 0; i < 8; i++)
        k = k << 8 | (i < t.len ? (uint8_t)t.data[i] : 0);
    return k;
}

static int lex_compare(const pn_lex *l, const lex_item *a, const lex_item *b)
{
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    pn_bytes x = lex_text(l, a->id), y = lex_text(l, b->id);
    int c = memcmp(x.data, y.data, PN_MIN(x.len, y.len));
    return c ? c : x.len < y.len ? -1 : x.len > y.len;
}

/* Sorts a[0..n); returns a or tmp, whichever holds the result. */
static lex_item *lex_sort(const pn_lex *l, lex_item *a, lex_item *tmp, size_t n)
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t at = 0; at < n; at += 2 * width) {
            size_t mid = PN_MIN(at + width, n), end = PN_MIN(at + 2 * width, n);
            size_t i = at, j = mid, k = at;
            while (i < mid && j < end)
                tmp[k++] = lex_compare(l, &a[j], &a[i]) < 0 ? a[j++] : a[i++];
            while (i < mid)
                tmp[k++] = a[i++];
            while (j < end)
                tmp[k++] = a[j++];
        }
        lex_item *swap = a;
        a = tmp;
        tmp = swap;
    }
    return a;
}

static void lex_index(pn_lex *l)
{
    uint32_t i = 0;
    for (unsigned c = 0; c < 256; c++) {
        while (i < l->n && (uint8_t)lex_text(l, l->ids[i]).data[0] < c)
            i++;
        l->first[c] = i;
    }
    l->first[256] = l->n;
}

PN_INTERNAL bool pn_lex_build(pn_lex *l, pn_mem *mem)
{
    uint64_t bytes = (uint64_t)l->n * 2 * sizeof(lex_item);
    lex_item *items = bytes <= SIZE_MAX ? pn_mem_alloc(mem, PN_ACCT_VOCAB, (size_t)bytes) : NULL;
    if (!items)
        return false;
    size_t n = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        pn_bytes t = lex_text(l, l->ids[i]);
        if (t.len)
            items[n++] = (lex_item){lex_key(t), l->ids[i]};
    }
    lex_item *sorted = lex_sort(l, items, items + l->n, n);
    l->n = 0;
    for (size_t i = 0; i < n; i++)
        if (i + 1 == n || lex_compare(l, &sorted[i], &sorted[i + 1]) != 0)
            l->ids[l->n++] = sorted[i].id;          /* the sort is stable: the last of equals has the highest id */
    pn_mem_free(mem, PN_ACCT_VOCAB, items, (size_t)bytes);
    lex_index(l);
    return true;
}

PN_INTERNAL void pn_lex_fini(pn_lex *l, pn_mem *mem)
{
    if (l->ids)
        pn_mem_free(mem, PN_ACCT_VOCAB, l->ids, l->cap * sizeof *l->ids);
    l->ids = NULL;
    l->n = l->cap = 0;
}

PN_INTERNAL void pn_lex_begin(const pn_lex *l, pn_lex_walk *w) { *w = (pn_lex_walk){0, l->n, 0}; }

/* First of ids[lo..hi) whose byte at `depth` is >= c; those that end at `depth` come before all. */
static uint32_t lex_lower(const pn_lex *l, uint32_t lo, uint32_t hi, size_t depth, unsigned c)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        pn_bytes t = lex_text(l, l->ids[mid]);
        if (t.len <= depth || (uint8_t)t.data[depth] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Narrow the walk by one byte of the text. */
static void lex_step(const pn_lex *l, pn_lex_walk *w, uint8_t c)
{
    if (w->depth == 0) {
        w->lo = l->first[c];
        w->hi = l->first[c + 1];
    } else {
        w->lo = lex_lower(l, w->lo, w->hi, w->depth, c);
        w->hi = lex_lower(l, w->lo, w->hi, w->depth, c + 1u);
    }
    w->depth++;
}

PN_INTERNAL int32_t pn_lex_next(const pn_lex *l, pn_lex_walk *w, const char *s, size_t n)
{
    while (w->lo < w->hi && w->depth < n) {
        uint32_t id = l->ids[w->lo];
        if (w->hi - w->lo == 1) {               /* one candidate: compare the rest of it at once */
            pn_bytes t = lex_text(l, id);
            size_t at = w->depth;
            w->hi = w->lo;
            if (t.len > n || t.len <= at || memcmp(t.data + at, s + at, t.len - at) != 0)
                return -1;
            w->depth = t.len;
            return (int32_t)id;
        }
        lex_step(l, w, (uint8_t)s[w->depth]);
        if (w->lo < w->hi && lex_text(l, l->ids[w->lo]).len == w->depth)
            return (int32_t)l->ids[w->lo];
    }
    return -1;
}
