/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * bench_kv.c - what do the types of keys and values cost?
 *
 *     bench_kv [isa]       one thread; PN_BENCH_MS: time for each figure (300)
 *
 * convert: pn_kv_requant on pages of Llama-3.1-8B's shape (32 layers, 8 heads of 128: 8 MB as f16), GB/s of the
 *          source, and as a share of memcpy on the same pages; with the allocation of the smaller page
 * attend:  one page of 64 tokens against 1 and 8 queries of a head of 128, ns a token and query; out of the cache
 *          as decode meets it: the pages of a long context in turn
 */
#include "store/pn_kv.h"

#include "cpu/pn_cpu.h"
#include "pn_test.h"

#include <time.h>

static const pn_state_spec spec = {.group = {{.n_layers = 32, .n_heads = 8, .d_k = 128, .d_v = 128}}, .n_groups = 1};

enum { N_CTX = 16 * PN_KV_PAGE_TOKENS };

static double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);      /* others may share the machine */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double bench_until(void)
{
    const char *ms = getenv("PN_BENCH_MS");
    return bench_now() + (ms ? atof(ms) : 300) * 1e-3;
}

/* A full sequence of `type`; its pages hold numbers around 0, keys with an outlier. */
static void bench_fill(pn_kv *kv, pn_mem *mem, uint32_t type)
{
    float row[128];
    uint64_t seed = 1;
    PN_CHECK(!pn_kv_open_bare(kv, mem, &spec, N_CTX, N_CTX, type, NULL) && pn_kv_reserve(kv, N_CTX), "no memory");
    pn_kv_prepare(kv, N_CTX);
    for (uint32_t i = 0; i < N_CTX / PN_KV_PAGE_TOKENS; i++) {
        uint8_t *p = kv->group[0].table[i]->data;
        for (uint64_t at = 0; at < kv->group[0].page_bytes; at += pn_kv_elem_bytes(type, 128)) {
            for (uint32_t e = 0; e < 128; e++)
                row[e] = (float)((double)(pn_test_rand(&seed) >> 40) * 0x1p-23 - 1.0) * (e == 17 ? 20 : 1);
            pn_cpu_get()->kv_encode(type, row, p + at, 128);
        }
    }
    pn_kv_commit(kv, N_CTX);
}

/* GB/s of converting all pages that may be: the best of some rounds. */
static double bench_convert(pn_mem *mem, uint32_t from, uint32_t to)
{
    double best = 0, until = bench_until();
    do {
        pn_kv kv;
        bench_fill(&kv, mem, from);
        uint32_t n = N_CTX / PN_KV_PAGE_TOKENS - 1;
        double t = bench_now();
        (void)pn_kv_requant_some(&kv, to, true, UINT32_MAX);
        best = PN_MAX(best, 1e-9 * (double)kv.group[0].page_bytes * n / (bench_now() - t));
        pn_kv_close(&kv);
    } while (bench_now() < until);
    return best;
}

static double bench_copy(pn_mem *mem)
{
    double best = 0, until = bench_until();
    pn_kv kv;
    bench_fill(&kv, mem, PN_DTYPE_F16);
    pn_kv_page **t = kv.group[0].table;
    do
        for (uint32_t i = 0; i + 1 < N_CTX / PN_KV_PAGE_TOKENS; i++) {
            double at = bench_now();
            memcpy(t[i + 1]->data, t[i]->data, (size_t)kv.group[0].page_bytes);
            best = PN_MAX(best, 1e-9 * (double)kv.group[0].page_bytes / (bench_now() - at));
        }
    while (bench_now() < until);
    pn_kv_close(&kv);
    return best;
}

/* ns for a token and a query. */
static double bench_attend(pn_mem *mem, uint32_t type, uint32_t n_q)
{
    static float q[8][128], o[8][128], m[8], l[8];
    const float *qp[8];
    float *op[8];
    uint16_t lo[8] = {0}, hi[8];
    double best = 1e9, until = bench_until();
    pn_kv kv;
    bench_fill(&kv, mem, type);
    for (uint32_t i = 0; i < 8; i++) {
        qp[i] = q[i];
        op[i] = o[i];
        hi[i] = PN_KV_PAGE_TOKENS;
        for (uint32_t e = 0; e < 128; e++)
            q[i][e] = (float)(e % 7) * 0.01f;
    }
    do
        for (uint32_t layer = 0; layer < 32; layer++) {
            double t = bench_now();
            for (uint32_t i = 0; i < 8 * N_CTX / PN_KV_PAGE_TOKENS; i++) {
                const pn_kv_page *p = kv.group[0].table[i / 8];
                const pn_cpu_attn a = {.q = qp, .lo = lo, .hi = hi, .n_q = n_q, .k = pn_kv_k_plane(&spec.group[0], p, layer, i % 8),
                                       .v = pn_kv_v_plane(&spec.group[0], p, layer, i % 8), .k_type = type, .v_type = type,
                                       .d_k = 128, .d_v = 128, .scale = 0.1f, .m = m, .l = l, .o = op};
                pn_cpu_get()->attn(&a);
            }
            best = PN_MIN(best, 1e9 * (bench_now() - t) / (8.0 * N_CTX * n_q));
        }
    while (bench_now() < until);
    pn_kv_close(&kv);
    return best;
}

int main(int argc, char **argv)
{
    static const uint32_t types[] = {PN_DTYPE_F32, PN_DTYPE_F16, PN_DTYPE_Q8_0, PN_DTYPE_Q5_1, PN_DTYPE_Q5_0, PN_DTYPE_Q4_1, PN_DTYPE_Q4_0};
    pn_mem mem;
    pn_err err;
    pn_mem_init_libc(&mem);
    if (argc > 1 && pn_cpu_force(argv[1], &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 2;
    }
    double copy = bench_copy(&mem);
    printf("%s: memcpy of pages %.2f GB/s\n", pn_cpu_isa(), copy);
    for (size_t i = 2; i < PN_COUNT_OF(types); i++) {
        double c = bench_convert(&mem, PN_DTYPE_F16, types[i]);
        printf("  f16 to %s %5.2f GB/s, %.2f of memcpy\n", pn_kv_type_name((pn_dtype)types[i]), c, c / copy);
    }
    double c = bench_convert(&mem, PN_DTYPE_Q8_0, PN_DTYPE_Q4_0);
    printf("  q8_0 to q4_0 %4.2f GB/s, %.2f of memcpy\n", c, c / copy);
    for (size_t i = 0; i < PN_COUNT_OF(types); i++) {
        double one = bench_attend(&mem, types[i], 1), eight = bench_attend(&mem, types[i], 8);
        printf("  attend %-4s  1 query %6.1f ns a token, 8 queries %5.1f ns a token and query\n", pn_kv_type_name((pn_dtype)types[i]), one, eight);
    }
    return 0;
}
