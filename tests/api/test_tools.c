/*
 * test_tools.c - calls of tools on the demo model: whatever it is made to want, a call that begins names a
 * tool and has arguments that its schema allows; what the caller chooses (none, required, one function,
 * no parallel calls) holds.
 */
#include "pantheon.h"
#include "pn_api_test.h"

#define SCHEMA_A "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"maxLength\":12},\"days\":{\"type\":\"integer\"," \
                 "\"minimum\":1,\"maximum\":9}},\"required\":[\"city\",\"days\"]}"
#define SCHEMA_A_TURNED "{\"type\":\"object\",\"properties\":{\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9},\"city\":" \
                        "{\"type\":\"string\",\"maxLength\":12}},\"required\":[\"city\",\"days\"]}"
#define SCHEMA_B "{\"type\":\"object\",\"properties\":{\"zone\":{\"enum\":[\"CET\",\"UTC\"]}},\"required\":[\"zone\"]}"

static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":" SCHEMA_A "}},"
                            "{\"type\":\"function\",\"function\":{\"name\":\"clock\",\"parameters\":" SCHEMA_B "}}]";

typedef struct tools_rig {
    pn_engine *e;
    pn_model *m;
    pn_session *s;
    pn_grammar *of_a, *of_a_turned, *of_b;  /* what the arguments have to be; tags come in any order */
} tools_rig;

static int tools_open(tools_rig *r)
{
    pn_err err = {0};
    memset(r, 0, sizeof *r);
    return PN_CHECK(pn_engine_open(&r->e, &(pn_engine_params){.n_threads = 2}, &err) == PN_OK, "%s", err.text) &&
           PN_CHECK(pn_model_load(r->e, "models/demo.gguf", NULL, &r->m, &err) == PN_OK, "%s", err.text) &&
           PN_CHECK(pn_session_new(r->m, NULL, &r->s, &err) == PN_OK, "%s", err.text) &&
           PN_CHECK(pn_grammar_json_schema(r->e, SCHEMA_A, sizeof SCHEMA_A - 1, &r->of_a, &err) == PN_OK, "%s", err.text) &&
           PN_CHECK(pn_grammar_json_schema(r->e, SCHEMA_A_TURNED, sizeof SCHEMA_A_TURNED - 1, &r->of_a_turned, &err) == PN_OK, "%s", err.text) &&
           PN_CHECK(pn_grammar_json_schema(r->e, SCHEMA_B, sizeof SCHEMA_B - 1, &r->of_b, &err) == PN_OK, "%s", err.text);
}

static void tools_close(tools_rig *r)
{
    pn_grammar_free(r->of_a);
    pn_grammar_free(r->of_a_turned);
    pn_grammar_free(r->of_b);
    pn_session_free(r->s);
    pn_model_free(r->m);
    pn_engine_close(r->e);
}

typedef struct tools_heard {
    char name[64], args[1024], content[4096], reasoning[4096];
    size_t n_name, n_args, n_content, n_reasoning;
    int calls, good;
    tools_rig *r;
} tools_heard;

static void tools_add(char *buf, size_t *n, size_t cap, const pn_output_event *e)
{
    if (*n + e->len >= cap)
        return;
    memcpy(buf + *n, e->text, e->len);
    *n += e->len;
    buf[*n] = 0;
}

