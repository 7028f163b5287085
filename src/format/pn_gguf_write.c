/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_gguf_write.c - writing a GGUF version 3 header.
 *
 * The header is built in memory, because its length decides where the data begin; the data, which
 * may be larger than memory, are streamed by the caller afterwards.  Tensors get their offsets in
 * the order they are put, without gaps other than padding to 32: the one form every reader takes.
 * Appends never fail visibly; the strings remember, and pn_gguf_header() tells.
 */
#include "format/pn_gguf.h"

PN_INTERNAL void pn_gguf_writer_init(pn_gguf_writer *w, pn_mem *mem)
{
    memset(w, 0, sizeof *w);
    pn_str_init(&w->kv, mem, PN_ACCT_MISC);
    pn_str_init(&w->table, mem, PN_ACCT_MISC);
}

PN_INTERNAL void pn_gguf_writer_fini(pn_gguf_writer *w)
{
    pn_str_fini(&w->kv);
    pn_str_fini(&w->table);
}

static void ggufw_u32(pn_str *s, uint32_t v)
{
    uint8_t b[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    pn_str_add(s, b, sizeof b);
}

static void ggufw_u64(pn_str *s, uint64_t v)
{
    ggufw_u32(s, (uint32_t)v);
    ggufw_u32(s, (uint32_t)(v >> 32));
}

static void ggufw_bytes(pn_str *s, const void *bytes, size_t n)
{
    ggufw_u64(s, n);
    pn_str_add(s, bytes, n);
}

/* Key and type of the next entry. */
static void ggufw_entry(pn_gguf_writer *w, const char *key, size_t len, uint32_t type)
{
    ggufw_bytes(&w->kv, key, len);
    ggufw_u32(&w->kv, type);
    w->n_kv++;
}

PN_INTERNAL void pn_gguf_put_u32(pn_gguf_writer *w, const char *key, uint32_t v)
{
    ggufw_entry(w, key, strlen(key), PN_META_U32);
    ggufw_u32(&w->kv, v);
}

PN_INTERNAL void pn_gguf_put_f32(pn_gguf_writer *w, const char *key, float v)
{
    ggufw_entry(w, key, strlen(key), PN_META_F32);
    ggufw_u32(&w->kv, pn_f32_bits(v));
}

PN_INTERNAL void pn_gguf_put_bool(pn_gguf_writer *w, const char *key, bool v)
{
    ggufw_entry(w, key, strlen(key), PN_META_BOOL);
    pn_str_addc(&w->kv, v ? 1 : 0);
}

PN_INTERNAL void pn_gguf_put_str(pn_gguf_writer *w, const char *key, const char *s, size_t len)
{
    ggufw_entry(w, key, strlen(key), PN_META_STRING);
    ggufw_bytes(&w->kv, s, len);
}

static void ggufw_array(pn_gguf_writer *w, const char *key, size_t key_len, uint8_t elem, uint64_t count)
{
    ggufw_entry(w, key, key_len, PN_META_ARRAY);
    ggufw_u32(&w->kv, elem);
    ggufw_u64(&w->kv, count);
}

PN_INTERNAL void pn_gguf_put_array(pn_gguf_writer *w, const char *key, uint8_t elem, uint64_t count,
                                   const void *data, size_t bytes)
{
    PN_ASSERT(elem != PN_META_STRING && elem != PN_META_ARRAY);
    ggufw_array(w, key, strlen(key), elem, count);
    pn_str_add(&w->kv, data, bytes);
}

PN_INTERNAL void pn_gguf_put_str_array(pn_gguf_writer *w, const char *key, uint64_t count, const pn_bytes *items)
{
    ggufw_array(w, key, strlen(key), PN_META_STRING, count);
    for (uint64_t i = 0; i < count; i++)
        ggufw_bytes(&w->kv, items[i].data, items[i].len);
}

PN_INTERNAL void pn_gguf_put_kv(pn_gguf_writer *w, const pn_gguf_kv *kv)
{
    static const char alignment[] = "general.alignment";
    if (kv->key.len == sizeof alignment - 1 && memcmp(kv->key.data, alignment, kv->key.len) == 0)
        return;
    if (kv->type == PN_META_ARRAY)
        ggufw_array(w, kv->key.data, kv->key.len, kv->elem, kv->count);
    else
        ggufw_entry(w, kv->key.data, kv->key.len, kv->type);
    pn_str_add(&w->kv, kv->data, (size_t)kv->data_len);
}

PN_INTERNAL void pn_gguf_put_tensor(pn_gguf_writer *w, const char *name, uint32_t dtype, uint32_t n_dims,
                                    const uint64_t *ne, uint64_t bytes)
{
    PN_ASSERT(n_dims <= 4);
    while (n_dims > 1 && ne[n_dims - 1] == 1)
        n_dims--;
    ggufw_bytes(&w->table, name, strlen(name));
    ggufw_u32(&w->table, n_dims);
    for (uint32_t k = 0; k < n_dims; k++)
        ggufw_u64(&w->table, ne[k]);
    ggufw_u32(&w->table, dtype);
    ggufw_u64(&w->table, w->data_bytes);
    w->n_tensors++;
    if (bytes > INT64_MAX - 31 - w->data_bytes)         /* no file is that large: the same answer */
        w->table.failed = true;
    else
        w->data_bytes += bytes + pn_gguf_pad(bytes);
}

PN_INTERNAL bool pn_gguf_header(const pn_gguf_writer *w, pn_str *out)
{
    static const char zeroes[32];
    uint64_t bytes = 24 + (uint64_t)w->kv.len + w->table.len;
    if (w->kv.failed || w->table.failed)
        return false;
    pn_str_add(out, "GGUF", 4);
    ggufw_u32(out, 3);
    ggufw_u64(out, w->n_tensors);
    ggufw_u64(out, w->n_kv);
    pn_str_add(out, w->kv.data, w->kv.len);
    pn_str_add(out, w->table.data, w->table.len);
    pn_str_add(out, zeroes, (size_t)pn_gguf_pad(bytes));
    return !out->failed;
}
