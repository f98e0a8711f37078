// Storage types of weight tensors, with the numbers and block shapes of the GGUF format.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidemill {

enum class TensorType : std::int32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  IQ4_NL = 20,
  IQ4_XS = 23,
  BF16 = 30,
  MXFP4 = 39,
};

// One past the largest TensorType: the size of tables indexed by type.
inline constexpr int kTensorTypeEnd = 40;

// A block is the smallest stored unit: `weights` consecutive weights of a row in `bytes` bytes.
struct BlockShape {
  int weights;
  int bytes;
};

// {0, 0} for a number that is none of the types above.
constexpr BlockShape block_shape(TensorType type) {
  switch (type) {
    case TensorType::F32: return {1, 4};
    case TensorType::F16: return {1, 2};
    case TensorType::BF16: return {1, 2};
    case TensorType::Q4_0: return {32, 18};
    case TensorType::Q4_1: return {32, 20};
    case TensorType::Q5_0: return {32, 22};
    case TensorType::Q5_1: return {32, 24};
    case TensorType::Q8_0: return {32, 34};
    case TensorType::Q2_K: return {256, 84};
    case TensorType::Q3_K: return {256, 110};
    case TensorType::Q4_K: return {256, 144};
    case TensorType::Q5_K: return {256, 176};
    case TensorType::Q6_K: return {256, 210};
    case TensorType::IQ4_NL: return {32, 18};
    case TensorType::IQ4_XS: return {256, 136};
    case TensorType::MXFP4: return {32, 17};
  }
  return {0, 0};
}

constexpr bool is_float_type(TensorType type) {
  return type == TensorType::F32 || type == TensorType::F16 || type == TensorType::BF16;
}

// Bytes of one stored row of `cols` weights (a whole number of blocks).
constexpr std::size_t row_bytes(TensorType type, int cols) {
  const BlockShape shape = block_shape(type);
  return static_cast<std::size_t>(cols / shape.weights) * static_cast<std::size_t>(shape.bytes);
}

}  // namespace tidemill
