/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_samplers.c - the samplers: each gets the chain and changes its list.
 *
 * p is the softmax over the candidates that are left when a sampler runs; nothing is normalised in
 * between, since the draw divides by what is there.  Each makes do with passes over the list and a
 * partial sort; invariants are in pn_sampler_int.h.  In alphabetical order of what they are called:
 *
 *   dry          logit - multiplier * base^(repeated length - allowed length)      pn_dry.h
 *   min-p        logit >= max + ln min_p
 *   mirostat     -log2 p <= mu, where mu follows the surprise of what was drawn    Basu et al. 2021
 *   penalties    repetition divides or multiplies, presence and frequency subtract
 *   temperature  logit / T; dynamic: T between T - r and T + r by (H / ln n)^e
 *   top-k        the k best
 *   top-n-sigma  logit >= max - n * standard deviation of the logits               Tang et al. 2024
 *   top-p        the best that sum up to p                                         Holtzman et al. 2019
 *   typical      those whose -ln p is closest to the entropy H, up to the share    Meister et al. 2022
 *   xtc          at times: of those with p >= threshold only the least likely
 */
#include "sample/pn_sampler_int.h"

#include "base/pn_err.h"
#include "num/pn_math.h"

#include <float.h>
#include <math.h>

#define SAMPLERS_P_SLACK 1e-6           /* relative: 0.4 + 0.3 must reach 0.7 in floats */
#define SAMPLERS_COLDEST 1e-5           /* dividing by less overflows; the maximum wins anyway */
#define SAMPLERS_LN2 0.6931471805599453
#define SAMPLERS_LN_FLT_MAX 88.7228391  /* DRY's power stays a float */

/* ------------------------------------------------------------------------------------------
 * Those that change logits
 * ------------------------------------------------------------------------------------------ */

static float samplers_penalised(const pn_chain *c, float logit, const pn_seen *s)
{
    float r = c->p.repeat_penalty;
    if (s->in_window)
        logit = logit > 0 ? logit / r : logit * r;      /* dividing a negative one would reward */
    if (s->generated)
        logit -= (float)s->generated * c->p.frequency_penalty + c->p.presence_penalty;
    return pn_cand_clean(logit);
}

static void samplers_penalties(pn_chain *ch)
{
    const pn_counts *k = &ch->counts;
    pn_cands *c = &ch->c;
    if (!k->n_seen)
        return;
    if (c->dense) {
        for (size_t i = 0; i < k->cap_seen; i++) {
            pn_token t = k->seen[i].token;
            if (t >= 0 && (uint32_t)t < c->n)
                c->list[t].logit = samplers_penalised(ch, c->list[t].logit, &k->seen[i]);
        }
    } else {
        for (size_t i = 0; i < c->n; i++) {
            const pn_seen *s = pn_counts_find(k, c->list[i].id);
            if (s->token != -1)
                c->list[i].logit = samplers_penalised(ch, c->list[i].logit, s);
        }
        pn_cands_filter(c, -DBL_MAX);
    }
    c->n_sorted = 0;
}

/* Never below the lowest float: punished, not banned. */
static float samplers_repeated(const pn_chain *c, float logit, uint32_t len)
{
    double base = (double)c->p.dry_base, power = (double)len - (double)c->p.dry_allowed_length;
    if (base > 1.000001)
        power = PN_MIN(power, floor(SAMPLERS_LN_FLT_MAX / pn_log(base)));
    double x = (double)logit - (double)c->p.dry_multiplier * pn_pow(base, power);
    return (double)logit >= -(double)FLT_MAX ? (float)PN_MAX(x, -(double)FLT_MAX) : logit;
}

static void samplers_dry(pn_chain *ch)
{
    pn_dry *d = &ch->dry;
    pn_cands *c = &ch->c;
    if (!pn_dry_find(d, (size_t)ch->p.dry_allowed_length))
        return;
    if (c->dense) {
        for (size_t i = 0; i < d->cap_hits; i++) {
            pn_token t = d->hits[i].token;
            if (t >= 0 && (uint32_t)t < c->n && d->hits[i].len)
                c->list[t].logit = samplers_repeated(ch, c->list[t].logit, d->hits[i].len);
        }
    } else {
        for (size_t i = 0; i < c->n; i++) {
            uint32_t len = pn_dry_length(d, c->list[i].id);
            if (len)
                c->list[i].logit = samplers_repeated(ch, c->list[i].logit, len);
        }
    }
    c->n_sorted = 0;
}

