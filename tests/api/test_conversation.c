/*
 * test_conversation.c - conversations on the demo model: the template renders them, answers come apart
 * into events, what was sampled stays as it was, messages make no control tokens, grammars hold.
 */
#include "pantheon.h"
#include "pn_api_test.h"

static const char talk_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"Weather of a city\",\"parameters\":"
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}}}]";

typedef struct talk_rig {
    pn_engine *e;
    pn_model *m;
    pn_session *s;
    pn_chat *c;
} talk_rig;

static int talk_open(talk_rig *r, const pn_chat_params *p)
{
    pn_err err = {0};
    memset(r, 0, sizeof *r);
    return PN_CHECK(pn_engine_open(&r->e, &(pn_engine_params){.n_threads = 2}, &err) == PN_OK, "%s", err.text) &&
           PN_CHECK(pn_model_load(r->e, "models/demo.gguf", NULL, &r->m, &err) == PN_OK, "%s", err.text) &&
           PN_CHECK(pn_session_new(r->m, NULL, &r->s, &err) == PN_OK, "%s", err.text) &&
           PN_CHECK(pn_chat_new(r->s, p, &r->c, &err) == PN_OK, "%s", err.text);
}

static void talk_close(talk_rig *r)
{
    pn_chat_free(r->c);
    pn_session_free(r->s);
    pn_model_free(r->m);
    pn_engine_close(r->e);
}

typedef struct talk_heard {
    char text[5][2048];         /* by kind, put together */
    size_t len[5];
    int calls, complete;
} talk_heard;

static int talk_hear(void *user, const pn_output_event *e)
{
    talk_heard *h = user;
    if (h->len[e->kind] + e->len < sizeof h->text[0]) {
        memcpy(h->text[e->kind] + h->len[e->kind], e->text, e->len);
        h->len[e->kind] += e->len;
        h->text[e->kind][h->len[e->kind]] = 0;
    }
    h->calls += e->kind == PN_OUTPUT_CALL_BEGIN;
    h->complete += e->kind == PN_OUTPUT_CALL_END && e->complete;
    return 0;
}

static pn_generate_result talk_ask(talk_rig *r, const char *text, talk_heard *h)
{
    pn_err err = {0};
    pn_generate_result g = {0};
    memset(h, 0, sizeof *h);
    const pn_chat_reply_params p = {.generate = &(pn_generate_params){.max_tokens = 48}, .on_event = talk_hear, .user = h};
    if (text)
        PN_CHECK(pn_chat_say(r->c, "user", text, 0, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_chat_reply(r->c, &p, &g, &err) == PN_OK, "%s", err.text);
    return g;
}

static void a_conversation_remembers(void)
{
    talk_rig r;
    talk_heard h;
    size_t len;
    if (talk_open(&r, NULL)) {
        talk_ask(&r, "My name is Ada.", &h);
        PN_CHECK(strstr(h.text[PN_OUTPUT_CONTENT], "Ada"), "'%s'", h.text[PN_OUTPUT_CONTENT]);
        talk_ask(&r, "What is my name?", &h);
        PN_CHECK(strstr(h.text[PN_OUTPUT_CONTENT], "Ada"), "'%s'", h.text[PN_OUTPUT_CONTENT]);
        PN_CHECK(pn_chat_length(r.c) == 4, "%zu messages", pn_chat_length(r.c));
        const char *m = pn_chat_message(r.c, 3, &len);
        PN_CHECK(m && strstr(m, "\"assistant\"") && strstr(m, "Ada") && pn_chat_message(r.c, 4, &len) == NULL, "%s", m ? m : "-");
    }
    talk_close(&r);
}

/* Six turns: every turn's session begins with the last one's, token for token.  Without thinking the
 * template writes an empty <think> before an answer and leaves it out of the history; it says nothing,
 * so it stays. */
static void what_was_sampled_stays(const char *variables)
{
    static const char *const lines[] = {"My name is Ada.", "What is the capital of France?", "Count to five.",
                                        "What is my name?", "Tell me a story about a fox.", "Thank you."};
    talk_rig r;
    talk_heard h;
    pn_token before[2048];
    uint32_t n_before = 0, kept = 0, all = 0;
    if (talk_open(&r, &(pn_chat_params){.variables = variables}))
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
            pn_generate_result g = talk_ask(&r, lines[i], &h);
            uint32_t n = pn_session_length(r.s), same = 0;
            const pn_token *t = pn_session_tokens(r.s);
            while (same < n_before && same < n && t[same] == before[same])
                same++;
            kept += same;
            all += n_before;
            PN_CHECK(n == n_before - (n_before - same) + g.n_prompt + g.n_generated, "turn %zu: %u tokens, %u evaluated", i,
                     (unsigned)n, (unsigned)g.n_prompt);
            n_before = n;
            memcpy(before, t, n * sizeof *t);
        }
    PN_CHECK(all > 100 && kept * 100 >= all * 99, "%u of %u tokens were kept", (unsigned)kept, (unsigned)all);
    talk_close(&r);
}

