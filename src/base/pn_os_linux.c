/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_os_linux.c - random bits, cores and memory, as Linux and its control groups tell them.
 *
 * A container's limit is rarely in one place: it may sit in our own cgroup or in any ancestor, in a
 * version 1 hierarchy, in version 2, or (hybrid) in both.  So for each controller we find
 *
 *     mount point and its root     /proc/self/mountinfo    (root: which cgroup the mount point shows)
 *     our path P                   /proc/self/cgroup       "0::P" (v2), "N:list,of,controllers:P" (v1)
 *     directory                    mount point + (P minus root); the mount point alone when root is
 *                                  no prefix of P, as in a namespaced view
 *
 * and walk from that directory up to the mount point, both included.  A missing file is "no limit
 * there": the root cgroup has none, and a path seen through another namespace may not exist at all.
 *
 * Page cache is charged to a cgroup but given up on demand, so headroom = limit - usage + what is
 * reclaimable (clean file pages and slab).  Swap never counts.
 *
 * Everything is read through a path prefix, so that tests can offer trees of their own.  No heap:
 * lines go through one buffer, and what does not fit (overlay mounts have very long lines) is cut.
 *
 * Sources: Linux Documentation/admin-guide/cgroup-v1, cgroup-v2.rst; proc(5), cgroups(7).
 */
#include "base/pn_os.h"

#if PN_ENABLE_FILES && defined(__linux__)

#include "base/pn_hash.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define OSL_PATH 4096
#define OSL_LINE 2048
#define OSL_NO_LIMIT UINT64_MAX
#define OSL_V1_HUGE ((uint64_t)1 << 62)         /* v1 writes "no limit" as LONG_MAX less a page */

/* ------------------------------------------------------------------------------------------
 * Reading small texts
 * ------------------------------------------------------------------------------------------ */

typedef struct osl_lines {
    int fd;
    size_t at, have;
    char buf[1024];
    char line[OSL_LINE];        /* NUL-terminated, without the newline */
} osl_lines;

static bool osl_lines_open(osl_lines *l, const char *path)
{
    l->at = l->have = 0;
    do
        l->fd = open(path, O_RDONLY | O_CLOEXEC);
    while (l->fd < 0 && errno == EINTR);
    return l->fd >= 0;
}

static void osl_lines_close(osl_lines *l) { close(l->fd); }

static bool osl_lines_fill(osl_lines *l)
{
    ssize_t got;
    do
        got = read(l->fd, l->buf, sizeof l->buf);
    while (got < 0 && errno == EINTR);
    l->at = 0;
    l->have = got > 0 ? (size_t)got : 0;
    return got > 0;
}

/* The next line into l->line, its tail dropped when longer than the buffer. */
static bool osl_lines_next(osl_lines *l)
{
    size_t n = 0;
    bool any = false;
    while (l->at < l->have || osl_lines_fill(l)) {
        char c = l->buf[l->at++];
        any = true;
        if (c == '\n')
            break;
        if (n + 1 < sizeof l->line)
            l->line[n++] = c;
    }
    l->line[n] = 0;
    return any;
}

/* Decimal digits at *s, which moves behind them; saturates.  False: none there. */
static bool osl_u64(const char **s, uint64_t *out)
{
    const char *p = *s;
    uint64_t v = 0;
    if (*p < '0' || *p > '9')
        return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        v = v > (UINT64_MAX - digit) / 10 ? UINT64_MAX : v * 10 + digit;
    }
    *s = p;
    *out = v;
    return true;
}

/* The first line of dir/file into text. */
static bool osl_read_line(const char *dir, const char *file, char text[64])
{
    char path[OSL_PATH];
    osl_lines l;
    int n = snprintf(path, sizeof path, "%s/%s", dir, file);
    if (n < 0 || (size_t)n >= sizeof path || !osl_lines_open(&l, path))
        return false;
    bool ok = osl_lines_next(&l);
    osl_lines_close(&l);
    if (ok)
        snprintf(text, 64, "%.63s", l.line);
    return ok;
}

/* A number in a file of its own; absent, "max" or "-1": `otherwise`. */
static uint64_t osl_read_u64(const char *dir, const char *file, uint64_t otherwise)
{
    char text[64];
    const char *s = text;
    uint64_t v;
    return osl_read_line(dir, file, text) && osl_u64(&s, &v) ? v : otherwise;
}

/* A table of "name value" or "name: value kB" lines: the values asked for, 0 where absent. */
typedef struct osl_field {
    const char *name;
    uint64_t value;
    bool found;
} osl_field;

