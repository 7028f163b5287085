/* SPDX-License-Identifier: AGPL-3.0-only */
/* The JSON reader refuses what is not JSON and keeps what is; the writer writes what it reads. */
#include "pn_test.h"

#include "base/pn_json.h"

#include <locale.h>

static pn_test_mem mem;

static pn_status parse_n(pn_json_doc *d, const char *text, size_t n, const pn_json_params *p, pn_err *err)
{
    return pn_json_parse(d, &mem.mem, PN_ACCT_MISC, text, n, p, err);
}

static pn_status parse(pn_json_doc *d, const char *text, pn_err *err)
{
    return parse_n(d, text, strlen(text), NULL, err);
}

/* Parse, write again, compare. */
static void again(const char *text, const char *want)
{
    pn_json_doc d;
    pn_err err = {0};
    pn_str s;
    pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
    if (PN_CHECK(parse(&d, text, &err) == PN_OK, "%s: %s", text, err.text)) {
        pn_json_write_node(&s, &d, PN_JSON_ROOT);
        PN_CHECK(strcmp(pn_str_cstr(&s), want) == 0, "%s gives %s", text, pn_str_cstr(&s));
    }
    pn_json_fini(&d);
    pn_str_fini(&s);
}

static void refuse_n(const char *text, size_t n, const pn_json_params *p, const char *say)
{
    pn_json_doc d;
    pn_err err = {0};
    pn_status st = parse_n(&d, text, n, p, &err);
    PN_CHECK(st == PN_E_FORMAT, "%s was read", text);
    PN_CHECK(strstr(err.text, say), "%s: \"%s\" does not say \"%s\"", text, err.text, say);
    PN_CHECK(d.nodes == NULL && d.text == NULL && d.index == NULL, "%s: not empty after failure", text);
    pn_json_fini(&d);
}

static void refuse(const char *text, const char *say) { refuse_n(text, strlen(text), NULL, say); }

static void test_values_are_kept(void)
{
    again("null", "null");
    again(" true ", "true");
    again("[false]", "[false]");
    again("0", "0");
    again("-0.0e+10", "-0.0e+10");
    again("123456789012345678901234567890", "123456789012345678901234567890");
    again("\"\"", "\"\"");
    again("{}", "{}");
    again("[ ]", "[]");
    again("[[],{},[[]]]", "[[],{},[[]]]");
    again("{\"b\":1,\"a\":[1, 2.50 ,{\"c\":null}],\"\":\"x\"}\r\n\t ", "{\"b\":1,\"a\":[1,2.50,{\"c\":null}],\"\":\"x\"}");
    again("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0001\\u00e9\\u20AC\"", "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\xC3\xA9\xE2\x82\xAC\"");
    again("\"\\ud83d\\ude00 \\uDBFF\\uDFFF\"", "\"\xF0\x9F\x98\x80 \xF4\x8F\xBF\xBF\"");
    again("\"\x7F\xF0\x9F\x98\x80\"", "\"\x7F\xF0\x9F\x98\x80\"");
    again("\"\\u0000\"", "\"\\u0000\"");
}

static void test_what_is_not_json_is_refused(void)
{
    refuse("", "byte 0: expected a value, found the end");
    refuse("  ", "byte 2");
    refuse("nul", "byte 0: expected a value, found 'n'");
    refuse("True", "a value");
    refuse("NaN", "a value");
    refuse("\xEF\xBB\xBF{}", "found byte 0xEF");
    refuse("1 2", "byte 2: expected the end of the text after the value, found '2'");
    refuse("01", "byte 1");
    refuse("-", "a digit");
    refuse("+1", "a value");
    refuse(".5", "a value");
    refuse("1.", "after the decimal point");
    refuse("1e", "in the exponent");
    refuse("1e+", "in the exponent");
    refuse("0x10", "found 'x'");
    refuse("[1,]", "byte 3: expected a value, found ']'");
    refuse("[1", "',' or ']'");
    refuse("[", "a value");
    refuse("[1}", "found '}'");
    refuse("{", "a quoted key");
    refuse("{\"a\"", "':' after a key");
    refuse("{\"a\":", "a value");
    refuse("{\"a\":1", "',' or '}'");
    refuse("{\"a\":1,}", "a quoted key, found '}'");
    refuse("{a:1}", "a quoted key, found 'a'");
    refuse("{1:1}", "a quoted key");
    refuse("[1 2]", "found '2'");
    refuse("]", "a value");
    refuse("\"abc", "the closing quote");
    refuse("\"a\nb\"", "control characters escaped, found byte 0x0A");
    refuse("\"\\x\"", "after a backslash");
    refuse("\"\\", "after a backslash");
    refuse("\"\\u12g4\"", "hexadecimal");
    refuse("\"\\u12", "hexadecimal");
    refuse("'a'", "a value");
    refuse("[1]//", "the end of the text");
    refuse("\"\x80\"", "byte 1: expected valid UTF-8");
    refuse("\"a\xC3\"", "valid UTF-8");
    refuse("\"\xC0\xAF\"", "valid UTF-8");
    refuse("\"\xED\xA0\x80\"", "valid UTF-8");
    refuse("\"\xF4\x90\x80\x80\"", "valid UTF-8");
    refuse("{\"\xFF\":1}", "valid UTF-8");
    refuse_n("1\0", 2, NULL, "byte 1");
    refuse_n("\"a\0b\"", 5, NULL, "control characters");
}

