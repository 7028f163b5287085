/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_gmatch.c - the states of a program: what a byte does to a set of configurations.
 *
 * Everything is interned.  A stack entry is a number for (return place, counter, parent), so equal
 * stacks have equal numbers however they came about; a state is a number for a sorted list of
 * (place, stack).  So the set of all ways to read the text so far never holds one way twice, which
 * is what keeps ambiguous grammars at a constant size, and a transition found once is an array
 * element afterwards.
 *
 * The closure (all that can be reached without a byte) runs over an explicit list and meets each
 * configuration once, hence loops over nothing end by themselves.  Two rules keep counters small:
 *   - a counter without upper bound stops counting at its minimum;
 *   - of two configurations that differ only in counters, all at or above their minimum, the one with
 *     lower counts can do all that the other can, so the other is dropped.
 *
 * Numbers only grow; when their memory exceeds its limit, pn_gram_tidy keeps what live matchers stand on
 * and renumbers.  A parent's number is below its child's, before and after.
 *
 * The caller holds the grammar's lock.
 */
#include "sample/pn_gram_impl.h"

#define GMATCH_NONE UINT32_MAX
#define GMATCH_DEEP (UINT32_MAX - 1)

/* ---- memory, failure ------------------------------------------------------------------------------ */

static bool gmatch_fail(pn_gram *g, pn_status status, const char *what, uint64_t value)
{
    g->fail = status;
    g->fail_what = what;
    g->fail_value = value;
    return false;
}

PN_INTERNAL pn_status pn_gram_failed(const pn_gram *g, pn_err *err)
{
    if (g->fail == PN_E_NOMEM)
        return pn_fail_nomem(err, "the states of a grammar", g->fail_value);
    return pn_fail(err, g->fail, "the text is too ambiguous or too long for the grammar (limit %s: %llu)",
                   g->fail_what, (unsigned long long)g->fail_value);
}

#define GMATCH_ROOM(g, vec, extra) \
    ((vec).n + (extra) <= (vec).cap || gmatch_room((g), (void **)&(vec).v, &(vec).cap, (vec).n + (extra), sizeof *(vec).v))

static bool gmatch_room(pn_gram *g, void **v, size_t *cap, size_t need, size_t size)
{
    if (need >= UINT32_MAX / 2)
        return gmatch_fail(g, PN_E_INVALID, "cache_bytes", g->limits.cache_bytes);
    if (!pn_mem_grow(g->mem, PN_ACCT_GRAMMAR, v, cap, need, size))
        return gmatch_fail(g, PN_E_NOMEM, NULL, (uint64_t)need * size);
    return true;
}

#define GMATCH_FREE(g, vec) \
    (pn_mem_free((g)->mem, PN_ACCT_GRAMMAR, (vec).v, (vec).cap * sizeof *(vec).v), (vec).v = NULL, (vec).n = (vec).cap = 0)

PN_INTERNAL void pn_gram_free_states(pn_gram *g)
{
    pn_gram_drop_masks(g, 0);
    GMATCH_FREE(g, g->frames);
    GMATCH_FREE(g, g->states);
    GMATCH_FREE(g, g->configs);
    GMATCH_FREE(g, g->trans);
    GMATCH_FREE(g, g->work);
    GMATCH_FREE(g, g->found);
    GMATCH_FREE(g, g->walk);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g->frame_index, g->frame_cap * sizeof *g->frame_index);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g->state_index, g->state_cap * sizeof *g->state_index);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g->seen, g->seen_cap * sizeof *g->seen);
    g->frame_index = g->state_index = NULL;
    g->seen = NULL;
    g->frame_cap = g->state_cap = g->seen_cap = 0;
}

PN_INTERNAL size_t pn_gram_cache_bytes(const pn_gram *g)
{
    return g->frames.n * sizeof *g->frames.v + g->states.n * sizeof *g->states.v + g->configs.n * sizeof *g->configs.v +
           g->trans.n * sizeof *g->trans.v + (g->frame_cap + g->state_cap) * sizeof(uint32_t) +
           g->seen_cap * sizeof *g->seen + g->mask_bytes;
}

/* A mixer with good low bits for small numbers (the finaliser of SplitMix64). */
static uint64_t gmatch_mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* ---- stacks ------------------------------------------------------------------------------------------ */

