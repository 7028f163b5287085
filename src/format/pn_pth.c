/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_pth.c - opening a file of torch: container, storages, tensors.  pn_pth_stream.c reads elements.
 *
 * The order is that of trust: first the container is checked (pn_zip.h), then the pickle becomes a
 * graph of values (pn_pickle.h), then every storage the graph mentions is found in the file with the
 * bytes that it claims, and at last each tensor is held against its storage.  The graph is not
 * walked: storages are found by going through the array of values, tensors are the items of one
 * dictionary, so lists inside lists inside lists cost nothing.
 *
 * Source: torch's serialization.py and _utils.py (what is written) and the description of its zip
 * form in torch's documentation.
 */
#include "format/pn_pth.h"

#include "base/pn_err.h"
#include "base/pn_utf8.h"
#include "format/pn_pickle.h"
#include "format/pn_zip.h"

#include <inttypes.h>
#include <stdio.h>

#define PTH_PICKLE_MAX ((uint64_t)64 << 20)     /* bytes; some 100 a tensor are usual */
#define PTH_LEGACY_FIRST ((uint64_t)1 << 20)    /* bytes tried first where the pickles' length is unknown */
#define PTH_SMALL ((uint64_t)64 << 10)          /* a tensor may be so large, whatever the file */
#define PTH_TOTAL 16u                           /* all tensors together: so many times the file */

typedef struct pth_reader {
    pn_pth *p;
    pn_zip zip;
    bool legacy;
    char root[520];             /* "archive/" */
    uint8_t *pkl;               /* the bytes of the pickle, or of all five, owned, [n_pkl] */
    size_t n_pkl;
    uint64_t pkl_at;            /* where they lie in the file */
    pn_pickle pickle;           /* the object */
    pn_map keys;                /* storage key -> number; keys in pkl */
    char *free_text;            /* in p->text */
    pn_err *err;
} pth_reader;

/* ------------------------------------------------------------------------------------------
 * Storages
 * ------------------------------------------------------------------------------------------ */

static uint64_t pth_elem_bytes(uint32_t dtype) { return pn_st_dtype_get(dtype)->bits / 8; }

/* The five or six items of a persistent id. */
static pn_status pth_storage_id(pth_reader *r, uint32_t id, pn_bytes *key, pn_pth_storage *s)
{
    const pn_pickle *k = &r->pickle;
    const pn_pickle_value *tuple = pn_pickle_as(k, id, PN_PICKLE_TUPLE);
    pn_bytes word = {NULL, 0};
    uint32_t want = r->legacy ? 6 : 5;
    if (tuple && tuple->n && pn_pickle_str(k, pn_pickle_item(k, id, 0), &word) && word.len == 6 && memcmp(word.data, "module", 6) == 0)
        return pn_fail(r->err, PN_E_UNSUPPORTED, "a whole module was saved: expected a state_dict of tensors");
    if (!tuple || tuple->n != want || word.len != 7 || memcmp(word.data, "storage", 7) != 0)
        return pn_fail(r->err, PN_E_FORMAT, "a persistent id is %s of %" PRIu32 " items: expected ('storage', class, key, location, "
                       "count) of %" PRIu32, pn_pickle_kind_name(k, id), tuple ? tuple->n : 0, want);
    const pn_pickle_value *class = pn_pickle_as(k, pn_pickle_item(k, id, 1), PN_PICKLE_GLOBAL);
    const pn_pickle_global *g = class ? pn_pickle_global_get(class->global) : NULL;
    if (!pn_pickle_str(k, pn_pickle_item(k, id, 2), key))
        return pn_fail(r->err, PN_E_FORMAT, "the key of a storage is %s: expected a string", pn_pickle_kind_name(k, pn_pickle_item(k, id, 2)));
    bool digits = key->len > 0 && key->len < sizeof s->key;
    for (size_t i = 0; i < key->len && digits; i++)
        digits = key->data[i] >= '0' && key->data[i] <= '9';
    if (!digits)
        return pn_fail(r->err, PN_E_FORMAT, "the storage key '%s' is not a number", pn_show(key->data, key->len).s);
    memcpy(s->key, key->data, key->len);
    if (!g || (g->role != PN_PICKLE_STORAGE && g->role != PN_PICKLE_UNTYPED_STORAGE))
        return pn_fail(r->err, PN_E_FORMAT, "storage %s: its class is %s: expected a storage class", s->key, g ? g->name : "none");
    s->dtype = g->dtype;
    const pn_pickle_value *count = pn_pickle_as(k, pn_pickle_item(k, id, 4), PN_PICKLE_INT);
    if (!count || count->u.i < 0)
        return pn_fail(r->err, PN_E_FORMAT, "storage %s: expected an element count of 0 or more, found %s%" PRId64, s->key,
                       count ? "" : "none, ", count ? count->u.i : 0);
    s->count = (uint64_t)count->u.i;
    if (!pn_mul_u64(s->count, pth_elem_bytes(s->dtype), &s->bytes))
        return pn_fail(r->err, PN_E_FORMAT, "storage %s: %" PRIu64 " elements of %" PRIu64 " bytes overflow", s->key, s->count,
                       pth_elem_bytes(s->dtype));
    if (r->legacy && !pn_pickle_as(k, pn_pickle_item(k, id, 5), PN_PICKLE_NONE))
        return pn_fail(r->err, PN_E_UNSUPPORTED, "storage %s is a view of another: re-save the file with torch 1.6 or later", s->key);
    return PN_OK;
}

