/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_sampler.c - the chain: fill, edit, truncate, draw.
 *
 *   fill      candidates (id, logit) for every live token; NaN becomes -inf, +inf the largest float
 *   edit      bias, banned tokens, ends that are too early, then what a grammar does not allow.  The
 *             list is still *dense*: candidate i is token i, so an edit touches only the tokens it is
 *             about
 *   steps     the samplers that are on, in the caller's order (pn_samplers.c)
 *   draw      descending logit, then id; the first whose running sum reaches u * total
 *
 * The mask comes before every sampler: one that only saw forbidden tokens could otherwise remove the
 * last allowed one.  Mirostat replaces the samplers that remove candidates by its own cut, made last;
 * it learns from the token accepted, not from the pick, so picking twice is the same as once.
 *
 * Tokens that end an answer are not counted by the penalties, and break DRY's passages: a chat is
 * full of them, and punishing them makes answers that never stop.
 */
#include "sample/pn_sampler_int.h"

#include "base/pn_err.h"
#include "base/pn_os.h"
#include "num/pn_math.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

#define SAMPLER_GREEDY_BELOW 1e-5f      /* dividing by less overflows; the maximum wins anyway */
#define SAMPLER_GOLDEN 0x9e3779b97f4a7c15u
#define SAMPLER_LN2 0.6931471805599453

/* ------------------------------------------------------------------------------------------
 * Randomness
 * ------------------------------------------------------------------------------------------ */

/* SplitMix64's finaliser (Steele, Lea, Flood 2014; constants of Stafford's mix 13). */
PN_INTERNAL uint64_t pn_chain_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

PN_INTERNAL uint64_t pn_chain_random(uint64_t seed, uint64_t pos, uint32_t stream)
{
    uint64_t key = stream ? pn_chain_mix(seed ^ pn_chain_mix(stream)) : seed;
    return pn_chain_mix(key + (pos + 1) * SAMPLER_GOLDEN);
}

PN_INTERNAL double pn_chain_unit(uint64_t seed, uint64_t pos, uint32_t stream)
{
    return (double)(pn_chain_random(seed, pos, stream) >> 11) * (1.0 / 9007199254740992.0);
}

/* ------------------------------------------------------------------------------------------
 * What was accepted
 * ------------------------------------------------------------------------------------------ */

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
    /* DRY last: what was pushed twice would be a repetition.  Counts that fail changed nothing. */
    if (c->dry_on && !pn_dry_reserve(&c->dry))
        return pn_fail_nomem(err, "the DRY history", (uint64_t)(c->dry.n + 1) * sizeof *c->dry.hist);
    if (c->penalties && !sampler_in(c->ends, c->n_ends, t) && !pn_counts_add(&c->counts, t, generated))
        return pn_fail_nomem(err, "the penalty window", (uint64_t)(c->counts.n_ring + 1) * sizeof *c->counts.ring);
    if (c->dry_on)
        pn_dry_push(&c->dry, t);
    if (generated && c->mirostat && t == c->picked)
        c->mu -= (double)c->p.mirostat_eta * (c->surprise - (double)c->p.mirostat_tau);
    c->picked = -1;
    c->n_generated += generated;
    return PN_OK;
}

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
        c->c.list[list[i]].logit = -INFINITY;
}

/* Bit i of word i / 32: token i is allowed. */
static bool sampler_allows(const uint32_t *allowed, uint32_t i)
{
    return allowed[i / 32] >> i % 32 & 1;
}

static void sampler_mask(pn_chain *c, const uint32_t *allowed)
{
    for (uint32_t from = 0; from < c->n_live; from += 32) {
        uint32_t to = PN_MIN(c->n_live, from + 32);
        if (allowed[from / 32] == UINT32_MAX)
            continue;
        for (uint32_t i = from; i < to; i++)
            if (!sampler_allows(allowed, i))
                c->c.list[i].logit = -INFINITY;
    }
}

/* Fill and edit. */
static void sampler_fill(pn_chain *c, const float *logits, const uint32_t *allowed)
{
    pn_cand *list = c->c.list;
    for (uint32_t i = 0; i < c->n_live; i++)
        list[i] = (pn_cand){pn_cand_clean(logits[i]), (pn_token)i};
    c->c.n = c->n_live;
    c->c.n_sorted = 0;
    c->c.dense = true;
    for (size_t i = 0; i < c->p.n_bias; i++) {
        const pn_logit_bias *b = &c->p.bias[i];
        if ((uint32_t)b->token < c->n_live)
            list[b->token].logit = pn_cand_clean(list[b->token].logit + b->bias);
    }
    sampler_ban(c, c->never, c->n_never);
    if (sampler_ends_banned(c))
        sampler_ban(c, c->ends, c->n_ends);
    if (allowed)
        sampler_mask(c, allowed);
}

