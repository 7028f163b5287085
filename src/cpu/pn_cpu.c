/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu.c - which kernels run here, and the facts all of them share.
 *
 * Every instruction set is a file with an accessor that returns NULL where compiler, machine or
 * system lack it, so the choice is the first accessor in a list that answers.  The list is ordered
 * by speed on machines that have several: AVX-512 with VNNI (Ice Lake 2019, Zen 4 2022), AVX-512
 * (Skylake-X 2017), AVX2 (Haswell 2013, Zen 2017), SSE4.1 (Penryn 2008), and on ARM dot products
 * (Cortex-A55/A75 2018, M1) before plain NEON.
 *
 * The pointer to the chosen table is stored atomically.  Two threads may choose at once and store
 * the same value; pn_cpu_force is meant for a process's start.
 */
#include "cpu/pn_cpu_unpack.h"

#include "base/pn_err.h"

#include <stdatomic.h>

typedef const pn_cpu_kernels *(*cpu_accessor)(void);

static _Atomic(const pn_cpu_kernels *) cpu_chosen;

/* The i-th accessor of the list, best first; NULL past the end. */
static cpu_accessor cpu_accessor_at(size_t i)
{
    static const cpu_accessor list[] = {
        pn_cpu_avx512vnni, pn_cpu_avx512, pn_cpu_avx2, pn_cpu_sse41,
        pn_cpu_dotprod, pn_cpu_neon, pn_cpu_ref,
    };
    return i < PN_COUNT_OF(list) ? list[i] : NULL;
}

/* The i-th table this machine can run; NULL past the end. */
static const pn_cpu_kernels *cpu_usable_at(size_t i)
{
    cpu_accessor get;
    for (size_t j = 0; (get = cpu_accessor_at(j)) != NULL; j++) {
        const pn_cpu_kernels *k = get();
        if (k && i-- == 0)
            return k;
    }
    return NULL;
}

PN_INTERNAL const pn_cpu_kernels *pn_cpu_get(void)
{
    const pn_cpu_kernels *k = atomic_load_explicit(&cpu_chosen, memory_order_acquire);
    if (!k) {
        k = cpu_usable_at(0);
        atomic_store_explicit(&cpu_chosen, k, memory_order_release);
    }
    return k;
}

PN_API const char *pn_cpu_isa(void) { return pn_cpu_get()->name; }

PN_API const char *pn_cpu_isa_at(size_t i)
{
    const pn_cpu_kernels *k = cpu_usable_at(i);
    return k ? k->name : NULL;
}

PN_API pn_status pn_cpu_force(const char *isa, pn_err *err)
{
    const pn_cpu_kernels *k = NULL;
    if (!isa)
        return pn_fail(err, PN_E_INVALID, "no instruction set named (NULL)");
    for (size_t i = 0; (k = cpu_usable_at(i)) != NULL; i++) {
        if (strcmp(k->name, isa) == 0) {
            atomic_store_explicit(&cpu_chosen, k, memory_order_release);
            return PN_OK;
        }
    }
    return pn_fail(err, PN_E_UNSUPPORTED,
                   "instruction set \"%s\": not one this machine and build can run (best here: %s)",
                   isa, pn_cpu_isa_at(0));
}

PN_INTERNAL pn_act_kind pn_cpu_act_kind(uint32_t dtype)
{
    switch (pn_cpu_form_of(dtype).family) {
    case PN_CPU_FLOAT: return PN_ACT_F32;
    case PN_CPU_B256: return PN_ACT_Q8_256;
    default: return PN_ACT_Q8_32;
    }
}

/* A panel is 8 (AVX-512: 16) weight rows of unpacked codes and scales, 11.25 bytes an element and
 * 8 rows, or 6 rows of floats: at most 24 bytes an element of k.  Where rows are short, room for
 * several panels lets a group of activation rows stay in the first-level cache; 192 KiB of panels
 * leave an L2 cache of 256 KiB some air. */
PN_INTERNAL size_t pn_cpu_tile_bytes(uint32_t k)
{
    size_t one = 24 * pn_align_up((uint64_t)k, PN_CPU_CHUNK), many = PN_MIN(4 * one, (size_t)192 << 10);
    return PN_MAX(one, many) + 4096;
}
