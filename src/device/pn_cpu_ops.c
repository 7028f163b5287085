/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * The op bodies of the CPU device.  Row-local ops get a range of step rows; wide ops get a chunk
 * number.  Matrices come through leases, vectors (norms, biases) are pinned f32.
 */
#include "device/pn_cpu_exec.h"

#include <math.h>

#include "num/pn_math.h"
#include "num/pn_quant.h"

enum {
    CPU_MM_ROWS = 64,           /* fewest weight rows of a chunk for several activation rows: they are spread for each */
    CPU_MM_OUTPUTS = 64 << 9,   /* most outputs of one */
    CPU_MM_BYTES = 16384        /* smallest decode chunk worth an atomic, in weight bytes */
};

static const pn_operand *ops_operand(const pn_exec *x, uint32_t i) { return &x->plan->operands[i]; }

/* Note why a lease is not there; the chunk stays pending. */
static bool ops_no_lease(pn_exec *x, pn_lease_state s)
{
    atomic_store(s == PN_LEASE_FAIL ? &x->failed : &x->waiting, true);
    return false;
}

/* ------------------------------------------------------------------------------------------
 * Row-local ops
 * ------------------------------------------------------------------------------------------ */

static uint32_t ops_embed(pn_exec *x, const pn_op *op, uint32_t r0, uint32_t r1)
{
    const pn_weight *W = &x->plan->weights[op->w];
    for (uint32_t r = r0; r < r1; r++) {
        pn_lease l;
        pn_lease_state s = x->host->pick(x->host->store, op->w, (uint64_t)x->step->tokens[r], r, &l);
        if (s != PN_LEASE_OK) {
            ops_no_lease(x, s);
            return r - r0;
        }
        float *y = cpu_row(x, op->out, r);
        pn_dequant_row(W->dtype, l.ptr, y, W->cols);
        x->host->release(x->host->store, &l);
        if (op->u.embed.scale != 1)
            x->k->scale(y, op->u.embed.scale, y, W->cols);
    }
    return r1 - r0;
}

static void ops_norm(pn_exec *x, const pn_op *op, uint64_t r)
{
    uint32_t groups = op->u.norm.groups, n = ops_operand(x, op->a)->cols / groups;
    const float *w = op->w == PN_NO_WEIGHT ? NULL : x->plan->weights[op->w].pinned;
    const float *in = cpu_row(x, op->a, r);
    float *out = cpu_row(x, op->out, r);
    for (uint32_t g = 0; g < groups; g++)
        x->k->rms_norm(in + (size_t)g * n, w, out + (size_t)g * n, n, op->u.norm.eps);
}

/* The run that holds row r; *run is where the last search ended. */
static const pn_run *ops_run(const pn_exec *x, uint32_t r, uint32_t *run)
{
    while (x->step->runs[*run].row0 + x->step->runs[*run].n_rows <= r)
        ++*run;
    return &x->step->runs[*run];
}

/* cos and sin of every pair at this row's position.  Angles in double: exact enough for 2^30. */
static void ops_rope_table(pn_exec *x, const pn_op *op, uint32_t r, uint32_t *run)
{
    const pn_rope *rope = &x->plan->ropes[op->u.table.rope];
    const pn_run *u = ops_run(x, r, run);
    double pos = u->pos0 + (r - u->row0);
    float *t = cpu_row(x, op->out, r);
    for (uint32_t i = 0; i < rope->n_rot / 2; i++) {
        double s, c;
        pn_sincos(pos * rope->freq[i], &s, &c);
        t[2 * i] = (float)(c * (double)rope->magnitude);
        t[2 * i + 1] = (float)(s * (double)rope->magnitude);
    }
}

/* Row `slot` of a head's plane.  Each token's row is encoded by itself, so chunking does not show. */
static void ops_store_head(const pn_exec *x, const float *v, void *plane, uint32_t type, uint32_t d, uint32_t slot)
{
    x->k->kv_encode(type, v, (uint8_t *)plane + slot * pn_kv_elem_bytes(type, d), d);
}

