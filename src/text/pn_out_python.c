/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_out_python.c - calls written as Python, [f(a='x', b=3), g()], and as Gemma's call:f{a:<|"|>x<|"|>}.
 *
 * Both are literals that differ from JSON in small things: quotes, bare keys, '=' for ':', True and
 * None, tuples.  One machine reads all of them byte by byte and writes JSON, so arguments stream
 * without being held.  The arguments of a call are an object whose bracket is '('.
 *
 *     VALUE -> STRING | WORD | container -> KEY or VALUE -> ... -> AFTER -> , or closer
 */
#include "text/pn_out_parts.h"

#include "base/pn_utf8.h"

#define PY_QUOTE "<|\"|>"               /* Gemma's quote, one token */

enum { LIT_VALUE, LIT_KEY, LIT_KEY_WORD, LIT_COLON, LIT_STRING, LIT_ESCAPE, LIT_HEX, LIT_WORD, LIT_AFTER, LIT_END };

/* ------------------------------------------------------------------------------------------
 * The literal machine
 * ------------------------------------------------------------------------------------------ */

static bool lit_in_object(const out_lit *l) { return l->depth && l->is_object[l->depth - 1]; }

static bool lit_open(out_lit *l, char c, pn_str *out)
{
    bool object = c == '{' || c == 'c';         /* 'c': the parenthesis of a call */
    if (l->depth == OUT_DEPTH_MAX)
        return false;
    l->is_object[l->depth] = object;
    l->close[l->depth++] = c == '{' ? '}' : c == '[' ? ']' : ')';
    if (out)
        pn_str_addc(out, object ? '{' : '[');
    l->first = true;
    l->state = object ? LIT_KEY : LIT_VALUE;
    return true;
}

PN_INTERNAL void pn_out_lit_init(out_lit *l, char open)
{
    memset(l, 0, sizeof *l);
    l->state = LIT_VALUE;
    if (open)
        (void)lit_open(l, open == '(' ? 'c' : open, NULL);
}

static void lit_value_done(out_lit *l) { l->state = l->depth ? LIT_AFTER : LIT_END; }

static void lit_close(out_lit *l, pn_str *out)
{
    pn_str_addc(out, l->is_object[--l->depth] ? '}' : ']');
    l->first = false;                           /* of the container around it */
    lit_value_done(l);
}

/* A comma belongs in front of the next member. */
static void lit_separate(out_lit *l, pn_str *out)
{
    if (l->depth && !l->first)
        pn_str_addz(out, ", ");
    l->first = false;
}

static void lit_put(pn_str *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\')
            pn_str_addc(out, '\\');
        if (c == '\n')
            pn_str_addz(out, "\\n");
        else if (c == '\r')
            pn_str_addz(out, "\\r");
        else if (c == '\t')
            pn_str_addz(out, "\\t");
        else if (c < 0x20)
            pn_str_addf(out, "\\u%04x", c);
        else
            pn_str_addc(out, (char)c);
    }
}

static void lit_put_code(pn_str *out, uint32_t cp)
{
    char b[4];
    lit_put(out, b, pn_utf8_encode(cp, b));
}

/* A number, True, None, a bare name; false: no value. */
static bool lit_word_value(out_lit *l, pn_str *out)
{
    static const char *const words[][2] = {
        {"True", "true"}, {"False", "false"}, {"None", "null"}, {"true", "true"}, {"false", "false"}, {"null", "null"},
    };
    double v;
    const char *end;
    size_t n = l->word_len;
    for (size_t i = 0; i < PN_COUNT_OF(words); i++)
        if (n == strlen(words[i][0]) && memcmp(l->word, words[i][0], n) == 0) {
            pn_str_addz(out, words[i][1]);
            return true;
        }
    const char *s = l->word;
    if (n && s[0] == '+') {
        s++;
        n--;
    }
    if (!n || !pn_parse_f64(s, s + n, &v, &end) || end != s + n)
        return false;
    const char *digits = s + (s[0] == '-');
    bool plain = digits < s + n && digits[0] >= '0' && digits[0] <= '9' && s[n - 1] != '.' &&
                 !(digits[0] == '0' && digits + 1 < s + n && digits[1] >= '0' && digits[1] <= '9');
    for (size_t i = 0; i + 1 < n; i++)          /* "1.e5" is Python's, not JSON's */
        plain = plain && !(s[i] == '.' && (s[i + 1] < '0' || s[i + 1] > '9'));
    if (plain)
        pn_str_add(out, s, n);
    else
        pn_json_write_f64(out, v);
    return true;
}

