/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_admit.c - may a turn begin?  Its whole life is reserved first: the prompt, the answer, nothing later.
 *
 *     fits now                     reserve, go
 *     fits once others have ended  PN_E_BUDGET, retryable: wait
 *     never fits                   PN_E_BUDGET with the context that would
 *
 * (memory sheet 6.2.)  Looking and reserving is one thing under one lock, so two turns are never promised the same
 * bytes; with the reserve taken, a turn cannot run out and nobody can take a page from it.  The caches count as free
 * and go when they are in the way.
 */
#include "engine/pn_cache.h"
#include "engine/pn_lend.h"

#include <inttypes.h>
#include <stdio.h>

/* ------------------------------------------------------------------------------------------
 * Room
 * ------------------------------------------------------------------------------------------ */

/* The host, or the i-th of the model's dies if that has memory of its own. */
typedef struct admit_place {
    const pn_die *die;          /* NULL: the host */
    uint32_t resource;
} admit_place;

static admit_place admit_die(const pn_model *m, uint32_t i) { return (admit_place){m->dies[i], 1 + m->dies[i]->index}; }

static uint64_t admit_droppable(const pn_model *m, admit_place at)
{
    return at.die ? pn_cache_droppable(m->dies[0]) : pn_cache_droppable_all(m->engine);
}

PN_INTERNAL uint64_t pn_model_available(const pn_model *m)
{
    uint64_t a = pn_govern_room(m->engine, 0, false);
    for (uint32_t i = 0; i < m->n_dies; i++)
        a = PN_MIN(a, pn_die_free_bytes(m->dies[i]));
    return a;
}

static bool admit_place_has(const pn_model *m, admit_place at, bool alone, uint64_t whole, uint64_t need, pn_lack *lack)
{
    uint64_t now = at.die ? pn_die_free_bytes(m->dies[at.die != m->dies[0]]) : pn_govern_room_free(m->engine, alone);
    if (whole <= now)
        return true;
    uint64_t with_lent = at.die ? now : pn_govern_room(m->engine, 0, alone), cached = admit_droppable(m, at);
    *lack = (pn_lack){.need = need, .available = PN_MAX(now, with_lent) + cached, .resource = at.resource};
    if (at.die)
        snprintf(lack->where, sizeof lack->where, " on die %" PRIu32 ", which has %" PRIu64, at.die->index, at.die->sim.bytes);
    if (whole > lack->available)
        return false;
    lack->lent = need > now && with_lent > now ? need - now : 0;
    if (lack->lent)
        return false;
    if (need > now)
        lack->available = now + (at.die ? pn_cache_give(m->dies[0], need - now) : pn_cache_give_all(m->engine, need - now));
    return need <= lack->available;
}

PN_INTERNAL bool pn_model_room(const pn_model *m, bool alone, const pn_need *whole, const pn_need *need, pn_lack *lack)
{
    *lack = (pn_lack){.need = need->all};
    bool room = admit_place_has(m, (admit_place){NULL, 0}, alone, whole->all, need->all, lack);
    for (uint32_t i = 0; i < m->n_dies && room; i++)
        room = admit_place_has(m, admit_die(m, i), alone, whole->die[i], need->die[i], lack);
    return room;
}

PN_INTERNAL bool pn_model_make_room(const pn_model *m, bool alone, const pn_need *whole, const pn_need *need, pn_lack *lack)
{
    bool room;
    do
        room = pn_model_room(m, alone, whole, need, lack);
    while (!room && lack->lent && pn_lend_back(m->engine, lack->lent, true));
    return room;
}

/* ------------------------------------------------------------------------------------------
 * What would fit
 * ------------------------------------------------------------------------------------------ */

/* No other session has a turn. */
static bool admit_alone(const pn_session *s) { return atomic_load(&s->model->engine->n_turns) == (s->in_turn ? 1u : 0u); }

typedef enum admit_when { ADMIT_NOW, ADMIT_ALONE, ADMIT_UNPRESSURED } admit_when;

/* Of these bytes, a part's share of something each: those of a place. */
static uint64_t admit_share(const pn_model *m, admit_place at, const uint64_t part[PN_MAX_PARTS])
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < m->n_dies; i++)
        sum += !at.die || at.die == m->dies[i] ? part[i] : 0;
    return sum;
}

