/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_oai_completion.c - the fields of a completions request.
 */
#include "serve/pn_oai_read.h"

static pn_oai_completion *completion_of(const pn_oai_parser *p) { return (pn_oai_completion *)p->q; }

static bool completion_prompt(pn_oai_parser *p, const char *name, uint32_t node)
{
    return pn_oai_read_inputs(p, name, node, p->n_max, &completion_of(p)->prompts);
}

/* 0 generates nothing: with echo and logprobs it scores the prompt.  -1 is llama-server's "no limit". */
static bool completion_max_tokens(pn_oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    if (!pn_oai_read_int(p, name, node, -1, INT32_MAX, &v))
        return false;
    p->q->max_tokens = v < 0 ? 0 : (uint32_t)v;
    completion_of(p)->prompt_only = v == 0;
    return true;
}

/* The number of alternatives; OpenAI stops at 5. */
static bool completion_logprobs(pn_oai_parser *p, const char *name, uint32_t node)
{
    int64_t v;
    if (!pn_oai_read_int(p, name, node, 0, 20, &v))
        return false;
    p->q->logprobs = true;
    p->q->top_logprobs = (uint32_t)v;
    return true;
}

static bool completion_echo(pn_oai_parser *p, const char *name, uint32_t node)
{
    return pn_oai_read_bool(p, name, node, &completion_of(p)->echo);
}

static bool completion_suffix(pn_oai_parser *p, const char *name, uint32_t node)
{
    pn_bytes text;
    bool ok = pn_oai_read_text(p, name, node, &text);
    if (ok && text.len)
        completion_of(p)->suffix = text;
    return ok;
}

static const pn_oai_field completion_fields[] = {
    {"prompt", completion_prompt}, {"max_tokens", completion_max_tokens}, {"logprobs", completion_logprobs},
    {"echo", completion_echo}, {"suffix", completion_suffix}, {"best_of", pn_oai_read_nothing},
};

/* More candidates than answers would have to be compared, which is not there. */
static bool completion_check(pn_oai_parser *p)
{
    const pn_json_doc *d = &p->q->body;
    const pn_oai_completion *q = completion_of(p);
    uint32_t best = pn_json_get(d, PN_JSON_ROOT, "best_of");
    int64_t v;
    if (!q->prompts.n)
        return pn_oai_fail(p, "prompt", "prompt: expected a string, an array of strings, or tokens; found nothing");
    if (pn_oai_given(d, best) && !pn_oai_read_int(p, "best_of", best, 0, 20, &v))
        return false;
    if (pn_oai_given(d, best) && v > p->q->n)
        return pn_oai_fail(p, "best_of", "best_of: expected at most n, which is %u, found %d", (unsigned)p->q->n, (int)v);
    if ((uint64_t)q->prompts.n * p->q->n > p->n_max)
        return pn_oai_fail(p, "n", "n: expected at most %u choices of all prompts together, found %zu prompts with %u each",
                           (unsigned)p->n_max, q->prompts.n, (unsigned)p->q->n);
    return true;
}

PN_INTERNAL bool pn_oai_completion_parse(pn_oai_completion *out, pn_mem *mem, const char *text, size_t len, uint32_t n_max, pn_oai_error *e)
{
    pn_oai_parser p = {&out->common, e, n_max};
    memset(out, 0, sizeof *out);
    bool ok = pn_oai_open(&p, mem, text, len) && pn_oai_read_fields(&p, completion_fields, PN_COUNT_OF(completion_fields), true) &&
              completion_check(&p);
    if (!ok)
        pn_oai_completion_fini(out);
    return ok;
}

PN_INTERNAL void pn_oai_completion_fini(pn_oai_completion *q)
{
    pn_oai_inputs_fini(q->common.mem, &q->prompts);
    pn_oai_close(&q->common);
}
