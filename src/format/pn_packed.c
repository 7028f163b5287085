/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Files are read through windows: a few KiB from where something was missed, so rows in their order cost one read for many.
 * They are on the stack, since whoever decodes may be short of memory.
 */
#include "format/pn_packed.h"

#include <inttypes.h>

#include "base/pn_err.h"
#include "format/pn_safetensors.h"
#include "num/pn_half.h"
#include "num/pn_quant.h"
#include "num/pn_strict.h"

enum { PACKED_CODES = 4096, PACKED_SCALES = 2048, PACKED_RUN = 256 };   /* bytes; elements decoded at once */

/* ------------------------------------------------------------------------------------------
 * Sizes
 * ------------------------------------------------------------------------------------------ */

static uint64_t packed_up(uint64_t n, uint64_t by) { return n / by + (n % by != 0); }
static uint64_t packed_n_scales(const pn_packed *p) { return packed_up(p->rows, p->block_rows) * packed_up(p->cols, p->block_cols); }
static size_t packed_scale_size(const pn_packed *p) { return pn_st_dtype_get(p->scale)->bits / 8; }
static uint64_t packed_row_bytes(const pn_packed *p) { return p->code == PN_PACKED_INT4 ? packed_up(p->cols, 8) * 4 : p->cols; }
static uint64_t packed_zero_bytes(const pn_packed *p) { return p->zeros ? packed_up(p->rows, 8) * packed_up(p->cols, p->block_cols) * 4 : 0; }

PN_INTERNAL uint64_t pn_packed_bytes(const pn_packed *p)
{
    return p->rows * packed_row_bytes(p) + packed_n_scales(p) * packed_scale_size(p) + packed_zero_bytes(p);
}

PN_INTERNAL const char *pn_packed_name(const pn_packed *p)
{
    static const char names[][8] = {"F8_E4M3", "F8_E5M2", "I4"};
    return names[p->code];
}

/* ------------------------------------------------------------------------------------------
 * Reading
 * ------------------------------------------------------------------------------------------ */

/* A piece of a file that is in memory. */
typedef struct packed_window {
    uint8_t *bytes;             /* [cap] */
    size_t cap, n;
    uint64_t at;
    uint32_t part;
} packed_window;

/* Somebody who decodes. */
typedef struct packed_reader {
    const pn_weights *w;
    const pn_packed *p;
    const char *name;
    pn_err *err;
    pn_status status;
    uint64_t scale_cols, n_scales, row_bytes, zero_bytes;   /* of a matrix; row_bytes are codes */
    size_t scale_size;
    packed_window code, scale, zero;
    float value[256];           /* of codes of eight bits */
    uint8_t code_room[PACKED_CODES], scale_room[PACKED_SCALES], zero_room[PACKED_SCALES];
} packed_reader;

static void packed_begin(packed_reader *r, const pn_weights *w, const pn_packed *p, const char *name, pn_err *err)
{
    r->w = w;
    r->p = p;
    r->name = name;
    r->err = err;
    r->status = PN_OK;
    r->scale_cols = packed_up(p->cols, p->block_cols);
    r->n_scales = packed_n_scales(p);
    r->scale_size = packed_scale_size(p);
    r->row_bytes = packed_row_bytes(p);
    r->zero_bytes = packed_zero_bytes(p);
    r->code = (packed_window){.bytes = r->code_room, .cap = sizeof r->code_room};
    r->scale = (packed_window){.bytes = r->scale_room, .cap = sizeof r->scale_room};
    r->zero = (packed_window){.bytes = r->zero_room, .cap = sizeof r->zero_room};
    for (int i = 0; i < 256; i++)
        r->value[i] = p->code == PN_PACKED_E5M2 ? pn_f32_from_e5m2((uint8_t)i) : pn_f32_from_e4m3((uint8_t)i);
}

/* n bytes at `at` of a tensor that ends at `end`; n is at most the window's.  Zeroes after a failure. */
static const uint8_t *packed_take(packed_reader *r, packed_window *win, uint32_t part, uint64_t at, size_t n, uint64_t end)
{
    if (part == win->part && at >= win->at && at - win->at + n <= win->n)
        return win->bytes + (at - win->at);
    size_t some = (size_t)PN_MIN(end - at, (uint64_t)win->cap);
    pn_status st = r->status ? r->status : pn_weights_read_part(r->w, part, at, win->bytes, some, r->err);
    if (st && !r->status) {
        pn_err_prefix(r->err, st, "tensor '%s'", r->name);
        r->status = st;
    }
    if (st)
        memset(win->bytes, 0, some);
    win->part = part;
    win->at = at;
    win->n = some;
    return win->bytes;
}

/* ------------------------------------------------------------------------------------------
 * Elements
 * ------------------------------------------------------------------------------------------ */

