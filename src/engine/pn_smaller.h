/*
 * pn_smaller.h - keys and values of sessions at rest become smaller, those that several share once for all of them.
 *
 *     A  [0][1][2][3][a][a]        taken: nobody works on A, B
 *     B  [0][1][2][3][b][b][b]     1, 2 and 3 are theirs and the prefix cache's: that lets go of them, and of what is
 *     C  [0][c][c]                 behind them; then each becomes one smaller page of both
 *
 * A page is shared by sessions that began alike, so it is the same entry of all their tables.  Nobody keeps a list of its
 * holders: each of those that rest is counted at the page (pn_kv_rest), and if that makes all there are, nobody else can
 * tell.  So a walk looks at each table a few times, whatever is shared, and a session that works, or whose type somebody
 * chose, keeps what it holds as it is by being one holder too many.
 *
 * The prefix cache cannot keep a page smaller: a hit has the bits of a cold run.  It agrees where nothing hangs on it that
 * stays, and lets go only of what is about to be converted and what follows that.
 *
 * Each session says in its next answer that some of its pages are smaller, for its own table does (pn_kv_smallest).
 *
 * Threads: the ladder's, between steps.  Locks: the model's, within it the cache's, a page at a time.
 */
#ifndef PN_SMALLER_H
#define PN_SMALLER_H

#include "engine/pn_engine_int.h"

/* Pages of all sessions of the model that rest, whose type nobody chose and is larger: at least `want` bytes if there are as
 * many, no further page after `deadline` (pn_os_now), one in any case.  also_recent: the last two, too.  Returns what came
 * back, exactly; _gain: what converting all would give back, pages alone. */
PN_INTERNAL uint64_t pn_smaller_idle(pn_model *m, uint32_t type, bool also_recent, uint64_t want, double deadline);
PN_INTERNAL uint64_t pn_smaller_idle_gain(pn_model *m, uint32_t type, bool also_recent);

#endif /* PN_SMALLER_H */
