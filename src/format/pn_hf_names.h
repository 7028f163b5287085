/*
 * pn_hf_names.h - what the tensors of a Hugging Face model are called, and which of ours they are.
 *
 * A configuration says exactly which tensors a model has and of which shape; this lists them.  So every tensor is
 * bound, or is on the short list of those that carry nothing, or is too much; none is missing; and no shape is a guess.
 *
 * Names begin in several ways, which mean the same ("model.", "language_model.model.", "model.language_model.", and
 * before them "module." or "_orig_mod."): pn_hf_name() takes that off.
 */
#ifndef PN_HF_NAMES_H
#define PN_HF_NAMES_H

#include "format/pn_hf_config.h"

typedef enum pn_hf_how {
    PN_HF_MATRIX, PN_HF_VECTOR,
    PN_HF_NORM,                 /* a vector that may be stored minus one */
    PN_HF_STACK                 /* one matrix for each expert, or all in one tensor */
} pn_hf_how;

enum { PN_HF_NAME_MAX = 160, PN_HF_OURS_MAX = 64 };

/* One tensor of ours.  '#' in a name stands for a number: first the layer, then the expert. */
typedef struct pn_hf_want {
    const char *names[3];       /* how it may be called, [NULL]-terminated */
    const char *fused[3];       /* PN_HF_STACK: what a tensor of all experts may be called, likewise */
    const char *ours;
    uint64_t rows, cols;        /* of one matrix; a vector has no rows: 0 */
    const char *rows_are, *cols_are;    /* by what config.json calls them */
    uint64_t fused_rows, fused_from;    /* of which `rows` from this one on are ours */
    uint8_t how;
    bool optional;
} pn_hf_want;

/* The i-th tensor of a layer, or of those outside of layers.  False: there are no more. */
PN_INTERNAL bool pn_hf_want_at(const pn_hf_config *c, bool layer, uint32_t i, pn_hf_want *out);

/* A name with its numbers; cut when it does not fit. */
PN_INTERNAL void pn_hf_spell(char *out, size_t cap, const char *name, uint32_t first, uint32_t second);

/* What is left of a file's name for a tensor: "layers.0...", "embed_tokens.weight", ... */
PN_INTERNAL const char *pn_hf_name(const char *name);

/* Such a tensor (as pn_hf_name gives it) is in files and of no use to the text model. */
PN_INTERNAL bool pn_hf_skips(const pn_hf_config *c, const char *name);

#endif /* PN_HF_NAMES_H */
