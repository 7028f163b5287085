/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_hf_quant.c - quantised folders: the fixtures' matrices are put into FP8 and int4 here, by the plainest encoders, and beside
 * each such folder one is written that has the values those codes mean.  Both have to be the same model: the same bits of
 * logits in the same type, the same quantised files.
 */
#define _XOPEN_SOURCE 700       /* mkdtemp */
#include "pn_test.h"

#include <math.h>

#include "pn_api_test.h"

#include "engine/pn_retype.h"
#include "engine/pn_tier.h"
#include "format/pn_hf_dir.h"
#include "format/pn_packed.h"
#include "format/pn_safetensors.h"
#include "num/pn_half.h"
#include "num/pn_quant.h"

#include <sys/stat.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------
 * What codes mean, by arithmetic
 * ------------------------------------------------------------------------------------------ */

static double code_value(int exponent_bits, int mantissa_bits, int bias, unsigned c)
{
    unsigned m = c & ((1u << mantissa_bits) - 1), e = c >> mantissa_bits & ((1u << exponent_bits) - 1);
    double v = e ? ldexp(1 + ldexp(m, -mantissa_bits), (int)e - bias) : ldexp(m, 1 - bias - mantissa_bits);
    return c >> 7 ? -v : v;
}

static double e4m3(unsigned c) { return (c & 127) == 127 ? NAN : code_value(4, 3, 7, c); }

static double e5m2(unsigned c)
{
    unsigned e = c >> 2 & 31;
    return e < 31 ? code_value(5, 2, 15, c) : c & 3 ? NAN : c >> 7 ? -INFINITY : INFINITY;
}

static double e8m0(unsigned c) { return c == 255 ? NAN : ldexp(1, (int)c - 127); }

static void every_code_means_what_the_format_says(void)
{
    for (unsigned c = 0; c < 256; c++) {
        const float got[] = {pn_f32_from_e4m3((uint8_t)c), pn_f32_from_e5m2((uint8_t)c), pn_f32_from_e8m0((uint8_t)c)};
        const double want[] = {e4m3(c), e5m2(c), e8m0(c)};
        for (int k = 0; k < 3; k++)
            PN_CHECK(isnan(want[k]) ? isnan(got[k]) : (double)got[k] == want[k] && !signbit(got[k]) == !signbit(want[k]), "format %d, code %02x: %g, expected %g", k, c,
                     (double)got[k], want[k]);
    }
    PN_CHECK(e4m3(0x7e) == 448 && e4m3(0x81) == -0x1p-9 && e5m2(0x7b) == 57344 && e8m0(0) == 0x1p-127);
}

/* ------------------------------------------------------------------------------------------
 * Folders
 * ------------------------------------------------------------------------------------------ */

typedef struct form {
    const char *name, *config;          /* ' for " */
    uint32_t code, scale;               /* pn_st_dtype; I32: four bits */
    uint32_t rows, cols;                /* of a block; 0: all */
    bool zeros, flat;                   /* flat: a scale alone has no dimensions */
    uint32_t becomes;                   /* pn_dtype */
} form;

#define PACK(weights) "{'quant_method':'compressed-tensors','format':'pack-quantized','config_groups':{'group_0':{'targets':['Linear'],'weights':{'num_bits':4,'type':'int'," weights "}}}}"
#define FLOAT "{'quant_method':'compressed-tensors','format':'float-quantized','ignore':['lm_head'],'quantization_status':'compressed'}"

static const form forms[] = {
    {"fp8 blocks f32", "{'quant_method':'fp8','weight_block_size':[128,128],'activation_scheme':'dynamic'}", PN_ST_F8_E4M3, PN_ST_F32, 128, 128, false, false, PN_DTYPE_F16},
    {"fp8 blocks bf16", "{'quant_method':'fp8','weight_block_size':[16,24]}", PN_ST_F8_E4M3, PN_ST_BF16, 16, 24, false, false, PN_DTYPE_F16},
    {"fp8 blocks e8m0", "{'quant_method':'fp8','weight_block_size':[7,20],'scale_fmt':'ue8m0'}", PN_ST_F8_E4M3, PN_ST_F8_E8M0, 7, 20, false, false, PN_DTYPE_BF16},
    {"fp8 blocks u8", "{'quant_method':'fp8','weight_block_size':[32,8],'scale_fmt':'ue8m0'}", PN_ST_F8_E4M3, PN_ST_U8, 32, 8, false, false, PN_DTYPE_BF16},
    {"e5m2 blocks f16", "{'quant_method':'fp8','weight_block_size':[1,16]}", PN_ST_F8_E5M2, PN_ST_F16, 1, 16, false, false, PN_DTYPE_F16},
    {"fp8 one f32", "{'quant_method':'fp8','activation_scheme':'static'}", PN_ST_F8_E4M3, PN_ST_F32, 0, 0, false, true, PN_DTYPE_F16},
    {"fp8 one bf16", "{'quant_method':'fp8'}", PN_ST_F8_E4M3, PN_ST_BF16, 0, 0, false, false, PN_DTYPE_F16},
    {"fp8 rows bf16", FLOAT, PN_ST_F8_E4M3, PN_ST_BF16, 1, 0, false, false, PN_DTYPE_F16},
    {"fp8 rows one", FLOAT, PN_ST_F8_E4M3, PN_ST_F16, 0, 0, false, false, PN_DTYPE_F16},
    {"int4 groups of 16", PACK("'strategy':'group','group_size':16,'symmetric':true"), PN_ST_I32, PN_ST_BF16, 1, 16, false, false, PN_DTYPE_F16},
    {"int4 groups of 32", PACK("'strategy':'group','group_size':32,'symmetric':true"), PN_ST_I32, PN_ST_F16, 1, 32, false, false, PN_DTYPE_Q4_0},
    {"int4 groups of 64", PACK("'strategy':'group','group_size':64,'symmetric':true"), PN_ST_I32, PN_ST_BF16, 1, 64, false, false, PN_DTYPE_Q4_0},
    {"int4 groups of 32 f32", PACK("'strategy':'group','group_size':32,'symmetric':true"), PN_ST_I32, PN_ST_F32, 1, 32, false, false, PN_DTYPE_F16},
    {"int4 zeros groups", PACK("'strategy':'group','group_size':8,'symmetric':false"), PN_ST_I32, PN_ST_BF16, 1, 8, true, false, PN_DTYPE_F16},
    {"int4 zeros groups of 32", PACK("'strategy':'group','group_size':32,'symmetric':false"), PN_ST_I32, PN_ST_BF16, 1, 32, true, false, PN_DTYPE_Q4_1},
    {"int4 zeros rows", PACK("'strategy':'channel','symmetric':false"), PN_ST_I32, PN_ST_F32, 1, 0, true, false, PN_DTYPE_F16},
};

enum { FX_PATH = 256, FX_MAX = 400 };
static const char *const fx_folders[] = {"tests/vectors/hf/qwen3_tied", "tests/vectors/hf/llama_bf16", "tests/vectors/hf/mixtral_f32", "tests/vectors/hf/phi3_f16"};
static const char *const fx_files[] = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model"};
static char fx_root[64] = "/tmp/pn-quant-XXXXXX";

/* "<root>/<which>/model<rest>"; the folders have one name, which is the model's.  Good until the eighth call from here. */
static const char *fx_path(const char *which, const char *rest)
{
    static char slots[8][FX_PATH];
    static unsigned next;
    char *p = slots[next++ % 8];
    snprintf(p, FX_PATH, "%s/%s/model%s", fx_root, which, rest);
    return p;
}

