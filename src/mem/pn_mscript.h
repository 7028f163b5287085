/*
 * pn_mscript.h - a made-up machine: what memory would say, second by second, from a text.
 *
 * Tests of the level machine and `--pressure-script FILE` take their readings from here, so that a
 * shortage can be played on a machine that has none.  The text, line by line, '#' begins a comment:
 *
 *     budget 8G                     at most once, before the rest; else the largest available_hard
 *     T SOFT [HARD] [KEY=VALUE ...] from T seconds on SOFT bytes are available (HARD: SOFT)
 *     T lost [KEY=VALUE ...]        from T on nothing can be read
 *
 *     psi=PERCENT     of the time from here on in which all tasks wait for memory
 *     refault=BYTES   a second, from here on; swapin=BYTES likewise
 *     oom=N           out-of-memory events at this instant
 *
 * Bytes are whole numbers with an optional K, M or G (2^10, 2^20, 2^30); T and PERCENT are decimal,
 * no exponents.  The first T is 0, later ones grow.  A line holds until the next, the last for ever: a
 * ramp is several lines.  What a line does not name is 0.  Example:
 *
 *     budget 8G
 *     0   6G
 *     2   500M refault=80M psi=18.5   # another process wakes up
 *     9.5 6G 7G
 *
 * Anything else is an error that names its line.
 */
#ifndef PN_MSCRIPT_H
#define PN_MSCRIPT_H

#include "base/pn_mem.h"

/* What holds at an instant. */
typedef struct pn_mscript_state {
    bool lost;
    uint64_t soft, hard;                /* bytes available */
    uint64_t refault, swapin;           /* bytes since the beginning */
    uint64_t psi_us, oom;               /* microseconds, events, since the beginning */
} pn_mscript_state;

typedef struct pn_mscript_line {
    double t;
    double psi_rate, refault_rate, swapin_rate;     /* microseconds and bytes a second, from t on */
    double psi, refault, swapin;                    /* reached at t */
    uint64_t soft, hard, oom;
    bool lost;
} pn_mscript_line;

typedef struct pn_mscript {
    pn_mem *mem;
    pn_mscript_line *lines;             /* owned */
    size_t n, cap;
    uint64_t budget;                    /* bytes */
} pn_mscript;

/* Read text[0..n); `name` stands before the line number in errors.  On failure *s is empty. */
PN_INTERNAL pn_status pn_mscript_init(pn_mscript *s, pn_mem *mem, const char *name, const char *text, size_t n,
                                      pn_err *err);
PN_INTERNAL void pn_mscript_fini(pn_mscript *s);        /* empty: no-op */

/* t: seconds since the beginning. */
PN_INTERNAL void pn_mscript_at(const pn_mscript *s, double t, pn_mscript_state *out);

#endif /* PN_MSCRIPT_H */
