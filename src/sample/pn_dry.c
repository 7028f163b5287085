/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_dry.c - passages that repeat, and what may break them.
 *
 * The history is one growing array; with a finite window it is moved down when twice the window is
 * full, so the part that counts is always contiguous.  Nothing is allocated while picking: z and
 * hits grow with the history in pn_dry_reserve.
 *
 * z[i], on the reversed history r[i] = h[n - 1 - i], is the length of the longest common prefix of
 * r[i..] and r, that is of the longest common suffix of h[.. n - 1 - i] and h (Gusfield 1997, 1.4).
 */
#include "sample/pn_dry.h"

#include "base/pn_err.h"

enum {
    DRY_TEXT_MAX = 40,          /* bytes of a breaker that count */
    DRY_TAIL_MAX = 20           /* tokens of its rest */
};

/* ------------------------------------------------------------------------------------------
 * Breakers
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_breakers_init(pn_breakers *b, pn_mem *mem)
{
    *b = (pn_breakers){.mem = mem};
}

PN_INTERNAL void pn_breakers_fini(pn_breakers *b)
{
    pn_mem_free(b->mem, PN_ACCT_MISC, b->list, b->cap * sizeof *b->list);
    pn_mem_free(b->mem, PN_ACCT_MISC, b->tails, b->cap_tails * sizeof *b->tails);
    pn_breakers_init(b, b->mem);
}

/* tails[0..n_tail) are in the pool already. */
static bool dry_add(pn_breakers *b, pn_token head, size_t tail, size_t n_tail)
{
    if (!pn_mem_grow(b->mem, PN_ACCT_MISC, (void **)&b->list, &b->cap, b->n + 1, sizeof *b->list))
        return false;
    b->list[b->n++] = (pn_breaker){head, (uint32_t)tail, (uint32_t)n_tail};
    return true;
}

static bool dry_add_tail(pn_breakers *b, const pn_token *tail, size_t n_tail)
{
    if (n_tail > UINT32_MAX - b->n_tails ||
        !pn_mem_grow(b->mem, PN_ACCT_MISC, (void **)&b->tails, &b->cap_tails, b->n_tails + n_tail, sizeof *b->tails))
        return false;
    if (n_tail)
        memcpy(b->tails + b->n_tails, tail, n_tail * sizeof *tail);
    b->n_tails += n_tail;
    return true;
}

PN_INTERNAL bool pn_breakers_add(pn_breakers *b, pn_token head, const pn_token *tail, size_t n_tail)
{
    size_t at = b->n_tails;
    return dry_add_tail(b, tail, n_tail) && dry_add(b, head, at, n_tail);
}

static bool dry_contains(pn_bytes piece, const char *text, size_t len)
{
    for (size_t i = 0; i + len <= piece.len; i++)
        if (piece.data[i] == text[0] && memcmp(piece.data + i, text, len) == 0)
            return true;
    return false;
}

/* The tokens of each possible rest of a breaker text: what follows its first k bytes. */
typedef struct dry_rests {
    bool known[DRY_TEXT_MAX];
    size_t at[DRY_TEXT_MAX], n[DRY_TEXT_MAX];
} dry_rests;

static pn_status dry_rest(pn_breakers *b, dry_rests *r, const char *text, size_t len, size_t k,
                          const pn_breaker_text *vocab, pn_err *err)
{
    pn_token *list = NULL;
    size_t n = 0, cap = 0;
    if (r->known[k])
        return PN_OK;
    pn_status st = vocab->tokenize(vocab->user, text + k, len - k, &list, &n, &cap, err);
    r->at[k] = b->n_tails;
    r->n[k] = PN_MIN(n, (size_t)DRY_TAIL_MAX);
    if (!st && !dry_add_tail(b, list, r->n[k]))
        st = pn_fail_nomem(err, "sequence breakers", (uint64_t)n * sizeof *list);
    pn_mem_free(b->mem, PN_ACCT_MISC, list, cap * sizeof *list);
    r->known[k] = st == PN_OK;
    return st;
}

/* At most DRY_TEXT_MAX bytes, not in the middle of a character. */
static size_t dry_cut(const char *text, size_t len)
{
    if (len <= DRY_TEXT_MAX)
        return len;
    for (len = DRY_TEXT_MAX; len > 1 && ((unsigned char)text[len] & 0xc0) == 0x80;)
        len--;
    return len;
}

