/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_sampler.c - the chain: fill, edit, truncate, draw.
 *
 *   fill      candidates (id, logit) for every live token; NaN becomes -inf, +inf the largest float
 *   edit      bias, banned tokens, ends that are too early.  The list is still *dense*: candidate i
 *             is token i, so an edit touches only the tokens it is about
 *   steps     the samplers that are on, in the caller's order: one row of sampler_rows and one
 *             function over the chain each
 *   draw      descending logit, then id; the first whose running sum reaches u * total
 *
 * Why partial sorting: a vocabulary has 150,000 tokens and a draw looks at a few dozen.  The list is
 * sorted only at its head (n_sorted); behind it sampler_walk halves what holds the answer, so no
 * setting but an explicit huge top-k pays for a sort.
 *
 * Invariants
 *   1. cand[0 .. n_sorted) is sorted, and nothing behind it is better than its last.
 *   2. Once not dense, every candidate is finite; n >= 1 or the pick fails with PN_E_NUMERIC.
 *   3. Picking changes nothing that a later pick could notice; only accept does.
 *   4. Sums are doubles over weights exp(logit - max); the order of every sum is fixed.
 *
 * Penalties.  Repetition looks at the last repeat_last_n tokens, prompt included; presence and
 * frequency at all generated ones.  Counts sit in a small hash table of the tokens really seen, so
 * the cost follows the window and not the vocabulary.  Tokens that end an answer are not counted:
 * a chat is full of them, and punishing them makes answers that never stop.
 */
#include "sample/pn_sampler.h"

#include "base/pn_err.h"
#include "base/pn_os.h"
#include "num/pn_math.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

#define SAMPLER_GREEDY_BELOW 1e-5f      /* dividing by less overflows; the maximum wins anyway */
#define SAMPLER_FIRST_SORT 256u         /* candidates sorted and walked before the list is split */
#define SAMPLER_ROUNDS 64               /* halvings before a list that splits badly is sorted after all */
#define SAMPLER_REACHABLE (1 - 1e-9)    /* most of the total that any order of summing surely reaches */
#define SAMPLER_P_SLACK 1e-6            /* relative: 0.4 + 0.3 must reach 0.7 in floats */
#define SAMPLER_GOLDEN 0x9e3779b97f4a7c15u

typedef struct sampler_cand {
    float logit;
    pn_token id;
} sampler_cand;

/* How often a token was seen; token -1: free slot. */
typedef struct sampler_seen {
    pn_token token;
    uint32_t in_window, generated;
} sampler_seen;

struct pn_chain {
    pn_mem *mem;
    pn_sampling p;              /* p.bias: our copy, owned */
    uint64_t seed;
    uint32_t n_vocab, n_live;
    bool greedy, edits;         /* edits: somebody may change a logit, so greedy needs the list */
    bool penalties;             /* counting is worth while */
    uint8_t steps[PN_SAMPLER_ORDER_MAX];
    size_t n_steps;
    pn_token *ends, *never;     /* owned, [n_ends], [n_never] */
    size_t n_ends, n_never;

    uint64_t n_generated;
    pn_token *ring;             /* owned, [cap_ring]; the window, n_ring <= repeat_last_n used */
    size_t n_ring, cap_ring, ring_at;
    sampler_seen *seen;         /* owned, [cap_seen], open addressing, power of two */
    size_t n_seen, cap_seen;

    sampler_cand *cand;         /* owned, [n_live]; NULL for plain greedy */
    size_t n, n_sorted;
    bool dense;
};

/* ------------------------------------------------------------------------------------------
 * Randomness
 * ------------------------------------------------------------------------------------------ */

/* SplitMix64's finaliser (Steele, Lea, Flood 2014; constants of Stafford's mix 13). */
static uint64_t sampler_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

PN_INTERNAL uint64_t pn_chain_random(uint64_t seed, uint64_t pos, uint32_t stream)
{
    uint64_t key = stream ? sampler_mix(seed ^ sampler_mix(stream)) : seed;
    return sampler_mix(key + (pos + 1) * SAMPLER_GOLDEN);
}

PN_INTERNAL double pn_chain_unit(uint64_t seed, uint64_t pos, uint32_t stream)
{
    return (double)(pn_chain_random(seed, pos, stream) >> 11) * (1.0 / 9007199254740992.0);
}

