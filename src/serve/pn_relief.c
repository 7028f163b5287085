/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_relief.c - models that nobody uses give way: to memory pressure, and to a model that is being loaded.
 *
 * The server is a rung of the engine's ladder (memory sheet 7, rung 14).  The engine asks on its own thread, so what it
 * reads and sets here are two numbers: bytes of models at rest, bytes it wants.  The loop does the rest: the models
 * used longest ago are unloaded until there is enough.  Their names stay: who asks for such a model is told that it
 * is loading, and it is (serve_replica_wake).
 */
#include "serve/pn_server_int.h"

#include <inttypes.h>

enum { RELIEF_RANK = 14, RELIEF_REST_MS = 10000 };     /* nobody has asked for it for so long */

/* A connection with a request takes 17 KiB, with a long one more; some come while we look elsewhere.  Counted by the
 * dozen and a bit, so that what fits does not change with each. */
enum { RELIEF_CONN_BYTES = 32 << 10, RELIEF_CONNS = 16 };

PN_INTERNAL uint64_t serve_replica_bytes(const serve_replica *r)
{
    pn_residency_info i;
    pn_model_residency(r->m, &i);
    uint64_t floor = r->plan.kv_bytes_per_token * r->info.floor_tokens;
    return floor + (i.mode == PN_RESIDENCY_STREAM ? i.pinned_bytes + i.ring_bytes + i.expert_bytes : r->info.weight_bytes);
}

static bool relief_rests(const serve_replica *r, uint64_t ms)
{
    return r->state == SERVE_MODEL_READY && r->m && !r->n_running && !r->model->n_queued && r->model->server->now - r->used_ms >= ms;
}

/* The one used longest ago, of those that have rested so long.  The last one that is ready stays: a server with little
 * memory would do nothing but load. */
static serve_replica *relief_oldest(const pn_server *s, uint64_t ms)
{
    serve_replica *best = NULL;
    uint32_t ready = 0;
    for (serve_model *m = s->models; m; m = m->next)
        for (serve_replica *r = m->replicas; r; r = r->next) {
            ready += r->state == SERVE_MODEL_READY;
            if (relief_rests(r, ms) && (!best || r->used_ms < best->used_ms))
                best = r;
        }
    return ready > 1 ? best : NULL;
}

static uint64_t relief_park(serve_replica *r)
{
    uint64_t bytes = serve_replica_bytes(r);
    serve_logf(r->model->server, PN_LOG_INFO, "model %s: parked, %" PRIu64 " bytes are needed elsewhere", r->model->name, bytes);
    r->parks = true;
    (void)serve_replica_unload(r, NULL);
    return bytes;
}

PN_INTERNAL void serve_relieve(pn_server *s)
{
    uint64_t rest = 0, want = atomic_exchange(&s->relief, 0);
    for (serve_replica *r; want && (r = relief_oldest(s, RELIEF_REST_MS)) != NULL;) {
        uint64_t n = relief_park(r);
        want -= want < n ? want : n;
    }
    for (serve_model *m = s->models; m && relief_oldest(s, 0); m = m->next)
        for (serve_replica *r = m->replicas; r; r = r->next)
            rest += relief_rests(r, 0) ? serve_replica_bytes(r) : 0;
    atomic_store(&s->at_rest, rest);
    pn_mem_headroom(s->e, (uint64_t)(s->n_conns + RELIEF_CONNS / 2 + RELIEF_CONNS) / RELIEF_CONNS * RELIEF_CONNS * RELIEF_CONN_BYTES);
}

/* Is it in the memory that r wants? */
static bool relief_helps(const serve_replica *other, const serve_replica *r)
{
    bool same = r->model->server->n_dies == 1;
    for (uint32_t i = 0; i < other->n_dies; i++)
        for (uint32_t k = 0; k < r->n_dies; k++)
            same = same || other->dies[i] == r->dies[k];
    return same && other != r && relief_rests(other, 0);
}

PN_INTERNAL bool serve_relief_for(serve_replica *r)
{
    serve_replica *oldest = NULL;
    uint64_t sum = 0, need = r->plan.floor_bytes, available = r->plan.available_bytes;
    for (serve_model *m = r->model->server->models; m; m = m->next)
        for (serve_replica *o = m->replicas; o; o = o->next)
            if (relief_helps(o, r)) {
                sum += serve_replica_bytes(o);
                oldest = !oldest || o->used_ms < oldest->used_ms ? o : oldest;
            }
    if (!oldest || need <= available || need - available > sum)     /* nobody goes in vain */
        return false;
    (void)relief_park(oldest);
    return true;
}

/* ------------------------------------------------------------------------------------------
 * The rung: on the engine's thread
 * ------------------------------------------------------------------------------------------ */

static uint64_t relief_gain(void *user) { return atomic_load(&((pn_server *)user)->at_rest); }

static uint64_t relief_apply(void *user, uint64_t want)
{
    pn_server *s = user;
    atomic_store(&s->relief, want);
    serve_wake(s);
    return 0;                   /* it comes when the loop has unloaded them */
}

PN_INTERNAL pn_status serve_relief_open(pn_server *s, pn_err *err)
{
    const pn_mem_rung_params p = {.size = sizeof p, .rank = RELIEF_RANK, .name = "unload_idle", .level = PN_LEVEL_TIGHT, .gain = relief_gain,
                                  .apply = relief_apply, .user = s};
    return pn_mem_rung_add(s->e, &p, err);
}

PN_INTERNAL void serve_relief_close(pn_server *s) { pn_mem_rung_remove(s->e, s); }