static void ops_rope_store(pn_exec *x, const pn_op *op, uint32_t r, uint32_t *run)
{
    const pn_stream_group *g = &x->plan->state->group[op->u.store.group];
    const pn_rope *rope = &x->plan->ropes[op->u.store.rope];
    const pn_run *u = ops_run(x, r, run);
    uint32_t pos = u->pos0 + (r - u->row0), n_heads = op->u.store.n_heads, slot = pos % PN_KV_PAGE_TOKENS;
    const float *cs = cpu_row(x, op->out, r);
    float *q = cpu_row(x, op->a, r), qs = op->u.store.q_scale;
    if (rope->temp_beta != 0)           /* mistral3: attention temperature grows with position */
        qs *= (float)(1 + (double)rope->temp_beta * pn_log(1 + (double)(pos / rope->temp_ctx)));
    for (uint32_t h = 0; h < n_heads; h++)
        x->k->rope(q + (size_t)h * g->d_k, cs, rope->n_rot, rope->neox);
    if (qs != 1)
        x->k->scale(q, qs, q, (size_t)n_heads * g->d_k);
    if (!op->u.store.store)
        return;
    pn_kv_page *page = u->pages[op->u.store.group][pos / PN_KV_PAGE_TOKENS];
    float *k = cpu_row(x, op->b, r);
    const float *v = cpu_row(x, op->c, r);
    for (uint32_t h = 0; h < g->n_heads; h++) {
        x->k->rope(k + (size_t)h * g->d_k, cs, rope->n_rot, rope->neox);
        if (page->rotated)
            x->k->hadamard(k + (size_t)h * g->d_k, g->d_k, pn_cpu_rotation(g->d_k));
        ops_store_head(x, k + (size_t)h * g->d_k, pn_kv_k_plane(g, page, op->u.store.layer, h), page->k_type,
                       g->d_k, slot);
        ops_store_head(x, v + (size_t)h * g->d_v, pn_kv_v_plane(g, page, op->u.store.layer, h), page->v_type,
                       g->d_v, slot);
    }
}

/* Selection score of expert e: probability plus bias (bias decides, it does not weigh). */
static float ops_score(const float *p, const float *bias, uint32_t e) { return bias ? p[e] + bias[e] : p[e]; }

/* Deepseek-style groups: a group's score is the sum of its two best; all but the best are closed.
 * open[] lives behind the probabilities in the same row's ids (not yet written). */
static uint64_t ops_open_groups(const pn_op *op, const float *p, const float *bias)
{
    uint32_t ng = op->u.route.n_groups, per = ng ? op->u.route.n_expert / ng : 0;
    if (ng <= 1 || ng > 64)
        return UINT64_MAX;
    uint64_t open = 0;
    for (uint32_t k = 0; k < op->u.route.n_groups_used; k++) {
        uint32_t best = UINT32_MAX;
        float best_sum = 0;
        for (uint32_t g = 0; g < ng; g++) {
            if (open >> g & 1)
                continue;
            float a = -INFINITY, b = -INFINITY;
            for (uint32_t i = 0; i < per; i++) {
                float u = ops_score(p, bias, g * per + i);
                if (u > a) {
                    b = a;
                    a = u;
                } else if (u > b)
                    b = u;
            }
            if (best == UINT32_MAX || a + b > best_sum) {
                best = g;
                best_sum = a + b;
            }
        }
        open |= (uint64_t)1 << best;
    }
    return open;
}

static void ops_gate_probabilities(const pn_exec *x, const pn_op *op, float *p)
{
    if (op->u.route.gating == PN_GATE_SOFTMAX)
        x->k->softmax(p, op->u.route.n_expert);
    else if (op->u.route.gating == PN_GATE_SIGMOID)
        for (uint32_t e = 0; e < op->u.route.n_expert; e++)
            p[e] = pn_sigmoidf(p[e]);
}

/* Router logits (overwritten) to `n_used` pairs: ids[k] as uint32, then weights[k]. */
static void ops_route(pn_exec *x, const pn_op *op, uint32_t r)
{
    uint32_t E = op->u.route.n_expert, K = op->u.route.n_used, per = 0;
    float *p = cpu_row(x, op->a, r), *out = cpu_row(x, op->out, r), *w = out + K;
    uint32_t *ids = (uint32_t *)(void *)out;
    const float *bias = op->w == PN_NO_WEIGHT ? NULL : x->plan->weights[op->w].pinned;
    ops_gate_probabilities(x, op, p);
    uint64_t open = ops_open_groups(op, p, bias);
    if (open != UINT64_MAX)
        per = E / op->u.route.n_groups;
    for (uint32_t k = 0; k < K; k++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t e = 0; e < E; e++) {
            bool taken = per && !(open >> (e / per) & 1);
            for (uint32_t j = 0; j < k && !taken; j++)
                taken = ids[j] == e;
            if (!taken && (best == UINT32_MAX || ops_score(p, bias, e) > ops_score(p, bias, best)))
                best = e;
        }
        ids[k] = best == UINT32_MAX ? k : best;     /* cannot happen: K <= open experts, checked at load */
        w[k] = p[ids[k]];
    }
    if (op->u.route.gating == PN_GATE_SOFTMAX_TOPK)
        x->k->softmax(w, K);
    if (op->u.route.norm) {
        float sum = 0;
        for (uint32_t k = 0; k < K; k++)
            sum += w[k];
        sum = PN_MAX(sum, 6.103515625e-5f);
        for (uint32_t k = 0; k < K; k++)
            w[k] /= sum;
    }
    if (op->u.route.scale != 0 && op->u.route.scale != 1)
        for (uint32_t k = 0; k < K; k++)
            w[k] *= op->u.route.scale;
}

