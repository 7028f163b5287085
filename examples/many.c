/* SPDX-License-Identifier: AGPL-3.0-only */
/* many.c - several stories at once, a token of each in every pass over the weights:
 *
 *     cc -O2 many.c pantheon.c -lm -lpthread -o many
 *     ./many model.gguf "Once upon a time" "The little dog" "It was raining"
 *
 * This program drives the steps itself; pn_engine_start() would have the engine do it on its own thread. */
#include "pantheon.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct story {
    pn_session *session;
    pn_request *request;
    char text[4096];
    size_t len;
} story;

static int hear(void *user, const char *text, size_t n, pn_token token)         /* nonzero stops this story */
{
    story *s = user;
    (void)token;
    if (n > sizeof s->text - s->len)
        return 1;
    memcpy(s->text + s->len, text, n);
    s->len += n;
    return 0;
}

static pn_status begin(story *s, pn_model *model, const char *prompt, pn_err *err)
{
    const pn_session_params size = {.n_ctx = 256};
    pn_sampling how;
    pn_token tokens[128];
    pn_generate_params p = {.prompt = tokens, .max_tokens = 60, .sampling = &how, .on_text = hear, .user = s};
    pn_status st = pn_tokenize(model, prompt, strlen(prompt), PN_TOKENIZE_BOS, tokens, 128, &p.n_prompt, err);
    if (!st && p.n_prompt > 128) {
        snprintf(err->text, sizeof err->text, "a prompt of %zu tokens: at most 128 here", p.n_prompt);
        return PN_E_INVALID;
    }
    if (!st)
        st = pn_session_new(model, &size, &s->session, err);
    pn_sampling_default(model, &how);
    return st ? st : pn_request_new(s->session, &p, &s->request, err);
}

int main(int argc, char **argv)
{
    pn_engine *engine = NULL;
    pn_model *model = NULL;
    pn_err err = {0};
    uint32_t active = 1;
    int n = argc > 2 ? argc - 2 : 0;
    story *stories = calloc((size_t)n + 1, sizeof *stories);
    pn_status st = stories ? PN_OK : PN_E_NOMEM;

    snprintf(err.text, sizeof err.text, "usage: many MODEL.gguf PROMPT...");
    if (!st)
        st = n ? pn_engine_open(&engine, NULL, &err) : PN_E_INVALID;
    if (!st)
        st = pn_model_load(engine, argv[1], NULL, &model, &err);
    for (int i = 0; i < n && !st; i++)
        st = begin(&stories[i], model, argv[i + 2], &err);
    while (!st && active)
        st = pn_engine_step(engine, 0, &active, &err);
    for (int i = 0; i < n && !st; i++) {
        st = pn_request_result(stories[i].request, NULL, &err);
        printf("%s%.*s\n\n", argv[i + 2], (int)stories[i].len, stories[i].text);
    }
    if (st)
        fprintf(stderr, "%s\n", err.text);
    for (int i = 0; stories && i < n; i++) {
        pn_request_free(stories[i].request);
        pn_session_free(stories[i].session);
    }
    pn_model_free(model);
    pn_engine_close(engine);
    free(stories);
    return st != PN_OK;
}
