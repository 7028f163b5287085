/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_ask_once.c - requests that generate no text: tokens, templates, counts, embeddings.
 */
#include "serve/pn_ask_int.h"

/* ------------------------------------------------------------------------------------------
 * A conversation's prompt
 * ------------------------------------------------------------------------------------------ */

/* What the template sees: {"messages":[...],"tools":[...],"add_generation_prompt":...} and the request's variables. */
static void once_variables(const pn_oai_chat *q, bool opened, pn_str *out)
{
    const pn_json_doc *d = &q->common.body;
    uint32_t n = 0;
    pn_str_addz(out, "{\"messages\":[");
    for (uint32_t i = pn_json_first(d, q->messages); i != PN_JSON_NONE && n < q->n_messages; i = pn_json_next(d, i), n++) {
        pn_json_item(out);
        pn_json_write_node(out, d, i);
    }
    pn_str_addc(out, ']');
    if (q->tools != PN_JSON_NONE) {
        pn_json_key(out, "tools");
        pn_oai_chat_tools(q, out);
    }
    pn_json_key(out, "add_generation_prompt");
    pn_json_write_bool(out, opened);
    if (q->variables.len > 2) {
        pn_str_addc(out, ',');
        pn_str_add(out, q->variables.data + 1, q->variables.len - 2);
    }
    pn_str_addc(out, '}');
}

static pn_status once_render(serve_ask *a, bool opened, pn_rendered **out, pn_err *err)
{
    pn_str vars;
    if (!a->at->tpl)
        return pn_fail(err, PN_E_UNSUPPORTED, "the model '%s' has no chat template", a->model->name);
    pn_str_init(&vars, &a->server->mem, PN_ACCT_CONN);
    once_variables(a->req->chat, opened, &vars);
    pn_status st = vars.failed ? pn_fail_nomem(err, "a prompt", vars.len)
                               : pn_template_render_json(a->at->tpl, vars.data, vars.len, 0, out, err);
    pn_str_fini(&vars);
    return st;
}

static pn_status once_tokens_of(serve_ask *a, bool opened, serve_tokens *t, pn_err *err)
{
    pn_rendered *r;
    size_t n;
    pn_status st = once_render(a, opened, &r, err);
    if (st)
        return st;
    st = pn_rendered_tokenize(r, a->at->m, NULL, 0, &n, err);
    if (!st) {
        t->list = pn_mem_calloc(&a->server->mem, PN_ACCT_CONN, n, sizeof *t->list);
        t->n = t->list ? n : 0;
        st = t->list ? pn_rendered_tokenize(r, a->at->m, t->list, n, &n, err) : pn_fail_nomem(err, "a prompt", n * sizeof *t->list);
    }
    pn_rendered_free(r);
    return st;
}

static void once_free(serve_ask *a, serve_tokens *t)
{
    pn_mem_free(&a->server->mem, PN_ACCT_CONN, t->list, t->n * sizeof *t->list);
    *t = (serve_tokens){0};
}

PN_INTERNAL uint32_t serve_ask_count(serve_ask *a)
{
    serve_tokens t = {0};
    size_t n = 0;
    if (a->req->chat) {
        if (once_tokens_of(a, true, &t, NULL) == PN_OK)
            n = t.n;
    } else {
        const pn_oai_inputs *in = a->kind == SERVE_EMBED ? &a->req->of.embeddings.inputs : &a->req->of.completion.prompts;
        for (size_t i = 0; i < in->n; i++) {
            once_free(a, &t);
            if (serve_ask_tokens(a, in, i, &t, NULL) == PN_OK)
                n = PN_MAX(n, t.n);
        }
    }
    once_free(a, &t);
    return (uint32_t)n;
}

/* ------------------------------------------------------------------------------------------
 * Text and tokens
 * ------------------------------------------------------------------------------------------ */