/* Experts in top-k order, on top of the residual. */
static void ops_combine(pn_exec *x, const pn_op *op, uint32_t r)
{
    uint32_t K = op->u.moe.n_used, n = ops_operand(x, op->out)->cols;
    const float *route = cpu_row(x, op->b, r), *w = route + K;
    const uint32_t *ids = (const uint32_t *)(const void *)route;
    const float *es = op->w2 == PN_NO_WEIGHT ? NULL : x->plan->weights[op->w2].pinned;
    float *y = cpu_row(x, op->out, r);
    if (op->c == PN_NO_OPERAND)
        memset(y, 0, n * sizeof *y);
    for (uint32_t k = 0; k < K; k++)
        x->k->axpy(es ? w[k] * es[ids[k]] : w[k], cpu_row(x, op->a, (uint64_t)r * K + k), y, n);
}

static void ops_gate_add(pn_exec *x, const pn_op *op, uint32_t r)
{
    uint32_t n = ops_operand(x, op->out)->cols;
    x->k->axpy(pn_sigmoidf(*cpu_row(x, op->a, r)), cpu_row(x, op->b, r), cpu_row(x, op->out, r), n);
}

static void ops_scale(pn_exec *x, const pn_op *op, uint64_t r)
{
    float s = op->u.scale.s;
    if (op->w != PN_NO_WEIGHT)
        s *= x->plan->weights[op->w].pinned[0];
    float *y = cpu_row(x, op->out, r);
    x->k->scale(y, s, y, ops_operand(x, op->out)->cols);
}

PN_INTERNAL uint32_t pn_cpu_op_local(pn_exec *x, cpu_lane *lane, const pn_op *op, uint32_t r0, uint32_t r1)
{
    (void)lane;
    if (op->code == PN_OP_EMBED)
        return ops_embed(x, op, r0, r1);
    const pn_operand *out = ops_operand(x, op->code == PN_OP_ROPE_STORE ? op->a : op->out);
    uint32_t n = out->cols, run = 0;
    for (uint64_t r = (uint64_t)r0 * out->mul; r < (uint64_t)r1 * out->mul; r++) {
        uint32_t row = (uint32_t)r;
        switch (op->code) {
        case PN_OP_NORM: ops_norm(x, op, r); break;
        case PN_OP_QUANT:
            x->k->quant((pn_act_kind)out->act, cpu_row(x, op->a, r), cpu_row(x, op->out, r), n);
            break;
        case PN_OP_ROPE_TABLE: ops_rope_table(x, op, row, &run); break;
        case PN_OP_ROPE_STORE: ops_rope_store(x, op, row, &run); break;
        case PN_OP_GLU:
            x->k->glu((pn_glu_kind)op->u.glu.kind, cpu_row(x, op->a, r), cpu_row(x, op->b, r),
                      cpu_row(x, op->out, r), n);
            break;
        case PN_OP_ADD: x->k->add(cpu_row(x, op->a, r), cpu_row(x, op->b, r), cpu_row(x, op->out, r), n); break;
        case PN_OP_SCALE: ops_scale(x, op, r); break;
        case PN_OP_SOFTCAP: {
            float *y = cpu_row(x, op->out, r);
            x->k->softcap(y, op->u.softcap.cap, y, n);
            break;
        }
        case PN_OP_GATHER:
            memcpy(cpu_row(x, op->out, r), cpu_row(x, op->a, x->step->out_rows[r]), n * sizeof(float));
            break;
        case PN_OP_MOE_ROUTE: ops_route(x, op, row); break;
        case PN_OP_MOE_COMBINE: ops_combine(x, op, row); break;
        case PN_OP_GATE_ADD: ops_gate_add(x, op, row); break;
        default: PN_ASSERT(0); break;
        }
    }
    return r1 - r0;
}