/* What a turn of this session may count on beside what there is room for. */
static uint64_t admit_floor_bytes(const pn_session *s, admit_place at)
{
    const pn_model *m = s->model;
    return m->floor_used && !s->on_floor ? 0 : admit_share(m, at, m->floor_kept ? m->floor_part : m->floor_owed);
}

/* Bytes of a place: with the caches gone; with everybody else gone as well; with the rest of the machine gone, too. */
static uint64_t admit_bytes(const pn_session *s, admit_place at, admit_when when)
{
    const pn_model *m = s->model;
    uint64_t now = pn_govern_room(m->engine, at.resource, admit_alone(s)), alone = pn_govern_room_alone(m->engine, at.resource);
    uint64_t slack = at.die ? 0 : pn_govern_slack(m->engine);
    if (now == UINT64_MAX)
        return now;
    now = pn_sub_sat(now, slack);
    alone = pn_sub_sat(alone, slack);
    switch (when) {
    case ADMIT_NOW: return now + admit_droppable(m, at) + admit_floor_bytes(s, at);
    case ADMIT_ALONE: return at.die ? pn_sub_sat(alone, admit_share(m, at, m->uploaded) + at.die->work_bytes) : alone + m->floor_bytes;
    case ADMIT_UNPRESSURED: break;
    }
    return at.die ? admit_bytes(s, at, ADMIT_ALONE) : pn_add_sat(pn_govern_room_unpressured(m->engine), m->floor_bytes);
}

/* Would a context of n tokens fit there?  Now: what the session has is counted. */
static bool admit_fits(const pn_session *s, uint32_t n, admit_when when, uint64_t host, const uint64_t die[PN_MAX_PARTS])
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < s->model->n_dies; i++) {
        uint64_t need = when == ADMIT_NOW ? pn_kv_reserve_bytes(&s->kv, n, i) : pn_kv_turn_bytes(&s->kv, n, i);
        if (need > die[i])
            return false;
        all += need;
    }
    return all <= host;
}

/* The longest context, in whole pages. */
static uint32_t admit_context(const pn_session *s, admit_when when)
{
    const pn_model *m = s->model;
    uint64_t host = admit_bytes(s, (admit_place){NULL, 0}, when), die[PN_MAX_PARTS];
    uint32_t lo = 0, hi = s->n_ctx / PN_KV_PAGE_TOKENS;
    for (uint32_t i = 0; i < m->n_dies; i++)
        die[i] = m->dies[i]->simulated ? admit_bytes(s, admit_die(m, i), when) : UINT64_MAX;
    if (admit_fits(s, s->n_ctx, when, host, die))
        return s->n_ctx;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo + 1) / 2;
        if (admit_fits(s, mid * PN_KV_PAGE_TOKENS, when, host, die))
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo * PN_KV_PAGE_TOKENS;
}

/* None is less than the one before: each is an estimate of its own. */
static void admit_contexts(const pn_session *s, pn_budget_info *b)
{
    b->max_context_now = admit_context(s, ADMIT_NOW);
    b->max_context_alone = PN_MAX(admit_context(s, ADMIT_ALONE), b->max_context_now);
    b->max_context_unpressured = PN_MAX(admit_context(s, ADMIT_UNPRESSURED), b->max_context_alone);
}

/* With the numbers of a turn up to `end` tokens that did not fit. */
static void admit_note(pn_session *s, uint64_t end, const pn_lack *lack)
{
    pn_model *m = s->model;
    pn_budget_info b = {.size = sizeof b, .requested_tokens = (uint32_t)PN_MIN(end, (uint64_t)UINT32_MAX), .prompt_tokens = s->kv.length,
                        .ctx_cap = s->n_ctx, .kv_type = (pn_dtype)s->kv_type, .die = -1};
    admit_contexts(s, &b);
    b.kv_bytes_per_token = pn_kv_bytes_per_token(&m->desc.state, s->kv_type);
    b.kv_bytes_needed = lack->need;
    b.kv_bytes_available = lack->available;
    b.fixed_bytes_needed = pn_state_turn_bytes(m->desc.state.slot_bytes);
    b.limited_by = lack->resource ? PN_BY_DEVICE : PN_BY_HOST;
    if (lack->resource)
        b.die = (int32_t)lack->resource - 1;
    b.retryable = b.max_context_alone >= b.requested_tokens;
    pn_mem_state mem;
    if (pn_mem_get(m->engine, lack->resource, &mem) == PN_OK) {
        b.available = mem.soft;
        b.budget = mem.budget;
        b.level = mem.level;
    }
    b.suggestion = b.retryable ? PN_SUGGEST_LATER : PN_SUGGEST_COMPACT;
    s->budget = b;
}

