/* SPDX-License-Identifier: AGPL-3.0-only */
#include "engine/pn_park.h"

#include "engine/pn_cache.h"
#include "engine/pn_lend.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/pn_os_dir.h"
#include "base/pn_os_direct.h"

enum { PARK_STATE = 0xff, PARK_STATES = 2, PARK_BLOCK = PN_DIRECT_ALIGN, PARK_PIECE = 128 << 10, PARK_ROOM = PARK_PIECE + PARK_BLOCK, PARK_FLUSH = 1 << 20 };

/* A page in the file: whole blocks, one behind the other in this order. */
typedef struct park_page {
    uint64_t bytes;             /* without the zeros up to the next block */
    uint32_t index;             /* in its group's table */
    uint32_t sum;               /* CRC-32C, zeros included */
    uint8_t group, type;        /* PARK_STATE: it is recurrent state, of the layers of part `index`; the last in the file */
} park_page;

typedef struct pn_parked {
    pn_os_direct file;          /* it has no name any more */
    pn_park_stage stage;
    bool in_turn;               /* there: it held a reserve */
    void *room;                 /* owned, [PARK_ROOM], but there */
    uint8_t *piece;             /* in it, aligned */
    uint32_t i, sum;            /* the page under way, and its check sum so far */
    uint64_t done, at;          /* bytes of it; of the file */
    uint32_t n;
    park_page page[];           /* [n] */
} pn_parked;

static size_t park_size(uint32_t n) { return sizeof(pn_parked) + n * sizeof(park_page); }

PN_INTERNAL pn_park_stage pn_session_park_stage(const pn_session *s) { return s->parked ? s->parked->stage : PN_PARK_NONE; }

static bool park_is_over(double deadline) { return deadline > 0 && pn_os_now() >= deadline; }

/* At the beginning of the file, this way. */
static pn_status park_begin(pn_session *s, pn_park_stage stage, pn_err *err)
{
    pn_parked *p = s->parked;
    p->room = pn_mem_alloc(pn_engine_mem(s->model->engine), PN_ACCT_STAGE, PARK_ROOM);
    if (!p->room)
        return pn_fail_nomem(err, "moving keys and values", PARK_ROOM);
    p->piece = (uint8_t *)(uintptr_t)pn_align_up((uintptr_t)p->room, PARK_BLOCK);
    p->stage = stage;
    p->i = p->sum = 0;
    p->done = p->at = 0;
    return PN_OK;
}

static void park_end(pn_session *s)
{
    pn_mem_free(pn_engine_mem(s->model->engine), PN_ACCT_STAGE, s->parked->room, PARK_ROOM);
    s->parked->room = NULL;
}

/* Not parked any more, whatever the session holds. */
static void park_free(pn_session *s)
{
    pn_parked *p = s->parked;
    park_end(s);
    pn_os_direct_close(&p->file);
    pn_mem_free(pn_engine_mem(s->model->engine), PN_ACCT_MISC, p, park_size(p->n));
    s->parked = NULL;
}

/* Every page and the reserve. */
static void park_unload(pn_session *s)
{
    pn_mutex *pages = &pn_session_die(s)->cache.lock;
    pn_mutex_lock(pages);
    pn_kv_unload(&s->kv);
    pn_mutex_unlock(pages);
}

/* All of it is in the file, and nothing else. */
static void park_arrive(pn_session *s)
{
    pn_parked *p = s->parked;
    park_unload(s);
    park_end(s);
    p->stage = PN_PARK_THERE;
    p->in_turn = s->in_turn;
    if (s->in_turn)
        atomic_fetch_sub(&s->model->engine->n_turns, 1u);
    s->in_turn = false;
}

