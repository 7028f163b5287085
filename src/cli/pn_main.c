/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_main.c - `pantheon [COMMAND] [FLAGS]`: find the command, read its flags, run it.
 *
 * The only main of the project.  It is compiled with -DPANTHEON_CLI; without, this folder adds
 * nothing to a drop.
 */
#include "cli/pn_cli.h"

#ifdef PANTHEON_CLI

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern char **environ;          /* declared by unistd.h on some systems only */

#define MAIN_COMMANDS 16

#ifdef PN_BUILD_ID              /* the Makefile sets it to a string */
#define MAIN_BUILD PN_BUILD_ID
#else
#define MAIN_BUILD "none"
#endif

/* In the order of the help. */
static void main_commands(const pn_cmd *out[MAIN_COMMANDS])
{
    out[0] = pn_cmd_run();
    out[1] = pn_cmd_serve();
    out[2] = pn_cmd_router();
    out[3] = pn_cmd_inspect();
    out[4] = pn_cmd_plan();
    out[5] = pn_cmd_tokenize();
    out[6] = pn_cmd_detokenize();
    out[7] = pn_cmd_logits();
    out[8] = pn_cmd_perplexity();
    out[9] = pn_cmd_bench();
    out[10] = pn_cmd_quantize();
    out[11] = pn_cmd_convert();
    out[12] = pn_cmd_synth();
    out[13] = pn_cmd_parse();
    out[14] = pn_cmd_grammar();
    out[15] = pn_cmd_render();
}

static const pn_cmd *main_find(const pn_cmd *const *cmds, const char *name)
{
    for (size_t i = 0; i < MAIN_COMMANDS; i++)
        if (strcmp(cmds[i]->name, name) == 0)
            return cmds[i];
    return NULL;
}

static int main_help(const pn_cmd *const *cmds)
{
    printf("Pantheon %s runs language models with the memory you have.\n\n"
           "usage: pantheon [COMMAND] [FLAGS]\n\n", pn_version());
    for (size_t i = 0; i < MAIN_COMMANDS; i++)
        printf("  %-12s %s\n", cmds[i]->name, cmds[i]->summary);
    printf("\n  %-12s %s\n  %-12s %s\n\n", "--version", "version, backend, build and instruction set",
           "--backend", "the backend in use, one word");
    printf("Without a command it is `run` when --prompt, --file or --chat is given.\n"
           "`pantheon COMMAND --help` lists the flags of a command.\n");
    return PN_EXIT_OK;
}

/* PN_CPU picks an instruction set, before anything is computed. */
static int main_cpu(pn_cli *c)
{
    const char *isa = getenv("PN_CPU");
    if (!isa || !*isa || pn_cpu_force(isa, &c->err) == PN_OK)
        return PN_EXIT_OK;
    return pn_cli_usage(c, "PN_CPU: '%s' is not allowed: %s", isa, c->err.text);
}

static int main_version(pn_cli *c, bool backend_only)
{
    pn_engine_params p;
    memset(&p, 0, sizeof p);
    int code = pn_cli_open_engine_as(c, &p);
    if (code)
        return code;
    if (backend_only)
        printf("%s\n", pn_backend_name(c->engine));
    else
        printf("Pantheon v%s\nbackend=%s build=%s isa=%s\n", pn_version(), pn_backend_name(c->engine),
               c->build, pn_cpu_isa());
    return PN_EXIT_OK;
}

/* --version and --backend stand alone. */
static int main_about(pn_cli *c, const pn_cmd *const *cmds, int argc, char **argv)
{
    if (argc > 2)
        return pn_cli_usage(c, "%s: '%s' is not allowed: nothing may follow", argv[1], argv[2]);
    if (!pn_args_environment(NULL, cmds, MAIN_COMMANDS, environ))
        return PN_EXIT_USAGE;
    int code = main_cpu(c);
    return code ? code : main_version(c, strcmp(argv[1], "--backend") == 0);
}

static int main_command(pn_cli *c, const pn_cmd *const *cmds, const pn_cmd *cmd, bool named, int argc,
                        char **argv)
{
    if (!pn_args_parse(&c->args, &c->mem, cmd, argc, argv))
        return PN_EXIT_USAGE;
    if (c->args.help) {
        if (named)
            pn_args_help(cmd);
        return named ? PN_EXIT_OK : main_help(cmds);
    }
    if (!named && !pn_args_has(&c->args, "prompt") && !pn_args_has(&c->args, "file") &&
        !pn_args_on(&c->args, "chat"))
        return main_help(cmds);
    if (!pn_args_environment(&c->args, cmds, MAIN_COMMANDS, environ) || !pn_args_complete(&c->args))
        return PN_EXIT_USAGE;
    c->quiet = pn_args_on(&c->args, "quiet");
    c->bars = !c->quiet && isatty(STDERR_FILENO);
    int code = main_cpu(c);
    return code ? code : cmd->run(c);
}

static int main_dispatch(pn_cli *c, int argc, char **argv)
{
    const pn_cmd *cmds[MAIN_COMMANDS];
    main_commands(cmds);
    if (argc < 2 || strcmp(argv[1], "help") == 0) {
        const pn_cmd *about = argc > 2 ? main_find(cmds, argv[2]) : NULL;
        if (!about)
            return main_help(cmds);
        pn_args_help(about);
        return PN_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "--backend") == 0)
        return main_about(c, cmds, argc, argv);
    if (argv[1][0] == '-')
        return main_command(c, cmds, pn_cmd_run(), false, argc - 1, argv + 1);
    const pn_cmd *cmd = main_find(cmds, argv[1]);
    if (!cmd)
        return pn_cli_usage(c, "unknown command '%s': `pantheon --help` lists them", argv[1]);
    return main_command(c, cmds, cmd, true, argc - 2, argv + 2);
}

int main(int argc, char **argv)
{
    pn_cli c;
    pn_cli_open(&c);
    c.build = MAIN_BUILD;
    pn_cli_catch_bus_error();
    int code = main_dispatch(&c, argc, argv);
    pn_cli_close(&c);
    return pn_cli_flush(&c, code);
}

#undef MAIN_COMMANDS
#undef MAIN_BUILD

#endif /* PANTHEON_CLI */
