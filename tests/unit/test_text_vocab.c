/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Vocabularies made by hand: what each encoder must do, who may write control tokens, streaming, bad
 * files, and every allocation failing in turn.
 */
#include "pn_test.h"
#include "base/pn_utf8.h"
#include "text/pn_vocab.h"
#include "text/pn_vocab_impl.h"

#define HOLDS(cond) PN_CHECK(cond, " ")
#define SP "\xE2\x96\x81"

enum { MAX_TOKENS = 700 };

typedef struct maker {
    pn_vocab_source s;
    pn_bytes tokens[MAX_TOKENS], merges[64];
    float scores[MAX_TOKENS];
    int32_t types[MAX_TOKENS];
    char bytes[256][8];
    int warnings;
    char warning[256];
} maker;

static pn_mem libc_mem;

static pn_bytes z(const char *text) { return (pn_bytes){text, strlen(text)}; }

static maker *make(const char *model, const char *pre)
{
    maker *m = calloc(1, sizeof *m);
    pn_vocab_source *s = &m->s;
    s->model = z(model);
    s->pre = z(pre);
    s->tokens = m->tokens;
    s->scores = m->scores;
    s->types = m->types;
    s->merges = m->merges;
    s->bos = s->eos = s->eot = s->eom = s->unk = s->sep = s->pad = s->mask = s->cls = -1;
    s->fim_pre = s->fim_suf = s->fim_mid = s->fim_pad = s->fim_rep = s->fim_sep = -1;
    s->add_bos = s->add_eos = s->add_sep = s->add_space_prefix = s->remove_extra_whitespaces = -1;
    s->lowercase = s->strip_accents = -1;
    return m;
}

static pn_token add(maker *m, const char *text, int kind, float score)
{
    uint32_t i = m->s.n_tokens++;
    m->tokens[i] = z(text);
    m->types[i] = kind;
    m->scores[i] = score;
    return (pn_token)i;
}

static void merge(maker *m, const char *text) { m->merges[m->s.n_merges++] = z(text); }

/* 256 tokens for the bytes: "<0xHH>", or GPT-2's alphabet. */
static void add_bytes(maker *m, bool alphabet)
{
    for (unsigned c = 0; c < 256; c++) {
        char *t = m->bytes[c];
        if (alphabet)
            t[pn_utf8_encode(pn_bpe_byte_to_cp((uint8_t)c), t)] = 0;
        else
            snprintf(t, 8, "<0x%02X>", c);
        add(m, t, alphabet ? PN_TOKEN_NORMAL : PN_TOKEN_BYTE, 0);
    }
}

static void on_warning(void *user, const char *text)
{
    maker *m = user;
    m->warnings++;
    snprintf(m->warning, sizeof m->warning, "%s", text);
}

static pn_vocab *build(maker *m)
{
    pn_vocab *v = NULL;
    pn_err err = {0};
    PN_CHECK(pn_vocab_new(&v, &libc_mem, &m->s, on_warning, m, &err) == PN_OK, "%s", err.text);
    return v;
}

/* Encoded as "12 3 45". */
static const char *ids_of(const pn_vocab *v, const char *text, size_t n, unsigned flags, const pn_span *spans, size_t n_spans)
{
    static char out[4][4096];
    static int turn;
    char *o = out[turn++ & 3];
    pn_token *t = NULL;
    size_t k = 0, cap = 0, at = 0;
    pn_err err = {0};
    if (pn_vocab_encode(v, &libc_mem, text, n, flags, spans, n_spans, &t, &k, &cap, &err))
        snprintf(o, sizeof out[0], "%s", err.text);
    o[at] = 0;
    for (size_t i = 0; i < k && at + 12 < sizeof out[0]; i++)
        at += (size_t)snprintf(o + at, 12, i ? " %" PRId32 : "%" PRId32, t[i]);
    pn_mem_free(&libc_mem, PN_ACCT_MISC, t, cap * sizeof *t);
    return o;
}

static void want(const pn_vocab *v, const char *text, unsigned flags, const char *ids)
{
    const char *got = ids_of(v, text, strlen(text), flags, NULL, 0);
    PN_CHECK(strcmp(got, ids) == 0, "\"%s\" gave [%s], wanted [%s]", text, got, ids);
}

/* --- small vocabularies, one of each kind --------------------------------------------------- */

