/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_zip.c - reading the directory of a zip archive that may have been written by an enemy.
 *
 *     { local header 30, name, extra, data, descriptor }...     PK 3 4
 *     { central entry 46, name, extra, comment }...             PK 1 2    the directory
 *     zip64 end record 56, its locator 20                       PK 6 6, PK 6 7; when a number is too large
 *     end record 22, comment                                    PK 5 6
 *
 * A number of all ones in the end record or in a central entry stands in the zip64 record or in the
 * entry's extra field 1; that field holds the missing ones only, in the order size, compressed size,
 * offset of the header.
 *
 * Why the local headers are read too, one small read each: where the data begin depends on the
 * length of their extra field, which pads to 64 bytes and is not in the directory.
 *
 * Source: PKWARE APPNOTE 6.3.10, sections 4.3 and 4.5.3.
 */
#include "format/pn_zip.h"

#include "base/pn_err.h"

#include <inttypes.h>

#define ZIP_END_BYTES 22u
#define ZIP_END64_BYTES 56u
#define ZIP_LOCATOR_BYTES 20u
#define ZIP_ENTRY_BYTES 46u
#define ZIP_LOCAL_BYTES 30u
#define ZIP_NAME_MAX 512u
#define ZIP_COMMENT_MAX 65535u
#define ZIP_DIRECTORY_MAX ((uint64_t)64 << 20)  /* bytes; about 600,000 members */

typedef struct zip_reader {
    pn_zip *z;
    const pn_source *src;
    uint64_t at, bytes, count;  /* the directory */
    uint64_t end;               /* where what follows the directory begins */
    uint8_t *dir;               /* [bytes], the directory in memory */
    char *free_text;            /* in z->text */
    pn_err *err;
} zip_reader;

/* ------------------------------------------------------------------------------------------
 * The end: where is the directory?
 * ------------------------------------------------------------------------------------------ */

/* The last end record whose comment reaches to the end of the file. */
static pn_status zip_find_end(zip_reader *r, uint8_t end[ZIP_END_BYTES])
{
    uint64_t size = r->src->size, tail = PN_MIN(size, (uint64_t)ZIP_END_BYTES + ZIP_COMMENT_MAX);
    if (size < ZIP_END_BYTES)
        return pn_fail(r->err, PN_E_FORMAT, "not a zip archive: %" PRIu64 " bytes are less than an end record", size);
    uint8_t *buf = pn_mem_alloc(r->z->mem, PN_ACCT_MISC, (size_t)tail);
    if (!buf)
        return pn_fail_nomem(r->err, "the end of the archive", tail);
    pn_status st = pn_source_read(r->src, size - tail, buf, (size_t)tail, r->err);
    bool found = false;
    for (uint64_t i = tail - ZIP_END_BYTES + 1; i-- > 0 && !st && !found;) {
        found = memcmp(buf + i, "PK\5\6", 4) == 0 && pn_le16(buf + i + 20) == tail - i - ZIP_END_BYTES;
        if (found) {
            memcpy(end, buf + i, ZIP_END_BYTES);
            r->end = size - tail + i;
        }
    }
    pn_mem_free(r->z->mem, PN_ACCT_MISC, buf, (size_t)tail);
    if (!st && !found)
        st = pn_fail(r->err, PN_E_FORMAT, "truncated, or not a zip archive: no end record in the last %" PRIu64 " bytes", tail);
    return st;
}

/* The end record has saturated numbers: take those from the zip64 record. */
static pn_status zip_end64(zip_reader *r, bool count, bool bytes, bool at)
{
    uint8_t locator[ZIP_LOCATOR_BYTES], record[ZIP_END64_BYTES];
    uint64_t end = r->end;
    if (end < ZIP_LOCATOR_BYTES + ZIP_END64_BYTES)
        return pn_fail(r->err, PN_E_FORMAT, "the end record at offset %" PRIu64 " asks for a zip64 record, but there is no room for one",
                       end);
    pn_status st = pn_source_read(r->src, end - ZIP_LOCATOR_BYTES, locator, sizeof locator, r->err);
    if (st)
        return st;
    if (memcmp(locator, "PK\6\7", 4) != 0)
        return pn_fail(r->err, PN_E_FORMAT, "the end record at offset %" PRIu64 " asks for a zip64 record, but no locator is at offset %"
                       PRIu64, end, end - ZIP_LOCATOR_BYTES);
    uint64_t where = pn_le64(locator + 8), limit = end - ZIP_LOCATOR_BYTES - ZIP_END64_BYTES;
    if (where > limit)
        return pn_fail(r->err, PN_E_FORMAT, "the zip64 record would be at offset %" PRIu64 ", expected at most %" PRIu64, where, limit);
    st = pn_source_read(r->src, where, record, sizeof record, r->err);
    if (st)
        return st;
    if (memcmp(record, "PK\6\6", 4) != 0)
        return pn_fail(r->err, PN_E_FORMAT, "no zip64 record at offset %" PRIu64 ", where the locator says", where);
    if (pn_le32(record + 16) != 0 || pn_le32(record + 20) != 0)
        return pn_fail(r->err, PN_E_UNSUPPORTED, "an archive in several volumes is not read");
    if (count)
        r->count = pn_le64(record + 32);
    if (bytes)
        r->bytes = pn_le64(record + 40);
    if (at)
        r->at = pn_le64(record + 48);
    r->end = where;
    return PN_OK;
}

