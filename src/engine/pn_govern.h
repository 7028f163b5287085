/*
 * pn_govern.h - the engine's eye on memory: readings, levels, the ladder, what may be promised, events.
 *
 *     source ──reading──> pressure ──level──> ladder ──slices──> rungs (pn_rungs.c)
 *        └───────────────── room: what a turn or a load may take now
 *
 * Resources are numbered as on the ladder: 0 is this machine's memory, 1 + i die i's where it has its own.
 *
 * What is there (memory sheet 2, 4).  A reading is what the system says; between two readings the engine's own growth
 * counts against it.  Pages of keys and values that were promised to a turn and not written yet take nothing of the
 * system, so they are subtracted (PN_ACCT_KV_RESERVE): a promise is as good as a use.
 *
 *     available(host) = min(soft reading - own growth since - promised, limit - used)
 *     room(host)      = min(soft reading - own growth since - promised - reserve, limit - used)
 *
 * where the reserve is what TIGHT begins at, and for the only turn there is what CRITICAL begins at, unless the caller
 * sets it.  A limit of the caller's is exact and needs no such reserve.  What is lent (pn_lend.h) is added to all of them.
 *
 * Threads.  Readings and numbers: any.  The ladder moves on one thread at a time, between steps: the one that steps,
 * or who calls pn_mem_poll().  A rung is called without the lock here; what it locks is said in pn_rungs.c.
 */
#ifndef PN_GOVERN_H
#define PN_GOVERN_H

#include "base/pn_err.h"
#include "base/pn_thread.h"
#include "mem/pn_ladder.h"
#include "mem/pn_pressure.h"

#include <stdatomic.h>

enum { GOVERN_EVENTS = 64, GOVERN_RUNGS = 4, GOVERN_SLACK = 256 << 10 };

typedef struct pn_governor {
    pn_msrc source;
    double (*clock)(void *user);
    void *clock_user;
    uint64_t reserve;           /* the caller's; 0: by the levels */
    uint32_t n;                 /* resources */

    pn_mutex lock;              /* a leaf: the next ones */
    pn_mem_sample sample;       /* the host's last reading, without limit and promises */
    uint64_t then;              /* what the ledger held, promises not counted, at that reading */
    uint64_t oom_first;         /* kills that had been counted before */
    double hinted_until;
    double stall, refault_rate;
    pn_pressure pressure[PN_LADDER_RESOURCES];
    pn_level level[PN_LADDER_RESOURCES];
    double due;                 /* when the next reading is */
    pn_mem_event events[GOVERN_EVENTS];
    uint64_t n_events;          /* ever */
    bool was_short;             /* the host has been at WATCH or worse */
    double idle_since;          /* < 0: there is work */
    pn_ladder_state shown[PN_LADDER_RUNGS][PN_LADDER_RESOURCES];     /* the ladder's, for who asks */
    pn_mem_rung_params own[GOVERN_RUNGS];   /* the host program's; user NULL: free */
    bool moving;                /* a thread is on the ladder, which is then its own */

    pn_ladder ladder;
    double climbed;             /* pn_os_now() when a thread left it last */
    atomic_bool returning;      /* a request that was put aside is being read back: the same */
    atomic_bool goes_on;        /* a rung had no time left: go on between the next two steps, whenever the next reading is due */
    void (*on_event)(void *user, const pn_mem_event *ev);
    void *event_user;
    atomic_ullong failed[PN_LADDER_RESOURCES];      /* bytes asked for in vain since the last look */

    atomic_uint worst;          /* level of all resources */
    atomic_ullong disk;         /* bytes a second that weights were read with, last; 0: none were */
    atomic_ullong headroom;     /* PN_ACCT_CONN may grow to so much */
    atomic_ullong n_admitted, n_busy, n_refused, n_failed;
} pn_governor;

struct pn_engine;
struct pn_engine_params;

PN_INTERNAL pn_status pn_govern_open(struct pn_engine *e, const pn_engine_params *p, pn_err *err);
PN_INTERNAL void pn_govern_close(struct pn_engine *e);

/* Between steps: look if it is time, and move the ladder for at most a slice.  active: there is work. */
PN_INTERNAL void pn_govern_tick(struct pn_engine *e, bool active);

/* The same without the ladder, from within a step. */
PN_INTERNAL void pn_govern_glance(struct pn_engine *e);

/* Nothing has been worked on for a while, on a machine that has been short of memory: time to find out what could be
 * given up. */
PN_INTERNAL bool pn_govern_idle(struct pn_engine *e);

/* Seconds until the next look is due; < 0: nothing has to be watched. */
PN_INTERNAL double pn_govern_wait(struct pn_engine *e);

/* Bytes that may be promised now; UINT64_MAX: nobody knows a limit.  alone: to the only turn.  The host's reading is at
 * most a second old. */
PN_INTERNAL uint64_t pn_govern_room(struct pn_engine *e, uint32_t resource, bool alone);

/* The host's without what is lent: what can be taken at once. */
PN_INTERNAL uint64_t pn_govern_room_free(struct pn_engine *e, bool alone);

/* What may be lent beside what is, and what has to be given back of that.  filling: bytes that are lent already and that no
 * reading shows yet. */
PN_INTERNAL void pn_govern_spare(struct pn_engine *e, uint64_t filling, uint64_t *spare, uint64_t *missing);

/* What a turn has to leave of a limit, for what comes with it: samplers, texts, the host program's buffers. */
PN_INTERNAL uint64_t pn_govern_slack(struct pn_engine *e);

/* What mapped weights may take: page cache, which the limit does not count. */
PN_INTERNAL uint64_t pn_govern_room_mapped(struct pn_engine *e);

/* The same if everything were at rest: all sequences, promises and caches gone. */
PN_INTERNAL uint64_t pn_govern_room_alone(struct pn_engine *e, uint32_t resource);

PN_INTERNAL uint64_t pn_govern_room_unpressured(struct pn_engine *e);  /* the host's, and nobody else on it either */

/* The machine's memory for pn_engine_memory(). */
PN_INTERNAL void pn_govern_host(struct pn_engine *e, uint64_t *total, uint64_t *available);

/* What a disk has given, bytes a second: the measure of weights that are read again.  0: nothing was read. */
PN_INTERNAL void pn_govern_disk(struct pn_engine *e, double bytes_per_s);

/* A request for memory failed. */
PN_INTERNAL void pn_govern_failed(struct pn_engine *e, uint32_t resource, uint64_t bytes);

PN_INTERNAL void pn_govern_event(struct pn_engine *e, const pn_mem_event *ev);     /* seconds, level, available, budget are filled in */

#endif /* PN_GOVERN_H */
