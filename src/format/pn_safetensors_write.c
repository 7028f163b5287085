/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_safetensors_write.c - the header of a safetensors file, as the reference writer would make it.
 *
 * Formats with larger elements come first, names in byte order within a format; so every tensor
 * lies on its element's size, and a file converted from another container equals the one that
 * the usual library writes.  Compact JSON, metadata first, entries in the order of the data,
 * padded with spaces so that the data section begins at a multiple of 8.
 */
#include "format/pn_safetensors.h"

#include "base/pn_err.h"
#include "base/pn_json.h"
#include "base/pn_utf8.h"

#include <inttypes.h>

static bool stw_after(const pn_st_tensor *a, const pn_st_tensor *b)
{
    return a->dtype != b->dtype ? a->dtype > b->dtype : strcmp(a->name, b->name) > 0;
}

/* Sizes and offsets relative to the data section; `list` is sorted. */
static pn_status stw_place(pn_st_tensor *list, size_t n, pn_err *err)
{
    uint64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        pn_st_tensor *t = &list[i];
        for (uint32_t k = t->rank; k < PN_ST_MAX_RANK; k++)
            t->shape[k] = 1;
        if (pn_st_size(t->dtype, t->rank, t->shape, &t->n_elems, &t->bytes, err))
            return pn_err_prefix(err, PN_E_INVALID, "tensor '%s'", t->name);
        t->offset = end;
        if (!pn_add_u64(end, t->bytes, &end) || end > (uint64_t)1 << 60)
            return pn_fail(err, PN_E_INVALID, "tensor '%s' ends beyond 2^60 bytes", t->name);
    }
    return PN_OK;
}

static pn_status stw_check(const pn_st_tensor *t, pn_err *err)
{
    size_t len = strlen(t->name);
    const char *fault = pn_st_name_fault(t->name, len);
    if (!fault && pn_utf8_valid(t->name, len) != len)
        fault = "the name is not UTF-8";
    if (!fault && strcmp(t->name, "__metadata__") == 0)
        fault = "the name means something else";
    if (!fault && t->rank > PN_ST_MAX_RANK)
        fault = "it has more than 8 dimensions";
    if (!fault && t->dtype >= PN_ST_DTYPE_COUNT)
        fault = "its number format is not one of safetensors";
    return fault ? pn_fail(err, PN_E_INVALID, "tensor '%s': %s", pn_show(t->name, len).s, fault) : PN_OK;
}

/* The same name twice need not be neighbours in `list`: the formats may differ. */
static pn_status stw_unique(pn_mem *mem, const pn_st_tensor *list, size_t n, pn_err *err)
{
    pn_map seen;
    pn_status st = PN_OK;
    pn_map_init(&seen, mem, PN_ACCT_MISC);
    for (size_t i = 0; i < n && !st; i++) {
        bool existed;
        if (!pn_map_put(&seen, list[i].name, strlen(list[i].name), 0, &existed))
            st = pn_fail_nomem(err, "the names of tensors", n * sizeof(pn_map_slot));
        else if (existed)
            st = pn_fail(err, PN_E_INVALID, "tensor '%s' comes twice", list[i].name);
    }
    pn_map_fini(&seen);
    return st;
}

static void stw_entry(pn_str *out, const pn_st_tensor *t)
{
    pn_json_key(out, t->name);
    pn_str_addz(out, "{\"dtype\":");
    pn_json_write_strz(out, pn_st_dtype_get(t->dtype)->name);
    pn_str_addz(out, ",\"shape\":[");
    for (uint32_t k = 0; k < t->rank; k++)
        pn_str_addf(out, "%s%" PRIu64, k ? "," : "", t->shape[k]);
    pn_str_addf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->offset, t->offset + t->bytes);
}

static void stw_meta(pn_str *out, const pn_st_meta *meta, size_t n)
{
    pn_str_addz(out, "\"__metadata__\":{");
    for (size_t i = 0; i < n; i++) {
        pn_json_item(out);
        pn_json_write_str(out, meta[i].key.data, meta[i].key.len);
        pn_str_addc(out, ':');
        pn_json_write_str(out, meta[i].value.data, meta[i].value.len);
    }
    pn_str_addc(out, '}');
}

/* The JSON and its padding behind 8 bytes for the length, which follow last. */
static pn_status stw_json(pn_str *out, const pn_st_tensor *list, size_t n, const pn_st_meta *meta, size_t n_meta,
                          pn_err *err)
{
    size_t start = out->len;
    pn_str_add(out, "\0\0\0\0\0\0\0\0", 8);
    pn_str_addc(out, '{');
    if (n_meta)
        stw_meta(out, meta, n_meta);
    for (size_t i = 0; i < n; i++)
        stw_entry(out, &list[i]);
    pn_str_addc(out, '}');
    while (!out->failed && (out->len - start) % 8 != 0)
        pn_str_addc(out, ' ');
    if (out->failed)
        return pn_fail_nomem(err, "a header", out->len);
    uint64_t len = out->len - start - 8;
    if (len > PN_ST_HEADER_MAX)
        return pn_fail(err, PN_E_INVALID, "the header would have %" PRIu64 " bytes, at most %" PRIu64 " are possible", len,
                       PN_ST_HEADER_MAX);
    for (int i = 0; i < 8; i++)
        out->data[start + (size_t)i] = (char)(len >> (8 * i) & 255);
    return PN_OK;
}

PN_INTERNAL pn_status pn_st_header(pn_str *out, pn_st_tensor *list, size_t n, const pn_st_meta *meta, size_t n_meta,
                                   pn_err *err)
{
    pn_status st = PN_OK;
    size_t start = out->len;
    for (size_t i = 0; i < n && !st; i++)
        st = stw_check(&list[i], err);
    if (st)
        return st;
    pn_st_sort(list, n, stw_after);
    st = stw_unique(out->mem, list, n, err);
    if (!st)
        st = stw_place(list, n, err);
    if (!st)
        st = stw_json(out, list, n, meta, n_meta, err);
    for (size_t i = 0; i < n && !st; i++)
        list[i].offset += out->len - start;
    return st;
}