typedef struct fx_tensor {
    char name[PN_ST_MAX_NAME];
    uint32_t dtype, rank;
    uint64_t shape[2];
    void *bytes;                /* owned */
    size_t n;
} fx_tensor;

typedef struct fx {
    fx_tensor t[FX_MAX];
    int n;
} fx;

static fx_tensor *fx_add(fx *x, const char *name, const char *end, uint32_t dtype, uint32_t rank, uint64_t rows, uint64_t cols)
{
    PN_CHECK(x->n < FX_MAX);
    fx_tensor *t = &x->t[x->n++];
    snprintf(t->name, sizeof t->name, "%s%s", name, end);
    t->dtype = dtype;
    t->rank = rank;
    t->shape[0] = rank ? rows : 1;
    t->shape[1] = rank > 1 ? cols : 1;
    t->n = (size_t)(t->shape[0] * t->shape[1]) * pn_st_dtype_get(dtype)->bits / 8;
    t->bytes = calloc(1, t->n);
    return t;
}

static fx_tensor *fx_find(fx *x, const char *name)
{
    for (int i = 0; i < x->n; i++)
        if (strstr(x->t[i].name, name))
            return &x->t[i];
    PN_CHECK(0, "there is no %s", name);
    return NULL;
}

static void fx_free(fx *x)
{
    for (int i = 0; i < x->n; i++)
        free(x->t[i].bytes);
    x->n = 0;
}

static void fx_put(void *at, uint32_t dtype, size_t i, double v)
{
    float f = (float)v;
    uint8_t *p = at;
    if (dtype == PN_ST_F32)
        pn_put32(p + 4 * i, pn_f32_bits(f));
    else if (dtype == PN_ST_BF16)
        pn_put16(p + 2 * i, pn_bf16_from_f32(f));
    else if (dtype == PN_ST_F16)
        pn_put16(p + 2 * i, pn_f16_from_f32(f));
    else
        p[i] = (uint8_t)(v > 0 ? 127 + ilogb(v) : 0);
}

static double fx_get(const void *at, uint32_t dtype, size_t i)
{
    const uint8_t *p = at;
    switch (dtype) {
    case PN_ST_F32: return (double)pn_f32_from_bits(pn_le32(p + 4 * i));
    case PN_ST_BF16: return (double)pn_f32_from_bf16(pn_le16(p + 2 * i));
    case PN_ST_F16: return (double)pn_f32_from_f16(pn_le16(p + 2 * i));
    default: return e8m0(p[i]);
    }
}

