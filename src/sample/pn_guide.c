/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_guide.c - the states of pn_guide.h.
 *
 * Three matchers at most: the grammar's own; `opener`, over the text that opens the reasoning; `blank`,
 * over the white space that models put behind the reasoning and that is no part of the answer.  At START
 * all of them may be alive, and what any of them takes may come.
 */
#include "sample/pn_guide.h"
#include "base/pn_err.h"
#include "sample/pn_gir.h"
#include "sample/pn_gram_impl.h"

typedef enum guide_state { GUIDE_WAIT, GUIDE_START, GUIDE_FREE, GUIDE_BOUND, GUIDE_DONE } guide_state;

enum { GUIDE_TEXT_MAX = 512, GUIDE_BLANKS = 2 };

/* What a refused token must leave as it was. */
typedef struct guide_text {
    guide_state state;
    bool main, opening, blanks; /* START: which matchers are alive */
    bool fresh;                 /* FREE: nothing but white space yet, or head is still compared */
    uint32_t n_tail, n_head;
    char tail[GUIDE_TEXT_MAX];  /* the last bytes of free text */
    char head[GUIDE_TEXT_MAX];  /* its first ones, white space in front apart */
    char marker[PN_GUIDE_MARK_MAX];     /* WAIT: for this */
    bool last;                  /* BOUND: the answer is over with this sentence */
    pn_watch watch;             /* FREE */
} guide_text;

struct pn_guide {
    pn_mem *mem;
    const pn_gtrie *trie;
    pn_matcher *main, *opener, *blank;
    const pn_trigger *triggers;
    size_t n_triggers;
    pn_watch_kind watch;
    bool lanes, single, forbid, owed;
    char think_open[PN_GUIDE_MARK_MAX], think_close[PN_GUIDE_MARK_MAX];
    uint32_t *mask, *other, *banned;    /* [n_words] */
    uint32_t *text_only;        /* [n_words] every token but those that end an answer */
    size_t n_words;
    bool any_banned;
    guide_text text, before;
};

/* ------------------------------------------------------------------------------------------
 * Making
 * ------------------------------------------------------------------------------------------ */

static bool guide_take_text(char *out, const char *text)
{
    size_t n = text ? strlen(text) : 0;
    if (n >= PN_GUIDE_MARK_MAX)
        return false;
    memcpy(out, text ? text : "", n + 1);
    return true;
}

/* A matcher over a marker, or over the blanks behind the reasoning. */
static pn_status guide_small(pn_guide *g, pn_matcher **out, const char *mark, const pn_guide_params *p, pn_err *err)
{
    pn_gir *b = NULL;
    pn_gram *gram = NULL;
    pn_status st = pn_gir_new(&b, g->mem, NULL, err);
    if (!st) {
        pn_gnode blank = pn_gir_alt2(b, pn_gir_text(b, "\n"), pn_gir_text(b, " "));
        pn_gnode root = mark ? pn_gir_mark(b, mark, p->find, p->user) : pn_gir_repeat(b, blank, 1, GUIDE_BLANKS);
        st = pn_gir_finish(b, root, &gram, err);
    }
    pn_gir_free(b);
    if (!st)
        st = pn_matcher_new(out, g->mem, gram, g->trie, err);
    pn_gram_release(gram);
    return st;
}

static pn_status guide_matchers(pn_guide *g, const pn_guide_params *p, pn_err *err)
{
    pn_status st = PN_OK;
    if (p->gram)
        st = pn_matcher_new(&g->main, g->mem, p->gram, p->trie, err);
    if (!st && g->main && g->think_open[0])
        st = guide_small(g, &g->opener, g->think_open, p, err);
    if (!st && g->main)
        st = guide_small(g, &g->blank, NULL, p, err);
    return st;
}

static bool guide_owes(const pn_guide *g) { return g->main && (g->owed || !g->n_triggers); }

/* The matcher at the start of lane `lane`, or of the grammar. */
static pn_status guide_enter(pn_guide *g, uint32_t lane, pn_err *err)
{
    const char choice[2] = {(char)(lane >> 8), (char)(lane & 255)};
    pn_matcher_reset(g->main);
    return g->lanes ? pn_matcher_accept_bytes(g->main, choice, 2, err) : PN_OK;
}