static float packed_scale_value(const pn_packed *p, const uint8_t *b)
{
    switch (p->scale) {
    case PN_ST_F32: return pn_f32_from_bits(pn_le32(b));
    case PN_ST_BF16: return pn_f32_from_bf16(pn_le16(b));
    case PN_ST_F16: return pn_f32_from_f16(pn_le16(b));
    default: return pn_f32_from_e8m0(*b);
    }
}

/* Scale i of a matrix. */
static float packed_scale(packed_reader *r, const pn_packed_place *at, uint64_t i)
{
    size_t size = r->scale_size;
    return packed_scale_value(r->p, packed_take(r, &r->scale, at->scale_part, at->scale + i * size, size, at->scale + r->n_scales * size));
}

/* Zero point of a row and a column of scales, as it is stored. */
static int packed_zero(packed_reader *r, const pn_packed_place *at, uint64_t row, uint64_t col)
{
    if (!r->p->zeros)
        return 8;
    uint64_t word = row / 8 * r->scale_cols + col;
    return (int)(pn_le32(packed_take(r, &r->zero, at->zero_part, at->zero + word * 4, 4, at->zero + r->zero_bytes)) >> row % 8 * 4 & 15);
}

/* Bytes of codes of a row, from byte `from`. */
static const uint8_t *packed_codes(packed_reader *r, const pn_packed_place *at, uint64_t row, uint64_t from, size_t n)
{
    return packed_take(r, &r->code, at->code_part, at->code + row * r->row_bytes + from, n, at->code + r->p->rows * r->row_bytes);
}

static bool packed_is_number(float f) { return (pn_f32_bits(f) & 0x7f800000u) != 0x7f800000u; }

/* k codes of eight bits, of one scale. */
static void packed_bytes(packed_reader *r, const pn_packed_place *at, uint64_t row, uint64_t col, size_t k, float scale, float *out)
{
    const uint8_t *code = packed_codes(r, at, row, col, k);
    for (size_t i = 0; i < k; i++) {
        float f = r->value[code[i]];
        if (!packed_is_number(f) && !r->status)
            r->status = pn_fail(r->err, PN_E_FORMAT, "tensor '%s': row %" PRIu64 ", column %" PRIu64 " is %s (0x%02x)", r->name, row, col + i,
                                f != f ? "NaN" : "infinite", (unsigned)code[i]);
        out[i] = pn_mulf(f, scale);
    }
}

/* k codes of four bits, of one scale and zero point. */
static void packed_nibbles(packed_reader *r, const pn_packed_place *at, uint64_t row, uint64_t col, size_t k, float scale, int zero, float *out)
{
    uint64_t from = col / 2;            /* the word's bytes are little-endian, so codes follow each other in nibbles */
    const uint8_t *b = packed_codes(r, at, row, from, (size_t)((col + k + 1) / 2 - from));
    for (size_t i = 0; i < k; i++) {
        uint64_t j = col % 2 + i;
        int code = b[j / 2] >> j % 2 * 4 & 15;
        out[i] = pn_mulf((float)(code - zero), scale);
    }
}

/* k elements of one row; k at most PACKED_RUN. */
static void packed_decode(packed_reader *r, const pn_packed_place *at, uint64_t row, uint64_t col, size_t k, float *out)
{
    const pn_packed *p = r->p;
    for (size_t done = 0; done < k;) {
        uint64_t block = (col + done) / p->block_cols;
        size_t some = (size_t)PN_MIN((uint64_t)(k - done), (block + 1) * p->block_cols - (col + done));
        float scale = packed_scale(r, at, row / p->block_rows * r->scale_cols + block);
        if (p->code == PN_PACKED_INT4)
            packed_nibbles(r, at, row, col + done, some, scale, packed_zero(r, at, row, block), out + done);
        else
            packed_bytes(r, at, row, col + done, some, scale, out + done);
        done += some;
    }
}

PN_INTERNAL pn_status pn_packed_read(const pn_weights *w, const pn_dir_tensor *d, uint64_t at, void *dst, size_t n, pn_err *err)
{
    const pn_packed *p = d->packed;
    packed_reader r;
    float run[PACKED_RUN];
    uint8_t *out = dst;
    packed_begin(&r, w, p, d->file->name, err);
    while (n && !r.status) {
        uint64_t e = at / sizeof *run, row = e / p->cols, col = e % p->cols;
        size_t skip = (size_t)(at % sizeof *run), k = (size_t)PN_MIN(p->cols - col, (uint64_t)PACKED_RUN);
        k = PN_MIN(k, (n + skip + sizeof *run - 1) / sizeof *run);
        packed_decode(&r, &p->places[row / p->rows], row % p->rows, col, k, run);
        size_t some = PN_MIN(n, k * sizeof *run - skip);
        memcpy(out, (const uint8_t *)run + skip, some);
        out += some;
        at += some;
        n -= some;
    }
    return r.status;
}

