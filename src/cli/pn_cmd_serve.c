/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cmd_serve.c - `pantheon serve`: an OpenAI-compatible server for some models.
 *
 * The first two lines say on what it runs, the third, when every model is ready, where it listens; then comes the
 * log.  All of that is stdout's.
 */
#include "cli/pn_serve_config.h"

#ifdef PANTHEON_CLI

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const pn_flag serve_flags[] = {
    {"model", NULL, 'm', PN_FLAG_TEXT, true, 0, 0, "FILE", NULL, "GGUF file or Hugging Face folder to serve; repeatable, and the flags down to --template are for the one before"},
    {"name", NULL, 0, PN_FLAG_TEXT, true, 0, 0, "NAME", "name of the file or folder", "what clients call it"},
    {"alias", NULL, 0, PN_FLAG_TEXT, true, 0, 0, "NAME", NULL, "another name for it"},
    {"dies", NULL, 0, PN_FLAG_INTS, true, 0, 63, "LIST", "one that is free", "where it runs; two: split over both"},
    {"ctx-cap", "ctx", 0, PN_FLAG_INT, true, 1, 1 << 30, "N", "as trained, as memory allows", "most tokens of a conversation"},
    {"max-sessions", NULL, 0, PN_FLAG_INT, true, 1, 1 << 20, "N", "no cap", "conversations at once"},
    {"max-concurrent", NULL, 0, PN_FLAG_INT, true, 1, 1024, "N", "8", "requests worked on at once; others wait"},
    {"reasoning-budget", NULL, 0, PN_FLAG_INT, true, 0, 1 << 30, "N", "no limit", "most tokens of reasoning"},
    {"kv-type", NULL, 0, PN_FLAG_CHOICE, true, 0, 0, PN_KV_TYPE_CHOICE, "f16", "type of keys and values"},
    PN_ROWS_RESIDENCY(true),
    {"template", NULL, 0, PN_FLAG_TEXT, true, 0, 0, "FILE", NULL, "Jinja instead of the model's own chat template"},
    {"host", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "ADDRESS", "127.0.0.1", "address to listen on"},
    {"port", NULL, 0, PN_FLAG_INT, false, 0, 65535, "N", "8080", "0: any free one"},
    {"socket", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "PATH", NULL, "listen on a Unix socket instead"},
    {"api-key-file", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", "open to all", "API keys, one a line"},
    {"admin-key-file", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", "this host only", "keys for /admin"},
    {"queue", NULL, 0, PN_FLAG_INT, false, 1, 1 << 16, "N", "64", "requests of a model that may wait"},
    {"default-max-new", NULL, 0, PN_FLAG_INT, false, 1, 1 << 30, "N", "2048", "tokens reserved for an answer without max_tokens"},
    {"ctx-floor", NULL, 0, PN_FLAG_INT, false, 64, 1 << 30, "N", "4096", "one turn of so many tokens always has memory"},
    {"idle-timeout", NULL, 0, PN_FLAG_TIME, false, 1, 86400000, "TIME", "60s", "connections without a request are closed after"},
    {"drain-timeout", NULL, 0, PN_FLAG_TIME, false, 1, 86400000, "TIME", "30s", "what is under way may take when the server stops"},
    {"max-body", NULL, 0, PN_FLAG_SIZE, false, 0, 0, "SIZE", "32M", "largest request"},
    {"max-connections", NULL, 0, PN_FLAG_INT, false, 1, 1 << 20, "N", "4096", "connections at once"},
    {"cors", NULL, 0, PN_FLAG_TEXT, true, 0, 0, "ORIGIN", "none", "web pages that may call us, or *; repeatable"},
    {"metrics", NULL, 0, PN_FLAG_CHOICE, false, 0, 0, "default|vllm|off", "default", "names on /metrics"},
    {"config", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "the same keys from a file: key = value, [model NAME]"},
    {"check", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "validate, print the plan, do not serve"},
    {"log", NULL, 0, PN_FLAG_CHOICE, false, 0, 0, "text|json", "text", "shape of the log's lines"},
    PN_ROW_THREADS,
    PN_ROW_MEM_LIMIT,
    PN_ROW_MEM_RESERVE,
    PN_ROWS_KV_LEAST,
    PN_ROW_PRESSURE_SCRIPT,
    PN_ROW_PREFIX_CACHE("a tenth of memory"),
    PN_ROW_SESSION_DIR,
    PN_ROW_SESSION_QUOTA,
    PN_ROW_QUIET,
    PN_ROW_END
};

/* ------------------------------------------------------------------------------------------
 * Checking
 * ------------------------------------------------------------------------------------------ */

/* What all models together need beside one conversation each, in one table; on several dies each for itself. */
static int serve_check(pn_cli *c, const pn_serve_config *cfg)
{
    uint64_t total = 0, available = 0;
    bool dies = pn_engine_die_count(c->engine) > 1, fits = true;
    printf("%-24s %10s %12s %10s %10s %12s\n", "model", "weights", "KV a token", "scratch", "context", "needs");
    for (size_t i = 0; i < cfg->n_models; i++) {
        const pn_server_model *m = &cfg->model[i].p;
        const pn_plan_params p = {.n_ctx = m->ctx_cap, .kv_type = m->kv_type, .has_kv_type = m->has_kv_type, .dies = m->dies, .n_dies = m->n_dies,
                                  .residency = m->residency, .pin_bytes = m->pin_bytes, .stream_block = m->stream_block,
                                  .stream_depth = m->stream_depth, .expert_cache_bytes = m->expert_cache_bytes, .load_type = m->load_type};
        pn_plan_info info;
        pn_status st = pn_file_open(c->engine, m->path, &c->file, &c->err);
        if (!st)
            st = pn_file_plan(c->file, &p, &info, &c->err);
        pn_file_close(c->file);
        c->file = NULL;
        if (st)
            return pn_cli_fail(c, st);
        const char *slash = strrchr(m->path, '/');
        uint32_t ctx = info.n_ctx_fits ? PN_MIN(info.n_ctx, info.n_ctx_fits) : info.n_ctx;
        uint64_t needs = info.total_bytes - info.kv_bytes + ctx * info.kv_bytes_per_token;
        printf("%-24.24s %10s %12s %10s %10" PRIu32 " %12s\n", m->name ? m->name : slash ? slash + 1 : m->path, pn_out_bytes(info.weight_bytes).text,
               pn_out_bytes(info.kv_bytes_per_token).text, pn_out_bytes(info.scratch_bytes).text, ctx, pn_out_bytes(needs).text);
        total += needs;
        available = info.available_bytes;
        fits = fits && (!available || needs <= available);
    }
    if (!dies) {
        fits = !available || total <= available;
        printf("%-24s %*s %12s\n", "together", 46, "", pn_out_bytes(total).text);
    }
    if (!dies && available)
        printf("%-24s %*s %12s\n", "available now", 46, "", pn_out_bytes(available).text);
    printf("verdict: %s\n", fits ? "fits" : "does not fit");
    return fits ? PN_EXIT_OK : PN_EXIT_REFUSED;
}

/* ------------------------------------------------------------------------------------------
 * Serving
 * ------------------------------------------------------------------------------------------ */

/* A key file's text; 0 or the exit code. */
static int serve_keys(pn_cli *c, const char *flag, pn_str *text, const char **out)
{
    const char *path = pn_args_text(&c->args, flag, NULL);
    if (!path)
        return PN_EXIT_OK;
    int code = pn_cli_read_file(c, path, text);
    if (!code && memchr(pn_str_cstr(text), 0, text->len))
        return pn_cli_usage(c, "--%s: '%s' is not allowed: it is no text file", flag, path);
    *out = pn_str_cstr(text);
    return code;
}

static pn_server_params serve_params(pn_cli *c, const char **cors)
{
    const pn_args *a = &c->args;
    const char *metrics = pn_args_text(a, "metrics", "default");
    pn_server_params p = {
        .size = sizeof p, .cors = cors, .queue = (uint32_t)pn_args_int(a, "queue", 0), .default_max_new = (uint32_t)pn_args_int(a, "default-max-new", 0),
        .ctx_floor = (uint32_t)pn_args_int(a, "ctx-floor", 0),
        .idle_ms = pn_args_ms(a, "idle-timeout", 0), .drain_ms = pn_args_ms(a, "drain-timeout", 0),
        .max_body = (uint32_t)PN_MIN(pn_args_size(a, "max-body", 0), (uint64_t)UINT32_MAX),
        .max_connections = (uint32_t)pn_args_int(a, "max-connections", 0),
        .metrics = strcmp(metrics, "vllm") == 0 ? PN_METRICS_VLLM : strcmp(metrics, "off") == 0 ? PN_METRICS_OFF : PN_METRICS_DEFAULT,
        .build = c->build, .log = pn_cli_log, .log_user = c, .log_json = strcmp(pn_args_text(a, "log", "text"), "json") == 0};
    while (p.n_cors < 16 && pn_args_nth(a, "cors", p.n_cors)) {
        cors[p.n_cors] = pn_args_nth(a, "cors", p.n_cors);
        p.n_cors++;
    }
    return p;
}

/* systemd hands sockets over from descriptor 3 on (sd_listen_fds(3)). */
static int serve_handed(void)
{
    const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
    int64_t v = 0, n = 0;
    bool ours = pid && fds && pn_parse_i64(pid, 1, INT32_MAX, &v) && v == (int64_t)getpid() && pn_parse_i64(fds, 1, 8, &n);
    return ours ? (int)n : 0;
}

/* *where: for the ready line. */
static pn_status serve_listen(pn_cli *c, pn_server *s, char *where, size_t cap)
{
    const char *path = pn_args_text(&c->args, "socket", NULL), *host = pn_args_text(&c->args, "host", "127.0.0.1");
    char address[300], bound[160];
    int handed = serve_handed();
    pn_status st = PN_OK;
    for (int i = 0; i < handed && !st; i++) {
        snprintf(address, sizeof address, "fd:%d", 3 + i);
        st = pn_server_listen(s, address, bound, sizeof bound, &c->err);
    }
    if (!handed) {
        bool six = strchr(host, ':') != NULL && host[0] != '[';
        if (path)
            snprintf(address, sizeof address, "unix:%s", path);
        else
            snprintf(address, sizeof address, six ? "[%s]:%d" : "%s:%d", host, (int)pn_args_int(&c->args, "port", 8080));
        st = pn_server_listen(s, address, bound, sizeof bound, &c->err);
    }
    if (!st)
        snprintf(where, cap, strchr(bound, '/') || strncmp(bound, "fd:", 3) == 0 ? "%s" : "http://%s", bound);
    return st;
}

/* Until every model is ready, or one cannot be. */
static pn_status serve_wait(pn_cli *c, pn_server *s)
{
    pn_status st;
    while ((st = pn_server_ready(s, &c->err)) == PN_E_STATE && pn_server_running(s))
        if ((st = pn_server_poll(s, -1, &c->err)) != PN_OK)
            return st;
    return pn_server_running(s) ? st : PN_OK;
}

static int serve_run(pn_cli *c, pn_server *s, const pn_serve_config *cfg)
{
    char where[200];
    pn_status st = serve_listen(c, s, where, sizeof where);
    for (size_t i = 0; i < cfg->n_models && !st; i++)
        st = pn_server_load(s, &cfg->model[i].p, &c->err);
    if (st)
        return st == PN_E_INVALID || st == PN_E_UNSUPPORTED ? pn_cli_usage(c, "%s", c->err.text) : pn_cli_fail(c, st);
    pn_cli_catch_stop(s);
    st = serve_wait(c, s);
    if (st)
        return pn_cli_fail(c, st);
    if (pn_server_running(s))
        printf("listening on %s\n", where);
    fflush(stdout);
    while (pn_server_running(s) && !st)
        st = pn_server_poll(s, -1, &c->err);
    return st ? pn_cli_fail(c, st) : PN_EXIT_OK;
}

/* What it runs on, and the visible dies. */
static void serve_start_lines(const pn_cli *c)
{
    pn_die_info d = {.kind = ""};
    (void)pn_engine_die(c->engine, 0, &d);
    printf("backend=%s build=%s accelerator=%s\ndies:", pn_backend_name(c->engine), c->build, strcmp(d.kind, "cpu") == 0 ? "none" : d.kind);
    for (uint32_t i = 0; i < pn_engine_die_count(c->engine); i++)
        printf(" %" PRIu32, i);
    printf("\n");
    fflush(stdout);
}

static int serve_open(pn_cli *c, const pn_serve_config *cfg, pn_str keys[2])
{
    const char *cors[16];
    pn_server *s;
    pn_server_params p = serve_params(c, cors);
    int code = serve_keys(c, "api-key-file", &keys[0], &p.api_keys);
    if (!code)
        code = serve_keys(c, "admin-key-file", &keys[1], &p.admin_keys);
    if (code)
        return code;
    serve_start_lines(c);
    pn_status st = pn_server_new(c->engine, &p, &s, &c->err);
    if (st)
        return st == PN_E_INVALID ? pn_cli_usage(c, "%s", c->err.text) : pn_cli_fail(c, st);
    code = serve_run(c, s, cfg);
    pn_cli_catch_stop(NULL);
    pn_server_free(s);
    return code;
}

static int serve_engine(pn_cli *c)
{
    uint64_t cache = pn_args_size(&c->args, "prefix-cache", 0);
    return pn_cli_open_engine_kept(c, &(pn_engine_params){.n_threads = (uint32_t)pn_args_int(&c->args, "threads", 0), .prefix_bytes = cache,
                                                        .no_prefix = pn_args_has(&c->args, "prefix-cache") && !cache});
}

static int serve_main(pn_cli *c)
{
    pn_serve_config *cfg = pn_mem_alloc(&c->mem, PN_ACCT_MISC, sizeof *cfg);
    pn_str keys[2];
    if (!cfg)
        return pn_cli_nomem(c);
    pn_str_init(&keys[0], &c->mem, PN_ACCT_MISC);
    pn_str_init(&keys[1], &c->mem, PN_ACCT_MISC);
    int code = pn_serve_config_read(c, cfg);
    if (!code)
        code = serve_engine(c);
    if (!code)
        code = pn_args_on(&c->args, "check") ? serve_check(c, cfg) : serve_open(c, cfg, keys);
    pn_str_fini(&keys[0]);
    pn_str_fini(&keys[1]);
    pn_serve_config_fini(cfg);
    pn_mem_free(&c->mem, PN_ACCT_MISC, cfg, sizeof *cfg);
    return code;
}

PN_INTERNAL const pn_cmd *pn_cmd_serve(void)
{
    static const pn_cmd cmd = {"serve", "--model FILE [FLAGS]", "answer requests over HTTP, as OpenAI's API does", serve_flags, 0, 0, serve_main};
    return &cmd;
}

#endif /* PANTHEON_CLI */