/* The answer begins here.  after: behind its reasoning. */
static pn_status guide_start(pn_guide *g, bool after, pn_err *err)
{
    guide_text *x = &g->text;
    x->state = guide_owes(g) ? GUIDE_START : GUIDE_FREE;
    x->n_tail = x->n_head = 0;
    x->fresh = true;
    x->main = true;
    x->opening = g->opener && !after;
    x->blanks = g->blank && after;
    pn_watch_start(&x->watch, g->watch);
    if (!guide_owes(g))
        return PN_OK;
    if (g->opener)
        pn_matcher_reset(g->opener);
    pn_matcher_reset(g->blank);
    return guide_enter(g, 0, err);
}

PN_INTERNAL pn_status pn_guide_new(pn_guide **out, pn_mem *mem, const pn_guide_params *p, pn_err *err)
{
    pn_guide *g = pn_mem_calloc(mem, PN_ACCT_GRAMMAR, 1, sizeof *g);
    if (!g)
        return pn_fail_nomem(err, "a guide", sizeof *g);
    g->mem = mem;
    g->trie = p->trie;
    g->triggers = p->triggers;
    g->n_triggers = p->n_triggers;
    g->watch = p->watch;
    g->owed = p->owed;
    g->lanes = p->lanes;
    g->single = p->single;
    g->forbid = p->forbid;
    g->n_words = p->trie ? pn_gtrie_words(p->trie) : 0;
    pn_status st = PN_OK;
    if (!guide_take_text(g->think_open, p->think_open) || !guide_take_text(g->think_close, p->think_close) ||
        !guide_take_text(g->text.marker, p->after))
        st = pn_fail(err, PN_E_INVALID, "a marker of reasoning has %d bytes or more", PN_GUIDE_MARK_MAX);
    uint32_t **sets[] = {&g->mask, &g->other, &g->banned, &g->text_only};
    for (size_t i = 0; i < PN_COUNT_OF(sets) && !st; i++) {
        *sets[i] = pn_mem_calloc(mem, PN_ACCT_GRAMMAR, g->n_words, sizeof **sets[i]);
        if (!*sets[i])
            st = pn_fail_nomem(err, "a token mask", g->n_words * sizeof **sets[i]);
    }
    if (!st)
        st = guide_matchers(g, p, err);
    for (uint32_t i = 0, n = g->trie ? pn_gtrie_count(g->trie) : 0; i < n && !st; i++)
        if (!pn_gtrie_ends(g->trie, (pn_token)i))
            g->text_only[i >> 5] |= 1u << (i & 31);
    g->text.state = GUIDE_WAIT;
    if (!st && !p->after)
        st = guide_start(g, false, err);
    if (st) {
        pn_guide_free(g);
        return st;
    }
    *out = g;
    return PN_OK;
}

PN_INTERNAL void pn_guide_free(pn_guide *g)
{
    if (!g)
        return;
    pn_matcher_free(g->main);
    pn_matcher_free(g->opener);
    pn_matcher_free(g->blank);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g->mask, g->n_words * sizeof *g->mask);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g->other, g->n_words * sizeof *g->other);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g->banned, g->n_words * sizeof *g->banned);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g->text_only, g->n_words * sizeof *g->text_only);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g, sizeof *g);
}

/* ------------------------------------------------------------------------------------------
 * Masks
 * ------------------------------------------------------------------------------------------ */

/* Every token of the vocabulary, but for those that end the answer where it may not end. */
static void guide_everything(pn_guide *g, bool ends)
{
    memcpy(g->mask, g->text_only, g->n_words * sizeof *g->mask);
    for (uint32_t i = 0, n = pn_gtrie_count(g->trie); i < n && ends; i++)
        g->mask[i >> 5] |= 1u << (i & 31);
}