static maker *spm_maker(void)
{
    maker *m = make("llama", "default");
    add(m, "<unk>", PN_TOKEN_UNKNOWN, 0);               /* 0 */
    add(m, "<s>", PN_TOKEN_CONTROL, 0);
    add(m, "</s>", PN_TOKEN_CONTROL, 0);
    add_bytes(m, false);                                /* 3..258 */
    add(m, SP, PN_TOKEN_NORMAL, -10);                   /* 259 */
    add(m, "a", PN_TOKEN_NORMAL, -11);
    add(m, "b", PN_TOKEN_NORMAL, -12);
    add(m, "aa", PN_TOKEN_NORMAL, -2);                  /* 262 */
    add(m, "ab", PN_TOKEN_NORMAL, -1);
    add(m, SP "a", PN_TOKEN_NORMAL, -3);                /* 264 */
    add(m, SP SP, PN_TOKEN_NORMAL, -4);
    add(m, "<tool>", PN_TOKEN_USER_DEFINED, 0);         /* 266 */
    add(m, "<", PN_TOKEN_NORMAL, -20);
    add(m, "s>", PN_TOKEN_NORMAL, -5);                  /* 268 */
    add(m, "s", PN_TOKEN_NORMAL, -20);
    add(m, ">", PN_TOKEN_NORMAL, -20);
    return m;
}

static maker *bpe_maker(void)
{
    maker *m = make("gpt2", "gpt-2");
    add_bytes(m, true);
    add(m, "he", PN_TOKEN_NORMAL, 0);                   /* 256 */
    add(m, "ll", PN_TOKEN_NORMAL, 0);
    add(m, "hell", PN_TOKEN_NORMAL, 0);                 /* 258 */
    add(m, "\xC4\xA0hell", PN_TOKEN_NORMAL, 0);
    add(m, "<|im_start|>", PN_TOKEN_NORMAL, 0);         /* 260: a marker, typed wrongly */
    add(m, "<|im_end|>", PN_TOKEN_NORMAL, 0);           /* 261: an end, typed wrongly */
    add(m, "<think>", PN_TOKEN_USER_DEFINED, 0);        /* 262 */
    add(m, "    ", PN_TOKEN_USER_DEFINED, 0);           /* 263 */
    add(m, "<|endoftext|>", PN_TOKEN_CONTROL, 0);       /* 264 */
    merge(m, "h e");
    merge(m, "l l");
    merge(m, "he ll");
    merge(m, "\xC4\xA0 hell");
    m->s.bos = m->s.eos = 264;
    return m;
}

static maker *ugm_maker(void)
{
    maker *m = make("t5", "");
    add(m, "<pad>", PN_TOKEN_CONTROL, 0);               /* 0 */
    add(m, "</s>", PN_TOKEN_CONTROL, 0);
    add(m, "<unk>", PN_TOKEN_UNKNOWN, 0);
    add(m, SP, PN_TOKEN_NORMAL, -2);                    /* 3 */
    add(m, "a", PN_TOKEN_NORMAL, -3);
    add(m, "b", PN_TOKEN_NORMAL, -3.5f);
    add(m, "ab", PN_TOKEN_NORMAL, -4);                  /* 6 */
    add(m, SP "a", PN_TOKEN_NORMAL, -4.25f);
    add(m, "bab", PN_TOKEN_NORMAL, -6);                 /* 8 */
    m->s.add_space_prefix = m->s.remove_extra_whitespaces = 1;
    return m;
}

static maker *wpm_maker(void)
{
    maker *m = make("bert", "");
    add(m, "[PAD]", PN_TOKEN_CONTROL, 0);
    add(m, "[UNK]", PN_TOKEN_CONTROL, 0);
    add(m, "[CLS]", PN_TOKEN_CONTROL, 0);
    add(m, "[SEP]", PN_TOKEN_CONTROL, 0);
    add(m, SP "un", PN_TOKEN_NORMAL, 0);                /* 4 */
    add(m, "able", PN_TOKEN_NORMAL, 0);
    add(m, SP "e", PN_TOKEN_NORMAL, 0);                 /* 6 */
    add(m, SP ",", PN_TOKEN_NORMAL, 0);
    add(m, SP "\xE4\xB8\xAD", PN_TOKEN_NORMAL, 0);      /* 8 */
    m->s.unk = 1;
    m->s.cls = m->s.bos = 2;
    m->s.sep = 3;
    m->s.pad = 0;
    return m;
}

static maker *rwkv_maker(void)
{
    maker *m = make("rwkv", "");
    add(m, "<s>", PN_TOKEN_CONTROL, 0);
    add(m, "a", PN_TOKEN_NORMAL, 0);
    add(m, "ab", PN_TOKEN_NORMAL, 0);
    add(m, "\\n", PN_TOKEN_NORMAL, 0);                  /* 3 */
    add(m, "\\n\\n", PN_TOKEN_NORMAL, 0);
    add(m, "\\xe4\\xb8", PN_TOKEN_NORMAL, 0);           /* 5 */
    add(m, "\\\\", PN_TOKEN_NORMAL, 0);
    add(m, "\\'", PN_TOKEN_NORMAL, 0);                  /* 7 */
    return m;
}

