/*
 * pn_rows.h - rows of a token embedding that is not in memory: the few a step needs, read one by one.
 *
 * A step names its tokens when it begins, so rows are read ahead in their order, as far as there is room; a row that
 * is still there from an earlier step, or comes twice, is read once.
 *
 *     slot    `uses` counts the tokens of this step that were promised the row and have not had it yet; 0: the
 *             row may be replaced, the longest unused first
 *     cursor  tokens before it have been promised their rows.  The earliest token that has not had its row is
 *             promised it, or all promises are kept and there is room for it: nothing deadlocks, with one slot even.
 *
 * Threads: as pn_ring.h.
 */
#ifndef PN_ROWS_H
#define PN_ROWS_H

#include "plan/pn_plan_types.h"
#include "store/pn_reads.h"

enum { PN_ROWS_SLOTS = 32 };

typedef struct pn_row_slot {
    uint8_t *data;              /* the row begins at extent.offset's remainder */
    pn_extent extent;
    uint64_t row, skip;
    uint64_t last;              /* when it was promised last */
    uint8_t state;
    atomic_ullong tag;          /* row + 1 when it can be read; 1 << 63 is added when it could not be */
    atomic_uint uses;
} pn_row_slot;

typedef struct pn_rows {
    pn_mem *mem;
    pn_reads *reads;            /* borrowed */
    uint32_t weight;            /* PN_NO_WEIGHT: there is nothing to do */
    uint64_t row_bytes;
    uint32_t part;
    uint64_t offset;            /* of the weight in its part */
    uint8_t *memory;
    uint64_t slot_bytes, memory_bytes;
    pn_row_slot slot[PN_ROWS_SLOTS];
    const pn_token *tokens;     /* [n_tokens] of the step under way, borrowed */
    uint32_t n_tokens;
    atomic_uint cursor;
    uint64_t clock;
} pn_rows;

/* weight NULL: none. */
PN_INTERNAL void pn_rows_open(pn_rows *r, pn_mem *mem, pn_reads *reads, uint32_t w, const pn_weight *weight, uint32_t part, uint64_t offset);
PN_INTERNAL void pn_rows_close(pn_rows *r);
PN_INTERNAL uint64_t pn_rows_memory(const pn_rows *r);
PN_INTERNAL pn_status pn_rows_start(pn_rows *r, pn_err *err);
PN_INTERNAL pn_read_source pn_rows_source(pn_rows *r);

PN_INTERNAL void pn_rows_begin(pn_rows *r, const pn_plan *plan, const pn_step *step);
PN_INTERNAL pn_lease_state pn_rows_pick(pn_rows *r, uint64_t row, uint32_t i_token, pn_lease *out);
PN_INTERNAL void pn_rows_release(pn_rows *r, const pn_lease *l);

#endif /* PN_ROWS_H */
