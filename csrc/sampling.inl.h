// Passes over a row of logits; see sampling_kernels.h. Compiled once per instruction set.
//
// Written with the compilers' generic vectors of 16 lanes, which become one to four registers of
// any instruction set: the order of additions is the same on all of them.

#pragma once

#include <cstdint>
#include <cstring>

#include "sampling_kernels.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

constexpr std::int32_t kSampleLanes = 16;
using SampleF = float __attribute__((vector_size(4 * kSampleLanes)));
using SampleI = std::int32_t __attribute__((vector_size(4 * kSampleLanes)));

// exp(x) for x <= 0 to about 1e-7 relative; 0 below -87, where float32 runs out of normal numbers.
// Cody-Waite reduction by ln 2 and the degree-5 polynomial of Cephes' expf. In place, because a
// vector argument would depend on the instruction set's calling convention.
inline __attribute__((always_inline)) void exp_nonpositive(SampleF& x) {
  const SampleF low = SampleF{} - 87.0F;
  const SampleI vanishes = x < low;
  const SampleF clamped = vanishes ? low : x;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const SampleF n = (clamped * 1.44269504088896341F + kRound) - kRound;
  const SampleF r = (clamped - n * 0.693359375F) + n * 2.12194440e-4F;
  SampleF p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const SampleI bits = (__builtin_convertvector(n, SampleI) + 127) << 23;
  SampleF power;
  std::memcpy(&power, &bits, sizeof(power));
  x = vanishes ? SampleF{} : p * power;
}

// Block `b` of the row as four vectors; a short last block is filled up with `filler`.
struct LogitBlock {
  SampleF v[kLogitBlock / kSampleLanes];

  inline __attribute__((always_inline)) LogitBlock(const float* x, std::int32_t n, std::int32_t b,
                                                   float filler) {
    const std::int32_t first = b * kLogitBlock;
    if (n - first >= kLogitBlock) {
      std::memcpy(v, x + first, sizeof(v));
    } else {
      for (SampleF& part : v) part = SampleF{} + filler;
      std::memcpy(v, x + first, sizeof(float) * static_cast<std::size_t>(n - first));
    }
  }
};

inline std::int32_t blocks_of(std::int32_t n) { return (n + kLogitBlock - 1) / kLogitBlock; }

float block_maxima(const float* x, std::int32_t n, float* maxima, bool* finite) {
  SampleF poison{};  // x * 0 is 0, or NaN where x is not finite
  float maximum = -__builtin_inff();
  for (std::int32_t b = 0; b < blocks_of(n); ++b) {
    // Filled up with its own first value, which changes neither the maximum nor the finiteness.
    const LogitBlock block(x, n, b, x[b * kLogitBlock]);
    SampleF best = block.v[0];
    poison += block.v[0] * 0.0F;
    for (int i = 1; i < kLogitBlock / kSampleLanes; ++i) {
      best = block.v[i] > best ? block.v[i] : best;
      poison += block.v[i] * 0.0F;
    }
    float lanes[kSampleLanes];
    std::memcpy(lanes, &best, sizeof(lanes));
    for (int width = kSampleLanes / 2; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) {
        lanes[j] = lanes[j + width] > lanes[j] ? lanes[j + width] : lanes[j];
      }
    }
    maxima[b] = lanes[0];
    maximum = lanes[0] > maximum ? lanes[0] : maximum;
  }
  float sum = 0.0F;
  for (int j = 0; j < kSampleLanes; ++j) sum += poison[j];
  *finite = sum == 0.0F;
  return maximum;
}

double block_sums(const float* x, std::int32_t n, float maximum, float scale, double* sums) {
  double total = 0.0;
  for (std::int32_t b = 0; b < blocks_of(n); ++b) {
    LogitBlock block(x, n, b, -__builtin_inff());
    SampleF sum{};
    for (SampleF& part : block.v) {
      part = (part - maximum) * scale;
      exp_nonpositive(part);
      sum += part;
    }
    float lanes[kSampleLanes];
    std::memcpy(lanes, &sum, sizeof(lanes));
    for (int width = kSampleLanes / 2; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
    }
    sums[b] = lanes[0];
    total += lanes[0];
  }
  return total;
}

std::int32_t count_before(const float* x, std::int32_t n, float bound, std::int32_t position) {
  std::int32_t count = 0;
  for (std::int32_t i = 0; i < n; ++i) count += x[i] > bound ? 1 : 0;
  for (std::int32_t i = 0; i < position; ++i) count += x[i] == bound ? 1 : 0;
  return count;
}

constexpr SamplingKernels sampling_kernels() { return {block_maxima, block_sums, count_before}; }

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
