/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_affinity.c - a scanner that looks for a few members of an object, hashes along what it found, and the choice.
 *
 * The scanner and not pn_json.h: a body may have 32 MiB, all of it is on the router's one thread, and nothing is
 * wanted but where some values begin and end.
 */
#include "serve/pn_affinity.h"

#include "base/pn_hash.h"
#include "base/pn_json.h"

enum { AFFINITY_WAYS = 4, AFFINITY_FIRST = 1024, AFFINITY_DEPTH = 1 << 20, AFFINITY_ITEMS_MAX = 1 << 16 };

/* A server with a known prefix is passed over when it has more requests under way than twice those of the least busy
 * one and this many: a few more cost nothing, they are computed together. */
enum { AFFINITY_SLACK = 4 };

/* ------------------------------------------------------------------------------------------
 * Scanning JSON
 * ------------------------------------------------------------------------------------------ */

typedef struct affinity_in {
    const char *at, *end;
} affinity_in;

static bool affinity_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static void affinity_skip_space(affinity_in *in)
{
    while (in->at < in->end && affinity_space(*in->at))
        in->at++;
}

static bool affinity_take(affinity_in *in, char c)
{
    affinity_skip_space(in);
    if (in->at == in->end || *in->at != c)
        return false;
    in->at++;
    return true;
}

/* Past a string that begins here; false: it does not end. */
static bool affinity_skip_string(affinity_in *in)
{
    bool escaped = false;
    while (++in->at < in->end) {
        if (!escaped && *in->at == '"') {
            in->at++;
            return true;
        }
        escaped = !escaped && *in->at == '\\';
    }
    return false;
}

/* Past the value that begins here: containers by counting brackets, which need not match in kind; whoever answers
 * reads it properly.  False: it does not end. */
static bool affinity_skip_value(affinity_in *in)
{
    uint32_t depth = 0;
    affinity_skip_space(in);
    const char *from = in->at;
    while (in->at < in->end) {
        char c = *in->at;
        if (c == '"') {
            if (!affinity_skip_string(in))
                return false;
        } else if (c == '[' || c == '{') {
            if (++depth > AFFINITY_DEPTH)
                return false;
            in->at++;
        } else if (c == ']' || c == '}' || c == ',' || affinity_space(c)) {
            if (!depth)
                return in->at > from;
            depth -= c == ']' || c == '}';
            in->at++;
        } else {
            in->at++;
            if (!depth)
                continue;           /* a number or a word */
        }
        if (!depth)
            return true;
    }
    return !depth && in->at > from;
}

/* A value and where it was. */
static bool affinity_value(affinity_in *in, pn_bytes *v)
{
    affinity_skip_space(in);
    v->data = in->at;
    bool ok = affinity_skip_value(in);
    v->len = (size_t)(in->at - v->data);
    return ok;
}

static bool affinity_is(pn_bytes a, const char *b) { return a.len == strlen(b) && memcmp(a.data, b, a.len) == 0; }

PN_INTERNAL void pn_affinity_scan(const char *body, size_t n, pn_affinity_fields *out)
{
    const struct { const char *key; pn_bytes *value; } wanted[] = {
        {"\"model\"", &out->model}, {"\"session_id\"", &out->session_id}, {"\"prompt_cache_key\"", &out->prompt_cache_key},
        {"\"messages\"", &out->messages}, {"\"prompt\"", &out->prompt}, {"\"input\"", &out->input},
    };
    affinity_in in = {body, body + n};
    memset(out, 0, sizeof *out);
    if (!affinity_take(&in, '{'))
        return;
    do {
        pn_bytes key, value;
        affinity_skip_space(&in);
        if (in.at == in.end || *in.at != '"' || !affinity_value(&in, &key) || !affinity_take(&in, ':') || !affinity_value(&in, &value))
            return;
        for (size_t i = 0; i < PN_COUNT_OF(wanted); i++)
            if (affinity_is(key, wanted[i].key))
                *wanted[i].value = affinity_is(value, "null") ? (pn_bytes){NULL, 0} : value;
    } while (affinity_take(&in, ','));
}

PN_INTERNAL bool pn_affinity_text(pn_mem *mem, pn_bytes json, pn_str *out)
{
    pn_json_doc d;
    pn_bytes text;
    if (!json.len || json.data[0] != '"')
        return false;
    const pn_json_params p = {.fix_surrogates = true};
    bool ok = pn_json_parse(&d, mem, PN_ACCT_MISC, json.data, json.len, &p, NULL) == PN_OK && pn_json_str(&d, PN_JSON_ROOT, &text);
    if (ok)
        pn_str_add(out, text.data, text.len);
    pn_json_fini(&d);
    return ok && !out->failed;
}

/* ------------------------------------------------------------------------------------------
 * Keys
 * ------------------------------------------------------------------------------------------ */

