/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_calls.c - grammars of tool calls: whatever they let through, the parser of the family reads as
 * calls of tools there are, with arguments that their schemas allow; what families write, they accept.
 */
#include "pn_test.h"

#include "sample/pn_calls.h"
#include "text/pn_out_family.h"

static pn_mem libc_mem;

/* f: each kind of value; few: any order; many: the order of the schema; none: no arguments. */
static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\",\"minimum\":-5,\"maximum\":99},\"b\":{\"type\":\"boolean\"},"
    "\"e\":{\"enum\":[\"red\",\"blue\"]}},\"required\":[\"s\",\"n\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"many\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"p\":{\"type\":\"string\",\"pattern\":\"^[a-c]{2,4}$\"},\"l\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":3},"
    "\"o\":{\"type\":\"object\",\"properties\":{\"k\":{\"$ref\":\"#/$defs/t\"},\"z\":{\"type\":\"null\"}},\"required\":[\"k\"]},"
    "\"d\":{\"type\":\"string\",\"format\":\"date\"},\"m\":{\"type\":[\"number\",\"null\"]},\"u\":{\"const\":true},"
    "\"w\":{\"type\":\"string\",\"maxLength\":3}},"
    "\"required\":[\"p\",\"w\"],\"$defs\":{\"t\":{\"type\":\"string\",\"minLength\":1}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"none\"}}]";

static pn_json_doc tools;

static pn_out_format format_of(const char *name)
{
    pn_out_format f;
    PN_CHECK(pn_out_find(&f, name), "no family %s", name);
    return f;
}

static bool make(pn_calls *c, pn_mem *mem, const char *family, bool required, bool single)
{
    pn_out_format f = format_of(family);
    pn_err err = {0};
    const pn_calls_params p = {.format = &f, .tools = &tools, .required = required, .single = single};
    return PN_CHECK(pn_calls_new(c, mem, &p, &err) == PN_OK, "%s: %s", family, err.text);
}

/* ------------------------------------------------------------------------------------------
 * Walks
 * ------------------------------------------------------------------------------------------ */

enum { WALK_END = 256, WALK_MAX = 4000 };

static uint64_t walk_state = 1;
static uint32_t walk_random(uint32_t n)
{
    return (uint32_t)(pn_test_rand(&walk_state) >> 33) % n;
}

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
    pn_gtrie_source src = {pieces, 257, 257, NULL, ends, 1};
    PN_CHECK(pn_gtrie_new(&t, &libc_mem, &src, NULL) == PN_OK);
    return t;
}

static bool walk_has(const uint32_t *bits, int c) { return bits[c >> 5] >> (c & 31) & 1; }

/* One allowed byte, mostly one that gets on with the structure; WALK_END where the text may end. */
static int walk_pick(const uint32_t *bits, size_t len)
{
    static const unsigned char structure[] = "\"}])<|>:,\xef/\n";     /* the last but two begins DeepSeek's bars */
    int list[257], n = 0;
    bool hurry = len > 400;
    if (walk_has(bits, WALK_END) && (hurry || walk_random(3) == 0))
        return WALK_END;
    if (hurry || walk_random(2))
        for (const unsigned char *s = structure; *s; s++)
            if (walk_has(bits, *s))
                list[n++] = *s;
    if (hurry && n)
        return list[0];
    for (int i = ' ', none = n == 0 && walk_random(8); i < 127 && none; i++)
        if (walk_has(bits, i))
            list[n++] = i;
    for (int i = 0, none = n == 0; i < WALK_END && none; i++)
        if (walk_has(bits, i))
            list[n++] = i;
    return n ? list[walk_random((uint32_t)n)] : WALK_END;
}

