/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Defaults are those of the configuration classes of transformers 5.24, as collected in our format notes; formulas of
 * the rotary kinds are in model/pn_rope.c, which gets their parameters through the header.
 */
#include "format/pn_hf_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/pn_err.h"
#include "base/pn_json.h"
#include "num/pn_math.h"

typedef enum hfc_kind {
    HFC_LLAMA, HFC_MISTRAL, HFC_MIXTRAL, HFC_QWEN2, HFC_QWEN2_MOE, HFC_QWEN3, HFC_QWEN3_MOE, HFC_PHI3, HFC_GEMMA2, HFC_GEMMA3
} hfc_kind;

/* A model_type: defaults of keys that are absent.  0: none, or as the comment says. */
typedef struct hfc_type {
    char name[16], arch[12];
    hfc_kind kind;
    uint32_t heads, kv, d_head, vocab;      /* heads, vocab 0: required; kv 0: heads; d_head 0: width / heads */
    double eps;
    uint32_t n_ctx;
    double base;
    uint32_t window;
    uint32_t n_expert, n_used, n_ff_exp, n_ff_shared;
} hfc_type;

static const hfc_type hfc_types[] = {
    {"llama", "llama", HFC_LLAMA, 0, 0, 0, 0, 1e-6, 2048, 1e4, 0, 0, 0, 0, 0},
    {"mistral", "llama", HFC_MISTRAL, 0, 8, 0, 0, 1e-6, 131072, 1e4, 4096, 0, 0, 0, 0},
    {"ministral3", "mistral3", HFC_MISTRAL, 0, 8, 128, 0, 1e-5, 262144, 1e6, 0, 0, 0, 0, 0},
    {"mixtral", "llama", HFC_MIXTRAL, 0, 8, 0, 0, 1e-5, 131072, 1e6, 0, 8, 2, 0, 0},
    {"qwen2", "qwen2", HFC_QWEN2, 0, 32, 0, 0, 1e-6, 32768, 1e4, 4096, 0, 0, 0, 0},
    {"qwen2_moe", "qwen2moe", HFC_QWEN2_MOE, 0, 16, 0, 0, 1e-6, 32768, 1e4, 4096, 60, 4, 1408, 5632},
    {"qwen3", "qwen3", HFC_QWEN3, 0, 32, 128, 0, 1e-6, 32768, 1e4, 4096, 0, 0, 0, 0},
    {"qwen3_moe", "qwen3moe", HFC_QWEN3_MOE, 0, 4, 0, 0, 1e-6, 32768, 1e4, 4096, 128, 8, 768, 0},
    {"phi3", "phi3", HFC_PHI3, 0, 0, 0, 0, 1e-5, 4096, 1e4, 0, 0, 0, 0, 0},
    {"gemma2", "gemma2", HFC_GEMMA2, 8, 4, 256, 256000, 1e-6, 8192, 1e4, 4096, 0, 0, 0, 0},
    {"gemma3_text", "gemma3", HFC_GEMMA3, 8, 4, 256, 262208, 1e-6, 131072, 1e6, 4096, 0, 0, 0, 0},
};

#define HFC_REQUIRED UINT32_MAX
#define HFC_MODELS "llama, mistral, ministral3, mistral3, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, phi3, gemma2, gemma3, gemma3_text"

/* Reading: the first error is kept, later calls do nothing, so it reads straight down. */
typedef struct hfc {
    pn_hf_config *c;
    const hfc_type *type;
    pn_gguf_writer *w;
    pn_json_doc doc;
    const char *file;           /* for messages */
    uint32_t root, text;        /* nodes: text_config, or the root again */
    pn_status status;
    pn_err *err;
} hfc;

static void hfc_fail(hfc *h, pn_status st, const char *fmt, ...) PN_PRINTF(3, 4);
static void hfc_fail(hfc *h, pn_status st, const char *fmt, ...)
{
    char text[400];
    if (h->status)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    h->status = pn_fail(h->err, st, "%s: %s", h->file, text);
}

/* ------------------------------------------------------------------------------------------
 * JSON
 * ------------------------------------------------------------------------------------------ */

/* NaN and Infinity, which JSON does not have and Python writes: an empty object in their place lets
 * the text be read and serves nobody as a number. */
static void hfc_tame(char *s, size_t n)
{
    static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
    bool in = false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '"')
            in = !in;
        else if (in && s[i] == '\\')
            i++;
        for (size_t k = 0; k < PN_COUNT_OF(words) && !in; k++) {
            size_t len = strlen(words[k]);
            if (n - i >= len && memcmp(s + i, words[k], len) == 0) {
                memset(s + i, ' ', len);
                memcpy(s + i, "{}", 2);
            }
        }
    }
}

static pn_status hfc_parse(hfc *h, pn_mem *mem, pn_bytes text)
{
    const pn_json_params p = {.max_depth = 64, .max_bytes = 64u << 20};
    char *copy = pn_mem_strndup(mem, PN_ACCT_STAGE, text.data, text.len);
    if (!copy)
        return h->status = pn_fail_nomem(h->err, h->file, (uint64_t)text.len + 1);
    hfc_tame(copy, text.len);
    pn_status st = pn_json_parse(&h->doc, mem, PN_ACCT_STAGE, copy, text.len, &p, h->err);
    pn_mem_free(mem, PN_ACCT_STAGE, copy, text.len + 1);
    if (st)
        return h->status = pn_err_prefix(h->err, st, "%s", h->file);
    if (pn_json_type_of(&h->doc, PN_JSON_ROOT) != PN_JSON_OBJECT)
        hfc_fail(h, PN_E_FORMAT, "expected an object, found %s", pn_json_type_name(pn_json_type_of(&h->doc, PN_JSON_ROOT)));
    h->root = h->text = PN_JSON_ROOT;
    return h->status;
}

static bool hfc_is(const hfc *h, uint32_t node, pn_json_type t) { return pn_json_type_of(&h->doc, node) == t; }
static bool hfc_null(const hfc *h, uint32_t node) { return hfc_is(h, node, PN_JSON_NULL); }

/* Neither absent nor null. */
static bool hfc_there(const hfc *h, uint32_t node) { return node != PN_JSON_NONE && !hfc_null(h, node); }

/* A key of the text model; where that says nothing, of what it is wrapped into. */
static uint32_t hfc_get(const hfc *h, const char *key)
{
    uint32_t node = pn_json_get(&h->doc, h->text, key);
    return node != PN_JSON_NONE ? node : pn_json_get(&h->doc, h->root, key);
}

