/*
 * pn_gate.h - may this model's keys and values be made smaller?
 *
 * A type that costs one model nothing ruins another, so nobody knows before having looked.  The gate lets the
 * model read a fixed text twice, once with F16 and once with the type, and compares what it expects next at each
 * position of the last half: mean Kullback-Leibler divergence, and how often the likeliest token is the same.
 *
 * Probing is pn_model_kv_gate() of pantheon.h, which takes seconds and memory like a session; what it found stays
 * with the model.  The calls here only look that up, and a type that nobody has probed has not passed.
 *
 * Threads: any; results are under the model's lock.
 */
#ifndef PN_GATE_H
#define PN_GATE_H

#include "engine/pn_engine_int.h"

/* What was found; false: not probed yet. */
PN_INTERNAL bool pn_gate_known(pn_model *m, uint32_t type, const pn_kv_gate_params *limits, pn_kv_gate *out);

/* The smallest type that has passed, not smaller than `least`; F16 where none has.  Types are tried from large to
 * small and each for itself: q4_1 may pass where q5_0 does not. */
PN_INTERNAL uint32_t pn_gate_smallest(pn_model *m, uint32_t least, const pn_kv_gate_params *limits);

/* The probe's text in pieces; NULL behind the last. */
PN_INTERNAL const char *pn_gate_text(size_t i);

#endif /* PN_GATE_H */