static uint64_t gmatch_frame_hash(uint32_t ret, uint32_t count, uint32_t parent)
{
    return gmatch_mix(((uint64_t)ret << 32 | count) ^ gmatch_mix(parent));
}

/* The number of a stack, GMATCH_NONE when nobody made it; *slot is where it would be. */
static uint32_t gmatch_frame_find(const pn_gram *g, uint32_t ret, uint32_t count, uint32_t parent, size_t *slot)
{
    size_t mask = g->frame_cap - 1, i = (size_t)gmatch_frame_hash(ret, count, parent) & mask;
    for (; g->frame_cap && g->frame_index[i]; i = (i + 1) & mask) {
        const pn_gframe *f = &g->frames.v[g->frame_index[i]];
        if (f->ret == ret && f->count == count && f->parent == parent)
            return g->frame_index[i];
    }
    *slot = i;
    return GMATCH_NONE;
}

static bool gmatch_frame_rehash(pn_gram *g, size_t cap)
{
    uint32_t *index = pn_mem_calloc(g->mem, PN_ACCT_GRAMMAR, cap, sizeof *index);
    size_t slot = 0;
    if (!index)
        return gmatch_fail(g, PN_E_NOMEM, NULL, (uint64_t)cap * sizeof *index);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g->frame_index, g->frame_cap * sizeof *index);
    g->frame_index = index;
    g->frame_cap = cap;
    for (uint32_t i = 1; i < g->frames.n; i++) {
        gmatch_frame_find(g, g->frames.v[i].ret, g->frames.v[i].count, g->frames.v[i].parent, &slot);
        index[slot] = i;
    }
    return true;
}

/* GMATCH_NONE: failure; GMATCH_DEEP: the stack is full and this way is closed. */
static uint32_t gmatch_frame(pn_gram *g, uint32_t ret, uint32_t count, uint32_t parent)
{
    size_t slot = 0;
    uint32_t depth = g->frames.v[parent].depth + 1, id;
    if (depth > g->limits.depth)
        return GMATCH_DEEP;
    if (g->frames.n * 2 >= g->frame_cap && !gmatch_frame_rehash(g, g->frame_cap ? g->frame_cap * 2 : 64))
        return GMATCH_NONE;
    if ((id = gmatch_frame_find(g, ret, count, parent, &slot)) != GMATCH_NONE)
        return id;
    if (!GMATCH_ROOM(g, g->frames, 1))
        return GMATCH_NONE;
    g->frames.v[g->frames.n] = (pn_gframe){ret, count, parent, depth};
    g->frame_index[slot] = (uint32_t)g->frames.n;
    return (uint32_t)g->frames.n++;
}

/* ---- closure ------------------------------------------------------------------------------------------- */

static size_t gmatch_seen_slot(const pn_gram *g, uint32_t pc, uint32_t frame, bool *there)
{
    size_t mask = g->seen_cap - 1, i = (size_t)gmatch_mix((uint64_t)pc << 32 | frame) & mask;
    for (; g->seen[i] >> 32 == g->stamp; i = (i + 1) & mask) {
        const pn_gconfig *c = &g->work.v[(uint32_t)g->seen[i]];
        if (c->pc == pc && c->frame == frame) {
            *there = true;
            return i;
        }
    }
    *there = false;
    return i;
}

static bool gmatch_seen_grow(pn_gram *g)
{
    size_t cap = g->seen_cap ? g->seen_cap * 2 : 64;
    uint64_t *seen = pn_mem_calloc(g->mem, PN_ACCT_GRAMMAR, cap, sizeof *seen);
    bool there;
    if (!seen)
        return gmatch_fail(g, PN_E_NOMEM, NULL, (uint64_t)cap * sizeof *seen);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g->seen, g->seen_cap * sizeof *seen);
    g->seen = seen;
    g->seen_cap = cap;
    for (uint32_t i = 0; i < g->work.n; i++)
        g->seen[gmatch_seen_slot(g, g->work.v[i].pc, g->work.v[i].frame, &there)] = (uint64_t)g->stamp << 32 | i;
    return true;
}

