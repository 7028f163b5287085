/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_hf_dir.c - a Hugging Face folder becomes a directory of tensors: every family's names, experts in one tensor or in many,
 * what is computed on the way in, and every disagreement between config.json, index and files.
 */
#define _XOPEN_SOURCE 700       /* mkdtemp */
#include "pth_image.h"

#include "format/pn_hf_dir.h"
#include "format/pn_hf_names.h"
#include "model/pn_desc.h"
#include "num/pn_half.h"
#include "serve/pn_server_int.h"

#include <sys/stat.h>
#include <unistd.h>

/* --- making folders ------------------------------------------------------------------------------- */

enum { MADE_MAX = 160 };

typedef struct made_tensor {
    char name[PN_HF_NAME_MAX];
    char dtype[8];
    uint32_t rank;
    uint64_t shape[8];
} made_tensor;

typedef struct made {
    char dir[64];
    made_tensor t[MADE_MAX];
    int n;
    int odd;                    /* bytes by which the data section is off */
} made;

static void made_file(const made *m, const char *name, const void *bytes, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", m->dir, name);
    FILE *f = fopen(path, "wb");
    if (PN_CHECK(f != NULL, "%s", path)) {
        fwrite(bytes, 1, n, f);
        fclose(f);
    }
}

static const char *quoted(const char *config)
{
    static char text[4096];
    snprintf(text, sizeof text, "%s", config);
    for (char *p = text; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    return text;
}

static made *made_new(const char *config)
{
    made *m = calloc(1, sizeof *m);
    snprintf(m->dir, sizeof m->dir, "/tmp/pn_hf_XXXXXX");
    PN_CHECK(mkdtemp(m->dir) != NULL);
    const char *text = quoted(config);
    made_file(m, "config.json", text, strlen(text));
    return m;
}

static made_tensor *made_add(made *m, const char *name, const char *dtype, uint64_t rows, uint64_t cols)
{
    made_tensor *t = &m->t[m->n++];
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    t->rank = rows ? 2 : 1;
    t->shape[0] = rows ? rows : cols;
    t->shape[1] = cols;
    return t;
}

/* Four of them in one. */
static void made_stack(made_tensor *t)
{
    t->rank = 3;
    t->shape[2] = t->shape[1];
    t->shape[1] = t->shape[0];
    t->shape[0] = 4;
}

static size_t made_elem(const made_tensor *t)
{
    return strncmp(t->dtype, "F8", 2) == 0 ? 1 : strchr("BF", t->dtype[0]) && strstr(t->dtype, "16") ? 2 : strstr(t->dtype, "64") ? 8 : 4;
}

static size_t made_elems(const made_tensor *t)
{
    size_t n = 1;
    for (uint32_t k = 0; k < t->rank; k++)
        n *= (size_t)t->shape[k];
    return n;
}

/* What is element i of a tensor: small and exact in every type. */
static double made_value(const char *name, size_t i) { return ((double)((strlen(name) * 7 + i * 3) % 61) - 30) / 8; }

static made_tensor *made_find(made *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->t[i].name, name) == 0)
            return &m->t[i];
    PN_CHECK(0, "there is no %s", name);
    return NULL;
}

/* All tensors of the model that the configuration describes, one an expert. */
static void made_model(made *m, const char *config, const char *prefix, const char *dtype)
{
    pn_mem mem;
    pn_hf_config c;
    pn_gguf_writer w;
    pn_hf_want want;
    pn_err err = {0};
    pn_mem_init_libc(&mem);
    pn_gguf_writer_init(&w, &mem);
    const char *text = quoted(config);
    PN_CHECK(pn_hf_config_read(&c, &mem, "x", (pn_bytes){text, strlen(text)}, (pn_bytes){NULL, 0}, &w, &err) == PN_OK, "%s", err.text);
    for (uint32_t il = 0; il <= c.n_layers; il++)
        for (uint32_t i = 0; pn_hf_want_at(&c, il < c.n_layers, i, &want); i++)
            for (uint32_t e = 0; e < (want.how == PN_HF_STACK ? c.n_expert : 1u); e++) {
                char name[PN_HF_NAME_MAX], full[PN_HF_NAME_MAX];
                pn_hf_spell(name, sizeof name, want.names[0], il, e);
                snprintf(full, sizeof full, "%s%.100s", strcmp(name, "lm_head.weight") ? prefix : "", name);
                made_add(m, full, dtype, want.rows, want.cols);
            }
    pn_hf_config_fini(&c);
    pn_gguf_writer_fini(&w);
}

static void made_put(uint8_t *p, const made_tensor *t, double v)
{
    float f = (float)v;
    uint16_t h = t->dtype[0] == 'B' ? (uint16_t)(pn_f32_bits(f) >> 16) : (uint16_t)pn_f16_from_f32(f);
    switch (made_elem(t)) {
    case 1: *p = (uint8_t)((int)v + 64); break;
    case 2: memcpy(p, &h, 2); break;
    case 8: memcpy(p, &v, 8); break;
    default: memcpy(p, &f, 4); break;
    }
}