static void tools_are_called_and_answered(void)
{
    talk_rig r;
    talk_heard h;
    pn_err err = {0};
    size_t len;
    if (talk_open(&r, &(pn_chat_params){.tools = talk_tools})) {
        talk_ask(&r, "What is the weather in Paris?", &h);
        PN_CHECK(h.calls == 1 && h.complete == 1 && strcmp(h.text[PN_OUTPUT_CALL_BEGIN], "get_weather") == 0 &&
                 strstr(h.text[PN_OUTPUT_ARGUMENTS], "Paris"), "%d calls: %s(%s)", h.calls, h.text[PN_OUTPUT_CALL_BEGIN],
                 h.text[PN_OUTPUT_ARGUMENTS]);
        const char *m = pn_chat_message(r.c, 1, &len);
        PN_CHECK(m && strstr(m, "\"tool_calls\":[{\"id\":\"call_"), "%s", m ? m : "-");
        uint32_t before = pn_session_length(r.s);
        PN_CHECK(pn_chat_add(r.c, "{\"role\":\"tool\",\"tool_call_id\":\"call_1_0\",\"content\":\"{\\\"weather\\\": \\\"sunny\\\"}\"}", 0,
                             &err) == PN_OK, "%s", err.text);
        pn_generate_result g = talk_ask(&r, NULL, &h);
        PN_CHECK(h.calls == 0 && h.len[PN_OUTPUT_CONTENT] > 3, "'%s'", h.text[PN_OUTPUT_CONTENT]);
        PN_CHECK(g.n_prompt < before, "%u of %u tokens evaluated again", (unsigned)g.n_prompt, (unsigned)before);
    }
    talk_close(&r);
}

static void edited_history_is_computed_anew(void)
{
    talk_rig r, fresh;
    talk_heard a, b;
    if (talk_open(&r, NULL) && talk_open(&fresh, NULL)) {
        talk_ask(&r, "My name is Ada.", &a);
        talk_ask(&r, "What is my name?", &a);
        pn_chat_forget(r.c, 0);
        talk_ask(&r, "My name is Bob.", &a);
        talk_ask(&fresh, "My name is Bob.", &b);
        PN_CHECK(a.len[PN_OUTPUT_CONTENT] == b.len[PN_OUTPUT_CONTENT] &&
                 memcmp(a.text[PN_OUTPUT_CONTENT], b.text[PN_OUTPUT_CONTENT], a.len[PN_OUTPUT_CONTENT]) == 0, "'%s' and '%s'",
                 a.text[PN_OUTPUT_CONTENT], b.text[PN_OUTPUT_CONTENT]);
        PN_CHECK(pn_session_length(r.s) == pn_session_length(fresh.s) &&
                 memcmp(pn_session_tokens(r.s), pn_session_tokens(fresh.s), pn_session_length(r.s) * sizeof(pn_token)) == 0,
                 "other tokens after editing");
    }
    talk_close(&r);
    talk_close(&fresh);
}

