/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_oai.c - any bytes as the body of a request, to every API, and as what a model says, to every reply.
 * What is refused has a reason and leaves nothing behind; what is taken is whole; what goes out is JSON in one
 * line.
 */
#include "pn_fuzz.h"

#include "serve/pn_anthropic.h"
#include "serve/pn_oai_embeddings.h"
#include "serve/pn_oai_reply.h"
#include "serve/pn_oai_tokens.h"
#include "serve/pn_responses.h"

/* A pn_mem that counts. */
typedef struct fuzz_oai_mem {
    pn_mem mem, libc;
    long blocks;
} fuzz_oai_mem;

static void *fuzz_oai_alloc(pn_mem *m, pn_account a, size_t size)
{
    fuzz_oai_mem *f = (fuzz_oai_mem *)m;
    f->blocks++;
    return pn_mem_alloc(&f->libc, a, size);
}

static void fuzz_oai_free(pn_mem *m, pn_account a, void *ptr, size_t size)
{
    fuzz_oai_mem *f = (fuzz_oai_mem *)m;
    f->blocks--;
    pn_mem_free(&f->libc, a, ptr, size);
}

static void fuzz_oai_json(pn_mem *mem, const char *text, size_t len)
{
    pn_json_doc d;
    if (memchr(text, '\n', len) || pn_json_parse(&d, mem, PN_ACCT_MISC, text, len, &(pn_json_params){.max_depth = 160}, NULL))
        abort();
    pn_json_fini(&d);
}

/* ------------------------------------------------------------------------------------------
 * Requests
 * ------------------------------------------------------------------------------------------ */

/* An error is one that can be shown, in both shapes. */
static void fuzz_oai_error(pn_mem *mem, const pn_oai_error *e)
{
    pn_str s;
    if (e->status != 400 || !e->message[0] || !e->type)
        abort();
    pn_str_init(&s, mem, PN_ACCT_MISC);
    pn_oai_error_json(e, &s);
    fuzz_oai_json(mem, pn_str_cstr(&s), s.len);
    pn_str_clear(&s);
    pn_anthropic_error_json(e, &s);
    fuzz_oai_json(mem, pn_str_cstr(&s), s.len);
    pn_str_fini(&s);
}

static void fuzz_oai_common(pn_mem *mem, const pn_oai_common *q)
{
    pn_sampling sampling = {0};
    pn_str s;
    pn_oai_sampling(q, &sampling);
    for (size_t i = 0; i < q->n_stop; i++)
        if (!q->stop[i][0])
            abort();
    if (!q->n || (q->format == PN_OAI_SCHEMA) != (q->schema != PN_JSON_NONE) || (q->format == PN_OAI_GBNF) != (q->grammar.data != NULL))
        abort();
    pn_str_init(&s, mem, PN_ACCT_MISC);
    pn_str_addf(&s, "[%s]", pn_str_cstr(&q->ignored));
    fuzz_oai_json(mem, pn_str_cstr(&s), s.len);
    pn_str_fini(&s);
}

static void fuzz_oai_chat(pn_mem *mem, const pn_oai_chat *q)
{
    pn_str s;
    fuzz_oai_common(mem, &q->common);
    if (!q->n_messages || q->n_messages > pn_json_count(&q->common.body, q->messages))
        abort();
    pn_str_init(&s, mem, PN_ACCT_MISC);
    pn_oai_chat_tools(q, &s);
    if (s.len)
        fuzz_oai_json(mem, s.data, s.len);
    if (q->variables.len)
        fuzz_oai_json(mem, q->variables.data, q->variables.len);
    pn_str_fini(&s);
}

static void fuzz_oai_inputs(const pn_oai_inputs *in)
{
    size_t pieces = 0, tokens = 0;
    for (size_t i = 0; i < in->n; i++) {
        if (in->list[i].first != pieces || !in->list[i].n_pieces)
            abort();
        for (size_t k = 0; k < in->list[i].n_pieces; k++, pieces++) {
            const pn_oai_piece *piece = &in->pieces[pieces];
            if (piece->first != tokens || (piece->text.data != NULL) == (piece->n_tokens != 0))
                abort();
            tokens += piece->n_tokens;
        }
    }
    if (pieces != in->n_pieces || tokens != in->n_tokens)
        abort();
}

