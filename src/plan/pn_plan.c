/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * The builder's verbs.  Placement is in pn_layout.c.
 */
#include "plan/pn_plan.h"

#include "base/pn_err.h"
#include "plan/pn_layout.h"

/* ------------------------------------------------------------------------------------------
 * Lists
 * ------------------------------------------------------------------------------------------ */

/* Nothing is written: it failed, or it is another part's. */
static bool plan_off(const pn_builder *b) { return b->status || b->outside; }

static uint32_t plan_operand(pn_builder *b, const char *name, uint8_t dim, uint32_t mul, uint32_t cols, uint8_t act)
{
    pn_plan *p = b->plan;
    if (plan_off(b))
        return 0;
    if (!pn_mem_grow(b->mem, PN_ACCT_MISC, (void **)&p->operands, &b->cap_operands, p->n_operands + 1,
                     sizeof *p->operands)) {
        b->status = PN_E_NOMEM;
        return 0;
    }
    pn_operand *o = &p->operands[p->n_operands];
    *o = (pn_operand){.name = name, .dim = dim, .mul = mul, .cols = cols, .act = act, .parent = p->n_operands};
    o->stride = pn_act_layout_of((pn_act_kind)act, cols).row_bytes;
    return p->n_operands++;
}

static pn_op *plan_op(pn_builder *b, pn_opcode code)
{
    static const pn_op none = {.out = PN_NO_OPERAND, .a = PN_NO_OPERAND, .b = PN_NO_OPERAND, .c = PN_NO_OPERAND,
                               .w = PN_NO_WEIGHT, .w2 = PN_NO_WEIGHT};
    pn_plan *p = b->plan;
    if (plan_off(b))
        return NULL;
    if (!pn_mem_grow(b->mem, PN_ACCT_MISC, (void **)&p->ops, &b->cap_ops, p->n_ops + 1, sizeof *p->ops)) {
        b->status = PN_E_NOMEM;
        return NULL;
    }
    pn_op *op = &p->ops[p->n_ops++];
    *op = none;
    op->code = (uint8_t)code;
    op->exact = b->exact;
    return op;
}

static pn_operand *plan_at(pn_builder *b, uint32_t i) { return &b->plan->operands[i]; }

/* A row-wise result of x's shape or with other columns. */
static uint32_t plan_like(pn_builder *b, const char *name, uint32_t x, uint32_t cols)
{
    if (plan_off(b))
        return 0;
    return plan_operand(b, name, plan_at(b, x)->dim, plan_at(b, x)->mul, cols, PN_ACT_F32);
}

static uint32_t plan_root(const pn_plan *p, uint32_t i)
{
    while (p->operands[i].parent != i)
        i = p->operands[i].parent;
    return i;
}

/* x is about to change: its quantised copies are stale. */
static void plan_touch(pn_builder *b, uint32_t x)
{
    if (plan_off(b))
        return;
    uint32_t root = plan_root(b->plan, x);
    for (size_t i = 0; i < PN_COUNT_OF(b->quants); i++)
        if (b->quants[i].x != PN_NO_OPERAND && plan_root(b->plan, b->quants[i].x) == root)
            b->quants[i].x = PN_NO_OPERAND;
}

/* x in the format that weight type `dtype` multiplies with. */
static uint32_t plan_partner(pn_builder *b, uint32_t x, uint32_t dtype)
{
    uint8_t act = b->exact ? PN_ACT_F32 : (uint8_t)pn_cpu_act_kind(dtype);
    if (act == PN_ACT_F32 || plan_off(b))
        return x;
    for (size_t i = 0; i < PN_COUNT_OF(b->quants); i++)
        if (b->quants[i].x == x && b->quants[i].act == act)
            return b->quants[i].q;
    uint32_t cols = plan_at(b, x)->cols;
    uint32_t q = plan_operand(b, act == PN_ACT_Q8_32 ? "q8/32" : "q8/256", plan_at(b, x)->dim, plan_at(b, x)->mul,
                              cols, act);
    pn_op *op = plan_op(b, PN_OP_QUANT);
    if (!op)
        return x;
    op->out = q;
    op->a = x;
    memmove(&b->quants[1], &b->quants[0], sizeof b->quants - sizeof b->quants[0]);
    b->quants[0].x = x;
    b->quants[0].q = q;
    b->quants[0].act = act;
    return q;
}

