/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cands.c - the list of candidates.
 *
 * Why partial sorting: a vocabulary has 150,000 tokens and a draw looks at a few dozen.  The list is
 * sorted only at its head (n_sorted).  A walk to a share of the whole first adds up the weights by
 * slices of the distance from the best, which says in one pass which slice holds the answer, then
 * halves that slice; so no setting but an explicit huge top-k pays for a sort.
 */
#include "sample/pn_sampler_int.h"

#include "num/pn_math.h"

#include <float.h>
#include <math.h>

#define CANDS_SORT_ALL 256u             /* so few are sorted and walked */
#define CANDS_SLICES 256                /* the last one holds all behind */
#define CANDS_NATS 32.0
#define CANDS_ROUNDS 64                 /* halvings before a list that splits badly is sorted after all */
#define CANDS_REACHABLE (1 - 1e-9)      /* most of the total that any order of summing surely reaches */

PN_INTERNAL bool pn_cand_better(pn_cand a, pn_cand b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static double cands_distance(const pn_cand_order *o, pn_cand a)
{
    return fabs(o->centre - (double)a.logit);
}

static inline bool cands_before(const pn_cand_order *o, pn_cand a, pn_cand b)
{
    if (o->by_distance) {
        double x = cands_distance(o, a), y = cands_distance(o, b);
        if (x != y)
            return x < y;
    }
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* ------------------------------------------------------------------------------------------
 * Sorting at the head
 * ------------------------------------------------------------------------------------------ */

/* heap[0..n): the worst on top.  Let the element at i sink to its place. */
static void cands_sink(const pn_cand_order *o, pn_cand *heap, size_t n, size_t i)
{
    pn_cand x = heap[i];
    for (;;) {
        size_t kid = 2 * i + 1;
        if (kid >= n)
            break;
        if (kid + 1 < n && cands_before(o, heap[kid], heap[kid + 1]))
            kid++;
        if (!cands_before(o, x, heap[kid]))
            break;
        heap[i] = heap[kid];
        i = kid;
    }
    heap[i] = x;
}

/* Bring the best k of a[0..n) to the front, sorted; no memory, O(n log k) whatever the input. */
static void cands_best_first(const pn_cand_order *o, pn_cand *a, size_t n, size_t k)
{
    for (size_t i = k / 2; i-- > 0;)
        cands_sink(o, a, k, i);
    for (size_t i = k; k > 0 && i < n; i++) {
        if (cands_before(o, a[i], a[0])) {
            pn_cand t = a[0];
            a[0] = a[i];
            a[i] = t;
            cands_sink(o, a, k, 0);
        }
    }
    for (size_t left = k; left > 1; left--) {
        pn_cand worst = a[0];
        a[0] = a[left - 1];
        a[left - 1] = worst;
        cands_sink(o, a, left - 1, 0);
    }
}

PN_INTERNAL void pn_cands_sort(pn_cands *c, size_t want)
{
    const pn_cand_order by_logit = {false, 0};
    want = PN_MIN(want, c->n);
    if (want <= c->n_sorted)
        return;
    cands_best_first(&by_logit, c->list + c->n_sorted, c->n - c->n_sorted, want - c->n_sorted);
    c->n_sorted = want;
}

PN_INTERNAL void pn_cands_keep(pn_cands *c, size_t n)
{
    c->n = PN_MIN(c->n, n);
    c->n_sorted = PN_MIN(c->n_sorted, c->n);
}

PN_INTERNAL void pn_cands_filter(pn_cands *c, double least)
{
    size_t kept = 0, sorted = 0;
    for (size_t i = 0; i < c->n; i++) {
        if ((double)c->list[i].logit < least)
            continue;
        c->list[kept++] = c->list[i];
        sorted += i < c->n_sorted;
    }
    c->n = kept;
    c->n_sorted = sorted;
}

PN_INTERNAL void pn_cands_compact(pn_cands *c)
{
    if (!c->dense)
        return;
    pn_cands_filter(c, -DBL_MAX);
    c->dense = false;
}

/* ------------------------------------------------------------------------------------------
 * Weights
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL float pn_cands_max(const pn_cands *c)
{
    float max = c->list[0].logit;
    for (size_t i = 1; i < c->n && c->n_sorted == 0; i++)
        max = c->list[i].logit > max ? c->list[i].logit : max;
    return max;
}

PN_INTERNAL double pn_cands_total(const pn_cands *c, float max)
{
    double sum = 0;
    for (size_t i = 0; i < c->n; i++)
        sum += pn_cand_exp((double)c->list[i].logit - (double)max);
    return sum;
}

/* H = -sum p ln p = ln Z - sum w x / Z with x = logit - max, w = e^x, Z = sum w. */
PN_INTERNAL double pn_cands_entropy(const pn_cands *c, float max, double *log_total)
{
    double sum = 0, mean = 0;
    for (size_t i = 0; i < c->n; i++) {
        double x = (double)c->list[i].logit - (double)max, w = pn_cand_exp(x);
        sum += w;
        mean += w > 0 ? w * x : 0;
    }
    *log_total = pn_log(sum);
    return PN_MAX(*log_total - mean / sum, 0.0);
}

/* ------------------------------------------------------------------------------------------
 * Walking to a share
 * ------------------------------------------------------------------------------------------ */

/* Slices a nat of distance: they cover the list, or the 32 nats that have weight. */
static double cands_scale(const pn_cands *c, const pn_cand_order *by, float max)
{
    float min = max;
    for (size_t i = 0; i < c->n; i++)
        min = c->list[i].logit < min ? c->list[i].logit : min;
    double far = PN_MAX(fabs(by->centre - (double)min), fabs(by->centre - (double)max));
    return CANDS_SLICES / PN_MIN(PN_MAX(far, 1e-6), CANDS_NATS);
}

static inline int cands_slice(const pn_cand_order *by, double scale, pn_cand a)
{
    double at = cands_distance(by, a) * scale;
    return at < CANDS_SLICES - 1 ? (int)at : CANDS_SLICES - 1;
}

/* Where the slices find the answer: a[lo..hi) holds it, all before lo comes earlier in the order,
 * all behind hi later; *sum: weight before lo; *need: what the answer has to reach. */
static void cands_narrow(pn_cands *c, const pn_cand_order *by, float max, double share, size_t *lo, size_t *hi,
                         double *sum, double *need)
{
    double weight[CANDS_SLICES] = {0}, total = 0, scale = cands_scale(c, by, max);
    int slice = 0;
    for (size_t i = 0; i < c->n; i++)
        weight[cands_slice(by, scale, c->list[i])] += pn_cand_weight(c->list[i].logit, max);
    for (int s = 0; s < CANDS_SLICES; s++)
        total += weight[s];
    *need = PN_MIN(share, CANDS_REACHABLE) * total;
    for (*sum = 0; slice < CANDS_SLICES - 1 && *sum + weight[slice] < *need; slice++)
        *sum += weight[slice];
    size_t front = 0, at = 0, back = c->n;
    while (at < back) {                     /* three heaps: before, in, behind the slice */
        pn_cand x = c->list[at];
        int s = cands_slice(by, scale, x);
        if (s < slice) {
            c->list[at++] = c->list[front];
            c->list[front++] = x;
        } else if (s > slice) {
            c->list[at] = c->list[--back];
            c->list[back] = x;
        } else {
            at++;
        }
    }
    *lo = front;
    *hi = back;
    c->n_sorted = 0;
}

/* Put the median of three at a[lo], then earlier ones before it and later behind; where it ends. */
static size_t cands_partition(const pn_cand_order *o, pn_cand *a, size_t lo, size_t hi)
{
    size_t mid = lo + (hi - lo) / 2;
    pn_cand x = a[lo], y = a[mid], z = a[hi - 1];
    if (cands_before(o, x, y) != cands_before(o, x, z))
        mid = lo;
    else if (cands_before(o, z, x) != cands_before(o, z, y))
        mid = hi - 1;
    pn_cand pivot = a[mid];
    a[mid] = a[hi - 1];
    a[hi - 1] = pivot;
    size_t to = lo;
    for (size_t i = lo; i + 1 < hi; i++) {
        pn_cand t = a[i];
        a[i] = a[to];
        a[to] = t;
        to += cands_before(o, t, pivot);
    }
    a[hi - 1] = a[to];
    a[to] = pivot;
    return to;
}

/* From a[lo..hi), with `sum` before it, to the position that reaches `need`. */
static size_t cands_halve(pn_cands *c, const pn_cand_order *o, float max, size_t lo, size_t hi, double sum,
                          double need)
{
    pn_cand *a = c->list;
    for (int round = 0; hi - lo > 32 && round < CANDS_ROUNDS; round++) {
        size_t at = cands_partition(o, a, lo, hi);
        double before = sum;
        for (size_t i = lo; i < at; i++)
            before += pn_cand_weight(a[i].logit, max);
        double with = before + pn_cand_weight(a[at].logit, max);
        if (before >= need) {
            hi = at;
        } else if (with >= need) {
            return at;
        } else {
            sum = with;
            lo = at + 1;
        }
    }
    cands_best_first(o, a + lo, hi - lo, hi - lo);
    for (; lo < hi; lo++) {
        sum += pn_cand_weight(a[lo].logit, max);
        if (sum >= need)
            return lo;
    }
    return PN_MIN(lo, c->n - 1);        /* sums in another order may miss by a last bit */
}

PN_INTERNAL size_t pn_cands_walk(pn_cands *c, double share, const pn_cand_order *order)
{
    float max = pn_cands_max(c);
    double sum = 0, need;
    size_t lo = 0, hi = c->n;
    const pn_cand_order by_logit = {false, (double)max};
    const pn_cand_order *by = order ? order : &by_logit;
    if (c->n > CANDS_SORT_ALL && (order || c->n_sorted < c->n)) {
        cands_narrow(c, by, max, share, &lo, &hi, &sum, &need);
        return cands_halve(c, by, max, lo, hi, sum, need);
    }
    if (order) {
        cands_best_first(by, c->list, c->n, c->n);
        c->n_sorted = 0;
    } else {
        pn_cands_sort(c, c->n);
    }
    need = PN_MIN(share, CANDS_REACHABLE) * pn_cands_total(c, max);
    for (; lo + 1 < hi; lo++) {
        sum += pn_cand_weight(c->list[lo].logit, max);
        if (sum >= need)
            break;
    }
    return lo;
}

PN_INTERNAL void pn_cands_keep_share(pn_cands *c, double share, size_t min_keep, const pn_cand_order *order)
{
    size_t n = pn_cands_walk(c, share, order) + 1;
    min_keep = PN_MIN(min_keep, c->n);
    if (n < min_keep) {
        n = min_keep;
        if (order)
            cands_best_first(order, c->list, c->n, n);
        else
            pn_cands_sort(c, n);
    }
    pn_cands_keep(c, n);
}

#undef CANDS_SORT_ALL
#undef CANDS_SLICES
#undef CANDS_NATS
#undef CANDS_ROUNDS
#undef CANDS_REACHABLE
