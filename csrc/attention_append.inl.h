// Storing keys and values in paged KV blocks. attention.h describes the layout; see kernels.h for the
// rules of this file.
#pragma once

#include "attention.h"
#include "simd.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

TIDEMILL_INLINE f32x16 limit_half(f32x16 x) {
  return max(f32_splat(-65504.0f), min(f32_splat(65504.0f), x));
}

float half_to_float(std::uint16_t half) {
  std::uint16_t lanes[16] = {half};
  float out[16];
  f32_store(out, f32_load_f16(lanes));
  return out[0];
}

// `n` floats to int8 with one float16 scale; q = 0 where the scale vanishes.
std::uint16_t quantize_group(const float* x, int n, std::int8_t* q) {
  const f32x16 a = f32_load_n(x, n < 16 ? n : 16);
  const f32x16 b = n > 16 ? f32_load_n(x + 16, n - 16) : f32_zero();
  const float largest = reduce_max(max(abs(a), abs(b)));
  std::uint16_t halves[16];
  f32_store_f16(halves, limit_half(f32_splat(largest / 127.0f)));
  const float scale = half_to_float(halves[0]);
  const f32x16 inverse = f32_splat(scale > 0.0f ? 1.0f / scale : 0.0f);
  const i32x16 low = i32_splat(-127);
  const auto rounded = [&](f32x16 v) {
    return i32_max(low, round_to_i32(min(f32_splat(127.0f), v * inverse)));
  };
  store_i8(q, rounded(a));
  store_i8(q + 16, rounded(b));
  return halves[0];
}

void attention_append(const KvLayout& l, const float* k, const float* v, std::byte* head,
                      int slot) {
  const int dim = l.head_dim;
  const std::size_t row = static_cast<std::size_t>(slot) * static_cast<std::size_t>(l.padded_dim);
  // Element d of the token's key lies at key[d * tile].
  const std::size_t key = static_cast<std::size_t>(slot / l.tile) *
                              static_cast<std::size_t>(dim * l.tile) +
                          static_cast<std::size_t>(slot % l.tile);
  if (l.type == KvType::f32) {
    float* keys = reinterpret_cast<float*>(head) + key;
    for (int d = 0; d < dim; ++d) keys[d * l.tile] = k[d];
    std::memcpy(reinterpret_cast<float*>(head + l.values) + row, v,
                static_cast<std::size_t>(dim) * 4);
    return;
  }
  if (l.type == KvType::f16) {
    std::uint16_t* keys = reinterpret_cast<std::uint16_t*>(head) + key;
    std::uint16_t* values = reinterpret_cast<std::uint16_t*>(head + l.values) + row;
    for (int d = 0; d < dim; d += 16) {
      const int n = dim - d < 16 ? dim - d : 16;
      std::uint16_t halves[16];
      f32_store_f16(halves, limit_half(f32_load_n(k + d, n)));
      for (int i = 0; i < n; ++i) keys[(d + i) * l.tile] = halves[i];
      f32_store_f16(values + d, limit_half(f32_load_n(v + d, n)));
    }
    return;
  }
  std::int8_t* keys = reinterpret_cast<std::int8_t*>(head) + key;
  std::int8_t* values = reinterpret_cast<std::int8_t*>(head + l.values) + row;
  std::uint16_t* key_scales = reinterpret_cast<std::uint16_t*>(head + l.key_scales) + slot;
  std::uint16_t* value_scales = reinterpret_cast<std::uint16_t*>(head + l.value_scales) + slot;
  for (int g = 0; g < l.groups; ++g) {
    const int d = g * kKvGroup;
    const int n = dim - d < kKvGroup ? dim - d : kKvGroup;
    std::int8_t q[kKvGroup];
    key_scales[g * l.block_size] = quantize_group(k + d, n, q);
    for (int i = 0; i < n; ++i) keys[(d + i) * l.tile] = q[i];
    value_scales[g * l.block_size] = quantize_group(v + d, n, q);
    std::memcpy(values + d, q, static_cast<std::size_t>(n));
  }
}

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
