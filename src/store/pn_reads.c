/* SPDX-License-Identifier: AGPL-3.0-only */
#include "store/pn_reads.h"

#include <inttypes.h>

#include "base/pn_err.h"

static const double reads_window = 0.02;        /* seconds of reading that make one sample of the rate */
static const double reads_trial = 0.05;         /* seconds of trying a disk */

enum { READS_TRIAL = 1 << 20, READS_TRIAL_LEAST = 64 << 10 };           /* bytes at a time; fewer tell of seeks, not of the disk */

/* ------------------------------------------------------------------------------------------
 * Open and close
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_reads_open(pn_reads *r, pn_mem *mem, pn_weights *file, pn_err *err)
{
    memset(r, 0, sizeof *r);
    r->mem = mem;
    r->file = file;
    pn_mutex_init(&r->lock);
    pn_cond_init(&r->work);
    pn_cond_init(&r->arrived);
    r->files = pn_mem_alloc(mem, PN_ACCT_MISC, file->n_parts * sizeof *r->files);
    if (!r->files)
        return pn_fail_nomem(err, "a table of files", file->n_parts * sizeof *r->files);
    for (uint32_t i = 0; i < file->n_parts; i++)
        r->files[i].fd = -1;
    for (uint32_t i = 0; i < file->n_parts; i++) {
        pn_part *p = &file->parts[i];
        pn_status st = p->file.fd < 0 ? PN_OK : pn_os_direct_open(&r->files[i], p->path, &p->file, err);
        if (st)
            return st;
    }
    return PN_OK;
}

PN_INTERNAL void pn_reads_stop(pn_reads *r)
{
    if (!r->mem)
        return;
    pn_mutex_lock(&r->lock);
    r->stop = true;
    pn_cond_broadcast(&r->work);
    pn_mutex_unlock(&r->lock);
    for (uint32_t i = 0; i < r->n_threads; i++)
        pn_thread_join(&r->thread[i]);
    r->n_threads = 0;
}

PN_INTERNAL void pn_reads_close(pn_reads *r)
{
    if (!r->mem)
        return;
    pn_reads_stop(r);
    for (uint32_t i = 0; r->files && i < r->file->n_parts; i++)
        pn_os_direct_close(&r->files[i]);
    pn_mem_free(r->mem, PN_ACCT_MISC, r->files, r->file->n_parts * sizeof *r->files);
    pn_cond_fini(&r->arrived);
    pn_cond_fini(&r->work);
    pn_mutex_fini(&r->lock);
    r->mem = NULL;
}

PN_INTERNAL void pn_reads_add(pn_reads *r, pn_read_source s)
{
    PN_ASSERT(r->n_sources < PN_COUNT_OF(r->source));
    r->source[r->n_sources++] = s;
}

/* ------------------------------------------------------------------------------------------
 * Reading
 * ------------------------------------------------------------------------------------------ */

/* A callback may want exact lengths: it gets no byte past the file's end to read. */
static pn_status reads_extent(pn_reads *r, const pn_extent *x, uint8_t *dst, pn_err *err)
{
    const pn_part *p = &r->file->parts[x->part];
    pn_os_direct *f = &r->files[x->part];
    if (f->fd >= 0)
        return pn_os_direct_read(f, x->offset, dst, (size_t)pn_align_up(x->need, PN_DIRECT_ALIGN), (size_t)x->need, err);
    if (p->src.read && p->src.read(p->src.user, x->offset, dst, (size_t)x->need))
        return pn_fail(err, PN_E_IO, "reading %" PRIu64 " bytes at offset %" PRIu64 " failed", x->need, x->offset);
    if (p->src.bytes)
        memcpy(dst, p->src.bytes + x->offset, (size_t)x->need);
    return PN_OK;
}

static pn_status reads_extents(pn_reads *r, const pn_extent *x, uint32_t n, uint8_t *dst, pn_err *err)
{
    for (uint32_t i = 0; i < n; i++) {
        pn_status st = reads_extent(r, &x[i], dst + x[i].at, err);
        if (st)
            return pn_err_prefix(err, st, "%s", r->file->parts[x[i].part].path);
    }
    return PN_OK;
}

/* The rate is that of the disk: time counts while anything is being read, once. */
static void reads_meter_begin(pn_reads *r)
{
    if (r->in_flight++ == 0)
        r->busy_since = pn_os_now();
}

static void reads_meter_end(pn_reads *r, uint64_t bytes)
{
    double now = pn_os_now();
    r->busy += now - r->busy_since;
    r->busy_since = now;
    r->busy_bytes += bytes;
    r->bytes += bytes;
    r->in_flight--;
    if (r->busy < reads_window && r->rate > 0)
        return;
    double rate = r->busy > 0 ? (double)r->busy_bytes / r->busy : 0;
    r->rate = r->rate > 0 ? 0.8 * r->rate + 0.2 * rate : rate;
    r->busy = 0;
    r->busy_bytes = 0;
}