/* ------------------------------------------------------------------------------------------
 * The candidate list
 * ------------------------------------------------------------------------------------------ */

static float sampler_clean(float x)
{
    if (x <= FLT_MAX)
        return x;
    return x > FLT_MAX ? FLT_MAX : -INFINITY;       /* +inf; NaN */
}

static bool sampler_better(sampler_cand a, sampler_cand b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* heap[0..n): the worst on top.  Let the element at i sink to its place. */
static void sampler_sink(sampler_cand *heap, size_t n, size_t i)
{
    sampler_cand x = heap[i];
    for (;;) {
        size_t kid = 2 * i + 1;
        if (kid >= n)
            break;
        if (kid + 1 < n && sampler_better(heap[kid], heap[kid + 1]))
            kid++;
        if (!sampler_better(x, heap[kid]))
            break;
        heap[i] = heap[kid];
        i = kid;
    }
    heap[i] = x;
}

/* Bring the best k of a[0..n) to the front, sorted; no memory, O(n log k) whatever the input. */
static void sampler_best_first(sampler_cand *a, size_t n, size_t k)
{
    for (size_t i = k / 2; i-- > 0;)
        sampler_sink(a, k, i);
    for (size_t i = k; k > 0 && i < n; i++) {
        if (sampler_better(a[i], a[0])) {
            sampler_cand t = a[0];
            a[0] = a[i];
            a[i] = t;
            sampler_sink(a, k, 0);
        }
    }
    for (size_t left = k; left > 1; left--) {
        sampler_cand worst = a[0];
        a[0] = a[left - 1];
        a[left - 1] = worst;
        sampler_sink(a, left - 1, 0);
    }
}

static void sampler_sort(pn_chain *c, size_t want)
{
    want = PN_MIN(want, c->n);
    if (want <= c->n_sorted)
        return;
    sampler_best_first(c->cand + c->n_sorted, c->n - c->n_sorted, want - c->n_sorted);
    c->n_sorted = want;
}

static void sampler_keep(pn_chain *c, size_t n)
{
    c->n = n;
    c->n_sorted = PN_MIN(c->n_sorted, n);
}

/* Drop what is below `least`, keep the order of the rest. */
static void sampler_filter(pn_chain *c, double least)
{
    size_t kept = 0, sorted = 0;
    for (size_t i = 0; i < c->n; i++) {
        if ((double)c->cand[i].logit < least)
            continue;
        c->cand[kept++] = c->cand[i];
        sorted += i < c->n_sorted;
    }
    c->n = kept;
    c->n_sorted = sorted;
}

/* From "candidate i is token i" to a list of what can be chosen. */
static void sampler_compact(pn_chain *c)
{
    if (!c->dense)
        return;
    sampler_filter(c, -DBL_MAX);
    c->dense = false;
}

static float sampler_max(const pn_chain *c)
{
    float max = c->cand[0].logit;
    for (size_t i = 1; i < c->n && c->n_sorted == 0; i++)
        max = c->cand[i].logit > max ? c->cand[i].logit : max;
    return max;
}

/* e^x for x <= 0, relative error < 1e-11; below -100 nothing.  Why not pn_expf: a chain of fused
 * multiply-adds is software where FMA may not be assumed, and six times slower over a whole
 * vocabulary.  2^n e^f with |f| <= ln2 / 2 and the series to f^9. */
static double sampler_exp(double x)
{
    if (!(x > -100))
        return 0;
    double t = x * 1.4426950408889634;              /* 1 / ln 2 */
    int n = (int)(t - 0.5);
    double f = (t - n) * 0.6931471805599453;        /* ln 2 */
    double p = 1.0 / 40320 + f * (1.0 / 362880);
    p = 1.0 / 720 + f * (1.0 / 5040 + f * p);
    p = 1.0 / 24 + f * (1.0 / 120 + f * p);
    p = 1.0 / 2 + f * (1.0 / 6 + f * p);
    p = 1 + f * (1 + f * p);
    uint64_t bits = (uint64_t)(1023 + n) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

static double sampler_weight(const pn_chain *c, size_t i, float max)
{
    return sampler_exp((double)c->cand[i].logit - (double)max);
}

static double sampler_total(const pn_chain *c, float max)
{
    double sum = 0;
    for (size_t i = 0; i < c->n; i++)
        sum += sampler_weight(c, i, max);
    return sum;
}

/* Put the median of three at a[lo], then better ones before it and worse behind; where it ends. */
static size_t sampler_partition(sampler_cand *a, size_t lo, size_t hi)
{
    size_t mid = lo + (hi - lo) / 2;
    sampler_cand x = a[lo], y = a[mid], z = a[hi - 1];
    if (sampler_better(x, y) != sampler_better(x, z))
        mid = lo;
    else if (sampler_better(z, x) != sampler_better(z, y))
        mid = hi - 1;
    sampler_cand pivot = a[mid];
    a[mid] = a[hi - 1];
    a[hi - 1] = pivot;
    size_t to = lo;
    for (size_t i = lo; i + 1 < hi; i++) {
        sampler_cand t = a[i];
        a[i] = a[to];
        a[to] = t;
        to += sampler_better(t, pivot);
    }
    a[hi - 1] = a[to];
    a[to] = pivot;
    return to;
}

/* The first position, best first, where the running share of all weights reaches `share`.  The first
 * few hundred are sorted and walked, which nearly always is enough.  Of the rest only the side of a
 * pivot that holds the answer is looked at again, so a flat distribution costs a few passes and no
 * sort; everything before the position is then better than it, in no order. */
static size_t sampler_walk(pn_chain *c, double share)
{
    float max = sampler_max(c);
    double need = PN_MIN(share, SAMPLER_REACHABLE) * sampler_total(c, max), sum = 0;
    sampler_sort(c, SAMPLER_FIRST_SORT);
    for (size_t i = 0; i < c->n_sorted; i++) {
        sum += sampler_weight(c, i, max);
        if (sum >= need)
            return i;
    }
    size_t lo = c->n_sorted, hi = c->n;
    for (int round = 0; hi - lo > 32 && round < SAMPLER_ROUNDS; round++) {
        size_t at = sampler_partition(c->cand, lo, hi);
        double before = sum;
        for (size_t i = lo; i < at; i++)
            before += sampler_weight(c, i, max);
        double with = before + sampler_weight(c, at, max);
        if (before >= need) {
            hi = at;
        } else if (with >= need) {
            return at;
        } else {
            sum = with;
            lo = at + 1;
        }
    }
    sampler_best_first(c->cand + lo, hi - lo, hi - lo);
    for (; lo < hi; lo++) {
        sum += sampler_weight(c, lo, max);
        if (sum >= need)
            return lo;
    }
    return PN_MIN(lo, c->n - 1);        /* sums in another order may miss by a last bit */
}

/* ------------------------------------------------------------------------------------------
 * Counting tokens
 * ------------------------------------------------------------------------------------------ */

/* The slot of token t, or the free one where it belongs.  cap_seen > 0, never full. */
static sampler_seen *sampler_slot(const pn_chain *c, pn_token t)
{
    size_t mask = c->cap_seen - 1, i = (size_t)sampler_mix((uint64_t)t) & mask;
    while (c->seen[i].token != t && c->seen[i].token != -1)
        i = (i + 1) & mask;
    return &c->seen[i];
}

/* Room for one more token; tokens that left the window and were never generated go. */
static bool sampler_seen_reserve(pn_chain *c)
{
    if (c->n_seen + 1 <= c->cap_seen / 4 * 3)
        return true;
    size_t live = 0, cap = 64, old_cap = c->cap_seen;
    sampler_seen *old = c->seen;
    for (size_t i = 0; i < old_cap; i++)
        live += old[i].token != -1 && (old[i].in_window || old[i].generated);
    while (cap / 2 < live + 1)
        cap *= 2;
    sampler_seen *grown = pn_mem_calloc(c->mem, PN_ACCT_MISC, cap, sizeof *grown);
    if (!grown)
        return false;
    for (size_t i = 0; i < cap; i++)
        grown[i].token = -1;
    c->seen = grown;
    c->cap_seen = cap;
    c->n_seen = live;
    for (size_t i = 0; i < old_cap; i++)
        if (old[i].token != -1 && (old[i].in_window || old[i].generated))
            *sampler_slot(c, old[i].token) = old[i];
    pn_mem_free(c->mem, PN_ACCT_MISC, old, old_cap * sizeof *old);
    return true;
}

/* Put t into the window; what falls out of it is counted no more.  Room was made before. */
static void sampler_window_push(pn_chain *c, pn_token t)
{
    if (c->p.repeat_last_n < 0)
        return;                         /* the whole session: nothing ever falls out */
    if (c->n_ring < (size_t)c->p.repeat_last_n) {
        c->ring[c->n_ring++] = t;
        return;
    }
    sampler_slot(c, c->ring[c->ring_at])->in_window--;
    c->ring[c->ring_at] = t;
    c->ring_at = (c->ring_at + 1) % c->n_ring;
}

static bool sampler_in(const pn_token *list, size_t n, pn_token t)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == t)
            return true;
    return false;
}