static pn_status zip_end(zip_reader *r)
{
    uint8_t end[ZIP_END_BYTES] = {0};
    pn_status st = zip_find_end(r, end);
    if (st)
        return st;
    r->count = pn_le16(end + 10);
    r->bytes = pn_le32(end + 12);
    r->at = pn_le32(end + 16);
    bool count = r->count == 0xFFFF, bytes = r->bytes == 0xFFFFFFFF, at = r->at == 0xFFFFFFFF;
    if (count || bytes || at)
        st = zip_end64(r, count, bytes, at);
    else if (pn_le16(end + 4) != 0 || pn_le16(end + 6) != 0 || pn_le16(end + 8) != r->count)
        st = pn_fail(r->err, PN_E_UNSUPPORTED, "an archive in several volumes is not read");
    if (st)
        return st;
    if (r->at > r->end || r->bytes > r->end - r->at)
        return pn_fail(r->err, PN_E_FORMAT, "the central directory (%" PRIu64 " bytes at offset %" PRIu64
                       ") is outside the file: expected it to end by offset %" PRIu64, r->bytes, r->at, r->end);
    if (r->bytes > ZIP_DIRECTORY_MAX)
        return pn_fail(r->err, PN_E_FORMAT, "the central directory has %" PRIu64 " bytes, at most %" PRIu64 " are accepted", r->bytes,
                       ZIP_DIRECTORY_MAX);
    if (r->count > r->bytes / ZIP_ENTRY_BYTES)
        return pn_fail(r->err, PN_E_FORMAT, "the archive claims %" PRIu64 " members of at least %u bytes, its directory has %" PRIu64
                       " bytes", r->count, ZIP_ENTRY_BYTES, r->bytes);
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * The directory
 * ------------------------------------------------------------------------------------------ */

/* The saturated ones of size, compressed size and header offset, from extra field 1. */
static bool zip_extra64(const uint8_t *extra, size_t n, uint64_t *bytes, uint64_t *packed, uint64_t *header)
{
    uint64_t *wanted[3];
    size_t n_wanted = 0;
    if (*bytes == 0xFFFFFFFF)
        wanted[n_wanted++] = bytes;
    if (*packed == 0xFFFFFFFF)
        wanted[n_wanted++] = packed;
    if (*header == 0xFFFFFFFF)
        wanted[n_wanted++] = header;
    if (n_wanted == 0)
        return true;
    while (n >= 4) {
        size_t len = pn_le16(extra + 2);
        if (len > n - 4)
            return false;
        if (pn_le16(extra) == 1) {
            for (size_t i = 0; i < n_wanted; i++) {
                if (len < 8 * (i + 1))
                    return false;
                *wanted[i] = pn_le64(extra + 4 + 8 * i);
            }
            return true;
        }
        extra += 4 + len;
        n -= 4 + len;
    }
    return false;
}

/* What the fixed part of an entry must be; `m` has its name and sizes. */
static pn_status zip_check(const zip_reader *r, const pn_zip_member *m, uint32_t flags, uint32_t method, uint64_t packed)
{
    if (flags & 0x2041)                 /* bits 0, 6, 13: encrypted, strongly, with hidden headers */
        return pn_fail(r->err, PN_E_UNSUPPORTED, "member '%s' is encrypted (flags %04" PRIx32 ")", m->name, flags);
    if (method != 0)
        return pn_fail(r->err, PN_E_UNSUPPORTED, "member '%s' is compressed (method %" PRIu32 "%s): expected it stored; unpack the "
                       "archive and save it again with torch", m->name, method, method == 8 ? ", deflate" : "");
    if (packed != m->bytes)
        return pn_fail(r->err, PN_E_FORMAT, "member '%s' is stored, but has %" PRIu64 " bytes packed and %" PRIu64 " unpacked", m->name,
                       packed, m->bytes);
    return PN_OK;
}

static pn_status zip_entry(zip_reader *r, const uint8_t *e, size_t left, pn_zip_member *m, size_t *used)
{
    uint64_t index = r->z->n_members;
    if (left < ZIP_ENTRY_BYTES || memcmp(e, "PK\1\2", 4) != 0)
        return pn_fail(r->err, PN_E_FORMAT, "member %" PRIu64 ": no entry at offset %" PRIu64 " of the file, where the directory should go on",
                       index, r->at + r->bytes - left);
    size_t n_name = pn_le16(e + 28), n_extra = pn_le16(e + 30), n_comment = pn_le16(e + 32);
    *used = ZIP_ENTRY_BYTES + n_name + n_extra + n_comment;
    if (*used > left)
        return pn_fail(r->err, PN_E_FORMAT, "member %" PRIu64 ": its entry has %zu bytes, the directory %zu left", index, *used, left);
    const uint8_t *name = e + ZIP_ENTRY_BYTES;
    if (n_name == 0 || n_name > ZIP_NAME_MAX || memchr(name, 0, n_name))
        return pn_fail(r->err, PN_E_FORMAT, "member %" PRIu64 ": expected a name of 1 to %u bytes without NULs, found %zu bytes", index,
                       ZIP_NAME_MAX, n_name);
    memcpy(r->free_text, name, n_name);
    r->free_text[n_name] = 0;
    m->name = r->free_text;
    r->free_text += n_name + 1;
    uint64_t packed = pn_le32(e + 20);
    m->bytes = pn_le32(e + 24);
    m->header = pn_le32(e + 42);
    if (!zip_extra64(name + n_name, n_extra, &m->bytes, &packed, &m->header))
        return pn_fail(r->err, PN_E_FORMAT, "member '%s' asks for a zip64 field, but its entry has none that fits", m->name);
    if (pn_le16(e + 34) != 0)
        return pn_fail(r->err, PN_E_UNSUPPORTED, "member '%s' is in another volume", m->name);
    return zip_check(r, m, pn_le16(e + 8), pn_le16(e + 10), packed);
}

/* The local header: where do the data begin, and is it the same member? */
static pn_status zip_local(const zip_reader *r, pn_zip_member *m)
{
    uint8_t local[ZIP_LOCAL_BYTES + ZIP_NAME_MAX];
    size_t n_name = strlen(m->name), n = ZIP_LOCAL_BYTES + n_name;
    if (m->header > r->at || n > r->at - m->header)
        return pn_fail(r->err, PN_E_FORMAT, "member '%s': its header of %zu bytes at offset %" PRIu64
                       " is not before the directory at offset %" PRIu64, m->name, n, m->header, r->at);
    pn_status st = pn_source_read(r->src, m->header, local, n, r->err);
    if (st)
        return st;
    if (memcmp(local, "PK\3\4", 4) != 0 || pn_le16(local + 26) != n_name || memcmp(local + ZIP_LOCAL_BYTES, m->name, n_name) != 0)
        return pn_fail(r->err, PN_E_FORMAT, "member '%s': no header of that name at offset %" PRIu64, m->name, m->header);
    st = zip_check(r, m, pn_le16(local + 6), pn_le16(local + 8), m->bytes);
    if (st)
        return st;
    m->offset = m->header + n + pn_le16(local + 28);
    if (m->offset > r->at || m->bytes > r->at - m->offset)
        return pn_fail(r->err, PN_E_FORMAT, "member '%s': %" PRIu64 " bytes at offset %" PRIu64
                       " are not before the directory at offset %" PRIu64, m->name, m->bytes, m->offset, r->at);
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * Order, overlap, names
 * ------------------------------------------------------------------------------------------ */

static void zip_sift(pn_zip_member *m, size_t i, size_t n)
{
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && m[child + 1].header > m[child].header)
            child++;
        if (m[child].header <= m[i].header)
            return;
        pn_zip_member swap = m[i];
        m[i] = m[child];
        m[child] = swap;
    }
}

