/* SPDX-License-Identifier: AGPL-3.0-only */
#include "format/pn_hf_names.h"

#include <stdio.h>

/* Sizes by what they are; in the order of hfn_sizes. */
typedef enum hfn_dim {
    HFN_NONE, HFN_ONE, HFN_D, HFN_Q, HFN_K, HFN_QKV, HFN_HEAD, HFN_F, HFN_F2, HFN_V, HFN_E, HFN_FE, HFN_FS
} hfn_dim;

/* Which models have it. */
typedef enum hfn_when {
    HFN_ALWAYS, HFN_SPLIT, HFN_FUSED, HFN_BIAS_QKV, HFN_BIAS_O, HFN_BIAS_MLP, HFN_QK_NORM, HFN_PRE, HFN_POST, HFN_DENSE,
    HFN_DENSE_SPLIT, HFN_DENSE_FUSED, HFN_EXPERTS, HFN_SHARED
} hfn_when;

typedef struct hfn_row {
    uint8_t when, how, rows, cols;
    const char *names[3], *ours, *fused[3];
    uint8_t halves;             /* of the fused tensor: 0 all rows, 1 the first half, 2 the second */
} hfn_row;

#define HFN_EXPERT(ours_, rows_, cols_, w, proj, all, halves_)                                                                       \
    {HFN_EXPERTS, PN_HF_STACK, rows_, cols_, {"layers.#.mlp.experts.#." proj ".weight", "layers.#.block_sparse_moe.experts.#." w ".weight", NULL}, \
     ours_, {"layers.#.mlp.experts." all, "layers.#.block_sparse_moe.experts." all, NULL}, halves_}
#define HFN_ROW(when_, how_, rows_, cols_, name, ours_) {when_, how_, rows_, cols_, {name, NULL, NULL}, ours_, {NULL, NULL, NULL}, 0}