static void test_lone_surrogates(void)
{
    static const char *const texts[] = {"\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83dx\"", "\"\\ud83d\\n\"", "\"\\ud83d\\u0041\""};
    pn_json_params fix = {.fix_surrogates = true};
    for (size_t i = 0; i < PN_COUNT_OF(texts); i++) {
        pn_json_doc d;
        pn_bytes b;
        refuse(texts[i], "byte 1: expected a pair of surrogates");
        PN_CHECK(parse_n(&d, texts[i], strlen(texts[i]), &fix, NULL) == PN_OK, "%s", texts[i]);
        PN_CHECK(pn_json_str(&d, 0, &b) && b.len >= 3 && memcmp(b.data, "\xEF\xBF\xBD", 3) == 0, "%s", texts[i]);
        pn_json_fini(&d);
    }
    pn_json_doc d;
    pn_bytes b;
    PN_CHECK(parse_n(&d, "\"\\ud83d\\ud83d\\ude00\"", 20, &fix, NULL) == PN_OK, "two heads, one tail");
    PN_CHECK(pn_json_str(&d, 0, &b) && b.len == 7 && memcmp(b.data, "\xEF\xBF\xBD\xF0\x9F\x98\x80", 7) == 0, "kept");
    pn_json_fini(&d);
}

static void test_limits(void)
{
    char deep[400];
    pn_json_doc d;
    memset(deep, '[', 200);
    memset(deep + 200, ']', 200);
    refuse_n(deep, 400, NULL, "byte 128: expected at most 128 arrays and objects");
    PN_CHECK(parse_n(&d, deep + 72, 256, NULL, NULL) == PN_OK, "128 deep");
    pn_json_fini(&d);
    PN_CHECK(parse_n(&d, deep, 400, &(pn_json_params){.max_depth = 200}, NULL) == PN_OK, "200 deep");
    pn_str s;                           /* written without recursion, too */
    pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
    pn_json_write_node(&s, &d, 0);
    PN_CHECK(s.len == 400 && memcmp(s.data, deep, 400) == 0, "written again");
    pn_str_fini(&s);
    pn_json_fini(&d);
    refuse_n("[1,2,3]", 7, &(pn_json_params){.max_bytes = 6}, "at most 6 bytes, found 7");
    refuse_n("[1,2,3]", 7, &(pn_json_params){.max_nodes = 3}, "at most 3 values");
    PN_CHECK(parse_n(&d, "[1,2,3]", 7, &(pn_json_params){.max_nodes = 4, .max_bytes = 7, .max_depth = 1}, NULL) == PN_OK, "fits");
    pn_json_fini(&d);
}

static void test_duplicate_keys(void)
{
    static const char text[] = "{\"a\":1,\"b\":2,\"a\":{\"x\":3},\"c\":4,\"a\":5}";
    pn_json_doc d;
    int64_t v = 0;
    again(text, "{\"b\":2,\"c\":4,\"a\":5}");
    refuse_n(text, sizeof text - 1, &(pn_json_params){.unique_keys = true}, "byte 13: expected each key once, found \"a\" again");
    PN_CHECK(parse(&d, text, NULL) == PN_OK, "last wins");
    PN_CHECK(pn_json_count(&d, 0) == 3, "%u members", (unsigned)pn_json_count(&d, 0));
    PN_CHECK(pn_json_i64(&d, pn_json_get(&d, 0, "a"), &v) && v == 5, "a is %d", (int)v);
    pn_json_fini(&d);
    again("{\"a\":1,\"a\":2}", "{\"a\":2}");
    again("[{\"a\":1},{\"a\":2}]", "[{\"a\":1},{\"a\":2}]");      /* two objects, no duplicate */
}

