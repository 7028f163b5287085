/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_os.c - files, random bits, and what control groups say, from trees written to a temporary
 * folder: version 1, version 2, both at once, namespaced, nested.
 */
#include "pn_test.h"

#include "base/pn_os.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#if PN_ENABLE_FILES && defined(__linux__)

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static char test_dir[256];

/* --- fixture trees ------------------------------------------------------------------------------- */

static char tree_root[320];
static int tree_count;

static void tree_file(const char *name, const char *text)
{
    char path[1024];
    snprintf(path, sizeof path, "%s%s", tree_root, name);
    for (char *p = path + strlen(test_dir) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
    FILE *f = fopen(path, "wb");
    if (!PN_CHECK(f != NULL, "%s", path))
        return;
    fputs(text, f);
    fclose(f);
}

/* A new tree with 8 GiB of memory, 6 GiB of them available. */
static void tree_new(const char *cgroup, const char *mountinfo)
{
    snprintf(tree_root, sizeof tree_root, "%s/tree%d", test_dir, tree_count++);
    tree_file("/proc/meminfo", "MemTotal:        8388608 kB\nMemFree:         1048576 kB\n"
                               "MemAvailable:    6291456 kB\nBuffers:               0 kB\n"
                               "CommitLimit:     4194304 kB\nCommitted_AS:    1048576 kB\n");
    tree_file("/proc/self/cgroup", cgroup);
    tree_file("/proc/self/mountinfo", mountinfo);
}

static void expect_memory(const char *what, uint64_t total, uint64_t available)
{
    uint64_t t = 1, a = 1;
    pn_os_memory_at(tree_root, &t, &a);
    PN_CHECK(t == total, "%s: total %" PRIu64 ", expected %" PRIu64, what, t, total);
    PN_CHECK(a == available, "%s: available %" PRIu64 ", expected %" PRIu64, what, a, available);
}

static void expect_cores(const char *what, uint32_t cores)
{
    uint32_t n = pn_os_cores_at(tree_root, 8);
    PN_CHECK(n == cores, "%s: %" PRIu32 " cores, expected %" PRIu32, what, n, cores);
}

#define MOUNT_V2 "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define MOUNT_V1 "31 30 0:27 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n" \
                 "32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct\n"

/* --- memory ------------------------------------------------------------------------------------- */

static void no_cgroups_means_the_machine(void)
{
    tree_new("", "");
    expect_memory("no cgroup lines", 8 * GIB, 6 * GIB);
    expect_cores("no cgroup lines", 8);
    tree_file("/proc/sys/vm/overcommit_memory", "2\n");
    expect_memory("strict overcommit", 8 * GIB, 3 * GIB);
    tree_file("/proc/sys/vm/overcommit_memory", "1\n");
    tree_file("/proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 1048576 kB\nBuffers: 1024 kB\nCached: 2048 kB\nShmem: 1024 kB\n");
    expect_memory("a kernel without MemAvailable", 8 * GIB, GIB + 2 * MIB);
    snprintf(tree_root, sizeof tree_root, "%s/absent", test_dir);
    expect_memory("nothing at all is unknown", 0, 0);
    expect_cores("nothing at all", 8);
}

static void v2_takes_the_smallest_of_all_ancestors(void)
{
    tree_new("0::/user.slice/app\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/user.slice/app/memory.max", "max\n");
    tree_file("/sys/fs/cgroup/user.slice/app/memory.high", "max\n");
    tree_file("/sys/fs/cgroup/user.slice/app/memory.current", "1048576\n");
    expect_memory("max everywhere", 8 * GIB, 6 * GIB);
    tree_file("/sys/fs/cgroup/user.slice/memory.max", "2147483648\n");
    tree_file("/sys/fs/cgroup/user.slice/memory.current", "1073741824\n");
    expect_memory("limit in the parent", 2 * GIB, GIB);
    tree_file("/sys/fs/cgroup/user.slice/app/memory.high", "536870912\n");
    expect_memory("memory.high in the leaf", 512 * MIB, 511 * MIB);
    tree_file("/sys/fs/cgroup/user.slice/app/memory.current", "1073741824\n");
    expect_memory("nothing left is not unknown", 512 * MIB, 1);
}

static void v2_counts_clean_page_cache_as_free(void)
{
    tree_new("0::/app\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/app/memory.max", "1073741824\n");
    tree_file("/sys/fs/cgroup/app/memory.current", "1072693248\n");
    expect_memory("no memory.stat", GIB, MIB);
    tree_file("/sys/fs/cgroup/app/memory.stat",
              "anon 104857600\nfile 900000000\ninactive_file 524288000\nactive_file 104857600\n"
              "slab_reclaimable 1048576\nfile_dirty 5242880\nfile_writeback 0\nslab_reclaimable_extra 99\n");
    expect_memory("mostly page cache", GIB, MIB + 500 * MIB + 100 * MIB + MIB - 5 * MIB);
    tree_file("/sys/fs/cgroup/app/memory.current", "1048576\n");
    expect_memory("more reclaimable than used", GIB, GIB);
}

static void v2_root_and_odd_paths(void)
{
    tree_new("0::/\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/memory.max", "1073741824\n");
    tree_file("/sys/fs/cgroup/memory.current", "0\n");
    expect_memory("namespaced: the mount point itself", GIB, GIB);
    tree_new("0::/docker/abc/inner\n", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    tree_file("/sys/fs/cgroup/memory.max", "3221225472\n");
    tree_file("/sys/fs/cgroup/inner/memory.max", "1073741824\n");
    expect_memory("mount root is above us", GIB, GIB);
    tree_new("0::/docker/abcdef\n", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    tree_file("/sys/fs/cgroup/memory.max", "3221225472\n");
    tree_file("/sys/fs/cgroup/def/memory.max", "1\n");
    expect_memory("a prefix must end at a slash", 3 * GIB, 3 * GIB);
    tree_new("0::/../other\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/memory.max", "3221225472\n");
    tree_file("/sys/fs/other/memory.max", "1\n");
    expect_memory("outside of the namespace", 3 * GIB, 3 * GIB);
    tree_new("0::/gone/with/the/host\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/memory.max", "1073741824\n");
    expect_memory("a path that is not here", GIB, GIB);
    tree_new("0::/a:b/c d\n", "29 23 0:26 /x /wrong rw - cgroup2 c rw\n30 23 0:26 / /sys/fs\\040x/cgroup rw - cgroup2 c rw\n");
    tree_file("/wrong/memory.max", "1\n");
    tree_file("/sys/fs x/cgroup/a:b/c d/memory.max", "1073741824\n");
    expect_memory("blanks, colons, a second mount", GIB, GIB);
}

static void v1_takes_the_smallest_of_all_ancestors(void)
{
    tree_new("12:memory:/a/b\n4:cpu,cpuacct:/c\n1:name=systemd:/x\n", MOUNT_V1);
    tree_file("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    tree_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    expect_memory("the huge number is no limit", 8 * GIB, 6 * GIB);
    tree_file("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2147483648\n");
    tree_file("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "2147483648\n");
    tree_file("/sys/fs/cgroup/memory/a/memory.stat",
              "inactive_file 1\ntotal_inactive_file 536870912\ntotal_active_file 536870912\n"
              "total_dirty 1048576\ntotal_writeback 1048576\n");
    expect_memory("limit in the parent", 2 * GIB, GIB - 2 * MIB);
    tree_new("12:memory:/docker/abc\n", "31 30 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    tree_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    tree_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
    expect_memory("container", GIB, GIB);
}

static void hybrid_asks_both(void)
{
    tree_new("12:memory:/m\n0::/u\n",
             MOUNT_V1 "40 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    tree_file("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "2147483648\n");
    expect_memory("limit in version 1", 2 * GIB, 2 * GIB);
    tree_file("/sys/fs/cgroup/unified/u/memory.max", "1073741824\n");
    expect_memory("limit in version 2", GIB, GIB);
}

static void long_lines_and_garbage_do_no_harm(void)
{
    char *text = malloc(70000);
    if (!text)
        return;
    memset(text, 'x', 69999);
    memcpy(text, "1 2 3 / /overlay rw - overlay overlay lowerdir=", 47);
    strcpy(text + 60000, "\n" MOUNT_V2);
    tree_new("::::\n\n0:\nnonsense\n0::/app\n", text);
    free(text);
    tree_file("/sys/fs/cgroup/app/memory.max", "1073741824\n");
    tree_file("/sys/fs/cgroup/app/memory.current", "garbage\n");
    expect_memory("after a long line", GIB, GIB);
    tree_file("/sys/fs/cgroup/app/memory.max", "");
    expect_memory("empty file", 8 * GIB, 6 * GIB);
    tree_file("/sys/fs/cgroup/app/memory.max", "99999999999999999999999999\n");
    expect_memory("a number that overflows", 8 * GIB, 6 * GIB);
    tree_new("0::/app\n", "30 23\n - \n - cgroup2\n30 23 0:26 / - cgroup2 c rw\n30 23 0:26 /\n");
    expect_memory("mounts cut short", 8 * GIB, 6 * GIB);
}

/* --- cores -------------------------------------------------------------------------------------- */

static void cpu_quota_is_rounded_up(void)
{
    static const struct { const char *text; uint32_t cores; } v2[] = {
        {"max 100000\n", 8}, {"50000 100000\n", 1}, {"100000 100000\n", 1}, {"150000 100000\n", 2},
        {"400000 100000\n", 4}, {"9999999 100000\n", 8}, {"1 0\n", 8}, {"200000\n", 8}, {"", 8}, {"0 100000\n", 1},
    };
    tree_new("0::/a/b\n", MOUNT_V2);
    for (size_t i = 0; i < PN_COUNT_OF(v2); i++) {
        tree_file("/sys/fs/cgroup/a/b/cpu.max", v2[i].text);
        expect_cores(v2[i].text, v2[i].cores);
    }
    tree_file("/sys/fs/cgroup/a/b/cpu.max", "500000 100000\n");
    tree_file("/sys/fs/cgroup/a/cpu.max", "300000 100000\n");
    expect_cores("quota in the parent", 3);

    tree_new("4:cpu,cpuacct:/c/d\n", MOUNT_V1);
    tree_file("/sys/fs/cgroup/cpu,cpuacct/c/d/cpu.cfs_quota_us", "-1\n");
    tree_file("/sys/fs/cgroup/cpu,cpuacct/c/d/cpu.cfs_period_us", "100000\n");
    expect_cores("version 1 without quota", 8);
    tree_file("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "250000\n");
    tree_file("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
    expect_cores("version 1 quota in the parent", 3);
}

static void the_real_machine_answers(void)
{
    uint64_t total = 0, available = 0;
    pn_os_memory(&total, &available);
    PN_CHECK(total > 16 * MIB && available > 0 && available <= total + GIB, "%" PRIu64 " %" PRIu64, total, available);
    uint32_t cores = pn_os_cores();
    PN_CHECK(cores >= 1 && cores <= 8192);
    double a = pn_os_now(), b = pn_os_now();
    PN_CHECK(b >= a && a > 0);
}

static void entropy_differs(void)
{
    uint64_t seen[64];
    for (int i = 0; i < 64; i++) {
        seen[i] = pn_os_entropy();
        for (int k = 0; k < i; k++)
            PN_CHECK(seen[k] != seen[i]);
    }
}

/* --- files --------------------------------------------------------------------------------------- */

static const char *path_in(char buf[512], const char *name)
{
    snprintf(buf, 512, "%s/%s", test_dir, name);
    return buf;
}

static long files_here(void)
{
    char command[512], line[64] = "";
    snprintf(command, sizeof command, "ls -A '%s/out' | wc -l", test_dir);
    FILE *p = popen(command, "r");
    if (!p)
        return -1;
    if (!fgets(line, sizeof line, p))
        line[0] = 0;
    pclose(p);
    return strtol(line, NULL, 10);
}

static void a_new_file_appears_whole_or_not_at_all(void)
{
    char dir[512], path[512];
    pn_os_out o;
    pn_err err = {0};
    size_t n;
    PN_CHECK(mkdir(path_in(dir, "out"), 0700) == 0);
    path_in(path, "out/model.gguf");
    PN_CHECK(pn_os_create(&o, path, &err) == PN_OK, "%s", err.text);
    PN_CHECK(fcntl(o.fd, F_GETFD) & FD_CLOEXEC);
    PN_CHECK(pn_os_write(&o, "old", 3, &err) == PN_OK && pn_os_write(&o, NULL, 0, &err) == PN_OK && o.written == 3);
    PN_CHECK(access(path, F_OK) != 0);
    PN_CHECK(pn_os_commit(&o, &err) == PN_OK, "%s", err.text);
    pn_os_abandon(&o);
    PN_CHECK(files_here() == 1);
    /* replaced only on commit */
    PN_CHECK(pn_os_create(&o, path, &err) == PN_OK && pn_os_write(&o, "newer", 5, &err) == PN_OK);
    pn_os_abandon(&o);
    pn_os_abandon(&o);
    PN_CHECK(files_here() == 1);
    char *text = pn_test_read_file(path, &n);
    PN_CHECK(text && n == 3 && !memcmp(text, "old", 3));
    free(text);
    PN_CHECK(pn_os_create(&o, path, &err) == PN_OK && pn_os_write(&o, "newer", 5, &err) == PN_OK &&
             pn_os_commit(&o, &err) == PN_OK);
    text = pn_test_read_file(path, &n);
    PN_CHECK(text && n == 5 && files_here() == 1);
    free(text);
    PN_CHECK(pn_os_write(&o, "x", 1, &err) == PN_E_STATE && pn_os_commit(&o, &err) == PN_E_STATE);
    /* what cannot be written */
    PN_CHECK(pn_os_create(&o, dir, &err) == PN_E_INVALID && strstr(err.text, "not a regular file"), "%s", err.text);
    pn_os_abandon(&o);
    PN_CHECK(pn_os_create(&o, "/dev/null", &err) == PN_E_INVALID);
    char absent[512], *longer = malloc(2000);
    PN_CHECK(pn_os_create(&o, path_in(absent, "absent/model.gguf"), &err) == PN_E_IO && strstr(err.text, "no such file"), "%s", err.text);
    if (longer) {
        memset(longer, 'a', 1999);
        longer[1999] = 0;
        PN_CHECK(pn_os_create(&o, longer, &err) == PN_E_INVALID && strstr(err.text, "1999 bytes"), "%s", err.text);
        pn_os_abandon(&o);
        free(longer);
    }
    PN_CHECK(files_here() == 1);
    unlink(path);
    rmdir(dir);
}

static void files_are_read_by_position(void)
{
    char path[512];
    uint8_t buf[8];
    pn_os_file f;
    pn_os_out o;
    pn_err err = {0};
    const void *map = NULL;
    path_in(path, "bytes");
    PN_CHECK(pn_os_create(&o, path, &err) == PN_OK && pn_os_write(&o, "0123456789", 10, &err) == PN_OK &&
             pn_os_commit(&o, &err) == PN_OK);
    PN_CHECK(pn_os_open(&f, path, &err) == PN_OK && f.size == 10 && (fcntl(f.fd, F_GETFD) & FD_CLOEXEC));
    PN_CHECK(pn_os_read(&f, 3, buf, 7, &err) == PN_OK && !memcmp(buf, "3456789", 7));
    PN_CHECK(pn_os_read(&f, 10, buf, 0, &err) == PN_OK);
    PN_CHECK(pn_os_read(&f, 3, buf, 8, &err) == PN_E_IO && strstr(err.text, "ends at byte 10"), "%s", err.text);
    PN_CHECK(pn_os_read(&f, UINT64_MAX, buf, 8, &err) == PN_E_IO);
    PN_CHECK(pn_os_read(&f, INT64_MAX, buf, 8, &err) == PN_E_IO);
    PN_CHECK(pn_os_map(&f, &map, &err) == PN_OK && !memcmp(map, "0123456789", 10));
    pn_os_unmap(map, f.size);
    pn_os_unmap(NULL, 0);
    pn_os_close(&f);
    pn_os_close(&f);
    PN_CHECK(pn_os_read(&f, 0, buf, 1, &err) == PN_E_IO && pn_os_map(&f, &map, &err) == PN_E_IO);
    PN_CHECK(truncate(path, 0) == 0 && pn_os_open(&f, path, &err) == PN_OK && f.size == 0);
    PN_CHECK(pn_os_map(&f, &map, &err) == PN_E_IO && strstr(err.text, "empty"), "%s", err.text);
    pn_os_close(&f);
    unlink(path);
    PN_CHECK(pn_os_open(&f, path, &err) == PN_E_IO && strstr(err.text, path) && f.fd == -1, "%s", err.text);
    PN_CHECK(pn_os_open(&f, "/dev/null", &err) == PN_E_IO && f.fd == -1);
    PN_CHECK(pn_os_open(&f, test_dir, &err) == PN_E_IO && strstr(err.text, "a directory"), "%s", err.text);
}

/* A file of 5 GiB, almost all of it a hole: offsets beyond 32 bits, on 32-bit systems too. */
static void files_beyond_4_gib(void)
{
    char path[512], command[1100];
    uint8_t b = 0;
    pn_os_file f;
    pn_err err = {0};
    path_in(path, "sparse");
    snprintf(command, sizeof command, "truncate -s 5G '%s' && printf z >> '%s'", path, path);
    if (system(command) != 0) {
        pn_test_skip("no sparse files here");
    } else {
        PN_CHECK(pn_os_open(&f, path, &err) == PN_OK && f.size == 5 * GIB + 1, "%s", err.text);
        PN_CHECK(pn_os_read(&f, 5 * GIB, &b, 1, &err) == PN_OK && b == 'z', "%s", err.text);
        pn_os_close(&f);
    }
    unlink(path);
}

int main(void)
{
    const char *tmp = getenv("TMPDIR");
    char command[400];
    snprintf(test_dir, sizeof test_dir, "%.200s/pn_test_os_XXXXXX", tmp ? tmp : "/tmp");
    if (!PN_CHECK(mkdtemp(test_dir) != NULL))
        return pn_test_end();
    no_cgroups_means_the_machine();
    v2_takes_the_smallest_of_all_ancestors();
    v2_counts_clean_page_cache_as_free();
    v2_root_and_odd_paths();
    v1_takes_the_smallest_of_all_ancestors();
    hybrid_asks_both();
    long_lines_and_garbage_do_no_harm();
    cpu_quota_is_rounded_up();
    the_real_machine_answers();
    entropy_differs();
    a_new_file_appears_whole_or_not_at_all();
    files_are_read_by_position();
    files_beyond_4_gib();
    snprintf(command, sizeof command, "rm -rf '%s'", test_dir);
    PN_CHECK(system(command) == 0);
    return pn_test_end();
}

#else

int main(void)
{
    pn_os_file f;
    pn_err err;
#if !PN_ENABLE_FILES
    PN_CHECK(pn_os_open(&f, "anything", &err) == PN_E_UNSUPPORTED);
#else
    (void)f, (void)err;
    pn_test_skip("fixture trees are for Linux");
#endif
    PN_CHECK(pn_os_entropy() != pn_os_entropy() || 1);
    PN_CHECK(pn_os_cores() >= 1);
    return pn_test_end();
}

#endif
