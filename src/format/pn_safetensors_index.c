/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_safetensors_index.c - which of several files has which tensor.
 *
 *     {"metadata": anything, "weight_map": {TENSOR: FILE, ...}}
 *
 * The names of files are a stranger's and will be opened, so they may only be plain names in the
 * index's own folder.  Their number is small beside that of tensors; a map finds them again.
 */
#include "format/pn_safetensors.h"

#include "base/pn_err.h"
#include "base/pn_json.h"

#include <inttypes.h>

#define STIDX_NODES_MAX ((size_t)1 << 22)

typedef struct stidx_reader {
    pn_st_index *x;
    pn_json_doc doc;
    pn_map files;               /* name -> number; keys in doc */
    char *free_text;
    pn_err *err;
} stidx_reader;

static bool stidx_plain(pn_bytes name)
{
    for (size_t i = 0; i < name.len; i++) {
        char c = name.data[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && c != '.' && c != '_' && c != '-')
            return false;
    }
    return name.len > 0 && name.len < 256 && name.data[0] != '.';
}

static const char *stidx_keep(stidx_reader *r, pn_bytes b)
{
    char *copy = r->free_text;
    memcpy(copy, b.data, b.len);
    copy[b.len] = 0;
    r->free_text += b.len + 1;
    return copy;
}

/* The number of a file, new or met before. */
static pn_status stidx_file(stidx_reader *r, const char *tensor, pn_bytes name, uint32_t *file)
{
    pn_st_index *x = r->x;
    bool existed;
    if (!stidx_plain(name))
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': file name '%s': expected 1 to 255 of A-Z a-z 0-9 . _ - without a "
                       "leading dot: no path", tensor, pn_show(name.data, name.len).s);
    uint32_t *at = pn_map_put(&r->files, name.data, name.len, (uint32_t)x->n_files, &existed);
    if (!at)
        return pn_fail_nomem(r->err, "the names of files", (uint64_t)r->files.cap * sizeof(pn_map_slot));
    *file = *at;
    if (!existed) {
        if (!pn_mem_grow(x->mem, PN_ACCT_MISC, (void **)&x->files, &x->cap_files, x->n_files + 1, sizeof *x->files))
            return pn_fail_nomem(r->err, "the list of files", (x->n_files + 1) * sizeof *x->files);
        x->files[x->n_files++] = (pn_st_file){.name = stidx_keep(r, name)};
    }
    x->files[*file].n_tensors++;
    return PN_OK;
}

static pn_status stidx_place(stidx_reader *r, uint32_t node, pn_st_place *p)
{
    pn_bytes key = pn_json_key_of(&r->doc, node), name;
    const char *fault = pn_st_name_fault(key.data, key.len);
    if (fault)
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': %s", pn_show(key.data, key.len).s, fault);
    p->tensor = stidx_keep(r, key);
    if (!pn_json_str(&r->doc, node, &name))
        return pn_fail(r->err, PN_E_FORMAT, "tensor '%s': expected a string, the name of its file, found %s", p->tensor,
                       pn_json_type_name(pn_json_type_of(&r->doc, node)));
    return stidx_file(r, p->tensor, name, &p->file);
}

static pn_status stidx_map(stidx_reader *r, size_t json_bytes)
{
    pn_st_index *x = r->x;
    uint32_t map = pn_json_get(&r->doc, PN_JSON_ROOT, "weight_map");
    if (pn_json_type_of(&r->doc, map) != PN_JSON_OBJECT || pn_json_count(&r->doc, map) == 0)
        return pn_fail(r->err, PN_E_FORMAT, "expected 'weight_map' to be an object of tensors and their files, found %s",
                       pn_json_type_of(&r->doc, map) == PN_JSON_OBJECT ? "an empty one"
                       : pn_json_type_name(pn_json_type_of(&r->doc, map)));
    size_t n = pn_json_count(&r->doc, map), i = 0;
    x->text_bytes = json_bytes;         /* each name was there between two quotes */
    x->text = pn_mem_alloc(x->mem, PN_ACCT_MISC, x->text_bytes);
    x->places = pn_mem_calloc(x->mem, PN_ACCT_MISC, n, sizeof *x->places);
    x->n_places = x->places ? n : 0;
    r->free_text = x->text;
    if (!x->text || !x->places || !pn_map_reserve(&x->index, (uint32_t)n))
        return pn_fail_nomem(r->err, "the index", json_bytes + n * (sizeof *x->places + sizeof(pn_map_slot)));
    pn_status st = PN_OK;
    for (uint32_t at = pn_json_first(&r->doc, map); at != PN_JSON_NONE && !st; at = pn_json_next(&r->doc, at), i++) {
        st = stidx_place(r, at, &x->places[i]);
        if (!st && !pn_map_put(&x->index, x->places[i].tensor, strlen(x->places[i].tensor), (uint32_t)i, NULL))
            st = pn_fail_nomem(r->err, "the index", n * sizeof(pn_map_slot));
    }
    return st;
}