static void test_looking_around(void)
{
    static const char text[] = "{\"s\":\"x\\u0000y\",\"n\":-7,\"f\":2.5,\"t\":true,\"z\":null,\"l\":[10,20],\"o\":{\"k\":{\"deep\":1}}}";
    pn_json_doc d;
    pn_bytes b;
    int64_t i;
    double f;
    bool t;
    PN_CHECK(parse(&d, text, NULL) == PN_OK, "reads");
    PN_CHECK(pn_json_type_of(&d, 0) == PN_JSON_OBJECT && pn_json_count(&d, 0) == 7, "an object of seven");
    PN_CHECK(pn_json_str(&d, pn_json_get(&d, 0, "s"), &b) && b.len == 3 && memcmp(b.data, "x\0y", 4) == 0, "s");
    PN_CHECK(pn_json_i64(&d, pn_json_get(&d, 0, "n"), &i) && i == -7, "n");
    PN_CHECK(pn_json_f64(&d, pn_json_get(&d, 0, "f"), &f) && f == 2.5, "f");
    PN_CHECK(!pn_json_i64(&d, pn_json_get(&d, 0, "f"), &i), "2.5 is no integer");
    PN_CHECK(pn_json_num(&d, pn_json_get(&d, 0, "f"), &b) && b.len == 3 && strcmp(b.data, "2.5") == 0, "as written");
    PN_CHECK(pn_json_bool(&d, pn_json_get(&d, 0, "t"), &t) && t, "t");
    PN_CHECK(pn_json_type_of(&d, pn_json_get(&d, 0, "z")) == PN_JSON_NULL, "z");
    PN_CHECK(pn_json_get(&d, 0, "absent") == PN_JSON_NONE && pn_json_get(&d, 0, "") == PN_JSON_NONE, "absent");
    PN_CHECK(pn_json_i64(&d, pn_json_get(&d, pn_json_get(&d, pn_json_get(&d, 0, "o"), "k"), "deep"), &i) && i == 1, "deep");
    PN_CHECK(pn_json_get(&d, pn_json_get(&d, pn_json_get(&d, 0, "no"), "k"), "deep") == PN_JSON_NONE, "through absent");
    PN_CHECK(pn_json_get(&d, pn_json_get(&d, 0, "l"), "k") == PN_JSON_NONE, "no member of an array");
    uint32_t l = pn_json_get(&d, 0, "l"), e = pn_json_first(&d, l);
    PN_CHECK(pn_json_i64(&d, e, &i) && i == 10 && pn_json_key_of(&d, e).data == NULL, "first element");
    e = pn_json_next(&d, e);
    PN_CHECK(pn_json_i64(&d, e, &i) && i == 20 && pn_json_next(&d, e) == PN_JSON_NONE, "second and last");
    b = pn_json_key_of(&d, l);
    PN_CHECK(b.len == 1 && b.data[0] == 'l' && b.data[1] == 0, "key of a member");
    uint32_t none = PN_JSON_NONE;
    PN_CHECK(pn_json_type_of(&d, none) == PN_JSON_ABSENT && pn_json_first(&d, none) == none && pn_json_next(&d, none) == none &&
             pn_json_count(&d, none) == 0 && !pn_json_str(&d, none, &b) && !pn_json_f64(&d, none, &f) && !pn_json_bool(&d, none, &t),
             "NONE is harmless");
    PN_CHECK(strcmp(pn_json_type_name(PN_JSON_OBJECT), "object") == 0, "type name");
    pn_json_fini(&d);
    pn_json_fini(&d);
    PN_CHECK(pn_json_type_of(&d, 0) == PN_JSON_ABSENT, "after fini");
}

