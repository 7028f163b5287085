/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_hf_bind.c - which tensor of a folder is which of ours.
 *
 * The configuration says what there has to be; each is looked for by its names and compared with the shape it has to have.
 * One of ours may be many of theirs: experts, and the codes and scales of a quantised matrix.  What is left over in the end
 * is on a list of those that carry nothing, or too much.
 */
#include "format/pn_hf_dir_impl.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/pn_err.h"
#include "num/pn_dtype.h"

/* ------------------------------------------------------------------------------------------
 * Names and shapes
 * ------------------------------------------------------------------------------------------ */

/* Eight dimensions of 19 digits. */
typedef struct hfb_shape { char s[PN_ST_MAX_RANK * 21 + 3]; } hfb_shape;

static hfb_shape hfb_show_shape(const pn_st_tensor *t)
{
    hfb_shape out = {"["};
    size_t n = 1;
    for (uint32_t k = 0; k < t->rank; k++)
        n += (size_t)snprintf(out.s + n, sizeof out.s - n, "%s%" PRIu64, k ? ", " : "", t->shape[k]);
    memcpy(out.s + n, "]", 2);
    return out;
}

/* A tensor by one of its names, with `end` behind it. */
static hfd_ref *hfb_find_end(hfd *h, const char *const names[3], const char *end, uint32_t il, uint32_t expert)
{
    char name[PN_HF_NAME_MAX + 16];
    for (int i = 0; names[i]; i++) {
        pn_hf_spell(name, PN_HF_NAME_MAX, names[i], il, expert);
        size_t n = strlen(name);
        memcpy(name + n, end, strlen(end) + 1);
        uint32_t *at = pn_map_find(&h->names, name, n + strlen(end));
        if (at)
            return &h->refs[*at];
    }
    return NULL;
}

static hfd_ref *hfb_find(hfd *h, const char *const names[3], uint32_t il, uint32_t expert) { return hfb_find_end(h, names, "", il, expert); }

static const char *hfb_file_name(const hfd *h, uint32_t part)
{
    const char *path = h->w->parts[part].path;
    return path + strlen(h->d->folder);
}

/* [n][rows][cols], where dimensions of 1 count for nothing, and values that are weights. */
static pn_status hfb_check(hfd *h, const hfd_ref *r, const pn_hf_want *want, uint64_t n, uint64_t rows)
{
    const uint64_t dims[] = {n, rows, want->cols};
    const pn_st_tensor *t = r->t;
    uint32_t a = 0, b = 0, dtype = pn_st_dtype_get(t->dtype)->dtype;
    while (a < t->rank || b < 3) {
        if (a < t->rank && t->shape[a] == 1)
            a++;
        else if (b < 3 && dims[b] <= 1)
            b++;
        else if (a < t->rank && b < 3 && t->shape[a] == dims[b])
            a++, b++;
        else
            return pn_fail(h->err, PN_E_FORMAT, "%s: tensor '%s' has shape %s, expected %s%" PRIu64 "%s%" PRIu64 " (%s%s%s)", hfb_file_name(h, r->part),
                           pn_show(t->name, strlen(t->name)).s, hfb_show_shape(t).s, n > 1 ? "experts of " : "", rows ? rows : want->cols, rows ? " x " : "",
                           rows ? want->cols : 1, rows ? want->rows_are : "", rows ? ", " : "", want->cols_are);
    }
    if (dtype != PN_DTYPE_F32 && dtype != PN_DTYPE_F16 && dtype != PN_DTYPE_BF16 && t->dtype != PN_ST_F64)
        return pn_fail(h->err, PN_E_UNSUPPORTED, "%s: tensor '%s' has type %s, expected F32, F16, BF16 or F64", hfb_file_name(h, r->part),
                       pn_show(t->name, strlen(t->name)).s, pn_st_dtype_get(t->dtype)->name);
    return PN_OK;
}

