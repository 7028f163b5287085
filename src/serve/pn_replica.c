/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_replica.c - which replica of a model answers a request.
 *
 * Where its prefix is, then the least busy one.  Exact would be to ask each prefix cache for the prompt's tokens, but
 * the prompt is written and cut into tokens by the replica that was chosen.  So, as the router does for processes
 * (pn_affinity.h), a table of a fixed size remembers which replica has seen which session, and which beginning of
 * messages:
 *
 *     session, or all messages of an earlier request     that replica, even if the request has to wait for a place:
 *                                                        computing a conversation again costs more
 *     the first KiBs of the messages                     a replica that saw them, if it has a place and is not much
 *                                                        busier than the others
 *     else                                               the fewest requests under way, then the clock that is least
 *                                                        far, then the fewest requests ever
 *
 * On the I/O thread, but for serve_ask_keys.
 */
#include "serve/pn_server_int.h"

#include "base/pn_hash.h"

enum { REPLICA_SEEN = 1 << 14, REPLICA_SLACK = 4 };

PN_INTERNAL pn_status serve_seen_init(pn_server *s, pn_err *err)
{
    s->n_dies = pn_engine_die_count(s->e);
    if (s->n_dies < 2)
        return PN_OK;
    char id[17];
    serve_random_id(id, sizeof id - 1);
    s->seed = pn_hash(id, sizeof id - 1, 3);
    pn_status st = pn_affinity_init(&s->seen, &s->mem, REPLICA_SEEN);
    return st ? pn_fail_nomem(err, "the table of prefixes", REPLICA_SEEN * sizeof *s->seen.table) : PN_OK;
}

PN_INTERNAL void serve_ask_keys(serve_ask *a)
{
    pn_affinity_fields f;
    pn_str name;
    pn_bytes session = {NULL, 0};
    if (a->server->n_dies < 2)
        return;
    pn_affinity_scan(pn_str_cstr(&a->body), a->body.len, &f);
    pn_str_init(&name, &a->server->mem, PN_ACCT_CONN);
    if (pn_affinity_text(&a->server->mem, f.session_id, &name) && name.len)
        session = (pn_bytes){name.data, name.len};
    else if (a->session.len)
        session = (pn_bytes){a->session.data, a->session.len};
    else if (pn_affinity_text(&a->server->mem, f.prompt_cache_key, &name) && name.len)
        session = (pn_bytes){name.data, name.len};
    pn_affinity_read(&a->keys, &f, f.model, session, a->server->seed);
    pn_str_fini(&name);
}

/* ------------------------------------------------------------------------------------------
 * Busy
 * ------------------------------------------------------------------------------------------ */

static double replica_clock(const serve_replica *r)
{
    pn_die_info d;
    return pn_engine_die(r->model->server->e, r->dies[0], &d) == PN_OK ? d.clock_seconds : 0;
}

static bool replica_less_busy(const serve_replica *a, const serve_replica *b)
{
    if (a->n_running != b->n_running)
        return a->n_running < b->n_running;
    double ca = replica_clock(a), cb = replica_clock(b);
    return ca != cb ? ca < cb : a->n_served < b->n_served;
}

/* Those that answer: the ready ones; when there are none, those that drain. */
static bool replica_answers(const serve_replica *r)
{
    serve_state best = serve_model_best(r->model)->state;
    return r->state == best && (best == SERVE_MODEL_READY || best == SERVE_DRAINING);
}

static bool replica_has_place(const serve_replica *r) { return r->n_running < serve_replica_slots(r); }

PN_INTERNAL bool serve_model_has_place(const serve_model *m)
{
    const serve_replica *r = m->replicas;
    while (r && !(replica_answers(r) && replica_has_place(r)))
        r = r->next;
    return r != NULL;
}

/* The least busy of those that answer and are in the set; 0: in any. */
static serve_replica *replica_least(const serve_model *m, uint64_t set)
{
    serve_replica *best = NULL;
    for (serve_replica *r = m->replicas; r; r = r->next)
        if (replica_answers(r) && (!set || (r->bit & set)) && (!best || replica_less_busy(r, best)))
            best = r;
    return best;
}

PN_INTERNAL serve_replica *serve_replica_any(const serve_model *m) { return replica_least(m, 0); }

/* ------------------------------------------------------------------------------------------
 * The choice
 * ------------------------------------------------------------------------------------------ */

/* Not one of the marks at a number of bytes: the end of a message. */
static bool replica_is_turn(const pn_affinity_keys *k, uint64_t mark)
{
    for (uint32_t i = 0; i + 1 < k->n_keep; i++)
        if (k->keep[i] == mark)
            return false;
    return true;
}

PN_INTERNAL serve_replica *serve_replica_for(const serve_ask *a)
{
    pn_affinity *seen = &a->server->seen;
    const pn_affinity_keys *k = &a->keys;
    serve_replica *least = replica_least(a->model, 0), *r = NULL;
    if (!least)
        return NULL;
    uint64_t known = least->bit && k->session ? pn_affinity_find(seen, k->session) : 0;
    if (known && (r = replica_least(a->model, known)) != NULL)
        return replica_has_place(r) ? r : NULL;
    for (uint32_t i = 0; least->bit && i < k->n_marks && !r; i++) {
        known = pn_affinity_find(seen, k->mark[i]);
        r = known ? replica_least(a->model, known) : NULL;
        if (r && replica_is_turn(k, k->mark[i]))
            return replica_has_place(r) ? r : NULL;
    }
    if (r && replica_has_place(r) && r->n_running <= 2 * least->n_running + REPLICA_SLACK)
        return r;
    return replica_has_place(least) ? least : NULL;
}

PN_INTERNAL void serve_replica_learn(const serve_ask *a)
{
    pn_server *s = a->server;
    if (!a->at->bit)
        return;
    if (a->keys.session)
        pn_affinity_set(&s->seen, a->keys.session, a->at->bit);
    for (uint32_t i = 0; i < a->keys.n_keep; i++)
        pn_affinity_add(&s->seen, a->keys.keep[i], a->at->bit);
}
