/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_num.c - number formats: names, decoders and encoders by vectors, halves exhaustively, and the
 * polynomials against the C library in double.
 *
 * The vectors are those of the format sheet (docs/formats.md, "Self-test vectors"): blocks of bytes
 * made by a rule with their decoded sums, and CRC-32s of encoded blocks.  They were checked there
 * against the reference library.
 */
#include "pn_test.h"

#include "num/pn_dtype.h"
#include "num/pn_half.h"
#include "num/pn_math.h"
#include "num/pn_quant.h"
#include "num/pn_tab_iq.h"

#define NUM_CHECK(cond) PN_CHECK(cond, " ")

/* ------------------------------------------------------------------------------------------
 * Names and sizes
 * ------------------------------------------------------------------------------------------ */

static void test_names_parse_back_and_rows_need_whole_blocks(void)
{
    int known = 0;
    for (uint32_t t = 0; t < PN_DTYPE_COUNT; t++) {
        const pn_dtype_info *info = pn_dtype_get(t);
        if (!info->name) {
            NUM_CHECK(info->block_elems == 0 && info->block_bytes == 0);
            NUM_CHECK(strcmp(pn_dtype_name((pn_dtype)t), "?") == 0);
            continue;
        }
        known++;
        PN_CHECK(pn_dtype_parse(info->name) == (pn_dtype)t, "%s", info->name);
        NUM_CHECK(!pn_quant_can_encode(t) || pn_dtype_is_weight(t) || t == PN_DTYPE_Q8_1 || t == PN_DTYPE_Q8_K);
        uint64_t bytes = 7;
        NUM_CHECK(pn_dtype_row_bytes(t, 3 * (uint64_t)info->block_elems, &bytes) && bytes == 3u * info->block_bytes);
        if (info->block_elems > 1)
            NUM_CHECK(!pn_dtype_row_bytes(t, info->block_elems + 1u, &bytes));
    }
    PN_CHECK(known == 35, "%d", known);
    NUM_CHECK(pn_dtype_parse("q4_k") == PN_DTYPE_Q4_K && pn_dtype_parse("bf16") == PN_DTYPE_BF16);
    NUM_CHECK(pn_dtype_parse("Q4_K_M") == PN_DTYPE_COUNT && pn_dtype_parse("") == PN_DTYPE_COUNT);
    NUM_CHECK(pn_dtype_parse(NULL) == PN_DTYPE_COUNT && pn_dtype_parse("?") == PN_DTYPE_COUNT);
    NUM_CHECK(pn_dtype_get(43)->name == NULL && pn_dtype_get(UINT32_MAX)->name == NULL);
    NUM_CHECK(pn_dtype_is_weight(PN_DTYPE_F32) && !pn_dtype_is_quantised(PN_DTYPE_F32));
    NUM_CHECK(!pn_dtype_is_weight(PN_DTYPE_Q8_K) && !pn_dtype_is_weight(PN_DTYPE_I32) && !pn_dtype_is_weight(4));
    NUM_CHECK(pn_dtype_is_quantised(PN_DTYPE_MXFP4));
    uint64_t bytes = 7;
    PN_CHECK(!pn_dtype_row_bytes(PN_DTYPE_F64, UINT64_MAX / 4, &bytes) && bytes == 7, "overflow");
}

/* ------------------------------------------------------------------------------------------
 * Decoders
 * ------------------------------------------------------------------------------------------ */

typedef struct num_vector {
    pn_dtype type;
    int d_at[4], m_at;          /* offsets of f16 1.0 and 0.5; -1: none */
    double first[4], last, s0, s1;
} num_vector;

