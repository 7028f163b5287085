/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_grammar.c - grammars: vectors, splits, masks against bytes, walks, rollback, hostile shapes.
 */
#include "pn_test.h"

#include "base/pn_json.h"
#include "engine/pn_grammar_api.h"
#include "sample/pn_gir.h"
#include "sample/pn_gram_impl.h"
#include "sample/pn_grammar.h"
#include "text/pn_unicode.h"

static pn_mem libc_mem;

static pn_gram *compile(const char *text)
{
    pn_gram *g = NULL;
    pn_err err = {PN_OK, ""};
    pn_status s = pn_gram_from_gbnf(&g, &libc_mem, text, strlen(text), NULL, NULL, NULL, &err);
    PN_CHECK(s == PN_OK, "%s: %s", text, err.text);
    return g;
}

static const char *const json_gbnf =
    "root ::= object\n"
    "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? ws \"}\"\n"
    "array ::= \"[\" ws ( value (\",\" ws value)* )? ws \"]\"\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x00-\\x1F] | \"\\\\\" ( [\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4} ) )* \"\\\"\"\n"
    "number ::= \"-\"? ( [0-9] | [1-9] [0-9]{0,15} ) (\".\" [0-9]+)? ([eE] [-+]? [0-9]{1,3})?\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

/* ---- vectors --------------------------------------------------------------------------------- */

/* 2: complete, 1: a prefix of a sentence, 0: dead at or before the last byte. */
static int run_bytes(pn_gram *g, const char *text, size_t n, size_t piece)
{
    pn_matcher *m;
    int result = 1;
    if (pn_matcher_new(&m, &libc_mem, g, NULL, NULL))
        return -1;
    for (size_t i = 0; i < n && result; i += piece)
        if (pn_matcher_accept_bytes(m, text + i, PN_MIN(piece, n - i), NULL) != PN_OK)
            result = 0;
    if (result && pn_matcher_is_complete(m))
        result = 2;
    pn_matcher_free(m);
    return result;
}

static void vector_texts(pn_gram *g, const pn_json_doc *d, uint32_t node, const char *key, int want, const char *name)
{
    uint32_t list = pn_json_get(d, node, key);
    for (uint32_t c = pn_json_first(d, list); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes t;
        PN_CHECK(pn_json_str(d, c, &t));
        for (size_t piece = 1; piece <= 8; piece++) {
            int got = run_bytes(g, t.data, t.len, piece);
            PN_CHECK(got == want, "%s: %s '%.*s' in pieces of %zu: got %d, want %d", name, key,
                     (int)t.len, t.data, piece, got, want);
        }
        int whole = pn_gram_matches(g, t.data, t.len, NULL);
        PN_CHECK(whole == (want == 2), "%s: '%.*s'", name, (int)t.len, t.data);
    }
}

static void vectors_match(void)
{
    size_t len = 0;
    int n = 0;
    pn_json_doc d;
    char *text = pn_test_read_file("tests/vectors/grammar/gbnf-vectors.json", &len);
    if (!PN_CHECK(text != NULL, "cannot read the vectors"))
        return;
    PN_CHECK(pn_json_parse(&d, &libc_mem, PN_ACCT_MISC, text, len, NULL, NULL) == PN_OK);
    for (uint32_t c = pn_json_first(&d, PN_JSON_ROOT); c != PN_JSON_NONE; c = pn_json_next(&d, c), n++) {
        pn_bytes name = {"", 0}, grammar = {"", 0};
        bool error = false;
        pn_gram *g = NULL;
        pn_err err = {PN_OK, ""};
        pn_json_str(&d, pn_json_get(&d, c, "name"), &name);
        pn_json_str(&d, pn_json_get(&d, c, "grammar"), &grammar);
        pn_json_bool(&d, pn_json_get(&d, c, "error"), &error);
        pn_status s = pn_gram_from_gbnf(&g, &libc_mem, grammar.data, grammar.len, NULL, NULL, NULL, &err);
        PN_CHECK((s == PN_OK) == !error, "%s: %s", name.data, err.text);
        PN_CHECK(s == PN_OK || (s == PN_E_INVALID && err.text[0]), "%s", name.data);
        if (s == PN_OK) {
            vector_texts(g, &d, c, "accept", 2, name.data);
            vector_texts(g, &d, c, "prefix", 1, name.data);
            vector_texts(g, &d, c, "reject", 0, name.data);
        }
        pn_gram_release(g);
    }
    PN_CHECK(n == 53, "%d grammars", n);
    pn_json_fini(&d);
    free(text);
}

/* ---- vocabularies --------------------------------------------------------------------------------- */