static void made_write(const made *m, const char *name)
{
    size_t at = 0, len = 0, cap = 400 * (size_t)(m->n + 1);
    char *json = malloc(cap);
    len += (size_t)snprintf(json + len, cap - len, "{");
    for (int i = 0; i < m->n; i++) {
        const made_tensor *t = &m->t[i];
        size_t bytes = made_elems(t) * made_elem(t);
        len += (size_t)snprintf(json + len, cap - len, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "", t->name, t->dtype);
        for (uint32_t k = 0; k < t->rank; k++)
            len += (size_t)snprintf(json + len, cap - len, "%s%" PRIu64, k ? "," : "", t->shape[k]);
        len += (size_t)snprintf(json + len, cap - len, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
        at += bytes;
    }
    len += (size_t)snprintf(json + len, cap - len, "}");
    while (len % 8 != (size_t)m->odd)
        json[len++] = ' ';
    uint8_t *file = calloc(1, 8 + len + at), *p = file + 8 + len;
    for (int k = 0; k < 8; k++)
        file[k] = (uint8_t)((uint64_t)len >> 8 * k);
    memcpy(file + 8, json, len);
    for (int i = 0; i < m->n; i++)
        for (size_t k = 0; k < made_elems(&m->t[i]); k++, p += made_elem(&m->t[i]))
            made_put(p, &m->t[i], made_value(m->t[i].name, k));
    made_file(m, name, file, 8 + len + at);
    free(json);
    free(file);
}

static void made_free(made *m)
{
    static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
                                        "a.safetensors", "b.safetensors", "adapter_config.json", "pytorch_model.bin"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", m->dir, files[i]);
        unlink(path);
    }
    PN_CHECK(rmdir(m->dir) == 0, "%s", m->dir);
    free(m);
}

/* --- looking at them ------------------------------------------------------------------------------ */

typedef struct open_dir {
    pn_test_mem mem;
    pn_weights w;
    pn_err err;
    pn_status st;
} open_dir;

static void dir_open(open_dir *o, const char *path, bool map, long fail_at)
{
    memset(o, 0, sizeof *o);
    pn_test_mem_init(&o->mem, fail_at);
    o->st = pn_weights_open_path(&o->w, &o->mem.mem, path, map, &o->err);
}

static void dir_close(open_dir *o)
{
    pn_weights_close(&o->w);
    PN_CHECK(o->mem.outstanding == 0, "%ld blocks are left", o->mem.outstanding);
}

/* Elements [from, from + n) of ours are those of `theirs`, `plus` added. */
static void holds(open_dir *o, const char *ours, uint32_t dtype, size_t from, const char *theirs, size_t their_from, size_t n, double plus)
{
    const pn_dir_tensor *d = pn_weights_find(&o->w, ours);
    if (!PN_CHECK(d && d->t->dtype == dtype, "%s of type %u, expected %u", ours, d ? (unsigned)d->t->dtype : 0u, (unsigned)dtype))
        return;
    size_t size = dtype == PN_DTYPE_F32 ? 4 : 2, wrong = 0;
    uint8_t *raw = malloc(n * size);
    PN_CHECK(pn_weights_read(&o->w, d, from * size, raw, n * size, &o->err) == PN_OK, "%s", o->err.text);
    for (size_t i = 0; i < n; i++) {
        float f;
        uint16_t h;
        memcpy(&f, raw + i * size, size == 4 ? 4 : 2);
        memcpy(&h, raw + i * size, 2);
        if (size == 2)
            f = dtype == PN_DTYPE_BF16 ? pn_f32_from_bf16(h) : pn_f32_from_f16(h);
        wrong += (double)f != made_value(theirs, their_from + i) + plus;
    }
    PN_CHECK(wrong == 0, "%s: %zu of %zu elements are not those of %s", ours, wrong, n, theirs);
    free(raw);
}

/* --- every family --------------------------------------------------------------------------------- */

#define SMALL "'hidden_size':16,'num_hidden_layers':2,'intermediate_size':24,'num_attention_heads':4,'num_key_value_heads':2,'vocab_size':40,'max_position_embeddings':64"
#define EXPERTS ",'num_experts':4,'num_experts_per_tok':2,'moe_intermediate_size':12,'shared_expert_intermediate_size':8"

static const char *const families[] = {
    "{'model_type':'llama'," SMALL "}",
    "{'model_type':'llama','attention_bias':true,'mlp_bias':true," SMALL "}",
    "{'model_type':'mistral'," SMALL "}",
    "{'model_type':'mistral','sliding_window':8," SMALL "}",
    "{'model_type':'ministral3','head_dim':4," SMALL "}",
    "{'model_type':'mixtral','num_local_experts':4," SMALL "}",
    "{'model_type':'qwen2','use_sliding_window':true,'max_window_layers':1,'sliding_window':8," SMALL "}",
    "{'model_type':'qwen2_moe'," SMALL EXPERTS "}",
    "{'model_type':'qwen3','head_dim':8," SMALL "}",
    "{'model_type':'qwen3_moe','norm_topk_prob':true," SMALL EXPERTS "}",
    "{'model_type':'phi3'," SMALL "}",
    "{'model_type':'gemma2','head_dim':4,'query_pre_attn_scalar':5," SMALL "}",
    "{'model_type':'gemma3_text','head_dim':4,'sliding_window':8,'query_pre_attn_scalar':4," SMALL "}",
    "{'model_type':'gemma3','text_config':{'model_type':'gemma3_text','head_dim':4,'query_pre_attn_scalar':4," SMALL "},'vision_config':{}}",
};