/* A sentence of lane `lane` into out; false: it did not end in time. */
static bool walk(pn_gram *g, const pn_gtrie *t, uint32_t lane, pn_str *out)
{
    const char choice[2] = {(char)(lane >> 8), (char)(lane & 255)};
    pn_matcher *m = NULL;
    uint32_t bits[16], n;
    bool done = false, ok = PN_CHECK(pn_matcher_new(&m, &libc_mem, g, t, NULL) == PN_OK) &&
                            PN_CHECK(pn_matcher_accept_bytes(m, choice, 2, NULL) == PN_OK);
    while (ok && !done && out->len < WALK_MAX) {
        pn_err err = {0};
        ok = PN_CHECK(pn_matcher_mask(m, bits, &n, &err) == PN_OK && n > 0, "after '%s': %s", pn_str_cstr(out), err.text);
        if (!ok)
            break;
        int c = walk_pick(bits, out->len);
        done = c == WALK_END;
        if (!done) {
            pn_str_addc(out, (char)c);
            ok = PN_CHECK(pn_matcher_accept_token(m, c, NULL) == PN_OK, "after '%s'", pn_str_cstr(out));
        }
    }
    pn_matcher_free(m);
    return done;
}

/* ------------------------------------------------------------------------------------------
 * What the parser makes of it
 * ------------------------------------------------------------------------------------------ */

static bool has(const pn_json_doc *d, const char *key) { return pn_json_get(d, PN_JSON_ROOT, key) != PN_JSON_NONE; }

static bool typed(const pn_json_doc *d, const char *key, pn_json_type a, pn_json_type b)
{
    pn_json_type t = pn_json_type_of(d, pn_json_get(d, PN_JSON_ROOT, key));
    return t == PN_JSON_ABSENT || t == a || t == b;
}

/* By hand, not by the code under test. */
static bool fits(const pn_out_call *c, const pn_json_doc *d)
{
    const char *name = pn_str_cstr(&c->name);
    pn_bytes s;
    int64_t i;
    if (strcmp(name, "none") == 0)
        return pn_json_count(d, PN_JSON_ROOT) == 0;
    if (strcmp(name, "f") == 0) {
        bool e = !pn_json_str(d, pn_json_get(d, PN_JSON_ROOT, "e"), &s) || strcmp(s.data, "red") == 0 || strcmp(s.data, "blue") == 0;
        return has(d, "s") && typed(d, "s", PN_JSON_STRING, PN_JSON_STRING) && pn_json_i64(d, pn_json_get(d, PN_JSON_ROOT, "n"), &i) &&
               i >= -5 && i <= 99 && typed(d, "b", PN_JSON_BOOL, PN_JSON_BOOL) && typed(d, "e", PN_JSON_STRING, PN_JSON_STRING) && e &&
               pn_json_count(d, PN_JSON_ROOT) == 2u + has(d, "b") + has(d, "e");
    }
    uint32_t o = pn_json_get(d, PN_JSON_ROOT, "o");
    bool p = pn_json_str(d, pn_json_get(d, PN_JSON_ROOT, "p"), &s) && s.len >= 2 && s.len <= 4 && strspn(s.data, "abc") == s.len;
    bool day = !has(d, "d") || (pn_json_str(d, pn_json_get(d, PN_JSON_ROOT, "d"), &s) && s.len == 10 && s.data[4] == '-');
    bool k = o == PN_JSON_NONE || (pn_json_str(d, pn_json_get(d, o, "k"), &s) && s.len > 0);
    return strcmp(name, "many") == 0 && p && day && k && typed(d, "l", PN_JSON_ARRAY, PN_JSON_ARRAY) && has(d, "w") &&
           typed(d, "m", PN_JSON_NUMBER, PN_JSON_NULL) && typed(d, "u", PN_JSON_BOOL, PN_JSON_BOOL);
}

static const char *prompt_of(const char *family)
{
    return strcmp(family, "harmony") == 0 || strcmp(family, "muse") == 0 ? "<|start|>assistant"
         : strcmp(family, "functionary-3.2") == 0 ? ">>>" : "";
}

