/* SPDX-License-Identifier: AGPL-3.0-only */
#include "pn_test.h"
#include "text/pn_hf_vocab.h"
#include "text/pn_pretok.h"

#include <inttypes.h>

/*
 * Regular expressions that are run: against pieces of the reference (tests/vectors/pattern), against the tables
 * of published patterns, what is refused and why, the worst runs, every allocation failing in turn.
 */

#define HOLDS(cond) PN_CHECK(cond, " ")

static pn_mem mem;

/* --- a list of patterns -------------------------------------------------------------------- */

typedef struct list {
    pn_pretok pretok;
    pn_pretok_pattern levels[PN_PRETOK_MAX_LEVELS];
    size_t n;
} list;

static void list_clear(list *l)
{
    for (size_t i = 0; i < l->n; i++)
        pn_pattern_free(l->levels[i].program);
    *l = (list){.n = 0};
}

static bool list_add(list *l, const char *pattern, size_t n, pn_pretok_cut cut, bool invert)
{
    pn_err err = {0};
    pn_pretok_pattern level = {.cut = cut, .invert = invert};
    if (!PN_CHECK(l->n < PN_PRETOK_MAX_LEVELS && !pn_pattern_new(&level.program, &mem, pattern, n, false, &err), "%.*s: %s", (int)n,
                  pattern, err.text))
        return false;
    l->levels[l->n] = level;
    l->pretok.levels[l->n] = &l->levels[l->n];
    l->n++;
    return true;
}

typedef struct got {
    const char *base;
    char text[1 << 14];         /* "0-5 5-7" */
    size_t len, n, bytes;
} got;

static bool collect(void *user, const char *w, size_t n)
{
    got *g = user;
    size_t at = (size_t)(w - g->base);
    if (g->len + 32 < sizeof g->text)
        g->len += (size_t)sprintf(g->text + g->len, "%s%zu-%zu", g->len ? " " : "", at, at + n);
    return true;
}

static bool count(void *user, const char *w, size_t n)
{
    got *g = user;
    (void)w;
    g->n++;
    g->bytes += n;
    return true;
}

static size_t unhex(const char *hex, char *out)
{
    size_t n = 0;
    for (unsigned v; hex[0] && hex[0] != ' ' && sscanf(hex, "%2x", &v) == 1; hex += 2)
        out[n++] = (char)v;
    return n;
}

/* --- the reference ------------------------------------------------------------------------- */

static void pieces_are_those_of_the_reference(void)
{
    char *file = pn_test_read_file("tests/vectors/pattern/vectors.txt", NULL);
    static char bytes[1 << 14];
    list l = {.n = 0};
    char now[256] = "";
    size_t lists = 0, texts = 0;
    if (!HOLDS(file != NULL))
        return;
    for (char *line = strtok(file, "\n"); line; line = strtok(NULL, "\n")) {
        int cut, invert, at = 0;
        if (sscanf(line, "list %d %d %n", &cut, &invert, &at) == 2 || sscanf(line, "then %d %d %n", &cut, &invert, &at) == 2) {
            if (line[0] == 'l')
                list_clear(&l);
            lists += line[0] == 'l';
            size_t n = unhex(line + at, bytes);
            snprintf(now, sizeof now, "%.*s (%d, %d)", (int)PN_MIN(n, (size_t)200), bytes, cut, invert);
            list_add(&l, bytes, n, (pn_pretok_cut)cut, invert);
            continue;
        }
        got g = {.base = bytes};
        const char *want = strchr(line, ' ');
        size_t n = unhex(line, bytes);
        HOLDS(pn_pretok_split(&l.pretok, &mem, bytes, n, collect, &g));
        PN_CHECK(strcmp(g.text, want ? want + 1 : "") == 0, "%s on \"%.*s\": wanted%s, got %s", now, (int)n, bytes, want ? want : "", g.text);
        texts++;
    }
    PN_CHECK(lists > 150 && texts > 300, "%zu lists, %zu texts", lists, texts);
    list_clear(&l);
    free(file);
}

