/* SPDX-License-Identifier: AGPL-3.0-only */
#include "store/pn_residency.h"

#include <inttypes.h>
#include <math.h>

#include "base/pn_err.h"

enum { RESIDENCY_CHUNK = 4 << 20, RESIDENCY_MADE = 1 << 20 };   /* bytes read, or made, between two progress reports */

static void residency_begin(void *store, const pn_plan *plan, const pn_step *step) { (void)store, (void)plan, (void)step; }
static void residency_want(void *store, uint32_t stack, uint32_t *experts, uint32_t n) { (void)store, (void)stack, (void)experts, (void)n; }

static pn_lease_state residency_pick(void *store, uint32_t w, uint64_t row, uint32_t i_token, pn_lease *out)
{
    pn_residency_store *s = store;
    (void)i_token;
    return s->host.acquire(s, w, row, 1, out);
}

/* Row `row0` of a weight, and as many of the `*n` from there on as follow it in memory.  Experts of a mapped model may lie
 * scattered: then those of one. */
static const uint8_t *residency_rows(const pn_residency_store *s, uint32_t w, uint64_t row0, uint64_t *n)
{
    const pn_weight *weight = &s->weights[w];
    if (s->base[w])
        return s->base[w] + row0 * weight->row_bytes;
    uint64_t in = row0 % weight->rows_per_expert;
    const uint8_t *p = pn_weights_piece_ptr(s->file, s->tensors[w], row0 / weight->rows_per_expert);
    *n = PN_MIN(*n, weight->rows_per_expert - in);
    return p + in * weight->row_bytes;
}

static pn_lease_state residency_acquire(void *store, uint32_t w, uint64_t row0, uint64_t n, pn_lease *out)
{
    const uint8_t *p = residency_rows(store, w, row0, &n);
    *out = (pn_lease){.ptr = p, .row0 = row0, .rows = (uint32_t)PN_MIN(n, (uint64_t)UINT32_MAX)};
    return PN_LEASE_OK;
}

static void residency_release(void *store, pn_lease *l) { (void)store, (void)l; }

static pn_lease_state residency_leaving_acquire(void *store, uint32_t w, uint64_t row0, uint64_t n, pn_lease *out)
{
    const pn_residency_store *s = store;
    const uint8_t *p = pn_ring_pinned(&s->stream->ring, w, row0, &n);
    if (!p)
        return residency_acquire(store, w, row0, n, out);
    *out = (pn_lease){.ptr = p, .row0 = row0, .rows = (uint32_t)PN_MIN(n, (uint64_t)UINT32_MAX)};
    return PN_LEASE_OK;
}

static pn_lease_state residency_ring_acquire(void *store, uint32_t w, uint64_t row0, uint64_t n, pn_lease *out)
{
    pn_residency_store *s = store;
    if (atomic_flag_test_and_set_explicit(&s->ring_busy, memory_order_acquire))
        return PN_LEASE_WAIT;
    uint64_t rows = PN_MIN(n, (uint64_t)s->lease_rows), row_bytes = s->weights[w].row_bytes;
    const uint8_t *p = residency_rows(s, w, row0, &rows);
    memcpy(s->ring, p, (size_t)(rows * row_bytes));
    *out = (pn_lease){.ptr = s->ring, .row0 = row0, .rows = (uint32_t)rows};
    return PN_LEASE_OK;
}

static void residency_ring_release(void *store, pn_lease *l)
{
    pn_residency_store *s = store;
    memset(s->ring, 0xDB, (size_t)s->ring_bytes);       /* nobody may look at it any more */
    l->ptr = NULL;
    atomic_flag_clear_explicit(&s->ring_busy, memory_order_release);
}

static void residency_stream_begin(void *store, const pn_plan *plan, const pn_step *step)
{
    pn_stream_begin(((pn_residency_store *)store)->stream, plan, step);
}

static pn_lease_state residency_stream_acquire(void *store, uint32_t w, uint64_t row0, uint64_t n, pn_lease *out)
{
    return pn_stream_acquire(((pn_residency_store *)store)->stream, w, row0, n, out);
}

static pn_lease_state residency_stream_pick(void *store, uint32_t w, uint64_t row, uint32_t i_token, pn_lease *out)
{
    (void)w;
    return pn_stream_pick(((pn_residency_store *)store)->stream, row, i_token, out);
}

static void residency_stream_want(void *store, uint32_t stack, uint32_t *experts, uint32_t n)
{
    pn_stream_want(((pn_residency_store *)store)->stream, stack, experts, n);
}

