/*
 * pn_oai_reply.h - an answer as OpenAI's API shows it: one body, or chunks of a stream.
 *
 *     begin -> (logprob | event)* -> end
 *
 * Streaming.  The role comes alone and first, then reasoning_content, content and tool_calls as the answer has
 * them, then a chunk with nothing but finish_reason, then, when asked for, one with the usage and no choice.  A
 * call's id, type and name come once, in its first chunk; what clients add up would double otherwise.
 * Not streaming, everything is gathered and shown by pn_oai_reply_end.
 *
 * Threads: one reply, one thread.  Pure: events in, JSON texts out.
 */
#ifndef PN_OAI_REPLY_H
#define PN_OAI_REPLY_H

#include "base/pn_json.h"
#include "pantheon.h"

/* One chunk, or the body: a JSON text in one line, valid during the call.  Nonzero: stop. */
typedef int (*pn_oai_emit)(void *user, const char *json, size_t len);

typedef struct pn_oai_reply_params {
    const char *id;             /* "chatcmpl-..."; all texts are borrowed while the reply lives */
    const char *model, *fingerprint;
    int64_t created;            /* Unix seconds */
    uint32_t choice;            /* index */
    bool stream, include_usage, logprobs;
    const char *ignored;        /* JSON strings with commas between, or "" */
    uint64_t seed;              /* for ids of calls */
    pn_oai_emit emit;
    void *user;
} pn_oai_reply_params;

typedef struct pn_oai_usage {
    uint32_t prompt, cached, completion, reasoning;     /* tokens; cached are of the prompt, reasoning of the completion */
} pn_oai_usage;

typedef struct pn_oai_reply {
    pn_mem *mem;
    pn_oai_reply_params p;
    pn_str content, reasoning;  /* gathered when not streaming */
    pn_str calls;               /* the elements of tool_calls, so far */
    pn_str args;                /* of the call that is open */
    pn_str entries;             /* of logprobs.content that are not out yet, commas between */
    pn_str out;                 /* the text being made */
    uint32_t n_calls;
    bool stopped;               /* emit said so */
} pn_oai_reply;

PN_INTERNAL void pn_oai_reply_init(pn_oai_reply *r, pn_mem *mem, const pn_oai_reply_params *p);
PN_INTERNAL void pn_oai_reply_fini(pn_oai_reply *r);

/* Each returns false when memory ran out or emit said stop. */
PN_INTERNAL bool pn_oai_reply_begin(pn_oai_reply *r);
PN_INTERNAL bool pn_oai_reply_logprob(pn_oai_reply *r, const pn_token_logprob *t);     /* before the content it belongs to */
PN_INTERNAL bool pn_oai_reply_event(pn_oai_reply *r, const pn_output_event *e);
PN_INTERNAL bool pn_oai_reply_end(pn_oai_reply *r, pn_finish finish, const pn_oai_usage *usage);

#endif /* PN_OAI_REPLY_H */
