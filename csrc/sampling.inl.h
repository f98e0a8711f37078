// Passes over a row of logits. See sampling_kernels.h, and kernels.h for the rules.
#pragma once

#include "sampling_kernels.h"
#include "simd.h"
#include "vmath.inl.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

// One block as four vectors; a short last one is filled up with `filler`.
struct LogitBlock {
  f32x16 a, b, c, d;

  TIDEMILL_INLINE LogitBlock(const float* x, std::int32_t n, float filler) {
    float filled[kLogitBlock];
    if (n < kLogitBlock) {
      for (std::int32_t i = 0; i < kLogitBlock; ++i) filled[i] = i < n ? x[i] : filler;
      x = filled;
    }
    a = f32_load(x);
    b = f32_load(x + 16);
    c = f32_load(x + 32);
    d = f32_load(x + 48);
  }
};

float logit_maxima(const float* x, std::int32_t n, float* maxima, bool* finite) {
  const f32x16 zero = f32_zero();
  f32x16 poison = zero;  // x * 0 is 0, or NaN where x is not finite
  f32x16 maximum = f32_splat(x[0]);
  for (std::int32_t i = 0; i < n; i += kLogitBlock) {
    // Filled up with its own first value, which changes neither the maximum nor the finiteness.
    const LogitBlock block(x + i, n - i, x[i]);
    poison = poison + (block.a * zero + block.b * zero) + (block.c * zero + block.d * zero);
    const f32x16 best = max(max(block.a, block.b), max(block.c, block.d));
    maxima[i / kLogitBlock] = reduce_max(best);
    maximum = max(maximum, best);
  }
  *finite = reduce_add(poison) == 0.0f;
  return reduce_max(maximum);
}

double logit_sums(const float* x, std::int32_t n, float maximum, float scale, double* sums) {
  const f32x16 maxima = f32_splat(maximum);
  const f32x16 scales = f32_splat(scale);
  double total = 0.0;
  for (std::int32_t i = 0; i < n; i += kLogitBlock) {
    const LogitBlock block(x + i, n - i, -__builtin_inff());
    const f32x16 left = exp((block.a - maxima) * scales) + exp((block.b - maxima) * scales);
    const f32x16 right = exp((block.c - maxima) * scales) + exp((block.d - maxima) * scales);
    const double sum = static_cast<double>(reduce_add(left + right));
    sums[i / kLogitBlock] = sum;
    total += sum;
  }
  return total;
}

void exponentials(const float* x, std::int32_t n, float* out) {
  std::int32_t i = 0;
  for (; i + 16 <= n; i += 16) f32_store(out + i, exp(f32_load(x + i)));
  if (i < n) f32_store_n(out + i, exp(f32_load_n(x + i, n - i)), n - i);
}

std::int32_t count_before(const float* x, std::int32_t n, float bound, std::int32_t position) {
  std::int32_t count = 0;
  for (std::int32_t i = 0; i < n; ++i) count += x[i] > bound ? 1 : 0;
  for (std::int32_t i = 0; i < position; ++i) count += x[i] == bound ? 1 : 0;
  return count;
}

constexpr SamplingKernels sampling_kernels() {
  return {logit_maxima, logit_sums, exponentials, count_before};
}

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
