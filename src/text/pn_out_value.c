/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_out_value.c - what type an argument has by its tool's schema, and values as JSON.
 *
 * Tagged syntaxes write every value as bare text, so "3" may be a number or a string: only the schema
 * tells.  Without one, text that is a JSON value is that value and other text is a string.
 * Where a schema allows a string among others, a string it is.  Templates print Python's True, False,
 * None and whole Python literals for past calls, and models repeat what they saw: those are read too.
 */
#include "text/pn_out_parts.h"

enum { OUT_SCHEMA_DEPTH = 16 };         /* $ref and branches followed */

/* ------------------------------------------------------------------------------------------
 * Schemas
 * ------------------------------------------------------------------------------------------ */

static bool value_is(const pn_json_doc *d, uint32_t node, const char *text, size_t n)
{
    pn_bytes b;
    return pn_json_str(d, node, &b) && b.len == n && memcmp(b.data, text, n) == 0;
}

static uint32_t value_function(const pn_json_doc *d, uint32_t tool)
{
    uint32_t f = pn_json_get(d, tool, "function");
    return pn_json_type_of(d, f) == PN_JSON_OBJECT ? f : tool;
}

static uint32_t value_tool(const pn_out *p, const char *name, size_t len)
{
    const pn_json_doc *d = p->tools;
    if (!d)
        return PN_JSON_NONE;
    uint32_t list = PN_JSON_ROOT;
    if (pn_json_type_of(d, list) == PN_JSON_OBJECT)
        list = pn_json_get(d, list, "tools");
    if (pn_json_type_of(d, list) != PN_JSON_ARRAY)
        return PN_JSON_NONE;
    for (uint32_t t = pn_json_first(d, list); t != PN_JSON_NONE; t = pn_json_next(d, t)) {
        uint32_t f = value_function(d, t);
        if (value_is(d, pn_json_get(d, f, "name"), name, len))
            return f;
    }
    return PN_JSON_NONE;
}

PN_INTERNAL bool pn_out_has_tool(const pn_out *p, const char *name, size_t len)
{
    return value_tool(p, name, len) != PN_JSON_NONE;
}

PN_INTERNAL uint32_t pn_out_schema_tool(const pn_out *p, const char *name, size_t len)
{
    uint32_t f = value_tool(p, name, len);
    if (f == PN_JSON_NONE)
        return PN_JSON_NONE;
    uint32_t s = pn_json_get(p->tools, f, "parameters");
    return s != PN_JSON_NONE ? s : pn_json_get(p->tools, f, "input_schema");
}

/* One part of a JSON pointer: "~1" is '/', "~0" is '~'. */
static uint32_t value_step(const pn_json_doc *d, uint32_t node, const char *part, size_t n)
{
    char key[128];
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        if (len == sizeof key)
            return PN_JSON_NONE;
        char c = part[i];
        if (c == '~' && i + 1 < n && (part[i + 1] == '0' || part[i + 1] == '1'))
            c = part[++i] == '0' ? '~' : '/';
        key[len++] = c;
    }
    return pn_json_find(d, node, key, len);
}

/* "#/$defs/x", from the schema of the arguments. */
static uint32_t value_ref(const pn_json_doc *d, uint32_t root, pn_bytes ref)
{
    uint32_t node = root;
    size_t at = 1;
    if (ref.len < 1 || ref.data[0] != '#')
        return PN_JSON_NONE;
    while (at < ref.len) {
        size_t end = ++at;                  /* past '/' */
        while (end < ref.len && ref.data[end] != '/')
            end++;
        node = value_step(d, node, ref.data + at, end - at);
        at = end;
    }
    return node;
}

/* The schema behind references. */
static uint32_t value_resolve(const pn_json_doc *d, uint32_t root, uint32_t schema)
{
    pn_bytes ref;
    for (int i = 0; i < OUT_SCHEMA_DEPTH && d; i++) {
        if (!pn_json_str(d, pn_json_get(d, schema, "$ref"), &ref))
            return schema;
        schema = value_ref(d, root, ref);
    }
    return PN_JSON_NONE;
}

