/* SPDX-License-Identifier: AGPL-3.0-only */
#include "engine/pn_emit.h"

#include <inttypes.h>

#include "base/pn_err.h"
#include "base/pn_utf8.h"
#include "sample/pn_sampler.h"

enum {
    EMIT_WAIT = 32,             /* tokens that may wait without growing */
    EMIT_PIECE = 256            /* bytes of a token's text, beyond which memory is asked for */
};

/* ------------------------------------------------------------------------------------------
 * Life
 * ------------------------------------------------------------------------------------------ */

static bool emit_room(pn_emit *e, size_t n)
{
    size_t row = e->p->on_logprob ? e->p->n_top : 0;
    return pn_mem_grow(e->mem, PN_ACCT_MISC, (void **)&e->wait, &e->cap_wait, n, sizeof *e->wait) &&
           (row == 0 ||
            (pn_mem_grow(e->mem, PN_ACCT_MISC, (void **)&e->top, &e->cap_top, n * row, sizeof *e->top) &&
             pn_mem_grow(e->mem, PN_ACCT_MISC, (void **)&e->top_lp, &e->cap_top_lp, n * row, sizeof *e->top_lp)));
}

/* A stop string may be held but for its last byte when a token's text comes: no memory is asked for in the middle of a turn. */
static bool emit_room_held(pn_emit *e, const pn_generate_params *p)
{
    size_t longest = 0;
    for (size_t i = 0; i < p->n_stop; i++) {
        size_t n = p->stop[i] ? strlen(p->stop[i]) : 0;
        longest = PN_MAX(longest, n);
    }
    longest = PN_MIN(longest, SIZE_MAX / 16 - EMIT_PIECE) + EMIT_PIECE;
    return pn_str_reserve(&e->held, longest) && pn_str_reserve(&e->held_at, longest * sizeof(size_t));
}

PN_INTERNAL pn_status pn_emit_open(pn_emit *e, const pn_model *m, const pn_generate_params *p, bool special,
                                   pn_emit_give give, void *user, pn_err *err)
{
    pn_mem *mem = pn_engine_mem(m->engine);
    const pn_vocab *vocab = m->vocab;
    *e = (pn_emit){.mem = mem, .vocab = vocab, .p = p, .special = special, .give = give, .user = user, .stop_index = -1};
    pn_str_init(&e->held, mem, PN_ACCT_MISC);
    pn_str_init(&e->held_at, mem, PN_ACCT_MISC);
    if (p->on_logprob && p->n_top > pn_vocab_n_tokens(vocab))
        return pn_fail(err, PN_E_INVALID, "n_top is %" PRIu32 ", expected at most %" PRIu32 ", the vocabulary", p->n_top,
                       pn_vocab_n_tokens(vocab));
    if (p->n_stop > INT32_MAX || (p->n_stop && !p->stop))
        return pn_fail(err, PN_E_INVALID, "%zu stop strings, expected a list of at most 2^31 - 1", p->n_stop);
    e->out = pn_mem_calloc(mem, PN_ACCT_MISC, p->on_logprob ? p->n_top : 0, sizeof *e->out);
    if (!e->out || !emit_room(e, EMIT_WAIT) || !emit_room_held(e, p))
        return pn_fail_nomem(err, "tokens on their way out", EMIT_WAIT * sizeof *e->wait);
    return PN_OK;
}

PN_INTERNAL void pn_emit_close(pn_emit *e)
{
    if (!e->mem)
        return;
    pn_mem_free(e->mem, PN_ACCT_MISC, e->wait, e->cap_wait * sizeof *e->wait);
    pn_mem_free(e->mem, PN_ACCT_MISC, e->top, e->cap_top * sizeof *e->top);
    pn_mem_free(e->mem, PN_ACCT_MISC, e->top_lp, e->cap_top_lp * sizeof *e->top_lp);
    pn_mem_free(e->mem, PN_ACCT_MISC, e->out, (e->p->on_logprob ? e->p->n_top : 0) * sizeof *e->out);
    pn_str_fini(&e->held);
    pn_str_fini(&e->held_at);
    e->mem = NULL;
}

