/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_schema_load.c - the ground the schema front end stands on: memory, errors with JSON pointers,
 * the list of keywords, and references.
 *
 * Memory is an arena: a compilation makes thousands of short lists whose lives all end together, and
 * arrays must not move while others point at them.
 *
 * The list of keywords is what "never unconstrained by accident" rests on: every validation keyword
 * of draft 2020-12 and of the drafts before it is in it, as something we do or as something we
 * refuse.  A key that is not in it is an annotation (JSON Schema core, section 6.5).
 */
#include "sample/pn_schema_int.h"
#include "base/pn_err.h"

#include <stdarg.h>
#include <stdio.h>

/* --- memory ----------------------------------------------------------------------------------- */

#define SCHLOAD_CHUNK (16u << 10)
#define SCHLOAD_ARENA (64u << 20)      /* as the limit of a compiled grammar */

struct pn_sch_chunk {
    pn_sch_chunk *next;
    size_t size, used;          /* of the whole chunk, this head included */
};

PN_INTERNAL bool pn_sch_nomem(pn_sch *s)
{
    if (s->status == PN_OK)
        s->status = pn_fail(s->err, PN_E_NOMEM, "out of memory while compiling a JSON schema");
    return false;
}

PN_INTERNAL void *pn_sch_alloc(pn_sch *s, uint64_t n, size_t size)
{
    uint64_t bytes;
    if (!pn_mul_u64(n, size, &bytes) || bytes > SIZE_MAX / 2) {
        pn_sch_nomem(s);
        return NULL;
    }
    bytes = pn_align_up(bytes, 16);
    pn_sch_chunk *c = s->chunks;
    if (!c || c->size - c->used < bytes) {
        const size_t head = (size_t)pn_align_up(sizeof *c, 16);
        const size_t want = PN_MAX((size_t)bytes + head, (size_t)SCHLOAD_CHUNK);
        if (want > SCHLOAD_ARENA - s->arena_bytes) {
            pn_sch_fail(s, PN_E_INVALID, s->root, NULL, "compiling takes more than %u bytes", SCHLOAD_ARENA);
            return NULL;
        }
        c = want == SCHLOAD_CHUNK && s->spare ? s->spare : pn_mem_alloc(s->mem, PN_ACCT_GRAMMAR, want);
        if (c == s->spare)
            s->spare = NULL;
        if (!c) {
            pn_sch_nomem(s);
            return NULL;
        }
        c->size = want;
        c->used = head;
        c->next = s->chunks;
        s->chunks = c;
        s->arena_bytes += want;
    }
    char *p = (char *)c + c->used;
    c->used += (size_t)bytes;
    memset(p, 0, (size_t)bytes);
    return p;
}

PN_INTERNAL pn_sch_mark pn_sch_marked(const pn_sch *s)
{
    const pn_sch_mark mark = {s->chunks, s->chunks ? s->chunks->used : 0};
    return mark;
}

PN_INTERNAL void pn_sch_rewind(pn_sch *s, pn_sch_mark mark)
{
    while (s->chunks != mark.chunk) {
        pn_sch_chunk *c = s->chunks;
        s->chunks = c->next;
        s->arena_bytes -= c->size;
        if (c->size == SCHLOAD_CHUNK && !s->spare)
            s->spare = c;
        else
            pn_mem_free(s->mem, PN_ACCT_GRAMMAR, c, c->size);
    }
    if (mark.chunk)
        mark.chunk->used = mark.used;
}

PN_INTERNAL void pn_sch_fini(pn_sch *s)
{
    pn_map_fini(&s->goal_of);
    pn_map_fini(&s->reported);
    pn_map_fini(&s->anchors);
    pn_map_fini(&s->pattern_of);
    pn_map_fini(&s->body_of);
    pn_mem_free(s->mem, PN_ACCT_GRAMMAR, s->goals, s->cap_goals * sizeof *s->goals);
    pn_mem_free(s->mem, PN_ACCT_GRAMMAR, s->spare, SCHLOAD_CHUNK);
    while (s->chunks) {
        pn_sch_chunk *next = s->chunks->next;
        pn_mem_free(s->mem, PN_ACCT_GRAMMAR, s->chunks, s->chunks->size);
        s->chunks = next;
    }
}

