/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_tpl_lex.c - a template to tokens, with the white space rules of chat templates.
 *
 * Those rules are trim_blocks and lstrip_blocks, both on: the newline after "%}" or "#}" goes, and so
 * does the indentation in front of "{%" or "{#".  A "-" inside a tag strips everything on its side, a
 * "+" strips nothing.  One newline too many and a model sees a prompt it was never trained on.
 *
 * The whole text becomes one array of tokens, so that the parser may look ahead.  Tokens are stretches
 * of the source; TEXT tokens are what is printed, already stripped.
 */
#include "text/pn_tpl.h"

#include "base/pn_utf8.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct tpll_lexer {
    const pn_tpl *t;
    const char *s;
    size_t n, at;
    bool line_start;            /* what came before ended with a newline, or there was nothing */
    uint32_t nesting;           /* open brackets in a tag */
    tpl_toks *out;
    pn_err *err;
    pn_status st;
} tpll_lexer;

PN_INTERNAL uint32_t pn_tpl_line_of(const pn_tpl *t, size_t at)
{
    uint32_t line = 1;
    for (size_t i = 0; i < at && i < t->src_len; i++)
        line += t->src[i] == '\n';
    return line;
}

PN_INTERNAL pn_status pn_tpl_syntax(const pn_tpl *t, size_t at, pn_err *err, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    size_t begin = PN_MIN(at, t->src_len);
    while (begin > 0 && t->src[begin - 1] != '\n')
        begin--;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return pn_fail(err, PN_E_FORMAT, "template line %u, column %zu: %s", (unsigned)pn_tpl_line_of(t, at),
                   PN_MIN(at, t->src_len) - begin + 1, text);
}

static void tpll_fail(tpll_lexer *x, size_t at, const char *text)
{
    if (!x->st)
        x->st = pn_tpl_syntax(x->t, at, x->err, "%s", text);
}

static void tpll_push(tpll_lexer *x, tpl_tok_type type, size_t at, size_t len)
{
    tpl_toks *o = x->out;
    if (x->st)
        return;
    if (!pn_mem_grow(x->t->mem, PN_ACCT_MISC, (void **)&o->v, &o->cap, o->n + 1, sizeof *o->v)) {
        x->st = pn_fail_nomem(x->err, "the template's tokens", (o->n + 1) * sizeof *o->v);
        return;
    }
    o->v[o->n++] = (tpl_tok){(uint8_t)type, {0, 0}, (uint32_t)at, (uint32_t)len};
}

/* ------------------------------------------------------------------------------------------
 * Text between tags
 * ------------------------------------------------------------------------------------------ */

static bool tpll_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static size_t tpll_skip_space(const tpll_lexer *x, size_t at)
{
    while (at < x->n) {
        uint32_t cp;
        size_t used = pn_utf8_decode(x->s + at, x->n - at, &cp);
        if (!pn_tpl_space(cp))
            break;
        at += used;
    }
    return at;
}

/* The end of [begin, end) without the white space before it. */
static size_t tpll_rstrip(const tpll_lexer *x, size_t begin, size_t end)
{
    while (end > begin) {
        size_t k = end - 1;
        uint32_t cp;
        while (k > begin && ((uint8_t)x->s[k] & 0xC0) == 0x80)
            k--;
        pn_utf8_decode(x->s + k, end - k, &cp);
        if (!pn_tpl_space(cp))
            break;
        end = k;
    }
    return end;
}

/* Text [begin, end) before the tag whose sign ('-', '+' or another) is `sign`. */
static void tpll_text(tpll_lexer *x, size_t begin, size_t end, char sign, bool indents)
{
    if (sign == '-') {
        end = tpll_rstrip(x, begin, end);
    } else if (sign != '+' && indents) {
        size_t line = end;
        while (line > begin && x->s[line - 1] != '\n')
            line--;
        if ((line > begin || x->line_start) && tpll_rstrip(x, line, end) == line)
            end = line;
    }
    if (end > begin)
        tpll_push(x, TPL_T_TEXT, begin, end - begin);
}

/* Where "{%", "{{" or "{#" comes next, or the end. */
static size_t tpll_next_tag(const tpll_lexer *x, size_t at)
{
    while (at + 1 < x->n) {
        const char *p = memchr(x->s + at, '{', x->n - 1 - at);
        if (!p)
            break;
        at = (size_t)(p - x->s);
        if (p[1] == '%' || p[1] == '{' || p[1] == '#')
            return at;
        at++;
    }
    return x->n;
}