static pn_status once_text_tokens(serve_ask *a, serve_tokens *t, pn_err *err)
{
    const pn_oai_tokenize *q = &a->req->of.tokenize;
    unsigned flags = (q->add_special ? (unsigned)PN_TOKENIZE_BOS : 0u) | (q->parse_special ? (unsigned)PN_TOKENIZE_SPECIAL : 0u);
    size_t n;
    pn_status st = pn_tokenize(a->at->m, q->text.data, q->text.len, flags, NULL, 0, &n, err);
    if (st)
        return st;
    t->list = pn_mem_calloc(&a->server->mem, PN_ACCT_CONN, n, sizeof *t->list);
    t->n = t->list ? n : 0;
    return t->list ? pn_tokenize(a->at->m, q->text.data, q->text.len, flags, t->list, n, &n, err)
                   : pn_fail_nomem(err, "tokens", n * sizeof *t->list);
}

/* The text of each token, one behind the other in `texts`. */
static pn_status once_pieces(serve_ask *a, const serve_tokens *t, pn_bytes *pieces, pn_str *texts, pn_err *err)
{
    pn_status st = PN_OK;
    for (int pass = 0; pass < 2 && !st; pass++) {      /* lengths first: the string moves while it grows */
        size_t at = 0;
        for (size_t i = 0; i < t->n && !st; i++) {
            char buf[512];
            size_t n;
            st = pn_detokenize(a->at->m, &t->list[i], 1, 1, buf, sizeof buf, &n, err);
            n = PN_MIN(n, sizeof buf);
            if (!pass)
                pn_str_add(texts, buf, st ? 0 : n);
            else
                pieces[i] = (pn_bytes){pn_str_cstr(texts) + at, n};
            at += n;
        }
    }
    return st ? st : texts->failed ? pn_fail_nomem(err, "tokens", texts->len) : PN_OK;
}

static pn_status once_tokenize(serve_ask *a, pn_str *out, pn_err *err)
{
    const pn_oai_tokenize *q = &a->req->of.tokenize;
    pn_mem *mem = &a->server->mem;
    serve_tokens t = {0};
    pn_str texts;
    pn_bytes *pieces = NULL;
    pn_str_init(&texts, mem, PN_ACCT_CONN);
    pn_status st = q->text.data ? once_text_tokens(a, &t, err) : once_tokens_of(a, q->add_generation_prompt, &t, err);
    size_t n = t.n;
    if (!st && q->pieces) {
        pieces = pn_mem_calloc(mem, PN_ACCT_CONN, n, sizeof *pieces);
        st = pieces ? once_pieces(a, &t, pieces, &texts, err) : pn_fail_nomem(err, "tokens", n * sizeof *pieces);
    }
    if (!st)
        pn_oai_tokenize_body(out, q, t.list, pieces, n, a->at->n_ctx);
    pn_mem_free(mem, PN_ACCT_CONN, pieces, n * sizeof *pieces);
    pn_str_fini(&texts);
    once_free(a, &t);
    return st;
}

static pn_status once_detokenize(serve_ask *a, pn_str *out, pn_err *err)
{
    const pn_oai_detokenize *q = &a->req->of.detokenize;
    size_t n;
    pn_status st = pn_detokenize(a->at->m, q->tokens, q->n, 1, NULL, 0, &n, err);
    char *text = st ? NULL : pn_mem_alloc(&a->server->mem, PN_ACCT_CONN, n + 1);
    if (st || !text)
        return st ? st : pn_fail_nomem(err, "a text", n);
    size_t cap = n + 1;
    st = pn_detokenize(a->at->m, q->tokens, q->n, 1, text, n, &n, err);
    if (!st)
        pn_oai_detokenize_body(out, text, n);
    pn_mem_free(&a->server->mem, PN_ACCT_CONN, text, cap);
    return st;
}

static pn_status once_template(serve_ask *a, pn_str *out, pn_err *err)
{
    pn_rendered *r;
    size_t n;
    pn_status st = once_render(a, a->req->of.tokenize.add_generation_prompt, &r, err);
    if (st)
        return st;
    const char *text = pn_rendered_text(r, &n);
    pn_oai_template_body(out, text, n);
    pn_rendered_free(r);
    return PN_OK;
}

