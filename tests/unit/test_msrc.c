/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_msrc.c - what a memory source says of machines that are trees in a temporary folder: control
 * groups of version 1, 2 and both, namespaced, nested, moved, broken; and of scripts.
 *
 * "14.1" marks the trees that memory sheet 14.1 lists.  Numbers are exact.
 */
#include "pn_test.h"

#include "base/pn_os.h"
#include "mem/pn_msrc.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static double clock_now;

static double test_clock(void *user)
{
    (void)user;
    return clock_now;
}

/* --- scripts ------------------------------------------------------------------------------------- */

static pn_test_mem memory;

static pn_status open_script(pn_msrc *s, const char *text, pn_err *err)
{
    pn_msrc_params p = {.script_text = text, .now = test_clock, .mem = &memory.mem};
    clock_now = 100;                            /* a script's time begins when it is opened */
    return pn_msrc_open(s, &p, err);
}

static void expect_script_error(const char *text, const char *words)
{
    pn_msrc s;
    pn_err err = {0};
    pn_test_mem_init(&memory, 0);
    PN_CHECK(open_script(&s, text, &err) == PN_E_INVALID && strstr(err.text, words), "\"%s\": %s", text, err.text);
    pn_msrc_close(&s);
    PN_CHECK(memory.outstanding == 0);
}

static void a_script_plays_its_lines(void)
{
    static const char text[] = "# a shortage\n\nbudget 8G\r\n"
                               "0    6G 7G\n"
                               "2\t500M refault=80M psi=18.5 swapin=1K oom=2 # hog\n"
                               "4.5  lost oom=1\n"
                               "9.25 1048577";
    pn_msrc s;
    pn_mem_sample a;
    pn_msrc_use use = {.r_map = GIB, .ledger_total = GIB};
    pn_err err = {0};
    pn_test_mem_init(&memory, 0);
    if (!PN_CHECK(open_script(&s, text, &err) == PN_OK, "%s", err.text))
        return;
    pn_msrc_read(&s, &use, &a);
    PN_CHECK(a.t == 100 && !a.lost && a.budget == 8 * GIB && a.soft == 6 * GIB && a.hard == 7 * GIB);
    PN_CHECK(a.known == 15 && a.refault == 0 && a.psi_us == 0 && a.limited_by == PN_MEM_TERM_HOST);
    clock_now = 101.99;
    pn_msrc_read(&s, &use, &a);
    PN_CHECK(a.soft == 6 * GIB);
    clock_now = 104;
    pn_msrc_read(&s, &use, &a);
    PN_CHECK(a.soft == 500 * MIB && a.hard == 500 * MIB && a.refault == 160 * MIB && a.swapin == 2048);
    PN_CHECK(a.psi_us == 370000 && a.oom == 2 && a.counted == 104);
    clock_now = 105;
    pn_msrc_read(&s, &use, &a);
    PN_CHECK(a.lost && a.t == 105 && a.soft == 500 * MIB && a.refault == 160 * MIB);
    clock_now = 1e6;
    pn_msrc_read(&s, &use, &a);
    PN_CHECK(!a.lost && a.soft == MIB + 1 && a.refault == 200 * MIB && a.psi_us == 462500 && a.oom == 3);
    use.user_cap = MIB;
    pn_msrc_read(&s, &use, &a);
    PN_CHECK(a.soft == MIB && a.budget == MIB && a.limited_by == PN_MEM_TERM_CAP);
    pn_msrc_close(&s);
    PN_CHECK(memory.outstanding == 0);
    PN_CHECK(open_script(&s, "0 3G\n1 5G 6G\n", &err) == PN_OK && s.script.budget == 6 * GIB);
    pn_msrc_close(&s);
}

static void a_script_is_read_strictly(void)
{
    expect_script_error("", "holds no instant");
    expect_script_error("# nothing\n\n", "holds no instant");
    expect_script_error("0 1G\n1 1G\n1 1G\n", ":3: time does not grow: '1'");
    expect_script_error("1 1G\n", ":1: the first time is not 0");
    expect_script_error("0\n", ":1: expected the available bytes");
    expect_script_error("0 1T\n", "not a number of bytes: '1T'");
    expect_script_error("0 1Gi\n", "not a number of bytes");
    expect_script_error("0 -1\n", "not a number of bytes");
    expect_script_error("0 99999999999999999999\n", "not a number of bytes");
    expect_script_error("0 17179869184G\n", "not a number of bytes");
    expect_script_error("0 2G 1G\n", "less than available_soft");
    expect_script_error("0 1G 2G 3G\n", "expected KEY=VALUE: '3G'");
    expect_script_error("0 lost 3G\n", "expected KEY=VALUE");
    expect_script_error("0 1G lost\n", "not a number of bytes: 'lost'");
    expect_script_error("0 1G psi=101\n", "percentage");
    expect_script_error("0 1G psi=1e1\n", "percentage");
    expect_script_error("0 1G psi=5.\n", "percentage");
    expect_script_error("0 1G psi=\n", "percentage");
    expect_script_error("0 1G oom=1M\n", "not a number of events");
    expect_script_error("0 1G refault=fast\n", "not a number of bytes");
    expect_script_error("0 1G oom=1 oom=1\n", "given twice: 'oom=1'");
    expect_script_error("0 1G pressure=1\n", "unknown key");
    expect_script_error("0x1 1G\n", "time in seconds");
    expect_script_error("0 1G\nbudget 1G\n", ":2: the budget is given once");
    expect_script_error("budget 1G\nbudget 1G\n", ":2: the budget is given once");
    expect_script_error("budget 0\n0 1G\n", "not a number of bytes");
    expect_script_error("budget 1G 2G\n0 1G\n", "nothing follows");
}

