/*
 * pn_hf_config.h - config.json and generation_config.json of a Hugging Face folder, as GGUF metadata.
 *
 * Whoever runs a model reads keys of a GGUF header; so this writes the keys, with the values, that a converter would
 * write for the model, and nobody above needs to know that there was no GGUF file.  What GGUF has no words for goes into keys
 * of our own: {arch}.rope.pairing (rows of q and k are not permuted here), .rope.scaling.yarn_truncate,
 * .attention.layer_windows and .attention.query_scalar where they are not what the family does by itself,
 * .expert_weights_norm, .context_limit where longer contexts would need what is not done here.
 *
 * Rules.  A key that is absent has the default of its model_type, which is not always that of the family's papers;
 * `null` is not absent.  What would change the numbers and is not understood is refused: the message names key, value
 * and what is allowed.  What cannot change them is ignored.  No number is trusted with memory: pn_hf_dir.h compares
 * all of them with the tensors first.
 */
#ifndef PN_HF_CONFIG_H
#define PN_HF_CONFIG_H

#include "format/pn_gguf.h"

enum { PN_HF_LAYERS_MAX = 1024 };

/* How weights are quantised.  Which of them are is nobody's word but their own: a matrix is when its tensors say so. */
typedef enum pn_hf_scheme {
    PN_HF_PLAIN,
    PN_HF_FP8,                  /* P.weight in eight bits, P.weight_scale_inv: one, or one a block */
    PN_HF_FP8_ROWS,             /* P.weight in eight bits, P.weight_scale: one, or one a row */
    PN_HF_INT4                  /* P.weight_packed, P.weight_scale, P.weight_shape, and P.weight_zero_point */
} pn_hf_scheme;

typedef struct pn_hf_quant {
    uint8_t scheme;             /* pn_hf_scheme */
    bool ue8m0;                 /* scales may be bytes that are exponents */
    bool zeros;                 /* int4: there are zero points */
    uint32_t block_rows, block_cols;    /* of one scale; 0: all.  int4: block_rows is 1 */
} pn_hf_quant;

/* What the tensors of the model must be. */
typedef struct pn_hf_config {
    pn_mem *mem;
    char arch[16];              /* general.architecture */
    uint32_t n_layers, n_embd, n_heads, n_heads_kv, d_head, n_ff, n_vocab, n_ctx, n_rot;
    uint32_t n_expert, n_expert_used, n_ff_exp, n_ff_shared;    /* 0: none */
    bool bias_qkv, bias_o, bias_mlp;
    bool qk_norm;               /* a norm on each head of q and k */
    bool fused;                 /* q, k and v are one matrix, gate and up another */
    bool post_norms;            /* norms after both blocks, and all norms are stored minus one (Gemma) */
    bool tied;                  /* what tie_word_embeddings says */
    bool wrapped;               /* the text part of a larger model: other parts are left alone */
    pn_hf_quant quant;
    float *factors[2];          /* owned, [n_rot / 2]: divisors of rotary frequencies.  The first alone: for every context;
                                   both: for short and for long ones */
} pn_hf_config;

/* Read config[0..n) and generation[0..n_generation) (NULL: there is none) and write keys to `w`.  `folder`: what
 * the model is called.  On failure *c is empty (fini is harmless). */
PN_INTERNAL pn_status pn_hf_config_read(pn_hf_config *c, pn_mem *mem, const char *folder, pn_bytes config, pn_bytes generation,
                                        pn_gguf_writer *w, pn_err *err);
PN_INTERNAL void pn_hf_config_fini(pn_hf_config *c);

#endif /* PN_HF_CONFIG_H */
