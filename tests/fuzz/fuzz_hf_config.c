/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_hf_config.c - any bytes as config.json, and what follows a NUL as generation_config.json.  What is accepted must be a
 * header that can be read, and describe tensors whose sizes are sane.
 */
#include "pn_fuzz.h"

#include "format/pn_hf_names.h"

static void fuzz_hf_header(pn_mem *mem, const pn_gguf_writer *w)
{
    pn_str s;
    pn_gguf g;
    pn_str_init(&s, mem, PN_ACCT_MISC);
    if (!pn_gguf_header(w, &s))
        abort();
    const pn_source src = {.bytes = (const uint8_t *)s.data, .size = s.len, .name = "header"};
    if (pn_gguf_read(&g, mem, &src, NULL))
        abort();
    pn_gguf_fini(&g);
    pn_str_fini(&s);
}

static void fuzz_hf_wants(const pn_hf_config *c)
{
    pn_hf_want want;
    char name[PN_HF_NAME_MAX];
    for (int layer = 0; layer < 2; layer++)
        for (uint32_t i = 0; pn_hf_want_at(c, layer, i, &want); i++) {
            pn_hf_spell(name, sizeof name, want.names[0], c->n_layers, c->n_expert);
            if (want.cols == 0 || want.rows >> 34 || want.cols >> 34 || strlen(name) + 1 >= sizeof name)
                abort();
        }
    if (c->n_heads == 0 || c->n_heads_kv == 0 || c->n_heads % c->n_heads_kv || c->n_rot == 0 || c->n_rot % 2 || c->n_rot > c->d_head ||
        c->n_layers == 0 || c->n_layers > PN_HF_LAYERS_MAX || c->n_expert_used > c->n_expert)
        abort();
    if (c->quant.scheme > PN_HF_INT4 || c->quant.block_rows > 1u << 20 || c->quant.block_cols > 1u << 20 || (c->quant.scheme == PN_HF_PLAIN && c->quant.block_rows))
        abort();
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; c->factors[k] && i < c->n_rot / 2; i++)
            if (!(c->factors[k][i] > 0))
                abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pn_mem mem;
    pn_hf_config c;
    pn_gguf_writer w;
    pn_err err;
    const uint8_t *cut = size ? memchr(data, 0, size) : NULL;
    size_t n = cut ? (size_t)(cut - data) : size;
    const pn_bytes config = {(const char *)data, n}, generation = {cut ? (const char *)cut + 1 : NULL, cut ? size - n - 1 : 0};
    pn_mem_init_libc(&mem);
    pn_gguf_writer_init(&w, &mem);
    if (pn_hf_config_read(&c, &mem, "folder", config, generation, &w, &err) == PN_OK) {
        fuzz_hf_header(&mem, &w);
        fuzz_hf_wants(&c);
    } else if (!memchr(err.text, 0, sizeof err.text))
        abort();
    pn_hf_config_fini(&c);
    pn_gguf_writer_fini(&w);
    return 0;
}
