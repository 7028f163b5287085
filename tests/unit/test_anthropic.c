/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_anthropic.c - the Messages API: what its requests come to, and what its answers look like.
 */
#include "reply_heard.h"

#include "serve/pn_anthropic.h"

static pn_mem libc_mem;

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"

static bool parse(pn_oai_chat *q, const char *body, pn_oai_error *e) { return pn_anthropic_parse(q, &libc_mem, body, strlen(body), e); }

/* ------------------------------------------------------------------------------------------
 * Requests
 * ------------------------------------------------------------------------------------------ */

static void fields_have_their_counterparts(void)
{
    static const char body[] =
        "{\"model\":\"m\",\"max_tokens\":9," HI ",\"system\":\"S\",\"stop_sequences\":[\"a\",\"b\"],\"temperature\":0.5,\"top_p\":0.9,\"top_k\":7,"
        "\"stream\":true,\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024},\"metadata\":{\"user_id\":\"u\"},\"n\":3,\"min_p\":0.1,"
        "\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\"},\"cache_control\":{}},{\"type\":\"custom\",\"name\":\"g\"}],"
        "\"tool_choice\":{\"type\":\"tool\",\"name\":\"g\",\"disable_parallel_tool_use\":true},\"x_new\":1,\"service_tier\":\"auto\"}";
    pn_oai_chat q;
    pn_oai_error e;
    if (!PN_CHECK(parse(&q, body, &e), "%s: %s", e.param, e.message))
        return;
    pn_sampling s = {0};
    pn_oai_sampling(&q.common, &s);
    PN_CHECK(q.common.max_tokens == 9 && q.common.n == 1 && q.common.stream && q.common.n_stop == 2 && q.common.model.len == 1);
    PN_CHECK(s.temperature == 0.5f && s.top_p == 0.9f && s.top_k == 7 && s.min_p == 0.1f);
    PN_CHECK(q.has_reasoning_budget && q.reasoning_budget == 1024 && strcmp(pn_str_cstr(&q.variables), "{\"enable_thinking\":true}") == 0);
    PN_CHECK(q.tool_choice == PN_TOOLS_REQUIRED && q.tool_name.len == 1 && q.tool_name.data[0] == 'g' && q.single_call);
    PN_CHECK(strcmp(heard_doc_value(&q.common.body, "tools"), "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":"
                    "{\"type\":\"object\"}}},{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]") == 0, "%s", heard_doc_value(&q.common.body, "tools"));
    PN_CHECK(strcmp(heard_doc_value(&q.common.body, "messages"), "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"S\"}]},"
                    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Hi\"}]}]") == 0, "%s", heard_doc_value(&q.common.body, "messages"));
    PN_CHECK(strcmp(pn_str_cstr(&q.common.ignored), "\"metadata\",\"x_new\",\"service_tier\",\"n\"") == 0, "%s", pn_str_cstr(&q.common.ignored));
    pn_oai_chat_fini(&q);
}