static void residency_stream_release(void *store, pn_lease *l)
{
    pn_stream_release(((pn_residency_store *)store)->stream, l);
    l->ptr = NULL;
}

static uint64_t residency_matrix_bytes(const pn_residency_store *s, uint32_t i)
{
    return s->weights[i].pinned ? 0 : s->weights[i].rows * s->weights[i].row_bytes;
}

/* Bytes [at, at + *n) of a matrix to dst, *n in whole rows where they have to be made. */
static pn_status residency_read_some(const pn_residency_store *s, const pn_residency_params *p, uint32_t i, uint64_t at, uint64_t *n, uint8_t *dst,
                                     pn_err *err)
{
    uint64_t row = s->weights[i].row_bytes;
    if (!pn_weights_retyped(s->tensors[i])) {
        *n = PN_MIN(*n, (uint64_t)RESIDENCY_CHUNK);
        return pn_weights_read(s->file, s->tensors[i], at, dst, (size_t)*n, err);
    }
    *n = PN_MIN(*n, PN_MAX(RESIDENCY_MADE / row, UINT64_C(1)) * row);
    return p->make_rows(p->make_user, s->tensors[i], at / row, *n / row, dst, err);
}

/* Read every matrix into one block, in plan order, reporting as we go. */
static pn_status residency_read_all(pn_residency_store *s, const pn_residency_params *p, pn_err *err)
{
    uint64_t total = 0, done = 0;
    for (uint32_t i = 0; i < s->n; i++)
        total += pn_align_up(residency_matrix_bytes(s, i), 64);
    if (total > SIZE_MAX)
        return pn_fail(err, PN_E_NOMEM, "weights of %" PRIu64 " bytes are more than this system can address", total);
    s->anon = pn_mem_alloc(s->mem, PN_ACCT_WEIGHTS, (size_t)total);
    if (!s->anon)
        return pn_fail_nomem(err, "the weights", total);
    s->anon_bytes = total;
    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t bytes = residency_matrix_bytes(s, i);
        uint8_t *dst = s->anon + done;
        for (uint64_t at = 0; at < bytes;) {
            uint64_t n = bytes - at;
            pn_status st = residency_read_some(s, p, i, at, &n, dst + at, err);
            if (st)
                return st;
            at += n;
            if (p->progress && p->progress(p->progress_user, done + at, total))
                return pn_fail(err, PN_E_CANCELLED, "loading was stopped by the progress callback");
        }
        if (!s->weights[i].pinned)
            s->base[i] = dst;
        done += pn_align_up(bytes, 64);
    }
    return PN_OK;
}

static pn_status residency_map_all(pn_residency_store *s, const pn_residency_params *p, pn_err *err)
{
    pn_status st = pn_weights_map(s->file, err);
    if (st)
        return st;
    for (uint32_t i = 0; i < s->n; i++)
        if (!s->weights[i].pinned)
            s->base[i] = pn_weights_ptr(s->file, s->tensors[i]);
    if (p->progress && p->progress(p->progress_user, 1, 1))
        return pn_fail(err, PN_E_CANCELLED, "loading was stopped by the progress callback");
    return PN_OK;
}

static pn_status residency_open_ring(pn_residency_store *s, uint32_t lease_rows, pn_err *err)
{
    for (uint32_t i = 0; i < s->n; i++)
        s->ring_bytes = PN_MAX(s->ring_bytes, s->weights[i].row_bytes * lease_rows);
    s->ring = pn_mem_alloc(s->mem, PN_ACCT_STAGE, (size_t)s->ring_bytes);
    if (!s->ring)
        return pn_fail_nomem(err, "a weight ring", s->ring_bytes);
    s->lease_rows = lease_rows;
    s->host.acquire = residency_ring_acquire;
    s->host.release = residency_ring_release;
    return PN_OK;
}

static void residency_free_stream(const pn_residency_store *s, pn_stream *stream)
{
    if (stream)
        pn_stream_close(stream);
    pn_mem_free(s->mem, PN_ACCT_MISC, stream, sizeof *stream);
}

static pn_status residency_new_stream(const pn_residency_store *s, const pn_residency_params *p, pn_stream **out, pn_err *err)
{
    pn_stream *stream = pn_mem_alloc(s->mem, PN_ACCT_MISC, sizeof *stream);
    if (!stream)
        return pn_fail_nomem(err, "a streamer", sizeof *stream);
    pn_status st = pn_stream_open(stream, s->mem, s->weights, s->tensors, s->n, p->plans, p->n_plans, &p->stream, err);
    if (st)
        pn_mem_free(s->mem, PN_ACCT_MISC, stream, sizeof *stream);
    else
        *out = stream;
    return st;
}

