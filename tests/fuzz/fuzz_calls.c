/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_calls.c - any bytes as tools, and as what a model writes that has them.
 *
 * The first byte chooses the family and how calls are chosen, a NUL byte separates the tools (JSON; else
 * those below) from the answer.  A grammar that comes about follows the answer to its end or refuses it;
 * what it lets through whole the family's parser reads as calls that are whole.
 */
#include "pn_fuzz.h"

#include "sample/pn_guide.h"

static const char calls_usual[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"n\":{\"type\":\"integer\",\"maximum\":99}},\"required\":[\"n\"]}}},{\"name\":\"g\"}]";

/* Read back: as many calls begun as ended well. */
static void calls_check(pn_mem *mem, const pn_out_format *f, const pn_json_doc *tools, const char *text, size_t len)
{
    pn_out *p = NULL;
    pn_out_result r;
    pn_out_result_init(&r, mem);
    if (pn_out_new(&p, mem, f, tools, "", 0, NULL, pn_out_collect, &r, NULL) == PN_OK && pn_out_push(p, text, len, NULL) == PN_OK &&
        pn_out_end(p, NULL) == PN_OK)
        for (size_t i = 0; i < r.n_calls; i++)
            if (!r.calls[i].complete)
                abort();
    pn_out_free(p);
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
        const pn_guide_params q = {.gram = c.gram, .triggers = c.triggers, .n_triggers = c.n_triggers, .lanes = true, .single = p.single,
                                   .forbid = p.none, .think_open = f.think_open, .think_close = f.think_close};
        if (pn_guide_new(&g, &mem, &q, NULL) == PN_OK && pn_guide_accept_bytes(g, text, len, NULL) == PN_OK && pn_guide_may_end(g) && p.required)
            calls_check(&mem, &f, &tools, text, len);
        pn_guide_free(g);
        pn_calls_fini(&c);
    }
    pn_json_fini(&tools);
    return 0;
}
