/* SPDX-License-Identifier: AGPL-3.0-only */
/* folder.c - a model as published, a Hugging Face folder, goes on with a text; each token is shown as it comes:
 *
 *     cc -O2 folder.c pantheon.c -lm -lpthread -o folder
 *     ./folder path/to/folder "Once upon a time"
 *
 * Nothing is converted: the weights are used where they lie in the folder's files.  A GGUF file would do as well. */
#include "pantheon.h"
#include <stdio.h>
#include <string.h>

static int show(void *user, const char *text, size_t len, pn_token token)       /* nonzero stops */
{
    (void)user;
    printf("%6d  ", (int)token);
    fwrite(text, 1, len, stdout);                       /* empty while a character is not whole */
    return putchar('\n') == EOF;
}

int main(int argc, char **argv)
{
    pn_engine *engine = NULL;
    pn_model *model = NULL;
    pn_session *session = NULL;
    pn_sampling sampling;
    pn_model_info info;
    pn_token prompt[256];
    pn_generate_params g = {.prompt = prompt, .max_tokens = 20, .sampling = &sampling, .on_text = show};
    const pn_session_params size = {.n_ctx = 300};
    const char *text = argc > 2 ? argv[2] : "Once upon a time";
    pn_err err = {0};

    if (argc < 2) {
        fprintf(stderr, "usage: folder FOLDER [TEXT]\n");
        return 2;
    }
    pn_status st = pn_engine_open(&engine, NULL, &err);
    if (!st)
        st = pn_model_load(engine, argv[1], NULL, &model, &err);
    if (!st)
        st = pn_tokenize(model, text, strlen(text), PN_TOKENIZE_BOS, prompt, 256, &g.n_prompt, &err);
    if (!st && g.n_prompt > 256) {
        snprintf(err.text, sizeof err.text, "a text of %zu tokens: at most 256 here", g.n_prompt);
        st = PN_E_INVALID;
    }
    if (!st)
        st = pn_session_new(model, &size, &session, &err);
    if (!st) {
        pn_model_describe(model, &info);
        printf("%s: %s, weights %s\n", info.name, info.arch, info.type);
        pn_sampling_default(model, &sampling);          /* as the folder's generation_config.json says */
        st = pn_session_generate(session, &g, NULL, &err);
    }
    if (st)
        fprintf(stderr, "%s\n", err.text);
    pn_session_free(session);
    pn_model_free(model);
    pn_engine_close(engine);
    return st != PN_OK;
}
