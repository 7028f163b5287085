/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_out.c - numbers and strangers' texts made readable; JSON members.
 */
#include "cli/pn_cli.h"

#ifdef PANTHEON_CLI

#include "base/pn_json.h"
#include "base/pn_utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

PN_INTERNAL pn_human pn_out_bytes(uint64_t n)
{
    static const char units[][4] = {"KiB", "MiB", "GiB", "TiB"};
    pn_human h;
    double v = (double)n / 1024;
    size_t u = 0;
    if (n < 1024) {
        snprintf(h.text, sizeof h.text, "%" PRIu64 " B", n);
        return h;
    }
    for (; v >= 1024 && u + 1 < PN_COUNT_OF(units); u++)
        v /= 1024;
    snprintf(h.text, sizeof h.text, v < 10 ? "%.2f %s" : "%.1f %s", v, units[u]);
    return h;
}

PN_INTERNAL pn_human pn_out_count(uint64_t n)
{
    static const char units[][2] = {"K", "M", "B", "T"};
    pn_human h;
    double v = (double)n / 1000;
    size_t u = 0;
    if (n < 1000) {
        snprintf(h.text, sizeof h.text, "%" PRIu64, n);
        return h;
    }
    for (; v >= 1000 && u + 1 < PN_COUNT_OF(units); u++)
        v /= 1000;
    snprintf(h.text, sizeof h.text, "%.2f %s", v, units[u]);
    return h;
}

PN_INTERNAL void pn_out_safe(pn_str *out, const char *text, size_t len, size_t width)
{
    size_t shown = 0;
    for (size_t i = 0; i < len; shown++) {
        uint32_t cp;
        size_t n = pn_utf8_decode(text + i, len - i, &cp);
        if (shown == width) {
            pn_str_addz(out, "...");
            return;
        }
        if (cp == '\n')
            pn_str_addz(out, "\\n");
        else if (cp == '\t')
            pn_str_addz(out, "\\t");
        else if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || (cp == PN_UTF8_BAD && n == 1) ||
                 (cp >= 0x202a && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069))
            pn_str_addc(out, '?');      /* the last two: text direction, which can disguise a line */
        else
            pn_str_add(out, text + i, n);
        i += n;
    }
}

PN_INTERNAL void pn_out_json_u64(pn_str *s, const char *key, uint64_t v)
{
    pn_json_key(s, key);
    pn_json_write_u64(s, v);
}

PN_INTERNAL void pn_out_json_real(pn_str *s, const char *key, double v)
{
    pn_json_key(s, key);
    pn_json_write_f64(s, v);
}

PN_INTERNAL void pn_out_json_text(pn_str *s, const char *key, const char *v)
{
    pn_json_key(s, key);
    pn_json_write_strz(s, v);
}

PN_INTERNAL void pn_out_json_bool(pn_str *s, const char *key, bool v)
{
    pn_json_key(s, key);
    pn_json_write_bool(s, v);
}

PN_INTERNAL int pn_out_print(pn_cli *c, pn_str *s)
{
    if (s->failed)
        return pn_cli_nomem(c);
    fwrite(pn_str_cstr(s), 1, s->len, stdout);
    putchar('\n');
    pn_str_clear(s);
    return pn_cli_flush(c, PN_EXIT_OK);
}

PN_INTERNAL const char *pn_out_basename(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

PN_INTERNAL double pn_out_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif /* PANTHEON_CLI */
