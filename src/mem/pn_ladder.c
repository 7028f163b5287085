/* SPDX-License-Identifier: AGPL-3.0-only */
#include "mem/pn_ladder.h"

static const double ladder_rest = 10;   /* seconds, memory sheet 7 rule 4 */

enum { LADDER_WORTH = 100 };            /* rule 1: a hundredth of what is missing */

PN_INTERNAL void pn_ladder_init(pn_ladder *l)
{
    memset(l, 0, sizeof *l);
    for (uint32_t r = 0; r < PN_LADDER_RESOURCES; r++)
        l->applied_at[r] = -1;
}

PN_INTERNAL bool pn_ladder_add(pn_ladder *l, const pn_rung *r)
{
    uint32_t i = l->n;
    if (l->n == PN_LADDER_RUNGS)
        return false;
    for (; i > 0 && l->rung[i - 1].rank > r->rank; i--) {
        l->rung[i] = l->rung[i - 1];
        memcpy(l->state[i], l->state[i - 1], sizeof l->state[i]);
    }
    l->rung[i] = *r;
    memset(l->state[i], 0, sizeof l->state[i]);
    for (uint32_t k = 0; k < PN_LADDER_RESOURCES; k++)
        l->state[i][k].changed_at = -1;
    l->n++;
    return true;
}

PN_INTERNAL void pn_ladder_remove(pn_ladder *l, const void *user)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->rung[i].user == user)
            continue;
        l->rung[n] = l->rung[i];
        if (n < i)
            memcpy(l->state[n], l->state[i], sizeof l->state[n]);
        n++;
    }
    l->n = n;
}

PN_INTERNAL const pn_ladder_state *pn_ladder_find(const pn_ladder *l, uint32_t rank, uint32_t resource)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (l->rung[i].rank == rank)
            return &l->state[i][resource];
    return NULL;
}

/* 1.3 times a level's threshold: what has to be available before it is over (memory sheet 5). */
static uint64_t ladder_clear(const pn_ladder_view *v, uint32_t level)
{
    uint64_t t = v->threshold[level];
    return t + t / 10 * 3;
}

PN_INTERNAL uint64_t pn_ladder_missing(const pn_ladder_view *v, uint32_t level)
{
    uint64_t want = PN_MAX(ladder_clear(v, level), v->goal);
    return v->level < level || v->available >= want ? 0 : want - v->available;
}

/* ------------------------------------------------------------------------------------------
 * Down
 * ------------------------------------------------------------------------------------------ */

static bool ladder_apply(pn_ladder *l, uint32_t i, uint32_t resource, pn_ladder_view *v, double deadline, pn_ladder_change *out)
{
    const pn_rung *r = &l->rung[i];
    pn_ladder_state *s = &l->state[i][resource];
    bool rests = (s->empty || s->undone) && v->now - s->changed_at < ladder_rest;
    uint64_t missing = rests ? 0 : pn_ladder_missing(v, r->level), freed = 0;
    uint64_t gain = missing ? r->gain(r->user, resource) : 0;
    if (!gain || gain < missing / LADDER_WORTH) {
        s->unfinished = false;
        return false;
    }
    pn_rung_state is = r->apply(r->user, resource, missing, deadline, &freed);
    s->unfinished = is == PN_RUNG_SLICE || (is == PN_RUNG_MORE && freed);
    s->empty = freed == 0 && !s->unfinished;
    s->undoing = false;
    s->undone = false;
    s->in_force = r->undo != NULL;
    s->changed_at = l->applied_at[resource] = v->now;
    s->n_applied++;
    s->freed += freed;
    v->available += PN_MIN(freed, UINT64_MAX - v->available);
    *out = (pn_ladder_change){.rung = r, .freed = freed};
    return true;
}

/* The one that was begun, or the lowest that has something to give. */
static bool ladder_down(pn_ladder *l, uint32_t resource, pn_ladder_view *v, double deadline, pn_ladder_change *out)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (l->state[i][resource].unfinished && ladder_apply(l, i, resource, v, deadline, out))
            return true;
    for (uint32_t i = 0; i < l->n; i++)
        if (ladder_apply(l, i, resource, v, deadline, out))
            return true;
    return false;
}

/* ------------------------------------------------------------------------------------------
 * Up
 * ------------------------------------------------------------------------------------------ */

static bool ladder_may_undo(const pn_ladder *l, uint32_t i, uint32_t resource, const pn_ladder_view *v, uint64_t *retake)
{
    const pn_rung *r = &l->rung[i];
    const pn_ladder_state *s = &l->state[i][resource];
    if (!s->in_force || v->level >= r->level)
        return false;
    if (v->now - s->changed_at < ladder_rest || v->now - l->applied_at[resource] < ladder_rest)
        return false;
    *retake = r->retake ? r->retake(r->user, resource) : 0;
    uint64_t clear = ladder_clear(v, r->level);
    return v->available >= clear && v->available - clear >= *retake;
}

static bool ladder_up(pn_ladder *l, uint32_t resource, pn_ladder_view *v, double deadline, pn_ladder_change *out)
{
    for (uint32_t i = l->n; i-- > 0;) {
        pn_rung *r = &l->rung[i];
        pn_ladder_state *s = &l->state[i][resource];
        uint64_t retake = 0;            /* of a step that was begun it is taken */
        if (s->undoing ? v->level >= r->level : !ladder_may_undo(l, i, resource, v, &retake))
            continue;
        pn_rung_state is = r->undo(r->user, resource, deadline);
        s->in_force = is != PN_RUNG_DONE;
        s->undoing = is == PN_RUNG_SLICE;
        s->unfinished = false;
        s->undone = true;
        s->changed_at = v->now;
        s->n_undone++;
        v->available -= PN_MIN(v->available, retake);
        *out = (pn_ladder_change){.rung = r, .undone = true};
        return true;
    }
    return false;
}

PN_INTERNAL bool pn_ladder_goes_on(const pn_ladder *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        for (uint32_t r = 0; r < PN_LADDER_RESOURCES; r++)
            if (l->state[i][r].unfinished || l->state[i][r].undoing)
                return true;
    return false;
}

PN_INTERNAL bool pn_ladder_step(pn_ladder *l, uint32_t resource, pn_ladder_view *v, double deadline, pn_ladder_change *out)
{
    return ladder_down(l, resource, v, deadline, out) || ladder_up(l, resource, v, deadline, out);
}