/* Entropy over its maximum says how undecided the model is, 0 to 1. */
static double samplers_dynamic(const pn_chain *ch)
{
    double t = (double)ch->p.temperature, r = (double)ch->p.dynatemp_range, log_total;
    double lo = PN_MAX(t - r, 0.0), hi = t + r, h;
    if (ch->c.n <= 1)
        return 1;
    h = pn_cands_entropy(&ch->c, pn_cands_max(&ch->c), &log_total) / pn_log((double)ch->c.n);
    h = PN_MIN(h, 1.0);
    return lo + (hi - lo) * (h > 0 ? pn_pow(h, (double)ch->p.dynatemp_exponent) : 0);
}

/* Two logits may round to one here; the order among them stays that of the list. */
static void samplers_temperature(pn_chain *ch)
{
    pn_cands *c = &ch->c;
    float t = ch->p.temperature;
    pn_cands_compact(c);
    if (ch->p.dynatemp_range > 0) {
        double dynamic = samplers_dynamic(ch);
        if (dynamic < SAMPLERS_COLDEST) {
            pn_cands_sort(c, 1);
            pn_cands_keep(c, 1);
            return;
        }
        t = (float)PN_MIN(dynamic, (double)FLT_MAX);
    }
    for (size_t i = 0; i < c->n; i++)
        c->list[i].logit = PN_MAX(pn_cand_clean(c->list[i].logit / t), -FLT_MAX);
}

/* ------------------------------------------------------------------------------------------
 * Those that remove candidates
 * ------------------------------------------------------------------------------------------ */

/* Drop what is below `least`, but leave min_keep of the best. */
static void samplers_filter(pn_cands *c, double least, size_t min_keep)
{
    size_t left = 0;
    for (size_t i = 0; i < c->n && left < min_keep; i++)
        left += (double)c->list[i].logit >= least;
    if (left < min_keep) {
        pn_cands_sort(c, min_keep);
        pn_cands_keep(c, min_keep);
    } else {
        pn_cands_filter(c, least);
    }
}

static void samplers_top_k(pn_chain *ch)
{
    pn_cands_compact(&ch->c);
    pn_cands_sort(&ch->c, (size_t)ch->p.top_k);
    pn_cands_keep(&ch->c, (size_t)ch->p.top_k);
}

static void samplers_top_p(pn_chain *ch)
{
    pn_cands_compact(&ch->c);
    if (ch->c.n)
        pn_cands_keep_share(&ch->c, (double)ch->p.top_p * (1 - SAMPLERS_P_SLACK), ch->p.min_keep, NULL);
}

static void samplers_min_p(pn_chain *ch)
{
    pn_cands_compact(&ch->c);
    if (ch->c.n)
        samplers_filter(&ch->c, (double)pn_cands_max(&ch->c) + pn_log((double)ch->p.min_p), ch->p.min_keep);
}

/* -ln p = ln Z + max - logit, so "close to the entropy" is "logit close to ln Z + max - H".  The sum
 * must exceed the share, not only reach it. */
static void samplers_typical(pn_chain *ch)
{
    pn_cands *c = &ch->c;
    double log_total;
    pn_cands_compact(c);
    if (!c->n)
        return;
    float max = pn_cands_max(c);
    double h = pn_cands_entropy(c, max, &log_total);
    const pn_cand_order order = {true, (double)max + log_total - h};
    pn_cands_keep_share(c, (double)ch->p.typical_p * (1 + SAMPLERS_P_SLACK), ch->p.min_keep, &order);
    c->n_sorted = 0;
}

static void samplers_top_n_sigma(pn_chain *ch)
{
    pn_cands *c = &ch->c;
    double sum = 0, squares = 0;
    pn_cands_compact(c);
    if (c->n < 2)
        return;
    for (size_t i = 0; i < c->n; i++)
        sum += (double)c->list[i].logit;
    double mean = sum / (double)c->n;
    for (size_t i = 0; i < c->n; i++) {
        double off = (double)c->list[i].logit - mean;
        squares += off * off;
    }
    pn_cands_filter(c, (double)pn_cands_max(c) - (double)ch->p.top_n_sigma * sqrt(squares / (double)c->n));
}

