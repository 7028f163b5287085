/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_gguf.c - reading a GGUF header that may have been written by an enemy.
 *
 *     "GGUF"  u32 version  u64 n_tensors  u64 n_kv
 *     n_kv      x { string key, u32 type, value }          packed, nothing is aligned
 *     n_tensors x { string name, u32 n_dims, u64 ne[n_dims], u32 type, u64 offset }
 *     zeroes up to the alignment; then the data section, to which the offsets are relative
 *     string = u64 length, bytes;  array = u32 element type, u64 count, elements
 *
 * Everything goes through one cursor that knows where the file ends, so "is there enough left?" is
 * asked in one place.  The walk is over memory only: a mapping is read in place; from a callback the
 * header is first fetched into one block by a skim that understands just enough to find its end.
 * Why two walks: entries point into the block, and a block that still grows also moves.
 *
 * Invariants
 *   1. No subtraction before its comparison: pos <= have <= size always holds in the cursor.
 *   2. Memory taken is bounded by bytes really present: tables double as entries are met, and the
 *      offset table of a string array is made after its strings have been walked.
 *   3. A pn_gguf that was read holds unique keys and names without NULs, and tensors that are
 *      aligned, inside the file, disjoint, of a known type and without a zero dimension.
 *   4. The skim stops early only where the parser is certain to refuse the file.
 *
 * Sources: the GGUF format document (ggml-org/ggml, docs/gguf.md), versions 2 and 3.
 */
#include "format/pn_gguf.h"

#include "base/pn_err.h"
#include "num/pn_dtype.h"

#include <inttypes.h>
#include <stdio.h>

#define GGUF_HEADER_BYTES 24u
#define GGUF_META_MAX ((uint64_t)1 << 30)       /* bytes before the data section */
#define GGUF_KV_MAX ((uint64_t)1 << 20)         /* entries; real files have a few dozen */
#define GGUF_TENSORS_MAX ((uint64_t)1 << 20)    /* real files have up to a few thousand */
#define GGUF_KEY_MAX 65535u                     /* format document */
#define GGUF_NAME_MAX 64u                       /* format document */
#define GGUF_ARRAY_MAX ((uint64_t)1 << 30)      /* elements */
#define GGUF_ELEM_STR_MAX ((uint64_t)1 << 20)   /* bytes of one string in an array, i.e. a token */
#define GGUF_ALIGN_MAX ((uint64_t)1 << 20)
#define GGUF_KV_MIN_BYTES 14u                   /* length, one byte of key, type, one byte of value */
#define GGUF_TENSOR_MIN_BYTES 25u               /* length, one byte of name, n_dims 0, type, offset */
#define GGUF_INT63_MAX ((uint64_t)INT64_MAX)
#define GGUF_NAMES_BLOCK 16384u

/* One allocation in the list of what a pn_gguf owns beside its tables; payload follows. */
struct pn_gguf_block {
    struct pn_gguf_block *next;
    size_t size;                /* of the allocation */
};

/* Where the parser stands.  have < size when the source is a callback or the file is larger than
 * metadata may be. */
typedef struct gguf_cursor {
    const uint8_t *base;
    uint64_t pos, have, size;
    const char *who;            /* the entry being read, for messages; NULL: none yet */
    size_t who_len;
    pn_err *err;
} gguf_cursor;

/* ------------------------------------------------------------------------------------------
 * Small parts: value sizes, owned blocks
 * ------------------------------------------------------------------------------------------ */

/* Bytes of a scalar; a string's is the smallest it can be; 0: no such type, or an array. */
static uint32_t gguf_type_bytes(uint32_t type)
{
    static const uint8_t size[13] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};
    return type < PN_COUNT_OF(size) ? size[type] : 0;
}

/* `size` bytes that live as long as g; NULL: out of memory. */
static void *gguf_block_new(pn_gguf *g, uint64_t size)
{
    if (size > SIZE_MAX - sizeof(struct pn_gguf_block))
        return NULL;
    size_t total = (size_t)size + sizeof(struct pn_gguf_block);
    struct pn_gguf_block *b = pn_mem_alloc(g->mem, PN_ACCT_MISC, total);
    if (!b)
        return NULL;
    b->next = g->blocks;
    b->size = total;
    g->blocks = b;
    return b + 1;
}

/* A NUL-terminated copy among other names; len <= GGUF_NAME_MAX. */
static const char *gguf_name_copy(pn_gguf *g, const uint8_t *name, size_t len)
{
    if (g->names_left < len + 1) {
        g->names = gguf_block_new(g, GGUF_NAMES_BLOCK);
        g->names_left = g->names ? GGUF_NAMES_BLOCK : 0;
        if (!g->names)
            return NULL;
    }
    char *copy = g->names;
    memcpy(copy, name, len);
    copy[len] = 0;
    g->names += len + 1;
    g->names_left -= len + 1;
    return copy;
}

