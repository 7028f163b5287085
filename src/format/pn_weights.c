/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_weights.c - one tensor directory over all parts of a model.
 *
 * A model is one file or several.  A split one says so in its first part (split.count > 1), which
 * also holds all metadata; the others are siblings named prefix-NNNNN-of-MMMMM.gguf.  Their names
 * are made from the path the user gave and two integers, never from text in a file, so a model
 * cannot make us open something else.
 *
 * Parts are mapped to be parsed: keys and strings then borrow from the mapping, which stays until
 * close.  Where mapping fails (a 32-bit address space, RLIMIT_AS, a file system that cannot) the
 * header is read through the descriptor instead, and only pn_weights_ptr() knows the difference.
 *
 * Invariants
 *   1. parts and gguf grow together and by parts really opened, not by split.count.
 *   2. n_parts counts what close must undo; a part is counted as soon as it owns anything.
 *   3. After opening, tensor names are unique over all parts and their number is split.tensors.count.
 */
#include "format/pn_weights.h"
#include "format/pn_hf_dir.h"
#include "format/pn_packed.h"

#include "base/pn_err.h"
#include "base/pn_os_direct.h"
#include "num/pn_dtype.h"

#include <inttypes.h>
#include <stdio.h>

#define WEIGHTS_PARTS_MAX 65535u        /* split.count is a u16 */
#define WEIGHTS_DROP ((uint64_t)8 << 20)    /* bytes of page cache given back at once: about a millisecond */
#define WEIGHTS_SUFFIX_LEN 20u          /* "-NNNNN-of-MMMMM.gguf" */

/* A path for a message: its end, when it is long. */
static const char *weights_tail(const char *path)
{
    size_t n = strlen(path);
    return n > 160 ? path + (n - 160) : path;
}

static pn_status weights_pread(void *user, uint64_t offset, void *dst, size_t n)
{
    return pn_os_read(user, offset, dst, n, NULL);
}

/* ------------------------------------------------------------------------------------------
 * Parts
 * ------------------------------------------------------------------------------------------ */

