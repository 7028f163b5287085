/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_oai.c - chat completions requests: what they ask for arrives, what is wrong is named, what is unknown is
 * listed.
 */
#include "pn_test.h"

#include "serve/pn_oai.h"

static pn_mem libc_mem;

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"

static bool parse(pn_oai_chat *q, const char *body, pn_oai_error *e) { return pn_oai_chat_parse(q, &libc_mem, body, strlen(body), 4, e); }

static void everything_arrives(void)
{
    static const char body[] =
        "{\"model\":\"m\"," MESSAGES ",\"max_tokens\":9,\"max_completion_tokens\":7.0,\"temperature\":0.5,\"top_p\":0,\"top_k\":-1,\"seed\":-3,"
        "\"n\":2,\"stream\":true,\"stream_options\":{\"include_usage\":true},\"stop\":[\"a\",\"\",\"bc\"],\"logprobs\":true,\"top_logprobs\":5,"
        "\"logit_bias\":{\"17\":-1.5,\"3\":100},\"presence_penalty\":1,\"user\":\"u\",\"store\":true,\"x_new\":{\"a\":1},\"metadata\":null,"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
        "\"parallel_tool_calls\":false,\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"enable_thinking\":true,\"k\":[1]},"
        "\"thinking_budget_tokens\":40,\"session_id\":\"s1\",\"mirostat\":2,\"repetition_penalty\":1.1,"
        "\"cache_prompt\":false,\"add_generation_prompt\":true,\"modalities\":[\"text\"],\"reasoning_format\":\"none\"}";
    pn_oai_chat q;
    pn_oai_error e;
    if (!PN_CHECK(parse(&q, body, &e), "%s: %s", e.param, e.message))
        return;
    pn_sampling s = {.temperature = 9, .top_k = 40, .min_p = 0.05f};
    pn_oai_sampling(&q.common, &s);
    PN_CHECK(q.common.max_tokens == 7 && q.common.n == 2 && q.common.stream && q.common.include_usage && q.common.logprobs && q.common.top_logprobs == 5);
    PN_CHECK(s.temperature == 0.5f && s.top_p > 0 && s.top_p < 1e-20f && s.top_k == -1 && s.min_p == 0.05f && s.has_seed &&
             s.seed == (uint64_t)-3 && s.presence_penalty == 1 && s.mirostat == 2 && s.repeat_penalty == 1.1f);
    PN_CHECK(q.common.n_stop == 2 && strcmp(q.common.stop[0], "a") == 0 && strcmp(q.common.stop[1], "bc") == 0);
    PN_CHECK(s.n_bias == 2 && s.bias[0].token == 17 && s.bias[0].bias == -1.5f && s.bias[1].bias == 100);
    PN_CHECK(q.tools != PN_JSON_NONE && q.tool_choice == PN_TOOLS_REQUIRED && q.tool_name.len == 1 && q.single_call);
    PN_CHECK(q.has_reasoning_budget && q.reasoning_budget == 40 && q.common.session.len == 2);
    PN_CHECK(strcmp(pn_str_cstr(&q.variables), "{\"enable_thinking\":false,\"reasoning_effort\":\"none\",\"enable_thinking\":true,\"k\":[1]}") == 0, "%s",
             pn_str_cstr(&q.variables));
    PN_CHECK(strcmp(pn_str_cstr(&q.common.ignored), "\"user\",\"store\",\"x_new\",\"cache_prompt\",\"reasoning_format\"") == 0, "%s", pn_str_cstr(&q.common.ignored));
    pn_oai_chat_fini(&q);
}

