/* SPDX-License-Identifier: AGPL-3.0-only */
/* test_schema.c - the JSON Schema front end: vectors, refusals with pointers, limits, failing memory. */
#include "pn_test.h"

#include "base/pn_json.h"
#include "sample/pn_schema.h"

static pn_mem mem;

static pn_status compile(pn_gram **g, const char *text, const pn_schema_options *o, pn_err *err)
{
    memset(err, 0, sizeof *err);
    return pn_schema_compile(g, &mem, text, strlen(text), o, err);
}

/* 1 accepted, 0 not, -1 the schema does not compile. */
static int accepts(const char *schema, const char *text)
{
    pn_gram *g;
    pn_err err;
    if (compile(&g, schema, NULL, &err) != PN_OK) {
        printf("     %.300s: %s\n", schema, err.text);
        return -1;
    }
    const int r = pn_gram_matches(g, text, strlen(text), &err);
    pn_gram_release(g);
    return r;
}

static void yes(const char *schema, const char *text) { PN_CHECK(accepts(schema, text) == 1, "%.300s should allow %.80s", schema, text); }
static void no(const char *schema, const char *text) { PN_CHECK(accepts(schema, text) == 0, "%.300s should not allow %.80s", schema, text); }

/* Fails with this status and a text that has `part` in it. */
static void fails(const char *schema, pn_status want, const char *part)
{
    pn_gram *g = NULL;
    pn_err err;
    const pn_status got = compile(&g, schema, NULL, &err);
    PN_CHECK(got == want, "%.200s: %s (%s), expected %s", schema, pn_status_name(got), err.text, pn_status_name(want));
    PN_CHECK(got == PN_OK || strstr(err.text, part) != NULL, "%.200s: \"%s\" lacks \"%s\"", schema, err.text, part);
    pn_gram_release(g);
}

static void vector_texts(const pn_json_doc *d, uint32_t list, pn_gram *g, int want, const char *name)
{
    for (uint32_t c = pn_json_first(d, list); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes t;
        pn_err err = {PN_OK, {0}};
        if (pn_json_str(d, c, &t))
            PN_CHECK(pn_gram_matches(g, t.data, t.len, &err) == want, "%s: %s %s", name, want ? "should allow" : "should not allow", t.data);
    }
}

static void every_vector_is_accepted_or_rejected_as_it_says(void)
{
    size_t len;
    pn_json_doc d;
    pn_err err;
    char *text = pn_test_read_file("tests/vectors/grammar/schema-vectors.json", &len);
    if (!PN_CHECK(text && pn_json_parse(&d, &mem, PN_ACCT_MISC, text, len, NULL, &err) == PN_OK))
        return;
    for (uint32_t v = pn_json_first(&d, 0); v != PN_JSON_NONE; v = pn_json_next(&d, v)) {
        pn_str schema;
        pn_bytes name = {"", 0};
        pn_gram *g = NULL;
        pn_str_init(&schema, &mem, PN_ACCT_MISC);
        pn_json_str(&d, pn_json_get(&d, v, "name"), &name);
        pn_json_write_node(&schema, &d, pn_json_get(&d, v, "schema"));
        if (PN_CHECK(compile(&g, pn_str_cstr(&schema), NULL, &err) == PN_OK, "%s: %s", name.data, err.text)) {
            vector_texts(&d, pn_json_get(&d, v, "accept"), g, 1, name.data);
            vector_texts(&d, pn_json_get(&d, v, "reject"), g, 0, name.data);
            vector_texts(&d, pn_json_get(&d, v, "reject_by_policy"), g, 0, name.data);
        }
        pn_gram_release(g);
        pn_str_fini(&schema);
    }
    pn_json_fini(&d);
    free(text);
}


