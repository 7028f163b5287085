/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_held.c - what the parser of a family reads as a call, the grammar of the calls has let through.
 *
 * Parsers are lenient: they read misspelled openers, neighbours' syntaxes, members in any order.  So each
 * text here is a call to some parser, and none that the tools allow: an answer that is held to the tools
 * must not come to it.  The others show what has to stay possible.
 */
#include "pn_test.h"

#include "sample/pn_guide.h"

static pn_mem libc_mem;

static const char held_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\",\"maximum\":9},\"l\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"
    "\"e\":{\"enum\":[\"red\",\"blue\"]}},\"required\":[\"n\"],\"additionalProperties\":false}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"none\"}}]";

static pn_json_doc tools;

enum { HELD_AUTO, HELD_REQUIRED };

static const char *held_prompt(const char *family)
{
    return strcmp(family, "harmony") == 0 || strcmp(family, "muse") == 0 ? "<|start|>assistant"
         : strcmp(family, "functionary-3.2") == 0 ? ">>>" : "";
}

/* Does an answer that is held to the tools come to this text? */
static bool held_lets(const char *family, int how, const char *after, const char *text)
{
    pn_out_format f;
    pn_calls c;
    pn_guide *g = NULL;
    pn_err err = {0};
    PN_CHECK(pn_out_find(&f, family), "%s", family);
    const pn_calls_params p = {.format = &f, .tools = &tools, .required = how == HELD_REQUIRED};
    if (!PN_CHECK(pn_calls_new(&c, &libc_mem, &p, &err) == PN_OK, "%s: %s", family, err.text))
        return false;
    const pn_guide_params q = {.gram = c.gram, .triggers = c.triggers, .n_triggers = c.n_triggers, .watch = c.watch, .lanes = true, .owed = p.required,
                               .after = after, .think_open = f.think_open, .think_close = f.think_close};
    PN_CHECK(pn_guide_new(&g, &libc_mem, &q, &err) == PN_OK, "%s", err.text);
    bool ok = pn_guide_accept_bytes(g, text, strlen(text), NULL) == PN_OK && pn_guide_may_end(g);
    pn_guide_free(g);
    pn_calls_fini(&c);
    return ok;
}

static bool held_fits(const pn_out_call *c)
{
    pn_json_doc d;
    pn_bytes s;
    int64_t n;
    bool ok = pn_json_parse(&d, &libc_mem, PN_ACCT_MISC, pn_str_cstr(&c->arguments), c->arguments.len, NULL, NULL) == PN_OK && c->complete;
    uint32_t e = pn_json_get(&d, PN_JSON_ROOT, "e"), l = pn_json_get(&d, PN_JSON_ROOT, "l");
    if (strcmp(pn_str_cstr(&c->name), "f") == 0)
        ok = ok && pn_json_i64(&d, pn_json_get(&d, PN_JSON_ROOT, "n"), &n) && n <= 9 &&
             (e == PN_JSON_NONE || (pn_json_str(&d, e, &s) && (strcmp(s.data, "red") == 0 || strcmp(s.data, "blue") == 0))) &&
             (l == PN_JSON_NONE || pn_json_type_of(&d, l) == PN_JSON_ARRAY);
    else
        ok = ok && strcmp(pn_str_cstr(&c->name), "none") == 0 && pn_json_count(&d, PN_JSON_ROOT) == 0;
    pn_json_fini(&d);
    return ok;
}

/* Calls that the parser reads; *bad: some of them are none that the tools allow. */
static size_t held_calls(const char *family, const char *prompt, const char *text, size_t len, bool *bad)
{
    pn_out_format f;
    pn_out_result r;
    pn_out *p = NULL;
    pn_out_find(&f, family);
    pn_out_result_init(&r, &libc_mem);
    PN_CHECK(pn_out_new(&p, &libc_mem, &f, &tools, prompt, strlen(prompt), NULL, pn_out_collect, &r, NULL) == PN_OK);
    PN_CHECK(pn_out_push(p, text, len, NULL) == PN_OK && pn_out_end(p, NULL) == PN_OK);
    *bad = false;
    for (size_t i = 0; i < r.n_calls; i++)
        *bad = *bad || !held_fits(&r.calls[i]);
    size_t n = r.n_calls;
    pn_out_free(p);
    pn_out_result_fini(&r);
    return n;
}

