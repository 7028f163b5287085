/*
 * pn_state.h - the recurrent state of one sequence, and snapshots for others to go on from.
 *
 * Recurrent layers remember a sequence in a slot of fixed size (pn_state_spec.slot_bytes), however long it is.  A
 * step reads one slot and writes another:
 *
 *     in ──step──> out        done: out becomes `in`, what was `in` is written next
 *      └── torn: nothing has happened, the step may be done again
 *
 * So a sequence that computes has two slots: where it is, and one to go on into.  Between turns it needs the first
 * alone, and an empty one none: all zeros is said by NULL.
 *
 * Of a model that is split over two dies a slot is two blocks: each die has the state of its layers.
 *
 * A snapshot is a slot that nobody writes any more.  It has holders: nodes of the prefix tree, a queue for the disk, a
 * sequence that began with it.  Beginning with one copies nothing, for `in` is only read.
 *
 * Snapshots are made while a step runs (pn_run.marks), where somebody may want to go on later: behind every
 * PN_STATE_EVERY tokens, and behind the last page boundary so far, which the next one takes the place of.
 * They are a cache: where there is no memory for one there is none.
 *
 * Invariants
 *   1. n_free slots are the sequence's own and hold nothing; `in` is its own too, or a snapshot with other holders.
 *   2. Reserved, there is a slot to write: one where `in` is the sequence's own, for the next step gets that one
 *      back, else two.
 *   3. mark[0, n_ready) are behind tokens that count, in ascending order; the others belong to the step under way.
 *   4. All of it is PN_ACCT_STATE.
 *
 * Threads: a sequence has one owner; snapshots are held and let go by any thread.
 */
#ifndef PN_STATE_H
#define PN_STATE_H

#include "base/pn_mem.h"
#include "plan/pn_plan_types.h"

#include <stdatomic.h>

enum {
    PN_STATE_EVERY = 256,       /* tokens between snapshots that stay: some pages */
    PN_STATE_MARKS = 18         /* at once: of a step of 4096 rows, and the one before it */
};

/* A slot.  What is of the first part's layers lies behind this. */
typedef struct pn_snap {
    pn_mem *mem[2];
    uint64_t bytes;             /* of both blocks, this included */
    uint64_t second_bytes;
    void *second;               /* owned [second_bytes], of the second part's memory; NULL: none */
    atomic_uint refs;
} pn_snap;

/* Bytes of a slot with what is in front of it; 0 of none.  _part: those in one part's memory. */
static inline uint64_t pn_snap_cost(uint64_t slot_bytes) { return slot_bytes ? PN_MEM_ALIGN + slot_bytes : 0; }
static inline uint64_t pn_snap_cost_part(uint64_t slot_bytes, uint64_t second, uint32_t part)
{
    return part ? second : pn_snap_cost(slot_bytes) - second;
}

static inline void *pn_snap_data(const pn_snap *s, uint32_t part) { return part ? s->second : (uint8_t *)(uintptr_t)s + PN_MEM_ALIGN; }

/* Of slot_bytes, `second` of which are in mem[1].  With one holder, its content is anything.  NULL: no memory. */
PN_INTERNAL pn_snap *pn_snap_new(pn_mem *const mem[2], uint64_t slot_bytes, uint64_t second);
PN_INTERNAL void pn_snap_retain(pn_snap *s);
PN_INTERNAL void pn_snap_release(pn_snap *s);           /* NULL is a no-op */

typedef struct pn_state_mark {
    uint32_t pos;               /* tokens it is behind */
    bool stays;                 /* when others follow it */
    pn_snap *snap;              /* owned */
} pn_state_mark;

typedef struct pn_state {
    pn_mem *mem[2];
    uint64_t slot_bytes, slot_second;   /* 0: the model has none, and there is never anything below */
    pn_snap *in;                /* NULL: the sequence is empty */
    pn_snap *free[2];
    uint32_t n_free;
    pn_state_mark mark[PN_STATE_MARKS];
    uint32_t n_marks, n_ready;
} pn_state;

PN_INTERNAL void pn_state_init(pn_state *s, pn_mem *const mem[2], const pn_state_spec *spec);

/* What a sequence that computes has, without marks; 0 where there is no state.  _part: in one part's memory. */
static inline uint64_t pn_state_turn_bytes(uint64_t slot_bytes) { return 2 * pn_snap_cost(slot_bytes); }
static inline uint64_t pn_state_turn_part(const pn_state_spec *s, uint32_t part) { return 2 * pn_snap_cost_part(s->slot_bytes, s->slot_second, part); }

/* Slots to write.  False and nothing changed: no memory.  _bytes: what it takes now of one part's memory. */
PN_INTERNAL bool pn_state_reserve(pn_state *s);
PN_INTERNAL uint64_t pn_state_reserve_bytes(const pn_state *s, uint32_t part);
/* What is not written goes back. */
PN_INTERNAL void pn_state_trim(pn_state *s);

/* The run's slots for a step.  Reserved. */
PN_INTERNAL void pn_state_run(const pn_state *s, pn_run *run);

/* Snapshots for a step of n tokens behind `length`, as many as there is memory for; last_only: none that another
 * one follows.  out [PN_STATE_MARKS]; returns their number.  What the last step left torn goes. */
PN_INTERNAL uint32_t pn_state_mark_step(pn_state *s, uint32_t length, uint32_t n, bool last_only, pn_checkpoint *out);

/* The step is done. */
PN_INTERNAL void pn_state_commit(pn_state *s);

/* Another place: a snapshot, which is retained, or NULL: the beginning.  Marks go. */
PN_INTERNAL void pn_state_set(pn_state *s, pn_snap *at);

/* Tokens before the last mark that counts, all: or before the last of those that stay; 0: there is none. */
PN_INTERNAL uint32_t pn_state_marked(const pn_state *s, bool all);

/* The first mark of these is the caller's from now on; NULL: there is none. */
PN_INTERNAL pn_snap *pn_state_take(pn_state *s, bool all, uint32_t *pos);

/* Marks go: all, or those of the step that is torn. */
PN_INTERNAL void pn_state_unmark(pn_state *s, bool all);

/* A slot of its own to be filled, as where the sequence is; NULL: no memory. */
PN_INTERNAL pn_snap *pn_state_put(pn_state *s);

/* Everything goes, marks too. */
PN_INTERNAL void pn_state_unload(pn_state *s);

#endif /* PN_STATE_H */
