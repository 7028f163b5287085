/*
 * pn_team.h - a few threads that run one function together.
 *
 * pn_team_run() runs fn(arg, thread) on every member, the caller being member 0, and returns when
 * all have returned.  Members spin briefly between runs, then park.  Inside fn, pn_team_barrier()
 * waits for all members; it spins first because the steps between barriers take microseconds.
 *
 * With PN_ENABLE_THREADS=0, or when the system refuses threads, the team is just the caller.
 */
#ifndef PN_TEAM_H
#define PN_TEAM_H

#include "base/pn_mem.h"

typedef struct pn_team pn_team;
typedef void (*pn_team_fn)(void *arg, uint32_t thread);

/* n: members, the caller included; fewer may start (pn_team_size). */
PN_INTERNAL pn_status pn_team_new(pn_team **out, pn_mem *mem, uint32_t n, pn_err *err);
PN_INTERNAL void pn_team_free(pn_team *t);
PN_INTERNAL uint32_t pn_team_size(const pn_team *t);

PN_INTERNAL void pn_team_run(pn_team *t, pn_team_fn fn, void *arg);

/* Only inside fn.  The last member to arrive runs last(arg) (may be NULL) before anybody leaves. */
PN_INTERNAL void pn_team_barrier(pn_team *t, void (*last)(void *), void *arg);

#endif /* PN_TEAM_H */
