/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_out_named.c - calls as a name, a delimiter and a JSON value.
 *
 *     [TOOL_CALLS]f[CALL_ID]id[ARGS]{...}
 *     <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
 *     <｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{...}\n```<｜tool▁call▁end｜>
 *     <function=f>{...}</function>      >>>f\n{...}
 */
#include "text/pn_out_parts.h"

enum { NM_START, NM_FIRST_ID, NM_NAME, NM_ID, NM_LINE, NM_FENCE, NM_ARGS, NM_FENCE_END, NM_AFTER };

static void nm_trim(pn_str *s)
{
    size_t from = 0;
    while (s->len && out_is_blank(s->data[s->len - 1]))
        s->len--;
    while (from < s->len && out_is_blank(s->data[from]))
        from++;
    if (from)
        memmove(s->data, s->data + from, s->len - from);
    s->len -= from;
}

/* Names are what clients call: no blanks, quotes or brackets. */
static bool nm_valid(const pn_str *s)
{
    for (size_t i = 0; i < s->len; i++)
        if ((unsigned char)s->data[i] <= ' ' || strchr("<>{}[]\"'`|", s->data[i]))
            return false;
    return s->len > 0;
}

/* functions.f:0 is id and name in one. */
static void nm_kimi(pn_out *p)
{
    size_t end = p->name.len, from = 0;
    pn_str_add(&p->id, pn_str_cstr(&p->name), p->name.len);
    while (end && p->name.data[end - 1] >= '0' && p->name.data[end - 1] <= '9')
        end--;
    if (end && end < p->name.len && p->name.data[end - 1] == ':')
        p->name.len = end - 1;
    if (p->name.len > 10 && memcmp(p->name.data, "functions.", 10) == 0)
        from = 10;
    memmove(p->name.data, p->name.data + from, p->name.len - from);
    p->name.len -= from;
}

static out_step nm_commit(pn_out *p)
{
    nm_trim(&p->name);
    nm_trim(&p->id);
    if (p->name.len && strcmp(p->family->name, "kimi-k2") == 0)
        nm_kimi(p);
    if (!nm_valid(&p->name))
        return OUT_BAD;
    pn_out_scan_init(&p->scan);
    p->state = NM_FENCE;
    return OUT_AGAIN;
}

static bool nm_is_all(const pn_out *p) { return p->name.len == 3 && memcmp(p->name.data, "all", 3) == 0; }

static out_step nm_name(pn_out *p)
{
    const out_named *f = p->family->named;
    const char *marks[4];
    int n = 0, m;
    marks[n++] = f->args;
    if (f->before_id)
        marks[n++] = f->before_id;
    if (f->brace)
        marks[n++] = "{";
    m = pn_out_until(p, marks, (size_t)n, &p->name, OUT_NAME_MAX);
    if (m == -1)
        return OUT_MORE;
    if (m < 0)
        return OUT_BAD;
    if (strcmp(marks[m], "{") != 0)
        pn_out_skip(p, strlen(marks[m]));
    if (marks[m] == f->before_id) {
        p->state = NM_ID;
        return OUT_AGAIN;
    }
    if ((p->family->flags & OUT_SEGMENTS) && nm_is_all(p))
        return OUT_DONE;
    nm_trim(&p->name);
    if (p->name.len == 8 && memcmp(p->name.data, "function", 8) == 0 && strcmp(p->family->name, "deepseek") == 0) {
        pn_str_clear(&p->name);
        p->state = NM_LINE;                     /* the type; the name is the rest of the line */
        return OUT_AGAIN;
    }
    return nm_commit(p);
}

static out_step nm_field(pn_out *p, const char *mark, pn_str *dst, uint8_t next)
{
    int m = pn_out_until(p, &mark, 1, dst, OUT_NAME_MAX);
    if (m == -1)
        return OUT_MORE;
    if (m < 0)
        return OUT_BAD;
    pn_out_skip(p, strlen(mark));
    p->state = next;
    return OUT_AGAIN;
}

