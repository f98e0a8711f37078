// Where things lie in a packed tile of 16 rows: shared by packing (pack.cpp) and kernels.
//
// Quantised types. With G = cols / 32 groups a tile is
//
//     [ quants of group 0 | quants of group 1 | ... ] [ scales of group 0 | ... ] [ zeros to 64 ]
//
// For types with super-blocks of 256 columns the scale part goes [ super 0 | its 8 groups | super 1
// | ... ]. A *plane* below is 64 bytes: byte 4r + c belongs to row r and column c of a quad of four
// columns; group columns 4j .. 4j + 3 are quad j. So one plane lines up with 16 rows in vector lanes
// and four activations broadcast to all of them.
//
//     quants    4 bit    4 planes; plane j holds quad j in the low nibbles and quad j + 4 in the high
//               5 bit    the same, then 1 plane: bit j of a byte is bit 4 of quad j
//               6 bit    the same 4, then 2 planes: bits 2j, 2j + 1 of a byte of plane p are bits 4, 5
//                        of quad 4p + j
//               8 bit    8 planes, quad by quad
//     scales    16 values (one a row) of each item, item after item; f16 unless noted:
//
//     type     quants   per group                              per super-block   value
//     Q4_0     4 bit    d                                      -                 d (q - 8)
//     Q4_1     4 bit    d, m                                   -                 d q + m
//     Q5_0     5 bit    d                                      -                 d (q - 16)
//     Q5_1     5 bit    d, m                                   -                 d q + m
//     Q8_0     8 bit    d                                      -                 d q (q signed)
//     Q2_K     4 bit    byte s | m << 4 of columns 0-15, 16-31 d, dmin           d s q - dmin m
//     Q3_K     4 bit    int8 s of columns 0-15, 16-31          d                 d s (q - 4)
//     Q4_K     4 bit    byte s, byte m                         d, dmin           d s q - dmin m
//     Q5_K     5 bit    byte s, byte m                         d, dmin           d s q - dmin m
//     Q6_K     6 bit    int8 s of columns 0-15, 16-31          d                 d s (q - 32)
//     IQ4_NL   4 bit    d                                      -                 d table[q]
//     IQ4_XS   4 bit    int8 s                                 d                 d s table[q]
//     MXFP4    4 bit    byte e (E8M0)                          -                 2^(e-128) table[q]
//
// Float types: column after column, the 16 rows' values of it (F32, F16 or BF16 as stored).
#pragma once

#include <cstddef>

#include "tensor_type.h"

namespace tidemill {

struct TileLayout {
  int quant_bytes;  // per group of 32 columns (per column, for float types)
  int scale_bytes;  // per group
  int super_bytes;  // per super-block of 256 columns, in front of the scales of its groups
};

constexpr TileLayout tile_layout(TensorType type) {
  switch (type) {
    case TensorType::F32: return {64, 0, 0};
    case TensorType::F16: return {32, 0, 0};
    case TensorType::BF16: return {32, 0, 0};
    case TensorType::Q4_0: return {256, 32, 0};
    case TensorType::Q4_1: return {256, 64, 0};
    case TensorType::Q5_0: return {320, 32, 0};
    case TensorType::Q5_1: return {320, 64, 0};
    case TensorType::Q8_0: return {512, 32, 0};
    case TensorType::Q2_K: return {256, 32, 64};
    case TensorType::Q3_K: return {256, 32, 32};
    case TensorType::Q4_K: return {256, 32, 64};
    case TensorType::Q5_K: return {320, 32, 64};
    case TensorType::Q6_K: return {384, 32, 32};
    case TensorType::IQ4_NL: return {256, 32, 0};
    case TensorType::IQ4_XS: return {256, 16, 32};
    case TensorType::MXFP4: return {256, 16, 0};
  }
  return {0, 0, 0};
}

// Offset of group g's scales from the start of the scale part.
constexpr std::size_t scale_offset(TileLayout layout, int group) {
  const int supers = layout.super_bytes == 0 ? 0 : group / 8 + 1;
  return static_cast<std::size_t>(supers) * static_cast<std::size_t>(layout.super_bytes) +
         static_cast<std::size_t>(group) * static_cast<std::size_t>(layout.scale_bytes);
}

// Offset of the super-block scales that group g belongs to.
constexpr std::size_t super_offset(TileLayout layout, int group) {
  return scale_offset(layout, group / 8 * 8) - static_cast<std::size_t>(layout.super_bytes);
}

// The values that 4-bit codes stand for; MXFP4's are doubled to be integers (its scale is halved).
inline constexpr signed char kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr signed char kMxfp4Values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace tidemill