static pn_status residency_load_stream(pn_residency_store *s, const pn_residency_params *p, pn_err *err)
{
    bool done;
    pn_status st = residency_new_stream(s, p, &s->stream, err);
    if (!st)
        st = pn_stream_start(s->stream, s->file, INFINITY, &done, err);
    return st ? st : pn_stream_prime(s->stream, err);
}

/* Another streamer, or none; the old one is freed. */
static void residency_set_stream(pn_residency_store *s, pn_stream *stream)
{
    pn_stream *old = s->stream;
    pn_mutex_lock(&s->lock);
    s->stream = stream;
    pn_mutex_unlock(&s->lock);
    residency_free_stream(s, old);
}

static void residency_free_anon(pn_residency_store *s)
{
    pn_mem_free(s->mem, PN_ACCT_WEIGHTS, s->anon, (size_t)s->anon_bytes);
    s->anon = NULL;
}

/* What the device calls, for weights that are all there or for streamed ones. */
static void residency_set_host(pn_residency_store *s)
{
    s->host = (pn_host_ops){.abi = PN_PLAN_ABI, .size = sizeof s->host, .store = s, .begin = residency_begin,
                            .acquire = s->leaving ? residency_leaving_acquire : residency_acquire, .pick = residency_pick, .want = residency_want,
                            .release = residency_release};
    if (s->stream && !s->leaving)
        s->host = (pn_host_ops){.abi = PN_PLAN_ABI, .size = sizeof s->host, .store = s, .piece_bytes = s->stream->p.block_bytes / 4,
                                .begin = residency_stream_begin, .acquire = residency_stream_acquire, .pick = residency_stream_pick,
                                .want = residency_stream_want, .release = residency_stream_release};
}

PN_INTERNAL pn_status pn_residency_open(pn_residency_store *s, pn_mem *mem, pn_weights *file,
                                        const pn_weight *weights, const pn_dir_tensor *const *tensors, uint32_t n,
                                        const pn_residency_params *p, pn_err *err)
{
    *s = (pn_residency_store){.mem = mem, .file = file, .weights = weights, .tensors = tensors, .n = n};
    atomic_flag_clear(&s->ring_busy);
    pn_mutex_init(&s->lock);
    s->base = pn_mem_calloc(mem, PN_ACCT_MISC, n, sizeof *s->base);
    pn_status st = PN_OK;
    if (!s->base)
        st = pn_fail_nomem(err, "a weight table", n * sizeof *s->base);
    bool anon = p->mode == PN_RESIDENCY_ANON || (p->mode == PN_RESIDENCY_AUTO && pn_weights_reads(file));
    if (!st && p->mode == PN_RESIDENCY_STREAM)
        st = residency_load_stream(s, p, err);
    else if (!st)
        st = anon ? residency_read_all(s, p, err) : residency_map_all(s, p, err);
    residency_set_host(s);
    if (!st && p->lease_rows && !s->stream)
        st = residency_open_ring(s, p->lease_rows, err);
    if (st)
        pn_residency_close(s);
    return st;
}

PN_INTERNAL void pn_residency_close(pn_residency_store *s)
{
    if (!s->mem)
        return;
    pn_mem_free(s->mem, PN_ACCT_MISC, s->base, s->n * sizeof *s->base);
    residency_free_anon(s);
    pn_mem_free(s->mem, PN_ACCT_STAGE, s->ring, (size_t)s->ring_bytes);
    residency_set_stream(s, NULL);
    residency_free_stream(s, s->next);
    s->next = NULL;
    pn_mutex_fini(&s->lock);
    s->base = NULL;
    s->mem = NULL;
}

/* ------------------------------------------------------------------------------------------
 * Between steps
 * ------------------------------------------------------------------------------------------ */

/* A piece of the way to a streamer; the last one puts it in place. */
static pn_status residency_to_stream(pn_residency_store *s, const pn_residency_params *p, double deadline, pn_err *err)
{
    bool done;
    if (!s->next)
        return residency_new_stream(s, p, &s->next, err);
    pn_status st = pn_stream_start(s->next, s->file, deadline, &done, err);
    if (st) {
        residency_free_stream(s, s->next);
        s->next = NULL;
    } else if (done) {
        pn_stream_drop_cache(s->next, pn_weights_mapped(s->file));
        residency_set_stream(s, s->next);
        s->next = NULL;
        residency_free_anon(s);
        for (uint32_t i = 0; i < s->n; i++)
            s->base[i] = NULL;
    }
    return st;
}