/* "Exclude top choices".  Its own stream of numbers, so that switching it on does not move the draw. */
static void samplers_xtc(pn_chain *ch)
{
    pn_cands *c = &ch->c;
    size_t n_above = 0, least = 0, kept = 0, sorted = 0;
    pn_cands_compact(c);
    if (c->n < 2 || pn_chain_unit(ch->seed, ch->n_generated, SAMPLER_STREAM_XTC) > (double)ch->p.xtc_probability)
        return;
    float max = pn_cands_max(c);
    double bound = (double)max + pn_log((double)ch->p.xtc_threshold * pn_cands_total(c, max));
    for (size_t i = 0; i < c->n; i++) {
        if ((double)c->list[i].logit < bound)
            continue;
        if (!n_above++ || pn_cand_better(c->list[least], c->list[i]))
            least = i;
    }
    if (n_above < 2 || c->n - (n_above - 1) < ch->p.min_keep)
        return;
    for (size_t i = 0; i < c->n; i++) {
        if (i != least && (double)c->list[i].logit >= bound)
            continue;
        c->list[kept++] = c->list[i];
        sorted += i < c->n_sorted;
    }
    c->n = kept;
    c->n_sorted = sorted;
}

/* -log2 p > mu is logit < max + ln Z - mu ln 2. */
PN_INTERNAL void pn_samplers_mirostat(pn_chain *ch)
{
    pn_cands *c = &ch->c;
    if (!c->n)
        return;
    float max = pn_cands_max(c);
    samplers_filter(c, (double)max + pn_log(pn_cands_total(c, max)) - ch->mu * SAMPLERS_LN2, 1);
}

/* ------------------------------------------------------------------------------------------
 * The table
 * ------------------------------------------------------------------------------------------ */

