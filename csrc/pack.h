// Weight matrices repacked into tiles that the matmul kernels stream.
//
// A matrix (rows = out, cols = in) is cut into tiles of 16 rows; the last one is padded with zero
// rows. A tile is one contiguous run of `tile_bytes` bytes (a multiple of 64). Within a tile the
// columns go in order, in groups of 32; tile_layout.h describes the bytes of each type. The layout
// is the same on every instruction set and keeps every bit of information of the file: no weight is
// requantised, block scales stay f16 (or their integer sub-scales unpacked to bytes).
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor_type.h"

namespace tidemill {

inline constexpr int kTileRows = 16;

// Alignment of packed data, and of every tile within it.
inline constexpr std::size_t kTileAlign = 64;

// A view of packed weights; the memory belongs to whoever allocated it (an arena, a mapped file).
struct PackedMatrix {
  TensorType type = TensorType::F32;
  int rows = 0;
  int cols = 0;
  std::size_t tile_bytes = 0;
  const std::uint8_t* data = nullptr;  // aligned to kTileAlign

  int tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  std::size_t bytes() const { return static_cast<std::size_t>(tiles()) * tile_bytes; }
};

// Why (type, rows, cols) cannot be packed, or nullptr if it can: the type must be known, rows and
// cols positive, and cols a whole number of blocks.
const char* pack_error(TensorType type, std::int64_t rows, std::int64_t cols);

// Bytes of one packed tile / of the whole packed matrix. Preconditions: pack_error() is null.
std::size_t packed_tile_bytes(TensorType type, int cols);
std::size_t packed_bytes(TensorType type, int rows, int cols);

// The view of a matrix whose tiles lie (or will lie) at `data`.
PackedMatrix packed_view(TensorType type, int rows, int cols, const std::uint8_t* data);

// Pack tiles [tile_begin, tile_end) of the matrix stored row-major in the file's block format at
// `src` into `dst`, where `dst` is the start of the whole packed matrix (packed_bytes() bytes,
// aligned to kTileAlign). Ranges are independent, so that threads can share a matrix; no memory is
// allocated.
void pack_tiles(TensorType type, int rows, int cols, const std::uint8_t* src, std::uint8_t* dst,
                int tile_begin, int tile_end);

// A number that changes with every change of how any type is packed: of the packed bytes of made-up
// matrices. Files of packed weights are named by it, so that none outlives the layout it has.
std::uint64_t pack_fingerprint();

// Tells damaged bytes from sound ones, at about the speed of reading them; no defence against
// whoever means harm. Changing any eight aligned bytes always changes it.
std::uint64_t checksum(const std::uint8_t* data, std::size_t bytes);

}  // namespace tidemill
