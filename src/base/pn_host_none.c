/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_host_none.c - a build without files, or a system we do not know: at best the size of its memory.
 */
#include "base/pn_host.h"

#if !PN_ENABLE_FILES || !(defined(__linux__) || defined(__APPLE__))

#if defined(__unix__)
#include <unistd.h>
#endif

static uint64_t host_physical(void)
{
#if defined(_SC_PHYS_PAGES) && defined(_SC_PAGESIZE)
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0)
        return (uint64_t)pages * (uint64_t)page;
#endif
    return PN_HOST_UNKNOWN;
}

PN_INTERNAL void pn_host_open(pn_host *h, const char *root)
{
    memset(h, 0, sizeof *h);
    h->root = root;
}

PN_INTERNAL void pn_host_close(pn_host *h) { (void)h; }

PN_INTERNAL void pn_host_read(pn_host *h, double now, pn_host_reading *r)
{
    (void)h;
    memset(r, 0, sizeof *r);
    r->total = host_physical();
    r->available = r->mapped = PN_HOST_UNKNOWN;
    r->commit_limit = r->commit_left = r->rlimit = r->rlimit_left = PN_HOST_UNKNOWN;
    r->counted = now;
}

PN_INTERNAL uint32_t pn_host_cores(const char *root, uint32_t cores)
{
    (void)root;
    return cores;
}

#endif /* no files, or an unknown system */
