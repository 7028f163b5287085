/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_tpl_filters.c - x|filter and x is test: two tables of names, and what the names do.
 *
 * A filter's row says which arguments it takes; pn_tpl_bind puts them in order, so the functions below
 * see an array.  Filters that the reference makes lazy (map, select, ...) give lists here.
 */
#include "text/pn_tpl.h"

#include "base/pn_utf8.h"
#include "num/pn_math.h"
#include "text/pn_unicode.h"

#include <math.h>

enum { TPLF_ARGS = 4 };

typedef tpl_val (*tplf_fn)(tpl_run *r, tpl_val v, tpl_val *a);
typedef struct tplf_row {
    const char *name;
    tplf_fn fn;                 /* NULL: takes any arguments, see tplf_variadic */
    const char *params;
    uint8_t need;
} tplf_row;

static bool tplf_flag(tpl_val v, bool fallback) { return tpl_given(v) ? pn_tpl_truth(v) : fallback; }

static int64_t tplf_int(tpl_run *r, tpl_val v, int64_t fallback)
{
    if (v.type == TPL_INT || v.type == TPL_BOOL)
        return v.type == TPL_INT ? v.u.i : v.u.b;
    if (v.type == TPL_FLOAT && v.u.f > -9e15 && v.u.f < 9e15)
        return (int64_t)v.u.f;
    if (tpl_given(v) && v.type != TPL_NONE)
        pn_tpl_fail(r, "expected an integer, found %s", pn_tpl_type_name(v));
    return fallback;
}

/* An argument as a string; absent: a text of ours. */
static tpl_str *tplf_str(tpl_run *r, tpl_val v, const char *fallback)
{
    tpl_val d = tpl_given(v) ? v : pn_tpl_text(r, fallback);
    return pn_tpl_string(r, d);
}

/* ------------------------------------------------------------------------------------------
 * Text
 * ------------------------------------------------------------------------------------------ */

static tpl_val tplf_trim(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_str *s = pn_tpl_string(r, v), *chars = NULL;
    if (tpl_given(a[0]) && a[0].type != TPL_NONE)
        chars = pn_tpl_string(r, a[0]);
    return r->st ? tpl_undef() : pn_tpl_strip(r, s, chars, true, true);
}

static tpl_val tplf_upper(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_str *s = pn_tpl_string(r, v);
    (void)a;
    return s ? pn_tpl_upper(r, s) : tpl_undef();
}

static tpl_val tplf_lower(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_str *s = pn_tpl_string(r, v);
    (void)a;
    return s ? pn_tpl_lower(r, s) : tpl_undef();
}

static tpl_val tplf_capitalize(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_str *s = pn_tpl_string(r, v);
    (void)a;
    return s ? pn_tpl_capitalize(r, s) : tpl_undef();
}

/* A capital after white space, "-" or an opening bracket. */
static tpl_val tplf_title(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_str *s = pn_tpl_string(r, v);
    tpl_buf b;
    bool start = true;
    (void)a;
    pn_tpl_buf_init(&b);
    for (size_t i = 0; s && i < s->len && !r->st;) {
        uint32_t cp;
        size_t n = pn_utf8_decode(s->p + i, s->len - i, &cp);
        pn_tpl_buf_cp(r, &b, start ? pn_tpl_upper_cp(cp) : pn_uni_lower(cp), pn_tpl_mark(s, i));
        start = pn_tpl_space(cp) || (cp < 0x80 && strchr("-({[<", (int)cp));
        i += n;
    }
    return pn_tpl_buf_str(r, &b);
}

static tpl_val tplf_string(tpl_run *r, tpl_val v, tpl_val *a)
{
    (void)a;
    return v.type == TPL_STR ? v : tpl_of_str(pn_tpl_string(r, v));
}

static tpl_val tplf_replace(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_str *s = pn_tpl_string(r, v), *from = pn_tpl_string(r, a[0]), *to = pn_tpl_string(r, a[1]);
    return r->st ? tpl_undef() : pn_tpl_replace(r, s, from, to, tplf_int(r, a[2], -1));
}

PN_INTERNAL tpl_val pn_tpl_escape(tpl_run *r, tpl_str *s)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    tpl_buf b;
    pn_tpl_buf_init(&b);
    for (size_t i = 0; i < s->len && !r->st; i++) {
        const char *at = s->p[i] ? strchr(from, s->p[i]) : NULL;
        if (at)
            pn_tpl_buf_add(r, &b, to[at - from], strlen(to[at - from]), pn_tpl_mark(s, i));
        else
            pn_tpl_buf_sub(r, &b, s, i, 1);
    }
    tpl_val v = pn_tpl_buf_str(r, &b);
    v.id = 1;
    return v;
}

static tpl_val tplf_escape(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_str *s = pn_tpl_string(r, v);
    (void)a;
    return !s || (v.type == TPL_STR && v.id) ? v : pn_tpl_escape(r, s);
}

static tpl_val tplf_indent(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_str *s = pn_tpl_string(r, v), *by = a[0].type == TPL_STR ? a[0].u.s : NULL;
    bool first = tplf_flag(a[1], false), blank = tplf_flag(a[2], false), ends;
    if (!by && !r->st) {
        tpl_buf pad;
        pn_tpl_buf_init(&pad);
        for (int64_t i = tplf_int(r, a[0], 4); i > 0 && pn_tpl_charge(r, 1); i--)
            pn_tpl_buf_add(r, &pad, " ", 1, true);
        by = pn_tpl_buf_str(r, &pad).u.s;
    }
    tpl_list *lines = r->st ? NULL : pn_tpl_lines(r, s).u.l;
    tpl_buf b;
    pn_tpl_buf_init(&b);
    if (r->st)
        return tpl_undef();
    /* The reference splits s + "\n": text that ends with a newline has an empty last line. */
    ends = !s->len || s->p[s->len - 1] == '\n';
    for (uint32_t i = 0; i < lines->n + (ends ? 1u : 0u) && !r->st; i++) {
        tpl_str *line = i < lines->n ? lines->v[i].u.s : NULL;
        bool empty = !line || !line->len;
        if (i)
            pn_tpl_buf_add(r, &b, "\n", 1, false);
        if (i == 0 ? first : blank || !empty)
            pn_tpl_buf_sub(r, &b, by, 0, by->len);
        if (line)
            pn_tpl_buf_sub(r, &b, line, 0, line->len);
    }
    return pn_tpl_buf_str(r, &b);
}

