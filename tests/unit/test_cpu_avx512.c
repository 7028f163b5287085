/*
 * test_cpu_avx512.c - test_cpu.c once more, with the AVX-512 kernels over emulated intrinsics: what this
 * machine cannot run is checked bit for bit all the same.  (The kernels' files are included, not
 * linked: they have to be compiled against the emulation.)
 */
#include "emulated_avx512.h"

#include "../../src/cpu/pn_cpu_avx512.c"
#include "../../src/cpu/pn_cpu_avx512vnni.c"

#include "test_cpu.c"
