/*
 * pn_hf_dir_impl.h - a folder while it is being opened; for pn_hf_dir.c and pn_hf_bind.c alone.
 */
#ifndef PN_HF_DIR_IMPL_H
#define PN_HF_DIR_IMPL_H

#include "format/pn_hf_dir.h"
#include "format/pn_hf_names.h"
#include "format/pn_hf_quant.h"
#include "format/pn_pth.h"

/* Why a tensor is computed into part 0. */
typedef enum hfd_why { HFD_IN_PLACE, HFD_COPY, HFD_TO_F32 } hfd_why;

struct pn_hf_tensor {
    pn_gguf_tensor t;           /* as it lies in the file, or what its codes mean; ours of name */
    pn_gguf_tensor as;          /* a quantised one: as the model has it */
    size_t packed;              /* 0: it is not quantised; else which of d->packed, from 1 */
    char name[PN_HF_OURS_MAX];
    size_t piece0;              /* in pieces, when `scattered` */
    uint32_t part;
    uint8_t why;
    uint8_t st_dtype;           /* pn_st_dtype */
    bool plus_one;              /* it is stored minus one */
    bool f64;
    bool scattered;
    const pn_pth_tensor *gather;    /* its elements do not follow each other; while the folder is being opened */
    uint64_t period, from;      /* of the tensor of all experts that is gathered: bytes of one, of which ours begin at `from` */
};

/* Tensors of a file, in the words of safetensors.  Those of a .bin are views of its storages. */
typedef struct hfd_file {
    pn_safetensors st;          /* of a .bin: made by hfd_read_bin, names borrowed from `bin` */
    pn_pth bin;                 /* mem NULL: it is none */
} hfd_file;

typedef struct hfd_ref {
    const pn_st_tensor *t;
    const pn_pth_tensor *gather;    /* NULL: it lies at t->offset */
    uint32_t part;
    bool used;
    bool alias;                 /* a head that is the embedding under a second name */
} hfd_ref;

/* A folder being opened. */
typedef struct hfd {
    pn_weights *w;
    pn_mem *mem;
    pn_hf_dir *d;
    pn_err *err;
    pn_hf_config c;
    pn_gguf_writer header;
    pn_st_index index;
    bool indexed;
    hfd_file *files;            /* owned, [cap_files], those of parts 1 and up */
    size_t n_files, cap_files;
    hfd_ref *refs;              /* owned, [n_refs] */
    size_t n_refs, cap_refs;
    pn_map names;               /* pn_hf_name -> ref */
    const pn_pth_tensor **gathers;      /* owned, [cap_gathers]: of d->pieces; NULL: it lies there */
    size_t cap_gathers;
} hfd;

/* Fill d->tensors from the refs; every ref is used or carries nothing.  Names of d->tensors are set by the caller, when the
 * table has stopped moving. */
PN_INTERNAL pn_status pn_hf_bind(hfd *h);

#endif /* PN_HF_DIR_IMPL_H */
