/*
 * pn_zip.h - the members of a zip archive that does not compress, which is what torch writes.
 *
 * Members are found by the central directory at the end alone: the headers in front of the data have
 * sizes of zero in torch's files.  What was read holds: names of 1 to 512 bytes, without NULs, each
 * once; members stored as they are, not encrypted, inside the file, before the directory, disjoint.
 * Deflated members are refused: torch never writes them, and whoever expands can be made to expand
 * without end.
 */
#ifndef PN_ZIP_H
#define PN_ZIP_H

#include "base/pn_hash.h"
#include "base/pn_mem.h"
#include "format/pn_source.h"

typedef struct pn_zip_member {
    const char *name;           /* NUL-terminated, owned by the table */
    uint64_t header;            /* offset of its local header */
    uint64_t offset, bytes;     /* its data, from the start of the file */
} pn_zip_member;

typedef struct pn_zip {
    pn_mem *mem;
    pn_zip_member *members;     /* owned, [n_members], by place */
    size_t n_members;
    /* below: private */
    size_t cap_members;
    pn_map index;
    char *text;                 /* owned, [text_bytes]: names */
    size_t text_bytes;
} pn_zip;

/* On failure *z is empty (fini is harmless); the text names the member, or the record, and the numbers that disagree,
 * but not the file.  Nothing is borrowed from src. */
PN_INTERNAL pn_status pn_zip_read(pn_zip *z, pn_mem *mem, const pn_source *src, pn_err *err);
PN_INTERNAL void pn_zip_fini(pn_zip *z);
PN_INTERNAL const pn_zip_member *pn_zip_find(const pn_zip *z, const char *name);

#endif /* PN_ZIP_H */