/* Reads text as the family's output: at least one call, all whole; all as `tools` want them, or not. */
static size_t check_read(const char *family, const char *text, size_t len, bool fitting)
{
    pn_out_format f = format_of(family);
    pn_out_result r;
    pn_out *p = NULL;
    const char *prompt = strncmp(text, ">>>", 3) == 0 ? "" : prompt_of(family);
    pn_out_result_init(&r, &libc_mem);
    PN_CHECK(pn_out_new(&p, &libc_mem, &f, &tools, prompt, strlen(prompt), NULL, pn_out_collect, &r, NULL) == PN_OK);
    PN_CHECK(pn_out_push(p, text, len, NULL) == PN_OK && pn_out_end(p, NULL) == PN_OK);
    PN_CHECK(r.n_calls > 0 && r.content.len == 0, "%s: '%s' gives %zu calls and the text '%s'", family, text, r.n_calls,
             pn_str_cstr(&r.content));
    for (size_t i = 0; i < r.n_calls; i++) {
        pn_json_doc d;
        pn_err err = {0};
        const pn_out_call *c = &r.calls[i];
        pn_status st = pn_json_parse(&d, &libc_mem, PN_ACCT_MISC, pn_str_cstr(&c->arguments), c->arguments.len, NULL, &err);
        PN_CHECK(st == PN_OK && c->complete && (!fitting || fits(c, &d)), "%s: '%s' calls %s(%s) %s", family, text, pn_str_cstr(&c->name),
                 pn_str_cstr(&c->arguments), err.text);
        pn_json_fini(&d);
    }
    size_t n = r.n_calls;
    pn_out_free(p);
    pn_out_result_fini(&r);
    return n;
}

static size_t check_calls(const char *family, const char *text, size_t len) { return check_read(family, text, len, true); }

static void test_what_a_grammar_lets_through_is_a_call(const pn_gtrie *t)
{
    for (size_t i = 0; pn_out_family_name(i); i++) {
        const char *family = pn_out_family_name(i);
        size_t ended = 0, most = 0;
        for (int single = 0; single < 2; single++) {
            pn_calls c;
            if (!make(&c, &libc_mem, family, true, single))
                continue;
            for (int k = 0; k < 60; k++) {
                pn_str text;
                pn_str_init(&text, &libc_mem, PN_ACCT_MISC);
                if (walk(c.gram, t, 0, &text)) {
                    size_t n = check_calls(family, pn_str_cstr(&text), text.len);
                    PN_CHECK(!single || n == 1, "%s: '%s'", family, pn_str_cstr(&text));
                    most = PN_MAX(most, n);
                    ended++;
                }
                pn_str_fini(&text);
            }
            pn_calls_fini(&c);
        }
        PN_CHECK(ended > 50, "%s: %zu of 120 walks ended", family, ended);
        PN_CHECK(most > 1 || strcmp(family, "gigachat") == 0 || strcmp(family, "harmony") == 0, "%s: never two calls", family);
    }
}

/* Each trigger and its lane: text in front, what the grammar lets through behind. */
static void test_triggered_calls_are_calls(const pn_gtrie *t)
{
    for (size_t i = 0; pn_out_family_name(i); i++) {
        const char *family = pn_out_family_name(i);
        pn_calls c;
        if (!make(&c, &libc_mem, family, false, false))
            continue;
        PN_CHECK(c.n_triggers > 0, "%s has no trigger", family);
        for (size_t k = 0; k < c.n_triggers; k++)
            for (int turn = 0; turn < 12; turn++) {
                pn_str text;
                pn_str_init(&text, &libc_mem, PN_ACCT_MISC);
                pn_str_add(&text, c.triggers[k].text, c.triggers[k].len);
                if (walk(c.gram, t, c.triggers[k].lane, &text))
                    check_calls(family, pn_str_cstr(&text), text.len);
                pn_str_fini(&text);
            }
        pn_calls_fini(&c);
    }
}

/* ------------------------------------------------------------------------------------------
 * What families write
 * ------------------------------------------------------------------------------------------ */

#define M3 "]<]minimax[>["
#define DM "｜DSML｜"

