/*
 * test_plan.c - stages and placement: nothing inside a stage can collide, nothing alive is overwritten,
 * and the peak is what the placement says.
 */
#include "plan/pn_plan.h"

#include "plan/pn_layout.h"
#include "pn_test.h"

enum { W_EMBD, W_NORM, W_Q, W_K, W_V, W_O, W_GATE, W_UP, W_DOWN, W_OUT, W_ROUTER, W_EGATE, W_EUP, W_EDOWN, W_COUNT };

static float plan_ones[512];

static const pn_weight plan_weights[W_COUNT] = {
    [W_EMBD] = {"embd", PN_DTYPE_Q8_0, 64, 100, 100, 68, NULL}, [W_NORM] = {"norm", PN_DTYPE_F32, 64, 1, 1, 256, plan_ones},
    [W_Q] = {"q", PN_DTYPE_Q4_0, 64, 64, 64, 36, NULL}, [W_K] = {"k", PN_DTYPE_Q4_0, 64, 32, 32, 36, NULL},
    [W_V] = {"v", PN_DTYPE_Q4_0, 64, 32, 32, 36, NULL}, [W_O] = {"o", PN_DTYPE_Q4_0, 64, 64, 64, 36, NULL},
    [W_GATE] = {"gate", PN_DTYPE_Q4_0, 64, 160, 160, 36, NULL}, [W_UP] = {"up", PN_DTYPE_Q4_0, 64, 160, 160, 36, NULL},
    [W_DOWN] = {"down", PN_DTYPE_Q4_0, 160, 64, 64, 90, NULL}, [W_OUT] = {"out", PN_DTYPE_F16, 64, 100, 100, 128, NULL},
    [W_ROUTER] = {"router", PN_DTYPE_F32, 64, 8, 8, 256, NULL}, [W_EGATE] = {"eg", PN_DTYPE_Q4_0, 64, 8 * 96, 96, 36, NULL},
    [W_EUP] = {"eu", PN_DTYPE_Q4_0, 64, 8 * 96, 96, 36, NULL}, [W_EDOWN] = {"ed", PN_DTYPE_Q4_0, 96, 8 * 64, 64, 54, NULL},
};
static const double plan_freq[8] = {1, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.001};
static const pn_rope plan_rope = {.freq = plan_freq, .n_rot = 16, .magnitude = 1};
static const pn_state_spec plan_state = {.group = {{.n_layers = 3, .n_heads = 2, .d_k = 16, .d_v = 16}}, .n_groups = 1};

static pn_status plan_build(pn_plan *p, pn_mem *mem, uint32_t rows, bool exact, pn_plan_result result)
{
    const pn_plan_env env = {.mem = mem, .weights = plan_weights, .ropes = &plan_rope, .state = &plan_state,
                             .n_vocab = 100, .max_rows = rows, .max_outs = rows, .exact = exact,
                             .result = result};
    pn_builder b;
    pn_err err;
    pn_builder_begin(&b, p, &env);
    uint32_t x = pn_b_embed(&b, W_EMBD, 1), table = pn_b_rope_table(&b, 0);
    for (uint32_t il = 0; il < 3; il++) {
        uint32_t n = pn_b_norm(&b, x, W_NORM, 1e-5f);
        uint32_t q = pn_b_matmul(&b, W_Q, n, PN_NO_WEIGHT, PN_NO_OPERAND);
        uint32_t k = pn_b_matmul(&b, W_K, n, PN_NO_WEIGHT, PN_NO_OPERAND);
        uint32_t v = pn_b_matmul(&b, W_V, n, PN_NO_WEIGHT, PN_NO_OPERAND);
        pn_b_rope_store(&b, q, k, v, table, 0, 0, il, 4, 1);
        uint32_t a = pn_b_attn(&b, q, 0, il, 4, 0.25f, 0, PN_NO_WEIGHT);
        x = pn_b_matmul(&b, W_O, a, PN_NO_WEIGHT, x);
        n = pn_b_norm(&b, x, W_NORM, 1e-5f);
        if (il == 1) {
            const pn_moe_spec s = {.gate = W_EGATE, .up = W_EUP, .down = W_EDOWN, .bias = PN_NO_WEIGHT,
                                   .down_scale = PN_NO_WEIGHT, .n_expert = 8, .n_used = 2, .gating = PN_GATE_SOFTMAX,
                                   .norm = 1};
            x = pn_b_moe(&b, &s, n, pn_b_matmul(&b, W_ROUTER, n, PN_NO_WEIGHT, PN_NO_OPERAND), x);
            continue;
        }
        uint32_t g = pn_b_matmul(&b, W_GATE, n, PN_NO_WEIGHT, PN_NO_OPERAND);
        uint32_t u = pn_b_matmul(&b, W_UP, n, PN_NO_WEIGHT, PN_NO_OPERAND);
        x = pn_b_matmul(&b, W_DOWN, pn_b_glu(&b, PN_GLU_SILU, g, u), PN_NO_WEIGHT, x);
    }
    pn_b_logits(&b, W_OUT, pn_b_norm(&b, pn_b_gather(&b, x), W_NORM, 1e-5f), PN_NO_WEIGHT, 1, 30);
    return pn_builder_finish(&b, &err);
}