static void plan_note_weight(pn_builder *b, uint32_t w)
{
    if (w != PN_NO_WEIGHT)
        b->plan->max_cols = PN_MAX(b->plan->max_cols, b->plan->weights[w].cols);
}

/* ------------------------------------------------------------------------------------------
 * Verbs
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_builder_begin(pn_builder *b, pn_plan *plan, const pn_plan_env *env)
{
    *b = (pn_builder){.mem = env->mem, .plan = plan, .exact = env->exact, .layer0 = env->layer0, .layer1 = env->layer1,
                      .outside = env->layer0 > 0};
    *plan = (pn_plan){.weights = env->weights, .ropes = env->ropes, .state = env->state, .n_vocab = env->n_vocab,
                      .max_rows = env->max_rows, .max_outs = env->max_outs, .result = (uint8_t)env->result};
    for (size_t i = 0; i < PN_COUNT_OF(b->quants); i++)
        b->quants[i].x = PN_NO_OPERAND;
    return PN_OK;
}

PN_INTERNAL uint32_t pn_b_embed(pn_builder *b, uint32_t w, float scale)
{
    uint32_t out = plan_operand(b, "x", PN_DIM_ROWS, 1, b->plan->weights[w].cols, PN_ACT_F32);
    pn_op *op = plan_op(b, PN_OP_EMBED);
    if (op) {
        op->out = out;
        op->w = w;
        op->u.embed.scale = scale;
        plan_note_weight(b, w);
    }
    return out;
}

/* x is the step's carry. */
static void plan_carry(pn_builder *b, uint32_t x)
{
    pn_operand *o = plan_at(b, x);
    PN_ASSERT(o->parent == x && o->dim == PN_DIM_ROWS && o->mul == 1);
    o->name = "carry";
    o->where = PN_AT_CARRY;
    o->stride = (uint64_t)o->cols * 4;
}

PN_INTERNAL uint32_t pn_b_layer(pn_builder *b, uint32_t il, uint32_t x, uint32_t n_embd)
{
    if (b->status || !b->layer1)
        return x;
    if (il == b->layer0 && b->layer0) {
        b->outside = false;
        x = plan_operand(b, "carry", PN_DIM_ROWS, 1, n_embd, PN_ACT_F32);
        if (!b->status)
            plan_carry(b, x);
    } else if (il == b->layer1) {
        plan_carry(b, x);
        b->outside = true;
    }
    return x;
}

static void plan_norm(pn_builder *b, uint32_t x, uint32_t out, uint32_t w, float eps, uint32_t groups)
{
    pn_op *op = plan_op(b, PN_OP_NORM);
    if (!op)
        return;
    op->out = out;
    op->a = x;
    op->w = w;
    op->in_place = x == out;
    op->u.norm.eps = eps;
    op->u.norm.groups = groups;
}

PN_INTERNAL uint32_t pn_b_norm(pn_builder *b, uint32_t x, uint32_t w, float eps)
{
    uint32_t out = plan_like(b, "norm", x, plan_off(b) ? 0 : plan_at(b, x)->cols);
    plan_norm(b, x, out, w, eps, 1);
    return out;
}

PN_INTERNAL void pn_b_norm_heads(pn_builder *b, uint32_t x, uint32_t w, float eps, uint32_t groups)
{
    plan_touch(b, x);
    plan_norm(b, x, x, w, eps, groups);
}

PN_INTERNAL uint32_t pn_b_matmul(pn_builder *b, uint32_t w, uint32_t x, uint32_t bias, uint32_t res)
{
    const pn_weight *W = &b->plan->weights[w];
    uint32_t in = plan_partner(b, x, W->dtype);
    uint32_t out = res != PN_NO_OPERAND ? res : plan_like(b, "mm", x, (uint32_t)W->rows);
    pn_op *op = plan_op(b, PN_OP_MATMUL);
    if (!op)
        return out;
    if (res != PN_NO_OPERAND)
        plan_touch(b, res);
    op->out = out;
    op->a = in;
    op->w = w;
    op->w2 = bias;
    op->in_place = res != PN_NO_OPERAND;
    op->u.matmul.res = res;
    plan_note_weight(b, w);
    return out;
}

