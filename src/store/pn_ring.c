/* SPDX-License-Identifier: AGPL-3.0-only */
#include "store/pn_ring.h"

#include <inttypes.h>
#include <math.h>

#include "base/pn_err.h"

enum { RING_EMPTY = 0, RING_WANTED, RING_READING, RING_READY, RING_FAILED };

/* A span's memory.  One whose read failed is read again when the ring passes, not all the time. */
enum { RING_FILL_NONE = 0, RING_FILL_WANTED, RING_FILL_READING, RING_FILL_THERE, RING_FILL_FAILED };
enum { RING_FILLS = 16 };                       /* of so many spans one at most, in a pass */

#define RING_BAD ((uint64_t)1 << 63)            /* in a tag: it could not be read */
#define RING_PINNED UINT32_MAX                  /* the block of a lease that is none of the ring's */

static uint64_t ring_tag(uint64_t pass, uint32_t span) { return (pass << 32 & ~RING_BAD) | ((uint64_t)span + 1); }
static pn_ring_block *ring_block(const pn_ring *g, uint64_t fill) { return &g->blocks[fill % g->depth]; }

/* ------------------------------------------------------------------------------------------
 * Layout
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_ring_open(pn_ring *g, pn_mem *mem, pn_reads *reads, uint32_t n, uint64_t block_bytes, uint32_t depth, pn_err *err)
{
    *g = (pn_ring){.mem = mem, .reads = reads, .block_bytes = block_bytes, .depth = depth, .n_weights = n};
    g->weights = pn_mem_calloc(mem, PN_ACCT_MISC, n, sizeof *g->weights);
    return g->weights ? PN_OK : pn_fail_nomem(err, "the layout of streamed weights", n * sizeof *g->weights);
}

PN_INTERNAL void pn_ring_close(pn_ring *g)
{
    bool done;
    if (!g->mem)
        return;
    (void)pn_ring_pin(g, 0, INFINITY, &done, NULL);
    pn_mem_free(g->mem, PN_ACCT_MISC, g->weights, g->n_weights * sizeof *g->weights);
    pn_mem_free(g->mem, PN_ACCT_MISC, g->pieces, g->cap_pieces * sizeof *g->pieces);
    pn_mem_free(g->mem, PN_ACCT_MISC, g->spans, g->cap_spans * sizeof *g->spans);
    pn_mem_free(g->mem, PN_ACCT_MISC, g->extents, g->cap_extents * sizeof *g->extents);
    pn_mem_free(g->mem, PN_ACCT_MISC, g->blocks, g->depth * sizeof *g->blocks);
    pn_mem_free(g->mem, PN_ACCT_STAGE, g->memory, (size_t)g->memory_bytes);
    g->mem = NULL;
}

/* Kernels take rows by sixteen, so no more than one piece of a matrix should have others. */
static uint64_t ring_even(uint64_t rows) { return rows >= 16 ? rows / 16 * 16 : rows; }

static bool ring_new_span(pn_ring *g)
{
    if (!pn_mem_grow(g->mem, PN_ACCT_MISC, (void **)&g->spans, &g->cap_spans, g->n_spans + 1, sizeof *g->spans))
        return false;
    g->spans[g->n_spans++] = (pn_ring_span){.piece0 = (uint32_t)g->n_pieces, .extent0 = (uint32_t)g->n_extents};
    return true;
}

/* The span's last extent, if the byte at `offset` follows it so closely that reading on is cheaper than reading
 * again. */
static pn_extent *ring_follows(const pn_ring *g, const pn_ring_span *s, uint32_t part, uint64_t offset)
{
    if (!s->n_extents)
        return NULL;
    pn_extent *x = &g->extents[g->n_extents - 1];
    uint64_t end = x->offset + x->need;
    return x->part == part && offset >= end && offset - end <= PN_DIRECT_ALIGN ? x : NULL;
}

/* How many of `rows` rows fit into the last span, and at which byte. */
static uint64_t ring_room(const pn_ring *g, const pn_ring_weight *rw, uint32_t part, uint64_t offset, uint64_t rows, uint64_t *at)
{
    const pn_ring_span *s = &g->spans[g->n_spans - 1];
    const pn_extent *x = ring_follows(g, s, part, offset);
    *at = x ? x->at + (offset - x->offset) : pn_align_up(s->bytes, PN_DIRECT_ALIGN) + offset % PN_DIRECT_ALIGN;
    uint64_t room = *at < g->block_bytes ? (g->block_bytes - *at) / rw->row_bytes : 0;
    if (s->n_pieces == 0)       /* the same wherever in the file it begins: finding a row relies on it */
        room = rw->per;
    else if (!x && room < rows && room < rw->per / 4)
        room = 0;               /* a small read for little */
    return room < rows ? ring_even(room) : rows;
}