/* --- the tables ---------------------------------------------------------------------------- */

#define CI "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define OTHER "| ?[^\\s\\p{L}\\p{N}]+"
#define TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER(x) "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}" x "]"
#define LOWER(x) "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}" x "]"
#define CASED(x, ci) UPPER(x) "*" LOWER(x) "+" ci "|" UPPER(x) "+" LOWER(x) "*" ci
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+" OTHER "|\\s+(?!\\S)|\\s+"

static const struct { const char *name, *patterns[4]; } published[] = {
    {"gpt-2", {GPT2}},
    {"llama3", {CI "|" WORD "|\\p{N}{1,3}" OTHER "[\\r\\n]*" TAIL}},
    {"qwen2", {CI "|" WORD "|\\p{N}" OTHER "[\\r\\n]*" TAIL}},
    {"qwen35", {CI "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" TAIL}},
    {"tekken", {CASED("", "") "|\\p{N}" OTHER "[\\r\\n/]*" TAIL}},
    {"gpt-4o", {CASED("", CI "?") "|\\p{N}{1,3}" OTHER "[\\r\\n/]*" TAIL}},
    {"kimi-k2", {"[\\p{Han}]+|" CASED("&&[^\\p{Han}]", CI "?") "|\\p{N}{1,3}" OTHER "[\\r\\n]*" TAIL}},
    {"starcoder", {"\\p{N}", GPT2}},
    {"falcon", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"deepseek-v3", {"\\p{N}{1,3}", "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
                     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
                     " ?[\\p{P}\\p{S}]+[\\r\\n]*" TAIL}},
    {"bailingmoe", {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {"seed-coder", {CI "|" WORD "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" TAIL}},
    {"minicpm5", {"\\p{N}{1,3}", CI "|" WORD "|\\p{N}+" OTHER "[\\r\\n]*" TAIL}},
    {"gemma4", {"[^\\n]+|[\\n]+"}},
    {"superbpe", {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}},
    {"tiny_aya", {"\\d{1,3}(?=(?:\\d{3})*\\b)", CASED("", CI "?") "|\\p{N}{1,3}" OTHER "[\\r\\n/]*" TAIL}},
    {"exaone-moe", {CI "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}" OTHER "[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {"poro-chat", {" ?[^(\\s|.,!?\xE2\x80\xA6\xE3\x80\x82\xEF\xBC\x8C\xE3\x80\x81\xE0\xA5\xA4\xDB\x94\xD8\x8C)]+"}},
    {"jais-2", {CI "|" WORD "|\\p{N}{1,3}" OTHER "[\\r\\n]*|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)"
                "|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"}},
};

/* Texts of every kind: those of the other vectors' lines, put together and cut anywhere. */
static void check_tables(const list *l, const char *name, const char *text, size_t n)
{
    static got a, b;
    a = b = (got){.base = text};
    pn_pretok_split(pn_pretok_find(name, strlen(name)), &mem, text, n, collect, &a);
    pn_pretok_split(&l->pretok, &mem, text, n, collect, &b);
    PN_CHECK(strcmp(a.text, b.text) == 0, "%s on \"%.*s\": table %s, program %s", name, (int)n, text, a.text, b.text);
}

static void published_patterns_cut_as_their_tables_do(void)
{
    char *file = pn_test_read_file("tests/vectors/pattern/vectors.txt", NULL);
    static char text[1 << 18];
    size_t n = 0;
    uint64_t seed = 3;
    if (!HOLDS(file != NULL))
        return;
    for (char *line = strtok(file, "\n"); line; line = strtok(NULL, "\n"))
        if (line[0] != 'l' && line[0] != 't')
            n += unhex(line, text + n);
    for (size_t i = 0; i < PN_COUNT_OF(published); i++) {
        list l = {.n = 0};
        bool ok = true;
        for (size_t k = 0; k < 4 && published[i].patterns[k] && ok; k++)
            ok = list_add(&l, published[i].patterns[k], strlen(published[i].patterns[k]), PN_CUT_ISOLATED, false);
        for (int k = 0; k < 600 && ok; k++) {           /* any bytes: characters may be cut in two */
            size_t at = (size_t)(pn_test_rand(&seed) % n), len = (size_t)(pn_test_rand(&seed) % 200);
            check_tables(&l, published[i].name, text + at, PN_MIN(len, n - at));
        }
        list_clear(&l);
    }
    free(file);
}

/* --- by hand ------------------------------------------------------------------------------- */

static void check_cut(const char *pattern, pn_pretok_cut cut, bool invert, const char *text, const char *want)
{
    list l = {.n = 0};
    got g = {.base = text};
    if (list_add(&l, pattern, strlen(pattern), cut, invert)) {
        HOLDS(pn_pretok_split(&l.pretok, &mem, text, strlen(text), collect, &g));
        PN_CHECK(strcmp(g.text, want) == 0, "%s (%d, %d) on \"%s\": wanted %s, got %s", pattern, cut, invert, text, want, g.text);
    }
    list_clear(&l);
}

static void what_is_written_is_what_happens(void)
{
    /* the first alternative, not the longest */
    check_cut("a|ab", PN_CUT_ISOLATED, false, "ab", "0-1 1-2");
    check_cut("(?:a|ab)(?:c|bcd)", PN_CUT_ISOLATED, false, "abcd", "0-4");
    check_cut("a+?", PN_CUT_ISOLATED, false, "aaa", "0-1 1-2 2-3");
    check_cut("a{2}", PN_CUT_ISOLATED, false, "aaaaa", "0-2 2-4 4-5");
    check_cut("a{1,2}+a", PN_CUT_ISOLATED, false, "aaaaa", "0-5");
    /* what is kept is kept */
    check_cut("a?+a", PN_CUT_REMOVED, true, "a", "");
    check_cut("a?+a", PN_CUT_REMOVED, true, "aa", "0-2");
    check_cut("(?>a|ab)c", PN_CUT_REMOVED, true, "abc", "");
    check_cut("(?>ab|a)c|abd", PN_CUT_REMOVED, true, "acabcabd", "0-2 2-5 5-8");
    check_cut("(?:(?>a+)b|a)c", PN_CUT_REMOVED, true, "aaacx", "2-4");
    check_cut("(?>(?:x|(?>a+))y|aa)a", PN_CUT_REMOVED, true, "aaay", "");
    check_cut("(?>(?:x|(?>a+))y|aa)a", PN_CUT_REMOVED, true, "aaaz", "0-3");
    check_cut("(?=(?>a+)b)a", PN_CUT_REMOVED, true, "aaab", "0-1 1-2 2-3");
    /* around */
    check_cut("(?<=a)b|(?<!b)c", PN_CUT_REMOVED, true, "abbccb", "1-2 4-5");
    check_cut("^.|.$", PN_CUT_REMOVED, true, "ab\ncd\n", "0-1 1-2 3-4 4-5");
    check_cut("\\Aa|a\\z", PN_CUT_REMOVED, true, "aa\naa", "0-1 4-5");
    check_cut("a\\Z", PN_CUT_REMOVED, true, "a\na\n", "2-3");
    check_cut("\\b", PN_CUT_ISOLATED, false, "ab  c", "0-2 2-4 4-5");
    /* nothing may match, but not behind a match */
    check_cut("x*", PN_CUT_ISOLATED, false, "axxb", "0-1 1-3 3-4");
    check_cut("(?=[A-Z])", PN_CUT_ISOLATED, false, "aBcD", "0-1 1-3 3-4");
    /* cases */
    check_cut("(?i)k|'s", PN_CUT_REMOVED, true, "k\xE2\x84\xAAK's'\xC5\xBF", "0-1 1-4 4-5 5-7 7-10");
    check_cut("(?i:[^k])", PN_CUT_REMOVED, true, "kxK", "1-2");
    /* matches and what lies between them */
    check_cut("\\d", PN_CUT_REMOVED, false, "a12b", "0-1 3-4");
    check_cut("\\d", PN_CUT_REMOVED, true, "a12b", "1-2 2-3");
    check_cut("\\d", PN_CUT_WITH_PREVIOUS, false, "a12b", "0-2 2-3 3-4");
    check_cut("\\d", PN_CUT_WITH_NEXT, false, "a12b", "0-1 1-2 2-4");
    check_cut("\\d", PN_CUT_CONTIGUOUS, false, "a12b", "0-1 1-3 3-4");
    check_cut("\\d", PN_CUT_WITH_PREVIOUS, true, "a12b", "0-1 1-2 2-4");
    check_cut("\\d", PN_CUT_WITH_NEXT, true, "a12b", "0-2 2-3 3-4");
    check_cut("\\d", PN_CUT_CONTIGUOUS, true, "a12b", "0-1 1-3 3-4");
    /* bytes that are no characters stand alone and are in no class of letters */
    check_cut("\\p{L}+", PN_CUT_ISOLATED, false, "ab\xC3\xFF" "cd\xE4\xB8", "0-2 2-4 4-6 6-8");
}

static void what_could_mean_something_else_is_refused(void)
{
    static const struct { const char *pattern, *why; } cases[] = {
        {"(a)\\1", "offset 4: an escape"}, {"\\G", "escape"}, {"\\Ka", "escape"}, {"\\Ra", "escape"}, {"\\h", "escape"}, {"\\", "at the end"},
        {"\\p{Latin}", "property that is not known"}, {"\\pL", "braces"}, {"\\p{L", "property"}, {"\\p{}", "property"},
        {"(?<=ab)c", "more than one"}, {"(?<=a+)c", "more than one"}, {"(?<=a|b)c", "more than one"}, {"(?<n>a)", "kind"}, {"(?#x)", "kind"},
        {"(?-i:a)", "kind"}, {"a(?i)b", "kind"}, {"(?x:a)", "kind"}, {"(a", "group without end"}, {"a)", "closing"}, {"[a", "without end"},
        {"[]a]", "begins with ]"}, {"[^]", "begins with ]"}, {"[b-a]", "higher"}, {"[a-c-e]", "goes on"}, {"[\\w-.]", "range of a class"},
        {"[a&&]", "nothing"}, {"[[:alpha:]]", "[: :]"}, {"[a-[b]]", "without an end"}, {"a**", "of a repetition"}, {"a{2}{3}", "of a repetition"},
        {"*a", "of nothing"}, {"a|+", "of nothing"}, {"a{x", "{m}"}, {"a{,2}", "{m}"}, {"a{2,1}", "{m}"}, {"a{1001}", "at most 1000"},
        {"{", "brace"}, {"^*", "without length"}, {"(?=a)+", "without length"}, {"(?:a*)*", "may be empty"}, {"(?:a|b?)+", "may be empty"},
        {"(?:\\b)*", "may be empty"}, {"(?:(?:a?){2})+", "may be empty"}, {"(?i:ss)", "stand for"}, {"(?i:s(?:t))", "stand for"},
        {"(?i:\xC3\xA9)", "beyond ASCII"}, {"(?i:[\\p{L}])", "letters in brackets"}, {"(?i:[[a]])", "inside a class"}, {"(?i:[a&&b])", "intersection"},
        {"[^a[^\\D\\d]]", "nothing beyond ASCII"}, {"\\x{110000}", "no character"}, {"\\ud800", "no character"}, {"\\xe9", "byte"}, {"\xFF", "byte"},
        {"(?:(?:(?:(?:a{1000}){1000}){1000}){1000}){1000}", "too long"}, {"(?:(?:(?:(?:){1000}){1000}){1000}){1000}", "too long"},
        {"((((((((((((((((((((((((((((((((((a))))))))))))))))))))))))))))))))))", "too deep"},
        {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[a]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]", "too deep"},
    };
    static char text[16384];
    pn_pattern *p = NULL;
    for (size_t i = 0; i < PN_COUNT_OF(cases); i++) {
        pn_err err = {0};
        pn_status st = pn_pattern_new(&p, &mem, cases[i].pattern, strlen(cases[i].pattern), false, &err);
        PN_CHECK(st == PN_E_UNSUPPORTED && strstr(err.text, cases[i].why), "%s: %d, %s", cases[i].pattern, st, err.text);
        if (!st)
            pn_pattern_free(p);
    }
    pn_err err = {0};
    memset(text, 'a', sizeof text);
    PN_CHECK(pn_pattern_new(&p, &mem, text, sizeof text, true, &err) == PN_E_UNSUPPORTED && strstr(err.text, "8192"), "%s", err.text);
    size_t n = 0;
    for (int i = 0; i < 65; i++)                /* one class more than a word has bits */
        n += (size_t)sprintf(text + n, "[\\x{%x}-\\x{%x}]", 0x4E00 + i, 0x5000 + i);
    PN_CHECK(pn_pattern_new(&p, &mem, text, n, false, &err) == PN_E_UNSUPPORTED && strstr(err.text, "64"), "%s", err.text);
}

/* Exponential or quadratic when backtracked into; with each text a program must be done at once. */
static void no_text_and_no_pattern_is_slow(void)
{
    static const char *const patterns[] = {
        "(?:a+)+b", "(?:a|a)*b", "(?:a|aa)+$", "(?:(?:a+)+)+b", "\\s*[\\r\\n]", "a*a*a*a*b", "(?=(\\d{3})+(?!\\d))", "(?=.*x)", "(?:.*?,){8}x",
        "(?>a+)b", "(?:a?){500}a{500}", "\\w+(?=\\W*z)", "(?!.*y)a", "(?:(?>a*)b|a)+c",
    };
    static const char *const units[] = {"a", " ", "1", "a,", "\xE4\xB8\xAD", "\xFF"};
    size_t cap = 1 << 16;
    char *text = malloc(cap);
    for (size_t k = 0; text && k < PN_COUNT_OF(patterns); k++) {
        list l = {.n = 0};
        bool ok = list_add(&l, patterns[k], strlen(patterns[k]), PN_CUT_ISOLATED, false);
        for (size_t u = 0; u < PN_COUNT_OF(units) && ok; u++) {
            static got g;
            size_t len = strlen(units[u]), n = 0;
            g = (got){.n = 0};
            for (; n + len < cap; n += len)
                memcpy(text + n, units[u], len);
            HOLDS(pn_pretok_split(&l.pretok, &mem, text, n, count, &g) && g.bytes == n);
        }
        list_clear(&l);
    }
    free(text);
}

/* --- memory -------------------------------------------------------------------------------- */

static void every_failing_allocation_is_a_status_and_no_leak(void)
{
    static const char *const patterns[] = {
        CASED("&&[^\\p{Han}]", CI "?") "|\\b\\w+(?<=[a-z])|(?<!x).{2,3}+", "(?>(?:a|[^[:punct:][^b]])+)(?=x)|(?i)k", "(?i)k|[a-c]+?$",
    };
    static const char text[] = "Hello WORLD's k 123 \xE4\xB8\xAD";
    for (size_t i = 0; i < PN_COUNT_OF(patterns); i++) {
        bool done = false;
        for (long at = 1; !done && at < 2000; at++) {
            pn_test_mem tm;
            pn_err err = {0};
            pn_pretok_pattern level = {.cut = PN_CUT_CONTIGUOUS}, last = {.cut = PN_CUT_ISOLATED};
            static got g;
            pn_test_mem_init(&tm, at);
            pn_status st = pn_pattern_new(&level.program, &tm.mem, patterns[i], strlen(patterns[i]), false, &err);
            if (st == PN_E_UNSUPPORTED && i == 1) {
                done = true;                    /* (?i) in the middle: everything before it was freed */
                HOLDS(tm.outstanding == 0);
                continue;
            }
            if (!st)
                st = pn_pattern_new(&last.program, &tm.mem, "l+", 2, true, &err);
            pn_pretok p = {.levels = {&level, &last}};
            if (!st) {
                uint64_t held = pn_pattern_bytes(level.program) + pn_pattern_bytes(last.program);
                PN_CHECK(tm.bytes == held, "holds %" PRIu64 ", says %" PRIu64, tm.bytes, held);
                g = (got){.n = 0};
                st = pn_pretok_split(&p, &tm.mem, text, sizeof text - 1, count, &g) ? PN_OK : PN_E_NOMEM;
            }
            done = tm.n_calls < at;
            PN_CHECK(st == (done ? PN_OK : PN_E_NOMEM), "%s, allocation %ld: %d, %s", patterns[i], at, st, err.text);
            pn_pattern_free(level.program);
            pn_pattern_free(last.program);
            PN_CHECK(tm.outstanding == 0, "%s, allocation %ld: %ld blocks leaked", patterns[i], at, tm.outstanding);
        }
        HOLDS(done);
    }
}

static void a_vocabulary_with_a_pattern_survives_failing_allocations(void)
{
    static const char json[] =
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[ab]|\\\\p{L}{2}\"},\"behavior\":"
        "\"MergedWithNext\"},{\"type\":\"Split\",\"pattern\":{\"String\":\"c\"},\"behavior\":\"Removed\",\"invert\":true}]},\"model\":{\"type\":\"BPE\","
        "\"vocab\":{\"a\":0,\"b\":1,\"c\":2},\"merges\":[]}}";
    bool done = false;
    for (long at = 1; !done && at < 2000; at++) {
        pn_test_mem tm;
        pn_err err = {0};
        pn_hf_files f = {.tokenizer_json = {json, sizeof json - 1}};
        pn_hf_vocab *h = NULL;
        pn_vocab *v = NULL;
        pn_vocab_source src;
        pn_token *ids = NULL;
        size_t n = 0, cap = 0;
        pn_test_mem_init(&tm, at);
        pn_status st = pn_hf_vocab_new(&h, &tm.mem, &f, 4, NULL, NULL, &err);
        if (!st) {
            pn_hf_vocab_source(h, &src);
            st = pn_vocab_new(&v, &tm.mem, &src, NULL, NULL, &err);
        }
        if (!st) {
            pn_hf_vocab_trim(h);
            PN_CHECK(tm.bytes == pn_hf_vocab_bytes(h) + pn_vocab_bytes(v), "holds %" PRIu64, tm.bytes);
            st = pn_vocab_encode(v, &tm.mem, "abcxc", 5, 0, NULL, 0, &ids, &n, &cap, &err);
        }
        done = tm.n_calls < at;
        PN_CHECK(st == (done ? PN_OK : PN_E_NOMEM), "allocation %ld: %d, %s", at, st, err.text);
        HOLDS(!done || (n == 2 && ids[0] == 2 && ids[1] == 2));
        pn_mem_free(&tm.mem, PN_ACCT_MISC, ids, cap * sizeof *ids);
        pn_vocab_free(v);
        pn_hf_vocab_free(h);
        PN_CHECK(tm.outstanding == 0, "allocation %ld: %ld blocks leaked", at, tm.outstanding);
    }
    HOLDS(done);
}

int main(void)
{
    pn_mem_init_libc(&mem);
    pieces_are_those_of_the_reference();
    published_patterns_cut_as_their_tables_do();
    what_is_written_is_what_happens();
    what_could_mean_something_else_is_refused();
    no_text_and_no_pattern_is_slow();
    every_failing_allocation_is_a_status_and_no_leak();
    a_vocabulary_with_a_pattern_survives_failing_allocations();
    return pn_test_end();
}
