/* SPDX-License-Identifier: AGPL-3.0-only */
#include "format/pn_hf_dir_impl.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/pn_err.h"
#include "base/pn_os_dir.h"
#include "num/pn_quant.h"

enum { HFD_CONFIG_MAX = 16 << 20, HFD_CHUNK = 4096 };

/* ------------------------------------------------------------------------------------------
 * Files
 * ------------------------------------------------------------------------------------------ */

static bool hfd_ends(const char *path, const char *end)
{
    size_t n = strlen(path), k = strlen(end);
    return n > k && strcmp(path + n - k, end) == 0;
}

/* Weights that are nothing without the rest of their folder. */
static bool hfd_is_file(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return hfd_ends(name, ".safetensors") || hfd_ends(name, ".pth") || hfd_ends(name, ".pt") ||
           (hfd_ends(name, ".bin") && strncmp(name, "pytorch_model", 13) == 0);
}

PN_INTERNAL bool pn_hf_dir_is(const char *path) { return hfd_is_file(path) ? pn_os_same_file(path, path) : pn_os_is_dir(path); }

/* folder + name, in PN_ACCT_STAGE. */
static char *hfd_path(const pn_hf_dir *d, pn_mem *mem, const char *name, size_t *size)
{
    size_t a = strlen(d->folder), b = strlen(name);
    char *path = pn_mem_alloc(mem, PN_ACCT_STAGE, *size = a + b + 1);
    if (path) {
        memcpy(path, d->folder, a);
        memcpy(path + a, name, b + 1);
    }
    return path;
}

static bool hfd_exists(const hfd *h, const char *name, pn_status *st)
{
    size_t size;
    char *path = hfd_path(h->d, h->mem, name, &size);
    if (!path && !*st)
        *st = pn_fail_nomem(h->err, "a path", size);
    bool there = path && pn_os_same_file(path, path);
    pn_mem_free(h->mem, PN_ACCT_STAGE, path, size);
    return there;
}

static pn_status hfd_slurp(pn_mem *mem, const char *path, const char *name, size_t most, pn_bytes *out, pn_err *err)
{
    pn_os_file f = {.fd = -1};
    pn_status st = pn_os_open(&f, path, err);
    char *bytes = NULL;
    if (!st && f.size > most)
        st = pn_fail(err, PN_E_FORMAT, "%s has %" PRIu64 " bytes, expected at most %zu", name, f.size, most);
    if (!st) {
        bytes = pn_mem_alloc(mem, PN_ACCT_STAGE, (size_t)f.size + 1);
        st = bytes ? pn_os_read(&f, 0, bytes, (size_t)f.size, err) : pn_fail_nomem(err, name, f.size + 1);
    }
    if (!st && f.size > 20 && memcmp(bytes, "version https://git-", 20) == 0)
        st = pn_fail(err, PN_E_FORMAT, "%s is a Git LFS pointer: fetch the real file", name);
    if (!st) {
        bytes[f.size] = 0;
        *out = (pn_bytes){bytes, (size_t)f.size};
    } else if (bytes)
        pn_mem_free(mem, PN_ACCT_STAGE, bytes, (size_t)f.size + 1);
    pn_os_close(&f);
    return st;
}

PN_INTERNAL pn_status pn_hf_file_read(const pn_hf_dir *d, pn_mem *mem, const char *name, size_t most, pn_bytes *out, pn_err *err)
{
    size_t size;
    char *path = hfd_path(d, mem, name, &size);
    *out = (pn_bytes){NULL, 0};
    if (!path)
        return pn_fail_nomem(err, "a path", size);
    pn_status st = pn_os_same_file(path, path) ? hfd_slurp(mem, path, name, most, out, err) : PN_OK;
    pn_mem_free(mem, PN_ACCT_STAGE, path, size);
    return st;
}

PN_INTERNAL void pn_hf_file_free(pn_mem *mem, pn_bytes *file)
{
    pn_mem_free(mem, PN_ACCT_STAGE, (void *)(uintptr_t)file->data, file->len + 1);
    *file = (pn_bytes){NULL, 0};
}

/* ------------------------------------------------------------------------------------------
 * Configuration
 * ------------------------------------------------------------------------------------------ */

