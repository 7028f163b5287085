/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cli.c - the shared half of every command: opening, telling, progress, Ctrl-C, input.
 */
#include "cli/pn_cli.h"

#ifdef PANTHEON_CLI

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Ctrl-C since the last pn_cli_interrupt_done, and whom it stops. */
static volatile sig_atomic_t cli_interrupts;
static pn_session *volatile cli_target;
static void *volatile cli_stop_what;
static void (*volatile cli_stop)(void *what);

/* --- life ------------------------------------------------------------------------------------- */

PN_INTERNAL void pn_cli_open(pn_cli *c)
{
    memset(c, 0, sizeof *c);
    pn_mem_init_libc(&c->mem);
}

PN_INTERNAL void pn_cli_close_session(pn_cli *c)
{
    cli_target = NULL;          /* before the memory goes: the handler may run at any time */
    pn_session_free(c->session);
    c->session = NULL;
}

PN_INTERNAL void pn_cli_close_engine(pn_cli *c)
{
    pn_cli_close_session(c);
    pn_model_free(c->model);
    pn_file_close(c->file);
    pn_engine_close(c->engine);
    c->model = NULL;
    c->file = NULL;
    c->engine = NULL;
}

PN_INTERNAL void pn_cli_close(pn_cli *c)
{
    pn_cli_bar_end(c);
    pn_cli_close_engine(c);
    if (c->args.mem)
        pn_args_fini(&c->args);
}

/* --- telling the user ------------------------------------------------------------------------- */

/* One line on stderr.  Messages quote names from model files, so control characters are masked. */
static void cli_say(pn_cli *c, const char *what, const char *fmt, va_list ap)
{
    char text[1024];
    vsnprintf(text, sizeof text, fmt, ap);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    pn_cli_bar_end(c);
    fflush(stdout);
    fprintf(stderr, "%s%s\n", what, text);
}

PN_INTERNAL int pn_cli_usage(pn_cli *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    cli_say(c, "pantheon: ", fmt, ap);
    va_end(ap);
    return PN_EXIT_USAGE;
}

PN_INTERNAL int pn_cli_failed(pn_cli *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    cli_say(c, "pantheon: ", fmt, ap);
    va_end(ap);
    return PN_EXIT_FAILED;
}

PN_INTERNAL int pn_cli_fail(pn_cli *c, pn_status status)
{
    if (status == PN_E_CANCELLED && pn_cli_interrupted()) {
        pn_cli_bar_end(c);
        return PN_EXIT_INTERRUPTED;
    }
    pn_cli_failed(c, "%s", c->err.text[0] ? c->err.text : pn_status_name(status));
    return status == PN_E_BUDGET ? PN_EXIT_REFUSED : PN_EXIT_FAILED;
}

PN_INTERNAL int pn_cli_fail_load(pn_cli *c, pn_status status)
{
    int code = pn_cli_fail(c, status);
    return status == PN_E_INVALID && pn_args_has(&c->args, "load-type") ? PN_EXIT_USAGE : code;
}

PN_INTERNAL int pn_cli_nomem(pn_cli *c)
{
    return pn_cli_failed(c, "out of memory");
}

PN_INTERNAL void pn_cli_note(pn_cli *c, const char *fmt, ...)
{
    if (c->quiet)
        return;
    va_list ap;
    va_start(ap, fmt);
    cli_say(c, "", fmt, ap);
    va_end(ap);
}

/* A pipe that poll calls writable takes PIPE_BUF bytes (pipe(7): 4,096 on Linux, at least 512 by POSIX) without
 * blocking: longer lines are cut. */
PN_INTERNAL void pn_cli_log(void *user, pn_log_level level, const char *text)
{
    pn_cli *c = user;
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (level == PN_LOG_INFO && c->quiet)
        return;
    if (poll(&out, 1, 0) == 0) {
        c->log_lost++;
        return;
    }
    if (c->log_lost)
        printf(text[0] == '{' ? "{\"level\":\"warn\",\"event\":\"log\",\"lines_lost\":%" PRIu64 "}\n" : "%" PRIu64 " lines of the log are lost: nobody took them\n",
               c->log_lost);
    c->log_lost = 0;
    printf("%.3900s\n", text);
    fflush(stdout);
}

