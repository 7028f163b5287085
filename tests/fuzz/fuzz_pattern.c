/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * fuzz_pattern.c - a byte of flags, a pattern, a zero byte, then a text.
 *
 * Flags: bits 0 to 2 the cut, 8 inverted, 16 a text and not an expression.  What is checked: every match is the
 * one that backtracking over the tree finds, as far as that ends soon; the pieces lie in the text in order, and
 * are all of it unless some are removed.
 */
#include "text/pn_pattern_impl.h"
#include "text/pn_pretok.h"

#include "pn_fuzz.h"

enum { STEPS = 2000 };

/* --- the slow way -------------------------------------------------------------------------- */

/* What comes after a node: the rest of a sequence, another round of a repetition, nothing more. */
typedef struct rest {
    int32_t node;               /* -1: done */
    uint32_t at;                /* children, or rounds, behind us */
    const struct rest *up;
} rest;

typedef struct slow {
    const pn_pat_tree *t;
    const char *s;
    size_t n;
    int steps;
} slow;

static uint32_t slow_node(slow *w, int32_t at, size_t pos, const rest *k);

/* Child i of a node, in the order of the text. */
static int32_t slow_child(const slow *w, const pn_pat_node *n, uint32_t i)
{
    uint32_t count = 0;
    for (int32_t c = n->child; c >= 0; c = w->t->nodes[c].prev)
        count++;
    if (i >= count)
        return -1;
    int32_t c = n->child;
    for (; count - 1 > i; count--)
        c = w->t->nodes[c].prev;
    return c;
}

static uint32_t slow_go(slow *w, size_t pos, const rest *k)
{
    if (k->node < 0)
        return (uint32_t)pos;
    const pn_pat_node *n = &w->t->nodes[k->node];
    if (n->kind == PN_PAT_SEQ) {
        int32_t c = slow_child(w, n, k->at);
        rest next = {k->node, k->at + 1, k->up};
        return c < 0 ? slow_go(w, pos, k->up) : slow_node(w, c, pos, &next);
    }
    rest next = {k->node, k->at + 1, k->up};
    uint32_t end = PN_PATTERN_NONE;
    if (k->at < n->min)
        return slow_node(w, n->child, pos, &next);
    if (n->lazy)
        end = slow_go(w, pos, k->up);
    if (end == PN_PATTERN_NONE && k->at < n->max)
        end = slow_node(w, n->child, pos, &next);
    if (end == PN_PATTERN_NONE && !n->lazy)
        end = slow_go(w, pos, k->up);
    return end;
}

static bool slow_in(const slow *w, uint32_t set, bool have, uint32_t cp)
{
    const pn_pat_set *s = &w->t->sets[set];
    size_t i = 0;
    while (i < s->n && s->r[i].b < cp)
        i++;
    return have && i < s->n && s->r[i].a <= cp;
}

static bool slow_assert(slow *w, const pn_pat_node *n, size_t pos)
{
    uint32_t before = 0, at = 0;
    size_t p = 0, len = 0;
    for (; p < pos; p += len)                   /* forward, as a text is read */
        len = pn_utf8_decode(w->s + p, w->n - p, &before);
    bool begins = pos == 0, ends = pos == w->n;
    if (!ends)
        pn_utf8_decode(w->s + pos, w->n - pos, &at);
    switch ((pn_pat_assert)n->cp) {
    case PN_PAT_BEGIN: return begins;
    case PN_PAT_END: return ends;
    case PN_PAT_LINE_BEGIN: return begins || (before == '\n' && !ends);
    case PN_PAT_LINE_END: return ends || at == '\n';
    case PN_PAT_LAST_LINE_END: return ends || (at == '\n' && pos + 1 == w->n);
    case PN_PAT_BOUNDARY: return (slow_in(w, n->set, !begins, before) != slow_in(w, n->set, !ends, at)) != n->negated;
    case PN_PAT_BEHIND: return slow_in(w, n->set, !begins, before) != n->negated;
    }
    return false;
}

