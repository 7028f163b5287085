/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_unicode.c - look-ups in the generated table.
 *
 * Latin-1 is a direct table because most text is there.  Elsewhere the page index narrows the list
 * of runs to a handful, found by bisection; nothing is expanded at run time, so there is no state.
 */
#include "text/pn_unicode.h"

/* Category bit plus the bits single ASCII characters have. */
static uint64_t uni_ascii_extra(uint32_t cp)
{
    if (cp >= 'a' && cp <= 'z')
        return PN_US_AALPHA;
    if (cp >= 'A' && cp <= 'Z')
        return PN_US_AALPHA;
    if (cp >= '0' && cp <= '9')
        return PN_US_ADIGIT;
    switch (cp) {
    case ' ': return PN_US_SPACE | PN_US_WS;
    case '\r': return PN_US_CR | PN_US_WS;
    case '\n': return PN_US_LF | PN_US_WS;
    case '\t': case 0x0B: case 0x0C: return PN_US_WS;
    case '/': return PN_US_SLASH | PN_US_APUNCT;
    case '`': return PN_US_TICK | PN_US_APUNCT;
    case '$': case '+': case '<': case '=': case '>': case '^': case '~': case '|':
        return PN_US_FALCON | PN_US_APUNCT;
    default: return cp > 0x20 && cp < 0x7F ? PN_US_APUNCT : 0;
    }
}

static bool uni_is_space(uint32_t cp)
{
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

static unsigned uni_category(const pn_uni_tables *t, uint32_t cp)
{
    if (cp < 256)
        return t->latin[cp];
    size_t lo, hi;
    size_t page = cp >> 8;
    if (page + 1 < t->n_pages) {
        lo = t->pages[page];
        hi = (size_t)t->pages[page + 1] + 1;
    } else {
        lo = t->pages[t->n_pages - 1];
        hi = t->n_runs;
    }
    while (hi - lo > 1) {               /* runs[lo] starts at or before cp, runs[hi] after it */
        size_t mid = lo + (hi - lo) / 2;
        if (t->runs[mid] >> 5 <= cp)
            lo = mid;
        else
            hi = mid;
    }
    return t->runs[lo] & 31;
}

PN_INTERNAL uint64_t pn_uni_class(uint32_t cp)
{
    const pn_uni_tables *t = pn_uni_tab();
    if (cp > 0x10FFFF)
        return PN_US_ANY | PN_US(CN);
    uint64_t m = PN_US_ANY | (uint64_t)1 << uni_category(t, cp);
    if (cp < 128)
        return m | uni_ascii_extra(cp);
    if (uni_is_space(cp))
        m |= PN_US_WS;
    if (cp >= t->han[0].a)
        for (size_t i = 0; i < t->n_han && cp >= t->han[i].a; i++)
            if (cp <= t->han[i].b)
                m |= PN_US_HAN;
    return m;
}

PN_INTERNAL uint32_t pn_uni_lower(uint32_t cp)
{
    if (cp < 128)
        return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    const pn_uni_tables *t = pn_uni_tab();
    size_t lo = 0, hi = t->n_lower;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (t->lower[mid].first <= cp)
            lo = mid;
        else
            hi = mid;
    }
    const pn_uni_lower_run *r = &t->lower[lo];
    uint32_t off = cp - r->first;
    if (cp < r->first || off % r->step || off / r->step >= r->count)
        return cp;
    return (uint32_t)((int32_t)cp + r->delta);
}

PN_INTERNAL uint32_t pn_uni_decomp_first(uint32_t cp)
{
    if (cp < 0xC0)
        return cp;
    if (cp >= 0xAC00 && cp <= 0xD7A3)           /* LBase + s / (VCount * TCount) */
        return 0x1100 + (cp - 0xAC00) / 588;
    const pn_uni_tables *t = pn_uni_tab();
    size_t lo = 0, hi = t->n_decomp;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (t->decomp[mid].a < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < t->n_decomp && t->decomp[lo].a == cp ? t->decomp[lo].b : cp;
}

PN_INTERNAL uint64_t pn_uni_category(const char *name, size_t n)
{
    static const char list[] = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCo";  /* PN_UC_LU on */
    uint64_t set = 0;
    if (n < 1 || n > 2)
        return 0;
    for (size_t i = 0; list[2 * i]; i++)
        if (list[2 * i] == name[0] && (n == 1 || list[2 * i + 1] == name[1]))
            set |= (uint64_t)1 << (i + 1);
    if (name[0] == 'C' && (n == 1 || name[1] == 'n'))
        set |= PN_US(CN);
    return set;
}
