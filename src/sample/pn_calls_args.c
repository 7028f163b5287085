/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_calls_args.c - the arguments of one tool, as its family writes them.
 *
 *     JSON      {"k": v, ...}                           the whole schema at once, by pn_schema.h
 *     Gemma     {k:v, s:<|"|>text<|"|>}                 the same in another spelling
 *     Python    k=v, ...                                a member for each property
 *     tags      <parameter=k>v</parameter> ...          the same
 *
 * The last two are no JSON values, so of the schema of the arguments itself only `properties`, `required`
 * and `additionalProperties` have a meaning; the schemas of the properties are complete.  A JSON value
 * inside a tag holds its closer nowhere either: a reader would take it for the end of the value.
 */
#include "sample/pn_calls_int.h"
#include "base/pn_err.h"

#include <stdio.h>

enum {
    CALLS_ANY_ORDER = 5,        /* so many parameters make 2^n states */
    CALLS_KEY_MAX = 63,         /* of a parameter that the schema does not declare */
    CALLS_TAG_MAX = 63          /* of one that is the name of a tag */
};

#define CALLS_NESTED "]<]minimax[>["

typedef struct calls_member {
    pn_gnode node;
    bool required;
} calls_member;

static const pn_json_doc *calls_doc(const calls_work *w, const calls_tool *t)
{
    return t->schema == PN_JSON_NONE ? &w->nothing : w->p->tools;
}

static uint32_t calls_root(const calls_tool *t) { return t->schema == PN_JSON_NONE ? PN_JSON_ROOT : t->schema; }

static bool calls_lenient(const calls_work *w, const calls_tool *t) { return !t->strict && !w->p->required; }

/* ------------------------------------------------------------------------------------------
 * Pointers
 * ------------------------------------------------------------------------------------------ */

/* "/3/function/parameters" */
static void calls_pointer(const calls_work *w, const calls_tool *t, char *out, size_t cap)
{
    const pn_json_doc *d = w->p->tools;
    pn_bytes key = t->schema == PN_JSON_NONE ? (pn_bytes){NULL, 0} : pn_json_key_of(d, t->schema);
    bool wrapped = pn_json_key_of(d, t->node).data != NULL;
    snprintf(out, cap, "/%u%s%s%.*s", (unsigned)t->index, wrapped ? "/function" : "", key.data ? "/" : "", (int)key.len,
             key.data ? key.data : "");
}

PN_INTERNAL pn_gnode pn_calls_fail(calls_work *w, pn_status st, const calls_tool *t, const char *below, const char *what)
{
    char at[64];
    calls_pointer(w, t, at, sizeof at);
    if (!w->st)
        w->st = pn_fail(w->err, st, "%s%.200s: %.250s", at, below, what);
    return PN_GNODE_NONE;
}

/* Lines of pointers from the root of the schema: onto the list, from the array of tools. */
static void calls_note(calls_work *w, const calls_tool *t, const pn_str *lines)
{
    char at[64];
    const char *s = pn_str_cstr(lines), *end = s + lines->len;
    calls_pointer(w, t, at, sizeof at);
    while (s < end) {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        size_t n = (size_t)((stop ? stop : end) - s);
        if (w->out->widened.len)
            pn_str_addc(&w->out->widened, '\n');
        pn_str_addz(&w->out->widened, at);
        pn_str_add(&w->out->widened, s, n);
        s += n + (stop != NULL);
    }
}

