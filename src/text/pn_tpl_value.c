/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_tpl_value.c - what templates compute with: the arena, strings that know whose text they are,
 * lists, dicts in order of insertion, truth, equality and order as Python has them.
 *
 * Invariants
 *   1. Bytes of a string never change once it exists; a tpl_buf owns its bytes until it becomes one.
 *   2. The mark of a byte comes from where the byte came from (tpl_buf), never from what it says.
 *   3. Every loop over elements or text charges steps, so no builtin runs longer than the limit.
 */
#include "text/pn_tpl.h"

#include "base/pn_hash.h"
#include "base/pn_os.h"
#include "base/pn_utf8.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum { TPLV_CHUNK = 16 << 10, TPLV_CHUNK_MAX = 1 << 20, TPLV_SMALL_DICT = 8 };

/* ------------------------------------------------------------------------------------------
 * Arena
 * ------------------------------------------------------------------------------------------ */

struct tpl_chunk {
    tpl_chunk *below;
    size_t size, used;          /* of the whole block, header included */
};

#define TPLV_HEAD ((sizeof(tpl_chunk) + 15) & ~(size_t)15)

PN_INTERNAL void pn_tpl_arena_init(tpl_arena *a, pn_mem *mem, size_t limit)
{
    memset(a, 0, sizeof *a);
    a->mem = mem;
    a->limit = limit;
}

PN_INTERNAL void pn_tpl_arena_fini(tpl_arena *a)
{
    while (a->top) {
        tpl_chunk *c = a->top;
        a->top = c->below;
        pn_mem_free(a->mem, PN_ACCT_MISC, c, c->size);
    }
    a->used = 0;
}

static bool tplv_chunk(tpl_arena *a, size_t need)
{
    size_t size = a->top ? PN_MIN(a->top->size * 2, (size_t)TPLV_CHUNK_MAX) : (size_t)TPLV_CHUNK;
    size = PN_MAX(size, need + TPLV_HEAD);
    if (size > a->limit - a->used)
        size = need + TPLV_HEAD;        /* the last bytes: exactly what is asked for */
    a->over = size > a->limit - a->used;
    if (a->over)
        return false;
    tpl_chunk *c = pn_mem_alloc(a->mem, PN_ACCT_MISC, size);
    if (!c)
        return false;
    c->below = a->top;
    c->size = size;
    c->used = TPLV_HEAD;
    a->top = c;
    a->used += size;
    return true;
}

PN_INTERNAL void *pn_tpl_arena_take(tpl_arena *a, size_t n)
{
    a->over = false;
    if (n > a->limit) {
        a->over = true;
        return NULL;
    }
    n = (n + 7) & ~(size_t)7;
    if ((!a->top || a->top->size - a->top->used < n) && !tplv_chunk(a, n))
        return NULL;
    char *p = (char *)a->top + a->top->used;
    a->top->used += n;
    return p;
}

PN_INTERNAL void *pn_tpl_arena_grow(tpl_arena *a, void *p, size_t old, size_t n)
{
    size_t old8 = (old + 7) & ~(size_t)7, n8 = (n + 7) & ~(size_t)7;
    if (n > a->limit) {
        a->over = true;
        return NULL;
    }
    if (p && a->top && (char *)p + old8 == (char *)a->top + a->top->used && n8 - old8 <= a->top->size - a->top->used) {
        a->top->used += n8 - old8;
        return p;
    }
    void *q = pn_tpl_arena_take(a, n);
    if (q && old)
        memcpy(q, p, old);
    return q;
}

