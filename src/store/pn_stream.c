/* SPDX-License-Identifier: AGPL-3.0-only */
#include "store/pn_stream.h"

#include <inttypes.h>
#include <math.h>

#include "base/pn_err.h"

/* Whose a lease is: in the upper bits of its block.  A pinned row's block has all bits set. */
enum { STREAM_RING = 0, STREAM_ROWS, STREAM_EXPERTS, STREAM_PINNED };
#define STREAM_SHIFT 30

enum {
    STREAM_FEW_ROWS = 4,                        /* a step of no more decodes: its time is that of a token */
    STREAM_BLOCK_MOST = 256 << 20,
    STREAM_DROP_EVERY = 32 << 20                /* bytes read between two pieces of page cache that are given back */
};
static const double stream_prime_seconds = 0.5;

typedef struct stream_setup {
    pn_stream *s;
    const pn_weight *weights;
    const pn_dir_tensor *const *tensors;
    uint32_t index;             /* operand by which the last stack's rows were chosen: one layer has one */
    const pn_plan *plan;        /* of that operand */
} stream_setup;

/* ------------------------------------------------------------------------------------------
 * Layout
 * ------------------------------------------------------------------------------------------ */

static pn_status stream_add(stream_setup *u, const pn_plan *plan, const pn_op *op, pn_err *err)
{
    pn_stream *s = u->s;
    if (op->code != PN_OP_EMBED && op->code != PN_OP_MATMUL && op->code != PN_OP_MOE_MATMUL)
        return PN_OK;
    const pn_weight *weight = &u->weights[op->w];
    const pn_dir_tensor *from = u->tensors[op->w];
    uint32_t part = from->part;
    uint64_t offset = from->t->offset;
    PN_ASSERT(!from->pieces || op->code == PN_OP_MOE_MATMUL);       /* what is no stack lies together */
    if (op->code == PN_OP_EMBED) {
        if (s->rows.weight != PN_NO_WEIGHT && s->rows.weight != op->w)
            return pn_fail(err, PN_E_UNSUPPORTED, "'%s' and another embedding cannot both be streamed", weight->name);
        pn_rows_open(&s->rows, s->mem, &s->reads, op->w, weight, part, offset);
        return PN_OK;
    }
    if (op->code == PN_OP_MATMUL) {
        if (s->ring.weights[op->w].n_pieces)
            return pn_fail(err, PN_E_UNSUPPORTED, "'%s' is multiplied by twice in a step: it cannot be streamed", weight->name);
        return pn_ring_append(&s->ring, op->w, weight, part, offset, err);
    }
    bool new_layer = u->plan != plan || u->index != op->b;
    u->plan = plan;
    u->index = op->b;
    return pn_experts_append(&s->experts, op->w, weight, from, new_layer, op->u.moe.n_expert, op->u.moe.n_used, err);
}

static void stream_defaults(pn_stream_params *p, const pn_experts *e)
{
    p->block_bytes = pn_align_up(p->block_bytes ? p->block_bytes : PN_STREAM_BLOCK, PN_DIRECT_ALIGN);
    p->depth = p->depth ? PN_MIN(p->depth, (uint32_t)PN_RING_DEPTH_MAX) : PN_STREAM_DEPTH;
    if (e && !p->expert_bytes)
        p->expert_bytes = PN_MAX(pn_experts_floor(e), pn_experts_all(e) / 4);
}

PN_INTERNAL pn_status pn_stream_open(pn_stream *s, pn_mem *mem, const pn_weight *weights, const pn_dir_tensor *const *tensors,
                                     uint32_t n, const pn_plan *plans, uint32_t n_plans, const pn_stream_params *p, pn_err *err)
{
    memset(s, 0, sizeof *s);
    if (p->block_bytes > STREAM_BLOCK_MOST)
        return pn_fail(err, PN_E_INVALID, "a stream block of %" PRIu64 " bytes, expected at most %d", p->block_bytes, STREAM_BLOCK_MOST);
    s->mem = mem;
    s->p = *p;
    s->drop_at = UINT64_MAX;
    stream_defaults(&s->p, NULL);
    pn_rows_open(&s->rows, mem, &s->reads, PN_NO_WEIGHT, NULL, 0, 0);
    stream_setup u = {.s = s, .weights = weights, .tensors = tensors};
    pn_status st = pn_ring_open(&s->ring, mem, &s->reads, n, s->p.block_bytes, s->p.depth, err);
    if (!st)
        st = pn_experts_open(&s->experts, mem, &s->reads, n, err);
    for (uint32_t k = 0; k < n_plans; k++)
        for (uint32_t i = 0; i < plans[k].n_ops && !st; i++)
            st = stream_add(&u, &plans[k], &plans[k].ops[i], err);
    stream_defaults(&s->p, &s->experts);
    if (!st && s->experts.n_layers && s->p.expert_bytes < pn_experts_floor(&s->experts))
        st = pn_fail(err, PN_E_BUDGET, "%" PRIu64 " bytes for experts: a token needs %" PRIu64, s->p.expert_bytes, pn_experts_floor(&s->experts));
    if (st)
        pn_stream_close(s);
    return st;
}

