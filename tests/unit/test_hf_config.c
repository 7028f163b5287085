/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_hf_config.c - config.json becomes the keys of a GGUF header: defaults of every model_type, the rotary kinds,
 * windows, wrappers, what is refused and with which words.
 */
#include "pn_test.h"

#include "format/pn_hf_config.h"

typedef struct conf {
    pn_test_mem mem;
    pn_hf_config c;
    pn_gguf_writer w;
    pn_str header;
    pn_gguf g;
    pn_err err;
    pn_status st;
} conf;

static pn_bytes bytes(const char *s) { return (pn_bytes){s, s ? strlen(s) : 0}; }

/* JSON with ' for ". */
static void conf_read(conf *x, const char *config, const char *generation, long fail_at)
{
    char text[4096];
    memset(x, 0, sizeof *x);
    snprintf(text, sizeof text, "%s", config);
    for (char *p = text; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    pn_test_mem_init(&x->mem, fail_at);
    pn_gguf_writer_init(&x->w, &x->mem.mem);
    pn_str_init(&x->header, &x->mem.mem, PN_ACCT_MISC);
    x->st = pn_hf_config_read(&x->c, &x->mem.mem, "folder", bytes(text), bytes(generation), &x->w, &x->err);
    if (!x->st && !pn_gguf_header(&x->w, &x->header))
        x->st = PN_E_NOMEM;
    if (!x->st) {
        const pn_source src = {.bytes = (const uint8_t *)x->header.data, .size = x->header.len, .name = "header"};
        x->st = pn_gguf_read(&x->g, &x->mem.mem, &src, &x->err);
    }
}

static void conf_close(conf *x)
{
    pn_gguf_fini(&x->g);
    pn_str_fini(&x->header);
    pn_gguf_writer_fini(&x->w);
    pn_hf_config_fini(&x->c);
    PN_CHECK(x->mem.outstanding == 0, "%ld blocks are left", x->mem.outstanding);
}

/* A number of the header; -1: there is none. */
static double num(const conf *x, const char *key)
{
    double v = -1;
    const pn_gguf_kv *kv = pn_gguf_find(&x->g, key);
    return kv && pn_gguf_f64(kv, 0, &v) ? v : -1;
}

static bool text_is(const conf *x, const char *key, const char *want)
{
    pn_bytes s;
    const pn_gguf_kv *kv = pn_gguf_find(&x->g, key);
    return kv && pn_gguf_str(kv, 0, &s) && s.len == strlen(want) && memcmp(s.data, want, s.len) == 0;
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-6 * fabs(b); }

/* --- defaults ------------------------------------------------------------------------------------- */

static void every_model_type_has_its_own_defaults(void)
{
    static const struct { const char *type, *arch; int heads, kv, d, ctx; double eps, base; int E, K, Fe, Fs, V; } rows[] = {
        {"llama", "llama", 32, 32, 4, 2048, 1e-6, 1e4, 0, 0, 0, 0, 0},
        {"mistral", "llama", 32, 8, 4, 131072, 1e-6, 1e4, 0, 0, 0, 0, 0},
        {"ministral3", "mistral3", 32, 8, 128, 262144, 1e-5, 1e6, 0, 0, 0, 0, 0},
        {"mixtral", "llama", 32, 8, 4, 131072, 1e-5, 1e6, 8, 2, 0, 0, 0},
        {"qwen2", "qwen2", 32, 32, 4, 32768, 1e-6, 1e4, 0, 0, 0, 0, 0},
        {"qwen2_moe", "qwen2moe", 32, 16, 4, 32768, 1e-6, 1e4, 60, 4, 1408, 5632, 0},
        {"qwen3", "qwen3", 32, 32, 128, 32768, 1e-6, 1e4, 0, 0, 0, 0, 0},
        {"qwen3_moe", "qwen3moe", 32, 4, 4, 32768, 1e-6, 1e4, 128, 8, 768, 0, 0},
        {"phi3", "phi3", 32, 32, 4, 4096, 1e-5, 1e4, 0, 0, 0, 0, 0},
        {"gemma2", "gemma2", 8, 4, 256, 8192, 1e-6, 1e4, 0, 0, 0, 0, 256000},
        {"gemma3_text", "gemma3", 8, 4, 256, 131072, 1e-6, 1e6, 0, 0, 0, 0, 262208},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        conf x;
        char text[400], key[96];
        bool gemma = rows[i].V != 0;
        snprintf(text, sizeof text, "{'model_type':'%s','hidden_size':128,'num_hidden_layers':2,'intermediate_size':64%s}", rows[i].type,
                 gemma ? "" : ",'num_attention_heads':32,'vocab_size':100");
        conf_read(&x, text, NULL, 0);
        PN_CHECK(x.st == PN_OK, "%s: %s", rows[i].type, x.err.text);
        PN_CHECK(text_is(&x, "general.architecture", rows[i].arch), "%s", rows[i].type);
        PN_CHECK(text_is(&x, "general.name", "folder"));
        static const char *const keys[] = {"attention.head_count", "attention.head_count_kv", "attention.key_length", "context_length",
                                           "attention.layer_norm_rms_epsilon", "rope.freq_base", "vocab_size", "embedding_length", "block_count"};
        const double want[] = {rows[i].heads, rows[i].kv, rows[i].d, rows[i].ctx, rows[i].eps, rows[i].base, gemma ? rows[i].V : 100, 128, 2};
        for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
            snprintf(key, sizeof key, "%s.%s", rows[i].arch, keys[k]);
            PN_CHECK(near(num(&x, key), want[k]), "%s: %s is %g, expected %g", rows[i].type, key, num(&x, key), want[k]);
        }
        static const char *const moe[] = {"expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length"};
        const int n[] = {rows[i].E, rows[i].K, rows[i].Fe, rows[i].Fs};
        for (size_t k = 0; k < 4; k++) {
            snprintf(key, sizeof key, "%s.%s", rows[i].arch, moe[k]);
            PN_CHECK(num(&x, key) == (n[k] ? n[k] : -1), "%s: %s is %g", rows[i].type, key, num(&x, key));
        }
        PN_CHECK(text_is(&x, "llama.rope.pairing", "neox") == (strcmp(rows[i].arch, "llama") == 0));
        PN_CHECK(x.c.tied == gemma && x.c.post_norms == gemma && x.c.fused == (strcmp(rows[i].arch, "phi3") == 0));
        conf_close(&x);
    }
}

