/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cmd_parse.c - `pantheon parse-output`: a chat model's raw output as reasoning, content and calls.
 *
 * The output comes on standard input, one JSON object goes to standard output with all keys always
 * there.  Only the template's text is needed, so no weight is read.
 */
#include "cli/pn_cli.h"

#ifdef PANTHEON_CLI

static const pn_flag parse_flags[] = {
    {"model", NULL, 'm', PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "GGUF file whose template tells the syntax"},
    {"template", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", "the model's", "the template's source"},
    {"syntax", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "NAME", "the template's", "the syntax by name: hermes, llama3, ..."},
    {"tools", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", NULL, "JSON array of tools, whose schemas tell types"},
    PN_ROW_MEM_LIMIT,
    PN_ROW_QUIET,
    PN_ROW_END
};

static int parse_write(void *user, const char *text, size_t len)
{
    pn_str *out = user;
    pn_str_add(out, text, len);
    return out->failed;
}

/* What the flags name, read: template, tools and the output itself. */
static int parse_inputs(pn_cli *c, pn_str *tmpl, pn_str *tools, pn_str *text)
{
    const char *template_path = pn_args_text(&c->args, "template", NULL);
    const char *tools_path = pn_args_text(&c->args, "tools", NULL);
    bool syntax = pn_args_has(&c->args, "syntax");
    if (!template_path && !pn_args_text(&c->args, "model", NULL) && !syntax)
        return pn_cli_usage(c, "parse-output needs --template FILE, --model FILE or --syntax NAME");
    int code = template_path || !pn_args_text(&c->args, "model", NULL) ? pn_cli_open_engine(c, 1) : pn_cli_open_vocab(c);
    if (!code && template_path)
        code = pn_cli_read_file(c, template_path, tmpl);
    if (!code && tools_path)
        code = pn_cli_read_file(c, tools_path, tools);
    return code ? code : pn_cli_read_file(c, "-", text);
}

static int parse_run(pn_cli *c, const pn_str *tmpl, const pn_str *tools, const pn_str *text, pn_str *out)
{
    pn_output_params p;
    memset(&p, 0, sizeof p);
    p.size = sizeof p;
    p.whole = 1;
    p.format = pn_args_text(&c->args, "syntax", NULL);
    if (pn_args_text(&c->args, "template", NULL)) {
        p.chat_template = pn_str_cstr(tmpl);
        p.chat_template_len = tmpl->len;
    }
    if (pn_args_text(&c->args, "tools", NULL)) {
        p.tools = pn_str_cstr(tools);
        p.tools_len = tools->len;
    }
    pn_status st = pn_output_json(c->engine, c->model, &p, pn_str_cstr(text), text->len, parse_write, out, &c->err);
    return st ? pn_cli_fail(c, st) : pn_out_print(c, out);
}

static int parse_main(pn_cli *c)
{
    pn_str tmpl, tools, text, out;
    pn_str_init(&tmpl, &c->mem, PN_ACCT_MISC);
    pn_str_init(&tools, &c->mem, PN_ACCT_MISC);
    pn_str_init(&text, &c->mem, PN_ACCT_MISC);
    pn_str_init(&out, &c->mem, PN_ACCT_MISC);
    int code = parse_inputs(c, &tmpl, &tools, &text);
    if (!code)
        code = parse_run(c, &tmpl, &tools, &text, &out);
    pn_str_fini(&out);
    pn_str_fini(&text);
    pn_str_fini(&tools);
    pn_str_fini(&tmpl);
    return code;
}

PN_INTERNAL const pn_cmd *pn_cmd_parse(void)
{
    static const pn_cmd cmd = {"parse-output", "(--template FILE | -m FILE | --syntax NAME) [--tools FILE] < OUTPUT",
                               "a model's raw output as reasoning, content and tool calls", parse_flags, 0, 0,
                               parse_main};
    return &cmd;
}

#endif /* PANTHEON_CLI */
