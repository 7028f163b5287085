/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_tpl_methods.c - functions everybody has (range, namespace, raise_exception, ...) and methods of
 * strings, dicts, lists, loops.
 *
 * Templates call Python's methods by name, so these do what Python's do, on characters and not bytes.
 * Every result is cut out of, or glued from, its sources with their marks.
 */
#include "text/pn_tpl.h"

#include "base/pn_utf8.h"
#include "text/pn_unicode.h"

/* ------------------------------------------------------------------------------------------
 * Arguments
 * ------------------------------------------------------------------------------------------ */

/* The i-th of "old,new,count"; its length in *len, 0: there is none. */
static const char *tplm_param(const char *names, uint32_t i, size_t *len)
{
    while (i-- && *names) {
        names += strcspn(names, ",");
        names += *names == ',';
    }
    *len = strcspn(names, ",");
    return names;
}

PN_INTERNAL bool pn_tpl_bind(tpl_run *r, const char *what, const tpl_args *args, const char *names, uint32_t need,
                             tpl_val *a, uint32_t n)
{
    size_t len;
    for (uint32_t i = 0; i < n; i++)
        a[i] = i < args->n ? args->pos[i] : tpl_absent();
    if (args->n > n) {
        pn_tpl_fail(r, "%s: expected at most %u arguments, found %u", what, (unsigned)n, (unsigned)args->n);
        return false;
    }
    for (uint32_t k = 0; k < args->n_kw; k++) {
        uint32_t i = 0;
        for (; i < n; i++) {
            const char *p = tplm_param(names, i, &len);
            if (len && len == args->kw[k].name->len && memcmp(p, args->kw[k].name->p, len) == 0)
                break;
        }
        if (i == n || tpl_given(a[i])) {
            pn_tpl_fail(r, "%s: the argument \"%.*s\" is unknown or given twice", what,
                        (int)PN_MIN(args->kw[k].name->len, 60u), args->kw[k].name->p);
            return false;
        }
        a[i] = args->kw[k].v;
    }
    for (uint32_t i = 0; i < need; i++)
        if (!tpl_given(a[i])) {
            const char *p = tplm_param(names, i, &len);
            pn_tpl_fail(r, "%s: the argument \"%.*s\" is missing", what, (int)len, p);
            return false;
        }
    return !r->st;
}

/* An argument that must be a string (or absent, None: NULL). */
static tpl_str *tplm_str(tpl_run *r, const char *what, tpl_val v)
{
    if (v.type == TPL_STR)
        return v.u.s;
    if (v.type != TPL_ABSENT && v.type != TPL_NONE)
        pn_tpl_fail(r, "%s: expected a string, found %s", what, pn_tpl_type_name(v));
    return NULL;
}

static int64_t tplm_int(tpl_run *r, const char *what, tpl_val v, int64_t fallback)
{
    if (v.type == TPL_INT || v.type == TPL_BOOL)
        return v.type == TPL_INT ? v.u.i : v.u.b;
    if (v.type != TPL_ABSENT && v.type != TPL_NONE)
        pn_tpl_fail(r, "%s: expected an integer, found %s", what, pn_tpl_type_name(v));
    return fallback;
}

/* ------------------------------------------------------------------------------------------
 * Letters
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_tpl_buf_cp(tpl_run *r, tpl_buf *b, uint32_t cp, bool trust)
{
    char out[4];
    pn_tpl_buf_add(r, b, out, pn_utf8_encode(cp, out), trust);
}

/* The capital whose small letter is cp: the table of small letters read backwards.  Where several
 * capitals share one (the Kelvin sign and K), the lowest is the ordinary one. */
PN_INTERNAL uint32_t pn_tpl_upper_cp(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= 'a' && cp <= 'z' ? cp - 32 : cp;
    switch (cp) {
    case 0xB5: return 0x39C;            /* micro sign */
    case 0x131: return 'I';
    case 0x17F: return 'S';
    case 0x3C2: return 0x3A3;           /* final sigma */
    case 0xDF: return cp;               /* sharp s: two letters, see pn_tpl_upper */
    default: break;
    }
    const pn_uni_tables *t = pn_uni_tab();
    for (size_t i = 0; i < t->n_lower; i++) {
        const pn_uni_lower_run *run = &t->lower[i];
        int64_t c = (int64_t)cp - run->delta - run->first;
        if (c >= 0 && run->step && c % run->step == 0 && c / run->step < run->count)
            return (uint32_t)(c + run->first);
    }
    return cp;
}

PN_INTERNAL tpl_val pn_tpl_upper(tpl_run *r, const tpl_str *s)
{
    tpl_buf b;
    pn_tpl_buf_init(&b);
    for (size_t i = 0; i < s->len && !r->st;) {
        uint32_t cp;
        size_t n = pn_utf8_decode(s->p + i, s->len - i, &cp);
        bool mark = pn_tpl_mark(s, i);
        if (cp == 0xDF)
            pn_tpl_buf_add(r, &b, "SS", 2, mark);
        else
            pn_tpl_buf_cp(r, &b, pn_tpl_upper_cp(cp), mark);
        i += n;
        pn_tpl_charge(r, cp < 0x80 ? i % 4 == 0 : 8);       /* looked up in a table, or known */
    }
    return pn_tpl_buf_str(r, &b);
}

