/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_budget.c - a machine over token ids; see the drawing in pn_budget.h.
 *
 * Sequences are matched with the failure function of Knuth, Morris and Pratt, so that an end that
 * begins inside a false start ("<", "<", "/think>") is not missed, and nothing is kept of the tokens.
 *
 * A model that is forced may be in the midst of writing the end itself: the tokens of it that are there
 * count, and only the rest is forced, unless a message comes first.
 */
#include "sample/pn_budget.h"

#include "base/pn_err.h"

#include <inttypes.h>

#define BUDGET_SEQUENCE_MAX 4096

typedef struct budget_match {
    pn_token *tokens;           /* owned, [n] */
    uint32_t *fail;             /* owned, [n]: length of the longest border of tokens[0..i] */
    uint32_t n, at;             /* at: tokens matched so far, < n */
} budget_match;

struct pn_budget {
    pn_mem *mem;
    budget_match start, end;
    pn_token *force;            /* owned, [n_force]: message and end */
    uint32_t n_force, force_at;
    uint32_t n_message;
    int64_t budget;
    uint64_t limit, reserve, generated, spent;
    uint32_t entries;
    pn_budget_state state;
    bool whole, was_forced;
};

static bool match_init(budget_match *m, pn_mem *mem, const pn_token *tokens, size_t n)
{
    m->n = (uint32_t)n;
    m->tokens = pn_mem_calloc(mem, PN_ACCT_MISC, n, sizeof *m->tokens);
    m->fail = pn_mem_calloc(mem, PN_ACCT_MISC, n, sizeof *m->fail);
    if (!m->tokens || !m->fail)
        return false;
    if (n)
        memcpy(m->tokens, tokens, n * sizeof *tokens);
    for (uint32_t i = 1, k = 0; i < n; i++) {
        while (k && tokens[i] != tokens[k])
            k = m->fail[k - 1];
        k += tokens[i] == tokens[k];
        m->fail[i] = k;
    }
    return true;
}

static void match_fini(budget_match *m, pn_mem *mem)
{
    pn_mem_free(mem, PN_ACCT_MISC, m->tokens, m->n * sizeof *m->tokens);
    pn_mem_free(mem, PN_ACCT_MISC, m->fail, m->n * sizeof *m->fail);
}

/* True when t completes the sequence. */
static bool match_step(budget_match *m, pn_token t)
{
    if (!m->n)
        return false;
    while (m->at && m->tokens[m->at] != t)
        m->at = m->fail[m->at - 1];
    m->at += m->tokens[m->at] == t;
    if (m->at < m->n)
        return false;
    m->at = 0;
    return true;
}

/* Is the time for thinking over?  The forced tokens come out of what is left. */
static bool budget_over(const pn_budget *b)
{
    if (b->budget >= 0 && b->spent >= (uint64_t)b->budget)
        return true;
    if (!b->limit)
        return false;
    uint64_t left = b->limit > b->generated ? b->limit - b->generated : 0;
    return left <= b->reserve + b->n_force;
}

static void budget_check(pn_budget *b)
{
    if (b->state != PN_BUDGET_COUNTING || !b->whole || !budget_over(b))
        return;
    b->state = PN_BUDGET_FORCING;
    b->was_forced = true;
    b->force_at = b->n_message ? 0 : b->end.at;
}

static void budget_enter(pn_budget *b)
{
    b->state = PN_BUDGET_COUNTING;
    b->entries++;
    b->end.at = 0;
    budget_check(b);
}

static void budget_leave(pn_budget *b)
{
    b->state = PN_BUDGET_IDLE;
    b->start.at = 0;
}

PN_INTERNAL pn_status pn_budget_new(pn_budget **out, pn_mem *mem, const pn_budget_params *p, pn_err *err)
{
    if (!p->n_end || p->n_end > BUDGET_SEQUENCE_MAX || p->n_start > BUDGET_SEQUENCE_MAX ||
        p->n_message > BUDGET_SEQUENCE_MAX)
        return pn_fail(err, PN_E_INVALID, "a reasoning budget needs an end sequence, and none over %d tokens",
                       BUDGET_SEQUENCE_MAX);
    if (p->budget < -1)
        return pn_fail(err, PN_E_INVALID, "a reasoning budget of %" PRId64 " is not allowed: -1 (none) or more", p->budget);
    pn_budget *b = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *b);
    if (!b)
        return pn_fail_nomem(err, "a reasoning budget", sizeof *b);
    b->mem = mem;
    b->budget = p->budget;
    b->limit = p->limit;
    b->reserve = p->reserve;
    b->whole = true;
    b->n_message = (uint32_t)p->n_message;
    b->n_force = (uint32_t)(p->n_message + p->n_end);
    b->force = pn_mem_calloc(mem, PN_ACCT_MISC, b->n_force, sizeof *b->force);
    bool ok = match_init(&b->start, mem, p->start, p->n_start);
    ok = match_init(&b->end, mem, p->end, p->n_end) && ok;
    if (!b->force || !ok) {
        pn_budget_free(b);
        return pn_fail_nomem(err, "a reasoning budget", (uint64_t)(p->n_message + p->n_end) * sizeof(pn_token));
    }
    if (p->n_message)
        memcpy(b->force, p->message, p->n_message * sizeof *b->force);
    memcpy(b->force + p->n_message, p->end, p->n_end * sizeof *b->force);
    if (p->open)
        budget_enter(b);
    *out = b;
    return PN_OK;
}

PN_INTERNAL void pn_budget_free(pn_budget *b)
{
    if (!b)
        return;
    match_fini(&b->start, b->mem);
    match_fini(&b->end, b->mem);
    pn_mem_free(b->mem, PN_ACCT_MISC, b->force, b->n_force * sizeof *b->force);
    pn_mem_free(b->mem, PN_ACCT_MISC, b, sizeof *b);
}

PN_INTERNAL pn_token pn_budget_next(const pn_budget *b)
{
    return b->state == PN_BUDGET_FORCING ? b->force[b->force_at] : -1;
}

PN_INTERNAL pn_token pn_budget_accept(pn_budget *b, pn_token t, bool whole)
{
    b->generated++;
    b->whole = whole;
    switch (b->state) {
    case PN_BUDGET_IDLE:
        if (match_step(&b->start, t))
            budget_enter(b);
        break;
    case PN_BUDGET_COUNTING:
        if (match_step(&b->end, t)) {
            budget_leave(b);
            break;
        }
        b->spent++;
        budget_check(b);
        break;
    case PN_BUDGET_FORCING:
        /* Another token than the one forced (a grammar, a caller with a mind of its own) does not
         * count; the one forced is still due. */
        if (t == b->force[b->force_at] && ++b->force_at == b->n_force)
            budget_leave(b);
        break;
    }
    return pn_budget_next(b);
}

PN_INTERNAL pn_budget_state pn_budget_where(const pn_budget *b) { return b->state; }
PN_INTERNAL uint64_t pn_budget_spent(const pn_budget *b) { return b->spent; }
PN_INTERNAL uint32_t pn_budget_entries(const pn_budget *b) { return b->entries; }
PN_INTERNAL bool pn_budget_was_forced(const pn_budget *b) { return b->was_forced; }

#undef BUDGET_SEQUENCE_MAX
