/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * How a plan runs on the CPU: a team of threads walks the stages together.
 *
 *     stage  = groups that do not depend on each other; a barrier after it
 *     group  = a chain of row-local ops, or one wide op
 *     chunk  = what a thread takes at a time: some rows of a chain, some weight rows of a matmul,
 *              some heads and rows of attention
 *
 * Chunks are taken from one atomic counter a group, so a thread that loses its core does not hold
 * up the rest, and the position in a step is just (stage, counters): that is the cursor.  To yield,
 * `stop` is raised, everybody finishes the chunk in hand and meets at the barrier; the next
 * advance() goes on from the counters.  Which thread does which chunk never changes a result: each
 * output element is computed by one chunk in the canonical order (cpu/pn_cpu.h).
 *
 * A lease that is not there yet leaves its chunk pending in the lane that holds it.
 */
#include "device/pn_device_cpu.h"

#include "base/pn_err.h"
#include "base/pn_os.h"
#include "device/pn_cpu_exec.h"

struct pn_device {
    pn_mem *mem;
    pn_team *team;
    pn_exec exec;               /* one open at a time */
    bool busy;
};

/* ------------------------------------------------------------------------------------------
 * Working memory of a step: operands, then lanes, counters and each lane's arrays
 * ------------------------------------------------------------------------------------------ */

typedef struct cpu_work {
    uint64_t lanes, next, n_chunks, lane0, lane_bytes, total;
    uint64_t q, o, m, l, lo, hi, rq, rotated;   /* within a lane; the tile is at 0 */
} cpu_work;

static uint64_t cpu_carve(uint64_t *at, uint64_t bytes)
{
    uint64_t here = *at;
    *at = pn_align_up(here + bytes, 64);
    return here;
}

static cpu_work cpu_work_layout(uint32_t n_threads, const pn_plan *p)
{
    cpu_work w;
    uint64_t at = 0, n_q = (uint64_t)CPU_ATTN_ROWS * PN_MAX(p->max_group_heads, 1u);
    cpu_carve(&at, pn_cpu_tile_bytes(p->max_cols));
    w.q = cpu_carve(&at, n_q * sizeof(float *));
    w.o = cpu_carve(&at, n_q * sizeof(float *));
    w.m = cpu_carve(&at, n_q * 4);
    w.l = cpu_carve(&at, n_q * 4);
    w.lo = cpu_carve(&at, n_q * 2);
    w.hi = cpu_carve(&at, n_q * 2);
    w.rq = cpu_carve(&at, n_q * sizeof(float *));
    w.rotated = cpu_carve(&at, n_q * p->max_head_dim * sizeof(float));
    w.lane_bytes = at;
    at = pn_align_up(p->scratch_bytes, 64);
    w.lanes = cpu_carve(&at, n_threads * sizeof(cpu_lane));
    w.next = cpu_carve(&at, p->n_groups * sizeof(atomic_uint));
    w.n_chunks = cpu_carve(&at, p->n_groups * 4u);
    w.lane0 = cpu_carve(&at, n_threads * w.lane_bytes);
    w.total = at;
    return w;
}

static uint64_t cpu_work_bytes(uint32_t n_threads, const pn_plan *p)
{
    return cpu_work_layout(PN_MAX(n_threads, 1u), p).total;
}

static void cpu_carve_lanes(pn_exec *x, uint8_t *work, const cpu_work *w)
{
    x->scratch = work;
    x->lanes = (cpu_lane *)(void *)(work + w->lanes);
    x->next = (atomic_uint *)(void *)(work + w->next);
    x->n_chunks = (uint32_t *)(void *)(work + w->n_chunks);
    for (uint32_t t = 0; t < x->n_lanes; t++) {
        uint8_t *base = work + w->lane0 + t * w->lane_bytes;
        x->lanes[t] = (cpu_lane){
            .tile = base,
            .q = (const float **)(void *)(base + w->q),
            .o = (float **)(void *)(base + w->o),
            .rq = (const float **)(void *)(base + w->rq),
            .rotated = (float *)(void *)(base + w->rotated),
            .m = (float *)(void *)(base + w->m),
            .l = (float *)(void *)(base + w->l),
            .lo = (uint16_t *)(void *)(base + w->lo),
            .hi = (uint16_t *)(void *)(base + w->hi),
        };
    }
}

