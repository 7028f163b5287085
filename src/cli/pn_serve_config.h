/*
 * pn_serve_config.h - `pantheon serve`: flags, environment and a file to a list of models.
 *
 * A model begins with its --model, and what follows belongs to it; what stands before the first one, or comes
 * from the environment, is for all.  In a file a model is a section, "[model NAME]", with the same keys, and
 * what stands before the first section counts for the server and for all models:
 *
 *     port = 8080
 *     max-concurrent = 4
 *     [model small]
 *     model = SmolLM2-135M-Instruct.Q4_1.gguf
 *
 * Texts are borrowed from the arguments and the file.
 */
#ifndef PN_SERVE_CONFIG_H
#define PN_SERVE_CONFIG_H

#include "cli/pn_cli.h"

#ifdef PANTHEON_CLI

enum { PN_SERVE_MODELS = 32, PN_SERVE_ALIASES = 16 };

typedef struct pn_serve_entry {
    pn_server_model p;
    const char *aliases[PN_SERVE_ALIASES];
    uint32_t dies[PN_FLAG_INTS_MAX];
    pn_str template_text;       /* owned */
} pn_serve_entry;

typedef struct pn_serve_config {
    pn_str file;                /* owned: the file's text, cut into strings */
    pn_serve_entry common;      /* what is for all */
    pn_serve_entry model[PN_SERVE_MODELS];
    size_t n_models;
} pn_serve_config;

/* 0 or the exit code.  Reads --config, too, whose values count where neither flag nor environment has one. */
PN_INTERNAL int pn_serve_config_read(pn_cli *c, pn_serve_config *cfg);
PN_INTERNAL void pn_serve_config_fini(pn_serve_config *cfg);

#endif /* PANTHEON_CLI */
#endif /* PN_SERVE_CONFIG_H */
