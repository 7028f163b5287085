/*
 * pn_vocab.h - text to tokens and back.
 *
 * The text layer gets arrays, not files: whoever read the file fills a pn_vocab_source.  Token bytes
 * are borrowed from it and must outlive the vocabulary.
 */
#ifndef PN_VOCAB_H
#define PN_VOCAB_H

#include "base/pn_str.h"

/* What a Hugging Face folder says about one token, beyond its kind. */
enum {
    PN_TF_MODEL = 1,            /* in the model's own vocabulary: merges and characters may become it */
    PN_TF_ADDED = 2,            /* an added token: cut from the text before anything else */
    PN_TF_NORMALIZED = 4,       /* looked for in normalised text */
    PN_TF_LSTRIP = 8,           /* swallows white space before it */
    PN_TF_RSTRIP = 16,          /* and after it */
    PN_TF_SINGLE_WORD = 32      /* only where no letter, mark or digit touches it */
};

#define PN_VOCAB_MAX_AROUND 8   /* tokens in front of a text, and behind it */

struct pn_vocab_rules;

/* What a model file says about its vocabulary (docs: tokenizer.ggml.*).  Absent arrays are NULL,
 * absent ids -1, absent flags -1, absent strings {NULL, 0}.  Whoever fills it has checked that each
 * array has the length given here (a file's type list may be shorter than its token list). */
typedef struct pn_vocab_source {
    pn_bytes model;             /* "llama", "gpt2", "bert", "t5", "rwkv", "gemma4", ... */
    pn_bytes pre;               /* pre-tokenizer name */
    const pn_bytes *cuts;       /* [n_cuts], of the name PN_CUTS_NAME: how text is cut (pn_cuts.h); borrowed during the call */
    uint32_t n_cuts;
    bool ignore_merges;         /* of that name, too */
    pn_bytes arch, name;        /* general.architecture, general.name (strip rules) */
    const pn_bytes *tokens;     /* [n_tokens] borrowed while the vocabulary lives (bytes, and array) */
    const float *scores;        /* [n_tokens] or NULL; borrowed during the call */
    const int32_t *types;       /* [n_tokens] or NULL; borrowed during the call */
    uint32_t n_tokens;
    const pn_bytes *merges;     /* [n_merges], "left right"; borrowed during the call */
    uint32_t n_merges;
    int64_t bos, eos, eot, eom, unk, sep, pad, mask, cls;
    int64_t fim_pre, fim_suf, fim_mid, fim_pad, fim_rep, fim_sep;
    int add_bos, add_eos, add_sep, add_space_prefix, remove_extra_whitespaces;
    int lowercase, strip_accents;
    const uint8_t *charsmap;    /* precompiled_charsmap; borrowed while the vocabulary lives */
    size_t charsmap_len;
    pn_bytes chat_template;     /* source of the model's own; borrowed during the call */
    uint32_t n_logits;          /* rows of the output matrix; >= n_tokens; 0: n_tokens */

    /* Only Hugging Face folders say these; zero for a GGUF file.  With `flags` the file is exact: absent
     * ids stay absent, and no table retypes an added token unless answers need its text. */
    const uint8_t *flags;       /* [n_tokens] PN_TF_* or NULL; borrowed during the call */
    const pn_token *ends;       /* [n_ends] ids that end an answer besides those of the tables */
    uint32_t n_ends;
    pn_token prefix[PN_VOCAB_MAX_AROUND], suffix[PN_VOCAB_MAX_AROUND];  /* instead of BOS and EOS */
    uint32_t n_prefix, n_suffix;
    const struct pn_vocab_rules *rules;     /* "gpt2": the pipeline (pn_rules.h); then flags must be given */
} pn_vocab_source;

typedef struct pn_vocab pn_vocab;

/* warn (may be NULL) gets one line for each thing worth knowing, e.g. a missing pre-tokenizer. */
typedef void (*pn_vocab_warn)(void *user, const char *text);