static bool tplm_cased(uint32_t cp) { return (pn_uni_class(cp) & (PN_US(LU) | PN_US(LL) | PN_US(LT))) != 0; }

/* Small letters of s[from..); a sigma that ends a word is a final one. */
static void tplm_lower(tpl_run *r, tpl_buf *b, const tpl_str *s, size_t from)
{
    bool before = false;
    for (size_t i = from; i < s->len && pn_tpl_charge(r, 1);) {
        uint32_t cp, next = 0, low;
        size_t n = pn_utf8_decode(s->p + i, s->len - i, &cp);
        bool mark = pn_tpl_mark(s, i);
        low = pn_uni_lower(cp);
        if (cp == 0x3A3) {
            if (i + n < s->len)
                pn_utf8_decode(s->p + i + n, s->len - i - n, &next);
            low = before && !(next && tplm_cased(next)) ? 0x3C2 : 0x3C3;
        }
        if (cp == 0x130) {              /* I with a dot: i and the dot */
            pn_tpl_buf_cp(r, b, 'i', mark);
            low = 0x307;
        }
        pn_tpl_buf_cp(r, b, low, mark);
        before = tplm_cased(cp);
        i += n;
    }
}

PN_INTERNAL tpl_val pn_tpl_lower(tpl_run *r, const tpl_str *s)
{
    tpl_buf b;
    pn_tpl_buf_init(&b);
    tplm_lower(r, &b, s, 0);
    return pn_tpl_buf_str(r, &b);
}

PN_INTERNAL tpl_val pn_tpl_capitalize(tpl_run *r, const tpl_str *s)
{
    tpl_buf b;
    uint32_t cp;
    pn_tpl_buf_init(&b);
    size_t n = pn_utf8_decode(s->p, s->len, &cp);
    if (n)
        pn_tpl_buf_cp(r, &b, pn_tpl_upper_cp(cp), pn_tpl_mark(s, 0));
    tplm_lower(r, &b, s, n);
    return pn_tpl_buf_str(r, &b);
}

/* str.title(): a letter after something that is no letter is a capital. */
static tpl_val tplm_title(tpl_run *r, const tpl_str *s)
{
    tpl_buf b;
    bool before = false;
    pn_tpl_buf_init(&b);
    for (size_t i = 0; i < s->len && !r->st;) {
        uint32_t cp;
        size_t n = pn_utf8_decode(s->p + i, s->len - i, &cp);
        pn_tpl_buf_cp(r, &b, before ? pn_uni_lower(cp) : pn_tpl_upper_cp(cp), pn_tpl_mark(s, i));
        before = tplm_cased(cp);
        i += n;
    }
    return pn_tpl_buf_str(r, &b);
}

/* All characters of one kind, and at least one.  kind: 'd'igit, 'a'lpha, 'n' alphanumeric, 's'pace, 'u'pper,
 * 'l'ower (some cased letter, none of the other case). */
static bool tplm_all(tpl_run *r, const tpl_str *s, char kind)
{
    bool some = false;
    for (size_t i = 0; i < s->len && pn_tpl_charge(r, 1);) {
        uint32_t cp;
        i += pn_utf8_decode(s->p + i, s->len - i, &cp);
        uint64_t c = pn_uni_class(cp);
        bool ok = true;
        switch (kind) {
        case 'd': ok = (c & PN_US(ND)) != 0; break;
        case 'a': ok = (c & PN_US_L) != 0; break;
        case 'n': ok = (c & (PN_US_L | PN_US_N)) != 0; break;
        case 's': ok = pn_tpl_space(cp); break;
        default:
            if (c & (kind == 'u' ? PN_US(LL) | PN_US(LT) : PN_US(LU) | PN_US(LT)))
                return false;
            some = some || (c & (kind == 'u' ? PN_US(LU) : PN_US(LL))) != 0;
            continue;
        }
        if (!ok)
            return false;
        some = true;
    }
    return some;
}

/* ------------------------------------------------------------------------------------------
 * Cutting and gluing
 * ------------------------------------------------------------------------------------------ */

static bool tplm_in(uint32_t cp, const tpl_str *chars)
{
    if (!chars)
        return pn_tpl_space(cp);
    for (size_t i = 0; i < chars->len;) {
        uint32_t c;
        i += pn_utf8_decode(chars->p + i, chars->len - i, &c);
        if (c == cp)
            return true;
    }
    return false;
}

/* chars NULL: white space. */
PN_INTERNAL tpl_val pn_tpl_strip(tpl_run *r, const tpl_str *s, const tpl_str *chars, bool left, bool right)
{
    size_t a = 0, b = s->len;
    uint32_t cp;
    while (left && a < b) {
        size_t n = pn_utf8_decode(s->p + a, b - a, &cp);
        if (!tplm_in(cp, chars) || !pn_tpl_charge(r, 1 + (chars ? chars->len / 8 : 0)))
            break;
        a += n;
    }
    while (right && b > a) {
        size_t k = b - 1;
        while (k > a && ((uint8_t)s->p[k] & 0xC0) == 0x80)
            k--;
        pn_utf8_decode(s->p + k, b - k, &cp);
        if (!tplm_in(cp, chars) || !pn_tpl_charge(r, 1 + (chars ? chars->len / 8 : 0)))
            break;
        b = k;
    }
    return pn_tpl_sub(r, s, a, b - a);
}

