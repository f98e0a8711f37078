// Products of activations and packed weights: out = x @ W^T (+ bias).
//
// Quantised types meet int8 activations (quantize.h), float types meet float32 ones. Everything
// here runs on the calling thread and allocates nothing: a worker of a thread team computes a range
// of row tiles for all tokens of the call, and disjoint ranges (or disjoint token sets) may run at
// the same time.
//
// Batch invariance: the bits of one output depend on its weight row and its token only; not on how
// many tokens a call has, which they are, or how the tiles are split. Each output is one
// chain of float32 operations over the groups of 32 columns (over the columns, for float types) in
// order; everything below a group is exact integer arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"
#include "pack.h"
#include "quantize.h"

namespace tidemill {

// Whether a matrix of this type multiplies ActivationBlocks (true) or float32 rows (false).
constexpr bool needs_quantized_input(TensorType type) { return !is_float_type(type); }

// One product. Token i of the call reads input row x_rows[i] (or i) and writes output row
// out_rows[i] (or i): the tokens of one expert are given by index, nothing is gathered.
struct Matmul {
  PackedMatrix weights;
  int tile_begin = 0;
  int tile_end = 0;  // tiles [tile_begin, tile_end), i.e. rows [16 * tile_begin, 16 * tile_end)
  int tokens = 0;

  // The input: blocks if needs_quantized_input(weights.type), else floats. Strides are in elements
  // (blocks or floats) from one input row to the next.
  const ActivationBlock* blocks = nullptr;
  const float* floats = nullptr;
  std::ptrdiff_t x_stride = 0;
  const std::int32_t* x_rows = nullptr;

  // out[out_row * out_stride + r] for weight row r. Point `out` at a column offset to lay several
  // matrices (merged Q/K/V of different types) side by side.
  float* out = nullptr;
  std::ptrdiff_t out_stride = 0;
  const std::int32_t* out_rows = nullptr;

  const float* bias = nullptr;  // (rows,), added last; or null
};

// Run one product on this thread.
inline void matmul(const KernelTable& kernels, const Matmul& product) {
  kernels.matmul.matmul[static_cast<int>(product.weights.type)](product);
}

// Quantise `rows` rows of `cols` floats (cols a multiple of 32) to `out`, activation_blocks(cols)
// blocks a row, rows one after another. Threads may share the rows of a batch.
inline void quantize_rows(const KernelTable& kernels, const float* x, std::ptrdiff_t x_stride,
                          int rows, int cols, ActivationBlock* out) {
  for (int r = 0; r < rows; ++r) {
    kernels.matmul.quantize(x + r * x_stride, cols,
                            out + static_cast<std::ptrdiff_t>(r) * activation_blocks(cols));
  }
}

}  // namespace tidemill