/* The member of the archive that holds a storage. */
static pn_status pth_storage_member(pth_reader *r, pn_pth_storage *s)
{
    char name[sizeof r->root + 32];
    snprintf(name, sizeof name, "%sdata/%s", r->root, s->key);
    const pn_zip_member *m = pn_zip_find(&r->zip, name);
    if (!m)
        return pn_fail(r->err, PN_E_FORMAT, "storage %s is not in the archive: no member '%s'", s->key, pn_show(name, strlen(name)).s);
    if (m->bytes != s->bytes)
        return pn_fail(r->err, PN_E_FORMAT, "storage %s has %" PRIu64 " bytes in the archive, %" PRIu64 " are declared", s->key, m->bytes,
                       s->bytes);
    s->offset = m->offset;
    return PN_OK;
}

static pn_status pth_storage_add(pth_reader *r, uint32_t id)
{
    pn_pth *p = r->p;
    pn_pth_storage s = {.key = ""};
    pn_bytes key = {NULL, 0};
    bool existed;
    pn_status st = pth_storage_id(r, id, &key, &s);
    if (st)
        return st;
    const uint32_t *at = pn_map_put(&r->keys, key.data, key.len, (uint32_t)p->n_storages, &existed);
    if (!at)
        return pn_fail_nomem(r->err, "the keys of storages", (uint64_t)r->keys.cap * sizeof(pn_map_slot));
    if (existed) {
        if (p->storages[*at].bytes == s.bytes)
            return PN_OK;
        return pn_fail(r->err, PN_E_FORMAT, "storage %s is declared with %" PRIu64 " bytes and with %" PRIu64, s.key,
                       p->storages[*at].bytes, s.bytes);
    }
    if (!r->legacy && (st = pth_storage_member(r, &s)))
        return st;
    if (!pn_mem_grow(p->mem, PN_ACCT_MISC, (void **)&p->storages, &p->cap_storages, p->n_storages + 1, sizeof s))
        return pn_fail_nomem(r->err, "the table of storages", (p->n_storages + 1) * sizeof s);
    p->storages[p->n_storages++] = s;
    return PN_OK;
}

