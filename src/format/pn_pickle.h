/*
 * pn_pickle.h - what a pickle of tensors says, without running anything.
 *
 * A pickle is a program for a stack machine whose instructions may import and call any function.
 * This machine knows the instructions that torch writes for a dictionary of tensors and the 35
 * names they need; a name that is not among them is refused where it stands, used or not.  A call
 * leaves a note of itself (PN_PICKLE_CALL) and nothing else happens.
 *
 * Values form a graph in one array: they may be shared, and a container may hold itself.  So a
 * reader looks at what it wants by number and never walks everything below a value.
 *
 * Memory is bounded by the bytes of the pickle and by fixed limits (pn_pickle.c): an instruction
 * makes at most one value, and each item of a container was pushed by one.
 */
#ifndef PN_PICKLE_H
#define PN_PICKLE_H

#include "base/pn_mem.h"

typedef enum pn_pickle_kind {
    PN_PICKLE_NONE, PN_PICKLE_BOOL, PN_PICKLE_INT, PN_PICKLE_FLOAT, PN_PICKLE_STR, PN_PICKLE_TUPLE,
    PN_PICKLE_LIST,             /* also a set */
    PN_PICKLE_DICT,             /* also an OrderedDict */
    PN_PICKLE_GLOBAL,           /* a name of the list */
    PN_PICKLE_CALL,             /* one of the functions that rebuild a tensor, with its arguments */
    PN_PICKLE_PERSID            /* something outside the pickle: a storage */
} pn_pickle_kind;

typedef struct pn_pickle_value {
    uint8_t kind;
    uint8_t global;             /* GLOBAL, CALL: for pn_pickle_global_get */
    uint32_t n;                 /* STR: bytes; TUPLE, LIST, DICT: items */
    union {
        int64_t i;              /* BOOL, INT */
        double f;
        struct {
            uint32_t first;     /* STR: offset in the pickle; containers: first cell; CALL: its tuple of arguments;
                                   PERSID: its id */
            uint32_t last;      /* containers: last cell */
        } at;
    } u;
} pn_pickle_value;

#define PN_PICKLE_NIL UINT32_MAX

typedef struct pn_pickle_cell {
    uint32_t key, value;        /* values; key PN_PICKLE_NIL but in a dictionary */
    uint32_t next;              /* cell, or PN_PICKLE_NIL */
} pn_pickle_cell;

typedef enum pn_pickle_role {
    PN_PICKLE_ORDERED_DICT, PN_PICKLE_REBUILD_TENSOR, PN_PICKLE_REBUILD_TENSOR_V2, PN_PICKLE_REBUILD_TENSOR_V3,
    PN_PICKLE_REBUILD_PARAMETER, PN_PICKLE_SIZE, PN_PICKLE_STORAGE, PN_PICKLE_UNTYPED_STORAGE, PN_PICKLE_DTYPE
} pn_pickle_role;

typedef struct pn_pickle_global {
    const char *module, *name;
    uint8_t role;               /* pn_pickle_role */
    uint8_t dtype;              /* pn_st_dtype of storages and dtypes */
} pn_pickle_global;

typedef struct pn_pickle {
    pn_mem *mem;
    const uint8_t *bytes;       /* [size], borrowed as long as strings are looked at */
    size_t size;
    size_t used;                /* bytes up to and with STOP */
    uint32_t root;              /* the value left at STOP */
    pn_pickle_value *values;    /* owned */
    size_t n_values, cap_values;
    pn_pickle_cell *cells;      /* owned */
    size_t n_cells, cap_cells;
    bool cut;                   /* it failed because the bytes ended */
} pn_pickle;

/* Interpret one pickle at the start of bytes[0..size), which may be followed by others.  On failure there are no values
 * (fini is harmless) and the text has the offset and what is wrong there.  `base` is added to offsets in messages. */
PN_INTERNAL pn_status pn_pickle_read(pn_pickle *p, pn_mem *mem, const uint8_t *bytes, size_t size, uint64_t base, pn_err *err);
PN_INTERNAL void pn_pickle_fini(pn_pickle *p);

PN_INTERNAL const pn_pickle_global *pn_pickle_global_get(uint32_t global);

/* The value when it is of that kind, else NULL.  v may be PN_PICKLE_NIL. */
PN_INTERNAL const pn_pickle_value *pn_pickle_as(const pn_pickle *p, uint32_t v, pn_pickle_kind kind);

/* Item i of a tuple or list, by walking: for the few arguments of a call.  PN_PICKLE_NIL: there is none. */
PN_INTERNAL uint32_t pn_pickle_item(const pn_pickle *p, uint32_t v, uint32_t i);

/* The bytes of a string; false: it is none. */
PN_INTERNAL bool pn_pickle_str(const pn_pickle *p, uint32_t v, pn_bytes *out);

/* "a tuple", for messages; static. */
PN_INTERNAL const char *pn_pickle_kind_name(const pn_pickle *p, uint32_t v);

#endif /* PN_PICKLE_H */
