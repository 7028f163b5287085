/* SPDX-License-Identifier: AGPL-3.0-only */
#include "store/pn_kv.h"

#include <inttypes.h>

#include "base/pn_err.h"
#include "cpu/pn_cpu.h"

/* ------------------------------------------------------------------------------------------
 * Sizes
 * ------------------------------------------------------------------------------------------ */

/* What lies in front of a page's data, which is aligned like the block. */
typedef struct kv_block {
    pn_kv_page page;            /* first: cast back */
    pn_mem *mem;
    uint64_t bytes;             /* of the block */
    pn_kv_page *heir;           /* what takes its place: pn_kv_inherit */
    uint32_t resting;           /* of the holders, those that agree or keep it (pn_kv_rest) */
    bool written;               /* or about to be: no mere promise any more */
    bool tree, kept, counted;   /* a tree is among those; somebody keeps it; pn_kv_rest_gain has seen it */
} kv_block;

static kv_block *kv_block_of(const pn_kv_page *p) { return (kv_block *)(uintptr_t)p; }

enum { KV_HEAD = PN_MEM_ALIGN };

/* Pages of a group that can be in use at once.  With b the page boundary before a batch of n, a window
 * of W keeps positions from b + 1 - W, and the batch ends at b + P - 1 + n - 1 at the latest. */
static uint32_t kv_group_pages(const pn_stream_group *g, uint32_t n_ctx, uint32_t n_batch)
{
    const uint64_t P = PN_KV_PAGE_TOKENS;
    uint64_t all = (n_ctx + P - 1) / P;
    if (!g->window)
        return (uint32_t)all;
    uint64_t before = (g->window - 1 + P - 1) / P, after = (P - 1 + PN_MAX(n_batch, 1u) - 1) / P + 1;
    return (uint32_t)PN_MIN(all, before + after);
}

static uint32_t kv_table_len(uint32_t n_ctx)
{
    return (uint32_t)(((uint64_t)n_ctx + PN_KV_PAGE_TOKENS - 1) / PN_KV_PAGE_TOKENS);
}

PN_INTERNAL uint64_t pn_kv_page_cost(const pn_state_spec *spec, uint32_t g, uint32_t type)
{
    return KV_HEAD + pn_kv_page_bytes(&spec->group[g], type, type);
}

PN_INTERNAL bool pn_kv_bytes(const pn_state_spec *spec, uint32_t n_ctx, uint32_t n_batch, uint32_t type,
                             uint64_t *bytes, uint64_t *pages_only)
{
    uint64_t pages = 0, rest = 0;
    for (uint32_t g = 0; g < spec->n_groups; g++) {
        uint64_t n = kv_group_pages(&spec->group[g], n_ctx, n_batch), b;
        if (!pn_mul_u64(n, pn_kv_page_bytes(&spec->group[g], type, type), &b) || !pn_add_u64(pages, b, &pages))
            return false;
        rest += n * (KV_HEAD + sizeof(pn_kv_page *)) + (uint64_t)kv_table_len(n_ctx) * sizeof(pn_kv_page *);
    }
    *pages_only = pages;
    return pn_add_u64(pages, rest, bytes);
}

PN_INTERNAL uint64_t pn_kv_bare_bytes(const pn_state_spec *spec, uint32_t n_ctx, uint32_t n_batch)
{
    uint64_t n = 0;
    for (uint32_t g = 0; g < spec->n_groups; g++)
        n += (uint64_t)kv_group_pages(&spec->group[g], n_ctx, n_batch) + kv_table_len(n_ctx);
    return n * sizeof(pn_kv_page *);
}

PN_INTERNAL uint64_t pn_kv_bytes_per_token(const pn_state_spec *spec, uint32_t type)
{
    uint64_t b = 0;
    for (uint32_t g = 0; g < spec->n_groups; g++)
        b += pn_kv_page_bytes(&spec->group[g], type, type) / PN_KV_PAGE_TOKENS;
    return b;
}

