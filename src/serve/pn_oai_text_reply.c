/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_oai_text_reply.c - chunks and bodies of completions, with their own form of log-probabilities: four lists
 * side by side, a place in each for every token.
 */
#include "serve/pn_oai_reply.h"

#include <math.h>

#include "base/pn_err.h"
#include "base/pn_utf8.h"

typedef struct textr_choice {
    pn_str text;                /* gathered; when streaming, the echo that is not out yet */
    pn_str tokens, logs, tops, offsets;     /* elements that are not out yet */
    uint64_t chars;             /* in front of the next token */
    pn_finish why;
} textr_choice;

typedef struct textr_reply {
    pn_reply base;
    pn_oai_completion_reply how;
    textr_choice *choices;      /* owned, [base.p.n_choices] */
    uint32_t n_ended;
} textr_reply;

/* ------------------------------------------------------------------------------------------
 * Log-probabilities
 * ------------------------------------------------------------------------------------------ */

/* Characters of text that may end inside one: those that begin in it. */
static uint64_t textr_chars(const char *text, size_t len)
{
    uint64_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

/* Parts of a character as OpenAI writes them: keys of top_logprobs stay different. */
static void textr_token(pn_str *s, const pn_token_logprob *t)
{
    if (pn_utf8_valid(t->bytes, t->len) == t->len) {
        pn_json_write_str(s, t->bytes, t->len);
        return;
    }
    pn_str_addz(s, "\"bytes:");
    for (size_t i = 0; i < t->len; i++)
        pn_str_addf(s, "\\\\x%02x", (unsigned)(unsigned char)t->bytes[i]);
    pn_str_addc(s, '"');
}

/* Two tokens may have the same text, keys may not: the likelier stays. */
static bool textr_is_repeated(const pn_token_logprob *t, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (t->top[k].len == t->top[i].len && memcmp(t->top[k].bytes, t->top[i].bytes, t->top[i].len) == 0)
            return true;
    return false;
}

static void textr_top(pn_str *s, const pn_token_logprob *t)
{
    if (!t->n_top) {
        pn_str_addz(s, "null");
        return;
    }
    pn_str_addc(s, '{');
    for (uint32_t i = 0; i < t->n_top; i++) {
        if (textr_is_repeated(t, i))
            continue;
        pn_json_item(s);
        textr_token(s, &t->top[i]);
        pn_str_addc(s, ':');
        pn_oai_reply_log(s, t->top[i].logprob);
    }
    pn_str_addc(s, '}');
}

static bool textr_logprob(pn_reply *base, uint32_t choice, const pn_token_logprob *t)
{
    textr_reply *r = (textr_reply *)base;
    textr_choice *c = &r->choices[choice];
    pn_str *all[] = {&c->tokens, &c->logs, &c->tops, &c->offsets};
    if (!r->how.logprobs || t->part != PN_PART_CONTENT)
        return !base->dead;
    for (size_t i = 0; c->tokens.len && i < PN_COUNT_OF(all); i++)
        pn_str_addc(all[i], ',');
    textr_token(&c->tokens, t);
    if (isnan(t->logprob))
        pn_str_addz(&c->logs, "null");
    else
        pn_oai_reply_log(&c->logs, t->logprob);
    textr_top(&c->tops, t);
    pn_json_write_u64(&c->offsets, c->chars);
    c->chars += textr_chars(t->bytes, t->len);
    for (size_t i = 0; i < PN_COUNT_OF(all); i++)
        pn_reply_kept(base, all[i]);
    return !base->dead;
}

/* The entries that wait, as the value of "logprobs". */
static void textr_logprobs(textr_reply *r, textr_choice *c)
{
    static const char *const keys[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    pn_str *s = &r->base.out, *all[] = {&c->tokens, &c->logs, &c->tops, &c->offsets};
    pn_json_key(s, "logprobs");
    if (!r->how.logprobs || (!c->tokens.len && r->base.p.stream)) {
        pn_str_addz(s, "null");
        return;
    }
    pn_str_addc(s, '{');
    for (size_t i = 0; i < PN_COUNT_OF(all); i++) {
        pn_json_key(s, keys[i]);
        pn_str_addc(s, '[');
        pn_str_add(s, pn_str_cstr(all[i]), all[i]->len);
        pn_str_addc(s, ']');
        pn_str_clear(all[i]);
    }
    pn_str_addc(s, '}');
}

/* ------------------------------------------------------------------------------------------
 * Text
 * ------------------------------------------------------------------------------------------ */

/* A choice with `text` behind what was gathered. */
static void textr_write(textr_reply *r, uint32_t choice, const char *text, size_t len, const char *finish)
{
    textr_choice *c = &r->choices[choice];
    pn_str *s = &r->base.out;
    pn_str_add(&c->text, text, len);
    pn_reply_kept(&r->base, &c->text);
    pn_json_item(s);
    pn_str_addz(s, "{\"text\":");
    pn_json_write_str(s, pn_str_cstr(&c->text), c->text.len);
    pn_str_addf(s, ",\"index\":%u", (unsigned)choice);
    textr_logprobs(r, c);
    pn_json_key(s, "finish_reason");
    pn_json_write_strz(s, finish);
    pn_str_addc(s, '}');
    pn_str_clear(&c->text);
}

static bool textr_chunk(textr_reply *r, uint32_t choice, const char *text, size_t len, const char *finish)
{
    pn_oai_reply_head(&r->base, "cmpl-", "text_completion");
    textr_write(r, choice, text, len, finish);
    pn_str_addc(&r->base.out, ']');
    if (r->how.include_usage)
        pn_str_addz(&r->base.out, ",\"usage\":null");
    else if (finish && r->n_ended == r->base.p.n_choices)
        pn_reply_report(&r->base);
    pn_str_addc(&r->base.out, '}');
    return pn_reply_send(&r->base, NULL);
}

static bool textr_begin(pn_reply *base, const pn_oai_usage *so_far)
{
    textr_reply *r = (textr_reply *)base;
    (void)so_far;
    for (uint32_t i = 0; r->how.echo && i < base->p.n_choices; i++) {
        textr_choice *c = &r->choices[i];
        pn_bytes echo = r->how.echo[i / r->how.n];
        pn_str_add(&c->text, echo.data, echo.len);
        c->chars = r->how.prompt_logprobs ? 0 : textr_chars(echo.data, echo.len);
        pn_reply_kept(base, &c->text);
    }
    return !base->dead;
}

static bool textr_event(pn_reply *base, uint32_t choice, const pn_output_event *e)
{
    textr_reply *r = (textr_reply *)base;
    pn_str *text = &r->choices[choice].text;
    if (e->kind != PN_OUTPUT_CONTENT || !e->len)
        return !base->dead;
    if (base->p.stream)
        return textr_chunk(r, choice, e->text, e->len, NULL);
    pn_str_add(text, e->text, e->len);
    return pn_reply_kept(base, text);
}

/* ------------------------------------------------------------------------------------------
 * The end
 * ------------------------------------------------------------------------------------------ */

static const char *textr_finish(const textr_choice *c) { return pn_reply_cut_short(c->why) ? "length" : "stop"; }

static bool textr_choice_end(pn_reply *base, uint32_t choice, const pn_reply_finish *f)
{
    textr_reply *r = (textr_reply *)base;
    textr_choice *c = &r->choices[choice];
    c->why = f->why;
    r->n_ended++;
    if (!base->p.stream)
        return !base->dead;
    if (c->text.len && !textr_chunk(r, choice, "", 0, NULL))
        return false;
    return textr_chunk(r, choice, "", 0, textr_finish(c));
}

static bool textr_end(pn_reply *base, const pn_oai_usage *usage)
{
    textr_reply *r = (textr_reply *)base;
    if (base->p.stream && !r->how.include_usage)
        return !base->dead;
    pn_oai_reply_head(base, "cmpl-", "text_completion");
    for (uint32_t i = 0; !base->p.stream && i < base->p.n_choices; i++)
        textr_write(r, i, "", 0, textr_finish(&r->choices[i]));
    pn_str_addc(&base->out, ']');
    pn_oai_reply_usage(&base->out, usage);
    pn_reply_report(base);
    pn_str_addc(&base->out, '}');
    return pn_reply_send(base, NULL);
}

/* ------------------------------------------------------------------------------------------
 * Making one
 * ------------------------------------------------------------------------------------------ */

static void textr_each_text(textr_choice *c, pn_mem *mem)       /* mem NULL: the end of them */
{
    pn_str *all[] = {&c->text, &c->tokens, &c->logs, &c->tops, &c->offsets};
    for (size_t i = 0; i < PN_COUNT_OF(all); i++)
        if (mem)
            pn_str_init(all[i], mem, PN_ACCT_CONN);
        else
            pn_str_fini(all[i]);
}

static void textr_free(pn_reply *base)
{
    textr_reply *r = (textr_reply *)base;
    for (uint32_t i = 0; r->choices && i < base->p.n_choices; i++)
        textr_each_text(&r->choices[i], NULL);
    pn_mem_free(base->p.mem, PN_ACCT_CONN, r->choices, base->p.n_choices * sizeof *r->choices);
    pn_reply_dispose(base, sizeof *r);
}

PN_INTERNAL pn_status pn_oai_completion_reply_new(pn_reply **out, const pn_reply_params *p, const pn_oai_completion_reply *how, pn_err *err)
{
    static const pn_reply_ops ops = {textr_begin, textr_logprob, textr_event, textr_choice_end, textr_end, pn_oai_reply_fail, textr_free, true};
    textr_reply *r = (textr_reply *)pn_reply_alloc(sizeof *r, &ops, p, err);
    if (!r)
        return PN_E_NOMEM;
    r->how = *how;
    r->how.n = PN_MAX(how->n, 1u);
    r->choices = pn_mem_calloc(p->mem, PN_ACCT_CONN, p->n_choices, sizeof *r->choices);
    if (!r->choices) {
        textr_free(&r->base);
        return pn_fail_nomem(err, "the choices of an answer", p->n_choices * sizeof *r->choices);
    }
    for (uint32_t i = 0; i < p->n_choices; i++)
        textr_each_text(&r->choices[i], p->mem);
    *out = &r->base;
    return PN_OK;
}
