/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_gchars.c - characters, words and JSON strings as automata over bytes.
 *
 * A class of code points becomes a deterministic automaton over UTF-8: the 64-way tree of
 * continuation bytes, in which whole subtrees that are in the class share one tail and those that
 * are not are absent.  Overlong forms, surrogates and what is above U+10FFFF cannot be reached, so
 * nobody asks about half characters at run time.
 */
#include "sample/pn_gram_impl.h"

#include "base/pn_str.h"
#include "base/pn_utf8.h"

/* An automaton under construction. */
typedef struct gchars_auto {
    pn_gir *b;
    PN_GVEC(pn_gedge) edges;
    PN_GVEC(uint8_t) accept;
} gchars_auto;

static uint32_t gchars_state(gchars_auto *a, bool accept)
{
    if (!PN_GIR_ROOM(a->b, a->accept, 1))
        return 0;
    a->accept.v[a->accept.n] = accept;
    return (uint32_t)a->accept.n++;
}

static void gchars_edge(gchars_auto *a, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    if (PN_GIR_ROOM(a->b, a->edges, 1))
        a->edges.v[a->edges.n++] = (pn_gedge){from, to, (uint8_t)lo, (uint8_t)hi};
}

static pn_gnode gchars_done(gchars_auto *a)
{
    pn_gnode r = pn_gir_ok(a->b) ? pn_gir_dfa(a->b, a->edges.v, a->edges.n, a->accept.v, (uint32_t)a->accept.n) : PN_GNODE_NONE;
    pn_mem_free(a->b->mem, PN_ACCT_GRAMMAR, a->edges.v, a->edges.cap * sizeof *a->edges.v);
    pn_mem_free(a->b->mem, PN_ACCT_GRAMMAR, a->accept.v, a->accept.cap);
    return r;
}

/* ---- classes ------------------------------------------------------------------------------------ */

typedef struct gchars_class {
    gchars_auto a;
    pn_cp_range *r;             /* [n] ascending, disjoint */
    size_t n, at;               /* at: ranges before it end below all that is still asked for */
    uint32_t tail[4];           /* state that takes k continuation bytes, any; 0: not made yet */
} gchars_class;

enum { GCHARS_NONE, GCHARS_ALL, GCHARS_SOME };

/* How much of lo..hi, as far as it lies within floor..ceil, is in the class; what lies outside of
 * floor..ceil does not exist (overlong forms).  Asked in ascending order, so nothing is searched. */
static int gchars_cover(gchars_class *c, uint32_t lo, uint32_t hi, uint32_t floor, uint32_t ceil)
{
    bool clipped = lo < floor || hi > ceil;
    lo = PN_MAX(lo, floor);
    hi = PN_MIN(hi, ceil);
    while (c->at < c->n && c->r[c->at].hi < lo)
        c->at++;
    if (lo > hi || c->at == c->n || c->r[c->at].lo > hi)
        return GCHARS_NONE;
    return !clipped && c->r[c->at].lo <= lo && c->r[c->at].hi >= hi ? GCHARS_ALL : GCHARS_SOME;
}

static uint32_t gchars_tail(gchars_class *c, uint32_t k)
{
    if (!c->tail[k]) {
        c->tail[k] = gchars_state(&c->a, k == 0);
        if (k)
            gchars_edge(&c->a, c->tail[k], gchars_tail(c, k - 1), 0x80, 0xBF);
    }
    return c->tail[k];
}