static bool lit_is_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' ||
           c == '+' || c == '.' || c == '$' || (unsigned char)c >= 0x80;
}

/* The bytes of a quote at s: 0 none, -1 perhaps a longer one. */
static int lit_quote(const char *s, size_t n, bool final)
{
    if (s[0] == '<') {
        size_t k = PN_MIN(n, sizeof PY_QUOTE - 1);
        if (memcmp(s, PY_QUOTE, k) != 0)
            return 0;
        return k == sizeof PY_QUOTE - 1 ? (int)k : final ? 0 : -1;
    }
    if (s[0] != '"' && s[0] != '\'')
        return 0;
    if (n >= 2 && s[1] != s[0])
        return 1;
    if (n >= 3)
        return s[2] == s[0] ? 3 : 1;
    return final ? 1 : -1;
}

static void lit_begin_string(out_lit *l, char c, int len, pn_str *out)
{
    l->quote = len == 5 ? 'g' : c;
    l->n_quote = (uint8_t)(len == 3 ? 3 : 1);
    l->high = 0;
    pn_str_addc(out, '"');
    l->state = LIT_STRING;
}

static void lit_end_string(out_lit *l, bool key, pn_str *out)
{
    if (l->high)
        lit_put_code(out, PN_UTF8_BAD);
    l->high = 0;
    pn_str_addc(out, '"');
    if (key)
        l->state = LIT_COLON;
    else
        lit_value_done(l);
}

/* Is the string being read a key?  In an object no value begins before its colon. */
static bool lit_reads_key(const out_lit *l) { return l->word_len == 1 && l->word[0] == 'k'; }

static size_t lit_string(out_lit *l, const char *s, size_t n, bool final, pn_str *out, bool *wait)
{
    size_t close = l->quote == 'g' ? sizeof PY_QUOTE - 1 : l->n_quote;
    char q = l->quote == 'g' ? '<' : l->quote;
    size_t i = 0;
    while (i < n && s[i] != q && (s[i] != '\\' || l->quote == 'g'))
        i++;
    if (i) {
        if (l->high)
            lit_put_code(out, PN_UTF8_BAD);
        l->high = 0;
        lit_put(out, s, i);
        return i;
    }
    if (s[0] == '\\' && q != '<') {
        l->state = LIT_ESCAPE;
        return 1;
    }
    size_t k = PN_MIN(n, close), same = 0;
    const char *whole = q == '<' ? PY_QUOTE : NULL;
    while (same < k && s[same] == (whole ? whole[same] : q))
        same++;
    if (same == close) {
        lit_end_string(l, lit_reads_key(l), out);
        return close;
    }
    if (same == n && !final) {
        *wait = true;
        return 0;
    }
    lit_put(out, s, 1);
    return 1;
}

static void lit_hex_done(out_lit *l, pn_str *out)
{
    uint32_t c = l->code;
    l->state = LIT_STRING;
    if (l->high && c >= 0xDC00 && c < 0xE000) {
        lit_put_code(out, 0x10000 + ((l->high - 0xD800) << 10) + (c - 0xDC00));
        l->high = 0;
        return;
    }
    if (l->high)
        lit_put_code(out, PN_UTF8_BAD);
    l->high = 0;
    if (c >= 0xD800 && c < 0xDC00)
        l->high = c;
    else
        lit_put_code(out, c);
}

