/* SPDX-License-Identifier: AGPL-3.0-only */
#include "cli/pn_serve_config.h"

#ifdef PANTHEON_CLI

#include <stdio.h>

/* ------------------------------------------------------------------------------------------
 * One key
 * ------------------------------------------------------------------------------------------ */

static const char *const config_keys[] = {"name", "alias", "dies", "ctx-cap", "max-sessions", "max-concurrent", "reasoning-budget",
                                          "kv-type", "residency", "pin-bytes", "stream-block", "stream-depth", "expert-cache", "load-type", "template"};

static bool config_is_model_key(const char *key)
{
    for (size_t i = 0; i < PN_COUNT_OF(config_keys); i++)
        if (strcmp(key, config_keys[i]) == 0)
            return true;
    return false;
}

static uint32_t config_number(const char *text)
{
    int64_t v = 0;
    pn_parse_i64(text, 0, UINT32_MAX, &v);
    return (uint32_t)v;
}

static uint64_t config_size(const char *text)
{
    uint64_t v = 0;
    pn_parse_size(text, &v);
    return v;
}

/* The value has been checked against its flag. */
static int config_set(pn_cli *c, pn_serve_entry *m, const char *key, const char *text)
{
    pn_server_model *p = &m->p;
    if (strcmp(key, "name") == 0)
        p->name = text;
    else if (strcmp(key, "ctx-cap") == 0)
        p->ctx_cap = config_number(text);
    else if (strcmp(key, "max-sessions") == 0)
        p->max_sessions = config_number(text);
    else if (strcmp(key, "max-concurrent") == 0)
        p->max_concurrent = config_number(text);
    else if (strcmp(key, "reasoning-budget") == 0) {
        p->has_reasoning_budget = 1;
        p->reasoning_budget = config_number(text);
    } else if (strcmp(key, "kv-type") == 0) {
        p->has_kv_type = 1;
        p->kv_type = pn_dtype_parse(text);
    } else if (strcmp(key, "residency") == 0)
        p->residency = pn_cli_residency(text);
    else if (strcmp(key, "pin-bytes") == 0)
        p->pin_bytes = config_size(text);
    else if (strcmp(key, "stream-block") == 0)
        p->stream_block = config_size(text);
    else if (strcmp(key, "stream-depth") == 0)
        p->stream_depth = config_number(text);
    else if (strcmp(key, "expert-cache") == 0)
        p->expert_cache_bytes = config_size(text);
    else if (strcmp(key, "load-type") == 0)
        p->load_type = text;
    else if (strcmp(key, "dies") == 0)
        p->n_dies = pn_parse_ints(text, 0, 63, m->dies);
    else if (strcmp(key, "template") == 0) {
        pn_str_clear(&m->template_text);
        return pn_cli_read_file(c, text, &m->template_text);
    } else if (p->n_aliases == PN_SERVE_ALIASES)
        return pn_cli_usage(c, "--alias: '%s' is one too many: expected at most %d for a model", text, PN_SERVE_ALIASES);
    else
        m->aliases[p->n_aliases++] = text;
    return PN_EXIT_OK;
}

/* A new model, with what is for all. */
static int config_begin(pn_cli *c, pn_serve_config *cfg, const char *path, const char *name)
{
    if (cfg->n_models == PN_SERVE_MODELS)
        return pn_cli_usage(c, "--model: '%s' is one too many: expected at most %d models", path ? path : name, PN_SERVE_MODELS);
    pn_serve_entry *m = &cfg->model[cfg->n_models++];
    const pn_serve_entry *all = &cfg->common;
    *m = *all;
    m->p.path = path;
    m->p.name = name;
    m->p.n_aliases = 0;
    pn_str_init(&m->template_text, &c->mem, PN_ACCT_MISC);
    pn_str_add(&m->template_text, pn_str_cstr(&all->template_text), all->template_text.len);
    return m->template_text.failed ? pn_cli_nomem(c) : PN_EXIT_OK;
}

static pn_serve_entry *config_current(pn_serve_config *cfg) { return cfg->n_models ? &cfg->model[cfg->n_models - 1] : &cfg->common; }

/* ------------------------------------------------------------------------------------------
 * The file
 * ------------------------------------------------------------------------------------------ */

static char *config_trim(char *s)
{
    s += strspn(s, " \t\r");
    size_t n = strlen(s);
    while (n && strchr(" \t\r", s[n - 1]))
        s[--n] = 0;
    return s;
}

/* "[model NAME]" */
static int config_section(pn_cli *c, pn_serve_config *cfg, char *line, const char *where)
{
    size_t n = strlen(line);
    if (n < 2 || line[n - 1] != ']' || strncmp(line + 1, "model", 5) != 0 || !strchr(" \t", line[6]))
        return pn_cli_usage(c, "%s: '%s' is not allowed: expected [model NAME]", where, line);
    line[n - 1] = 0;
    char *name = config_trim(line + 6);
    return *name ? config_begin(c, cfg, NULL, name) : pn_cli_usage(c, "%s: a name is missing: expected [model NAME]", where);
}

