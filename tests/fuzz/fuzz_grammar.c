/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_grammar.c - GBNF text, a NUL, then a text to match.  Whatever compiles must treat a text the
 * same in one piece and byte by byte, and allow exactly the tokens that it accepts.
 */
#include "pn_fuzz.h"

#include "sample/pn_gram_impl.h"

static const char *const fuzz_words[] = {"a", "ab", "\"", "\\", "{\"", "12", " ", "\xC3", "\xA9", "\xC3\xA9z", "}", "[[", "(", ")", "x!", "\n"};

static pn_gtrie *fuzz_trie(pn_mem *mem)
{
    static const pn_token ends[] = {16};
    pn_bytes pieces[17];
    pn_gtrie *t = NULL;
    for (size_t i = 0; i < PN_COUNT_OF(fuzz_words); i++)
        pieces[i] = (pn_bytes){fuzz_words[i], strlen(fuzz_words[i])};
    pieces[16] = (pn_bytes){"", 0};
    pn_gtrie_source src = {pieces, 17, 20, NULL, ends, 1};
    if (pn_gtrie_new(&t, mem, &src, NULL))
        abort();
    return t;
}

static void fuzz_mask(pn_matcher *m)
{
    uint32_t bits[1], n;
    if (pn_matcher_mask(m, bits, &n, NULL))
        return;
    for (pn_token i = 0; i < 20; i++) {
        uint64_t mark = pn_matcher_mark(m);
        pn_status s = pn_matcher_accept_token(m, i, NULL);
        if (s != PN_E_INVALID && (s == PN_OK) != pn_gset_has(bits, (uint32_t)i))
            abort();
        if (s == PN_OK && pn_matcher_rollback(m, mark, NULL))
            abort();
    }
}

/* 1, 0, or negative when a limit was met. */
static int fuzz_bytewise(pn_mem *mem, pn_gram *g, const pn_gtrie *t, const char *text, size_t n)
{
    pn_matcher *m = NULL;
    pn_status s = pn_matcher_new(&m, mem, g, t, NULL);
    for (size_t i = 0; i < n && !s; i++) {
        if (i < 16)
            fuzz_mask(m);
        s = pn_matcher_accept_bytes(m, text + i, 1, NULL);
    }
    int result = s == PN_OK ? pn_matcher_is_complete(m) : s == PN_E_STATE ? 0 : (int)s;
    pn_matcher_free(m);
    return result;
}

static void fuzz_again(pn_mem *mem, pn_gram *g, const pn_gram_limits *limits, const char *text, size_t n, int want)
{
    pn_str s;
    pn_gram *again = NULL;
    pn_str_init(&s, mem, PN_ACCT_MISC);
    if (pn_gram_print(g, &s, NULL) == PN_OK &&
        pn_gram_from_gbnf(&again, mem, pn_str_cstr(&s), s.len, limits, NULL, NULL, NULL) == PN_OK) {
        int got = pn_gram_matches(again, text, n, NULL);
        if (got >= 0 && want >= 0 && got != want)
            abort();
    }
    pn_gram_release(again);
    pn_str_fini(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const pn_gram_limits limits = {.compile_steps = 300000, .configs = 200, .mask_steps = 100000, .cache_bytes = 1 << 20};
    const char *text = memchr(data, 0, size);
    size_t n_grammar = text ? (size_t)(text - (const char *)data) : size, n = text ? size - n_grammar - 1 : 0;
    pn_mem mem;
    pn_gram *g = NULL;
    pn_mem_init_libc(&mem);
    text = text ? text + 1 : "";
    if (pn_gram_from_gbnf(&g, &mem, (const char *)data, n_grammar, &limits, NULL, NULL, NULL) == PN_OK) {
        pn_gtrie *t = fuzz_trie(&mem);
        int whole = pn_gram_matches(g, text, n, NULL), parts = fuzz_bytewise(&mem, g, t, text, n);
        if (whole >= 0 && parts >= 0 && whole != parts)
            abort();
        fuzz_again(&mem, g, &limits, text, n, whole);
        pn_gtrie_free(t);
    }
    pn_gram_release(g);
    return 0;
}
