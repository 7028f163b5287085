/* SPDX-License-Identifier: AGPL-3.0-only */
/* Templates render what Jinja2 renders, know whose text is whose, and cannot run away. */
#include "pn_test.h"

#include "base/pn_json.h"
#include "text/pn_template.h"

static pn_test_mem mem;
static const pn_tpl_limits pinned = {0, 0, 0, 0, 0, 1735787045};      /* 2025-01-02 03:04:05 UTC */

static pn_status render_with(const char *tmpl, size_t len, const char *vars, size_t vars_len, const pn_tpl_limits *limits,
                             pn_prompt *out, pn_err *err)
{
    pn_tpl *t = NULL;
    pn_json_doc d;
    pn_status st = pn_json_parse(&d, &mem.mem, PN_ACCT_MISC, vars, vars_len, NULL, err);
    if (st)
        return st;
    st = pn_tpl_new(&t, &mem.mem, tmpl, len, err);
    if (!st)
        st = pn_tpl_render(t, &mem.mem, &d, limits, out, err);
    pn_tpl_free(t);
    pn_json_fini(&d);
    return st;
}

static void gives(const char *tmpl, const char *vars, const char *want)
{
    pn_prompt p;
    pn_err err = {0};
    pn_prompt_init(&p, &mem.mem);
    pn_status st = render_with(tmpl, strlen(tmpl), vars, strlen(vars), &pinned, &p, &err);
    if (PN_CHECK(st == PN_OK, "%.200s: %s", tmpl, err.text))
        PN_CHECK(p.text.len == strlen(want) && memcmp(pn_str_cstr(&p.text), want, p.text.len) == 0, "%s gives \"%s\", not \"%s\"",
                 tmpl, pn_str_cstr(&p.text), want);
    pn_prompt_fini(&p);
}

/* The prompt with untrusted text between two marks: U+00AB and U+00BB. */
static void marks(const char *tmpl, const char *vars, const char *want)
{
    pn_prompt p;
    pn_err err = {0};
    pn_str s;
    pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
    pn_prompt_init(&p, &mem.mem);
    pn_status st = render_with(tmpl, strlen(tmpl), vars, strlen(vars), &pinned, &p, &err);
    if (PN_CHECK(st == PN_OK, "%.200s: %s", tmpl, err.text)) {
        size_t at = 0;
        for (size_t i = 0; i <= p.n_spans; i++) {
            size_t begin = i < p.n_spans ? p.spans[i].begin : p.text.len, end = i < p.n_spans ? p.spans[i].end : begin;
            if (begin > at) {
                pn_str_addz(&s, "\xC2\xAB");
                pn_str_add(&s, p.text.data + at, begin - at);
                pn_str_addz(&s, "\xC2\xBB");
            }
            pn_str_add(&s, pn_str_cstr(&p.text) + begin, end - begin);
            at = end;
        }
        PN_CHECK(strcmp(pn_str_cstr(&s), want) == 0, "%s gives \"%s\", not \"%s\"", tmpl, pn_str_cstr(&s), want);
    }
    pn_prompt_fini(&p);
    pn_str_fini(&s);
}

static void fails(const char *tmpl, const char *vars, const pn_tpl_limits *limits, pn_status want, const char *say)
{
    pn_prompt p;
    pn_err err = {0};
    pn_prompt_init(&p, &mem.mem);
    pn_status st = render_with(tmpl, strlen(tmpl), vars, strlen(vars), limits, &p, &err);
    PN_CHECK(st == want, "%.200s: status %d, expected %d (%s)", tmpl, (int)st, (int)want, err.text);
    PN_CHECK(strstr(err.text, say) != NULL, "%.200s: \"%s\" does not say \"%s\"", tmpl, err.text, say);
    PN_CHECK(p.text.len == 0 && p.n_spans == 0, "%.200s: text after a failure", tmpl);
    pn_prompt_fini(&p);
}