/* One more configuration to follow, unless it was met before. */
static bool gmatch_add(pn_gram *g, uint32_t pc, uint32_t frame)
{
    bool there;
    if (g->work.n * 2 >= g->seen_cap && !gmatch_seen_grow(g))
        return false;
    size_t slot = gmatch_seen_slot(g, pc, frame, &there);
    if (there)
        return true;
    if (g->work.n > 64 * (uint64_t)g->limits.configs)
        return gmatch_fail(g, PN_E_INVALID, "configs", g->limits.configs);
    if (!GMATCH_ROOM(g, g->work, 1))
        return false;
    g->seen[slot] = (uint64_t)g->stamp << 32 | g->work.n;
    g->work.v[g->work.n++] = (pn_gconfig){pc, frame};
    return true;
}

static bool gmatch_push(pn_gram *g, uint32_t pc, uint32_t ret, uint32_t count, uint32_t parent)
{
    uint32_t frame = gmatch_frame(g, ret, count, parent);
    if (frame == GMATCH_DEEP)
        return true;
    return frame != GMATCH_NONE && gmatch_add(g, pc, frame);
}

/* At the head of a counted loop; the counter is on top of the stack. */
static bool gmatch_loop(pn_gram *g, const pn_ginstr *in, pn_gconfig c)
{
    pn_gframe f = g->frames.v[c.frame];
    size_t slot;
    bool there = false;
    if (in->flags & PN_GF_NULLABLE && f.count > 0) {
        /* Came around without a byte?  Then one round less does as well and was met already. */
        uint32_t less = gmatch_frame_find(g, f.ret, f.count - 1, f.parent, &slot);
        if (less != GMATCH_NONE)
            gmatch_seen_slot(g, c.pc, less, &there);
        if (there)
            return true;
    }
    if (f.count >= in->min && !gmatch_add(g, in->b, f.parent))
        return false;
    if (f.count >= in->max && in->max != PN_GIR_MANY)
        return true;
    uint32_t next = f.count + 1;
    if (in->max == PN_GIR_MANY)
        next = PN_MIN(next, in->min);
    return gmatch_push(g, in->a, f.ret, next, f.parent);
}

static bool gmatch_found(pn_gram *g, pn_gconfig c)
{
    if (!GMATCH_ROOM(g, g->found, 1))
        return false;
    g->found.v[g->found.n++] = c;
    return true;
}

static bool gmatch_follow(pn_gram *g, pn_gconfig c)
{
    const pn_ginstr *in = &g->p.code.v[c.pc];
    switch ((pn_gop)in->op) {
    case PN_GOP_RET:
        if (c.frame)
            return gmatch_add(g, g->frames.v[c.frame].ret, g->frames.v[c.frame].parent);
        g->found_accept = true;
        return true;
    case PN_GOP_EDGES:
        if (in->flags & PN_GF_ACCEPT && !gmatch_add(g, in->a, c.frame))
            return false;
        return gmatch_found(g, c);
    case PN_GOP_RANGE: case PN_GOP_SET: case PN_GOP_TOKEN:
        return gmatch_found(g, c);
    case PN_GOP_JUMP:
        return gmatch_add(g, in->a, c.frame);
    case PN_GOP_SPLIT:
        for (uint32_t i = 0; i < in->n; i++)
            if (!gmatch_add(g, g->p.list.v[in->b + i], c.frame))
                return false;
        return true;
    case PN_GOP_CALL:
        return gmatch_push(g, in->a, in->b, 0, c.frame);
    case PN_GOP_COUNT:
        return gmatch_push(g, in->a, in->a, 0, c.frame);
    case PN_GOP_LOOP:
        return gmatch_loop(g, in, c);
    }
    return false;
}

/* ---- fewer configurations --------------------------------------------------------------------------------- */

/* Can stack x do all that stack y can?  Same places, and where counters differ both are at or above
 * their minimum and x's is lower. */
static bool gmatch_covers(const pn_gram *g, uint32_t x, uint32_t y)
{
    while (x != y) {
        const pn_gframe *f = &g->frames.v[x], *h = &g->frames.v[y];
        if (!x || !y || f->ret != h->ret || f->depth != h->depth || f->count > h->count)
            return false;
        if (f->count != h->count && f->count < g->p.code.v[f->ret].min)
            return false;
        x = f->parent;
        y = h->parent;
    }
    return true;
}

enum { GMATCH_GROUP = 48 };             /* more of one place are not compared: it is only thrift */

