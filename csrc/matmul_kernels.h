// The matmul family's part of the function table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor_type.h"

namespace tidemill {

struct ActivationBlock;
struct Matmul;

struct MatmulKernels {
  // By TensorType number; null where the number is no type.
  void (*matmul[kTensorTypeEnd])(const Matmul&);
  // One row of `cols` floats (a multiple of 32) to cols / 32 blocks.
  void (*quantize)(const float* x, int cols, ActivationBlock* out);
  // By TensorType number: the bare products of that format (peak.inl.h), for `rounds` rounds; gives
  // how many those were.
  double (*peak[kTensorTypeEnd])(int rounds);
  // Reads memory, a multiple of 256 bytes, as fast as a thread can; what it gives means nothing.
  std::uint32_t (*read_memory)(const std::uint8_t* data, std::size_t bytes);
};

}  // namespace tidemill
