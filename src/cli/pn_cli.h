/*
 * pn_cli.h - what the commands of the `pantheon` program share.
 *
 * A command is a function over one pn_cli, which owns engine, model and session: a command opens
 * what it needs, returns an exit code, and pn_main.c closes whatever is open, in the right order.
 * So every failure is `return pn_cli_fail(...)`.
 *
 * Invariants
 *   1. stdout carries the product only; all else goes to stderr, as one line without control
 *      characters (names in a model file are a stranger's text).
 *   2. Exit codes: 0 done, 1 failed, 2 usage, 3 refused (memory, a schema that cannot be enforced), 130 interrupted.
 *   3. One file-scope state in the program: the count of Ctrl-C and what they stop (pn_cli.c),
 *      because a signal handler has no argument.
 */
#ifndef PN_CLI_H
#define PN_CLI_H

#include "base/pn_str.h"
#include "cli/pn_args.h"

#ifdef PANTHEON_CLI

enum { PN_EXIT_OK = 0, PN_EXIT_FAILED = 1, PN_EXIT_USAGE = 2, PN_EXIT_REFUSED = 3, PN_EXIT_INTERRUPTED = 130 };

typedef struct pn_cli {
    pn_mem mem;                 /* the program's own bytes */
    pn_args args;
    pn_engine *engine;          /* owned, like the next three; NULL until opened */
    pn_file *file;
    pn_model *model;
    pn_session *session;
    pn_err err;                 /* of the call that failed last */
    const char *build;          /* of the version line; static */
    bool quiet, bars;           /* bars: stderr is a terminal and may show progress */
    const char *bar_what;       /* "loading"; NULL: none on screen */
    int bar_percent;
    uint64_t log_lost;          /* lines since the last that went out */
} pn_cli;

PN_INTERNAL void pn_cli_open(pn_cli *c);
PN_INTERNAL void pn_cli_close(pn_cli *c);              /* all of it */
PN_INTERNAL void pn_cli_close_engine(pn_cli *c);       /* session, model, file, engine */
PN_INTERNAL void pn_cli_close_session(pn_cli *c);

/* --- telling the user: each returns the exit code ------------------------------------------- */

PN_INTERNAL int pn_cli_usage(pn_cli *c, const char *fmt, ...) PN_PRINTF(2, 3);
PN_INTERNAL int pn_cli_failed(pn_cli *c, const char *fmt, ...) PN_PRINTF(2, 3);
PN_INTERNAL int pn_cli_fail(pn_cli *c, pn_status status);      /* the text in c->err */
PN_INTERNAL int pn_cli_fail_load(pn_cli *c, pn_status status); /* the same, but a --load-type that cannot be is a usage error */
PN_INTERNAL int pn_cli_nomem(pn_cli *c);

/* A remark on stderr, dropped by --quiet. */
PN_INTERNAL void pn_cli_note(pn_cli *c, const char *fmt, ...) PN_PRINTF(2, 3);

/* A pn_log_fn for servers; user is the pn_cli.  A line on stdout, and what --quiet lets through.  It comes from the
 * thread that serves everybody: when nobody takes the lines they are dropped and counted. */
PN_INTERNAL void pn_cli_log(void *user, pn_log_level level, const char *text);

/* Flush stdout; a full disk must not look like success.  Passes `code` through. */
PN_INTERNAL int pn_cli_flush(pn_cli *c, int code);

/* --- progress and Ctrl-C -------------------------------------------------------------------- */

/* pn_progress_fn and pn_tick_fn; user is the pn_cli.  They also stop after Ctrl-C. */
PN_INTERNAL int pn_cli_progress(void *user, uint64_t done, uint64_t total);
PN_INTERNAL int pn_cli_tick(void *user, uint32_t done, uint32_t total);

PN_INTERNAL void pn_cli_bar(pn_cli *c, const char *what, uint64_t done, uint64_t total);
PN_INTERNAL void pn_cli_bar_end(pn_cli *c);            /* wipe it */

/* From now on Ctrl-C stops what runs instead of the program; the third in a row still ends it. */
PN_INTERNAL void pn_cli_catch_interrupt(void);

/* From now on Ctrl-C and SIGTERM stop this server (the second at once); NULL: they do nothing any more, the program is about to end. */
PN_INTERNAL void pn_cli_catch_stop(pn_server *s);

/* The same for anything else: `stop` is called from the signal's handler; NULL: they do nothing any more, the program is about to end. */
PN_INTERNAL void pn_cli_on_stop(void (*stop)(void *what), void *what);

/* From now on a model file that shrinks while it is mapped ends the program with a message. */
PN_INTERNAL void pn_cli_catch_bus_error(void);
PN_INTERNAL bool pn_cli_interrupted(void);
PN_INTERNAL void pn_cli_interrupt_done(void);          /* forget it: the answer has stopped */

/* --- opening what the flags name: 0 or the exit code ---------------------------------------- */

