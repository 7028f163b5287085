/*
 * pn_unicode.h - what a character is: class, lower case, decomposition.
 *
 * A class is a 64-bit set with one bit per general category and a few for what pre-tokenizers ask
 * about single characters, so "is it in [^\r\n\p{L}\p{N}]" is one AND.
 */
#ifndef PN_UNICODE_H
#define PN_UNICODE_H

#include "base/pn_utf8.h"

/* General categories, as numbered in the table. */
enum {
    PN_UC_CN, PN_UC_LU, PN_UC_LL, PN_UC_LT, PN_UC_LM, PN_UC_LO, PN_UC_MN, PN_UC_MC, PN_UC_ME,
    PN_UC_ND, PN_UC_NL, PN_UC_NO, PN_UC_PC, PN_UC_PD, PN_UC_PS, PN_UC_PE, PN_UC_PI, PN_UC_PF,
    PN_UC_PO, PN_UC_SM, PN_UC_SC, PN_UC_SK, PN_UC_SO, PN_UC_ZS, PN_UC_ZL, PN_UC_ZP, PN_UC_CC,
    PN_UC_CF, PN_UC_CS, PN_UC_CO
};

#define PN_US(cat) ((uint64_t)1 << PN_UC_##cat)
#define PN_US_L (PN_US(LU) | PN_US(LL) | PN_US(LT) | PN_US(LM) | PN_US(LO))
#define PN_US_M (PN_US(MN) | PN_US(MC) | PN_US(ME))
#define PN_US_N (PN_US(ND) | PN_US(NL) | PN_US(NO))
#define PN_US_P (PN_US(PC) | PN_US(PD) | PN_US(PS) | PN_US(PE) | PN_US(PI) | PN_US(PF) | PN_US(PO))
#define PN_US_S (PN_US(SM) | PN_US(SC) | PN_US(SK) | PN_US(SO))
#define PN_US_C (PN_US(CC) | PN_US(CF) | PN_US(CS) | PN_US(CO) | PN_US(CN))
#define PN_US_WS ((uint64_t)1 << 30)            /* White_Space */
#define PN_US_HAN ((uint64_t)1 << 31)           /* script Han */
#define PN_US_CR ((uint64_t)1 << 32)
#define PN_US_LF ((uint64_t)1 << 33)
#define PN_US_SPACE ((uint64_t)1 << 34)         /* U+0020 */
#define PN_US_SLASH ((uint64_t)1 << 35)
#define PN_US_AALPHA ((uint64_t)1 << 36)        /* A-Z a-z */
#define PN_US_ADIGIT ((uint64_t)1 << 37)        /* 0-9 */
#define PN_US_APUNCT ((uint64_t)1 << 38)        /* ASCII punctuation and symbols */
#define PN_US_FALCON ((uint64_t)1 << 39)        /* $ + < = > ^ ~ | */
#define PN_US_TICK ((uint64_t)1 << 40)          /* ` */
#define PN_US_ANY ((uint64_t)1 << 63)           /* every character; absent at the end of text */

PN_INTERNAL uint64_t pn_uni_class(uint32_t cp);
/* The set of general categories with this name ("Lu", or "L" for all that begin so); 0: none. */
PN_INTERNAL uint64_t pn_uni_category(const char *name, size_t n);
PN_INTERNAL uint32_t pn_uni_lower(uint32_t cp);                 /* simple mapping */
PN_INTERNAL uint32_t pn_uni_decomp_first(uint32_t cp);          /* first of the canonical decomposition */

/* --- the tables, for pn_unicode.c and for classes of regular expressions ---------------------------------------------------- */
typedef struct pn_uni_pair { uint32_t a, b; } pn_uni_pair;
typedef struct pn_uni_lower_run { uint32_t first; uint16_t count, step; int32_t delta; } pn_uni_lower_run;
typedef struct pn_uni_tables {
    const uint32_t *runs;               /* first << 5 | category */
    const uint16_t *pages;
    const uint8_t *latin;
    const pn_uni_lower_run *lower;
    const pn_uni_pair *decomp, *han;
    size_t n_runs, n_pages, n_lower, n_decomp, n_han;
} pn_uni_tables;

PN_INTERNAL const pn_uni_tables *pn_uni_tab(void);

#endif /* PN_UNICODE_H */