static uint32_t slow_node(slow *w, int32_t at, size_t pos, const rest *k)
{
    static const rest done = {-1, 0, NULL};
    const pn_pat_node *n = &w->t->nodes[at];
    uint32_t cp = 0, end = PN_PATTERN_NONE;
    if (--w->steps < 0)
        return PN_PATTERN_NONE;
    rest first = {at, 0, k};
    switch (n->kind) {
    case PN_PAT_CHAR:
    case PN_PAT_SET: {
        size_t len = pn_utf8_decode(w->s + pos, w->n - pos, &cp);
        bool fits = len && (n->kind == PN_PAT_CHAR ? cp == n->cp : slow_in(w, n->cp, true, cp));
        return fits ? slow_go(w, pos + len, k) : PN_PATTERN_NONE;
    }
    case PN_PAT_SEQ:
    case PN_PAT_REPEAT: return slow_go(w, pos, &first);
    case PN_PAT_ALT:
        for (uint32_t i = 0; end == PN_PATTERN_NONE && slow_child(w, n, i) >= 0; i++)
            end = slow_node(w, slow_child(w, n, i), pos, k);
        return end;
    case PN_PAT_ATOMIC:
        end = slow_node(w, n->child, pos, &done);
        return end == PN_PATTERN_NONE ? end : slow_go(w, end, k);
    case PN_PAT_LOOK: return (slow_node(w, n->child, pos, &done) != PN_PATTERN_NONE) != n->negated ? slow_go(w, pos, k) : PN_PATTERN_NONE;
    case PN_PAT_ASSERT: return slow_assert(w, n, pos) ? slow_go(w, pos, k) : PN_PATTERN_NONE;
    }
    return end;
}

/* ------------------------------------------------------------------------------------------- */

static void require(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "fuzz_pattern: %s\n", what);
        abort();
    }
}

static void check_matches(pn_mem *mem, const pn_pattern *p, const pn_pat_tree *t, const char *text, size_t n)
{
    static const rest done = {-1, 0, NULL};
    size_t bytes = (n + 1 + pn_pattern_scratch(p)) * sizeof(uint32_t);
    uint32_t *ends = pn_mem_alloc(mem, PN_ACCT_MISC, bytes);
    require(ends != NULL, "no memory");
    pn_pattern_run(p, text, n, ends, ends + n + 1);
    int places = 64;
    for (size_t pos = 0; pos <= n && places--;) {
        uint32_t cp;
        slow w = {.t = t, .s = text, .n = n, .steps = STEPS};
        uint32_t end = slow_node(&w, t->root, pos, &done);
        require(w.steps < 0 || end == ends[pos], "backtracking finds another match");
        require(ends[pos] == PN_PATTERN_NONE || (ends[pos] >= pos && ends[pos] <= n), "a match outside the text");
        pos += pos < n ? pn_utf8_decode(text + pos, n - pos, &cp) : 1;
    }
    pn_mem_free(mem, PN_ACCT_MISC, ends, bytes);
}

typedef struct pieces {
    const char *at;
    size_t bytes;
} pieces;

static bool piece(void *user, const char *s, size_t n)
{
    pieces *p = user;
    require(n && s >= p->at, "pieces out of order");
    p->at = s + n;
    p->bytes += n;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pn_mem mem;
    pn_err err = {0};
    pn_pat_tree t;
    pn_pretok_pattern level = {.cut = PN_CUT_ISOLATED};
    if (size < 1)
        return 0;
    const char *pattern = (const char *)data + 1, *text = memchr(pattern, 0, size - 1);
    size_t len = text ? (size_t)(text - pattern) : size - 1, n = text ? size - len - 2 : 0;
    pn_mem_init_libc(&mem);
    text = text ? text + 1 : "";
    level.cut = (pn_pretok_cut)((data[0] & 7) % 5);
    level.invert = data[0] & 8;
    pn_status st = pn_pattern_new(&level.program, &mem, pattern, len, data[0] & 16, &err);
    require(!st || err.text[0], "a refusal without a word");
    if (st)
        return 0;
    require(!pn_pat_read(&t, &mem, pattern, len, data[0] & 16, NULL), "read once, but not twice");
    check_matches(&mem, level.program, &t, text, n);
    pn_pat_tree_fini(&t);
    pn_pretok p = {.levels = {&level}};
    pieces got = {text, 0};
    require(pn_pretok_split(&p, &mem, text, n, piece, &got), "a split that failed");
    require(got.bytes <= n && (level.cut == PN_CUT_REMOVED || got.bytes == n), "pieces that are not the text");
    pn_pattern_free(level.program);
    return 0;
}
