/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_presets.c - the usual mixtures as a table, and the few adjustments around it.
 *
 * A rule is a condition on the layer and two formats, one for each answer.  The order of decisions
 * for a tensor: stays as it is (norms, routers, vectors); output matrix; rule of its class, then
 * the adjustments for models with eight experts or eighty layers; last, when its rows do not divide
 * into the chosen format's blocks, the next format with smaller ones.
 */
#include "engine/pn_presets.h"

#include <stdio.h>

#include "base/pn_err.h"
#include "num/pn_quant.h"

/* ------------------------------------------------------------------------------------------
 * The table
 * ------------------------------------------------------------------------------------------ */

typedef enum mix_when {
    MIX_NEVER = 0,
    MIX_ALWAYS,
    MIX_MORE,           /* first and last eighth of the layers, and every third between */
    MIX_FIRST_2,        /* of the class */
    MIX_FIRST_4,
    MIX_EIGHTH,         /* first eighth of the layers */
    MIX_SIXTEENTH,
    MIX_SHARED          /* four query heads or more share a key/value head */
} mix_when;

/* `yes` where the condition holds, else `no`; MIX_BASE: the preset's base. */
typedef struct mix_rule {
    uint8_t when, yes, no;
} mix_rule;

typedef struct pn_preset {
    char name[12];
    uint8_t file_type, base;
    uint8_t embedding;          /* token_embd */
    uint8_t experts;            /* stacks of expert matrices */
    uint8_t plain;              /* only a format's name: no rule but that of the output matrix */
    uint8_t wide_output;        /* eight experts: attn_output gets Q5_K, else its rule is off */
    mix_rule values, attn_output, ffn_down;
} pn_preset;

#define MIX_BASE 255
#define MIX_F(t) PN_DTYPE_##t
#define MIX_ALL(t) {MIX_ALWAYS, PN_DTYPE_##t, MIX_BASE}
#define MIX_IF(when, t) {MIX_##when, PN_DTYPE_##t, MIX_BASE}
#define MIX_ELSE(when, yes, no) {MIX_##when, PN_DTYPE_##yes, PN_DTYPE_##no}
#define MIX_NONE {MIX_NEVER, MIX_BASE, MIX_BASE}
#define MIX_SAME(t, id) {#t, id, MIX_F(t), MIX_BASE, MIX_BASE, 0, 0, MIX_NONE, MIX_NONE, MIX_NONE}
#define MIX_PLAIN(t, id) {#t, id, MIX_F(t), MIX_BASE, MIX_BASE, 1, 0, MIX_NONE, MIX_NONE, MIX_NONE}