PN_INTERNAL uint32_t pn_b_view(pn_builder *b, uint32_t x, uint32_t col, uint32_t cols)
{
    uint32_t v = plan_like(b, "view", x, cols);
    if (plan_off(b))
        return v;
    pn_operand *o = plan_at(b, v);
    o->parent = x;
    o->stride = plan_at(b, x)->stride;
    o->col_at = plan_at(b, x)->col_at + (uint64_t)col * 4;
    return v;
}

PN_INTERNAL uint32_t pn_b_rope_table(pn_builder *b, uint32_t rope)
{
    bool outside = b->outside;
    b->outside = false;             /* each part makes its own */
    uint32_t out = plan_operand(b, "cos,sin", PN_DIM_ROWS, 1, b->plan->ropes[rope].n_rot, PN_ACT_F32);
    pn_op *op = plan_op(b, PN_OP_ROPE_TABLE);
    if (op) {
        op->out = out;
        op->u.table.rope = rope;
    }
    b->outside = outside;
    return out;
}

PN_INTERNAL void pn_b_rope_store(pn_builder *b, uint32_t q, uint32_t k, uint32_t v, uint32_t table, uint32_t rope,
                                 uint32_t group, uint32_t layer, uint32_t n_heads, float q_scale)
{
    plan_touch(b, q);
    if (k != PN_NO_OPERAND)
        plan_touch(b, k);
    pn_op *op = plan_op(b, PN_OP_ROPE_STORE);
    if (!op)
        return;
    op->a = q;
    op->b = k;
    op->c = v;
    op->out = table;
    op->in_place = 1;
    op->u.store.rope = rope;
    op->u.store.group = group;
    op->u.store.layer = layer;
    op->u.store.n_heads = n_heads;
    op->u.store.q_scale = q_scale;
    op->u.store.store = k != PN_NO_OPERAND;
}

PN_INTERNAL uint32_t pn_b_attn(pn_builder *b, uint32_t q, uint32_t group, uint32_t layer, uint32_t n_heads,
                               float scale, float softcap, uint32_t sinks)
{
    pn_plan *p = b->plan;
    const pn_stream_group *g = &p->state->group[group];
    uint32_t out = plan_like(b, "attn", q, n_heads * g->d_v);
    pn_op *op = plan_op(b, PN_OP_ATTN);
    if (!op)
        return out;
    op->out = out;
    op->a = q;
    op->w = sinks;
    op->u.attn.group = group;
    op->u.attn.layer = layer;
    op->u.attn.n_heads = n_heads;
    op->u.attn.scale = scale;
    op->u.attn.softcap = softcap;
    p->max_head_dim = PN_MAX(p->max_head_dim, PN_MAX(g->d_k, g->d_v));
    p->max_group_heads = PN_MAX(p->max_group_heads, n_heads / g->n_heads);
    return out;
}

PN_INTERNAL uint32_t pn_b_glu(pn_builder *b, uint8_t kind, uint32_t gate, uint32_t up)
{
    uint32_t out = plan_like(b, "glu", gate, plan_off(b) ? 0 : plan_at(b, gate)->cols);
    pn_op *op = plan_op(b, PN_OP_GLU);
    if (op) {
        op->out = out;
        op->a = gate;
        op->b = up;
        op->u.glu.kind = kind;
    }
    return out;
}

PN_INTERNAL uint32_t pn_b_add(pn_builder *b, uint32_t x, uint32_t y)
{
    plan_touch(b, y);
    pn_op *op = plan_op(b, PN_OP_ADD);
    if (op) {
        op->out = y;
        op->a = x;
        op->b = y;
        op->in_place = 1;
    }
    return y;
}

PN_INTERNAL void pn_b_scale(pn_builder *b, uint32_t x, float s, uint32_t w)
{
    plan_touch(b, x);
    pn_op *op = plan_op(b, PN_OP_SCALE);
    if (op) {
        op->out = op->a = x;
        op->w = w;
        op->in_place = 1;
        op->u.scale.s = s;
    }
}

PN_INTERNAL void pn_b_softcap(pn_builder *b, uint32_t x, float cap)
{
    plan_touch(b, x);
    pn_op *op = plan_op(b, PN_OP_SOFTCAP);
    if (op) {
        op->out = op->a = x;
        op->in_place = 1;
        op->u.softcap.cap = cap;
    }
}

