/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_replay.c - turns of a session against the next prompt.
 *
 * The opening of an answer needs care.  It may write what the history leaves out: the usual case is
 * "<think>\n\n</think>\n\n" with thinking off.  So a prompt also counts as repeated when the new
 * rendering departs from it at the first reasoning marker of its opening, or at white space that ends
 * it; what follows is then parsed as it stands, and the answer with all of its opening.
 */
#include "engine/pn_replay.h"

#include "base/pn_err.h"
#include "text/pn_respell.h"

struct pn_replay_turn {
    pn_prompt prompt;
    size_t opening;             /* offset in prompt.text */
    size_t first, n_prompt;     /* session positions [first, first + n_prompt) */
    bool answered, shown_known;
    pn_str raw;                 /* the answer as sampled ... */
    size_t n_answer;            /* ... the positions behind the prompt's */
    size_t message;             /* its index, SIZE_MAX: unsigned */
    pn_str said;                /* the message's JSON */
    pn_str shown;               /* how the template printed it last, when shown_known */
};

static void replay_unanswer(pn_replay_turn *t)
{
    pn_str_fini(&t->raw);
    pn_str_fini(&t->said);
    pn_str_fini(&t->shown);
    t->answered = t->shown_known = false;
    t->message = SIZE_MAX;
    t->n_answer = 0;
}

static void replay_drop(pn_replay *r, size_t keep)
{
    while (r->n_turns > keep) {
        replay_unanswer(&r->turns[--r->n_turns]);
        pn_prompt_fini(&r->turns[r->n_turns].prompt);
    }
}

PN_INTERNAL void pn_replay_init(pn_replay *r, pn_mem *mem, const pn_vocab *v, const pn_out_format *f, const pn_json_doc *tools)
{
    *r = (pn_replay){.mem = mem, .vocab = v, .format = f, .tools = tools};
}

PN_INTERNAL void pn_replay_fini(pn_replay *r)
{
    if (!r->mem)
        return;
    replay_drop(r, 0);
    pn_mem_free(r->mem, PN_ACCT_MISC, r->turns, r->cap_turns * sizeof *r->turns);
    r->turns = NULL;
    r->cap_turns = 0;
}

/* ------------------------------------------------------------------------------------------
 * Recording
 * ------------------------------------------------------------------------------------------ */

/* The text from `at` on with its trusted stretches moved along. */
static bool replay_copy(pn_replay *r, pn_prompt *out, const pn_prompt *p, size_t at)
{
    pn_prompt_init(out, r->mem);
    pn_str_add(&out->text, pn_str_cstr(&p->text) + at, p->text.len - at);
    if (out->text.failed || !pn_mem_grow(r->mem, PN_ACCT_MISC, (void **)&out->spans, &out->cap_spans, p->n_spans, sizeof *out->spans))
        return false;
    for (size_t i = 0; i < p->n_spans; i++)
        if (p->spans[i].end > at)
            out->spans[out->n_spans++] = (pn_span){PN_MAX(p->spans[i].begin, at) - at, p->spans[i].end - at};
    return true;
}

PN_INTERNAL pn_status pn_replay_prompt(pn_replay *r, const pn_prompt *p, size_t at, size_t opening, size_t first, size_t n,
                                       pn_err *err)
{
    if (!pn_mem_grow(r->mem, PN_ACCT_MISC, (void **)&r->turns, &r->cap_turns, r->n_turns + 1, sizeof *r->turns))
        return pn_fail_nomem(err, "a conversation", sizeof *r->turns);
    pn_replay_turn *t = &r->turns[r->n_turns];
    *t = (pn_replay_turn){.opening = PN_MAX(opening, at) - at, .first = first, .n_prompt = n, .message = SIZE_MAX};
    pn_str *texts[] = {&t->raw, &t->said, &t->shown};
    for (size_t i = 0; i < PN_COUNT_OF(texts); i++)
        pn_str_init(texts[i], r->mem, PN_ACCT_MISC);
    if (!replay_copy(r, &t->prompt, p, at)) {
        pn_prompt_fini(&t->prompt);
        return pn_fail_nomem(err, "a conversation", p->text.len - at);
    }
    r->n_turns++;
    return PN_OK;
}

