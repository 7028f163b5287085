/*
 * pn_weights.h - one tensor directory over every container and every part of a split model.
 *
 * Opens a model from a path, memory or a callback; follows split parts (prefix-NNNNN-of-MMMMM.gguf,
 * built from the user's own path and integers only); merges their tensor tables with unique names.
 * Metadata is that of the first part.  A path to a Hugging Face folder is opened by pn_hf_dir.h, which makes
 * a first part in memory.  Above this nobody knows what kind of file it was.
 *
 * A tensor has two descriptions: as it lies in its file, and as the model has it.  They are one and the same, unless
 * pn_weights_retype() gave it another type: then it has no address, and whoever loads it makes its rows from the file's.
 * So it is with a matrix of a quantised folder, whose description of the file is what its codes mean (pn_packed.h).
 *
 * Threads: opening and closing from one; everything that takes a const pn_weights from any.
 */
#ifndef PN_WEIGHTS_H
#define PN_WEIGHTS_H

#include "base/pn_os.h"
#include "format/pn_gguf.h"

typedef struct pn_part {
    char *path;                 /* owned, NUL-terminated; for messages */
    pn_os_file file;            /* fd -1 when not a file */
    const void *map;            /* whole part, or NULL while not mapped */
    bool map_owned;             /* unmap on close */
    pn_source src;              /* .user is &.file while the part is read by position */
} pn_part;

/* Where one matrix of a stack begins. */
typedef struct pn_piece {
    uint64_t offset;
    uint32_t part;
} pn_piece;

struct pn_packed;

typedef struct pn_dir_tensor {
    const pn_gguf_tensor *t;    /* as the model has it; borrowed from its part's table or from `retyped` */
    const pn_gguf_tensor *file; /* as it lies in the file; borrowed from its part's table */
    uint32_t part;
    bool repacked;              /* codes and scales move into blocks of `t`, without being decoded */
    const struct pn_packed *packed;     /* `file` is f32 that pn_weights_read() makes of codes and scales; NULL: it lies there */
    const pn_piece *pieces;     /* [t->ne[2]] a stack whose matrices lie scattered; NULL: all of it is at file->offset */
} pn_dir_tensor;

/* Its rows have to be made: the model has it in another type than the file, or the file in a form that nobody computes with. */
static inline bool pn_weights_retyped(const pn_dir_tensor *d) { return d->t != d->file || d->packed; }

/* Where matrix `i` of a stack begins in the file. */
static inline pn_piece pn_weights_piece(const pn_dir_tensor *d, uint64_t i)
{
    return d->pieces ? d->pieces[i] : (pn_piece){d->file->offset + i * (d->file->bytes / d->file->ne[2]), d->part};
}

typedef struct pn_weights {
    pn_mem *mem;
    pn_gguf *gguf;              /* [n_parts], owned; [0] holds the metadata */
    pn_part *parts;             /* [n_parts], owned */
    uint32_t n_parts;
    pn_dir_tensor *tensors;     /* [n_tensors], file order, parts in order */
    size_t n_tensors;
    pn_map index;               /* name -> tensor */
    uint64_t file_bytes;        /* all parts */
    struct pn_hf_dir *hf;       /* owned; NULL: not a Hugging Face folder */
    bool bare;                  /* tensors without a model: it can be looked at, not computed with */
    size_t n_retyped;           /* tensors that are */
    /* below: private */
    pn_gguf_tensor *retyped;    /* owned, [n_own] */
    size_t n_own;
    bool map;                   /* parts opened from now on are mapped */
    bool shares;                /* only `tensors` and `retyped` are its own */
    bool look;                  /* what is bare is welcome */
    size_t cap_parts, cap_gguf, cap_tensors;
} pn_weights;

/* On failure *w is empty (close is harmless): nothing stays open, mapped or allocated.
 * A path is mapped when `map` is set and the system can, else read by position: then nothing of it is
 * mapped, metadata included, and a file that shrinks later gives PN_E_IO instead of a signal.  Memory and
 * callbacks hold a whole model: the first part of a split one is refused with PN_E_UNSUPPORTED. */