static void keywords_beyond_a_grammar_are_refused_with_their_pointer(void)
{
    fails("{\"properties\":{\"a\":{\"not\":{\"minimum\":3}}}}", PN_E_UNSUPPORTED, "/properties/a/not");
    fails("{\"properties\":{\"a/b\":{\"type\":\"array\",\"contains\":{}}}}", PN_E_UNSUPPORTED, "/properties/a~1b/contains");
    fails("{\"anyOf\":[{\"type\":\"null\"},{\"if\":{},\"then\":{}}]}", PN_E_UNSUPPORTED, "/anyOf/1/then");
    fails("{\"type\":\"object\",\"dependentRequired\":{\"a\":[\"b\"]}}", PN_E_UNSUPPORTED, "/dependentRequired");
    fails("{\"type\":\"object\",\"dependentSchemas\":{}}", PN_E_UNSUPPORTED, "/dependentSchemas");
    fails("{\"type\":\"object\",\"dependencies\":{}}", PN_E_UNSUPPORTED, "/dependencies");
    fails("{\"$dynamicRef\":\"#a\"}", PN_E_UNSUPPORTED, "/$dynamicRef");
    fails("{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"uniqueItems\":true}", PN_E_UNSUPPORTED, "/uniqueItems");
    fails("{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", PN_E_UNSUPPORTED, "/oneOf");
    fails("{\"oneOf\":[{\"properties\":{\"a\":{}}},{\"properties\":{\"b\":{}}}]}", PN_E_UNSUPPORTED, "/oneOf");
    fails("{\"type\":\"string\",\"pattern\":\"(?=a)b\"}", PN_E_UNSUPPORTED, "/pattern");
    fails("{\"type\":\"number\",\"multipleOf\":0.0001234567}", PN_E_UNSUPPORTED, "/multipleOf");
    fails("{\"patternProperties\":{\"^a\":{},\"b$\":{}}}", PN_E_UNSUPPORTED, "/patternProperties");
    /* ... but not where they say nothing */
    yes("{\"type\":\"string\",\"contains\":{},\"dependentRequired\":{}}", "\"x\"");
    yes("{\"type\":\"integer\",\"if\":{}}", "1");
    yes("{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"contains\":{},\"minContains\":0}", "[null]");
    yes("{\"type\":\"array\",\"items\":{},\"maxItems\":1,\"uniqueItems\":true}", "[3]");
    yes("{\"oneOf\":[{\"type\":\"integer\",\"maximum\":3},{\"type\":\"integer\",\"exclusiveMinimum\":3}]}", "4");
}

static void lenient_widens_and_says_where(void)
{
    static const char text[] = "{\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"contains\":{}},"
                               "\"b\":{\"type\":\"string\",\"pattern\":\"^(?!x)\",\"maxLength\":2}},\"required\":[\"a\",\"b\"]}";
    const pn_schema_options o = {.compact = true, .lenient = true};
    pn_json_doc d;
    pn_err err;
    pn_gir *b = NULL;
    pn_gnode node;
    pn_gram *g = NULL;
    pn_str widened;
    pn_str_init(&widened, &mem, PN_ACCT_MISC);
    PN_CHECK(pn_json_parse(&d, &mem, PN_ACCT_MISC, text, sizeof text - 1, NULL, &err) == PN_OK);
    PN_CHECK(pn_gir_new(&b, &mem, NULL, &err) == PN_OK);
    PN_CHECK(pn_schema_node(b, &d, PN_JSON_ROOT, PN_JSON_ROOT, &o, &node, &widened, &err) == PN_OK, "%s", err.text);
    PN_CHECK(strcmp(pn_str_cstr(&widened), "/properties/a/contains\n/properties/b/pattern") == 0, "%s", pn_str_cstr(&widened));
    PN_CHECK(pn_gir_finish(b, node, &g, &err) == PN_OK);
    PN_CHECK(pn_gram_matches(g, "{\"a\":[],\"b\":\"xy\"}", 17, &err) == 1);
    PN_CHECK(pn_gram_matches(g, "{\"a\": [],\"b\":\"xy\"}", 18, &err) == 0);
    PN_CHECK(pn_gram_matches(g, "{\"a\":[],\"b\":\"xyz\"}", 18, &err) == 0);
    pn_gram_release(g);
    pn_gir_free(b);
    pn_json_fini(&d);
    pn_str_fini(&widened);
}

