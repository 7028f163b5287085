/*
 * pn_rungs.h - the engine's own rungs, by chapter.
 */
#ifndef PN_RUNGS_H
#define PN_RUNGS_H

#include "engine/pn_engine_int.h"

enum { PN_RUNG_ASIDE = 15 };    /* one at a time */

/* All of them, once, when the engine is opened. */
PN_INTERNAL void pn_rungs_add(pn_engine *e);

PN_INTERNAL void pn_rungs_register(pn_engine *e, const pn_rung *rungs, size_t n);       /* user becomes e */
/* The dies whose memory is on a resource, one after the other, from NULL to NULL. */
PN_INTERNAL pn_die *pn_rungs_die(pn_engine *e, uint32_t resource, pn_die *before);

PN_INTERNAL void pn_rungs_add_kv(pn_engine *e);
PN_INTERNAL void pn_rungs_add_weights(pn_engine *e);

/* The type of keys and values for sequences of m that begin at this step of the ladder (pn_rungs_kv.c). */
PN_INTERNAL uint32_t pn_rungs_kv_type(pn_model *m, uint32_t step);

/* Probe one type on one model that has not been probed, unless there is news (pn_sched_news) meanwhile. */
PN_INTERNAL void pn_rungs_probe(pn_engine *e, uint64_t news);

#endif /* PN_RUNGS_H */
