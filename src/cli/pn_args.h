/*
 * pn_args.h - a command line and PN_* variables against one table of flags a command.
 *
 * Each command is described by a pn_cmd: its name, its usage and its flags.  The table is all there
 * is: parsing, range checks, the environment's names and the help come from it, so a flag that is
 * listed works and a flag that works is listed.
 *
 * Invariants
 *   1. After pn_args_parse every value has been checked against its row; the getters below cannot
 *      fail.  They take a flag's name; a name the command does not have is our mistake (assert).
 *   2. The command line wins over the environment, whose values stand before it in the list; of a flag
 *      given twice the last value counts, except for repeatable ones, which keep all.
 *   3. Texts are borrowed from argv and the environment and live as long as the program.
 *
 * Faults are told on stderr in one line naming flag, value and what is allowed.
 */
#ifndef PN_ARGS_H
#define PN_ARGS_H

#include "base/pn_mem.h"

#ifdef PANTHEON_CLI

typedef enum pn_flag_kind {
    PN_FLAG_BOOL,               /* given or not; 1 or 0 in the environment */
    PN_FLAG_TEXT,
    PN_FLAG_INT,                /* decimal, lo <= v <= hi */
    PN_FLAG_U64,                /* any unsigned 64-bit number */
    PN_FLAG_INTS,               /* comma-separated, at most PN_FLAG_INTS_MAX, each lo <= v <= hi */
    PN_FLAG_REAL,               /* lo <= v <= hi */
    PN_FLAG_SIZE,               /* 46M, 1.5G */
    PN_FLAG_TIME,               /* 500ms, 30s, 5m: milliseconds, lo <= v <= hi */
    PN_FLAG_CHOICE              /* one of the words in `arg`, separated by '|' */
} pn_flag_kind;

#define PN_FLAG_INTS_MAX 32

typedef struct pn_flag {
    const char *name;           /* "max-tokens", without dashes; NULL ends a table */
    const char *alias;          /* another long name, or NULL */
    char letter;                /* the short form, or 0 */
    pn_flag_kind kind;
    bool repeat;                /* may be given several times */
    double lo, hi;
    const char *arg;            /* what the help calls the value; the words of a choice */
    const char *fallback;       /* the default, as the help tells it; NULL: none */
    const char *help;
} pn_flag;

struct pn_cli;

typedef struct pn_cmd {
    const char *name;
    const char *usage;          /* what follows "pantheon NAME" */
    const char *summary;        /* a line for the list of commands */
    const pn_flag *flags;
    size_t min_pos, max_pos;    /* words without a flag */
    int (*run)(struct pn_cli *c);      /* returns the exit code */
} pn_cmd;

typedef struct pn_arg {
    const pn_flag *flag;        /* NULL: a word without a flag */
    const char *text;           /* "1" or "0" for PN_FLAG_BOOL */
} pn_arg;

typedef struct pn_args {
    pn_mem *mem;                /* borrowed */
    const pn_cmd *cmd;
    pn_arg *list;               /* owned, [cap], in the order given */
    size_t n, cap;
    bool help;                  /* --help was met; nothing else was checked then */
} pn_args;

/* Read the words after the command's name.  False: a usage error, told on stderr. */
PN_INTERNAL bool pn_args_parse(pn_args *a, pn_mem *mem, const pn_cmd *cmd, int argc, char **argv);
PN_INTERNAL void pn_args_fini(pn_args *a);

/* Add PN_<FLAG> for flags the command line left out.  `a` may be NULL: check names only.  A name
 * that no command's table in cmds[0..n) knows is an error, and so is a malformed value. */
PN_INTERNAL bool pn_args_environment(pn_args *a, const pn_cmd *const *cmds, size_t n, char **environment);

/* Add `value` of flag `key` before all others when the flag is not given, or else ignore it; `who` is for messages.
 * False: the command has no such flag, or not this value.  The texts are borrowed. */
PN_INTERNAL bool pn_args_default(pn_args *a, const char *who, const char *key, const char *value);

/* Is it a value of that flag? */
PN_INTERNAL bool pn_args_check(const pn_args *a, const char *who, const char *key, const char *value);

/* Enough arguments? */
PN_INTERNAL bool pn_args_complete(const pn_args *a);

PN_INTERNAL bool pn_args_has(const pn_args *a, const char *name);
PN_INTERNAL bool pn_args_on(const pn_args *a, const char *name);               /* PN_FLAG_BOOL */
PN_INTERNAL const char *pn_args_text(const pn_args *a, const char *name, const char *fallback);
PN_INTERNAL const char *pn_args_nth(const pn_args *a, const char *name, size_t i); /* NULL: no more */
PN_INTERNAL int64_t pn_args_int(const pn_args *a, const char *name, int64_t fallback);
PN_INTERNAL uint64_t pn_args_u64(const pn_args *a, const char *name, uint64_t fallback);
PN_INTERNAL double pn_args_real(const pn_args *a, const char *name, double fallback);
PN_INTERNAL uint64_t pn_args_size(const pn_args *a, const char *name, uint64_t fallback);
PN_INTERNAL uint32_t pn_args_ms(const pn_args *a, const char *name, uint32_t fallback);         /* PN_FLAG_TIME */
PN_INTERNAL size_t pn_args_ints(const pn_args *a, const char *name, const char *fallback,
                                uint32_t out[PN_FLAG_INTS_MAX]);
PN_INTERNAL const char *pn_args_pos(const pn_args *a, size_t i);               /* NULL: no more */

/* Usage, then the flags with their defaults, one a line, on stdout. */
PN_INTERNAL void pn_args_help(const pn_cmd *cmd);

/* "0,1" as PN_FLAG_INTS has it; 0: malformed. */
PN_INTERNAL size_t pn_parse_ints(const char *text, double lo, double hi, uint32_t out[PN_FLAG_INTS_MAX]);

/* Decimal digits only, whole string. */
PN_INTERNAL bool pn_parse_u64(const char *s, uint64_t *out);

#endif /* PANTHEON_CLI */
#endif /* PN_ARGS_H */