static void what_is_no_schema_is_refused_with_its_place(void)
{
    fails("123", PN_E_INVALID, "(root)");
    fails("{", PN_E_FORMAT, "");
    fails("{\"type\":123}", PN_E_INVALID, "123");
    fails("{\"items\":{\"type\":\"hiccup\"}}", PN_E_INVALID, "/items/type");
    fails("{\"items\":{\"type\":\"hiccup\"}}", PN_E_INVALID, "hiccup");
    fails("{\"type\":[]}", PN_E_INVALID, "no value");
    fails("{\"enum\":[]}", PN_E_INVALID, "no value");
    fails("false", PN_E_INVALID, "no value");
    fails("{\"properties\":{\"a\":7}}", PN_E_INVALID, "/properties/a");
    fails("{\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":2,\"maximum\":1}},\"required\":[\"a\"]}", PN_E_INVALID, "/properties/a");
    fails("{\"type\":\"integer\",\"minimum\":0.2,\"maximum\":0.8}", PN_E_INVALID, "no value");
    fails("{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", PN_E_INVALID, "no value");
    fails("{\"type\":\"string\",\"minLength\":-1}", PN_E_INVALID, "/minLength");
    fails("{\"type\":\"string\",\"pattern\":\"(\"}", PN_E_INVALID, "/pattern");
    fails("{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", PN_E_INVALID, "no value");
    fails("{\"properties\":{\"a\":{}},\"required\":[\"b\"],\"additionalProperties\":false}", PN_E_INVALID, "no value");
    fails("{\"anyOf\":[]}", PN_E_INVALID, "/anyOf");
    fails("{\"$ref\":\"#/$defs/x\"}", PN_E_INVALID, "#/$defs/x");
    fails("{\"$ref\":\"http://example.org/s.json\"}", PN_E_INVALID, "out of the document");
}

static void references_reach_pointers_anchors_and_ids(void)
{
    yes("{\"$ref\":\"#x\",\"$defs\":{\"a\":{\"$anchor\":\"x\",\"type\":\"null\"}}}", "null");
    yes("{\"$id\":\"http://e.org/root.json\",\"$ref\":\"other.json\",\"$defs\":{\"a\":{\"$id\":\"http://e.org/other.json\",\"type\":\"null\"}}}", "null");
    yes("{\"$ref\":\"http://e.org/o.json#/$defs/k\",\"$defs\":{\"a\":{\"$id\":\"http://e.org/o.json\",\"$defs\":{\"k\":{\"type\":\"null\"}}}}}", "null");
    /* "#" inside a schema with an identity of its own is that schema */
    yes("{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$id\":\"x\",\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}}}", "[[],[[]]]");
    yes("{\"prefixItems\":[{\"type\":\"null\"},{\"$ref\":\"#/prefixItems/0\"}]}", "[null,null]");
    fails("{\"$ref\":\"#\"}", PN_E_INVALID, "$ref");
    fails("{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{\"$ref\":\"#/$defs/a\"}}}", PN_E_INVALID, "");
    fails("{\"allOf\":[{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#\"}]}]}", PN_E_INVALID, "refers to itself");
}

