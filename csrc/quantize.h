// Activations as quantised matrices meet them: int8 in groups of 32 with a float32 scale.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidemill {

// Columns that share one activation scale; also the group of the packed weight layouts.
inline constexpr int kGroup = 32;

// 32 consecutive activations of one token.
//
// x[i] ~ scale * q[i], scale = max|x| / 127, q rounded to nearest (ties to even), |q| <= 127. The
// bound matters: the integer kernels prove the absence of 16-bit saturation from it.
// A group that holds a NaN or an infinity has scale = sum = NaN and q = 0, so that the fault shows
// in every output it reaches rather than in undefined arithmetic. A group whose largest magnitude is
// below 2^-100 is taken as zero (127 / max would overflow).
struct ActivationBlock {
  std::int8_t q[kGroup];
  float scale;
  float sum;            // scale * (sum_lo + sum_hi): what weight minima and offsets multiply
  std::int16_t sum_lo;  // sum of q[0..15]
  std::int16_t sum_hi;  // sum of q[16..31]
};
static_assert(sizeof(ActivationBlock) == 44);

// Blocks of one token of `cols` columns (cols is a multiple of 32).
constexpr int activation_blocks(int cols) { return cols / kGroup; }

}  // namespace tidemill
