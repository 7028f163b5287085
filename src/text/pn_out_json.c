/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_out_json.c - calls as JSON: {"name": N, "arguments": {...}}, alone, one after another or in an array.
 *
 *     START -> KEY -> COLON -> VALUE (by key) -> COMMA -> KEY ... -> AFTER -> START of the next
 *
 * The arguments are forwarded as they stand, by a scanner that knows only where the value ends; all
 * around them is read byte by byte.  Members come in any order: arguments before the name are kept
 * until the name is known.  The call is delivered when name and arguments have both begun, so that
 * {"name": "Ada", "age": 3}, an answer in JSON, stays an answer.
 */
#include "text/pn_out_parts.h"

#include "base/pn_utf8.h"

enum { JS_START, JS_MEMBER, JS_KEY, JS_COLON, JS_VALUE, JS_NAME, JS_ID, JS_ARGS, JS_ARGS_STRING, JS_OTHER, JS_COMMA, JS_AFTER };

/* ------------------------------------------------------------------------------------------
 * Where a value ends
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_out_scan_init(out_scan *s) { memset(s, 0, sizeof *s); }

static bool scan_push(out_scan *s, bool object)
{
    if (s->depth == OUT_DEPTH_MAX)
        return false;
    uint8_t bit = (uint8_t)(1u << (s->depth & 7));
    if (object)
        s->is_object[s->depth >> 3] |= bit;
    else
        s->is_object[s->depth >> 3] &= (uint8_t)~bit;
    s->depth++;
    return true;
}

static bool scan_pop(out_scan *s, bool object)
{
    if (!s->depth)
        return false;
    s->depth--;
    return ((s->is_object[s->depth >> 3] >> (s->depth & 7) & 1) != 0) == object;
}

static bool scan_is_scalar(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '+' || c == '.';
}

/* One byte: 1 it belongs to the value, 0 the value ended before it, -1 broken. */
static int scan_byte(out_scan *s, char c)
{
    if (s->in_string) {
        if (s->escaped)
            s->escaped = false;
        else if (c == '\\')
            s->escaped = true;
        else if (c == '"') {
            s->in_string = false;
            s->done = s->depth == 0;
        }
        return 1;
    }
    if (s->scalar && !s->depth && !scan_is_scalar(c)) {
        s->done = true;
        return 0;
    }
    if (c == '"')
        s->in_string = true;
    else if (c == '{' || c == '[')
        return scan_push(s, c == '{') ? 1 : -1;
    else if (c == '}' || c == ']') {
        if (!scan_pop(s, c == '}'))
            return -1;
        s->done = s->depth == 0;
    } else if (!s->depth) {
        s->scalar = true;
        return scan_is_scalar(c) ? 1 : -1;
    }
    return 1;
}

PN_INTERNAL size_t pn_out_scan_run(out_scan *s, const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && !s->done) {
        int r = scan_byte(s, text[i]);
        s->broken = r < 0;
        if (r <= 0)
            break;
        i++;
    }
    return i;
}

PN_INTERNAL out_step pn_out_raw_args(pn_out *p)
{
    size_t n = pn_out_scan_run(&p->scan, out_text(p), out_left(p));
    out_args(p, out_text(p), n);
    pn_out_skip(p, n);
    return p->scan.broken ? OUT_BAD : p->scan.done ? OUT_AGAIN : OUT_MORE;
}

/* ------------------------------------------------------------------------------------------
 * Strings, unescaped as they come
 * ------------------------------------------------------------------------------------------ */

/* A high surrogate whose other half did not come. */
static void js_lone(pn_out *p, pn_str *dst)
{
    char b[4];
    if (p->high)
        pn_str_add(dst, b, pn_utf8_encode(PN_UTF8_BAD, b));
    p->high = 0;
}

static void js_code(pn_out *p, pn_str *dst, uint32_t c)
{
    char b[4];
    if (p->high && c >= 0xDC00 && c < 0xE000) {
        pn_str_add(dst, b, pn_utf8_encode(0x10000 + ((p->high - 0xD800) << 10) + (c - 0xDC00), b));
        p->high = 0;
        return;
    }
    js_lone(p, dst);
    p->high = c >= 0xD800 && c < 0xDC00 ? c : 0;
    if (!p->high)
        pn_str_add(dst, b, pn_utf8_encode(c, b));
}