static void gmatch_reduce(pn_gram *g)
{
    pn_gconfig *c = g->found.v;
    size_t n = g->found.n, kept = 0;
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && c[end].pc == c[i].pc)
            end++;
        for (size_t j = i; j < end; j++) {
            bool drop = false;
            for (size_t k = i; k < end && end - i > 1 && end - i <= GMATCH_GROUP && !drop; k++)
                drop = k != j && c[k].frame != UINT32_MAX && gmatch_covers(g, c[k].frame, c[j].frame);
            if (drop)
                c[j].frame = UINT32_MAX;        /* covers is transitive: its coverer stays */
        }
        for (size_t j = i; j < end; j++)
            if (c[j].frame != UINT32_MAX)
                c[kept++] = c[j];
        i = end;
    }
    g->found.n = kept;
}

static void gmatch_sort(pn_gconfig *c, size_t n)
{
    size_t gap = 1;
    while (gap < n / 3)
        gap = gap * 3 + 1;
    for (; gap > 0; gap /= 3)
        for (size_t i = gap; i < n; i++) {
            pn_gconfig x = c[i];
            size_t j = i;
            for (; j >= gap && (c[j - gap].pc > x.pc || (c[j - gap].pc == x.pc && c[j - gap].frame > x.frame)); j -= gap)
                c[j] = c[j - gap];
            c[j] = x;
        }
}

/* ---- states -------------------------------------------------------------------------------------------------- */

static uint32_t gmatch_hash(const pn_gconfig *c, size_t n, bool accept)
{
    uint64_t h = accept ? 0x51ED270B9F1CE4E5u : 0;
    for (size_t i = 0; i < n; i++)
        h = gmatch_mix(h ^ ((uint64_t)c[i].pc << 32 | c[i].frame));
    return (uint32_t)(h ^ h >> 32);
}

static bool gmatch_state_rehash(pn_gram *g, size_t cap)
{
    uint32_t *index = pn_mem_calloc(g->mem, PN_ACCT_GRAMMAR, cap, sizeof *index);
    if (!index)
        return gmatch_fail(g, PN_E_NOMEM, NULL, (uint64_t)cap * sizeof *index);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, g->state_index, g->state_cap * sizeof *index);
    g->state_index = index;
    g->state_cap = cap;
    for (uint32_t i = 1; i < g->states.n; i++) {
        size_t at = g->states.v[i].hash & (cap - 1);
        while (index[at])
            at = (at + 1) & (cap - 1);
        index[at] = i;
    }
    return true;
}

static bool gmatch_same(const pn_gram *g, const pn_gstate *s, uint32_t hash)
{
    return s->hash == hash && s->n == g->found.n && (s->flags & PN_GS_ACCEPT) == (g->found_accept ? PN_GS_ACCEPT : 0u) &&
           (s->n == 0 || memcmp(g->configs.v + s->first, g->found.v, s->n * sizeof *g->found.v) == 0);
}

static uint32_t gmatch_flags(const pn_gram *g)
{
    uint32_t flags = g->found_accept ? PN_GS_ACCEPT : 0;
    for (size_t i = 0; i < g->found.n; i++)
        flags |= g->p.code.v[g->found.v[i].pc].op == PN_GOP_TOKEN ? PN_GS_TOKENS : PN_GS_BYTES;
    return flags;
}

/* The number of the set in g->found. */
static uint32_t gmatch_intern(pn_gram *g)
{
    if (g->found.n == 0 && !g->found_accept)
        return PN_GS_DEAD;
    uint32_t hash = gmatch_hash(g->found.v, g->found.n, g->found_accept);
    if (g->states.n * 2 >= g->state_cap && !gmatch_state_rehash(g, g->state_cap ? g->state_cap * 2 : 64))
        return PN_GS_FAIL;
    size_t at = hash & (g->state_cap - 1);
    for (; g->state_index[at]; at = (at + 1) & (g->state_cap - 1))
        if (gmatch_same(g, &g->states.v[g->state_index[at]], hash))
            return g->state_index[at];
    if (pn_gram_cache_bytes(g) > 2 * (uint64_t)g->limits.cache_bytes) {
        gmatch_fail(g, PN_E_INVALID, "cache_bytes", g->limits.cache_bytes);
        return PN_GS_FAIL;
    }
    if (!GMATCH_ROOM(g, g->states, 1) || !GMATCH_ROOM(g, g->configs, g->found.n))
        return PN_GS_FAIL;
    g->states.v[g->states.n] = (pn_gstate){(uint32_t)g->configs.n, (uint32_t)g->found.n, gmatch_flags(g), hash, UINT32_MAX,
                                                 PN_GS_UNKNOWN, NULL};
    if (g->found.n)
        memcpy(g->configs.v + g->configs.n, g->found.v, g->found.n * sizeof *g->found.v);
    g->configs.n += g->found.n;
    g->state_index[at] = (uint32_t)g->states.n;
    return (uint32_t)g->states.n++;
}