/* What a small matcher takes, too; it is over before the answer is, so its ends are none. */
static pn_status guide_also(pn_guide *g, pn_matcher *m, pn_err *err)
{
    pn_status st = pn_matcher_mask(m, g->other, NULL, err);
    for (size_t i = 0; i < g->n_words && !st; i++)
        g->mask[i] |= g->other[i] & g->text_only[i];
    return st;
}

static pn_status guide_bound_mask(pn_guide *g, pn_err *err)
{
    const guide_text *x = &g->text;
    pn_status st = PN_OK;
    if (x->state == GUIDE_START && !x->main)
        memset(g->mask, 0, g->n_words * sizeof *g->mask);
    else
        st = pn_matcher_mask(g->main, g->mask, NULL, err);
    if (!st && x->state == GUIDE_START && x->opening)
        st = guide_also(g, g->opener, err);
    if (!st && x->state == GUIDE_START && x->blanks)
        st = guide_also(g, g->blank, err);
    return st;
}

PN_INTERNAL pn_status pn_guide_mask(pn_guide *g, const uint32_t **allowed, pn_err *err)
{
    guide_state s = g->text.state;
    bool owes = s == GUIDE_WAIT && guide_owes(g), bound = s == GUIDE_START || s == GUIDE_BOUND;
    pn_status st = PN_OK;
    *allowed = NULL;
    if (!bound && !owes && !g->any_banned)
        return PN_OK;
    if (bound)
        st = guide_bound_mask(g, err);
    else
        guide_everything(g, !owes);
    uint32_t any = 0;
    for (size_t i = 0; i < g->n_words && !st; i++)
        any |= g->mask[i] &= ~g->banned[i];
    if (!st && !any)
        st = pn_fail(err, PN_E_NUMERIC, "no token of the vocabulary can continue the grammar");
    if (!st)
        *allowed = g->mask;
    return st;
}

PN_INTERNAL void pn_guide_ban(pn_guide *g, pn_token t)
{
    if (t < 0 || (size_t)t >= g->n_words * 32)
        return;
    g->banned[t >> 5] |= 1u << (t & 31);
    g->any_banned = true;
}

/* ------------------------------------------------------------------------------------------
 * Text
 * ------------------------------------------------------------------------------------------ */

static pn_status guide_bytes(pn_guide *g, const char *s, size_t n, pn_err *err);

static bool guide_is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

static void guide_push(char *buf, uint32_t *n, char c)
{
    if (*n == GUIDE_TEXT_MAX)
        memmove(buf, buf + 1, --*n);
    buf[(*n)++] = c;
}

static bool guide_tail_is(const guide_text *x, const char *text, size_t len)
{
    return len && x->n_tail >= len && memcmp(x->tail + x->n_tail - len, text, len) == 0;
}

/* A sentence is over: text again, or the end. */
static void guide_finish(pn_guide *g)
{
    guide_text *x = &g->text;
    x->state = guide_owes(g) || g->single || x->last ? GUIDE_DONE : GUIDE_FREE;
    x->n_tail = x->n_head = 0;
    x->fresh = false;
    pn_watch_text(&x->watch);
}

static pn_status guide_bound_bytes(pn_guide *g, const char *s, size_t n, pn_err *err)
{
    pn_status st = n ? pn_matcher_accept_bytes(g->main, s, n, err) : PN_OK;
    if (!st && pn_matcher_only_end(g->main))
        guide_finish(g);
    return st;
}

/* Is it at the start of the answer?  White space in front counts neither there nor here. */
static bool guide_head_is(const guide_text *x, const char *text, size_t len)
{
    for (; len && *text == ' '; len--)
        text++;
    return x->fresh && x->n_head == len && memcmp(x->head, text, len) == 0;
}

/* The trigger {"name": "f" for the name that the watch has just seen; NULL: it is no tool's. */
static const pn_trigger *guide_bare(const pn_guide *g)
{
    const pn_watch *w = &g->text.watch;
    for (size_t i = 0; i < g->n_triggers; i++) {
        const pn_trigger *t = &g->triggers[i];
        if (t->bare && t->len > w->n_word + 1 && t->text[t->len - w->n_word - 2] == '"' &&
            memcmp(t->text + t->len - w->n_word - 1, w->word, w->n_word) == 0)
            return t;
    }
    return NULL;
}