/* What stands there, for a message. */
typedef struct hfc_shown { char s[64]; } hfc_shown;

static hfc_shown hfc_show(const hfc *h, uint32_t node)
{
    hfc_shown t = {""};
    pn_bytes b;
    bool on, text = pn_json_str(&h->doc, node, &b);
    if (!text && !pn_json_num(&h->doc, node, &b)) {
        const char *name = pn_json_bool(&h->doc, node, &on) ? on ? "true" : "false" : pn_json_type_name(pn_json_type_of(&h->doc, node));
        b = (pn_bytes){name, strlen(name)};
    }
    size_t n = PN_MIN(b.len, sizeof t.s - 6), k = 0;
    if (text)
        t.s[k++] = '"';
    for (size_t i = 0; i < n; i++)
        t.s[k++] = b.data[i] >= 32 && b.data[i] < 127 ? b.data[i] : '?';
    memcpy(t.s + k, n < b.len ? "..." : "", n < b.len ? 3 : 0);
    if (text)
        t.s[k + (n < b.len ? 3 : 0)] = '"';
    return t;
}

static uint32_t hfc_int(hfc *h, const char *key, uint32_t node, uint32_t lo, uint32_t hi)
{
    int64_t v;
    if (h->status)
        return lo;
    if (!hfc_is(h, node, PN_JSON_NUMBER) || !pn_json_i64(&h->doc, node, &v) || v < lo || v > hi) {
        hfc_fail(h, PN_E_FORMAT, "key '%s' is %s, expected an integer from %" PRIu32 " to %" PRIu32, key, hfc_show(h, node).s, lo, hi);
        return lo;
    }
    return (uint32_t)v;
}

static uint32_t hfc_u32(hfc *h, const char *key, uint32_t lo, uint32_t hi, uint32_t absent)
{
    uint32_t node = hfc_get(h, key);
    if (node != PN_JSON_NONE)
        return hfc_int(h, key, node, lo, hi);
    if (absent == HFC_REQUIRED)
        hfc_fail(h, PN_E_FORMAT, "key '%s' is missing", key);
    return absent == HFC_REQUIRED ? lo : absent;
}

/* A finite number above `above`. */
static double hfc_real(hfc *h, const char *key, uint32_t node, double above)
{
    double v = 0;
    if (h->status)
        return 1;
    if (!pn_json_f64(&h->doc, node, &v) || !(v > above) || !(v <= 3e38)) {
        hfc_fail(h, PN_E_FORMAT, "key '%s' is %s, expected a finite number above %g", key, hfc_show(h, node).s, above);
        return 1;
    }
    return v;
}

static double hfc_f64(hfc *h, const char *key, double absent)
{
    uint32_t node = hfc_get(h, key);
    return node == PN_JSON_NONE ? absent : hfc_real(h, key, node, 0);
}

static bool hfc_flag(hfc *h, const char *key, bool absent)
{
    uint32_t node = hfc_get(h, key);
    bool v = absent;
    if (node != PN_JSON_NONE && !pn_json_bool(&h->doc, node, &v))
        hfc_fail(h, PN_E_FORMAT, "key '%s' is %s, expected true or false", key, hfc_show(h, node).s);
    return v;
}

static bool hfc_text_is(const hfc *h, uint32_t node, const char *text)
{
    pn_bytes b;
    return pn_json_str(&h->doc, node, &b) && b.len == strlen(text) && memcmp(b.data, text, b.len) == 0;
}

/* ------------------------------------------------------------------------------------------
 * Which model
 * ------------------------------------------------------------------------------------------ */

static const hfc_type *hfc_type_named(pn_bytes name)
{
    for (size_t i = 0; i < PN_COUNT_OF(hfc_types); i++)
        if (name.len == strlen(hfc_types[i].name) && memcmp(name.data, hfc_types[i].name, name.len) == 0)
            return &hfc_types[i];
    return NULL;
}

static const hfc_type *hfc_find_type(const hfc *h, uint32_t node)
{
    pn_bytes name;
    return pn_json_str(&h->doc, node, &name) ? hfc_type_named(name) : NULL;
}

/* Models that hold a text model: which one, when its own configuration does not say. */
static const hfc_type *hfc_unwrap(hfc *h, uint32_t model_type)
{
    uint32_t vision = pn_json_get(&h->doc, pn_json_get(&h->doc, h->root, "vision_config"), "model_type");
    uint32_t inner = pn_json_get(&h->doc, h->text, "model_type");
    bool gemma = hfc_text_is(h, model_type, "gemma3"), mistral = hfc_text_is(h, model_type, "mistral3");
    if (!gemma && !mistral && !(hfc_text_is(h, model_type, "llava") && hfc_text_is(h, vision, "pixtral")))
        return NULL;
    if (h->text == h->root)
        hfc_fail(h, PN_E_FORMAT, "key 'text_config' is missing");
    h->c->wrapped = true;
    if (inner == PN_JSON_NONE)
        return hfc_type_named(gemma ? (pn_bytes){"gemma3_text", 11} : (pn_bytes){"mistral", 7});
    return hfc_find_type(h, inner);
}

static void hfc_model(hfc *h)
{
    uint32_t model_type = pn_json_get(&h->doc, h->root, "model_type"), text = pn_json_get(&h->doc, h->root, "text_config");
    if (model_type == PN_JSON_NONE) {
        hfc_fail(h, PN_E_FORMAT, "key 'model_type' is missing");
        return;
    }
    if (hfc_is(h, text, PN_JSON_OBJECT))
        h->text = text;
    h->type = hfc_find_type(h, model_type);
    if (!h->type)
        h->type = hfc_unwrap(h, model_type);
    if (!h->type) {
        uint32_t inner = pn_json_get(&h->doc, h->text, "model_type");
        hfc_fail(h, PN_E_UNSUPPORTED, "key 'model_type' is %s%s%s, expected one of %s (code in the folder is never run)", hfc_show(h, model_type).s,
                 h->c->wrapped ? " around " : "", h->c->wrapped ? hfc_show(h, inner).s : "", HFC_MODELS);
        return;
    }
    snprintf(h->c->arch, sizeof h->c->arch, "%s", hfc_text_is(h, model_type, "mistral3") ? "mistral3" : h->type->arch);
}

static bool hfc_gemma(const hfc *h) { return h->type->kind == HFC_GEMMA2 || h->type->kind == HFC_GEMMA3; }