PN_INTERNAL pn_status pn_kv_check_type(const pn_state_spec *spec, uint32_t type, pn_err *err)
{
    if (!pn_kv_type_name((pn_dtype)type))
        return pn_fail(err, PN_E_UNSUPPORTED, "kv type %s, expected f32, f16, q8_0, q5_1, q5_0, q4_1 or q4_0",
                       pn_dtype_name((pn_dtype)type));
    for (uint32_t g = 0; g < spec->n_groups; g++)
        if (!pn_kv_type_fits(&spec->group[g], type))
            return pn_fail(err, PN_E_UNSUPPORTED, "kv type %s is made of blocks of 32, but the model's heads have %" PRIu32
                           " keys and %" PRIu32 " values: use f16", pn_kv_type_name((pn_dtype)type), spec->group[g].d_k,
                           spec->group[g].d_v);
    return PN_OK;
}

/* Oldest position that the query at `pos` sees. */
static uint32_t kv_first_visible(const pn_stream_group *g, uint32_t pos)
{
    return g->window && pos + 1 > g->window ? pos + 1 - g->window : 0;
}

PN_INTERNAL uint32_t pn_kv_first_page(const pn_state_spec *spec, uint32_t g, uint32_t n)
{
    return kv_first_visible(&spec->group[g], n) / PN_KV_PAGE_TOKENS;
}

/* ------------------------------------------------------------------------------------------
 * Pages
 * ------------------------------------------------------------------------------------------ */

/* An own page, or NULL. */
static pn_kv_page *kv_page_new(pn_mem *mem, uint64_t page_bytes, uint32_t type)
{
    PN_ASSERT(sizeof(kv_block) <= KV_HEAD);
    if (page_bytes > SIZE_MAX - KV_HEAD)
        return NULL;
    kv_block *b = pn_mem_alloc(mem, PN_ACCT_KV_RESERVE, (size_t)(KV_HEAD + page_bytes));
    if (!b)
        return NULL;
    *b = (kv_block){.page = {.data = (uint8_t *)b + KV_HEAD, .k_type = (uint8_t)type, .v_type = (uint8_t)type,
                             .rotated = pn_kv_is_block(type)},
                    .mem = mem, .bytes = KV_HEAD + page_bytes};
    return &b->page;
}

static void kv_page_free(pn_kv_page *p)
{
    kv_block *b = (kv_block *)(void *)p;
    pn_mem_free(b->mem, p->common ? PN_ACCT_PREFIX : b->written ? PN_ACCT_KV : PN_ACCT_KV_RESERVE, b, (size_t)b->bytes);
}

PN_INTERNAL pn_kv_page *pn_kv_page_new(pn_mem *mem, const pn_stream_group *g, uint32_t type)
{
    pn_kv_page *p = kv_page_new(mem, pn_kv_page_bytes(g, type, type), type);
    if (!p)
        return NULL;
    kv_block *b = (kv_block *)(void *)p;
    pn_mem_move(mem, PN_ACCT_KV_RESERVE, PN_ACCT_PREFIX, (size_t)b->bytes);
    b->written = true;
    p->common = 1;
    p->refs = 1;
    return p;
}

PN_INTERNAL void pn_kv_retain(pn_kv_page *p)
{
    PN_ASSERT(p->common && p->refs && p->refs < UINT32_MAX);
    p->refs++;
}

PN_INTERNAL void pn_kv_release(pn_kv_page *p)
{
    if (!p)
        return;
    PN_ASSERT(p->common && p->refs);
    if (--p->refs == 0)
        kv_page_free(p);
}

/* ------------------------------------------------------------------------------------------
 * A sequence
 * ------------------------------------------------------------------------------------------ */

/* The reserve to `want` own pages, if there is memory; what was taken stays. */
static bool kv_group_grow(pn_kv *kv, pn_kv_group *g, uint32_t want)
{
    while (g->n_pages < want) {
        pn_kv_page *p = kv_page_new(g->mem, g->page_bytes, kv->type);
        if (!p)
            return false;
        g->free[g->n_free++] = p;
        g->n_pages++;
    }
    return true;
}

/* Back to `want`, as far as pages are free. */
static void kv_group_shrink(pn_kv_group *g, uint32_t want)
{
    for (; g->n_pages > want && g->n_free; g->n_pages--)
        kv_page_free(g->free[--g->n_free]);
}