static const char *const written[][2] = {
    {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"a \\\"b\\\"\", \"n\": 3}}\n</tool_call>\n<tool_call>\n{\"name\": \"none\", \"arguments\": {}}\n</tool_call>"},
    {"qwen-coder", "<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n<parameter=s>\nif a < b:\n  x\n</parameter>\n</function>\n</tool_call>"},
    {"qwen-coder", "<tool_call>\n<function=none>\n</function>\n</tool_call>"},
    {"seed-oss", "<seed:tool_call>\n<function=f>\n<parameter=s>a</parameter>\n<parameter=n>3</parameter>\n</function>\n</seed:tool_call>"},
    {"glm", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>x <b></arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"},
    {"hy3", "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>s</arg_key:opensource>\n<arg_value:opensource>x</arg_value:opensource>\n<arg_key:opensource>n</arg_key:opensource>\n<arg_value:opensource>-5</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"},
    {"deepseek-dsml", "<" DM "function_calls>\n<" DM "invoke name=\"f\">\n<" DM "parameter name=\"s\" string=\"true\">3</" DM "parameter>\n<" DM "parameter name=\"n\" string=\"false\">1</" DM "parameter>\n</" DM "invoke>\n</" DM "function_calls>"},
    {"minimax-m2", "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">x</parameter>\n<parameter name=\"n\">2</parameter>\n</invoke>\n<invoke name=\"none\">\n</invoke>\n</minimax:tool_call>"},
    {"minicpm5", "<function name=\"f\"><param name=\"s\">x</param><param name=\"n\">2</param></function>"},
    {"kimi-k3", "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"s\" type=\"string\"<|sep|>1<|close|>argument<|sep|><|open|>argument key=\"n\" type=\"number\"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"},
    {"muse", " to=f<|message|><atem:function_calls>\n<atem:invoke name=\"f\">\n<atem:parameter name=\"s\">x</atem:parameter>\n<atem:parameter name=\"n\">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls>"},
    {"minimax-m3", M3 "<tool_call>\n" M3 "<invoke name=\"f\">" M3 "<s>x <y> " M3 "</s>" M3 "<n>3" M3 "</n>" M3 "</invoke>\n" M3 "</tool_call>"},
    {"llama3", "{\"name\": \"f\", \"parameters\": {\"s\": \"x\", \"n\": 1}}; {\"name\": \"none\", \"parameters\": {}}"},
    {"functionary-3.1", "<function=f>{\"s\": \"x\", \"n\": 1}</function><function=none>{}</function>"},
    {"functionary-3.2", "f\n{\"s\": \"x\", \"n\": 1}>>>none\n{}"},
    {"mistral", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"s\": \"x\", \"n\": 1}, \"id\": \"123456789\"}]"},
    {"mistral", "[TOOL_CALLS]f[ARGS]{\"s\": \"x\", \"n\": 1}[TOOL_CALLS]none[CALL_ID]abcdefghi[ARGS]{}"},
    {"deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"s\": \"x\", \"n\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>none<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"kimi-k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"s\": \"x\", \"n\": 1}<|tool_call_end|><|tool_call_begin|>functions.none:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"},
    {"solar", "<|tool_calls|><|tool_call:begin|>id1<|tool_call:name|>f<|tool_call:args|>{\"s\": \"x\", \"n\": 1}<|tool_call:end|><|calls|>"},
    {"command-r7b", "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"s\": \"x\", \"n\": 1}}\n]<|END_ACTION|>"},
    {"command-r-plus", "Action:```json\n[\n    {\n        \"tool_name\": \"none\",\n        \"parameters\": {}\n    }\n]\n```"},
    {"apertus", "<|tools_prefix|>[{\"f\": {\"s\": \"x\", \"n\": 1}}, {\"none\": {}}]<|tools_suffix|>"},
    {"gigachat", "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {\"s\": \"x\", \"n\": 1}}"},
    {"granite-3", "<|tool_call|>[{\"name\": \"none\", \"arguments\": {}}]"},
    {"phi4-mini", "functools[{\"name\": \"none\", \"arguments\": {}}]"},
    {"apriel", "<tool_calls>[{\"name\": \"none\", \"arguments\": {}, \"id\": \"abcdefghi\"}]</tool_calls>"},
    {"minimax-m1", "<tool_calls>\n{\"name\": \"none\", \"arguments\": {}}\n{\"name\": \"none\", \"arguments\": {}}\n</tool_calls>"},
    {"nemotron-v2", "<TOOLCALL>[{\"name\": \"none\", \"arguments\": {}}]</TOOLCALL>"},
    {"generic", "<tool_call>\n{\"name\": \"none\", \"arguments\": {}}\n</tool_call>"},
    {"lfm2", "<|tool_call_start|>[f(n=3, s=\"x\", b=True), none()]<|tool_call_end|>"},
    {"gemma4", "<|tool_call>call:f{s:<|\"|>a \"b\" {x}<|\"|>,n:3,b:true,e:<|\"|>red<|\"|>}<tool_call|><|tool_call>call:none{}<tool_call|>"},
    {"harmony", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"s\": \"x\", \"n\": 1}"},
    {"harmony", " to=functions.f<|channel|>commentary json<|message|>{\"s\": \"x\", \"n\": 1}"},
};

static bool accepts(pn_gram *g, uint32_t lane, const char *text, size_t len)
{
    char buf[2048] = {(char)(lane >> 8), (char)(lane & 255)};
    return PN_CHECK(len + 2 < sizeof buf) && (memcpy(buf + 2, text, len), pn_gram_matches(g, buf, len + 2, NULL) == 1);
}

static void test_what_families_write_is_accepted(void)
{
    for (size_t i = 0; i < PN_COUNT_OF(written); i++) {
        pn_calls c;
        if (!make(&c, &libc_mem, written[i][0], true, false))
            continue;
        PN_CHECK(accepts(c.gram, 0, written[i][1], strlen(written[i][1])), "%s: '%s'", written[i][0], written[i][1]);
        pn_calls_fini(&c);
    }
    for (size_t i = 0; pn_out_family_name(i); i++) {
        size_t n = 0;
        for (size_t k = 0; k < PN_COUNT_OF(written); k++)
            n += strcmp(written[k][0], pn_out_family_name(i)) == 0;
        PN_CHECK(n > 0, "no call of family %s is tested", pn_out_family_name(i));
    }
}

/* ------------------------------------------------------------------------------------------
 * Refusals
 * ------------------------------------------------------------------------------------------ */

static pn_status try(const char *family, const char *json, const char *only, bool required, pn_calls *c, pn_err *err)
{
    pn_json_doc d;
    pn_out_format f = format_of(family);
    PN_CHECK(pn_json_parse(&d, &libc_mem, PN_ACCT_MISC, json, strlen(json), NULL, NULL) == PN_OK, "%s", json);
    const pn_calls_params p = {.format = &f, .tools = &d, .only = {only, only ? strlen(only) : 0}, .required = required};
    pn_status st = pn_calls_new(c, &libc_mem, &p, err);
    pn_json_fini(&d);
    return st;
}

static void refused(const char *family, const char *json, const char *only, bool required, pn_status want, const char *text)
{
    pn_calls c;
    pn_err err = {0};
    pn_status st = try(family, json, only, required, &c, &err);
    PN_CHECK(st == want && strstr(err.text, text), "%s: %s: %d '%s', expected %d '%s'", family, json, (int)st, err.text, (int)want, text);
    pn_calls_fini(&c);
}

#define TOOL(strict, schema) "[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},{\"type\":\"function\",\"function\":{\"name\":\"f\"," strict \
                             "\"parameters\":" schema "}}]"
#define BEYOND "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"array\",\"contains\":{\"const\":1}}}}"

static void widened(const char *family, const char *json, const char *want)
{
    pn_calls c;
    pn_err err = {0};
    if (PN_CHECK(try(family, json, NULL, false, &c, &err) == PN_OK, "%s", err.text))
        PN_CHECK(strcmp(pn_str_cstr(&c.widened), want) == 0, "%s: '%s'", family, pn_str_cstr(&c.widened));
    pn_calls_fini(&c);
}

static void test_what_cannot_be_enforced_is_told(void)
{
    static const char *const families[] = {"hermes", "qwen-coder", "lfm2", "gemma4", "harmony"};
    for (size_t i = 0; i < PN_COUNT_OF(families); i++) {
        const char *f = families[i];
        refused(f, TOOL("\"strict\":true,", BEYOND), NULL, false, PN_E_UNSUPPORTED, "/1/function/parameters/properties/x/contains: ");
        refused(f, TOOL("", BEYOND), NULL, true, PN_E_UNSUPPORTED, "/1/function/parameters/properties/x/contains: ");
        refused(f, TOOL("", BEYOND), "f", true, PN_E_UNSUPPORTED, "/1/function/parameters/properties/x/contains: ");
        widened(f, TOOL("", BEYOND), "/1/function/parameters/properties/x/contains");
        widened(f, TOOL("\"strict\":true,", "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}}}"), "");
        refused(f, "[]", NULL, false, PN_E_INVALID, "at least one function");
        refused(f, "{}", NULL, false, PN_E_INVALID, "expected an array");
        refused(f, "[{\"type\":\"function\",\"function\":{}}]", NULL, false, PN_E_INVALID, "/0/function/name: expected the name");
        refused(f, "[{\"name\":\"a b\"}]", NULL, false, PN_E_INVALID, "/0/name: expected the name");
        refused(f, TOOL("", "{}"), "g", true, PN_E_INVALID, "no tool is called 'g'");
        refused(f, TOOL("", "3"), NULL, false, PN_E_INVALID, "/1/function/parameters: expected a JSON Schema");
        refused(f, TOOL("", "{\"type\":\"string\"}"), NULL, false, PN_E_INVALID, "/1/function/parameters/type: expected \"object\"");
        refused(f, TOOL("", "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":3}}}"), NULL, false, PN_E_INVALID, "/properties/x/type");
    }
    /* An object that is written member by member has no combinations. */
    refused("glm", TOOL("\"strict\":true,", "{\"anyOf\":[{\"required\":[\"x\"]}]}"), NULL, false, PN_E_UNSUPPORTED, "/1/function/parameters/anyOf: ");
    widened("glm", TOOL("", "{\"anyOf\":[{\"required\":[\"x\"]}]}"), "/1/function/parameters/anyOf");
    refused("glm", TOOL("\"strict\":true,", "{\"type\":\"object\",\"required\":[\"x\"]}"), NULL, false, PN_E_UNSUPPORTED, "/1/function/parameters/required: ");
}