PN_INTERNAL double pn_reads_disk(pn_reads *r)
{
    pn_mutex_lock(&r->lock);
    double rate = r->files[0].fd >= 0 && atomic_load(&r->files[0].direct) ? r->rate : 0;
    pn_mutex_unlock(&r->lock);
    return rate;
}

/* How many were read, each piece over the last one; 0: it failed. */
static uint64_t reads_trial_bytes(pn_os_direct *f, uint8_t *piece, uint64_t each, uint64_t bytes, double until)
{
    uint64_t n = PN_MIN(bytes / each, f->size / each), done = 0;
    for (uint64_t i = 0; i < n && (!i || pn_os_now() < until); i++, done += each) {
        uint64_t at = (f->size - each) / n * i / PN_DIRECT_ALIGN * PN_DIRECT_ALIGN;
        if (pn_os_direct_read(f, at, piece, (size_t)each, (size_t)each, NULL))
            return 0;
    }
    return done;
}

PN_INTERNAL double pn_reads_try_disk(pn_mem *mem, const pn_weights *file, uint64_t bytes, uint64_t room)
{
    const pn_part *p = &file->parts[0];
    uint64_t each = PN_MIN(pn_sub_sat(room, PN_DIRECT_ALIGN) / PN_DIRECT_ALIGN * PN_DIRECT_ALIGN, (uint64_t)READS_TRIAL);
    const size_t size = (size_t)(each + PN_DIRECT_ALIGN);
    pn_os_direct f = {.fd = -1};
    if (each < READS_TRIAL_LEAST || p->file.fd < 0 || pn_os_direct_open(&f, p->path, &p->file, NULL))
        return 0;
    uint8_t *block = pn_mem_alloc(mem, PN_ACCT_STAGE, size), *piece = (uint8_t *)(uintptr_t)pn_align_up((uintptr_t)block, PN_DIRECT_ALIGN);
    double seconds = 0;
    uint64_t done = 0;
    if (block) {
        memset(piece, 0, (size_t)each);         /* its pages are there before the clock runs */
        double since = pn_os_now();
        done = reads_trial_bytes(&f, piece, each, bytes, since + reads_trial);
        seconds = pn_os_now() - since;
    }
    bool direct = atomic_load(&f.direct);
    pn_mem_free(mem, PN_ACCT_STAGE, block, size);
    pn_os_direct_close(&f);
    return direct && seconds > 0 ? (double)done / seconds : 0;
}

PN_INTERNAL void pn_reads_tell(pn_reads *r)
{
    r->news++;
    pn_cond_broadcast(&r->arrived);
}

static uint64_t reads_bytes(const pn_extent *x, uint32_t n)
{
    uint64_t sum = 0;
    while (n--)
        sum += x[n].need;
    return sum;
}

/* With the lock held: one job of the most urgent source that has any.  False: there is none. */
static bool reads_one(pn_reads *r)
{
    pn_read_job job;
    pn_err err = {0};
    for (uint32_t i = 0; i < r->n_sources; i++) {
        const pn_read_source *s = &r->source[i];
        if (!s->take(s->self, &job))
            continue;
        if (s->work) {
            pn_mutex_unlock(&r->lock);
            s->work(s->self);
            pn_mutex_lock(&r->lock);
            s->done(s->self, job.item, true);
            return true;
        }
        reads_meter_begin(r);
        pn_mutex_unlock(&r->lock);
        pn_status st = reads_extents(r, job.extents, job.n, job.dst, &err);
        pn_mutex_lock(&r->lock);
        reads_meter_end(r, st ? 0 : reads_bytes(job.extents, job.n));
        if (st)
            r->err = err;
        s->done(s->self, job.item, st == PN_OK);
        pn_reads_tell(r);
        return true;
    }
    return false;
}

static void reads_main(void *arg)
{
    pn_reads *r = arg;
    pn_mutex_lock(&r->lock);
    while (!r->stop)
        if (!reads_one(r))
            pn_cond_wait(&r->work, &r->lock);
    pn_mutex_unlock(&r->lock);
}

PN_INTERNAL void pn_reads_start(pn_reads *r, uint32_t n_threads)
{
    n_threads = PN_MIN(n_threads, (uint32_t)PN_READERS_MAX);
    while (r->n_threads < n_threads && pn_thread_start(&r->thread[r->n_threads], reads_main, r))
        r->n_threads++;
}

PN_INTERNAL void pn_reads_kick(pn_reads *r) { pn_cond_broadcast(&r->work); }

PN_INTERNAL void pn_reads_wait(pn_reads *r, double deadline)
{
    double from = pn_os_now(), now = from;
    pn_mutex_lock(&r->lock);
    if (r->n_threads == 0)
        reads_one(r);
    else
        for (; r->news == r->seen && now < deadline; now = pn_os_now())
            pn_cond_wait_for(&r->arrived, &r->lock, deadline - now);
    r->seen = r->news;
    r->waited += pn_os_now() - from;
    pn_mutex_unlock(&r->lock);
}
