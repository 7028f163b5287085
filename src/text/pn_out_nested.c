/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_out_nested.c - MiniMax M3: arguments as tags inside tags, each behind a marker.
 *
 *     M<tool_call>M<invoke name="f">M<k>v M</k>M<list>M<item>1M</item>M</list>M</invoke>M</tool_call>
 *
 * with M = "]<]minimax[>[".  An element is an array when its first child is called item, an object when
 * that is called otherwise, a value when it has text; a schema that says string makes all of it text.
 * Elements that are open are a fixed stack: the depth is the model's choice.
 */
#include "text/pn_out_parts.h"

#define NS_MARK "]<]minimax[>["

enum { NS_TEXT, NS_TAG, NS_NEXT };

static out_element *ns_top(pn_out *p) { return &p->elements[p->n_elements - 1]; }

static out_step ns_push(pn_out *p, const char *key, size_t len, uint32_t schema)
{
    if (p->n_elements == OUT_ELEMENTS_MAX || len >= sizeof p->elements->key)
        return OUT_BAD;
    out_element *e = &p->elements[p->n_elements++];
    memset(e, 0, sizeof *e);
    memcpy(e->key, key, len);
    e->schema = schema;
    return OUT_AGAIN;
}

static bool ns_blank(const pn_str *s)
{
    for (size_t i = 0; i < s->len; i++)
        if (!out_is_blank(s->data[i]))
            return false;
    return true;
}

static void ns_text(pn_out *p, const char *text, size_t n)
{
    if (!n)
        return;
    out_element *e = p->n_elements ? ns_top(p) : NULL;
    if (e && e->kind == 0 && pn_out_schema_type(p, e->schema) == OUT_T_STRING) {
        e->kind = 's';
        out_argsz(p, "\"");
    }
    if (e && e->kind == 's')
        pn_out_escape(p, text, n);
    else
        pn_str_add(&p->val, text, n);
}

static out_step ns_open(pn_out *p, const char *key, size_t len)
{
    out_element *top = ns_top(p);
    bool item = len == 4 && memcmp(key, "item", 4) == 0;
    if (!ns_blank(&p->val) || !len)
        return OUT_BAD;
    pn_str_clear(&p->val);
    if (!top->kind) {
        top->kind = item && pn_out_schema_property(p, top->schema, key, len) == PN_JSON_NONE ? 'a' : 'o';
        out_argsz(p, top->kind == 'a' ? "[" : "{");
    }
    uint32_t schema = top->kind == 'a' ? pn_out_schema_items(p, top->schema)
                                       : pn_out_schema_property(p, top->schema, key, len);
    bool any = top->any;
    top->any = true;
    char kind = (char)top->kind;
    if (ns_push(p, key, len, schema) == OUT_BAD)
        return OUT_BAD;
    out_argsz(p, any ? ", " : "");
    if (kind == 'o') {
        out_argsz(p, "\"");
        pn_out_escape(p, key, len);
        out_argsz(p, "\": ");
    }
    return OUT_AGAIN;
}

static out_step ns_close(pn_out *p, const char *key, size_t len)
{
    if (p->n_elements == 1) {
        if (len != 6 || memcmp(key, "invoke", 6) != 0 || !ns_blank(&p->val))
            return OUT_BAD;
        out_argsz(p, "}");
        pn_out_end_call(p, true);
        p->state = NS_NEXT;
        return OUT_AGAIN;
    }
    out_element *e = ns_top(p);
    if (strlen(e->key) != len || memcmp(e->key, key, len) != 0)
        return OUT_BAD;
    if (e->kind == 's')
        out_argsz(p, "\"");
    else if (e->kind)
        out_argsz(p, e->kind == 'a' ? "]" : "}");
    else
        pn_out_typed(p, pn_out_schema_type(p, e->schema), pn_str_cstr(&p->val), p->val.len);
    pn_str_clear(&p->val);
    p->n_elements--;
    return OUT_AGAIN;
}

