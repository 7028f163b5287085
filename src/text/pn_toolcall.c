/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_toolcall.c - the text around calls, the events, and what becomes of a call that breaks.
 *
 *     input -> in[] -> text: markers, white space ----> events (coalesced for each push)
 *                       |  ^
 *                opener |  | DONE, BAD (raw comes back as text)
 *                       v  |
 *                      grammar of the family
 *
 * Text is scanned for the family's markers.  White space is pending until it is known what it stands
 * in front of: before a call, a reasoning block or at the answer's edge it is layout, else text.
 * While a call's name is not delivered, everything it consumed is kept in `raw`, so giving up costs
 * nothing and loses nothing.
 *
 * Invariant: a step that says OUT_AGAIN consumed bytes or moved to a state nearer to consuming; a
 * step that says OUT_MORE at the end of the output is finished by out_finish, so the loop ends.
 */
#include "text/pn_out_parts.h"

#include "base/pn_err.h"
#include "base/pn_utf8.h"

/* ------------------------------------------------------------------------------------------
 * The text in front of the parser
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_out_skip(pn_out *p, size_t n)
{
    if (p->grammar != OUT_TEXT && !p->begun)
        pn_str_add(&p->raw, out_text(p), n);
    p->at += n;
}

PN_INTERNAL bool pn_out_blanks(pn_out *p)
{
    const char *s = out_text(p);
    size_t n = 0, left = out_left(p);
    while (n < left && out_is_blank(s[n]))
        n++;
    pn_out_skip(p, n);
    return n < left || p->final;
}

PN_INTERNAL int pn_out_at(const pn_out *p, size_t from, const char *mark)
{
    size_t len = strlen(mark), left = out_left(p) - PN_MIN(from, out_left(p)), n = PN_MIN(len, left);
    if (n && memcmp(out_text(p) + from, mark, n) != 0)
        return 0;
    if (n == len)
        return 1;
    return p->final ? 0 : -1;
}

PN_INTERNAL size_t pn_out_find_mark(const pn_out *p, const char *const *marks, size_t n, int *which)
{
    const char *s = out_text(p);
    size_t left = out_left(p);
    *which = -1;
    for (size_t i = 0; i < left; i++) {
        bool wait = false;
        size_t best = 0;
        for (size_t m = 0; m < n; m++) {
            if (s[i] != marks[m][0])
                continue;
            int at = pn_out_at(p, i, marks[m]);
            size_t len = strlen(marks[m]);
            wait = wait || at < 0;
            if (at > 0 && len > best) {
                best = len;
                *which = (int)m;
            }
        }
        if (wait)
            *which = -1;
        if (wait || best)
            return i;
    }
    return left;
}

PN_INTERNAL int pn_out_until(pn_out *p, const char *const *marks, size_t n, pn_str *dst, size_t max)
{
    int which;
    size_t safe = pn_out_find_mark(p, marks, n, &which);
    if (safe > max - PN_MIN(dst->len, max)) {   /* stop at one byte too many, wherever the piece ends */
        safe = PN_MIN(safe, max + 1 - PN_MIN(dst->len, max));
        which = -1;
    }
    pn_str_add(dst, out_text(p), safe);
    pn_out_skip(p, safe);
    if (dst->len > max)
        return -2;
    if (which >= 0)
        return which;
    return p->final ? -2 : -1;
}

/* ------------------------------------------------------------------------------------------
 * Events
 * ------------------------------------------------------------------------------------------ */

static void out_send(pn_out *p, const pn_out_event *e)
{
    if (!p->stopped && p->sink && p->sink(p->user, e))
        p->stopped = true;
}

/* Deliver what has gathered; half a character at the end stays when more may come. */
static void out_flush(pn_out *p, bool all)
{
    size_t keep = all ? 0 : pn_utf8_incomplete(pn_str_cstr(&p->event), p->event.len);
    size_t n = p->event.len - keep;
    if (!n || p->event.failed)
        return;
    pn_out_event e = {.kind = p->event_kind, .text = p->event.data, .len = n, .at = p->event_at};
    e.call = p->event_kind == PN_OUT_ARGUMENTS ? p->n_calls - 1 : 0;
    out_send(p, &e);
    memmove(p->event.data, p->event.data + n, keep + 1);
    p->event.len = keep;
    p->event_at += n;
}

