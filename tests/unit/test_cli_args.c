/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * test_cli_args.c - the flag parser: what it takes, what it refuses, what wins.
 *
 * Messages of refused command lines appear on stderr; that is what is being tested.
 */
#include "cli/pn_cli.h"

#include "pn_test.h"

static const pn_flag args_flags[] = {
    PN_ROW_MODEL,
    PN_ROW_CTX("x", "x"),
    {"temp", NULL, 0, PN_FLAG_REAL, false, 0, 2, "T", NULL, "x"},
    {"seed", NULL, 0, PN_FLAG_U64, false, 0, 0, "N", NULL, "x"},
    {"depth", NULL, 'd', PN_FLAG_INTS, false, 0, 100, "N", NULL, "x"},
    {"stop", NULL, 0, PN_FLAG_TEXT, true, 0, 0, "T", NULL, "x"},
    PN_ROW_KV_TYPE,
    PN_ROW_MEM_LIMIT,
    PN_ROW_QUIET,
    PN_ROW_END
};

static const pn_cmd args_cmd = {"probe", "WORD", "x", args_flags, 1, 2, NULL};

static pn_mem args_mem;

static bool args_try(pn_args *a, int n, const char **words)
{
    return pn_args_parse(a, &args_mem, &args_cmd, n, (char **)(uintptr_t)words);
}

static void a_good_line_gives_its_values(void)
{
    const char *w[] = {"-m", "f.gguf", "word", "--ctx-cap=77", "--temp", "0.5", "--seed", "18446744073709551615",
                       "-d", "1,20,3", "--stop", "a", "--stop=", "--kv-type=f32", "--mem-limit", "1.5K", "-q",
                       "--", "-x"};
    pn_args a;
    uint32_t list[PN_FLAG_INTS_MAX];
    PN_CHECK(args_try(&a, PN_COUNT_OF(w), w));
    PN_CHECK(strcmp(pn_args_text(&a, "model", ""), "f.gguf") == 0);
    PN_CHECK(pn_args_int(&a, "ctx", 0) == 77);
    PN_CHECK(pn_args_real(&a, "temp", 0) == 0.5);
    PN_CHECK(pn_args_u64(&a, "seed", 0) == UINT64_MAX);
    PN_CHECK(pn_args_ints(&a, "depth", "9", list) == 3 && list[0] == 1 && list[1] == 20 && list[2] == 3);
    PN_CHECK(strcmp(pn_args_nth(&a, "stop", 0), "a") == 0 && strcmp(pn_args_nth(&a, "stop", 1), "") == 0);
    PN_CHECK(pn_args_nth(&a, "stop", 2) == NULL);
    PN_CHECK(pn_args_size(&a, "mem-limit", 0) == 1536);
    PN_CHECK(pn_args_on(&a, "quiet"));
    PN_CHECK(strcmp(pn_args_pos(&a, 0), "word") == 0 && strcmp(pn_args_pos(&a, 1), "-x") == 0);
    PN_CHECK(pn_args_pos(&a, 2) == NULL && pn_args_complete(&a));
    pn_args_fini(&a);
}

static void what_is_absent_has_its_fallback(void)
{
    pn_args a;
    uint32_t list[PN_FLAG_INTS_MAX];
    PN_CHECK(args_try(&a, 0, NULL));
    PN_CHECK(!pn_args_has(&a, "ctx") && pn_args_int(&a, "ctx", 5) == 5 && !pn_args_on(&a, "quiet"));
    PN_CHECK(pn_args_ints(&a, "depth", "8,9", list) == 2 && list[1] == 9);
    PN_CHECK(!pn_args_complete(&a));
    pn_args_fini(&a);
}