static pn_status once_count(serve_ask *a, pn_str *out, pn_err *err)
{
    serve_tokens t = {0};
    pn_status st = once_tokens_of(a, true, &t, err);
    if (!st)
        pn_oai_input_tokens_body(out, t.n);
    once_free(a, &t);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Embeddings
 * ------------------------------------------------------------------------------------------ */

static pn_status once_vector(serve_ask *a, pn_session *s, size_t i, float *out, pn_err *err)
{
    static const pn_pooling poolings[] = {PN_POOLING_DEFAULT, PN_POOLING_MEAN, PN_POOLING_LAST};
    const pn_oai_embeddings *q = &a->req->of.embeddings;
    serve_tokens t = {0};
    pn_status st = serve_ask_tokens(a, &q->inputs, i, &t, err);
    if (!st && !t.n)
        st = pn_fail(err, PN_E_INVALID, "input: an empty text has no embedding");
    if (!st)
        st = pn_session_embed(s, t.list, t.n, poolings[q->pooling], 1, out, err);
    a->usage.prompt += (uint32_t)t.n;
    once_free(a, &t);
    return st;
}

static pn_status once_embed(serve_ask *a, pn_str *out, pn_err *err)
{
    const pn_oai_embeddings *q = &a->req->of.embeddings;
    const serve_replica *m = a->at;
    pn_mem *mem = &a->server->mem;
    size_t n = q->inputs.n, dim = m->info.n_embd;
    if (q->dimensions && q->dimensions != dim)
        return pn_fail(err, PN_E_INVALID, "dimensions: expected %zu, as this model makes them (they cannot be cut), found %u", dim, (unsigned)q->dimensions);
    const pn_session_params p = {.n_ctx = m->n_ctx, .by_turn = 1};
    pn_session *s = NULL;
    float *values = pn_mem_calloc(mem, PN_ACCT_CONN, n * dim, sizeof *values);
    const float **rows = pn_mem_calloc(mem, PN_ACCT_CONN, n, sizeof *rows);
    pn_status st = values && rows ? pn_session_new(m->m, &p, &s, err) : pn_fail_nomem(err, "embeddings", n * dim * sizeof *values);
    for (size_t i = 0; i < n && !st; i++) {
        rows[i] = values + i * dim;
        st = atomic_load(&a->cancelled) ? pn_fail(err, PN_E_CANCELLED, "cancelled") : once_vector(a, s, i, values + i * dim, err);
    }
    if (!st)
        pn_oai_embeddings_body(out, a->served.data, rows, n, dim, q->base64, &a->usage);
    pn_session_free(s);
    pn_mem_free(mem, PN_ACCT_CONN, rows, n * sizeof *rows);
    pn_mem_free(mem, PN_ACCT_CONN, values, n * dim * sizeof *values);
    return st;
}

PN_INTERNAL pn_status serve_ask_once(serve_ask *a, pn_err *err)
{
    pn_str out;
    pn_status st;
    pn_str_init(&out, &a->server->mem, PN_ACCT_CONN);
    switch (a->kind) {
    case SERVE_EMBED: st = once_embed(a, &out, err); break;
    case SERVE_TOKENIZE: st = once_tokenize(a, &out, err); break;
    case SERVE_DETOKENIZE: st = once_detokenize(a, &out, err); break;
    case SERVE_TEMPLATE: st = once_template(a, &out, err); break;
    default: st = once_count(a, &out, err); break;
    }
    if (!st && out.failed)
        st = pn_fail_nomem(err, "an answer", out.len);
    if (!st && serve_ask_emit(a, NULL, out.data, out.len))
        st = pn_fail_nomem(err, "an answer", out.len);
    a->ended = !st;
    pn_str_fini(&out);
    return st;
}