PN_INTERNAL uint32_t pn_out_schema_property(const pn_out *p, uint32_t schema, const char *key, size_t len)
{
    static const char *const branches[] = {"anyOf", "oneOf", "allOf"};
    schema = value_resolve(p->tools, p->params_node, schema);
    if (!p->tools || schema == PN_JSON_NONE)
        return PN_JSON_NONE;
    uint32_t found = pn_json_find(p->tools, pn_json_get(p->tools, schema, "properties"), key, len);
    for (size_t b = 0; b < PN_COUNT_OF(branches) && found == PN_JSON_NONE; b++) {
        uint32_t list = pn_json_get(p->tools, schema, branches[b]);
        for (uint32_t c = pn_json_first(p->tools, list); c != PN_JSON_NONE && found == PN_JSON_NONE;
             c = pn_json_next(p->tools, c))
            found = pn_json_find(p->tools, pn_json_get(p->tools, value_resolve(p->tools, p->params_node, c), "properties"), key, len);
    }
    if (found == PN_JSON_NONE && pn_json_type_of(p->tools, pn_json_get(p->tools, schema, "additionalProperties")) == PN_JSON_OBJECT)
        found = pn_json_get(p->tools, schema, "additionalProperties");
    return found;
}

PN_INTERNAL uint32_t pn_out_schema_items(const pn_out *p, uint32_t schema)
{
    return p->tools ? pn_json_get(p->tools, value_resolve(p->tools, p->params_node, schema), "items") : PN_JSON_NONE;
}

static out_type value_word(pn_bytes b)
{
    static const struct { const char *name; out_type type; } words[] = {
        {"string", OUT_T_STRING}, {"boolean", OUT_T_BOOL}, {"null", OUT_T_NULL}, {"number", OUT_T_NUMBER},
        {"integer", OUT_T_NUMBER}, {"object", OUT_T_OTHER}, {"array", OUT_T_OTHER},
    };
    for (size_t i = 0; i < PN_COUNT_OF(words); i++)
        if (b.len == strlen(words[i].name) && memcmp(b.data, words[i].name, b.len) == 0)
            return words[i].type;
    return OUT_T_UNKNOWN;
}

/* Of two branches: a string wins, then a known one, then what reads most. */
static out_type value_join(out_type a, out_type b)
{
    if (a == OUT_T_STRING || b == OUT_T_STRING)
        return OUT_T_STRING;
    if (a == OUT_T_UNKNOWN || a == b)
        return b;
    return b == OUT_T_UNKNOWN ? a : OUT_T_OTHER;
}

/* What only strings can have, in a schema without a type. */
static bool value_hints_string(const pn_json_doc *d, uint32_t schema)
{
    static const char *const hints[] = {"pattern", "minLength", "maxLength", "format"};
    for (size_t i = 0; i < PN_COUNT_OF(hints); i++)
        if (pn_json_get(d, schema, hints[i]) != PN_JSON_NONE)
            return true;
    return false;
}

/* The type that a schema says itself, without looking into its branches. */
static out_type value_own_type(const pn_json_doc *d, uint32_t schema)
{
    out_type t = OUT_T_UNKNOWN;
    uint32_t type = pn_json_get(d, schema, "type"), list = pn_json_get(d, schema, "enum");
    pn_bytes b;
    if (pn_json_str(d, type, &b))
        return value_word(b);
    for (uint32_t c = pn_json_first(d, type); c != PN_JSON_NONE; c = pn_json_next(d, c))
        if (pn_json_str(d, c, &b))
            t = value_join(t, value_word(b));
    if (t != OUT_T_UNKNOWN)
        return t;
    if (pn_json_type_of(d, pn_json_get(d, schema, "const")) == PN_JSON_STRING)
        return OUT_T_STRING;
    for (uint32_t c = pn_json_first(d, list); c != PN_JSON_NONE; c = pn_json_next(d, c))
        t = value_join(t, pn_json_type_of(d, c) == PN_JSON_STRING ? OUT_T_STRING : OUT_T_OTHER);
    if (t == OUT_T_UNKNOWN && pn_json_get(d, schema, "properties") != PN_JSON_NONE)
        t = OUT_T_OTHER;
    if (t == OUT_T_UNKNOWN && value_hints_string(d, schema))
        t = OUT_T_STRING;
    return t;
}