/* ------------------------------------------------------------------------------------------
 * Errors and limits
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL tpl_val pn_tpl_fail(tpl_run *r, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    if (r->st)
        return tpl_undef();
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->st = pn_fail(r->err, PN_E_INVALID, "template line %u: %s", (unsigned)r->line, text);
    return tpl_undef();
}

static void tplv_no_memory(tpl_run *r, size_t n)
{
    if (r->st)
        return;
    if (r->arena.over)
        pn_tpl_fail(r, "limit reached: the template's values may take %zu bytes of memory", r->arena.limit);
    else
        r->st = pn_fail_nomem(r->err, "rendering a template", n);
}

PN_INTERNAL void *pn_tpl_take(tpl_run *r, size_t n)
{
    void *p = r->st ? NULL : pn_tpl_arena_take(&r->arena, n);
    if (!p)
        tplv_no_memory(r, n);
    return p;
}

PN_INTERNAL bool pn_tpl_charge(tpl_run *r, uint64_t n)
{
    r->steps += n;
    if (PN_LIKELY(r->steps < r->next_clock))
        return !r->st;
    if (r->steps > r->max_steps)
        pn_tpl_fail(r, "limit reached: more than %" PRIu64 " steps", r->max_steps);
    else if (pn_os_now() > r->deadline)
        pn_tpl_fail(r, "limit reached: rendering takes too long");
    r->next_clock = PN_MIN(r->steps + 4096, r->max_steps + 1);
    return !r->st;
}

/* ------------------------------------------------------------------------------------------
 * Strings
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL tpl_str *pn_tpl_str(tpl_arena *a, const char *p, size_t len, bool trust)
{
    if (len >= UINT32_MAX)
        return NULL;
    tpl_str *s = pn_tpl_arena_take(a, sizeof *s);
    if (s)
        *s = (tpl_str){p, NULL, (uint32_t)len, UINT32_MAX, trust};
    return s;
}

static tpl_val tplv_str(tpl_run *r, const char *p, size_t len, bool trust)
{
    tpl_str *s = r->st ? NULL : pn_tpl_str(&r->arena, p, len, trust);
    if (!s)
        tplv_no_memory(r, len);
    return tpl_of_str(s);
}

PN_INTERNAL tpl_val pn_tpl_text(tpl_run *r, const char *text) { return tplv_str(r, text, strlen(text), true); }

PN_INTERNAL tpl_val pn_tpl_sub(tpl_run *r, const tpl_str *s, size_t from, size_t len)
{
    tpl_val v = tplv_str(r, s->p + from, len, s->trust);
    if (!r->st && s->marks)
        v.u.s->marks = s->marks + from;
    return v;
}

PN_INTERNAL bool pn_tpl_mark(const tpl_str *s, size_t at) { return s->marks ? s->marks[at] != 0 : s->trust; }

PN_INTERNAL bool pn_tpl_trusted(const tpl_str *s)
{
    return s->marks ? memchr(s->marks, 0, s->len) == NULL : s->trust;
}

PN_INTERNAL uint32_t pn_tpl_chars(tpl_str *s)
{
    if (s->n_chars == UINT32_MAX) {
        uint32_t n = 0;
        for (size_t i = 0; i < s->len; i++)
            n += ((uint8_t)s->p[i] & 0xC0) != 0x80;
        s->n_chars = n;
    }
    return s->n_chars;
}

PN_INTERNAL size_t pn_tpl_offset(tpl_run *r, tpl_str *s, int64_t chars)
{
    if (chars <= 0)
        return 0;
    if ((uint64_t)chars >= pn_tpl_chars(s))
        return s->len;
    if (s->n_chars == s->len)
        return (size_t)chars;
    pn_tpl_charge(r, (uint64_t)chars / 16);
    size_t i = 0;
    while (i < s->len) {
        if (((uint8_t)s->p[i] & 0xC0) != 0x80 && chars-- == 0)
            break;
        i++;
    }
    return i;
}

PN_INTERNAL int64_t pn_tpl_find(tpl_run *r, const tpl_str *hay, size_t from, const tpl_str *needle)
{
    if (from > hay->len || needle->len > hay->len - from)
        return -1;
    if (!needle->len)
        return (int64_t)from;
    size_t last = hay->len - needle->len, begin = from;
    while (from <= last) {
        const char *p = memchr(hay->p + from, needle->p[0], last - from + 1);
        if (!p)
            break;
        from = (size_t)(p - hay->p);
        if (!pn_tpl_charge(r, 1 + needle->len / 64))
            return -1;
        if (memcmp(p, needle->p, needle->len) == 0)
            return (int64_t)from;
        from++;
    }
    pn_tpl_charge(r, (hay->len - begin) / 64);
    return -1;
}

PN_INTERNAL bool pn_tpl_is_z(const tpl_str *s, const char *z) { return s->len == strlen(z) && memcmp(s->p, z, s->len) == 0; }

/* What Python's str.isspace says. */
PN_INTERNAL bool pn_tpl_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32) || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* ------------------------------------------------------------------------------------------
 * Making text
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_tpl_buf_init(tpl_buf *b) { memset(b, 0, sizeof *b); }