static int config_line(pn_cli *c, pn_serve_config *cfg, char *line, const char *where)
{
    line = config_trim(line);
    if (!*line || *line == '#')
        return PN_EXIT_OK;
    if (*line == '[')
        return config_section(c, cfg, line, where);
    char *eq = strchr(line, '='), who[240];
    if (!eq)
        return pn_cli_usage(c, "%s: '%s' is not allowed: expected key = value", where, line);
    *eq = 0;
    const char *key = config_trim(line), *value = config_trim(eq + 1);
    snprintf(who, sizeof who, "%s: %.60s", where, key);
    bool model = strcmp(key, "model") == 0, section = cfg->n_models > 0;
    if (!section && !config_is_model_key(key) && !model && strcmp(key, "config") != 0)
        return pn_args_default(&c->args, who, key, value) ? PN_EXIT_OK : PN_EXIT_USAGE;
    if (!pn_args_check(&c->args, who, key, value))
        return PN_EXIT_USAGE;
    if (model && section) {
        config_current(cfg)->p.path = value;
        return PN_EXIT_OK;
    }
    if (!config_is_model_key(key) || (!section && strcmp(key, "name") == 0))
        return pn_cli_usage(c, "%s: not allowed %s", who, section ? "in a model's section: it is for the whole server" : "here: it belongs into a section, [model NAME]");
    return config_set(c, config_current(cfg), key, value);
}

static int config_file(pn_cli *c, pn_serve_config *cfg)
{
    const char *path = pn_args_text(&c->args, "config", NULL);
    char where[120];
    int code = path ? pn_cli_read_file(c, path, &cfg->file) : PN_EXIT_OK;
    if (!path || code)
        return code;
    if (cfg->file.len && memchr(cfg->file.data, 0, cfg->file.len))
        return pn_cli_usage(c, "--config: '%s' is not allowed: it is no text file", path);
    unsigned n = 1;
    for (char *at = cfg->file.data, *next; at && !code; at = next, n++) {
        next = strchr(at, '\n');
        if (next)
            *next++ = 0;
        snprintf(where, sizeof where, "%.90s:%u", path, n);
        code = config_line(c, cfg, at, where);
    }
    return code;
}

/* ------------------------------------------------------------------------------------------
 * All of it
 * ------------------------------------------------------------------------------------------ */

/* Flags and environment, in their order.  Those of the file stand before them. */
static int config_flags(pn_cli *c, pn_serve_config *cfg)
{
    int code = PN_EXIT_OK;
    size_t of_file = cfg->n_models;
    for (size_t i = 0; i < c->args.n && !code; i++) {
        const pn_arg *a = &c->args.list[i];
        const char *key = a->flag->name;
        pn_serve_entry *m = cfg->n_models > of_file ? config_current(cfg) : &cfg->common;
        if (strcmp(key, "model") == 0)
            code = config_begin(c, cfg, a->text, NULL);
        else if (config_is_model_key(key) && m == &cfg->common && (strcmp(key, "name") == 0 || strcmp(key, "alias") == 0))
            code = pn_cli_usage(c, "--%s: '%s' is not allowed here: it comes after the --model it is for", key, a->text);
        else if (config_is_model_key(key))
            code = config_set(c, m, key, a->text);
    }
    return code;
}

static int config_check(pn_cli *c, pn_serve_config *cfg)
{
    for (size_t i = 0; i < cfg->n_models; i++) {
        pn_serve_entry *m = &cfg->model[i];
        if (!m->p.path)
            return pn_cli_usage(c, "[model %s]: the file is missing: expected model = FILE", m->p.name);
        m->p.size = sizeof m->p;
        m->p.dies = m->dies;
        m->p.aliases = m->aliases;
        m->p.template_text = m->template_text.len ? m->template_text.data : NULL;
    }
    return cfg->n_models ? PN_EXIT_OK : pn_cli_usage(c, "--model: a value is missing: which model is to be served?");
}

PN_INTERNAL int pn_serve_config_read(pn_cli *c, pn_serve_config *cfg)
{
    memset(cfg, 0, sizeof *cfg);
    pn_str_init(&cfg->file, &c->mem, PN_ACCT_MISC);
    pn_str_init(&cfg->common.template_text, &c->mem, PN_ACCT_MISC);
    int code = config_file(c, cfg);
    if (!code)
        code = config_flags(c, cfg);
    return code ? code : config_check(c, cfg);
}

PN_INTERNAL void pn_serve_config_fini(pn_serve_config *cfg)
{
    for (size_t i = 0; i < cfg->n_models; i++)
        pn_str_fini(&cfg->model[i].template_text);
    pn_str_fini(&cfg->common.template_text);
    pn_str_fini(&cfg->file);
}

#endif /* PANTHEON_CLI */