static void null_is_not_absent(void)
{
    conf x;
    conf_read(&x, "{'model_type':'mistral','hidden_size':64,'num_hidden_layers':1,'intermediate_size':64,'num_attention_heads':4,"
                  "'vocab_size':9,'num_key_value_heads':null,'head_dim':null,'sliding_window':null,'rope_scaling':null}", NULL, 0);
    PN_CHECK(x.st == PN_OK, "%s", x.err.text);
    PN_CHECK(num(&x, "llama.attention.head_count_kv") == 4 && num(&x, "llama.attention.key_length") == 16);
    PN_CHECK(!pn_gguf_find(&x.g, "llama.attention.layer_windows"));
    conf_close(&x);
    conf_read(&x, "{'model_type':'llama','hidden_size':64,'num_hidden_layers':1,'intermediate_size':null,'num_attention_heads':4,'vocab_size':9}", NULL, 0);
    PN_CHECK(x.st == PN_E_FORMAT && strstr(x.err.text, "intermediate_size") && strstr(x.err.text, "null"), "%s", x.err.text);
    conf_close(&x);
}

static void numbers_may_look_odd(void)
{
    conf x;
    conf_read(&x, "{'model_type':'llama','hidden_size':64.0,'num_hidden_layers':1,'intermediate_size':64,'num_attention_heads':4,'vocab_size':9,"
                  "'rope_theta':10000,'router_z':NaN,'a':[Infinity,-Infinity],'name':'NaN \\' Infinity'}", NULL, 0);
    PN_CHECK(x.st == PN_OK, "%s", x.err.text);
    conf_close(&x);
    conf_read(&x, "{'model_type':'llama','hidden_size':64,'num_hidden_layers':1,'intermediate_size':64,'num_attention_heads':4,'vocab_size':9,'rms_norm_eps':NaN}", NULL, 0);
    PN_CHECK(x.st == PN_E_FORMAT && strstr(x.err.text, "rms_norm_eps"), "%s", x.err.text);
    conf_close(&x);
}

