/*
 * pn_constraint.h - one answer held to a grammar: mask before the pick, follow after it.
 *
 * With `after` the text is free up to that marker (the end of a model's reasoning); the grammar holds
 * from the byte behind it.
 */
#ifndef PN_CONSTRAINT_H
#define PN_CONSTRAINT_H

#include "engine/pn_grammar_api.h"

enum { CONSTRAINT_MARKER_MAX = 64 };

typedef struct pn_constraint {
    pn_mem *mem;
    pn_model *model;
    pn_matcher *matcher;        /* NULL: no grammar */
    uint32_t *mask;             /* [n_words] */
    size_t n_words;
    bool active;                /* behind the marker */
    char after[CONSTRAINT_MARKER_MAX];
    size_t after_len;
    char tail[CONSTRAINT_MARKER_MAX];   /* end of the free text, while looking for the marker */
    size_t tail_len;
} pn_constraint;

/* g NULL: everything is allowed.  after NULL: from the first token on. */
PN_INTERNAL pn_status pn_constraint_open(pn_constraint *c, pn_model *m, const pn_grammar *g, const char *after,
                                         pn_err *err);
PN_INTERNAL void pn_constraint_close(pn_constraint *c);

/* What may come next: a bitmap for pn_chain_pick_masked, NULL for everything. */
PN_INTERNAL pn_status pn_constraint_mask(pn_constraint *c, const uint32_t **allowed, pn_err *err);

/* The token that was chosen, and the text it adds (control tokens rendered). */
PN_INTERNAL pn_status pn_constraint_accept(pn_constraint *c, pn_token t, pn_bytes piece, pn_err *err);

/* The text is a sentence and nothing can follow. */
PN_INTERNAL bool pn_constraint_done(const pn_constraint *c);

#endif /* PN_CONSTRAINT_H */