/* The longest trigger that is complete now; NULL: none. */
static const pn_trigger *guide_triggered(const pn_guide *g)
{
    const guide_text *x = &g->text;
    const pn_trigger *best = NULL;
    for (size_t i = 0; i < g->n_triggers; i++) {
        const pn_trigger *t = &g->triggers[i];
        bool here = t->bare ? false : t->at_start ? guide_head_is(x, t->text, t->len) : guide_tail_is(x, t->text, t->len);
        if (here && (!best || t->len > best->len))
            best = t;
    }
    return best;
}

/* WAIT: the reader would leave the reasoning for a call. */
static bool guide_opens(const pn_guide *g)
{
    for (size_t i = 0; i < g->n_triggers; i++)
        if (!g->triggers[i].at_start && !g->triggers[i].bare && guide_tail_is(&g->text, g->triggers[i].text, g->triggers[i].len))
            return true;
    return false;
}

/* A byte of free text has been added, s[-1]: does it change the state?  What follows it is s[0..n). */
static pn_status guide_free_byte(pn_guide *g, const char *s, size_t n, bool *moved, pn_err *err)
{
    guide_text *x = &g->text;
    size_t open = strlen(g->think_open);
    pn_watch_word word = pn_watch_byte(&x->watch, s[-1]);
    const pn_trigger *t = guide_triggered(g), *named = word == PN_WATCH_NAME || word == PN_WATCH_OTHER_NAME ? guide_bare(g) : NULL;
    *moved = true;
    if (!t && word == PN_WATCH_NAME)
        t = named;
    if ((t && g->forbid) || (!t && (word == PN_WATCH_STOP || named)))
        return pn_fail(err, PN_E_STATE, "a tool call begins where none may");
    if (t) {
        x->state = GUIDE_BOUND;
        x->last = t->last;
        pn_status st = guide_enter(g, t->lane, err);
        return st ? st : guide_bound_bytes(g, s, n, err);
    }
    if (open && x->fresh && x->n_head == open && memcmp(x->head, g->think_open, open) == 0) {
        x->state = GUIDE_WAIT;
        x->n_tail = 0;
        memcpy(x->marker, g->think_close, sizeof x->marker);
        return guide_bytes(g, s, n, err);
    }
    *moved = false;
    if (guide_tail_is(x, g->think_close, strlen(g->think_close))) {     /* of a block that nobody opened: the answer begins */
        x->n_head = 0;
        x->fresh = true;
        pn_watch_start(&x->watch, g->watch);
    }
    return PN_OK;
}

static pn_status guide_wait_done(pn_guide *g, const char *s, size_t n, pn_err *err)
{
    pn_status st = guide_start(g, true, err);
    size_t blanks = 0;
    while (blanks < n && guide_is_blank(s[blanks]))
        blanks++;
    if (st || blanks == n)
        return st;
    return guide_bytes(g, s + blanks, n - blanks, err);
}

/* Bytes in any state: what one token adds may cross several.  Recursion goes no deeper than a token has
 * markers. */
