/*
 * pn_fit.h - how are a model's weights to lie, for what there is now?
 *
 * One decision for loading and for planning, so that a plan is what a load does (memory sheet 6.1, 10):
 *
 *     map      all weights and the floor fit into what the host can give without hurting anybody
 *     stream   else; as much pinned as leaves room for a conversation, experts get what is left
 *     refuse   not even the ring, the least of experts and the floor fit
 *
 * Weights that get another type while they are loaded are in memory of their own, or refused.
 *
 * The floor is one conversation of PN_FIT_CTX tokens in steps of PN_FIT_BATCH rows; streaming leaves room for one
 * of PN_FIT_CTX_GOOD in steps as usual where there is that much.
 */
#ifndef PN_FIT_H
#define PN_FIT_H

#include "engine/pn_engine_int.h"

enum { PN_FIT_CTX = 512, PN_FIT_BATCH = 16, PN_FIT_CTX_GOOD = 4096 };

typedef struct pn_fit_params {
    pn_residency residency;     /* what was asked for */
    bool file;                  /* the weights are in a file of this machine */
    uint64_t vocab_bytes;       /* that are still to be taken */
    uint32_t n_threads, kv_type;
    bool exact;
    uint64_t load_bytes;        /* beside the weights while they are loaded, when some are retyped (pn_retype.h); 0: none is */
    pn_stream_params stream;    /* what was asked for; pin_bytes and expert_bytes 0: ours to choose */
} pn_fit_params;

/* Changes p->residency from AUTO to what it comes to, and with it p->stream.  PN_E_BUDGET: it does not fit. */
PN_INTERNAL pn_status pn_fit_choose(pn_engine *e, const pn_desc *d, pn_fit_params *p, pn_err *err);

/* Weights that are streamed: what of them is in memory. */
PN_INTERNAL pn_status pn_fit_stream(const pn_desc *d, const pn_stream_params *sp, bool exact, pn_stream_bytes *out, pn_err *err);

#endif /* PN_FIT_H */
