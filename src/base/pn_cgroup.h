/*
 * pn_cgroup.h - which control groups are we in, and what do Linux's small texts say?
 *
 * A container's limit is rarely in one place: it may sit in our own cgroup or in any ancestor, in a
 * version 1 hierarchy, in version 2, or (hybrid) in both.  So for each controller we find
 *
 *     mount point and its root     /proc/self/mountinfo    (root: which cgroup the mount point shows)
 *     our path P                   /proc/self/cgroup       "0::P" (v2), "N:list,of,controllers:P" (v1)
 *     directory                    mount point + (P minus root); the mount point alone when root is
 *                                  no prefix of P, as in a namespaced view
 *
 * and the caller walks from that directory up to the mount point, both included.  A missing file is
 * "no limit there": the root cgroup has none, and a path seen through another namespace may not exist.
 *
 * Everything is read below a path prefix, so that tests can offer trees of their own.  No heap: lines
 * go through one buffer, and what does not fit (overlay mounts have very long lines) is cut.
 *
 * Sources: Linux Documentation/admin-guide/cgroup-v1, cgroup-v2.rst; proc(5), cgroups(7).
 */
#ifndef PN_CGROUP_H
#define PN_CGROUP_H

#include "base/pn_base.h"

#if PN_ENABLE_FILES && defined(__linux__)

#define PN_CGROUP_PATH 4096
#define PN_CGROUP_LINE 2048

/* One of Linux's texts, line by line from its start, through a descriptor that may stay open. */
typedef struct pn_lines {
    int fd;                         /* borrowed */
    bool whole;                     /* set after begin: the kernel makes this text in one piece, so a read that is not full
                                       was the last.  To ask for the end makes it all anew, as dear as the first time */
    bool failed;                    /* could not be read to its end */
    uint64_t offset;
    size_t at, have;
    char buf[4096];
    char line[PN_CGROUP_LINE];      /* NUL-terminated, without the newline */
} pn_lines;

PN_INTERNAL void pn_lines_begin(pn_lines *l, int fd);

/* The next line into l->line, its tail dropped when longer than the buffer. */
PN_INTERNAL bool pn_lines_next(pn_lines *l);

/* Open dir/file for reading; -1 and errno. */
PN_INTERNAL int pn_cgroup_open_file(const char *dir, const char *file);

/* Decimal digits at *s, which moves behind them; saturates.  False: none there. */
PN_INTERNAL bool pn_cgroup_u64(const char **s, uint64_t *out);

typedef struct pn_cgroup {
    size_t top;                     /* length of dir at which the walk up ends: the mount point */
    char dir[PN_CGROUP_PATH];       /* where the walk is, prefix included */
} pn_cgroup;

/* Our own cgroup in the hierarchy of `controller` (NULL: version 2); false when there is none. */
PN_INTERNAL bool pn_cgroup_find(pn_cgroup *g, const char *root, const char *controller);

/* One level up; false when we were at the mount point. */
PN_INTERNAL bool pn_cgroup_up(pn_cgroup *g);

#endif /* PN_ENABLE_FILES && __linux__ */

#endif /* PN_CGROUP_H */