static void lit_escape(out_lit *l, char c, pn_str *out)
{
    static const char from[] = "nrtbfva0", to[] = "\n\r\t\b\f\v\a";
    const char *at = memchr(from, c, sizeof from - 1);
    l->state = LIT_STRING;
    if (c == 'x' || c == 'u' || c == 'U') {
        l->n_hex = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        l->code = 0;
        l->state = LIT_HEX;
        return;
    }
    if (l->high)
        lit_put_code(out, PN_UTF8_BAD);
    l->high = 0;
    if (c == '\n')                              /* a line that goes on */
        return;
    if (at)
        lit_put(out, &to[at - from], 1);
    else if (c == '\\' || c == '\'' || c == '"' || c == '/')
        lit_put(out, &c, 1);
    else {
        lit_put(out, "\\", 1);
        lit_put(out, &c, 1);
    }
}

static bool lit_hex(out_lit *l, char c, pn_str *out)
{
    int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (v < 0)
        return false;
    l->code = l->code << 4 | (uint32_t)v;
    if (--l->n_hex == 0)
        lit_hex_done(l, out);
    return true;
}

/* The start of a value or of a key. */
static size_t lit_start(out_lit *l, const char *s, size_t n, bool final, pn_str *out, bool *wait, bool *bad)
{
    bool key = l->state == LIT_KEY;
    if (l->depth && s[0] == l->close[l->depth - 1] && (key || !lit_in_object(l))) {
        lit_close(l, out);                      /* empty, or after a last comma */
        return 1;
    }
    int q = lit_quote(s, n, final);
    if (q < 0) {
        *wait = true;
        return 0;
    }
    if (key || !lit_in_object(l))
        lit_separate(l, out);
    if (q == 3 && key)
        q = 1;
    if (q) {
        l->word_len = key;
        l->word[0] = 'k';
        lit_begin_string(l, s[0], q, out);
        return (size_t)q;
    }
    if (!key && (s[0] == '{' || s[0] == '[' || s[0] == '(')) {
        *bad = !lit_open(l, s[0], out);
        return 1;
    }
    l->word_len = 0;
    l->state = key ? LIT_KEY_WORD : LIT_WORD;
    if (key)
        pn_str_addc(out, '"');
    else
        *bad = !lit_is_word(s[0]);
    return 0;
}

/* A key without quotes ends at its colon or at white space.  Byte by byte, so that where the key breaks
 * does not depend on the pieces. */
static size_t lit_key_word(out_lit *l, char c, pn_str *out, bool *bad)
{
    if (l->word_len && (c == ':' || c == '=' || out_is_blank(c))) {
        pn_str_addc(out, '"');
        l->state = LIT_COLON;
        return 0;
    }
    if (++l->word_len > OUT_NAME_MAX || !c || strchr(":=,}])({[\"'", c) || out_is_blank(c)) {
        *bad = true;
        return 0;
    }
    lit_put(out, &c, 1);
    return 1;
}

/* What the word is gets decided without consuming anything. */
static void lit_word_end(out_lit *l, pn_str *out, bool *bad)
{
    *bad = !lit_word_value(l, out);
    if (*bad)
        pn_str_add(out, l->word, l->word_len);  /* consumed already, so it goes where it stood */
    lit_value_done(l);
}

static size_t lit_word(out_lit *l, const char *s, size_t n, pn_str *out, bool *bad)
{
    size_t i = 0;
    while (i < n && lit_is_word(s[i]) && l->word_len < sizeof l->word)
        l->word[l->word_len++] = s[i++];
    if (!i)
        lit_word_end(l, out, bad);
    return i;
}

static size_t lit_after(out_lit *l, char c, pn_str *out, bool *bad)
{
    if (c == ',')
        l->state = lit_in_object(l) ? LIT_KEY : LIT_VALUE;
    else if (l->depth && c == l->close[l->depth - 1])
        lit_close(l, out);
    else
        *bad = true;
    return 1;
}

