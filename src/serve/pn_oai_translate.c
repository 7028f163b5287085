/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_oai_translate.c - the walk over a body that becomes another, and the way back of errors.
 */
#include "serve/pn_oai_translate.h"

#include <stdio.h>

PN_INTERNAL bool pn_oai_translate_open(pn_oai_translator *t, pn_mem *mem, const char *text, size_t len, pn_oai_error *e)
{
    t->p = (pn_oai_parser){&t->in, e, 1};
    pn_str_init(&t->out, mem, PN_ACCT_CONN);
    pn_str_init(&t->messages, mem, PN_ACCT_CONN);
    return pn_oai_open(&t->p, mem, text, len);
}

PN_INTERNAL void pn_oai_translate_close(pn_oai_translator *t)
{
    pn_oai_close(&t->in);
    pn_str_fini(&t->out);
    pn_str_fini(&t->messages);
}

PN_INTERNAL void pn_oai_translate_as(pn_oai_parser *p, const char *name, uint32_t node)
{
    pn_str *s = &pn_oai_translator_of(p)->out;
    pn_json_key(s, name);
    pn_json_write_node(s, &p->q->body, node);
}

PN_INTERNAL bool pn_oai_translate_member(pn_oai_parser *p, const char *at, uint32_t node, const char *key, pn_bytes *out)
{
    char param[96];
    snprintf(param, sizeof param, "%s.%s", at, key);
    return pn_oai_read_text(p, param, pn_json_get(&p->q->body, node, key), out);
}

PN_INTERNAL bool pn_oai_translate_ignore(pn_oai_parser *p, const char *name, uint32_t node)
{
    (void)node;
    pn_oai_ignore(p, name, strlen(name));
    return true;
}

static const pn_oai_field *translate_row(const pn_oai_field *rows, size_t n, pn_bytes name)
{
    for (size_t i = 0; i < n; i++)
        if (pn_oai_same(name, rows[i].name))
            return &rows[i];
    return NULL;
}

PN_INTERNAL bool pn_oai_translate_fields(pn_oai_translator *t, const pn_oai_field *rows, size_t n_rows)
{
    const pn_json_doc *d = &t->in.body;
    for (uint32_t c = pn_json_first(d, PN_JSON_ROOT); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        pn_bytes name = pn_json_key_of(d, c);
        const pn_oai_field *row = translate_row(rows, n_rows, name);
        if (!pn_oai_given(d, c))
            continue;
        if (row && !row->read(&t->p, row->name, c))
            return false;
        if (!row && strlen(name.data) != name.len)
            pn_oai_ignore(&t->p, name.data, name.len);
        else if (!row)
            pn_oai_translate_as(&t->p, name.data, c);
    }
    return true;
}

/* "response_format.type: expected ..." of "text.format.type", when that is what the client sent. */
static void translate_error(pn_oai_error *e, const pn_oai_rename *names, size_t n_names)
{
    pn_oai_error old = *e;
    for (size_t i = 0; i < n_names; i++) {
        size_t n = strlen(names[i].chat), p = strlen(old.param);
        if (strncmp(old.param, names[i].chat, n) != 0)
            continue;
        snprintf(e->param, sizeof e->param, "%s%s", names[i].client, old.param + n);
        if (strncmp(old.message, old.param, p) == 0)
            snprintf(e->message, sizeof e->message, "%s%s", e->param, old.message + p);
        return;
    }
}

static void translate_add_ignored(pn_str *s, const pn_str *more)
{
    if (s->len && more->len)
        pn_str_addc(s, ',');
    pn_str_add(s, pn_str_cstr(more), more->len);
}

PN_INTERNAL bool pn_oai_translate_end(pn_oai_translator *t, pn_oai_chat *out, const pn_oai_rename *names, size_t n_names)
{
    pn_str whole;
    pn_str_init(&whole, t->in.mem, PN_ACCT_CONN);
    pn_str_addf(&whole, "{\"messages\":[");
    pn_str_add(&whole, pn_str_cstr(&t->messages), t->messages.len);
    pn_str_addc(&whole, ']');
    if (t->out.len)
        pn_str_addc(&whole, ',');
    pn_str_add(&whole, pn_str_cstr(&t->out), t->out.len);
    pn_str_addc(&whole, '}');
    bool failed = whole.failed || t->out.failed || t->messages.failed || t->in.ignored.failed;
    bool ok = !failed && pn_oai_chat_parse(out, t->in.mem, whole.data, whole.len, 1, t->p.e);
    pn_str_fini(&whole);
    if (failed)
        return pn_oai_fail_memory(&t->p);
    if (!ok) {
        translate_error(t->p.e, names, n_names);
        return false;
    }
    translate_add_ignored(&out->common.ignored, &t->in.ignored);
    if (!out->common.ignored.failed)
        return true;
    pn_oai_chat_fini(out);
    return pn_oai_fail_memory(&t->p);
}
