// Reading stored keys and values: 16 elements, where a sequence's tokens lie, copies as floats. See
// kernels.h for the rules of this file.
#pragma once

#include "attention.h"
#include "simd.h"

namespace tidemill::TIDEMILL_ISA {
namespace {

// ---- reading 16 stored elements

struct KvF32 {
  static constexpr KvType kType = KvType::f32;
  static constexpr int kBytes = 4;
  static TIDEMILL_INLINE f32x16 load(const std::byte* p) {
    return f32_load(reinterpret_cast<const float*>(p));
  }
};
struct KvF16 {
  static constexpr KvType kType = KvType::f16;
  static constexpr int kBytes = 2;
  static TIDEMILL_INLINE f32x16 load(const std::byte* p) {
    return f32_load_f16(reinterpret_cast<const std::uint16_t*>(p));
  }
};
struct KvQ8 {
  static constexpr KvType kType = KvType::q8_0;
  static constexpr int kBytes = 1;
  static TIDEMILL_INLINE f32x16 load(const std::byte* p) {
    return to_f32(i32_load_i8(reinterpret_cast<const std::uint8_t*>(p)));
  }
};

// ---- where a sequence's tokens lie

struct KvReader {
  const KvLayout& layout;
  const std::byte* layer;
  const std::int32_t* blocks;
  int kv_head;

  TIDEMILL_INLINE const std::byte* head(int position) const {
    return layer +
           static_cast<std::size_t>(blocks[position / layout.block_size]) * layout.block_bytes +
           static_cast<std::size_t>(kv_head) * layout.head_bytes;
  }
  // The whole tile of keys that starts at `position` (where tiles have 16 tokens).
  TIDEMILL_INLINE const std::byte* keys(int position, int bytes) const {
    return head(position) + static_cast<std::size_t>(position % layout.block_size) *
                                static_cast<std::size_t>(layout.head_dim * bytes);
  }
  TIDEMILL_INLINE const std::uint16_t* key_scales(int position) const {
    return reinterpret_cast<const std::uint16_t*>(head(position) + layout.key_scales) +
           position % layout.block_size;
  }
  TIDEMILL_INLINE const std::byte* values(int position, int bytes) const {
    return head(position) + layout.values +
           static_cast<std::size_t>(position % layout.block_size) *
               static_cast<std::size_t>(layout.padded_dim * bytes);
  }
};

// The scales of values [begin, end) in dimension group `group`, by position in the span.
void load_value_scales(const KvReader& kv, int begin, int end, int group, float* out) {
  const KvLayout& l = kv.layout;
  for (int position = begin / kKeyTile * kKeyTile; position < end; position += kKeyTile) {
    std::uint16_t halves[kKeyTile] = {};
    for (int i = 0; i < kKeyTile && position + i < end; i += l.tile) {
      const std::byte* scales = kv.head(position + i) + l.value_scales;
      std::memcpy(halves + i,
                  reinterpret_cast<const std::uint16_t*>(scales) + group * l.block_size +
                      (position + i) % l.block_size,
                  static_cast<std::size_t>(l.tile) * 2);
    }
    f32_store(out + position % kSpan, f32_load_f16(halves));
  }
}

// ---- copies as floats, for blocks of 8 tokens and for many rows

// 16 tokens from `position` as floats, [head_dim][16]; tokens from `end` on become zero. For
// blocks of 8 tokens, whose tiles are too short for the kernels.
template <class Kv>
void gather_keys(const KvReader& kv, int position, int end, float* out) {
  const KvLayout& l = kv.layout;
  for (int half = 0; half < 2; ++half) {
    const int first = position + half * 8;
    float* column = out + half * 8;
    if (first >= end) {
      for (int d = 0; d < l.head_dim; ++d) std::memset(column + d * kKeyTile, 0, 8 * sizeof(float));
      continue;
    }
    const std::byte* head = kv.head(first);
    for (int d = 0; d < l.head_dim; ++d) {
      std::byte raw[16 * Kv::kBytes] = {};
      std::memcpy(raw, head + d * 8 * Kv::kBytes, static_cast<std::size_t>(8 * Kv::kBytes));
      f32x16 value = Kv::load(raw);
      if constexpr (Kv::kType == KvType::q8_0) {
        std::uint16_t scales[16] = {};
        std::memcpy(scales, head + l.key_scales + (d / kKvGroup) * 16, 16);
        value = value * f32_load_f16(scales);
      }
      f32_store_n(column + d * kKeyTile, value, 8);
    }
  }
}

// One tile of stored keys as floats, [head_dim][16].
template <class Kv>
void convert_keys(const KvReader& kv, int position, float* out) {
  const int dim = kv.layout.head_dim;
  const std::byte* keys = kv.keys(position, Kv::kBytes);
  if constexpr (Kv::kType == KvType::q8_0) {
    const std::uint16_t* scales = kv.key_scales(position);
    for (int begin = 0; begin < dim; begin += kKvGroup, scales += kv.layout.block_size) {
      const f32x16 scale = f32_load_f16(scales);
      const int end = dim - begin < kKvGroup ? dim : begin + kKvGroup;
      for (int d = begin; d < end; ++d) {
        f32_store(out + d * kKeyTile, Kv::load(keys + d * kKeyTile * Kv::kBytes) * scale);
      }
    }
  } else {
    for (int d = 0; d < dim; ++d) {
      f32_store(out + d * kKeyTile, Kv::load(keys + d * kKeyTile * Kv::kBytes));
    }
  }
}

// Dimensions [d, d + 16 * kTiles) of values [begin, end) as floats, [kSpan][16 * kTiles], by
// position in the span. `scales` as load_value_scales gives them (q8_0).
template <class Kv, int kTiles>
void convert_values(const KvReader& kv, int begin, int end, int d, const float* scales,
                    float* out) {
  const KvLayout& l = kv.layout;
  for (int position = begin; position < end;) {
    const int block_end = position / l.block_size * l.block_size + l.block_size;
    const int stop = block_end < end ? block_end : end;
    const std::byte* value = kv.values(position, Kv::kBytes) + d * Kv::kBytes;
    for (; position < stop; ++position, value += l.padded_dim * Kv::kBytes) {
      const int at = position % kSpan;
#pragma GCC unroll 8
      for (int t = 0; t < kTiles; ++t) {
        f32x16 v = Kv::load(value + t * 16 * Kv::kBytes);
        if constexpr (Kv::kType == KvType::q8_0) v = v * f32_splat(scales[at]);
        f32_store(out + at * 16 * kTiles + t * 16, v);
      }
    }
  }
}

}  // namespace
}  // namespace tidemill::TIDEMILL_ISA