/* How many of the tokens make up `len` bytes of text; false: no number of them does. */
static bool replay_count(const pn_replay *r, size_t len, const pn_token *tokens, size_t n, size_t *count)
{
    char tmp[8];
    size_t bytes = 0, i = 0;
    for (size_t piece; i < n; i++, bytes += piece) {
        piece = pn_vocab_piece(r->vocab, tokens[i], true, tmp).len;
        if (piece && bytes >= len)
            break;
    }
    *count = i;
    return bytes == len;
}

PN_INTERNAL pn_status pn_replay_answer(pn_replay *r, const char *text, size_t len, const pn_token *tokens, size_t n, pn_err *err)
{
    size_t count;
    if (!r->n_turns || !replay_count(r, len, tokens, n, &count))
        return PN_OK;
    pn_replay_turn *t = &r->turns[r->n_turns - 1];
    replay_unanswer(t);
    pn_str_add(&t->raw, text, len);
    if (t->raw.failed) {
        replay_unanswer(t);
        return pn_fail_nomem(err, "a conversation", len);
    }
    t->n_answer = count;
    t->answered = true;
    return PN_OK;
}

PN_INTERNAL void pn_replay_sign(pn_replay *r, size_t index, const pn_str *message)
{
    pn_replay_turn *t = r->n_turns ? &r->turns[r->n_turns - 1] : NULL;
    if (!t || !t->answered)
        return;
    pn_str_clear(&t->said);
    pn_str_add(&t->said, pn_str_cstr(message), message->len);
    t->message = t->said.failed ? SIZE_MAX : index;
}

/* ------------------------------------------------------------------------------------------
 * Matching
 * ------------------------------------------------------------------------------------------ */

/* Is byte `at` trusted, and up to where does the answer hold?  *i: a span that does not end before `at`. */
static bool replay_trust(const pn_prompt *p, size_t at, size_t *i, size_t *until)
{
    while (*i < p->n_spans && p->spans[*i].end <= at)
        ++*i;
    bool inside = *i < p->n_spans && p->spans[*i].begin <= at;
    *until = *i == p->n_spans ? SIZE_MAX : inside ? p->spans[*i].end : p->spans[*i].begin;
    return inside;
}

/* Bytes of `q` that p has from `at` on, trusted where q trusts them and nowhere else. */
static size_t replay_common(const pn_prompt *p, size_t at, const pn_prompt *q)
{
    size_t n = 0, max = PN_MIN(p->text.len - at, q->text.len), a = 0, b = 0, trusted = 0, until_p, until_q;
    const char *x = pn_str_cstr(&p->text) + at, *y = pn_str_cstr(&q->text);
    while (n < max && x[n] == y[n])
        n++;
    while (trusted < n) {
        if (replay_trust(p, at + trusted, &a, &until_p) != replay_trust(q, trusted, &b, &until_q))
            return trusted;
        trusted = PN_MIN(until_q, until_p == SIZE_MAX ? SIZE_MAX : until_p - at);
    }
    return n;
}

/* Offset in prompt's text of the first reasoning marker of its opening; its length: none. */
static size_t replay_think(const pn_replay *r, const pn_replay_turn *t)
{
    const char *const marks[] = {r->format->think_open, r->format->think_close};
    const pn_str *s = &t->prompt.text;
    for (size_t i = t->opening; i < s->len; i++)
        for (size_t k = 0; k < PN_COUNT_OF(marks); k++) {
            size_t n = marks[k] ? strlen(marks[k]) : 0;
            if (n && n <= s->len - i && memcmp(s->data + i, marks[k], n) == 0)
                return i;
        }
    return s->len;
}

/* Of the turn's prompt, how much the new one must have when they agree in `common` bytes; false: they
 * part too early.  (White space at the very end is also what sloppy templates leave behind.) */