static bool tplv_room(tpl_run *r, tpl_buf *b, size_t n, bool marks)
{
    size_t need = b->len + n;           /* both below the memory limit: no overflow */
    if (r->st || !pn_tpl_charge(r, n / 64))
        return false;
    if (n > r->arena.limit || need >= UINT32_MAX) {
        r->arena.over = true;
        tplv_no_memory(r, n);
        return false;
    }
    if (need > b->cap) {
        size_t cap = PN_MAX(need, b->cap ? b->cap * 2 : 64);
        char *p = pn_tpl_arena_grow(&r->arena, b->p, b->cap, cap);
        if (!p) {
            tplv_no_memory(r, cap);
            return false;
        }
        b->p = p;
        b->cap = cap;
    }
    if (marks && need > b->cap_marks) {
        uint8_t *m = pn_tpl_arena_grow(&r->arena, b->marks, b->cap_marks, b->cap);
        if (!m) {
            tplv_no_memory(r, b->cap);
            return false;
        }
        if (!b->marks)
            memset(m, b->trust, b->len);
        b->marks = m;
        b->cap_marks = b->cap;
    }
    return true;
}

PN_INTERNAL void pn_tpl_buf_add(tpl_run *r, tpl_buf *b, const char *p, size_t n, bool trust)
{
    if (!n)
        return;
    if (!b->len && !b->marks)
        b->trust = trust;
    if (!tplv_room(r, b, n, b->marks != NULL || trust != b->trust))
        return;
    memcpy(b->p + b->len, p, n);
    if (b->marks)
        memset(b->marks + b->len, trust, n);
    b->len += n;
}

PN_INTERNAL void pn_tpl_buf_sub(tpl_run *r, tpl_buf *b, const tpl_str *s, size_t from, size_t n)
{
    if (!s->marks || !n) {
        pn_tpl_buf_add(r, b, s->p + from, n, s->trust);
        return;
    }
    if (!tplv_room(r, b, n, true))
        return;
    memcpy(b->p + b->len, s->p + from, n);
    memcpy(b->marks + b->len, s->marks + from, n);
    b->len += n;
}

PN_INTERNAL tpl_val pn_tpl_buf_str(tpl_run *r, tpl_buf *b)
{
    tpl_val v = tplv_str(r, b->len ? b->p : "", b->len, b->len ? b->trust : true);
    if (!r->st && b->marks)
        v.u.s->marks = b->marks;
    return v;
}

