/*
 * pn_sampler_int.h - what the parts of the chain share; nobody outside sample/ includes it.
 *
 *     pn_sampler.c    making a chain, running it, drawing
 *     pn_samplers.c   the samplers, one function each, and their table
 *     pn_cands.c      the candidate list: sorting at its head, walking to a share, filtering
 *     pn_counts.c     which tokens were seen, for the penalties
 *     pn_dry.c        which tokens would repeat a passage
 *
 * Invariants
 *   1. cand[0 .. n_sorted) is sorted, and nothing behind it is better than its last.
 *   2. Once not dense, every candidate is finite; n >= 1 or the pick fails with PN_E_NUMERIC.
 *   3. Picking changes nothing that a later pick could notice; only accept does.
 *   4. Sums are doubles over weights exp(logit - max); the order of every sum is fixed.
 */
#ifndef PN_SAMPLER_INT_H
#define PN_SAMPLER_INT_H

#include "sample/pn_sampler.h"

#include <float.h>
#include <math.h>

/* ------------------------------------------------------------------------------------------
 * Candidates
 * ------------------------------------------------------------------------------------------ */

typedef struct pn_cand {
    float logit;
    pn_token id;
} pn_cand;

typedef struct pn_cands {
    pn_cand *list;              /* owned by the chain, [n_live]; NULL for plain greedy */
    size_t n, n_sorted;
    bool dense;                 /* candidate i is token i, logits may be -inf */
} pn_cands;

/* How a list is ordered: by descending logit, or (typical sampling) by the distance of the logit
 * from `centre`; then by logit, then by id. */
typedef struct pn_cand_order {
    bool by_distance;
    double centre;
} pn_cand_order;

/* NaN becomes -inf, +inf the largest float. */
static inline float pn_cand_clean(float x)
{
    if (x <= FLT_MAX)
        return x;
    return x > FLT_MAX ? FLT_MAX : -INFINITY;
}

/* e^x for x <= 0, relative error < 1e-11; below -100 nothing.  Why not pn_exp: this runs over a
 * whole vocabulary, and the draw needs no last bits.  2^n e^f with |f| <= ln2 / 2 and the series to
 * f^9, in two halves (f^0..f^4 and f^5..f^9) that do not wait for each other. */
static inline double pn_cand_exp(double x)
{
    if (!(x > -100))
        return 0;
    double t = x * 1.4426950408889634;              /* 1 / ln 2 */
    int n = (int)(t - 0.5);
    double f = (t - n) * 0.6931471805599453;        /* ln 2 */
    double f2 = f * f, f4 = f2 * f2;
    double low = (1 + f) + f2 * (0.5 + f * (1.0 / 6)) + f4 * (1.0 / 24);
    double high = (1.0 / 120 + f * (1.0 / 720)) + f2 * (1.0 / 5040 + f * (1.0 / 40320)) + f4 * (1.0 / 362880);
    uint64_t bits = (uint64_t)(1023 + n) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return (low + f4 * f * high) * scale;
}

/* The weight of a logit beside the largest. */
static inline double pn_cand_weight(float logit, float max) { return pn_cand_exp((double)logit - (double)max); }

PN_INTERNAL bool pn_cand_better(pn_cand a, pn_cand b);

/* From "candidate i is token i" to a list of what can be chosen. */
PN_INTERNAL void pn_cands_compact(pn_cands *c);

/* Sort the best `want`; drop all behind the first n; drop what is below `least` (keeps the order). */
PN_INTERNAL void pn_cands_sort(pn_cands *c, size_t want);
PN_INTERNAL void pn_cands_keep(pn_cands *c, size_t n);
PN_INTERNAL void pn_cands_filter(pn_cands *c, double least);

/* The most logit.  n >= 1. */
PN_INTERNAL float pn_cands_max(const pn_cands *c);

/* The sum of all weights. */
PN_INTERNAL double pn_cands_total(const pn_cands *c, float max);

