/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cmd_make.c - `pantheon quantize`, `convert` and `synth`: write model files.
 */
#include "cli/pn_cli.h"

#ifdef PANTHEON_CLI

#include <stdio.h>
#include <sys/stat.h>

static const pn_flag quantize_flags[] = {
    {"keep-output-type", NULL, 0, PN_FLAG_BOOL, false, 0, 0, NULL, NULL, "leave the output matrix as it is"},
    PN_ROW_THREADS,
    PN_ROW_MEM_LIMIT,
    PN_ROW_QUIET,
    PN_ROW_END
};

static const pn_flag convert_flags[] = {
    PN_ROW_MEM_LIMIT,
    PN_ROW_QUIET,
    PN_ROW_END
};

static const pn_flag synth_flags[] = {
    {"shape", NULL, 0, PN_FLAG_CHOICE, false, 0, 0, "135m|1b|3b|8b|moe64|tiny", "135m", "size and kind of the model"},
    {"type", NULL, 0, PN_FLAG_TEXT, false, 0, 0, "T", "Q4_K_M", "number format or mixture of the weights"},
    {"vocab", NULL, 0, PN_FLAG_INT, false, 1, 1 << 24, "N", "32000", "tokens of the vocabulary"},
    {"ctx", NULL, 0, PN_FLAG_INT, false, 1, 1 << 30, "N", "8192", "trained context to declare"},
    {"seed", NULL, 0, PN_FLAG_U64, false, 0, 0, "N", "0", "of the random weights"},
    PN_ROW_THREADS,
    PN_ROW_MEM_LIMIT,
    PN_ROW_QUIET,
    PN_ROW_END
};

/* "wrote FILE, 1.2 GiB in 3.4 s" */
static int make_done(pn_cli *c, pn_status st, const char *out, double start)
{
    struct stat info;
    pn_cli_bar_end(c);
    if (st == PN_E_INVALID) {
        pn_cli_fail(c, st);
        return PN_EXIT_USAGE;           /* the type or the shape: the caller's word */
    }
    if (st)
        return pn_cli_fail(c, st);
    uint64_t bytes = stat(out, &info) == 0 ? (uint64_t)info.st_size : 0;
    pn_cli_note(c, "wrote %s, %s in %.1f s", out, pn_out_bytes(bytes).text, pn_out_now() - start);
    return PN_EXIT_OK;
}

static int quantize_main(pn_cli *c)
{
    const char *in = pn_args_pos(&c->args, 0), *out = pn_args_pos(&c->args, 1);
    int code = pn_cli_open_engine(c, (uint32_t)pn_args_int(&c->args, "threads", 0));
    if (code)
        return code;
    pn_cli_catch_interrupt();
    pn_quantize_params p;
    memset(&p, 0, sizeof p);
    p.size = sizeof p;
    p.preset = pn_args_pos(&c->args, 2);
    p.keep_output_type = pn_args_on(&c->args, "keep-output-type");
    p.progress = pn_cli_progress;
    p.progress_user = c;
    double start = pn_out_now();
    return make_done(c, pn_quantize(c->engine, in, out, &p, &c->err), out, start);
}

static int convert_main(pn_cli *c)
{
    const char *in = pn_args_pos(&c->args, 0), *out = pn_args_pos(&c->args, 1);
    int code = pn_cli_open_engine(c, 1);
    if (code)
        return code;
    pn_cli_catch_interrupt();
    pn_convert_params p;
    memset(&p, 0, sizeof p);
    p.size = sizeof p;
    p.progress = pn_cli_progress;
    p.progress_user = c;
    double start = pn_out_now();
    return make_done(c, pn_convert(c->engine, in, out, &p, &c->err), out, start);
}

static int synth_main(pn_cli *c)
{
    const char *out = pn_args_pos(&c->args, 0);
    int code = pn_cli_open_engine(c, (uint32_t)pn_args_int(&c->args, "threads", 0));
    if (code)
        return code;
    pn_cli_catch_interrupt();
    pn_synth_params p;
    memset(&p, 0, sizeof p);
    p.size = sizeof p;
    p.shape = pn_args_text(&c->args, "shape", "135m");
    p.type = pn_args_text(&c->args, "type", NULL);
    p.n_vocab = (uint32_t)pn_args_int(&c->args, "vocab", 0);
    p.n_ctx = (uint32_t)pn_args_int(&c->args, "ctx", 0);
    p.seed = pn_args_u64(&c->args, "seed", 0);
    p.progress = pn_cli_progress;
    p.progress_user = c;
    double start = pn_out_now();
    return make_done(c, pn_synth(c->engine, out, &p, &c->err), out, start);
}

PN_INTERNAL const pn_cmd *pn_cmd_quantize(void)
{
    static const pn_cmd cmd = {"quantize", "IN OUT TYPE [FLAGS]", "a model's weights in another format (Q8_0, Q4_K_M, ...); IN may be a folder, OUT is GGUF",
                               quantize_flags, 3, 3, quantize_main};
    return &cmd;
}

PN_INTERNAL const pn_cmd *pn_cmd_convert(void)
{
    static const pn_cmd cmd = {"convert", "IN OUT [FLAGS]", "write the tensors of a .pth or .bin as safetensors", convert_flags, 2, 2, convert_main};
    return &cmd;
}

PN_INTERNAL const pn_cmd *pn_cmd_synth(void)
{
    static const pn_cmd cmd = {"synth", "OUT [FLAGS]", "write a model of a known shape with random weights",
                               synth_flags, 1, 1, synth_main};
    return &cmd;
}

#endif /* PANTHEON_CLI */
