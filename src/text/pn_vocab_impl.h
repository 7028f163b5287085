/*
 * pn_vocab_impl.h - what the files of a vocabulary share: its struct, and one encoding in progress.
 *
 * Private to text/: everybody else uses pn_vocab.h.
 */
#ifndef PN_VOCAB_IMPL_H
#define PN_VOCAB_IMPL_H

#include "base/pn_err.h"
#include "base/pn_hash.h"
#include "text/pn_cuts.h"
#include "text/pn_lex.h"
#include "text/pn_merge.h"
#include "text/pn_pretok.h"
#include "text/pn_rules.h"
#include "text/pn_vocab.h"

typedef enum pn_vocab_model {
    PN_VOCAB_NONE, PN_VOCAB_SPM, PN_VOCAB_BPE, PN_VOCAB_WPM, PN_VOCAB_UGM, PN_VOCAB_RWKV
} pn_vocab_model;

/* One byte a token: the kind (pn_token_kind) in the low three bits, and: */
enum {
    PN_TA_KIND = 7,
    PN_TA_END = 8,          /* ends an answer */
    PN_TA_GUARD = 16,       /* text nobody vouches for must not become this token */
    PN_TA_LSTRIP = 32,      /* swallows white space before it */
    PN_TA_RSTRIP = 64,      /* and after it */
    PN_TA_MARKER = 128      /* in the table of markers: special within trusted spans whatever its kind */
};

typedef struct pn_bpe_pair { uint32_t left, right, rank, to; } pn_bpe_pair;    /* rank UINT32_MAX: free */

struct pn_vocab {
    pn_mem *mem;
    pn_vocab_model model;
    const pn_bytes *tokens;     /* [n_tokens], borrowed, as their bytes are */
    uint32_t n_tokens, n_logits;
    uint8_t *attr;              /* [n_tokens] PN_TA_* */
    char *pieces;               /* what each token renders as, one after the other, [pieces_len] */
    uint32_t *piece_off;        /* [n_tokens + 1] */
    size_t pieces_len;
    uint64_t *index;            /* [n_index] hash tag << 32 | id + 1; 0: free.  Linear probing */
    uint32_t n_index;
    uint64_t seed;
    size_t max_len;             /* bytes of the longest token */
    uint64_t bytes;             /* held in all */

    pn_lex special;             /* CONTROL, USER_DEFINED, UNKNOWN, markers, by stored text */
    pn_lex lex;                 /* WPM, UGM: by stored text; RWKV: by piece */
    uint32_t *prio;             /* SPM: [n_tokens] score as an integer, best lowest */
    float *scores;              /* UGM: [n_tokens] */
    double unk_score;
    pn_bpe_pair *pairs;         /* BPE: [n_pairs], open addressing */
    uint32_t n_pairs;
    int32_t byte_sym[256];      /* BPE in the byte alphabet: symbol of a byte; >= n_tokens: no token; -1: nothing */
    int32_t byte_tok[256];      /* <0xHH>, -1: none */
    const pn_pretok *pretok;    /* BPE: a table's, the rules', or */
    pn_pretok own_pretok;       /* of a file that says it in words (pn_cuts.h) */
    pn_cuts cuts;               /* its levels */
    unsigned pretok_flags;
    const uint8_t *charsmap;    /* UGM, borrowed */
    size_t charsmap_len;

    uint8_t *flags;             /* [n_tokens] PN_TF_*; NULL: a GGUF file's */
    pn_vocab_rules *rules;      /* BPE whose file says every step; NULL: known by name */
    pn_lex special_norm;        /* rules: tokens looked for after the steps, */
    char *norm_text;            /* by their own text after the steps, [norm_len], */
    uint32_t *norm_off;         /* [n_tokens + 1] */
    size_t norm_len;
    pn_token prefix[PN_VOCAB_MAX_AROUND], suffix[PN_VOCAB_MAX_AROUND];
    uint32_t n_prefix, n_suffix;

    bool add_bos, add_eos, add_space_prefix, remove_extra_ws, lowercase, strip_accents;
    bool words_apart;           /* no token has U+2581 after another character: words cannot join */
    pn_token bos, eos, eot, eom, unk, sep, pad, mask, cls, newline;
    pn_token fim[6];            /* prefix, suffix, middle, pad, repo, file separator */
};

