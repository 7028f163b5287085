/*
 * pn_cpu_unpack.h - weights as integers: what the canonical order multiplies.
 *
 * Every quantised format is codes w (int8), factors in f32 and, for blocks of 256, integer scales
 * for 16 elements each; see pn_cpu.h for how they combine.  A chunk is up to 256 elements of a row.
 * pn_cpu_unpack is portable and plain: `ref` is defined by it, and an ISA may use it for formats
 * it has no code for.  Vector units want unsigned codes: w + off lies in 0..cmax of pn_cpu_form.
 */
#ifndef PN_CPU_UNPACK_H
#define PN_CPU_UNPACK_H

#include "cpu/pn_cpu.h"

enum { PN_CPU_CHUNK = 256 };

typedef enum pn_cpu_family {
    PN_CPU_FLOAT = 0,       /* F32 F16 BF16 */
    PN_CPU_B16,             /* NVFP4: a factor per 16 */
    PN_CPU_B32,             /* a factor per 32 */
    PN_CPU_B256             /* a factor per 256, integer scales per 16 */
} pn_cpu_family;

typedef struct pn_cpu_form {
    uint8_t family;         /* pn_cpu_family */
    uint8_t has_min;
    uint8_t off;            /* w + off >= 0 */
    uint8_t cmax;           /* largest w + off; 255: all of int8, off 128 */
} pn_cpu_form;

typedef struct pn_cpu_chunk {
    int8_t w[PN_CPU_CHUNK];
    int16_t sc[16];         /* B256: scale of 16 elements */
    int16_t mn[16];         /* B256 with has_min: coefficient of the sum of q over 16 */
    float d[16];            /* B256: d[0]; B32: d[block]; B16: d[sub-block] */
    float m[8];             /* has_min: signed factor of msum, m[0] or m[block] */
} pn_cpu_chunk;

/* Family FLOAT for what is not quantised (also for what is no weight). */
PN_INTERNAL pn_cpu_form pn_cpu_form_of(uint32_t dtype);

/* Elements e0 .. e0+n of `row`, e0 a multiple of 256, n <= 256 a multiple of the format's block. */
PN_INTERNAL void pn_cpu_unpack(uint32_t dtype, const void *row, size_t e0, size_t n, pn_cpu_chunk *c);

#endif /* PN_CPU_UNPACK_H */
