/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_convert.c - the tensors of a file of torch as safetensors.
 *
 * All names, formats and shapes are known when the file has been opened, so the header is written first
 * and the elements stream behind it in the header's order: memory is the tables, the header and one
 * tile (format/pn_pth.h).  Values are not touched.
 *
 * A tensor that is another under a second name (tied weights) is written once: the metadata say
 * "dropped name": "kept name", as torch's own way of saving does.  Kept is the embedding, not the
 * head; otherwise the name that comes first in byte order.  Views that merely overlap are written each.
 *
 * What was written is read again before it gets its name.
 */
#include "engine/pn_engine_int.h"

#include <inttypes.h>

#include "format/pn_pth.h"

typedef struct convert_job {
    pn_engine *engine;
    pn_mem *mem;
    const char *in, *out;
    pn_os_file file;
    pn_pth pth;
    uint32_t *group;            /* owned, [n_tensors]: the first tensor that is the same view, or itself */
    uint32_t *best;             /* owned, [n_tensors]: of those first ones: which of its group is written */
    pn_st_tensor *list;         /* owned, [n_tensors], of which n_list are written, in the header's order */
    size_t n_list;
    pn_st_meta *meta;           /* owned, [n_tensors + 1], of which n_meta are used */
    size_t n_meta;
    pn_map names;               /* of those kept, to tensors of pth */
    pn_os_out dst;
    bool dst_open;
    uint64_t done, total;       /* bytes of tensors */
    pn_progress_fn progress;
    void *progress_user;
} convert_job;

/* What makes two tensors one; a key of a map, so all of its bytes count. */
typedef struct convert_view {
    uint64_t first, shape[PN_ST_MAX_RANK], stride[PN_ST_MAX_RANK];
    uint32_t storage, dtype, rank, zero;
} convert_view;

/* ------------------------------------------------------------------------------------------
 * Which tensors are written
 * ------------------------------------------------------------------------------------------ */

/* 0: an embedding, 2: a head, 1: anything else. */
static int convert_rank(const char *name) { return strstr(name, "emb") ? 0 : strstr(name, "head") ? 2 : 1; }

static bool convert_better(const char *a, const char *b)
{
    int ra = convert_rank(a), rb = convert_rank(b);
    return ra != rb ? ra < rb : strcmp(a, b) < 0;
}

/* Fill in group and best. */
static pn_status convert_group(convert_job *c, convert_view *views, pn_map *map, pn_err *err)
{
    for (uint32_t i = 0; i < c->pth.n_tensors; i++) {
        const pn_pth_tensor *t = &c->pth.tensors[i];
        convert_view *v = &views[i];
        bool existed;
        c->group[i] = c->best[i] = i;
        if (t->n_elems == 0 || strcmp(t->name, "format") == 0)      /* no bytes to spare; a key of ours */
            continue;
        *v = (convert_view){.first = t->first, .storage = t->storage, .dtype = t->dtype, .rank = t->rank};
        memcpy(v->shape, t->shape, sizeof v->shape);
        memcpy(v->stride, t->stride, sizeof v->stride);
        const uint32_t *at = pn_map_put(map, (const char *)v, sizeof *v, i, &existed);
        if (!at)
            return pn_fail_nomem(err, "the views of tensors", c->pth.n_tensors * sizeof(pn_map_slot));
        c->group[i] = *at;
        if (convert_better(t->name, c->pth.tensors[c->best[*at]].name))
            c->best[*at] = i;
    }
    return PN_OK;
}

static uint32_t convert_kept(const convert_job *c, size_t i) { return c->best[c->group[i]]; }

static pn_bytes convert_bytes(const char *text) { return (pn_bytes){text, strlen(text)}; }

