/* SPDX-License-Identifier: AGPL-3.0-only */
#include "engine/pn_park.h"

#include "engine/pn_cache.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/pn_os_dir.h"
#include "base/pn_os_direct.h"

enum { PARK_STATE = 0xff, PARK_STATES = 2, PARK_BLOCK = PN_DIRECT_ALIGN, PARK_PIECE = 128 << 10, PARK_ROOM = PARK_PIECE + PARK_BLOCK, PARK_FLUSH = 8 << 20 };

/* A page in the file: whole blocks, one behind the other in this order. */
typedef struct park_page {
    uint64_t bytes;             /* without the zeros up to the next block */
    uint32_t index;             /* in its group's table */
    uint32_t sum;               /* CRC-32C, zeros included */
    uint8_t group, type;        /* PARK_STATE: it is recurrent state, of the layers of part `index`; the last in the file */
} park_page;

typedef struct pn_parked {
    pn_os_direct file;          /* it has no name any more */
    bool in_turn;               /* it held a reserve */
    uint32_t n;
    park_page page[];           /* [n] */
} pn_parked;

static size_t park_size(uint32_t n) { return sizeof(pn_parked) + n * sizeof(park_page); }

/* Moving a page: the buffer, and where in the file it is. */
typedef struct park_way {
    pn_parked *p;
    const pn_crc32c *crc;
    void *room;                 /* owned, [PARK_ROOM] */
    uint8_t *piece;             /* in it, aligned */
    uint64_t at;
} park_way;

static pn_status park_begin(park_way *w, pn_session *s, pn_parked *p, pn_err *err)
{
    *w = (park_way){.p = p, .crc = pn_cold_crc(s->model->engine->cold)};
    w->room = pn_mem_alloc(pn_engine_mem(s->model->engine), PN_ACCT_STAGE, PARK_ROOM);
    w->piece = (uint8_t *)(uintptr_t)pn_align_up((uintptr_t)w->room, PARK_BLOCK);
    return w->room ? PN_OK : pn_fail_nomem(err, "moving keys and values", PARK_ROOM);
}

static void park_end(park_way *w, pn_session *s) { pn_mem_free(pn_engine_mem(s->model->engine), PN_ACCT_STAGE, w->room, PARK_ROOM); }

/* ------------------------------------------------------------------------------------------
 * Away
 * ------------------------------------------------------------------------------------------ */

static uint32_t park_count(const pn_kv *kv)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < kv->spec->n_groups; g++)
        for (uint32_t i = 0; i < kv->group[g].n_table; i++)
            n += kv->group[g].table[i] != NULL;
    return n + (kv->state.in ? PARK_STATES : 0);
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

static pn_status park_write(park_way *w, park_page *r, const uint8_t *data, pn_err *err)
{
    pn_status st = PN_OK;
    for (uint64_t done = 0; done < r->bytes && !st;) {
        size_t n = (size_t)PN_MIN(r->bytes - done, (uint64_t)PARK_PIECE), whole = (size_t)pn_align_up(n, PARK_BLOCK);
        memcpy(w->piece, data + done, n);
        memset(w->piece + n, 0, whole - n);
        r->sum = pn_crc32c_add(w->crc, r->sum, w->piece, whole);
        st = pn_os_direct_write(&w->p->file, w->at, w->piece, whole, err);
        w->at += whole;
        done += n;
        if (!st && w->at % PARK_FLUSH == 0)     /* where it goes through the cache: no more than this is dirty */
            st = pn_os_direct_flush(&w->p->file, err);
    }
    return st;
}

static pn_status park_write_all(pn_session *s, pn_parked *p, pn_err *err)
{
    const pn_kv *kv = &s->kv;
    park_way w;
    pn_status st = park_begin(&w, s, p, err);
    for (uint32_t g = 0; g < kv->spec->n_groups && !st; g++)
        for (uint32_t i = 0; i < kv->group[g].n_table && !st; i++) {
            const pn_kv_page *page = kv->group[g].table[i];
            if (!page)
                continue;
            park_page *r = &p->page[p->n++];
            *r = (park_page){.bytes = pn_kv_page_bytes(&kv->spec->group[g], page->k_type, page->v_type), .index = i, .group = (uint8_t)g,
                             .type = page->k_type};
            st = park_write(&w, r, page->data, err);
        }
    for (uint32_t i = 0; kv->state.in && i < PARK_STATES && !st; i++) {
        park_page *r = &p->page[p->n++];
        *r = (park_page){.bytes = i ? kv->state.slot_second : kv->state.slot_bytes - kv->state.slot_second, .index = i, .group = PARK_STATE};
        st = park_write(&w, r, pn_snap_data(kv->state.in, i), err);
    }
    if (!st)
        st = pn_os_direct_flush(&p->file, err);
    park_end(&w, s);
    return st;
}

static void park_free(pn_session *s, pn_parked *p, uint32_t n)
{
    pn_os_direct_close(&p->file);
    pn_mem_free(pn_engine_mem(s->model->engine), PN_ACCT_MISC, p, park_size(n));
}