static int tools_hear(void *user, const pn_output_event *e)
{
    tools_heard *h = user;
    if (e->kind == PN_OUTPUT_CONTENT)
        tools_add(h->content, &h->n_content, sizeof h->content, e);
    if (e->kind == PN_OUTPUT_REASONING)
        tools_add(h->reasoning, &h->n_reasoning, sizeof h->reasoning, e);
    if (e->kind == PN_OUTPUT_CALL_BEGIN) {
        h->n_name = h->n_args = 0;
        h->args[0] = 0;
        h->calls++;
        tools_add(h->name, &h->n_name, sizeof h->name, e);
    }
    if (e->kind == PN_OUTPUT_ARGUMENTS)
        tools_add(h->args, &h->n_args, sizeof h->args, e);
    if (e->kind == PN_OUTPUT_CALL_END && e->complete) {
        int a = strcmp(h->name, "get_weather") == 0 && (pn_grammar_matches(h->r->of_a, h->args, h->n_args) == 1 ||
                                                         pn_grammar_matches(h->r->of_a_turned, h->args, h->n_args) == 1);
        int b = strcmp(h->name, "clock") == 0 && pn_grammar_matches(h->r->of_b, h->args, h->n_args) == 1;
        h->good += a || b;
    }
    return 0;
}

/* One answer of a new conversation. */
static pn_status tools_ask(tools_rig *r, const char *text, const pn_chat_params *params, pn_chat_reply_params *p, tools_heard *h,
                           pn_generate_result *g, pn_err *err)
{
    pn_chat *c = NULL;
    memset(h, 0, sizeof *h);
    h->r = r;
    p->on_event = tools_hear;
    p->user = h;
    pn_status st = pn_chat_new(r->s, params, &c, err);
    if (!st)
        st = pn_chat_say(c, "user", text, 0, err);
    if (!st)
        st = pn_chat_reply(c, p, g, err);
    pn_chat_free(c);
    return st;
}

static void a_required_call_is_made_however_wild_the_model(tools_rig *r)
{
    static const char *const syntaxes[] = {NULL, "qwen-coder", "llama3", "glm", "lfm2", "gemma4", "mistral", "kimi-k2"};
    int parallel = 0;
    for (size_t i = 0; i < sizeof syntaxes / sizeof *syntaxes; i++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            tools_heard h;
            pn_generate_result g = {0};
            pn_err err = {0};
            const pn_sampling wild = {.temperature = 2.5f, .has_seed = 1, .seed = seed};
            pn_chat_reply_params p = {.generate = &(pn_generate_params){.max_tokens = 120, .sampling = &wild, .grammar_after = ""}, .tool_choice = PN_TOOLS_REQUIRED,
                                      .single_call = seed % 2 == 0, .tool_name = seed % 3 == 0 ? "clock" : NULL};
            PN_CHECK(tools_ask(r, "Hello.", &(pn_chat_params){.tools = tools, .syntax = syntaxes[i]}, &p, &h, &g, &err) == PN_OK, "%s", err.text);
            const char *name = syntaxes[i] ? syntaxes[i] : "the model's";
            if (g.finish == PN_FINISH_LENGTH)       /* cut; the calls before it are whole */
                PN_CHECK(h.calls <= h.good + 1, "%s: %d calls, %d good, '%s'", name, h.calls, h.good, h.content);
            else
                PN_CHECK(h.calls > 0 && h.calls == h.good && h.n_content == 0, "%s, seed %d: %d calls, %d good, the last %s(%s), '%s'", name,
                         (int)seed, h.calls, h.good, h.name, h.args, h.content);
            PN_CHECK(!p.single_call || h.calls == 1, "%s: %d calls", name, h.calls);
            PN_CHECK(!p.tool_name || strcmp(h.name, "clock") == 0, "%s: %s was called", name, h.name);
            parallel += h.calls > 1;
        }
    PN_CHECK(parallel > 0, "never two calls");
}