/* ------------------------------------------------------------------------------------------
 * Q4_0, Q4_1
 * ------------------------------------------------------------------------------------------ */

/* 32 codes in their order become a block: there element j and j + 16 share a byte. */
static void packed_block(const uint8_t *code, uint8_t *out)
{
    for (int j = 0; j < 16; j++) {
        int low = code[j / 2] >> j % 2 * 4 & 15, high = code[8 + j / 2] >> j % 2 * 4 & 15;
        out[j] = (uint8_t)(low | high << 4);
    }
}

PN_INTERNAL pn_status pn_packed_move(const pn_weights *w, const pn_dir_tensor *d, uint64_t row, uint64_t n, uint8_t *dst, pn_err *err)
{
    const pn_packed *p = d->packed;
    size_t head = p->zeros ? 4 : 2;
    packed_reader r;
    packed_begin(&r, w, p, d->file->name, err);
    for (uint64_t end = row + n; row < end && !r.status; row++) {
        const pn_packed_place *at = &p->places[row / p->rows];
        uint64_t in = row % p->rows;
        for (uint64_t col = 0; col < p->cols; col += 32, dst += head + 16) {
            uint64_t block = col / p->block_cols;
            float scale = packed_scale(&r, at, in / p->block_rows * r.scale_cols + block);
            pn_put16(dst, pn_f16_from_f32(scale));
            if (p->zeros)
                pn_put16(dst + 2, pn_f16_from_f32(pn_mulf((float)-packed_zero(&r, at, in, block), scale)));
            packed_block(packed_codes(&r, at, in, col / 2, 16), dst + head);
        }
    }
    return r.status;
}

/* ------------------------------------------------------------------------------------------
 * Scales
 * ------------------------------------------------------------------------------------------ */

/* What all scales have in common. */
typedef struct packed_facts {
    float most;                 /* magnitude */
    bool f16, four_bits;        /* f16 has them; at most four bits of significand and far from the ends of f32 */
} packed_facts;

static void packed_note(packed_facts *f, float s)
{
    float a = s < 0 ? -s : s;
    f->most = PN_MAX(f->most, a);
    f->f16 = f->f16 && pn_f32_from_f16(pn_f16_from_f32(s)) == s;
    f->four_bits = f->four_bits && (a == 0 || ((pn_f32_bits(a) & 0xfffff) == 0 && a >= 0x1p-100f && a <= 0x1p+100f));
}

/* The largest magnitude of a code. */
static float packed_largest(const pn_packed *p) { return p->code == PN_PACKED_E4M3 ? 448.0f : p->code == PN_PACKED_E5M2 ? 57344.0f : p->zeros ? 15.0f : 8.0f; }

static uint32_t packed_type(pn_packed *p, const packed_facts *f)
{
    double most = (double)f->most * (double)packed_largest(p);
    p->repacks = p->code == PN_PACKED_INT4 && f->f16 && most <= 65504 && p->rows > 1 && p->cols % 32 == 0 && p->block_cols % 32 == 0;
    if (p->repacks)
        return p->zeros ? PN_DTYPE_Q4_1 : PN_DTYPE_Q4_0;
    if (p->rows == 1)
        return PN_DTYPE_F32;
    if (f->four_bits)
        return PN_DTYPE_BF16;
    return most >= 0x1p-12 && most <= 65504 ? PN_DTYPE_F16 : PN_DTYPE_F32;
}

PN_INTERNAL pn_status pn_packed_survey(const pn_weights *w, pn_packed *p, const pn_packed_place *places, uint64_t n, const char *name,
                                       uint32_t *dtype, pn_err *err)
{
    packed_facts f = {.f16 = true, .four_bits = true};
    packed_reader r;
    packed_begin(&r, w, p, name, err);
    for (uint64_t m = 0; m < n && !r.status; m++)
        for (uint64_t i = 0; i < r.n_scales && !r.status; i++) {
            float s = packed_scale(&r, &places[m], i);
            if (!packed_is_number(s) && !r.status)
                return pn_fail(err, PN_E_FORMAT, "tensor '%s': scale %" PRIu64 " is %s", name, i, s != s ? "NaN" : "infinite");
            if (!packed_is_number(pn_mulf(s, packed_largest(p))))
                return pn_fail(err, PN_E_FORMAT, "tensor '%s': scale %" PRIu64 " is %g, products with codes up to %g overflow", name, i, (double)s, (double)packed_largest(p));
            packed_note(&f, s);
        }
    *dtype = packed_type(p, &f);
    return r.status;
}
