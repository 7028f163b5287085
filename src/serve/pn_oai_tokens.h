/*
 * pn_oai_tokens.h - /tokenize, /detokenize, /apply-template and the counts of input tokens, as llama-server and
 * vLLM have them.
 *
 * The two differ in names and defaults; a request says which it is by its fields, and gets that form back.
 *
 * Pure.  Threads: none.
 */
#ifndef PN_OAI_TOKENS_H
#define PN_OAI_TOKENS_H

#include "serve/pn_oai.h"

typedef struct pn_oai_tokenize {
    pn_oai_chat chat;           /* when there are messages; else its `common` alone, with body and model */
    pn_bytes text;              /* what to tokenize; data NULL: there are messages, to be rendered first */
    bool vllm;                  /* `prompt` or `messages`; else `content` */
    bool add_special;           /* BOS and so on; of vLLM's prompts by default */
    bool parse_special;         /* markers in the text are control tokens; by default */
    bool pieces;                /* each token's text, too */
    bool add_generation_prompt; /* by default */
} pn_oai_tokenize;

PN_INTERNAL bool pn_oai_tokenize_parse(pn_oai_tokenize *out, pn_mem *mem, const char *text, size_t len, pn_oai_error *e);
PN_INTERNAL void pn_oai_tokenize_fini(pn_oai_tokenize *q);

/* The same for /apply-template: there are messages. */
PN_INTERNAL bool pn_oai_template_parse(pn_oai_tokenize *out, pn_mem *mem, const char *text, size_t len, pn_oai_error *e);

typedef struct pn_oai_detokenize {
    pn_oai_common common;
    pn_token *tokens;           /* owned, [cap] */
    size_t n, cap;
} pn_oai_detokenize;

PN_INTERNAL bool pn_oai_detokenize_parse(pn_oai_detokenize *out, pn_mem *mem, const char *text, size_t len, pn_oai_error *e);
PN_INTERNAL void pn_oai_detokenize_fini(pn_oai_detokenize *q);

/* Answers.  pieces: [n], when q->pieces; one that is not UTF-8 is shown as its bytes. */
PN_INTERNAL void pn_oai_tokenize_body(pn_str *out, const pn_oai_tokenize *q, const pn_token *tokens, const pn_bytes *pieces, size_t n,
                                      uint32_t max_model_len);
PN_INTERNAL void pn_oai_detokenize_body(pn_str *out, const char *text, size_t len);
PN_INTERNAL void pn_oai_template_body(pn_str *out, const char *text, size_t len);
PN_INTERNAL void pn_oai_input_tokens_body(pn_str *out, size_t n);

#endif /* PN_OAI_TOKENS_H */