static const num_vector num_vectors[] = {
    {PN_DTYPE_Q1_0, {0, -1, -1, -1}, -1, {1, 1, -1, 1}, -1, -6, -702},
    {PN_DTYPE_Q2_0, {0, -1, -1, -1}, -1, {2, 1, 2, 1}, -1, 27, 769},
    {PN_DTYPE_Q4_0, {0, -1, -1, -1}, -1, {3, -4, 5, -2}, -8, -33, -799},
    {PN_DTYPE_Q4_1, {0, -1, -1, -1}, 2, {13.5, 6.5, 15.5, 8.5}, 9.5, 241, 3730},
    {PN_DTYPE_Q5_0, {0, -1, -1, -1}, -1, {15, 8, -15, 10}, 2, -45, -1185},
    {PN_DTYPE_Q5_1, {0, -1, -1, -1}, 2, {17.5, 10.5, 19.5, 28.5}, 11.5, 517, 8312},
    {PN_DTYPE_Q8_0, {0, -1, -1, -1}, -1, {-69, 4, 77, -106}, -110, -48, -688},
    {PN_DTYPE_Q2_K, {80, -1, -1, -1}, 82, {8, 17, 26, -1}, -3.5, 2043, 250990},
    {PN_DTYPE_Q3_K, {108, -1, -1, -1}, -1, {-7, 14, -21, 28}, -24, 234, 34746},
    {PN_DTYPE_Q4_K, {0, -1, -1, -1}, 2, {92.5, 1.5, 118.5, 27.5}, -11.5, 53352, 7369368},
    {PN_DTYPE_Q5_K, {0, -1, -1, -1}, 2, {300.5, 1.5, 326.5, 27.5}, -11.5, 110072, 14904504},
    {PN_DTYPE_Q6_K, {208, -1, -1, -1}, -1, {161, -46, -621, 644}, 288, -14844, -1628128},
    {PN_DTYPE_Q8_K, {-1, -1, -1, -1}, -1, {77, -106, -33, 40}, 4, -128, 65920},
    {PN_DTYPE_IQ4_NL, {0, -1, -1, -1}, -1, {38, -49, 69, -22}, -127, -481, -12076},
    {PN_DTYPE_IQ4_XS, {0, -1, -1, -1}, -1, {-3016, 725, -1885, 1537}, -750, -6450, 883051},
    {PN_DTYPE_IQ2_XXS, {0, -1, -1, -1}, -1, {-123.625, -123.625, -23, -23}, -71.875, -298.25, 37614},
    {PN_DTYPE_IQ2_XS, {0, -1, -1, -1}, -1, {23, -71.875, 23, 23}, 31, 665.75, 29240.625},
    {PN_DTYPE_IQ2_S, {0, -1, -1, -1}, -1, {-7, -21.875, 21.875, -7}, -48.375, -251.5, -5880.75},
    {PN_DTYPE_IQ3_XXS, {0, -1, -1, -1}, -1, {-297, -243, 189, -243}, 243, 1941.5, 421172.5},
    {PN_DTYPE_IQ3_S, {0, -1, -1, -1}, -1, {-35, -7, 105, 77}, 77, 162, -13838},
    {PN_DTYPE_IQ1_S, {0, -1, -1, -1}, -1, {0.625, 0.625, -4.375, -4.375}, -4.375, -73, -11804},
    {PN_DTYPE_IQ1_M, {-1, -1, -1, -1}, -1, {2.625, -3.375, -3.375, -3.375}, -10.125, -61, -6908},
    {PN_DTYPE_TQ1_0, {52, -1, -1, -1}, -1, {-1, 0, 1, -1}, 1, -15, -747},
    {PN_DTYPE_TQ2_0, {64, -1, -1, -1}, -1, {0, 1, 2, -1}, -1, 125, 17068},
    {PN_DTYPE_MXFP4, {-1, -1, -1, -1}, -1, {2, -3, 4, -6}, -3, 25, 626},
    {PN_DTYPE_NVFP4, {-1, -1, -1, -1}, -1, {-3, 4, -6, 0}, 2, 19.9375, 934.5},
};

/* The vector's block: bytes by rule, then scales of 1 (and minima of 0.5) where the type has them. */
static void num_vector_block(const num_vector *v, uint8_t *b)
{
    uint32_t bytes = pn_dtype_block_bytes(v->type);
    for (uint32_t i = 0; i < bytes; i++)
        b[i] = (uint8_t)(73 * i + 41);
    if (v->d_at[0] >= 0)
        memcpy(b + v->d_at[0], "\x00\x3c", 2);
    if (v->m_at >= 0)
        memcpy(b + v->m_at, "\x00\x38", 2);
    if (v->type == PN_DTYPE_Q8_K)
        memcpy(b, "\x00\x00\x80\x3f", 4);
    if (v->type == PN_DTYPE_MXFP4)
        b[0] = 0x80;
    if (v->type == PN_DTYPE_NVFP4)
        memcpy(b, "\x38\x39\x3a\x40", 4);
    if (v->type == PN_DTYPE_IQ1_M)
        for (int i = 0; i < 4; i++)
            b[49 + 2 * i] = (uint8_t)((b[49 + 2 * i] & 15) | (i == 2 ? 0xc0 : i == 3 ? 0x30 : 0));
}

