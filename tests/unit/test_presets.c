/*
 * test_presets.c - which type each matrix gets: layers, classes, experts, rows that do not fit.
 *
 * Expectations follow the published table of mixtures; whole files were compared with the reference
 * quantiser's (tests/api/test_make.c keeps the sums of those of one small model).
 */
#include "pn_test.h"

#include "engine/pn_presets.h"

typedef struct shape {
    uint32_t n_layers, n_heads, n_heads_kv, n_expert;
    bool tied;
} shape;

static pn_mix preset_open(const char *name, shape s)
{
    pn_mix m;
    pn_err err = {0};
    char text[64];
    PN_CHECK(pn_mix_open(&m, name, &err) == PN_OK, "%s", err.text);
    m.n_layers = s.n_layers;
    m.n_heads = s.n_heads;
    m.n_heads_kv = s.n_heads_kv;
    m.n_expert = s.n_expert;
    pn_mix_note(&m, "token_embd.weight");
    for (uint32_t il = s.n_layers; il-- > 0;) {         /* the order of the file does not matter */
        snprintf(text, sizeof text, "blk.%u.attn_v.weight", (unsigned)il);
        pn_mix_note(&m, text);
    }
    if (!s.tied)
        pn_mix_note(&m, "output.weight");
    return m;
}

static const char *preset_type(const pn_mix *m, const char *name, uint64_t n0, uint64_t n2)
{
    const uint64_t ne[4] = {n0, 512, n2, 1};
    return pn_dtype_name((pn_dtype)pn_mix_type(m, name, PN_DTYPE_F32, n2 > 1 ? 3 : 2, ne));
}

/* Type of blk.<il>.<part>.weight with rows of 1024. */
static const char *preset_layer(const pn_mix *m, const char *part, uint32_t il)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s.weight", (unsigned)il, part);
    return preset_type(m, name, 1024, 1);
}

#define IS(got, want) do { const char *g_ = (got); PN_CHECK(strcmp(g_, want) == 0, "is %s, expected " want, g_); } while (0)

static void more_bits_go_to_the_ends_and_every_third_layer(void)
{
    pn_mix m = preset_open("Q4_K_M", (shape){.n_layers = 32, .n_heads = 32, .n_heads_kv = 8});
    for (uint32_t il = 0; il < 32; il++) {
        bool want = il < 4 || il >= 28 || (il - 4) % 3 == 2;
        PN_CHECK((strcmp(preset_layer(&m, "ffn_down", il), "Q6_K") == 0) == want, "layer %u", (unsigned)il);
        PN_CHECK((strcmp(preset_layer(&m, "attn_v", il), "Q6_K") == 0) == want, "layer %u", (unsigned)il);
        IS(preset_layer(&m, "ffn_up", il), "Q4_K");
        IS(preset_layer(&m, "attn_output", il), "Q4_K");
    }
    IS(preset_type(&m, "output.weight", 1024, 1), "Q6_K");
    IS(preset_type(&m, "token_embd.weight", 1024, 1), "Q4_K");
}

static void each_mixture_follows_its_row(void)
{
    const shape s = {.n_layers = 32, .n_heads = 32, .n_heads_kv = 8}, wide = {.n_layers = 32, .n_heads = 32, .n_heads_kv = 16};
    pn_mix m = preset_open("q2_k", s);
    IS(preset_layer(&m, "attn_v", 9), "Q4_K");
    IS(preset_layer(&m, "attn_output", 9), "Q3_K");
    IS(preset_layer(&m, "ffn_down", 9), "Q3_K");
    IS(preset_layer(&m, "ffn_gate", 9), "Q2_K");
    m = preset_open("Q2_K", wide);
    IS(preset_layer(&m, "attn_v", 9), "Q3_K");
    m = preset_open("Q3_K_M", s);
    IS(preset_layer(&m, "attn_v", 1), "Q5_K");
    IS(preset_layer(&m, "attn_v", 2), "Q4_K");
    IS(preset_layer(&m, "ffn_down", 1), "Q5_K");
    IS(preset_layer(&m, "ffn_down", 2), "Q4_K");
    IS(preset_layer(&m, "attn_output", 2), "Q4_K");
    m = preset_open("Q3_K_L", s);
    IS(preset_layer(&m, "attn_output", 2), "Q5_K");
    IS(preset_layer(&m, "attn_q", 2), "Q3_K");
    m = preset_open("Q4_K_S", s);
    IS(preset_layer(&m, "attn_v", 3), "Q5_K");
    IS(preset_layer(&m, "attn_v", 4), "Q4_K");
    IS(preset_layer(&m, "ffn_down", 3), "Q5_K");
    IS(preset_layer(&m, "ffn_down", 4), "Q4_K");
    m = preset_open("TQ1_0", s);
    IS(preset_type(&m, "token_embd.weight", 1024, 1), "Q4_K");
    IS(preset_layer(&m, "ffn_down", 0), "TQ1_0");
}

