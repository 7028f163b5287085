/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_safetensors.c - reading a safetensors header that may have been written by an enemy.
 *
 * The length in front is compared with the file and with 100,000,000 before anything is taken; then
 * the JSON goes through base/pn_json.h, which has no recursion, refuses a key that comes twice and
 * keeps numbers as written.  Its tree is bounded by ST_NODES_MAX, not by the text alone: 28 bytes a
 * node would be fourteen times the text at worst.  The table is made from entries that were met,
 * and all its text lies in one block whose size is known by then.
 *
 * Invariants
 *   1. No sum or product of numbers from the file before the check that it fits.
 *   2. Tensors are put in order of place once; from neighbours alone follow hole, overlap and rest.
 *
 * Source: the format's description (huggingface/safetensors, README, "Format"), which the rules
 * here restrict where it leaves room: docs/formats.md.
 */
#include "format/pn_safetensors.h"

#include "base/pn_err.h"
#include "base/pn_json.h"

#include <inttypes.h>

#define ST_NODES_MAX ((size_t)1 << 24)
#define ST_TENSORS_MAX ((size_t)1 << 20)        /* real files have up to some tens of thousands */
#define ST_INT63_MAX ((uint64_t)INT64_MAX)
#define ST_METADATA "__metadata__"

typedef struct st_reader {
    pn_safetensors *s;
    pn_json_doc doc;
    uint64_t data_bytes;        /* of the data section */
    char *free_text;            /* in s->text */
    pn_err *err;
} st_reader;

/* ------------------------------------------------------------------------------------------
 * Number formats
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL const pn_st_dtype_info *pn_st_dtype_get(uint32_t dtype)
{
    static const pn_st_dtype_info info[PN_ST_DTYPE_COUNT + 1] = {
        [PN_ST_U64] = {"U64", 64, PN_DTYPE_COUNT},
        [PN_ST_I64] = {"I64", 64, PN_DTYPE_I64},
        [PN_ST_F64] = {"F64", 64, PN_DTYPE_F64},
        [PN_ST_C64] = {"C64", 64, PN_DTYPE_COUNT},
        [PN_ST_F32] = {"F32", 32, PN_DTYPE_F32},
        [PN_ST_U32] = {"U32", 32, PN_DTYPE_COUNT},
        [PN_ST_I32] = {"I32", 32, PN_DTYPE_I32},
        [PN_ST_BF16] = {"BF16", 16, PN_DTYPE_BF16},
        [PN_ST_F16] = {"F16", 16, PN_DTYPE_F16},
        [PN_ST_U16] = {"U16", 16, PN_DTYPE_COUNT},
        [PN_ST_I16] = {"I16", 16, PN_DTYPE_I16},
        [PN_ST_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8, PN_DTYPE_COUNT},
        [PN_ST_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8, PN_DTYPE_COUNT},
        [PN_ST_F8_E8M0] = {"F8_E8M0", 8, PN_DTYPE_COUNT},
        [PN_ST_F8_E4M3] = {"F8_E4M3", 8, PN_DTYPE_COUNT},
        [PN_ST_F8_E5M2] = {"F8_E5M2", 8, PN_DTYPE_COUNT},
        [PN_ST_I8] = {"I8", 8, PN_DTYPE_I8},
        [PN_ST_U8] = {"U8", 8, PN_DTYPE_COUNT},
        [PN_ST_F6_E3M2] = {"F6_E3M2", 6, PN_DTYPE_COUNT},
        [PN_ST_F6_E2M3] = {"F6_E2M3", 6, PN_DTYPE_COUNT},
        [PN_ST_F4] = {"F4", 4, PN_DTYPE_COUNT},
        [PN_ST_BOOL] = {"BOOL", 8, PN_DTYPE_COUNT},
        [PN_ST_DTYPE_COUNT] = {NULL, 0, PN_DTYPE_COUNT},
    };
    return &info[PN_MIN(dtype, (uint32_t)PN_ST_DTYPE_COUNT)];
}

PN_INTERNAL uint32_t pn_st_dtype_find(const char *name, size_t len)
{
    uint32_t d = 0;
    while (d < PN_ST_DTYPE_COUNT) {
        const char *known = pn_st_dtype_get(d)->name;
        if (strlen(known) == len && memcmp(known, name, len) == 0)
            break;
        d++;
    }
    return d;
}

PN_INTERNAL pn_status pn_st_size(uint32_t dtype, uint32_t rank, const uint64_t *shape, uint64_t *n_elems,
                                 uint64_t *bytes, pn_err *err)
{
    const pn_st_dtype_info *d = pn_st_dtype_get(dtype);
    uint64_t n = 1, bits;
    for (uint32_t k = 0; k < rank; k++) {
        uint64_t product;
        if (!pn_mul_u64(n, shape[k], &product) || product > ST_INT63_MAX)
            return pn_fail(err, PN_E_FORMAT, "the element count overflows: %" PRIu64 " x %" PRIu64 " (dimension %" PRIu32
                           ") is more than 2^63-1", n, shape[k], k);
        n = product;
    }
    if (!pn_mul_u64(n, d->bits, &bits))
        return pn_fail(err, PN_E_FORMAT, "the size overflows: %" PRIu64 " elements of %" PRIu32
                       " bits are more than 2^64-1 bits", n, d->bits);
    if (bits % 8 != 0)
        return pn_fail(err, PN_E_FORMAT, "%" PRIu64 " elements of %" PRIu32 " bits are %" PRIu64
                       " bits: expected whole bytes", n, d->bits, bits);
    *n_elems = n;
    *bytes = bits / 8;
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * Small parts
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL const char *pn_st_name_fault(const char *name, size_t len)
{
    if (len == 0)
        return "the name is empty";
    if (len > PN_ST_MAX_NAME)
        return "the name is longer than 512 bytes";
    return memchr(name, 0, len) ? "the name holds a NUL" : NULL;
}

/* Restore the heap (last in the order on top) under t[i]. */
static void st_sift(pn_st_tensor *t, size_t i, size_t n, bool (*after)(const pn_st_tensor *, const pn_st_tensor *))
{
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && after(&t[child + 1], &t[child]))
            child++;
        if (!after(&t[child], &t[i]))
            return;
        pn_st_tensor swap = t[i];
        t[i] = t[child];
        t[child] = swap;
    }
}