/* Edges of `from` over bytes first..last, each standing for 64^levels code points from `base` on. */
static void gchars_level(gchars_class *c, uint32_t from, uint32_t first, uint32_t last, uint32_t base,
                         uint32_t levels, uint32_t floor, uint32_t ceil)
{
    uint32_t size = 1u << (6 * levels), begin = 0, run = 0;     /* begin..: bytes that go to `run` */
    if (!pn_gir_steps(c->a.b, last - first + 1))
        return;
    for (uint32_t byte = first; byte <= last; byte++, base += size) {
        int cover = gchars_cover(c, base, base + size - 1, floor, ceil);
        uint32_t to = cover == GCHARS_ALL ? gchars_tail(c, levels) : 0;
        if (run && run != to)
            gchars_edge(&c->a, from, run, begin, byte - 1);
        if (run != to)
            begin = byte;
        run = to;
        if (cover == GCHARS_SOME) {             /* levels >= 1: one code point is all or none */
            uint32_t child = gchars_state(&c->a, false);
            gchars_edge(&c->a, from, child, byte, byte);
            gchars_level(c, child, 0x80, 0xBF, base, levels - 1, floor, ceil);
        }
    }
    if (run)
        gchars_edge(&c->a, from, run, begin, last);
}

/* Sort, clip to what exists, join, and turn inside out when asked to.  `r` has room for 2 n + 4. */
static size_t gchars_normal(pn_cp_range *r, size_t n, bool negated)
{
    size_t kept = 0;
    for (size_t gap = n / 2; gap > 0; gap /= 2)                 /* Shell sort: no recursion, no memory */
        for (size_t i = gap; i < n; i++) {
            pn_cp_range x = r[i];
            size_t j = i;
            for (; j >= gap && r[j - gap].lo > x.lo; j -= gap)
                r[j] = r[j - gap];
            r[j] = x;
        }
    for (size_t i = 0; i < n; i++) {
        if (r[i].lo > r[i].hi || r[i].lo > 0x10FFFF)
            continue;
        pn_cp_range x = {r[i].lo, PN_MIN(r[i].hi, 0x10FFFFu)};
        if (kept && r[kept - 1].hi + 1 >= x.lo)
            r[kept - 1].hi = PN_MAX(r[kept - 1].hi, x.hi);
        else
            r[kept++] = x;
    }
    if (negated) {
        uint32_t next = 0;
        pn_cp_range *out = r + n + 2;
        size_t m = 0;
        for (size_t i = 0; i < kept; i++) {
            if (r[i].lo > next)
                out[m++] = (pn_cp_range){next, r[i].lo - 1};
            next = r[i].hi + 1;
        }
        if (next <= 0x10FFFF)
            out[m++] = (pn_cp_range){next, 0x10FFFF};
        memmove(r, out, m * sizeof *r);
        kept = m;
    }
    return kept;
}

/* Take U+D800..DFFF out.  May add one range. */
static size_t gchars_no_surrogates(pn_cp_range *r, size_t n)
{
    size_t m = 0;
    pn_cp_range extra = {1, 0};
    for (size_t i = 0; i < n; i++) {
        pn_cp_range x = r[i];
        if (x.hi < 0xD800 || x.lo > 0xDFFF) {
            r[m++] = x;
            continue;
        }
        bool below = x.lo < 0xD800, above = x.hi > 0xDFFF;
        if (above)
            extra = (pn_cp_range){0xE000, x.hi};
        if (below)
            r[m++] = (pn_cp_range){x.lo, 0xD7FF};
    }
    if (extra.lo <= extra.hi) {                 /* in its place: all before it are below U+D800 */
        size_t at = 0;
        while (at < m && r[at].hi < 0xD800)
            at++;
        memmove(r + at + 1, r + at, (m - at) * sizeof *r);
        r[at] = extra;
        m++;
    }
    return m;
}

static pn_gnode gchars_class_node(pn_gir *b, pn_cp_range *r, size_t n)
{
    gchars_class c;
    memset(&c, 0, sizeof c);
    c.a.b = b;
    c.r = r;
    c.n = n;
    if (n == 0)
        return pn_gir_never(b);
    if (r[n - 1].hi < 0x80) {                   /* plain ASCII is a byte set */
        uint32_t set[8] = {0};
        for (size_t i = 0; i < n; i++)
            for (uint32_t cp = r[i].lo; cp <= r[i].hi; cp++)
                pn_gset_add(set, cp);
        return pn_gir_byte_set(b, set);
    }
    gchars_state(&c.a, false);
    gchars_level(&c, 0, 0x00, 0x7F, 0, 0, 0, 0x7F);
    gchars_level(&c, 0, 0xC2, 0xDF, 0x80, 1, 0x80, 0x7FF);
    gchars_level(&c, 0, 0xE0, 0xEF, 0, 2, 0x800, 0xFFFF);
    gchars_level(&c, 0, 0xF0, 0xF4, 0, 3, 0x10000, 0x10FFFF);
    return gchars_done(&c.a);
}

