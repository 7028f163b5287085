/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_args.c - the parser behind the flag tables.
 *
 * One flat list of (flag, text) in the order given; look-ups walk it backwards.  A command line
 * holds a few dozen words, so nothing smarter pays.
 */
#include "cli/pn_args.h"

#ifdef PANTHEON_CLI

#include "base/pn_str.h"

#include <stdarg.h>
#include <stdio.h>

static bool args_error(const char *fmt, ...) PN_PRINTF(1, 2);

static bool args_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("pantheon: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    return false;
}

/* --- values ----------------------------------------------------------------------------------- */

PN_INTERNAL bool pn_parse_u64(const char *s, uint64_t *out)
{
    uint64_t v = 0;
    if (!*s)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9')
            return false;
        unsigned d = (unsigned)(*s - '0');
        if (v > (UINT64_MAX - d) / 10)
            return false;
        v = v * 10 + d;
    }
    *out = v;
    return true;
}

/* Is `text` one of the words in "a|b|c"? */
static bool args_word_in(const char *words, const char *text)
{
    size_t n = strlen(text);
    for (const char *w = words; n && *w;) {
        size_t len = strcspn(w, "|");
        if (len == n && memcmp(w, text, n) == 0)
            return true;
        w += len + (w[len] == '|');
    }
    return false;
}

/* Environment only: on a command line a switch has no value.  -1: neither. */
static int args_switch(const char *text)
{
    if (args_word_in("1|true|yes|on", text))
        return 1;
    return args_word_in("0|false|no|off", text) ? 0 : -1;
}

static bool args_real(const char *text, double lo, double hi, double *out)
{
    const char *stop = text + strlen(text), *end;
    return pn_parse_f64(text, stop, out, &end) && end == stop && *out >= lo && *out <= hi;
}

/* "32,512" to numbers; 0: malformed. */
PN_INTERNAL size_t pn_parse_ints(const char *text, double lo, double hi, uint32_t out[PN_FLAG_INTS_MAX])
{
    size_t n = 0;
    for (const char *p = text;;) {
        size_t len = strcspn(p, ",");
        char word[16];
        int64_t v;
        if (len >= sizeof word || n == PN_FLAG_INTS_MAX)
            return 0;
        memcpy(word, p, len);
        word[len] = 0;
        if (!pn_parse_i64(word, (int64_t)lo, (int64_t)hi, &v))
            return 0;
        out[n++] = (uint32_t)v;
        if (!p[len])
            return n;
        p += len + 1;
    }
}

static bool args_time(const char *text, double lo, double hi, double *out)
{
    static const struct { const char *unit; double ms; } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}};
    const char *end;
    if (!pn_parse_f64(text, text + strlen(text), out, &end))
        return false;
    for (size_t i = 0; i < PN_COUNT_OF(units); i++)
        if (strcmp(end, units[i].unit) == 0) {
            *out *= units[i].ms;
            return *out >= lo && *out <= hi;
        }
    return false;
}

static bool args_value_ok(const pn_flag *f, const char *text)
{
    int64_t i;
    uint64_t u;
    double v;
    uint32_t list[PN_FLAG_INTS_MAX];
    switch (f->kind) {
    case PN_FLAG_BOOL: return args_switch(text) >= 0;
    case PN_FLAG_TEXT: return true;
    case PN_FLAG_INT: return pn_parse_i64(text, (int64_t)f->lo, (int64_t)f->hi, &i);
    case PN_FLAG_U64: return pn_parse_u64(text, &u);
    case PN_FLAG_INTS: return pn_parse_ints(text, f->lo, f->hi, list) > 0;
    case PN_FLAG_REAL: return args_real(text, f->lo, f->hi, &v);
    case PN_FLAG_SIZE: return pn_parse_size(text, &u);
    case PN_FLAG_TIME: return args_time(text, f->lo, f->hi, &v);
    case PN_FLAG_CHOICE: return args_word_in(f->arg, text);
    }
    return false;
}