/* ------------------------------------------------------------------------------------------
 * Lifecycle
 * ------------------------------------------------------------------------------------------ */

static pn_status cpu_open(pn_device **out, pn_mem *mem, uint32_t n_threads, pn_err *err)
{
    pn_device *d = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *d);
    if (!d)
        return pn_fail_nomem(err, "the CPU device", sizeof *d);
    d->mem = mem;
    pn_status st = pn_team_new(&d->team, mem, n_threads, err);
    if (st) {
        pn_mem_free(mem, PN_ACCT_MISC, d, sizeof *d);
        return st;
    }
    *out = d;
    return PN_OK;
}

static void cpu_close(pn_device *d)
{
    if (!d)
        return;
    pn_team_free(d->team);
    pn_mem_free(d->mem, PN_ACCT_MISC, d, sizeof *d);
}

static int cpu_supports(const pn_device *d, uint32_t opcode, uint32_t dtype)
{
    (void)d;
    return opcode < PN_OP_COUNT && (dtype == PN_DTYPE_COUNT || pn_dtype_is_weight(dtype));
}

/* Chunks of a row-local chain: rows of its row space, a few at a time. */
static uint32_t cpu_local_rows(const pn_exec *x, const pn_op_group *g)
{
    const pn_op *op = &x->plan->ops[g->op0];
    const pn_operand *o = &x->plan->operands[op->code == PN_OP_ROPE_STORE ? op->a : op->out];
    return o->dim == PN_DIM_OUTS ? x->step->n_outs : x->step->n_rows;
}

static uint32_t cpu_local_chunk(const pn_exec *x, uint32_t rows)
{
    uint32_t even = (rows + x->n_lanes - 1) / x->n_lanes;
    return PN_MAX(1u, PN_MIN(even, (uint32_t)CPU_ROW_CHUNK));
}

static pn_status cpu_submit(pn_device *d, const pn_plan *plan, const pn_step *step, const pn_host_ops *host,
                            void *work, pn_exec **out, pn_err *err)
{
    if (d->busy)
        return pn_fail(err, PN_E_STATE, "a step is already open on this device");
    if (step->n_rows == 0 || step->n_rows > plan->max_rows || step->n_outs > plan->max_outs)
        return pn_fail(err, PN_E_INTERNAL, "a step of %u rows and %u outputs does not fit a plan of %u and %u",
                       (unsigned)step->n_rows, (unsigned)step->n_outs, (unsigned)plan->max_rows,
                       (unsigned)plan->max_outs);
    if (!work)
        return pn_fail_nomem(err, "the working memory of a step", cpu_work_bytes(pn_team_size(d->team), plan));
    pn_exec *x = &d->exec;
    memset(x, 0, sizeof *x);
    x->dev = d;
    x->k = pn_cpu_get();
    x->plan = plan;
    x->step = step;
    x->host = host;
    x->n_lanes = pn_team_size(d->team);
    cpu_work w = cpu_work_layout(x->n_lanes, plan);
    cpu_carve_lanes(x, work, &w);
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        const pn_op_group *grp = &plan->groups[g];
        if (grp->row_local) {
            uint32_t rows = cpu_local_rows(x, grp), chunk = cpu_local_chunk(x, rows);
            x->n_chunks[g] = (rows + chunk - 1) / chunk;
        } else
            x->n_chunks[g] = pn_cpu_op_chunks(x, &plan->ops[grp->op0]);
        atomic_init(&x->next[g], 0u);
    }
    host->begin(host->store, plan, step);
    d->busy = true;
    *out = x;
    return PN_OK;
}

static void cpu_cancel(pn_exec *x) { atomic_store(&x->cancelled, true); }

static void cpu_end(pn_exec *x)
{
    if (x)
        x->dev->busy = false;
}

/* ------------------------------------------------------------------------------------------
 * The walk
 * ------------------------------------------------------------------------------------------ */