/* A text that is no answer: the guide stops it, or the parser makes nothing bad of it. */
static void never(const char *family, int how, const char *text)
{
    bool bad;
    size_t n = held_calls(family, held_prompt(family), text, strlen(text), &bad);
    PN_CHECK(!(bad || (how == HELD_REQUIRED && !n)) || !held_lets(family, how, NULL, text), "%s: '%s' is let through", family, text);
}

static void possible(const char *family, int how, const char *text, size_t n_calls)
{
    bool bad;
    size_t n = held_calls(family, held_prompt(family), text, strlen(text), &bad);
    PN_CHECK(n == n_calls && !bad, "%s: '%s' gives %zu calls", family, text, n);
    PN_CHECK(held_lets(family, how, NULL, text), "%s: '%s' is not let through", family, text);
}

/* ------------------------------------------------------------------------------------------ */

static void a_bare_object_is_a_call_in_any_spelling(void)
{
    static const char *const texts[] = {
        "{\"name\" : \"f\", \"parameters\": {\"n\": 77}}",
        "{   \"name\":\"f\" ,\"parameters\":{\"n\":77}}",
        "{\t\"name\":\"f\",\"parameters\":{\"n\":77}}",
        "{\"parameters\": {\"n\": 77}, \"name\": \"f\"}",
        "{\"arguments\": {\"n\": 77}, \"name\": \"f\"}",
        "{\"name\": \"zzz\", \"parameters\": {}}",
        "{\"n\\u0061me\": \"f\", \"parameters\": {}}",
        "{\"name\": \"\\u0066\", \"parameters\": {}}",
        "{\"name\": \"f\"}",
        "{\"id\": \"1\", \"name\": \"f\", \"parameters\": {}}",
        "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}",
        "{\"function\": \"f\", \"parameters\": {}}",
        "{\"tool_call\": {\"name\": \"f\", \"parameters\": {}}}",
        "{\"tool_calls\": [{\"name\": \"f\", \"parameters\": {}}]}",
        "{\"name\": \"none\", \"parameters\": {}}{\"name\": \"f\", \"parameters\": {}}",
        "{\"name\": \"none\", \"parameters\": {}};{\"name\": \"zzz\", \"parameters\": {}}",
        " \r\n{\"name\": \"f\", \"parameters\": {}}",
        "\t{\"name\": \"f\", \"parameters\": {}}",
        "{\"type\": 1, \"type\": 2, \"type\": \"0123456789012345678901234567890123456789012345678901234567890123456789\", \"name\": \"f\", \"parameters\": {}}",
    };
    static const char *const families[] = {"llama3", "generic"};
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < PN_COUNT_OF(texts); i++)
            never(families[k], HELD_AUTO, texts[i]);
        possible(families[k], HELD_AUTO, "{\"name\": \"Ada\", \"age\": 3}", 0);
        possible(families[k], HELD_AUTO, "{\"id\": 4, \"title\": \"x\"}", 0);
        possible(families[k], HELD_AUTO, "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}}}", 0);
        possible(families[k], HELD_AUTO, "{\"title\": \"x\", \"parameters\": {}}", 0);
        possible(families[k], HELD_AUTO, "{}", 0);
        possible(families[k], HELD_AUTO, "{x} and more", 0);
        possible(families[k], HELD_AUTO, "See {\"name\": \"f\", \"parameters\": {}}", 0);
        possible(families[k], HELD_AUTO, "{\"name\": \"f\", \"parameters\": {\"n\": 7}}", 1);
        possible(families[k], HELD_AUTO, "{\n\t\"name\" : \"f\", \"parameters\": {\"n\": 7}}", 1);
        possible(families[k], HELD_AUTO, "{ \"type\" : \"function\",\n \"name\": \"f\", \"parameters\": {\"n\": 7}}", 1);
    }
}