static pn_status kv_group_open(pn_kv *kv, uint32_t gi, pn_err *err)
{
    pn_kv_group *g = &kv->group[gi];
    g->max_pages = kv_group_pages(&kv->spec->group[gi], kv->n_ctx, kv->n_batch);
    g->n_table = kv_table_len(kv->n_ctx);
    g->page_bytes = pn_kv_page_bytes(&kv->spec->group[gi], kv->type, kv->type);
    uint64_t bytes;
    if (!pn_mul_u64(g->max_pages, g->page_bytes, &bytes) || bytes > SIZE_MAX)
        return pn_fail(err, PN_E_NOMEM, "keys and values of %" PRIu32 " tokens are more than this system can address",
                       kv->n_ctx);
    g->free = pn_mem_calloc(g->mem, PN_ACCT_KV, g->max_pages, sizeof *g->free);
    g->table = pn_mem_calloc(g->mem, PN_ACCT_KV, g->n_table, sizeof *g->table);
    if (!g->free || !g->table || !kv_group_grow(kv, g, kv->by_turn ? 0 : g->max_pages))
        return pn_fail_nomem(err, "keys and values of a session", bytes);
    return PN_OK;
}

static pn_status kv_open(pn_kv *kv, pn_mem *const mem[2], const pn_kv *as, pn_err *err)
{
    *kv = *as;
    kv->mem = mem[0];
    pn_state_init(&kv->state, mem, kv->spec);
    for (uint32_t g = 0; g < kv->spec->n_groups; g++)
        kv->group[g].mem = mem[kv->spec->group[g].part];
    for (uint32_t g = 0; g < kv->spec->n_groups; g++) {
        pn_status st = kv_group_open(kv, g, err);
        if (st) {
            pn_kv_close(kv);
            return st;
        }
    }
    if (!kv->by_turn && !pn_state_reserve(&kv->state)) {
        pn_kv_close(kv);
        return pn_fail_nomem(err, "the recurrent state of a session", pn_state_turn_bytes(as->spec->slot_bytes));
    }
    return PN_OK;
}

PN_INTERNAL pn_status pn_kv_open_parts(pn_kv *kv, pn_mem *const mem[2], const pn_state_spec *spec, uint32_t n_ctx, uint32_t n_batch,
                                       uint32_t type, bool bare, pn_err *err)
{
    return kv_open(kv, mem, &(pn_kv){.spec = spec, .n_ctx = n_ctx, .n_batch = n_batch, .type = type, .by_turn = bare}, err);
}

PN_INTERNAL pn_status pn_kv_open(pn_kv *kv, pn_mem *mem, const pn_state_spec *spec, uint32_t n_ctx, uint32_t n_batch,
                                 uint32_t type, pn_err *err)
{
    return pn_kv_open_parts(kv, (pn_mem *[2]){mem, mem}, spec, n_ctx, n_batch, type, false, err);
}

PN_INTERNAL pn_status pn_kv_open_bare(pn_kv *kv, pn_mem *mem, const pn_state_spec *spec, uint32_t n_ctx, uint32_t n_batch,
                                      uint32_t type, pn_err *err)
{
    return pn_kv_open_parts(kv, (pn_mem *[2]){mem, mem}, spec, n_ctx, n_batch, type, true, err);
}

/* ------------------------------------------------------------------------------------------
 * The reserve
 * ------------------------------------------------------------------------------------------ */

/* Own pages that a group needs for all positions before n, those in its table included. */
static uint32_t kv_wants(const pn_kv *kv, const pn_kv_group *g, uint32_t n)
{
    uint32_t want = g->n_pages - g->n_free;
    if (!kv->by_turn)
        return g->max_pages;
    for (uint32_t i = kv->length / PN_KV_PAGE_TOKENS; n > kv->length && i < kv_table_len(n); i++)
        want += !g->table[i] || g->table[i]->common;
    return PN_MIN(want, g->max_pages);
}

PN_INTERNAL uint64_t pn_kv_reserve_bytes(const pn_kv *kv, uint32_t n, uint32_t part)
{
    uint64_t bytes = pn_state_reserve_bytes(&kv->state, part);
    for (uint32_t gi = 0; gi < kv->spec->n_groups; gi++) {
        const pn_kv_group *g = &kv->group[gi];
        uint32_t want = kv_wants(kv, g, n);
        bytes += kv->spec->group[gi].part == part && want > g->n_pages ? (want - g->n_pages) * (KV_HEAD + g->page_bytes) : 0;
    }
    return bytes;
}

PN_INTERNAL uint64_t pn_kv_turn_bytes(const pn_kv *kv, uint32_t n, uint32_t part)
{
    uint64_t bytes = pn_state_turn_part(kv->spec, part);
    for (uint32_t gi = 0; gi < kv->spec->n_groups; gi++)
        if (kv->spec->group[gi].part == part)
            bytes += PN_MIN(kv_table_len(n), kv->group[gi].max_pages) * (KV_HEAD + kv->group[gi].page_bytes);
    return bytes;
}