/* `rows` rows of w, which lie at `offset`, become a piece of the last span. */
static bool ring_add(pn_ring *g, pn_ring_piece p, uint32_t part, uint64_t offset)
{
    pn_ring_weight *rw = &g->weights[p.w];
    pn_ring_span *s = &g->spans[g->n_spans - 1];
    if (!pn_mem_grow(g->mem, PN_ACCT_MISC, (void **)&g->pieces, &g->cap_pieces, g->n_pieces + 1, sizeof *g->pieces) ||
        !pn_mem_grow(g->mem, PN_ACCT_MISC, (void **)&g->extents, &g->cap_extents, g->n_extents + 1, sizeof *g->extents))
        return false;
    uint64_t bytes = p.rows * rw->row_bytes;
    pn_extent *x = ring_follows(g, s, part, offset);
    if (x)
        x->need = offset + bytes - x->offset;
    else {
        g->extents[g->n_extents++] = pn_extent_of(part, offset, bytes, p.at - offset % PN_DIRECT_ALIGN);
        s->n_extents++;
    }
    if (rw->n_pieces++ == 0) {
        rw->piece0 = (uint32_t)g->n_pieces;
        rw->head = p.rows;
    }
    p.span = (uint32_t)(g->n_spans - 1);
    g->pieces[g->n_pieces++] = p;
    s->n_pieces++;
    s->bytes = p.at + bytes;
    g->bytes += bytes;
    return true;
}

PN_INTERNAL pn_status pn_ring_append(pn_ring *g, uint32_t w, const pn_weight *weight, uint32_t part, uint64_t offset, pn_err *err)
{
    pn_ring_weight *rw = &g->weights[w];
    PN_ASSERT(rw->n_pieces == 0);
    if (g->block_bytes < weight->row_bytes + PN_DIRECT_ALIGN)
        return pn_fail(err, PN_E_INVALID, "a stream block of %" PRIu64 " bytes holds no row of '%s', which has %" PRIu64,
                       g->block_bytes, weight->name, weight->row_bytes);
    uint64_t per = ring_even((g->block_bytes - PN_DIRECT_ALIGN) / weight->row_bytes);
    *rw = (pn_ring_weight){.row_bytes = weight->row_bytes, .per = (uint32_t)PN_MIN(per, (uint64_t)UINT32_MAX), .used = true};
    bool ok = g->n_spans > 0 || ring_new_span(g);
    for (uint64_t row = 0; ok && row < weight->rows;) {
        uint64_t at, from = offset + row * rw->row_bytes, rows = ring_room(g, rw, part, from, weight->rows - row, &at);
        if (rows)
            ok = ring_add(g, (pn_ring_piece){.row0 = row, .at = at, .w = w, .rows = (uint32_t)rows}, part, from);
        row += rows;
        if (ok && row < weight->rows)
            ok = ring_new_span(g);
    }
    return ok ? PN_OK : pn_fail_nomem(err, "the layout of streamed weights", (g->n_pieces + 1) * sizeof *g->pieces);
}

/* Large blocks begin on a large page. */
static uint64_t ring_alignment(const pn_ring *g)
{
    return g->block_bytes * g->depth >= 2 * (uint64_t)PN_HUGE_PAGE ? PN_HUGE_PAGE : PN_DIRECT_ALIGN;
}

PN_INTERNAL uint64_t pn_ring_memory(const pn_ring *g) { return g->n_pieces ? g->block_bytes * g->depth + ring_alignment(g) : 0; }

/* ------------------------------------------------------------------------------------------
 * Pinning
 * ------------------------------------------------------------------------------------------ */

static uint64_t ring_pin_bytes(const pn_ring_span *s) { return pn_align_up(s->bytes, PN_DIRECT_ALIGN) + PN_DIRECT_ALIGN; }
static uint8_t *ring_pin_data(const pn_ring_span *s) { return (uint8_t *)(uintptr_t)pn_align_up((uintptr_t)s->pin, PN_DIRECT_ALIGN); }