static void bad_lines_are_refused(void)
{
    static const char *const bad[][3] = {
        {"--bogus", NULL, NULL},      {"-x", NULL, NULL},           {"-qm", NULL, NULL},
        {"--ctx", NULL, NULL},        {"--ctx", "0", NULL},         {"--ctx", "1x", NULL},
        {"--ctx", "", NULL},          {"--temp", "2.1", NULL},      {"--temp", "nan", NULL},
        {"--temp", "0.5 ", NULL},     {"--seed", "-1", NULL},       {"--seed", "18446744073709551616", NULL},
        {"-d", "1,,2", NULL},         {"-d", "1,101", NULL},        {"-d", "", NULL},
        {"-d", "1,", NULL},           {"--kv-type", "f", NULL},     {"--kv-type", "f16|f32", NULL},
        {"--kv-type", "", NULL},      {"--mem-limit", "12Q", NULL}, {"--mem-limit", "-1", NULL},
        {"--quiet=1", NULL, NULL},    {"a", "b", "c"},              {"--CTX", "1", NULL},
    };
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
        pn_args a;
        const char *w[3] = {bad[i][0], bad[i][1], bad[i][2]};
        PN_CHECK(!args_try(&a, w[2] ? 3 : w[1] ? 2 : 1, w), "%s %s", w[0], w[1] ? w[1] : "");
        pn_args_fini(&a);
    }
}

static bool args_env(pn_args *a, const char *var)
{
    const pn_cmd *cmds[] = {&args_cmd};
    char copy[64];
    char *environment[] = {"HOME=/", copy, NULL};
    snprintf(copy, sizeof copy, "%s", var);
    return pn_args_environment(a, cmds, 1, environment);
}

static void variables_fill_what_the_line_left_out(void)
{
    const char *w[] = {"--ctx", "7", "word"};
    const pn_cmd *cmds[] = {&args_cmd};
    char *environment[] = {"PN_CTX=8", "PN_CTX_CAP=9", "PN_KV_TYPE=f16", "PN_QUIET=yes", "PN_SEED=", "PN_CPU=ref", NULL};
    pn_args a;
    PN_CHECK(args_try(&a, 3, w));
    PN_CHECK(pn_args_environment(&a, cmds, 1, environment));
    PN_CHECK(pn_args_int(&a, "ctx", 0) == 7);
    PN_CHECK(strcmp(pn_args_text(&a, "kv-type", ""), "f16") == 0);
    PN_CHECK(pn_args_on(&a, "quiet") && !pn_args_has(&a, "seed"));
    pn_args_fini(&a);
}

static void bad_variables_are_refused(void)
{
    static const char *const bad[] = {"PN_BOGUS=1", "PN_CTX=0", "PN_QUIET=maybe", "PN_ctx=1", "PN_=1", "PN_CT=1"};
    for (size_t i = 0; i < PN_COUNT_OF(bad); i++) {
        pn_args a;
        PN_CHECK(args_try(&a, 0, NULL));
        PN_CHECK(!args_env(&a, bad[i]), "%s", bad[i]);
        pn_args_fini(&a);
    }
    PN_CHECK(!args_env(NULL, "PN_BOGUS=1") && args_env(NULL, "PN_CTX=0"));
}

static void texts_of_strangers_are_masked(void)
{
    pn_str s;
    pn_str_init(&s, &args_mem, PN_ACCT_MISC);
    pn_out_safe(&s, "a\x1b[1m\xff\n\xc3\xa9", 9, 100);
    PN_CHECK(strcmp(pn_str_cstr(&s), "a?[1m?\\n\xc3\xa9") == 0, "%s", pn_str_cstr(&s));
    pn_str_clear(&s);
    pn_out_safe(&s, "abcdef", 6, 3);
    PN_CHECK(strcmp(pn_str_cstr(&s), "abc...") == 0);
    pn_str_fini(&s);
    PN_CHECK(strcmp(pn_out_bytes(1023).text, "1023 B") == 0 && strcmp(pn_out_bytes(1536).text, "1.50 KiB") == 0);
    PN_CHECK(strcmp(pn_out_bytes((uint64_t)20 << 40).text, "20.0 TiB") == 0);
    PN_CHECK(strcmp(pn_out_count(1240000000).text, "1.24 B") == 0);
    PN_CHECK(strcmp(pn_out_basename("a/b.gguf"), "b.gguf") == 0 && strcmp(pn_out_basename("a/"), "a/") == 0);
}

int main(void)
{
    pn_mem_init_libc(&args_mem);
    a_good_line_gives_its_values();
    what_is_absent_has_its_fallback();
    bad_lines_are_refused();
    variables_fill_what_the_line_left_out();
    bad_variables_are_refused();
    texts_of_strangers_are_masked();
    return pn_test_end();
}