/* --- rotary kinds --------------------------------------------------------------------------------- */

#define LLAMA "{'model_type':'llama','hidden_size':64,'num_hidden_layers':1,'intermediate_size':64,'num_attention_heads':4,'vocab_size':9,"

static void rotary_kinds_become_keys_and_factors(void)
{
    conf x;
    conf_read(&x, LLAMA "'rope_theta':5e5,'rope_scaling':{'type':'linear','factor':4.0}}", NULL, 0);
    PN_CHECK(text_is(&x, "llama.rope.scaling.type", "linear") && num(&x, "llama.rope.scaling.factor") == 4 && num(&x, "llama.rope.freq_base") == 5e5);
    conf_close(&x);
    /* the first of two dictionaries counts, its kind may be spelled the new way */
    conf_read(&x, LLAMA "'max_position_embeddings':64,'rope_parameters':{'rope_type':'default','rope_theta':7},'rope_theta':1e4,'rope_scaling':"
              "{'rope_type':'llama3','factor':8,'low_freq_factor':1,'high_freq_factor':4,'original_max_position_embeddings':32}}", NULL, 0);
    PN_CHECK(x.st == PN_OK && num(&x, "llama.rope.freq_base") == 1e4, "%s", x.err.text);
    PN_CHECK(x.c.factors[0] && !x.c.factors[1] && x.c.factors[0][0] == 1 && x.c.factors[0][7] == 8, "%g %g", (double)x.c.factors[0][0], (double)x.c.factors[0][7]);
    PN_CHECK(!pn_gguf_find(&x.g, "llama.rope.scaling.type"));
    conf_close(&x);
    conf_read(&x, LLAMA "'max_position_embeddings':131072,'rope_parameters':{'rope_type':'yarn','rope_theta':1e6,'factor':4,"
              "'original_max_position_embeddings':32768,'beta_fast':null,'beta_slow':0,'attention_factor':1.5,'truncate':false}}", NULL, 0);
    PN_CHECK(text_is(&x, "llama.rope.scaling.type", "yarn") && num(&x, "llama.rope.scaling.yarn_beta_fast") == 32 &&
             num(&x, "llama.rope.scaling.yarn_beta_slow") == 1 && num(&x, "llama.rope.scaling.yarn_truncate") == 0 &&
             near(num(&x, "llama.rope.scaling.attn_factor"), 1.5 / (1 + 0.1 * log(4.0))), "%s", x.err.text);
    conf_close(&x);
    conf_read(&x, "{'model_type':'phi3','hidden_size':64,'num_hidden_layers':1,'intermediate_size':64,'num_attention_heads':4,'vocab_size':9,"
              "'max_position_embeddings':512,'original_max_position_embeddings':256,'partial_rotary_factor':0.25,"
              "'rope_scaling':{'type':'su','short_factor':[1,1.5],'long_factor':[2,3]}}", NULL, 0);
    PN_CHECK(x.st == PN_OK && num(&x, "phi3.rope.dimension_count") == 4 && num(&x, "phi3.rope.scaling.original_context_length") == 256, "%s", x.err.text);
    PN_CHECK(near(num(&x, "phi3.rope.scaling.attn_factor"), sqrt(1 + log(2.0) / log(256.0))) && x.c.factors[1][1] == 3);
    conf_close(&x);
    conf_read(&x, "{'model_type':'ministral3','hidden_size':64,'num_hidden_layers':1,'intermediate_size':64,'num_attention_heads':8,'vocab_size':9}", NULL, 0);
    PN_CHECK(text_is(&x, "mistral3.rope.scaling.type", "yarn") && num(&x, "mistral3.rope.scaling.factor") == 16 &&
             near(num(&x, "mistral3.attention.temperature_scale"), 0.1) && text_is(&x, "mistral3.rope.pairing", "neox"), "%s", x.err.text);
    conf_close(&x);
}