static void what_an_answer_looks_like(void)
{
    static const struct { const char *field; pn_oai_format want; } cases[] = {
        {"\"response_format\":{\"type\":\"text\"}", PN_OAI_TEXT},
        {"\"response_format\":{\"type\":\"json_object\"}", PN_OAI_JSON_OBJECT},
        {"\"response_format\":{\"type\":\"json_object\",\"schema\":{\"type\":\"array\"}}", PN_OAI_SCHEMA},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":{\"type\":\"array\"}}}", PN_OAI_SCHEMA},
        {"\"response_format\":{\"type\":\"json_schema\",\"schema\":true}", PN_OAI_SCHEMA},
        {"\"guided_json\":{\"type\":\"array\"}", PN_OAI_SCHEMA},
        {"\"grammar\":\"root ::= \\\"a\\\"\"", PN_OAI_GBNF},
        {"\"grammar\":\"\"", PN_OAI_TEXT},
        {"\"guided_choice\":[\"a\"]", PN_OAI_GBNF},
        {"\"structured_outputs\":{\"json\":{},\"regex\":null}", PN_OAI_SCHEMA},
        {"\"structured_outputs\":{\"choice\":[\"a\",\"b\"]}", PN_OAI_GBNF},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        char body[512];
        pn_oai_chat q;
        pn_oai_error e;
        snprintf(body, sizeof body, "{" MESSAGES ",%s}", cases[i].field);
        if (!PN_CHECK(parse(&q, body, &e), "%s: %s", cases[i].field, e.message))
            continue;
        PN_CHECK(q.common.format == cases[i].want && (q.common.format == PN_OAI_SCHEMA) == (q.common.schema != PN_JSON_NONE), "%s: %d", cases[i].field, (int)q.common.format);
        pn_oai_chat_fini(&q);
    }
}

