/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_respell.c - finding the end of a repeated answer.
 *
 * Nothing says where a template's repetition ends, so ends are guessed and the parser judges.  Guesses,
 * in this order: around the family's closing markers and end tokens where the template itself wrote
 * them, then (templates without such markers) where somebody's text ends and the template's begins, and
 * at its newlines.
 *
 *     prompt   ... <|im_start|>assistant\n {"name": ...}\n </tool_call> <|im_end|> \n<|im_start|>user
 *              begun                      from             first        last
 *
 * Several guesses in a row can be right, since markers say nothing: those between the first and the
 * last right one are the answer's own closing, and `raw` may have it, have a part of it (an answer that
 * was cut off), or none.
 */
#include "text/pn_respell.h"

#include "base/pn_err.h"
#include "text/pn_out_parts.h"

enum {
    RESPELL_MARKS = 64,
    RESPELL_TRIES = 64,
    RESPELL_MORE = 4096         /* bytes that a template may add, and it may make 8 of 1 ("\\u00e9", indentation) */
};

typedef struct respell_mark {
    pn_bytes text;
    bool ends;                  /* nothing of the answer follows it */
} respell_mark;

typedef struct respell_search {
    const pn_respell *q;
    pn_out_result want;
    respell_mark marks[RESPELL_MARKS];
    size_t n_marks, tries;
    size_t limit;               /* the answer's repetition ends here at the latest */
    size_t first, last;         /* right guesses; first > limit: none yet */
    pn_err *err;
} respell_search;

/* ------------------------------------------------------------------------------------------
 * Two texts, one answer?
 * ------------------------------------------------------------------------------------------ */

static pn_status respell_parse(const pn_respell *q, pn_bytes opening, const char *text, size_t len, pn_out_result *r, pn_err *err)
{
    pn_out *p = NULL;
    pn_out_result_init(r, q->mem);
    pn_status st = pn_out_new(&p, q->mem, q->format, q->tools, opening.data, opening.len, NULL, pn_out_collect, r, err);
    if (!st)
        st = pn_out_push(p, text, len, err);
    if (!st)
        st = pn_out_end(p, err);
    pn_out_free(p);
    return r->failed ? pn_fail_nomem(err, "a parsed answer", len) : st;     /* the sink that failed also cancels */
}

static pn_bytes respell_trim(const pn_str *s)
{
    pn_bytes b = {pn_str_cstr(s), s->len};
    for (; b.len && out_is_blank(b.data[0]); b.data++)
        b.len--;
    while (b.len && out_is_blank(b.data[b.len - 1]))
        b.len--;
    return b;
}

static bool respell_equal(pn_bytes a, pn_bytes b) { return a.len == b.len && (!a.len || memcmp(a.data, b.data, a.len) == 0); }

/* Depth is the parser's, so this ends. */
static bool respell_same_value(const pn_json_doc *a, uint32_t x, const pn_json_doc *b, uint32_t y)
{
    pn_bytes s = {NULL, 0}, t = {NULL, 0};
    bool p = false, q = false;
    double u = 0, v = 1;
    pn_json_type type = pn_json_type_of(a, x);
    if (type != pn_json_type_of(b, y))
        return false;
    if (type == PN_JSON_STRING)
        return pn_json_str(a, x, &s) && pn_json_str(b, y, &t) && respell_equal(s, t);
    if (type == PN_JSON_BOOL)
        return pn_json_bool(a, x, &p) && pn_json_bool(b, y, &q) && p == q;
    if (type == PN_JSON_NUMBER)
        return (pn_json_num(a, x, &s) && pn_json_num(b, y, &t) && respell_equal(s, t)) ||
               (pn_json_f64(a, x, &u) && pn_json_f64(b, y, &v) && u == v);
    if (type != PN_JSON_ARRAY && type != PN_JSON_OBJECT)
        return true;
    if (pn_json_count(a, x) != pn_json_count(b, y))
        return false;
    uint32_t d = pn_json_first(b, y);
    for (uint32_t c = pn_json_first(a, x); c != PN_JSON_NONE; c = pn_json_next(a, c)) {
        pn_bytes key = pn_json_key_of(a, c);
        if (type == PN_JSON_OBJECT)
            d = pn_json_find(b, y, key.data, key.len);
        if (!respell_same_value(a, c, b, d))
            return false;
        if (type == PN_JSON_ARRAY)
            d = pn_json_next(b, d);
    }
    return true;
}

