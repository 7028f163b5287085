/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_oai_more.c - embeddings, and texts to tokens and back: requests and answers.
 */
#include "reply_heard.h"

#include "serve/pn_oai_embeddings.h"
#include "serve/pn_oai_tokens.h"

static pn_mem libc_mem;

/* ------------------------------------------------------------------------------------------
 * Embeddings
 * ------------------------------------------------------------------------------------------ */

static bool embed(pn_oai_embeddings *q, const char *body, pn_oai_error *e) { return pn_oai_embeddings_parse(q, &libc_mem, body, strlen(body), e); }

static void embeddings_are_asked_for(void)
{
    pn_oai_embeddings q;
    pn_oai_error e;
    if (PN_CHECK(embed(&q, "{\"model\":\"m\",\"input\":[\"a\",[1,2],\"c\"],\"encoding_format\":\"base64\",\"dimensions\":64,\"pooling\":\"last\",\"user\":\"u\","
                           "\"temperature\":1}", &e), "%s", e.message)) {
        PN_CHECK(q.inputs.n == 3 && q.inputs.n_tokens == 2 && q.base64 && q.dimensions == 64 && q.pooling == PN_OAI_POOLING_LAST && q.common.model.len == 1);
        PN_CHECK(strcmp(pn_str_cstr(&q.common.ignored), "\"user\",\"temperature\"") == 0, "%s", pn_str_cstr(&q.common.ignored));
        pn_oai_embeddings_fini(&q);
    }
    if (PN_CHECK(embed(&q, "{\"input\":\"a\",\"dimensions\":null,\"pooling\":\"mean\"}", &e), "%s", e.message)) {
        PN_CHECK(q.inputs.n == 1 && !q.base64 && !q.dimensions && q.pooling == PN_OAI_POOLING_MEAN && !q.common.model.data);
        pn_oai_embeddings_fini(&q);
    }
}

static void embeddings_are_refused(void)
{
    static const struct { const char *body, *param, *words; } cases[] = {
        {"{}", "input", "found nothing"}, {"{\"input\":[]}", "input", "empty array"}, {"{\"input\":\"\"}", "input", "empty string"},
        {"{\"input\":[\"a\",\"\"]}", "input[1]", "empty string"}, {"{\"input\":[[]]}", "input[0]", "at least one token"}, {"{\"input\":3}", "input", "found number"},
        {"{\"input\":\"a\",\"encoding_format\":\"hex\"}", "encoding_format", "float or base64, found 'hex'"},
        {"{\"input\":\"a\",\"pooling\":\"cls\"}", "pooling", "mean or last"}, {"{\"input\":\"a\",\"dimensions\":0}", "dimensions", "1 to"},
        {"{\"input\":\"a\",\"model\":3}", "model", "a string"},
    };
    pn_str many;
    pn_oai_embeddings q;
    pn_oai_error e = {0};
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        bool ok = embed(&q, cases[i].body, &e);
        PN_CHECK(!ok && e.status == 400 && strcmp(e.param, cases[i].param) == 0 && strstr(e.message, cases[i].words), "%s: '%s' '%s'", cases[i].body,
                 e.param, e.message);
    }
    pn_str_init(&many, &libc_mem, PN_ACCT_MISC);
    pn_str_addz(&many, "{\"input\":[\"a\"");
    for (int i = 0; i < 2048; i++)
        pn_str_addz(&many, ",\"a\"");
    pn_str_addz(&many, "]}");
    PN_CHECK(!embed(&q, many.data, &e) && strcmp(e.param, "input[2048]") == 0, "%s", e.param);
    pn_str_fini(&many);
}

