/*
 * pn_lane.h - work that must not hold up the I/O thread: a thread that does one task after another.
 *
 * A task is a part of whatever it works for.  It is run on the lane; then `done` is called by the owner, from
 * pn_lane_done(), so that all the rest of the server's data has one thread.  Where the system has no threads
 * tasks are run by pn_lane_done() too.
 */
#ifndef PN_LANE_H
#define PN_LANE_H

#include "base/pn_thread.h"

typedef struct pn_task pn_task;
struct pn_task {
    void (*run)(pn_task *t);    /* on the lane */
    void (*done)(pn_task *t);   /* on the owner's thread; may free or reuse the task */
    pn_task *next;              /* the lane's */
};

typedef struct pn_lane {
    pn_mutex lock;
    pn_cond work;
    pn_thread thread;
    bool threaded, stop;
    pn_task *todo, **todo_end;
    pn_task *finished, **finished_end;
    void (*wake)(void *user);   /* something is finished: call pn_lane_done; any thread */
    void *user;
} pn_lane;

/* threaded false, or no thread to be had: everything happens in pn_lane_done. */
PN_INTERNAL void pn_lane_open(pn_lane *l, bool threaded, void (*wake)(void *user), void *user);
PN_INTERNAL void pn_lane_close(pn_lane *l);            /* waits for the task that runs; the rest is dropped: none is left */
PN_INTERNAL void pn_lane_add(pn_lane *l, pn_task *t);
PN_INTERNAL void pn_lane_done(pn_lane *l);

#endif /* PN_LANE_H */
