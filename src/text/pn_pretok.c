/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_pretok.c - applying the tables of pn_pretok_rules.c.
 *
 * At each place the rules of a pattern are tried in order; the first that matches gives a piece, and
 * characters no rule matches gather into a piece of their own (a gap).  The next level of the list
 * then cuts each piece as if it were a text of its own, which is why look-ahead sees the piece's end.
 *
 * Linear time: a rule that fails has looked at a bounded number of characters, or at a run of white
 * space or digits whose extent is remembered (pre_run), so no run is walked once per character.  A program
 * says all its matches at once.
 */
#include "text/pn_pretok.h"

typedef struct pre_run {
    size_t from, to;        /* known extent; positions in [from, to) belong to the run */
    size_t last;            /* start of its last character */
    size_t after_nl;        /* end of its last CR or LF; 0: none */
    size_t last_lf;         /* its last LF, not when it begins the run; 0: none */
    size_t left;            /* characters from `from` on */
} pre_run;

typedef struct pre_text {
    const char *s;
    size_t n;
    pre_run space, digits;
} pre_text;

typedef struct pre_split {
    const pn_pretok *p;
    pn_mem *mem;
    pn_pretok_emit emit;
    void *user;
    uint32_t *ends[PN_PRETOK_MAX_LEVELS];       /* of a program's matches, and its scratch */
    size_t cap[PN_PRETOK_MAX_LEVELS];
} pre_split;

static bool pre_in_ranges(const pn_uni_pair *r, uint32_t cp)
{
    for (; r->b; r++)
        if (cp <= r->b)
            return cp >= r->a;
    return false;
}

/* Length of the character at p when it is in the set, else 0 (also at the end of the text). */
static inline size_t pre_take(const pre_text *t, size_t p, const pn_pretok_set *set)
{
    uint32_t cp;
    if (p >= t->n)
        return 0;
    size_t len = pn_utf8_decode(t->s + p, t->n - p, &cp);
    uint64_t m = pn_uni_class(cp);
    if (m & set->out)
        return 0;
    if (!(m & set->in) && !(set->add && pre_in_ranges(set->add, cp)))
        return 0;
    if (set->sub && pre_in_ranges(set->sub, cp))
        return 0;
    return len;
}

/* End of the longest run of at most `max` (0: any number) characters of set; *count: how many. */
static size_t pre_run_end(const pre_text *t, size_t p, const pn_pretok_set *set, size_t max, size_t *count)
{
    size_t n = 0, len;
    while ((!max || n < max) && (len = pre_take(t, p, set)) != 0) {
        p += len;
        n++;
    }
    if (count)
        *count = n;
    return p;
}

static bool pre_is(const pre_text *t, size_t p, const char *word)
{
    size_t n = strlen(word);
    return t->n - p >= n && memcmp(t->s + p, word, n) == 0;
}

/* Fill the cache with the run at p, if p is not inside the known one. */
static const pre_run *pre_find_run(const pre_text *t, pre_run *r, size_t p, const pn_pretok_set *set)
{
    static const pn_pretok_set newline = {.in = PN_US_CR | PN_US_LF};
    if (p >= r->from && p < r->to) {
        for (size_t len; r->from < p; r->from += len, r->left--) {     /* each character once */
            uint32_t cp;
            len = pn_utf8_decode(t->s + r->from, t->n - r->from, &cp);
        }
        return r;
    }
    *r = (pre_run){.from = p, .to = p};
    for (size_t len; (len = pre_take(t, r->to, set)) != 0; r->to += len) {
        r->last = r->to;
        if (pre_take(t, r->to, &newline))
            r->after_nl = r->to + len;
        if (t->s[r->to] == '\n')
            r->last_lf = r->to;
        r->left++;
    }
    return r;
}

static const pre_run *pre_spaces(pre_text *t, size_t p)
{
    static const pn_pretok_set ws = {.in = PN_US_WS};
    return pre_find_run(t, &t->space, p, &ws);
}