/* All that the pickle mentions, in the order of its values. */
static pn_status pth_storages(pth_reader *r)
{
    pn_status st = PN_OK;
    for (size_t i = 0; i < r->pickle.n_values && !st; i++)
        if (r->pickle.values[i].kind == PN_PICKLE_PERSID)
            st = pth_storage_add(r, r->pickle.values[i].u.at.first);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Tensors
 * ------------------------------------------------------------------------------------------ */

/* Item i of the arguments as a number of 0 or more. */
static pn_status pth_number(pth_reader *r, const char *name, const char *what, uint32_t v, uint64_t *out)
{
    const pn_pickle_value *n = pn_pickle_as(&r->pickle, v, PN_PICKLE_INT);
    if (!n)
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': its %s is %s: expected an integer", name, what, pn_pickle_kind_name(&r->pickle, v));
    if (n->u.i < 0)
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': negative %s %" PRId64, name, what, n->u.i);
    *out = (uint64_t)n->u.i;
    return PN_OK;
}

/* A tuple of up to 8 numbers. */
static pn_status pth_numbers(pth_reader *r, const char *name, const char *what, uint32_t v, uint64_t out[PN_ST_MAX_RANK], uint32_t *n)
{
    const pn_pickle_value *t = pn_pickle_as(&r->pickle, v, PN_PICKLE_TUPLE);
    if (!t || t->n > PN_ST_MAX_RANK)
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': its %s is %s of %" PRIu32 " items: expected a tuple of at most 8 integers", name,
                       what, pn_pickle_kind_name(&r->pickle, v), t ? t->n : 0);
    pn_status st = PN_OK;
    *n = t->n;
    for (uint32_t k = 0; k < t->n && !st; k++)
        st = pth_number(r, name, what, pn_pickle_item(&r->pickle, v, k), &out[k]);
    return st;
}

/* Row-major without gaps; dimensions of 1 may have any stride. */
static bool pth_contiguous(const pn_pth_tensor *t)
{
    uint64_t step = 1;
    for (uint32_t k = t->rank; k-- > 0;) {
        if (t->shape[k] != 1 && t->stride[k] != step && t->n_elems)
            return false;
        step *= t->shape[k];            /* the product is n_elems, which fits */
    }
    return true;
}

/* Does it stay inside its storage, and is it of a size that a file like this may have? */
static pn_status pth_bounds(pth_reader *r, pn_pth_tensor *t)
{
    const pn_pth_storage *s = &r->p->storages[t->storage];
    uint64_t last = t->first, have = s->bytes / pth_elem_bytes(t->dtype), most = PN_MAX(r->p->src.size, PTH_SMALL);
    pn_status st = pn_st_size(t->dtype, t->rank, t->shape, &t->n_elems, &t->bytes, r->err);
    if (st)
        return pn_err_prefix(r->err, st, "tensor '%s', a view of %" PRIu64 " elements", t->name, have);
    for (uint32_t k = 0; k < t->rank && t->n_elems; k++) {
        uint64_t step;
        if (!pn_mul_u64(t->shape[k] - 1, t->stride[k], &step) || !pn_add_u64(last, step, &last))
            return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': its offset %" PRIu64 " and strides overflow: size %" PRIu64 ", stride %"
                           PRIu64 " (dimension %" PRIu32 ")", t->name, t->first, t->shape[k], t->stride[k], k);
    }
    if (t->n_elems && last >= have)
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s' needs element %" PRIu64 ", its storage %s has %" PRIu64, t->name, last, s->key,
                       have);
    if (t->bytes > most)
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s' repeats elements until it has %" PRIu64 " of them, %" PRIu64
                       " bytes: expected at most %" PRIu64 " in a file of %" PRIu64, t->name, t->n_elems, t->bytes, most, r->p->src.size);
    t->contiguous = pth_contiguous(t);
    return PN_OK;
}

/* Empty, or None: what else torch may have to say of a tensor (that it is conjugate, negated). */
static bool pth_no_metadata(const pn_pickle *k, uint32_t v)
{
    const pn_pickle_value *d = pn_pickle_as(k, v, PN_PICKLE_DICT);
    return pn_pickle_as(k, v, PN_PICKLE_NONE) || (d && d->n == 0);
}

/* The number of the storage that a PERSID names; it was entered before. */
static pn_status pth_tensor_storage(pth_reader *r, pn_pth_tensor *t, uint32_t v)
{
    const pn_pickle_value *persid = pn_pickle_as(&r->pickle, v, PN_PICKLE_PERSID);
    pn_bytes key = {NULL, 0};
    if (!persid)
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': expected a storage, found %s", t->name, pn_pickle_kind_name(&r->pickle, v));
    pn_pickle_str(&r->pickle, pn_pickle_item(&r->pickle, persid->u.at.first, 2), &key);
    t->storage = *pn_map_find(&r->keys, key.data, key.len);
    /* Not the storage's own: one key may come with two classes, as long as they agree about the bytes. */
    const pn_pickle_value *class = pn_pickle_as(&r->pickle, pn_pickle_item(&r->pickle, persid->u.at.first, 1), PN_PICKLE_GLOBAL);
    t->dtype = pn_pickle_global_get(class->global)->dtype;
    return PN_OK;
}