PN_INTERNAL uint32_t pn_b_gather(pn_builder *b, uint32_t x)
{
    if (plan_off(b))
        return 0;
    uint32_t out = plan_operand(b, "last", PN_DIM_OUTS, 1, plan_at(b, x)->cols, PN_ACT_F32);
    pn_op *op = plan_op(b, PN_OP_GATHER);
    if (op) {
        op->out = out;
        op->a = x;
    }
    return out;
}

PN_INTERNAL uint32_t pn_b_gate_add(pn_builder *b, uint32_t s, uint32_t x, uint32_t res)
{
    plan_touch(b, res);
    pn_op *op = plan_op(b, PN_OP_GATE_ADD);
    if (op) {
        op->out = res;
        op->a = s;
        op->b = x;
        op->c = res;
        op->in_place = 1;
    }
    return res;
}

PN_INTERNAL uint32_t pn_b_short_conv(pn_builder *b, uint32_t w, uint32_t bcx, uint32_t taps, pn_slot_at state)
{
    uint32_t out = plan_like(b, "conv", bcx, plan_off(b) ? 0 : plan_at(b, bcx)->cols / 3);
    pn_op *op = plan_op(b, PN_OP_SHORT_CONV);
    if (op) {
        op->out = out;
        op->a = bcx;
        op->w = w;
        op->u.conv.taps = taps;
        op->u.conv.state = state;
    }
    return out;
}

/* One expert matrix over pairs: rows * n_used rows. */
static uint32_t plan_moe_matmul(pn_builder *b, const pn_moe_spec *s, uint32_t w, uint32_t x, uint32_t index)
{
    const pn_weight *W = &b->plan->weights[w];
    uint32_t in = plan_partner(b, x, W->dtype);
    uint32_t out = plan_operand(b, "experts", PN_DIM_ROWS, s->n_used, W->rows_per_expert, PN_ACT_F32);
    pn_op *op = plan_op(b, PN_OP_MOE_MATMUL);
    if (!op)
        return out;
    op->out = out;
    op->a = in;
    op->b = index;
    op->w = w;
    op->u.moe.n_expert = s->n_expert;
    op->u.moe.n_used = s->n_used;
    plan_note_weight(b, w);
    return out;
}

PN_INTERNAL uint32_t pn_b_moe(pn_builder *b, const pn_moe_spec *s, uint32_t x, uint32_t logits, uint32_t res)
{
    uint32_t cols = plan_off(b) ? 0 : plan_at(b, x)->cols;
    uint32_t route = plan_operand(b, "route", PN_DIM_ROWS, 1, 2 * s->n_used, PN_ACT_F32);
    pn_op *op = plan_op(b, PN_OP_MOE_ROUTE);
    if (!op)
        return 0;
    op->out = route;
    op->a = logits;
    op->w = s->bias;
    op->u.route.gating = s->gating;
    op->u.route.norm = s->norm;
    op->u.route.n_expert = s->n_expert;
    op->u.route.n_used = s->n_used;
    op->u.route.n_groups = s->n_groups;
    op->u.route.n_groups_used = s->n_groups_used;
    op->u.route.scale = s->scale;

    /* index, n = rows * n_used: pair[n] sorted by expert, row[n] of each, start[n_expert + 1] into
     * them, n_active, active[n_expert]; all uint32 */
    uint32_t index = plan_operand(b, "by expert", PN_DIM_ROWS, s->n_used, 2, PN_ACT_F32);
    if (!plan_off(b)) {
        plan_at(b, index)->stride = 8;
        plan_at(b, index)->extra = (uint64_t)(2 * s->n_expert + 2) * 4;
    }
    op = plan_op(b, PN_OP_MOE_GROUP);
    if (!op)
        return 0;
    op->out = index;
    op->a = route;
    op->u.moe.n_expert = s->n_expert;
    op->u.moe.n_used = s->n_used;
    op->u.moe.stack = s->up;

    uint32_t gate, up = plan_moe_matmul(b, s, s->up, x, index);
    if (s->gate != PN_NO_WEIGHT)
        gate = plan_moe_matmul(b, s, s->gate, x, index);
    else {
        uint32_t half = plan_off(b) ? 0 : plan_at(b, up)->cols / 2;
        gate = pn_b_view(b, up, 0, half);
        up = pn_b_view(b, up, half, half);
    }
    uint32_t h = pn_b_glu(b, s->act, gate, up);
    uint32_t y = plan_moe_matmul(b, s, s->down, h, index);

    uint32_t out = res != PN_NO_OPERAND ? res : plan_operand(b, "moe", PN_DIM_ROWS, 1, cols, PN_ACT_F32);
    if (res != PN_NO_OPERAND)
        plan_touch(b, res);
    op = plan_op(b, PN_OP_MOE_COMBINE);
    if (!op)
        return 0;
    op->out = out;
    op->a = y;
    op->b = route;
    op->c = res;
    op->w2 = s->down_scale;
    op->in_place = res != PN_NO_OPERAND;
    op->u.moe.n_expert = s->n_expert;
    op->u.moe.n_used = s->n_used;
    return out;
}

