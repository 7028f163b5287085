/*
 * pn_pth.h - the tensors of a .pth, .pt or .bin file, without running what is in it.
 *
 * torch writes a zip archive: ROOT/data.pkl says in pickle which tensors there are, ROOT/data/KEY
 * holds the bytes of each storage.  Before 1.6 it was five pickles and the storages one after the
 * other; both forms are read.  A tensor is a view of a storage: it begins at an element and has a
 * stride for each dimension, so it may be transposed, a slice, repeated (stride 0), or the same as
 * another.
 *
 * What was opened holds: names of 1 to 512 bytes, UTF-8, without NULs, each once; storages that lie in
 * the file with just the bytes that were declared; tensors of at most 8 dimensions that stay inside
 * their storage, and none larger than the file (stride 0 could make them so).
 */
#ifndef PN_PTH_H
#define PN_PTH_H

#include "format/pn_safetensors.h"
#include "format/pn_source.h"

typedef struct pn_pth_storage {
    char key[24];               /* decimal digits */
    uint64_t offset, bytes;     /* in the file */
    uint64_t count;             /* elements as declared */
    uint32_t dtype;             /* pn_st_dtype of its class; U8 for untyped ones */
} pn_pth_storage;

typedef struct pn_pth_tensor {
    const char *name;           /* NUL-terminated, owned by the table */
    uint32_t dtype;             /* pn_st_dtype, whole bytes */
    uint32_t rank;
    uint64_t shape[PN_ST_MAX_RANK], stride[PN_ST_MAX_RANK];     /* slowest first; strides in elements */
    uint64_t first;             /* element of the storage where it begins */
    uint64_t n_elems, bytes;    /* packed */
    uint32_t storage;           /* index into storages */
    bool contiguous;            /* row-major without gaps: `bytes` bytes at pn_pth_offset() */
} pn_pth_tensor;

typedef struct pn_pth {
    pn_mem *mem;
    pn_source src;              /* copied; what it points at is borrowed until pn_pth_close */
    pn_pth_tensor *tensors;     /* owned, [n_tensors], in the file's order */
    size_t n_tensors;
    pn_pth_storage *storages;   /* owned, [n_storages] */
    size_t n_storages, cap_storages;
    size_t n_others;            /* entries beside the tensors that were left out */
    bool big_endian;            /* pn_pth_stream swaps; in place nothing can be used */
    /* below: private */
    size_t cap_tensors;
    char *text;
    size_t text_bytes;
} pn_pth;

/* On failure *p is empty (close is harmless); the text names the file, and tensor, storage, member or offset in the
 * pickle with the numbers that disagree.  The struct may be moved. */
PN_INTERNAL pn_status pn_pth_open(pn_pth *p, pn_mem *mem, const pn_source *src, pn_err *err);
PN_INTERNAL void pn_pth_close(pn_pth *p);

/* Where a contiguous tensor lies in the file. */
PN_INTERNAL uint64_t pn_pth_offset(const pn_pth *p, const pn_pth_tensor *t);

/* Called with the next n bytes of a tensor, whole elements, row-major, little-endian.  Not PN_OK: stop with that. */
typedef pn_status (*pn_pth_sink)(void *user, const void *bytes, size_t n, pn_err *err);

/* All elements of t, in pieces.  Contiguous ones are read straight, at most 1 MiB at a time; others are gathered, by
 * tiles of at most 16 MiB. */
PN_INTERNAL pn_status pn_pth_stream(const pn_pth *p, const pn_pth_tensor *t, pn_pth_sink sink, void *user, pn_err *err);

/* Two tensors that are the same view of the same storage. */
PN_INTERNAL bool pn_pth_same_view(const pn_pth_tensor *a, const pn_pth_tensor *b);

#endif /* PN_PTH_H */
