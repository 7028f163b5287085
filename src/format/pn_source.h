/*
 * pn_source.h - where the bytes of a model file come from: a mapping, memory, or a callback.
 *
 * Every container of this folder is read from one of these, so that the same checks serve files,
 * buffers and the caller's own storage.
 */
#ifndef PN_SOURCE_H
#define PN_SOURCE_H

#include "base/pn_base.h"

/* One of `bytes` and `read` is set. */
typedef struct pn_source {
    const uint8_t *bytes;       /* whole file in memory, or NULL */
    pn_status (*read)(void *user, uint64_t offset, void *dst, size_t n);
    void *user;
    uint64_t size;
    const char *name;           /* for messages, borrowed while the source is used; never NULL */
} pn_source;

/* n bytes at offset to dst.  Asking beyond the end is PN_E_FORMAT, a callback that fails PN_E_IO; both name the
 * offset and the numbers. */
PN_INTERNAL pn_status pn_source_read(const pn_source *src, uint64_t offset, void *dst, size_t n, pn_err *err);

/* Put the file's name (the end of a long one) in front of a message; returns `status`. */
PN_INTERNAL pn_status pn_source_fail(const pn_source *src, pn_status status, pn_err *err);

/* Outside bytes made fit for a message: at most 60 characters, printable ASCII. */
typedef struct pn_shown {
    char s[72];
} pn_shown;
PN_INTERNAL pn_shown pn_show(const char *bytes, uint64_t len);

#endif /* PN_SOURCE_H */
