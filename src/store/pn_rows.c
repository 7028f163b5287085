/* SPDX-License-Identifier: AGPL-3.0-only */
#include "store/pn_rows.h"

#include "base/pn_err.h"

enum { ROWS_EMPTY = 0, ROWS_WANTED, ROWS_READING, ROWS_READY, ROWS_FAILED };

#define ROWS_BAD ((uint64_t)1 << 63)            /* in a tag: it could not be read */

PN_INTERNAL void pn_rows_open(pn_rows *r, pn_mem *mem, pn_reads *reads, uint32_t w, const pn_weight *weight, uint32_t part, uint64_t offset)
{
    memset(r, 0, sizeof *r);
    r->mem = mem;
    r->reads = reads;
    r->weight = weight ? w : PN_NO_WEIGHT;
    if (!weight)
        return;
    r->row_bytes = weight->row_bytes;
    r->part = part;
    r->offset = offset;
    r->slot_bytes = pn_align_up(r->row_bytes + PN_DIRECT_ALIGN - 1, PN_DIRECT_ALIGN);
}

PN_INTERNAL void pn_rows_close(pn_rows *r)
{
    if (r->mem)
        pn_mem_free(r->mem, PN_ACCT_STAGE, r->memory, (size_t)r->memory_bytes);
    r->mem = NULL;
}

PN_INTERNAL uint64_t pn_rows_memory(const pn_rows *r)
{
    return r->weight == PN_NO_WEIGHT ? 0 : r->slot_bytes * PN_ROWS_SLOTS + PN_DIRECT_ALIGN;
}

PN_INTERNAL pn_status pn_rows_start(pn_rows *r, pn_err *err)
{
    uint64_t bytes = pn_rows_memory(r);
    if (!bytes)
        return PN_OK;
    r->memory = bytes <= SIZE_MAX ? pn_mem_alloc(r->mem, PN_ACCT_STAGE, (size_t)bytes) : NULL;
    if (!r->memory)
        return pn_fail_nomem(err, "rows of the embedding", bytes);
    r->memory_bytes = bytes;
    uint8_t *data = (uint8_t *)(uintptr_t)pn_align_up((uintptr_t)r->memory, PN_DIRECT_ALIGN);
    for (uint32_t i = 0; i < PN_ROWS_SLOTS; i++)
        r->slot[i].data = data + i * r->slot_bytes;
    return PN_OK;
}

/* The slot that has, or will have, the row; else one that may have it; else NULL. */
static pn_row_slot *rows_slot(pn_rows *r, uint64_t row)
{
    pn_row_slot *best = NULL;
    for (uint32_t i = 0; i < PN_ROWS_SLOTS; i++) {
        pn_row_slot *s = &r->slot[i];
        if (s->state != ROWS_EMPTY && s->state != ROWS_FAILED && s->row == row)
            return s;
        bool idle = s->state != ROWS_WANTED && s->state != ROWS_READING && !atomic_load(&s->uses);
        if (idle && (!best || s->last < best->last))
            best = s;
    }
    return best;
}

/* With the lock held: promise rows to tokens, in their order, as far as there is room. */
static void rows_promise(pn_rows *r)
{
    uint32_t i = atomic_load(&r->cursor);
    for (; i < r->n_tokens; i++) {
        uint64_t row = (uint64_t)r->tokens[i], at = r->offset + row * r->row_bytes;
        pn_row_slot *s = rows_slot(r, row);
        if (!s)
            break;
        if (s->row != row || s->state == ROWS_EMPTY || s->state == ROWS_FAILED) {
            atomic_store(&s->tag, 0);
            s->row = row;
            s->skip = at % PN_DIRECT_ALIGN;
            s->extent = pn_extent_of(r->part, at, r->row_bytes, 0);
            s->state = ROWS_WANTED;
        }
        else if (s->state == ROWS_READY)
            pn_reads_tell(r->reads);
        s->last = ++r->clock;
        atomic_fetch_add(&s->uses, 1);
    }
    atomic_store(&r->cursor, i);
    pn_reads_kick(r->reads);
}

static bool rows_take(void *self, pn_read_job *job)
{
    pn_rows *r = self;
    pn_row_slot *next = NULL;
    for (uint32_t i = 0; i < PN_ROWS_SLOTS; i++)
        if (r->slot[i].state == ROWS_WANTED && (!next || r->slot[i].last < next->last))
            next = &r->slot[i];
    if (!next)
        return false;
    next->state = ROWS_READING;
    *job = (pn_read_job){.extents = &next->extent, .n = 1, .item = (uint32_t)(next - r->slot), .dst = next->data};
    return true;
}

static void rows_done(void *self, uint32_t item, bool ok)
{
    pn_rows *r = self;
    pn_row_slot *s = &r->slot[item];
    s->state = ok ? ROWS_READY : ROWS_FAILED;
    atomic_store_explicit(&s->tag, (s->row + 1) | (ok ? 0 : ROWS_BAD), memory_order_release);
    if (!atomic_load(&s->uses))                 /* for a step that was torn: the slot is idle */
        rows_promise(r);
}

PN_INTERNAL pn_read_source pn_rows_source(pn_rows *r) { return (pn_read_source){r, rows_take, rows_done, NULL}; }

PN_INTERNAL void pn_rows_begin(pn_rows *r, const pn_plan *plan, const pn_step *step)
{
    if (r->weight == PN_NO_WEIGHT)
        return;
    bool embeds = false;
    for (uint32_t i = 0; i < plan->n_ops && !embeds; i++)
        embeds = plan->ops[i].code == PN_OP_EMBED;
    pn_mutex_lock(&r->reads->lock);
    for (uint32_t i = 0; i < PN_ROWS_SLOTS; i++) {
        pn_row_slot *s = &r->slot[i];
        atomic_store(&s->uses, 0);
        if (s->state == ROWS_FAILED) {
            s->state = ROWS_EMPTY;
            atomic_store(&s->tag, 0);
        }
    }
    r->tokens = step->tokens;
    r->n_tokens = embeds ? step->n_rows : 0;
    atomic_store(&r->cursor, 0);
    rows_promise(r);
    pn_mutex_unlock(&r->reads->lock);
}

PN_INTERNAL pn_lease_state pn_rows_pick(pn_rows *r, uint64_t row, uint32_t i_token, pn_lease *out)
{
    if (i_token >= atomic_load(&r->cursor))     /* what is there was promised to an earlier token */
        return PN_LEASE_WAIT;
    for (uint32_t i = 0; i < PN_ROWS_SLOTS; i++) {
        pn_row_slot *s = &r->slot[i];
        uint64_t tag = atomic_load_explicit(&s->tag, memory_order_acquire);
        if (tag == ((row + 1) | ROWS_BAD))
            return PN_LEASE_FAIL;
        if (tag != row + 1)
            continue;
        *out = (pn_lease){.ptr = s->data + s->skip, .row0 = row, .rows = 1, .block = i};
        return PN_LEASE_OK;
    }
    return PN_LEASE_WAIT;
}

PN_INTERNAL void pn_rows_release(pn_rows *r, const pn_lease *l)
{
    if (atomic_fetch_sub(&r->slot[l->block].uses, 1) != 1)
        return;
    pn_mutex_lock(&r->reads->lock);
    rows_promise(r);
    pn_mutex_unlock(&r->reads->lock);
}

#undef ROWS_BAD