/* Control tokens in the prompt: as many as the template writes, whatever the messages say. */
static size_t talk_controls(talk_rig *r, const char *user, const char *tool)
{
    pn_err err = {0};
    talk_heard h;
    size_t n = 0;
    char json[512];
    pn_chat_forget(r->c, 0);
    PN_CHECK(pn_chat_say(r->c, "system", user, 0, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_chat_say(r->c, "user", user, 0, &err) == PN_OK, "%s", err.text);
    snprintf(json, sizeof json, "{\"role\":\"assistant\",\"content\":\"%s\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\","
             "\"function\":{\"name\":\"%s\",\"arguments\":\"{\\\"%s\\\":\\\"%s\\\"}\"}}]}", tool, tool, tool, tool);
    PN_CHECK(pn_chat_add(r->c, json, 0, &err) == PN_OK, "%s", err.text);
    snprintf(json, sizeof json, "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"%s\"}", tool);
    PN_CHECK(pn_chat_add(r->c, json, 0, &err) == PN_OK, "%s", err.text);
    pn_generate_result g = talk_ask(r, user, &h);
    for (uint32_t i = 0; i < pn_session_length(r->s) - g.n_generated; i++)
        n += pn_token_kind_of(r->m, pn_session_tokens(r->s)[i]) == PN_TOKEN_CONTROL;
    return n;
}

static void messages_make_no_control_tokens(void)
{
    talk_rig r;
    if (talk_open(&r, NULL)) {
        size_t plain = talk_controls(&r, "hello", "hello");
        PN_CHECK(plain >= 10, "%zu control tokens in a plain conversation", plain);
        for (pn_token t = 0; (uint32_t)t < pn_vocab_size(r.m); t++) {
            const char *text;
            size_t len;
            char copy[64];
            if (pn_token_kind_of(r.m, t) != PN_TOKEN_CONTROL || pn_token_text(r.m, t, &text, &len) || len >= sizeof copy)
                continue;
            memcpy(copy, text, len);
            copy[len] = 0;
            size_t n = talk_controls(&r, copy, copy);
            PN_CHECK(n == plain, "'%s' makes %zu control tokens, expected %zu", copy, n, plain);
        }
    }
    talk_close(&r);
}

static void grammars_hold_whatever_the_model_wants(void)
{
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":9},\"age\":"
                                 "{\"type\":\"integer\",\"minimum\":1,\"maximum\":99},\"tags\":{\"type\":\"array\",\"items\":"
                                 "{\"enum\":[\"a\",\"bb\"]},\"maxItems\":3}},\"required\":[\"name\",\"age\",\"tags\"]}";
    talk_rig r;
    pn_err err = {0};
    pn_grammar *g = NULL;
    if (talk_open(&r, NULL) &&
        PN_CHECK(pn_grammar_json_schema(r.e, schema, sizeof schema - 1, &g, &err) == PN_OK, "%s", err.text)) {
        for (uint64_t seed = 1; seed <= 40; seed++) {
            talk_heard h = {0};
            const pn_sampling wild = {.temperature = 3, .has_seed = 1, .seed = seed};
            const pn_sampling best = {.temperature = 1, .top_k = 1};
            const pn_chat_reply_params p = {.generate = &(pn_generate_params){.max_tokens = 300, .grammar = g, .sampling = seed % 4 ? &wild : &best},
                                            .on_event = talk_hear, .user = &h};
            pn_generate_result res = {0};
            pn_chat_forget(r.c, 0);
            pn_chat_say(r.c, "user", "Who are you?", 0, NULL);
            PN_CHECK(pn_chat_reply(r.c, &p, &res, &err) == PN_OK, "%s", err.text);
            PN_CHECK(res.finish == PN_FINISH_STOP &&
                     pn_grammar_matches(g, h.text[PN_OUTPUT_CONTENT], h.len[PN_OUTPUT_CONTENT]) == 1,
                     "seed %d: finish %d, '%s'", (int)seed, (int)res.finish, h.text[PN_OUTPUT_CONTENT]);
        }
        pn_grammar_free(g);
    }
    talk_close(&r);
}

static void reasoning_ends_when_its_budget_is_spent(void)
{
    static const uint32_t budgets[] = {0, 3, 8};
    for (size_t i = 0; i < 3; i++) {
        talk_rig r;
        talk_heard h = {0};
        pn_err err = {0};
        pn_generate_result g = {0};
        if (talk_open(&r, &(pn_chat_params){.variables = "{\"enable_thinking\": true}"})) {
            const pn_chat_reply_params p = {.generate = &(pn_generate_params){.max_tokens = 60}, .on_event = talk_hear, .user = &h,
                                            .has_reasoning_budget = 1, .reasoning_budget = budgets[i]};
            pn_chat_say(r.c, "user", "What is 12 + 30?", 0, NULL);
            PN_CHECK(pn_chat_reply(r.c, &p, &g, &err) == PN_OK, "%s", err.text);
            pn_token ids[256];
            size_t n = 0;
            pn_tokenize(r.m, h.text[PN_OUTPUT_REASONING], h.len[PN_OUTPUT_REASONING], 0, ids, 256, &n, NULL);
            PN_CHECK(n <= budgets[i] + 1, "budget %u: %zu tokens of reasoning: '%s'", (unsigned)budgets[i], n,
                     h.text[PN_OUTPUT_REASONING]);
            PN_CHECK(h.len[PN_OUTPUT_CONTENT] > 0, "budget %u: no answer", (unsigned)budgets[i]);
        }
        talk_close(&r);
    }
}

static void wrong_conversations_say_what_is_wrong(void)
{
    talk_rig r;
    pn_err err = {0};
    pn_chat *c = NULL;
    if (talk_open(&r, NULL)) {
        PN_CHECK(pn_chat_add(r.c, "{\"content\":\"x\"}", 0, &err) == PN_E_INVALID && strstr(err.text, "role"), "%s", err.text);
        PN_CHECK(pn_chat_add(r.c, "{", 0, &err) == PN_E_FORMAT && strstr(err.text, "message 0"), "%s", err.text);
        PN_CHECK(pn_chat_new(r.s, &(pn_chat_params){.tools = "{}"}, &c, &err) == PN_E_INVALID && strstr(err.text, "tools"), "%s",
                 err.text);
        PN_CHECK(pn_chat_new(r.s, &(pn_chat_params){.template_text = "{% if %}", .template_len = 8}, &c, &err) == PN_E_FORMAT,
                 "%s", err.text);
        PN_CHECK(pn_chat_new(r.s, &(pn_chat_params){.format = "klingon"}, &c, &err) == PN_E_INVALID, "%s", err.text);
        PN_CHECK(pn_chat_length(r.c) == 0, "%zu messages", pn_chat_length(r.c));
    }
    talk_close(&r);
}

/* A conversation with tools and a grammar while every k-th allocation fails (every one at first, then
 * some): a status, no leak. */
static pn_status talk_whole_life(pn_engine *e)
{
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}";
    pn_model *m = NULL;
    pn_session *s = NULL;
    pn_chat *c = NULL;
    pn_grammar *g = NULL;
    talk_heard h = {0};
    pn_status st = pn_model_load(e, "models/demo.gguf", NULL, &m, NULL);
    if (!st)
        st = pn_session_new(m, &(pn_session_params){.n_ctx = 256, .n_batch = 16}, &s, NULL);
    if (!st)
        st = pn_chat_new(s, &(pn_chat_params){.tools = talk_tools}, &c, NULL);
    if (!st)
        st = pn_grammar_json_schema(e, schema, sizeof schema - 1, &g, NULL);
    if (!st)
        st = pn_chat_say(c, "user", "Hi", 0, NULL);
    if (!st)
        st = pn_chat_reply(c, &(pn_chat_reply_params){.generate = &(pn_generate_params){.max_tokens = 6, .grammar = g}, .on_event = talk_hear,
                                                      .user = &h}, NULL, NULL);
    pn_grammar_free(g);
    pn_chat_free(c);
    pn_session_free(s);
    pn_model_free(m);
    return st;
}