/* The model likes to call get_weather here. */
static void a_call_of_the_models_choice_is_held_too(tools_rig *r)
{
    int calls = 0, texts = 0;
    for (uint64_t seed = 1; seed <= 16; seed++) {
        tools_heard h;
        pn_generate_result g = {0};
        pn_err err = {0};
        const pn_sampling wild = {.temperature = seed % 2 ? 1.0f : 2.0f, .has_seed = 1, .seed = seed};
        pn_chat_reply_params p = {.generate = &(pn_generate_params){.max_tokens = 48, .sampling = &wild}, .single_call = seed % 5 == 0};
        PN_CHECK(tools_ask(r, seed % 3 ? "What is the weather in Paris?" : "Hello.", &(pn_chat_params){.tools = tools}, &p, &h, &g, &err) == PN_OK,
                 "%s", err.text);
        PN_CHECK(h.calls == h.good || (g.finish == PN_FINISH_LENGTH && h.calls == h.good + 1), "seed %d: %d calls, %d good, the last %s(%s)",
                 (int)seed, h.calls, h.good, h.name, h.args);
        PN_CHECK(!strstr(h.content, "<tool_call>"), "seed %d: '%s'", (int)seed, h.content);
        calls += h.calls > 0;
        texts += h.calls == 0 && h.n_content > 0;
    }
    PN_CHECK(calls > 2 && texts > 2, "%d answers with calls, %d without", calls, texts);
}

static void none_means_none(tools_rig *r)
{
    for (uint64_t seed = 0; seed <= 4; seed++) {
        tools_heard h;
        pn_generate_result g = {0};
        pn_err err = {0};
        const pn_sampling some = {.temperature = seed ? 1.0f : 0.0f, .has_seed = 1, .seed = seed};
        pn_chat_reply_params p = {.generate = &(pn_generate_params){.max_tokens = 32, .sampling = &some}, .tool_choice = PN_TOOLS_NONE};
        PN_CHECK(tools_ask(r, "What is the weather in Paris?", &(pn_chat_params){.tools = tools}, &p, &h, &g, &err) == PN_OK, "%s", err.text);
        PN_CHECK(h.calls == 0 && !strstr(h.content, "<tool_call>") && g.n_generated > 0, "%d calls, '%s'", h.calls, h.content);
    }
}

/* With thinking the model opens a block of its own; the call or the grammar comes behind it. */
static void reasoning_comes_before_what_is_held(tools_rig *r)
{
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"]}";
    pn_grammar *json = NULL;
    pn_err err = {0};
    int thought = 0;
    PN_CHECK(pn_grammar_json_schema(r->e, schema, sizeof schema - 1, &json, &err) == PN_OK, "%s", err.text);
    for (uint64_t seed = 1; seed <= 6; seed++) {
        tools_heard h;
        pn_generate_result g = {0};
        const pn_sampling s = {.temperature = 0.7f, .has_seed = 1, .seed = seed};
        const pn_chat_params c = {.variables = "{\"enable_thinking\": true}", .tools = tools};
        pn_chat_reply_params p = {.generate = &(pn_generate_params){.max_tokens = 120, .sampling = &s, .grammar = seed % 2 ? json : NULL},
                                  .tool_choice = seed % 2 ? PN_TOOLS_AUTO : PN_TOOLS_REQUIRED, .has_reasoning_budget = 1, .reasoning_budget = 40};
        PN_CHECK(tools_ask(r, "What is 12 + 30?", &c, &p, &h, &g, &err) == PN_OK, "%s", err.text);
        thought += h.n_reasoning > 0;
        if (g.finish != PN_FINISH_STOP)
            continue;
        if (seed % 2)
            PN_CHECK(h.calls == 0 && pn_grammar_matches(json, h.content, h.n_content) == 1, "'%s'", h.content);
        else
            PN_CHECK(h.calls > 0 && h.calls == h.good && h.n_content == 0, "%d calls, %d good, '%s'", h.calls, h.good, h.content);
    }
    PN_CHECK(thought > 2, "%d of 6 answers with reasoning", thought);
    pn_grammar_free(json);
}

