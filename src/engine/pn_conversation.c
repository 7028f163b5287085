/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * A conversation: messages in, a prompt rendered by the model's own template, an answer taken apart.
 *
 * What the model said is kept as it was sampled: the session is a list of turns, a prompt and an answer
 * each, and the next prompt is compared with it (pn_replay.h).  As long as it repeats a turn, though
 * it may spell the answer otherwise, the turn's tokens stay, whatever the tokenizer would make of the
 * new text.  From the first turn that differs (a template that drops old reasoning, an edited message)
 * the rest is tokenized anew, and what still agrees token for token stays computed.
 *
 * Trust: spans come from the template engine; what the messages say never becomes a control token.
 */
#include "engine/pn_cache.h"

#include <inttypes.h>

#include "base/pn_json.h"
#include "engine/pn_answer.h"
#include "engine/pn_replay.h"
#include "sample/pn_budget.h"
#include "text/pn_chat.h"
#include "text/pn_chat_norm.h"
#include "text/pn_template.h"
#include "text/pn_toolcall.h"

struct pn_chat {
    pn_session *s;
    pn_mem *mem;
    pn_tpl *tpl;                            /* NULL: a built-in format */
    pn_tpl_caps caps;
    const pn_chat_format_info *builtin;
    pn_out_format syntax;
    pn_str variables, tools;                /* JSON or empty */
    pn_json_doc tools_doc;
    pn_grammar *calls;                      /* of PN_TOOLS_AUTO; NULL without tools */
    pn_str *messages;                       /* [n_messages] JSON objects */
    size_t n_messages, cap_messages;
    pn_replay replay;                       /* what the session holds */
};

/* ------------------------------------------------------------------------------------------
 * Opening
 * ------------------------------------------------------------------------------------------ */

static pn_status talk_open_template(pn_chat *c, const pn_chat_params *p, pn_err *err)
{
    const pn_model *m = c->s->model;
    pn_bytes text = p->template_text ? (pn_bytes){p->template_text, p->template_len} : pn_model_template(m, c->tools.len > 2);
    pn_out_detect(&c->syntax, text.data, text.len);
    if (p->syntax && !pn_out_find(&c->syntax, p->syntax))
        return pn_fail(err, PN_E_INVALID, "output syntax '%.60s' is not known; hermes, harmony, llama3 are some that are", p->syntax);
    if (p->format || text.len == 0) {
        c->builtin = p->format ? pn_chat_find(p->format) : pn_chat_detect(m->vocab, NULL, 0);
        if (!c->builtin)
            return p->format ? pn_fail(err, PN_E_INVALID, "chat format '%s' is not one of the built-in ones", p->format)
                             : pn_fail(err, PN_E_UNSUPPORTED, "the model has neither a chat template nor a known chat format");
        return PN_OK;
    }
    pn_status st = pn_tpl_new(&c->tpl, c->mem, text.data, text.len, err);
    return st ? st : pn_tpl_probe(c->tpl, c->mem, &c->caps, err);
}

static pn_status talk_take_json(pn_chat *c, pn_str *out, const char *text, size_t len, pn_json_type want, const char *what,
                                pn_json_doc *keep, pn_err *err)
{
    pn_json_doc d;
    if (!text)
        return PN_OK;
    pn_status st = pn_json_parse(&d, c->mem, PN_ACCT_MISC, text, len ? len : strlen(text), NULL, err);
    if (st)
        return pn_err_prefix(err, st, "%s", what);
    if (pn_json_type_of(&d, PN_JSON_ROOT) != want)
        st = pn_fail(err, PN_E_INVALID, "%s: expected a JSON %s, found a %s", what, pn_json_type_name(want),
                     pn_json_type_name(pn_json_type_of(&d, PN_JSON_ROOT)));
    else
        pn_json_write_node(out, &d, PN_JSON_ROOT);      /* without the sender's spaces */
    if (!st && out->failed)
        st = pn_fail_nomem(err, what, len);
    if (!st && keep)
        *keep = d;
    else
        pn_json_fini(&d);
    return st;
}