PN_INTERNAL pn_status pn_breakers_add_text(pn_breakers *b, const char *text, const pn_breaker_text *vocab, pn_err *err)
{
    dry_rests rests;
    size_t len = text ? strlen(text) : 0;
    if (!len)
        return pn_fail(err, PN_E_INVALID, "dry_breakers: expected some text, found %s", text ? "\"\"" : "NULL");
    memset(&rests, 0, sizeof rests);
    len = dry_cut(text, len);
    for (uint32_t t = 0; t < vocab->n_tokens; t++) {
        pn_bytes piece = vocab->piece(vocab->user, (pn_token)t);
        if (piece.len >= len && dry_contains(piece, text, len) && !dry_add(b, (pn_token)t, 0, 0))
            return pn_fail_nomem(err, "sequence breakers", (b->n + 1) * sizeof *b->list);
        for (size_t k = 1; k < len && k <= piece.len; k++) {
            if (piece.data[piece.len - k] != text[0] || memcmp(piece.data + piece.len - k, text, k) != 0)
                continue;
            pn_status st = dry_rest(b, &rests, text, len, k, vocab, err);
            if (st)
                return st;
            if (!dry_add(b, (pn_token)t, rests.at[k], rests.n[k]))
                return pn_fail_nomem(err, "sequence breakers", (b->n + 1) * sizeof *b->list);
        }
    }
    return PN_OK;
}

/* By head, then by length of the tail.  Shell's sort (gaps of Knuth 5.2.1): qsort may call malloc. */
static void dry_sort(pn_breaker *a, size_t n)
{
    size_t gap = 1;
    while (gap < n / 3)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3) {
        for (size_t i = gap; i < n; i++) {
            pn_breaker x = a[i];
            size_t k = i;
            for (; k >= gap; k -= gap) {
                const pn_breaker *y = &a[k - gap];
                if (y->head < x.head || (y->head == x.head && y->n_tail <= x.n_tail))
                    break;
                a[k] = *y;
            }
            a[k] = x;
        }
    }
}

/* The breakers that begin with t: list[result .. ) while the head is t; n when there is none. */
static size_t dry_heads(const pn_breakers *b, pn_token t)
{
    size_t lo = 0, hi = b->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (b->list[mid].head < t)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < b->n && b->list[lo].head == t ? lo : b->n;
}

/* ------------------------------------------------------------------------------------------
 * History
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_dry_init(pn_dry *d, pn_mem *mem, size_t window)
{
    *d = (pn_dry){.mem = mem, .window = window};
    pn_breakers_init(&d->breakers, mem);
}

PN_INTERNAL void pn_dry_fini(pn_dry *d)
{
    if (!d->mem)
        return;
    pn_breakers_fini(&d->breakers);
    pn_mem_free(d->mem, PN_ACCT_MISC, d->hist, d->cap * sizeof *d->hist);
    pn_mem_free(d->mem, PN_ACCT_MISC, d->z, d->cap_z * sizeof *d->z);
    pn_mem_free(d->mem, PN_ACCT_MISC, d->hits, d->cap_hits * sizeof *d->hits);
}

PN_INTERNAL void pn_dry_take(pn_dry *d, pn_breakers *b)
{
    pn_breakers_fini(&d->breakers);
    d->breakers = *b;
    pn_breakers_init(b, b->mem);
    dry_sort(d->breakers.list, d->breakers.n);
}

/* Hits stay at most half full. */
static bool dry_reserve_hits(pn_dry *d, size_t n)
{
    size_t cap = PN_MAX(d->cap_hits, (size_t)64);
    while (cap / 2 < n)
        cap *= 2;
    if (cap == d->cap_hits)
        return true;
    pn_dry_hit *grown = pn_mem_calloc(d->mem, PN_ACCT_MISC, cap, sizeof *grown);
    if (!grown)
        return false;
    pn_mem_free(d->mem, PN_ACCT_MISC, d->hits, d->cap_hits * sizeof *d->hits);
    d->hits = grown;
    d->cap_hits = cap;
    return true;
}

PN_INTERNAL bool pn_dry_reserve(pn_dry *d)
{
    size_t n = PN_MIN(d->n, d->window) + 1;
    if (d->window <= SIZE_MAX / 2 && d->n == 2 * d->window)
        return true;
    return d->n < UINT32_MAX / 4 &&
           pn_mem_grow(d->mem, PN_ACCT_MISC, (void **)&d->hist, &d->cap, d->n + 1, sizeof *d->hist) &&
           pn_mem_grow(d->mem, PN_ACCT_MISC, (void **)&d->z, &d->cap_z, n, sizeof *d->z) && dry_reserve_hits(d, n);
}