/* Room for one more part.  The arrays may move, so sources that point into them are set again. */
static pn_part *weights_part_new(pn_weights *w, const char *path, size_t path_len, pn_err *err)
{
    size_t n = w->n_parts;
    if (!pn_mem_grow(w->mem, PN_ACCT_MISC, (void **)&w->parts, &w->cap_parts, n + 1, sizeof *w->parts) ||
        !pn_mem_grow(w->mem, PN_ACCT_MISC, (void **)&w->gguf, &w->cap_gguf, n + 1, sizeof *w->gguf)) {
        pn_fail_nomem(err, "the table of parts", (uint64_t)(n + 1) * (sizeof *w->parts + sizeof *w->gguf));
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        if (w->parts[i].src.read == weights_pread)
            w->parts[i].src.user = &w->parts[i].file;
    pn_part *p = &w->parts[n];
    memset(p, 0, sizeof *p);
    memset(&w->gguf[n], 0, sizeof *w->gguf);
    p->file.fd = -1;
    p->path = pn_mem_strndup(w->mem, PN_ACCT_MISC, path, path_len);
    if (!p->path) {
        pn_fail_nomem(err, "a part's path", (uint64_t)path_len + 1);
        return NULL;
    }
    p->src.name = p->path;
    w->n_parts++;
    return p;
}

/* Room for n more tensors in the directory. */
static pn_status weights_reserve(pn_weights *w, uint32_t part, size_t n, pn_err *err)
{
    uint64_t total = (uint64_t)w->n_tensors + n;
    if (total > UINT32_MAX / 2)
        return pn_fail(err, PN_E_FORMAT, "%s: %" PRIu64 " tensors in all are too many",
                       weights_tail(w->parts[part].path), total);
    if (!pn_map_reserve(&w->index, (uint32_t)total) ||
        !pn_mem_grow(w->mem, PN_ACCT_MISC, (void **)&w->tensors, &w->cap_tensors, (size_t)total, sizeof *w->tensors))
        return pn_fail_nomem(err, "the directory of tensors", total * (sizeof *w->tensors + sizeof(pn_map_slot)));
    return PN_OK;
}

/* Into the directory, which has room for it. */
static pn_status weights_put(pn_weights *w, const pn_dir_tensor *t, pn_err *err)
{
    bool existed = false;
    uint32_t *at = pn_map_put(&w->index, t->t->name, strlen(t->t->name), (uint32_t)w->n_tensors, &existed);
    if (!at)
        return pn_fail_nomem(err, "the directory of tensors", (uint64_t)w->n_tensors * sizeof(pn_map_slot));
    if (existed)
        return pn_fail(err, PN_E_FORMAT, "%s: tensor '%s' is also in part %" PRIu32 " (%s)",
                       weights_tail(w->parts[t->part].path), t->t->name, w->tensors[*at].part + 1,
                       weights_tail(w->parts[w->tensors[*at].part].path));
    w->tensors[w->n_tensors++] = *t;
    w->n_retyped += pn_weights_retyped(t);
    return PN_OK;
}

/* Put a part's tensors into the directory. */
static pn_status weights_add_tensors(pn_weights *w, uint32_t part, pn_err *err)
{
    const pn_gguf *g = &w->gguf[part];
    pn_status st = weights_reserve(w, part, g->n_tensors, err);
    for (size_t i = 0; i < g->n_tensors && !st; i++)
        st = weights_put(w, &(pn_dir_tensor){.t = &g->tensors[i], .file = &g->tensors[i], .part = part}, err);
    return st;
}

static pn_status weights_count_bytes(pn_weights *w, const pn_part *p, pn_err *err)
{
    return pn_add_u64(w->file_bytes, p->src.size, &w->file_bytes)
               ? PN_OK : pn_fail(err, PN_E_FORMAT, "%s: the sizes of all parts overflow", weights_tail(p->path));
}

/* Read the header of the newest part, whose source is set up. */
static pn_status weights_read_part(pn_weights *w, pn_err *err)
{
    uint32_t i = w->n_parts - 1;
    pn_status st = pn_gguf_read(&w->gguf[i], w->mem, &w->parts[i].src, err);
    if (st == PN_OK)
        st = weights_add_tensors(w, i, err);
    return st ? st : weights_count_bytes(w, &w->parts[i], err);
}

/* The newest part is a file: opened, and mapped if that is wished and can be had. */
static pn_status weights_open_file(pn_weights *w, const char *path, pn_err *err)
{
    pn_part *p = weights_part_new(w, path, strlen(path), err);
    if (!p)
        return PN_E_NOMEM;
    pn_status st = pn_os_open(&p->file, path, err);
    if (st != PN_OK)
        return st;
    p->src.size = p->file.size;
    if (w->map && p->file.size > 0 && pn_os_map(&p->file, &p->map, NULL) == PN_OK) {
        p->map_owned = true;
        p->src.bytes = p->map;
    } else {
        p->src.read = weights_pread;
        p->src.user = &p->file;
    }
    return PN_OK;
}

static pn_status weights_open_part(pn_weights *w, const char *path, pn_err *err)
{
    pn_status st = weights_open_file(w, path, err);
    return st ? st : weights_read_part(w, err);
}

/* ------------------------------------------------------------------------------------------
 * Split models
 * ------------------------------------------------------------------------------------------ */

/* An optional integer key of part `part`; *found tells whether it is there. */
static pn_status weights_split_key(const pn_weights *w, uint32_t part, const char *key, bool *found,
                                   uint64_t *out, pn_err *err)
{
    const pn_gguf_kv *kv = pn_gguf_find(&w->gguf[part], key);
    *found = kv != NULL;
    if (kv && (kv->type == PN_META_ARRAY || !pn_gguf_u64(kv, 0, out)))
        return pn_fail(err, PN_E_FORMAT, "%s: key '%s' at offset %" PRIu64
                       ": expected a non-negative integer, found type %u", weights_tail(w->parts[part].path),
                       key, kv->offset, (unsigned)kv->type);
    return PN_OK;
}

/* "-00002-of-00003.gguf" for part index 1 of 3. */
static void weights_suffix(char text[32], uint32_t index, uint32_t count)
{
    snprintf(text, 32, "-%05u-of-%05u.gguf", (unsigned)(index + 1), (unsigned)count);
}

/* The first part must be the first and be named like it; then the siblings' prefix is known. */
static pn_status weights_check_first(const pn_weights *w, uint32_t count, pn_err *err)
{
    const char *path = w->parts[0].path;
    uint64_t no = 0;
    bool found;
    char suffix[32];
    pn_status st = weights_split_key(w, 0, "split.no", &found, &no, err);
    if (st != PN_OK)
        return st;
    if (no != 0)
        return pn_fail(err, PN_E_INVALID, "%s: this is part %" PRIu64 " of a model of %" PRIu32
                       " parts: open the first one (-00001-of-%05" PRIu32 ".gguf)", weights_tail(path), no + 1,
                       count, count);
    size_t len = strlen(path);
    weights_suffix(suffix, 0, count);
    if (len < WEIGHTS_SUFFIX_LEN || strcmp(path + len - WEIGHTS_SUFFIX_LEN, suffix) != 0)
        return pn_fail(err, PN_E_INVALID, "%s: the file says it is part 1 of %" PRIu32
                       ", so its name must end in %s for the others to be found", weights_tail(path), count, suffix);
    return PN_OK;
}

static pn_status weights_check_part(const pn_weights *w, uint32_t i, uint32_t count, pn_err *err)
{
    uint64_t no = 0, n = 0;
    bool has_no, has_count;
    pn_status st = weights_split_key(w, i, "split.no", &has_no, &no, err);
    if (st == PN_OK)
        st = weights_split_key(w, i, "split.count", &has_count, &n, err);
    if (st != PN_OK)
        return st;
    if (!has_no)
        return pn_fail(err, PN_E_FORMAT, "%s: expected key 'split.no' with value %" PRIu32 ", found none",
                       weights_tail(w->parts[i].path), i);
    if (no != i)
        return pn_fail(err, PN_E_FORMAT, "%s: key 'split.no': expected %" PRIu32 ", found %" PRIu64,
                       weights_tail(w->parts[i].path), i, no);
    if (has_count && n != count)
        return pn_fail(err, PN_E_FORMAT, "%s: key 'split.count': expected %" PRIu32
                       " as in the first part, found %" PRIu64, weights_tail(w->parts[i].path), count, n);
    return PN_OK;
}

/* Open part i, whose path is the first one's with another number. */
static pn_status weights_open_sibling(pn_weights *w, uint32_t i, uint32_t count, pn_err *err)
{
    size_t len = strlen(w->parts[0].path);
    char *path = pn_mem_strndup(w->mem, PN_ACCT_MISC, w->parts[0].path, len);
    if (!path)
        return pn_fail_nomem(err, "a part's path", (uint64_t)len + 1);
    char suffix[32];
    weights_suffix(suffix, i, count);
    memcpy(path + len - WEIGHTS_SUFFIX_LEN, suffix, WEIGHTS_SUFFIX_LEN);
    pn_status st = weights_open_part(w, path, err);
    pn_mem_free(w->mem, PN_ACCT_MISC, path, len + 1);
    if (st == PN_OK)
        st = weights_check_part(w, i, count, err);
    if (st != PN_OK)
        pn_err_prefix(err, st, "part %" PRIu32 " of %" PRIu32, i + 1, count);
    return st;
}

static pn_status weights_open_rest(pn_weights *w, uint32_t count, pn_err *err)
{
    uint64_t expected = 0;
    bool found;
    pn_status st = weights_check_first(w, count, err);
    if (st == PN_OK)
        st = weights_split_key(w, 0, "split.tensors.count", &found, &expected, err);
    if (st == PN_OK && !found)
        st = pn_fail(err, PN_E_FORMAT, "%s: a split model needs the key 'split.tensors.count', found none",
                     weights_tail(w->parts[0].path));
    for (uint32_t i = 1; i < count && st == PN_OK; i++)
        st = weights_open_sibling(w, i, count, err);
    if (st == PN_OK && expected != w->n_tensors)
        st = pn_fail(err, PN_E_FORMAT, "%s: key 'split.tensors.count': expected %" PRIu64 " tensors, the %" PRIu32
                     " parts have %zu", weights_tail(w->parts[0].path), expected, count, w->n_tensors);
    return st;
}

/* How many parts the first one claims; 0 and 1 both mean an ordinary file. */
static pn_status weights_split_count(const pn_weights *w, uint32_t *count, pn_err *err)
{
    uint64_t n = 1;
    bool found;
    pn_status st = weights_split_key(w, 0, "split.count", &found, &n, err);
    if (st != PN_OK)
        return st;
    if (n > WEIGHTS_PARTS_MAX)
        return pn_fail(err, PN_E_FORMAT, "%s: key 'split.count': expected at most %u, found %" PRIu64,
                       weights_tail(w->parts[0].path), WEIGHTS_PARTS_MAX, n);
    *count = n < 1 ? 1 : (uint32_t)n;
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * Parts of a folder
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_weights_add_part(pn_weights *w, const char *path, pn_err *err)
{
    return weights_part_new(w, path, strlen(path), err) ? PN_OK : PN_E_NOMEM;
}

PN_INTERNAL pn_status pn_weights_add_file(pn_weights *w, const char *path, pn_part **out, pn_err *err)
{
    pn_status st = weights_open_file(w, path, err);
    if (!st)
        st = weights_count_bytes(w, *out = &w->parts[w->n_parts - 1], err);
    return st;
}

PN_INTERNAL pn_status pn_weights_set_header(pn_weights *w, const void *bytes, size_t n, pn_err *err)
{
    pn_part *p = &w->parts[0];
    p->map = p->src.bytes = bytes;
    p->src.size = n;
    pn_status st = pn_gguf_read(&w->gguf[0], w->mem, &p->src, err);
    return st ? st : weights_add_tensors(w, 0, err);
}

PN_INTERNAL pn_status pn_weights_add_tensor(pn_weights *w, const pn_dir_tensor *t, pn_err *err)
{
    pn_status st = weights_reserve(w, t->part, 1, err);
    return st ? st : weights_put(w, t, err);
}

/* ------------------------------------------------------------------------------------------
 * Open and close
 * ------------------------------------------------------------------------------------------ */

static void weights_init(pn_weights *w, pn_mem *mem)
{
    memset(w, 0, sizeof *w);
    w->mem = mem;
    pn_map_init(&w->index, mem, PN_ACCT_MISC);
}

PN_INTERNAL void pn_weights_close(pn_weights *w)
{
    if (!w || !w->mem)
        return;
    pn_mem_free(w->mem, PN_ACCT_MISC, w->tensors, w->cap_tensors * sizeof *w->tensors);
    pn_mem_free(w->mem, PN_ACCT_MISC, w->retyped, w->n_own * sizeof *w->retyped);
    if (w->shares) {
        memset(w, 0, sizeof *w);
        return;
    }
    for (uint32_t i = 0; i < w->n_parts; i++) {
        pn_part *p = &w->parts[i];
        pn_gguf_fini(&w->gguf[i]);
        if (p->map_owned)
            pn_os_unmap(p->map, p->file.size);
        pn_os_close(&p->file);
        pn_mem_free(w->mem, PN_ACCT_MISC, p->path, strlen(p->path) + 1);
    }
    pn_map_fini(&w->index);
    pn_mem_free(w->mem, PN_ACCT_MISC, w->parts, w->cap_parts * sizeof *w->parts);
    pn_mem_free(w->mem, PN_ACCT_MISC, w->gguf, w->cap_gguf * sizeof *w->gguf);
    pn_hf_dir_close(w->hf, w->mem);
    memset(w, 0, sizeof *w);
}

static pn_status weights_open(pn_weights *w, const char *path, pn_err *err)
{
    uint32_t count = 1;
    bool folder = pn_hf_dir_is(path);
    pn_status st = folder ? pn_hf_dir_open(w, path, err) : weights_open_part(w, path, err);
    if (st && folder)
        pn_err_prefix(err, st, "%s", weights_tail(path));
    if (st == PN_OK && !folder)
        st = weights_split_count(w, &count, err);
    if (st == PN_OK && count > 1)
        st = weights_open_rest(w, count, err);
    if (st != PN_OK)
        pn_weights_close(w);
    return st;
}

PN_INTERNAL pn_status pn_weights_open_path(pn_weights *w, pn_mem *mem, const char *path, bool map, pn_err *err)
{
    weights_init(w, mem);
    w->map = map;
    return weights_open(w, path, err);
}

PN_INTERNAL pn_status pn_weights_look(pn_weights *w, pn_mem *mem, const char *path, pn_err *err)
{
    weights_init(w, mem);
    w->map = w->look = true;
    return weights_open(w, path, err);
}

/* A model that is one source: memory or a callback. */
static pn_status weights_open_single(pn_weights *w, pn_mem *mem, const char *name, const pn_source *src, pn_err *err)
{
    uint32_t count = 1;
    pn_status st = PN_E_NOMEM;
    weights_init(w, mem);
    pn_part *p = weights_part_new(w, name, strlen(name), err);
    if (p) {
        p->map = src->bytes;
        p->src = *src;
        p->src.name = p->path;
        st = weights_read_part(w, err);
    }
    if (st == PN_OK)
        st = weights_split_count(w, &count, err);
    if (st == PN_OK && count > 1)
        st = pn_fail(err, PN_E_UNSUPPORTED, "%s: part of a model of %" PRIu32
                     " parts: open it by the path of its first part, or join the parts", weights_tail(name), count);
    if (st != PN_OK)
        pn_weights_close(w);
    return st;
}

PN_INTERNAL pn_status pn_weights_open_memory(pn_weights *w, pn_mem *mem, const void *bytes, size_t n, pn_err *err)
{
    static const uint8_t none[1] = {0};         /* NULL with 0 bytes is an empty file, not a callback */
    const pn_source src = {.bytes = bytes ? bytes : none, .size = bytes ? n : 0};
    return weights_open_single(w, mem, "(memory)", &src, err);
}

PN_INTERNAL pn_status pn_weights_open_reader(pn_weights *w, pn_mem *mem, const pn_reader *r, pn_err *err)
{
    const pn_source src = {.read = r->read, .user = r->user, .size = r->size};
    if (!r->read) {
        memset(w, 0, sizeof *w);
        return pn_fail(err, PN_E_INVALID, "the reader has no read function");
    }
    return weights_open_single(w, mem, r->name ? r->name : "(reader)", &src, err);
}

/* ------------------------------------------------------------------------------------------
 * Use
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL const pn_dir_tensor *pn_weights_find(const pn_weights *w, const char *name)
{
    const uint32_t *i = pn_map_find(&w->index, name, strlen(name));
    return i ? &w->tensors[*i] : NULL;
}

PN_INTERNAL const pn_gguf_kv *pn_weights_meta(const pn_weights *w, const char *key)
{
    return pn_gguf_find(&w->gguf[0], key);
}

PN_INTERNAL pn_status pn_weights_map(pn_weights *w, pn_err *err)
{
    for (uint32_t i = 0; i < w->n_parts; i++) {
        pn_part *p = &w->parts[i];
        if (p->map)
            continue;
        if (p->file.fd < 0)
            return pn_fail(err, PN_E_UNSUPPORTED, "%s: a reader cannot be mapped", weights_tail(p->path));
        pn_status st = pn_os_map(&p->file, &p->map, err);
        if (st != PN_OK)
            return pn_err_prefix(err, st, "%s", weights_tail(p->path));
        p->map_owned = true;
    }
    return PN_OK;
}

PN_INTERNAL bool pn_weights_drop_cache(const pn_weights *w, uint64_t *at)
{
    uint64_t from = *at;
    for (uint32_t i = 0; i < w->n_parts; i++) {
        const pn_part *p = &w->parts[i];
        uint64_t size = p->map_owned ? p->file.size : 0;
        if (from < size) {
            uint64_t n = PN_MIN(size - from, WEIGHTS_DROP);
            pn_os_drop_cache(&p->file, p->map, from, n);
            *at += n;
            return true;
        }
        from -= size;
    }
    return false;
}

PN_INTERNAL pn_status pn_weights_share(pn_weights *out, const pn_weights *w, pn_err *err)
{
    *out = *w;
    out->shares = true;
    out->retyped = NULL;
    out->n_own = 0;
    out->cap_tensors = w->n_tensors;
    out->tensors = pn_mem_alloc(w->mem, PN_ACCT_MISC, w->n_tensors * sizeof *w->tensors);
    if (!out->tensors) {
        out->mem = NULL;
        return pn_fail_nomem(err, "a directory of tensors", (uint64_t)w->n_tensors * sizeof *w->tensors);
    }
    if (w->n_tensors)           /* without any, w->tensors is NULL */
        memcpy(out->tensors, w->tensors, w->n_tensors * sizeof *w->tensors);
    return PN_OK;
}

PN_INTERNAL pn_status pn_weights_retype(pn_weights *w, const uint32_t *types, pn_err *err)
{
    size_t n = 0, k = 0;
    for (size_t i = 0; i < w->n_tensors; i++)
        n += types[i] != w->tensors[i].t->dtype && types[i] != w->tensors[i].file->dtype;
    w->retyped = pn_mem_alloc(w->mem, PN_ACCT_MISC, n * sizeof *w->retyped);
    if (!w->retyped)
        return pn_fail_nomem(err, "a list of tensors", (uint64_t)n * sizeof *w->retyped);
    w->n_own = n;
    w->n_retyped = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        pn_dir_tensor *d = &w->tensors[i];
        const pn_gguf_tensor *t = d->file;
        if (types[i] == t->dtype)
            d->t = t;
        else if (types[i] != d->t->dtype) {
            pn_gguf_tensor *as = &w->retyped[k++];
            *as = *t;
            as->dtype = types[i];
            if (!pn_dtype_row_bytes(types[i], t->ne[0], &as->row_bytes) || !pn_mul_u64(as->row_bytes, t->n_elems / t->ne[0], &as->bytes))
                return pn_fail(err, PN_E_UNSUPPORTED, "tensor '%s': rows of %" PRIu64 " elements do not fit type %s", t->name, t->ne[0],
                               pn_dtype_name((pn_dtype)types[i]));
            d->t = as;
        }
        d->repacked = false;
        w->n_retyped += pn_weights_retyped(d);
    }
    return PN_OK;
}