static void every_allocation_may_fail(void)
{
    long k = 1, tried = 0;
    for (;; k += k < 150 ? 1 : 1 + k / 60) {
        api_heap h = {.fail_at = k};
        pn_engine *e = NULL;
        pn_status st = pn_engine_open(&e, &(pn_engine_params){.n_threads = 1, .allocator = {api_heap_alloc, api_heap_free, &h}}, NULL);
        if (!st)
            st = talk_whole_life(e);
        pn_engine_close(e);
        tried++;
        PN_CHECK(h.out == 0, "failing allocation %ld leaks %ld blocks", k, h.out);
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM, "failing allocation %ld gives %s", k, pn_status_name(st));
        if (h.calls < k) {
            PN_CHECK(st == PN_OK, "%s", pn_status_name(st));
            break;
        }
    }
    PN_CHECK(tried > 200, "only %ld allocations were tried", tried);
}

int main(void)
{
    a_conversation_remembers();
    what_was_sampled_stays("{\"enable_thinking\": true}");
    what_was_sampled_stays("{\"enable_thinking\": false}");
    tools_are_called_and_answered();
    edited_history_is_computed_anew();
    messages_make_no_control_tokens();
    grammars_hold_whatever_the_model_wants();
    reasoning_ends_when_its_budget_is_spent();
    wrong_conversations_say_what_is_wrong();
    every_allocation_may_fail();
    return pn_test_end();
}