static pn_status hfb_missing(hfd *h, const pn_hf_want *want, uint32_t il, uint32_t expert)
{
    char name[PN_HF_NAME_MAX];
    pn_hf_spell(name, sizeof name, want->names[0], il, expert);
    return pn_fail(h->err, PN_E_FORMAT, "tensor '%s%s' is missing (num_hidden_layers is %" PRIu32 "%s)", strcmp(name, "lm_head.weight") ? "model." : "",
                   name, h->c.n_layers, want->how == PN_HF_STACK ? ", or there are fewer experts" : "");
}

/* A new tensor of ours, of n matrices or a vector, of elements that have so many bytes. */
static struct pn_hf_tensor *hfb_new_tensor(hfd *h, const pn_hf_want *want, uint32_t il, const hfd_ref *r, uint64_t n, uint32_t dtype, uint64_t size)
{
    pn_hf_dir *d = h->d;
    if (!pn_mem_grow(h->mem, PN_ACCT_MISC, (void **)&d->tensors, &d->cap, d->n + 1, sizeof *d->tensors)) {
        pn_fail_nomem(h->err, "the directory of tensors", (d->n + 1) * sizeof *d->tensors);
        return NULL;
    }
    struct pn_hf_tensor *x = &d->tensors[d->n++];
    uint64_t rows = PN_MAX(want->rows, (uint64_t)1);
    memset(x, 0, sizeof *x);
    pn_hf_spell(x->name, sizeof x->name, want->ours, il, 0);
    x->part = r->part;
    x->t = (pn_gguf_tensor){.dtype = dtype, .n_dims = want->how == PN_HF_STACK ? 3 : want->rows ? 2 : 1,
                            .ne = {want->cols, rows, n, 1}, .offset = r->t->offset, .row_bytes = want->cols * size};
    x->t.n_elems = want->cols * rows * n;           /* at most 2^20 x 2^20 x 2^16 */
    x->t.bytes = x->t.n_elems * size;
    return x;
}

/* As `r` is in the file. */
static struct pn_hf_tensor *hfb_new(hfd *h, const pn_hf_want *want, uint32_t il, const hfd_ref *r, uint64_t n)
{
    const pn_st_dtype_info *info = pn_st_dtype_get(r->t->dtype);
    struct pn_hf_tensor *x = hfb_new_tensor(h, want, il, r, n, info->dtype, info->bits / 8);
    if (!x)
        return NULL;
    x->f64 = r->t->dtype == PN_ST_F64;
    x->plus_one = want->how == PN_HF_NORM && h->c.post_norms;
    x->gather = want->how == PN_HF_STACK ? NULL : r->gather;
    x->why = x->f64 || x->plus_one ? HFD_TO_F32 : x->gather ? HFD_COPY : HFD_IN_PLACE;
    if (x->why == HFD_IN_PLACE && want->rows && x->t.offset % (info->bits / 8))
        x->why = HFD_COPY;              /* vectors are read, wherever they begin */
    return x;
}

/* ------------------------------------------------------------------------------------------
 * Quantised matrices
 * ------------------------------------------------------------------------------------------ */

/* The codes of such a matrix, or NULL: it is not quantised. */
static hfd_ref *hfb_codes(hfd *h, const pn_hf_want *want, uint32_t il, uint32_t expert)
{
    const char *end = pn_hf_quant_code_end(&h->c.quant);
    hfd_ref *r = want->rows && h->c.quant.scheme ? hfb_find_end(h, want->names, end ? end : "", il, expert) : NULL;
    return r && (end || pn_hf_quant_is_code(&h->c.quant, r->t->dtype)) ? r : NULL;
}

/* A part of it: *t and *part, when it is there. */
static pn_status hfb_part(hfd *h, const pn_hf_want *want, const char *end, uint32_t il, uint32_t expert, const pn_st_tensor **t, uint32_t *part)
{
    hfd_ref *r = hfb_find_end(h, want->names, end, il, expert);
    if (!r)
        return PN_OK;
    r->used = true;
    *t = r->t;
    *part = r->part;
    return r->gather ? pn_fail(h->err, PN_E_UNSUPPORTED, "%s: the elements of '%s' do not follow each other", hfb_file_name(h, r->part),
                               pn_show(r->t->name, strlen(r->t->name)).s) : PN_OK;
}