PN_INTERNAL const void *pn_weights_piece_ptr(const pn_weights *w, const pn_dir_tensor *t, uint64_t i)
{
    const pn_piece at = pn_weights_piece(t, i);
    const uint8_t *map = w->parts[at.part].map;
    return map && !pn_weights_retyped(t) ? map + at.offset : NULL;
}

PN_INTERNAL const void *pn_weights_ptr(const pn_weights *w, const pn_dir_tensor *t)
{
    return t->pieces ? NULL : pn_weights_piece_ptr(w, t, 0);
}

static pn_status weights_read_raw(const pn_weights *w, uint32_t part, uint64_t offset, void *dst, size_t n, pn_err *err)
{
    const pn_part *p = &w->parts[part];
    pn_status st = PN_OK;
    if (p->file.fd >= 0) {
        st = pn_os_read(&p->file, offset, dst, n, err);
    } else if (p->src.bytes) {
        if (n)
            memcpy(dst, p->src.bytes + offset, n);
    } else if (n && p->src.read(p->src.user, offset, dst, n) != PN_OK) {
        st = pn_fail(err, PN_E_IO, "reading %zu bytes at offset %" PRIu64 " failed", n, offset);
    }
    return st;
}

PN_INTERNAL pn_status pn_weights_read_part(const pn_weights *w, uint32_t part, uint64_t offset, void *dst, size_t n, pn_err *err)
{
    pn_status st = weights_read_raw(w, part, offset, dst, n, err);
    return st ? pn_err_prefix(err, st, "%s", weights_tail(w->parts[part].path)) : PN_OK;
}