/* ------------------------------------------------------------------------------------------
 * Lists and dicts
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL tpl_list *pn_tpl_list(tpl_run *r, size_t cap)
{
    if (cap >= UINT32_MAX / sizeof(tpl_val)) {
        pn_tpl_fail(r, "limit reached: a list of %zu elements", cap);
        return NULL;
    }
    tpl_list *l = pn_tpl_take(r, sizeof *l);
    tpl_val *v = cap && l ? pn_tpl_take(r, cap * sizeof *v) : NULL;
    if (!l || (cap && !v))
        return NULL;
    *l = (tpl_list){v, 0, (uint32_t)cap, 0};
    return l;
}

PN_INTERNAL bool pn_tpl_push(tpl_run *r, tpl_list *l, tpl_val v)
{
    if (r->st || !l || !pn_tpl_charge(r, 1))
        return false;
    if (l->n == l->cap) {
        size_t cap = l->cap ? (size_t)l->cap * 2 : 4;
        tpl_val *p = cap < UINT32_MAX / sizeof v ? pn_tpl_arena_grow(&r->arena, l->v, l->cap * sizeof v, cap * sizeof v) : NULL;
        if (!p) {
            tplv_no_memory(r, cap * sizeof v);
            return false;
        }
        l->v = p;
        l->cap = (uint32_t)cap;
    }
    l->v[l->n++] = v;
    return true;
}

PN_INTERNAL tpl_dict *pn_tpl_dict(tpl_run *r)
{
    tpl_dict *d = pn_tpl_take(r, sizeof *d);
    if (d)
        memset(d, 0, sizeof *d);
    return d;
}

/* Keys that are equal have equal hashes: 1, 1.0 and true are one key. */
static uint64_t tplv_hash(tpl_run *r, tpl_val k)
{
    if (k.type == TPL_STR)
        return pn_hash(k.u.s->p, k.u.s->len, r->seed);
    if (tpl_is_num(k)) {
        double f = pn_tpl_number(k) + 0.0;
        return pn_hash(&f, sizeof f, r->seed);
    }
    return k.type == TPL_NONE ? 1 : 2;
}

static bool tplv_same_key(tpl_run *r, const tpl_entry *e, tpl_val k, uint64_t hash)
{
    if (e->hash != hash)
        return false;
    if (e->k.type == TPL_STR && k.type == TPL_STR)
        return e->k.u.s->len == k.u.s->len && memcmp(e->k.u.s->p, k.u.s->p, k.u.s->len) == 0;
    return pn_tpl_equal(r, e->k, k);
}

static int64_t tplv_probe(tpl_run *r, const tpl_dict *d, tpl_val k, uint64_t hash)
{
    if (!d->index) {
        for (uint32_t i = 0; i < d->n; i++)
            if (tplv_same_key(r, &d->e[i], k, hash))
                return i;
        return -1;
    }
    uint32_t mask = d->n_index - 1;
    for (uint32_t i = (uint32_t)hash & mask; d->index[i]; i = (i + 1) & mask) {
        if (!pn_tpl_charge(r, 1))
            return -1;
        if (tplv_same_key(r, &d->e[d->index[i] - 1], k, hash))
            return d->index[i] - 1;
    }
    return -1;
}

static void tplv_index(tpl_run *r, tpl_dict *d)
{
    if (d->cap <= TPLV_SMALL_DICT)
        return;
    if (d->n_index < d->cap * 2) {
        uint32_t *p = pn_tpl_take(r, (size_t)d->cap * 2 * sizeof *p);
        if (!p)
            return;
        d->index = p;
        d->n_index = d->cap * 2;
    }
    memset(d->index, 0, d->n_index * sizeof *d->index);
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t mask = d->n_index - 1, k = (uint32_t)d->e[i].hash & mask;
        while (d->index[k])
            k = (k + 1) & mask;
        d->index[k] = i + 1;
    }
}

PN_INTERNAL tpl_val *pn_tpl_dict_get(tpl_run *r, const tpl_dict *d, tpl_val k)
{
    int64_t i = d->n ? tplv_probe(r, d, k, tplv_hash(r, k)) : -1;
    return i < 0 ? NULL : &d->e[i].v;
}

PN_INTERNAL tpl_val *pn_tpl_dict_getz(tpl_run *r, const tpl_dict *d, const char *k)
{
    tpl_str s = {k, NULL, (uint32_t)strlen(k), UINT32_MAX, true};
    return pn_tpl_dict_get(r, d, tpl_of_str(&s));
}