/* Begin a closure; then gmatch_add what it starts from; then gmatch_close gives the state. */
static void gmatch_begin(pn_gram *g)
{
    g->work.n = g->found.n = 0;
    g->found_accept = false;
    if (++g->stamp == 0 && g->seen) {           /* stamps begin anew: forget the old ones */
        memset(g->seen, 0, g->seen_cap * sizeof *g->seen);
        g->stamp = 1;
    }
}

static uint32_t gmatch_close(pn_gram *g)
{
    for (size_t i = 0; i < g->work.n; i++)
        if (!gmatch_follow(g, g->work.v[i]))
            return PN_GS_FAIL;
    g->steps += g->work.n + 1;
    gmatch_sort(g->found.v, g->found.n);
    gmatch_reduce(g);
    if (g->found.n > g->limits.configs) {
        gmatch_fail(g, PN_E_INVALID, "configs", g->limits.configs);
        return PN_GS_FAIL;
    }
    return gmatch_intern(g);
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

static uint32_t gmatch_edge(const pn_gram *g, const pn_ginstr *in, uint8_t byte)
{
    uint32_t left = in->b, right = in->b + in->n;
    while (left < right) {
        uint32_t mid = left + (right - left) / 2;
        if (g->p.edges.v[mid].hi < byte)
            left = mid + 1;
        else
            right = mid;
    }
    return left < in->b + in->n && g->p.edges.v[left].lo <= byte ? g->p.edges.v[left].to : GMATCH_NONE;
}

static uint32_t gmatch_compute(pn_gram *g, uint32_t state, uint8_t byte)
{
    pn_gstate s = g->states.v[state];
    gmatch_begin(g);
    g->steps += s.n;
    for (uint32_t i = 0; i < s.n; i++) {
        pn_gconfig c = g->configs.v[s.first + i];
        const pn_ginstr *in = &g->p.code.v[c.pc];
        uint32_t to = GMATCH_NONE;
        if (in->op == PN_GOP_RANGE)
            to = in->lo <= byte && byte <= in->hi ? in->a : GMATCH_NONE;
        else if (in->op == PN_GOP_SET)
            to = pn_gset_has(g->p.sets.v[in->b].w, byte) ? in->a : GMATCH_NONE;
        else if (in->op == PN_GOP_EDGES)
            to = gmatch_edge(g, in, byte);
        if (to != GMATCH_NONE && !gmatch_add(g, to, c.frame))
            return PN_GS_FAIL;
    }
    return g->work.n ? gmatch_close(g) : PN_GS_DEAD;
}

PN_INTERNAL uint32_t pn_gram_step(pn_gram *g, uint32_t state, uint8_t byte)
{
    uint32_t cls = g->p.class_of[byte], at = g->states.v[state].trans;
    if (state == PN_GS_DEAD)
        return PN_GS_DEAD;
    if (at == UINT32_MAX) {
        if (!GMATCH_ROOM(g, g->trans, g->p.n_classes))
            return PN_GS_FAIL;
        at = g->states.v[state].trans = (uint32_t)g->trans.n;
        memset(g->trans.v + at, 0xFF, g->p.n_classes * sizeof *g->trans.v);     /* PN_GS_UNKNOWN */
        g->trans.n += g->p.n_classes;
    }
    if (g->trans.v[at + cls] == PN_GS_UNKNOWN) {
        uint32_t to = gmatch_compute(g, state, byte);
        if (to == PN_GS_FAIL)
            return to;
        g->trans.v[at + cls] = to;
    }
    return g->trans.v[at + cls];
}

PN_INTERNAL uint32_t pn_gram_step_bytes(pn_gram *g, uint32_t state, const char *bytes, size_t n, size_t *used)
{
    size_t i = 0;
    for (; i < n && state != PN_GS_DEAD; i++) {
        uint32_t to = pn_gram_step(g, state, (uint8_t)bytes[i]);
        if (to == PN_GS_DEAD || to == PN_GS_FAIL) {
            state = to;
            break;
        }
        state = to;
    }
    if (used)
        *used = i;
    return state;
}

static bool gmatch_token_fits(const pn_ginstr *in, pn_token t, bool ends)
{
    if (in->op != PN_GOP_TOKEN)
        return false;
    return in->flags & PN_GF_NEGATED ? in->b != (uint32_t)t && !ends : in->b == (uint32_t)t;
}

PN_INTERNAL uint32_t pn_gram_step_token(pn_gram *g, uint32_t state, pn_token t, const char *bytes, size_t n, bool ends)
{
    uint32_t by_bytes = n ? pn_gram_step_bytes(g, state, bytes, n, NULL) : PN_GS_DEAD;
    if (by_bytes == PN_GS_FAIL || !(g->states.v[state].flags & PN_GS_TOKENS))
        return by_bytes;
    pn_gstate s = g->states.v[state], other = g->states.v[by_bytes];
    gmatch_begin(g);
    for (uint32_t i = 0; i < s.n; i++) {
        pn_gconfig c = g->configs.v[s.first + i];
        if (gmatch_token_fits(&g->p.code.v[c.pc], t, ends) && !gmatch_add(g, g->p.code.v[c.pc].a, c.frame))
            return PN_GS_FAIL;
    }
    if (g->work.n == 0)
        return by_bytes;
    for (uint32_t i = 0; i < other.n; i++)
        if (!gmatch_add(g, g->configs.v[other.first + i].pc, g->configs.v[other.first + i].frame))
            return PN_GS_FAIL;
    g->found_accept = (other.flags & PN_GS_ACCEPT) != 0;
    return gmatch_close(g);
}

PN_INTERNAL bool pn_gram_takes_token(const pn_gram *g, uint32_t state, pn_token t)
{
    const pn_gstate *s = &g->states.v[state];
    for (uint32_t i = 0; i < s->n; i++) {
        const pn_ginstr *in = &g->p.code.v[g->configs.v[s->first + i].pc];
        if (in->op == PN_GOP_TOKEN && !(in->flags & PN_GF_NEGATED) && in->b == (uint32_t)t)
            return true;
    }
    return false;
}

PN_INTERNAL bool pn_gram_prepare(pn_gram *g)
{
    if (!GMATCH_ROOM(g, g->frames, 1) || !GMATCH_ROOM(g, g->states, 1))
        return false;
    g->frames.v[0] = (pn_gframe){0, 0, 0, 0};
    g->states.v[0] = (pn_gstate){0, 0, 0, 0, UINT32_MAX, PN_GS_DEAD, NULL};
    g->frames.n = g->states.n = 1;
    gmatch_begin(g);
    if (!gmatch_add(g, g->p.entry, 0))
        return false;
    g->start = gmatch_close(g);
    return g->start != PN_GS_FAIL;
}

/* ---- forgetting ------------------------------------------------------------------------------------------------ */

/* The most significant bit of a history entry is the matcher's `finished`. */
#define GMATCH_FINISHED 0x80000000u

static void gmatch_mark_states(const pn_gram *g, uint32_t *keep)
{
    keep[0] = keep[g->start] = 1;
    for (const pn_matcher *m = g->matchers; m; m = m->next) {
        uint64_t n = PN_MIN(m->accepts, (uint64_t)PN_MATCHER_HISTORY);
        keep[m->state] = 1;
        for (uint64_t i = 0; i < n; i++)
            keep[m->history[(m->accepts - 1 - i) % PN_MATCHER_HISTORY] & ~GMATCH_FINISHED] = 1;
    }
}

static void gmatch_renumber_matchers(pn_gram *g, const uint32_t *to)
{
    g->start = to[g->start];
    for (pn_matcher *m = g->matchers; m; m = m->next) {
        uint64_t n = PN_MIN(m->accepts, (uint64_t)PN_MATCHER_HISTORY);
        m->state = to[m->state];
        for (uint64_t i = 0; i < n; i++) {
            uint32_t *h = &m->history[(m->accepts - 1 - i) % PN_MATCHER_HISTORY];
            *h = to[*h & ~GMATCH_FINISHED] | (*h & GMATCH_FINISHED);
        }
    }
}

/* keep[]: in, 1 for what stays; out, new numbers.  Order is kept, so sorted sets stay sorted. */
static void gmatch_keep_frames(pn_gram *g, uint32_t *keep)
{
    uint32_t n = 1;
    for (size_t i = g->frames.n; i-- > 1;)      /* parents have lower numbers */
        if (keep[i])
            keep[g->frames.v[i].parent] = 1;
    keep[0] = 0;
    for (uint32_t i = 1; i < g->frames.n; i++) {
        if (!keep[i])
            continue;
        pn_gframe f = g->frames.v[i];
        f.parent = keep[f.parent];
        keep[i] = n;
        g->frames.v[n++] = f;
    }
    g->frames.n = n;
}

static void gmatch_keep_states(pn_gram *g, uint32_t *states, uint32_t *frames)
{
    uint32_t n = 1, at = 0;
    for (uint32_t i = 1; i < g->states.n; i++)
        for (uint32_t j = 0; j < g->states.v[i].n && states[i]; j++)
            frames[g->configs.v[g->states.v[i].first + j].frame] = 1;
    gmatch_keep_frames(g, frames);
    states[0] = 0;
    for (uint32_t i = 1; i < g->states.n; i++) {
        if (!states[i])
            continue;
        pn_gstate s = g->states.v[i];
        for (uint32_t j = 0; j < s.n; j++) {
            pn_gconfig c = g->configs.v[s.first + j];
            g->configs.v[at + j] = (pn_gconfig){c.pc, frames[c.frame]};
        }
        s.first = at;
        at += s.n;
        s.hash = gmatch_hash(g->configs.v + s.first, s.n, (s.flags & PN_GS_ACCEPT) != 0);
        s.trans = UINT32_MAX;
        s.safe_next = PN_GS_UNKNOWN;
        states[i] = n;
        g->states.v[n++] = s;
    }
    g->states.n = n;
    g->configs.n = at;
    g->trans.n = 0;
}

#define GMATCH_SHRINK(g, vec) gmatch_shrink((g), (void **)&(vec).v, &(vec).cap, (vec).n, sizeof *(vec).v)

static void gmatch_shrink(pn_gram *g, void **v, size_t *cap, size_t n, size_t size)
{
    size_t to = n + n / 4 + 16;
    void *smaller = to < *cap ? pn_mem_resize(g->mem, PN_ACCT_GRAMMAR, *v, *cap * size, to * size) : NULL;
    if (smaller) {
        *v = smaller;
        *cap = to;
    }
}

static size_t gmatch_index_cap(size_t n)
{
    size_t cap = 64;
    while (cap <= n * 2)
        cap *= 2;
    return cap;
}

PN_INTERNAL void pn_gram_tidy(pn_gram *g)
{
    if (pn_gram_cache_bytes(g) <= g->limits.cache_bytes)
        return;
    pn_gram_drop_masks(g, 0);
    size_t n_frames = g->frames.n, n_states = g->states.n;
    uint32_t *frames = pn_mem_calloc(g->mem, PN_ACCT_GRAMMAR, n_frames, sizeof *frames);
    uint32_t *states = pn_mem_calloc(g->mem, PN_ACCT_GRAMMAR, n_states, sizeof *states);
    if (frames && states) {
        gmatch_mark_states(g, states);
        gmatch_keep_states(g, states, frames);
        gmatch_renumber_matchers(g, states);
        GMATCH_SHRINK(g, g->frames);
        GMATCH_SHRINK(g, g->states);
        GMATCH_SHRINK(g, g->configs);
        GMATCH_SHRINK(g, g->trans);
        /* The old tables name old numbers, so new ones are not optional: empty when memory is out,
         * which costs sharing but no correctness. */
        if (!gmatch_frame_rehash(g, gmatch_index_cap(g->frames.n)) && g->frame_cap)
            memset(g->frame_index, 0, g->frame_cap * sizeof *g->frame_index);
        if (!gmatch_state_rehash(g, gmatch_index_cap(g->states.n)) && g->state_cap)
            memset(g->state_index, 0, g->state_cap * sizeof *g->state_index);
    }
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, frames, n_frames * sizeof *frames);
    pn_mem_free(g->mem, PN_ACCT_GRAMMAR, states, n_states * sizeof *states);
}

#undef GMATCH_NONE
#undef GMATCH_DEEP
#undef GMATCH_ROOM
#undef GMATCH_FREE
#undef GMATCH_SHRINK
#undef GMATCH_FINISHED
