/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_host_linux.c - Linux: meminfo, control groups of both versions, resource limits, counters.
 *
 * What is read when:
 *     every reading       meminfo; limit and usage of each group; pressure and events of our own;
 *                         status, when a resource limit is set
 *     once a second       memory.stat of our own group and of those with a limit; limits;
 *                         overcommit_memory; vmstat, for what our own memory.stat does not tell
 *     every 60 seconds    whether our groups are the same
 *
 * "Our own group" is the innermost one of the hierarchy that has the memory controller.
 */
#include "base/pn_host.h"

#if PN_ENABLE_FILES && defined(__linux__)

#include "base/pn_cgroup.h"
#include "base/pn_hash.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#define HOST_V1_NO_LIMIT ((uint64_t)1 << 62)    /* v1 writes "none" as LONG_MAX less a page (2.1) */
static const double host_resolve_s = 60, host_count_s = 1;      /* memory sheet 2.1, 2.4 */

/* ------------------------------------------------------------------------------------------
 * Numbers and tables
 * ------------------------------------------------------------------------------------------ */

static uint64_t host_page(void)
{
    long n = sysconf(_SC_PAGESIZE);
    return n > 0 ? (uint64_t)n : 4096;
}

/* Open dir/file.  Absent or not ours to read: -1.  Out of descriptors is another matter. */
static int host_open(pn_host *h, const char *dir, const char *file)
{
    int fd = pn_cgroup_open_file(dir, file);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
        h->starved = true;
    return fd;
}