static void numbers_obey_bounds_exactly(void)
{
    static const char big[] = "{\"type\":\"integer\",\"minimum\":9007199254740993,\"maximum\":9007199254740995}";
    yes(big, "9007199254740993");
    no(big, "9007199254740992");
    yes(big, "9007199254740995");
    no(big, "9007199254740996");
    static const char dec[] = "{\"type\":\"number\",\"exclusiveMinimum\":-0.05,\"maximum\":12.5}";
    yes(dec, "-0.0499");
    no(dec, "-0.05");
    no(dec, "-0.050");
    yes(dec, "12.500");
    no(dec, "12.5001");
    yes(dec, "9.99");
    no(dec, "1e1");
    static const char e[] = "{\"type\":\"integer\",\"exclusiveMinimum\":1e2,\"maximum\":1.05E+2}";
    no(e, "100");
    yes(e, "101");
    yes(e, "105");
    no(e, "106");
    yes("{\"type\":\"integer\",\"minimum\":5,\"exclusiveMinimum\":true}", "6");
    no("{\"type\":\"integer\",\"minimum\":5,\"exclusiveMinimum\":true}", "5");
    static const char cents[] = "{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0}";
    yes(cents, "1.25");
    yes(cents, "3");
    no(cents, "1.255");
    static const char quarter[] = "{\"type\":\"number\",\"multipleOf\":0.25}";
    yes(quarter, "-1.5");
    yes(quarter, "0.75");
    no(quarter, "0.7");
    static const char lcm[] = "{\"allOf\":[{\"type\":\"integer\",\"multipleOf\":4},{\"multipleOf\":6}]}";
    yes(lcm, "24");
    yes(lcm, "0");
    no(lcm, "20");
    no(lcm, "18");
    yes("{\"type\":\"integer\",\"multipleOf\":1000}", "-7000");
    /* bounds of doubles say nothing about 16 digits, but zero stays where it was */
    yes("{\"type\":\"number\",\"minimum\":-1.7976931348623157e308,\"maximum\":1.7976931348623157e+308}", "-12.5");
    static const char tiny[] = "{\"type\":\"number\",\"minimum\":4.9e-324,\"maximum\":9}";
    yes(tiny, "0.0000000000000001");
    no(tiny, "0.0");
    yes("{\"type\":\"integer\",\"minimum\":-4.9e-324}", "0");
    no("{\"type\":\"integer\",\"minimum\":-4.9e-324}", "-1");
    fails("{\"type\":\"integer\",\"minimum\":1e300}", PN_E_UNSUPPORTED, "/minimum");
    yes("{\"enum\":[1e301,2],\"minimum\":1e300}", "1e301");
    /* every integer of a range, and none beside it */
    for (int lo = -13; lo <= 13; lo += 2)
        for (int hi = lo; hi <= 112; hi = hi * 2 + 1 + (hi < 0 ? 1 - hi : 3)) {
            char schema[128], text[16];
            pn_gram *g;
            pn_err err;
            snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", lo, hi);
            if (!PN_CHECK(compile(&g, schema, NULL, &err) == PN_OK, "%s: %s", schema, err.text))
                continue;
            for (int v = -120; v <= 1120; v++) {
                const int n = snprintf(text, sizeof text, "%d", v);
                PN_CHECK(pn_gram_matches(g, text, (size_t)n, &err) == (v >= lo && v <= hi), "%s: %s", schema, text);
            }
            pn_gram_release(g);
        }
}

static void strings_combine_their_demands(void)
{
    static const char both[] = "{\"type\":\"string\",\"pattern\":\"^a+$\",\"minLength\":2,\"maxLength\":3}";
    yes(both, "\"aa\"");
    yes(both, "\"aaa\"");
    no(both, "\"a\"");
    no(both, "\"aaaa\"");
    static const char two[] = "{\"allOf\":[{\"type\":\"string\",\"pattern\":\"a\"},{\"pattern\":\"^.b\"}]}";
    yes(two, "\"ab\"");
    yes(two, "\"xba\"");
    no(two, "\"xb\"");
    yes("{\"type\":\"string\",\"format\":\"ipv4\",\"maxLength\":7}", "\"1.2.3.4\"");
    no("{\"type\":\"string\",\"format\":\"ipv4\",\"maxLength\":7}", "\"1.2.3.44\"");
    yes("{\"type\":\"string\",\"format\":\"email\",\"maxLength\":255}", "\"a.b@example.org\"");
    yes("{\"type\":\"string\",\"format\":\"hostname\",\"maxLength\":253}", "\"www.example.org\"");
    yes("{\"type\":\"string\",\"pattern\":\"^https?://\",\"minLength\":1,\"maxLength\":2083}", "\"http://x\"");
    static const char not[] = "{\"type\":\"string\",\"not\":{\"enum\":[\"a\",\"bc\",7]}}";
    yes(not, "\"b\"");
    no(not, "\"bc\"");
    no(not, "\"\\u0061\"");
    yes(not, "\"bcd\"");
    yes("{\"enum\":[\"a\",\"bb\",\"ccc\",5,null],\"maxLength\":2,\"maximum\":4}", "\"bb\"");
    no("{\"enum\":[\"a\",\"bb\",\"ccc\",5,null],\"maxLength\":2,\"maximum\":4}", "\"ccc\"");
    no("{\"enum\":[\"a\",\"bb\",\"ccc\",5,null],\"maxLength\":2,\"maximum\":4}", "5");
    no("{\"enum\":[1,2,3],\"not\":{\"const\":2.0}}", "2");
    yes("{\"type\":[\"string\",\"null\"],\"not\":{\"type\":\"null\"}}", "\"\"");
    no("{\"type\":[\"string\",\"null\"],\"not\":{\"type\":\"null\"}}", "null");
    yes("{\"type\":\"string\",\"maxLength\":2147483647}", "\"x\"");
}