/* 0: unknown, 1: end, 2: control, 3..258: bytes, then words. */
enum { VOCAB_END = 1, VOCAB_CONTROL = 2, VOCAB_BYTES = 3 };
static const char *const vocab_words[] = {
    "{\"", "\":", "\": ", "\", \"", "\",", "\"}", "}}", "]}", "[]", "{}", "true", "false", "null", "tru", "e", "12", "123", "-1",
    ".5", "e+1", " ", "  ", "\n", "\n  ", "name", "nam", "ab", "abc", "\\n", "\\u00", "\\", "\xC3\xA9", "\xC3", "\xA9x", "\xE4\xB8",
    "\xAD\xE6\x96\x87", "\xF0\x9F", "\x98\x80\"", "caf\xC3\xA9", "cat", "car", "aaaa", "aaaaaaaa", "!", "a!", "\"a\"", "(((", "))", "1+2*",
    "a\"b", "\x01" "a", "x\x7F", "[[", "]]", "\xFF", "abab", "<|end|>",
};

static pn_gtrie *small_trie(void)
{
    static char bytes[256];
    static pn_bytes pieces[VOCAB_BYTES + 256 + PN_COUNT_OF(vocab_words)];
    static const uint32_t exclude[16] = {1u | 1u << VOCAB_CONTROL};
    static const pn_token ends[] = {VOCAB_END};
    pn_gtrie *t = NULL;
    for (int i = 0; i < 256; i++)
        bytes[i] = (char)i;
    for (int i = 0; i < VOCAB_BYTES; i++)
        pieces[i] = (pn_bytes){"<|x|>", 5};
    for (int i = 0; i < 256; i++)
        pieces[VOCAB_BYTES + i] = (pn_bytes){bytes + i, 1};
    for (size_t i = 0; i < PN_COUNT_OF(vocab_words); i++)
        pieces[VOCAB_BYTES + 256 + i] = (pn_bytes){vocab_words[i], strlen(vocab_words[i])};
    pn_gtrie_source src = {pieces, (uint32_t)PN_COUNT_OF(pieces), (uint32_t)PN_COUNT_OF(pieces) + 40, exclude, ends, 1};
    PN_CHECK(pn_gtrie_new(&t, &libc_mem, &src, NULL) == PN_OK);
    return t;
}

static const struct { const char *grammar, *text; } mask_cases[] = {
    {"root ::= (\"a\" | \"a\" | \"aa\")* \"!\"", "aaaaaaaaaaaa!"},
    {"root ::= \"<\" [^<>]* \">\"", "<\xC3\xA9\xF0\x9F\x98\x80\n>"},
    {"root ::= [^\xC3\xA9]*", "a\xC3\xA8"},
    {"root ::= \"cat\" | \"car\" | \"caf\xC3\xA9\"", "caf\xC3\xA9"},
    {"root ::= [a-z]{3,100}", "abcabcabcabcabcabc"},
    {"root ::= (\"ab\" \"c\"?){2,300} | [a]{0,20} \"!\"", "ababcabab"},
    {"root ::= e\ne ::= t ((\"+\" | \"-\") t)*\nt ::= f ((\"*\" | \"/\") f)*\nf ::= [0-9]+ | \"(\" e \")\"", "(((1+2)*3)-4)/5"},
    {"root ::= <[275]> | \"a\" !<[300]> \"b\"", "a"},
};

/* Each token's bit against what accepting it on a fork does, at one position. */
static void mask_is_exact(pn_matcher *m, pn_gtrie *t, const char *what)
{
    uint32_t words = pn_gtrie_words(t), n = 0, sum = 0;
    uint32_t *bits = malloc(words * sizeof *bits);
    int bad = 0;
    pn_err err = {PN_OK, ""};
    PN_CHECK(pn_matcher_mask(m, bits, &n, &err) == PN_OK, "%s: %s", what, err.text);
    for (uint32_t i = 0; i < words * 32; i++) {
        bool bit = pn_gset_has(bits, i);
        uint64_t mark = pn_matcher_mark(m);
        bool ok = pn_matcher_accept_token(m, (pn_token)i, NULL) == PN_OK;
        if (ok)
            PN_CHECK(pn_matcher_rollback(m, mark, NULL) == PN_OK);
        sum += bit;
        bad += bit != ok;
    }
    PN_CHECK(bad == 0, "%s: %d tokens differ", what, bad);
    PN_CHECK(sum == n, "%s: %u bits, told %u", what, (unsigned)sum, (unsigned)n);
    free(bits);
}

static void masks_along(const char *grammar, const char *text, pn_gtrie *t)
{
    pn_gram *g = compile(grammar);
    pn_matcher *m = NULL;
    if (!g)
        return;
    PN_CHECK(pn_matcher_new(&m, &libc_mem, g, t, NULL) == PN_OK);
    for (size_t i = 0; m; i++) {
        mask_is_exact(m, t, grammar);
        if (!text[i] || !PN_CHECK(pn_matcher_accept_bytes(m, text + i, 1, NULL) == PN_OK, "%s at %zu", text, i))
            break;
    }
    pn_matcher_free(m);
    pn_gram_release(g);
}