static void host_shut(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* The number a text begins with; "max", "-1" or no text: none.  The kernel's texts are never empty:
 * one that is has gone away. */
static uint64_t host_number(pn_host *h, int fd, uint64_t none)
{
    char text[64];
    const char *s = text;
    ssize_t got;
    uint64_t v;
    if (fd < 0)
        return none;
    do
        got = pread(fd, text, sizeof text - 1, 0);
    while (got < 0 && errno == EINTR);
    if (got <= 0) {
        h->vanished = true;
        return none;
    }
    text[got] = 0;
    return pn_cgroup_u64(&s, &v) ? v : none;
}

/* Of a table of "name value" or "name: value kB" lines, the values asked for. */
typedef struct host_field {
    const char *name;
    uint64_t value;             /* what stands here before, stays where the line is missing */
    bool found;
} host_field;

/* True: it had not been found before. */
static bool host_take_field(const char *line, host_field *f, size_t n_fields)
{
    size_t len = strcspn(line, ": \t");
    const char *s = line + len + strspn(line + len, ": \t");
    for (size_t i = 0; i < n_fields; i++) {
        uint64_t v;
        if (strncmp(f[i].name, line, len) != 0 || f[i].name[len] != 0 || !pn_cgroup_u64(&s, &v))
            continue;
        bool first = !f[i].found;
        f[i].value = strcmp(s, " kB") == 0 ? pn_mul_sat(v, 1024) : v;
        f[i].found = true;
        return first;
    }
    return false;
}

/* Until n_found of them were there: for one there may be two names, of which each kernel knows one. */
static void host_fields(pn_host *h, int fd, host_field *f, size_t n_fields, size_t n_found)
{
    pn_lines l;
    bool any = false;
    if (fd < 0)
        return;
    pn_lines_begin(&l, fd);
    l.whole = fd != h->vmstat;                  /* which is made line by line, a page at a time */
    while (n_found && pn_lines_next(&l)) {
        n_found -= host_take_field(l.line, f, n_fields);
        any = true;
    }
    if (l.failed || !any)
        h->vanished = true;
}

/* ------------------------------------------------------------------------------------------
 * Opening
 * ------------------------------------------------------------------------------------------ */

static void host_add_level(pn_host *h, const char *dir, bool v1)
{
    if (h->n_levels == PN_HOST_GROUPS)
        return;
    pn_host_level *g = &h->levels[h->n_levels];
    memset(g, 0, sizeof *g);
    g->v1 = v1;
    g->limit = host_open(h, dir, v1 ? "memory.limit_in_bytes" : "memory.max");
    g->high = v1 ? -1 : host_open(h, dir, "memory.high");
    g->usage = host_open(h, dir, v1 ? "memory.usage_in_bytes" : "memory.current");
    g->stat = host_open(h, dir, "memory.stat");
    if (g->limit >= 0 || g->high >= 0 || g->usage >= 0 || g->stat >= 0)
        h->n_levels++;
}

/* Find our groups of one version and open them, from ours up to the mount point. */
static void host_add_levels(pn_host *h, bool v1)
{
    pn_cgroup g;
    uint32_t before = h->n_levels;
    if (!pn_cgroup_find(&g, h->root, v1 ? "memory" : NULL))
        return;
    do {
        if (!v1 && h->psi < 0)
            h->psi = host_open(h, g.dir, "memory.pressure");
        if (h->events < 0 && h->n_levels == before)
            h->events = host_open(h, g.dir, v1 ? "memory.oom_control" : "memory.events");
        host_add_level(h, g.dir, v1);
    } while (pn_cgroup_up(&g));
    if (h->n_levels > before)
        h->own = (int32_t)before;           /* v1 is asked last: on hybrid systems memory is there */
}

static void host_open_proc(pn_host *h)
{
    h->groups = host_open(h, h->root, "proc/self/cgroup");
    h->meminfo = host_open(h, h->root, "proc/meminfo");
    h->overcommit = host_open(h, h->root, "proc/sys/vm/overcommit_memory");
    h->vmstat = host_open(h, h->root, "proc/vmstat");
    h->limits = host_open(h, h->root, "proc/self/limits");
    h->status = host_open(h, h->root, "proc/self/status");
}

/* 0: nobody says. */
static uint64_t host_where(const pn_host *h)
{
    uint64_t d = 0;
    pn_lines l;
    pn_lines_begin(&l, h->groups);
    while (pn_lines_next(&l))
        d = pn_hash(l.line, strlen(l.line), d + 1);
    return l.failed ? 0 : d;
}

static void host_resolve(pn_host *h, double now)
{
    pn_host_close(h);
    h->open = true;
    h->starved = false;
    h->resolved = now;
    h->counted = -1;
    h->no_swap = false;
    h->psi = h->events = h->own = -1;
    h->n_levels = 0;
    host_open_proc(h);
    h->where = host_where(h);
    host_add_levels(h, false);
    host_add_levels(h, true);
    if (h->psi < 0)
        h->psi = host_open(h, h->root, "proc/pressure/memory");
}

PN_INTERNAL void pn_host_open(pn_host *h, const char *root)
{
    memset(h, 0, sizeof *h);
    h->root = root;
}

PN_INTERNAL void pn_host_close(pn_host *h)
{
    if (!h->open)
        return;
    int *fd[] = {&h->groups, &h->meminfo, &h->overcommit, &h->vmstat, &h->limits, &h->status, &h->psi, &h->events};
    for (size_t i = 0; i < PN_COUNT_OF(fd); i++)
        host_shut(fd[i]);
    for (uint32_t i = 0; i < h->n_levels; i++) {
        host_shut(&h->levels[i].limit);
        host_shut(&h->levels[i].high);
        host_shut(&h->levels[i].usage);
        host_shut(&h->levels[i].stat);
    }
    h->open = false;
}

/* ------------------------------------------------------------------------------------------
 * Once a second
 * ------------------------------------------------------------------------------------------ */

/* Reclaim and mapped of a level; of our own group also the counters (in pages). */
static void host_count_level(pn_host *h, pn_host_level *g, bool own, uint64_t page)
{
    static const char *const names[2][6] = {
        {"inactive_file", "active_file", "slab_reclaimable", "file_dirty", "file_writeback", "file_mapped"},
        {"total_inactive_file", "total_active_file", "", "total_dirty", "total_writeback", "total_mapped_file"}};
    host_field f[9];
    memset(f, 0, sizeof f);
    for (size_t i = 0; i < 6; i++)
        f[i].name = names[g->v1][i];
    f[6].name = g->v1 ? "total_workingset_refault_file" : "workingset_refault_file";
    f[7].name = "workingset_refault";               /* before Linux 5.9: anonymous pages never refaulted */
    f[8].name = g->v1 ? "total_pswpin" : "pswpin";  /* since 6.14 */
    host_fields(h, g->stat, f, PN_COUNT_OF(f), PN_COUNT_OF(f) - 1);
    g->counted = true;
    g->reclaim = pn_sub_sat(pn_add_sat(pn_add_sat(f[0].value, f[1].value), f[2].value),
                           pn_add_sat(f[3].value, f[4].value));
    g->mapped = f[5].value;
    if (!own)
        return;
    if (f[6].found || f[7].found) {
        h->known |= PN_HOST_REFAULT;
        h->refault = pn_mul_sat(f[6].found ? f[6].value : f[7].value, page);
    }
    if (f[8].found) {
        h->known |= PN_HOST_SWAPIN;
        h->swapin = pn_mul_sat(f[8].value, page);
    }
}

/* What our own group does not tell, of the whole machine. */
static void host_count_machine(pn_host *h, uint64_t page)
{
    host_field f[] = {{"workingset_refault_file", 0, false}, {"workingset_refault", 0, false}, {"pswpin", 0, false}};
    if ((h->known & PN_HOST_REFAULT) && (h->no_swap || (h->known & PN_HOST_SWAPIN)))
        return;                                 /* vmstat is the dearest text */
    host_fields(h, h->vmstat, f, PN_COUNT_OF(f), 2);
    if (!(h->known & PN_HOST_REFAULT) && (f[0].found || f[1].found)) {
        h->known |= PN_HOST_REFAULT;
        h->refault = pn_mul_sat(f[0].found ? f[0].value : f[1].value, page);
    }
    if (!(h->known & PN_HOST_SWAPIN) && f[2].found) {
        h->known |= PN_HOST_SWAPIN;
        h->swapin = pn_mul_sat(f[2].value, page);
    }
}

/* The soft value of "Max address space    soft    hard    bytes"; "unlimited": none. */
static void host_count_limits(pn_host *h)
{
    static const char as[] = "Max address space", data[] = "Max data size";
    pn_lines l;
    h->limit_as = h->limit_data = PN_HOST_UNKNOWN;
    if (h->limits < 0)
        return;
    pn_lines_begin(&l, h->limits);
    l.whole = true;
    while (pn_lines_next(&l)) {
        bool is_as = strncmp(l.line, as, sizeof as - 1) == 0;
        if (!is_as && strncmp(l.line, data, sizeof data - 1) != 0)
            continue;
        const char *s = l.line + (is_as ? sizeof as : sizeof data) - 1;
        s += strspn(s, " ");
        pn_cgroup_u64(&s, is_as ? &h->limit_as : &h->limit_data);
    }
}

static void host_count(pn_host *h, double now)
{
    uint64_t page = host_page();
    h->counted = now;
    h->known = 0;
    h->strict = host_number(h, h->overcommit, 0) == 2;
    for (uint32_t i = 0; i < h->n_levels; i++) {
        h->levels[i].counted = false;
        if ((int32_t)i == h->own)
            host_count_level(h, &h->levels[i], true, page);
    }
    host_count_machine(h, page);
    host_count_limits(h);
}

/* ------------------------------------------------------------------------------------------
 * Every reading
 * ------------------------------------------------------------------------------------------ */

static void host_read_machine(pn_host *h, pn_host_reading *r)
{
    host_field f[] = {{"MemTotal", PN_HOST_UNKNOWN, false}, {"MemAvailable", PN_HOST_UNKNOWN, false},
                      {"MemFree", 0, false}, {"Buffers", 0, false}, {"Cached", 0, false}, {"Shmem", 0, false},
                      {"Mapped", PN_HOST_UNKNOWN, false}, {"SwapTotal", 0, false}, {"CommitLimit", 0, false}, {"Committed_AS", 0, false}};
    size_t n = PN_COUNT_OF(f) - (h->strict ? 0 : 2);
    host_fields(h, h->meminfo, f, n, n);
    r->total = f[0].value;
    r->available = f[1].value;
    if (!f[1].found && f[2].found)              /* before Linux 3.14 */
        r->available = pn_sub_sat(pn_add_sat(pn_add_sat(f[2].value, f[3].value), f[4].value), f[5].value);
    r->mapped = f[6].value;
    r->unused = f[2].value;
    h->no_swap = f[7].found && f[7].value == 0;
    if (h->strict && f[8].found) {
        r->commit_limit = f[8].value;
        r->commit_left = pn_sub_sat(f[8].value, f[9].value);
    }
}

static void host_read_level(pn_host *h, pn_host_level *g, pn_host_reading *r)
{
    uint64_t limit = host_number(h, g->limit, PN_HOST_UNKNOWN);
    if (g->high >= 0)
        limit = PN_MIN(limit, host_number(h, g->high, PN_HOST_UNKNOWN));
    if (limit == PN_HOST_UNKNOWN || (g->v1 && limit >= HOST_V1_NO_LIMIT))
        return;
    if (!g->counted)
        host_count_level(h, g, false, 0);
    r->groups[r->n_groups++] = (pn_host_group){.limit = limit, .usage = host_number(h, g->usage, 0),
                                               .reclaim = g->reclaim, .mapped = g->mapped};
}

/* What the resource limits leave, given what the kernel counts against them. */
static void host_read_rlimits(pn_host *h, pn_host_reading *r)
{
    host_field f[] = {{"VmSize", 0, false}, {"VmData", 0, false}};
    r->rlimit = PN_MIN(h->limit_as, h->limit_data);
    if (r->rlimit == PN_HOST_UNKNOWN)
        return;
    host_fields(h, h->status, f, PN_COUNT_OF(f), PN_COUNT_OF(f));
    uint64_t as = h->limit_as == PN_HOST_UNKNOWN ? PN_HOST_UNKNOWN : pn_sub_sat(h->limit_as, f[0].value);
    uint64_t data = h->limit_data == PN_HOST_UNKNOWN ? PN_HOST_UNKNOWN : pn_sub_sat(h->limit_data, f[1].value);
    r->rlimit_left = PN_MIN(as, data);
}

/* "full avg10=0.00 avg60=0.00 avg300=0.00 total=N", N in microseconds.  A kernel may let us open this
 * text and refuse to read it (psi=0): that does not mean it vanished. */
static void host_read_psi(pn_host *h, pn_host_reading *r)
{
    pn_lines l;
    pn_lines_begin(&l, h->psi);
    l.whole = true;
    while (h->psi >= 0 && pn_lines_next(&l)) {
        const char *s = strncmp(l.line, "full ", 5) == 0 ? strstr(l.line, " total=") : NULL;
        if (s && (s += 7, pn_cgroup_u64(&s, &r->psi_us)))
            r->known |= PN_HOST_PSI;
    }
}

static void host_read_oom(pn_host *h, pn_host_reading *r)
{
    host_field f[] = {{"oom", 0, false}, {"oom_kill", 0, false}};
    host_fields(h, h->events, f, PN_COUNT_OF(f), PN_COUNT_OF(f));
    if (!f[0].found && !f[1].found)
        return;
    r->known |= PN_HOST_OOM;
    r->oom = pn_add_sat(f[0].value, f[1].value);
}

static void host_read_once(pn_host *h, double now, pn_host_reading *r)
{
    memset(r, 0, sizeof *r);
    r->total = r->available = r->mapped = PN_HOST_UNKNOWN;
    r->commit_limit = r->commit_left = r->rlimit = r->rlimit_left = PN_HOST_UNKNOWN;
    h->vanished = false;
    if (h->counted < 0 || now - h->counted >= host_count_s)
        host_count(h, now);
    r->known = h->known;
    r->refault = h->refault;
    r->swapin = h->swapin;
    r->counted = h->counted;
    host_read_machine(h, r);
    for (uint32_t i = 0; i < h->n_levels; i++)
        host_read_level(h, &h->levels[i], r);
    host_read_rlimits(h, r);
    host_read_psi(h, r);
    host_read_oom(h, r);
    r->lost = h->starved || (r->available == PN_HOST_UNKNOWN && r->n_groups == 0);
}

PN_INTERNAL void pn_host_read(pn_host *h, double now, pn_host_reading *out)
{
    bool due = h->open && now - h->resolved >= host_resolve_s;
    if (!h->open || h->starved || (due && (!h->where || host_where(h) != h->where)))
        host_resolve(h, now);
    else if (due)
        h->resolved = now;
    host_read_once(h, now, out);
    if (h->vanished) {
        host_resolve(h, now);
        host_read_once(h, now, out);
    }
}

/* ------------------------------------------------------------------------------------------
 * Cores
 * ------------------------------------------------------------------------------------------ */

/* The first line of dir/file; false where there is none. */
static bool host_line(const char *dir, const char *file, pn_lines *l)
{
    int fd = pn_cgroup_open_file(dir, file);
    if (fd < 0)
        return false;
    pn_lines_begin(l, fd);
    bool ok = pn_lines_next(l);
    close(fd);
    return ok;
}

/* ceil(quota / period), no more than `cores`. */
static uint32_t host_quota(uint64_t quota, uint64_t period, uint32_t cores)
{
    if (period == 0 || quota / period >= cores)
        return cores;
    uint64_t n = quota / period + (quota % period != 0);
    return n < 1 ? 1 : (uint32_t)n;
}

static uint32_t host_quota_v2(const char *dir, uint32_t cores)
{
    pn_lines l;
    const char *s = l.line;
    uint64_t quota, period;
    if (!host_line(dir, "cpu.max", &l) || !pn_cgroup_u64(&s, &quota))      /* absent, or "max 100000" */
        return cores;
    s += *s == ' ';
    return pn_cgroup_u64(&s, &period) ? host_quota(quota, period, cores) : cores;
}

static uint32_t host_quota_v1(const char *dir, uint32_t cores)
{
    pn_lines quota_text, period_text;
    const char *q = quota_text.line, *p = period_text.line;
    uint64_t quota, period;
    if (!host_line(dir, "cpu.cfs_quota_us", &quota_text) || !pn_cgroup_u64(&q, &quota) ||      /* "-1": none */
        !host_line(dir, "cpu.cfs_period_us", &period_text) || !pn_cgroup_u64(&p, &period))
        return cores;
    return host_quota(quota, period, cores);
}

/* Cores in a list like "0-3,8"; 0 when it is none. */
static uint64_t host_count_list(const char *s)
{
    uint64_t n = 0, first, last;
    while (pn_cgroup_u64(&s, &first)) {
        last = first;
        if (*s == '-') {
            s++;
            if (!pn_cgroup_u64(&s, &last) || last < first)
                return 0;
        }
        n = pn_add_sat(n, pn_add_sat(last - first, 1));
        if (*s != ',')
            break;
        s++;
    }
    return n;
}

/* The effective list of a cpuset is already cut to that of every group above it. */
static uint32_t host_cpuset(const char *dir, const char *file, uint32_t cores)
{
    pn_lines l;
    uint64_t n = host_line(dir, file, &l) ? host_count_list(l.line) : 0;
    return n && n < cores ? (uint32_t)n : cores;
}

PN_INTERNAL uint32_t pn_host_cores(const char *root, uint32_t cores)
{
    pn_cgroup g;
    if (pn_cgroup_find(&g, root, NULL)) {
        cores = host_cpuset(g.dir, "cpuset.cpus.effective", cores);
        do
            cores = host_quota_v2(g.dir, cores);
        while (pn_cgroup_up(&g));
    }
    if (pn_cgroup_find(&g, root, "cpuset"))
        cores = host_cpuset(g.dir, "cpuset.effective_cpus", cores);
    if (pn_cgroup_find(&g, root, "cpu")) {
        do
            cores = host_quota_v1(g.dir, cores);
        while (pn_cgroup_up(&g));
    }
    return PN_MAX(cores, 1u);
}

#undef HOST_V1_NO_LIMIT

#endif /* PN_ENABLE_FILES && __linux__ */
