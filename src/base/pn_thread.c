/* SPDX-License-Identifier: AGPL-3.0-only */
#include "base/pn_thread.h"

#if PN_ENABLE_THREADS

#include <sched.h>
#include <time.h>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

PN_INTERNAL void pn_mutex_init(pn_mutex *m) { pthread_mutex_init(&m->m, NULL); }
PN_INTERNAL void pn_mutex_fini(pn_mutex *m) { pthread_mutex_destroy(&m->m); }
PN_INTERNAL void pn_mutex_lock(pn_mutex *m) { pthread_mutex_lock(&m->m); }
PN_INTERNAL void pn_mutex_unlock(pn_mutex *m) { pthread_mutex_unlock(&m->m); }

PN_INTERNAL void pn_cond_init(pn_cond *c) { pthread_cond_init(&c->c, NULL); }
PN_INTERNAL void pn_cond_fini(pn_cond *c) { pthread_cond_destroy(&c->c); }
PN_INTERNAL void pn_cond_wait(pn_cond *c, pn_mutex *m) { pthread_cond_wait(&c->c, &m->m); }

PN_INTERNAL void pn_cond_wait_for(pn_cond *c, pn_mutex *m, double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);      /* macOS lets a condition wait by no other clock */
    double nsec = (double)t.tv_nsec + seconds * 1e9;
    t.tv_sec += (time_t)(nsec / 1e9);
    t.tv_nsec = (long)(nsec - (double)(time_t)(nsec / 1e9) * 1e9);
    pthread_cond_timedwait(&c->c, &m->m, &t);
}

PN_INTERNAL void pn_cond_broadcast(pn_cond *c) { pthread_cond_broadcast(&c->c); }

static void *thread_main(void *arg)
{
    pn_thread *t = arg;
    t->fn(t->arg);
    return NULL;
}

PN_INTERNAL bool pn_thread_start(pn_thread *t, void (*fn)(void *), void *arg)
{
    t->fn = fn;
    t->arg = arg;
    return pthread_create(&t->t, NULL, thread_main, t) == 0;
}

PN_INTERNAL void pn_thread_join(pn_thread *t) { pthread_join(t->t, NULL); }

PN_INTERNAL pn_thread_id pn_thread_self(void) { return (pn_thread_id){pthread_self()}; }
PN_INTERNAL bool pn_thread_is_self(pn_thread_id id) { return pthread_equal(id.t, pthread_self()) != 0; }

PN_INTERNAL void pn_thread_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

PN_INTERNAL void pn_thread_yield(void) { sched_yield(); }

#endif /* PN_ENABLE_THREADS */
