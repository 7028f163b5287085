/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pth_image.h - files of torch, made by hand.
 */
#ifndef PN_PTH_IMAGE_H
#define PN_PTH_IMAGE_H

#include "st_image.h"

/* --- making archives ------------------------------------------------------------------------------- */

static inline void put16(img *m, unsigned v)
{
    put8(m, v & 255);
    put8(m, v >> 8 & 255);
}

typedef struct zip {
    img file, dir;
    unsigned n;
} zip;

/* A stored member.  wide: its numbers stand in a zip64 field.  pad: bytes of another extra field in the local header. */
static inline void zip_put(zip *z, const char *name, const void *bytes, size_t n, bool wide, unsigned pad)
{
    size_t at = z->file.n, n_name = strlen(name);
    put(&z->file, "PK\3\4\0\0\x08\x08\0\0\0\0\0\0", 14);
    zeros(&z->file, 12);                        /* as torch: crc and sizes follow the data */
    put16(&z->file, (unsigned)n_name);
    put16(&z->file, pad);
    put(&z->file, name, n_name);
    zeros(&z->file, pad);
    put(&z->file, bytes, n);
    put(&z->file, "PK\7\x08", 4);
    zeros(&z->file, 12);
    put(&z->dir, "PK\1\2\0\0\0\0\x08\x08\0\0\0\0\0\0", 16);
    put32(&z->dir, 0);
    put32(&z->dir, wide ? 0xFFFFFFFF : (uint32_t)n);
    put32(&z->dir, wide ? 0xFFFFFFFF : (uint32_t)n);
    put16(&z->dir, (unsigned)n_name);
    put16(&z->dir, wide ? 4 + 6 + 4 + 24 : 0);
    zeros(&z->dir, 10);
    put32(&z->dir, wide ? 0xFFFFFFFF : (uint32_t)at);
    put(&z->dir, name, n_name);
    if (wide) {
        put16(&z->dir, 0x4246);
        put16(&z->dir, 6);
        zeros(&z->dir, 6);
        put16(&z->dir, 1);
        put16(&z->dir, 24);
        put64(&z->dir, n);
        put64(&z->dir, n);
        put64(&z->dir, at);
    }
    z->n++;
}

/* saturated: bits 0, 1, 2: count, size, offset of the directory stand in the zip64 record. */
static inline img zip_end(zip *z, unsigned saturated, const char *comment)
{
    size_t at = z->file.n;
    put(&z->file, z->dir.b, z->dir.n);
    if (saturated) {
        size_t record = z->file.n;
        put(&z->file, "PK\6\6", 4);
        put64(&z->file, 44);
        zeros(&z->file, 12);
        put64(&z->file, z->n);
        put64(&z->file, z->n);
        put64(&z->file, z->dir.n);
        put64(&z->file, at);
        put(&z->file, "PK\6\7\0\0\0\0", 8);
        put64(&z->file, record);
        put32(&z->file, 1);
    }
    put(&z->file, "PK\5\6\0\0\0\0", 8);
    put16(&z->file, saturated & 1 ? 0xFFFF : z->n);
    put16(&z->file, saturated & 1 ? 0xFFFF : z->n);
    put32(&z->file, saturated & 2 ? 0xFFFFFFFF : (uint32_t)z->dir.n);
    put32(&z->file, saturated & 4 ? 0xFFFFFFFF : (uint32_t)at);
    put16(&z->file, (unsigned)strlen(comment));
    put(&z->file, comment, strlen(comment));
    img_free(&z->dir);
    return z->file;
}

/* --- making pickles -------------------------------------------------------------------------------- */

static inline void pk_str(img *m, const char *s)
{
    put8(m, 'X');
    put32(m, (uint32_t)strlen(s));
    put(m, s, strlen(s));
}

static inline void pk_int(img *m, int64_t v)
{
    put(m, "\x8a\x08", 2);
    put64(m, (uint64_t)v);
}

static inline void pk_ints(img *m, const int64_t *v, uint32_t n)
{
    put8(m, '(');
    for (uint32_t i = 0; i < n; i++)
        pk_int(m, v[i]);
    put8(m, 't');
}

static inline void pk_storage(img *m, const char *class, const char *key, int64_t count)
{
    put8(m, '(');
    pk_str(m, "storage");
    put8(m, 'c');
    put(m, class, strlen(class));
    put8(m, '\n');
    pk_str(m, key);
    pk_str(m, "cpu");
    pk_int(m, count);
    put(m, "tQ", 2);
}

/* name: _rebuild_tensor_v2(storage 0 of `count` floats, first, shape, stride, False, None) */
static inline void pk_tensor(img *m, const char *name, int64_t count, int64_t first, const int64_t *shape, const int64_t *stride, uint32_t rank)
{
    pk_str(m, name);
    put(m, "ctorch._utils\n_rebuild_tensor_v2\n(", 34);
    pk_storage(m, "torch\nFloatStorage", "0", count);
    pk_int(m, first);
    pk_ints(m, shape, rank);
    pk_ints(m, stride, rank);
    put(m, "\x89NtR", 4);
}

static inline img pk_begin(void)
{
    img m = {0};
    put(&m, "\x80\x02}(", 4);
    return m;
}

/* An archive of the pickle and storage 0; frees the pickle. */
static inline img pth_of(img pickle, const void *storage, size_t n, const char *order)
{
    zip z = {{0}, {0}, 0};
    put(&pickle, "u.", 2);
    zip_put(&z, "archive/data.pkl", pickle.b, pickle.n, false, 17);
    if (order)
        zip_put(&z, "archive/byteorder", order, strlen(order), false, 0);
    zip_put(&z, "archive/data/0", storage, n, false, 31);
    zip_put(&z, "archive/version", "3\n", 2, false, 0);
    img_free(&pickle);
    return zip_end(&z, 0, "");
}

#endif /* PN_PTH_IMAGE_H */