/* 0 means none, in keys and in the table. */
static uint64_t affinity_hash(const void *bytes, size_t n, uint64_t seed)
{
    uint64_t h = pn_hash(n ? bytes : "", n, seed);
    return h ? h : 1;
}

typedef struct affinity_mark {
    size_t at;                  /* bytes of the prompt before it */
    uint64_t key;
} affinity_mark;

/* Marks at 1 KiB, 4 KiB ...: each the hash of all before it, as a chain. */
static uint32_t affinity_byte_marks(pn_bytes prompt, uint64_t seed, affinity_mark out[PN_AFFINITY_BYTES])
{
    uint32_t n = 0;
    size_t from = 0;
    for (size_t at = AFFINITY_FIRST; at <= prompt.len && n < PN_AFFINITY_BYTES; from = at, at *= 4) {
        seed = affinity_hash(prompt.data + from, at - from, seed);
        out[n++] = (affinity_mark){at, seed};
    }
    return n;
}

/* Marks behind the elements of an array, the last PN_AFFINITY_ITEMS of them; none when there are so many that it is no
 * conversation. */
static uint32_t affinity_item_marks(pn_bytes array, uint64_t seed, affinity_mark out[PN_AFFINITY_ITEMS])
{
    affinity_mark ring[PN_AFFINITY_ITEMS];
    affinity_in in;
    uint32_t n = 0;
    pn_bytes item;
    if (!array.len)
        return 0;
    in = (affinity_in){array.data, array.data + array.len};
    if (!affinity_take(&in, '['))
        return 0;
    while (affinity_value(&in, &item)) {
        if (n == AFFINITY_ITEMS_MAX)
            return 0;
        seed = affinity_hash(item.data, item.len, seed);
        ring[n++ % PN_AFFINITY_ITEMS] = (affinity_mark){(size_t)(in.at - array.data), seed};
        if (!affinity_take(&in, ','))
            break;
    }
    uint32_t kept = PN_MIN(n, (uint32_t)PN_AFFINITY_ITEMS);
    for (uint32_t i = 0; i < kept; i++)
        out[i] = ring[(n - kept + i) % PN_AFFINITY_ITEMS];
    return kept;
}

/* Both lists ascend: merge them from their ends. */
static void affinity_merge(pn_affinity_keys *k, const affinity_mark *bytes, uint32_t n_bytes, const affinity_mark *items, uint32_t n_items)
{
    while (n_bytes || n_items) {
        bool item = n_items && (!n_bytes || items[n_items - 1].at >= bytes[n_bytes - 1].at);
        k->mark[k->n_marks++] = item ? items[--n_items].key : bytes[--n_bytes].key;
    }
}

PN_INTERNAL void pn_affinity_read(pn_affinity_keys *k, const pn_affinity_fields *f, pn_bytes model, pn_bytes session, uint64_t seed)
{
    affinity_mark bytes[PN_AFFINITY_BYTES], items[PN_AFFINITY_ITEMS];
    pn_bytes prompt = f->messages.data ? f->messages : f->prompt.data ? f->prompt : f->input;
    uint64_t same = pn_hash(model.len ? model.data : "", model.len, 0), ours = pn_hash(&same, sizeof same, seed);
    memset(k, 0, sizeof *k);
    if (prompt.len && prompt.data[prompt.len - 1] == ']')
        prompt.len--;               /* the next turn has a comma there */
    if (session.data)
        k->session = affinity_hash(session.data, session.len, same);
    if (prompt.len)
        k->shape = affinity_hash(prompt.data, PN_MIN(prompt.len, (size_t)AFFINITY_FIRST), same);
    uint32_t n_bytes = affinity_byte_marks(prompt, ours, bytes), n_items = affinity_item_marks(prompt, ~ours, items);
    for (uint32_t i = 0; i < n_bytes; i++)
        k->keep[k->n_keep++] = bytes[i].key;
    if (n_items)
        k->keep[k->n_keep++] = items[n_items - 1].key;
    affinity_merge(k, bytes, n_bytes, items, n_items);
}

/* ------------------------------------------------------------------------------------------
 * The table
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_affinity_init(pn_affinity *a, pn_mem *mem, size_t n)
{
    *a = (pn_affinity){.mem = mem, .n = AFFINITY_WAYS, .last = PN_AFFINITY_SERVERS - 1};
    n = n ? PN_MIN(n, (size_t)1 << 24) : (size_t)1 << 16;
    while (a->n < n)
        a->n *= 2;
    a->table = pn_mem_calloc(mem, PN_ACCT_MISC, a->n, sizeof *a->table);
    return a->table ? PN_OK : PN_E_NOMEM;
}

PN_INTERNAL void pn_affinity_fini(pn_affinity *a)
{
    pn_mem_free(a->mem, PN_ACCT_MISC, a->table, a->n * sizeof *a->table);
    a->table = NULL;
}

/* Where the key is, or may be put: then the key there is another one. */
static pn_affinity_seen *affinity_place(pn_affinity *a, uint64_t key)
{
    pn_affinity_seen *set = a->table + ((size_t)key & (a->n - 1) & ~(size_t)(AFFINITY_WAYS - 1)), *old = set;
    for (int i = 0; i < AFFINITY_WAYS; i++) {
        if (set[i].key == key)
            return set + i;
        if (set[i].at < old->at)
            old = set + i;
    }
    return old;
}

