/*
 * pn_gguf.h - the GGUF container, versions 2 and 3: reading hostile files, writing clean ones.
 *
 * A reader takes one part of a model from a byte source, checks everything that can be checked
 * without the weights (docs/formats.md lists the rules), and leaves a table of entries that borrow
 * their bytes from the source's own memory, or from one block owned by the pn_gguf when the source
 * is a callback.  Nothing is allocated on the file's word: tables grow as entries are really met,
 * and every length is compared with what is left.
 */
#ifndef PN_GGUF_H
#define PN_GGUF_H

#include "base/pn_hash.h"
#include "base/pn_mem.h"
#include "base/pn_str.h"
#include "format/pn_source.h"

typedef struct pn_gguf_kv {
    pn_bytes key;
    uint8_t type;               /* pn_meta_type numbers are GGUF's */
    uint8_t elem;               /* arrays */
    uint64_t count;             /* arrays: elements; else 1 */
    const uint8_t *data;        /* packed little-endian payload, as in the file (a string: its
                                   8-byte length, then its bytes); borrowed */
    uint64_t data_len;
    uint64_t offset;            /* of the payload in the file, for messages */
    const uint64_t *str_at;     /* arrays of strings: offset of each element in data, [count]; else NULL */
} pn_gguf_kv;

typedef struct pn_gguf_tensor {
    const char *name;           /* NUL-terminated copy, owned by the table */
    uint32_t dtype, n_dims;
    uint64_t ne[4];
    uint64_t n_elems, row_bytes, bytes;
    uint64_t offset;            /* from the start of the file (data section already added) */
} pn_gguf_tensor;

struct pn_gguf_block;

typedef struct pn_gguf {
    pn_mem *mem;
    uint32_t version;
    uint64_t alignment, data_start;
    pn_gguf_kv *kv;
    size_t n_kv, cap_kv;
    pn_gguf_tensor *tensors;
    size_t n_tensors, cap_tensors;
    /* below: private */
    pn_map kv_index, tensor_index;
    uint8_t *owned;             /* metadata bytes when the source is a callback */
    size_t owned_len;
    struct pn_gguf_block *blocks;       /* list: tensor names and string offset tables */
    char *names;                /* free end of the newest block of names */
    size_t names_left;
} pn_gguf;

/* Read the header of `src`.  On failure *g is empty (fini is harmless).  The text names the file,
 * the key or tensor, the offset, what was expected and what was found.  The struct may be moved. */
PN_INTERNAL pn_status pn_gguf_read(pn_gguf *g, pn_mem *mem, const pn_source *src, pn_err *err);
PN_INTERNAL void pn_gguf_fini(pn_gguf *g);

PN_INTERNAL const pn_gguf_kv *pn_gguf_find(const pn_gguf *g, const char *key);
PN_INTERNAL const pn_gguf_tensor *pn_gguf_find_tensor(const pn_gguf *g, const char *name);

/* Typed access to a value; `i` is the element of an array, 0 for a scalar.  False: wrong type,
 * out of range, or does not fit (integers of any width are accepted, negatives refused by u64). */
PN_INTERNAL bool pn_gguf_u64(const pn_gguf_kv *kv, uint64_t i, uint64_t *out);
PN_INTERNAL bool pn_gguf_i64(const pn_gguf_kv *kv, uint64_t i, int64_t *out);
PN_INTERNAL bool pn_gguf_f64(const pn_gguf_kv *kv, uint64_t i, double *out);     /* ints, floats, bools */
PN_INTERNAL bool pn_gguf_str(const pn_gguf_kv *kv, uint64_t i, pn_bytes *out);

/* --- writing (pn_gguf_write.c) -----------------------------------------------------------------
 * Build the header in memory, then stream tensor data in table order.  Version 3, alignment 32. */
typedef struct pn_gguf_writer {
    pn_str kv, table;           /* encoded entries */
    uint64_t n_kv, n_tensors;
    uint64_t data_bytes;        /* padded, so far */
} pn_gguf_writer;

PN_INTERNAL void pn_gguf_writer_init(pn_gguf_writer *w, pn_mem *mem);
PN_INTERNAL void pn_gguf_writer_fini(pn_gguf_writer *w);
PN_INTERNAL void pn_gguf_put_u32(pn_gguf_writer *w, const char *key, uint32_t v);
PN_INTERNAL void pn_gguf_put_f32(pn_gguf_writer *w, const char *key, float v);
PN_INTERNAL void pn_gguf_put_bool(pn_gguf_writer *w, const char *key, bool v);
PN_INTERNAL void pn_gguf_put_str(pn_gguf_writer *w, const char *key, const char *s, size_t len);
/* Arrays: elem is a pn_meta_type of fixed size, data packed little-endian. */
PN_INTERNAL void pn_gguf_put_array(pn_gguf_writer *w, const char *key, uint8_t elem, uint64_t count,
                                   const void *data, size_t bytes);
PN_INTERNAL void pn_gguf_put_str_array(pn_gguf_writer *w, const char *key, uint64_t count,
                                       const pn_bytes *items);
/* Copy an entry from another file as it is.  general.alignment is left out: what we write is
 * aligned to 32, the default. */
PN_INTERNAL void pn_gguf_put_kv(pn_gguf_writer *w, const pn_gguf_kv *kv);
/* Append a tensor to the table; its data follow in the same order, each padded to 32 by the caller
 * with pn_gguf_pad().  Offsets are assigned here; trailing dimensions of 1 are dropped. */
PN_INTERNAL void pn_gguf_put_tensor(pn_gguf_writer *w, const char *name, uint32_t dtype, uint32_t n_dims,
                                    const uint64_t *ne, uint64_t bytes);
/* The finished header (magic to padding), appended to out.  False: out of memory at any earlier point. */
PN_INTERNAL bool pn_gguf_header(const pn_gguf_writer *w, pn_str *out);
static inline uint64_t pn_gguf_pad(uint64_t bytes) { return pn_align_up(bytes, 32) - bytes; }

#endif /* PN_GGUF_H */
