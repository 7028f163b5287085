/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_output_api.c - the public face of text/pn_toolcall.h: reasoning, content and tool calls of an answer.
 *
 * Owns what the parser borrows: the parsed tools, and the sink that hands events on in public dress.
 */
#include "engine/pn_engine_int.h"

#include "text/pn_template.h"
#include "text/pn_toolcall.h"

struct pn_output {
    pn_mem *mem;
    pn_out *parser;
    pn_json_doc tools;
    bool has_tools;
    pn_out_format format;
    pn_output_fn fn;
    void *user;
};

static int output_event(void *user, const pn_out_event *in)
{
    pn_output *o = user;
    pn_output_event e;
    memset(&e, 0, sizeof e);
    e.kind = in->kind == PN_OUT_REASONING ? PN_OUTPUT_REASONING
           : in->kind == PN_OUT_CONTENT ? PN_OUTPUT_CONTENT
           : in->kind == PN_OUT_CALL_BEGIN ? PN_OUTPUT_CALL_BEGIN
           : in->kind == PN_OUT_ARGUMENTS ? PN_OUTPUT_ARGUMENTS : PN_OUTPUT_CALL_END;
    e.call = in->call;
    e.complete = in->complete;
    e.text = in->text;
    e.len = in->len;
    e.id = in->id;
    e.id_len = in->id_len;
    return o->fn(o->user, &e);
}

static pn_bytes output_text(const char *text, size_t len)
{
    pn_bytes b = {text, text && !len ? strlen(text) : len};
    return b;
}

/* Where `what` stands last in text; NULL: nowhere. */
static const char *output_last(pn_bytes text, const char *what)
{
    size_t n = strlen(what);
    for (size_t i = text.len; i-- > 0;)
        if (text.data[i] == what[0] && text.len - i >= n && memcmp(text.data + i, what, n) == 0)
            return text.data + i;
    return NULL;
}

/* What the template writes for one user message, generation prompt or not; false: it cannot. */
static bool output_render(pn_mem *mem, const pn_tpl *t, const char *content, bool generation, pn_prompt *out)
{
    pn_str vars;
    pn_json_doc d;
    pn_str_init(&vars, mem, PN_ACCT_MISC);
    pn_str_addf(&vars, "{\"messages\":[{\"role\":\"user\",\"content\":%s}],\"bos_token\":\"\",\"eos_token\":\"\","
                "\"add_generation_prompt\":%s}", content, generation ? "true" : "false");
    bool ok = !vars.failed && pn_json_parse(&d, mem, PN_ACCT_MISC, vars.data, vars.len, NULL, NULL) == PN_OK;
    if (ok) {
        ok = pn_tpl_render(t, mem, &d, NULL, out, NULL) == PN_OK;
        pn_json_fini(&d);
    }
    pn_str_fini(&vars);
    return ok;
}

/* The generation prompt is what add_generation_prompt adds; with nothing else set, the template's own
 * defaults say whether it opens the reasoning. */
static bool output_rendered_prompt(pn_mem *mem, pn_bytes tmpl, pn_str *out)
{
    static const char *const contents[] = {"\"x\"", "[{\"type\":\"text\",\"text\":\"x\"}]"};
    pn_tpl *t = NULL;
    pn_prompt with, without;
    bool ok = false;
    if (!tmpl.len || pn_tpl_new(&t, mem, tmpl.data, tmpl.len, NULL))
        return false;
    pn_prompt_init(&with, mem);
    pn_prompt_init(&without, mem);
    for (size_t i = 0; i < PN_COUNT_OF(contents) && !ok; i++)
        ok = output_render(mem, t, contents[i], true, &with);
    for (size_t i = 0; ok && i < PN_COUNT_OF(contents); i++)
        if (output_render(mem, t, contents[i], false, &without))
            break;
    if (ok) {
        size_t n = 0, max = PN_MIN(with.text.len, without.text.len);
        while (n < max && with.text.data[n] == without.text.data[n])
            n++;
        pn_str_add(out, pn_str_cstr(&with.text) + n, with.text.len - n);
    }
    pn_prompt_fini(&with);
    pn_prompt_fini(&without);
    pn_tpl_free(t);
    return ok && !out->failed;
}

/* For a template that does not run: behind the last mention of the variable stand the prompt's
 * literals, and where they branch, the branch for thinking usually comes last. */
static pn_bytes output_guessed_prompt(pn_bytes tmpl)
{
    const char *at = output_last(tmpl, "add_generation_prompt");
    pn_bytes b = {at, at ? tmpl.len - (size_t)(at - tmpl.data) : 0};
    return b;
}

static pn_status output_start(pn_output *o, pn_mem *mem, const pn_output_params *p, pn_bytes tmpl, pn_err *err)
{
    pn_out_params params;
    pn_str text;
    pn_bytes prompt = output_text(p->prompt, p->prompt_len);
    pn_str_init(&text, mem, PN_ACCT_MISC);
    if (!prompt.data && output_rendered_prompt(mem, tmpl, &text)) {
        prompt.data = pn_str_cstr(&text);
        prompt.len = text.len;
    } else if (!prompt.data) {
        prompt = output_guessed_prompt(tmpl);
    }
    memset(&params, 0, sizeof params);
    params.whole = p->whole != 0;
    params.no_reasoning = p->no_reasoning != 0;
    params.no_calls = p->no_calls != 0;
    pn_status st = pn_out_new(&o->parser, mem, &o->format, o->has_tools ? &o->tools : NULL, prompt.data, prompt.len,
                              &params, output_event, o, err);
    pn_str_fini(&text);
    return st;
}

