/*
 * pn_cpu_exec.h - inside the CPU device: the exec and the op bodies.
 */
#ifndef PN_CPU_EXEC_H
#define PN_CPU_EXEC_H

#include "cpu/pn_cpu.h"
#include "device/pn_device.h"
#include "device/pn_team.h"

#include <stdatomic.h>

enum {
    CPU_ATTN_ROWS = 16,     /* rows of one run that share a pass over the pages */
    CPU_ROW_CHUNK = 16      /* rows of a row-local chain given out at once */
};

/* What one thread owns: scratch for tiles and attention, and the chunk it could not finish. */
typedef struct cpu_lane {
    void *tile;
    const float **q;        /* [CPU_ATTN_ROWS * max_group_heads] and so on: pn_cpu_attn's arrays */
    float **o;
    const float **rq;       /* q rotated, for pages whose keys are: pointers into `rotated` */
    float *rotated;         /* [CPU_ATTN_ROWS * max_group_heads, max_head_dim] */
    float *m, *l;
    uint16_t *lo, *hi;
    bool pending;           /* (group, chunk) was begun; `done` rows of it are finished */
    uint32_t group, chunk;
    uint32_t done;
} cpu_lane;

struct pn_exec {
    pn_device *dev;
    const pn_cpu_kernels *k;
    const pn_plan *plan;
    const pn_step *step;
    const pn_host_ops *host;
    uint8_t *scratch;               /* plan->scratch_bytes */
    cpu_lane *lanes;                /* [threads] */
    uint32_t n_lanes;
    atomic_uint *next;              /* [n_groups] next chunk to give out */
    uint32_t *n_chunks;             /* [n_groups] */
    uint32_t group0, stage;         /* first group of the current stage */
    double deadline;
    atomic_bool cancelled;          /* from anywhere */
    atomic_bool stop;               /* this advance() should end; set by lane 0, or by a WAIT */
    atomic_bool waiting, failed;
    pn_exec_state state;            /* decided at the barrier */
    bool leave;                     /* all lanes return from the team function */
};

/* Address of an operand's row 0, and rows in this step. */
static inline uint8_t *cpu_addr(const pn_exec *x, uint32_t operand)
{
    const pn_operand *o = &x->plan->operands[operand], *root = o;
    while (&x->plan->operands[root->parent] != root)
        root = &x->plan->operands[root->parent];
    if (root->where == PN_AT_OUTPUT)
        return (uint8_t *)x->step->logits + o->col_at;
    if (root->where == PN_AT_CARRY)
        return (uint8_t *)x->step->carry + o->col_at;
    return x->scratch + root->offset + o->col_at;
}

static inline float *cpu_row(const pn_exec *x, uint32_t operand, uint64_t row)
{
    return (float *)(void *)(cpu_addr(x, operand) + x->plan->operands[operand].stride * row);
}

static inline uint32_t cpu_rows(const pn_exec *x, uint32_t operand)
{
    return (uint32_t)pn_operand_rows(&x->plan->operands[operand], x->step->n_rows, x->step->n_outs);
}

/* Chunks of a wide op for this step. */
PN_INTERNAL uint32_t pn_cpu_op_chunks(const pn_exec *x, const pn_op *op);

/* Do one chunk of a wide op.  False: a lease has to be waited for (lane->done says how far we got)
 * or failed (x->failed is set). */
PN_INTERNAL bool pn_cpu_op_wide(pn_exec *x, cpu_lane *lane, const pn_op *op, uint32_t chunk);

/* Do rows [r0, r1) of a row-local op; EMBED may have to wait: returns the rows done. */
PN_INTERNAL uint32_t pn_cpu_op_local(pn_exec *x, cpu_lane *lane, const pn_op *op, uint32_t r0, uint32_t r1);

/* Attention of one chunk (pn_cpu_attn.c). */
PN_INTERNAL uint32_t pn_cpu_attn_chunks(const pn_exec *x, const pn_op *op);
PN_INTERNAL void pn_cpu_attn_chunk(pn_exec *x, cpu_lane *lane, const pn_op *op, uint32_t chunk);

#endif /* PN_CPU_EXEC_H */
