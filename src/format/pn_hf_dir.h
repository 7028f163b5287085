/*
 * pn_hf_dir.h - a Hugging Face folder as a model: its weight files are the parts, nothing is converted.
 *
 * Part 0 is no file.  It is a GGUF header made in memory: keys from config.json (pn_hf_config.h), and as its tensors the few
 * vectors that have to be computed - norms stored minus one, divisors of rotary frequencies - and whatever cannot be
 * used where it lies (F64, data at an address that no processor likes, a transposed view).  All other tensors lie in parts 1 and up and
 * are used there: matrices of any alignment above their elements', experts through a list of their places.
 *
 * A quantised matrix (pn_hf_quant.h) is one tensor of ours and two or three of theirs; its rows are made while it is loaded
 * (pn_packed.h).
 *
 * Which files.  config.json; model.safetensors, else model.safetensors.index.json and what it names, which must agree
 * with it, else the same of pytorch_model.bin (pn_pth.h); generation_config.json.  Nothing else is opened here, and no
 * name that is a path.  A path to a single .safetensors, .pth, .pt or pytorch_model*.bin file means that file with the
 * rest of its folder, and those that an index names with it.  Such a file without a config.json is no model, but
 * somebody who only looks (pn_weights_look) gets its tensors under their own names.
 *
 * Invariant: every tensor that the configuration asks for is there once, with the shape it says; and every tensor that is
 * there is asked for, or on a list of those that carry nothing.
 */
#ifndef PN_HF_DIR_H
#define PN_HF_DIR_H

#include "format/pn_weights.h"

struct pn_hf_tensor;

typedef struct pn_hf_dir {
    char *folder;               /* owned: path up to and with the last '/', or "" */
    const char *warning;        /* something worth a line in the log; static, or NULL */
    /* below: private */
    struct pn_hf_tensor *tensors;       /* owned, [n] in the parts from 1 on */
    pn_piece *pieces;           /* owned: places of experts, one list after the other */
    size_t n, cap, n_pieces, cap_pieces;
    struct pn_packed *packed;   /* owned: quantised matrices and stacks of them */
    struct pn_packed_place *places;     /* owned: where their parts are, one list after the other */
    size_t n_packed, cap_packed, n_places, cap_places;
    char *names;                /* owned: of a file that is only looked at */
    size_t names_bytes;
    uint8_t *image;             /* owned: part 0 */
    size_t image_bytes;
} pn_hf_dir;

/* The path names a folder, or a file that is used as part of one, and it is there. */
PN_INTERNAL bool pn_hf_dir_is(const char *path);

/* For pn_weights_open_path: *w is empty but for its memory and whether to map. */
PN_INTERNAL pn_status pn_hf_dir_open(pn_weights *w, const char *path, pn_err *err);
/* Of a file that is only looked at (w->bare): what it calls the format of tensor i. */
PN_INTERNAL const char *pn_hf_dir_type(const pn_hf_dir *d, size_t i);
PN_INTERNAL void pn_hf_dir_close(pn_hf_dir *d, pn_mem *mem);         /* NULL is a no-op */

/* Memory of part 0 and of the directory. */
PN_INTERNAL uint64_t pn_hf_dir_bytes(const pn_hf_dir *d);

/* A file of the folder as a whole, in PN_ACCT_STAGE; *out is {NULL, 0} when there is none.  More than `most` bytes are
 * refused.  A NUL follows; freed by pn_hf_file_free. */
PN_INTERNAL pn_status pn_hf_file_read(const pn_hf_dir *d, pn_mem *mem, const char *name, size_t most, pn_bytes *out, pn_err *err);
PN_INTERNAL void pn_hf_file_free(pn_mem *mem, pn_bytes *file);

#endif /* PN_HF_DIR_H */