static bool js_escape(pn_out *p, pn_str *dst, char c)
{
    static const char from[] = "nrtbf\"\\/", to[] = "\n\r\t\b\f\"\\/";
    if (p->n_hex) {
        int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (v < 0)
            return false;
        p->code = p->code << 4 | (uint32_t)v;
        if (--p->n_hex == 0) {
            p->esc = 0;
            js_code(p, dst, p->code);
        }
        return true;
    }
    if (c == 'u') {
        p->n_hex = 4;
        p->code = 0;
        return true;
    }
    const char *at = c ? memchr(from, c, sizeof from - 1) : NULL;
    if (!at)
        return false;
    p->esc = 0;
    js_code(p, dst, (unsigned char)to[at - from]);
    return true;
}

/* Inside a string: consume into dst up to and with the closing quote (OUT_AGAIN). */
static out_step js_string(pn_out *p, pn_str *dst, size_t max)
{
    const char *s = out_text(p);
    size_t n = 0, left = out_left(p);
    for (; n < left; n++) {
        char c = s[n];
        if (dst->len > max)
            break;
        if (p->esc) {
            if (!js_escape(p, dst, c))
                break;
        } else if (c == '\\') {
            p->esc = 1;
        } else if (c == '"') {
            pn_out_skip(p, n + 1);
            js_lone(p, dst);
            return OUT_AGAIN;
        } else {
            js_lone(p, dst);
            pn_str_addc(dst, c);
        }
    }
    pn_out_skip(p, n);
    return n < left ? OUT_BAD : OUT_MORE;
}

static void js_begin_string(pn_out *p)
{
    p->esc = p->n_hex = 0;
    p->high = 0;
    pn_out_skip(p, 1);
}

/* ------------------------------------------------------------------------------------------
 * Members
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_out_json_init(pn_out *p, bool bare)
{
    p->state = JS_START;
    p->bare = bare;
    p->in_array = p->listed = false;
    p->body = 0;
}

PN_INTERNAL out_key pn_out_key_of(const char *key, size_t len)
{
    static const struct { const char *key; out_key kind; } keys[] = {
        {"name", OUT_K_NAME}, {"tool_name", OUT_K_NAME}, {"function_name", OUT_K_NAME}, {"function", OUT_K_NAME},
        {"arguments", OUT_K_ARGS}, {"parameters", OUT_K_ARGS}, {"params", OUT_K_ARGS}, {"args", OUT_K_ARGS},
        {"id", OUT_K_ID}, {"tool_call_id", OUT_K_ID}, {"call_id", OUT_K_ID},
        {"tool_call", OUT_K_WRAP}, {"tool_calls", OUT_K_WRAP}, {"type", OUT_K_OTHER},
    };
    for (size_t i = 0; i < PN_COUNT_OF(keys); i++)
        if (len == strlen(keys[i].key) && memcmp(key, keys[i].key, len) == 0)
            return keys[i].kind;
    return OUT_K_NONE;
}

/* The arguments have begun, or kept ones can go out: the call is real. */
static bool js_commit(pn_out *p)
{
    if (!p->name.len || p->begun)
        return p->begun;
    pn_out_begin_call(p);
    if (p->args.len) {
        out_args(p, p->args.data, p->args.len);
        pn_str_clear(&p->args);
    }
    return true;
}

static out_step js_key_done(pn_out *p)
{
    p->key = (uint8_t)pn_out_key_of(pn_str_cstr(&p->val), p->val.len);
    if ((p->family->flags & OUT_NAME_IS_KEY) && !p->begun && !p->key) {
        pn_str_add(&p->name, pn_str_cstr(&p->val), p->val.len);
        p->key = OUT_K_ARGS;
    } else if (!p->key && p->bare && !p->begun) {
        return OUT_BAD;                         /* an answer in JSON */
    }
    p->value_begun = p->value_begun || !p->key;
    p->state = JS_COLON;
    return OUT_AGAIN;
}

