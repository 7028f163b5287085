/* SPDX-License-Identifier: AGPL-3.0-only */
#include "base/pn_str.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

PN_INTERNAL void pn_str_init(pn_str *s, pn_mem *mem, pn_account account)
{
    *s = (pn_str){.mem = mem, .account = account};
}

PN_INTERNAL void pn_str_fini(pn_str *s)
{
    if (s->data)
        pn_mem_free(s->mem, s->account, s->data, s->cap);
    s->data = NULL;
    s->len = s->cap = 0;
    s->failed = false;
}

PN_INTERNAL void pn_str_clear(pn_str *s)
{
    s->len = 0;
    s->failed = false;
    if (s->data)
        s->data[0] = 0;
}

/* Room for n more bytes and the NUL. */
PN_INTERNAL bool pn_str_reserve(pn_str *s, size_t n)
{
    if (s->failed)
        return false;
    if (n > SIZE_MAX - 1 - s->len ||
        !pn_mem_grow(s->mem, s->account, (void **)&s->data, &s->cap, s->len + n + 1, 1)) {
        s->failed = true;
        return false;
    }
    return true;
}

PN_INTERNAL void pn_str_add(pn_str *s, const void *bytes, size_t n)
{
    if (!pn_str_reserve(s, n))
        return;
    if (n)
        memcpy(s->data + s->len, bytes, n);
    s->len += n;
    s->data[s->len] = 0;
}

PN_INTERNAL void pn_str_addz(pn_str *s, const char *text) { pn_str_add(s, text, strlen(text)); }

PN_INTERNAL void pn_str_addc(pn_str *s, char c) { pn_str_add(s, &c, 1); }

PN_INTERNAL void pn_str_addf(pn_str *s, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    if (n >= 0 && pn_str_reserve(s, (size_t)n)) {
        vsnprintf(s->data + s->len, (size_t)n + 1, fmt, again);
        s->len += (size_t)n;
    }
    va_end(again);
    va_end(ap);
}

PN_INTERNAL const char *pn_str_cstr(const pn_str *s) { return s->data ? s->data : ""; }

/* Digits are gathered as an integer and scaled once: exact up to 2^53 and 10^22, within an ulp or
 * two beyond, and free of the process's locale (strtod reads "1,5" in some). */
PN_INTERNAL bool pn_parse_f64(const char *s, const char *stop, double *out, const char **end)
{
    const char *p = s;
    bool neg = false, any = false;
    if (p < stop && (*p == '-' || *p == '+'))
        neg = *p++ == '-';
    double v = 0;
    int exp10 = 0;
    for (; p < stop && *p >= '0' && *p <= '9'; p++, any = true)
        v = v * 10 + (*p - '0');
    if (p < stop && *p == '.')
        for (p++; p < stop && *p >= '0' && *p <= '9'; p++, any = true) {
            if (v < 9e15) {
                v = v * 10 + (*p - '0');
                exp10--;
            }
        }
    if (!any)
        return false;
    if (p < stop && (*p == 'e' || *p == 'E')) {
        const char *q = p + 1;
        bool eneg = false;
        int e = 0;
        if (q < stop && (*q == '-' || *q == '+'))
            eneg = *q++ == '-';
        if (q < stop && *q >= '0' && *q <= '9') {
            for (; q < stop && *q >= '0' && *q <= '9'; q++)
                if (e < 100000)
                    e = e * 10 + (*q - '0');
            exp10 += eneg ? -e : e;
            p = q;
        }
    }
    if (v != 0 && exp10) {
        if (exp10 > 400)
            v = HUGE_VAL;
        else if (exp10 < -400)
            v = 0;
        else {
            double scale = 1, base = 10;
            for (int k = exp10 < 0 ? -exp10 : exp10; k; k >>= 1, base *= base)
                if (k & 1)
                    scale *= base;
            v = exp10 < 0 ? v / scale : v * scale;
        }
    }
    *out = neg ? -v : v;
    if (end)
        *end = p;
    return true;
}

PN_INTERNAL bool pn_parse_i64(const char *s, int64_t lo, int64_t hi, int64_t *out)
{
    bool neg = *s == '-';
    if (*s == '-' || *s == '+')
        s++;
    if (*s < '0' || *s > '9')
        return false;
    uint64_t v = 0, max = neg ? (uint64_t)INT64_MAX + 1 : (uint64_t)INT64_MAX;
    for (; *s >= '0' && *s <= '9'; s++) {
        unsigned d = (unsigned)(*s - '0');
        if (v > (max - d) / 10)
            return false;
        v = v * 10 + d;
    }
    if (*s)
        return false;
    int64_t r = neg ? (int64_t)(0 - v) : (int64_t)v;
    if (r < lo || r > hi)
        return false;
    *out = r;
    return true;
}

PN_INTERNAL bool pn_parse_size(const char *s, uint64_t *out)
{
    const char *end, *stop = s + strlen(s);
    double v;
    if (*s < '0' || *s > '9' || !pn_parse_f64(s, stop, &v, &end))
        return false;
    int shift = 0;
    switch (*end) {
    case 0: break;
    case 'K': case 'k': shift = 10, end++; break;
    case 'M': case 'm': shift = 20, end++; break;
    case 'G': case 'g': shift = 30, end++; break;
    case 'T': case 't': shift = 40, end++; break;
    default: return false;
    }
    if (*end == 'i')
        end++;
    if (*end == 'B')
        end++;
    if (*end)
        return false;
    v *= (double)((uint64_t)1 << shift);
    if (!(v < 9.2e18))
        return false;
    *out = (uint64_t)v;
    return true;
}
