/*
 * pn_anthropic.h - Anthropic's Messages API: requests become chat requests, answers become its messages.
 *
 * A request's text is said as a chat completions request and read as one (pn_oai_translate.h); what is ignored
 * is in the chat request's `ignored`, for a header, since this API's bodies have no room for other keys.
 *
 * Source: Anthropic's API reference.
 *
 * Threads: none; see pn_reply.h for replies.
 */
#ifndef PN_ANTHROPIC_H
#define PN_ANTHROPIC_H

#include "serve/pn_oai.h"
#include "serve/pn_reply.h"

/* For /v1/messages and its count_tokens.  Without max_tokens, which the API demands, 4096 are meant.  False: *e
 * says why, and *out is empty; else pn_oai_chat_fini it. */
PN_INTERNAL bool pn_anthropic_parse(pn_oai_chat *out, pn_mem *mem, const char *text, size_t len, pn_oai_error *e);

/* {"type":"error","error":{"type","message"}}, and the status that goes with it (overloaded is 529). */
PN_INTERNAL void pn_anthropic_error_json(const pn_oai_error *e, pn_str *out);
PN_INTERNAL int pn_anthropic_error_status(const pn_oai_error *e);

/* Streaming: message_start, then each block from its content_block_start to its content_block_stop, one after
 * the other, then message_delta and message_stop.  p->n_choices is 1. */
PN_INTERNAL pn_status pn_anthropic_reply_new(pn_reply **out, const pn_reply_params *p, pn_err *err);

#endif /* PN_ANTHROPIC_H */