/* What would change the numbers and has only one value that is known here. */
static void hfc_refuse(hfc *h)
{
    uint32_t list = pn_json_get(&h->doc, h->root, "architectures"), act;
    pn_bytes name;
    uint32_t first = pn_json_first(&h->doc, list);
    if (hfc_is(h, list, PN_JSON_ARRAY) && first != PN_JSON_NONE && pn_json_str(&h->doc, first, &name)) {
        static const char *const ends[] = {"ForCausalLM", "ForConditionalGeneration"};
        bool ok = false;
        for (size_t i = 0; i < PN_COUNT_OF(ends); i++)
            ok = ok || (name.len >= strlen(ends[i]) && memcmp(name.data + name.len - strlen(ends[i]), ends[i], strlen(ends[i])) == 0);
        if (!ok)
            hfc_fail(h, PN_E_UNSUPPORTED, "key 'architectures' is %s, expected one that ends in %s or %s", hfc_show(h, first).s, ends[0], ends[1]);
    }
    const char *key = hfc_gemma(h) ? "hidden_activation" : "hidden_act", *want = hfc_gemma(h) ? "gelu_pytorch_tanh" : "silu";
    act = hfc_get(h, key);
    if (act != PN_JSON_NONE && !hfc_text_is(h, act, want) && !(hfc_gemma(h) && hfc_null(h, act)))
        hfc_fail(h, PN_E_UNSUPPORTED, "key '%s' is %s, expected \"%s\"", key, hfc_show(h, act).s, want);
    if (hfc_gemma(h) && hfc_there(h, hfc_get(h, "use_bidirectional_attention")) && hfc_flag(h, "use_bidirectional_attention", false))
        hfc_fail(h, PN_E_UNSUPPORTED, "key 'use_bidirectional_attention' is true: attention to later tokens is not supported");
}

/* ------------------------------------------------------------------------------------------
 * Quantised weights
 * ------------------------------------------------------------------------------------------ */

enum { HFC_BLOCK_MAX = 1 << 20 };

/* "fp8": one scale a matrix, or one a block. */
static void hfc_quant_fp8(hfc *h, uint32_t q)
{
    uint32_t block = pn_json_get(&h->doc, q, "weight_block_size"), fmt = pn_json_get(&h->doc, q, "scale_fmt");
    pn_hf_quant *out = &h->c->quant;
    out->scheme = PN_HF_FP8;
    if (hfc_there(h, block)) {
        uint32_t a = pn_json_first(&h->doc, block);
        if (!hfc_is(h, block, PN_JSON_ARRAY) || pn_json_count(&h->doc, block) != 2)
            hfc_fail(h, PN_E_FORMAT, "key 'weight_block_size' is %s, expected two integers", hfc_show(h, block).s);
        out->block_rows = hfc_int(h, "weight_block_size", a, 1, HFC_BLOCK_MAX);
        out->block_cols = hfc_int(h, "weight_block_size", a == PN_JSON_NONE ? a : pn_json_next(&h->doc, a), 1, HFC_BLOCK_MAX);
    }
    out->ue8m0 = hfc_text_is(h, fmt, "ue8m0");
    if (hfc_there(h, fmt) && !out->ue8m0 && !hfc_text_is(h, fmt, "float"))
        hfc_fail(h, PN_E_UNSUPPORTED, "key 'scale_fmt' is %s, expected \"ue8m0\" or \"float\"", hfc_show(h, fmt).s);
}

/* What one group of "pack-quantized" says of its weights. */
static void hfc_quant_group(hfc *h, uint32_t group, pn_hf_quant *out)
{
    uint32_t w = pn_json_get(&h->doc, group, "weights"), bits = pn_json_get(&h->doc, w, "num_bits"), type = pn_json_get(&h->doc, w, "type");
    uint32_t how = pn_json_get(&h->doc, w, "strategy"), size = pn_json_get(&h->doc, w, "group_size"), symmetric = pn_json_get(&h->doc, w, "symmetric");
    int64_t n = 0;
    bool same = true, there = hfc_there(h, size);
    *out = (pn_hf_quant){.scheme = PN_HF_INT4, .block_rows = 1};
    if (!pn_json_i64(&h->doc, bits, &n) || n != 4 || (hfc_there(h, type) && !hfc_text_is(h, type, "int")))
        hfc_fail(h, PN_E_UNSUPPORTED, "quantization_config: pack-quantized weights have num_bits %s of type %s, expected 4 of type \"int\"",
                 hfc_show(h, bits).s, hfc_show(h, type).s);
    if (hfc_there(h, symmetric) && !pn_json_bool(&h->doc, symmetric, &same))
        hfc_fail(h, PN_E_FORMAT, "key 'symmetric' is %s, expected true or false", hfc_show(h, symmetric).s);
    out->zeros = !same;
    if (hfc_text_is(h, how, "group") || (!hfc_there(h, how) && there))
        out->block_cols = hfc_int(h, "group_size", size, 1, HFC_BLOCK_MAX);
    else if (!hfc_text_is(h, how, "channel"))
        hfc_fail(h, PN_E_UNSUPPORTED, "key 'strategy' is %s, expected \"group\" or \"channel\"", hfc_show(h, how).s);
}

/* "pack-quantized": groups name modules by patterns, which nobody needs who sees the tensors; so they have to agree. */
static void hfc_quant_packed(hfc *h, uint32_t q)
{
    uint32_t groups = pn_json_get(&h->doc, q, "config_groups"), g = pn_json_first(&h->doc, groups);
    if (!hfc_is(h, groups, PN_JSON_OBJECT) || g == PN_JSON_NONE)
        hfc_fail(h, PN_E_FORMAT, "quantization_config: compressed-tensors of format pack-quantized without config_groups");
    else
        hfc_quant_group(h, g, &h->c->quant);
    for (; g != PN_JSON_NONE && !h->status; g = pn_json_next(&h->doc, g)) {
        const pn_hf_quant *a = &h->c->quant;
        pn_hf_quant b;
        hfc_quant_group(h, g, &b);
        if (a->block_cols != b.block_cols || a->zeros != b.zeros)
            hfc_fail(h, PN_E_UNSUPPORTED, "quantization_config: config_groups differ in group_size or symmetric");
    }
}