static pn_status guide_bytes(pn_guide *g, const char *s, size_t n, pn_err *err)
{
    guide_text *x = &g->text;
    bool moved;
    if (x->state == GUIDE_START) {
        x->state = GUIDE_BOUND;
        return guide_bound_bytes(g, s, n, err);
    }
    for (size_t i = 0; i < n; i++) {
        guide_push(x->tail, &x->n_tail, s[i]);
        if (x->state == GUIDE_WAIT) {
            if (guide_tail_is(x, x->marker, strlen(x->marker)))
                return guide_wait_done(g, s + i + 1, n - i - 1, err);
            if (guide_opens(g))
                return pn_fail(err, PN_E_STATE, "a tool call begins in the reasoning");
            continue;
        }
        if (x->fresh && (x->n_head || !guide_is_blank(s[i])))
            guide_push(x->head, &x->n_head, s[i]);
        x->fresh = x->fresh && x->n_head < GUIDE_TEXT_MAX;
        pn_status st = guide_free_byte(g, s + i + 1, n - i - 1, &moved, err);
        if (st || moved)
            return st;
    }
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * Tokens
 * ------------------------------------------------------------------------------------------ */

/* Did a matcher that is alive take the token?  *st: the first failure that is no refusal. */
static bool guide_takes(pn_matcher *m, bool alive, pn_token t, pn_status *st, pn_err *err)
{
    if (!alive || (*st && *st != PN_E_STATE))
        return false;
    pn_status now = pn_matcher_accept_token(m, t, err);
    if (now && now != PN_E_STATE)
        *st = now;
    return now == PN_OK;
}

/* One of the matchers that are alive at START has to take it.  Blanks leave the others where they are. */
static pn_status guide_start_token(pn_guide *g, pn_token t, pn_err *err)
{
    guide_text *x = &g->text;
    pn_status st = PN_OK;
    bool main = guide_takes(g->main, x->main, t, &st, err), open = guide_takes(g->opener, x->opening, t, &st, err);
    bool blank = !main && guide_takes(g->blank, x->blanks, t, &st, err);
    if (st)
        return st;
    if (!main && !open && !blank)
        return pn_fail(err, PN_E_STATE, "the grammar has no sentence that begins so");
    bool opened = open && pn_matcher_only_end(g->opener);
    if (opened && !main) {
        x->state = GUIDE_WAIT;
        x->n_tail = 0;
        memcpy(x->marker, g->think_close, sizeof x->marker);
        return PN_OK;
    }
    open = open && !opened;             /* a grammar that says the marker itself goes on with it */
    if (!blank) {
        x->main = main;
        x->opening = open;
        x->blanks = false;
    }
    if (main && !open)
        x->state = GUIDE_BOUND;
    if (main && !open && pn_matcher_only_end(g->main))
        guide_finish(g);
    return PN_OK;
}

static pn_status guide_token(pn_guide *g, pn_token t, pn_bytes piece, pn_err *err)
{
    switch (g->text.state) {
    case GUIDE_START: return guide_start_token(g, t, err);
    case GUIDE_BOUND: {
        pn_status st = pn_matcher_accept_token(g->main, t, err);
        if (!st && pn_matcher_only_end(g->main))
            guide_finish(g);
        return st;
    }
    default: return guide_bytes(g, piece.data, piece.len, err);
    }
}

PN_INTERNAL pn_status pn_guide_accept(pn_guide *g, pn_token t, pn_bytes piece, pn_err *err)
{
    guide_state was = g->text.state;
    if (was == GUIDE_DONE)
        return pn_fail(err, PN_E_STATE, "the answer is complete");
    if (was == GUIDE_WAIT || was == GUIDE_FREE)
        g->before = g->text;
    pn_status st = guide_token(g, t, piece, err);
    if (st && (was == GUIDE_WAIT || was == GUIDE_FREE))
        g->text = g->before;
    if (!st && g->any_banned) {
        memset(g->banned, 0, g->n_words * sizeof *g->banned);
        g->any_banned = false;
    }
    return st;
}

PN_INTERNAL pn_status pn_guide_accept_bytes(pn_guide *g, const char *bytes, size_t n, pn_err *err)
{
    pn_status st = PN_OK;
    for (size_t i = 0; i < n && !st; i++) {
        guide_state s = g->text.state;
        if (s == GUIDE_DONE)
            st = pn_fail(err, PN_E_STATE, "the answer is complete");
        else
            st = s == GUIDE_BOUND ? guide_bound_bytes(g, bytes + i, 1, err) : guide_bytes(g, bytes + i, 1, err);
    }
    return st;
}

PN_INTERNAL bool pn_guide_done(const pn_guide *g) { return g->text.state == GUIDE_DONE; }

PN_INTERNAL bool pn_guide_may_end(const pn_guide *g)
{
    switch (g->text.state) {
    case GUIDE_WAIT: return !guide_owes(g);
    case GUIDE_START: case GUIDE_BOUND: return pn_matcher_is_complete(g->main);
    default: return true;
    }
}
