/*
 * pn_tab_iq.h - grids and value tables of the quantised formats, packed for kernels.
 *
 * A grid is a list of points of 8 (or 4) small values; the file stores an index.  Entries are
 * integers whose byte j, counted from the least significant, is element j: on a little-endian
 * machine the memory of an entry is the elements in order.  IQ2 and IQ3 hold magnitudes (the signs
 * are stored apart), IQ1 holds int8 -1, 0, +1.
 *
 * Static tables behind accessors; hot loops fetch the pointer once.
 */
#ifndef PN_TAB_IQ_H
#define PN_TAB_IQ_H

#include "base/pn_base.h"

PN_INTERNAL const uint64_t *pn_grid_iq2_xxs(void);     /* [256] of 8: 8, 25, 43 */
PN_INTERNAL const uint64_t *pn_grid_iq2_xs(void);      /* [512] of 8 */
PN_INTERNAL const uint64_t *pn_grid_iq2_s(void);       /* [1024] of 8 */
PN_INTERNAL const uint32_t *pn_grid_iq3_xxs(void);     /* [256] of 4: 4, 12, 20, 28, 36, 44, 52, 62 */
PN_INTERNAL const uint32_t *pn_grid_iq3_s(void);       /* [512] of 4: 1, 3, ... 15 */
PN_INTERNAL const uint64_t *pn_grid_iq1(void);         /* [2048] of 8 int8: -1, 0, 1 */

/* [128] seven sign bits to eight: the eighth makes the number of ones even. */
PN_INTERNAL const uint8_t *pn_tab_ksigns(void);

/* [256] eight sign bits to eight int8: bit j set gives byte j = -1, else +1. */
PN_INTERNAL const uint64_t *pn_tab_signs(void);

/* [16] levels of IQ4_NL and IQ4_XS; [16] doubled E2M1 values of MXFP4 and NVFP4 (8..15 negative). */
PN_INTERNAL const int8_t *pn_tab_iq4nl(void);
PN_INTERNAL const int8_t *pn_tab_fp4(void);

#endif /* PN_TAB_IQ_H */
