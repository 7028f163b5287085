/*
 * vocab_from_gguf.h - for tests: a vocabulary source from a parsed GGUF file.
 *
 * The library's own join is in engine/; text/ must not know about files, so its tests bring a small one.
 */
#ifndef VOCAB_FROM_GGUF_H
#define VOCAB_FROM_GGUF_H

#include "format/pn_gguf.h"
#include "text/pn_vocab.h"

#include <stdlib.h>

typedef struct test_vocab {
    pn_gguf g;
    pn_vocab_source src;
    pn_bytes *tokens, *merges;
    float *scores;
    int32_t *types;
    pn_vocab *v;
} test_vocab;

static pn_bytes *test_vocab_strings(const pn_gguf *g, const char *key, uint32_t *n)
{
    const pn_gguf_kv *kv = pn_gguf_find(g, key);
    *n = kv ? (uint32_t)kv->count : 0;
    pn_bytes *b = malloc((*n + (size_t)1) * sizeof *b);
    for (uint32_t i = 0; b && i < *n; i++)
        if (!pn_gguf_str(kv, i, &b[i]))
            b[i] = (pn_bytes){"", 0};
    return b;
}

static int64_t test_vocab_int(const pn_gguf *g, const char *name)
{
    char key[96];
    double d;
    snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    const pn_gguf_kv *kv = pn_gguf_find(g, key);
    return kv && pn_gguf_f64(kv, 0, &d) ? (int64_t)d : -1;
}

static void test_vocab_text(const pn_gguf *g, const char *key, pn_bytes *out)
{
    const pn_gguf_kv *kv = pn_gguf_find(g, key);
    if (!kv || !pn_gguf_str(kv, 0, out))
        *out = (pn_bytes){NULL, 0};
}

static void test_vocab_ids(const pn_gguf *g, pn_vocab_source *s)
{
    s->bos = test_vocab_int(g, "bos_token_id");
    s->eos = test_vocab_int(g, "eos_token_id");
    s->eot = test_vocab_int(g, "eot_token_id");
    s->eom = test_vocab_int(g, "eom_token_id");
    s->unk = test_vocab_int(g, "unknown_token_id");
    s->sep = test_vocab_int(g, "seperator_token_id");
    s->pad = test_vocab_int(g, "padding_token_id");
    s->mask = test_vocab_int(g, "mask_token_id");
    s->cls = test_vocab_int(g, "cls_token_id");
    s->fim_pre = test_vocab_int(g, "fim_pre_token_id");
    s->fim_suf = test_vocab_int(g, "fim_suf_token_id");
    s->fim_mid = test_vocab_int(g, "fim_mid_token_id");
    s->fim_pad = test_vocab_int(g, "fim_pad_token_id");
    s->fim_rep = test_vocab_int(g, "fim_rep_token_id");
    s->fim_sep = test_vocab_int(g, "fim_sep_token_id");
    s->add_bos = (int)test_vocab_int(g, "add_bos_token");
    s->add_eos = (int)test_vocab_int(g, "add_eos_token");
    s->add_sep = (int)test_vocab_int(g, "add_sep_token");
    s->add_space_prefix = (int)test_vocab_int(g, "add_space_prefix");
    s->remove_extra_whitespaces = (int)test_vocab_int(g, "remove_extra_whitespaces");
    s->lowercase = (int)test_vocab_int(g, "normalizer.lowercase");
    s->strip_accents = (int)test_vocab_int(g, "normalizer.strip_accents");
}

/* bytes must outlive *t.  False with *err filled. */
static bool test_vocab_open(test_vocab *t, pn_mem *mem, const char *bytes, size_t n, pn_err *err)
{
    memset(t, 0, sizeof *t);
    pn_source source = {.bytes = (const uint8_t *)bytes, .size = n, .name = "test"};
    if (pn_gguf_read(&t->g, mem, &source, err))
        return false;
    pn_vocab_source *s = &t->src;
    test_vocab_text(&t->g, "tokenizer.ggml.model", &s->model);
    test_vocab_text(&t->g, "tokenizer.ggml.pre", &s->pre);
    test_vocab_text(&t->g, "general.architecture", &s->arch);
    test_vocab_text(&t->g, "general.name", &s->name);
    s->tokens = t->tokens = test_vocab_strings(&t->g, "tokenizer.ggml.tokens", &s->n_tokens);
    s->merges = t->merges = test_vocab_strings(&t->g, "tokenizer.ggml.merges", &s->n_merges);
    test_vocab_ids(&t->g, s);
    const pn_gguf_kv *kv = pn_gguf_find(&t->g, "tokenizer.ggml.scores");
    t->scores = kv && kv->count >= s->n_tokens ? calloc(s->n_tokens + (size_t)1, sizeof *t->scores) : NULL;
    for (uint32_t i = 0; t->scores && i < s->n_tokens; i++) {
        double d = 0;
        pn_gguf_f64(kv, i, &d);
        t->scores[i] = (float)d;
    }
    s->scores = t->scores;
    kv = pn_gguf_find(&t->g, "tokenizer.ggml.token_type");
    t->types = kv && kv->count >= s->n_tokens ? calloc(s->n_tokens + (size_t)1, sizeof *t->types) : NULL;
    for (uint32_t i = 0; t->types && i < s->n_tokens; i++) {
        int64_t k = 0;
        pn_gguf_i64(kv, i, &k);
        t->types[i] = (int32_t)k;
    }
    s->types = t->types;
    kv = pn_gguf_find(&t->g, "tokenizer.ggml.precompiled_charsmap");
    if (kv) {
        s->charsmap = kv->data;
        s->charsmap_len = (size_t)kv->count;
    }
    return pn_vocab_new(&t->v, mem, s, NULL, NULL, err) == PN_OK;
}

static void test_vocab_close(test_vocab *t)
{
    pn_vocab_free(t->v);
    free(t->tokens);
    free(t->merges);
    free(t->scores);
    free(t->types);
    pn_gguf_fini(&t->g);
    memset(t, 0, sizeof *t);
}

/* gzip -dc: the fixtures are compressed, and unpacking is no business of the library. */
static inline char *test_read_gz(const char *path, size_t *n)
{
    char cmd[640];
    snprintf(cmd, sizeof cmd, "gzip -dc '%s'", path);
    FILE *p = popen(cmd, "r");
    char *buf = NULL;
    size_t cap = 0, got;
    *n = 0;
    while (p) {
        if (*n + 65536 > cap)
            buf = realloc(buf, cap = cap ? cap * 2 : 1 << 20);
        if (!buf || (got = fread(buf + *n, 1, 65536, p)) == 0)
            break;
        *n += got;
    }
    if (p)
        pclose(p);
    return buf;
}

#endif /* VOCAB_FROM_GGUF_H */