static void a_script_needs_memory_only_when_opened(void)
{
    char text[4000] = "";
    size_t n = 0;
    for (int i = 0; i < 100; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%d %dM\n", i, i + 1);
    pn_err err = {0};
    pn_status st = PN_E_NOMEM;
    for (long k = 1; st == PN_E_NOMEM && k < 100; k++) {
        pn_msrc s;
        pn_mem_sample a;
        pn_test_mem_init(&memory, k);
        st = open_script(&s, text, &err);
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM, "%s", err.text);
        long calls = memory.n_calls;
        clock_now = 150.5;
        if (st == PN_OK) {
            pn_msrc_read(&s, &(pn_msrc_use){0}, &a);
            PN_CHECK(a.soft == 51 * MIB);
        }
        PN_CHECK(memory.n_calls == calls);
        pn_msrc_close(&s);
        PN_CHECK(memory.outstanding == 0);
    }
    PN_CHECK(st == PN_OK);
}

#if PN_ENABLE_FILES && defined(__linux__)

#include "pread_faults.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- fixture trees ------------------------------------------------------------------------------- */

static char test_dir[256], tree_root[320];
static int tree_count;
static pn_msrc_use use;                 /* for expect_*() */

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

static void tree_remove(const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s%s", tree_root, name);
    PN_CHECK(unlink(path) == 0, "%s", path);
}

/* A new tree with 8 GiB of memory, 6 GiB of them available. */
static void tree_new(const char *cgroup, const char *mountinfo)
{
    snprintf(tree_root, sizeof tree_root, "%s/tree%d", test_dir, tree_count++);
    tree_file("/proc/meminfo", "MemTotal:        8388608 kB\nMemFree:         1048576 kB\n"
                               "MemAvailable:    6291456 kB\nBuffers:               0 kB\n"
                               "Mapped:          2097152 kB\n"
                               "CommitLimit:     4194304 kB\nCommitted_AS:    1048576 kB\n");
    tree_file("/proc/self/cgroup", cgroup);
    tree_file("/proc/self/mountinfo", mountinfo);
    use = (pn_msrc_use){0};
}

static void tree_open(pn_msrc *s)
{
    pn_msrc_params p = {.root = tree_root, .now = test_clock};
    PN_CHECK(pn_msrc_open(s, &p, NULL) == PN_OK);
}

static pn_mem_sample tree_sample(void)
{
    pn_msrc s;
    pn_mem_sample a;
    tree_open(&s);
    pn_msrc_read(&s, &use, &a);
    pn_msrc_close(&s);
    return a;
}

static void expect_sample(const char *what, const pn_mem_sample *a, uint64_t budget, uint64_t hard, uint64_t soft, pn_mem_term by)
{
    PN_CHECK(!a->lost, "%s", what);
    PN_CHECK(a->budget == budget, "%s: B %" PRIu64 ", expected %" PRIu64, what, a->budget, budget);
    PN_CHECK(a->hard == hard, "%s: hard %" PRIu64 ", expected %" PRIu64, what, a->hard, hard);
    PN_CHECK(a->soft == soft, "%s: soft %" PRIu64 ", expected %" PRIu64, what, a->soft, soft);
    PN_CHECK(a->limited_by == by, "%s: limited by %d, expected %d", what, (int)a->limited_by, (int)by);
}

static void expect(const char *what, uint64_t budget, uint64_t hard, uint64_t soft, pn_mem_term by)
{
    pn_mem_sample a = tree_sample();
    expect_sample(what, &a, budget, hard, soft, by);
}

static void expect_host(const char *what) { expect(what, 8 * GIB, 6 * GIB, 6 * GIB, PN_MEM_TERM_HOST); }

static void expect_group(const char *what, uint64_t budget, uint64_t left)
{
    expect(what, budget, left, left, PN_MEM_TERM_CGROUP);
}

static void expect_cores(const char *what, uint32_t cores)
{
    uint32_t n = pn_host_cores(tree_root, 8);
    PN_CHECK(n == cores, "%s: %" PRIu32 " cores, expected %" PRIu32, what, n, cores);
}

#define MOUNT_V2 "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define MOUNT_V1 "31 30 0:27 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n" \
                 "32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct\n" \
                 "33 30 0:29 / /sys/fs/cgroup/cpuset rw shared:11 - cgroup cgroup rw,cpuset\n"

/* --- the machine --------------------------------------------------------------------------------- */

static void no_cgroups_means_the_machine(void)
{
    tree_new("", "");
    expect_host("no cgroup lines");
    expect_cores("no cgroup lines", 8);
    PN_CHECK(tree_sample().host_total == 8 * GIB && tree_sample().unused == GIB);
}

static void a_full_group_has_nothing_unused(void)
{
    tree_new("0::/a\n", MOUNT_V2);
    for (uint64_t usage = GIB / 2; usage <= 2 * GIB; usage += GIB / 2) {
        char text[32];
        snprintf(text, sizeof text, "%" PRIu64 "\n", usage);
        tree_file("/sys/fs/cgroup/a/memory.max", "1073741824\n");
        tree_file("/sys/fs/cgroup/a/memory.current", text);
        PN_CHECK(tree_sample().unused == (usage < GIB ? GIB - usage : 0), "%" PRIu64 " of 1 GiB used: %" PRIu64, usage, tree_sample().unused);
    }
}