static void fuzz_oai_chats(pn_mem *mem, const char *text, size_t len)
{
    pn_oai_error e;
    pn_oai_chat q;
    if (pn_oai_chat_parse(&q, mem, text, len, 4, &e))
        fuzz_oai_chat(mem, &q);
    else
        fuzz_oai_error(mem, &e);
    pn_oai_chat_fini(&q);
    if (pn_anthropic_parse(&q, mem, text, len, &e))
        fuzz_oai_chat(mem, &q);
    else
        fuzz_oai_error(mem, &e);
    pn_oai_chat_fini(&q);
}

static void fuzz_oai_others(pn_mem *mem, const char *text, size_t len)
{
    pn_oai_error e;
    pn_oai_completion c;
    pn_oai_embeddings v;
    pn_oai_detokenize d;
    if (pn_oai_completion_parse(&c, mem, text, len, 4, &e)) {
        fuzz_oai_common(mem, &c.common);
        fuzz_oai_inputs(&c.prompts);
    } else {
        fuzz_oai_error(mem, &e);
    }
    pn_oai_completion_fini(&c);
    if (pn_oai_embeddings_parse(&v, mem, text, len, &e))
        fuzz_oai_inputs(&v.inputs);
    else
        fuzz_oai_error(mem, &e);
    pn_oai_embeddings_fini(&v);
    if (!pn_oai_detokenize_parse(&d, mem, text, len, &e))
        fuzz_oai_error(mem, &e);
    pn_oai_detokenize_fini(&d);
}

/* The text's bytes are the tokens, each a piece. */
static void fuzz_oai_tokens(pn_mem *mem, const char *text, size_t len)
{
    const pn_token ids[4] = {0, 1, 2, 3};
    pn_bytes pieces[4];
    pn_oai_error e;
    pn_oai_tokenize q;
    pn_str s;
    for (size_t i = 0; i < 4; i++)
        pieces[i] = (pn_bytes){text + i * (len / 4), len / 4};
    pn_str_init(&s, mem, PN_ACCT_MISC);
    if (pn_oai_tokenize_parse(&q, mem, text, len, &e)) {
        pn_oai_tokenize_body(&s, &q, ids, pieces, 4, 9);
        fuzz_oai_json(mem, s.data, s.len);
    } else {
        fuzz_oai_error(mem, &e);
    }
    pn_oai_tokenize_fini(&q);
    pn_str_clear(&s);
    pn_oai_detokenize_body(&s, text, len);
    fuzz_oai_json(mem, s.data, s.len);
    pn_str_fini(&s);
}

/* ------------------------------------------------------------------------------------------
 * Answers
 * ------------------------------------------------------------------------------------------ */

static int fuzz_oai_emit(void *user, const char *event, const char *json, size_t len)
{
    if (event && !strstr(json, event))
        abort();
    fuzz_oai_json(user, json, len);
    return 0;
}

