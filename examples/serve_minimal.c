/* SPDX-License-Identifier: AGPL-3.0-only */
/* serve_minimal.c - a server in your own program:
 *
 *     cc -O2 serve_minimal.c pantheon.c pantheon_serve.c -lm -lpthread -o serve_minimal
 *     ./serve_minimal model.gguf 127.0.0.1:8080
 *     curl 127.0.0.1:8080/v1/chat/completions -d '{"messages":[{"role":"user","content":"Hello"}]}' */
#include "pantheon.h"
#include <signal.h>
#include <stdio.h>

static pn_server *server;

static void on_signal(int sig)
{
    (void)sig;
    pn_server_stop(server);             /* allowed here: it only says so */
}

int main(int argc, char **argv)
{
    pn_engine *engine = NULL;
    const pn_server_model model = {.path = argc > 1 ? argv[1] : "models/demo.gguf"};
    char where[160];
    pn_err err;

    int failed = pn_engine_open(&engine, NULL, &err) || pn_server_new(engine, NULL, &server, &err) ||
                 pn_server_load(server, &model, &err) ||
                 pn_server_listen(server, argc > 2 ? argv[2] : "127.0.0.1:8080", where, sizeof where, &err);
    if (!failed) {
        printf("listening on http://%s\n", where);
        fflush(stdout);
        signal(SIGINT, on_signal);
        signal(SIGTERM, on_signal);
        while (!failed && pn_server_running(server))
            failed = pn_server_poll(server, -1, &err) != PN_OK;
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
    }
    if (failed)
        fprintf(stderr, "%s\n", err.text);
    pn_server_free(server);
    pn_engine_close(engine);
    return failed;
}