/* Everything is validated here: lengths, ids, merges, the charsmap's indices.  Unknown model or
 * pre-tokenizer: PN_E_UNSUPPORTED naming it. */
PN_INTERNAL pn_status pn_vocab_new(pn_vocab **out, pn_mem *mem, const pn_vocab_source *src,
                                   pn_vocab_warn warn, void *user, pn_err *err);
PN_INTERNAL void pn_vocab_free(pn_vocab *v);

/* A stretch [begin, end) of the text in which control tokens may be recognised. */
typedef struct pn_span { size_t begin, end; } pn_span;

enum { PN_ENC_BOS = 1, PN_ENC_SPECIAL = 2 };    /* as PN_TOKENIZE_* */

/* Encode.  With spans != NULL a special token (control, user-defined or unknown, and whatever the
 * text of a token of the end or marker tables or a marker of the model's own template is) matches
 * only where it lies wholly inside one span, PN_ENC_SPECIAL or not; spans ascend and do not overlap.
 * Such a token does not come out of merges either.  User-defined tokens of white space alone
 * (indentation), words and single characters match everywhere unless the template writes them.  With
 * spans != NULL and n_spans 0 nothing is trusted.  Tokens are appended to *out, a growing
 * array of *cap from `mem` (account MISC); *n counts them.  On failure *n is as before. */
PN_INTERNAL pn_status pn_vocab_encode(const pn_vocab *v, pn_mem *mem, const char *text, size_t len, unsigned flags,
                                      const pn_span *spans, size_t n_spans,
                                      pn_token **out, size_t *n, size_t *cap, pn_err *err);

/* The bytes of one token as it appears in text; borrowed from v (`tmp` is not used at present).
 * special: render control tokens.  Out of range: empty.
 * Byte-level tokens are decoded once at load, so this is a look-up. */
PN_INTERNAL pn_bytes pn_vocab_piece(const pn_vocab *v, pn_token t, bool special, char tmp[8]);

/* Whole-sequence decoding: pieces, with the leading space rule of the vocabulary's kind (see the
 * implementation); inverse of encode for text without normalisation. */
PN_INTERNAL bool pn_vocab_strips_leading_space(const pn_vocab *v);

PN_INTERNAL uint32_t pn_vocab_n_tokens(const pn_vocab *v);
PN_INTERNAL uint32_t pn_vocab_n_logits(const pn_vocab *v);
PN_INTERNAL pn_token_kind pn_vocab_kind(const pn_vocab *v, pn_token t);
PN_INTERNAL pn_bytes pn_vocab_text(const pn_vocab *v, pn_token t);       /* as stored */
PN_INTERNAL pn_token pn_vocab_find(const pn_vocab *v, const char *text, size_t len);   /* -1: none */
PN_INTERNAL pn_token pn_vocab_special(const pn_vocab *v, pn_special which);            /* -1: none */
PN_INTERNAL bool pn_vocab_ends(const pn_vocab *v, pn_token t);           /* member of the end set */
PN_INTERNAL bool pn_vocab_add_bos(const pn_vocab *v);
PN_INTERNAL bool pn_vocab_add_eos(const pn_vocab *v);
PN_INTERNAL uint64_t pn_vocab_bytes(const pn_vocab *v);                  /* memory held */

/* Incremental detokenizer state: plain data, caller's storage. */
typedef struct pn_detok_state {
    char held[4];           /* bytes of an incomplete character */
    uint8_t n_held;
} pn_detok_state;

/* Feed the bytes of one piece; appends whole characters to out.  Bytes that cannot start or
 * continue a character pass through unchanged. */
PN_INTERNAL void pn_detok_feed(pn_detok_state *d, const char *bytes, size_t n, pn_str *out);
PN_INTERNAL void pn_detok_end(pn_detok_state *d, pn_str *out);    /* flush what is held, as it is */

#endif /* PN_VOCAB_H */