PN_INTERNAL int pn_cli_flush(pn_cli *c, int code)
{
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == PN_EXIT_OK)
        return pn_cli_failed(c, "cannot write to standard output: %s", strerror(errno));
    return code;
}

/* The library's own remarks: what is wrong is shown, what is merely going on is not. */
static void cli_log(void *user, pn_log_level level, const char *text)
{
    pn_cli *c = user;
    if (level == PN_LOG_ERROR)
        pn_cli_failed(c, "%s", text);
    else if (level == PN_LOG_WARN)
        pn_cli_note(c, "warning: %s", text);
}

/* --- progress and Ctrl-C ---------------------------------------------------------------------- */

PN_INTERNAL void pn_cli_bar(pn_cli *c, const char *what, uint64_t done, uint64_t total)
{
    if (!c->bars || total == 0)
        return;
    int percent = (int)((double)PN_MIN(done, total) * 100 / (double)total);
    if (c->bar_what && c->bar_percent == percent)
        return;
    char cells[31];
    for (int i = 0; i < 30; i++)
        cells[i] = i < percent * 30 / 100 ? '#' : '.';
    cells[30] = 0;
    fprintf(stderr, "\r%s [%s] %3d%%", what, cells, percent);
    fflush(stderr);
    c->bar_what = what;
    c->bar_percent = percent;
}

PN_INTERNAL void pn_cli_bar_end(pn_cli *c)
{
    if (c->bar_what)
        fprintf(stderr, "\r%*s\r", (int)strlen(c->bar_what) + 40, "");
    c->bar_what = NULL;
}

PN_INTERNAL int pn_cli_progress(void *user, uint64_t done, uint64_t total)
{
    pn_cli_bar(user, "working", done, total);
    return pn_cli_interrupted();
}

/* A bar for prompts long enough to wait for; decode steps are a token each and show themselves. */
PN_INTERNAL int pn_cli_tick(void *user, uint32_t done, uint32_t total)
{
    if (total >= 128)
        pn_cli_bar(user, "reading the prompt", done, total);
    return pn_cli_interrupted();
}

static void cli_on_interrupt(int sig)
{
    (void)sig;
    cli_interrupts = cli_interrupts + 1;
    if (cli_interrupts >= 3)
        _exit(PN_EXIT_INTERRUPTED);
    pn_session *s = cli_target;
    if (s)
        pn_session_cancel(s);
}

PN_INTERNAL void pn_cli_catch_interrupt(void)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = cli_on_interrupt;   /* no SA_RESTART: a read at the prompt must return */
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
}

static void cli_on_stop_signal(int sig)
{
    void (*stop)(void *what) = cli_stop;
    (void)sig;
    if (stop)
        stop(cli_stop_what);
}

PN_INTERNAL void pn_cli_on_stop(void (*stop)(void *what), void *what)
{
    struct sigaction sa;
    cli_stop = NULL;            /* the handler may run at any time */
    cli_stop_what = what;
    cli_stop = stop;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = stop ? cli_on_stop_signal : SIG_IGN;
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    signal(SIGPIPE, SIG_IGN);           /* who read the log has gone: no reason to stop */
}

static void cli_stop_server(void *server) { pn_server_stop(server); }

PN_INTERNAL void pn_cli_catch_stop(pn_server *s) { pn_cli_on_stop(s ? cli_stop_server : NULL, s); }

/* A mapped file that another process cuts short raises SIGBUS where it is read.  A program may say
 * so and go; a library may not touch signals (--residency anon avoids the question). */
static void cli_on_bus_error(int sig)
{
    static const char text[] = "pantheon: the model file became shorter while it was in use\n";
    (void)sig;
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    (void)n;
    _exit(PN_EXIT_FAILED);
}

PN_INTERNAL void pn_cli_catch_bus_error(void)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = cli_on_bus_error;
    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, NULL);
}

PN_INTERNAL bool pn_cli_interrupted(void) { return cli_interrupts != 0; }
PN_INTERNAL void pn_cli_interrupt_done(void) { cli_interrupts = 0; }

/* --- opening ---------------------------------------------------------------------------------- */