/* The arguments of _rebuild_tensor(storage, offset, size, stride), _v2(..., requires_grad, hooks[, metadata]) or
 * _v3(..., requires_grad, hooks, dtype[, metadata]). */
static pn_status pth_tensor(pth_reader *r, const pn_pickle_value *call, pn_pth_tensor *t)
{
    const pn_pickle *k = &r->pickle;
    uint32_t args = call->u.at.first, n = k->values[args].n, role = pn_pickle_global_get(call->global)->role, n_strides = 0;
    uint32_t least = role == PN_PICKLE_REBUILD_TENSOR ? 4 : role == PN_PICKLE_REBUILD_TENSOR_V2 ? 6 : 7;
    if (n < least || n > least + (least > 4))
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': %s has %" PRIu32 " arguments: expected %" PRIu32, t->name,
                       pn_pickle_global_get(call->global)->name, n, least);
    pn_status st = pth_tensor_storage(r, t, pn_pickle_item(k, args, 0));
    if (!st)
        st = pth_number(r, t->name, "offset", pn_pickle_item(k, args, 1), &t->first);
    if (!st)
        st = pth_numbers(r, t->name, "size", pn_pickle_item(k, args, 2), t->shape, &t->rank);
    if (!st)
        st = pth_numbers(r, t->name, "stride", pn_pickle_item(k, args, 3), t->stride, &n_strides);
    if (st)
        return st;
    if (t->rank != n_strides)
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s' has %" PRIu32 " sizes and %" PRIu32 " strides", t->name, t->rank, n_strides);
    if (role == PN_PICKLE_REBUILD_TENSOR_V3) {
        const pn_pickle_value *d = pn_pickle_as(k, pn_pickle_item(k, args, 6), PN_PICKLE_GLOBAL);
        if (!d || pn_pickle_global_get(d->global)->role != PN_PICKLE_DTYPE)
            return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': expected a dtype, found %s", t->name,
                           pn_pickle_kind_name(k, pn_pickle_item(k, args, 6)));
        t->dtype = pn_pickle_global_get(d->global)->dtype;
    }
    if (n > least && !pth_no_metadata(k, pn_pickle_item(k, args, n - 1)))
        return pn_fail(r->err, PN_E_UNSUPPORTED, "tensor '%s' has metadata (conjugate or negated): save it as a plain tensor", t->name);
    return pth_bounds(r, t);
}

static pn_status pth_name(pth_reader *r, uint32_t v, pn_map *names, pn_pth_tensor *t)
{
    pn_bytes name = {NULL, 0};
    bool existed;
    if (!pn_pickle_str(&r->pickle, v, &name))
        return pn_fail(r->err, PN_E_FORMAT, "the name of a tensor is %s: expected a string", pn_pickle_kind_name(&r->pickle, v));
    const char *fault = pn_st_name_fault(name.data, name.len);
    if (!fault && pn_utf8_valid(name.data, name.len) != name.len)
        fault = "the name is not UTF-8";
    if (fault)
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': %s", pn_show(name.data, name.len).s, fault);
    memcpy(r->free_text, name.data, name.len);
    r->free_text[name.len] = 0;
    t->name = r->free_text;
    r->free_text += name.len + 1;
    if (!pn_map_put(names, t->name, name.len, 0, &existed))
        return pn_fail_nomem(r->err, "the names of tensors", (uint64_t)names->cap * sizeof(pn_map_slot));
    return existed ? pn_fail(r->err, PN_E_FORMAT, "tensor '%s' comes twice", t->name) : PN_OK;
}

/* How many tensors a dictionary has as its own items. */
static size_t pth_count(const pn_pickle *k, uint32_t dict, size_t *text)
{
    size_t n = 0;
    const pn_pickle_value *d = pn_pickle_as(k, dict, PN_PICKLE_DICT);
    for (uint32_t c = d ? d->u.at.first : PN_PICKLE_NIL; c != PN_PICKLE_NIL; c = k->cells[c].next) {
        pn_bytes name;
        if (!pn_pickle_as(k, k->cells[c].value, PN_PICKLE_CALL))
            continue;
        n++;
        if (pn_pickle_str(k, k->cells[c].key, &name))
            *text += name.len + 1;
    }
    return n;
}

