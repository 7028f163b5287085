/*
 * pn_budget.h - how long a model may think: counts reasoning tokens and, when they are spent, says which
 * tokens must come next.
 *
 *              start sequence              budget spent, character whole          sequence forced
 *     IDLE ------------------> COUNTING ---------------------------------> FORCING ----------------> IDLE
 *       ^                          |
 *       +--------------------------+  the model's own end sequence
 *
 * IDLE is entered again after each block: models open a second one, and all blocks draw on one budget,
 * so a second block after the budget is spent is closed at once.  The forced tokens are a message of
 * the caller's (may be empty) and the end sequence.
 *
 * `reserve` keeps room for the answer: with limit tokens left in all (max_tokens or context), thinking
 * ends when no more than reserve + the forced tokens are left, budget or not.
 *
 * The start sequence is looked for in the tokens accepted; a prompt that has opened the reasoning is
 * told at creation.  Threads: one owner.
 */
#ifndef PN_BUDGET_H
#define PN_BUDGET_H

#include "base/pn_mem.h"

typedef enum pn_budget_state { PN_BUDGET_IDLE, PN_BUDGET_COUNTING, PN_BUDGET_FORCING } pn_budget_state;

typedef struct pn_budget_params {
    const pn_token *start;      /* [n_start], opens the reasoning; none: only `open` does */
    size_t n_start;
    const pn_token *end;        /* [n_end] >= 1, closes it */
    size_t n_end;
    const pn_token *message;    /* [n_message], forced in front of end; may be none */
    size_t n_message;
    int64_t budget;             /* reasoning tokens; -1: no limit, only the reserve; 0: close at once */
    uint32_t limit;             /* tokens that may be generated in all; 0: unknown, no reserve */
    uint32_t reserve;           /* tokens kept for the answer */
    bool open;                  /* the prompt has opened the reasoning */
} pn_budget_params;

typedef struct pn_budget pn_budget;

/* Arrays are copied.  PN_E_INVALID: no end sequence, a budget below -1. */
PN_INTERNAL pn_status pn_budget_new(pn_budget **out, pn_mem *mem, const pn_budget_params *p, pn_err *err);
PN_INTERNAL void pn_budget_free(pn_budget *b);

/* The token that must come next, or -1: the model's choice.  Before the first token too. */
PN_INTERNAL pn_token pn_budget_next(const pn_budget *b);

/* `t` is now part of the answer.  whole: the text so far ends with a whole character (closing inside
 * one would break it).  Returns what pn_budget_next() says now. */
PN_INTERNAL pn_token pn_budget_accept(pn_budget *b, pn_token t, bool whole);

PN_INTERNAL pn_budget_state pn_budget_where(const pn_budget *b);
PN_INTERNAL uint64_t pn_budget_spent(const pn_budget *b);      /* reasoning tokens of all blocks */
PN_INTERNAL uint32_t pn_budget_entries(const pn_budget *b);    /* blocks entered */
PN_INTERNAL bool pn_budget_was_forced(const pn_budget *b);

#endif /* PN_BUDGET_H */
