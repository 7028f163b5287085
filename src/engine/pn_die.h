/*
 * pn_die.h - a compute unit: its device, the working memory of its steps, its own memory, its clock.
 *
 * An engine has the CPU, or simulated dies instead (device/pn_device_sim.h), numbered from 0.  A model belongs to a
 * die, or is split over two: the first then runs the layers before the cut, the second the others.  What belongs to
 * a die:
 *
 *     weights      of a simulated die counted as uploaded when a model is placed there (they lie where they lay)
 *     pages        keys and values, their tables, the prefix cache: taken from pn_die_mem()
 *     work         what its steps compute in
 *
 * Everything else (tokens, logits, vocabularies) is the machine's, and a simulated die's memory is counted there,
 * too: in the ledger.
 *
 * The virtual clock, of simulated dies alone.  A die's clock stands still while it has no work and goes on by what
 * its steps take.  Work that is handed to a die without any begins now, so its clock moves up to
 *
 *     now = the least clock of the dies that have work, or if none has, the greatest of all:
 *
 * a die with work has got as far as its clock says, and when all is done it was done at the last clock that ran.
 * Work handed to a die with work runs when its turn comes.  A step over two dies begins when both are free and ends
 * on both at once.
 *
 * Threads: any.  A step has a die by `busy`.
 */
#ifndef PN_DIE_H
#define PN_DIE_H

#include "base/pn_err.h"
#include "base/pn_thread.h"
#include "device/pn_device.h"
#include "device/pn_device_sim.h"
#include "store/pn_prefix.h"

#include <stdatomic.h>

enum { PN_MAX_PARTS = 2 };      /* dies of one model */

struct pn_sched;

/* Pages that sessions share, and where to find them: see pn_cache.h. */
typedef struct pn_cache {
    pn_mutex lock;
    pn_prefix *tree;            /* owned; NULL: nothing was kept yet */
    uint64_t bytes_max;         /* 0: nothing is kept */
    uint64_t tick;
    uint64_t n_queries, n_hits, tokens_asked, tokens_hit;
    atomic_bool held;           /* for want of memory: it keeps what it has and takes no more */
    atomic_bool few_states;     /* the same: of each conversation the last snapshot alone */
} pn_cache;

/* The memory of a simulated die. */
typedef struct pn_die_door {
    pn_mem mem;                 /* first: cast back */
    struct pn_die *die;
} pn_die_door;

typedef struct pn_die {
    pn_engine *engine;
    uint32_t index;
    const pn_device_ops *ops;
    pn_device *dev;
    uint32_t n_threads;
    struct pn_sched *sched;     /* owned: of the models whose first die this is */
    pn_cache cache;             /* and what they keep */

    pn_mutex lock;              /* the next ones */
    pn_cond idle;
    bool busy;                  /* a step has the die */
    bool parked;                /* that step waits for somebody to go on with it: see pn_sched_settle */
    bool wanted;                /* another die's scheduler found it busy: let that one have a turn */
    struct pn_sched *holder;    /* whose step it is; NULL: a session's own */
    uint32_t n_models;

    void *work;                 /* grown when a session is opened, never inside a step */
    atomic_ullong work_bytes;   /* set by who has the die; anybody may look */

    /* For want of memory (pn_rungs.c); UINT32_MAX: as ever. */
    atomic_uint slots;          /* requests of one model that are worked on at once */
    atomic_uint max_rows;       /* of a step */
    atomic_uint kv_step;        /* how much smaller keys and values of new sequences are: pn_rungs_kv.c; 0: as ever */

    bool simulated;             /* the next ones are */
    pn_die_door door;
    pn_sim_params sim;
    pn_sim_memory memory;
    atomic_ullong floor_owed;   /* bytes of it that are free, and for the floors of models on it alone */
    double clock;               /* seconds; under the engine's clock_lock, as the next */
    uint32_t n_work;            /* jobs, and steps that are none's */
} pn_die;

/* sim NULL: the CPU.  On failure pn_die_close() is still due. */
PN_INTERNAL pn_status pn_die_open(pn_die *die, pn_engine *e, uint32_t index, const pn_sim_params *sim, uint32_t n_threads, pn_err *err);
PN_INTERNAL void pn_die_close(pn_die *die);

/* The die for one step, and back.  take: when the step that has it is parked, that is finished first.  try: for a
 * scheduler's step, if it is free now.  wait: until it has been free for a moment. */
PN_INTERNAL void pn_die_take(pn_die *die);
PN_INTERNAL bool pn_die_try(pn_die *die, struct pn_sched *q);
PN_INTERNAL void pn_die_wait(pn_die *die);
PN_INTERNAL void pn_die_give(pn_die *die);
PN_INTERNAL void pn_die_park(pn_die *die, bool parked);

/* Make sure the die has working memory for this plan.  pn_die_grow: the caller has the die. */
PN_INTERNAL pn_status pn_die_reserve(pn_die *die, const pn_plan *plan, pn_err *err);
PN_INTERNAL pn_status pn_die_grow(pn_die *die, const pn_plan *plan, pn_err *err);

/* Working memory of exactly so many bytes instead of what there is; the new one is taken first.  False and nothing
 * changed: there is no memory for it. */
PN_INTERNAL bool pn_die_resize(pn_die *die, uint64_t bytes);

/* Where pages and working memory come from. */
PN_INTERNAL pn_mem *pn_die_mem(pn_die *die);

/* Bytes that are free there for anybody; UINT64_MAX: it has no memory of its own. */
PN_INTERNAL uint64_t pn_die_free_bytes(pn_die *die);

/* A model's weights come, and go.  PN_E_BUDGET: there is no room. */
PN_INTERNAL pn_status pn_die_upload(pn_die *die, uint64_t bytes, pn_err *err);
PN_INTERNAL void pn_die_unload(pn_die *die, uint64_t bytes);

/* The clock: work was handed over, work is gone, a step of `rows` rows was computed on dies[0..n). */
PN_INTERNAL void pn_die_arrive(pn_die *const *dies, uint32_t n);
PN_INTERNAL void pn_die_leave(pn_die *const *dies, uint32_t n);
/* Returns the seconds it took by the clock; 0: there is none. */
PN_INTERNAL double pn_die_computed(pn_die *const *dies, uint32_t n, const double *share, uint32_t rows);

#endif /* PN_DIE_H */