PN_INTERNAL int pn_cli_open_engine_as(pn_cli *c, const pn_engine_params *as)
{
    pn_engine_params p = *as;
    const char *sim = getenv("PN_SIM_DIES");
    p.size = sizeof p;
    p.log = cli_log;
    p.log_user = c;
    p.mem_limit = c->args.cmd ? pn_args_size(&c->args, "mem-limit", 0) : 0;     /* --version has no flags */
    p.sim_dies = sim && *sim ? sim : NULL;
    pn_status st = pn_engine_open(&c->engine, &p, &c->err);
    if (st == PN_E_INVALID && p.sim_dies)
        return pn_cli_usage(c, "PN_SIM_DIES: %s", c->err.text);
    return st ? pn_cli_fail(c, st) : PN_EXIT_OK;
}

/* "kl=0.02,top1=0.97": either, or both. */
static bool cli_quality(const char *text, double *kl, double *top1)
{
    static const struct { const char *name; size_t len; } words[] = {{"kl=", 3}, {"top1=", 5}};
    double *out[] = {kl, top1};
    for (const char *p = text; *p;) {
        const char *end = NULL;
        size_t i = strncmp(p, words[0].name, words[0].len) == 0 ? 0 : 1;
        if (strncmp(p, words[i].name, words[i].len) != 0 || !pn_parse_f64(p + words[i].len, p + strcspn(p, ","), out[i], &end) ||
            !(*out[i] > 0) || (i == 1 && *out[i] > 1))
            return false;
        p = *end == ',' && end[1] ? end + 1 : end;
        if (p == end && *p)
            return false;
    }
    return *text != 0;
}

PN_INTERNAL int pn_cli_open_engine_kept(pn_cli *c, const pn_engine_params *as)
{
    pn_engine_params p = *as;
    const char *quality = pn_args_text(&c->args, "kv-min-quality", NULL);
    p.mem_reserve = pn_args_size(&c->args, "mem-reserve", 0);
    p.pressure_script = pn_args_text(&c->args, "pressure-script", NULL);
    p.kv_min_type = (int)pn_dtype_parse(pn_args_text(&c->args, "kv-min-type", "q4_0"));
    if (quality && !cli_quality(quality, &p.kv_max_kl, &p.kv_min_top1))
        return pn_cli_usage(c, "--kv-min-quality: expected numbers above 0, top1 at most 1, as in kl=0.02,top1=0.97, found '%s'", quality);
    p.session_dir = pn_args_text(&c->args, "session-dir", NULL);
    p.session_quota = pn_args_size(&c->args, "session-quota", 0);
    if (p.session_quota && !p.session_dir)
        return pn_cli_usage(c, "--session-quota is for --session-dir, which is not given");
    return pn_cli_open_engine_as(c, &p);
}

PN_INTERNAL int pn_cli_open_engine(pn_cli *c, uint32_t n_threads)
{
    return pn_cli_open_engine_as(c, &(pn_engine_params){.n_threads = n_threads, .no_prefix = 1});
}

static const char *cli_model_path(pn_cli *c)
{
    return pn_args_text(&c->args, "model", NULL);
}

static int cli_no_model(pn_cli *c)
{
    return pn_cli_usage(c, "%s needs a model: --model FILE", c->args.cmd->name);
}

PN_INTERNAL int pn_cli_open_file(pn_cli *c)
{
    const char *word = pn_args_pos(&c->args, 0), *path = word ? word : cli_model_path(c);
    if (!path)
        return pn_cli_usage(c, "%s needs a file: pantheon %s FILE", c->args.cmd->name, c->args.cmd->name);
    pn_status st = pn_file_open(c->engine, path, &c->file, &c->err);
    return st ? pn_cli_fail(c, st) : PN_EXIT_OK;
}

PN_INTERNAL int pn_cli_refused(pn_cli *c, pn_status st)
{
    int code = pn_cli_fail(c, st);
    return st == PN_E_UNSUPPORTED ? PN_EXIT_REFUSED : code;
}

PN_INTERNAL pn_tool_choice pn_cli_tool_choice(const pn_cli *c)
{
    const char *t = pn_args_text(&c->args, "tool-choice", "auto");
    return strcmp(t, "auto") == 0 ? PN_TOOLS_AUTO : strcmp(t, "none") == 0 ? PN_TOOLS_NONE : PN_TOOLS_REQUIRED;
}