/* What a value may be, for messages. */
static void args_allowed(const pn_flag *f, char *buf, size_t cap)
{
    switch (f->kind) {
    case PN_FLAG_BOOL: snprintf(buf, cap, "1 or 0"); break;
    case PN_FLAG_TEXT: snprintf(buf, cap, "a text"); break;
    case PN_FLAG_INT: snprintf(buf, cap, "a whole number from %.0f to %.0f", f->lo, f->hi); break;
    case PN_FLAG_U64: snprintf(buf, cap, "a whole number from 0 to 18446744073709551615"); break;
    case PN_FLAG_INTS:
        snprintf(buf, cap, "up to %d whole numbers from %.0f to %.0f separated by commas",
                 PN_FLAG_INTS_MAX, f->lo, f->hi);
        break;
    case PN_FLAG_REAL: snprintf(buf, cap, "a number from %g to %g", f->lo, f->hi); break;
    case PN_FLAG_SIZE: snprintf(buf, cap, "a size such as 512M or 1.5G (K, M, G, T)"); break;
    case PN_FLAG_TIME: snprintf(buf, cap, "a time from %.0fms to %.0fs, such as 500ms, 30s or 5m", f->lo, f->hi / 1000); break;
    case PN_FLAG_CHOICE: snprintf(buf, cap, "one of %s", f->arg); break;
    }
}

/* `who`: the flag or variable as the user wrote it. */
static bool args_check(const pn_flag *f, const char *who, const char *text)
{
    char allowed[160];
    if (args_value_ok(f, text))
        return true;
    args_allowed(f, allowed, sizeof allowed);
    return args_error("%s: '%s' is not allowed: expected %s", who, text, allowed);
}

/* --- the command line ------------------------------------------------------------------------- */

static bool args_add(pn_args *a, const pn_flag *f, const char *text)
{
    if (!pn_mem_grow(a->mem, PN_ACCT_MISC, (void **)&a->list, &a->cap, a->n + 1, sizeof *a->list))
        return args_error("out of memory for the arguments");
    a->list[a->n].flag = f;
    a->list[a->n++].text = text;
    return true;
}

static const pn_flag *args_long(const pn_flag *flags, const char *name, size_t len)
{
    for (const pn_flag *f = flags; f->name; f++) {
        if (strlen(f->name) == len && memcmp(f->name, name, len) == 0)
            return f;
        if (f->alias && strlen(f->alias) == len && memcmp(f->alias, name, len) == 0)
            return f;
    }
    return NULL;
}

static const pn_flag *args_short(const pn_flag *flags, char letter)
{
    for (const pn_flag *f = flags; f->name; f++)
        if (f->letter == letter)
            return f;
    return NULL;
}

/* argv[*i] is a flag: take it and, when it has one, its value. */
static bool args_take(pn_args *a, int argc, char **argv, int *i)
{
    const char *word = argv[*i], *value = NULL;
    const pn_flag *f;
    char who[64];
    if (word[1] == '-') {
        size_t len = strcspn(word + 2, "=");
        value = word[2 + len] == '=' ? word + 2 + len + 1 : NULL;
        f = args_long(a->cmd->flags, word + 2, len);
        snprintf(who, sizeof who, "%.*s", (int)PN_MIN(len + 2, sizeof who - 1), word);
    } else {
        f = word[2] ? NULL : args_short(a->cmd->flags, word[1]);
        snprintf(who, sizeof who, "%.60s", word);
    }
    if (!f)
        return args_error("unknown flag %s: 'pantheon %s --help' lists those allowed", who, a->cmd->name);
    if (f->kind == PN_FLAG_BOOL)
        return value ? args_error("%s: '%s' is not allowed: this flag takes no value", who, value)
                     : args_add(a, f, "1");
    if (!value) {
        if (*i + 1 >= argc) {
            char allowed[160];
            args_allowed(f, allowed, sizeof allowed);
            return args_error("%s: a value is missing: expected %s", who, allowed);
        }
        value = argv[++*i];
    }
    return args_check(f, who, value) && args_add(a, f, value);
}

static size_t args_count_pos(const pn_args *a)
{
    size_t n = 0;
    for (size_t i = 0; i < a->n; i++)
        n += a->list[i].flag == NULL;
    return n;
}

PN_INTERNAL bool pn_args_parse(pn_args *a, pn_mem *mem, const pn_cmd *cmd, int argc, char **argv)
{
    memset(a, 0, sizeof *a);
    a->mem = mem;
    a->cmd = cmd;
    bool flags_ended = false;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            a->help = true;
            return true;
        }
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (!flags_ended && strcmp(word, "--") == 0) {
            flags_ended = true;
        } else if (!flags_ended && word[0] == '-' && word[1]) {
            if (!args_take(a, argc, argv, &i))
                return false;
        } else {
            if (args_count_pos(a) == cmd->max_pos)
                return args_error("'%s' is one word too many: usage: pantheon %s %s", word, cmd->name,
                                  cmd->usage);
            if (!args_add(a, NULL, word))
                return false;
        }
    }
    return true;
}

