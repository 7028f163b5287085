/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Hugging Face folders: the ids, texts and prompts of the reference, broken files refused with a message
 * about what is broken, steps one at a time, the same in GGUF's terms, every allocation failing in turn.
 *
 *     test_hf_vocab                            the checks
 *     test_hf_vocab DIR ROWS TEXTS             ids of the texts (JSON list of strings) for a folder at hand
 */
#include "pn_test.h"
#include "base/pn_json.h"
#include "text/pn_hf_vocab.h"
#include "text/pn_norm.h"
#include "text/pn_pretok.h"
#include "text/pn_template.h"
#include "text/pn_vocab_impl.h"

#include <time.h>

#define HF "tests/vectors/hf/"
#define META "\xE2\x96\x81"

static pn_mem libc_mem;

static pn_bytes z(const char *text) { return (pn_bytes){text, strlen(text)}; }

/* --- folders ------------------------------------------------------------------------------ */

enum { N_FILES = 11 };

static const char *const file_names[N_FILES] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "tokenizer.model", "chat_template.jinja", "chat_template.json", "generation_config.json", "config.json",
};

typedef struct folder {
    pn_hf_files f;
    char *data[N_FILES];
} folder;

static pn_bytes *slot(folder *d, int i)
{
    pn_hf_files *f = &d->f;
    pn_bytes *const all[N_FILES] = {
        &f->tokenizer_json, &f->tokenizer_config, &f->special_tokens_map, &f->added_tokens, &f->vocab_json, &f->merges_txt,
        &f->tokenizer_model, &f->chat_template_jinja, &f->chat_template_json, &f->generation_config, &f->config,
    };
    return all[i];
}

static void folder_open(folder *d, const char *dir)
{
    *d = (folder){0};
    for (int i = 0; i < N_FILES; i++) {
        char path[512];
        size_t n = 0;
        snprintf(path, sizeof path, "%s/%s", dir, file_names[i]);
        FILE *probe = fopen(path, "rb");
        if (!probe)
            continue;
        fclose(probe);
        d->data[i] = pn_test_read_file(path, &n);
        *slot(d, i) = (pn_bytes){d->data[i], n};
    }
}

static void folder_close(folder *d)
{
    for (int i = 0; i < N_FILES; i++)
        free(d->data[i]);
}

typedef struct loaded { pn_hf_vocab *h; pn_vocab *v; int warnings; char warning[256]; } loaded;

static void on_warning(void *user, const char *text)
{
    loaded *l = user;
    l->warnings++;
    snprintf(l->warning, sizeof l->warning, "%s", text);
}

static pn_status load(loaded *l, pn_mem *mem, const pn_hf_files *f, uint32_t rows, pn_err *err)
{
    *l = (loaded){0};
    pn_vocab_source src;
    pn_status st = pn_hf_vocab_new(&l->h, mem, f, rows, on_warning, l, err);
    if (st)
        return st;
    pn_hf_vocab_source(l->h, &src);
    st = pn_vocab_new(&l->v, mem, &src, on_warning, l, err);
    if (!st)
        pn_hf_vocab_trim(l->h);
    return st;
}

static void unload(loaded *l)
{
    pn_vocab_free(l->v);
    pn_hf_vocab_free(l->h);
}

/* --- ids ---------------------------------------------------------------------------------- */

/* Encoded as "12 3 45"; the caller frees. */
static char *ids_of(const pn_vocab *v, pn_mem *mem, pn_bytes text, unsigned flags, const pn_span *spans, size_t n_spans)
{
    pn_token *t = NULL;
    size_t k = 0, cap = 0, at = 0;
    pn_err err = {0};
    if (pn_vocab_encode(v, mem, text.data, text.len, flags, spans, n_spans, &t, &k, &cap, &err))
        printf("  %s\n", err.text);
    char *out = malloc(k * 12 + 1);
    out[0] = 0;
    for (size_t i = 0; i < k; i++)
        at += (size_t)snprintf(out + at, 13, i ? " %" PRId32 : "%" PRId32, t[i]);
    pn_mem_free(mem, PN_ACCT_MISC, t, cap * sizeof *t);
    return out;
}

static void want(const pn_vocab *v, const char *text, unsigned flags, const char *ids)
{
    char *got = ids_of(v, &libc_mem, z(text), flags, NULL, 0);
    PN_CHECK(strcmp(got, ids) == 0, "\"%s\" gave [%s], wanted [%s]", text, got, ids);
    free(got);
}

static char *list_of(const pn_json_doc *d, uint32_t list)
{
    char *out = malloc((size_t)pn_json_count(d, list) * 12 + 1);
    size_t at = 0;
    out[0] = 0;
    for (uint32_t c = pn_json_first(d, list); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        int64_t id = -1;
        pn_json_i64(d, c, &id);
        at += (size_t)snprintf(out + at, 13, at ? " %" PRId64 : "%" PRId64, id);
    }
    return out;
}

/* Text of ids "12 3 45", the way a whole answer is put together. */
static void text_of(const pn_vocab *v, const char *ids, pn_str *out)
{
    bool strip = pn_vocab_strips_leading_space(v);
    pn_str_clear(out);
    for (char *end; *ids; ids = end) {
        char tmp[8];
        pn_token t = (pn_token)strtol(ids, &end, 10);
        pn_bytes p = pn_vocab_piece(v, t, true, tmp);
        bool cut = strip && p.len && p.data[0] == ' ' && pn_vocab_kind(v, t) == PN_TOKEN_NORMAL;
        pn_str_add(out, p.data + cut, p.len - cut);
        strip = strip && !p.len;
    }
}

static const struct { const char *name; unsigned flags; } modes[] = {
    {"plain", 0}, {"special", PN_ENC_SPECIAL}, {"bos", PN_ENC_BOS}, {"bos_special", PN_ENC_BOS | PN_ENC_SPECIAL},
};

static void check_text(const pn_vocab *v, const char *who, const pn_json_doc *d, uint32_t test)
{
    pn_bytes text = {"", 0}, detok = {"", 0};
    pn_json_str(d, pn_json_get(d, test, "text"), &text);
    for (size_t m = 0; m < PN_COUNT_OF(modes); m++) {
        char *ids = list_of(d, pn_json_get(d, test, modes[m].name));
        char *got = ids_of(v, &libc_mem, text, modes[m].flags, NULL, 0);
        PN_CHECK(strcmp(got, ids) == 0, "%s, %s: \"%.*s\" gave [%s], wanted [%s]", who, modes[m].name, (int)text.len, text.data, got, ids);
        free(got);
        free(ids);
    }
    if (!pn_json_str(d, pn_json_get(d, test, "detok"), &detok))
        return;
    pn_str out;
    char *ids = list_of(d, pn_json_get(d, test, "special"));
    pn_str_init(&out, &libc_mem, PN_ACCT_MISC);
    text_of(v, ids, &out);
    PN_CHECK(out.len == detok.len && memcmp(pn_str_cstr(&out), detok.data, detok.len) == 0, "%s: [%s] is \"%s\", wanted \"%.*s\"", who,
             ids, pn_str_cstr(&out), (int)detok.len, detok.data);
    pn_str_fini(&out);
    free(ids);
}

