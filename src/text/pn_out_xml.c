/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_out_xml.c - calls as tags: a name, then parameters whose values are bare text.
 *
 *     <function=f><parameter=k>v</parameter></function>      <tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>
 *     <invoke name="f"><parameter name="k">v</parameter></invoke>      and their relatives
 *
 *     START -> NAME (-> HEAD) -> BODY -> KEY (-> ATTRIBUTES) (-> MARK) -> BEGIN -> VALUE -> BODY ... -> NEXT
 *
 * A value of string type streams, escaped; any other is held until its closer and then becomes JSON by
 * its type.  A closer counts only when a tag that may follow it does follow, so a value may hold the
 * closer's own text ("</parameter>" in a program about templates).
 */
#include "text/pn_out_parts.h"

enum { XM_START, XM_NAME, XM_HEAD, XM_BODY, XM_KEY, XM_ATTRIBUTES, XM_MARK, XM_BEGIN, XM_VALUE, XM_NEXT };

#define XM_CDATA "<![CDATA["
#define XM_CDATA_END "]]>"

static bool xm_valid(pn_str *s)
{
    while (s->len && out_is_blank(s->data[s->len - 1]))
        s->len--;
    for (size_t i = 0; i < s->len; i++)
        if ((unsigned char)s->data[i] <= ' ' || strchr("<>{}\"'`", s->data[i]))
            return false;
    return s->len > 0;
}

static out_step xm_start(pn_out *p)
{
    const out_xml *x = p->family->xml;
    if (!pn_out_blanks(p) || !out_left(p))
        return OUT_MORE;
    if (out_text(p)[0] == '{') {                /* a neighbour's syntax */
        p->grammar = OUT_JSON;
        pn_out_json_init(p, false);
        return OUT_AGAIN;
    }
    if (x->call) {
        int at = pn_out_at(p, 0, x->call);
        if (at <= 0)
            return at ? OUT_MORE : OUT_BAD;
        pn_out_skip(p, strlen(x->call));
    }
    p->state = XM_NAME;
    return OUT_AGAIN;
}

static out_step xm_commit(pn_out *p)
{
    if (!xm_valid(&p->name))
        return OUT_BAD;
    pn_out_begin_call(p);
    out_argsz(p, "{");
    p->state = XM_BODY;
    return OUT_AGAIN;
}

static out_step xm_name(pn_out *p)
{
    const out_xml *x = p->family->xml;
    const char *marks[3];
    int n = 0, m;
    if (x->attributes) {
        marks[n++] = "\"";
    } else {
        marks[n++] = x->call_head;
        if (!x->call) {                         /* GLM's name has no delimiter of its own */
            marks[n++] = "\n";
            marks[n++] = x->call_end;
        }
    }
    m = pn_out_until(p, marks, (size_t)n, &p->name, OUT_NAME_MAX);
    if (m == -1)
        return OUT_MORE;
    if (m < 0)
        return OUT_BAD;
    if (x->call)
        pn_out_skip(p, strlen(marks[m]));
    if (!x->attributes)
        return xm_commit(p);
    p->state = XM_HEAD;
    return OUT_AGAIN;
}

/* Nothing but  word="word" ...: what is read over must be attributes, not the model's text. */
static bool xm_are_attributes(const pn_str *s)
{
    size_t i = 0;
    while (i < s->len) {
        if (out_is_blank(s->data[i])) {
            i++;
            continue;
        }
        size_t from = i, quotes = 0;
        while (i < s->len && quotes < 2 && ((s->data[i] >= 'a' && s->data[i] <= 'z') || strchr("_=\"", s->data[i]) ||
                                            (s->data[i] >= '0' && s->data[i] <= '9')))
            quotes += s->data[i++] == '"';
        if (quotes < 2 || i == from)
            return false;
    }
    return true;
}

/* Attributes up to the tag's end; nothing in them is needed. */
static out_step xm_head(pn_out *p)
{
    const char *head = p->family->xml->call_head;
    int m = pn_out_until(p, &head, 1, &p->val, OUT_NAME_MAX);
    if (m == -1)
        return OUT_MORE;
    if (m < 0 || !xm_are_attributes(&p->val))
        return OUT_BAD;
    pn_out_skip(p, strlen(head));
    return xm_commit(p);
}

static out_step xm_call_done(pn_out *p)
{
    out_argsz(p, "}");
    pn_out_end_call(p, true);
    p->state = XM_NEXT;
    return OUT_AGAIN;
}

