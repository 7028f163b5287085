/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Stages first, then lifetimes counted in stages, then placement: largest operand first at the
 * lowest offset that is free during its whole life.  With lifetimes in stages (not ops) two ops of
 * one stage never share bytes unless an op works in place, so threads may run a stage's groups in
 * any order.
 */
#include "plan/pn_layout.h"

enum { LAYOUT_ALIGN = 64 };

static uint32_t layout_root(const pn_plan *p, uint32_t i)
{
    while (p->operands[i].parent != i)
        i = p->operands[i].parent;
    return i;
}

PN_INTERNAL bool pn_op_row_local(const pn_op *op)
{
    switch (op->code) {
    case PN_OP_MATMUL:
    case PN_OP_ATTN:
    case PN_OP_MOE_GROUP:
    case PN_OP_MOE_MATMUL:
    case PN_OP_SHORT_CONV:              /* reads rows before its own */
        return false;
    default:
        return true;
    }
}

static void layout_read(const pn_plan *p, pn_op_use *u, uint32_t o)
{
    if (o != PN_NO_OPERAND)
        u->reads[u->n_reads++] = layout_root(p, o);
}

static void layout_write(const pn_plan *p, pn_op_use *u, uint32_t o)
{
    if (o != PN_NO_OPERAND)
        u->writes[u->n_writes++] = layout_root(p, o);
}

PN_INTERNAL void pn_op_uses(const pn_plan *p, const pn_op *op, pn_op_use *u)
{
    memset(u, 0, sizeof *u);
    layout_read(p, u, op->a);
    layout_read(p, u, op->b);
    layout_read(p, u, op->c);
    if (op->code == PN_OP_MATMUL)
        layout_read(p, u, op->u.matmul.res);
    if (op->code == PN_OP_ROPE_STORE) {        /* `out` is the table, q and k are turned in place */
        layout_read(p, u, op->out);
        layout_write(p, u, op->a);
        layout_write(p, u, op->b);
    } else
        layout_write(p, u, op->out);
}

/* What this stage has done to an operand so far. */
enum { LAYOUT_READ_LOCAL = 1, LAYOUT_READ_WIDE = 2, LAYOUT_WROTE_LOCAL = 4, LAYOUT_WROTE_WIDE = 8 };

/* The row space of an op: row-local ops of different spaces are cut differently. */
static uint8_t layout_dim(const pn_plan *p, const pn_op *op)
{
    uint32_t o = op->code == PN_OP_ROPE_STORE ? op->a : op->out;
    return p->operands[o].dim;
}

static bool layout_conflicts(const uint8_t *seen, const pn_op_use *u, bool local)
{
    const uint8_t bad_read = local ? LAYOUT_WROTE_WIDE : LAYOUT_WROTE_WIDE | LAYOUT_WROTE_LOCAL;
    const uint8_t bad_write = local ? LAYOUT_READ_WIDE | LAYOUT_WROTE_WIDE : 15;
    for (uint32_t i = 0; i < u->n_reads; i++)
        if (seen[u->reads[i]] & bad_read)
            return true;
    for (uint32_t i = 0; i < u->n_writes; i++)
        if (seen[u->writes[i]] & bad_write)
            return true;
    return false;
}

/* stage[i] for every op; returns the number of stages.  Keys and values pass between ROPE_STORE and
 * ATTN through the state, not through an operand, but attention also reads q, which the same
 * ROPE_STORE wrote, so the barrier is there. */
static uint32_t layout_stages(const pn_plan *p, uint32_t *stage, uint8_t *seen)
{
    uint32_t cur = 0;
    int dim = -1;                       /* row space of this stage's chain */
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const pn_op *op = &p->ops[i];
        bool local = pn_op_row_local(op);
        pn_op_use u;
        pn_op_uses(p, op, &u);
        bool other_rows = local && dim >= 0 && dim != layout_dim(p, op);
        if (i > 0 && (other_rows || layout_conflicts(seen, &u, local))) {
            cur++;
            dim = -1;
            memset(seen, 0, p->n_operands);
        }
        if (local)
            dim = layout_dim(p, op);
        for (uint32_t k = 0; k < u.n_reads; k++)
            seen[u.reads[k]] |= local ? LAYOUT_READ_LOCAL : LAYOUT_READ_WIDE;
        for (uint32_t k = 0; k < u.n_writes; k++)
            seen[u.writes[k]] |= local ? LAYOUT_WROTE_LOCAL : LAYOUT_WROTE_WIDE;
        stage[i] = cur;
    }
    return p->n_ops ? cur + 1 : 0;
}

/* Ops in stage order, each stage's row-local chain first, wide ops after it one group each. */
static void layout_groups(pn_plan *p, const uint32_t *stage, pn_op *sorted)
{
    uint32_t n = 0, ng = 0;
    for (uint32_t i = 0; i < p->n_ops;) {
        uint32_t end = i, start = n;
        while (end < p->n_ops && stage[end] == stage[i])
            end++;
        for (uint32_t k = i; k < end; k++)
            if (pn_op_row_local(&p->ops[k]))
                sorted[n++] = p->ops[k];
        if (n > start)
            p->groups[ng++] = (pn_op_group){.op0 = start, .n_ops = n - start, .stage = stage[i], .row_local = 1};
        for (uint32_t k = i; k < end; k++)
            if (!pn_op_row_local(&p->ops[k])) {
                p->groups[ng++] = (pn_op_group){.op0 = n, .n_ops = 1, .stage = stage[i]};
                sorted[n++] = p->ops[k];
            }
        sorted[start].sync = 1;
        i = end;
    }
    p->n_groups = ng;
}

