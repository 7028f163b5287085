/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_quant.c - rows of any format: float formats here, blocks by asking the families in turn.
 *
 * One indirect call a block is what it costs; nothing here is a hot loop, kernels have their own.
 * All file formats are little-endian, whatever the machine is.
 */
#include "num/pn_quant.h"

#include "num/pn_half.h"

static pn_block_decode quant_decoder(uint32_t type)
{
    pn_block_decode f = pn_block_decode_32(type);
    if (!f)
        f = pn_block_decode_k(type);
    if (!f)
        f = pn_block_decode_iq(type);
    return f ? f : pn_block_decode_4(type);
}

static pn_block_encode quant_encoder(uint32_t type)
{
    pn_block_encode f = pn_block_encode_32(type);
    if (!f)
        f = pn_block_encode_k(type);
    return f ? f : pn_block_encode_4(type);
}

static bool quant_is_float(uint32_t type)
{
    return type == PN_DTYPE_F32 || type == PN_DTYPE_F16 || type == PN_DTYPE_BF16;
}

static void quant_decode_float(uint32_t type, const uint8_t *src, float *dst, size_t n)
{
    if (type == PN_DTYPE_F32)
        for (size_t i = 0; i < n; i++)
            dst[i] = pn_f32_from_bits(pn_le32(src + 4 * i));
    else if (type == PN_DTYPE_F16)
        for (size_t i = 0; i < n; i++)
            dst[i] = pn_f32_from_f16(pn_le16(src + 2 * i));
    else
        for (size_t i = 0; i < n; i++)
            dst[i] = pn_f32_from_bf16(pn_le16(src + 2 * i));
}

static void quant_encode_float(uint32_t type, const float *src, uint8_t *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (type == PN_DTYPE_F32)
            pn_put32(dst + 4 * i, pn_f32_bits(src[i]));
        else
            pn_put16(dst + 2 * i, type == PN_DTYPE_F16 ? pn_f16_from_f32(src[i]) : pn_bf16_from_f32(src[i]));
    }
}

PN_INTERNAL void pn_dequant_row(uint32_t type, const void *src, float *dst, size_t n)
{
    const uint8_t *b = src;
    if (quant_is_float(type)) {
        quant_decode_float(type, b, dst, n);
        return;
    }
    pn_block_decode decode = quant_decoder(type);
    const pn_dtype_info *t = pn_dtype_get(type);
    PN_ASSERT(decode && n % t->block_elems == 0);
    for (size_t i = 0; decode && i < n; i += t->block_elems, b += t->block_bytes)
        decode(b, dst + i);
}

PN_INTERNAL bool pn_quant_row(uint32_t type, const float *src, void *dst, size_t n)
{
    uint8_t *b = dst;
    if (quant_is_float(type)) {
        quant_encode_float(type, src, b, n);
        return true;
    }
    pn_block_encode encode = quant_encoder(type);
    if (!encode)
        return false;
    const pn_dtype_info *t = pn_dtype_get(type);
    PN_ASSERT(n % t->block_elems == 0);
    for (size_t i = 0; i < n; i += t->block_elems, b += t->block_bytes)
        encode(src + i, b);
    return true;
}

PN_INTERNAL bool pn_quant_can_encode(uint32_t type)
{
    return quant_is_float(type) || quant_encoder(type) != NULL;
}
