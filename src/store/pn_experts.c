/* SPDX-License-Identifier: AGPL-3.0-only */
#include "store/pn_experts.h"

#include <inttypes.h>
#include <math.h>

#include "base/pn_err.h"

enum { EXPERT_EMPTY = 0, EXPERT_WANTED, EXPERT_READING, EXPERT_READY, EXPERT_FAILED };

#define EXPERT_BAD (1u << 31)                   /* in a tag: it could not be read */
#define EXPERT_NONE UINT32_MAX

enum {
    EXPERT_USE = 1 << 16,                       /* heat of one use */
    EXPERT_HALF = 16                            /* uses of the layer after which heat has halved */
};

/* ------------------------------------------------------------------------------------------
 * Layout
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_experts_open(pn_experts *e, pn_mem *mem, pn_reads *reads, uint32_t n_weights, pn_err *err)
{
    *e = (pn_experts){.mem = mem, .reads = reads, .n_weights = n_weights, .head = EXPERT_NONE, .tail = EXPERT_NONE};
    e->stack_of = pn_mem_calloc(mem, PN_ACCT_MISC, n_weights, sizeof *e->stack_of);
    return e->stack_of ? PN_OK : pn_fail_nomem(err, "a table of experts", n_weights * sizeof *e->stack_of);
}

static void experts_free_slot(pn_experts *e, pn_expert_layer *l)
{
    pn_mutex_lock(&e->reads->lock);             /* reports count slots */
    uint8_t *p = l->slots[--l->n_slots];
    pn_mutex_unlock(&e->reads->lock);
    pn_os_give_back(p, (size_t)l->slot_bytes);
    pn_mem_free(e->mem, PN_ACCT_WEIGHTS, p, (size_t)l->slot_bytes);
}

PN_INTERNAL void pn_experts_close(pn_experts *e)
{
    if (!e->mem)
        return;
    for (size_t i = 0; i < e->n_layers; i++) {
        pn_expert_layer *l = &e->layers[i];
        while (l->n_slots)
            experts_free_slot(e, l);
        pn_mem_free(e->mem, PN_ACCT_MISC, l->slots, l->n_expert * sizeof *l->slots);
        pn_mem_free(e->mem, PN_ACCT_MISC, l->wanted, 3 * (size_t)l->n_expert * sizeof *l->wanted);
    }
    for (size_t i = 0; i < e->n_stacks; i++)
        pn_mem_free(e->mem, PN_ACCT_MISC, e->stacks[i].slot_of, e->layers[e->stacks[i].layer].n_expert * sizeof *e->stacks[i].slot_of);
    pn_mem_free(e->mem, PN_ACCT_MISC, e->parts, e->n_parts * sizeof *e->parts);
    pn_mem_free(e->mem, PN_ACCT_MISC, e->stacks, e->cap_stacks * sizeof *e->stacks);
    pn_mem_free(e->mem, PN_ACCT_MISC, e->layers, e->cap_layers * sizeof *e->layers);
    pn_mem_free(e->mem, PN_ACCT_MISC, e->stack_of, e->n_weights * sizeof *e->stack_of);
    e->mem = NULL;
}

PN_INTERNAL pn_status pn_experts_append(pn_experts *e, uint32_t w, const pn_weight *weight, const pn_dir_tensor *from, bool new_layer,
                                        uint32_t n_expert, uint32_t n_used, pn_err *err)
{
    if (!pn_mem_grow(e->mem, PN_ACCT_MISC, (void **)&e->stacks, &e->cap_stacks, e->n_stacks + 1, sizeof *e->stacks) ||
        !pn_mem_grow(e->mem, PN_ACCT_MISC, (void **)&e->layers, &e->cap_layers, e->n_layers + 1, sizeof *e->layers))
        return pn_fail_nomem(err, "a table of experts", (e->n_stacks + 1) * sizeof *e->stacks);
    if (new_layer)
        e->layers[e->n_layers++] = (pn_expert_layer){.stack0 = (uint32_t)e->n_stacks, .n_expert = n_expert, .n_used = n_used,
                                                     .slot_bytes = PN_DIRECT_ALIGN};
    pn_expert_layer *l = &e->layers[e->n_layers - 1];
    pn_expert_stack *s = &e->stacks[e->n_stacks++];
    *s = (pn_expert_stack){.w = w, .layer = (uint32_t)(e->n_layers - 1), .from = from, .row_bytes = weight->row_bytes,
                           .rows = weight->rows_per_expert, .at = l->slot_bytes - PN_DIRECT_ALIGN, .part0 = e->n_parts};
    s->slice_bytes = s->rows * s->row_bytes;
    l->n_stacks++;
    l->slot_bytes += pn_align_up(s->slice_bytes + PN_DIRECT_ALIGN - 1, PN_DIRECT_ALIGN);
    e->n_parts += n_expert;
    e->stack_of[w] = (uint32_t)e->n_stacks;
    return PN_OK;
}