/* The parts of one matrix, all there. */
static pn_status hfb_parts(hfd *h, const pn_hf_want *want, uint32_t il, uint32_t expert, pn_hf_parts *x)
{
    const pn_hf_quant *q = &h->c.quant;
    const char *code = pn_hf_quant_code_end(q), *ends[] = {code ? code : "", pn_hf_quant_scale_end(q), "_shape", "_zero_point", "_g_idx"};
    const pn_st_tensor *order = NULL;
    uint32_t order_part;
    *x = (pn_hf_parts){.code = NULL};
    pn_status st = hfb_part(h, want, ends[0], il, expert, &x->code, &x->code_part);
    if (!st)
        st = hfb_part(h, want, ends[1], il, expert, &x->scale, &x->scale_part);
    if (!st && code)
        st = hfb_part(h, want, ends[2], il, expert, &x->shape, &x->shape_part);
    if (!st && q->zeros)
        st = hfb_part(h, want, ends[3], il, expert, &x->zero, &x->zero_part);
    if (!st && code)
        st = hfb_part(h, want, ends[4], il, expert, &order, &order_part);
    if (st)
        return st;
    if (order)
        return pn_fail(h->err, PN_E_UNSUPPORTED, "tensor '%s' gives columns a group each, in an order of its own: expected none", pn_show(order->name, strlen(order->name)).s);
    const char *end = !x->scale ? ends[1] : code && !x->shape ? ends[2] : q->zeros && !x->zero ? ends[3] : NULL;
    if (!end)
        return PN_OK;
    size_t n = strlen(x->code->name) - strlen(ends[0]);
    return pn_fail(h->err, PN_E_FORMAT, "tensor '%s%s' is missing, without which '%s' means nothing", pn_show(x->code->name, n).s, end,
                   pn_show(x->code->name, strlen(x->code->name)).s);
}

static bool hfb_same_form(const pn_packed *a, const pn_packed *b)
{
    return a->code == b->code && a->scale == b->scale && a->zeros == b->zeros && a->block_rows == b->block_rows && a->block_cols == b->block_cols;
}

/* Matrix e of the n that become one tensor of ours, of the form of the first. */
static pn_status hfb_place(hfd *h, const pn_hf_want *want, uint32_t il, uint32_t e, pn_packed *form)
{
    pn_hf_dir *d = h->d;
    pn_hf_parts parts;
    pn_packed p;
    const hfd_ref *plain = hfb_codes(h, want, il, e) ? NULL : hfb_find(h, want->names, il, e);
    if (plain)
        return pn_fail(h->err, PN_E_UNSUPPORTED, "%s: tensor '%s' is not quantised, but that of expert 0 is", hfb_file_name(h, plain->part),
                       pn_show(plain->t->name, strlen(plain->t->name)).s);
    if (!hfb_codes(h, want, il, e))
        return hfb_missing(h, want, il, e);
    if (!pn_mem_grow(h->mem, PN_ACCT_MISC, (void **)&d->places, &d->cap_places, d->n_places + 1, sizeof *d->places))
        return pn_fail_nomem(h->err, "the places of quantised matrices", (d->n_places + 1) * sizeof *d->places);
    pn_status st = hfb_parts(h, want, il, e, &parts);
    if (!st)
        st = pn_hf_quant_bind(h->w, &h->c.quant, &parts, want->rows, want->cols, &p, &d->places[d->n_places], h->err);
    if (!st && e && !hfb_same_form(form, &p))
        st = pn_fail(h->err, PN_E_UNSUPPORTED, "tensor '%s' is not quantised as that of expert 0", pn_show(parts.code->name, strlen(parts.code->name)).s);
    if (st)
        return pn_err_prefix(h->err, st, "%s", hfb_file_name(h, hfb_codes(h, want, il, e)->part));
    d->n_places++;
    if (!e)
        *form = p;
    return PN_OK;
}