PN_INTERNAL void pn_args_fini(pn_args *a)
{
    pn_mem_free(a->mem, PN_ACCT_MISC, a->list, a->cap * sizeof *a->list);
    a->list = NULL;
    a->n = a->cap = 0;
}

PN_INTERNAL bool pn_args_complete(const pn_args *a)
{
    if (args_count_pos(a) >= a->cmd->min_pos)
        return true;
    return args_error("an argument is missing: usage: pantheon %s %s", a->cmd->name, a->cmd->usage);
}

/* --- the environment -------------------------------------------------------------------------- */

/* Does VAR (after "PN_") name `flag`?  --mem-limit is MEM_LIMIT. */
static bool args_env_is(const char *var, size_t len, const char *flag)
{
    if (!flag || strlen(flag) != len)
        return false;
    for (size_t i = 0; i < len; i++) {
        char c = flag[i];
        c = c == '-' ? '_' : c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
        if (c != var[i])
            return false;
    }
    return true;
}

static const pn_flag *args_env_find(const pn_flag *flags, const char *var, size_t len)
{
    for (const pn_flag *f = flags; f->name; f++)
        if (args_env_is(var, len, f->name) || args_env_is(var, len, f->alias))
            return f;
    return NULL;
}

static bool args_env_known(const pn_cmd *const *cmds, size_t n, const char *var, size_t len)
{
    if ((len == 3 && memcmp(var, "CPU", 3) == 0) || (len == 8 && memcmp(var, "SIM_DIES", 8) == 0))
        return true;
    for (size_t i = 0; i < n; i++)
        if (args_env_find(cmds[i]->flags, var, len))
            return true;
    return false;
}

/* Values are added after the command line was read, so `given` says whether the flag came from it;
 * PN_CTX and PN_CTX_CAP together are one flag given twice. */
static bool args_env_add(pn_args *a, const pn_flag *f, const char *who, const char *text, size_t given)
{
    if (!args_check(f, who, text))
        return false;
    for (size_t i = 0; i < given; i++)
        if (a->list[i].flag == f)
            return true;
    if (f->kind == PN_FLAG_BOOL)
        text = args_switch(text) ? "1" : "0";
    return args_add(a, f, text);
}

/* Entries [from, n) go before all others. */
static void args_to_front(pn_args *a, size_t from)
{
    for (; from < a->n; from++) {
        pn_arg last = a->list[a->n - 1];
        memmove(a->list + 1, a->list, (a->n - 1) * sizeof *a->list);
        a->list[0] = last;
    }
}

PN_INTERNAL bool pn_args_environment(pn_args *a, const pn_cmd *const *cmds, size_t n, char **environment)
{
    size_t given = a ? a->n : 0;
    for (char **e = environment; e && *e; e++) {
        const char *eq = strchr(*e, '=');
        if (strncmp(*e, "PN_", 3) != 0 || !eq || !eq[1])       /* empty is the same as not set */
            continue;
        const char *var = *e + 3;
        size_t len = (size_t)(eq - var);
        char who[64];
        snprintf(who, sizeof who, "PN_%.*s", (int)PN_MIN(len, sizeof who - 4), var);
        if (!args_env_known(cmds, n, var, len))
            return args_error("%s: unknown variable; known are PN_CPU, PN_SIM_DIES and the flags of the "
                              "commands in capitals (--mem-limit: PN_MEM_LIMIT)", who);
        const pn_flag *f = a ? args_env_find(a->cmd->flags, var, len) : NULL;
        if (f && !args_env_add(a, f, who, eq + 1, given))
            return false;
    }
    if (a)
        args_to_front(a, given);
    return true;
}

/* --- files ------------------------------------------------------------------------------------- */

PN_INTERNAL bool pn_args_check(const pn_args *a, const char *who, const char *key, const char *value)
{
    const pn_flag *f = args_long(a->cmd->flags, key, strlen(key));
    return f ? args_check(f, who, value) : args_error("%s: unknown: 'pantheon %s --help' lists what is allowed", who, a->cmd->name);
}

PN_INTERNAL bool pn_args_default(pn_args *a, const char *who, const char *key, const char *value)
{
    if (!pn_args_check(a, who, key, value))
        return false;
    const pn_flag *f = args_long(a->cmd->flags, key, strlen(key));
    size_t n = a->n;
    if (!args_env_add(a, f, who, value, n))
        return false;
    args_to_front(a, n);
    return true;
}

