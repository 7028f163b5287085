/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cmd_grammar.c - `pantheon grammar`: does a grammar compile, what is it, which lines match it?
 *
 * No model is needed.  Exit 3: the schema asks for something that cannot be enforced; the line on
 * stderr has the JSON pointer of the keyword.
 */
#include "cli/pn_cli.h"

#ifdef PANTHEON_CLI

#include <stdio.h>

static const pn_flag grammar_flags[] = {
    {"json-schema", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "a JSON Schema; - is standard input"},
    {"gbnf", "grammar", 0, PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "a grammar in GBNF; - is standard input"},
    {"tools", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "JSON array of tools: answers of a model that may call them"},
    {"tool-choice", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "auto|none|required|NAME", "auto", "whether they are called, or which one"},
    {"single-call", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "at most one call"},
    {"template", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "chat template whose syntax of calls is meant"},
    {"syntax", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "NAME", "the template's", "the syntax by name: hermes, llama3, ..."},
    {"match-lines", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", NULL,
     "say accept or reject for each line: JSON as it is for a schema; else \\n and \\\\ are escapes"},
    {"print", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "the compiled grammar as GBNF"},
    PN_ROW_MEM_LIMIT,
    PN_ROW_QUIET,
    PN_ROW_END
};

static int grammar_tools(pn_cli *c, pn_grammar **out)
{
    const char *tmpl_path = pn_args_text(&c->args, "template", NULL);
    pn_str tools, tmpl;
    pn_str_init(&tools, &c->mem, PN_ACCT_MISC);
    pn_str_init(&tmpl, &c->mem, PN_ACCT_MISC);
    int code = pn_cli_read_file(c, pn_args_text(&c->args, "tools", NULL), &tools);
    if (!code && tmpl_path)
        code = pn_cli_read_file(c, tmpl_path, &tmpl);
    if (!code) {
        const pn_tools_params p = {.size = sizeof p, .tools = pn_str_cstr(&tools), .tools_len = tools.len,
                                   .chat_template = tmpl_path ? pn_str_cstr(&tmpl) : NULL, .chat_template_len = tmpl.len,
                                   .syntax = pn_args_text(&c->args, "syntax", NULL), .choice = pn_cli_tool_choice(c),
                                   .name = pn_cli_tool_name(c), .single = pn_args_on(&c->args, "single-call")};
        pn_status st = pn_grammar_tools(c->engine, NULL, &p, out, &c->err);
        if (st)
            code = pn_cli_refused(c, st);
        else if (*pn_grammar_widened(*out))
            pn_cli_note(c, "not enforced: %s", pn_grammar_widened(*out));
    }
    pn_str_fini(&tools);
    pn_str_fini(&tmpl);
    return code;
}

static int grammar_compile(pn_cli *c, const char *schema, const char *gbnf, pn_grammar **out)
{
    if (!schema && !gbnf)
        return grammar_tools(c, out);
    pn_str text;
    pn_str_init(&text, &c->mem, PN_ACCT_MISC);
    int code = pn_cli_read_file(c, schema ? schema : gbnf, &text);
    if (!code) {
        const char *s = pn_str_cstr(&text);
        pn_status st = schema ? pn_grammar_json_schema(c->engine, s, text.len, out, &c->err)
                              : pn_grammar_gbnf(c->engine, s, text.len, out, &c->err);
        if (st)
            code = pn_cli_refused(c, st);
    }
    pn_str_fini(&text);
    return code;
}

/* \n and \\ in a line of candidates; any other backslash stands for itself. */
static void grammar_unescape(pn_str *out, const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char next = line[i] == '\\' && i + 1 < n ? line[i + 1] : 0;
        pn_str_addc(out, next == 'n' ? '\n' : line[i]);
        i += next == 'n' || next == '\\';
    }
}

static int grammar_match(pn_cli *c, pn_grammar *g, const char *path, bool escapes)
{
    pn_str text, line;
    pn_str_init(&text, &c->mem, PN_ACCT_MISC);
    pn_str_init(&line, &c->mem, PN_ACCT_MISC);
    int code = pn_cli_read_file(c, path, &text);
    const char *at = pn_str_cstr(&text), *end = at + text.len;
    while (!code && at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((stop ? stop : end) - at), len = n && at[n - 1] == '\r' ? n - 1 : n;
        pn_str_clear(&line);
        if (escapes)
            grammar_unescape(&line, at, len);
        else
            pn_str_add(&line, at, len);
        if (line.failed)
            code = pn_cli_nomem(c);
        else
            puts(pn_grammar_matches(g, pn_str_cstr(&line), line.len) ? "accept" : "reject");
        at += n + 1;
    }
    pn_str_fini(&text);
    pn_str_fini(&line);
    return code;
}

static int grammar_write(void *user, const char *text, size_t len)
{
    (void)user;
    return fwrite(text, 1, len, stdout) != len;
}

static int grammar_main(pn_cli *c)
{
    const char *schema = pn_args_text(&c->args, "json-schema", NULL), *gbnf = pn_args_text(&c->args, "gbnf", NULL);
    const char *lines = pn_args_text(&c->args, "match-lines", NULL);
    pn_grammar *g = NULL;
    bool tools = pn_args_has(&c->args, "tools");
    if ((schema != NULL) + (gbnf != NULL) + tools != 1)
        return pn_cli_usage(c, "grammar needs one of --json-schema FILE, --gbnf FILE and --tools FILE");
    if (tools && !pn_args_has(&c->args, "template") && !pn_args_has(&c->args, "syntax"))
        return pn_cli_usage(c, "--tools needs --template FILE or --syntax NAME: families write calls in many ways");
    int code = pn_cli_open_engine(c, 1);
    if (!code)
        code = grammar_compile(c, schema, gbnf, &g);
    if (!code && pn_args_on(&c->args, "print")) {
        pn_status st = pn_grammar_print(g, grammar_write, NULL, &c->err);
        code = st ? pn_cli_fail(c, st) : PN_EXIT_OK;
    }
    if (!code && lines)
        code = grammar_match(c, g, lines, schema == NULL);
    pn_grammar_free(g);
    return pn_cli_flush(c, code);
}

PN_INTERNAL const pn_cmd *pn_cmd_grammar(void)
{
    static const pn_cmd cmd = {
        "grammar", "(--json-schema FILE | --gbnf FILE | --tools FILE --syntax NAME) [--match-lines FILE] [--print]",
        "compile a grammar, JSON Schema or tools and match lines against it", grammar_flags, 0, 0, grammar_main
    };
    return &cmd;
}

#endif /* PANTHEON_CLI */
