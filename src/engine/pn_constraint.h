/*
 * pn_constraint.h - one answer held to a grammar: mask before the pick, follow after it.
 *
 * A pn_guide over the model's vocabulary; without a grammar everything is allowed.
 */
#ifndef PN_CONSTRAINT_H
#define PN_CONSTRAINT_H

#include "engine/pn_grammar_api.h"
#include "sample/pn_guide.h"

typedef struct pn_constraint {
    pn_guide *guide;            /* NULL: no grammar */
} pn_constraint;

/* From p's grammar, grammar_after, think_open and think_close. */
PN_INTERNAL pn_status pn_constraint_open(pn_constraint *c, pn_model *m, const pn_generate_params *p, pn_err *err);
PN_INTERNAL void pn_constraint_close(pn_constraint *c);

/* What may come next: a bitmap for pn_chain_pick_masked, NULL for everything. */
PN_INTERNAL pn_status pn_constraint_mask(pn_constraint *c, const uint32_t **allowed, pn_err *err);

/* The token that was chosen, and the text it adds (control tokens rendered).  PN_E_STATE: not here; it is
 * banned from the next mask, so choose again. */
PN_INTERNAL pn_status pn_constraint_accept(pn_constraint *c, pn_token t, pn_bytes piece, pn_err *err);

/* The text is a sentence and nothing can follow. */
PN_INTERNAL bool pn_constraint_done(const pn_constraint *c);

#endif /* PN_CONSTRAINT_H */