static maker *raw_maker(void)
{
    maker *m = make("gemma4", "");
    add(m, "<pad>", PN_TOKEN_CONTROL, 0);
    add(m, "<eos>", PN_TOKEN_CONTROL, 0);
    add(m, "<bos>", PN_TOKEN_CONTROL, 0);               /* 2 */
    add_bytes(m, false);                                /* 3.. */
    add(m, SP, PN_TOKEN_NORMAL, 0);                     /* 259 */
    add(m, "a", PN_TOKEN_NORMAL, 0);
    add(m, SP "a", PN_TOKEN_NORMAL, 0);                 /* 261 */
    add(m, "\n\n", PN_TOKEN_NORMAL, 0);
    add(m, "\xC3\xA9", PN_TOKEN_NORMAL, 0);             /* 263 */
    merge(m, SP " a");
    m->s.bos = 2;
    m->s.eos = 1;
    m->s.add_bos = 0;
    return m;
}

typedef maker *(*maker_fn)(void);
static const maker_fn all_makers[] = {spm_maker, bpe_maker, ugm_maker, wpm_maker, rwkv_maker, raw_maker};

/* --- what must hold ------------------------------------------------------------------------- */

static void spm_merges_by_score_and_falls_back_to_bytes(void)
{
    maker *m = spm_maker();
    pn_vocab *v = build(m);
    want(v, "", PN_ENC_BOS, "1");
    want(v, "a", 0, "264");
    want(v, "aab", 0, "264 263");                       /* ab -1 first, then " a" -3 */
    want(v, "baaa", 0, "259 261 262 260");              /* ties: the leftmost pair */
    want(v, "  a", 0, "265 264");
    want(v, "\xC3\xA9", 0, "259 198 172");
    want(v, "\xFF" "a", 0, "259 258 260");
    want(v, "<tool>a", 0, "266 264");                   /* user-defined always; then a prefix again */
    want(v, "a</s>a", PN_ENC_SPECIAL | PN_ENC_BOS, "1 264 2 264");
    PN_CHECK(v->words_apart, "no token joins words here");
    PN_CHECK(pn_vocab_special(v, PN_SPECIAL_NEWLINE) == 3 + 10, "newline is a byte token");
    PN_CHECK(pn_vocab_strips_leading_space(v), "it added one");
    pn_vocab_free(v);
    free(m);
}

static void bpe_merges_by_rank(void)
{
    maker *m = bpe_maker();
    pn_vocab *v = build(m);
    want(v, "hello hell", 0, "258 111 259");
    want(v, "\xFF\x80", 0, "255 128");
    want(v, "x<think>    y", 0, "120 262 263 121");
    want(v, "<|im_end|>", PN_ENC_SPECIAL, "261");       /* promoted by the table of ends */
    PN_CHECK(pn_vocab_kind(v, 261) == PN_TOKEN_CONTROL && pn_vocab_ends(v, 261) && pn_vocab_ends(v, 264), "ends");
    PN_CHECK(pn_vocab_special(v, PN_SPECIAL_EOT) == 261, "EOT is found by its text");
    PN_CHECK(pn_vocab_special(v, PN_SPECIAL_NEWLINE) == 10, "newline");
    PN_CHECK(!pn_vocab_strips_leading_space(v), "nothing was added");
    pn_vocab_free(v);
    m->s.pre = z("llama-bpe");                          /* whole words first, and BOS */
    m->tokens[257] = z("xyz");
    v = build(m);
    want(v, "xyz", PN_ENC_BOS, "264 257");
    pn_vocab_free(v);
    free(m);
}

/* "q r" and "qr s" name pieces that are no tokens; "qrs" is one. */
static void bpe_merges_may_pass_through_pieces_that_are_no_tokens(void)
{
    maker *m = bpe_maker();
    add(m, "qrs", PN_TOKEN_NORMAL, 0);
    merge(m, "q r");
    merge(m, "qr s");
    merge(m, "zz ww");
    merge(m, "broken");
    merge(m, "");
    merge(m, " ");
    merge(m, "x ");
    pn_vocab *v = build(m);
    want(v, "qrs", 0, "265");
    want(v, "qrt", 0, "113 114 116");
    PN_CHECK(m->warnings == 1, "the broken entries are told once, not %d times", m->warnings);
    pn_vocab_free(v);
    free(m);
}

