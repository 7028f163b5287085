/*
 * pn_str.h - a growing byte string that remembers failure.
 *
 * Append as often as you like and look once at the end: when memory runs out `failed` is set and
 * later appends do nothing.  The bytes are always followed by a NUL (not counted), but may hold
 * NULs themselves.
 */
#ifndef PN_STR_H
#define PN_STR_H

#include "base/pn_mem.h"

typedef struct pn_str pn_str;
struct pn_str {
    pn_mem *mem;            /* borrowed */
    pn_account account;
    char *data;             /* owned; NULL while empty */
    size_t len, cap;
    bool failed;
};

PN_INTERNAL void pn_str_init(pn_str *s, pn_mem *mem, pn_account account);
PN_INTERNAL void pn_str_fini(pn_str *s);                       /* leaves an empty, usable string */
PN_INTERNAL void pn_str_clear(pn_str *s);                      /* len = 0, failed = false */
PN_INTERNAL bool pn_str_reserve(pn_str *s, size_t n);          /* so that n more bytes need no memory; false: failed */
PN_INTERNAL void pn_str_add(pn_str *s, const void *bytes, size_t n);
PN_INTERNAL void pn_str_addz(pn_str *s, const char *text);
PN_INTERNAL void pn_str_addc(pn_str *s, char c);
PN_INTERNAL void pn_str_addf(pn_str *s, const char *fmt, ...) PN_PRINTF(2, 3);
PN_INTERNAL const char *pn_str_cstr(const pn_str *s);          /* never NULL */

/* Number in C locale regardless of the process's: digits, '-', '.', 'e' only.  *end: first byte
 * not used; returns false when there is no number at s. */
PN_INTERNAL bool pn_parse_f64(const char *s, const char *stop, double *out, const char **end);

/* Whole string as decimal integer within [lo, hi]. */
PN_INTERNAL bool pn_parse_i64(const char *s, int64_t lo, int64_t hi, int64_t *out);

/* Whole string as size: digits, optional fraction, optional K M G T (binary). */
PN_INTERNAL bool pn_parse_size(const char *s, uint64_t *out);

#endif /* PN_STR_H */