/* ------------------------------------------------------------------------------------------
 * Tokens
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_emit_push(pn_emit *e, pn_token t, const float *logits, pn_err *err)
{
    char tmp[8];
    pn_status st = PN_OK;
    size_t row = e->p->n_top;
    pn_bytes piece = pn_vocab_piece(e->vocab, t, e->special, tmp);
    if (!emit_room(e, e->n_wait + 1))
        return pn_fail_nomem(err, "tokens on their way out", (e->n_wait + 1) * sizeof *e->wait);
    pn_emit_token *w = &e->wait[e->n_wait];
    *w = (pn_emit_token){.id = t, .begin = e->raw_len, .end = e->raw_len + piece.len};
    if (e->p->on_logprob)
        st = pn_chain_logprobs(logits, pn_vocab_n_logits(e->vocab), pn_vocab_n_tokens(e->vocab), t, (uint32_t)row,
                               row ? e->top + e->n_wait * row : NULL, row ? e->top_lp + e->n_wait * row : NULL,
                               &w->logprob, err);
    if (st)
        return st;
    e->last_begin = w->begin;
    e->raw_len = w->end;
    e->n_wait++;
    e->n_tokens++;
    return PN_OK;
}

static pn_token_logprob emit_entry(const pn_emit *e, pn_token t, float logprob, bool special)
{
    char tmp[8];
    pn_bytes b = pn_vocab_piece(e->vocab, t, special, tmp);
    return (pn_token_logprob){.token = t, .logprob = logprob, .bytes = b.data, .len = b.len};
}

static void emit_tell(pn_emit *e, size_t i)
{
    pn_emit_token *w = &e->wait[i];
    uint32_t row = e->p->n_top;
    if (w->told)
        return;
    w->told = true;
    e->n_reasoning += w->part == PN_PART_REASONING;
    if (!e->p->on_logprob)
        return;
    pn_token_logprob out = emit_entry(e, w->id, w->logprob, e->special);
    for (uint32_t k = 0; k < row; k++)
        e->out[k] = emit_entry(e, e->top[i * row + k], e->top_lp[i * row + k], true);
    out.part = w->part;
    out.top = e->out;
    out.n_top = row;
    if (e->p->on_logprob(e->p->logprob_user, &out))
        e->refused = true;
}

/* Tell the tokens that begin before `upto` or end there, forget those that end there. */
static void emit_tell_upto(pn_emit *e, size_t upto)
{
    size_t n = 0, done = 0, row = e->p->on_logprob ? e->p->n_top : 0;
    for (; n < e->n_wait && (e->wait[n].end <= upto || e->wait[n].begin < upto); n++) {
        emit_tell(e, n);
        if (e->wait[n].end <= upto) {
            done = n + 1;
            e->done_len = e->wait[n].end;
        }
    }
    if (!done)
        return;
    e->n_done += done;
    e->n_wait -= done;
    memmove(e->wait, e->wait + done, e->n_wait * sizeof *e->wait);
    if (row) {
        memmove(e->top, e->top + done * row, e->n_wait * row * sizeof *e->top);
        memmove(e->top_lp, e->top_lp + done * row, e->n_wait * row * sizeof *e->top_lp);
    }
}

PN_INTERNAL void pn_emit_mark(pn_emit *e, size_t begin, size_t end, pn_text_part part)
{
    for (size_t i = e->n_wait; i-- > 0 && e->wait[i].end > begin;)
        if (e->wait[i].begin < end && e->wait[i].end > e->wait[i].begin)
            e->wait[i].part = PN_MAX(e->wait[i].part, part);
}

/* ------------------------------------------------------------------------------------------
 * Text
 * ------------------------------------------------------------------------------------------ */

static size_t emit_at(const pn_emit *e, size_t i)
{
    size_t at;
    memcpy(&at, e->held_at.data + i * sizeof at, sizeof at);
    return at;
}

