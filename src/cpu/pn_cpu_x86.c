/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_cpu_x86.c - which x86 is this?
 *
 * CPUID says what the processor has, XGETBV which registers the system saves: both must agree, as
 * a hypervisor or an old kernel may leave AVX or AVX-512 state switched off.  (Intel SDM volume 1,
 * sections 14.3, 15.2-15.4.)
 */
#include "cpu/pn_cpu_x86.h"

#if PN_CPU_X86
#include <cpuid.h>

static uint32_t x86_xcr0(void)
{
    uint32_t a, d;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    (void)d;
    return a;
}

PN_INTERNAL pn_x86_level pn_x86_probe(void)
{
    unsigned a, b, c, d, a7, b7 = 0, c7 = 0, d7;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSE4_1) || !(c & bit_SSSE3))
        return PN_X86_NONE;
    if (!(c & bit_OSXSAVE) || !(c & bit_AVX) || !(c & bit_FMA) || !(c & bit_F16C))
        return PN_X86_SSE41;
    uint32_t os = x86_xcr0();
    __get_cpuid_count(7, 0, &a7, &b7, &c7, &d7);
    if ((os & 6) != 6 || !(b7 & bit_AVX2))
        return PN_X86_SSE41;
    unsigned need = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    if ((os & 0xe6) != 0xe6 || (b7 & need) != need)
        return PN_X86_AVX2;
    return c7 & bit_AVX512VNNI ? PN_X86_AVX512VNNI : PN_X86_AVX512;
}

#else

PN_INTERNAL pn_x86_level pn_x86_probe(void) { return PN_X86_NONE; }

#endif
