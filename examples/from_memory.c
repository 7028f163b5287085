/* SPDX-License-Identifier: AGPL-3.0-only */
/* from_memory.c - a model that is already in memory, on a host without threads and without files:
 *
 *     cc -O2 -DPN_ENABLE_THREADS=0 -DPN_ENABLE_FILES=0 from_memory.c pantheon.c -lm -o from_memory
 *     ./from_memory model.gguf "Once upon a time"
 *
 * Only this program reads a file; the library is given bytes, and uses weights where they lie. */
#include "pantheon.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int say(void *user, const char *text, size_t len, pn_token token)
{
    (void)user, (void)token;
    return fwrite(text, 1, len, stdout) != len;
}

static void *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    void *bytes = NULL;
    if (f && fseek(f, 0, SEEK_END) == 0 && (*n = (size_t)ftell(f)) > 0 && (bytes = malloc(*n)) != NULL) {
        rewind(f);
        *n = fread(bytes, 1, *n, f);
    }
    if (f)
        fclose(f);
    return bytes;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "models/demo.gguf", *prompt = argc > 2 ? argv[2] : "Once upon a time";
    pn_engine *engine = NULL;
    pn_file *file = NULL;
    pn_model *model = NULL;
    pn_session *session = NULL;
    pn_token ids[512];
    pn_generate_params p = {.prompt = ids, .max_tokens = 40, .on_text = say};     /* no sampling: greedy */
    pn_err err = {PN_OK, "the prompt is longer than 512 tokens"};
    size_t n = 0;
    void *bytes = slurp(path, &n);
    if (!bytes) {
        fprintf(stderr, "cannot read %s\n", path);
        return 1;
    }
    int failed = pn_engine_open(&engine, NULL, &err) || pn_file_open_memory(engine, bytes, n, &file, &err) ||
                 pn_model_load_file(file, NULL, &model, &err) || pn_session_new(model, NULL, &session, &err) ||
                 pn_tokenize(model, prompt, strlen(prompt), PN_TOKENIZE_BOS, ids, 512, &p.n_prompt, &err) ||
                 p.n_prompt > 512 || pn_session_generate(session, &p, NULL, &err);
    fprintf(failed ? stderr : stdout, "%s\n", failed ? err.text : "");
    pn_session_free(session);
    pn_model_free(model);
    pn_file_close(file);
    pn_engine_close(engine);
    free(bytes);        /* last: the model used it */
    return failed;
}