/* All tensors of a fixture, values in f32. */
static void fx_read(fx *x, const char *folder)
{
    static const char *const files[] = {"model.safetensors", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    pn_mem mem;
    pn_mem_init_libc(&mem);
    x->n = 0;
    for (size_t k = 0; k < PN_COUNT_OF(files); k++) {
        char path[FX_PATH];
        size_t len = 0;
        pn_safetensors s;
        snprintf(path, sizeof path, "%s/%s", folder, files[k]);
        char *bytes = access(path, R_OK) == 0 ? pn_test_read_file(path, &len) : NULL;
        if (!bytes)
            continue;
        const pn_source src = {.bytes = (const uint8_t *)bytes, .size = len, .name = path};
        if (PN_CHECK(pn_safetensors_read(&s, &mem, &src, NULL) == PN_OK))
            for (size_t i = 0; i < s.n_tensors; i++) {
                const pn_st_tensor *from = &s.tensors[i];
                fx_tensor *t = fx_add(x, from->name, "", PN_ST_F32, from->rank, from->shape[0], from->shape[1]);
                for (size_t e = 0; e < from->n_elems; e++)
                    fx_put(t->bytes, PN_ST_F32, e, fx_get(bytes + from->offset, from->dtype, e));
            }
        pn_safetensors_fini(&s);
        free(bytes);
    }
    PN_CHECK(x->n > 10, "%s", folder);
}

static void fx_write_file(const char *path, const void *a, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (PN_CHECK(f != NULL, "%s", path)) {
        fwrite(a, 1, n, f);
        fclose(f);
    }
}

/* model.safetensors of a folder, in the usual order. */
static void fx_write(fx *x, const char *which)
{
    pn_mem mem;
    pn_str out;
    pn_st_tensor *list = calloc((size_t)x->n, sizeof *list);
    pn_mem_init_libc(&mem);
    pn_str_init(&out, &mem, PN_ACCT_MISC);
    for (int i = 0; i < x->n; i++) {
        const fx_tensor *t = &x->t[i];
        list[i] = (pn_st_tensor){.name = t->name, .dtype = t->dtype, .rank = t->rank, .shape = {t->shape[0], t->shape[1], 1, 1, 1, 1, 1, 1}};
    }
    PN_CHECK(pn_st_header(&out, list, (size_t)x->n, NULL, 0, NULL) == PN_OK);
    for (int i = 0; i < x->n; i++)
        for (int k = 0; k < x->n; k++)
            if (list[i].name == x->t[k].name)
                pn_str_add(&out, x->t[k].bytes, x->t[k].n);
    fx_write_file(fx_path(which, "/model.safetensors"), out.data, out.len);
    pn_str_fini(&out);
    free(list);
}

/* The other files of a folder, with what config.json says of quantisation, or NULL. */
static void fx_copy(const char *folder, const char *which, const char *quant)
{
    for (size_t i = 0; i < PN_COUNT_OF(fx_files); i++) {
        char from[FX_PATH], rest[64];
        snprintf(from, sizeof from, "%s/%s", folder, fx_files[i]);
        snprintf(rest, sizeof rest, "/%s", fx_files[i]);
        unlink(fx_path(which, rest));
        size_t n = 0;
        char *bytes = access(from, R_OK) == 0 ? pn_test_read_file(from, &n) : NULL, *text = NULL;
        if (bytes && i == 0 && quant) {
            size_t cap = n + strlen(quant) + 64;
            text = malloc(cap);
            n = (size_t)snprintf(text, cap, "{\"quantization_config\":%s,%s", quant, strchr(bytes, '{') + 1);
            for (char *p = text; p < text + 23 + strlen(quant); p++)
                *p = *p == '\'' ? '"' : *p;
        }
        if (bytes)
            fx_write_file(fx_path(which, rest), text ? text : bytes, n);
        free(text);
        free(bytes);
    }
}

/* ------------------------------------------------------------------------------------------
 * Encoding
 * ------------------------------------------------------------------------------------------ */

static double fx_value(uint32_t code, unsigned c)
{
    static double values[2][256];
    if (values[0][1] == 0)
        for (unsigned i = 0; i < 256; i++) {
            values[0][i] = e4m3(i);
            values[1][i] = e5m2(i);
        }
    return values[code == PN_ST_F8_E5M2][c];
}

/* The finite code nearest to v, of two the smaller: without their sign bit, codes grow with what they mean. */
static unsigned fx_nearest(uint32_t code, double v)
{
    const unsigned top = code == PN_ST_F8_E5M2 ? 0x7b : 0x7e;
    unsigned lo = 0, hi = top;
    double m = fabs(v);
    while (lo < hi) {
        unsigned mid = (lo + hi + 1) / 2;
        if (fx_value(code, mid) <= m)
            lo = mid;
        else
            hi = mid - 1;
    }
    if (lo < top && fx_value(code, lo + 1) - m < m - fx_value(code, lo))
        lo++;
    return lo && v < 0 ? lo | 128 : lo;
}

/* A block's scale and zero point (stored plus 8). */
static double fx_scale(const form *f, double min, double max, int *zero)
{
    double most = fmax(max, -min);
    *zero = 8;
    if (f->code != PN_ST_I32)
        return f->scale == PN_ST_F8_E8M0 || f->scale == PN_ST_U8 ? ldexp(1, (int)ceil(log2(most / 448))) : most / (f->code == PN_ST_F8_E5M2 ? 57344 : 448);
    if (!f->zeros)
        return (max >= -min ? max : min) / -8;          /* the extreme gets code -8, as Q4_0's encoder has it */
    double s = (fmax(max, 0) - fmin(min, 0)) / 15;
    *zero = (int)fmin(15, fmax(0, round(-min / s)));
    return s;
}

/* A matrix becomes its parts in `to`, and its values in w [rows, cols] what they mean. */
static void fx_encode(const form *f, fx *to, const char *name, float *w, size_t rows, size_t cols)
{
    bool int4 = f->code == PN_ST_I32, one = f->rows == 0, inv = strstr(f->config, "fp8") != NULL;
    size_t a = f->rows ? f->rows : rows, b = f->cols ? f->cols : cols, k = (cols + b - 1) / b, words = (cols + 7) / 8;
    fx_tensor *code = fx_add(to, name, int4 ? "_packed" : "", f->code, 2, rows, int4 ? words : cols);
    fx_tensor *scale = fx_add(to, name, inv ? "_scale_inv" : "_scale", f->scale, one ? !f->flat : 2, (rows + a - 1) / a, k);
    uint8_t *codes = code->bytes, *zeros = f->zeros ? fx_add(to, name, "_zero_point", PN_ST_I32, 2, (rows + 7) / 8, k)->bytes : NULL;
    if (int4) {
        uint8_t *shape = fx_add(to, name, "_shape", PN_ST_I64, 1, 2, 1)->bytes;
        pn_put32(shape, (uint32_t)rows);
        pn_put32(shape + 8, (uint32_t)cols);
    }
    for (size_t r0 = 0; r0 < rows; r0 += a)
        for (size_t c0 = 0; c0 < cols; c0 += b) {
            double min = 1e-6, max = -1e-6;
            int zero;
            for (size_t r = r0; r < PN_MIN(r0 + a, rows); r++)
                for (size_t c = c0; c < PN_MIN(c0 + b, cols); c++) {
                    min = fmin(min, (double)w[r * cols + c]);
                    max = fmax(max, (double)w[r * cols + c]);
                }
            size_t i = r0 / a * k + c0 / b;
            fx_put(scale->bytes, f->scale, i, fx_scale(f, min, max, &zero));
            if (f->scale == PN_ST_F32 || f->scale == PN_ST_BF16 || f->scale == PN_ST_F16)
                ((uint8_t *)scale->bytes)[i * pn_st_dtype_get(f->scale)->bits / 8] |= 1;        /* no chance that it has few bits */
            double s = fx_get(scale->bytes, f->scale, i);
            if (zeros)
                zeros[(r0 / 8 * k + c0 / b) * 4 + r0 % 8 / 2] |= (uint8_t)(zero << r0 % 2 * 4);
            for (size_t r = r0; r < PN_MIN(r0 + a, rows); r++)
                for (size_t c = c0; c < PN_MIN(c0 + b, cols); c++) {
                    float *v = &w[r * cols + c];
                    if (!int4) {
                        unsigned q = fx_nearest(f->code, (double)*v / s);
                        codes[r * cols + c] = (uint8_t)q;
                        *v = (float)(fx_value(f->code, q) * s);        /* exact in double, rounded once */
                    } else {
                        int q = (int)fmin(15, fmax(0, round((double)*v / s) + zero));
                        if (f->zeros)                   /* both ends are there, as Q4_1's encoder has them */
                            q = (double)*v <= min ? 0 : (double)*v >= max ? 15 : q;
                        codes[(r * words + c / 8) * 4 + c % 8 / 2] |= (uint8_t)(q << c % 2 * 4);
                        *v = (float)((q - zero) * s);
                    }
                }
        }
}

static bool fx_is_matrix(const fx_tensor *t)
{
    static const char *const ends[] = {"_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight", "embed_tokens.weight", "lm_head.weight"};
    for (size_t i = 0; i < PN_COUNT_OF(ends) && t->rank == 2; i++)
        if (strlen(t->name) > strlen(ends[i]) - 8 && strstr(t->name, ends[i]))
            return true;
    return false;
}

static uint32_t fx_float(uint32_t dtype) { return dtype == PN_DTYPE_BF16 ? PN_ST_BF16 : dtype == PN_DTYPE_F32 ? PN_ST_F32 : PN_ST_F16; }

/* Folder "q" has the matrices of a fixture quantised, those that the form can; folder "d" has what their codes mean in f32.  Other
 * matrices have in both the type that the quantised ones become (Q4_0, Q4_1: F16).  How many are quantised. */
static int fx_make(const form *f, const char *folder)
{
    fx *from = calloc(1, sizeof *from), *q = calloc(1, sizeof *q), *d = calloc(1, sizeof *d);
    int n = 0;
    fx_read(from, folder);
    for (int i = 0; i < from->n; i++) {
        const fx_tensor *t = &from->t[i];
        size_t rows = (size_t)t->shape[0], cols = (size_t)t->shape[1];
        bool matrix = fx_is_matrix(t), fits = matrix && (f->code != PN_ST_I32 || f->cols == 0 || cols % f->cols == 0);
        uint32_t rest = matrix && !fits ? fx_float(f->becomes) : (uint32_t)PN_ST_F32;
        fx_tensor *as = fx_add(d, t->name, "", rest, t->rank, rows, cols);
        if (fits) {
            memcpy(as->bytes, t->bytes, t->n);
            fx_encode(f, q, t->name, as->bytes, rows, cols);
            if (n++ == 0) {                         /* activations do not matter */
                char name[PN_ST_MAX_NAME];
                snprintf(name, sizeof name, "%.*s", (int)strlen(t->name) - 7, t->name);
                fx_put(fx_add(q, name, f->scale == PN_ST_BF16 ? ".input_scale" : ".activation_scale", PN_ST_F32, 0, 1, 1)->bytes, PN_ST_F32, 0, 3);
            }
            continue;
        }
        for (size_t e = 0; e < rows * cols; e++)
            fx_put(as->bytes, rest, e, fx_get(t->bytes, PN_ST_F32, e));
        memcpy(fx_add(q, t->name, "", rest, t->rank, rows, cols)->bytes, as->bytes, as->n);
    }
    fx_write(q, "q");
    fx_write(d, "d");
    fx_copy(folder, "q", f->config);
    fx_copy(folder, "d", NULL);
    fx_free(from);
    fx_free(q);
    fx_free(d);
    free(from);
    free(q);
    free(d);
    return n;
}

/* ------------------------------------------------------------------------------------------
 * Rows
 * ------------------------------------------------------------------------------------------ */

/* All of a tensor's f32, read in pieces of so many bytes; owned by the caller. */
static float *rows_read(const pn_weights *w, const pn_dir_tensor *d, size_t piece)
{
    size_t n = (size_t)d->file->bytes;
    uint8_t *out = malloc(n);
    pn_err err = {0};
    for (size_t at = 0; at < n; at += piece)
        PN_CHECK(pn_weights_read(w, d, at, out + at, PN_MIN(piece, n - at), &err) == PN_OK, "%s", err.text);
    return (float *)(void *)out;
}

/* What the model has of it, decoded. */
static float *rows_made(pn_mem *mem, const pn_weights *w, const pn_dir_tensor *d, uint32_t threads)
{
    pn_retyper r;
    pn_err err = {0};
    size_t rows = (size_t)(d->t->bytes / d->t->row_bytes), cols = (size_t)d->t->ne[0];
    uint8_t *bytes = malloc((size_t)d->t->bytes);
    float *out = malloc(rows * cols * sizeof *out);
    if (PN_CHECK(pn_retyper_open(&r, mem, w, threads, &err) == PN_OK, "%s", err.text)) {
        for (size_t at = 0; at < rows; at += 5)
            PN_CHECK(pn_retyper_rows(&r, d, at, PN_MIN((size_t)5, rows - at), bytes + at * d->t->row_bytes, &err) == PN_OK, "%s", err.text);
        pn_retyper_close(&r);
    }
    for (size_t i = 0; i < rows; i++)
        pn_dequant_row(d->t->dtype, bytes + i * d->t->row_bytes, out + i * cols, cols);
    free(bytes);
    return out;
}

/* The scale of the 32 values around element i, whose ends have codes 0 and 15. */
static float rows_step(const float *v, size_t i, uint64_t cols)
{
    const float *from = v + i - i % (size_t)cols % 32;
    float min = from[0], max = from[0];
    for (int j = 1; j < 32; j++) {
        min = fminf(min, from[j]);
        max = fmaxf(max, from[j]);
    }
    return (max - min) / 15;
}

static void values_are_those_the_codes_mean(const form *f, const char *folder, int made)
{
    static const size_t pieces[] = {SIZE_MAX / 2, 7, 1026, 4096};
    pn_mem mem;
    pn_weights q, d = {0};
    pn_err err = {0};
    int n = 0;
    pn_mem_init_libc(&mem);
    if (!PN_CHECK(pn_weights_open_path(&q, &mem, fx_path("q", ""), true, &err) == PN_OK, "%s, %s: %s", f->name, folder, err.text))
        return;
    PN_CHECK(pn_weights_open_path(&d, &mem, fx_path("d", ""), true, &err) == PN_OK && d.n_tensors == q.n_tensors, "%s", err.text);
    for (size_t i = 0; i < q.n_tensors; i++) {
        const pn_dir_tensor *x = &q.tensors[i], *y = pn_weights_find(&d, x->t->name);
        if (!PN_CHECK(y != NULL, "%s", x->t->name))
            continue;
        if (!x->packed) {
            PN_CHECK(x->t->dtype == y->t->dtype && x->t == x->file, "%s: type %u and %u", x->t->name, (unsigned)x->t->dtype, (unsigned)y->t->dtype);
            continue;
        }
        n += (int)x->file->ne[2];
        PN_CHECK(x->t->dtype == f->becomes && x->repacked == pn_dtype_is_quantised(f->becomes) && x->file->dtype == PN_DTYPE_F32 && x->file->bytes == y->t->bytes,
                 "%s, %s: %s becomes type %u, expected %u", f->name, folder, x->t->name, (unsigned)x->t->dtype, (unsigned)f->becomes);
        PN_CHECK(!pn_weights_ptr(&q, x) && !pn_weights_piece_ptr(&q, x, 0));
        float *want = rows_read(&d, y, SIZE_MAX / 2);
        for (size_t k = 0; k < PN_COUNT_OF(pieces); k++) {
            float *got = rows_read(&q, x, pieces[k]);
            PN_CHECK(memcmp(want, got, (size_t)y->file->bytes) == 0, "%s, %s: %s in pieces of %zu", f->name, folder, x->t->name, pieces[k]);
            free(got);
        }
        for (uint32_t threads = 1; threads <= 2; threads++) {
            float *got = rows_made(&mem, &q, x, threads);
            size_t wrong = 0;
            for (size_t e = 0; e < x->file->n_elems; e++) {
                float as = f->becomes == PN_DTYPE_F16 ? pn_f32_from_f16(pn_f16_from_f32(want[e])) : want[e];     /* BF16 and Q4_0 are exact */
                wrong += f->becomes == PN_DTYPE_Q4_1 ? !(fabsf(got[e] - as) <= rows_step(want, e, x->file->ne[0]) * (15 / 2048.0f)) : !(got[e] == as);
            }
            PN_CHECK(wrong == 0, "%s, %s: %zu values of %s", f->name, folder, wrong, x->t->name);
            free(got);
        }
        free(want);
    }
    PN_CHECK(n == made && n > 0 && q.n_retyped > 0 && d.n_retyped == 0, "%s, %s: %d matrices, expected %d", f->name, folder, n, made);
    pn_weights_close(&d);
    pn_weights_close(&q);
}

/* ------------------------------------------------------------------------------------------
 * Models
 * ------------------------------------------------------------------------------------------ */

static const pn_token run_tokens[] = {1, 30, 77, 112, 3, 9, 54};
enum { RUN_TOKENS = sizeof run_tokens / sizeof *run_tokens };

typedef struct run {
    float *logits;              /* owned, [n] of all tokens */
    size_t n;
    pn_model_info info;
    pn_residency_info where;
} run;

static run run_model(const char *path, uint32_t threads, const pn_model_params *p)
{
    pn_engine *e = NULL;
    pn_model *m = NULL;
    pn_session *s = NULL;
    pn_err err = {0};
    run o = {0};
    if (PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.n_threads = threads}, &err) == PN_OK, "%s", err.text) &&
        PN_CHECK(pn_model_load(e, path, p, &m, &err) == PN_OK, "%s", err.text) &&
        PN_CHECK(pn_session_new(m, &(pn_session_params){.n_ctx = 64}, &s, &err) == PN_OK, "%s", err.text)) {
        pn_model_describe(m, &o.info);
        pn_model_residency(m, &o.where);
        o.n = RUN_TOKENS * pn_vocab_size(m);
        o.logits = calloc(o.n, sizeof *o.logits);
        PN_CHECK(pn_session_eval_all(s, run_tokens, RUN_TOKENS, o.logits, &err) == PN_OK, "%s", err.text);
    }
    pn_session_free(s);
    pn_model_free(m);
    pn_engine_close(e);
    return o;
}