static void every_family_is_found_and_can_be_planned(void)
{
    static const char *const dtypes[] = {"BF16", "F16", "F32"};
    static const char *const prefixes[] = {"model.", "language_model.model.", "model.language_model.", "_orig_mod.module.model."};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        made *m = made_new(families[i]);
        made_model(m, families[i], prefixes[i % 4], dtypes[i % 3]);
        made_write(m, "model.safetensors");
        open_dir o;
        pn_desc d;
        pn_plan plan;
        dir_open(&o, m->dir, i % 2 == 0, 0);
        PN_CHECK(o.st == PN_OK, "%s: %s", families[i], o.err.text);
        for (int header = 0; header < 2 && !o.st; header++) {
            if (!PN_CHECK(pn_desc_open(&d, &o.mem.mem, &o.w, header, &o.err) == PN_OK, "%s: %s", families[i], o.err.text))
                break;
            PN_CHECK(d.n_weights == o.w.n_tensors, "%s: %zu of %zu tensors are used", families[i], d.n_weights, o.w.n_tensors);
            if (PN_CHECK(pn_desc_plan(&d, &plan, 4, 4, 64, false, &o.err) == PN_OK, "%s", o.err.text))
                pn_plan_free(&plan, &o.mem.mem);
            pn_desc_close(&d);
        }
        dir_close(&o);
        made_free(m);
    }
}

/* --- what is where -------------------------------------------------------------------------------- */

static void experts_may_be_one_tensor_or_many(void)
{
    const char *config = families[9];
    for (int fused = 0; fused < 2; fused++) {
        made *m = made_new(config);
        open_dir o;
        char name[100], ours[64];
        made_model(m, config, "model.", "F32");
        for (int i = 0; i < m->n && fused;)         /* away with them */
            if (strstr(m->t[i].name, ".experts."))
                m->t[i] = m->t[--m->n];
            else
                i++;
        for (int il = 0; il < 2 && fused; il++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", il);
            made_stack(made_add(m, name, "BF16", 24, 16));
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", il);
            made_stack(made_add(m, name, "BF16", 16, 12));
        }
        made_write(m, "model.safetensors");
        dir_open(&o, m->dir, true, 0);
        PN_CHECK(o.st == PN_OK, "%s", o.err.text);
        static const char *const stacks[] = {"gate", "up", "down"};
        for (size_t e = 0; e < 4 && !o.st; e++)
            for (size_t k = 0; k < 3; k++) {
                snprintf(ours, sizeof ours, "blk.1.ffn_%s_exps.weight", stacks[k]);
                if (fused)
                    snprintf(name, sizeof name, "model.layers.1.mlp.experts.%s", k < 2 ? "gate_up_proj" : "down_proj");
                else
                    snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.%s_proj.weight", (int)e, stacks[k]);
                holds(&o, ours, fused ? PN_DTYPE_BF16 : PN_DTYPE_F32, e * 192, name, !fused ? 0 : k < 2 ? e * 384 + k * 192 : e * 192, 192, 0);
            }
        dir_close(&o);
        made_free(m);
    }
}

/* A file of torch of it; its storage begins at a multiple of 4. */
static img made_archive(const img *pickle, const img *data, bool big)
{
    static const char last[] = "archive/data/0";
    for (unsigned fill = 0;; fill++) {
        img p = {0};
        put(&p, pickle->b, pickle->n);
        pk_str(&p, "fill");
        pk_str(&p, "    " + fill % 4);
        img file = pth_of(p, data->b, data->n, big ? "big" : "little");
        size_t at = 0;
        while (memcmp(file.b + at, last, sizeof last - 1) != 0)
            at++;
        if ((at + sizeof last - 1 + 31) % 4 == 0 || fill > 3)
            return file;
        img_free(&file);
    }
}

/* All of them in one storage of a file of torch; those with `part` in their names transposed.  big: turned. */
static void made_write_bin(const made *m, const char *part, bool big)
{
    img pickle = pk_begin(), data = {0};
    size_t all = 0;
    for (int i = 0; i < m->n; i++)
        all += made_elems(&m->t[i]);
    for (int i = 0; i < m->n; i++) {
        const made_tensor *t = &m->t[i];
        size_t first = data.n / 4, n = made_elems(t), cols = (size_t)t->shape[t->rank - 1], rows = t->rank > 1 ? (size_t)t->shape[t->rank - 2] : 1;
        bool turned = part && strstr(t->name, part) && t->rank > 1;
        int64_t shape[3], stride[3] = {(int64_t)(rows * cols), (int64_t)cols, 1};
        for (uint32_t k = 0; k < t->rank; k++)
            shape[k] = (int64_t)t->shape[k];
        if (turned) {
            stride[1] = 1;
            stride[2] = (int64_t)rows;
        }
        for (size_t e = 0; e < n; e++) {            /* in the order of the storage */
            size_t in = e % (rows * cols), from = turned ? e - in + in % rows * cols + in / rows : e;
            uint32_t bits = pn_f32_bits((float)made_value(t->name, from));
            for (int k = 0; k < 4; k++)
                put8(&data, bits >> 8 * (big ? 3 - k : k) & 255);
        }
        pk_tensor(&pickle, t->name, (int64_t)all, (int64_t)first, shape, stride + 3 - t->rank, t->rank);
    }
    img file = made_archive(&pickle, &data, big);
    made_file(m, "pytorch_model.bin", file.b, file.n);
    img_free(&file);
    img_free(&pickle);
    img_free(&data);
}