static const pn_preset mix_presets[] = {
    MIX_SAME(F32, 0), MIX_SAME(F16, 1), MIX_SAME(BF16, 32), MIX_SAME(Q8_0, 7),
    MIX_SAME(Q4_0, 2), MIX_SAME(Q4_1, 3), MIX_SAME(Q5_0, 8), MIX_SAME(Q5_1, 9),
    {"Q2_K", 10, MIX_F(Q2_K), MIX_BASE, MIX_BASE, 0, 1, MIX_ELSE(SHARED, Q4_K, Q3_K), MIX_ALL(Q3_K), MIX_ALL(Q3_K)},
    {"Q3_K_S", 11, MIX_F(Q3_K), MIX_BASE, MIX_BASE, 0, 1, MIX_NONE, MIX_NONE, MIX_NONE},
    {"Q3_K_M", 12, MIX_F(Q3_K), MIX_BASE, MIX_BASE, 0, 1, MIX_ELSE(FIRST_2, Q5_K, Q4_K), MIX_ALL(Q4_K),
     MIX_ELSE(SIXTEENTH, Q5_K, Q4_K)},
    {"Q3_K_L", 13, MIX_F(Q3_K), MIX_BASE, MIX_BASE, 0, 0, MIX_ALL(Q5_K), MIX_ALL(Q5_K), MIX_ALL(Q5_K)},
    {"Q4_K_S", 14, MIX_F(Q4_K), MIX_BASE, MIX_BASE, 0, 1, MIX_IF(FIRST_4, Q5_K), MIX_NONE, MIX_IF(EIGHTH, Q5_K)},
    {"Q4_K_M", 15, MIX_F(Q4_K), MIX_BASE, MIX_BASE, 0, 1, MIX_IF(MORE, Q6_K), MIX_NONE, MIX_IF(MORE, Q6_K)},
    {"Q5_K_S", 16, MIX_F(Q5_K), MIX_BASE, MIX_BASE, 0, 0, MIX_NONE, MIX_NONE, MIX_NONE},
    {"Q5_K_M", 17, MIX_F(Q5_K), MIX_BASE, MIX_BASE, 0, 0, MIX_IF(MORE, Q6_K), MIX_NONE, MIX_IF(MORE, Q6_K)},
    MIX_SAME(Q6_K, 18),
    {"IQ4_NL", 25, MIX_F(IQ4_NL), MIX_BASE, MIX_BASE, 0, 1, MIX_IF(SHARED, Q5_K), MIX_NONE, MIX_IF(EIGHTH, Q5_K)},
    {"MXFP4_MOE", 38, MIX_F(Q8_0), MIX_BASE, MIX_F(MXFP4), 0, 0, MIX_NONE, MIX_NONE, MIX_NONE},
    {"TQ1_0", 36, MIX_F(TQ1_0), MIX_F(Q4_K), MIX_BASE, 0, 0, MIX_NONE, MIX_NONE, MIX_NONE},
    {"TQ2_0", 37, MIX_F(TQ2_0), MIX_F(Q4_K), MIX_BASE, 0, 0, MIX_NONE, MIX_NONE, MIX_NONE},
    MIX_SAME(Q1_0, 40),
    {"Q2_0", 41, MIX_F(Q2_0), MIX_F(Q4_K), MIX_BASE, 0, 0, MIX_NONE, MIX_NONE, MIX_NONE},
    /* Formats that no preset is called after: the output rule alone, and the nearest file type. */
    MIX_PLAIN(Q3_K, 11), MIX_PLAIN(Q4_K, 14), MIX_PLAIN(Q5_K, 16), MIX_PLAIN(MXFP4, 38), MIX_PLAIN(NVFP4, 39)
};

/* ASCII only: the locale must not decide what "q4_k_m" means. */
static bool mix_same_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        char x = *a >= 'a' && *a <= 'z' ? (char)(*a - 'a' + 'A') : *a;
        if (x != *b)
            return false;
        if (x == 0)
            return true;
    }
}

PN_INTERNAL pn_status pn_mix_open(pn_mix *m, const char *name, pn_err *err)
{
    char list[256];
    size_t len = 0;
    memset(m, 0, sizeof *m);
    for (size_t i = 0; i < PN_COUNT_OF(mix_presets); i++) {
        const pn_preset *p = &mix_presets[i];
        if (name && mix_same_name(name, p->name)) {
            m->preset = p;
            m->base = p->base;
            m->file_type = p->file_type;
            return PN_OK;
        }
        int n = snprintf(list + len, sizeof list - len, "%s%s", i ? " " : "", p->name);
        len = PN_MIN(len + (size_t)PN_MAX(n, 0), sizeof list - 1);
    }
    return pn_fail(err, PN_E_INVALID, "'%.40s' is no type to write, expected one of: %s", name ? name : "", list);
}

PN_INTERNAL pn_status pn_mix_open_type(pn_mix *m, uint32_t dtype, pn_err *err)
{
    if (!pn_dtype_is_weight(dtype) || !pn_quant_can_encode(dtype))
        return pn_fail(err, PN_E_INVALID, "weights cannot be written as %s (type %u): nothing here encodes it",
                       pn_dtype_name((pn_dtype)dtype), (unsigned)dtype);
    pn_status st = pn_mix_open(m, pn_dtype_name((pn_dtype)dtype), err);
    m->preset = NULL;
    m->base = dtype;
    m->all_matrices = true;
    return st;
}