static void what_is_wrong_is_named(void)
{
    static const struct { const char *body, *param, *words; } cases[] = {
        {"", "", "not JSON"}, {"{", "", "not JSON"}, {"[]", "", "expected a JSON object, found array"},
        {"{}", "messages", "at least one message"}, {"{\"messages\":[]}", "messages", "at least one"},
        {"{\"messages\":\"x\"}", "messages", "expected an array, found string"},
        {"{\"messages\":[3]}", "messages[0].role", "a role"}, {"{\"messages\":[{\"role\":3}]}", "messages[0].role", "a role"},
        {"{\"messages\":[{\"role\":\"god\",\"content\":\"x\"}]}", "messages[0].role", "found 'god'"},
        {"{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content", "expected a string"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages[0].content", "found number"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\"}]}]}", "messages[0].content[1].type",
         "found a part of type 'image_url'"},
        {"{" MESSAGES ",\"temperature\":\"hot\"}", "temperature", "expected a number, found string"},
        {"{" MESSAGES ",\"temperature\":-1}", "temperature", "expected 0 to 100, found -1"},
        {"{" MESSAGES ",\"top_k\":1.5}", "top_k", "an integer"}, {"{" MESSAGES ",\"n\":0}", "n", "1 to 4, found 0"},
        {"{" MESSAGES ",\"n\":5}", "n", "1 to 4, found 5"}, {"{" MESSAGES ",\"max_tokens\":0}", "max_tokens", "at least 1"},
        {"{" MESSAGES ",\"stream\":\"yes\"}", "stream", "true or false"}, {"{" MESSAGES ",\"stop\":[1]}", "stop", "a string, found number"},
        {"{" MESSAGES ",\"stop\":{}}", "stop", "a string or an array"}, {"{" MESSAGES ",\"stop\":\"a\\u0000b\"}", "stop", "NUL"},
        {"{" MESSAGES ",\"logit_bias\":{\"x\":1}}", "logit_bias", "token ids"}, {"{" MESSAGES ",\"logit_bias\":{\"1\":101}}", "logit_bias", "-100 to 100"},
        {"{" MESSAGES ",\"top_logprobs\":3}", "top_logprobs", "logprobs to be true"},
        {"{" MESSAGES ",\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs", "0 to 20"},
        {"{" MESSAGES ",\"response_format\":{\"type\":\"xml\"}}", "response_format.type", "found 'xml'"},
        {"{" MESSAGES ",\"response_format\":{\"type\":\"json_schema\"}}", "response_format.json_schema.schema", "a JSON Schema"},
        {"{" MESSAGES ",\"grammar\":\"root ::= [a]\",\"json_schema\":{}}", "json_schema", "one such field"},
        {"{" MESSAGES ",\"tools\":[{\"type\":\"custom\"}]}", "tools[0].type", "expected \"function\""},
        {"{" MESSAGES ",\"tool_choice\":\"maybe\"}", "tool_choice", "found 'maybe'"}, {"{" MESSAGES ",\"tool_choice\":\"required\"}", "tool_choice", "no tools"},
        {"{" MESSAGES ",\"tools\":[{\"function\":{\"name\":\"f\"}}],\"grammar\":\"root ::= [a]\"}", "grammar", "calls no tools"},
        {"{" MESSAGES ",\"tools\":[{\"type\":\"function\"}]}", "tools[0].function.name", "a string, found nothing"},
        {"{" MESSAGES ",\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}",
         "tool_choice", "no tool 'g'"},
        {"{" MESSAGES ",\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\","
         "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]}}}", "tool_choice", "no tool 'g'"},
        {"{" MESSAGES ",\"tool_choice\":\"auto \"}", "tool_choice", "found 'auto '"}, {"{" MESSAGES ",\"tool_choice\":{}}", "tool_choice", "expected auto"},
        {"{" MESSAGES ",\"modalities\":[\"text\",\"audio\"]}", "modalities", "found 'audio'"}, {"{" MESSAGES ",\"audio\":{}}", "audio", "no audio"},
        {"{" MESSAGES ",\"samplers\":[\"magic\"]}", "samplers", "found \"magic\""}, {"{" MESSAGES ",\"samplers\":[]}", "samplers", "at least one"},
        {"{" MESSAGES ",\"samplers\":[3]}", "samplers", "a string"}, {"{" MESSAGES ",\"dry_sequence_breakers\":3}", "dry_sequence_breakers", "array"},
        {"{" MESSAGES ",\"chat_template\":\"x\"}", "chat_template", "model's own"},
        {"{" MESSAGES ",\"thinking\":{\"type\":\"maybe\"}}", "thinking.type", "found 'maybe'"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", "messages[0].content[0].text", "a string, found nothing"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"\"}]}", "messages", "at least one message"},
        {"{" MESSAGES ",\"guided_regex\":\"a+\"}", "guided_regex", "send a grammar"},
        {"{" MESSAGES ",\"structured_outputs\":{\"json\":3}}", "structured_outputs.json", "a JSON Schema"},
        {"{" MESSAGES ",\"functions\":[]}", "functions", "send tools"}, {"{" MESSAGES ",\"mirostat\":1}", "mirostat", "0 or 2"},
        {"{" MESSAGES ",\"chat_template_kwargs\":{\"enable_thinking\":\"no\"}}", "chat_template_kwargs.enable_thinking", "true or false"},
        {"{" MESSAGES ",\"chat_template_kwargs\":{\"messages\":[]}}", "chat_template_kwargs", "fields of the request"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        pn_oai_chat q;
        pn_oai_error e = {0};
        pn_str s;
        PN_CHECK(!parse(&q, cases[i].body, &e) && e.status == 400 && strcmp(e.param, cases[i].param) == 0 && strstr(e.message, cases[i].words),
                 "%s: %d '%s' '%s'", cases[i].body, e.status, e.param, e.message);
        pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
        pn_oai_error_json(&e, &s);
        PN_CHECK(strncmp(pn_str_cstr(&s), "{\"error\":{\"message\":\"", 21) == 0 && strstr(pn_str_cstr(&s), "\"type\":\"invalid_request_error\"") &&
                 strstr(pn_str_cstr(&s), "\"code\":\"invalid_value\"}}"), "%s", pn_str_cstr(&s));
        pn_str_fini(&s);
    }
}

/* null is absent, of equal keys the last counts; odd but common shapes are taken. */
static void what_clients_send_is_taken(void)
{
    static const char *const bodies[] = {
        "{" MESSAGES ",\"temperature\":null,\"tools\":null,\"stop\":null,\"response_format\":null,\"tool_choice\":null,\"chat_template_kwargs\":null,"
        "\"stream_options\":null,\"max_tokens\":null,\"n\":null,\"logit_bias\":null,\"seed\":null,\"audio\":null}",
        "{" MESSAGES ",\"tools\":[],\"max_tokens\":-1,\"stop\":\"x\",\"logit_bias\":[[5,1]],\"temperature\":3}",
        "{" MESSAGES ",\"stream\":false,\"stream_options\":{\"include_usage\":true,\"include_obfuscation\":false}}",
        "{" MESSAGES ",\"n\":1.0,\"max_tokens\":5e0,\"temperature\":\"hot\",\"temperature\":1}",
        "{" MESSAGES ",\"seed\":99999999999999999999,\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\"]}",
        "{" MESSAGES ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},\"strict\":true}}}",
        "{" MESSAGES ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":null,\"strict\":true}}],\"tool_choice\":\"required\"}",
        "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{\"type\":\"ephemeral\"}}]},"
        "{\"role\":\"system\",\"content\":\"two\",\"cache_control\":{\"type\":\"ephemeral\"}},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":null,\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"x\",\"content\":null},{\"role\":\"user\",\"content\":\"\\ud83d\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"name\":\"n\"},{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"\",\"tool_calls\":"
        "[{\"id\":7,\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}]},{\"role\":\"tool\",\"tool_call_id\":null,\"content\":"
        "[{\"type\":\"text\",\"text\":\"r\"}]},{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"bytes \xFF\xC3 pasted\"}]}",
    };
    for (size_t i = 0; i < PN_COUNT_OF(bodies); i++) {
        pn_oai_chat q;
        pn_oai_error e;
        if (!PN_CHECK(parse(&q, bodies[i], &e), "%s: %s", bodies[i], e.message))
            continue;
        PN_CHECK(!q.common.ignored.len, "%s: %s", bodies[i], pn_str_cstr(&q.common.ignored));
        pn_oai_chat_fini(&q);
    }
}