static void formats_know_the_calendar_and_the_addresses(void)
{
    static const struct { const char *format, *text; int want; } t[] = {
        {"date", "2023-02-29", 0}, {"date", "2000-02-29", 1}, {"date", "1900-02-29", 0}, {"date", "2024-04-31", 0},
        {"duration", "P1Y2M3DT4H5M6S", 1}, {"duration", "P2W", 1}, {"duration", "P", 0}, {"duration", "PT", 0}, {"duration", "PT1M", 1},
        {"ipv6", "::", 1}, {"ipv6", "::1", 1}, {"ipv6", "1::", 1}, {"ipv6", "1:2:3:4:5:6:7:8", 1}, {"ipv6", "1:2:3:4:5:6:7", 0},
        {"ipv6", "1::2::3", 0}, {"ipv6", "::ffff:1.2.3.4", 1}, {"ipv6", "1:2:3:4:5:6:1.2.3.4", 1}, {"ipv6", "1:2:3:4:5:6:7::", 1},
        {"ipv6", "12345::", 0}, {"ipv6", "2001:db8::8:800:200c:417a", 1}, {"ipv6", "1:2:3:4:5:6:7:1.2.3.4", 0},
        {"hostname", "a-b.example", 1}, {"hostname", "-a", 0}, {"hostname", "a-", 0}, {"hostname", "a..b", 0},
        {"uri", "https://example.org/a?b=c#d", 1}, {"uri", "no scheme", 0}, {"uri", "urn:x", 1},
        {"email", "a@b", 0}, {"email", "a..b@c.de", 0},
    };
    for (size_t i = 0; i < PN_COUNT_OF(t); i++) {
        char schema[64], text[64];
        snprintf(schema, sizeof schema, "{\"type\":\"string\",\"format\":\"%s\"}", t[i].format);
        snprintf(text, sizeof text, "\"%s\"", t[i].text);
        PN_CHECK(accepts(schema, text) == t[i].want, "%s %s", t[i].format, t[i].text);
    }
}