static void the_output_matrix_is_finer(void)
{
    const shape s = {.n_layers = 4, .n_heads = 4, .n_heads_kv = 4}, tied = {.n_layers = 4, .n_heads = 4, .n_heads_kv = 4, .tied = true};
    pn_mix m = preset_open("Q4_0", tied);
    IS(preset_type(&m, "token_embd.weight", 1024, 1), "Q6_K");
    m = preset_open("Q4_0", s);
    IS(preset_type(&m, "token_embd.weight", 1024, 1), "Q4_0");
    m = preset_open("Q8_0", s);
    IS(preset_type(&m, "output.weight", 1024, 1), "Q8_0");
    m = preset_open("F16", s);
    IS(preset_type(&m, "output.weight", 1024, 1), "F16");
    m = preset_open("Q4_K", s);
    IS(preset_type(&m, "output.weight", 1024, 1), "Q6_K");
    IS(preset_layer(&m, "ffn_down", 0), "Q4_K");
    pn_err err = {0};
    PN_CHECK(pn_mix_open_type(&m, PN_DTYPE_Q4_K, &err) == PN_OK, "%s", err.text);
    IS(preset_type(&m, "output.weight", 1024, 1), "Q4_K");
    IS(pn_mix_name(&m), "Q4_K");
}

static void experts_and_seventy_billions_have_their_rules(void)
{
    pn_mix m = preset_open("Q4_K_M", (shape){.n_layers = 32, .n_heads = 32, .n_heads_kv = 8, .n_expert = 8});
    IS(preset_layer(&m, "attn_v", 9), "Q8_0");
    IS(preset_layer(&m, "attn_k", 9), "Q8_0");
    IS(preset_layer(&m, "attn_output", 9), "Q5_K");
    IS(preset_layer(&m, "attn_q", 9), "Q4_K");
    m = preset_open("Q3_K_L", (shape){.n_layers = 32, .n_heads = 32, .n_heads_kv = 8, .n_expert = 8});
    IS(preset_layer(&m, "attn_output", 9), "Q3_K");
    m = preset_open("Q4_K_M", (shape){.n_layers = 80, .n_heads = 64, .n_heads_kv = 8});
    IS(preset_layer(&m, "attn_v", 10), "Q5_K");
    IS(preset_layer(&m, "attn_v", 0), "Q6_K");
    m = preset_open("MXFP4_MOE", (shape){.n_layers = 24, .n_heads = 64, .n_heads_kv = 8, .n_expert = 32});
    IS(preset_type(&m, "blk.0.ffn_up_exps.weight", 1024, 32), "MXFP4");
    IS(preset_layer(&m, "attn_q", 0), "Q8_0");
}

static void rows_that_do_not_fit_get_smaller_blocks(void)
{
    static const char *const cases[][3] = {{"Q2_K", "Q4_0", "F16"}, {"Q3_K_S", "Q4_0", "F16"}, {"Q4_K", "Q5_0", "F16"},
                                           {"Q5_K_S", "Q5_1", "F16"}, {"Q6_K", "Q8_0", "F16"}, {"Q4_0", "Q4_0", "F16"},
                                           {"BF16", "BF16", "BF16"}};
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        pn_mix m = preset_open(cases[i][0], (shape){.n_layers = 4, .n_heads = 4, .n_heads_kv = 4});
        const char *a = preset_type(&m, "blk.0.ffn_up.weight", 576, 1), *b = preset_type(&m, "blk.0.ffn_up.weight", 600, 1);
        PN_CHECK(strcmp(a, cases[i][1]) == 0, "%s: 576 gives %s", cases[i][0], a);
        PN_CHECK(strcmp(b, cases[i][2]) == 0, "%s: 600 gives %s", cases[i][0], b);
    }
}

static void small_things_stay_as_they_are(void)
{
    static const char *const names[] = {"blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.attn_q.bias", "blk.0.ssm_conv1d.weight",
                                        "blk.0.shortconv.conv.weight",
                                        "blk.0.ssm_a", "blk.0.time_mix_w1.weight", "v.patch_embd.weight", "per_layer_model_proj.weight"};
    pn_mix m = preset_open("Q8_0", (shape){.n_layers = 4, .n_heads = 4, .n_heads_kv = 4});
    for (size_t i = 0; i < PN_COUNT_OF(names); i++)
        PN_CHECK(strcmp(preset_type(&m, names[i], 1024, 1), "F32") == 0, "%s", names[i]);
    PN_CHECK(strcmp(preset_type(&m, "blk.0.shortconv.in_proj.weight", 1024, 1), "Q8_0") == 0, "projections around a short convolution are matrices like others");
    const uint64_t vec[4] = {1024, 1, 1, 1}, mat[4] = {1024, 8, 1, 1};
    PN_CHECK(pn_mix_type(&m, "blk.0.ffn_up.weight", PN_DTYPE_F16, 1, vec) == PN_DTYPE_F16);
    PN_CHECK(pn_mix_type(&m, "blk.0.ffn_up.weight", PN_DTYPE_I32, 2, mat) == PN_DTYPE_I32);
    PN_CHECK(pn_mix_type(&m, "blk.99999999999.attn_v.weight", PN_DTYPE_F16, 2, mat) == PN_DTYPE_Q8_0, "no layer so high");
    m.keep_output = true;
    PN_CHECK(pn_mix_type(&m, "output.weight", PN_DTYPE_F16, 2, mat) == PN_DTYPE_F16);
}

int main(void)
{
    more_bits_go_to_the_ends_and_every_third_layer();
    each_mixture_follows_its_row();
    the_output_matrix_is_finer();
    experts_and_seventy_billions_have_their_rules();
    rows_that_do_not_fit_get_smaller_blocks();
    small_things_stay_as_they_are();
    return pn_test_end();
}
