/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * bench_grammar.c - what a constrained token costs: mask and accept along real answers.
 *
 * Usage: bench_grammar [model.gguf].  For each grammar the text is tokenized and followed token by
 * token; "cold" is the first time in a new grammar, "warm" the same text again, "fresh" other text
 * of the same grammar after it (what a server sees).
 */
#include "pn_test.h"

#include "base/pn_os.h"
#include "engine/pn_grammar_api.h"
#include "sample/pn_gir.h"
#include "sample/pn_guide.h"

static const char *const bench_json =
    "root ::= object\n"
    "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? ws \"}\"\n"
    "array ::= \"[\" ws ( value (\",\" ws value)* )? ws \"]\"\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x00-\\x1F] | \"\\\\\" ( [\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4} ) )* \"\\\"\"\n"
    "number ::= \"-\"? ( [0-9] | [1-9] [0-9]{0,15} ) (\".\" [0-9]+)? ([eE] [-+]? [0-9]{1,3})?\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

static const char *const bench_schema =
    "root ::= \"{\" ws \"\\\"name\\\":\" ws str{1,40} \",\" ws \"\\\"tags\\\":\" ws \"[\" (tag (\",\" ws tag){0,9})? \"]\" \",\" ws \"\\\"age\\\":\" ws [0-9]{1,3} ws \"}\"\n"
    "str ::= \"\\\"\" char{0,60} \"\\\"\"\n"
    "tag ::= \"\\\"red\\\"\" | \"\\\"green\\\"\" | \"\\\"blue\\\"\"\n"
    "char ::= [^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4})\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

static const char *const bench_text[2] = {
    "{\"title\": \"A short history of the fox\", \"author\": {\"name\": \"J. Fox\", \"born\": 1978}, \"pages\": [1, 2, 3.5, -4e2], "
    "\"abstract\": \"The quick brown fox jumps over the lazy dog, and then it sleeps for a while.\", \"ok\": true}",
    "{\n  \"city\": \"Reykjav\xC3\xADk\",\n  \"weather\": {\"now\": \"rain\", \"later\": [\"snow\", \"sun\\n\"]},\n  \"wind\": 12.5,\n  "
    "\"note\": \"Take an umbrella; the buses are late today because of the road works near the harbour.\"\n}",
};
static const char *const bench_schema_text[2] = {
    "{\"name\": \"Grandmother of all the foxes in the deep forest\", \"tags\": [\"red\", \"blue\"], \"age\": 41}",
    "{\"name\": \"Somebody else entirely, with a longer name than usual\", \"tags\": [], \"age\": 7}",
};

/* Ten tools, and answers that say something and then call one. */
static const char *const bench_answer[2] = {
    "I will look that up for you, one moment please.\n<tool_call>\n{\"name\": \"tool_3\", \"arguments\": {\"city\": \"Reykjav\xC3\xADk\", "
    "\"days\": 3, \"unit\": \"metric\", \"note\": \"The quick brown fox jumps over the lazy dog.\"}}\n</tool_call>",
    "<tool_call>\n{\"name\": \"tool_7\", \"arguments\": {\"city\": \"Ulan Bator\", \"days\": 12, \"unit\": \"imperial\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"tool_0\", \"arguments\": {\"city\": \"Rome\", \"days\": 1, \"unit\": \"metric\"}}\n</tool_call>",
};

static double now_us(void) { return pn_os_now() * 1e6; }

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void follow(const pn_model *model, pn_mem *mem, pn_gram *g, pn_gtrie *t, const char *text, const char *what)
{
    pn_token tokens[512];
    double us[512], sum = 0;
    size_t n = 0;
    pn_matcher *m = NULL;
    pn_err err = {PN_OK, ""};
    uint32_t *bits = malloc(pn_gtrie_words(t) * sizeof *bits), allowed;
    double accept = 0;
    if (pn_tokenize(model, text, strlen(text), 0, tokens, 512, &n, &err) || pn_matcher_new(&m, mem, g, t, &err))
        printf("%s\n", err.text);
    for (size_t i = 0; i < n && m; i++) {
        double t0 = now_us();
        if (pn_matcher_mask(m, bits, &allowed, &err))
            printf("%s\n", err.text);
        double t1 = now_us();
        if (pn_matcher_accept_token(m, tokens[i], &err))
            printf("token %zu: %s\n", i, err.text);
        accept += now_us() - t1;
        sum += us[i] = t1 - t0;
    }
    if (n)
        qsort(us, n, sizeof *us, by_value);
    if (n)
        printf("%-14s %4zu tokens: mask mean %7.1f us, median %7.1f, p90 %7.1f, max %7.1f; accept mean %5.1f us; %zu KiB held\n", what, n,
               sum / (double)n, us[n / 2], us[n * 9 / 10], us[n - 1], accept / (double)n, pn_gram_bytes(g) >> 10);
    pn_matcher_free(m);
    free(bits);
}