static void zip_sort(pn_zip_member *m, size_t n)
{
    for (size_t i = n / 2; i-- > 0;)
        zip_sift(m, i, n);
    for (size_t end = n; end-- > 1;) {
        pn_zip_member swap = m[0];
        m[0] = m[end];
        m[end] = swap;
        zip_sift(m, 0, end);
    }
}

static pn_status zip_join(zip_reader *r)
{
    pn_zip *z = r->z;
    zip_sort(z->members, z->n_members);
    for (size_t i = 0; i < z->n_members; i++) {
        const pn_zip_member *m = &z->members[i];
        bool existed;
        if (i && m->header < m[-1].offset + m[-1].bytes)
            return pn_fail(r->err, PN_E_FORMAT, "members overlap: '%s' ends at offset %" PRIu64 ", '%s' begins at %" PRIu64, m[-1].name,
                           m[-1].offset + m[-1].bytes, m->name, m->header);
        if (!pn_map_put(&z->index, m->name, strlen(m->name), (uint32_t)i, &existed))
            return pn_fail_nomem(r->err, "the index of members", z->n_members * sizeof(pn_map_slot));
        if (existed)
            return pn_fail(r->err, PN_E_FORMAT, "member '%s' comes twice", m->name);
    }
    return PN_OK;
}

