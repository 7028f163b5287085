/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_out_harmony.c - outputs made of messages with headers (gpt-oss, and Muse in part).
 *
 *     <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{...}<|call|>
 *     <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
 *
 * The recipient may stand in the part of the role or of the channel; it decides before the channel
 * does: functions.f is a call, whatever the channel.  Muse sends its reasoning to "self".  The prompt
 * ends inside a header, so an output that does not go on with one is plain text.
 */
#include "text/pn_out_parts.h"

enum { HM_MARK, HM_FIRST, HM_HEADER, HM_VALUE, HM_ARGS };

#define HM_MESSAGE "<|message|>"
#define HM_CHANNEL "<|channel|>"

static out_step hm_first(pn_out *p)
{
    static const char *const starts[] = {
        " to=", HM_CHANNEL, " " HM_CHANNEL, HM_MESSAGE, "<|start|>", "<|constrain|>", "assistant", "commentary",
        "analysis", "final", " json" HM_MESSAGE,
    };
    bool wait = !out_left(p);
    for (size_t i = 0; i < PN_COUNT_OF(starts); i++) {
        int at = pn_out_at(p, 0, starts[i]);
        wait = wait || at < 0;
        if (at > 0) {
            p->state = HM_MARK;
            return OUT_AGAIN;
        }
    }
    return wait ? OUT_MORE : OUT_BAD;
}

/* A word of the header: from its end up to a blank or a marker. */
static pn_bytes hm_word(pn_bytes h, const char *after)
{
    size_t n = strlen(after);
    pn_bytes w = {NULL, 0};
    for (size_t i = 0; i + n <= h.len; i++) {
        if (memcmp(h.data + i, after, n) != 0)
            continue;
        w.data = h.data + i + n;
        w.len = 0;
        while (i + n + w.len < h.len && !out_is_blank(w.data[w.len]) && w.data[w.len] != '<')
            w.len++;
    }
    return w;
}

static bool hm_same(pn_bytes w, const char *text) { return w.len == strlen(text) && memcmp(w.data, text, w.len) == 0; }

static bool hm_call(pn_out *p, pn_bytes to)
{
    if (!to.len || to.len > OUT_NAME_MAX || p->params.no_calls || p->family->grammar != OUT_HARMONY)
        return false;
    if (to.len > 10 && memcmp(to.data, "functions.", 10) == 0) {
        to.data += 10;
        to.len -= 10;
    } else if (!pn_out_has_tool(p, to.data, to.len)) {
        return false;
    }
    pn_str_add(&p->name, to.data, to.len);
    return true;
}

static void hm_content(pn_out *p)
{
    if (p->in_reasoning)
        pn_out_think(p, false);
    if (!p->any_content)
        return;
    pn_str_clear(&p->blank[0]);                 /* messages stand on lines of their own */
    pn_out_put_blank(p, 0, "\n", 1, out_offset(p));
    p->drop_lead = false;
}

static out_step hm_header(pn_out *p)
{
    const char *mark = HM_MESSAGE;
    int m = pn_out_until(p, &mark, 1, &p->val, 2 * OUT_NAME_MAX);
    if (m == -1)
        return OUT_MORE;
    if (m < 0)
        return OUT_BAD;
    pn_out_skip(p, sizeof HM_MESSAGE - 1);
    pn_bytes h = {pn_str_cstr(&p->val), p->val.len}, to = hm_word(h, "to="), channel = hm_word(h, HM_CHANNEL);
    if (hm_call(p, to)) {
        pn_out_begin_call(p);
        pn_str_clear(&p->val);
        pn_out_scan_init(&p->scan);
        p->state = HM_VALUE;
        return OUT_AGAIN;
    }
    bool thought = hm_same(channel, "analysis") || hm_same(h, "analysis") || hm_same(to, "self");
    if (thought && !p->params.no_reasoning)
        pn_out_think(p, true);
    else
        hm_content(p);
    return OUT_DONE;
}

/* Arguments as they should be: one JSON value, in whose strings markers are text. */
static out_step hm_value(pn_out *p)
{
    if (!p->any_param) {
        if (!pn_out_blanks(p) || !out_left(p))
            return OUT_MORE;
        p->any_param = out_text(p)[0] == '{';
        if (!p->any_param) {
            p->state = HM_ARGS;
            return OUT_AGAIN;
        }
    }
    out_step s = pn_out_raw_args(p);
    if (s != OUT_MORE)
        p->state = HM_ARGS;
    return s == OUT_BAD ? OUT_AGAIN : s;
}

/* The message is the arguments, white space around them apart. */
static out_step hm_args(pn_out *p)
{
    static const char *const ends[] = {"<|call|>", "<|end|>", "<|return|>", "<|start|>", HM_CHANNEL};
    int which;
    size_t n = pn_out_find_mark(p, ends, PN_COUNT_OF(ends), &which), body = n, from = 0;
    const char *s = out_text(p);
    while (!p->any_param && from < n && out_is_blank(s[from]))
        from++;
    while (body > from && out_is_blank(s[body - 1]))
        body--;
    if (body > from) {
        out_args(p, pn_str_cstr(&p->val), p->val.len);
        pn_str_clear(&p->val);
        out_args(p, s + from, body - from);
        p->any_param = true;
    }
    if (p->any_param)
        pn_str_add(&p->val, s + body, n - body);
    pn_out_skip(p, n);
    if (p->val.len > OUT_BLANK_MAX) {
        out_args(p, pn_str_cstr(&p->val), p->val.len);
        pn_str_clear(&p->val);
    }
    if (which < 0)
        return OUT_MORE;
    if (!p->any_param)
        out_argsz(p, "{}");
    pn_out_end_call(p, true);
    if (which < 3)
        pn_out_skip(p, strlen(ends[which]));
    return OUT_DONE;
}

/* <|call|> ends the output, so it is usually not there. */
PN_INTERNAL bool pn_out_header_finish(pn_out *p) { return p->state >= HM_VALUE && p->any_param; }

PN_INTERNAL out_step pn_out_header_step(pn_out *p)
{
    int at;
    switch (p->state) {
    case HM_FIRST: return hm_first(p);
    case HM_MARK:
        at = pn_out_at(p, 0, "<|start|>");
        if (at < 0)
            return OUT_MORE;
        if (at > 0)
            pn_out_skip(p, 9);
        p->state = HM_HEADER;
        return OUT_AGAIN;
    case HM_HEADER: return hm_header(p);
    case HM_VALUE: return hm_value(p);
    default: return hm_args(p);
    }
}

#undef HM_MESSAGE
#undef HM_CHANNEL