static pn_status output_tools(pn_output *o, pn_mem *mem, const pn_output_params *p, pn_err *err)
{
    pn_bytes t = output_text(p->tools, p->tools_len);
    if (!t.data)
        return PN_OK;
    pn_status st = pn_json_parse(&o->tools, mem, PN_ACCT_MISC, t.data, t.len, NULL, err);
    if (st)
        return pn_err_prefix(err, st, "tools");
    o->has_tools = true;
    return PN_OK;
}

PN_API pn_status pn_output_new(pn_engine *e, const pn_model *m, const pn_output_params *params, pn_output_fn fn,
                               void *user, pn_output **out, pn_err *err)
{
    pn_output_params p;
    memset(&p, 0, sizeof p);
    if (params)
        memcpy(&p, params, params->size ? PN_MIN(params->size, sizeof p) : sizeof p);
    if (!e || !fn || !out)
        return pn_fail(err, PN_E_INVALID, "pn_output_new: engine, fn and out must be given");
    pn_bytes tmpl = output_text(p.chat_template, p.chat_template_len);
    if (!tmpl.data && m)
        tmpl = pn_model_template(m, p.tools != NULL);
    pn_mem *mem = pn_engine_mem(e);
    pn_output *o = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *o);
    if (!o)
        return pn_fail_nomem(err, "an output parser", sizeof *o);
    o->mem = mem;
    o->fn = fn;
    o->user = user;
    pn_out_detect(&o->format, tmpl.data ? tmpl.data : "", tmpl.len);
    pn_status st = PN_OK;
    if (p.format && !pn_out_find(&o->format, p.format))
        st = pn_fail(err, PN_E_INVALID, "output format '%s' is not known; hermes, harmony, llama3 are some that are",
                     p.format);
    if (!st)
        st = output_tools(o, mem, &p, err);
    if (!st)
        st = output_start(o, mem, &p, tmpl, err);
    if (st) {
        pn_output_free(o);
        return st;
    }
    *out = o;
    return PN_OK;
}

PN_API pn_status pn_output_push(pn_output *o, const char *text, size_t len, pn_err *err)
{
    if (!o || (!text && len))
        return pn_fail(err, PN_E_INVALID, "pn_output_push: the parser and text must be given");
    return pn_out_push(o->parser, text, len, err);
}

PN_API pn_status pn_output_end(pn_output *o, pn_err *err) { return pn_out_end(o->parser, err); }
PN_API const char *pn_output_format(const pn_output *o) { return o->format.name; }

PN_API void pn_output_free(pn_output *o)
{
    if (!o)
        return;
    pn_out_free(o->parser);
    if (o->has_tools)
        pn_json_fini(&o->tools);
    pn_mem_free(o->mem, PN_ACCT_MISC, o, sizeof *o);
}

/* ------------------------------------------------------------------------------------------
 * At once
 * ------------------------------------------------------------------------------------------ */

static int output_gather(void *user, const pn_output_event *e)
{
    pn_out_event in;
    memset(&in, 0, sizeof in);
    in.kind = e->kind == PN_OUTPUT_REASONING ? PN_OUT_REASONING
            : e->kind == PN_OUTPUT_CONTENT ? PN_OUT_CONTENT
            : e->kind == PN_OUTPUT_CALL_BEGIN ? PN_OUT_CALL_BEGIN
            : e->kind == PN_OUTPUT_ARGUMENTS ? PN_OUT_ARGUMENTS : PN_OUT_CALL_END;
    in.call = e->call;
    in.complete = e->complete != 0;
    in.text = e->text;
    in.len = e->len;
    in.id = e->id;
    in.id_len = e->id_len;
    return pn_out_collect(user, &in);
}

PN_API pn_status pn_output_json(pn_engine *e, const pn_model *m, const pn_output_params *params, const char *text,
                                size_t len, pn_write_fn write, void *user, pn_err *err)
{
    pn_output *o = NULL;
    pn_out_result r;
    pn_str json;
    if (!e || !write || (!text && len))
        return pn_fail(err, PN_E_INVALID, "pn_output_json: engine, text and write must be given");
    pn_out_result_init(&r, pn_engine_mem(e));
    pn_str_init(&json, pn_engine_mem(e), PN_ACCT_MISC);
    pn_status st = pn_output_new(e, m, params, output_gather, &r, &o, err);
    if (!st)
        st = pn_output_push(o, text, len, err);
    if (!st)
        st = pn_output_end(o, err);
    if (!st)
        pn_out_result_json(&r, &json);
    if (r.failed || json.failed)
        st = pn_fail_nomem(err, "a parsed answer", (uint64_t)len);
    else if (!st && write(user, pn_str_cstr(&json), json.len))
        st = pn_fail(err, PN_E_CANCELLED, "the receiver of the parsed answer said stop");
    pn_output_free(o);
    pn_out_result_fini(&r);
    pn_str_fini(&json);
    return st;
}
