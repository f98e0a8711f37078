// Compiled without fused multiply-adds: the results are bit-equal to those of NumPy.
#include "dequantize.h"

#include <cstddef>

#include "blocks.h"
#include "tile_layout.h"

namespace tidemill {
namespace {

// A group of 32 weights taken apart. Weight i, of half h = i / 16, is
//   (d * scale[h]) * value(code i) - m * min[h]
// where types without a minimum, or scales of their own per group, leave them as they are here.
struct Group {
  GroupCodes codes;
  float d = 0.0f;
  float m = 0.0f;
  int scale[2] = {1, 1};
  int min[2] = {0, 0};
};

// The number that a code stands for.
template <TensorType type>
int value(int code) {
  switch (type) {
    case TensorType::Q4_0: return code - 8;
    case TensorType::Q5_0: return code - 16;
    case TensorType::Q8_0: return static_cast<std::int8_t>(code);
    case TensorType::Q3_K: return code - 4;
    case TensorType::Q6_K: return code - 32;
    case TensorType::IQ4_NL:
    case TensorType::IQ4_XS: return kIq4Values[code];
    case TensorType::MXFP4: return kMxfp4Values[code];
    default: return code;
  }
}

template <TensorType type>
void write_group(const Group& group, float* out) {
  for (int h = 0; h < 2; ++h) {
    const float scale = group.d * static_cast<float>(group.scale[h]);
    const float min = group.m * static_cast<float>(group.min[h]);
    for (int i = 16 * h; i < 16 * h + 16; ++i) {
      out[i] = scale * static_cast<float>(value<type>(group.codes[i])) - min;
    }
  }
}

// ---- stored rows

// Group `g` of the block at `p`.
template <TensorType type>
Group stored_group(const std::uint8_t* p, int g) {
  Group group{load_codes<type>(p, g)};
  if constexpr (type == TensorType::Q4_1 || type == TensorType::Q5_1) {
    group.d = load_f16(p);
    group.m = load_f16(p + 2);
    group.min[0] = group.min[1] = -1;
  } else if constexpr (type == TensorType::Q2_K) {
    group.d = load_f16(p + 80);
    group.m = load_f16(p + 82);
    for (int h = 0; h < 2; ++h) {
      group.scale[h] = p[2 * g + h] & 15;
      group.min[h] = p[2 * g + h] >> 4;
    }
  } else if constexpr (type == TensorType::Q3_K) {
    group.d = load_f16(p + 108);
    for (int h = 0; h < 2; ++h) group.scale[h] = load_q3_scale(p + 96, 2 * g + h);
  } else if constexpr (type == TensorType::Q4_K || type == TensorType::Q5_K) {
    const ScaleMin s = load_scale_min(p + 4, g);
    group.d = load_f16(p);
    group.m = load_f16(p + 2);
    group.scale[0] = group.scale[1] = s.scale;
    group.min[0] = group.min[1] = s.min;
  } else if constexpr (type == TensorType::Q6_K) {
    group.d = load_f16(p + 208);
    for (int h = 0; h < 2; ++h) {
      group.scale[h] = static_cast<std::int8_t>(p[192 + 2 * g + h]);
    }
  } else if constexpr (type == TensorType::MXFP4) {
    group.d = half_e8m0(p[0]);
  } else {
    group.d = load_f16(p);
    if constexpr (type == TensorType::IQ4_XS) {
      group.scale[0] = group.scale[1] = load_iq4_scale(p, g);
    }
  }
  return group;
}

// ---- packed rows (tile_layout.h)

template <TensorType type>
GroupCodes packed_codes(const std::uint8_t* quants, int row) {
  constexpr int quant_bytes = tile_layout(type).quant_bytes;
  const auto plane = [&](int j) { return load_word(quants + 64 * j + 4 * row); };
  GroupCodes codes;
  if constexpr (quant_bytes == 512) {
    for (int j = 0; j < 8; ++j) codes.word[j] = plane(j);
    return codes;
  }
  for (int j = 0; j < 4; ++j) {
    const std::uint32_t word = plane(j);
    codes.word[j] = word & kLowNibbles;
    codes.word[j + 4] = word >> 4 & kLowNibbles;
  }
  if constexpr (quant_bytes == 320) {
    for (int j = 0; j < 8; ++j) codes.word[j] |= (plane(4) >> j & 0x01010101u) << 4;
  } else if constexpr (quant_bytes == 384) {
    for (int j = 0; j < 8; ++j) {
      codes.word[j] |= (plane(4 + j / 4) >> (2 * (j % 4)) & 0x03030303u) << 4;
    }
  }
  return codes;
}

// Group `g` of one row of a tile of `groups` groups.
template <TensorType type>
Group packed_group(const std::uint8_t* tile, int groups, int g, int row) {
  constexpr TileLayout layout = tile_layout(type);
  const std::uint8_t* scales = tile + static_cast<std::size_t>(groups) * layout.quant_bytes;
  const std::uint8_t* own = scales + scale_offset(layout, g);
  const std::uint8_t* super = scales + super_offset(layout, g);
  Group group{packed_codes<type>(tile + static_cast<std::size_t>(g) * layout.quant_bytes, row)};
  if constexpr (type == TensorType::Q4_1 || type == TensorType::Q5_1) {
    group.d = load_f16(own + 2 * row);
    group.m = load_f16(own + 32 + 2 * row);
    group.min[0] = group.min[1] = -1;
  } else if constexpr (type == TensorType::Q2_K) {
    group.d = load_f16(super + 2 * row);
    group.m = load_f16(super + 32 + 2 * row);
    for (int h = 0; h < 2; ++h) {
      group.scale[h] = own[16 * h + row] & 15;
      group.min[h] = own[16 * h + row] >> 4;
    }
  } else if constexpr (type == TensorType::Q3_K || type == TensorType::Q6_K) {
    group.d = load_f16(super + 2 * row);
    for (int h = 0; h < 2; ++h) group.scale[h] = static_cast<std::int8_t>(own[16 * h + row]);
  } else if constexpr (type == TensorType::Q4_K || type == TensorType::Q5_K) {
    group.d = load_f16(super + 2 * row);
    group.m = load_f16(super + 32 + 2 * row);
    group.scale[0] = group.scale[1] = own[row];
    group.min[0] = group.min[1] = own[16 + row];
  } else if constexpr (type == TensorType::IQ4_XS) {
    group.d = load_f16(super + 2 * row);
    group.scale[0] = group.scale[1] = static_cast<std::int8_t>(own[row]);
  } else if constexpr (type == TensorType::MXFP4) {
    group.d = half_e8m0(own[row]);
  } else {
    group.d = load_f16(own + 2 * row);
  }
  return group;
}

// ---- whole rows

template <TensorType type>
float load_float(const std::uint8_t* p) {
  if constexpr (type == TensorType::F32) return bits_to_float(load_word(p));
  if constexpr (type == TensorType::F16) return load_f16(p);
  return bf16_to_float(load_u16(p));
}

template <TensorType type>
void stored_row(const std::uint8_t* src, int cols, float* out) {
  constexpr BlockShape shape = block_shape(type);
  if constexpr (is_float_type(type)) {
    for (int c = 0; c < cols; ++c) {
      out[c] = load_float<type>(src + static_cast<std::size_t>(c) * shape.bytes);
    }
  } else {
    for (int c = 0; c < cols; c += 32) {
      const auto block = static_cast<std::size_t>(c / shape.weights);
      write_group<type>(stored_group<type>(src + block * shape.bytes, c % shape.weights / 32),
                        out + c);
    }
  }
}

template <TensorType type>
void packed_row(const std::uint8_t* tile, int row, int cols, float* out) {
  if constexpr (is_float_type(type)) {
    constexpr std::size_t size = block_shape(type).bytes;
    for (int c = 0; c < cols; ++c) {
      out[c] = load_float<type>(tile + (static_cast<std::size_t>(c) * kTileRows + row) * size);
    }
  } else {
    for (int g = 0; g < cols / 32; ++g) {
      write_group<type>(packed_group<type>(tile, cols / 32, g, row), out + 32 * g);
    }
  }
}

// f.operator()<type>() for a type known at run time.
template <class F>
void with_type(TensorType type, const F& f) {
  switch (type) {
    case TensorType::F32: return f.template operator()<TensorType::F32>();
    case TensorType::F16: return f.template operator()<TensorType::F16>();
    case TensorType::BF16: return f.template operator()<TensorType::BF16>();
    case TensorType::Q4_0: return f.template operator()<TensorType::Q4_0>();
    case TensorType::Q4_1: return f.template operator()<TensorType::Q4_1>();
    case TensorType::Q5_0: return f.template operator()<TensorType::Q5_0>();
    case TensorType::Q5_1: return f.template operator()<TensorType::Q5_1>();
    case TensorType::Q8_0: return f.template operator()<TensorType::Q8_0>();
    case TensorType::Q2_K: return f.template operator()<TensorType::Q2_K>();
    case TensorType::Q3_K: return f.template operator()<TensorType::Q3_K>();
    case TensorType::Q4_K: return f.template operator()<TensorType::Q4_K>();
    case TensorType::Q5_K: return f.template operator()<TensorType::Q5_K>();
    case TensorType::Q6_K: return f.template operator()<TensorType::Q6_K>();
    case TensorType::IQ4_NL: return f.template operator()<TensorType::IQ4_NL>();
    case TensorType::IQ4_XS: return f.template operator()<TensorType::IQ4_XS>();
    case TensorType::MXFP4: return f.template operator()<TensorType::MXFP4>();
  }
}

}  // namespace

void dequantize_row(TensorType type, const std::uint8_t* src, int cols, float* out) {
  with_type(type, [&]<TensorType kType>() { stored_row<kType>(src, cols, out); });
}

void dequantize_packed_row(const PackedMatrix& matrix, int row, float* out) {
  const std::uint8_t* tile =
      matrix.data + static_cast<std::size_t>(row / kTileRows) * matrix.tile_bytes;
  with_type(matrix.type, [&]<TensorType kType>() {
    packed_row<kType>(tile, row % kTileRows, matrix.cols, out);
  });
}

}  // namespace tidemill