/* lane->pending on return: the chunk could not be finished. */
static void cpu_chunk(pn_exec *x, cpu_lane *lane)
{
    const pn_op_group *g = &x->plan->groups[lane->group];
    lane->pending = false;
    if (!g->row_local) {
        if (!pn_cpu_op_wide(x, lane, &x->plan->ops[g->op0], lane->chunk))
            lane->pending = true;
        return;
    }
    uint32_t rows = cpu_local_rows(x, g), n = cpu_local_chunk(x, rows);
    uint32_t r0 = lane->chunk * n, r1 = PN_MIN(r0 + n, rows);
    /* Only EMBED can wait, and it is the first of its chain: `done` counts its rows, and the rest of
     * the chain runs when all of them are there. */
    for (uint32_t i = 0; i < g->n_ops; i++) {
        const pn_op *op = &x->plan->ops[g->op0 + i];
        uint32_t from = op->code == PN_OP_EMBED ? r0 + lane->done : r0;
        uint32_t did = pn_cpu_op_local(x, lane, op, from, r1);
        if (from + did < r1) {
            lane->done += did;
            lane->pending = true;
            return;
        }
    }
}

/* Lane 0 watches the clock and the cancel flag, everybody notes a WAIT. */
static void cpu_watch(pn_exec *x, uint32_t thread, const cpu_lane *lane)
{
    if (lane->pending)
        atomic_store(&x->stop, true);
    if (thread != 0)
        return;
    if (atomic_load_explicit(&x->cancelled, memory_order_relaxed) ||
        (x->deadline > 0 && pn_os_now() >= x->deadline))
        atomic_store(&x->stop, true);
}

/* Runs once per barrier, on the last lane to arrive. */
static void cpu_stage_end(void *arg)
{
    pn_exec *x = arg;
    bool stopped = atomic_load(&x->stop), finished = true;
    uint32_t g = x->group0;
    for (; g < x->plan->n_groups && x->plan->groups[g].stage == x->stage; g++)
        finished = finished && atomic_load(&x->next[g]) >= x->n_chunks[g];
    for (uint32_t t = 0; t < x->n_lanes; t++)
        finished = finished && !x->lanes[t].pending;
    if (finished) {
        x->group0 = g;
        x->stage++;
    }
    bool done = x->stage >= x->plan->n_stages;
    if (atomic_load(&x->failed))
        x->state = PN_EXEC_FAILED;
    else if (done)
        x->state = PN_EXEC_DONE;
    else if (atomic_load(&x->cancelled))
        x->state = PN_EXEC_CANCELLED;
    else
        x->state = atomic_load(&x->waiting) ? PN_EXEC_WAIT_IO : PN_EXEC_YIELD;
    x->leave = done || stopped || atomic_load(&x->failed);
}

static void cpu_walk(void *arg, uint32_t thread)
{
    pn_exec *x = arg;
    cpu_lane *lane = &x->lanes[thread];
    do {
        if (lane->pending) {
            cpu_chunk(x, lane);
            cpu_watch(x, thread, lane);
        }
        for (uint32_t g = x->group0; g < x->plan->n_groups && x->plan->groups[g].stage == x->stage; g++)
            while (!atomic_load_explicit(&x->stop, memory_order_relaxed)) {
                uint32_t c = atomic_fetch_add_explicit(&x->next[g], 1, memory_order_relaxed);
                if (c >= x->n_chunks[g])
                    break;
                lane->group = g;
                lane->chunk = c;
                lane->done = 0;
                cpu_chunk(x, lane);
                cpu_watch(x, thread, lane);
            }
        pn_team_barrier(x->dev->team, cpu_stage_end, x);
    } while (!x->leave);
}

static pn_exec_state cpu_advance(pn_exec *x, double deadline)
{
    if (atomic_load(&x->cancelled))
        return PN_EXEC_CANCELLED;
    x->deadline = deadline;
    atomic_store(&x->stop, false);
    atomic_store(&x->waiting, false);
    pn_team_run(x->dev->team, cpu_walk, x);
    return x->state;
}

PN_INTERNAL const pn_device_ops *pn_device_cpu_ops(void)
{
    static const pn_device_ops ops = {
        .abi = PN_DEVICE_ABI, .size = sizeof(pn_device_ops),
        .plan_abi = PN_PLAN_ABI, .plan_size = sizeof(pn_plan), .step_size = sizeof(pn_step), .op_size = sizeof(pn_op),
        .name = "cpu",
        .open = cpu_open, .close = cpu_close, .supports = cpu_supports, .work_bytes = cpu_work_bytes,
        .submit = cpu_submit, .advance = cpu_advance, .cancel = cpu_cancel, .end = cpu_end,
    };
    return &ops;
}