static void put_special(pn_str *s, const pn_vocab *v, const char *key, pn_special which)
{
    pn_token t = pn_vocab_special(v, which);
    pn_json_key(s, key);
    pn_bytes text = t >= 0 ? pn_vocab_text(v, t) : (pn_bytes){"", 0};
    pn_json_write_str(s, text.data, text.len);
}

static void check_chat(const loaded *l, const char *who, const pn_json_doc *d, uint32_t chat)
{
    pn_bytes source = pn_hf_vocab_template(l->h, false), text = {"", 0};
    pn_tpl *t = NULL;
    pn_err err = {0};
    pn_str vars;
    pn_json_doc doc = {0};
    pn_prompt out;
    bool generate = false;
    pn_json_bool(d, pn_json_get(d, chat, "add_generation_prompt"), &generate);
    pn_json_str(d, pn_json_get(d, chat, "text"), &text);
    pn_str_init(&vars, &libc_mem, PN_ACCT_MISC);
    pn_prompt_init(&out, &libc_mem);
    pn_str_addc(&vars, '{');
    pn_json_key(&vars, "messages");
    pn_json_write_node(&vars, d, pn_json_get(d, chat, "messages"));
    pn_json_key(&vars, "add_generation_prompt");
    pn_json_write_bool(&vars, generate);
    put_special(&vars, l->v, "bos_token", PN_SPECIAL_BOS);
    put_special(&vars, l->v, "eos_token", PN_SPECIAL_EOS);
    pn_str_addc(&vars, '}');
    bool ok = !pn_tpl_new(&t, &libc_mem, source.data, source.len, &err) &&
              !pn_json_parse(&doc, &libc_mem, PN_ACCT_MISC, vars.data, vars.len, NULL, &err) &&
              !pn_tpl_render(t, &libc_mem, &doc, NULL, &out, &err);
    PN_CHECK(ok && out.text.len == text.len && memcmp(pn_str_cstr(&out.text), text.data, text.len) == 0, "%s: %s gave \"%s\"", who,
             err.text, pn_str_cstr(&out.text));
    pn_json_fini(&doc);
    pn_tpl_free(t);
    pn_prompt_fini(&out);
    pn_str_fini(&vars);
}

static void check_folder(const char *who)
{
    char path[256];
    size_t n = 0;
    folder dir;
    loaded l;
    pn_err err = {0};
    pn_json_doc d = {0};
    int64_t rows = 0, id;
    snprintf(path, sizeof path, HF "%s.json", who);
    char *text = pn_test_read_file(path, &n);
    snprintf(path, sizeof path, HF "%s", who);
    folder_open(&dir, path);
    if (PN_CHECK(text && !pn_json_parse(&d, &libc_mem, PN_ACCT_MISC, text, n, NULL, &err), "%s: %s", who, err.text) &&
        pn_json_i64(&d, pn_json_get(&d, 0, "n_vocab"), &rows) &&
        PN_CHECK(!load(&l, &libc_mem, &dir.f, (uint32_t)rows, &err), "%s: %s", who, err.text)) {
        uint32_t list = pn_json_get(&d, 0, "tokenize");
        PN_CHECK(l.warnings == 0, "%s: %s", who, l.warning);
        PN_CHECK(pn_vocab_n_logits(l.v) == rows && pn_json_count(&d, list) >= 15);
        for (uint32_t c = pn_json_first(&d, list); c != PN_JSON_NONE; c = pn_json_next(&d, c))
            check_text(l.v, who, &d, c);
        list = pn_json_get(&d, 0, "chat");
        for (uint32_t c = pn_json_first(&d, list); c != PN_JSON_NONE; c = pn_json_next(&d, c))
            check_chat(&l, who, &d, c);
        list = pn_json_get(&d, 0, "end_tokens");
        for (uint32_t c = pn_json_first(&d, list); c != PN_JSON_NONE; c = pn_json_next(&d, c))
            PN_CHECK(pn_json_i64(&d, c, &id) && pn_vocab_ends(l.v, (pn_token)id), "%s: %" PRId64, who, id);
    }
    unload(&l);
    folder_close(&dir);
    pn_json_fini(&d);
    free(text);
}

static void folders_agree_with_the_reference(void)
{
    check_folder("llama_bf16");
    check_folder("qwen3_tied");
    check_folder("phi3_f16");
    check_folder("mixtral_f32");
}

/* --- the other sources -------------------------------------------------------------------- */

/* tokenizer.model alone: SentencePiece's scores give the ids of the merges, except where the text begins
 * with a space (the fixtures' README) or goes on behind a special token. */
static void a_sentencepiece_file_alone_gives_the_same_ids(void)
{
    folder dir;
    loaded l;
    pn_err err = {0};
    pn_json_doc d = {0};
    size_t n = 0, compared = 0;
    folder_open(&dir, HF "mixtral_f32");
    dir.f.tokenizer_json = (pn_bytes){NULL, 0};
    char *text = pn_test_read_file(HF "mixtral_f32.json", &n);
    if (!PN_CHECK(!load(&l, &libc_mem, &dir.f, 384, &err), "%s", err.text) ||
        !PN_CHECK(text && !pn_json_parse(&d, &libc_mem, PN_ACCT_MISC, text, n, NULL, &err), "%s", err.text))
        return;
    uint32_t list = pn_json_get(&d, 0, "tokenize");
    for (uint32_t c = pn_json_first(&d, list); c != PN_JSON_NONE; c = pn_json_next(&d, c)) {
        pn_bytes s = {"", 0};
        pn_json_str(&d, pn_json_get(&d, c, "text"), &s);
        if (s.len && (s.data[0] == ' ' || s.data[0] == '<' || memcmp(s.data, META, PN_MIN(s.len, (size_t)3)) == 0))
            continue;
        check_text(l.v, "tokenizer.model", &d, c);
        compared++;
    }
    PN_CHECK(compared >= 9);
    want(l.v, " a", 0, "379 379 356");
    unload(&l);
    folder_close(&dir);
    pn_json_fini(&d);
    free(text);
}