static void embeddings_go_out(void)
{
    static const float a[] = {1, -2.5f, 0.1f}, b[] = {0, 1e-8f, 3};
    static const float *const vectors[] = {a, b};
    /* base64 of the bytes 00 00 80 3f 00 00 20 c0 cd cc cc 3d; of one float 00 00 80 3f */
    static const struct { size_t dim; bool base64; const char *want; } cases[] = {
        {3, false, "{\"object\":\"list\",\"data\":[{\"object\":\"embedding\",\"index\":0,\"embedding\":[1,-2.5,0.1]},{\"object\":\"embedding\",\"index\":1,"
                   "\"embedding\":[0,1e-08,3]}],\"model\":\"m\",\"usage\":{\"prompt_tokens\":10,\"total_tokens\":10}}"},
        {3, true, "\"embedding\":\"AACAPwAAIMDNzMw9\"}"}, {1, true, "\"embedding\":\"AACAPw==\"}"}, {2, true, "\"embedding\":\"AACAPwAAIMA=\"}"},
        {0, true, "\"embedding\":\"\"}"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        pn_str s;
        pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
        pn_oai_embeddings_body(&s, "m", vectors, 2, cases[i].dim, cases[i].base64, &heard_usage);
        PN_CHECK(strstr(pn_str_cstr(&s), cases[i].want), "%s", pn_str_cstr(&s));
        pn_str_fini(&s);
    }
}

/* ------------------------------------------------------------------------------------------
 * Tokens
 * ------------------------------------------------------------------------------------------ */

static bool tokenize(pn_oai_tokenize *q, const char *body, pn_oai_error *e) { return pn_oai_tokenize_parse(q, &libc_mem, body, strlen(body), e); }

/* Both forms, their defaults and their answers. */
static void texts_to_tokens(void)
{
    static const pn_token ids[] = {5, 6};
    static const pn_bytes pieces[] = {{"a\"", 2}, {"\xC3", 1}};
    static const struct { const char *body; bool special, parse; const char *want; } cases[] = {
        {"{\"content\":\"Hi\"}", false, true, "{\"tokens\":[5,6]}"},
        {"{\"content\":\"Hi\",\"add_special\":true,\"parse_special\":false,\"with_pieces\":true}", true, false,
         "{\"tokens\":[{\"id\":5,\"piece\":\"a\\\"\"},{\"id\":6,\"piece\":[195]}]}"},
        {"{\"model\":\"m\",\"prompt\":\"Hi\"}", true, true, "{\"count\":2,\"max_model_len\":4096,\"tokens\":[5,6],\"token_strs\":null}"},
        {"{\"prompt\":\"Hi\",\"add_special_tokens\":false,\"return_token_strs\":true}", false, true,
         "{\"count\":2,\"max_model_len\":4096,\"tokens\":[5,6],\"token_strs\":[\"a\\\"\",\"\xEF\xBF\xBD\"]}"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", false, true, "{\"count\":2,\"max_model_len\":4096,\"tokens\":[5,6],\"token_strs\":null}"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        pn_oai_tokenize q;
        pn_oai_error e;
        pn_str s;
        if (!PN_CHECK(tokenize(&q, cases[i].body, &e), "%s: %s", cases[i].body, e.message))
            continue;
        PN_CHECK(q.add_special == cases[i].special && q.parse_special == cases[i].parse && q.add_generation_prompt, "%s", cases[i].body);
        PN_CHECK(q.text.data ? q.text.len == 2 : q.chat.n_messages == 1);
        pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
        pn_oai_tokenize_body(&s, &q, ids, pieces, 2, 4096);
        PN_CHECK(strcmp(pn_str_cstr(&s), cases[i].want) == 0, "%s", pn_str_cstr(&s));
        pn_str_fini(&s);
        pn_oai_tokenize_fini(&q);
    }
}

static void no_tokens_are_tokens_too(void)
{
    pn_oai_tokenize q;
    pn_oai_error e;
    pn_str s;
    pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
    if (PN_CHECK(tokenize(&q, "{\"content\":\"\",\"with_pieces\":true}", &e), "%s", e.message)) {
        pn_oai_tokenize_body(&s, &q, NULL, &(pn_bytes){NULL, 0}, 0, 1);
        PN_CHECK(strcmp(pn_str_cstr(&s), "{\"tokens\":[]}") == 0, "%s", pn_str_cstr(&s));
        pn_oai_tokenize_fini(&q);
    }
    pn_str_fini(&s);
}

static void templates_are_applied(void)
{
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"add_generation_prompt\":false,\"chat_template_kwargs\":{\"a\":1},"
                               "\"tools\":[{\"function\":{\"name\":\"f\"}}]}";
    pn_oai_tokenize q;
    pn_oai_error e;
    pn_str s;
    if (PN_CHECK(pn_oai_template_parse(&q, &libc_mem, body, sizeof body - 1, &e), "%s", e.message)) {
        PN_CHECK(!q.add_generation_prompt && q.chat.n_messages == 1 && q.chat.variables.len && q.chat.tools != PN_JSON_NONE);
        pn_oai_tokenize_fini(&q);
    }
    PN_CHECK(!pn_oai_template_parse(&q, &libc_mem, "{\"content\":\"x\"}", 15, &e) && strcmp(e.param, "messages") == 0, "%s", e.param);
    pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
    pn_oai_template_body(&s, "a\n", 2);
    pn_oai_detokenize_body(&s, "b\xFF", 2);
    pn_oai_input_tokens_body(&s, 12);
    PN_CHECK(strcmp(pn_str_cstr(&s), "{\"prompt\":\"a\\n\"}{\"content\":\"b\xEF\xBF\xBD\",\"prompt\":\"b\xEF\xBF\xBD\"}{\"input_tokens\":12}") == 0, "%s", pn_str_cstr(&s));
    pn_str_fini(&s);
}

static void tokens_to_texts(void)
{
    pn_oai_detokenize q;
    pn_oai_error e;
    if (PN_CHECK(pn_oai_detokenize_parse(&q, &libc_mem, "{\"tokens\":[1,2.0,3]}", 20, &e), "%s", e.message)) {
        PN_CHECK(q.n == 3 && q.tokens[1] == 2);
        pn_oai_detokenize_fini(&q);
    }
    if (PN_CHECK(pn_oai_detokenize_parse(&q, &libc_mem, "{\"tokens\":[]}", 13, &e), "%s", e.message)) {
        PN_CHECK(q.n == 0);
        pn_oai_detokenize_fini(&q);
    }
}

static void what_is_wrong_is_named(void)
{
    static const struct { const char *body, *param; } cases[] = {
        {"{}", "content"}, {"{\"content\":3}", "content"}, {"{\"prompt\":[1]}", "prompt"}, {"{\"content\":\"\",\"with_pieces\":3}", "with_pieces"},
        {"{\"messages\":[]}", "messages"}, {"{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content"}, {"x", ""},
    };
    static const char *const lists[] = {"{}", "{\"tokens\":3}", "{\"tokens\":[\"a\"]}", "{\"tokens\":[-1]}", "{\"tokens\":null}"};
    pn_oai_error e;
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        pn_oai_tokenize q;
        PN_CHECK(!tokenize(&q, cases[i].body, &e) && e.status == 400 && strcmp(e.param, cases[i].param) == 0, "%s: '%s'", cases[i].body, e.param);
    }
    for (size_t i = 0; i < PN_COUNT_OF(lists); i++) {
        pn_oai_detokenize q;
        PN_CHECK(!pn_oai_detokenize_parse(&q, &libc_mem, lists[i], strlen(lists[i]), &e) && e.status == 400 && strcmp(e.param, "tokens") == 0, "%s: '%s'",
                 lists[i], e.param);
    }
}

/* ------------------------------------------------------------------------------------------
 * Memory
 * ------------------------------------------------------------------------------------------ */

static bool parse_nth(int which, pn_mem *mem, pn_oai_error *e)
{
    static const char *const bodies[] = {"{\"input\":[\"a\",[1]],\"x\":1}", "{\"content\":\"a\",\"x\":1}",
                                         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"x\":1,\"enable_thinking\":true}", "{\"tokens\":[1],\"x\":1}"};
    size_t len = strlen(bodies[which]);
    pn_oai_embeddings embeddings;
    pn_oai_tokenize t;
    pn_oai_detokenize d;
    bool ok;
    if (which == 0) {
        ok = pn_oai_embeddings_parse(&embeddings, mem, bodies[which], len, e);
        pn_oai_embeddings_fini(&embeddings);
    } else if (which < 3) {
        ok = pn_oai_tokenize_parse(&t, mem, bodies[which], len, e);
        pn_oai_tokenize_fini(&t);
    } else {
        ok = pn_oai_detokenize_parse(&d, mem, bodies[which], len, e);
        pn_oai_detokenize_fini(&d);
    }
    return ok;
}

static void every_allocation_may_fail(void)
{
    for (int which = 0; which < 4; which++) {
        for (long k = 1; k < 100; k++) {
            pn_test_mem mem;
            pn_oai_error e = {0};
            pn_test_mem_init(&mem, k);
            bool ok = parse_nth(which, &mem.mem, &e);
            PN_CHECK(mem.outstanding == 0, "%d: allocation %ld failing leaks %ld blocks", which, k, mem.outstanding);
            PN_CHECK(ok ? mem.n_calls < k : e.status == 503, "%d: allocation %ld failing gives %d: %s", which, k, e.status, e.message);
            if (ok)
                break;
        }
    }
}

int main(void)
{
    pn_mem_init_libc(&libc_mem);
    embeddings_are_asked_for();
    embeddings_are_refused();
    embeddings_go_out();
    texts_to_tokens();
    no_tokens_are_tokens_too();
    templates_are_applied();
    tokens_to_texts();
    what_is_wrong_is_named();
    every_allocation_may_fail();
    return pn_test_end();
}
