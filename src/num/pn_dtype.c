/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_dtype.c - names and block sizes of every number format.
 *
 * One table indexed by ggml's type id; removed ids (Q4_2, the repacked Q4_0_4_4 ...) are holes with
 * no name and size 0, so a file that uses one is refused by the same check as an unknown id.
 */
#include "num/pn_dtype.h"

#define DTYPE_FLOAT 1       /* a weight without scales */
#define DTYPE_BLOCK 2       /* a weight in blocks with scales */

typedef struct dtype_row {
    pn_dtype_info info;
    uint8_t use;            /* DTYPE_*; 0: integers, and activation formats that files never hold */
} dtype_row;

static const dtype_row dtype_table[PN_DTYPE_COUNT] = {
    [PN_DTYPE_F32] = {{"F32", 1, 4}, DTYPE_FLOAT},
    [PN_DTYPE_F16] = {{"F16", 1, 2}, DTYPE_FLOAT},
    [PN_DTYPE_Q4_0] = {{"Q4_0", 32, 18}, DTYPE_BLOCK},
    [PN_DTYPE_Q4_1] = {{"Q4_1", 32, 20}, DTYPE_BLOCK},
    [PN_DTYPE_Q5_0] = {{"Q5_0", 32, 22}, DTYPE_BLOCK},
    [PN_DTYPE_Q5_1] = {{"Q5_1", 32, 24}, DTYPE_BLOCK},
    [PN_DTYPE_Q8_0] = {{"Q8_0", 32, 34}, DTYPE_BLOCK},
    [PN_DTYPE_Q8_1] = {{"Q8_1", 32, 36}, 0},
    [PN_DTYPE_Q2_K] = {{"Q2_K", 256, 84}, DTYPE_BLOCK},
    [PN_DTYPE_Q3_K] = {{"Q3_K", 256, 110}, DTYPE_BLOCK},
    [PN_DTYPE_Q4_K] = {{"Q4_K", 256, 144}, DTYPE_BLOCK},
    [PN_DTYPE_Q5_K] = {{"Q5_K", 256, 176}, DTYPE_BLOCK},
    [PN_DTYPE_Q6_K] = {{"Q6_K", 256, 210}, DTYPE_BLOCK},
    [PN_DTYPE_Q8_K] = {{"Q8_K", 256, 292}, 0},
    [PN_DTYPE_IQ2_XXS] = {{"IQ2_XXS", 256, 66}, DTYPE_BLOCK},
    [PN_DTYPE_IQ2_XS] = {{"IQ2_XS", 256, 74}, DTYPE_BLOCK},
    [PN_DTYPE_IQ3_XXS] = {{"IQ3_XXS", 256, 98}, DTYPE_BLOCK},
    [PN_DTYPE_IQ1_S] = {{"IQ1_S", 256, 50}, DTYPE_BLOCK},
    [PN_DTYPE_IQ4_NL] = {{"IQ4_NL", 32, 18}, DTYPE_BLOCK},
    [PN_DTYPE_IQ3_S] = {{"IQ3_S", 256, 110}, DTYPE_BLOCK},
    [PN_DTYPE_IQ2_S] = {{"IQ2_S", 256, 82}, DTYPE_BLOCK},
    [PN_DTYPE_IQ4_XS] = {{"IQ4_XS", 256, 136}, DTYPE_BLOCK},
    [PN_DTYPE_I8] = {{"I8", 1, 1}, 0},
    [PN_DTYPE_I16] = {{"I16", 1, 2}, 0},
    [PN_DTYPE_I32] = {{"I32", 1, 4}, 0},
    [PN_DTYPE_I64] = {{"I64", 1, 8}, 0},
    [PN_DTYPE_F64] = {{"F64", 1, 8}, 0},
    [PN_DTYPE_IQ1_M] = {{"IQ1_M", 256, 56}, DTYPE_BLOCK},
    [PN_DTYPE_BF16] = {{"BF16", 1, 2}, DTYPE_FLOAT},
    [PN_DTYPE_TQ1_0] = {{"TQ1_0", 256, 54}, DTYPE_BLOCK},
    [PN_DTYPE_TQ2_0] = {{"TQ2_0", 256, 66}, DTYPE_BLOCK},
    [PN_DTYPE_MXFP4] = {{"MXFP4", 32, 17}, DTYPE_BLOCK},
    [PN_DTYPE_NVFP4] = {{"NVFP4", 64, 36}, DTYPE_BLOCK},
    [PN_DTYPE_Q1_0] = {{"Q1_0", 128, 18}, DTYPE_BLOCK},
    [PN_DTYPE_Q2_0] = {{"Q2_0", 64, 18}, DTYPE_BLOCK},
};

static const dtype_row dtype_hole = {{NULL, 0, 0}, 0};

static const dtype_row *dtype_row_of(uint32_t type)
{
    return type < PN_DTYPE_COUNT ? &dtype_table[type] : &dtype_hole;
}

PN_INTERNAL const pn_dtype_info *pn_dtype_get(uint32_t type) { return &dtype_row_of(type)->info; }

PN_INTERNAL bool pn_dtype_is_weight(uint32_t type) { return dtype_row_of(type)->use != 0; }

PN_INTERNAL bool pn_dtype_is_quantised(uint32_t type)
{
    return dtype_row_of(type)->use == DTYPE_BLOCK;
}

PN_INTERNAL bool pn_dtype_row_bytes(uint32_t type, uint64_t n, uint64_t *bytes)
{
    const pn_dtype_info *t = pn_dtype_get(type);
    if (t->block_elems == 0 || n % t->block_elems != 0)
        return false;
    return pn_mul_u64(n / t->block_elems, t->block_bytes, bytes);
}

/* ASCII only: the locale must not decide what "q4_k" means. */
static bool dtype_same_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        char x = *a >= 'a' && *a <= 'z' ? (char)(*a - 'a' + 'A') : *a;
        if (x != *b)
            return false;
        if (x == 0)
            return true;
    }
}

PN_API const char *pn_dtype_name(pn_dtype t)
{
    const char *name = pn_dtype_get((uint32_t)t)->name;
    return name ? name : "?";
}

PN_API pn_dtype pn_dtype_parse(const char *name)
{
    for (uint32_t t = 0; name && t < PN_DTYPE_COUNT; t++)
        if (dtype_table[t].info.name && dtype_same_name(name, dtype_table[t].info.name))
            return (pn_dtype)t;
    return PN_DTYPE_COUNT;
}

PN_API const char *pn_kv_type_name(pn_dtype t)
{
    switch (t) {
    case PN_DTYPE_F32: return "f32";
    case PN_DTYPE_F16: return "f16";
    case PN_DTYPE_Q8_0: return "q8_0";
    case PN_DTYPE_Q5_1: return "q5_1";
    case PN_DTYPE_Q5_0: return "q5_0";
    case PN_DTYPE_Q4_1: return "q4_1";
    case PN_DTYPE_Q4_0: return "q4_0";
    default: return NULL;
    }
}

PN_API uint32_t pn_dtype_block_elems(pn_dtype t) { return pn_dtype_get((uint32_t)t)->block_elems; }

PN_API uint32_t pn_dtype_block_bytes(pn_dtype t) { return pn_dtype_get((uint32_t)t)->block_bytes; }

#undef DTYPE_FLOAT
#undef DTYPE_BLOCK