PN_INTERNAL void pn_stream_close(pn_stream *s)
{
    if (!s->mem)
        return;
    pn_reads_stop(&s->reads);
    pn_experts_close(&s->experts);
    pn_rows_close(&s->rows);
    pn_ring_close(&s->ring);
    pn_reads_close(&s->reads);
    s->mem = NULL;
}

PN_INTERNAL pn_stream_bytes pn_stream_needs(const pn_stream *s)
{
    return (pn_stream_bytes){.pinned = pn_ring_pinnable(&s->ring, s->p.pin_bytes),
                             .experts = pn_experts_memory(&s->experts, s->p.expert_bytes),
                             .experts_floor = pn_experts_floor(&s->experts),
                             .stage = pn_ring_memory(&s->ring) + pn_rows_memory(&s->rows),
                             .streamed = pn_ring_unpinned(&s->ring, s->p.pin_bytes)};
}

PN_INTERNAL pn_status pn_stream_prime(pn_stream *s, pn_err *err)
{
    double until = pn_os_now() + stream_prime_seconds, now = until - stream_prime_seconds;
    bool filling = true, full = false, failed = false;
    for (; (filling || (!full && now < until)) && !failed; now = pn_os_now()) {
        pn_reads_wait(&s->reads, PN_MAX(until, now + stream_prime_seconds));
        pn_mutex_lock(&s->reads.lock);
        filling = pn_ring_filling(&s->ring, &failed) > 0;
        full = pn_ring_full(&s->ring);
        if (failed && err)
            *err = s->reads.err;
        pn_mutex_unlock(&s->reads.lock);
    }
    s->reads.waited = 0;
    return failed ? PN_E_IO : PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * The page cache of weights that were mapped
 * ------------------------------------------------------------------------------------------ */

static bool stream_drop_take(void *self, pn_read_job *job)
{
    pn_stream *s = self;
    if (s->drop_at == UINT64_MAX || s->drops)
        return false;
    *job = (pn_read_job){.n = 0};
    s->dropping = s->drop_at;
    s->drop_when = s->reads.bytes + STREAM_DROP_EVERY;
    s->drops = true;
    return true;
}

static bool stream_drop_now_and_then(void *self, pn_read_job *job)
{
    return ((pn_stream *)self)->reads.bytes >= ((pn_stream *)self)->drop_when && stream_drop_take(self, job);
}

static void stream_drop_work(void *self)
{
    pn_stream *s = self;
    if (!pn_weights_drop_cache(s->file, &s->dropping))
        s->dropping = UINT64_MAX;
}

static void stream_drop_done(void *self, uint32_t item, bool ok)
{
    pn_stream *s = self;
    (void)item, (void)ok;
    if (s->drop_at != UINT64_MAX)
        s->drop_at = s->dropping;
    s->drops = false;
}

PN_INTERNAL void pn_stream_drop_cache(pn_stream *s, bool on)
{
    pn_mutex_lock(&s->reads.lock);
    s->drop_at = on ? 0 : UINT64_MAX;
    pn_reads_kick(&s->reads);
    pn_mutex_unlock(&s->reads.lock);
}

/* ------------------------------------------------------------------------------------------
 * Start and end
 * ------------------------------------------------------------------------------------------ */

static pn_status stream_start_reads(pn_stream *s, pn_err *err)
{
    pn_status st = pn_rows_start(&s->rows, err);
    if (!st)
        st = pn_ring_start(&s->ring, err);
    if (st)
        return st;
    pn_reads_add(&s->reads, (pn_read_source){s, stream_drop_now_and_then, stream_drop_done, stream_drop_work});
    pn_reads_add(&s->reads, pn_rows_source(&s->rows));
    pn_reads_add(&s->reads, pn_experts_source(&s->experts));
    pn_reads_add(&s->reads, pn_ring_source(&s->ring));
    pn_reads_add(&s->reads, (pn_read_source){s, stream_drop_take, stream_drop_done, stream_drop_work});
    pn_reads_start(&s->reads, s->experts.n_layers ? PN_READERS_MAX : PN_STREAM_READERS);
    return PN_OK;
}

PN_INTERNAL pn_status pn_stream_start(pn_stream *s, pn_weights *file, double deadline, bool *done, pn_err *err)
{
    pn_status st = PN_OK;
    uint32_t had = s->ring.n_pinned;
    bool there = false;
    *done = false;
    if (!s->file) {
        s->file = file;
        st = pn_reads_open(&s->reads, s->mem, file, err);
        if (!st)
            st = pn_experts_start(&s->experts, err);
        if (st || pn_os_now() >= deadline)
            return st;
    }
    st = pn_ring_pin(&s->ring, s->p.pin_bytes, deadline, &there, err);
    if (st || !there || (s->ring.n_pinned != had && pn_os_now() >= deadline))
        return st;
    st = pn_experts_resize(&s->experts, s->p.expert_bytes, deadline, &there, err);
    if (!st && there)
        st = stream_start_reads(s, err);
    *done = !st && there;
    return st;
}

PN_INTERNAL void pn_stream_clear(pn_stream *s, double deadline, bool *done)
{
    uint32_t had = s->ring.n_pinned;
    (void)pn_ring_pin(&s->ring, 0, deadline, done, NULL);
    *done = *done && (s->ring.n_pinned == had || pn_os_now() < deadline);
    if (*done && s->reads.mem)
        pn_experts_clear(&s->experts, deadline, done);
}

/* ------------------------------------------------------------------------------------------
 * How fast
 * ------------------------------------------------------------------------------------------ */

static void stream_average(double *mean, double sample, bool first) { *mean = first ? sample : 0.8 * *mean + 0.2 * sample; }

PN_INTERNAL void pn_stream_stepped(pn_stream *s, uint32_t rows, double seconds)
{
    if (rows > STREAM_FEW_ROWS)
        return;
    pn_mutex_lock(&s->reads.lock);
    stream_average(&s->compute, PN_MAX(seconds - (s->reads.waited - s->waited), 0.0), !s->timed);
    stream_average(&s->miss_bytes, (double)(s->experts.missed_bytes - s->missed), !s->timed);
    s->timed = true;
    pn_mutex_unlock(&s->reads.lock);
}

/* Before anything was measured: every expert as likely as any other. */
static double stream_miss_bytes(const pn_stream *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->experts.n_layers && !s->timed; i++) {
        const pn_expert_layer *l = &s->experts.layers[i];
        sum += (double)l->slot_bytes * l->n_used * (1 - (double)l->n_slots / l->n_expert);
    }
    return s->timed ? s->miss_bytes : sum;
}

