// Rows of weights as float32 (embedding lookups): of a stored tensor, straight from the file's
// bytes, and of a packed matrix. Both are bit-equal to what the `gguf` Python package gives.
#pragma once

#include <cstdint>

#include "pack.h"
#include "tensor_type.h"

namespace tidemill {

// out[0..cols) = the weights of the stored row at `src`. cols is a whole number of blocks.
void dequantize_row(TensorType type, const std::uint8_t* src, int cols, float* out);

// out[0..cols) = the weights of one row of a packed matrix. Reads the whole tile that it lies in.
void dequantize_packed_row(const PackedMatrix& matrix, int row, float* out);

}  // namespace tidemill