static pn_status zip_members(zip_reader *r)
{
    pn_zip *z = r->z;
    size_t pos = 0, used = 0;
    pn_status st = PN_OK;
    while (z->n_members < r->count && !st) {
        pn_zip_member *m = &z->members[z->n_members];
        st = zip_entry(r, r->dir + pos, (size_t)r->bytes - pos, m, &used);
        if (!st)
            st = zip_local(r, m);
        if (!st) {
            z->n_members++;
            pos += used;
        }
    }
    if (!st && pos != r->bytes)
        st = pn_fail(r->err, PN_E_FORMAT, "the directory has %zu bytes after its %" PRIu64 " members", (size_t)r->bytes - pos, r->count);
    return st ? st : zip_join(r);
}

static pn_status zip_directory(zip_reader *r)
{
    pn_zip *z = r->z;
    size_t bytes = (size_t)r->bytes;
    r->dir = pn_mem_alloc(z->mem, PN_ACCT_MISC, bytes);
    if (!r->dir)
        return pn_fail_nomem(r->err, "the central directory", bytes);
    pn_status st = pn_source_read(r->src, r->at, r->dir, bytes, r->err);
    if (!st) {
        z->cap_members = (size_t)r->count;
        z->text_bytes = bytes;          /* each name and its NUL have room where its entry stood */
        z->members = pn_mem_calloc(z->mem, PN_ACCT_MISC, r->count, sizeof *z->members);
        z->text = pn_mem_alloc(z->mem, PN_ACCT_MISC, bytes);
        r->free_text = z->text;
        st = z->members && z->text ? zip_members(r)
                                   : pn_fail_nomem(r->err, "the table of members", bytes + r->count * sizeof *z->members);
    }
    pn_mem_free(z->mem, PN_ACCT_MISC, r->dir, bytes);
    return st;
}

PN_INTERNAL pn_status pn_zip_read(pn_zip *z, pn_mem *mem, const pn_source *src, pn_err *err)
{
    *z = (pn_zip){.mem = mem};
    pn_map_init(&z->index, mem, PN_ACCT_MISC);
    zip_reader r = {.z = z, .src = src, .err = err};
    pn_status st = zip_end(&r);
    if (!st)
        st = zip_directory(&r);
    if (st)
        pn_zip_fini(z);
    return st;
}

PN_INTERNAL void pn_zip_fini(pn_zip *z)
{
    if (!z->mem)
        return;
    pn_map_fini(&z->index);
    pn_mem_free(z->mem, PN_ACCT_MISC, z->members, z->cap_members * sizeof *z->members);
    pn_mem_free(z->mem, PN_ACCT_MISC, z->text, z->text_bytes);
    *z = (pn_zip){0};
}

PN_INTERNAL const pn_zip_member *pn_zip_find(const pn_zip *z, const char *name)
{
    const uint32_t *i = pn_map_find(&z->index, name, strlen(name));
    return i ? &z->members[*i] : NULL;
}

#undef ZIP_END_BYTES
#undef ZIP_END64_BYTES
#undef ZIP_LOCATOR_BYTES
#undef ZIP_ENTRY_BYTES
#undef ZIP_LOCAL_BYTES
#undef ZIP_NAME_MAX
#undef ZIP_COMMENT_MAX
#undef ZIP_DIRECTORY_MAX
