/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_hostile.c - what strangers may send: templates, schemas, grammars, patterns and JSON made to
 * loop, nest, multiply or lie.  Each gives the status and the word it should, holds at most 64 MiB at
 * any time, asks for memory a bounded number of times, and does all of it on a stack of 256 KiB.
 *
 * Time is bounded by counted steps and not measured here: a builder never does more than
 * compile_steps, which is part of what is checked.
 */
#include "pn_test.h"

#include <pthread.h>

#include "base/pn_json.h"
#include "base/pn_str.h"
#include "sample/pn_gram_impl.h"
#include "sample/pn_schema.h"
#include "text/pn_template.h"

enum { HOSTILE_STACK = 256 << 10, HOSTILE_BYTES = 64 << 20, HOSTILE_CALLS = 1000000, HOSTILE_STEPS = 5000000 };

/* Sanitizers put red zones around what is on the stack. */
#if defined(__SANITIZE_ADDRESS__)
enum { HOSTILE_STACK_FACTOR = 8 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
enum { HOSTILE_STACK_FACTOR = 8 };
#else
enum { HOSTILE_STACK_FACTOR = 1 };
#endif
#else
enum { HOSTILE_STACK_FACTOR = 1 };
#endif

/* A memory that knows the most it had out at once. */
typedef struct hostile_mem {
    pn_mem mem;                 /* first: cast back */
    pn_mem libc;
    uint64_t bytes, peak, calls;
} hostile_mem;

static void *hostile_alloc(pn_mem *m, pn_account a, size_t size)
{
    hostile_mem *h = (hostile_mem *)m;
    h->calls++;
    h->bytes += size;
    h->peak = PN_MAX(h->peak, h->bytes);
    return pn_mem_alloc(&h->libc, a, size);
}

static void hostile_free(pn_mem *m, pn_account a, void *ptr, size_t size)
{
    hostile_mem *h = (hostile_mem *)m;
    h->bytes -= size;
    pn_mem_free(&h->libc, a, ptr, size);
}

static hostile_mem hostile_mem_new(void)
{
    hostile_mem h = {{hostile_alloc, hostile_free, NULL}, {NULL, NULL, NULL}, 0, 0, 0};
    pn_mem_init_libc(&h.libc);
    return h;
}

/* What every case has to end with. */
static void verdict(const char *what, const hostile_mem *h, pn_status got, pn_status want, const pn_err *err, const char *say)
{
    PN_CHECK(got == want, "%.60s: %s, expected %s: %s", what, pn_status_name(got), pn_status_name(want), err->text);
    PN_CHECK(got == PN_OK || strstr(err->text, say), "%.60s: \"%s\" lacks \"%s\"", what, err->text, say);
    PN_CHECK(h->peak <= HOSTILE_BYTES, "%.60s: peak of %" PRIu64 " bytes", what, h->peak);
    PN_CHECK(h->calls <= HOSTILE_CALLS, "%.60s: %" PRIu64 " requests for memory", what, h->calls);
    PN_CHECK(h->bytes == 0, "%.60s: leaks %" PRIu64 " bytes", what, h->bytes);
}

/* before, part n times, after; the same storage each time */
static const char *repeated(const char *before, const char *part, size_t n, const char *after)
{
    static pn_mem libc;
    static pn_str s;
    if (!s.mem) {
        pn_mem_init_libc(&libc);
        pn_str_init(&s, &libc, PN_ACCT_MISC);
    }
    if (!part) {                                /* the end of the test */
        pn_str_fini(&s);
        return NULL;
    }
    pn_str_clear(&s);
    pn_str_addz(&s, before);
    for (size_t i = 0; i < n; i++)
        pn_str_addf(&s, part, (int)i, (int)i + 1, (int)i + 1);
    pn_str_addz(&s, after);
    return pn_str_cstr(&s);
}

/* --- grammars ------------------------------------------------------------------------------------ */

static void gbnf_n(const char *text, size_t len, pn_status want, const char *say)
{
    hostile_mem h = hostile_mem_new();
    pn_gram *g = NULL;
    pn_err err = {PN_OK, ""};
    const pn_status got = pn_gram_from_gbnf(&g, &h.mem, text, len, NULL, NULL, NULL, &err);
    pn_gram_release(g);
    verdict(text, &h, got, want, &err, say);
}

static void gbnf(const char *text, pn_status want, const char *say) { gbnf_n(text, strlen(text), want, say); }

/* A sentence, in bounded work. */
static void gbnf_matches(const char *grammar, const char *text, int want)
{
    hostile_mem h = hostile_mem_new();
    pn_gram *g = NULL;
    pn_err err = {PN_OK, ""};
    const pn_status got = pn_gram_from_gbnf(&g, &h.mem, grammar, strlen(grammar), NULL, NULL, NULL, &err);
    if (got == PN_OK) {
        PN_CHECK(pn_gram_matches(g, text, strlen(text), &err) == want, "%.60s: %s", grammar, err.text);
        PN_CHECK(g->steps < HOSTILE_STEPS, "%.60s: %" PRIu64 " steps", grammar, g->steps);
    }
    pn_gram_release(g);
    verdict(grammar, &h, got, PN_OK, &err, "");
}

static void grammars_meet_limits(void)
{
    static const char a100[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    gbnf(repeated("root ::= ", "(", 60000, ""), PN_E_INVALID, "nesting: 200");
    gbnf(repeated("root ::= ", "(\"a\" ", 60000, ""), PN_E_INVALID, "nesting: 200");
    gbnf("root ::= root \"a\" | \"b\"", PN_E_INVALID, "left recursion: rule 'root'");
    gbnf("root ::= e root | \"b\"\ne ::= f*\nf ::= \"c\"?", PN_E_INVALID, "left recursion");
    gbnf("root ::= a\na ::= b? c\nb ::= \"x\"?\nc ::= d \"y\"\nd ::= b a", PN_E_INVALID, "left recursion");
    gbnf(repeated("root ::= r0\n", "r%d ::= r%d\n", 9998, "r9998 ::= root"), PN_E_INVALID, "left recursion");
    gbnf("root ::= ((\"a\"{0,2000}){0,2000}){0,2000}", PN_E_INVALID, "repeat: 1000000");
    gbnf("root ::= ((\"a\"{0,99}){0,99}){0,99}", PN_OK, "");
    gbnf("root ::= \"a\"{0,4294967296}", PN_E_INVALID, "repeat: 1000000");
    gbnf("root ::= \"a\"{99999999999999999999999}", PN_E_INVALID, "repeat: 1000000");
    gbnf("root ::= root", PN_E_INVALID, "left recursion");
    gbnf("root ::= \"a\" root", PN_E_INVALID, "cannot be satisfied");
    gbnf("root ::= [\\uD800-\\uDFFF]", PN_E_INVALID, "cannot be satisfied");
    gbnf("root ::= \"\\uD800\"", PN_E_INVALID, "without surrogates");
    gbnf("root ::= \"\\U00110000\"", PN_E_INVALID, "10FFFF");
    gbnf("root ::= \"\xC0\x80\"", PN_E_INVALID, "valid UTF-8");
    gbnf("root ::= [a-\xED\xA0\x80]", PN_E_INVALID, "valid UTF-8");
    gbnf("root ::= \xFF", PN_E_INVALID, "another byte");
    gbnf_n("root ::= \"a\0b\"", 14, PN_OK, "");
    gbnf_n("root ::= \0", 10, PN_E_INVALID, "another byte");
    gbnf(repeated("root ::= \"x\"\n", "a%d ::= \"y\"\n", 10000, ""), PN_E_INVALID, "rules: 10000");
    gbnf(repeated("root ::= \"", "0123456789abcdef", 1 << 17, "\""), PN_E_INVALID, "text_bytes: 1048576");
    gbnf(repeated("root ::= \"", "0123456789abcdef", 15000, "\""), PN_E_INVALID, "elements: 200000");
    gbnf(repeated("root ::= ", "a ", 20000, "\na ::= \"a\"?"), PN_E_INVALID, "configs: 2048");
    gbnf(repeated("root ::= ", "a%d ", 9000, "\na ::= \"a\""), PN_E_INVALID, "a rule that is defined");
    gbnf(repeated("root ::= ", "(\"a\"|[b-z]|", 190, "\"b\""), PN_E_INVALID, "closing )");
    gbnf_matches("root ::= (\"a\"|\"a\")*", a100, 1);
    gbnf_matches("root ::= ((\"a\"*)*)*", a100, 1);
    gbnf_matches("root ::= ((\"a\"?){1000}){1000}", a100, 1);
    gbnf_matches("root ::= (\"a\"+ \"a\"+)+ \"y\"", a100, 0);
    gbnf_matches(repeated("root ::= ", "a ", 1000, "\na ::= \"a\"?"), a100, 1);
}

/* A purse of 64 KiB instead of 64 MiB. */
static void one_purse_pays_for_all(void)
{
    hostile_mem h = hostile_mem_new();
    const pn_gram_limits limits = {.compiled_bytes = 64 << 10};
    pn_gram *g = NULL;
    pn_err err = {PN_OK, ""};
    const char *text = repeated("root ::= \"a\"", " [a-%c]", 0, ""), *big = NULL;
    PN_CHECK(pn_gram_from_gbnf(&g, &h.mem, text, strlen(text), &limits, NULL, NULL, &err) == PN_OK, "%s", err.text);
    PN_CHECK(pn_gram_matches(g, "a", 1, &err) == 1);
    pn_gram_release(g);
    g = NULL;
    PN_CHECK(h.bytes == 0 && h.peak <= limits.compiled_bytes);
    big = repeated("root ::= \"a\"", " \"b%d\"?", 1000, "");
    verdict("a small purse", &h, pn_gram_from_gbnf(&g, &h.mem, big, strlen(big), &limits, NULL, NULL, &err), PN_E_INVALID, &err,
            "compiled_bytes: 65536");
    PN_CHECK(g == NULL && h.peak <= limits.compiled_bytes, "%" PRIu64, h.peak);
    verdict("a small purse", &h, pn_gram_from_regex(&g, &h.mem, "[a-z]{1,50}(\\p{L}|x)*", 21, &limits, &err), PN_E_INVALID, &err,
            "compiled_bytes: 65536");
}

/* --- patterns ------------------------------------------------------------------------------------ */

static void regex(const char *pattern, pn_status want, const char *say)
{
    hostile_mem h = hostile_mem_new();
    pn_gram *g = NULL;
    pn_err err = {PN_OK, ""};
    const pn_status got = pn_gram_from_regex(&g, &h.mem, pattern, strlen(pattern), NULL, &err);
    pn_gram_release(g);
    verdict(pattern, &h, got, want, &err, say);
}

/* The pattern in a schema, with a length: that makes an automaton of it. */
static void schema(const char *text, pn_status want, const char *say);

static void patterns_meet_limits(void)
{
    regex(repeated("", "(", 4000, ""), PN_E_INVALID, "deeper than 100");
    regex(repeated("", "(", 60000, ""), PN_E_INVALID, "regex_bytes: 4096");
    regex("(a|a)*", PN_OK, "");
    regex("(a*)*b", PN_OK, "");
    regex("((a?){1000}){1000}", PN_OK, "");
    regex("((a{0,2000}){0,2000}){0,2000}", PN_E_INVALID, "repeat: 1000000");
    regex("a{0,4294967296}", PN_E_INVALID, "more than 10000");
    regex("(x+x+)+y", PN_OK, "");
    regex("a{0,2000}{0,2000}", PN_E_INVALID, "repetition of nothing");
    regex("[\\uD800-\\uDFFF]", PN_E_INVALID, "cannot be satisfied");
    regex("\\uD800", PN_E_INVALID, "cannot be satisfied");
    regex("\xED\xA0\x80", PN_E_INVALID, "not UTF-8");
    regex("[\xC3]", PN_E_INVALID, "not UTF-8");
    regex("(?=a)b", PN_E_UNSUPPORTED, "look-around");
    regex("(a)\\1", PN_E_UNSUPPORTED, "back-reference");
    regex(repeated("", "\\p{L}", 800, ""), PN_E_INVALID, "compile_steps: 5000000");
    schema("{\"type\":\"string\",\"pattern\":\"(x+x+)+y\",\"maxLength\":255}", PN_OK, "");
    schema("{\"type\":\"string\",\"pattern\":\"(x+x+)+y\",\"format\":\"email\",\"minLength\":10000}", PN_E_INVALID, "dfa_states: 50000");
    schema("{\"type\":\"string\",\"pattern\":\"^((a?){1000}){1000}$\",\"maxLength\":100000}", PN_OK, "");
    schema("{\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){20}$\",\"maxLength\":255}", PN_E_INVALID, "compile_steps: 5000000");
    schema("{\"allOf\":[{\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){12}$\"},{\"pattern\":\"(b|c)*b(a|b){12}$\"}]}", PN_E_INVALID, "compile_steps: 5000000");
}

/* --- schemas ------------------------------------------------------------------------------------- */

/* Through the builder, to see its steps. */
static void schema_steps(const char *text)
{
    hostile_mem h = hostile_mem_new();
    pn_json_doc d;
    pn_gir *b = NULL;
    pn_gnode node;
    pn_gram *g = NULL;
    if (pn_json_parse(&d, &h.mem, PN_ACCT_MISC, text, strlen(text), NULL, NULL) != PN_OK)
        return;
    PN_CHECK(pn_gir_new(&b, &h.mem, NULL, NULL) == PN_OK);
    if (pn_schema_node(b, &d, PN_JSON_ROOT, PN_JSON_ROOT, NULL, &node, NULL, NULL) == PN_OK)
        pn_gir_finish(b, node, &g, NULL);
    PN_CHECK(b->steps <= HOSTILE_STEPS, "%.60s: %" PRIu64 " steps", text, b->steps);
    pn_gram_release(g);
    pn_gir_free(b);
    pn_json_fini(&d);
}

static void schema(const char *text, pn_status want, const char *say)
{
    hostile_mem h = hostile_mem_new();
    pn_gram *g = NULL;
    pn_err err = {PN_OK, ""};
    const pn_status got = pn_schema_compile(&g, &h.mem, text, strlen(text), NULL, &err);
    pn_gram_release(g);
    verdict(text, &h, got, want, &err, say);
    schema_steps(text);
}

#define HOSTILE_4 "{\"anyOf\":[{\"minLength\":1},{\"minItems\":2},{\"minLength\":3},{\"minItems\":4}]}"
#define HOSTILE_64_LEAVES "\"minLength\":0,\"allOf\":[" HOSTILE_4 "," HOSTILE_4 "," HOSTILE_4 "]"

static void schemas_meet_limits(void)
{
    static const char steps[] = "compile_steps: 5000000";
    schema(repeated("", "{\"items\":", 10000, ""), PN_E_FORMAT, "at most 128");
    schema(repeated("", "{\"items\":", 100000, ""), PN_E_FORMAT, "at most 128");
    schema(repeated("", "[", 100000, ""), PN_E_FORMAT, "at most 128");
    schema(repeated("{\"description\":\"", "0123456789abcdef", 1 << 17, "\"}"), PN_E_INVALID, "1048576");
    schema(repeated("{\"enum\":[0", ",%d", 149999, "]}"), PN_E_INVALID, "20000 enum values");
    schema(repeated("{\"enum\":[0", ",0", 510000, "]}"), PN_E_FORMAT, "400000 values");
    schema("{\"$ref\":\"#\"}", PN_E_INVALID, "$ref");
    schema("{\"allOf\":[{\"$ref\":\"#/anyOf/0\"}],\"anyOf\":[{\"$ref\":\"#\"}]}", PN_E_INVALID, "refers to itself");
    schema(repeated("{\"$ref\":\"#/$defs/a0\",\"$defs\":{", "\"a%d\":{\"anyOf\":[{\"$ref\":\"#/$defs/a%d\"},{\"$ref\":\"#/$defs/a%d\"}]},", 60,
                    "\"a60\":{}}}"), PN_E_INVALID, "256 branches");
    schema(repeated("{\"$ref\":\"#/$defs/a0\",\"$defs\":{", "\"a%d\":{\"allOf\":[{\"$ref\":\"#/$defs/a%d\"},{\"$ref\":\"#/$defs/a%d\"}]},", 60,
                    "\"a60\":{}}}"), PN_OK, "");
    schema(repeated("{\"$ref\":\"#/$defs/a0\",\"$defs\":{", "\"a%d\":{\"$ref\":\"#/$defs/a%d\"},", 3000, "\"a3000\":{}}}"), PN_E_INVALID, "64");
    schema(repeated("{\"properties\":{\"", "kkkkkkkkkkkkkkkk", 60000, "\":{}},\"additionalProperties\":true}"), PN_E_INVALID, "compile_steps: 5000000");
    schema(repeated("{\"properties\":{\"", "kkkkkkkkkkkkkkkk", 3200, "\":{}},\"additionalProperties\":true}"), PN_E_INVALID, "dfa_states: 50000");
    schema(repeated("{\"enum\":[0", ",{\"a\":%d,\"b\":[%d]}", 15999, "]}"), PN_E_INVALID, "");
    schema("{\"const\":\"\\ud800\"}", PN_E_FORMAT, "surrogates");
    schema("{\"const\":\"\\udc00\\ud800\"}", PN_E_FORMAT, "surrogates");
    schema("{\"properties\":{\"\xFF\":{}}}", PN_E_FORMAT, "");
    schema("{\"type\":\"string\",\"pattern\":\"^\\\\uD800$\"}", PN_E_INVALID, "no value");
    schema("{\"type\":\"integer\",\"minimum\":1e999999999999}", PN_E_UNSUPPORTED, "/minimum");
    schema("{\"type\":\"array\",\"minItems\":4294967296}", PN_E_INVALID, "");
    /* each of these took longer than its steps said, before they were charged */
    schema(repeated("{\"allOf\":[{\"enum\":[0", ",%d", 9000, "]},{\"enum\":[-1,-2,-3]}]}"), PN_E_INVALID, "no value");
    schema(repeated("{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[0", ",{\"a\":{\"b\":%d}}", 3000, "]}}"), PN_E_INVALID, steps);
    schema(repeated("{\"allOf\":[{}", ",{\"properties\":{\"k%d\":{\"type\":\"null\"}},\"required\":[\"k%d\"]}", 4000, "]}"), PN_E_INVALID, steps);
    schema(repeated("{\"oneOf\":[{\"type\":\"null\"}", ",{\"type\":\"string\",\"pattern\":\"^a{%d}$\"}", 250, "]}"), PN_E_INVALID, steps);
    schema(repeated("{\"properties\":{\"\":{}", ",\"k%d\":{\"type\":\"string\",\"pattern\":\"^[a-z]{%d}x*$\"}", 390, "}}"), PN_OK, "");
    schema(repeated("{\"patternProperties\":{\"^0\":{}", ",\"^a%d\\\\p{L}\":{}", 60, "}}"), PN_E_INVALID, steps);
    schema(repeated("{\"enum\":[\"\"", ",\"a%d\"", 19000, "],\"pattern\":\"^a[0-9]+$\"}"), PN_E_INVALID, steps);
    schema(repeated("{\"anyOf\":[{\"$ref\":\"#/$defs/", "%%61", 100000, "\"},{\"$ref\":\"#/$defs/b\"}],\"$defs\":{\"b\":{}}}"), PN_E_INVALID, "leads nowhere");
    schema(repeated("{\"required\":[\"\"", ",\"k\"", 90000, "]," HOSTILE_64_LEAVES "}"), PN_E_INVALID, steps);
    schema(repeated("{", "\"k%d\":0,", 60000, HOSTILE_64_LEAVES "}"), PN_E_INVALID, steps);
}

/* Large is not hostile. */
static void ordinary_schemas_are_not_refused(void)
{
    schema(repeated("{\"properties\":{\"id\":{}", ",\"mail_%d\":{\"type\":\"string\",\"format\":\"email\",\"maxLength\":255},"
                    "\"host_%d\":{\"type\":\"string\",\"format\":\"hostname\",\"maxLength\":63}", 20, "}}"), PN_OK, "");
    schema(repeated("{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\"}",
                    ",\"name_%d\":{\"type\":\"string\",\"maxLength\":200},\"count_%d\":{\"type\":\"integer\",\"minimum\":0},"
                    "\"when_%d\":{\"type\":\"string\",\"format\":\"date-time\"}", 330, "},\"required\":[\"id\"],\"minProperties\":0}"),
           PN_E_INVALID, "optional properties in a row");
    schema(repeated("{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\"}",
                    ",\"name_%d\":{\"type\":\"string\",\"maxLength\":200},\"count_%d\":{\"type\":\"integer\",\"minimum\":0},"
                    "\"when_%d\":{\"type\":[\"string\",\"null\"],\"format\":\"date-time\"}", 130, "},\"required\":[\"id\"]}"), PN_OK, "");
    schema(repeated("{\"$ref\":\"#/$defs/t0\",\"$defs\":{",
                    "\"t%d\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"pattern\":\"^[a-z]{1,40}$\"},"
                    "\"kind\":{\"enum\":[\"a\",\"b\",\"c\"]},\"at\":{\"type\":\"string\",\"format\":\"uuid\"},\"next\":{\"anyOf\":["
                    "{\"$ref\":\"#/$defs/t%d\"},{\"type\":\"null\"}]},\"all\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t%d\"}}},"
                    "\"required\":[\"name\",\"kind\",\"next\"],\"additionalProperties\":false},", 250, "\"t250\":{\"type\":\"boolean\"}}}"), PN_OK, "");
    schema(repeated("{\"anyOf\":[{\"type\":\"null\"}", ",{\"type\":\"object\",\"properties\":{\"type\":{\"const\":\"event_%d\"},\"id\":{\"type\":"
                    "\"integer\"},\"text\":{\"type\":\"string\"},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},\"required\":[\"type\","
                    "\"id\"],\"additionalProperties\":false}", 200, "]}"), PN_OK, "");
    schema(repeated("{\"enum\":[\"x\"", ",\"country-%d\"", 5000, "]}"), PN_OK, "");
}

/* --- JSON ------------------------------------------------------------------------------------------ */

static void json(const char *text, const char *say)
{
    hostile_mem h = hostile_mem_new();
    pn_json_doc d;
    pn_err err = {PN_OK, ""};
    const pn_status got = pn_json_parse(&d, &h.mem, PN_ACCT_MISC, text, strlen(text), NULL, &err);
    if (got == PN_OK)
        pn_json_fini(&d);
    verdict(text, &h, got, say ? PN_E_FORMAT : PN_OK, &err, say ? say : "");
}

static void json_is_bounded(void)
{
    json(repeated("", "[", 100000, ""), "at most 128");
    json(repeated("", "{\"a\":", 100000, ""), "at most 128");
    json("\"\\ud800\"", "surrogates");
    json("\"\\ud800\\u0041\"", "surrogates");
    json("\"\\udfff\"", "surrogates");
    json("\"\xED\xA0\x80\"", "UTF-8");
    json("\"\xC0\x80\"", "UTF-8");
    json("\"\xF4\x90\x80\x80\"", "UTF-8");
    json("\"\xE2\x82", "UTF-8");
    json(repeated("1", "0", 1000000, ""), NULL);
    json(repeated("[0", ",{\"k\":%d}", 60000, "]"), NULL);
}

/* --- templates ------------------------------------------------------------------------------------- */

static void template(const char *text, pn_status want, const char *say)
{
    hostile_mem h = hostile_mem_new();
    pn_tpl *t = NULL;
    pn_json_doc d;
    pn_prompt out;
    pn_err err = {PN_OK, ""};
    pn_prompt_init(&out, &h.mem);
    PN_CHECK(pn_json_parse(&d, &h.mem, PN_ACCT_MISC, "{}", 2, NULL, &err) == PN_OK);
    pn_status got = pn_tpl_new(&t, &h.mem, text, strlen(text), &err);
    if (got == PN_OK)
        got = pn_tpl_render(t, &h.mem, &d, NULL, &out, &err);
    pn_tpl_free(t);
    pn_prompt_fini(&out);
    pn_json_fini(&d);
    verdict(text, &h, got, want, &err, say);
}

static void templates_stop(void)
{
    template("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", PN_E_INVALID, "limit reached");
    template("{% set l = [1] %}{% for x in l %}{% set _ = l.append(1) %}{% endfor %}", PN_E_INVALID, "limit reached");
    template("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", PN_E_INVALID, "limit reached: macros");
    template("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", PN_E_INVALID, "limit reached: macros");
    template("{% set l = [] %}{% set _ = l.append(l) %}{{ l|tojson }}", PN_E_INVALID, "nested deeper");
    template("{{ 'aaaaaaaaaaaaaaaa' * 9223372036854775807 }}", PN_E_INVALID, "limit reached");
    template("{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", PN_E_INVALID, "bytes of memory");
    static char nest[120010];
    for (const char *pair = "()[]{}"; *pair; pair += 2) {
        memcpy(nest, "{{ ", 3);
        memset(nest + 3, pair[0], 60000);
        memset(nest + 60003, pair[1], 60000);
        memcpy(nest + 120003, " }}", 4);
        template(nest, PN_E_FORMAT, *pair == '{' ? "" : "at most 256");
    }
    template(repeated("{{ ", "not ", 60000, "x }}"), PN_E_FORMAT, "at most 256");
    template(repeated("{{ 1", "|abs", 60000, " }}"), PN_E_FORMAT, "at most 256");
    template(repeated("", "{%% if x %%}", 60000, ""), PN_E_FORMAT, "at most 256");
    template(repeated("{{ x", ".a", 60000, " }}"), PN_E_FORMAT, "at most 256");
    template(repeated("{{ x", "[0]", 60000, " }}"), PN_E_FORMAT, "at most 256");
    template("{{ '\xED\xA0\x80' }}\xFF", PN_OK, "");
}

/* --- on a small stack -------------------------------------------------------------------------------- */

static void *everything(void *unused)
{
    (void)unused;
    grammars_meet_limits();
    one_purse_pays_for_all();
    patterns_meet_limits();
    schemas_meet_limits();
    ordinary_schemas_are_not_refused();
    json_is_bounded();
    templates_stop();
    repeated(NULL, NULL, 0, NULL);
    return NULL;
}

int main(void)
{
    pthread_attr_t attr;
    pthread_t thread;
    PN_CHECK(pthread_attr_init(&attr) == 0);
    PN_CHECK(pthread_attr_setstacksize(&attr, (size_t)HOSTILE_STACK * HOSTILE_STACK_FACTOR) == 0);
    if (PN_CHECK(pthread_create(&thread, &attr, everything, NULL) == 0))
        pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    return pn_test_end();
}