/* A code fence, or the arguments at once. */
static out_step nm_fence(pn_out *p)
{
    if (!pn_out_blanks(p) || !out_left(p))
        return OUT_MORE;
    int json = pn_out_at(p, 0, "```json"), plain = pn_out_at(p, 0, "```");
    if (json < 0 || plain < 0)
        return OUT_MORE;
    if (plain > 0) {
        pn_out_skip(p, json > 0 ? 7 : 3);
        p->fence = 1;
        return pn_out_blanks(p) ? OUT_AGAIN : OUT_MORE;
    }
    if (out_text(p)[0] != '{')
        return OUT_BAD;
    pn_out_begin_call(p);
    p->state = NM_ARGS;
    return OUT_AGAIN;
}

/* The call's own closer, which the model may leave out. */
static const char *nm_closer(const pn_out *p)
{
    static const char *const closers[][2] = {
        {"deepseek", "<｜tool▁call▁end｜>"}, {"kimi-k2", "<|tool_call_end|>"}, {"solar", "<|tool_call:end|>"},
    };
    for (size_t i = 0; i < PN_COUNT_OF(closers); i++)
        if (strcmp(closers[i][0], p->family->name) == 0)
            return closers[i][1];
    return NULL;
}

static out_step nm_fence_end(pn_out *p)
{
    const char *close = nm_closer(p);
    int at;
    if (!pn_out_blanks(p))
        return OUT_MORE;
    if (p->fence) {
        at = pn_out_at(p, 0, "```");
        if (at < 0)
            return OUT_MORE;
        if (at > 0)
            pn_out_skip(p, 3);
        p->fence = 0;
        return OUT_AGAIN;
    }
    at = close ? pn_out_at(p, 0, close) : 0;
    if (at < 0)
        return OUT_MORE;
    if (at > 0)
        pn_out_skip(p, strlen(close));
    p->state = NM_AFTER;
    return OUT_AGAIN;
}

static out_step nm_after(pn_out *p)
{
    bool next;
    out_step s = pn_out_section(p, p->family->named->call, &next);
    if (s == OUT_AGAIN && next) {
        p->from_reasoning = p->in_reasoning;
        pn_out_new_call(p);
        p->state = NM_START;
    }
    return s;
}

static out_step nm_start(pn_out *p)
{
    const out_named *f = p->family->named;
    if (f->args[0] != '\n' && !pn_out_blanks(p))
        return OUT_MORE;
    if (f->call) {
        int at = pn_out_at(p, 0, f->call);
        if (at < 0)
            return OUT_MORE;
        if (at > 0)
            pn_out_skip(p, strlen(f->call));
        else if (strcmp(p->family->name, "deepseek") != 0)      /* distilled models leave it out */
            return OUT_BAD;
    } else if (f->brace) {                      /* Mistral: an array of objects is the older syntax */
        if (!out_left(p))
            return OUT_MORE;
        if (out_text(p)[0] == '[') {
            p->grammar = OUT_JSON;
            pn_out_json_init(p, false);
            return OUT_AGAIN;
        }
    }
    p->state = f->id_first ? NM_FIRST_ID : NM_NAME;
    return OUT_AGAIN;
}

PN_INTERNAL out_step pn_out_named_step(pn_out *p)
{
    const out_named *f = p->family->named;
    out_step s;
    switch (p->state) {
    case NM_START: return nm_start(p);
    case NM_FIRST_ID: return nm_field(p, f->id_first, &p->id, NM_NAME);
    case NM_NAME: return nm_name(p);
    case NM_ID:
        s = nm_field(p, f->args, &p->id, NM_ID);
        return s == OUT_AGAIN ? nm_commit(p) : s;
    case NM_LINE:
        s = nm_field(p, "\n", &p->name, NM_LINE);
        return s == OUT_AGAIN ? nm_commit(p) : s;
    case NM_FENCE: return nm_fence(p);
    case NM_ARGS:
        s = pn_out_raw_args(p);
        if (s == OUT_AGAIN) {
            pn_out_end_call(p, true);
            p->state = NM_FENCE_END;
        }
        return s;
    case NM_FENCE_END: return nm_fence_end(p);
    default: return nm_after(p);
    }
}
