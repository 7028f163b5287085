/* SPDX-License-Identifier: AGPL-3.0-only */
/* embed.c - ask a model one question:  cc -O2 embed.c pantheon.c -lm -lpthread -o embed
 *                                      ./embed model.gguf "What is the capital of France?" */
#include "pantheon.h"
#include <stdio.h>

static int say(void *user, const pn_output_event *e)        /* the answer, as it comes; nonzero stops */
{
    (void)user;
    return e->kind == PN_OUTPUT_CONTENT && (fwrite(e->text, 1, e->len, stdout) != e->len || fflush(stdout) != 0);
}

int main(int argc, char **argv)
{
    pn_engine *engine = NULL;
    pn_model *model = NULL;
    pn_session *session = NULL;
    pn_chat *chat = NULL;
    pn_sampling sampling;
    pn_generate_params g = {.max_tokens = 200, .sampling = &sampling};
    pn_chat_reply_params p = {.generate = &g, .on_event = say};
    pn_err err;

    int failed = pn_engine_open(&engine, NULL, &err) ||
                 pn_model_load(engine, argc > 1 ? argv[1] : "models/demo.gguf", NULL, &model, &err) ||
                 pn_session_new(model, NULL, &session, &err) || pn_chat_new(session, NULL, &chat, &err) ||
                 pn_chat_say(chat, "user", argc > 2 ? argv[2] : "What is the capital of France?", 0, &err);
    if (!failed) {
        pn_sampling_default(model, &sampling);
        failed = pn_chat_reply(chat, &p, NULL, &err) != PN_OK;
    }
    fprintf(failed ? stderr : stdout, "%s\n", failed ? err.text : "");
    pn_chat_free(chat);
    pn_session_free(session);
    pn_model_free(model);
    pn_engine_close(engine);
    return failed;
}