/* The vocabulary and merges of tokenizer.json as the older pair of files. */
static void the_older_pair_of_files_gives_the_same_ids(void)
{
    folder dir;
    loaded l;
    pn_err err = {0};
    pn_json_doc d = {0}, t = {0};
    size_t n = 0;
    pn_str vocab, merges;
    pn_str_init(&vocab, &libc_mem, PN_ACCT_MISC);
    pn_str_init(&merges, &libc_mem, PN_ACCT_MISC);
    folder_open(&dir, HF "qwen3_tied");
    char *text = pn_test_read_file(HF "qwen3_tied.json", &n);
    if (PN_CHECK(text && !pn_json_parse(&d, &libc_mem, PN_ACCT_MISC, text, n, NULL, &err) &&
                 !pn_json_parse(&t, &libc_mem, PN_ACCT_MISC, dir.f.tokenizer_json.data, dir.f.tokenizer_json.len, NULL, &err))) {
        uint32_t model = pn_json_get(&t, 0, "model"), list = pn_json_get(&t, model, "merges");
        pn_json_write_node(&vocab, &t, pn_json_get(&t, model, "vocab"));
        pn_str_addz(&merges, "#version: 0.2\n");
        for (uint32_t c = pn_json_first(&t, list); c != PN_JSON_NONE; c = pn_json_next(&t, c)) {
            pn_bytes m;
            PN_CHECK(pn_json_str(&t, c, &m));
            pn_str_add(&merges, m.data, m.len);
            pn_str_addz(&merges, "\r\n");
        }
        dir.f.tokenizer_json = dir.f.tokenizer_config = (pn_bytes){NULL, 0};
        dir.f.vocab_json = (pn_bytes){vocab.data, vocab.len};
        dir.f.merges_txt = (pn_bytes){merges.data, merges.len};
        PN_CHECK(!load(&l, &libc_mem, &dir.f, 304, &err), "%s", err.text);      /* model_type qwen3 says how */
        list = pn_json_get(&d, 0, "tokenize");
        uint32_t c = pn_json_first(&d, list);
        for (int i = 0; i < 12; i++, c = pn_json_next(&d, c))                   /* the others have added tokens */
            check_text(l.v, "vocab.json", &d, c);
        unload(&l);

        dir.f.added_tokens = z("{\"<think>\": 299, \"</think>\": 300}");
        dir.f.tokenizer_config = z("{\"tokenizer_class\": \"Qwen2Tokenizer\", \"added_tokens_decoder\": {\"297\": {\"content\": "
                                   "\"<|im_start|>\", \"special\": true}, \"298\": {\"content\": \"<|im_end|>\", \"special\": true}}}");
        PN_CHECK(!load(&l, &libc_mem, &dir.f, 304, &err), "%s", err.text);
        for (; c != PN_JSON_NONE; c = pn_json_next(&d, c))
            check_text(l.v, "vocab.json", &d, c);
        unload(&l);

        dir.f.tokenizer_config = z("{\"tokenizer_class\": \"HerbertTokenizer\"}");
        PN_CHECK(load(&l, &libc_mem, &dir.f, 304, &err) == PN_E_UNSUPPORTED && strstr(err.text, "HerbertTokenizer"), "%s", err.text);
        unload(&l);
        dir.f.merges_txt = (pn_bytes){NULL, 0};
        PN_CHECK(load(&l, &libc_mem, &dir.f, 304, &err) == PN_E_FORMAT && strstr(err.text, "tokenizer.model"), "%s", err.text);
        unload(&l);
    }
    pn_str_fini(&vocab);
    pn_str_fini(&merges);
    pn_json_fini(&d);
    pn_json_fini(&t);
    folder_close(&dir);
    free(text);
}

/* --- steps, one at a time ----------------------------------------------------------------- */

/* A tokenizer.json around a pipeline: characters, some pairs, and U+2581.  %s: added tokens, then what
 * goes beside the model, then what goes into it. */
static const char *const around =
    "{\"version\":\"1.0\",\"added_tokens\":[%s]%s,\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"" META "\":3,"
    "\"ab\":4,\"bc\":5,\"" META "a\":6,\"" META META "\":7,\"abc\":8,\"<unk>\":9,\"\u00e9\":10,\"<s>\":11,\"</s>\":12,"
    "\"<0xC3>\":13,\"<0xA8>\":14,\"x\":15,\"1\":16,\"11\":17},"
    "\"merges\":[\"b c\",\"a b\",[BAD]\"ab c\",\"" META " a\",\"" META " " META "\",\"1 1\"]%s}}";

static pn_status small(loaded *l, const char *added, const char *beside, const char *inside, pn_err *err)
{
    pn_str s, good;
    pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
    pn_str_init(&good, &libc_mem, PN_ACCT_MISC);
    pn_str_addf(&s, around, added, beside, inside);
    const char *bad = strstr(s.data, "[BAD]");
    pn_str_add(&good, s.data, (size_t)(bad - s.data));
    pn_str_addz(&good, bad + 5);
    pn_hf_files f = {.tokenizer_json = {good.data, good.len}};
    pn_status st = load(l, &libc_mem, &f, 40, err);
    pn_str_fini(&s);
    pn_str_fini(&good);
    return st;
}

typedef struct fact { const char *text, *ids; } fact;

static void steps_give(const char *added, const char *beside, const char *inside, const fact *facts)
{
    loaded l;
    pn_err err = {0};
    if (PN_CHECK(!small(&l, added, beside, inside, &err), "%s: %s", beside, err.text))
        for (; facts->text; facts++) {
            char *got = ids_of(l.v, &libc_mem, z(facts->text), 0, NULL, 0);
            PN_CHECK(strcmp(got, facts->ids) == 0, "%s%s%s: \"%s\" gave [%s], wanted [%s]", added, beside, inside, facts->text, got, facts->ids);
            free(got);
        }
    unload(&l);
}

#define FACTS(...) (const fact[]){__VA_ARGS__, {NULL, NULL}}
#define SPACE ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" META "\"}"
#define METASPACE(scheme, split) \
    ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" META "\",\"prepend_scheme\":\"" scheme "\",\"split\":" split "}"
#define SPLIT(regex, how, invert) ",\"pre_tokenizer\":" SPLIT_ELEMENT("Regex", regex, how, invert)
#define SPLIT_ELEMENT(kind, regex, how, invert) \
    "{\"type\":\"Split\",\"pattern\":{\"" kind "\":\"" regex "\"},\"behavior\":\"" how "\",\"invert\":" invert "}"
#define ELEMENTS(...) ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" __VA_ARGS__ "]}"
#define TOKEN(text, id, flags) "{\"id\":" #id ",\"content\":\"" text "\"" flags "}"
#define UNK ",\"unk_token\":\"<unk>\""