static bool osl_read_fields(const char *dir, const char *file, osl_field *fields, size_t n_fields)
{
    char path[OSL_PATH];
    osl_lines l;
    int n = snprintf(path, sizeof path, "%s/%s", dir, file);
    if (n < 0 || (size_t)n >= sizeof path || !osl_lines_open(&l, path))
        return false;
    while (osl_lines_next(&l)) {
        size_t len = strcspn(l.line, ": \t");
        for (size_t i = 0; i < n_fields; i++) {
            const char *s = l.line + len + strspn(l.line + len, ": \t");
            if (strlen(fields[i].name) != len || memcmp(fields[i].name, l.line, len) != 0 ||
                !osl_u64(&s, &fields[i].value))
                continue;
            if (strcmp(s, " kB") == 0)
                fields[i].value = fields[i].value > UINT64_MAX / 1024 ? UINT64_MAX : fields[i].value * 1024;
            fields[i].found = true;
        }
    }
    osl_lines_close(&l);
    return true;
}

static uint64_t osl_minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/* ------------------------------------------------------------------------------------------
 * Where our cgroup is
 * ------------------------------------------------------------------------------------------ */

typedef struct osl_group {
    bool found;
    size_t top;                 /* length of dir at which the walk up ends: the mount point */
    char dir[OSL_PATH];         /* where the walk is, test root included */
} osl_group;

/* Is `word` one of the items of a comma-separated list of `len` bytes? */
static bool osl_in_list(const char *list, size_t len, const char *word)
{
    size_t n = strlen(word);
    for (size_t at = 0; at <= len;) {
        size_t item = 0;
        while (at + item < len && list[at + item] != ',')
            item++;
        if (item == n && memcmp(list + at, word, n) == 0)
            return true;
        at += item + 1;
    }
    return false;
}

/* Our path in the hierarchy of `controller` (NULL: version 2), from root/proc/self/cgroup. */
static bool osl_own_path(const char *root, const char *controller, char path[OSL_LINE])
{
    char file[OSL_PATH];
    osl_lines l;
    int n = snprintf(file, sizeof file, "%s/proc/self/cgroup", root);
    bool found = false;
    if (n < 0 || (size_t)n >= sizeof file || !osl_lines_open(&l, file))
        return false;
    while (!found && osl_lines_next(&l)) {
        const char *list = strchr(l.line, ':');         /* "id:list:path"; a path may hold colons */
        const char *own = list ? strchr(list + 1, ':') : NULL;
        if (!own)
            continue;
        list++;
        size_t len = (size_t)(own - list);
        found = controller ? osl_in_list(list, len, controller) : len == 0 && l.line[0] == '0';
        if (found)
            memcpy(path, own + 1, strlen(own + 1) + 1);
    }
    osl_lines_close(&l);
    return found;
}

/* mountinfo writes blanks and backslashes as three octal digits; undo that in place. */
static void osl_unescape(char *s)
{
    char *to = s;
    for (; *s; s++) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' && s[3] >= '0' && s[3] <= '7') {
            *to++ = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
            s += 3;
        } else {
            *to++ = *s;
        }
    }
    *to = 0;
}

typedef struct osl_mount {
    char *root, *point, *type, *options;
} osl_mount;

/* Cut a mountinfo line in place: id parent dev root point options [tags...] - type source options */
static bool osl_split_mount(char *line, osl_mount *m)
{
    char *tail = strstr(line, " - ");
    if (!tail)
        return false;
    *tail = 0;
    *m = (osl_mount){.root = line, .point = line, .type = tail + 3, .options = tail + 3};
    char *at = line;
    for (int field = 0; field < 5; field++) {
        if (field == 3)
            m->root = at;
        if (field == 4)
            m->point = at;
        at += strcspn(at, " ");
        if (*at)
            *at++ = 0;
    }
    at = m->type;
    for (int field = 0; field < 3; field++) {
        if (field == 2)
            m->options = at;
        at += strcspn(at, " ");
        if (*at)
            *at++ = 0;
    }
    osl_unescape(m->root);
    osl_unescape(m->point);
    return m->point[0] == '/';
}

/* What is left of `path` below the mount's root, or NULL when the root is not above it. */
static const char *osl_below(const char *path, const char *mount_root)
{
    size_t n = strlen(mount_root);
    if (n == 1 && mount_root[0] == '/')
        n = 0;
    if (strncmp(path, mount_root, n) != 0 || (path[n] != 0 && path[n] != '/'))
        return NULL;
    const char *rest = path + n;
    for (const char *up = rest; (up = strstr(up, "/..")) != NULL; up += 3)
        if (up[3] == '/' || up[3] == 0)         /* we were moved out of the namespace's root */
            return NULL;
    return strcmp(rest, "/") == 0 ? "" : rest;
}

