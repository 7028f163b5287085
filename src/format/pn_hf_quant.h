/*
 * pn_hf_quant.h - the tensors that are one quantised matrix: what they are called, and whether they fit together.
 *
 *     scheme             codes of a linear P [o, i]             scales
 *     fp8                P.weight F8_E4M3, F8_E5M2 [o, i]       P.weight_scale_inv, one, or [o/a, i/b] (rounded up)
 *     float-quantized    the same                               P.weight_scale, one, or [o, 1]
 *     pack-quantized     P.weight_packed I32 [o, i/8]           P.weight_scale [o, i/g] or [o, 1]; P.weight_shape I64 [2];
 *                                                               P.weight_zero_point I32 [o/8, i/g] or [o/8, 1]
 *
 * Scales are F32, BF16 or F16; F8_E8M0, or U8 where scale_fmt is "ue8m0".  P.weight_g_idx, which gives each column a group of its
 * own, is refused.  Scales of activations change no weight and are left alone.
 */
#ifndef PN_HF_QUANT_H
#define PN_HF_QUANT_H

#include "format/pn_hf_config.h"
#include "format/pn_packed.h"
#include "format/pn_safetensors.h"

/* What a matrix is made of; NULL: not there. */
typedef struct pn_hf_parts {
    const pn_st_tensor *code, *scale, *zero, *shape;
    uint32_t code_part, scale_part, zero_part, shape_part;
} pn_hf_parts;

/* What follows the name of a weight; NULL: the scheme has none. */
PN_INTERNAL const char *pn_hf_quant_code_end(const pn_hf_quant *q);
PN_INTERNAL const char *pn_hf_quant_scale_end(const pn_hf_quant *q);

/* A tensor of this format holds codes of the scheme. */
PN_INTERNAL bool pn_hf_quant_is_code(const pn_hf_quant *q, uint32_t st_dtype);

/* The parts are a matrix of rows x cols (what config.json says), or the message names the part that is not. */
PN_INTERNAL pn_status pn_hf_quant_bind(const pn_weights *w, const pn_hf_quant *q, const pn_hf_parts *x, uint64_t rows, uint64_t cols, pn_packed *p,
                                       pn_packed_place *at, pn_err *err);

/* Such a tensor (as pn_hf_name gives it) belongs to activations. */
PN_INTERNAL bool pn_hf_quant_skips(const pn_hf_quant *q, const char *name);

#endif /* PN_HF_QUANT_H */
