/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_os_linux.c - Linux: random bits, and the cores that are ours (pn_host_linux.c knows the control
 * groups).
 */
#include "base/pn_os.h"

#if PN_ENABLE_FILES && defined(__linux__)

#include "base/pn_hash.h"
#include "base/pn_host.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* By the affinity mask, which a cpuset has already cut.  Room for 8192 cores: the kernel refuses a
 * mask smaller than its own, and glibc's cpu_set_t ends at 1024. */
static uint32_t osl_affinity(void)
{
    unsigned long mask[8192 / (8 * sizeof(unsigned long))];
    memset(mask, 0, sizeof mask);
    if (sched_getaffinity(0, sizeof mask, (cpu_set_t *)mask) == 0) {
        uint32_t n = 0;
        for (size_t i = 0; i < PN_COUNT_OF(mask); i++)
            for (unsigned long bits = mask[i]; bits; bits &= bits - 1)
                n++;
        if (n)
            return n;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

PN_INTERNAL uint32_t pn_os_cores(void) { return pn_host_cores("", osl_affinity()); }

/* getrandom by number: older libcs lack the wrapper.  1: do not wait for the pool at boot. */
PN_INTERNAL uint64_t pn_os_entropy(void)
{
    uint64_t v = 0;
#if defined(SYS_getrandom)
    if (syscall(SYS_getrandom, &v, sizeof v, 1) == (long)sizeof v)
        return v;
#endif
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, &v, sizeof v);
        close(fd);
        if (got == (ssize_t)sizeof v)
            return v;
    }
    struct { struct timespec t; uintptr_t here; long pid; } mix;
    memset(&mix, 0, sizeof mix);
    clock_gettime(CLOCK_MONOTONIC, &mix.t);
    mix.here = (uintptr_t)&mix;
    mix.pid = (long)getpid();
    return pn_hash(&mix, sizeof mix, 0);
}

#endif /* PN_ENABLE_FILES && __linux__ */
