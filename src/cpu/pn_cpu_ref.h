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
PN_INTERNAL void pn_ref_kv_encode(uint32_t type, const float *x, void *dst, size_t n);
PN_INTERNAL void pn_ref_kv_decode(uint32_t type, const void *src, float *y, size_t n);
PN_INTERNAL void pn_ref_hadamard(float *x, size_t n, size_t b);
PN_INTERNAL void pn_ref_softmax(float *x, size_t n);

#endif /* PN_CPU_REF_H */