static void test_decoders_give_the_vectors_of_the_sheet(void)
{
    for (size_t i = 0; i < PN_COUNT_OF(num_vectors); i++) {
        const num_vector *v = &num_vectors[i];
        const char *name = pn_dtype_name(v->type);
        uint32_t n = pn_dtype_block_elems(v->type);
        uint8_t block[2 * 292 + 1];
        float y[512];
        uint32_t bytes = pn_dtype_block_bytes(v->type);
        num_vector_block(v, block + 1);             /* odd address: nothing may need alignment */
        memcpy(block + 1 + bytes, block + 1, bytes);
        pn_dequant_row(v->type, block + 1, y, 2 * (size_t)n);
        double s0 = 0, s1 = 0;
        for (uint32_t j = 0; j < n; j++) {
            s0 += y[j];
            s1 += (j + 1.0) * y[j];
        }
        for (int j = 0; j < 4; j++)
            PN_CHECK(y[j] == v->first[j], "%s[%d] = %g, not %g", name, j, y[j], v->first[j]);
        PN_CHECK(y[n - 1] == v->last, "%s last = %g", name, y[n - 1]);
        PN_CHECK(s0 == v->s0 && s1 == v->s1, "%s sums %.9g %.9g", name, s0, s1);
        PN_CHECK(memcmp(y, y + n, n * sizeof *y) == 0, "%s second block", name);
    }
}

/* ------------------------------------------------------------------------------------------
 * Encoders
 * ------------------------------------------------------------------------------------------ */

static uint32_t num_crc32(const uint8_t *p, size_t n)
{
    uint32_t c = ~0u;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
    }
    return ~c;
}

typedef struct num_crc {
    pn_dtype type;
    uint32_t crc;
    double mse;                 /* as the sheet prints it: four digits */
} num_crc;

static const num_crc num_crcs[] = {
    {PN_DTYPE_Q8_0, 0xBF589A16, 1.865e-05}, {PN_DTYPE_Q4_0, 0x6A2ACBD9, 0.006943},
    {PN_DTYPE_Q4_1, 0x99F6F62A, 0.008057}, {PN_DTYPE_Q5_0, 0xCDDFEF2A, 0.001163},
    {PN_DTYPE_Q5_1, 0xAA3FF3A6, 0.001265}, {PN_DTYPE_IQ4_NL, 0x11F1CE15, 0.007858},
    {PN_DTYPE_MXFP4, 0x53928BD5, 0.03638}, {PN_DTYPE_NVFP4, 0x287622BD, 0.01039},
    {PN_DTYPE_Q2_K, 0xE1B9A8F6, 0.06234}, {PN_DTYPE_Q3_K, 0x69C2B84B, 0.02402},
    {PN_DTYPE_Q4_K, 0xC27D007A, 0.004771}, {PN_DTYPE_Q5_K, 0x20CCE097, 0.0009654},
    {PN_DTYPE_Q6_K, 0x049C4F09, 0.0002212}, {PN_DTYPE_TQ1_0, 0x9059494E, 0.2396},
    {PN_DTYPE_TQ2_0, 0xC46D14E2, 0.2396}, {PN_DTYPE_Q8_K, 0x95308FB7, 1.648e-05},
};

