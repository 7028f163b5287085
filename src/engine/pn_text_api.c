/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * The public face of text/: tokens, streaming text, chat.
 */
#include "engine/pn_engine_int.h"

#include <inttypes.h>

#include "text/pn_chat.h"

/* Hand a list to a caller that may only be measuring. */
static void text_give(const pn_token *list, size_t n_list, pn_token *out, size_t cap, size_t *n)
{
    if (out && n_list)                      /* memcpy from NULL is undefined even for 0 bytes */
        memcpy(out, list, PN_MIN(n_list, cap) * sizeof *out);
    *n = n_list;
}

static pn_status text_encode(const pn_model *m, const char *text, size_t len, unsigned flags, const pn_span *spans,
                             size_t n_spans, pn_token *out, size_t cap, size_t *n, pn_err *err)
{
    pn_mem *mem = pn_engine_mem(m->engine);
    pn_token *list = NULL;
    size_t n_list = 0, cap_list = 0;
    pn_status st = pn_vocab_encode(m->vocab, mem, text, len, flags, spans, n_spans, &list, &n_list, &cap_list, err);
    if (!st)
        text_give(list, n_list, out, cap, n);
    pn_mem_free(mem, PN_ACCT_MISC, list, cap_list * sizeof *list);
    return st;
}

PN_API pn_status pn_tokenize(const pn_model *m, const char *text, size_t len, unsigned flags, pn_token *out, size_t cap,
                             size_t *n, pn_err *err)
{
    if (!m || (!text && len) || !n)
        return pn_fail(err, PN_E_INVALID, "pn_tokenize: model, text and n must be given");
    return text_encode(m, text ? text : "", len, flags, NULL, 0, out, cap, n, err);
}

PN_API pn_status pn_detokenize(const pn_model *m, const pn_token *tokens, size_t n_tokens, int special, char *out,
                               size_t cap, size_t *n, pn_err *err)
{
    if (!m || (!tokens && n_tokens) || !n)
        return pn_fail(err, PN_E_INVALID, "pn_detokenize: model, tokens and n must be given");
    size_t len = 0;
    bool strip = pn_vocab_strips_leading_space(m->vocab);
    for (size_t i = 0; i < n_tokens; i++) {
        char tmp[8];
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= pn_vocab_n_tokens(m->vocab))
            return pn_fail(err, PN_E_INVALID, "token %" PRId32 " at %zu is not in the vocabulary of %" PRIu32, tokens[i], i,
                           pn_vocab_n_tokens(m->vocab));
        pn_bytes p = pn_vocab_piece(m->vocab, tokens[i], special != 0, tmp);
        if (p.len && strip) {               /* the space that encoding put in front */
            if (p.data[0] == ' ' && pn_vocab_kind(m->vocab, tokens[i]) == PN_TOKEN_NORMAL) {
                p.data++;
                p.len--;
            }
            strip = false;
        }
        if (out && p.len && len < cap)
            memcpy(out + len, p.data, PN_MIN(p.len, cap - len));
        len += p.len;
    }
    *n = len;
    return PN_OK;
}

PN_API pn_status pn_token_text(const pn_model *m, pn_token id, const char **text, size_t *len)
{
    if (id < 0 || (uint32_t)id >= pn_vocab_n_tokens(m->vocab))
        return PN_E_INVALID;
    pn_bytes s = pn_vocab_text(m->vocab, id);
    *text = s.data;
    *len = s.len;
    return PN_OK;
}

PN_API pn_token_kind pn_token_kind_of(const pn_model *m, pn_token id) { return pn_vocab_kind(m->vocab, id); }
PN_API int pn_token_ends(const pn_model *m, pn_token id) { return pn_vocab_ends(m->vocab, id); }
PN_API pn_token pn_token_special(const pn_model *m, pn_special which) { return pn_vocab_special(m->vocab, which); }
PN_API uint32_t pn_vocab_size(const pn_model *m) { return pn_vocab_n_logits(m->vocab); }

/* ------------------------------------------------------------------------------------------
 * Streaming
 * ------------------------------------------------------------------------------------------ */