/* Rows of a fused expert: gate first, then up. */
static const hfn_row hfn_layer[] = {
    HFN_ROW(HFN_ALWAYS, PN_HF_NORM, HFN_NONE, HFN_D, "layers.#.input_layernorm.weight", "blk.#.attn_norm.weight"),
    HFN_ROW(HFN_FUSED, PN_HF_MATRIX, HFN_QKV, HFN_D, "layers.#.self_attn.qkv_proj.weight", "blk.#.attn_qkv.weight"),
    HFN_ROW(HFN_SPLIT, PN_HF_MATRIX, HFN_Q, HFN_D, "layers.#.self_attn.q_proj.weight", "blk.#.attn_q.weight"),
    HFN_ROW(HFN_SPLIT, PN_HF_MATRIX, HFN_K, HFN_D, "layers.#.self_attn.k_proj.weight", "blk.#.attn_k.weight"),
    HFN_ROW(HFN_SPLIT, PN_HF_MATRIX, HFN_K, HFN_D, "layers.#.self_attn.v_proj.weight", "blk.#.attn_v.weight"),
    HFN_ROW(HFN_BIAS_QKV, PN_HF_VECTOR, HFN_NONE, HFN_Q, "layers.#.self_attn.q_proj.bias", "blk.#.attn_q.bias"),
    HFN_ROW(HFN_BIAS_QKV, PN_HF_VECTOR, HFN_NONE, HFN_K, "layers.#.self_attn.k_proj.bias", "blk.#.attn_k.bias"),
    HFN_ROW(HFN_BIAS_QKV, PN_HF_VECTOR, HFN_NONE, HFN_K, "layers.#.self_attn.v_proj.bias", "blk.#.attn_v.bias"),
    HFN_ROW(HFN_QK_NORM, PN_HF_NORM, HFN_NONE, HFN_HEAD, "layers.#.self_attn.q_norm.weight", "blk.#.attn_q_norm.weight"),
    HFN_ROW(HFN_QK_NORM, PN_HF_NORM, HFN_NONE, HFN_HEAD, "layers.#.self_attn.k_norm.weight", "blk.#.attn_k_norm.weight"),
    HFN_ROW(HFN_ALWAYS, PN_HF_MATRIX, HFN_D, HFN_Q, "layers.#.self_attn.o_proj.weight", "blk.#.attn_output.weight"),
    HFN_ROW(HFN_BIAS_O, PN_HF_VECTOR, HFN_NONE, HFN_D, "layers.#.self_attn.o_proj.bias", "blk.#.attn_output.bias"),
    HFN_ROW(HFN_PRE, PN_HF_NORM, HFN_NONE, HFN_D, "layers.#.post_attention_layernorm.weight", "blk.#.ffn_norm.weight"),
    HFN_ROW(HFN_POST, PN_HF_NORM, HFN_NONE, HFN_D, "layers.#.post_attention_layernorm.weight", "blk.#.post_attention_norm.weight"),
    HFN_ROW(HFN_POST, PN_HF_NORM, HFN_NONE, HFN_D, "layers.#.pre_feedforward_layernorm.weight", "blk.#.ffn_norm.weight"),
    HFN_ROW(HFN_POST, PN_HF_NORM, HFN_NONE, HFN_D, "layers.#.post_feedforward_layernorm.weight", "blk.#.post_ffw_norm.weight"),
    HFN_ROW(HFN_DENSE_SPLIT, PN_HF_MATRIX, HFN_F, HFN_D, "layers.#.mlp.gate_proj.weight", "blk.#.ffn_gate.weight"),
    HFN_ROW(HFN_DENSE_SPLIT, PN_HF_MATRIX, HFN_F, HFN_D, "layers.#.mlp.up_proj.weight", "blk.#.ffn_up.weight"),
    HFN_ROW(HFN_DENSE_FUSED, PN_HF_MATRIX, HFN_F2, HFN_D, "layers.#.mlp.gate_up_proj.weight", "blk.#.ffn_up.weight"),
    HFN_ROW(HFN_DENSE, PN_HF_MATRIX, HFN_D, HFN_F, "layers.#.mlp.down_proj.weight", "blk.#.ffn_down.weight"),
    HFN_ROW(HFN_BIAS_MLP, PN_HF_VECTOR, HFN_NONE, HFN_F, "layers.#.mlp.gate_proj.bias", "blk.#.ffn_gate.bias"),
    HFN_ROW(HFN_BIAS_MLP, PN_HF_VECTOR, HFN_NONE, HFN_F, "layers.#.mlp.up_proj.bias", "blk.#.ffn_up.bias"),
    HFN_ROW(HFN_BIAS_MLP, PN_HF_VECTOR, HFN_NONE, HFN_D, "layers.#.mlp.down_proj.bias", "blk.#.ffn_down.bias"),
    {HFN_EXPERTS, PN_HF_MATRIX, HFN_E, HFN_D, {"layers.#.mlp.gate.weight", "layers.#.block_sparse_moe.gate.weight", NULL},
     "blk.#.ffn_gate_inp.weight", {NULL, NULL, NULL}, 0},
    HFN_EXPERT("blk.#.ffn_gate_exps.weight", HFN_FE, HFN_D, "w1", "gate_proj", "gate_up_proj", 1),
    HFN_EXPERT("blk.#.ffn_up_exps.weight", HFN_FE, HFN_D, "w3", "up_proj", "gate_up_proj", 2),
    HFN_EXPERT("blk.#.ffn_down_exps.weight", HFN_D, HFN_FE, "w2", "down_proj", "down_proj", 0),
    HFN_ROW(HFN_SHARED, PN_HF_MATRIX, HFN_ONE, HFN_D, "layers.#.mlp.shared_expert_gate.weight", "blk.#.ffn_gate_inp_shexp.weight"),
    HFN_ROW(HFN_SHARED, PN_HF_MATRIX, HFN_FS, HFN_D, "layers.#.mlp.shared_expert.gate_proj.weight", "blk.#.ffn_gate_shexp.weight"),
    HFN_ROW(HFN_SHARED, PN_HF_MATRIX, HFN_FS, HFN_D, "layers.#.mlp.shared_expert.up_proj.weight", "blk.#.ffn_up_shexp.weight"),
    HFN_ROW(HFN_SHARED, PN_HF_MATRIX, HFN_D, HFN_FS, "layers.#.mlp.shared_expert.down_proj.weight", "blk.#.ffn_down_shexp.weight"),
};

/* The head may be missing: then it is the embedding. */
static const hfn_row hfn_once[] = {
    HFN_ROW(HFN_ALWAYS, PN_HF_MATRIX, HFN_V, HFN_D, "embed_tokens.weight", "token_embd.weight"),
    HFN_ROW(HFN_ALWAYS, PN_HF_NORM, HFN_NONE, HFN_D, "norm.weight", "output_norm.weight"),
    HFN_ROW(HFN_ALWAYS, PN_HF_MATRIX, HFN_V, HFN_D, "lm_head.weight", "output.weight"),
};

static bool hfn_has(const pn_hf_config *c, uint8_t when)
{
    switch (when) {
    case HFN_SPLIT: return !c->fused;
    case HFN_FUSED: return c->fused;
    case HFN_BIAS_QKV: return c->bias_qkv;
    case HFN_BIAS_O: return c->bias_o;
    case HFN_BIAS_MLP: return c->bias_mlp;
    case HFN_QK_NORM: return c->qk_norm;
    case HFN_PRE: return !c->post_norms;
    case HFN_POST: return c->post_norms;
    case HFN_DENSE: return !c->n_expert;
    case HFN_DENSE_SPLIT: return !c->n_expert && !c->fused;
    case HFN_DENSE_FUSED: return !c->n_expert && c->fused;
    case HFN_EXPERTS: return c->n_expert != 0;
    case HFN_SHARED: return c->n_ff_shared != 0;
    default: return true;
    }
}