PN_INTERNAL pn_status pn_chain_accept(pn_chain *c, pn_token t, bool generated, pn_err *err)
{
    if (t < 0 || (uint32_t)t >= c->n_vocab)
        return pn_fail(err, PN_E_INVALID, "accepted token: expected 0 to %" PRIu32 ", found %" PRId32,
                       c->n_vocab - 1, t);
    if (c->penalties && !sampler_in(c->ends, c->n_ends, t)) {
        size_t window = c->p.repeat_last_n < 0 ? 0 : (size_t)c->p.repeat_last_n;
        if (c->n_ring < window &&
            !pn_mem_grow(c->mem, PN_ACCT_MISC, (void **)&c->ring, &c->cap_ring, c->n_ring + 1, sizeof *c->ring))
            return pn_fail_nomem(err, "the penalty window", (uint64_t)(c->n_ring + 1) * sizeof *c->ring);
        if (!sampler_seen_reserve(c))
            return pn_fail_nomem(err, "the token counts", (uint64_t)c->cap_seen * 2 * sizeof *c->seen);
        sampler_window_push(c, t);
        sampler_seen *s = sampler_slot(c, t);
        if (s->token == -1) {
            *s = (sampler_seen){.token = t};
            c->n_seen++;
        }
        s->in_window++;
        s->generated += generated;
    }
    c->n_generated += generated;
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * The samplers: each gets the chain and changes its list
 * ------------------------------------------------------------------------------------------ */

static float sampler_penalised(const pn_chain *c, float logit, const sampler_seen *s)
{
    float r = c->p.repeat_penalty;
    if (s->in_window)
        logit = logit > 0 ? logit / r : logit * r;      /* dividing a negative one would reward */
    if (s->generated)
        logit -= (float)s->generated * c->p.frequency_penalty + c->p.presence_penalty;
    return sampler_clean(logit);
}

static void sampler_do_penalties(pn_chain *c)
{
    if (!c->n_seen)
        return;
    if (c->dense) {
        for (size_t i = 0; i < c->cap_seen; i++) {
            pn_token t = c->seen[i].token;
            if (t >= 0 && (uint32_t)t < c->n)
                c->cand[t].logit = sampler_penalised(c, c->cand[t].logit, &c->seen[i]);
        }
    } else {
        for (size_t i = 0; i < c->n; i++) {
            const sampler_seen *s = sampler_slot(c, c->cand[i].id);
            if (s->token != -1)
                c->cand[i].logit = sampler_penalised(c, c->cand[i].logit, s);
        }
        sampler_filter(c, -DBL_MAX);
    }
    c->n_sorted = 0;
}

/* Two logits may round to one here; the order among them stays that of the list. */
static void sampler_do_temperature(pn_chain *c)
{
    float t = c->p.temperature;
    sampler_compact(c);
    for (size_t i = 0; i < c->n; i++)
        c->cand[i].logit = PN_MAX(sampler_clean(c->cand[i].logit / t), -FLT_MAX);
}

static void sampler_do_top_k(pn_chain *c)
{
    sampler_compact(c);
    sampler_sort(c, (size_t)c->p.top_k);
    sampler_keep(c, PN_MIN(c->n, (size_t)c->p.top_k));
}

static void sampler_do_top_p(pn_chain *c)
{
    sampler_compact(c);
    if (c->n)
        sampler_keep(c, sampler_walk(c, (double)c->p.top_p * (1 - SAMPLER_P_SLACK)) + 1);
}

static void sampler_do_min_p(pn_chain *c)
{
    sampler_compact(c);
    if (c->n)
        sampler_filter(c, (double)sampler_max(c) + pn_log((double)c->p.min_p));
}

static bool sampler_on_penalties(const pn_sampling *p)
{
    return p->repeat_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static bool sampler_on_temperature(const pn_sampling *p) { return p->temperature != 1; }
static bool sampler_on_top_k(const pn_sampling *p) { return p->top_k > 0; }
static bool sampler_on_top_p(const pn_sampling *p) { return p->top_p > 0 && p->top_p < 1; }
static bool sampler_on_min_p(const pn_sampling *p) { return p->min_p > 0; }

/* One row a kind.  Names are matched without case, '_' and '-'.  A new sampler is a new kind at
 * the end of pn_sampler_kind, a row here and a function above. */
static const struct sampler_row {
    const char *name, *alias;
    bool (*on)(const pn_sampling *p);
    void (*apply)(pn_chain *c);
} sampler_rows[PN_SAMPLER_KIND_COUNT] = {
    [PN_SAMPLER_PENALTIES] = {"penalties", "penalty", sampler_on_penalties, sampler_do_penalties},
    [PN_SAMPLER_TEMPERATURE] = {"temperature", "temp", sampler_on_temperature, sampler_do_temperature},
    [PN_SAMPLER_TOP_K] = {"topk", "topk", sampler_on_top_k, sampler_do_top_k},
    [PN_SAMPLER_TOP_P] = {"topp", "nucleus", sampler_on_top_p, sampler_do_top_p},
    [PN_SAMPLER_MIN_P] = {"minp", "minp", sampler_on_min_p, sampler_do_min_p},
};

/* ------------------------------------------------------------------------------------------
 * Running the chain
 * ------------------------------------------------------------------------------------------ */

static bool sampler_ends_banned(const pn_chain *c)
{
    return c->n_ends && (c->p.ignore_eos || c->n_generated < c->p.min_tokens);
}

static void sampler_ban(pn_chain *c, const pn_token *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        c->cand[list[i]].logit = -INFINITY;
}

/* Fill and edit. */
static void sampler_fill(pn_chain *c, const float *logits)
{
    for (uint32_t i = 0; i < c->n_live; i++)
        c->cand[i] = (sampler_cand){sampler_clean(logits[i]), (pn_token)i};
    c->n = c->n_live;
    c->n_sorted = 0;
    c->dense = true;
    for (size_t i = 0; i < c->p.n_bias; i++) {
        const pn_logit_bias *b = &c->p.bias[i];
        if ((uint32_t)b->token < c->n_live)
            c->cand[b->token].logit = sampler_clean(c->cand[b->token].logit + b->bias);
    }
    sampler_ban(c, c->never, c->n_never);
    if (sampler_ends_banned(c))
        sampler_ban(c, c->ends, c->n_ends);
}

/* Everything up to the draw; for greedy the list ends with one candidate. */
static void sampler_run(pn_chain *c, const float *logits)
{
    sampler_fill(c, logits);
    for (size_t i = 0; i < c->n_steps; i++)
        sampler_rows[c->steps[i]].apply(c);
    sampler_compact(c);
    if (c->greedy) {
        sampler_sort(c, 1);
        sampler_keep(c, PN_MIN(c->n, (size_t)1));
    }
}

/* Lowest id among the largest; -1: nothing finite.  +inf ranks as the largest float. */
static pn_token sampler_argmax(const float *logits, uint32_t n)
{
    float best = -INFINITY;
    pn_token id = -1;
    for (uint32_t i = 0; i < n; i++) {
        if (logits[i] > best) {         /* false for NaN */
            best = sampler_clean(logits[i]);
            id = (pn_token)i;
            if (best == FLT_MAX)
                break;
        }
    }
    return id;
}

static pn_status sampler_none_left(const pn_chain *c, pn_err *err)
{
    return pn_fail(err, PN_E_NUMERIC, "no token to choose: expected a finite logit among %" PRIu32
                   ", found only NaN, -inf and banned tokens", c->n_live);
}

PN_INTERNAL pn_status pn_chain_pick(pn_chain *c, const float *logits, pn_token *out, pn_err *err)
{
    if (!c->cand) {
        pn_token t = sampler_argmax(logits, c->n_live);
        if (t < 0)
            return sampler_none_left(c, err);
        *out = t;
        return PN_OK;
    }
    sampler_run(c, logits);
    if (!c->n)
        return sampler_none_left(c, err);
    size_t at = c->greedy ? 0 : sampler_walk(c, pn_chain_unit(c->seed, c->n_generated, 0));
    *out = c->cand[at].id;
    return PN_OK;
}

PN_INTERNAL size_t pn_chain_candidates(pn_chain *c, const float *logits, pn_token *ids, float *out, size_t cap)
{
    if (!c->cand) {
        pn_token t = sampler_argmax(logits, c->n_live);
        if (t >= 0 && cap) {
            ids[0] = t;
            out[0] = sampler_clean(logits[t]);
        }
        return t >= 0;
    }
    sampler_run(c, logits);
    sampler_sort(c, c->n);
    for (size_t i = 0; i < PN_MIN(c->n, cap); i++) {
        ids[i] = c->cand[i].id;
        out[i] = c->cand[i].logit;
    }
    return c->n;
}

/* ------------------------------------------------------------------------------------------
 * Making one
 * ------------------------------------------------------------------------------------------ */

static pn_status sampler_bad(pn_err *err, const char *field, const char *allowed, double found)
{
    return pn_fail(err, PN_E_INVALID, "%s: expected %s, found %g", field, allowed, found);
}

static pn_status sampler_check_order(const uint8_t *order, pn_err *err)
{
    bool had[PN_SAMPLER_KIND_COUNT] = {false};
    for (size_t i = 0; i < PN_SAMPLER_ORDER_MAX && order[i] != PN_SAMPLER_END; i++) {
        if (order[i] >= PN_SAMPLER_KIND_COUNT)
            return pn_fail(err, PN_E_INVALID, "order[%zu]: expected a sampler kind from 1 to %d, found %d", i,
                           (int)PN_SAMPLER_KIND_COUNT - 1, (int)order[i]);
        if (had[order[i]])
            return pn_fail(err, PN_E_INVALID, "order[%zu]: expected each sampler once, found %s again", i,
                           sampler_rows[order[i]].name);
        had[order[i]] = true;
    }
    return PN_OK;
}

static pn_status sampler_check_bias(const pn_sampling *p, uint32_t n_vocab, pn_err *err)
{
    if (p->n_bias && !p->bias)
        return pn_fail(err, PN_E_INVALID, "bias: expected %zu entries, found NULL", p->n_bias);
    for (size_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].token < 0 || (uint32_t)p->bias[i].token >= n_vocab)
            return pn_fail(err, PN_E_INVALID, "bias[%zu].token: expected 0 to %" PRIu32 ", found %" PRId32, i,
                           n_vocab - 1, p->bias[i].token);
        if (!(p->bias[i].bias <= FLT_MAX))
            return pn_fail(err, PN_E_INVALID, "bias[%zu].bias: expected a number or -inf, found %g", i,
                           (double)p->bias[i].bias);
    }
    return PN_OK;
}