/* What the family's reader would take for something else, or cannot hold. */
static void test_names_that_the_syntax_cannot_tell(void)
{
    static const char *const taken[][2] = {{"lfm2", "a@b"}, {"gemma4", "a#b"}, {"apertus", "id"}, {"apertus", "arguments"},
                                           {"functionary-3.2", "all"}, {"deepseek", "function"}};
    char json[700], name[300];
    for (size_t i = 0; i < PN_COUNT_OF(taken); i++) {
        snprintf(json, sizeof json, "[{\"name\":\"%s\"}]", taken[i][1]);
        refused(taken[i][0], json, NULL, false, PN_E_UNSUPPORTED, "/0/name: ");
        widened("hermes", json, "");
    }
    refused("hermes", "[{\"name\":\"f\"},{\"name\":\"g\"},{\"name\":\"f\"}]", NULL, false, PN_E_INVALID, "/2/name: another function");
    refused("hermes", "[{\"name\":\"f\"}]", "", true, PN_E_INVALID, "no tool is called ''");
    memset(name, 'n', sizeof name);
    snprintf(json, sizeof json, "[{\"name\":\"%.201s\"}]", name);
    refused("kimi-k2", json, NULL, false, PN_E_INVALID, "/0/name: ");
    snprintf(json, sizeof json, "[{\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"%.64s\":{\"type\":\"string\"}}}}]", name);
    refused("minimax-m3", json, NULL, false, PN_E_UNSUPPORTED, "/0/parameters/properties: ");
    widened("glm", json, "");
}