/* The grammar of the calls that p lets the model make. */
static pn_status talk_calls(pn_chat *c, const pn_chat_reply_params *p, pn_grammar **out, pn_err *err)
{
    const pn_model *m = c->s->model;
    if (p->tool_name && p->tool_choice != PN_TOOLS_REQUIRED)
        return pn_fail(err, PN_E_INVALID, "a function is named, so the choice of tools has to be PN_TOOLS_REQUIRED");
    const pn_calls_params calls = {.format = &c->syntax, .tools = &c->tools_doc, .only = {p->tool_name, p->tool_name ? strlen(p->tool_name) : 0},
                                   .required = p->tool_choice == PN_TOOLS_REQUIRED, .none = p->tool_choice == PN_TOOLS_NONE,
                                   .single = p->single_call != 0};
    pn_status st = pn_grammar_calls(m->engine, m->vocab, &calls, out, err);
    return st ? pn_err_prefix(err, st, "tools") : PN_OK;
}

PN_API pn_status pn_chat_new(pn_session *s, const pn_chat_params *params, pn_chat **out, pn_err *err)
{
    pn_chat_params p;
    pn_params_copy(&p, sizeof p, params, params ? params->size : 0);
    if (!s)
        return pn_fail(err, PN_E_INVALID, "no session given");
    pn_mem *mem = pn_engine_mem(s->model->engine);
    pn_chat *c = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *c);
    if (!c)
        return pn_fail_nomem(err, "a conversation", sizeof *c);
    c->s = s;
    c->mem = mem;
    pn_str_init(&c->variables, mem, PN_ACCT_MISC);
    pn_str_init(&c->tools, mem, PN_ACCT_MISC);
    pn_status st = talk_take_json(c, &c->variables, p.variables, p.variables_len, PN_JSON_OBJECT, "template variables", NULL, err);
    if (!st)
        st = talk_take_json(c, &c->tools, p.tools, p.tools_len, PN_JSON_ARRAY, "tools", &c->tools_doc, err);
    if (!st)
        st = talk_open_template(c, &p, err);
    if (!st && c->tools.len > 2)
        st = talk_calls(c, &(pn_chat_reply_params){.tool_choice = PN_TOOLS_AUTO}, &c->calls, err);
    pn_replay_init(&c->replay, mem, s->model->vocab, &c->syntax, c->tools.len ? &c->tools_doc : NULL);
    if (st) {
        pn_chat_free(c);
        return st;
    }
    *out = c;
    return PN_OK;
}

PN_API void pn_chat_free(pn_chat *c)
{
    if (!c)
        return;
    pn_replay_fini(&c->replay);
    for (size_t i = 0; i < c->n_messages; i++)
        pn_str_fini(&c->messages[i]);
    pn_mem_free(c->mem, PN_ACCT_MISC, c->messages, c->cap_messages * sizeof *c->messages);
    pn_str_fini(&c->variables);
    pn_str_fini(&c->tools);
    pn_json_fini(&c->tools_doc);
    pn_grammar_free(c->calls);
    pn_tpl_free(c->tpl);
    pn_mem_free(c->mem, PN_ACCT_MISC, c, sizeof *c);
}

PN_API const char *pn_chat_widened(const pn_chat *c) { return pn_grammar_widened(c->calls); }

/* ------------------------------------------------------------------------------------------
 * Messages
 * ------------------------------------------------------------------------------------------ */

static pn_status talk_push_message(pn_chat *c, pn_str *json, pn_err *err)
{
    if (json->failed ||
        !pn_mem_grow(c->mem, PN_ACCT_MISC, (void **)&c->messages, &c->cap_messages, c->n_messages + 1, sizeof *c->messages)) {
        pn_str_fini(json);
        return pn_fail_nomem(err, "a message", json->len);
    }
    c->messages[c->n_messages++] = *json;
    return PN_OK;
}

PN_API pn_status pn_chat_add(pn_chat *c, const char *message, size_t len, pn_err *err)
{
    pn_str json;
    pn_bytes role;
    pn_json_doc d;
    if (!c || !message)
        return pn_fail(err, PN_E_INVALID, "%s", c ? "no message given" : "no conversation given");
    if (pn_session_idle(c->s, err))
        return PN_E_STATE;
    len = len ? len : strlen(message);
    pn_status st = pn_json_parse(&d, c->mem, PN_ACCT_MISC, message, len, NULL, err);
    if (st)
        return pn_err_prefix(err, st, "message %zu", c->n_messages);
    if (!pn_json_str(&d, pn_json_get(&d, PN_JSON_ROOT, "role"), &role))
        st = pn_fail(err, PN_E_INVALID, "message %zu: expected an object with a string 'role'", c->n_messages);
    pn_str_init(&json, c->mem, PN_ACCT_MISC);
    pn_json_write_node(&json, &d, PN_JSON_ROOT);
    pn_json_fini(&d);
    if (!st)
        return talk_push_message(c, &json, err);
    pn_str_fini(&json);
    return st;
}