PN_INTERNAL const char *pn_cli_tool_name(const pn_cli *c)
{
    const char *t = pn_args_text(&c->args, "tool-choice", "auto");
    bool word = strcmp(t, "auto") == 0 || strcmp(t, "none") == 0 || strcmp(t, "required") == 0;
    return word ? NULL : t;
}

PN_INTERNAL int pn_cli_open_vocab(pn_cli *c)
{
    const char *path = cli_model_path(c);
    if (!path)
        return cli_no_model(c);
    int code = pn_cli_open_engine(c, 1);
    if (code)
        return code;
    pn_model_params p;
    memset(&p, 0, sizeof p);
    p.size = sizeof p;
    p.vocab_only = 1;
    pn_status st = pn_model_load(c->engine, path, &p, &c->model, &c->err);
    return st ? pn_cli_fail(c, st) : PN_EXIT_OK;
}

static int cli_loading(void *user, uint64_t done, uint64_t total)
{
    pn_cli_bar(user, "loading", done, total);
    return pn_cli_interrupted();
}

PN_INTERNAL pn_residency pn_cli_residency(const char *word)
{
    return strcmp(word, "map") == 0 ? PN_RESIDENCY_MAP : strcmp(word, "anon") == 0 ? PN_RESIDENCY_ANON
         : strcmp(word, "stream") == 0 ? PN_RESIDENCY_STREAM : PN_RESIDENCY_AUTO;
}

PN_INTERNAL int pn_cli_open_model(pn_cli *c)
{
    const char *path = cli_model_path(c);
    if (!path)
        return cli_no_model(c);
    pn_model_params p;
    memset(&p, 0, sizeof p);
    p.size = sizeof p;
    p.residency = pn_cli_residency(pn_args_text(&c->args, "residency", "auto"));
    p.pin_bytes = pn_args_size(&c->args, "pin-bytes", 0);
    p.stream_block = pn_args_size(&c->args, "stream-block", 0);
    p.stream_depth = (uint32_t)pn_args_int(&c->args, "stream-depth", 0);
    p.expert_cache_bytes = pn_args_size(&c->args, "expert-cache", 0);
    p.load_type = pn_args_text(&c->args, "load-type", NULL);
    p.exact = pn_args_on(&c->args, "exact");
    p.progress = cli_loading;
    p.progress_user = c;
    pn_status st = pn_model_load(c->engine, path, &p, &c->model, &c->err);
    pn_cli_bar_end(c);
    return st ? pn_cli_fail_load(c, st) : PN_EXIT_OK;
}

PN_INTERNAL bool pn_cli_kv_type(const pn_cli *c, pn_dtype *out)
{
    const char *t = pn_args_text(&c->args, "kv-type", NULL);
    if (t)
        *out = pn_dtype_parse(t);
    return t != NULL;
}

PN_INTERNAL int pn_cli_open_session(pn_cli *c, uint32_t n_ctx)
{
    pn_session_params p;
    memset(&p, 0, sizeof p);
    p.size = sizeof p;
    p.n_ctx = n_ctx;
    p.n_batch = (uint32_t)pn_args_int(&c->args, "batch", 0);
    p.has_kv_type = pn_cli_kv_type(c, &p.kv_type);
    pn_status st = pn_session_new(c->model, &p, &c->session, &c->err);
    if (st)
        return pn_cli_fail(c, st);
    pn_session_on_tick(c->session, pn_cli_tick, c);
    cli_target = c->session;
    return PN_EXIT_OK;
}

/* --- input ------------------------------------------------------------------------------------ */

PN_INTERNAL int pn_cli_read_file(pn_cli *c, const char *path, pn_str *out)
{
    bool std = strcmp(path, "-") == 0;
    FILE *f = std ? stdin : fopen(path, "rb");
    if (!f)
        return pn_cli_failed(c, "cannot open %s: %s", path, strerror(errno));
    char buf[16384];
    size_t n;
    errno = 0;
    while (!out->failed && (n = fread(buf, 1, sizeof buf, f)) > 0)
        pn_str_add(out, buf, n);
    bool bad = ferror(f) != 0;
    int why = errno;
    if (!std)
        fclose(f);
    if (bad)
        return pn_cli_interrupted() ? PN_EXIT_INTERRUPTED
                                    : pn_cli_failed(c, "cannot read %s: %s", path, strerror(why));
    return out->failed ? pn_cli_nomem(c) : PN_EXIT_OK;
}