static void test_one_function_when_one_is_named(void)
{
    pn_calls c;
    pn_err err = {0};
    static const char f[] = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", a[] = "<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>";
    if (PN_CHECK(try("hermes", TOOL("", "{}"), "f", true, &c, &err) == PN_OK, "%s", err.text)) {
        PN_CHECK(accepts(c.gram, 0, f, sizeof f - 1) && !accepts(c.gram, 0, a, sizeof a - 1));
        pn_calls_fini(&c);
    }
}

/* Values between tags avoid the closer, and that must not make every string a product of automata. */
static void test_many_tools_are_within_the_limits(void)
{
    static const char *const families[] = {"qwen-coder", "minicpm5", "minimax-m3", "glm"};
    static const char *const kinds[] = {
        "{\"type\":\"string\"}", "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":300}},\"additionalProperties\":{\"type\":\"string\"}}"};
    pn_str json;
    pn_str_init(&json, &libc_mem, PN_ACCT_MISC);
    for (int i = 0; i < 100; i++) {
        pn_str_addf(&json, "%s{\"name\":\"tool_%d\",\"parameters\":{\"type\":\"object\",\"properties\":{", i ? "," : "[", i);
        for (int k = 0; k < 12; k++)
            pn_str_addf(&json, "%s\"p%d_%d\":%s", k ? "," : "", i, k, kinds[k % 3]);
        pn_str_addz(&json, "}}}");
    }
    pn_str_addc(&json, ']');
    for (size_t i = 0; i < PN_COUNT_OF(families); i++)
        widened(families[i], pn_str_cstr(&json), "");
    pn_str_fini(&json);
}