static void test_encoders_give_the_bytes_of_the_sheet(void)
{
    for (size_t i = 0; i < PN_COUNT_OF(num_crcs); i++) {
        const num_crc *v = &num_crcs[i];
        const char *name = pn_dtype_name(v->type);
        uint32_t n = pn_dtype_block_elems(v->type), bytes = pn_dtype_block_bytes(v->type);
        float x[256], y[256];
        uint8_t block[293];
        for (uint32_t j = 0; j < n; j++)
            x[j] = ((float)((7 * j * j + 3 * j) % 61) - 30.0f) / 16.0f;
        memset(block, 0xA5, sizeof block);
        if (!PN_CHECK(pn_quant_can_encode(v->type) && pn_quant_row(v->type, x, block, n), "%s", name))
            continue;
        uint32_t crc = num_crc32(block, bytes);
        PN_CHECK(crc == v->crc, "%s: CRC %08X, not %08X", name, crc, v->crc);
        PN_CHECK(block[bytes] == 0xA5, "%s writes past its block", name);
        pn_dequant_row(v->type, block, y, n);
        double e = 0;
        for (uint32_t j = 0; j < n; j++)
            e += ((double)x[j] - y[j]) * ((double)x[j] - y[j]);
        PN_CHECK(fabs(e / n - v->mse) <= 6e-4 * v->mse, "%s: error %g, not %g", name, e / n, v->mse);
    }
}

/* ------------------------------------------------------------------------------------------
 * Encoders meet the world
 * ------------------------------------------------------------------------------------------ */

static const uint32_t num_encodable[] = {
    PN_DTYPE_F32, PN_DTYPE_F16, PN_DTYPE_BF16, PN_DTYPE_Q4_0, PN_DTYPE_Q4_1, PN_DTYPE_Q5_0, PN_DTYPE_Q5_1,
    PN_DTYPE_Q8_0, PN_DTYPE_Q8_1, PN_DTYPE_Q2_K, PN_DTYPE_Q3_K, PN_DTYPE_Q4_K, PN_DTYPE_Q5_K, PN_DTYPE_Q6_K,
    PN_DTYPE_Q8_K, PN_DTYPE_IQ4_NL, PN_DTYPE_TQ1_0, PN_DTYPE_TQ2_0, PN_DTYPE_MXFP4, PN_DTYPE_NVFP4,
    PN_DTYPE_Q1_0, PN_DTYPE_Q2_0,
};

static void test_zero_blocks_decode_to_zero(void)
{
    for (size_t i = 0; i < PN_COUNT_OF(num_encodable); i++) {
        uint32_t t = num_encodable[i];
        float x[256], y[256];
        uint8_t block[1024];
        for (int sign = 0; sign < 2; sign++) {
            for (int j = 0; j < 256; j++)
                x[j] = sign ? -0.0f : 0.0f;
            memset(block, 0xA5, sizeof block);
            pn_quant_row(t, x, block, 256);
            pn_dequant_row(t, block, y, 256);
            for (int j = 0; j < 256; j++)
                if (!PN_CHECK(y[j] == 0, "%s[%d] = %g", pn_dtype_name((pn_dtype)t), j, y[j]))
                    break;
        }
    }
}

/* NaN, infinities, subnormals, the largest floats: no trap, no sanitizer report, the same bytes
 * whatever the buffer held before. */
static void test_any_input_is_safe_and_writes_every_byte(void)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 1e-45f, -1e-40f, 3.4e38f, -3.4e38f, 1e-38f, 70000.0f, -0.0f, 1e-16f};
    uint64_t seed = 42;
    for (size_t i = 0; i < PN_COUNT_OF(num_encodable); i++) {
        uint32_t t = num_encodable[i];
        uint64_t bytes = 0;
        pn_dtype_row_bytes(t, 256, &bytes);
        for (int round = 0; round < 200; round++) {
            float x[256], y[256];
            uint8_t one[1025], two[1025];      /* one more than F32 fills */
            for (int j = 0; j < 256; j++) {
                uint64_t r = pn_test_rand(&seed);
                float plain = (float)((double)(r >> 40) / (1 << 23) - 1.0);
                x[j] = round % 4 == 0 ? pn_f32_from_bits((uint32_t)r)
                     : round % 4 == 1 ? odd[r % PN_COUNT_OF(odd)]
                     : round % 4 == 2 ? odd[(size_t)round / 4 % PN_COUNT_OF(odd)]
                     : r % 17 == 0 ? odd[r / 17 % PN_COUNT_OF(odd)] : plain;
            }
            memset(one, 0x00, sizeof one);
            memset(two, 0xFF, sizeof two);
            pn_quant_row(t, x, one, 256);
            pn_quant_row(t, x, two, 256);
            if (!PN_CHECK(memcmp(one, two, (size_t)bytes) == 0, "%s round %d", pn_dtype_name((pn_dtype)t), round))
                break;
            NUM_CHECK(one[bytes] == 0x00 && two[bytes] == 0xFF);
            pn_dequant_row(t, one, y, 256);
        }
    }
}

