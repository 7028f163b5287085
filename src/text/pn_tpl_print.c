/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_tpl_print.c - values as text, byte for byte as Python writes them: str and repr, json.dumps,
 * "%" and .format(), strftime.
 *
 * Whose text is it?  Strings keep their marks, and an escape has the mark of the byte it stands for.
 * Numbers and constants have their value's flag, punctuation that of the container.
 */
#include "text/pn_tpl.h"

#include "base/pn_utf8.h"
#include "text/pn_unicode.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ------------------------------------------------------------------------------------------
 * Numbers
 * ------------------------------------------------------------------------------------------ */

/* strtod, whatever decimal point the process's locale has. */
PN_INTERNAL bool pn_tpl_parse_float(const char *p, size_t n, double *out)
{
    char buf[128], *end;
    const char *dot = memchr(p, '.', n);
    const struct lconv *lc = localeconv();
    const char *point = lc && lc->decimal_point && *lc->decimal_point ? lc->decimal_point : ".";
    size_t plen = strlen(point), len = 0;
    *out = 0;
    if (n == 0 || n + plen + 1 > sizeof buf)
        return n != 0 && pn_parse_f64(p, p + n, out, NULL);     /* hundreds of digits: nearly right will do */
    for (size_t i = 0; i < n; i++) {
        bool ok = (p[i] >= '0' && p[i] <= '9') || p[i] == '-' || p[i] == '+' || p[i] == 'e' || p[i] == 'E';
        if (p + i == dot) {
            memcpy(buf + len, point, plen);
            len += plen;
        } else if (ok) {
            buf[len++] = p[i];
        } else {
            return false;
        }
    }
    buf[len] = 0;
    *out = strtod(buf, &end);
    return end == buf + len;
}

/* The fewest digits that read back the same: "d.ddde+xx" in any locale to digits and exponent. */
static size_t tplo_shortest(double v, char digits[20], int *exp10)
{
    char buf[48];
    for (int prec = v < 1e-300 ? 0 : 14; prec <= 16; prec++) {  /* denormals have fewer digits than 15 */
        snprintf(buf, sizeof buf, "%.*e", prec, v);
        if (strtod(buf, NULL) == v)
            break;
    }
    size_t n = 0;
    const char *e = strchr(buf, 'e');
    for (const char *c = buf; c < e && n < 19; c++)
        if (*c >= '0' && *c <= '9')
            digits[n++] = *c;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = 0;
    *exp10 = atoi(e + 1);
    return n;
}