/* x is what the step gives: its rows lie close together in the caller's memory. */
static void plan_result(pn_builder *b, uint32_t x, const char *name)
{
    pn_operand *o = plan_at(b, x);
    PN_ASSERT(o->parent == x && o->dim == PN_DIM_OUTS);
    o->name = name;
    o->where = PN_AT_OUTPUT;
    o->stride = (uint64_t)o->cols * 4;
}

PN_INTERNAL void pn_b_logits(pn_builder *b, uint32_t w, uint32_t x, uint32_t bias, float scale, float softcap)
{
    if (plan_off(b))
        return;
    if (b->plan->result == PN_RESULT_HIDDEN) {
        plan_result(b, x, "hidden");
        return;
    }
    uint32_t y = pn_b_matmul(b, w, x, bias, PN_NO_OPERAND);
    if (plan_off(b))
        return;
    plan_result(b, y, "logits");
    if (scale != 1)
        pn_b_scale(b, y, scale, PN_NO_WEIGHT);
    if (softcap > 0)
        pn_b_softcap(b, y, softcap);
}

PN_INTERNAL pn_status pn_builder_finish(pn_builder *b, pn_err *err)
{
    pn_plan *p = b->plan;
    pn_status st = b->status;
    if (!st) {
        /* shrink to fit, so that freeing needs no capacities */
        pn_op *ops = pn_mem_resize(b->mem, PN_ACCT_MISC, NULL, 0, p->n_ops * sizeof *ops);
        pn_operand *os = pn_mem_resize(b->mem, PN_ACCT_MISC, NULL, 0, p->n_operands * sizeof *os);
        if (ops && os) {
            memcpy(ops, p->ops, p->n_ops * sizeof *ops);
            memcpy(os, p->operands, p->n_operands * sizeof *os);
        }
        pn_mem_free(b->mem, PN_ACCT_MISC, p->ops, b->cap_ops * sizeof *ops);
        pn_mem_free(b->mem, PN_ACCT_MISC, p->operands, b->cap_operands * sizeof *os);
        p->ops = ops;
        p->operands = os;
        st = ops && os ? pn_layout_plan(p, b->mem) : PN_E_NOMEM;
    } else {
        pn_mem_free(b->mem, PN_ACCT_MISC, p->ops, b->cap_ops * sizeof *p->ops);
        pn_mem_free(b->mem, PN_ACCT_MISC, p->operands, b->cap_operands * sizeof *p->operands);
        p->ops = NULL;
        p->operands = NULL;
    }
    if (st) {
        pn_plan_free(p, b->mem);
        return pn_fail(err, st, st == PN_E_NOMEM ? "out of memory while planning a step"
                                                 : "internal: the plan of a step could not be laid out");
    }
    return PN_OK;
}

PN_INTERNAL void pn_plan_free(pn_plan *p, pn_mem *mem)
{
    pn_mem_free(mem, PN_ACCT_MISC, p->ops, p->n_ops * sizeof *p->ops);
    pn_mem_free(mem, PN_ACCT_MISC, p->operands, p->n_operands * sizeof *p->operands);
    pn_mem_free(mem, PN_ACCT_MISC, p->groups, p->n_groups * sizeof *p->groups);
    *p = (pn_plan){0};
}
