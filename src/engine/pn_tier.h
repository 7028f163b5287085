/*
 * pn_tier.h - the prefix cache and the disk below it: what goes down, what comes up.
 *
 *     insert ── new pages ──> queue ── I/O thread ──> files            pn_tier_save, under the cache's lock
 *     adopt  <── tree <── pages <── files                              pn_tier_restore, no lock while it reads
 *
 * Down goes what the tree has and the disk has not, where reading it would be worth its while.  Up comes what a prompt can
 * go on from and the tree has not, on the thread that opens the generation: a caller's, or a server's lane, never the
 * one that steps, unless somebody begins a generation from a callback.  So nobody's tokens wait for the disk.
 *
 * What comes up needs memory that the turn would have reserved otherwise, so it may take what is available, but
 * no more, and evicts only what the cache would evict for any insertion.
 */
#ifndef PN_TIER_H
#define PN_TIER_H

#include "engine/pn_engine_int.h"
#include "store/pn_cold.h"

PN_INTERNAL pn_status pn_tier_open(pn_engine *e, const pn_engine_params *p, pn_err *err);
/* Before the dies go: what is queued has references on their pages. */
PN_INTERNAL void pn_tier_close(pn_engine *e);

/* A model is loaded: whose its pages are.  Without that, nothing of it is saved. */
PN_INTERNAL void pn_tier_know(pn_model *m);

/* A prompt of n tokens was computed in so many seconds. */
PN_INTERNAL void pn_tier_note_prefill(pn_model *m, size_t n, double seconds);

/* The tree is there and has the key's space.  Nothing, where there is no disk. */
PN_INTERNAL void pn_tier_restore(pn_session *s, const pn_prefix_key *k);
PN_INTERNAL void pn_tier_save(pn_session *s, const pn_prefix_key *k);         /* the cache's lock is held */

/* Rung 9: pages that are on disk and that nobody uses. */
PN_INTERNAL uint64_t pn_tier_gain(void *engine, uint32_t resource);
PN_INTERNAL pn_rung_state pn_tier_apply(void *engine, uint32_t resource, uint64_t want, double deadline, uint64_t *freed);

/* Which model this is, for whatever leaves the process. */
PN_INTERNAL pn_status pn_model_identity(const pn_model *m, pn_identity *out, pn_err *err);

#endif /* PN_TIER_H */
