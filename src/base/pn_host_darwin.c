/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_host_darwin.c - macOS: memory as the Mach kernel counts it.
 *
 * Memory that can be taken is what the kernel gives up without paging to the compressor: free,
 * inactive and purgeable pages.  There are no control groups.
 */
#include "base/pn_host.h"

#if PN_ENABLE_FILES && defined(__APPLE__)

#include <mach/mach.h>
#include <sys/sysctl.h>
#include <sys/types.h>

PN_INTERNAL void pn_host_open(pn_host *h, const char *root)
{
    memset(h, 0, sizeof *h);
    h->root = root;
}

PN_INTERNAL void pn_host_close(pn_host *h) { (void)h; }

PN_INTERNAL void pn_host_read(pn_host *h, double now, pn_host_reading *r)
{
    uint64_t physical = 0;
    size_t len = sizeof physical;
    vm_size_t page = 0;
    vm_statistics64_data_t vm;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    host_t host = mach_host_self();

    (void)h;
    memset(r, 0, sizeof *r);
    r->total = r->available = r->mapped = PN_HOST_UNKNOWN;
    r->commit_limit = r->commit_left = r->rlimit = r->rlimit_left = PN_HOST_UNKNOWN;
    r->counted = now;
    if (sysctlbyname("hw.memsize", &physical, &len, NULL, 0) == 0)
        r->total = physical;
    if (host_page_size(host, &page) == KERN_SUCCESS &&
        host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&vm, &count) == KERN_SUCCESS)
        r->available = PN_MIN(((uint64_t)vm.free_count + vm.inactive_count + vm.purgeable_count) * page, r->total);
    mach_port_deallocate(mach_task_self(), host);       /* mach_host_self() adds a reference each time */
    r->lost = r->available == PN_HOST_UNKNOWN;
}

PN_INTERNAL uint32_t pn_host_cores(const char *root, uint32_t cores)
{
    (void)root;
    return cores;
}

#endif /* PN_ENABLE_FILES && __APPLE__ */