static bool run_same(const run *a, const run *b)
{
    return a->logits && b->logits && a->n == b->n && memcmp(a->logits, b->logits, a->n * sizeof *a->logits) == 0;
}

static void run_free(run *o) { free(o->logits); }

/* Wherever they go, with any number of threads. */
static void logits_are_those_of_the_values(const form *f, const char *folder)
{
    static const pn_model_params ways[] = {{.residency = PN_RESIDENCY_AUTO}, {.residency = PN_RESIDENCY_ANON}, {.lease_rows = 3}};
    const char *type = pn_dtype_name((pn_dtype)f->becomes);
    run want = run_model(fx_path("d", ""), 1, &(pn_model_params){.load_type = type});
    for (uint32_t i = 0; i < 4; i++) {
        run got = run_model(fx_path("q", ""), 1 + i % 2, &ways[i % 3]);
        PN_CHECK(run_same(&want, &got) && got.where.mode == PN_RESIDENCY_ANON && got.info.weight_bytes == want.info.weight_bytes && strcmp(got.info.type, type) == 0,
                 "%s, %s, way %u as %s: other bits", f->name, folder, (unsigned)i, got.info.type);
        run_free(&got);
    }
    run_free(&want);
}

static void any_other_type_may_be_wished(const form *f, const char *folder)
{
    static const char *const types[] = {"q8_0", "Q4_K_M", "f32", "bf16", "q4_0", "q4_1"};
    for (size_t i = 0; i < PN_COUNT_OF(types); i++) {
        const pn_model_params p = {.load_type = types[i]};
        run want = run_model(fx_path("d", ""), 1, &p), got = run_model(fx_path("q", ""), 1 + (uint32_t)i % 2, &p);
        PN_CHECK(run_same(&want, &got) && got.info.weight_bytes == want.info.weight_bytes && got.where.mode == PN_RESIDENCY_ANON, "%s, %s as %s", f->name, folder, types[i]);
        run_free(&want);
        run_free(&got);
    }
}