PN_INTERNAL void pn_session_note_context(pn_session *s, uint64_t prompt, uint64_t end)
{
    s->budget = (pn_budget_info){.size = sizeof s->budget, .requested_tokens = (uint32_t)PN_MIN(end, (uint64_t)UINT32_MAX),
                                 .prompt_tokens = (uint32_t)PN_MIN(prompt, (uint64_t)UINT32_MAX), .ctx_cap = s->n_ctx,
                                 .max_new_tokens = (uint32_t)PN_MIN(end - prompt, (uint64_t)UINT32_MAX),
                                 .kv_bytes_per_token = pn_kv_bytes_per_token(&s->model->desc.state, s->kv_type),
                                 .kv_type = (pn_dtype)s->kv_type, .level = pn_mem_level(s->model->engine), .die = -1,
                                 .suggestion = prompt < s->n_ctx ? PN_SUGGEST_FEWER_TOKENS : PN_SUGGEST_COMPACT};
    admit_contexts(s, &s->budget);
}

PN_API pn_status pn_last_budget(const pn_session *s, pn_budget_info *out)
{
    if (!s || !out || !s->budget.size)
        return PN_E_STATE;
    *out = s->budget;
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * The floor
 * ------------------------------------------------------------------------------------------ */

enum { FLOOR_LEAST = 512, FLOOR_SHARE = 8 };     /* tokens; of what there is room for, where that is more */

/* Pages and recurrent state of one turn, on the dies whose layers they are. */
static pn_need floor_need(const pn_model *m, uint32_t tokens)
{
    const pn_state_spec *spec = &m->desc.state;
    uint64_t pages = (tokens + PN_KV_PAGE_TOKENS - 1) / PN_KV_PAGE_TOKENS;
    pn_need need = {0};
    for (uint32_t g = 0; g < spec->n_groups; g++)
        need.die[spec->group[g].part] += pages * pn_kv_page_cost(spec, g, m->exact ? PN_DTYPE_F32 : PN_DTYPE_F16);
    for (uint32_t i = 0; i < m->n_dies; i++)
        need.all += need.die[i] += pn_state_turn_part(spec, i);
    return need;
}

/* What of it is not there: the turn that runs on it did not need it, or nobody has filled it again yet.  It is kept from
 * everybody else.  NULL: none.  Under the lock. */
static void floor_owe(pn_model *m, const uint64_t owed[PN_MAX_PARTS])
{
    for (uint32_t i = 0; i < m->n_dies; i++) {
        uint64_t more = (owed ? owed[i] : 0) - m->floor_owed[i];    /* or less: it wraps */
        atomic_fetch_sub(&m->engine->floor_bytes, more);
        atomic_fetch_add(&m->engine->floor_owed, more);
        atomic_fetch_add(&m->dies[i]->floor_owed, more);
        m->floor_owed[i] += more;
    }
}

static void floor_give(pn_model *m)
{
    for (uint32_t i = 0; i < m->n_dies; i++) {
        pn_mem_free(pn_die_mem(m->dies[i]), PN_ACCT_FLOOR, m->floor[i], (size_t)m->floor_part[i]);
        m->floor[i] = NULL;
    }
    m->floor_kept = false;
}

/* All of it or nothing.  Touched: a promise that the system has not kept yet is none. */
static bool floor_take(pn_model *m)
{
    m->floor_kept = true;
    for (uint32_t i = 0; i < m->n_dies && m->floor_kept; i++) {
        if (!m->floor_part[i])
            continue;
        m->floor[i] = m->floor_part[i] <= SIZE_MAX ? pn_mem_alloc(pn_die_mem(m->dies[i]), PN_ACCT_FLOOR, (size_t)m->floor_part[i]) : NULL;
        m->floor_kept = m->floor[i] != NULL;
        if (m->floor_kept)
            memset(m->floor[i], 0, (size_t)m->floor_part[i]);
    }
    if (!m->floor_kept)
        floor_give(m);
    return m->floor_kept;
}

/* A small share of what there is, everywhere. */
static bool floor_is_modest(const pn_model *m, const pn_need *need)
{
    bool ok = need->all <= pn_govern_room(m->engine, 0, false) / FLOOR_SHARE;
    for (uint32_t i = 0; i < m->n_dies; i++)
        ok = ok && need->die[i] <= pn_die_free_bytes(m->dies[i]) / FLOOR_SHARE;
    return ok;
}

PN_INTERNAL pn_status pn_floor_open(pn_model *m, uint32_t tokens, pn_err *err)
{
    pn_engine *e = m->engine;
    pn_lack lack;
    pn_mutex_lock(&e->admit_lock);
    for (m->floor_tokens = PN_MAX(PN_MIN(tokens, m->desc.n_ctx_train), 1u);; m->floor_tokens /= 2) {
        const pn_need need = floor_need(m, m->floor_tokens);
        bool last = m->floor_tokens / 2 < FLOOR_LEAST;
        m->floor_bytes = need.all;
        memcpy(m->floor_part, need.die, sizeof m->floor_part);
        if (!last && !floor_is_modest(m, &need))
            continue;
        if ((pn_model_room(m, true, &need, &need, &lack) && floor_take(m)) || last)
            break;
    }
    bool ok = m->floor_kept;
    if (!ok)
        m->floor_bytes = 0;
    atomic_fetch_add(&e->floor_bytes, m->floor_bytes);
    pn_mutex_unlock(&e->admit_lock);
    return ok ? PN_OK : pn_fail(err, PN_E_BUDGET, "to keep memory for one turn of %" PRIu32 " tokens takes %" PRIu64 " bytes, %" PRIu64 " are available%s",
                                m->floor_tokens, lack.need, lack.available, lack.where);
}

PN_INTERNAL void pn_floor_close(pn_model *m)
{
    if (m->floor_kept)
        floor_give(m);
    if (m->floor_bytes)
        floor_owe(m, NULL);
    atomic_fetch_sub(&m->engine->floor_bytes, m->floor_bytes);
    m->floor_bytes = 0;
}

/* Not from what others have been promised since: they write it, and both is more than there is. */
PN_INTERNAL void pn_floor_refill(pn_model *m)
{
    pn_lack lack;
    pn_mutex_lock(&m->engine->admit_lock);
    if (m->floor_bytes && !m->floor_kept && !m->floor_used) {
        pn_need need = {.all = m->floor_bytes};
        memcpy(need.die, m->floor_part, sizeof need.die);
        floor_owe(m, NULL);
        if (!pn_model_room(m, true, &need, &need, &lack) || !floor_take(m))
            floor_owe(m, m->floor_part);
    }
    pn_mutex_unlock(&m->engine->admit_lock);
}

/* ------------------------------------------------------------------------------------------
 * A turn
 * ------------------------------------------------------------------------------------------ */

static void admit_event(pn_session *s, const char *what, uint64_t bytes)
{
    pn_mem_event ev = {.kind = PN_MEM_ADMIT, .resource = s->budget.die >= 0 ? 1 + (uint32_t)s->budget.die : 0, .bytes = bytes};
    snprintf(ev.what, sizeof ev.what, "%s", what);
    pn_govern_event(s->model->engine, &ev);
}

/* Under the lock: look and take. */
static bool admit_take(pn_session *s, uint32_t n, pn_need *need, pn_lack *lack)
{
    pn_engine *e = s->model->engine;
    for (uint32_t i = 0; i < s->model->n_dies; i++)
        need->all += need->die[i] = pn_kv_reserve_bytes(&s->kv, n, i);
    pn_need padded = *need;
    uint64_t slack = pn_govern_slack(e);
    padded.all += slack;
    bool room = need->all == 0 || pn_model_room(s->model, admit_alone(s), &padded, &padded, lack);
    if (!lack->resource) {
        lack->need = need->all;
        lack->available = pn_sub_sat(lack->available, slack);
    }
    if (room && (pn_kv_reserve(&s->kv, n) || (pn_cache_give_all(e, need->all) && pn_kv_reserve(&s->kv, n))))
        return true;
    if (room)
        *lack = (pn_lack){.need = need->all, .available = lack->available};
    return false;
}

/* Under the lock: the same with the model's floor, which is there whatever the machine says; or with what of it is owed. */
static bool admit_with_floor(pn_session *s, uint32_t n, pn_need *need, pn_lack *lack)
{
    pn_model *m = s->model;
    bool kept = m->floor_kept, fits = kept, ok;
    uint64_t has[PN_MAX_PARTS], left[PN_MAX_PARTS] = {0};
    memcpy(has, kept ? m->floor_part : m->floor_owed, sizeof has);
    if (!(has[0] | has[1]) || (m->floor_used && !s->on_floor))
        return false;
    if (kept)
        floor_give(m);
    floor_owe(m, NULL);
    for (uint32_t i = 0; i < m->n_dies; i++) {
        fits = fits && need->die[i] <= has[i];
        left[i] = pn_sub_sat(has[i], need->die[i]);
    }
    *need = (pn_need){0};
    ok = fits ? pn_kv_reserve(&s->kv, n) : admit_take(s, n, need, lack);
    if (ok)
        s->on_floor = m->floor_used = true;
    if (ok || !kept || !floor_take(m))
        floor_owe(m, ok ? left : has);
    return ok;
}

/* Beside what is lent, or with the floor; lack->lent: not without giving some of it back. */
static bool admit_turn(pn_session *s, uint32_t n, pn_need *need, pn_lack *lack)
{
    pn_engine *e = s->model->engine;
    *need = (pn_need){0};
    *lack = (pn_lack){0};
    pn_mutex_lock(&e->admit_lock);
    bool ok = admit_take(s, n, need, lack) || (!lack->lent && admit_with_floor(s, n, need, lack));
    if (ok) {
        s->budget.size = 0;
        atomic_fetch_add(&e->govern.n_admitted, s->in_turn ? 0u : 1u);
        atomic_fetch_add(&e->n_turns, s->in_turn ? 0u : 1u);
        s->in_turn = true;
    } else
        admit_note(s, n, lack);
    pn_mutex_unlock(&e->admit_lock);
    return ok;
}

PN_INTERNAL pn_status pn_session_reserve(pn_session *s, uint64_t end, pn_err *err)
{
    pn_engine *e = s->model->engine;
    uint32_t n = (uint32_t)PN_MIN(end, (uint64_t)s->n_ctx);
    pn_need need;
    pn_lack lack;
    bool ok;
    do
        ok = admit_turn(s, n, &need, &lack);
    while (!ok && lack.lent && pn_lend_back(e, lack.lent, true));
    if (ok)
        return PN_OK;
    atomic_fetch_add(s->budget.retryable ? &e->govern.n_busy : &e->govern.n_refused, 1u);
    admit_event(s, s->budget.retryable ? "busy" : "refused", need.all);
    return pn_fail(err, PN_E_BUDGET, "a turn up to %" PRIu32 " tokens, of which the session holds %" PRIu32 ", needs %" PRIu64
                   " bytes more, %" PRIu64 " are available%s", n, s->kv.length, lack.need, lack.available, lack.where);
}

PN_INTERNAL void pn_session_end_turn(pn_session *s)
{
    pn_model *m = s->model;
    pn_kv_trim(&s->kv);
    if (s->in_turn)
        atomic_fetch_sub(&m->engine->n_turns, 1u);
    s->in_turn = false;
    if (s->on_floor) {
        pn_mutex_lock(&m->engine->admit_lock);
        s->on_floor = m->floor_used = false;
        floor_owe(m, m->floor_part);
        pn_mutex_unlock(&m->engine->admit_lock);
    }
    pn_floor_refill(m);
}
