/* SPDX-License-Identifier: AGPL-3.0-only */
#include "pn_test.h"
#include "text/pn_pretok.h"

/*
 * The published patterns against pieces made by a regular-expression engine (tests/vectors/pretok),
 * hand-worked cases for the lists that have no vectors, and linear time on the worst runs.
 */

#define HOLDS(cond) PN_CHECK(cond, " ")

static pn_mem mem;

typedef struct got_words {
    char text[1 << 14];     /* pieces in hex, separated by blanks */
    size_t len, n;
    size_t bytes;
} got_words;

static bool collect(void *user, const char *w, size_t n)
{
    got_words *g = user;
    if (g->n++ && g->len < sizeof g->text)
        g->text[g->len++] = ' ';
    for (size_t i = 0; i < n && g->len + 3 < sizeof g->text; i++)
        g->len += (size_t)sprintf(g->text + g->len, "%02x", (unsigned char)w[i]);
    g->text[g->len] = 0;
    g->bytes += n;
    return true;
}

static bool count_words(void *user, const char *w, size_t n)
{
    got_words *g = user;
    (void)w;
    g->n++;
    g->bytes += n;
    return true;
}

static size_t unhex(const char *line, char *out)
{
    size_t n = 0;
    for (; line[0] && line[1]; line += 2) {
        unsigned v;
        while (*line == ' ')
            line++;
        if (sscanf(line, "%2x", &v) != 1)
            break;
        out[n++] = (char)v;
    }
    return n;
}

static void published_vectors_are_reproduced(void)
{
    char *file = pn_test_read_file("tests/vectors/pretok/vectors.txt", NULL);
    const pn_pretok *p = NULL;
    char name[64] = "";
    if (!HOLDS(file != NULL))
        return;
    for (char *line = strtok(file, "\n"); line; line = strtok(NULL, "\n")) {
        if (strncmp(line, "pre ", 4) == 0) {
            snprintf(name, sizeof name, "%s", line + 4);
            p = pn_pretok_find(name, strlen(name));
            PN_CHECK(p != NULL, "%s", name);
            continue;
        }
        static char text[1 << 12];
        got_words g = {.n = 0};
        size_t n = unhex(line, text);
        if (p)
            pn_pretok_split(p, &mem, text, n, collect, &g);
        PN_CHECK(strcmp(g.text, line) == 0, "%s: wanted\n  %s\n  %s", name, line, g.text);
    }
    free(file);
}

/* pieces: separated by "\1" */
static void check_pieces(const char *name, const char *pieces)
{
    char text[512], want[2048] = "";
    size_t n = 0, w = 0;
    for (const char *c = pieces; *c; c++)
        if (*c == 1) {
            want[w++] = ' ';
        } else {
            text[n++] = *c;
            w += (size_t)sprintf(want + w, "%02x", (unsigned char)*c);
        }
    want[w] = 0;
    got_words g = {.n = 0};
    const pn_pretok *p = pn_pretok_find(name, strlen(name));
    if (PN_CHECK(p != NULL, "%s", name)) {
        pn_pretok_split(p, &mem, text, n, collect, &g);
        PN_CHECK(strcmp(g.text, want) == 0, "%s: wanted\n  %s\n  %s", name, want, g.text);
    }
}

static void lists_without_vectors_follow_their_patterns(void)
{
    check_pieces("superbpe", "any \1" "12\1, x\1" "1\1" "234\1" "567\1 y\1" "12\1" "345");
    check_pieces("tiny_aya", "1\1" "234\1" "567");
    check_pieces("afmoe", "1\1" "234\1" "567\1" "\xe4\xb8\xad\xe6\x96\x87\1 abc\1" "12\1!");
    check_pieces("poro-chat", "Hello\1 world\1, (\1" "a\1|\1" "b\1)");
    check_pieces("viking", "abc\1" "1\1" "2\1 x\1" "3");
    check_pieces("youtu", "\xed\x95\x9c\xea\xb8\x80\1" "abc\1\xe4\xb8\xad\xe3\x81\x82\1\xef\xbc\x81\xe3\x80\x82\1" "1\1" "2");
    check_pieces("laguna", "a\1 b\1\n\n\1" "c\1 \1" "1");
    check_pieces("exaone-moe", "Hello big world\1,\1 it\1's\1 \1" "1\1" "2\1 !\n\1\n\1x");
    check_pieces("jais-2", "a\1    \1 \1 b\1  \1 c\1\n\n\1 d");
    check_pieces("chameleon", "a\1<\1sentinel\1:\1" "1\1" "2\1>\1IMGIMGABIZ\1    \1  \1 b\1" "1\1" "2\1!\1?\1\t");
    check_pieces("bailingmoe", "I\1'm\1 x\1.\n\1 \1" "1");
    check_pieces("gpt-4o", "HTTPServer's\1 ok\1!!/\n\1" "123\1" "4");
    check_pieces("gpt-4o", "don't\1 DON'T\1Stop");
    check_pieces("glm4", "A\1 \1" "123\1" "4");
    HOLDS(pn_pretok_find("qwen", 4) == NULL);
    HOLDS(pn_pretok_find("", 0) == NULL);
    HOLDS(pn_pretok_find("qwen2 qwen35", 12) == NULL);
}

