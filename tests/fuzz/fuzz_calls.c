/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_calls.c - any bytes as tools, and as what a model writes that has them.
 *
 * The first byte chooses the family and how calls are chosen, a NUL byte separates the tools (JSON; else
 * those below) from the answer.  A grammar that comes about follows the answer to its end or refuses it.
 * Of what it lets through, the family's parser reads calls that are whole, of tools there are, with JSON
 * objects for arguments; with the tools below also what their schemas want.  When none may come there is
 * none, when one is required there is one, when they are single there are not two.
 */
#include "pn_fuzz.h"

#include "sample/pn_guide.h"

static const char calls_usual[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"n\":{\"type\":\"integer\",\"maximum\":99}},\"required\":[\"n\"]}}},{\"name\":\"g\"}]";

/* What the schemas of calls_usual say. */
static bool calls_fit(const pn_json_doc *args, const char *name)
{
    uint32_t n = pn_json_get(args, PN_JSON_ROOT, "n"), s = pn_json_get(args, PN_JSON_ROOT, "s");
    int64_t i;
    if (strcmp(name, "g") == 0)
        return pn_json_count(args, PN_JSON_ROOT) == 0;
    return pn_json_i64(args, n, &i) && i <= 99 && (s == PN_JSON_NONE || pn_json_type_of(args, s) == PN_JSON_STRING);
}

static bool calls_known(const pn_json_doc *tools, const char *name, size_t len)
{
    pn_bytes b;
    for (uint32_t t = pn_json_first(tools, PN_JSON_ROOT); t != PN_JSON_NONE; t = pn_json_next(tools, t)) {
        uint32_t f = pn_json_get(tools, t, "function");
        f = pn_json_type_of(tools, f) == PN_JSON_OBJECT ? f : t;
        if (pn_json_str(tools, pn_json_get(tools, f, "name"), &b) && b.len == len && memcmp(b.data, name, len) == 0)
            return true;
    }
    return false;
}

static void calls_check_one(pn_mem *mem, const pn_out_call *c, const pn_json_doc *tools, bool usual)
{
    pn_json_doc args;
    const char *name = pn_str_cstr(&c->name);
    if (!c->complete || !calls_known(tools, name, c->name.len))
        abort();
    if (pn_json_parse(&args, mem, PN_ACCT_MISC, pn_str_cstr(&c->arguments), c->arguments.len, NULL, NULL) != PN_OK)
        abort();
    if (pn_json_type_of(&args, PN_JSON_ROOT) != PN_JSON_OBJECT || (usual && !calls_fit(&args, name)))
        abort();
    pn_json_fini(&args);
}

static void calls_check(pn_mem *mem, const pn_out_format *f, const pn_json_doc *tools, const pn_calls_params *p, bool usual, const char *text, size_t len)
{
    pn_out *o = NULL;
    pn_out_result r;
    const char *prompt = strcmp(f->name, "harmony") == 0 || strcmp(f->name, "muse") == 0 ? "<|start|>assistant"
                       : strcmp(f->name, "functionary-3.2") == 0 ? ">>>" : "";
    pn_out_result_init(&r, mem);
    if (pn_out_new(&o, mem, f, tools, prompt, strlen(prompt), NULL, pn_out_collect, &r, NULL) == PN_OK &&
        pn_out_push(o, text, len, NULL) == PN_OK && pn_out_end(o, NULL) == PN_OK) {
        for (size_t i = 0; i < r.n_calls; i++)
            calls_check_one(mem, &r.calls[i], tools, usual);
        if ((p->none && r.n_calls) || (p->required && !r.n_calls) || (p->single && r.n_calls > 1))
            abort();
    }
    pn_out_free(o);
    pn_out_result_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static pn_mem mem;
    pn_json_doc tools;
    pn_out_format f;
    pn_calls c;
    pn_guide *g = NULL;
    if (size < 2)
        return 0;
    pn_mem_init_libc(&mem);
    size_t n_families = 0;
    while (pn_out_family_name(n_families))
        n_families++;
    const uint8_t *nul = memchr(data + 2, 0, size - 2);
    size_t n = nul ? (size_t)(nul - data) - 2 : 0;
    const char *json = n ? (const char *)data + 2 : calls_usual, *text = (const char *)(nul ? nul + 1 : data + 2);
    size_t len = size - (size_t)(text - (const char *)data);
    pn_out_find(&f, pn_out_family_name(data[0] % n_families));
    if (pn_json_parse(&tools, &mem, PN_ACCT_MISC, json, n ? n : sizeof calls_usual - 1, NULL, NULL))
        return 0;
    const pn_calls_params p = {.format = &f, .tools = &tools, .required = data[1] % 4 == 1, .none = data[1] % 4 == 2, .single = data[1] & 4};
    if (pn_calls_new(&c, &mem, &p, NULL) == PN_OK) {
        const pn_guide_params q = {.gram = c.gram, .triggers = c.triggers, .n_triggers = c.n_triggers, .watch = c.watch, .owed = p.required,
                                   .lanes = true, .single = p.single, .forbid = p.none, .think_open = f.think_open,
                                   .think_close = f.think_close};
        if (pn_guide_new(&g, &mem, &q, NULL) == PN_OK && pn_guide_accept_bytes(g, text, len, NULL) == PN_OK && pn_guide_may_end(g))
            calls_check(&mem, &f, &tools, &p, !n, text, len);
        pn_guide_free(g);
        pn_calls_fini(&c);
    }
    pn_json_fini(&tools);
    return 0;
}
