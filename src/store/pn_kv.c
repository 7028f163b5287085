/* SPDX-License-Identifier: AGPL-3.0-only */
#include "store/pn_kv.h"

#include <inttypes.h>

#include "base/pn_err.h"

/* Pages of a group that can be in use at once.  A window needs the pages of W - 1 earlier tokens
 * and of a whole batch, and both ends may lie inside a page. */
static uint32_t kv_group_pages(const pn_stream_group *g, uint32_t n_ctx, uint32_t n_batch)
{
    uint64_t all = ((uint64_t)n_ctx + PN_KV_PAGE_TOKENS - 1) / PN_KV_PAGE_TOKENS;
    if (!g->window)
        return (uint32_t)all;
    uint64_t span = ((uint64_t)g->window + n_batch + PN_KV_PAGE_TOKENS - 1) / PN_KV_PAGE_TOKENS + 1;
    return (uint32_t)PN_MIN(all, span);
}

static uint32_t kv_table_len(uint32_t n_ctx)
{
    return (uint32_t)(((uint64_t)n_ctx + PN_KV_PAGE_TOKENS - 1) / PN_KV_PAGE_TOKENS);
}

PN_INTERNAL bool pn_kv_bytes(const pn_state_spec *spec, uint32_t n_ctx, uint32_t n_batch, uint32_t type,
                             uint64_t *bytes, uint64_t *pages_only)
{
    uint64_t pages = 0, rest = 0;
    for (uint32_t g = 0; g < spec->n_groups; g++) {
        uint64_t n = kv_group_pages(&spec->group[g], n_ctx, n_batch), b;
        if (!pn_mul_u64(n, pn_kv_page_bytes(&spec->group[g], type, type), &b) || !pn_add_u64(pages, b, &pages))
            return false;
        rest += n * (sizeof(pn_kv_page) + sizeof(pn_kv_page *)) +
                (uint64_t)kv_table_len(n_ctx) * sizeof(pn_kv_page *);
    }
    *pages_only = pages;
    return pn_add_u64(pages, rest, bytes);
}

PN_INTERNAL uint64_t pn_kv_bytes_per_token(const pn_state_spec *spec, uint32_t type)
{
    uint64_t b = 0;
    for (uint32_t g = 0; g < spec->n_groups; g++)
        b += pn_kv_page_bytes(&spec->group[g], type, type) / PN_KV_PAGE_TOKENS;
    return b;
}

static pn_status kv_group_open(pn_kv *kv, uint32_t gi, uint32_t type, pn_err *err)
{
    pn_kv_group *g = &kv->group[gi];
    g->n_pages = kv_group_pages(&kv->spec->group[gi], kv->n_ctx, kv->n_batch);
    g->n_table = kv_table_len(kv->n_ctx);
    g->page_bytes = pn_kv_page_bytes(&kv->spec->group[gi], type, type);
    uint64_t bytes;
    if (!pn_mul_u64(g->n_pages, g->page_bytes, &bytes) || bytes > SIZE_MAX)
        return pn_fail(err, PN_E_NOMEM, "keys and values of %" PRIu32 " tokens are more than this system can address",
                       kv->n_ctx);
    g->pages = pn_mem_calloc(kv->mem, PN_ACCT_KV, g->n_pages, sizeof *g->pages);
    g->free = pn_mem_calloc(kv->mem, PN_ACCT_KV, g->n_pages, sizeof *g->free);
    g->table = pn_mem_calloc(kv->mem, PN_ACCT_KV, g->n_table, sizeof *g->table);
    g->slab = pn_mem_alloc(kv->mem, PN_ACCT_KV, (size_t)bytes);
    if (!g->pages || !g->free || !g->table || !g->slab)
        return pn_fail_nomem(err, "keys and values of a session", bytes);
    for (uint32_t i = 0; i < g->n_pages; i++) {
        g->pages[i] = (pn_kv_page){.data = g->slab + g->page_bytes * i, .k_type = (uint8_t)type, .v_type = (uint8_t)type};
        g->free[g->n_pages - 1 - i] = &g->pages[i];     /* first page on top */
    }
    g->n_free = g->n_pages;
    return PN_OK;
}

PN_INTERNAL pn_status pn_kv_open(pn_kv *kv, pn_mem *mem, const pn_state_spec *spec, uint32_t n_ctx, uint32_t n_batch,
                                 uint32_t type, pn_err *err)
{
    *kv = (pn_kv){.mem = mem, .spec = spec, .n_ctx = n_ctx, .n_batch = n_batch};
    for (uint32_t g = 0; g < spec->n_groups; g++) {
        pn_status st = kv_group_open(kv, g, type, err);
        if (st) {
            pn_kv_close(kv);
            return st;
        }
    }
    return PN_OK;
}

PN_INTERNAL void pn_kv_close(pn_kv *kv)
{
    if (!kv->mem)
        return;
    for (uint32_t i = 0; i < kv->spec->n_groups; i++) {
        pn_kv_group *g = &kv->group[i];
        pn_mem_free(kv->mem, PN_ACCT_KV, g->slab, (size_t)(g->n_pages * g->page_bytes));
        pn_mem_free(kv->mem, PN_ACCT_KV, g->pages, g->n_pages * sizeof *g->pages);
        pn_mem_free(kv->mem, PN_ACCT_KV, g->free, g->n_pages * sizeof *g->free);
        pn_mem_free(kv->mem, PN_ACCT_KV, g->table, g->n_table * sizeof *g->table);
    }
    *kv = (pn_kv){0};
}

static void kv_drop(pn_kv_group *g, uint32_t i)
{
    if (!g->table[i])
        return;
    g->table[i]->refs = 0;
    g->free[g->n_free++] = g->table[i];
    g->table[i] = NULL;
}

/* Oldest position that the query at `pos` sees. */
static uint32_t kv_first_visible(const pn_stream_group *g, uint32_t pos)
{
    return g->window && pos + 1 > g->window ? pos + 1 - g->window : 0;
}

PN_INTERNAL void pn_kv_prepare(pn_kv *kv, uint32_t n)
{
    for (uint32_t gi = 0; gi < kv->spec->n_groups && n; gi++) {
        pn_kv_group *g = &kv->group[gi];
        uint32_t keep = kv_first_visible(&kv->spec->group[gi], kv->length) / PN_KV_PAGE_TOKENS;
        for (; g->oldest < keep; g->oldest++)
            kv_drop(g, g->oldest);
        for (uint32_t i = kv->length / PN_KV_PAGE_TOKENS; i <= (kv->length + n - 1) / PN_KV_PAGE_TOKENS; i++)
            if (!g->table[i]) {
                PN_ASSERT(g->n_free > 0);
                g->table[i] = g->free[--g->n_free];
                g->table[i]->refs = 1;
            }
    }
}

PN_INTERNAL void pn_kv_commit(pn_kv *kv, uint32_t n) { kv->length += n; }

PN_INTERNAL bool pn_kv_truncate(pn_kv *kv, uint32_t n)
{
    if (n >= kv->length)
        return n == kv->length;
    for (uint32_t gi = 0; gi < kv->spec->n_groups; gi++)
        if (n && kv_first_visible(&kv->spec->group[gi], n) / PN_KV_PAGE_TOKENS < kv->group[gi].oldest)
            return false;
    for (uint32_t gi = 0; gi < kv->spec->n_groups; gi++) {
        pn_kv_group *g = &kv->group[gi];
        for (uint32_t i = kv_table_len(n); i < g->n_table; i++)
            kv_drop(g, i);
        if (n == 0)
            g->oldest = 0;
    }
    kv->length = n;
    return true;
}
