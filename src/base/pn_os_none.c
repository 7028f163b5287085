/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_os_none.c - a system without files (PN_ENABLE_FILES=0), or one we do not know.
 *
 * Models come from memory or a callback; everything here says so, or gives the most modest answer.
 */
#include "base/pn_os.h"

#if !PN_ENABLE_FILES || !(defined(__linux__) || defined(__APPLE__))

#include "base/pn_err.h"
#include "base/pn_hash.h"

#include <time.h>

static pn_status osn_refuse(pn_err *err)
{
    return pn_fail(err, PN_E_UNSUPPORTED, "this build has no files: open the model from memory or a reader");
}

PN_INTERNAL pn_status pn_os_open(pn_os_file *f, const char *path, pn_err *err)
{
    (void)path;
    f->fd = -1;
    f->size = 0;
    return osn_refuse(err);
}

PN_INTERNAL void pn_os_close(pn_os_file *f) { f->fd = -1; }

PN_INTERNAL pn_status pn_os_read(const pn_os_file *f, uint64_t offset, void *dst, size_t n, pn_err *err)
{
    (void)f, (void)offset, (void)dst, (void)n;
    return osn_refuse(err);
}

PN_INTERNAL pn_status pn_os_map(const pn_os_file *f, const void **addr, pn_err *err)
{
    (void)f, (void)addr;
    return osn_refuse(err);
}

PN_INTERNAL void pn_os_unmap(const void *addr, uint64_t size) { (void)addr, (void)size; }

PN_INTERNAL void *pn_os_pages_take(size_t size)
{
    (void)size;
    return NULL;
}

PN_INTERNAL void pn_os_pages_give(void *ptr, size_t size) { (void)ptr, (void)size; }

PN_INTERNAL pn_status pn_os_create(pn_os_out *o, const char *path, pn_err *err)
{
    (void)path;
    memset(o, 0, sizeof *o);
    o->fd = -1;
    return osn_refuse(err);
}

PN_INTERNAL pn_status pn_os_write(pn_os_out *o, const void *bytes, size_t n, pn_err *err)
{
    (void)o, (void)bytes, (void)n;
    return osn_refuse(err);
}

PN_INTERNAL pn_status pn_os_commit(pn_os_out *o, pn_err *err)
{
    (void)o;
    return osn_refuse(err);
}

PN_INTERNAL void pn_os_abandon(pn_os_out *o) { (void)o; }

/* C11 has no monotonic clock; the calendar's is the best it offers. */
PN_INTERNAL bool pn_os_same_file(const char *a, const char *b) { return strcmp(a, b) == 0; }

PN_INTERNAL double pn_os_now(void)
{
#if defined(TIME_UTC)
    struct timespec t;
    if (timespec_get(&t, TIME_UTC) == TIME_UTC)
        return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
#endif
    return (double)clock() / (double)CLOCKS_PER_SEC;
}

PN_INTERNAL uint64_t pn_os_entropy(void)
{
    struct { double now; clock_t cpu; uintptr_t here, code; } mix;
    memset(&mix, 0, sizeof mix);
    mix.now = pn_os_now();
    mix.cpu = clock();
    mix.here = (uintptr_t)&mix;
    mix.code = (uintptr_t)pn_os_entropy;
    return pn_hash(&mix, sizeof mix, 0);
}

PN_INTERNAL uint32_t pn_os_cores(void) { return 1; }

#endif /* no files, or an unknown system */