/* How weights are quantised, in one of the ways that are known here. */
static void hfc_quant(hfc *h)
{
    uint32_t q = pn_json_get(&h->doc, h->text, "quantization_config");
    if (!hfc_there(h, q))
        q = pn_json_get(&h->doc, h->root, "quantization_config");
    if (!hfc_there(h, q))
        return;
    uint32_t method = pn_json_get(&h->doc, q, "quant_method"), format = pn_json_get(&h->doc, q, "format");
    bool tensors = hfc_text_is(h, method, "compressed-tensors");
    if (hfc_text_is(h, method, "fp8"))
        hfc_quant_fp8(h, q);
    else if (tensors && hfc_text_is(h, format, "float-quantized"))
        h->c->quant.scheme = PN_HF_FP8_ROWS;
    else if (tensors && hfc_text_is(h, format, "pack-quantized"))
        hfc_quant_packed(h, q);
    else
        hfc_fail(h, PN_E_UNSUPPORTED, "quantization_config: quant_method is %s%s%s, expected fp8, or compressed-tensors of format float-quantized or pack-quantized",
                 hfc_show(h, method).s, format == PN_JSON_NONE ? "" : ", format is ", format == PN_JSON_NONE ? "" : hfc_show(h, format).s);
}

/* ------------------------------------------------------------------------------------------
 * Shape
 * ------------------------------------------------------------------------------------------ */

enum { HFC_WIDTH_MAX = 1 << 20, HFC_HEADS_MAX = 4096, HFC_VOCAB_MAX = 1 << 22, HFC_CTX_MAX = 1 << 30, HFC_EXPERTS_MAX = 65536 };

static void hfc_heads(hfc *h)
{
    pn_hf_config *c = h->c;
    const hfc_type *t = h->type;
    c->n_heads = hfc_u32(h, "num_attention_heads", 1, HFC_HEADS_MAX, t->heads ? t->heads : HFC_REQUIRED);
    uint32_t kv = hfc_get(h, "num_key_value_heads"), d = hfc_get(h, "head_dim");
    c->n_heads_kv = hfc_null(h, kv) ? c->n_heads : hfc_u32(h, "num_key_value_heads", 1, HFC_HEADS_MAX, t->kv ? t->kv : c->n_heads);
    if (!h->status && c->n_heads % c->n_heads_kv)
        hfc_fail(h, PN_E_FORMAT, "num_key_value_heads is %" PRIu32 ", which does not divide num_attention_heads, %" PRIu32, c->n_heads_kv, c->n_heads);
    if (h->status)
        return;
    if (hfc_there(h, d))
        c->d_head = hfc_int(h, "head_dim", d, 1, 65536);
    else
        c->d_head = d == PN_JSON_NONE && t->d_head ? t->d_head : c->n_embd / c->n_heads;
    if (!h->status && c->d_head == 0)
        hfc_fail(h, PN_E_FORMAT, "num_attention_heads is %" PRIu32 ", more than hidden_size, %" PRIu32, c->n_heads, c->n_embd);
}

static void hfc_experts(hfc *h)
{
    pn_hf_config *c = h->c;
    const hfc_type *t = h->type;
    if (!t->n_expert)
        return;
    const char *key = hfc_there(h, hfc_get(h, "num_local_experts")) ? "num_local_experts" : "num_experts";
    c->n_expert = hfc_u32(h, key, 1, HFC_EXPERTS_MAX, t->n_expert);
    c->n_expert_used = hfc_u32(h, "num_experts_per_tok", 1, HFC_EXPERTS_MAX, t->n_used);
    if (c->n_expert_used > c->n_expert)
        hfc_fail(h, PN_E_FORMAT, "num_experts_per_tok is %" PRIu32 ", more than %s, %" PRIu32, c->n_expert_used, key, c->n_expert);
    c->n_ff_exp = t->kind == HFC_MIXTRAL ? c->n_ff : hfc_u32(h, "moe_intermediate_size", 1, HFC_WIDTH_MAX, t->n_ff_exp);
    if (t->n_ff_shared)
        c->n_ff_shared = hfc_u32(h, "shared_expert_intermediate_size", 1, HFC_WIDTH_MAX, t->n_ff_shared);
    uint32_t dense = hfc_get(h, "mlp_only_layers");
    if (t->kind != HFC_MIXTRAL && hfc_there(h, dense) && pn_json_count(&h->doc, dense))
        hfc_fail(h, PN_E_UNSUPPORTED, "key 'mlp_only_layers' lists layers, expected none: all layers must have experts");
    if (t->kind != HFC_MIXTRAL && hfc_u32(h, "decoder_sparse_step", 0, HFC_WIDTH_MAX, 1) != 1)
        hfc_fail(h, PN_E_UNSUPPORTED, "key 'decoder_sparse_step' is %s, expected 1: all layers must have experts",
                 hfc_show(h, hfc_get(h, "decoder_sparse_step")).s);
}

static void hfc_shape(hfc *h)
{
    pn_hf_config *c = h->c;
    const hfc_type *t = h->type;
    bool routed = t->n_expert && t->kind != HFC_MIXTRAL;
    c->n_embd = hfc_u32(h, "hidden_size", 1, HFC_WIDTH_MAX, HFC_REQUIRED);
    c->n_layers = hfc_u32(h, "num_hidden_layers", 1, PN_HF_LAYERS_MAX, HFC_REQUIRED);
    c->n_ff = hfc_u32(h, "intermediate_size", routed ? 0 : 1, HFC_WIDTH_MAX, routed ? 0 : HFC_REQUIRED);
    c->n_vocab = hfc_u32(h, "vocab_size", 1, HFC_VOCAB_MAX, t->vocab ? t->vocab : HFC_REQUIRED);
    c->n_ctx = hfc_u32(h, "max_position_embeddings", 1, HFC_CTX_MAX, t->n_ctx);
    hfc_heads(h);
    hfc_experts(h);
    bool bias = (t->kind == HFC_LLAMA || t->kind == HFC_QWEN3 || t->kind == HFC_QWEN3_MOE || hfc_gemma(h)) && hfc_flag(h, "attention_bias", false);
    c->bias_qkv = bias || t->kind == HFC_QWEN2 || (t->kind == HFC_QWEN2_MOE && hfc_flag(h, "qkv_bias", true));
    c->bias_o = bias;
    c->bias_mlp = t->kind == HFC_LLAMA && hfc_flag(h, "mlp_bias", false);
    c->qk_norm = t->kind == HFC_QWEN3 || t->kind == HFC_QWEN3_MOE || t->kind == HFC_GEMMA3;
    c->fused = t->kind == HFC_PHI3;
    c->post_norms = hfc_gemma(h);
    uint32_t outer = pn_json_get(&h->doc, h->root, "tie_word_embeddings");
    c->tied = outer != PN_JSON_NONE ? pn_json_bool(&h->doc, outer, &c->tied) && c->tied : hfc_flag(h, "tie_word_embeddings", hfc_gemma(h));
}