PN_INTERNAL pn_gnode pn_gir_class(pn_gir *b, const pn_cp_range *ranges, size_t n, bool negated)
{
    if (n > b->limits.elements)
        return pn_gir_fail(b, PN_E_INVALID, "a class of %zu ranges is too large (limit elements: %lu)", n,
                           (unsigned long)b->limits.elements);
    if (!pn_gir_steps(b, 4 * (uint64_t)n))      /* sorting them, mostly */
        return PN_GNODE_NONE;
    pn_cp_range *r = pn_mem_calloc(b->mem, PN_ACCT_GRAMMAR, 2 * (uint64_t)n + 4, sizeof *r);
    if (!r) {
        b->err.status = pn_fail_nomem(&b->err, "a class", (2 * (uint64_t)n + 4) * sizeof *r);
        return PN_GNODE_NONE;
    }
    if (n)
        memcpy(r, ranges, n * sizeof *r);
    size_t kept = gchars_no_surrogates(r, gchars_normal(r, n, negated));
    pn_gnode node = gchars_class_node(b, r, kept);
    pn_mem_free(b->mem, PN_ACCT_GRAMMAR, r, (2 * n + 4) * sizeof *r);
    return node;
}

/* ---- words --------------------------------------------------------------------------------------- */

static int gchars_compare(pn_bytes x, pn_bytes y)
{
    int order = memcmp(x.data, y.data, PN_MIN(x.len, y.len));
    return order ? order : (x.len > y.len) - (x.len < y.len);
}

/* Bottom-up merge sort: a stable order without recursion or libc's qsort (no context there). */
PN_INTERNAL bool pn_gram_sort_texts(pn_mem *mem, const pn_bytes *texts, uint32_t *order, uint32_t n)
{
    uint32_t *tmp = pn_mem_calloc(mem, PN_ACCT_GRAMMAR, n, sizeof *tmp), *from = order, *to = tmp;
    if (!tmp)
        return false;
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint64_t width = 1; width < n; width *= 2) {
        for (uint64_t at = 0; at < n; at += 2 * width) {
            uint64_t i = at, mid = PN_MIN(at + width, n), j = mid, end = PN_MIN(at + 2 * width, n);
            for (uint64_t k = at; k < end; k++) {
                bool left = i < mid && (j == end || gchars_compare(texts[from[i]], texts[from[j]]) <= 0);
                to[k] = left ? from[i++] : from[j++];
            }
        }
        uint32_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != order && n)
        memcpy(order, from, n * sizeof *order);
    pn_mem_free(mem, PN_ACCT_GRAMMAR, tmp, n * sizeof *tmp);
    return true;
}

static size_t gchars_common(pn_bytes x, pn_bytes y)
{
    size_t n = 0, max = PN_MIN(x.len, y.len);
    while (n < max && x.data[n] == y.data[n])
        n++;
    return n;
}

/* Words in order share a prefix with the word before; path[k] is the state after k bytes of it. */
static void gchars_words(gchars_auto *a, const pn_bytes *words, const uint32_t *order, size_t n, uint32_t *path)
{
    pn_bytes before = {"", 0};
    path[0] = gchars_state(a, false);
    for (size_t i = 0; i < n && pn_gir_ok(a->b); i++) {
        pn_bytes w = words[order[i]];
        size_t k = gchars_common(before, w);
        if (!pn_gir_steps(a->b, w.len + 1) || a->accept.n > a->b->limits.elements)
            break;
        for (; k < w.len; k++) {
            path[k + 1] = gchars_state(a, false);
            gchars_edge(a, path[k], path[k + 1], (uint8_t)w.data[k], (uint8_t)w.data[k]);
        }
        if (pn_gir_ok(a->b))
            a->accept.v[path[w.len]] = 1;
        before = w;
    }
}