static char *quantized(const char *which, const pn_quantize_params *p, size_t *n)
{
    pn_engine *e = NULL;
    pn_err err = {0};
    char out[FX_PATH];
    snprintf(out, sizeof out, "%s/%s.gguf", fx_root, which);
    PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK && pn_quantize(e, fx_path(which, ""), out, p, &err) == PN_OK, "%s", err.text);
    pn_engine_close(e);
    char *bytes = pn_test_read_file(out, n);
    unlink(out);
    return bytes;
}

static void quantised_files_are_those_of_the_values(const form *f, const char *folder)
{
    static const char *const types[] = {"F32", "Q8_0", "Q4_K_M", "Q4_0"};
    for (size_t i = 0; i < PN_COUNT_OF(types); i++) {
        size_t n = 0, k = 0;
        const pn_quantize_params p = {.preset = types[i]};
        char *want = quantized("d", &p, &n), *got = quantized("q", &p, &k);
        PN_CHECK(want && got && n == k && memcmp(want, got, n) == 0, "%s, %s as %s: %zu and %zu bytes", f->name, folder, types[i], n, k);
        free(want);
        free(got);
    }
}

/* Codes that move are those of a Q4_0 or Q4_1 file, where the extremes of each block have the first and last code; and no rotary
 * pairs are turned. */
static void moved_codes_compute_as_a_file_of_them(const form *f, const char *folder)
{
    pn_engine *e = NULL;
    pn_err err = {0};
    char out[FX_PATH];
    snprintf(out, sizeof out, "%s/d.gguf", fx_root);
    PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK && pn_quantize(e, fx_path("d", ""), out, &(pn_quantize_params){.type = (pn_dtype)f->becomes}, &err) == PN_OK, "%s", err.text);
    pn_engine_close(e);
    run want = run_model(out, 1, NULL);
    for (uint32_t threads = 1; threads <= 2; threads++) {
        run got = run_model(fx_path("q", ""), threads, NULL);
        PN_CHECK(run_same(&want, &got) && got.info.weight_bytes == want.info.weight_bytes, "%s, %s: other bits", f->name, folder);
        run_free(&got);
    }
    run_free(&want);
    unlink(out);
}

/* Weights and the block under way to the byte; and a file says what is in it. */
static void the_peak_is_what_was_planned(const form *f, const char *type, uint32_t threads)
{
    pn_engine *e = NULL;
    pn_file *file = NULL;
    pn_model *m = NULL;
    pn_err err = {0};
    pn_plan_info p = {0};
    pn_mem_info mem;
    static const pn_residency elsewhere[] = {PN_RESIDENCY_MAP, PN_RESIDENCY_STREAM};
    if (!PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.n_threads = threads}, &err) == PN_OK && pn_file_open(e, fx_path("q", ""), &file, &err) == PN_OK, "%s", err.text))
        return;
    PN_CHECK(pn_file_plan(file, &(pn_plan_params){.n_ctx = 64, .load_type = type}, &p, &err) == PN_OK, "%s", err.text);
    PN_CHECK(p.residency == PN_RESIDENCY_ANON && p.load_bytes && p.total_bytes >= p.load_bytes && p.anon_bytes == p.total_bytes);
    uint64_t folder = pn_hf_dir_bytes(file->weights.hf), shown = 0;
    for (size_t i = 0; i < pn_file_tensor_count(file); i++) {
        pn_tensor_info t;
        PN_CHECK(pn_file_tensor_at(file, i, &t) == PN_OK);
        PN_CHECK(t.dtype != PN_DTYPE_COUNT || strcmp(t.type, f->code == PN_ST_I32 ? "I4" : pn_st_dtype_get(f->code)->name) == 0, "%s is %s", t.name, t.type);
        shown += t.part ? t.bytes : 0;
    }
    PN_CHECK(shown < p.file_bytes && shown > p.file_bytes / 2, "%llu of %llu bytes are shown", (unsigned long long)shown, (unsigned long long)p.file_bytes);
    for (int i = 0; i < 2; i++) {
        pn_plan_info info;
        PN_CHECK(pn_file_plan(file, &(pn_plan_params){.residency = elsewhere[i]}, &info, &err) == PN_E_INVALID && strstr(err.text, "auto or anon"), "%s", err.text);
        PN_CHECK(pn_model_load_file(file, &(pn_model_params){.residency = elsewhere[i]}, &m, &err) == PN_E_INVALID && strstr(err.text, "auto or anon"), "%s", err.text);
    }
    pn_file_close(file);
    if (PN_CHECK(pn_model_load(e, fx_path("q", ""), &(pn_model_params){.load_type = type}, &m, &err) == PN_OK, "%s", err.text)) {
        pn_engine_memory(e, &mem);
        uint64_t got = mem.peak[PN_ACCT_WEIGHTS] + mem.peak[PN_ACCT_STAGE], want = p.load_bytes - p.vocab_bytes + m->file.weights.hf->image_bytes;
        PN_CHECK(mem.used[PN_ACCT_STAGE] == 0 && mem.used[PN_ACCT_WEIGHTS_MAP] == 0 && mem.used[PN_ACCT_WEIGHTS] == mem.peak[PN_ACCT_WEIGHTS]);
        PN_CHECK(mem.used[PN_ACCT_WEIGHTS] + pn_retype_stage(&m->file.weights, threads) == want, "%s: %llu, planned %llu", f->name,
                 (unsigned long long)(mem.used[PN_ACCT_WEIGHTS] + pn_retype_stage(&m->file.weights, threads)), (unsigned long long)want);
        PN_CHECK(got >= want && got < want + (1 << 20) && mem.total_peak < p.load_bytes + folder + (1 << 20), "%s: %llu, planned %llu", f->name, (unsigned long long)got,
                 (unsigned long long)want);
        for (int i = 0; i < 2; i++)
            PN_CHECK(pn_model_convert(m, &(pn_model_params){.residency = elsewhere[i]}, INFINITY, &(bool){false}, &err) == PN_E_UNSUPPORTED, "%s", err.text);
    }
    pn_model_free(m);
    pn_engine_close(e);
}

/* Sessions of moved codes and of codes that were encoded anew are not each other's. */
static void moved_codes_have_an_identity(void)
{
    static const char *const types[] = {NULL, "q4_0", NULL};
    pn_identity id[3];
    for (int i = 0; i < 3; i++) {
        pn_engine *e = NULL;
        pn_model *m = NULL;
        pn_err err = {0};
        if (PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK && pn_model_load(e, fx_path("q", ""), &(pn_model_params){.load_type = types[i]}, &m, &err) == PN_OK, "%s", err.text))
            PN_CHECK(pn_model_identity(m, &id[i], &err) == PN_OK, "%s", err.text);
        pn_model_free(m);
        pn_engine_close(e);
    }
    PN_CHECK(pn_identity_differs(&id[0], &id[1]) && !pn_identity_differs(&id[0], &id[2]));
}