static void strict_overcommit_counts_commitments(void)      /* 14.1 */
{
    tree_new("", "");
    tree_file("/proc/sys/vm/overcommit_memory", "2\n");
    expect("strict", 4 * GIB, 3 * GIB, 3 * GIB, PN_MEM_TERM_OVERCOMMIT);
    use.r_map = GIB;
    expect("mapped files are not committed", 4 * GIB, 3 * GIB, 3 * GIB, PN_MEM_TERM_OVERCOMMIT);
    use.r_map = 0;
    tree_file("/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\nCommitLimit: 1 kB\nCommitted_AS: 2 kB\n");
    expect("overdrawn", 1024, 0, 0, PN_MEM_TERM_OVERCOMMIT);
    tree_file("/proc/sys/vm/overcommit_memory", "1\n");
    expect_host("generous");
}

static void old_kernels_have_no_memavailable(void)          /* 14.1 */
{
    tree_new("", "");
    tree_file("/proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 1048576 kB\nBuffers: 1024 kB\nCached: 2048 kB\nShmem: 1024 kB\n");
    expect("free + buffers + cached - shmem", 8 * GIB, GIB + 2 * MIB, GIB + 2 * MIB, PN_MEM_TERM_HOST);
    tree_file("/proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 1 kB\nShmem: 1024 kB\n");
    expect("no wrap", 8 * GIB, 0, 0, PN_MEM_TERM_HOST);
}

static void resource_limits_count(void)
{
    tree_new("", "");
    tree_file("/proc/self/limits", "Limit                     Soft Limit           Hard Limit           Units\n"
                                   "Max data size             unlimited            unlimited            bytes\n"
                                   "Max address space         4294967296           unlimited            bytes\n");
    tree_file("/proc/self/status", "Name:\tx\nVmSize:\t 1048576 kB\nVmData:\t   1024 kB\n");
    expect("address space", 4 * GIB, 3 * GIB, 3 * GIB, PN_MEM_TERM_RLIMIT);
    tree_file("/proc/self/limits", "Max data size             2147483648           2147483648           bytes\n"
                                   "Max address space         4294967296           unlimited            bytes\n");
    expect("data", 2 * GIB, 2 * GIB - MIB, 2 * GIB - MIB, PN_MEM_TERM_RLIMIT);
    tree_file("/proc/self/limits", "Max data size             unlimited            unlimited            bytes\n"
                                   "Max address space         unlimited            unlimited            bytes\n");
    expect_host("unlimited");
}

static void the_users_cap_counts_what_we_hold(void)
{
    tree_new("", "");
    use = (pn_msrc_use){.user_cap = 2 * GIB, .ledger_total = GIB / 2};
    expect("cap", 2 * GIB, 3 * GIB / 2, 3 * GIB / 2, PN_MEM_TERM_CAP);
    use.ledger_total = 3 * GIB;
    expect("cap crossed", 2 * GIB, 0, 0, PN_MEM_TERM_CAP);
    use = (pn_msrc_use){.user_cap = 100 * GIB};
    expect_host("cap above all");
}

static void mapped_weights_are_not_free_to_lose(void)
{
    tree_new("0::/app\n", MOUNT_V2);
    use.r_map = GIB;
    expect("the machine", 8 * GIB, 6 * GIB, 5 * GIB, PN_MEM_TERM_HOST);
    use.r_map = 4 * GIB;
    expect("no more than is mapped", 8 * GIB, 6 * GIB, 4 * GIB, PN_MEM_TERM_HOST);
    tree_file("/sys/fs/cgroup/app/memory.max", "4294967296\n");
    tree_file("/sys/fs/cgroup/app/memory.current", "3221225472\n");
    tree_file("/sys/fs/cgroup/app/memory.stat", "inactive_file 1073741824\nactive_file 1073741824\nfile_mapped 536870912\n");
    expect("charged here", 4 * GIB, 3 * GIB, 5 * GIB / 2, PN_MEM_TERM_CGROUP);
    tree_file("/sys/fs/cgroup/app/memory.stat", "inactive_file 1073741824\nactive_file 1073741824\nfile_mapped 0\n");
    expect("charged elsewhere", 4 * GIB, 3 * GIB, 3 * GIB, PN_MEM_TERM_CGROUP);
    tree_new("9:memory:/app\n", MOUNT_V1);
    use.r_map = GIB;
    tree_file("/sys/fs/cgroup/memory/app/memory.limit_in_bytes", "1073741824\n");
    tree_file("/sys/fs/cgroup/memory/app/memory.usage_in_bytes", "1073741824\n");
    tree_file("/sys/fs/cgroup/memory/app/memory.stat", "mapped_file 1\ntotal_mapped_file 524288000\ntotal_active_file 1048576000\n");
    expect("version 1", GIB, 1000 * MIB, 500 * MIB, PN_MEM_TERM_CGROUP);
    use.r_map = UINT64_MAX;
    expect("absurd need", GIB, 1000 * MIB, 500 * MIB, PN_MEM_TERM_CGROUP);
}

/* --- version 2 ----------------------------------------------------------------------------------- */

