/*
 * pn_oai.h - what a chat completions request asks for, checked.
 *
 * Every field of the body is honoured, refused with its name, or listed in `ignored`; nothing is dropped
 * without a word.  null is absent.  Names and ranges are OpenAI's, with the extensions that vLLM and
 * llama-server have (top_k, min_p, ...); where a client's number is out of OpenAI's range but has a
 * meaning (a temperature of 3), it is taken.
 *
 * Source: OpenAI's API reference and the extensions' documentation.
 *
 * Threads: none; a parsed request belongs to whoever parsed it.
 */
#ifndef PN_OAI_H
#define PN_OAI_H

#include "base/pn_json.h"
#include "pantheon.h"

/* An error as the API answers it: {"error":{"message","type","param","code"}}. */
typedef struct pn_oai_error {
    int status;                 /* of HTTP */
    const char *type, *code;    /* static; code NULL: null */
    char param[96];             /* the field; "": null */
    char message[512];
} pn_oai_error;

PN_INTERNAL void pn_oai_error_json(const pn_oai_error *e, pn_str *out);

typedef enum pn_oai_format {
    PN_OAI_TEXT = 0,
    PN_OAI_JSON_OBJECT,         /* any JSON object */
    PN_OAI_SCHEMA,              /* `schema` */
    PN_OAI_GBNF                 /* `grammar` */
} pn_oai_format;

typedef struct pn_oai_chat {
    pn_mem *mem;
    pn_json_doc body;           /* owned; nodes and strings below are of it */
    pn_bytes model;             /* {NULL, 0}: not given */
    uint32_t messages, tools;   /* arrays; tools PN_JSON_NONE: none */
    uint32_t n;                 /* choices */
    uint32_t max_tokens;        /* 0: until the end or the context is full */
    bool stream, include_usage;
    pn_sampling sampling;       /* fields that were given; `given` says which */
    uint64_t given;             /* a bit for each sampling field of the table, in its order */
    pn_logit_bias *bias;        /* owned, [cap_bias] */
    size_t cap_bias;
    const char **stop;          /* owned, [cap_stop]; texts of the body */
    size_t n_stop, cap_stop;
    bool logprobs;
    uint32_t top_logprobs;
    pn_oai_format format;
    uint32_t schema;
    pn_bytes grammar;
    pn_tool_choice tool_choice;
    pn_bytes tool_name;         /* the one function to call, or {NULL, 0} */
    bool single_call;
    pn_str variables;           /* JSON object: variables of the template, or empty */
    bool has_reasoning_budget;
    uint32_t reasoning_budget;
    pn_bytes session;           /* session_id, or {NULL, 0} */
    pn_str ignored;             /* JSON strings with commas between, for pantheon.ignored_params */
} pn_oai_chat;

/* False: *e says why (400, or 500 without memory), and *out is empty.  text is not needed afterwards.
 * n_max: most choices. */
PN_INTERNAL bool pn_oai_chat_parse(pn_oai_chat *out, pn_mem *mem, const char *text, size_t len, uint32_t n_max, pn_oai_error *e);
PN_INTERNAL void pn_oai_chat_fini(pn_oai_chat *q);

/* A model's defaults overridden by what was given; bias and seed are the request's. */
PN_INTERNAL void pn_oai_chat_sampling(const pn_oai_chat *q, pn_sampling *of_model);

#endif /* PN_OAI_H */
