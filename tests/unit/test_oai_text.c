/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_oai_text.c - completions: requests, bodies and streams, and their log-probabilities.
 */
#include "reply_heard.h"

#include "serve/pn_oai.h"
#include "serve/pn_oai_reply.h"

static pn_mem libc_mem;

static bool parse(pn_oai_completion *q, const char *body, pn_oai_error *e) { return pn_oai_completion_parse(q, &libc_mem, body, strlen(body), 8, e); }

/* ------------------------------------------------------------------------------------------
 * Requests
 * ------------------------------------------------------------------------------------------ */

static void a_request_arrives(void)
{
    static const char body[] =
        "{\"model\":\"m\",\"prompt\":\"Hi\",\"max_tokens\":0,\"temperature\":0.5,\"n\":2,\"best_of\":2,\"logprobs\":3,\"echo\":true,\"suffix\":\"x\","
        "\"stop\":\"a\",\"seed\":18446744073709551616,\"stream\":true,\"stream_options\":{\"include_usage\":true},\"logit_bias\":{\"1\":2},"
        "\"user\":\"u\",\"skip_special_tokens\":true,\"include_stop_str_in_output\":true,\"guided_choice\":[\"a\\\"\",\"b\\n\"],\"top_k\":3}";
    pn_oai_completion q;
    pn_oai_error e;
    if (!PN_CHECK(parse(&q, body, &e), "%s: %s", e.param, e.message))
        return;
    pn_sampling s = {.temperature = 9};
    pn_oai_sampling(&q.common, &s);
    PN_CHECK(q.common.n == 2 && q.prompt_only && q.common.max_tokens == 0 && q.echo && q.suffix.len == 1 && q.common.logprobs && q.common.top_logprobs == 3);
    PN_CHECK(s.temperature == 0.5f && s.top_k == 3 && s.has_seed && s.n_bias == 1 && q.common.n_stop == 1 && q.common.stream && q.common.include_usage);
    PN_CHECK(q.prompts.n == 1 && q.prompts.pieces[0].text.len == 2);
    PN_CHECK(q.common.format == PN_OAI_GBNF && strcmp(q.common.grammar.data, "root ::= \"a\\x22\" | \"b\\x0A\"") == 0, "%s", q.common.grammar.data);
    PN_CHECK(strcmp(pn_str_cstr(&q.common.ignored), "\"user\",\"include_stop_str_in_output\"") == 0, "%s", pn_str_cstr(&q.common.ignored));
    pn_oai_completion_fini(&q);
}