/* ------------------------------------------------------------------------------------------
 * Keys
 * ------------------------------------------------------------------------------------------ */

static const char *hfc_name(const hfc *h, char name[96], const char *key)
{
    snprintf(name, 96, "%s.%s", h->c->arch, key);
    return name;
}

static void hfc_put_u32(hfc *h, const char *key, uint32_t v) { char n[96]; pn_gguf_put_u32(h->w, hfc_name(h, n, key), v); }
static void hfc_put_f32(hfc *h, const char *key, double v) { char n[96]; pn_gguf_put_f32(h->w, hfc_name(h, n, key), (float)v); }
static void hfc_put_bool(hfc *h, const char *key, bool v) { char n[96]; pn_gguf_put_bool(h->w, hfc_name(h, n, key), v); }
static void hfc_put_str(hfc *h, const char *key, const char *v) { char n[96]; pn_gguf_put_str(h->w, hfc_name(h, n, key), v, strlen(v)); }

static void hfc_put_shape(hfc *h, const char *folder)
{
    const pn_hf_config *c = h->c;
    pn_gguf_put_str(h->w, "general.architecture", c->arch, strlen(c->arch));
    pn_gguf_put_str(h->w, "general.type", "model", 5);
    pn_gguf_put_str(h->w, "general.name", folder, strlen(folder));
    hfc_put_u32(h, "vocab_size", c->n_vocab);
    hfc_put_u32(h, "context_length", c->n_ctx);
    hfc_put_u32(h, "embedding_length", c->n_embd);
    hfc_put_u32(h, "block_count", c->n_layers);
    hfc_put_u32(h, "feed_forward_length", c->n_ff);
    hfc_put_u32(h, "attention.head_count", c->n_heads);
    hfc_put_u32(h, "attention.head_count_kv", c->n_heads_kv);
    hfc_put_u32(h, "attention.key_length", c->d_head);
    hfc_put_u32(h, "attention.value_length", c->d_head);
    hfc_put_f32(h, "attention.layer_norm_rms_epsilon", hfc_f64(h, "rms_norm_eps", h->type->eps));
    if (!c->n_expert)
        return;
    hfc_put_u32(h, "expert_count", c->n_expert);
    hfc_put_u32(h, "expert_used_count", c->n_expert_used);
    if (h->type->kind == HFC_MIXTRAL)
        return;
    hfc_put_u32(h, "expert_feed_forward_length", c->n_ff_exp);
    if (c->n_ff_shared)
        hfc_put_u32(h, "expert_shared_feed_forward_length", c->n_ff_shared);
    hfc_put_bool(h, "expert_weights_norm", hfc_flag(h, "norm_topk_prob", false));
}

/* ------------------------------------------------------------------------------------------
 * Windows
 * ------------------------------------------------------------------------------------------ */

/* Tokens that the family's own code shows layer il (model/pn_arch_*.c); W: the window. */
static uint32_t hfc_usual_window(const hfc *h, uint32_t il, uint32_t W)
{
    if (h->type->kind == HFC_GEMMA2)
        return il % 2 == 0 ? W : 0;
    return h->type->kind == HFC_GEMMA3 && il % 6 < 5 ? W : 0;
}

/* Without layer_types.  `from`: max_window_layers; `period`: of Gemma 3. */
static bool hfc_slides(const hfc *h, uint32_t il, uint32_t from, uint32_t period)
{
    switch (h->type->kind) {
    case HFC_MISTRAL: case HFC_MIXTRAL: case HFC_PHI3: case HFC_QWEN3_MOE: return true;
    case HFC_QWEN2: case HFC_QWEN3: return il >= from;
    case HFC_QWEN2_MOE: return il % 2 == 0 && il < from;
    case HFC_GEMMA2: return il % 2 == 0;
    case HFC_GEMMA3: return (il + 1) % period != 0;
    default: return false;
    }
}

/* One word of layer_types. */
static bool hfc_layer_slides(hfc *h, uint32_t node, uint32_t W)
{
    bool slides = hfc_text_is(h, node, "sliding_attention");
    if (!slides && !hfc_text_is(h, node, "full_attention"))
        hfc_fail(h, PN_E_UNSUPPORTED, "key 'layer_types' has %s, expected \"full_attention\" or \"sliding_attention\"", hfc_show(h, node).s);
    if (slides && !W)
        hfc_fail(h, PN_E_FORMAT, "key 'layer_types' has \"sliding_attention\", but there is no 'sliding_window'");
    return slides;
}

/* The width of windows; 0: there are none.  The classes of Qwen ignore it unless use_sliding_window is set. */
static uint32_t hfc_window(hfc *h)
{
    bool qwen = h->type->kind >= HFC_QWEN2 && h->type->kind <= HFC_QWEN3_MOE;
    if (h->type->kind == HFC_LLAMA || (qwen && !hfc_flag(h, "use_sliding_window", false)) || hfc_null(h, hfc_get(h, "sliding_window")))
        return 0;
    return hfc_u32(h, "sliding_window", 0, HFC_CTX_MAX, h->type->window);
}

static void hfc_windows(hfc *h)
{
    uint32_t window[PN_HF_LAYERS_MAX], W = hfc_window(h), n = h->c->n_layers, list = hfc_get(h, "layer_types"), node;
    uint32_t from = hfc_there(h, hfc_get(h, "max_window_layers")) ? hfc_u32(h, "max_window_layers", 0, HFC_CTX_MAX, 28) : 28;
    const char *key = hfc_get(h, "sliding_window_pattern") != PN_JSON_NONE ? "sliding_window_pattern" : "_sliding_window_pattern";
    uint32_t period = h->type->kind == HFC_GEMMA3 && hfc_there(h, hfc_get(h, key)) ? hfc_u32(h, key, 1, HFC_CTX_MAX, 6) : 6;
    bool words = hfc_there(h, list), usual = true;
    if (h->status)
        return;
    if (words && (!hfc_is(h, list, PN_JSON_ARRAY) || pn_json_count(&h->doc, list) != n)) {
        hfc_fail(h, PN_E_FORMAT, "key 'layer_types' is %s of %" PRIu32 ", expected an array of one word for each of %" PRIu32 " layers (num_hidden_layers)",
                 hfc_show(h, list).s, pn_json_count(&h->doc, list), n);
        return;
    }
    node = words ? pn_json_first(&h->doc, list) : PN_JSON_NONE;
    for (uint32_t il = 0; il < n && !h->status; il++) {
        bool slides = words ? hfc_layer_slides(h, node, W) : hfc_slides(h, il, from, period);
        node = pn_json_next(&h->doc, node);
        window[il] = slides && W < h->c->n_ctx ? W : 0;         /* what is as wide as the context hides nothing */
        if (hfc_gemma(h))
            window[il] = slides ? W : 0;                        /* there it chooses the rotary base, too */
        usual = usual && window[il] == hfc_usual_window(h, il, W);
    }
    if (h->type->kind == HFC_PHI3 || hfc_gemma(h))
        hfc_put_u32(h, "attention.sliding_window", W);
    if (usual)
        return;
    uint8_t packed[4 * PN_HF_LAYERS_MAX];
    for (uint32_t i = 0; i < 4 * n; i++)
        packed[i] = (uint8_t)(window[i / 4] >> i % 4 * 8);
    char name[96];
    pn_gguf_put_array(h->w, hfc_name(h, name, "attention.layer_windows"), PN_META_U32, n, packed, 4 * (size_t)n);
}