/* Experts of a .bin, in one tensor each or in all, some of them or all with elements that do not follow each other. */
static void experts_of_torch_are_gathered(void)
{
    static const struct { const char *part; bool fused, big; int copied; } rows[] = {
        {NULL, false, false, 0}, {"experts.2.", false, false, 3}, {"experts.", false, false, 3}, {NULL, false, true, 3},
        {NULL, true, false, 0}, {"experts.gate_up", true, false, 2}, {"experts.", true, false, 3}, {NULL, true, true, 3}};
    static const char *const stacks[] = {"gate", "up", "down"};
    const char *config = families[9];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        made *m = made_new(config);
        open_dir o;
        char name[100], ours[64];
        int copied = 0;
        made_model(m, config, "model.", "F32");
        for (int k = 0; k < m->n && rows[i].fused;)
            if (strstr(m->t[k].name, ".experts."))
                m->t[k] = m->t[--m->n];
            else
                k++;
        for (int il = 0; il < 2 && rows[i].fused; il++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", il);
            made_stack(made_add(m, name, "F32", 24, 16));
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", il);
            made_stack(made_add(m, name, "F32", 16, 12));
        }
        made_write_bin(m, rows[i].part, rows[i].big);
        dir_open(&o, m->dir, i % 2 == 0, 0);
        PN_CHECK(o.st == PN_OK, "%zu: %s", i, o.err.text);
        for (size_t k = 0; k < 3 && !o.st; k++) {
            snprintf(ours, sizeof ours, "blk.1.ffn_%s_exps.weight", stacks[k]);
            const pn_dir_tensor *d = pn_weights_find(&o.w, ours);
            copied += d && d->part == 0;
            for (size_t e = 0; e < 4; e++) {
                if (rows[i].fused)
                    snprintf(name, sizeof name, "model.layers.1.mlp.experts.%s", k < 2 ? "gate_up_proj" : "down_proj");
                else
                    snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.%s_proj.weight", (int)e, stacks[k]);
                holds(&o, ours, PN_DTYPE_F32, e * 192, name, !rows[i].fused ? 0 : k < 2 ? e * 384 + k * 192 : e * 192, 192, 0);
            }
        }
        PN_CHECK(copied == rows[i].copied, "%zu: %d stacks are copied, expected %d", i, copied, rows[i].copied);
        dir_close(&o);
        for (long f = 1; i == 1 || i == 6; f++) {
            dir_open(&o, m->dir, true, f);
            bool done = o.st == PN_OK && o.mem.n_calls < f;
            PN_CHECK(o.st == PN_OK || o.st == PN_E_NOMEM, "%ld: %d %s", f, (int)o.st, o.err.text);
            dir_close(&o);
            if (done)
                break;
        }
        made_free(m);
    }
}

/* As in files, a matrix of one row is f32. */
static void a_quantised_row_is_f32(void)
{
    static const char config[] = "{'quantization_config':{'quant_method':'fp8'},'model_type':'qwen2_moe'," SMALL EXPERTS "}";
    static const char gate[] = "model.layers.1.mlp.shared_expert_gate.weight", scale[] = "model.layers.1.mlp.shared_expert_gate.weight_scale_inv";
    made *m = made_new(config);
    open_dir o;
    pn_desc d;
    float row[16];
    made_model(m, config, "model.", "F32");
    snprintf(made_find(m, gate)->dtype, 8, "F8_E4M3");
    made_add(m, scale, "F32", 0, 1);
    made_write(m, "model.safetensors");
    dir_open(&o, m->dir, true, 0);
    const pn_dir_tensor *t = o.st ? NULL : pn_weights_find(&o.w, "blk.1.ffn_gate_inp_shexp.weight");
    PN_CHECK(t && t->packed && t->t->dtype == PN_DTYPE_F32 && t->t == t->file && o.w.n_retyped == 1, "%s", o.err.text);
    if (t && PN_CHECK(pn_weights_read(&o.w, t, 0, row, sizeof row, &o.err) == PN_OK && pn_desc_open(&d, &o.mem.mem, &o.w, false, &o.err) == PN_OK, "%s", o.err.text)) {
        for (size_t e = 0; e < 16; e++)
            PN_CHECK(row[e] == pn_f32_from_e4m3((uint8_t)((int)made_value(gate, e) + 64)) * (float)made_value(scale, 0), "%zu", e);
        pn_desc_close(&d);
    }
    dir_close(&o);
    made_free(m);
}