/* After the end of a tag: what its sign takes away.  newline: a block or comment, not a variable. */
static void tpll_after(tpll_lexer *x, char sign, bool newline)
{
    size_t from = x->at;
    if (sign == '-')
        x->at = tpll_skip_space(x, x->at);
    else if (newline && sign != '+' && x->at < x->n && x->s[x->at] == '\n')
        x->at++;
    x->line_start = x->at > from && x->s[x->at - 1] == '\n';
}

static void tpll_comment(tpll_lexer *x, size_t open)
{
    for (size_t i = open + 2; i + 1 < x->n; i++) {
        if (x->s[i] != '#' || x->s[i + 1] != '}')
            continue;
        char sign = i > open + 2 ? x->s[i - 1] : 0;
        x->at = i + 2;
        tpll_after(x, sign == '-' || sign == '+' ? sign : 0, true);
        return;
    }
    tpll_fail(x, open, "a comment without its end: expected \"#}\"");
}

/* "{%", a sign, white space, `word`, white space, a sign, "%}": where it ends and its signs. */
static bool tpll_is_tag(const tpll_lexer *x, size_t at, const char *word, char sign[2], size_t *end)
{
    size_t n = strlen(word);
    if (x->n - at < 4 || x->s[at] != '{' || x->s[at + 1] != '%')
        return false;
    at += 2;
    sign[0] = x->s[at] == '-' || x->s[at] == '+' ? x->s[at++] : 0;
    at = tpll_skip_space(x, at);
    if (x->n - at < n || memcmp(x->s + at, word, n) != 0)
        return false;
    at = tpll_skip_space(x, at + n);
    sign[1] = at < x->n && (x->s[at] == '-' || x->s[at] == '+') ? x->s[at++] : 0;
    if (x->n - at < 2 || x->s[at] != '%' || x->s[at + 1] != '}')
        return false;
    *end = at + 2;
    return true;
}

/* {% raw %}: everything up to {% endraw %} is text.  The newline after {% raw %} stays (so says the
 * reference). */
static bool tpll_raw(tpll_lexer *x, size_t open)
{
    char sign[2], end_sign[2];
    size_t body, end;
    if (!tpll_is_tag(x, open, "raw", sign, &body))
        return false;
    x->at = body;
    tpll_after(x, sign[1], false);
    size_t begin = x->at;
    for (size_t i = begin; i < x->n; i++) {
        if (!tpll_is_tag(x, i, "endraw", end_sign, &end))
            continue;
        tpll_text(x, begin, i, end_sign[0], true);
        x->at = end;
        tpll_after(x, end_sign[1], true);
        return true;
    }
    tpll_fail(x, open, "expected {% endraw %}, found the end of the template");
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Inside a tag
 * ------------------------------------------------------------------------------------------ */

static bool tpll_word_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (uint8_t)c >= 0x80;
}

static bool tpll_digit(char c) { return c >= '0' && c <= '9'; }

static size_t tpll_digits(const tpll_lexer *x, size_t at)
{
    while (at < x->n && (tpll_digit(x->s[at]) || (x->s[at] == '_' && at + 1 < x->n && tpll_digit(x->s[at + 1]))))
        at++;
    return at;
}

/* 1  1_000  1.5  1e3  1.5e-3; "1.x" is an attribute of 1. */
static void tpll_number(tpll_lexer *x)
{
    size_t begin = x->at, at = tpll_digits(x, begin);
    bool is_float = false;
    if (at + 1 < x->n && x->s[at] == '.' && tpll_digit(x->s[at + 1])) {
        at = tpll_digits(x, at + 1);
        is_float = true;
    }
    if (at < x->n && (x->s[at] == 'e' || x->s[at] == 'E')) {
        size_t e = at + 1;
        if (e < x->n && (x->s[e] == '+' || x->s[e] == '-'))
            e++;
        if (e < x->n && tpll_digit(x->s[e])) {
            at = tpll_digits(x, e);
            is_float = true;
        }
    }
    tpll_push(x, is_float ? TPL_T_FLOAT : TPL_T_INT, begin, at - begin);
    x->at = at;
}

