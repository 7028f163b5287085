/*
 * pn_stream.h - weights that do not fit: some stay, the others come from the disk in every step.
 *
 *     matrices      pn_ring.h: pinned as far as there is room, the others read ahead in the order of the plan
 *     embedding     pn_rows.h: the rows a step needs; where it is the output matrix too, that is a matrix as well
 *     experts       pn_experts.h: a cache of those that are used
 *     norms, biases are f32 in the model's own memory
 *
 * What a matrix is for and when it is read is taken from the model's plan, so no family knows of any of this.  A
 * step takes (bytes streamed) / (speed of the disk) at least, however many sequences are in it: larger batches and
 * chunks are cheaper here, not dearer.  Bits are the same as with all weights resident: the same rows go through the
 * same kernels.
 *
 * pn_stream_open() only lays out, so a plan of memory can be made from a header; pn_stream_start() takes memory and reads
 * ahead, in slices where somebody else's answer runs meanwhile; pn_stream_prime() waits until what is pinned is there.
 *
 * Threads: open, start, close and pin from one, between steps; the lease calls as pn_ring.h says.
 */
#ifndef PN_STREAM_H
#define PN_STREAM_H

#include "store/pn_experts.h"
#include "store/pn_ring.h"
#include "store/pn_rows.h"

enum {
    PN_STREAM_BLOCK = 4 << 20,
    PN_STREAM_DEPTH = 4,
    PN_STREAM_READERS = 2
};

typedef struct pn_stream_params {
    uint64_t block_bytes;       /* 0: PN_STREAM_BLOCK; rounded up to PN_DIRECT_ALIGN */
    uint32_t depth;             /* blocks; 0: PN_STREAM_DEPTH */
    uint64_t pin_bytes;         /* most memory of pinned matrices */
    uint64_t expert_bytes;      /* most memory of experts; 0: a quarter of them, or the least that works */
} pn_stream_params;

typedef struct pn_stream_bytes {
    uint64_t pinned, experts;   /* PN_ACCT_WEIGHTS */
    uint64_t experts_floor;     /* the least that experts may be given */
    uint64_t stage;             /* PN_ACCT_STAGE: ring and rows of the embedding */
    uint64_t streamed;          /* read in every step, experts aside */
} pn_stream_bytes;

typedef struct pn_stream {
    pn_mem *mem;
    pn_reads reads;
    pn_ring ring;
    pn_rows rows;
    pn_experts experts;
    pn_stream_params p;
    double waited;              /* pn_reads.waited when the step under way began */
    uint64_t missed;            /* and pn_experts.missed_bytes */
    double compute, miss_bytes; /* of a decoding step, averaged: seconds without waiting, bytes of experts read */
    bool timed;                 /* there was one */
    pn_weights *file;           /* borrowed */
    uint64_t drop_at;           /* page cache from here on is given back; UINT64_MAX: none is.  Under the lock of reads, as the next */
    uint64_t drop_when;         /* while there is something to read, when so much has been */
    bool drops;                 /* somebody is at it, */
    uint64_t dropping;          /* from there on: his alone */
} pn_stream;

/* Weights [0, n) as plans[0..n_plans), together all of a model, read them. */
PN_INTERNAL pn_status pn_stream_open(pn_stream *s, pn_mem *mem, const pn_weight *weights, const pn_dir_tensor *const *tensors,
                                     uint32_t n, const pn_plan *plans, uint32_t n_plans, const pn_stream_params *p, pn_err *err);
PN_INTERNAL void pn_stream_close(pn_stream *s);
PN_INTERNAL pn_stream_bytes pn_stream_needs(const pn_stream *s);

/* At least one piece of it, no further one after `deadline` (pn_os_now() seconds); *done: weights can be leased. */
PN_INTERNAL pn_status pn_stream_start(pn_stream *s, pn_weights *file, double deadline, bool *done, pn_err *err);

/* Until all that is to be pinned is there and the ring is full, or half a second has gone by for that: a first sample of
 * the disk's speed. */
PN_INTERNAL pn_status pn_stream_prime(pn_stream *s, pn_err *err);

/* Nobody will lease from it any more: pinned spans and experts go, as pn_stream_start. */
PN_INTERNAL void pn_stream_clear(pn_stream *s, double deadline, bool *done);

/* The file's page cache goes, by one reader, a few MiB at once, and several times as much is read before the next unless there is
 * nothing to read.  on: until it is through, else not any more. */
PN_INTERNAL void pn_stream_drop_cache(pn_stream *s, bool on);

/* A step of so many rows took so long. */
PN_INTERNAL void pn_stream_stepped(pn_stream *s, uint32_t rows, double seconds);
PN_INTERNAL void pn_stream_report(pn_stream *s, pn_residency_info *out);

/* The calls of pn_host_ops. */
PN_INTERNAL void pn_stream_begin(pn_stream *s, const pn_plan *plan, const pn_step *step);
PN_INTERNAL pn_lease_state pn_stream_acquire(pn_stream *s, uint32_t w, uint64_t row0, uint64_t n, pn_lease *out);
PN_INTERNAL pn_lease_state pn_stream_pick(pn_stream *s, uint64_t row, uint32_t i_token, pn_lease *out);
PN_INTERNAL void pn_stream_want(pn_stream *s, uint32_t w, uint32_t *experts, uint32_t n);
PN_INTERNAL void pn_stream_release(pn_stream *s, const pn_lease *l);

#endif /* PN_STREAM_H */
