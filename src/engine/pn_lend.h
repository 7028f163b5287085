/*
 * pn_lend.h - memory that nobody needs just now, lent to weights that are streamed: what is pinned is not read again.
 *
 *     pinned = kept + lent
 *
 * Kept is what the plan gave them, or what the ladder has left of it.  Lent is as much more as leaves what WATCH begins at, and a
 * tenth: a neighbour who grows between two readings finds what he may at the level OK.  It counts as available wherever somebody asks
 * what there is (levels, turns, loads), as page cache does; and who asks for memory gets it before the caches give anything:
 * whoever takes some of it first calls pn_lend_back().
 *
 *     the level is OK, ten seconds after the last was given back      more is lent
 *     less is left than WATCH begins at                               given back until it is 1.1 times that
 *     any other level                                                 all is given back
 *
 * Threads.  pn_lend_keep: who is on the ladder.  pn_lend_back: any, without a lock; patient, it waits for a step under way.
 */
#ifndef PN_LEND_H
#define PN_LEND_H

#include "engine/pn_engine_int.h"

/* The model has been loaded, nobody knows it yet: what is free beside a first conversation is lent, and read. */
PN_INTERNAL pn_status pn_lend_open(pn_model *m, pn_err *err);

/* After weights of m were pinned or let go: how much of them is lent.  Whoever calls it has the model's dies. */
PN_INTERNAL void pn_lend_note(pn_model *m);

/* The model lends no more, for good. */
PN_INTERNAL void pn_lend_close(pn_model *m);

/* Of m, at least `want` bytes if there are as many, no further piece after `deadline` (pn_os_now() seconds); with the list of
 * models held.  Returns bytes. */
PN_INTERNAL uint64_t pn_lend_shrink(pn_model *m, uint64_t want, double deadline);

/* At least `want` bytes (0: none), if as many are lent; not patient: and as nobody has the dies.  Returns bytes. */
PN_INTERNAL uint64_t pn_lend_back(pn_engine *e, uint64_t want, bool patient);

/* Some is given back, or more is lent, until `deadline`.  now: the governor's clock.  fresh: memory has been read just now; later
 * nobody can tell what of the pinned weights that reading did not show.  True: there is more to give back. */
PN_INTERNAL bool pn_lend_keep(pn_engine *e, double now, bool fresh, double deadline);

#endif /* PN_LEND_H */