static size_t lit_step(out_lit *l, const char *s, size_t n, bool final, pn_str *out, bool *wait, bool *bad)
{
    bool layout = l->state == LIT_VALUE || l->state == LIT_KEY || l->state == LIT_COLON || l->state == LIT_AFTER;
    if (layout && out_is_blank(s[0]))
        return 1;
    switch (l->state) {
    case LIT_VALUE: case LIT_KEY: return lit_start(l, s, n, final, out, wait, bad);
    case LIT_KEY_WORD: return lit_key_word(l, s[0], out, bad);
    case LIT_COLON:
        *bad = s[0] != ':' && s[0] != '=';
        pn_str_addz(out, ": ");
        l->state = LIT_VALUE;
        return 1;
    case LIT_STRING: return lit_string(l, s, n, final, out, wait);
    case LIT_ESCAPE: lit_escape(l, s[0], out); return 1;
    case LIT_HEX:
        *bad = !lit_hex(l, s[0], out);
        return 1;
    case LIT_WORD: return lit_word(l, s, n, out, bad);
    default: return lit_after(l, s[0], out, bad);
    }
}

PN_INTERNAL size_t pn_out_lit_run(out_lit *l, const char *text, size_t n, bool final, pn_str *out, bool *done, bool *bad)
{
    size_t i = 0;
    bool wait = false;
    *bad = false;
    while (i < n && l->state != LIT_END) {
        size_t used = lit_step(l, text + i, n - i, final, out, &wait, bad);
        if (wait || *bad)
            break;
        i += used;
    }
    if (final && i == n && l->state == LIT_WORD && !*bad)
        lit_word_end(l, out, bad);
    *done = l->state == LIT_END && !*bad;
    return i;
}

/* ------------------------------------------------------------------------------------------
 * Calls
 * ------------------------------------------------------------------------------------------ */

enum { PY_START, PY_NAME, PY_ARGS, PY_AFTER };

static bool py_is_name(const pn_str *s)
{
    if (!s->len)
        return false;
    for (size_t i = 0; i < s->len; i++)
        if (!lit_is_word(s->data[i]) && s->data[i] != ':' && s->data[i] != '/')
            return false;
    return true;
}

/* Arguments up to their closing bracket. */
static out_step py_args(pn_out *p)
{
    bool done, bad;
    pn_str_clear(&p->val);
    size_t n = pn_out_lit_run(&p->lit, out_text(p), out_left(p), p->final, &p->val, &done, &bad);
    out_args(p, pn_str_cstr(&p->val), p->val.len);
    pn_str_clear(&p->val);
    pn_out_skip(p, n);
    if (bad)
        return OUT_BAD;
    if (!done)
        return n ? OUT_AGAIN : OUT_MORE;
    pn_out_end_call(p, true);
    p->state = PY_AFTER;
    return OUT_AGAIN;
}

/* The name up to the bracket that opens the arguments. */
static out_step py_name(pn_out *p, const char *bracket)
{
    int m = pn_out_until(p, &bracket, 1, &p->name, OUT_NAME_MAX);
    if (m == -1)
        return OUT_MORE;
    while (p->name.len && out_is_blank(p->name.data[p->name.len - 1]))
        p->name.len--;
    if (m < 0 || !py_is_name(&p->name))
        return OUT_BAD;
    pn_out_begin_call(p);
    pn_out_skip(p, 1);
    out_argsz(p, "{");
    pn_out_lit_init(&p->lit, bracket[0]);
    p->state = PY_ARGS;
    return OUT_AGAIN;
}

PN_INTERNAL out_step pn_out_python_step(pn_out *p)
{
    const char *s;
    bool next;
    switch (p->state) {
    case PY_START:
        if (!pn_out_blanks(p))
            return OUT_MORE;
        if (out_left(p) && out_text(p)[0] == '{') {     /* some write JSON instead */
            pn_out_json_init(p, false);
            p->grammar = OUT_JSON;
            return OUT_AGAIN;
        }
        if (out_left(p) >= 1 && out_text(p)[0] == '[') {
            pn_out_skip(p, 1);
            p->in_array = true;
        }
        p->state = PY_NAME;
        return OUT_AGAIN;
    case PY_NAME:
        if (!p->name.len) {
            if (!pn_out_blanks(p))
                return OUT_MORE;
            if (!out_left(p))
                return OUT_MORE;
            s = out_text(p);
            if (s[0] == ']' && p->n_calls && p->in_array)
                p->state = PY_AFTER;
            else if (s[0] == '{' && p->in_array) {      /* [{"name": ...}] */
                pn_out_json_init(p, false);
                p->in_array = true;
                p->grammar = OUT_JSON;
                return OUT_AGAIN;
            }
            if (p->state == PY_AFTER)
                return OUT_AGAIN;
        }
        return py_name(p, "(");
    case PY_ARGS: return py_args(p);
    default:
        if (!pn_out_blanks(p) || (!out_left(p) && !p->final))
            return OUT_MORE;
        s = out_text(p);
        if (out_left(p) && s[0] == ',' && p->in_array) {
            pn_out_skip(p, 1);
            p->from_reasoning = p->in_reasoning;
            pn_out_new_call(p);
            p->state = PY_NAME;
            return OUT_AGAIN;
        }
        if (out_left(p) && s[0] == ']' && p->in_array) {
            pn_out_skip(p, 1);
            p->in_array = false;
            return OUT_AGAIN;
        }
        return pn_out_section(p, NULL, &next);
    }
}