static void norms_stored_minus_one_are_computed(void)
{
    const char *config = families[12];
    made *m = made_new(config);
    open_dir o;
    made_model(m, config, "model.", "BF16");
    snprintf(made_find(m, "model.layers.0.mlp.up_proj.weight")->dtype, 8, "F64");
    snprintf(made_find(m, "model.layers.1.input_layernorm.weight")->dtype, 8, "F64");
    made_write(m, "model.safetensors");
    dir_open(&o, m->dir, true, 0);
    PN_CHECK(o.st == PN_OK, "%s", o.err.text);
    holds(&o, "blk.0.attn_norm.weight", PN_DTYPE_F32, 0, "model.layers.0.input_layernorm.weight", 0, 16, 1);
    holds(&o, "blk.1.attn_norm.weight", PN_DTYPE_F32, 0, "model.layers.1.input_layernorm.weight", 0, 16, 1);
    holds(&o, "blk.1.attn_k_norm.weight", PN_DTYPE_F32, 0, "model.layers.1.self_attn.k_norm.weight", 0, 4, 1);
    holds(&o, "blk.1.post_ffw_norm.weight", PN_DTYPE_F32, 0, "model.layers.1.post_feedforward_layernorm.weight", 0, 16, 1);
    holds(&o, "blk.1.ffn_norm.weight", PN_DTYPE_F32, 0, "model.layers.1.pre_feedforward_layernorm.weight", 0, 16, 1);
    holds(&o, "output_norm.weight", PN_DTYPE_F32, 0, "model.norm.weight", 0, 16, 1);
    holds(&o, "blk.0.ffn_up.weight", PN_DTYPE_F32, 0, "model.layers.0.mlp.up_proj.weight", 0, 24 * 16, 0);
    holds(&o, "blk.1.attn_v.weight", PN_DTYPE_BF16, 0, "model.layers.1.self_attn.v_proj.weight", 0, 8 * 16, 0);
    dir_close(&o);
    made_free(m);
}