/* Everything up to the draw; for greedy the list ends with one candidate. */
static void sampler_run(pn_chain *c, const float *logits, const uint32_t *allowed)
{
    sampler_fill(c, logits, allowed);
    for (size_t i = 0; i < c->n_steps; i++)
        pn_samplers_apply(c->steps[i], c);
    pn_cands_compact(&c->c);
    if (c->mirostat)
        pn_samplers_mirostat(c);
    if (c->greedy) {
        pn_cands_sort(&c->c, 1);
        pn_cands_keep(&c->c, 1);
    }
}

static bool sampler_banned(const pn_chain *c, pn_token t)
{
    return sampler_in(c->never, c->n_never, t) || (sampler_ends_banned(c) && sampler_in(c->ends, c->n_ends, t));
}

/* Lowest id among the largest that may come; -1: nothing finite.  +inf ranks as the largest float.  Bans are looked up
 * for the few that lead for a while, so they need no list. */
static pn_token sampler_argmax(const pn_chain *c, const float *logits, const uint32_t *allowed)
{
    float best = -INFINITY;
    pn_token id = -1;
    for (uint32_t i = 0; i < c->n_live && best < FLT_MAX; i++) {
        if (logits[i] > best && (!allowed || sampler_allows(allowed, i)) && !sampler_banned(c, (pn_token)i)) {
            best = pn_cand_clean(logits[i]);    /* the comparison is false for NaN */
            id = (pn_token)i;
        }
    }
    return id;
}

static pn_status sampler_none_left(const pn_chain *c, const uint32_t *allowed, pn_err *err)
{
    uint32_t n = 0;
    for (uint32_t i = 0; allowed && i < c->n_live; i++)
        n += sampler_allows(allowed, i);
    if (allowed)
        return pn_fail(err, PN_E_NUMERIC, "no token to choose: expected a finite logit among the %" PRIu32
                       " of %" PRIu32 " tokens that are allowed here, found only NaN, -inf and banned tokens", n,
                       c->n_live);
    return pn_fail(err, PN_E_NUMERIC, "no token to choose: expected a finite logit among %" PRIu32
                   ", found only NaN, -inf and banned tokens", c->n_live);
}

/* For mirostat: how surprising is the candidate, among those left, in bits? */
static double sampler_surprise(const pn_chain *c, size_t at)
{
    float max = pn_cands_max(&c->c);
    double nats = pn_log(pn_cands_total(&c->c, max)) + (double)max - (double)c->c.list[at].logit;
    return nats / SAMPLER_LN2;
}

PN_INTERNAL pn_status pn_chain_pick_masked(pn_chain *c, const float *logits, const uint32_t *allowed, pn_token *out,
                                           pn_err *err)
{
    if (!c->c.list) {
        pn_token t = sampler_argmax(c, logits, allowed);
        if (t < 0)
            return sampler_none_left(c, allowed, err);
        *out = t;
        return PN_OK;
    }
    sampler_run(c, logits, allowed);
    if (!c->c.n)
        return sampler_none_left(c, allowed, err);
    size_t at = 0;
    if (!c->greedy)
        at = pn_cands_walk(&c->c, pn_chain_unit(c->seed, c->n_generated, SAMPLER_STREAM_DRAW), NULL);
    c->picked = c->c.list[at].id;
    c->surprise = c->mirostat ? sampler_surprise(c, at) : 0;
    *out = c->picked;
    return PN_OK;
}

PN_INTERNAL pn_status pn_chain_pick(pn_chain *c, const float *logits, pn_token *out, pn_err *err)
{
    return pn_chain_pick_masked(c, logits, NULL, out, err);
}

