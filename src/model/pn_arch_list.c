/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * The families of this build.
 */
#include "model/pn_desc.h"


PN_INTERNAL const pn_arch *pn_arch_at(size_t i)
{
    switch (i) {
    case 0: return pn_arch_llama();
    case 1: return pn_arch_qwen();
    case 2: return pn_arch_phi3();
    case 3: return pn_arch_gemma();
    case 4: return pn_arch_lfm2();
    default: return NULL;
    }
}