static tpl_val tplf_truncate(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_str *s = pn_tpl_string(r, v), *end = tplf_str(r, a[2], "...");
    int64_t length = tplf_int(r, a[0], 255), leeway = tplf_int(r, a[3], 5);
    if (r->st)
        return tpl_undef();
    int64_t keep = length - (int64_t)pn_tpl_chars(end);
    if (keep < 0 || leeway < 0)
        return pn_tpl_fail(r, "truncate: expected a length of at least that of the ending");
    if ((int64_t)pn_tpl_chars(s) - leeway <= length)
        return tpl_of_str(s);
    tpl_val head = pn_tpl_sub(r, s, 0, pn_tpl_offset(r, s, keep));
    if (!tplf_flag(a[1], false) && !r->st) {
        size_t cut = head.u.s->len;
        while (cut > 0 && s->p[cut - 1] != ' ')
            cut--;
        if (cut)
            head = pn_tpl_sub(r, s, 0, cut - 1);
    }
    tpl_buf b;
    pn_tpl_buf_init(&b);
    if (r->st)
        return tpl_undef();
    pn_tpl_buf_sub(r, &b, head.u.s, 0, head.u.s->len);
    pn_tpl_buf_sub(r, &b, end, 0, end->len);
    return pn_tpl_buf_str(r, &b);
}

static tpl_val tplf_wordcount(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_str *s = pn_tpl_string(r, v);
    int64_t n = 0;
    bool in = false;
    (void)a;
    for (size_t i = 0; s && i < s->len && pn_tpl_charge(r, 1);) {
        uint32_t cp;
        i += pn_utf8_decode(s->p + i, s->len - i, &cp);
        bool word = cp == '_' || (pn_uni_class(cp) & (PN_US_L | PN_US_N)) != 0;
        n += word && !in;
        in = word;
    }
    return tpl_int(n, s && pn_tpl_trusted(s));
}

/* Tags and comments out, white space to single spaces, the common entities back. */
static tpl_val tplf_striptags(tpl_run *r, tpl_val v, tpl_val *a)
{
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;", "&quot;"};
    static const char chars[] = "&<>'\"\"";
    tpl_str *s = pn_tpl_string(r, v);
    tpl_buf b, out;
    (void)a;
    pn_tpl_buf_init(&b);
    pn_tpl_buf_init(&out);
    for (size_t i = 0; s && i < s->len && pn_tpl_charge(r, 1);) {
        const char *end = s->p[i] == '<' ? memchr(s->p + i, '>', s->len - i) : NULL;
        if (end) {
            i = (size_t)(end - s->p) + 1;
            continue;
        }
        pn_tpl_buf_sub(r, &b, s, i++, 1);
    }
    tpl_val words = r->st ? tpl_undef() : pn_tpl_split(r, pn_tpl_buf_str(r, &b).u.s, NULL, -1, false);
    for (uint32_t w = 0; !r->st && w < words.u.l->n; w++) {
        tpl_str *word = words.u.l->v[w].u.s;
        if (w)
            pn_tpl_buf_add(r, &out, " ", 1, false);
        for (size_t i = 0; i < word->len && pn_tpl_charge(r, 1);) {
            size_t k = 0;
            while (k < PN_COUNT_OF(names) && (word->len - i < strlen(names[k]) || memcmp(word->p + i, names[k], strlen(names[k]))))
                k++;
            if (k < PN_COUNT_OF(names))
                pn_tpl_buf_add(r, &out, chars + k, 1, pn_tpl_mark(word, i));
            else
                pn_tpl_buf_sub(r, &out, word, i, 1);
            i += k < PN_COUNT_OF(names) ? strlen(names[k]) : 1;
        }
    }
    return pn_tpl_buf_str(r, &out);
}

static void tplf_quote(tpl_run *r, tpl_buf *b, tpl_val v, bool slash)
{
    static const char hex[] = "0123456789ABCDEF";
    tpl_str *s = pn_tpl_string(r, v);
    for (size_t i = 0; s && i < s->len && !r->st; i++) {
        char c = s->p[i];
        bool safe = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("_.-~", c)) ||
                    (c == '/' && slash);
        char out[3] = {'%', hex[(uint8_t)c >> 4], hex[(uint8_t)c & 15]};
        pn_tpl_buf_add(r, b, safe ? &c : out, safe ? 1 : 3, pn_tpl_mark(s, i));
    }
}

static tpl_val tplf_urlencode(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_buf b;
    (void)a;
    pn_tpl_buf_init(&b);
    if (v.type != TPL_DICT && !tpl_is_list(v)) {
        tplf_quote(r, &b, v, true);
        return pn_tpl_buf_str(r, &b);
    }
    tpl_list *l = v.type == TPL_DICT ? pn_tpl_dict_items(r, v.u.d).u.l : v.u.l;
    for (uint32_t i = 0; !r->st && i < l->n; i++) {
        if (!tpl_is_list(l->v[i]) || l->v[i].u.l->n != 2)
            return pn_tpl_fail(r, "urlencode: expected pairs");
        if (i)
            pn_tpl_buf_add(r, &b, "&", 1, false);
        tplf_quote(r, &b, l->v[i].u.l->v[0], false);
        pn_tpl_buf_add(r, &b, "=", 1, false);
        tplf_quote(r, &b, l->v[i].u.l->v[1], false);
    }
    return pn_tpl_buf_str(r, &b);
}

static tpl_val tplf_safe(tpl_run *r, tpl_val v, tpl_val *a)
{
    (void)a;
    v = v.type == TPL_STR ? v : tpl_of_str(pn_tpl_string(r, v));
    v.id = v.type == TPL_STR;
    return v;
}

static tpl_val tplf_center(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_str *s = pn_tpl_string(r, v);
    tpl_val width = tpl_int(tplf_int(r, a[0], 80), true);
    tpl_args args = {&width, NULL, 1, 0, {TPL_ABSENT, false, 0, {0}}};
    tpl_str name = {"center", NULL, 6, UINT32_MAX, true};
    return s ? pn_tpl_method_call(r, tpl_of_str(s), pn_tpl_method_find(tpl_of_str(s), &name), &args) : tpl_undef();
}