static void bytes_that_are_no_text_are_replaced(void)
{
    pn_oai_chat q;
    pn_oai_error e;
    pn_bytes text;
    if (!PN_CHECK(parse(&q, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\xFF\xC3\xA9\\ud83dz\"}]}", &e), "%s", e.message))
        return;
    const pn_json_doc *d = &q.common.body;
    PN_CHECK(pn_json_str(d, pn_json_get(d, pn_json_first(d, q.messages), "content"), &text) &&
             strcmp(text.data, "a\xEF\xBF\xBD\xC3\xA9\xEF\xBF\xBDz") == 0, "%s", text.data);
    pn_oai_chat_fini(&q);
}

/* An empty message of the assistant at the end is where the answer goes; one with text is a beginning of it. */
static void empty_messages_at_the_end_do_not_count(void)
{
    static const struct { const char *tail; uint32_t want; } cases[] = {
        {"", 1}, {",{\"role\":\"assistant\",\"content\":\"\"}", 1}, {",{\"role\":\"assistant\",\"content\":null},{\"role\":\"assistant\"}", 1},
        {",{\"role\":\"assistant\",\"content\":[]},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"\"}]}", 1}, {",{\"role\":\"assistant\",\"content\":\"{\"}", 2},
        {",{\"role\":\"assistant\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"\"}", 3},
        {",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}", 2},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        char body[512];
        pn_oai_chat q;
        pn_oai_error e;
        snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}%s]}", cases[i].tail);
        if (!PN_CHECK(parse(&q, body, &e), "%s: %s", body, e.message))
            continue;
        PN_CHECK(q.n_messages == cases[i].want, "%s: %u", body, (unsigned)q.n_messages);
        pn_oai_chat_fini(&q);
    }
}

static void tools_that_may_be_called(void)
{
#define TOOL(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"
    static const struct { const char *choice, *tools; pn_tool_choice want; } cases[] = {
        {"\"auto\"", "[" TOOL("f") "," TOOL("g") "]", PN_TOOLS_AUTO}, {"\"none\"", "[" TOOL("f") "," TOOL("g") "]", PN_TOOLS_NONE},
        {"{\"type\":\"function\",\"name\":\"g\"}", "[" TOOL("f") "," TOOL("g") "]", PN_TOOLS_REQUIRED},
        {"{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"required\",\"tools\":[" TOOL("g") "]}}", "[" TOOL("g") "]", PN_TOOLS_REQUIRED},
        {"{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[]}}", "", PN_TOOLS_AUTO},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        char body[512];
        pn_oai_chat q;
        pn_oai_error e;
        pn_str s;
        snprintf(body, sizeof body, "{" MESSAGES ",\"tools\":[" TOOL("f") "," TOOL("g") "],\"tool_choice\":%s}", cases[i].choice);
        if (!PN_CHECK(parse(&q, body, &e), "%s: %s", body, e.message))
            continue;
        pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
        pn_oai_chat_tools(&q, &s);
        PN_CHECK(q.tool_choice == cases[i].want && strcmp(pn_str_cstr(&s), cases[i].tools) == 0, "%s: %s", body, pn_str_cstr(&s));
        pn_str_fini(&s);
        pn_oai_chat_fini(&q);
    }
#undef TOOL
}

