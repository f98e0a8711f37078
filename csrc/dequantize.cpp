// Compiled without fused multiply-adds: the results are bit-equal to those of NumPy.
#include "dequantize.h"

#include <cstring>

#include "blocks.h"
#include "tile_layout.h"

namespace tidemill {
namespace {

// One group of 32 weights of the block at `p`.
template <TensorType type>
void dequantize_group(const std::uint8_t* p, int group, float* out) {
  const GroupCodes codes = load_codes<type>(p, group);
  if constexpr (type == TensorType::Q4_0 || type == TensorType::Q5_0) {
    const float d = load_f16(p);
    const int offset = type == TensorType::Q4_0 ? 8 : 16;
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(codes[i] - offset);
  } else if constexpr (type == TensorType::Q4_1 || type == TensorType::Q5_1) {
    const float d = load_f16(p);
    const float m = load_f16(p + 2);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(codes[i]) + m;
  } else if constexpr (type == TensorType::Q8_0) {
    const float d = load_f16(p);
    for (int i = 0; i < 32; ++i) {
      out[i] = d * static_cast<float>(static_cast<std::int8_t>(codes[i]));
    }
  } else if constexpr (type == TensorType::Q2_K) {
    const float d = load_f16(p + 80);
    const float dmin = load_f16(p + 82);
    for (int i = 0; i < 32; ++i) {
      const std::uint8_t s = p[2 * group + i / 16];
      const float scale = d * static_cast<float>(s & 15);
      const float min = dmin * static_cast<float>(s >> 4);
      out[i] = scale * static_cast<float>(codes[i]) - min;
    }
  } else if constexpr (type == TensorType::Q3_K) {
    const float d = load_f16(p + 108);
    for (int i = 0; i < 32; ++i) {
      const float scale = d * static_cast<float>(load_q3_scale(p + 96, 2 * group + i / 16));
      out[i] = scale * static_cast<float>(codes[i] - 4);
    }
  } else if constexpr (type == TensorType::Q4_K || type == TensorType::Q5_K) {
    const ScaleMin s = load_scale_min(p + 4, group);
    const float scale = load_f16(p) * static_cast<float>(s.scale);
    const float min = load_f16(p + 2) * static_cast<float>(s.min);
    for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(codes[i]) - min;
  } else if constexpr (type == TensorType::Q6_K) {
    const float d = load_f16(p + 208);
    for (int i = 0; i < 32; ++i) {
      const auto s = static_cast<std::int8_t>(p[192 + 2 * group + i / 16]);
      out[i] = d * static_cast<float>(s) * static_cast<float>(codes[i] - 32);
    }
  } else if constexpr (type == TensorType::MXFP4) {
    const float d = half_e8m0(p[0]);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(kMxfp4Values[codes[i]]);
  } else {
    float d = load_f16(p);
    if constexpr (type == TensorType::IQ4_XS) d *= static_cast<float>(load_iq4_scale(p, group));
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(kIq4Values[codes[i]]);
  }
}

template <TensorType type>
void dequantize_blocks(const std::uint8_t* src, int cols, float* out) {
  constexpr BlockShape shape = block_shape(type);
  for (int c = 0; c < cols; c += 32) {
    dequantize_group<type>(src + static_cast<std::size_t>(c / shape.weights) * shape.bytes,
                           c % shape.weights / 32, out + c);
  }
}

}  // namespace

void dequantize_row(TensorType type, const std::uint8_t* src, int cols, float* out) {
  switch (type) {
    case TensorType::F32: std::memcpy(out, src, static_cast<std::size_t>(cols) * 4); return;
    case TensorType::F16:
      for (int c = 0; c < cols; ++c) out[c] = load_f16(src + 2 * static_cast<std::size_t>(c));
      return;
    case TensorType::BF16:
      for (int c = 0; c < cols; ++c) {
        out[c] = bf16_to_float(load_u16(src + 2 * static_cast<std::size_t>(c)));
      }
      return;
    case TensorType::Q4_0: return dequantize_blocks<TensorType::Q4_0>(src, cols, out);
    case TensorType::Q4_1: return dequantize_blocks<TensorType::Q4_1>(src, cols, out);
    case TensorType::Q5_0: return dequantize_blocks<TensorType::Q5_0>(src, cols, out);
    case TensorType::Q5_1: return dequantize_blocks<TensorType::Q5_1>(src, cols, out);
    case TensorType::Q8_0: return dequantize_blocks<TensorType::Q8_0>(src, cols, out);
    case TensorType::Q2_K: return dequantize_blocks<TensorType::Q2_K>(src, cols, out);
    case TensorType::Q3_K: return dequantize_blocks<TensorType::Q3_K>(src, cols, out);
    case TensorType::Q4_K: return dequantize_blocks<TensorType::Q4_K>(src, cols, out);
    case TensorType::Q5_K: return dequantize_blocks<TensorType::Q5_K>(src, cols, out);
    case TensorType::Q6_K: return dequantize_blocks<TensorType::Q6_K>(src, cols, out);
    case TensorType::IQ4_NL: return dequantize_blocks<TensorType::IQ4_NL>(src, cols, out);
    case TensorType::IQ4_XS: return dequantize_blocks<TensorType::IQ4_XS>(src, cols, out);
    case TensorType::MXFP4: return dequantize_blocks<TensorType::MXFP4>(src, cols, out);
  }
}

}  // namespace tidemill
