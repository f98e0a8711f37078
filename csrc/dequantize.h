// Rows of a stored tensor as float32, straight from the file's bytes (embedding lookups).
#pragma once

#include <cstdint>

#include "tensor_type.h"

namespace tidemill {

// out[0..cols) = the weights of the stored row at `src`. cols is a whole number of blocks. Results
// are bit-equal to those of the `gguf` Python package for every type.
void dequantize_row(TensorType type, const std::uint8_t* src, int cols, float* out);

}  // namespace tidemill