/* Every form of a prompt, shown as pieces: texts as they are, tokens with commas, inputs with bars. */
static void prompts_come_in_many_forms(void)
{
    static const struct { const char *prompt, *want; } cases[] = {
        {"\"\"", "''"}, {"\"ab\"", "'ab'"}, {"[\"a\",\"b\"]", "'a' | 'b'"}, {"[1,2,3]", "1,2,3,"}, {"[[1,2],[3.0]]", "1,2, | 3,"},
        {"[\"a\",[4,5]]", "'a' | 4,5,"}, {"[12,\"x\",34,56]", "12,'x'34,56,"}, {"[[1,\"y\"],\"z\"]", "1,'y' | 'z'"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        char body[256], shown[256] = "";
        pn_oai_completion q;
        pn_oai_error e;
        snprintf(body, sizeof body, "{\"prompt\":%s}", cases[i].prompt);
        if (!PN_CHECK(parse(&q, body, &e), "%s: %s", body, e.message))
            continue;
        for (size_t k = 0; k < q.prompts.n; k++) {
            snprintf(shown + strlen(shown), sizeof shown - strlen(shown), "%s", k ? " | " : "");
            for (size_t m = 0; m < q.prompts.list[k].n_pieces; m++) {
                const pn_oai_piece *piece = &q.prompts.pieces[q.prompts.list[k].first + m];
                if (piece->text.data)
                    snprintf(shown + strlen(shown), sizeof shown - strlen(shown), "'%s'", piece->text.data);
                for (size_t t = 0; t < piece->n_tokens; t++)
                    snprintf(shown + strlen(shown), sizeof shown - strlen(shown), "%d,", (int)q.prompts.tokens[piece->first + t]);
            }
        }
        PN_CHECK(strcmp(shown, cases[i].want) == 0, "%s: %s", cases[i].prompt, shown);
        PN_CHECK(!q.prompt_only && q.common.max_tokens == 0 && q.common.n == 1 && !q.common.logprobs);
        pn_oai_completion_fini(&q);
    }
}

static void what_is_wrong_is_named(void)
{
    static const struct { const char *fields, *param, *words; } cases[] = {
        {"\"x\":1", "prompt", "found nothing"}, {"\"prompt\":null", "prompt", "found nothing"}, {"\"prompt\":[]", "prompt", "empty array"},
        {"\"prompt\":[[]]", "prompt[0]", "at least one token"}, {"\"prompt\":{}", "prompt", "found object"}, {"\"prompt\":[-1]", "prompt", "0 to"},
        {"\"prompt\":[\"a\",true]", "prompt[1]", "an integer"}, {"\"prompt\":[[1,1.5]]", "prompt[0]", "an integer"},
        {"\"prompt\":[1,[2]]", "prompt", "an integer"}, {"\"prompt\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\"]", "prompt[8]", "at most 8"},
        {"\"prompt\":[\"1\",\"2\",\"3\"],\"n\":3", "n", "3 prompts with 3 each"}, {"\"prompt\":\"a\",\"best_of\":2", "best_of", "at most n"},
        {"\"prompt\":\"a\",\"best_of\":21,\"n\":8", "best_of", "0 to 20"}, {"\"prompt\":\"a\",\"logprobs\":21", "logprobs", "0 to 20"},
        {"\"prompt\":\"a\",\"logprobs\":true", "logprobs", "an integer"}, {"\"prompt\":\"a\",\"max_tokens\":-2", "max_tokens", "-1 to"},
        {"\"prompt\":\"a\",\"echo\":1", "echo", "true or false"}, {"\"prompt\":\"a\",\"guided_regex\":\"a+\"", "guided_regex", "send a grammar"},
        {"\"prompt\":\"a\",\"structured_outputs\":{\"regex\":\"a\"}", "structured_outputs.regex", "send a grammar"},
        {"\"prompt\":\"a\",\"guided_choice\":[1]", "guided_choice", "a string"}, {"\"prompt\":\"a\",\"guided_choice\":[]", "guided_choice", "not empty"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        char body[256];
        pn_oai_completion q;
        pn_oai_error e = {0};
        snprintf(body, sizeof body, "{%s}", cases[i].fields);
        PN_CHECK(!parse(&q, body, &e) && e.status == 400 && strcmp(e.param, cases[i].param) == 0 && strstr(e.message, cases[i].words), "%s: '%s' '%s'",
                 body, e.param, e.message);
    }
}

static void every_allocation_may_fail(void)
{
    static const char body[] = "{\"prompt\":[\"a\",[1,2]],\"stop\":\"x\",\"logit_bias\":{\"1\":1},\"y\":1,\"guided_choice\":[\"\xFF\"]}";
    for (long k = 1; k < 200; k++) {
        pn_test_mem mem;
        pn_oai_completion q;
        pn_oai_error e = {0};
        pn_test_mem_init(&mem, k);
        bool ok = pn_oai_completion_parse(&q, &mem.mem, body, sizeof body - 1, 4, &e);
        if (ok)
            pn_oai_completion_fini(&q);
        PN_CHECK(mem.outstanding == 0, "allocation %ld failing leaks %ld blocks", k, mem.outstanding);
        PN_CHECK(ok ? mem.n_calls < k : e.status == 503, "allocation %ld failing gives %d: %s", k, e.status, e.message);
        if (ok)
            break;
    }
}

/* ------------------------------------------------------------------------------------------
 * Answers
 * ------------------------------------------------------------------------------------------ */

static pn_reply *reply(heard *h, bool stream, uint32_t n_choices, pn_oai_completion_reply how)
{
    pn_reply *r = NULL;
    const pn_reply_params p = heard_params(h, &h->mem, stream, n_choices);
    PN_CHECK(pn_oai_completion_reply_new(&r, &p, &how, NULL) == PN_OK && r->ops->done_marker);
    return r;
}

static void a_stream_adds_up_to_the_body(void)
{
    heard s, h;
    heard_init(&s);
    heard_init(&h);
    pn_reply *r = reply(&s, true, 2, (pn_oai_completion_reply){.include_usage = true, .logprobs = true});
    PN_CHECK(heard_tell(r, HEARD_TEXT, PN_FINISH_STOP) && s.n == 7, "%d chunks", s.n);
    pn_reply_free(r);
    r = reply(&h, false, 2, (pn_oai_completion_reply){.logprobs = true});
    PN_CHECK(heard_tell(r, HEARD_TEXT, PN_FINISH_STOP) && h.n == 1);
    pn_reply_free(r);
    HEARD_IS(&s, 0, "choices", "[{\"text\":\"He\",\"index\":0,\"logprobs\":{\"tokens\":[\"He\"],\"token_logprobs\":[-0.5],\"top_logprobs\":[{\"He\":-0.5,"
             "\"bytes:\\\\xc3\":-9999}],\"text_offset\":[0]},\"finish_reason\":null}]");
    HEARD_IS(&s, 1, "choices", "[{\"text\":\"llo \\\"\\n\",\"index\":0,\"logprobs\":null,\"finish_reason\":null}]");
    HEARD_IS(&s, 2, "choices", "[{\"text\":\"\",\"index\":0,\"logprobs\":null,\"finish_reason\":\"stop\"}]");
    HEARD_IS(&s, 5, "choices.0.index", "1");
    HEARD_IS(&s, 6, "choices", "[]");
    HEARD_IS(&s, 6, "usage.completion_tokens", "7");
    HEARD_IS(&s, 6, "pantheon.ignored_params.0", "user");
    for (int i = 0; i < s.n; i++) {
        HEARD_IS(&s, i, "object", "text_completion");
        HEARD_IS(&s, i, "id", "cmpl-abcdefghijklmnopqrstuvwx");
    }
    HEARD_IS(&h, 0, "choices.0.text", "Hello \"\n");
    HEARD_IS(&h, 0, "choices.0.logprobs", heard_value(&s, 0, "choices.0.logprobs"));
    HEARD_IS(&h, 0, "choices.1.index", "1");
    HEARD_IS(&h, 0, "choices.1.finish_reason", "stop");
    HEARD_IS(&h, 0, "usage.prompt_tokens", "10");
    HEARD_IS(&h, 0, "pantheon.ignored_params.0", "user");
    heard_fini(&s);
    heard_fini(&h);
}

/* The prompt comes in front, and offsets count its characters. */
static void an_echo_goes_first(void)
{
    static const pn_bytes echo[] = {{"h\xC3\xA9 ", 4}, {"two", 3}};
    for (int stream = 0; stream < 2; stream++) {
        heard h;
        heard_init(&h);
        pn_reply *r = reply(&h, stream, 4, (pn_oai_completion_reply){.logprobs = true, .n = 2, .echo = echo});
        PN_CHECK(heard_tell(r, HEARD_TEXT, PN_FINISH_LENGTH));
        pn_reply_free(r);
        if (stream) {
            HEARD_IS(&h, 0, "choices.0.text", "h\xC3\xA9 He");
            HEARD_IS(&h, 0, "choices.0.logprobs.text_offset", "[3]");
            PN_CHECK(h.n == 12 && heard_count(&h, "pantheon") == 1 && heard_at(&h.doc[11], "pantheon") != PN_JSON_NONE, "%d", h.n);
        } else {
            HEARD_IS(&h, 0, "choices.1.text", "h\xC3\xA9 Hello \"\n");
            HEARD_IS(&h, 0, "choices.2.text", "twoHello \"\n");
            HEARD_IS(&h, 0, "choices.3.finish_reason", "length");
            HEARD_IS(&h, 0, "choices.3.logprobs.text_offset", "[3]");
        }
        heard_fini(&h);
    }
}

/* max_tokens 0, echo and logprobs: the prompt is scored, its first token has nothing to be scored by. */
static void a_prompt_is_scored(void)
{
    static const pn_bytes echo[] = {{"a\xC3\xA9", 3}};
    const pn_token_logprob top[] = {{.bytes = "x", .len = 1, .logprob = -1}, {.bytes = "x", .len = 1, .logprob = -2}};
    const pn_token_logprob t[] = {{.bytes = "a", .len = 1, .logprob = NAN, .part = PN_PART_CONTENT},
                                  {.bytes = "\xC3", .len = 1, .logprob = -3, .part = PN_PART_CONTENT, .top = top, .n_top = 2},
                                  {.bytes = "\xA9", .len = 1, .logprob = -4, .part = PN_PART_CONTENT}};
    for (int stream = 0; stream < 2; stream++) {
        heard h;
        heard_init(&h);
        pn_reply *r = reply(&h, stream, 1, (pn_oai_completion_reply){.logprobs = true, .echo = echo, .prompt_logprobs = true});
        bool ok = r->ops->begin(r, &heard_usage);
        for (size_t i = 0; i < PN_COUNT_OF(t); i++)
            ok = ok && r->ops->logprob(r, 0, &t[i]);
        ok = ok && r->ops->choice_end(r, 0, &(pn_reply_finish){.why = PN_FINISH_LENGTH}) && r->ops->end(r, &heard_usage);
        PN_CHECK(ok && h.n == 1 + stream, "%d", h.n);
        HEARD_IS(&h, 0, "choices.0.text", "a\xC3\xA9");
        HEARD_IS(&h, 0, "choices.0.logprobs", "{\"tokens\":[\"a\",\"bytes:\\\\xc3\",\"bytes:\\\\xa9\"],\"token_logprobs\":[null,-3,-4],"
                 "\"top_logprobs\":[null,{\"x\":-1},null],\"text_offset\":[0,1,2]}");
        HEARD_IS(&h, stream, "choices.0.finish_reason", "length");
        pn_reply_free(r);
        heard_fini(&h);
    }
}

static pn_status make(pn_reply **out, const pn_reply_params *p, pn_err *err)
{
    static const pn_bytes echo[] = {{"a", 1}};
    return pn_oai_completion_reply_new(out, p, &(pn_oai_completion_reply){.include_usage = true, .logprobs = true, .echo = echo}, err);
}

int main(void)
{
    pn_mem_init_libc(&libc_mem);
    a_request_arrives();
    prompts_come_in_many_forms();
    what_is_wrong_is_named();
    every_allocation_may_fail();
    a_stream_adds_up_to_the_body();
    an_echo_goes_first();
    a_prompt_is_scored();
    heard_failures(make, true);
    heard_failures(make, false);
    return pn_test_end();
}