/* A document is content, also when it looks like a call. */
static void with_a_schema_no_tool_is_called(tools_rig *r)
{
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"const\":\"clock\"},\"parameters\":{\"const\":{}}},"
                                 "\"required\":[\"name\",\"parameters\"]}";
    tools_heard h;
    pn_generate_result g;
    pn_err err = {0};
    pn_grammar *json = NULL;
    PN_CHECK(pn_grammar_json_schema(r->e, schema, sizeof schema - 1, &json, &err) == PN_OK, "%s", err.text);
    pn_chat_reply_params p = {.generate = &(pn_generate_params){.grammar = json, .grammar_after = "", .max_tokens = 200}};
    PN_CHECK(tools_ask(r, "Hi", &(pn_chat_params){.tools = tools, .syntax = "llama3"}, &p, &h, &g, &err) == PN_OK, "%s", err.text);
    PN_CHECK(h.calls == 0 && pn_grammar_matches(json, h.content, h.n_content) == 1, "%d calls, '%s'", h.calls, h.content);
    pn_grammar_free(json);
}

/* A grammar may say the marker of reasoning itself: then the budget has nothing to close. */
static void a_budget_forces_nothing_on_a_grammar(tools_rig *r)
{
    tools_heard h;
    pn_generate_result g;
    pn_err err = {0};
    pn_token think[8];
    size_t n = 0;
    char gbnf[64];
    pn_grammar *grammar = NULL;
    PN_CHECK(pn_tokenize(r->m, "<think>", 7, PN_TOKENIZE_SPECIAL, think, 8, &n, &err) == PN_OK && n == 1, "%zu tokens %s", n, err.text);
    snprintf(gbnf, sizeof gbnf, "root ::= <[%d]> \"well\"", (int)think[0]);
    PN_CHECK(pn_grammar_gbnf(r->e, gbnf, strlen(gbnf), &grammar, &err) == PN_OK, "%s", err.text);
    pn_chat_reply_params p = {.generate = &(pn_generate_params){.grammar = grammar, .grammar_after = ""}, .has_reasoning_budget = 1};
    PN_CHECK(tools_ask(r, "Hi", &(pn_chat_params){.variables = "{\"enable_thinking\": true}"}, &p, &h, &g, &err) == PN_OK, "%s", err.text);
    PN_CHECK(g.finish == PN_FINISH_STOP && strcmp(h.reasoning, "well") == 0, "'%s', '%s'", h.reasoning, h.content);
    pn_grammar_free(grammar);
}