/* ------------------------------------------------------------------------------------------
 * RoPE
 * ------------------------------------------------------------------------------------------ */

typedef struct hfc_rope {
    uint32_t dict, kind;        /* nodes; kind NONE: default */
    uint32_t ctx0;              /* original context */
} hfc_rope;

/* From the dictionary, else from the root. */
static uint32_t hfc_rope_get(const hfc *h, const hfc_rope *r, const char *key)
{
    uint32_t node = pn_json_get(&h->doc, r->dict, key);
    return node != PN_JSON_NONE ? node : hfc_get(h, key);
}

static double hfc_rope_f64(hfc *h, const hfc_rope *r, const char *key, double absent)
{
    uint32_t node = pn_json_get(&h->doc, r->dict, key);
    return hfc_there(h, node) ? hfc_real(h, key, node, 0) : absent;
}

static double hfc_rope_required(hfc *h, const hfc_rope *r, const char *key)
{
    uint32_t node = pn_json_get(&h->doc, r->dict, key);
    if (node == PN_JSON_NONE)
        hfc_fail(h, PN_E_FORMAT, "rope_type %s needs the key '%s'", hfc_show(h, r->kind).s, key);
    return hfc_real(h, key, node, 0);
}

static void hfc_rope_find(hfc *h, hfc_rope *r, const char *layers)
{
    uint32_t scaling = hfc_get(h, "rope_scaling");
    r->dict = hfc_there(h, scaling) ? scaling : hfc_get(h, "rope_parameters");
    uint32_t inner = pn_json_get(&h->doc, r->dict, layers);
    if (inner != PN_JSON_NONE)
        r->dict = inner;
    if (hfc_there(h, r->dict) && !hfc_is(h, r->dict, PN_JSON_OBJECT))
        hfc_fail(h, PN_E_FORMAT, "key '%s' is %s, expected an object", r->dict == scaling ? "rope_scaling" : "rope_parameters", hfc_show(h, r->dict).s);
    r->kind = pn_json_get(&h->doc, r->dict, "rope_type");
    if (r->kind == PN_JSON_NONE)
        r->kind = pn_json_get(&h->doc, r->dict, "type");
    uint32_t ctx0 = hfc_get(h, "original_max_position_embeddings");
    if (!hfc_there(h, ctx0))
        ctx0 = pn_json_get(&h->doc, r->dict, "original_max_position_embeddings");
    r->ctx0 = hfc_there(h, ctx0) ? hfc_int(h, "original_max_position_embeddings", ctx0, 1, HFC_CTX_MAX) : h->c->n_ctx;
}

static bool hfc_rope_is(const hfc *h, const hfc_rope *r, const char *kind)
{
    return r->kind == PN_JSON_NONE ? strcmp(kind, "default") == 0 : hfc_text_is(h, r->kind, kind);
}

static float *hfc_factors(hfc *h, uint32_t i)
{
    uint32_t n = h->c->n_rot / 2;
    h->c->factors[i] = pn_mem_calloc(h->c->mem, PN_ACCT_MISC, n, sizeof(float));
    if (!h->c->factors[i])
        h->status = pn_fail_nomem(h->err, "rotary factors", n * sizeof(float));
    return h->c->factors[i];
}

/* Llama 3: waves longer than the old context are stretched, short ones are kept (arch sheet 1, section 3.4). */
static void hfc_rope_llama3(hfc *h, const hfc_rope *r, double base)
{
    double f = hfc_rope_required(h, r, "factor"), low = hfc_rope_required(h, r, "low_freq_factor"), high = hfc_rope_required(h, r, "high_freq_factor");
    if (!hfc_there(h, hfc_rope_get(h, r, "original_max_position_embeddings")))
        hfc_fail(h, PN_E_FORMAT, "rope_type \"llama3\" needs the key 'original_max_position_embeddings'");
    if (!h->status && !(high > low))
        hfc_fail(h, PN_E_FORMAT, "key 'high_freq_factor' is %g, expected more than 'low_freq_factor', %g", high, low);
    float *ff = h->status ? NULL : hfc_factors(h, 0);
    for (uint32_t i = 0; ff && i < h->c->n_rot / 2; i++) {
        double wave = 2 * 3.14159265358979323846 / pn_pow(base, -2.0 * i / h->c->n_rot), turns = r->ctx0 / wave;
        double t = (turns - low) / (high - low);
        ff[i] = (float)(turns > high ? 1 : turns < low ? f : 1 / ((1 - t) / f + t));
    }
}

static void hfc_rope_table(hfc *h, const hfc_rope *r, const char *key, uint32_t which)
{
    uint32_t list = pn_json_get(&h->doc, r->dict, key), n = h->c->n_rot / 2, node;
    if (h->status)
        return;
    if (!hfc_is(h, list, PN_JSON_ARRAY) || pn_json_count(&h->doc, list) != n) {
        hfc_fail(h, PN_E_FORMAT, "key '%s' has %" PRIu32 " numbers, expected one for each of %" PRIu32 " rotary pairs", key, pn_json_count(&h->doc, list), n);
        return;
    }
    float *ff = hfc_factors(h, which);
    node = pn_json_first(&h->doc, list);
    for (uint32_t i = 0; ff && i < n; i++, node = pn_json_next(&h->doc, node))
        ff[i] = (float)hfc_real(h, key, node, 0);
}