PN_INTERNAL size_t pn_chain_candidates(pn_chain *c, const float *logits, pn_token *ids, float *out, size_t cap)
{
    if (!c->c.list) {
        pn_token t = sampler_argmax(c, logits, NULL);
        if (t >= 0 && cap) {
            ids[0] = t;
            out[0] = pn_cand_clean(logits[t]);
        }
        return t >= 0;
    }
    sampler_run(c, logits, NULL);
    pn_cands_sort(&c->c, c->c.n);
    for (size_t i = 0; i < PN_MIN(c->c.n, cap); i++) {
        ids[i] = c->c.list[i].id;
        out[i] = c->c.list[i].logit;
    }
    return c->c.n;
}

/* ------------------------------------------------------------------------------------------
 * Log-probabilities
 * ------------------------------------------------------------------------------------------ */

/* Of two tokens by raw logits; NaN counts as -inf. */
static bool sampler_likelier(const float *logits, pn_token a, pn_token b)
{
    return pn_cand_better((pn_cand){pn_cand_clean(logits[a]), a}, (pn_cand){pn_cand_clean(logits[b]), b});
}

/* ids[0..n): a heap with the least likely on top.  Let the one at i sink to its place. */
static void sampler_sink(const float *logits, pn_token *ids, size_t n, size_t i)
{
    pn_token x = ids[i];
    for (;;) {
        size_t kid = 2 * i + 1;
        if (kid >= n)
            break;
        if (kid + 1 < n && sampler_likelier(logits, ids[kid], ids[kid + 1]))
            kid++;
        if (!sampler_likelier(logits, x, ids[kid]))
            break;
        ids[i] = ids[kid];
        i = kid;
    }
    ids[i] = x;
}

/* The n likeliest of 0 .. n_live-1, best first. */
static void sampler_top(const float *logits, uint32_t n_live, uint32_t n, pn_token *ids)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (pn_token)i;
    for (size_t i = n / 2; i-- > 0;)
        sampler_sink(logits, ids, n, i);
    for (uint32_t t = n; n && t < n_live; t++) {
        if (sampler_likelier(logits, (pn_token)t, ids[0])) {
            ids[0] = (pn_token)t;
            sampler_sink(logits, ids, n, 0);
        }
    }
    for (size_t left = n; left > 1; left--) {
        pn_token worst = ids[0];
        ids[0] = ids[left - 1];
        ids[left - 1] = worst;
        sampler_sink(logits, ids, left - 1, 0);
    }
}

