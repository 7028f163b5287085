/*
 * pn_generate.h - one generation as an object: what has to be evaluated next, what came of it.
 *
 *     open -> wants tokens -> (somebody evaluates them in the session) -> computed -> wants ... -> close
 *
 * Whoever drives it decides when and in which step the rows run: pn_generate_run() alone, the scheduler
 * (pn_sched.h) together with others.  There is one way to run a token, and neither text nor logits depend
 * on which it was.
 */
#ifndef PN_GENERATE_H
#define PN_GENERATE_H

#include "engine/pn_constraint.h"
#include "engine/pn_emit.h"

struct pn_sampler {
    pn_engine *engine;
    struct pn_chain *chain;
};

/* Where generated text goes.  text: a token's new whole characters, -1 for half ones at the end; it ends
 * up in pn_emit_text().  end: nothing follows; not called after a stop string. */
typedef struct pn_generate_route {
    pn_emit *emit;
    pn_status (*text)(void *user, pn_token t, const char *text, size_t len, pn_err *err);
    pn_status (*end)(void *user, pn_err *err);
    void *user;
} pn_generate_route;

typedef struct pn_gen {
    pn_session *s;              /* borrowed */
    pn_generate_params p;       /* what it points to is borrowed */
    pn_generate_route route;
    struct pn_budget *budget;   /* borrowed, or NULL: dictates tokens when the reasoning takes too long */
    pn_sampler *sampler;
    pn_detok *detok;
    pn_constraint constraint;
    const pn_token *next;       /* [n_next] to be evaluated, of these `at` are */
    size_t n_next, at;
    pn_token chosen;
    bool in_prompt;
    uint32_t first;             /* the answer's tokens are the session's from here on */
    uint32_t granted;           /* the session may grow to so many tokens before it asks for more memory */
    uint32_t saved;             /* tokens that the prefix cache has been told of, or told us */
    double since;               /* when the prompt, then the answer, was begun */
    pn_generate_result r;
} pn_gen;

/* p: full size; its prompt and all it points to live until pn_gen_close.  on_text is not looked at. */
PN_INTERNAL pn_status pn_gen_open(pn_gen *g, pn_session *s, const pn_generate_params *p, const pn_generate_route *route,
                                  struct pn_budget *budget, pn_err *err);

/* Tokens to append to the session; 0: the generation is over. */
PN_INTERNAL size_t pn_gen_wants(const pn_gen *g, const pn_token **tokens);

/* The first n of these are in the session; with the last of them its logits are.  Chooses and delivers
 * the next token.  A failure ends the generation. */
PN_INTERNAL pn_status pn_gen_computed(pn_gen *g, size_t n, pn_err *err);

/* The end, whatever `st` the generation had.  Delivers what was held back, cuts the session to what was
 * delivered.  Returns PN_OK for a cancelled one.  *raw_len: bytes of the result's n_kept tokens. */
PN_INTERNAL pn_status pn_gen_close(pn_gen *g, pn_status st, pn_generate_result *result, size_t *raw_len, pn_err *err);

/* All of it, alone. */
PN_INTERNAL pn_status pn_generate_run(pn_session *s, const pn_generate_params *p, const pn_generate_route *route,
                                      struct pn_budget *budget, pn_generate_result *result, size_t *raw_len, pn_err *err);

/* --- straight to the caller --------------------------------------------------------------------- */

/* The route of pn_session_generate. */
typedef struct pn_plain {
    const pn_generate_params *p;    /* borrowed */
    pn_emit emit;
    pn_token now;               /* the token whose text this is; -1: the end */
    size_t at;                  /* bytes of text so far */
    pn_generate_route route;
} pn_plain;

PN_INTERNAL pn_status pn_plain_open(pn_plain *t, const pn_model *m, const pn_generate_params *p, pn_err *err);
PN_INTERNAL void pn_plain_close(pn_plain *t);

#endif /* PN_GENERATE_H */