static bool samplers_on_penalties(const pn_sampling *p)
{
    return p->repeat_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static bool samplers_on_temperature(const pn_sampling *p) { return p->temperature != 1 || p->dynatemp_range > 0; }
static bool samplers_on_top_k(const pn_sampling *p) { return p->top_k > 0; }
static bool samplers_on_top_p(const pn_sampling *p) { return p->top_p > 0 && p->top_p < 1; }
static bool samplers_on_min_p(const pn_sampling *p) { return p->min_p > 0; }
static bool samplers_on_typical(const pn_sampling *p) { return p->typical_p > 0 && p->typical_p < 1; }
static bool samplers_on_top_n_sigma(const pn_sampling *p) { return p->top_n_sigma > 0; }
static bool samplers_on_xtc(const pn_sampling *p) { return p->xtc_probability > 0 && p->xtc_threshold <= 0.5f; }
static bool samplers_on_dry(const pn_sampling *p) { return p->dry_multiplier > 0 && p->dry_base >= 1; }

/* One row a kind.  Names are matched without case, '_' and '-'.  A new sampler is a new kind at
 * the end of pn_sampler_kind, a row here and a function above. */
static const struct samplers_row {
    const char *name, *alias[3];
    bool (*on)(const pn_sampling *p);
    void (*apply)(pn_chain *c);
} samplers_rows[PN_SAMPLER_KIND_COUNT] = {
    [PN_SAMPLER_PENALTIES] = {"penalties", {"penalty"}, samplers_on_penalties, samplers_penalties},
    [PN_SAMPLER_TEMPERATURE] = {"temperature", {"temp"}, samplers_on_temperature, samplers_temperature},
    [PN_SAMPLER_TOP_K] = {"topk", {0}, samplers_on_top_k, samplers_top_k},
    [PN_SAMPLER_TOP_P] = {"topp", {"nucleus"}, samplers_on_top_p, samplers_top_p},
    [PN_SAMPLER_MIN_P] = {"minp", {0}, samplers_on_min_p, samplers_min_p},
    [PN_SAMPLER_TYPICAL] = {"typical", {"typ", "typp", "typicalp"}, samplers_on_typical, samplers_typical},
    [PN_SAMPLER_TOP_N_SIGMA] = {"topnsigma", {"nsigma"}, samplers_on_top_n_sigma, samplers_top_n_sigma},
    [PN_SAMPLER_XTC] = {"xtc", {0}, samplers_on_xtc, samplers_xtc},
    [PN_SAMPLER_DRY] = {"dry", {0}, samplers_on_dry, samplers_dry},
};

PN_INTERNAL bool pn_samplers_on(uint8_t kind, const pn_sampling *p) { return samplers_rows[kind].on(p); }
PN_INTERNAL void pn_samplers_apply(uint8_t kind, pn_chain *c) { samplers_rows[kind].apply(c); }
PN_INTERNAL const char *pn_samplers_name(uint8_t kind) { return samplers_rows[kind].name; }

/* Does text[0..n) spell `name`, whatever its case, '_' and '-'? */
static bool samplers_spells(const char *text, size_t n, const char *name)
{
    if (!name)
        return false;
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

PN_INTERNAL uint8_t pn_samplers_find(const char *text, size_t n)
{
    for (uint8_t k = PN_SAMPLER_END + 1; k < PN_SAMPLER_KIND_COUNT; k++) {
        bool found = samplers_spells(text, n, samplers_rows[k].name);
        for (size_t i = 0; i < PN_COUNT_OF(samplers_rows[k].alias); i++)
            found |= samplers_spells(text, n, samplers_rows[k].alias[i]);
        if (found)
            return k;
    }
    return PN_SAMPLER_END;
}

/* ------------------------------------------------------------------------------------------
 * What may be asked for
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_samplers_check(const pn_sampling *p, pn_err *err)
{
    float r = p->repeat_penalty;
    const float most = FLT_MAX;
    const struct {
        const char *field, *allowed;
        float v, lo, hi;                /* !(v >= lo) and not v < lo: NaN must fail too */
    } rows[] = {
        {"temperature", "0 (greedy) or a positive number", p->temperature, 0, most},
        {"top_p", "0 to 1 (0 and 1: off)", p->top_p, 0, INFINITY},
        {"min_p", "0 (off) to 1", p->min_p, 0, 1},
        {"repeat_penalty", "0 or 1 (off) or a positive number", r, 0, most},
        {"repeat_last_n", "-1 (all), 0 (64) or a count", (float)p->repeat_last_n, -1, most},
        {"presence_penalty", "a finite number", p->presence_penalty, -most, most},
        {"frequency_penalty", "a finite number", p->frequency_penalty, -most, most},
        {"typical_p", "0 to 1 (0 and 1: off)", p->typical_p, 0, INFINITY},
        {"top_n_sigma", "a number of deviations (0 or less: off)", p->top_n_sigma, -most, most},
        {"xtc_probability", "0 (off) to 1", p->xtc_probability, 0, 1},
        {"xtc_threshold", "0 (0.1) to 1", p->xtc_threshold, 0, 1},
        {"dry_multiplier", "0 (off) or a positive number", p->dry_multiplier, 0, most},
        {"dry_base", "0 (1.75) or a positive number", p->dry_base, 0, most},
        {"dry_allowed_length", "0 (2) or a count", (float)p->dry_allowed_length, 0, most},
        {"dry_penalty_last_n", "-1 (all), 0 (64) or a count", (float)p->dry_penalty_last_n, -1, most},
        {"dynatemp_range", "a finite number (0 or less: off)", p->dynatemp_range, -most, most},
        {"dynatemp_exponent", "0 (1) or a positive number", p->dynatemp_exponent, 0, most},
        {"mirostat", "0 (off) or 2", (float)p->mirostat, p->mirostat == 1 ? 2 : 0, 2},
        {"mirostat_tau", "0 (5) or a positive number", p->mirostat_tau, 0, most},
        {"mirostat_eta", "0 (0.1) or a positive number", p->mirostat_eta, 0, most},
    };
    for (size_t i = 0; i < PN_COUNT_OF(rows); i++)
        if (!(rows[i].v >= rows[i].lo && rows[i].v <= rows[i].hi))
            return pn_fail(err, PN_E_INVALID, "%s: expected %s, found %g", rows[i].field, rows[i].allowed,
                           (double)rows[i].v);
    if (r > 0 && 1 / r > most)
        return pn_fail(err, PN_E_INVALID, "repeat_penalty: expected a number whose inverse is finite, found %g",
                       (double)r);
    return PN_OK;
}

#undef SAMPLERS_P_SLACK
#undef SAMPLERS_COLDEST
#undef SAMPLERS_LN2
#undef SAMPLERS_LN_FLT_MAX
