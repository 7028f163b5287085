/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Recurrences, in plain C for every instruction set: a step spends less than a hundredth of its time here.
 */
#include "cpu/pn_cpu.h"
#include "num/pn_strict.h"

static inline float recur_tap(const pn_cpu_tap *t, size_t i)
{
    return !t->a ? 0 : t->b ? pn_mulf(t->a[i], t->b[i]) : t->a[i];
}

PN_INTERNAL void pn_cpu_tap_row(const pn_cpu_tap *t, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = recur_tap(t, i);
}

PN_INTERNAL void pn_cpu_short_conv(const pn_cpu_tap *tap, uint32_t taps, const float *w, const float *c, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++, w += taps) {
        float acc = pn_mulf(w[0], recur_tap(&tap[0], i));
        for (uint32_t k = 1; k < taps; k++)
            acc = pn_addf(acc, pn_mulf(w[k], recur_tap(&tap[k], i)));
        y[i] = pn_mulf(c[i], acc);
    }
}
