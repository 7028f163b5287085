/*
 * pn_cpu_ref.h - ref's functions by name, for instruction sets that have no better one.
 */
#ifndef PN_CPU_REF_H
#define PN_CPU_REF_H

#include "cpu/pn_cpu_unpack.h"

PN_INTERNAL void pn_ref_quant(pn_act_kind kind, const float *x, void *dst, size_t k);
PN_INTERNAL void pn_ref_add(const float *a, const float *b, float *y, size_t n);
PN_INTERNAL void pn_ref_axpy(float s, const float *x, float *y, size_t n);
PN_INTERNAL void pn_ref_scale(const float *x, float s, float *y, size_t n);
PN_INTERNAL void pn_ref_glu(pn_glu_kind kind, const float *gate, const float *up, float *y, size_t n);
PN_INTERNAL void pn_ref_softcap(const float *x, float cap, float *y, size_t n);
PN_INTERNAL void pn_ref_rope(float *head, const float *cs, uint32_t n_rot, bool neox);
PN_INTERNAL void pn_ref_f16_from_f32(const float *x, uint16_t *y, size_t n);
PN_INTERNAL void pn_ref_softmax(float *x, size_t n);

#endif /* PN_CPU_REF_H */