static void v2_takes_the_smallest_of_all_ancestors(void)    /* 14.1: leaf `max` with limited parent; high < max */
{
    tree_new("0::/user.slice/app\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/user.slice/app/memory.max", "max\n");
    tree_file("/sys/fs/cgroup/user.slice/app/memory.high", "max\n");
    tree_file("/sys/fs/cgroup/user.slice/app/memory.current", "1048576\n");
    expect_host("max everywhere");
    tree_file("/sys/fs/cgroup/user.slice/memory.max", "2147483648\n");
    tree_file("/sys/fs/cgroup/user.slice/memory.current", "1073741824\n");
    expect_group("limit in the parent", 2 * GIB, GIB);
    tree_file("/sys/fs/cgroup/user.slice/app/memory.max", "1073741824\n");
    tree_file("/sys/fs/cgroup/user.slice/app/memory.high", "536870912\n");
    expect_group("memory.high in the leaf", 512 * MIB, 511 * MIB);
    tree_file("/sys/fs/cgroup/user.slice/app/memory.current", "1073741824\n");
    expect_group("nothing left", 512 * MIB, 0);
}

static void v2_counts_clean_page_cache_as_free(void)        /* 14.1: usage mostly inactive_file; missing keys */
{
    tree_new("0::/app\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/app/memory.max", "1073741824\n");
    tree_file("/sys/fs/cgroup/app/memory.current", "1072693248\n");
    expect_group("no memory.stat", GIB, MIB);
    tree_file("/sys/fs/cgroup/app/memory.stat",
              "anon 104857600\nfile 900000000\ninactive_file 524288000\nactive_file 104857600\n"
              "slab_reclaimable 1048576\nfile_dirty 5242880\nfile_writeback 0\nslab_reclaimable_extra 99\n");
    expect_group("mostly page cache", GIB, MIB + 500 * MIB + 100 * MIB + MIB - 5 * MIB);
    tree_file("/sys/fs/cgroup/app/memory.stat", "inactive_file 524288000\nanon 1\n");
    expect_group("most keys missing", GIB, 501 * MIB);
    tree_file("/sys/fs/cgroup/app/memory.stat", "inactive_file 1048576\nfile_dirty 2097152\n");
    expect_group("more dirty than cached", GIB, MIB);
    tree_file("/sys/fs/cgroup/app/memory.stat", "inactive_file 524288000\n");
    tree_file("/sys/fs/cgroup/app/memory.current", "1048576\n");
    expect_group("more reclaimable than used", GIB, GIB);
}