/* What follows the colon. */
static out_step js_value(pn_out *p)
{
    char c = out_text(p)[0];
    if (c == '{' && (p->key == OUT_K_NAME || p->key == OUT_K_WRAP) && !p->begun && p->nest < 4) {
        p->nest++;                              /* {"function": {"name": ...}}, {"tool_call": {...}} */
        pn_out_skip(p, 1);
        p->state = JS_MEMBER;
        return OUT_AGAIN;
    }
    if (c == '[' && p->key == OUT_K_WRAP && !p->begun && !p->in_array) {
        p->in_array = true;                     /* {"tool_calls": [...]} */
        p->body = 1;
        p->nest = 0;
        pn_out_skip(p, 1);
        p->state = JS_START;
        return OUT_AGAIN;
    }
    pn_str_clear(&p->val);
    pn_out_scan_init(&p->scan);
    if (p->key == OUT_K_ARGS && !p->args_done && !p->args.len) {
        js_commit(p);
        p->state = c == '"' ? JS_ARGS_STRING : JS_ARGS;
        if (c == '"')
            js_begin_string(p);
        return OUT_AGAIN;
    }
    if ((p->key == OUT_K_NAME || p->key == OUT_K_ID) && c == '"') {
        if (p->key == OUT_K_NAME && p->name.len)
            return OUT_BAD;
        p->state = p->key == OUT_K_NAME ? JS_NAME : JS_ID;
        js_begin_string(p);
        return OUT_AGAIN;
    }
    if (p->key == OUT_K_NAME)
        return OUT_BAD;
    p->state = JS_OTHER;
    return OUT_AGAIN;
}

/* Arguments before the name are kept; after it they go out as they come. */
static out_step js_args(pn_out *p)
{
    if (p->begun) {
        out_step s = pn_out_raw_args(p);
        if (s == OUT_AGAIN) {
            p->args_done = true;
            p->state = JS_COMMA;
        }
        return s;
    }
    size_t n = pn_out_scan_run(&p->scan, out_text(p), out_left(p));
    pn_str_add(&p->args, out_text(p), n);
    pn_out_skip(p, n);
    if (p->scan.broken || p->args.len > OUT_HOLD_MAX)
        return OUT_BAD;
    if (!p->scan.done)
        return OUT_MORE;
    p->args_done = true;
    p->state = JS_COMMA;
    return OUT_AGAIN;
}

/* "{\"a\": 1}": a string that holds the arguments is opened. */
static out_step js_args_string(pn_out *p)
{
    out_step s = js_string(p, &p->args, p->begun ? SIZE_MAX : OUT_HOLD_MAX);
    p->any_param = p->any_param || p->args.len;
    if (s == OUT_AGAIN) {
        if (!p->any_param)
            pn_str_addz(&p->args, "{}");
        p->args_done = true;
        p->state = JS_COMMA;
    }
    if (p->begun) {
        out_args(p, pn_str_cstr(&p->args), p->args.len);
        pn_str_clear(&p->args);
    }
    return s;
}

static out_step js_other(pn_out *p)
{
    size_t n = pn_out_scan_run(&p->scan, out_text(p), out_left(p));
    pn_out_skip(p, n);
    if (p->scan.broken || p->raw.len > OUT_HOLD_MAX)
        return OUT_BAD;
    if (p->scan.done)
        p->state = JS_COMMA;
    return p->scan.done ? OUT_AGAIN : OUT_MORE;
}

/* The object that held the members is closed. */
static out_step js_close(pn_out *p)
{
    pn_out_skip(p, 1);
    if (p->nest) {
        p->nest--;
        p->state = JS_COMMA;
        return OUT_AGAIN;
    }
    if (!p->begun) {
        if (!p->name.len || (p->value_begun && !p->args_done) || (p->bare && !p->args_done && !pn_out_has_tool(p, p->name.data, p->name.len)))
            return OUT_BAD;
        js_commit(p);
        if (!p->args_done)
            out_argsz(p, "{}");
    } else if (!p->args_done) {
        out_argsz(p, "{}");
    }
    pn_out_end_call(p, true);
    p->state = JS_AFTER;
    return OUT_AGAIN;
}

static out_step js_comma(pn_out *p, char c)
{
    if (p->args_done)
        js_commit(p);
    if (c == '}')
        return js_close(p);
    if (c != ',')
        return OUT_BAD;
    pn_out_skip(p, 1);
    p->state = JS_MEMBER;
    return OUT_AGAIN;
}

/* ------------------------------------------------------------------------------------------
 * Around the objects
 * ------------------------------------------------------------------------------------------ */

/* ```json in front of the call, or ``` after it.  1 consumed, 0 none, -1 more. */
static int js_fence(pn_out *p)
{
    static const char *const fences[] = {"```json", "```"};
    for (size_t i = 0; i < PN_COUNT_OF(fences); i++) {
        int at = pn_out_at(p, 0, fences[i]);
        if (at < 0)
            return -1;
        if (at > 0) {
            pn_out_skip(p, strlen(fences[i]));
            return 1;
        }
    }
    return 0;
}