static void each_step_does_what_the_file_says(void)
{
    /* merges by rank; what is no token is dropped before, so its neighbours may merge; or is unknown */
    steps_give("", "", "", FACTS({"abc", "0 5"}, {"ab", "4"}, {"aqb", "4"}, {"<s>", ""}));
    steps_give("", "", UNK, FACTS({"aqb", "0 9 1"}, {"aqqqb", "0 9 9 9 1"}));
    steps_give("", "", UNK ",\"fuse_unk\":true", FACTS({"aqqqb", "0 9 1"}, {"q", "9"}));
    steps_give("", "", ",\"ignore_merges\":true", FACTS({"abc", "8"}, {"abcab", "0 5 4"}));
    /* bytes, all of a character or none */
    steps_give("", "", UNK ",\"byte_fallback\":true", FACTS({"a\u00e8\u00e9", "0 13 14 10"}, {"\u00e7", "9"}));
    /* spaces */
    steps_give("", SPACE, "", FACTS({" a", "6"}, {"a", "0"}, {"  a", "3 6"}, {"   ", "7 3"}));
    steps_give("", METASPACE("always", "false"), "", FACTS({"a", "6"}, {" a", "6"}, {"  a", "3 6"}, {"", ""}));
    steps_give("", METASPACE("never", "false"), "", FACTS({"a", "0"}, {" a", "6"}));
    steps_give("", METASPACE("always", "true"), "", FACTS({"  b", "3 3 1"}, {"b  a", "3 1 3 6"}));
    steps_give(TOKEN("<s>", 11, ""), METASPACE("first", "false"), "", FACTS({"a<s>a", "6 11 0"}, {"<s>a", "11 0"}));
    steps_give(TOKEN("<s>", 11, ""), METASPACE("always", "false"), "", FACTS({"a<s>a", "6 11 6"}));
    /* pieces */
    steps_give("", ",\"pre_tokenizer\":{\"type\":\"Digits\",\"individual_digits\":true}", "", FACTS({"11ab", "16 16 4"}));
    steps_give("", ",\"pre_tokenizer\":{\"type\":\"Digits\",\"individual_digits\":false}", "", FACTS({"11ab", "17 4"}));
    steps_give("", ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
               "\"[0-9][0-9][0-9]\"},\"behavior\":\"Isolated\",\"invert\":false}]}", "", FACTS({"11111ab", "17 16 17 4"}));
    /* patterns that have no name */
    steps_give("", SPLIT("bc", "Isolated", "false"), "", FACTS({"abcab", "0 5 4"}, {"abb", "4 1"}));
    steps_give("", SPLIT("[ab]", "Removed", "false"), "", FACTS({"abc1", "2 16"}));
    steps_give("", SPLIT("[ab]", "Removed", "true"), "", FACTS({"abc1ab", "0 1 0 1"}));
    steps_give("", SPLIT("x", "MergedWithPrevious", "false"), "", FACTS({"abxab", "4 15 4"}));
    steps_give("", SPLIT("\\\\p{N}", "MergedWithNext", "false"), "", FACTS({"1111", "16 16 16 16"}));
    steps_give("", SPLIT("\\\\p{N}", "Contiguous", "false"), "", FACTS({"1111", "17 17"}));
    steps_give("", ",\"pre_tokenizer\":" SPLIT_ELEMENT("String", "|", "Removed", "false"), "", FACTS({"a|b", "0 1"}, {"ab", "4"}));
    steps_give("", ",\"pre_tokenizer\":" SPLIT_ELEMENT("String", "a+", "Isolated", "false"), "", FACTS({"aab", "0 4"}));
    steps_give("", ",\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"}", "", FACTS({"ab a  b", "4 0 1"}));
    steps_give("", ",\"pre_tokenizer\":{\"type\":\"Whitespace\"}", UNK, FACTS({"ab a,b", "4 0 9 1"}, {"a\u200Db", "0 9 1"}, {"a\u00B2b", "0 9 1"}));
    steps_give("", ",\"pre_tokenizer\":{\"type\":\"Punctuation\",\"behavior\":\"Removed\"}", "", FACTS({"a,b", "0 1"}));
    steps_give("", ELEMENTS(SPLIT_ELEMENT("Regex", "a(?=b)", "MergedWithPrevious", "false") ",{\"type\":\"Digits\",\"individual_digits\":true},"
               "{\"type\":\"Punctuation\"}," SPLIT_ELEMENT("String", "c", "Removed", "false")), "", FACTS({"abc11", "0 1 16 16"}));
    steps_give("", METASPACE("always", "true") , "", FACTS({"ab ab", "3 4 3 4"}));
    /* rewriting */
    steps_give("", ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}", "",
               FACTS({"AE\u0301", "0 10"}, {"e\u0301", "10"}));
    steps_give("", ",\"normalizer\":{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}", "", FACTS({" ab ", "4"}));
}

static void added_tokens_keep_their_flags(void)
{
    static const char lower[] = ",\"normalizer\":{\"type\":\"Lowercase\"}";
    steps_give(TOKEN("<s>", 11, ",\"special\":true"), "", "", FACTS({"a<s>", "0"}));       /* plain: left in the text */
    steps_give(TOKEN("<s>", 11, ",\"lstrip\":true,\"normalized\":false"), SPACE, "", FACTS({"a  <s> b", "0 11 3 1"}, {" \u3000<s>", "11"}));
    steps_give(TOKEN("<s>", 11, ",\"rstrip\":true,\"normalized\":false"), SPACE, "", FACTS({"a  <s> \u2003b", "0 7 11 1"}));
    steps_give(TOKEN("ab", 4, ",\"single_word\":true") "," TOKEN("abc", 8, ",\"single_word\":true"), SPACE, "",
               FACTS({"abc", "8"}, {"ab abc", "4 3 8"}, {"xabc", "15 0 5"}, {"abcx", "0 5 15"}));
    /* as the reference has it: white space that is gone can still be a token; what is left in the text hides
     * others; tokens that are not normalized come first wherever they are */
    steps_give(TOKEN("<s>", 11, ",\"rstrip\":true,\"normalized\":false") "," TOKEN("  ", 20, ",\"normalized\":false"), SPACE, "",
               FACTS({"a<s>  b", "0 11 20 1"}, {"a<s> b", "0 11 1"}));
    steps_give(TOKEN("xa", 20, ",\"special\":true") "," TOKEN("a1", 21, ",\"normalized\":false"), "", "", FACTS({"xa1", "15 0 16"}, {"ba1", "1 21"}));
    steps_give(TOKEN("xa", 20, ",\"normalized\":true") "," TOKEN("a1", 21, ",\"normalized\":false"), "", "", FACTS({"xa1", "15 21"}));
    /* what a step takes from the front leaves no beginning */
    steps_give("", ",\"normalizer\":{\"type\":\"StripAccents\"}" METASPACE("first", "false"), "", FACTS({"\u0301a", "0"}, {"a\u0301", "6"}));
    /* the longest at the leftmost place; an id of its own */
    steps_give(TOKEN("xx", 20, "") "," TOKEN("xxx", 21, ""), "", "", FACTS({"axxxxx", "0 21 20"}, {"xaxx", "15 0 20"}));
    /* normalized: looked for after the steps, its own text rewritten too; others before them */
    steps_give(TOKEN("XX", 20, ",\"normalized\":true"), lower, "", FACTS({"aXxb", "0 20 1"}, {"XX", "20"}));
    steps_give(TOKEN("XX", 20, ",\"normalized\":false"), lower, "", FACTS({"aXxb", "0 15 15 1"}, {"aXXb", "0 20 1"}));
}

