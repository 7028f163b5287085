/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_template.c - any bytes as a template, its variables, or both.
 *
 * The first byte chooses: 'v' variables for a fixed template that looks at everything, 'n' a request to
 * normalise for it, else a template over fixed variables; a NUL byte separates a template from variables
 * of its own.  Whatever happens, spans are in order and inside the text.
 */
#include "pn_fuzz.h"

#include "text/pn_chat_norm.h"

static const char fuzz_tpl_vars[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"\\u00ff\\u0100\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\\u0100\"}]},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
    "{\"a\":1.5,\"b\":[true,null]}}}]}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}],"
    "\"bos_token\":\"<s>\",\"x\":\"\\u0100 a,b\",\"n\":3,\"add_generation_prompt\":true}";

static const char fuzz_tpl_all[] =
    "{{ bos_token }}{% macro show(v, d=0) %}{% if v is mapping %}{% for k, w in v|dictsort %}{{ k }}={{ show(w, d + 1) }};{% endfor %}"
    "{% elif v is string %}{{ v|trim|upper }}{{ v[::-1] }}{{ v.split(',')|join('/') }}{{ v|tojson }}{{ v|title }}{{ v|indent }}{{ v|int }}"
    "{% elif v is iterable %}{% for w in v %}{{ loop.index }}{{ show(w, d + 1) }}{% endfor %}{{ v|tojson(indent=2) }}{{ v }}"
    "{% else %}{{ v }}{{ '%s'|format(v) }}{{ v is number }}{% endif %}{% endmacro %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ show(m.content) }}{% for c in m.tool_calls or [] %}{{ show(c) }}{% endfor %}{% endfor %}"
    "{% if tools %}{{ tools|tojson }}{% endif %}{{ show(x) }}";

static void fuzz_tpl_check(const pn_prompt *p)
{
    size_t at = 0;
    for (size_t i = 0; i < p->n_spans; i++) {
        if (p->spans[i].begin < at || p->spans[i].end <= p->spans[i].begin || p->spans[i].end > p->text.len)
            abort();
        at = p->spans[i].end;
    }
}

static void fuzz_tpl_render(pn_mem *mem, const pn_tpl *t, const char *json, size_t n, bool normalise)
{
    pn_json_doc d, e;
    pn_prompt p;
    pn_str s;
    pn_tpl_caps caps;
    pn_tpl_limits limits = {200000, 20000, 500, 1 << 16, 4 << 20, 1000000};
    if (pn_json_parse(&d, mem, PN_ACCT_MISC, json, n, NULL, NULL))
        return;
    pn_prompt_init(&p, mem);
    pn_str_init(&s, mem, PN_ACCT_MISC);
    if (!normalise && pn_tpl_render(t, mem, &d, &limits, &p, NULL) == PN_OK)
        fuzz_tpl_check(&p);
    memset(&caps, (int)(n & 1), sizeof caps);       /* all or nothing */
    if (normalise && pn_chat_normalize(&caps, mem, &d, &s, NULL) == PN_OK) {
        if (pn_json_parse(&e, mem, PN_ACCT_MISC, s.data, s.len, NULL, NULL))
            abort();
        pn_tpl_render(t, mem, &e, &limits, &p, NULL);
        fuzz_tpl_check(&p);
        pn_json_fini(&e);
    }
    pn_str_fini(&s);
    pn_prompt_fini(&p);
    pn_json_fini(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pn_mem mem;
    pn_tpl *t = NULL;
    const char *text = (const char *)data, *vars = fuzz_tpl_vars;
    size_t len = size, vars_len = sizeof fuzz_tpl_vars - 1;
    bool fixed = size && (data[0] == 'v' || data[0] == 'n');
    pn_mem_init_libc(&mem);
    if (fixed) {
        text = fuzz_tpl_all;
        len = sizeof fuzz_tpl_all - 1;
        vars = (const char *)data + 1;
        vars_len = size - 1;
    } else if (size) {
        const char *nul = memchr(data, 0, size);
        if (nul) {
            len = (size_t)(nul - text);
            vars = nul + 1;
            vars_len = size - len - 1;
        }
    }
    if (pn_tpl_new(&t, &mem, text, len, NULL) == PN_OK)
        fuzz_tpl_render(&mem, t, vars, vars_len, fixed && data[0] == 'n');
    pn_tpl_free(t);
    return 0;
}
