/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_pth.c - files of torch against arbitrary bytes: the archive, the pickle, the tensors.
 *
 * Each input is opened from memory and through a callback, with the same answer expected of both, and every tensor
 * that was accepted is read.  What begins like a pickle is also put into a sound archive with two storages, so that
 * what it says of tensors is looked at.  Seeds: small files of tests/vectors/hf/hostile, and pickles.
 */
#include "fuzz_source.h"

#include "base/pn_str.h"
#include "format/pn_pickle.h"
#include "format/pn_pth.h"
#include "format/pn_zip.h"

typedef struct fuzz_sum {
    uint64_t bytes, sum;
} fuzz_sum;

static pn_status fuzz_sink(void *user, const void *bytes, size_t n, pn_err *err)
{
    fuzz_sum *s = user;
    const uint8_t *b = bytes;
    (void)err;
    for (size_t i = 0; i < n; i++)
        s->sum = s->sum * 31 + b[i];
    s->bytes += n;
    return PN_OK;
}

static uint64_t fuzz_tensors(const pn_pth *p, size_t size)
{
    fuzz_sum s = {0};
    for (size_t i = 0; i < p->n_tensors; i++) {
        const pn_pth_tensor *t = &p->tensors[i];
        const pn_pth_storage *from = &p->storages[t->storage];
        FUZZ_MUST(t->name[0] && t->rank <= PN_ST_MAX_RANK && t->storage < p->n_storages);
        FUZZ_MUST(from->offset <= size && from->bytes <= size - from->offset);
        if (t->contiguous && t->n_elems)
            FUZZ_MUST(pn_pth_offset(p, t) >= from->offset && pn_pth_offset(p, t) + t->bytes <= from->offset + from->bytes);
        uint64_t before = s.bytes;
        FUZZ_MUST(pn_pth_stream(p, t, fuzz_sink, &s, NULL) == PN_OK && s.bytes - before == t->bytes);
    }
    return s.sum;
}

static void fuzz_file(pn_mem *mem, const uint8_t *data, size_t size)
{
    pn_pth a, b;
    pn_err ea = {0}, eb = {0};
    fuzz_source both;
    fuzz_source_init(&both, data, size);
    pn_status sa = pn_pth_open(&a, mem, &both.memory, &ea), sb = pn_pth_open(&b, mem, &both.callback, &eb);
    FUZZ_MUST(sa == sb && strcmp(ea.text, eb.text) == 0);
    if (sa == PN_OK)
        FUZZ_MUST(a.n_tensors > 0 && a.n_tensors == b.n_tensors && fuzz_tensors(&a, size) == fuzz_tensors(&b, size));
    else
        FUZZ_MUST(ea.text[0] != 0 && a.n_tensors == 0 && a.n_storages == 0);
    pn_pth_close(&a);
    pn_pth_close(&b);
}

/* A member as it is in `out`, and its entry in `dir`. */
static void fuzz_member(pn_str *out, pn_str *dir, const char *name, const void *bytes, size_t n)
{
    size_t n_name = strlen(name), at = out->len;
    const char size[4] = {(char)n, (char)(n >> 8), (char)(n >> 16), (char)(n >> 24)};
    const char where[4] = {(char)at, (char)(at >> 8), (char)(at >> 16), (char)(at >> 24)};
    const char len[4] = {(char)n_name, 0, 0, 0};
    pn_str_add(out, "PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 18);
    pn_str_add(out, size, 4);
    pn_str_add(out, size, 4);
    pn_str_add(out, len, 4);
    pn_str_add(out, name, n_name);
    pn_str_add(out, bytes, n);
    pn_str_add(dir, "PK\1\2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
    pn_str_add(dir, size, 4);
    pn_str_add(dir, size, 4);
    pn_str_add(dir, len, 4);
    pn_str_add(dir, "\0\0\0\0\0\0\0\0\0\0", 10);
    pn_str_add(dir, where, 4);
    pn_str_add(dir, name, n_name);
}

/* The pickle with storages "0" of 64 bytes and "1" of 16. */
static void fuzz_pickle(pn_mem *mem, const uint8_t *data, size_t size)
{
    uint8_t storage[64];
    pn_pickle p;
    pn_err err = {0};
    pn_str out, dir;
    for (size_t i = 0; i < sizeof storage; i++)
        storage[i] = (uint8_t)(7 * i);
    pn_status st = pn_pickle_read(&p, mem, data, size, 0, &err);
    FUZZ_MUST(st == PN_OK ? p.used <= size && p.root < p.n_values && p.n_values <= size && p.n_cells <= 2 * size * size
                          : err.text[0] != 0 && p.n_values == 0);
    pn_pickle_fini(&p);
    pn_str_init(&out, mem, PN_ACCT_MISC);
    pn_str_init(&dir, mem, PN_ACCT_MISC);
    fuzz_member(&out, &dir, "a/data.pkl", data, size);
    fuzz_member(&out, &dir, "a/data/0", storage, 64);
    fuzz_member(&out, &dir, "a/data/1", storage, 16);
    const size_t at = out.len;
    pn_str_add(&out, dir.data, dir.len);
    const char end[22] = {'P', 'K', 5, 6, 0, 0, 0, 0, 3, 0, 3, 0, (char)dir.len, 0, 0, 0,
                          (char)at, (char)(at >> 8), (char)(at >> 16), (char)(at >> 24), 0, 0};
    FUZZ_MUST(dir.len < 256);
    pn_str_add(&out, end, sizeof end);
    FUZZ_MUST(!out.failed && !dir.failed);
    fuzz_file(mem, (const uint8_t *)out.data, out.len);
    pn_str_fini(&out);
    pn_str_fini(&dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pn_mem mem;
    static const uint8_t none[1] = {0};
    pn_mem_init_libc(&mem);
    fuzz_file(&mem, data ? data : none, size);
    if (size && data[0] == 0x80)
        fuzz_pickle(&mem, data, size);
    return 0;
}