PN_INTERNAL void pn_gguf_fini(pn_gguf *g)
{
    if (!g->mem)
        return;
    while (g->blocks) {
        struct pn_gguf_block *b = g->blocks;
        g->blocks = b->next;
        pn_mem_free(g->mem, PN_ACCT_MISC, b, b->size);
    }
    pn_map_fini(&g->kv_index);
    pn_map_fini(&g->tensor_index);
    pn_mem_free(g->mem, PN_ACCT_MISC, g->kv, g->cap_kv * sizeof *g->kv);
    pn_mem_free(g->mem, PN_ACCT_MISC, g->tensors, g->cap_tensors * sizeof *g->tensors);
    pn_mem_free(g->mem, PN_ACCT_MISC, g->owned, g->owned_len);
    memset(g, 0, sizeof *g);
}

/* ------------------------------------------------------------------------------------------
 * The skim: from a callback into memory, up to the end of the tensor table
 * ------------------------------------------------------------------------------------------ */

typedef struct gguf_skim {
    const pn_source *src;
    pn_mem *mem;
    uint8_t *buf;               /* owned, [cap] */
    size_t cap;
    uint64_t have, pos, limit;  /* bytes fetched, walked, and never to be passed */
    pn_status status;           /* not PN_OK: reading or memory failed, *err is set */
    pn_err *err;
} gguf_skim;

/* Make [pos, pos + n) present.  Fetches 64 KiB at first and then doubles, so a length that lies
 * costs no more memory than the file has bytes. */
static bool gguf_skim_need(gguf_skim *s, uint64_t n)
{
    if (s->status != PN_OK || n > s->limit - s->pos)
        return false;
    while (s->have - s->pos < n) {
        uint64_t step = PN_MIN(PN_MAX(s->have, (uint64_t)65536), s->limit - s->have);
        if (!pn_mem_grow(s->mem, PN_ACCT_MISC, (void **)&s->buf, &s->cap, (size_t)(s->have + step), 1)) {
            s->status = pn_fail_nomem(s->err, "the file's metadata", s->have + step);
            return false;
        }
        if (s->src->read(s->src->user, s->have, s->buf + s->have, (size_t)step) != PN_OK) {
            s->status = pn_fail(s->err, PN_E_IO, "reading %" PRIu64 " bytes at offset %" PRIu64 " failed",
                                step, s->have);
            return false;
        }
        s->have += step;
    }
    return true;
}

static bool gguf_skim_skip(gguf_skim *s, uint64_t n)
{
    if (!gguf_skim_need(s, n))
        return false;
    s->pos += n;
    return true;
}

static bool gguf_skim_u32(gguf_skim *s, uint32_t *v)
{
    if (!gguf_skim_need(s, 4))
        return false;
    *v = pn_le32(s->buf + s->pos);
    s->pos += 4;
    return true;
}

static bool gguf_skim_u64(gguf_skim *s, uint64_t *v)
{
    if (!gguf_skim_need(s, 8))
        return false;
    *v = pn_le64(s->buf + s->pos);
    s->pos += 8;
    return true;
}

static bool gguf_skim_string(gguf_skim *s)
{
    uint64_t len;
    return gguf_skim_u64(s, &len) && gguf_skim_skip(s, len);
}

static bool gguf_skim_value(gguf_skim *s)
{
    uint32_t type;
    uint64_t count = 1, bytes;
    if (!gguf_skim_u32(s, &type))
        return false;
    if (type == PN_META_ARRAY && (!gguf_skim_u32(s, &type) || !gguf_skim_u64(s, &count)))
        return false;
    uint32_t size = gguf_type_bytes(type);
    if (size == 0)
        return false;
    if (type != PN_META_STRING)
        return pn_mul_u64(count, size, &bytes) && gguf_skim_skip(s, bytes);
    if (!pn_mul_u64(count, 8, &bytes) || !gguf_skim_need(s, bytes))     /* the parser asks first, too */
        return false;
    for (uint64_t i = 0; i < count; i++)
        if (!gguf_skim_string(s))
            return false;
    return true;
}

/* True: walked to the end of the tensor table.  False: see status; PN_OK then means that the parser
 * will find something wrong, and it has all the bytes it needs for that. */
static bool gguf_skim_walk(gguf_skim *s)
{
    uint64_t n_tensors, n_kv, offset;
    uint32_t n_dims, type;
    if (!gguf_skim_skip(s, 8) || memcmp(s->buf, "GGUF", 4) != 0)
        return false;
    if (!gguf_skim_u64(s, &n_tensors) || !gguf_skim_u64(s, &n_kv))
        return false;
    if (n_kv > GGUF_KV_MAX || n_tensors > GGUF_TENSORS_MAX)
        return false;
    for (uint64_t i = 0; i < n_kv; i++)
        if (!gguf_skim_string(s) || !gguf_skim_value(s))
            return false;
    for (uint64_t i = 0; i < n_tensors; i++)
        if (!gguf_skim_string(s) || !gguf_skim_u32(s, &n_dims) || n_dims > 4 ||
            !gguf_skim_skip(s, 8 * (uint64_t)n_dims) || !gguf_skim_u32(s, &type) ||
            !gguf_skim_u64(s, &offset))
            return false;
    return true;
}