static void tpll_string(tpll_lexer *x)
{
    char quote = x->s[x->at];
    size_t begin = x->at + 1, at = begin;
    while (at < x->n && x->s[at] != quote)
        at += x->s[at] == '\\' ? 2 : 1;
    if (at >= x->n) {
        tpll_fail(x, begin - 1, "a string without its end");
        return;
    }
    tpll_push(x, TPL_T_STRING, begin, at - begin);
    x->at = at + 1;
}

static void tpll_operator(tpll_lexer *x)
{
    static const char two[][3] = {"==", "!=", ">=", "<=", "//", "**"};
    char c = x->s[x->at], c2 = x->at + 1 < x->n ? x->s[x->at + 1] : 0;
    size_t len = 1;
    for (size_t i = 0; i < PN_COUNT_OF(two); i++)
        if (c == two[i][0] && c2 == two[i][1])
            len = 2;
    if (len == 1 && (c == 0 || !strchr("+-*/%~[](){}<>=.:|,;", c))) {
        tpll_fail(x, x->at, "a character that has no meaning here");
        return;
    }
    if (c == '(' || c == '[' || c == '{')
        x->nesting++;
    if (c == ')' || c == ']' || c == '}') {
        if (x->nesting == 0) {
            tpll_fail(x, x->at, "a closing bracket that nothing opened");
            return;
        }
        x->nesting--;
    }
    tpll_push(x, TPL_T_OP, x->at, len);
    if (!x->st) {
        tpl_tok *tok = &x->out->v[x->out->n - 1];
        tok->op[0] = c;
        tok->op[1] = len == 2 ? c2 : 0;
    }
    x->at += len;
}

/* Does the tag end here?  close: '%' or '}'. */
static bool tpll_tag_end(tpll_lexer *x, char close)
{
    size_t at = x->at;
    char sign = 0;
    if (x->nesting)
        return false;
    if (x->s[at] == '-' || (x->s[at] == '+' && close == '%'))
        sign = x->s[at++];
    if (x->n - at < 2 || x->s[at] != close || x->s[at + 1] != '}')
        return false;
    tpll_push(x, close == '%' ? TPL_T_BLOCK_END : TPL_T_VAR_END, x->at, at + 2 - x->at);
    x->at = at + 2;
    tpll_after(x, sign, close == '%');
    return true;
}

static void tpll_tag(tpll_lexer *x, size_t open)
{
    char close = x->s[open + 1] == '%' ? '%' : '}';
    tpll_push(x, close == '%' ? TPL_T_BLOCK : TPL_T_VAR, open, 2);
    x->at = open + 2;
    if (x->at < x->n && (x->s[x->at] == '-' || x->s[x->at] == '+'))
        x->at++;
    x->nesting = 0;
    while (!x->st) {
        while (x->at < x->n && tpll_ascii_space(x->s[x->at]))
            x->at++;
        if (x->at >= x->n) {
            tpll_fail(x, open, close == '%' ? "expected \"%}\", found the end of the template"
                                            : "expected \"}}\", found the end of the template");
            return;
        }
        if (tpll_tag_end(x, close))
            return;
        char c = x->s[x->at];
        if (c == '"' || c == '\'') {
            tpll_string(x);
        } else if (tpll_digit(c)) {
            tpll_number(x);
        } else if (tpll_word_byte(c)) {
            size_t begin = x->at;
            while (x->at < x->n && tpll_word_byte(x->s[x->at]))
                x->at++;
            tpll_push(x, TPL_T_NAME, begin, x->at - begin);
        } else {
            tpll_operator(x);
        }
    }
}

PN_INTERNAL pn_status pn_tpl_lex(const pn_tpl *t, tpl_toks *out, pn_err *err)
{
    tpll_lexer x = {t, t->src, t->src_len, 0, true, 0, out, err, PN_OK};
    while (!x.st && x.at < x.n) {
        size_t begin = x.at, open = tpll_next_tag(&x, begin);
        if (open == x.n) {
            tpll_push(&x, TPL_T_TEXT, begin, x.n - begin);
            break;
        }
        char sign = open + 2 < x.n ? x.s[open + 2] : 0;
        tpll_text(&x, begin, open, sign, x.s[open + 1] != '{');
        if (x.s[open + 1] == '#')
            tpll_comment(&x, open);
        else if (x.s[open + 1] == '{' || !tpll_raw(&x, open))
            tpll_tag(&x, open);
    }
    tpll_push(&x, TPL_T_EOF, x.n, 0);
    return x.st;
}