/* Find the directory of our cgroup in the hierarchy of `controller` (NULL: version 2).  Of several
 * mounts of one hierarchy, the first whose root is above us wins, else the first. */
static void osl_find_group(const char *root, const char *controller, osl_group *g)
{
    char own[OSL_LINE], file[OSL_PATH];
    osl_lines l;
    osl_mount m;
    g->found = false;
    int n = snprintf(file, sizeof file, "%s/proc/self/mountinfo", root);
    if (n < 0 || (size_t)n >= sizeof file || !osl_own_path(root, controller, own) || !osl_lines_open(&l, file))
        return;
    for (bool exact = false; !exact && osl_lines_next(&l);) {
        if (!osl_split_mount(l.line, &m))
            continue;
        if (controller ? strcmp(m.type, "cgroup") != 0 || !osl_in_list(m.options, strlen(m.options), controller)
                       : strcmp(m.type, "cgroup2") != 0)
            continue;
        const char *rest = osl_below(own, m.root);
        exact = rest != NULL;
        if (g->found && !exact)
            continue;
        n = snprintf(g->dir, sizeof g->dir, "%s%s", root, m.point);
        if (n < 0 || (size_t)n >= sizeof g->dir)
            continue;
        g->top = (size_t)n;
        g->found = true;
        if (exact && strlen(rest) < sizeof g->dir - g->top)
            memcpy(g->dir + g->top, rest, strlen(rest) + 1);
    }
    osl_lines_close(&l);
}

