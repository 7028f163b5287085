/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_direct.c - reads past the page cache: every offset, every kind of trouble, and the way back to
 * the cache where the system refuses.
 */
#include "pn_test.h"

#include "base/pn_err.h"
#include "base/pn_os_direct.h"
#include "pread_faults.h"

#if PN_ENABLE_FILES && PREAD_FAULTS

enum { DIRECT_BYTES = 5 * PN_DIRECT_ALIGN + 1234, DIRECT_MOST = 8 * PN_DIRECT_ALIGN };

static char direct_path[512];
static uint8_t direct_want[DIRECT_BYTES], *direct_got;

static bool direct_file(const char *dir)
{
    uint64_t seed = 7;
    snprintf(direct_path, sizeof direct_path, "%s/pn_direct_%ld", dir, (long)getpid());
    FILE *f = fopen(direct_path, "wb");
    if (!f)
        return false;
    for (size_t i = 0; i < DIRECT_BYTES; i++)
        direct_want[i] = (uint8_t)pn_test_rand(&seed);
    bool ok = fwrite(direct_want, 1, DIRECT_BYTES, f) == DIRECT_BYTES;
    return fclose(f) == 0 && ok;
}

static void every_block_arrives(pn_os_direct *d, const char *how)
{
    pn_err err = {0};
    for (size_t from = 0; from < DIRECT_BYTES; from += PN_DIRECT_ALIGN)
        for (size_t need = 1; from + need <= DIRECT_BYTES; need += 999) {
            size_t n = (size_t)pn_align_up(need, PN_DIRECT_ALIGN);
            memset(direct_got, 0xEE, DIRECT_MOST);
            PN_CHECK(pn_os_direct_read(d, from, direct_got, n, need, &err) == PN_OK, "%s: %s", how, err.text);
            PN_CHECK(memcmp(direct_got, direct_want + from, need) == 0, "%s: %zu bytes at %zu", how, need, from);
        }
}

static void trouble_is_overcome_or_told(const char *dir)
{
    pn_os_file f;
    pn_os_direct d;
    pn_err err = {0};
    if (!direct_file(dir)) {
        pn_test_skip("%s cannot be written", dir);
        return;
    }
    faults_clear();
    PN_CHECK(pn_os_open(&f, direct_path, &err) == PN_OK && pn_os_direct_open(&d, direct_path, &f, &err) == PN_OK, "%s", err.text);
    every_block_arrives(&d, "as it is");
    atomic_store(&faults.eintr_every, 2);
    every_block_arrives(&d, "interrupted");
    atomic_store(&faults.short_by, PN_DIRECT_ALIGN);
    every_block_arrives(&d, "in small pieces");
    faults_clear();
    atomic_store(&faults.fail_errno, EIO);
    atomic_store(&faults.fail_at, 1);
    PN_CHECK(pn_os_direct_read(&d, 0, direct_got, PN_DIRECT_ALIGN, 100, &err) == PN_E_IO && strstr(err.text, "input/output"), "%s", err.text);
    faults_clear();
    PN_CHECK(pn_os_direct_read(&d, 4 * PN_DIRECT_ALIGN, direct_got, 4 * PN_DIRECT_ALIGN, PN_DIRECT_ALIGN + 1235, &err) == PN_E_IO &&
             strstr(err.text, "ends at byte"), "%s", err.text);
    atomic_store(&faults.refuse_direct, true);
    every_block_arrives(&d, "direct reads refused");
    PN_CHECK(!atomic_load(&d.direct), "still direct");
    faults_clear();
    atomic_store(&faults.short_by, 1000);
    every_block_arrives(&d, "through the cache, 1000 bytes at a time");
    pn_os_direct_close(&d);
    PN_CHECK(pn_os_direct_open(&d, direct_path, &f, &err) == PN_OK, "%s", err.text);
    every_block_arrives(&d, "1000 bytes at a time");
    pn_os_direct_close(&d);
    PN_CHECK(pn_os_direct_read(&d, 0, direct_got, PN_DIRECT_ALIGN, 1, &err) == PN_E_IO, "closed");
    pn_os_close(&f);
    remove(direct_path);
}