PN_INTERNAL pn_status pn_weights_open_path(pn_weights *w, pn_mem *mem, const char *path, bool map, pn_err *err);
PN_INTERNAL pn_status pn_weights_open_memory(pn_weights *w, pn_mem *mem, const void *bytes, size_t n, pn_err *err);
PN_INTERNAL pn_status pn_weights_open_reader(pn_weights *w, pn_mem *mem, const pn_reader *r, pn_err *err);
PN_INTERNAL void pn_weights_close(pn_weights *w);

/* For those who look at a file: as open_path with `map`, and a .safetensors or .pth without config.json gives its tensors under
 * their own names (w->bare).  Their dtype may be PN_DTYPE_COUNT and their elements need not follow each other. */
PN_INTERNAL pn_status pn_weights_look(pn_weights *w, pn_mem *mem, const char *path, pn_err *err);

PN_INTERNAL const pn_dir_tensor *pn_weights_find(const pn_weights *w, const char *name);
PN_INTERNAL const pn_gguf_kv *pn_weights_meta(const pn_weights *w, const char *key);

/* Map every file part that is not yet mapped (no-op for memory sources; PN_E_UNSUPPORTED for a
 * callback). */
PN_INTERNAL pn_status pn_weights_map(pn_weights *w, pn_err *err);

/* The same files with a directory of its own, which may be retyped; *w has to stay. */
PN_INTERNAL pn_status pn_weights_share(pn_weights *out, const pn_weights *w, pn_err *err);

/* Once: tensor i is to have type types[i], [n_tensors], made from the values in its file.  PN_E_UNSUPPORTED: its rows do not
 * fit the type. */
PN_INTERNAL pn_status pn_weights_retype(pn_weights *w, const uint32_t *types, pn_err *err);

/* Address of a tensor's bytes when they lie together and their part is mapped or in memory, else NULL; of a retyped one
 * always NULL. */
PN_INTERNAL const void *pn_weights_ptr(const pn_weights *w, const pn_dir_tensor *t);

/* The same for one matrix of a stack, scattered or not. */
PN_INTERNAL const void *pn_weights_piece_ptr(const pn_weights *w, const pn_dir_tensor *t, uint64_t i);

/* What the page cache holds of the mapped parts, from byte *at of all of them on, goes, a few MiB at once; *at goes on.  False:
 * that was behind the last one. */
PN_INTERNAL bool pn_weights_drop_cache(const pn_weights *w, uint64_t *at);

/* Weights are files that are mapped; or they are read by position: they were not to be mapped, could not be, or come
 * from a callback. */
static inline bool pn_weights_mapped(const pn_weights *w) { return w->parts[w->n_parts - 1].map_owned; }
static inline bool pn_weights_reads(const pn_weights *w) { return w->parts[w->n_parts - 1].src.read != NULL; }

/* Copy n bytes from byte `at` of a tensor as it lies in the file, or as its codes mean.  A file is read by position even when
 * it is mapped, so one that shrank gives PN_E_IO and no signal. */
PN_INTERNAL pn_status pn_weights_read(const pn_weights *w, const pn_dir_tensor *t, uint64_t at, void *dst,
                                      size_t n, pn_err *err);

/* The same of a part; what is asked for has to be inside. */
PN_INTERNAL pn_status pn_weights_read_part(const pn_weights *w, uint32_t part, uint64_t offset, void *dst, size_t n, pn_err *err);

/* --- private: for pn_hf_dir.c, while it opens a folder ------------------------------------------
 * A part without bytes; a part that is a file, opened and mapped as wished; the GGUF header of part 0,
 * borrowed, and its tensors; one tensor of another part, whose name and table stay where they are. */
PN_INTERNAL pn_status pn_weights_add_part(pn_weights *w, const char *path, pn_err *err);
PN_INTERNAL pn_status pn_weights_add_file(pn_weights *w, const char *path, pn_part **out, pn_err *err);
PN_INTERNAL pn_status pn_weights_set_header(pn_weights *w, const void *bytes, size_t n, pn_err *err);
PN_INTERNAL pn_status pn_weights_add_tensor(pn_weights *w, const pn_dir_tensor *t, pn_err *err);

#endif /* PN_WEIGHTS_H */