PN_INTERNAL pn_status pn_chain_logprobs(const float *logits, uint32_t n_vocab, uint32_t n_live, pn_token chosen,
                                        uint32_t n_top, pn_token *ids, float *lp, float *chosen_lp, pn_err *err)
{
    float max = -INFINITY;
    double sum = 0;
    if (n_live == 0 || n_live > n_vocab || n_vocab > INT32_MAX)
        return pn_fail(err, PN_E_INVALID, "vocabulary: expected 1 to %" PRIu32 " live tokens, found %" PRIu32, n_vocab,
                       n_live);
    if (n_top > n_live)
        return pn_fail(err, PN_E_INVALID, "top log-probabilities: expected 0 to %" PRIu32 ", found %" PRIu32, n_live,
                       n_top);
    if (chosen_lp && (chosen < 0 || (uint32_t)chosen >= n_live))
        return pn_fail(err, PN_E_INVALID, "chosen token: expected 0 to %" PRIu32 ", found %" PRId32, n_live - 1,
                       chosen);
    for (uint32_t i = 0; i < n_live; i++)
        max = PN_MAX(max, pn_cand_clean(logits[i]));
    if (!(max >= -FLT_MAX))
        return pn_fail(err, PN_E_NUMERIC, "log-probabilities: expected a finite logit among %" PRIu32
                       ", found only NaN and -inf", n_live);
    for (uint32_t i = 0; i < n_live; i++)
        sum += pn_cand_weight(pn_cand_clean(logits[i]), max);
    double log_all = (double)max + pn_log(sum);
    sampler_top(logits, n_live, n_top, ids);
    for (uint32_t i = 0; i < n_top; i++)
        lp[i] = (float)((double)pn_cand_clean(logits[ids[i]]) - log_all);
    if (chosen_lp)
        *chosen_lp = (float)((double)pn_cand_clean(logits[chosen]) - log_all);
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * Making one
 * ------------------------------------------------------------------------------------------ */

static pn_status sampler_check_order(const uint8_t *order, pn_err *err)
{
    bool had[PN_SAMPLER_KIND_COUNT] = {false};
    for (size_t i = 0; i < PN_SAMPLER_ORDER_MAX && order[i] != PN_SAMPLER_END; i++) {
        if (order[i] >= PN_SAMPLER_KIND_COUNT)
            return pn_fail(err, PN_E_INVALID, "order[%zu]: expected a sampler kind from 1 to %d, found %d", i,
                           (int)PN_SAMPLER_KIND_COUNT - 1, (int)order[i]);
        if (had[order[i]])
            return pn_fail(err, PN_E_INVALID, "order[%zu]: expected each sampler once, found %s again", i,
                           pn_samplers_name(order[i]));
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

static pn_status sampler_check(const pn_sampling *p, uint32_t n_vocab, pn_err *err)
{
    pn_status st = pn_samplers_check(p, err);
    if (!st && p->n_dry_breakers && !p->dry_breakers)
        st = pn_fail(err, PN_E_INVALID, "dry_breakers: expected %zu texts, found NULL", p->n_dry_breakers);
    if (!st)
        st = sampler_check_order(p->order, err);
    return st ? st : sampler_check_bias(p, n_vocab, err);
}

static bool sampler_edits_logits(uint8_t kind) { return kind == PN_SAMPLER_PENALTIES || kind == PN_SAMPLER_DRY; }

/* The order with only what is on.  Greedy needs no truncation: it cannot remove the maximum.
 * Mirostat makes its own. */
static void sampler_plan(pn_chain *c)
{
    static const uint8_t usual[] = {
        PN_SAMPLER_PENALTIES, PN_SAMPLER_DRY, PN_SAMPLER_TOP_N_SIGMA, PN_SAMPLER_TEMPERATURE, PN_SAMPLER_TOP_K,
        PN_SAMPLER_TYPICAL, PN_SAMPLER_TOP_P, PN_SAMPLER_MIN_P, PN_SAMPLER_XTC,
    };
    const uint8_t *order = c->p.order[0] ? c->p.order : usual;
    size_t n = c->p.order[0] ? PN_SAMPLER_ORDER_MAX : PN_COUNT_OF(usual);
    for (size_t i = 0; i < n && order[i] != PN_SAMPLER_END; i++) {
        bool wanted = sampler_edits_logits(order[i]) ||
                      (!c->greedy && (!c->mirostat || order[i] == PN_SAMPLER_TEMPERATURE));
        if (wanted && pn_samplers_on(order[i], &c->p))
            c->steps[c->n_steps++] = order[i];
    }
    /* Dividing by a positive number keeps the order, so top-k may come first and leave forty
     * divisions of a hundred thousand.  A dynamic temperature looks at what is left, though. */
    for (size_t i = 1; i < c->n_steps && !(c->p.dynatemp_range > 0); i++) {
        if (c->steps[i - 1] == PN_SAMPLER_TEMPERATURE && c->steps[i] == PN_SAMPLER_TOP_K) {
            c->steps[i - 1] = PN_SAMPLER_TOP_K;
            c->steps[i] = PN_SAMPLER_TEMPERATURE;
        }
    }
    for (size_t i = 0; i < c->n_steps; i++) {
        c->penalties |= c->steps[i] == PN_SAMPLER_PENALTIES;
        c->dry_on |= c->steps[i] == PN_SAMPLER_DRY;
    }
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

static void sampler_default_f(float *v, float usual) { *v = *v == 0 ? usual : *v; }
static void sampler_default_i(int32_t *v, int32_t usual) { *v = *v == 0 ? usual : *v; }

static void sampler_defaults(pn_chain *c)
{
    pn_sampling *p = &c->p;
    sampler_default_f(&p->repeat_penalty, 1);
    sampler_default_i(&p->repeat_last_n, 64);
    sampler_default_f(&p->xtc_threshold, 0.1f);
    sampler_default_f(&p->dry_base, 1.75f);
    sampler_default_i(&p->dry_allowed_length, 2);
    sampler_default_i(&p->dry_penalty_last_n, 64);
    sampler_default_f(&p->dynatemp_exponent, 1);
    sampler_default_f(&p->mirostat_tau, 5);
    sampler_default_f(&p->mirostat_eta, 0.1f);
    c->seed = p->has_seed ? p->seed : pn_os_entropy();
    c->greedy = p->temperature < SAMPLER_GREEDY_BELOW;
    c->mirostat = p->mirostat == 2 && !c->greedy;
    c->mu = 2 * (double)p->mirostat_tau;
    c->picked = -1;
}

static size_t sampler_window(int32_t last_n) { return last_n < 0 ? SIZE_MAX : (size_t)last_n; }

PN_INTERNAL bool pn_chain_wants_breakers(const pn_chain *c) { return c->dry_on; }

PN_INTERNAL pn_status pn_chain_take_breakers(pn_chain *c, pn_breakers *b, pn_err *err)
{
    for (size_t i = 0; i < c->n_ends; i++)
        if (!pn_breakers_add(b, c->ends[i], NULL, 0))
            return pn_fail_nomem(err, "sequence breakers", (b->n + 1) * sizeof *b->list);
    pn_dry_take(&c->dry, b);
    return PN_OK;
}

/* What the samplers remember. */
static bool sampler_new_state(pn_chain *c)
{
    pn_breakers ends;
    if (c->penalties && !pn_counts_init(&c->counts, c->mem, sampler_window(c->p.repeat_last_n)))
        return false;
    if (!c->dry_on)
        return true;
    pn_dry_init(&c->dry, c->mem, sampler_window(c->p.dry_penalty_last_n));
    pn_breakers_init(&ends, c->mem);
    bool ok = pn_chain_take_breakers(c, &ends, NULL) == PN_OK;
    pn_breakers_fini(&ends);
    return ok;
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
    c->p.dry_breakers = NULL;
    c->p.n_dry_breakers = 0;
    c->n_vocab = n_vocab;
    c->n_live = n_live;
    sampler_defaults(c);
    sampler_plan(c);
    if (!sampler_copy_ids(c, ends, n_ends, &c->ends, &c->n_ends) ||
        !sampler_copy_ids(c, never, n_never, &c->never, &c->n_never) ||
        !sampler_copy_bias(c, p->bias, p->n_bias) || !sampler_new_state(c))
        goto nomem;
    c->edits = c->penalties || c->dry_on || c->p.n_bias;
    if (!c->greedy || c->edits) {
        c->c.list = pn_mem_calloc(mem, PN_ACCT_SCRATCH, n_live, sizeof *c->c.list);
        if (!c->c.list)
            goto nomem;
    }
    *out = c;
    return PN_OK;
nomem:
    pn_chain_free(c);
    return pn_fail_nomem(err, "a sampler", (uint64_t)n_live * sizeof *c->c.list);
}

PN_INTERNAL void pn_chain_free(pn_chain *c)
{
    if (!c)
        return;
    pn_mem_free(c->mem, PN_ACCT_SCRATCH, c->c.list, (size_t)c->n_live * sizeof *c->c.list);
    if (c->penalties)
        pn_counts_fini(&c->counts);
    pn_dry_fini(&c->dry);
    pn_mem_free(c->mem, PN_ACCT_MISC, (void *)c->p.bias, c->p.n_bias * sizeof *c->p.bias);
    pn_mem_free(c->mem, PN_ACCT_MISC, c->never, c->n_never * sizeof *c->never);
    pn_mem_free(c->mem, PN_ACCT_MISC, c->ends, c->n_ends * sizeof *c->ends);
    pn_mem_free(c->mem, PN_ACCT_MISC, c, sizeof *c);
}

PN_INTERNAL uint64_t pn_chain_seed(const pn_chain *c) { return c->seed; }

/* ------------------------------------------------------------------------------------------
 * The order as text
 * ------------------------------------------------------------------------------------------ */

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
        uint8_t kind = pn_samplers_find(p, len);
        if (kind == PN_SAMPLER_END)
            return pn_fail(err, PN_E_INVALID, "sampler order: expected penalties, dry, top_n_sigma, temperature, "
                           "top_k, typical, top_p, min_p or xtc, found \"%.*s\"", (int)PN_MIN(len, (size_t)64), p);
        if (had[kind] || n == PN_SAMPLER_ORDER_MAX)
            return pn_fail(err, PN_E_INVALID, "sampler order: expected each sampler once, found \"%.*s\" again",
                           (int)PN_MIN(len, (size_t)64), p);
        had[kind] = true;
        found[n++] = kind;
        p += len;
    }
    if (!n)
        return pn_fail(err, PN_E_INVALID, "sampler order: expected at least one name, found \"%.64s\"", text);
    memcpy(order, found, sizeof found);
    return PN_OK;
}

#undef SAMPLER_GREEDY_BELOW
#undef SAMPLER_GOLDEN
#undef SAMPLER_LN2
