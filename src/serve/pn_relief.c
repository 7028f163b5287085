/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_relief.c - models that nobody uses give way: to memory pressure, and to a model that is being loaded.
 *
 * The server is a rung of the engine's ladder (memory sheet 7, rung 14).  The engine asks on its own thread, so what it
 * reads and sets here are two numbers: bytes of models at rest, bytes it wants.  The loop does the rest: the models
 * used longest ago are unloaded until there is enough.  Their names stay: who asks for such a model is told that it
 * is loading, and it is (serve_replica_wake).
 *
 * A model counts with what it gives back of what is short: of a limit only bytes of our own, for mapped weights are page
 * cache, and so for a load, whose sums have page cache as free.  Of a machine's memory under pressure the page cache that
 * decoding needs, too; of a die's own the weights.
 */
#include "serve/pn_server_int.h"

#include <inttypes.h>

enum { RELIEF_RANK = 14, RELIEF_REST_MS = 10000 };     /* nobody has asked for it for so long */

/* A connection with a request takes 17 KiB, with a long one more; some come while we look elsewhere.  Counted by the
 * dozen and a bit, so that what fits does not change with each. */
enum { RELIEF_CONN_BYTES = 32 << 10, RELIEF_CONNS = 16 };

/* What is there once and for all, in memory of ours: [0], and page cache: [1]. */
static void relief_bytes(const serve_replica *r, uint64_t out[2])
{
    pn_residency_info i;
    pn_model_residency(r->m, &i);
    out[0] = r->plan.vocab_bytes + r->plan.kv_bytes_per_token * r->info.floor_tokens + i.pinned_bytes - PN_MIN(i.lent_bytes, i.pinned_bytes) + i.ring_bytes + i.expert_bytes +
             (i.mode == PN_RESIDENCY_ANON ? r->info.weight_bytes : 0);
    out[1] = i.mapped_bytes;
}

PN_INTERNAL uint64_t serve_replica_bytes(const serve_replica *r)
{
    uint64_t bytes[2];
    relief_bytes(r, bytes);
    return bytes[0] + bytes[1];
}

/* A limit on our own bytes is what is short, before the machine's memory. */
static bool relief_limited(pn_engine *e)
{
    pn_mem_info mem;
    pn_mem_state host;
    pn_engine_memory(e, &mem);
    return mem.limit && pn_mem_get(e, 0, &host) == PN_OK && mem.limit - PN_MIN(mem.limit, mem.total_used) + host.lent <= host.soft;
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

static void relief_park(serve_replica *r)
{
    serve_logf(r->model->server, PN_LOG_INFO, "model %s: parked, %" PRIu64 " bytes are needed elsewhere", r->model->name, serve_replica_bytes(r));
    r->parks = true;
    (void)serve_replica_unload(r, NULL);
}

PN_INTERNAL void serve_relieve(pn_server *s)
{
    uint64_t rest[2] = {0, 0}, bytes[2], want = atomic_exchange(&s->relief, 0);
    bool limited = want && relief_limited(s->e);
    for (serve_replica *r; want && (r = relief_oldest(s, RELIEF_REST_MS)) != NULL;) {
        relief_bytes(r, bytes);
        uint64_t n = bytes[0] + (limited ? 0 : bytes[1]);
        relief_park(r);
        want -= PN_MIN(want, n);
    }
    for (serve_model *m = s->models; m && relief_oldest(s, 0); m = m->next)
        for (serve_replica *r = m->replicas; r; r = r->next)
            if (relief_rests(r, 0)) {
                relief_bytes(r, bytes);
                rest[0] += bytes[0];
                rest[1] += bytes[1];
            }
    for (int i = 0; i < 2; i++)
        atomic_store(&s->at_rest[i], rest[i]);
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

/* What of it comes back for r. */
static uint64_t relief_gives(const serve_replica *other, const serve_replica *r)
{
    uint64_t bytes[2];
    pn_die_info die;
    bool own = pn_engine_die(r->model->server->e, r->dies[0], &die) == PN_OK && strcmp(die.kind, "cpu") != 0;
    relief_bytes(other, bytes);
    return bytes[0] + (own ? other->info.weight_bytes : 0);
}

PN_INTERNAL bool serve_relief_for(serve_replica *r)
{
    serve_replica *oldest = NULL;
    uint64_t sum = 0, need = r->plan.floor_bytes, available = r->plan.available_bytes;
    for (serve_model *m = r->model->server->models; m; m = m->next)
        for (serve_replica *o = m->replicas; o; o = o->next)
            if (relief_helps(o, r)) {
                sum += relief_gives(o, r);
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

static uint64_t relief_gain(void *user)
{
    pn_server *s = user;
    return atomic_load(&s->at_rest[0]) + (relief_limited(s->e) ? 0 : atomic_load(&s->at_rest[1]));
}

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