/* ------------------------------------------------------------------------------------------
 * JSON
 * ------------------------------------------------------------------------------------------ */

/* In the order that chat templates' environment has: ensure_ascii first. */
static tpl_val tplf_tojson(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_json_style st = {NULL, NULL, NULL, tplf_flag(a[0], false), tplf_flag(a[3], false)};
    tpl_buf b, pad;
    bool indents = tpl_given(a[1]) && a[1].type != TPL_NONE;
    pn_tpl_buf_init(&b);
    pn_tpl_buf_init(&pad);
    if (indents && a[1].type == TPL_STR)
        st.indent = a[1].u.s;
    if (indents && !st.indent) {
        int64_t n = PN_MIN(tplf_int(r, a[1], 0), 64);
        for (int64_t i = 0; i < n; i++)
            pn_tpl_buf_add(r, &pad, " ", 1, a[1].trust);
        st.indent = pn_tpl_buf_str(r, &pad).u.s;
    }
    if (tpl_given(a[2]) && a[2].type != TPL_NONE) {
        tpl_list *l = tpl_is_list(a[2]) ? a[2].u.l : NULL;
        if (!l || l->n != 2 || l->v[0].type != TPL_STR || l->v[1].type != TPL_STR)
            return pn_tpl_fail(r, "tojson: expected two separators");
        st.item = l->v[0].u.s;
        st.key = l->v[1].u.s;
    } else {
        st.item = pn_tpl_text(r, indents ? "," : ", ").u.s;
        st.key = pn_tpl_text(r, ": ").u.s;
    }
    if (r->st)
        return tpl_undef();
    pn_tpl_json(r, &b, v, &st);
    return pn_tpl_buf_str(r, &b);
}

static tpl_val tplf_from_json(tpl_run *r, tpl_val v, tpl_val *a)
{
    (void)a;
    if (v.type != TPL_STR)
        return pn_tpl_fail(r, "from_json: expected a string, found %s", pn_tpl_type_name(v));
    return pn_tpl_parse_json(r, v.u.s);
}

/* ------------------------------------------------------------------------------------------
 * Numbers
 * ------------------------------------------------------------------------------------------ */

static bool tplf_text_trust(tpl_val v) { return v.type == TPL_STR ? pn_tpl_trusted(v.u.s) : v.trust; }

static tpl_val tplf_to_int(tpl_run *r, tpl_val v, tpl_val *a)
{
    bool trust = tplf_text_trust(v);
    int64_t base = tplf_int(r, a[1], 10), sign = 1, n = 0;
    double f;
    if (v.type == TPL_INT || v.type == TPL_BIG)
        return v;
    if (v.type == TPL_BOOL)
        return tpl_int(v.u.b, trust);
    if (v.type == TPL_FLOAT && v.u.f > -9.2e18 && v.u.f < 9.2e18)
        return tpl_int((int64_t)v.u.f, trust);
    if (v.type == TPL_STR) {
        tpl_val t = pn_tpl_strip(r, v.u.s, NULL, true, true);
        const char *s = r->st ? "" : t.u.s->p, *end = r->st ? s : s + t.u.s->len;
        const char *digits = s;
        if (digits < end && (*digits == '-' || *digits == '+'))
            sign = *digits++ == '-' ? -1 : 1;
        if (end - digits > 2 && digits[0] == '0' && ((base == 16 && (digits[1] | 32) == 'x') || (base == 2 && (digits[1] | 32) == 'b') ||
                                                     (base == 8 && (digits[1] | 32) == 'o')))
            digits += 2;
        bool ok = digits < end;
        for (const char *c = digits; c < end && ok; c++) {
            int64_t d = *c >= '0' && *c <= '9' ? *c - '0' : (*c | 32) >= 'a' && (*c | 32) <= 'z' ? (*c | 32) - 'a' + 10 : 99;
            ok = d < base && n <= (INT64_MAX - d) / base;
            n = ok ? n * base + d : n;
        }
        if (ok)
            return tpl_int(sign * n, trust);
        if (!r->st && pn_tpl_parse_float(s, (size_t)(end - s), &f) && f > -9.2e18 && f < 9.2e18)
            return tpl_int((int64_t)f, trust);
    }
    return tpl_given(a[0]) ? a[0] : tpl_int(0, true);
}

static tpl_val tplf_to_float(tpl_run *r, tpl_val v, tpl_val *a)
{
    double f;
    if (tpl_is_num(v))
        return tpl_float(pn_tpl_number(v), v.trust);
    if (v.type == TPL_STR) {
        tpl_val t = pn_tpl_strip(r, v.u.s, NULL, true, true);
        if (!r->st && pn_tpl_parse_float(t.u.s->p, t.u.s->len, &f))
            return tpl_float(f, tplf_text_trust(v));
    }
    return tpl_given(a[0]) ? a[0] : tpl_float(0, true);
}

static tpl_val tplf_abs(tpl_run *r, tpl_val v, tpl_val *a)
{
    (void)a;
    if (!tpl_is_num(v))
        return pn_tpl_fail(r, "abs: expected a number, found %s", pn_tpl_type_name(v));
    if (v.type == TPL_BOOL)
        return tpl_int(v.u.b, v.trust);
    if (v.type == TPL_INT && v.u.i != INT64_MIN)
        return tpl_int(v.u.i < 0 ? -v.u.i : v.u.i, v.trust);
    return tpl_float(fabs(pn_tpl_number(v)), v.trust);
}

