/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cmd_tokens.c - `pantheon tokenize` and `pantheon detokenize`: text to ids and back.
 *
 * Only the tokenizer of the model is loaded.  detokenize writes the bytes and nothing else, so that
 * the two are inverse byte for byte.
 */
#include "cli/pn_cli.h"

#ifdef PANTHEON_CLI

#include <inttypes.h>
#include <stdio.h>

static const pn_flag tokenize_flags[] = {
    PN_ROW_MODEL,
    {"file", NULL, 'f', PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "the text from a file; - is standard input"},
    {"special", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "control tokens written in the text count as such"},
    {"bos", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "add the tokens that the model wants around a text"},
    {"json", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "one JSON array"},
    PN_ROW_MEM_LIMIT,
    PN_ROW_QUIET,
    PN_ROW_END
};

static const pn_flag detokenize_flags[] = {
    PN_ROW_MODEL,
    {"tokens", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "1,2,3", NULL, "the ids"},
    {"tokens-file", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "the ids from a file; - is standard input"},
    {"special", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "write control tokens as their text, not as nothing"},
    PN_ROW_MEM_LIMIT,
    PN_ROW_QUIET,
    PN_ROW_END
};

static int tokenize_input(pn_cli *c, pn_str *text)
{
    const char *word = pn_args_pos(&c->args, 0), *path = pn_args_text(&c->args, "file", NULL);
    if (!word == !path)
        return pn_cli_usage(c, "tokenize needs either TEXT or --file FILE");
    if (path)
        return pn_cli_read_file(c, path, text);
    pn_str_addz(text, word);
    return text->failed ? pn_cli_nomem(c) : PN_EXIT_OK;
}

static int tokenize_print(pn_cli *c, const pn_ids *ids)
{
    bool json = pn_args_on(&c->args, "json");
    if (json)
        putchar('[');
    for (size_t i = 0; i < ids->n; i++)
        printf(i ? ",%" PRId32 : "%" PRId32, ids->data[i]);
    puts(json ? "]" : "");
    return pn_cli_flush(c, PN_EXIT_OK);
}

static int tokenize_main(pn_cli *c)
{
    unsigned flags = (pn_args_on(&c->args, "bos") ? (unsigned)PN_TOKENIZE_BOS : 0u) |
                     (pn_args_on(&c->args, "special") ? (unsigned)PN_TOKENIZE_SPECIAL : 0u);
    pn_str text;
    pn_ids ids;
    pn_str_init(&text, &c->mem, PN_ACCT_MISC);
    pn_ids_init(&ids, &c->mem);
    int code = tokenize_input(c, &text);
    if (!code)
        code = pn_cli_open_vocab(c);
    if (!code)
        code = pn_cli_tokenize(c, pn_str_cstr(&text), text.len, flags, &ids);
    if (!code)
        code = tokenize_print(c, &ids);
    pn_ids_fini(&ids);
    pn_str_fini(&text);
    return code;
}

static int detokenize_print(pn_cli *c, const pn_ids *ids)
{
    int special = pn_args_on(&c->args, "special");
    size_t n, cap;
    pn_status st = pn_detokenize(c->model, ids->data, ids->n, special, NULL, 0, &cap, &c->err);
    if (st)
        return pn_cli_fail(c, st);
    char *buf = pn_mem_alloc(&c->mem, PN_ACCT_MISC, cap);
    if (!buf)
        return pn_cli_nomem(c);
    st = pn_detokenize(c->model, ids->data, ids->n, special, buf, cap, &n, &c->err);
    if (st == PN_OK)
        fwrite(buf, 1, n, stdout);
    pn_mem_free(&c->mem, PN_ACCT_MISC, buf, cap);
    return st ? pn_cli_fail(c, st) : pn_cli_flush(c, PN_EXIT_OK);
}

static int detokenize_main(pn_cli *c)
{
    pn_ids ids;
    pn_ids_init(&ids, &c->mem);
    int code = pn_cli_open_vocab(c);
    if (!code)
        code = pn_cli_read_ids(c, &ids);
    if (!code)
        code = detokenize_print(c, &ids);
    pn_ids_fini(&ids);
    return code;
}

PN_INTERNAL const pn_cmd *pn_cmd_tokenize(void)
{
    static const pn_cmd cmd = {"tokenize", "-m FILE (TEXT | --file FILE) [FLAGS]", "text to token ids",
                               tokenize_flags, 0, 1, tokenize_main};
    return &cmd;
}

PN_INTERNAL const pn_cmd *pn_cmd_detokenize(void)
{
    static const pn_cmd cmd = {"detokenize", "-m FILE (--tokens 1,2,3 | --tokens-file FILE) [FLAGS]",
                               "token ids to the bytes they stand for", detokenize_flags, 0, 0, detokenize_main};
    return &cmd;
}

#endif /* PANTHEON_CLI */