PN_INTERNAL void pn_st_sort(pn_st_tensor *t, size_t n, bool (*after)(const pn_st_tensor *a, const pn_st_tensor *b))
{
    size_t sorted = 1;
    while (sorted < n && !after(&t[sorted - 1], &t[sorted]))
        sorted++;
    if (sorted >= n)
        return;                         /* as most files are */
    for (size_t i = n / 2; i-- > 0;)
        st_sift(t, i, n, after);
    for (size_t end = n; end-- > 1;) {
        pn_st_tensor swap = t[0];
        t[0] = t[end];
        t[end] = swap;
        st_sift(t, 0, end, after);
    }
}

/* A copy in the block of text, with a NUL; the block was made large enough. */
static pn_bytes st_keep(st_reader *r, pn_bytes b)
{
    char *copy = r->free_text;
    memcpy(copy, b.data, b.len);
    copy[b.len] = 0;
    r->free_text += b.len + 1;
    return (pn_bytes){copy, b.len};
}

/* ------------------------------------------------------------------------------------------
 * One entry
 * ------------------------------------------------------------------------------------------ */

/* A number as the format writes it: digits and nothing else, below 2^63. */
static bool st_number(const st_reader *r, uint32_t node, uint64_t *out, pn_bytes *text)
{
    uint64_t v = 0;
    *text = (pn_bytes){"", 0};
    if (!pn_json_num(&r->doc, node, text))
        return false;
    for (size_t i = 0; i < text->len; i++) {
        unsigned digit = (unsigned)((uint8_t)text->data[i] - '0');
        if (digit > 9 || v > (ST_INT63_MAX - digit) / 10)
            return false;
        v = v * 10 + digit;
    }
    *out = v;
    return true;
}

/* An array of numbers under `field`, at most `max`. */
static pn_status st_numbers(st_reader *r, uint32_t entry, const char *name, const char *field, uint32_t max,
                            uint64_t *out, uint32_t *n)
{
    uint32_t list = pn_json_get(&r->doc, entry, field), i = 0;
    pn_json_type type = pn_json_type_of(&r->doc, list);
    if (type != PN_JSON_ARRAY)
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': expected an array of integers as '%s', found %s", name, field,
                       pn_json_type_name(type));
    if (pn_json_count(&r->doc, list) > max)
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': expected at most %" PRIu32 " numbers in '%s', found %" PRIu32, name,
                       max, field, pn_json_count(&r->doc, list));
    for (uint32_t at = pn_json_first(&r->doc, list); at != PN_JSON_NONE; at = pn_json_next(&r->doc, at), i++) {
        pn_bytes text;
        if (!st_number(r, at, &out[i], &text))
            return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': '%s' item %" PRIu32 ": expected an integer of 0 to 2^63-1, found %s",
                           name, field, i,
                           text.len ? pn_show(text.data, text.len).s : pn_json_type_name(pn_json_type_of(&r->doc, at)));
    }
    *n = i;
    return PN_OK;
}