PN_API pn_status pn_chat_say(pn_chat *c, const char *role, const char *content, size_t len, pn_err *err)
{
    pn_str json;
    if (!c || !role || !content)
        return pn_fail(err, PN_E_INVALID, "pn_chat_say: conversation, role and content must be given");
    if (pn_session_idle(c->s, err))
        return PN_E_STATE;
    pn_str_init(&json, c->mem, PN_ACCT_MISC);
    pn_str_addc(&json, '{');
    pn_json_key(&json, "role");
    pn_json_write_strz(&json, role);
    pn_json_key(&json, "content");
    pn_json_write_str(&json, content, len ? len : strlen(content));
    pn_str_addc(&json, '}');
    return talk_push_message(c, &json, err);
}

PN_INTERNAL pn_session *pn_chat_session(pn_chat *c) { return c->s; }

PN_API size_t pn_chat_length(const pn_chat *c) { return c->n_messages; }

PN_API const char *pn_chat_message(const pn_chat *c, size_t i, size_t *len)
{
    if (i >= c->n_messages)
        return NULL;
    *len = c->messages[i].len;
    return pn_str_cstr(&c->messages[i]);
}

PN_API void pn_chat_forget(pn_chat *c, size_t n)
{
    while (c->n_messages > n && !c->s->busy)
        pn_str_fini(&c->messages[--c->n_messages]);
}

/* ------------------------------------------------------------------------------------------
 * The prompt
 * ------------------------------------------------------------------------------------------ */

/* {"messages":[...],"tools":[...],"add_generation_prompt":true,"bos_token":...,  variables } */
static void talk_request(const pn_chat *c, pn_str *out, bool generation)
{
    const pn_vocab *v = c->s->model->vocab;
    pn_token bos = pn_vocab_special(v, PN_SPECIAL_BOS), eos = pn_vocab_special(v, PN_SPECIAL_EOS);
    pn_str_addc(out, '{');
    pn_json_key(out, "bos_token");
    pn_json_write_str(out, bos < 0 ? "" : pn_vocab_text(v, bos).data, bos < 0 ? 0 : pn_vocab_text(v, bos).len);
    pn_json_key(out, "eos_token");
    pn_json_write_str(out, eos < 0 ? "" : pn_vocab_text(v, eos).data, eos < 0 ? 0 : pn_vocab_text(v, eos).len);
    pn_json_key(out, "add_generation_prompt");
    pn_json_write_bool(out, generation);
    if (c->variables.len > 2) {             /* the members between the braces */
        pn_json_item(out);
        pn_str_add(out, c->variables.data + 1, c->variables.len - 2);
    }
    if (c->tools.len) {
        pn_json_key(out, "tools");
        pn_str_add(out, c->tools.data, c->tools.len);
    }
    pn_json_key(out, "messages");
    pn_str_addc(out, '[');
    for (size_t i = 0; i < c->n_messages; i++) {
        pn_json_item(out);
        pn_str_add(out, c->messages[i].data, c->messages[i].len);
    }
    pn_str_addz(out, "]}");
}

