/*
 * pn_rules.h - a BPE vocabulary whose file says every step itself (tokenizer.json).
 *
 * A GGUF file names its tokenizer and the engine knows the rest.  A tokenizer.json spells it out:
 *
 *     text -> cut added tokens that are not `normalized`     (pn_special.c)
 *          -> each stretch: the steps, then cut the others   (pn_special.c, pn_norm.c)
 *          -> U+0020 to U+2581, a space in front, words      (pn_rules.c, pn_pretok.c)
 *          -> merges                                         (pn_bpe.c)
 *          -> ids in front and behind
 *
 * These are the facts of that pipeline.  pn_vocab copies them; what it reads of them is the same for
 * every text, so nothing here is looked up by name when encoding.
 */
#ifndef PN_RULES_H
#define PN_RULES_H

#include "text/pn_norm.h"
#include "text/pn_pretok.h"

/* Is a space (after the steps: U+2581, or U+0020 in the byte alphabet) put in front of a stretch that
 * does not begin with one? */
typedef enum pn_rules_space { PN_SPACE_NEVER, PN_SPACE_FIRST /* at offset 0 of the text */, PN_SPACE_ALWAYS } pn_rules_space;

typedef struct pn_rules_merge { uint32_t left, right, to; } pn_rules_merge;

#define PN_RULES_MAX_STEPS 8

typedef struct pn_vocab_rules {
    const pn_rules_merge *merges;   /* [n_merges] by rank; of equal pairs the last counts; borrowed during the call */
    uint32_t n_merges;
    pn_norm_step steps[PN_RULES_MAX_STEPS];     /* their texts are borrowed while the vocabulary lives */
    uint32_t n_steps;
    pn_pretok pretok;               /* levels; of the flags IGNORE_MERGES and RAW (no byte alphabet) */
    bool metaspace;                 /* U+0020 becomes U+2581 before words are cut */
    pn_rules_space space;
    bool byte_fallback;             /* a character without token becomes its <0xHH> */
    bool fuse_unk;                  /* a run of unknown characters is one unknown token */
    int32_t unk;                    /* -1: unknown characters are dropped */
    bool strip_space;               /* decoding takes one leading space off */
} pn_vocab_rules;

#endif /* PN_RULES_H */