/* n matrices, of which the first has the codes r: one matrix, or experts. */
static pn_status hfb_bind_packed(hfd *h, const pn_hf_want *want, uint32_t il, const hfd_ref *r, uint32_t n)
{
    pn_hf_dir *d = h->d;
    pn_packed form = {.places = NULL};
    pn_status st = PN_OK;
    size_t place0 = d->n_places;
    if (!pn_mem_grow(h->mem, PN_ACCT_MISC, (void **)&d->packed, &d->cap_packed, d->n_packed + 1, sizeof *d->packed))
        return pn_fail_nomem(h->err, "the list of quantised matrices", (d->n_packed + 1) * sizeof *d->packed);
    for (uint32_t e = 0; e < n && !st; e++)
        st = hfb_place(h, want, il, e, &form);
    struct pn_hf_tensor *x = st ? NULL : hfb_new_tensor(h, want, il, r, n, PN_DTYPE_F32, sizeof(float));
    if (!x)
        return st ? st : PN_E_NOMEM;
    x->why = HFD_IN_PLACE;
    x->as = x->t;
    st = pn_packed_survey(h->w, &form, d->places + place0, n, x->name, &x->as.dtype, h->err);
    pn_dtype_row_bytes(x->as.dtype, want->cols, &x->as.row_bytes);
    x->as.bytes = x->as.row_bytes * (x->t.n_elems / want->cols);
    form.place0 = place0;
    d->packed[d->n_packed] = form;
    x->packed = ++d->n_packed;
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Binding
 * ------------------------------------------------------------------------------------------ */

static pn_status hfb_bind_one(hfd *h, const pn_hf_want *want, uint32_t il)
{
    hfd_ref *r = hfb_codes(h, want, il, 0);
    if (r)
        return hfb_bind_packed(h, want, il, r, 1);
    r = hfb_find(h, want->names, il, 0);
    if (!r || r->alias)
        return want->optional ? PN_OK : hfb_missing(h, want, il, 0);
    pn_status st = hfb_check(h, r, want, 1, want->rows);
    r->used = true;
    return st ? st : hfb_new(h, want, il, r, 1) ? PN_OK : PN_E_NOMEM;
}

/* Where an expert of x is; gather: it has to be gathered, and x to be copied. */
static pn_status hfb_piece(hfd *h, struct pn_hf_tensor *x, uint32_t part, uint64_t offset, const pn_pth_tensor *gather)
{
    pn_hf_dir *d = h->d;
    if (!pn_mem_grow(h->mem, PN_ACCT_MISC, (void **)&d->pieces, &d->cap_pieces, d->n_pieces + 1, sizeof *d->pieces) ||
        !pn_mem_grow(h->mem, PN_ACCT_STAGE, (void **)&h->gathers, &h->cap_gathers, d->n_pieces + 1, sizeof *h->gathers))
        return pn_fail_nomem(h->err, "the places of experts", (d->n_pieces + 1) * sizeof *d->pieces);
    h->gathers[d->n_pieces] = gather;
    d->pieces[d->n_pieces++] = (pn_piece){.offset = offset, .part = part};
    if (x->why == HFD_IN_PLACE && (gather || offset % (x->t.row_bytes / x->t.ne[0])))
        x->why = HFD_COPY;
    return PN_OK;
}

/* All experts in one tensor: each has `fused_rows` rows there. */
static pn_status hfb_bind_fused(hfd *h, const pn_hf_want *want, uint32_t il, hfd_ref *r)
{
    pn_status st = hfb_check(h, r, want, h->c.n_expert, want->fused_rows);
    struct pn_hf_tensor *x = st ? NULL : hfb_new(h, want, il, r, h->c.n_expert);
    r->used = true;
    if (!x)
        return st ? st : PN_E_NOMEM;
    x->scattered = true;
    x->piece0 = h->d->n_pieces;
    for (uint64_t e = 0; e < h->c.n_expert && !st; e++)
        st = hfb_piece(h, x, r->part, r->t->offset + (e * want->fused_rows + want->fused_from) * x->t.row_bytes, r->gather);
    x->gather = r->gather;
    x->period = want->fused_rows * x->t.row_bytes;
    x->from = want->fused_from * x->t.row_bytes;
    if (!st)
        x->t.offset = h->d->pieces[x->piece0].offset;
    return st;
}

static pn_status hfb_bind_experts(hfd *h, const pn_hf_want *want, uint32_t il)
{
    hfd_ref *r = hfb_find(h, want->fused, il, 0);
    if (r)
        return hfb_bind_fused(h, want, il, r);
    r = hfb_codes(h, want, il, 0);
    if (r)
        return hfb_bind_packed(h, want, il, r, h->c.n_expert);
    struct pn_hf_tensor *x = NULL;
    pn_status st = PN_OK;
    uint32_t dtype = 0;
    for (uint32_t e = 0; e < h->c.n_expert && !st; e++) {
        r = hfb_find(h, want->names, il, e);
        if (!r)
            return hfb_missing(h, want, il, e);
        st = hfb_check(h, r, want, 1, want->rows);
        if (!st && e && r->t->dtype != dtype)
            st = pn_fail(h->err, PN_E_UNSUPPORTED, "%s: tensor '%s' has type %s, expected %s as that of expert 0", hfb_file_name(h, r->part),
                         pn_show(r->t->name, strlen(r->t->name)).s, pn_st_dtype_get(r->t->dtype)->name, pn_st_dtype_get(dtype)->name);
        r->used = true;
        if (!st && !e) {
            x = hfb_new(h, want, il, r, h->c.n_expert);
            if (!x)
                return PN_E_NOMEM;
            x->scattered = true;
            x->piece0 = h->d->n_pieces;
            dtype = r->t->dtype;
        }
        if (!st)
            st = hfb_piece(h, x, r->part, r->t->offset, r->gather);
    }
    return st;
}

static const char *const hfb_embd[3] = {"embed_tokens.weight"}, *const hfb_head[3] = {"lm_head.weight"};

/* torch saves a tied head as a second view of the embedding: one matrix, to be counted and read once. */
static void hfb_tie(hfd *h)
{
    hfd_ref *e = hfb_find(h, hfb_embd, 0, 0), *l = hfb_find(h, hfb_head, 0, 0);
    if (!e || !l || e->part != l->part || e->t->dtype != l->t->dtype || e->t->rank != l->t->rank ||
        memcmp(e->t->shape, l->t->shape, sizeof e->t->shape) != 0)
        return;
    if (e->gather && l->gather ? pn_pth_same_view(e->gather, l->gather) : !e->gather && !l->gather && e->t->offset == l->t->offset)
        l->used = l->alias = true;
}

PN_INTERNAL pn_status pn_hf_bind(hfd *h)
{
    pn_hf_want want;
    pn_status st = PN_OK;
    hfb_tie(h);
    for (uint32_t i = 0; !st && pn_hf_want_at(&h->c, false, i, &want); i++)
        st = hfb_bind_one(h, &want, 0);
    for (uint32_t il = 0; il < h->c.n_layers && !st; il++)
        for (uint32_t i = 0; !st && pn_hf_want_at(&h->c, true, i, &want); i++)
            st = want.how == PN_HF_STACK ? hfb_bind_experts(h, &want, il) : hfb_bind_one(h, &want, il);
    for (size_t i = 0; i < h->n_refs && !st; i++) {
        const hfd_ref *r = &h->refs[i];
        const char *name = pn_hf_name(r->t->name);
        if (!r->used && !pn_hf_skips(&h->c, name) && !pn_hf_quant_skips(&h->c.quant, name))
            st = pn_fail(h->err, PN_E_FORMAT, "%s: tensor '%s' belongs to nothing in a model of %" PRIu32 " layers with this config.json",
                         hfb_file_name(h, r->part), pn_show(r->t->name, strlen(r->t->name)).s, h->c.n_layers);
    }
    const char *end = pn_hf_quant_code_end(&h->c.quant);
    if (!st && !h->c.tied && !hfb_find(h, hfb_head, 0, 0) && !(end && hfb_find_end(h, hfb_head, end, 0, 0)))
        h->d->warning = "there is no lm_head.weight, although tie_word_embeddings is false: the embedding is the output matrix";
    return st;
}