/* Fetch the metadata of a callback source into g->owned. */
static pn_status gguf_fetch(pn_gguf *g, const pn_source *src, pn_err *err)
{
    gguf_skim s = {.src = src, .mem = g->mem, .limit = PN_MIN(src->size, GGUF_META_MAX), .err = err};
    size_t keep = (size_t)(gguf_skim_walk(&s) ? s.pos : s.have);
    if (s.status == PN_OK) {
        /* Give back what doubling took too much, while nothing points into the block. */
        uint8_t *exact = pn_mem_resize(g->mem, PN_ACCT_MISC, s.buf, s.cap, keep);
        if (exact) {
            g->owned = exact;
            g->owned_len = keep;
            return PN_OK;
        }
        s.status = pn_fail_nomem(err, "the file's metadata", keep);
    }
    pn_mem_free(g->mem, PN_ACCT_MISC, s.buf, s.cap);
    return s.status;
}

/* ------------------------------------------------------------------------------------------
 * The cursor
 * ------------------------------------------------------------------------------------------ */

/* n more bytes for `what`, or a message.  Every read below starts here. */
static pn_status gguf_need(const gguf_cursor *c, uint64_t n, const char *what)
{
    if (PN_LIKELY(n <= c->have - c->pos))
        return PN_OK;
    pn_shown who = pn_show(c->who ? c->who : "", c->who_len);
    const char *open = c->who ? " of '" : "", *close = c->who ? "'" : "";
    if (n > c->size - c->pos)
        return pn_fail(c->err, PN_E_FORMAT, "truncated: %s%s%s%s at offset %" PRIu64 " needs %" PRIu64
                       " bytes, the file has %" PRIu64 " left", what, open, who.s, close, c->pos, n,
                       c->size - c->pos);
    return pn_fail(c->err, PN_E_FORMAT, "metadata larger than %" PRIu64 " bytes: %s%s%s%s at offset %" PRIu64,
                   GGUF_META_MAX, what, open, who.s, close, c->pos);
}

static pn_status gguf_take_u32(gguf_cursor *c, const char *what, uint32_t *v)
{
    pn_status st = gguf_need(c, 4, what);
    if (st == PN_OK) {
        *v = pn_le32(c->base + c->pos);
        c->pos += 4;
    }
    return st;
}

static pn_status gguf_take_u64(gguf_cursor *c, const char *what, uint64_t *v)
{
    pn_status st = gguf_need(c, 8, what);
    if (st == PN_OK) {
        *v = pn_le64(c->base + c->pos);
        c->pos += 8;
    }
    return st;
}

/* A key or a name: 1 to `max` bytes without a NUL, or C strings and lengths could disagree about
 * which entries are equal. */