/* --- pointers and errors ---------------------------------------------------------------------- */

static void schload_escape(pn_str *out, pn_bytes key)
{
    for (size_t i = 0; i < key.len; i++) {
        const char c = key.data[i];
        if (c == '~')
            pn_str_addz(out, "~0");
        else if (c == '/')
            pn_str_addz(out, "~1");
        else
            pn_str_addc(out, (unsigned char)c < 0x20 ? ' ' : c);      /* errors are lines of text */
    }
}

static uint32_t schload_index(const pn_json_doc *d, uint32_t node)
{
    uint32_t i = 0;
    for (uint32_t c = pn_json_first(d, d->nodes[node].parent); c != PN_JSON_NONE && c != node; c = pn_json_next(d, c))
        i++;
    return i;
}

/* RFC 6901, from the schema's root. */
static void schload_pointer(const pn_sch *s, uint32_t node, pn_str *out)
{
    enum { SCHLOAD_DEEP = 160 };
    uint32_t path[SCHLOAD_DEEP], n = 0;
    for (; node != s->root && node != PN_JSON_NONE && n < SCHLOAD_DEEP; node = s->d->nodes[node].parent)
        path[n++] = node;
    while (n-- > 0) {
        const pn_bytes key = pn_json_key_of(s->d, path[n]);
        pn_str_addc(out, '/');
        if (key.data)
            schload_escape(out, key);
        else
            pn_str_addf(out, "%u", (unsigned)schload_index(s->d, path[n]));
    }
}

/* Pointer, keyword included.  A hostile key is a megabyte: the end is what helps. */
static void schload_where(pn_sch *s, uint32_t node, const char *kw, pn_str *out)
{
    schload_pointer(s, node, out);
    if (kw)
        pn_str_addf(out, "/%s", kw);
}

static const char *schload_tail(const pn_str *where)
{
    const size_t most = 240;
    const char *p = pn_str_cstr(where);
    if (where->failed)
        return "(pointer lost: out of memory)";
    if (where->len == 0)
        return "(root)";
    if (where->len <= most)
        return p;
    p += where->len - most;
    while (((unsigned char)*p & 0xC0) == 0x80)
        p++;
    return p;
}

PN_INTERNAL bool pn_sch_fail(pn_sch *s, pn_status status, uint32_t node, const char *kw, const char *fmt, ...)
{
    if (s->status != PN_OK)
        return false;
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pn_str where;
    pn_str_init(&where, s->mem, PN_ACCT_GRAMMAR);
    schload_where(s, node, kw, &where);
    s->status = pn_fail(s->err, status, "%s%s: %s", where.len > 240 ? "..." : "", schload_tail(&where), text);
    pn_str_fini(&where);
    return false;
}

PN_INTERNAL bool pn_sch_refuse(pn_sch *s, uint32_t node, const char *kw, const char *why)
{
    if (s->status != PN_OK)
        return false;
    if (!s->o.lenient)
        return pn_sch_fail(s, PN_E_UNSUPPORTED, node, kw, "\"%s\" cannot be enforced: %s", kw, why);
    pn_str where;
    pn_str_init(&where, s->mem, PN_ACCT_GRAMMAR);
    schload_where(s, node, kw, &where);
    bool existed = false, ok = !where.failed;
    char *key = ok ? pn_sch_alloc(s, where.len + 1, 1) : NULL;
    if (key) {
        memcpy(key, pn_str_cstr(&where), where.len);
        ok = pn_map_put(&s->reported, key, where.len, 0, &existed) != NULL;
        if (ok && !existed && s->widened) {
            if (s->widened->len > 0)
                pn_str_addc(s->widened, '\n');
            pn_str_add(s->widened, key, where.len);
            ok = !s->widened->failed;
        }
    }
    pn_str_fini(&where);
    return (ok && key) || pn_sch_nomem(s);
}