PN_INTERNAL out_step pn_out_gemma_step(pn_out *p)
{
    bool next;
    int at;
    switch (p->state) {
    case PY_START:
        if (!pn_out_blanks(p))
            return OUT_MORE;
        at = pn_out_at(p, 0, "call:");
        if (at <= 0)
            return at ? OUT_MORE : OUT_BAD;
        pn_out_skip(p, 5);
        p->state = PY_NAME;
        return OUT_AGAIN;
    case PY_NAME: return py_name(p, "{");
    case PY_ARGS: return py_args(p);
    default: return pn_out_section(p, NULL, &next);
    }
}

/* ------------------------------------------------------------------------------------------
 * <|python_tag|>: name.call(k="v"), {"name": ...}, or a program
 * ------------------------------------------------------------------------------------------ */

enum { CODE_START, CODE_HEAD, CODE_TEXT };

static bool code_is_call(const pn_out *p, size_t *len, bool *wait)
{
    const char *s = out_text(p);
    size_t n = 0, left = out_left(p);
    while (n < left && n < 64 && (lit_is_word(s[n]) && s[n] != '.'))
        n++;
    *len = n;
    int at = n && n < 64 ? pn_out_at(p, n, ".call(") : 0;
    *wait = at < 0 || (n == left && !p->final && n < 64);
    return at > 0;
}

PN_INTERNAL out_step pn_out_code_step(pn_out *p)
{
    size_t n;
    bool wait;
    if (p->state == CODE_START) {
        if (!pn_out_blanks(p) || !out_left(p))
            return OUT_MORE;
        if (out_text(p)[0] == '{') {
            p->grammar = OUT_JSON;
            pn_out_json_init(p, false);
            return OUT_AGAIN;
        }
        p->state = CODE_HEAD;
    }
    if (p->state == CODE_HEAD) {
        bool call = code_is_call(p, &n, &wait);
        if (wait)
            return OUT_MORE;
        if (call) {
            pn_str_add(&p->name, out_text(p), n);
            pn_out_skip(p, n + 5);
            p->grammar = OUT_PYTHON;
            p->state = PY_ARGS;
            pn_out_begin_call(p);
            pn_out_skip(p, 1);
            out_argsz(p, "{");
            pn_out_lit_init(&p->lit, '(');
            return OUT_AGAIN;
        }
        pn_str_addz(&p->name, "python");
        pn_out_begin_call(p);
        out_argsz(p, "{\"code\": \"");
        p->state = CODE_TEXT;
    }
    /* A program has no end but the output's: end markers are looked for there. */
    static const char *const ends[] = {"<|eom_id|>", "<|eot_id|>"};
    int which;
    n = pn_out_find_mark(p, ends, PN_COUNT_OF(ends), &which);
    pn_out_escape(p, out_text(p), n);
    pn_out_skip(p, n);
    if (which < 0)
        return OUT_MORE;
    pn_out_code_finish(p);
    pn_out_end_call(p, true);
    pn_out_skip(p, strlen(ends[which]));
    return OUT_DONE;
}

PN_INTERNAL void pn_out_code_finish(pn_out *p) { out_argsz(p, "\"}"); }

#undef PY_QUOTE