/* A value that may be anything nests as far as readers follow. */
static void test_nesting_ends_before_the_readers_do(void)
{
    static const char *const around[][3] = {
        {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": ", "}}\n</tool_call>"},
        {"mistral", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": ", "}, \"id\": \"123456789\"}]"},
        {"qwen-coder", "<tool_call>\n<function=f>\n<parameter=x>\n", "\n</parameter>\n</function>\n</tool_call>"},
        {"gemma4", "<|tool_call>call:f{x:", "}<tool_call|>"},
        {"lfm2", "<|tool_call_start|>[f(x=", ")]<|tool_call_end|>"},
    };
    static const char nested[] = TOOL("", "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"array\",\"items\":{}}}}");
    for (size_t i = 0; i < PN_COUNT_OF(around); i++) {
        pn_calls c;
        pn_err err = {0};
        int most = 0;
        if (!PN_CHECK(try(around[i][0], nested, "f", true, &c, &err) == PN_OK, "%s", err.text))
            continue;
        for (int n = 1; n < 200; n++) {
            pn_str s;
            pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
            pn_str_addz(&s, around[i][1]);
            for (int k = 0; k < 2 * n; k++)
                pn_str_addc(&s, k < n ? '[' : ']');
            pn_str_addz(&s, around[i][2]);
            if (accepts(c.gram, 0, pn_str_cstr(&s), s.len)) {
                PN_CHECK(n == most + 1, "%s: %d", around[i][0], n);
                check_read(around[i][0], pn_str_cstr(&s), s.len, false);
                most = n;
            }
            pn_str_fini(&s);
        }
        PN_CHECK(most > 100, "%s: only %d levels", around[i][0], most);
        pn_calls_fini(&c);
    }
}