/* The next piece, from memory to the file or the other way. */
static pn_status park_piece(pn_session *s, pn_err *err)
{
    pn_parked *p = s->parked;
    park_page *r = &p->page[p->i];
    bool away = p->stage == PN_PARK_AWAY;
    size_t n = (size_t)PN_MIN(r->bytes - p->done, (uint64_t)PARK_PIECE), whole = (size_t)pn_align_up(n, PARK_BLOCK);
    uint8_t *data = (uint8_t *)(r->group == PARK_STATE ? pn_snap_data(s->kv.state.in, r->index) : s->kv.group[r->group].table[r->index]->data) + p->done;
    if (away) {
        memcpy(p->piece, data, n);
        memset(p->piece + n, 0, whole - n);
    }
    pn_status st = away ? pn_os_direct_write(&p->file, p->at, p->piece, whole, err) : pn_os_direct_read(&p->file, p->at, p->piece, whole, whole, err);
    if (st)
        return st;
    p->sum = pn_crc32c_add(pn_cold_crc(s->model->engine->cold), p->sum, p->piece, whole);
    if (!away)
        memcpy(data, p->piece, n);
    p->at += whole;
    p->done += n;
    if (p->done < r->bytes)
        return PN_OK;
    if (away)
        r->sum = p->sum;
    else if (r->sum != p->sum)
        return pn_fail(err, PN_E_IO, "keys and values that were put away came back damaged");
    else if (r->group != PARK_STATE)
        pn_kv_filled(&s->kv, r->group, r->index);
    p->i++;
    p->sum = 0;
    p->done = 0;
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * Away
 * ------------------------------------------------------------------------------------------ */

/* What there is to move; p NULL: how much. */
static uint32_t park_list(const pn_kv *kv, park_page *out)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < kv->spec->n_groups; g++)
        for (uint32_t i = 0; i < kv->group[g].n_table; i++) {
            const pn_kv_page *p = kv->group[g].table[i];
            if (p && out)
                out[n] = (park_page){.bytes = pn_kv_page_bytes(&kv->spec->group[g], p->k_type, p->v_type), .index = i, .group = (uint8_t)g, .type = p->k_type};
            n += p != NULL;
        }
    for (uint32_t i = 0; kv->state.in && i < PARK_STATES; i++) {
        uint64_t bytes = i ? kv->state.slot_second : kv->state.slot_bytes - kv->state.slot_second;
        if (bytes && out)
            out[n] = (park_page){.bytes = bytes, .index = i, .group = PARK_STATE};
        n += bytes != 0;
    }
    return n;
}

static pn_status park_file(pn_session *s, pn_os_direct *f, pn_err *err)
{
    char path[1100];
    snprintf(path, sizeof path, "%s/%016" PRIx64 ".parked", pn_cold_dir(s->model->engine->cold), pn_os_entropy());
    pn_status st = pn_os_direct_create(f, path, err);
    if (!st && !pn_os_remove(path)) {
        pn_os_direct_close(f);
        st = pn_fail(err, PN_E_IO, "'%s' cannot be used without a name", path);
    }
    return st;
}

static pn_status park_leave(pn_session *s, pn_err *err)
{
    pn_engine *e = s->model->engine;
    uint32_t n = park_list(&s->kv, NULL);
    if (!e->cold || !s->kv.by_turn)
        return pn_fail(err, PN_E_UNSUPPORTED, "%s", e->cold ? "the session has its memory for good" : "there is no directory to park a session in");
    pn_parked *p = s->parked = pn_mem_calloc(pn_engine_mem(e), PN_ACCT_MISC, 1, park_size(n));
    if (!p)
        return pn_fail_nomem(err, "parking a session", park_size(n));
    p->file.fd = -1;
    p->n = park_list(&s->kv, p->page);
    pn_status st = park_file(s, &p->file, err);
    return st ? st : park_begin(s, PN_PARK_AWAY, err);
}

/* A piece of the file; at its end what is still on its way to the disk: it must be there before anything is given back.  Where
 * writing goes through the cache, little is dirty at any time. */
static pn_status park_write(pn_session *s, pn_err *err)
{
    pn_parked *p = s->parked;
    pn_status st = p->i < p->n ? park_piece(s, err) : PN_OK;
    bool end = p->i == p->n;
    if (!st && (end || p->at % PARK_FLUSH == 0))
        st = pn_os_direct_flush(&p->file, err);
    if (!st && end) {
        p->stage = PN_PARK_GOING;
        p->i = 0;
    }
    return st;
}

/* A page; with the last one the rest. */
static void park_give(pn_session *s)
{
    pn_parked *p = s->parked;
    pn_mutex *pages = &pn_session_die(s)->cache.lock;
    if (p->i < p->n && p->page[p->i].group != PARK_STATE) {
        pn_mutex_lock(pages);
        pn_kv_unload_page(&s->kv, p->page[p->i].group, p->page[p->i].index);
        pn_mutex_unlock(pages);
        p->i++;
    }
    if (p->i == p->n || p->page[p->i].group == PARK_STATE)
        park_arrive(s);
}

static void park_give_slice(pn_session *s, double deadline, uint64_t *freed)
{
    pn_engine *e = s->model->engine;
    uint64_t before = atomic_load(&e->ledger.total);
    if (s->parked->stage == PN_PARK_BACK)
        park_arrive(s);
    while (s->parked->stage == PN_PARK_GOING) {
        park_give(s);
        if (park_is_over(deadline))
            break;
    }
    uint64_t after = atomic_load(&e->ledger.total) + (s->parked->stage == PN_PARK_THERE ? PARK_ROOM : 0);
    if (freed)                                  /* the buffer, which is gone now, had come with the parking */
        *freed += pn_sub_sat(before, after);
}