/* --- windows -------------------------------------------------------------------------------------- */

static const uint32_t none[] = {0, 0, 0, 0};

static void windows_are(const char *config, const char *arch, const uint32_t *want)
{
    conf x;
    char key[96];
    conf_read(&x, config, NULL, 0);
    snprintf(key, sizeof key, "%s.attention.layer_windows", arch);
    const pn_gguf_kv *kv = pn_gguf_find(&x.g, key);
    PN_CHECK(x.st == PN_OK && (kv != NULL) == (want != none), "%s: %s", config, x.err.text);
    for (uint64_t i = 0; kv && want != none && i < 4; i++) {
        uint64_t v = 77;
        PN_CHECK(kv->count == 4 && pn_gguf_u64(kv, i, &v) && v == want[i], "%s: layer %u sees %u", config, (unsigned)i, (unsigned)v);
    }
    conf_close(&x);
}

#define FOUR(type) "{'model_type':'" type "','hidden_size':64,'num_hidden_layers':4,'intermediate_size':64,'num_attention_heads':4," \
                   "'num_key_value_heads':4,'vocab_size':9,'max_position_embeddings':100,"

static void windows_follow_the_model_type(void)
{
    static const uint32_t all[] = {8, 8, 8, 8}, late[] = {0, 0, 8, 8}, even[] = {8, 0, 0, 0}, odd[] = {0, 8, 0, 8};
    windows_are(FOUR("llama") "'sliding_window':8}", "llama", none);
    windows_are(FOUR("mistral") "'sliding_window':8}", "llama", all);
    windows_are(FOUR("mistral") "'sliding_window':100}", "llama", none);        /* as wide as the context */
    windows_are(FOUR("mixtral") "'sliding_window':8}", "llama", all);
    windows_are(FOUR("phi3") "'sliding_window':8}", "phi3", all);
    windows_are(FOUR("qwen2") "'sliding_window':8}", "qwen2", none);
    windows_are(FOUR("qwen2") "'sliding_window':8,'use_sliding_window':true,'max_window_layers':2}", "qwen2", late);
    windows_are(FOUR("qwen2_moe") "'sliding_window':8,'use_sliding_window':true,'max_window_layers':2}", "qwen2moe", even);
    windows_are(FOUR("qwen3_moe") "'sliding_window':8,'use_sliding_window':true}", "qwen3moe", all);
    windows_are(FOUR("gemma2") "'sliding_window':8}", "gemma2", none);          /* as the family does */
    windows_are(FOUR("gemma3_text") "'sliding_window':8}", "gemma3", none);
    windows_are(FOUR("gemma3_text") "'sliding_window':8,'layer_types':['full_attention','sliding_attention','full_attention','sliding_attention']}",
                "gemma3", odd);
}

/* --- wrappers ------------------------------------------------------------------------------------- */

