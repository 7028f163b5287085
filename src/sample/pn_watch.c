/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_watch.c - the readers pn_out_json.c, pn_out_named.c and pn_out_harmony.c from outside: only what makes
 * them begin a call.
 *
 * Where the two could differ, this one stays longer in the states that stop something.
 */
#include "sample/pn_watch.h"

enum { WATCH_TEXT, WATCH_LEAD, WATCH_MEMBER, WATCH_KEY, WATCH_COLON, WATCH_VALUE, WATCH_STRING, WATCH_NESTED, WATCH_SCALAR, WATCH_AFTER,
       WATCH_SEGMENT, WATCH_BRACE, WATCH_FIRST, WATCH_HEADER };

enum { WATCH_DEPTH_MAX = 200 };

static bool watch_is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

static void watch_push(pn_watch *w, char c)
{
    if (w->n_word == sizeof w->word)
        w->strange = true;
    else
        w->word[w->n_word++] = c;
}

static void watch_enter(pn_watch *w, uint8_t state)
{
    w->state = state;
    w->n_word = 0;
    w->escaped = w->strange = false;
}

static bool watch_is(const pn_watch *w, const char *text)
{
    return !w->strange && w->n_word == strlen(text) && memcmp(w->word, text, w->n_word) == 0;
}

PN_INTERNAL void pn_watch_start(pn_watch *w, pn_watch_kind kind)
{
    static const uint8_t first[] = {WATCH_TEXT, WATCH_LEAD, WATCH_SEGMENT, WATCH_FIRST};
    memset(w, 0, sizeof *w);
    w->kind = (uint8_t)kind;
    w->state = first[kind];
}

PN_INTERNAL void pn_watch_text(pn_watch *w) { watch_enter(w, WATCH_TEXT); }

/* ------------------------------------------------------------------------------------------
 * Bare objects
 * ------------------------------------------------------------------------------------------ */

static pn_watch_word watch_key_done(pn_watch *w)
{
    w->key = w->strange ? OUT_K_NONE : (uint8_t)pn_out_key_of(w->word, w->n_word);
    bool name = watch_is(w, "name");
    watch_enter(w, w->key == OUT_K_NONE ? WATCH_TEXT : WATCH_COLON);
    w->trigger = name && (w->members == 0 || (w->members == 1 && w->typed));
    return w->key == OUT_K_ARGS || w->key == OUT_K_WRAP ? PN_WATCH_STOP : PN_WATCH_ON;
}

static void watch_member_done(pn_watch *w) { w->members = PN_MIN(w->members + 1, 2); }

static pn_watch_word watch_string_done(pn_watch *w)
{
    w->typed = w->key == OUT_K_OTHER && w->members == 0 && watch_is(w, "function");
    w->state = WATCH_AFTER;                 /* word stays: the name */
    watch_member_done(w);
    if (w->key != OUT_K_NAME || w->strange)
        return PN_WATCH_ON;
    return w->trigger ? PN_WATCH_NAME : PN_WATCH_OTHER_NAME;
}

/* Inside a key, or a string that is a value.  An escape that could spell a letter may not come where the
 * letters count. */
static pn_watch_word watch_string(pn_watch *w, char c)
{
    bool counts = w->state == WATCH_KEY || w->key == OUT_K_NAME;
    if (w->escaped) {
        w->escaped = false;
        w->strange = true;
        return counts && (c == 'u' || c == '/') ? PN_WATCH_STOP : PN_WATCH_ON;
    }
    if (c == '\\')
        w->escaped = true;
    else if (c == '"')
        return w->state == WATCH_KEY ? watch_key_done(w) : watch_string_done(w);
    else
        watch_push(w, c);
    return PN_WATCH_ON;
}

static bool watch_is_scalar(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '+' || c == '.';
}

static pn_watch_word watch_value(pn_watch *w, char c)
{
    if (c == '"') {
        watch_enter(w, WATCH_STRING);
    } else if (c == '{' || c == '[') {
        watch_enter(w, WATCH_NESTED);
        w->depth = 1;
        return w->key == OUT_K_NAME ? PN_WATCH_STOP : PN_WATCH_ON;
    } else {
        watch_enter(w, watch_is_scalar(c) ? WATCH_SCALAR : WATCH_TEXT);
    }
    return PN_WATCH_ON;
}

static pn_watch_word watch_nested(pn_watch *w, char c)
{
    if (w->in_string) {
        bool ends = c == '"' && !w->escaped;
        w->escaped = c == '\\' && !w->escaped;
        w->in_string = !ends;
        return PN_WATCH_ON;
    }
    w->in_string = c == '"';
    if (c == '{' || c == '[')
        return w->depth++ < WATCH_DEPTH_MAX ? PN_WATCH_ON : PN_WATCH_STOP;
    if ((c == '}' || c == ']') && --w->depth == 0) {
        watch_member_done(w);
        w->state = WATCH_AFTER;
    }
    return PN_WATCH_ON;
}

