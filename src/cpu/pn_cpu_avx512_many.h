/*
 * pn_cpu_avx512_many.h - the frame of the AVX-512 matrix kernels.
 *
 * Included by pn_cpu_avx512.c (maddubs) and pn_cpu_avx512vnni.c (dpbusd).  Prefill takes panels of
 * 8 rows in pairs: 16 rows in the lanes.  Few activation rows are bound by memory, and there the
 * AVX2 kernels are used as they are; all bits are the same.
 */
#ifndef PN_CPU_AVX512_MANY_H
#define PN_CPU_AVX512_MANY_H

#include "cpu/pn_cpu_x86_mm.h"

#if PN_CPU_X64

enum { PN_AVX512_X = 4 };       /* activation rows run over a pair of panels together */

/* Two times 32 bytes: rows 0..7 and 8..15. */
#define PN_AVX512_PAIR(lo, hi) \
    _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_load_si256((const __m256i *)(const void *)(lo))), \
                       _mm256_load_si256((const __m256i *)(const void *)(hi)), 1)

typedef void (*pn_avx512_many_fn)(const pn_x86_panel *p0, const pn_x86_panel *p1, pn_cpu_form f, size_t k,
                                  const pn_x86_x x[PN_AVX512_X], float sum[PN_AVX512_X][16]);

/* Fill pairs of panels and run all activation rows over them. */
static inline void pn_avx512_frame(const pn_cpu_mm *a, pn_cpu_form f, pn_avx512_many_fn many)
{
    pn_x86_panel *panels = a->tile;
    size_t chunks = ((size_t)a->k + PN_CPU_CHUNK - 1) / PN_CPU_CHUNK;
    uint32_t step = 16 * (pn_x86_panels_in_tile(a->k) / 2);
    for (uint32_t r0 = 0; r0 < a->rows; r0 += step) {
        uint32_t r1 = PN_MIN(step, a->rows - r0) + r0;
        for (uint32_t r = r0; r < r1; r += 16) {
            pn_x86_panel *p = panels + (r - r0) / 8 * chunks;
            for (size_t c = 0; c < chunks; c++) {
                size_t e = c * PN_CPU_CHUNK, n = PN_MIN((size_t)PN_CPU_CHUNK, a->k - e);
                pn_x86_panel_fill(a, f, r, e, n, p + c);
                pn_x86_panel_fill(a, f, r + 8, e, n, p + chunks + c);
            }
        }
        for (uint32_t j = 0; j < a->m; j += PN_AVX512_X) {
            pn_x86_x x[PN_AVX512_X];
            for (uint32_t i = 0; i < PN_AVX512_X; i++)
                x[i] = pn_x86_x_at(a, f, PN_MIN(j + i, a->m - 1));
            for (uint32_t r = r0; r < r1; r += 16) {
                _Alignas(64) float sum[PN_AVX512_X][16];
                const pn_x86_panel *p = panels + (r - r0) / 8 * chunks;
                many(p, p + chunks, f, a->k, x, sum);
                for (uint32_t i = 0; i < PN_AVX512_X && j + i < a->m; i++)
                    pn_x86_store_rows(a, r, PN_MIN(16u, a->rows - r), a->y_index ? a->y_index[j + i] : j + i,
                                      sum[i]);
            }
        }
    }
}

#endif /* PN_CPU_X64 */

#endif /* PN_CPU_AVX512_MANY_H */
