/*
 * pn_strict.h - float arithmetic that the compiler may not fuse or keep in wider registers.
 *
 * Encoders promise bytes.  gcc contracts a * b + c into one fused operation wherever the target has
 * one (AArch64 always, x86 with -mfma or after inlining into such a function), even across
 * statements, and ignores `#pragma STDC FP_CONTRACT`; x87 computes in 80 bits.  An empty asm that
 * claims to change the value ends both: the result exists, rounded, before anything may use it.
 * It costs no instruction except on x87, where it is a store and a load.
 *
 * Rule: products that feed a sum go through pn_mulf; sums whose bits matter through pn_addf/pn_subf
 * (only x87 needs those).
 */
#ifndef PN_STRICT_H
#define PN_STRICT_H

#include "base/pn_base.h"

#if (defined(__GNUC__) || defined(__clang__)) && (defined(__x86_64__) || defined(__SSE2_MATH__))
#define PN_STRICT_ASM "+x"
#elif (defined(__GNUC__) || defined(__clang__)) && defined(__aarch64__)
#define PN_STRICT_ASM "+w"
#elif defined(__GNUC__) || defined(__clang__)
#define PN_STRICT_ASM "+m"
#endif

/* x itself, rounded to its type. */
static inline float pn_keepf(float x)
{
#ifdef PN_STRICT_ASM
    __asm__("" : PN_STRICT_ASM(x));
    return x;
#else
    volatile float v = x;
    return v;
#endif
}

static inline double pn_keepd(double x)
{
#ifdef PN_STRICT_ASM
    __asm__("" : PN_STRICT_ASM(x));
    return x;
#else
    volatile double v = x;
    return v;
#endif
}

static inline float pn_mulf(float a, float b) { return pn_keepf(a * b); }
static inline float pn_addf(float a, float b) { return pn_keepf(a + b); }
static inline float pn_subf(float a, float b) { return pn_keepf(a - b); }
static inline float pn_divf(float a, float b) { return pn_keepf(a / b); }
static inline double pn_muld(double a, double b) { return pn_keepd(a * b); }
static inline double pn_addd(double a, double b) { return pn_keepd(a + b); }
static inline double pn_subd(double a, double b) { return pn_keepd(a - b); }
static inline double pn_divd(double a, double b) { return pn_keepd(a / b); }

/* Nearest integer, ties to even, clamped to lo..hi (inside +-2^22); NaN gives lo. */
static inline int32_t pn_rne_clamp(float x, int32_t lo, int32_t hi)
{
    if (!(x > (float)lo))
        return lo;
    if (x >= (float)hi)
        return hi;
    float t = pn_addf(x, 12582912.0f);      /* 1.5 * 2^23: one unit in the last place is 1 */
    return (int32_t)(pn_f32_bits(t) & 0x7fffff) - 0x400000;
}

/* Nearest integer, ties away from zero, clamped; NaN gives lo.  (Adding 0.5 and truncating would
 * turn the float below 0.5 into 1.) */
static inline int32_t pn_rha_clamp(float x, int32_t lo, int32_t hi)
{
    if (!(x > (float)lo))
        return lo;
    if (x >= (float)hi)
        return hi;
    int32_t n = (int32_t)x;
    float rest = x - (float)n;              /* exact */
    return rest >= 0.5f ? n + 1 : rest <= -0.5f ? n - 1 : n;
}

/* Toward zero, clamped; NaN gives lo. */
static inline int32_t pn_trunc_clamp(float x, int32_t lo, int32_t hi)
{
    if (!(x > (float)lo))
        return lo;
    return x >= (float)hi ? hi : (int32_t)x;
}

#undef PN_STRICT_ASM

#endif /* PN_STRICT_H */