/* A CRC over many rows of bell-shaped numbers of several sizes: the same on every machine, compiler
 * and level of optimisation (recorded on x86-64, where nothing can be contracted). */
static void test_encoders_give_the_same_bytes_everywhere(void)
{
    static const struct { uint32_t type, crc; } want[] = {
        {PN_DTYPE_Q4_0, 0x51177C63},
        {PN_DTYPE_Q4_1, 0x4004CF7D},
        {PN_DTYPE_Q5_0, 0xD0035D6F},
        {PN_DTYPE_Q5_1, 0x7AEC49A9},
        {PN_DTYPE_Q8_0, 0xF9143C7B},
        {PN_DTYPE_Q8_1, 0x52C2AE0C},
        {PN_DTYPE_Q2_K, 0x8F0AEC03},
        {PN_DTYPE_Q3_K, 0x10BFD412},
        {PN_DTYPE_Q4_K, 0xC00D560C},
        {PN_DTYPE_Q5_K, 0x62797655},
        {PN_DTYPE_Q6_K, 0xCB254864},
        {PN_DTYPE_Q8_K, 0xF3928EFE},
        {PN_DTYPE_IQ4_NL, 0x956105F2},
        {PN_DTYPE_TQ1_0, 0x7A9DD2A4},
        {PN_DTYPE_TQ2_0, 0xCADD574C},
        {PN_DTYPE_MXFP4, 0xF9694957},
        {PN_DTYPE_NVFP4, 0x0DFFF713},
        {PN_DTYPE_Q1_0, 0xB9F04BF1},
        {PN_DTYPE_Q2_0, 0x482B9A10},
        {PN_DTYPE_F16, 0x1AC062B9},
        {PN_DTYPE_BF16, 0x87F69DB8},
    };
    for (size_t i = 0; i < PN_COUNT_OF(want); i++) {
        uint64_t seed = 7, bytes = 0;
        uint32_t crc = 0;
        pn_dtype_row_bytes(want[i].type, 1024, &bytes);
        for (int row = 0; row < 16; row++) {
            float x[1024];
            uint8_t out[4096];
            for (int j = 0; j < 1024; j++) {
                int32_t sum = 0;
                for (int k = 0; k < 6; k++)
                    sum += (int32_t)(pn_test_rand(&seed) >> 48) - 32768;
                x[j] = (float)sum * (row % 4 == 3 ? 0x1p-30f : 0x1p-20f);
                if (row % 4 == 2 && j % 37 == 0)
                    x[j] *= 16;
            }
            pn_quant_row(want[i].type, x, out, 1024);
            crc = crc * 31 + num_crc32(out, (size_t)bytes);
        }
        PN_CHECK(crc == want[i].crc, "%s: %08" PRIX32 ", not %08" PRIX32, pn_dtype_name((pn_dtype)want[i].type), crc, want[i].crc);
    }
}

/* Code 0 with scale 0, not the code of zero: what the reference leaves there. */
static void test_empty_sub_blocks_are_stored_as_zero_codes(void)
{
    float x[256] = {0};
    uint8_t b[210];
    for (int j = 16; j < 256; j++)
        x[j] = (float)(j % 7) - 3.0f;
    pn_quant_row(PN_DTYPE_Q6_K, x, b, 256);
    PN_CHECK(b[192] == 0, "scale %d", b[192]);
    for (int j = 0; j < 16; j++)
        PN_CHECK((b[j] & 15) == 0 && (b[128 + j] & 3) == 0, "Q6_K %d", j);
    pn_quant_row(PN_DTYPE_Q3_K, x, b, 256);
    for (int j = 0; j < 16; j++)
        PN_CHECK((b[j] & 1) == 0 && (b[32 + j] & 3) == 0, "Q3_K %d", j);
}

static void test_types_without_encoder_refuse(void)
{
    float x[256] = {0};
    uint8_t out[1024];
    static const uint32_t none[] = {PN_DTYPE_IQ2_XXS, PN_DTYPE_IQ1_S, PN_DTYPE_IQ3_S, PN_DTYPE_I32, 4, 99};
    for (size_t i = 0; i < PN_COUNT_OF(none); i++)
        PN_CHECK(!pn_quant_can_encode(none[i]) && !pn_quant_row(none[i], x, out, 256), "%" PRIu32, none[i]);
}