static pn_watch_word watch_bare(pn_watch *w, char c)
{
    if (w->state == WATCH_KEY || w->state == WATCH_STRING)
        return watch_string(w, c);
    if (w->state == WATCH_NESTED)
        return watch_nested(w, c);
    if (w->state == WATCH_SCALAR && !watch_is_scalar(c)) {
        watch_member_done(w);
        w->state = WATCH_AFTER;
    }
    if (w->state == WATCH_SCALAR || watch_is_blank(c))
        return PN_WATCH_ON;
    switch (w->state) {
    case WATCH_LEAD: watch_enter(w, c == '{' ? WATCH_MEMBER : WATCH_TEXT); break;
    case WATCH_MEMBER: watch_enter(w, c == '"' ? WATCH_KEY : WATCH_TEXT); break;
    case WATCH_COLON: watch_enter(w, c == ':' ? WATCH_VALUE : WATCH_TEXT); break;
    case WATCH_VALUE: return watch_value(w, c);
    case WATCH_AFTER: watch_enter(w, c == ',' ? WATCH_MEMBER : WATCH_TEXT); break;
    default: break;
    }
    return PN_WATCH_ON;
}

/* ------------------------------------------------------------------------------------------
 * Segments
 * ------------------------------------------------------------------------------------------ */

/* The last bytes of the text, as many as `word` has room for. */
static void watch_shift(pn_watch *w, char c)
{
    if (w->n_word == sizeof w->word)
        memmove(w->word, w->word + 1, --w->n_word);
    w->word[w->n_word++] = c;
}

static bool watch_tail_is(const pn_watch *w, const char *text)
{
    size_t n = strlen(text);
    return w->n_word >= n && memcmp(w->word + w->n_word - n, text, n) == 0;
}

/* A name that is complete: "all" is no function. */
static void watch_segment_done(pn_watch *w)
{
    while (w->n_word && watch_is_blank(w->word[w->n_word - 1]))
        w->n_word--;
    size_t from = 0;
    while (from < w->n_word && watch_is_blank(w->word[from]))
        from++;
    bool none = w->strange || from == w->n_word || (w->n_word - from == 3 && memcmp(w->word + from, "all", 3) == 0);
    watch_enter(w, none ? WATCH_TEXT : WATCH_BRACE);
}

static pn_watch_word watch_segments(pn_watch *w, char c)
{
    switch (w->state) {
    case WATCH_SEGMENT:
        if (c == '\n')
            watch_segment_done(w);
        else
            watch_push(w, c);
        return PN_WATCH_ON;
    case WATCH_BRACE:
        if (watch_is_blank(c))
            return PN_WATCH_ON;
        watch_enter(w, WATCH_TEXT);
        if (c == '{' || c == '`')
            return PN_WATCH_STOP;
        /* fall through */
    default:
        watch_shift(w, c);
        if (watch_tail_is(w, ">>>"))
            watch_enter(w, WATCH_SEGMENT);
        return PN_WATCH_ON;
    }
}

/* ------------------------------------------------------------------------------------------
 * Headers
 * ------------------------------------------------------------------------------------------ */

/* The prompt ends inside a header; does the answer go on with it? */
static bool watch_first(const pn_watch *w)
{
    static const char *const starts[] = {" to=", "<|channel|>", " <|channel|>", "<|message|>", "<|start|>", "<|constrain|>", "assistant",
                                         "commentary", "analysis", "final", " json<|message|>"};
    for (size_t i = 0; i < PN_COUNT_OF(starts); i++)
        if (memcmp(w->word, starts[i], PN_MIN(w->n_word, strlen(starts[i]))) == 0)
            return true;
    return false;
}

static pn_watch_word watch_headers(pn_watch *w, char c)
{
    watch_shift(w, c);
    if (w->state == WATCH_FIRST && !watch_first(w))
        w->state = WATCH_TEXT;
    if (watch_tail_is(w, "<|start|>") || watch_tail_is(w, "<|channel|>"))
        w->state = WATCH_HEADER;
    if (w->state == WATCH_TEXT)
        return PN_WATCH_ON;
    if (watch_tail_is(w, "<|message|>"))
        watch_enter(w, WATCH_TEXT);
    return watch_tail_is(w, "to=") ? PN_WATCH_STOP : PN_WATCH_ON;
}

PN_INTERNAL pn_watch_word pn_watch_byte(pn_watch *w, char c)
{
    switch (w->kind) {
    case PN_WATCH_BARE: return w->state == WATCH_TEXT ? PN_WATCH_ON : watch_bare(w, c);
    case PN_WATCH_SEGMENTS: return watch_segments(w, c);
    case PN_WATCH_HEADERS: return watch_headers(w, c);
    default: return PN_WATCH_ON;
    }
}
