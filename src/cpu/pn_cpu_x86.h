/*
 * pn_cpu_x86.h - what the x86 kernels share: targets, probe, and weights in groups of 8 rows.
 *
 * All knowledge about compilers' target attributes and about which x86 has what is here and in
 * pn_cpu_x86.c.  Functions with vector types in their signatures carry the same target as their
 * callers.
 *
 * Two layouts of unpacked weights:
 *   oct    8 rows x one chunk, row after row, as the unpackers write it.  Small enough for the
 *          first-level cache; decode multiplies straight from it.
 *   panel  the same transposed: dword [e / 4][row] holds 4 codes of a row, so that the lanes of a
 *          vector are rows.  Prefill runs all activation rows over a panel.  AVX-512 has 16 rows.
 * Codes are unsigned (w + off) where pn_cpu_form has cmax < 255, int8 otherwise.
 */
#ifndef PN_CPU_X86_H
#define PN_CPU_X86_H

#include "cpu/pn_cpu_unpack.h"

#if PN_ENABLE_SIMD && (defined(__GNUC__) || defined(__clang__)) && (defined(__x86_64__) || defined(__i386__))
#define PN_CPU_X86 1
#else
#define PN_CPU_X86 0
#endif
#if PN_CPU_X86 && defined(__x86_64__)
#define PN_CPU_X64 1            /* the AVX kernels want 16 registers and 64-bit moves */
#else
#define PN_CPU_X64 0
#endif

#if PN_CPU_X86
#include <immintrin.h>
#define PN_TARGET(t) __attribute__((target(t)))
#define PN_SSE41 PN_TARGET("sse4.1,ssse3")
#define PN_AVX2 PN_TARGET("avx2,fma,f16c")
#define PN_AVX512 PN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#define PN_AVX2_INLINE PN_AVX2 static inline __attribute__((always_inline))
#endif

/* Levels this machine and its operating system can run. */
typedef enum pn_x86_level {
    PN_X86_NONE = 0,
    PN_X86_SSE41,
    PN_X86_AVX2,            /* with FMA and F16C */
    PN_X86_AVX512,          /* F BW VL DQ */
    PN_X86_AVX512VNNI
} pn_x86_level;

PN_INTERNAL pn_x86_level pn_x86_probe(void);

typedef struct pn_x86_oct {
    _Alignas(64) uint8_t q[8][PN_CPU_CHUNK];
    int16_t sc[8][16];      /* B256: scales per 16 */
    int16_t cr[8][16];      /* B256: mins, or scale * off: factors of the sums of q */
    float d[16][8];         /* [block][row] factors; B256: d[0]; B16: per 16 */
    float m[8][8];          /* [block][row] factors of the sums of q (has_min) */
} pn_x86_oct;

typedef struct pn_x86_panel {
    _Alignas(64) uint8_t q[PN_CPU_CHUNK / 4][8][4];
    union {
        struct {
            int16_t sc[16][8][2];       /* each scale twice */
            int16_t cr[8][8][2];        /* pairs of neighbouring factors */
            float d[8], m[8];
        } b256;
        struct {
            float d[8][8], m[8][8];
        } b32;
        float d16[16][8];               /* B16 */
    } u;
} pn_x86_panel;

/* A panel as vectors of 32 bytes: dword i of 8 rows is vector i, the factors follow. */
enum {
    PN_X86_PANEL_SC = PN_CPU_CHUNK / 4, PN_X86_PANEL_CR = PN_X86_PANEL_SC + 16, PN_X86_PANEL_D = PN_X86_PANEL_CR + 8,
    PN_X86_PANEL_M,
    PN_X86_PANEL_D32 = PN_CPU_CHUNK / 4, PN_X86_PANEL_M32 = PN_X86_PANEL_D32 + 8
};

_Static_assert(offsetof(pn_x86_panel, u.b256.sc) == 32 * PN_X86_PANEL_SC && offsetof(pn_x86_panel, u.b256.cr) == 32 * PN_X86_PANEL_CR &&
               offsetof(pn_x86_panel, u.b256.d) == 32 * PN_X86_PANEL_D && offsetof(pn_x86_panel, u.b256.m) == 32 * PN_X86_PANEL_M &&
               offsetof(pn_x86_panel, u.b32.d) == 32 * PN_X86_PANEL_D32 && offsetof(pn_x86_panel, u.b32.m) == 32 * PN_X86_PANEL_M32,
               "the fillers count vectors");

/* Two panels, vector by vector, for AVX-512: 16 rows in the lanes.  int8 codes are w + 128 here: all are unsigned. */
typedef struct pn_x86_panel16 {
    _Alignas(64) uint8_t q[PN_CPU_CHUNK / 4][16][4];
    union {
        struct {
            int16_t sc[16][16][2], cr[8][16][2];
            float d[16], m[16];
        } b256;
        struct {
            float d[8][16], m[8][16];
        } b32;
        float d16[16][16];
    } u;
} pn_x86_panel16;

_Static_assert(offsetof(pn_x86_panel16, u.b256.m) == 64 * PN_X86_PANEL_M && offsetof(pn_x86_panel16, u.b32.m) == 64 * PN_X86_PANEL_M32,
               "every vector twice");

/* Chunk [n elements] of 8 rows; p[r] points at the chunk's first block in row r. */
typedef void (*pn_x86_unpack_fn)(const uint8_t *const p[8], size_t n, pn_x86_oct *o);

/* The same, to a panel, or (wide) to half of a panel16, 32 bytes from its start for the upper half. */
typedef void (*pn_x86_panel_fn)(const uint8_t *const p[8], size_t n, uint8_t *o);

#if PN_CPU_X64
/* AVX2's, used by the AVX-512 files too.  A quantised type has one of the two, the other is NULL: formats whose
 * codes are nibbles or bit planes go straight to a panel, the others by way of an oct. */
PN_INTERNAL pn_x86_panel_fn pn_x86_panel_of(uint32_t dtype, bool wide);
PN_INTERNAL pn_x86_unpack_fn pn_x86_unpack_of(uint32_t dtype);

/* Oct to panel. */
PN_INTERNAL void pn_x86_transpose(const pn_x86_oct *o, pn_cpu_form f, uint8_t *panel, bool wide);
#endif

/* Bytes of a row that hold PN_CPU_CHUNK elements. */
static inline size_t pn_x86_chunk_bytes(uint32_t dtype)
{
    const pn_dtype_info *t = pn_dtype_get(dtype);
    return (size_t)PN_CPU_CHUNK / t->block_elems * t->block_bytes;
}

/* Byte `at` of rows r0 .. r0+8 of the weights (rows past the end repeat the last one).  One after another, and not added
 * to afterwards: gcc would make vectors of them, which cannot be loaded before all of their halves are stored. */
static inline void pn_x86_row_pointers(const pn_cpu_mm *a, uint32_t r0, size_t at, const uint8_t *p[8])
{
    const uint8_t *row = (const uint8_t *)a->w + PN_MIN(r0, a->rows - 1) * a->w_stride + at;
    for (uint32_t r = 0; r < 8; r++) {
        p[r] = row;
        row += r0 + r + 1 < a->rows ? a->w_stride : 0;
    }
}

static inline const uint8_t *pn_x86_x_row(const pn_cpu_mm *a, uint32_t j)
{
    return (const uint8_t *)a->x + (size_t)(a->x_index ? a->x_index[j] : j) * a->x_stride;
}

#endif /* PN_CPU_X86_H */