static void raw_bpe_escapes_spaces_and_keeps_newline_runs(void)
{
    maker *m = raw_maker();
    pn_vocab *v = build(m);
    want(v, " a\n\na\xC3\xA9\xE4", PN_ENC_BOS, "2 261 262 260 263 231");
    want(v, "\n\n\n", 0, "13 13 13");
    PN_CHECK(pn_vocab_add_bos(v), "forced, though the file says no");
    pn_vocab_free(v);
    free(m);
}

static void unigram_takes_the_most_probable_path(void)
{
    maker *m = ugm_maker();
    pn_vocab *v = build(m);
    want(v, "ab", PN_ENC_BOS, "3 6 1");                 /* -2 -4 beats -4.25 -3.5 */
    want(v, "bab", 0, "3 8");
    want(v, " a  ", 0, "7");
    want(v, "xyz a", 0, "3 2 7");                       /* one unknown for three letters */
    want(v, "x y", 0, "3 2 3 2");
    pn_vocab_free(v);
    m->s.add_space_prefix = m->s.remove_extra_whitespaces = 0;
    v = build(m);
    want(v, "a  a", 0, "4 3 7");
    want(v, "\xFF\xFE", 0, "2");
    pn_vocab_free(v);
    free(m);
}

/* Words solved alone and the text solved as a whole are the same. */
static void unigram_words_may_be_solved_apart(void)
{
    maker *m = ugm_maker();
    pn_vocab *v = build(m);
    uint64_t seed = 7;
    HOLDS(v->words_apart);
    for (int round = 0; round < 300; round++) {
        char text[40];
        size_t n = pn_test_rand(&seed) % sizeof text;
        for (size_t i = 0; i < n; i++)
            text[i] = "aab bx "[pn_test_rand(&seed) % 7];
        v->words_apart = true;
        const char *apart = ids_of(v, text, n, 0, NULL, 0);
        v->words_apart = false;
        const char *whole = ids_of(v, text, n, 0, NULL, 0);
        PN_CHECK(strcmp(apart, whole) == 0, "[%s] [%s]", apart, whole);
    }
    pn_vocab_free(v);
    add(m, "b" SP "a", PN_TOKEN_NORMAL, -1);
    v = build(m);
    PN_CHECK(!v->words_apart, "a token crosses words");
    want(v, "b a", 0, "3 9");
    pn_vocab_free(v);
    free(m);
}

/* A charsmap of one rule: "A" -> "ab". */
static size_t charsmap(uint8_t *out)
{
    uint32_t units[256] = {0};
    units[0] = 1u << 10;                        /* root: offset 1 */
    units[1 ^ 'A'] = (uint32_t)'A' | 256u | (uint32_t)(1 ^ 'A' ^ 200) << 10;
    units[200] = 0x80000000u;                   /* leaf: text 0 */
    uint32_t bytes = sizeof units;
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(bytes >> 8 * i);
    for (size_t u = 0; u < 256; u++)
        for (int i = 0; i < 4; i++)
            out[4 + 4 * u + (size_t)i] = (uint8_t)(units[u] >> 8 * i);
    memcpy(out + 4 + bytes, "ab", 3);
    return 4 + bytes + 3;
}

static void charsmaps_replace_and_hostile_ones_are_harmless(void)
{
    static uint8_t blob[2048], bad[2048];
    maker *m = ugm_maker();
    size_t n = charsmap(blob);
    pn_vocab *v;
    pn_err err = {0};
    m->s.charsmap = blob;
    m->s.charsmap_len = n;
    v = build(m);
    want(v, "A", 0, "3 6");
    pn_vocab_free(v);
    for (size_t cut = 0; cut < n; cut += cut < 12 ? 1 : 101) {
        m->s.charsmap_len = cut;
        v = NULL;
        pn_status st = pn_vocab_new(&v, &libc_mem, &m->s, NULL, NULL, &err);
        PN_CHECK(cut == 0 ? st == PN_OK : st == PN_E_FORMAT, "cut at %zu: %d %s", cut, st, err.text);
        pn_vocab_free(v);
    }
    uint64_t seed = 3;
    m->s.charsmap = bad;
    m->s.charsmap_len = n;
    for (int round = 0; round < 300; round++) {
        memcpy(bad, blob, n);
        for (int k = 0; k < 40; k++)
            bad[4 + pn_test_rand(&seed) % (n - 5)] = (uint8_t)pn_test_rand(&seed);
        v = build(m);
        ids_of(v, "AABA abA\xC3\xA9", 10, 0, NULL, 0);
        pn_vocab_free(v);
    }
    free(m);
}

