/*
 * pn_host.h - what the machine and its control groups say about memory, and about cores.
 *
 * A pn_host keeps the system's texts open and reads them again on each call, so a reading costs some
 * microseconds (memory sheet 2.4).  It says what is there and judges nothing; two small sums on top,
 * pn_host_budget and pn_host_free, are the formulas of memory sheet 2.1, which pn_os_memory and the
 * memory layer (mem/pn_msrc.h) share, so that there is one walk through the control groups.
 *
 * One file a platform: pn_host_linux.c, pn_host_darwin.c, and pn_host_none.c where the system is
 * unknown.  On Linux:
 *   - Where our groups are is found again whenever a text that was open cannot be read any more, and when
 *     the system, asked every 60 s, says that we are elsewhere: a process can be moved.  Then the reading is
 *     taken once more.
 *   - What is dear to read (memory.stat, vmstat: milliseconds on machines with many cores) or hardly
 *     changes is read at most once a second.  `counted` says when.
 *   - Out of descriptors is no reason to believe in "no limit": such a reading is `lost`.
 *
 * No heap.  A fork needs a pn_host of its own: /proc/self was ours when it was opened.
 * Threads: one owner at a time.
 */
#ifndef PN_HOST_H
#define PN_HOST_H

#include "base/pn_base.h"

#define PN_HOST_UNKNOWN UINT64_MAX      /* a number nobody knows; as a limit: none */
#define PN_HOST_GROUPS 64               /* more than anybody nests; what lies above is not asked */

/* Which of the numbers decided. */
typedef enum pn_mem_term {
    PN_MEM_TERM_NONE = 0,       /* nothing is known */
    PN_MEM_TERM_HOST,           /* the machine's memory */
    PN_MEM_TERM_CGROUP,
    PN_MEM_TERM_RLIMIT,         /* RLIMIT_AS, RLIMIT_DATA */
    PN_MEM_TERM_OVERCOMMIT,     /* vm.overcommit_memory = 2 */
    PN_MEM_TERM_CAP             /* what the user allows */
} pn_mem_term;

enum { PN_HOST_REFAULT = 1, PN_HOST_SWAPIN = 2, PN_HOST_PSI = 4, PN_HOST_OOM = 8 };

/* A control group with a limit.  All in bytes. */
typedef struct pn_host_group {
    uint64_t limit, usage;
    uint64_t reclaim;           /* clean page cache and slab: charged, but given up on demand */
    uint64_t mapped;            /* pages of mapped files, part of `usage` */
} pn_host_group;

typedef struct pn_host_reading {
    bool lost;                  /* nothing could be read: the rest means nothing */
    uint64_t total, available;  /* the machine's; available: without swapping */
    uint64_t mapped;            /* pages of mapped files, of all processes */
    uint64_t unused;            /* pages that hold nothing, not even page cache; 0: unknown */
    uint64_t commit_limit, commit_left;     /* strict overcommit, else unknown */
    uint64_t rlimit, rlimit_left;           /* the smaller of RLIMIT_AS and RLIMIT_DATA */
    uint32_t n_groups;
    pn_host_group groups[PN_HOST_GROUPS];
    /* Counters that only grow, of our own control group where it has them, else of the machine. */
    uint32_t known;             /* PN_HOST_REFAULT | ... */
    uint64_t refault, swapin;   /* bytes of file pages read again after eviction; of pages from swap */
    uint64_t psi_us;            /* microseconds in which all tasks waited for memory */
    uint64_t oom;               /* out-of-memory events and kills, of our control group only */
    double counted;             /* when refault and swapin were read */
} pn_host_reading;

typedef struct pn_host pn_host;

/* root: what stands before /proc and /sys, "" for the real machine; borrowed until close. */
PN_INTERNAL void pn_host_open(pn_host *h, const char *root);
PN_INTERNAL void pn_host_close(pn_host *h);                        /* closed: no-op */

/* now: seconds, monotonic. */
PN_INTERNAL void pn_host_read(pn_host *h, double now, pn_host_reading *out);

/* Of `cores`, those which cpuset and CPU quota of the control groups above us leave, rounded up; at
 * least 1. */
PN_INTERNAL uint32_t pn_host_cores(const char *root, uint32_t cores);

/* The most we could ever have: the smallest of physical memory and every limit. */
PN_INTERNAL uint64_t pn_host_budget(const pn_host_reading *r);

/* What can be taken now, the smallest of every term.  r_map: bytes of mapped weights that are needed
 * though the system calls their page cache free; 0 gives A_hard, else A_soft.  *by (may be NULL)
 * says which term it was. */
PN_INTERNAL uint64_t pn_host_free(const pn_host_reading *r, uint64_t r_map, pn_mem_term *by);

/* What can be taken without evicting anything: while there is some, nobody's page cache goes for want of memory at
 * our level.  0: unknown, or none. */
PN_INTERNAL uint64_t pn_host_unused(const pn_host_reading *r);

/* --- exposed for its size only ------------------------------------------------------------------- */

typedef struct pn_host_level {
    bool v1, counted;           /* counted: reclaim and mapped were read */
    int limit, high, usage, stat;           /* descriptors, -1: no such file */
    uint64_t reclaim, mapped;
} pn_host_level;

struct pn_host {
    const char *root;
    bool open, vanished, starved;           /* a text went away; no descriptors left */
    bool strict;                            /* vm.overcommit_memory is 2 */
    bool no_swap;                           /* so nothing comes back from it: unknown, and not looked for */
    double resolved;                        /* when the groups were last looked for, or still the same */
    uint64_t where;                         /* digest of what the system says they are */
    int groups, meminfo, overcommit, vmstat, limits, status, psi, events;   /* descriptors, -1: no such file */
    uint32_t n_levels;
    int32_t own;                            /* the level whose memory.stat is about us; -1: none */
    pn_host_level levels[PN_HOST_GROUPS];
    uint64_t limit_as, limit_data;
    uint32_t known;
    uint64_t refault, swapin;
    double counted;
};

#endif /* PN_HOST_H */