/* The list of what is written, and the metadata. */
static pn_status convert_choose(convert_job *c, pn_err *err)
{
    size_t n = c->pth.n_tensors;
    pn_map map;
    convert_view *views = pn_mem_calloc(c->mem, PN_ACCT_MISC, n, sizeof *views);
    c->group = pn_mem_calloc(c->mem, PN_ACCT_MISC, n, sizeof *c->group);
    c->best = pn_mem_calloc(c->mem, PN_ACCT_MISC, n, sizeof *c->best);
    c->list = pn_mem_calloc(c->mem, PN_ACCT_MISC, n, sizeof *c->list);
    c->meta = pn_mem_calloc(c->mem, PN_ACCT_MISC, n + 1, sizeof *c->meta);
    pn_map_init(&map, c->mem, PN_ACCT_MISC);
    pn_status st = views && c->group && c->best && c->list && c->meta
                       ? convert_group(c, views, &map, err)
                       : pn_fail_nomem(err, "the lists of tensors", n * (sizeof *views + sizeof *c->list + sizeof *c->meta));
    pn_map_fini(&map);
    pn_mem_free(c->mem, PN_ACCT_MISC, views, n * sizeof *views);
    if (st)
        return st;
    c->meta[c->n_meta++] = (pn_st_meta){{"format", 6}, {"pt", 2}};
    for (uint32_t i = 0; i < n && !st; i++) {
        const pn_pth_tensor *t = &c->pth.tensors[i];
        if (convert_kept(c, i) != i) {
            c->meta[c->n_meta++] = (pn_st_meta){convert_bytes(t->name), convert_bytes(c->pth.tensors[convert_kept(c, i)].name)};
            continue;
        }
        pn_st_tensor *w = &c->list[c->n_list++];
        *w = (pn_st_tensor){.name = t->name, .dtype = t->dtype, .rank = t->rank};
        memcpy(w->shape, t->shape, sizeof w->shape);
        c->total += t->bytes;
        if (!pn_map_put(&c->names, t->name, strlen(t->name), i, NULL))
            st = pn_fail_nomem(err, "the names of tensors", n * sizeof(pn_map_slot));
    }
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Reading and writing
 * ------------------------------------------------------------------------------------------ */

static pn_status convert_read(void *user, uint64_t offset, void *dst, size_t n)
{
    return pn_os_read(user, offset, dst, n, NULL);
}

static pn_source convert_source(pn_os_file *f, const char *name)
{
    return (pn_source){.read = convert_read, .user = f, .size = f->size, .name = name};
}

static pn_status convert_open(convert_job *c, pn_err *err)
{
    pn_status st = pn_os_open(&c->file, c->in, err);
    if (st)
        return st;
    if (pn_os_same_file(c->in, c->out))
        return pn_fail(err, PN_E_INVALID, "'%s' is read from: expected another name to write to", c->out);
    pn_source src = convert_source(&c->file, c->in);
    st = pn_pth_open(&c->pth, c->mem, &src, err);
    if (!st && c->pth.n_others)
        pn_engine_logf(c->engine, PN_LOG_WARN, "%s: %zu entries that are no tensors of the model were left out", c->in, c->pth.n_others);
    if (!st)
        st = convert_choose(c, err);
    return st;
}

static pn_status convert_header(convert_job *c, pn_err *err)
{
    pn_str header;
    pn_str_init(&header, c->mem, PN_ACCT_MISC);
    pn_status st = pn_st_header(&header, c->list, c->n_list, c->meta, c->n_meta, err);
    if (!st)
        st = pn_os_create(&c->dst, c->out, err);
    c->dst_open = !st;
    if (!st)
        st = pn_os_write(&c->dst, header.data, header.len, err);
    pn_str_fini(&header);
    return st;
}

/* A pn_pth_sink. */
static pn_status convert_write(void *user, const void *bytes, size_t n, pn_err *err)
{
    convert_job *c = user;
    pn_status st = pn_os_write(&c->dst, bytes, n, err);
    c->done += n;
    if (!st && c->progress && c->progress(c->progress_user, c->done, c->total))
        st = pn_fail(err, PN_E_CANCELLED, "stopped by the caller after %" PRIu64 " of %" PRIu64 " bytes", c->done, c->total);
    return st;
}

/* Read the new file's header: the same tensors at the same places. */
static pn_status convert_verify(convert_job *c, pn_err *err)
{
    pn_os_file f;
    pn_safetensors s;
    pn_status st = pn_os_open(&f, c->dst.tmp, err);
    if (st)
        return st;
    pn_source src = convert_source(&f, c->out);
    st = pn_safetensors_read(&s, c->mem, &src, err);
    if (!st) {
        bool same = s.n_tensors == c->n_list;
        for (size_t i = 0; i < c->n_list && same; i++) {
            const pn_st_tensor *t = pn_safetensors_find(&s, c->list[i].name);
            same = t && t->offset == c->list[i].offset && t->bytes == c->list[i].bytes && t->dtype == c->list[i].dtype;
        }
        if (!same)
            st = pn_fail(err, PN_E_IO, "'%s' does not hold what was written to it", c->out);
        pn_safetensors_fini(&s);
    }
    pn_os_close(&f);
    return st;
}

static void convert_close(convert_job *c)
{
    size_t n = c->pth.n_tensors;
    if (c->dst_open)
        pn_os_abandon(&c->dst);
    pn_map_fini(&c->names);
    pn_mem_free(c->mem, PN_ACCT_MISC, c->group, n * sizeof *c->group);
    pn_mem_free(c->mem, PN_ACCT_MISC, c->best, n * sizeof *c->best);
    pn_mem_free(c->mem, PN_ACCT_MISC, c->list, n * sizeof *c->list);
    pn_mem_free(c->mem, PN_ACCT_MISC, c->meta, (n + 1) * sizeof *c->meta);
    pn_pth_close(&c->pth);
    pn_os_close(&c->file);
}

PN_API pn_status pn_convert(pn_engine *e, const char *in, const char *out, const pn_convert_params *params, pn_err *err)
{
    pn_convert_params p;
    if (!e || !in || !out)
        return pn_fail(err, PN_E_INVALID, "no %s given", !e ? "engine" : in ? "output path" : "input path");
    pn_params_copy(&p, sizeof p, params, params ? params->size : 0);
    convert_job c = {.engine = e, .mem = pn_engine_mem(e), .in = in, .out = out, .file = {.fd = -1},
                     .progress = p.progress, .progress_user = p.progress_user};
    pn_map_init(&c.names, c.mem, PN_ACCT_MISC);
    pn_status st = convert_open(&c, err);
    if (!st)
        st = convert_header(&c, err);
    for (size_t i = 0; i < c.n_list && !st; i++) {
        const uint32_t *at = pn_map_find(&c.names, c.list[i].name, strlen(c.list[i].name));
        st = pn_pth_stream(&c.pth, &c.pth.tensors[*at], convert_write, &c, err);
    }
    if (!st)
        st = convert_verify(&c, err);
    if (!st)
        st = pn_os_commit(&c.dst, err);
    convert_close(&c);
    return st;
}