/* invoke name="f" */
static out_step ns_invoke(pn_out *p, const char *tag, size_t len)
{
    static const char head[] = "invoke name=\"";
    size_t n = sizeof head - 1;
    if (len < n + 2 || memcmp(tag, head, n) != 0)
        return OUT_BAD;
    const char *end = memchr(tag + n, '"', len - n);
    if (!end || end == tag + n)
        return OUT_BAD;
    pn_str_add(&p->name, tag + n, (size_t)(end - tag) - n);
    pn_out_begin_call(p);
    out_argsz(p, "{");
    p->n_elements = 0;
    (void)ns_push(p, "", 0, p->params_node);
    ns_top(p)->kind = 'o';
    return OUT_AGAIN;
}

/* A whole tag: p->args holds "<...>". */
static out_step ns_tag(pn_out *p)
{
    const char *tag = p->args.data + 1;
    size_t len = p->args.len - 2;
    if (!p->n_elements)
        return ns_invoke(p, tag, len);
    out_element *e = ns_top(p);
    bool closes = len > 1 && tag[0] == '/';
    if (e->kind == 's' && !(closes && strlen(e->key) == len - 1 && memcmp(e->key, tag + 1, len - 1) == 0)) {
        ns_text(p, NS_MARK, sizeof NS_MARK - 1);
        ns_text(p, p->args.data, p->args.len);
        return OUT_AGAIN;
    }
    return closes ? ns_close(p, tag + 1, len - 1) : ns_open(p, tag, len);
}

/* Nothing of what the tag consumed may be lost. */
static out_step ns_broken(pn_out *p)
{
    if (p->begun) {
        size_t now = out_offset(p), args = now - PN_MIN(p->args.len, now);
        size_t mark = args - PN_MIN(sizeof NS_MARK - 1, args);
        pn_out_end_call(p, false);
        pn_out_put_text(p, pn_str_cstr(&p->val), p->val.len, mark - PN_MIN(p->val.len, mark));
        pn_out_put_text(p, NS_MARK, sizeof NS_MARK - 1, mark);
        pn_out_put_text(p, pn_str_cstr(&p->args), p->args.len, args);
    }
    return OUT_BAD;
}

static out_step ns_read_tag(pn_out *p)
{
    const char *end = ">";
    int m = pn_out_until(p, &end, 1, &p->args, OUT_NAME_MAX);
    if (m == -1)
        return OUT_MORE;
    if (m < 0)
        return ns_broken(p);
    pn_out_skip(p, 1);
    pn_str_addc(&p->args, '>');
    p->state = NS_TEXT;
    if (p->args.failed)
        return OUT_MORE;
    out_step s = p->args.len > 2 && p->args.data[0] == '<' ? ns_tag(p) : OUT_BAD;
    return s == OUT_BAD ? ns_broken(p) : s;
}

static out_step ns_between(pn_out *p)
{
    const char *mark = NS_MARK;
    int which;
    size_t n = pn_out_find_mark(p, &mark, 1, &which);
    if (!p->n_elements && n) {
        if (!pn_out_blanks(p))
            return OUT_MORE;
        return out_left(p) && pn_out_at(p, 0, mark) == 0 ? OUT_BAD : pn_out_at(p, 0, mark) > 0 ? OUT_AGAIN : OUT_MORE;
    }
    ns_text(p, out_text(p), n);
    pn_out_skip(p, n);
    if (p->val.len > OUT_HOLD_MAX)
        return ns_broken(p);
    if (which < 0)
        return OUT_MORE;
    pn_out_skip(p, sizeof NS_MARK - 1);
    pn_str_clear(&p->args);
    p->state = NS_TAG;
    return OUT_AGAIN;
}

PN_INTERNAL void pn_out_nested_finish(pn_out *p)
{
    out_args(p, pn_str_cstr(&p->val), p->val.len);
    if (p->state == NS_TAG)
        out_args(p, pn_str_cstr(&p->args), p->args.len);
}

PN_INTERNAL out_step pn_out_nested_step(pn_out *p)
{
    bool next;
    out_step s;
    switch (p->state) {
    case NS_TEXT: return ns_between(p);
    case NS_TAG: return ns_read_tag(p);
    default:
        s = pn_out_section(p, NS_MARK "<invoke", &next);
        if (s == OUT_AGAIN && next) {
            p->from_reasoning = p->in_reasoning;
            pn_out_new_call(p);
            p->state = NS_TEXT;
        }
        return s;
    }
}

#undef NS_MARK
