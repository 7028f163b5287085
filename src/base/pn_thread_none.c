/* SPDX-License-Identifier: AGPL-3.0-only */
#include "base/pn_thread.h"

#if !PN_ENABLE_THREADS

PN_INTERNAL void pn_mutex_init(pn_mutex *m) { (void)m; }
PN_INTERNAL void pn_mutex_fini(pn_mutex *m) { (void)m; }
PN_INTERNAL void pn_mutex_lock(pn_mutex *m) { (void)m; }
PN_INTERNAL void pn_mutex_unlock(pn_mutex *m) { (void)m; }
PN_INTERNAL void pn_cond_init(pn_cond *c) { (void)c; }
PN_INTERNAL void pn_cond_fini(pn_cond *c) { (void)c; }
PN_INTERNAL void pn_cond_wait(pn_cond *c, pn_mutex *m) { (void)c, (void)m; }
PN_INTERNAL void pn_cond_wait_for(pn_cond *c, pn_mutex *m, double seconds) { (void)c, (void)m, (void)seconds; }
PN_INTERNAL void pn_cond_broadcast(pn_cond *c) { (void)c; }

PN_INTERNAL bool pn_thread_start(pn_thread *t, void (*fn)(void *), void *arg)
{
    (void)t, (void)fn, (void)arg;
    return false;
}

PN_INTERNAL void pn_thread_join(pn_thread *t) { (void)t; }

PN_INTERNAL pn_thread_id pn_thread_self(void) { return (pn_thread_id){0}; }

PN_INTERNAL bool pn_thread_is_self(pn_thread_id id)
{
    (void)id;
    return true;
}

PN_INTERNAL void pn_thread_relax(void) {}
PN_INTERNAL void pn_thread_yield(void) {}

#endif /* !PN_ENABLE_THREADS */
