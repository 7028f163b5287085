/*
 * pn_oai_embeddings.h - /v1/embeddings: what is asked for, and the answer.
 *
 * Vectors go out as numbers, or as base64 of little-endian f32, which OpenAI's SDKs ask for unless told
 * otherwise.
 *
 * Pure.  Threads: none.
 */
#ifndef PN_OAI_EMBEDDINGS_H
#define PN_OAI_EMBEDDINGS_H

#include "serve/pn_oai.h"
#include "serve/pn_reply.h"

typedef enum pn_oai_pooling {
    PN_OAI_POOLING_MODEL = 0,   /* as the model says */
    PN_OAI_POOLING_MEAN, PN_OAI_POOLING_LAST
} pn_oai_pooling;

typedef struct pn_oai_embeddings {
    pn_oai_common common;       /* body, model, ignored */
    pn_oai_inputs inputs;       /* 1 to 2048, none of them empty */
    bool base64;
    uint32_t dimensions;        /* 0: not given */
    pn_oai_pooling pooling;
} pn_oai_embeddings;

PN_INTERNAL bool pn_oai_embeddings_parse(pn_oai_embeddings *out, pn_mem *mem, const char *text, size_t len, pn_oai_error *e);
PN_INTERNAL void pn_oai_embeddings_fini(pn_oai_embeddings *q);

/* vectors: [n] of [dim] */
PN_INTERNAL void pn_oai_embeddings_body(pn_str *out, const char *model, const float *const *vectors, size_t n, size_t dim, bool base64,
                                        const pn_oai_usage *usage);

#endif /* PN_OAI_EMBEDDINGS_H */