static tpl_val tplf_round(tpl_run *r, tpl_val v, tpl_val *a)
{
    int64_t prec = tplf_int(r, a[0], 0);
    tpl_str *method = tplf_str(r, a[1], "common");
    if (r->st)
        return tpl_undef();
    if (!tpl_is_num(v))
        return pn_tpl_fail(r, "round: expected a number, found %s", pn_tpl_type_name(v));
    if (prec < -300 || prec > 64)
        return pn_tpl_fail(r, "round: expected a precision from -300 to 64");
    double x = pn_tpl_number(v), scale = pn_pow(10, (double)(prec < 0 ? -prec : prec));
    if (!pn_tpl_is_z(method, "common")) {
        bool up = pn_tpl_is_z(method, "ceil");
        double y = prec < 0 ? x / scale : x * scale;
        y = up ? ceil(y) : floor(y);
        return tpl_float(prec < 0 ? y * scale : y / scale, v.trust);
    }
    if (prec < 0)
        return tpl_float(rint(x / scale) * scale, v.trust);
    /* Decimal rounding of the exact value, as Python does it: through the printed digits. */
    tpl_val arg = tpl_float(x, v.trust), fmt;
    char text[8] = {'%', '.', (char)('0' + prec / 10), (char)('0' + prec % 10), 'f', 0, 0, 0};
    tpl_str f = {text, NULL, 5, UINT32_MAX, true};
    double y;
    fmt = pn_tpl_printf(r, &f, arg);
    if (r->st || !pn_tpl_parse_float(fmt.u.s->p, fmt.u.s->len, &y))
        y = x;
    return tpl_float(y, v.trust);
}

/* ------------------------------------------------------------------------------------------
 * Sequences
 * ------------------------------------------------------------------------------------------ */

static tpl_val tplf_length(tpl_run *r, tpl_val v, tpl_val *a)
{
    (void)a;
    switch (v.type) {
    case TPL_UNDEF: return tpl_int(0, true);
    case TPL_STR: return tpl_int(pn_tpl_chars(v.u.s), tplf_text_trust(v));
    case TPL_LIST: case TPL_TUPLE: return tpl_int(v.u.l->n, false);
    case TPL_DICT: return tpl_int(v.u.d->n, false);
    default: return pn_tpl_fail(r, "object of type '%s' has no len()", pn_tpl_type_name(v));
    }
}

static tpl_val tplf_first(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_list *l = pn_tpl_iter(r, v);
    (void)a;
    return l && l->n ? l->v[0] : tpl_undef();
}

static tpl_val tplf_last(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_list *l = pn_tpl_iter(r, v);
    (void)a;
    return l && l->n ? l->v[l->n - 1] : tpl_undef();
}

static tpl_val tplf_list(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_list *l = pn_tpl_iter(r, v), *c = l ? pn_tpl_list(r, l->n) : NULL;
    (void)a;
    for (uint32_t i = 0; c && i < l->n; i++)
        pn_tpl_push(r, c, l->v[i]);
    tpl_val made = tpl_of_list(c, TPL_LIST);
    made.trust = v.type == TPL_STR || v.trust;
    return made;
}

static tpl_val tplf_reverse(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_list *l = pn_tpl_iter(r, v), *c = l ? pn_tpl_list(r, l->n) : NULL;
    tpl_buf b;
    (void)a;
    for (uint32_t i = l ? l->n : 0; c && i-- > 0;)
        pn_tpl_push(r, c, l->v[i]);
    if (v.type != TPL_STR || r->st)
        return tpl_of_list(c, TPL_LIST);
    pn_tpl_buf_init(&b);
    for (uint32_t i = 0; i < c->n; i++)
        pn_tpl_buf_sub(r, &b, c->v[i].u.s, 0, c->v[i].u.s->len);
    return pn_tpl_buf_str(r, &b);
}

static tpl_val tplf_join(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_str *sep = tplf_str(r, a[0], "");
    tpl_list *l = pn_tpl_iter(r, v);
    tpl_buf b;
    pn_tpl_buf_init(&b);
    for (uint32_t i = 0; l && sep && i < l->n && pn_tpl_charge(r, 1); i++) {
        tpl_val item = tpl_given(a[1]) && a[1].type != TPL_NONE ? pn_tpl_path(r, l->v[i], a[1]) : l->v[i];
        if (i)
            pn_tpl_buf_sub(r, &b, sep, 0, sep->len);
        pn_tpl_print(r, &b, item);
    }
    return pn_tpl_buf_str(r, &b);
}

static tpl_val tplf_items(tpl_run *r, tpl_val v, tpl_val *a)
{
    (void)a;
    if (v.type == TPL_UNDEF)
        return tpl_of_list(pn_tpl_list(r, 0), TPL_LIST);
    if (v.type != TPL_DICT)
        return pn_tpl_fail(r, "Can only get item pairs from a mapping.");
    return pn_tpl_dict_items(r, v.u.d);
}

static tpl_val tplf_default(tpl_run *r, tpl_val v, tpl_val *a)
{
    bool use = v.type == TPL_UNDEF || (tplf_flag(a[1], false) && !pn_tpl_truth(v));
    return !use ? v : tpl_given(a[0]) ? a[0] : pn_tpl_text(r, "");
}

/* What sorting and uniqueness compare: an attribute, strings without case. */
static tpl_val tplf_key(tpl_run *r, tpl_val v, tpl_val attribute, bool fold)
{
    if (tpl_given(attribute) && attribute.type != TPL_NONE)
        v = pn_tpl_path(r, v, attribute);
    return fold && v.type == TPL_STR && !r->st ? pn_tpl_lower(r, v.u.s) : v;
}

/* Sorted copy, stable (merging).  The array holds pairs: key, value. */
PN_INTERNAL tpl_val pn_tpl_sort(tpl_run *r, tpl_list *l, tpl_val attribute, bool fold, bool reverse)
{
    if (r->st || !l)
        return tpl_undef();
    uint32_t n = l->n;
    tpl_val *from = pn_tpl_take(r, ((size_t)n * 2 + 1) * sizeof *from), *to = pn_tpl_take(r, ((size_t)n * 2 + 1) * sizeof *to);
    tpl_list *out = pn_tpl_list(r, n);
    for (uint32_t i = 0; i < n && !r->st; i++) {
        from[2 * i] = tplf_key(r, l->v[i], attribute, fold);
        from[2 * i + 1] = l->v[i];
    }
    for (uint32_t w = 1; w < n && !r->st; w *= 2) {
        for (uint32_t at = 0; at < n && !r->st; at += 2 * w) {
            uint32_t i = at, mid = PN_MIN(at + w, n), j = mid, end = PN_MIN(mid + w, n), k = at;
            while (i < mid || j < end) {
                bool right = i == mid;
                if (i < mid && j < end) {
                    int c = pn_tpl_order(r, from[2 * j], from[2 * i]);
                    right = reverse ? c > 0 : c < 0;
                }
                uint32_t s = right ? j++ : i++;
                to[2 * k] = from[2 * s];
                to[2 * k + 1] = from[2 * s + 1];
                k++;
            }
        }
        tpl_val *t = from;
        from = to;
        to = t;
    }
    for (uint32_t i = 0; i < n && !r->st; i++)
        pn_tpl_push(r, out, from[2 * i + 1]);
    return r->st ? tpl_undef() : tpl_of_list(out, TPL_LIST);
}