static void the_text_model_is_found_inside(void)
{
    conf x;
    conf_read(&x, "{'model_type':'gemma3','tie_word_embeddings':true,'eos_token_id':[1],'text_config':{'model_type':'gemma3_text','hidden_size':64,"
                  "'num_hidden_layers':7,'intermediate_size':32,'sliding_window':16,'query_pre_attn_scalar':168,'rope_scaling':{'rope_type':'linear','factor':8}}}", NULL, 0);
    PN_CHECK(x.st == PN_OK && x.c.wrapped && num(&x, "gemma3.rope.freq_base_swa") == 1e4 && num(&x, "gemma3.rope.scaling.factor") == 8 &&
             num(&x, "gemma3.attention.query_scalar") == 168 && num(&x, "gemma3.attention.sliding_window") == 16, "%s", x.err.text);
    conf_close(&x);
    conf_read(&x, "{'model_type':'gemma3_text','hidden_size':64,'num_hidden_layers':1,'intermediate_size':32,'rope_parameters':{'full_attention':"
                  "{'rope_type':'linear','factor':8,'rope_theta':2e6},'sliding_attention':{'rope_type':'default','rope_theta':3e4}}}", NULL, 0);
    PN_CHECK(x.st == PN_OK && num(&x, "gemma3.rope.freq_base") == 2e6 && num(&x, "gemma3.rope.freq_base_swa") == 3e4 &&
             num(&x, "gemma3.rope.scaling.factor") == 8, "%s", x.err.text);
    conf_close(&x);
    conf_read(&x, "{'model_type':'mistral3','text_config':{'model_type':'mistral','hidden_size':64,'num_hidden_layers':1,'intermediate_size':32,"
                  "'num_attention_heads':8,'vocab_size':9},'vision_config':{'model_type':'pixtral'}}", NULL, 0);
    PN_CHECK(x.st == PN_OK && text_is(&x, "general.architecture", "mistral3") && x.c.wrapped, "%s", x.err.text);
    conf_close(&x);
}

static void a_wrapper_knows_what_is_usually_inside(void)
{
    static const struct { const char *config, *arch; int heads, ctx; } rows[] = {
        {"{'model_type':'gemma3','text_config':{'hidden_size':64,'num_hidden_layers':1,'intermediate_size':32}}", "gemma3", 8, 131072},
        {"{'model_type':'mistral3','text_config':{'hidden_size':64,'num_hidden_layers':1,'intermediate_size':32,'num_attention_heads':16,'vocab_size':9}}", "mistral3", 16, 131072},
        {"{'model_type':'llava','vision_config':{'model_type':'pixtral'},'text_config':{'model_type':'mistral','hidden_size':64,'num_hidden_layers':1,'intermediate_size':32,"
         "'num_attention_heads':16,'vocab_size':9}}", "llama", 16, 131072}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        conf x;
        char key[64];
        conf_read(&x, rows[i].config, NULL, 0);
        PN_CHECK(x.st == PN_OK && x.c.wrapped && text_is(&x, "general.architecture", rows[i].arch), "%s: %s", rows[i].config, x.err.text);
        snprintf(key, sizeof key, "%s.attention.head_count", rows[i].arch);
        PN_CHECK(num(&x, key) == rows[i].heads, "%s", rows[i].config);
        snprintf(key, sizeof key, "%s.context_length", rows[i].arch);
        PN_CHECK(num(&x, key) == rows[i].ctx, "%s", rows[i].config);
        conf_close(&x);
    }
}

/* --- sampling ------------------------------------------------------------------------------------- */

static void the_samplers_defaults_are_the_models(void)
{
    conf x;
    conf_read(&x, LLAMA "'a':0}", "{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95, \"repetition_penalty\": 1.1}", 0);
    PN_CHECK(x.st == PN_OK && near(num(&x, "general.sampling.temp"), 0.6) && num(&x, "general.sampling.top_k") == 20 &&
             near(num(&x, "general.sampling.top_p"), 0.95) && near(num(&x, "general.sampling.penalty_repeat"), 1.1) &&
             num(&x, "general.sampling.min_p") == -1, "%s", x.err.text);
    conf_close(&x);
    conf_read(&x, LLAMA "'a':0}", "{\"do_sample\": false, \"temperature\": 0.6}", 0);
    PN_CHECK(x.st == PN_OK && num(&x, "general.sampling.temp") == 0, "%s", x.err.text);
    conf_close(&x);
    conf_read(&x, LLAMA "'a':0}", "{\"top_k\": \"many\"}", 0);
    PN_CHECK(x.st == PN_E_FORMAT && strstr(x.err.text, "generation_config.json: key 'top_k' is \"many\""), "%s", x.err.text);
    conf_close(&x);
}

