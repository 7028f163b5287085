/*
 * pn_sched.h - many generations at once: which rows run in the next step.  One scheduler a die.
 *
 *     requests   A: one row (its last token)   B: one row   C: 200 rows of its prompt to go
 *     step       [A][B][C C C ... C]           one plan, one pass over the weights for all of them
 *
 * A step takes a row of every generation that decodes and fills up with prompts, which share the rows that
 * are left, so that a short one need not wait for a long one.  While somebody decodes, prompts get at most
 * SCHED_CHUNK rows a step: a token is never later by more than one such chunk.  A step is of one model;
 * models with work take turns by the time they have had.
 *
 * Logits do not depend on what else is in a step (promise 4), so neither do answers.
 *
 * A step that runs out of time stays open (the exec and the die with it) until the next call.  Who needs
 * the die meanwhile finishes the step first (pn_sched_settle) and leaves its results for later.
 *
 * Several dies.  pn_engine_step begins a step on every die that is free and has work, then goes round the open ones,
 * a slice each, and hands out the results of each as it finishes.  It is inside a scheduler (`entered`) for one
 * slice; in between others may look at it, take jobs out, or finish its step.  A model that is split over two dies
 * is its first die's; its steps have both dies from their beginning to their end, one exec after the other.
 *
 * Threads: requests may be made, cancelled and removed from any thread.  Steps are driven by one thread at a
 * time; callbacks are called on it.
 */
#ifndef PN_SCHED_H
#define PN_SCHED_H

#include "engine/pn_generate.h"

enum { SCHED_CHUNK = 64, SCHED_RUNS = 64, SCHED_SHARE = 16 };      /* SHARE: fewest rows worth a run of a prompt */

typedef enum sched_held { SCHED_PAUSED = 1, SCHED_PARKED = 2 } sched_held;     /* by its owner, by the ladder */

/* What a request is for; the scheduler knows no more of it. */
typedef struct pn_job {
    pn_gen gen;
    pn_session *s;
    void (*ended)(struct pn_job *j, pn_status st);  /* on the stepping thread: closes gen */
    void (*dispose)(struct pn_job *j);              /* and frees the job, whose owner has left it */
    pn_err err;                 /* of this job alone */
    struct pn_job *next;        /* in its model's queue */
    bool listed, begun;         /* begun: its turn has come (pn_model_caps.concurrent), it is in queue.work */
    atomic_uchar held;          /* sched_held: in no step that begins from now on; then not begun.  Set with the lock held */
    double began_at, parked_at; /* when its turn came; when the ladder put it aside */
    uint32_t peers;             /* of the same model and client, those that are under way */
    bool left;                  /* removed by its owner from within a callback */
    bool leaving;               /* its owner waits in pn_sched_remove: on_done is not called */
    atomic_bool over;           /* ended, and the scheduler knows it no more */
    uint32_t rows;              /* in the step that is open */
} pn_job;

typedef struct pn_sched {
    pn_die *die;                /* whose it is */
    pn_mutex lock;              /* the queues and the flags */
    pn_cond settled;            /* settling, entered or a job is over */
    pn_model *models;           /* that have jobs which are not over: pn_model.queue */
    uint32_t n_jobs;
    const pn_job *telling;      /* its on_done is being called; perhaps freed already, to compare with alone */
    bool entered;               /* the stepping thread is at work here */
    bool settling;              /* a thread is in pn_sched_settle */
    atomic_bool cancelled;      /* since the scheduler last looked, some session was */

    /* the step; whose thread has entered or settles.  (First what keeps its flags out of the word of those above:
     * compilers read neighbours at once, and the thread sanitizer sees it.) */
    pn_err err;
    pn_status st;               /* of the finished step */
    bool open, computed;        /* submitted; finished, but its results not looked at */
    pn_model *model;
    const pn_cached_plan *plan;
    uint32_t part;              /* which of the model's dies is at work */
    pn_exec *exec;
    pn_step step;
    pn_job *in[SCHED_RUNS];     /* NULL: removed meanwhile */
    bool wanted[SCHED_RUNS];    /* the run's last row has logits */
    pn_run runs[SCHED_RUNS];
    uint32_t n_runs, n_rows, n_outs;
    pn_token *tokens;           /* [cap_rows] owned */
    uint32_t *out_rows;         /* [cap_runs] owned */
    float *logits;              /* [cap_logits] owned: rows of n_vocab */
    size_t cap_rows, cap_runs, cap_logits;
    double began;
} pn_sched;

