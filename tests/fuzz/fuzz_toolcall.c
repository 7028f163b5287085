/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_toolcall.c - any bytes as a model's output.  The first byte picks the family, the second how the
 * parser is set up and how long the pieces are; whatever the pieces, the events must be the same.
 */
#include "pn_fuzz.h"

#include "text/pn_toolcall.h"

static const char fuzz_tools[] =
    "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},"
    "\"o\":{\"properties\":{\"s\":{\"type\":\"string\"}}},\"l\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}},"
    "\"r\":{\"$ref\":\"#/properties/r\"}}}}]";

/* Kind, call and texts of all events, neighbours of one kind joined. */
typedef struct fuzz_trace {
    pn_str s;
    int last;
    size_t calls;
    const char *input;
    size_t len;
} fuzz_trace;

/* A text is a copy of the input where it says it stands, or a line end of the parser's own. */
static void fuzz_place(const fuzz_trace *t, const pn_out_event *e)
{
    if (e->at > t->len)
        abort();
    if (e->len == 1 && e->text[0] == '\n')
        return;
    if (e->len > t->len - e->at || memcmp(t->input + e->at, e->text, e->len) != 0)
        abort();
}

static int fuzz_event(void *user, const pn_out_event *e)
{
    fuzz_trace *t = user;
    if (e->kind == PN_OUT_REASONING || e->kind == PN_OUT_CONTENT)
        fuzz_place(t, e);
    bool joins = t->last == (int)e->kind && e->kind != PN_OUT_CALL_BEGIN && e->kind != PN_OUT_CALL_END;
    if (!joins)
        pn_str_addf(&t->s, "\n%d %u %d:", (int)e->kind, (unsigned)e->call, (int)e->complete);
    pn_str_add(&t->s, e->text, e->len);
    pn_str_add(&t->s, e->id, e->id_len);
    t->last = (int)e->kind;
    if (e->kind == PN_OUT_CALL_BEGIN && e->call != t->calls++)
        abort();
    if ((e->kind == PN_OUT_ARGUMENTS || e->kind == PN_OUT_CALL_END) && e->call + 1 != t->calls)
        abort();
    return 0;
}

static void fuzz_run(pn_mem *mem, const pn_out_format *f, const pn_json_doc *tools, const char *prompt, const pn_out_params *params,
                     const char *text, size_t len, size_t piece, fuzz_trace *t)
{
    pn_out *p = NULL;
    pn_str_init(&t->s, mem, PN_ACCT_MISC);
    t->last = -1;
    t->calls = 0;
    t->input = text;
    t->len = len;
    if (pn_out_new(&p, mem, f, tools, prompt, strlen(prompt), params, fuzz_event, t, NULL))
        abort();
    for (size_t i = 0; i < len; i += piece)
        if (pn_out_push(p, text + i, PN_MIN(piece, len - i), NULL))
            abort();
    if (pn_out_end(p, NULL))
        abort();
    pn_out_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pn_mem mem;
    pn_json_doc tools;
    pn_out_format f;
    fuzz_trace a, b;
    size_t n = 0;
    if (size < 2)
        return 0;
    while (pn_out_family_name(n))
        n++;
    pn_mem_init_libc(&mem);
    if (!pn_out_find(&f, pn_out_family_name(data[0] % n)))
        abort();
    f.ends = data[1] & 1 ? ~(uint64_t)0 : 0;
    pn_out_params params = {.whole = (data[1] & 2) != 0, .no_reasoning = (data[1] & 0x60) == 0x60, .no_calls = (data[1] & 0xC0) == 0xC0};
    const char *prompt = data[1] & 4 ? "<|start|>assistant<think>" : data[1] & 8 ? ">>>" : "";
    if (pn_json_parse(&tools, &mem, PN_ACCT_MISC, fuzz_tools, sizeof fuzz_tools - 1, NULL, NULL))
        abort();
    const pn_json_doc *known = data[1] & 16 ? NULL : &tools;
    fuzz_run(&mem, &f, known, prompt, &params, (const char *)data + 2, size - 2, size, &a);
    fuzz_run(&mem, &f, known, prompt, &params, (const char *)data + 2, size - 2, 1 + data[1] % 7, &b);
    if (a.s.len != b.s.len || memcmp(pn_str_cstr(&a.s), pn_str_cstr(&b.s), a.s.len) != 0) {
        printf("whole:%s\n\npieces:%s\n", pn_str_cstr(&a.s), pn_str_cstr(&b.s));
        abort();
    }
    pn_str_fini(&a.s);
    pn_str_fini(&b.s);
    pn_json_fini(&tools);
    return 0;
}