static void tplm_reverse(tpl_list *l)
{
    for (uint32_t i = 0; l && i < l->n / 2; i++) {
        tpl_val v = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = v;
    }
}

/* Words between white space; max < 0: all of them. */
static tpl_val tplm_words(tpl_run *r, tpl_str *s, int64_t max, bool from_right)
{
    tpl_list *l = pn_tpl_list(r, 0);
    if (max >= 0 && from_right)
        return pn_tpl_fail(r, "rsplit: a limit needs a separator");
    for (size_t i = 0; i < s->len && l && !r->st;) {
        uint32_t cp;
        size_t n = pn_utf8_decode(s->p + i, s->len - i, &cp), begin = i;
        if (pn_tpl_space(cp)) {
            i += n;
            continue;
        }
        if (max >= 0 && l->n >= max) {
            pn_tpl_push(r, l, pn_tpl_strip(r, pn_tpl_sub(r, s, i, s->len - i).u.s, NULL, false, true));
            break;
        }
        while (i < s->len) {
            n = pn_utf8_decode(s->p + i, s->len - i, &cp);
            if (pn_tpl_space(cp))
                break;
            i += n;
        }
        pn_tpl_push(r, l, pn_tpl_sub(r, s, begin, i - begin));
    }
    return tpl_of_list(l, TPL_LIST);
}

static int64_t tplm_rfind(tpl_run *r, const tpl_str *s, size_t end, const tpl_str *needle)
{
    if (needle->len > end)
        return -1;
    for (size_t i = end - needle->len + 1; i-- > 0 && pn_tpl_charge(r, 1);)
        if (memcmp(s->p + i, needle->p, needle->len) == 0)
            return (int64_t)i;
    return -1;
}

PN_INTERNAL tpl_val pn_tpl_split(tpl_run *r, tpl_str *s, const tpl_str *sep, int64_t max, bool from_right)
{
    if (!sep)
        return tplm_words(r, s, max, from_right);
    if (!sep->len)
        return pn_tpl_fail(r, "split: the separator is empty");
    tpl_list *l = pn_tpl_list(r, 0);
    size_t from = 0, end = s->len;
    while (l && !r->st && (max < 0 || l->n < max)) {
        int64_t at = from_right ? tplm_rfind(r, s, end, sep) : pn_tpl_find(r, s, from, sep);
        if (at < 0)
            break;
        if (from_right) {
            pn_tpl_push(r, l, pn_tpl_sub(r, s, (size_t)at + sep->len, end - (size_t)at - sep->len));
            end = (size_t)at;
        } else {
            pn_tpl_push(r, l, pn_tpl_sub(r, s, from, (size_t)at - from));
            from = (size_t)at + sep->len;
        }
    }
    if (r->st)
        return tpl_undef();
    pn_tpl_push(r, l, pn_tpl_sub(r, s, from, end - from));
    if (from_right)
        tplm_reverse(l);
    return tpl_of_list(l, TPL_LIST);
}

