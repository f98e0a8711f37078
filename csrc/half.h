// Conversions between float32 and the 16-bit float formats, in plain C++.
//
// Always inlined: kernel units that are compiled for newer instruction sets include this too, and
// an out-of-line copy from one of them must never serve an older CPU.
#pragma once

#include <cstdint>
#include <cstring>

namespace tidemill {

[[gnu::always_inline]] inline float bits_to_float(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

[[gnu::always_inline]] inline std::uint32_t float_to_bits(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

[[gnu::always_inline]] inline float bf16_to_float(std::uint16_t b) {
  return bits_to_float(static_cast<std::uint32_t>(b) << 16);
}

// IEEE 754 binary16 to binary32, exact. Signalling NaNs become quiet, as F16C and NEON do.
[[gnu::always_inline]] inline float f16_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(h & 0x7FFFu) << 13;
  if (magnitude >= 0x0F800000u) {  // infinity or NaN
    const std::uint32_t quiet = magnitude > 0x0F800000u ? 0x00400000u : 0u;
    return bits_to_float(sign | magnitude | 0x70000000u | quiet);
  }
  // Normal numbers and subnormals alike: read as a float with a small exponent, then rebias by an
  // exact multiplication with 2^112.
  return bits_to_float(sign | float_to_bits(bits_to_float(magnitude) * 0x1p112f));
}

// binary32 to binary16, to nearest, ties to even; overflow gives infinity, a NaN stays a quiet NaN.
[[gnu::always_inline]] inline std::uint16_t float_to_f16(float x) {
  const std::uint32_t bits = float_to_bits(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return static_cast<std::uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x01FFu));
  }
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // >= 2^16
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 lets the float adder round at the spacing of binary16 subnormals.
    const std::uint32_t rounded = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3F000000u;
    return static_cast<std::uint16_t>(sign | rounded);
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xFFFu + odd) >> 13));
}

}  // namespace tidemill
