/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * schema_noise.c - texts that a model of random weights writes under JSON Schemas.
 *
 *     schema_noise MODEL COUNT [SKIP STRIDE] < schemas
 *
 * One schema a line on standard input; those at SKIP, SKIP + STRIDE, ... are looked at.  For each,
 * records on standard output: a line "index TAB finish TAB bytes", then so many bytes and a newline
 * (a text may have newlines of its own).  finish: "stop", the text is complete; "length", max_tokens
 * cut it; "refused", the schema does not compile, and the bytes say why.
 *
 * Noise knows no reason to end a string or a list, so tokens that close something get a bias, from 2
 * (texts run to hundreds of characters) to 5 in turn.  It moves odds, never what is allowed.
 */
#include "pantheon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOISE_TOKENS = 2000, NOISE_TEXT = 1 << 16, NOISE_LINE = 1 << 20, NOISE_BIAS = 64 };

static struct noise {
    pn_engine *engine;
    pn_model *model;
    pn_session *session;
    pn_logit_bias bias[NOISE_BIAS];
    size_t n_bias, len;
    char text[NOISE_TEXT];
} noise;

static int noise_fail(const pn_err *err)
{
    fprintf(stderr, "schema_noise: %s\n", err->text);
    return 1;
}

static int noise_add(void *user, const char *text, size_t len, pn_token token)
{
    struct noise *n = user;
    (void)token;
    if (len > sizeof n->text - n->len)
        return 1;
    memcpy(n->text + n->len, text, len);
    n->len += len;
    return 0;
}

static void noise_find_closers(struct noise *n)
{
    for (pn_token t = 0; t < (pn_token)pn_vocab_size(n->model) && n->n_bias < NOISE_BIAS; t++) {
        const char *text;
        size_t len;
        if (pn_token_ends(n->model, t) ||
            (pn_token_text(n->model, t, &text, &len) == PN_OK && len == 1 && strchr("\"]}", text[0]) && text[0]))
            n->bias[n->n_bias++].token = t;
    }
}

/* The k-th text; the seed makes it the same on each run. */
static int noise_one(struct noise *n, long index, uint64_t k, pn_grammar *g)
{
    const pn_token first = pn_token_special(n->model, PN_SPECIAL_BOS);
    const pn_sampling sampling = {.temperature = 1.0f, .has_seed = 1, .seed = (uint64_t)index << 32 | k, .bias = n->bias, .n_bias = n->n_bias};
    const pn_generate_params p = {.prompt = &first, .n_prompt = 1, .max_tokens = NOISE_TOKENS, .sampling = &sampling,
                                  .on_text = noise_add, .user = n, .grammar = g};
    pn_generate_result result;
    pn_err err;
    for (size_t i = 0; i < n->n_bias; i++)
        n->bias[i].bias = 2.0f + (float)(k % 4);
    n->len = 0;
    if (pn_session_truncate(n->session, 0, &err) || pn_session_generate(n->session, &p, &result, &err))
        return noise_fail(&err);
    printf("%ld\t%s\t%zu\n", index, result.finish == PN_FINISH_STOP ? "stop" : "length", n->len);
    fwrite(n->text, 1, n->len, stdout);
    putchar('\n');
    return 0;
}

static int noise_schema(struct noise *n, long index, const char *schema, uint64_t count)
{
    pn_grammar *g = NULL;
    pn_err err;
    int failed = 0;
    if (pn_grammar_json_schema(n->engine, schema, strlen(schema), &g, &err) != PN_OK) {
        printf("%ld\trefused\t%zu\n%s\n", index, strlen(err.text), err.text);
        return 0;
    }
    for (uint64_t k = 0; k < count && !failed; k++)
        failed = noise_one(n, index, k, g);
    pn_grammar_free(g);
    return failed;
}

int main(int argc, char **argv)
{
    const pn_session_params params = {.n_ctx = NOISE_TOKENS + 16, .n_batch = 16};
    const pn_engine_params engine = {.n_threads = 1};
    const long skip = argc > 4 ? atol(argv[3]) : 0, stride = argc > 4 ? atol(argv[4]) : 1;
    static char line[NOISE_LINE];
    pn_err err;
    int failed = 0;
    if (argc < 3 || stride < 1) {
        fprintf(stderr, "usage: schema_noise MODEL COUNT [SKIP STRIDE] < schemas\n");
        return 2;
    }
    if (pn_engine_open(&noise.engine, &engine, &err) || pn_model_load(noise.engine, argv[1], NULL, &noise.model, &err) ||
        pn_session_new(noise.model, &params, &noise.session, &err))
        failed = noise_fail(&err);
    else
        noise_find_closers(&noise);
    for (long index = 0; !failed && fgets(line, sizeof line, stdin); index++) {
        line[strcspn(line, "\n")] = 0;
        if (index % stride == skip)
            failed = noise_schema(&noise, index, line, strtoull(argv[2], NULL, 10));
    }
    pn_session_free(noise.session);
    pn_model_free(noise.model);
    pn_engine_close(noise.engine);
    return failed;
}
