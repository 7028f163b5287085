/*
 * pn_pattern.h - regular expressions of pre-tokenizers that no table knows.
 *
 * The published patterns have rules written for them (pn_pretok_rules.c).  Any other pattern is run here,
 * with the meaning it has for the program that trained the vocabulary: the leftmost match, of several the
 * first alternative, greedy, lazy and possessive repetitions as written.  What could mean something else
 * there is refused by name, not approximated.
 *
 *     understood   characters, . \t \n \r \f \v \a \e \xHH \x{H..} \uHHHH, a backslash before punctuation
 *                  classes with ranges, ^, classes inside, &&; \s \S \d \D \w \W; \p{..} and \P{..} of general
 *                  categories, Han and White_Space; [:punct:] [:space:] [:digit:]
 *                  | ( ) (?: ) (?> ) (?i: ), (?i) in front of everything
 *                  ? * + with ? or + behind; {m} {m,} {m,n}, with ? or + behind what those mean there
 *                  (?= ) (?! ), (?<= ) and (?<! ) of one character; ^ $ \A \z \Z \b \B
 *     refused      the rest; also a repetition without limit of something that may be empty, and without
 *                  case: what has partners beyond ASCII, and letters that one character stands for (ss, st, ff)
 *
 * There is no backtracking.  What a place in the program gives at a position of the text depends on the
 * text behind it alone, so one walk from the end of the text to its beginning, with a row of values for
 * one position and for the next, knows every match.  Hence time is the length of the text times that of
 * the program whatever either says, nothing recurses, and memory is four bytes for a byte of text.
 *
 * A pattern is constant once made: any number of threads.
 */
#ifndef PN_PATTERN_H
#define PN_PATTERN_H

#include "base/pn_err.h"
#include "base/pn_mem.h"

typedef struct pn_pattern pn_pattern;

#define PN_PATTERN_NONE UINT32_MAX      /* no match begins here */

/* literal: s[0..n) is a text, not an expression.  PN_E_UNSUPPORTED: refused, with offset and reason; PN_E_NOMEM. */
PN_INTERNAL pn_status pn_pattern_new(pn_pattern **out, pn_mem *mem, const char *s, size_t n, bool literal, pn_err *err);
PN_INTERNAL void pn_pattern_free(pn_pattern *p);               /* NULL is a no-op */
PN_INTERNAL uint64_t pn_pattern_bytes(const pn_pattern *p);    /* memory held */

/* ends[i] for each i in [0, n] at which a character begins, or the text ends: where the match that begins
 * at i ends, which may be i, or PN_PATTERN_NONE.  n < 2^31.  scratch: pn_pattern_scratch(p) numbers. */
PN_INTERNAL void pn_pattern_run(const pn_pattern *p, const char *text, size_t n, uint32_t *ends, uint32_t *scratch);
PN_INTERNAL size_t pn_pattern_scratch(const pn_pattern *p);

#endif /* PN_PATTERN_H */
