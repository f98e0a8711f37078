#include "pack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "blocks.h"
#include "tile_layout.h"

namespace tidemill {
namespace {

// Write one row's part of a group: word j of plane p is the row's four bytes there.
void put_word(std::uint8_t* plane, int row, std::uint32_t word) {
  std::memcpy(plane + 4 * row, &word, 4);
}

void put_u16(std::uint8_t* item, int row, std::uint16_t value) {
  std::memcpy(item + 2 * row, &value, 2);
}

template <TensorType type>
void put_codes(const GroupCodes& codes, int row, std::uint8_t* quants) {
  constexpr int quant_bytes = tile_layout(type).quant_bytes;
  if constexpr (quant_bytes == 512) {
    for (int j = 0; j < 8; ++j) put_word(quants + 64 * j, row, codes.word[j]);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    put_word(quants + 64 * j, row,
             (codes.word[j] & kLowNibbles) | (codes.word[j + 4] & kLowNibbles) << 4);
  }
  if constexpr (quant_bytes == 320) {
    std::uint32_t plane = 0;
    for (int j = 0; j < 8; ++j) plane |= (codes.word[j] >> 4 & 0x01010101u) << j;
    put_word(quants + 256, row, plane);
  } else if constexpr (quant_bytes == 384) {
    for (int p = 0; p < 2; ++p) {
      std::uint32_t plane = 0;
      for (int j = 0; j < 4; ++j) plane |= (codes.word[4 * p + j] >> 4 & 0x03030303u) << (2 * j);
      put_word(quants + 256 + 64 * p, row, plane);
    }
  }
}

// Scales of one group of one row; `group` counts within the block at `p`.
template <TensorType type>
void put_scales(const std::uint8_t* p, int group, int row, std::uint8_t* scales) {
  if constexpr (type == TensorType::Q4_0 || type == TensorType::Q5_0 || type == TensorType::Q8_0 ||
                type == TensorType::IQ4_NL) {
    put_u16(scales, row, load_u16(p));
  } else if constexpr (type == TensorType::Q4_1 || type == TensorType::Q5_1) {
    put_u16(scales, row, load_u16(p));
    put_u16(scales + 32, row, load_u16(p + 2));
  } else if constexpr (type == TensorType::MXFP4) {
    scales[row] = p[0];
  } else if constexpr (type == TensorType::Q4_K || type == TensorType::Q5_K) {
    const ScaleMin s = load_scale_min(p + 4, group);
    scales[row] = s.scale;
    scales[16 + row] = s.min;
  } else if constexpr (type == TensorType::Q2_K) {
    scales[row] = p[2 * group];
    scales[16 + row] = p[2 * group + 1];
  } else if constexpr (type == TensorType::Q3_K) {
    scales[row] = static_cast<std::uint8_t>(load_q3_scale(p + 96, 2 * group));
    scales[16 + row] = static_cast<std::uint8_t>(load_q3_scale(p + 96, 2 * group + 1));
  } else if constexpr (type == TensorType::Q6_K) {
    scales[row] = p[192 + 2 * group];
    scales[16 + row] = p[192 + 2 * group + 1];
  } else {
    static_assert(type == TensorType::IQ4_XS);
    scales[row] = static_cast<std::uint8_t>(load_iq4_scale(p, group));
  }
}

// The super-block's own scales.
template <TensorType type>
void put_super(const std::uint8_t* p, int row, std::uint8_t* super) {
  if constexpr (type == TensorType::Q4_K || type == TensorType::Q5_K) {
    put_u16(super, row, load_u16(p));
    put_u16(super + 32, row, load_u16(p + 2));
  } else if constexpr (type == TensorType::Q2_K) {
    put_u16(super, row, load_u16(p + 80));
    put_u16(super + 32, row, load_u16(p + 82));
  } else if constexpr (type == TensorType::Q3_K) {
    put_u16(super, row, load_u16(p + 108));
  } else if constexpr (type == TensorType::Q6_K) {
    put_u16(super, row, load_u16(p + 208));
  } else if constexpr (type == TensorType::IQ4_XS) {
    put_u16(super, row, load_u16(p));
  }
}

template <TensorType type>
void pack_quantized_tile(const std::uint8_t* src, int rows, int cols, std::uint8_t* tile) {
  constexpr TileLayout layout = tile_layout(type);
  constexpr BlockShape shape = block_shape(type);
  constexpr int groups_per_block = shape.weights / 32;
  const int groups = cols / 32;
  std::uint8_t* scales = tile + static_cast<std::size_t>(groups) * layout.quant_bytes;
  for (int row = 0; row < rows; ++row) {
    const std::uint8_t* block = src + static_cast<std::size_t>(row) * row_bytes(type, cols);
    for (int g = 0; g < groups; g += groups_per_block, block += shape.bytes) {
      if constexpr (layout.super_bytes != 0) {
        put_super<type>(block, row, scales + super_offset(layout, g));
      }
      for (int i = 0; i < groups_per_block; ++i) {
        put_codes<type>(load_codes<type>(block, i), row,
                        tile + static_cast<std::size_t>(g + i) * layout.quant_bytes);
        put_scales<type>(block, i, row, scales + scale_offset(layout, g + i));
      }
    }
  }
}

// Column after column. Stretches of columns keep the lines that are written in the cache.
template <int kBytes>
void pack_float_tile(const std::uint8_t* src, int rows, int cols, std::uint8_t* tile) {
  constexpr int kStretch = 64;
  for (int begin = 0; begin < cols; begin += kStretch) {
    const int end = std::min(begin + kStretch, cols);
    for (int row = 0; row < rows; ++row) {
      const std::uint8_t* from = src + static_cast<std::size_t>(row) * cols * kBytes;
      for (int c = begin; c < end; ++c) {
        std::memcpy(tile + (static_cast<std::size_t>(c) * kTileRows + row) * kBytes,
                    from + static_cast<std::size_t>(c) * kBytes, kBytes);
      }
    }
  }
}

void pack_tile(TensorType type, const std::uint8_t* src, int rows, int cols, std::uint8_t* tile) {
  switch (type) {
    case TensorType::F32: return pack_float_tile<4>(src, rows, cols, tile);
    case TensorType::F16: return pack_float_tile<2>(src, rows, cols, tile);
    case TensorType::BF16: return pack_float_tile<2>(src, rows, cols, tile);
    case TensorType::Q4_0: return pack_quantized_tile<TensorType::Q4_0>(src, rows, cols, tile);
    case TensorType::Q4_1: return pack_quantized_tile<TensorType::Q4_1>(src, rows, cols, tile);
    case TensorType::Q5_0: return pack_quantized_tile<TensorType::Q5_0>(src, rows, cols, tile);
    case TensorType::Q5_1: return pack_quantized_tile<TensorType::Q5_1>(src, rows, cols, tile);
    case TensorType::Q8_0: return pack_quantized_tile<TensorType::Q8_0>(src, rows, cols, tile);
    case TensorType::Q2_K: return pack_quantized_tile<TensorType::Q2_K>(src, rows, cols, tile);
    case TensorType::Q3_K: return pack_quantized_tile<TensorType::Q3_K>(src, rows, cols, tile);
    case TensorType::Q4_K: return pack_quantized_tile<TensorType::Q4_K>(src, rows, cols, tile);
    case TensorType::Q5_K: return pack_quantized_tile<TensorType::Q5_K>(src, rows, cols, tile);
    case TensorType::Q6_K: return pack_quantized_tile<TensorType::Q6_K>(src, rows, cols, tile);
    case TensorType::IQ4_NL: return pack_quantized_tile<TensorType::IQ4_NL>(src, rows, cols, tile);
    case TensorType::IQ4_XS: return pack_quantized_tile<TensorType::IQ4_XS>(src, rows, cols, tile);
    case TensorType::MXFP4: return pack_quantized_tile<TensorType::MXFP4>(src, rows, cols, tile);
  }
}

}  // namespace

const char* pack_error(TensorType type, std::int64_t rows, std::int64_t cols) {
  const BlockShape shape = block_shape(type);
  if (shape.weights == 0) return "unknown tensor type";
  // The limit keeps every offset within a row, and every count of tiles, an int.
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 1024;
  if (rows <= 0 || cols <= 0) return "a matrix needs at least one row and one column";
  if (rows > kMost * 64 || cols > kMost) return "a matrix this large is not supported";
  if (cols % shape.weights != 0) return "the columns are not a whole number of blocks of the type";
  return nullptr;
}

std::size_t packed_tile_bytes(TensorType type, int cols) {
  const TileLayout layout = tile_layout(type);
  const auto units = static_cast<std::size_t>(is_float_type(type) ? cols : cols / 32);
  std::size_t bytes = units * static_cast<std::size_t>(layout.quant_bytes + layout.scale_bytes);
  if (layout.super_bytes != 0) bytes += units / 8 * static_cast<std::size_t>(layout.super_bytes);
  return (bytes + kTileAlign - 1) / kTileAlign * kTileAlign;
}

std::size_t packed_bytes(TensorType type, int rows, int cols) {
  return static_cast<std::size_t>((rows + kTileRows - 1) / kTileRows) *
         packed_tile_bytes(type, cols);
}

PackedMatrix packed_view(TensorType type, int rows, int cols, const std::uint8_t* data) {
  return {type, rows, cols, packed_tile_bytes(type, cols), data};
}

void pack_tiles(TensorType type, int rows, int cols, const std::uint8_t* src, std::uint8_t* dst,
                int tile_begin, int tile_end) {
  const std::size_t stored_row = row_bytes(type, cols);
  const std::size_t tile_bytes = packed_tile_bytes(type, cols);
  for (int t = tile_begin; t < tile_end; ++t) {
    const int first = t * kTileRows;
    const int count = std::min(kTileRows, rows - first);
    std::uint8_t* tile = dst + static_cast<std::size_t>(t) * tile_bytes;
    // Padding rows are zeros, and so are the bytes behind the scales.
    if (count < kTileRows) {
      std::memset(tile, 0, tile_bytes);
    } else if (tile_bytes >= kTileAlign) {
      std::memset(tile + tile_bytes - kTileAlign, 0, kTileAlign);
    }
    pack_tile(type, src + static_cast<std::size_t>(first) * stored_row, count, cols, tile);
  }
}

std::uint64_t pack_fingerprint() {
  // More rows than a tile has, and more columns than a super-block.
  constexpr int kRows = kTileRows + 4;
  constexpr int kCols = 512;
  std::uint64_t fingerprint = 0;
  for (int number = 0; number < kTensorTypeEnd; ++number) {
    const auto type = static_cast<TensorType>(number);
    if (block_shape(type).weights == 0) continue;
    std::vector<std::uint8_t> stored(kRows * row_bytes(type, kCols));
    std::uint32_t state = 1;
    for (std::uint8_t& byte : stored) {
      state = state * 1664525u + 1013904223u;
      byte = static_cast<std::uint8_t>(state >> 24);
    }
    std::vector<std::uint8_t> packed(packed_bytes(type, kRows, kCols));
    pack_tiles(type, kRows, kCols, stored.data(), packed.data(), 0, 2);
    const std::uint64_t sum = checksum(packed.data(), packed.size());
    fingerprint = std::rotl(fingerprint, 7) * 0x9E3779B97F4A7C15u + sum;
  }
  return fingerprint;
}

std::uint64_t checksum(const std::uint8_t* data, std::size_t bytes) {
  // Each lane is a chain of steps that are one-to-one, both in the state and in the word.
  constexpr std::size_t kLanes = 8;
  constexpr std::uint64_t kPrime = 0x9E3779B185EBCA87u;
  const auto step = [](std::uint64_t state, std::uint64_t word) {
    return std::rotl(state ^ word, 29) * kPrime;
  };
  std::uint64_t lanes[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = kPrime * (i + 1);
  std::size_t at = 0;
  for (; bytes - at >= 8 * kLanes; at += 8 * kLanes) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      std::uint64_t word;
      std::memcpy(&word, data + at + 8 * i, 8);
      lanes[i] = step(lanes[i], word);
    }
  }
  std::uint8_t tail[8 * kLanes] = {};
  if (bytes > at) std::memcpy(tail, data + at, bytes - at);
  std::uint64_t sum = bytes;
  for (std::size_t i = 0; i < kLanes; ++i) {
    std::uint64_t word;
    std::memcpy(&word, tail + 8 * i, 8);
    sum = step(sum, step(lanes[i], word));
  }
  return sum ^ sum >> 32;
}

}  // namespace tidemill
