/* SPDX-License-Identifier: AGPL-3.0-only */
/* embed.c - ask a model one question:  cc -O2 embed.c pantheon.c -lm -lpthread -o embed
 *                                      ./embed model.gguf "What is the capital of France?" */
#include "pantheon.h"
#include <stdio.h>

static int say(void *user, const char *text, size_t len, pn_token token)
{
    (void)user, (void)token;
    return fwrite(text, 1, len, stdout) != len || fflush(stdout) != 0;      /* nonzero: stop */
}

int main(int argc, char **argv)
{
    pn_engine *engine = NULL;
    pn_model *model = NULL;
    pn_session *session = NULL;
    pn_err err = {PN_OK, "the question is longer than 2048 tokens"};
    pn_token ids[2048];
    pn_message ask = {"user", argc > 2 ? argv[2] : "What is the capital of France?", 0};
    pn_sampling sampling;
    pn_generate_params p = {.prompt = ids, .max_tokens = 200, .sampling = &sampling, .on_text = say};

    int failed = pn_engine_open(&engine, NULL, &err) ||
                 pn_model_load(engine, argc > 1 ? argv[1] : "models/demo.gguf", NULL, &model, &err) ||
                 pn_session_new(model, NULL, &session, &err) ||
                 pn_chat_tokenize(model, NULL, &ask, 1, 0, 1, ids, 2048, &p.n_prompt, &err) || p.n_prompt > 2048;
    if (!failed) {
        pn_sampling_default(model, &sampling);
        failed = pn_session_generate(session, &p, NULL, &err) != PN_OK;
    }
    fprintf(failed ? stderr : stdout, "%s\n", failed ? err.text : "");
    pn_session_free(session);
    pn_model_free(model);
    pn_engine_close(engine);
    return failed;
}
