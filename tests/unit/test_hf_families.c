/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_hf_families.c - the golden models of every family, taken apart into the folders they might have come from: rows of q and
 * k in the other order, norms minus one, experts one by one or in one tensor, keys in a config.json.  Loaded from
 * there they give the logits of the reference all the same.
 */
#define _XOPEN_SOURCE 700       /* mkdtemp */
#include "pn_test.h"

#include "../api/golden_case.h"

#include "engine/pn_tier.h"
#include "format/pn_hf_dir.h"
#include "format/pn_hf_names.h"

#include <unistd.h>

typedef struct family {
    const char *name, *config;      /* ' for " */
    bool fused;                     /* experts in one tensor */
} family;

#define SHAPE(D, L, F, H, G, d, V, ctx) "'hidden_size':" #D ",'num_hidden_layers':" #L ",'intermediate_size':" #F ",'num_attention_heads':" #H \
    ",'num_key_value_heads':" #G ",'head_dim':" #d ",'vocab_size':" #V ",'max_position_embeddings':" #ctx ","

/* %u: rows of the vocabulary; %s: two tables; both from the file. */
static const family families[] = {
    {"llama_rope_linear", "{'model_type':'llama'," SHAPE(48, 2, 72, 3, 1, 32, %u, 512) "'rms_norm_eps':1e-5,'rope_scaling':{'type':'linear','factor':4.0}}", false},
    {"llama_yarn", "{'model_type':'mistral','sliding_window':null," SHAPE(48, 2, 72, 3, 1, 32, %u, 8192)
     "'rms_norm_eps':1e-5,'rope_parameters':{'rope_type':'yarn','factor':8.0,'original_max_position_embeddings':1024,'rope_theta':1e4}}", false},
    {"llama_moe", "{'model_type':'mixtral','num_local_experts':4,'num_experts_per_tok':2," SHAPE(48, 2, 40, 4, 2, 12, %u, 512) "'rms_norm_eps':1e-5}", true},
    {"mistral3", "{'model_type':'mistral3','text_config':{'model_type':'ministral3'," SHAPE(48, 2, 72, 4, 2, 16, %u, 512)
     "'rms_norm_eps':1e-5,'rope_parameters':{'rope_type':'yarn','rope_theta':10000,'factor':16,'original_max_position_embeddings':16,'mscale':1.0,"
     "'mscale_all_dim':1.0,'beta_fast':32,'beta_slow':1,'llama_4_scaling_beta':0.1}}}", false},
    {"qwen2", "{'model_type':'qwen2'," SHAPE(64, 2, 104, 4, 2, null, %u, 512) "'rope_theta':1e6}", false},
    {"qwen2moe", "{'model_type':'qwen2_moe','num_experts':4,'num_experts_per_tok':2,'moe_intermediate_size':36,'shared_expert_intermediate_size':56,"
     SHAPE(48, 2, 56, 4, 2, null, %u, 512) "'rope_theta':1e6}", false},
    {"qwen3moe", "{'model_type':'qwen3_moe','num_experts':8,'num_experts_per_tok':3,'moe_intermediate_size':16,'norm_topk_prob':true,"
     SHAPE(56, 2, 48, 4, 1, 24, %u, 512) "'rope_theta':1e6}", true},
    {"phi3_longrope", "{'model_type':'phi3','original_max_position_embeddings':256,'partial_rotary_factor':0.75," SHAPE(48, 2, 72, 3, 1, 16, %u, 1024) "'rope_scaling':%s}", false},
    {"gemma2", "{'model_type':'gemma2','sliding_window':12,'query_pre_attn_scalar':24,'attn_logit_softcapping':5.0,'final_logit_softcapping':6.0,"
     SHAPE(56, 3, 80, 4, 2, 24, %u, 512) "'hidden_activation':'gelu_pytorch_tanh'}", false},
    {"gemma3", "{'model_type':'gemma3_text','sliding_window':32,'query_pre_attn_scalar':24,'rope_scaling':{'rope_type':'linear','factor':8.0},"
     SHAPE(48, 7, 40, 4, 1, 24, %u, 1024) "'rope_theta':1e6,'rope_local_base_freq':1e4}", false},
};

/* --- taking a file apart --------------------------------------------------------------------------- */

