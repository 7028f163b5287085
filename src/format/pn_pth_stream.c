/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_pth_stream.c - the elements of a tensor of torch in row-major order, whatever its strides.
 *
 * Dimensions of 1 go, neighbours that one stride describes become one.  What is left is cut into
 *
 *     outer dimensions | the lead: smallest stride | inner dimensions
 *
 * and gathered so that the file is read along the lead: k of its positions at a time, one read of a
 * run of k elements for each inner position, put down a row apart.  A transposed matrix [R, C] with
 * strides (1, R) has its rows as the lead: C runs of k elements make k rows.  The tile holds k times
 * the inner elements, so k follows from its size; where not even one fits, inner goes in pieces.
 *
 * Where the lead's stride is not 1 a run is read with what lies between, as long as that is little.
 */
#include "format/pn_pth.h"

#include "base/pn_err.h"

enum {
    PTHS_RUN = 1 << 20,         /* bytes read at once */
    PTHS_TILE = 16 << 20,       /* bytes gathered before they go out */
    PTHS_SPARSE = 4096          /* bytes between two elements that are not worth reading */
};

typedef struct pths_job {
    const pn_source *src;
    const char *name;
    uint64_t base;              /* of the storage in the file */
    uint32_t elem;              /* bytes of an element */
    bool swap;
    uint32_t n, lead;           /* dimensions */
    uint64_t size[PN_ST_MAX_RANK], stride[PN_ST_MAX_RANK];
    uint8_t *run;               /* owned, [run_bytes] */
    uint8_t *tile;              /* owned, [tile_bytes], of which `filled` are waiting */
    size_t run_bytes, tile_bytes, filled;
    pn_pth_sink sink;
    void *user;
    pn_err *err;
} pths_job;

/* Fewest dimensions with the same elements in the same order. */
static void pths_merge(pths_job *j, const pn_pth_tensor *t)
{
    for (uint32_t k = 0; k < t->rank; k++) {
        uint64_t step;
        if (t->shape[k] == 1)
            continue;
        if (j->n && pn_mul_u64(t->stride[k], t->shape[k], &step) && j->stride[j->n - 1] == step) {
            j->size[j->n - 1] *= t->shape[k];
            j->stride[j->n - 1] = t->stride[k];
        } else {
            j->size[j->n] = t->shape[k];
            j->stride[j->n++] = t->stride[k];
        }
    }
    if (j->n == 0) {
        j->size[0] = j->stride[0] = 1;
        j->n = 1;
    }
    for (uint32_t k = 0; k < j->n; k++)         /* the last of the smallest that move at all */
        if (j->stride[j->lead] == 0 || (j->stride[k] != 0 && j->stride[k] <= j->stride[j->lead]))
            j->lead = k;
}

static uint64_t pths_product(const pths_job *j, uint32_t from, uint32_t to)
{
    uint64_t n = 1;
    for (uint32_t k = from; k < to; k++)
        n *= j->size[k];
    return n;
}

/* Offset in elements of the i-th combination of dimensions [from, to), row-major. */
static uint64_t pths_offset(const pths_job *j, uint32_t from, uint32_t to, uint64_t i)
{
    uint64_t at = 0;
    for (uint32_t k = to; k-- > from; i /= j->size[k])
        at += i % j->size[k] * j->stride[k];
    return at;
}

static pn_status pths_read(const pths_job *j, uint64_t elem, void *dst, uint64_t n)
{
    pn_status st = pn_source_read(j->src, j->base + elem * j->elem, dst, (size_t)(n * j->elem), j->err);
    return st ? pn_err_prefix(j->err, st, "tensor '%s'", j->name) : PN_OK;
}

static pn_status pths_flush(pths_job *j)
{
    uint8_t *b = j->tile;
    for (size_t i = 0; j->swap && i < j->filled; i += j->elem)
        for (uint32_t lo = 0, hi = j->elem - 1; lo < hi; lo++, hi--) {
            uint8_t swap = b[i + lo];
            b[i + lo] = b[i + hi];
            b[i + hi] = swap;
        }
    pn_status st = j->filled ? j->sink(j->user, b, j->filled, j->err) : PN_OK;
    j->filled = 0;
    return st;
}