/* `!(x >= 0)` and not `x < 0`: NaN must fail too. */
static pn_status sampler_check(const pn_sampling *p, uint32_t n_vocab, pn_err *err)
{
    float r = p->repeat_penalty;
    if (!(p->temperature >= 0) || !isfinite(p->temperature))
        return sampler_bad(err, "temperature", "0 (greedy) or a positive number", (double)p->temperature);
    if (!(p->top_p >= 0))
        return sampler_bad(err, "top_p", "0 to 1 (0 and 1: off)", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return sampler_bad(err, "min_p", "0 (off) to 1", (double)p->min_p);
    if (!(r >= 0) || !isfinite(r) || (r > 0 && !isfinite(1 / r)))
        return sampler_bad(err, "repeat_penalty", "0 or 1 (off) or a positive number", (double)r);
    if (p->repeat_last_n < -1)
        return sampler_bad(err, "repeat_last_n", "-1 (all), 0 (64) or a count", (double)p->repeat_last_n);
    if (!isfinite(p->presence_penalty))
        return sampler_bad(err, "presence_penalty", "a finite number", (double)p->presence_penalty);
    if (!isfinite(p->frequency_penalty))
        return sampler_bad(err, "frequency_penalty", "a finite number", (double)p->frequency_penalty);
    pn_status st = sampler_check_order(p->order, err);
    return st ? st : sampler_check_bias(p, n_vocab, err);
}

/* The order with only what is on.  Greedy needs no truncation: it cannot remove the maximum. */
static void sampler_plan(pn_chain *c)
{
    static const uint8_t usual[] = {PN_SAMPLER_PENALTIES, PN_SAMPLER_TEMPERATURE, PN_SAMPLER_TOP_K,
                                    PN_SAMPLER_TOP_P, PN_SAMPLER_MIN_P};
    const uint8_t *order = c->p.order[0] ? c->p.order : usual;
    size_t n = c->p.order[0] ? PN_SAMPLER_ORDER_MAX : PN_COUNT_OF(usual);
    for (size_t i = 0; i < n && order[i] != PN_SAMPLER_END; i++) {
        bool wanted = !c->greedy || order[i] == PN_SAMPLER_PENALTIES;
        if (wanted && sampler_rows[order[i]].on(&c->p))
            c->steps[c->n_steps++] = order[i];
    }
    /* Dividing by a positive number keeps the order, so top-k may come first and leave forty
     * divisions of a hundred thousand. */
    for (size_t i = 1; i < c->n_steps; i++) {
        if (c->steps[i - 1] == PN_SAMPLER_TEMPERATURE && c->steps[i] == PN_SAMPLER_TOP_K) {
            c->steps[i - 1] = PN_SAMPLER_TOP_K;
            c->steps[i] = PN_SAMPLER_TEMPERATURE;
        }
    }
    for (size_t i = 0; i < c->n_steps; i++)
        c->penalties |= c->steps[i] == PN_SAMPLER_PENALTIES;
}

/* Copy those of ids[0..n) that could be chosen at all; the others need no ban. */
static bool sampler_copy_ids(pn_chain *c, const pn_token *ids, size_t n, pn_token **out, size_t *n_out)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        kept += ids[i] >= 0 && (uint32_t)ids[i] < c->n_live;
    *out = pn_mem_calloc(c->mem, PN_ACCT_MISC, kept, sizeof **out);
    if (!*out)
        return false;
    *n_out = kept;
    kept = 0;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && (uint32_t)ids[i] < c->n_live)
            (*out)[kept++] = ids[i];
    return true;
}