PN_INTERNAL tpl_val pn_tpl_lines(tpl_run *r, tpl_str *s)
{
    tpl_list *l = pn_tpl_list(r, 0);
    for (size_t i = 0; i < s->len && l && !r->st;) {
        size_t begin = i, n = 1;
        uint32_t cp = 0;
        while (i < s->len) {
            n = pn_utf8_decode(s->p + i, s->len - i, &cp);
            if ((cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029)
                break;
            i += n;
        }
        pn_tpl_push(r, l, pn_tpl_sub(r, s, begin, i - begin));
        if (i < s->len)
            i += n + (cp == '\r' && i + 1 < s->len && s->p[i + 1] == '\n');
    }
    return tpl_of_list(l, TPL_LIST);
}

PN_INTERNAL tpl_val pn_tpl_replace(tpl_run *r, tpl_str *s, const tpl_str *a, const tpl_str *b, int64_t max)
{
    tpl_buf out;
    pn_tpl_buf_init(&out);
    size_t from = 0;
    for (int64_t done = 0; !r->st && (max < 0 || done < max); done++) {
        if (!a->len) {                  /* in front of every character and at the end */
            pn_tpl_buf_sub(r, &out, b, 0, b->len);
            if (from >= s->len)
                return pn_tpl_buf_str(r, &out);
            uint32_t cp;
            size_t n = pn_utf8_decode(s->p + from, s->len - from, &cp);
            pn_tpl_buf_sub(r, &out, s, from, n);
            from += n;
            pn_tpl_charge(r, 1);
            continue;
        }
        int64_t at = pn_tpl_find(r, s, from, a);
        if (at < 0)
            break;
        pn_tpl_buf_sub(r, &out, s, from, (size_t)at - from);
        pn_tpl_buf_sub(r, &out, b, 0, b->len);
        pn_tpl_charge(r, 2);
        from = (size_t)at + a->len;
    }
    if (!from && a->len)
        return tpl_of_str(s);
    pn_tpl_buf_sub(r, &out, s, from, s->len - from);
    return pn_tpl_buf_str(r, &out);
}

static tpl_val tplm_join(tpl_run *r, const tpl_str *sep, tpl_val seq)
{
    tpl_list *l = pn_tpl_iter(r, seq);
    tpl_buf b;
    pn_tpl_buf_init(&b);
    for (uint32_t i = 0; l && i < l->n && !r->st; i++) {
        if (l->v[i].type != TPL_STR)
            return pn_tpl_fail(r, "join: expected strings, found %s", pn_tpl_type_name(l->v[i]));
        if (i)
            pn_tpl_buf_sub(r, &b, sep, 0, sep->len);
        pn_tpl_buf_sub(r, &b, l->v[i].u.s, 0, l->v[i].u.s->len);
        pn_tpl_charge(r, 1);
    }
    return pn_tpl_buf_str(r, &b);
}

/* startswith, endswith: one string or a tuple of them. */
static bool tplm_affix(tpl_run *r, const tpl_str *s, tpl_val of, bool end)
{
    if (tpl_is_list(of)) {
        for (uint32_t i = 0; i < of.u.l->n && pn_tpl_charge(r, 1); i++)
            if (of.u.l->v[i].type == TPL_STR && tplm_affix(r, s, of.u.l->v[i], end))
                return true;
        return false;
    }
    tpl_str *a = tplm_str(r, end ? "endswith" : "startswith", of);
    return a && a->len <= s->len && memcmp(s->p + (end ? s->len - a->len : 0), a->p, a->len) == 0;
}

static tpl_val tplm_count(tpl_run *r, const tpl_str *s, const tpl_str *of)
{
    int64_t n = 0, at = 0;
    if (!of->len)
        return tpl_int((int64_t)pn_tpl_chars((tpl_str *)(uintptr_t)s) + 1, false);
    while ((at = pn_tpl_find(r, s, (size_t)at, of)) >= 0) {
        n++;
        at += of->len;
    }
    return tpl_int(n, false);
}

static tpl_val tplm_find(tpl_run *r, tpl_str *s, const tpl_str *of, bool from_right)
{
    int64_t at = from_right ? tplm_rfind(r, s, s->len, of) : pn_tpl_find(r, s, 0, of);
    if (at < 0)
        return tpl_int(-1, true);
    tpl_str head = {s->p, NULL, (uint32_t)at, UINT32_MAX, false};
    return tpl_int(pn_tpl_chars(&head), false);
}

static tpl_val tplm_fill(tpl_run *r, tpl_str *s, int64_t width, char kind)
{
    tpl_buf b;
    int64_t pad = width - (int64_t)pn_tpl_chars(s), left;
    pn_tpl_buf_init(&b);
    if (pad <= 0)
        return tpl_of_str(s);
    left = kind == 'l' ? 0 : kind == 'c' ? pad / 2 + (pad & width & 1) : pad;
    size_t sign = kind == 'z' && s->len && (s->p[0] == '-' || s->p[0] == '+');
    pn_tpl_buf_sub(r, &b, s, 0, sign);
    for (int64_t i = 0; i < left && pn_tpl_charge(r, 1); i++)
        pn_tpl_buf_add(r, &b, kind == 'z' ? "0" : " ", 1, false);
    pn_tpl_buf_sub(r, &b, s, sign, s->len - sign);
    for (int64_t i = left; i < pad && pn_tpl_charge(r, 1); i++)
        pn_tpl_buf_add(r, &b, " ", 1, false);
    return pn_tpl_buf_str(r, &b);
}

static tpl_val tplm_partition(tpl_run *r, tpl_str *s, tpl_str *sep, bool from_right)
{
    tpl_list *l = pn_tpl_list(r, 3);
    int64_t at = !sep->len ? -1 : from_right ? tplm_rfind(r, s, s->len, sep) : pn_tpl_find(r, s, 0, sep);
    size_t a = at >= 0 ? (size_t)at : from_right ? 0 : s->len, n = at >= 0 ? sep->len : 0;
    pn_tpl_push(r, l, pn_tpl_sub(r, s, 0, a));
    pn_tpl_push(r, l, pn_tpl_sub(r, s, a, n));
    pn_tpl_push(r, l, pn_tpl_sub(r, s, a + n, s->len - a - n));
    return tpl_of_list(l, TPL_TUPLE);
}

/* ------------------------------------------------------------------------------------------
 * Methods of strings
 * ------------------------------------------------------------------------------------------ */

enum {
    TPLM_STRIP, TPLM_LSTRIP, TPLM_RSTRIP, TPLM_SPLIT, TPLM_RSPLIT, TPLM_SPLITLINES, TPLM_STARTSWITH, TPLM_ENDSWITH,
    TPLM_REPLACE, TPLM_UPPER, TPLM_LOWER, TPLM_TITLE, TPLM_CAPITALIZE, TPLM_FIND, TPLM_RFIND, TPLM_INDEX, TPLM_COUNT, TPLM_JOIN,
    TPLM_FORMAT, TPLM_ISDIGIT, TPLM_ISALPHA, TPLM_ISALNUM, TPLM_ISSPACE, TPLM_ISUPPER, TPLM_ISLOWER, TPLM_ZFILL,
    TPLM_LJUST, TPLM_RJUST, TPLM_CENTER, TPLM_PARTITION, TPLM_RPARTITION, TPLM_REMOVEPREFIX, TPLM_REMOVESUFFIX,
    TPLM_STR_END,
    TPLM_GET = 100, TPLM_ITEMS, TPLM_KEYS, TPLM_VALUES, TPLM_POP, TPLM_UPDATE, TPLM_SETDEFAULT, TPLM_COPY,
    TPLM_DICT_END,
    TPLM_APPEND = 200, TPLM_LPOP, TPLM_INSERT, TPLM_EXTEND, TPLM_LINDEX, TPLM_LCOUNT, TPLM_REVERSE, TPLM_SORT, TPLM_LCOPY,
    TPLM_REMOVE, TPLM_CLEAR, TPLM_LIST_END,
    TPLM_CYCLE = 300, TPLM_CHANGED, TPLM_LOOP_END,
    TPLM_NEXT = 400, TPLM_RESET, TPLM_CYCLER_END
};

static const char *const tplm_str_names[] = {
    "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "startswith", "endswith", "replace", "upper", "lower",
    "title", "capitalize", "find", "rfind", "index", "count", "join", "format", "isdigit", "isalpha", "isalnum", "isspace",
    "isupper", "islower", "zfill", "ljust", "rjust", "center", "partition", "rpartition", "removeprefix", "removesuffix"};
static const char *const tplm_dict_names[] = {"get", "items", "keys", "values", "pop", "update", "setdefault", "copy"};
static const char *const tplm_list_names[] = {"append", "pop", "insert", "extend", "index", "count", "reverse", "sort",
                                              "copy", "remove", "clear"};
static const char *const tplm_loop_names[] = {"cycle", "changed"};
static const char *const tplm_cycler_names[] = {"next", "reset"};

static uint16_t tplm_named(const char *const *names, size_t n, unsigned base, const tpl_str *name)
{
    for (size_t i = 0; i < n; i++)
        if (names[i][0] == (name->len ? name->p[0] : 0) && pn_tpl_is_z(name, names[i]))
            return (uint16_t)(base + i);
    return TPL_NOT_FOUND;
}

PN_INTERNAL uint16_t pn_tpl_method_find(tpl_val self, const tpl_str *name)
{
    switch (self.type) {
    case TPL_STR: return tplm_named(tplm_str_names, PN_COUNT_OF(tplm_str_names), TPLM_STRIP, name);
    case TPL_DICT: return tplm_named(tplm_dict_names, PN_COUNT_OF(tplm_dict_names), TPLM_GET, name);
    case TPL_LIST: return tplm_named(tplm_list_names, PN_COUNT_OF(tplm_list_names), TPLM_APPEND, name);
    case TPL_TUPLE: {
        uint16_t id = tplm_named(tplm_list_names, PN_COUNT_OF(tplm_list_names), TPLM_APPEND, name);
        return id == TPLM_LINDEX || id == TPLM_LCOUNT ? id : TPL_NOT_FOUND;
    }
    case TPL_LOOP: return tplm_named(tplm_loop_names, PN_COUNT_OF(tplm_loop_names), TPLM_CYCLE, name);
    case TPL_CYCLER: return tplm_named(tplm_cycler_names, PN_COUNT_OF(tplm_cycler_names), TPLM_NEXT, name);
    default: return TPL_NOT_FOUND;
    }
}

static tpl_val tplm_edge(tpl_run *r, const tpl_str *s, const tpl_str *cut, bool end)
{
    bool has = cut->len <= s->len && memcmp(s->p + (end ? s->len - cut->len : 0), cut->p, cut->len) == 0;
    return pn_tpl_sub(r, s, has && !end ? cut->len : 0, has ? s->len - cut->len : s->len);
}

/* Those with one string as argument. */
static tpl_val tplm_str_one(tpl_run *r, tpl_str *s, uint16_t id, const char *what, tpl_val arg)
{
    tpl_str *of = tplm_str(r, what, arg);
    if (r->st || !of)
        return pn_tpl_fail(r, "%s: expected a string", what);
    switch (id) {
    case TPLM_FIND: case TPLM_RFIND: return tplm_find(r, s, of, id == TPLM_RFIND);
    case TPLM_INDEX: {
        tpl_val v = tplm_find(r, s, of, false);
        return v.u.i < 0 ? pn_tpl_fail(r, "index: substring not found") : v;
    }
    case TPLM_COUNT: return tplm_count(r, s, of);
    case TPLM_PARTITION: case TPLM_RPARTITION: return tplm_partition(r, s, of, id == TPLM_RPARTITION);
    default: return tplm_edge(r, s, of, id == TPLM_REMOVESUFFIX);
    }
}

static tpl_val tplm_str_call(tpl_run *r, tpl_str *s, uint16_t id, const tpl_args *args)
{
    static const char kinds[] = "dansul";
    const char *what = tplm_str_names[id];
    tpl_val a[3];
    if (id == TPLM_FORMAT)
        return pn_tpl_format(r, s, args);
    if (!pn_tpl_bind(r, what, args,
                     id == TPLM_SPLIT || id == TPLM_RSPLIT ? "sep,maxsplit" : id == TPLM_REPLACE ? "old,new,count" : "", 0, a, 3))
        return tpl_undef();
    switch (id) {
    case TPLM_STRIP: case TPLM_LSTRIP: case TPLM_RSTRIP:
        return pn_tpl_strip(r, s, tplm_str(r, what, a[0]), id != TPLM_RSTRIP, id != TPLM_LSTRIP);
    case TPLM_SPLIT: case TPLM_RSPLIT:
        return pn_tpl_split(r, s, tplm_str(r, what, a[0]), tplm_int(r, what, a[1], -1), id == TPLM_RSPLIT);
    case TPLM_SPLITLINES: return pn_tpl_lines(r, s);
    case TPLM_STARTSWITH: case TPLM_ENDSWITH:
        return tpl_given(a[0]) ? tpl_bool(tplm_affix(r, s, a[0], id == TPLM_ENDSWITH))
                               : pn_tpl_fail(r, "%s: an argument is missing", what);
    case TPLM_REPLACE: {
        tpl_str *from = tplm_str(r, what, a[0]), *to = tplm_str(r, what, a[1]);
        return from && to ? pn_tpl_replace(r, s, from, to, tplm_int(r, what, a[2], -1))
                          : pn_tpl_fail(r, "replace: expected two strings");
    }
    case TPLM_UPPER: return pn_tpl_upper(r, s);
    case TPLM_LOWER: return pn_tpl_lower(r, s);
    case TPLM_TITLE: return tplm_title(r, s);
    case TPLM_CAPITALIZE: return pn_tpl_capitalize(r, s);
    case TPLM_JOIN: return tpl_given(a[0]) ? tplm_join(r, s, a[0]) : pn_tpl_fail(r, "join: an argument is missing");
    case TPLM_ISDIGIT: case TPLM_ISALPHA: case TPLM_ISALNUM: case TPLM_ISSPACE: case TPLM_ISUPPER: case TPLM_ISLOWER:
        return tpl_bool(tplm_all(r, s, kinds[id - TPLM_ISDIGIT]));
    case TPLM_ZFILL: return tplm_fill(r, s, tplm_int(r, what, a[0], 0), 'z');
    case TPLM_LJUST: return tplm_fill(r, s, tplm_int(r, what, a[0], 0), 'l');
    case TPLM_RJUST: return tplm_fill(r, s, tplm_int(r, what, a[0], 0), 'r');
    case TPLM_CENTER: return tplm_fill(r, s, tplm_int(r, what, a[0], 0), 'c');
    default: return tplm_str_one(r, s, id, what, a[0]);
    }
}

/* ------------------------------------------------------------------------------------------
 * Methods of dicts, lists, loops
 * ------------------------------------------------------------------------------------------ */

static void tplm_update(tpl_run *r, tpl_dict *d, const tpl_args *args)
{
    if (args->n && args->pos[0].type == TPL_DICT) {
        const tpl_dict *o = args->pos[0].u.d;
        for (uint32_t i = 0, n = o->n; i < n && !r->st; i++)
            pn_tpl_dict_set(r, d, o->e[i].k, o->e[i].v);
    } else if (args->n) {
        tpl_list *l = pn_tpl_iter(r, args->pos[0]);
        for (uint32_t i = 0; l && i < l->n && !r->st; i++) {
            if (!tpl_is_list(l->v[i]) || l->v[i].u.l->n != 2)
                pn_tpl_fail(r, "update: expected a dict or pairs");
            else
                pn_tpl_dict_set(r, d, l->v[i].u.l->v[0], l->v[i].u.l->v[1]);
        }
    }
    for (uint32_t i = 0; i < args->n_kw && !r->st; i++)
        pn_tpl_dict_set(r, d, tpl_of_str((tpl_str *)(uintptr_t)args->kw[i].name), args->kw[i].v);
}

static tpl_val tplm_dict_call(tpl_run *r, tpl_val self, uint16_t id, const tpl_args *args)
{
    tpl_dict *d = self.u.d;
    const char *what = tplm_dict_names[id - TPLM_GET];
    tpl_val a[2], *found, v;
    if (id == TPLM_UPDATE) {
        tplm_update(r, d, args);
        return tpl_none();
    }
    bool keyed = id == TPLM_GET || id == TPLM_POP || id == TPLM_SETDEFAULT;
    if (!pn_tpl_bind(r, what, args, "key,default", keyed, a, 2))
        return tpl_undef();
    found = keyed ? pn_tpl_dict_get(r, d, a[0]) : NULL;
    switch (id) {
    case TPLM_GET: return found ? *found : tpl_given(a[1]) ? a[1] : tpl_none();
    case TPLM_POP:
        if (!found)
            return tpl_given(a[1]) ? a[1] : pn_tpl_fail(r, "pop: there is no such key");
        v = *found;
        pn_tpl_dict_remove(r, d, a[0]);
        return v;
    case TPLM_SETDEFAULT:
        if (found)
            return *found;
        v = tpl_given(a[1]) ? a[1] : tpl_none();
        pn_tpl_dict_set(r, d, a[0], v);
        return v;
    case TPLM_ITEMS: return pn_tpl_dict_items(r, d);
    case TPLM_KEYS: return tpl_of_list(pn_tpl_iter(r, self), TPL_LIST);
    case TPLM_VALUES: {
        tpl_list *l = pn_tpl_list(r, d->n);
        for (uint32_t i = 0; l && i < d->n; i++)
            pn_tpl_push(r, l, d->e[i].v);
        return tpl_of_list(l, TPL_LIST);
    }
    default: {
        tpl_dict *c = pn_tpl_dict(r);
        for (uint32_t i = 0; c && i < d->n && !r->st; i++)
            pn_tpl_dict_set(r, c, d->e[i].k, d->e[i].v);
        v = tpl_of_dict(c, TPL_DICT);
        v.trust = self.trust;
        return v;
    }
    }
}

static tpl_val tplm_list_pop(tpl_run *r, tpl_list *l, int64_t i)
{
    if (i < 0)
        i += l->n;
    if (i < 0 || i >= l->n)
        return pn_tpl_fail(r, "pop: index out of range");
    tpl_val v = l->v[i];
    pn_tpl_charge(r, (l->n - (uint64_t)i) / 16);
    memmove(l->v + i, l->v + i + 1, (size_t)(l->n - 1 - i) * sizeof v);
    l->n--;
    return v;
}

static void tplm_list_insert(tpl_run *r, tpl_list *l, int64_t i, tpl_val v)
{
    if (i < 0)
        i = i + l->n < 0 ? 0 : i + l->n;
    if (i > l->n)
        i = l->n;
    if (!pn_tpl_push(r, l, v) || !pn_tpl_charge(r, (l->n - (uint64_t)i) / 16))
        return;
    memmove(l->v + i + 1, l->v + i, (size_t)(l->n - 1 - i) * sizeof v);
    l->v[i] = v;
}

static int64_t tplm_list_index(tpl_run *r, tpl_list *l, tpl_val v)
{
    for (uint32_t i = 0; i < l->n && !r->st; i++)
        if (pn_tpl_equal(r, l->v[i], v))
            return i;
    return -1;
}

static tpl_val tplm_list_call(tpl_run *r, tpl_val self, uint16_t id, const tpl_args *args)
{
    tpl_list *l = self.u.l, *other;
    const char *what = tplm_list_names[id - TPLM_APPEND];
    tpl_val a[2];
    int64_t i, n = 0;
    bool one = id == TPLM_APPEND || id == TPLM_INSERT || id == TPLM_EXTEND || id == TPLM_LINDEX || id == TPLM_LCOUNT || id == TPLM_REMOVE;
    if (!pn_tpl_bind(r, what, args, id == TPLM_SORT ? "key,reverse" : "a,b", one ? 1 + (id == TPLM_INSERT) : 0, a, 2))
        return tpl_undef();
    switch (id) {
    case TPLM_APPEND: pn_tpl_push(r, l, a[0]); break;
    case TPLM_LPOP: return tplm_list_pop(r, l, tplm_int(r, what, a[0], -1));
    case TPLM_INSERT: tplm_list_insert(r, l, tplm_int(r, what, a[0], 0), a[1]); break;
    case TPLM_EXTEND:
        other = pn_tpl_iter(r, a[0]);
        for (uint32_t k = 0, m = other ? other->n : 0; k < m && !r->st; k++)
            pn_tpl_push(r, l, other->v[k]);
        break;
    case TPLM_LINDEX:
        i = tplm_list_index(r, l, a[0]);
        return i < 0 ? pn_tpl_fail(r, "index: the value is not in the list") : tpl_int(i, true);
    case TPLM_LCOUNT:
        for (uint32_t k = 0; k < l->n && !r->st; k++)
            n += pn_tpl_equal(r, l->v[k], a[0]);
        return tpl_int(n, true);
    case TPLM_REVERSE: tplm_reverse(l); pn_tpl_charge(r, l->n); break;
    case TPLM_SORT: {
        tpl_val s = pn_tpl_sort(r, l, tpl_absent(), false, tpl_given(a[1]) && pn_tpl_truth(a[1]));
        if (!r->st)
            memcpy(l->v, s.u.l->v, l->n * sizeof *l->v);
        break;
    }
    case TPLM_REMOVE:
        i = tplm_list_index(r, l, a[0]);
        if (i < 0)
            return pn_tpl_fail(r, "remove: the value is not in the list");
        tplm_list_pop(r, l, i);
        break;
    case TPLM_CLEAR: l->n = 0; break;
    default:
        other = pn_tpl_list(r, l->n);
        for (uint32_t k = 0; other && k < l->n; k++)
            pn_tpl_push(r, other, l->v[k]);
        return tpl_of_list(other, TPL_LIST);
    }
    return tpl_none();
}

static tpl_val tplm_loop_call(tpl_run *r, tpl_loop *l, uint16_t id, const tpl_args *args)
{
    if (id == TPLM_CYCLE)
        return args->n ? args->pos[l->index % args->n] : pn_tpl_fail(r, "cycle: no arguments");
    tpl_list *now = pn_tpl_list(r, args->n);
    for (uint32_t i = 0; now && i < args->n; i++)
        pn_tpl_push(r, now, args->pos[i]);
    tpl_val v = tpl_of_list(now, TPL_TUPLE);
    bool changed = !tpl_given(l->changed) || !pn_tpl_equal(r, l->changed, v);
    if (!r->st)
        l->changed = v;
    return tpl_bool(changed);
}

PN_INTERNAL tpl_val pn_tpl_method_call(tpl_run *r, tpl_val self, uint16_t id, const tpl_args *args)
{
    tpl_list *l = self.u.l;
    if (r->st)
        return tpl_undef();
    if (id < TPLM_STR_END)
        return tplm_str_call(r, self.u.s, id, args);
    if (id >= TPLM_GET && id < TPLM_DICT_END)
        return tplm_dict_call(r, self, id, args);
    if (id >= TPLM_APPEND && id < TPLM_LIST_END)
        return tplm_list_call(r, self, id, args);
    if (id >= TPLM_CYCLE && id < TPLM_LOOP_END)
        return tplm_loop_call(r, self.u.loop, id, args);
    if (id == TPLM_RESET || !l->n) {
        l->pos = 0;
        return tpl_none();
    }
    tpl_val v = l->v[l->pos];
    l->pos = (l->pos + 1) % l->n;
    return v;
}

/* ------------------------------------------------------------------------------------------
 * Functions everybody has
 * ------------------------------------------------------------------------------------------ */

enum { TPLM_G_RANGE, TPLM_G_NAMESPACE, TPLM_G_DICT, TPLM_G_RAISE, TPLM_G_STRFTIME, TPLM_G_JOINER, TPLM_G_CYCLER };
static const char *const tplm_globals[] = {"range", "namespace", "dict", "raise_exception", "strftime_now", "joiner", "cycler"};

PN_INTERNAL uint16_t pn_tpl_global_find(const tpl_str *name)
{
    return tplm_named(tplm_globals, PN_COUNT_OF(tplm_globals), 0, name);
}

static tpl_val tplm_range(tpl_run *r, const tpl_args *args)
{
    tpl_val a[3];
    if (!pn_tpl_bind(r, "range", args, "", 1, a, 3))
        return tpl_undef();
    int64_t start = tplm_int(r, "range", a[0], 0), stop = start, step = tplm_int(r, "range", a[2], 1);
    if (tpl_given(a[1]))
        stop = tplm_int(r, "range", a[1], 0);
    else
        start = 0;
    if (step == 0)
        return pn_tpl_fail(r, "range: the step is zero");
    bool trust = a[0].trust && (!tpl_given(a[1]) || a[1].trust) && (!tpl_given(a[2]) || a[2].trust);
    tpl_list *l = pn_tpl_list(r, 0);
    for (int64_t i = start; l && !r->st && (step > 0 ? i < stop : i > stop);) {
        if (l->n >= TPL_MAX_RANGE)
            return pn_tpl_fail(r, "limit reached: range of more than %d", (int)TPL_MAX_RANGE);
        pn_tpl_push(r, l, tpl_int(i, trust));
        if (step > 0 ? i > INT64_MAX - step : i < INT64_MIN - step)
            break;
        i += step;
    }
    return tpl_of_list(l, TPL_LIST);
}

static tpl_val tplm_raise(tpl_run *r, const tpl_args *args)
{
    tpl_str *s = args->n ? pn_tpl_string(r, args->pos[0]) : NULL;
    if (!r->st)                         /* the template's own words, nothing in front */
        r->st = pn_fail(r->err, PN_E_INVALID, "%.*s", s ? (int)PN_MIN(s->len, 500u) : 9, s ? s->p : "exception");
    return tpl_undef();
}

PN_INTERNAL tpl_val pn_tpl_global_call(tpl_run *r, uint16_t id, const tpl_args *args)
{
    tpl_val a[1];
    tpl_list *l;
    tpl_dict *d;
    switch (id) {
    case TPLM_G_RANGE: return tplm_range(r, args);
    case TPLM_G_NAMESPACE: case TPLM_G_DICT:
        d = pn_tpl_dict(r);
        if (d)
            tplm_update(r, d, args);
        return tpl_of_dict(d, id == TPLM_G_DICT ? TPL_DICT : TPL_NS);
    case TPLM_G_RAISE: return tplm_raise(r, args);
    case TPLM_G_STRFTIME: {
        if (!pn_tpl_bind(r, "strftime_now", args, "format", 1, a, 1))
            return tpl_undef();
        tpl_str *fmt = tplm_str(r, "strftime_now", a[0]);
        return fmt ? pn_tpl_strftime(r, fmt) : pn_tpl_fail(r, "strftime_now: expected a string");
    }
    case TPLM_G_JOINER:
        if (!pn_tpl_bind(r, "joiner", args, "sep", 0, a, 1))
            return tpl_undef();
        l = pn_tpl_list(r, 1);
        pn_tpl_push(r, l, tpl_given(a[0]) ? a[0] : pn_tpl_text(r, ", "));
        return tpl_of_list(l, TPL_JOINER);
    default:
        l = pn_tpl_list(r, args->n);
        for (uint32_t i = 0; l && i < args->n; i++)
            pn_tpl_push(r, l, args->pos[i]);
        return tpl_of_list(l, TPL_CYCLER);
    }
}
