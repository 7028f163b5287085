/*
 * pn_ring.h - matrices that pass through a few buffers in the order in which a step multiplies by them.
 *
 * All their rows are laid end to end in that order and cut into spans once, at load: a span is what one block of the
 * ring holds.  Cuts are between rows, so a lane never sees half a row.  What lies together in the file is one extent,
 * one read.  Spans may be pinned: they have memory of their own and the ring passes them by.  Which ones is fixed by
 * their number - in the order of its reversed bits - so that any number of them is spread evenly, reads overlap with
 * work all along, and pinning a few more or less moves no other.
 *
 * To pin takes no time: a span gets its memory, and some read of it goes there - that of the block whose turn it is,
 * or one of its own while there is nothing else to read.  The step under way still has it from that block, the one after
 * from its memory.  New memory is filled at a third of the speed of the ring's, so no step has more than a sixteenth of the
 * spans go there.
 *
 *     matrices   |  wq  |wk|wv|  wo  |      gate      |       up       | ...
 *     spans      |   0     |    1    |     2     |    3     |    4   | ...
 *     ring            [first ... next): consecutive spans this step still needs, read ahead, and behind the last
 *                     one the first spans of the step after
 *
 * A block of the ring:
 *
 *              fill             take              done
 *     EMPTY --------> WANTED --------> READING ---------> READY ----+  every row of it was released,
 *       ^                |                |  \                      |  and those before it were
 *       |                |                |   +--------> FAILED     |
 *       +----------------+----------------+----------------+--------+
 *           the step that wanted it was torn, or its successor wants something else (READING: once it ends)
 *
 * Invariants
 *   1. Blocks [first, next) hold consecutive needed spans: of this pass, then of the next one.  So whoever holds the
 *      earliest row that is not multiplied yet finds it in a block that is there or coming: nothing deadlocks, with
 *      one block even.
 *   2. Rows are released once each, by who multiplied them; a block is refilled only when all its rows were.  Hence
 *      a lane that finds a block's tag may read it without a lock.
 *   3. Whether a span is pinned changes between steps alone, and not while a block holds it for the step that begins.  So
 *      every row is leased the same way all through a step, and blocks still hold consecutive needed spans.
 *   4. A pass is begun by pn_ring_begin() and by nothing else.  It says which matrices the step will read, so a step
 *      that was cancelled, failed, or has no head to compute leaves nothing behind that somebody waits for.
 *
 * Threads: begin from the step's thread while no lane works; acquire and release from lanes; take and done from
 * readers, under the lock of pn_reads.
 */
#ifndef PN_RING_H
#define PN_RING_H

#include "plan/pn_plan_types.h"
#include "store/pn_reads.h"

enum { PN_RING_DEPTH_MAX = 64 };

/* Rows [row0, row0 + rows) of a weight in a block of the span. */
typedef struct pn_ring_piece {
    uint64_t row0, at;          /* at: byte in the block */
    uint32_t w, rows, span;
} pn_ring_piece;

typedef struct pn_ring_span {
    uint32_t piece0, n_pieces, extent0, n_extents;
    uint64_t bytes;             /* of a block that are taken */
    uint8_t *pin;               /* memory of its own, owned, or NULL */
    uint8_t fill;               /* what of the span is in there: under the lock */
    bool pinned;                /* lanes have it from there: changes between steps */
} pn_ring_span;

/* Where the rows of a weight are: `head` rows in its first piece, `per` in each that follows. */
typedef struct pn_ring_weight {
    uint64_t row_bytes;
    uint32_t piece0, n_pieces, head, per;
    bool used;                  /* by the step under way, and the one after it will be alike */
} pn_ring_weight;

typedef struct pn_ring_block {
    uint8_t *data;              /* its own */
    uint8_t *at;                /* where its span is: there, or in the memory that the span has */
    uint64_t pass;
    uint32_t span;
    uint8_t state;
    bool dropped;               /* READING for nobody */
    bool fills;                 /* READING into the span's memory */
    atomic_ullong tag;          /* what can be read here: see ring_tag() */
    atomic_uint left;           /* rows to be released */
} pn_ring_block;