static bool sampler_copy_bias(pn_chain *c, const pn_logit_bias *bias, size_t n)
{
    pn_logit_bias *copy = pn_mem_calloc(c->mem, PN_ACCT_MISC, n, sizeof *copy);
    if (!copy)
        return false;
    if (n)
        memcpy(copy, bias, n * sizeof *copy);
    c->p.bias = copy;
    c->p.n_bias = n;
    return true;
}

static void sampler_defaults(pn_chain *c)
{
    if (c->p.repeat_penalty == 0)
        c->p.repeat_penalty = 1;
    if (c->p.repeat_last_n == 0)
        c->p.repeat_last_n = 64;
    c->seed = c->p.has_seed ? c->p.seed : pn_os_entropy();
    c->greedy = c->p.temperature < SAMPLER_GREEDY_BELOW;
}

PN_INTERNAL pn_status pn_chain_new(pn_chain **out, pn_mem *mem, const pn_sampling *p, uint32_t n_vocab,
                                   uint32_t n_live, const pn_token *ends, size_t n_ends,
                                   const pn_token *never, size_t n_never, pn_err *err)
{
    if (n_vocab == 0 || n_vocab > INT32_MAX || n_live == 0 || n_live > n_vocab)
        return pn_fail(err, PN_E_INVALID, "vocabulary: expected 1 to %" PRIu32 " live tokens, found %" PRIu32,
                       n_vocab, n_live);
    pn_status st = sampler_check(p, n_vocab, err);
    if (st)
        return st;
    pn_chain *c = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *c);
    if (!c)
        return pn_fail_nomem(err, "a sampler", sizeof *c);
    c->mem = mem;
    c->p = *p;
    c->p.bias = NULL;
    c->p.n_bias = 0;
    c->n_vocab = n_vocab;
    c->n_live = n_live;
    sampler_defaults(c);
    sampler_plan(c);
    if (!sampler_copy_ids(c, ends, n_ends, &c->ends, &c->n_ends) ||
        !sampler_copy_ids(c, never, n_never, &c->never, &c->n_never) ||
        !sampler_copy_bias(c, p->bias, p->n_bias) || (c->penalties && !sampler_seen_reserve(c)))
        goto nomem;
    c->edits = c->penalties || c->p.n_bias || c->n_never ||
               (c->n_ends && (p->ignore_eos || p->min_tokens));
    if (!c->greedy || c->edits) {
        c->cand = pn_mem_calloc(mem, PN_ACCT_SCRATCH, n_live, sizeof *c->cand);
        if (!c->cand)
            goto nomem;
    }
    *out = c;
    return PN_OK;
