/*
 * pn_hf_impl.h - what the files of pn_hf_vocab share: the result, and one reading in progress.
 *
 * Private to text/: everybody else uses pn_hf_vocab.h.
 */
#ifndef PN_HF_IMPL_H
#define PN_HF_IMPL_H

#include "base/pn_err.h"
#include "base/pn_hash.h"
#include "base/pn_json.h"
#include "text/pn_cuts.h"
#include "text/pn_hf_vocab.h"
#include "text/pn_rules.h"

/* In GGUF's terms, made when asked for. */
typedef struct pn_hf_gguf {
    pn_bytes *tokens, *merges;  /* owned, [n_rows], [n_merges] or NULL */
    int32_t *types;             /* owned, [n_rows] */
    float *scores;              /* owned, [n_rows] or NULL */
    char *text;                 /* owned: texts of merges and of ids without token */
    size_t text_len;
    pn_bytes cuts[PN_PRETOK_MAX_LEVELS];        /* in h->cut_words */
    pn_vocab_source src;
    pn_str notes;
    bool made;
} pn_hf_gguf;

struct pn_hf_vocab {
    pn_mem *mem;
    pn_bytes *tokens;           /* owned, [n_tokens]; a hole has no text */
    int32_t *types;             /* owned, [n_tokens] pn_token_kind; NULL after trim */
    uint8_t *flags;             /* owned, [n_tokens] PN_TF_*; NULL after trim */
    float *scores;              /* owned, [n_tokens]; NULL: none */
    pn_rules_merge *merges;     /* owned, [n_merges]; NULL after trim */
    uint32_t n_tokens, n_merges;
    size_t cap_tokens, cap_types, cap_flags, cap_scores, cap_merges;
    char *text;                 /* owned: the tokens' texts, the steps' and the charsmap */
    size_t text_len;
    pn_bytes model, pre;        /* GGUF's names; static */
    pn_vocab_rules rules;       /* the steps' texts are in `text` */
    bool has_rules;
    pn_cuts cuts;               /* levels of `rules` that have no table */
    pn_str cut_words;           /* all levels in the words of pn_cuts.h, one after the other, ... */
    size_t cut_ends[PN_PRETOK_MAX_LEVELS];      /* ... where each ends */
    uint32_t n_cut_words;       /* fewer than levels: one cannot be said */
    pn_bytes charsmap;
    int64_t bos, eos, unk, sep, pad, mask, cls;
    int add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
    pn_token prefix[PN_VOCAB_MAX_AROUND], suffix[PN_VOCAB_MAX_AROUND];
    uint32_t n_prefix, n_suffix, n_rows;
    pn_token *ends;             /* owned, [n_ends] */
    uint32_t n_ends;
    size_t cap_ends;
    pn_str chat, chat_tools;    /* templates */
    pn_hf_gguf gguf;
};

/* One reading.  Texts of tokens lie in the documents and files until the end, when they are copied. */
typedef struct pn_hf_read {
    pn_hf_vocab *h;
    pn_mem *mem;
    const pn_hf_files *files;
    uint32_t n_rows;
    pn_json_doc tokenizer, config, map, added, vocab, generation, model_config, chat;  /* empty: not there */
    pn_map index;               /* text -> id */
    pn_str scratch;
    const char *file;           /* the one being read, for messages */
    bool around;                /* a post-processor decided what stands around a text */
    pn_vocab_warn warn;
    void *user;
    pn_err *err;
} pn_hf_read;

PN_INTERNAL void pn_hf_warn(pn_hf_read *r, const char *fmt, ...) PN_PRINTF(2, 3);

/* A member that is a string, an integer, true; absent or of another type: the default. */
PN_INTERNAL bool pn_hf_flag(const pn_json_doc *d, uint32_t node, const char *key, bool dflt);
PN_INTERNAL pn_bytes pn_hf_text(const pn_json_doc *d, uint32_t node, const char *key);
PN_INTERNAL bool pn_hf_is(pn_bytes b, const char *text);
PN_INTERNAL int pn_hf_len(pn_bytes b);                         /* for %.*s: at most 80 */

/* Token `id` is `text`; PN_TF_ADDED for an added token, which may be one of the model's already.  The text
 * is borrowed until the reading ends.  `where`: the key, for messages. */
PN_INTERNAL pn_status pn_hf_put(pn_hf_read *r, const char *where, pn_bytes text, int64_t id, int32_t kind, unsigned flags, float score);
PN_INTERNAL int64_t pn_hf_find(const pn_hf_read *r, pn_bytes text);        /* -1: none */

/* The sources: tokens, merges, rules. */
PN_INTERNAL pn_status pn_hf_read_tokenizer(pn_hf_read *r);     /* tokenizer.json */
PN_INTERNAL pn_status pn_hf_read_pipeline(pn_hf_read *r);  /* its four steps */
PN_INTERNAL pn_status pn_hf_read_spm(pn_hf_read *r);           /* tokenizer.model */
PN_INTERNAL pn_status pn_hf_read_slow(pn_hf_read *r);          /* vocab.json and merges.txt */
PN_INTERNAL pn_status pn_hf_read_vocab(pn_hf_read *r, const pn_json_doc *d, uint32_t node, const char *where);
PN_INTERNAL pn_status pn_hf_add_merge(pn_hf_read *r, const char *where, uint64_t rank, pn_bytes left, pn_bytes right);
PN_INTERNAL pn_status pn_hf_split_merge(pn_hf_read *r, const char *where, uint64_t rank, pn_bytes both);

/* Added tokens in a list of objects ("added_tokens") or an object by id ("added_tokens_decoder"). */
PN_INTERNAL pn_status pn_hf_read_added(pn_hf_read *r, const pn_json_doc *d, uint32_t node, const char *where);

PN_INTERNAL void pn_hf_gguf_drop(pn_hf_vocab *h);

/* Roles, ends, template: the small files (pn_hf_special.c). */
PN_INTERNAL pn_status pn_hf_read_special(pn_hf_read *r);

#endif /* PN_HF_IMPL_H */