typedef struct apart {
    pn_mem mem;
    pn_weights w;
    pn_hf_config c;
    pn_str json, data;
    char dir[64];
    bool unpair;
} apart;

static void apart_file(const apart *x, const char *name, const void *a, size_t n, const void *b, size_t m)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", x->dir, name);
    FILE *f = fopen(path, "wb");
    if (PN_CHECK(f != NULL, "%s", path)) {
        fwrite(a, 1, n, f);
        fwrite(b, 1, m, f);
        fclose(f);
    }
}

static const char *apart_list(apart *x, const char *tensor, char *out, size_t cap)
{
    const pn_dir_tensor *t = pn_weights_find(&x->w, tensor);
    size_t n = (size_t)snprintf(out, cap, "[");
    for (uint64_t i = 0; t && i < t->t->ne[0]; i++) {
        float f;
        pn_weights_read(&x->w, t, i * 4, &f, 4, NULL);
        n += (size_t)snprintf(out + n, cap - n, "%s%.9g", i ? "," : "", (double)f);
    }
    snprintf(out + n, cap - n, "]");
    return out;
}

static void apart_add(apart *x, const char *prefix, const char *name, uint64_t e, uint64_t rows, uint64_t cols, const float *values)
{
    uint64_t n = PN_MAX(e, (uint64_t)1) * PN_MAX(rows, (uint64_t)1) * cols;
    pn_str_addf(&x->json, "%s\"%s%s\":{\"dtype\":\"F32\",\"shape\":[", x->json.len > 1 ? "," : "", strcmp(name, "lm_head.weight") ? prefix : "", name);
    if (e)
        pn_str_addf(&x->json, "%u,", (unsigned)e);
    if (rows)
        pn_str_addf(&x->json, "%u,", (unsigned)rows);
    pn_str_addf(&x->json, "%u],\"data_offsets\":[%zu,%zu]}", (unsigned)cols, x->data.len, x->data.len + (size_t)n * 4);
    pn_str_add(&x->data, values, (size_t)n * 4);
}

static float *apart_read(apart *x, const char *ours, const pn_hf_want *want)
{
    const pn_dir_tensor *t = pn_weights_find(&x->w, ours);
    if (!t)
        return NULL;
    float *v = malloc((size_t)t->t->bytes), *turned = malloc((size_t)t->t->bytes);
    PN_CHECK(t->t->dtype == PN_DTYPE_F32 && pn_weights_read(&x->w, t, 0, v, (size_t)t->t->bytes, NULL) == PN_OK, "%s", ours);
    size_t cols = want->rows ? (size_t)want->cols : 1, rows = (size_t)t->t->n_elems / cols, d = x->c.d_head;
    bool turn = x->unpair && (strstr(ours, ".attn_q.") || strstr(ours, ".attn_k."));
    for (size_t r = 0; r < rows; r++) {                 /* row t d/2 + j of a head was 2 j + t */
        size_t in = r % d, from = turn ? r - in + 2 * (in % (d / 2)) + in / (d / 2) : r;
        memcpy(turned + r * cols, v + from * cols, cols * sizeof *v);
    }
    for (size_t i = 0; i < rows * cols && want->how == PN_HF_NORM && x->c.post_norms; i++)
        turned[i] -= 1;
    free(v);
    return turned;
}

/* Experts of one stack, or gate and up together. */
static void apart_experts(apart *x, const pn_hf_want *want, uint32_t il, bool fused)
{
    char ours[PN_HF_OURS_MAX], name[PN_HF_NAME_MAX];
    size_t E = x->c.n_expert, each = (size_t)(want->rows * want->cols);
    pn_hf_spell(ours, sizeof ours, want->ours, il, 0);
    float *v = apart_read(x, ours, want);
    if (!fused)
        for (uint32_t e = 0; e < E; e++) {
            pn_hf_spell(name, sizeof name, want->names[strcmp(x->c.arch, "llama") == 0], il, e);
            apart_add(x, "model.", name, 0, want->rows, want->cols, v + e * each);
        }
    else if (want->fused_rows == want->rows) {
        pn_hf_spell(name, sizeof name, want->fused[0], il, 0);
        apart_add(x, "model.", name, E, want->rows, want->cols, v);
    } else if (want->fused_from == 0) {
        snprintf(ours, sizeof ours, "blk.%u.ffn_up_exps.weight", (unsigned)il);
        float *up = apart_read(x, ours, want), *both = malloc(2 * E * each * sizeof *both);
        for (size_t e = 0; e < E; e++) {
            memcpy(both + 2 * e * each, v + e * each, each * sizeof *v);
            memcpy(both + (2 * e + 1) * each, up + e * each, each * sizeof *v);
        }
        pn_hf_spell(name, sizeof name, want->fused[0], il, 0);
        apart_add(x, "model.", name, E, want->fused_rows, want->cols, both);
        free(up);
        free(both);
    }
    free(v);
}