static void test_tables_have_their_shape(void)
{
    for (int i = 0; i < 128; i++) {
        int ones = 0;
        for (int k = 0; k < 8; k++)
            ones += pn_tab_ksigns()[i] >> k & 1;
        NUM_CHECK((pn_tab_ksigns()[i] & 127) == i && ones % 2 == 0);
    }
    for (int i = 0; i < 256; i++)
        for (int k = 0; k < 8; k++)
            NUM_CHECK((int8_t)(pn_tab_signs()[i] >> 8 * k & 255) == (i >> k & 1 ? -1 : 1));
}

/* ------------------------------------------------------------------------------------------
 * Halves
 * ------------------------------------------------------------------------------------------ */

static void test_every_half_comes_back(void)
{
    int bad = 0;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = pn_f32_from_f16((uint16_t)h), g = pn_f32_from_bf16((uint16_t)h);
        uint32_t e = h >> 10 & 31, m = h & 1023;
        double v = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, (int)e - 25);
        if (e == 31)
            bad += m ? f == f : !isinf(f);
        else
            bad += f != (h & 0x8000 ? -v : v) || pn_f16_from_f32(f) != h;
        if (e == 31 && !m)
            bad += pn_f16_from_f32(f) != h;
        if (f != f)
            bad += (pn_f16_from_f32(f) & 0x7c00) != 0x7c00 || !(pn_f16_from_f32(f) & 0x3ff);
        if (g == g)
            bad += pn_bf16_from_f32(g) != h;
        else
            bad += pn_f32_from_bf16(pn_bf16_from_f32(g)) == pn_f32_from_bf16(pn_bf16_from_f32(g));
    }
    PN_CHECK(bad == 0, "%d", bad);
}

/* Between two neighbours: below the middle goes down, above goes up, the middle to the even one. */
static void test_rounding_to_halves_is_to_nearest_even(void)
{
    int bad = 0;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double a = pn_f32_from_f16((uint16_t)h), b = h == 0x7bff ? 65536.0 : pn_f32_from_f16((uint16_t)(h + 1));
        float mid = (float)((a + b) / 2);
        bad += pn_f16_from_f32(mid) != h + (h & 1);
        bad += pn_f16_from_f32(nextafterf(mid, 0)) != h || pn_f16_from_f32(nextafterf(mid, INFINITY)) != h + 1;
        bad += pn_f16_from_f32(-mid) != (0x8000 | (h + (h & 1)));
    }
    for (uint32_t h = 0; h < 0x7f80; h++) {
        uint32_t mid = h << 16 | 0x8000;
        bad += pn_bf16_from_f32(pn_f32_from_bits(mid)) != h + (h & 1);
        bad += pn_bf16_from_f32(pn_f32_from_bits(mid - 1)) != h || pn_bf16_from_f32(pn_f32_from_bits(mid + 1)) != h + 1;
    }
    PN_CHECK(bad == 0, "%d", bad);
    for (int u = 0; u < 256; u++) {
        PN_CHECK((double)pn_f32_from_e8m0_half((uint8_t)u) == ldexp(1, u - 128), "%d", u);
        int e = u >> 3 & 15, m = u & 7;
        double v = (u & 127) == 127 ? 0 : e ? ldexp(8 + m, e - 11) : ldexp(m, -10);
        PN_CHECK((double)pn_f32_from_ue4m3_half((uint8_t)u) == v, "%d", u);
    }
}

/* ------------------------------------------------------------------------------------------
 * Functions
 * ------------------------------------------------------------------------------------------ */

static double num_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double num_silu(double x) { return x / (1 + exp(-x)); }