static void test_integers(void)
{
    static const struct { const char *text; bool ok; int64_t v; } cases[] = {
        {"9223372036854775807", true, INT64_MAX}, {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0}, {"1e2", true, 100}, {"1.0", true, 1}, {"-5.0e0", true, -5}, {"1e-1", false, 0},
        {"1e300", false, 0}, {"1e999", false, 0}, {"-0", true, 0}, {"9.5", false, 0}, {"1e15", true, 1000000000000000},
    };
    for (size_t k = 0; k < PN_COUNT_OF(cases); k++) {
        pn_json_doc d;
        int64_t v = 0;
        PN_CHECK(parse(&d, cases[k].text, NULL) == PN_OK, "%s", cases[k].text);
        PN_CHECK(pn_json_i64(&d, 0, &v) == cases[k].ok, "%s", cases[k].text);
        PN_CHECK(!cases[k].ok || v == cases[k].v, "%s is %" PRId64, cases[k].text, v);
        pn_json_fini(&d);
    }
}

/* Enough members that the index grows several times, in two objects with the same keys. */
static void test_many_members(void)
{
    enum { N = 20000 };
    pn_str s;
    pn_json_doc d;
    pn_err err = {0};
    pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
    for (int o = 0; o < 2; o++) {
        pn_str_addz(&s, o ? ",{" : "[{");
        for (int i = 0; i < N; i++)
            pn_str_addf(&s, "%s\"key%d\":%d", i ? "," : "", i, i * 2 + o);
        pn_str_addc(&s, '}');
    }
    pn_str_addc(&s, ']');
    PN_CHECK(parse_n(&d, s.data, s.len, NULL, &err) == PN_OK, "%s", err.text);
    uint32_t a = pn_json_first(&d, 0), b = pn_json_next(&d, a);
    int wrong = 0;
    for (int i = 0; i < N; i++) {
        char key[16];
        int64_t x = -1, y = -1;
        snprintf(key, sizeof key, "key%d", i);
        pn_json_i64(&d, pn_json_get(&d, a, key), &x);
        pn_json_i64(&d, pn_json_get(&d, b, key), &y);
        wrong += x != i * 2 || y != i * 2 + 1;
    }
    PN_CHECK(wrong == 0, "%d wrong", wrong);
    pn_json_fini(&d);
    pn_str_fini(&s);
}

static void wrote(pn_str *s, const char *want)
{
    PN_CHECK(strcmp(pn_str_cstr(s), want) == 0, "%s, not %s", pn_str_cstr(s), want);
    pn_str_clear(s);
}

static void test_writing(void)
{
    pn_str s;
    pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
    pn_json_write_str(&s, "a\"\\\b\f\n\r\t\x01\x1F\x7F/\0z", 14);
    wrote(&s, "\"a\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\x7F/\\u0000z\"");
    pn_json_write_str(&s, "\xC3\xA9\xC3(\xFF\xE2\x82", 7);
    wrote(&s, "\"\xC3\xA9\xEF\xBF\xBD(\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
    pn_json_write_str(&s, "\xEF\xBF\xBD", 3);
    wrote(&s, "\"\xEF\xBF\xBD\"");
    pn_json_write_strz(&s, NULL);
    wrote(&s, "null");
    pn_json_write_str(&s, NULL, 0);
    wrote(&s, "\"\"");
    pn_json_write_f64(&s, 0.1);
    wrote(&s, "0.1");
    pn_json_write_f64(&s, 1.0 / 3);
    wrote(&s, "0.3333333333333333");
    pn_json_write_f64(&s, -1e300);
    wrote(&s, "-1e+300");
    pn_json_write_f64(&s, NAN);
    wrote(&s, "null");
    pn_json_write_f64(&s, -INFINITY);
    wrote(&s, "null");
    pn_json_write_f32(&s, 0.1f);
    wrote(&s, "0.1");
    pn_json_write_f32(&s, INFINITY);
    wrote(&s, "null");
    pn_json_write_i64(&s, INT64_MIN);
    wrote(&s, "-9223372036854775808");
    pn_json_write_u64(&s, UINT64_MAX);
    wrote(&s, "18446744073709551615");
    pn_str_addc(&s, '{');
    pn_json_key(&s, "a");
    pn_str_addc(&s, '[');
    for (int i = 0; i < 3; i++) {
        pn_json_item(&s);
        pn_json_write_bool(&s, i == 1);
    }
    pn_str_addc(&s, ']');
    pn_json_key(&s, "b\"");
    pn_json_write_strz(&s, "{");
    pn_json_key(&s, "c");
    pn_json_write_f64(&s, 2);
    pn_str_addc(&s, '}');
    wrote(&s, "{\"a\":[false,true,false],\"b\\\"\":\"{\",\"c\":2}");
    pn_str_fini(&s);
}

static void test_floats_read_back_the_same(void)
{
    uint64_t rng = 1;
    pn_str s;
    int wrong = 0, long_ones = 0;
    pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = pn_test_rand(&rng);
        double v;
        float f;
        memcpy(&v, &bits, sizeof v);
        f = pn_f32_from_bits((uint32_t)bits);
        if (!isfinite(v) || !isfinite(f))
            continue;
        pn_json_write_f64(&s, v);
        wrong += strtod(pn_str_cstr(&s), NULL) != v;
        pn_str_clear(&s);
        pn_json_write_f32(&s, f);
        wrong += strtof(pn_str_cstr(&s), NULL) != f;
        long_ones += s.len > 15;
        pn_str_clear(&s);
    }
    PN_CHECK(wrong == 0 && long_ones == 0, "%d wrong, %d long", wrong, long_ones);
    pn_str_fini(&s);
}