static out_step js_start(pn_out *p)
{
    if (!pn_out_blanks(p) || !out_left(p))
        return OUT_MORE;
    char c = out_text(p)[0];
    if (c == '{') {
        p->from_reasoning = p->in_reasoning;
        pn_out_skip(p, 1);
        p->state = JS_MEMBER;
        return OUT_AGAIN;
    }
    if (c == '[' && !p->in_array && !p->bare) {
        p->in_array = true;
        pn_out_skip(p, 1);
        return OUT_AGAIN;
    }
    if (c == '`' && !p->in_array && !p->fence && !p->bare) {
        int f = js_fence(p);
        p->fence = f > 0;
        return f < 0 ? OUT_MORE : f ? OUT_AGAIN : OUT_BAD;
    }
    if (c == '<' && strcmp(p->family->name, "hermes") == 0) {
        int at = pn_out_at(p, 0, "<function=");     /* a neighbour's syntax */
        if (at > 0) {
            p->grammar = OUT_XML;
            p->state = 0;
            return OUT_AGAIN;
        }
        return at < 0 ? OUT_MORE : OUT_BAD;
    }
    return OUT_BAD;
}

static void js_next(pn_out *p)
{
    uint8_t fence = p->fence;
    pn_out_new_call(p);
    p->fence = fence;
    p->state = JS_START;
}

/* After a call: another, the array's end, a fence's end, the closer. */
static out_step js_after(pn_out *p)
{
    bool next;
    if (!pn_out_blanks(p) || (!out_left(p) && !p->final))
        return OUT_MORE;
    char c = out_left(p) ? out_text(p)[0] : 0;
    if (c == '`' && p->fence) {
        int f = js_fence(p);
        p->fence = 0;
        return f < 0 ? (p->fence = 1, OUT_MORE) : f ? OUT_AGAIN : OUT_DONE;
    }
    if (p->in_array && (c == ',' || c == ']')) {
        pn_out_skip(p, 1);
        p->in_array = c == ',';
        p->listed = !p->in_array;
        if (c == ',')
            js_next(p);
        return OUT_AGAIN;
    }
    if (c == '}' && p->body && !p->in_array) {
        pn_out_skip(p, 1);                      /* of {"tool_calls": [...]} */
        p->body = 0;
        return OUT_AGAIN;
    }
    if (p->bare && c == ';') {
        pn_out_skip(p, 1);
        return OUT_AGAIN;
    }
    if (c == '{' && !p->listed) {               /* one on each line */
        js_next(p);
        return OUT_AGAIN;
    }
    return pn_out_section(p, NULL, &next);
}

/* ------------------------------------------------------------------------------------------
 * The step
 * ------------------------------------------------------------------------------------------ */

/* States in which white space is layout. */
static out_step js_layout(pn_out *p)
{
    if (!pn_out_blanks(p) || !out_left(p))
        return OUT_MORE;
    char c = out_text(p)[0];
    switch (p->state) {
    case JS_MEMBER:
        if (c == '}')
            return js_close(p);
        if (c != '"')
            return OUT_BAD;
        pn_str_clear(&p->val);
        js_begin_string(p);
        p->state = JS_KEY;
        return OUT_AGAIN;
    case JS_COLON:
        if (c != ':')
            return OUT_BAD;
        pn_out_skip(p, 1);
        p->state = JS_VALUE;
        return OUT_AGAIN;
    case JS_VALUE: return js_value(p);
    default: return js_comma(p, c);
    }
}

PN_INTERNAL out_step pn_out_json_step(pn_out *p)
{
    out_step s;
    switch (p->state) {
    case JS_START: return js_start(p);
    case JS_KEY:
        s = js_string(p, &p->val, OUT_NAME_MAX);
        return s == OUT_AGAIN ? js_key_done(p) : s;
    case JS_NAME:
        s = js_string(p, &p->name, OUT_NAME_MAX);
        if (s == OUT_AGAIN && !p->name.len)
            return OUT_BAD;
        if (s == OUT_AGAIN)
            p->state = JS_COMMA;
        return s;
    case JS_ID:
        s = js_string(p, &p->id, OUT_NAME_MAX);
        if (s == OUT_AGAIN)
            p->state = JS_COMMA;
        return s;
    case JS_ARGS: return js_args(p);
    case JS_ARGS_STRING: return js_args_string(p);
    case JS_OTHER: return js_other(p);
    case JS_AFTER: return js_after(p);
    default: return js_layout(p);
    }
}
