/*
 * pn_mem.h - the one door through which every byte comes and goes.
 *
 * The engine owns one ledger (mem/pn_ledger.h) which implements this interface on top of the
 * caller's allocator; layers below the ledger only see a pn_mem pointer and so are counted too.
 * Sizes are passed back on free: no header in front of a block, and the accounts stay exact.
 *
 * A request may fail at any time; that is the world's fault, not ours: the answer is NULL, and the
 * caller returns PN_E_NOMEM.  A size of 0 gives a non-NULL pointer that must be freed with size 0.
 * Blocks are aligned to 64 bytes.  Threads: any; an implementation locks or counts atomically.
 */
#ifndef PN_MEM_H
#define PN_MEM_H

#include "base/pn_base.h"

#define PN_MEM_ALIGN 64

typedef struct pn_mem pn_mem;

struct pn_mem {
    void *(*alloc)(pn_mem *m, pn_account account, size_t size);
    void (*free)(pn_mem *m, pn_account account, void *ptr, size_t size);
    void (*move)(pn_mem *m, pn_account from, pn_account to, size_t size);   /* NULL: accounts are not kept apart */
};

static inline void *pn_mem_alloc(pn_mem *m, pn_account a, size_t size) { return m->alloc(m, a, size); }

/* NULL is a no-op. */
static inline void pn_mem_free(pn_mem *m, pn_account a, void *ptr, size_t size)
{
    if (ptr)
        m->free(m, a, ptr, size);
}

/* A block of `size` bytes changes hands: it was taken for `from` and will be freed from `to`.  Cannot
 * fail, the total is what it was. */
static inline void pn_mem_move(pn_mem *m, pn_account from, pn_account to, size_t size)
{
    if (m->move)
        m->move(m, from, to, size);
}

/* n elements of `size` bytes, zeroed; NULL also when the product overflows. */
PN_INTERNAL void *pn_mem_calloc(pn_mem *m, pn_account a, uint64_t n, size_t size);

/* Grow or shrink; on failure NULL and the old block is untouched.  ptr may be NULL with old 0. */
PN_INTERNAL void *pn_mem_resize(pn_mem *m, pn_account a, void *ptr, size_t old, size_t size);

/* Make room for at least `need` elements in a growing array: doubles `*cap`, keeps the contents.
 * *ptr may be NULL with *cap 0.  False: out of memory, array untouched.
 *     if (!pn_mem_grow(m, PN_ACCT_VOCAB, (void **)&list, &cap, n + 1, sizeof *list)) ... */
PN_INTERNAL bool pn_mem_grow(pn_mem *m, pn_account a, void **ptr, size_t *cap, size_t need, size_t size);

/* A copy of n bytes plus a terminating NUL; freed with size n + 1. */
PN_INTERNAL char *pn_mem_strndup(pn_mem *m, pn_account a, const char *s, size_t n);

/* An uncounted pn_mem over malloc, for programs and tests. */
PN_INTERNAL void pn_mem_init_libc(pn_mem *m);

#endif /* PN_MEM_H */
