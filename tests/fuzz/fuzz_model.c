/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_model.c - a whole model file from fuzz bytes, through the public API: header, plan, load, a few
 * tokens, a little text.  What the container's own target (fuzz_gguf.c) does not reach: keys, shapes
 * and vocabularies that are well formed and nonsense.
 *
 * Weights may be anything; memory may not: the engine has a limit, so a hostile size is a refusal.
 */
#include "pn_fuzz.h"

static int stop_soon(void *user, uint32_t done, uint32_t total)
{
    (void)done, (void)total;
    return ++*(int *)user > 200;
}

static void use_model(pn_model *m)
{
    pn_session *s = NULL;
    pn_token ids[64];
    char text[256];
    size_t n = 0, len = 0;
    int ticks = 0;
    if (pn_tokenize(m, "Hi <s> \xff\xc3\xa9", 10, PN_TOKENIZE_BOS | PN_TOKENIZE_SPECIAL, ids, 64, &n, NULL) == PN_OK && n <= 64)
        pn_detokenize(m, ids, n, 1, text, sizeof text, &len, NULL);
    const pn_message msg = {"user", "<|im_end|>x", 0};
    if (pn_chat_format(m))
        pn_chat_tokenize(m, NULL, &msg, 1, 0, 1, NULL, 0, &len, NULL);
    if (pn_session_new(m, &(pn_session_params){.n_ctx = 32, .n_batch = 8}, &s, NULL) != PN_OK)
        return;
    pn_session_on_tick(s, stop_soon, &ticks);
    const pn_token any[3] = {0, 1, 2};
    pn_generate_params g = {.prompt = any, .n_prompt = 3, .max_tokens = 2};
    pn_session_generate(s, &g, NULL, NULL);
    pn_session_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pn_engine *e = NULL;
    pn_file *f = NULL;
    pn_model *m = NULL;
    pn_plan_info plan;
    pn_err err;
    if (pn_engine_open(&e, &(pn_engine_params){.n_threads = 1, .mem_limit = 64 << 20}, NULL) != PN_OK)
        return 0;
    if (pn_file_open_memory(e, data, size, &f, &err) == PN_OK) {
        pn_file_plan(f, &(pn_plan_params){.n_ctx = 64, .n_batch = 8}, &plan, &err);
        if (pn_model_load_file(f, NULL, &m, &err) == PN_OK)
            use_model(m);
        pn_model_free(m);
    }
    pn_file_close(f);
    pn_engine_close(e);
    return 0;
}
