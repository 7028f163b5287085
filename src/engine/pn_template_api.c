/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_template_api.c - the public face of text/pn_template.h and text/pn_chat_norm.h.
 *
 * Owns what a rendering needs besides the program: what the template can do (probed once, here) and
 * the texts of the model's special tokens, which the template sees as bos_token and its kin.  Those are
 * trusted, so with a model its own win over what a request says.
 */
#include "engine/pn_engine_int.h"

#include "text/pn_chat_norm.h"

struct pn_template {
    pn_mem *mem;
    pn_tpl *program, *tool_program;     /* the second, if it is not NULL, when there are tools */
    pn_tpl_caps caps, tool_caps;
    pn_str tokens;              /* "bos_token":"<s>",...  empty without a model */
};

struct pn_rendered {
    pn_mem *mem;
    pn_prompt prompt;
    size_t n_segments;
};

static pn_status tapi_open(pn_mem *mem, const char *text, size_t len, pn_template **out, pn_err *err)
{
    pn_template *t = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *t);
    if (!t)
        return pn_fail_nomem(err, "a template", sizeof *t);
    t->mem = mem;
    pn_str_init(&t->tokens, mem, PN_ACCT_MISC);
    pn_status st = pn_tpl_new(&t->program, mem, text, len, err);
    if (!st)
        st = pn_tpl_probe(t->program, mem, &t->caps, err);
    if (st) {
        pn_template_close(t);
        return st;
    }
    *out = t;
    return PN_OK;
}

PN_API pn_status pn_template_open(pn_engine *e, const char *text, size_t len, pn_template **out, pn_err *err)
{
    if (!e || (!text && len) || !out)
        return pn_fail(err, PN_E_INVALID, "pn_template_open: engine, text and out must be given");
    return tapi_open(pn_engine_mem(e), text ? text : "", len, out, err);
}

PN_API pn_status pn_template_open_model(const pn_model *m, pn_template **out, pn_err *err)
{
    static const struct { const char *name; pn_special which; } tokens[] = {
        {"bos_token", PN_SPECIAL_BOS}, {"eos_token", PN_SPECIAL_EOS}, {"pad_token", PN_SPECIAL_PAD}, {"unk_token", PN_SPECIAL_UNK}};
    pn_template *t = NULL;
    if (!m || !out)
        return pn_fail(err, PN_E_INVALID, "pn_template_open_model: model and out must be given");
    if (!m->chat_template.len)
        return pn_fail(err, PN_E_UNSUPPORTED, "the model's file has no chat template (tokenizer.chat_template)");
    pn_status st = tapi_open(pn_engine_mem(m->engine), m->chat_template.data, m->chat_template.len, &t, err);
    if (!st && m->tool_template.len && m->tool_template.data != m->chat_template.data) {
        st = pn_tpl_new(&t->tool_program, t->mem, m->tool_template.data, m->tool_template.len, err);
        if (!st)
            st = pn_tpl_probe(t->tool_program, t->mem, &t->tool_caps, err);
        if (st)
            pn_template_close(t);
    }
    if (st)
        return pn_err_prefix(err, st, "the model's chat template");
    for (size_t i = 0; i < PN_COUNT_OF(tokens); i++) {
        pn_token id = pn_vocab_special(m->vocab, tokens[i].which);
        pn_bytes text = id < 0 ? (pn_bytes){"", 0} : pn_vocab_text(m->vocab, id);
        pn_json_key(&t->tokens, tokens[i].name);
        pn_json_write_str(&t->tokens, text.data ? text.data : "", text.len);
    }
    if (t->tokens.failed) {
        pn_template_close(t);
        return pn_fail_nomem(err, "a template's tokens", 256);
    }
    *out = t;
    return PN_OK;
}