nomem:
    pn_chain_free(c);
    return pn_fail_nomem(err, "a sampler", (uint64_t)n_live * sizeof *c->cand);
}

PN_INTERNAL void pn_chain_free(pn_chain *c)
{
    if (!c)
        return;
    pn_mem_free(c->mem, PN_ACCT_SCRATCH, c->cand, (size_t)c->n_live * sizeof *c->cand);
    pn_mem_free(c->mem, PN_ACCT_MISC, c->seen, c->cap_seen * sizeof *c->seen);
    pn_mem_free(c->mem, PN_ACCT_MISC, c->ring, c->cap_ring * sizeof *c->ring);
    pn_mem_free(c->mem, PN_ACCT_MISC, (void *)c->p.bias, c->p.n_bias * sizeof *c->p.bias);
    pn_mem_free(c->mem, PN_ACCT_MISC, c->never, c->n_never * sizeof *c->never);
    pn_mem_free(c->mem, PN_ACCT_MISC, c->ends, c->n_ends * sizeof *c->ends);
    pn_mem_free(c->mem, PN_ACCT_MISC, c, sizeof *c);
}

PN_INTERNAL uint64_t pn_chain_seed(const pn_chain *c) { return c->seed; }

/* ------------------------------------------------------------------------------------------
 * The order as text
 * ------------------------------------------------------------------------------------------ */