static void blocks_become_messages(void)
{
#define PART(text) "{\"type\":\"text\",\"text\":\"" text "\"}"
    static const struct { const char *messages, *want; } cases[] = {
        {"{\"role\":\"user\",\"content\":[]}", "{\"role\":\"user\",\"content\":[]}"},
        {"{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{\"type\":\"ephemeral\"}}," PART("b") "]}",
         "{\"role\":\"user\",\"content\":[" PART("a") "," PART("b") "]}"},
        {"{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"s\"},{\"type\":\"redacted_thinking\",\"data\":\"x\"},"
         PART("t") ",{\"type\":\"tool_use\",\"id\":\"i1\",\"name\":\"f\",\"input\":{\"a\":[1]}},{\"type\":\"tool_use\",\"id\":\"i2\",\"name\":\"g\"}]}",
         "{\"role\":\"assistant\",\"content\":[" PART("t") "],\"reasoning_content\":\"hm\",\"tool_calls\":[{\"type\":\"function\",\"id\":\"i1\",\"function\":"
         "{\"name\":\"f\",\"arguments\":{\"a\":[1]}}},{\"type\":\"function\",\"id\":\"i2\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]}"},
        {"{\"role\":\"user\",\"content\":[" PART("after") ",{\"type\":\"tool_result\",\"tool_use_id\":\"i1\",\"content\":\"r\",\"is_error\":true},"
         "{\"type\":\"tool_result\",\"tool_use_id\":\"i2\",\"content\":[" PART("x") "," PART("y") "]}]}",
         "{\"role\":\"tool\",\"content\":[" PART("r") "],\"tool_call_id\":\"i1\"},{\"role\":\"tool\",\"content\":[" PART("x") "," PART("y") "],\"tool_call_id\":\"i2\"},"
         "{\"role\":\"user\",\"content\":[" PART("after") "]}"},
        {"{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"i1\"}]}",
         "{\"role\":\"tool\",\"content\":[],\"tool_call_id\":\"i1\"}"},
        {"{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"{\"}",
         "{\"role\":\"user\",\"content\":[" PART("q") "]},{\"role\":\"assistant\",\"content\":[" PART("{") "]}"},
        {"{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"system\",\"content\":\"s\"}",
         "{\"role\":\"user\",\"content\":[" PART("q") "]},{\"role\":\"system\",\"content\":[" PART("s") "]}"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        char body[1024], want[1024];
        pn_oai_chat q;
        pn_oai_error e;
        snprintf(body, sizeof body, "{\"messages\":[%s]}", cases[i].messages);
        snprintf(want, sizeof want, "[%s]", cases[i].want);
        if (!PN_CHECK(parse(&q, body, &e), "%s: %s", body, e.message))
            continue;
        PN_CHECK(strcmp(heard_doc_value(&q.common.body, "messages"), want) == 0, "%s", heard_doc_value(&q.common.body, "messages"));
        PN_CHECK(q.common.max_tokens == 4096 && !q.common.ignored.len, "%s", pn_str_cstr(&q.common.ignored));
        pn_oai_chat_fini(&q);
    }
}

/* What changes with every request must not change the prompt. */
static void the_billing_header_is_the_same_each_time(void)
{
    static const struct { const char *system, *want; } cases[] = {
        {"\"x-anthropic-billing-header: cc_version=2; cch=1a2b3; x\"", "x-anthropic-billing-header: cc_version=2; cch=00000; x"},
        {"[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cch=ABCDE;\"},{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cch=ABCDE;\"}]",
         "x-anthropic-billing-header: cch=00000;"},
        {"\"x-anthropic-billing-header: cch=1a2bg; cch=1a2b\"", "x-anthropic-billing-header: cch=1a2bg; cch=1a2b"},
        {"\"cch=1a2b3;\"", "cch=1a2b3;"}, {"\"x-anthropic-billing-header:\\ncch=1a2b3;\"", "x-anthropic-billing-header:\ncch=1a2b3;"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        char body[512];
        pn_oai_chat q;
        pn_oai_error e;
        snprintf(body, sizeof body, "{" HI ",\"system\":%s}", cases[i].system);
        if (!PN_CHECK(parse(&q, body, &e), "%s: %s", body, e.message))
            continue;
        PN_CHECK(strcmp(heard_doc_value(&q.common.body, "messages.0.content.0.text"), cases[i].want) == 0, "%s",
                 heard_doc_value(&q.common.body, "messages.0.content.0.text"));
        if (i == 1)
            PN_CHECK(strstr(heard_doc_value(&q.common.body, "messages.0.content.1.text"), "cch=ABCDE;"));
        pn_oai_chat_fini(&q);
    }
}

static void choices_of_tools(void)
{
    static const struct { const char *choice; pn_tool_choice want; } cases[] = {
        {"{\"type\":\"auto\"}", PN_TOOLS_AUTO}, {"{\"type\":\"any\"}", PN_TOOLS_REQUIRED}, {"{\"type\":\"none\"}", PN_TOOLS_NONE}, {"null", PN_TOOLS_AUTO},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        char body[512];
        pn_oai_chat q;
        pn_oai_error e;
        snprintf(body, sizeof body, "{" HI ",\"tools\":[{\"name\":\"f\"}],\"tool_choice\":%s,\"system\":null}", cases[i].choice);
        if (!PN_CHECK(parse(&q, body, &e), "%s: %s", body, e.message))
            continue;
        PN_CHECK(q.tool_choice == cases[i].want && !q.single_call && q.n_messages == 1);
        pn_oai_chat_fini(&q);
    }
}

/* Errors name the client's fields, not those they became. */
static void what_is_wrong_is_named(void)
{
    static const struct { const char *fields, *param, *words; } cases[] = {
        {"\"x\":1", "messages", "an array, not empty"}, {"\"messages\":[]", "messages", "not empty"}, {"\"messages\":[1]", "messages[0].role", "a string"},
        {"\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]", "messages[0].role", "found 'tool'"},
        {"\"messages\":[{\"role\":\"user\"}]", "messages[0].content", "a string or an array of blocks"},
        {"\"messages\":[{\"role\":\"user\",\"content\":3}]", "messages[0].content", "found number"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image\",\"source\":{}}]}]", "messages[0].content[1].type",
         "messages[0].content[1].type: the model takes text alone, found a block of type 'image'"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0].text", "a string"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_use\"}]}]", "messages[0].content[0].type", "'tool_use'"},
        {"\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"x\"}]}]", "messages[0].content[0].name", "a string"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"x\",\"content\":[{\"type\":\"image\"}]}]}]",
         "messages[0].content[0].content[0].type", "'image'"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\"}]}]", "messages[0].content[0].tool_use_id", "a string"},
        {HI ",\"system\":[{\"type\":\"image\"}]", "system[0].type", "'image'"}, {HI ",\"system\":5", "system", "found number"},
        {HI ",\"stop_sequences\":[1]", "stop_sequences", "stop_sequences: expected a string, found number"},
        {HI ",\"max_tokens\":0", "max_tokens", "at least 1"}, {HI ",\"temperature\":\"x\"", "temperature", "a number"},
        {HI ",\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]", "tools[0]", "custom"},
        {HI ",\"tools\":[{\"type\":\"custom\"}]", "tools[0].name", "a string"}, {HI ",\"tools\":{}", "tools", "an array"},
        {HI ",\"tool_choice\":{\"type\":\"some\"}", "tool_choice.type", "found 'some'"}, {HI ",\"tool_choice\":{\"type\":\"any\"}", "tool_choice", "no tools"},
        {HI ",\"tool_choice\":\"auto\"", "tool_choice.type", "a string"},
        {HI ",\"tools\":[{\"name\":\"f\"}],\"tool_choice\":{\"type\":\"tool\",\"name\":\"g\"}", "tool_choice", "no tool 'g'"},
        {HI ",\"thinking\":{\"type\":\"x\"}", "thinking.type", "found 'x'"},
        {HI ",\"output_config\":{\"format\":{\"type\":\"xml\"}}", "output_config.format.type", "output_config.format.type: expected"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        char body[512];
        pn_oai_chat q;
        pn_oai_error e = {0};
        snprintf(body, sizeof body, "{%s}", cases[i].fields);
        bool ok = parse(&q, body, &e);
        PN_CHECK(!ok && e.status == 400 && strcmp(e.param, cases[i].param) == 0 && strstr(e.message, cases[i].words), "%s: '%s' '%s'", body, e.param,
                 e.message);
        if (ok)
            pn_oai_chat_fini(&q);
    }
}

static void every_allocation_may_fail(void)
{
    static const char body[] = "{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"h\"},{\"type\":\"tool_use\",\"id\":\"a\","
                               "\"name\":\"f\"}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"a\"}]}],"
                               "\"system\":\"x-anthropic-billing-header: cch=12345;\",\"tools\":[{\"name\":\"f\"}],\"n\":2,\"y\":1}";
    for (long k = 1; k < 300; k++) {
        pn_test_mem mem;
        pn_oai_chat q;
        pn_oai_error e = {0};
        pn_test_mem_init(&mem, k);
        bool ok = pn_anthropic_parse(&q, &mem.mem, body, sizeof body - 1, &e);
        if (ok)
            pn_oai_chat_fini(&q);
        PN_CHECK(mem.outstanding == 0, "allocation %ld failing leaks %ld blocks", k, mem.outstanding);
        PN_CHECK(ok ? mem.n_calls < k : e.status == 503, "allocation %ld failing gives %d: %s", k, e.status, e.message);
        if (ok)
            break;
    }
}

/* ------------------------------------------------------------------------------------------
 * Answers
 * ------------------------------------------------------------------------------------------ */

static pn_status make(pn_reply **out, const pn_reply_params *p, pn_err *err) { return pn_anthropic_reply_new(out, p, err); }

static bool talk(heard *h, bool stream, unsigned what, pn_finish why)
{
    pn_reply *r;
    const pn_reply_params p = heard_params(h, &h->mem, stream, 1);
    if (!PN_CHECK(make(&r, &p, NULL) == PN_OK && !r->ops->done_marker))
        return false;
    bool ok = heard_tell(r, what, why);
    pn_reply_free(r);
    return ok;
}

static void a_stream_in_order(void)
{
    static const struct { const char *event, *path, *want; } events[] = {
        {"message_start", "message.content", "[]"},
        {"content_block_start", "content_block", "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}"},
        {"content_block_delta", "delta", "{\"type\":\"thinking_delta\",\"thinking\":\"hm\"}"},
        {"content_block_delta", "delta", "{\"type\":\"signature_delta\",\"signature\":\"\"}"}, {"content_block_stop", "index", "0"},
        {"content_block_start", "content_block", "{\"type\":\"text\",\"text\":\"\"}"},
        {"content_block_delta", "delta", "{\"type\":\"text_delta\",\"text\":\"He\"}"},
        {"content_block_delta", "delta.text", "llo \"\n"}, {"content_block_stop", "index", "1"},
        {"content_block_start", "content_block.input", "{}"},
        {"content_block_delta", "delta", "{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"a\\\":\"}"},
        {"content_block_delta", "delta.partial_json", "1}"}, {"content_block_stop", "index", "2"},
        {"content_block_start", "content_block", "{\"type\":\"tool_use\",\"id\":\"abc\",\"name\":\"g\",\"input\":{}}"},
        {"content_block_delta", "delta.partial_json", "{}"}, {"content_block_stop", "index", "3"},
        {"message_delta", "delta", "{\"stop_reason\":\"tool_use\",\"stop_sequence\":null}"}, {"message_stop", "type", "message_stop"},
    };
    heard h;
    heard_init(&h);
    PN_CHECK(talk(&h, true, HEARD_TEXT | HEARD_REASONING | HEARD_CALLS, PN_FINISH_STOP) && h.n == (int)PN_COUNT_OF(events), "%d events", h.n);
    for (int i = 0, open = 0; i < h.n; i++) {
        PN_CHECK(strcmp(h.event[i], events[i].event) == 0, "%d: %s", i, h.event[i]);
        HEARD_IS(&h, i, "type", events[i].event);
        HEARD_IS(&h, i, events[i].path, events[i].want);
        open += strcmp(h.event[i], "content_block_start") == 0 ? 1 : strcmp(h.event[i], "content_block_stop") == 0 ? -1 : 0;
        PN_CHECK(open == 0 || open == 1);
        PN_CHECK(heard_at(&h.doc[i], "pantheon") == PN_JSON_NONE, "this API takes no extra keys");
    }
    HEARD_IS(&h, 0, "message.id", "msg_abcdefghijklmnopqrstuvwx");
    HEARD_IS(&h, 0, "message.usage", "{\"input_tokens\":6,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":4,\"output_tokens\":0}");
    HEARD_IS(&h, 16, "usage.output_tokens", "7");
    PN_CHECK(strncmp(heard_value(&h, 9, "content_block.id"), "toolu_", 6) == 0);
    heard_fini(&h);
}

static void a_body_has_what_the_stream_adds_up_to(void)
{
    heard s, h;
    heard_init(&s);
    heard_init(&h);
    PN_CHECK(talk(&s, true, 7, PN_FINISH_LENGTH) && talk(&h, false, 7, PN_FINISH_LENGTH) && h.n == 1 && h.event[0][0] == 0);
    HEARD_IS(&h, 0, "content.0", "{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"}");
    HEARD_IS(&h, 0, "content.1.text", heard_sum(&s, "delta.text"));
    HEARD_IS(&h, 0, "content.2.id", heard_value(&s, 9, "content_block.id"));
    HEARD_IS(&h, 0, "content.2.input", "{\"a\":1}");
    HEARD_IS(&h, 0, "content.3", "{\"type\":\"tool_use\",\"id\":\"abc\",\"name\":\"g\",\"input\":{}}");
    HEARD_IS(&h, 0, "stop_reason", "max_tokens");
    HEARD_IS(&h, 0, "stop_sequence", "null");
    HEARD_IS(&h, 0, "model", "m\"");
    HEARD_IS(&h, 0, "usage", "{\"input_tokens\":6,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":4,\"output_tokens\":7}");
    heard_fini(&s);
    heard_fini(&h);
}

/* A stop string is named; arguments that were cut off do not make the body no JSON; nothing said is no block. */
static void ends_of_all_kinds(void)
{
    heard h;
    pn_reply *r;
    pn_oai_error e;
    heard_init(&h);
    const pn_reply_params p = heard_params(&h, &h.mem, false, 1);
    const pn_output_event begin = heard_event(PN_OUTPUT_CALL_BEGIN, "f"), cut = heard_event(PN_OUTPUT_ARGUMENTS, "{\"a\":\"b"),
                          end = heard_event(PN_OUTPUT_CALL_END, "");
    const pn_reply_finish stop = {PN_FINISH_STOP, {"END", 3}};
    if (PN_CHECK(make(&r, &p, NULL) == PN_OK)) {
        PN_CHECK(r->ops->choice_end(r, 0, &stop) && r->ops->end(r, &heard_usage));
        HEARD_IS(&h, 0, "content", "[]");
        HEARD_IS(&h, 0, "stop_reason", "stop_sequence");
        HEARD_IS(&h, 0, "stop_sequence", "END");
        pn_reply_free(r);
    }
    if (PN_CHECK(make(&r, &p, NULL) == PN_OK)) {
        PN_CHECK(r->ops->event(r, 0, &begin) && r->ops->event(r, 0, &cut) && r->ops->event(r, 0, &end) &&
                 r->ops->choice_end(r, 0, &(pn_reply_finish){.why = PN_FINISH_CONTEXT}) && r->ops->end(r, &heard_usage));
        HEARD_IS(&h, 1, "content.0.input", "{}");
        HEARD_IS(&h, 1, "stop_reason", "max_tokens");
        pn_oai_error_queue(&e, 3, 1000);
        PN_CHECK(r->ops->fail(r, &e) && h.event[2][0] == 0);
        pn_reply_free(r);
    }
    const pn_reply_params streaming = heard_params(&h, &h.mem, true, 1);
    if (PN_CHECK(make(&r, &streaming, NULL) == PN_OK)) {
        PN_CHECK(r->ops->begin(r, &heard_usage) && r->ops->fail(r, &e) && strcmp(h.event[4], "error") == 0);
        HEARD_IS(&h, 4, "error.type", "rate_limit_error");
        pn_reply_free(r);
    }
    heard_fini(&h);
}

static void errors_have_their_own_shape(void)
{
    static const struct { int status, want; const char *type; } cases[] = {
        {400, 400, "invalid_request_error"}, {401, 401, "authentication_error"}, {403, 403, "permission_error"}, {404, 404, "not_found_error"},
        {405, 405, "invalid_request_error"}, {413, 413, "request_too_large"}, {429, 429, "rate_limit_error"}, {500, 500, "api_error"},
        {503, 529, "overloaded_error"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        pn_oai_error e;
        pn_str s;
        char want[128];
        pn_oai_error_set(&e, cases[i].status, "t", "c", "p", "a \"b\"");
        pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
        pn_anthropic_error_json(&e, &s);
        snprintf(want, sizeof want, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"a \\\"b\\\"\"}}", cases[i].type);
        PN_CHECK(strcmp(pn_str_cstr(&s), want) == 0 && pn_anthropic_error_status(&e) == cases[i].want, "%s", pn_str_cstr(&s));
        pn_str_fini(&s);
    }
}

int main(void)
{
    pn_mem_init_libc(&libc_mem);
    fields_have_their_counterparts();
    blocks_become_messages();
    the_billing_header_is_the_same_each_time();
    choices_of_tools();
    what_is_wrong_is_named();
    every_allocation_may_fail();
    a_stream_in_order();
    a_body_has_what_the_stream_adds_up_to();
    ends_of_all_kinds();
    errors_have_their_own_shape();
    heard_failures(make, true);
    heard_failures(make, false);
    return pn_test_end();
}