/* As pn_cli_fail; what cannot be enforced has an exit code of its own, so that a script can tell it from
 * mistakes. */
PN_INTERNAL int pn_cli_refused(pn_cli *c, pn_status st);

/* --tool-choice auto|none|required|NAME; the name, or NULL. */
PN_INTERNAL pn_tool_choice pn_cli_tool_choice(const pn_cli *c);
PN_INTERNAL const char *pn_cli_tool_name(const pn_cli *c);

/* --mem-limit, and the dies that PN_SIM_DIES says.  Without a prefix cache, from which one prompt gains nothing; _as:
 * with the caller's threads and prefix cache; _kept: and with --session-dir and --session-quota. */
PN_INTERNAL int pn_cli_open_engine(pn_cli *c, uint32_t n_threads);
PN_INTERNAL int pn_cli_open_engine_as(pn_cli *c, const pn_engine_params *as);
PN_INTERNAL int pn_cli_open_engine_kept(pn_cli *c, const pn_engine_params *as);
PN_INTERNAL int pn_cli_open_file(pn_cli *c);                            /* the first word, or --model */
PN_INTERNAL int pn_cli_open_vocab(pn_cli *c);                           /* engine, tokenizer only */

/* Weights, with a bar: --model --residency --load-type --exact. */
PN_INTERNAL int pn_cli_open_model(pn_cli *c);

/* "auto", "map", "anon" or "stream". */
PN_INTERNAL pn_residency pn_cli_residency(const char *word);

/* n_ctx 0: the library's choice.  --batch --kv-type; Ctrl-C stops its evaluations. */
PN_INTERNAL int pn_cli_open_session(pn_cli *c, uint32_t n_ctx);

/* The value of --kv-type; false: not given. */
PN_INTERNAL bool pn_cli_kv_type(const pn_cli *c, pn_dtype *out);

/* --- input ---------------------------------------------------------------------------------- */

/* The whole file, "-" for standard input; 0 or the exit code. */
PN_INTERNAL int pn_cli_read_file(pn_cli *c, const char *path, pn_str *out);

/* A growing list of ids. */
typedef struct pn_ids {
    pn_mem *mem;                /* borrowed */
    pn_token *data;             /* owned, [cap] */
    size_t n, cap;
} pn_ids;

PN_INTERNAL void pn_ids_init(pn_ids *l, pn_mem *mem);
PN_INTERNAL void pn_ids_fini(pn_ids *l);
PN_INTERNAL bool pn_ids_reserve(pn_ids *l, size_t n);

/* --tokens "1,2,3" or --tokens-file (the same; spaces and a pair of brackets are allowed), each
 * checked against the vocabulary. */
PN_INTERNAL int pn_cli_read_ids(pn_cli *c, pn_ids *out);

/* Text to ids with the open model. */
PN_INTERNAL int pn_cli_tokenize(pn_cli *c, const char *text, size_t len, unsigned flags, pn_ids *out);

/* --- output (pn_out.c) ---------------------------------------------------------------------- */

/* "12.3 MiB" */
typedef struct pn_human { char text[32]; } pn_human;
PN_INTERNAL pn_human pn_out_bytes(uint64_t n);
PN_INTERNAL pn_human pn_out_count(uint64_t n);         /* "1.24 B": elements, decimal */

/* Text for a terminal: control characters and broken UTF-8 become '?', cut to `width` characters. */
PN_INTERNAL void pn_out_safe(pn_str *out, const char *text, size_t len, size_t width);

/* "key": value, with the comma when one is due. */
PN_INTERNAL void pn_out_json_u64(pn_str *s, const char *key, uint64_t v);
PN_INTERNAL void pn_out_json_real(pn_str *s, const char *key, double v);
PN_INTERNAL void pn_out_json_text(pn_str *s, const char *key, const char *v);
PN_INTERNAL void pn_out_json_bool(pn_str *s, const char *key, bool v);

/* All of s to stdout and a newline; s is emptied.  0 or the exit code. */
PN_INTERNAL int pn_out_print(pn_cli *c, pn_str *s);

/* The last component of a path. */
PN_INTERNAL const char *pn_out_basename(const char *path);

/* Monotonic seconds. */
PN_INTERNAL double pn_out_now(void);

/* --- the commands: one accessor each -------------------------------------------------------- */

PN_INTERNAL const pn_cmd *pn_cmd_run(void);
PN_INTERNAL const pn_cmd *pn_cmd_inspect(void);
PN_INTERNAL const pn_cmd *pn_cmd_plan(void);
PN_INTERNAL const pn_cmd *pn_cmd_tokenize(void);
PN_INTERNAL const pn_cmd *pn_cmd_detokenize(void);
PN_INTERNAL const pn_cmd *pn_cmd_render(void);
PN_INTERNAL const pn_cmd *pn_cmd_parse(void);
PN_INTERNAL const pn_cmd *pn_cmd_logits(void);
PN_INTERNAL const pn_cmd *pn_cmd_perplexity(void);
PN_INTERNAL const pn_cmd *pn_cmd_bench(void);
PN_INTERNAL const pn_cmd *pn_cmd_quantize(void);
PN_INTERNAL const pn_cmd *pn_cmd_convert(void);
PN_INTERNAL const pn_cmd *pn_cmd_synth(void);
PN_INTERNAL const pn_cmd *pn_cmd_grammar(void);
PN_INTERNAL const pn_cmd *pn_cmd_serve(void);
PN_INTERNAL const pn_cmd *pn_cmd_router(void);

