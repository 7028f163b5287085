/*
 * pn_responses.h - OpenAI's Responses API, without its state: requests become chat requests, answers become
 * items.
 *
 * A request's text is said as a chat completions request and read as one (pn_oai_translate.h).  Its body is kept,
 * because answers repeat much of it.  What needs answers of before (previous_response_id, conversation) or
 * work behind the client's back (background) is refused; tools that run at OpenAI's are left out and listed.
 *
 * Source: OpenAI's API reference.
 *
 * Threads: none; see pn_reply.h for replies.
 */
#ifndef PN_RESPONSES_H
#define PN_RESPONSES_H

#include "serve/pn_oai.h"
#include "serve/pn_reply.h"

typedef struct pn_responses {
    pn_oai_chat chat;           /* what it comes to; `ignored` is of the client's body */
    pn_json_doc body;           /* the client's; owned */
} pn_responses;

/* Also for its input_tokens.  False: *e says why, and *out is empty. */
PN_INTERNAL bool pn_responses_parse(pn_responses *out, pn_mem *mem, const char *text, size_t len, pn_oai_error *e);
PN_INTERNAL void pn_responses_fini(pn_responses *q);

/* Streaming: response.created and .in_progress, each item from its output_item.added to its output_item.done, one
 * after the other, and response.completed or .incomplete.  q is borrowed while the reply lives; p->n_choices
 * is 1. */
PN_INTERNAL pn_status pn_responses_reply_new(pn_reply **out, const pn_reply_params *p, const pn_responses *q, pn_err *err);

#endif /* PN_RESPONSES_H */
