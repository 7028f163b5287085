/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_tokenizer.c - a folder's tokenizer made of fuzz bytes.
 *
 * The first byte says which file the others are:
 *
 *     0, '0'  tokenizer.json          1, '1'  tokenizer.model
 *     2, '2'  tokenizer_config.json, 3, '3' generation_config.json, 4, '4' chat_template.json and config.json,
 *             each beside a small tokenizer.json
 *     5, '5'  vocab.json, and behind a zero byte merges.txt
 *
 * What is checked: no crash, ids below the rows of the embedding, untrusted text makes no guarded token,
 * reading twice gives the same, what can be said in GGUF's terms loads.
 */
#include "base/pn_base.h"
#include "text/pn_hf_vocab.h"
#include "text/pn_vocab_impl.h"

#include "pn_fuzz.h"

#define ROWS 400

static const char small[] =
    "{\"added_tokens\":[{\"id\":5,\"content\":\"<s>\",\"special\":true},{\"id\":6,\"content\":\"</s>\",\"special\":false}],"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\" \":3,\"u\":4},\"merges\":[\"a b\"]}}";

static const char text[] = "ab a  b<s> </s>\n e\xCC\x81\xCC\xA3 \xE2\x96\x81x <0x41> \xF0\x9F\x99\x82 12345 it's IT'LL \xFF\xC3 <|im_end|>aaaaaaaaaaaa"
                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\xE1\x84\x80\xE1\x85\xA1 \xEF\xAC\x81 ABab";

static void require(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "fuzz_tokenizer: %s\n", what);
        abort();
    }
}

static uint64_t run_text(const pn_vocab *v, pn_mem *mem, unsigned flags, const pn_span *spans, size_t n_spans)
{
    pn_token *ids = NULL;
    size_t n = 0, cap = 0;
    uint64_t sum = 17;
    char tmp[8];
    if (!pn_vocab_encode(v, mem, text, sizeof text - 1, flags, spans, n_spans, &ids, &n, &cap, NULL))
        for (size_t i = 0; i < n; i++) {
            require(ids[i] >= 0 && (uint32_t)ids[i] < pn_vocab_n_tokens(v), "an id out of range");
            bool unasked = spans && !n_spans && (v->attr[ids[i]] & PN_TA_GUARD);
            require(!unasked || ids[i] == v->unk || (v->rules && ids[i] == v->rules->unk), "untrusted text made a guarded token");
            pn_bytes p = pn_vocab_piece(v, ids[i], true, tmp);
            sum = (sum ^ (uint64_t)ids[i] ^ p.len) * 0x9e3779b97f4a7c15u;
        }
    if (ids)
        pn_mem_free(mem, PN_ACCT_MISC, ids, cap * sizeof *ids);
    return sum;
}

static uint64_t run_vocab(const pn_vocab *v, pn_mem *mem)
{
    static const pn_span spans[2] = {{0, 14}, {20, sizeof text - 1}};
    uint64_t sum = run_text(v, mem, 0, NULL, 0);
    sum = sum * 31 + run_text(v, mem, PN_ENC_BOS | PN_ENC_SPECIAL, NULL, 0);
    sum = sum * 31 + run_text(v, mem, PN_ENC_SPECIAL, spans, 0);
    return sum * 31 + run_text(v, mem, 0, spans, 2);
}

static uint64_t run_files(const pn_hf_files *f, pn_mem *mem)
{
    pn_hf_vocab *h = NULL;
    pn_vocab *v = NULL;
    pn_vocab_source src;
    pn_err err = {0};
    uint64_t sum = 0;
    pn_str notes;
    pn_str_init(&notes, mem, PN_ACCT_MISC);
    if (pn_hf_vocab_new(&h, mem, f, ROWS, NULL, NULL, &err)) {
        require(err.text[0] != 0, "a refusal without a word");
        return 0;
    }
    if (!pn_hf_vocab_gguf(h, &src, &notes, &err)) {
        require(src.n_tokens == ROWS, "GGUF's terms leave rows out");
        if (!pn_vocab_new(&v, mem, &src, NULL, NULL, NULL))
            run_vocab(v, mem);
        pn_vocab_free(v);
        v = NULL;
    }
    pn_hf_vocab_source(h, &src);
    if (!pn_vocab_new(&v, mem, &src, NULL, NULL, NULL)) {
        pn_hf_vocab_trim(h);
        sum = run_vocab(v, mem);
    }
    pn_vocab_free(v);
    pn_hf_vocab_free(h);
    pn_str_fini(&notes);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pn_mem mem;
    pn_mem_init_libc(&mem);
    if (!size)
        return 0;
    pn_bytes rest = {(const char *)data + 1, size - 1};
    pn_hf_files f = {.tokenizer_json = {small, sizeof small - 1}};
    const char *zero = rest.len ? memchr(rest.data, 0, rest.len) : NULL;
    size_t head = zero ? (size_t)(zero - rest.data) : rest.len;
    switch (data[0] & 0x0F) {
    case 0: f.tokenizer_json = rest; break;
    case 1: f = (pn_hf_files){.tokenizer_model = rest}; break;
    case 2: f.tokenizer_config = f.special_tokens_map = rest; break;
    case 3: f.generation_config = rest; break;
    case 4: f.chat_template_json = f.config = rest; break;
    default:
        f = (pn_hf_files){.config = {"{\"model_type\":\"qwen3\"}", 22}, .vocab_json = {rest.data, head}};
        f.merges_txt = zero ? (pn_bytes){zero + 1, rest.len - head - 1} : (pn_bytes){"", 0};
    }
    require(run_files(&f, &mem) == run_files(&f, &mem), "two readings differ");
    return 0;
}