PN_INTERNAL void pn_tpl_dict_set(tpl_run *r, tpl_dict *d, tpl_val k, tpl_val v)
{
    if (r->st || !d || !pn_tpl_charge(r, 1))
        return;
    if (k.type == TPL_LIST || k.type == TPL_DICT) {
        pn_tpl_fail(r, "unhashable type: '%s'", pn_tpl_type_name(k));
        return;
    }
    uint64_t hash = tplv_hash(r, k);
    int64_t at = tplv_probe(r, d, k, hash);
    if (r->st)
        return;
    if (at >= 0) {
        d->e[at].v = v;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? (size_t)d->cap * 2 : 4;
        tpl_entry *e = cap < UINT32_MAX / 64 ? pn_tpl_arena_grow(&r->arena, d->e, d->cap * sizeof *e, cap * sizeof *e) : NULL;
        if (!e) {
            tplv_no_memory(r, cap * sizeof *e);
            return;
        }
        d->e = e;
        d->cap = (uint32_t)cap;
        d->e[d->n++] = (tpl_entry){k, v, hash};
        tplv_index(r, d);
        return;
    }
    d->e[d->n++] = (tpl_entry){k, v, hash};
    if (d->index) {
        uint32_t mask = d->n_index - 1, i = (uint32_t)hash & mask;
        while (d->index[i])
            i = (i + 1) & mask;
        d->index[i] = d->n;
    }
}

PN_INTERNAL void pn_tpl_dict_remove(tpl_run *r, tpl_dict *d, tpl_val k)
{
    int64_t at = tplv_probe(r, d, k, tplv_hash(r, k));
    if (at < 0 || !pn_tpl_charge(r, d->n))
        return;
    memmove(d->e + at, d->e + at + 1, (d->n - 1 - (size_t)at) * sizeof *d->e);
    d->n--;
    if (d->index)
        tplv_index(r, d);
}

PN_INTERNAL tpl_val pn_tpl_dict_items(tpl_run *r, const tpl_dict *d)
{
    tpl_list *l = pn_tpl_list(r, d->n);
    for (uint32_t i = 0; l && i < d->n; i++) {
        tpl_list *pair = pn_tpl_list(r, 2);
        if (!pair || !pn_tpl_charge(r, 1))
            return tpl_undef();
        pair->v[0] = d->e[i].k;
        pair->v[1] = d->e[i].v;
        pair->n = 2;
        l->v[l->n++] = tpl_of_list(pair, TPL_TUPLE);
    }
    return tpl_of_list(l, TPL_LIST);
}

