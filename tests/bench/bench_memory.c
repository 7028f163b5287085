/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * bench_memory.c - what does it cost to know how much memory there is?
 *
 *     bench_memory                PN_BENCH_MS: time for the sampler's figure (3000)
 *
 * reading: one sample with memory.stat cached, as an admission takes it; one that reads memory.stat (and
 *          where there is swap vmstat) anew; one that asks whether the control groups are the same, too.
 *          Median and 99th percentile of wall time.                         (A15: cached <= 50 us)
 * level:   feeding a sample to the level machine
 * sampler: CPU time of a thread that takes a sample every 250 ms and feeds it, as a share of one core
 *                                                                          (A15: <= 0.1 %)
 */
#include "mem/pn_pressure.h"

#include "base/pn_os.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double bench_cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The source's clock: real, plus what a test wants to skip. */
static double bench_skipped;

static double bench_clock(void *user)
{
    (void)user;
    return pn_os_now() + bench_skipped;
}

static int bench_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { BENCH_N = 2000 };

/* Times of BENCH_N readings, `skip` seconds apart. */
static void bench_readings(const char *what, pn_msrc *s, double skip)
{
    static double us[BENCH_N];
    pn_mem_sample a;
    for (int i = 0; i < BENCH_N; i++) {
        bench_skipped += skip;
        double t = pn_os_now();
        pn_msrc_read(s, &(pn_msrc_use){0}, &a);
        us[i] = (pn_os_now() - t) * 1e6;
    }
    qsort(us, BENCH_N, sizeof us[0], bench_order);
    printf("reading, %-28s %7.1f us median, %7.1f us p99\n", what, us[BENCH_N / 2], us[BENCH_N * 99 / 100]);
}

static void bench_level(const pn_mem_sample *sample)
{
    pn_pressure p;
    pn_mem_sample a = *sample;
    volatile int sink = 0;
    int n = 1000000;
    pn_pressure_init(&p, false, a.t);
    pn_pressure_disk(&p, 1e9);
    double t = bench_cpu_now();
    for (int i = 0; i < n; i++) {
        a.t += 0.25;
        a.counted = a.t;
        a.psi_us += 1;
        sink += (int)pn_pressure_feed(&p, &a, PN_WORK_ACTIVE);
    }
    printf("level                                 %7.3f us a sample\n", (bench_cpu_now() - t) * 1e6 / n);
}

static void bench_sampler(pn_msrc *s, double seconds)
{
    pn_pressure p;
    pn_mem_sample a;
    int n = 0;
    pn_pressure_init(&p, false, bench_clock(NULL));
    double cpu = bench_cpu_now(), from = pn_os_now();
    while (pn_os_now() - from < seconds) {
        pn_msrc_read(s, &(pn_msrc_use){0}, &a);
        pn_pressure_feed(&p, &a, PN_WORK_ACTIVE);
        n++;
        double wait = pn_pressure_due(&p, bench_clock(NULL));
        struct timespec pause = {(time_t)wait, (long)((wait - (double)(time_t)wait) * 1e9)};
        nanosleep(&pause, NULL);
    }
    cpu = bench_cpu_now() - cpu;
    double wall = pn_os_now() - from;
    printf("sampler at 250 ms                     %7.4f %% of a core, %.1f us CPU a sample (%d in %.1f s)\n",
           100 * cpu / wall, cpu * 1e6 / n, n, wall);
}

int main(void)
{
    const char *ms = getenv("PN_BENCH_MS");
    pn_msrc s;
    pn_mem_sample a;
    pn_err err;
    if (pn_msrc_open(&s, &(pn_msrc_params){.now = bench_clock}, &err) != PN_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    pn_msrc_read(&s, &(pn_msrc_use){0}, &a);
    printf("%.1f GiB budget, %.1f GiB available, %u levels of control groups\n", (double)a.budget / 0x1p30,
           (double)a.soft / 0x1p30, (unsigned)s.host.n_levels);
    bench_readings("memory.stat cached", &s, 0);
    bench_readings("memory.stat anew", &s, 1);
    bench_readings("control groups asked for", &s, 60);
    bench_level(&a);
    bench_sampler(&s, (ms ? atof(ms) : 3000) * 1e-3);
    pn_msrc_close(&s);
    return 0;
}