/* One event is one stretch of the input. */
PN_INTERNAL void pn_out_emit(pn_out *p, pn_out_kind kind, const char *text, size_t n, size_t at)
{
    if (!n)
        return;
    if (kind != p->event_kind || (kind != PN_OUT_ARGUMENTS && at != p->event_at + p->event.len))
        out_flush(p, true);
    if (!p->event.len)
        p->event_at = at;
    p->event_kind = kind;
    pn_str_add(&p->event, text, n);
}

PN_INTERNAL void pn_out_begin_call(pn_out *p)
{
    if (p->in_reasoning)
        pn_out_think(p, false);
    out_flush(p, true);
    p->call_at = out_offset(p) - p->raw.len;
    pn_out_event e = {.kind = PN_OUT_CALL_BEGIN, .call = p->n_calls, .text = pn_str_cstr(&p->name), .len = p->name.len,
                      .id = pn_str_cstr(&p->id), .id_len = p->id.len, .at = p->call_at};
    out_send(p, &e);
    p->n_calls++;
    p->begun = true;
    pn_str_clear(&p->raw);
    pn_str_clear(&p->id);
    p->params_node = pn_out_schema_tool(p, pn_str_cstr(&p->name), p->name.len);
}

PN_INTERNAL void pn_out_end_call(pn_out *p, bool complete)
{
    out_flush(p, true);
    pn_out_event e = {.kind = PN_OUT_CALL_END, .call = p->n_calls - 1, .complete = complete, .text = "",
                      .id = pn_str_cstr(&p->id), .id_len = p->id.len, .at = out_offset(p)};
    out_send(p, &e);
    p->args_done = true;
    p->starting = false;
    p->fresh = true;
    p->drop_lead = !p->any_content;
}

PN_INTERNAL void pn_out_new_call(pn_out *p)
{
    p->begun = p->args_done = p->any_param = p->value_begun = p->hold_newline = p->cdata = false;
    p->nest = 0;
    p->high = p->code = 0;
    p->esc = p->n_hex = p->fence = 0;
    p->n_elements = 0;
    p->params_node = PN_JSON_NONE;
    pn_str_clear(&p->raw);
    pn_str_clear(&p->name);
    pn_str_clear(&p->id);
    pn_str_clear(&p->val);
    pn_str_clear(&p->args);
}

/* ------------------------------------------------------------------------------------------
 * Reasoning and content
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_out_put_blank(pn_out *p, int which, const char *text, size_t n, size_t at)
{
    pn_str *offsets = &p->blank_at[which];
    if (offsets->failed || p->blank[which].failed)
        return;
    offsets->len = p->blank[which].len * sizeof at;     /* what was dropped of the text goes here too */
    for (size_t i = 0; i < n; i++, at++)
        pn_str_add(offsets, &at, sizeof at);
    pn_str_add(&p->blank[which], text, n);
}

static size_t out_blank_at(const pn_out *p, int which, size_t i)
{
    size_t at;
    memcpy(&at, p->blank_at[which].data + i * sizeof at, sizeof at);
    return at;
}

/* Emit the pending white space from byte `from` on. */
static void out_emit_blank(pn_out *p, int which, size_t from)
{
    const pn_str *blank = &p->blank[which];
    if (blank->failed || p->blank_at[which].failed)
        return;
    for (size_t next; from < blank->len; from = next) {
        size_t at = out_blank_at(p, which, from);
        for (next = from + 1; next < blank->len && out_blank_at(p, which, next) == at + (next - from);)
            next++;
        pn_out_emit(p, which ? PN_OUT_REASONING : PN_OUT_CONTENT, blank->data + from, next - from, at);
    }
}