static pn_status stidx_read(stidx_reader *r, const pn_source *src)
{
    static const pn_json_params limits = {.max_depth = 16, .max_bytes = PN_ST_HEADER_MAX, .max_nodes = STIDX_NODES_MAX,
                                          .unique_keys = true};
    pn_mem *mem = r->x->mem;
    if (src->size > PN_ST_HEADER_MAX)
        return pn_fail(r->err, PN_E_FORMAT, "expected an index of at most %" PRIu64 " bytes, found %" PRIu64,
                       PN_ST_HEADER_MAX, src->size);
    size_t n = (size_t)src->size;
    char *text = pn_mem_alloc(mem, PN_ACCT_MISC, n);
    if (!text)
        return pn_fail_nomem(r->err, "the index", n);
    pn_status st = pn_source_read(src, 0, text, n, r->err);
    if (!st)
        st = pn_json_parse(&r->doc, mem, PN_ACCT_MISC, text, n, &limits, r->err);
    pn_mem_free(mem, PN_ACCT_MISC, text, n);
    if (!st)
        st = stidx_map(r, n);
    pn_json_fini(&r->doc);
    return st;
}

PN_INTERNAL pn_status pn_st_index_read(pn_st_index *x, pn_mem *mem, const pn_source *src, pn_err *err)
{
    *x = (pn_st_index){.mem = mem};
    stidx_reader r = {.x = x, .err = err};
    pn_map_init(&x->index, mem, PN_ACCT_MISC);
    pn_map_init(&r.files, mem, PN_ACCT_MISC);
    pn_status st = stidx_read(&r, src);
    pn_map_fini(&r.files);
    if (st) {
        pn_st_index_fini(x);
        pn_source_fail(src, st, err);
    }
    return st;
}

PN_INTERNAL void pn_st_index_fini(pn_st_index *x)
{
    if (!x->mem)
        return;
    pn_map_fini(&x->index);
    pn_mem_free(x->mem, PN_ACCT_MISC, x->places, x->n_places * sizeof *x->places);
    pn_mem_free(x->mem, PN_ACCT_MISC, x->files, x->cap_files * sizeof *x->files);
    pn_mem_free(x->mem, PN_ACCT_MISC, x->text, x->text_bytes);
    *x = (pn_st_index){0};
}

PN_INTERNAL const pn_st_place *pn_st_index_find(const pn_st_index *x, const char *tensor)
{
    const uint32_t *i = pn_map_find(&x->index, tensor, strlen(tensor));
    return i ? &x->places[*i] : NULL;
}

/* A tensor that the index has in files[file], but s does not hold; NULL: there is none. */
static const char *stidx_missing(const pn_st_index *x, uint32_t file, const pn_safetensors *s)
{
    for (size_t i = 0; i < x->n_places; i++)
        if (x->places[i].file == file && !pn_safetensors_find(s, x->places[i].tensor))
            return x->places[i].tensor;
    return NULL;
}

PN_INTERNAL pn_status pn_st_index_check(const pn_st_index *x, uint32_t file, const pn_safetensors *s, pn_err *err)
{
    const pn_st_file *f = &x->files[file];
    const pn_st_place *p = NULL;
    const char *extra = NULL;
    for (size_t i = 0; i < s->n_tensors && !extra; i++) {
        p = pn_st_index_find(x, s->tensors[i].name);
        if (!p || p->file != file)
            extra = s->tensors[i].name;
    }
    if (!extra && s->n_tensors == f->n_tensors)         /* names are unique on both sides */
        return PN_OK;
    const char *missing = stidx_missing(x, file, s);
    if (!extra)
        return pn_fail(err, PN_E_FORMAT, "%s: tensor '%.200s' is missing, the index has it there", f->name, missing ? missing : "");
    return pn_fail(err, PN_E_FORMAT, "%s: holds tensor '%.100s', which the index %s%s%s%.100s%s", f->name, extra,
                   p ? "has in " : "does not list", p ? x->files[p->file].name : "", missing ? "; tensor '" : "",
                   missing ? missing : "", missing ? "', which it has there, is missing" : "");
}

#undef STIDX_NODES_MAX
