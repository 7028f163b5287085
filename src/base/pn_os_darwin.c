/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_os_darwin.c - macOS: random bits, cores.
 */
#include "base/pn_os.h"

#if PN_ENABLE_FILES && defined(__APPLE__)

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

#endif /* PN_ENABLE_FILES && __APPLE__ */
