/* SPDX-License-Identifier: AGPL-3.0-only */
#include "mem/pn_mscript.h"

#include "base/pn_err.h"

#include <inttypes.h>

/* ------------------------------------------------------------------------------------------
 * Words and numbers
 * ------------------------------------------------------------------------------------------ */

typedef struct mscript_reader {
    const char *name;
    uint64_t line_no;
    pn_bytes line;                      /* what is left of the line */
    unsigned seen;                      /* keys of this line, a bit each */
    pn_err *err;
} mscript_reader;

static pn_status mscript_fail(const mscript_reader *r, const char *what, pn_bytes word)
{
    return pn_fail(r->err, PN_E_INVALID, "%s:%" PRIu64 ": %s: '%.*s'", r->name, r->line_no, what,
                   (int)PN_MIN(word.len, (size_t)40), word.data ? word.data : "");
}

static bool mscript_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* The next word of the line; false at its end. */
static bool mscript_word(mscript_reader *r, pn_bytes *word)
{
    while (r->line.len && mscript_blank(r->line.data[0]))
        r->line.data++, r->line.len--;
    word->data = r->line.data;
    word->len = 0;
    while (r->line.len && !mscript_blank(r->line.data[0]))
        r->line.data++, r->line.len--, word->len++;
    return word->len > 0;
}

static bool mscript_is(pn_bytes w, const char *text) { return w.len == strlen(text) && !memcmp(w.data, text, w.len); }

/* Digits at the word's start, which are cut off; false: none, or too many. */
static bool mscript_digits(pn_bytes *w, uint64_t *out)
{
    size_t before = w->len;
    uint64_t v = 0;
    for (; w->len && w->data[0] >= '0' && w->data[0] <= '9'; w->data++, w->len--)
        if (!pn_mul_u64(v, 10, &v) || !pn_add_u64(v, (uint64_t)(w->data[0] - '0'), &v))
            return false;
    *out = v;
    return w->len < before;
}

static bool mscript_bytes(pn_bytes w, uint64_t *out)
{
    static const char units[] = "KMG";
    if (!mscript_digits(&w, out))
        return false;
    const char *unit = w.len == 1 ? strchr(units, w.data[0]) : NULL;
    if (!unit || !*unit)
        return w.len == 0;
    return pn_mul_u64(*out, UINT64_C(1) << (10 * (unit - units + 1)), out);
}

/* 12 or 12.5: no sign, no exponent, so that no locale has a say. */
static bool mscript_decimal(pn_bytes w, double *out)
{
    uint64_t whole, part = 0;
    double scale = 1;
    if (!mscript_digits(&w, &whole))
        return false;
    if (w.len && w.data[0] == '.') {
        w.data++, w.len--;
        for (size_t i = 0; i < w.len; i++)
            scale *= 10;
        if (!mscript_digits(&w, &part))
            return false;
    }
    *out = (double)whole + (double)part / scale;
    return w.len == 0;
}

/* ------------------------------------------------------------------------------------------
 * Lines
 * ------------------------------------------------------------------------------------------ */

static pn_status mscript_key(mscript_reader *r, pn_bytes word, pn_mscript_line *line)
{
    static const char *const keys[] = {"psi", "refault", "swapin", "oom"};
    const char *equals = memchr(word.data, '=', word.len);
    if (!equals)
        return mscript_fail(r, "expected KEY=VALUE", word);
    pn_bytes key = {word.data, (size_t)(equals - word.data)};
    pn_bytes value = {equals + 1, word.len - key.len - 1};
    double percent;
    uint64_t n;
    unsigned k = 0;
    while (k < PN_COUNT_OF(keys) && !mscript_is(key, keys[k]))
        k++;
    if (k == PN_COUNT_OF(keys) || (r->seen & 1u << k))
        return mscript_fail(r, k == PN_COUNT_OF(keys) ? "unknown key (psi, refault, swapin, oom)" : "given twice", word);
    r->seen |= 1u << k;
    if (k == 0) {
        if (!mscript_decimal(value, &percent) || percent > 100)
            return mscript_fail(r, "psi is a percentage", word);
        line->psi_rate = percent * 1e4;         /* microseconds a second */
    } else if (k < 3) {
        if (!mscript_bytes(value, &n))
            return mscript_fail(r, "not a number of bytes", word);
        *(k == 1 ? &line->refault_rate : &line->swapin_rate) = (double)n;
    } else {
        if (!mscript_digits(&value, &n) || value.len)
            return mscript_fail(r, "not a number of events", word);
        line->oom = pn_add_sat(line->oom, n);
    }
    return PN_OK;
}

