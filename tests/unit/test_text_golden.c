/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Token ids against the reference: small vocabularies from tests/vectors/tokenize, and, where the golden
 * fixtures are at hand (PANTHEON_GOLDEN), real ones with eighty awkward strings each.
 *
 *     test_text_golden [NAME ...]     only these real vocabularies
 */
#include "pn_test.h"
#include "base/pn_json.h"
#include "vocab_from_gguf.h"

#include <time.h>

static pn_mem mem;

static const struct { const char *name; unsigned flags; } modes[] = {
    {"plain", 0}, {"special", PN_ENC_SPECIAL}, {"bos", PN_ENC_BOS}, {"bos_special", PN_ENC_BOS | PN_ENC_SPECIAL},
};

static void show(const char *what, const pn_token *t, size_t n)
{
    printf("  %s:", what);
    for (size_t i = 0; i < n && i < 60; i++)
        printf(" %" PRId32, t[i]);
    printf("\n");
}

/* Encode and compare; also decode what came out when the text survives that. */
static void check_ids(const test_vocab *t, const char *who, const char *mode, unsigned flags, const char *text, size_t n,
                      const pn_token *want, size_t n_want)
{
    pn_token *got = NULL;
    size_t n_got = 0, cap = 0;
    pn_err err = {0};
    pn_status st = pn_vocab_encode(t->v, &mem, text, n, flags, NULL, 0, &got, &n_got, &cap, &err);
    bool same = !st && n_got == n_want && (!n_want || memcmp(got, want, n_want * sizeof *got) == 0);
    if (!PN_CHECK(same, "%s, %s: \"%.*s\" %s", who, mode, (int)PN_MIN(n, (size_t)60), text, err.text)) {
        show("want", want, n_want);
        show("got ", got, n_got);
    }
    pn_mem_free(&mem, PN_ACCT_MISC, got, cap * sizeof *got);
}

static size_t unhex(const char *hex, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i + 1 < n; i += 2) {
        unsigned v = 0;
        sscanf(hex + i, "%2x", &v);
        out[k++] = (char)v;
    }
    return k;
}

/* "MODE HEX ID ID ..." */
static void check_line(const test_vocab *t, const char *who, char *line)
{
    static char text[1 << 14];
    static pn_token ids[1 << 12];
    char *hex = strchr(line, ' ');
    if (!hex)
        return;
    *hex++ = 0;
    char *rest = strchr(hex, ' ');
    if (rest)
        *rest++ = 0;
    size_t n = unhex(hex, strlen(hex), text), k = 0;
    for (char *end; rest && *rest; rest = end) {
        long id = strtol(rest, &end, 10);
        if (end == rest)
            break;
        ids[k++] = (pn_token)id;
    }
    for (size_t m = 0; m < PN_COUNT_OF(modes); m++)
        if (strcmp(modes[m].name, line) == 0)
            check_ids(t, who, line, modes[m].flags, text, n, ids, k);
}

static void small_vocabularies_agree_with_the_reference(void)
{
    static const char *const names[] = {"deepseek2_kvb", "gemma2", "gemma4", "glm4moe", "gpt2", "gpt_oss", "lfm2",
                                        "llama_gqa_tied", "llama_moe", "mistral3", "phi3", "qwen2", "qwen35", "rwkv7",
                                        "starcoder2"};
    for (size_t i = 0; i < PN_COUNT_OF(names); i++) {
        char path[128];
        size_t n = 0;
        test_vocab t;
        pn_err err = {0};
        snprintf(path, sizeof path, "tests/vectors/tokenize/%s.gguf", names[i]);
        char *file = pn_test_read_file(path, &n);
        snprintf(path, sizeof path, "tests/vectors/tokenize/%s.txt", names[i]);
        char *facts = pn_test_read_file(path, NULL);
        if (PN_CHECK(file && facts, "%s", path) && PN_CHECK(test_vocab_open(&t, &mem, file, n, &err), "%s: %s", path, err.text))
            for (char *line = facts, *next; line && *line; line = next) {
                next = strchr(line, '\n');
                if (next)
                    *next++ = 0;
                check_line(&t, names[i], line);
            }
        if (file)
            test_vocab_close(&t);
        free(file);
        free(facts);
    }
}

