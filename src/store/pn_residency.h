/*
 * pn_residency.h - where a model's weights are, and the lease by which a device reads them.
 *
 *   map    as they lie in the file: the page cache, shared between processes
 *   anon   read into memory of our own (the only way for callback sources, and for matrices that get another type
 *          while they are loaded: whoever opens the store lends a function that makes their rows)
 *   stream some pinned, the others read in every step (pn_stream.h)
 *   ring   for tests: leases of at most `lease_rows` rows, served from one buffer that the next lease
 *          overwrites.  A second lease has to WAIT.
 *
 * A lease of a resident weight is an address computation.
 */
#ifndef PN_RESIDENCY_H
#define PN_RESIDENCY_H

#include "format/pn_weights.h"
#include "plan/pn_plan_types.h"
#include "store/pn_stream.h"

#include <stdatomic.h>

typedef struct pn_residency_store {
    pn_mem *mem;
    pn_weights *file;                       /* borrowed */
    const pn_weight *weights;               /* [n], borrowed from the model */
    const pn_dir_tensor *const *tensors;    /* [n], borrowed from the model */
    uint32_t n;
    const uint8_t **base;                   /* [n] first byte of each matrix; NULL: not resident, or a mapped stack whose
                                               matrices lie scattered */
    uint8_t *anon;                          /* owned copy of all matrices, or NULL */
    uint64_t anon_bytes;
    uint32_t lease_rows;                    /* 0: no ring */
    uint8_t *ring;
    uint64_t ring_bytes;
    atomic_flag ring_busy;
    pn_mutex lock;                          /* for those who look at `stream` while no step of theirs holds it: a report */
    pn_stream *stream;                      /* owned, or NULL */
    pn_stream *next;                        /* owned, or NULL: it is to take the place of the mapping, and is being made */
    bool leaving;                           /* `stream` goes: what is pinned is read there until it has gone, all else is mapped */
    pn_host_ops host;
} pn_residency_store;

/* Make rows [row, row + n) of a retyped tensor, which is [ne1 ne2][ne0] whatever its pieces, at dst. */
typedef pn_status (*pn_make_rows_fn)(void *user, const pn_dir_tensor *t, uint64_t row, uint64_t n, uint8_t *dst, pn_err *err);

typedef struct pn_residency_params {
    pn_residency mode;                      /* ANON when any tensor is retyped */
    pn_make_rows_fn make_rows;              /* for those; used while opening only */
    void *make_user;
    uint32_t lease_rows;
    pn_progress_fn progress;
    void *progress_user;
    pn_stream_params stream;
    const pn_plan *plans;                   /* [n_plans] for streaming: together all of the model */
    uint32_t n_plans;
} pn_residency_params;

PN_INTERNAL pn_status pn_residency_open(pn_residency_store *s, pn_mem *mem, pn_weights *file,
                                        const pn_weight *weights, const pn_dir_tensor *const *tensors, uint32_t n,
                                        const pn_residency_params *p, pn_err *err);
PN_INTERNAL void pn_residency_close(pn_residency_store *s);

/* Another mode, MAP or STREAM, between steps: one piece of the way at least, no further one after `deadline` (pn_os_now()
 * seconds); *done: the mode is that one, and nothing is left of the other.  Steps may come in between, and have the same bits.
 * On failure the mode is what it was.  `p`'s plans are needed only where a streamer is to be made.
 *
 *     map -> stream   the streamer is made and gets the memory of its experts, one by one; then weights are streamed, and its
 *                     readers give back the page cache, although the mapping stays: metadata may lie in it
 *     stream -> map   weights are mapped, but for those that are pinned; those go one by one, so that none is there twice */
PN_INTERNAL pn_status pn_residency_convert(pn_residency_store *s, const pn_residency_params *p, double deadline, bool *done, pn_err *err);

/* Bytes of page cache that weights of `all` bytes need as things are. */
PN_INTERNAL uint64_t pn_residency_mapped(const pn_residency_store *s, uint64_t all);

/* Streamed weights: `pin_bytes` of pinned ones, between steps, as pn_ring_pin. */
PN_INTERNAL pn_status pn_residency_repin(pn_residency_store *s, uint64_t pin_bytes, double deadline, bool *done, pn_err *err);

/* The same for the memory of experts, as pn_experts_resize.  PN_E_BUDGET: less than what a token uses. */
PN_INTERNAL pn_status pn_residency_resize_experts(pn_residency_store *s, uint64_t bytes, double deadline, bool *done, pn_err *err);

/* Bytes that are to be pinned and not there yet: whoever looks what is free does not see that they are taken. */
PN_INTERNAL uint64_t pn_residency_filling(pn_residency_store *s);

/* advance() gave PN_EXEC_WAIT_IO: until it is worth another try, or `deadline` (pn_os_now() seconds) has passed. */
PN_INTERNAL void pn_residency_wait(pn_residency_store *s, double deadline);

/* A step of so many rows is over.  Returns what the disk gives so far (pn_reads_disk). */
PN_INTERNAL double pn_residency_stepped(pn_residency_store *s, uint32_t rows, double seconds);
/* From any thread, at any time between open and close. */
PN_INTERNAL void pn_residency_report(pn_residency_store *s, pn_residency_info *out);

/* advance() gave PN_EXEC_FAILED: why. */
PN_INTERNAL pn_status pn_residency_failed(pn_residency_store *s, pn_err *err);

#endif /* PN_RESIDENCY_H */