static pn_status st_dtype(st_reader *r, uint32_t entry, pn_st_tensor *t)
{
    uint32_t node = pn_json_get(&r->doc, entry, "dtype");
    pn_bytes text;
    if (!pn_json_str(&r->doc, node, &text))
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': expected a string as 'dtype', found %s", t->name,
                       pn_json_type_name(pn_json_type_of(&r->doc, node)));
    t->dtype = pn_st_dtype_find(text.data, text.len);
    if (t->dtype == PN_ST_DTYPE_COUNT)
        return pn_fail(r->err, PN_E_UNSUPPORTED, "tensor '%s': dtype '%s' is not known", t->name,
                       pn_show(text.data, text.len).s);
    return PN_OK;
}

/* t->offset stays relative to the data section until all are placed. */
static pn_status st_entry(st_reader *r, uint32_t entry, pn_st_tensor *t)
{
    uint64_t range[2] = {0, 0};
    uint32_t n = 0;
    if (pn_json_type_of(&r->doc, entry) != PN_JSON_OBJECT)
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': expected an object, found %s", t->name,
                       pn_json_type_name(pn_json_type_of(&r->doc, entry)));
    pn_status st = st_dtype(r, entry, t);
    if (!st)
        st = st_numbers(r, entry, t->name, "shape", PN_ST_MAX_RANK, t->shape, &t->rank);
    for (uint32_t k = t->rank; k < PN_ST_MAX_RANK; k++)
        t->shape[k] = 1;
    if (!st)
        st = st_numbers(r, entry, t->name, "data_offsets", 2, range, &n);
    if (st)
        return st;
    if (n != 2 || range[1] < range[0])
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': expected a begin and an end not before it as 'data_offsets', found %"
                       PRIu32 " numbers, %" PRIu64 " and %" PRIu64, t->name, n, range[0], range[1]);
    if ((st = pn_st_size(t->dtype, t->rank, t->shape, &t->n_elems, &t->bytes, r->err)))
        return pn_err_prefix(r->err, st, "tensor '%s'", t->name);
    if (t->bytes != range[1] - range[0])
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': the shape needs %" PRIu64 " bytes, 'data_offsets' %" PRIu64 " to %"
                       PRIu64 " declare %" PRIu64, t->name, t->bytes, range[0], range[1], range[1] - range[0]);
    t->offset = range[0];
    return PN_OK;
}

