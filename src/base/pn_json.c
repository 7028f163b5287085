/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_json.c - the reader walks the text once with a cursor that knows its end; no recursion, because
 * depth is chosen by the sender: the open containers are the chain of parents in the tree itself.
 *
 * Memory is bounded by the length of the text: nodes grow as values are really met (at most one for
 * two bytes), and all strings and numbers together fit in length + 1 bytes, since unescaping never
 * lengthens, a string's NUL has the place of a quote, and a number's that of the delimiter after it
 * (or the one byte added).  So that block is taken once and its addresses stay.
 */
#include "base/pn_json.h"

#include "base/pn_err.h"
#include "base/pn_hash.h"
#include "base/pn_utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define JSON_DEAD 0x100u                /* flag in pn_json_node.type */
#define JSON_BYTES_MAX 0x7FFFFFFEu      /* offsets and node numbers stay below PN_JSON_NONE */

typedef struct json_reader {
    pn_json_doc *d;
    const char *s;              /* [n], the text */
    size_t n, at;               /* at: the next byte, <= n */
    uint32_t open;              /* innermost open container; PN_JSON_NONE: none */
    uint32_t depth;
    uint32_t key, key_len;      /* of the member being read; PN_JSON_NONE in arrays */
    size_t key_at;              /* where it stood, for messages */
    pn_json_params limit;
    pn_err *err;
} json_reader;

/* ------------------------------------------------------------------------------------------
 * Errors and small steps
 * ------------------------------------------------------------------------------------------ */

/* "JSON byte N: expected E, found F" for the byte at r->at. */
static pn_status json_expected(const json_reader *r, const char *what)
{
    uint64_t at = r->at;
    if (r->at >= r->n)
        return pn_fail(r->err, PN_E_FORMAT, "JSON byte %" PRIu64 ": expected %s, found the end of the text",
                       at, what);
    unsigned c = (uint8_t)r->s[r->at];
    if (c > 0x20 && c < 0x7F)
        return pn_fail(r->err, PN_E_FORMAT, "JSON byte %" PRIu64 ": expected %s, found '%c'", at, what, (int)c);
    return pn_fail(r->err, PN_E_FORMAT, "JSON byte %" PRIu64 ": expected %s, found byte 0x%02X", at, what, c);
}

static pn_status json_limit(const json_reader *r, const char *what, uint64_t limit)
{
    return pn_fail(r->err, PN_E_FORMAT, "JSON byte %" PRIu64 ": expected at most %" PRIu64 " %s, found more",
                   (uint64_t)r->at, limit, what);
}

static int json_peek(const json_reader *r) { return r->at < r->n ? (uint8_t)r->s[r->at] : -1; }