static void objects_count_name_and_close(void)
{
    static const char counted[] = "{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"},\"c\":{\"type\":\"null\"}},"
                                  "\"minProperties\":2,\"maxProperties\":2}";
    yes(counted, "{\"a\":null,\"c\":null}");
    yes(counted, "{\"b\":null,\"c\":null}");
    no(counted, "{\"b\":null}");
    no(counted, "{\"a\":null,\"b\":null,\"c\":null}");
    static const char open[] = "{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"}},\"required\":[\"b\"],"
                               "\"additionalProperties\":{\"type\":\"null\"},\"minProperties\":2,\"maxProperties\":3}";
    yes(open, "{\"a\":null,\"b\":null}");
    yes(open, "{\"b\":null,\"x\":null}");
    yes(open, "{\"b\":null,\"x\":null,\"y\":null}");
    no(open, "{\"b\":null}");
    no(open, "{\"a\":null,\"b\":null,\"x\":null,\"y\":null}");
    static const char pats[] = "{\"properties\":{\"x-a\":{\"maximum\":5}},\"patternProperties\":{\"^x-\":{\"type\":\"integer\"},\"^y-\":{\"type\":\"null\"}},"
                               "\"additionalProperties\":{\"type\":\"boolean\"}}";
    yes(pats, "{\"x-a\":5,\"x-b\":7,\"y-\":null,\"q\":true}");
    no(pats, "{\"x-a\":6}");
    no(pats, "{\"x-b\":true}");
    no(pats, "{\"\\u0078-b\":true}");
    no(pats, "{\"q\":7}");
    static const char names[] = "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]+$\",\"maxLength\":3},\"additionalProperties\":{\"type\":\"null\"}}";
    yes(names, "{\"abc\":null}");
    no(names, "{\"abcd\":null}");
    no(names, "{\"A\":null}");
    static const char uneval[] = "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"null\"}}}],\"unevaluatedProperties\":false}";
    yes(uneval, "{\"a\":null}");
    no(uneval, "{\"b\":null}");
    static const char joined[] = "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"number\"}},\"required\":[\"a\"]},"
                                 "{\"properties\":{\"b\":{\"type\":\"null\"},\"a\":{\"maximum\":3}},\"additionalProperties\":false}]}";
    yes(joined, "{\"a\":2.5,\"b\":null}");
    no(joined, "{\"a\":4}");
    /* asking for more members than are declared opens an object */
    yes("{\"properties\":{\"a\":{\"type\":\"null\"}},\"minProperties\":2}", "{\"a\":null,\"x\":1}");
    static const char serde[] = "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"A\":{\"type\":\"integer\"}},\"required\":[\"A\"],\"additionalProperties\":false},"
                                "{\"type\":\"object\",\"properties\":{\"B\":{\"type\":\"null\"}},\"required\":[\"B\"],\"additionalProperties\":false},{\"const\":\"C\"}]}";
    yes(serde, "{\"A\":1}");
    yes(serde, "{\"B\":null}");
    yes(serde, "\"C\"");
    no(serde, "{}");
    static const char tagged[] = "{\"oneOf\":[{\"properties\":{\"t\":{\"const\":\"a\"},\"x\":{\"type\":\"null\"}},\"required\":[\"t\"]},"
                                 "{\"properties\":{\"t\":{\"const\":\"b\"}},\"required\":[\"t\"]}]}";
    yes(tagged, "{\"t\":\"a\",\"x\":null}");
    no(tagged, "{\"t\":\"b\",\"x\":null}");
}

static void arrays_count_and_keep_elements_apart(void)
{
    static const char set[] = "{\"type\":\"array\",\"items\":{\"enum\":[1,\"a\",[2]]},\"uniqueItems\":true,\"minItems\":2}";
    yes(set, "[\"a\",1]");
    yes(set, "[[2],\"a\",1]");
    no(set, "[1]");
    no(set, "[1,1]");
    static const char many[] = "{\"type\":\"array\",\"items\":{\"enum\":[1,2,3,4,5,6,7,8,9,10]},\"uniqueItems\":true,\"maxItems\":3}";
    yes(many, "[1,5,10]");
    no(many, "[5,1]");          /* by policy: in order */
    no(many, "[1,1]");
    no(many, "[1,2,3,4]");
    fails("{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"uniqueItems\":true,\"minItems\":3}", PN_E_INVALID, "no value");
    static const char old[] = "{\"items\":[{\"type\":\"null\"}],\"additionalItems\":{\"type\":\"boolean\"}}";
    yes(old, "[null,true]");
    no(old, "[true]");
    yes("{\"prefixItems\":[{\"type\":\"null\"}],\"minItems\":3}", "[null,1,\"x\"]");
    no("{\"prefixItems\":[{\"type\":\"null\"}]}", "[null,1]");
    yes("{\"type\":\"array\",\"items\":false}", "[]");
    static const char thousand[] = "{\"type\":\"array\",\"items\":{\"const\":0},\"minItems\":1000,\"maxItems\":1000}";
    pn_str s;
    pn_str_init(&s, &mem, PN_ACCT_MISC);
    for (int i = 0; i < 1000; i++)
        pn_str_addz(&s, i ? ",0" : "[0");
    no(thousand, pn_str_cstr(&s));
    pn_str_addc(&s, ']');
    yes(thousand, pn_str_cstr(&s));
    s.data[s.len - 1] = ',';
    pn_str_addz(&s, "0]");
    no(thousand, pn_str_cstr(&s));
    pn_str_fini(&s);
}

static void repeat(pn_str *s, const char *text, int n)
{
    while (n-- > 0)
        pn_str_addz(s, text);
}