static void layout_live(pn_plan *p)
{
    for (uint32_t i = 0; i < p->n_operands; i++) {
        p->operands[i].first = UINT32_MAX;
        p->operands[i].last = 0;
    }
    for (uint32_t g = 0; g < p->n_groups; g++)
        for (uint32_t k = 0; k < p->groups[g].n_ops; k++) {
            pn_op_use u;
            uint32_t s = p->groups[g].stage;
            pn_op_uses(p, &p->ops[p->groups[g].op0 + k], &u);
            for (uint32_t j = 0; j < u.n_reads + u.n_writes; j++) {
                pn_operand *o = &p->operands[j < u.n_reads ? u.reads[j] : u.writes[j - u.n_reads]];
                o->first = PN_MIN(o->first, s);
                o->last = PN_MAX(o->last, s);
            }
        }
}

/* Lowest aligned offset at which `o` collides with none of the placed operands alive with it. */
static uint64_t layout_place(const pn_plan *p, const uint32_t *order, uint32_t n_placed, const pn_operand *o)
{
    uint64_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < n_placed; i++) {
            const pn_operand *q = &p->operands[order[i]];
            if (q->last < o->first || o->last < q->first || at + o->bytes <= q->offset ||
                q->offset + q->bytes <= at)
                continue;
            at = q->offset + q->bytes;
            moved = true;
        }
    }
    return at;
}

static bool layout_sizes(pn_plan *p)
{
    for (uint32_t i = 0; i < p->n_operands; i++) {
        pn_operand *o = &p->operands[i];
        uint64_t rows = pn_operand_rows(o, p->max_rows, p->max_outs), bytes;
        if (o->parent != i || o->where != PN_AT_SCRATCH) {
            o->bytes = 0;
            continue;
        }
        if (!pn_mul_u64(rows, o->stride, &bytes) || !pn_add_u64(bytes, o->extra + LAYOUT_ALIGN, &bytes))
            return false;
        o->bytes = (bytes - 1) & ~(uint64_t)(LAYOUT_ALIGN - 1);
    }
    return true;
}

/* order: operands that need scratch, largest first (ties: first made first). */
static uint32_t layout_order(const pn_plan *p, uint32_t *order)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_operands; i++)
        if (p->operands[i].bytes && p->operands[i].first != UINT32_MAX)
            order[n++] = i;
    for (uint32_t gap = n / 2; gap; gap /= 2)          /* shell sort: no libc qsort, no recursion */
        for (uint32_t i = gap; i < n; i++) {
            uint32_t v = order[i], j = i;
            for (; j >= gap; j -= gap) {
                const pn_operand *a = &p->operands[order[j - gap]], *b = &p->operands[v];
                if (a->bytes > b->bytes || (a->bytes == b->bytes && order[j - gap] < v))
                    break;
                order[j] = order[j - gap];
            }
            order[j] = v;
        }
    return n;
}

static pn_status layout_run(pn_plan *p, uint32_t *words, uint8_t *seen, pn_op *sorted)
{
    uint32_t *stage = words, *order = words + p->n_ops;
    p->n_stages = layout_stages(p, stage, seen);
    layout_groups(p, stage, sorted);
    memcpy(p->ops, sorted, p->n_ops * sizeof *sorted);
    layout_live(p);
    if (!layout_sizes(p))
        return PN_E_INTERNAL;
    uint32_t n = layout_order(p, order);
    uint64_t peak = 0;
    for (uint32_t i = 0; i < n; i++) {
        pn_operand *o = &p->operands[order[i]];
        o->offset = layout_place(p, order, i, o);
        peak = PN_MAX(peak, o->offset + o->bytes);
    }
    p->scratch_bytes = peak;
    return PN_OK;
}

PN_INTERNAL pn_status pn_layout_plan(pn_plan *p, pn_mem *mem)
{
    size_t n_words = (size_t)p->n_ops + p->n_operands;
    pn_op_group *groups = pn_mem_calloc(mem, PN_ACCT_MISC, p->n_ops, sizeof *groups);
    uint32_t *words = pn_mem_calloc(mem, PN_ACCT_MISC, n_words, sizeof *words);
    uint8_t *seen = pn_mem_calloc(mem, PN_ACCT_MISC, p->n_operands, 1);
    pn_op *sorted = pn_mem_calloc(mem, PN_ACCT_MISC, p->n_ops, sizeof *sorted);
    pn_status st = PN_E_NOMEM;
    if (groups && words && seen && sorted) {
        p->groups = groups;
        st = layout_run(p, words, seen, sorted);
        /* keep exactly n_groups, which is what pn_plan_free() gives back */
        p->groups = pn_mem_resize(mem, PN_ACCT_MISC, NULL, 0, p->n_groups * sizeof *groups);
        if (p->groups)
            memcpy(p->groups, groups, p->n_groups * sizeof *groups);
        else {
            p->n_groups = 0;
            st = PN_E_NOMEM;
        }
    }
    pn_mem_free(mem, PN_ACCT_MISC, groups, p->n_ops * sizeof *groups);
    pn_mem_free(mem, PN_ACCT_MISC, words, n_words * sizeof *words);
    pn_mem_free(mem, PN_ACCT_MISC, seen, p->n_operands);
    pn_mem_free(mem, PN_ACCT_MISC, sorted, p->n_ops * sizeof *sorted);
    return st;
}