/* Where untrusted text stands is known after rewriting, too. */
static void rewritten_text_is_held_against_the_spans(void)
{
    loaded l;
    pn_err err = {0};
    const char *text = "e\u0301e\u0301<s>e\u0301<S>";              /* 9 + 3 + 3 + 3 bytes */
    pn_span spans[] = {{6, 9}};
    if (PN_CHECK(!small(&l, TOKEN("<s>", 11, ",\"special\":true,\"normalized\":true"),
                        ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}", UNK, &err), "%s", err.text)) {
        char *all = ids_of(l.v, &libc_mem, z(text), PN_ENC_SPECIAL, NULL, 0), *some = ids_of(l.v, &libc_mem, z(text), 0, spans, 1);
        char *none = ids_of(l.v, &libc_mem, z(text), PN_ENC_SPECIAL, spans, 0);
        PN_CHECK(strcmp(all, "10 10 11 10 11") == 0, "%s", all);
        PN_CHECK(strcmp(some, "10 10 11 10 9 9 9") == 0, "%s", some);
        PN_CHECK(strcmp(none, "10 10 9 9 9 10 9 9 9") == 0, "%s", none);
        free(all);
        free(some);
        free(none);
    }
    unload(&l);
}

static void steps_nobody_knows_are_refused_by_name(void)
{
    static const struct { const char *added, *beside, *inside, *word; } cases[] = {
        {"", ",\"normalizer\":{\"type\":\"Nmt\"}", "", "\"Nmt\""},
        {"", ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a+\"},\"content\":\"\"}", "", "a+"},
        {"", ",\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}", "", "\"UnicodeScripts\""},
        {"", SPLIT("(a)\\\\1", "Isolated", "false"), "", "\"(a)\\1\" is not supported: offset 4"},
        {"", SPLIT("a", "Merged", "false"), "", "\"Merged\""},
        {"", ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"}}", "", "behavior"},
        {"", ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},\"behavior\":\"Removed\"}", "", "without a pattern"},
        {"", ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"}", "", "\"_\""},
        {"", ",\"post_processor\":{\"type\":\"X\"}", "", "post_processor \"X\""},
        {"", ",\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"<s>\",11],\"sep\":[\"x\",4000]}", "", "4000"},
        {"", ",\"decoder\":{\"type\":\"CTC\"}", "", "decoder \"CTC\""},
        {"", "", ",\"end_of_word_suffix\":\"</w>\"", "</w>"},
        {"", "", ",\"type\":\"WordLevel\"", "WordLevel"},
        {TOKEN("<y>", 40, ""), "", "", "40 rows"},
        {TOKEN("", 20, ""), "", "", "content"},
        {TOKEN("<s>", 20, ""), "", "", "was 11"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        loaded l;
        pn_err err = {0};
        pn_status st = small(&l, cases[i].added, cases[i].beside, cases[i].inside, &err);
        PN_CHECK((st == PN_E_UNSUPPORTED || st == PN_E_FORMAT) && strstr(err.text, cases[i].word) && strncmp(err.text, "tokenizer.json: ", 16) == 0,
                 "%s%s: %d, %s", cases[i].beside, cases[i].inside, st, err.text);
        unload(&l);
    }
}

/* --- the small files ---------------------------------------------------------------------- */

static void small_files_say_who_is_who(void)
{
    folder dir;
    loaded l;
    pn_err err = {0};
    folder_open(&dir, HF "mixtral_f32");
    dir.f.tokenizer_config = z("{\"bos_token\":null,\"eos_token\":{\"content\":\"</s>\"},\"pad_token\":\"<gone>\",\"add_bos_token\":true,"
                               "\"additional_special_tokens\":[\"ab\"],\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"T\"},"
                               "{\"name\":\"default\",\"template\":\"D\"},{\"name\":\"x\"}]}");
    dir.f.generation_config = z("{\"eos_token_id\":[2,7,7,100000]}");
    dir.f.config = z("{\"bos_token_id\":0,\"text_config\":{\"eos_token_id\":9,\"pad_token_id\":5}}");
    PN_CHECK(!load(&l, &libc_mem, &dir.f, 384, &err), "%s", err.text);
    PN_CHECK(l.warnings == 2 && strstr(l.warning, "100000"), "%d: %s", l.warnings, l.warning);
    PN_CHECK(pn_vocab_special(l.v, PN_SPECIAL_BOS) == 1);       /* the template processor puts it there */
    PN_CHECK(pn_vocab_special(l.v, PN_SPECIAL_EOS) == 2 && pn_vocab_special(l.v, PN_SPECIAL_PAD) == -1);
    PN_CHECK(pn_vocab_ends(l.v, 2) && pn_vocab_ends(l.v, 7) && pn_vocab_ends(l.v, 9) && !pn_vocab_ends(l.v, 5));
    pn_bytes t = pn_hf_vocab_template(l.h, true), d = pn_hf_vocab_template(l.h, false);
    PN_CHECK(t.len == 1 && t.data[0] == 'T' && d.len == 1 && d.data[0] == 'D');
    unload(&l);

    dir.f.chat_template_jinja = z("J");
    PN_CHECK(!load(&l, &libc_mem, &dir.f, 384, &err), "%s", err.text);
    d = pn_hf_vocab_template(l.h, true);
    PN_CHECK(d.len == 1 && d.data[0] == 'J');
    unload(&l);
    dir.f.tool_use_jinja = z("U");
    PN_CHECK(!load(&l, &libc_mem, &dir.f, 384, &err), "%s", err.text);
    d = pn_hf_vocab_template(l.h, true);
    PN_CHECK(d.len == 1 && d.data[0] == 'U');
    unload(&l);

    dir.f.tokenizer_config = dir.f.chat_template_jinja = (pn_bytes){NULL, 0};
    dir.f.chat_template_json = z("{\"chat_template\":\"C\"}");
    PN_CHECK(!load(&l, &libc_mem, &dir.f, 384, &err), "%s", err.text);
    d = pn_hf_vocab_template(l.h, false);
    PN_CHECK(d.len == 1 && d.data[0] == 'C');
    unload(&l);

    dir.f.config = z("[]");
    PN_CHECK(load(&l, &libc_mem, &dir.f, 384, &err) == PN_E_FORMAT && strstr(err.text, "config.json"), "%s", err.text);
    unload(&l);
    folder_close(&dir);
}

/* Several tokens around a text stay a list. */
static void tokens_around_a_text_may_be_several(void)
{
    loaded l;
    pn_err err = {0};
    const char *post = ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"p\"}},"
                       "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"e\"}}],\"special_tokens\":{\"p\":{\"ids\":[11,2]},\"e\":{\"ids\":[12]}}}";
    PN_CHECK(!small(&l, "", post, "", &err), "%s", err.text);
    want(l.v, "ab", 0, "4");
    want(l.v, "ab", PN_ENC_BOS, "11 2 4 12");
    PN_CHECK(!pn_vocab_add_bos(l.v) && pn_vocab_add_eos(l.v) && pn_vocab_special(l.v, PN_SPECIAL_EOS) == 12);
    unload(&l);
}

/* --- in GGUF's terms ---------------------------------------------------------------------- */

static void gguf_terms_give_the_same_ids(void)
{
    static const struct { const char *name, *model, *pre, *note; uint32_t skip; } cases[] = {
        {"llama_bf16", "gpt2", "llama3", "", 0},
        {"qwen3_tied", "gpt2", "qwen2", "normal form C\n", 1u << 5},
        {"phi3_f16", "llama", "default", "5 tokens do not swallow", 1u << 12 | 1u << 13 | 1u << 15},
        {"mixtral_f32", "llama", "default", "after special tokens", 1u << 1 | 1u << 4 | 1u << 8 | 1u << 10 | 1u << 12 | 1u << 14},
    };
    for (size_t k = 0; k < PN_COUNT_OF(cases); k++) {
        char path[256];
        folder dir;
        pn_hf_vocab *h = NULL;
        pn_vocab *v = NULL;
        pn_err err = {0};
        pn_json_doc d = {0};
        pn_vocab_source src;
        pn_str notes;
        size_t n = 0;
        int64_t rows = 0;
        pn_str_init(&notes, &libc_mem, PN_ACCT_MISC);
        snprintf(path, sizeof path, HF "%s.json", cases[k].name);
        char *text = pn_test_read_file(path, &n);
        snprintf(path, sizeof path, HF "%s", cases[k].name);
        folder_open(&dir, path);
        PN_CHECK(text && !pn_json_parse(&d, &libc_mem, PN_ACCT_MISC, text, n, NULL, &err) &&
                 pn_json_i64(&d, pn_json_get(&d, 0, "n_vocab"), &rows));
        bool ok = !pn_hf_vocab_new(&h, &libc_mem, &dir.f, (uint32_t)rows, NULL, NULL, &err) &&
                  !pn_hf_vocab_gguf(h, &src, &notes, &err) && !pn_vocab_new(&v, &libc_mem, &src, NULL, NULL, &err);
        if (PN_CHECK(ok, "%s: %s", cases[k].name, err.text)) {
            PN_CHECK(src.model.len == strlen(cases[k].model) && memcmp(src.model.data, cases[k].model, src.model.len) == 0);
            PN_CHECK(src.pre.len == strlen(cases[k].pre) && memcmp(src.pre.data, cases[k].pre, src.pre.len) == 0);
            PN_CHECK(src.n_tokens == rows && !src.flags && !src.rules && !src.n_ends && !src.n_prefix);
            PN_CHECK(strstr(pn_str_cstr(&notes), cases[k].note) != NULL && (cases[k].note[0] || !notes.len), "%s: %s", cases[k].name, pn_str_cstr(&notes));
            PN_CHECK(!strstr(pn_str_cstr(&notes), "merges became scores"), "%s: %s", cases[k].name, pn_str_cstr(&notes));
            uint32_t i = 0;
            for (uint32_t c = pn_json_first(&d, pn_json_get(&d, 0, "tokenize")); c != PN_JSON_NONE; c = pn_json_next(&d, c), i++)
                if (!(cases[k].skip >> i & 1))
                    check_text(v, cases[k].name, &d, c);
        }
        pn_vocab_free(v);
        pn_hf_vocab_free(h);
        pn_str_fini(&notes);
        pn_json_fini(&d);
        folder_close(&dir);
        free(text);
    }
}

/* A source with `words` instead of what *src says. */
static pn_status with_cuts(const pn_vocab_source *src, const pn_bytes *words, uint32_t n, pn_err *err)
{
    pn_vocab *v = NULL;
    pn_vocab_source other = *src;
    other.cuts = words;
    other.n_cuts = n;
    pn_status st = pn_vocab_new(&v, &libc_mem, &other, NULL, NULL, err);
    pn_vocab_free(v);
    return st;
}

/* Patterns without a name go into the file in words of our own, under a name that others do not know. */
static void patterns_without_a_name_are_kept_in_words(void)
{
    static const char *const want[] = {
        "next a|b+", "removed! (?:[^c]|c)\\|?", "isolated \\p{N}", "removed [\\p{P}!-/:-@\\[-`{-~]", "contiguous x\\.\\\\ty\\x0a\xC3\xA9 ",
        "isolated 's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    };
    static const char *const texts[] = {"abbab", "ab1 1,ba|cab", " ab", "x.y", "", "11"};
    static const struct { const char *words; const char *why; } bad[] = {
        {"isolated", "not a cut"}, {"isolated ", "not a cut"}, {"together a", "not a cut"}, {"removed!a", "not a cut"}, {"", "not a cut"},
        {"isolated (a)\\1", "patterns[0]: the regular expression \"(a)\\1\" is not supported: offset 4"},
    };
    pn_str json, notes;
    pn_hf_vocab *h = NULL;
    pn_vocab *named = NULL, *file = NULL;
    pn_vocab_source src, ours;
    pn_err err = {0};
    pn_str_init(&json, &libc_mem, PN_ACCT_MISC);
    pn_str_init(&notes, &libc_mem, PN_ACCT_MISC);
    pn_str_addz(&json, "{\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"1\":3,\"\xC4\xA0\":4,\"x\":5,\".\":6,\"y\":7,\"aba\":8,"
                       "\"bab\":9},\"merges\":[\"a b\"]}" ELEMENTS(
        SPLIT_ELEMENT("Regex", "a|b+", "MergedWithNext", "false") "," SPLIT_ELEMENT("Regex", "(?:[^c]|c)\\\\|?", "Removed", "true")
        ",{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"Punctuation\",\"behavior\":\"Removed\"},"
        SPLIT_ELEMENT("String", "x.\\\\ty\\n\u00e9 ", "Contiguous", "false") ",{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}") "}");
    pn_hf_files f = {.tokenizer_json = {json.data, json.len}};
    bool ok = !pn_hf_vocab_new(&h, &libc_mem, &f, 12, NULL, NULL, &err) && !pn_hf_vocab_gguf(h, &src, &notes, &err);
    if (PN_CHECK(ok, "%s", err.text)) {
        PN_CHECK(src.pre.len == 17 && memcmp(src.pre.data, "pantheon-patterns", 17) == 0 && src.ignore_merges && src.n_cuts == 6);
        PN_CHECK(strstr(pn_str_cstr(&notes), "others refuse it") != NULL, "%s", pn_str_cstr(&notes));
        for (size_t i = 0; i < src.n_cuts && i < PN_COUNT_OF(want); i++)
            PN_CHECK(src.cuts[i].len == strlen(want[i]) && memcmp(src.cuts[i].data, want[i], src.cuts[i].len) == 0, "wanted %s, got %.*s", want[i],
                     (int)src.cuts[i].len, src.cuts[i].data);
        pn_hf_vocab_source(h, &ours);
        ok = !pn_vocab_new(&file, &libc_mem, &src, NULL, NULL, &err) && !pn_vocab_new(&named, &libc_mem, &ours, NULL, NULL, &err);
        PN_CHECK(ok, "%s", err.text);
        for (size_t i = 0; i < PN_COUNT_OF(texts) && ok; i++) {
            char *a = ids_of(file, &libc_mem, z(texts[i]), 0, NULL, 0), *b = ids_of(named, &libc_mem, z(texts[i]), 0, NULL, 0);
            PN_CHECK(strcmp(a, b) == 0, "\"%s\": the file gives [%s], the folder [%s]", texts[i], a, b);
            free(a);
            free(b);
        }
        for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
            pn_bytes word = z(bad[i].words);
            PN_CHECK(with_cuts(&src, &word, 1, &err) != PN_OK && strstr(err.text, bad[i].why), "%s: %s", bad[i].words, err.text);
        }
        pn_bytes many[9];
        for (int i = 0; i < 9; i++)
            many[i] = z("isolated a|b");
        PN_CHECK(with_cuts(&src, many, 8, &err) == PN_OK, "%s", err.text);
        PN_CHECK(with_cuts(&src, many, 9, &err) == PN_E_FORMAT && strstr(err.text, "1 to 8"), "%s", err.text);
        PN_CHECK(with_cuts(&src, NULL, 0, &err) == PN_E_FORMAT && strstr(err.text, "pantheon.tokenizer.patterns"), "%s", err.text);
    }
    pn_vocab_free(named);
    pn_vocab_free(file);
    pn_hf_vocab_free(h);
    pn_str_fini(&json);
    pn_str_fini(&notes);
}

/* What no GGUF tokenizer does is refused, saying what; what it does almost is noted. */
static void what_gguf_cannot_say_is_said(void)
{
    static const struct { const char *beside, *inside, *word; } cases[] = {
        {"", "", "U+2581"},
        {SPACE, "", "do not fall back"},
        {SPACE, ",\"byte_fallback\":true,\"ignore_merges\":true", "ignore_merges"},
        {METASPACE("always", "true"), ",\"byte_fallback\":true", "into words"},
        {",\"normalizer\":{\"type\":\"NFKC\"}", ",\"byte_fallback\":true", "rewrites"},
        {",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "", "a space in front"},
        {",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}", "", "no pre-tokenizer has a name"},
    };
    pn_vocab_source src;
    pn_str notes;
    loaded l;
    pn_err err = {0};
    pn_str_init(&notes, &libc_mem, PN_ACCT_MISC);
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        loaded none;
        PN_CHECK(!small(&none, "", cases[i].beside, cases[i].inside, &err), "%s: %s", cases[i].beside, err.text);
        PN_CHECK(pn_hf_vocab_gguf(none.h, &src, &notes, &err) == PN_E_INVALID);             /* trimmed */
        unload(&none);
        l = (loaded){0};
        pn_str s;
        pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
        pn_str_addf(&s, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]%s}%s}", cases[i].inside, cases[i].beside);
        pn_hf_files f = {.tokenizer_json = {s.data, s.len}};
        PN_CHECK(!pn_hf_vocab_new(&l.h, &libc_mem, &f, 5, NULL, NULL, &err), "%s", err.text);
        PN_CHECK(pn_hf_vocab_gguf(l.h, &src, &notes, &err) == PN_E_UNSUPPORTED && strstr(err.text, cases[i].word), "%s%s: %s", cases[i].beside,
                 cases[i].inside, err.text);
        unload(&l);
        pn_str_fini(&s);
    }
    pn_str_fini(&notes);
}