/* What the model is called: its folder's last name, if the path says one. */
static void hfd_folder_name(const pn_hf_dir *d, char out[64])
{
    size_t end = strlen(d->folder), n;
    while (end && d->folder[end - 1] == '/')
        end--;
    size_t from = end;
    while (from && d->folder[from - 1] != '/')
        from--;
    n = PN_MIN(end - from, (size_t)63);
    memcpy(out, d->folder + from, n);
    out[n] = 0;
    if (strspn(out, ".") == n)
        memcpy(out, "model", sizeof "model");
}

/* For people who give the folder around a GGUF file: its first one in byte order, or "". */
typedef struct hfd_gguf { char name[128]; } hfd_gguf;

static bool hfd_see_gguf(void *user, const char *name, uint64_t bytes, uint64_t modified)
{
    hfd_gguf *g = user;
    size_t n = strlen(name);
    (void)bytes, (void)modified;
    if (hfd_ends(name, ".gguf") && n < sizeof g->name && strncmp(name, "mmproj", 6) && (!g->name[0] || strcmp(name, g->name) < 0))
        memcpy(g->name, name, n + 1);
    return true;
}

/* What to add to a refusal of the folder, or nothing. */
typedef struct hfd_text { char s[160]; } hfd_text;

static hfd_text hfd_hint(const hfd *h)
{
    hfd_gguf g = {""};
    hfd_text out = {""};
    if (pn_os_dir_each(h->d->folder[0] ? h->d->folder : ".", hfd_see_gguf, &g, NULL) == PN_OK && g.name[0])
        snprintf(out.s, sizeof out.s, "; the GGUF file in it has to be named: '%s'", pn_show(g.name, strlen(g.name)).s);
    return out;
}

/* There is no config.json: what is it then? */
static pn_status hfd_no_config(hfd *h, bool file)
{
    static const struct { char file[24]; const char *say; } hints[] = {
        {"adapter_config.json", "an adapter, not a model: it has to be merged into its base first"},
        {"params.json", "a model in Mistral's own layout, which is not read: use the folder with config.json"}};
    pn_status st = PN_OK;
    for (size_t i = 0; i < PN_COUNT_OF(hints) && !st; i++)
        if (hfd_exists(h, hints[i].file, &st))
            return pn_fail(h->err, PN_E_UNSUPPORTED, "%s without config.json: %s", hints[i].file, hints[i].say);
    if (!st && file)
        st = pn_fail(h->err, PN_E_FORMAT, "there is no config.json beside it, and tensors alone are no model");
    return st ? st : pn_fail(h->err, PN_E_FORMAT, "there is no config.json, so this is no model folder%s", hfd_hint(h).s);
}

static pn_status hfd_config(hfd *h, bool file)
{
    pn_bytes config = {NULL, 0}, generation = {NULL, 0};
    char name[64];
    hfd_folder_name(h->d, name);
    pn_status st = pn_hf_file_read(h->d, h->mem, "config.json", HFD_CONFIG_MAX, &config, h->err);
    if (!st && !config.data)
        st = hfd_no_config(h, file);
    if (!st)
        st = pn_hf_file_read(h->d, h->mem, "generation_config.json", HFD_CONFIG_MAX, &generation, h->err);
    if (!st)
        st = pn_hf_config_read(&h->c, h->mem, name, config, generation, &h->header, h->err);
    pn_hf_file_free(h->mem, &config);
    pn_hf_file_free(h->mem, &generation);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Parts
 * ------------------------------------------------------------------------------------------ */

/* Put the tensors of the newest file on the list. */
static pn_status hfd_list(hfd *h, const hfd_file *f)
{
    const pn_safetensors *s = &f->st;
    if (!pn_map_reserve(&h->names, (uint32_t)(h->n_refs + s->n_tensors)) ||
        !pn_mem_grow(h->mem, PN_ACCT_STAGE, (void **)&h->refs, &h->cap_refs, h->n_refs + s->n_tensors, sizeof *h->refs))
        return pn_fail_nomem(h->err, "the list of tensors", (h->n_refs + s->n_tensors) * sizeof *h->refs);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const pn_st_tensor *t = &s->tensors[i];
        const char *name = h->w->bare ? t->name : pn_hf_name(t->name);
        bool existed = false;
        uint32_t *at = pn_map_put(&h->names, name, strlen(name), (uint32_t)h->n_refs, &existed);
        if (!at)
            return pn_fail_nomem(h->err, "the list of tensors", (h->n_refs + 1) * sizeof *h->refs);
        if (existed)
            return pn_fail(h->err, PN_E_FORMAT, "tensors '%s' and '%s' are the same one", pn_show(h->refs[*at].t->name, strlen(h->refs[*at].t->name)).s,
                           pn_show(t->name, strlen(t->name)).s);
        hfd_ref *r = &h->refs[h->n_refs++];
        *r = (hfd_ref){.t = t, .part = h->w->n_parts - 1};
        if (f->bin.mem && (f->bin.big_endian || !f->bin.tensors[i].contiguous))
            r->gather = &f->bin.tensors[i];
    }
    return PN_OK;
}