/* ------------------------------------------------------------------------------------------
 * Truth, equality, order
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL double pn_tpl_number(tpl_val v)
{
    double f = 0;
    switch (v.type) {
    case TPL_BOOL: return v.u.b;
    case TPL_INT: return (double)v.u.i;
    case TPL_FLOAT: return v.u.f;
    case TPL_BIG: pn_tpl_parse_float(v.u.s->p, v.u.s->len, &f); return f;
    default: return 0;
    }
}

PN_INTERNAL bool pn_tpl_truth(tpl_val v)
{
    switch (v.type) {
    case TPL_UNDEF: case TPL_NONE: return false;
    case TPL_BOOL: return v.u.b;
    case TPL_INT: return v.u.i != 0;
    case TPL_FLOAT: return v.u.f != 0;
    case TPL_STR: return v.u.s->len != 0;
    case TPL_LIST: case TPL_TUPLE: return v.u.l->n != 0;
    case TPL_DICT: return v.u.d->n != 0;
    default: return true;
    }
}

PN_INTERNAL const char *pn_tpl_type_name(tpl_val v)
{
    static const char *const names[] = {"undefined", "NoneType", "bool", "int", "int", "float", "str", "list", "tuple",
                                        "dict", "namespace", "macro", "function", "method", "loop", "joiner", "cycler",
                                        "nothing"};
    return names[v.type];
}

static bool tplv_equal(tpl_run *r, tpl_val a, tpl_val b, uint32_t depth);

static bool tplv_equal_dict(tpl_run *r, const tpl_dict *a, const tpl_dict *b, uint32_t depth)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++) {
        tpl_val *v = pn_tpl_dict_get(r, b, a->e[i].k);
        if (!v || !tplv_equal(r, a->e[i].v, *v, depth + 1))
            return false;
    }
    return true;
}

static bool tplv_equal(tpl_run *r, tpl_val a, tpl_val b, uint32_t depth)
{
    if (!pn_tpl_charge(r, 1))
        return false;
    if (tpl_is_num(a) && tpl_is_num(b)) {
        if (a.type == TPL_INT && b.type == TPL_INT)
            return a.u.i == b.u.i;
        if (a.type == TPL_BIG && b.type == TPL_BIG)
            return a.u.s->len == b.u.s->len && memcmp(a.u.s->p, b.u.s->p, a.u.s->len) == 0;
        return pn_tpl_number(a) == pn_tpl_number(b);
    }
    if (a.type != b.type)
        return false;
    if (depth > TPL_MAX_VALUE) {
        pn_tpl_fail(r, "limit reached: values nested deeper than %d", (int)TPL_MAX_VALUE);
        return false;
    }
    switch (a.type) {
    case TPL_UNDEF: case TPL_NONE: return true;
    case TPL_STR:
        return a.u.s->len == b.u.s->len && pn_tpl_charge(r, a.u.s->len / 64) && memcmp(a.u.s->p, b.u.s->p, a.u.s->len) == 0;
    case TPL_LIST: case TPL_TUPLE:
        if (a.u.l->n != b.u.l->n)
            return false;
        for (uint32_t i = 0; i < a.u.l->n; i++)
            if (!tplv_equal(r, a.u.l->v[i], b.u.l->v[i], depth + 1))
                return false;
        return true;
    case TPL_DICT: return tplv_equal_dict(r, a.u.d, b.u.d, depth);
    case TPL_GLOBAL: return a.id == b.id;
    default: return a.u.s == b.u.s;
    }
}

PN_INTERNAL bool pn_tpl_equal(tpl_run *r, tpl_val a, tpl_val b) { return tplv_equal(r, a, b, 0); }

static int tplv_order(tpl_run *r, tpl_val a, tpl_val b, uint32_t depth)
{
    if (!pn_tpl_charge(r, 1))
        return 0;
    if (a.type == TPL_INT && b.type == TPL_INT)
        return (a.u.i > b.u.i) - (a.u.i < b.u.i);
    if (tpl_is_num(a) && tpl_is_num(b)) {
        double x = pn_tpl_number(a), y = pn_tpl_number(b);
        return (x > y) - (x < y);
    }
    if (a.type == TPL_STR && b.type == TPL_STR) {
        int c = memcmp(a.u.s->p, b.u.s->p, PN_MIN(a.u.s->len, b.u.s->len));    /* UTF-8 sorts by code point */
        return c ? c : (a.u.s->len > b.u.s->len) - (a.u.s->len < b.u.s->len);
    }
    if (tpl_is_list(a) && a.type == b.type && depth < TPL_MAX_VALUE) {
        uint32_t n = PN_MIN(a.u.l->n, b.u.l->n);
        for (uint32_t i = 0; i < n && !r->st; i++)
            if (!tplv_equal(r, a.u.l->v[i], b.u.l->v[i], depth + 1))
                return tplv_order(r, a.u.l->v[i], b.u.l->v[i], depth + 1);
        return (a.u.l->n > b.u.l->n) - (a.u.l->n < b.u.l->n);
    }
    pn_tpl_fail(r, "'%s' and '%s' have no order", pn_tpl_type_name(a), pn_tpl_type_name(b));
    return 0;
}