PN_INTERNAL uint64_t pn_experts_all(const pn_experts *e)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < e->n_layers; i++)
        sum += e->layers[i].slot_bytes * e->layers[i].n_expert;
    return sum;
}

PN_INTERNAL uint64_t pn_experts_floor(const pn_experts *e)
{
    uint64_t sum = 0, largest = 0;
    for (size_t i = 0; i < e->n_layers; i++) {
        sum += e->layers[i].slot_bytes * e->layers[i].n_used;
        largest = PN_MAX(largest, e->layers[i].slot_bytes);
    }
    return PN_MIN(sum + 2 * largest, pn_experts_all(e));
}

/* Slots of layer `which` when all layers together may take `most`: what a token uses, then one more for each in
 * turn as long as it fits. */
static uint32_t experts_slots(const pn_experts *e, uint64_t most, size_t which, uint64_t *sum)
{
    uint64_t left = most;
    *sum = 0;
    for (size_t i = 0; i < e->n_layers; i++)
        left -= PN_MIN(left, e->layers[i].slot_bytes * e->layers[i].n_used);
    uint64_t round = 0;         /* bytes of one slot more in every layer */
    uint32_t slots = 0;
    for (size_t i = 0; i < e->n_layers; i++)
        round += e->layers[i].slot_bytes;
    uint64_t rounds = round ? left / round : 0;
    left -= rounds * round;
    for (size_t i = 0; i < e->n_layers; i++) {
        const pn_expert_layer *l = &e->layers[i];
        uint64_t n = l->n_used + rounds;
        if (left >= l->slot_bytes) {
            left -= l->slot_bytes;
            n++;
        } else
            left = 0;
        n = PN_MIN(n, (uint64_t)l->n_expert);
        *sum += n * l->slot_bytes;
        if (i == which)
            slots = (uint32_t)n;
    }
    return slots;
}

PN_INTERNAL uint64_t pn_experts_memory(const pn_experts *e, uint64_t most)
{
    uint64_t sum;
    experts_slots(e, most, 0, &sum);
    return sum;
}

/* ------------------------------------------------------------------------------------------
 * Slots
 * ------------------------------------------------------------------------------------------ */

static pn_expert_part *experts_part(pn_experts *e, const pn_expert_stack *s, uint32_t slot) { return &e->parts[s->part0 + slot]; }

static pn_expert_stack *experts_owner(pn_experts *e, uint32_t part)
{
    pn_expert_stack *s = e->stacks;
    while (part - s->part0 >= e->layers[s->layer].n_expert)
        s++;
    return s;
}

static void experts_empty(const pn_expert_stack *s, pn_expert_part *p)
{
    if (p->state == EXPERT_EMPTY)
        return;
    atomic_store(&s->slot_of[p->expert], 0);
    atomic_store(&p->tag, 0);
    p->state = EXPERT_EMPTY;
}

static bool experts_add_slot(pn_experts *e, pn_expert_layer *l)
{
    uint8_t *p = pn_mem_alloc(e->mem, PN_ACCT_WEIGHTS, (size_t)l->slot_bytes);
    if (!p)
        return false;
    pn_os_huge(p, (size_t)l->slot_bytes);
    memset(p, 0, (size_t)l->slot_bytes);        /* what cannot be had is found out now, not in a step */
    for (uint32_t k = 0; k < l->n_stacks; k++) {
        const pn_expert_stack *s = &e->stacks[l->stack0 + k];
        experts_part(e, s, l->n_slots)->data = (uint8_t *)(uintptr_t)pn_align_up((uintptr_t)p, PN_DIRECT_ALIGN) + s->at;
    }
    pn_mutex_lock(&e->reads->lock);
    l->slots[l->n_slots++] = p;
    pn_mutex_unlock(&e->reads->lock);
    return true;
}