/* Without a template: the built-in formats know system, user and assistant with text. */
static pn_status talk_render_builtin(pn_chat *c, bool generation, pn_prompt *out, pn_err *err)
{
    pn_message *list = pn_mem_calloc(c->mem, PN_ACCT_MISC, c->n_messages, sizeof *list);
    pn_json_doc *docs = pn_mem_calloc(c->mem, PN_ACCT_MISC, c->n_messages, sizeof *docs);
    pn_status st = list && docs ? PN_OK : pn_fail_nomem(err, "a prompt", c->n_messages * sizeof *docs);
    size_t n = 0;
    for (; n < c->n_messages && !st; n++) {
        pn_bytes role = {"", 0}, content = {"", 0};
        st = pn_json_parse(&docs[n], c->mem, PN_ACCT_MISC, c->messages[n].data, c->messages[n].len, NULL, err);
        if (st)
            break;
        pn_json_str(&docs[n], pn_json_get(&docs[n], PN_JSON_ROOT, "role"), &role);
        uint32_t node = pn_json_get(&docs[n], PN_JSON_ROOT, "content");
        if (!pn_json_str(&docs[n], node, &content) && pn_json_type_of(&docs[n], node) > PN_JSON_NULL)
            st = pn_fail(err, PN_E_UNSUPPORTED, "message %zu: the built-in chat formats take text alone", n);
        list[n] = (pn_message){.role = role.data, .content = content.data, .content_len = content.len};
    }
    if (!st)
        st = pn_chat_render(c->builtin, c->s->model->vocab, list, n, 0, generation, out, err);
    for (size_t i = 0; docs && i < n; i++)
        pn_json_fini(&docs[i]);
    pn_mem_free(c->mem, PN_ACCT_MISC, list, c->n_messages * sizeof *list);
    pn_mem_free(c->mem, PN_ACCT_MISC, docs, c->n_messages * sizeof *docs);
    return st;
}

/* JSON text to a document; the text is freed. */
static pn_status talk_parse(pn_chat *c, pn_json_doc *d, pn_str *text, pn_err *err)
{
    pn_status st = text->failed ? pn_fail_nomem(err, "a prompt", text->len)
                                : pn_json_parse(d, c->mem, PN_ACCT_MISC, pn_str_cstr(text), text->len, NULL, err);
    pn_str_fini(text);
    return st;
}

/* Render all messages.  generation false: without the opening of the answer. */
static pn_status talk_render(pn_chat *c, bool generation, pn_prompt *out, pn_err *err)
{
    pn_str request, fitted;
    pn_json_doc in, vars;
    if (c->builtin)
        return talk_render_builtin(c, generation, out, err);
    pn_str_init(&request, c->mem, PN_ACCT_MISC);
    pn_str_init(&fitted, c->mem, PN_ACCT_MISC);
    talk_request(c, &request, generation);
    pn_status st = talk_parse(c, &in, &request, err);
    if (st)
        return st;
    st = pn_chat_normalize(&c->caps, c->mem, &in, &fitted, err);
    pn_json_fini(&in);
    if (st)
        pn_str_fini(&fitted);
    else
        st = talk_parse(c, &vars, &fitted, err);
    if (st)
        return st;
    st = pn_tpl_render(c->tpl, c->mem, &vars, NULL, out, err);
    pn_json_fini(&vars);
    return st;
}

/* The text from `at` on, with its trusted stretches moved along. */
static pn_status talk_encode(pn_chat *c, const pn_prompt *p, size_t at, talk_tokens *t, pn_err *err)
{
    const pn_vocab *v = c->s->model->vocab;
    const pn_span none = {0, 0};
    unsigned flags = PN_ENC_SPECIAL;
    size_t n = 0;
    pn_span *spans = pn_mem_calloc(c->mem, PN_ACCT_MISC, p->n_spans, sizeof *spans);
    if (!spans)
        return pn_fail_nomem(err, "a prompt", p->n_spans * sizeof *spans);
    for (size_t i = 0; i < p->n_spans; i++)
        if (p->spans[i].end > at)
            spans[n++] = (pn_span){PN_MAX(p->spans[i].begin, at) - at, p->spans[i].end - at};
    pn_token bos = pn_vocab_special(v, PN_SPECIAL_BOS);
    if (at == 0 && pn_vocab_add_bos(v) && bos >= 0) {       /* one BOS, whoever writes it */
        pn_bytes b = pn_vocab_text(v, bos);
        if (p->text.len < b.len || memcmp(p->text.data, b.data, b.len) != 0)
            flags |= PN_ENC_BOS;
    }
    pn_status st = pn_vocab_encode(v, c->mem, pn_str_cstr(&p->text) + at, p->text.len - at, flags, n ? spans : &none, n,
                                   &t->list, &t->n, &t->cap, err);
    pn_mem_free(c->mem, PN_ACCT_MISC, spans, p->n_spans * sizeof *spans);
    return st;
}

