/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_safetensors.c - the safetensors reader and the index reader against arbitrary bytes.
 *
 * Each input is read from memory and through a callback, with the same answer expected of both; what was accepted
 * keeps the promises of the header, and written anew it reads back.  The same bytes are tried as an index.
 * Seeds: small files of tests/vectors/hf.
 */
#include "fuzz_source.h"

#include "format/pn_safetensors.h"

static void fuzz_promises(const pn_safetensors *s, size_t size)
{
    uint64_t end = s->data_start;
    for (size_t i = 0; i < s->n_tensors; i++) {
        const pn_st_tensor *t = &s->tensors[i];
        uint64_t n = 1;
        FUZZ_MUST(pn_safetensors_find(s, t->name) == t && strlen(t->name) <= PN_ST_MAX_NAME && t->name[0]);
        FUZZ_MUST(t->rank <= PN_ST_MAX_RANK && t->dtype < PN_ST_DTYPE_COUNT && t->offset == end);
        for (uint32_t k = 0; k < PN_ST_MAX_RANK; k++)
            n *= t->shape[k];
        FUZZ_MUST(n == t->n_elems && t->bytes * 8 == n * pn_st_dtype_get(t->dtype)->bits);
        end += t->bytes;
    }
    FUZZ_MUST(end == size);
    for (size_t i = 0; i < s->n_meta; i++)
        FUZZ_MUST(s->meta[i].key.data[s->meta[i].key.len] == 0 && s->meta[i].value.data[s->meta[i].value.len] == 0);
}

/* Without data: what the header says of them is what counts. */
static void fuzz_round_trip(const pn_safetensors *s, pn_mem *mem, size_t size)
{
    pn_str out;
    pn_err err = {0};
    pn_safetensors again;
    pn_st_tensor *list = malloc((s->n_tensors + 1) * sizeof *list);
    FUZZ_MUST(list != NULL);
    if (s->n_tensors)
        memcpy(list, s->tensors, s->n_tensors * sizeof *list);
    pn_str_init(&out, mem, PN_ACCT_MISC);
    FUZZ_MUST(pn_st_header(&out, list, s->n_tensors, s->meta, s->n_meta, &err) == PN_OK);
    for (uint64_t n = size - s->data_start; n > 0; n--)
        pn_str_addc(&out, 0);
    pn_source src = {.bytes = (const uint8_t *)out.data, .size = out.len, .name = "again"};
    FUZZ_MUST(pn_safetensors_read(&again, mem, &src, &err) == PN_OK);
    FUZZ_MUST(again.n_tensors == s->n_tensors && again.n_meta == s->n_meta);
    for (size_t i = 0; i < again.n_tensors; i++) {
        const pn_st_tensor *t = pn_safetensors_find(&again, list[i].name);
        FUZZ_MUST(t && t->offset == list[i].offset && t->bytes == list[i].bytes && t->dtype == list[i].dtype);
        FUZZ_MUST(memcmp(t->shape, list[i].shape, sizeof t->shape) == 0);
    }
    pn_safetensors_fini(&again);
    pn_str_fini(&out);
    free(list);
}

static void fuzz_index(const pn_source *src, pn_mem *mem)
{
    pn_st_index x;
    pn_err err = {0};
    if (pn_st_index_read(&x, mem, src, &err) == PN_OK) {
        uint64_t n = 0;
        for (size_t i = 0; i < x.n_places; i++)
            FUZZ_MUST(pn_st_index_find(&x, x.places[i].tensor) == &x.places[i] && x.places[i].file < x.n_files);
        for (size_t i = 0; i < x.n_files; i++) {
            FUZZ_MUST(x.files[i].name[0] != '.' && !strchr(x.files[i].name, '/'));
            n += x.files[i].n_tensors;
        }
        FUZZ_MUST(n == x.n_places);
    } else {
        FUZZ_MUST(err.text[0] != 0 && x.n_places == 0);
    }
    pn_st_index_fini(&x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pn_mem mem;
    pn_safetensors a, b;
    pn_err ea = {0}, eb = {0};
    fuzz_source both;
    pn_mem_init_libc(&mem);
    fuzz_source_init(&both, data, size);
    pn_status sa = pn_safetensors_read(&a, &mem, &both.memory, &ea), sb = pn_safetensors_read(&b, &mem, &both.callback, &eb);
    FUZZ_MUST(sa == sb && strcmp(ea.text, eb.text) == 0);
    if (sa == PN_OK) {
        FUZZ_MUST(a.n_tensors == b.n_tensors && a.n_meta == b.n_meta && a.data_start == b.data_start);
        fuzz_promises(&a, size);
        fuzz_round_trip(&a, &mem, size);
    } else {
        FUZZ_MUST(ea.text[0] != 0 && a.n_tensors == 0);
    }
    pn_safetensors_fini(&a);
    pn_safetensors_fini(&b);
    fuzz_index(&both.callback, &mem);
    return 0;
}