static out_step xm_body(pn_out *p)
{
    const out_xml *x = p->family->xml;
    if (!pn_out_blanks(p) || !out_left(p))
        return OUT_MORE;
    int param = pn_out_at(p, 0, x->param), end = pn_out_at(p, 0, x->call_end);
    bool wait = param < 0 || end < 0;
    if (param > 0) {
        pn_out_skip(p, strlen(x->param));
        pn_str_clear(&p->val);
        p->state = XM_KEY;
        return OUT_AGAIN;
    }
    if (end > 0) {
        pn_out_skip(p, strlen(x->call_end));
        return xm_call_done(p);
    }
    for (size_t i = 0; i < PN_COUNT_OF(p->family->close) && p->family->close[i]; i++) {
        int at = pn_out_at(p, 0, p->family->close[i]);
        wait = wait || at < 0;
        if (at > 0)
            return xm_call_done(p);             /* the section ends, so the call has ended */
    }
    return wait ? OUT_MORE : OUT_BAD;
}

/* The key is known (p->val): its name onto the arguments. */
static out_step xm_key_done(pn_out *p)
{
    const out_xml *x = p->family->xml;
    uint32_t schema = PN_JSON_NONE;
    size_t from = 0;
    while (p->val.len && out_is_blank(p->val.data[p->val.len - 1]))
        p->val.len--;
    while (from < p->val.len && out_is_blank(p->val.data[from]))
        from++;
    if (p->params_node != PN_JSON_NONE)
        schema = pn_out_schema_property(p, p->params_node, pn_str_cstr(&p->val) + from, p->val.len - from);
    p->type = (uint8_t)pn_out_schema_type(p, schema);
    out_argsz(p, p->any_param ? ", \"" : "\"");
    pn_out_escape(p, pn_str_cstr(&p->val) + from, p->val.len - from);
    out_argsz(p, "\": ");
    p->any_param = true;
    pn_str_clear(&p->val);
    p->state = x->value ? XM_MARK : XM_BEGIN;
    return OUT_AGAIN;
}

/* What of a broken tag was consumed is text. */
static out_step xm_broken(pn_out *p, const char *tag)
{
    size_t now = out_offset(p), value = now - PN_MIN(p->val.len, now);
    pn_out_end_call(p, false);
    pn_out_put_text(p, tag, strlen(tag), value - PN_MIN(strlen(tag), value));
    pn_out_put_text(p, pn_str_cstr(&p->val), p->val.len, value);
    return OUT_BAD;
}

static out_step xm_key(pn_out *p)
{
    const out_xml *x = p->family->xml;
    const char *mark = x->attributes ? "\"" : x->param_head;
    int m = pn_out_until(p, &mark, 1, &p->val, OUT_NAME_MAX);
    if (m == -1)
        return OUT_MORE;
    if (m < 0)
        return xm_broken(p, x->param);
    pn_out_skip(p, strlen(mark));
    out_step s = xm_key_done(p);
    if (x->attributes)
        p->state = XM_ATTRIBUTES;
    return s;
}

static bool xm_contains(const pn_str *s, const char *what)
{
    size_t n = strlen(what);
    for (size_t i = 0; i + n <= s->len; i++)
        if (memcmp(s->data + i, what, n) == 0)
            return true;
    return false;
}

/* string="true" and type="string" tell the type better than any schema. */
static out_step xm_attributes(pn_out *p)
{
    const char *head = p->family->xml->param_head;
    int m = pn_out_until(p, &head, 1, &p->val, OUT_NAME_MAX);
    if (m == -1)
        return OUT_MORE;
    if (m < 0 || !xm_are_attributes(&p->val))
        return xm_broken(p, "\"");
    pn_out_skip(p, strlen(head));
    if (xm_contains(&p->val, "string=\"true\"") || xm_contains(&p->val, "type=\"string\""))
        p->type = OUT_T_STRING;
    else if (xm_contains(&p->val, "string=\"false\"") || xm_contains(&p->val, "type=\""))
        p->type = OUT_T_OTHER;
    pn_str_clear(&p->val);
    p->state = XM_BEGIN;
    return OUT_AGAIN;
}

static out_step xm_mark(pn_out *p)
{
    const char *mark = p->family->xml->value;
    if (!pn_out_blanks(p) || !out_left(p))
        return OUT_MORE;
    int at = pn_out_at(p, 0, mark);
    if (at <= 0)
        return at ? OUT_MORE : OUT_BAD;
    pn_out_skip(p, strlen(mark));
    p->state = XM_BEGIN;
    return OUT_AGAIN;
}

/* ------------------------------------------------------------------------------------------
 * Values
 * ------------------------------------------------------------------------------------------ */

static out_step xm_begin(pn_out *p)
{
    const out_xml *x = p->family->xml;
    if (!out_left(p))
        return OUT_MORE;
    int cdata = pn_out_at(p, 0, XM_CDATA);
    if (strcmp(p->family->name, "minicpm5") == 0 && cdata) {
        if (cdata < 0)
            return OUT_MORE;
        pn_out_skip(p, sizeof XM_CDATA - 1);
        p->cdata = true;
    } else if (x->trim_newline && out_text(p)[0] == '\n') {
        pn_out_skip(p, 1);
    }
    if (p->type == OUT_T_STRING)
        out_argsz(p, "\"");
    p->hold_newline = false;
    p->state = XM_VALUE;
    return OUT_AGAIN;
}