/* Does text[0..n) spell `name`, whatever its case, '_' and '-'? */
static bool sampler_spells(const char *text, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        char ch = text[i];
        if (ch == '_' || ch == '-')
            continue;
        if (ch >= 'A' && ch <= 'Z')
            ch = (char)(ch - 'A' + 'a');
        if (ch != *name++)              /* at the end of name: differs from its NUL, or we stop */
            return false;
    }
    return *name == 0;
}

static int sampler_kind(const char *text, size_t n)
{
    for (int k = PN_SAMPLER_END + 1; k < PN_SAMPLER_KIND_COUNT; k++)
        if (sampler_spells(text, n, sampler_rows[k].name) || sampler_spells(text, n, sampler_rows[k].alias))
            return k;
    return PN_SAMPLER_END;
}

PN_API pn_status pn_sampling_parse_order(const char *text, uint8_t order[PN_SAMPLER_ORDER_MAX], pn_err *err)
{
    uint8_t found[PN_SAMPLER_ORDER_MAX] = {0};
    size_t n = 0;
    bool had[PN_SAMPLER_KIND_COUNT] = {false};
    for (const char *p = text; *p;) {
        while (*p == ';' || *p == ',' || *p == ' ')
            p++;
        size_t len = strcspn(p, ";, ");
        if (!len)
            break;
        int kind = sampler_kind(p, len);
        if (kind == PN_SAMPLER_END)
            return pn_fail(err, PN_E_INVALID, "sampler order: expected penalties, temperature, top_k, top_p or "
                           "min_p, found \"%.*s\"", (int)PN_MIN(len, (size_t)64), p);
        if (had[kind] || n == PN_SAMPLER_ORDER_MAX)
            return pn_fail(err, PN_E_INVALID, "sampler order: expected each sampler once, found \"%.*s\" again",
                           (int)PN_MIN(len, (size_t)64), p);
        had[kind] = true;
        found[n++] = (uint8_t)kind;
        p += len;
    }
    if (!n)
        return pn_fail(err, PN_E_INVALID, "sampler order: expected at least one name, found \"%.64s\"", text);
    memcpy(order, found, sizeof found);
    return PN_OK;
}

#undef SAMPLER_GREEDY_BELOW
#undef SAMPLER_FIRST_SORT
#undef SAMPLER_ROUNDS
#undef SAMPLER_REACHABLE
#undef SAMPLER_P_SLACK
#undef SAMPLER_GOLDEN