/* ------------------------------------------------------------------------------------------
 * Matrix products
 * ------------------------------------------------------------------------------------------ */

/* Weight rows of a chunk.  Two to four chunks a lane, whichever split keeps the busiest lane shortest, so that a slow core
 * does not hold up the others; with many activation rows small enough that a step can be stopped within milliseconds. */
static uint32_t ops_mm_chunk(const pn_exec *x, const pn_weight *W, uint32_t n_out, uint32_t m)
{
    uint64_t least = m > 4 ? CPU_MM_ROWS : (CPU_MM_BYTES + W->row_bytes - 1) / W->row_bytes;
    uint64_t most = m > 4 ? PN_MAX((uint64_t)CPU_MM_OUTPUTS / m, (uint64_t)CPU_MM_ROWS) : 1u << 20;
    uint64_t best = 0, shortest = UINT64_MAX;
    if (x->host->piece_bytes)           /* lanes share what little of the matrix is there */
        most = PN_MIN(most, PN_MAX(x->host->piece_bytes / W->row_bytes, UINT64_C(1)));
    for (uint32_t a_lane = 4; a_lane >= 2; a_lane--) {
        uint64_t n = (uint64_t)a_lane * x->n_lanes, rows = PN_MIN(PN_MAX((n_out + n - 1) / n, least), most);
        rows = pn_align_up(rows, 16);
        uint64_t chunks = (n_out + rows - 1) / rows, busiest = (chunks + x->n_lanes - 1) / x->n_lanes * rows;
        if (busiest < shortest) {
            shortest = busiest;
            best = rows;
        }
    }
    return (uint32_t)best;
}

/* Lease rows [row, end) of a weight piece by piece and multiply each.  lane->done counts rows of
 * this chunk that are finished, so a WAIT loses nothing. */
static bool ops_mm_rows(pn_exec *x, cpu_lane *lane, const pn_op *op, pn_cpu_mm *a, uint64_t w_row, uint32_t out_row,
                        uint32_t n)
{
    const pn_weight *W = &x->plan->weights[op->w];
    float *y = a->y;
    const float *bias = a->bias, *res = a->res;
    while (lane->done < n) {
        pn_lease l;
        uint32_t at = out_row + lane->done;
        pn_lease_state s = x->host->acquire(x->host->store, op->w, w_row + lane->done, n - lane->done, &l);
        if (s != PN_LEASE_OK)
            return ops_no_lease(x, s);
        a->w = l.ptr;
        a->w_stride = W->row_bytes;
        a->rows = PN_MIN(l.rows, n - lane->done);
        a->y = y + at;
        a->bias = bias ? bias + at : NULL;
        a->res = res ? res + at : NULL;
        (op->exact ? x->k->matmul_exact : x->k->matmul)(a);
        lane->done += a->rows;
        x->host->release(x->host->store, &l);
    }
    return true;
}

static pn_cpu_mm ops_mm_args(const pn_exec *x, const cpu_lane *lane, const pn_op *op, uint32_t m)
{
    const pn_weight *W = &x->plan->weights[op->w];
    pn_cpu_mm a = {.dtype = W->dtype, .m = m, .k = W->cols, .tile = lane->tile};
    a.x = cpu_addr(x, op->a);
    a.x_stride = ops_operand(x, op->a)->stride;
    a.y = (float *)(void *)cpu_addr(x, op->out);
    a.y_stride = ops_operand(x, op->out)->stride / sizeof(float);
    return a;
}

static bool ops_matmul(pn_exec *x, cpu_lane *lane, const pn_op *op, uint32_t chunk)
{
    const pn_weight *W = &x->plan->weights[op->w];
    uint32_t m = cpu_rows(x, op->out), N = (uint32_t)W->rows, per = ops_mm_chunk(x, W, N, m);
    uint32_t r0 = chunk * per, n = PN_MIN(per, N - r0);
    if (m == 0)
        return true;
    pn_cpu_mm a = ops_mm_args(x, lane, op, m);
    if (op->w2 != PN_NO_WEIGHT)
        a.bias = x->plan->weights[op->w2].pinned;
    if (op->u.matmul.res != PN_NO_OPERAND) {
        a.res = (const float *)(const void *)cpu_addr(x, op->u.matmul.res);
        a.res_stride = ops_operand(x, op->u.matmul.res)->stride / sizeof(float);
    }
    return ops_mm_rows(x, lane, op, &a, r0, r0, n);
}