/* Fails with a status of the world's, or compiles: in bounded time either way. */
static void bounded(const char *name, const pn_str *s)
{
    pn_gram *g = NULL;
    pn_err err;
    const pn_status status = compile(&g, pn_str_cstr(s), NULL, &err);
    PN_CHECK(status == PN_OK || status == PN_E_INVALID || status == PN_E_UNSUPPORTED || status == PN_E_FORMAT, "%s: %s %s", name,
             pn_status_name(status), err.text);
    pn_gram_release(g);
}

static void hostile_shapes_meet_limits(void)
{
    pn_str s;
    pn_str_init(&s, &mem, PN_ACCT_MISC);
    repeat(&s, "{\"items\":", 100000);
    fails(pn_str_cstr(&s), PN_E_FORMAT, "");
    pn_str_clear(&s);
    repeat(&s, "{\"items\":", 100);
    pn_str_addz(&s, "{}");
    repeat(&s, "}", 100);
    bounded("100 deep", &s);
    pn_str_clear(&s);
    pn_str_addz(&s, "{\"description\":\"");
    repeat(&s, "0123456789abcdef", 1 << 17);
    pn_str_addz(&s, "\"}");
    fails(pn_str_cstr(&s), PN_E_INVALID, "1048576");
    pn_str_clear(&s);
    pn_str_addz(&s, "{\"$ref\":\"#/$defs/a0\",\"$defs\":{");
    for (int i = 0; i < 60; i++)
        pn_str_addf(&s, "\"a%d\":{\"anyOf\":[{\"$ref\":\"#/$defs/a%d\"},{\"$ref\":\"#/$defs/a%d\"}]},", i, i + 1, i + 1);
    pn_str_addz(&s, "\"a60\":{}}}");
    fails(pn_str_cstr(&s), PN_E_INVALID, "256");
    pn_str_clear(&s);
    pn_str_addz(&s, "{\"$ref\":\"#/$defs/a0\",\"$defs\":{");
    for (int i = 0; i < 60; i++)
        pn_str_addf(&s, "\"a%d\":{\"properties\":{\"x\":{\"$ref\":\"#/$defs/a%d\"},\"y\":{\"$ref\":\"#/$defs/a%d\"}}},", i, i + 1, i + 1);
    pn_str_addz(&s, "\"a60\":{}}}");
    bounded("doubling through properties", &s);
    yes(pn_str_cstr(&s), "{\"x\":{\"y\":{}}}");
    pn_str_clear(&s);
    pn_str_addz(&s, "{\"$ref\":\"#/$defs/a0\",\"$defs\":{");
    for (int i = 0; i < 3000; i++)
        pn_str_addf(&s, "\"a%d\":{\"$ref\":\"#/$defs/a%d\"},", i, i + 1);
    pn_str_addz(&s, "\"a3000\":{}}}");
    fails(pn_str_cstr(&s), PN_E_INVALID, "64");
    pn_str_clear(&s);
    pn_str_addz(&s, "{\"enum\":[0");
    for (int i = 1; i < 25000; i++)
        pn_str_addf(&s, ",%d", i);
    pn_str_addz(&s, "]}");
    fails(pn_str_cstr(&s), PN_E_INVALID, "20000");
    pn_str_clear(&s);
    pn_str_addz(&s, "{\"enum\":[\"v0\"");
    for (int i = 1; i < 15000; i++)
        pn_str_addf(&s, ",\"v%d\"", i * 7);
    pn_str_addz(&s, "]}");
    yes(pn_str_cstr(&s), "\"v77\"");
    no(pn_str_cstr(&s), "\"v78\"");
    pn_str_clear(&s);
    pn_str_addz(&s, "{\"properties\":{\"k0\":{\"type\":\"null\"}");
    for (int i = 1; i < 6000; i++)
        pn_str_addf(&s, ",\"k%d\":{\"type\":\"null\"}", i);
    pn_str_addz(&s, "}}");
    fails(pn_str_cstr(&s), PN_E_INVALID, "5000");
    pn_str_clear(&s);
    pn_str_addz(&s, "{\"properties\":{\"k0\":{\"type\":\"null\"}");
    for (int i = 1; i < 350; i++)
        pn_str_addf(&s, ",\"k%d\":{\"type\":\"null\"}", i);
    pn_str_addz(&s, "}}");
    yes(pn_str_cstr(&s), "{\"k0\":null,\"k349\":null}");
    no(pn_str_cstr(&s), "{\"k349\":null,\"k0\":null}");
    pn_str_clear(&s);
    pn_str_addz(&s, "{\"properties\":{\"k0\":{}");
    for (int i = 1; i < 450; i++)
        pn_str_addf(&s, ",\"k%d\":{}", i);
    pn_str_addz(&s, "}}");
    fails(pn_str_cstr(&s), PN_E_INVALID, "400 optional");
    pn_str_clear(&s);
    pn_str_addz(&s, "{\"properties\":{\"");
    repeat(&s, "k", 900000);
    pn_str_addz(&s, "\":{\"type\":\"null\"}},\"additionalProperties\":true}");
    bounded("a key of a megabyte", &s);
    pn_str_clear(&s);
    pn_str_addz(&s, "{\"allOf\":[{}");
    repeat(&s, ",{\"anyOf\":[{\"minimum\":1},{\"maximum\":2},{\"type\":\"null\"}]}", 40);
    pn_str_addz(&s, "]}");
    fails(pn_str_cstr(&s), PN_E_INVALID, "256");
    pn_str_clear(&s);
    pn_str_addz(&s, "{\"type\":\"string\",\"pattern\":\"^((a?){1000}){1000}$\",\"maxLength\":100000}");
    bounded("nested repetition", &s);
    pn_str_clear(&s);
    pn_str_addz(&s, "{\"type\":\"string\",\"pattern\":\"(x+x+)+y\",\"format\":\"email\",\"minLength\":10000}");
    bounded("a large product", &s);
    pn_str_fini(&s);
}