PN_INTERNAL void pn_out_think(pn_out *p, bool open)
{
    pn_str *blank = &p->blank[1];
    if (!open && !p->in_reasoning && p->any_content)
        return;                             /* an orphan, too late */
    if (!open && p->block_begun) {
        while (blank->len && (blank->data[blank->len - 1] == '\n' || blank->data[blank->len - 1] == '\r'))
            blank->len--;
        out_emit_blank(p, 1, 0);
    }
    pn_str_clear(blank);
    if (!p->any_content || !open)
        pn_str_clear(&p->blank[0]);
    p->in_reasoning = open;
    p->block_begun = false;
    p->fresh = true;
    p->drop_lead = true;
    p->starting = p->starting && !p->any_content;
}

/* Pending white space before text that has just begun. */
static void out_release(pn_out *p, pn_str *blank)
{
    size_t from = 0;
    if (p->in_reasoning && !p->block_begun) {
        if (p->any_reasoning)
            pn_out_emit(p, PN_OUT_REASONING, "\n", 1, out_offset(p));
        if (blank->len && blank->data[0] == '\r')
            from++;
        if (blank->len > from && blank->data[from] == '\n')
            from++;
    } else if (!p->in_reasoning && p->drop_lead) {
        from = blank->len;
    }
    out_emit_blank(p, p->in_reasoning, from);
    pn_str_clear(blank);
}

PN_INTERNAL void pn_out_put_text(pn_out *p, const char *text, size_t n, size_t at)
{
    pn_str *blank = &p->blank[p->in_reasoning];
    size_t lead = 0, body = n;
    while (lead < n && out_is_blank(text[lead]))
        lead++;
    while (body > lead && out_is_blank(text[body - 1]))
        body--;
    pn_out_put_blank(p, p->in_reasoning, text, lead, at);
    if (lead < n) {
        out_release(p, blank);
        pn_out_emit(p, p->in_reasoning ? PN_OUT_REASONING : PN_OUT_CONTENT, text + lead, body - lead, at + lead);
        pn_out_put_blank(p, p->in_reasoning, text + body, n - body, at + body);
        p->fresh = false;
        if (p->in_reasoning) {
            p->block_begun = p->any_reasoning = true;
        } else {
            p->any_content = true;
            p->starting = p->drop_lead = false;
        }
    }
    /* A model that writes white space for ever must not make us hold it for ever. */
    if (blank->len > OUT_BLANK_MAX && (p->in_reasoning ? p->block_begun : p->any_content))
        out_release(p, blank);
    else if (blank->len > OUT_BLANK_MAX)
        blank->len = OUT_BLANK_MAX;
}

/* ------------------------------------------------------------------------------------------
 * Text between markers
 * ------------------------------------------------------------------------------------------ */

static bool out_counts(const pn_out *p, const out_mark *m)
{
    switch (m->act) {
    case OUT_ACT_THINK: return p->fresh;
    case OUT_ACT_THINK_END: return p->in_reasoning || (p->format.orphan && !p->any_reasoning && !p->n_calls);
    case OUT_ACT_END: return m->text[1] != '/' || m->text[2] != 's' || (p->fresh && p->n_calls);
    default: return true;
    }
}

/* End markers and white space from byte `from` to the end of the output: 1 they are, -1 they may be,
 * 0 text follows. */
static int out_at_end(const pn_out *p, size_t from)
{
    const char *s = out_text(p);
    size_t left = out_left(p), m;
    do {
        while (from < left && out_is_blank(s[from]))
            from++;
        if (from > OUT_BLANK_MAX)           /* held and looked at again with each push: keep it short */
            return 0;
        if (from == left)
            return p->final ? 1 : -1;
        for (m = 0; m < p->n_marks; m++) {
            int at = p->marks[m].act == OUT_ACT_END ? pn_out_at(p, from, p->marks[m].text) : 0;
            if (at < 0)
                return -1;
            if (at > 0) {
                from += p->marks[m].len;
                break;
            }
        }
    } while (m < p->n_marks);
    return 0;
}