/* The span whose turn is the i-th, i with its bits reversed; n_spans or more: nobody's. */
static uint32_t ring_turn_of(const pn_ring *g, uint32_t i)
{
    uint32_t bits = 0, span = 0;
    while ((uint64_t)1 << bits < g->n_spans)
        bits++;
    for (uint32_t b = 0; b < bits; b++)
        span |= (i >> b & 1) << (bits - 1 - b);
    return span;
}

/* The next span whose turn it is; *i goes on. */
static uint32_t ring_turn(const pn_ring *g, uint32_t *i)
{
    uint32_t span;
    do
        span = ring_turn_of(g, (*i)++);
    while (span >= g->n_spans);
    return span;
}

PN_INTERNAL uint64_t pn_ring_pinnable(const pn_ring *g, uint64_t most)
{
    uint64_t sum = 0;
    uint32_t turn = 0;
    for (uint32_t n = 0; n < g->n_spans; n++) {
        uint64_t bytes = ring_pin_bytes(&g->spans[ring_turn(g, &turn)]);
        if (bytes > most - sum)
            break;
        sum += bytes;
    }
    return sum;
}

static void ring_fill_is(pn_ring *g, pn_ring_span *s, uint8_t fill)
{
    g->n_wanted += (fill == RING_FILL_WANTED) - (s->fill == RING_FILL_WANTED);
    s->fill = fill;
}

static pn_status ring_pin_one(pn_ring *g, pn_err *err)
{
    uint32_t turn = g->turn;
    pn_ring_span *s = &g->spans[ring_turn(g, &turn)];
    uint64_t bytes = ring_pin_bytes(s);
    uint8_t *p = pn_mem_alloc(g->mem, PN_ACCT_WEIGHTS, (size_t)bytes);
    if (!p)
        return pn_fail_nomem(err, "weights that stay", bytes);
    pn_os_huge(p, (size_t)bytes);
    pn_mutex_lock(&g->reads->lock);     /* readers look which spans are theirs */
    s->pin = p;
    ring_fill_is(g, s, RING_FILL_WANTED);
    g->turn = turn;
    g->n_pinned++;
    g->pinned_bytes += bytes;
    pn_reads_kick(g->reads);
    pn_mutex_unlock(&g->reads->lock);
    return PN_OK;
}

/* Let go of the last one.  False: it is being read. */
static bool ring_unpin_one(pn_ring *g)
{
    uint32_t turn = g->turn;
    do
        turn--;
    while (ring_turn_of(g, turn) >= g->n_spans);
    pn_ring_span *s = &g->spans[ring_turn_of(g, turn)];
    uint64_t bytes = ring_pin_bytes(s);
    pn_mutex_lock(&g->reads->lock);
    uint8_t *p = s->fill == RING_FILL_READING ? NULL : s->pin;
    for (uint64_t i = g->first; p && i < g->next; i++)
        if (ring_block(g, i)->at == ring_pin_data(s))
            ring_block(g, i)->pass = 0;         /* no step's any more */
    if (p) {
        s->pin = NULL;
        s->pinned = false;
        ring_fill_is(g, s, RING_FILL_NONE);
        g->turn = turn;
        g->n_pinned--;
        g->pinned_bytes -= bytes;
    }
    pn_mutex_unlock(&g->reads->lock);
    if (p) {
        pn_os_give_back(p, (size_t)bytes);
        pn_mem_free(g->mem, PN_ACCT_WEIGHTS, p, (size_t)bytes);
    }
    return p != NULL;
}

/* Bytes of the next one, UINT64_MAX: there is none. */
static uint64_t ring_pin_next(const pn_ring *g)
{
    uint32_t turn = g->turn;
    return g->n_pinned < g->n_spans ? ring_pin_bytes(&g->spans[ring_turn(g, &turn)]) : UINT64_MAX;
}

PN_INTERNAL pn_status pn_ring_pin(pn_ring *g, uint64_t most, double deadline, bool *done, pn_err *err)
{
    pn_status st = PN_OK;
    *done = false;
    do {
        if (g->pinned_bytes > most) {
            if (!ring_unpin_one(g))
                return PN_OK;
        } else if (ring_pin_next(g) <= most - g->pinned_bytes && g->n_pinned < g->n_spans)
            st = ring_pin_one(g, err);
        *done = !st && g->pinned_bytes <= most && (g->n_pinned == g->n_spans || ring_pin_next(g) > most - g->pinned_bytes);
    } while (!*done && !st && pn_os_now() < deadline);
    return st;
}