static void wordpiece_is_greedy_and_all_or_nothing(void)
{
    maker *m = wpm_maker();
    pn_vocab *v = build(m);
    want(v, "Unable, \xC3\xA9\xE4\xB8\xAD", PN_ENC_BOS, "2 4 5 7 6 8 3");
    want(v, "unablex un", 0, "1 4");
    want(v, "u\x01n\n\xC3\x80", 0, "4 1");
    want(v, "[SEP]un", PN_ENC_SPECIAL, "3 4");
    want(v, "[SEP]", 0, "1 1 1");
    pn_vocab_free(v);
    free(m);
}

static void rwkv_takes_the_longest_token(void)
{
    maker *m = rwkv_maker();
    pn_vocab *v = build(m);
    char tmp[8];
    want(v, "aba\n\n\n\\'", PN_ENC_BOS, "2 1 4 3 6 7");
    want(v, "\xE4\xB8" "a?", 0, "5 1");                 /* no unknown token: left out */
    PN_CHECK(pn_vocab_piece(v, 5, false, tmp).len == 2, "unescaped");
    pn_vocab_free(v);
    free(m);
}

static void text_nobody_vouches_for_makes_no_control_tokens(void)
{
    maker *m = bpe_maker();
    pn_vocab *v = build(m);
    const char *text = "<|im_start|>hell<|im_end|><think>    <|im_start|>";
    pn_span spans[2] = {{0, 12}, {26, 33}};             /* the first marker, <think> */
    const char *got = ids_of(v, text, strlen(text), 0, spans, 2);
    PN_CHECK(strncmp(got, "260 258 60", 10) == 0 && strstr(got, " 262 263 60") && !strstr(got, "261") && !strstr(got + 3, "260"),
             "[%s]", got);
    got = ids_of(v, text, strlen(text), PN_ENC_SPECIAL, spans, 0);
    PN_CHECK(!strstr(got, "260") && !strstr(got, "261") && !strstr(got, "262") && strstr(got, "263"), "no span: [%s]", got);
    spans[0] = (pn_span){1, 49};                        /* begins inside the first marker */
    got = ids_of(v, text, strlen(text), 0, spans, 1);
    PN_CHECK(strncmp(got, "60 ", 3) == 0 && strstr(got, "258 261 262"), "cut marker: [%s]", got);
    pn_vocab_free(v);
    free(m);

    m = spm_maker();                                    /* "<" + "s>" would merge into <s> */
    v = build(m);
    spans[0] = (pn_span){0, 0};
    want(v, "<s>", 0, "259 1");                         /* as the reference does in plain mode */
    got = ids_of(v, "<s>", 3, 0, spans, 0);
    PN_CHECK(strcmp(got, "259 267 268") == 0, "[%s]", got);
    got = ids_of(v, "<s>", 3, 0, spans, 1);
    PN_CHECK(strcmp(got, "259 267 268") == 0, "[%s]", got);
    spans[0] = (pn_span){0, 3};
    got = ids_of(v, "<s>", 3, 0, spans, 1);
    PN_CHECK(strcmp(got, "1") == 0, "[%s]", got);
    pn_vocab_free(v);
    free(m);
}

/* A span's end between " " and "hell" must not keep them from merging. */
static void spans_do_not_block_merges(void)
{
    maker *m = bpe_maker();
    pn_vocab *v = build(m);
    pn_span span = {0, 2};
    const char *got = ids_of(v, "x hell", 6, 0, &span, 1);
    PN_CHECK(strcmp(got, "120 259") == 0, "[%s]", got);
    pn_vocab_free(v);
    free(m);
}

