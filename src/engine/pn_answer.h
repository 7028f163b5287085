/*
 * pn_answer.h - one answer of a conversation, from its prompt to its message.
 *
 * Between open and close somebody generates with a->generate, a->route and a->budget: pn_chat_reply()
 * alone, a request (pn_request.c) together with others.
 */
#ifndef PN_ANSWER_H
#define PN_ANSWER_H

#include "engine/pn_generate.h"
#include "text/pn_toolcall.h"

typedef struct talk_tokens {
    pn_token *list;
    size_t n, cap;
} talk_tokens;

typedef struct pn_answer {
    pn_chat *c;
    pn_chat_reply_params p;
    pn_generate_params generate;    /* the caller's, with our prompt and grammar */
    pn_generate_route route;
    struct pn_budget *budget;   /* owned, or NULL */
    pn_grammar *made;           /* owned: that of this answer's calls, or NULL */
    talk_tokens tokens;         /* owned: the prompt's */
    size_t first;               /* the answer is session positions [first, ...) */
    pn_out *parser;
    pn_out_result parts;
    pn_emit emit;
    pn_str raw;                 /* what the model wrote, token by token */
    bool calling;               /* inside a call, which begins at call_at */
    size_t call_at;
} pn_answer;

/* What params points to is borrowed until the answer is closed. */
PN_INTERNAL pn_status pn_answer_open(pn_chat *c, const pn_chat_reply_params *params, pn_answer **out, pn_err *err);

/* st: what the generation came to.  PN_OK: the answer is the last message now.  Frees a. */
PN_INTERNAL pn_status pn_answer_close(pn_answer *a, pn_status st, const pn_generate_result *r, size_t raw_len, pn_err *err);

PN_INTERNAL pn_session *pn_chat_session(pn_chat *c);

#endif /* PN_ANSWER_H */
