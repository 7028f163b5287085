/*
 * pn_os.h - what we need from the operating system beyond libc.
 *
 * One file a platform (pn_os_linux.c, pn_os_darwin.c, pn_os_none.c), chosen by whole-file guards;
 * what Linux and macOS share, files and the clock, is in pn_os_posix.c.  pn_os_none.c
 * (PN_ENABLE_FILES=0, or a system we do not know) refuses files with PN_E_UNSUPPORTED and has a
 * clock only as good as C11's.
 */
#ifndef PN_OS_H
#define PN_OS_H

#include "base/pn_base.h"

/* A file opened for reading by position, so several threads may read at once. */
typedef struct pn_os_file {
    int fd;                     /* -1: closed */
    uint64_t size;              /* bytes when opened */
} pn_os_file;

PN_INTERNAL pn_status pn_os_open(pn_os_file *f, const char *path, pn_err *err);
PN_INTERNAL void pn_os_close(pn_os_file *f);                       /* closed: no-op */

/* Exactly n bytes at offset, or PN_E_IO ("ends at byte N" when the file is shorter). */
PN_INTERNAL pn_status pn_os_read(const pn_os_file *f, uint64_t offset, void *dst, size_t n, pn_err *err);

/* The whole file, read-only, shared.  *addr is page-aligned. */
PN_INTERNAL pn_status pn_os_map(const pn_os_file *f, const void **addr, pn_err *err);
PN_INTERNAL void pn_os_unmap(const void *addr, uint64_t size);

/* Memory straight from the system, zeroed, page-aligned, and back at once, so that what is given back is given back.
 * Sizes are rounded up to pages.  NULL: there is none; always where PN_OS_PAGES is 0. */
#if PN_ENABLE_FILES && (defined(__linux__) || defined(__APPLE__))
#define PN_OS_PAGES 1
#else
#define PN_OS_PAGES 0
#endif
PN_INTERNAL void *pn_os_pages_take(size_t size);
PN_INTERNAL void pn_os_pages_give(void *ptr, size_t size);

/* Two names of one existing file (links followed). */
PN_INTERNAL bool pn_os_same_file(const char *a, const char *b);

/* Writing: a new file beside `path` that takes its place on commit; abandoned otherwise. */
typedef struct pn_os_out {
    int fd;
    char tmp[1024];
    const char *path;           /* borrowed until commit or abandon */
    uint64_t written;
} pn_os_out;

PN_INTERNAL pn_status pn_os_create(pn_os_out *o, const char *path, pn_err *err);
PN_INTERNAL pn_status pn_os_write(pn_os_out *o, const void *bytes, size_t n, pn_err *err);
PN_INTERNAL pn_status pn_os_commit(pn_os_out *o, pn_err *err);
PN_INTERNAL void pn_os_abandon(pn_os_out *o);                      /* after commit: no-op */

/* Monotonic seconds. */
PN_INTERNAL double pn_os_now(void);

/* Bits from the system's random source (time and addresses where there is none). */
PN_INTERNAL uint64_t pn_os_entropy(void);

/* Cores this process may use: affinity, then the control groups' CPU quota rounded up; at least 1. */
PN_INTERNAL uint32_t pn_os_cores(void);

/* One reading of base/pn_host.h.  total: smallest of physical memory and every limit above us;
 * available: what can be taken without swapping or being killed, reclaimable page cache counted as
 * free.  0: unknown; nothing left is 1. */
PN_INTERNAL void pn_os_memory(uint64_t *total, uint64_t *available);

#endif /* PN_OS_H */
