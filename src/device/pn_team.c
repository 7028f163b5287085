/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * One generation counter serves both the start of a run and the barrier: whoever waits watches it
 * change.  Waiters spin TEAM_SPINS times (some tens of microseconds), offer their core TEAM_YIELDS
 * times (on a machine with more work than cores the one we wait for may need it), then take the lock
 * and sleep; the one who changes it only takes the lock when somebody sleeps.
 *
 * The sleeper count is raised under the lock before the last look at the generation, and the waker
 * changes the generation before it looks at the count; with sequentially consistent atomics one of
 * them sees the other, so no wake-up is lost.
 */
#include "device/pn_team.h"

#include <stdatomic.h>

#include "base/pn_err.h"
#include "base/pn_thread.h"

enum { TEAM_SPINS = 2000, TEAM_YIELDS = 64 };

typedef struct team_member {
    struct pn_team *team;
    uint32_t index;
    pn_thread thread;
} team_member;

/* A counter that threads wait on. */
typedef struct team_gate {
    atomic_uint generation;
    atomic_uint sleepers;
} team_gate;

struct pn_team {
    pn_mem *mem;
    uint32_t size, wanted;
    team_member *members;           /* [wanted]; 0 is the caller */
    pn_team_fn fn;
    void *arg;
    atomic_bool quit;
    atomic_uint arrived;            /* barrier */
    team_gate start, barrier;
    pn_mutex lock;
    pn_cond wake;
};

static void team_open_gate(pn_team *t, team_gate *g)
{
    atomic_fetch_add(&g->generation, 1);
    if (atomic_load(&g->sleepers)) {
        pn_mutex_lock(&t->lock);
        pn_cond_broadcast(&t->wake);
        pn_mutex_unlock(&t->lock);
    }
}

static void team_wait_gate(pn_team *t, team_gate *g, unsigned seen)
{
    for (int i = 0; i < TEAM_SPINS + TEAM_YIELDS; i++) {
        if (atomic_load_explicit(&g->generation, memory_order_acquire) != seen)
            return;
        if (i < TEAM_SPINS)
            pn_thread_relax();
        else
            pn_thread_yield();
    }
    pn_mutex_lock(&t->lock);
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->generation) == seen)
        pn_cond_wait(&t->wake, &t->lock);
    atomic_fetch_sub(&g->sleepers, 1);
    pn_mutex_unlock(&t->lock);
}

PN_INTERNAL void pn_team_barrier(pn_team *t, void (*last)(void *), void *arg)
{
    if (t->size == 1) {
        if (last)
            last(arg);
        return;
    }
    unsigned seen = atomic_load_explicit(&t->barrier.generation, memory_order_acquire);
    if (atomic_fetch_add(&t->arrived, 1) + 1 == t->size) {
        atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
        if (last)
            last(arg);
        team_open_gate(t, &t->barrier);
    } else
        team_wait_gate(t, &t->barrier, seen);
}

static void team_main(void *arg)
{
    team_member *m = arg;
    pn_team *t = m->team;
    for (unsigned seen = 0;; seen++) {
        team_wait_gate(t, &t->start, seen);
        if (atomic_load(&t->quit))
            return;
        t->fn(t->arg, m->index);
        pn_team_barrier(t, NULL, NULL);
    }
}

PN_INTERNAL pn_status pn_team_new(pn_team **out, pn_mem *mem, uint32_t n, pn_err *err)
{
    n = PN_MAX(n, 1u);
    pn_team *t = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *t);
    team_member *members = pn_mem_calloc(mem, PN_ACCT_MISC, n, sizeof *members);
    if (!t || !members) {
        pn_mem_free(mem, PN_ACCT_MISC, t, sizeof *t);
        pn_mem_free(mem, PN_ACCT_MISC, members, n * sizeof *members);
        return pn_fail_nomem(err, "a thread team", sizeof *t + n * sizeof *members);
    }
    t->mem = mem;
    t->members = members;
    t->wanted = n;
    t->size = 1;
    pn_mutex_init(&t->lock);
    pn_cond_init(&t->wake);
    for (uint32_t i = 1; i < n; i++) {
        members[i] = (team_member){.team = t, .index = i};
        if (!pn_thread_start(&members[i].thread, team_main, &members[i]))
            break;                  /* a smaller team still works */
        t->size = i + 1;
    }
    *out = t;
    return PN_OK;
}

PN_INTERNAL void pn_team_free(pn_team *t)
{
    if (!t)
        return;
    atomic_store(&t->quit, true);
    team_open_gate(t, &t->start);
    for (uint32_t i = 1; i < t->size; i++)
        pn_thread_join(&t->members[i].thread);
    pn_cond_fini(&t->wake);
    pn_mutex_fini(&t->lock);
    pn_mem *mem = t->mem;
    pn_mem_free(mem, PN_ACCT_MISC, t->members, t->wanted * sizeof *t->members);
    pn_mem_free(mem, PN_ACCT_MISC, t, sizeof *t);
}

PN_INTERNAL uint32_t pn_team_size(const pn_team *t) { return t->size; }

PN_INTERNAL void pn_team_run(pn_team *t, pn_team_fn fn, void *arg)
{
    t->fn = fn;
    t->arg = arg;
    if (t->size > 1)
        team_open_gate(t, &t->start);
    fn(arg, 0);
    pn_team_barrier(t, NULL, NULL);
}
