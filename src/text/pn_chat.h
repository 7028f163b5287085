/*
 * pn_chat.h - conversations to prompts with the built-in formats.
 *
 * A format is a few literals around each message.  Literals are the template's own text and may
 * become control tokens; message content never does: the prompt comes with the spans that are
 * trusted (pn_vocab_encode).
 */
#ifndef PN_CHAT_H
#define PN_CHAT_H

#include "base/pn_str.h"
#include "text/pn_vocab.h"

typedef struct pn_chat_format_info pn_chat_format_info;

/* By name, or NULL: chatml, llama3, llama2, phi3, gemma, zephyr, and of mistral's spellings
 * mistral-v1, mistral-v3, mistral-v3-tekken, mistral-v7, mistral-v7-tekken ("mistral": v3). */
PN_INTERNAL const pn_chat_format_info *pn_chat_find(const char *name);

/* From the model's own template source or, when there is none (tmpl_len 0), from the vocabulary's
 * marker tokens; NULL: none fits.  `v` may be NULL. */
PN_INTERNAL const pn_chat_format_info *pn_chat_detect(const pn_vocab *v, const char *tmpl, size_t tmpl_len);
PN_INTERNAL const char *pn_chat_name(const pn_chat_format_info *f);

typedef struct pn_prompt {
    pn_str text;
    pn_span *spans;         /* trusted stretches, ascending */
    size_t n_spans, cap_spans;
} pn_prompt;

PN_INTERNAL void pn_prompt_init(pn_prompt *p, pn_mem *mem);
PN_INTERNAL void pn_prompt_fini(pn_prompt *p);

/* Render messages first..n into *out, whose former text is dropped.  Roles: system, user, assistant;
 * another role is PN_E_INVALID.  Formats without a system role put the system text in front of the
 * next user message, or make it a user message of its own when none follows.
 *
 * BOS: with first == 0 the text starts with the BOS token's own text when the vocabulary adds one or
 * the family's template writes one, so encode it without PN_ENC_BOS.  `v` may be NULL: no BOS.
 *
 * first > 0: the text is what follows in a session that holds
 *   - the rendering of messages 0..first without a generation prompt,
 *   - less the end of message first - 1 when that is the assistant's: a session holds the answer as
 *     generated, and generation keeps no end token.  So the text begins with that end
 *     ("<|im_end|>\n", "<|eot_id|>", "</s>", ...),
 *   - less system text that waits for a user message: it comes with that message. */
PN_INTERNAL pn_status pn_chat_render(const pn_chat_format_info *f, const pn_vocab *v, const pn_message *msgs,
                                     size_t n, size_t first, bool add_generation, pn_prompt *out, pn_err *err);

#endif /* PN_CHAT_H */