PN_API void pn_template_close(pn_template *t)
{
    if (!t)
        return;
    pn_mem *mem = t->mem;
    pn_tpl_free(t->program);
    pn_tpl_free(t->tool_program);
    pn_str_fini(&t->tokens);
    pn_mem_free(mem, PN_ACCT_MISC, t, sizeof *t);
}

/* The variables as JSON text.  Of equal keys the last one counts: raw input has its way, a request has
 * not. */
static pn_status tapi_variables(const pn_template *t, const pn_tpl_caps *caps, const pn_json_doc *in, bool raw, pn_str *out, pn_err *err)
{
    pn_str body;
    pn_str_init(&body, t->mem, PN_ACCT_MISC);
    pn_status st = PN_OK;
    if (raw)
        pn_json_write_node(&body, in, PN_JSON_ROOT);
    else
        st = pn_chat_normalize(caps, t->mem, in, &body, err);
    if (!st && !body.failed) {
        const char *inner = body.data + 1;
        size_t len = body.len - 2;
        pn_str_addc(out, '{');
        if (raw)
            pn_str_add(out, pn_str_cstr(&t->tokens), t->tokens.len);
        if (raw && t->tokens.len && len)
            pn_str_addc(out, ',');
        pn_str_add(out, inner, len);
        if (!raw && t->tokens.len) {
            if (len)
                pn_str_addc(out, ',');
            pn_str_add(out, t->tokens.data, t->tokens.len);
        }
        pn_str_addc(out, '}');
    }
    if (!st && (body.failed || out->failed))
        st = pn_fail_nomem(err, "the variables of a template", body.len);
    pn_str_fini(&body);
    return st;
}

static pn_status tapi_render(const pn_template *t, const pn_json_doc *in, bool raw, pn_prompt *out, pn_err *err)
{
    pn_str text;
    pn_json_doc vars;
    if (pn_json_type_of(in, PN_JSON_ROOT) != PN_JSON_OBJECT)
        return pn_fail(err, PN_E_INVALID, "expected a JSON object of variables, found %s",
                       pn_json_type_name(pn_json_type_of(in, PN_JSON_ROOT)));
    const uint32_t tools = pn_json_get(in, PN_JSON_ROOT, "tools");
    const bool called = t->tool_program && pn_json_type_of(in, tools) == PN_JSON_ARRAY && pn_json_count(in, tools) > 0;
    pn_str_init(&text, t->mem, PN_ACCT_MISC);
    pn_status st = tapi_variables(t, called ? &t->tool_caps : &t->caps, in, raw, &text, err);
    if (!st)
        st = pn_json_parse(&vars, t->mem, PN_ACCT_MISC, text.data, text.len, NULL, err);
    if (!st) {
        st = pn_tpl_render(called ? t->tool_program : t->program, t->mem, &vars, NULL, out, err);
        pn_json_fini(&vars);
    }
    pn_str_fini(&text);
    return st;
}

PN_API pn_status pn_template_render_json(const pn_template *t, const char *vars_json, size_t len, unsigned flags,
                                         pn_rendered **out, pn_err *err)
{
    pn_json_doc in;
    pn_json_params params;
    if (!t || (!vars_json && len) || !out)
        return pn_fail(err, PN_E_INVALID, "pn_template_render_json: template, variables and out must be given");
    memset(&params, 0, sizeof params);
    params.fix_surrogates = true;
    pn_rendered *p = pn_mem_calloc(t->mem, PN_ACCT_MISC, 1, sizeof *p);
    if (!p)
        return pn_fail_nomem(err, "a prompt", sizeof *p);
    p->mem = t->mem;
    pn_prompt_init(&p->prompt, t->mem);
    pn_status st = pn_json_parse(&in, t->mem, PN_ACCT_MISC, vars_json ? vars_json : "", len, &params, err);
    if (!st) {
        st = tapi_render(t, &in, (flags & PN_RENDER_RAW) != 0, &p->prompt, err);
        pn_json_fini(&in);
    }
    if (st) {
        pn_rendered_free(p);
        return st;
    }
    *out = p;
    return PN_OK;
}

