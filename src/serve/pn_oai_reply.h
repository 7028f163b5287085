/*
 * pn_oai_reply.h - answers as chat completions and completions show them: one body, or chunks of a stream.
 *
 * Chat, streaming.  The role comes alone and first, then reasoning_content, content and tool_calls as the answer
 * has them, then a chunk with nothing but finish_reason; for each choice.  Then, when asked for, one with the
 * usage and no choice.  A call's id, type and name come once, in its first chunk; what clients add up would
 * double otherwise.
 *
 * Completions, streaming.  Pieces of text, the prompt in front where it is echoed, and a chunk with no text and
 * finish_reason.
 *
 * Not streaming, everything is gathered and shown at the end, choices in the order of their index.
 */
#ifndef PN_OAI_REPLY_H
#define PN_OAI_REPLY_H

#include "serve/pn_reply.h"

PN_INTERNAL pn_status pn_oai_chat_reply_new(pn_reply **out, const pn_reply_params *p, bool include_usage, bool logprobs, pn_err *err);

/* Choice i answers prompt i / n.  With prompt_logprobs the tokens of the prompt are told, too, before all
 * others; the first has no probability, which is NaN. */
typedef struct pn_oai_completion_reply {
    bool include_usage, logprobs, prompt_logprobs;
    uint32_t n;                 /* choices of a prompt; 0: 1 */
    const pn_bytes *echo;       /* [n_choices / n] texts of the prompts, borrowed; NULL: not echoed */
} pn_oai_completion_reply;

PN_INTERNAL pn_status pn_oai_completion_reply_new(pn_reply **out, const pn_reply_params *p, const pn_oai_completion_reply *how, pn_err *err);

/* --- for those who implement replies like these ---------------------------------------------------------------- */

/* {"id":...,"object":...,"created":...,"model":...,"system_fingerprint":...,"choices":[ */
PN_INTERNAL void pn_oai_reply_head(pn_reply *r, const char *prefix, const char *object);

/* ,"usage":{...} */
PN_INTERNAL void pn_oai_reply_usage(pn_str *s, const pn_oai_usage *u);

PN_INTERNAL bool pn_oai_reply_fail(pn_reply *r, const pn_oai_error *e);

/* {"token","logprob","bytes","top_logprobs":[{"token","logprob","bytes"}]} */
PN_INTERNAL void pn_oai_reply_token(pn_str *s, const pn_token_logprob *t);

/* A natural logarithm as the API has it: what is no number is -9999. */
PN_INTERNAL void pn_oai_reply_log(pn_str *s, float v);

#endif /* PN_OAI_REPLY_H */