/* Pieces of the text, each of a kind that its first byte chooses; calls begin and end as they have to. */
static bool fuzz_oai_say(pn_reply *r, uint32_t choice, const char *text, size_t len)
{
    bool ok = true, called = false;
    uint32_t n_calls = 0, n_events = 0;
    for (size_t at = 0; ok && at < len && n_events < 16; n_events++) {
        unsigned char c = (unsigned char)text[at];
        size_t n = PN_MIN((size_t)1 + (c >> 3), len - at);
        const pn_token_logprob top = {.bytes = text, .len = n, .logprob = -1};
        const pn_token_logprob t = {.bytes = text + at, .len = n, .logprob = -(float)c, .part = PN_PART_CONTENT, .top = &top, .n_top = c & 1};
        pn_output_event e = {.text = text + at, .len = n, .id = text, .id_len = c & 4 ? n : 0, .call = n_calls};
        e.kind = called ? ((c & 3) == 3 ? PN_OUTPUT_CALL_END : PN_OUTPUT_ARGUMENTS)
                        : (c & 3) == 3 ? PN_OUTPUT_CALL_BEGIN : (c & 3) == 2 ? PN_OUTPUT_REASONING : PN_OUTPUT_CONTENT;
        called = called ? e.kind != PN_OUTPUT_CALL_END : e.kind == PN_OUTPUT_CALL_BEGIN;
        n_calls += e.kind == PN_OUTPUT_CALL_END;
        if (e.kind == PN_OUTPUT_CONTENT)
            ok = r->ops->logprob(r, choice, &t);
        ok = ok && r->ops->event(r, choice, &e);
        at += n;
    }
    if (ok && called)
        ok = r->ops->event(r, choice, &(pn_output_event){.kind = PN_OUTPUT_CALL_END, .call = n_calls});
    return ok && r->ops->choice_end(r, choice, &(pn_reply_finish){len & 1 ? PN_FINISH_LENGTH : PN_FINISH_STOP, {text, PN_MIN(len, (size_t)3)}});
}

static void fuzz_oai_reply(pn_reply *r, const char *text, size_t len)
{
    const pn_oai_usage usage = {5, 9, 2, 1};
    bool ok = r->ops->begin(r, &usage);
    for (uint32_t i = 0; i < r->p.n_choices; i++)
        ok = ok && fuzz_oai_say(r, i, text + (i ? len / 2 : 0), i ? len - len / 2 : len);
    pn_oai_error e;
    pn_oai_error_status(&e, PN_E_INTERNAL, "x");
    if (!ok || !r->ops->end(r, &usage) || !r->ops->fail(r, &e))
        abort();
    pn_reply_free(r);
}

static void fuzz_oai_replies(pn_mem *mem, const char *text, size_t len, bool stream)
{
    static const char least[] = "{\"input\":\"x\",\"include\":[\"message.output_text.logprobs\"]}";
    pn_reply_params p = {.mem = mem, .id = "abcdefghijklmnopqrstuvwx", .model = "m", .fingerprint = "f", .n_choices = 2, .stream = stream,
                         .report = "\"a\":1", .emit = fuzz_oai_emit, .user = mem};
    const pn_bytes echo = {text, len / 2};
    pn_reply *r;
    pn_oai_error e;
    pn_responses q;
    if (pn_oai_chat_reply_new(&r, &p, len & 2, true, NULL))
        abort();
    fuzz_oai_reply(r, text, len);
    if (pn_oai_completion_reply_new(&r, &p, &(pn_oai_completion_reply){.include_usage = len & 2, .logprobs = true, .n = 2, .echo = &echo}, NULL))
        abort();
    fuzz_oai_reply(r, text, len);
    p.n_choices = 1;
    if (pn_anthropic_reply_new(&r, &p, NULL))
        abort();
    fuzz_oai_reply(r, text, len);
    bool ok = pn_responses_parse(&q, mem, text, len, &e);
    if (ok)
        fuzz_oai_chat(mem, &q.chat);
    else
        fuzz_oai_error(mem, &e);
    if (!ok && !pn_responses_parse(&q, mem, least, sizeof least - 1, &e))
        abort();
    if (pn_responses_reply_new(&r, &p, &q, NULL))
        abort();
    fuzz_oai_reply(r, text, len);
    pn_responses_fini(&q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    fuzz_oai_mem m = {.mem = {fuzz_oai_alloc, fuzz_oai_free, NULL}};
    pn_mem_init_libc(&m.libc);
    fuzz_oai_chats(&m.mem, text, size);
    fuzz_oai_others(&m.mem, text, size);
    fuzz_oai_tokens(&m.mem, text, size);
    fuzz_oai_replies(&m.mem, text, size, size & 4);
    if (m.blocks)
        abort();
    return 0;
}
