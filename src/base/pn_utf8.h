/*
 * pn_utf8.h - UTF-8 read strictly: no overlong forms, no surrogates, nothing above U+10FFFF.
 *
 * Bytes come from files, networks and half-generated answers, so every function takes a length,
 * accepts any bytes and never reads past it.  Pure: no state.
 */
#ifndef PN_UTF8_H
#define PN_UTF8_H

#include "base/pn_base.h"

#define PN_UTF8_BAD 0xFFFDu     /* U+FFFD REPLACEMENT CHARACTER */

/* The character at s[0..n): *cp and the bytes it takes.  A byte that starts no whole valid
 * character gives 1 and PN_UTF8_BAD (the real U+FFFD takes 3, so the two can be told apart);
 * n == 0 gives 0. */
PN_INTERNAL size_t pn_utf8_decode(const char *s, size_t n, uint32_t *cp);

/* Write cp to out[0..4); returns the bytes written, 1 to 4.  What is no character (a surrogate,
 * above U+10FFFF) is written as U+FFFD. */
PN_INTERNAL size_t pn_utf8_encode(uint32_t cp, char out[4]);

/* Length of the longest prefix that is valid; n when all of it is. */
PN_INTERNAL size_t pn_utf8_valid(const char *s, size_t n);

/* How many bytes at the end (0 to 3) are the start of a character that more bytes could still
 * complete.  Only the tail is looked at. */
PN_INTERNAL size_t pn_utf8_incomplete(const char *s, size_t n);

#endif /* PN_UTF8_H */