/* One level up; false when we were at the mount point. */
static bool osl_parent(osl_group *g)
{
    size_t n = strlen(g->dir);
    if (n <= g->top)
        return false;
    while (n > g->top && g->dir[n - 1] != '/')
        n--;
    while (n > g->top && g->dir[n - 1] == '/')
        n--;
    g->dir[n] = 0;
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Memory
 * ------------------------------------------------------------------------------------------ */

/* limit - usage + reclaimable, never more than the limit itself. */
static uint64_t osl_headroom(uint64_t limit, uint64_t usage, uint64_t reclaim)
{
    return PN_MIN(limit, osl_minus(limit, osl_minus(usage, reclaim)));
}

static void osl_level_v2(const char *dir, uint64_t *total, uint64_t *available)
{
    uint64_t limit = PN_MIN(osl_read_u64(dir, "memory.max", OSL_NO_LIMIT),
                            osl_read_u64(dir, "memory.high", OSL_NO_LIMIT));
    if (limit == OSL_NO_LIMIT)
        return;
    osl_field f[] = {{"inactive_file", 0, false}, {"active_file", 0, false}, {"slab_reclaimable", 0, false},
                     {"file_dirty", 0, false}, {"file_writeback", 0, false}};
    osl_read_fields(dir, "memory.stat", f, PN_COUNT_OF(f));
    uint64_t reclaim = osl_minus(f[0].value + f[1].value + f[2].value, f[3].value + f[4].value);
    *total = PN_MIN(*total, limit);
    *available = PN_MIN(*available, osl_headroom(limit, osl_read_u64(dir, "memory.current", 0), reclaim));
}

static void osl_level_v1(const char *dir, uint64_t *total, uint64_t *available)
{
    uint64_t limit = osl_read_u64(dir, "memory.limit_in_bytes", OSL_NO_LIMIT);
    if (limit >= OSL_V1_HUGE)
        return;
    osl_field f[] = {{"total_inactive_file", 0, false}, {"total_active_file", 0, false},
                     {"total_dirty", 0, false}, {"total_writeback", 0, false}};
    osl_read_fields(dir, "memory.stat", f, PN_COUNT_OF(f));
    uint64_t reclaim = osl_minus(f[0].value + f[1].value, f[2].value + f[3].value);
    *total = PN_MIN(*total, limit);
    *available = PN_MIN(*available, osl_headroom(limit, osl_read_u64(dir, "memory.usage_in_bytes", 0), reclaim));
}

static void osl_memory_host(const char *root, uint64_t *total, uint64_t *available)
{
    char dir[OSL_PATH];
    osl_field f[] = {{"MemTotal", 0, false}, {"MemAvailable", 0, false}, {"MemFree", 0, false},
                     {"Buffers", 0, false}, {"Cached", 0, false}, {"Shmem", 0, false},
                     {"CommitLimit", 0, false}, {"Committed_AS", 0, false}};
    int n = snprintf(dir, sizeof dir, "%s/proc", root);
    if (n < 0 || (size_t)n >= sizeof dir || !osl_read_fields(dir, "meminfo", f, PN_COUNT_OF(f)))
        return;
    if (f[0].found)
        *total = f[0].value;
    if (f[1].found)
        *available = f[1].value;
    else if (f[2].found)                        /* before Linux 3.14 */
        *available = osl_minus(f[2].value + f[3].value + f[4].value, f[5].value);
    if (f[6].found && osl_read_u64(dir, "sys/vm/overcommit_memory", 0) == 2)
        *available = PN_MIN(*available, osl_minus(f[6].value, f[7].value));
}

/* The smallest of everything; OSL_NO_LIMIT where nothing is known. */
static void osl_memory(const char *root, uint64_t *total, uint64_t *available)
{
    osl_group g;
    *total = *available = OSL_NO_LIMIT;
    osl_memory_host(root, total, available);
    osl_find_group(root, NULL, &g);
    if (g.found) {
        do
            osl_level_v2(g.dir, total, available);
        while (osl_parent(&g));
    }
    osl_find_group(root, "memory", &g);
    if (g.found) {
        do
            osl_level_v1(g.dir, total, available);
        while (osl_parent(&g));
    }
}

/* The header's convention: 0 is "unknown", so a known nothing becomes one byte. */
static uint64_t osl_known(uint64_t v)
{
    return v == OSL_NO_LIMIT ? 0 : PN_MAX(v, (uint64_t)1);
}

PN_INTERNAL void pn_os_memory_at(const char *root, uint64_t *total, uint64_t *available)
{
    osl_memory(root, total, available);
    *total = osl_known(*total);
    *available = osl_known(*available);
}

/* What a resource limit leaves, given what /proc/self/status counts against it. */
static uint64_t osl_rlimit_left(int which, uint64_t used)
{
    struct rlimit r;
    if ((which == 0 ? getrlimit(RLIMIT_AS, &r) : getrlimit(RLIMIT_DATA, &r)) != 0 || r.rlim_cur == RLIM_INFINITY)
        return OSL_NO_LIMIT;
    return osl_minus((uint64_t)r.rlim_cur, used);
}

PN_INTERNAL void pn_os_memory(uint64_t *total, uint64_t *available)
{
    osl_field f[] = {{"VmSize", 0, false}, {"VmData", 0, false}};
    osl_memory("", total, available);
    osl_read_fields("/proc/self", "status", f, PN_COUNT_OF(f));
    *available = PN_MIN(*available, osl_rlimit_left(0, f[0].value));
    *available = PN_MIN(*available, osl_rlimit_left(1, f[1].value));
    *total = osl_known(*total);
    *available = osl_known(*available);
}

/* ------------------------------------------------------------------------------------------
 * Cores
 * ------------------------------------------------------------------------------------------ */

/* ceil(quota / period), no more than `cores`. */
static uint32_t osl_quota_cores(uint64_t quota, uint64_t period, uint32_t cores)
{
    if (period == 0 || quota / period >= cores)
        return cores;
    uint64_t n = quota / period + (quota % period != 0);
    return n < 1 ? 1 : (uint32_t)n;
}

static uint32_t osl_cpu_v2(const char *dir, uint32_t cores)
{
    char text[64];
    const char *s = text;
    uint64_t quota, period;
    if (!osl_read_line(dir, "cpu.max", text) || !osl_u64(&s, &quota))      /* absent, or "max 100000" */
        return cores;
    s += *s == ' ';
    return osl_u64(&s, &period) ? osl_quota_cores(quota, period, cores) : cores;
}

static uint32_t osl_cpu_v1(const char *dir, uint32_t cores)
{
    uint64_t quota = osl_read_u64(dir, "cpu.cfs_quota_us", OSL_NO_LIMIT);  /* "-1": none */
    if (quota == OSL_NO_LIMIT)
        return cores;
    return osl_quota_cores(quota, osl_read_u64(dir, "cpu.cfs_period_us", 0), cores);
}

PN_INTERNAL uint32_t pn_os_cores_at(const char *root, uint32_t cores)
{
    osl_group g;
    osl_find_group(root, NULL, &g);
    if (g.found) {
        do
            cores = osl_cpu_v2(g.dir, cores);
        while (osl_parent(&g));
    }
    osl_find_group(root, "cpu", &g);
    if (g.found) {
        do
            cores = osl_cpu_v1(g.dir, cores);
        while (osl_parent(&g));
    }
    return PN_MAX(cores, 1u);
}

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

PN_INTERNAL uint32_t pn_os_cores(void) { return pn_os_cores_at("", osl_affinity()); }

/* ------------------------------------------------------------------------------------------
 * Random bits
 * ------------------------------------------------------------------------------------------ */

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

#undef OSL_PATH
#undef OSL_LINE
#undef OSL_NO_LIMIT
#undef OSL_V1_HUGE

#endif /* PN_ENABLE_FILES && __linux__ */