static void xm_put(pn_out *p, const char *text, size_t n)
{
    if (!n)
        return;
    if (p->type != OUT_T_STRING) {
        pn_str_add(&p->val, text, n);
        if (p->val.len <= OUT_HOLD_MAX)
            return;
        out_argsz(p, "\"");                     /* too long to be held: a string it is */
        p->type = OUT_T_STRING;
        text = p->val.data;
        n = p->val.len;
    }
    if (p->hold_newline)
        pn_out_escape(p, "\n", 1);
    p->hold_newline = p->family->xml->trim_newline && text[n - 1] == '\n';
    pn_out_escape(p, text, n - p->hold_newline);
    pn_str_clear(&p->val);
}

static void xm_value_done(pn_out *p)
{
    if (p->type == OUT_T_STRING) {
        out_argsz(p, "\"");
    } else {
        if (p->family->xml->trim_newline && p->val.len && p->val.data[p->val.len - 1] == '\n')
            p->val.len--;
        pn_out_typed(p, (out_type)p->type, pn_str_cstr(&p->val), p->val.len);
    }
    pn_str_clear(&p->val);
    p->hold_newline = p->cdata = false;
    p->state = XM_BODY;
}

/* May what stands at byte `from` follow a value?  1, 0, -1 perhaps. */
static int xm_follows(const pn_out *p, size_t from)
{
    const out_xml *x = p->family->xml;
    const char *tags[6] = {x->param, x->call_end};
    size_t n = 2, start = from;
    bool wait = false;
    for (size_t i = 0; i < PN_COUNT_OF(p->family->close) && p->family->close[i]; i++)
        tags[n++] = p->family->close[i];
    while (from < out_left(p) && out_is_blank(out_text(p)[from]))
        from++;
    if (from - start > OUT_NAME_MAX)
        return 0;
    for (size_t i = 0; i < n; i++) {
        int at = pn_out_at(p, from, tags[i]);
        if (at > 0)
            return 1;
        wait = wait || at < 0;
    }
    if (p->final && from == out_left(p))
        return 1;
    return wait ? -1 : 0;
}

static out_step xm_value(pn_out *p)
{
    const out_xml *x = p->family->xml;
    const char *marks[1] = {p->cdata ? XM_CDATA_END : x->param_end};
    int which;
    size_t n = pn_out_find_mark(p, marks, 1, &which);
    xm_put(p, out_text(p), n);
    pn_out_skip(p, n);
    if (which < 0)
        return OUT_MORE;
    size_t len = strlen(marks[0]), tail = 0;
    int ok;
    if (p->cdata) {                             /* the tag's closer belongs to it */
        ok = pn_out_at(p, len, x->param_end);
        tail = strlen(x->param_end);
    } else {
        ok = xm_follows(p, len);
    }
    if (ok < 0)
        return OUT_MORE;
    if (!ok) {
        xm_put(p, out_text(p), 1);
        pn_out_skip(p, 1);
        return OUT_AGAIN;
    }
    pn_out_skip(p, len + tail);
    xm_value_done(p);
    return OUT_AGAIN;
}

PN_INTERNAL void pn_out_xml_finish(pn_out *p)
{
    if (p->state != XM_VALUE)
        return;
    if (p->hold_newline)
        pn_out_escape(p, "\n", 1);
    out_args(p, pn_str_cstr(&p->val), p->val.len);
    pn_str_clear(&p->val);
}

PN_INTERNAL out_step pn_out_xml_step(pn_out *p)
{
    bool next;
    out_step s;
    switch (p->state) {
    case XM_START: return xm_start(p);
    case XM_NAME:
        if (!p->name.len && !pn_out_blanks(p))
            return OUT_MORE;
        return xm_name(p);
    case XM_HEAD: return xm_head(p);
    case XM_BODY: return xm_body(p);
    case XM_KEY: return xm_key(p);
    case XM_ATTRIBUTES: return xm_attributes(p);
    case XM_MARK: return xm_mark(p);
    case XM_BEGIN: return xm_begin(p);
    case XM_VALUE: return xm_value(p);
    default:
        s = pn_out_section(p, p->family->xml->call, &next);
        if (s == OUT_AGAIN && next) {
            p->from_reasoning = p->in_reasoning;
            pn_out_new_call(p);
            p->state = XM_START;
        }
        return s;
    }
}

#undef XM_CDATA
#undef XM_CDATA_END