static pn_status gguf_take_name(gguf_cursor *c, const char *what, uint64_t index, uint32_t max,
                                const uint8_t **name, size_t *len)
{
    uint64_t at = c->pos, n;
    c->who = NULL;
    c->who_len = 0;
    pn_status st = gguf_take_u64(c, what, &n);
    if (st != PN_OK)
        return st;
    if (n == 0 || n > max)
        return pn_fail(c->err, PN_E_FORMAT, "%s %" PRIu64 " at offset %" PRIu64
                       ": expected a name of 1 to %" PRIu32 " bytes, found length %" PRIu64,
                       what, index, at, max, n);
    st = gguf_need(c, n, what);
    if (st != PN_OK)
        return st;
    *name = c->base + c->pos;
    *len = (size_t)n;
    if (memchr(*name, 0, *len))
        return pn_fail(c->err, PN_E_FORMAT, "%s %" PRIu64 " at offset %" PRIu64 ": the name holds a NUL byte",
                       what, index, at);
    c->who = (const char *)*name;
    c->who_len = *len;
    c->pos += n;
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * Header
 * ------------------------------------------------------------------------------------------ */

static pn_status gguf_not_gguf(const gguf_cursor *c)
{
    const uint8_t *b = c->base;
    const char *hint = "";
    if (memcmp(b, "vers", 4) == 0)
        hint = " (a Git LFS pointer? fetch the real file)";
    else if (b[0] == '<')
        hint = " (a web page? the download failed)";
    else if (memcmp(b, "PK\3\4", 4) == 0)
        hint = " (a zip archive)";
    else if (b[0] == '{')
        hint = " (JSON? of a Hugging Face folder the folder is to be named)";
    return pn_fail(c->err, PN_E_FORMAT,
                   "not a GGUF file: expected 47 47 55 46 at offset 0, found %02x %02x %02x %02x%s",
                   (unsigned)b[0], (unsigned)b[1], (unsigned)b[2], (unsigned)b[3], hint);
}

static pn_status gguf_check_version(const gguf_cursor *c, uint32_t v)
{
    if (v == 2 || v == 3)
        return PN_OK;
    if (v != 0 && (v & 0xffff) == 0)
        return pn_fail(c->err, PN_E_UNSUPPORTED,
                       "big-endian file (version word %08" PRIx32 "): only little-endian GGUF is read", v);
    if (v == 1)
        return pn_fail(c->err, PN_E_UNSUPPORTED,
                       "GGUF version 1 is obsolete: convert the model again (versions 2 and 3 are read)");
    return pn_fail(c->err, v ? PN_E_UNSUPPORTED : PN_E_FORMAT,
                   "GGUF version: expected 2 or 3, found %" PRIu32, v);
}

/* A count from the file against our cap and against the bytes that many entries need at least. */
static pn_status gguf_check_count(const gguf_cursor *c, const char *what, uint64_t n, uint64_t cap, uint32_t min)
{
    if (n > cap)
        return pn_fail(c->err, PN_E_FORMAT, "the file claims %" PRIu64 " %s, at most %" PRIu64 " are accepted",
                       n, what, cap);
    if (n > (c->size - c->pos) / min)
        return pn_fail(c->err, PN_E_FORMAT, "the file claims %" PRIu64 " %s of at least %" PRIu32
                       " bytes, but has %" PRIu64 " bytes left at offset %" PRIu64,
                       n, what, min, c->size - c->pos, c->pos);
    return PN_OK;
}

static pn_status gguf_header(gguf_cursor *c, pn_gguf *g, uint64_t *n_tensors, uint64_t *n_kv)
{
    if (c->size < GGUF_HEADER_BYTES)
        return pn_fail(c->err, PN_E_FORMAT, "not a GGUF file: expected at least %u bytes, found %" PRIu64,
                       GGUF_HEADER_BYTES, c->size);
    if (memcmp(c->base, "GGUF", 4) != 0)
        return gguf_not_gguf(c);
    c->pos = 4;
    pn_status st = gguf_take_u32(c, "version", &g->version);
    if (st == PN_OK)
        st = gguf_check_version(c, g->version);
    if (st == PN_OK)
        st = gguf_take_u64(c, "tensor count", n_tensors);
    if (st == PN_OK)
        st = gguf_take_u64(c, "key count", n_kv);
    if (st == PN_OK)
        st = gguf_check_count(c, "keys", *n_kv, GGUF_KV_MAX, GGUF_KV_MIN_BYTES);
    if (st == PN_OK)
        st = gguf_check_count(c, "tensors", *n_tensors, GGUF_TENSORS_MAX, GGUF_TENSOR_MIN_BYTES);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Metadata entries
 * ------------------------------------------------------------------------------------------ */

static pn_status gguf_value_fail(const gguf_cursor *c, const pn_gguf_kv *kv, const char *text, uint64_t found)
{
    return pn_fail(c->err, PN_E_FORMAT, "key '%s' at offset %" PRIu64 ": %s, found %" PRIu64,
                   pn_show(kv->key.data, kv->key.len).s, c->pos, text, found);
}

/* Walk one string value or element. */
static pn_status gguf_walk_string(gguf_cursor *c, const pn_gguf_kv *kv, uint64_t max)
{
    uint64_t len;
    pn_status st = gguf_take_u64(c, "string length", &len);
    if (st != PN_OK)
        return st;
    if (len > max) {
        c->pos -= 8;
        return gguf_value_fail(c, kv, "the string is too long: expected at most 2^30 bytes (2^20 in an array)",
                               len);
    }
    st = gguf_need(c, len, "string");
    if (st == PN_OK)
        c->pos += len;
    return st;
}

/* Array of strings: walk all of them, then write down where each begins.  The second walk checks
 * again, because a mapping is shared: another process may write to the file in between. */
static pn_status gguf_string_array(gguf_cursor *c, pn_gguf *g, pn_gguf_kv *kv)
{
    for (uint64_t i = 0; i < kv->count; i++) {
        pn_status st = gguf_walk_string(c, kv, GGUF_ELEM_STR_MAX);
        if (st != PN_OK)
            return st;
    }
    uint64_t *at = gguf_block_new(g, kv->count * sizeof *at);   /* count <= 2^27: they were walked */
    if (!at)
        return pn_fail_nomem(c->err, "a table of string offsets", kv->count * sizeof *at);
    uint64_t pos = 0, end = c->pos - kv->offset;
    for (uint64_t i = 0; i < kv->count; i++) {
        uint64_t len = end - pos >= 8 ? pn_le64(kv->data + pos) : UINT64_MAX;
        if (end - pos < 8 || len > end - pos - 8)
            return gguf_value_fail(c, kv, "the file changed while it was read: bad string length", len);
        at[i] = pos;
        pos += 8 + len;
    }
    kv->str_at = at;
    return PN_OK;
}

static pn_status gguf_array_head(gguf_cursor *c, pn_gguf_kv *kv)
{
    uint32_t elem;
    pn_status st = gguf_take_u32(c, "array element type", &elem);
    if (st == PN_OK)
        st = gguf_take_u64(c, "array count", &kv->count);
    if (st != PN_OK)
        return st;
    if (elem == PN_META_ARRAY)
        return gguf_value_fail(c, kv, "arrays of arrays are not accepted: expected a scalar or string element type",
                               elem);
    if (gguf_type_bytes(elem) == 0)
        return gguf_value_fail(c, kv, "expected an array element type of 0 to 12", elem);
    if (kv->count > GGUF_ARRAY_MAX)
        return gguf_value_fail(c, kv, "expected an array of at most 2^30 elements", kv->count);
    kv->elem = (uint8_t)elem;
    return PN_OK;
}

/* Packed numbers: enough bytes, and booleans that are. */
static pn_status gguf_packed(gguf_cursor *c, const pn_gguf_kv *kv, uint32_t type)
{
    uint64_t bytes = kv->count * gguf_type_bytes(type);         /* count <= 2^30 */
    pn_status st = gguf_need(c, bytes, "value");
    if (st != PN_OK)
        return st;
    if (type == PN_META_BOOL)
        for (uint64_t i = 0; i < bytes; i++)
            if (kv->data[i] > 1) {
                c->pos += i;
                return gguf_value_fail(c, kv, "expected a boolean of 0 or 1", kv->data[i]);
            }
    c->pos += bytes;
    return PN_OK;
}

static pn_status gguf_value(gguf_cursor *c, pn_gguf *g, pn_gguf_kv *kv)
{
    uint32_t type;
    pn_status st = gguf_take_u32(c, "value type", &type);
    if (st != PN_OK)
        return st;
    if (type > PN_META_F64)
        return gguf_value_fail(c, kv, "expected a value type of 0 to 12", type);
    kv->type = kv->elem = (uint8_t)type;
    kv->count = 1;
    if (type == PN_META_ARRAY) {
        st = gguf_array_head(c, kv);
        if (st != PN_OK)
            return st;
    }
    kv->data = c->base + c->pos;
    kv->offset = c->pos;
    if (kv->elem == PN_META_STRING) {
        st = gguf_need(c, 8 * kv->count, "strings, 8 bytes each at least,");     /* count <= 2^30 */
        if (st != PN_OK)
            return st;
        st = type == PN_META_ARRAY ? gguf_string_array(c, g, kv) : gguf_walk_string(c, kv, GGUF_META_MAX);
    } else {
        st = gguf_packed(c, kv, kv->elem);
    }
    kv->data_len = c->pos - kv->offset;
    return st;
}

static pn_status gguf_entries(gguf_cursor *c, pn_gguf *g, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        pn_gguf_kv kv = {0};
        const uint8_t *key = NULL;
        bool existed;
        uint64_t at = c->pos;
        pn_status st = gguf_take_name(c, "key", i, GGUF_KEY_MAX, &key, &kv.key.len);
        if (st != PN_OK)
            return st;
        kv.key.data = (const char *)key;
        if (!pn_map_put(&g->kv_index, kv.key.data, kv.key.len, (uint32_t)i, &existed))
            return pn_fail_nomem(c->err, "the index of keys", (uint64_t)g->kv_index.cap * sizeof(pn_map_slot));
        if (existed)
            return pn_fail(c->err, PN_E_FORMAT, "duplicate key '%s' at offset %" PRIu64,
                           pn_show(kv.key.data, kv.key.len).s, at);
        st = gguf_value(c, g, &kv);
        if (st != PN_OK)
            return st;
        if (!pn_mem_grow(g->mem, PN_ACCT_MISC, (void **)&g->kv, &g->cap_kv, g->n_kv + 1, sizeof kv))
            return pn_fail_nomem(c->err, "the table of keys", (uint64_t)(g->n_kv + 1) * sizeof kv);
        g->kv[g->n_kv++] = kv;
    }
    return PN_OK;
}

/* A power of two and, as the format says, a multiple of 8; then every number in the data section
 * lies on its own size, which in-place use relies on. */
static pn_status gguf_alignment(pn_gguf *g, pn_err *err)
{
    g->alignment = 32;
    const pn_gguf_kv *kv = pn_gguf_find(g, "general.alignment");
    if (!kv)
        return PN_OK;
    if (kv->type != PN_META_U32)
        return pn_fail(err, PN_E_FORMAT, "key 'general.alignment' at offset %" PRIu64
                       ": expected type %d (u32), found type %u", kv->offset, PN_META_U32, (unsigned)kv->type);
    uint64_t a = pn_le32(kv->data);
    if (a < 8 || (a & (a - 1)) != 0 || a > GGUF_ALIGN_MAX)
        return pn_fail(err, PN_E_FORMAT, "key 'general.alignment' (u32) at offset %" PRIu64
                       ": expected a power of two from 8 to %" PRIu64 ", found %" PRIu64,
                       kv->offset, GGUF_ALIGN_MAX, a);
    g->alignment = a;
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * Tensor table
 * ------------------------------------------------------------------------------------------ */

static pn_status gguf_tensor_dims(gguf_cursor *c, pn_gguf_tensor *t)
{
    pn_status st = gguf_take_u32(c, "number of dimensions", &t->n_dims);
    if (st != PN_OK)
        return st;
    if (t->n_dims > 4)
        return pn_fail(c->err, PN_E_FORMAT, "tensor '%s': expected at most 4 dimensions, found %" PRIu32
                       " at offset %" PRIu64, t->name, t->n_dims, c->pos - 4);
    t->ne[0] = t->ne[1] = t->ne[2] = t->ne[3] = t->n_elems = 1;
    for (uint32_t k = 0; k < t->n_dims; k++) {
        uint64_t at = c->pos;
        st = gguf_take_u64(c, "dimension", &t->ne[k]);
        if (st != PN_OK)
            return st;
        if (t->ne[k] == 0 || t->ne[k] > GGUF_INT63_MAX)
            return pn_fail(c->err, PN_E_FORMAT, "tensor '%s': dimension %" PRIu32 " at offset %" PRIu64
                           ": expected 1 to 2^63-1, found %" PRIu64, t->name, k, at, t->ne[k]);
        if (t->n_elems > GGUF_INT63_MAX / t->ne[k])
            return pn_fail(c->err, PN_E_FORMAT, "tensor '%s': element count overflows: %" PRIu64 " x %" PRIu64
                           " (dimension %" PRIu32 ") is more than 2^63-1", t->name, t->n_elems, t->ne[k], k);
        t->n_elems *= t->ne[k];
    }
    return PN_OK;
}

static pn_status gguf_tensor_type(gguf_cursor *c, pn_gguf_tensor *t)
{
    uint64_t at = c->pos, rows;
    pn_status st = gguf_take_u32(c, "tensor type", &t->dtype);
    if (st != PN_OK)
        return st;
    const pn_dtype_info *d = pn_dtype_get(t->dtype);
    if (d->block_elems == 0)
        return pn_fail(c->err, PN_E_UNSUPPORTED, "tensor '%s': type id %" PRIu32 " at offset %" PRIu64
                       " is %s", t->name, t->dtype, at,
                       t->dtype < PN_DTYPE_COUNT ? "a type that was removed from the format" : "unknown");
    if (t->ne[0] % d->block_elems != 0)
        return pn_fail(c->err, PN_E_FORMAT, "tensor '%s': first dimension %" PRIu64
                       " is not a multiple of the block size %u of %s", t->name, t->ne[0],
                       (unsigned)d->block_elems, d->name);
    rows = t->n_elems / t->ne[0];
    if (!pn_dtype_row_bytes(t->dtype, t->ne[0], &t->row_bytes) || t->row_bytes > GGUF_INT63_MAX / rows)
        return pn_fail(c->err, PN_E_FORMAT, "tensor '%s': size overflows: %" PRIu64 " rows of %" PRIu64
                       " %s elements need more than 2^63-1 bytes", t->name, rows, t->ne[0], d->name);
    t->bytes = t->row_bytes * rows;
    return PN_OK;
}

static pn_status gguf_tensor_entry(gguf_cursor *c, pn_gguf *g, uint64_t index, pn_gguf_tensor *t)
{
    const uint8_t *name = NULL;
    size_t len = 0;
    bool existed;
    uint64_t at = c->pos;
    pn_status st = gguf_take_name(c, "tensor", index, GGUF_NAME_MAX, &name, &len);
    if (st != PN_OK)
        return st;
    t->name = gguf_name_copy(g, name, len);
    if (!t->name || !pn_map_put(&g->tensor_index, t->name, len, (uint32_t)index, &existed))
        return pn_fail_nomem(c->err, "the index of tensors", (uint64_t)g->tensor_index.cap * sizeof(pn_map_slot));
    if (existed)
        return pn_fail(c->err, PN_E_FORMAT, "duplicate tensor '%s' at offset %" PRIu64, t->name, at);
    st = gguf_tensor_dims(c, t);
    if (st == PN_OK)
        st = gguf_tensor_type(c, t);
    at = c->pos;
    if (st == PN_OK)
        st = gguf_take_u64(c, "tensor offset", &t->offset);
    if (st == PN_OK && (t->offset & (g->alignment - 1)) != 0)
        st = pn_fail(c->err, PN_E_FORMAT, "tensor '%s': data offset %" PRIu64 " (at offset %" PRIu64
                     ") is not aligned: expected a multiple of %" PRIu64, t->name, t->offset, at, g->alignment);
    return st;
}

static pn_status gguf_tensor_table(gguf_cursor *c, pn_gguf *g, uint64_t n)
{
    pn_status st = gguf_check_count(c, "tensors", n, GGUF_TENSORS_MAX, GGUF_TENSOR_MIN_BYTES);
    for (uint64_t i = 0; i < n && st == PN_OK; i++) {
        pn_gguf_tensor t = {0};
        st = gguf_tensor_entry(c, g, i, &t);
        if (st != PN_OK)
            break;
        if (!pn_mem_grow(g->mem, PN_ACCT_MISC, (void **)&g->tensors, &g->cap_tensors, g->n_tensors + 1, sizeof t))
            return pn_fail_nomem(c->err, "the table of tensors", (uint64_t)(g->n_tensors + 1) * sizeof t);
        g->tensors[g->n_tensors++] = t;
    }
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Where the data lie: inside the file, and each byte in one tensor only
 * ------------------------------------------------------------------------------------------ */

static pn_status gguf_place(pn_gguf *g, uint64_t table_end, uint64_t size, pn_err *err)
{
    uint64_t start = pn_align_up(table_end, g->alignment);      /* table_end <= 2^30 */
    g->data_start = PN_MIN(start, size);
    if (g->n_tensors == 0)
        return PN_OK;
    if (start > size)
        return pn_fail(err, PN_E_FORMAT, "truncated: the data section starts at offset %" PRIu64
                       ", the file has %" PRIu64 " bytes", start, size);
    uint64_t data = size - start;
    for (size_t i = 0; i < g->n_tensors; i++) {
        pn_gguf_tensor *t = &g->tensors[i];
        if (t->offset > data || t->bytes > data - t->offset)
            return pn_fail(err, PN_E_FORMAT, "truncated: tensor '%s' needs %" PRIu64 " bytes at data offset %"
                           PRIu64 ", the data section (from offset %" PRIu64 ") has %" PRIu64 " bytes in all",
                           t->name, t->bytes, t->offset, start, data);
        t->offset += start;
    }
    return PN_OK;
}

/* Restore the heap (largest data offset on top) under order[i]. */
static void gguf_sift(const pn_gguf_tensor *t, uint32_t *order, size_t i, size_t n)
{
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && t[order[child + 1]].offset > t[order[child]].offset)
            child++;
        if (t[order[child]].offset <= t[order[i]].offset)
            return;
        uint32_t swap = order[i];
        order[i] = order[child];
        order[child] = swap;
    }
}

/* Heapsort: no order of the file makes it slow, and libc's qsort may call malloc. */
static void gguf_sort(const pn_gguf_tensor *t, uint32_t *order, size_t n)
{
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    for (size_t i = n / 2; i-- > 0;)
        gguf_sift(t, order, i, n);
    for (size_t end = n; end-- > 1;) {
        uint32_t swap = order[0];
        order[0] = order[end];
        order[end] = swap;
        gguf_sift(t, order, 0, end);
    }
}

static pn_status gguf_check_pair(const pn_gguf_tensor *a, const pn_gguf_tensor *b, pn_err *err)
{
    if (b->offset - a->offset >= a->bytes)
        return PN_OK;
    return pn_fail(err, PN_E_FORMAT, "tensors overlap: '%s' takes offsets %" PRIu64 " to %" PRIu64
                   ", '%s' starts at %" PRIu64, a->name, a->offset, a->offset + a->bytes, b->name, b->offset);
}

static pn_status gguf_check_disjoint(pn_gguf *g, pn_err *err)
{
    bool sorted = true;
    for (size_t i = 1; i < g->n_tensors && sorted; i++)
        sorted = g->tensors[i].offset >= g->tensors[i - 1].offset;
    uint32_t *order = NULL;
    size_t order_bytes = g->n_tensors * sizeof *order;          /* <= 2^22 */
    if (!sorted) {
        order = pn_mem_alloc(g->mem, PN_ACCT_MISC, order_bytes);
        if (!order)
            return pn_fail_nomem(err, "sorting the tensors", order_bytes);
        gguf_sort(g->tensors, order, g->n_tensors);
    }
    pn_status st = PN_OK;
    for (size_t i = 1; i < g->n_tensors && st == PN_OK; i++)
        st = gguf_check_pair(&g->tensors[order ? order[i - 1] : i - 1], &g->tensors[order ? order[i] : i], err);
    pn_mem_free(g->mem, PN_ACCT_MISC, order, order_bytes);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * All of it
 * ------------------------------------------------------------------------------------------ */

static pn_status gguf_parse(pn_gguf *g, const pn_source *src, pn_err *err)
{
    uint64_t n_tensors = 0, n_kv = 0;
    gguf_cursor c = {.base = src->bytes, .have = PN_MIN(src->size, GGUF_META_MAX), .size = src->size, .err = err};
    if (!src->bytes) {
        c.base = g->owned;
        c.have = g->owned_len;
    }
    pn_status st = gguf_header(&c, g, &n_tensors, &n_kv);
    if (st == PN_OK)
        st = gguf_entries(&c, g, n_kv);
    if (st == PN_OK)
        st = gguf_alignment(g, err);
    if (st == PN_OK)
        st = gguf_tensor_table(&c, g, n_tensors);
    if (st == PN_OK)
        st = gguf_place(g, c.pos, c.size, err);
    if (st == PN_OK)
        st = gguf_check_disjoint(g, err);
    return st;
}

PN_INTERNAL pn_status pn_gguf_read(pn_gguf *g, pn_mem *mem, const pn_source *src, pn_err *err)
{
    memset(g, 0, sizeof *g);
    g->mem = mem;
    pn_map_init(&g->kv_index, mem, PN_ACCT_MISC);
    pn_map_init(&g->tensor_index, mem, PN_ACCT_MISC);
    pn_status st = src->bytes || src->size < GGUF_HEADER_BYTES ? PN_OK : gguf_fetch(g, src, err);
    if (st == PN_OK)
        st = gguf_parse(g, src, err);
    if (st != PN_OK) {
        pn_gguf_fini(g);
        pn_source_fail(src, st, err);
    }
    return st;
}

PN_INTERNAL const pn_gguf_kv *pn_gguf_find(const pn_gguf *g, const char *key)
{
    const uint32_t *i = pn_map_find(&g->kv_index, key, strlen(key));
    return i && *i < g->n_kv ? &g->kv[*i] : NULL;
}

PN_INTERNAL const pn_gguf_tensor *pn_gguf_find_tensor(const pn_gguf *g, const char *name)
{
    const uint32_t *i = pn_map_find(&g->tensor_index, name, strlen(name));
    return i && *i < g->n_tensors ? &g->tensors[*i] : NULL;
}

/* ------------------------------------------------------------------------------------------
 * Typed access
 * ------------------------------------------------------------------------------------------ */

/* An integer of any width as sign and 64 bits. */
static bool gguf_int(const pn_gguf_kv *kv, uint64_t i, bool *negative, uint64_t *bits)
{
    uint32_t size = gguf_type_bytes(kv->elem);
    if (i >= kv->count || size == 0)
        return false;
    const uint8_t *p = kv->data + i * size;
    int64_t s = 0;
    *negative = false;
    switch (kv->elem) {
    case PN_META_U8: *bits = p[0]; return true;
    case PN_META_U16: *bits = pn_le16(p); return true;
    case PN_META_U32: *bits = pn_le32(p); return true;
    case PN_META_U64: *bits = pn_le64(p); return true;
    case PN_META_I8: s = p[0] >= 0x80 ? (int64_t)p[0] - 0x100 : p[0]; break;
    case PN_META_I16: s = pn_le16(p); s = s >= 0x8000 ? s - 0x10000 : s; break;
    case PN_META_I32: s = pn_le32(p); s = s >= 0x80000000 ? s - 0x100000000 : s; break;
    case PN_META_I64: *bits = pn_le64(p); *negative = *bits > GGUF_INT63_MAX; return true;
    default: return false;
    }
    *negative = s < 0;
    *bits = (uint64_t)s;
    return true;
}

PN_INTERNAL bool pn_gguf_u64(const pn_gguf_kv *kv, uint64_t i, uint64_t *out)
{
    bool negative;
    uint64_t bits;
    if (!kv || !gguf_int(kv, i, &negative, &bits) || negative)
        return false;
    *out = bits;
    return true;
}

PN_INTERNAL bool pn_gguf_i64(const pn_gguf_kv *kv, uint64_t i, int64_t *out)
{
    bool negative;
    uint64_t bits;
    if (!kv || !gguf_int(kv, i, &negative, &bits) || (!negative && bits > GGUF_INT63_MAX))
        return false;
    *out = negative ? -(int64_t)~bits - 1 : (int64_t)bits;
    return true;
}

PN_INTERNAL bool pn_gguf_f64(const pn_gguf_kv *kv, uint64_t i, double *out)
{
    bool negative;
    uint64_t bits;
    if (!kv || i >= kv->count)
        return false;
    if (kv->elem == PN_META_F32) {
        *out = pn_f32_from_bits(pn_le32(kv->data + 4 * i));
    } else if (kv->elem == PN_META_F64) {
        bits = pn_le64(kv->data + 8 * i);
        memcpy(out, &bits, sizeof *out);
    } else if (kv->elem == PN_META_BOOL) {
        *out = kv->data[i];
    } else if (gguf_int(kv, i, &negative, &bits)) {
        *out = negative ? -(double)(~bits + 1) : (double)bits;
    } else {
        return false;
    }
    return true;
}

PN_INTERNAL bool pn_gguf_str(const pn_gguf_kv *kv, uint64_t i, pn_bytes *out)
{
    if (!kv || kv->elem != PN_META_STRING || i >= kv->count)
        return false;
    /* Checked when read; again here, because a mapped file may be written to by others. */
    uint64_t at = kv->str_at ? kv->str_at[i] : 0, len = pn_le64(kv->data + at);
    if (len > kv->data_len - at - 8)
        return false;
    out->data = (const char *)(kv->data + at + 8);
    out->len = (size_t)len;
    return true;
}

#undef GGUF_HEADER_BYTES
#undef GGUF_META_MAX
#undef GGUF_KV_MAX
#undef GGUF_TENSORS_MAX
#undef GGUF_KEY_MAX
#undef GGUF_NAME_MAX
#undef GGUF_ARRAY_MAX
#undef GGUF_ELEM_STR_MAX
#undef GGUF_ALIGN_MAX
#undef GGUF_KV_MIN_BYTES
#undef GGUF_TENSOR_MIN_BYTES
#undef GGUF_INT63_MAX
#undef GGUF_NAMES_BLOCK