PN_INTERNAL pn_gnode pn_gir_words(pn_gir *b, const pn_bytes *words, size_t n)
{
    gchars_auto a;
    size_t longest = 0;
    memset(&a, 0, sizeof a);
    a.b = b;
    if (!pn_gir_ok(b) || n == 0)
        return pn_gir_never(b);
    if (n > b->limits.elements)
        return pn_gir_fail(b, PN_E_INVALID, "a list of %zu literals is too long (limit elements: %lu)", n,
                           (unsigned long)b->limits.elements);
    for (size_t i = 0; i < n; i++)
        longest = PN_MAX(longest, words[i].len);
    if (longest > b->limits.elements)
        return pn_gir_fail(b, PN_E_INVALID, "a literal of %zu bytes is too long (limit elements: %lu)", longest,
                           (unsigned long)b->limits.elements);
    uint32_t *order = pn_mem_calloc(b->mem, PN_ACCT_GRAMMAR, n, sizeof *order);
    uint32_t *path = pn_mem_calloc(b->mem, PN_ACCT_GRAMMAR, longest + 1, sizeof *path);
    if (order && path && pn_gram_sort_texts(b->mem, words, order, (uint32_t)n))
        gchars_words(&a, words, order, n, path);
    else
        b->err.status = pn_fail_nomem(&b->err, "a list of literals", (uint64_t)n * sizeof *order + longest * sizeof *path);
    pn_mem_free(b->mem, PN_ACCT_GRAMMAR, order, n * sizeof *order);
    pn_mem_free(b->mem, PN_ACCT_GRAMMAR, path, (longest + 1) * sizeof *path);
    return gchars_done(&a);
}

/* ---- JSON strings ---------------------------------------------------------------------------------- */

static pn_gnode gchars_hex(pn_gir *b, uint32_t n)
{
    static const pn_cp_range hex[] = {{'0', '9'}, {'a', 'f'}, {'A', 'F'}};
    return pn_gir_repeat(b, pn_gir_class(b, hex, PN_COUNT_OF(hex), false), n, n);
}

/* "u" and what makes four hex digits a character; halves of a pair only together. */
static pn_gnode gchars_escape_u(pn_gir *b)
{
    static const pn_cp_range plain[] = {{'0', '9'}, {'a', 'c'}, {'A', 'C'}, {'e', 'f'}, {'E', 'F'}};
    static const pn_cp_range d[] = {{'d', 'd'}, {'D', 'D'}}, low[] = {{'0', '7'}};
    static const pn_cp_range high_half[] = {{'8', '9'}, {'a', 'b'}, {'A', 'B'}}, low_half[] = {{'c', 'f'}, {'C', 'F'}};
    pn_gnode dd = pn_gir_class(b, d, PN_COUNT_OF(d), false), hex2 = gchars_hex(b, 2);
    pn_gnode pair[] = {dd, pn_gir_class(b, high_half, PN_COUNT_OF(high_half), false), hex2, pn_gir_text(b, "\\u"),
                       dd, pn_gir_class(b, low_half, PN_COUNT_OF(low_half), false), hex2};
    pn_gnode forms[] = {pn_gir_seq2(b, pn_gir_class(b, plain, PN_COUNT_OF(plain), false), gchars_hex(b, 3)),
                        pn_gir_seq3(b, dd, pn_gir_class(b, low, 1, false), hex2),
                        pn_gir_seq(b, pair, PN_COUNT_OF(pair))};
    return pn_gir_seq2(b, pn_gir_text(b, "u"), pn_gir_alt(b, forms, PN_COUNT_OF(forms)));
}