PN_INTERNAL pn_status pn_session_park(pn_session *s, double deadline, uint64_t *freed, pn_err *err)
{
    pn_park_stage stage = pn_session_park_stage(s);
    if (stage == PN_PARK_THERE)
        return pn_fail(err, PN_E_STATE, "the session is parked");
    pn_status st = stage == PN_PARK_NONE ? park_leave(s, err) : PN_OK;
    while (!st && s->parked->stage == PN_PARK_AWAY) {
        st = park_write(s, err);
        if (!st && park_is_over(deadline))
            return PN_OK;
    }
    if (!st)
        park_give_slice(s, deadline, freed);
    else if (s->parked)
        park_free(s);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Back
 * ------------------------------------------------------------------------------------------ */

/* Bytes of pages, and of what the turn may still take, on each of the model's dies. */
static pn_need park_need(const pn_session *s)
{
    const pn_kv *kv = &s->kv;
    pn_need need = {0};
    for (uint32_t i = 0; i < s->parked->n; i++) {
        const park_page *r = &s->parked->page[i];
        if (r->group != PARK_STATE)             /* the reserve has its slot */
            need.die[kv->spec->group[r->group].part] += pn_kv_page_cost(kv->spec, r->group, r->type);
    }
    for (uint32_t i = 0; i < s->model->n_dies; i++)
        need.all += need.die[i] += pn_kv_reserve_bytes(kv, kv->reserved, i);
    return need;
}

PN_INTERNAL uint64_t pn_session_parked_bytes(const pn_session *s) { return pn_session_park_stage(s) == PN_PARK_THERE ? park_need(s).all : 0; }

/* Pages for all of it and the reserve, or nothing. */
static bool park_take(pn_session *s)
{
    bool ok = true;
    for (uint32_t i = 0; i < s->parked->n && ok; i++) {
        const park_page *r = &s->parked->page[i];
        ok = r->group == PARK_STATE ? s->kv.state.in || pn_state_put(&s->kv.state) : pn_kv_put_page(&s->kv, r->group, r->index, r->type) != NULL;
    }
    ok = ok && pn_kv_reserve(&s->kv, s->kv.reserved);
    if (!ok)
        park_unload(s);
    return ok;
}

static bool park_admit_now(pn_session *s, const pn_need *need, pn_lack *lack)
{
    pn_engine *e = s->model->engine;
    *lack = (pn_lack){0};
    pn_mutex_lock(&e->admit_lock);
    bool room = pn_model_room(s->model, atomic_load(&e->n_turns) == 0, need, need, lack);
    bool ok = room && (park_take(s) || (pn_cache_give_all(e, need->all) && park_take(s)));
    s->in_turn = ok && s->parked->in_turn;
    atomic_fetch_add(&e->n_turns, s->in_turn ? 1u : 0u);
    pn_mutex_unlock(&e->admit_lock);
    return ok;
}

static pn_status park_admit(pn_session *s, pn_err *err)
{
    const pn_need need = park_need(s);
    pn_lack lack;
    bool ok;
    do
        ok = park_admit_now(s, &need, &lack);
    while (!ok && lack.lent && pn_lend_back(s->model->engine, lack.lent, true));
    return ok ? PN_OK : pn_fail(err, PN_E_BUDGET, "the session's keys and values need %" PRIu64 " bytes, %" PRIu64 " are available%s", lack.need,
                                lack.available, lack.where);
}

static pn_status park_return(pn_session *s, pn_err *err)
{
    pn_status st = park_begin(s, PN_PARK_BACK, err);
    if (!st)
        st = park_admit(s, err);
    if (st) {
        park_end(s);
        s->parked->stage = PN_PARK_THERE;
    }
    return st;
}

PN_INTERNAL pn_status pn_session_unpark(pn_session *s, double deadline, pn_err *err)
{
    pn_status st = PN_OK;
    if (pn_session_park_stage(s) != PN_PARK_BACK)
        pn_session_park_stop(s);
    if (pn_session_park_stage(s) == PN_PARK_THERE && (st = park_return(s, err)) != PN_OK)
        return st;
    while (!st && s->parked && s->parked->i < s->parked->n) {
        st = park_piece(s, err);
        if (!st && park_is_over(deadline))
            break;
    }
    if (st) {
        pn_session_park_drop(s);
        pn_session_end_turn(s);
        return PN_E_IO;
    }
    if (s->parked && s->parked->i == s->parked->n)
        park_free(s);
    return PN_OK;
}

PN_INTERNAL void pn_session_park_stop(pn_session *s)
{
    pn_park_stage stage = pn_session_park_stage(s);
    if (stage == PN_PARK_AWAY)
        park_free(s);
    else if (stage == PN_PARK_GOING || stage == PN_PARK_BACK)
        park_arrive(s);
}

PN_INTERNAL void pn_session_park_drop(pn_session *s)
{
    if (!s->parked)
        return;
    park_free(s);
    pn_mutex *pages = &pn_session_die(s)->cache.lock;
    pn_mutex_lock(pages);
    (void)pn_kv_truncate(&s->kv, 0);
    pn_mutex_unlock(pages);
    s->has_logits = false;
    s->salt = 0;
    s->apart = false;
}