static void samplers_in_their_order(void)
{
    static const char body[] = "{" MESSAGES ",\"samplers\":[\"top_k\",\"typ_p\",\"temperature\"],\"dry_sequence_breakers\":[\"\\n\",\"\",\"x\"]}";
    pn_oai_chat q;
    pn_oai_error e;
    pn_sampling s = {.top_k = 7};
    if (!PN_CHECK(parse(&q, body, &e), "%s", e.message))
        return;
    pn_oai_sampling(&q.common, &s);
    PN_CHECK(s.order[0] == PN_SAMPLER_TOP_K && s.order[1] == PN_SAMPLER_TYPICAL && s.order[2] == PN_SAMPLER_TEMPERATURE && s.order[3] == PN_SAMPLER_END);
    PN_CHECK(s.top_k == 7 && s.n_dry_breakers == 2 && strcmp(s.dry_breakers[1], "x") == 0 && !q.common.ignored.len);
    pn_oai_chat_fini(&q);
    if (PN_CHECK(parse(&q, "{" MESSAGES ",\"samplers\":\"min_p;xtc\",\"dry_sequence_breakers\":[]}", &e), "%s", e.message)) {
        pn_oai_sampling(&q.common, &s);
        PN_CHECK(s.order[0] == PN_SAMPLER_MIN_P && s.dry_breakers && !s.n_dry_breakers);
        pn_oai_chat_fini(&q);
    }
}

static void what_is_too_deep_is_refused(void)
{
    pn_str s;
    pn_oai_chat q;
    pn_oai_error e;
    pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
    pn_str_addz(&s, "{" MESSAGES ",\"x\":");
    for (int i = 0; i < 200; i++)
        pn_str_addc(&s, '[');
    PN_CHECK(!parse(&q, pn_str_cstr(&s), &e) && e.status == 400 && strstr(e.message, "not JSON"), "%s", e.message);
    pn_str_fini(&s);
}

static void thinking_in_all_its_spellings(void)
{
    static const struct { const char *field, *variables; bool has; uint32_t budget; } cases[] = {
        {"\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":9}", "{\"enable_thinking\":true}", true, 9},
        {"\"thinking\":{\"type\":\"disabled\"}", "{\"enable_thinking\":false}", false, 0}, {"\"thinking\":{\"type\":\"adaptive\"}", "", false, 0},
        {"\"reasoning_effort\":\"xhigh\"", "{\"reasoning_effort\":\"xhigh\"}", false, 0}, {"\"reasoning_budget_tokens\":0", "", true, 0},
        {"\"thinking_budget_tokens\":-1", "", false, 0}, {"\"documents\":[{\"a\":1}]", "{\"documents\":[{\"a\":1}]}", false, 0},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        char body[512];
        pn_oai_chat q;
        pn_oai_error e;
        snprintf(body, sizeof body, "{" MESSAGES ",%s}", cases[i].field);
        if (!PN_CHECK(parse(&q, body, &e), "%s: %s", body, e.message))
            continue;
        PN_CHECK(strcmp(pn_str_cstr(&q.variables), cases[i].variables) == 0 && q.has_reasoning_budget == cases[i].has &&
                 q.reasoning_budget == cases[i].budget && !q.common.ignored.len, "%s: %s", body, pn_str_cstr(&q.variables));
        pn_oai_chat_fini(&q);
    }
}

static void every_allocation_may_fail(void)
{
    static const char body[] = "{" MESSAGES ",\"stop\":[\"a\",\"b\"],\"logit_bias\":{\"1\":1},\"x\":1,\"reasoning_effort\":\"low\",\"dry_sequence_breakers\":[\"a\"]}";
    for (long k = 1; k < 200; k++) {
        pn_test_mem mem;
        pn_oai_chat q;
        pn_oai_error e = {0};
        pn_test_mem_init(&mem, k);
        bool ok = pn_oai_chat_parse(&q, &mem.mem, body, sizeof body - 1, 4, &e);
        if (ok)
            pn_oai_chat_fini(&q);
        PN_CHECK(mem.outstanding == 0, "allocation %ld failing leaks %ld blocks", k, mem.outstanding);
        PN_CHECK(ok || e.status == 503, "allocation %ld failing gives %d: %s", k, e.status, e.message);
        if (ok)
            break;
    }
}

int main(void)
{
    pn_mem_init_libc(&libc_mem);
    everything_arrives();
    what_an_answer_looks_like();
    what_is_wrong_is_named();
    what_clients_send_is_taken();
    bytes_that_are_no_text_are_replaced();
    empty_messages_at_the_end_do_not_count();
    tools_that_may_be_called();
    thinking_in_all_its_spellings();
    samplers_in_their_order();
    what_is_too_deep_is_refused();
    every_allocation_may_fail();
    return pn_test_end();
}
