/*
 * pn_msrc.h - how much memory is there for us, now?
 *
 * One reading (a sample) of everything that limits us: the machine, every control group above us,
 * resource limits, strict overcommit, the user's cap; and the counters that tell when memory is short
 * though it looks free.  Two numbers, because page cache of mapped weights is free and needed at once
 * (memory sheet 2.1):
 *
 *     hard    taking more risks a kill             min over the terms
 *     soft    taking more evicts weights           the same, less the mapped weights that are needed
 *
 * Swap never counts.  base/pn_host.h does the reading; here is what only we know: our weights, our
 * ledger, the user's cap.  On a system we do not know the cap is the budget, else half of physical
 * memory (2.2); where not even that is known, nothing limits us: budget 0, hard and soft UINT64_MAX.
 *
 * A sensor can fail.  Then the sample is `lost` and repeats the numbers of the last good one.
 *
 * The source may be a script (mem/pn_mscript.h).  Its numbers are final: neither our weights nor the
 * ledger change them, the cap only bounds them.
 *
 * Nothing is allocated after opening.  Threads: one owner at a time.
 */
#ifndef PN_MSRC_H
#define PN_MSRC_H

#include "base/pn_host.h"
#include "mem/pn_mscript.h"

typedef struct pn_msrc_params {
    const char *root;               /* before /proc and /sys; NULL or "": the real machine; borrowed */
    double (*now)(void *user);      /* seconds, monotonic; NULL: pn_os_now() */
    void *user;
    const char *script_path;        /* a script's file, or */
    const char *script_text;        /* its text; both NULL: the machine */
    pn_mem *mem;                    /* for the script alone */
} pn_msrc_params;

/* What the reader knows of our own use. */
typedef struct pn_msrc_use {
    uint64_t r_map;                 /* bytes of mapped weights that decoding needs; 0: none are mapped */
    uint64_t ledger_total;          /* bytes we hold, without mapped weights */
    uint64_t user_cap;              /* of ledger_total; 0: none */
} pn_msrc_use;

typedef struct pn_mem_sample {
    double t;                       /* when, by the source's clock */
    bool lost;                      /* no reading: numbers are the last good ones, 0 before there was one */
    uint64_t host_total;            /* physical bytes; 0: unknown */
    uint64_t budget;                /* B, the most we could ever have; 0: unknown */
    bool own_budget;                /* that is a limit of ours, not a machine's; set by who feeds the levels */
    uint64_t hard, soft;            /* bytes available now */
    pn_mem_term limited_by;         /* the smallest term of `soft` */
    uint64_t unused;                /* can be taken without evicting page cache; 0: unknown, or none */
    /* Counters that only grow, except when we are moved to another control group. */
    uint32_t known;                 /* which there are: PN_HOST_REFAULT | PN_HOST_SWAPIN | ... */
    double counted;                 /* when refault and swapin were read: at most a second before t */
    uint64_t refault, swapin;       /* bytes */
    uint64_t psi_us;                /* microseconds in which all tasks waited for memory */
    uint64_t oom;                   /* out-of-memory events and kills */
} pn_mem_sample;

typedef struct pn_msrc {
    pn_msrc_params params;
    bool scripted;
    double started;                 /* the script's time 0 */
    pn_host host;
    pn_mscript script;
    pn_mem_sample last;
} pn_msrc;

/* Fails for a script that cannot be read; a machine that tells nothing gives lost samples instead. */
PN_INTERNAL pn_status pn_msrc_open(pn_msrc *s, const pn_msrc_params *params, pn_err *err);
PN_INTERNAL void pn_msrc_close(pn_msrc *s);

PN_INTERNAL void pn_msrc_read(pn_msrc *s, const pn_msrc_use *use, pn_mem_sample *out);

/* Threads worth starting: affinity, cpuset and CPU quota. */
PN_INTERNAL uint32_t pn_msrc_cores(const pn_msrc *s);

#endif /* PN_MSRC_H */
