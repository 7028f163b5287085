/* SPDX-License-Identifier: AGPL-3.0-only */
#include "format/pn_hf_quant.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/pn_err.h"

PN_INTERNAL const char *pn_hf_quant_code_end(const pn_hf_quant *q) { return q->scheme == PN_HF_INT4 ? "_packed" : NULL; }
PN_INTERNAL const char *pn_hf_quant_scale_end(const pn_hf_quant *q) { return q->scheme == PN_HF_FP8 ? "_scale_inv" : "_scale"; }

PN_INTERNAL bool pn_hf_quant_is_code(const pn_hf_quant *q, uint32_t st_dtype)
{
    return (q->scheme == PN_HF_FP8 || q->scheme == PN_HF_FP8_ROWS) && (st_dtype == PN_ST_F8_E4M3 || st_dtype == PN_ST_F8_E5M2);
}

PN_INTERNAL bool pn_hf_quant_skips(const pn_hf_quant *q, const char *name)
{
    static const char *const ends[] = {".input_scale", ".input_zero_point", ".output_scale", ".activation_scale", ".q_scale", ".k_scale", ".v_scale"};
    size_t n = strlen(name);
    for (size_t i = 0; i < PN_COUNT_OF(ends) && q->scheme; i++)
        if (n > strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

static uint64_t hfq_up(uint64_t n, uint64_t by) { return n / by + (n % by != 0); }

/* Two dimensions of a tensor of at most two: a vector is a column. */
static bool hfq_is(const pn_st_tensor *t, uint64_t rows, uint64_t cols)
{
    if (t->rank > 2)
        return false;
    return t->rank == 2 ? t->shape[0] == rows && t->shape[1] == cols : t->n_elems == rows && cols == 1;
}

/* "[a, b]" of whatever has few dimensions. */
typedef struct hfq_shown { char s[80]; } hfq_shown;

static hfq_shown hfq_show(const pn_st_tensor *t)
{
    hfq_shown out;
    if (t->rank == 0)
        snprintf(out.s, sizeof out.s, "[]");
    else if (t->rank == 1)
        snprintf(out.s, sizeof out.s, "[%" PRIu64 "]", t->shape[0]);
    else
        snprintf(out.s, sizeof out.s, "[%" PRIu64 ", %" PRIu64 "%s]", t->shape[0], t->shape[1], t->rank > 2 ? ", ..." : "");
    return out;
}

static pn_status hfq_shape_fail(const pn_st_tensor *t, uint64_t rows, uint64_t cols, const char *more, pn_err *err)
{
    return pn_fail(err, PN_E_FORMAT, "tensor '%s' has shape %s, expected [%" PRIu64 ", %" PRIu64 "]%s", pn_show(t->name, strlen(t->name)).s, hfq_show(t).s,
                   rows, cols, more);
}

static pn_status hfq_type_fail(const pn_st_tensor *t, const char *expected, pn_err *err)
{
    return pn_fail(err, PN_E_UNSUPPORTED, "tensor '%s' has type %s, expected %s", pn_show(t->name, strlen(t->name)).s, pn_st_dtype_get(t->dtype)->name, expected);
}

static pn_status hfq_scale_type(const pn_hf_quant *q, const pn_st_tensor *t, pn_err *err)
{
    switch (t->dtype) {
    case PN_ST_F32: case PN_ST_BF16: case PN_ST_F16: case PN_ST_F8_E8M0: return PN_OK;
    case PN_ST_U8:
        if (q->ue8m0)
            return PN_OK;
        return hfq_type_fail(t, "F32, BF16, F16 or F8_E8M0 (U8 with scale_fmt \"ue8m0\")", err);
    default: return hfq_type_fail(t, q->ue8m0 ? "F32, BF16, F16, F8_E8M0 or U8" : "F32, BF16, F16 or F8_E8M0", err);
    }
}

/* One for all, or one a block: p->block_*. */
static pn_status hfq_scale_shape(const pn_hf_quant *q, const pn_st_tensor *t, pn_packed *p, pn_err *err)
{
    bool blocks = q->scheme == PN_HF_FP8 && q->block_rows;
    p->block_rows = blocks ? PN_MIN((uint64_t)q->block_rows, p->rows) : q->scheme == PN_HF_FP8 ? p->rows : 1;
    p->block_cols = q->block_cols ? PN_MIN((uint64_t)q->block_cols, p->cols) : p->cols;
    if (q->scheme == PN_HF_INT4 && p->cols % p->block_cols)
        return pn_fail(err, PN_E_UNSUPPORTED, "tensor '%s': rows of %" PRIu64 " elements are no whole groups of %" PRIu64,
                       pn_show(t->name, strlen(t->name)).s, p->cols, p->block_cols);
    if (q->scheme == PN_HF_FP8_ROWS && t->n_elems == 1 && t->rank < 3)
        p->block_rows = p->rows;
    if (!blocks && q->scheme == PN_HF_FP8)
        return t->n_elems == 1 && t->rank < 3 ? PN_OK : hfq_shape_fail(t, 1, 1, ", for there is no weight_block_size", err);
    uint64_t rows = hfq_up(p->rows, p->block_rows), cols = hfq_up(p->cols, p->block_cols);
    return hfq_is(t, rows, cols) || (t->n_elems == 1 && rows * cols == 1 && t->rank < 3) ? PN_OK : hfq_shape_fail(t, rows, cols, "", err);
}

static pn_status hfq_zero(const pn_st_tensor *t, const pn_packed *p, pn_err *err)
{
    uint64_t rows = hfq_up(p->rows, 8), cols = hfq_up(p->cols, p->block_cols);
    if (t->dtype != PN_ST_I32)
        return hfq_type_fail(t, "I32", err);
    return hfq_is(t, rows, cols) ? PN_OK : hfq_shape_fail(t, rows, cols, "", err);
}

/* What the codes unpack to is stored, too. */
static pn_status hfq_unpacked(const pn_weights *w, const pn_hf_parts *x, uint64_t rows, uint64_t cols, pn_err *err)
{
    const pn_st_tensor *t = x->shape;
    uint8_t raw[16];
    if (t->dtype != PN_ST_I64 && t->dtype != PN_ST_I32)
        return hfq_type_fail(t, "I64", err);
    if (t->n_elems != 2)
        return pn_fail(err, PN_E_FORMAT, "tensor '%s' has %" PRIu64 " elements, expected 2", pn_show(t->name, strlen(t->name)).s, t->n_elems);
    pn_status st = pn_weights_read_part(w, x->shape_part, t->offset, raw, (size_t)t->bytes, err);
    if (st)
        return st;
    bool wide = t->dtype == PN_ST_I64;
    uint64_t a = wide ? pn_le64(raw) : pn_le32(raw), b = wide ? pn_le64(raw + 8) : pn_le32(raw + 4);
    return a == rows && b == cols ? PN_OK : pn_fail(err, PN_E_FORMAT, "tensor '%s' says %" PRIu64 " x %" PRIu64 ", expected %" PRIu64 " x %" PRIu64,
                                                    pn_show(t->name, strlen(t->name)).s, a, b, rows, cols);
}

PN_INTERNAL pn_status pn_hf_quant_bind(const pn_weights *w, const pn_hf_quant *q, const pn_hf_parts *x, uint64_t rows, uint64_t cols, pn_packed *p,
                                       pn_packed_place *at, pn_err *err)
{
    bool int4 = q->scheme == PN_HF_INT4;
    uint64_t wide = int4 ? hfq_up(cols, 8) : cols;
    *p = (pn_packed){.code = int4 ? PN_PACKED_INT4 : x->code->dtype == PN_ST_F8_E5M2 ? PN_PACKED_E5M2 : PN_PACKED_E4M3, .scale = (uint8_t)x->scale->dtype,
                     .zeros = x->zero != NULL, .rows = rows, .cols = cols};
    if (int4 && x->code->dtype != PN_ST_I32)
        return hfq_type_fail(x->code, "I32", err);
    if (!hfq_is(x->code, rows, wide))
        return hfq_shape_fail(x->code, rows, wide, int4 ? ", eight codes a word" : "", err);
    pn_status st = hfq_scale_type(q, x->scale, err);
    if (!st)
        st = hfq_scale_shape(q, x->scale, p, err);
    if (!st && x->zero)
        st = hfq_zero(x->zero, p, err);
    if (!st && x->shape)
        st = hfq_unpacked(w, x, rows, cols, err);
    *at = (pn_packed_place){.code = x->code->offset, .code_part = x->code_part, .scale = x->scale->offset, .scale_part = x->scale_part,
                            .zero = x->zero ? x->zero->offset : 0, .zero_part = x->zero_part};
    return st;
}
