/*
 * pn_test.h - pn_check.h for unit tests, which see the inside: plus a memory that fails on purpose.
 */
#ifndef PN_TEST_H
#define PN_TEST_H

#include "base/pn_base.h"
#include "base/pn_mem.h"

#include "pn_check.h"

/* A pn_mem that counts what is out and refuses the k-th request (fail_at, counting from 1; 0:
 * never).  Sizes are checked on free. */
typedef struct pn_test_mem {
    pn_mem mem;             /* first: cast back */
    long n_calls, fail_at, outstanding;
    uint64_t bytes;
} pn_test_mem;

static inline void *pn_test_mem_alloc(pn_mem *m, pn_account a, size_t size)
{
    pn_test_mem *t = (pn_test_mem *)m;
    (void)a;
    if (++t->n_calls == t->fail_at)
        return NULL;
    unsigned char *raw = malloc(size + 2 * PN_MEM_ALIGN);
    if (!raw)
        return NULL;
    unsigned char *p = (unsigned char *)(uintptr_t)pn_align_up((uintptr_t)raw + PN_MEM_ALIGN, PN_MEM_ALIGN);
    memcpy(p - 16, &raw, sizeof raw);
    memcpy(p - 8, &size, sizeof size);
    memset(p, 0xA5, size);              /* nobody may rely on zeroes */
    t->outstanding++;
    t->bytes += size;
    return p;
}

static inline void pn_test_mem_free(pn_mem *m, pn_account a, void *ptr, size_t size)
{
    pn_test_mem *t = (pn_test_mem *)m;
    unsigned char *raw, *p = ptr;
    size_t had;
    (void)a;
    memcpy(&raw, p - 16, sizeof raw);
    memcpy(&had, p - 8, sizeof had);
    PN_CHECK(had == size, "freed with size %zu, allocated with %zu", size, had);
    t->outstanding--;
    t->bytes -= had;
    free(raw);
}

static inline void pn_test_mem_init(pn_test_mem *t, long fail_at)
{
    memset(t, 0, sizeof *t);
    t->mem.alloc = pn_test_mem_alloc;
    t->mem.free = pn_test_mem_free;
    t->fail_at = fail_at;
}

#endif /* PN_TEST_H */