static pn_status weights_read_at(const pn_weights *w, const pn_dir_tensor *t, uint32_t part, uint64_t offset, void *dst,
                                 size_t n, pn_err *err)
{
    pn_status st = weights_read_raw(w, part, offset, dst, n, err);
    return st ? pn_err_prefix(err, st, "%s: tensor '%s'", weights_tail(w->parts[part].path), t->t->name) : PN_OK;
}

PN_INTERNAL pn_status pn_weights_read(const pn_weights *w, const pn_dir_tensor *t, uint64_t at, void *dst,
                                      size_t n, pn_err *err)
{
    if (at > t->file->bytes || n > t->file->bytes - at)
        return pn_fail(err, PN_E_INVALID, "tensor '%s' has %" PRIu64 " bytes: cannot read %zu at %" PRIu64,
                       t->t->name, t->file->bytes, n, at);
    if (t->packed)
        return pn_packed_read(w, t, at, dst, n, err);
    if (!t->pieces)
        return weights_read_at(w, t, t->part, t->file->offset + at, dst, n, err);
    uint64_t each = t->file->bytes / t->file->ne[2];
    pn_status st = PN_OK;
    for (size_t done = 0; done < n && !st;) {
        const pn_piece *p = &t->pieces[at / each];
        size_t some = (size_t)PN_MIN(each - at % each, (uint64_t)(n - done));
        st = weights_read_at(w, t, p->part, p->offset + at % each, (uint8_t *)dst + done, some, err);
        done += some;
        at += some;
    }
    return st;
}

#undef WEIGHTS_PARTS_MAX
#undef WEIGHTS_DROP
#undef WEIGHTS_SUFFIX_LEN