/* ------------------------------------------------------------------------------------------
 * Mixture of experts: pairs (row, k) sorted by expert, each expert's pairs multiplied together
 * ------------------------------------------------------------------------------------------ */

typedef struct moe_index {
    uint32_t *pair, *row, *start, *n_active, *active;
} moe_index;

static moe_index ops_moe_index(const pn_exec *x, uint32_t operand, uint32_t n_pairs, uint32_t n_expert)
{
    uint32_t *p = (uint32_t *)(void *)cpu_addr(x, operand);
    moe_index i = {p, p + n_pairs, p + 2 * (size_t)n_pairs, NULL, NULL};
    i.n_active = i.start + n_expert + 1;
    i.active = i.n_active + 1;
    return i;
}

/* Counting sort; within an expert pairs stay in ascending order. */
static void ops_moe_group(pn_exec *x, const pn_op *op)
{
    uint32_t E = op->u.moe.n_expert, K = op->u.moe.n_used, n = x->step->n_rows * K;
    moe_index i = ops_moe_index(x, op->out, n, E);
    memset(i.start, 0, (E + 1) * sizeof *i.start);
    for (uint32_t r = 0; r < x->step->n_rows; r++) {
        const uint32_t *ids = (const uint32_t *)(const void *)cpu_row(x, op->a, r);
        for (uint32_t k = 0; k < K; k++)
            i.start[ids[k] + 1]++;
    }
    *i.n_active = 0;
    for (uint32_t e = 0; e < E; e++) {
        if (i.start[e + 1])
            i.active[(*i.n_active)++] = e;
        i.start[e + 1] += i.start[e];
    }
    for (uint32_t r = 0; r < x->step->n_rows; r++) {
        const uint32_t *ids = (const uint32_t *)(const void *)cpu_row(x, op->a, r);
        for (uint32_t k = 0; k < K; k++) {
            uint32_t at = i.start[ids[k]]++;
            i.pair[at] = r * K + k;
            i.row[at] = r;
        }
    }
    memmove(i.start + 1, i.start, E * sizeof *i.start);     /* starts moved one on; shift them back */
    i.start[0] = 0;
    x->host->want(x->host->store, op->u.moe.stack, i.active, *i.n_active);
}

static uint32_t ops_moe_blocks(const pn_exec *x, const pn_op *op, uint32_t *per)
{
    const pn_weight *W = &x->plan->weights[op->w];
    uint32_t pairs = x->step->n_rows * op->u.moe.n_used;
    *per = ops_mm_chunk(x, W, W->rows_per_expert, pairs > 8 * op->u.moe.n_expert ? 8 : 1);
    return (W->rows_per_expert + *per - 1) / *per;
}

static bool ops_moe_matmul(pn_exec *x, cpu_lane *lane, const pn_op *op, uint32_t chunk)
{
    const pn_weight *W = &x->plan->weights[op->w];
    uint32_t E = op->u.moe.n_expert, n_pairs = x->step->n_rows * op->u.moe.n_used, per;
    uint32_t blocks = ops_moe_blocks(x, op, &per), slot = chunk / blocks, r0 = chunk % blocks * per;
    moe_index i = ops_moe_index(x, op->b, n_pairs, E);
    if (slot >= *i.n_active)
        return true;
    uint32_t e = i.active[slot], p0 = i.start[e], n = PN_MIN(per, W->rows_per_expert - r0);
    pn_cpu_mm a = ops_mm_args(x, lane, op, i.start[e + 1] - p0);
    a.x_index = ops_operand(x, op->a)->mul == 1 ? i.row + p0 : i.pair + p0;
    a.y_index = i.pair + p0;
    return ops_mm_rows(x, lane, op, &a, (uint64_t)e * W->rows_per_expert + r0, r0, n);
}

/* ------------------------------------------------------------------------------------------
 * Recurrent ops: rows read what rows before them left, or what is in the slot
 * ------------------------------------------------------------------------------------------ */