/* --- hostile files ------------------------------------------------------------------------ */

static void broken_files_are_refused_naming_what_is_broken(void)
{
    static const struct { const char *file; pn_status st; const char *words[3]; } cases[] = {
        {"tok_merge_absent.json", PN_E_FORMAT, {"tokenizer.json", "model.merges[4]", "\"zzz\""}},
        {"tok_merge_result_absent.json", PN_E_FORMAT, {"model.merges[4]", "\"qq\"", "not in the vocabulary"}},
        {"tok_id_2e32.json", PN_E_FORMAT, {"model.vocab", "4294967296", "304 rows"}},
        {"tok_id_twice.json", PN_E_FORMAT, {"model.vocab", "id 5", "which is \"&\""}},
        {"tok_added_conflict.json", PN_E_FORMAT, {"added_tokens", "\"<x>\"", "id 7"}},
        {"tok_regex_unknown.json", PN_E_UNSUPPORTED, {"pre_tokenizer", "(?<=a)b|(\\w+)\\s\\1", "regular expression"}},
        {"tok_nested_sequence.json", PN_E_FORMAT, {"pre_tokenizer", "Sequences", "8 deep"}},
        {"tok_merge_three.json", PN_E_FORMAT, {"model.merges[4]", "\"a b c\"", "one space"}},
        {"spm_varint.model", PN_E_FORMAT, {"tokenizer.model", "varint", "10 bytes"}},
        {"spm_group.model", PN_E_FORMAT, {"tokenizer.model", "at byte 0", "group"}},
    };
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        char path[256];
        size_t n = 0;
        pn_err err = {0};
        loaded l;
        snprintf(path, sizeof path, HF "hostile/%s", cases[i].file);
        char *data = pn_test_read_file(path, &n);
        pn_hf_files f = {0};
        *(cases[i].file[0] == 't' ? &f.tokenizer_json : &f.tokenizer_model) = (pn_bytes){data, n};
        pn_status st = load(&l, &libc_mem, &f, 304, &err);
        PN_CHECK(st == cases[i].st, "%s: %d, %s", cases[i].file, st, err.text);
        for (int k = 0; k < 3; k++)
            PN_CHECK(strstr(err.text, cases[i].words[k]) != NULL, "%s: \"%s\" is not in: %s", cases[i].file, cases[i].words[k], err.text);
        unload(&l);
        free(data);
    }
}