static bool uses(const uint32_t *list, uint32_t n, uint32_t o)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == o)
            return true;
    return false;
}

/* Ops of different groups of one stage run in any order on any thread: none may write what another
 * touches. */
static void groups_of_a_stage_do_not_touch_each_other(const pn_plan *p)
{
    for (uint32_t g = 0; g < p->n_groups; g++)
        for (uint32_t h = 0; h < p->n_groups; h++) {
            if (g == h || p->groups[g].stage != p->groups[h].stage)
                continue;
            PN_CHECK(!p->groups[g].row_local || !p->groups[h].row_local, "two chains in stage %u",
                     (unsigned)p->groups[g].stage);
            for (uint32_t i = 0; i < p->groups[g].n_ops; i++)
                for (uint32_t k = 0; k < p->groups[h].n_ops; k++) {
                    pn_op_use a, b;
                    pn_op_uses(p, &p->ops[p->groups[g].op0 + i], &a);
                    pn_op_uses(p, &p->ops[p->groups[h].op0 + k], &b);
                    for (uint32_t w = 0; w < a.n_writes; w++)
                        PN_CHECK(!uses(b.reads, b.n_reads, a.writes[w]) && !uses(b.writes, b.n_writes, a.writes[w]),
                                 "stage %u: %s and %s share operand %u", (unsigned)p->groups[g].stage,
                                 pn_opcode_name(p->ops[p->groups[g].op0 + i].code),
                                 pn_opcode_name(p->ops[p->groups[h].op0 + k].code), (unsigned)a.writes[w]);
                }
        }
}

static void operands_alive_together_do_not_overlap(const pn_plan *p)
{
    uint64_t peak = 0;
    for (uint32_t i = 0; i < p->n_operands; i++) {
        const pn_operand *a = &p->operands[i];
        peak = PN_MAX(peak, a->offset + a->bytes);
        PN_CHECK(a->offset % 64 == 0, "operand %u at %" PRIu64, (unsigned)i, a->offset);
        for (uint32_t k = i + 1; k < p->n_operands; k++) {
            const pn_operand *b = &p->operands[k];
            bool together = a->bytes && b->bytes && a->first <= b->last && b->first <= a->last;
            PN_CHECK(!together || a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset,
                     "operands %u (%s) and %u (%s) overlap", (unsigned)i, a->name, (unsigned)k, b->name);
        }
    }
    PN_CHECK(peak == p->scratch_bytes, "peak %" PRIu64 ", said %" PRIu64, peak, p->scratch_bytes);
}

/* Every read sees a write of an earlier stage, or of an earlier op of the same chain. */
static void reads_come_after_writes(const pn_plan *p)
{
    for (uint32_t g = 0; g < p->n_groups; g++)
        for (uint32_t i = 0; i < p->groups[g].n_ops; i++) {
            pn_op_use u;
            pn_op_uses(p, &p->ops[p->groups[g].op0 + i], &u);
            for (uint32_t r = 0; r < u.n_reads; r++) {
                bool seen = false;
                for (uint32_t o = 0; o < p->groups[g].op0 + i && !seen; o++) {
                    pn_op_use w;
                    pn_op_uses(p, &p->ops[o], &w);
                    seen = uses(w.writes, w.n_writes, u.reads[r]);
                }
                PN_CHECK(seen, "%s reads operand %u before it is written",
                         pn_opcode_name(p->ops[p->groups[g].op0 + i].code), (unsigned)u.reads[r]);
            }
        }
}

