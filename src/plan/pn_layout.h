/*
 * pn_layout.h - stages, liveness and placement of a finished op list.
 */
#ifndef PN_LAYOUT_H
#define PN_LAYOUT_H

#include "base/pn_mem.h"
#include "plan/pn_plan_types.h"

/* Sorts ops into stages and groups (row-local ops of a stage first, as one chain), then places all
 * operands.  Fills groups, n_stages, scratch_bytes; PN_E_NOMEM or PN_E_INTERNAL. */
PN_INTERNAL pn_status pn_layout_plan(pn_plan *p, pn_mem *mem);

/* What an op touches, views resolved to the memory they lie in. */
typedef struct pn_op_use {
    uint32_t reads[5], writes[3];
    uint32_t n_reads, n_writes;
} pn_op_use;

PN_INTERNAL void pn_op_uses(const pn_plan *p, const pn_op *op, pn_op_use *u);

/* Done row by row: a thread that owns rows needs nothing of other rows. */
PN_INTERNAL bool pn_op_row_local(const pn_op *op);

#endif /* PN_LAYOUT_H */