/* n elements from `at` on, a stride of `step` apart, to dst, `apart` bytes from one to the next. */
static pn_status pths_run(const pths_job *j, uint64_t at, uint64_t n, uint64_t step, uint8_t *dst, uint64_t apart)
{
    uint64_t room = j->run_bytes / j->elem, most = room;
    if (step == 1 && apart == j->elem)
        return pths_read(j, at, dst, n);
    if (step > 0)
        most = step * j->elem > PTHS_SPARSE ? 1 : (room - 1) / step + 1;
    for (uint64_t done = 0; done < n;) {
        uint64_t some = PN_MIN(n - done, most);
        pn_status st = pths_read(j, at + done * step, j->run, step ? (some - 1) * step + 1 : 1);
        if (st)
            return st;
        for (uint64_t i = 0; i < some; i++)
            memcpy(dst + (done + i) * apart, j->run + i * step * j->elem, j->elem);
        done += some;
    }
    return PN_OK;
}

/* Lead positions [r, r + k), inner positions [i, i + n): appended to the tile, where there is room. */
static pn_status pths_gather(pths_job *j, uint64_t at, uint64_t r, uint64_t k, uint64_t i, uint64_t n)
{
    uint64_t step = j->stride[j->lead];
    uint8_t *dst = j->tile + j->filled;
    pn_status st = PN_OK;
    for (uint64_t c = 0; c < n && !st; c++)
        st = pths_run(j, at + r * step + pths_offset(j, j->lead + 1, j->n, i + c), k, step, dst + c * j->elem, n * j->elem);
    j->filled += (size_t)(k * n * j->elem);
    return st;
}

static pn_status pths_walk(pths_job *j, uint64_t first)
{
    uint64_t outer = pths_product(j, 0, j->lead), inner = pths_product(j, j->lead + 1, j->n), rows = j->size[j->lead];
    uint64_t room = j->tile_bytes / j->elem, k = PN_MAX(room / inner, 1), n = PN_MIN(inner, room);
    pn_status st = PN_OK;
    for (uint64_t o = 0; o < outer && !st; o++) {
        uint64_t at = first + pths_offset(j, 0, j->lead, o), some_k;
        for (uint64_t r = 0; r < rows && !st; r += some_k) {
            some_k = PN_MIN(k, rows - r);
            for (uint64_t i = 0, some; i < inner && !st; i += some) {
                some = PN_MIN(n, inner - i);
                if (some_k * some * j->elem > j->tile_bytes - j->filled)
                    st = pths_flush(j);
                if (!st)
                    st = pths_gather(j, at, r, some_k, i, some);
            }
        }
    }
    return st ? st : pths_flush(j);
}

PN_INTERNAL pn_status pn_pth_stream(const pn_pth *p, const pn_pth_tensor *t, pn_pth_sink sink, void *user, pn_err *err)
{
    pths_job j = {.src = &p->src, .name = t->name, .base = p->storages[t->storage].offset, .elem = pn_st_dtype_get(t->dtype)->bits / 8,
                  .swap = p->big_endian, .sink = sink, .user = user, .err = err};
    if (t->n_elems == 0)
        return PN_OK;
    pths_merge(&j, t);
    bool straight = j.n == 1 && j.stride[0] == 1;
    j.tile_bytes = (size_t)PN_MIN(t->bytes, straight ? (uint64_t)PTHS_RUN : (uint64_t)PTHS_TILE);     /* whole elements */
    j.run_bytes = straight ? 0 : PTHS_RUN;
    j.tile = pn_mem_alloc(p->mem, PN_ACCT_STAGE, j.tile_bytes);
    j.run = pn_mem_alloc(p->mem, PN_ACCT_STAGE, j.run_bytes);
    pn_status st = j.tile && j.run ? pths_walk(&j, t->first) : pn_fail_nomem(err, t->name, j.tile_bytes + j.run_bytes);
    pn_mem_free(p->mem, PN_ACCT_STAGE, j.tile, j.tile_bytes);
    pn_mem_free(p->mem, PN_ACCT_STAGE, j.run, j.run_bytes);
    return st;
}