static void another_file_in_its_place_is_refused(const char *dir)
{
    pn_os_file f;
    pn_os_direct d;
    pn_err err = {0};
    if (!direct_file(dir))
        return;
    PN_CHECK(pn_os_open(&f, direct_path, &err) == PN_OK, "%s", err.text);
    remove(direct_path);
    PN_CHECK(pn_os_direct_open(&d, direct_path, &f, &err) == PN_E_IO && d.fd == -1, "opened what is not there");
    direct_file(dir);
    PN_CHECK(pn_os_direct_open(&d, direct_path, &f, &err) == PN_E_IO && strstr(err.text, "replaced"), "%s", err.text);
    pn_os_close(&f);
    remove(direct_path);
}

static void what_is_written_is_read(const char *dir)
{
    pn_os_direct d;
    pn_err err = {0};
    size_t n = 3 * PN_DIRECT_ALIGN;
    snprintf(direct_path, sizeof direct_path, "%s/pn_direct_w_%ld", dir, (long)getpid());
    faults_clear();
    if (pn_os_direct_create(&d, direct_path, &err) != PN_OK) {
        pn_test_skip("%s", err.text);
        return;
    }
    for (size_t i = 0; i < n; i++)
        direct_got[i] = (uint8_t)(i * 7 / 5);
    memcpy(direct_want, direct_got, n);
    PN_CHECK(pn_os_direct_write(&d, 0, direct_got, n, &err) == PN_OK && pn_os_direct_write(&d, n, direct_got, PN_DIRECT_ALIGN, &err) == PN_OK &&
             pn_os_direct_flush(&d, &err) == PN_OK && d.size == n + PN_DIRECT_ALIGN, "%s", err.text);
    pn_os_direct again;
    PN_CHECK(pn_os_direct_create(&again, direct_path, &err) == PN_E_IO, "made twice");
    pn_os_direct_close(&d);
    PN_CHECK(pn_os_direct_open_alone(&d, direct_path, &err) == PN_OK && d.size == n + PN_DIRECT_ALIGN, "%s", err.text);
    memset(direct_got, 0, n);
    PN_CHECK(pn_os_direct_read(&d, 0, direct_got, n, n, &err) == PN_OK && memcmp(direct_got, direct_want, n) == 0, "%s: %s", dir, err.text);
    PN_CHECK(pn_os_direct_write(&d, 0, direct_got, n, &err) == PN_E_IO, "it is for reading");
    pn_os_direct_close(&d);
    PN_CHECK(pn_os_direct_open_alone(&d, dir, &err) == PN_E_IO, "a directory");
    remove(direct_path);
}

/* A device that is always full, if there is one. */
static void a_full_device_is_told_apart(void)
{
    pn_os_direct d = {.fd = open("/dev/full", O_RDWR)};
    pn_err err = {0};
    if (d.fd < 0) {
        pn_test_skip("no /dev/full");
        return;
    }
    atomic_init(&d.direct, false);
    PN_CHECK(pn_os_direct_write(&d, 0, direct_got, PN_DIRECT_ALIGN, &err) == PN_E_BUDGET && strstr(err.text, "no space"), "%s", err.text);
    pn_os_direct_close(&d);
}

int main(void)
{
    void *raw = malloc(DIRECT_MOST + PN_DIRECT_ALIGN);
    direct_got = (uint8_t *)(uintptr_t)pn_align_up((uintptr_t)raw, PN_DIRECT_ALIGN);
    static const char *const dirs[] = {"/tmp", "/dev/shm"};     /* a disk, and memory that refuses */
    for (size_t i = 0; i < PN_COUNT_OF(dirs); i++) {
        trouble_is_overcome_or_told(dirs[i]);
        another_file_in_its_place_is_refused(dirs[i]);
        what_is_written_is_read(dirs[i]);
    }
    a_full_device_is_told_apart();
    free(raw);
    return pn_test_end();
}

#else
int main(void)
{
    pn_test_skip("no files, or no pread of our own");
    return pn_test_end();
}
#endif
