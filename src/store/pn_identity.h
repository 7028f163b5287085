/*
 * pn_identity.h - which model, and what arithmetic, made these keys and values?
 *
 * Several digests, so that a refusal can say what differs.  Keys and values are a function of the tokens and of all
 * of these: with the same identity they are the same bits, with another one they are somebody else's.
 */
#ifndef PN_IDENTITY_H
#define PN_IDENTITY_H

#include "base/pn_digest.h"

typedef enum pn_identity_part {
    PN_ID_ARCH = 0,             /* family and hyper-parameters */
    PN_ID_ROPE,                 /* rotary settings */
    PN_ID_VOCAB,                /* tokens, merges, special tokens; not the chat template */
    PN_ID_TENSORS,              /* names, types and shapes */
    PN_ID_BYTES,                /* a sample of each tensor's bytes, small ones whole */
    PN_ID_ARITHMETIC,           /* version, backend, instruction set: for one build and one of these bits are the same */
    PN_ID_PARTS
} pn_identity_part;

typedef struct pn_identity {
    uint8_t part[PN_ID_PARTS][PN_DIGEST_BYTES];
} pn_identity;

/* What differs first, for a message; NULL: nothing. */
static inline const char *pn_identity_differs(const pn_identity *a, const pn_identity *b)
{
    static const char *const names[PN_ID_PARTS] = {"architecture", "rotary settings", "vocabulary", "tensor table", "tensor bytes",
                                                   "arithmetic"};
    for (int i = 0; i < PN_ID_PARTS; i++)
        if (memcmp(a->part[i], b->part[i], PN_DIGEST_BYTES) != 0)
            return names[i];
    return NULL;
}

#endif /* PN_IDENTITY_H */