PN_INTERNAL uint64_t pn_ring_filling(const pn_ring *g, bool *failed)
{
    uint64_t sum = 0;
    *failed = false;
    for (size_t i = 0; i < g->n_spans; i++) {
        const pn_ring_span *s = &g->spans[i];
        sum += s->pin && s->fill != RING_FILL_THERE ? ring_pin_bytes(s) : 0;
        *failed = *failed || s->fill == RING_FILL_FAILED;
    }
    return sum;
}

static uint64_t ring_read_bytes(const pn_ring *g, const pn_ring_span *s)
{
    uint64_t sum = 0;
    for (uint32_t k = 0; k < s->n_extents; k++)
        sum += g->extents[s->extent0 + k].need;
    return sum;
}

PN_INTERNAL uint64_t pn_ring_streamed(const pn_ring *g)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < g->n_spans; i++)
        sum += g->spans[i].fill == RING_FILL_THERE ? 0 : ring_read_bytes(g, &g->spans[i]);
    return sum;
}

PN_INTERNAL uint64_t pn_ring_unpinned(const pn_ring *g, uint64_t most)
{
    uint64_t sum = 0, pinned = pn_ring_pinnable(g, most);
    uint32_t turn = 0;
    for (uint32_t n = 0; n < g->n_spans; n++) {
        const pn_ring_span *s = &g->spans[ring_turn(g, &turn)];
        if (pinned)
            pinned -= ring_pin_bytes(s);
        else
            sum += ring_read_bytes(g, s);
    }
    return sum;
}

/* ------------------------------------------------------------------------------------------
 * Which span comes next
 * ------------------------------------------------------------------------------------------ */

/* Rows of a span that the step reads through the ring.  When what is read ahead is the step after's, spans that are there will
 * be pinned. */
static uint32_t ring_needed(const pn_ring *g, uint32_t span)
{
    const pn_ring_span *s = &g->spans[span];
    bool pinned = s->pinned || (s->fill == RING_FILL_THERE && g->fill_pass > g->pass);
    uint32_t rows = 0;
    for (uint32_t i = 0; i < s->n_pieces && !pinned; i++)
        rows += g->weights[g->pieces[s->piece0 + i].w].used ? g->pieces[s->piece0 + i].rows : 0;
    return rows;
}

/* The first needed span from `span` on; n_spans: there is none. */
static uint32_t ring_seek(const pn_ring *g, uint32_t span)
{
    while (span < g->n_spans && !ring_needed(g, span))
        span++;
    return span;
}

/* There is a span to be read next: the cursor stands on it.  Never further ahead than the step after this one. */
static bool ring_more(pn_ring *g)
{
    if (g->fill_span >= g->n_spans && g->fill_pass <= g->pass) {
        g->fill_pass++;
        g->fill_span = ring_seek(g, 0);
    }
    return g->fill_span < g->n_spans;
}

/* Hand out the blocks that are free. */
static void ring_fill(pn_ring *g)
{
    while (g->next - g->first < g->depth && ring_block(g, g->next)->state == RING_EMPTY && ring_more(g)) {
        pn_ring_block *b = ring_block(g, g->next++);
        b->pass = g->fill_pass;
        b->span = g->fill_span;
        b->state = RING_WANTED;
        atomic_store(&b->left, ring_needed(g, b->span));
        g->fill_span = ring_seek(g, g->fill_span + 1);
    }
    pn_reads_kick(g->reads);
}

static void ring_drop(pn_ring_block *b)
{
    atomic_store(&b->tag, 0);
    if (b->state == RING_READING)
        b->dropped = true;
    else
        b->state = RING_EMPTY;
}