PN_INTERNAL bool pn_sch_built(pn_sch *s, uint32_t node, const char *kw)
{
    if (s->status != PN_OK)
        return false;
    if (pn_gir_ok(s->g))
        return true;
    pn_err e = {PN_OK, {0}};
    const pn_status status = pn_gir_status(s->g, &e);
    if (status == PN_E_NOMEM)
        return pn_sch_nomem(s);
    return pn_sch_fail(s, status, node, kw, "%.250s", e.text);
}

PN_INTERNAL bool pn_sch_steps(pn_sch *s, uint32_t node, uint64_t n)
{
    return s->status == PN_OK && (pn_gir_steps(s->g, n) || pn_sch_built(s, node, NULL));
}

/* --- keywords --------------------------------------------------------------------------------- */

typedef struct schload_keyword {
    const char *name;
    uint8_t kw, types;          /* types it speaks about; 0: all */
} schload_keyword;

static const schload_keyword schload_keywords[] = {
    {"$ref", PN_SCH_K_REF, 0},
    {"allOf", PN_SCH_K_ALLOF, 0},
    {"anyOf", PN_SCH_K_ANYOF, 0},
    {"oneOf", PN_SCH_K_ONEOF, 0},
    {"type", PN_SCH_K_TYPE, 0},
    {"nullable", PN_SCH_K_NULLABLE, 0},
    {"enum", PN_SCH_K_ENUM, 0},
    {"const", PN_SCH_K_CONST, 0},
    {"not", PN_SCH_K_NOT, 0},
    {"minimum", PN_SCH_K_MIN, PN_SCH_NUMBER},
    {"maximum", PN_SCH_K_MAX, PN_SCH_NUMBER},
    {"exclusiveMinimum", PN_SCH_K_XMIN, PN_SCH_NUMBER},
    {"exclusiveMaximum", PN_SCH_K_XMAX, PN_SCH_NUMBER},
    {"multipleOf", PN_SCH_K_MULTIPLE, PN_SCH_NUMBER},
    {"minLength", PN_SCH_K_MINLEN, PN_SCH_STR},
    {"maxLength", PN_SCH_K_MAXLEN, PN_SCH_STR},
    {"pattern", PN_SCH_K_PATTERN, PN_SCH_STR},
    {"format", PN_SCH_K_FORMAT, PN_SCH_STR},
    {"items", PN_SCH_K_ITEMS, PN_SCH_ARR},
    {"prefixItems", PN_SCH_K_PREFIX, PN_SCH_ARR},
    {"additionalItems", PN_SCH_K_ADDITEMS, PN_SCH_ARR},
    {"unevaluatedItems", PN_SCH_K_UNEVITEMS, PN_SCH_ARR},
    {"minItems", PN_SCH_K_MINITEMS, PN_SCH_ARR},
    {"maxItems", PN_SCH_K_MAXITEMS, PN_SCH_ARR},
    {"uniqueItems", PN_SCH_K_UNIQUE, PN_SCH_ARR},
    {"contains", PN_SCH_K_CONTAINS, PN_SCH_ARR},
    {"properties", PN_SCH_K_PROPS, PN_SCH_OBJ},
    {"patternProperties", PN_SCH_K_PATPROPS, PN_SCH_OBJ},
    {"additionalProperties", PN_SCH_K_ADDPROPS, PN_SCH_OBJ},
    {"unevaluatedProperties", PN_SCH_K_UNEVPROPS, PN_SCH_OBJ},
    {"propertyNames", PN_SCH_K_NAMES, PN_SCH_OBJ},
    {"required", PN_SCH_K_REQUIRED, PN_SCH_OBJ},
    {"minProperties", PN_SCH_K_MINPROPS, PN_SCH_OBJ},
    {"maxProperties", PN_SCH_K_MAXPROPS, PN_SCH_OBJ},
    {"then", PN_SCH_K_THEN, 0},
    {"else", PN_SCH_K_THEN, 0},
    {"dependentRequired", PN_SCH_K_REFUSED, PN_SCH_OBJ},
    {"dependentSchemas", PN_SCH_K_REFUSED, PN_SCH_OBJ},
    {"dependencies", PN_SCH_K_REFUSED, PN_SCH_OBJ},
    {"$dynamicRef", PN_SCH_K_REFUSED, 0},
    {"$recursiveRef", PN_SCH_K_REFUSED, 0},
    {"disallow", PN_SCH_K_REFUSED, 0},              /* drafts 3 and before */
    {"extends", PN_SCH_K_REFUSED, 0},
    {"divisibleBy", PN_SCH_K_REFUSED, PN_SCH_NUMBER},
};