PN_INTERNAL void pn_dry_push(pn_dry *d, pn_token t)
{
    if (d->window <= SIZE_MAX / 2 && d->n == 2 * d->window) {
        memmove(d->hist, d->hist + d->window, d->window * sizeof *d->hist);
        d->n = d->window;
    }
    d->hist[d->n++] = t;
}

/* ------------------------------------------------------------------------------------------
 * Matches
 * ------------------------------------------------------------------------------------------ */

/* Do the tokens of `b` behind its head stand at h[at + 1 ..] of h[0..n)? */
static bool dry_tail_at(const pn_breakers *all, const pn_breaker *b, const pn_token *h, size_t n, size_t at)
{
    if (b->n_tail >= n - at)
        return false;
    return b->n_tail == 0 || memcmp(h + at + 1, all->tails + b->tail, b->n_tail * sizeof *h) == 0;
}

/* Most tokens a match may have: those behind the last breaker. */
static size_t dry_limit(const pn_dry *d, const pn_token *h, size_t n)
{
    const pn_breakers *b = &d->breakers;
    for (size_t i = 0; i < n; i++) {
        size_t longest = SIZE_MAX, at = n - 1 - i;
        for (size_t k = dry_heads(b, h[at]); k < b->n && b->list[k].head == h[at]; k++)
            if (dry_tail_at(b, &b->list[k], h, n, at))
                longest = b->list[k].n_tail;            /* they ascend */
        if (longest != SIZE_MAX)
            return i - longest;
    }
    return n;
}

static void dry_z(uint32_t *z, const pn_token *h, size_t n)
{
    const pn_token *r = h + n - 1;              /* r[-i] */
    size_t lo = 0, hi = 0;                      /* the match that reaches furthest: [lo, hi) */
    z[0] = (uint32_t)n;
    for (size_t i = 1; i < n; i++) {
        size_t len = i < hi ? PN_MIN((size_t)z[i - lo], hi - i) : 0;
        while (i + len < n && *(r - len) == *(r - (i + len)))
            len++;
        if (i + len > hi) {
            lo = i;
            hi = i + len;
        }
        z[i] = (uint32_t)len;
    }
}

/* The slot of token t, or the free one where it belongs. */
static pn_dry_hit *dry_slot(const pn_dry *d, pn_token t)
{
    size_t mask = d->cap_hits - 1, i = (size_t)((uint32_t)t * 2654435769u) & mask;     /* Knuth, 6.4 */
    while (d->hits[i].token != t && d->hits[i].token != -1)
        i = (i + 1) & mask;
    return &d->hits[i];
}

static bool dry_single_breaker(const pn_dry *d, pn_token t)
{
    size_t k = dry_heads(&d->breakers, t);
    return k < d->breakers.n && d->breakers.list[k].n_tail == 0;
}

PN_INTERNAL bool pn_dry_find(pn_dry *d, size_t allowed)
{
    size_t n = PN_MIN(d->n, d->window);
    if (n <= allowed)
        return false;
    const pn_token *h = d->hist + (d->n - n);
    size_t limit = dry_limit(d, h, n);
    bool found = false;
    if (limit < allowed)
        return false;
    dry_z(d->z, h, n);
    for (size_t i = 1; i < n; i++) {
        uint32_t len = (uint32_t)PN_MIN((size_t)d->z[i], limit);
        pn_token next = h[n - i];
        if (len < allowed || len == 0)
            continue;
        for (size_t k = 0; !found && k < d->cap_hits; k++)
            d->hits[k] = (pn_dry_hit){-1, 0};
        found = true;
        pn_dry_hit *hit = dry_slot(d, next);
        hit->token = next;
        hit->len = PN_MAX(hit->len, len);
    }
    for (size_t k = 0; found && k < d->cap_hits; k++)
        if (d->hits[k].token != -1 && dry_single_breaker(d, d->hits[k].token))
            d->hits[k].len = 0;                 /* the slot stays: others may lie behind it */
    return found;
}

PN_INTERNAL uint32_t pn_dry_length(const pn_dry *d, pn_token t) { return dry_slot(d, t)->len; }
