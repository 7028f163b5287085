/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Model output through pantheon.h: events, the JSON helper, the prompt that a template leaves.
 */
#include "pantheon.h"

#include "pn_check.h"

typedef struct out_log { char text[512]; size_t n; } out_log;

static int log_event(void *user, const pn_output_event *e)
{
    out_log *l = user;
    int n = snprintf(l->text + l->n, sizeof l->text - l->n, "%d:%.*s;", (int)e->kind, (int)e->len, e->text);
    l->n += (size_t)n;
    return 0;
}

static int keep(void *user, const char *text, size_t len)
{
    out_log *l = user;
    l->n = (size_t)snprintf(l->text, sizeof l->text, "%.*s", (int)len, text);
    return 0;
}

static const char thinker[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                              "{% if tools %}<tool_call>{% endif %}"
                              "{% if add_generation_prompt %}<|im_start|>assistant\n"
                              "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n"
                              "{% endif %}{% endif %}";

static void test_events_come_as_text_is_pushed(pn_engine *e)
{
    pn_output_params p;
    pn_output *o = NULL;
    pn_err err;
    out_log l = {"", 0};
    memset(&p, 0, sizeof p);
    p.chat_template = thinker;
    PN_CHECK(pn_output_new(e, NULL, &p, log_event, &l, &o, &err) == PN_OK, "%s", err.text);
    PN_CHECK(strcmp(pn_output_format(o), "hermes") == 0);
    PN_CHECK(pn_output_push(o, "hm", 2, &err) == PN_OK);
    PN_CHECK(strcmp(l.text, "0:hm;") == 0, "%s", l.text);       /* the template opened the reasoning */
    const char *rest = "</think>Hi<tool_call>{\"name\":\"f\",\"arguments\":{}}";
    PN_CHECK(pn_output_push(o, rest, strlen(rest), &err) == PN_OK);
    PN_CHECK(pn_output_end(o, &err) == PN_OK);
    PN_CHECK(strcmp(l.text, "0:hm;1:Hi;2:f;3:{};4:;") == 0, "%s", l.text);
    pn_output_free(o);
    pn_output_free(NULL);
}

static void test_json_has_all_keys(pn_engine *e)
{
    pn_output_params p;
    pn_err err;
    out_log l = {"", 0};
    memset(&p, 0, sizeof p);
    p.size = sizeof p;
    p.format = "qwen-coder";
    p.tools = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"}}}}}]";
    const char *text = "<tool_call><function=f><parameter=s>1</parameter></function></tool_call>";
    PN_CHECK(pn_output_json(e, NULL, &p, text, strlen(text), keep, &l, &err) == PN_OK, "%s", err.text);
    PN_CHECK(strcmp(l.text, "{\"reasoning_content\":null,\"content\":null,\"tool_calls\":[{\"name\":\"f\",\"arguments\":{\"s\":\"1\"}}]}") == 0,
             "%s", l.text);
    p.format = "nonsense";
    PN_CHECK(pn_output_json(e, NULL, &p, "", 0, keep, &l, &err) == PN_E_INVALID && strstr(err.text, "nonsense"));
    p.format = NULL;
    p.tools = "[";
    PN_CHECK(pn_output_json(e, NULL, &p, "", 0, keep, &l, &err) == PN_E_FORMAT && strstr(err.text, "tools"), "%s", err.text);
}

int main(void)
{
    pn_engine *e = NULL;
    pn_err err;
    if (!PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK, "%s", err.text))
        return pn_test_end();
    test_events_come_as_text_is_pushed(e);
    test_json_has_all_keys(e);
    pn_mem_info m;
    pn_engine_memory(e, &m);
    PN_CHECK(m.used[PN_ACCT_MISC] < 1 << 16, "%llu bytes left", (unsigned long long)m.used[PN_ACCT_MISC]);
    pn_engine_close(e);
    return pn_test_end();
}