static void hfc_rope_long(hfc *h, const hfc_rope *r, bool yarn)
{
    hfc_rope_table(h, r, "short_factor", 0);
    hfc_rope_table(h, r, "long_factor", 1);
    double f = hfc_rope_f64(h, r, "factor", (double)h->c->n_ctx / r->ctx0), m = 1;
    if (f > 1)
        m = yarn ? 1 + 0.1 * pn_log(f) : sqrt(1 + pn_log(f) / pn_log((double)r->ctx0));
    hfc_put_u32(h, "rope.scaling.original_context_length", r->ctx0);
    hfc_put_f32(h, "rope.scaling.attn_factor", hfc_rope_f64(h, r, "attention_factor", m));
    if (h->type->kind != HFC_PHI3)
        hfc_put_str(h, "rope.scaling.type", "longrope");
}

static double hfc_magnitude(double factor, double x) { return factor <= 1 ? 1 : 1 + 0.1 * x * pn_log(factor); }

/* A number that may be null or 0, which both mean that it is not there. */
static double hfc_rope_maybe(hfc *h, const hfc_rope *r, const char *key, double absent)
{
    uint32_t node = pn_json_get(&h->doc, r->dict, key);
    double v;
    return pn_json_f64(&h->doc, node, &v) && v == 0 ? absent : hfc_rope_f64(h, r, key, absent);
}

static void hfc_rope_yarn(hfc *h, const hfc_rope *r)
{
    uint32_t cut = pn_json_get(&h->doc, r->dict, "truncate");
    double f = hfc_rope_f64(h, r, "factor", (double)h->c->n_ctx / r->ctx0), one = hfc_rope_maybe(h, r, "mscale", 0);
    double all = hfc_rope_maybe(h, r, "mscale_all_dim", 0), usual = hfc_magnitude(f, 1);
    double m = hfc_rope_f64(h, r, "attention_factor", one > 0 && all > 0 ? hfc_magnitude(f, one) / hfc_magnitude(f, all) : usual);
    bool truncate = true;
    if (hfc_there(h, cut) && !pn_json_bool(&h->doc, cut, &truncate))
        hfc_fail(h, PN_E_FORMAT, "key 'truncate' is %s, expected true or false", hfc_show(h, cut).s);
    hfc_put_str(h, "rope.scaling.type", "yarn");
    hfc_put_f32(h, "rope.scaling.factor", f);
    hfc_put_u32(h, "rope.scaling.original_context_length", r->ctx0);
    hfc_put_f32(h, "rope.scaling.yarn_beta_fast", hfc_rope_maybe(h, r, "beta_fast", 32));
    hfc_put_f32(h, "rope.scaling.yarn_beta_slow", hfc_rope_maybe(h, r, "beta_slow", 1));
    if (!truncate)
        hfc_put_bool(h, "rope.scaling.yarn_truncate", false);
    if (strcmp(h->c->arch, "mistral3") == 0 && all > 0) {
        hfc_put_f32(h, "rope.scaling.yarn_log_multiplier", all);
        usual /= hfc_magnitude(f, all);
    }
    if (fabs(m - usual) > 1e-9)
        hfc_put_f32(h, "rope.scaling.attn_factor", m / usual);
}

/* Ministral 3 without any dictionary. */
static void hfc_rope_ministral(hfc *h)
{
    h->c->n_rot = h->c->d_head;
    hfc_put_str(h, "rope.scaling.type", "yarn");
    hfc_put_f32(h, "rope.scaling.factor", 16);
    hfc_put_u32(h, "rope.scaling.original_context_length", 16384);
    hfc_put_f32(h, "rope.scaling.yarn_log_multiplier", 1);
    hfc_put_f32(h, "attention.temperature_scale", 0.1);
}

static void hfc_rope_kind(hfc *h, const hfc_rope *r, double base)
{
    bool phi3 = h->type->kind == HFC_PHI3, llama = h->type->kind <= HFC_MIXTRAL;
    bool tables = pn_json_get(&h->doc, r->dict, "short_factor") != PN_JSON_NONE;
    if (hfc_rope_is(h, r, "dynamic"))           /* plain as far as the model was trained */
        hfc_put_u32(h, "context_limit", h->c->n_ctx);
    if (hfc_rope_is(h, r, "default") || hfc_rope_is(h, r, "dynamic"))
        return;
    if (hfc_rope_is(h, r, "linear")) {
        hfc_put_str(h, "rope.scaling.type", "linear");
        hfc_put_f32(h, "rope.scaling.factor", hfc_rope_required(h, r, "factor"));
    } else if (hfc_rope_is(h, r, "llama3") && llama)
        hfc_rope_llama3(h, r, base);
    else if ((hfc_rope_is(h, r, "longrope") || hfc_rope_is(h, r, "su")) && (llama || phi3))
        hfc_rope_long(h, r, false);
    else if (hfc_rope_is(h, r, "yarn") && phi3 && tables)
        hfc_rope_long(h, r, true);
    else if (hfc_rope_is(h, r, "yarn") && !phi3 && !hfc_gemma(h))
        hfc_rope_yarn(h, r);
    else
        hfc_fail(h, PN_E_UNSUPPORTED, "rope_type is %s, expected for model_type %s one of default, dynamic, linear%s", hfc_show(h, r->kind).s,
                 h->type->name, llama ? ", yarn, llama3, longrope" : phi3 ? ", longrope" : hfc_gemma(h) ? "" : ", yarn");
}

/* Dimensions of a head that rotate. */
static void hfc_rope_part(hfc *h, const hfc_rope *r)
{
    uint32_t node = hfc_rope_get(h, r, "partial_rotary_factor");
    double part = hfc_there(h, node) ? hfc_real(h, "partial_rotary_factor", node, 0) : 1;
    h->c->n_rot = part <= 1 ? (uint32_t)(h->c->d_head * part) : 0;
    if (!h->status && h->type->kind != HFC_PHI3 && part != 1)
        hfc_fail(h, PN_E_UNSUPPORTED, "key 'partial_rotary_factor' is %s, expected 1 for model_type %s", hfc_show(h, node).s, h->type->name);
    if (!h->status && (h->c->n_rot == 0 || h->c->n_rot % 2))
        hfc_fail(h, PN_E_FORMAT, "head_dim is %" PRIu32 ", of which %" PRIu32 " dimensions rotate (partial_rotary_factor %g): expected an even number above 0",
                 h->c->d_head, h->c->n_rot, part);
}