static tpl_val tplf_sort(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_list *l = pn_tpl_iter(r, v);
    return pn_tpl_sort(r, l, a[2], !tplf_flag(a[1], false), tplf_flag(a[0], false));
}

static tpl_val tplf_dictsort(tpl_run *r, tpl_val v, tpl_val *a)
{
    if (v.type != TPL_DICT)
        return pn_tpl_fail(r, "dictsort: expected a mapping, found %s", pn_tpl_type_name(v));
    tpl_str *by = tplf_str(r, a[1], "key");
    tpl_val items = pn_tpl_dict_items(r, v.u.d);
    if (r->st)
        return tpl_undef();
    return pn_tpl_sort(r, items.u.l, tpl_int(pn_tpl_is_z(by, "value"), true), !tplf_flag(a[0], false), tplf_flag(a[2], false));
}

static tpl_val tplf_unique(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_list *l = pn_tpl_iter(r, v), *out = pn_tpl_list(r, 0);
    tpl_dict *seen = pn_tpl_dict(r);
    for (uint32_t i = 0; l && out && seen && i < l->n && !r->st; i++) {
        tpl_val k = tplf_key(r, l->v[i], a[1], !tplf_flag(a[0], false));
        if (!pn_tpl_dict_get(r, seen, k)) {
            pn_tpl_dict_set(r, seen, k, tpl_none());
            pn_tpl_push(r, out, l->v[i]);
        }
    }
    return tpl_of_list(out, TPL_LIST);
}

static tpl_val tplf_extreme(tpl_run *r, tpl_val v, tpl_val *a, bool max)
{
    tpl_list *l = pn_tpl_iter(r, v);
    tpl_val best = tpl_undef(), best_key = tpl_undef();
    for (uint32_t i = 0; l && i < l->n && !r->st; i++) {
        tpl_val k = tplf_key(r, l->v[i], a[1], !tplf_flag(a[0], false));
        int c = i ? pn_tpl_order(r, k, best_key) : 0;
        if (!i || (max ? c > 0 : c < 0)) {
            best = l->v[i];
            best_key = k;
        }
    }
    return best;
}

static tpl_val tplf_min(tpl_run *r, tpl_val v, tpl_val *a) { return tplf_extreme(r, v, a, false); }
static tpl_val tplf_max(tpl_run *r, tpl_val v, tpl_val *a) { return tplf_extreme(r, v, a, true); }

static tpl_val tplf_sum(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_list *l = pn_tpl_iter(r, v);
    tpl_val sum = tpl_given(a[1]) ? a[1] : tpl_int(0, true);
    for (uint32_t i = 0; l && i < l->n && pn_tpl_charge(r, 1); i++) {
        tpl_val x = tplf_key(r, l->v[i], a[0], false);
        if (!tpl_is_num(x) || !tpl_is_num(sum))
            return pn_tpl_fail(r, "sum: expected numbers, found %s", pn_tpl_type_name(x));
        bool trust = sum.trust && x.trust;
        if (sum.type == TPL_FLOAT || x.type == TPL_FLOAT || x.type == TPL_BIG || sum.type == TPL_BIG) {
            sum = tpl_float(pn_tpl_number(sum) + pn_tpl_number(x), trust);
        } else {
            int64_t p = sum.type == TPL_INT ? sum.u.i : sum.u.b, q = x.type == TPL_INT ? x.u.i : x.u.b;
            bool over = q > 0 ? p > INT64_MAX - q : p < INT64_MIN - q;
            sum = over ? tpl_float((double)p + (double)q, trust) : tpl_int(p + q, trust);
        }
    }
    return sum;
}

static tpl_val tplf_batch(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_list *l = pn_tpl_iter(r, v), *out = pn_tpl_list(r, 0), *row = NULL;
    int64_t n = tplf_int(r, a[0], 1);
    if (n < 1)
        return pn_tpl_fail(r, "batch: expected at least 1");
    for (uint32_t i = 0; l && out && i < l->n && !r->st; i++) {
        if (i % (uint64_t)n == 0) {
            row = pn_tpl_list(r, 0);
            pn_tpl_push(r, out, tpl_of_list(row, TPL_LIST));
        }
        pn_tpl_push(r, row, l->v[i]);
    }
    while (row && tpl_given(a[1]) && a[1].type != TPL_NONE && row->n < n && pn_tpl_push(r, row, a[1]))
        ;
    return tpl_of_list(out, TPL_LIST);
}

static tpl_val tplf_slice(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_list *l = pn_tpl_iter(r, v), *out = pn_tpl_list(r, 0);
    int64_t n = tplf_int(r, a[0], 1), at = 0;
    if (n < 1)
        return pn_tpl_fail(r, "slice: expected at least 1");
    for (int64_t i = 0; l && out && i < n && !r->st; i++) {
        tpl_list *row = pn_tpl_list(r, 0);
        int64_t rows = l->n / n + (i < l->n % n);
        for (int64_t k = 0; k < rows && !r->st; k++)
            pn_tpl_push(r, row, l->v[at++]);
        if (tpl_given(a[1]) && a[1].type != TPL_NONE && l->n % n && i >= l->n % n)
            pn_tpl_push(r, row, a[1]);
        pn_tpl_push(r, out, tpl_of_list(row, TPL_LIST));
    }
    return tpl_of_list(out, TPL_LIST);
}

