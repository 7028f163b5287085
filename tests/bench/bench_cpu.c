/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * bench_cpu.c - how fast are the matrix kernels, type by type?
 *
 *     bench_cpu [isa] [type ...]       one thread; PN_BENCH_MS: time for each figure (300)
 *
 * read:    a plain sum over the same bytes (64 MB of weights, more than the caches hold), GB/s
 * decode:  one activation row against those weights, GB/s of weights
 * prefill: 512 activation rows, k = 2048, 1024 weight rows, Gop/s (2 m n k)
 * m=2 .. : few rows against 64 MB, as the time of one row (1.00: the second row is free)
 */
#include "cpu/pn_cpu_unpack.h"

#include "num/pn_half.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);      /* others may share the machine */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t bench_read(const uint8_t *w, size_t n)
{
    uint64_t a = 0, b = 0, c = 0, d = 0, v[4];
    for (size_t i = 0; i + 32 <= n; i += 32) {
        memcpy(v, w + i, 32);
        a += v[0], b += v[1], c += v[2], d += v[3];
    }
    return a ^ b ^ c ^ d;
}

static double bench_seconds(void)
{
    const char *ms = getenv("PN_BENCH_MS");
    return (ms ? atof(ms) : 300) * 1e-3;
}

/* Best time of one call within the time budget. */
static double bench_matmul(const pn_cpu_kernels *c, const pn_cpu_mm *a)
{
    double best = 1e9, until = bench_now() + bench_seconds();
    do {
        double t = bench_now();
        c->matmul(a);
        t = bench_now() - t;
        best = t < best ? t : best;
    } while (bench_now() < until);
    return best;
}

static double bench_plain(const uint8_t *w, size_t n, volatile uint64_t *sink)
{
    double best = 1e9, until = bench_now() + bench_seconds();
    do {
        double t = bench_now();
        *sink += bench_read(w, n);
        t = bench_now() - t;
        best = t < best ? t : best;
    } while (bench_now() < until);
    return best;
}

static void bench_type(const pn_cpu_kernels *c, uint32_t type)
{
    enum { K = 2048, M = 512, ROWS = 1024 };
    const pn_dtype_info *t = pn_dtype_get(type);
    size_t stride = (size_t)K / t->block_elems * t->block_bytes;
    size_t rows = ((size_t)64 << 20) / stride & ~(size_t)63, bytes = rows * stride;
    pn_act_kind kind = pn_cpu_act_kind(type);
    pn_act_layout l = pn_act_layout_of(kind, K);
    uint8_t *w = aligned_alloc(64, bytes), *x = aligned_alloc(64, M * l.row_bytes);
    float *xf = malloc(4 * K), *y = malloc(4 * M * (rows > ROWS ? rows : ROWS));
    void *tile = aligned_alloc(64, pn_align_up(pn_cpu_tile_bytes(K), 64));
    volatile uint64_t sink = 0;
    uint32_t s = 7;
    for (size_t i = 0; i < bytes; i++)          /* small exponents everywhere: no NaN, no subnormals */
        w[i] = (uint8_t)(((s = s * 1664525 + 1013904223) >> 24 & 0x3f) | (type <= 1 ? 0x10 : type == PN_DTYPE_MXFP4 ? 0x40 : 0));
    for (size_t j = 0; j < M; j++) {
        for (size_t i = 0; i < K; i++)
            xf[i] = (float)((s = s * 1664525 + 1013904223) >> 16) * 0x1p-15f - 1.0f;
        c->quant(kind, xf, x + j * l.row_bytes, K);
    }
    pn_cpu_mm a = {.w = w, .w_stride = stride, .dtype = type, .rows = (uint32_t)rows, .m = 1, .k = K,
                   .x = x, .x_stride = l.row_bytes, .y = y, .y_stride = rows, .tile = tile};
    double read = bench_plain(w, bytes, &sink), one = bench_matmul(c, &a);
    printf("%-8s read %6.2f  decode %6.2f GB/s (%3.0f %%)", t->name, (double)bytes / read * 1e-9,
           (double)bytes / one * 1e-9, 100 * read / one);
    for (uint32_t m = 2; m <= 8; m *= 2) {
        a.m = m;
        printf("  m=%u %.2f", (unsigned)m, bench_matmul(c, &a) / one);
    }
    a.m = M;
    a.rows = ROWS;
    a.y_stride = ROWS;
    printf("  prefill %6.1f Gop/s\n", 2.0 * M * ROWS * K / bench_matmul(c, &a) * 1e-9);
    fflush(stdout);
    free(w);
    free(x);
    free(xf);
    free(y);
    free(tile);
}

int main(int argc, char **argv)
{
    pn_err err;
    if (argc > 1 && pn_cpu_force(argv[1], &err) != PN_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("%s\n", pn_cpu_isa());
    for (uint32_t type = 0; type < PN_DTYPE_COUNT; type++) {
        bool wanted = argc < 3 && pn_dtype_is_weight(type);
        for (int i = 2; i < argc; i++)
            wanted |= pn_dtype_get(type)->name && strcmp(argv[i], pn_dtype_get(type)->name) == 0;
        if (wanted && type != PN_DTYPE_Q8_1 && type != PN_DTYPE_Q8_K)
            bench_type(pn_cpu_get(), type);
    }
    return 0;
}
