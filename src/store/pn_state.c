/* SPDX-License-Identifier: AGPL-3.0-only */
#include "store/pn_state.h"

/* ------------------------------------------------------------------------------------------
 * Slots
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_snap *pn_snap_new(pn_mem *const mem[2], uint64_t slot_bytes, uint64_t second)
{
    uint64_t bytes = pn_snap_cost(slot_bytes), first = bytes - second;
    PN_ASSERT(slot_bytes >= second && slot_bytes && sizeof(pn_snap) <= PN_MEM_ALIGN);
    pn_snap *s = bytes <= SIZE_MAX ? pn_mem_alloc(mem[0], PN_ACCT_STATE, (size_t)first) : NULL;
    if (!s)
        return NULL;
    void *rest = second ? pn_mem_alloc(mem[1], PN_ACCT_STATE, (size_t)second) : NULL;
    if (second && !rest) {
        pn_mem_free(mem[0], PN_ACCT_STATE, s, (size_t)first);
        return NULL;
    }
    s->mem[0] = mem[0];
    s->mem[1] = mem[1];
    s->bytes = bytes;
    s->second_bytes = second;
    s->second = rest;
    atomic_init(&s->refs, 1u);
    return s;
}

PN_INTERNAL void pn_snap_retain(pn_snap *s) { atomic_fetch_add(&s->refs, 1u); }

PN_INTERNAL void pn_snap_release(pn_snap *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1u) != 1)
        return;
    pn_mem_free(s->mem[1], PN_ACCT_STATE, s->second, (size_t)s->second_bytes);
    pn_mem_free(s->mem[0], PN_ACCT_STATE, s, (size_t)(s->bytes - s->second_bytes));
}

/* ------------------------------------------------------------------------------------------
 * A sequence's
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_state_init(pn_state *s, pn_mem *const mem[2], const pn_state_spec *spec)
{
    *s = (pn_state){.mem = {mem[0], mem[1]}, .slot_bytes = spec->slot_bytes, .slot_second = spec->slot_second};
}

static pn_snap *state_snap(const pn_state *s) { return pn_snap_new(s->mem, s->slot_bytes, s->slot_second); }

/* Nobody else holds it, so nobody else ever will: a step may write it once it is done with. */
static bool state_is_own(const pn_state *s) { return s->in && atomic_load(&s->in->refs) == 1; }

static uint32_t state_wants(const pn_state *s)
{
    uint32_t want = !s->slot_bytes ? 0 : state_is_own(s) ? 1 : 2;
    return want - PN_MIN(want, s->n_free);
}

PN_INTERNAL uint64_t pn_state_reserve_bytes(const pn_state *s, uint32_t part)
{
    return state_wants(s) * pn_snap_cost_part(s->slot_bytes, s->slot_second, part);
}

PN_INTERNAL bool pn_state_reserve(pn_state *s)
{
    for (uint32_t had = s->n_free, want = state_wants(s); want; want--) {
        pn_snap *n = state_snap(s);
        if (!n) {
            while (s->n_free > had)
                pn_snap_release(s->free[--s->n_free]);
            return false;
        }
        s->free[s->n_free++] = n;
    }
    return true;
}

PN_INTERNAL void pn_state_trim(pn_state *s)
{
    while (s->n_free)
        pn_snap_release(s->free[--s->n_free]);
}

PN_INTERNAL void pn_state_run(const pn_state *s, pn_run *run)
{
    if (!s->slot_bytes)
        return;
    PN_ASSERT(s->n_free);
    for (uint32_t part = 0; part < 2; part++) {
        run->slot_in[part] = s->in ? pn_snap_data(s->in, part) : NULL;
        run->slot_out[part] = pn_snap_data(s->free[s->n_free - 1], part);
    }
}

/* Where the sequence was: to be written next, unless others hold it or there is one already. */
static void state_leave(pn_state *s)
{
    if (state_is_own(s) && s->n_free == 0)
        s->free[s->n_free++] = s->in;
    else
        pn_snap_release(s->in);
    s->in = NULL;
}

/* ------------------------------------------------------------------------------------------
 * Marks
 * ------------------------------------------------------------------------------------------ */

/* Marks [from, to) go. */
static void state_drop_marks(pn_state *s, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        pn_snap_release(s->mark[i].snap);
    memmove(&s->mark[from], &s->mark[to], (s->n_marks - to) * sizeof *s->mark);
    s->n_marks -= to - from;
}

PN_INTERNAL uint32_t pn_state_mark_step(pn_state *s, uint32_t length, uint32_t n, bool last_only, pn_checkpoint *out)
{
    const uint32_t P = PN_KV_PAGE_TOKENS, end = (length + n) / P * P;
    uint32_t n_out = 0;
    pn_state_unmark(s, false);
    for (uint32_t pos = (length / P + 1) * P; s->slot_bytes && pos <= end && s->n_marks < PN_STATE_MARKS; pos += P) {
        bool stays = !last_only && pos % PN_STATE_EVERY == 0;
        if (pos != end && !stays)
            continue;
        pn_snap *snap = state_snap(s);
        if (!snap)
            break;
        s->mark[s->n_marks++] = (pn_state_mark){pos, stays, snap};
        out[n_out++] = (pn_checkpoint){pos - length, {pn_snap_data(snap, 0), pn_snap_data(snap, 1)}};
    }
    return n_out;
}

PN_INTERNAL void pn_state_commit(pn_state *s)
{
    if (!s->slot_bytes)
        return;
    pn_snap *out = s->free[--s->n_free];
    state_leave(s);
    s->in = out;
    for (uint32_t i = 0; i + 1 < s->n_marks;)           /* of those between, only the last so far was wanted */
        if (i < s->n_ready && s->n_ready < s->n_marks && !s->mark[i].stays) {
            state_drop_marks(s, i, i + 1);
            s->n_ready--;
        } else {
            i++;
        }
    s->n_ready = s->n_marks;
}

PN_INTERNAL uint32_t pn_state_marked(const pn_state *s, bool all)
{
    uint32_t pos = 0;
    for (uint32_t i = 0; i < s->n_ready; i++)
        pos = all || s->mark[i].stays ? s->mark[i].pos : pos;
    return pos;
}

PN_INTERNAL pn_snap *pn_state_take(pn_state *s, bool all, uint32_t *pos)
{
    uint32_t i = 0;
    while (i < s->n_ready && !(all || s->mark[i].stays))
        i++;
    if (i == s->n_ready)
        return NULL;
    pn_snap *snap = s->mark[i].snap;
    *pos = s->mark[i].pos;
    s->mark[i].snap = NULL;
    state_drop_marks(s, i, i + 1);
    s->n_ready--;
    return snap;
}

PN_INTERNAL void pn_state_unmark(pn_state *s, bool all)
{
    s->n_ready = all ? 0 : s->n_ready;
    state_drop_marks(s, s->n_ready, s->n_marks);
}

/* ------------------------------------------------------------------------------------------
 * Another place
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_state_set(pn_state *s, pn_snap *at)
{
    pn_state_unmark(s, true);
    if (at)
        pn_snap_retain(at);
    if (state_is_own(s) && s->n_free < PN_COUNT_OF(s->free))
        s->free[s->n_free++] = s->in;           /* a sequence that has its memory for good keeps it */
    else
        pn_snap_release(s->in);
    s->in = at;
}

PN_INTERNAL pn_snap *pn_state_put(pn_state *s)
{
    PN_ASSERT(!s->in);
    s->in = state_snap(s);
    return s->in;
}

PN_INTERNAL void pn_state_unload(pn_state *s)
{
    pn_state_set(s, NULL);
    pn_state_trim(s);
}
