/*
 * pn_respell.h - where in a prompt does the template repeat an answer, in other words or the same?
 *
 * A template prints an answer from its parts, so the text seldom is the one the model wrote: JSON gets
 * other spaces, arguments another order, calls other ids.  Two texts are two spellings of one answer
 * when the output parser sees the same in both: reasoning and content up to white space around them,
 * the calls' names, and arguments equal as JSON values.  Why the parser and not a comparison of
 * renderings: it is right whatever a template does with its last message, it needs no rendering per
 * answer, and what a template has dropped (reasoning, text beside a call) is missed at once, so that
 * then the template has its way.  Ids count as spelling: templates and clients rename them.
 *
 * Pure.  Bounded: for each of two ways to guess, at most RESPELL_TRIES stretches of the prompt are parsed.
 */
#ifndef PN_RESPELL_H
#define PN_RESPELL_H

#include "text/pn_chat.h"
#include "text/pn_toolcall.h"

typedef struct pn_respell {
    pn_mem *mem;
    const pn_vocab *vocab;          /* its end tokens end answers; NULL: unknown */
    const pn_out_format *format;
    const pn_json_doc *tools;       /* as for pn_out_new */
    pn_bytes opening, raw;          /* what the prompt had begun of the answer, and what was sampled */
    const pn_prompt *prompt;        /* the new prompt ... */
    size_t begun, from, limit;      /* ... in which the answer's opening begins, the repetition of `raw`
                                       begins, and something else has begun at the latest */
} pn_respell;

/* *end: where in the prompt goes on what `raw` has not said: markup that closes the answer, then the
 * next message.  *found false: the prompt does not repeat the answer there.  PN_E_NOMEM only. */
PN_INTERNAL pn_status pn_respell_find(const pn_respell *q, size_t *end, bool *found, pn_err *err);

#endif /* PN_RESPELL_H */
