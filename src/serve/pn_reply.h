/*
 * pn_reply.h - how an API shows an answer: what every one of them is told, and what it makes of it.
 *
 *     begin -> (logprob | event)* and choice_end, for each choice -> end
 *                                                                 \-> or fail, at any time
 *
 * The server does not know which API a client speaks.  It creates a reply for the request it has read, tells
 * it what happens, and sends what the reply emits: nothing but the body, once, when it does not stream; else
 * events, each a JSON text in one line, perhaps with a name (Anthropic's and the Responses API name them,
 * chat completions do not).
 *
 * Choices come interleaved; those of one reply are told one at a time.
 *
 * Threads: one at a time, not always the same.  Pure: events in, JSON texts out.
 */
#ifndef PN_REPLY_H
#define PN_REPLY_H

#include "base/pn_json.h"
#include "pantheon.h"
#include "serve/pn_oai_error.h"

/* The body, or an event of a stream: a JSON text in one line, valid during the call; event NULL: no name.
 * Nonzero: stop. */
typedef int (*pn_reply_emit)(void *user, const char *event, const char *json, size_t len);

typedef struct pn_reply_params {
    pn_mem *mem;                /* all texts are borrowed while the reply lives */
    const char *id;             /* 24 letters and digits, unique; each API puts its prefix before it */
    const char *model, *fingerprint;
    int64_t created;            /* Unix seconds */
    uint32_t n_choices;
    bool stream;
    uint64_t seed;              /* for ids of calls and items */
    const char *report;         /* members of the object "pantheon" that APIs with room for it carry, without its
                                   braces; NULL: no object.  It is looked at where it is written, with the end of
                                   the last choice or behind it, so what is known late can be set in r->p.report */
    pn_reply_emit emit;
    void *user;
} pn_reply_params;

typedef struct pn_oai_usage {
    uint32_t prompt, cached, completion, reasoning;     /* tokens; cached are of the prompt, reasoning of the completion */
} pn_oai_usage;

typedef struct pn_reply_finish {
    pn_finish why;
    pn_bytes stop;              /* the stop string that ended it, or {NULL, 0} */
} pn_reply_finish;

typedef struct pn_reply pn_reply;

/* Each returns false when memory ran out or emit said stop, and from then on. */
typedef struct pn_reply_ops {
    bool (*begin)(pn_reply *r, const pn_oai_usage *so_far);     /* prompt and cached are known */
    bool (*logprob)(pn_reply *r, uint32_t choice, const pn_token_logprob *t);  /* before the content it belongs to */
    bool (*event)(pn_reply *r, uint32_t choice, const pn_output_event *e);
    bool (*choice_end)(pn_reply *r, uint32_t choice, const pn_reply_finish *f);
    bool (*end)(pn_reply *r, const pn_oai_usage *total);        /* behind the end of every choice */
    bool (*fail)(pn_reply *r, const pn_oai_error *e);           /* the last of a stream; without one, the body,
                                                                   which goes with e's status */
    void (*free)(pn_reply *r);
    bool done_marker;           /* the stream ends with "data: [DONE]" */
} pn_reply_ops;

/* The first member of every API's own struct. */
struct pn_reply {
    const pn_reply_ops *ops;
    pn_reply_params p;
    pn_str out;                 /* the text being made */
    bool dead;                  /* emit said stop, or something is missing from what was emitted */
};

static inline void pn_reply_free(pn_reply *r)                   /* NULL is a no-op */
{
    if (r)
        r->ops->free(r);
}

/* --- for those who implement it ---------------------------------------------------------------- */

/* `size` bytes, zeroed, with `out` usable; NULL when memory ran out.  free: ops->free's last step. */
PN_INTERNAL pn_reply *pn_reply_alloc(size_t size, const pn_reply_ops *ops, const pn_reply_params *p, pn_err *err);
PN_INTERNAL void pn_reply_dispose(pn_reply *r, size_t size);

/* Emit `out` and empty it. */
PN_INTERNAL bool pn_reply_send(pn_reply *r, const char *event);

/* `s` was added to; false when that failed. */
PN_INTERNAL bool pn_reply_kept(pn_reply *r, const pn_str *s);

/* ,"pantheon":{...} onto out. */
PN_INTERNAL void pn_reply_report(pn_reply *r);

/* prefix and 24 letters and digits, the same for equal a and b in this reply. */
PN_INTERNAL void pn_reply_id(const pn_reply *r, const char *prefix, uint32_t a, uint32_t b, char out[40]);

/* length (also: the context is full) or something else */
static inline bool pn_reply_cut_short(pn_finish f) { return f == PN_FINISH_LENGTH || f == PN_FINISH_CONTEXT; }

#endif /* PN_REPLY_H */