PN_INTERNAL bool pn_kv_reserve(pn_kv *kv, uint32_t n)
{
    uint32_t had[PN_MAX_GROUPS], gi = 0;
    PN_ASSERT(n <= kv->n_ctx);
    for (; gi < kv->spec->n_groups; gi++) {
        pn_kv_group *g = &kv->group[gi];
        had[gi] = g->n_pages;
        if (!kv_group_grow(kv, g, kv_wants(kv, g, n)))
            break;
    }
    if (gi == kv->spec->n_groups && pn_state_reserve(&kv->state)) {
        kv->reserved = n;
        return true;
    }
    for (uint32_t i = 0; i <= gi && i < kv->spec->n_groups; i++)
        kv_group_shrink(&kv->group[i], had[i]);
    return false;
}

PN_INTERNAL void pn_kv_trim(pn_kv *kv)
{
    for (uint32_t gi = 0; kv->by_turn && gi < kv->spec->n_groups; gi++)
        kv_group_shrink(&kv->group[gi], 0);
    if (kv->by_turn)
        pn_state_trim(&kv->state);
    kv->reserved = kv->length;
}

/* ------------------------------------------------------------------------------------------
 * Moving on
 * ------------------------------------------------------------------------------------------ */

static bool kv_is_converted(const pn_kv *kv, const pn_kv_page *p) { return p->k_type != kv->type; }

/* The sequence lets go of table entry i. */
static void kv_drop(pn_kv *kv, pn_kv_group *g, uint32_t i)
{
    pn_kv_page *p = g->table[i];
    g->table[i] = NULL;
    if (!p)
        return;
    if (p->common) {
        pn_kv_release(p);
    } else if (kv->retired || kv_is_converted(kv, p)) {
        kv_page_free(p);
        g->n_pages--;
    } else {
        p->refs = 0;
        g->free[g->n_free++] = p;
    }
}

/* It is a table's from now on, and no mere promise any more. */
static void kv_write(pn_kv_page *p)
{
    kv_block *b = (kv_block *)(void *)p;
    p->refs = 1;
    if (!b->written)
        pn_mem_move(b->mem, PN_ACCT_KV_RESERVE, PN_ACCT_KV, (size_t)b->bytes);
    b->written = true;
}

static pn_kv_page *kv_take(pn_kv_group *g)
{
    PN_ASSERT(g->n_free > 0);
    pn_kv_page *p = g->free[--g->n_free];
    kv_write(p);
    return p;
}

PN_INTERNAL void pn_kv_retire(pn_kv *kv)
{
    kv->retired = true;
    for (uint32_t i = 0; i < kv->spec->n_groups; i++) {
        pn_kv_group *g = &kv->group[i];
        while (g->n_free)
            kv_page_free(g->free[--g->n_free]);
    }
    pn_state_trim(&kv->state);
}

PN_INTERNAL void pn_kv_close(pn_kv *kv)
{
    if (!kv->mem)
        return;
    pn_kv_retire(kv);
    for (uint32_t gi = 0; gi < kv->spec->n_groups; gi++) {
        pn_kv_group *g = &kv->group[gi];
        for (uint32_t i = 0; g->table && i < g->n_table; i++)
            kv_drop(kv, g, i);
        pn_mem_free(g->mem, PN_ACCT_KV, g->free, g->max_pages * sizeof *g->free);
        pn_mem_free(g->mem, PN_ACCT_KV, g->table, g->n_table * sizeof *g->table);
    }
    pn_state_unload(&kv->state);
    *kv = (pn_kv){0};
}

/* Replace a common page by a copy of the sequence's own, of the same type: a smaller one has room in the page that was
 * reserved. */
static void kv_copy(pn_kv *kv, pn_kv_group *g, uint32_t gi, uint32_t i)
{
    pn_kv_page *p = kv_take(g);
    const pn_kv_page *from = g->table[i];
    memcpy(p->data, from->data, (size_t)pn_kv_page_bytes(&kv->spec->group[gi], from->k_type, from->v_type));
    p->k_type = from->k_type;
    p->v_type = from->v_type;
    p->rotated = from->rotated;
    kv_drop(kv, g, i);
    g->table[i] = p;
}