static out_step out_open(pn_out *p, const out_mark *m)
{
    p->from_reasoning = p->in_reasoning;
    pn_out_new_call(p);
    out_grammar g = p->family->grammar;
    if (m->act == OUT_ACT_CODE)
        g = OUT_TAGGED_CODE;
    if (m->act == OUT_ACT_HEADER)
        g = OUT_HARMONY;
    const char *call = g == OUT_XML ? p->family->xml->call : g == OUT_NAMED ? p->family->named->call : NULL;
    bool tag = call && strcmp(m->text, call) == 0;
    pn_out_start(p, g);
    if (!tag && m->act != OUT_ACT_HEADER)   /* the grammar reads those itself */
        pn_out_skip(p, m->len);
    return OUT_AGAIN;
}

static out_step out_marker(pn_out *p, const out_mark *m)
{
    int end;
    switch (m->act) {
    case OUT_ACT_THINK:
        pn_out_skip(p, m->len);
        if (!p->in_reasoning)
            pn_out_think(p, true);
        return OUT_AGAIN;
    case OUT_ACT_THINK_END:
        pn_out_skip(p, m->len);
        pn_out_think(p, false);
        return OUT_AGAIN;
    case OUT_ACT_SKIP:
        pn_out_skip(p, m->len);
        return OUT_AGAIN;
    case OUT_ACT_END:
        end = out_at_end(p, 0);
        if (end < 0)
            return OUT_MORE;
        if (end)
            pn_out_skip(p, out_left(p));
        else {
            pn_out_put_text(p, out_text(p), m->len, out_offset(p));
            pn_out_skip(p, m->len);
        }
        return OUT_AGAIN;
    default:
        return out_open(p, m);
    }
}

/* The longest marker at byte i; NULL: none.  *wait: a longer one may be there. */
static const out_mark *out_mark_at(const pn_out *p, size_t i, bool *wait)
{
    const out_mark *best = NULL;
    char c = out_text(p)[i];
    *wait = false;
    if (!(p->first[(uint8_t)c >> 3] >> ((uint8_t)c & 7) & 1))
        return NULL;
    for (size_t m = 0; m < p->n_marks; m++) {
        const out_mark *k = &p->marks[m];
        if (k->text[0] != c)
            continue;
        int at = pn_out_at(p, i, k->text);
        *wait = *wait || at < 0;
        if (at > 0 && (!best || k->len > best->len) && out_counts(p, k))
            best = k;
    }
    return best;
}

static out_step out_text_step(pn_out *p)
{
    const char *s = out_text(p);
    size_t left = out_left(p), i = 0;
    bool wait = false;
    const out_mark *m = NULL;
    if (p->starting && (p->family->flags & OUT_BARE) && !p->in_reasoning && !p->params.no_calls) {
        while (i < left && out_is_blank(s[i]))
            i++;
        pn_out_put_text(p, s, i, out_offset(p));
        pn_out_skip(p, i);
        if (i < left && s[i] == '{') {
            p->starting = false;
            p->from_reasoning = false;
            pn_out_new_call(p);
            pn_out_start(p, OUT_JSON);
            pn_out_json_init(p, true);
        }
        if (i)
            return OUT_AGAIN;
        if (p->grammar != OUT_TEXT)
            return OUT_AGAIN;
    }
    for (i = 0; i < left; i++) {
        m = out_mark_at(p, i, &wait);
        if (m || wait)
            break;
    }
    if (i) {
        pn_out_put_text(p, s, i, out_offset(p));
        pn_out_skip(p, i);
        return OUT_AGAIN;                   /* what counts may have changed */
    }
    return wait || !m ? OUT_MORE : out_marker(p, m);
}

/* ------------------------------------------------------------------------------------------
 * Calls
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_out_start(pn_out *p, out_grammar g)
{
    p->grammar = g;
    p->state = 0;
    p->bare = p->in_array = false;
    if (g == OUT_JSON)
        pn_out_json_init(p, false);
}

PN_INTERNAL out_step pn_out_section(pn_out *p, const char *call, bool *is_call)
{
    *is_call = false;
    if (!pn_out_blanks(p))
        return OUT_MORE;
    bool wait = false;
    for (size_t i = 0; i < PN_COUNT_OF(p->family->close) && p->family->close[i]; i++) {
        const char *mark = p->family->close[i];
        int at = pn_out_at(p, 0, mark);
        size_t left = out_left(p);
        if (at > 0) {
            pn_out_skip(p, strlen(mark));
            return OUT_DONE;
        }
        /* A closer cut off by the end of the output is a closer. */
        if (p->final && left > 1 && left < strlen(mark) && memcmp(out_text(p), mark, left) == 0) {
            pn_out_skip(p, left);
            return OUT_DONE;
        }
        wait = wait || at < 0;
    }
    if (call) {
        int at = pn_out_at(p, 0, call);
        if (at > 0) {
            *is_call = true;
            return OUT_AGAIN;
        }
        wait = wait || at < 0;
    }
    return wait ? OUT_MORE : OUT_DONE;
}

