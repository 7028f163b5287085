/*
 * pn_os_direct.h - reading and writing a file past the page cache.
 *
 * Weights that do not fit are read again in every step, in the same order.  Through the page cache that
 * is the worst case of every LRU, and under a memory limit each page read pushes out one that would have
 * been next.  Past it, a file costs the buffers we own and nothing else.
 *
 * Direct reads want offset, address and length aligned: callers round outwards to PN_DIRECT_ALIGN and say
 * how many of the bytes they need, for the last block of a file is short.  Where the system refuses (tmpfs,
 * some overlay and network file systems, devices with larger blocks), the same reads go through the cache
 * and what they left there is dropped behind them.
 *
 * Writing is the same the other way round: dirty pages of the cache count against the memory limit that made
 * us write.  Where they cannot be avoided, pn_os_direct_flush() waits for them and gives them back.
 *
 * Threads: reads of one file from any number; open and close from one.
 */
#ifndef PN_OS_DIRECT_H
#define PN_OS_DIRECT_H

#include "base/pn_os.h"

#include <stdatomic.h>

enum {
    PN_DIRECT_ALIGN = 4096,
    PN_HUGE_PAGE = 2 << 20
};

typedef struct pn_os_direct {
    int fd;                     /* its own, -1: closed */
    atomic_bool direct;         /* false: through the cache, dropped behind */
    uint64_t size;              /* bytes of the file when `like` was opened */
} pn_os_direct;

/* `path` once more.  PN_E_IO when another file than `like` has come to be there. */
PN_INTERNAL pn_status pn_os_direct_open(pn_os_direct *f, const char *path, const pn_os_file *like, pn_err *err);
PN_INTERNAL void pn_os_direct_close(pn_os_direct *f);               /* closed: no-op */

/* Up to n bytes at offset, at least `need` <= n of them, or PN_E_IO.  dst, offset and n are multiples of
 * PN_DIRECT_ALIGN. */
PN_INTERNAL pn_status pn_os_direct_read(pn_os_direct *f, uint64_t offset, void *dst, size_t n, size_t need, pn_err *err);

/* The file as it is, for reading.  pn_os_direct_create: a new one, for both; the name must be free. */
PN_INTERNAL pn_status pn_os_direct_open_alone(pn_os_direct *f, const char *path, pn_err *err);
PN_INTERNAL pn_status pn_os_direct_create(pn_os_direct *f, const char *path, pn_err *err);

/* All n bytes at offset; src, offset and n are multiples of PN_DIRECT_ALIGN.  PN_E_BUDGET: the device or the user's
 * share of it is full.  f->size grows with what was written. */
PN_INTERNAL pn_status pn_os_direct_write(pn_os_direct *f, uint64_t offset, const void *src, size_t n, pn_err *err);

/* What went through the cache is on the device, and out of the cache.  Direct writes need none. */
PN_INTERNAL pn_status pn_os_direct_flush(pn_os_direct *f, pn_err *err);

/* Ask for large pages behind [p, p + n): a device fills scattered small ones at a third of the speed. */
PN_INTERNAL void pn_os_huge(void *p, size_t n);

/* [p, p + n) is about to be freed: its pages go back to the system now, whatever the allocator keeps. */
PN_INTERNAL void pn_os_give_back(void *p, size_t n);

/* Give back what the page cache holds of bytes [offset, offset + n) of a mapped file, whose mapping stays; offset is a multiple
 * of PN_DIRECT_ALIGN. */
PN_INTERNAL void pn_os_drop_cache(const pn_os_file *f, const void *map, uint64_t offset, uint64_t n);

#endif /* PN_OS_DIRECT_H */
