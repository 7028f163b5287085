/*
 * pn_ask_int.h - a request for text as the lane sees it: what its body says, and what its two files share.
 */
#ifndef PN_ASK_INT_H
#define PN_ASK_INT_H

#include "serve/pn_oai_embeddings.h"
#include "serve/pn_oai_tokens.h"
#include "serve/pn_responses.h"
#include "serve/pn_server_int.h"

struct serve_request {
    pn_oai_common *common;      /* of the one below, as the next */
    pn_oai_chat *chat;          /* NULL: no conversation */
    union {
        pn_oai_chat chat;
        pn_oai_completion completion;
        pn_responses responses;
        pn_oai_embeddings embeddings;
        pn_oai_tokenize tokenize;
        pn_oai_detokenize detokenize;
    } of;
    bool open;                  /* it was read and has to be closed */
    pn_str tools;               /* owned: JSON array, or empty */
    pn_str echoed;              /* owned: texts of the prompts, if they are echoed, and where they are: */
    pn_bytes echo[SERVE_CHOICES];
};

/* The engine refused: that is the ask's error now.  Returns st. */
PN_INTERNAL pn_status serve_ask_refused(serve_ask *a, pn_status st, const pn_err *err);

/* Append the tokens of input i. */
PN_INTERNAL pn_status serve_ask_tokens(serve_ask *a, const pn_oai_inputs *in, size_t i, serve_tokens *t, pn_err *err);

/* Tokens of the prompt (of the longest one); 0: it cannot be said. */
PN_INTERNAL uint32_t serve_ask_count(serve_ask *a);

/* Are the log-probabilities of the prompts' own tokens wanted (echo with logprobs)? */
PN_INTERNAL bool serve_ask_scores(const serve_ask *a);

/* Compute a choice's prompt in its session and tell the reply its tokens. */
PN_INTERNAL pn_status serve_ask_score(serve_ask *a, serve_choice *c, pn_err *err);

/* An ask that generates nothing: its answer is in the box afterwards, and it has ended. */
PN_INTERNAL pn_status serve_ask_once(serve_ask *a, pn_err *err);

#endif /* PN_ASK_INT_H */