/* Branches are walked with a list of our own, since the schema is the client's: no recursion. */
PN_INTERNAL out_type pn_out_type_of(const pn_json_doc *d, uint32_t root, uint32_t schema)
{
    static const char *const branches[] = {"anyOf", "oneOf", "allOf"};
    uint32_t todo[64];
    size_t n = 0;
    out_type t = OUT_T_UNKNOWN;
    if (!d || schema == PN_JSON_NONE)
        return OUT_T_UNKNOWN;
    todo[n++] = schema;
    for (size_t i = 0; i < n; i++) {
        uint32_t s = value_resolve(d, root, todo[i]);
        if (s == PN_JSON_NONE)
            continue;
        t = value_join(t, value_own_type(d, s));
        for (size_t b = 0; b < PN_COUNT_OF(branches); b++) {
            uint32_t list = pn_json_get(d, s, branches[b]);
            for (uint32_t c = pn_json_first(d, list); c != PN_JSON_NONE && n < PN_COUNT_OF(todo);
                 c = pn_json_next(d, c))
                todo[n++] = c;
        }
    }
    return t;
}

PN_INTERNAL out_type pn_out_schema_type(const pn_out *p, uint32_t schema)
{
    return pn_out_type_of(p->tools, p->params_node, schema);
}

/* ------------------------------------------------------------------------------------------
 * Values
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_out_escape(pn_out *p, const char *text, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        char e[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        size_t len = 2;
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        switch (c) {
        case '"': case '\\': e[1] = (char)c; break;
        case '\n': e[1] = 'n'; break;
        case '\r': e[1] = 'r'; break;
        case '\t': e[1] = 't'; break;
        case '\b': e[1] = 'b'; break;
        case '\f': e[1] = 'f'; break;
        default: len = 6;
        }
        out_args(p, text + from, i - from);
        out_args(p, e, len);
        from = i + 1;
    }
    out_args(p, text + from, n - from);
}

static bool value_json(const pn_out *p, const char *text, size_t n)
{
    pn_json_doc d;
    bool ok = pn_json_parse(&d, p->mem, PN_ACCT_MISC, text, n, NULL, NULL) == PN_OK;
    pn_json_fini(&d);
    return ok;
}

/* {'a': [1, None]} to {"a": [1, null]}; false: it is no literal. */
static bool value_literal(pn_out *p, const char *text, size_t n)
{
    pn_str out;
    out_lit lit;
    bool done = false, bad = false;
    pn_str_init(&out, p->mem, PN_ACCT_MISC);
    pn_out_lit_init(&lit, 0);
    size_t used = pn_out_lit_run(&lit, text, n, true, &out, &done, &bad);
    bool ok = done && !bad && used == n && !out.failed && value_json(p, out.data, out.len);
    if (ok)
        out_args(p, out.data, out.len);
    pn_str_fini(&out);
    return ok;
}

static bool value_same(const char *text, size_t n, const char *word) { return n == strlen(word) && memcmp(text, word, n) == 0; }

PN_INTERNAL void pn_out_typed(pn_out *p, out_type type, const char *text, size_t n)
{
    const char *s = text;
    size_t len = n;
    while (len && out_is_blank(s[0])) {
        s++;
        len--;
    }
    while (len && out_is_blank(s[len - 1]))
        len--;
    if (type != OUT_T_STRING && len) {
        if (value_same(s, len, "True") || value_same(s, len, "False")) {
            out_argsz(p, s[0] == 'T' ? "true" : "false");
            return;
        }
        if (type != OUT_T_UNKNOWN && value_same(s, len, "None")) {
            out_argsz(p, "null");
            return;
        }
        /* Without a type, text in quotes stays what it is: quotes and all. */
        bool quoted = type == OUT_T_UNKNOWN && s[0] == '"';
        if (!quoted && value_json(p, s, len)) {
            out_args(p, s, len);
            return;
        }
        if ((s[0] == '{' || s[0] == '[' || s[0] == '(') && value_literal(p, s, len))
            return;
    }
    out_argsz(p, "\"");
    pn_out_escape(p, text, n);
    out_argsz(p, "\"");
}
