/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_os.c - files, random bits, and that the real machine answers.  What control groups say is in
 * test_msrc.c.
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
    pn_test_skip("files and random bits are tested on Linux");
#endif
    PN_CHECK(pn_os_entropy() != pn_os_entropy() || 1);
    PN_CHECK(pn_os_cores() >= 1);
    return pn_test_end();
}

#endif
