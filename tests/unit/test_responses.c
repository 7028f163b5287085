/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_responses.c - the Responses API: what its requests come to, and what its answers look like.
 */
#include "reply_heard.h"

#include "serve/pn_responses.h"

static pn_mem libc_mem;

static bool parse(pn_responses *q, const char *body, pn_oai_error *e) { return pn_responses_parse(q, &libc_mem, body, strlen(body), e); }

/* ------------------------------------------------------------------------------------------
 * Requests
 * ------------------------------------------------------------------------------------------ */

static void fields_have_their_counterparts(void)
{
    static const char body[] =
        "{\"model\":\"m\",\"input\":\"Hi\",\"instructions\":\"S\",\"max_output_tokens\":9,\"max_tokens\":3,\"temperature\":0.5,\"top_p\":0.9,\"stream\":true,"
        "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"},\"strict\":true},{\"type\":\"web_search\"}],"
        "\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"},\"parallel_tool_calls\":false,\"reasoning\":{\"effort\":\"low\",\"summary\":\"auto\"},"
        "\"text\":{\"format\":{\"type\":\"text\"},\"verbosity\":\"low\"},\"store\":true,\"metadata\":{\"a\":\"b\"},\"include\":[\"reasoning.encrypted_content\","
        "\"message.output_text.logprobs\"],\"top_logprobs\":2,\"truncation\":\"disabled\",\"background\":false,\"previous_response_id\":null,\"n\":4,"
        "\"messages\":[],\"user\":\"u\",\"stream_options\":{\"include_obfuscation\":true},\"min_p\":0.25,\"x_new\":{}}";
    pn_responses q;
    pn_oai_error e;
    if (!PN_CHECK(parse(&q, body, &e), "%s: %s", e.param, e.message))
        return;
    const pn_oai_common *c = &q.chat.common;
    pn_sampling s = {0};
    pn_oai_sampling(c, &s);
    PN_CHECK(c->max_tokens == 9 && c->n == 1 && c->stream && c->logprobs && c->top_logprobs == 2 && c->format == PN_OAI_TEXT && !c->include_usage);
    PN_CHECK(s.temperature == 0.5f && s.top_p == 0.9f && s.min_p == 0.25f && q.chat.single_call && q.chat.tool_choice == PN_TOOLS_REQUIRED);
    PN_CHECK(strcmp(heard_doc_value(&c->body, "tools"), "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":"
                    "{\"type\":\"object\"},\"strict\":true}}]") == 0, "%s", heard_doc_value(&c->body, "tools"));
    PN_CHECK(strcmp(heard_doc_value(&c->body, "messages"), "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"S\"}]},"
                    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Hi\"}]}]") == 0, "%s", heard_doc_value(&c->body, "messages"));
    PN_CHECK(strcmp(pn_str_cstr(&q.chat.variables), "{\"reasoning_effort\":\"low\"}") == 0);
    PN_CHECK(strcmp(pn_str_cstr(&c->ignored), "\"user\",\"x_new\",\"tools[1]\",\"reasoning.summary\",\"text.verbosity\",\"store\",\"include\",\"n\",\"messages\"") == 0,
             "%s", pn_str_cstr(&c->ignored));
    PN_CHECK(strcmp(heard_doc_value(&q.body, "metadata.a"), "b") == 0);
    pn_responses_fini(&q);
}