static void apart_tensors(apart *x, const char *prefix, bool fused)
{
    pn_hf_want want;
    char ours[PN_HF_OURS_MAX], name[PN_HF_NAME_MAX];
    for (uint32_t il = 0; il <= x->c.n_layers; il++)
        for (uint32_t i = 0; pn_hf_want_at(&x->c, il < x->c.n_layers, i, &want); i++) {
            if (want.how == PN_HF_STACK) {
                apart_experts(x, &want, il, fused);
                continue;
            }
            pn_hf_spell(ours, sizeof ours, want.ours, il, 0);
            pn_hf_spell(name, sizeof name, want.names[0], il, 0);
            float *v = apart_read(x, ours, &want);
            if (PN_CHECK(v || want.optional, "%s", ours) && v)
                apart_add(x, prefix, name, 0, want.rows, want.cols, v);
            free(v);
        }
}

static void apart_config(apart *x, const family *f, char *config, size_t cap)
{
    char shrt[2000], lng[2000], scaling[5000];
    snprintf(scaling, sizeof scaling, "{'type':'longrope','attention_factor':1.11803401,'short_factor':%s,'long_factor':%s}",
             apart_list(x, "rope_factors_short.weight", shrt, sizeof shrt), apart_list(x, "rope_factors_long.weight", lng, sizeof lng));
#if defined(__GNUC__) || defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#endif
    snprintf(config, cap, f->config, (unsigned)pn_weights_find(&x->w, "token_embd.weight")->t->ne[1], scaling);
#if defined(__GNUC__) || defined(__clang__)
#pragma GCC diagnostic pop
#endif
    for (char *p = config; *p; p++)
        *p = *p == '\'' ? '"' : *p;
}

static bool apart_make(apart *x, const family *f, const char *path)
{
    static const char vocab[] = "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                                "\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
                                "\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}";
    char config[8000];
    pn_gguf_writer w;
    pn_err err = {0};
    memset(x, 0, sizeof *x);
    pn_mem_init_libc(&x->mem);
    snprintf(x->dir, sizeof x->dir, "/tmp/pn_hf_XXXXXX");
    if (!PN_CHECK(pn_weights_open_path(&x->w, &x->mem, path, true, &err) == PN_OK && mkdtemp(x->dir), "%s", err.text))
        return false;
    apart_config(x, f, config, sizeof config);
    pn_gguf_writer_init(&w, &x->mem);
    bool ok = PN_CHECK(pn_hf_config_read(&x->c, &x->mem, "x", (pn_bytes){config, strlen(config)}, (pn_bytes){NULL, 0}, &w, &err) == PN_OK, "%s: %s", f->name, err.text);
    pn_gguf_writer_fini(&w);
    x->unpair = strcmp(x->c.arch, "llama") == 0 || strcmp(x->c.arch, "mistral3") == 0;
    pn_str_init(&x->json, &x->mem, PN_ACCT_MISC);
    pn_str_init(&x->data, &x->mem, PN_ACCT_MISC);
    pn_str_addc(&x->json, '{');
    if (ok)
        apart_tensors(x, x->c.wrapped ? "language_model.model." : "model.", f->fused);
    pn_str_addc(&x->json, '}');
    while (x->json.len % 8)
        pn_str_addc(&x->json, ' ');
    uint8_t head[8];
    for (int k = 0; k < 8; k++)
        head[k] = (uint8_t)((uint64_t)x->json.len >> 8 * k);
    pn_str file;
    pn_str_init(&file, &x->mem, PN_ACCT_MISC);
    pn_str_add(&file, head, 8);
    pn_str_add(&file, x->json.data, x->json.len);
    apart_file(x, "model.safetensors", file.data, file.len, x->data.data, x->data.len);
    apart_file(x, "config.json", config, strlen(config), "", 0);
    apart_file(x, "tokenizer.json", vocab, sizeof vocab - 1, "", 0);
    pn_str_fini(&file);
    return ok;
}