static pn_status st_metadata(st_reader *r, uint32_t node)
{
    pn_safetensors *s = r->s;
    if (pn_json_type_of(&r->doc, node) != PN_JSON_OBJECT)
        return pn_fail(r->err, PN_E_FORMAT, "'" ST_METADATA "': expected an object, found %s",
                       pn_json_type_name(pn_json_type_of(&r->doc, node)));
    for (uint32_t at = pn_json_first(&r->doc, node); at != PN_JSON_NONE; at = pn_json_next(&r->doc, at)) {
        pn_bytes key = pn_json_key_of(&r->doc, at), value;
        if (!pn_json_str(&r->doc, at, &value))
            return pn_fail(r->err, PN_E_FORMAT, "'" ST_METADATA "', key '%s': expected a string, found %s",
                           pn_show(key.data, key.len).s, pn_json_type_name(pn_json_type_of(&r->doc, at)));
        s->meta[s->n_meta].key = st_keep(r, key);
        s->meta[s->n_meta++].value = st_keep(r, value);
    }
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * Place: the tensors cover the data section
 * ------------------------------------------------------------------------------------------ */

static bool st_after(const pn_st_tensor *a, const pn_st_tensor *b)
{
    if (a->offset != b->offset)
        return a->offset > b->offset;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes;
    return strcmp(a->name, b->name) > 0;
}

static pn_status st_gap(const st_reader *r, const pn_st_tensor *before, const pn_st_tensor *t, uint64_t end)
{
    if (!before)
        return pn_fail(r->err, PN_E_FORMAT, "the first %" PRIu64 " bytes of data, before '%s', belong to no tensor",
                       t->offset, t->name);
    if (t->offset > end)
        return pn_fail(r->err, PN_E_FORMAT, "%" PRIu64 " bytes between '%s' and '%s' belong to no tensor (data offsets %"
                       PRIu64 " to %" PRIu64 ")", t->offset - end, before->name, t->name, end, t->offset);
    return pn_fail(r->err, PN_E_FORMAT, "tensor '%s' overlaps '%s': it begins at data offset %" PRIu64
                   ", the other ends at %" PRIu64, t->name, before->name, t->offset, end);
}

static pn_status st_place(st_reader *r)
{
    pn_safetensors *s = r->s;
    uint64_t end = 0;
    pn_st_sort(s->tensors, s->n_tensors, st_after);
    for (size_t i = 0; i < s->n_tensors; i++) {
        pn_st_tensor *t = &s->tensors[i];
        if (t->offset != end)
            return st_gap(r, i ? t - 1 : NULL, t, end);
        if (t->bytes > r->data_bytes - end)
            return pn_fail(r->err, PN_E_FORMAT, "truncated: tensor '%s' needs %" PRIu64 " bytes at data offset %" PRIu64
                           ", the data section has %" PRIu64 " in all, %" PRIu64 " short", t->name, t->bytes, end,
                           r->data_bytes, t->bytes - (r->data_bytes - end));
        end += t->bytes;
    }
    if (end != r->data_bytes)
        return pn_fail(r->err, PN_E_FORMAT, "%" PRIu64 " bytes after the last tensor%s%s belong to none: data end at %" PRIu64
                       ", the data section at %" PRIu64, r->data_bytes - end, s->n_tensors ? " " : "",
                       s->n_tensors ? s->tensors[s->n_tensors - 1].name : "", end, r->data_bytes);
    for (size_t i = 0; i < s->n_tensors; i++)
        s->tensors[i].offset += s->data_start;
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * All of it
 * ------------------------------------------------------------------------------------------ */

/* Take the tables: their sizes are known from the tree. */
static pn_status st_tables(st_reader *r, uint32_t meta)
{
    pn_safetensors *s = r->s;
    const pn_json_doc *d = &r->doc;
    size_t n = pn_json_count(d, PN_JSON_ROOT) - (meta != PN_JSON_NONE), n_meta = pn_json_count(d, meta), bytes = 0;
    if (n > ST_TENSORS_MAX)
        return pn_fail(r->err, PN_E_FORMAT, "the header has %zu tensors, at most %zu are accepted", n, ST_TENSORS_MAX);
    for (uint32_t at = pn_json_first(d, PN_JSON_ROOT); at != PN_JSON_NONE; at = pn_json_next(d, at))
        bytes += pn_json_key_of(d, at).len + 1;
    for (uint32_t at = pn_json_first(d, meta); at != PN_JSON_NONE; at = pn_json_next(d, at)) {
        pn_bytes value = {NULL, 0};
        pn_json_str(d, at, &value);
        bytes += pn_json_key_of(d, at).len + value.len + 2;
    }
    s->text = pn_mem_alloc(s->mem, PN_ACCT_MISC, bytes);
    s->text_bytes = bytes;
    s->tensors = pn_mem_calloc(s->mem, PN_ACCT_MISC, n, sizeof *s->tensors);
    s->n_tensors = s->tensors ? n : 0;
    s->meta = pn_mem_calloc(s->mem, PN_ACCT_MISC, n_meta, sizeof *s->meta);
    s->cap_meta = n_meta;
    r->free_text = s->text;
    if (!s->text || !s->tensors || !s->meta || !pn_map_reserve(&s->index, (uint32_t)n))
        return pn_fail_nomem(r->err, "the table of tensors", bytes + n * (sizeof *s->tensors + sizeof(pn_map_slot)));
    return PN_OK;
}

static pn_status st_entries(st_reader *r)
{
    pn_safetensors *s = r->s;
    uint32_t meta = pn_json_get(&r->doc, PN_JSON_ROOT, ST_METADATA);
    size_t i = 0;
    pn_status st = st_tables(r, meta);
    for (uint32_t at = pn_json_first(&r->doc, PN_JSON_ROOT); at != PN_JSON_NONE && !st; at = pn_json_next(&r->doc, at)) {
        pn_bytes key = pn_json_key_of(&r->doc, at);
        if (at == meta) {
            st = st_metadata(r, at);
            continue;
        }
        const char *fault = pn_st_name_fault(key.data, key.len);
        if (fault)
            return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': %s", pn_show(key.data, key.len).s, fault);
        s->tensors[i].name = st_keep(r, key).data;
        st = st_entry(r, at, &s->tensors[i++]);
    }
    if (!st)
        st = st_place(r);
    for (i = 0; i < s->n_tensors && !st; i++)
        if (!pn_map_put(&s->index, s->tensors[i].name, strlen(s->tensors[i].name), (uint32_t)i, NULL))
            st = pn_fail_nomem(r->err, "the index of tensors", s->n_tensors * sizeof(pn_map_slot));
    return st;
}

static pn_status st_parse(st_reader *r, const char *text, uint64_t n)
{
    static const pn_json_params limits = {.max_depth = 4, .max_bytes = PN_ST_HEADER_MAX, .max_nodes = ST_NODES_MAX,
                                          .unique_keys = true};
    if (n == 0 || text[0] != '{')
        return pn_fail(r->err, PN_E_FORMAT, "not a safetensors file: expected '{' at offset 8, found %s%s",
                       n ? pn_show(text, 1).s : "an empty header",
                       n && text[0] == ' ' ? " (a space)" : "");
    pn_status st = pn_json_parse(&r->doc, r->s->mem, PN_ACCT_MISC, text, (size_t)n, &limits, r->err);
    if (st)
        return pn_err_prefix(r->err, st, "header");
    st = st_entries(r);
    pn_json_fini(&r->doc);
    return st;
}

static pn_status st_read(st_reader *r, const pn_source *src)
{
    pn_safetensors *s = r->s;
    uint8_t length[8];
    if (src->size < 8)
        return pn_fail(r->err, PN_E_FORMAT, "not a safetensors file: expected at least 8 bytes, found %" PRIu64, src->size);
    pn_status st = pn_source_read(src, 0, length, sizeof length, r->err);
    if (st)
        return st;
    uint64_t n = pn_le64(length);
    if (n > PN_ST_HEADER_MAX)
        return pn_fail(r->err, PN_E_FORMAT, "not a safetensors file, or a broken one: the header length at offset 0 is %" PRIu64
                       ", above %" PRIu64 "%s", n, PN_ST_HEADER_MAX, memcmp(length, "version ", 8) == 0 ? " (a Git LFS pointer? fetch the real file)" : "");
    if (n > src->size - 8)
        return pn_fail(r->err, PN_E_FORMAT, "truncated: the header has %" PRIu64 " bytes from offset 8, the file %" PRIu64
                       " in all", n, src->size);
    s->data_start = 8 + n;
    r->data_bytes = src->size - s->data_start;
    if (src->bytes)
        return st_parse(r, (const char *)src->bytes + 8, n);
    char *text = pn_mem_alloc(s->mem, PN_ACCT_MISC, (size_t)n);
    if (!text)
        return pn_fail_nomem(r->err, "the header", n);
    st = pn_source_read(src, 8, text, (size_t)n, r->err);
    if (!st)
        st = st_parse(r, text, n);
    pn_mem_free(s->mem, PN_ACCT_MISC, text, (size_t)n);
    return st;
}

PN_INTERNAL pn_status pn_safetensors_read(pn_safetensors *s, pn_mem *mem, const pn_source *src, pn_err *err)
{
    *s = (pn_safetensors){.mem = mem};
    pn_map_init(&s->index, mem, PN_ACCT_MISC);
    st_reader r = {.s = s, .err = err};
    pn_status st = st_read(&r, src);
    if (st) {
        pn_safetensors_fini(s);
        pn_source_fail(src, st, err);
    }
    return st;
}

PN_INTERNAL void pn_safetensors_fini(pn_safetensors *s)
{
    if (!s->mem)
        return;
    pn_map_fini(&s->index);
    pn_mem_free(s->mem, PN_ACCT_MISC, s->tensors, s->n_tensors * sizeof *s->tensors);
    pn_mem_free(s->mem, PN_ACCT_MISC, s->meta, s->cap_meta * sizeof *s->meta);
    pn_mem_free(s->mem, PN_ACCT_MISC, s->text, s->text_bytes);
    *s = (pn_safetensors){0};
}

PN_INTERNAL const pn_st_tensor *pn_safetensors_find(const pn_safetensors *s, const char *name)
{
    const uint32_t *i = pn_map_find(&s->index, name, strlen(name));
    return i ? &s->tensors[*i] : NULL;
}

#undef ST_NODES_MAX
#undef ST_TENSORS_MAX
#undef ST_INT63_MAX
#undef ST_METADATA
