// exp, tanh, erfc and the activations made of them, on 16 lanes. See kernels.h for the rules.
//
// Relative errors are a few units in the last place (about 3e-7 at worst) over the range that
// matters, tested against double precision. NaN goes in, NaN comes out.
#pragma once

#include "simd.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

// e^x. Exactly 1 at 0, exactly 0 below -87.33 (so also at -inf), and level above 88.
// Cody-Waite reduction to |r| <= ln(2) / 2, minimax polynomial of the Cephes library's expf.
TIDEMILL_INLINE f32x16 exp(f32x16 x) {
  // The order of min's and max's operands keeps a NaN.
  const f32x16 limited = max(f32_splat(-87.33f), min(f32_splat(88.0f), x));
  const i32x16 n = round_to_i32(limited * f32_splat(1.44269504088896341f));
  const f32x16 nf = to_f32(n);
  f32x16 r = fma(nf, f32_splat(-0.693359375f), limited);
  r = fma(nf, f32_splat(2.12194440e-4f), r);
  f32x16 p = f32_splat(1.9875691500e-4f);
  p = fma(p, r, f32_splat(1.3981999507e-3f));
  p = fma(p, r, f32_splat(8.3334519073e-3f));
  p = fma(p, r, f32_splat(4.1665795894e-2f));
  p = fma(p, r, f32_splat(1.6666665459e-1f));
  p = fma(p, r, f32_splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + f32_splat(1.0f);
  const f32x16 power = as_f32(shift_left<23>(n + i32_splat(127)));
  return select(less(x, f32_splat(-87.33f)), f32_zero(), p * power);
}

// e^x for x <= 0, in two thirds of the time: what softmax needs for every score. Exactly 0 below
// -86.5 (so also at -inf), relative error below 2e-7 near 0 and below 1e-6 at the far end.
TIDEMILL_INLINE f32x16 exp_of_negative(f32x16 x) {
  const f32x16 limited = max(f32_splat(-86.5f), x);  // this order keeps a NaN
  // Adding 1.5 * 2^23 leaves the nearest integer n in the low bits of the sum.
  const f32x16 magic = f32_splat(12582912.0f);
  const f32x16 shifted = fma(limited, f32_splat(1.44269504088896341f), magic);
  const f32x16 r = fma(shifted - magic, f32_splat(-0.693147180559945309f), limited);
  // Least largest relative error over |r| <= ln(2) / 2 with a constant term of 1 (9e-8).
  f32x16 p = f32_splat(8.290295489e-3f);
  p = fma(p, r, f32_splat(4.189803079e-2f));
  p = fma(p, r, f32_splat(1.666763723e-1f));
  p = fma(p, r, f32_splat(4.999914765e-1f));
  p = fma(p, r, f32_splat(9.999997020e-1f));
  p = fma(p, r, f32_splat(1.0f));
  // n >= -125, so that adding it to the exponent stays a normal number.
  const f32x16 power = as_f32(as_i32(p) + shift_left<23>(as_i32(shifted)));
  return select(less(x, f32_splat(-86.5f)), f32_zero(), power);
}

// 2^x for x <= 0, or above by a rounding error: softmax over scores in units of ln(2). Level below
// -125, at 2^-125 (so also at -inf), relative error below 2e-7. The polynomial is that of
// exp_of_negative; here the reduction is exact.
TIDEMILL_INLINE f32x16 exp2_of_negative(f32x16 x) {
  const f32x16 limited = max(f32_splat(-125.0f), x);  // this order keeps a NaN
  const f32x16 magic = f32_splat(12582912.0f);
  const f32x16 shifted = limited + magic;
  const f32x16 r = limited - (shifted - magic);
  f32x16 p = f32_splat(1.326469643e-03f);
  p = fma(p, r, f32_splat(9.671536068e-03f));
  p = fma(p, r, f32_splat(5.550734088e-02f));
  p = fma(p, r, f32_splat(2.402224118e-01f));
  p = fma(p, r, f32_splat(6.931469740e-01f));
  p = fma(p, r, f32_splat(1.0f));
  return as_f32(as_i32(p) + shift_left<23>(as_i32(shifted)));
}

// 1 / (1 + e^-x)
TIDEMILL_INLINE f32x16 sigmoid(f32x16 x) {
  return f32_splat(1.0f) / (f32_splat(1.0f) + exp(f32_zero() - x));
}

// Odd polynomial (Cephes tanhf) below 0.625, 1 - 2 / (e^2|x| + 1) above.
TIDEMILL_INLINE f32x16 tanh(f32x16 x) {
  const f32x16 size = abs(x);
  const f32x16 z = x * x;
  f32x16 p = f32_splat(-5.70498872745e-3f);
  p = fma(p, z, f32_splat(2.06390887954e-2f));
  p = fma(p, z, f32_splat(-5.37397155531e-2f));
  p = fma(p, z, f32_splat(1.33314422036e-1f));
  p = fma(p, z, f32_splat(-3.33332819422e-1f));
  const f32x16 near = fma(p * z, x, x);
  const f32x16 one = f32_splat(1.0f);
  const f32x16 far = one - f32_splat(2.0f) / (exp(size + size) + one);
  const f32x16 signed_far = select(less(x, f32_zero()), f32_zero() - far, far);
  return select(less(size, f32_splat(0.625f)), near, signed_far);
}

// erfc(z) for z >= 0: Chebyshev fit of Numerical Recipes (erfcc), relative error below 1.2e-7.
TIDEMILL_INLINE f32x16 erfc(f32x16 z) {
  const f32x16 one = f32_splat(1.0f);
  const f32x16 t = one / fma(z, f32_splat(0.5f), one);
  f32x16 p = f32_splat(0.17087277f);
  p = fma(p, t, f32_splat(-0.82215223f));
  p = fma(p, t, f32_splat(1.48851587f));
  p = fma(p, t, f32_splat(-1.13520398f));
  p = fma(p, t, f32_splat(0.27886807f));
  p = fma(p, t, f32_splat(-0.18628806f));
  p = fma(p, t, f32_splat(0.09678418f));
  p = fma(p, t, f32_splat(0.37409196f));
  p = fma(p, t, f32_splat(1.00002368f));
  p = fma(p, t, f32_splat(-1.26551223f));
  return t * exp(p - z * z);
}

struct Silu {
  static TIDEMILL_INLINE f32x16 apply(f32x16 x) {
    return x / (f32_splat(1.0f) + exp(f32_zero() - x));
  }
};

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
struct GeluTanh {
  static TIDEMILL_INLINE f32x16 apply(f32x16 x) {
    const f32x16 cubic = fma(x * x * x, f32_splat(0.044715f), x);
    return x * sigmoid(cubic * f32_splat(1.5957691216057308f));
  }
};

// 0.5 x erfc(-x / sqrt(2)), from erfc of the positive side on either side of zero
struct Gelu {
  static TIDEMILL_INLINE f32x16 apply(f32x16 x) {
    const f32x16 half = f32_splat(0.5f) * erfc(abs(x) * f32_splat(0.70710678118654752f));
    return x * select(less(x, f32_zero()), half, f32_splat(1.0f) - half);
  }
};

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