static uint64_t hfn_size(const pn_hf_config *c, uint8_t dim, const char **is)
{
    static const char *const names[] = {"", "1", "hidden_size", "num_attention_heads x head_dim", "num_key_value_heads x head_dim",
                                        "(num_attention_heads + 2 num_key_value_heads) x head_dim", "head_dim", "intermediate_size",
                                        "2 x intermediate_size", "vocab_size", "the number of experts", "the width of an expert",
                                        "shared_expert_intermediate_size"};
    uint64_t d = c->d_head;
    *is = names[dim];
    switch (dim) {
    case HFN_ONE: return 1;
    case HFN_D: return c->n_embd;
    case HFN_Q: return c->n_heads * d;
    case HFN_K: return c->n_heads_kv * d;
    case HFN_QKV: return (c->n_heads + 2 * (uint64_t)c->n_heads_kv) * d;
    case HFN_HEAD: return d;
    case HFN_F: return c->n_ff;
    case HFN_F2: return 2 * (uint64_t)c->n_ff;
    case HFN_V: return c->n_vocab;
    case HFN_E: return c->n_expert;
    case HFN_FE: return c->n_ff_exp;
    case HFN_FS: return c->n_ff_shared;
    default: return 0;
    }
}

PN_INTERNAL bool pn_hf_want_at(const pn_hf_config *c, bool layer, uint32_t i, pn_hf_want *out)
{
    const hfn_row *rows = layer ? hfn_layer : hfn_once;
    size_t n = layer ? PN_COUNT_OF(hfn_layer) : PN_COUNT_OF(hfn_once), k = 0;
    for (; k < n; k++)
        if (hfn_has(c, rows[k].when) && i-- == 0)
            break;
    if (k == n)
        return false;
    const hfn_row *r = &rows[k];
    *out = (pn_hf_want){.ours = r->ours, .how = r->how, .optional = rows == hfn_once && k + 1 == n};
    memcpy(out->names, r->names, sizeof out->names);
    memcpy(out->fused, r->fused, sizeof out->fused);
    out->rows = hfn_size(c, r->rows, &out->rows_are);
    out->cols = hfn_size(c, r->cols, &out->cols_are);
    out->fused_rows = r->halves ? 2 * out->rows : out->rows;
    out->fused_from = r->halves == 2 ? out->rows : 0;
    return true;
}

PN_INTERNAL void pn_hf_spell(char *out, size_t cap, const char *name, uint32_t first, uint32_t second)
{
    size_t n = 0;
    for (uint32_t number = first; *name && n + 12 < cap; name++) {
        if (*name != '#') {
            out[n++] = *name;
            continue;
        }
        n += (size_t)snprintf(out + n, cap - n, "%u", (unsigned)number);
        number = second;
    }
    out[n] = 0;
}

PN_INTERNAL const char *pn_hf_name(const char *name)
{
    static const char *const wraps[] = {"_orig_mod.", "module."};
    static const char *const parts[] = {"language_model.model.model.", "language_model.model.", "model.language_model.", "language_model.", "model."};
    for (size_t i = 0; i < PN_COUNT_OF(wraps); i++)
        if (strncmp(name, wraps[i], strlen(wraps[i])) == 0) {
            name += strlen(wraps[i]);
            i = (size_t)-1;             /* from the start: both, in any order */
        }
    for (size_t i = 0; i < PN_COUNT_OF(parts); i++)
        if (strncmp(name, parts[i], strlen(parts[i])) == 0)
            return name + strlen(parts[i]);
    return name;
}

PN_INTERNAL bool pn_hf_skips(const pn_hf_config *c, const char *name)
{
    static const char *const ends[] = {".rotary_emb.inv_freq", ".masked_bias", ".attention.bias"};
    static const char *const parts[] = {"vision_tower.", "multi_modal_projector.", "vision_model.", "visual."};
    size_t n = strlen(name);
    for (size_t i = 0; i < PN_COUNT_OF(ends); i++)
        if (n >= strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    for (size_t i = 0; i < PN_COUNT_OF(parts) && c->wrapped; i++)
        if (strncmp(name, parts[i], strlen(parts[i])) == 0)
            return true;
    return strncmp(name, "mtp.", 4) == 0 || strcmp(name, "rotary_emb.inv_freq") == 0;
}

#undef HFN_EXPERT
#undef HFN_ROW
