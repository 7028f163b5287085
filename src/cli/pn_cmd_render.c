/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cmd_render.c - `pantheon render`: a conversation as the prompt that a chat template makes of it.
 *
 * The prompt and nothing else goes to standard output, byte for byte, so that it can be compared with
 * what other programs make of the same template.
 */
#include "cli/pn_cli.h"

#ifdef PANTHEON_CLI

#include "base/pn_json.h"

#include <inttypes.h>
#include <stdio.h>

static const pn_flag render_flags[] = {
    {"template", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", "the model's", "the template's source (Jinja)"},
    PN_ROW_MODEL,
    {"input", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "FILE", NULL,
     "JSON object: messages, perhaps tools, any other key is a variable; - is standard input"},
    {"raw", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "messages as they are, not made to fit the template"},
    {"segments", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL,
     "one JSON object a line: whose text it is, and the text"},
    {"ids", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "the model's token ids instead of text"},
    PN_ROW_MEM_LIMIT,
    PN_ROW_QUIET,
    PN_ROW_END
};

static int render_segments(pn_cli *c, const pn_rendered *p)
{
    pn_str line;
    int code = PN_EXIT_OK;
    pn_str_init(&line, &c->mem, PN_ACCT_MISC);
    for (size_t i = 0; !code && i < pn_rendered_segment_count(p); i++) {
        pn_segment s = pn_rendered_segment(p, i);
        pn_str_addz(&line, s.trusted ? "{\"trusted\":true,\"text\":" : "{\"trusted\":false,\"text\":");
        pn_json_write_str(&line, s.text, s.len);
        pn_str_addc(&line, '}');
        code = pn_out_print(c, &line);
    }
    pn_str_fini(&line);
    return code;
}

static int render_ids(pn_cli *c, const pn_rendered *p)
{
    pn_ids ids;
    size_t n = 0;
    int code = PN_EXIT_OK;
    pn_ids_init(&ids, &c->mem);
    pn_status st = pn_rendered_tokenize(p, c->model, NULL, 0, &n, &c->err);
    if (!st && !pn_ids_reserve(&ids, n))
        code = pn_cli_nomem(c);
    else if (!st)
        st = pn_rendered_tokenize(p, c->model, ids.data, n, &ids.n, &c->err);
    if (st)
        code = pn_cli_fail(c, st);
    for (size_t i = 0; !code && i < ids.n; i++)
        printf(i ? ",%" PRId32 : "%" PRId32, ids.data[i]);
    if (!code)
        puts("");
    pn_ids_fini(&ids);
    return code ? code : pn_cli_flush(c, code);
}

static int render_print(pn_cli *c, const pn_rendered *p)
{
    size_t len;
    const char *text = pn_rendered_text(p, &len);
    if (pn_args_on(&c->args, "segments"))
        return render_segments(c, p);
    if (pn_args_on(&c->args, "ids"))
        return render_ids(c, p);
    fwrite(text, 1, len, stdout);
    return pn_cli_flush(c, PN_EXIT_OK);
}

/* Engine, model where one is named, and the template. */
static int render_open(pn_cli *c, pn_str *source, pn_template **t)
{
    const char *path = pn_args_text(&c->args, "template", NULL), *model = pn_args_text(&c->args, "model", NULL);
    if (!path && !model)
        return pn_cli_usage(c, "render needs --template FILE or --model FILE");
    if (!pn_args_text(&c->args, "input", NULL))
        return pn_cli_usage(c, "render needs --input FILE");
    if (pn_args_on(&c->args, "ids") && (!model || pn_args_on(&c->args, "segments")))
        return pn_cli_usage(c, "--ids needs --model FILE and excludes --segments");
    int code = model ? pn_cli_open_vocab(c) : pn_cli_open_engine(c, 1);
    if (!code && path)
        code = pn_cli_read_file(c, path, source);
    if (code)
        return code;
    pn_status st = path ? pn_template_open(c->engine, pn_str_cstr(source), source->len, t, &c->err)
                        : pn_template_open_model(c->model, t, &c->err);
    return st ? pn_cli_fail(c, st) : PN_EXIT_OK;
}

static int render_main(pn_cli *c)
{
    pn_str source, input;
    pn_template *t = NULL;
    pn_rendered *p = NULL;
    pn_str_init(&source, &c->mem, PN_ACCT_MISC);
    pn_str_init(&input, &c->mem, PN_ACCT_MISC);
    int code = render_open(c, &source, &t);
    if (!code)
        code = pn_cli_read_file(c, pn_args_text(&c->args, "input", "-"), &input);
    if (!code) {
        unsigned flags = pn_args_on(&c->args, "raw") ? (unsigned)PN_RENDER_RAW : 0u;
        pn_status st = pn_template_render_json(t, pn_str_cstr(&input), input.len, flags, &p, &c->err);
        code = st ? pn_cli_fail(c, st) : render_print(c, p);
    }
    pn_rendered_free(p);
    pn_template_close(t);
    pn_str_fini(&input);
    pn_str_fini(&source);
    return code;
}

PN_INTERNAL const pn_cmd *pn_cmd_render(void)
{
    static const pn_cmd cmd = {"render", "(--template FILE | -m FILE) --input FILE [--raw] [--segments | --ids]",
                               "the prompt that a chat template makes of a conversation", render_flags, 0, 0,
                               render_main};
    return &cmd;
}

#endif /* PANTHEON_CLI */
