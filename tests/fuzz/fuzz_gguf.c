/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_gguf.c - the GGUF reader against arbitrary bytes.
 *
 * Each input is read from memory and through a callback, with the same answer expected of both;
 * what was accepted is touched everywhere, copied through the writer and read again.
 * Seeds: gen_corpus_gguf.py writes corpus/gguf/.
 */
#include "fuzz_source.h"

#include "format/pn_gguf.h"
#include "format/pn_weights.h"

/* A sum over everything the table points at, so that sanitizers see it. */
static unsigned fuzz_touch(const pn_gguf *g, size_t size)
{
    unsigned sum = 0;
    for (size_t i = 0; i < g->n_kv; i++) {
        const pn_gguf_kv *kv = &g->kv[i];
        FUZZ_MUST(kv->key.len > 0 && !memchr(kv->key.data, 0, kv->key.len));
        for (uint64_t k = 0; k < kv->count; k++) {
            uint64_t u;
            int64_t s;
            double f;
            pn_bytes b;
            sum += pn_gguf_u64(kv, k, &u) + pn_gguf_i64(kv, k, &s) + pn_gguf_f64(kv, k, &f);
            if (pn_gguf_str(kv, k, &b))
                for (size_t j = 0; j < b.len; j++)
                    sum += (unsigned char)b.data[j];
        }
        for (uint64_t k = 0; k < kv->data_len; k++)
            sum += kv->data[k];
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        const pn_gguf_tensor *t = &g->tensors[i];
        FUZZ_MUST(pn_gguf_find_tensor(g, t->name) == t);
        FUZZ_MUST(t->offset % 8 == 0 && t->offset <= size && t->bytes <= size - t->offset && t->n_elems > 0);
        for (size_t k = 0; k < i && i < 64; k++)
            FUZZ_MUST(g->tensors[k].offset + g->tensors[k].bytes <= t->offset || t->offset + t->bytes <= g->tensors[k].offset);
    }
    return sum;
}

/* Write the tables anew and read them back: the same entries. */
static void fuzz_round_trip(const pn_gguf *g, pn_mem *mem)
{
    pn_gguf_writer w;
    pn_str out;
    pn_gguf again;
    pn_gguf_writer_init(&w, mem);
    pn_str_init(&out, mem, PN_ACCT_MISC);
    for (size_t i = 0; i < g->n_kv; i++)
        pn_gguf_put_kv(&w, &g->kv[i]);
    for (size_t i = 0; i < g->n_tensors; i++)
        pn_gguf_put_tensor(&w, g->tensors[i].name, g->tensors[i].dtype, g->tensors[i].n_dims, g->tensors[i].ne,
                           g->tensors[i].bytes);
    FUZZ_MUST(pn_gguf_header(&w, &out));
    uint64_t data_bytes = w.data_bytes;
    for (; data_bytes > 0 && data_bytes < 1 << 20; data_bytes--)
        pn_str_addc(&out, 0);
    if (data_bytes == 0) {
        pn_source src = {.bytes = (const uint8_t *)out.data, .size = out.len, .name = "again"};
        pn_err err;
        FUZZ_MUST(pn_gguf_read(&again, mem, &src, &err) == PN_OK);
        FUZZ_MUST(again.n_tensors == g->n_tensors && again.n_kv + (pn_gguf_find(g, "general.alignment") != NULL) == g->n_kv);
        pn_gguf_fini(&again);
    }
    pn_str_fini(&out);
    pn_gguf_writer_fini(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pn_mem mem;
    pn_gguf a, b;
    pn_err ea = {0}, eb = {0};
    fuzz_source both;
    pn_mem_init_libc(&mem);
    fuzz_source_init(&both, data, size);
    pn_status sa = pn_gguf_read(&a, &mem, &both.memory, &ea), sb = pn_gguf_read(&b, &mem, &both.callback, &eb);
    FUZZ_MUST(sa == sb && strcmp(ea.text, eb.text) == 0);
    if (sa == PN_OK) {
        FUZZ_MUST(a.n_kv == b.n_kv && a.n_tensors == b.n_tensors && a.data_start == b.data_start);
        FUZZ_MUST(fuzz_touch(&a, size) == fuzz_touch(&b, size));
        fuzz_round_trip(&a, &mem);
    } else {
        FUZZ_MUST(ea.text[0] != 0 && a.n_kv == 0);
    }
    pn_gguf_fini(&a);
    pn_gguf_fini(&b);
    pn_weights w;
    if (pn_weights_open_memory(&w, &mem, data, size, &ea) == PN_OK)
        for (size_t i = 0; i < w.n_tensors; i++)
            FUZZ_MUST(pn_weights_find(&w, w.tensors[i].t->name) == &w.tensors[i] && pn_weights_ptr(&w, &w.tensors[i]));
    pn_weights_close(&w);
    return 0;
}