static void every_failing_allocation_is_an_error_and_leaks_nothing(void)
{
    static const char *const texts[] = {
        "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/i\"},\"b\":{\"enum\":[\"x\",{\"y\":[1]}]},\"c\":{\"type\":\"string\",\"pattern\":\"^a\","
        "\"maxLength\":3}},\"required\":[\"a\"],\"additionalProperties\":{\"type\":\"number\",\"minimum\":-1.5},\"$defs\":{\"i\":{\"anyOf\":[{\"type\":"
        "\"integer\",\"multipleOf\":3},{\"type\":\"array\",\"items\":{\"$ref\":\"#x\"}}],\"$anchor\":\"x\"}}}",
        "{\"properties\":{\"a\":{\"not\":{\"minimum\":1}}}}",
    };
    for (size_t i = 0; i < PN_COUNT_OF(texts); i++)
        for (long at = 1;; at++) {
            pn_test_mem t;
            pn_gram *g = NULL;
            pn_err err = {PN_OK, {0}};
            pn_test_mem_init(&t, at);
            const pn_status status = pn_schema_compile(&g, &t.mem, texts[i], strlen(texts[i]), NULL, &err);
            pn_gram_release(g);
            PN_CHECK(t.outstanding == 0, "request %ld", at);
            if (t.n_calls < at) {
                PN_CHECK(status == (i ? PN_E_UNSUPPORTED : PN_OK), "%s", err.text);
                break;
            }
            /* the text of a refusal may lose its pointer, but stays a refusal */
            PN_CHECK(status == PN_E_NOMEM || status == PN_OK || (i && status == PN_E_UNSUPPORTED), "request %ld: %s", at, pn_status_name(status));
        }
}

int main(void)
{
    pn_mem_init_libc(&mem);
    every_vector_is_accepted_or_rejected_as_it_says();
    keywords_beyond_a_grammar_are_refused_with_their_pointer();
    lenient_widens_and_says_where();
    what_is_no_schema_is_refused_with_its_place();
    references_reach_pointers_anchors_and_ids();
    numbers_obey_bounds_exactly();
    strings_combine_their_demands();
    formats_know_the_calendar_and_the_addresses();
    objects_count_name_and_close();
    arrays_count_and_keep_elements_apart();
    hostile_shapes_meet_limits();
    every_failing_allocation_is_an_error_and_leaks_nothing();
    return pn_test_end();
}
