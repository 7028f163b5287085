/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_template.c - making a template, and one run of it from variables to a prompt.
 *
 * Here is where provenance begins: the variables' strings are untrusted, save for the few that the
 * model's own vocabulary says (bos_token and its kin) and the names of roles.  See pn_tpl.h for how it
 * is kept.
 */
#include "text/pn_tpl.h"

#include "base/pn_os.h"

enum { TPLT_PROGRAM_MAX = 64 << 20 };

/* "\r\n" and "\r" become "\n"; one newline at the very end goes. */
static bool tplt_source(pn_tpl *t, const char *src, size_t len)
{
    t->src = pn_tpl_arena_take(&t->arena, len + 1);
    if (!t->src)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (src[i] == '\r' && i + 1 < len && src[i + 1] == '\n')
            continue;
        t->src[t->src_len++] = src[i] == '\r' ? '\n' : src[i];
    }
    if (t->src_len && t->src[t->src_len - 1] == '\n')
        t->src_len--;
    return true;
}

PN_INTERNAL pn_status pn_tpl_new(pn_tpl **out, pn_mem *mem, const char *src, size_t len, pn_err *err)
{
    tpl_toks toks = {NULL, 0, 0};
    if (len > TPL_MAX_SOURCE)
        return pn_fail(err, PN_E_FORMAT, "expected a template of at most 1 MiB, found %zu bytes", len);
    pn_tpl *t = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *t);
    if (!t)
        return pn_fail_nomem(err, "a template", sizeof *t);
    t->mem = mem;
    pn_tpl_arena_init(&t->arena, mem, TPLT_PROGRAM_MAX);
    pn_status st = tplt_source(t, src, len) ? PN_OK : pn_fail_nomem(err, "a template", len);
    if (!st)
        st = pn_tpl_lex(t, &toks, err);
    if (!st)
        st = pn_tpl_parse(t, &toks, err);
    pn_mem_free(mem, PN_ACCT_MISC, toks.v, toks.cap * sizeof *toks.v);
    if (st) {
        pn_tpl_free(t);
        return st;
    }
    *out = t;
    return PN_OK;
}

PN_INTERNAL void pn_tpl_free(pn_tpl *t)
{
    if (!t)
        return;
    pn_mem *mem = t->mem;
    pn_tpl_arena_fini(&t->arena);
    pn_mem_free(mem, PN_ACCT_MISC, t->names, t->cap_names * sizeof *t->names);
    pn_mem_free(mem, PN_ACCT_MISC, t, sizeof *t);
}

PN_INTERNAL pn_bytes pn_tpl_source(const pn_tpl *t) { return (pn_bytes){t->src, t->src_len}; }

PN_INTERNAL bool pn_tpl_mentions(const pn_tpl *t, const char *name)
{
    for (uint32_t i = 0; i < t->n_names; i++)
        if (pn_tpl_is_z(t->names[i], name))
            return true;
    return false;
}

/* ------------------------------------------------------------------------------------------
 * A run
 * ------------------------------------------------------------------------------------------ */

static bool tplt_is_token(pn_bytes key)
{
    static const char *const names[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    for (size_t i = 0; i < PN_COUNT_OF(names); i++)
        if (key.len == strlen(names[i]) && memcmp(key.data, names[i], key.len) == 0)
            return true;
    return false;
}

/* Templates build markers out of the role: '<|' + message.role + '|>'.  One of these words is no text
 * of a user's; any other role stays untrusted. */
static void tplt_trust_roles(tpl_run *r, tpl_val messages)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool", "developer"};
    if (messages.type != TPL_LIST)
        return;
    for (uint32_t i = 0; i < messages.u.l->n; i++) {
        tpl_val m = messages.u.l->v[i], *role = m.type == TPL_DICT ? pn_tpl_dict_getz(r, m.u.d, "role") : NULL;
        for (size_t k = 0; role && role->type == TPL_STR && k < PN_COUNT_OF(roles); k++)
            if (pn_tpl_is_z(role->u.s, roles[k]))
                role->u.s->trust = true;
    }
}

static void tplt_variables(tpl_run *r, const pn_json_doc *vars)
{
    const pn_tpl *t = r->t;
    r->root = pn_tpl_take(r, (size_t)t->n_names * sizeof *r->root);
    for (uint32_t i = 0; r->root && i < t->n_names; i++) {
        uint32_t node = pn_json_find(vars, PN_JSON_ROOT, t->names[i]->p, t->names[i]->len);
        pn_bytes key = {t->names[i]->p, t->names[i]->len};
        r->root[i] = node == PN_JSON_NONE ? tpl_absent() : pn_tpl_from_json(r, vars, node, false);
        if (r->root[i].type == TPL_STR && tplt_is_token(key))
            r->root[i].u.s->trust = true;
        if (pn_tpl_is_z(t->names[i], "messages"))
            tplt_trust_roles(r, r->root[i]);
    }
}

static void tplt_limits(tpl_run *r, const pn_json_doc *vars, const pn_tpl_limits *given)
{
    pn_tpl_limits l = {0, 0, 0, 0, 0, 0};
    if (given)
        l = *given;
    size_t roomy = vars->text_len > SIZE_MAX / 64 ? SIZE_MAX : vars->text_len * 64;
    r->max_steps = l.max_steps ? l.max_steps : 2000000 + 64 * ((uint64_t)vars->text_len + vars->n_nodes);
    r->max_loops = l.max_loops ? l.max_loops : 1000000;
    r->max_output = l.max_output ? l.max_output : PN_MAX(roomy, (size_t)16 << 20);
    r->deadline = pn_os_now() + (l.max_ms ? l.max_ms : 10000u) / 1000.0;
    r->now = l.now;
    pn_tpl_arena_init(&r->arena, r->arena.mem, l.max_memory ? l.max_memory : (size_t)64 << 20);
}

PN_INTERNAL pn_status pn_tpl_render(const pn_tpl *t, pn_mem *mem, const pn_json_doc *vars, const pn_tpl_limits *limits,
                                    pn_prompt *out, pn_err *err)
{
    tpl_run r;
    if (pn_json_type_of(vars, PN_JSON_ROOT) != PN_JSON_OBJECT)
        return pn_fail(err, PN_E_INVALID, "expected an object of template variables, found %s",
                       pn_json_type_name(pn_json_type_of(vars, PN_JSON_ROOT)));
    memset(&r, 0, sizeof r);
    r.t = t;
    r.err = err;
    r.prompt = out;
    r.seed = vars->seed;
    r.arena.mem = mem;
    tplt_limits(&r, vars, limits);
    pn_str_clear(&out->text);
    out->n_spans = 0;
    tplt_variables(&r, vars);
    if (!r.st)
        pn_tpl_exec(&r, t->body);
    if (r.st) {
        pn_str_clear(&out->text);
        out->n_spans = 0;
    }
    pn_tpl_arena_fini(&r.arena);
    return r.st;
}
