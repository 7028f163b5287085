/*
 * pn_math.h - our own exp, log, tanh, sin, cos, pow: results do not depend on the libc.
 *
 * Single-precision kernels are polynomials in fused multiply-adds with a fixed order, so the vector
 * versions in cpu/ can follow them step by step; where a target lacks FMA, pn_fmaf is exact
 * software and slow (or see cpu/).  Stated errors are maxima measured over the stated range.
 */
#ifndef PN_MATH_H
#define PN_MATH_H

#include "base/pn_base.h"

/* a * b + c rounded once, on any machine. */
PN_INTERNAL float pn_fmaf(float a, float b, float c);

/* e^x.  Error <= 1 ulp on [-87.3, 88.7]; below -87.3365 gives 0, above 88.7228 +inf; NaN stays. */
PN_INTERNAL float pn_expf(float x);

/* tanh(x), error <= 2 ulp; 1/(1+e^-x); x * sigmoid(x).  The last two: <= 3 ulp while the result is
 * above 1e-37; x / e^-x gives 0 where e^-x overflows (x < -88.72). */
PN_INTERNAL float pn_tanhf(float x);
PN_INTERNAL float pn_sigmoidf(float x);
PN_INTERNAL float pn_siluf(float x);

/* The tanh form, x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), computed as
 * x / (1 + e^(-2u)), which is the same function without the cancellation for negative x. */
PN_INTERNAL float pn_geluf(float x);

/* Natural logarithm, error <= 1 ulp for all positive floats; 0 gives -inf, negative NaN. */
PN_INTERNAL float pn_logf(float x);

/* Double precision, for tables made once (RoPE angles, samplers): error <= 2 ulp.
 * pn_sincos reduces its argument exactly up to |x| < 2^30; from 2^52 on, and for NaN, it gives NaN. */
PN_INTERNAL double pn_exp(double x);
PN_INTERNAL double pn_log(double x);
PN_INTERNAL double pn_pow(double base, double exponent);   /* base > 0 */
PN_INTERNAL void pn_sincos(double x, double *s, double *c);

#endif /* PN_MATH_H */
