/*
 * pn_guide.h - where an answer stands: in its reasoning, in free text, or held to a grammar.
 *
 *             marker                    trigger                    sentence complete
 *     WAIT ------------> START ... FREE ---------> BOUND --------------------------> FREE or DONE
 *
 *     WAIT    free text up to a marker: reasoning that is open, or what stands before the grammar
 *     START   nothing of the answer yet; a model may open its reasoning here (back to WAIT)
 *     FREE    free text, watched for the triggers of tool calls (pn_calls.h)
 *     BOUND   the grammar says what may come
 *
 * A sentence of the grammar may be owed: then START is BOUND but for the reasoning, and no token that ends
 * the answer is allowed before the sentence may end, not in the reasoning either.
 *
 * In WAIT no trigger may come: whoever reads the answer takes an opener in the reasoning for a call.
 *
 * Markers and triggers are looked for in the bytes of the text, control tokens rendered.  When a token
 * carries a trigger and more, the rest belongs to the grammar.  If it does not fit there the token is
 * refused (PN_E_STATE): ban it and choose again.  So nothing has to be taken back.
 *
 * Threads: one guide, one thread.
 */
#ifndef PN_GUIDE_H
#define PN_GUIDE_H

#include "sample/pn_calls.h"

enum { PN_GUIDE_MARK_MAX = 64 };    /* bytes of a marker, its NUL included */

typedef struct pn_guide_params {
    pn_gram *gram;                  /* retained; NULL with `forbid` */
    const pn_gtrie *trie;           /* borrowed; NULL: bytes alone, without masks */
    const pn_trigger *triggers;     /* [n_triggers], borrowed; none: a sentence is owed */
    size_t n_triggers;
    pn_watch_kind watch;            /* beside the triggers */
    bool owed;                      /* a sentence is owed, and triggers are not what begins it */
    bool lanes;                     /* gram is that of a pn_calls: lane 0 when nothing triggers */
    bool single;                    /* after one triggered call the answer is over */
    bool forbid;                    /* triggers must not come about at all */
    const char *after;              /* WAIT for this first; NULL: START.  Copied, as all texts here */
    const char *think_open, *think_close;   /* a model may open its reasoning itself; NULL: it does not */
    pn_gram_find_token find;        /* ids of control and user-defined tokens, for think_open; NULL */
    void *user;
} pn_guide_params;

typedef struct pn_guide pn_guide;

PN_INTERNAL pn_status pn_guide_new(pn_guide **out, pn_mem *mem, const pn_guide_params *p, pn_err *err);
PN_INTERNAL void pn_guide_free(pn_guide *g);            /* NULL is a no-op */

/* What may come next: bitmap of pn_gtrie_words words, valid until the next call; *allowed NULL:
 * everything.  PN_E_NUMERIC: nothing can. */
PN_INTERNAL pn_status pn_guide_mask(pn_guide *g, const uint32_t **allowed, pn_err *err);

/* The token that was chosen and the text it adds, control tokens rendered.  Not for tokens that end the
 * answer.  PN_E_STATE: it cannot come here, and nothing has changed; with pn_guide_ban the next mask is
 * without it.  A token out of a mask is refused only in WAIT, START and FREE. */
PN_INTERNAL pn_status pn_guide_accept(pn_guide *g, pn_token t, pn_bytes piece, pn_err *err);
PN_INTERNAL void pn_guide_ban(pn_guide *g, pn_token t);

/* The same for bytes, one after another.  On PN_E_STATE the guide is of no use any more. */
PN_INTERNAL pn_status pn_guide_accept_bytes(pn_guide *g, const char *bytes, size_t n, pn_err *err);

/* The answer is complete and nothing may follow; it may end here. */
PN_INTERNAL bool pn_guide_done(const pn_guide *g);
PN_INTERNAL bool pn_guide_may_end(const pn_guide *g);

#endif /* PN_GUIDE_H */