/* b * x at row `row` of the run; before its first row it is in the slot, and before the sequence's there is none. */
static pn_cpu_tap ops_conv_tap(const pn_exec *x, const pn_op *op, const pn_run *u, int64_t row)
{
    uint32_t n = ops_operand(x, op->out)->cols, back = op->u.conv.taps - 1;
    if (row >= 0) {
        const float *bcx = cpu_row(x, op->a, u->row0 + (uint64_t)row);
        return (pn_cpu_tap){bcx, bcx + 2 * (size_t)n};
    }
    const uint8_t *slot = u->slot_in[op->u.conv.state.part];
    if (!slot)
        return (pn_cpu_tap){NULL, NULL};
    const float *state = (const float *)(const void *)(slot + op->u.conv.state.at);
    return (pn_cpu_tap){state + (size_t)(row + back) * n, NULL};
}

/* The state when `rows` rows of the run are done. */
static void ops_conv_leave(const pn_exec *x, const pn_op *op, const pn_run *u, uint32_t rows, void *const slot[2])
{
    uint32_t n = ops_operand(x, op->out)->cols, back = op->u.conv.taps - 1;
    float *state = (float *)(void *)((uint8_t *)slot[op->u.conv.state.part] + op->u.conv.state.at);
    for (uint32_t k = 0; k < back; k++) {
        const pn_cpu_tap tap = ops_conv_tap(x, op, u, (int64_t)rows - back + k);
        pn_cpu_tap_row(&tap, state + (size_t)k * n, n);
    }
}

/* Rows [r0, r1) of the step.  Who has the row behind which state is wanted writes it. */
static void ops_short_conv(pn_exec *x, const pn_op *op, uint32_t r0, uint32_t r1)
{
    uint32_t n = ops_operand(x, op->out)->cols, taps = op->u.conv.taps, run = 0;
    pn_cpu_tap tap[PN_CPU_TAPS];
    for (uint32_t r = r0; r < r1; r++) {
        const pn_run *u = ops_run(x, r, &run);
        uint32_t row = r - u->row0;
        for (uint32_t k = 0; k < taps; k++)
            tap[k] = ops_conv_tap(x, op, u, (int64_t)row + k - (taps - 1));
        pn_cpu_short_conv(tap, taps, x->plan->weights[op->w].pinned, cpu_row(x, op->a, r) + n, cpu_row(x, op->out, r), n);
        for (uint32_t m = 0; m < u->n_marks; m++)
            if (u->marks[m].rows == row + 1)
                ops_conv_leave(x, op, u, row + 1, u->marks[m].slot);
        if (row + 1 == u->n_rows)
            ops_conv_leave(x, op, u, row + 1, u->slot_out);
    }
}

/* ------------------------------------------------------------------------------------------
 * Dispatch of wide ops
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL uint32_t pn_cpu_op_chunks(const pn_exec *x, const pn_op *op)
{
    const pn_weight *W = op->w == PN_NO_WEIGHT ? NULL : &x->plan->weights[op->w];
    uint32_t per;
    switch (op->code) {
    case PN_OP_MATMUL:
        per = ops_mm_chunk(x, W, (uint32_t)W->rows, cpu_rows(x, op->out));
        return ((uint32_t)W->rows + per - 1) / per;
    case PN_OP_MOE_MATMUL: {
        uint32_t pairs = x->step->n_rows * op->u.moe.n_used;
        return PN_MIN(pairs, op->u.moe.n_expert) * ops_moe_blocks(x, op, &per);
    }
    case PN_OP_ATTN:
        return pn_cpu_attn_chunks(x, op);
    case PN_OP_SHORT_CONV:
        return (x->step->n_rows + CPU_ROW_CHUNK - 1) / CPU_ROW_CHUNK;
    default:
        return 1;
    }
}

PN_INTERNAL bool pn_cpu_op_wide(pn_exec *x, cpu_lane *lane, const pn_op *op, uint32_t chunk)
{
    switch (op->code) {
    case PN_OP_MATMUL:
        return ops_matmul(x, lane, op, chunk);
    case PN_OP_MOE_MATMUL:
        return ops_moe_matmul(x, lane, op, chunk);
    case PN_OP_MOE_GROUP:
        ops_moe_group(x, op);
        return true;
    case PN_OP_ATTN:
        pn_cpu_attn_chunk(x, lane, op, chunk);
        return true;
    case PN_OP_SHORT_CONV:
        ops_short_conv(x, op, chunk * CPU_ROW_CHUNK, PN_MIN((chunk + 1) * CPU_ROW_CHUNK, x->step->n_rows));
        return true;
    default:
        PN_ASSERT(0);
        return true;
    }
}
