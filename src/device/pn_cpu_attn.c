/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Attention over pages.
 *
 * A chunk is a block of up to CPU_ATTN_ROWS rows of one run times some query heads.  Query heads
 * that share a kv head, and rows of the block, meet a page together, so K and V are read once for
 * all of them; the kernel's order per (query, page) is the same however many there are
 * (cpu/pn_cpu.h).  With a single row there are only heads to divide between threads: query heads
 * then, a kv head's keys may be read by two threads.
 */
#include "device/pn_cpu_exec.h"

#include <math.h>

#include "num/pn_math.h"

/* How a step's attention is cut: n_splits ranges of query heads for each row block. */
static uint32_t attn_blocks(const pn_step *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_runs; i++)
        n += (s->runs[i].n_rows + CPU_ATTN_ROWS - 1) / CPU_ATTN_ROWS;
    return n;
}

static uint32_t attn_splits(const pn_exec *x, const pn_op *op, uint32_t blocks)
{
    uint32_t heads = op->u.attn.n_heads, kv = x->plan->state->group[op->u.attn.group].n_heads;
    if (blocks >= 2 * x->n_lanes)
        return kv;
    return PN_MIN(heads, PN_MAX(kv, 2 * x->n_lanes));
}

PN_INTERNAL uint32_t pn_cpu_attn_chunks(const pn_exec *x, const pn_op *op)
{
    uint32_t blocks = attn_blocks(x->step);
    return blocks * attn_splits(x, op, blocks);
}

/* lane->rq: the queries as rotated keys want them. */
static void attn_rotate(const pn_exec *x, cpu_lane *lane, uint32_t n_q, uint32_t d)
{
    for (uint32_t i = 0; i < n_q; i++) {
        memcpy(lane->rotated + (size_t)i * d, lane->q[i], d * sizeof(float));
        lane->rq[i] = lane->rotated + (size_t)i * d;
    }
    x->k->hadamard(lane->rotated, (size_t)n_q * d, pn_cpu_rotation(d));
}

/* What the kernel is to fetch meanwhile: the next page's keys lie anywhere. */
static void attn_ask(pn_cpu_attn *a, const pn_kv_page *next, const pn_stream_group *g, uint32_t layer, uint32_t kvh)
{
    a->next_k = next ? pn_kv_k_plane(g, next, layer, kvh) : NULL;
    a->next_k_bytes = next ? PN_KV_PAGE_TOKENS * (uint32_t)pn_kv_elem_bytes(next->k_type, g->d_k) : 0;
}

/* Queries [row, row + n_rows) x [h0, h1), all of one kv head, against every page they can see. */
static void attn_head(pn_exec *x, cpu_lane *lane, const pn_op *op, const pn_run *run, uint32_t row, uint32_t n_rows,
                      uint32_t h0, uint32_t h1)
{
    const pn_stream_group *g = &x->plan->state->group[op->u.attn.group];
    uint32_t kvh = h0 / (op->u.attn.n_heads / g->n_heads), nh = h1 - h0, n_q = n_rows * nh;
    uint32_t first = run->pos0 + (row - run->row0), last = first + n_rows - 1;
    for (uint32_t i = 0; i < n_q; i++) {
        lane->q[i] = cpu_row(x, op->a, row + i / nh) + (size_t)(h0 + i % nh) * g->d_k;
        lane->o[i] = cpu_row(x, op->out, row + i / nh) + (size_t)(h0 + i % nh) * g->d_v;
        memset(lane->o[i], 0, g->d_v * sizeof(float));
        lane->m[i] = -INFINITY;
        lane->l[i] = 0;
    }
    bool rotated = false;               /* once, where the first rotated page is met */
    pn_cpu_attn a = {.lo = lane->lo, .hi = lane->hi, .n_q = n_q, .d_k = g->d_k, .d_v = g->d_v,
                     .scale = op->u.attn.scale, .softcap = op->u.attn.softcap, .m = lane->m, .l = lane->l,
                     .o = lane->o};
    uint32_t from = g->window && first + 1 > g->window ? first + 1 - g->window : 0;
    for (uint32_t p = from / PN_KV_PAGE_TOKENS; p <= last / PN_KV_PAGE_TOKENS; p++) {
        const pn_kv_page *page = run->pages[op->u.attn.group][p];
        uint32_t base = p * PN_KV_PAGE_TOKENS;
        for (uint32_t i = 0; i < n_q; i++) {
            uint32_t pos = first + i / nh, lo = g->window && pos + 1 > g->window ? pos + 1 - g->window : 0;
            lo = lo > base ? PN_MIN(lo - base, (uint32_t)PN_KV_PAGE_TOKENS) : 0;
            uint32_t hi = pos + 1 > base ? PN_MIN(pos + 1 - base, (uint32_t)PN_KV_PAGE_TOKENS) : 0;
            lane->lo[i] = (uint16_t)lo;
            lane->hi[i] = (uint16_t)PN_MAX(lo, hi);
        }
        if (page->rotated && !rotated)
            attn_rotate(x, lane, n_q, g->d_k);
        rotated = rotated || page->rotated;
        a.q = page->rotated ? lane->rq : lane->q;
        a.k_type = page->k_type;
        a.v_type = page->v_type;
        a.k = pn_kv_k_plane(g, page, op->u.attn.layer, kvh);
        a.v = pn_kv_v_plane(g, page, op->u.attn.layer, kvh);
        attn_ask(&a, p < last / PN_KV_PAGE_TOKENS ? run->pages[op->u.attn.group][p + 1] : NULL, g, op->u.attn.layer, kvh);
        x->k->attn(&a);
    }
    const float *sinks = op->w == PN_NO_WEIGHT ? NULL : x->plan->weights[op->w].pinned;
    for (uint32_t i = 0; i < n_q; i++) {
        float l = lane->l[i], shrink = 1;
        if (sinks) {                    /* joins last: a page with m = sink, l = 1, o = 0 */
            float s = sinks[h0 + i % nh], m = PN_MAX(lane->m[i], s);
            shrink = pn_expf(lane->m[i] - m);
            l = fmaf(l, shrink, pn_expf(s - m));
        }
        x->k->scale(lane->o[i], shrink / l, lane->o[i], g->d_v);
    }
}

PN_INTERNAL void pn_cpu_attn_chunk(pn_exec *x, cpu_lane *lane, const pn_op *op, uint32_t chunk)
{
    const pn_step *s = x->step;
    uint32_t splits = attn_splits(x, op, attn_blocks(s)), block = chunk / splits, part = chunk % splits;
    uint32_t heads = op->u.attn.n_heads, per_kv = heads / x->plan->state->group[op->u.attn.group].n_heads;
    const pn_run *run = s->runs;
    for (;; run++) {
        uint32_t n = (run->n_rows + CPU_ATTN_ROWS - 1) / CPU_ATTN_ROWS;
        if (block < n)
            break;
        block -= n;
    }
    uint32_t row = run->row0 + block * CPU_ATTN_ROWS;
    uint32_t n_rows = PN_MIN((uint32_t)CPU_ATTN_ROWS, run->row0 + run->n_rows - row);
    uint32_t h0 = (uint32_t)((uint64_t)heads * part / splits), h1 = (uint32_t)((uint64_t)heads * (part + 1) / splits);
    while (h0 < h1) {                   /* one kv head at a time */
        uint32_t end = PN_MIN(h1, (h0 / per_kv + 1) * per_kv);
        attn_head(x, lane, op, run, row, n_rows, h0, end);
        h0 = end;
    }
}