PN_INTERNAL pn_sch_kw pn_sch_keyword(pn_bytes key, uint32_t *types)
{
    for (size_t i = 0; i < PN_COUNT_OF(schload_keywords); i++) {
        const schload_keyword *k = &schload_keywords[i];
        if (key.len > 0 && key.data[0] == k->name[0] && key.len == strlen(k->name) && memcmp(key.data, k->name, key.len) == 0) {
            if (types)
                *types = k->types;
            return (pn_sch_kw)k->kw;
        }
    }
    if (types)
        *types = 0;
    return PN_SCH_K_NOTE;
}

PN_INTERNAL const char *pn_sch_kind(const pn_sch *s, uint32_t node) { return pn_json_type_name(pn_json_type_of(s->d, node)); }

PN_INTERNAL bool pn_sch_is_schema(pn_sch *s, uint32_t node)
{
    const pn_json_type t = pn_json_type_of(s->d, node);
    if (t == PN_JSON_OBJECT || t == PN_JSON_BOOL)
        return true;
    pn_bytes text = {"", 0};
    pn_json_num(s->d, node, &text);
    pn_json_str(s->d, node, &text);
    return pn_sch_fail(s, PN_E_INVALID, node, NULL, "expected a schema (an object or a boolean), found %s %.60s",
                       pn_json_type_name(t), text.data);
}

PN_INTERNAL bool pn_sch_count(pn_sch *s, uint32_t node, const char *kw, uint32_t value, uint32_t *out)
{
    int64_t v;
    pn_bytes text = {"", 0};
    if (pn_json_i64(s->d, value, &v) && v >= 0) {
        *out = v > PN_SCH_COUNT_MAX ? PN_SCH_MANY : (uint32_t)v;
        return true;
    }
    pn_sch_dec dec;
    if (pn_json_num(s->d, value, &text)) {
        if (!pn_sch_dec_parse(s, text, &dec))
            return false;
        if (!dec.neg && dec.n > 0 && dec.point >= (int64_t)dec.n) {     /* an integer beyond 64 bits */
            *out = PN_SCH_MANY;
            return true;
        }
    }
    return pn_sch_fail(s, PN_E_INVALID, node, kw, "expected a non-negative integer, found %s %.40s",
                       pn_sch_kind(s, value), text.len ? text.data : "");
}

/* --- references ------------------------------------------------------------------------------- */

static int schload_hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* %XX, then ~1 and ~0, in place; the new length, SIZE_MAX: malformed. */
static size_t schload_unescape(char *t, size_t n, bool tilde)
{
    size_t w = 0;
    for (size_t i = 0; i < n; i++) {
        if (!tilde && t[i] == '%') {
            if (n - i < 3 || schload_hex(t[i + 1]) < 0 || schload_hex(t[i + 2]) < 0)
                return SIZE_MAX;
            t[w++] = (char)(schload_hex(t[i + 1]) * 16 + schload_hex(t[i + 2]));
            i += 2;
        } else if (tilde && t[i] == '~') {
            if (n - i < 2 || (t[i + 1] != '0' && t[i + 1] != '1'))
                return SIZE_MAX;
            t[w++] = t[++i] == '1' ? '/' : '~';
        } else {
            t[w++] = t[i];
        }
    }
    return w;
}