PN_INTERNAL int pn_tpl_order(tpl_run *r, tpl_val a, tpl_val b) { return tplv_order(r, a, b, 0); }

PN_INTERNAL bool pn_tpl_contains(tpl_run *r, tpl_val seq, tpl_val v)
{
    switch (seq.type) {
    case TPL_UNDEF: return false;
    case TPL_STR:
        if (v.type != TPL_STR) {
            pn_tpl_fail(r, "'in <string>' requires string as left operand, not %s", pn_tpl_type_name(v));
            return false;
        }
        return pn_tpl_find(r, seq.u.s, 0, v.u.s) >= 0;
    case TPL_DICT: return pn_tpl_dict_get(r, seq.u.d, v) != NULL;
    case TPL_LIST: case TPL_TUPLE:
        for (uint32_t i = 0; i < seq.u.l->n && !r->st; i++)
            if (pn_tpl_equal(r, seq.u.l->v[i], v))
                return true;
        return false;
    default: pn_tpl_fail(r, "argument of type '%s' is not iterable", pn_tpl_type_name(seq)); return false;
    }
}

/* ------------------------------------------------------------------------------------------
 * Iterating, JSON
 * ------------------------------------------------------------------------------------------ */

static tpl_list *tplv_iter_chars(tpl_run *r, tpl_str *s)
{
    tpl_list *l = pn_tpl_list(r, pn_tpl_chars(s));
    for (size_t i = 0; l && i < s->len && !r->st;) {
        size_t n = 1;
        while (i + n < s->len && ((uint8_t)s->p[i + n] & 0xC0) == 0x80)
            n++;
        pn_tpl_push(r, l, pn_tpl_sub(r, s, i, n));
        i += n;
    }
    return r->st ? NULL : l;
}

PN_INTERNAL tpl_list *pn_tpl_iter(tpl_run *r, tpl_val v)
{
    switch (v.type) {
    case TPL_UNDEF: return pn_tpl_list(r, 0);
    case TPL_LIST: case TPL_TUPLE: return r->st ? NULL : v.u.l;
    case TPL_STR: return tplv_iter_chars(r, v.u.s);
    case TPL_DICT: {
        tpl_list *l = pn_tpl_list(r, v.u.d->n);
        for (uint32_t i = 0; l && i < v.u.d->n; i++)
            pn_tpl_push(r, l, v.u.d->e[i].k);
        return r->st ? NULL : l;
    }
    default: pn_tpl_fail(r, "'%s' object is not iterable", pn_tpl_type_name(v)); return NULL;
    }
}

/* As Python reads JSON: with a fraction or an exponent a float, else an integer of any size. */
static tpl_val tplv_json_number(tpl_run *r, const pn_json_doc *d, uint32_t node, bool trust)
{
    pn_bytes text = {NULL, 0};
    int64_t i;
    double f = 0;
    pn_json_num(d, node, &text);
    bool is_float = memchr(text.data, '.', text.len) || memchr(text.data, 'e', text.len) || memchr(text.data, 'E', text.len);
    if (!is_float && pn_parse_i64(text.data, INT64_MIN, INT64_MAX, &i))
        return tpl_int(i, trust);
    if (is_float) {
        pn_tpl_parse_float(text.data, text.len, &f);
        return tpl_float(f, trust);
    }
    char *copy = pn_tpl_take(r, text.len);
    if (!copy)
        return tpl_undef();
    memcpy(copy, text.data, text.len);
    tpl_val v = tplv_str(r, copy, text.len, trust);
    if (v.type == TPL_STR)
        v.type = TPL_BIG;
    v.trust = trust;
    return v;
}

static tpl_val tplv_json_string(tpl_run *r, pn_bytes b, bool trust, bool copied)
{
    char *copy = (char *)(uintptr_t)b.data;
    if (copied) {
        copy = pn_tpl_take(r, b.len);
        if (copy && b.len)
            memcpy(copy, b.data, b.len);
    }
    return copy ? tplv_str(r, copy, b.len, trust) : tpl_undef();
}