/* ------------------------------------------------------------------------------------------
 * Reading
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_ring_start(pn_ring *g, pn_err *err)
{
    uint64_t bytes = pn_ring_memory(g);
    if (!g->n_pieces)
        return PN_OK;
    g->blocks = pn_mem_calloc(g->mem, PN_ACCT_MISC, g->depth, sizeof *g->blocks);
    g->memory = bytes <= SIZE_MAX ? pn_mem_alloc(g->mem, PN_ACCT_STAGE, (size_t)bytes) : NULL;
    if (!g->blocks || !g->memory)
        return pn_fail_nomem(err, "the ring that weights pass through", bytes);
    g->memory_bytes = bytes;
    uint8_t *data = (uint8_t *)(uintptr_t)pn_align_up((uintptr_t)g->memory, ring_alignment(g));
    pn_os_huge(data, (size_t)(g->block_bytes * g->depth));
    for (uint32_t i = 0; i < g->depth; i++)
        g->blocks[i].at = g->blocks[i].data = data + i * g->block_bytes;
    g->fill_pass = 1;           /* pass 0 never was */
    ring_fill(g);
    return PN_OK;
}

static pn_read_job ring_job(pn_ring *g, const pn_ring_span *s, uint32_t item, uint8_t *dst)
{
    return (pn_read_job){.extents = &g->extents[s->extent0], .n = s->n_extents, .item = item, .dst = dst};
}

/* A block's span; else one that has memory to be filled. */
static bool ring_take(void *self, pn_read_job *job)
{
    pn_ring *g = self;
    for (uint64_t i = g->first; i < g->next; i++) {
        pn_ring_block *b = ring_block(g, i);
        pn_ring_span *s = &g->spans[b->span];
        if (b->state != RING_WANTED || s->fill == RING_FILL_READING)    /* whoever reads it comes by again */
            continue;
        b->state = RING_READING;
        b->fills = (s->fill == RING_FILL_WANTED || s->fill == RING_FILL_FAILED) && g->n_fills <= g->n_spans / RING_FILLS;
        g->n_fills += b->fills;
        b->at = b->fills || s->fill == RING_FILL_THERE ? ring_pin_data(s) : b->data;
        *job = ring_job(g, s, (uint32_t)(i % g->depth), b->at);
        if (s->fill == RING_FILL_THERE)         /* it came while this step was under way: nothing is to be read */
            job->n = 0;
        if (b->fills)
            ring_fill_is(g, s, RING_FILL_READING);
        return true;
    }
    for (uint32_t i = 0; g->n_wanted && i < g->n_spans; i++) {
        pn_ring_span *s = &g->spans[i];
        if (s->fill != RING_FILL_WANTED)
            continue;
        ring_fill_is(g, s, RING_FILL_READING);
        *job = ring_job(g, s, g->depth + i, ring_pin_data(s));
        return true;
    }
    return false;
}

static void ring_done(void *self, uint32_t item, bool ok)
{
    pn_ring *g = self;
    const uint8_t fill = ok ? RING_FILL_THERE : RING_FILL_FAILED;
    if (item >= g->depth) {
        ring_fill_is(g, &g->spans[item - g->depth], fill);
        return;
    }
    pn_ring_block *b = &g->blocks[item];
    if (b->fills)
        ring_fill_is(g, &g->spans[b->span], fill);
    b->fills = false;
    if (b->dropped) {
        b->dropped = false;
        b->state = RING_EMPTY;
        ring_fill(g);
        return;
    }
    b->state = ok ? RING_READY : RING_FAILED;
    atomic_store_explicit(&b->tag, ring_tag(b->pass, b->span) | (ok ? 0 : RING_BAD), memory_order_release);
}

PN_INTERNAL bool pn_ring_full(const pn_ring *g)
{
    for (uint32_t i = 0; g->blocks && i < g->depth; i++)
        if (g->blocks[i].state == RING_WANTED || g->blocks[i].state == RING_READING)
            return false;
    return true;
}

PN_INTERNAL pn_read_source pn_ring_source(pn_ring *g) { return (pn_read_source){g, ring_take, ring_done, NULL}; }

/* ------------------------------------------------------------------------------------------
 * A step
 * ------------------------------------------------------------------------------------------ */

static void ring_note_used(pn_ring *g, const pn_plan *plan, const pn_step *step)
{
    for (uint32_t w = 0; w < g->n_weights; w++)
        g->weights[w].used = false;
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const pn_op *op = &plan->ops[i];
        if (op->code == PN_OP_MATMUL && pn_operand_rows(&plan->operands[op->out], step->n_rows, step->n_outs))
            g->weights[op->w].used = g->weights[op->w].n_pieces != 0;
    }
}

static bool ring_holds(const pn_ring *g, uint32_t span)
{
    for (uint64_t i = g->first; i < g->next; i++)
        if (ring_block(g, i)->span == span && ring_block(g, i)->pass == g->pass)
            return true;
    return false;
}