static void whitespace_words_drop_what_is_between(void)
{
    got_words g = {.n = 0};
    pn_pretok_split(pn_pretok_find("whitespace", 10), &mem, " a bc\n", 6, collect, &g);
    PN_CHECK(strcmp(g.text, "61 6263") == 0, "%s", g.text);
}

/* 32 KiB of each nasty run must be cut at once; a quadratic rule shows as minutes. */
static void long_runs_take_linear_time(void)
{
    static const char *const units[] = {" ", "\n", "a", "A", "1", "!", "\xcc\x81", "\302\252A", "\t ", "'s", "a b ",
                                        "\xff", "IMGIMG", "<sentinel:1", "\xe4\xb8\xad", "x1", "12a", "  x"};
    size_t n_table, cap = 1 << 15;
    const pn_pretok *t = pn_pretok_table(&n_table);
    char *text = malloc(cap);
    for (size_t u = 0; text && u < PN_COUNT_OF(units); u++) {
        size_t len = strlen(units[u]), n = 0;
        for (; n + len < cap; n += len)
            memcpy(text + n, units[u], len);
        for (int tail = 0; tail < 2; tail++) {
            text[n] = 'x';
            for (size_t i = 0; i < n_table; i++) {
                got_words g = {.n = 0};
                pn_pretok_split(&t[i], &mem, text, n + (size_t)tail, count_words, &g);
                if (!(pn_pretok_flags(&t[i]) & PN_PRETOK_DROP_GAPS))
                    HOLDS(g.bytes == n + (size_t)tail);
            }
        }
    }
    free(text);
}

static void characters_have_their_classes(void)
{
    HOLDS(pn_uni_class('A') & PN_US(LU));
    HOLDS(pn_uni_class(0x17F) & PN_US(LL));
    HOLDS(pn_uni_class(0x1C5) & PN_US(LT));
    HOLDS(pn_uni_class(0x301) & PN_US(MN));
    HOLDS(pn_uni_class(0x4E2D) & PN_US_HAN);
    HOLDS(pn_uni_class(0x3005) & PN_US_HAN);
    HOLDS(!(pn_uni_class(0x3042) & PN_US_HAN));
    HOLDS(pn_uni_class(0x20000) & PN_US(LO));
    HOLDS(pn_uni_class(0x1F600) & PN_US(SO));
    HOLDS(pn_uni_class(0xE000) & PN_US(CO));
    HOLDS(pn_uni_class(0x10FFFF) & PN_US(CN));
    HOLDS(pn_uni_class(0x110000) & PN_US(CN));
    HOLDS(pn_uni_class(0x3000) & PN_US_WS);
    HOLDS(!(pn_uni_class(0x1C) & PN_US_WS) && !(pn_uni_class(0x180E) & PN_US_WS) && !(pn_uni_class(0x200B) & PN_US_WS));
    HOLDS(pn_uni_lower(0xC9) == 0xE9 && pn_uni_lower(0x100) == 0x101 && pn_uni_lower(0x101) == 0x101);
    HOLDS(pn_uni_lower(0x410) == 0x430 && pn_uni_lower(0x10400) == 0x10428 && pn_uni_lower(0x4E2D) == 0x4E2D);
    HOLDS(pn_uni_lower(0x130) == 'i' && pn_uni_lower(0xDF) == 0xDF);
    HOLDS(pn_uni_decomp_first(0xE9) == 'e' && pn_uni_decomp_first(0xD55C) == 0x1112 && pn_uni_decomp_first('x') == 'x');
}

int main(void)
{
    pn_mem_init_libc(&mem);
    published_vectors_are_reproduced();
    lists_without_vectors_follow_their_patterns();
    whitespace_words_drop_what_is_between();
    long_runs_take_linear_time();
    characters_have_their_classes();
    return pn_test_end();
}
