/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_ask_score.c - how likely was the prompt?  Completions with echo and logprobs, which is how evaluation suites
 * compare given answers: max_tokens is often 0 then.
 *
 * Row i of the logits says what follows token i, so the first token has no probability.
 */
#include "serve/pn_ask_int.h"

#include <math.h>

enum { SCORE_ROWS = 16, SCORE_TOP = 20 };

typedef struct score_text {
    char bytes[512];
    size_t len;
} score_text;

PN_INTERNAL bool serve_ask_scores(const serve_ask *a)
{
    return a->kind == SERVE_COMPLETION && a->req->open && a->req->of.completion.echo && a->req->common->logprobs;
}

static void score_bytes(const serve_ask *a, pn_token t, score_text *out)
{
    if (pn_detokenize(a->at->m, &t, 1, 1, out->bytes, sizeof out->bytes, &out->len, NULL) != PN_OK)
        out->len = 0;
    out->len = PN_MIN(out->len, sizeof out->bytes);
}

/* Token i of the prompt, by the logits of the row before it (NULL: it is the first). */
static pn_status score_tell(serve_ask *a, serve_choice *c, size_t i, const float *logits, pn_err *err)
{
    uint32_t n_top = logits ? PN_MIN(c->generate.n_top, (uint32_t)SCORE_TOP) : 0;
    pn_token ids[SCORE_TOP];
    float lp[SCORE_TOP], chosen = NAN;
    score_text text, tops[SCORE_TOP];
    pn_token_logprob top[SCORE_TOP];
    pn_status st = logits ? pn_logprobs(a->at->m, logits, c->prompt.list[i], n_top, ids, lp, &chosen, err) : PN_OK;
    if (st)
        return st;
    for (uint32_t k = 0; k < n_top; k++) {
        score_bytes(a, ids[k], &tops[k]);
        top[k] = (pn_token_logprob){.token = ids[k], .logprob = lp[k], .bytes = tops[k].bytes, .len = tops[k].len};
    }
    score_bytes(a, c->prompt.list[i], &text);
    const pn_token_logprob t = {.token = c->prompt.list[i], .logprob = chosen, .bytes = text.bytes, .len = text.len, .part = PN_PART_CONTENT,
                                .top = top, .n_top = n_top};
    pn_mutex_lock(&a->lock);
    bool ok = a->reply->ops->logprob(a->reply, c->index, &t);
    pn_mutex_unlock(&a->lock);
    return ok ? PN_OK : pn_fail_nomem(err, "log-probabilities", 0);
}

static pn_status score_rows(serve_ask *a, serve_choice *c, float *logits, size_t V, pn_err *err)
{
    size_t n = c->prompt.n;
    pn_status st = n ? score_tell(a, c, 0, NULL, err) : PN_OK;
    for (size_t at = 0; at < n && !st; at += SCORE_ROWS) {
        size_t rows = PN_MIN((size_t)SCORE_ROWS, n - at);
        st = atomic_load(&a->cancelled) ? pn_fail(err, PN_E_CANCELLED, "cancelled")
                                        : pn_session_eval_all(c->session, c->prompt.list + at, rows, logits, err);
        for (size_t r = 0; r < rows && at + r + 1 < n && !st; r++)
            st = score_tell(a, c, at + r + 1, logits + r * V, err);
    }
    return st;
}

PN_INTERNAL pn_status serve_ask_score(serve_ask *a, serve_choice *c, pn_err *err)
{
    size_t V = pn_vocab_size(a->at->m);
    float *logits = pn_mem_calloc(&a->server->mem, PN_ACCT_CONN, SCORE_ROWS * V, sizeof *logits);
    pn_status st = logits ? score_rows(a, c, logits, V, err) : pn_fail_nomem(err, "logits", SCORE_ROWS * V * sizeof *logits);
    pn_mem_free(&a->server->mem, PN_ACCT_CONN, logits, SCORE_ROWS * V * sizeof *logits);
    return st;
}