static pn_status respell_same_args(pn_mem *mem, const pn_str *a, const pn_str *b, bool *same, pn_err *err)
{
    pn_json_doc x, y;
    pn_err bad = {PN_OK, {0}};
    *same = respell_equal((pn_bytes){pn_str_cstr(a), a->len}, (pn_bytes){pn_str_cstr(b), b->len});
    if (*same)
        return PN_OK;
    pn_status st = pn_json_parse(&x, mem, PN_ACCT_MISC, pn_str_cstr(a), a->len, NULL, &bad);
    if (!st) {
        st = pn_json_parse(&y, mem, PN_ACCT_MISC, pn_str_cstr(b), b->len, NULL, &bad);
        if (!st) {
            *same = respell_same_value(&x, PN_JSON_ROOT, &y, PN_JSON_ROOT);
            pn_json_fini(&y);
        }
        pn_json_fini(&x);
    }
    return st == PN_E_NOMEM ? pn_fail_nomem(err, "a call's arguments", a->len) : PN_OK;
}

static pn_status respell_same(pn_mem *mem, const pn_out_result *a, const pn_out_result *b, bool *same, pn_err *err)
{
    pn_status st = PN_OK;
    *same = a->n_calls == b->n_calls && respell_equal(respell_trim(&a->reasoning), respell_trim(&b->reasoning)) &&
            respell_equal(respell_trim(&a->content), respell_trim(&b->content));
    for (size_t i = 0; i < a->n_calls && *same && !st; i++) {
        const pn_out_call *x = &a->calls[i], *y = &b->calls[i];
        *same = x->complete && y->complete && respell_equal((pn_bytes){pn_str_cstr(&x->name), x->name.len},
                                                            (pn_bytes){pn_str_cstr(&y->name), y->name.len});
        if (*same)
            st = respell_same_args(mem, &x->arguments, &y->arguments, same, err);
    }
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Guesses
 * ------------------------------------------------------------------------------------------ */

static void respell_add(respell_search *s, pn_bytes text, bool ends)
{
    if (text.len && s->n_marks < RESPELL_MARKS)
        s->marks[s->n_marks++] = (respell_mark){text, ends};
}

static void respell_addz(respell_search *s, const char *text, bool ends)
{
    if (text)
        respell_add(s, (pn_bytes){text, strlen(text)}, ends);
}

static void respell_marks(respell_search *s)
{
    const out_family *f = pn_out_family(s->q->format->family);
    respell_addz(s, s->q->format->think_close, false);
    for (size_t i = 0; i < PN_COUNT_OF(f->close); i++)
        respell_addz(s, f->close[i], false);
    for (size_t i = 0; i < PN_COUNT_OF(f->skip); i++)
        respell_addz(s, f->skip[i], false);
    for (size_t i = 0; pn_out_end_mark(i); i++)
        if (s->q->format->ends >> i & 1)
            respell_addz(s, pn_out_end_mark(i), true);
    for (uint32_t t = 0; s->q->vocab && t < pn_vocab_n_tokens(s->q->vocab); t++)
        if (pn_vocab_ends(s->q->vocab, (pn_token)t))
            respell_add(s, pn_vocab_text(s->q->vocab, (pn_token)t), true);
}

/* The longest marker at text[0..n); NULL: none. */
static const respell_mark *respell_mark_at(const respell_search *s, const char *text, size_t n)
{
    const respell_mark *best = NULL;
    for (size_t i = 0; i < s->n_marks; i++) {
        const respell_mark *m = &s->marks[i];
        if (m->text.len <= n && text[0] == m->text.data[0] && memcmp(text, m->text.data, m->text.len) == 0 &&
            (!best || m->text.len > best->text.len || (m->text.len == best->text.len && m->ends)))
            best = m;
    }
    return best;
}

/* Does the answer end at `at`?  *right says so. */
static pn_status respell_try(respell_search *s, size_t at, bool *right)
{
    const pn_respell *q = s->q;
    const char *text = pn_str_cstr(&q->prompt->text);
    pn_out_result r;
    *right = s->first <= s->limit && at == s->last;
    if (*right || s->tries == 0 || at < q->from || at > s->limit)
        return PN_OK;
    s->tries--;
    pn_status st = respell_parse(q, (pn_bytes){text + q->begun, q->from - q->begun}, text + q->from, at - q->from, &r, s->err);
    if (!st)
        st = respell_same(q->mem, &s->want, &r, right, s->err);
    pn_out_result_fini(&r);
    if (*right) {
        s->first = PN_MIN(s->first, at);
        s->last = at;
    }
    return st;
}

/* Around the markers that the template wrote.  The last right guess is in front of an end, or where
 * being right stops. */
static pn_status respell_by_marks(respell_search *s)
{
    const pn_respell *q = s->q;
    const pn_prompt *p = q->prompt;
    pn_status st = PN_OK;
    for (size_t i = 0; i < p->n_spans && !st; i++)
        for (size_t at = PN_MAX(p->spans[i].begin, q->from), stop = PN_MIN(p->spans[i].end, s->limit); at < stop && !st;) {
            const respell_mark *m = respell_mark_at(s, p->text.data + at, stop - at);
            bool before = false, after = false, had = s->first <= s->limit;
            if (!m) {
                at++;
                continue;
            }
            st = respell_try(s, at, &before);
            if (!st && !m->ends)
                st = respell_try(s, at + m->text.len, &after);
            if (st || s->tries == 0 || (before && m->ends) || (had && !before && !after))
                return st;
            at += m->text.len;
        }
    return st;
}

/* Where the template's own text begins, and at its newlines: the first right one. */
static pn_status respell_by_borders(respell_search *s)
{
    const pn_respell *q = s->q;
    const pn_prompt *p = q->prompt;
    pn_status st = PN_OK;
    bool right = false;
    for (size_t i = 0; i < p->n_spans && !st && !right && s->tries; i++) {
        size_t at = PN_MAX(p->spans[i].begin, q->from), stop = PN_MIN(p->spans[i].end, s->limit);
        for (; at < stop && !st && !right && s->tries; at++)
            if (at == p->spans[i].begin || p->text.data[at] == '\n')
                st = respell_try(s, at, &right);
    }
    return st || right ? st : respell_try(s, s->limit, &right);
}

/* ------------------------------------------------------------------------------------------
 * What of the closing has been said
 * ------------------------------------------------------------------------------------------ */

static bool respell_has_tail(pn_bytes b, const char *tail, size_t n)
{
    return n <= b.len && memcmp(b.data + b.len - n, tail, n) == 0;
}

/* Text stands behind the last call, so that call is closed. */
static bool respell_goes_on(const respell_search *s, pn_bytes raw)
{
    enum { RESPELL_TAIL = 8 };
    pn_bytes content = respell_trim(&s->want.content);
    size_t n = PN_MIN(content.len, (size_t)RESPELL_TAIL);
    return s->want.n_calls && n && respell_has_tail(raw, content.data + content.len - n, n);
}

/* From the first right guess on: past as much of the closing as `raw` ends with.  A closer spelled in
 * another way (there are several for some families) is one all the same. */
static size_t respell_rest(const respell_search *s)
{
    const char *text = pn_str_cstr(&s->q->prompt->text);
    pn_bytes raw = s->q->raw;
    while (raw.len && out_is_blank(raw.data[raw.len - 1]))
        raw.len--;
    size_t n = s->last - s->first, said = n;
    while (said && !respell_has_tail(raw, text + s->first, said))
        said--;
    if (said) {
        while (said < n && out_is_blank(text[s->first + said]))
            said++;
        return s->first + said;
    }
    for (size_t i = 0; i < s->n_marks; i++)
        if (respell_has_tail(raw, s->marks[i].text.data, s->marks[i].text.len))
            return s->last;
    return respell_goes_on(s, raw) ? s->last : s->first;
}

PN_INTERNAL pn_status pn_respell_find(const pn_respell *q, size_t *end, bool *found, pn_err *err)
{
    respell_search s = {.q = q, .first = SIZE_MAX, .last = SIZE_MAX, .tries = RESPELL_TRIES, .err = err};
    s.limit = PN_MIN(q->limit, q->from + RESPELL_MORE + 8 * q->raw.len);
    *found = false;
    pn_status st = respell_parse(q, q->opening, q->raw.data, q->raw.len, &s.want, err);
    if (!st) {
        respell_marks(&s);
        st = respell_by_marks(&s);
    }
    if (!st && s.first > s.limit) {
        s.tries = RESPELL_TRIES;
        st = respell_by_borders(&s);
    }
    if (!st && s.first <= s.limit) {
        *end = respell_rest(&s);
        *found = true;
    }
    pn_out_result_fini(&s.want);
    return st;
}
