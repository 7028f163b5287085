/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cuts.c - from patterns to levels, and to words and back.
 */
#include "text/pn_cuts.h"

static const char *const cuts_names[] = {"isolated", "removed", "previous", "next", "contiguous"};     /* by pn_pretok_cut */

PN_INTERNAL void pn_cuts_fini(pn_cuts *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        pn_pattern_free(c->own[i].program);
    c->n = 0;
}

PN_INTERNAL uint64_t pn_cuts_bytes(const pn_cuts *c)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < c->n; i++)
        sum += pn_pattern_bytes(c->own[i].program);
    return sum;
}

PN_INTERNAL pn_status pn_cuts_level(pn_cuts *c, pn_mem *mem, pn_bytes pattern, bool literal, pn_pretok_cut cut, bool invert,
                                    const pn_pretok_pattern **level, pn_err *err)
{
    bool total = false;
    const pn_pretok_pattern *known = literal ? NULL : pn_pretok_regex(pattern.data, pattern.len, &total);
    /* Keeping only the matches is keeping all when there is nothing between them. */
    if (known && ((cut == PN_CUT_ISOLATED && !invert) || (cut == PN_CUT_REMOVED && invert && total))) {
        *level = known;
        return PN_OK;
    }
    if (c->n == PN_PRETOK_MAX_LEVELS)
        return pn_fail(err, PN_E_UNSUPPORTED, "more than %d patterns", PN_PRETOK_MAX_LEVELS);
    pn_pretok_pattern *own = &c->own[c->n];
    *own = (pn_pretok_pattern){.cut = cut, .invert = invert};
    pn_status st = pn_pattern_new(&own->program, mem, pattern.data, pattern.len, literal, err);
    if (!st) {
        *level = own;
        c->n++;
    }
    return st;
}

PN_INTERNAL void pn_cuts_write(pn_str *out, pn_bytes pattern, bool literal, pn_pretok_cut cut, bool invert)
{
    pn_str_addz(out, cuts_names[cut]);
    pn_str_addz(out, invert ? "! " : " ");
    if (!literal)
        pn_str_add(out, pattern.data, pattern.len);
    for (size_t i = 0; i < pattern.len && literal; i++) {
        unsigned char b = (unsigned char)pattern.data[i];
        bool word = b >= 0x80 || b == ' ' || (b >= '0' && b <= '9') || ((b | 0x20) >= 'a' && (b | 0x20) <= 'z');
        if (b < 0x20 || b == 0x7F)
            pn_str_addf(out, "\\x%02x", b);
        else
            pn_str_addf(out, word ? "%c" : "\\%c", b);
    }
}

/* The cut at the beginning of `word`, which then is the pattern. */
static bool cuts_take(pn_bytes *word, pn_pretok_cut *cut, bool *invert)
{
    for (size_t i = 0; i < PN_COUNT_OF(cuts_names); i++) {
        size_t n = strlen(cuts_names[i]);
        if (word->len < n || memcmp(word->data, cuts_names[i], n) != 0)
            continue;
        *invert = word->len > n && word->data[n] == '!';
        n += *invert;
        if (word->len < n + 2 || word->data[n] != ' ')
            return false;
        *cut = (pn_pretok_cut)i;
        *word = (pn_bytes){word->data + n + 1, word->len - n - 1};
        return true;
    }
    return false;
}

PN_INTERNAL pn_status pn_cuts_read(pn_cuts *c, pn_mem *mem, pn_pretok *p, const pn_bytes *words, size_t n, pn_err *err)
{
    if (!n || n > PN_PRETOK_MAX_LEVELS)
        return pn_fail(err, PN_E_FORMAT, "%zu ways to cut text (pantheon.tokenizer.patterns), expected 1 to %d", n, PN_PRETOK_MAX_LEVELS);
    for (size_t i = 0; i < n; i++) {
        pn_bytes word = words[i];
        pn_pretok_cut cut = PN_CUT_ISOLATED;
        bool invert = false;
        pn_err why = {0};
        if (!cuts_take(&word, &cut, &invert))
            return pn_fail(err, PN_E_FORMAT, "pantheon.tokenizer.patterns[%zu] \"%.*s\" is not a cut and a pattern", i,
                           (int)PN_MIN(word.len, (size_t)80), word.len ? word.data : "");
        pn_status st = pn_cuts_level(c, mem, word, false, cut, invert, &p->levels[i], &why);
        if (st == PN_E_NOMEM)
            return pn_fail_nomem(err, "a regular expression", word.len);
        if (st)
            return pn_fail(err, st, "pantheon.tokenizer.patterns[%zu]: the regular expression \"%.*s\" is not supported: %s", i,
                           (int)PN_MIN(word.len, (size_t)160), word.data, why.text);
    }
    return PN_OK;
}