/* --- a folder at hand --------------------------------------------------------------------- */

/* Ids of each text of a JSON list, plain and special, one line each; how long reading took. */
static int show_folder(const char *path, uint32_t rows, const char *texts)
{
    folder dir;
    loaded l;
    pn_err err = {0};
    pn_json_doc d = {0};
    size_t n = 0;
    char *text = pn_test_read_file(texts, &n);
    folder_open(&dir, path);
    clock_t start = clock();
    pn_status st = load(&l, &libc_mem, &dir.f, rows, &err);
    fprintf(stderr, "%s: %s, %.0f ms, %d warnings%s%s\n", path, st ? err.text : "read", (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC,
            l.warnings, l.warnings ? ", the last: " : "", l.warning);
    if (!st && text && !pn_json_parse(&d, &libc_mem, PN_ACCT_MISC, text, n, NULL, &err))
        for (uint32_t c = pn_json_first(&d, 0); c != PN_JSON_NONE; c = pn_json_next(&d, c))
            for (size_t m = 0; m < PN_COUNT_OF(modes); m++) {
                pn_bytes s = {"", 0};
                pn_json_str(&d, c, &s);
                char *ids = ids_of(l.v, &libc_mem, s, modes[m].flags, NULL, 0);
                puts(ids);
                free(ids);
            }
    pn_json_fini(&d);
    unload(&l);
    folder_close(&dir);
    free(text);
    return st != PN_OK;
}

/* --- size and memory ---------------------------------------------------------------------- */

/* 200,000 tokens and as many merges, each new token one more letter: read in a fraction of a second. */
static void large_files_take_no_time(void)
{
    enum { N = 200000 };
    pn_str s;
    loaded l;
    pn_err err = {0};
    char name[24], part[24];
    pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
    pn_str_addz(&s, "{\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"vocab\":{\"0\":0");
    for (int c = 1; c < 26; c++)
        pn_str_addf(&s, ",\"%c\":%d", 'a' + c - 1, c);
    for (int i = 26; i < N; i++) {              /* number i - 1 in base 25, digits a..y */
        size_t n = sizeof name - 1;
        name[n] = 0;
        for (int v = i - 1; v; v /= 25)
            name[--n] = (char)('a' + v % 25);
        pn_str_addf(&s, ",\"%s\":%d", name + n, i);
    }
    pn_str_addz(&s, "},\"merges\":[");
    for (int i = 26; i < N; i++) {
        size_t n = sizeof part - 1;
        part[n] = 0;
        for (int v = i - 1; v; v /= 25)
            part[--n] = (char)('a' + v % 25);
        pn_str_addf(&s, i > 26 ? ",[\"%.*s\",\"%c\"]" : "[\"%.*s\",\"%c\"]", (int)(sizeof part - 2 - n), part + n, part[sizeof part - 2]);
    }
    pn_str_addz(&s, "]}}");
    pn_hf_files f = {.tokenizer_json = {s.data, s.len}};
    clock_t start = clock();
    pn_status st = load(&l, &libc_mem, &f, N, &err);
    double ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
    printf("%zu bytes, %d tokens: %.0f ms, %" PRIu64 " + %" PRIu64 " KiB\n", s.len, N, ms, st ? 0 : pn_hf_vocab_bytes(l.h) >> 10,
           st ? 0 : pn_vocab_bytes(l.v) >> 10);
    PN_CHECK(!st && ms < 5000, "%s, %.0f ms", err.text, ms);
    unload(&l);
    pn_str_fini(&s);
}

static void every_failing_allocation_is_a_status_and_no_leak(void)
{
    static const char *const dirs[] = {HF "llama_bf16", HF "qwen3_tied", HF "mixtral_f32", HF "mixtral_f32"};
    for (size_t k = 0; k < PN_COUNT_OF(dirs); k++) {
        folder dir;
        bool done = false;
        folder_open(&dir, dirs[k]);
        if (k == 3)
            dir.f.tokenizer_json = (pn_bytes){NULL, 0};
        for (long at = 1; !done && at < 2000; at++) {
            pn_test_mem tm;
            pn_err err = {0};
            pn_hf_vocab *h = NULL;
            pn_vocab *v = NULL;
            pn_vocab_source src;
            pn_token *ids = NULL;
            size_t n = 0, cap = 0;
            pn_str notes;
            pn_span span = {0, 6};
            pn_test_mem_init(&tm, at);
            pn_str_init(&notes, &tm.mem, PN_ACCT_MISC);
            pn_status st = pn_hf_vocab_new(&h, &tm.mem, &dir.f, 400, NULL, NULL, &err);
            if (!st)
                st = pn_hf_vocab_gguf(h, &src, &notes, &err);
            if (!st) {
                pn_hf_vocab_source(h, &src);
                st = pn_vocab_new(&v, &tm.mem, &src, NULL, NULL, &err);
            }
            if (!st) {
                pn_str_fini(&notes);
                pn_hf_vocab_trim(h);
                PN_CHECK(tm.bytes == pn_hf_vocab_bytes(h) + pn_vocab_bytes(v), "%s holds %" PRIu64 ", says %" PRIu64 " + %" PRIu64, dirs[k],
                         tm.bytes, pn_hf_vocab_bytes(h), pn_vocab_bytes(v));
            }
            if (!st)
                st = pn_vocab_encode(v, &tm.mem, "e\u0301 kel<think>abcdefghijklmnopqrstuvwxyzabcdefghijklmnopq", 47, PN_ENC_BOS, &span, 1, &ids, &n, &cap, &err);
            done = tm.n_calls < at;
            PN_CHECK(st == (done ? PN_OK : PN_E_NOMEM), "%s, allocation %ld: %d, %s", dirs[k], at, st, err.text);
            pn_mem_free(&tm.mem, PN_ACCT_MISC, ids, cap * sizeof *ids);
            pn_str_fini(&notes);
            pn_vocab_free(v);
            pn_hf_vocab_free(h);
            PN_CHECK(tm.outstanding == 0, "%s, allocation %ld: %ld blocks leaked", dirs[k], at, tm.outstanding);
        }
        PN_CHECK(done, "%s", dirs[k]);
        folder_close(&dir);
    }
}

int main(int argc, char **argv)
{
    pn_mem_init_libc(&libc_mem);
    if (argc == 4)
        return show_folder(argv[1], (uint32_t)strtoul(argv[2], NULL, 10), argv[3]);
    folders_agree_with_the_reference();
    a_sentencepiece_file_alone_gives_the_same_ids();
    the_older_pair_of_files_gives_the_same_ids();
    each_step_does_what_the_file_says();
    added_tokens_keep_their_flags();
    rewritten_text_is_held_against_the_spans();
    steps_nobody_knows_are_refused_by_name();
    small_files_say_who_is_who();
    tokens_around_a_text_may_be_several();
    gguf_terms_give_the_same_ids();
    patterns_without_a_name_are_kept_in_words();
    what_gguf_cannot_say_is_said();
    broken_files_are_refused_naming_what_is_broken();
    large_files_take_no_time();
    every_failing_allocation_is_a_status_and_no_leak();
    return pn_test_end();
}