static void ends_have_their_exceptions(void)
{
    maker *m = bpe_maker();
    pn_token end = add(m, "<|end|>", PN_TOKEN_CONTROL, 0), ret = add(m, "<|return|>", PN_TOKEN_CONTROL, 0);
    pn_token call = add(m, "<|call|>", PN_TOKEN_CONTROL, 0), channel = add(m, "<|channel|>", PN_TOKEN_CONTROL, 0);
    pn_vocab *v = build(m);
    PN_CHECK(!pn_vocab_ends(v, end) && pn_vocab_kind(v, end) == PN_TOKEN_USER_DEFINED, "Harmony's <|end|>");
    PN_CHECK(pn_vocab_ends(v, ret) && pn_vocab_ends(v, call), "its real ends");
    PN_CHECK(pn_vocab_kind(v, channel) == PN_TOKEN_USER_DEFINED, "visible");
    const char *got = ids_of(v, "<|channel|>", 11, 0, (pn_span[]){{0, 0}}, 1);
    PN_CHECK(!strstr(got, "268"), "but not to be forged: [%s]", got);
    pn_vocab_free(v);
    m->tokens[end] = z("</s>");
    m->tokens[ret] = z("<|tool_response>");
    v = build(m);
    PN_CHECK(!pn_vocab_ends(v, end) && pn_vocab_kind(v, end) == PN_TOKEN_NORMAL, "Gemma 4's </s>");
    pn_vocab_free(v);
    m->tokens[end] = z("<fim_prefix>");
    m->tokens[ret] = z("<|file_sep|>");
    v = build(m);
    PN_CHECK(v->fim[0] == end && v->fim[5] == ret && pn_vocab_ends(v, ret), "fill-in-the-middle roles");
    PN_CHECK(!pn_vocab_ends(v, -1) && !pn_vocab_ends(v, 100000), "no such token");
    pn_vocab_free(v);
    free(m);
}

static void strip_rules_follow_the_models_name(void)
{
    maker *m = spm_maker();
    m->s.name = z("My Phi-3 mini");
    pn_token user = add(m, "<|user|>", PN_TOKEN_CONTROL, 0);
    pn_vocab *v = build(m);
    PN_CHECK(user == 271, "%d", user);
    want(v, "<|user|>\n a", PN_ENC_SPECIAL, "271 264");
    want(v, "<s> a", PN_ENC_SPECIAL, "1 259 264");
    pn_vocab_free(v);
    m->s.name = z("");
    m->s.arch = z("nomic-bert-moe");
    m->tokens[user] = z("<mask>");
    v = build(m);
    want(v, "a \n<mask> a", PN_ENC_SPECIAL, "264 271 259 264");
    pn_vocab_free(v);
    free(m);
}

static void pieces_put_together_are_the_text(void)
{
    static const maker_fn complete[] = {spm_maker, bpe_maker, raw_maker};
    uint64_t seed = 11;
    for (size_t k = 0; k < PN_COUNT_OF(complete); k++) {
        maker *m = complete[k]();
        pn_vocab *v = build(m);
        for (int round = 0; round < 400; round++) {
            char text[64], back[256], tmp[8];
            size_t n = pn_test_rand(&seed) % sizeof text, len = 0, n_ids = 0, cap = 0;
            pn_token *ids = NULL;
            for (size_t i = 0; i < n; i++)
                text[i] = pn_test_rand(&seed) % 2 ? "ah el\n<s>"[pn_test_rand(&seed) % 9] : (char)pn_test_rand(&seed);
            pn_vocab_encode(v, &libc_mem, text, n, 0, NULL, 0, &ids, &n_ids, &cap, NULL);
            for (size_t i = 0; i < n_ids; i++) {
                pn_bytes p = pn_vocab_piece(v, ids[i], true, tmp);
                memcpy(back + len, p.data, p.len);
                len += p.len;
            }
            size_t skip = n && pn_vocab_strips_leading_space(v) && len && back[0] == ' ';
            PN_CHECK(len - skip == n && memcmp(back + skip, text, n) == 0, "kind %zu, %zu bytes gave %zu", k, n, len);
            pn_mem_free(&libc_mem, PN_ACCT_MISC, ids, cap * sizeof *ids);
        }
        pn_vocab_free(v);
        free(m);
    }
}

/* Whatever the cuts, each output is whole characters and all together are the bytes. */
static void streaming_never_emits_half_a_character(void)
{
    uint64_t seed = 5;
    for (int round = 0; round < 3000; round++) {
        static const char *const chars[] = {"a", "\xC3\xA9", "\xE4\xB8\xAD", "\xF0\x9F\x98\x80", "\xEF\xBF\xBD"};
        char text[64];
        size_t n = 0;
        bool valid = round % 2;
        while (n < 40) {
            const char *c = chars[pn_test_rand(&seed) % 5];
            if (!valid && pn_test_rand(&seed) % 4 == 0) {
                text[n++] = (char)pn_test_rand(&seed);
                continue;
            }
            memcpy(text + n, c, strlen(c));
            n += strlen(c);
        }
        pn_detok_state d = {{0}, 0};
        pn_str out;
        pn_str_init(&out, &libc_mem, PN_ACCT_MISC);
        for (size_t at = 0, len; at < n; at += len) {
            size_t before = out.len;
            size_t any = 1 + pn_test_rand(&seed) % 5;
            len = PN_MIN(any, n - at);
            pn_detok_feed(&d, text + at, len, &out);
            if (valid)
                PN_CHECK(pn_utf8_valid(out.data + before, out.len - before) == out.len - before, "half a character");
            PN_CHECK(d.n_held <= 3 && pn_utf8_incomplete(d.held, d.n_held) == d.n_held, "held %d", d.n_held);
        }
        pn_detok_end(&d, &out);
        PN_CHECK(out.len == n && memcmp(out.data, text, n) == 0, "round %d: %zu of %zu bytes", round, out.len, n);
        pn_str_fini(&out);
    }
}