static void test_locale_does_not_matter(void)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    const char *set = NULL;
    for (size_t i = 0; i < PN_COUNT_OF(names) && !set; i++)
        set = setlocale(LC_NUMERIC, names[i]);
    if (!set) {
        pn_test_skip("no locale with a decimal comma is installed");
        return;
    }
    pn_str s;
    pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
    pn_json_write_f64(&s, 1.5);
    wrote(&s, "1.5");
    again("[1.5]", "[1.5]");
    pn_str_fini(&s);
    setlocale(LC_NUMERIC, "C");
}

static void test_each_failing_allocation_is_reported(void)
{
    static const char text[] =
        "{\"a\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18],\"b\":{\"c\":\"d\"},\"1\":1,\"2\":2,\"3\":3,\"4\":4,"
        "\"5\":5,\"6\":6,\"7\":7,\"8\":8,\"9\":9,\"10\":1,\"11\":1,\"12\":1,\"13\":1,\"14\":1,\"15\":1,\"16\":1,"
        "\"17\":1,\"18\":1,\"19\":1,\"20\":1,\"21\":1,\"22\":1,\"23\":1,\"24\":1,\"25\":1}";
    for (long k = 1; k < 100; k++) {
        pn_test_mem m;
        pn_json_doc d;
        pn_err err = {0};
        pn_test_mem_init(&m, k);
        pn_status st = pn_json_parse(&d, &m.mem, PN_ACCT_MISC, text, sizeof text - 1, NULL, &err);
        PN_CHECK(st == PN_OK || (st == PN_E_NOMEM && err.status == st && !d.nodes), "at %ld: %s", k, err.text);
        pn_json_fini(&d);
        PN_CHECK(m.outstanding == 0, "leak at %ld", k);
        if (st == PN_OK) {
            PN_CHECK(k >= 6, "only %ld allocations", k);
            break;
        }
    }
}

/* Every prefix of a text, in memory of its own, so a sanitizer sees one byte too far. */
static void test_every_cut_is_refused(void)
{
    static const char text[] = "{\"a\\n\\u00e9\\ud83d\\ude00\":[1,-2.5e+3,true,false,null,\"\xC3\xA9\"],\"b\":{}}";
    for (size_t n = 0; n < sizeof text; n++) {
        char *cut = malloc(n ? n : 1);
        pn_json_doc d;
        memcpy(cut, text, n);
        PN_CHECK(parse_n(&d, cut, n, NULL, NULL) == (n == sizeof text - 1 ? PN_OK : PN_E_FORMAT), "cut at %zu", n);
        pn_json_fini(&d);
        free(cut);
        if (n == sizeof text - 1)
            break;
    }
}

int main(void)
{
    pn_test_mem_init(&mem, 0);
    test_values_are_kept();
    test_what_is_not_json_is_refused();
    test_lone_surrogates();
    test_limits();
    test_duplicate_keys();
    test_looking_around();
    test_integers();
    test_many_members();
    test_writing();
    test_floats_read_back_the_same();
    test_locale_does_not_matter();
    test_each_failing_allocation_is_reported();
    test_every_cut_is_refused();
    PN_CHECK(mem.outstanding == 0, "%ld blocks leak", mem.outstanding);
    return pn_test_end();
}
