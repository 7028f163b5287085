/*
 * pn_presets.h - which number format each matrix of a model gets.
 *
 * A preset ("Q4_K_M") is a base format and a few rules that spend more bits where they help most:
 * values (attn_v), the way back into the residual (attn_output, ffn_down), the output matrix.  The
 * rules are the usual ones (docs/formats.md, "presets"), so that our files compare with others'.
 *
 * A name that is only a number format ("Q4_K") gives that format to every matrix but the output
 * matrix; pn_mix_open_type() gives it to every one.  Whoever writes a file opens a mix, sets the
 * facts of the model, shows it every tensor once with pn_mix_note(), and then asks for each type:
 * some rules count tensors of a class, others want to know whether there is an output matrix apart
 * from the embedding.
 *
 * No memory, no state beyond the struct; the tables are constant.
 */
#ifndef PN_PRESETS_H
#define PN_PRESETS_H

#include "base/pn_base.h"

enum { PN_MIX_MAX_LAYERS = 1024 };

struct pn_preset;

typedef struct pn_mix {
    const struct pn_preset *preset;     /* NULL: pure */
    uint32_t base;                      /* pn_dtype of whatever no rule names */
    uint32_t file_type;                 /* general.file_type */
    /* Facts of the model, set by the caller; 0: unknown, the rules that ask for them do not apply. */
    uint32_t n_layers, n_heads, n_heads_kv, n_expert;
    bool keep_output;                   /* leave the output matrix as it is */
    /* below: private */
    bool all_matrices;                  /* the output matrix too */
    bool has_output;                    /* there is an output.weight */
    uint32_t n_values;                  /* tensors of the attn_v class */
    uint64_t value_layers[PN_MIX_MAX_LAYERS / 64];      /* layers that have one, a bit each */
} pn_mix;

/* By the name of a preset or number format, any case.  PN_E_INVALID: unknown; the text lists them. */
PN_INTERNAL pn_status pn_mix_open(pn_mix *m, const char *name, pn_err *err);

/* One format for every matrix, the output included. */
PN_INTERNAL pn_status pn_mix_open_type(pn_mix *m, uint32_t dtype, pn_err *err);

/* The preset's own spelling: "Q4_K_M". */
PN_INTERNAL const char *pn_mix_name(const pn_mix *m);

PN_INTERNAL void pn_mix_note(pn_mix *m, const char *name);

/* Small and costly to round: vectors, norms, routers and the like stay in the type they came in. */
PN_INTERNAL bool pn_mix_keeps(const char *name, uint32_t n_dims, const uint64_t *ne);

/* The type tensor `name` is written in: `now` when it stays as it is (vectors, routers, types that
 * hold no weights), else one that its rows (ne[0] elements) fit. */
PN_INTERNAL uint32_t pn_mix_type(const pn_mix *m, const char *name, uint32_t now, uint32_t n_dims,
                                 const uint64_t *ne);

#endif /* PN_PRESETS_H */