typedef struct random_merges { uint32_t seed, kinds; } random_merges;

static bool random_lookup(const void *ctx, const pn_sym *a, const pn_sym *b, uint32_t *prio, int32_t *id)
{
    const random_merges *r = ctx;
    uint64_t h = ((uint64_t)(uint32_t)a->id << 32 | (uint32_t)b->id) * 0x9e3779b97f4a7c15u ^ r->seed;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    *prio = (uint32_t)(h >> 40) % 50;
    *id = (int32_t)((h >> 20) % r->kinds);
    return h % 3 != 0;
}

static void heap_and_scan_merge_alike(void)
{
    pn_merge a, b;
    uint64_t seed = 1;
    pn_merge_init(&a, &libc_mem);
    pn_merge_init(&b, &libc_mem);
    b.scan_max = 0;
    for (int round = 0; round < 3000; round++) {
        random_merges r = {(uint32_t)pn_test_rand(&seed), 1 + (uint32_t)(pn_test_rand(&seed) % 8)};
        size_t n = pn_test_rand(&seed) % 33;
        HOLDS(pn_merge_reserve(&a, n) && pn_merge_reserve(&b, n));
        for (size_t i = 0; i < n; i++)
            a.syms[i] = b.syms[i] = (pn_sym){.at = (uint32_t)i, .len = 1, .id = (int32_t)(pn_test_rand(&seed) % r.kinds)};
        a.n = b.n = n;
        HOLDS(pn_merge_run(&a, random_lookup, &r) && pn_merge_run(&b, random_lookup, &r));
        bool same = a.n == b.n;
        for (size_t i = 0; same && i < a.n; i++)
            same = a.syms[i].at == b.syms[i].at && a.syms[i].len == b.syms[i].len && a.syms[i].id == b.syms[i].id;
        PN_CHECK(same, "round %d, %zu symbols", round, n);
    }
    pn_merge_fini(&a);
    pn_merge_fini(&b);
}

static void bad_sources_are_refused_or_tolerated(void)
{
    pn_vocab *v = NULL;
    pn_err err = {0};
    maker *m = bpe_maker();
    m->s.pre = z("no-such-thing");
    PN_CHECK(pn_vocab_new(&v, &libc_mem, &m->s, NULL, NULL, &err) == PN_E_UNSUPPORTED && strstr(err.text, "no-such-thing"),
             "%s", err.text);
    m->s.pre = (pn_bytes){NULL, 0};
    v = build(m);
    PN_CHECK(m->warnings == 1 && strstr(m->warning, "pre-tokenizer"), "one warning: %d, %s", m->warnings, m->warning);
    pn_vocab_free(v);
    m->s.model = z("plamo2");
    PN_CHECK(pn_vocab_new(&v, &libc_mem, &m->s, NULL, NULL, &err) == PN_E_UNSUPPORTED && strstr(err.text, "plamo2"), "%s",
             err.text);
    m->s.model = z("gpt2");
    m->s.pre = z("gpt-2");
    m->s.n_logits = 10;
    PN_CHECK(pn_vocab_new(&v, &libc_mem, &m->s, NULL, NULL, &err) == PN_E_FORMAT, "%s", err.text);
    m->s.n_logits = 300;
    m->s.bos = 265;                                     /* one past the end */
    m->s.eos = INT64_MAX;
    m->warnings = 0;
    m->types[3] = 77;
    m->tokens[4] = z("");
    v = build(m);
    PN_CHECK(m->warnings == 2 && pn_vocab_n_logits(v) == 300, "both ids are told: %d", m->warnings);
    PN_CHECK(pn_vocab_special(v, PN_SPECIAL_BOS) == 11, "the default");
    PN_CHECK(pn_vocab_kind(v, 3) == PN_TOKEN_UNDEFINED && pn_vocab_find(v, "", 0) == -1, "odd tokens");
    char tmp[8];
    PN_CHECK(pn_vocab_piece(v, -1, true, tmp).len == 0 && pn_vocab_piece(v, 299, true, tmp).len == 0, "no such token");
    PN_CHECK(pn_vocab_piece(v, 264, false, tmp).len == 0 && pn_vocab_piece(v, 264, true, tmp).len == 13, "control");
    pn_vocab_free(v);
    m->s.model = z("none");
    m->s.n_tokens = m->s.n_merges = 0;
    m->s.tokens = NULL;
    v = build(m);
    size_t n = 0, cap = 0;
    pn_token *t = NULL;
    PN_CHECK(pn_vocab_encode(v, &libc_mem, "a", 1, 0, NULL, 0, &t, &n, &cap, &err) == PN_E_UNSUPPORTED, "%s", err.text);
    pn_vocab_free(v);
    m->s.n_tokens = 3;
    PN_CHECK(pn_vocab_new(&v, &libc_mem, &m->s, NULL, NULL, &err) == PN_E_INVALID, "%s", err.text);
    free(m);
}