static void what_follows_a_call_is_no_other(void)
{
    never("llama3", HELD_AUTO, "<|python_tag|>{\"name\": \"none\", \"parameters\": {}} {\"name\": \"zzz\", \"parameters\": {}}");
    never("gigachat", HELD_AUTO, "<|function_call|>{\"name\": \"none\", \"arguments\": {}}\n{\"name\": \"f\", \"arguments\": {}}");
    never("granite-3", HELD_AUTO, "<|tool_call|>[{\"name\": \"none\", \"arguments\": {}}]{\"name\": \"f\", \"arguments\": {}}");
    never("phi4-mini", HELD_AUTO, "functools[{\"name\": \"none\", \"arguments\": {}}]\n{\"name\": \"f\", \"arguments\": {}}");
    never("mistral", HELD_AUTO, "[TOOL_CALLS][{\"name\": \"none\", \"arguments\": {}}]{\"name\": \"f\", \"arguments\": {}}");
    never("command-r-plus", HELD_AUTO, "Action:```json\n[{\"tool_name\": \"none\", \"parameters\": {}}]\n```{\"tool_name\": \"f\", \"parameters\": {}}");
    never("harmony", HELD_AUTO, "<|channel|>commentary to=functions.f<|message|>{\"n\": 1} and more");
    never("hermes", HELD_AUTO, "<tool_call>{\"name\": \"none\", \"arguments\": {}}</tool_call>{\"name\": \"zzz\", \"arguments\": {}}");
    possible("mistral", HELD_AUTO, "[TOOL_CALLS]none[ARGS]{}[TOOL_CALLS]f[ARGS]{\"n\": 1}", 2);
}