/* Entropy of the list in nats; *log_total: ln of pn_cands_total. */
PN_INTERNAL double pn_cands_entropy(const pn_cands *c, float max, double *log_total);

/* The first position, best first, where the running share of all weights reaches `share`;
 * everything before it is then better than it, in no order.  n >= 1.  order NULL: by logit. */
PN_INTERNAL size_t pn_cands_walk(pn_cands *c, double share, const pn_cand_order *order);

/* Keep the shortest such run, but at least min_keep candidates; afterwards unsorted unless by logit. */
PN_INTERNAL void pn_cands_keep_share(pn_cands *c, double share, size_t min_keep, const pn_cand_order *order);

/* ------------------------------------------------------------------------------------------
 * Counts of tokens
 * ------------------------------------------------------------------------------------------ */

/* How often a token was seen; token -1: free slot. */
typedef struct pn_seen {
    pn_token token;
    uint32_t in_window, generated;
} pn_seen;

typedef struct pn_counts {
    pn_mem *mem;                /* borrowed */
    size_t window;              /* tokens looked back; SIZE_MAX: all */
    pn_token *ring;             /* owned, [cap_ring]; n_ring <= window used */
    size_t n_ring, cap_ring, ring_at;
    pn_seen *seen;              /* owned, [cap_seen], open addressing, power of two */
    size_t n_seen, cap_seen;
} pn_counts;

PN_INTERNAL bool pn_counts_init(pn_counts *k, pn_mem *mem, size_t window);     /* false: out of memory */
PN_INTERNAL void pn_counts_fini(pn_counts *k);
PN_INTERNAL bool pn_counts_add(pn_counts *k, pn_token t, bool generated);      /* false: nothing changed */

/* The entry of t; its token is -1 when t was not seen. */
PN_INTERNAL const pn_seen *pn_counts_find(const pn_counts *k, pn_token t);

/* ------------------------------------------------------------------------------------------
 * The chain
 * ------------------------------------------------------------------------------------------ */

enum { SAMPLER_STREAM_DRAW = 0, SAMPLER_STREAM_XTC = 1 };

struct pn_chain {
    pn_mem *mem;
    pn_sampling p;              /* p.bias: our copy, owned; p.dry_breakers: not kept */
    uint64_t seed;
    uint32_t n_vocab, n_live;
    bool greedy, edits;         /* edits: somebody may change a logit (not just ban), so greedy needs the list */
    bool penalties, dry_on;     /* counting, remembering is worth while */
    bool mirostat;
    uint8_t steps[PN_SAMPLER_ORDER_MAX];
    size_t n_steps;
    pn_token *ends, *never;     /* owned, [n_ends], [n_never] */
    size_t n_ends, n_never;

    uint64_t n_generated;
    pn_counts counts;           /* for the penalties */
    pn_dry dry;
    double mu;                  /* mirostat: most surprise allowed, bits */
    pn_token picked;            /* what the last pick chose, -1: none since the last accept */
    double surprise;            /* and how surprising that was, bits */

    pn_cands c;
};

/* Is a kind on with these parameters; run it. */
PN_INTERNAL bool pn_samplers_on(uint8_t kind, const pn_sampling *p);
PN_INTERNAL void pn_samplers_apply(uint8_t kind, pn_chain *c);

/* Mirostat's cut, last of all: drop what is more surprising than mu. */
PN_INTERNAL void pn_samplers_mirostat(pn_chain *c);

/* text[0..n) as a kind, whatever its case, '_' and '-'; PN_SAMPLER_END: unknown.  And its name. */
PN_INTERNAL uint8_t pn_samplers_find(const char *text, size_t n);
PN_INTERNAL const char *pn_samplers_name(uint8_t kind);

/* PN_E_INVALID naming the first field that is out of range. */
PN_INTERNAL pn_status pn_samplers_check(const pn_sampling *p, pn_err *err);

/* SplitMix64's finaliser, also good for hash tables. */
PN_INTERNAL uint64_t pn_chain_mix(uint64_t z);

#endif /* PN_SAMPLER_INT_H */