/* A marker that is a token has to be that token. */
static pn_token find_token(void *user, const char *text, size_t len)
{
    (void)user;
    return len == 11 && memcmp(text, "<tool_call>", 11) == 0 ? 300 : len == 12 && memcmp(text, "</tool_call>", 12) == 0 ? 301 : -1;
}

static void test_markers_are_tokens_where_there_are_some(void)
{
    pn_out_format f = format_of("hermes");
    pn_calls c;
    pn_err err = {0};
    static pn_bytes pieces[302];
    pn_gtrie *t = NULL;
    pn_matcher *m = NULL;
    static char bytes[256];
    static const pn_token ends[] = {WALK_END};
    const pn_calls_params p = {.format = &f, .tools = &tools, .required = true, .find = find_token};
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        pieces[i] = (pn_bytes){bytes + i, 1};
    }
    pieces[256] = (pn_bytes){"", 0};
    pn_gtrie_source src = {pieces, 302, 302, NULL, ends, 1};
    uint32_t bits[16], n = 0;
    if (PN_CHECK(pn_calls_new(&c, &libc_mem, &p, &err) == PN_OK, "%s", err.text) && PN_CHECK(pn_gtrie_new(&t, &libc_mem, &src, NULL) == PN_OK) &&
        PN_CHECK(pn_matcher_new(&m, &libc_mem, c.gram, t, NULL) == PN_OK)) {
        PN_CHECK(pn_matcher_accept_bytes(m, "\0\0", 2, NULL) == PN_OK && pn_matcher_mask(m, bits, &n, NULL) == PN_OK);
        PN_CHECK(n == 1 && bits[300 / 32] >> (300 % 32) & 1, "%u tokens may come first", (unsigned)n);
    }
    pn_matcher_free(m);
    pn_gtrie_free(t);
    pn_calls_fini(&c);
}

static void test_every_allocation_may_fail(void)
{
    static const char *const families[] = {"hermes", "qwen-coder", "gemma4", "llama3"};
    for (size_t i = 0; i < PN_COUNT_OF(families); i++)
        for (long k = 1; k < 4000; k += k < 50 ? 1 : 7) {
            pn_test_mem mem;
            pn_calls c;
            pn_err err = {0};
            pn_json_doc d;
            pn_out_format f = format_of(families[i]);
            pn_test_mem_init(&mem, 0);
            PN_CHECK(pn_json_parse(&d, &mem.mem, PN_ACCT_MISC, tools_json, sizeof tools_json - 1, NULL, NULL) == PN_OK);
            mem.n_calls = 0;
            mem.fail_at = k;
            const pn_calls_params p = {.format = &f, .tools = &d, .required = i % 2 == 0};
            pn_status st = pn_calls_new(&c, &mem.mem, &p, &err);
            pn_calls_fini(&c);
            pn_json_fini(&d);
            PN_CHECK(mem.outstanding == 0, "%s: allocation %ld failing leaks %ld blocks", families[i], k, mem.outstanding);
            if (st == PN_OK)
                break;
            PN_CHECK(st == PN_E_NOMEM, "%s: allocation %ld failing gives %d: %s", families[i], k, (int)st, err.text);
        }
}

int main(void)
{
    pn_mem_init_libc(&libc_mem);
    PN_CHECK(pn_json_parse(&tools, &libc_mem, PN_ACCT_MISC, tools_json, sizeof tools_json - 1, NULL, NULL) == PN_OK);
    pn_gtrie *t = walk_trie();
    test_what_families_write_is_accepted();
    test_what_a_grammar_lets_through_is_a_call(t);
    test_triggered_calls_are_calls(t);
    test_what_cannot_be_enforced_is_told();
    test_names_that_the_syntax_cannot_tell();
    test_one_function_when_one_is_named();
    test_many_tools_are_within_the_limits();
    test_nesting_ends_before_the_readers_do();
    test_markers_are_tokens_where_there_are_some();
    test_every_allocation_may_fail();
    pn_gtrie_free(t);
    pn_json_fini(&tools);
    return pn_test_end();
}