static void test_vectors(void)
{
    size_t len = 0;
    char *text = pn_test_read_file("tests/vectors/jinja/vectors.json", &len);
    pn_json_doc d;
    pn_err err = {0};
    int n = 0;
    if (!PN_CHECK(text != NULL, "tests/vectors/jinja/vectors.json cannot be read"))
        return;
    PN_CHECK(pn_json_parse(&d, &mem.mem, PN_ACCT_MISC, text, len, NULL, &err) == PN_OK, "%s", err.text);
    uint32_t cases = pn_json_get(&d, PN_JSON_ROOT, "cases");
    for (uint32_t c = pn_json_first(&d, cases); c != PN_JSON_NONE; c = pn_json_next(&d, c), n++) {
        pn_bytes t = {"", 0}, want = {"", 0};
        pn_str vars;
        pn_prompt p;
        pn_str_init(&vars, &mem.mem, PN_ACCT_MISC);
        pn_prompt_init(&p, &mem.mem);
        pn_json_str(&d, pn_json_get(&d, c, "t"), &t);
        pn_json_write_node(&vars, &d, pn_json_get(&d, c, "c"));
        pn_status st = render_with(t.data, t.len, vars.data, vars.len, &pinned, &p, &err);
        if (pn_json_str(&d, pn_json_get(&d, c, "out"), &want)) {
            PN_CHECK(st == PN_OK, "case %d: %s: %s", n, t.data, err.text);
            PN_CHECK(p.text.len == want.len && memcmp(pn_str_cstr(&p.text), want.data, want.len) == 0,
                     "case %d: %s\n gives %s\n not   %s", n, t.data, pn_str_cstr(&p.text), want.data);
        } else {
            PN_CHECK(st == PN_E_INVALID || st == PN_E_FORMAT, "case %d: %s must fail", n, t.data);
        }
        pn_prompt_fini(&p);
        pn_str_fini(&vars);
    }
    PN_CHECK(n >= 112);
    pn_json_fini(&d);
    free(text);
}