/* The table of a .bin, in the same order. */
static pn_status hfd_read_bin(hfd *h, hfd_file *f, const pn_source *src)
{
    pn_status st = pn_pth_open(&f->bin, h->mem, src, h->err);
    if (st)
        return st;
    size_t n = f->bin.n_tensors;
    pn_safetensors *s = &f->st;
    *s = (pn_safetensors){.mem = h->mem};
    pn_map_init(&s->index, h->mem, PN_ACCT_MISC);
    s->tensors = pn_mem_calloc(h->mem, PN_ACCT_MISC, n, sizeof *s->tensors);
    s->n_tensors = s->tensors ? n : 0;
    bool ok = s->tensors && pn_map_reserve(&s->index, (uint32_t)n);
    for (size_t i = 0; i < n && ok; i++) {
        const pn_pth_tensor *t = &f->bin.tensors[i];
        s->tensors[i] = (pn_st_tensor){.name = t->name, .dtype = t->dtype, .rank = t->rank, .n_elems = t->n_elems, .bytes = t->bytes,
                                       .offset = t->contiguous ? pn_pth_offset(&f->bin, t) : 0};
        memcpy(s->tensors[i].shape, t->shape, sizeof t->shape);
        ok = pn_map_put(&s->index, t->name, strlen(t->name), (uint32_t)i, NULL) != NULL;
    }
    return ok ? PN_OK : pn_fail_nomem(h->err, "a table of tensors", n * (sizeof *s->tensors + sizeof(pn_map_slot)));
}

static pn_status hfd_open_file(hfd *h, const char *name)
{
    size_t size;
    char *path = hfd_path(h->d, h->mem, name, &size);
    pn_part *p = NULL;
    pn_status st = path ? pn_weights_add_file(h->w, path, &p, h->err) : pn_fail_nomem(h->err, "a path", size);
    pn_mem_free(h->mem, PN_ACCT_STAGE, path, size);
    if (st)
        return st;
    pn_source src = p->src;
    src.name = name;            /* whoever opens a folder puts its path in front */
    hfd_file *f = &h->files[h->n_files++];
    st = hfd_ends(name, ".safetensors") ? pn_safetensors_read(&f->st, h->mem, &src, h->err) : hfd_read_bin(h, f, &src);
    if (!st && h->indexed)
        st = pn_st_index_check(&h->index, (uint32_t)(f - h->files), &f->st, h->err);
    return st ? st : hfd_list(h, f);
}

static pn_status hfd_read_index(hfd *h, const char *name)
{
    pn_bytes text;
    pn_status st = pn_hf_file_read(h->d, h->mem, name, PN_ST_HEADER_MAX, &text, h->err);
    if (!st && text.data) {
        const pn_source src = {.bytes = (const uint8_t *)text.data, .size = text.len, .name = name};
        st = pn_st_index_read(&h->index, h->mem, &src, h->err);
        h->indexed = !st;
    }
    pn_hf_file_free(h->mem, &text);
    return st;
}

/* Of a file of several the user means all: read the index that names it, if there is one. */
static pn_status hfd_siblings(hfd *h, const char **only)
{
    pn_status st = hfd_read_index(h, hfd_ends(*only, ".safetensors") ? "model.safetensors.index.json" : "pytorch_model.bin.index.json");
    bool named = false;
    for (size_t i = 0; i < h->index.n_files && h->indexed; i++)
        named = named || strcmp(h->index.files[i].name, *only) == 0;
    if (named)
        *only = NULL;
    else if (h->indexed) {
        pn_st_index_fini(&h->index);
        h->indexed = false;
    }
    return st;
}