static void masks_are_exact_for_all_tokens(void)
{
    pn_gtrie *t = small_trie();
    for (size_t i = 0; i < PN_COUNT_OF(mask_cases); i++)
        masks_along(mask_cases[i].grammar, mask_cases[i].text, t);
    masks_along(json_gbnf, "{\"na\\u00e9me\": [1, -2.5e+1, {\"b\": \"caf\xC3\xA9 \xF0\x9F\x98\x80\"}, [[]]], \"c\": null}", t);
    pn_gtrie_free(t);
}

/* ---- walks ------------------------------------------------------------------------------------------ */

/* Choose uniformly among allowed tokens; near the end of patience the one that closes. */
static void walk_ends(pn_gram *g, pn_gtrie *t, uint64_t seed)
{
    pn_matcher *m = NULL, *fork = NULL;
    uint32_t words = pn_gtrie_words(t), n;
    uint32_t *bits = malloc(words * sizeof *bits);
    pn_str text;
    pn_str_init(&text, &libc_mem, PN_ACCT_MISC);
    PN_CHECK(pn_matcher_new(&m, &libc_mem, g, t, NULL) == PN_OK);
    for (int step = 0; step < 400 && !pn_matcher_is_finished(m); step++) {
        pn_err err = {PN_OK, ""};
        if (!PN_CHECK(pn_matcher_mask(m, bits, &n, &err) == PN_OK && n > 0, "%s", err.text))
            break;
        uint32_t pick = (uint32_t)(pn_test_rand(&seed) % n), id = 0;
        for (;; id++)
            if (pn_gset_has(bits, id) && pick-- == 0)
                break;
        if (pn_gset_has(bits, VOCAB_END) && step > 40)
            id = VOCAB_END;
        if (step % 7 == 0) {                    /* go elsewhere on a fork: nothing may change here */
            PN_CHECK(pn_matcher_fork(&fork, m, NULL) == PN_OK);
            for (pn_token k = 0; k < 300; k++)
                pn_matcher_accept_token(fork, k, NULL);
            pn_matcher_free(fork);
        }
        PN_CHECK(pn_matcher_accept_token(m, (pn_token)id, &err) == PN_OK, "%s", err.text);
        pn_bytes piece = pn_gtrie_piece(t, (pn_token)id);
        pn_str_add(&text, piece.data, piece.len);
        int whole = pn_gram_matches(g, pn_str_cstr(&text), text.len, NULL);
        PN_CHECK(whole == pn_matcher_is_complete(m), "'%s'", pn_str_cstr(&text));
    }
    pn_str_fini(&text);
    pn_matcher_free(m);
    free(bits);
}

static void random_walks_stay_in_the_language(void)
{
    pn_gtrie *t = small_trie();
    pn_gram_limits tiny = {.cache_bytes = 20000};
    for (int round = 0; round < 2; round++) {
        pn_gram *g = NULL;
        PN_CHECK(pn_gram_from_gbnf(&g, &libc_mem, json_gbnf, strlen(json_gbnf), round ? &tiny : NULL, NULL, NULL, NULL) == PN_OK);
        for (uint64_t seed = 1; seed <= 12; seed++)
            walk_ends(g, t, seed * 77);
        pn_gram_release(g);
    }
    pn_gtrie_free(t);
}

static void rollback_is_exact(void)
{
    pn_gram *g = compile(json_gbnf);
    pn_gtrie *t = small_trie();
    pn_matcher *m = NULL;
    static const char text[] = "{\"a\": [1, 2, {\"b\": \"c\"}]}";
    PN_CHECK(pn_matcher_new(&m, &libc_mem, g, t, NULL) == PN_OK);
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; text[i]; i++)
            PN_CHECK(pn_matcher_accept_bytes(m, text + i, 1, NULL) == PN_OK);
        PN_CHECK(pn_matcher_only_end(m) && pn_matcher_is_complete(m));
        PN_CHECK(pn_matcher_accept_token(m, VOCAB_END, NULL) == PN_OK && pn_matcher_is_finished(m));
        PN_CHECK(pn_matcher_accept_token(m, VOCAB_END, NULL) == PN_E_STATE);
        PN_CHECK(pn_matcher_rollback(m, pn_matcher_mark(m) - 3, NULL) == PN_OK);
        PN_CHECK(!pn_matcher_is_finished(m) && !pn_matcher_is_complete(m));
        PN_CHECK(pn_matcher_accept_bytes(m, "]}", 2, NULL) == PN_OK && pn_matcher_is_complete(m));
        PN_CHECK(pn_matcher_rollback(m, pn_matcher_mark(m) - (sizeof text - 1) + 1, NULL) == PN_OK);
        PN_CHECK(pn_matcher_mark(m) == 0);
    }
    PN_CHECK(pn_matcher_rollback(m, 1, NULL) == PN_E_STATE);
    PN_CHECK(pn_matcher_accept_bytes(m, "{\"a\": }", 7, NULL) == PN_E_STATE && pn_matcher_mark(m) == 0);
    const pn_token two[] = {VOCAB_BYTES + '{', VOCAB_BYTES + '}', VOCAB_END, VOCAB_END};
    size_t n_ok = 9;
    PN_CHECK(pn_matcher_check(m, two, 4, &n_ok, NULL) == PN_OK && n_ok == 3, "%zu", n_ok);
    pn_matcher_free(m);
    pn_gram_release(g);
    pn_gtrie_free(t);
}