static tpl_val tplf_groupby(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_list *l = pn_tpl_iter(r, v), *out = pn_tpl_list(r, 0), *group = NULL;
    bool fold = !tplf_flag(a[2], false);
    tpl_val sorted = pn_tpl_sort(r, l, a[0], fold, false), key = tpl_undef();
    for (uint32_t i = 0; !r->st && i < sorted.u.l->n; i++) {
        tpl_val item = sorted.u.l->v[i], k = tplf_key(r, item, a[0], fold);
        if (k.type == TPL_UNDEF && tpl_given(a[1]))
            k = a[1];
        if (!group || !pn_tpl_equal(r, k, key)) {
            tpl_list *pair = pn_tpl_list(r, 2);
            group = pn_tpl_list(r, 0);
            key = k;
            pn_tpl_push(r, pair, tplf_key(r, item, a[0], false));
            pn_tpl_push(r, pair, tpl_of_list(group, TPL_LIST));
            pn_tpl_push(r, out, tpl_of_list(pair, TPL_TUPLE));
        }
        pn_tpl_push(r, group, item);
    }
    return tpl_of_list(out, TPL_LIST);
}

static tpl_val tplf_attr(tpl_run *r, tpl_val v, tpl_val *a)
{
    tpl_str *name = pn_tpl_string(r, a[0]);
    return name ? pn_tpl_attr(r, v, tpl_of_str(name)) : tpl_undef();
}

/* ------------------------------------------------------------------------------------------
 * Filters that take filters, tests or any arguments.  None and other empty values have no elements
 * for them (templates select from tools that may be none).
 * ------------------------------------------------------------------------------------------ */

enum { TPLF_FORMAT, TPLF_MAP, TPLF_SELECT, TPLF_REJECT, TPLF_SELECTATTR, TPLF_REJECTATTR };

static tpl_args tplf_rest(const tpl_args *args, uint32_t skip)
{
    tpl_args rest = *args;
    uint32_t n = PN_MIN(skip, args->n);
    rest.pos = n ? args->pos + n : args->pos;       /* NULL when there are none */
    rest.n -= n;
    return rest;
}

static tpl_val tplf_map(tpl_run *r, tpl_val v, const tpl_args *args)
{
    tpl_val a[2] = {tpl_absent(), tpl_absent()};
    uint16_t id = TPL_NOT_FOUND;
    tpl_args rest = tplf_rest(args, 1);
    if (args->n == 0) {
        if (!pn_tpl_bind(r, "map", args, "attribute,default", 1, a, 2))
            return tpl_undef();
    } else {
        tpl_str *name = pn_tpl_string(r, args->pos[0]);
        id = name ? pn_tpl_filter_find(name->p, name->len) : TPL_NOT_FOUND;
        if (name && id == TPL_NOT_FOUND)
            return pn_tpl_fail(r, "map: there is no filter \"%.*s\"", (int)PN_MIN(name->len, 60u), name->p);
    }
    tpl_list *l = pn_tpl_iter(r, pn_tpl_truth(v) ? v : tpl_undef()), *out = pn_tpl_list(r, 0);
    for (uint32_t i = 0; l && out && i < l->n && !r->st; i++) {
        tpl_val x = id != TPL_NOT_FOUND ? pn_tpl_filter(r, id, l->v[i], &rest) : pn_tpl_path(r, l->v[i], a[0]);
        if (x.type == TPL_UNDEF && tpl_given(a[1]))
            x = a[1];
        pn_tpl_push(r, out, x);
    }
    return tpl_of_list(out, TPL_LIST);
}

static tpl_val tplf_select(tpl_run *r, tpl_val v, const tpl_args *args, bool attribute, bool want)
{
    uint32_t at = attribute ? 1 : 0;
    uint16_t id = TPL_NOT_FOUND;
    tpl_args rest = tplf_rest(args, at + 1);
    if (attribute && !args->n)
        return pn_tpl_fail(r, "selectattr: the attribute is missing");
    if (args->n > at) {
        tpl_str *name = pn_tpl_string(r, args->pos[at]);
        id = name ? pn_tpl_test_find(name->p, name->len) : TPL_NOT_FOUND;
        if (name && id == TPL_NOT_FOUND)
            return pn_tpl_fail(r, "select: there is no test \"%.*s\"", (int)PN_MIN(name->len, 60u), name->p);
    }
    tpl_list *l = pn_tpl_iter(r, pn_tpl_truth(v) ? v : tpl_undef()), *out = pn_tpl_list(r, 0);
    for (uint32_t i = 0; l && out && i < l->n && !r->st; i++) {
        tpl_val x = attribute ? pn_tpl_path(r, l->v[i], args->pos[0]) : l->v[i];
        bool yes = id == TPL_NOT_FOUND ? pn_tpl_truth(x) : pn_tpl_test(r, id, x, &rest);
        if (yes == want)
            pn_tpl_push(r, out, l->v[i]);
    }
    return tpl_of_list(out, TPL_LIST);
}

static tpl_val tplf_format(tpl_run *r, tpl_val v, const tpl_args *args)
{
    tpl_str *s = pn_tpl_string(r, v);
    if (args->n && args->n_kw)
        return pn_tpl_fail(r, "format: arguments by position and by name at once");
    if (args->n_kw) {
        tpl_dict *d = pn_tpl_dict(r);
        for (uint32_t i = 0; d && i < args->n_kw; i++)
            pn_tpl_dict_set(r, d, tpl_of_str((tpl_str *)(uintptr_t)args->kw[i].name), args->kw[i].v);
        return r->st ? tpl_undef() : pn_tpl_printf(r, s, tpl_of_dict(d, TPL_DICT));
    }
    tpl_list *l = pn_tpl_list(r, args->n);
    for (uint32_t i = 0; l && i < args->n; i++)
        pn_tpl_push(r, l, args->pos[i]);
    return r->st ? tpl_undef() : pn_tpl_printf(r, s, tpl_of_list(l, TPL_TUPLE));
}

static tpl_val tplf_variadic(tpl_run *r, unsigned which, tpl_val v, const tpl_args *args)
{
    switch (which) {
    case TPLF_FORMAT: return tplf_format(r, v, args);
    case TPLF_MAP: return tplf_map(r, v, args);
    default: return tplf_select(r, v, args, which >= TPLF_SELECTATTR, which == TPLF_SELECT || which == TPLF_SELECTATTR);
    }
}