/* ------------------------------------------------------------------------------------------
 * Failing
 * ------------------------------------------------------------------------------------------ */

static void every_allocation_may_fail(void)
{
    for (long k = 1;; k++) {
        pn_test_mem mem;
        pn_weights w, as = {0};
        pn_err err = {0};
        pn_mix mix;
        pn_test_mem_init(&mem, k);
        pn_status st = pn_weights_open_path(&w, &mem.mem, fx_path("q", ""), true, &err);
        if (!st) {
            st = pn_weights_share(&as, &w, &err);
            if (!st)
                st = pn_retype_open(&as, k % 2 ? "q8_0" : "f32", PN_RESIDENCY_AUTO, &mix, &err);
            pn_weights_close(&as);
        }
        bool done = st == PN_OK && mem.n_calls < k;
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM, "%ld: %d %s", k, (int)st, err.text);
        pn_weights_close(&w);
        PN_CHECK(mem.outstanding == 0, "%ld: %ld blocks are left", k, mem.outstanding);
        if (done)
            break;
    }
}

/* Each allocation in turn, alone and with all after it. */
static void a_failing_load_leaves_nothing(const char *type, int on)
{
    pn_status st = PN_E_NOMEM;
    long k = 1;
    for (; st == PN_E_NOMEM; k += k < 60 ? 1 : 1 + k / 20) {
        api_heap h = {0};
        pn_engine *e = NULL;
        pn_model *m = NULL;
        pn_file *f = NULL;
        pn_err err = {0};
        pn_mem_info before, after;
        pn_plan_info info;
        if (!PN_CHECK(pn_engine_open(&e, &(pn_engine_params){.n_threads = 2, .allocator = {api_heap_alloc, api_heap_free, &h}}, &err) == PN_OK, "%s", err.text))
            return;
        pn_engine_memory(e, &before);
        h.fail_at = h.calls + k;
        h.fail_on = on;
        st = pn_file_open(e, fx_path("q", ""), &f, &err);
        if (!st)
            st = pn_file_plan(f, &(pn_plan_params){.n_ctx = 64, .load_type = type}, &info, &err);
        if (!st)
            st = pn_model_load_file(f, &(pn_model_params){.load_type = type}, &m, &err);
        PN_CHECK(st == PN_OK || st == PN_E_NOMEM, "allocation %ld: %s", k, err.text);
        if (!st && h.calls >= h.fail_at)
            st = PN_E_NOMEM;                    /* it went without */
        pn_model_free(m);
        pn_file_close(f);
        pn_engine_memory(e, &after);
        PN_CHECK(before.total_used == after.total_used, "allocation %ld", k);
        h.fail_at = 0;
        pn_engine_close(e);
        PN_CHECK(h.out == 0, "allocation %ld: %ld blocks", k, h.out);
    }
    PN_CHECK(k > 50, "%ld", k);
}

/* ------------------------------------------------------------------------------------------
 * Folders that are wrong
 * ------------------------------------------------------------------------------------------ */

typedef enum wrong_how { WRONG_LESS, WRONG_TYPE, WRONG_ROWS, WRONG_COLS, WRONG_RANK, WRONG_VALUE, WRONG_EXTRA } wrong_how;

/* One change to a folder: the first tensor whose name has `part`. */
typedef struct wrong {
    int form;
    const char *part;
    wrong_how how;
    double value;               /* WRONG_TYPE: pn_st_dtype, -1 as it was; WRONG_VALUE: of element 0, as the type stores it */
    pn_status st;
    const char *say[2];
} wrong;

static const wrong wrongs[] = {
    {0, "q_proj.weight_scale_inv", WRONG_LESS, 0, PN_E_FORMAT, {"q_proj.weight_scale_inv' is missing", "without which"}},
    {0, "q_proj.weight_scale_inv", WRONG_ROWS, 0, PN_E_FORMAT, {"q_proj.weight_scale_inv' has shape [2, 1], expected [1, 1]", "model.safetensors: "}},
    {1, "q_proj.weight_scale_inv", WRONG_COLS, 0, PN_E_FORMAT, {"q_proj.weight_scale_inv' has shape [8, 3], expected [8, 2]", ""}},
    {1, "q_proj.weight_scale_inv", WRONG_RANK, 0, PN_E_FORMAT, {"q_proj.weight_scale_inv' has shape [16]", "expected [8, 2]"}},
    {1, "q_proj.weight_scale_inv", WRONG_TYPE, PN_ST_F64, PN_E_UNSUPPORTED, {"q_proj.weight_scale_inv' has type F64", "expected F32, BF16, F16 or F8_E8M0"}},
    {1, "q_proj.weight_scale_inv", WRONG_TYPE, PN_ST_U8, PN_E_UNSUPPORTED, {"q_proj.weight_scale_inv' has type U8", "ue8m0"}},
    {0, "q_proj.weight_scale_inv", WRONG_VALUE, 0x7fc00000, PN_E_FORMAT, {"'blk.0.attn_q.weight': scale 0 is NaN", ""}},
    {0, "q_proj.weight_scale_inv", WRONG_VALUE, 0xff800000, PN_E_FORMAT, {"'blk.0.attn_q.weight': scale 0 is infinite", ""}},
    {0, "q_proj.weight_scale_inv", WRONG_VALUE, 0x7f000000, PN_E_FORMAT, {"'blk.0.attn_q.weight': scale 0 is 1.70141e+38", "overflow"}},
    {3, "q_proj.weight_scale_inv", WRONG_VALUE, 255, PN_E_FORMAT, {"'blk.0.attn_q.weight': scale 0 is NaN", ""}},
    {0, "q_proj.weight", WRONG_TYPE, PN_ST_I8, PN_E_UNSUPPORTED, {"q_proj.weight' has type I8", "expected F32"}},
    {0, "q_proj.weight", WRONG_TYPE, PN_ST_F8_E4M3FNUZ, PN_E_UNSUPPORTED, {"q_proj.weight' has type F8_E4M3FNUZ", "expected F32"}},
    {0, "q_proj.weight", WRONG_ROWS, 0, PN_E_FORMAT, {"q_proj.weight' has shape [129, 48], expected [128, 48]", ""}},
    {5, "q_proj.weight_scale_inv", WRONG_ROWS, 0, PN_E_FORMAT, {"q_proj.weight_scale_inv' has shape [2], expected [1, 1]", "no weight_block_size"}},
    {7, "q_proj.weight_scale", WRONG_ROWS, 0, PN_E_FORMAT, {"q_proj.weight_scale' has shape [129, 1], expected [128, 1]", ""}},
    {7, "q_proj.weight_scale", WRONG_LESS, 0, PN_E_FORMAT, {"q_proj.weight_scale' is missing", ""}},
    {9, "q_proj.weight_scale", WRONG_LESS, 0, PN_E_FORMAT, {"q_proj.weight_scale' is missing, without which", "q_proj.weight_packed"}},
    {9, "q_proj.weight_shape", WRONG_LESS, 0, PN_E_FORMAT, {"q_proj.weight_shape' is missing", ""}},
    {9, "q_proj.weight_shape", WRONG_VALUE, 127, PN_E_FORMAT, {"q_proj.weight_shape' says 127 x 48, expected 128 x 48", ""}},
    {9, "q_proj.weight_shape", WRONG_ROWS, 0, PN_E_FORMAT, {"q_proj.weight_shape' has 3 elements, expected 2", ""}},
    {9, "q_proj.weight_packed", WRONG_TYPE, PN_ST_U32, PN_E_UNSUPPORTED, {"q_proj.weight_packed' has type U32, expected I32", ""}},
    {9, "q_proj.weight_packed", WRONG_COLS, 0, PN_E_FORMAT, {"q_proj.weight_packed' has shape [128, 7], expected [128, 6]", "eight codes a word"}},
    {9, "q_proj.weight_packed", WRONG_LESS, 0, PN_E_FORMAT, {"q_proj.weight' is missing", ""}},
    {9, "q_proj.weight_scale", WRONG_COLS, 0, PN_E_FORMAT, {"q_proj.weight_scale' has shape [128, 4], expected [128, 3]", ""}},
    {9, "q_proj.weight_g_idx", WRONG_EXTRA, PN_ST_I32, PN_E_UNSUPPORTED, {"q_proj.weight_g_idx' gives columns a group each", "expected none"}},
    {9, "q_proj.weight_zero_point", WRONG_EXTRA, PN_ST_I32, PN_E_FORMAT, {"q_proj.weight_zero_point' belongs to nothing", ""}},
    {13, "q_proj.weight_zero_point", WRONG_LESS, 0, PN_E_FORMAT, {"q_proj.weight_zero_point' is missing", ""}},
    {13, "q_proj.weight_zero_point", WRONG_ROWS, 0, PN_E_FORMAT, {"q_proj.weight_zero_point' has shape [17, 6], expected [16, 6]", ""}},
    {13, "q_proj.weight_zero_point", WRONG_TYPE, PN_ST_F32, PN_E_UNSUPPORTED, {"q_proj.weight_zero_point' has type F32, expected I32", ""}},
};