static out_step out_dispatch(pn_out *p)
{
    switch (p->grammar) {
    case OUT_JSON: return pn_out_json_step(p);
    case OUT_NAMED: return pn_out_named_step(p);
    case OUT_XML: return pn_out_xml_step(p);
    case OUT_NESTED: return pn_out_nested_step(p);
    case OUT_PYTHON: return pn_out_python_step(p);
    case OUT_GEMMA: return pn_out_gemma_step(p);
    case OUT_TAGGED_CODE: return pn_out_code_step(p);
    case OUT_HARMONY: return pn_out_header_step(p);
    default: return out_text_step(p);
    }
}

/* Back to text: a call whose name is known ends here, another becomes text where it stood. */
static void out_give_up(pn_out *p)
{
    p->grammar = OUT_TEXT;
    if (p->begun) {
        if (!p->args_done)
            pn_out_end_call(p, false);
        return;
    }
    pn_out_put_text(p, pn_str_cstr(&p->raw), p->raw.len, out_offset(p) - p->raw.len);
    pn_str_clear(&p->raw);
}

/* The output ends inside a call. */
static void out_finish(pn_out *p)
{
    bool complete = false;
    if (p->begun && !p->args_done) {
        switch (p->grammar) {
        case OUT_XML: pn_out_xml_finish(p); break;
        case OUT_NESTED: pn_out_nested_finish(p); break;
        case OUT_TAGGED_CODE: pn_out_code_finish(p); complete = true; break;
        case OUT_HARMONY: complete = pn_out_header_finish(p); break;
        default: break;
        }
        pn_out_end_call(p, complete);
    }
    out_give_up(p);
}

static pn_status out_check(const pn_out *p, pn_err *err)
{
    const pn_str *all[] = {&p->in, &p->event, &p->raw, &p->name, &p->id, &p->val, &p->args, &p->blank[0], &p->blank[1],
                     &p->blank_at[0], &p->blank_at[1]};
    for (size_t i = 0; i < PN_COUNT_OF(all); i++)
        if (all[i]->failed)
            return pn_fail_nomem(err, "a model's output being parsed", (uint64_t)all[i]->len + 1);
    if (p->stopped)
        return pn_fail(err, PN_E_CANCELLED, "the receiver of the parsed output said stop");
    return PN_OK;
}

static pn_status out_run(pn_out *p, pn_err *err)
{
    for (;;) {
        pn_status st = out_check(p, err);
        if (st)
            return st;
        out_step s = out_dispatch(p);
        if (s == OUT_BAD || s == OUT_DONE) {
            if (s == OUT_DONE && !p->begun)
                pn_str_clear(&p->raw);
            out_give_up(p);
        } else if (s == OUT_MORE) {
            if (!p->final || p->grammar == OUT_TEXT)
                return out_check(p, err);
            out_finish(p);
        }
    }
}

/* ------------------------------------------------------------------------------------------
 * Life
 * ------------------------------------------------------------------------------------------ */

static void out_add_mark(pn_out *p, const char *text, out_act act)
{
    if (!text || p->n_marks == OUT_MARKS_MAX)
        return;
    p->marks[p->n_marks++] = (out_mark){text, (uint32_t)strlen(text), act};
    p->first[(uint8_t)text[0] >> 3] |= (uint8_t)(1u << ((uint8_t)text[0] & 7));
}

