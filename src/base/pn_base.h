/*
 * pn_base.h - comes first in every file: feature macros, linkage marks, small helpers.
 *
 * Feature macros must be set before the first system header (-std=c11 hides POSIX), which is why
 * a program that includes a drop has to do so before its own system headers.
 */
#ifndef PN_BASE_H
#define PN_BASE_H

#if defined(__GLIBC__) && defined(_FEATURES_H) && !defined(__USE_GNU)
#error "include pantheon.c before any system header (it needs _GNU_SOURCE)"
#endif
#if defined(__APPLE__)
#ifndef _DARWIN_C_SOURCE
#define _DARWIN_C_SOURCE 1
#endif
#elif !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/pn_config.h"
#include "pantheon.h"

/* Shared inside the library: hidden in the tree, static in a drop, where an unused one is no
 * mistake.  -DPN_INTERNAL=static on the core drop lists dead functions. */
#ifndef PN_INTERNAL
#if defined(PN_AMALGAMATION) && (defined(__GNUC__) || defined(__clang__))
#define PN_INTERNAL static __attribute__((unused))
#elif defined(PN_AMALGAMATION)
#define PN_INTERNAL static
#elif defined(__GNUC__) || defined(__clang__)
#define PN_INTERNAL __attribute__((visibility("hidden")))
#else
#define PN_INTERNAL
#endif
#endif

#if defined(__GNUC__) || defined(__clang__)
#define PN_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define PN_LIKELY(x) __builtin_expect(!!(x), 1)
#define PN_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define PN_INLINE static inline __attribute__((always_inline, unused))
#define PN_RESTRICT __restrict
#else
#define PN_PRINTF(fmt, args)
#define PN_LIKELY(x) (x)
#define PN_UNLIKELY(x) (x)
#define PN_INLINE static inline
#define PN_RESTRICT
#endif

#define PN_MIN(a, b) ((a) < (b) ? (a) : (b))
#define PN_MAX(a, b) ((a) > (b) ? (a) : (b))
#define PN_COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

/* For our own mistakes only; the world's (files, memory, callers) get a pn_status.  A library does
 * not abort: a failed assert traps in debug builds and is compiled out with PN_ENABLE_ASSERT=0. */
#if PN_ENABLE_ASSERT && (defined(__GNUC__) || defined(__clang__))
#define PN_ASSERT(c) ((c) ? (void)0 : __builtin_trap())
#else
#define PN_ASSERT(c) ((void)0)
#endif

/* Bytes with a length; borrowed, may hold NULs, no terminator. */
typedef struct pn_bytes {
    const char *data;
    size_t len;
} pn_bytes;

/* Round x up to a multiple of the power of two a.  The caller has checked for overflow. */
static inline uint64_t pn_align_up(uint64_t x, uint64_t a) { return (x + (a - 1)) & ~(a - 1); }

/* *out = a * b, a + b; false (and *out untouched) when it does not fit in 64 bits. */
static inline bool pn_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    if (a != 0 && b > UINT64_MAX / a)
        return false;
    *out = a * b;
    return true;
}

static inline bool pn_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    if (b > UINT64_MAX - a)
        return false;
    *out = a + b;
    return true;
}

/* The same, and a - b, ending at the nearest number that fits. */
static inline uint64_t pn_add_sat(uint64_t a, uint64_t b) { return b > UINT64_MAX - a ? UINT64_MAX : a + b; }
static inline uint64_t pn_sub_sat(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }
static inline uint64_t pn_mul_sat(uint64_t a, uint64_t b) { return a != 0 && b > UINT64_MAX / a ? UINT64_MAX : a * b; }

/* Little-endian loads from unaligned bytes. */
static inline uint16_t pn_le16(const void *p)
{
    const uint8_t *b = p;
    return (uint16_t)(b[0] | (uint16_t)(b[1] << 8));
}

static inline uint32_t pn_le32(const void *p)
{
    const uint8_t *b = p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static inline uint64_t pn_le64(const void *p)
{
    const uint8_t *b = p;
    return (uint64_t)pn_le32(b) | (uint64_t)pn_le32(b + 4) << 32;
}

static inline float pn_f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t pn_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

#endif /* PN_BASE_H */