/* Put the session's first n tokens in front of the list. */
static pn_status talk_again(pn_chat *c, talk_tokens *t, size_t n, pn_err *err)
{
    if (!pn_mem_grow(c->mem, PN_ACCT_MISC, (void **)&t->list, &t->cap, n + t->n, sizeof *t->list))
        return pn_fail_nomem(err, "a prompt", (n + t->n) * sizeof *t->list);
    memmove(t->list + n, t->list, t->n * sizeof *t->list);
    memcpy(t->list, c->s->tokens, n * sizeof *t->list);
    t->n += n;
    return PN_OK;
}

/* Leave in the session what it shares with t, all tokens of the new prompt; *from: the first that it does
 * not hold.  At least one is computed, for its logits.  Nothing is left where a window has moved past that
 * point, or where the prefix cache has more: then the generation begins with that. */
static pn_status talk_rewind(pn_chat *c, const talk_tokens *t, const pn_generate_params *g, size_t *from, pn_err *err)
{
    pn_session *s = c->s;
    size_t n = 0;
    while (n < s->kv.length && n < t->n && s->tokens[n] == t->list[n])
        n++;
    if (n == t->n && n > 0 && !(n == s->kv.length && s->has_logits))
        n--;
    if (!g->no_cache && pn_cache_holds(s, g->salt, t->list, t->n) > n)
        n = 0;
    *from = n;
    if (pn_session_truncate(s, (uint32_t)n, err) == PN_OK)
        return PN_OK;
    *from = 0;
    return pn_session_truncate(s, 0, err);
}

/* Tokens of the prompt: *t, of which those before *from are in the session.  opening: where in p the answer's
 * opening begins. */
static pn_status talk_prepare(pn_chat *c, const pn_prompt *p, size_t opening, const pn_generate_params *g, talk_tokens *t, size_t *from,
                              pn_err *err)
{
    size_t at, kept, n;
    pn_status st = pn_replay_match(&c->replay, p, opening, c->messages, c->n_messages, c->s->kv.length, &at, &kept, err);
    if (!st)
        st = talk_encode(c, p, at, t, err);
    n = t->n;
    if (!st)
        st = talk_again(c, t, kept, err);
    if (!st)
        st = talk_rewind(c, t, g, from, err);
    return st ? st : pn_replay_prompt(&c->replay, p, at, opening, kept, n, err);
}

/* ------------------------------------------------------------------------------------------
 * The answer
 * ------------------------------------------------------------------------------------------ */

static int talk_send(pn_answer *a, const pn_out_event *e)
{
    static const pn_output_kind kinds[] = {PN_OUTPUT_REASONING, PN_OUTPUT_CONTENT, PN_OUTPUT_CALL_BEGIN,
                                           PN_OUTPUT_ARGUMENTS, PN_OUTPUT_CALL_END};
    const pn_output_event ev = {.kind = kinds[e->kind], .call = e->call, .complete = e->complete, .text = e->text,
                                .len = e->len, .id = e->id, .id_len = e->id_len};
    return pn_out_collect(&a->parts, e) | (a->p.on_event ? a->p.on_event(a->p.user, &ev) : 0);
}

/* Content that is no part of a stop string. */
static int talk_content(void *user, const char *text, size_t n)
{
    const pn_out_event e = {.kind = PN_OUT_CONTENT, .text = text, .len = n, .id = ""};
    return n ? talk_send(user, &e) : 0;
}

/* From the parser.  Stop strings are looked for in the content, and none reaches across the rest. */
static int talk_event(void *user, const pn_out_event *e)
{
    pn_answer *a = user;
    if (e->kind == PN_OUT_CONTENT) {
        pn_emit_text(&a->emit, e->text, e->len, e->at);
        return pn_emit_over(&a->emit);
    }
    pn_emit_release(&a->emit);
    if (pn_emit_over(&a->emit))
        return 1;
    if (e->kind == PN_OUT_REASONING)
        pn_emit_mark(&a->emit, e->at, e->at + e->len, PN_PART_REASONING);
    if (e->kind == PN_OUT_CALL_END)
        pn_emit_mark(&a->emit, a->call_at, e->at, PN_PART_CALL);
    if (e->kind == PN_OUT_CALL_BEGIN)
        a->call_at = e->at;
    a->calling = e->kind == PN_OUT_CALL_BEGIN || e->kind == PN_OUT_ARGUMENTS;
    if (talk_send(a, e))
        a->emit.refused = true;
    return a->emit.refused;
}