static bool replay_cut(const pn_replay *r, const pn_replay_turn *t, size_t common, size_t *cut)
{
    const pn_str *s = &t->prompt.text;
    size_t think = s->len, blank = common;
    *cut = common;
    if (common == s->len)
        return true;
    if (common >= t->opening)
        think = replay_think(r, t);
    while (blank < s->len && (s->data[blank] == ' ' || s->data[blank] == '\n'))
        blank++;
    *cut = PN_MIN(common, think);
    return blank >= think;
}

/* The answer as it was sampled, to the byte. */
static bool replay_begins(const pn_prompt *p, size_t from, size_t limit, const pn_str *raw)
{
    return raw->len && raw->len <= limit - from && memcmp(p->text.data + from, raw->data, raw->len) == 0;
}

/* Did the template write the byte in front of `from` (> 0)?  Then the message before the answer ends where it
 * ended: without anything between, a client's text could go on as the answer does. */
static bool replay_fenced(const pn_prompt *p, size_t from)
{
    size_t i = 0, until;
    return replay_trust(p, from - 1, &i, &until);
}

/* Does the prompt go on with the turn's answer, *at: behind the turn's prompt, or some of it?  Then *at
 * moves behind the answer. */
static pn_status replay_answered(const pn_replay *r, pn_replay_turn *t, const pn_prompt *p, size_t cut, size_t opening, size_t *at,
                                 bool *found, pn_err *err)
{
    const pn_str *s = &t->prompt.text;
    size_t from = *at + cut, begun = *at + t->opening, end = 0;
    *found = t->shown_known && t->shown.len <= opening - from &&
             (!t->shown.len || memcmp(p->text.data + from, t->shown.data, t->shown.len) == 0);
    if (*found) {
        *at = from + t->shown.len;
        return PN_OK;
    }
    const pn_respell q = {.mem = r->mem, .vocab = r->vocab, .format = r->format, .tools = r->tools,
                          .opening = {pn_str_cstr(s) + t->opening, s->len - t->opening},
                          .raw = {pn_str_cstr(&t->raw), t->raw.len},
                          .prompt = p, .begun = PN_MIN(begun, from), .from = from, .limit = opening};
    pn_status st = pn_respell_find(&q, &end, found, err);
    if (!st && !*found && cut == s->len && replay_begins(p, from, opening, &t->raw)) {
        *found = true;                          /* a stop string cut the rest off: the message says a little more */
        *at = from + t->raw.len;
        return PN_OK;
    }
    if (st || !*found)
        return st;
    pn_str_clear(&t->shown);
    pn_str_add(&t->shown, pn_str_cstr(&p->text) + from, end - from);
    t->shown_known = !t->shown.failed;          /* without it the search is made again next time */
    *at = end;
    return PN_OK;
}

static bool replay_signed(const pn_replay_turn *t, const pn_str *messages, size_t n_messages)
{
    return t->answered && t->message < n_messages && messages[t->message].len == t->said.len &&
           memcmp(messages[t->message].data, t->said.data, t->said.len) == 0;
}

PN_INTERNAL pn_status pn_replay_match(pn_replay *r, const pn_prompt *p, size_t opening, const pn_str *messages,
                                      size_t n_messages, size_t n_session, size_t *at, size_t *kept, pn_err *err)
{
    pn_status st = PN_OK;
    size_t k = 0;
    *at = *kept = 0;
    for (bool go_on = true; k < r->n_turns && !st && go_on; ) {
        pn_replay_turn *t = &r->turns[k];
        size_t common = replay_common(p, *at, &t->prompt), cut;
        bool found = false;
        if (t->first != *kept || t->n_prompt > n_session - *kept || !replay_cut(r, t, common, &cut))
            break;
        if (replay_signed(t, messages, n_messages) && t->n_answer <= n_session - *kept - t->n_prompt && *at + cut <= opening &&
            (cut == 0 || replay_fenced(p, *at + cut)))
            st = replay_answered(r, t, p, cut, opening, at, &found, err);
        if (found) {
            *kept += t->n_prompt + t->n_answer;
        } else if (common == t->prompt.text.len && !st) {
            *at += common;
            *kept += t->n_prompt;
            go_on = !t->answered;
            replay_unanswer(t);
        } else {
            break;
        }
        k++;
    }
    replay_drop(r, k);
    return st;
}