static void bench(const pn_model *model, pn_mem *mem, pn_gtrie *t, const char *name, const char *grammar, const char *const text[2])
{
    pn_gram *g = NULL;
    pn_err err = {PN_OK, ""};
    double t0 = now_us();
    if (pn_gram_from_gbnf(&g, mem, grammar, strlen(grammar), NULL, NULL, NULL, &err)) {
        printf("%s: %s\n", name, err.text);
        return;
    }
    printf("%s: compiled in %.0f us\n", name, now_us() - t0);
    follow(model, mem, g, t, text[0], "  cold");
    follow(model, mem, g, t, text[0], "  warm");
    follow(model, mem, g, t, text[1], "  fresh");
    pn_gram_release(g);
}

/* The same through a guide, as a conversation with tools does it. */
static void follow_answer(const pn_model *model, pn_mem *mem, const pn_calls *c, pn_gtrie *t, const char *text, const char *what)
{
    pn_token tokens[512];
    double us[512], sum = 0, accept = 0;
    size_t n = 0;
    pn_guide *g = NULL;
    pn_err err = {PN_OK, ""};
    char tmp[8];
    const uint32_t *bits;
    const pn_guide_params p = {.gram = c->gram, .trie = t, .triggers = c->triggers, .n_triggers = c->n_triggers, .lanes = true};
    if (pn_tokenize(model, text, strlen(text), 0, tokens, 512, &n, &err) || pn_guide_new(&g, mem, &p, &err))
        printf("%s\n", err.text);
    for (size_t i = 0; i < n && g; i++) {
        double t0 = now_us();
        if (pn_guide_mask(g, &bits, &err))
            printf("%s\n", err.text);
        double t1 = now_us();
        if (pn_guide_accept(g, tokens[i], pn_vocab_piece(model->vocab, tokens[i], true, tmp), &err))
            printf("token %zu: %s\n", i, err.text);
        accept += now_us() - t1;
        sum += us[i] = t1 - t0;
    }
    if (n)
        qsort(us, n, sizeof *us, by_value);
    if (n)
        printf("%-14s %4zu tokens: mask mean %7.1f us, median %7.1f, p90 %7.1f, max %7.1f; accept mean %5.1f us; %zu KiB held\n", what, n,
               sum / (double)n, us[n / 2], us[n * 9 / 10], us[n - 1], accept / (double)n, pn_gram_bytes(c->gram) >> 10);
    pn_guide_free(g);
}

static void bench_tools(const pn_model *model, pn_mem *mem, pn_gtrie *t)
{
    pn_str s;
    pn_json_doc d;
    pn_calls c;
    pn_out_format f;
    pn_err err = {PN_OK, ""};
    pn_str_init(&s, mem, PN_ACCT_MISC);
    for (int i = 0; i < 10; i++)
        pn_str_addf(&s, "%s{\"name\":\"tool_%d\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":"
                    "{\"type\":\"integer\",\"minimum\":1,\"maximum\":14},\"unit\":{\"enum\":[\"metric\",\"imperial\"]},\"note\":{\"type\":\"string\","
                    "\"maxLength\":200}},\"required\":[\"city\",\"days\",\"unit\"]}}", i ? "," : "[", i);
    pn_str_addc(&s, ']');
    pn_out_find(&f, "hermes");
    if (pn_json_parse(&d, mem, PN_ACCT_MISC, s.data, s.len, NULL, &err) == PN_OK) {
        const pn_calls_params p = {.format = &f, .tools = &d};
        double t0 = now_us();
        if (pn_calls_new(&c, mem, &p, &err) == PN_OK) {
            printf("ten tools: compiled in %.0f us\n", now_us() - t0);
            follow_answer(model, mem, &c, t, bench_answer[0], "  cold");
            follow_answer(model, mem, &c, t, bench_answer[0], "  warm");
            follow_answer(model, mem, &c, t, bench_answer[1], "  fresh");
            pn_calls_fini(&c);
        }
        pn_json_fini(&d);
    }
    if (err.status)
        printf("%s\n", err.text);
    pn_str_fini(&s);
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "models/demo.gguf";
    pn_mem mem;
    pn_engine *e = NULL;
    pn_model *model = NULL;
    pn_gtrie *t = NULL;
    pn_err err = {PN_OK, ""};
    pn_model_params params = {.vocab_only = 1};
    pn_mem_init_libc(&mem);
    if (pn_engine_open(&e, NULL, &err) || pn_model_load(e, path, &params, &model, &err)) {
        printf("%s\n", err.text);
        pn_engine_close(e);
        return 1;
    }
    double t0 = now_us();
    if (pn_gtrie_from_vocab(&t, &mem, model->vocab, &err) == PN_OK) {
        printf("%s: %d tokens, trie in %.1f ms, %zu KiB\n", path, (int)pn_vocab_n_tokens(model->vocab), (now_us() - t0) / 1e3,
               pn_gtrie_bytes(t) >> 10);
        bench(model, &mem, t, "json", bench_json, bench_text);
        bench(model, &mem, t, "counted schema", bench_schema, bench_schema_text);
        bench_tools(model, &mem, t);
    }
    pn_gtrie_free(t);
    pn_model_free(model);
    pn_engine_close(e);
    return 0;
}