/* Behind the parser: tokens whose text is known, and what went wrong. */
static pn_status talk_settle(pn_answer *a, pn_status st, size_t upto, pn_err *err)
{
    if (a->emit.failed || a->parts.failed || a->raw.failed)
        return pn_fail_nomem(err, "an answer", a->raw.len);
    if (st && !pn_emit_over(&a->emit))
        return st;
    if (a->calling)
        pn_emit_mark(&a->emit, a->call_at, upto, PN_PART_CALL);
    pn_emit_settle(&a->emit, upto);
    return PN_OK;
}

static pn_status talk_text(void *user, pn_token t, const char *text, size_t len, pn_err *err)
{
    pn_answer *a = user;
    char tmp[8];
    pn_bytes piece = pn_vocab_piece(a->c->s->model->vocab, t, true, tmp);
    pn_str_add(&a->raw, piece.data, piece.len);
    if (a->emit.refused)
        return PN_OK;                       /* what came is the answer */
    pn_status st = pn_out_push(a->parser, text, len, err);
    return talk_settle(a, st, pn_out_settled(a->parser), err);
}

static pn_status talk_rest(void *user, pn_err *err)
{
    pn_answer *a = user;
    pn_status st = a->emit.refused ? PN_OK : pn_out_end(a->parser, err);
    if (!a->emit.refused)
        pn_emit_release(&a->emit);
    return talk_settle(a, st, SIZE_MAX, err);
}

/* What came out is session positions [first, first + n). */
static pn_status talk_push_segment(pn_chat *c, const char *text, size_t len, size_t first, size_t n, pn_err *err)
{
    return pn_replay_answer(&c->replay, text, len, c->s->tokens + first, n, err);
}

/* {"role":"assistant", ...} as OpenAI spells it. */
static void talk_assistant(const pn_answer *a, pn_str *m)
{
    const pn_out_result *r = &a->parts;
    pn_str_addc(m, '{');
    pn_json_key(m, "role");
    pn_json_write_strz(m, "assistant");
    if (r->reasoning.len) {
        pn_json_key(m, "reasoning_content");
        pn_json_write_str(m, r->reasoning.data, r->reasoning.len);
    }
    pn_json_key(m, "content");
    pn_json_write_str(m, pn_str_cstr(&r->content), r->content.len);
    if (r->n_calls) {
        pn_json_key(m, "tool_calls");
        pn_str_addc(m, '[');
        for (size_t i = 0; i < r->n_calls; i++) {
            const pn_out_call *k = &r->calls[i];
            pn_json_item(m);
            pn_str_addz(m, "{\"id\":");
            if (k->id.len)
                pn_json_write_str(m, k->id.data, k->id.len);
            else
                pn_str_addf(m, "\"call_%zu_%zu\"", a->c->n_messages, i);
            pn_str_addz(m, ",\"type\":\"function\",\"function\":{\"name\":");
            pn_json_write_str(m, pn_str_cstr(&k->name), k->name.len);
            pn_str_addz(m, ",\"arguments\":");
            pn_json_write_str(m, pn_str_cstr(&k->arguments), k->arguments.len);
            pn_str_addz(m, "}}");
        }
        pn_str_addc(m, ']');
    }
    pn_str_addc(m, '}');
}

/* The text that a generation prompt adds: where the parser starts. */
static pn_status talk_opening(pn_chat *c, const pn_prompt *full, size_t *at, pn_err *err)
{
    pn_prompt without;
    pn_prompt_init(&without, c->mem);
    pn_status st = talk_render(c, false, &without, err);
    size_t n = 0;
    while (!st && n < full->text.len && n < without.text.len && full->text.data[n] == without.text.data[n])
        n++;
    *at = n;
    pn_prompt_fini(&without);
    return st;
}

/* The marker as tokens, control tokens recognised. */
static pn_status talk_marker(pn_chat *c, const char *text, talk_tokens *t, pn_err *err)
{
    return pn_vocab_encode(c->s->model->vocab, c->mem, text, strlen(text), PN_ENC_SPECIAL, NULL, 0, &t->list, &t->n, &t->cap,
                           err);
}