static void out_add_marks(pn_out *p)
{
    const out_family *f = p->family;
    if (!p->params.no_reasoning) {
        out_add_mark(p, p->format.think_open, OUT_ACT_THINK);
        out_add_mark(p, p->format.think_close, OUT_ACT_THINK_END);
    }
    if (!p->params.no_calls)
        for (size_t i = 0; i < PN_COUNT_OF(f->open); i++)
            out_add_mark(p, f->open[i], f->flags & OUT_SEGMENTS ? OUT_ACT_SEGMENT : OUT_ACT_OPEN);
    for (size_t i = 0; i < PN_COUNT_OF(f->skip); i++)
        out_add_mark(p, f->skip[i], OUT_ACT_SKIP);
    if ((f->flags & OUT_CODE_TAG) && !p->params.no_calls)
        out_add_mark(p, "<|python_tag|>", OUT_ACT_CODE);
    if (f->flags & OUT_HEADERS) {
        out_add_mark(p, "<|start|>", OUT_ACT_HEADER);
        if (f->grammar == OUT_HARMONY)
            out_add_mark(p, "<|channel|>", OUT_ACT_HEADER);
    }
    for (size_t i = 0; pn_out_end_mark(i); i++)
        if (p->format.ends >> i & 1)
            out_add_mark(p, pn_out_end_mark(i), OUT_ACT_END);
}

static bool out_contains(const char *s, size_t n, const char *what)
{
    size_t len = strlen(what);
    for (size_t i = 0; i + len <= n; i++)
        if (s[i] == what[0] && memcmp(s + i, what, len) == 0)
            return true;
    return false;
}

/* Where the generation prompt leaves off. */
static void out_prime(pn_out *p, const char *prompt, size_t len)
{
    const out_family *f = p->family;
    p->fresh = p->starting = true;
    p->params_node = PN_JSON_NONE;
    if (p->params.no_reasoning) {
        p->format.orphan = false;
    } else if (pn_out_forced_open(&p->format, prompt, len)) {
        pn_out_think(p, true);
        p->format.orphan = false;
    } else if (p->format.think_close && out_contains(prompt, len, p->format.think_close)) {
        p->drop_lead = true;
        p->format.orphan = false;
    }
    if (f->flags & OUT_HEADERS) {
        size_t from = len;              /* the header that the prompt has begun */
        while (from > 0 && !(len - from >= 9 && memcmp(prompt + from, "<|start|>", 9) == 0))
            from--;
        if (out_contains(prompt + from, len - from, "<|message|>"))
            return;
        pn_out_new_call(p);
        pn_out_start(p, OUT_HARMONY);
        p->state = 1;
    }
    if ((f->flags & OUT_SEGMENTS) && out_contains(prompt, len, ">>>")) {
        pn_out_new_call(p);
        pn_out_start(p, f->grammar);
    }
}

PN_INTERNAL pn_status pn_out_new(pn_out **out, pn_mem *mem, const pn_out_format *format,
                                 const pn_json_doc *tools, const char *prompt, size_t prompt_len,
                                 const pn_out_params *params, pn_out_sink sink, void *user, pn_err *err)
{
    const out_family *f = pn_out_family(format->family);
    if (!f || !sink || (!prompt && prompt_len))
        return pn_fail(err, PN_E_INVALID, "an output parser needs a known format, a sink and a prompt or none");
    pn_out *p = pn_mem_calloc(mem, PN_ACCT_MISC, 1, sizeof *p);
    if (!p)
        return pn_fail_nomem(err, "an output parser", sizeof *p);
    p->mem = mem;
    p->family = f;
    p->format = *format;
    p->tools = tools;
    p->sink = sink;
    p->user = user;
    if (params)
        p->params = *params;
    pn_str *all[] = {&p->in, &p->event, &p->raw, &p->name, &p->id, &p->val, &p->args, &p->blank[0], &p->blank[1],
                     &p->blank_at[0], &p->blank_at[1]};
    for (size_t i = 0; i < PN_COUNT_OF(all); i++)
        pn_str_init(all[i], mem, PN_ACCT_MISC);
    if (f->grammar == OUT_NESTED) {
        p->elements = pn_mem_calloc(mem, PN_ACCT_MISC, OUT_ELEMENTS_MAX, sizeof *p->elements);
        if (!p->elements) {
            pn_out_free(p);
            return pn_fail_nomem(err, "an output parser", OUT_ELEMENTS_MAX * sizeof *p->elements);
        }
    }
    out_add_marks(p);
    out_prime(p, prompt ? prompt : "", prompt_len);
    *out = p;
    return PN_OK;
}