static uint32_t schload_element(pn_sch *s, uint32_t node, const char *t, size_t n)
{
    const pn_json_doc *d = s->d;
    uint32_t want = 0;
    if (n == 0 || n > 9 || (n > 1 && t[0] == '0'))
        return PN_JSON_NONE;
    for (size_t i = 0; i < n; i++) {
        if (t[i] < '0' || t[i] > '9')
            return PN_JSON_NONE;
        want = want * 10 + (uint32_t)(t[i] - '0');
    }
    if (want >= pn_json_count(d, node) || !pn_sch_steps(s, s->root, want / 2))
        return PN_JSON_NONE;
    uint32_t c = pn_json_first(d, node);
    while (want-- > 0)
        c = pn_json_next(d, c);
    return c;
}

/* Follow /a/b/0 from node; the text is percent-decoded. */
static uint32_t schload_walk(pn_sch *s, uint32_t node, char *t, size_t n)
{
    const pn_json_doc *d = s->d;
    size_t i = 0;
    while (i < n && node != PN_JSON_NONE) {
        size_t end = ++i;                               /* past the slash */
        while (end < n && t[end] != '/')
            end++;
        const size_t len = schload_unescape(t + i, end - i, true);
        if (len == SIZE_MAX)
            return PN_JSON_NONE;
        if (pn_json_type_of(d, node) == PN_JSON_ARRAY)
            node = schload_element(s, node, t + i, len);
        else
            node = pn_json_find(d, node, t + i, len);
        i = end;
    }
    return node;
}

/* The nearest enclosing schema that has an identity of its own: where "#" leads. */
static uint32_t schload_resource(pn_sch *s, uint32_t node)
{
    for (; node != s->root && pn_sch_steps(s, s->root, 3); node = s->d->nodes[node].parent) {
        pn_bytes id;
        if (pn_json_str(s->d, pn_json_get(s->d, node, "$id"), &id) && id.len > 0 && id.data[0] != '#')
            return node;
    }
    return node;
}

/* Next node of the subtree in document order, PN_JSON_NONE at its end. */
static uint32_t schload_after(const pn_json_doc *d, uint32_t root, uint32_t node)
{
    uint32_t n = pn_json_first(d, node);
    if (n != PN_JSON_NONE)
        return n;
    while (node != root) {
        n = pn_json_next(d, node);
        if (n != PN_JSON_NONE)
            return n;
        node = d->nodes[node].parent;
    }
    return PN_JSON_NONE;
}

/* A key is the sort, '#' for an anchor and '@' for an $id, then the resource node, then the name. */
static char *schload_anchor_key(pn_sch *s, char sort, uint32_t resource, pn_bytes name, size_t *len)
{
    if (name.len > UINT32_MAX) {
        pn_sch_nomem(s);
        return NULL;
    }
    *len = 1 + sizeof resource + name.len;
    char *key = pn_sch_alloc(s, *len, 1);
    if (!key)
        return NULL;
    key[0] = sort;
    memcpy(key + 1, &resource, sizeof resource);
    memcpy(key + 1 + sizeof resource, name.data, name.len);
    return key;
}

static bool schload_put_anchor(pn_sch *s, char sort, uint32_t resource, pn_bytes name, uint32_t node)
{
    size_t len;
    bool existed;
    const char *key = schload_anchor_key(s, sort, resource, name, &len);
    return key && (pn_map_put(&s->anchors, key, len, node, &existed) || pn_sch_nomem(s));
}

static uint32_t schload_find_anchor(pn_sch *s, char sort, uint32_t resource, pn_bytes name)
{
    size_t len;
    const char *key = schload_anchor_key(s, sort, resource, name, &len);
    const uint32_t *found = key ? pn_map_find(&s->anchors, key, len) : NULL;
    return found ? *found : PN_JSON_NONE;
}