PN_INTERNAL pn_gnode pn_gir_json_char(pn_gir *b)
{
    static const pn_cp_range special[] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    static const pn_cp_range shorts[] = {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'}, {'f', 'f'}, {'n', 'n'},
                                         {'r', 'r'}, {'t', 't'}};
    if (b->json_char || !pn_gir_ok(b))
        return b->json_char;
    pn_gnode escaped = pn_gir_alt2(b, pn_gir_class(b, shorts, PN_COUNT_OF(shorts), false), gchars_escape_u(b));
    b->json_char = pn_gir_alt2(b, pn_gir_class(b, special, PN_COUNT_OF(special), true),
                               pn_gir_seq2(b, pn_gir_text(b, "\\"), escaped));
    return b->json_char;
}

PN_INTERNAL pn_gnode pn_gir_json_body(pn_gir *b, uint32_t min, uint32_t max)
{
    return pn_gir_repeat(b, pn_gir_json_char(b), min, max);
}

/* The letter of a short escape, 0: none. */
static char gchars_short(uint32_t cp)
{
    switch (cp) {
    case '"': case '\\': return (char)cp;
    case '\b': return 'b';
    case '\f': return 'f';
    case '\n': return 'n';
    case '\r': return 'r';
    case '\t': return 't';
    default: return 0;
    }
}

static void gchars_canonical(pn_str *s, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = text[i], letter = gchars_short((uint8_t)c);
        if (letter) {
            pn_str_addc(s, '\\');
            pn_str_addc(s, letter);
        } else if ((uint8_t)c < 0x20) {
            pn_str_addf(s, "\\u%04x", (unsigned)(uint8_t)c);
        } else {
            pn_str_addc(s, c);
        }
    }
}

static pn_gnode gchars_nomem(pn_gir *b, uint64_t bytes)
{
    if (pn_gir_ok(b))
        b->err.status = pn_fail_nomem(&b->err, "a JSON text", bytes);
    return PN_GNODE_NONE;
}

PN_INTERNAL pn_gnode pn_gir_json_text(pn_gir *b, const char *text, size_t n)
{
    pn_str s;
    pn_str_init(&s, b->mem, PN_ACCT_GRAMMAR);
    gchars_canonical(&s, text, n);
    pn_gnode node = s.failed ? gchars_nomem(b, n) : pn_gir_bytes(b, s.data, s.len);
    pn_str_fini(&s);
    return node;
}

/* "\u" and the digits of a 16-bit unit in either case. */
static pn_gnode gchars_unit(pn_gir *b, uint32_t unit)
{
    pn_gnode parts[5] = {pn_gir_text(b, "\\u")};
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t digit = unit >> (12 - 4 * i) & 15, set[8] = {0};
        pn_gset_add(set, digit < 10 ? '0' + digit : 'a' + digit - 10);
        pn_gset_add(set, digit < 10 ? '0' + digit : 'A' + digit - 10);
        parts[i + 1] = pn_gir_byte_set(b, set);
    }
    return pn_gir_seq(b, parts, 5);
}

/* Every spelling of one decoded character. */
static pn_gnode gchars_spellings(pn_gir *b, uint32_t cp, const char *raw, size_t n)
{
    pn_gnode forms[3];
    size_t k = 0;
    char letter = cp == '/' ? '/' : gchars_short(cp);
    if (letter) {
        const char two[2] = {'\\', letter};
        forms[k++] = pn_gir_bytes(b, two, 2);
    }
    if (cp >= 0x20 && cp != '"' && cp != '\\')
        forms[k++] = pn_gir_bytes(b, raw, n);
    if (cp < 0x10000)
        forms[k++] = gchars_unit(b, cp);
    else
        forms[k++] = pn_gir_seq2(b, gchars_unit(b, 0xD800 + ((cp - 0x10000) >> 10)),
                                 gchars_unit(b, 0xDC00 + ((cp - 0x10000) & 0x3FF)));
    return pn_gir_alt(b, forms, k);
}