PN_INTERNAL uint64_t pn_affinity_find(pn_affinity *a, uint64_t key)
{
    pn_affinity_seen *s = affinity_place(a, key);
    if (!key || s->key != key)
        return 0;
    s->at = ++a->clock;
    return s->servers;
}

PN_INTERNAL void pn_affinity_set(pn_affinity *a, uint64_t key, uint64_t servers)
{
    if (key)
        *affinity_place(a, key) = (pn_affinity_seen){key, servers, ++a->clock};
}

PN_INTERNAL void pn_affinity_add(pn_affinity *a, uint64_t key, uint64_t servers)
{
    pn_affinity_set(a, key, servers | pn_affinity_find(a, key));
}

PN_INTERNAL void pn_affinity_forget(pn_affinity *a, uint64_t servers)
{
    for (size_t i = 0; i < a->n; i++) {
        a->table[i].servers &= ~servers;
        if (!a->table[i].servers)
            a->table[i] = (pn_affinity_seen){0, 0, 0};
    }
}

/* ------------------------------------------------------------------------------------------
 * The choice
 * ------------------------------------------------------------------------------------------ */

/* Rendezvous hashing (Thaler and Ravishankar, 1998): every server draws a number from the key, the highest wins. */
static uint64_t affinity_draw(const pn_affinity_server *s, uint64_t key) { return pn_hash(&key, sizeof key, s->name); }

static uint32_t affinity_rendezvous(const pn_affinity_server *servers, uint64_t of, uint64_t key)
{
    uint32_t best = PN_AFFINITY_SERVERS;
    for (uint32_t i = 0; i < PN_AFFINITY_SERVERS; i++)
        if (of >> i & 1 && (best == PN_AFFINITY_SERVERS || affinity_draw(&servers[i], key) > affinity_draw(&servers[best], key)))
            best = i;
    PN_ASSERT(best < PN_AFFINITY_SERVERS);
    return best;
}

/* Those of `of` that have the fewest requests; *n: how many. */
static uint64_t affinity_least(const pn_affinity_server *servers, uint64_t of, uint32_t *n)
{
    uint64_t least = 0;
    *n = UINT32_MAX;
    for (uint32_t i = 0; i < PN_AFFINITY_SERVERS; i++) {
        if (!(of >> i & 1) || servers[i].running > *n)
            continue;
        least = servers[i].running < *n ? (uint64_t)1 << i : least | (uint64_t)1 << i;
        *n = servers[i].running;
    }
    return least;
}

/* The next one of `of` after the one before. */
static uint32_t affinity_turn(pn_affinity *a, uint64_t of)
{
    do
        a->last = (a->last + 1) % PN_AFFINITY_SERVERS;
    while (!(of >> a->last & 1));
    return a->last;
}

PN_INTERNAL uint32_t pn_affinity_choose(pn_affinity *a, pn_affinity_mode mode, const pn_affinity_keys *k, const pn_affinity_server *servers,
                                        uint64_t eligible, pn_affinity_by *by)
{
    uint32_t n_least, n_known;
    uint64_t least = affinity_least(servers, eligible, &n_least);
    *by = PN_BY_SESSION;
    if (mode != PN_AFFINITY_NONE && k->session) {
        uint64_t has = pn_affinity_find(a, k->session) & eligible;
        return affinity_rendezvous(servers, has ? has : eligible, k->session);
    }
    *by = PN_BY_PREFIX;
    for (uint32_t i = 0; mode == PN_AFFINITY_PREFIX && i < k->n_marks; i++) {
        uint64_t known = affinity_least(servers, pn_affinity_find(a, k->mark[i]) & eligible, &n_known);
        if (known && n_known <= (uint64_t)n_least * 2 + AFFINITY_SLACK)
            return affinity_rendezvous(servers, known, k->shape);
        if (known)
            break;              /* shorter beginnings are known to it, too; what others know of them is worth less */
    }
    *by = PN_BY_LOAD;
    return mode == PN_AFFINITY_PREFIX && k->shape ? affinity_rendezvous(servers, least, k->shape) : affinity_turn(a, least);
}

PN_INTERNAL void pn_affinity_learn(pn_affinity *a, pn_affinity_mode mode, const pn_affinity_keys *k, uint32_t i)
{
    if (mode == PN_AFFINITY_NONE)
        return;
    pn_affinity_set(a, k->session, (uint64_t)1 << i);
    for (uint32_t j = 0; mode == PN_AFFINITY_PREFIX && j < k->n_keep; j++)
        pn_affinity_add(a, k->keep[j], (uint64_t)1 << i);
}
