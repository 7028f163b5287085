/*
 * pn_packed.h - rows of a quantised checkpoint: codes here, scales there, values on the way out.
 *
 * A matrix of such a folder is two or three tensors: codes (E4M3, E5M2, or four bits), scales of blocks, perhaps zero
 * points.  No kernel knows these forms, so the matrix is described twice (pn_weights.h): `file` is what its codes mean, in
 * f32, though no such bytes are anywhere; `t` is the type it gets in memory.  Whoever reads bytes of it through
 * pn_weights_read() gets that f32, decoded from the codes that it takes, and needs no room beside what it asked for.
 *
 *     value = code x scale of its block            one product in f32; four bits: (code - zero point) x scale
 *
 * Rows of codes are whole bytes, or words of eight codes with the first in the lowest bits.  A zero point lies where the
 * codes of its rows would, eight rows a word.  Codes and zero points of four bits are both stored plus 8.
 *
 * Codes that are no number (0x7f of E4M3; E5M2 has infinity, too) are refused when they are met, scales that are none when
 * the folder is opened.
 *
 * Which type.  pn_packed_survey() looks at all scales, once, and says what the matrix becomes when nobody wishes anything:
 *
 *     Q4_0   four bits without zero points, blocks of whole 32s, scales that f16 has: the same codes and scales,
 *            moved (`repacks`).  Nothing is decoded or rounded
 *     Q4_1   the same with zero points: moved, too, but -zero x scale is rounded to f16, which is off by 15/2048 of a
 *            scale at the most; f16 would lose as much of the largest values, in three times the memory
 *     BF16   every scale has at most four bits of its own (powers of two above all): all products are exact there
 *     F16    the largest value there can be is between 2^-12 and 65504: rounded to 11 bits, off by 2^-11 of itself or, deep
 *            below the largest, by 2^-13 of that at the most.  Codes of eight bits have four
 *     F32    else; and a matrix of one row, which has that type in files, too
 */
#ifndef PN_PACKED_H
#define PN_PACKED_H

#include "format/pn_weights.h"

typedef enum pn_packed_code { PN_PACKED_E4M3, PN_PACKED_E5M2, PN_PACKED_INT4 } pn_packed_code;

/* Where a matrix has its parts. */
typedef struct pn_packed_place {
    uint64_t code, scale, zero;         /* offsets */
    uint32_t code_part, scale_part, zero_part;
} pn_packed_place;

typedef struct pn_packed {
    uint8_t code;               /* pn_packed_code */
    uint8_t scale;              /* pn_st_dtype: F32, BF16, F16, F8_E8M0, or U8 that means the last */
    bool zeros;                 /* there are zero points */
    bool repacks;               /* to Q4_0, with zero points to Q4_1 */
    uint64_t rows, cols;        /* of one matrix */
    uint64_t block_rows, block_cols;    /* of one scale; at most rows, cols */
    uint64_t place0;            /* in a list of places, while that moves */
    const pn_packed_place *places;      /* borrowed: one for each matrix of a stack */
} pn_packed;

/* What inspect calls it: "F8_E4M3", "F8_E5M2", "I4"; static. */
PN_INTERNAL const char *pn_packed_name(const pn_packed *p);

/* Bytes of one matrix in the files, with scales and zero points. */
PN_INTERNAL uint64_t pn_packed_bytes(const pn_packed *p);

/* Look at the scales of n matrices, sets p->repacks, and says which type suits them.  `name` is for the message. */
PN_INTERNAL pn_status pn_packed_survey(const pn_weights *w, pn_packed *p, const pn_packed_place *places, uint64_t n, const char *name,
                                       uint32_t *dtype, pn_err *err);

/* Bytes [at, at + n) of the f32 values of all matrices in turn.  Inside of d->file->bytes. */
PN_INTERNAL pn_status pn_packed_read(const pn_weights *w, const pn_dir_tensor *d, uint64_t at, void *dst, size_t n, pn_err *err);

/* Rows [row, row + n) of all matrices in turn, as Q4_0 or Q4_1; for one that `repacks`. */
PN_INTERNAL pn_status pn_packed_move(const pn_weights *w, const pn_dir_tensor *d, uint64_t row, uint64_t n, uint8_t *dst, pn_err *err);

#endif /* PN_PACKED_H */