/* The folder "q" of tensors x, with the change. */
static void wrong_change(fx *x, const wrong *w)
{
    if (w->how == WRONG_EXTRA) {
        char name[PN_ST_MAX_NAME];
        fx_tensor *near = fx_find(x, "layers.0.self_attn.q_proj.weight");
        snprintf(name, sizeof name, "%.*s%s", (int)(strstr(near->name, "q_proj") - near->name), near->name, w->part);
        fx_add(x, name, "", (uint32_t)w->value, 1, 48, 1);
        return;
    }
    fx_tensor *t = NULL;
    for (int i = 0; i < x->n && !t; i++)
        if (strstr(x->t[i].name, "layers.0.") && strlen(x->t[i].name) > strlen(w->part) && strcmp(x->t[i].name + strlen(x->t[i].name) - strlen(w->part), w->part) == 0)
            t = &x->t[i];
    if (!PN_CHECK(t != NULL, "%s", w->part))
        return;
    switch (w->how) {
    case WRONG_LESS:
        free(t->bytes);
        *t = x->t[--x->n];
        return;
    case WRONG_ROWS: t->shape[0]++; break;
    case WRONG_COLS: t->shape[1]++; break;
    case WRONG_RANK: t->rank = 1; t->shape[0] *= t->shape[1]; t->shape[1] = 1; break;
    case WRONG_TYPE: t->dtype = (uint32_t)w->value; break;
    default:
        if (t->n >= 4 && t->dtype != PN_ST_U8)
            pn_put32(t->bytes, (uint32_t)w->value);
        else
            *(uint8_t *)t->bytes = (uint8_t)w->value;
        return;
    }
    t->rank = PN_MAX(t->rank, 1u);
    size_t n = (size_t)(t->shape[0] * t->shape[1]) * pn_st_dtype_get(t->dtype)->bits / 8;
    uint8_t *bytes = calloc(1, n);
    memcpy(bytes, t->bytes, PN_MIN(n, t->n));
    free(t->bytes);
    t->bytes = bytes;
    t->n = n;
}

/* What fx_make() made of a folder's matrices, to be changed. */
static void wrong_read(fx *x, const form *f, const char *folder)
{
    fx from = {.n = 0};
    fx_read(&from, folder);
    for (int i = 0; i < from.n; i++) {
        fx_tensor *t = &from.t[i];
        if (fx_is_matrix(t) && (f->code != PN_ST_I32 || f->cols == 0 || t->shape[1] % f->cols == 0))
            fx_encode(f, x, t->name, t->bytes, (size_t)t->shape[0], (size_t)t->shape[1]);
        else
            memcpy(fx_add(x, t->name, "", t->dtype, t->rank, t->shape[0], t->shape[1])->bytes, t->bytes, t->n);
    }
    fx_free(&from);
}

static void what_is_wrong_is_named(void)
{
    for (size_t i = 0; i < PN_COUNT_OF(wrongs); i++) {
        const wrong *w = &wrongs[i];
        fx x = {.n = 0};
        pn_mem mem;
        pn_weights q;
        pn_err err = {0};
        pn_mem_init_libc(&mem);
        wrong_read(&x, &forms[w->form], fx_folders[0]);
        wrong_change(&x, w);
        fx_write(&x, "q");
        fx_copy(fx_folders[0], "q", forms[w->form].config);
        pn_status st = pn_weights_open_path(&q, &mem, fx_path("q", ""), true, &err);
        PN_CHECK(st == w->st && strstr(err.text, w->say[0]) && strstr(err.text, w->say[1]), "%zu: %d, expected %d '%s': %s", i, (int)st, (int)w->st, w->say[0], err.text);
        pn_weights_close(&q);
        fx_free(&x);
    }
}

/* One scale of a matrix decides what becomes of it. */
static void the_type_follows_the_scales(void)
{
    static const struct { int form; const char *part, *ours; uint32_t scale, dtype; } rows[] = {
        {0, "q_proj.weight_scale_inv", "blk.0.attn_q.weight", 0x3b000000, PN_DTYPE_BF16},         /* 2^-9 */
        {0, "q_proj.weight_scale_inv", "blk.0.attn_q.weight", 0xbb700000, PN_DTYPE_BF16},         /* four bits */
        {0, "q_proj.weight_scale_inv", "blk.0.attn_q.weight", 0x3b080000, PN_DTYPE_F16},          /* five */
        {0, "q_proj.weight_scale_inv", "blk.0.attn_q.weight", 0, PN_DTYPE_BF16},
        {0, "q_proj.weight_scale_inv", "blk.0.attn_q.weight", 0x43120001, PN_DTYPE_F16},          /* x 448 just below 65504 */
        {0, "q_proj.weight_scale_inv", "blk.0.attn_q.weight", 0x43130001, PN_DTYPE_F32},
        {0, "q_proj.weight_scale_inv", "blk.0.attn_q.weight", 0x35200001, PN_DTYPE_F16},          /* just above 2^-12 */
        {0, "q_proj.weight_scale_inv", "blk.0.attn_q.weight", 0x35100001, PN_DTYPE_F32},
        {0, "q_proj.weight_scale_inv", "blk.0.attn_q.weight", 0x0a000000, PN_DTYPE_F32},          /* a power of two, but f32 ends near */
        {12, "o_proj.weight_scale", "blk.0.attn_output.weight", 0x3b000001, PN_DTYPE_F16},
        {11, "w2.weight_scale", "blk.0.ffn_down_exps.weight", 0x3c013c01, PN_DTYPE_Q4_0},         /* two scales */
        {11, "w2.weight_scale", "blk.0.ffn_down_exps.weight", 0x3c010001, PN_DTYPE_F16},          /* one of them is too small for f16 */
    };
    for (size_t i = 0; i < PN_COUNT_OF(rows); i++) {
        const char *folder = fx_folders[rows[i].form == 11 ? 2 : 0];
        const wrong w = {.part = rows[i].part, .how = WRONG_VALUE, .value = rows[i].scale};
        fx *x = calloc(1, sizeof *x);
        pn_engine *e = NULL;
        pn_model *m = NULL;
        pn_err err = {0};
        wrong_read(x, &forms[rows[i].form], folder);
        wrong_change(x, &w);
        fx_write(x, "q");
        fx_copy(folder, "q", forms[rows[i].form].config);
        if (PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK && pn_model_load(e, fx_path("q", ""), NULL, &m, &err) == PN_OK, "%zu: %s", i, err.text)) {
            const pn_dir_tensor *d = pn_weights_find(&m->file.weights, rows[i].ours);
            PN_CHECK(d && d->packed && d->t->dtype == rows[i].dtype, "%zu: %s becomes type %u, expected %u", i, rows[i].ours, d ? (unsigned)d->t->dtype : 0u, (unsigned)rows[i].dtype);
        }
        pn_model_free(m);
        pn_engine_close(e);
        fx_free(x);
        free(x);
    }
}