/* Bytes that steps of so many sessions at once take beside those of each session. */
PN_INTERNAL uint64_t pn_sched_bytes(uint64_t n_sessions, uint32_t n_batch, uint32_t n_vocab);

/* Bytes of buffers for steps of several, while nobody needs them; drop: given back. */
PN_INTERNAL uint64_t pn_sched_idle_bytes(pn_sched *q, bool drop);

/* For every request that is not over and in no step: nobody else touches its session meanwhile.  fn is called with the
 * scheduler's lock held and takes only what is below it.  False: another thread steps just now. */
PN_INTERNAL bool pn_sched_each(pn_engine *e, void (*fn)(void *user, pn_job *j), void *user);

/* Put the request aside that began last, of at least two that are worked on; its keys and values go to disk.  A slice until
 * `deadline` (pn_os_now; 0: to the end), from the first of which on it waits.  True: it is not there yet.  *freed: more bytes
 * that came back. */
PN_INTERNAL bool pn_sched_park(pn_engine *e, double deadline, uint64_t *freed);

/* Bytes that putting all but one aside would give, at most.  Bytes that the one put aside first wants back; 0: none is. */
PN_INTERNAL uint64_t pn_sched_parkable(pn_engine *e);
PN_INTERNAL uint64_t pn_sched_parked(pn_engine *e);

/* The one put aside first comes back, if there is memory for it, or comes further: a slice.  idle_only: if nothing else is worked
 * on, or it has begun to.  goes_on: pn_sched_park() will be called again, so that one which it has begun with is left.
 * False: nobody did.  govern.returning says whether it has to go on. */
PN_INTERNAL bool pn_sched_resume(pn_engine *e, bool idle_only, bool goes_on, double deadline);

/* Requests that are worked on, of the model with most; *n_ready: that could be. */
PN_INTERNAL uint32_t pn_sched_at_work(pn_sched *q, uint32_t *n_ready);

PN_INTERNAL void pn_sched_init(pn_sched *q, pn_die *die);
PN_INTERNAL void pn_sched_fini(pn_sched *q);       /* nobody steps any more */

/* j->gen is open and wants tokens. */
PN_INTERNAL void pn_sched_add(pn_job *j);

typedef enum pn_sched_left {
    PN_SCHED_REMOVED,           /* j->ended has not been called and will not be */
    PN_SCHED_OVER,              /* it has been, and on_done has returned */
    PN_SCHED_LATER              /* from within a callback: both it and j->dispose will be */
} pn_sched_left;

/* A paused job's place goes to others; it queues again for one when it goes on. */
PN_INTERNAL void pn_sched_pause(pn_job *j, bool paused);

/* Counts what happened that the driver might have to act on. */
PN_INTERNAL uint64_t pn_sched_news(pn_engine *e);

/* There is news for the driver: a session was cancelled, whose job may be paused. */
PN_INTERNAL void pn_sched_wake(pn_engine *e);

/* The owner is through with it.  Waits for the step or the on_done that another thread is working on. */
PN_INTERNAL pn_sched_left pn_sched_remove(pn_job *j);

/* Finish an open step that nobody is working on, so that the die is free. */
PN_INTERNAL void pn_sched_settle(pn_sched *q);

#endif /* PN_SCHED_H */
