/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * The vocabulary of a Hugging Face folder: format/ finds the files, text/ reads them, this joins them.
 */
#include "engine/pn_engine_int.h"

#include "format/pn_hf_dir.h"
#include "text/pn_hf_vocab.h"

#include <stdio.h>

enum { FOLDER_FILES = 12 };
static const size_t folder_most = (size_t)128 << 20;    /* of one file */

static void folder_warn(void *user, const char *text) { pn_engine_logf(user, PN_LOG_WARN, "%s", text); }

/* Where each file goes. */
static void folder_slots(pn_hf_files *f, pn_bytes *slot[FOLDER_FILES])
{
    pn_bytes *const all[FOLDER_FILES] = {&f->tokenizer_json, &f->tokenizer_config, &f->special_tokens_map, &f->added_tokens, &f->vocab_json,
                                         &f->merges_txt, &f->tokenizer_model, &f->chat_template_jinja, &f->tool_use_jinja,
                                         &f->chat_template_json, &f->generation_config, &f->config};
    memcpy(slot, all, sizeof all);
}

static pn_status folder_read(pn_hf_files *f, pn_mem *mem, const pn_hf_dir *d, pn_err *err)
{
    static const char *const names[FOLDER_FILES] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                                    "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja",
                                                    "additional_chat_templates/tool_use.jinja", "chat_template.json", "generation_config.json",
                                                    "config.json"};
    pn_bytes *slot[FOLDER_FILES];
    pn_status st = PN_OK;
    folder_slots(f, slot);
    for (int i = 0; i < FOLDER_FILES && !st; i++)
        st = pn_hf_file_read(d, mem, names[i], folder_most, slot[i], err);
    return st;
}

static void folder_free(pn_hf_files *f, pn_mem *mem)
{
    pn_bytes *slot[FOLDER_FILES];
    folder_slots(f, slot);
    for (int i = 0; i < FOLDER_FILES; i++)
        pn_hf_file_free(mem, slot[i]);
}

/* Rows of the embedding: every id is below. */
static uint32_t folder_rows(const pn_weights *w)
{
    const pn_dir_tensor *t = pn_weights_find(w, "token_embd.weight");
    return t ? (uint32_t)t->t->ne[1] : 0;
}

/* Read the folder's files. */
static pn_status folder_open(pn_hf_vocab **out, pn_engine *e, const pn_weights *w, pn_err *err)
{
    pn_mem *mem = pn_engine_mem(e);
    pn_hf_files f = {.config = {NULL, 0}};
    pn_status st = folder_read(&f, mem, w->hf, err);
    *out = NULL;
    if (!st)
        st = pn_hf_vocab_new(out, mem, &f, folder_rows(w), folder_warn, e, err);
    folder_free(&f, mem);
    return st;
}

PN_INTERNAL pn_status pn_vocab_from_folder(pn_vocab **out, pn_hf_vocab **files, pn_engine *e, const pn_weights *w, pn_err *err)
{
    pn_vocab_source s = {.n_logits = 0};
    pn_status st = folder_open(files, e, w, err);
    if (st)
        return st;
    pn_hf_vocab_source(*files, &s);
    s.n_logits = folder_rows(w);
    st = pn_vocab_new(out, pn_engine_mem(e), &s, folder_warn, e, err);
    if (st) {
        pn_hf_vocab_free(*files);
        *files = NULL;
    } else
        pn_hf_vocab_trim(*files);
    return st;
}

/* ------------------------------------------------------------------------------------------
 * Into a GGUF header
 * ------------------------------------------------------------------------------------------ */

static void folder_put_numbers(pn_gguf_writer *w, const pn_vocab_source *s)
{
    const struct { const char *key; int64_t id; } ids[] = {
        {"bos_token_id", s->bos}, {"eos_token_id", s->eos}, {"eot_token_id", s->eot}, {"eom_token_id", s->eom}, {"unknown_token_id", s->unk},
        {"seperator_token_id", s->sep}, {"padding_token_id", s->pad}, {"mask_token_id", s->mask}, {"cls_token_id", s->cls},
        {"fim_pre_token_id", s->fim_pre}, {"fim_suf_token_id", s->fim_suf}, {"fim_mid_token_id", s->fim_mid}, {"fim_pad_token_id", s->fim_pad},
        {"fim_rep_token_id", s->fim_rep}, {"fim_sep_token_id", s->fim_sep}};
    const struct { const char *key; int flag; } flags[] = {
        {"add_bos_token", s->add_bos}, {"add_eos_token", s->add_eos}, {"add_sep_token", s->add_sep}, {"add_space_prefix", s->add_space_prefix},
        {"remove_extra_whitespaces", s->remove_extra_whitespaces}};
    char key[64];
    for (size_t i = 0; i < PN_COUNT_OF(ids); i++) {
        snprintf(key, sizeof key, "tokenizer.ggml.%s", ids[i].key);
        if (ids[i].id >= 0)
            pn_gguf_put_u32(w, key, (uint32_t)ids[i].id);
    }
    for (size_t i = 0; i < PN_COUNT_OF(flags); i++) {
        snprintf(key, sizeof key, "tokenizer.ggml.%s", flags[i].key);
        if (flags[i].flag >= 0)
            pn_gguf_put_bool(w, key, flags[i].flag != 0);
    }
}