/* The stop string that counts: *index (-1: none) and where it starts.  Without one, the return value
 * is how much cannot be part of any.  `final`: nothing follows, so what is incomplete stays so. */
static size_t emit_find(const pn_emit *e, bool final, int32_t *index)
{
    *index = -1;
    for (size_t at = 0; at < e->held.len; at++) {
        const char *text = e->held.data + at;
        size_t left = e->held.len - at, longest = 0;
        bool pending = false;
        for (size_t i = 0; i < e->p->n_stop; i++) {
            const char *s = e->p->stop[i];
            if (!s || s[0] != text[0] || !s[0])
                continue;
            size_t len = strlen(s);
            if (len <= left && len > longest && memcmp(text, s, len) == 0) {
                longest = len;
                *index = (int32_t)i;
            }
            pending = pending || (len > left && memcmp(text, s, left) == 0);
        }
        if (pending && !final)
            *index = -1;
        if ((pending && !final) || longest)
            return at;
    }
    return e->held.len;
}

/* The first n bytes held go out, with what belongs to them. */
static void emit_give(pn_emit *e, size_t n)
{
    if (n)
        emit_tell_upto(e, emit_at(e, n - 1) + 1);
    if (e->give(e->user, pn_str_cstr(&e->held), n))
        e->refused = true;
    if (!n)
        return;
    memmove(e->held.data, e->held.data + n, e->held.len - n);
    memmove(e->held_at.data, e->held_at.data + n * sizeof(size_t), e->held_at.len - n * sizeof(size_t));
    e->held.len -= n;
    e->held_at.len -= n * sizeof(size_t);
}

static void emit_advance(pn_emit *e, bool final)
{
    int32_t index;
    if (e->held.failed || e->held_at.failed) {
        e->failed = true;
        return;
    }
    size_t n = emit_find(e, final, &index);
    if (n < e->held.len)                    /* what follows may begin inside a character */
        n -= pn_utf8_incomplete(e->held.data, n);
    if (index >= 0) {
        e->stop_at = emit_at(e, n);
        e->stop_index = index;
    }
    emit_give(e, n);
    if (index >= 0) {
        emit_tell_upto(e, e->stop_at);
        e->held.len = e->held_at.len = 0;
    }
}

PN_INTERNAL void pn_emit_text(pn_emit *e, const char *text, size_t n, size_t at)
{
    if (pn_emit_stopped(e) || e->failed)
        return;
    pn_emit_mark(e, at, at + n, PN_PART_CONTENT);
    pn_str_add(&e->held, text, n);
    for (size_t i = 0; i < n; i++) {
        size_t v = at + i;
        pn_str_add(&e->held_at, &v, sizeof v);
    }
    emit_advance(e, false);
}

PN_INTERNAL void pn_emit_release(pn_emit *e)
{
    if (e->held.len && !pn_emit_stopped(e) && !e->failed)
        emit_advance(e, true);
}

PN_INTERNAL void pn_emit_settle(pn_emit *e, size_t upto)
{
    if (pn_emit_stopped(e) || e->failed)
        return;
    if (e->held.len)
        upto = PN_MIN(upto, emit_at(e, 0));
    size_t n = 0;
    while (n < e->n_wait && e->wait[n].end <= upto)
        n++;
    if (n)
        emit_tell_upto(e, e->wait[n - 1].end);
}

PN_INTERNAL size_t pn_emit_kept(const pn_emit *e, size_t max, size_t *len)
{
    size_t kept = e->n_done;
    *len = e->done_len;
    for (size_t i = 0; i < e->n_wait && (!pn_emit_stopped(e) || e->wait[i].end <= e->stop_at); i++) {
        kept++;
        *len = e->wait[i].end;
    }
    if (kept <= max)
        return kept;
    PN_ASSERT(max + 1 == e->n_tokens);
    *len = e->last_begin;
    return max;
}