PN_INTERNAL void pn_ids_init(pn_ids *l, pn_mem *mem)
{
    memset(l, 0, sizeof *l);
    l->mem = mem;
}

PN_INTERNAL void pn_ids_fini(pn_ids *l)
{
    pn_mem_free(l->mem, PN_ACCT_MISC, l->data, l->cap * sizeof *l->data);
    l->data = NULL;
    l->n = l->cap = 0;
}

PN_INTERNAL bool pn_ids_reserve(pn_ids *l, size_t n)
{
    return pn_mem_grow(l->mem, PN_ACCT_MISC, (void **)&l->data, &l->cap, n, sizeof *l->data);
}

static bool cli_is_space(char ch) { return ch == ' ' || ch == '\n' || ch == '\r' || ch == '\t'; }

/* Digits up to the next separator; a sign or a letter ends the list with an error. */
static int cli_parse_ids(pn_cli *c, const char *text, size_t len, const char *from, pn_ids *out)
{
    uint32_t n_vocab = pn_vocab_size(c->model);
    while (len && cli_is_space(text[len - 1]))
        len--;
    if (len && text[len - 1] == ']')
        len--;
    size_t i = 0;
    while (i < len && (cli_is_space(text[i]) || text[i] == '['))
        i++;
    while (i < len) {
        size_t start = i;
        uint64_t v = 0;
        for (; i < len && text[i] >= '0' && text[i] <= '9' && v < n_vocab; i++)
            v = v * 10 + (uint64_t)(text[i] - '0');
        bool ends = i == len || text[i] == ',' || cli_is_space(text[i]);
        if (i == start || !ends || v >= n_vocab) {
            size_t show = start;
            while (show < len && show - start < 20 && text[show] != ',' && !cli_is_space(text[show]))
                show++;
            return pn_cli_usage(c, "%s: '%.*s' is not allowed: expected token ids from 0 to %lu "
                                "separated by commas", from, (int)(show - start), text + start,
                                (unsigned long)n_vocab - 1);
        }
        if (!pn_ids_reserve(out, out->n + 1))
            return pn_cli_nomem(c);
        out->data[out->n++] = (pn_token)v;
        while (i < len && cli_is_space(text[i]))
            i++;
        if (i < len && text[i] == ',')
            i++;
        while (i < len && cli_is_space(text[i]))
            i++;
    }
    return PN_EXIT_OK;
}

PN_INTERNAL int pn_cli_read_ids(pn_cli *c, pn_ids *out)
{
    const char *list = pn_args_text(&c->args, "tokens", NULL);
    const char *path = pn_args_text(&c->args, "tokens-file", NULL);
    if (!list == !path)
        return pn_cli_usage(c, "%s needs either --tokens LIST or --tokens-file FILE", c->args.cmd->name);
    if (list)
        return cli_parse_ids(c, list, strlen(list), "--tokens", out);
    pn_str text;
    pn_str_init(&text, &c->mem, PN_ACCT_MISC);
    int code = pn_cli_read_file(c, path, &text);
    if (!code)
        code = cli_parse_ids(c, pn_str_cstr(&text), text.len, path, out);
    pn_str_fini(&text);
    return code;
}

PN_INTERNAL int pn_cli_tokenize(pn_cli *c, const char *text, size_t len, unsigned flags, pn_ids *out)
{
    size_t n;
    pn_status st = pn_tokenize(c->model, text, len, flags, NULL, 0, &n, &c->err);
    if (!st && !pn_ids_reserve(out, n))
        return pn_cli_nomem(c);
    if (!st)
        st = pn_tokenize(c->model, text, len, flags, out->data, out->cap, &n, &c->err);
    if (st)
        return pn_cli_fail(c, st);
    out->n = n;
    return PN_EXIT_OK;
}

#endif /* PANTHEON_CLI */