/* n numbers of four bytes, little-endian; f or i. */
static void folder_put_words(pn_gguf_writer *w, pn_mem *mem, const char *key, const float *f, const int32_t *i, uint32_t n)
{
    pn_str s;
    pn_str_init(&s, mem, PN_ACCT_STAGE);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t v = f ? pn_f32_bits(f[k]) : (uint32_t)i[k];
        const char b[4] = {(char)v, (char)(v >> 8), (char)(v >> 16), (char)(v >> 24)};
        pn_str_add(&s, b, sizeof b);
    }
    pn_gguf_put_array(w, key, f ? PN_META_F32 : PN_META_I32, n, s.data, s.len);
    w->kv.failed = w->kv.failed || s.failed;
    pn_str_fini(&s);
}

static void folder_put(pn_gguf_writer *w, pn_mem *mem, const pn_vocab_source *s, pn_bytes chat, pn_bytes tools)
{
    pn_gguf_put_str(w, "tokenizer.ggml.model", s->model.data, s->model.len);
    if (s->pre.data)
        pn_gguf_put_str(w, "tokenizer.ggml.pre", s->pre.data, s->pre.len);
    if (s->n_cuts) {
        pn_gguf_put_str_array(w, "pantheon.tokenizer.patterns", s->n_cuts, s->cuts);
        pn_gguf_put_bool(w, "pantheon.tokenizer.ignore_merges", s->ignore_merges);
    }
    pn_gguf_put_str_array(w, "tokenizer.ggml.tokens", s->n_tokens, s->tokens);
    if (s->scores)
        folder_put_words(w, mem, "tokenizer.ggml.scores", s->scores, NULL, s->n_tokens);
    if (s->types)
        folder_put_words(w, mem, "tokenizer.ggml.token_type", NULL, s->types, s->n_tokens);
    if (s->n_merges)
        pn_gguf_put_str_array(w, "tokenizer.ggml.merges", s->n_merges, s->merges);
    folder_put_numbers(w, s);
    if (s->charsmap)
        pn_gguf_put_array(w, "tokenizer.ggml.precompiled_charsmap", PN_META_U8, s->charsmap_len, s->charsmap, s->charsmap_len);
    if (chat.data)
        pn_gguf_put_str(w, "tokenizer.chat_template", chat.data, chat.len);
    if (tools.data != chat.data) {
        static const pn_bytes names[] = {{"tool_use", 8}};
        pn_gguf_put_str_array(w, "tokenizer.chat_templates", 1, names);
        pn_gguf_put_str(w, "tokenizer.chat_template.tool_use", tools.data, tools.len);
    }
}

PN_INTERNAL pn_status pn_folder_put_vocab(pn_gguf_writer *w, pn_engine *e, const pn_weights *file, pn_err *err)
{
    pn_mem *mem = pn_engine_mem(e);
    pn_hf_vocab *h;
    pn_vocab_source s = {.n_logits = 0};
    pn_str notes;
    pn_str_init(&notes, mem, PN_ACCT_STAGE);
    pn_status st = folder_open(&h, e, file, err);
    if (!st)
        st = pn_hf_vocab_gguf(h, &s, &notes, err);
    if (!st)
        folder_put(w, mem, &s, pn_hf_vocab_template(h, false), pn_hf_vocab_template(h, true));
    for (const char *p = pn_str_cstr(&notes); !st && *p; p += strcspn(p, "\n"), p += *p == '\n')
        pn_engine_logf(e, PN_LOG_WARN, "GGUF has no words for all of this tokenizer: %.*s", (int)strcspn(p, "\n"), p);
    pn_hf_vocab_free(h);
    pn_str_fini(&notes);
    return st;
}