/* --- look-ups --------------------------------------------------------------------------------- */

static const pn_flag *args_flag(const pn_args *a, const char *name)
{
    const pn_flag *f = args_long(a->cmd->flags, name, strlen(name));
    PN_ASSERT(f);
    return f;
}

static const char *args_last(const pn_args *a, const char *name)
{
    const pn_flag *f = args_flag(a, name);
    for (size_t i = a->n; i-- > 0;)
        if (a->list[i].flag == f)
            return a->list[i].text;
    return NULL;
}

PN_INTERNAL bool pn_args_has(const pn_args *a, const char *name) { return args_last(a, name) != NULL; }

PN_INTERNAL bool pn_args_on(const pn_args *a, const char *name)
{
    const char *t = args_last(a, name);
    return t && *t == '1';
}

PN_INTERNAL const char *pn_args_text(const pn_args *a, const char *name, const char *fallback)
{
    const char *t = args_last(a, name);
    return t ? t : fallback;
}

PN_INTERNAL const char *pn_args_nth(const pn_args *a, const char *name, size_t i)
{
    const pn_flag *f = args_flag(a, name);
    for (size_t k = 0; k < a->n; k++)
        if (a->list[k].flag == f && i-- == 0)
            return a->list[k].text;
    return NULL;
}

PN_INTERNAL int64_t pn_args_int(const pn_args *a, const char *name, int64_t fallback)
{
    const char *t = args_last(a, name);
    if (t)
        pn_parse_i64(t, INT64_MIN, INT64_MAX, &fallback);
    return fallback;
}

PN_INTERNAL uint64_t pn_args_u64(const pn_args *a, const char *name, uint64_t fallback)
{
    const char *t = args_last(a, name);
    if (t)
        pn_parse_u64(t, &fallback);
    return fallback;
}

PN_INTERNAL double pn_args_real(const pn_args *a, const char *name, double fallback)
{
    const char *t = args_last(a, name);
    if (t)
        pn_parse_f64(t, t + strlen(t), &fallback, NULL);
    return fallback;
}

PN_INTERNAL uint64_t pn_args_size(const pn_args *a, const char *name, uint64_t fallback)
{
    const char *t = args_last(a, name);
    if (t)
        pn_parse_size(t, &fallback);
    return fallback;
}

PN_INTERNAL uint32_t pn_args_ms(const pn_args *a, const char *name, uint32_t fallback)
{
    const pn_flag *f = args_flag(a, name);
    const char *t = args_last(a, name);
    double ms = fallback;
    if (t)
        args_time(t, f->lo, f->hi, &ms);
    return (uint32_t)ms;
}

PN_INTERNAL size_t pn_args_ints(const pn_args *a, const char *name, const char *fallback,
                                uint32_t out[PN_FLAG_INTS_MAX])
{
    const pn_flag *f = args_flag(a, name);
    const char *t = args_last(a, name);
    return pn_parse_ints(t ? t : fallback, f->lo, f->hi, out);
}

PN_INTERNAL const char *pn_args_pos(const pn_args *a, size_t i)
{
    for (size_t k = 0; k < a->n; k++)
        if (!a->list[k].flag && i-- == 0)
            return a->list[k].text;
    return NULL;
}

/* --- help ------------------------------------------------------------------------------------- */

static void args_help_flag(const pn_flag *f)
{
    char head[128];
    int n = f->letter ? snprintf(head, sizeof head, "-%c, --%s", f->letter, f->name)
                      : snprintf(head, sizeof head, "    --%s", f->name);
    if (f->alias && n > 0 && (size_t)n < sizeof head)
        n += snprintf(head + n, sizeof head - (size_t)n, ", --%s", f->alias);
    if (f->arg && n > 0 && (size_t)n < sizeof head)
        snprintf(head + n, sizeof head - (size_t)n, " %s", f->arg);
    printf("  %-38s %s", head, f->help);
    if (f->fallback)
        printf(" (default: %s)", f->fallback);
    putchar('\n');
}

PN_INTERNAL void pn_args_help(const pn_cmd *cmd)
{
    printf("usage: pantheon %s %s\n%s\n\n", cmd->name, cmd->usage, cmd->summary);
    for (const pn_flag *f = cmd->flags; f->name; f++)
        args_help_flag(f);
    printf("  %-38s %s\n", "-h, --help", "this list");
}

#endif /* PANTHEON_CLI */