/* Every page and the reserve. */
static void park_unload(pn_session *s)
{
    pn_mutex *pages = &pn_session_die(s)->cache.lock;
    pn_mutex_lock(pages);
    pn_kv_unload(&s->kv);
    pn_mutex_unlock(pages);
}

PN_INTERNAL pn_status pn_session_park(pn_session *s, uint64_t *freed, pn_err *err)
{
    pn_engine *e = s->model->engine;
    uint32_t n = park_count(&s->kv);
    if (!e->cold || !s->kv.by_turn)
        return pn_fail(err, PN_E_UNSUPPORTED, "%s", e->cold ? "the session has its memory for good" : "there is no directory to park a session in");
    if (s->parked)
        return pn_fail(err, PN_E_STATE, "the session is parked");
    pn_parked *p = pn_mem_calloc(pn_engine_mem(e), PN_ACCT_MISC, 1, park_size(n));
    if (!p)
        return pn_fail_nomem(err, "parking a session", park_size(n));
    p->file.fd = -1;
    pn_status st = park_file(s, &p->file, err);
    if (!st)
        st = park_write_all(s, p, err);
    if (st) {
        park_free(s, p, n);
        return st;
    }
    uint64_t before = atomic_load(&e->ledger.total);
    park_unload(s);
    uint64_t after = atomic_load(&e->ledger.total);
    if (freed)
        *freed = pn_sub_sat(before, after);
    s->parked = p;
    p->in_turn = s->in_turn;
    if (s->in_turn)
        atomic_fetch_sub(&e->n_turns, 1u);
    s->in_turn = false;
    return PN_OK;
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

PN_INTERNAL uint64_t pn_session_parked_bytes(const pn_session *s) { return s->parked ? park_need(s).all : 0; }

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

static pn_status park_admit(pn_session *s, pn_err *err)
{
    pn_engine *e = s->model->engine;
    const pn_need need = park_need(s);
    pn_lack lack = {0};
    pn_mutex_lock(&e->admit_lock);
    bool room = pn_model_room(s->model, atomic_load(&e->n_turns) == 0, &need, &need, &lack);
    bool ok = room && (park_take(s) || (pn_cache_give_all(e, need.all) && park_take(s)));
    pn_mutex_unlock(&e->admit_lock);
    return ok ? PN_OK : pn_fail(err, PN_E_BUDGET, "the session's keys and values need %" PRIu64 " bytes, %" PRIu64 " are available%s", lack.need,
                                lack.available, lack.where);
}

static pn_status park_read(park_way *w, const park_page *r, uint8_t *data, pn_err *err)
{
    uint32_t sum = 0;
    for (uint64_t done = 0; done < r->bytes;) {
        size_t n = (size_t)PN_MIN(r->bytes - done, (uint64_t)PARK_PIECE), whole = (size_t)pn_align_up(n, PARK_BLOCK);
        pn_status st = pn_os_direct_read(&w->p->file, w->at, w->piece, whole, whole, err);
        if (st)
            return st;
        sum = pn_crc32c_add(w->crc, sum, w->piece, whole);
        memcpy(data + done, w->piece, n);
        w->at += whole;
        done += n;
    }
    return sum == r->sum ? PN_OK : pn_fail(err, PN_E_IO, "keys and values that were put away came back damaged");
}

static pn_status park_read_all(pn_session *s, park_way *w, pn_err *err)
{
    pn_status st = PN_OK;
    for (uint32_t i = 0; i < s->parked->n && !st; i++) {
        const park_page *r = &s->parked->page[i];
        st = park_read(w, r, r->group == PARK_STATE ? pn_snap_data(s->kv.state.in, r->index) : s->kv.group[r->group].table[r->index]->data, err);
    }
    return st;
}

/* There are pages for all of it: what the file holds, or nothing. */
static pn_status park_fill(pn_session *s, park_way *w, pn_err *err)
{
    pn_status st = park_read_all(s, w, err);
    s->in_turn = s->parked->in_turn;
    if (s->in_turn)
        atomic_fetch_add(&s->model->engine->n_turns, 1u);
    if (st) {
        park_unload(s);
        pn_session_park_drop(s);
        pn_session_end_turn(s);
        return PN_E_IO;
    }
    park_free(s, s->parked, s->parked->n);
    s->parked = NULL;
    return PN_OK;
}

PN_INTERNAL pn_status pn_session_unpark(pn_session *s, pn_err *err)
{
    park_way w;
    if (!s->parked)
        return PN_OK;
    pn_status st = park_begin(&w, s, s->parked, err);
    if (!st)
        st = park_admit(s, err);
    if (!st)
        st = park_fill(s, &w, err);
    park_end(&w, s);
    return st;
}

PN_INTERNAL void pn_session_park_drop(pn_session *s)
{
    if (!s->parked)
        return;
    park_free(s, s->parked, s->parked->n);
    s->parked = NULL;
    pn_mutex *pages = &pn_session_die(s)->cache.lock;
    pn_mutex_lock(pages);
    (void)pn_kv_truncate(&s->kv, 0);
    pn_mutex_unlock(pages);
    s->has_logits = false;
    s->salt = 0;
    s->apart = false;
}