/* And back, or from one that is not in place yet. */
static pn_status residency_to_map(pn_residency_store *s, const pn_residency_params *p, double deadline, pn_err *err)
{
    bool done;
    if (s->stream && !s->leaving) {
        pn_status st = residency_map_all(s, p, err);
        s->leaving = st == PN_OK;
        if (!st)
            pn_stream_drop_cache(s->stream, false);
        return st;
    }
    pn_stream_clear(s->next ? s->next : s->stream, deadline, &done);
    if (done && s->next) {
        residency_free_stream(s, s->next);
        s->next = NULL;
    } else if (done) {
        s->leaving = false;
        residency_set_stream(s, NULL);
    }
    return PN_OK;
}

PN_INTERNAL pn_status pn_residency_convert(pn_residency_store *s, const pn_residency_params *p, double deadline, bool *done, pn_err *err)
{
    bool streamed = p->mode == PN_RESIDENCY_STREAM, any = false;
    pn_status st = PN_OK;
    *done = false;
    if (p->lease_rows || s->lease_rows || (p->mode != PN_RESIDENCY_MAP && !streamed))
        return pn_fail(err, PN_E_UNSUPPORTED, "weights change to mapped or streamed ones only");
    if (s->file->n_retyped)
        return pn_fail(err, PN_E_UNSUPPORTED, "weights of another type than the file's can only be in memory");
    for (*done = streamed ? s->stream && !s->leaving : !s->stream && !s->next; !*done && !st && (!any || pn_os_now() < deadline); any = true) {
        if (streamed && !s->leaving)
            st = residency_to_stream(s, p, deadline, err);
        else
            st = residency_to_map(s, p, deadline, err);
        residency_set_host(s);
        *done = streamed ? s->stream && !s->leaving : !s->stream && !s->next;
    }
    return st;
}

PN_INTERNAL uint64_t pn_residency_mapped(const pn_residency_store *s, uint64_t all)
{
    if (s->leaving)
        return pn_sub_sat(all, s->stream->ring.pinned_bytes);
    return s->anon || s->stream ? 0 : all;
}

PN_INTERNAL pn_status pn_residency_repin(pn_residency_store *s, uint64_t pin_bytes, double deadline, bool *done, pn_err *err)
{
    *done = true;
    if (!s->stream || s->leaving)
        return pn_fail(err, PN_E_STATE, "nothing is streamed");
    s->stream->p.pin_bytes = pin_bytes;
    return pn_ring_pin(&s->stream->ring, pin_bytes, deadline, done, err);
}

PN_INTERNAL pn_status pn_residency_resize_experts(pn_residency_store *s, uint64_t bytes, double deadline, bool *done, pn_err *err)
{
    *done = true;
    if (!s->stream || s->leaving)
        return pn_fail(err, PN_E_STATE, "nothing is streamed");
    pn_status st = pn_experts_resize(&s->stream->experts, bytes, deadline, done, err);
    if (!st && *done)
        s->stream->p.expert_bytes = bytes;
    return st;
}

PN_INTERNAL uint64_t pn_residency_filling(pn_residency_store *s)
{
    bool failed;
    uint64_t filling = 0;
    if (s->stream) {
        pn_mutex_lock(&s->stream->reads.lock);
        filling = pn_ring_filling(&s->stream->ring, &failed);
        pn_mutex_unlock(&s->stream->reads.lock);
    }
    return filling;
}

PN_INTERNAL void pn_residency_wait(pn_residency_store *s, double deadline)
{
    if (s->stream)
        pn_reads_wait(&s->stream->reads, deadline);
}

PN_INTERNAL double pn_residency_stepped(pn_residency_store *s, uint32_t rows, double seconds)
{
    if (!s->stream)
        return 0;
    pn_stream_stepped(s->stream, rows, seconds);
    return pn_reads_disk(&s->stream->reads);
}

PN_INTERNAL void pn_residency_report(pn_residency_store *s, pn_residency_info *out)
{
    pn_mutex_lock(&s->lock);
    *out = (pn_residency_info){.mode = s->stream ? PN_RESIDENCY_STREAM : s->anon ? PN_RESIDENCY_ANON : PN_RESIDENCY_MAP};
    if (s->stream)
        pn_stream_report(s->stream, out);
    pn_mutex_unlock(&s->lock);
}

PN_INTERNAL pn_status pn_residency_failed(pn_residency_store *s, pn_err *err)
{
    pn_mutex_lock(&s->stream->reads.lock);
    if (err)
        *err = s->stream->reads.err;
    pn_mutex_unlock(&s->stream->reads.lock);
    return PN_E_IO;
}