/* The variadic ones first, in the order of the enum above. */
static const tplf_row tplf_rows[] = {
    {"format", NULL, "", 0}, {"map", NULL, "", 0}, {"select", NULL, "", 0}, {"reject", NULL, "", 0},
    {"selectattr", NULL, "", 0}, {"rejectattr", NULL, "", 0},
    {"tojson", tplf_tojson, "ensure_ascii,indent,separators,sort_keys", 0},
    {"trim", tplf_trim, "chars", 0},
    {"length", tplf_length, "", 0}, {"count", tplf_length, "", 0},
    {"default", tplf_default, "default_value,boolean", 0}, {"d", tplf_default, "default_value,boolean", 0},
    {"string", tplf_string, "", 0},
    {"join", tplf_join, "d,attribute", 0},
    {"list", tplf_list, "", 0},
    {"items", tplf_items, "", 0},
    {"first", tplf_first, "", 0}, {"last", tplf_last, "", 0},
    {"upper", tplf_upper, "", 0}, {"lower", tplf_lower, "", 0},
    {"title", tplf_title, "", 0}, {"capitalize", tplf_capitalize, "", 0},
    {"replace", tplf_replace, "old,new,count", 2},
    {"safe", tplf_safe, "", 0},
    {"escape", tplf_escape, "", 0}, {"e", tplf_escape, "", 0}, {"forceescape", tplf_escape, "", 0},
    {"indent", tplf_indent, "width,first,blank", 0},
    {"reverse", tplf_reverse, "", 0},
    {"sort", tplf_sort, "reverse,case_sensitive,attribute", 0},
    {"dictsort", tplf_dictsort, "case_sensitive,by,reverse", 0},
    {"unique", tplf_unique, "case_sensitive,attribute", 0},
    {"min", tplf_min, "case_sensitive,attribute", 0}, {"max", tplf_max, "case_sensitive,attribute", 0},
    {"sum", tplf_sum, "attribute,start", 0},
    {"int", tplf_to_int, "default,base", 0}, {"float", tplf_to_float, "default", 0},
    {"abs", tplf_abs, "", 0}, {"round", tplf_round, "precision,method", 0},
    {"batch", tplf_batch, "linecount,fill_with", 1}, {"slice", tplf_slice, "slices,fill_with", 1},
    {"groupby", tplf_groupby, "attribute,default,case_sensitive", 1},
    {"attr", tplf_attr, "name", 1},
    {"from_json", tplf_from_json, "", 0}, {"fromjson", tplf_from_json, "", 0},
    {"wordcount", tplf_wordcount, "", 0},
    {"truncate", tplf_truncate, "length,killwords,end,leeway", 0},
    {"striptags", tplf_striptags, "", 0},
    {"urlencode", tplf_urlencode, "", 0},
    {"center", tplf_center, "width", 0},
};

PN_INTERNAL uint16_t pn_tpl_filter_find(const char *name, size_t len)
{
    for (size_t i = 0; i < PN_COUNT_OF(tplf_rows); i++)
        if (strlen(tplf_rows[i].name) == len && memcmp(tplf_rows[i].name, name, len) == 0)
            return (uint16_t)i;
    return TPL_NOT_FOUND;
}

/* How many names "a,b,c" has. */
static uint32_t tplf_count(const char *params)
{
    uint32_t n = *params != 0;
    for (; *params; params++)
        n += *params == ',';
    return n;
}

PN_INTERNAL tpl_val pn_tpl_filter(tpl_run *r, uint16_t id, tpl_val v, const tpl_args *args)
{
    const tplf_row *row = &tplf_rows[id];
    tpl_val a[TPLF_ARGS] = {{TPL_ABSENT, false, 0, {0}}, {TPL_ABSENT, false, 0, {0}}, {TPL_ABSENT, false, 0, {0}},
                            {TPL_ABSENT, false, 0, {0}}};
    if (!pn_tpl_charge(r, 1))
        return tpl_undef();
    if (++r->depth > TPL_MAX_DEPTH)     /* map('map', 'map', ...) */
        pn_tpl_fail(r, "limit reached: filters nested deeper than %d", (int)TPL_MAX_DEPTH);
    tpl_val out = tpl_undef();
    if (!row->fn)
        out = r->st ? out : tplf_variadic(r, id, v, args);
    else if (pn_tpl_bind(r, row->name, args, row->params, row->need, a, tplf_count(row->params)))
        out = row->fn(r, v, a);
    r->depth--;
    return r->st ? tpl_undef() : out;
}

/* ------------------------------------------------------------------------------------------
 * Tests
 * ------------------------------------------------------------------------------------------ */

enum {
    TPLF_T_DEFINED, TPLF_T_UNDEFINED, TPLF_T_NONE, TPLF_T_BOOLEAN, TPLF_T_TRUE, TPLF_T_FALSE, TPLF_T_INTEGER, TPLF_T_FLOAT,
    TPLF_T_NUMBER, TPLF_T_STRING, TPLF_T_SEQUENCE, TPLF_T_ITERABLE, TPLF_T_MAPPING, TPLF_T_CALLABLE, TPLF_T_SAMEAS,
    TPLF_T_EVEN, TPLF_T_ODD, TPLF_T_DIVISIBLEBY, TPLF_T_LOWER, TPLF_T_UPPER, TPLF_T_FILTER, TPLF_T_TEST, TPLF_T_ESCAPED,
    TPLF_T_EQ, TPLF_T_NE, TPLF_T_LT, TPLF_T_LE, TPLF_T_GT, TPLF_T_GE, TPLF_T_IN
};
typedef struct tplf_test_row { const char *name; uint8_t code, args; } tplf_test_row;
static const tplf_test_row tplf_tests[] = {
    {"defined", TPLF_T_DEFINED, 0}, {"undefined", TPLF_T_UNDEFINED, 0}, {"none", TPLF_T_NONE, 0},
    {"boolean", TPLF_T_BOOLEAN, 0}, {"true", TPLF_T_TRUE, 0}, {"false", TPLF_T_FALSE, 0},
    {"integer", TPLF_T_INTEGER, 0}, {"float", TPLF_T_FLOAT, 0}, {"number", TPLF_T_NUMBER, 0},
    {"string", TPLF_T_STRING, 0}, {"sequence", TPLF_T_SEQUENCE, 0}, {"iterable", TPLF_T_ITERABLE, 0},
    {"mapping", TPLF_T_MAPPING, 0}, {"callable", TPLF_T_CALLABLE, 0}, {"sameas", TPLF_T_SAMEAS, 1},
    {"even", TPLF_T_EVEN, 0}, {"odd", TPLF_T_ODD, 0}, {"divisibleby", TPLF_T_DIVISIBLEBY, 1},
    {"lower", TPLF_T_LOWER, 0}, {"upper", TPLF_T_UPPER, 0}, {"filter", TPLF_T_FILTER, 0}, {"test", TPLF_T_TEST, 0},
    {"escaped", TPLF_T_ESCAPED, 0},
    {"eq", TPLF_T_EQ, 1}, {"equalto", TPLF_T_EQ, 1}, {"==", TPLF_T_EQ, 1}, {"ne", TPLF_T_NE, 1}, {"!=", TPLF_T_NE, 1},
    {"lt", TPLF_T_LT, 1}, {"lessthan", TPLF_T_LT, 1}, {"<", TPLF_T_LT, 1}, {"le", TPLF_T_LE, 1}, {"<=", TPLF_T_LE, 1},
    {"gt", TPLF_T_GT, 1}, {"greaterthan", TPLF_T_GT, 1}, {">", TPLF_T_GT, 1}, {"ge", TPLF_T_GE, 1}, {">=", TPLF_T_GE, 1},
    {"in", TPLF_T_IN, 1},
};