/* 's 't 'm 'd 're 've 'll at p: its end, or p. */
static size_t pre_contraction(const pre_text *t, size_t p, bool any_case)
{
    if (p + 1 >= t->n || t->s[p] != '\'')
        return p;
    char a = t->s[p + 1], b = p + 2 < t->n ? t->s[p + 2] : 0;
    if (any_case) {
        a = a >= 'A' && a <= 'Z' ? (char)(a + 32) : a;
        b = b >= 'A' && b <= 'Z' ? (char)(b + 32) : b;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return p + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return p + 3;
    return p;
}

/* pre? body{min,max} tail*: with the prefix if that works, else without. */
static size_t pre_seq(const pre_text *t, size_t p, const pn_pretok_rule *r)
{
    size_t skip = r->pre ? pre_take(t, p, r->pre) : 0, n, q = p;
    if (r->kind == PN_PRE_SEQ_MUST && !skip)
        return p;
    for (;;) {
        q = pre_run_end(t, p + skip, r->body, r->max, &n);
        if (n >= r->min)
            break;
        if (!skip || r->kind == PN_PRE_SEQ_MUST)
            return p;
        skip = 0;
    }
    return r->tail ? pre_run_end(t, q, r->tail, r->tail_max, NULL) : q;
}

/* upper* lower+ at p, greedy with one step back: when no lower follows the uppers, the last of them
 * that also counts as lower (Lm, Lo, M) is the lower.  Returns p when there is none. */
static size_t pre_cased_lower(const pre_text *t, size_t p, const pn_pretok_rule *r)
{
    size_t u = p, len, last_lower = p;
    while ((len = pre_take(t, u, r->body)) != 0) {
        if (pre_take(t, u, r->tail))
            last_lower = u + len;
        u += len;
    }
    size_t end = pre_run_end(t, u, r->tail, 0, NULL);
    return end > u ? end : last_lower;
}

static size_t pre_cased_upper(const pre_text *t, size_t p, const pn_pretok_rule *r)
{
    size_t u = pre_run_end(t, p, r->body, 0, NULL);
    return u > p ? pre_run_end(t, u, r->tail, 0, NULL) : p;
}

static size_t pre_cased(const pre_text *t, size_t p, const pn_pretok_rule *r)
{
    size_t skip = pre_take(t, p, r->pre), end = p;
    if (skip && (end = pre_cased_lower(t, p + skip, r)) == p + skip)
        end = p;
    if (end == p)
        end = pre_cased_lower(t, p, r);
    if (end == p && skip && (end = pre_cased_upper(t, p + skip, r)) == p + skip)
        end = p;
    if (end == p)
        end = pre_cased_upper(t, p, r);
    if (end > p && r->kind == PN_PRE_CASED)
        end = pre_contraction(t, end, true);
    return end;
}

/* All of a run that reaches the end, else all but its last character. */
static size_t pre_space_ahead(pre_text *t, size_t p)
{
    const pre_run *w = pre_spaces(t, p);
    return w->to == t->n || w->to == p ? w->to : w->last;
}

/* `k` spaces not followed by a non-space: only the run's end can be followed by one. */
static size_t pre_space_pow2(pre_text *t, size_t p)
{
    const pre_run *w = pre_spaces(t, p);
    size_t usable = w->to == t->n ? w->left : w->left - (w->left != 0), k = 512, end = p;
    if (w->to == p)
        return p;
    while (k > 2 && k > usable)
        k /= 2;
    if (k > usable)
        k = 1;                                  /* \s{1,2}(?!\S), or the last \s */
    for (uint32_t cp; k; k--)
        end += pn_utf8_decode(t->s + end, t->n - end, &cp);
    return end;
}

static size_t pre_right3(pre_text *t, size_t p, const pn_pretok_rule *r)
{
    static const pn_uni_pair more[] = {{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}, {0x24B6, 0x24E9},
                                       {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}, {0, 0}};
    static const pn_pretok_set word = {.in = PN_US_L | PN_US_M | PN_US(ND) | PN_US(NL) | PN_US(PC), .add = more};
    const pre_run *d = pre_find_run(t, &t->digits, p, r->body);
    if (d->to == p || (r->kind == PN_PRE_RIGHT3_WORD && pre_take(t, d->to, &word)))
        return p;
    size_t k = d->left % 3 ? d->left % 3 : 3, end = p;
    for (uint32_t cp; k; k--)
        end += pn_utf8_decode(t->s + end, t->n - end, &cp);
    return end;
}

/* Is p in front of 3, 6, 9 ... digits and no more? */
static bool pre_is_edge(pre_text *t, size_t p, const pn_pretok_rule *r)
{
    const pre_run *d = pre_find_run(t, &t->digits, p, r->body);
    return d->to > p && d->left % 3 == 0;
}

static size_t pre_right3_edge(pre_text *t, size_t p, const pn_pretok_rule *r)
{
    size_t end = p;
    if (!pre_is_edge(t, p, r))
        return p;
    for (uint32_t cp; end == p || (end < t->n && !pre_is_edge(t, end, r));)
        end += pn_utf8_decode(t->s + end, t->n - end, &cp);
    return end;
}

static size_t pre_superword(const pre_text *t, size_t p, const pn_pretok_rule *r)
{
    static const pn_pretok_set letter = {.in = PN_US_L}, mark = {.in = PN_US_M};
    size_t skip = pre_take(t, p, r->pre), len;
    size_t q = p + skip;
    if (!pre_take(t, q, &letter))               /* no prefix is a letter, so none to give back */
        return p;
    while ((len = pre_take(t, q, &letter)) != 0 ||
           (q < t->n && t->s[q] == ' ' && (len = pre_take(t, q + 1, &letter)) != 0 && ++q))
        q = pre_run_end(t, q + len, &mark, 0, NULL);
    return q;
}

static size_t pre_sentinel(const pre_text *t, size_t p)
{
    size_t q = p + 10;
    if (!pre_is(t, p, "<sentinel:"))
        return p;
    while (q < t->n && t->s[q] >= '0' && t->s[q] <= '9')
        q++;
    return q > p + 10 && q < t->n && t->s[q] == '>' ? q + 1 : p;
}

static size_t pre_image(const pre_text *t, size_t p)
{
    size_t q = p + 6;
    if (!pre_is(t, p, "IMGIMG"))
        return p;
    while (q < t->n && q < p + 10 && t->s[q] >= 'A' && t->s[q] <= 'I')
        q++;
    return q > p + 6 && q < t->n && t->s[q] == 'Z' ? q + 1 : p;
}

static size_t pre_indent(const pre_text *t, size_t p)
{
    if (t->s[p] == '\t' || t->s[p] == '\n')
        return p + 1;
    return pre_is(t, p, "    ") ? p + 4 : pre_is(t, p, "  ") ? p + 2 : p;
}

/* End of what rule r matches at p; p: nothing. */
static size_t pre_rule(pre_text *t, size_t p, const pn_pretok_rule *r)
{
    const pre_run *w;
    switch (r->kind) {
    case PN_PRE_SEQ:
    case PN_PRE_SEQ_MUST: return pre_seq(t, p, r);
    case PN_PRE_CONTRACTION: return pre_contraction(t, p, false);
    case PN_PRE_CONTRACTION_CI: return pre_contraction(t, p, true);
    case PN_PRE_CASED:
    case PN_PRE_CASED_PLAIN: return pre_cased(t, p, r);
    case PN_PRE_NEWLINES:
        w = pre_spaces(t, p);
        return w->after_nl > p ? w->after_nl : p;
    case PN_PRE_SPACE_AHEAD: return pre_space_ahead(t, p);
    case PN_PRE_SPACE_END:
        w = pre_spaces(t, p);           /* $ is in front of a line's end, too */
        return w->to == t->n ? w->to : w->last_lf > p ? w->last_lf : p;
    case PN_PRE_SPACE_POW2: return pre_space_pow2(t, p);
    case PN_PRE_RIGHT3:
    case PN_PRE_RIGHT3_WORD: return pre_right3(t, p, r);
    case PN_PRE_RIGHT3_EDGE: return pre_right3_edge(t, p, r);
    case PN_PRE_SUPERWORD: return pre_superword(t, p, r);
    case PN_PRE_SENTINEL: return pre_sentinel(t, p);
    case PN_PRE_IMAGE: return pre_image(t, p);
    case PN_PRE_INDENT: return pre_indent(t, p);
    }
    return p;
}

static bool pre_level(pre_split *sp, size_t level, const char *s, size_t n);

/* Matches and what lies between them, in order, on their way to becoming pieces. */
typedef struct pre_items {
    pre_split *sp;
    size_t level;
    const char *s;
    pn_pretok_cut cut;
    bool invert;
    bool have, match;           /* s[from..to) waits; the last item was a match */
    size_t from, to;
} pre_items;

static bool pre_flush(pre_items *it)
{
    bool have = it->have;
    it->have = false;
    return !have || pre_level(it->sp, it->level + 1, it->s + it->from, it->to - it->from);
}

static bool pre_item(pre_items *it, size_t from, size_t to, bool match)
{
    bool last = it->match, joins = false;
    match ^= it->invert;
    it->match = match;
    switch (it->cut) {
    case PN_CUT_ISOLATED: break;
    case PN_CUT_REMOVED: break;
    case PN_CUT_WITH_PREVIOUS: joins = match && !last; break;
    case PN_CUT_WITH_NEXT: joins = !match && last; break;
    case PN_CUT_CONTIGUOUS: joins = match == last; break;
    }
    if (joins && it->have) {
        it->to = to;
        return true;
    }
    if (!pre_flush(it))
        return false;
    it->have = it->cut != PN_CUT_REMOVED || !match;
    it->from = from;
    it->to = to;
    return true;
}

static size_t pre_step(const pre_text *t, size_t p)
{
    uint32_t cp;
    return p < t->n ? pn_utf8_decode(t->s + p, t->n - p, &cp) : 1;
}

/* Any pattern, any cut.  A match may be empty, but not right behind another. */
static bool pre_cut(pre_split *sp, size_t level, const char *s, size_t n)
{
    const pn_pretok_pattern *pat = sp->p->levels[level];
    pre_text t = {.s = s, .n = n};
    pre_items it = {.sp = sp, .level = level, .s = s, .cut = pat->cut, .invert = pat->invert};
    size_t done = 0;
    bool any = false;
    if (pat->program) {
        size_t need = n + 1 + pn_pattern_scratch(pat->program);
        if (!pn_mem_grow(sp->mem, PN_ACCT_MISC, (void **)&sp->ends[level], &sp->cap[level], need, sizeof **sp->ends))
            return false;
        pn_pattern_run(pat->program, s, n, sp->ends[level], sp->ends[level] + n + 1);
    }
    for (size_t p = 0; p < n + (pat->program != NULL);) {
        size_t q = pat->program ? sp->ends[level][p] : p;
        for (size_t i = 0; i < pat->n_rules && q == p; i++)
            q = pre_rule(&t, p, &pat->rules[i]);
        if (pat->program ? q == PN_PATTERN_NONE || (q == p && any && done == p) : q == p) {
            p += pre_step(&t, p);
            continue;
        }
        if ((done != p && !pre_item(&it, done, p, false)) || !pre_item(&it, p, q, true))
            return false;
        done = p = q;
        any = true;
    }
    return (done == n || pre_item(&it, done, n, false)) && pre_flush(&it);
}

/* Cut s[0..n) by level `level` of the list and what follows it. */
static bool pre_level(pre_split *sp, size_t level, const char *s, size_t n)
{
    if (!n)
        return true;
    if (level == PN_PRETOK_MAX_LEVELS || !sp->p->levels[level])
        return sp->emit(sp->user, s, n);
    const pn_pretok_pattern *pat = sp->p->levels[level];
    bool keep_gaps = !(sp->p->flags & PN_PRETOK_DROP_GAPS);
    pre_text t = {.s = s, .n = n};
    size_t gap = 0, p = 0;
    if (pat->program || pat->cut != PN_CUT_ISOLATED)
        return pre_cut(sp, level, s, n);
    while (p < n) {
        size_t q = p;
        for (size_t i = 0; i < pat->n_rules && q == p; i++)
            q = pre_rule(&t, p, &pat->rules[i]);
        if (q == p) {
            p += pre_step(&t, p);
            continue;
        }
        if (keep_gaps && !pre_level(sp, level + 1, s + gap, p - gap))
            return false;
        if (!pre_level(sp, level + 1, s + p, q - p))
            return false;
        gap = p = q;
    }
    return !keep_gaps || pre_level(sp, level + 1, s + gap, n - gap);
}

PN_INTERNAL bool pn_pretok_split(const pn_pretok *p, pn_mem *mem, const char *text, size_t n, pn_pretok_emit emit, void *user)
{
    pre_split sp = {.p = p, .mem = mem, .emit = emit, .user = user};
    bool ok = pre_level(&sp, 0, text, n);
    for (size_t i = 0; i < PN_PRETOK_MAX_LEVELS; i++)
        pn_mem_free(mem, PN_ACCT_MISC, sp.ends[i], sp.cap[i] * sizeof *sp.ends[i]);
    return ok;
}

PN_INTERNAL unsigned pn_pretok_flags(const pn_pretok *p) { return p->flags; }

PN_INTERNAL const pn_pretok *pn_pretok_find(const char *name, size_t len)
{
    size_t n;
    const pn_pretok *t = pn_pretok_table(&n);
    if (!len || memchr(name, ' ', len))
        return NULL;
    for (size_t i = 0; i < n; i++) {
        size_t have = strlen(t[i].names);
        for (size_t at = 0; at + len + 2 <= have; at++)
            if (t[i].names[at] == ' ' && t[i].names[at + len + 1] == ' ' &&
                memcmp(t[i].names + at + 1, name, len) == 0)
                return &t[i];
    }
    return NULL;
}
