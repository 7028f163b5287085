/*
 * pn_quant.h - every block format, exactly and slowly: the definition the kernels are checked by.
 *
 * Decoders follow docs/formats.md; every product in them is exact in f32, so there is one right
 * answer.  Encoders use plain f32 operations in a fixed order without contraction and reproduce the
 * reference quantiser's bytes.
 */
#ifndef PN_QUANT_H
#define PN_QUANT_H

#include "num/pn_dtype.h"

/* Decode n elements (a multiple of the block) of weights to f32.  Type: any pn_dtype_is_weight, and
 * the activation formats Q8_1 and Q8_K.  Neither side needs alignment beyond float's. */
PN_INTERNAL void pn_dequant_row(uint32_t type, const void *src, float *dst, size_t n);

/* Encode n elements (a multiple of the block).  False: no encoder for this type.
 * Encoders: F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K, and Q8_1 Q8_K IQ4_NL
 * TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0 Q2_0.  Any input is safe; blocks with NaN or infinity get
 * some valid bytes. */
PN_INTERNAL bool pn_quant_row(uint32_t type, const float *src, void *dst, size_t n);
PN_INTERNAL bool pn_quant_can_encode(uint32_t type);

/* ------------------------------------------------------------------------------------------
 * Inside num/ only: one block at a time, by family.  NULL: not of this family, or no encoder.
 * ------------------------------------------------------------------------------------------ */

typedef void (*pn_block_decode)(const uint8_t *b, float *y);
typedef void (*pn_block_encode)(const float *x, uint8_t *b);

/* Scale and minimum (0..63) of sub-block s = 0..7 from the 12 bytes of Q4_K and Q5_K. */
PN_INTERNAL void pn_k_scale_min(const uint8_t *sc, int s, uint32_t *scale, uint32_t *min);

/* Little-endian stores to unaligned bytes. */
static inline void pn_put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void pn_put32(uint8_t *p, uint32_t v)
{
    pn_put16(p, v);
    pn_put16(p + 2, v >> 16);
}

PN_INTERNAL pn_block_decode pn_block_decode_32(uint32_t type);     /* pn_quant_32.c */
PN_INTERNAL pn_block_encode pn_block_encode_32(uint32_t type);
PN_INTERNAL pn_block_decode pn_block_decode_k(uint32_t type);      /* pn_quant_k.c */
PN_INTERNAL pn_block_encode pn_block_encode_k(uint32_t type);      /* pn_quant_kenc.c */
PN_INTERNAL pn_block_decode pn_block_decode_iq(uint32_t type);     /* pn_quant_iq.c */
PN_INTERNAL pn_block_decode pn_block_decode_4(uint32_t type);      /* pn_quant_4.c */
PN_INTERNAL pn_block_encode pn_block_encode_4(uint32_t type);

#endif /* PN_QUANT_H */