PN_INTERNAL const char *pn_mix_name(const pn_mix *m)
{
    return m->preset ? m->preset->name : pn_dtype_name((pn_dtype)m->base);
}

/* ------------------------------------------------------------------------------------------
 * Names
 * ------------------------------------------------------------------------------------------ */

static bool mix_has(const char *name, const char *part) { return strstr(name, part) != NULL; }

static bool mix_ends(const char *name, const char *tail)
{
    size_t n = strlen(name), k = strlen(tail);
    return n >= k && strcmp(name + n - k, tail) == 0;
}

/* N of "blk.N.rest"; PN_MIX_MAX_LAYERS when there is none below it. */
static uint32_t mix_layer(const char *name)
{
    uint32_t il = 0;
    if (strncmp(name, "blk.", 4) != 0)
        return PN_MIX_MAX_LAYERS;
    for (name += 4; *name >= '0' && *name <= '9'; name++) {
        il = il * 10 + (uint32_t)(*name - '0');
        if (il >= PN_MIX_MAX_LAYERS)
            return PN_MIX_MAX_LAYERS;
    }
    return *name == '.' ? il : PN_MIX_MAX_LAYERS;
}

static bool mix_is_values(const char *name)
{
    return mix_has(name, "attn_v.weight") || mix_has(name, "attn_qkv.weight") || mix_has(name, "attn_kv_b.weight");
}

PN_INTERNAL bool pn_mix_keeps(const char *name, uint32_t n_dims, const uint64_t *ne)
{
    static const char *const parts[] = {
        "ffn_gate_inp", "ssm_conv1d", "shortconv.conv", "position_embd", "token_types", "per_layer_model_proj",
        "time_mix_first", "time_mix_w0", "time_mix_w1", "time_mix_w2", "time_mix_a0", "time_mix_a1", "time_mix_a2",
        "time_mix_v0", "time_mix_v1", "time_mix_v2", "time_mix_g1", "time_mix_g2", "time_mix_decay_w1",
        "time_mix_decay_w2", "time_mix_lerp_fused", ".patch_embd", ".patch_merger"};
    if (n_dims < 2 || (ne[1] == 1 && ne[2] == 1 && ne[3] == 1))
        return true;
    if (!mix_ends(name, "weight") || mix_ends(name, "_norm.weight"))
        return true;
    for (size_t i = 0; i < PN_COUNT_OF(parts); i++)
        if (mix_has(name, parts[i]))
            return true;
    return false;
}

PN_INTERNAL void pn_mix_note(pn_mix *m, const char *name)
{
    uint32_t il = mix_layer(name);
    if (strcmp(name, "output.weight") == 0)
        m->has_output = true;
    if (mix_is_values(name)) {
        m->n_values++;
        if (il < PN_MIX_MAX_LAYERS)
            m->value_layers[il / 64] |= (uint64_t)1 << il % 64;
    }
}

/* ------------------------------------------------------------------------------------------
 * Rules
 * ------------------------------------------------------------------------------------------ */

/* How many tensors of the attn_v class come before layer il's. */
static uint32_t mix_value_index(const pn_mix *m, uint32_t il)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < il && i < PN_MIX_MAX_LAYERS; i++)
        n += (uint32_t)(m->value_layers[i / 64] >> i % 64) & 1;
    return n;
}

static bool mix_holds(const pn_mix *m, uint8_t when, uint32_t i, uint32_t n)
{
    switch ((mix_when)when) {
    case MIX_NEVER: return false;
    case MIX_ALWAYS: return true;
    case MIX_MORE: return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
    case MIX_FIRST_2: return i < 2;
    case MIX_FIRST_4: return i < 4;
    case MIX_EIGHTH: return i < n / 8;
    case MIX_SIXTEENTH: return i < n / 16;
    case MIX_SHARED: return m->n_heads_kv != 0 && m->n_heads / m->n_heads_kv >= 4;
    }
    return false;
}

