// Quantising activations: see quantize.h for what a block means.
#pragma once

#include "quantize.h"
#include "simd.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

void quantize_row(const float* x, int cols, ActivationBlock* out) {
  const i32x16 magnitude_bits = i32_splat(0x7FFFFFFF);
  for (int b = 0; b < cols / kGroup; ++b, x += kGroup, ++out) {
    const f32x16 lo = f32_load(x);
    const f32x16 hi = f32_load(x + 16);
    // Bit patterns of magnitudes are ordered as integers, with infinities and NaNs on top.
    const std::int32_t bits =
        reduce_max(i32_max(as_i32(lo) & magnitude_bits, as_i32(hi) & magnitude_bits));
    float amax;
    std::memcpy(&amax, &bits, 4);
    if (bits >= 0x7F800000 || amax < 0x1p-100f) {
      const float scale = bits >= 0x7F800000 ? NAN : 0.0f;
      std::memset(out->q, 0, sizeof out->q);
      out->scale = scale;
      out->sum = scale;
      out->sum_lo = 0;
      out->sum_hi = 0;
      continue;
    }
    const f32x16 inverse = f32_splat(127.0f / amax);
    const i32x16 q_lo = round_to_i32(lo * inverse);
    const i32x16 q_hi = round_to_i32(hi * inverse);
    store_i8(out->q, q_lo);
    store_i8(out->q + 16, q_hi);
    const std::int32_t sum_lo = reduce_add(q_lo);
    const std::int32_t sum_hi = reduce_add(q_hi);
    out->scale = amax / 127.0f;
    out->sum = out->scale * static_cast<float>(sum_lo + sum_hi);
    out->sum_lo = static_cast<std::int16_t>(sum_lo);
    out->sum_hi = static_cast<std::int16_t>(sum_hi);
  }
}

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