/* --- refusals ------------------------------------------------------------------------------------- */

#define PACKED(weights) "'quantization_config':{'quant_method':'compressed-tensors','format':'pack-quantized','config_groups':{'group_0':{'weights':{" weights "}}}}}"

/* At either level of a wrapper; what is said of activations and modules does not matter. */
static void quantised_weights_are_described(void)
{
    static const struct { const char *config; pn_hf_quant q; } rows[] = {
        {LLAMA "'quantization_config':null}", {.scheme = PN_HF_PLAIN}},
        {LLAMA "'quantization_config':{'quant_method':'fp8','activation_scheme':'static','modules_to_not_convert':['lm_head']}}", {.scheme = PN_HF_FP8}},
        {LLAMA "'quantization_config':{'quant_method':'fp8','weight_block_size':[128,64],'scale_fmt':'ue8m0','fmt':'e4m3'}}",
         {.scheme = PN_HF_FP8, .ue8m0 = true, .block_rows = 128, .block_cols = 64}},
        {LLAMA "'quantization_config':{'quant_method':'compressed-tensors','format':'float-quantized'}}", {.scheme = PN_HF_FP8_ROWS}},
        {LLAMA PACKED("'num_bits':4,'type':'int','strategy':'group','group_size':128,'symmetric':true"), {.scheme = PN_HF_INT4, .block_rows = 1, .block_cols = 128}},
        {LLAMA PACKED("'num_bits':4,'strategy':'channel','group_size':null,'symmetric':false"), {.scheme = PN_HF_INT4, .zeros = true, .block_rows = 1}},
        {"{'model_type':'mistral3','quantization_config':{'quant_method':'fp8'},'text_config':{'model_type':'ministral3','hidden_size':64,'num_hidden_layers':1,"
         "'intermediate_size':64,'num_attention_heads':8,'vocab_size':9}}", {.scheme = PN_HF_FP8}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        conf x;
        conf_read(&x, rows[i].config, NULL, 0);
        const pn_hf_quant *q = &x.c.quant, *want = &rows[i].q;
        PN_CHECK(x.st == PN_OK && q->scheme == want->scheme && q->ue8m0 == want->ue8m0 && q->zeros == want->zeros && q->block_rows == want->block_rows &&
                 q->block_cols == want->block_cols, "%s: %s", rows[i].config, x.err.text);
        conf_close(&x);
    }
}

static void what_is_not_understood_is_refused_by_name(void)
{
    static const struct { const char *config; pn_status st; const char *say[2]; } rows[] = {
        {"[]", PN_E_FORMAT, {"expected an object", "array"}},
        {"{", PN_E_FORMAT, {"config.json", ""}},
        {"{'hidden_size':1}", PN_E_FORMAT, {"model_type", "missing"}},
        {"{'model_type':'rwkv99'}", PN_E_UNSUPPORTED, {"\"rwkv99\"", "qwen3_moe"}},
        {"{'model_type':'llava','text_config':{},'vision_config':{'model_type':'clip'}}", PN_E_UNSUPPORTED, {"\"llava\"", "mixtral"}},
        {"{'model_type':'gemma3'}", PN_E_FORMAT, {"text_config", "missing"}},
        {"{'model_type':'llama'}", PN_E_FORMAT, {"hidden_size", "missing"}},
        {LLAMA "'hidden_act':'relu'}", PN_E_UNSUPPORTED, {"hidden_act", "\"relu\""}},
        {LLAMA "'architectures':['LlamaForSequenceClassification']}", PN_E_UNSUPPORTED, {"architectures", "ForCausalLM"}},
        {LLAMA "'quantization_config':{'quant_method':'gptq','bits':4}}", PN_E_UNSUPPORTED, {"quant_method is \"gptq\"", "expected fp8"}},
        {LLAMA "'quantization_config':{}}", PN_E_UNSUPPORTED, {"quant_method is nothing", "expected fp8"}},
        {LLAMA "'quantization_config':{'quant_method':'compressed-tensors','format':'nvfp4-pack-quantized'}}", PN_E_UNSUPPORTED, {"compressed-tensors", "\"nvfp4-pack-quantized\""}},
        {LLAMA "'quantization_config':{'quant_method':'compressed-tensors','format':'pack-quantized'}}", PN_E_FORMAT, {"pack-quantized", "without config_groups"}},
        {LLAMA PACKED("'num_bits':8,'strategy':'channel'"), PN_E_UNSUPPORTED, {"num_bits 8", "expected 4"}},
        {LLAMA PACKED("'num_bits':4,'type':'float','strategy':'channel'"), PN_E_UNSUPPORTED, {"type \"float\"", "int"}},
        {LLAMA PACKED("'num_bits':4,'strategy':'tensor'"), PN_E_UNSUPPORTED, {"strategy", "\"tensor\""}},
        {LLAMA PACKED("'num_bits':4,'strategy':'group'"), PN_E_FORMAT, {"group_size", "nothing"}},
        {LLAMA PACKED("'num_bits':4,'strategy':'group','group_size':-1"), PN_E_FORMAT, {"group_size", "-1"}},
        {LLAMA PACKED("'num_bits':4,'strategy':'channel','symmetric':1"), PN_E_FORMAT, {"symmetric", "expected true or false"}},
        {LLAMA "'quantization_config':{'quant_method':'compressed-tensors','format':'pack-quantized','config_groups':{'a':{'weights':{'num_bits':4,'group_size':32}},"
         "'b':{'weights':{'num_bits':4,'group_size':64}}}}}", PN_E_UNSUPPORTED, {"config_groups differ", "group_size"}},
        {LLAMA "'quantization_config':{'quant_method':'fp8','weight_block_size':[128]}}", PN_E_FORMAT, {"weight_block_size", "two integers"}},
        {LLAMA "'quantization_config':{'quant_method':'fp8','weight_block_size':128}}", PN_E_FORMAT, {"weight_block_size", "two integers"}},
        {LLAMA "'quantization_config':{'quant_method':'fp8','weight_block_size':[128,0]}}", PN_E_FORMAT, {"weight_block_size", "is 0"}},
        {LLAMA "'quantization_config':{'quant_method':'fp8','scale_fmt':'e5m3'}}", PN_E_UNSUPPORTED, {"scale_fmt", "\"e5m3\""}},
        {LLAMA "'rope_scaling':{'type':'llama3','factor':8}}", PN_E_FORMAT, {"llama3", "low_freq_factor"}},
        {LLAMA "'rope_scaling':{'type':'linear'}}", PN_E_FORMAT, {"linear", "factor"}},
        {LLAMA "'rope_scaling':{'type':'linear','factor':-1}}", PN_E_FORMAT, {"factor", "-1"}},
        {LLAMA "'rope_scaling':{'type':'longrope','short_factor':[1],'long_factor':[1]}}", PN_E_FORMAT, {"short_factor", "8 rotary pairs"}},
        {LLAMA "'partial_rotary_factor':0.5}", PN_E_UNSUPPORTED, {"partial_rotary_factor", "0.5"}},
        {LLAMA "'layer_types':['full_attention','full_attention']}", PN_E_FORMAT, {"layer_types", "num_hidden_layers"}},
        {LLAMA "'layer_types':['linear_attention']}", PN_E_UNSUPPORTED, {"layer_types", "linear_attention"}},
        {LLAMA "'layer_types':['sliding_attention']}", PN_E_FORMAT, {"layer_types", "sliding_window"}},
        {"{'model_type':'qwen3_moe','hidden_size':64,'num_hidden_layers':1,'num_attention_heads':4,'vocab_size':9,'decoder_sparse_step':2}",
         PN_E_UNSUPPORTED, {"decoder_sparse_step", "2"}},
        {"{'model_type':'qwen3_moe','hidden_size':64,'num_hidden_layers':1,'num_attention_heads':4,'vocab_size':9,'mlp_only_layers':[0]}",
         PN_E_UNSUPPORTED, {"mlp_only_layers", ""}},
        {"{'model_type':'qwen3_moe','hidden_size':64,'num_hidden_layers':1,'num_attention_heads':4,'vocab_size':9,'num_experts':4}",
         PN_E_FORMAT, {"num_experts_per_tok is 8", "num_experts, 4"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        conf x;
        conf_read(&x, rows[i].config, NULL, 0);
        PN_CHECK(x.st == rows[i].st && strstr(x.err.text, rows[i].say[0]) && strstr(x.err.text, rows[i].say[1]), "%s: %d %s", rows[i].config, (int)x.st, x.err.text);
        PN_CHECK(strncmp(x.err.text, "config.json: ", 13) == 0, "%s", x.err.text);
        conf_close(&x);
    }
}

static void hostile_files_are_refused_by_name(void)
{
    static const struct { const char *file, *say[2]; } rows[] = {
        {"zero_heads", {"num_attention_heads", "0"}}, {"kv_not_divisor", {"num_key_value_heads is 3", "num_attention_heads, 4"}},
        {"layers_2e31", {"num_hidden_layers", "2147483648"}}, {"head_dim_odd", {"head_dim", "31"}},
        {"rope_unknown", {"rope_type", "\"spiral\""}}, {"theta_zero", {"rope_theta", "finite number above 0"}},
        {"quant_unknown", {"quant_method", "\"gptq\""}}, {"custom_code", {"model_type", "\"my_model\""}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        conf x;
        char path[200];
        snprintf(path, sizeof path, "tests/vectors/hf/hostile/config_%s.json", rows[i].file);
        char *text = pn_test_read_file(path, NULL);
        if (!PN_CHECK(text != NULL, "%s", path))
            continue;
        conf_read(&x, text, NULL, 0);
        PN_CHECK((x.st == PN_E_FORMAT || x.st == PN_E_UNSUPPORTED) && strstr(x.err.text, rows[i].say[0]) && strstr(x.err.text, rows[i].say[1]), "%s: %d %s",
                 path, (int)x.st, x.err.text);
        conf_close(&x);
        free(text);
    }
}

static void every_allocation_may_fail(void)
{
    for (long k = 1;; k++) {
        conf x;
        conf_read(&x, LLAMA "'rope_scaling':{'type':'longrope','short_factor':[1,1,1,1,1,1,1,1],'long_factor':[2,2,2,2,2,2,2,2]}}", "{\"top_k\": 4}", k);
        bool done = x.st == PN_OK && x.mem.n_calls < k;
        PN_CHECK(x.st == PN_OK || x.st == PN_E_NOMEM, "%d %s", (int)x.st, x.err.text);
        conf_close(&x);
        if (done)
            break;
    }
}

int main(void)
{
    every_model_type_has_its_own_defaults();
    null_is_not_absent();
    numbers_may_look_odd();
    rotary_kinds_become_keys_and_factors();
    windows_follow_the_model_type();
    the_text_model_is_found_inside();
    a_wrapper_knows_what_is_usually_inside();
    the_samplers_defaults_are_the_models();
    quantised_weights_are_described();
    what_is_not_understood_is_refused_by_name();
    hostile_files_are_refused_by_name();
    every_allocation_may_fail();
    return pn_test_end();
}
