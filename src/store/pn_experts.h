/*
 * pn_experts.h - the experts of a mixture that are in memory, and how the others get there.
 *
 * Each layer has slots; a slot has room for one expert of the layer: its rows of every stack (gate, up, down).  A
 * part is one stack's share of a slot.  Parts of a slot are filled and replaced one by one, because a chunk of many
 * tokens may want more experts than there are slots: then the up and gate rows of all of them pass through first and
 * the down rows after them, and still every byte is read once.  Where there is room, all stacks see the same
 * accesses and so keep the same experts.
 *
 *     want        the router has chosen: experts that are there come first, reads of the others begin, those of the
 *                 stack that is multiplied first before those of the next
 *     promised    a part is the expert's until all its rows were released (`left` 0).  Experts are promised parts in
 *                 their order as parts become idle, and lanes take them in that order: the earliest one that is not
 *                 finished has its part, or all promises are kept and a part is idle.  Nothing deadlocks with one.
 *     replaced    the idle part whose expert is least likely to come back: that with the least heat, which is one
 *                 for every use, halved every few steps.  So what is used often survives what was used once, as in
 *                 a segmented LRU, and old fame fades.  No expert is ever skipped or taken for another.
 *
 * Threads: as pn_ring.h; want is called by one lane while no other works on the layer.
 */
#ifndef PN_EXPERTS_H
#define PN_EXPERTS_H

#include "plan/pn_plan_types.h"
#include "store/pn_reads.h"

typedef struct pn_expert_part {
    uint8_t *data;              /* in the slot */
    pn_extent extent;
    uint64_t skip;              /* its first row in data */
    uint32_t expert, next;      /* next: in the queue of those to be read */
    uint8_t state;
    atomic_uint tag;            /* expert + 1 when it can be read; 1 << 31 is added when it could not be */
    atomic_uint left;           /* rows of this step to be released; 0: idle */
} pn_expert_part;

/* One weight: the rows of all experts. */
typedef struct pn_expert_stack {
    uint32_t w, layer;
    uint32_t part0;             /* [n_expert of the layer] parts from here on, as many as there are slots in use */
    const pn_dir_tensor *from;  /* where they are; borrowed from the file's directory */
    uint64_t row_bytes, slice_bytes, at;    /* at: in a slot */
    uint32_t rows;              /* of one expert */
    uint32_t promised;          /* so many of the layer's wanted experts have parts */
    atomic_uint *slot_of;       /* [n_expert] 1 + slot; owned by pn_experts */
} pn_expert_stack;

typedef struct pn_expert_layer {
    uint32_t stack0, n_stacks, n_expert, n_used;
    uint64_t slot_bytes;
    uint32_t n_slots;           /* in use */
    uint8_t **slots;            /* [n_expert] memory of each; owned */
    uint32_t *wanted;           /* [n_expert], n_wanted of them: the step's experts in their order */
    uint32_t n_wanted;
    uint32_t *heat, *last;      /* [n_expert] */
    uint32_t clock;
} pn_expert_layer;

typedef struct pn_experts {
    pn_mem *mem;
    pn_reads *reads;            /* borrowed */
    pn_expert_stack *stacks;
    pn_expert_layer *layers;
    size_t n_stacks, n_layers, cap_stacks, cap_layers;
    uint32_t *stack_of;         /* [n_weights] 1 + stack; 0: no expert's */
    uint32_t n_weights;
    pn_expert_part *parts;      /* [n_parts] */
    uint32_t n_parts, head, tail;   /* the queue */
    uint64_t most;              /* as pn_experts_resize was told, when that was through */
    uint64_t hits, misses, missed_bytes;
} pn_experts;

PN_INTERNAL pn_status pn_experts_open(pn_experts *e, pn_mem *mem, pn_reads *reads, uint32_t n_weights, pn_err *err);
PN_INTERNAL void pn_experts_close(pn_experts *e);

/* The next stack, of the layer before or of a new one, in the order in which they are multiplied. */
PN_INTERNAL pn_status pn_experts_append(pn_experts *e, uint32_t w, const pn_weight *weight, const pn_dir_tensor *from, bool new_layer,
                                        uint32_t n_expert, uint32_t n_used, pn_err *err);

/* Memory of all experts, the least that works - what a token uses in every layer, and two more under way - and
 * what is taken of `most`. */
PN_INTERNAL uint64_t pn_experts_all(const pn_experts *e);
PN_INTERNAL uint64_t pn_experts_floor(const pn_experts *e);
PN_INTERNAL uint64_t pn_experts_memory(const pn_experts *e, uint64_t most);

PN_INTERNAL pn_status pn_experts_start(pn_experts *e, pn_err *err);
PN_INTERNAL pn_read_source pn_experts_source(pn_experts *e);

/* As much memory as `most` allows, between steps; what is dropped is what was added last.  At least one slot, no further
 * one after `deadline` (pn_os_now() seconds); *done: that was all.  A slot into which something is just being read stays until
 * it is there.  PN_E_BUDGET: that is below the floor.  On failure all is as after the last time that was done. */
PN_INTERNAL pn_status pn_experts_resize(pn_experts *e, uint64_t most, double deadline, bool *done, pn_err *err);

/* The same when nobody needs them any more: down to nothing. */
PN_INTERNAL void pn_experts_clear(pn_experts *e, double deadline, bool *done);

PN_INTERNAL void pn_experts_want(pn_experts *e, uint32_t w, uint32_t *experts, uint32_t n);
PN_INTERNAL pn_lease_state pn_experts_acquire(pn_experts *e, uint32_t w, uint64_t row0, uint64_t n, pn_lease *out);
PN_INTERNAL void pn_experts_release(pn_experts *e, const pn_lease *l);

#endif /* PN_EXPERTS_H */