/* What a torn step left to be read. */
static void experts_clear_queue(pn_experts *e)
{
    pn_mutex_lock(&e->reads->lock);
    for (uint32_t i = e->head; i != EXPERT_NONE; i = e->parts[i].next)
        experts_empty(experts_owner(e, i), &e->parts[i]);
    e->head = e->tail = EXPERT_NONE;
    pn_mutex_unlock(&e->reads->lock);
}

/* The last slot holds nothing any more.  False: something is being read into it. */
static bool experts_forget_slot(pn_experts *e, const pn_expert_layer *l)
{
    bool idle = true;
    pn_mutex_lock(&e->reads->lock);
    for (uint32_t k = 0; k < l->n_stacks; k++)
        idle = idle && experts_part(e, &e->stacks[l->stack0 + k], l->n_slots - 1)->state != EXPERT_READING;
    for (uint32_t k = 0; k < l->n_stacks && idle; k++)
        experts_empty(&e->stacks[l->stack0 + k], experts_part(e, &e->stacks[l->stack0 + k], l->n_slots - 1));
    pn_mutex_unlock(&e->reads->lock);
    return idle;
}

/* Of slots of its own a layer keeps those that `most` gives it; none: not one.  False: the time is over, or a read has to end. */
static bool experts_shrink(pn_experts *e, uint64_t most, bool none, double deadline, bool *any)
{
    uint64_t sum;
    for (size_t i = 0; i < e->n_layers; i++) {
        pn_expert_layer *l = &e->layers[i];
        uint32_t want = none ? 0 : experts_slots(e, most, i, &sum);
        for (; l->n_slots > want; *any = true) {
            if ((*any && pn_os_now() >= deadline) || !experts_forget_slot(e, l))
                return false;
            experts_free_slot(e, l);
        }
    }
    return true;
}

PN_INTERNAL pn_status pn_experts_resize(pn_experts *e, uint64_t most, double deadline, bool *done, pn_err *err)
{
    uint64_t sum;
    bool any = false;
    *done = !e->n_layers;
    if (most < pn_experts_floor(e))
        return pn_fail(err, PN_E_BUDGET, "%" PRIu64 " bytes for experts, at least %" PRIu64 " are needed", most, pn_experts_floor(e));
    experts_clear_queue(e);
    for (size_t i = 0; i < e->n_layers; i++) {          /* grow first: that may fail */
        pn_expert_layer *l = &e->layers[i];
        for (uint32_t want = experts_slots(e, most, i, &sum); l->n_slots < want; any = true) {
            if (any && pn_os_now() >= deadline)
                return PN_OK;
            if (!experts_add_slot(e, l)) {
                while (!experts_shrink(e, e->most, false, INFINITY, &any))
                    pn_thread_yield();
                return pn_fail_nomem(err, "experts", l->slot_bytes);
            }
        }
    }
    *done = experts_shrink(e, most, false, deadline, &any);
    if (*done)
        e->most = most;
    return PN_OK;
}

PN_INTERNAL void pn_experts_clear(pn_experts *e, double deadline, bool *done)
{
    bool any = false;
    experts_clear_queue(e);
    *done = experts_shrink(e, 0, true, deadline, &any);
}

PN_INTERNAL pn_status pn_experts_start(pn_experts *e, pn_err *err)
{
    if (!e->n_layers)
        return PN_OK;
    e->parts = pn_mem_calloc(e->mem, PN_ACCT_MISC, e->n_parts, sizeof *e->parts);
    bool ok = e->parts != NULL;
    for (size_t i = 0; i < e->n_stacks && ok; i++) {
        pn_expert_stack *s = &e->stacks[i];
        s->slot_of = pn_mem_calloc(e->mem, PN_ACCT_MISC, e->layers[s->layer].n_expert, sizeof *s->slot_of);
        ok = s->slot_of != NULL;
    }
    for (size_t i = 0; i < e->n_layers && ok; i++) {
        pn_expert_layer *l = &e->layers[i];
        l->slots = pn_mem_calloc(e->mem, PN_ACCT_MISC, l->n_expert, sizeof *l->slots);
        l->wanted = pn_mem_calloc(e->mem, PN_ACCT_MISC, 3 * (uint64_t)l->n_expert, sizeof *l->wanted);
        ok = l->slots && l->wanted;
        l->heat = ok ? l->wanted + l->n_expert : NULL;
        l->last = ok ? l->heat + l->n_expert : NULL;
    }
    return ok ? PN_OK : pn_fail_nomem(err, "a table of experts", e->n_parts * sizeof *e->parts);
}