/* The keyword has no meaning in this spelling: false, or true and noted. */
static bool calls_refuse(calls_work *w, const calls_tool *t, const char *keyword)
{
    char below[80];
    pn_str line;
    snprintf(below, sizeof below, "/%s", keyword);
    if (!calls_lenient(w, t)) {
        pn_calls_fail(w, PN_E_UNSUPPORTED, t, below, "cannot be enforced: this model writes arguments one by one");
        return false;
    }
    pn_str_init(&line, w->mem, PN_ACCT_GRAMMAR);
    pn_str_addz(&line, below);
    calls_note(w, t, &line);
    pn_str_fini(&line);
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Values
 * ------------------------------------------------------------------------------------------ */

/* The text begins with a pointer from the schema's root. */
static void calls_schema_failed(calls_work *w, const calls_tool *t, pn_status st, const pn_err *e)
{
    char at[64];
    calls_pointer(w, t, at, sizeof at);
    if (!w->st)
        w->st = pn_fail(w->err, st, "%s%s%.400s", at, e->text[0] == '/' ? "" : ": ", e->text);
}

/* What ends a value between tags; NULL: there are none. */
static const char *calls_closer(const calls_work *w)
{
    return w->f->grammar == OUT_NESTED ? CALLS_NESTED : w->f->grammar == OUT_XML ? w->f->xml->param_end : NULL;
}

/* The values of a schema, or with `until` its strings as bare text. */
static pn_gnode calls_value(calls_work *w, const calls_tool *t, uint32_t node, const char *until)
{
    pn_schema_options o = w->values;
    pn_gnode out = PN_GNODE_NONE;
    pn_str widened;
    pn_err e = {PN_OK, {0}};
    if (w->st)
        return PN_GNODE_NONE;
    o.lenient = calls_lenient(w, t);
    pn_str_init(&widened, w->mem, PN_ACCT_GRAMMAR);
    const pn_json_doc *d = calls_doc(w, t);
    pn_status st = until ? pn_schema_text(w->g, d, node, calls_root(t), until, &o, &out, &widened, &e)
                         : pn_schema_node(w->g, d, node, calls_root(t), &o, &out, &widened, &e);
    if (st)
        calls_schema_failed(w, t, st, &e);
    calls_note(w, t, &widened);
    if (widened.failed && !w->st)
        w->st = pn_fail_nomem(w->err, "tool grammars", widened.len);
    pn_str_fini(&widened);
    return out;
}

/* ------------------------------------------------------------------------------------------
 * Members one by one
 * ------------------------------------------------------------------------------------------ */

/* After the members of `set`, more of them: any order, each once, the required ones all. */
static pn_gnode calls_any_order(calls_work *w, const calls_member *m, size_t n, pn_gnode more, pn_gnode sep)
{
    pn_gnode after[1 << CALLS_ANY_ORDER], alts[CALLS_ANY_ORDER + 1];
    for (uint32_t set = 1u << n; set-- > 0;) {
        size_t k = 0;
        bool whole = true;
        for (size_t i = 0; i < n; i++) {
            if (set >> i & 1)
                continue;
            pn_gnode item = set ? pn_gir_seq2(w->g, sep, m[i].node) : m[i].node;
            alts[k++] = pn_gir_seq2(w->g, item, after[set | 1u << i]);
            whole = whole && !m[i].required;
        }
        if (whole) {
            pn_gnode item = more == PN_GNODE_NONE ? PN_GNODE_NONE : pn_gir_seq2(w->g, sep, more);
            pn_gnode rest = more == PN_GNODE_NONE ? pn_gir_empty(w->g) : pn_gir_repeat(w->g, item, 0, PN_GIR_MANY);
            alts[k++] = set || more == PN_GNODE_NONE ? rest : pn_gir_opt(w->g, pn_gir_seq2(w->g, more, rest));
        }
        after[set] = pn_gir_alt(w->g, alts, k);
    }
    return after[0];
}

/* The order of the schema: first[] has nothing in front of it, later[] something. */
static pn_gnode calls_in_order(calls_work *w, const calls_member *m, size_t n, pn_gnode more, pn_gnode sep)
{
    pn_gir *g = w->g;
    pn_gnode first = pn_gir_empty(g), later = pn_gir_empty(g);
    if (more != PN_GNODE_NONE) {
        later = pn_gir_repeat(g, pn_gir_seq2(g, sep, more), 0, PN_GIR_MANY);
        first = pn_gir_opt(g, pn_gir_seq2(g, more, later));
    }
    for (size_t i = n; i-- > 0;) {
        pn_gnode here = pn_gir_seq2(g, m[i].node, later), next = pn_gir_seq3(g, sep, m[i].node, later);
        first = m[i].required ? here : pn_gir_alt2(g, here, first);
        later = m[i].required ? next : pn_gir_alt2(g, next, later);
    }
    return first;
}

static bool calls_is_word(const calls_work *w, pn_bytes key)
{
    const size_t max = w->f->grammar == OUT_NESTED ? CALLS_TAG_MAX : OUT_NAME_MAX;
    for (size_t i = 0; i < key.len; i++)
        if ((unsigned char)key.data[i] <= ' ' || strchr("<>{}()[]\"'`=:,", key.data[i]))
            return false;
    return key.len > 0 && key.len <= max;
}

/* Do attributes say whether a value is text or JSON?  Else readers go by the schema. */
static bool calls_says_type(const calls_work *w)
{
    return strcmp(w->f->name, "deepseek-dsml") == 0 || strcmp(w->f->name, "kimi-k3") == 0;
}

/* Text that does not contain `end`. */
static pn_gnode calls_without(pn_gir *g, const char *end)
{
    pn_gnode any = pn_gir_repeat(g, pn_gir_class(g, NULL, 0, true), 0, PN_GIR_MANY);
    return pn_gir_and_not(g, any, pn_gir_seq3(g, any, pn_gir_text(g, end), any));
}

/* MiniCPM's reader takes <![CDATA[ in front of a value for markup: then a value stands inside of it, which we
 * let only values do that are free. */
static bool calls_has_cdata(const calls_work *w) { return strcmp(w->f->name, "minicpm5") == 0; }

#define CALLS_CDATA "<![CDATA["

static pn_gnode calls_outside_cdata(calls_work *w, pn_gnode value)
{
    pn_gir *g = w->g;
    pn_gnode any = pn_gir_repeat(g, pn_gir_class(g, NULL, 0, true), 0, PN_GIR_MANY);
    return pn_gir_and_not(g, value, pn_gir_seq2(g, pn_gir_text(g, CALLS_CDATA), any));
}

static pn_gnode calls_free_text(calls_work *w)
{
    pn_gir *g = w->g;
    pn_gnode text = calls_without(g, calls_closer(w));
    if (!calls_has_cdata(w))
        return text;
    pn_gnode inside = pn_gir_seq3(g, pn_gir_text(g, CALLS_CDATA), calls_without(g, "]]>"), pn_gir_text(g, "]]>"));
    return pn_gir_alt2(g, calls_outside_cdata(w, text), inside);
}

/* {"type": "string"} and what says nothing about the value. */
static bool calls_is_free(const pn_json_doc *d, uint32_t schema)
{
    static const char *const mute[] = {"description", "title", "default", "examples", "$comment", "deprecated"};
    pn_bytes key, type;
    bool string = false;
    for (uint32_t c = pn_json_first(d, schema); c != PN_JSON_NONE; c = pn_json_next(d, c)) {
        bool says = true;
        key = pn_json_key_of(d, c);
        for (size_t i = 0; i < PN_COUNT_OF(mute); i++)
            says = says && !(key.len == strlen(mute[i]) && memcmp(key.data, mute[i], key.len) == 0);
        if (!says)
            continue;
        if (key.len != 4 || memcmp(key.data, "type", 4) != 0 || !pn_json_str(d, c, &type) || type.len != 6 || memcmp(type.data, "string", 6) != 0)
            return false;
        string = true;
    }
    return string;
}

/* The value in a tag.  *text: it is bare text; a schema of unknown type without strings makes it JSON.
 * Without a schema it is any text. */
static pn_gnode calls_bare(calls_work *w, const calls_tool *t, uint32_t schema, out_type type, bool *text)
{
    if (*text) {
        if (schema == PN_JSON_NONE || calls_is_free(calls_doc(w, t), schema))
            return w->free_text;
        pn_gnode value = calls_value(w, t, schema, calls_closer(w));
        if (calls_has_cdata(w))
            value = calls_outside_cdata(w, value);
        if (!pn_gir_is_never(w->g, value) || !pn_gir_ok(w->g))
            return value;
        if (type == OUT_T_STRING && !calls_says_type(w) && !w->st)
            return pn_calls_fail(w, PN_E_UNSUPPORTED, t, "/properties", "found a string that contains the end of a value in this model's "
                                 "syntax and nothing else that is allowed");
        *text = false;
    }
    return calls_value(w, t, schema, NULL);
}

/* <parameter=k>v</parameter> and its relatives. */
static pn_gnode calls_tag(calls_work *w, const calls_tool *t, pn_gnode key, uint32_t schema)
{
    const out_xml *x = w->f->xml;
    bool nested = w->f->grammar == OUT_NESTED;
    pn_gir *g = w->g;
    out_type type = schema == PN_JSON_NONE ? OUT_T_UNKNOWN : pn_out_type_of(calls_doc(w, t), calls_root(t), schema);
    bool text = type == OUT_T_STRING || type == OUT_T_UNKNOWN;
    pn_gnode value = calls_bare(w, t, schema, type, &text);
    if (nested) {
        pn_gnode open[] = {pn_calls_mark(w, CALLS_NESTED), pn_gir_text(g, "<"), key, pn_gir_text(g, ">"), value,
                           pn_calls_mark(w, CALLS_NESTED), pn_gir_text(g, "</"), key, pn_gir_text(g, ">")};
        return pn_gir_seq(g, open, PN_COUNT_OF(open));
    }
    const char *attributes = "";
    if (strcmp(w->f->name, "deepseek-dsml") == 0)
        attributes = text ? "\" string=\"true\"" : "\" string=\"false\"";
    else if (strcmp(w->f->name, "kimi-k3") == 0)
        attributes = text ? "\" type=\"string\"" : type == OUT_T_NUMBER ? "\" type=\"number\""
                   : type == OUT_T_BOOL ? "\" type=\"boolean\"" : "\" type=\"object\"";
    else if (x->attributes)
        attributes = "\"";
    pn_gnode line = x->trim_newline ? pn_gir_text(g, "\n") : pn_gir_empty(g);
    pn_gnode parts[] = {
        pn_calls_mark(w, x->param), key, pn_gir_text(g, attributes), pn_calls_mark(w, x->param_head),
        x->value ? pn_gir_seq2(g, w->nl, pn_calls_mark(w, x->value)) : pn_gir_empty(g),
        line, value, line, pn_calls_mark(w, x->param_end)};
    return pn_gir_seq(g, parts, PN_COUNT_OF(parts));
}

/* A member: in tags with the line end in front of it. */
static pn_gnode calls_one(calls_work *w, const calls_tool *t, pn_gnode key, uint32_t schema)
{
    if (w->f->grammar == OUT_PYTHON)
        return pn_gir_seq3(w->g, key, pn_gir_text(w->g, "="), calls_value(w, t, schema, NULL));
    return pn_gir_seq2(w->g, w->nl, calls_tag(w, t, key, schema));
}

static bool calls_is_required(const pn_json_doc *d, uint32_t schema, pn_bytes key)
{
    pn_bytes name;
    uint32_t list = pn_json_get(d, schema, "required");
    for (uint32_t c = pn_json_first(d, list); c != PN_JSON_NONE; c = pn_json_next(d, c))
        if (pn_json_str(d, c, &name) && name.len == key.len && memcmp(name.data, key.data, key.len) == 0)
            return true;
    return false;
}

/* Members that the schema does not declare, where it asks for them; NONE: it does not, or a tag would have to
 * close under a name that no grammar can repeat. */
static pn_gnode calls_more(calls_work *w, const calls_tool *t, const pn_bytes *keys, size_t n, bool widened)
{
    static const pn_cp_range chars[] = {{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {'_', '_'}};
    const pn_json_doc *d = calls_doc(w, t);
    uint32_t extra = pn_json_get(d, calls_root(t), "additionalProperties");
    bool yes = false, python = w->f->grammar == OUT_PYTHON;
    bool is_bool = pn_json_bool(d, extra, &yes);
    if ((!(extra != PN_JSON_NONE && (!is_bool || yes)) && !(widened && !python)) || w->f->grammar == OUT_NESTED)
        return PN_GNODE_NONE;
    pn_gnode head = pn_gir_class(w->g, chars, 2, false), word = pn_gir_class(w->g, chars, PN_COUNT_OF(chars), false);
    pn_gnode key = pn_gir_seq2(w->g, head, pn_gir_repeat(w->g, word, 0, CALLS_KEY_MAX - 1));
    if (n)
        key = pn_gir_and_not(w->g, key, pn_gir_words(w->g, keys, n));
    /* `true` as a schema is any value; as bare text, any text. */
    return calls_one(w, t, key, is_bool && !python ? PN_JSON_NONE : extra);
}

/* Names in `required` that no property declares. */
static bool calls_check_required(calls_work *w, const calls_tool *t, const pn_json_doc *d, uint32_t schema)
{
    pn_bytes name;
    uint32_t list = pn_json_get(d, schema, "required"), props = pn_json_get(d, schema, "properties");
    for (uint32_t c = pn_json_first(d, list); c != PN_JSON_NONE; c = pn_json_next(d, c))
        if (pn_json_str(d, c, &name) && pn_json_find(d, props, name.data, name.len) == PN_JSON_NONE)
            return calls_refuse(w, t, "required");
    return true;
}

static pn_gnode calls_members(calls_work *w, const calls_tool *t)
{
    static const char *const beyond[] = {
        "$ref", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const", "patternProperties", "propertyNames",
        "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"};
    const pn_json_doc *d = calls_doc(w, t);
    uint32_t schema = calls_root(t), props = pn_json_get(d, schema, "properties");
    size_t n = pn_json_count(d, props), k = 0;
    bool widened = false, python = w->f->grammar == OUT_PYTHON;
    for (size_t i = 0; i < PN_COUNT_OF(beyond); i++)
        if (pn_json_get(d, schema, beyond[i]) != PN_JSON_NONE) {
            if (!calls_refuse(w, t, beyond[i]))
                return PN_GNODE_NONE;
            widened = true;
        }
    if (!calls_check_required(w, t, d, schema))
        return PN_GNODE_NONE;
    calls_member *m = pn_mem_calloc(w->mem, PN_ACCT_GRAMMAR, n + 1, sizeof *m);
    pn_bytes *keys = pn_mem_calloc(w->mem, PN_ACCT_GRAMMAR, n + 1, sizeof *keys);
    if (!m || !keys)
        w->st = pn_fail_nomem(w->err, "tool grammars", n * (sizeof *m + sizeof *keys));
    for (uint32_t c = pn_json_first(d, props); c != PN_JSON_NONE && !w->st; c = pn_json_next(d, c)) {
        keys[k] = pn_json_key_of(d, c);
        if (!calls_is_word(w, keys[k])) {
            pn_calls_fail(w, PN_E_UNSUPPORTED, t, "/properties", "expected names of letters, digits and '_', found one that this "
                          "model's syntax cannot write");
            break;
        }
        m[k].required = calls_is_required(d, schema, keys[k]);
        m[k].node = calls_one(w, t, pn_gir_bytes(w->g, keys[k].data, keys[k].len), c);
        k++;
    }
    pn_gnode out = PN_GNODE_NONE;
    if (!w->st) {
        pn_gnode more = calls_more(w, t, keys, k, widened);
        pn_gnode sep = python ? pn_gir_seq2(w->g, pn_gir_text(w->g, ","), w->ws) : pn_gir_empty(w->g);
        out = k <= CALLS_ANY_ORDER ? calls_any_order(w, m, k, more, sep) : calls_in_order(w, m, k, more, sep);
    }
    pn_mem_free(w->mem, PN_ACCT_GRAMMAR, m, (n + 1) * sizeof *m);
    pn_mem_free(w->mem, PN_ACCT_GRAMMAR, keys, (n + 1) * sizeof *keys);
    return out;
}

PN_INTERNAL void pn_calls_spell(calls_work *w)
{
    static const char quote[] = "<|\"|>";
    w->values.python = w->f->grammar == OUT_PYTHON;
    if (calls_closer(w)) {
        pn_schema_avoid(w->g, calls_closer(w), &w->values);
        w->free_text = calls_free_text(w);
    }
    if (w->f->grammar == OUT_GEMMA) {
        w->values.quote = quote;
        w->values.quote_node = pn_calls_mark(w, quote);
    }
}

PN_INTERNAL bool pn_calls_arguments(calls_work *w, calls_tool *t)
{
    switch (w->f->grammar) {
    case OUT_XML: case OUT_NESTED: case OUT_PYTHON:
        t->args = calls_members(w, t);
        break;
    default:
        t->args = calls_value(w, t, calls_root(t), NULL);
    }
    uint32_t rule = pn_gir_rule_n(w->g, t->name.data, t->name.len);     /* compiled once, called from every lane */
    pn_gir_define(w->g, rule, t->args);
    t->args = pn_gir_ref(w->g, rule);
    return w->st == PN_OK;
}

#undef CALLS_NESTED
#undef CALLS_CDATA
