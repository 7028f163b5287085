/* SPDX-License-Identifier: AGPL-3.0-only */
/* Probing finds out what a template can do; normalising makes a request fit it and loses nothing. */
#include "pn_test.h"

#include "text/pn_chat_norm.h"

static pn_test_mem mem;

/* Small templates of the kinds there are. */
static const char chatml[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
static const char typed[] =
    "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}";
static const char strict[] =
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
static const char hermes[] =
    "{% if tools %}{{ tools|tojson }}\n{% endif %}{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}(think {{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for c in m.tool_calls %}{\"name\": {{ c.function.name|tojson }}, \"arguments\": {{ c.function.arguments|tojson }}}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% if enable_thinking is defined and not enable_thinking %}<think></think>"
    "{% endif %}{% endif %}";
static const char textargs[] =
    "{% for t in tools %}{{ t.function.name }}{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}";
static const char single[] =
    "{% for t in tools %}{{ t.function.name }}{% endfor %}{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}"
    "{% if m.tool_calls|length > 1 %}{{ raise_exception('one call only') }}{% endif %}"
    "{% if m.tool_calls[0].id|length != 9 %}{{ raise_exception('nine characters') }}{% endif %}"
    "{{ m.tool_calls[0].id }}:{{ m.tool_calls[0].function|tojson }}{% else %}{{ m.content }}{% endif %}{% endfor %}";

static pn_tpl *load(const char *text, pn_tpl_caps *caps)
{
    pn_tpl *t = NULL;
    pn_err err = {0};
    memset(caps, 0, sizeof *caps);
    PN_CHECK(pn_tpl_new(&t, &mem.mem, text, strlen(text), &err) == PN_OK, "%s", err.text);
    PN_CHECK(t && pn_tpl_probe(t, &mem.mem, caps, &err) == PN_OK, "%s", err.text);
    return t;
}

static pn_status normal(const char *tmpl, const char *request, pn_str *out, pn_err *err)
{
    pn_tpl_caps caps;
    pn_json_doc d;
    pn_tpl *t = load(tmpl, &caps);
    pn_status st = pn_json_parse(&d, &mem.mem, PN_ACCT_MISC, request, strlen(request), NULL, err);
    if (!st)
        st = pn_chat_normalize(&caps, &mem.mem, &d, out, err);
    pn_json_fini(&d);
    pn_tpl_free(t);
    return st;
}

/* The normalised variables, and that they are JSON. */
static void becomes(const char *tmpl, const char *request, const char *want)
{
    pn_str s;
    pn_json_doc d;
    pn_err err = {0};
    pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
    PN_CHECK(normal(tmpl, request, &s, &err) == PN_OK, "%s: %s", request, err.text);
    PN_CHECK(strcmp(pn_str_cstr(&s), want) == 0, "%s\n becomes %s\n not     %s", request, pn_str_cstr(&s), want);
    PN_CHECK(pn_json_parse(&d, &mem.mem, PN_ACCT_MISC, pn_str_cstr(&s), s.len, NULL, &err) == PN_OK, "%s", err.text);
    pn_json_fini(&d);
    pn_str_fini(&s);
}

static void refused(const char *tmpl, const char *request, const char *say)
{
    pn_str s;
    pn_err err = {0};
    pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
    PN_CHECK(normal(tmpl, request, &s, &err) == PN_E_INVALID, "%s was taken", request);
    PN_CHECK(strstr(err.text, say) != NULL, "\"%s\" does not say \"%s\"", err.text, say);
    pn_str_fini(&s);
}

static void test_probing(void)
{
    pn_tpl_caps c;
    pn_tpl_free(load(chatml, &c));
    PN_CHECK(c.string_content && !c.typed_content && c.system_role && c.later_system && c.two_users && c.generation_prompt);
    PN_CHECK(!c.tools && !c.tool_calls && !c.reasoning && !c.thinking_toggle);
    pn_tpl_free(load(typed, &c));
    PN_CHECK(c.typed_content && !c.string_content && c.system_role && !c.generation_prompt);
    pn_tpl_free(load(strict, &c));
    PN_CHECK(c.string_content && !c.system_role && !c.two_users);
    pn_tpl_free(load(hermes, &c));
    PN_CHECK(c.tools && c.tool_calls && c.object_args && c.parallel_calls && c.tool_role && c.reasoning && c.thinking_toggle && !c.short_ids);
    pn_tpl_free(load(textargs, &c));
    PN_CHECK(c.tools && c.tool_calls && !c.object_args && c.parallel_calls);
    pn_tpl_free(load(single, &c));
    PN_CHECK(c.tool_calls && !c.parallel_calls && c.short_ids);
}

#define GEN ",\"add_generation_prompt\":true}"
static void test_content_and_roles(void)
{
    becomes(chatml, "{\"messages\":[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
            "{\"type\":\"text\",\"text\":\"b\"}],\"cache_control\":1}],\"tools\":[]}",
            "{\"messages\":[{\"role\":\"system\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"a\\nb\"}]" GEN);
    becomes(typed, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"x\":[1.0]}",
            "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}],\"x\":[1.0]" GEN);
    becomes(chatml, "{\"messages\":[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"b\"}],\"add_generation_prompt\":false}",
            "{\"messages\":[{\"role\":\"system\",\"content\":\"a\\n\\nb\"}],\"add_generation_prompt\":false}");
    becomes(strict, "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]}",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"s\\na\\n\\nb\"}]" GEN);
    becomes(chatml, "{\"messages\":[{\"role\":\"assistant\",\"content\":null}]}", "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\"}]" GEN);
}

#define CALL(id, args) "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":" args "}}"
#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
static void test_calls(void)
{
    becomes(hermes, "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"r\",\"tool_calls\":[" CALL("i", "\"{\\\"a\\\": 1.0}\"")
            "]},{\"role\":\"tool\",\"tool_call_id\":\"i\",\"content\":\"x\"}]," TOOLS "}",
            "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"r\",\"thinking\":\"r\",\"tool_calls\":["
            CALL("i", "{\"a\":1.0}") "]},{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":\"i\",\"name\":\"f\"}]," TOOLS GEN);
    becomes(textargs, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[" CALL("i", "{\"a\":1}") "]}]," TOOLS "}",
            "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" CALL("i", "\"{\\\"a\\\":1}\"") "]}]," TOOLS GEN);
    becomes(textargs, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[" CALL("i", "\"\"") "]}]," TOOLS "}",
            "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" CALL("i", "\"{}\"") "]}]," TOOLS GEN);
    refused(hermes, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[" CALL("i", "\"{a\"") "]}]}", "message 0: the arguments");
    refused(hermes, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}", "messages[0].tool_calls[0]");
    becomes(single, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" CALL("abcdefgh1", "{}") "," CALL("abcdefgh2", "{}")
            "]},{\"role\":\"tool\",\"tool_call_id\":\"abcdefgh2\",\"content\":\"2\"},{\"role\":\"tool\",\"tool_call_id\":\"abcdefgh1\",\"content\":\"1\"}]}",
            "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" CALL("abcdefgh1", "{}") "]},"
            "{\"role\":\"tool\",\"content\":\"1\",\"tool_call_id\":\"abcdefgh1\",\"name\":\"f\"},"
            "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" CALL("abcdefgh2", "{}") "]},"
            "{\"role\":\"tool\",\"content\":\"2\",\"tool_call_id\":\"abcdefgh2\",\"name\":\"f\"}]" GEN);
    becomes(chatml, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" CALL("i", "{}")
            "]},{\"role\":\"tool\",\"tool_call_id\":\"i\",\"content\":\"r\"}]}",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"{\\\"tool_call\\\": {\\\"name\\\": \\\"f\\\", "
            "\\\"arguments\\\": {}}}\"},{\"role\":\"user\",\"content\":\"r\"}]" GEN);
}

static void test_options(void)
{
    becomes(hermes, "{\"messages\":[],\"reasoning_effort\":\"none\"}",
            "{\"messages\":[],\"enable_thinking\":false,\"thinking\":false,\"add_generation_prompt\":true}");
    becomes(hermes, "{\"messages\":[],\"a\":1,\"chat_template_kwargs\":{\"a\":2,\"enable_thinking\":true,\"messages\":3,\"bos_token\":\"x\"}}",
            "{\"messages\":[],\"a\":2,\"enable_thinking\":true,\"thinking\":true,\"add_generation_prompt\":true}");
    refused(hermes, "{\"messages\":[],\"chat_template_kwargs\":3}", "expected an object, found number");
    refused(hermes, "{\"messages\":[],\"enable_thinking\":\"yes\"}", "expected true or false");
    refused(hermes, "{}", "expected an array \"messages\"");
    refused(hermes, "{\"messages\":[3]}", "messages[0]: expected an object, found number");
    refused(hermes, "{\"messages\":[{}]}", "messages[0]: expected a string \"role\"");
    refused(hermes, "{\"messages\":[{\"role\":\"user\",\"content\":3}]}", "messages[0].content");
    refused(chatml, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "found \"image_url\"");
}

static void test_every_allocation_may_fail(void)
{
    for (long k = 1; k < 20000; k += 1 + k / 16) {
        pn_str s;
        pn_tpl *t = NULL;
        pn_tpl_caps caps;
        pn_json_doc d;
        pn_err err = {0};
        static const char request[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
            CALL("i", "\"{}\"") "," CALL("j", "{}") "]},{\"role\":\"tool\",\"tool_call_id\":\"j\",\"content\":\"2\"}]}";
        pn_test_mem_init(&mem, k);
        pn_str_init(&s, &mem.mem, PN_ACCT_MISC);
        pn_status st = pn_tpl_new(&t, &mem.mem, single, sizeof single - 1, &err);
        if (!st)
            st = pn_tpl_probe(t, &mem.mem, &caps, &err);
        if (!st && (st = pn_json_parse(&d, &mem.mem, PN_ACCT_MISC, request, sizeof request - 1, NULL, &err)) == PN_OK) {
            st = pn_chat_normalize(&caps, &mem.mem, &d, &s, &err);
            pn_json_fini(&d);
        }
        pn_tpl_free(t);
        pn_str_fini(&s);
        PN_CHECK(mem.outstanding == 0, "allocation %ld failing leaks", k);
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM, "allocation %ld failing gives %d: %s", k, (int)st, err.text);
        if (st == PN_OK && mem.n_calls < k)
            break;
    }
    pn_test_mem_init(&mem, 0);
}

int main(void)
{
    pn_test_mem_init(&mem, 0);
    test_probing();
    test_content_and_roles();
    test_calls();
    test_options();
    PN_CHECK(mem.outstanding == 0, "%ld blocks leaked", mem.outstanding);
    test_every_allocation_may_fail();
    return pn_test_end();
}