PN_INTERNAL void pn_kv_prepare(pn_kv *kv, uint32_t n)
{
    PN_ASSERT(!kv->retired);
    for (uint32_t gi = 0; gi < kv->spec->n_groups && n; gi++) {
        pn_kv_group *g = &kv->group[gi];
        uint32_t first = kv->length / PN_KV_PAGE_TOKENS;
        uint32_t keep = pn_kv_first_page(kv->spec, gi, first * PN_KV_PAGE_TOKENS);
        for (; g->oldest < keep; g->oldest++)
            kv_drop(kv, g, g->oldest);
        if (g->table[first] && g->table[first]->common)
            kv_copy(kv, g, gi, first);
        for (uint32_t i = first; i <= (kv->length + n - 1) / PN_KV_PAGE_TOKENS; i++)
            if (!g->table[i])
                g->table[i] = kv_take(g);
    }
}

PN_INTERNAL pn_run pn_kv_run(const pn_kv *kv, uint32_t n)
{
    pn_run run = {.n_rows = n, .pos0 = kv->length};
    for (uint32_t g = 0; g < kv->spec->n_groups; g++)
        run.pages[g] = kv->group[g].table;
    pn_state_run(&kv->state, &run);
    return run;
}

PN_INTERNAL void pn_kv_commit(pn_kv *kv, uint32_t n)
{
    kv->length += n;
    pn_state_commit(&kv->state);
}

/* Drop every page behind the n-th token. */
static void kv_cut(pn_kv *kv, uint32_t n)
{
    for (uint32_t gi = 0; gi < kv->spec->n_groups; gi++) {
        pn_kv_group *g = &kv->group[gi];
        for (uint32_t i = kv_table_len(n); i < g->n_table; i++)
            kv_drop(kv, g, i);
        if (n == 0)
            g->oldest = 0;
    }
    kv->length = n;
}

/* No window has moved past what n tokens need. */
static bool kv_reaches(const pn_kv *kv, uint32_t n)
{
    for (uint32_t gi = 0; gi < kv->spec->n_groups; gi++)
        if (n && pn_kv_first_page(kv->spec, gi, n) < kv->group[gi].oldest)
            return false;
    return true;
}

PN_INTERNAL bool pn_kv_truncate(pn_kv *kv, uint32_t n)
{
    if (n >= kv->length)
        return n == kv->length;
    if ((n && kv->state.slot_bytes) || !kv_reaches(kv, n))
        return false;
    kv_cut(kv, n);
    pn_state_set(&kv->state, NULL);
    return true;
}

