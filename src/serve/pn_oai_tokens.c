/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_oai_tokens.c - texts to tokens and back, asked for and answered.
 */
#include "serve/pn_oai_tokens.h"

#include "base/pn_utf8.h"
#include "serve/pn_oai_read.h"

/* ------------------------------------------------------------------------------------------
 * Requests
 * ------------------------------------------------------------------------------------------ */

/* The rows' readers get a parser whose q is the first member of the request. */
static pn_oai_tokenize *tokens_of(const pn_oai_parser *p) { return (pn_oai_tokenize *)p->q; }

static bool tokens_text(pn_oai_parser *p, const char *name, uint32_t node)
{
    tokens_of(p)->vllm |= strcmp(name, "prompt") == 0;
    return pn_oai_read_text(p, name, node, &tokens_of(p)->text);
}

static bool tokens_switch(pn_oai_parser *p, const char *name, uint32_t node)
{
    pn_oai_tokenize *q = tokens_of(p);
    const struct { const char *name; bool *at; } all[] = {
        {"add_special", &q->add_special}, {"add_special_tokens", &q->add_special}, {"parse_special", &q->parse_special},
        {"with_pieces", &q->pieces}, {"return_token_strs", &q->pieces}, {"add_generation_prompt", &q->add_generation_prompt},
    };
    size_t i = 0;
    while (strcmp(all[i].name, name) != 0)
        i++;
    return pn_oai_read_bool(p, name, node, all[i].at);
}

static const pn_oai_field tokens_fields[] = {
    {"content", tokens_text}, {"prompt", tokens_text}, {"messages", pn_oai_read_nothing}, {"add_special", tokens_switch},
    {"add_special_tokens", tokens_switch}, {"parse_special", tokens_switch}, {"with_pieces", tokens_switch},
    {"return_token_strs", tokens_switch}, {"add_generation_prompt", tokens_switch},
};

/* vLLM adds special tokens to prompts unless told not to, but not to messages: their template has them. */
static bool tokens_read(pn_oai_parser *p, bool *has_messages)
{
    const pn_json_doc *d = &p->q->body;
    pn_oai_tokenize *q = tokens_of(p);
    *has_messages = pn_oai_given(d, pn_json_get(d, PN_JSON_ROOT, "messages"));
    q->vllm = *has_messages;
    q->parse_special = q->add_generation_prompt = true;
    q->add_special = !*has_messages && pn_oai_given(d, pn_json_get(d, PN_JSON_ROOT, "prompt"));
    if (!pn_oai_read_fields(p, tokens_fields, PN_COUNT_OF(tokens_fields), false))
        return false;
    return *has_messages || q->text.data || pn_oai_fail(p, "content", "content: expected content, prompt or messages; found none of them");
}

PN_INTERNAL bool pn_oai_tokenize_parse(pn_oai_tokenize *out, pn_mem *mem, const char *text, size_t len, pn_oai_error *e)
{
    pn_oai_parser p = {&out->chat.common, e, 1};
    bool has_messages = false;
    memset(out, 0, sizeof *out);
    pn_str_init(&out->chat.variables, mem, PN_ACCT_CONN);
    bool ok = pn_oai_open(&p, mem, text, len) && tokens_read(&p, &has_messages);
    if (ok && !has_messages)
        return true;
    pn_oai_chat_fini(&out->chat);
    out->text = (pn_bytes){NULL, 0};
    return ok && pn_oai_chat_parse(&out->chat, mem, text, len, 1, e);
}

PN_INTERNAL void pn_oai_tokenize_fini(pn_oai_tokenize *q) { pn_oai_chat_fini(&q->chat); }

PN_INTERNAL bool pn_oai_template_parse(pn_oai_tokenize *out, pn_mem *mem, const char *text, size_t len, pn_oai_error *e)
{
    if (!pn_oai_tokenize_parse(out, mem, text, len, e))
        return false;
    if (!out->text.data)
        return true;
    pn_oai_error_set(e, 400, "invalid_request_error", "invalid_value", "messages", "messages: expected an array of messages, found nothing");
    pn_oai_tokenize_fini(out);
    return false;
}

static bool tokens_list(pn_oai_parser *p, const char *name, uint32_t node)
{
    const pn_json_doc *d = &p->q->body;
    pn_oai_detokenize *q = (pn_oai_detokenize *)p->q;
    if (pn_json_type_of(d, node) != PN_JSON_ARRAY)
        return pn_oai_expected(p, name, "an array of tokens", node);
    for (uint32_t c = pn_json_first(d, node); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        int64_t id;
        if (!pn_oai_read_int(p, name, c, 0, INT32_MAX, &id))
            return false;
        if (!pn_mem_grow(p->q->mem, PN_ACCT_CONN, (void **)&q->tokens, &q->cap, q->n + 1, sizeof *q->tokens))
            return pn_oai_fail_memory(p);
        q->tokens[q->n++] = (pn_token)id;
    }
    return true;
}