/* ------------------------------------------------------------------------------------------
 * Promises and reads, with the lock held
 * ------------------------------------------------------------------------------------------ */

static uint32_t experts_heat(const pn_expert_layer *l, uint32_t expert)
{
    uint32_t halvings = (l->clock - l->last[expert]) / EXPERT_HALF;
    return halvings > 31 ? 0 : l->heat[expert] >> halvings;
}

/* An idle part: an empty one, else the one whose expert has the least heat, or of those the longest unused. */
static uint32_t experts_victim(pn_experts *e, const pn_expert_layer *l, const pn_expert_stack *s)
{
    uint32_t best = EXPERT_NONE, least = 0;
    for (uint32_t i = 0; i < l->n_slots; i++) {
        const pn_expert_part *p = experts_part(e, s, i);
        if (p->state == EXPERT_WANTED || p->state == EXPERT_READING || atomic_load(&p->left))
            continue;
        if (p->state == EXPERT_EMPTY || p->state == EXPERT_FAILED)
            return i;
        uint32_t heat = experts_heat(l, p->expert);
        if (best == EXPERT_NONE || heat < least ||
            (heat == least && l->last[p->expert] < l->last[experts_part(e, s, best)->expert])) {
            best = i;
            least = heat;
        }
    }
    return best;
}

static void experts_queue(pn_experts *e, pn_expert_part *p)
{
    uint32_t i = (uint32_t)(p - e->parts);
    p->state = EXPERT_WANTED;
    p->next = EXPERT_NONE;
    if (e->head == EXPERT_NONE)
        e->head = i;
    else
        e->parts[e->tail].next = i;
    e->tail = i;
}

/* The expert's part if it has one, in which it is or will be. */
static pn_expert_part *experts_find(pn_experts *e, const pn_expert_stack *s, uint32_t expert)
{
    uint32_t slot = atomic_load(&s->slot_of[expert]);
    return slot ? experts_part(e, s, slot - 1) : NULL;
}

/* A part of its own; NULL: none is idle. */
static pn_expert_part *experts_replace(pn_experts *e, const pn_expert_layer *l, const pn_expert_stack *s, uint32_t expert)
{
    uint32_t slot = experts_victim(e, l, s);
    if (slot == EXPERT_NONE)
        return NULL;
    pn_expert_part *p = experts_part(e, s, slot);
    experts_empty(s, p);
    const pn_piece from = pn_weights_piece(s->from, expert);
    p->expert = expert;
    p->skip = from.offset % PN_DIRECT_ALIGN;
    p->extent = pn_extent_of(from.part, from.offset, s->slice_bytes, 0);
    atomic_store(&s->slot_of[expert], slot + 1);
    experts_queue(e, p);
    return p;
}

static void experts_promise(pn_experts *e, pn_expert_stack *s)
{
    const pn_expert_layer *l = &e->layers[s->layer];
    for (; s->promised < l->n_wanted; s->promised++) {
        uint32_t expert = l->wanted[s->promised];
        pn_expert_part *p = experts_find(e, s, expert);
        if (!p)
            p = experts_replace(e, l, s, expert);
        if (!p)
            break;
        if (p->state == EXPERT_READY)
            pn_reads_tell(e->reads);
        atomic_store(&p->left, s->rows);
    }
    pn_reads_kick(e->reads);
}

static bool experts_take(void *self, pn_read_job *job)
{
    pn_experts *e = self;
    if (e->head == EXPERT_NONE)
        return false;
    pn_expert_part *p = &e->parts[e->head];
    *job = (pn_read_job){.extents = &p->extent, .n = 1, .item = e->head, .dst = p->data};
    e->head = p->next;
    if (e->head == EXPERT_NONE)
        e->tail = EXPERT_NONE;
    p->state = EXPERT_READING;
    return true;
}

static void experts_done(void *self, uint32_t item, bool ok)
{
    pn_experts *e = self;
    pn_expert_part *p = &e->parts[item];
    p->state = ok ? EXPERT_READY : EXPERT_FAILED;
    atomic_store_explicit(&p->tag, (p->expert + 1) | (ok ? 0 : EXPERT_BAD), memory_order_release);
    if (!atomic_load(&p->left))                 /* for a step that was torn: the part is idle */
        experts_promise(e, experts_owner(e, item));
}