static void check_case(const test_vocab *t, const char *who, const pn_json_doc *d, uint32_t test)
{
    static char text[1 << 14];
    static pn_token ids[1 << 14];
    pn_bytes hex = {"", 0}, name = {"", 0};
    pn_json_str(d, pn_json_get(d, test, "bytes"), &hex);
    pn_json_str(d, pn_json_get(d, test, "name"), &name);
    if (name.len > 7 && memcmp(name.data, "invalid", 7) == 0)
        return;                             /* how bad UTF-8 maps is each engine's choice */
    size_t n = unhex(hex.data, hex.len, text);
    for (size_t m = 0; m < PN_COUNT_OF(modes); m++) {
        uint32_t list = pn_json_get(d, test, modes[m].name);
        if (pn_json_type_of(d, list) != PN_JSON_ARRAY)
            continue;
        size_t k = 0;
        for (uint32_t c = pn_json_first(d, list); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
            int64_t id = -1;
            pn_json_i64(d, c, &id);
            ids[k++] = (pn_token)id;
        }
        char label[128];
        snprintf(label, sizeof label, "%s (%.*s)", who, (int)PN_MIN(name.len, (size_t)60), name.data);
        check_ids(t, label, modes[m].name, modes[m].flags, text, n, ids, k);
    }
}

static void check_real(const char *dir, const char *who)
{
    char path[512];
    size_t n = 0, n_json = 0;
    pn_err err = {0};
    pn_json_doc d;
    test_vocab t;
    snprintf(path, sizeof path, "%s/tokenizers/ggml-vocab-%s.gguf.gz", dir, who);
    FILE *probe = fopen(path, "rb");
    if (!probe) {
        pn_test_skip("%s: no vocabulary there", who);
        return;
    }
    fclose(probe);
    char *file = test_read_gz(path, &n);
    snprintf(path, sizeof path, "%s/tokenizers/%s.json", dir, who);
    char *text = pn_test_read_file(path, &n_json);
    if (!PN_CHECK(file && text && !pn_json_parse(&d, &mem, PN_ACCT_MISC, text, n_json, NULL, &err), "%s: %s", path, err.text))
        return;
    int failed = pn_test_failed;
    clock_t start = clock();
    bool open = test_vocab_open(&t, &mem, file, n, &err);
    double ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
    if (PN_CHECK(open, "%s: %s", who, err.text)) {
        uint32_t tests = pn_json_get(&d, 0, "tests");
        for (uint32_t c = pn_json_first(&d, tests); c != PN_JSON_NONE; c = pn_json_next(&d, c))
            check_case(&t, who, &d, c);
        printf("%-16s %6" PRIu32 " tokens, %6" PRIu32 " merges, read in %3.0f ms, %5" PRIu64 " KiB: %s\n", who,
               t.src.n_tokens, t.src.n_merges, ms, pn_vocab_bytes(t.v) >> 10, pn_test_failed == failed ? "equal" : "DIFFERENT");
    }
    test_vocab_close(&t);
    pn_json_fini(&d);
    free(file);
    free(text);
}

static void real_vocabularies_agree_with_the_reference(int argc, char **argv)
{
    static const char *const names[] = {"aquila", "baichuan", "bert-bge", "command-r", "deepseek-coder", "deepseek-llm",
                                        "falcon", "gemma-4", "gpt-2", "gpt-neox", "llama-bpe", "llama-spm", "mpt",
                                        "nomic-bert-moe", "phi-3", "qwen2", "qwen35", "refact", "starcoder"};
    const char *dir = getenv("PANTHEON_GOLDEN") ? getenv("PANTHEON_GOLDEN") : "../shared/golden";
    char path[512];
    snprintf(path, sizeof path, "%s/README.md", dir);
    FILE *probe = fopen(path, "rb");
    if (!probe) {
        pn_test_skip("real vocabularies: no golden fixtures in %s", dir);
        return;
    }
    fclose(probe);
    for (size_t i = 0; i < PN_COUNT_OF(names); i++) {
        bool wanted = argc < 2;
        for (int a = 1; a < argc; a++)
            wanted = wanted || strcmp(argv[a], names[i]) == 0;
        if (wanted)
            check_real(dir, names[i]);
    }
}

int main(int argc, char **argv)
{
    pn_mem_init_libc(&mem);
    small_vocabularies_agree_with_the_reference();
    real_vocabularies_agree_with_the_reference(argc, argv);
    return pn_test_end();
}
