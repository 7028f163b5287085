/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_vocab.c - a vocabulary made of fuzz bytes, and a text to run through it.
 *
 * The input is read as: a byte each for model, pre-tokenizer, flags and number of tokens; per token a
 * length byte, a type byte and the text; then merges in the same form; then four bytes of ids; a
 * length and that many bytes of charsmap; the rest is the text.  What is checked: no crash, ids in range,
 * streaming gives back all bytes, a text with an empty list of trusted spans makes no guarded token.
 */
#include "base/pn_base.h"
#include "text/pn_cuts.h"
#include "text/pn_vocab.h"
#include "text/pn_vocab_impl.h"

#include "pn_fuzz.h"

typedef struct fuzz_bytes { const uint8_t *p; size_t n; } fuzz_bytes;

static unsigned take(fuzz_bytes *b)
{
    if (!b->n)
        return 0;
    b->n--;
    return *b->p++;
}

static pn_bytes take_text(fuzz_bytes *b, size_t len)
{
    len = PN_MIN(len, b->n);
    pn_bytes t = {(const char *)b->p, len};
    b->p += len;
    b->n -= len;
    return t;
}

static void require(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "fuzz_vocab: %s\n", what);
        abort();
    }
}

static pn_bytes first_name(const pn_pretok *p)
{
    const char *end = strchr(p->names + 1, ' ');
    return (pn_bytes){p->names + 1, (size_t)(end - p->names) - 1};
}

static void run_text(const pn_vocab *v, pn_mem *mem, pn_bytes text, unsigned flags, const pn_span *spans, size_t n_spans)
{
    pn_token *ids = NULL;
    size_t n = 0, cap = 0, bytes = 0;
    char tmp[8];
    pn_detok_state d = {{0}, 0};
    pn_str out;
    pn_str_init(&out, mem, PN_ACCT_MISC);
    if (!pn_vocab_encode(v, mem, text.data, text.len, flags, spans, n_spans, &ids, &n, &cap, NULL))
        for (size_t i = 0; i < n; i++) {
            require(ids[i] >= 0 && (uint32_t)ids[i] < pn_vocab_n_tokens(v), "an id out of range");
            bool unasked = spans && !n_spans && (v->attr[ids[i]] & PN_TA_GUARD);
            require(!unasked || ids[i] == v->unk || ids[i] == v->cls || ids[i] == v->bos || ids[i] == v->eos || ids[i] == v->sep,
                    "untrusted text made a guarded token");
            pn_bytes p = pn_vocab_piece(v, ids[i], true, tmp);
            pn_detok_feed(&d, p.data, p.len, &out);
            bytes += p.len;
        }
    pn_detok_end(&d, &out);
    require(out.len == bytes, "streaming lost bytes");
    pn_str_fini(&out);
    if (ids)
        pn_mem_free(mem, PN_ACCT_MISC, ids, cap * sizeof *ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const models[] = {"gpt2", "llama", "bert", "t5", "rwkv", "gemma4", "whitespace", "none"};
    static pn_bytes tokens[256], merges[64], cuts[4];
    static int32_t types[256];
    static float scores[256];
    fuzz_bytes b = {data, size};
    pn_mem mem;
    pn_vocab *v = NULL;
    size_t n_pre;
    pn_mem_init_libc(&mem);
    const char *model = models[take(&b) % PN_COUNT_OF(models)];
    const pn_pretok *pre = pn_pretok_table(&n_pre);
    pre += take(&b) % n_pre;
    unsigned f = take(&b);
    pn_vocab_source s = {.model = {model, strlen(model)}, .pre = first_name(pre), .tokens = tokens, .merges = merges};
    if (f & 1)
        s.name = (pn_bytes){"phi-3", 5};
    if (f & 2)
        s.types = types;
    if (f & 4)
        s.scores = scores;
    if (f & 64) {
        s.pre = (pn_bytes){PN_CUTS_NAME, sizeof PN_CUTS_NAME - 1};
        s.cuts = cuts;
        s.n_cuts = take(&b) % PN_COUNT_OF(cuts);
    }
    for (uint32_t i = 0; i < s.n_cuts; i++)
        cuts[i] = take_text(&b, take(&b) & 31);
    s.n_tokens = take(&b);
    for (uint32_t i = 0; i < s.n_tokens; i++) {
        unsigned len = take(&b), type = take(&b);
        types[i] = (int32_t)(type & 7);
        scores[i] = (float)(int)(type >> 3) - 16;
        tokens[i] = take_text(&b, len & 15);
    }
    s.n_merges = take(&b) % 64;
    for (uint32_t i = 0; i < s.n_merges; i++)
        merges[i] = take_text(&b, take(&b) & 15);
    s.bos = (int64_t)take(&b) - 1;
    s.eos = (int64_t)take(&b) - 1;
    s.unk = (int64_t)take(&b) - 1;
    s.sep = s.cls = (int64_t)take(&b) - 1;
    s.eot = s.eom = s.pad = s.mask = s.fim_pre = s.fim_suf = s.fim_mid = s.fim_pad = s.fim_rep = s.fim_sep = -1;
    s.add_bos = s.add_eos = (int)(f >> 3 & 1);
    s.add_space_prefix = (int)(f >> 4 & 1);
    s.remove_extra_whitespaces = s.lowercase = s.strip_accents = (int)(f >> 5 & 1);
    pn_bytes map = take_text(&b, take(&b) * 4u);
    s.charsmap = map.len ? (const uint8_t *)map.data : NULL;
    s.charsmap_len = map.len;
    if (pn_vocab_new(&v, &mem, &s, NULL, NULL, NULL) == PN_OK) {
        pn_bytes text = {(const char *)b.p, b.n};
        pn_span spans[2] = {{0, text.len / 3}, {text.len / 2, text.len}};
        run_text(v, &mem, text, 0, NULL, 0);
        run_text(v, &mem, text, PN_ENC_BOS | PN_ENC_SPECIAL, NULL, 0);
        run_text(v, &mem, text, PN_ENC_SPECIAL, spans, 0);
        run_text(v, &mem, text, 0, spans, 2);
        pn_vocab_free(v);
    }
    return 0;
}
