/* SPDX-License-Identifier: AGPL-3.0-only */
#include "mem/pn_ledger.h"

#include "base/pn_os.h"

/* Where the caller brings no allocator, a block of this size comes from the system directly and goes back there when
 * it is freed: malloc would keep pages of keys and values for later, and nobody could say what giving up a cache
 * gives back (memory sheet 3).  Under the address sanitizer, which looks after malloc's blocks alone, all is malloc's. */
#ifdef __SANITIZE_ADDRESS__
#define LEDGER_DIRECT SIZE_MAX
#else
#define LEDGER_DIRECT ((size_t)256 << 10)
#endif

static void ledger_raise(atomic_ullong *peak, uint64_t v)
{
    unsigned long long p = atomic_load_explicit(peak, memory_order_relaxed);
    while (v > p && !atomic_compare_exchange_weak_explicit(peak, &p, v, memory_order_relaxed, memory_order_relaxed))
        ;
}

static void ledger_add(pn_ledger *l, pn_account a, uint64_t size)
{
    uint64_t used = atomic_fetch_add_explicit(&l->used[a], size, memory_order_relaxed) + size;
    ledger_raise(&l->peak[a], used);
}

/* Book `size` bytes against the limit; false and unchanged when they do not fit. */
static bool ledger_reserve(pn_ledger *l, uint64_t size)
{
    unsigned long long t = atomic_load_explicit(&l->total, memory_order_relaxed);
    uint64_t limit = atomic_load_explicit(&l->limit, memory_order_relaxed);
    do {
        if (size > UINT64_MAX - t || (limit && t + size > limit))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&l->total, &t, t + size, memory_order_relaxed,
                                                    memory_order_relaxed));
    ledger_raise(&l->total_peak, t + size);
    return true;
}

static void *ledger_alloc(pn_mem *m, pn_account a, size_t size)
{
    pn_ledger *l = (pn_ledger *)(void *)m;
    if (!ledger_reserve(l, size))
        return NULL;
    void *p = l->under.alloc(l->under.user, size ? size : 1, PN_MEM_ALIGN);
    if (!p) {
        atomic_fetch_sub_explicit(&l->total, size, memory_order_relaxed);
        return NULL;
    }
    ledger_add(l, a, size);
    return p;
}

static void ledger_free(pn_mem *m, pn_account a, void *ptr, size_t size)
{
    pn_ledger *l = (pn_ledger *)(void *)m;
    l->under.free(l->under.user, ptr, size ? size : 1);
    atomic_fetch_sub_explicit(&l->used[a], size, memory_order_relaxed);
    atomic_fetch_sub_explicit(&l->total, size, memory_order_relaxed);
}

static void ledger_move(pn_mem *m, pn_account from, pn_account to, size_t size)
{
    pn_ledger *l = (pn_ledger *)(void *)m;
    atomic_fetch_sub_explicit(&l->used[from], size, memory_order_relaxed);
    ledger_add(l, to, size);
}

static void *ledger_libc_alloc(void *user, size_t size, size_t align)
{
    (void)user, (void)align;
    pn_mem libc;
    if (PN_OS_PAGES && size >= LEDGER_DIRECT)
        return pn_os_pages_take(size);
    pn_mem_init_libc(&libc);
    return libc.alloc(&libc, PN_ACCT_MISC, size);
}

static void ledger_libc_free(void *user, void *ptr, size_t size)
{
    (void)user;
    pn_mem libc;
    pn_mem_init_libc(&libc);
    if (PN_OS_PAGES && size >= LEDGER_DIRECT)
        pn_os_pages_give(ptr, size);
    else
        libc.free(&libc, PN_ACCT_MISC, ptr, size);
}

PN_INTERNAL void pn_ledger_init(pn_ledger *l, const pn_allocator *allocator, uint64_t limit)
{
    memset(l, 0, sizeof *l);
    l->mem.alloc = ledger_alloc;
    l->mem.free = ledger_free;
    l->mem.move = ledger_move;
    atomic_init(&l->limit, limit);
    if (allocator && allocator->alloc && allocator->free)
        l->under = *allocator;
    else
        l->under = (pn_allocator){ledger_libc_alloc, ledger_libc_free, NULL};
}

PN_INTERNAL uint64_t pn_ledger_over(const pn_ledger *l)
{
    uint64_t soft = atomic_load_explicit(&l->soft, memory_order_relaxed), total = atomic_load_explicit(&l->total, memory_order_relaxed);
    return soft && total > soft ? total - soft : 0;
}

PN_INTERNAL void pn_ledger_note_map(pn_ledger *l, int64_t bytes)
{
    if (bytes >= 0)
        ledger_add(l, PN_ACCT_WEIGHTS_MAP, (uint64_t)bytes);
    else
        atomic_fetch_sub_explicit(&l->used[PN_ACCT_WEIGHTS_MAP], (uint64_t)-bytes, memory_order_relaxed);
}

PN_INTERNAL void pn_ledger_report(const pn_ledger *l, pn_mem_info *out)
{
    memset(out, 0, sizeof *out);
    for (int a = 0; a < PN_ACCT_COUNT; a++) {
        out->used[a] = atomic_load(&l->used[a]);
        out->peak[a] = atomic_load(&l->peak[a]);
    }
    out->total_used = atomic_load(&l->total);
    out->total_peak = atomic_load(&l->total_peak);
    out->limit = atomic_load(&l->limit);
}

#undef LEDGER_DIRECT