/* A token of 100,000 letters loads and is found, in the kinds that match by text. */
static void huge_tokens_work(void)
{
    size_t n = 100000;
    char *huge = malloc(n + 1);
    memset(huge, 'a', n);
    huge[n] = 0;
    for (size_t k = 0; k < PN_COUNT_OF(all_makers); k++) {
        maker *m = all_makers[k]();
        pn_token t = add(m, huge, PN_TOKEN_NORMAL, 0);
        pn_vocab *v = build(m);
        PN_CHECK(pn_vocab_find(v, huge, n) == t, "kind %zu", k);
        const char *ids = ids_of(v, huge, n, 0, NULL, 0);
        if (v->model == PN_VOCAB_RWKV)
            PN_CHECK(strcmp(ids, "8") == 0, "%.20s", ids);
        pn_vocab_free(v);
        free(m);
    }
    free(huge);
}

static void every_failing_allocation_is_a_status_and_no_leak(void)
{
    const char *text = "a hello     ab aab<think>\xC3\xA9\xFF x <s> aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    for (size_t k = 0; k < PN_COUNT_OF(all_makers); k++) {
        maker *m = all_makers[k]();
        if (m->s.n_merges) {
            merge(m, "pq rs");                          /* needs the table of pieces that are no tokens */
            merge(m, "pqrs pqrs");
        }
        bool done = false;
        for (long at = 1; !done && at < 400; at++) {
            pn_test_mem tm;
            pn_err err = {0};
            pn_vocab *v = NULL;
            pn_token *ids = NULL;
            size_t n = 0, cap = 0;
            pn_test_mem_init(&tm, at);
            pn_status st = pn_vocab_new(&v, &tm.mem, &m->s, NULL, NULL, &err);
            if (!st) {
                PN_CHECK(tm.bytes == pn_vocab_bytes(v), "kind %zu holds %" PRIu64 ", says %" PRIu64, k, tm.bytes, pn_vocab_bytes(v));
                st = pn_vocab_encode(v, &tm.mem, text, strlen(text), PN_ENC_BOS, NULL, 0, &ids, &n, &cap, &err);
            }
            PN_CHECK(st == PN_OK || (st == PN_E_NOMEM && err.text[0] && n == 0), "kind %zu, allocation %ld: %d", k, at, st);
            done = tm.n_calls < at;
            PN_CHECK(!done || st == PN_OK, "kind %zu: %s", k, err.text);
            pn_mem_free(&tm.mem, PN_ACCT_MISC, ids, cap * sizeof *ids);
            pn_vocab_free(v);
            PN_CHECK(tm.outstanding == 0, "kind %zu, allocation %ld: %ld blocks leaked", k, at, tm.outstanding);
        }
        PN_CHECK(done, "kind %zu", k);
        free(m);
    }
}

int main(void)
{
    pn_mem_init_libc(&libc_mem);
    spm_merges_by_score_and_falls_back_to_bytes();
    bpe_merges_by_rank();
    bpe_merges_may_pass_through_pieces_that_are_no_tokens();
    raw_bpe_escapes_spaces_and_keeps_newline_runs();
    unigram_takes_the_most_probable_path();
    unigram_words_may_be_solved_apart();
    charsmaps_replace_and_hostile_ones_are_harmless();
    wordpiece_is_greedy_and_all_or_nothing();
    rwkv_takes_the_longest_token();
    text_nobody_vouches_for_makes_no_control_tokens();
    spans_do_not_block_merges();
    ends_have_their_exceptions();
    strip_rules_follow_the_models_name();
    pieces_put_together_are_the_text();
    streaming_never_emits_half_a_character();
    heap_and_scan_merge_alike();
    bad_sources_are_refused_or_tolerated();
    huge_tokens_work();
    every_failing_allocation_is_a_status_and_no_leak();
    return pn_test_end();
}