static bool schload_scan_anchors(pn_sch *s)
{
    static const char *const names[] = {"$anchor", "$dynamicAnchor"};
    if (s->anchors_known)
        return true;
    s->anchors_known = true;
    for (uint32_t n = s->root; n != PN_JSON_NONE; n = schload_after(s->d, s->root, n)) {
        pn_bytes t;
        const bool object = pn_json_type_of(s->d, n) == PN_JSON_OBJECT;
        if (!pn_sch_steps(s, s->root, object ? 10 : 1))
            return false;
        if (!object)
            continue;
        for (size_t i = 0; i < PN_COUNT_OF(names); i++)
            if (pn_json_str(s->d, pn_json_get(s->d, n, names[i]), &t) &&
                !schload_put_anchor(s, '#', schload_resource(s, n), t, n))
                return false;
        if (!pn_json_str(s->d, pn_json_get(s->d, n, "$id"), &t) || t.len == 0)
            continue;
        if (t.data[0] == '#') {                         /* how drafts 6 and 7 spell an anchor */
            t.data++, t.len--;
            if (!schload_put_anchor(s, '#', schload_resource(s, n), t, n))
                return false;
            continue;
        }
        if (t.data[t.len - 1] == '#')
            t.len--;
        if (!schload_put_anchor(s, '@', 0, t, n))
            return false;
        /* Relative references are found by the last part; full resolution of URIs is not worth its
         * lines for a reference that may not leave the document anyway. */
        size_t cut = t.len;
        while (cut > 0 && t.data[cut - 1] != '/')
            cut--;
        const pn_bytes last = {t.data + cut, t.len - cut};
        if (cut > 0 && last.len > 0 && !schload_put_anchor(s, '@', 0, last, n))
            return false;
    }
    return true;
}

/* The part before '#' names a schema of this document. */
static uint32_t schload_base(pn_sch *s, uint32_t node, pn_bytes uri)
{
    if (uri.len == 0)
        return schload_resource(s, node);
    if (!schload_scan_anchors(s))
        return PN_JSON_NONE;
    return schload_find_anchor(s, '@', 0, uri);
}

PN_INTERNAL uint32_t pn_sch_deref(pn_sch *s, uint32_t node)
{
    pn_bytes ref;
    if (!pn_json_str(s->d, pn_json_get(s->d, node, "$ref"), &ref)) {
        pn_sch_fail(s, PN_E_INVALID, node, "$ref", "expected a string");
        return PN_SCH_NONE;
    }
    size_t hash = 0;
    while (hash < ref.len && ref.data[hash] != '#')
        hash++;
    const pn_bytes uri = {ref.data, hash};
    uint32_t to = schload_base(s, node, uri);
    const bool remote = to == PN_JSON_NONE;
    if (to != PN_JSON_NONE && hash + 1 < ref.len) {
        const size_t n = ref.len - hash - 1;
        char *t = pn_sch_steps(s, node, 4 + n / 4) ? pn_sch_alloc(s, n, 1) : NULL;
        if (!t)
            return PN_SCH_NONE;
        memcpy(t, ref.data + hash + 1, n);
        const size_t len = schload_unescape(t, n, false);
        const pn_bytes name = {t, len};
        if (len == SIZE_MAX)
            to = PN_JSON_NONE;
        else if (t[0] == '/')
            to = schload_walk(s, to, t, len);
        else
            to = schload_scan_anchors(s) ? schload_find_anchor(s, '#', to, name) : PN_JSON_NONE;
    }
    if (s->status != PN_OK)
        return PN_SCH_NONE;
    if (to == PN_JSON_NONE) {
        pn_sch_fail(s, PN_E_INVALID, node, "$ref", remote ? "\"%.120s\" leads out of the document, which is not followed"
                                                          : "\"%.120s\" leads nowhere", ref.data);
        return PN_SCH_NONE;
    }
    return pn_sch_is_schema(s, to) ? to : PN_SCH_NONE;
}

#undef SCHLOAD_CHUNK
#undef SCHLOAD_ARENA