/* Spans that are there are pinned from now on; those that blocks hold for this step, from the next one on. */
static void ring_settle(pn_ring *g)
{
    for (uint32_t i = 0; g->n_pinned && i < g->n_spans; i++)
        if (g->spans[i].fill == RING_FILL_THERE && !g->spans[i].pinned)
            g->spans[i].pinned = !ring_holds(g, i);
}

/* What was read ahead is kept as far as it is what this step begins with. */
PN_INTERNAL void pn_ring_begin(pn_ring *g, const pn_plan *plan, const pn_step *step)
{
    if (!g->blocks)
        return;
    pn_mutex_lock(&g->reads->lock);
    ring_note_used(g, plan, step);
    g->pass++;
    for (; g->first < g->next && ring_block(g, g->first)->pass < g->pass; g->first++)
        ring_drop(ring_block(g, g->first));
    ring_settle(g);
    g->n_fills = 0;
    g->fill_pass = g->pass;
    uint64_t keep = g->first;
    uint32_t span = ring_seek(g, 0);
    for (; keep < g->next; keep++) {
        pn_ring_block *b = ring_block(g, keep);
        if (b->span != span || b->pass != g->pass || b->state == RING_FAILED)
            break;
        atomic_store(&b->left, ring_needed(g, span));
        span = ring_seek(g, span + 1);
    }
    for (uint64_t i = keep; i < g->next; i++)
        ring_drop(ring_block(g, i));
    g->next = keep;
    g->fill_span = span;
    ring_fill(g);
    pn_mutex_unlock(&g->reads->lock);
}

static const pn_ring_piece *ring_piece(const pn_ring *g, const pn_ring_weight *rw, uint64_t row0)
{
    return &g->pieces[rw->piece0 + (row0 < rw->head ? 0 : 1 + (row0 - rw->head) / rw->per)];
}

PN_INTERNAL const uint8_t *pn_ring_pinned(const pn_ring *g, uint32_t w, uint64_t row0, uint64_t *n)
{
    const pn_ring_weight *rw = &g->weights[w];
    if (!rw->n_pieces)
        return NULL;
    const pn_ring_piece *p = ring_piece(g, rw, row0);
    *n = PN_MIN(*n, p->row0 + p->rows - row0);
    return g->spans[p->span].pinned ? ring_pin_data(&g->spans[p->span]) + p->at + (row0 - p->row0) * rw->row_bytes : NULL;
}

PN_INTERNAL pn_lease_state pn_ring_acquire(pn_ring *g, uint32_t w, uint64_t row0, uint64_t n, pn_lease *out)
{
    const pn_ring_weight *rw = &g->weights[w];
    const pn_ring_piece *p = ring_piece(g, rw, row0);
    uint64_t tag = ring_tag(g->pass, p->span), at = p->at + (row0 - p->row0) * rw->row_bytes;
    *out = (pn_lease){.row0 = row0, .rows = (uint32_t)PN_MIN(n, p->row0 + p->rows - row0), .block = RING_PINNED};
    PN_ASSERT(rw->used);
    if (g->spans[p->span].pinned) {
        out->ptr = ring_pin_data(&g->spans[p->span]) + at;
        return PN_LEASE_OK;
    }
    for (uint32_t i = 0; i < g->depth; i++) {
        pn_ring_block *b = &g->blocks[i];
        uint64_t is = atomic_load_explicit(&b->tag, memory_order_acquire);
        if (is == (tag | RING_BAD))
            return PN_LEASE_FAIL;
        if (is != tag)
            continue;
        out->ptr = b->at + at;
        out->block = i;
        return PN_LEASE_OK;
    }
    return PN_LEASE_WAIT;
}

PN_INTERNAL void pn_ring_release(pn_ring *g, const pn_lease *l)
{
    if (l->block == RING_PINNED || atomic_fetch_sub(&g->blocks[l->block].left, l->rows) != l->rows)
        return;
    pn_mutex_lock(&g->reads->lock);
    for (; g->first < g->next; g->first++) {
        pn_ring_block *b = ring_block(g, g->first);
        if (b->pass != g->pass || b->state != RING_READY || atomic_load(&b->left))
            break;
        ring_drop(b);
    }
    ring_fill(g);
    pn_mutex_unlock(&g->reads->lock);
}

#undef RING_BAD
#undef RING_PINNED