/* One call of pn_vocab_encode().  Functions that take it return false when memory ran out. */
typedef struct pn_enc {
    const pn_vocab *v;
    pn_mem *mem;
    pn_token **out;
    size_t *n, *cap;
    bool guard;                 /* PN_TA_GUARD tokens come from the special matcher alone */
    const char *word;           /* the text the symbols in `merge` lie in */
    pn_merge merge;
    pn_str buf, buf2;           /* scratch */
    pn_norm norm;               /* rules: a stretch after the steps */
    void *best;                 /* UGM: scratch of n_best bytes */
    size_t n_best;
} pn_enc;

PN_INTERNAL bool pn_enc_push(pn_enc *e, pn_token t);

/* May ordinary text become token t in this call? */
static inline bool pn_enc_allows(const pn_enc *e, int32_t t)
{
    return !e->guard || !(e->v->attr[t] & PN_TA_GUARD);
}

/* Is t of the model's own vocabulary, as far as the file tells them apart? */
static inline bool pn_vocab_of_model(const pn_vocab *v, pn_token t)
{
    return t >= 0 && (!v->flags || (v->flags[t] & PN_TF_MODEL));
}

/* n zeroed elements for the vocabulary, counted in v->bytes; NULL: out of memory. */
PN_INTERNAL void *pn_vocab_alloc(pn_vocab *v, uint64_t n, size_t size);

/* pn_vocab.c: U+0020 becomes U+2581 behind what e->buf holds. */
PN_INTERNAL void pn_enc_escape(pn_str *buf, const char *s, size_t n);

/* Token kinds by text, end and marker tables, default ids (pn_vocab_roles.c). */
PN_INTERNAL void pn_vocab_roles(pn_vocab *v, const pn_vocab_source *src, pn_vocab_warn warn, void *user);

/* Split at special tokens and encode what is between (pn_special.c). */
PN_INTERNAL bool pn_special_build(pn_vocab *v);
PN_INTERNAL bool pn_special_encode(pn_enc *e, const char *s, size_t n, unsigned flags,
                                   const pn_span *spans, size_t n_spans);

/* The five encoders: build from the source; encode one stretch without special tokens. */
PN_INTERNAL pn_status pn_bpe_build(pn_vocab *v, const pn_vocab_source *src, pn_vocab_warn warn, void *user, pn_err *err);
PN_INTERNAL bool pn_bpe_encode(pn_enc *e, const char *s, size_t n);
PN_INTERNAL bool pn_bpe_words(pn_enc *e, const char *s, size_t n);         /* rules: cut and merge */
PN_INTERNAL bool pn_rules_build(pn_vocab *v);                  /* texts after the steps (pn_rules.c) */
PN_INTERNAL bool pn_rules_encode(pn_enc *e, const char *s, size_t n, bool first);
PN_INTERNAL uint32_t pn_bpe_byte_to_cp(uint8_t b);              /* GPT-2's alphabet of bytes */
PN_INTERNAL int pn_bpe_cp_to_byte(uint32_t cp);                 /* -1: not of the alphabet */
PN_INTERNAL pn_status pn_spm_build(pn_vocab *v, const pn_vocab_source *src, pn_err *err);
PN_INTERNAL bool pn_spm_encode(pn_enc *e, const char *s, size_t n, bool prefix);
PN_INTERNAL pn_status pn_unigram_build(pn_vocab *v, const pn_vocab_source *src, pn_err *err);
PN_INTERNAL bool pn_unigram_encode(pn_enc *e, const char *s, size_t n);
PN_INTERNAL pn_status pn_wordpiece_build(pn_vocab *v, pn_err *err);
PN_INTERNAL bool pn_wordpiece_encode(pn_enc *e, const char *s, size_t n);
PN_INTERNAL pn_status pn_rwkv_build(pn_vocab *v, pn_err *err);
PN_INTERNAL bool pn_rwkv_encode(pn_enc *e, const char *s, size_t n);
PN_INTERNAL size_t pn_rwkv_unescape(pn_bytes text, char *dst);  /* dst NULL: measure */

/* Length of the run s[0..n) begins with in which no token can reach across the end: up to a U+2581
 * after another character.  n when words may join. */
PN_INTERNAL size_t pn_vocab_word(const pn_vocab *v, const char *s, size_t n);

#endif /* PN_VOCAB_IMPL_H */
