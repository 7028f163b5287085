/*
 * pn_park.h - a running sequence steps aside: its keys and values, and its recurrent state, on disk, its memory back.
 *
 *     running ──park──> away ───────> going ───────> there ──unpark──> back ───────> running
 *        ^               │ pieces       │ pages                          │ pieces
 *        └── stop ───────┘              └── stop ──> there <── stop ─────┘         drop, from anywhere: empty
 *
 * Disks take their time, and the thread that does this is the one that steps.  So each call does a slice, between steps:
 * one unit, and others until a deadline.  A unit is a piece of the file, written (away) or read (back), or a page given
 * back (going).  Nothing is given back before all is written; all memory is taken before anything is read.
 *
 * All pages go: those that are its own, the partly filled last one, and what it shares, since after a prompt nearly
 * everything is shared with the prefix cache and only without its holder can that give it up.  The reserve that the turn has
 * not used goes as well.  What is in memory stays as it was: tokens, logits, sampler, grammar, stop strings.  So the
 * sequence goes on with the same bits.
 *
 * The file is in the session directory, without a name: whatever happens to the program, nothing is left.  What it
 * holds is known here, with a check sum for each page; nothing of the file is believed.
 *
 * From the first slice on nothing may compute in the session, share from it, convert its pages or truncate it; freeing it
 * is fine.
 *
 * Threads: the session's owner; nobody else is in it (pn_session_enter).  The caller holds no lock.
 */
#ifndef PN_PARK_H
#define PN_PARK_H

#include "engine/pn_engine_int.h"

typedef enum pn_park_stage { PN_PARK_NONE = 0, PN_PARK_AWAY, PN_PARK_GOING, PN_PARK_THERE, PN_PARK_BACK } pn_park_stage;

PN_INTERNAL pn_park_stage pn_session_park_stage(const pn_session *s);

/* A slice, until `deadline` (pn_os_now; 0: to the end), towards `there`; what was on its way back is given back at once.
 * PN_E_UNSUPPORTED: no session directory, or a session that was opened whole.  On failure nothing has changed.
 * freed: bytes that came back, as the ledger shows them, are added; may be NULL. */
PN_INTERNAL pn_status pn_session_park(pn_session *s, double deadline, uint64_t *freed, pn_err *err);

/* A slice in the other direction; what was not all written yet is where it was at once.  PN_E_BUDGET, PN_E_NOMEM: there
 * is no room, it stays parked.  PN_E_IO: the pages are lost; the session is empty, and who worked on it has to fail. */
PN_INTERNAL pn_status pn_session_unpark(pn_session *s, double deadline, pn_err *err);

/* Nobody goes on with it: parked or not, whichever takes no disk. */
PN_INTERNAL void pn_session_park_stop(pn_session *s);

/* Give up what is on disk; the session is empty then.  Not parked: a no-op. */
PN_INTERNAL void pn_session_park_drop(pn_session *s);

/* What unparking takes at most. */
PN_INTERNAL uint64_t pn_session_parked_bytes(const pn_session *s);

#endif /* PN_PARK_H */
