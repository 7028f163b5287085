/*
 * pn_retype.h - matrices on their way into another number format: which become what, and how their rows do.
 *
 * Two walk this way, writing a file (pn_quantize.c) and loading a model with load_type.  Both ask here, so that a loaded
 * matrix has the bytes that the file would have.
 *
 * Loading: pn_retype_open() gives the directory of tensors its types in memory, from which description, plan and
 * identity follow; when the matrices are read, a pn_retyper makes their rows.  It holds one block of rows as the file has
 * them and one decoded row a thread, pn_retype_stage() bytes in all, whatever the model's size; the result is encoded
 * where it is to stay.  Source rows are read by position, never through a mapping, so they are nobody's memory.
 *
 * The matrices of a quantised folder walk it without anybody's wish, into the types that pn_packed.h chooses or into those of a
 * load_type.  Each thread decodes rows of its own there, so no block is held; those that move to Q4_0 or Q4_1 are never decoded.
 *
 * Rows are independent: a block is shared among threads, and bytes do not depend on how many there are.
 */
#ifndef PN_RETYPE_H
#define PN_RETYPE_H

#include "device/pn_team.h"
#include "engine/pn_engine_int.h"
#include "engine/pn_presets.h"

#include <stdatomic.h>

/* Key "<arch>.<key>", or NULL; and as a number: of arrays (one value a layer) the first, absent 0. */
PN_INTERNAL const pn_gguf_kv *pn_retype_kv(const pn_weights *w, const char *key);
PN_INTERNAL uint32_t pn_retype_fact(const pn_weights *w, const char *key);

/* What each tensor becomes: *types [n_tensors], in PN_ACCT_MISC, is the caller's.  Sets the mix's facts of the model. */
PN_INTERNAL pn_status pn_retype_choose(pn_mix *m, const pn_weights *w, uint32_t **types, pn_err *err);

/* A block of rows: `src`, or rows of a quantised matrix, which threads read for themselves. */
typedef struct pn_retype_block {
    uint32_t from, to;          /* dtypes */
    uint64_t n_cols, n_rows;
    uint64_t from_bytes, to_bytes;      /* of a row */
    uint32_t n_threads;
    const uint8_t *src;
    uint8_t *dst;
    float *rows;                /* [n_threads, n_cols] decoded */
    const pn_dir_tensor *packed;    /* NULL: rows are in src */
    const pn_weights *file;     /* of `packed` */
    uint64_t row0;              /* of `packed`: the first row */
    atomic_bool failed;         /* some thread did; the first writes: */
    pn_status status;
    pn_err err;
} pn_retype_block;

/* Decode and encode it, with all of the team.  Only a quantised matrix can fail. */
PN_INTERNAL pn_status pn_retype_run(pn_team *t, pn_retype_block *b, pn_err *err);

/* The matrices of 16 and 32 bits, and quantised ones of a folder, get the types of this mixture or type; w->n_retyped says how
 * many did.  `how`: where weights were wished, AUTO or ANON.  PN_E_INVALID: no such type, or wished elsewhere. */
PN_INTERNAL pn_status pn_retype_open(pn_weights *w, const char *type, pn_residency how, pn_mix *m, pn_err *err);

/* Some matrices are quantised in a way that no kernel knows: they are made in memory of their own, so wished elsewhere
 * they are PN_E_INVALID. */
PN_INTERNAL pn_status pn_retype_place(const pn_weights *w, pn_residency how, pn_err *err);

/* Most bytes of PN_ACCT_STAGE while retyped matrices are loaded with so many threads; 0: there are none. */
PN_INTERNAL uint64_t pn_retype_stage(const pn_weights *w, uint32_t n_threads);

typedef struct pn_retyper {
    pn_mem *mem;
    const pn_weights *file;     /* borrowed */
    pn_team *team;              /* owned */
    uint8_t *stage;             /* owned, [stage_bytes]: decoded rows, then a block */
    size_t stage_bytes;
    uint64_t row_floats;        /* of all threads' decoded rows */
} pn_retyper;

PN_INTERNAL pn_status pn_retyper_open(pn_retyper *r, pn_mem *mem, const pn_weights *file, uint32_t n_threads, pn_err *err);
PN_INTERNAL void pn_retyper_close(pn_retyper *r);
/* A pn_make_rows_fn; user is the pn_retyper. */
PN_INTERNAL pn_status pn_retyper_rows(void *user, const pn_dir_tensor *t, uint64_t row, uint64_t n, uint8_t *dst, pn_err *err);

#endif /* PN_RETYPE_H */