static void apart_free(apart *x)
{
    static const char *const files[] = {"config.json", "tokenizer.json", "model.safetensors"};
    char path[128];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", x->dir, files[i]);
        unlink(path);
    }
    rmdir(x->dir);
    pn_str_fini(&x->json);
    pn_str_fini(&x->data);
    pn_hf_config_fini(&x->c);
    pn_weights_close(&x->w);
}

static void logits_are_the_references(const family *f)
{
    static const pn_residency how[] = {PN_RESIDENCY_MAP, PN_RESIDENCY_STREAM};
    golden_case c;
    apart x;
    pn_engine *e = NULL;
    pn_err err = {0};
    if (!PN_CHECK(golden_load(&c, "tests/vectors/golden/arch", f->name), "%s", f->name))
        return;
    PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK, "%s", err.text);
    bool ok = apart_make(&x, f, c.path);
    for (size_t i = 0; i < 2 && ok; i++) {
        pn_model *m = NULL;
        pn_session *s = NULL;
        double worst = 0;
        float *our = calloc((size_t)(c.n * c.n_vocab), sizeof *our);
        const pn_session_params sp = {.n_ctx = (uint32_t)c.n_ctx, .has_kv_type = 1, .kv_type = PN_DTYPE_F32};
        if (PN_CHECK(pn_model_load(e, x.dir, &(pn_model_params){.residency = how[i], .stream_block = 16384}, &m, &err) == PN_OK, "%s: %s", f->name, err.text) &&
            PN_CHECK(pn_session_new(m, &sp, &s, &err) == PN_OK, "%s", err.text) &&
            PN_CHECK(pn_session_eval_all(s, c.tokens, (size_t)c.n, our, &err) == PN_OK, "%s", err.text)) {
            golden_compare(&c, c.logits, our, &worst);
            PN_CHECK(worst <= c.max_abs, "%s: |d| %g > %g", f->name, worst, c.max_abs);
            PN_CHECK(golden_flips(&c, our) == 0, "%s", f->name);
            if (!i)
                printf("%-18s |d| %.2g of %.2g\n", f->name, worst, c.max_abs);
        }
        free(our);
        pn_session_free(s);
        pn_model_free(m);
    }
    apart_free(&x);
    pn_engine_close(e);
    golden_free(&c);
}

/* Wherever weights are it is one model; and not that of a file with permuted rows, whose keys do not fit. */
static void a_folder_has_an_identity(void)
{
    pn_engine *e = NULL;
    pn_model *m[3] = {NULL};
    pn_identity id[3];
    pn_err err = {0};
    apart x;
    golden_case c;
    const family *f = &families[0];
    if (!PN_CHECK(golden_load(&c, "tests/vectors/golden/arch", f->name) && apart_make(&x, f, c.path)))
        return;
    PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK, "%s", err.text);
    for (int i = 0; i < 3; i++) {
        const pn_model_params p = {.residency = i == 1 ? PN_RESIDENCY_STREAM : PN_RESIDENCY_MAP};
        if (PN_CHECK(pn_model_load(e, i < 2 ? x.dir : c.path, &p, &m[i], &err) == PN_OK, "%s", err.text))
            PN_CHECK(pn_model_identity(m[i], &id[i], &err) == PN_OK, "%s", err.text);
    }
    for (int k = 0; k < PN_ID_PARTS; k++)
        PN_CHECK(memcmp(id[0].part[k], id[1].part[k], sizeof id[0].part[k]) == 0, "part %d", k);
    PN_CHECK(memcmp(id[0].part[PN_ID_ROPE], id[2].part[PN_ID_ROPE], sizeof id[0].part[0]) != 0);
    PN_CHECK(memcmp(id[0].part[PN_ID_VOCAB], id[2].part[PN_ID_VOCAB], sizeof id[0].part[0]) != 0);
    for (int i = 0; i < 3; i++)
        pn_model_free(m[i]);
    pn_engine_close(e);
    apart_free(&x);
    golden_free(&c);
}

int main(void)
{
    a_folder_has_an_identity();
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        logits_are_the_references(&families[i]);
    return pn_test_end();
}
