/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_os_darwin.c - macOS: random bits, cores, memory.
 *
 * Memory that can be taken is what the kernel gives up without paging to the compressor: free,
 * inactive and purgeable pages.  There are no cgroups.
 */
#include "base/pn_os.h"

#if PN_ENABLE_FILES && defined(__APPLE__)

#include <mach/mach.h>
#include <stdlib.h>
#include <sys/sysctl.h>
#include <sys/types.h>

PN_INTERNAL uint64_t pn_os_entropy(void)
{
    uint64_t v;
    arc4random_buf(&v, sizeof v);
    return v;
}

PN_INTERNAL uint32_t pn_os_cores(void)
{
    int32_t n = 0;
    size_t len = sizeof n;
    if (sysctlbyname("hw.activecpu", &n, &len, NULL, 0) != 0 || n < 1)
        return 1;
    return (uint32_t)n;
}

PN_INTERNAL void pn_os_memory(uint64_t *total, uint64_t *available)
{
    uint64_t physical = 0;
    size_t len = sizeof physical;
    vm_size_t page = 0;
    vm_statistics64_data_t vm;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    host_t host = mach_host_self();

    *total = *available = 0;
    if (sysctlbyname("hw.memsize", &physical, &len, NULL, 0) == 0)
        *total = physical;
    if (host_page_size(host, &page) == KERN_SUCCESS &&
        host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&vm, &count) == KERN_SUCCESS)
        *available = ((uint64_t)vm.free_count + vm.inactive_count + vm.purgeable_count) * page;
    mach_port_deallocate(mach_task_self(), host);       /* mach_host_self() adds a reference each time */
    if (*total && *available > *total)
        *available = *total;
}

#endif /* PN_ENABLE_FILES && __APPLE__ */
