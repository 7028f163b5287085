/*
 * pn_safetensors.h - the safetensors container: reading hostile files, writing clean ones; and the
 * index that joins several of them.
 *
 *     u64 n, little-endian;  n bytes of JSON;  data to the end of the file
 *     {"__metadata__": {string: string}, NAME: {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [begin, end]}, ...}
 *
 * Offsets in the file are relative to the data section, here to the file.  Data are little-endian,
 * row-major and packed; nothing promises that a tensor begins at a multiple of its element's size.
 *
 * What was read holds (docs/formats.md has the rules): names of 1 to 512 bytes, UTF-8, without NULs,
 * each once; at most 8 dimensions; element counts and sizes that do not overflow and agree with the
 * offsets; tensors that cover the data section without hole, overlap or rest.  Zero-size tensors
 * are allowed, any number at one offset.
 */
#ifndef PN_SAFETENSORS_H
#define PN_SAFETENSORS_H

#include "base/pn_hash.h"
#include "base/pn_str.h"
#include "format/pn_source.h"

enum { PN_ST_MAX_RANK = 8, PN_ST_MAX_NAME = 512 };

/* Every number format, in the order in which the reference writer lays tensors out. */
typedef enum pn_st_dtype {
    PN_ST_U64, PN_ST_I64, PN_ST_F64, PN_ST_C64, PN_ST_F32, PN_ST_U32, PN_ST_I32, PN_ST_BF16, PN_ST_F16, PN_ST_U16,
    PN_ST_I16, PN_ST_F8_E5M2FNUZ, PN_ST_F8_E4M3FNUZ, PN_ST_F8_E8M0, PN_ST_F8_E4M3, PN_ST_F8_E5M2, PN_ST_I8, PN_ST_U8,
    PN_ST_F6_E3M2, PN_ST_F6_E2M3, PN_ST_F4, PN_ST_BOOL,
    PN_ST_DTYPE_COUNT
} pn_st_dtype;

typedef struct pn_st_dtype_info {
    const char *name;           /* "BF16" */
    uint32_t bits;              /* of an element: 4, 6, or a multiple of 8 */
    uint32_t dtype;             /* the same thing as a pn_dtype; PN_DTYPE_COUNT: there is none */
} pn_st_dtype_info;

/* Never NULL; an id out of range has name NULL and no bits. */
PN_INTERNAL const pn_st_dtype_info *pn_st_dtype_get(uint32_t dtype);
PN_INTERNAL uint32_t pn_st_dtype_find(const char *name, size_t len);    /* case-sensitive; PN_ST_DTYPE_COUNT: unknown */

/* Elements and bytes of a shape; the message says which dimension overflows, or that bits are left over. */
PN_INTERNAL pn_status pn_st_size(uint32_t dtype, uint32_t rank, const uint64_t *shape, uint64_t *n_elems,
                                 uint64_t *bytes, pn_err *err);

typedef struct pn_st_tensor {
    const char *name;           /* NUL-terminated, owned by the table */
    uint32_t dtype;             /* pn_st_dtype */
    uint32_t rank;              /* 0: a scalar, one element */
    uint64_t shape[PN_ST_MAX_RANK];     /* slowest first, as in the file; 1 beyond rank */
    uint64_t n_elems, bytes;
    uint64_t offset;            /* from the start of the file */
} pn_st_tensor;

typedef struct pn_st_meta {
    pn_bytes key, value;        /* owned by the table, followed by NULs that are not counted */
} pn_st_meta;

/* --- reading one file ------------------------------------------------------------------------- */

typedef struct pn_safetensors {
    pn_mem *mem;
    uint64_t data_start;        /* of the data section, from the start of the file */
    pn_st_tensor *tensors;      /* owned, [n_tensors], by (offset, bytes, name) */
    size_t n_tensors;
    pn_st_meta *meta;           /* owned, [n_meta], in the file's order */
    size_t n_meta;
    /* below: private */
    pn_map index;
    char *text;                 /* owned, [text_bytes]: names, keys, values */
    size_t text_bytes, cap_meta;
} pn_safetensors;

/* Read the header of `src`.  On failure *s is empty (fini is harmless) and the text names the file, the tensor or
 * JSON byte, and the numbers that disagree.  Nothing is borrowed from src.  The struct may be moved. */
PN_INTERNAL pn_status pn_safetensors_read(pn_safetensors *s, pn_mem *mem, const pn_source *src, pn_err *err);
PN_INTERNAL void pn_safetensors_fini(pn_safetensors *s);

PN_INTERNAL const pn_st_tensor *pn_safetensors_find(const pn_safetensors *s, const char *name);

/* --- reading an index (pn_safetensors_index.c) ------------------------------------------------
 * model.safetensors.index.json or pytorch_model.bin.index.json: which file has which tensor. */

typedef struct pn_st_place {
    const char *tensor;         /* NUL-terminated, owned by the index */
    uint32_t file;              /* index into files */
} pn_st_place;

typedef struct pn_st_file {
    const char *name;           /* [A-Za-z0-9._-]+ without a leading dot: no path; owned by the index */
    uint32_t n_tensors;         /* mapped to it, at least 1 */
} pn_st_file;

typedef struct pn_st_index {
    pn_mem *mem;
    pn_st_place *places;        /* owned, [n_places], in the file's order */
    size_t n_places;
    pn_st_file *files;          /* owned, [n_files], in the order of their first tensors */
    size_t n_files;
    /* below: private */
    pn_map index;
    char *text;
    size_t text_bytes, cap_files;
} pn_st_index;

PN_INTERNAL pn_status pn_st_index_read(pn_st_index *x, pn_mem *mem, const pn_source *src, pn_err *err);
PN_INTERNAL void pn_st_index_fini(pn_st_index *x);
PN_INTERNAL const pn_st_place *pn_st_index_find(const pn_st_index *x, const char *tensor);

/* Does files[file], opened as `s`, hold exactly the tensors that the index says?  The text names the tensor that does
 * not agree.  All files of an index passing means that no tensor is missing and none is there twice. */
PN_INTERNAL pn_status pn_st_index_check(const pn_st_index *x, uint32_t file, const pn_safetensors *s, pn_err *err);

/* --- writing (pn_safetensors_write.c) ---------------------------------------------------------
 * The header is made from a list; the data follow in the list's new order without gaps. */

/* list[0..n): name, dtype, rank and shape are given.  Sorts it into the reference writer's order, fills in n_elems,
 * bytes and offset, and appends the whole header (length, JSON, padding to a multiple of 8) to out.  PN_E_INVALID: a
 * name twice or not allowed, a size that overflows, or a header beyond what is read. */
PN_INTERNAL pn_status pn_st_header(pn_str *out, pn_st_tensor *list, size_t n, const pn_st_meta *meta, size_t n_meta,
                                   pn_err *err);

/* --- private, shared by the files of this module ---------------------------------------------- */

#define PN_ST_HEADER_MAX ((uint64_t)100000000)      /* bytes of JSON */

/* Heapsort, no order makes it slow and libc's qsort may call malloc. */
PN_INTERNAL void pn_st_sort(pn_st_tensor *t, size_t n, bool (*after)(const pn_st_tensor *a, const pn_st_tensor *b));

/* NULL, or what is wrong with it as the name of a tensor. */
PN_INTERNAL const char *pn_st_name_fault(const char *name, size_t len);

#endif /* PN_SAFETENSORS_H */