static void items_become_messages(void)
{
#define PART(text) "{\"type\":\"text\",\"text\":\"" text "\"}"
#define CALL(id, name, args) "{\"type\":\"function\",\"id\":\"" id "\",\"function\":{\"name\":\"" name "\",\"arguments\":\"" args "\"}}"
    static const struct { const char *items, *want; } cases[] = {
        {"{\"role\":\"user\",\"content\":\"q\"}", "{\"role\":\"user\",\"content\":[" PART("q") "]}"},
        {"{\"type\":\"message\",\"role\":\"developer\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},{\"type\":\"input_text\",\"text\":\"b\"}]}",
         "{\"role\":\"developer\",\"content\":[" PART("a") "," PART("b") "]}"},
        {"{\"role\":\"user\",\"content\":\"q\"},"
         "{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"h\"},{\"type\":\"reasoning_text\",\"text\":\"m\"}]},"
         "{\"type\":\"message\",\"role\":\"assistant\",\"id\":\"msg_1\",\"status\":\"completed\",\"content\":[{\"type\":\"output_text\",\"text\":\"t\",\"annotations\":[]}]},"
         "{\"type\":\"function_call\",\"id\":\"fc_1\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":\"{}\"},"
         "{\"type\":\"function_call\",\"call_id\":\"c2\",\"name\":\"g\",\"arguments\":\"\"},"
         "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"r\"},"
         "{\"type\":\"function_call_output\",\"call_id\":\"c2\",\"output\":[{\"type\":\"input_text\",\"text\":\"s\"}]}",
         "{\"role\":\"user\",\"content\":[" PART("q") "]},{\"role\":\"assistant\",\"content\":[" PART("t") "],\"reasoning_content\":\"hm\",\"tool_calls\":["
         CALL("c1", "f", "{}") "," CALL("c2", "g", "") "]},{\"role\":\"tool\",\"content\":[" PART("r") "],\"tool_call_id\":\"c1\"},"
         "{\"role\":\"tool\",\"content\":[" PART("s") "],\"tool_call_id\":\"c2\"}"},
        {"{\"role\":\"user\",\"content\":\"q\"},{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"sum\"}],\"content\":null},"
         "{\"role\":\"assistant\",\"content\":\"one\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]}",
         "{\"role\":\"user\",\"content\":[" PART("q") "]},{\"role\":\"assistant\",\"content\":[" PART("one") "],\"reasoning_content\":\"sum\"},"
         "{\"role\":\"assistant\",\"content\":[" PART("no") "]}"},
        {"{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":\"reasoning\",\"summary\":[{\"text\":\"x\"}]},"
         "{\"role\":\"user\",\"content\":\"q\"}",
         "{\"role\":\"assistant\",\"content\":[],\"tool_calls\":[" CALL("c", "f", "{}") "]},{\"role\":\"assistant\",\"content\":[],\"reasoning_content\":\"x\"},"
         "{\"role\":\"user\",\"content\":[" PART("q") "]}"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        char body[1400], want[1024];
        pn_responses q;
        pn_oai_error e;
        snprintf(body, sizeof body, "{\"input\":[%s]}", cases[i].items);
        snprintf(want, sizeof want, "[%s]", cases[i].want);
        if (!PN_CHECK(parse(&q, body, &e), "%s: %s", body, e.message))
            continue;
        PN_CHECK(strcmp(heard_doc_value(&q.chat.common.body, "messages"), want) == 0, "%s", heard_doc_value(&q.chat.common.body, "messages"));
        PN_CHECK(q.chat.common.max_tokens == 0 && !q.chat.common.ignored.len && !q.chat.common.logprobs);
        pn_responses_fini(&q);
    }
}

static void formats_and_choices(void)
{
    static const struct { const char *fields; pn_oai_format format; pn_tool_choice choice; } cases[] = {
        {"\"text\":{\"format\":{\"type\":\"json_object\"}}", PN_OAI_JSON_OBJECT, PN_TOOLS_AUTO},
        {"\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{\"type\":\"object\"},\"strict\":true}}", PN_OAI_SCHEMA, PN_TOOLS_AUTO},
        {"\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":\"required\"", PN_OAI_TEXT, PN_TOOLS_REQUIRED},
        {"\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"required\",\"tools\":[{\"type\":\"function\","
         "\"name\":\"f\"}]}", PN_OAI_TEXT, PN_TOOLS_REQUIRED},
        {"\"tools\":[{\"type\":\"mcp\"}],\"tool_choice\":\"auto\",\"top_logprobs\":0,\"store\":false", PN_OAI_TEXT, PN_TOOLS_AUTO},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        char body[512];
        pn_responses q;
        pn_oai_error e;
        snprintf(body, sizeof body, "{\"input\":\"x\",%s}", cases[i].fields);
        if (!PN_CHECK(parse(&q, body, &e), "%s: %s", body, e.message))
            continue;
        PN_CHECK(q.chat.common.format == cases[i].format && q.chat.tool_choice == cases[i].choice && !q.chat.common.logprobs, "%s", body);
        pn_responses_fini(&q);
    }
}

static void what_is_wrong_is_named(void)
{
    static const struct { const char *fields, *param, *words; } cases[] = {
        {"\"x\":1", "input", "a string or an array of items"}, {"\"input\":[]", "input", "not empty"}, {"\"input\":[3]", "input[0]", "an object"},
        {"\"input\":[{\"role\":\"tool\",\"content\":\"\"}]", "input[0].role", "found 'tool'"}, {"\"input\":[{}]", "input[0].role", "a string"},
        {"\"input\":[{\"role\":\"user\"}]", "input[0].content", "found nothing"}, {"\"input\":[{\"type\":\"item_reference\"}]", "input[0].type", "'item_reference'"},
        {"\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]", "input[0].content[0].type", "'input_image'"},
        {"\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\"}]}]", "input[0].content[0].text", "a string"},
        {"\"input\":[{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"\"}]", "input[0].call_id", "a string"},
        {"\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"c\"}]", "input[0].output", "found nothing"},
        {"\"input\":[{\"role\":\"assistant\",\"content\":\"\"}]", "input", "input: expected at least one message"},
        {"\"input\":\"x\",\"max_output_tokens\":0", "max_output_tokens", "max_output_tokens: expected at least 1"},
        {"\"input\":\"x\",\"text\":{\"format\":{\"type\":\"xml\"}}", "text.format.type", "text.format.type: expected"},
        {"\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\"}}", "text.format.schema", "text.format.schema: expected a JSON Schema"},
        {"\"input\":\"x\",\"text\":3", "text", "an object"}, {"\"input\":\"x\",\"reasoning\":{\"effort\":3}", "reasoning.effort", "reasoning.effort: expected a string"},
        {"\"input\":\"x\",\"tools\":[{\"type\":\"function\"}]", "tools[0].name", "a string"}, {"\"input\":\"x\",\"tools\":[{}]", "tools[0].type", "a string"},
        {"\"input\":\"x\",\"tool_choice\":{\"type\":\"web_search\"}", "tool_choice.type", "found 'web_search'"},
        {"\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"some\",\"tools\":[]}",
         "tool_choice.mode", "tool_choice.mode: expected"},
        {"\"input\":\"x\",\"previous_response_id\":\"resp_1\"", "previous_response_id", "keeps no answers"},
        {"\"input\":\"x\",\"conversation\":{\"id\":\"c\"}", "conversation", "keeps no answers"}, {"\"input\":\"x\",\"background\":true", "background", "wait"},
        {"\"input\":\"x\",\"prompt\":{\"id\":\"p\"}", "prompt", "keeps no"}, {"\"input\":\"x\",\"top_logprobs\":21", "top_logprobs", "0 to 20"},
        {"\"input\":\"x\",\"store\":1", "store", "true or false"}, {"\"input\":\"x\",\"include\":\"a\"", "include", "an array"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        char body[512];
        pn_responses q;
        pn_oai_error e = {0};
        snprintf(body, sizeof body, "{%s}", cases[i].fields);
        bool ok = parse(&q, body, &e);
        PN_CHECK(!ok && e.status == 400 && strcmp(e.param, cases[i].param) == 0 && strstr(e.message, cases[i].words), "%s: '%s' '%s'", body, e.param,
                 e.message);
        pn_responses_fini(&q);
    }
}

static void every_allocation_may_fail(void)
{
    static const char body[] = "{\"input\":[{\"type\":\"reasoning\",\"content\":[{\"text\":\"h\"}]},{\"role\":\"assistant\",\"content\":\"t\"},{\"type\":\"function_call\","
                               "\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"\"},{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"\"}],"
                               "\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"x\"}],\"y\":1,\"reasoning\":{\"effort\":\"low\"}}";
    for (long k = 1; k < 300; k++) {
        pn_test_mem mem;
        pn_responses q;
        pn_oai_error e = {0};
        pn_test_mem_init(&mem, k);
        bool ok = pn_responses_parse(&q, &mem.mem, body, sizeof body - 1, &e);
        pn_responses_fini(&q);
        PN_CHECK(mem.outstanding == 0, "allocation %ld failing leaks %ld blocks", k, mem.outstanding);
        PN_CHECK(ok ? mem.n_calls < k : e.status == 503, "allocation %ld failing gives %d: %s", k, e.status, e.message);
        if (ok)
            break;
    }
}

/* ------------------------------------------------------------------------------------------
 * Answers
 * ------------------------------------------------------------------------------------------ */

static pn_responses asked;

static pn_status make(pn_reply **out, const pn_reply_params *p, pn_err *err) { return pn_responses_reply_new(out, p, &asked, err); }

static bool talk(heard *h, bool stream, unsigned what, pn_finish why)
{
    pn_reply *r;
    const pn_reply_params p = heard_params(h, &h->mem, stream, 1);
    if (!PN_CHECK(make(&r, &p, NULL) == PN_OK))
        return false;
    bool ok = heard_tell(r, what, why);
    pn_reply_free(r);
    return ok;
}

static void a_stream_in_order(void)
{
    static const struct { const char *event, *path, *want; } events[] = {
        {"response.created", "response.status", "in_progress"}, {"response.in_progress", "response.output", "[]"},
        {"response.output_item.added", "item.type", "reasoning"}, {"response.reasoning_text.delta", "delta", "hm"},
        {"response.reasoning_text.done", "text", "hm"}, {"response.output_item.done", "item.content", "[{\"type\":\"reasoning_text\",\"text\":\"hm\"}]"},
        {"response.output_item.added", "item.content", "[]"},
        {"response.content_part.added", "part", "{\"type\":\"output_text\",\"text\":\"\",\"annotations\":[],\"logprobs\":[]}"},
        {"response.output_text.delta", "delta", "He"}, {"response.output_text.delta", "delta", "llo \"\n"},
        {"response.output_text.done", "text", "Hello \"\n"}, {"response.content_part.done", "part.text", "Hello \"\n"},
        {"response.output_item.done", "item.content.0.text", "Hello \"\n"},
        {"response.output_item.added", "item.arguments", ""}, {"response.function_call_arguments.delta", "delta", "{\"a\":"},
        {"response.function_call_arguments.delta", "delta", "1}"}, {"response.function_call_arguments.done", "arguments", "{\"a\":1}"},
        {"response.output_item.done", "item.name", "f"},
        {"response.output_item.added", "item.call_id", "abc"}, {"response.function_call_arguments.delta", "delta", "{}"},
        {"response.function_call_arguments.done", "name", "g"}, {"response.output_item.done", "item.status", "completed"},
        {"response.completed", "response.status", "completed"},
    };
    heard h;
    heard_init(&h);
    PN_CHECK(talk(&h, true, HEARD_TEXT | HEARD_REASONING | HEARD_CALLS, PN_FINISH_STOP) && h.n == (int)PN_COUNT_OF(events), "%d events", h.n);
    char item[64] = "";
    for (int i = 0; i < h.n; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        PN_CHECK(strcmp(h.event[i], events[i].event) == 0, "%d: %s", i, h.event[i]);
        HEARD_IS(&h, i, "type", events[i].event);
        HEARD_IS(&h, i, "sequence_number", number);
        HEARD_IS(&h, i, events[i].path, events[i].want);
        if (strcmp(h.event[i], "response.output_item.added") == 0)
            snprintf(item, sizeof item, "%s", heard_value(&h, i, "item.id"));
        if (heard_at(&h.doc[i], "item_id") != PN_JSON_NONE)
            HEARD_IS(&h, i, "item_id", item);
        if (strcmp(h.event[i], "response.output_item.done") == 0)
            HEARD_IS(&h, i, "item.id", item);
    }
    HEARD_IS(&h, 4, "output_index", "0");
    HEARD_IS(&h, 20, "output_index", "3");
    HEARD_IS(&h, 8, "logprobs.0.token", "He");
    HEARD_IS(&h, 9, "logprobs", "[]");
    HEARD_IS(&h, 12, "item.content.0.logprobs.0.top_logprobs.1.logprob", "-9999");
    HEARD_IS(&h, 22, "response.id", "resp_abcdefghijklmnopqrstuvwx");
    HEARD_IS(&h, 22, "response.output.1", heard_value(&h, 12, "item"));
    HEARD_IS(&h, 22, "response.output.3", heard_value(&h, 21, "item"));
    HEARD_IS(&h, 22, "response.pantheon.ignored_params.0", "user");
    HEARD_IS(&h, 0, "response.pantheon", "-");
    HEARD_IS(&h, 22, "response.usage", "{\"input_tokens\":10,\"input_tokens_details\":{\"cached_tokens\":4},\"output_tokens\":7,"
             "\"output_tokens_details\":{\"reasoning_tokens\":2},\"total_tokens\":17}");
    heard_fini(&h);
}

static void a_body_has_what_the_stream_ends_with(void)
{
    heard s, h;
    heard_init(&s);
    heard_init(&h);
    PN_CHECK(talk(&s, true, 7, PN_FINISH_STOP) && talk(&h, false, 7, PN_FINISH_STOP) && h.n == 1 && h.event[0][0] == 0);
    for (int i = 0; i < 4; i++) {
        char path[32], last[48];
        snprintf(path, sizeof path, "output.%d", i);
        snprintf(last, sizeof last, "response.output.%d", i);
        HEARD_IS(&h, 0, path, heard_value(&s, s.n - 1, last));
    }
    HEARD_IS(&h, 0, "object", "response");
    HEARD_IS(&h, 0, "created_at", "1700000000");
    HEARD_IS(&h, 0, "error", "null");
    HEARD_IS(&h, 0, "incomplete_details", "null");
    HEARD_IS(&h, 0, "temperature", "0.5");
    HEARD_IS(&h, 0, "top_p", "1");
    HEARD_IS(&h, 0, "instructions", "null");
    HEARD_IS(&h, 0, "metadata", "{\"a\":\"b\"}");
    HEARD_IS(&h, 0, "tools", "[]");
    HEARD_IS(&h, 0, "tool_choice", "auto");
    HEARD_IS(&h, 0, "parallel_tool_calls", "true");
    HEARD_IS(&h, 0, "model", "m\"");
    heard_fini(&s);
    heard_fini(&h);
}

static void what_is_cut_short_is_incomplete(void)
{
    heard h;
    heard_init(&h);
    PN_CHECK(talk(&h, true, HEARD_TEXT, PN_FINISH_LENGTH) && strcmp(h.event[h.n - 1], "response.incomplete") == 0);
    HEARD_IS(&h, h.n - 1, "response.incomplete_details.reason", "max_output_tokens");
    HEARD_IS(&h, h.n - 1, "response.output.0.status", "incomplete");
    heard_fini(&h);
}

static void an_error_in_the_middle(void)
{
    heard h;
    pn_reply *r;
    pn_oai_error e;
    heard_init(&h);
    pn_reply_params p = heard_params(&h, &h.mem, true, 1);
    const pn_output_event text = heard_event(PN_OUTPUT_CONTENT, "He");
    pn_oai_error_status(&e, PN_E_INTERNAL, "broken");
    if (PN_CHECK(make(&r, &p, NULL) == PN_OK)) {
        PN_CHECK(r->ops->begin(r, &heard_usage) && r->ops->event(r, 0, &text) && r->ops->fail(r, &e) && h.n == 7, "%d", h.n);
        PN_CHECK(strcmp(h.event[5], "error") == 0 && strcmp(h.event[6], "response.failed") == 0);
        HEARD_IS(&h, 5, "message", "broken");
        HEARD_IS(&h, 6, "response.status", "failed");
        HEARD_IS(&h, 6, "response.error", "{\"code\":\"server_error\",\"message\":\"broken\"}");
        pn_reply_free(r);
    }
    p.stream = false;
    if (PN_CHECK(make(&r, &p, NULL) == PN_OK)) {
        PN_CHECK(r->ops->fail(r, &e));
        HEARD_IS(&h, 7, "error.message", "broken");
        pn_reply_free(r);
    }
    heard_fini(&h);
}

int main(void)
{
    pn_oai_error e;
    pn_mem_init_libc(&libc_mem);
    fields_have_their_counterparts();
    items_become_messages();
    formats_and_choices();
    what_is_wrong_is_named();
    every_allocation_may_fail();
    if (PN_CHECK(parse(&asked, "{\"input\":\"x\",\"temperature\":0.5,\"metadata\":{\"a\":\"b\"},\"include\":[\"message.output_text.logprobs\"]}", &e), "%s", e.message)) {
        a_stream_in_order();
        a_body_has_what_the_stream_ends_with();
        what_is_cut_short_is_incomplete();
        an_error_in_the_middle();
        heard_failures(make, true);
        heard_failures(make, false);
        pn_responses_fini(&asked);
    }
    return pn_test_end();
}