PN_API void pn_rendered_free(pn_rendered *p)
{
    if (!p)
        return;
    pn_mem *mem = p->mem;
    pn_prompt_fini(&p->prompt);
    pn_mem_free(mem, PN_ACCT_MISC, p, sizeof *p);
}

PN_API const char *pn_rendered_text(const pn_rendered *p, size_t *len)
{
    if (len)
        *len = p->prompt.text.len;
    return pn_str_cstr(&p->prompt.text);
}

/* Segments alternate, and the spans say where; the first is untrusted unless a span starts at 0.  So
 * segment i belongs to span i / 2 with at most one shift. */
static bool tapi_starts_trusted(const pn_prompt *p) { return p->n_spans && p->spans[0].begin == 0; }

PN_API size_t pn_rendered_segment_count(const pn_rendered *r)
{
    const pn_prompt *p = &r->prompt;
    if (!p->n_spans)
        return p->text.len != 0;
    return p->n_spans * 2 - tapi_starts_trusted(p) + (p->spans[p->n_spans - 1].end < p->text.len);
}

PN_API pn_segment pn_rendered_segment(const pn_rendered *r, size_t i)
{
    const pn_prompt *p = &r->prompt;
    pn_segment s = {"", 0, 0};
    if (i >= pn_rendered_segment_count(r))
        return s;
    size_t k = i + tapi_starts_trusted(p), span = k / 2;       /* odd k: trusted */
    size_t begin, end;
    if (k % 2) {
        begin = p->spans[span].begin;
        end = p->spans[span].end;
    } else {
        begin = span ? p->spans[span - 1].end : 0;
        end = span < p->n_spans ? p->spans[span].begin : p->text.len;
    }
    s.text = pn_str_cstr(&p->text) + begin;
    s.len = end - begin;
    s.trusted = (int)(k % 2);
    return s;
}

/* Does trusted text begin with the BOS token? */
static bool tapi_has_bos(const pn_prompt *p, const pn_vocab *v, pn_token bos)
{
    pn_bytes text = pn_vocab_text(v, bos);
    return text.len && p->n_spans && p->spans[0].begin == 0 && text.len <= p->spans[0].end &&
           memcmp(p->text.data, text.data, text.len) == 0;
}

PN_API pn_status pn_rendered_tokenize(const pn_rendered *r, const pn_model *m, pn_token *out, size_t cap, size_t *n,
                                      pn_err *err)
{
    static const pn_span none = {0, 0};
    if (!r || !m || !n)
        return pn_fail(err, PN_E_INVALID, "pn_rendered_tokenize: prompt, model and n must be given");
    const pn_prompt *p = &r->prompt;
    pn_mem *mem = pn_engine_mem(m->engine);
    pn_token *list = NULL, bos = pn_vocab_special(m->vocab, PN_SPECIAL_BOS);
    size_t n_list = 0, cap_list = 0;
    bool add = bos >= 0 && pn_vocab_add_bos(m->vocab) && !tapi_has_bos(p, m->vocab, bos);
    if (add) {
        if (!pn_mem_grow(mem, PN_ACCT_MISC, (void **)&list, &cap_list, 1, sizeof *list))
            return pn_fail_nomem(err, "token ids", sizeof *list);
        list[n_list++] = bos;
    }
    pn_status st = pn_vocab_encode(m->vocab, mem, pn_str_cstr(&p->text), p->text.len, PN_ENC_SPECIAL,
                                   p->spans ? p->spans : &none, p->n_spans, &list, &n_list, &cap_list, err);
    if (!st) {
        if (out && n_list)
            memcpy(out, list, PN_MIN(n_list, cap) * sizeof *out);
        *n = n_list;
    }
    pn_mem_free(mem, PN_ACCT_MISC, list, cap_list * sizeof *list);
    return st;
}
