/* SPDX-License-Identifier: AGPL-3.0-only */
#include "base/pn_mem.h"

#include <stdlib.h>

PN_INTERNAL void *pn_mem_calloc(pn_mem *m, pn_account a, uint64_t n, size_t size)
{
    uint64_t bytes;
    if (!pn_mul_u64(n, size, &bytes) || bytes > SIZE_MAX)
        return NULL;
    void *p = pn_mem_alloc(m, a, (size_t)bytes);
    if (p)
        memset(p, 0, (size_t)bytes);
    return p;
}

PN_INTERNAL void *pn_mem_resize(pn_mem *m, pn_account a, void *ptr, size_t old, size_t size)
{
    void *p = pn_mem_alloc(m, a, size);
    if (!p)
        return NULL;
    if (ptr) {
        memcpy(p, ptr, PN_MIN(old, size));
        pn_mem_free(m, a, ptr, old);
    }
    return p;
}

PN_INTERNAL bool pn_mem_grow(pn_mem *m, pn_account a, void **ptr, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap)
        return true;
    size_t n = *cap ? *cap : 16;
    while (n < need) {
        if (n > SIZE_MAX / 2)
            return false;
        n *= 2;
    }
    if (n > SIZE_MAX / size)
        return false;
    void *p = pn_mem_resize(m, a, *ptr, *cap * size, n * size);
    if (!p)
        return false;
    *ptr = p;
    *cap = n;
    return true;
}

PN_INTERNAL char *pn_mem_strndup(pn_mem *m, pn_account a, const char *s, size_t n)
{
    if (n == SIZE_MAX)
        return NULL;
    char *p = pn_mem_alloc(m, a, n + 1);
    if (p) {
        memcpy(p, s, n);
        p[n] = 0;
    }
    return p;
}

/* C11's aligned_alloc is missing on older systems and posix_memalign on others, so we align by
 * hand: the byte offset to the malloc block sits just below the address we hand out. */
static void *mem_libc_alloc(pn_mem *m, pn_account a, size_t size)
{
    (void)m, (void)a;
    if (size > SIZE_MAX - 2 * PN_MEM_ALIGN)
        return NULL;
    unsigned char *raw = malloc(size + PN_MEM_ALIGN);
    if (!raw)
        return NULL;
    size_t shift = PN_MEM_ALIGN - ((uintptr_t)raw & (PN_MEM_ALIGN - 1));
    raw[shift - 1] = (unsigned char)shift;
    return raw + shift;
}

static void mem_libc_free(pn_mem *m, pn_account a, void *ptr, size_t size)
{
    (void)m, (void)a, (void)size;
    unsigned char *p = ptr;
    free(p - p[-1]);
}

PN_INTERNAL void pn_mem_init_libc(pn_mem *m)
{
    m->alloc = mem_libc_alloc;
    m->free = mem_libc_free;
    m->move = NULL;
}