static void reasoning_holds_no_calls(void)
{
    static const struct { const char *family, *text; } rows[] = {
        {"hermes", "hm <tool_call>{\"name\": \"zzz\", \"arguments\": {}}</tool_call> so</think>"},
        {"qwen-coder", "hm <function=f></function> so</think>"},
        {"glm", "hm <tool_call>zzz</tool_call></think>"},
        {"mistral", "hm [TOOL_CALLS]zzz[ARGS]{}[/THINK]"},
        {"gemma4", "hm <|tool_call>call:zzz{}<tool_call|><channel|>"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(rows); i++) {
        pn_out_format f;
        bool bad;
        pn_str all;
        pn_out_find(&f, rows[i].family);
        PN_CHECK(held_calls(rows[i].family, f.think_open, rows[i].text, strlen(rows[i].text), &bad) > 0 && bad);
        PN_CHECK(!held_lets(rows[i].family, HELD_AUTO, f.think_close, rows[i].text), "%s: '%s'", rows[i].family, rows[i].text);
        pn_str_init(&all, &libc_mem, PN_ACCT_MISC);
        pn_str_addz(&all, f.think_open);
        pn_str_addz(&all, rows[i].text);
        never(rows[i].family, HELD_AUTO, pn_str_cstr(&all));
        pn_str_addz(&all, rows[i].family[0] == 'h' ? "<tool_call>{\"name\": \"none\", \"arguments\": {}}</tool_call>" : "");
        if (rows[i].family[0] == 'h')
            never(rows[i].family, HELD_REQUIRED, pn_str_cstr(&all));
        pn_str_fini(&all);
    }

}

static void openers_of_other_kinds(void)
{
    never("functionary-3.1", HELD_AUTO, "<|python_tag|>import os");
    never("functionary-3.1", HELD_AUTO, "<|python_tag|>f.call(n=77)");
    never("functionary-3.1", HELD_AUTO, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}");
    never("functionary-3.2", HELD_AUTO, "zzz\n{}");
    never("functionary-3.2", HELD_AUTO, " f\n{}");
    never("functionary-3.2", HELD_AUTO, "f \n{}");
    never("functionary-3.2", HELD_AUTO, "all\nHello>>>zzz\n{}");
    never("functionary-3.2", HELD_AUTO, "all\nHello>>> f\n{}");
    possible("functionary-3.2", HELD_AUTO, "all\nHello>>>f\n{\"n\": 1}", 1);
    possible("functionary-3.2", HELD_AUTO, "all\nHello >> {x}", 0);
    possible("functionary-3.2", HELD_AUTO, "none\n{}>>>all\nHello", 1);
    never("deepseek", HELD_AUTO, "<｜tool_calls_begin｜>zzz<｜tool▁sep｜>{}");
    never("lfm2", HELD_AUTO, "<|tool_call_start|>{\"name\": \"f\", \"arguments\": {}}<|tool_call_end|>");
    never("hermes", HELD_AUTO, "<tool_call><function=f></function></tool_call>");
    never("qwen-coder", HELD_AUTO, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>");
}

static void headers_say_who_is_called(void)
{
    static const char *const texts[] = {
        "<|channel|>commentary to=f<|message|>{}",
        "<|channel|>commentary  to=functions.f<|message|>{}",
        "<|channel|>commentary json to=functions.f<|message|>{}",
        "<|channel|>final to=functions.zzz<|message|>{}",
        "<|channel|>analysis to=functions.f code<|message|>{}",
        " to=f<|channel|>commentary<|message|>{}",
        " <|channel|>commentary to=functions.f<|message|>{}",
        "assistant to=functions.f<|message|>{}",
        "commentary to=functions.f<|message|>{}",
        "<|message|>hi<|end|><|start|>tool to=functions.f<|message|>{}",
        "<|message|>hi<|end|><|start|> to=functions.f<|message|>{}",
        "<|constrain|>to=functions.f<|message|>{}",
        "<|channel|>commentary to=functions.f\n<|message|>{}",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=f<|message|>{}",
    };
    for (size_t i = 0; i < PN_COUNT_OF(texts); i++)
        never("harmony", HELD_AUTO, texts[i]);
    never("harmony", HELD_REQUIRED, "<|channel|>analysis<|message|><|start|>assistant to=functions.zzz<|message|>{}<|call|><|end|><|start|>assistant to=functions.none<|message|>{}");
    never("harmony", HELD_REQUIRED, "<|channel|>commentary to=functions.f<|message|>{\"n\": 1, \"s\": \"<|start|>assistant to=functions.zzz<|message|>{}\"}");
    possible("harmony", HELD_AUTO, "<|channel|>commentary to=functions.f<|message|>{\"s\": \"a<|end|>b\", \"n\": 1}", 1);
    possible("harmony", HELD_AUTO, "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hello to=you", 0);
    possible("harmony", HELD_AUTO, "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\": 1}", 1);
    possible("harmony", HELD_AUTO, "Hello", 0);
    possible("harmony", HELD_AUTO, "<|message|>Hello", 0);
}

static void values_hold_no_closers(void)
{
    never("qwen-coder", HELD_REQUIRED, "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=l>\n[\"</parameter></function></tool_call>\"]\n</parameter>\n</function>\n</tool_call>");
    never("minimax-m3", HELD_REQUIRED, "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<n>1]<]minimax[>[</n>]<]minimax[>[<l>[\"]<]minimax[>[</l>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>\"]]<]minimax[>[</l>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>");
    possible("qwen-coder", HELD_REQUIRED, "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=l>\n[\"<b> </i> </p\"]\n</parameter>\n</function>\n</tool_call>", 1);
    never("minicpm5", HELD_REQUIRED, "<function name=\"f\"><param name=\"s\"><![CDATA[x</param><param name=\"n\">1</param></function>");
    possible("minicpm5", HELD_REQUIRED, "<function name=\"f\"><param name=\"s\"><![CDATA[x</param>]]></param><param name=\"n\">1</param></function>", 1);
}

/* The reader takes the value of a string parameter for text: JSON in its place would be another string. */
static void a_string_that_cannot_be_written_is_refused(void)
{
    static const char json[] = "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"s\":{\"enum\":[\"a</parameter>\"]}}}}]";
    static const struct { const char *family; pn_status st; } rows[] = {
        {"qwen-coder", PN_E_UNSUPPORTED}, {"seed-oss", PN_E_UNSUPPORTED}, {"glm", PN_OK}, {"hermes", PN_OK}};
    for (size_t i = 0; i < PN_COUNT_OF(rows); i++) {
        pn_json_doc d;
        pn_out_format f;
        pn_calls c;
        pn_err err = {0};
        PN_CHECK(pn_out_find(&f, rows[i].family) && pn_json_parse(&d, &libc_mem, PN_ACCT_MISC, json, sizeof json - 1, NULL, NULL) == PN_OK);
        pn_status st = pn_calls_new(&c, &libc_mem, &(pn_calls_params){.format = &f, .tools = &d}, &err);
        PN_CHECK(st == rows[i].st, "%s: %d %s", rows[i].family, (int)st, err.text);
        pn_calls_fini(&c);
        pn_json_fini(&d);
    }
}

/* A grammar infers from a pattern that a value is a string, so its reader has to. */
static void a_pattern_makes_a_string(void)
{
    static const char json[] = "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"zip\":{\"pattern\":\"^[0-9]{5}$\"}}}}]";
    static const char text[] = "<tool_call>f\n<arg_key>zip</arg_key>\n<arg_value>12345</arg_value>\n</tool_call>";
    pn_json_doc d;
    pn_out_format f;
    pn_out_result r;
    pn_out *p = NULL;
    PN_CHECK(pn_json_parse(&d, &libc_mem, PN_ACCT_MISC, json, sizeof json - 1, NULL, NULL) == PN_OK && pn_out_find(&f, "glm"));
    pn_out_result_init(&r, &libc_mem);
    PN_CHECK(pn_out_new(&p, &libc_mem, &f, &d, "", 0, NULL, pn_out_collect, &r, NULL) == PN_OK);
    PN_CHECK(pn_out_push(p, text, sizeof text - 1, NULL) == PN_OK && pn_out_end(p, NULL) == PN_OK);
    PN_CHECK(r.n_calls == 1 && strcmp(pn_str_cstr(&r.calls[0].arguments), "{\"zip\": \"12345\"}") == 0, "%s",
             r.n_calls ? pn_str_cstr(&r.calls[0].arguments) : "no call");
    pn_out_free(p);
    pn_out_result_fini(&r);
    pn_json_fini(&d);
}

/* Keys of the model's own: no longer than readers take, and only where a tag need not close under them. */
static void undeclared_members_can_be_read(void)
{
    static const char json[] = "[{\"name\":\"none\",\"parameters\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"boolean\"}}}]";
    static const struct { const char *family, *before, *after; int n; bool ok; } rows[] = {
        {"gemma4", "<|tool_call>call:none{", ":true}<tool_call|>", 256, true},
        {"gemma4", "<|tool_call>call:none{", ":true}<tool_call|>", 257, false},
        {"minimax-m3", "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"none\">]<]minimax[>[<a>true]<]minimax[>[</",
         ">]<]minimax[>[</invoke>]<]minimax[>[</tool_call>", 2, false}};
    pn_json_doc d;
    PN_CHECK(pn_json_parse(&d, &libc_mem, PN_ACCT_MISC, json, sizeof json - 1, NULL, NULL) == PN_OK);
    for (size_t i = 0; i < PN_COUNT_OF(rows); i++) {
        char text[600] = {0, 0}, key[300];
        pn_out_format f;
        pn_calls c;
        memset(key, 'k', sizeof key);
        int n = 2 + snprintf(text + 2, sizeof text - 2, "%s%.*s%s", rows[i].before, rows[i].n, key, rows[i].after);
        PN_CHECK(pn_out_find(&f, rows[i].family));
        if (PN_CHECK(pn_calls_new(&c, &libc_mem, &(pn_calls_params){.format = &f, .tools = &d, .required = true}, NULL) == PN_OK))
            PN_CHECK((pn_gram_matches(c.gram, text, (size_t)n, NULL) == 1) == rows[i].ok, "%s: '%s'", rows[i].family, text + 2);
        pn_calls_fini(&c);
    }
    pn_json_fini(&d);
}

/* ------------------------------------------------------------------------------------------
 * Walks
 * ------------------------------------------------------------------------------------------ */

enum { WALK_END = 256, WALK_FRAGMENTS = 128 };

static uint64_t walk_state = 7;
static uint32_t walk_random(uint32_t n) { return (uint32_t)(pn_test_rand(&walk_state) >> 33) % n; }

static pn_gtrie *walk_trie(void)
{
    static char bytes[256];
    static pn_bytes pieces[257];
    static const pn_token ends[] = {WALK_END};
    pn_gtrie *t = NULL;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        pieces[i] = (pn_bytes){bytes + i, 1};
    }
    PN_CHECK(pn_gtrie_new(&t, &libc_mem, &(pn_gtrie_source){pieces, 257, 257, NULL, ends, 1}, NULL) == PN_OK);
    return t;
}

/* What answers of the family, and of its neighbours, are made of. */
static size_t walk_fragments(const char *family, const char **out)
{
    static const char *const common[] = {
        "{", "}", "[", "]", "{\"name\": \"f\"", "{\"name\":\"none\"", ", \"arguments\": {\"n\": 77}}", ", \"parameters\": {}}", "\"name\"", "\"id\": 1, ",
        "\"type\": \"function\", ", "\"function\": ", "{\"zzz\": 1}", "\"", "\\", ": ", ", ", "; ", " ", "\n", "\t", "\r\n", "f", "zzz", "none", "all\n",
        "f\n", "zzz\n{}", "to=functions.zzz", " to=f", "<|message|>", "<|start|>assistant", "<|channel|>commentary", "<|channel|>final", "<|end|>",
        "<|call|>", "<|constrain|>json", "<think>", "</think>", "```", "```json\n", "<function=zzz>", "</function>", "<parameter=n>", "</parameter>", "<tool_call>",
        "</tool_call>", "(n=77)", "n=77", "call:zzz{}", "77", "<|python_tag|>", "f.call(n=77)", "<![CDATA[", "]]>", "functions.zzz:0"};
    pn_out_format format;
    size_t n = 0;
    pn_out_find(&format, family);
    const out_family *f = pn_out_family(format.family);
    for (size_t i = 0; i < PN_COUNT_OF(common); i++)
        out[n++] = common[i];
    const char *const *lists[] = {f->open, f->close, f->skip};
    const size_t lens[] = {PN_COUNT_OF(f->open), PN_COUNT_OF(f->close), PN_COUNT_OF(f->skip)};
    for (size_t k = 0; k < PN_COUNT_OF(lists); k++)
        for (size_t i = 0; i < lens[k] && lists[k][i]; i++)
            for (int twice = 0; twice < 3; twice++)
                out[n++] = lists[k][i];
    const char *const own[] = {f->named ? f->named->call : NULL, f->named ? f->named->args : NULL, f->named ? f->named->before_id : NULL,
                               f->xml ? f->xml->call : NULL, f->xml ? f->xml->param : NULL, f->xml ? f->xml->param_end : NULL,
                               f->xml ? f->xml->call_end : NULL, format.think_open, format.think_close};
    for (size_t i = 0; i < PN_COUNT_OF(own) && n < WALK_FRAGMENTS; i++)
        if (own[i])
            out[n++] = own[i];
    return n;
}

/* One byte that the mask allows, rather one of structure; -1: the answer ends here. */
static int walk_pick(const uint32_t *bits, size_t len)
{
    static const char structure[] = "\"}])<|>:,/\n";
    int list[256], n = 0;
    if ((bits[WALK_END >> 5] >> (WALK_END & 31) & 1) && (len > 500 || walk_random(4) == 0))
        return -1;
    for (const char *s = structure; *s && (len > 300 || walk_random(2)); s++)
        if (bits[(unsigned char)*s >> 5] >> (*s & 31) & 1)
            list[n++] = *s;
    for (int i = 0, none = n == 0; i < 256 && none; i++)
        if (bits[i >> 5] >> (i & 31) & 1)
            list[n++] = i;
    return n ? list[len > 300 ? 0 : walk_random((uint32_t)n)] : -1;
}

static bool walk_byte(pn_guide *g, char c, pn_str *text)
{
    const uint32_t *bits;
    if (pn_guide_done(g) || pn_guide_mask(g, &bits, NULL) != PN_OK)
        return false;
    if (bits && !(bits[(unsigned char)c >> 5] >> ((unsigned char)c & 31) & 1))
        return false;
    if (pn_guide_accept(g, (unsigned char)c, (pn_bytes){&c, 1}, NULL) != PN_OK)
        return false;
    pn_str_addc(text, c);
    return true;
}

/* An answer, fragment by fragment as far as each is let through; false: it may not end where it is. */
static bool walk(pn_guide *g, const char *const *fragments, size_t n, pn_str *text)
{
    for (int turn = 0; turn < 900 && !pn_guide_done(g); turn++) {
        const uint32_t *bits;
        if (!PN_CHECK(pn_guide_mask(g, &bits, NULL) == PN_OK))
            return false;
        if (!bits && (text->len > 200 || walk_random(40) == 0))
            break;
        if (!bits || walk_random(6) == 0) {
            const char *s = fragments[walk_random((uint32_t)n)];
            while (*s && walk_byte(g, *s, text))
                s++;
            continue;
        }
        int c = walk_pick(bits, text->len);
        if (c < 0)
            break;
        if (!walk_byte(g, (char)c, text))
            pn_guide_ban(g, c);
    }
    return pn_guide_done(g) || pn_guide_may_end(g);
}

/* Whatever a model writes: of the answers that are let through, every call is one of the tools'. */
static void no_answer_comes_to_a_bad_call(void)
{
    enum { WALK_MODES = 5 };
    const char *fragments[WALK_FRAGMENTS];
    pn_gtrie *trie = walk_trie();
    const int turns = getenv("HELD_WALKS") ? atoi(getenv("HELD_WALKS")) : 60;
    for (size_t i = 0; pn_out_family_name(i); i++) {
        const char *family = pn_out_family_name(i);
        size_t n = walk_fragments(family, fragments), ended = 0;
        pn_out_format f;
        pn_out_find(&f, family);
        for (int mode = 0; mode < WALK_MODES; mode++) {         /* auto, single, required, required and single, none */
            pn_calls c;
            const pn_calls_params p = {.format = &f, .tools = &tools, .required = mode == 2 || mode == 3, .single = mode == 1 || mode == 3, .none = mode == 4};
            if (!PN_CHECK(pn_calls_new(&c, &libc_mem, &p, NULL) == PN_OK))
                continue;
            for (int k = 0; k < turns; k++) {
                pn_guide *g = NULL;
                pn_str text;
                bool open = k % 4 == 0 && f.think_open, bad;
                pn_str_init(&text, &libc_mem, PN_ACCT_MISC);
                const pn_guide_params q = {.gram = c.gram, .trie = trie, .triggers = c.triggers, .n_triggers = c.n_triggers, .watch = c.watch,
                                           .lanes = true, .owed = p.required, .single = p.single, .forbid = p.none,
                                           .after = open ? f.think_close : NULL, .think_open = f.think_open, .think_close = f.think_close};
                if (PN_CHECK(pn_guide_new(&g, &libc_mem, &q, NULL) == PN_OK) && walk(g, fragments, n, &text)) {
                    size_t calls = held_calls(family, open ? f.think_open : held_prompt(family), pn_str_cstr(&text), text.len, &bad);
                    PN_CHECK(!bad && !(p.none && calls) && !(p.single && calls > 1) && !(p.required && !calls), "%s, mode %d%s: '%s' gives %zu calls",
                             family, mode, open ? ", thinking" : "", pn_str_cstr(&text), calls);
                    ended++;
                }
                pn_guide_free(g);
                pn_str_fini(&text);
            }
            pn_calls_fini(&c);
        }
        PN_CHECK(ended > 10, "%s: only %zu answers ended", family, ended);
    }
    pn_gtrie_free(trie);
}

int main(void)
{
    pn_mem_init_libc(&libc_mem);
    PN_CHECK(pn_json_parse(&tools, &libc_mem, PN_ACCT_MISC, held_tools, sizeof held_tools - 1, NULL, NULL) == PN_OK);
    a_bare_object_is_a_call_in_any_spelling();
    what_follows_a_call_is_no_other();
    reasoning_holds_no_calls();
    openers_of_other_kinds();
    headers_say_who_is_called();
    values_hold_no_closers();
    a_string_that_cannot_be_written_is_refused();
    a_pattern_makes_a_string();
    undeclared_members_can_be_read();
    no_answer_comes_to_a_bad_call();
    pn_json_fini(&tools);
    return pn_test_end();
}