PN_INTERNAL uint16_t pn_tpl_test_find(const char *name, size_t len)
{
    for (size_t i = 0; i < PN_COUNT_OF(tplf_tests); i++)
        if (strlen(tplf_tests[i].name) == len && memcmp(tplf_tests[i].name, name, len) == 0)
            return (uint16_t)i;
    return TPL_NOT_FOUND;
}

static bool tplf_cased(tpl_run *r, tpl_val v, const char *method)
{
    tpl_str *s = pn_tpl_string(r, v);
    tpl_str name = {method, NULL, (uint32_t)strlen(method), UINT32_MAX, true};
    tpl_args none = {NULL, NULL, 0, 0, {TPL_ABSENT, false, 0, {0}}};
    return s && pn_tpl_truth(pn_tpl_method_call(r, tpl_of_str(s), pn_tpl_method_find(tpl_of_str(s), &name), &none));
}

static bool tplf_divides(tpl_run *r, tpl_val v, int64_t by)
{
    if (!tpl_is_num(v) || by == 0) {
        pn_tpl_fail(r, "expected a number to divide, found %s by %lld", pn_tpl_type_name(v), (long long)by);
        return false;
    }
    if (v.type == TPL_INT)
        return by == -1 || v.u.i % by == 0;
    double x = pn_tpl_number(v) / (double)by;
    return x == floor(x);
}

static bool tplf_compare(tpl_run *r, unsigned code, tpl_val v, tpl_val w)
{
    if (code == TPLF_T_EQ || code == TPLF_T_NE)
        return pn_tpl_equal(r, v, w) == (code == TPLF_T_EQ);
    if (code == TPLF_T_IN)
        return pn_tpl_contains(r, w, v);
    int c = pn_tpl_order(r, v, w);
    return code == TPLF_T_LT ? c < 0 : code == TPLF_T_LE ? c <= 0 : code == TPLF_T_GT ? c > 0 : c >= 0;
}

static bool tplf_same(tpl_run *r, tpl_val v, tpl_val w)
{
    if (v.type != w.type)
        return false;
    return v.type >= TPL_LIST && v.type <= TPL_NS ? v.u.l == w.u.l : pn_tpl_equal(r, v, w);
}

PN_INTERNAL bool pn_tpl_test(tpl_run *r, uint16_t id, tpl_val v, const tpl_args *args)
{
    const tplf_test_row *row = &tplf_tests[id];
    tpl_val a[1];
    if (!pn_tpl_bind(r, row->name, args, "", row->args, a, row->args))
        return false;
    switch (row->code) {
    case TPLF_T_DEFINED: return v.type != TPL_UNDEF;
    case TPLF_T_UNDEFINED: return v.type == TPL_UNDEF;
    case TPLF_T_NONE: return v.type == TPL_NONE;
    case TPLF_T_BOOLEAN: return v.type == TPL_BOOL;
    case TPLF_T_TRUE: return v.type == TPL_BOOL && v.u.b;
    case TPLF_T_FALSE: return v.type == TPL_BOOL && !v.u.b;
    case TPLF_T_INTEGER: return v.type == TPL_INT || v.type == TPL_BIG;
    case TPLF_T_FLOAT: return v.type == TPL_FLOAT;
    case TPLF_T_NUMBER: return tpl_is_num(v);
    case TPLF_T_STRING: return v.type == TPL_STR;
    case TPLF_T_SEQUENCE: case TPLF_T_ITERABLE:
        return v.type == TPL_STR || tpl_is_list(v) || v.type == TPL_DICT || v.type == TPL_UNDEF;
    case TPLF_T_MAPPING: return v.type == TPL_DICT;
    case TPLF_T_CALLABLE: return v.type == TPL_MACRO || v.type == TPL_GLOBAL || v.type == TPL_METHOD || v.type == TPL_JOINER;
    case TPLF_T_SAMEAS: return tplf_same(r, v, a[0]);
    case TPLF_T_EVEN: return tplf_divides(r, v, 2);
    case TPLF_T_ODD: return !tplf_divides(r, v, 2);
    case TPLF_T_DIVISIBLEBY: return tplf_divides(r, v, tplf_int(r, a[0], 0));
    case TPLF_T_LOWER: return tplf_cased(r, v, "islower");
    case TPLF_T_UPPER: return tplf_cased(r, v, "isupper");
    case TPLF_T_FILTER: return v.type == TPL_STR && pn_tpl_filter_find(v.u.s->p, v.u.s->len) != TPL_NOT_FOUND;
    case TPLF_T_TEST: return v.type == TPL_STR && pn_tpl_test_find(v.u.s->p, v.u.s->len) != TPL_NOT_FOUND;
    case TPLF_T_ESCAPED: return false;
    default: return tplf_compare(r, row->code, v, a[0]);
    }
}