enum { TEXT_PIECE = 256 };      /* bytes of a token's text, beyond which memory is asked for */

struct pn_detok {
    const pn_model *model;
    bool special;
    pn_detok_state state;
    pn_str out;
};

PN_API pn_status pn_detok_new(const pn_model *m, int special, pn_detok **out, pn_err *err)
{
    pn_mem *mem = pn_engine_mem(m->engine);
    pn_detok *d = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *d);
    if (!d)
        return pn_fail_nomem(err, "a detokenizer", sizeof *d);
    d->model = m;
    d->special = special != 0;
    pn_str_init(&d->out, mem, PN_ACCT_MISC);
    if (!pn_str_reserve(&d->out, TEXT_PIECE)) {
        pn_detok_free(d);
        return pn_fail_nomem(err, "a detokenizer", TEXT_PIECE);
    }
    *out = d;
    return PN_OK;
}

PN_API void pn_detok_free(pn_detok *d)
{
    if (!d)
        return;
    pn_str_fini(&d->out);
    pn_mem_free(pn_engine_mem(d->model->engine), PN_ACCT_MISC, d, sizeof *d);
}

static pn_status detok_give(pn_detok *d, const char **text, size_t *len, pn_err *err)
{
    if (d->out.failed)
        return pn_fail_nomem(err, "streamed text", d->out.len);
    *text = pn_str_cstr(&d->out);
    *len = d->out.len;
    return PN_OK;
}

PN_API pn_status pn_detok_push(pn_detok *d, pn_token t, const char **text, size_t *len, pn_err *err)
{
    char tmp[8];
    pn_bytes p = pn_vocab_piece(d->model->vocab, t, d->special, tmp);
    pn_str_clear(&d->out);
    pn_detok_feed(&d->state, p.data, p.len, &d->out);
    return detok_give(d, text, len, err);
}

PN_INTERNAL bool pn_detok_is_whole(const pn_detok *d) { return d->state.n_held == 0; }

PN_API pn_status pn_detok_flush(pn_detok *d, const char **text, size_t *len, pn_err *err)
{
    pn_str_clear(&d->out);
    pn_detok_end(&d->state, &d->out);
    return detok_give(d, text, len, err);
}

/* ------------------------------------------------------------------------------------------
 * Chat
 * ------------------------------------------------------------------------------------------ */

static const pn_chat_format_info *text_chat_format(const pn_model *m, const char *name)
{
    if (name)
        return pn_chat_find(name);
    return pn_chat_detect(m->vocab, m->chat_template.data, m->chat_template.len);
}

PN_API const char *pn_chat_format(const pn_model *m)
{
    const pn_chat_format_info *f = text_chat_format(m, NULL);
    return f ? pn_chat_name(f) : NULL;
}

PN_API pn_status pn_chat_tokenize(const pn_model *m, const char *format, const pn_message *msgs, size_t n_msgs,
                                  size_t first, int add_generation, pn_token *out, size_t cap, size_t *n, pn_err *err)
{
    if (!m || !msgs || !n || first > n_msgs)
        return pn_fail(err, PN_E_INVALID, "pn_chat_tokenize: model, messages and n must be given, first <= n_msgs");
    const pn_chat_format_info *f = text_chat_format(m, format);
    if (!f)
        return format ? pn_fail(err, PN_E_INVALID, "chat format '%s' is none of chatml, llama2, llama3, mistral, phi3, "
                                "gemma, zephyr", format)
                      : pn_fail(err, PN_E_UNSUPPORTED, "the model has no chat format that is recognised; name one");
    pn_prompt p;
    pn_prompt_init(&p, pn_engine_mem(m->engine));
    pn_status st = pn_chat_render(f, m->vocab, msgs, n_msgs, first, add_generation != 0, &p, err);
    const pn_span none = {0, 0};            /* no spans at all would mean that everything is trusted */
    if (!st)
        st = text_encode(m, pn_str_cstr(&p.text), p.text.len, PN_ENC_SPECIAL, p.spans ? p.spans : &none, p.n_spans, out,
                         cap, n, err);
    pn_prompt_fini(&p);
    return st;
}
