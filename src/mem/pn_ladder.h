/*
 * pn_ladder.h - what is given up under pressure, in which order, and when it is taken back.
 *
 *     WATCH      caches, smaller keys and values          each rung: {gain, apply a slice, undo a step}
 *     TIGHT      fewer at once, smaller steps, disk       registered by who owns the bytes
 *     CRITICAL   one at a time, everything at its floor
 *
 * The ladder owns no bytes and knows none: it decides which rung moves next.  Rules (memory sheet 7):
 *
 *   1. A rung is tried only where it gains at least a hundredth of what is missing on that resource.
 *   2. Lowest rank first: cheap before dear, and within a level lossless before lossy.  A rung is finished
 *      before the next one begins; it works in slices, so that a step is never late by more than one.
 *   3. A rung of some level is applied while that level (or a higher one) holds and less is available than 1.3
 *      times the level's threshold.
 *   4. It is undone, highest rank first, once its level no longer holds and the threshold is cleared 1.3 times
 *      even after taking back what undoing takes; not within 10 s of its own last change, nor within 10 s of the
 *      last application on that resource.  Nor is it applied within 10 s of a step back: no rung turns round twice
 *      in 10 s.  A step back that was begun goes on in slices, as long as the level allows.
 *   5. A rung that is through and gave nothing back (it only stops growth, or its bytes come later) rests for 10 s.
 *   6. Each change is one event: the caller gets it and tells whom it concerns.
 *
 * Resources are numbered: 0 is this machine's memory, 1 + i die i's.
 *
 * Threads: one at a time, between steps.  No allocation.
 */
#ifndef PN_LADDER_H
#define PN_LADDER_H

#include "base/pn_base.h"

enum { PN_LADDER_RUNGS = 24, PN_LADDER_RESOURCES = 9 };

typedef enum pn_rung_state {
    PN_RUNG_DONE = 0,           /* nothing more to apply; nothing more to undo */
    PN_RUNG_MORE,               /* the slice is over, and if it gave nothing the next one hardly will; or one step of several is undone */
    PN_RUNG_SLICE               /* the slice is over, whichever way: go on as soon as there is time again */
} pn_rung_state;

/* gain     bytes that applying it all would give back there; 0: nothing, or not now.
 * apply    one slice until `deadline` (the clock of the caller; 0: none), at least `want` bytes if there are as many.
 *          *freed: what it gave back, exactly; it may be 0 when the bytes come back later.
 * retake   bytes that undoing one step takes.  NULL: none.
 * undo     one slice of one step, as apply.  NULL: there is nothing to undo, e.g. lost precision. */
typedef struct pn_rung {
    uint32_t rank;              /* the sheet's number: the order */
    const char *name;           /* static */
    uint8_t level;              /* pn_level from which it is applied */
    uint64_t (*gain)(void *user, uint32_t resource);
    pn_rung_state (*apply)(void *user, uint32_t resource, uint64_t want, double deadline, uint64_t *freed);
    uint64_t (*retake)(void *user, uint32_t resource);
    pn_rung_state (*undo)(void *user, uint32_t resource, double deadline);
    void *user;
} pn_rung;

/* A rung on a resource. */
typedef struct pn_ladder_state {
    bool in_force;              /* applied, and can be undone */
    bool unfinished;            /* a slice is over, there is more */
    bool undoing;               /* the same of a step back */
    bool empty;                 /* its last application gave nothing back */
    bool undone;                /* its last change was a step back */
    double changed_at;          /* < 0: never */
    uint64_t n_applied, n_undone, freed;    /* ever */
} pn_ladder_state;

typedef struct pn_ladder {
    pn_rung rung[PN_LADDER_RUNGS];      /* [n] by rank */
    uint32_t n;
    pn_ladder_state state[PN_LADDER_RUNGS][PN_LADDER_RESOURCES];
    double applied_at[PN_LADDER_RESOURCES];     /* any rung, last; < 0: never */
} pn_ladder;

/* A resource as it is now. */
typedef struct pn_ladder_view {
    double now;
    uint32_t level;             /* pn_level */
    uint64_t available;
    uint64_t threshold[4];      /* [pn_level] bytes below which that level begins; [0] is not looked at */
    uint64_t goal;              /* bytes to make available although no threshold asks for them: the level holds for
                                   another reason (refaults, stalls, a failed allocation); 0: none */
} pn_ladder_view;

/* One event. */
typedef struct pn_ladder_change {
    const pn_rung *rung;        /* borrowed from the ladder; a later pn_ladder_add moves it */
    bool undone;
    uint64_t freed;
} pn_ladder_change;

PN_INTERNAL void pn_ladder_init(pn_ladder *l);

/* False: there are PN_LADDER_RUNGS already. */
PN_INTERNAL bool pn_ladder_add(pn_ladder *l, const pn_rung *r);

/* All rungs of this user. */
PN_INTERNAL void pn_ladder_remove(pn_ladder *l, const void *user);

/* At most one slice, or one step back.  False: there is nothing to do.  Otherwise *out, and view->available is
 * what it was plus what was freed, for the next call. */
PN_INTERNAL bool pn_ladder_step(pn_ladder *l, uint32_t resource, pn_ladder_view *view, double deadline, pn_ladder_change *out);

/* Some rung stopped for the time and has more to do. */
PN_INTERNAL bool pn_ladder_goes_on(const pn_ladder *l);

/* Bytes that are missing for rungs of `level`. */
PN_INTERNAL uint64_t pn_ladder_missing(const pn_ladder_view *v, uint32_t level);

PN_INTERNAL const pn_ladder_state *pn_ladder_find(const pn_ladder *l, uint32_t rank, uint32_t resource);    /* NULL: no such rung */

#endif /* PN_LADDER_H */