/* "SOFT [HARD] [KEY=VALUE ...]" or "lost [KEY=VALUE ...]". */
static pn_status mscript_values(mscript_reader *r, pn_mscript_line *line)
{
    pn_bytes word;
    if (!mscript_word(r, &word))
        return mscript_fail(r, "expected the available bytes or 'lost' after the time", word);
    if (mscript_is(word, "lost"))
        line->lost = true;
    else if (!mscript_bytes(word, &line->soft))
        return mscript_fail(r, "not a number of bytes", word);
    line->hard = line->soft;
    bool more = mscript_word(r, &word);
    if (more && !line->lost && !memchr(word.data, '=', word.len)) {
        if (!mscript_bytes(word, &line->hard))
            return mscript_fail(r, "not a number of bytes", word);
        if (line->hard < line->soft)
            return mscript_fail(r, "available_hard is less than available_soft", word);
        more = mscript_word(r, &word);
    }
    for (; more; more = mscript_word(r, &word)) {
        pn_status st = mscript_key(r, word, line);
        if (st != PN_OK)
            return st;
    }
    return PN_OK;
}

static pn_status mscript_budget(mscript_reader *r, pn_mscript *s)
{
    pn_bytes word;
    if (s->budget || s->n)
        return mscript_fail(r, "the budget is given once, before the first instant", r->line);
    if (!mscript_word(r, &word) || !mscript_bytes(word, &s->budget) || s->budget == 0)
        return mscript_fail(r, "not a number of bytes", word);
    return mscript_word(r, &word) ? mscript_fail(r, "nothing follows the budget", word) : PN_OK;
}

/* One line without its comment and newline. */
static pn_status mscript_line(mscript_reader *r, pn_mscript *s)
{
    pn_bytes word;
    pn_mscript_line line = {0};
    if (!mscript_word(r, &word))
        return PN_OK;
    if (mscript_is(word, "budget"))
        return mscript_budget(r, s);
    if (!mscript_decimal(word, &line.t))
        return mscript_fail(r, "expected a time in seconds", word);
    if (s->n == 0 ? line.t > 0 : line.t <= s->lines[s->n - 1].t)
        return mscript_fail(r, s->n ? "time does not grow" : "the first time is not 0", word);
    if (s->n) {                                 /* what the line before has added until now */
        const pn_mscript_line *b = &s->lines[s->n - 1];
        line.psi = b->psi + b->psi_rate * (line.t - b->t);
        line.refault = b->refault + b->refault_rate * (line.t - b->t);
        line.swapin = b->swapin + b->swapin_rate * (line.t - b->t);
        line.oom = b->oom;
    }
    pn_status st = mscript_values(r, &line);
    if (st != PN_OK)
        return st;
    if (!pn_mem_grow(s->mem, PN_ACCT_MISC, (void **)&s->lines, &s->cap, s->n + 1, sizeof *s->lines))
        return pn_fail_nomem(r->err, "a pressure script", (s->n + 1) * sizeof *s->lines);
    s->lines[s->n++] = line;
    return PN_OK;
}

PN_INTERNAL pn_status pn_mscript_init(pn_mscript *s, pn_mem *mem, const char *name, const char *text, size_t n,
                                      pn_err *err)
{
    mscript_reader r = {.name = name, .err = err};
    pn_status st = PN_OK;
    memset(s, 0, sizeof *s);
    s->mem = mem;
    while (n && st == PN_OK) {
        const char *newline = memchr(text, '\n', n);
        size_t len = newline ? (size_t)(newline - text) : n;
        const char *comment = memchr(text, '#', len);
        r.line_no++;
        r.seen = 0;
        r.line = (pn_bytes){text, comment ? (size_t)(comment - text) : len};
        st = mscript_line(&r, s);
        n -= newline ? len + 1 : len;
        text += newline ? len + 1 : len;
    }
    if (st == PN_OK && s->n == 0)
        st = pn_fail(err, PN_E_INVALID, "%s: holds no instant", name);
    uint64_t largest = 0;
    for (size_t i = 0; i < s->n; i++)
        largest = PN_MAX(largest, s->lines[i].hard);
    s->budget = s->budget ? s->budget : largest;
    if (st != PN_OK)
        pn_mscript_fini(s);
    return st;
}

PN_INTERNAL void pn_mscript_fini(pn_mscript *s)
{
    if (s->lines)
        pn_mem_free(s->mem, PN_ACCT_MISC, s->lines, s->cap * sizeof *s->lines);
    s->lines = NULL;
    s->n = s->cap = 0;
}

static uint64_t mscript_whole(double v) { return v >= 0x1p64 ? UINT64_MAX : (uint64_t)v; }

PN_INTERNAL void pn_mscript_at(const pn_mscript *s, double t, pn_mscript_state *out)
{
    size_t i = 0;
    t = PN_MAX(t, 0.0);
    while (i + 1 < s->n && s->lines[i + 1].t <= t)
        i++;
    const pn_mscript_line *l = &s->lines[i];
    out->lost = l->lost;
    out->soft = l->soft;
    out->hard = l->hard;
    out->oom = l->oom;
    out->psi_us = mscript_whole(l->psi + l->psi_rate * (t - l->t));
    out->refault = mscript_whole(l->refault + l->refault_rate * (t - l->t));
    out->swapin = mscript_whole(l->swapin + l->swapin_rate * (t - l->t));
}