static tpl_val tplv_json(tpl_run *r, const pn_json_doc *d, uint32_t node, bool trust, bool copied, uint32_t depth)
{
    tpl_val v = tpl_none();
    pn_bytes b = {"", 0};
    bool yes = false;
    if (depth > TPL_MAX_VALUE)
        return pn_tpl_fail(r, "limit reached: values nested deeper than %d", (int)TPL_MAX_VALUE);
    if (!pn_tpl_charge(r, 1))
        return v;
    switch (pn_json_type_of(d, node)) {
    case PN_JSON_BOOL:
        pn_json_bool(d, node, &yes);
        v = tpl_bool(yes);
        v.trust = trust;
        break;
    case PN_JSON_NUMBER: v = tplv_json_number(r, d, node, trust); break;
    case PN_JSON_STRING:
        pn_json_str(d, node, &b);
        v = tplv_json_string(r, b, trust, copied);
        break;
    case PN_JSON_ARRAY:
        v = tpl_of_list(pn_tpl_list(r, pn_json_count(d, node)), TPL_LIST);
        for (uint32_t c = pn_json_first(d, node); !r->st && c != PN_JSON_NONE; c = pn_json_next(d, c))
            pn_tpl_push(r, v.u.l, tplv_json(r, d, c, trust, copied, depth + 1));
        break;
    case PN_JSON_OBJECT:
        v = tpl_of_dict(pn_tpl_dict(r), TPL_DICT);
        for (uint32_t c = pn_json_first(d, node); !r->st && c != PN_JSON_NONE; c = pn_json_next(d, c)) {
            tpl_val k = tplv_json_string(r, pn_json_key_of(d, c), trust, copied);
            pn_tpl_dict_set(r, v.u.d, k, tplv_json(r, d, c, trust, copied, depth + 1));
        }
        break;
    default: v.trust = trust; break;
    }
    return r->st ? tpl_undef() : v;
}

/* Strings stay in d, which must outlive the run. */
PN_INTERNAL tpl_val pn_tpl_from_json(tpl_run *r, const pn_json_doc *d, uint32_t node, bool trust)
{
    return tplv_json(r, d, node, trust, false, 0);
}

/* Containers made of untrusted text print untrusted punctuation: the text chose it. */
static void tplv_distrust(tpl_val *v, uint32_t depth)
{
    if (tpl_is_list(*v) && depth <= TPL_MAX_VALUE)
        for (uint32_t i = 0; i < v->u.l->n; i++)
            tplv_distrust(&v->u.l->v[i], depth + 1);
    if (v->type == TPL_DICT && depth <= TPL_MAX_VALUE)
        for (uint32_t i = 0; i < v->u.d->n; i++)
            tplv_distrust(&v->u.d->e[i].v, depth + 1);
    v->trust = false;
}

PN_INTERNAL tpl_val pn_tpl_parse_json(tpl_run *r, const tpl_str *s)
{
    pn_json_doc doc;
    pn_err err = {PN_OK, {0}};
    pn_json_params limits = {0};
    limits.max_nodes = 1 << 18;         /* outside of the arena: about 7 MiB */
    bool trust = pn_tpl_trusted(s);
    if (!pn_tpl_charge(r, s->len / 4))
        return tpl_undef();
    pn_status st = pn_json_parse(&doc, r->arena.mem, PN_ACCT_MISC, s->p, s->len, &limits, &err);
    if (st == PN_E_NOMEM && !r->st)
        r->st = pn_fail(r->err, st, "%s", err.text);
    if (st)
        return pn_tpl_fail(r, "from_json: %s", err.text);
    tpl_val v = tplv_json(r, &doc, PN_JSON_ROOT, trust, true, 0);
    pn_json_fini(&doc);
    if (!trust && !r->st)
        tplv_distrust(&v, 0);
    return v;
}

#undef TPLV_HEAD