/* ---- regular expressions ------------------------------------------------------------------------------ */

static const struct { const char *pattern; unsigned flags; const char *yes[4], *no[4]; } regex_cases[] = {
    {"[a-c]+\\d{2}", 0, {"a12", "cab99"}, {"a1", "12", "a123"}},
    {"^(?:foo|ba[rz])$", 0, {"foo", "bar", "baz"}, {"ba", "fooo"}},
    {"b+", PN_REGEX_SEARCH, {"b", "abc", "xxbbxx"}, {"", "ac"}},
    {"^b", PN_REGEX_SEARCH, {"b", "bcd"}, {"ab", ""}},
    {"b$|^c", PN_REGEX_SEARCH, {"ab", "b", "cx"}, {"bx", "xc"}},
    {"^.$", 0, {"a", "\xC3\xA9", "\xF0\x9F\x98\x80"}, {"\n", "ab", "\xC3"}},
    {"^[^\\w\\s]$", 0, {"-", "\xC3\xA9"}, {"a", "_", " ", "\n"}},
    {"^\\p{Lu}\\P{L}$", 0, {"A1", "\xC3\x89-"}, {"a1", "AA"}},
    {"^\\u00e9\\x41\\u{1F600}\\cA$", 0, {"\xC3\xA9" "A\xF0\x9F\x98\x80\x01"}, {"eA"}},
    {"^\\uD83D\\uDE00$", 0, {"\xF0\x9F\x98\x80"}, {"x"}},
    {"^a{2,}b{0}c{,2}$", 0, {"aac{,2}", "aaaac{,2}"}, {"ac{,2}", "aacc"}},
    {"^\"\\\\\\n.$", PN_REGEX_JSON, {"\\\"\\\\\\na", "\\\"\\\\\\n\\t"}, {"\"\\\na", "\\\"\\\\\\n\\n"}},
    {"^[\\x00-\\x7f]$", PN_REGEX_JSON, {"a", "\\u0001", "\\n", "\\\\"}, {"\\", "\"", "\xC3\xA9", "\\u0041"}},
    {"^[^a]$", PN_REGEX_JSON, {"b", "\\n", "\\\""}, {"a", "\n", "\""}},
    {"(x+x+)+y", 0, {"xxy", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxy"}, {"xy", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}},
    {"", PN_REGEX_SEARCH, {"", "anything"}, {NULL}},
};

static void regexes_match(void)
{
    for (size_t i = 0; i < PN_COUNT_OF(regex_cases); i++) {
        pn_gir *b = NULL;
        pn_gnode node = PN_GNODE_NONE;
        pn_gram *g = NULL;
        pn_err err = {PN_OK, ""};
        const char *p = regex_cases[i].pattern;
        PN_CHECK(pn_gir_new(&b, &libc_mem, NULL, NULL) == PN_OK);
        PN_CHECK(pn_gir_regex(b, p, strlen(p), regex_cases[i].flags, &node, &err) == PN_OK, "%s: %s", p, err.text);
        if (PN_CHECK(pn_gir_finish(b, node, &g, &err) == PN_OK, "%s: %s", p, err.text)) {
            for (int k = 0; k < 4; k++) {
                const char *yes = regex_cases[i].yes[k], *no = regex_cases[i].no[k];
                PN_CHECK(!yes || pn_gram_matches(g, yes, strlen(yes), NULL) == 1, "%s should match '%s'", p, yes);
                PN_CHECK(!no || pn_gram_matches(g, no, strlen(no), NULL) == 0, "%s should not match '%s'", p, no);
            }
        }
        pn_gram_release(g);
        pn_gir_free(b);
    }
}

/* \\p against the table of characters, all of them. */
static void categories_are_exact(void)
{
    pn_gram *g = NULL;
    int bad = 0;
    PN_CHECK(pn_gram_from_regex(&g, &libc_mem, "[\\p{L}\\p{Sc}\\p{Cn}]", 19, NULL, NULL) == PN_OK);
    for (uint32_t cp = 0; cp <= 0x10FFFF && g; cp += cp < 0x3000 ? 1 : 13) {
        char bytes[4];
        size_t n = pn_utf8_encode(cp, bytes);
        bool want = (pn_uni_class(cp) & (PN_US_L | PN_US(SC) | PN_US(CN))) != 0;
        if (cp < 0xD800 || cp > 0xDFFF)
            bad += (pn_gram_matches(g, bytes, n, NULL) == 1) != want;
    }
    PN_CHECK(bad == 0, "%d characters differ", bad);
    pn_gram_release(g);
}

static void regexes_are_refused(void)
{
    static const struct { const char *pattern; pn_status status; } bad[] = {
        {"(?=a)", PN_E_UNSUPPORTED}, {"(?<!a)b", PN_E_UNSUPPORTED}, {"(a)\\1", PN_E_UNSUPPORTED}, {"\\bx", PN_E_UNSUPPORTED},
        {"a^b", PN_E_UNSUPPORTED}, {"a$b", PN_E_UNSUPPORTED}, {"(^a)", PN_E_UNSUPPORTED}, {"\\p{Greek}", PN_E_UNSUPPORTED},
        {"(", PN_E_INVALID}, {")", PN_E_INVALID}, {"[a", PN_E_INVALID}, {"*a", PN_E_INVALID}, {"a**", PN_E_INVALID},
        {"a{3,2}", PN_E_INVALID}, {"a{0,4294967296}", PN_E_INVALID}, {"[z-a]", PN_E_INVALID}, {"\\", PN_E_INVALID},
        {"\\q", PN_E_INVALID}, {"\\x4", PN_E_INVALID}, {"\xFF", PN_E_INVALID}, {"(?i)a", PN_E_UNSUPPORTED}, {"a++", PN_E_INVALID},
        {"[]", PN_E_INVALID},
    };
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
        pn_gram *g = NULL;
        pn_err err = {PN_OK, ""};
        pn_status s = pn_gram_from_regex(&g, &libc_mem, bad[i].pattern, strlen(bad[i].pattern), NULL, &err);
        PN_CHECK(s == bad[i].status && err.text[0], "%s: %d %s", bad[i].pattern, s, err.text);
        pn_gram_release(g);
    }
}

/* ---- the builder ------------------------------------------------------------------------------------------ */

static void check_node(pn_gir *b, pn_gnode node, const char *const *yes, const char *const *no)
{
    pn_gram *g = NULL;
    pn_err err = {PN_OK, ""};
    if (PN_CHECK(pn_gir_finish(b, node, &g, &err) == PN_OK, "%s", err.text)) {
        for (; *yes; yes++)
            PN_CHECK(pn_gram_matches(g, *yes, strlen(*yes), NULL) == 1, "'%s' should match", *yes);
        for (; *no; no++)
            PN_CHECK(pn_gram_matches(g, *no, strlen(*no), NULL) == 0, "'%s' should not match", *no);
    }
    pn_gram_release(g);
}

static void products_and_complements(void)
{
    static const pn_bytes keys[] = {{"a", 1}, {"ab", 2}, {"\xC3\xA9\n", 3}, {"", 0}};
    pn_gir *b = NULL;
    pn_gnode x = PN_GNODE_NONE, y;
    PN_CHECK(pn_gir_new(&b, &libc_mem, NULL, NULL) == PN_OK);
    check_node(b, pn_gir_json_not(b, keys, 4), (const char *[]){"b", "abc", "aa", "\\u0061\\u0061", "\xC3\xA9", "\\ud83d\\ude00", NULL},
               (const char *[]){"a", "ab", "", "\\u0061", "\\u0061b", "a\\u0062", "\xC3\xA9\\n", "\\u00e9\\u000A", "\"", "\\ud83d", NULL});
    PN_CHECK(pn_gir_regex(b, "^[a-z]+$", 8, PN_REGEX_JSON | PN_REGEX_SEARCH, &x, NULL) == PN_OK);
    y = pn_gir_and(b, x, pn_gir_json_body(b, 2, 4));
    check_node(b, y, (const char *[]){"ab", "abcd", NULL}, (const char *[]){"a", "abcde", "a1", NULL});
    check_node(b, pn_gir_and_not(b, y, pn_gir_text(b, "abc")), (const char *[]){"ab", "abd", NULL}, (const char *[]){"abc", NULL});
    PN_CHECK(pn_gir_is_never(b, pn_gir_and(b, pn_gir_text(b, "x"), pn_gir_text(b, "y"))));
    PN_CHECK(!pn_gir_is_never(b, pn_gir_and(b, pn_gir_text(b, "x"), pn_gir_byte_range(b, 'a', 'z'))));
    check_node(b, pn_gir_json_body(b, 1, 2), (const char *[]){"a", "\\ud83d\\ude00b", "\\n\\\"", NULL},
               (const char *[]){"", "abc", "\\ude00", "\x01", NULL});
    check_node(b, pn_gir_json_text(b, "\"\\\n\x01/\x7F", 6), (const char *[]){"\\\"\\\\\\n\\u0001/\x7F", NULL}, (const char *[]){"\"", NULL});
    static const pn_bytes words[] = {{"cat", 3}, {"car", 3}, {"ca", 2}, {"dog", 3}, {"cat", 3}};
    check_node(b, pn_gir_words(b, words, 5), (const char *[]){"cat", "car", "ca", "dog", NULL}, (const char *[]){"c", "", "do", NULL});
    PN_CHECK(pn_gir_ok(b), "%s", b->err.text);
    pn_gir_free(b);
}

static void nested_repetitions(void)
{
    pn_gir *b = NULL;
    PN_CHECK(pn_gir_new(&b, &libc_mem, NULL, NULL) == PN_OK);
    for (uint32_t m1 = 0; m1 < 4; m1++)
        for (uint32_t n1 = m1; n1 < 5; n1++)
            for (uint32_t m2 = 0; m2 < 4; m2++)
                for (uint32_t n2 = m2; n2 < 4; n2++) {
                    bool can[32] = {false};
                    pn_gram *g = NULL;
                    for (uint32_t k = m2; k <= n2; k++)
                        for (uint32_t n = k * m1; n <= k * n1; n++)
                            can[n] = true;
                    pn_gnode r = pn_gir_repeat(b, pn_gir_repeat(b, pn_gir_text(b, "a"), m1, n1), m2, n2);
                    PN_CHECK(pn_gir_finish(b, r, &g, NULL) == PN_OK);
                    for (uint32_t n = 0; n < 20 && g; n++)
                        PN_CHECK(pn_gram_matches(g, "aaaaaaaaaaaaaaaaaaaa", n, NULL) == can[n], "a{%u,%u}{%u,%u} of %u", (unsigned)m1,
                                 (unsigned)n1, (unsigned)m2, (unsigned)n2, (unsigned)n);
                    pn_gram_release(g);
                }
    pn_gir_free(b);
}

/* ---- hostile ------------------------------------------------------------------------------------------------ */

static char *repeated(const char *before, const char *part, size_t n, const char *after)
{
    size_t len = strlen(part), at = strlen(before);
    char *s = malloc(at + n * len + strlen(after) + 1);
    memcpy(s, before, at);
    for (size_t i = 0; i < n; i++, at += len)
        memcpy(s + at, part, len);
    strcpy(s + at, after);
    return s;
}

static void hostile(const char *grammar, pn_status want, const char *text, int matches)
{
    pn_gram *g = NULL;
    pn_err err = {PN_OK, ""};
    pn_test_mem tm;
    pn_test_mem_init(&tm, 0);
    pn_status s = pn_gram_from_gbnf(&g, &tm.mem, grammar, strlen(grammar), NULL, NULL, NULL, &err);
    PN_CHECK(s == want, "%.60s: %d %s", grammar, s, err.text);
    if (s == PN_OK && text) {
        int got = pn_gram_matches(g, text, strlen(text), &err);
        PN_CHECK(got == matches, "%.60s: %d %s", grammar, got, err.text);
        PN_CHECK(g->steps < 5000000, "%.60s: %llu steps", grammar, (unsigned long long)g->steps);
    }
    PN_CHECK(tm.bytes < (64u << 20), "%.60s holds %llu bytes", grammar, (unsigned long long)tm.bytes);
    pn_gram_release(g);
    PN_CHECK(tm.outstanding == 0, "%.60s leaks", grammar);
}

static void hostile_grammars(void)
{
    char *a2000 = repeated("", "a", 2000, "");
    char *s;
    hostile("root ::= (\"a\"|\"a\")*", PN_OK, a2000, 1);
    hostile("root ::= (\"a\"*)*", PN_OK, a2000, 1);
    hostile("root ::= ((\"a\"?){1000}){1000}", PN_OK, a2000, 1);
    hostile("root ::= ((\"a\" | \"aa\"){0,1000}){0,1000}", PN_OK, a2000, 1);
    hostile("root ::= (\"a\" | \"aa\"){0,1000}", PN_OK, a2000, 1);
    hostile("root ::= ((\"a\"? \"b\"?){1000} \"c\"?){1000}", PN_OK, a2000, 1);
    hostile("root ::= \"a\"{0,4294967296}", PN_E_INVALID, NULL, 0);
    hostile("root ::= (\"a\"{2000}){2000}", PN_E_INVALID, NULL, 0);
    hostile("root ::= x\nx ::= y \"a\"?\ny ::= z\nz ::= \"b\"? x", PN_E_INVALID, NULL, 0);
    hostile("root ::= \"a\" root", PN_E_INVALID, NULL, 0);
    hostile("root ::= [\\uD800-\\uDFFF]", PN_E_INVALID, NULL, 0);
    hostile("root ::= \"\xFF\"", PN_E_INVALID, NULL, 0);
    hostile("root ::= [^\\x00]* \"\\x00\"?", PN_OK, "abc", 1);
    hostile((s = repeated("root ::= ", "a ", 1000, "\na ::= \"a\"?")), PN_OK, "aaa", 1), free(s);
    hostile((s = repeated("root ::= ", "a ", 20000, "\na ::= \"a\"?")), PN_E_INVALID, NULL, 0), free(s);
    hostile((s = repeated("root ::= ", "(", 100000, "")), PN_E_INVALID, NULL, 0), free(s);
    hostile((s = repeated("root ::= ", "(\"a\"|", 190, "\"b\"")), PN_E_INVALID, NULL, 0), free(s);
    hostile((s = repeated("root ::= \"x\"\n", "a ::= \"y\"\n", 50000, "")), PN_OK, "x", 1), free(s);
    hostile((s = repeated("root ::= \"", "x", 1 << 20, "\"")), PN_E_INVALID, NULL, 0), free(s);
    hostile((s = repeated("root ::= \"", "x", 150000, "\"")), PN_OK, "xx", 0), free(s);
    hostile((s = repeated("root ::= ", "\"a\" | ", 30000, "\"b\"")), PN_OK, "a", 1), free(s);
    hostile((s = repeated("root ::= ", "\"a\"* | ", 30000, "\"b\"")), PN_E_INVALID, NULL, 0), free(s);
    s = repeated("", "[", 100000, "");
    hostile("root ::= v\nv ::= \"[\" v \"]\" | \"1\"", PN_OK, s, 0);
    free(s);
    free(a2000);
}

/* x doubles 40 times: 2^40 copies unless large shared nodes are written once. */
static void doubling_stays_small(void)
{
    pn_gir *b = NULL;
    pn_gram *g = NULL;
    pn_err err = {PN_OK, ""};
    PN_CHECK(pn_gir_new(&b, &libc_mem, NULL, NULL) == PN_OK);
    pn_gnode x = pn_gir_alt2(b, pn_gir_text(b, "ab"), pn_gir_byte_range(b, 'c', 'd'));
    for (int i = 0; i < 40; i++)
        x = pn_gir_alt2(b, pn_gir_seq2(b, x, x), x);
    pn_status s = pn_gir_finish(b, x, &g, &err);        /* so ambiguous that the limit may be met */
    PN_CHECK(s == PN_OK || (s == PN_E_INVALID && strstr(err.text, "configs")), "%s", err.text);
    PN_CHECK(b->steps < 1000000 && b->nodes.n < 1000, "%llu steps", (unsigned long long)b->steps);
    pn_gram_release(g);
    pn_gir_free(b);
}

static void deep_text_must_close(void)
{
    pn_gram *g = compile("root ::= v\nv ::= \"[\" v \"]\" | \"1\"");
    pn_gtrie *t = small_trie();
    pn_matcher *m = NULL;
    uint32_t bits[16];
    int depth = 0;
    PN_CHECK(pn_matcher_new(&m, &libc_mem, g, t, NULL) == PN_OK);
    while (depth < 5000 && pn_matcher_accept_bytes(m, "[", 1, NULL) == PN_OK)
        depth++;
    PN_CHECK(depth > 900 && depth <= 1000, "%d", depth);
    PN_CHECK(pn_matcher_mask(m, bits, NULL, NULL) == PN_OK && !pn_gset_has(bits, VOCAB_BYTES + '[') && pn_gset_has(bits, VOCAB_BYTES + '1'));
    PN_CHECK(pn_matcher_accept_bytes(m, "1", 1, NULL) == PN_OK);
    while (depth-- > 0)
        PN_CHECK(pn_matcher_accept_bytes(m, "]", 1, NULL) == PN_OK);
    PN_CHECK(pn_matcher_only_end(m));
    pn_matcher_free(m);
    pn_gram_release(g);
    pn_gtrie_free(t);
}

/* ---- memory --------------------------------------------------------------------------------------------------- */

static pn_status everything(pn_mem *mem)
{
    static const char text[] = "{\"a\": [1, {\"b\": \"c\\n\"}]}";
    pn_gram *g = NULL;
    pn_matcher *m = NULL, *fork = NULL;
    pn_gtrie *t = NULL;
    pn_gir *b = NULL;
    uint32_t bits[16];
    static const pn_bytes pieces[] = {{"{", 1}, {"{\"", 2}, {"", 0}, {"a", 1}};
    static const pn_token ends[] = {2};
    static const pn_bytes keys[] = {{"ab", 2}};
    pn_gtrie_source src = {pieces, 4, 500, NULL, ends, 1};
    pn_status s = pn_gram_from_gbnf(&g, mem, json_gbnf, strlen(json_gbnf), NULL, NULL, NULL, NULL);
    if (!s)
        s = pn_gtrie_new(&t, mem, &src, NULL);
    if (!s)
        s = pn_matcher_new(&m, mem, g, t, NULL);
    if (!s)
        s = pn_matcher_mask(m, bits, NULL, NULL);
    if (!s)
        s = pn_matcher_fork(&fork, m, NULL);
    if (!s)
        s = pn_matcher_accept_bytes(fork, text, sizeof text - 1, NULL);
    if (!s)
        PN_CHECK(pn_matcher_only_end(fork) && pn_gset_has(bits, 0) && !pn_gset_has(bits, 3));
    if (!s)
        s = pn_gir_new(&b, mem, NULL, NULL);
    pn_gram *h = NULL;
    if (!s)
        s = pn_gir_finish(b, pn_gir_json_not(b, keys, 1), &h, NULL);
    pn_gram_release(h);
    pn_gir_free(b);
    pn_matcher_free(m);
    pn_matcher_free(fork);
    pn_gtrie_free(t);
    pn_gram_release(g);
    return s;
}

static void every_allocation_may_fail(void)
{
    pn_test_mem tm;
    long k = 1;
    for (;; k++) {
        pn_test_mem_init(&tm, k);
        pn_status s = everything(&tm.mem);
        PN_CHECK(tm.outstanding == 0, "allocation %ld failing leaks", k);
        PN_CHECK(s == PN_OK || s == PN_E_NOMEM, "allocation %ld: %d", k, s);
        if (tm.n_calls < k)
            break;
    }
    PN_CHECK(k > 50, "%ld allocations", k);
}

/* ---- printing ------------------------------------------------------------------------------------------------- */

static void printed_grammars_read_back(void)
{
    for (size_t i = 0; i < PN_COUNT_OF(mask_cases); i++) {
        pn_gram *g = compile(mask_cases[i].grammar), *again = NULL;
        pn_str s;
        pn_err err = {PN_OK, ""};
        pn_str_init(&s, &libc_mem, PN_ACCT_MISC);
        PN_CHECK(pn_gram_print(g, &s, &err) == PN_OK, "%s", err.text);
        PN_CHECK(pn_gram_from_gbnf(&again, &libc_mem, pn_str_cstr(&s), s.len, NULL, NULL, NULL, &err) == PN_OK, "%s\n%s", err.text,
                 pn_str_cstr(&s));
        for (size_t n = 0; again && n <= strlen(mask_cases[i].text); n++)
            PN_CHECK(pn_gram_matches(again, mask_cases[i].text, n, NULL) == pn_gram_matches(g, mask_cases[i].text, n, NULL));
        pn_gram_release(g);
        pn_gram_release(again);
        pn_str_fini(&s);
    }
}

/* ---- real vocabularies ------------------------------------------------------------------------------------------ */

/* Every token at every stride-th position; all of a small vocabulary at each. */
static void real_vocabulary(const char *path, size_t stride)
{
    static const char text[] = "{\"name\": \"caf\xC3\xA9 \xE4\xB8\xAD\", \"n\": [-1.5e+10, true, {\"k\\n\": null}]}";
    pn_engine *e = NULL;
    pn_model *model = NULL;
    pn_gtrie *t = NULL;
    pn_matcher *m = NULL;
    pn_err err = {PN_OK, ""};
    pn_model_params params = {.vocab_only = 1};
    pn_gram *g = compile(json_gbnf);
    FILE *f = fopen(path, "rb");
    if (!f)
        pn_test_skip("no model at %s", path);
    else if (fclose(f) == 0 && PN_CHECK(pn_engine_open(&e, NULL, &err) == PN_OK, "%s", err.text) &&
             PN_CHECK(pn_model_load(e, path, &params, &model, &err) == PN_OK, "%s", err.text) &&
             PN_CHECK(pn_gtrie_from_vocab(&t, &libc_mem, model->vocab, &err) == PN_OK, "%s", err.text) &&
             PN_CHECK(pn_matcher_new(&m, &libc_mem, g, t, NULL) == PN_OK))
        for (size_t i = 0; i < sizeof text; i++) {
            if (i % stride == 0)
                mask_is_exact(m, t, path);
            if (text[i])
                PN_CHECK(pn_matcher_accept_bytes(m, text + i, 1, NULL) == PN_OK);
        }
    pn_matcher_free(m);
    pn_gtrie_free(t);
    pn_gram_release(g);
    pn_model_free(model);
    pn_engine_close(e);
}

static void real_vocabularies(void)
{
    char path[1024];
    const char *models = getenv("PANTHEON_MODELS");
    real_vocabulary("models/demo.gguf", 1);
    snprintf(path, sizeof path, "%s/SmolLM2-135M-Instruct.Q4_1.gguf", models ? models : "../shared/models");
    real_vocabulary(path, 3);
}

int main(void)
{
    pn_mem_init_libc(&libc_mem);
    vectors_match();
    masks_are_exact_for_all_tokens();
    random_walks_stay_in_the_language();
    rollback_is_exact();
    regexes_match();
    categories_are_exact();
    regexes_are_refused();
    products_and_complements();
    nested_repetitions();
    hostile_grammars();
    doubling_stays_small();
    deep_text_must_close();
    every_allocation_may_fail();
    printed_grammars_read_back();
    real_vocabularies();
    return pn_test_end();
}