static void test_what_templates_in_the_field_use(void)
{
    gives("{% for i in range(3) %}{{ loop.previtem }}<{{ loop.nextitem }} {% endfor %}", "{}", "<1 0<2 1< ");
    gives("{{ messages[-1].content.split('</think>')[-1].lstrip('\\n') }}", "{\"messages\":[{\"content\":\"a</think>\\n\\nb\"}]}", "b");
    gives("{% set ns = namespace(i=0) %}{% for m in messages[::-1] %}{% set ns.i = ns.i * 10 + m %}{% endfor %}{{ ns.i }}",
          "{\"messages\":[1,2,3]}", "321");
    gives("{% macro t(x, d=0) %}{% if x is mapping %}{ {%- for k, v in x|items %}{{ k }}:{{ t(v, d + 1) }}{% endfor %} }"
          "{%- else %}{{ x }}@{{ d }}{% endif %}{% endmacro %}{{ t(v) }}", "{\"v\":{\"a\":{\"b\":1}}}", "{a:{b:1@2 } }");
    gives("{% for m in l if m.role != 'x' %}{{ loop.index }}{{ m.role }}{% if loop.last %}.{% endif %}{% endfor %}",
          "{\"l\":[{\"role\":\"x\"},{\"role\":\"a\"},{\"role\":\"b\"}]}", "1a2b.");
    gives("{{ tools | selectattr('type', 'equalto', 'x') | list | length }}", "{\"tools\":null}", "0");
    gives("{% set l = [] %}{% for i in [1,2] %}{{ l.append(i) or '' }}{% endfor %}{{ l.pop() }}{{ l }}", "{}", "2[1]");
    gives("{{ {'b':2,'a':1}|dictsort|tojson }}{{ {'b':2,'a':1}|tojson(sort_keys=true, indent=1) }}", "{}",
          "[[\"a\", 1], [\"b\", 2]]{\n \"a\": 1,\n \"b\": 2\n}");
    gives("{% macro m(a) %}[{{ caller(a) }}]{% endmacro %}{% call(x) m('a') %}<{{ x }}>{% endcall %}", "{}", "[<a>]");
    gives("{% set x = 0 %}{% for i in [1, 2] %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "{}", "01020");
    gives("{{ '<' + '<'|safe }}{{ '<'|e + '<'|safe + '>' }}{{ '<'|safe ~ '<' }}", "{}", "&lt;<&lt;<&gt;<<");
    gives("{%- set t %}a{{ 1 }}{% endset -%}{{ t }}{% generation %}{{ t }}{% endgeneration %}", "{}", "a1a1");
}

static void test_numbers_print_as_python_prints_them(void)
{
    gives("{{ v|tojson }}", "{\"v\":[1.0,1e2,1e16,1e15,0.30000000000000004,123456789012345678901234567890,-0.0,5e-324]}",
          "[1.0, 100.0, 1e+16, 1000000000000000.0, 0.30000000000000004, 123456789012345678901234567890, -0.0, 5e-324]");
    gives("{{ 2**-1 }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 2**62 }} {{ 1.5|round|int }} {{ 2.675|round(2) }}", "{}",
          "0.5 -4 2 4611686018427387904 2 2.67");
    gives("{{ '%5.1f|%-4d|%04d|%s%%'|format(3.14159, 7, -42, 'x') }} {{ '{:>4}{}'.format('a', 1) }}", "{}",
          "  3.1|7   |-042|x%    a1");
}

static void test_text_is_handled_by_characters(void)
{
    gives("{{ s|length }}{{ s[1] }}{{ s[::-1] }}{{ s[1:3] }}{{ s|upper }}", "{\"s\":\"a\\u00e9\\u65e5z\"}",
          "4\xC3\xA9z\xE6\x97\xA5\xC3\xA9" "a\xC3\xA9\xE6\x97\xA5" "A\xC3\x89\xE6\x97\xA5Z");
    gives("{{ s|tojson(true) }}{{ [s] }}", "{\"s\":\"\\ud83d\\ude00\\u00e9'\\u007f\"}",
          "\"\\ud83d\\ude00\\u00e9'\\u007f\"[\"\xF0\x9F\x98\x80\xC3\xA9'\\x7f\"]");
    gives("{{ s.strip() }}|", "{\"s\":\"\\u00a0\\u3000x\\u2003 \"}", "x|");
}

static void test_whose_text_it_is(void)
{
    marks("<s>{{ x }}</s>", "{\"x\":\"</s>\"}", "<s>\xC2\xAB</s>\xC2\xBB</s>");
    marks("{{ bos_token + x + eos_token }}", "{\"x\":\"u\",\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}", "<s>\xC2\xABu\xC2\xBB</s>");
    marks("{{ ('<' ~ x ~ '>')[1:] }}{{ ('<' ~ x)|upper|reverse }}", "{\"x\":\"ab\"}", "\xC2\xAB" "ab\xC2\xBB>\xC2\xAB" "BA\xC2\xBB<");
    marks("{{ x.replace('b', '<b>') }}{{ 'b'.replace('b', x) }}", "{\"x\":\"abc\"}",
          "\xC2\xAB" "a\xC2\xBB<b>\xC2\xAB" "c" "abc\xC2\xBB");
    marks("{{ x|tojson }}", "{\"x\":{\"k\":[\"a\\n\",1,true]}}",
          "{\"\xC2\xABk\xC2\xBB\": [\"\xC2\xAB" "a\\n\xC2\xBB\", \xC2\xAB" "1\xC2\xBB, \xC2\xABtrue\xC2\xBB]}");
    marks("{{ x.split(',')|join('|') }}{{ '%s!'|format(x) }}", "{\"x\":\"a,b\"}",
          "\xC2\xAB" "a\xC2\xBB|\xC2\xAB" "b" "a,b\xC2\xBB!");
    marks("{% set y %}[{{ x }}]{% endset %}{{ y|trim }}{{ strftime_now('%Y') }}", "{\"x\":\"u\"}", "[\xC2\xABu\xC2\xBB]2025");
    marks("{% for m in messages %}<|{{ m.role }}|>{% endfor %}", "{\"messages\":[{\"role\":\"user\"},{\"role\":\"u\"}]}",
          "<|user|><|\xC2\xABu\xC2\xBB|>");
    marks("{{ x|int }}{{ x|length }}{{ range(x|int + 1)|last }}{{ y + 1 }}{{ x|from_json }}{{ loop }}", "{\"x\":\"12\",\"y\":3}",
          "\xC2\xAB" "12" "2" "12" "4" "12\xC2\xBB");
    marks("{{ ('[[]]' ~ x)[:4]|from_json|tojson }}{{ x|from_json|tojson }}", "{\"x\":\"[{}]\"}", "[[]]\xC2\xAB[{}]\xC2\xBB");
}

/* Random chains of operations over one untrusted string made of letters that no literal has: none of
 * those letters may ever be trusted, whatever happens to them. */
static void test_untrusted_text_stays_untrusted(void)
{
    static const char *const ops[] = {
        "x ~ 'LIT'", "'LIT' + x|string", "x|upper|lower", "x|string|replace('LIT', 'TIL')", "x[1:] ~ x[:1]", "x[::-1]",
        "x|trim('LIT')", "[x, 'LIT', x]|join('-')", "x.split('LIT')|join('LIT')", "x|list|join", "x|tojson", "[x]|string",
        "{'k': x}|tojson(indent=2)", "x|tojson|from_json", "'%s|%5s|%r'|format(x, x, x)", "'{}{:<9}'.format(x, x)", "x|title|lower",
        "x|capitalize|lower", "x|escape", "x|indent(2, true)", "x|truncate(20)", "x|urlencode", "x|striptags", "x.rsplit('LIT', 1)[0]",
        "x.partition('LIT')|join", "x.splitlines()|join('LIT')", "x * 2", "x|reverse", "x|first ~ x|last", "x.zfill(20)", "x.center(30)",
        "dict(a=x).values()|list|join", "[x]|map('upper')|map('lower')|join", "[{'a': x}]|map(attribute='a')|join", "namespace(v=x).v",
        "(x ~ 'LIT')|sort|join", "x.removeprefix('LIT')", "x.strip('LIT')", "[x, x]|unique|first", "x|default('LIT')", "x or 'LIT'",
        "(x if x else 'LIT')", "x|safe", "x|e", "[[x]]|first|last", "'LIT'.join([x, x])", "'LIT'.replace('I', x)", "x|batch(2)|list|tojson",
        "x|groupby(0)|list|string", "{x: x}|string", "{x: 1}|dictsort|tojson", "x|center(40)", "'a%sb' % x"};
    static const char vars[] = "{\"x\":\"zqj zwq jjqz\"}";
    uint64_t seed = 7;
    char tmpl[4096];
    for (int round = 0; round < 400; round++) {
        size_t at = 0;
        int steps = 1 + (int)(pn_test_rand(&seed) % 5);
        for (int i = 0; i < steps; i++)
            at += (size_t)snprintf(tmpl + at, sizeof tmpl - at, "{%% set x = (%s)|string %%}", ops[pn_test_rand(&seed) % PN_COUNT_OF(ops)]);
        snprintf(tmpl + at, sizeof tmpl - at, "[{{ x }}]{{ x|tojson }}{%% filter upper %%}{{ x }}{%% endfilter %%}");
        pn_prompt p;
        pn_err err = {0};
        pn_prompt_init(&p, &mem.mem);
        pn_status st = render_with(tmpl, strlen(tmpl), vars, sizeof vars - 1, NULL, &p, &err);
        bool leak = false;
        for (size_t i = 0; i < p.n_spans; i++)
            for (size_t k = p.spans[i].begin; k < p.spans[i].end; k++)
                leak = leak || strchr("zqjwZQJW", p.text.data[k]) != NULL;
        PN_CHECK(st == PN_OK || st == PN_E_INVALID, "%.200s: %s", tmpl, err.text);
        PN_CHECK(!leak, "%s trusts \"%s\"", tmpl, pn_str_cstr(&p.text));
        pn_prompt_fini(&p);
    }
}

static void test_errors_say_where_and_what(void)
{
    fails("a\n{% if x %}", "{}", NULL, PN_E_FORMAT, "end of the template");
    fails("a\n  {{ x|nosuch }}", "{}", NULL, PN_E_FORMAT, "line 2, column 8: expected a filter, found the unknown name \"nosuch\"");
    fails("{{ x is nosuch }}", "{}", NULL, PN_E_FORMAT, "unknown name \"nosuch\"");
    fails("{{ 'a }}", "{}", NULL, PN_E_FORMAT, "a string without its end");
    fails("{% break %}", "{}", NULL, PN_E_FORMAT, "break outside of a loop");
    fails("{{ }}", "{}", NULL, PN_E_FORMAT, "expected an expression");
    fails("{# a", "{}", NULL, PN_E_FORMAT, "a comment without its end");
    fails("\n\n{{ raise_exception('Only user and ' ~ r) }}", "{\"r\":\"x\"}", NULL, PN_E_INVALID, "Only user and x");
    fails("\n\n{{ a.b.c }}", "{\"a\":{}}", NULL, PN_E_INVALID, "template line 3: 'b' is undefined");
    fails("{{ 'a' + 1 }}", "{}", NULL, PN_E_INVALID, "can only concatenate str (not \"int\") to str");
    fails("{{ 1 // 0 }}", "{}", NULL, PN_E_INVALID, "division by zero");
    fails("{{ nope() }}", "{}", NULL, PN_E_INVALID, "'nope' is undefined");
    fails("x", "[]", NULL, PN_E_INVALID, "expected an object of template variables, found array");
}

/* Every level of an unfinished nest looks at the next token on its way out; there is none after the last. */
static void test_unfinished_blocks_stay_inside_the_template(void)
{
    static char nest[64 * 16];
    for (size_t n = 1; n < 64; n++) {
        for (size_t i = 0; i < n; i++)
            memcpy(nest + i * 16, i % 3 == 2 ? "{% for x in y %}" : "{% if a_b_c_d %}", 16);
        nest[n * 16] = 0;
        fails(nest, "{}", NULL, PN_E_FORMAT, "end of the template");
    }
}

static void test_hostile_templates_are_stopped(void)
{
    pn_tpl_limits small = {0, 0, 0, 1000, 0, 0}, loops = {0, 100, 0, 0, 0, 0}, steps = {1000, 0, 0, 0, 0, 0}, room = {0, 0, 0, 0, 1 << 16, 0};
    static char deep[200000];
    fails("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "{}", NULL, PN_E_INVALID, "limit reached");
    fails("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{}", NULL, PN_E_INVALID, "limit reached: macros");
    fails("{{ range(100001) }}", "{}", NULL, PN_E_INVALID, "limit reached: range");
    fails("{{ 'a' * 2000 }}", "{}", &small, PN_E_INVALID, "limit reached: more than 1000 bytes of output");
    fails("{{ 'aaaaaaaaaaaaaaaa' * 9223372036854775807 }}", "{}", NULL, PN_E_INVALID, "limit reached");
    fails("{% for i in range(101) %}{% endfor %}", "{}", &loops, PN_E_INVALID, "more than 100 rounds");
    fails("{% for i in range(2000) %}{% endfor %}", "{}", &steps, PN_E_INVALID, "more than 1000 steps");
    fails("{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "{}", &room, PN_E_INVALID,
          "bytes of memory");
    fails("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", "{}", NULL, PN_E_INVALID, "values nested deeper");
    fails("{% set l = [] %}{% set _ = l.append(l) %}{{ l == [l] or l|tojson }}", "{}", NULL, PN_E_INVALID, "nested deeper");
    fails("{% set ns = namespace(x=[]) %}{% for i in range(900) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}", "{}", NULL, PN_E_INVALID,
          "nested deeper");
    fails("{% set l = [1] %}{% for x in l %}{% set _ = l.append(1) %}{% endfor %}", "{}", NULL, PN_E_INVALID, "limit reached");
    fails("{{ [[1]]|map('map', 'map')|list }}{{ 'x'|format(1) }}", "{}", NULL, PN_E_INVALID, "");
    fails("{% set s = 'ab' * 100000 %}{% for i in range(999) %}{% set t = s|lower|title|upper|replace('A', 'b') %}{% endfor %}", "{}", NULL,
          PN_E_INVALID, "steps");
    fails("{% for i in range(900) %}{% for j in range(900) %}{% set x = i * j - (i + j) * 3 %}{% endfor %}{% endfor %}", "{}", NULL,
          PN_E_INVALID, "steps");
    memcpy(deep, "{{ ", 3);
    memset(deep + 3, '(', 50000);
    memset(deep + 50003, ')', 50000);
    memcpy(deep + 100003, "}}", 3);
    fails(deep, "{}", NULL, PN_E_FORMAT, "expected at most 256");
    memset(deep + 3, '-', 99990);
    memset(deep + 99993, ' ', 10);
    fails(deep, "{}", NULL, PN_E_FORMAT, "expected at most 256");
    for (size_t i = 0; i < 10000; i++)
        memcpy(deep + 3 + i * 10, "not   not ", 10);
    fails(deep, "{}", NULL, PN_E_FORMAT, "expected at most 256");
    for (size_t i = 0; i < 10000; i++)
        memcpy(deep + i * 10, "{%if a  %}", 10);
    deep[100000] = 0;
    fails(deep, "{}", NULL, PN_E_FORMAT, "expected at most 256");
    memcpy(deep, "{{ 1", 4);
    for (size_t i = 0; i < 10000; i++)
        memcpy(deep + 4 + i * 2, "+1", 2);
    memcpy(deep + 20004, "}}", 3);
    fails(deep, "{}", NULL, PN_E_FORMAT, "expected at most 256");
}

static void test_every_allocation_may_fail(void)
{
    static const char tmpl[] =
        "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{% endmacro %}{% for x in l %}{{ loop.index ~ x|upper }}{% set y %}{{ x }}{% endset %}"
        "{{ y|replace('a', 'b')|tojson }}{% endfor %}{{ m(1, 2, 3) }}{{ l|map('upper')|join(',') }}{{ '{\"a\":[1]}'|from_json|tojson(indent=2) }}"
        "{{ {'a': 1, 'b': [1, 2.5, none]} }}{{ l|sort|unique|list }}{{ 'a b c'.split() }}{{ '%s'|format(1) }}{{ big * 4000 }}";
    static const char vars[] = "{\"l\":[\"a\",\"b\",\"c\",\"d\",\"e\"],\"big\":\"0123456789abcdef\",\"messages\":[{\"role\":\"user\"}]}";
    for (long k = 1; k < 1000; k++) {
        pn_prompt p;
        pn_err err = {0};
        pn_test_mem_init(&mem, k);
        pn_prompt_init(&p, &mem.mem);
        pn_status st = render_with(tmpl, sizeof tmpl - 1, vars, sizeof vars - 1, &pinned, &p, &err);
        pn_prompt_fini(&p);
        PN_CHECK(mem.outstanding == 0, "allocation %ld failing leaks %ld blocks", k, mem.outstanding);
        if (st == PN_OK) {
            PN_CHECK(k > 10 && mem.n_calls < k);
            break;
        }
        PN_CHECK(st == PN_E_NOMEM, "allocation %ld failing gives %d: %s", k, (int)st, err.text);
    }
    pn_test_mem_init(&mem, 0);
}

int main(void)
{
    pn_test_mem_init(&mem, 0);
    test_vectors();
    test_what_templates_in_the_field_use();
    test_numbers_print_as_python_prints_them();
    test_text_is_handled_by_characters();
    test_whose_text_it_is();
    test_untrusted_text_stays_untrusted();
    test_errors_say_where_and_what();
    test_unfinished_blocks_stay_inside_the_template();
    test_hostile_templates_are_stopped();
    PN_CHECK(mem.outstanding == 0, "%ld blocks leaked", mem.outstanding);
    test_every_allocation_may_fail();
    return pn_test_end();
}