static uint32_t mix_apply(const pn_mix *m, mix_rule r, uint32_t i, uint32_t n)
{
    uint32_t t = mix_holds(m, r.when, i, n) ? r.yes : r.no;
    return t == MIX_BASE ? m->base : t;
}

/* Eighty layers are the 70B class: many heads share few values, whose matrix is therefore small. */
static uint32_t mix_values(const pn_mix *m, uint32_t il)
{
    if (m->n_expert == 8)
        return PN_DTYPE_Q8_0;
    uint32_t t = mix_apply(m, m->preset->values, mix_value_index(m, il), m->n_values);
    return m->n_layers == 80 && (t == PN_DTYPE_Q3_K || t == PN_DTYPE_Q4_K) ? (uint32_t)PN_DTYPE_Q5_K : t;
}

static uint32_t mix_class(const pn_mix *m, const char *name, const uint64_t *ne)
{
    const pn_preset *p = m->preset;
    uint32_t il = mix_layer(name);
    if (p->plain)
        return m->base;
    if (p->experts != MIX_BASE)
        return ne[2] > 1 ? p->experts : m->base;
    if (strcmp(name, "token_embd.weight") == 0)
        return p->embedding == MIX_BASE ? m->base : p->embedding;
    if (mix_is_values(name))
        return mix_values(m, il);
    if (mix_has(name, "attn_k.weight") && m->n_expert == 8)
        return PN_DTYPE_Q8_0;
    if (mix_has(name, "attn_output.weight") && m->n_expert == 8)
        return p->wide_output ? (uint32_t)PN_DTYPE_Q5_K : m->base;
    if (mix_has(name, "attn_output.weight"))
        return mix_apply(m, p->attn_output, il, m->n_layers);
    if (mix_has(name, "ffn_down"))
        return mix_apply(m, p->ffn_down, il, m->n_layers);
    return m->base;
}

static bool mix_is_output(const pn_mix *m, const char *name)
{
    return strcmp(name, m->has_output ? "output.weight" : "token_embd.weight") == 0;
}

/* Every logit comes from here: never fewer than six bits. */
static uint32_t mix_output(const pn_mix *m, uint64_t ne0)
{
    if (m->base == PN_DTYPE_Q8_0 || m->base == PN_DTYPE_MXFP4 || ne0 % pn_dtype_get(m->base)->block_elems != 0)
        return PN_DTYPE_Q8_0;
    return PN_DTYPE_Q6_K;
}

/* The type itself, or one with smaller blocks that a row divides into. */
static uint32_t mix_fit(uint32_t type, uint64_t ne0)
{
    if (ne0 % pn_dtype_get(type)->block_elems == 0)
        return type;
    if (ne0 % 32 != 0)
        return PN_DTYPE_F16;
    switch (type) {
    case PN_DTYPE_Q4_K: return PN_DTYPE_Q5_0;
    case PN_DTYPE_Q5_K: return PN_DTYPE_Q5_1;
    case PN_DTYPE_Q6_K: return PN_DTYPE_Q8_0;
    default: return PN_DTYPE_Q4_0;
    }
}

PN_INTERNAL uint32_t pn_mix_type(const pn_mix *m, const char *name, uint32_t now, uint32_t n_dims, const uint64_t *ne)
{
    uint32_t type = m->base;
    if (!pn_dtype_is_weight(now) || pn_mix_keeps(name, n_dims, ne))
        return now;
    if (m->keep_output && mix_is_output(m, name))
        return now;
    if (!m->all_matrices && pn_dtype_is_quantised(type))
        type = mix_is_output(m, name) ? mix_output(m, ne[0]) : mix_class(m, name, ne);
    return mix_fit(type, ne[0]);
}

#undef MIX_BASE
#undef MIX_F
#undef MIX_ALL
#undef MIX_IF
#undef MIX_ELSE
#undef MIX_NONE
#undef MIX_SAME
#undef MIX_PLAIN