/* repr(float): a decimal point from 1e-4 to 1e16, else an exponent. */
static void tplo_float(double v, char out[48])
{
    char d[20];
    int e;
    if (isnan(v) || isinf(v)) {
        snprintf(out, 48, "%s", isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
        return;
    }
    size_t n = tplo_shortest(fabs(v), d, &e), k = 0;
    if (signbit(v))
        out[k++] = '-';
    if (e >= -4 && e < 16) {
        if (e < 0) {
            out[k++] = '0';
            out[k++] = '.';
            for (int i = -1; i > e; i--)
                out[k++] = '0';
            memcpy(out + k, d, n);
            k += n;
        } else {
            for (int i = 0; i <= e; i++)
                out[k++] = (size_t)i < n ? d[i] : '0';
            out[k++] = '.';
            if ((size_t)e + 1 >= n)
                out[k++] = '0';
            for (size_t i = (size_t)e + 1; i < n; i++)
                out[k++] = d[i];
        }
        out[k] = 0;
        return;
    }
    out[k++] = d[0];
    if (n > 1) {
        out[k++] = '.';
        memcpy(out + k, d + 1, n - 1);
        k += n - 1;
    }
    snprintf(out + k, 48 - k, "e%c%02d", e < 0 ? '-' : '+', abs(e));
}

/* Booleans, None and numbers as Python (or, json, as JSON) writes them; false: another type. */
static bool tplo_scalar(tpl_run *r, tpl_buf *b, tpl_val v, bool json)
{
    char buf[48];
    const char *text = buf;
    switch (v.type) {
    case TPL_NONE: text = json ? "null" : "None"; break;
    case TPL_BOOL: text = json ? (v.u.b ? "true" : "false") : v.u.b ? "True" : "False"; break;
    case TPL_INT: snprintf(buf, sizeof buf, "%" PRId64, v.u.i); break;
    case TPL_FLOAT:
        tplo_float(v.u.f, buf);
        if (json && !isfinite(v.u.f))
            text = isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity";
        break;
    case TPL_BIG: pn_tpl_buf_add(r, b, v.u.s->p, v.u.s->len, v.trust); return true;
    default: return false;
    }
    pn_tpl_buf_add(r, b, text, strlen(text), v.trust);
    return true;
}

/* ------------------------------------------------------------------------------------------
 * str and repr
 * ------------------------------------------------------------------------------------------ */

static bool tplo_printable(uint32_t cp)
{
    if (cp < 0x7F)
        return cp >= 0x20;
    uint64_t c = pn_uni_class(cp);
    return !(c & (PN_US_C | PN_US(ZL) | PN_US(ZP) | PN_US(ZS)));
}

static void tplo_repr_str(tpl_run *r, tpl_buf *b, const tpl_str *s, bool trust)
{
    bool dq = memchr(s->p, '\'', s->len) && !memchr(s->p, '"', s->len);
    char quote = dq ? '"' : '\'', esc[16];
    pn_tpl_buf_add(r, b, &quote, 1, trust);
    for (size_t i = 0; i < s->len && !r->st;) {
        uint32_t cp;
        size_t n = pn_utf8_decode(s->p + i, s->len - i, &cp);
        bool mark = pn_tpl_mark(s, i);
        esc[0] = 0;
        if (cp == (uint8_t)quote || cp == '\\')
            snprintf(esc, sizeof esc, "\\%c", (int)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            snprintf(esc, sizeof esc, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (!tplo_printable(cp))
            snprintf(esc, sizeof esc, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
        if (esc[0])
            pn_tpl_buf_add(r, b, esc, strlen(esc), mark);
        else
            pn_tpl_buf_sub(r, b, s, i, n);
        i += n;
    }
    pn_tpl_buf_add(r, b, &quote, 1, trust);
}

static void tplo_repr(tpl_run *r, tpl_buf *b, tpl_val v, bool trust, uint32_t depth);

static void tplo_repr_list(tpl_run *r, tpl_buf *b, tpl_val v, uint32_t depth)
{
    bool tuple = v.type == TPL_TUPLE;
    pn_tpl_buf_add(r, b, tuple ? "(" : "[", 1, v.trust);
    for (uint32_t i = 0; i < v.u.l->n && !r->st; i++) {
        if (i)
            pn_tpl_buf_add(r, b, ", ", 2, v.trust);
        tplo_repr(r, b, v.u.l->v[i], v.trust, depth + 1);
    }
    if (tuple && v.u.l->n == 1)
        pn_tpl_buf_add(r, b, ",", 1, v.trust);
    pn_tpl_buf_add(r, b, tuple ? ")" : "]", 1, v.trust);
}

static void tplo_repr_dict(tpl_run *r, tpl_buf *b, tpl_val v, uint32_t depth)
{
    pn_tpl_buf_add(r, b, "{", 1, v.trust);
    for (uint32_t i = 0; i < v.u.d->n && !r->st; i++) {
        if (i)
            pn_tpl_buf_add(r, b, ", ", 2, v.trust);
        tplo_repr(r, b, v.u.d->e[i].k, v.trust, depth + 1);
        pn_tpl_buf_add(r, b, ": ", 2, v.trust);
        tplo_repr(r, b, v.u.d->e[i].v, v.trust, depth + 1);
    }
    pn_tpl_buf_add(r, b, "}", 1, v.trust);
}

static void tplo_other(tpl_run *r, tpl_buf *b, tpl_val v)
{
    const char *name = pn_tpl_type_name(v);
    pn_tpl_buf_add(r, b, "<", 1, true);
    pn_tpl_buf_add(r, b, name, strlen(name), true);
    pn_tpl_buf_add(r, b, ">", 1, true);
}

/* trust: of the quotes of a string. */
static void tplo_repr(tpl_run *r, tpl_buf *b, tpl_val v, bool trust, uint32_t depth)
{
    if (depth > TPL_MAX_VALUE) {
        pn_tpl_fail(r, "limit reached: values nested deeper than %d", (int)TPL_MAX_VALUE);
        return;
    }
    if (!pn_tpl_charge(r, 1) || tplo_scalar(r, b, v, false))
        return;
    switch (v.type) {
    case TPL_UNDEF: pn_tpl_buf_add(r, b, "Undefined", 9, true); break;
    case TPL_STR: tplo_repr_str(r, b, v.u.s, trust); break;
    case TPL_LIST: case TPL_TUPLE: tplo_repr_list(r, b, v, depth); break;
    case TPL_DICT: tplo_repr_dict(r, b, v, depth); break;
    default: tplo_other(r, b, v); break;
    }
}

PN_INTERNAL void pn_tpl_print(tpl_run *r, tpl_buf *b, tpl_val v)
{
    if (v.type == TPL_STR)
        pn_tpl_buf_sub(r, b, v.u.s, 0, v.u.s->len);
    else if (v.type != TPL_UNDEF)
        tplo_repr(r, b, v, true, 0);
}

PN_INTERNAL tpl_str *pn_tpl_string(tpl_run *r, tpl_val v)
{
    tpl_buf b;
    if (v.type == TPL_STR)
        return r->st ? NULL : v.u.s;
    pn_tpl_buf_init(&b);
    pn_tpl_print(r, &b, v);
    tpl_val s = pn_tpl_buf_str(r, &b);
    return r->st ? NULL : s.u.s;
}

/* ------------------------------------------------------------------------------------------
 * JSON
 * ------------------------------------------------------------------------------------------ */

/* What stands for cp between quotes; 0: cp itself.  out: room for two \uXXXX. */
static size_t tplo_json_escape(uint32_t cp, bool ascii, char out[16])
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *at = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    if (at)
        return (size_t)snprintf(out, 16, "\\%c", to[at - from]);
    if (cp < 0x20 || (ascii && cp > 0x7E && cp < 0x10000))
        return (size_t)snprintf(out, 16, "\\u%04x", (unsigned)cp);
    if (ascii && cp >= 0x10000) {
        cp -= 0x10000;
        return (size_t)snprintf(out, 16, "\\u%04x\\u%04x", (unsigned)(0xD800 + (cp >> 10)), (unsigned)(0xDC00 + (cp & 0x3FF)));
    }
    return 0;
}

static void tplo_json_str(tpl_run *r, tpl_buf *b, const tpl_str *s, bool ascii, bool trust)
{
    size_t run = 0, i = 0;
    pn_tpl_buf_add(r, b, "\"", 1, trust);
    while (i < s->len && !r->st) {
        char esc[16];
        uint32_t cp = (uint8_t)s->p[i];
        size_t n = cp < 0x80 ? 1 : pn_utf8_decode(s->p + i, s->len - i, &cp), len = 0;
        if (cp < 0x20 || cp == '"' || cp == '\\' || (ascii && cp > 0x7E))
            len = tplo_json_escape(cp, ascii, esc);
        if (len) {
            pn_tpl_buf_sub(r, b, s, run, i - run);
            pn_tpl_buf_add(r, b, esc, len, pn_tpl_mark(s, i));
            run = i + n;
        }
        i += n;
    }
    pn_tpl_buf_sub(r, b, s, run, s->len - run);
    pn_tpl_buf_add(r, b, "\"", 1, trust);
}

static void tplo_json_break(tpl_run *r, tpl_buf *b, const tpl_json_style *st, uint32_t depth, bool trust)
{
    if (!st->indent)
        return;
    pn_tpl_buf_add(r, b, "\n", 1, trust);
    for (uint32_t i = 0; i < depth && !r->st; i++)
        pn_tpl_buf_sub(r, b, st->indent, 0, st->indent->len);
}

static void tplo_json(tpl_run *r, tpl_buf *b, tpl_val v, const tpl_json_style *st, uint32_t depth, bool trust);

/* Separators are the template's own text or a default of ours; inside a container that untrusted
 * text made, they are not trusted either. */
static void tplo_json_sep(tpl_run *r, tpl_buf *b, const tpl_str *sep, bool trust)
{
    if (trust)
        pn_tpl_buf_sub(r, b, sep, 0, sep->len);
    else
        pn_tpl_buf_add(r, b, sep->p, sep->len, false);
}

static void tplo_json_key(tpl_run *r, tpl_buf *b, tpl_val k, const tpl_json_style *st, bool trust)
{
    if (k.type == TPL_STR) {
        tplo_json_str(r, b, k.u.s, st->ascii, trust);
        return;
    }
    pn_tpl_buf_add(r, b, "\"", 1, trust);
    if (!tplo_scalar(r, b, k, true))
        pn_tpl_fail(r, "keys must be str, int, float, bool or None, not %s", pn_tpl_type_name(k));
    pn_tpl_buf_add(r, b, "\"", 1, trust);
}

static void tplo_json_dict(tpl_run *r, tpl_buf *b, tpl_val v, const tpl_json_style *st, uint32_t depth)
{
    tpl_val items = st->sort ? pn_tpl_dict_items(r, v.u.d) : tpl_undef();
    if (st->sort && !r->st)
        items = pn_tpl_sort(r, items.u.l, tpl_int(0, true), false, false);
    pn_tpl_buf_add(r, b, "{", 1, v.trust);
    for (uint32_t i = 0; i < v.u.d->n && !r->st; i++) {
        tpl_val *pair = st->sort ? items.u.l->v[i].u.l->v : NULL;
        if (i)
            tplo_json_sep(r, b, st->item, v.trust);
        tplo_json_break(r, b, st, depth + 1, v.trust);
        tplo_json_key(r, b, pair ? pair[0] : v.u.d->e[i].k, st, v.trust);
        tplo_json_sep(r, b, st->key, v.trust);
        tplo_json(r, b, pair ? pair[1] : v.u.d->e[i].v, st, depth + 1, v.trust);
    }
    if (v.u.d->n)
        tplo_json_break(r, b, st, depth, v.trust);
    pn_tpl_buf_add(r, b, "}", 1, v.trust);
}

static void tplo_json(tpl_run *r, tpl_buf *b, tpl_val v, const tpl_json_style *st, uint32_t depth, bool trust)
{
    if (depth > TPL_MAX_VALUE) {
        pn_tpl_fail(r, "limit reached: values nested deeper than %d", (int)TPL_MAX_VALUE);
        return;
    }
    if (!pn_tpl_charge(r, 1) || tplo_scalar(r, b, v, true))
        return;
    switch (v.type) {
    case TPL_UNDEF: pn_tpl_buf_add(r, b, "null", 4, true); break;
    case TPL_STR: tplo_json_str(r, b, v.u.s, st->ascii, trust); break;
    case TPL_DICT: case TPL_NS: tplo_json_dict(r, b, v, st, depth); break;
    case TPL_LIST: case TPL_TUPLE:
        pn_tpl_buf_add(r, b, "[", 1, v.trust);
        for (uint32_t i = 0; i < v.u.l->n && !r->st; i++) {
            if (i)
                tplo_json_sep(r, b, st->item, v.trust);
            tplo_json_break(r, b, st, depth + 1, v.trust);
            tplo_json(r, b, v.u.l->v[i], st, depth + 1, v.trust);
        }
        if (v.u.l->n)
            tplo_json_break(r, b, st, depth, v.trust);
        pn_tpl_buf_add(r, b, "]", 1, v.trust);
        break;
    default: pn_tpl_fail(r, "Object of type %s is not JSON serializable", pn_tpl_type_name(v)); break;
    }
}

PN_INTERNAL void pn_tpl_json(tpl_run *r, tpl_buf *b, tpl_val v, const tpl_json_style *style)
{
    tplo_json(r, b, v, style, 0, true);
}

/* ------------------------------------------------------------------------------------------
 * "%s" % x and "{}".format(x)
 * ------------------------------------------------------------------------------------------ */

/* What may stand in one field: width, precision, flags. */
typedef struct tplo_spec {
    char fill, align;           /* align: '<' '>' '^' or 0: by type */
    bool zero, plus, alt;
    int width, prec;            /* prec -1: none */
    char type;                  /* 0: by value */
    bool trust;                 /* of padding: the format's */
} tplo_spec;

static int tplo_int_of(const char *s, size_t n, size_t *at)
{
    int v = 0;
    for (; *at < n && s[*at] >= '0' && s[*at] <= '9'; ++*at)
        if (v < 100000)
            v = v * 10 + (s[*at] - '0');
    return v;
}

/* %f and friends with '.' in any locale. */
static void tplo_fixed(char *buf, size_t cap, char type, int prec, double v, bool plus)
{
    if (type == 'e' || type == 'E') snprintf(buf, cap, plus ? "%+.*e" : "%.*e", prec, v);
    else if (type == 'g' || type == 'G') snprintf(buf, cap, plus ? "%+.*g" : "%.*g", prec, v);
    else snprintf(buf, cap, plus ? "%+.*f" : "%.*f", prec, v);
    for (char *c = buf; *c; c++)
        if (!strchr("0123456789+-eEinfa", *c))
            *c = '.';
}

static void tplo_pad(tpl_run *r, tpl_buf *b, char c, size_t n, bool trust)
{
    for (size_t i = 0; i < n && !r->st; i++)
        pn_tpl_buf_add(r, b, &c, 1, trust);
}

static void tplo_field(tpl_run *r, tpl_buf *b, tpl_val v, const tplo_spec *f)
{
    char buf[420];
    tpl_str num = {buf, NULL, 0, UINT32_MAX, v.trust}, *s = &num;
    bool is_num = false;
    char type = f->type;
    if (f->width > 4096 || f->prec > 64) {
        pn_tpl_fail(r, "limit reached: a field of %d characters with %d digits", f->width, f->prec);
        return;
    }
    if (!type && tpl_is_num(v) && v.type != TPL_BOOL && v.type != TPL_BIG)
        type = v.type == TPL_INT ? 'd' : f->prec >= 0 ? 'g' : 's';
    if (type == 'd' || type == 'i' || type == 'u' || type == 'x' || type == 'X' || type == 'o') {
        if (!tpl_is_num(v) || v.type == TPL_BIG) {
            pn_tpl_fail(r, "%%%c format: a number is required, not %s", type, pn_tpl_type_name(v));
            return;
        }
        double d = pn_tpl_number(v);
        int64_t i = v.type == TPL_INT ? v.u.i : d > -9e18 && d < 9e18 ? (int64_t)d : 0;
        uint64_t mag = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
        const char *sign = i < 0 ? "-" : f->plus ? "+" : "";
        if (type == 'x') snprintf(buf, sizeof buf, "%s%s%" PRIx64, sign, f->alt ? "0x" : "", mag);
        else if (type == 'X') snprintf(buf, sizeof buf, "%s%s%" PRIX64, sign, f->alt ? "0X" : "", mag);
        else if (type == 'o') snprintf(buf, sizeof buf, "%s%s%" PRIo64, sign, f->alt ? "0o" : "", mag);
        else snprintf(buf, sizeof buf, "%s%" PRIu64, sign, mag);
        is_num = true;
    } else if (type == 'f' || type == 'F' || type == 'e' || type == 'E' || type == 'g' || type == 'G' || type == '%') {
        if (!tpl_is_num(v)) {
            pn_tpl_fail(r, "a number is required, not %s", pn_tpl_type_name(v));
            return;
        }
        tplo_fixed(buf, sizeof buf - 1, type == '%' ? 'f' : type, f->prec < 0 ? 6 : f->prec,
                   pn_tpl_number(v) * (type == '%' ? 100 : 1), f->plus);
        if (type == '%')
            strcat(buf, "%");
        is_num = true;
    } else {
        if (type == 'r') {
            tpl_buf repr;
            pn_tpl_buf_init(&repr);
            tplo_repr(r, &repr, v, true, 0);
            v = pn_tpl_buf_str(r, &repr);
        }
        is_num = type != 'r' && tpl_is_num(v) && !f->type;
        s = pn_tpl_string(r, v);
        if (!s)
            return;
        if (f->prec >= 0 && !is_num)
            s = pn_tpl_sub(r, s, 0, pn_tpl_offset(r, s, f->prec)).u.s;
    }
    if (r->st || !s)
        return;
    if (s == &num)
        num.len = (uint32_t)strlen(buf);
    size_t n = pn_tpl_chars(s), pad = (size_t)f->width > n ? (size_t)f->width - n : 0, sign = 0;
    char align = f->align ? f->align : is_num ? '>' : '<';
    if (f->zero && !f->align && is_num) {
        sign = s->len && (s->p[0] == '-' || s->p[0] == '+');
        pn_tpl_buf_sub(r, b, s, 0, sign);
        tplo_pad(r, b, '0', pad, f->trust);
        pad = 0;
    }
    size_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    tplo_pad(r, b, f->fill, left, f->trust);
    pn_tpl_buf_sub(r, b, s, sign, s->len - sign);
    tplo_pad(r, b, f->fill, pad - left, f->trust);
}

/* %[(name)][flags][width][.prec]type at *at, after the '%'. */
static void tplo_percent_spec(const tpl_str *fmt, size_t *at, tplo_spec *f)
{
    const char *s = fmt->p;
    *f = (tplo_spec){' ', '>', false, false, false, 0, -1, 0, pn_tpl_mark(fmt, *at - 1)};
    for (; *at < fmt->len && strchr("-+ #0", s[*at]) && s[*at]; ++*at) {
        if (s[*at] == '-') f->align = '<';
        if (s[*at] == '+') f->plus = true;
        if (s[*at] == '#') f->alt = true;
        if (s[*at] == '0') f->zero = true;
    }
    f->width = tplo_int_of(s, fmt->len, at);
    if (*at < fmt->len && s[*at] == '.') {
        ++*at;
        f->prec = tplo_int_of(s, fmt->len, at);
    }
    if (f->zero && f->align == '>')
        f->align = 0;
    if (*at < fmt->len)
        f->type = s[(*at)++];
}

/* "(name)" and its value; else TPL_ABSENT: the next in turn. */
static tpl_val tplo_percent_arg(tpl_run *r, const tpl_str *fmt, size_t *at, tpl_val args)
{
    if (*at < fmt->len && fmt->p[*at] == '(') {
        const char *end = memchr(fmt->p + *at, ')', fmt->len - *at);
        if (!end || args.type != TPL_DICT)
            return pn_tpl_fail(r, "format requires a mapping");
        tpl_val k = pn_tpl_sub(r, fmt, *at + 1, (size_t)(end - fmt->p) - *at - 1);
        tpl_val *v = r->st ? NULL : pn_tpl_dict_get(r, args.u.d, k);
        *at = (size_t)(end - fmt->p) + 1;
        return v ? *v : pn_tpl_fail(r, "format: a key is missing");
    }
    return tpl_absent();
}

PN_INTERNAL tpl_val pn_tpl_printf(tpl_run *r, tpl_str *fmt, tpl_val args)
{
    tpl_buf b;
    uint32_t next = 0, n = args.type == TPL_TUPLE ? args.u.l->n : 1;
    pn_tpl_buf_init(&b);
    for (size_t i = 0; i < fmt->len && !r->st;) {
        const char *p = memchr(fmt->p + i, '%', fmt->len - i);
        size_t stop = p ? (size_t)(p - fmt->p) : fmt->len;
        pn_tpl_buf_sub(r, &b, fmt, i, stop - i);
        if (!p)
            break;
        i = stop + 1;
        tplo_spec spec;
        tpl_val v = tplo_percent_arg(r, fmt, &i, args);
        tplo_percent_spec(fmt, &i, &spec);
        if (spec.type == '%') {
            pn_tpl_buf_sub(r, &b, fmt, stop, 1);
            continue;
        }
        if (!strchr("sdiuxXofFeEgGr", spec.type) || !spec.type)
            return pn_tpl_fail(r, "unsupported format character at %zu", i);
        if (!tpl_given(v)) {
            if (next >= n)
                return pn_tpl_fail(r, "not enough arguments for format string");
            v = args.type == TPL_TUPLE ? args.u.l->v[next] : args;
            next++;
        }
        if (spec.type == 's')
            spec.zero = false;
        tplo_field(r, &b, v, &spec);
    }
    if (next < n && args.type == TPL_TUPLE)
        return pn_tpl_fail(r, "not all arguments converted during string formatting");
    return pn_tpl_buf_str(r, &b);
}

/* [[fill]align][+][#][0][width][.prec][type] */
static void tplo_brace_spec(const char *s, size_t n, bool trust, tplo_spec *f)
{
    size_t at = 0;
    *f = (tplo_spec){' ', 0, false, false, false, 0, -1, 0, trust};
    if (n >= 2 && strchr("<>^", s[1]) && s[1]) {
        f->fill = s[0];
        f->align = s[1];
        at = 2;
    } else if (n >= 1 && strchr("<>^", s[0]) && s[0]) {
        f->align = s[0];
        at = 1;
    }
    for (; at < n && (s[at] == '+' || s[at] == '#' || s[at] == '0'); at++) {
        f->plus = f->plus || s[at] == '+';
        f->alt = f->alt || s[at] == '#';
        f->zero = f->zero || s[at] == '0';
    }
    f->width = tplo_int_of(s, n, &at);
    if (at < n && s[at] == '.') {
        at++;
        f->prec = tplo_int_of(s, n, &at);
    }
    if (at < n)
        f->type = s[at];
}

/* The value that "{name...}" means, without attributes or indices. */
static tpl_val tplo_brace_arg(tpl_run *r, const tpl_str *fmt, size_t from, size_t n, const tpl_args *args, uint32_t *next)
{
    const char *s = fmt->p + from;
    size_t at = 0;
    uint32_t i;
    if (n == 0) {
        i = (*next)++;
    } else if (s[0] >= '0' && s[0] <= '9') {
        i = (uint32_t)tplo_int_of(s, n, &at);
    } else {
        for (uint32_t k = 0; k < args->n_kw; k++)
            if (args->kw[k].name->len == n && memcmp(args->kw[k].name->p, s, n) == 0)
                return args->kw[k].v;
        return pn_tpl_fail(r, "format: there is no argument \"%.*s\"", (int)PN_MIN(n, (size_t)60), s);
    }
    if (i >= args->n)
        return pn_tpl_fail(r, "format: there is no argument %u", (unsigned)i);
    return args->pos[i];
}

PN_INTERNAL tpl_val pn_tpl_format(tpl_run *r, tpl_str *fmt, const tpl_args *args)
{
    tpl_buf b;
    uint32_t next = 0;
    pn_tpl_buf_init(&b);
    for (size_t i = 0; i < fmt->len && !r->st;) {
        char c = fmt->p[i];
        if (c != '{' && c != '}') {
            size_t run = i;
            while (i < fmt->len && fmt->p[i] != '{' && fmt->p[i] != '}')
                i++;
            pn_tpl_buf_sub(r, &b, fmt, run, i - run);
            continue;
        }
        if (i + 1 < fmt->len && fmt->p[i + 1] == c) {
            pn_tpl_buf_sub(r, &b, fmt, i, 1);
            i += 2;
            continue;
        }
        const char *end = c == '{' ? memchr(fmt->p + i, '}', fmt->len - i) : NULL;
        if (!end)
            return pn_tpl_fail(r, "format: a single '%c' in the format string", c);
        size_t stop = (size_t)(end - fmt->p), name = i + 1, len = stop - name;
        const char *colon = memchr(fmt->p + name, ':', len);
        size_t name_len = colon ? (size_t)(colon - fmt->p) - name : len;
        tplo_spec spec;
        tpl_val v = tplo_brace_arg(r, fmt, name, name_len, args, &next);
        tplo_brace_spec(colon ? colon + 1 : end, colon ? len - name_len - 1 : 0, pn_tpl_mark(fmt, i), &spec);
        if (!r->st)
            tplo_field(r, &b, v, &spec);
        i = stop + 1;
    }
    return pn_tpl_buf_str(r, &b);
}

/* ------------------------------------------------------------------------------------------
 * Dates
 * ------------------------------------------------------------------------------------------ */

static size_t tplo_date_field(const struct tm *t, char code, char out[32])
{
    static const char *const days[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
    static const char *const months[] = {"January", "February", "March", "April", "May", "June", "July", "August",
                                         "September", "October", "November", "December"};
    const char *day = days[(unsigned)t->tm_wday % 7], *month = months[(unsigned)t->tm_mon % 12];
    int hour12 = t->tm_hour % 12 ? t->tm_hour % 12 : 12, y = t->tm_year + 1900;
    switch (code) {
    case 'Y': return (size_t)snprintf(out, 32, "%04d", y);
    case 'y': return (size_t)snprintf(out, 32, "%02d", y % 100);
    case 'm': return (size_t)snprintf(out, 32, "%02d", t->tm_mon + 1);
    case 'd': return (size_t)snprintf(out, 32, "%02d", t->tm_mday);
    case 'e': return (size_t)snprintf(out, 32, "%2d", t->tm_mday);
    case 'b': case 'h': return (size_t)snprintf(out, 32, "%.3s", month);
    case 'B': return (size_t)snprintf(out, 32, "%s", month);
    case 'a': return (size_t)snprintf(out, 32, "%.3s", day);
    case 'A': return (size_t)snprintf(out, 32, "%s", day);
    case 'H': return (size_t)snprintf(out, 32, "%02d", t->tm_hour);
    case 'I': return (size_t)snprintf(out, 32, "%02d", hour12);
    case 'M': return (size_t)snprintf(out, 32, "%02d", t->tm_min);
    case 'S': return (size_t)snprintf(out, 32, "%02d", t->tm_sec);
    case 'j': return (size_t)snprintf(out, 32, "%03d", t->tm_yday + 1);
    case 'p': return (size_t)snprintf(out, 32, "%s", t->tm_hour < 12 ? "AM" : "PM");
    case 'w': return (size_t)snprintf(out, 32, "%d", t->tm_wday);
    case 'F': return (size_t)snprintf(out, 32, "%04d-%02d-%02d", y, t->tm_mon + 1, t->tm_mday);
    case 'T': return (size_t)snprintf(out, 32, "%02d:%02d:%02d", t->tm_hour, t->tm_min, t->tm_sec);
    case 'D': return (size_t)snprintf(out, 32, "%02d/%02d/%02d", t->tm_mon + 1, t->tm_mday, y % 100);
    case '%': out[0] = '%'; return 1;
    default: return 0;
    }
}

PN_INTERNAL tpl_val pn_tpl_strftime(tpl_run *r, tpl_str *fmt)
{
    struct tm t;
    tpl_buf b;
    time_t now = r->now ? (time_t)r->now : time(NULL);
    memset(&t, 0, sizeof t);
    if (!(r->now ? gmtime_r(&now, &t) : localtime_r(&now, &t)))
        return pn_tpl_fail(r, "strftime_now: the clock has no date");
    pn_tpl_buf_init(&b);
    for (size_t i = 0; i < fmt->len && !r->st; i++) {
        char out[32];
        size_t code = i + 1;
        if (fmt->p[i] != '%' || code >= fmt->len) {
            pn_tpl_buf_sub(r, &b, fmt, i, 1);
            continue;
        }
        bool bare = fmt->p[code] == '-' && code + 1 < fmt->len;        /* %-d: without zeroes */
        code += bare;
        size_t n = tplo_date_field(&t, fmt->p[code], out), skip = 0;
        while (bare && skip + 1 < n && (out[skip] == '0' || out[skip] == ' '))
            skip++;
        if (n)
            pn_tpl_buf_add(r, &b, out + skip, n - skip, pn_tpl_mark(fmt, i));
        else
            pn_tpl_buf_sub(r, &b, fmt, i, code - i + 1);
        i = code;
    }
    return pn_tpl_buf_str(r, &b);
}