/* Gemma 3's windowed layers rotate by a base of their own, always plainly. */
static void hfc_rope_local(hfc *h)
{
    hfc_rope r;
    hfc_rope_find(h, &r, "sliding_attention");
    bool nested = hfc_there(h, hfc_get(h, "rope_parameters")) && pn_json_get(&h->doc, hfc_get(h, "rope_parameters"), "sliding_attention") == r.dict;
    if (nested && !hfc_rope_is(h, &r, "default"))
        hfc_fail(h, PN_E_UNSUPPORTED, "rope_type of sliding_attention is %s, expected default", hfc_show(h, r.kind).s);
    uint32_t base = nested ? pn_json_get(&h->doc, r.dict, "rope_theta") : hfc_get(h, "rope_local_base_freq");
    hfc_put_f32(h, "rope.freq_base_swa", base == PN_JSON_NONE ? 1e4 : hfc_real(h, nested ? "rope_theta" : "rope_local_base_freq", base, 0));
}

static void hfc_ropes(hfc *h)
{
    hfc_rope r;
    hfc_rope_find(h, &r, "full_attention");
    if (h->status)
        return;
    uint32_t theta = hfc_rope_get(h, &r, "rope_theta"), beta = pn_json_get(&h->doc, r.dict, "llama_4_scaling_beta");
    double base = theta == PN_JSON_NONE ? h->type->base : hfc_real(h, "rope_theta", theta, 0);
    if (strcmp(h->type->name, "ministral3") == 0 && !hfc_there(h, r.dict))
        hfc_rope_ministral(h);
    else {
        hfc_rope_part(h, &r);
        hfc_rope_kind(h, &r, base);
        if (h->type->kind == HFC_MISTRAL && hfc_there(h, beta)) {
            if (hfc_rope_is(h, &r, "default"))
                hfc_put_u32(h, "rope.scaling.original_context_length", r.ctx0);
            hfc_put_f32(h, "attention.temperature_scale", hfc_real(h, "llama_4_scaling_beta", beta, -1));
        }
    }
    hfc_put_f32(h, "rope.freq_base", base);
    hfc_put_u32(h, "rope.dimension_count", h->c->n_rot);
    if (h->type->kind <= HFC_MIXTRAL)
        hfc_put_str(h, "rope.pairing", "neox");
    if (h->type->kind == HFC_GEMMA3)
        hfc_rope_local(h);
}

/* ------------------------------------------------------------------------------------------
 * Gemma
 * ------------------------------------------------------------------------------------------ */

/* Null and 0: no cap. */
static double hfc_cap(hfc *h, const char *key, double absent)
{
    uint32_t node = hfc_get(h, key);
    if (node == PN_JSON_NONE || hfc_null(h, node))
        return node == PN_JSON_NONE ? absent : 0;
    return hfc_real(h, key, node, -1);
}

static void hfc_put_gemma(hfc *h)
{
    const pn_hf_config *c = h->c;
    bool v2 = h->type->kind == HFC_GEMMA2;
    double attn = hfc_cap(h, "attn_logit_softcapping", v2 ? 50 : 0), scalar = hfc_f64(h, "query_pre_attn_scalar", 256);
    double usual = c->n_layers == (v2 ? 46u : 62u) ? (double)c->n_embd / c->n_heads : c->d_head;
    if (!v2 && attn != 0)
        hfc_fail(h, PN_E_UNSUPPORTED, "key 'attn_logit_softcapping' is %g, expected null for model_type gemma3_text", attn);
    if (v2)
        hfc_put_f32(h, "attn_logit_softcapping", attn);
    hfc_put_f32(h, "final_logit_softcapping", hfc_cap(h, "final_logit_softcapping", v2 ? 30 : 0));
    if (scalar != usual)
        hfc_put_f32(h, "attention.query_scalar", scalar);
}

/* ------------------------------------------------------------------------------------------
 * What to sample with
 * ------------------------------------------------------------------------------------------ */

static void hfc_generation(hfc *h)
{
    static const struct { char key[20], ours[32]; } keys[] = {
        {"temperature", "general.sampling.temp"}, {"top_k", "general.sampling.top_k"}, {"top_p", "general.sampling.top_p"},
        {"min_p", "general.sampling.min_p"}, {"repetition_penalty", "general.sampling.penalty_repeat"}};
    bool sample = true;
    uint32_t flag = hfc_get(h, "do_sample");
    if (hfc_there(h, flag) && !pn_json_bool(&h->doc, flag, &sample))
        hfc_fail(h, PN_E_FORMAT, "key 'do_sample' is %s, expected true or false", hfc_show(h, flag).s);
    for (size_t i = 0; i < PN_COUNT_OF(keys) && !h->status; i++) {
        uint32_t node = hfc_get(h, keys[i].key);
        double v = 0;
        if (!hfc_there(h, node))
            continue;
        if (!pn_json_f64(&h->doc, node, &v) || !(fabs(v) <= 1e9))
            hfc_fail(h, PN_E_FORMAT, "key '%s' is %s, expected a number", keys[i].key, hfc_show(h, node).s);
        if (i > 0 || sample)
            pn_gguf_put_f32(h->w, keys[i].ours, (float)v);
    }
    if (!sample)
        pn_gguf_put_f32(h->w, keys[0].ours, 0);
}

PN_INTERNAL pn_status pn_hf_config_read(pn_hf_config *c, pn_mem *mem, const char *folder, pn_bytes config, pn_bytes generation,
                                        pn_gguf_writer *w, pn_err *err)
{
    *c = (pn_hf_config){.mem = mem};
    hfc h = {.c = c, .w = w, .file = "config.json", .err = err};
    if (!hfc_parse(&h, mem, config))
        hfc_model(&h);
    if (!h.status)
        hfc_refuse(&h);
    if (!h.status)
        hfc_quant(&h);
    if (!h.status)
        hfc_shape(&h);
    if (!h.status)
        hfc_put_shape(&h, folder);
    if (!h.status)
        hfc_windows(&h);
    if (!h.status)
        hfc_ropes(&h);
    if (!h.status && hfc_gemma(&h))
        hfc_put_gemma(&h);
    pn_json_fini(&h.doc);
    if (!h.status && generation.data) {
        h.file = "generation_config.json";
        if (!hfc_parse(&h, mem, generation))
            hfc_generation(&h);
        pn_json_fini(&h.doc);
    }
    if (h.status)
        pn_hf_config_fini(c);
    return h.status;
}

PN_INTERNAL void pn_hf_config_fini(pn_hf_config *c)
{
    for (int i = 0; i < 2 && c->mem; i++)
        pn_mem_free(c->mem, PN_ACCT_MISC, c->factors[i], c->n_rot / 2 * sizeof(float));
    *c = (pn_hf_config){0};
}

#undef HFC_REQUIRED
#undef HFC_MODELS
