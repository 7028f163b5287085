/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * daemon.c - a daemon with an event loop of its own, which has a model server inside:
 *
 *     cc -O2 daemon.c pantheon.c pantheon_serve.c -lm -lpthread -o daemon
 *     ./daemon [--listen ADDRESS]... [--name NAME] model.gguf
 *
 * The loop is a poll(2) over three things, and would be the same with epoll, libevent or a GUI's:
 *
 *     pn_server_fd       readable when the server has something to do; pn_server_poll(s, 0, ...) does it
 *     a pipe             signals arrive in it as bytes, so that they are handled where everything else is
 *     a timer            this program's own work, here a clock that ticks each second
 *
 * Routes of its own stand beside the server's: /ticks and /echo.  Everything runs on one thread, so handlers
 * and timer may share variables.  What takes long (prompts, loading, decoding) is on the server's threads.
 *
 * SIGTERM and SIGINT: no new requests, what is under way is finished (at most drain_ms), exit 0.  The second one
 * ends at once.  SIGHUP: a line with what is being served.
 */
#define _POSIX_C_SOURCE 200809L         /* for compilers told -std=c11 */
#include "pantheon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct daemon_state {
    pn_server *server;
    unsigned long ticks;
    long long next_tick_ms;
    int ready;                      /* the models are loaded */
    int stopping;
} daemon_state;

static long long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ------------------------------------------------------------------------------------------
 * Signals: from the handler through a pipe into the loop
 * ------------------------------------------------------------------------------------------ */

static int signal_pipe[2];

static void on_signal(int sig)
{
    int saved = errno;
    unsigned char byte = (unsigned char)sig;
    if (write(signal_pipe[1], &byte, 1) < 0)
        byte = 0;                   /* the pipe is full of signals: one more says nothing new */
    errno = saved;
}

static int signals_open(void)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_signal;
    sa.sa_flags = SA_RESTART;
    sigemptyset(&sa.sa_mask);
    if (pipe(signal_pipe) != 0)
        return -1;
    for (int i = 0; i < 2; i++)
        if (fcntl(signal_pipe[i], F_SETFL, O_NONBLOCK) != 0 || fcntl(signal_pipe[i], F_SETFD, FD_CLOEXEC) != 0)
            return -1;
    return sigaction(SIGTERM, &sa, NULL) || sigaction(SIGINT, &sa, NULL) || sigaction(SIGHUP, &sa, NULL) ? -1 : 0;
}

static void signals_handle(daemon_state *d)
{
    unsigned char byte;
    while (read(signal_pipe[0], &byte, 1) == 1) {
        if (byte == SIGHUP) {
            printf("%lu ticks, %s\n", d->ticks, d->stopping ? "stopping" : d->ready ? "ready" : "loading");
        } else {
            d->stopping = 1;
            pn_server_stop(d->server);
        }
        fflush(stdout);
    }
}

/* ------------------------------------------------------------------------------------------
 * Routes of our own
 * ------------------------------------------------------------------------------------------ */

static void get_ticks(void *user, const pn_server_request *q, pn_server_response *r)
{
    static char text[80];           /* copied when we return; one thread */
    const daemon_state *d = user;
    (void)q;
    int n = snprintf(text, sizeof text, "{\"ticks\":%lu,\"ready\":%s}\n", d->ticks, d->ready ? "true" : "false");
    r->body = text;
    r->body_len = (size_t)n;
}

/* What was sent comes back, as what it was sent. */
static void post_echo(void *user, const pn_server_request *q, pn_server_response *r)
{
    (void)user;
    if (!q->body_len) {
        static const char no[] = "nothing was sent\n";
        r->status = 400;
        r->content_type = "text/plain";
        r->body = no;
        r->body_len = sizeof no - 1;
        return;
    }
    const char *type = pn_server_field(q, "content-type");
    r->content_type = type ? type : "application/octet-stream";
    r->body = q->body;
    r->body_len = q->body_len;
}

/* ------------------------------------------------------------------------------------------
 * The loop
 * ------------------------------------------------------------------------------------------ */

static void tick(daemon_state *d)
{
    d->ticks++;
    d->next_tick_ms += 1000;
}

/* When the next thing is due, ours or the server's, in milliseconds. */
static int loop_timeout(const daemon_state *d)
{
    long long left = d->next_tick_ms - now_ms();
    int ours = left < 0 ? 0 : (int)left, servers = pn_server_timeout(d->server);
    return servers >= 0 && servers < ours ? servers : ours;
}

static pn_status loop_run(daemon_state *d, pn_err *err)
{
    pn_status st = PN_OK;
    d->next_tick_ms = now_ms() + 1000;
    while (!st && pn_server_running(d->server)) {
        struct pollfd f[2] = {{.fd = pn_server_fd(d->server), .events = POLLIN}, {.fd = signal_pipe[0], .events = POLLIN}};
        if (poll(f, 2, loop_timeout(d)) < 0 && errno != EINTR)
            break;
        signals_handle(d);
        while (now_ms() >= d->next_tick_ms)
            tick(d);
        st = pn_server_poll(d->server, 0, err);
        if (!st && !d->ready && !d->stopping) {
            pn_status models = pn_server_ready(d->server, err);
            if (models == PN_OK) {
                d->ready = 1;
                puts("ready");
                fflush(stdout);
            } else if (models != PN_E_STATE)        /* that one: still loading */
                st = models;
        }
    }
    return st;
}

static void say(void *user, pn_log_level level, const char *text)
{
    (void)user, (void)level;
    printf("%s\n", text);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    daemon_state d = {0};
    pn_engine *engine = NULL;
    pn_server_model model = {.size = sizeof model};
    pn_server_params params = {.size = sizeof params, .log = say, .drain_ms = 10000};
    const char *address[8];
    size_t n_addresses = 0;
    char where[160];
    pn_err err;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--listen") == 0 && i + 1 < argc && n_addresses < 8)
            address[n_addresses++] = argv[++i];
        else if (strcmp(argv[i], "--name") == 0 && i + 1 < argc)
            model.name = argv[++i];
        else
            model.path = argv[i];
    }
    if (!model.path) {
        fprintf(stderr, "usage: %s [--listen HOST:PORT|unix:PATH]... [--name NAME] model.gguf\n", argv[0]);
        return 2;
    }
    if (!n_addresses)
        address[n_addresses++] = "127.0.0.1:8080";
    if (signals_open() != 0) {
        perror("signals");
        return 1;
    }

    int failed = pn_engine_open(&engine, NULL, &err) || pn_server_new(engine, &params, &d.server, &err) ||
                 pn_server_handle(d.server, "GET", "/ticks", 1, get_ticks, &d, &err) ||
                 pn_server_handle(d.server, "POST", "/echo", 0, post_echo, &d, &err) || pn_server_load(d.server, &model, &err);
    for (size_t i = 0; i < n_addresses && !failed; i++) {
        failed = pn_server_listen(d.server, address[i], where, sizeof where, &err) != PN_OK;
        if (!failed)
            printf("listening on %s\n", where);
    }
    fflush(stdout);
    if (!failed)
        failed = loop_run(&d, &err) != PN_OK;
    if (failed)
        fprintf(stderr, "%s: %s\n", argv[0], err.text);
    pn_server_free(d.server);
    pn_engine_close(engine);
    if (!failed)
        puts("stopped");
    return failed;
}
