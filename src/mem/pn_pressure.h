/*
 * pn_pressure.h - how short is memory? Four levels with hysteresis, one machine a resource.
 *
 * A resource is the host or one device.  Samples go in, a level comes out; the ladder and admission go
 * by it.  All rules are those of memory sheet 5, with its numbers:
 *
 *     up      a < entry threshold: CRITICAL on one sample, WATCH and TIGHT when two consecutive
 *             samples at least 200 ms apart say so; an override at once
 *     down    one level at a time, when a was at least 1.3 times the level's entry threshold without a
 *             break for 5 s (3 s from CRITICAL) and the level has lasted 2 s
 *
 *     a = bytes available now (A_soft, or the device's)
 *
 * Overrides are signs that memory is short though `a` looks fine.  They raise and never lower; as long
 * as one demands a level, it counts as a sample below that level's threshold.
 *
 * While the sensor is lost the level stays; after 5 s it is at least WATCH (14.1).  What was observed
 * before the gap proves nothing after it: going down starts anew.
 *
 * Invariants
 *   1. Within one call the level rises any way or falls by one.
 *   2. It does not fall before it has lasted 2 s.
 *   3. Same calls, same levels: there is no clock here.  Times are seconds of one monotonic clock and
 *      do not go back; a sample that is not later than the last one changes nothing.
 *
 * A plain struct without pointers to its own: it may be copied.  Threads: one owner at a time.
 */
#ifndef PN_PRESSURE_H
#define PN_PRESSURE_H

#include "mem/pn_msrc.h"

/* What the engine is doing: how often to look. */
typedef enum pn_work {
    PN_WORK_NONE = 0,           /* no model is loaded */
    PN_WORK_IDLE,
    PN_WORK_ACTIVE
} pn_work;

enum { PN_PRESSURE_POINTS = 16 };

/* Since when a counter has been growing faster than each of two rates; -1: it does not. */
typedef struct pn_pressure_rate {
    bool known;
    double t;
    uint64_t value;
    double since[2];
} pn_pressure_rate;

typedef struct pn_pressure {
    pn_level level;
    const char *why;            /* for the last change: "avail", "refault", "psi", "swapin", "oom", "alloc",
                                 * "hint", "lost"; static */
    double changed;             /* when */
    bool thrashing;             /* mapped weights are read again and again */
    uint64_t floor_failures;    /* floor memory that could not be had: bugs */

    /* --- not to be touched ------------------------------------------------------------------ */
    bool device, sampled;
    pn_work work;
    double worked, t, looked;   /* last active; time of the last good sample; of any sample */
    uint64_t budget, available;
    uint64_t enter[4];          /* entry threshold of each level, bytes; [PN_LEVEL_OK] unused */
    double below[4], calm[4];   /* since when a < enter, a >= 1.3 enter; -1: it is not */
    double lost;                /* since when the sensor is; -1: it is not */
    double disk_rate;           /* B_disk, bytes a second; 0: unknown */
    pn_pressure_rate refault, swapin;
    double psi_t[PN_PRESSURE_POINTS];
    uint64_t psi_us[PN_PRESSURE_POINTS];
    uint32_t psi_n;
    double psi_share;           /* of the last two seconds, 0..1 */
    bool oom_known;
    uint64_t oom;
    double oom_until, alloc_until;
    pn_level alloc_level, hint;
} pn_pressure;

/* device: thresholds of a device, and no overrides but failed allocations and hints. */
PN_INTERNAL void pn_pressure_init(pn_pressure *p, bool device, double now);

/* What the disk can deliver, bytes a second: the measure of refaults.  0 (unknown): they tell nothing. */
PN_INTERNAL void pn_pressure_disk(pn_pressure *p, double bytes_per_s);

PN_INTERNAL pn_level pn_pressure_feed(pn_pressure *p, const pn_mem_sample *s, pn_work work);

/* An allocation on this resource failed: at least TIGHT for 5 s; floor memory: CRITICAL, and counted. */
PN_INTERNAL pn_level pn_pressure_failed_alloc(pn_pressure *p, double now, bool floor_memory);

/* The system or the embedder says so: at least `level` until the next hint; OK takes it back. */
PN_INTERNAL pn_level pn_pressure_hint(pn_pressure *p, pn_level level, double now);

/* Seconds until the next sample is due, 0: now; INFINITY: none while no model is loaded. */
PN_INTERNAL double pn_pressure_due(const pn_pressure *p, double now);

/* Below how many available bytes `level` begins; 0 for OK and before the first sample. */
PN_INTERNAL uint64_t pn_pressure_threshold(const pn_pressure *p, pn_level level);

/* Bytes to be freed until the level can fall: to 1.3 times its entry threshold; 0: none. */
PN_INTERNAL uint64_t pn_pressure_deficit(const pn_pressure *p);

#endif /* PN_PRESSURE_H */