static void json_skip_space(json_reader *r)
{
    while (r->at < r->n) {
        char c = r->s[r->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            break;
        r->at++;
    }
}

static void json_put(json_reader *r, const char *bytes, size_t n)
{
    PN_ASSERT(n <= r->d->text_cap - r->d->text_len);
    memcpy(r->d->text + r->d->text_len, bytes, n);
    r->d->text_len += n;
}

/* ------------------------------------------------------------------------------------------
 * Strings and numbers
 * ------------------------------------------------------------------------------------------ */

static pn_status json_hex4(json_reader *r, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        int c = json_peek(r);
        if (c >= '0' && c <= '9')
            v = v << 4 | (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            v = v << 4 | (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            v = v << 4 | (uint32_t)(c - 'A' + 10);
        else
            return json_expected(r, "four hexadecimal digits after \\u");
    }
    *out = v;
    return PN_OK;
}

/* After "\u": one UTF-16 unit, or two that belong together. */
static pn_status json_unicode(json_reader *r)
{
    uint32_t c = 0, low = 0;
    size_t at = r->at;
    pn_status st = json_hex4(r, &c);
    if (st)
        return st;
    if (c >= 0xD800 && c <= 0xDFFF) {
        bool paired = false;
        if (c < 0xDC00 && r->n - r->at >= 2 && r->s[r->at] == '\\' && r->s[r->at + 1] == 'u') {
            size_t second = r->at;
            r->at += 2;
            st = json_hex4(r, &low);
            if (st)
                return st;
            paired = low >= 0xDC00 && low <= 0xDFFF;
            if (paired)
                c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
            else
                r->at = second;         /* whatever it is, it is read again on its own */
        }
        if (!paired && !r->limit.fix_surrogates) {
            uint32_t unit = c;
            return pn_fail(r->err, PN_E_FORMAT,
                           "JSON byte %" PRIu64 ": expected a pair of surrogates, found \\u%04" PRIx32 " alone",
                           (uint64_t)(at - 2), unit);
        }
    }
    char buf[4];
    json_put(r, buf, pn_utf8_encode(c, buf));       /* a lone surrogate becomes U+FFFD there */
    return PN_OK;
}

static pn_status json_escape(json_reader *r)
{
    char out;
    switch (json_peek(r)) {
    case '"': out = '"'; break;
    case '\\': out = '\\'; break;
    case '/': out = '/'; break;
    case 'b': out = '\b'; break;
    case 'f': out = '\f'; break;
    case 'n': out = '\n'; break;
    case 'r': out = '\r'; break;
    case 't': out = '\t'; break;
    case 'u': r->at++; return json_unicode(r);
    default: return json_expected(r, "one of \"\\/bfnrtu after a backslash");
    }
    r->at++;
    json_put(r, &out, 1);
    return PN_OK;
}

/* The string whose opening quote is at r->at; unescaped to [*off, *off + *len) of the text block. */
static pn_status json_string(json_reader *r, uint32_t *off, uint32_t *len)
{
    size_t start = r->d->text_len;
    r->at++;
    for (;;) {
        size_t run = r->at;
        while (r->at < r->n) {
            uint8_t c = (uint8_t)r->s[r->at];
            if (c == '"' || c == '\\' || c < 0x20)
                break;
            r->at++;
        }
        size_t good = pn_utf8_valid(r->s + run, r->at - run);
        if (run + good < r->at) {
            r->at = run + good;
            return json_expected(r, "valid UTF-8 in a string");
        }
        json_put(r, r->s + run, good);
        int c = json_peek(r);
        if (c == '"')
            break;
        if (c != '\\')
            return json_expected(r, c < 0 ? "the closing quote of a string" : "control characters escaped");
        r->at++;
        pn_status st = json_escape(r);
        if (st)
            return st;
    }
    r->at++;
    *off = (uint32_t)start;
    *len = (uint32_t)(r->d->text_len - start);
    json_put(r, "", 1);
    return PN_OK;
}

static bool json_digits(json_reader *r)
{
    size_t start = r->at;
    while (r->at < r->n && r->s[r->at] >= '0' && r->s[r->at] <= '9')
        r->at++;
    return r->at > start;
}

static pn_status json_number(json_reader *r, uint32_t *off, uint32_t *len)
{
    size_t start = r->at;
    if (json_peek(r) == '-')
        r->at++;
    if (json_peek(r) == '0')
        r->at++;                        /* no digit may follow: 01 ends as "expected ','" */
    else if (!json_digits(r))
        return json_expected(r, "a digit");
    if (json_peek(r) == '.') {
        r->at++;
        if (!json_digits(r))
            return json_expected(r, "a digit after the decimal point");
    }
    if (json_peek(r) == 'e' || json_peek(r) == 'E') {
        r->at++;
        if (json_peek(r) == '+' || json_peek(r) == '-')
            r->at++;
        if (!json_digits(r))
            return json_expected(r, "a digit in the exponent");
    }
    *off = (uint32_t)r->d->text_len;
    *len = (uint32_t)(r->at - start);
    json_put(r, r->s + start, r->at - start);
    json_put(r, "", 1);
    return PN_OK;
}

static bool json_word(json_reader *r, const char *word)
{
    size_t n = strlen(word);
    if (r->n - r->at < n || memcmp(r->s + r->at, word, n) != 0)
        return false;
    r->at += n;
    return true;
}

/* ------------------------------------------------------------------------------------------
 * The index of members: (object, key) -> node, open addressing, at most 3/4 full
 * ------------------------------------------------------------------------------------------ */

static uint64_t json_hash(const pn_json_doc *d, uint32_t object, const char *key, size_t len)
{
    return pn_hash(key, len, d->seed ^ object * 0x9e3779b97f4a7c15u);   /* odd: spreads the objects */
}

/* The slot that holds the member, or the free one where it belongs.  index_cap > 0. */
static size_t json_probe(const pn_json_doc *d, uint32_t object, const char *key, size_t len)
{
    size_t mask = d->index_cap - 1;
    for (size_t i = (size_t)json_hash(d, object, key, len) & mask;; i = (i + 1) & mask) {
        if (d->index[i] == PN_JSON_NONE)
            return i;
        const pn_json_node *m = &d->nodes[d->index[i]];
        if (m->parent == object && m->key_len == len && memcmp(d->text + m->key, key, len) == 0)
            return i;
    }
}

static bool json_index_grow(pn_json_doc *d)
{
    if (d->n_members + 1 <= d->index_cap / 4 * 3)
        return true;
    size_t old_cap = d->index_cap, cap = old_cap ? old_cap * 2 : 32;
    if (cap > SIZE_MAX / sizeof *d->index)
        return false;
    uint32_t *old = d->index, *index = pn_mem_alloc(d->mem, d->account, cap * sizeof *index);
    if (!index)
        return false;
    memset(index, 0xFF, cap * sizeof *index);
    d->index = index;
    d->index_cap = cap;
    for (size_t i = 0; i < old_cap; i++) {
        if (old[i] == PN_JSON_NONE)
            continue;
        const pn_json_node *m = &d->nodes[old[i]];
        index[json_probe(d, m->parent, d->text + m->key, m->key_len)] = old[i];
    }
    pn_mem_free(d->mem, d->account, old, old_cap * sizeof *old);
    return true;
}

/* Enter member `node`; an equal key before it is an error or dies. */
static pn_status json_enter(json_reader *r, uint32_t node)
{
    pn_json_doc *d = r->d;
    if (!json_index_grow(d))
        return pn_fail_nomem(r->err, "the JSON key index", (uint64_t)d->index_cap * 2 * sizeof *d->index);
    const pn_json_node *m = &d->nodes[node];
    size_t slot = json_probe(d, m->parent, d->text + m->key, m->key_len);
    if (d->index[slot] == PN_JSON_NONE) {
        d->n_members++;
    } else if (r->limit.unique_keys) {
        return pn_fail(r->err, PN_E_FORMAT, "JSON byte %" PRIu64 ": expected each key once, found \"%.*s\" again",
                       (uint64_t)r->key_at, (int)PN_MIN(m->key_len, 64u), d->text + m->key);
    } else {
        d->nodes[d->index[slot]].type |= JSON_DEAD;
        d->nodes[m->parent].b--;
    }
    d->index[slot] = node;
    return PN_OK;
}

/* ------------------------------------------------------------------------------------------
 * The tree
 * ------------------------------------------------------------------------------------------ */

/* Append a node to the open container; *out is its number. */
static pn_status json_add(json_reader *r, pn_json_type type, uint32_t *out)
{
    pn_json_doc *d = r->d;
    if (r->limit.max_nodes && d->n_nodes >= r->limit.max_nodes)
        return json_limit(r, "values", r->limit.max_nodes);
    if (!pn_mem_grow(d->mem, d->account, (void **)&d->nodes, &d->cap_nodes, d->n_nodes + 1, sizeof *d->nodes))
        return pn_fail_nomem(r->err, "the JSON tree", ((uint64_t)d->cap_nodes * 2 + 16) * sizeof *d->nodes);
    uint32_t node = (uint32_t)d->n_nodes++;
    d->nodes[node] = (pn_json_node){.type = type, .parent = r->open, .next = PN_JSON_NONE,
                                    .key = r->key, .key_len = r->key_len};
    *out = node;
    if (r->open == PN_JSON_NONE)
        return PN_OK;
    pn_json_node *up = &d->nodes[r->open];
    if (up->a == PN_JSON_NONE)
        up->a = node;
    else
        d->nodes[up->next].next = node;
    up->next = node;                    /* the last child, while up is open */
    up->b++;
    return up->type == PN_JSON_OBJECT ? json_enter(r, node) : PN_OK;
}

static pn_status json_open(json_reader *r, pn_json_type type)
{
    uint32_t node;
    if (r->depth >= r->limit.max_depth)
        return json_limit(r, "arrays and objects inside each other", r->limit.max_depth);
    pn_status st = json_add(r, type, &node);
    if (st)
        return st;
    r->d->nodes[node].a = PN_JSON_NONE;
    r->open = node;
    r->depth++;
    r->at++;
    return PN_OK;
}

static void json_close(json_reader *r)
{
    pn_json_node *node = &r->d->nodes[r->open];
    node->next = PN_JSON_NONE;
    r->open = node->parent;
    r->depth--;
    r->at++;
}

static pn_status json_scalar(json_reader *r)
{
    pn_json_type type;
    uint32_t a = 0, b = 0, node;
    pn_status st = PN_OK;
    int c = json_peek(r);
    if (c == '"') {
        type = PN_JSON_STRING;
        st = json_string(r, &a, &b);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        type = PN_JSON_NUMBER;
        st = json_number(r, &a, &b);
    } else if (json_word(r, "null")) {
        type = PN_JSON_NULL;
    } else if (json_word(r, "true")) {
        type = PN_JSON_BOOL;
        a = 1;
    } else if (json_word(r, "false")) {
        type = PN_JSON_BOOL;
    } else {
        return json_expected(r, "a value");
    }
    if (!st)
        st = json_add(r, type, &node);
    if (st)
        return st;
    r->d->nodes[node].a = a;
    r->d->nodes[node].b = b;
    return PN_OK;
}

/* "key": and the space after it. */
static pn_status json_read_key(json_reader *r)
{
    json_skip_space(r);
    r->key_at = r->at;
    if (json_peek(r) != '"')
        return json_expected(r, "a quoted key");
    pn_status st = json_string(r, &r->key, &r->key_len);
    if (st)
        return st;
    json_skip_space(r);
    if (json_peek(r) != ':')
        return json_expected(r, "':' after a key");
    r->at++;
    return PN_OK;
}

/* Get ready for the next value of the open container. */
static pn_status json_before_value(json_reader *r)
{
    r->key = PN_JSON_NONE;
    r->key_len = 0;
    if (r->open != PN_JSON_NONE && r->d->nodes[r->open].type == PN_JSON_OBJECT)
        return json_read_key(r);
    return PN_OK;
}

/* One value; a container is only entered (*entered), unless it is empty. */
static pn_status json_value(json_reader *r, bool *entered)
{
    json_skip_space(r);
    int c = json_peek(r);
    *entered = false;
    if (c != '{' && c != '[')
        return json_scalar(r);
    pn_status st = json_open(r, c == '{' ? PN_JSON_OBJECT : PN_JSON_ARRAY);
    if (st)
        return st;
    json_skip_space(r);
    if (json_peek(r) == (c == '{' ? '}' : ']'))
        json_close(r);
    else
        *entered = true;
    return PN_OK;
}

/* After a value: close what closes, up to the comma before the next value or the end of the text. */
static pn_status json_after_value(json_reader *r, bool *done)
{
    *done = false;
    for (;;) {
        json_skip_space(r);
        int c = json_peek(r);
        if (r->open == PN_JSON_NONE) {
            *done = true;
            return c < 0 ? PN_OK : json_expected(r, "the end of the text after the value");
        }
        bool object = r->d->nodes[r->open].type == PN_JSON_OBJECT;
        if (c == ',') {
            r->at++;
            return PN_OK;
        }
        if (c != (object ? '}' : ']'))
            return json_expected(r, object ? "',' or '}'" : "',' or ']'");
        json_close(r);
    }
}

static pn_status json_read(json_reader *r)
{
    bool entered, done = false;
    while (!done) {
        pn_status st = json_before_value(r);
        if (!st)
            st = json_value(r, &entered);
        if (!st && !entered)
            st = json_after_value(r, &done);
        if (st)
            return st;
    }
    return PN_OK;
}

PN_INTERNAL pn_status pn_json_parse(pn_json_doc *d, pn_mem *mem, pn_account account, const char *text,
                                    size_t n, const pn_json_params *params, pn_err *err)
{
    json_reader r = {.d = d, .s = text, .n = n, .open = PN_JSON_NONE, .key = PN_JSON_NONE, .err = err};
    *d = (pn_json_doc){.mem = mem, .account = account};
    d->seed = (uint64_t)(uintptr_t)d;   /* unknown to the sender; the order is never observable */
    if (params)
        r.limit = *params;
    if (!r.limit.max_depth)
        r.limit.max_depth = 128;
    if (!r.limit.max_bytes)
        r.limit.max_bytes = (size_t)256 << 20;
    r.limit.max_bytes = PN_MIN(r.limit.max_bytes, (size_t)JSON_BYTES_MAX);
    if (n > r.limit.max_bytes)
        return pn_fail(err, PN_E_FORMAT, "JSON text: expected at most %zu bytes, found %zu", r.limit.max_bytes, n);
    d->text = pn_mem_alloc(mem, account, n + 1);
    if (!d->text)
        return pn_fail_nomem(err, "the JSON text", (uint64_t)n + 1);
    d->text_cap = n + 1;
    pn_status st = json_read(&r);
    if (st)
        pn_json_fini(d);
    return st;
}

PN_INTERNAL void pn_json_fini(pn_json_doc *d)
{
    if (!d->mem)
        return;
    pn_mem_free(d->mem, d->account, d->nodes, d->cap_nodes * sizeof *d->nodes);
    pn_mem_free(d->mem, d->account, d->text, d->text_cap);
    pn_mem_free(d->mem, d->account, d->index, d->index_cap * sizeof *d->index);
    *d = (pn_json_doc){.mem = d->mem, .account = d->account};
}

/* ------------------------------------------------------------------------------------------
 * Looking around
 * ------------------------------------------------------------------------------------------ */

static const pn_json_node *json_node(const pn_json_doc *d, uint32_t node)
{
    return node < d->n_nodes ? &d->nodes[node] : NULL;
}

/* The node when it has this type, else NULL. */
static const pn_json_node *json_typed(const pn_json_doc *d, uint32_t node, pn_json_type type)
{
    return pn_json_type_of(d, node) == type ? &d->nodes[node] : NULL;
}

PN_INTERNAL pn_json_type pn_json_type_of(const pn_json_doc *d, uint32_t node)
{
    const pn_json_node *p = json_node(d, node);
    return p ? (pn_json_type)(p->type & ~JSON_DEAD) : PN_JSON_ABSENT;
}

PN_INTERNAL const char *pn_json_type_name(pn_json_type t)
{
    static const char *const names[] = {"nothing", "null", "boolean", "number", "string", "array", "object"};
    return (size_t)t < PN_COUNT_OF(names) ? names[t] : "?";
}

PN_INTERNAL uint32_t pn_json_get(const pn_json_doc *d, uint32_t node, const char *key)
{
    return pn_json_find(d, node, key, strlen(key));
}

PN_INTERNAL uint32_t pn_json_find(const pn_json_doc *d, uint32_t node, const char *key, size_t len)
{
    if (!json_typed(d, node, PN_JSON_OBJECT) || !d->index_cap)
        return PN_JSON_NONE;
    return d->index[json_probe(d, node, key, len)];
}

PN_INTERNAL uint32_t pn_json_count(const pn_json_doc *d, uint32_t node)
{
    pn_json_type t = pn_json_type_of(d, node);
    return t == PN_JSON_ARRAY || t == PN_JSON_OBJECT ? d->nodes[node].b : 0;
}

/* `node` itself, or the next sibling that is alive. */
static uint32_t json_alive(const pn_json_doc *d, uint32_t node)
{
    while (node != PN_JSON_NONE && d->nodes[node].type & JSON_DEAD)
        node = d->nodes[node].next;
    return node;
}

PN_INTERNAL uint32_t pn_json_first(const pn_json_doc *d, uint32_t node)
{
    pn_json_type t = pn_json_type_of(d, node);
    return t == PN_JSON_ARRAY || t == PN_JSON_OBJECT ? json_alive(d, d->nodes[node].a) : PN_JSON_NONE;
}

PN_INTERNAL uint32_t pn_json_next(const pn_json_doc *d, uint32_t node)
{
    const pn_json_node *p = json_node(d, node);
    return p ? json_alive(d, p->next) : PN_JSON_NONE;
}

PN_INTERNAL pn_bytes pn_json_key_of(const pn_json_doc *d, uint32_t node)
{
    const pn_json_node *p = json_node(d, node);
    if (!p || p->key == PN_JSON_NONE)
        return (pn_bytes){NULL, 0};
    return (pn_bytes){d->text + p->key, p->key_len};
}

PN_INTERNAL bool pn_json_str(const pn_json_doc *d, uint32_t node, pn_bytes *out)
{
    const pn_json_node *p = json_typed(d, node, PN_JSON_STRING);
    if (p)
        *out = (pn_bytes){d->text + p->a, p->b};
    return p != NULL;
}

PN_INTERNAL bool pn_json_num(const pn_json_doc *d, uint32_t node, pn_bytes *out)
{
    const pn_json_node *p = json_typed(d, node, PN_JSON_NUMBER);
    if (p)
        *out = (pn_bytes){d->text + p->a, p->b};
    return p != NULL;
}

PN_INTERNAL bool pn_json_bool(const pn_json_doc *d, uint32_t node, bool *out)
{
    const pn_json_node *p = json_typed(d, node, PN_JSON_BOOL);
    if (p)
        *out = p->a != 0;
    return p != NULL;
}

PN_INTERNAL bool pn_json_f64(const pn_json_doc *d, uint32_t node, double *out)
{
    pn_bytes t;
    double v;
    if (!pn_json_num(d, node, &t) || !pn_parse_f64(t.data, t.data + t.len, &v, NULL) || !isfinite(v))
        return false;
    *out = v;
    return true;
}

PN_INTERNAL bool pn_json_i64(const pn_json_doc *d, uint32_t node, int64_t *out)
{
    pn_bytes t;
    double v;
    if (!pn_json_num(d, node, &t))
        return false;
    if (pn_parse_i64(t.data, INT64_MIN, INT64_MAX, out))
        return true;
    /* 5.0 and 5e0 are integers too, as far as a double counts them one by one. */
    if (!memchr(t.data, '.', t.len) && !memchr(t.data, 'e', t.len) && !memchr(t.data, 'E', t.len))
        return false;
    if (!pn_json_f64(d, node, &v) || v != floor(v) || v < -9007199254740992.0 || v > 9007199254740992.0)
        return false;
    *out = (int64_t)v;
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Writing
 * ------------------------------------------------------------------------------------------ */

/* What stands for byte c inside quotes; NULL: c itself.  tmp: room for \u00XX. */
static const char *json_escaped(uint8_t c, char tmp[8])
{
    static const char hex[] = "0123456789abcdef";
    switch (c) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\b': return "\\b";
    case '\f': return "\\f";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: break;
    }
    if (c >= 0x20)
        return NULL;
    memcpy(tmp, "\\u00", 4);
    tmp[4] = hex[c >> 4];
    tmp[5] = hex[c & 15];
    tmp[6] = 0;
    return tmp;
}

PN_INTERNAL void pn_json_write_str(pn_str *s, const char *text, size_t n)
{
    size_t run = 0, i = 0;              /* text[run..i) is good and not yet written */
    char tmp[8];
    pn_str_addc(s, '"');
    while (i < n) {
        uint32_t cp;
        size_t used = pn_utf8_decode(text + i, n - i, &cp);
        const char *instead = cp < 0x80 ? json_escaped((uint8_t)cp, tmp) : NULL;
        if (used == 1 && cp == PN_UTF8_BAD)
            instead = "\xEF\xBF\xBD";
        if (instead) {
            pn_str_add(s, text + run, i - run);
            pn_str_addz(s, instead);
            run = i + used;
        }
        i += used;
    }
    if (n > run)
        pn_str_add(s, text + run, n - run);
    pn_str_addc(s, '"');
}

PN_INTERNAL void pn_json_write_strz(pn_str *s, const char *text)
{
    if (text)
        pn_json_write_str(s, text, strlen(text));
    else
        pn_str_addz(s, "null");
}

/* %g writes the locale's decimal point (one byte or several); JSON knows '.' only. */
static void json_add_number(pn_str *s, const char *digits)
{
    bool dot = false;
    for (; *digits; digits++) {
        char c = *digits;
        if ((c >= '0' && c <= '9') || c == '-' || c == '+' || c == 'e')
            pn_str_addc(s, c);
        else if (!dot) {
            pn_str_addc(s, '.');
            dot = true;
        }
    }
}

PN_INTERNAL void pn_json_write_f64(pn_str *s, double v)
{
    char buf[48];
    if (!isfinite(v)) {
        pn_str_addz(s, "null");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {     /* 17 always suffice */
        snprintf(buf, sizeof buf, "%.*g", digits, v);
        if (strtod(buf, NULL) == v)                     /* same locale as the line above */
            break;
    }
    json_add_number(s, buf);
}

PN_INTERNAL void pn_json_write_f32(pn_str *s, float v)
{
    char buf[48];
    if (!isfinite(v)) {
        pn_str_addz(s, "null");
        return;
    }
    for (int digits = 6; digits <= 9; digits++) {       /* 9 always suffice */
        snprintf(buf, sizeof buf, "%.*g", digits, (double)v);
        if (strtof(buf, NULL) == v)
            break;
    }
    json_add_number(s, buf);
}

PN_INTERNAL void pn_json_write_i64(pn_str *s, int64_t v) { pn_str_addf(s, "%" PRId64, v); }

PN_INTERNAL void pn_json_write_u64(pn_str *s, uint64_t v) { pn_str_addf(s, "%" PRIu64, v); }

PN_INTERNAL void pn_json_write_bool(pn_str *s, bool v) { pn_str_addz(s, v ? "true" : "false"); }

PN_INTERNAL void pn_json_item(pn_str *s)
{
    char last = s->len ? s->data[s->len - 1] : 0;
    if (last == '"' || last == '}' || last == ']' || last == 'e' || last == 'l' || (last >= '0' && last <= '9'))
        pn_str_addc(s, ',');
}

PN_INTERNAL void pn_json_key(pn_str *s, const char *key)
{
    pn_json_item(s);
    pn_json_write_strz(s, key);
    pn_str_addc(s, ':');
}

/* A scalar, or the opening bracket of a container. */
static void json_write_head(pn_str *s, const pn_json_doc *d, uint32_t node)
{
    const pn_json_node *p = &d->nodes[node];
    switch (pn_json_type_of(d, node)) {
    case PN_JSON_BOOL: pn_json_write_bool(s, p->a != 0); break;
    case PN_JSON_NUMBER: pn_str_add(s, d->text + p->a, p->b); break;
    case PN_JSON_STRING: pn_json_write_str(s, d->text + p->a, p->b); break;
    case PN_JSON_ARRAY: pn_str_addc(s, '['); break;
    case PN_JSON_OBJECT: pn_str_addc(s, '{'); break;
    default: pn_str_addz(s, "null"); break;
    }
}

static void json_write_tail(pn_str *s, const pn_json_doc *d, uint32_t node)
{
    pn_json_type t = pn_json_type_of(d, node);
    if (t == PN_JSON_ARRAY || t == PN_JSON_OBJECT)
        pn_str_addc(s, t == PN_JSON_ARRAY ? ']' : '}');
}

PN_INTERNAL void pn_json_write_node(pn_str *s, const pn_json_doc *d, uint32_t node)
{
    uint32_t at = node;
    if (!json_node(d, node)) {
        pn_str_addz(s, "null");
        return;
    }
    for (;;) {
        pn_bytes key = pn_json_key_of(d, at);
        if (at != node && key.data) {
            pn_json_write_str(s, key.data, key.len);
            pn_str_addc(s, ':');
        }
        json_write_head(s, d, at);
        uint32_t child = pn_json_first(d, at);
        if (child != PN_JSON_NONE) {
            at = child;
            continue;
        }
        json_write_tail(s, d, at);
        while (at != node && pn_json_next(d, at) == PN_JSON_NONE) {
            at = d->nodes[at].parent;
            json_write_tail(s, d, at);
        }
        if (at == node)
            return;
        pn_str_addc(s, ',');
        at = pn_json_next(d, at);
    }
}

#undef JSON_DEAD
#undef JSON_BYTES_MAX