/* Every spelling of a decoded text; ascii[] remembers what single characters became. */
static pn_gnode gchars_all_spellings(pn_gir *b, pn_bytes t, pn_gnode ascii[128])
{
    PN_GVEC(pn_gnode) parts = {NULL, 0, 0};
    for (size_t i = 0, used; i < t.len && pn_gir_ok(b); i += used) {
        uint32_t cp;
        used = pn_utf8_decode(t.data + i, t.len - i, &cp);
        pn_gnode *known = cp < 128 ? &ascii[cp] : NULL;
        pn_gnode node = known && *known ? *known : gchars_spellings(b, cp, t.data + i, used);
        if (known)
            *known = node;
        if (PN_GIR_ROOM(b, parts, 1))
            parts.v[parts.n++] = node;
    }
    pn_gnode r = pn_gir_seq(b, parts.v, parts.n);
    pn_mem_free(b->mem, PN_ACCT_GRAMMAR, parts.v, parts.cap * sizeof *parts.v);
    return r;
}

/* Bodies in canonical spelling: what the complement of very many keys is taken from. */
static pn_gnode gchars_canonical_body(pn_gir *b)
{
    static const pn_cp_range special[] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    static const pn_cp_range shorts[] = {{'"', '"'}, {'\\', '\\'}, {'b', 'b'}, {'f', 'f'}, {'n', 'n'}, {'r', 'r'}, {'t', 't'}};
    pn_gnode forms[] = {pn_gir_class(b, special, PN_COUNT_OF(special), true),
                        pn_gir_seq2(b, pn_gir_text(b, "\\"), pn_gir_class(b, shorts, PN_COUNT_OF(shorts), false))};
    return pn_gir_repeat(b, pn_gir_alt(b, forms, 2), 0, PN_GIR_MANY);
}

static pn_gnode gchars_not_canonical(pn_gir *b, const pn_bytes *texts, size_t n)
{
    pn_gnode node = PN_GNODE_NONE;
    pn_bytes *words = pn_mem_calloc(b->mem, PN_ACCT_GRAMMAR, n, sizeof *words);
    pn_str s;
    size_t at = 0;
    pn_str_init(&s, b->mem, PN_ACCT_GRAMMAR);
    for (size_t i = 0; i < n && words; i++) {           /* lengths first: s may move while it grows */
        size_t before = s.len;
        gchars_canonical(&s, texts[i].data, texts[i].len);
        words[i].len = s.len - before;
    }
    if (!words || s.failed) {
        gchars_nomem(b, (uint64_t)n * sizeof *words);
    } else {
        for (size_t i = 0; i < n; at += words[i++].len)
            words[i].data = pn_str_cstr(&s) + at;
        node = pn_gir_and_not(b, gchars_canonical_body(b), pn_gir_words(b, words, n));
    }
    pn_mem_free(b->mem, PN_ACCT_GRAMMAR, words, n * sizeof *words);
    pn_str_fini(&s);
    return node;
}

/* Above this many bytes of keys, the free key is offered in canonical spelling only: with every
 * spelling the automaton has about seven states a character. */
enum { GCHARS_ALL_SPELLINGS = 2000 };

PN_INTERNAL pn_gnode pn_gir_json_not(pn_gir *b, const pn_bytes *texts, size_t n)
{
    pn_gnode ascii[128] = {0};
    size_t total = 0;
    if (n == 0)
        return pn_gir_json_body(b, 0, PN_GIR_MANY);
    for (size_t i = 0; i < n; i++)
        total += texts[i].len;
    if (!pn_gir_steps(b, 16 * (uint64_t)total))          /* states are made for each character, over and over */
        return PN_GNODE_NONE;
    if (total > GCHARS_ALL_SPELLINGS)
        return gchars_not_canonical(b, texts, n);
    pn_gnode *forms = pn_mem_calloc(b->mem, PN_ACCT_GRAMMAR, n, sizeof *forms);
    if (!forms)
        return gchars_nomem(b, (uint64_t)n * sizeof *forms);
    for (size_t i = 0; i < n; i++)
        forms[i] = gchars_all_spellings(b, texts[i], ascii);
    pn_gnode none_of = pn_gir_alt(b, forms, n);
    pn_mem_free(b->mem, PN_ACCT_GRAMMAR, forms, n * sizeof *forms);
    return pn_gir_and_not(b, pn_gir_json_body(b, 0, PN_GIR_MANY), none_of);
}
