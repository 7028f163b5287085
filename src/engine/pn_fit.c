/* SPDX-License-Identifier: AGPL-3.0-only */
#include "engine/pn_fit.h"

#include <inttypes.h>

PN_INTERNAL pn_status pn_fit_stream(const pn_desc *d, const pn_stream_params *sp, bool exact, pn_stream_bytes *out, pn_err *err)
{
    pn_plan plan;
    pn_stream s;
    pn_status st = pn_desc_plan(d, &plan, 1, 1, d->n_ctx_train, exact, err);
    if (st)
        return st;
    st = pn_stream_open(&s, d->mem, d->weights, d->tensors, (uint32_t)d->n_weights, &plan, 1, sp, err);
    pn_plan_free(&plan, d->mem);
    if (st)
        return st;
    *out = pn_stream_needs(&s);
    pn_stream_close(&s);
    return PN_OK;
}

/* Everything but the weights, for one conversation. */
static pn_status fit_rest(const pn_desc *d, const pn_fit_params *p, uint32_t n_ctx, uint32_t n_batch, uint64_t *out, pn_err *err)
{
    pn_session_need n;
    n_ctx = PN_MIN(n_ctx, d->n_ctx_train);
    pn_status st = pn_session_needs(d, n_ctx, PN_MIN(n_batch, n_ctx), p->n_threads, p->kv_type, p->exact, &n, err);
    *out = st ? 0 : d->pinned_bytes + p->vocab_bytes + pn_session_need_sum(&n);
    return st;
}

/* Pinned matrices first, they are read in every step; then experts, whose use has a pattern. */
static pn_status fit_fill(const pn_desc *d, pn_fit_params *p, uint64_t room, pn_err *err)
{
    pn_stream_bytes n;
    pn_stream_params all = p->stream;
    all.pin_bytes = p->stream.pin_bytes ? p->stream.pin_bytes : room;
    pn_status st = pn_fit_stream(d, &all, p->exact, &n, err);
    if (st)
        return st;
    p->stream.pin_bytes = PN_MAX(n.pinned, UINT64_C(1));
    if (n.experts && !p->stream.expert_bytes)
        p->stream.expert_bytes = PN_MAX(pn_sub_sat(room, n.pinned), n.experts_floor);
    return PN_OK;
}

/* The least that streaming takes: a ring as usual, or a smaller one where that does not fit `room` and
 * nobody asked for a size. */
static pn_status fit_ring(const pn_desc *d, pn_fit_params *p, uint64_t room, pn_stream_bytes *out, pn_err *err)
{
    static const pn_stream_params smaller[] = {{.block_bytes = 2 << 20, .depth = 4}, {.block_bytes = 1 << 20, .depth = 4}, {.block_bytes = 1 << 20, .depth = 2}};
    pn_stream_params ring = {.block_bytes = p->stream.block_bytes, .depth = p->stream.depth};
    pn_status st = pn_fit_stream(d, &ring, p->exact, out, err);
    bool ours = !ring.block_bytes && !ring.depth;
    for (size_t i = 0; ours && !st && out->stage + out->experts_floor > room && i < PN_COUNT_OF(smaller); i++) {
        ring = smaller[i];
        st = pn_fit_stream(d, &ring, p->exact, out, err);
    }
    p->stream.block_bytes = ring.block_bytes;
    p->stream.depth = ring.depth;
    return st;
}

/* Retyped weights: they have to fit, with a conversation or with what loading them takes. */
static pn_status fit_anon(pn_engine *e, const pn_desc *d, pn_fit_params *p, pn_err *err)
{
    uint64_t least, room = pn_govern_room(e, 0, true);
    p->residency = PN_RESIDENCY_ANON;
    pn_status st = fit_rest(d, p, PN_FIT_CTX, PN_FIT_BATCH, &least, err);
    uint64_t need = pn_add_sat(d->weight_bytes, PN_MAX(least, p->load_bytes));
    if (!st && need > room)
        st = pn_fail(err, PN_E_BUDGET, "weights of %" PRIu64 " bytes in the types they are to have do not fit: with a conversation of %d tokens they take %"
                     PRIu64 ", %" PRIu64 " are available", d->weight_bytes, PN_FIT_CTX, need, room);
    return st;
}

PN_INTERNAL pn_status pn_fit_choose(pn_engine *e, const pn_desc *d, pn_fit_params *p, pn_err *err)
{
    uint64_t host = pn_govern_room_mapped(e), room = pn_govern_room(e, 0, false), alone = pn_govern_room(e, 0, true), least, good;
    pn_stream_bytes bare;
    if (p->load_bytes)
        return fit_anon(e, d, p, err);
    if (p->residency != PN_RESIDENCY_AUTO)
        return PN_OK;
    p->residency = p->file ? PN_RESIDENCY_MAP : PN_RESIDENCY_ANON;
    pn_status st = fit_rest(d, p, PN_FIT_CTX, PN_FIT_BATCH, &least, err);
    if (st || !p->file || pn_add_sat(d->weight_bytes, least) <= host)
        return st;
    st = fit_ring(d, p, pn_sub_sat(alone, least), &bare, err);
    if (!st)
        st = fit_rest(d, p, PN_FIT_CTX_GOOD, ENGINE_DEFAULT_BATCH, &good, err);
    if (st)
        return st;
    uint64_t ring = bare.stage + bare.experts_floor;
    p->residency = PN_RESIDENCY_STREAM;
    if (ring + least > alone)
        return pn_fail(err, PN_E_BUDGET, "weights of %" PRIu64 " bytes do not fit, and to stream them takes %" PRIu64 " (%" PRIu64
                       " of it a conversation of %d tokens); %" PRIu64 " are available", d->weight_bytes, ring + least, least, PN_FIT_CTX, alone);
    return fit_fill(d, p, pn_sub_sat(room, bare.stage + (good + ring <= room ? good : least)), err);
}