static int dot_count(void *user, const char *text, size_t len)
{
    size_t *n = user;
    *n += len;
    return len < 8 || memcmp(text, "digraph", 7) != 0;
}

static void plans_hold_for_every_size(void)
{
    static const uint32_t rows[] = {1, 2, 7, 64, 512};
    uint64_t before = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int exact = 0; exact < 2; exact++) {
            pn_test_mem m;
            pn_plan p;
            size_t dot = 0;
            pn_test_mem_init(&m, 0);
            if (!PN_CHECK(plan_build(&p, &m.mem, rows[i], exact, PN_RESULT_LOGITS) == PN_OK, "%u rows", (unsigned)rows[i]))
                continue;
            groups_of_a_stage_do_not_touch_each_other(&p);
            operands_alive_together_do_not_overlap(&p);
            reads_come_after_writes(&p);
            PN_CHECK(pn_plan_dot(&p, &m.mem, dot_count, &dot, NULL) == PN_OK && dot > 1000, "%zu bytes of DOT", dot);
            if (!exact) {
                PN_CHECK(p.scratch_bytes > before, "%u rows need no more than fewer", (unsigned)rows[i]);
                before = p.scratch_bytes;
            }
            PN_CHECK(p.n_stages < 40, "%u stages for three layers", (unsigned)p.n_stages);
            pn_plan_free(&p, &m.mem);
            PN_CHECK(m.outstanding == 0, "%ld blocks left", m.outstanding);
        }
}

/* The same ops without the head, and its input is the result. */
static void hidden_rows_are_what_the_head_reads(void)
{
    pn_test_mem m;
    pn_plan logits, hidden;
    uint32_t n_results = 0;
    pn_test_mem_init(&m, 0);
    PN_CHECK(plan_build(&logits, &m.mem, 64, false, PN_RESULT_LOGITS) == PN_OK);
    PN_CHECK(plan_build(&hidden, &m.mem, 64, false, PN_RESULT_HIDDEN) == PN_OK);
    operands_alive_together_do_not_overlap(&hidden);
    reads_come_after_writes(&hidden);
    for (uint32_t i = 0; i < hidden.n_ops; i++)
        PN_CHECK(hidden.ops[i].w != W_OUT && hidden.ops[i].code != PN_OP_SOFTCAP);
    for (uint32_t i = 0; i < hidden.n_operands; i++)
        if (hidden.operands[i].where == PN_AT_OUTPUT) {
            n_results++;
            PN_CHECK(hidden.operands[i].cols == 64 && hidden.operands[i].stride == 256 && hidden.operands[i].dim == PN_DIM_OUTS);
        }
    PN_CHECK(n_results == 1 && hidden.n_ops == logits.n_ops - 2);      /* multiply, cap */
    PN_CHECK(hidden.scratch_bytes <= logits.scratch_bytes);
    pn_plan_free(&logits, &m.mem);
    pn_plan_free(&hidden, &m.mem);
    PN_CHECK(m.outstanding == 0);
}

static void planning_survives_any_failing_allocation(void)
{
    for (long k = 1; k < 200; k++) {
        pn_test_mem m;
        pn_plan p;
        pn_test_mem_init(&m, k);
        pn_status st = plan_build(&p, &m.mem, 8, false, PN_RESULT_LOGITS);
        if (st == PN_OK)
            pn_plan_free(&p, &m.mem);
        PN_CHECK(m.outstanding == 0, "failing allocation %ld leaks %ld blocks", k, m.outstanding);
        if (m.n_calls < k) {
            PN_CHECK(st == PN_OK && k > 5, "status %d", (int)st);
            break;
        }
        PN_CHECK(st == PN_E_NOMEM, "failing allocation %ld gives %d", k, (int)st);
    }
}

int main(void)
{
    plans_hold_for_every_size();
    hidden_rows_are_what_the_head_reads();
    planning_survives_any_failing_allocation();
    return pn_test_end();
}