PN_INTERNAL bool pn_oai_detokenize_parse(pn_oai_detokenize *out, pn_mem *mem, const char *text, size_t len, pn_oai_error *e)
{
    static const pn_oai_field fields[] = {{"tokens", tokens_list}};
    pn_oai_parser p = {&out->common, e, 1};
    memset(out, 0, sizeof *out);
    bool ok = pn_oai_open(&p, mem, text, len) && pn_oai_read_fields(&p, fields, 1, false);
    if (ok && !pn_oai_given(&out->common.body, pn_json_get(&out->common.body, PN_JSON_ROOT, "tokens")))
        ok = pn_oai_fail(&p, "tokens", "tokens: expected an array of tokens, found nothing");
    if (!ok)
        pn_oai_detokenize_fini(out);
    return ok;
}

PN_INTERNAL void pn_oai_detokenize_fini(pn_oai_detokenize *q)
{
    pn_mem_free(q->common.mem, PN_ACCT_CONN, q->tokens, q->cap * sizeof *q->tokens);
    q->tokens = NULL;
    q->n = q->cap = 0;
    pn_oai_close(&q->common);
}

/* ------------------------------------------------------------------------------------------
 * Answers
 * ------------------------------------------------------------------------------------------ */

static void tokens_ids(pn_str *s, const pn_token *tokens, size_t n)
{
    pn_str_addc(s, '[');
    for (size_t i = 0; i < n; i++)
        pn_str_addf(s, "%s%d", i ? "," : "", (int)tokens[i]);
    pn_str_addc(s, ']');
}

/* A string, or an array of bytes for a part of a character. */
static void tokens_piece(pn_str *s, pn_bytes piece)
{
    if (pn_utf8_valid(piece.data, piece.len) == piece.len) {
        pn_json_write_str(s, piece.data, piece.len);
        return;
    }
    pn_str_addc(s, '[');
    for (size_t i = 0; i < piece.len; i++)
        pn_str_addf(s, "%s%u", i ? "," : "", (unsigned)(unsigned char)piece.data[i]);
    pn_str_addc(s, ']');
}

static void tokens_vllm_body(pn_str *s, const pn_token *tokens, const pn_bytes *pieces, size_t n, uint32_t max_model_len)
{
    pn_str_addf(s, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":", n, (unsigned)max_model_len);
    tokens_ids(s, tokens, n);
    pn_str_addz(s, ",\"token_strs\":");
    pn_str_addz(s, pieces ? "[" : "null");
    for (size_t i = 0; pieces && i < n; i++) {
        if (i)
            pn_str_addc(s, ',');
        pn_json_write_str(s, pieces[i].data, pieces[i].len);
    }
    pn_str_addz(s, pieces ? "]}" : "}");
}

PN_INTERNAL void pn_oai_tokenize_body(pn_str *out, const pn_oai_tokenize *q, const pn_token *tokens, const pn_bytes *pieces, size_t n,
                                      uint32_t max_model_len)
{
    pieces = q->pieces ? pieces : NULL;
    if (q->vllm) {
        tokens_vllm_body(out, tokens, pieces, n, max_model_len);
        return;
    }
    pn_str_addz(out, "{\"tokens\":");
    if (!pieces)
        tokens_ids(out, tokens, n);
    for (size_t i = 0; pieces && i < n; i++) {
        pn_str_addf(out, "%s{\"id\":%d,\"piece\":", i ? "," : "[", (int)tokens[i]);
        tokens_piece(out, pieces[i]);
        pn_str_addc(out, '}');
    }
    if (pieces)
        pn_str_addz(out, n ? "]" : "[]");
    pn_str_addc(out, '}');
}

PN_INTERNAL void pn_oai_detokenize_body(pn_str *out, const char *text, size_t len)
{
    pn_str_addz(out, "{\"content\":");
    pn_json_write_str(out, text, len);
    pn_json_key(out, "prompt");
    pn_json_write_str(out, text, len);
    pn_str_addc(out, '}');
}

PN_INTERNAL void pn_oai_template_body(pn_str *out, const char *text, size_t len)
{
    pn_str_addz(out, "{\"prompt\":");
    pn_json_write_str(out, text, len);
    pn_str_addc(out, '}');
}

PN_INTERNAL void pn_oai_input_tokens_body(pn_str *out, size_t n) { pn_str_addf(out, "{\"input_tokens\":%zu}", n); }
