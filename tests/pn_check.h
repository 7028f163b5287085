/*
 * pn_check.h - the whole test framework: checks that count, skips that say why, files, random bytes.
 *
 * A test program is a main() that calls functions named after what must hold and ends with
 * `return pn_test_end();`.  The last line it prints is "N passed, N failed" (", N skipped").
 * Needs nothing but the C library, so tests of the public API alone can use it.
 */
#ifndef PN_CHECK_H
#define PN_CHECK_H

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define PN_CHECK_FORMAT(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define PN_CHECK_FORMAT(fmt, args)
#endif

static int pn_test_passed, pn_test_failed, pn_test_skipped;

/* Count one check; print where and why when it fails.  Returns the condition. */
#define PN_CHECK(cond, ...) pn_test_check((cond) ? 1 : 0, __FILE__, __LINE__, #cond, "" __VA_ARGS__)

PN_CHECK_FORMAT(5, 6) static inline int pn_test_check(int ok, const char *file, int line, const char *what, const char *fmt, ...)
{
    if (ok) {
        pn_test_passed++;
        return 1;
    }
    if (pn_test_failed++ < 50) {
        va_list ap;
        printf("FAIL %s:%d: %s ", file, line, what);
        va_start(ap, fmt);
        vprintf(fmt, ap);
        va_end(ap);
        printf("\n");
    }
    return 0;
}

PN_CHECK_FORMAT(1, 2) static inline void pn_test_skip(const char *fmt, ...)
{
    va_list ap;
    printf("SKIP ");
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    pn_test_skipped++;
}

/* For sanitizers, emulators and other words, whose runs take ten times as long: each path once, not each combination of paths.
 * Never set by make test. */
static inline int pn_test_quick(void) { return getenv("PANTHEON_QUICK") != NULL; }

static inline int pn_test_end(void)
{
    printf("%d passed, %d failed", pn_test_passed, pn_test_failed);
    if (pn_test_skipped)
        printf(", %d skipped", pn_test_skipped);
    printf("\n");
    return pn_test_failed != 0;
}

/* The whole file in malloc'd memory, NUL-terminated; NULL when it cannot be read. */
static inline char *pn_test_read_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    char *buf = NULL;
    size_t n = 0, cap = 0, got;
    do {
        if (n + 65536 + 1 > cap) {
            cap = cap ? cap * 2 : 1 << 17;
            char *grown = realloc(buf, cap);
            if (!grown)
                break;
            buf = grown;
        }
        got = fread(buf + n, 1, 65536, f);
        n += got;
    } while (got);
    fclose(f);
    if (buf)
        buf[n] = 0;
    if (len)
        *len = n;
    return buf;
}

/* A repeatable random generator (xorshift64*), for test data only. */
static inline uint64_t pn_test_rand(uint64_t *s)
{
    *s ^= *s >> 12;
    *s ^= *s << 25;
    *s ^= *s >> 27;
    return *s * 0x2545F4914F6CDD1Du;
}

#endif /* PN_CHECK_H */
