/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cmd_router.c - `pantheon router`: one port in front of several `pantheon serve` processes.
 *
 * No engine and no model: it starts in milliseconds.  The first two lines say what it is and who is behind it, the
 * third, when every backend has been looked at once, where it listens; then comes the log.  All of that is stdout's.
 */
#include "cli/pn_cli.h"

#ifdef PANTHEON_CLI

#include <stdio.h>

#include "serve/pn_router.h"

static const pn_flag router_flags[] = {
    {"listen", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "ADDRESS", "127.0.0.1:8080", "HOST:PORT (port 0: any free one), [ADDRESS]:PORT, unix:PATH or fd:NUMBER"},
    {"backend", NULL, 0, PN_FLAG_TEXT, true, 0, 0, "URL", NULL, "http://HOST:PORT or unix:PATH of a server; repeatable"},
    {"affinity", NULL, 0, PN_FLAG_CHOICE, false, 0, 0, "header|prefix|none", "prefix",
     "a conversation stays where it is: by its session's name, by that and its beginning, or not at all"},
    {"health-interval", NULL, 0, PN_FLAG_TIME, false, 50, 3600000, "TIME", "2s", "between two checks of a backend"},
    {"connect-timeout", NULL, 0, PN_FLAG_TIME, false, 1, 600000, "TIME", "5s", "to reach a backend, and for a check"},
    {"answer-timeout", NULL, 0, PN_FLAG_TIME, false, 1, 86400000, "TIME", "10m", "silence of a backend at work"},
    {"backend-key-file", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "an API key, to ask backends for their models"},
    {"idle-timeout", NULL, 0, PN_FLAG_TIME, false, 1, 86400000, "TIME", "60s", "connections without a request are closed after"},
    {"drain-timeout", NULL, 0, PN_FLAG_TIME, false, 1, 86400000, "TIME", "30s", "what is under way may take when the router stops"},
    {"max-body", NULL, 0, PN_FLAG_SIZE, false, 0, 0, "SIZE", "32M", "largest request"},
    {"max-connections", NULL, 0, PN_FLAG_INT, false, 1, 1 << 20, "N", "4096", "connections of clients at once"},
    {"log", NULL, 0, PN_FLAG_CHOICE, false, 0, 0, "text|json", "text", "shape of the log's lines"},
    PN_ROW_QUIET,
    PN_ROW_END
};

static void router_stop(void *router) { pn_router_stop(router); }

static pn_affinity_mode router_affinity(const pn_cli *c)
{
    const char *text = pn_args_text(&c->args, "affinity", "prefix");
    return strcmp(text, "none") == 0 ? PN_AFFINITY_NONE : strcmp(text, "header") == 0 ? PN_AFFINITY_HEADER : PN_AFFINITY_PREFIX;
}

/* The first line of the key file that holds a key; 0 or the exit code. */
static int router_key(pn_cli *c, pn_str *key, const char **out)
{
    const char *path = pn_args_text(&c->args, "backend-key-file", NULL);
    pn_str text;
    if (!path)
        return PN_EXIT_OK;
    pn_str_init(&text, &c->mem, PN_ACCT_MISC);
    int code = pn_cli_read_file(c, path, &text);
    for (const char *line = pn_str_cstr(&text); !code && *line && !key->len;) {
        size_t n = strcspn(line, "\r\n"), from = strspn(line, " \t"), len = strcspn(line + from, " \t#\r\n");
        pn_str_add(key, line + from, from < n ? len : 0);
        line += n + strspn(line + n, "\r\n");
    }
    pn_str_fini(&text);
    if (!code && !key->len)
        return pn_cli_usage(c, "--backend-key-file: '%s' is not allowed: expected a file with an API key", path);
    *out = pn_str_cstr(key);
    return code;
}

static int router_told(pn_cli *c, pn_status st)
{
    return st == PN_E_INVALID || st == PN_E_UNSUPPORTED ? pn_cli_usage(c, "%s", c->err.text) : pn_cli_fail(c, st);
}

static int router_serve(pn_cli *c, pn_router *r)
{
    char bound[160];
    pn_status st = pn_router_listen(r, pn_args_text(&c->args, "listen", "127.0.0.1:8080"), bound, sizeof bound, &c->err);
    if (st)
        return router_told(c, st);
    pn_cli_on_stop(router_stop, r);
    while (!pn_router_settled(r) && pn_router_running(r) && !st)
        st = pn_router_poll(r, -1, &c->err);
    if (!st && pn_router_running(r))
        printf("listening on %s%s\n", strchr(bound, '/') || strncmp(bound, "fd:", 3) == 0 ? "" : "http://", bound);
    fflush(stdout);
    while (pn_router_running(r) && !st)
        st = pn_router_poll(r, -1, &c->err);
    return st ? pn_cli_fail(c, st) : PN_EXIT_OK;
}

static int router_main(pn_cli *c)
{
    const pn_args *a = &c->args;
    const char *backends[PN_AFFINITY_SERVERS + 1];
    pn_router *r = NULL;
    pn_str key;
    pn_router_params p = {
        .backends = backends, .affinity = router_affinity(c), .max_body = pn_args_size(a, "max-body", 0),
        .max_connections = (uint32_t)pn_args_int(a, "max-connections", 0), .idle_ms = pn_args_ms(a, "idle-timeout", 0),
        .drain_ms = pn_args_ms(a, "drain-timeout", 0), .health_ms = pn_args_ms(a, "health-interval", 0),
        .connect_ms = pn_args_ms(a, "connect-timeout", 0), .answer_ms = pn_args_ms(a, "answer-timeout", 0), .build = c->build,
        .log = pn_cli_log, .log_user = c, .log_json = strcmp(pn_args_text(a, "log", "text"), "json") == 0};
    while (p.n_backends < PN_COUNT_OF(backends) && pn_args_nth(a, "backend", p.n_backends)) {
        backends[p.n_backends] = pn_args_nth(a, "backend", p.n_backends);
        p.n_backends++;
    }
    if (!p.n_backends)
        return pn_cli_usage(c, "--backend is missing: expected http://HOST:PORT or unix:PATH, once for each server");
    pn_str_init(&key, &c->mem, PN_ACCT_MISC);
    int code = router_key(c, &key, &p.backend_key);
    if (!code) {
        pn_status st = pn_router_new(&c->mem, &p, &r, &c->err);
        if (st)
            code = router_told(c, st);
    }
    if (!code) {
        printf("router build=%s affinity=%s\nbackends:", c->build, pn_args_text(a, "affinity", "prefix"));
        for (size_t i = 0; i < p.n_backends; i++)
            printf("%s %s", i ? "," : "", backends[i]);
        putchar('\n');
        fflush(stdout);
        code = router_serve(c, r);
        pn_cli_on_stop(NULL, NULL);
        pn_router_free(r);
    }
    pn_str_fini(&key);
    return code;
}

PN_INTERNAL const pn_cmd *pn_cmd_router(void)
{
    static const pn_cmd cmd = {"router", "--backend URL [FLAGS]", "one port in front of several servers", router_flags, 0, 0, router_main};
    return &cmd;
}

#endif /* PANTHEON_CLI */