static void what_cannot_be_held_is_told(tools_rig *r)
{
#define CONTAINS "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"array\",\"contains\":{\"const\":1}}}}"
    static const char strict[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":" CONTAINS "}}]";
    static const char loose[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":" CONTAINS "}}]";
    tools_heard h;
    pn_generate_result g;
    pn_err err = {0};
    pn_chat *c = NULL;
    pn_generate_params how = {.max_tokens = 4};
    pn_chat_reply_params p = {.generate = &how};
    PN_CHECK(pn_chat_new(r->s, &(pn_chat_params){.tools = strict}, &c, &err) == PN_E_UNSUPPORTED &&
             strstr(err.text, "/0/function/parameters/properties/x/contains"), "%s", err.text);
    PN_CHECK(pn_chat_new(r->s, &(pn_chat_params){.tools = loose}, &c, &err) == PN_OK, "%s", err.text);
    PN_CHECK(strcmp(pn_chat_widened(c), "/0/function/parameters/properties/x/contains") == 0, "'%s'", pn_chat_widened(c));
    pn_chat_free(c);
    p.tool_choice = PN_TOOLS_REQUIRED;
    PN_CHECK(tools_ask(r, "Hi", &(pn_chat_params){.tools = loose}, &p, &h, &g, &err) == PN_E_UNSUPPORTED && strstr(err.text, "/x/contains"), "%s", err.text);
    PN_CHECK(tools_ask(r, "Hi", &(pn_chat_params){0}, &p, &h, &g, &err) == PN_E_INVALID && strstr(err.text, "no tools"), "%s", err.text);
    p.tool_name = "g";
    PN_CHECK(tools_ask(r, "Hi", &(pn_chat_params){.tools = tools}, &p, &h, &g, &err) == PN_E_INVALID && strstr(err.text, "no tool is called 'g'"), "%s", err.text);
    p.tool_name = NULL;
    how.grammar = r->of_a;
    PN_CHECK(tools_ask(r, "Hi", &(pn_chat_params){.tools = tools}, &p, &h, &g, &err) == PN_E_INVALID && strstr(err.text, "only one"), "%s", err.text);
    PN_CHECK(tools_ask(r, "Hi", &(pn_chat_params){.syntax = "latin"}, &p, &h, &g, &err) == PN_E_INVALID && strstr(err.text, "'latin'"), "%s", err.text);
    PN_CHECK(tools_ask(r, "Hi", &(pn_chat_params){.tools = "[{\"type\":\"function\"}]"}, &p, &h, &g, &err) == PN_E_INVALID &&
             strstr(err.text, "/0/name"), "%s", err.text);
}

static void grammars_of_calls_match_texts(tools_rig *r)
{
    static const struct { pn_tool_choice choice; int single; const char *text; int want; } cases[] = {
        {PN_TOOLS_AUTO, 0, "Just text.", 1},
        {PN_TOOLS_AUTO, 0, "I look. <tool_call>\n{\"name\": \"clock\", \"arguments\": {\"zone\": \"UTC\"}}\n</tool_call> Done.", 1},
        {PN_TOOLS_AUTO, 0, "<tool_call>{\"name\": \"clock\", \"arguments\": {\"zone\": \"PST\"}}</tool_call>", 0},
        {PN_TOOLS_AUTO, 0, "<tool_call>{\"name\": \"cook\"", 0},
        {PN_TOOLS_AUTO, 0, "<tool_call>{\"name\": \"clock\", \"arguments\": {", 0},
        {PN_TOOLS_AUTO, 1, "<tool_call>{\"name\": \"clock\", \"arguments\": {\"zone\": \"UTC\"}}</tool_call>", 1},
        {PN_TOOLS_AUTO, 1, "<tool_call>{\"name\": \"clock\", \"arguments\": {\"zone\": \"UTC\"}}</tool_call> and", 0},
        {PN_TOOLS_NONE, 0, "Just text, <tool or not.", 1},
        {PN_TOOLS_NONE, 0, "I look. <tool_call>", 0},
        {PN_TOOLS_REQUIRED, 0, "Just text.", 0},
        {PN_TOOLS_REQUIRED, 0, "<tool_call>{\"name\": \"clock\", \"arguments\": {\"zone\": \"UTC\"}}</tool_call>\n"
                               "<tool_call>{\"name\": \"clock\", \"arguments\": {\"zone\": \"CET\"}}</tool_call>", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pn_grammar *g = NULL;
        pn_err err = {0};
        const pn_tools_params p = {.tools = tools, .syntax = "hermes", .choice = cases[i].choice, .single = cases[i].single};
        if (PN_CHECK(pn_grammar_tools(r->e, NULL, &p, &g, &err) == PN_OK, "%s", err.text))
            PN_CHECK(pn_grammar_matches(g, cases[i].text, strlen(cases[i].text)) == cases[i].want, "choice %d: '%s'", (int)cases[i].choice, cases[i].text);
        pn_grammar_free(g);
    }
}

int main(void)
{
    tools_rig r;
    if (tools_open(&r)) {
        grammars_of_calls_match_texts(&r);
        a_required_call_is_made_however_wild_the_model(&r);
        a_call_of_the_models_choice_is_held_too(&r);
        none_means_none(&r);
        reasoning_comes_before_what_is_held(&r);
        with_a_schema_no_tool_is_called(&r);
        a_budget_forces_nothing_on_a_grammar(&r);
        what_cannot_be_held_is_told(&r);
    }
    tools_close(&r);
    return pn_test_end();
}