/* Which files hold the weights; `only`: the one the user named, or NULL.  What exists first counts. */
static pn_status hfd_files(hfd *h, const char *only)
{
    static const struct { char one[20], many[32]; } kinds[] = {
        {"model.safetensors", "model.safetensors.index.json"}, {"pytorch_model.bin", "pytorch_model.bin.index.json"}};
    bool whole = only && (h->w->bare || strcmp(only, kinds[0].one) == 0 || strcmp(only, kinds[1].one) == 0);
    pn_status st = only && !whole ? hfd_siblings(h, &only) : PN_OK;
    for (size_t i = 0; i < PN_COUNT_OF(kinds) && !st && !only && !h->indexed; i++) {
        if (hfd_exists(h, kinds[i].one, &st))
            only = kinds[i].one;
        else if (!st)
            st = hfd_read_index(h, kinds[i].many);
    }
    if (!st && !only && !h->indexed)
        st = pn_fail(h->err, PN_E_FORMAT, "there is none of %s, %s, %s and %s%s", kinds[0].one, kinds[0].many, kinds[1].one, kinds[1].many,
                     hfd_hint(h).s);
    h->cap_files = only ? 1 : h->index.n_files;
    h->files = st ? NULL : pn_mem_calloc(h->mem, PN_ACCT_STAGE, h->cap_files, sizeof *h->files);
    if (!st && !h->files)
        st = pn_fail_nomem(h->err, "a table of files", h->cap_files * sizeof *h->files);
    for (size_t i = 0; i < h->cap_files && !st; i++)
        st = hfd_open_file(h, only ? only : h->index.files[i].name);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Part 0
 * ------------------------------------------------------------------------------------------ */

static uint32_t hfd_image_type(const struct pn_hf_tensor *x) { return x->why == HFD_COPY ? x->t.dtype : (uint32_t)PN_DTYPE_F32; }
static uint64_t hfd_image_bytes(const struct pn_hf_tensor *x) { return x->why == HFD_COPY ? x->t.bytes : x->t.n_elems * sizeof(float); }

static pn_dir_tensor hfd_dir_tensor(const hfd *h, const struct pn_hf_tensor *x)
{
    if (x->packed) {
        const pn_packed *p = &h->d->packed[x->packed - 1];
        return (pn_dir_tensor){.t = x->as.dtype == x->t.dtype ? &x->t : &x->as, .file = &x->t, .part = x->part, .repacked = p->repacks, .packed = p};
    }
    return (pn_dir_tensor){.t = &x->t, .file = &x->t, .part = x->part, .pieces = x->scattered ? h->d->pieces + x->piece0 : NULL};
}

/* Elements on their way to part 0. */
typedef struct hfd_flow {
    const struct pn_hf_tensor *x;
    uint8_t *dst;
    uint64_t at, period, from, n;       /* of a stream at `at`: of each period n bytes, `from` its beginning, are ours */
} hfd_flow;

static pn_status hfd_take(void *user, const void *bytes, size_t n, pn_err *err)
{
    hfd_flow *f = user;
    const uint8_t *raw = bytes;
    const struct pn_hf_tensor *x = f->x;
    size_t size = (size_t)(x->t.bytes / x->t.n_elems);
    float out[HFD_CHUNK / 2];
    (void)err;
    if (x->why == HFD_COPY) {
        memcpy(f->dst, raw, n);
        f->dst += n;
        return PN_OK;
    }
    for (size_t k; n; raw += k * size, n -= k * size) {
        k = PN_MIN(n / size, PN_COUNT_OF(out));
        if (!x->f64)
            pn_dequant_row(x->t.dtype, raw, out, k);
        for (size_t i = 0; i < k && x->f64; i++) {
            double v;
            memcpy(&v, raw + 8 * i, 8);
            out[i] = (float)v;
        }
        for (size_t i = 0; i < k && x->plus_one; i++)
            out[i] += 1;
        memcpy(f->dst, out, k * sizeof *out);
        f->dst += k * sizeof *out;
    }
    return PN_OK;
}

/* A pn_pth_sink: what is ours of a tensor that holds more. */
static pn_status hfd_pick(void *user, const void *bytes, size_t n, pn_err *err)
{
    hfd_flow *f = user;
    const uint8_t *raw = bytes;
    for (size_t some; n; raw += some, n -= some, f->at += some) {
        uint64_t in = f->at % f->period, end = in < f->from ? f->from : in < f->from + f->n ? f->from + f->n : f->period;
        some = (size_t)PN_MIN(end - in, (uint64_t)n);
        pn_status st = end == f->from + f->n && in >= f->from ? hfd_take(f, raw, some, err) : PN_OK;
        if (st)
            return st;
    }
    return PN_OK;
}

static pn_status hfd_gather(hfd *h, hfd_flow *f, uint32_t part, const pn_pth_tensor *t, uint64_t period, uint64_t from, uint64_t n)
{
    pn_pth *bin = &h->files[part - 1].bin;
    bin->src = h->w->parts[part].src;           /* parts have moved since it was opened */
    f->at = 0;
    f->period = period;
    f->from = from;
    f->n = n;
    return pn_pth_stream(bin, t, hfd_pick, f, h->err);
}

/* Bytes [at, end) of x, which lie in their file. */
static pn_status hfd_copy(hfd *h, hfd_flow *f, uint64_t at, uint64_t end)
{
    const pn_dir_tensor from = hfd_dir_tensor(h, f->x);
    uint8_t raw[HFD_CHUNK];
    pn_status st = PN_OK;
    for (; at < end && !st; at += sizeof raw) {
        size_t n = (size_t)PN_MIN(end - at, (uint64_t)sizeof raw);
        st = pn_weights_read(h->w, &from, at, raw, n, h->err);
        if (!st)
            st = hfd_take(f, raw, n, h->err);
    }
    return st;
}

static pn_status hfd_compute(hfd *h, const struct pn_hf_tensor *x, uint8_t *dst)
{
    uint64_t each = x->t.bytes / x->t.ne[2];
    hfd_flow f = {.x = x, .dst = dst};
    pn_status st = PN_OK;
    if (x->gather)
        return hfd_gather(h, &f, x->part, x->gather, x->period ? x->period : x->t.bytes, x->from, each);
    for (uint64_t e = 0; e < x->t.ne[2] && !st; e++) {
        size_t piece = x->piece0 + (size_t)e;
        const pn_pth_tensor *g = x->scattered ? h->gathers[piece] : NULL;
        st = g ? hfd_gather(h, &f, h->d->pieces[piece].part, g, each, 0, each) : hfd_copy(h, &f, e * each, (e + 1) * each);
    }
    return st;
}

static const char *const hfd_factor_names[] = {"rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"};

/* The table of tensors in part 0: factors, then what is computed. */
static void hfd_image_table(hfd *h)
{
    const uint64_t n = h->c.n_rot / 2;
    for (int i = 0; i < 2; i++)
        if (h->c.factors[i])
            pn_gguf_put_tensor(&h->header, hfd_factor_names[i + (h->c.factors[1] != NULL)], PN_DTYPE_F32, 1, &n, n * sizeof(float));
    for (size_t i = 0; i < h->d->n; i++) {
        const struct pn_hf_tensor *x = &h->d->tensors[i];
        if (x->why != HFD_IN_PLACE)
            pn_gguf_put_tensor(&h->header, x->name, hfd_image_type(x), x->t.n_dims, x->t.ne, hfd_image_bytes(x));
    }
}

static pn_status hfd_image_data(hfd *h, uint8_t *at)
{
    size_t n = h->c.n_rot / 2 * sizeof(float);
    pn_status st = PN_OK;
    for (int i = 0; i < 2; i++)
        if (h->c.factors[i]) {
            memcpy(at, h->c.factors[i], n);
            at += n + pn_gguf_pad(n);
        }
    for (size_t i = 0; i < h->d->n && !st; i++) {
        const struct pn_hf_tensor *x = &h->d->tensors[i];
        if (x->why == HFD_IN_PLACE)
            continue;
        st = hfd_compute(h, x, at);
        at += hfd_image_bytes(x) + pn_gguf_pad(hfd_image_bytes(x));
    }
    return st;
}

static pn_status hfd_image(hfd *h)
{
    pn_str head;
    pn_hf_dir *d = h->d;
    pn_str_init(&head, h->mem, PN_ACCT_STAGE);
    hfd_image_table(h);
    pn_status st = pn_gguf_header(&h->header, &head) ? PN_OK : pn_fail_nomem(h->err, "a header", head.len);
    uint64_t bytes = head.len + h->header.data_bytes;
    if (!st) {
        d->image = bytes <= SIZE_MAX ? pn_mem_calloc(h->mem, PN_ACCT_WEIGHTS, bytes, 1) : NULL;
        d->image_bytes = d->image ? (size_t)bytes : 0;
        st = d->image ? PN_OK : pn_fail_nomem(h->err, "the header and computed tensors", bytes);
    }
    if (!st) {
        memcpy(d->image, head.data, head.len);
        st = hfd_image_data(h, d->image + head.len);
    }
    pn_str_fini(&head);
    return st ? st : pn_weights_set_header(h->w, d->image, d->image_bytes, h->err);
}

/* ------------------------------------------------------------------------------------------
 * Opening
 * ------------------------------------------------------------------------------------------ */

static pn_status hfd_directory(hfd *h)
{
    pn_status st = PN_OK;
    for (size_t i = 0; i < h->d->n && !st; i++) {
        const struct pn_hf_tensor *x = &h->d->tensors[i];
        const pn_dir_tensor t = hfd_dir_tensor(h, x);
        if (x->why == HFD_IN_PLACE)
            st = pn_weights_add_tensor(h->w, &t, h->err);
    }
    return st;
}

/* One tensor of a file that is only looked at. */
static void hfd_look_at(const hfd *h, const hfd_ref *r, struct pn_hf_tensor *x)
{
    const pn_st_tensor *t = r->t;
    const pn_st_dtype_info *info = pn_st_dtype_get(t->dtype);
    *x = (struct pn_hf_tensor){.part = r->part, .st_dtype = (uint8_t)t->dtype};
    x->t = (pn_gguf_tensor){.dtype = info->dtype, .n_dims = PN_MIN(t->rank, 4u), .ne = {1, 1, 1, 1}, .n_elems = t->n_elems, .bytes = t->bytes};
    for (uint32_t k = 0; k < t->rank; k++)              /* of more than four dimensions the slowest become one */
        x->t.ne[PN_MIN(t->rank - 1 - k, 3u)] *= t->shape[k];
    x->t.row_bytes = x->t.ne[0] * info->bits / 8;
    x->t.offset = r->gather ? pn_pth_offset(&h->files[r->part - 1].bin, r->gather) : t->offset;
}

/* The tensors of one file as they are; no keys. */
static pn_status hfd_look(hfd *h, const char *name)
{
    pn_hf_dir *d = h->d;
    pn_status st = hfd_files(h, name);
    for (size_t i = 0; i < h->n_refs && !st; i++)
        d->names_bytes += strlen(h->refs[i].t->name) + 1;
    if (!st && h->n_refs) {
        d->names = pn_mem_alloc(h->mem, PN_ACCT_MISC, d->names_bytes);
        if (!d->names || !pn_mem_grow(h->mem, PN_ACCT_MISC, (void **)&d->tensors, &d->cap, h->n_refs, sizeof *d->tensors))
            return pn_fail_nomem(h->err, "the directory of tensors", h->n_refs * sizeof *d->tensors + d->names_bytes);
    }
    for (size_t at = 0; d->n < h->n_refs && !st; d->n++) {
        size_t n = strlen(h->refs[d->n].t->name) + 1;
        hfd_look_at(h, &h->refs[d->n], &d->tensors[d->n]);
        d->tensors[d->n].t.name = memcpy(d->names + at, h->refs[d->n].t->name, n);
        at += n;
    }
    return st;
}

PN_INTERNAL const char *pn_hf_dir_type(const pn_hf_dir *d, size_t i) { return pn_st_dtype_get(d->tensors[i].st_dtype)->name; }

static pn_status hfd_open(hfd *h, const char *path)
{
    size_t len = strlen(path), cut = len;
    bool file = hfd_is_file(path) && !pn_os_is_dir(path);
    while (file && cut && path[cut - 1] != '/')
        cut--;
    bool slash = cut && path[cut - 1] != '/';
    h->d->folder = pn_mem_strndup(h->mem, PN_ACCT_MISC, path, cut + slash);
    if (!h->d->folder)
        return pn_fail_nomem(h->err, "a path", (uint64_t)cut + 2);
    if (slash)
        h->d->folder[cut] = '/';
    pn_status st = pn_weights_add_part(h->w, path, h->err);
    h->w->bare = !st && h->w->look && file && !hfd_exists(h, "config.json", &st);
    if (!st && h->w->bare)
        st = hfd_look(h, path + cut);
    else if (!st)
        st = hfd_config(h, file);
    if (!st && !h->w->bare)
        st = hfd_files(h, file ? path + cut : NULL);
    if (!st && !h->w->bare)
        st = pn_hf_bind(h);
    for (size_t i = 0; i < h->d->n && !st && !h->w->bare; i++)
        h->d->tensors[i].t.name = h->d->tensors[i].as.name = h->d->tensors[i].name;     /* the tables have stopped moving */
    for (size_t i = 0; i < h->d->n_packed && !st; i++)
        h->d->packed[i].places = h->d->places + h->d->packed[i].place0;
    if (!st)
        st = hfd_image(h);
    return st ? st : hfd_directory(h);
}

PN_INTERNAL pn_status pn_hf_dir_open(pn_weights *w, const char *path, pn_err *err)
{
    hfd h = {.w = w, .mem = w->mem, .err = err};
    h.d = w->hf = pn_mem_calloc(w->mem, PN_ACCT_MISC, 1, sizeof *h.d);
    if (!h.d)
        return pn_fail_nomem(err, "a folder", sizeof *h.d);
    pn_gguf_writer_init(&h.header, w->mem);
    pn_map_init(&h.names, w->mem, PN_ACCT_STAGE);
    pn_status st = hfd_open(&h, path);
    for (size_t i = 0; i < h.n_files; i++) {
        pn_safetensors_fini(&h.files[i].st);
        pn_pth_close(&h.files[i].bin);
    }
    pn_mem_free(w->mem, PN_ACCT_STAGE, h.files, h.cap_files * sizeof *h.files);
    pn_mem_free(w->mem, PN_ACCT_STAGE, h.refs, h.cap_refs * sizeof *h.refs);
    pn_mem_free(w->mem, PN_ACCT_STAGE, h.gathers, h.cap_gathers * sizeof *h.gathers);
    pn_map_fini(&h.names);
    pn_st_index_fini(&h.index);
    pn_gguf_writer_fini(&h.header);
    pn_hf_config_fini(&h.c);
    return st;
}

PN_INTERNAL void pn_hf_dir_close(pn_hf_dir *d, pn_mem *mem)
{
    if (!d)
        return;
    if (d->folder)
        pn_mem_free(mem, PN_ACCT_MISC, d->folder, strlen(d->folder) + 1);
    pn_mem_free(mem, PN_ACCT_MISC, d->tensors, d->cap * sizeof *d->tensors);
    pn_mem_free(mem, PN_ACCT_MISC, d->names, d->names_bytes);
    pn_mem_free(mem, PN_ACCT_MISC, d->pieces, d->cap_pieces * sizeof *d->pieces);
    pn_mem_free(mem, PN_ACCT_MISC, d->packed, d->cap_packed * sizeof *d->packed);
    pn_mem_free(mem, PN_ACCT_MISC, d->places, d->cap_places * sizeof *d->places);
    pn_mem_free(mem, PN_ACCT_WEIGHTS, d->image, d->image_bytes);
    pn_mem_free(mem, PN_ACCT_MISC, d, sizeof *d);
}

PN_INTERNAL uint64_t pn_hf_dir_bytes(const pn_hf_dir *d)
{
    return (uint64_t)d->image_bytes + d->cap * sizeof *d->tensors + d->cap_pieces * sizeof *d->pieces + d->cap_packed * sizeof *d->packed +
           d->cap_places * sizeof *d->places;
}