static void v2_root_and_odd_paths(void)                     /* 14.1: namespaced path not under mount root */
{
    tree_new("0::/\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/memory.max", "1073741824\n");
    tree_file("/sys/fs/cgroup/memory.current", "0\n");
    expect_group("namespaced: the mount point itself", GIB, GIB);
    tree_new("0::/elsewhere/app\n", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    tree_file("/sys/fs/cgroup/memory.max", "1073741824\n");
    tree_file("/sys/fs/cgroup/elsewhere/app/memory.max", "1\n");
    expect_group("not under the mount's root", GIB, GIB);
    tree_new("0::/docker/abc/inner\n", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    tree_file("/sys/fs/cgroup/memory.max", "3221225472\n");
    tree_file("/sys/fs/cgroup/inner/memory.max", "1073741824\n");
    expect_group("mount root is above us", GIB, GIB);
    tree_new("0::/docker/abcdef\n", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    tree_file("/sys/fs/cgroup/memory.max", "3221225472\n");
    tree_file("/sys/fs/cgroup/def/memory.max", "1\n");
    expect_group("a prefix must end at a slash", 3 * GIB, 3 * GIB);
    tree_new("0::/../other\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/memory.max", "3221225472\n");
    tree_file("/sys/fs/other/memory.max", "1\n");
    expect_group("outside of the namespace", 3 * GIB, 3 * GIB);
    tree_new("0::/gone/with/the/host\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/memory.max", "1073741824\n");
    expect_group("a path that is not here", GIB, GIB);
    tree_new("0::/a:b/c d\n", "29 23 0:26 /x /wrong rw - cgroup2 c rw\n30 23 0:26 / /sys/fs\\040x/cgroup rw - cgroup2 c rw\n");
    tree_file("/wrong/memory.max", "1\n");
    tree_file("/sys/fs x/cgroup/a:b/c d/memory.max", "1073741824\n");
    expect_group("blanks, colons, a second mount", GIB, GIB);
}

/* --- version 1, both, broken --------------------------------------------------------------------- */

static void v1_takes_the_smallest_of_all_ancestors(void)    /* 14.1: v1 sentinel */
{
    tree_new("12:memory:/a/b\n4:cpu,cpuacct:/c\n1:name=systemd:/x\n", MOUNT_V1);
    tree_file("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    tree_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    expect_host("the huge number is no limit");
    tree_file("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2147483648\n");
    tree_file("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "2147483648\n");
    tree_file("/sys/fs/cgroup/memory/a/memory.stat",
              "inactive_file 1\ntotal_inactive_file 536870912\ntotal_active_file 536870912\n"
              "total_dirty 1048576\ntotal_writeback 1048576\nslab_reclaimable 77\n");
    expect_group("limit in the parent", 2 * GIB, GIB - 2 * MIB);
    tree_new("12:memory:/docker/abc\n", "31 30 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    tree_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    tree_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
    expect_group("container", GIB, GIB);
}

static void hybrid_asks_both(void)                          /* 14.1 */
{
    tree_new("12:memory:/m\n0::/u\n", MOUNT_V1 "40 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    tree_file("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "2147483648\n");
    expect_group("limit in version 1", 2 * GIB, 2 * GIB);
    tree_file("/sys/fs/cgroup/unified/u/memory.max", "1073741824\n");
    expect_group("limit in version 2", GIB, GIB);
    tree_file("/sys/fs/cgroup/memory/m/memory.usage_in_bytes", "2147483648\n");
    expect("the budget of one, the headroom of the other", GIB, 0, 0, PN_MEM_TERM_CGROUP);
}

static void huge_numbers_do_not_wrap(void)                  /* 14.1: numbers > 2^63 */
{
    tree_new("0::/app\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/app/memory.max", "18446744073709551614\n");
    tree_file("/sys/fs/cgroup/app/memory.current", "9223372036854775809\n");
    expect_host("2^64 - 2 is a limit, and a large one");
    tree_file("/sys/fs/cgroup/app/memory.max", "99999999999999999999999999\n");
    expect_host("more than 64 bits is none");
    tree_file("/sys/fs/cgroup/app/memory.max", "1073741824\n");
    expect_group("usage beyond all sense", GIB, 0);
    tree_file("/sys/fs/cgroup/app/memory.stat", "inactive_file 18446744073709551615\nactive_file 18446744073709551615\n"
                                                "file_mapped 18446744073709551615\nworkingset_refault_file 18446744073709551615\n");
    use.r_map = MIB;
    expect("all of it cache", GIB, GIB, GIB - MIB, PN_MEM_TERM_CGROUP);
    PN_CHECK(tree_sample().refault == UINT64_MAX);
    tree_file("/proc/meminfo", "MemTotal: 18446744073709551615 kB\nMemAvailable: 18446744073709551615 kB\n");
    expect("a very large machine", GIB, GIB, GIB - MIB, PN_MEM_TERM_CGROUP);
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
    expect_group("after a long line", GIB, GIB);
    tree_file("/sys/fs/cgroup/app/memory.max", "");
    expect_host("empty file");
    tree_new("0::/app\n", "30 23\n - \n - cgroup2\n30 23 0:26 / - cgroup2 c rw\n30 23 0:26 /\n");
    expect_host("mounts cut short");
}

static void groups_nest_deeply(void)
{
    char path[256] = "0::", file[1024];
    for (int i = 0; i < 40; i++)
        strcat(path, "/g");
    strcat(path, "\n");
    tree_new(path, MOUNT_V2);
    for (int depth = 1; depth <= 40; depth++) {
        int n = snprintf(file, sizeof file, "/sys/fs/cgroup%.*s/memory.max", 2 * depth, path + 3);
        PN_CHECK(n > 0 && (size_t)n < sizeof file);
        tree_file(file, depth == 1 ? "1073741824\n" : "max\n");
    }
    expect_group("forty levels, the outermost has the limit", GIB, GIB);
}

/* --- time ---------------------------------------------------------------------------------------- */

static void memory_stat_is_read_once_a_second(void)         /* sheet 2.4 */
{
    pn_msrc s;
    pn_mem_sample a;
    clock_now = 10;
    tree_new("0::/app\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/app/memory.max", "1073741824\n");
    tree_file("/sys/fs/cgroup/app/memory.current", "1073741824\n");
    tree_file("/sys/fs/cgroup/app/memory.stat", "inactive_file 1048576\nworkingset_refault_file 1\n");
    tree_open(&s);
    pn_msrc_read(&s, &use, &a);
    expect_sample("first", &a, GIB, MIB, MIB, PN_MEM_TERM_CGROUP);
    PN_CHECK(a.counted == 10 && a.t == 10);
    tree_file("/sys/fs/cgroup/app/memory.stat", "inactive_file 2097152\nworkingset_refault_file 2\n");
    tree_file("/sys/fs/cgroup/app/memory.current", "1072693248\n");
    clock_now = 10.75;
    pn_msrc_read(&s, &use, &a);
    expect_sample("usage is fresh, memory.stat is not", &a, GIB, 2 * MIB, 2 * MIB, PN_MEM_TERM_CGROUP);
    PN_CHECK(a.counted == 10 && a.t == 10.75 && a.refault == (uint64_t)sysconf(_SC_PAGESIZE));
    clock_now = 11;
    pn_msrc_read(&s, &use, &a);
    expect_sample("after a second it is", &a, GIB, 3 * MIB, 3 * MIB, PN_MEM_TERM_CGROUP);
    PN_CHECK(a.counted == 11 && a.refault == 2 * (uint64_t)sysconf(_SC_PAGESIZE));
    pn_msrc_close(&s);
}

/* To ask for a text's end makes the kernel write it again: meminfo, limit, usage, pressure, events, and what is dear once a
 * second more. */
static void each_text_is_asked_once(bool swap)
{
    pn_msrc s;
    pn_mem_sample a;
    if (!PREAD_FAULTS)
        return;
    clock_now = 10;
    tree_new("0::/app\n", MOUNT_V2);
    tree_file("/proc/meminfo", swap ? "MemTotal: 8388608 kB\nMemFree: 1048576 kB\nMemAvailable: 6291456 kB\nBuffers: 0 kB\nCached: 4 kB\nSwapTotal: 4 kB\n"
                                    : "MemTotal: 8388608 kB\nMemFree: 1048576 kB\nMemAvailable: 6291456 kB\nBuffers: 0 kB\nCached: 4 kB\nSwapTotal: 0 kB\n");
    tree_file("/proc/self/limits", "Limit Soft Hard\nMax data size unlimited unlimited bytes\nMax address space unlimited unlimited bytes\n");
    tree_file("/proc/vmstat", "pswpin 1\nworkingset_refault_anon 1\nworkingset_refault_file 1\n");
    tree_file("/sys/fs/cgroup/app/memory.max", "1073741824\n");
    tree_file("/sys/fs/cgroup/app/memory.current", "1048576\n");
    tree_file("/sys/fs/cgroup/app/memory.stat", "inactive_file 0\nworkingset_refault_file 1\n");
    tree_file("/sys/fs/cgroup/app/memory.pressure", "some avg10=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=2\n");
    tree_file("/sys/fs/cgroup/app/memory.events", "oom 0\noom_kill 0\n");
    tree_open(&s);
    pn_msrc_read(&s, &use, &a);
    faults_clear();
    clock_now = 10.5;
    pn_msrc_read(&s, &use, &a);
    long cached = atomic_load(&faults.calls);
    PN_CHECK(cached == 5 && a.known == 15 && a.psi_us == 2 && a.soft == 1023 * MIB, "%ld reads", cached);
    clock_now = 12;
    pn_msrc_read(&s, &use, &a);
    PN_CHECK(atomic_load(&faults.calls) - cached == 5 + (swap ? 3 : 2) && !(a.known & PN_HOST_SWAPIN) == !swap, "%ld reads, %u known",
             atomic_load(&faults.calls) - cached, (unsigned)a.known);
    pn_msrc_close(&s);
}

static void a_new_limit_counts_at_once(void)
{
    pn_msrc s;
    pn_mem_sample a;
    clock_now = 10;
    tree_new("0::/a/b\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/a/memory.max", "max\n");
    tree_file("/sys/fs/cgroup/a/memory.current", "1073741824\n");
    tree_file("/sys/fs/cgroup/a/memory.stat", "inactive_file 536870912\n");
    tree_file("/sys/fs/cgroup/a/b/memory.max", "max\n");
    tree_open(&s);
    pn_msrc_read(&s, &use, &a);
    expect_sample("none", &a, 8 * GIB, 6 * GIB, 6 * GIB, PN_MEM_TERM_HOST);
    clock_now = 10.25;
    tree_file("/sys/fs/cgroup/a/memory.max", "1073741824\n");
    pn_msrc_read(&s, &use, &a);
    expect_sample("with what can be reclaimed there", &a, GIB, GIB / 2, GIB / 2, PN_MEM_TERM_CGROUP);
    pn_msrc_close(&s);
}

static void a_moved_process_is_found_again_within_a_minute(void)
{
    pn_msrc s;
    pn_mem_sample a;
    clock_now = 10;
    tree_new("0::/a\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/a/memory.max", "2147483648\n");
    tree_file("/sys/fs/cgroup/b/memory.max", "1073741824\n");
    tree_open(&s);
    pn_msrc_read(&s, &use, &a);
    expect_sample("before", &a, 2 * GIB, 2 * GIB, 2 * GIB, PN_MEM_TERM_CGROUP);
    tree_file("/proc/self/cgroup", "0::/b\n");
    clock_now = 69.9;
    pn_msrc_read(&s, &use, &a);
    expect_sample("not yet", &a, 2 * GIB, 2 * GIB, 2 * GIB, PN_MEM_TERM_CGROUP);
    clock_now = 70;
    pn_msrc_read(&s, &use, &a);
    expect_sample("after 60 s", &a, GIB, GIB, GIB, PN_MEM_TERM_CGROUP);
    pn_msrc_close(&s);
}

/* A file that is held open and removed can still be read here, unlike in cgroupfs (ENODEV); cut to
 * nothing first, it is as good as gone. */
static void a_vanished_group_is_looked_for_at_once(void)    /* 14.1: file vanishing mid-read */
{
    pn_msrc s;
    pn_mem_sample a;
    clock_now = 10;
    tree_new("0::/a\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/a/memory.max", "2147483648\n");
    tree_file("/sys/fs/cgroup/a/memory.current", "1073741824\n");
    tree_file("/sys/fs/cgroup/b/memory.max", "1073741824\n");
    tree_file("/sys/fs/cgroup/b/memory.current", "1048576\n");
    tree_open(&s);
    pn_msrc_read(&s, &use, &a);
    expect_sample("before", &a, 2 * GIB, GIB, GIB, PN_MEM_TERM_CGROUP);
    tree_file("/proc/self/cgroup", "0::/b\n");
    tree_file("/sys/fs/cgroup/a/memory.current", "");       /* the limit is still read, then usage is gone */
    tree_remove("/sys/fs/cgroup/a/memory.current");
    tree_remove("/sys/fs/cgroup/a/memory.max");
    clock_now = 10.25;
    pn_msrc_read(&s, &use, &a);
    expect_sample("the same reading", &a, GIB, GIB - MIB, GIB - MIB, PN_MEM_TERM_CGROUP);
    tree_file("/sys/fs/cgroup/b/memory.current", "");
    tree_remove("/sys/fs/cgroup/b/memory.current");
    tree_file("/sys/fs/cgroup/b/memory.max", "");
    tree_remove("/sys/fs/cgroup/b/memory.max");
    clock_now = 10.5;
    pn_msrc_read(&s, &use, &a);
    expect_sample("no group left", &a, 8 * GIB, 6 * GIB, 6 * GIB, PN_MEM_TERM_HOST);
    pn_msrc_close(&s);
}

static void a_lost_sensor_repeats_what_was(void)
{
    pn_msrc s;
    pn_mem_sample a;
    clock_now = 10;
    tree_new("", "");
    tree_open(&s);
    pn_msrc_read(&s, &use, &a);
    tree_file("/proc/meminfo", "");
    clock_now = 11;
    pn_msrc_read(&s, &use, &a);
    PN_CHECK(a.lost && a.t == 11 && a.soft == 6 * GIB && a.budget == 8 * GIB);
    tree_file("/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 1048576 kB\n");
    clock_now = 12;
    pn_msrc_read(&s, &use, &a);
    PN_CHECK(!a.lost && a.t == 12 && a.soft == GIB);
    pn_msrc_close(&s);
    snprintf(tree_root, sizeof tree_root, "%s/absent", test_dir);
    a = tree_sample();
    PN_CHECK(a.lost && a.budget == 0 && a.soft == 0);
    expect_cores("nothing at all", 8);
}

static long open_descriptors(void)
{
    long n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return -1;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Out of descriptors, a limit cannot be seen; that it is absent must not be believed. */
static void out_of_descriptors_is_lost_not_unlimited(void)
{
    pn_msrc s;
    pn_mem_sample a;
    struct rlimit was, few;
    tree_new("0::/app\n", MOUNT_V2);
    tree_file("/sys/fs/cgroup/app/memory.max", "1073741824\n");
    long before = open_descriptors();
    int spare = dup(0);
    tree_open(&s);
    if (spare < 0 || getrlimit(RLIMIT_NOFILE, &was) != 0) {
        pn_test_skip("no descriptors to spare");
        return;
    }
    close(spare);
    few = was;
    few.rlim_cur = (rlim_t)spare + 2;
    PN_CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    pn_msrc_read(&s, &use, &a);
    PN_CHECK(setrlimit(RLIMIT_NOFILE, &was) == 0);
    PN_CHECK(a.lost);
    pn_msrc_read(&s, &use, &a);
    expect_sample("descriptors are back", &a, GIB, GIB, GIB, PN_MEM_TERM_CGROUP);
    for (int i = 0; i < 100; i++) {
        clock_now += 61;
        pn_msrc_read(&s, &use, &a);
    }
    pn_msrc_close(&s);
    PN_CHECK(open_descriptors() == before, "%ld descriptors, %ld before", open_descriptors(), before);
}

/* --- counters ------------------------------------------------------------------------------------ */

static void counters_are_our_groups_own(void)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    tree_new("0::/a/b\n", MOUNT_V2);
    pn_mem_sample a = tree_sample();
    PN_CHECK(a.known == 0);
    tree_file("/proc/vmstat", "pswpin 7\nworkingset_refault_anon 1\nworkingset_refault_file 3\noom_kill 9\n");
    tree_file("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=99\n"
                                       "full avg10=0.00 avg60=0.00 avg300=0.00 total=44\n");
    a = tree_sample();
    PN_CHECK(a.known == (PN_HOST_REFAULT | PN_HOST_SWAPIN | PN_HOST_PSI));
    PN_CHECK(a.refault == 3 * page && a.swapin == 7 * page && a.psi_us == 44);
    tree_file("/sys/fs/cgroup/a/memory.stat", "workingset_refault_file 1000\n");
    tree_file("/sys/fs/cgroup/a/b/memory.stat", "anon 1\nworkingset_refault_anon 5\nworkingset_refault_file 11\n");
    tree_file("/sys/fs/cgroup/a/b/memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"
                                                    "full avg10=0.00 avg60=0.00 avg300=0.00 total=4\n");
    tree_file("/sys/fs/cgroup/a/b/memory.events", "low 0\nhigh 3\nmax 900\noom 2\noom_kill 1\noom_group_kill 5\n");
    a = tree_sample();
    PN_CHECK(a.known == 15 && a.refault == 11 * page && a.swapin == 7 * page && a.psi_us == 4 && a.oom == 3);
    tree_file("/sys/fs/cgroup/a/b/memory.stat", "workingset_refault 13\npswpin 2\n");
    a = tree_sample();
    PN_CHECK(a.refault == 13 * page && a.swapin == 2 * page);
    tree_new("9:memory:/a\n0::/u\n", MOUNT_V1 "40 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    tree_file("/sys/fs/cgroup/memory/a/memory.stat", "workingset_refault_file 1\ntotal_workingset_refault_file 6\n");
    tree_file("/sys/fs/cgroup/memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
    tree_file("/sys/fs/cgroup/unified/u/memory.pressure", "full avg10=0.00 avg60=0.00 avg300=0.00 total=8\n");
    tree_file("/sys/fs/cgroup/unified/u/cgroup.procs", "");
    a = tree_sample();
    PN_CHECK(a.known == (PN_HOST_REFAULT | PN_HOST_PSI | PN_HOST_OOM));
    PN_CHECK(a.refault == 6 * page && a.psi_us == 8 && a.oom == 3);
}

/* --- cores --------------------------------------------------------------------------------------- */

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

static void a_cpuset_is_counted(void)
{
    static const struct { const char *text; uint32_t cores; } lists[] = {
        {"0-3\n", 4}, {"0\n", 1}, {"0-1,4,6-7\n", 5}, {"0-63\n", 8}, {"\n", 8}, {"3-0\n", 8}, {"0-\n", 8},
        {"0-18446744073709551615\n", 8}, {"x\n", 8},
    };
    tree_new("0::/a\n", MOUNT_V2);
    for (size_t i = 0; i < PN_COUNT_OF(lists); i++) {
        tree_file("/sys/fs/cgroup/a/cpuset.cpus.effective", lists[i].text);
        expect_cores(lists[i].text, lists[i].cores);
    }
    tree_new("5:cpuset:/s\n", MOUNT_V1);
    tree_file("/sys/fs/cgroup/cpuset/s/cpuset.effective_cpus", "2,3\n");
    expect_cores("version 1", 2);
    pn_msrc s;
    tree_open(&s);
    PN_CHECK(pn_msrc_cores(&s) == PN_MIN(pn_os_cores(), 2u));
    pn_msrc_close(&s);
}

/* --- the real one -------------------------------------------------------------------------------- */

static void the_real_machine_answers(void)
{
    pn_msrc s;
    pn_mem_sample a, b;
    uint64_t total, available;
    PN_CHECK(pn_msrc_open(&s, &(pn_msrc_params){0}, NULL) == PN_OK);
    pn_msrc_read(&s, &(pn_msrc_use){.r_map = MIB}, &a);
    pn_msrc_read(&s, &(pn_msrc_use){.user_cap = 64 * MIB}, &b);
    PN_CHECK(!a.lost && a.budget > 16 * MIB && a.soft <= a.hard && a.hard <= a.budget);
    PN_CHECK(a.host_total >= a.budget && b.t >= a.t && b.budget == 64 * MIB && b.soft <= 64 * MIB);
    PN_CHECK(pn_msrc_cores(&s) == pn_os_cores());
    pn_os_memory(&total, &available);
    PN_CHECK(total == a.budget && available > 0, "%" PRIu64 " %" PRIu64, total, a.budget);
    pn_msrc_close(&s);
    pn_msrc_close(&s);
}

static void a_script_may_be_a_file(void)
{
    char path[512];
    pn_msrc s;
    pn_mem_sample a;
    pn_err err = {0};
    snprintf(tree_root, sizeof tree_root, "%s", test_dir);
    snprintf(path, sizeof path, "%s/shortage", test_dir);
    pn_test_mem_init(&memory, 0);
    pn_msrc_params p = {.script_path = path, .mem = &memory.mem};
    PN_CHECK(pn_msrc_open(&s, &p, &err) == PN_E_IO && strstr(err.text, "shortage"), "%s", err.text);
    pn_msrc_close(&s);
    tree_file("/shortage", "0 5G\n");
    PN_CHECK(pn_msrc_open(&s, &p, &err) == PN_OK, "%s", err.text);
    pn_msrc_read(&s, &(pn_msrc_use){0}, &a);
    PN_CHECK(a.soft == 5 * GIB);
    pn_msrc_close(&s);
    tree_file("/shortage", "0 5G\n0 4G\n");
    PN_CHECK(pn_msrc_open(&s, &p, &err) == PN_E_INVALID && strstr(err.text, "shortage:2: "), "%s", err.text);
    pn_msrc_close(&s);
    PN_CHECK(truncate(path, (1 << 20) + 1) == 0);
    PN_CHECK(pn_msrc_open(&s, &p, &err) == PN_E_INVALID && strstr(err.text, "no pressure script"), "%s", err.text);
    pn_msrc_close(&s);
    PN_CHECK(memory.outstanding == 0);
}

static void trees(void)
{
    const char *tmp = getenv("TMPDIR");
    char command[400];
    snprintf(test_dir, sizeof test_dir, "%.200s/pn_test_msrc_XXXXXX", tmp ? tmp : "/tmp");
    if (!PN_CHECK(mkdtemp(test_dir) != NULL))
        return;
    no_cgroups_means_the_machine();
    a_full_group_has_nothing_unused();
    strict_overcommit_counts_commitments();
    old_kernels_have_no_memavailable();
    resource_limits_count();
    the_users_cap_counts_what_we_hold();
    mapped_weights_are_not_free_to_lose();
    v2_takes_the_smallest_of_all_ancestors();
    v2_counts_clean_page_cache_as_free();
    v2_root_and_odd_paths();
    v1_takes_the_smallest_of_all_ancestors();
    hybrid_asks_both();
    huge_numbers_do_not_wrap();
    long_lines_and_garbage_do_no_harm();
    groups_nest_deeply();
    memory_stat_is_read_once_a_second();
    each_text_is_asked_once(true);
    each_text_is_asked_once(false);
    a_new_limit_counts_at_once();
    a_moved_process_is_found_again_within_a_minute();
    a_vanished_group_is_looked_for_at_once();
    a_lost_sensor_repeats_what_was();
    out_of_descriptors_is_lost_not_unlimited();
    counters_are_our_groups_own();
    cpu_quota_is_rounded_up();
    a_cpuset_is_counted();
    the_real_machine_answers();
    a_script_may_be_a_file();
    snprintf(command, sizeof command, "rm -rf '%s'", test_dir);
    PN_CHECK(system(command) == 0);
}

#else

/* A system that does not tell what is free: the cap, else half of what there is, else no limit. */
static void trees(void)
{
    pn_msrc s;
    pn_mem_sample a;
    pn_msrc_use use = {.user_cap = 64 * MIB, .ledger_total = MIB};
    pn_test_skip("fixture trees are for Linux");
    PN_CHECK(pn_msrc_open(&s, &(pn_msrc_params){0}, NULL) == PN_OK && pn_msrc_cores(&s) >= 1);
    pn_msrc_read(&s, &use, &a);
    PN_CHECK(!a.lost && a.budget == 64 * MIB && a.soft == 63 * MIB && a.hard == a.soft && a.limited_by == PN_MEM_TERM_CAP);
    pn_msrc_read(&s, &(pn_msrc_use){0}, &a);
    PN_CHECK(a.host_total ? a.budget == a.host_total / 2 && a.soft == a.budget : a.budget == 0 && a.soft == UINT64_MAX);
    pn_msrc_close(&s);
}

#endif

int main(void)
{
    a_script_plays_its_lines();
    a_script_is_read_strictly();
    a_script_needs_memory_only_when_opened();
    trees();
    return pn_test_end();
}