typedef struct pn_ring {
    pn_mem *mem;
    pn_reads *reads;            /* borrowed */
    uint64_t block_bytes;       /* a multiple of PN_DIRECT_ALIGN */
    uint32_t depth;
    /* layout */
    pn_ring_weight *weights;    /* [n_weights]; n_pieces 0: not streamed */
    uint32_t n_weights;
    pn_ring_piece *pieces;
    pn_ring_span *spans;
    pn_extent *extents;
    size_t n_pieces, n_spans, n_extents, cap_pieces, cap_spans, cap_extents;
    uint64_t bytes;             /* of all rows */
    uint32_t n_pinned;          /* spans with memory of their own: the first ones in the order of their reversed numbers, */
    uint32_t turn;              /* which those of numbers before this are */
    uint64_t pinned_bytes;      /* memory they take */
    uint32_t n_wanted;          /* of them are to be filled, and nobody reads them; under the lock, as */
    uint32_t n_fills;           /* blocks of this pass that fill some */
    /* run */
    uint8_t *memory;            /* as allocated */
    uint64_t memory_bytes;
    pn_ring_block *blocks;      /* [depth] */
    uint64_t first, next;       /* block of the i-th fill is i % depth */
    uint64_t pass, fill_pass;
    uint32_t fill_span;
} pn_ring;

/* An empty layout for weights [0, n). */
PN_INTERNAL pn_status pn_ring_open(pn_ring *g, pn_mem *mem, pn_reads *reads, uint32_t n, uint64_t block_bytes, uint32_t depth, pn_err *err);
PN_INTERNAL void pn_ring_close(pn_ring *g);

/* Weight w comes next; it begins at `offset` of its part, and comes once. */
PN_INTERNAL pn_status pn_ring_append(pn_ring *g, uint32_t w, const pn_weight *weight, uint32_t part, uint64_t offset, pn_err *err);

/* Memory of the blocks, 0 when there are no rows; and of the spans that are pinned when at most `most` bytes may be. */
PN_INTERNAL uint64_t pn_ring_memory(const pn_ring *g);
PN_INTERNAL uint64_t pn_ring_pinnable(const pn_ring *g, uint64_t most);

/* Memory for as many spans as `most` bytes hold, or let go of those that are more; between steps.  At least one, no further
 * one after `deadline` (pn_os_now() seconds); *done: that was all.  One that is just being read stays until it is there.
 * On failure those before have theirs. */
PN_INTERNAL pn_status pn_ring_pin(pn_ring *g, uint64_t most, double deadline, bool *done, pn_err *err);

/* With the lock held: bytes of it that are not filled yet.  *failed: a read of it failed, and the ring will try again. */
PN_INTERNAL uint64_t pn_ring_filling(const pn_ring *g, bool *failed);

/* Row `row0` of a weight in the memory of its span, NULL: not pinned.  *n: rows from there on, of one piece. */
PN_INTERNAL const uint8_t *pn_ring_pinned(const pn_ring *g, uint32_t w, uint64_t row0, uint64_t *n);

/* Bytes a step that reads everything has to fetch: now, and when at most `most` bytes are pinned. */
PN_INTERNAL uint64_t pn_ring_streamed(const pn_ring *g);
PN_INTERNAL uint64_t pn_ring_unpinned(const pn_ring *g, uint64_t most);

/* Take that memory; from here on the ring is a source of reads.  The first step is assumed to use everything. */
PN_INTERNAL pn_status pn_ring_start(pn_ring *g, pn_err *err);
PN_INTERNAL pn_read_source pn_ring_source(pn_ring *g);

/* With the lock held: nothing is being read, nor to be. */
PN_INTERNAL bool pn_ring_full(const pn_ring *g);

/* A step begins, and whatever the one before left is forgotten. */
PN_INTERNAL void pn_ring_begin(pn_ring *g, const pn_plan *plan, const pn_step *step);
PN_INTERNAL pn_lease_state pn_ring_acquire(pn_ring *g, uint32_t w, uint64_t row0, uint64_t n, pn_lease *out);
PN_INTERNAL void pn_ring_release(pn_ring *g, const pn_lease *l);

#endif /* PN_RING_H */