/* NULL when the family has no reasoning to close, or nobody asked. */
static pn_status talk_budget(pn_answer *a, bool open, pn_budget **out, pn_err *err)
{
    pn_chat *c = a->c;
    talk_tokens start = {0}, end = {0};
    *out = NULL;
    if (!a->p.has_reasoning_budget || !c->syntax.think_open || !c->syntax.think_close)
        return PN_OK;
    pn_status st = talk_marker(c, c->syntax.think_open, &start, err);
    if (!st)
        st = talk_marker(c, c->syntax.think_close, &end, err);
    const pn_budget_params p = {.start = start.list, .n_start = start.n, .end = end.list, .n_end = end.n,
                                .budget = a->p.reasoning_budget, .limit = a->generate.max_tokens,
                                .reserve = a->p.answer_reserve, .open = open};
    if (!st)
        st = pn_budget_new(out, c->mem, &p, err);
    pn_mem_free(c->mem, PN_ACCT_MISC, start.list, start.cap * sizeof *start.list);
    pn_mem_free(c->mem, PN_ACCT_MISC, end.list, end.cap * sizeof *end.list);
    return st;
}

/* What the answer is held to: the caller's grammar, or that of the calls.  *made: to be freed. */
static pn_status talk_grammar(pn_answer *a, pn_generate_params *g, pn_grammar **made, pn_err *err)
{
    pn_chat *c = a->c;
    const pn_chat_reply_params *p = &a->p;
    *made = NULL;
    if (p->tool_choice == PN_TOOLS_REQUIRED && (g->grammar || !c->calls))
        return pn_fail(err, PN_E_INVALID, g->grammar ? "a call is required, and a grammar holds the answer: only one is possible"
                                                     : "a call is required, but the conversation has no tools");
    if (g->grammar || !c->calls)
        return PN_OK;
    if (p->tool_choice == PN_TOOLS_AUTO && !p->single_call && !p->tool_name) {
        g->grammar = c->calls;
        return PN_OK;
    }
    pn_status st = talk_calls(c, p, made, err);
    g->grammar = *made;
    return st;
}

static bool talk_contains(pn_bytes text, const char *what)
{
    size_t n = strlen(what);
    for (size_t i = 0; i + n <= text.len; i++)
        if (memcmp(text.data + i, what, n) == 0)
            return true;
    return false;
}

/* Where the grammar begins.  opening: what the generation prompt adds; it may leave the reasoning open,
 * leave it to the model, or close it. */
static void talk_begin(const pn_chat *c, pn_generate_params *g, pn_bytes opening, bool open)
{
    static const char *const finals[][2] = {{"harmony", "<|channel|>final<|message|>"}, {"muse", "to=user<|message|>"}};
    const pn_out_format *f = &c->syntax;
    if (!g->grammar || g->grammar_after)
        return;
    if (open)
        g->grammar_after = f->think_close;
    else if (f->think_open && f->think_close && !f->guessed && !talk_contains(opening, f->think_close)) {
        g->think_open = f->think_open;
        g->think_close = f->think_close;
    }
    for (size_t i = 0; i < PN_COUNT_OF(finals) && !g->grammar->is_calls; i++)
        if (strcmp(f->name, finals[i][0]) == 0 && !talk_contains(opening, finals[i][1]))
            g->grammar_after = finals[i][1];
}

/* Everything but the generation itself: the prompt is rendered and compared with what the session has, the
 * parser and the text's way out are open. */