PN_INTERNAL bool pn_kv_rewind(pn_kv *kv, uint32_t n, pn_snap *state)
{
    PN_ASSERT(n < kv->length && state->bytes == pn_snap_cost(kv->state.slot_bytes));
    if (!kv_reaches(kv, n))
        return false;
    kv_cut(kv, n);
    pn_state_set(&kv->state, state);
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Sharing
 * ------------------------------------------------------------------------------------------ */

/* An own page in the table leaves the reserve for good; another one takes its place if the reserve falls
 * short without it.  False and nothing changed: no memory. */
static bool kv_make_common(pn_kv *kv, pn_kv_group *g, pn_kv_page *p)
{
    p->common = 1;
    g->n_pages--;
    if (!kv->retired && !kv_group_grow(kv, g, kv_wants(kv, g, kv->reserved))) {
        g->n_pages++;
        p->common = 0;
        return false;
    }
    pn_mem_move(kv->mem, PN_ACCT_KV, PN_ACCT_PREFIX, (size_t)(KV_HEAD + g->page_bytes));
    return true;
}

PN_INTERNAL pn_kv_page *pn_kv_share(pn_kv *kv, uint32_t gi, uint32_t i)
{
    pn_kv_group *g = &kv->group[gi];
    if (i >= kv_table_len(kv->length) || !g->table[i])
        return NULL;
    pn_kv_page *p = g->table[i];
    if (kv_is_converted(kv, p))
        return NULL;
    if (!p->common && !kv_make_common(kv, g, p))
        return NULL;
    pn_kv_retain(p);
    return p;
}

PN_INTERNAL bool pn_kv_adopt(pn_kv *kv, pn_kv_page *const *const pages[PN_MAX_GROUPS], uint32_t n, pn_snap *state)
{
    PN_ASSERT(kv->length == 0 && !kv->retired);
    if (n > kv->n_ctx || (n && kv->state.slot_bytes && !state))
        return false;
    for (uint32_t g = 0; g < kv->spec->n_groups; g++)
        for (uint32_t i = pn_kv_first_page(kv->spec, g, n); i < kv_table_len(n); i++)
            if (!pages[g][i])
                return false;
    kv_cut(kv, 0);              /* a step that never finished may have left pages */
    for (uint32_t gi = 0; gi < kv->spec->n_groups; gi++) {
        pn_kv_group *g = &kv->group[gi];
        g->oldest = pn_kv_first_page(kv->spec, gi, n);
        for (uint32_t i = g->oldest; i < kv_table_len(n); i++) {
            pn_kv_page *p = pages[gi][i];
            PN_ASSERT(p->k_type == kv->type && ((kv_block *)(void *)p)->bytes == KV_HEAD + g->page_bytes);
            pn_kv_retain(p);
            g->table[i] = p;
        }
    }
    if (n)
        pn_state_set(&kv->state, state);
    kv->length = n;
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Parking
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_kv_unload(pn_kv *kv)
{
    PN_ASSERT(kv->by_turn && !kv->retired);
    for (uint32_t gi = 0; gi < kv->spec->n_groups; gi++) {
        pn_kv_group *g = &kv->group[gi];
        for (uint32_t i = 0; i < g->n_table; i++)
            kv_drop(kv, g, i);
        kv_group_shrink(g, 0);
    }
    pn_state_unload(&kv->state);
}

PN_INTERNAL void pn_kv_unload_page(pn_kv *kv, uint32_t g, uint32_t i)
{
    kv_drop(kv, &kv->group[g], i);
    kv_group_shrink(&kv->group[g], 0);
}

PN_INTERNAL pn_kv_page *pn_kv_put_page(pn_kv *kv, uint32_t gi, uint32_t i, uint32_t type)
{
    pn_kv_group *g = &kv->group[gi];
    PN_ASSERT(i < g->n_table && !g->table[i]);
    pn_kv_page *p = kv_page_new(g->mem, pn_kv_page_bytes(&kv->spec->group[gi], type, type), type);
    if (!p)
        return NULL;
    p->refs = 1;
    g->table[i] = p;
    g->n_pages++;
    return p;
}

PN_INTERNAL void pn_kv_filled(pn_kv *kv, uint32_t g, uint32_t i) { kv_write(kv->group[g].table[i]); }

/* ------------------------------------------------------------------------------------------
 * Smaller pages
 * ------------------------------------------------------------------------------------------ */

enum { KV_PIECE = PN_CPU_ROTATION_MAX };        /* elements converted at a time: whole blocks, whole rotations */

/* n elements of a plane; rotation 0: none. */
static void kv_convert_plane(const uint8_t *src, uint32_t from, uint8_t *dst, uint32_t to, size_t n, size_t rotation)
{
    const pn_cpu_kernels *k = pn_cpu_get();
    float x[KV_PIECE];
    if (from == to && !rotation) {
        memcpy(dst, src, pn_kv_elem_bytes(to, n));
        return;
    }
    for (size_t at = 0; at < n; at += KV_PIECE) {
        size_t m = PN_MIN((size_t)KV_PIECE, n - at);
        k->kv_decode(from, src + pn_kv_elem_bytes(from, at), x, m);
        if (rotation)
            k->hadamard(x, m, rotation);
        k->kv_encode(to, x, dst + pn_kv_elem_bytes(to, at), m);
    }
}

/* The first `rows` tokens of every plane. */
static void kv_convert(const pn_stream_group *g, const pn_kv_page *src, pn_kv_page *dst, size_t rows)
{
    size_t rotation = dst->rotated && !src->rotated ? pn_cpu_rotation(g->d_k) : 0;
    for (uint32_t i = 0; i < g->n_layers * g->n_heads; i++) {
        uint32_t layer = i / g->n_heads, head = i % g->n_heads;
        kv_convert_plane(pn_kv_k_plane(g, src, layer, head), src->k_type, pn_kv_k_plane(g, dst, layer, head), dst->k_type,
                         rows * g->d_k, rotation);
        kv_convert_plane(pn_kv_v_plane(g, src, layer, head), src->v_type, pn_kv_v_plane(g, dst, layer, head), dst->v_type,
                         rows * g->d_v, 0);
    }
}

/* Table entries from 1 on that may be looked at. */
static uint32_t kv_requant_end(const pn_kv *kv, bool also_recent)
{
    uint32_t n = kv_table_len(kv->length);
    return also_recent ? n : n - PN_MIN(n, 2u);
}

/* What converting page i of group gi would free if nobody but kv had it; 0: it may not be. */
static uint64_t kv_requant_own(const pn_kv *kv, uint32_t gi, uint32_t i, uint32_t type)
{
    const pn_stream_group *sg = &kv->spec->group[gi];
    const pn_kv_page *p = kv->group[gi].table[i];
    if (!kv->by_turn || kv->retired || sg->window || !pn_kv_type_fits(sg, type) || i == 0 || !p)
        return 0;
    /* One that is about to be copied already has its copy in the reserve. */
    if (p->common && i == kv->length / PN_KV_PAGE_TOKENS)
        return 0;
    uint64_t now = kv_block_of(p)->bytes - KV_HEAD, then = pn_kv_page_bytes(sg, type, type);
    return now > then && pn_kv_elem_bytes(p->k_type, 32) >= pn_kv_elem_bytes(type, 32) ? now - then : 0;
}

/* And as it is: all that have it rest and agree. */
static uint64_t kv_requant_frees(const pn_kv *kv, uint32_t gi, uint32_t i, uint32_t type)
{
    uint64_t frees = kv_requant_own(kv, gi, i, type);
    const kv_block *b = frees ? kv_block_of(kv->group[gi].table[i]) : NULL;
    return b && b->page.common && b->page.refs > 1 && (b->page.refs != b->resting || b->kept) ? 0 : frees;
}

PN_INTERNAL uint64_t pn_kv_requant(pn_kv *kv, uint32_t gi, uint32_t i, uint32_t type)
{
    const pn_stream_group *sg = &kv->spec->group[gi];
    pn_kv_group *g = &kv->group[gi];
    uint64_t frees = i < kv_table_len(kv->length) ? kv_requant_frees(kv, gi, i, type) : 0;
    pn_kv_page *old = g->table[i], *p = frees ? kv_page_new(g->mem, pn_kv_page_bytes(sg, type, type), type) : NULL;
    if (!p)
        return 0;
    kv_convert(sg, old, p, PN_MIN((size_t)PN_KV_PAGE_TOKENS, kv->length - (size_t)i * PN_KV_PAGE_TOKENS));
    kv_write(p);
    p->last_use = old->last_use;
    if (old->common && old->refs > 1) {
        kv_block *b = kv_block_of(p);
        pn_mem_move(b->mem, PN_ACCT_KV, PN_ACCT_PREFIX, (size_t)b->bytes);
        p->common = 1;
        p->refs = b->resting = old->refs;
        kv_block_of(old)->heir = p;
        pn_kv_inherit(kv, gi, i);
        return frees;
    }
    g->table[i] = p;
    if (old->common) {
        pn_kv_release(old);
        g->n_pages++;
    } else {
        kv_page_free(old);
    }
    return frees;
}

PN_INTERNAL uint64_t pn_kv_requant_gain(const pn_kv *kv, uint32_t type, bool also_recent)
{
    uint64_t bytes = 0;
    for (uint32_t i = 1; i < kv_requant_end(kv, also_recent); i++)
        for (uint32_t g = 0; g < kv->spec->n_groups; g++)
            bytes += kv_requant_frees(kv, g, i, type);
    return bytes;
}

PN_INTERNAL bool pn_kv_requant_pays(const pn_kv *kv, uint32_t type)
{
    uint64_t gain = pn_kv_requant_gain(kv, type, false), whole = pn_state_turn_bytes(kv->state.slot_bytes);
    for (uint32_t gi = 0; gi < kv->spec->n_groups; gi++)
        for (uint32_t i = 0; i < kv_table_len(kv->length); i++) {
            const pn_kv_page *p = kv->group[gi].table[i];
            whole += p ? kv->group[gi].page_bytes : 0;
            gain += p ? kv->group[gi].page_bytes - pn_kv_page_bytes(&kv->spec->group[gi], p->k_type, p->v_type) : 0;
        }
    return !kv->state.slot_bytes || gain >= whole / 10;
}

PN_INTERNAL uint64_t pn_kv_requant_some(pn_kv *kv, uint32_t type, bool also_recent, uint32_t max_pages)
{
    uint64_t bytes = 0;
    for (uint32_t i = 1; i < kv_requant_end(kv, also_recent); i++)
        for (uint32_t g = 0; g < kv->spec->n_groups && max_pages; g++) {
            uint64_t freed = pn_kv_requant(kv, g, i, type);
            bytes += freed;
            max_pages -= freed != 0;
        }
    return bytes;
}

PN_INTERNAL uint32_t pn_kv_pristine(const pn_kv *kv)
{
    for (uint32_t i = 0; i < kv_table_len(kv->length); i++)
        for (uint32_t g = 0; g < kv->spec->n_groups; g++)
            if (kv->group[g].table[i] && kv_is_converted(kv, kv->group[g].table[i]))
                return i * PN_KV_PAGE_TOKENS;
    return kv->length;
}

PN_INTERNAL uint32_t pn_kv_smallest(const pn_kv *kv)
{
    uint32_t type = kv->type;
    for (uint32_t g = 0; g < kv->spec->n_groups; g++)
        for (uint32_t i = 0; i < kv_table_len(kv->length); i++) {
            const pn_kv_page *p = kv->group[g].table[i];
            if (p && pn_kv_elem_bytes(p->k_type, 32) < pn_kv_elem_bytes(type, 32))
                type = p->k_type;
        }
    return type;
}

/* ------------------------------------------------------------------------------------------
 * Smaller pages of several sequences
 * ------------------------------------------------------------------------------------------ */

static void kv_rest_clear(kv_block *b)
{
    b->resting = 0;
    b->tree = b->kept = b->counted = false;
}

PN_INTERNAL void pn_kv_rest(pn_kv *kv, uint32_t type, bool also_recent)
{
    for (uint32_t g = 0; g < kv->spec->n_groups; g++)
        for (uint32_t i = kv->group[g].oldest; i < kv_table_len(kv->length); i++) {
            pn_kv_page *p = kv->group[g].table[i];
            if (!p || !p->common)
                continue;
            kv_block_of(p)->resting++;
            kv_block_of(p)->kept |= i >= kv_requant_end(kv, also_recent) || !kv_requant_own(kv, g, i, type);
        }
}

PN_INTERNAL void pn_kv_rest_over(pn_kv *kv)
{
    for (uint32_t g = 0; g < kv->spec->n_groups; g++)
        for (uint32_t i = kv->group[g].oldest; i < kv_table_len(kv->length); i++)
            if (kv->group[g].table[i])
                kv_rest_clear(kv_block_of(kv->group[g].table[i]));
}

PN_INTERNAL bool pn_kv_requant_next(const pn_kv *kv, uint32_t type, bool also_recent, uint32_t *g, uint32_t *i)
{
    for (*i = PN_MAX(*i, 1u); *i < kv_requant_end(kv, also_recent); ++*i, *g = 0)
        for (; *g < kv->spec->n_groups; ++*g)
            if (kv_requant_frees(kv, *g, *i, type))
                return true;
    return false;
}

PN_INTERNAL void pn_kv_inherit(pn_kv *kv, uint32_t g, uint32_t i)
{
    pn_kv_page *p = i < kv->group[g].n_table ? kv->group[g].table[i] : NULL;
    if (!p || !kv_block_of(p)->heir)
        return;
    kv->group[g].table[i] = kv_block_of(p)->heir;
    pn_kv_release(p);
}

PN_INTERNAL uint64_t pn_kv_rest_gain(pn_kv *kv, uint32_t type, bool also_recent)
{
    uint64_t bytes = 0;
    for (uint32_t g = 0, i = 1; pn_kv_requant_next(kv, type, also_recent, &g, &i); g++) {
        kv_block *b = kv_block_of(kv->group[g].table[i]);
        bytes += b->counted ? 0 : kv_requant_frees(kv, g, i, type);
        b->counted = true;
    }
    return bytes;
}

PN_INTERNAL uint32_t pn_kv_resting(const pn_kv_page *p) { return kv_block_of(p)->resting; }

PN_INTERNAL void pn_kv_note_tree(pn_kv_page *p, bool agrees)
{
    kv_block *b = kv_block_of(p);
    if (b->tree == agrees)
        return;
    b->tree = agrees;
    b->resting += agrees ? 1u : UINT32_MAX;
}

PN_INTERNAL bool pn_kv_is_tree(const pn_kv_page *p) { return kv_block_of(p)->tree; }
