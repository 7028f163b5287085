/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_utf8.c - the table of well-formed byte sequences (Unicode 15, table 3-7), as code.
 *
 * What makes UTF-8 strict is in the second byte alone: after E0, ED, F0 and F4 only part of
 * 80..BF may follow, which excludes overlong forms, surrogates and values above U+10FFFF.  So one
 * helper knows the lead bytes with the range of their second byte, and everything else is counting.
 */
#include "base/pn_utf8.h"

/* Bytes of the character that `lead` starts, and the range of its second byte; 0: starts none. */
static unsigned utf8_lead(uint8_t lead, uint8_t *lo, uint8_t *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2)
        return 0;               /* a continuation, or C0/C1: always overlong */
    if (lead < 0xE0)
        return 2;
    if (lead < 0xF0) {
        if (lead == 0xE0)
            *lo = 0xA0;         /* below: overlong */
        if (lead == 0xED)
            *hi = 0x9F;         /* above: surrogates */
        return 3;
    }
    if (lead < 0xF5) {
        if (lead == 0xF0)
            *lo = 0x90;         /* below: overlong */
        if (lead == 0xF4)
            *hi = 0x8F;         /* above: past U+10FFFF */
        return 4;
    }
    return 0;
}

/* How many of the first bytes of s[0..n) fit one character, n > 0; *need: its whole length.
 * 0: the first byte starts none.  A result below both n and *need means a wrong byte follows. */
static unsigned utf8_match(const char *s, size_t n, unsigned *need)
{
    uint8_t lo, hi;
    *need = utf8_lead((uint8_t)s[0], &lo, &hi);
    if (*need == 0)
        return 0;
    unsigned have = 1;
    while (have < *need && have < n) {
        uint8_t b = (uint8_t)s[have];
        if (b < lo || b > hi)
            break;
        lo = 0x80;
        hi = 0xBF;
        have++;
    }
    return have;
}

PN_INTERNAL size_t pn_utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    *cp = PN_UTF8_BAD;
    if (n == 0)
        return 0;
    unsigned need, have = utf8_match(s, n, &need);
    if (have == 0 || have < need)
        return 1;
    uint32_t c = (uint8_t)s[0];
    if (need > 1)
        c &= 0x7Fu >> need;
    for (unsigned i = 1; i < need; i++)
        c = c << 6 | ((uint8_t)s[i] & 0x3Fu);
    *cp = c;
    return need;
}

PN_INTERNAL size_t pn_utf8_encode(uint32_t cp, char out[4])
{
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
        cp = PN_UTF8_BAD;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

PN_INTERNAL size_t pn_utf8_valid(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        unsigned need, have;
        if (!((uint8_t)s[i] & 0x80)) {      /* most text; skip the table */
            i++;
            continue;
        }
        have = utf8_match(s + i, n - i, &need);
        if (have == 0 || have < need)
            break;
        i += need;
    }
    return i;
}

PN_INTERNAL size_t pn_utf8_incomplete(const char *s, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned need, have = utf8_match(s + n - back, back, &need);
        if (have)               /* a lead byte: it alone decides */
            return have == back && have < need ? back : 0;
        if (((uint8_t)s[n - back] & 0xC0) != 0x80)
            return 0;           /* a byte that can be in no character */
    }
    return 0;
}