static pn_status talk_start(pn_answer *a, pn_err *err)
{
    pn_chat *c = a->c;
    pn_prompt prompt;
    pn_generate_params *g = &a->generate;
    size_t from = 0, opening = 0;
    const pn_grammar *held = g->grammar;    /* a document that looks like a call is none */
    const pn_out_params how = {.no_calls = a->p.tool_choice == PN_TOOLS_NONE || (held && held->is_document)};
    pn_prompt_init(&prompt, c->mem);
    pn_status st = talk_render(c, true, &prompt, err);
    if (!st)
        st = talk_opening(c, &prompt, &opening, err);
    const pn_bytes begun = {pn_str_cstr(&prompt.text) + opening, prompt.text.len - opening};
    bool open = pn_out_forced_open(&c->syntax, begun.data, begun.len);
    if (!st)
        st = pn_out_new(&a->parser, c->mem, &c->syntax, c->tools.len ? &c->tools_doc : NULL, begun.data, begun.len, &how, talk_event, a,
                        err);
    if (!st)
        st = talk_prepare(c, &prompt, opening, g, &a->tokens, &from, err);
    g->size = sizeof *g;
    g->prompt = a->tokens.list ? a->tokens.list + from : NULL;     /* none when something failed above */
    g->n_prompt = a->tokens.n - from;
    a->first = c->s->kv.length + g->n_prompt;
    if (!st)
        st = talk_grammar(a, g, &a->made, err);
    talk_begin(c, g, begun, open);
    if (!st)
        st = talk_budget(a, open, &a->budget, err);
    if (!st)
        st = pn_emit_open(&a->emit, c->s->model, g, true, talk_content, a, err);
    pn_prompt_fini(&prompt);
    return st;
}

static void talk_free(pn_answer *a)
{
    pn_emit_close(&a->emit);
    pn_budget_free(a->budget);
    pn_grammar_free(a->made);
    pn_out_free(a->parser);
    pn_out_result_fini(&a->parts);
    pn_str_fini(&a->raw);
    pn_mem_free(a->c->mem, PN_ACCT_MISC, a->tokens.list, a->tokens.cap * sizeof *a->tokens.list);
    pn_mem_free(a->c->mem, PN_ACCT_MISC, a, sizeof *a);
}

PN_INTERNAL pn_status pn_answer_open(pn_chat *c, const pn_chat_reply_params *params, pn_answer **out, pn_err *err)
{
    if (!c)
        return pn_fail(err, PN_E_INVALID, "no conversation given");
    if (pn_session_idle(c->s, err))
        return PN_E_STATE;
    pn_answer *a = pn_mem_calloc(c->mem, PN_ACCT_MISC, 1, sizeof *a);
    if (!a)
        return pn_fail_nomem(err, "an answer", sizeof *a);
    a->c = c;
    pn_params_copy(&a->p, sizeof a->p, params, params ? params->size : 0);
    pn_params_copy(&a->generate, sizeof a->generate, a->p.generate, a->p.generate ? a->p.generate->size : 0);
    a->route = (pn_generate_route){&a->emit, talk_text, talk_rest, a};
    pn_out_result_init(&a->parts, c->mem);
    pn_str_init(&a->raw, c->mem, PN_ACCT_MISC);
    pn_status st = talk_start(a, err);
    if (st) {
        talk_free(a);
        return st;
    }
    *out = a;
    return PN_OK;
}

/* The tokens kept, with their text: the next turn begins with them.  And the message. */
static pn_status talk_finish(pn_answer *a, const pn_generate_result *r, size_t raw_len, pn_err *err)
{
    pn_chat *c = a->c;
    pn_str m;
    pn_status st = talk_push_segment(c, pn_str_cstr(&a->raw), raw_len, a->first, r->n_kept, err);
    if (st)
        return st;
    pn_str_init(&m, c->mem, PN_ACCT_MISC);
    talk_assistant(a, &m);
    st = talk_push_message(c, &m, err);
    if (!st)
        pn_replay_sign(&c->replay, c->n_messages - 1, &c->messages[c->n_messages - 1]);
    return st;
}

PN_INTERNAL pn_status pn_answer_close(pn_answer *a, pn_status st, const pn_generate_result *r, size_t raw_len, pn_err *err)
{
    if (!st)
        st = talk_finish(a, r, raw_len, err);
    talk_free(a);
    return st;
}

PN_API pn_status pn_chat_reply(pn_chat *c, const pn_chat_reply_params *params, pn_generate_result *result, pn_err *err)
{
    pn_answer *a;
    pn_generate_result r = {.stop_index = -1};
    size_t raw_len = 0;
    if (result)
        *result = r;
    pn_status st = pn_answer_open(c, params, &a, err);
    if (st)
        return st;
    st = pn_generate_run(c->s, &a->generate, &a->route, a->budget, &r, &raw_len, err);
    if (result)
        *result = r;
    return pn_answer_close(a, st, &r, raw_len, err);
}