PN_INTERNAL void pn_out_free(pn_out *p)
{
    if (!p)
        return;
    pn_str *all[] = {&p->in, &p->event, &p->raw, &p->name, &p->id, &p->val, &p->args, &p->blank[0], &p->blank[1],
                     &p->blank_at[0], &p->blank_at[1]};
    for (size_t i = 0; i < PN_COUNT_OF(all); i++)
        pn_str_fini(all[i]);
    pn_mem_free(p->mem, PN_ACCT_MISC, p->elements, p->elements ? OUT_ELEMENTS_MAX * sizeof *p->elements : 0);
    pn_mem_free(p->mem, PN_ACCT_MISC, p, sizeof *p);
}

PN_INTERNAL pn_status pn_out_push(pn_out *p, const char *text, size_t len, pn_err *err)
{
    if (p->ended)
        return pn_fail(err, PN_E_STATE, "the output has been ended; nothing can follow");
    pn_str_add(&p->in, text, len);
    if (p->params.whole)
        return out_check(p, err);
    pn_status st = out_run(p, err);
    if (st)
        return st;
    out_flush(p, false);
    if (p->at) {                        /* what is held back is short: moving it is cheap */
        memmove(p->in.data, p->in.data + p->at, p->in.len - p->at + 1);
        p->in.len -= p->at;
        p->before += p->at;
        p->at = 0;
    }
    return out_check(p, err);
}

/* With the whole text at hand: does reasoning end that never began? */
static void out_find_orphan(pn_out *p)
{
    const char *close = p->format.think_close;
    if (p->in_reasoning || p->grammar != OUT_TEXT || !p->format.orphan || !close)
        return;
    for (size_t i = 0; i < out_left(p); i++) {
        for (size_t m = 0; m < p->n_marks; m++) {
            const out_mark *k = &p->marks[m];
            if (k->text[0] != out_text(p)[i] || pn_out_at(p, i, k->text) <= 0)
                continue;
            if (k->act == OUT_ACT_THINK_END) {
                pn_out_think(p, true);
                return;
            }
            if (k->act == OUT_ACT_THINK || k->act == OUT_ACT_OPEN)
                return;
        }
    }
}

PN_INTERNAL size_t pn_out_settled(const pn_out *p)
{
    size_t n = out_offset(p);
    if (p->grammar != OUT_TEXT && !p->begun)
        n -= p->raw.len;
    else if (!p->args_done && (p->grammar == OUT_XML || p->grammar == OUT_NESTED))
        n = p->call_at;                     /* a broken tag becomes content */
    if (p->event.len && p->event_kind != PN_OUT_ARGUMENTS)
        n = PN_MIN(n, p->event_at);
    for (int i = 0; i < 2; i++)
        if (p->blank[i].len && !p->blank_at[i].failed)
            n = PN_MIN(n, out_blank_at(p, i, 0));
    return n;
}

PN_INTERNAL pn_status pn_out_end(pn_out *p, pn_err *err)
{
    if (p->ended)
        return pn_fail(err, PN_E_STATE, "the output has been ended already");
    p->ended = p->final = true;
    if (p->params.whole)
        out_find_orphan(p);
    pn_status st = out_run(p, err);
    if (st)
        return st;
    pn_str *blank = &p->blank[p->in_reasoning];
    if (p->in_reasoning ? p->block_begun : !p->n_calls && (p->any_content || (!p->any_reasoning && !p->drop_lead)))
        out_emit_blank(p, p->in_reasoning, 0);
    pn_str_clear(blank);
    out_flush(p, true);
    return out_check(p, err);
}