/* Rows that several tables hold: same flag, same words. */
#define PN_ROW_MODEL \
    {"model", NULL, 'm', PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "GGUF file, of a split model the first part; or a Hugging Face folder, or its .safetensors or .pth"}
#define PN_ROW_QUIET \
    {"quiet", NULL, 'q', PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "no progress, no remarks, no last line"}
#define PN_ROW_MEM_LIMIT \
    {"mem-limit", NULL, 0, PN_FLAG_SIZE, false, 0, 0, "SIZE", "none", "most memory beside mapped weights"}
#define PN_ROW_MEM_RESERVE \
    {"mem-reserve", NULL, 0, PN_FLAG_SIZE, false, 0, 0, "SIZE", "a tenth", "memory of the machine that turns leave alone"}
#define PN_ROWS_KV_LEAST \
    {"kv-min-type", NULL, 0, PN_FLAG_CHOICE, false, 0, 0, "f16|q8_0|q5_1|q5_0|q4_1|q4_0", "q4_0", \
     "what keys and values may become when memory is short; f16: never smaller"}, \
    {"kv-min-quality", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "kl=X,top1=Y", "kl=0.02,top1=0.97", "and what that may cost a model"}
#define PN_ROW_PRESSURE_SCRIPT \
    {"pressure-script", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "for tests: readings of memory instead of the machine's"}
#define PN_ROW_PREFIX_CACHE(fallback) \
    {"prefix-cache", NULL, 0, PN_FLAG_SIZE, false, 0, 0, "SIZE", fallback, "most memory for prompts that were computed before"}
#define PN_ROW_SESSION_DIR \
    {"session-dir", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "DIR", "none", "keep conversations there, for when memory is short and the next start"}
#define PN_ROW_SESSION_QUOTA \
    {"session-quota", NULL, 0, PN_FLAG_SIZE, false, 0, 0, "SIZE", "8G or a tenth of the free disk", "most bytes of files there"}
#define PN_ROW_THREADS \
    {"threads", NULL, 't', PN_FLAG_INT, false, 1, 1024, "N", "usable cores", "threads that compute"}
/* each: of one model of several (`serve`). */
#define PN_ROWS_RESIDENCY(each) \
    {"residency", NULL, 0, PN_FLAG_CHOICE, each, 0, 0, "auto|map|anon|stream", "auto", \
     "weights mapped from the file, read into memory of their own, or read in every step"}, \
    {"pin-bytes", NULL, 0, PN_FLAG_SIZE, each, 0, 0, "SIZE", "none", "streamed: most memory of weights that stay"}, \
    {"stream-block", NULL, 0, PN_FLAG_SIZE, each, 0, 0, "SIZE", "4M", "streamed: read at once"}, \
    {"stream-depth", NULL, 0, PN_FLAG_INT, each, 2, 64, "N", "4", "streamed: blocks, so many are read ahead"}, \
    {"expert-cache", NULL, 0, PN_FLAG_SIZE, each, 0, 0, "SIZE", "a quarter of them", "streamed: most memory of experts"}, \
    {"load-type", NULL, 0, PN_FLAG_TEXT, each, 0, 0, "TYPE", "as in the file", "quantise 16- and 32-bit matrices while loading: a type that 'quantize' takes"}
#define PN_ROW_EXACT \
    {"exact", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "slow reference arithmetic"}
#define PN_ROW_BATCH \
    {"batch", "prefill-chunk", 0, PN_FLAG_INT, false, 1, 4096, "N", "512", "most rows of a step"}
#define PN_KV_TYPE_CHOICE "f16|f32|q8_0|q5_1|q5_0|q4_1|q4_0"
#define PN_ROW_KV_TYPE \
    {"kv-type", NULL, 0, PN_FLAG_CHOICE, false, 0, 0, PN_KV_TYPE_CHOICE, "f16; f32 with --exact", \
     "type of keys and values; the smaller, the more conversations fit"}
#define PN_ROW_CTX(fallback, help) \
    {"ctx", "ctx-cap", 0, PN_FLAG_INT, false, 1, 1 << 30, "N", fallback, help}
#define PN_ROW_JSON \
    {"json", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "JSON instead of text"}
#define PN_ROW_END \
    {NULL, NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, NULL}

#endif /* PANTHEON_CLI */
#endif /* PN_CLI_H */