static double num_gelu(double x)
{
    return x / (1 + exp(-2 * sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

/* Largest error in units of the last place of the exact result (normal results only). */
static double num_worst_f32(float (*f)(float), double (*ref)(double), float lo, float hi)
{
    double worst = 0;
    for (uint64_t u = 0; u < 0xff000000u; u += 4099) {
        float x = pn_f32_from_bits((uint32_t)u);
        if (!(x >= lo && x <= hi))
            continue;
        double want = ref(x), got = f(x);
        int e;
        if (fabs(want) < 0x1p-126 || fabs(want) > 3.4028234e38)
            continue;
        frexp(want, &e);
        double ulp = fabs(got - want) * ldexp(1, 24 - e);
        worst = ulp > worst ? ulp : worst;
    }
    return worst;
}

static void test_single_precision_functions_keep_their_bounds(void)
{
    double w;
    w = num_worst_f32(pn_expf, exp, -87.3f, 88.7228f);
    PN_CHECK(w <= 1, "exp %g", w);
    w = num_worst_f32(pn_tanhf, tanh, -100, 100);
    PN_CHECK(w <= 2, "tanh %g", w);
    w = num_worst_f32(pn_sigmoidf, num_sigmoid, -87, 100);
    PN_CHECK(w <= 3, "sigmoid %g", w);
    w = num_worst_f32(pn_siluf, num_silu, -87, 100);
    PN_CHECK(w <= 3, "silu %g", w);
    w = num_worst_f32(pn_logf, log, 0, 3.4e38f);
    PN_CHECK(w <= 1, "log %g", w);
    w = num_worst_f32(pn_geluf, num_gelu, -1, 100);
    PN_CHECK(w <= 4, "gelu %g", w);
    /* the argument of exp grows with x^3, and its rounding with it */
    w = num_worst_f32(pn_geluf, num_gelu, -5, 100);
    PN_CHECK(w <= 32, "gelu %g", w);
}

static void test_functions_at_the_edges(void)
{
    const float inf = INFINITY;
    NUM_CHECK(pn_expf(0) == 1 && pn_expf(-0.0f) == 1 && pn_expf(inf) == inf && pn_expf(-inf) == 0);
    NUM_CHECK(pn_expf(-87.4f) == 0 && pn_expf(-1e30f) == 0 && pn_expf(88.73f) == inf && pn_expf(3e38f) == inf);
    NUM_CHECK(pn_expf(-87.3365f) >= 0x1p-126f && pn_expf(88.7228f) < inf && isnan(pn_expf(NAN)));
    NUM_CHECK(pn_tanhf(inf) == 1 && pn_tanhf(-inf) == -1 && pn_tanhf(50) == 1 && isnan(pn_tanhf(NAN)));
    NUM_CHECK(pn_f32_bits(pn_tanhf(-0.0f)) == 0x80000000u && pn_tanhf(0x1p-130f) == 0x1p-130f);
    NUM_CHECK(pn_sigmoidf(0) == 0.5f && pn_sigmoidf(inf) == 1 && pn_sigmoidf(-inf) == 0 && isnan(pn_sigmoidf(NAN)));
    NUM_CHECK(pn_siluf(0) == 0 && pn_siluf(-1e30f) == 0 && pn_siluf(0x1p99f) == 0x1p99f && isnan(pn_siluf(NAN)));
    NUM_CHECK(pn_geluf(0) == 0 && pn_geluf(-1e30f) == 0 && pn_geluf(0x1p99f) == 0x1p99f && isnan(pn_geluf(NAN)));
    NUM_CHECK(pn_logf(1) == 0 && pn_logf(0) == -inf && pn_logf(inf) == inf && isnan(pn_logf(-1)) && isnan(pn_logf(NAN)));
    NUM_CHECK(fabs(pn_logf(1e-45f) - log(1.401298464324817e-45)) < 1e-5);
    NUM_CHECK(pn_exp(0) == 1 && pn_exp(710) == inf && pn_exp(-746) == 0 && pn_exp(-inf) == 0 && isnan(pn_exp(NAN)));
    NUM_CHECK(pn_exp(-745.1) == 0x1p-1074 && pn_exp(709.7) < inf);
    NUM_CHECK(pn_log(1) == 0 && pn_log(0) == -inf && pn_log(inf) == inf && isnan(pn_log(-1)) && isnan(pn_log(NAN)));
    NUM_CHECK(pn_pow(2, 10) == 1024 && pn_pow(10, 2) == 100 && pn_pow(5, 0) == 1 && pn_pow(2, 1e300) == inf);
    NUM_CHECK(pn_pow(2, -1e300) == 0 && pn_pow(0.5, 1074) == ldexp(1, -1074) && pn_pow(2, 1023.5) < inf && isnan(pn_pow(2, NAN)));
    double s, c;
    pn_sincos(0, &s, &c);
    NUM_CHECK(s == 0 && c == 1);
    pn_sincos(INFINITY, &s, &c);
    NUM_CHECK(isnan(s) && isnan(c));
}

static double num_ulps(double got, double want)
{
    int e;
    frexp(want, &e);
    return ldexp(fabs(got - want), 53 - e);
}

static double num_unit(uint64_t *seed) { return (double)(pn_test_rand(seed) >> 11) * 0x1p-53; }

/* Against the C library, whose own error is below one unit. */
static void test_double_precision_functions_agree_with_the_library(void)
{
    uint64_t seed = 99;
    double we = 0, wl = 0, wp = 0, ws = 0, wc = 0;
    for (int i = 0; i < 100000; i++) {
        double x = num_unit(&seed) * 1400 - 700, b = pn_exp((num_unit(&seed) - 0.5) * 60), s, c;
        we = fmax(we, num_ulps(pn_exp(x), exp(x)));
        double near_one = i % 2 ? b : 1 + (num_unit(&seed) - 0.5) * ldexp(1, -(i % 40));
        if (near_one != 1)
            wl = fmax(wl, num_ulps(pn_log(near_one), log(near_one)));
        double y = (num_unit(&seed) - 0.5) * 1300 / fmax(1, fabs(log(b)));
        wp = fmax(wp, num_ulps(pn_pow(b, y), pow(b, y)));
        double a = (num_unit(&seed) - 0.5) * ldexp(1, i % 32);
        if (i % 8 == 0)
            a = (double)(int64_t)(num_unit(&seed) * 1e6);      /* positions are whole numbers */
        pn_sincos(a, &s, &c);
        if (a != 0)
            ws = fmax(ws, num_ulps(s, sin(a)));
        wc = fmax(wc, num_ulps(c, cos(a)));
    }
    PN_CHECK(we <= 2 && wl <= 2 && wp <= 2 && ws <= 2 && wc <= 2, "exp %g log %g pow %g sin %g cos %g", we, wl, wp, ws, wc);
    double s, c;
    pn_sincos(0x1.921fb54442d18p+0 * 134217728.0, &s, &c);      /* 2^27 times the double next to pi/2 */
    PN_CHECK(num_ulps(s, sin(0x1.921fb54442d18p+0 * 134217728.0)) <= 2, "%g", s);
}

static void test_software_fma_rounds_once(void)
{
    uint64_t seed = 3;
    for (int i = 0; i < 200000; i++) {
        float a = pn_f32_from_bits((uint32_t)pn_test_rand(&seed)), b = pn_f32_from_bits((uint32_t)pn_test_rand(&seed));
        float c = pn_f32_from_bits((uint32_t)pn_test_rand(&seed));
        uint64_t r = pn_test_rand(&seed);
        if (i & 1)                              /* nearly cancelling */
            c = (float)(-(double)a * b * (1 + ldexp((double)(r & 255) - 128, -(int)(r >> 8 & 63))));
        float x = pn_fmaf(a, b, c), y = fmaf(a, b, c);
        if (!PN_CHECK(pn_f32_bits(x) == pn_f32_bits(y) || (x != x && y != y), "%a %a %a: %a, not %a", a, b, c, x, y))
            break;
    }
}

int main(void)
{
    test_names_parse_back_and_rows_need_whole_blocks();
    test_decoders_give_the_vectors_of_the_sheet();
    test_encoders_give_the_bytes_of_the_sheet();
    test_zero_blocks_decode_to_zero();
    test_any_input_is_safe_and_writes_every_byte();
    test_encoders_give_the_same_bytes_everywhere();
    test_empty_sub_blocks_are_stored_as_zero_codes();
    test_types_without_encoder_refuse();
    test_tables_have_their_shape();
    test_every_half_comes_back();
    test_rounding_to_halves_is_to_nearest_even();
    test_single_precision_functions_keep_their_bounds();
    test_functions_at_the_edges();
    test_double_precision_functions_agree_with_the_library();
    test_software_fma_rounds_once();
    return pn_test_end();
}

#undef NUM_CHECK