/* The dictionary that has the tensors: the top one, or one under a name that training scripts use. */
static uint32_t pth_state_dict(const pn_pickle *k)
{
    static const char *const under[] = {"state_dict", "model", "module"};
    const pn_pickle_value *top = pn_pickle_as(k, k->root, PN_PICKLE_DICT);
    uint32_t found[PN_COUNT_OF(under)] = {PN_PICKLE_NIL, PN_PICKLE_NIL, PN_PICKLE_NIL};
    size_t ignored = 0;
    for (uint32_t c = top ? top->u.at.first : PN_PICKLE_NIL; c != PN_PICKLE_NIL; c = k->cells[c].next) {
        pn_bytes name = {NULL, 0};
        if (!pn_pickle_as(k, k->cells[c].value, PN_PICKLE_DICT) || !pn_pickle_str(k, k->cells[c].key, &name))
            continue;
        for (size_t i = 0; i < PN_COUNT_OF(under); i++)
            if (name.len == strlen(under[i]) && memcmp(name.data, under[i], name.len) == 0)
                found[i] = k->cells[c].value;
    }
    for (size_t i = 0; i < PN_COUNT_OF(under); i++)
        if (pth_count(k, found[i], &ignored))
            return found[i];
    return k->root;
}

static pn_status pth_tensors(pth_reader *r)
{
    const pn_pickle *k = &r->pickle;
    pn_pth *p = r->p;
    pn_map names;
    uint32_t dict = pth_state_dict(k);
    uint64_t total = 0, most = pn_mul_sat(PN_MAX(p->src.size, PTH_SMALL), PTH_TOTAL);
    size_t n = pth_count(k, dict, &p->text_bytes);
    if (n == 0)
        return pn_fail(r->err, PN_E_FORMAT, "no tensors: expected a dictionary of them at the top or under 'state_dict', 'model' or "
                       "'module', found %s", pn_pickle_kind_name(k, k->root));
    p->text = pn_mem_alloc(p->mem, PN_ACCT_MISC, p->text_bytes);
    p->tensors = pn_mem_calloc(p->mem, PN_ACCT_MISC, n, sizeof *p->tensors);
    p->cap_tensors = n;
    r->free_text = p->text;
    if (!p->text || !p->tensors)
        return pn_fail_nomem(r->err, "the table of tensors", p->text_bytes + n * sizeof *p->tensors);
    pn_map_init(&names, p->mem, PN_ACCT_MISC);
    pn_status st = PN_OK;
    for (uint32_t c = k->values[dict].u.at.first; c != PN_PICKLE_NIL && !st; c = k->cells[c].next) {
        const pn_pickle_value *call = pn_pickle_as(k, k->cells[c].value, PN_PICKLE_CALL);
        if (!call) {
            p->n_others++;
            continue;
        }
        pn_pth_tensor *t = &p->tensors[p->n_tensors++];
        st = pth_name(r, k->cells[c].key, &names, t);
        if (!st)
            st = pth_tensor(r, call, t);
        total = pn_add_sat(total, t->bytes);
        if (!st && total > most)
            st = pn_fail(r->err, PN_E_FORMAT, "tensor '%s': the tensors so far have %" PRIu64 " bytes, expected at most %" PRIu64
                         " in a file of %" PRIu64, t->name, total, most, p->src.size);
    }
    if (!st && dict != k->root)
        p->n_others += k->values[k->root].n - 1;
    pn_map_fini(&names);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * The zip form
 * ------------------------------------------------------------------------------------------ */

/* ROOT, from the one member ROOT/data.pkl. */
static pn_status pth_find_root(pth_reader *r, const pn_zip_member **pkl)
{
    *pkl = NULL;
    for (size_t i = 0; i < r->zip.n_members; i++) {
        const pn_zip_member *m = &r->zip.members[i];
        const char *slash = strchr(m->name, '/');
        if (!slash || strchr(slash + 1, '/'))
            continue;
        if (strcmp(slash, "/constants.pkl") == 0)
            return pn_fail(r->err, PN_E_UNSUPPORTED, "member '%s': this is TorchScript, a program: expected a state_dict of tensors", m->name);
        if (strcmp(slash, "/data.pkl") != 0)
            continue;
        if (*pkl)
            return pn_fail(r->err, PN_E_FORMAT, "two pickles, '%s' and '%s': expected one */data.pkl", (*pkl)->name, m->name);
        *pkl = m;
    }
    if (!*pkl)
        return pn_fail(r->err, PN_E_FORMAT, "a zip archive of %zu members, but none is */data.pkl: not written by torch.save",
                       r->zip.n_members);
    size_t n = strlen((*pkl)->name) - strlen("data.pkl");
    memcpy(r->root, (*pkl)->name, n);           /* a name has at most 512 bytes */
    r->root[n] = 0;
    return PN_OK;
}

static pn_status pth_byteorder(pth_reader *r)
{
    char name[sizeof r->root + 16], word[8] = "";
    snprintf(name, sizeof name, "%sbyteorder", r->root);
    const pn_zip_member *m = pn_zip_find(&r->zip, name);
    if (!m)
        return PN_OK;                   /* older files have none and are little-endian */
    pn_status st = pn_source_read(&r->p->src, m->offset, word, (size_t)PN_MIN(m->bytes, sizeof word - 1), r->err);
    if (st)
        return st;
    r->p->big_endian = m->bytes == 3 && memcmp(word, "big", 3) == 0;
    if (!r->p->big_endian && !(m->bytes == 6 && memcmp(word, "little", 6) == 0))
        return pn_fail(r->err, PN_E_FORMAT, "member '%s': expected 'little' or 'big', found '%s'", m->name, pn_show(word, strlen(word)).s);
    return PN_OK;
}

/* n bytes at `at` as the pickle's; those from an earlier try go. */
static pn_status pth_load_pickle(pth_reader *r, uint64_t at, uint64_t n)
{
    pn_mem_free(r->p->mem, PN_ACCT_MISC, r->pkl, r->n_pkl);
    r->pkl = pn_mem_alloc(r->p->mem, PN_ACCT_MISC, (size_t)n);
    r->n_pkl = (size_t)n;
    r->pkl_at = at;
    if (!r->pkl)
        return pn_fail_nomem(r->err, "the pickle", n);
    return pn_source_read(&r->p->src, at, r->pkl, (size_t)n, r->err);
}

static pn_status pth_open_zip(pth_reader *r)
{
    const pn_zip_member *pkl = NULL;
    pn_status st = pn_zip_read(&r->zip, r->p->mem, &r->p->src, r->err);
    if (!st)
        st = pth_find_root(r, &pkl);
    if (!st)
        st = pth_byteorder(r);
    if (!st && pkl->bytes > PTH_PICKLE_MAX)
        st = pn_fail(r->err, PN_E_FORMAT, "member '%s' has %" PRIu64 " bytes, at most %" PRIu64 " are accepted", pkl->name, pkl->bytes,
                     PTH_PICKLE_MAX);
    if (!st)
        st = pth_load_pickle(r, pkl->offset, pkl->bytes);
    if (!st && (st = pn_pickle_read(&r->pickle, r->p->mem, r->pkl, r->n_pkl, 0, r->err)))
        st = pn_err_prefix(r->err, st, "%s", pkl->name);
    if (!st)
        st = pth_storages(r);
    return st ? st : pth_tensors(r);
}

/* ------------------------------------------------------------------------------------------
 * The form before torch 1.6: magic, version, facts of the machine, the object, the keys; then storages
 * ------------------------------------------------------------------------------------------ */

/* PROTO 2, LONG1 0x1950a86a20f9469cfc6c, STOP: a pickle by itself. */
static const uint8_t pth_magic[15] = {0x80, 2, 0x8A, 10, 0x6C, 0xFC, 0x9C, 0x46, 0xF9, 0x20, 0x6A, 0xA8, 0x50, 0x19, 0x2E};

/* The pickle at *at of r->pkl; *at moves behind it. */
static pn_status pth_next_pickle(pth_reader *r, pn_pickle *k, size_t *at)
{
    pn_status st = pn_pickle_read(k, r->p->mem, r->pkl + *at, r->n_pkl - *at, r->pkl_at + *at, r->err);
    if (!st)
        *at += k->used;
    return st;
}

/* The version, and the byte order from {"little_endian": True, ...}. */
static pn_status pth_legacy_facts(pth_reader *r, const pn_pickle *version, const pn_pickle *facts)
{
    const pn_pickle_value *v = pn_pickle_as(version, version->root, PN_PICKLE_INT), *d = pn_pickle_as(facts, facts->root, PN_PICKLE_DICT);
    if (!v || v->u.i != 1001)
        return pn_fail(r->err, PN_E_UNSUPPORTED, "protocol version %" PRId64 " of torch's old form: expected 1001", v ? v->u.i : -1);
    for (uint32_t c = d ? d->u.at.first : PN_PICKLE_NIL; c != PN_PICKLE_NIL; c = facts->cells[c].next) {
        pn_bytes name;
        const pn_pickle_value *b = pn_pickle_as(facts, facts->cells[c].value, PN_PICKLE_BOOL);
        if (b && pn_pickle_str(facts, facts->cells[c].key, &name) && name.len == 13 && memcmp(name.data, "little_endian", 13) == 0)
            r->p->big_endian = b->u.i == 0;
    }
    return PN_OK;
}

/* The list of keys, and behind it each storage in that order: a count, then the elements. */
static pn_status pth_legacy_storages(pth_reader *r, const pn_pickle *keys, uint64_t at)
{
    const pn_pickle_value *list = pn_pickle_as(keys, keys->root, PN_PICKLE_LIST);
    pn_pth *p = r->p;
    if (!list || list->n != p->n_storages)
        return pn_fail(r->err, PN_E_FORMAT, "the list of storages has %" PRIu32 " keys, the tensors mention %zu", list ? list->n : 0,
                       p->n_storages);
    for (uint32_t c = list->u.at.first; c != PN_PICKLE_NIL; c = keys->cells[c].next) {
        pn_bytes key = {NULL, 0};
        uint8_t count[8];
        pn_pickle_str(keys, keys->cells[c].value, &key);
        const uint32_t *i = key.data ? pn_map_find(&r->keys, key.data, key.len) : NULL;
        if (!i || p->storages[*i].offset)
            return pn_fail(r->err, PN_E_FORMAT, "storage key '%s' of the list %s", pn_show(key.data, key.len).s,
                           i ? "comes twice" : "is not one that a tensor mentions");
        pn_pth_storage *s = &p->storages[*i];
        pn_status st = pn_source_read(&p->src, at, count, sizeof count, r->err);
        if (st)
            return pn_err_prefix(r->err, st, "storage %s", s->key);
        if (pn_le64(count) != s->count)
            return pn_fail(r->err, PN_E_FORMAT, "storage %s has %" PRIu64 " elements at offset %" PRIu64 ", %" PRIu64 " are declared", s->key,
                           pn_le64(count), at, s->count);
        s->offset = at + sizeof count;
        if (s->bytes > p->src.size - s->offset)
            return pn_fail(r->err, PN_E_FORMAT, "truncated: storage %s needs %" PRIu64 " bytes at offset %" PRIu64 ", the file has %" PRIu64,
                           s->key, s->bytes, s->offset, p->src.size);
        at = s->offset + s->bytes;
    }
    return PN_OK;
}

static pn_status pth_legacy_read(pth_reader *r, bool *cut)
{
    pn_pickle version = {0}, facts = {0}, keys = {0};
    size_t at = 0;
    pn_status st = pth_next_pickle(r, &version, &at);
    if (!st)
        st = pth_next_pickle(r, &facts, &at);
    if (!st)
        st = pth_legacy_facts(r, &version, &facts);
    if (!st)
        st = pth_next_pickle(r, &r->pickle, &at);
    if (!st)
        st = pth_next_pickle(r, &keys, &at);
    *cut = version.cut || facts.cut || r->pickle.cut || keys.cut;
    if (!st)
        st = pth_storages(r);
    if (!st)
        st = pth_legacy_storages(r, &keys, r->pkl_at + at);
    if (!st)
        st = pth_tensors(r);
    pn_pickle_fini(&version);
    pn_pickle_fini(&facts);
    pn_pickle_fini(&keys);
    return st;
}

/* How long the pickles are nobody says: try with more until they end. */
static pn_status pth_open_legacy(pth_reader *r)
{
    uint64_t at = sizeof pth_magic, most = PN_MIN(r->p->src.size - at, PTH_PICKLE_MAX);
    bool cut = true;
    pn_status st = PN_OK;
    r->legacy = true;
    for (uint64_t n = PN_MIN(PTH_LEGACY_FIRST, most); cut; n = PN_MIN(2 * n, most)) {
        pn_pickle_fini(&r->pickle);
        st = pth_load_pickle(r, at, n);
        if (st)
            return st;
        st = pth_legacy_read(r, &cut);
        if (n == most)
            break;
    }
    return st;
}

/* ------------------------------------------------------------------------------------------
 * All of it
 * ------------------------------------------------------------------------------------------ */

static pn_status pth_open(pth_reader *r)
{
    uint8_t head[262] = {0};
    const pn_source *src = &r->p->src;
    pn_status st = pn_source_read(src, 0, head, (size_t)PN_MIN(src->size, sizeof head), r->err);
    if (st)
        return st;
    if (memcmp(head, "PK\3\4", 4) == 0)
        return pth_open_zip(r);
    if (src->size >= sizeof pth_magic && memcmp(head, pth_magic, sizeof pth_magic) == 0)
        return pth_open_legacy(r);
    if (memcmp(head + 257, "ustar", 5) == 0)
        return pn_fail(r->err, PN_E_UNSUPPORTED, "a tar archive, torch's form before 0.1.10: re-save the file with torch 1.6 or later");
    return pn_fail(r->err, PN_E_FORMAT, "not a file of torch.save: expected 50 4b 03 04 or 80 02 8a 0a at offset 0, found %02x %02x %02x "
                   "%02x%s", (unsigned)head[0], (unsigned)head[1], (unsigned)head[2], (unsigned)head[3],
                   memcmp(head, "vers", 4) == 0 ? " (a Git LFS pointer? fetch the real file)" : "");
}

PN_INTERNAL pn_status pn_pth_open(pn_pth *p, pn_mem *mem, const pn_source *src, pn_err *err)
{
    *p = (pn_pth){.mem = mem, .src = *src};
    pth_reader r = {.p = p, .err = err};
    pn_map_init(&r.keys, mem, PN_ACCT_MISC);
    pn_status st = pth_open(&r);
    pn_zip_fini(&r.zip);
    pn_pickle_fini(&r.pickle);
    pn_map_fini(&r.keys);
    pn_mem_free(mem, PN_ACCT_MISC, r.pkl, r.n_pkl);
    if (st) {
        pn_pth_close(p);
        pn_source_fail(src, st, err);
    }
    return st;
}

PN_INTERNAL void pn_pth_close(pn_pth *p)
{
    if (p->mem) {
        pn_mem_free(p->mem, PN_ACCT_MISC, p->tensors, p->cap_tensors * sizeof *p->tensors);
        pn_mem_free(p->mem, PN_ACCT_MISC, p->storages, p->cap_storages * sizeof *p->storages);
        pn_mem_free(p->mem, PN_ACCT_MISC, p->text, p->text_bytes);
    }
    *p = (pn_pth){0};
}

PN_INTERNAL uint64_t pn_pth_offset(const pn_pth *p, const pn_pth_tensor *t)
{
    return p->storages[t->storage].offset + t->first * pth_elem_bytes(t->dtype);
}

PN_INTERNAL bool pn_pth_same_view(const pn_pth_tensor *a, const pn_pth_tensor *b)
{
    return a->storage == b->storage && a->first == b->first && a->dtype == b->dtype && a->rank == b->rank &&
           memcmp(a->shape, b->shape, sizeof a->shape) == 0 && memcmp(a->stride, b->stride, sizeof a->stride) == 0;
}

#undef PTH_PICKLE_MAX
#undef PTH_LEGACY_FIRST
#undef PTH_SMALL
#undef PTH_TOTAL
