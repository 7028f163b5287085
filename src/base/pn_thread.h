/*
 * pn_thread.h - threads, locks and the spin-then-park barrier of the CPU team.
 *
 * Two implementations of one header: pn_thread.c (POSIX) and pn_thread_none.c (PN_ENABLE_THREADS=0:
 * one thread, locks that do nothing).  Structs are caller's storage.
 */
#ifndef PN_THREAD_H
#define PN_THREAD_H

#include "base/pn_base.h"

#if PN_ENABLE_THREADS
#include <pthread.h>
typedef struct pn_mutex { pthread_mutex_t m; } pn_mutex;
typedef struct pn_cond { pthread_cond_t c; } pn_cond;
typedef struct pn_thread { pthread_t t; void (*fn)(void *); void *arg; } pn_thread;
typedef struct pn_thread_id { pthread_t t; } pn_thread_id;
#else
typedef struct pn_mutex { int unused; } pn_mutex;
typedef struct pn_cond { int unused; } pn_cond;
typedef struct pn_thread { int unused; } pn_thread;
typedef struct pn_thread_id { int unused; } pn_thread_id;
#endif

PN_INTERNAL void pn_mutex_init(pn_mutex *m);
PN_INTERNAL void pn_mutex_fini(pn_mutex *m);
PN_INTERNAL void pn_mutex_lock(pn_mutex *m);
PN_INTERNAL void pn_mutex_unlock(pn_mutex *m);

PN_INTERNAL void pn_cond_init(pn_cond *c);
PN_INTERNAL void pn_cond_fini(pn_cond *c);
PN_INTERNAL void pn_cond_wait(pn_cond *c, pn_mutex *m);
PN_INTERNAL void pn_cond_wait_for(pn_cond *c, pn_mutex *m, double seconds);    /* or until that long has passed */
PN_INTERNAL void pn_cond_broadcast(pn_cond *c);

/* Run fn(arg) on a new thread.  `t` must stay where it is until joined.  False: the system refused. */
PN_INTERNAL bool pn_thread_start(pn_thread *t, void (*fn)(void *), void *arg);
PN_INTERNAL void pn_thread_join(pn_thread *t);

/* Who is calling? */
PN_INTERNAL pn_thread_id pn_thread_self(void);
PN_INTERNAL bool pn_thread_is_self(pn_thread_id id);

/* Tell the core that we are spinning; offer it to another thread. */
PN_INTERNAL void pn_thread_relax(void);
PN_INTERNAL void pn_thread_yield(void);

#endif /* PN_THREAD_H */