/* Codes that are no number are met when rows are made. */
static void what_is_no_number_is_named(void)
{
    static const struct { int form; uint8_t code; const char *say; } rows[] = {{0, 0x7f, "row 1, column 2 is NaN (0x7f)"}, {7, 0xff, "row 1, column 2 is NaN (0xff)"},
                                                                              {4, 0x7c, "row 1, column 2 is infinite (0x7c)"}, {4, 0xfe, "row 1, column 2 is NaN (0xfe)"}};
    for (size_t i = 0; i < PN_COUNT_OF(rows); i++) {
        fx x = {.n = 0};
        pn_engine *e = NULL;
        pn_model *m = NULL;
        pn_err err = {0};
        wrong_read(&x, &forms[rows[i].form], fx_folders[0]);
        fx_tensor *t = fx_find(&x, "layers.1.mlp.up_proj.weight");
        ((uint8_t *)t->bytes)[t->shape[1] + 2] = rows[i].code;
        fx_write(&x, "q");
        fx_copy(fx_folders[0], "q", forms[rows[i].form].config);
        PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK && pn_model_load(e, fx_path("q", ""), NULL, &m, &err) == PN_E_FORMAT && strstr(err.text, rows[i].say) &&
                 strstr(err.text, "'blk.1.ffn_up.weight'"), "%zu: %s", i, err.text);
        pn_model_free(m);
        pn_engine_close(e);
        fx_free(&x);
    }
}

/* One expert is not as the others. */
static void experts_are_quantised_alike(void)
{
    static const struct { const char *part; wrong_how how; double value; pn_status st; const char *say; } rows[] = {
        {"experts.2.w1.weight", WRONG_TYPE, PN_ST_F8_E5M2, PN_E_UNSUPPORTED, "experts.2.w1.weight' is not quantised as that of expert 0"},
        {"experts.2.w1.weight", WRONG_TYPE, PN_ST_BF16, PN_E_UNSUPPORTED, "experts.2.w1.weight' is not quantised, but that of expert 0 is"},
        {"experts.0.w1.weight", WRONG_TYPE, PN_ST_BF16, PN_E_UNSUPPORTED, "experts.1.w1.weight' has type F8_E4M3"},
        {"experts.3.w2.weight_scale", WRONG_TYPE, PN_ST_F16, PN_E_UNSUPPORTED, "experts.3.w2.weight' is not quantised as that of expert 0"},
        {"experts.3.w2.weight_scale", WRONG_LESS, 0, PN_E_FORMAT, "experts.3.w2.weight_scale' is missing"},
        {"experts.3.w2.weight", WRONG_LESS, 0, PN_E_FORMAT, "is missing"}};
    for (size_t i = 0; i < PN_COUNT_OF(rows); i++) {
        const wrong w = {.part = rows[i].part, .how = rows[i].how, .value = rows[i].value};
        fx *x = calloc(1, sizeof *x);
        pn_mem mem;
        pn_weights q;
        pn_err err = {0};
        pn_mem_init_libc(&mem);
        wrong_read(x, &forms[7], fx_folders[2]);
        wrong_change(x, &w);
        fx_write(x, "q");
        fx_copy(fx_folders[2], "q", forms[7].config);
        PN_CHECK(pn_weights_open_path(&q, &mem, fx_path("q", ""), true, &err) == rows[i].st && strstr(err.text, rows[i].say), "%zu: %s", i, err.text);
        pn_weights_close(&q);
        fx_free(x);
        free(x);
    }
}

static void clean(void)
{
    static const char *const which[] = {"q", "d"};
    for (size_t k = 0; k < 2; k++) {
        char rest[64];
        for (size_t i = 0; i < PN_COUNT_OF(fx_files); i++) {
            snprintf(rest, sizeof rest, "/%s", fx_files[i]);
            unlink(fx_path(which[k], rest));
        }
        unlink(fx_path(which[k], "/model.safetensors"));
        rmdir(fx_path(which[k], ""));
        char path[FX_PATH];
        snprintf(path, sizeof path, "%s/%s", fx_root, which[k]);
        rmdir(path);
    }
    PN_CHECK(rmdir(fx_root) == 0, "%s", fx_root);
}

int main(void)
{
    static const char *const dirs[] = {"q", "d"};
    every_code_means_what_the_format_says();
    if (!PN_CHECK(mkdtemp(fx_root) != NULL))
        return pn_test_end();
    for (size_t i = 0; i < 2; i++) {
        char path[FX_PATH];
        snprintf(path, sizeof path, "%s/%s", fx_root, dirs[i]);
        PN_CHECK(mkdir(path, 0700) == 0 && mkdir(fx_path(dirs[i], ""), 0700) == 0);
    }
    bool quick = pn_test_quick();
    for (size_t i = 0; i < PN_COUNT_OF(forms); i++) {
        int made = 0;
        for (size_t k = 0; k < PN_COUNT_OF(fx_folders); k++) {
            const form *f = &forms[i];
            if (k != i % PN_COUNT_OF(fx_folders) && (quick || k != (i / 4 + i + 1) % PN_COUNT_OF(fx_folders)))
                continue;
            int n = fx_make(f, fx_folders[k]);
            made += n;
            if (n == 0)
                continue;           /* no row of it is whole groups */
            values_are_those_the_codes_mean(f, fx_folders[k], n);
            if (!pn_dtype_is_quantised(f->becomes))
                logits_are_those_of_the_values(f, fx_folders[k]);
            if (i % 3 == k % 3)
                any_other_type_may_be_wished(f, fx_folders[k]);
            if (i % 3 == (k + 1) % 3)
                quantised_files_are_those_of_the_values(f, fx_folders[k]);
            the_peak_is_what_was_planned(f, k % 2 ? "q8_0" : NULL, 1 + (uint32_t)i % 2);
        }
        PN_CHECK(quick || made, "%s: no matrix of any folder", forms[i].name);
    }
    fx_make(&forms[14], fx_folders[0]);
    moved_codes_compute_as_a_file_of_them(&forms[14], fx_folders[0]);
    fx_make(&forms[10], fx_folders[0]);
    moved_codes_compute_as_a_file_of_them(&forms[10], fx_folders[0]);
    moved_codes_have_an_identity();
    fx_make(&forms[13], fx_folders[2]);
    every_allocation_may_fail();
    for (int on = 0; on < 2; on++)
        a_failing_load_leaves_nothing(on ? "q8_0" : NULL, on);
    what_is_wrong_is_named();
    the_type_follows_the_scales();
    what_is_no_number_is_named();
    experts_are_quantised_alike();
    clean();
    return pn_test_end();
}