/* ------------------------------------------------------------------------------------------
 * Collecting
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_out_result_init(pn_out_result *r, pn_mem *mem)
{
    memset(r, 0, sizeof *r);
    r->mem = mem;
    pn_str_init(&r->reasoning, mem, PN_ACCT_MISC);
    pn_str_init(&r->content, mem, PN_ACCT_MISC);
}

PN_INTERNAL void pn_out_result_fini(pn_out_result *r)
{
    for (size_t i = 0; i < r->n_calls; i++) {
        pn_str_fini(&r->calls[i].name);
        pn_str_fini(&r->calls[i].id);
        pn_str_fini(&r->calls[i].arguments);
    }
    pn_mem_free(r->mem, PN_ACCT_MISC, r->calls, r->cap_calls * sizeof *r->calls);
    pn_str_fini(&r->reasoning);
    pn_str_fini(&r->content);
    memset(r, 0, sizeof *r);
}

static bool result_begin(pn_out_result *r, const pn_out_event *e)
{
    if (!pn_mem_grow(r->mem, PN_ACCT_MISC, (void **)&r->calls, &r->cap_calls, r->n_calls + 1, sizeof *r->calls))
        return false;
    pn_out_call *c = &r->calls[r->n_calls++];
    c->complete = false;
    pn_str_init(&c->name, r->mem, PN_ACCT_MISC);
    pn_str_init(&c->id, r->mem, PN_ACCT_MISC);
    pn_str_init(&c->arguments, r->mem, PN_ACCT_MISC);
    pn_str_add(&c->name, e->text, e->len);
    pn_str_add(&c->id, e->id, e->id_len);
    return !c->name.failed && !c->id.failed;
}

PN_INTERNAL int pn_out_collect(void *user, const pn_out_event *e)
{
    pn_out_result *r = user;
    bool ok = true;
    pn_out_call *c = e->call < r->n_calls ? &r->calls[e->call] : NULL;
    switch (e->kind) {
    case PN_OUT_REASONING: pn_str_add(&r->reasoning, e->text, e->len); break;
    case PN_OUT_CONTENT: pn_str_add(&r->content, e->text, e->len); break;
    case PN_OUT_CALL_BEGIN: ok = result_begin(r, e); break;
    case PN_OUT_ARGUMENTS:
        if (c)
            pn_str_add(&c->arguments, e->text, e->len);
        break;
    case PN_OUT_CALL_END:
        if (c && e->id_len && !c->id.len)
            pn_str_add(&c->id, e->id, e->id_len);
        if (c)
            c->complete = e->complete;
        break;
    }
    if (c && (c->arguments.failed || c->id.failed))
        ok = false;
    if (!ok || r->reasoning.failed || r->content.failed)
        r->failed = true;
    return r->failed;
}

static void result_arguments(const pn_out_result *r, const pn_out_call *c, pn_str *out)
{
    pn_json_doc d;
    pn_err err;
    const char *text = pn_str_cstr(&c->arguments);
    pn_status st = pn_json_parse(&d, r->mem, PN_ACCT_MISC, text, c->arguments.len, NULL, &err);
    if (st == PN_OK)
        pn_json_write_node(out, &d, PN_JSON_ROOT);
    else if (st == PN_E_NOMEM)
        out->failed = true;
    else
        pn_json_write_str(out, text, c->arguments.len);
    pn_json_fini(&d);
}

static void result_text(const pn_str *s, pn_str *out)
{
    if (s->len)
        pn_json_write_str(out, s->data, s->len);
    else
        pn_str_addz(out, "null");
}

PN_INTERNAL void pn_out_result_json(const pn_out_result *r, pn_str *out)
{
    pn_str_addc(out, '{');
    pn_json_key(out, "reasoning_content");
    result_text(&r->reasoning, out);
    pn_json_key(out, "content");
    result_text(&r->content, out);
    pn_json_key(out, "tool_calls");
    pn_str_addc(out, '[');
    for (size_t i = 0; i < r->n_calls; i++) {
        pn_json_item(out);
        pn_str_addc(out, '{');
        pn_json_key(out, "name");
        pn_json_write_str(out, pn_str_cstr(&r->calls[i].name), r->calls[i].name.len);
        pn_json_key(out, "arguments");
        result_arguments(r, &r->calls[i], out);
        pn_str_addc(out, '}');
    }
    pn_str_addz(out, "]}");
}