PN_INTERNAL pn_read_source pn_experts_source(pn_experts *e) { return (pn_read_source){e, experts_take, experts_done, NULL}; }

/* ------------------------------------------------------------------------------------------
 * A step
 * ------------------------------------------------------------------------------------------ */

/* A stack as the layer's next use finds it: promises of a step that was torn are void, failures forgotten. */
static void experts_renew(pn_experts *e, const pn_expert_layer *l, pn_expert_stack *s)
{
    s->promised = 0;
    for (uint32_t i = 0; i < l->n_slots; i++) {
        pn_expert_part *p = experts_part(e, s, i);
        atomic_store(&p->left, 0);
        if (p->state == EXPERT_FAILED)
            experts_empty(s, p);
    }
}

/* Those that are there come first, each half in the order it had; counts both. */
static void experts_order(pn_experts *e, pn_expert_layer *l, uint32_t *experts, uint32_t n)
{
    uint32_t k = 0;
    for (int there = 1; there >= 0; there--)
        for (uint32_t i = 0; i < n; i++) {
            const pn_expert_part *p = experts_find(e, &e->stacks[l->stack0], experts[i]);
            if ((p && p->state == EXPERT_READY) == there)
                l->wanted[k++] = experts[i];
            if (there && p)
                e->hits++;
            else if (there) {
                e->misses++;
                for (uint32_t s = 0; s < l->n_stacks; s++)
                    e->missed_bytes += e->stacks[l->stack0 + s].slice_bytes;
            }
        }
    memcpy(experts, l->wanted, n * sizeof *experts);
    l->n_wanted = n;
}

PN_INTERNAL void pn_experts_want(pn_experts *e, uint32_t w, uint32_t *experts, uint32_t n)
{
    if (!e->parts || !e->stack_of[w])
        return;
    pn_expert_layer *l = &e->layers[e->stacks[e->stack_of[w] - 1].layer];
    pn_mutex_lock(&e->reads->lock);
    for (uint32_t k = 0; k < l->n_stacks; k++)
        experts_renew(e, l, &e->stacks[l->stack0 + k]);
    experts_order(e, l, experts, n);
    l->clock++;
    for (uint32_t i = 0; i < n; i++) {
        l->heat[experts[i]] = experts_heat(l, experts[i]) + EXPERT_USE;
        l->last[experts[i]] = l->clock;
    }
    for (uint32_t k = 0; k < l->n_stacks; k++)
        experts_promise(e, &e->stacks[l->stack0 + k]);
    pn_mutex_unlock(&e->reads->lock);
}

PN_INTERNAL pn_lease_state pn_experts_acquire(pn_experts *e, uint32_t w, uint64_t row0, uint64_t n, pn_lease *out)
{
    const pn_expert_stack *s = &e->stacks[e->stack_of[w] - 1];
    uint32_t expert = (uint32_t)(row0 / s->rows), r = (uint32_t)(row0 % s->rows), slot = atomic_load(&s->slot_of[expert]);
    if (!slot)
        return PN_LEASE_WAIT;
    pn_expert_part *p = experts_part(e, s, slot - 1);
    unsigned tag = atomic_load_explicit(&p->tag, memory_order_acquire);
    if (tag == ((expert + 1) | EXPERT_BAD))
        return PN_LEASE_FAIL;
    if (tag != expert + 1 || !atomic_load(&p->left))        /* there, but not promised: it may go any moment */
        return PN_LEASE_WAIT;
    *out = (pn_lease){.ptr = p->data + p->skip + r * s->row_bytes, .row0 = row0, .rows = (uint32_t)PN_MIN(n, (uint64_t)(s->rows - r)),
                      .block = (uint32_t)(p - e->parts)};
    return PN_LEASE_OK;
}

PN_INTERNAL void pn_experts_release(pn_experts *e, const pn_lease *l)
{
    if (atomic_fetch_sub(&e->parts[l->block].left, l->rows) != l->rows)
        return;
    pn_mutex_lock(&e->reads->lock);
    experts_promise(e, experts_owner(e, l->block));
    pn_mutex_unlock(&e->reads->lock);
}

#undef EXPERT_BAD
#undef EXPERT_NONE