/* Only data at an address that is no multiple of an element's size is copied. */
static void odd_addresses_are_copied(void)
{
    static const struct { const char *dtype; int odd; int copied; } rows[] = {{"BF16", 2, 0}, {"BF16", 5, 1}, {"F32", 4, 0}, {"F32", 2, 1}, {"F32", 1, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        made *m = made_new(families[5]);
        open_dir o;
        made_model(m, families[5], "model.", rows[i].dtype);
        m->odd = rows[i].odd;
        made_write(m, "model.safetensors");
        dir_open(&o, m->dir, true, 0);
        PN_CHECK(o.st == PN_OK, "%s", o.err.text);
        const pn_dir_tensor *d = o.st ? NULL : pn_weights_find(&o.w, "blk.0.attn_q.weight"), *x = o.st ? NULL : pn_weights_find(&o.w, "blk.1.ffn_up_exps.weight");
        uint32_t dtype = rows[i].dtype[0] == 'B' ? PN_DTYPE_BF16 : PN_DTYPE_F32;
        PN_CHECK(d && x && (d->part == 0) == rows[i].copied && (x->part == 0) == rows[i].copied && (x->pieces == NULL) == rows[i].copied);
        PN_CHECK(d && (uintptr_t)pn_weights_ptr(&o.w, d) % made_elem(&m->t[0]) == 0);
        holds(&o, "blk.0.attn_q.weight", dtype, 0, "model.layers.0.self_attn.q_proj.weight", 0, 256, 0);
        holds(&o, "blk.1.ffn_up_exps.weight", dtype, 3 * 384, "model.layers.1.mlp.experts.3.up_proj.weight", 0, 384, 0);
        holds(&o, "blk.1.ffn_norm.weight", dtype, 0, "model.layers.1.post_attention_layernorm.weight", 0, 16, 0);
        dir_close(&o);
        made_free(m);
    }
}

static void the_head_may_be_missing(void)
{
    for (int tied = 0; tied < 2; tied++) {
        const char *config = tied ? "{'model_type':'llama','tie_word_embeddings':true," SMALL "}" : families[0];
        made *m = made_new(config);
        open_dir o;
        made_model(m, config, "model.", "BF16");
        m->n--;                                     /* it is the last one */
        made_write(m, "model.safetensors");
        dir_open(&o, m->dir, true, 0);
        PN_CHECK(o.st == PN_OK && !pn_weights_find(&o.w, "output.weight"), "%s", o.err.text);
        PN_CHECK(!o.st && (o.w.hf->warning != NULL) == !tied);
        dir_close(&o);
        made_free(m);
    }
}

static void a_single_file_brings_its_folder(void)
{
    open_dir o;
    made *m = made_new(families[0]);
    char path[128];
    made_model(m, families[0], "model.", "BF16");
    made_write(m, "a.safetensors");
    snprintf(path, sizeof path, "%s/a.safetensors", m->dir);
    dir_open(&o, path, true, 0);
    PN_CHECK(o.st == PN_OK && pn_weights_find(&o.w, "output.weight") && strcmp(o.w.parts[0].path, path) == 0, "%s", o.err.text);
    dir_close(&o);
    dir_open(&o, m->dir, true, 0);
    PN_CHECK(o.st == PN_E_FORMAT && strstr(o.err.text, "model.safetensors.index.json"), "%s", o.err.text);
    dir_close(&o);
    made_free(m);
}

static void useless_tensors_are_skipped(void)
{
    open_dir o;
    made *m = made_new(families[13]);
    made_model(m, families[13], "language_model.model.", "BF16");
    made_add(m, "vision_tower.x.weight", "BF16", 3, 3);
    made_add(m, "multi_modal_projector.y", "BF16", 3, 3);
    made_add(m, "language_model.model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 0, 2);
    made_add(m, "mtp.layers.0.x", "I32", 0, 2);
    made_write(m, "model.safetensors");
    dir_open(&o, m->dir, true, 0);
    PN_CHECK(o.st == PN_OK, "%s", o.err.text);
    dir_close(&o);
    made_free(m);
}

/* --- refusals ------------------------------------------------------------------------------------- */

static void refused(made *m, pn_status st, const char *say, const char *more)
{
    open_dir o;
    dir_open(&o, m->dir, true, 0);
    PN_CHECK(o.st == st && strstr(o.err.text, say) && strstr(o.err.text, more) && strstr(o.err.text, m->dir), "expected '%s', '%s': %d %s", say, more, (int)o.st, o.err.text);
    dir_close(&o);
    made_free(m);
}

static made *usual(int family)
{
    made *m = made_new(families[family]);
    made_model(m, families[family], "model.", "BF16");
    return m;
}

static void disagreements_are_refused_by_name(void)
{
    made *m = usual(0);
    made_find(m, "model.layers.1.mlp.up_proj.weight")->name[0] = 'x';
    made_write(m, "model.safetensors");
    refused(m, PN_E_FORMAT, "'model.layers.1.mlp.up_proj.weight' is missing", "num_hidden_layers is 2");
    m = usual(0);
    made_add(m, "model.layers.2.input_layernorm.weight", "BF16", 0, 16);
    made_write(m, "model.safetensors");
    refused(m, PN_E_FORMAT, "'model.layers.2.input_layernorm.weight' belongs to nothing", "2 layers");
    m = usual(0);
    made_add(m, "model.layers.0.self_attn.q_proj.bias", "BF16", 0, 16);
    made_write(m, "model.safetensors");
    refused(m, PN_E_FORMAT, "'model.layers.0.self_attn.q_proj.bias' belongs to nothing", "model.safetensors");
    m = usual(0);
    made_add(m, "vision_tower.x", "BF16", 0, 16);
    made_write(m, "model.safetensors");
    refused(m, PN_E_FORMAT, "'vision_tower.x' belongs to nothing", "");
    m = usual(0);
    made_find(m, "model.embed_tokens.weight")->shape[0] = 41;
    made_write(m, "model.safetensors");
    refused(m, PN_E_FORMAT, "shape [41, 16], expected 40 x 16", "vocab_size, hidden_size");
    m = usual(0);
    made_find(m, "model.layers.1.self_attn.k_proj.weight")->shape[0] = 16;
    made_write(m, "model.safetensors");
    refused(m, PN_E_FORMAT, "k_proj.weight' has shape [16, 16], expected 8 x 16", "num_key_value_heads");
    m = usual(0);
    made_find(m, "model.norm.weight")->shape[0] = 8;
    made_write(m, "model.safetensors");
    refused(m, PN_E_FORMAT, "'model.norm.weight' has shape [8], expected 16", "hidden_size");
    m = usual(0);
    made_tensor *wide = made_find(m, "model.norm.weight");
    wide->rank = 8;
    for (int k = 0; k < 8; k++)
        wide->shape[k] = k ? INT64_MAX : 0;
    made_write(m, "model.safetensors");
    refused(m, PN_E_FORMAT, "'model.norm.weight' has shape [0, 9223372036854775807, ", "9223372036854775807], expected 16");
    m = usual(0);
    snprintf(made_find(m, "model.norm.weight")->dtype, 8, "I32");
    made_write(m, "model.safetensors");
    refused(m, PN_E_UNSUPPORTED, "'model.norm.weight' has type I32", "BF16");
    m = usual(0);
    made_add(m, "language_model.model.norm.weight", "BF16", 0, 16);
    made_write(m, "model.safetensors");
    refused(m, PN_E_FORMAT, "are the same one", "norm.weight");
    m = usual(5);
    made_find(m, "model.layers.1.mlp.experts.3.up_proj.weight")->name[0] = 'x';
    made_write(m, "model.safetensors");
    refused(m, PN_E_FORMAT, "'model.layers.1.mlp.experts.3.up_proj.weight' is missing", "fewer experts");
    m = usual(5);
    made_add(m, "model.layers.1.mlp.experts.4.up_proj.weight", "BF16", 24, 16);
    made_write(m, "model.safetensors");
    refused(m, PN_E_FORMAT, "experts.4.up_proj.weight' belongs to nothing", "");
    m = usual(5);
    snprintf(made_find(m, "model.layers.1.mlp.experts.3.up_proj.weight")->dtype, 8, "F32");
    made_write(m, "model.safetensors");
    refused(m, PN_E_UNSUPPORTED, "experts.3.up_proj.weight' has type F32, expected BF16", "expert 0");
}

static void copy_file(const made *m, const char *from, const char *name)
{
    size_t n = 0;
    char *bytes = pn_test_read_file(from, &n);
    if (PN_CHECK(bytes != NULL, "%s", from))
        made_file(m, name, bytes, n);
    free(bytes);
}

static void folders_that_are_no_model_are_refused(void)
{
    made *m = usual(0);
    made_write(m, "a.safetensors");
    static const char one[] = "{\"weight_map\": {\"model.norm.weight\": \"a.safetensors\"}}";
    made_file(m, "model.safetensors.index.json", one, sizeof one - 1);
    refused(m, PN_E_FORMAT, "a.safetensors", "index");
    m = usual(0);
    copy_file(m, "tests/vectors/hf/hostile/index_escape/model.safetensors.index.json", "model.safetensors.index.json");
    refused(m, PN_E_FORMAT, "model.safetensors.index.json", "");
    m = usual(0);
    copy_file(m, "tests/vectors/hf/hostile/index_missing/model.safetensors.index.json", "model.safetensors.index.json");
    refused(m, PN_E_IO, "model-0000", "");
    m = usual(0);
    refused(m, PN_E_FORMAT, "there is none of model.safetensors", "pytorch_model.bin");
    m = usual(0);
    made_file(m, "pytorch_model.bin", "x", 1);
    refused(m, PN_E_FORMAT, "pytorch_model.bin: ", "");
    m = usual(0);
    copy_file(m, "tests/vectors/hf/hostile/global_system.pth", "pytorch_model.bin");
    refused(m, PN_E_UNSUPPORTED, "system", "");
    m = usual(0);
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", m->dir);
    unlink(path);
    made_file(m, "adapter_config.json", "{}", 2);
    refused(m, PN_E_UNSUPPORTED, "adapter", "not a model");
}

/* The same model by torch: a transposed matrix, two in one storage, the head and the embedding one view. */
static void a_bin_holds_the_same_tensors(void)
{
    static const char *const files[] = {"tests/vectors/hf/pth/qwen3_tied.pth", "tests/vectors/hf/pth/qwen3_tied_legacy.pth"};
    for (size_t k = 0; k < 2; k++) {
        made *m = made_new("{}");
        open_dir a, b;
        size_t copied = 0;
        copy_file(m, "tests/vectors/hf/qwen3_tied/config.json", "config.json");
        copy_file(m, files[k], "pytorch_model.bin");
        dir_open(&a, "tests/vectors/hf/qwen3_tied", true, 0);
        dir_open(&b, m->dir, k == 0, 0);
        PN_CHECK(a.st == PN_OK && b.st == PN_OK, "%s%s", a.err.text, b.err.text);
        for (size_t i = 0; i < a.w.n_tensors && !b.st; i++) {
            const pn_dir_tensor *x = &a.w.tensors[i], *y = pn_weights_find(&b.w, x->t->name);
            size_t n = (size_t)x->t->bytes;
            if (!PN_CHECK(y && y->t->bytes == n && y->t->dtype == x->t->dtype, "%s", x->t->name))
                continue;
            uint8_t *p = malloc(n), *q = malloc(n);
            PN_CHECK(pn_weights_read(&a.w, x, 0, p, n, NULL) == PN_OK && pn_weights_read(&b.w, y, 0, q, n, NULL) == PN_OK && memcmp(p, q, n) == 0, "%s", x->t->name);
            copied += y->part == 0;
            free(p);
            free(q);
        }
        PN_CHECK(copied >= 1 && (k || copied < 5), "%zu tensors are copies", copied);     /* the old form aligns nothing */
        dir_close(&a);
        dir_close(&b);
        for (long f = 1; k == 0; f++) {
            dir_open(&b, m->dir, true, f);
            bool done = b.st == PN_OK && b.mem.n_calls < f;
            PN_CHECK(b.st == PN_OK || b.st == PN_E_NOMEM, "%ld: %d %s", f, (int)b.st, b.err.text);
            dir_close(&b);
            if (done)
                break;
        }
        made_free(m);
    }
}

static void every_allocation_may_fail(void)
{
    static const int which[] = {0, 5, 12};
    for (size_t i = 0; i < 3; i++) {
        made *m = usual(which[i]);
        made_file(m, "generation_config.json", "{\"top_k\": 4}", 12);
        m->odd = i == 1;
        made_write(m, "model.safetensors");
        for (long k = 1;; k++) {
            open_dir o;
            dir_open(&o, m->dir, true, k);
            bool done = o.st == PN_OK && o.mem.n_calls < k;
            PN_CHECK(o.st == PN_OK || o.st == PN_E_NOMEM, "%ld: %d %s", k, (int)o.st, o.err.text);
            dir_close(&o);
            if (done)
                break;
        }
        made_free(m);
    }
}

/* Somebody only looks: all of a file's tensors, by the names they have there. */
static void tensors_alone_can_be_looked_at(void)
{
    static const struct { const char *path; size_t n; } rows[] = {
        {"tests/vectors/hf/st/odd.safetensors", 7}, {"tests/vectors/hf/pth/odd.pth", 90}, {"tests/vectors/hf/pth/qwen3_tied_legacy.pth", 25},
        {"tests/vectors/hf/hostile/many_empty.safetensors", 0}, {"tests/vectors/hf/hostile/cut.safetensors", 0},
        {"tests/vectors/hf/hostile/expand_huge.pth", 0}, {"tests/vectors/hf/hostile/global_system.pth", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (long k = 0;; k++) {                /* 0: nothing fails */
            open_dir o = {.st = PN_OK};
            pn_test_mem_init(&o.mem, k);
            o.st = pn_weights_look(&o.w, &o.mem.mem, rows[i].path, &o.err);
            bool done = k && o.mem.n_calls < k;
            if (k)
                PN_CHECK(o.st == PN_E_NOMEM || done, "%s %ld: %d %s", rows[i].path, k, (int)o.st, o.err.text);
            else if (rows[i].n)
                PN_CHECK(o.st == PN_OK && o.w.bare && o.w.n_tensors == rows[i].n && o.w.n_parts == 2 && o.w.gguf[0].n_kv == 0, "%s", o.err.text);
            else
                PN_CHECK(o.st == PN_OK ? o.w.n_tensors == 1000 : strstr(o.err.text, rows[i].path) != NULL, "%s: %s", rows[i].path, o.err.text);
            for (size_t t = 0; t < o.w.n_tensors && !o.st; t++)
                PN_CHECK(pn_hf_dir_type(o.w.hf, t) && o.w.tensors[t].t->offset + (o.w.tensors[t].t->dtype == PN_DTYPE_COUNT) > 0);
            dir_close(&o);
            if (done)
                break;
        }
    made *m = usual(0);
    made_add(m, "model.a", "F32", 0, 4);
    made_add(m, "a", "F32", 0, 4);
    made_write(m, "model.safetensors");
    char path[100];
    snprintf(path, sizeof path, "%s/config.json", m->dir);
    remove(path);
    snprintf(path, sizeof path, "%s/model.safetensors", m->dir);
    open_dir o;
    pn_test_mem_init(&o.mem, 0);
    o.st = pn_weights_look(&o.w, &o.mem.mem, path, &o.err);
    PN_CHECK(o.st == PN_OK && pn_weights_find(&o.w, "model.a") && pn_weights_find(&o.w, "a"), "%s", o.err.text);
    dir_close(&o);
    made_free(m);
}

/* The path was the folder's; the model is a file in it. */
static void the_file_that_was_meant_is_named(void)
{
    made *m = usual(0);
    made_file(m, "b-00001-of-00002.gguf", "", 0);
    made_file(m, "a.gguf", "", 0);
    made_file(m, "Mmproj.gguf.part", "", 0);
    for (int i = 0; i < 2; i++) {
        open_dir o;
        char path[100];
        dir_open(&o, m->dir, true, 0);
        PN_CHECK(o.st == PN_E_FORMAT && strstr(o.err.text, "'a.gguf'") && strstr(o.err.text, i ? "config.json" : "pytorch_model.bin"), "%s", o.err.text);
        dir_close(&o);
        snprintf(path, sizeof path, "%s/config.json", m->dir);
        remove(path);
    }
    static const char *const names[] = {"b-00001-of-00002.gguf", "a.gguf", "Mmproj.gguf.part"};
    for (size_t i = 0; i < 3; i++) {
        char path[100];
        snprintf(path, sizeof path, "%s/%s", m->dir, names[i]);
        remove(path);
    }
    made_free(m);
}

static void the_fixtures_open(void)
{
    static const struct { const char *name; size_t tensors; uint32_t parts; } rows[] = {
        {"llama_bf16", 31, 3}, {"qwen3_tied", 24, 2}, {"phi3_f16", 17, 2}, {"mixtral_f32", 23, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        open_dir o;
        char path[100];
        snprintf(path, sizeof path, "tests/vectors/hf/%s%s", rows[i].name, i % 2 ? "/" : "");
        dir_open(&o, path, i < 2, 0);
        PN_CHECK(o.st == PN_OK && o.w.n_tensors == rows[i].tensors && o.w.n_parts == rows[i].parts, "%s: %s %zu", path, o.err.text, o.w.n_tensors);
        pn_bytes s = {NULL, 0};
        const pn_gguf_kv *kv = o.st ? NULL : pn_weights_meta(&o.w, "general.name");
        PN_CHECK(kv && pn_gguf_str(kv, 0, &s) && s.len == strlen(rows[i].name) && memcmp(s.data, rows[i].name, s.len) == 0);
        dir_close(&o);
    }
}

static void a_folder_is_served_under_its_name(void)
{
    static const char *const rows[][2] = {{"models/x.gguf", "x"}, {"x.gguf", "x"}, {"x", "x"}, {"models/Llama-3.2-1B", "Llama-3.2-1B"}, {"/m/Llama/", "Llama"},
                                          {"Llama//", "Llama"}, {"/m/Llama/model.safetensors", "Llama"}, {"model.safetensors", "model.safetensors"}, {"/", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pn_bytes name = serve_file_name(rows[i][0]);
        PN_CHECK(name.len == strlen(rows[i][1]) && memcmp(name.data, rows[i][1], name.len) == 0, "%s: %.*s", rows[i][0], (int)name.len, name.data);
    }
}

int main(void)
{
    a_folder_is_served_under_its_name();
    the_fixtures_open();
    every_family_is_found_and_can_be_planned();
    experts_may_be_one_tensor_or_many();
    experts_of_torch_are_gathered();
    a_quantised_row_is_f32();
    norms_stored_minus_one_are_computed();
    odd_addresses_are_copied();
    the_head_may_be_missing();
    a_single_file_brings_its_folder();
    useless_tensors_are_skipped();
    disagreements_are_refused_by_name();
    folders_that_are_no_model_are_refused();
    a_bin_holds_the_same_tensors();
    tensors_alone_can_be_looked_at();
    the_file_that_was_meant_is_named();
    every_allocation_may_fail();
    return pn_test_end();
}
