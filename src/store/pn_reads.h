/*
 * pn_reads.h - the threads that fetch weights, and how a step waits for them.
 *
 * What is to be read is known by others, the sources: the ring of matrices, the rows of the embedding, the
 * experts.  Each says under the lock what it wants next and hears when it is there; a reader asks them in the
 * order in which they were added, so what a step is waiting for comes before what is read ahead.
 *
 *     reader    lock; take(); unlock; read; lock; done(); news
 *     step      a lease is not there -> WAIT -> pn_reads_wait() until there is news -> try again
 *
 * Without threads (PN_ENABLE_THREADS=0, or the system gives none) pn_reads_wait() itself reads one piece.
 *
 * Reads are timed: `rate` is what the disk gives while at least one read is under way, averaged over the last
 * few dozen MiB.
 */
#ifndef PN_READS_H
#define PN_READS_H

#include "base/pn_os_direct.h"
#include "base/pn_thread.h"
#include "format/pn_weights.h"

enum { PN_READERS_MAX = 4 };

/* Consecutive bytes of a file and where in a buffer they go. */
typedef struct pn_extent {
    uint64_t offset;            /* in the file; a multiple of PN_DIRECT_ALIGN, as `at` */
    uint64_t at;                /* in the buffer, which has room for `need` rounded up */
    uint64_t need;
    uint32_t part;              /* of a split model */
} pn_extent;

typedef struct pn_read_job {
    const pn_extent *extents;   /* [n], borrowed until done() */
    uint32_t n;
    uint32_t item;              /* the source's number for it */
    uint8_t *dst;               /* aligned to PN_DIRECT_ALIGN */
} pn_read_job;

/* take and done are called with the lock held; work, which is to be done instead of reading, without. */
typedef struct pn_read_source {
    void *self;
    bool (*take)(void *self, pn_read_job *job);
    void (*done)(void *self, uint32_t item, bool ok);
    void (*work)(void *self);           /* NULL: read */
} pn_read_source;

typedef struct pn_reads {
    pn_mem *mem;
    pn_weights *file;           /* borrowed */
    pn_os_direct *files;        /* [n_parts]; fd -1: read through the part's own source */
    pn_read_source source[5];
    uint32_t n_sources;
    pn_thread thread[PN_READERS_MAX];
    uint32_t n_threads;

    pn_mutex lock;              /* the next ones, and whatever the sources share between reader and step */
    pn_cond work, arrived;
    uint64_t news, seen;
    uint32_t in_flight;
    bool stop;
    pn_err err;                 /* the last read that failed */
    double busy_since, busy;    /* seconds with a read under way, not yet in `rate` */
    uint64_t busy_bytes;
    double rate;                /* bytes a second; 0: nothing was read yet */
    uint64_t bytes;             /* ever */
    double waited;              /* seconds steps have waited */
} pn_reads;

/* Opens every part of `file` once more.  No thread runs before pn_reads_start. */
PN_INTERNAL pn_status pn_reads_open(pn_reads *r, pn_mem *mem, pn_weights *file, pn_err *err);
PN_INTERNAL void pn_reads_stop(pn_reads *r);                    /* joins the threads */
PN_INTERNAL void pn_reads_close(pn_reads *r);                   /* half open: fine */
PN_INTERNAL void pn_reads_add(pn_reads *r, pn_read_source s);   /* before the start, in order of urgency */
PN_INTERNAL void pn_reads_start(pn_reads *r, uint32_t n_threads);

/* With the lock held: a source has something to read. */
PN_INTERNAL void pn_reads_kick(pn_reads *r);

/* With the lock held: what a step may wait for was there all along. */
PN_INTERNAL void pn_reads_tell(pn_reads *r);

/* Until something has arrived since the last call, or `deadline` (pn_os_now() seconds) has passed. */
PN_INTERNAL void pn_reads_wait(pn_reads *r, double deadline);

/* What the disk gives, bytes a second; 0: nothing was read yet, or not from a disk: a callback, a page cache that could not be
 * passed by. */
PN_INTERNAL double pn_reads_disk(pn_reads *r);

/* The same before anything has to be read: pieces from all over the first part, `bytes` of them or as many as half a tenth of
 * a second, and one more, gives.  It takes at most `room` bytes of memory. */
PN_INTERNAL double pn_reads_try_disk(pn_mem *mem, const pn_weights *file, uint64_t bytes, uint64_t room);

/* Where bytes [offset, offset + n) of a part lie, as an extent at `at`. */
static inline pn_extent pn_extent_of(uint32_t part, uint64_t offset, uint64_t n, uint64_t at)
{
    uint64_t skip = offset % PN_DIRECT_ALIGN;
    return (pn_extent){.offset = offset - skip, .at = at, .need = n + skip, .part = part};
}

#endif /* PN_READS_H */
