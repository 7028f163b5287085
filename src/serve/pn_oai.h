/*
 * pn_oai.h - what a request of OpenAI's API asks for, checked.
 *
 * Every field of a body is honoured, refused with its name, or listed in `ignored`; nothing is dropped
 * without a word.  null is absent, and of equal keys the last counts.  Names and ranges are OpenAI's, with
 * the extensions that vLLM and llama-server have (top_k, min_p, ...); where a client's number is out of
 * OpenAI's range but has a meaning (a temperature of 3), it is taken.  Bytes that are not UTF-8 and halves of
 * surrogate pairs become U+FFFD: agents paste what they find.
 *
 * Each parser returns false with the error in *e (400, or 503 without memory) and *out empty; the text is not
 * needed afterwards.
 *
 * Source: OpenAI's API reference and the extensions' documentation.
 *
 * Threads: none; a parsed request belongs to whoever parsed it.
 */
#ifndef PN_OAI_H
#define PN_OAI_H

#include "base/pn_json.h"
#include "pantheon.h"
#include "serve/pn_oai_error.h"

/* ------------------------------------------------------------------------------------------
 * What requests have in common
 * ------------------------------------------------------------------------------------------ */

typedef enum pn_oai_format {
    PN_OAI_TEXT = 0,
    PN_OAI_JSON_OBJECT,         /* any JSON object */
    PN_OAI_SCHEMA,              /* `schema` */
    PN_OAI_GBNF                 /* `grammar` */
} pn_oai_format;

/* The first member of every request; those that generate nothing use the first four fields alone. */
typedef struct pn_oai_common {
    pn_mem *mem;
    pn_json_doc body;           /* owned; nodes and strings below are of it */
    pn_bytes model;             /* {NULL, 0}: not given */
    pn_str ignored;             /* JSON strings with commas between, for pantheon.ignored_params */
    uint32_t n;                 /* choices, of each prompt where there are several */
    uint32_t max_tokens;        /* 0: until the end or the context is full */
    bool stream, include_usage;
    bool strict_budget;         /* fewer tokens than max_tokens because memory is short: refuse instead */
    bool no_wait;               /* refuse instead of waiting for memory */
    bool logprobs;
    uint32_t top_logprobs;
    pn_sampling sampling;       /* fields that were given; `given` says which */
    uint64_t given;             /* a bit for each sampling field of the table, in its order */
    pn_logit_bias *bias;        /* owned, [cap_bias] */
    size_t cap_bias;
    const char **stop;          /* owned, [cap_stop]; texts of the body */
    size_t n_stop, cap_stop;
    const char **breakers;      /* owned, [cap_breakers]: dry_sequence_breakers; NULL: not given */
    size_t n_breakers, cap_breakers;
    pn_oai_format format;
    uint32_t schema;
    pn_bytes grammar;
    pn_str choice_grammar;      /* what `grammar` is when the body has a list of choices */
    pn_bytes session;           /* session_id, or {NULL, 0} */
} pn_oai_common;

/* A model's defaults overridden by what was given; bias, breakers and seed are the request's. */
PN_INTERNAL void pn_oai_sampling(const pn_oai_common *q, pn_sampling *of_model);

/* ------------------------------------------------------------------------------------------
 * Chat completions
 * ------------------------------------------------------------------------------------------ */

typedef struct pn_oai_chat {
    pn_oai_common common;
    uint32_t messages;          /* array */
    uint32_t n_messages;        /* of them count: empty ones of the assistant at the end do not */
    uint32_t tools;             /* array, or PN_JSON_NONE: none */
    uint32_t allowed;           /* array of those of the tools that may be called, or PN_JSON_NONE: all */
    pn_tool_choice tool_choice;
    pn_bytes tool_name;         /* the one function to call, or {NULL, 0} */
    bool single_call;
    pn_str variables;           /* JSON object: variables of the template, or empty */
    bool has_reasoning_budget;
    uint32_t reasoning_budget;
} pn_oai_chat;

/* n_max: most choices. */
PN_INTERNAL bool pn_oai_chat_parse(pn_oai_chat *out, pn_mem *mem, const char *text, size_t len, uint32_t n_max, pn_oai_error *e);
PN_INTERNAL void pn_oai_chat_fini(pn_oai_chat *q);

/* The tools that may be called, as a JSON array; nothing when there are none. */
PN_INTERNAL void pn_oai_chat_tools(const pn_oai_chat *q, pn_str *out);

/* ------------------------------------------------------------------------------------------
 * Completions
 * ------------------------------------------------------------------------------------------ */

/* Inputs as a body lists them: a string, a list of strings, of tokens, or of lists of tokens.  Tokens and
 * strings side by side in one list of tokens are the pieces of one input, as llama-server reads them. */
typedef struct pn_oai_piece {
    pn_bytes text;              /* data NULL: tokens[first .. first + n_tokens) */
    size_t first, n_tokens;
} pn_oai_piece;

typedef struct pn_oai_input { size_t first, n_pieces; } pn_oai_input;

typedef struct pn_oai_inputs {
    pn_oai_input *list;         /* owned, [cap] */
    size_t n, cap;
    pn_oai_piece *pieces;       /* owned, [cap_pieces] */
    size_t n_pieces, cap_pieces;
    pn_token *tokens;           /* owned, [cap_tokens]; at least 0, the vocabulary's size is not known here */
    size_t n_tokens, cap_tokens;
} pn_oai_inputs;

/* Without max_tokens an answer goes on until its end or a full context, as in llama-server; OpenAI's 16
 * cuts off what most clients want. */
typedef struct pn_oai_completion {
    pn_oai_common common;       /* n choices of each prompt */
    pn_oai_inputs prompts;
    bool prompt_only;           /* max_tokens is 0: nothing is generated */
    bool echo;
    pn_bytes suffix;            /* text behind the gap, or {NULL, 0} */
} pn_oai_completion;

/* n_max: most choices of all prompts together. */
PN_INTERNAL bool pn_oai_completion_parse(pn_oai_completion *out, pn_mem *mem, const char *text, size_t len, uint32_t n_max, pn_oai_error *e);
PN_INTERNAL void pn_oai_completion_fini(pn_oai_completion *q);

#endif /* PN_OAI_H */
