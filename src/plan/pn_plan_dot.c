/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * A plan as Graphviz text: a box a stage, an arrow where one op's result is another's input.
 *     pantheon plan model.gguf --batch 1 --dot | dot -Tsvg > plan.svg
 */
#include "plan/pn_plan.h"

#include <inttypes.h>

#include "base/pn_err.h"
#include "base/pn_str.h"
#include "plan/pn_layout.h"

PN_INTERNAL const char *pn_opcode_name(uint32_t code)
{
    static const char *const names[PN_OP_COUNT] = {
        "embed", "norm", "quant", "matmul", "rope table", "rope+store", "attention", "glu", "add", "scale",
        "softcap", "gather", "moe route", "moe group", "moe matmul", "moe combine", "gate+add", "short conv"};
    return code < PN_OP_COUNT ? names[code] : "?";
}

static void dot_op(const pn_plan *p, pn_str *s, uint32_t i)
{
    const pn_op *op = &p->ops[i];
    pn_str_addf(s, "    op%" PRIu32 " [label=\"%s", i, pn_opcode_name(op->code));
    if (op->w != PN_NO_WEIGHT)
        pn_str_addf(s, "\\n%s %s", p->weights[op->w].name, pn_dtype_name((pn_dtype)p->weights[op->w].dtype));
    uint32_t o = op->code == PN_OP_ROPE_STORE ? op->a : op->out;
    if (p->operands[o].where == PN_AT_SCRATCH) {
        uint32_t root = o;
        while (p->operands[root].parent != root)
            root = p->operands[root].parent;
        pn_str_addf(s, "\\n%" PRIu32 " cols @%" PRIu64, p->operands[o].cols, p->operands[root].offset);
    }
    pn_str_addz(s, "\"];\n");
}

/* writer[operand]: the last op that wrote it, in list order. */
static void dot_edges(const pn_plan *p, pn_str *s, uint32_t *writer)
{
    memset(writer, 0xff, p->n_operands * sizeof *writer);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        pn_op_use u;
        pn_op_uses(p, &p->ops[i], &u);
        for (uint32_t k = 0; k < u.n_reads; k++)
            if (writer[u.reads[k]] != UINT32_MAX)
                pn_str_addf(s, "  op%" PRIu32 " -> op%" PRIu32 ";\n", writer[u.reads[k]], i);
        for (uint32_t k = 0; k < u.n_writes; k++)
            writer[u.writes[k]] = i;
    }
}

PN_INTERNAL pn_status pn_plan_dot(const pn_plan *p, pn_mem *mem, pn_write_fn write, void *user, pn_err *err)
{
    pn_str s;
    pn_str_init(&s, mem, PN_ACCT_MISC);
    uint32_t *writer = pn_mem_calloc(mem, PN_ACCT_MISC, p->n_operands, sizeof *writer);
    if (!writer)
        return pn_fail_nomem(err, "drawing a plan", p->n_operands * sizeof *writer);
    pn_str_addf(&s, "digraph plan {\n  node [shape=box, fontsize=10];\n  label=\"%" PRIu32 " rows, scratch %" PRIu64
                    " bytes, %" PRIu32 " stages\";\n", p->max_rows, p->scratch_bytes, p->n_stages);
    for (uint32_t g = 0; g < p->n_groups;) {
        uint32_t stage = p->groups[g].stage;
        pn_str_addf(&s, "  subgraph cluster_%" PRIu32 " {\n    label=\"stage %" PRIu32 "\";\n", stage, stage);
        for (; g < p->n_groups && p->groups[g].stage == stage; g++)
            for (uint32_t k = 0; k < p->groups[g].n_ops; k++)
                dot_op(p, &s, p->groups[g].op0 + k);
        pn_str_addz(&s, "  }\n");
    }
    dot_edges(p, &s, writer);
    pn_str_addz(&s, "}\n");
    pn_mem_free(mem, PN_ACCT_MISC, writer, p->n_operands * sizeof *writer);
    pn_status st = PN_OK;
    if (s.failed)
        st = pn_fail_nomem(err, "drawing a plan", s.len);
    else if (write(user, s.data, s.len))
        st = pn_fail(err, PN_E_CANCELLED, "writing the plan was stopped by the callback");
    pn_str_fini(&s);
    return st;
}