PN_INTERNAL void pn_stream_report(pn_stream *s, pn_residency_info *out)
{
    pn_mutex_lock(&s->reads.lock);
    out->pinned_bytes = s->ring.pinned_bytes;
    out->ring_bytes = s->ring.memory_bytes + s->rows.memory_bytes;
    for (size_t i = 0; i < s->experts.n_layers; i++)
        out->expert_bytes += s->experts.layers[i].slot_bytes * s->experts.layers[i].n_slots;
    out->step_bytes = pn_ring_streamed(&s->ring);
    out->disk_bytes_per_second = s->reads.rate;
    out->compute_seconds = s->compute;
    double read = s->reads.rate > 0 ? ((double)out->step_bytes + stream_miss_bytes(s)) / s->reads.rate : 0;
    double step = PN_MAX(s->compute, read);
    out->expected_tps = step > 0 ? 1 / step : 0;
    out->expert_hits = s->experts.hits;
    out->expert_misses = s->experts.misses;
    out->stream_bytes = s->reads.bytes;
    out->stream_wait_seconds = s->reads.waited;
    pn_mutex_unlock(&s->reads.lock);
}

/* ------------------------------------------------------------------------------------------
 * Leases
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_stream_begin(pn_stream *s, const pn_plan *plan, const pn_step *step)
{
    pn_mutex_lock(&s->reads.lock);
    s->waited = s->reads.waited;
    s->missed = s->experts.missed_bytes;
    pn_mutex_unlock(&s->reads.lock);
    pn_rows_begin(&s->rows, plan, step);
    pn_ring_begin(&s->ring, plan, step);
}

PN_INTERNAL pn_lease_state pn_stream_acquire(pn_stream *s, uint32_t w, uint64_t row0, uint64_t n, pn_lease *out)
{
    if (!s->experts.stack_of[w])
        return pn_ring_acquire(&s->ring, w, row0, n, out);
    pn_lease_state st = pn_experts_acquire(&s->experts, w, row0, n, out);
    if (st == PN_LEASE_OK)
        out->block |= (uint32_t)STREAM_EXPERTS << STREAM_SHIFT;
    return st;
}

PN_INTERNAL pn_lease_state pn_stream_pick(pn_stream *s, uint64_t row, uint32_t i_token, pn_lease *out)
{
    pn_lease_state st = pn_rows_pick(&s->rows, row, i_token, out);
    if (st == PN_LEASE_OK)
        out->block |= (uint32_t)STREAM_ROWS << STREAM_SHIFT;
    return st;
}

PN_INTERNAL void pn_stream_want(pn_stream *s, uint32_t w, uint32_t *experts, uint32_t n)
{
    pn_experts_want(&s->experts, w, experts, n);
}

PN_INTERNAL void pn_stream_release(pn_stream *s, const pn_lease *l)
{
    pn_lease own = *l;
    own.block &= ((uint32_t)1 << STREAM_SHIFT) - 1;
    switch (l->block >> STREAM_SHIFT) {
    case STREAM_ROWS: pn_rows_release(&s->rows, &own); break;
    case STREAM_EXPERTS: pn_experts_release(&s->experts, &own); break;
    case STREAM_RING: pn_ring_release(&s->ring, &own); break;
    default: break;
    }
}

#undef STREAM_SHIFT
