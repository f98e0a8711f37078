// Reading the quantised blocks of a GGUF file: codes and scales of one group of 32 weights.
//
// Codes come as eight 32-bit words of four bytes each (word j holds weights 4j .. 4j + 3), which is
// the unit that packing moves around. Layouts are those of the GGUF format's block structures.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "tensor_type.h"

namespace tidemill {

static_assert(std::endian::native == std::endian::little, "GGUF data is little-endian");

struct GroupCodes {
  std::uint32_t word[8];

  int operator[](int i) const { return static_cast<int>(word[i / 4] >> (8 * (i % 4)) & 0xFFu); }
};

inline std::uint32_t load_word(const std::uint8_t* p) {
  std::uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}

inline std::uint16_t load_u16(const std::uint8_t* p) {
  std::uint16_t half;
  std::memcpy(&half, p, 2);
  return half;
}

inline float load_f16(const std::uint8_t* p) { return f16_to_float(load_u16(p)); }

inline constexpr std::uint32_t kLowNibbles = 0x0F0F0F0Fu;

// 16 bytes: low nibbles are weights 0..15, high nibbles 16..31 (the types with 32-weight blocks).
inline GroupCodes split_nibbles(const std::uint8_t* p) {
  GroupCodes codes;
  for (int j = 0; j < 4; ++j) {
    const std::uint32_t word = load_word(p + 4 * j);
    codes.word[j] = word & kLowNibbles;
    codes.word[j + 4] = word >> 4 & kLowNibbles;
  }
  return codes;
}

// 32 bytes, the field of `mask` at `shift` of each (the K-quants).
inline GroupCodes byte_fields(const std::uint8_t* p, int shift, std::uint32_t mask) {
  GroupCodes codes;
  for (int j = 0; j < 8; ++j) codes.word[j] = load_word(p + 4 * j) >> shift & mask;
  return codes;
}

// Add to every code the field at `shift` of the byte at p, moved up to `bit`.
inline void add_field(GroupCodes& codes, const std::uint8_t* p, int shift, std::uint32_t mask,
                      int bit) {
  for (int j = 0; j < 8; ++j) codes.word[j] |= (load_word(p + 4 * j) >> shift & mask) << bit;
}

// Q5_0, Q5_1: bit i of a 32-bit field is bit 4 of weight i. The multiplication spreads four bits to
// the lowest bits of four bytes.
inline void add_fifth_bits(GroupCodes& codes, std::uint32_t bits) {
  for (int j = 0; j < 8; ++j) {
    const std::uint32_t four = bits >> (4 * j) & 0xFu;
    codes.word[j] |= (four * 0x00204081u & 0x01010101u) << 4;
  }
}

// The codes of group `group` (0 for types with 32-weight blocks, 0..7 for super-blocks).
template <TensorType type>
inline GroupCodes load_codes(const std::uint8_t* block, int group) {
  if constexpr (type == TensorType::Q4_0 || type == TensorType::IQ4_NL) {
    return split_nibbles(block + 2);
  } else if constexpr (type == TensorType::Q4_1) {
    return split_nibbles(block + 4);
  } else if constexpr (type == TensorType::MXFP4) {
    return split_nibbles(block + 1);
  } else if constexpr (type == TensorType::Q5_0) {
    GroupCodes codes = split_nibbles(block + 6);
    add_fifth_bits(codes, load_word(block + 2));
    return codes;
  } else if constexpr (type == TensorType::Q5_1) {
    GroupCodes codes = split_nibbles(block + 8);
    add_fifth_bits(codes, load_word(block + 4));
    return codes;
  } else if constexpr (type == TensorType::Q8_0) {
    return byte_fields(block + 2, 0, 0xFFFFFFFFu);
  } else if constexpr (type == TensorType::Q2_K) {
    return byte_fields(block + 16 + 32 * (group / 4), 2 * (group % 4), 0x03030303u);
  } else if constexpr (type == TensorType::Q3_K) {
    GroupCodes codes = byte_fields(block + 32 + 32 * (group / 4), 2 * (group % 4), 0x03030303u);
    add_field(codes, block, group, 0x01010101u, 2);
    return codes;
  } else if constexpr (type == TensorType::Q4_K) {
    return byte_fields(block + 16 + 32 * (group / 2), 4 * (group % 2), kLowNibbles);
  } else if constexpr (type == TensorType::Q5_K) {
    GroupCodes codes = byte_fields(block + 48 + 32 * (group / 2), 4 * (group % 2), kLowNibbles);
    add_field(codes, block + 16, group, 0x01010101u, 4);
    return codes;
  } else if constexpr (type == TensorType::Q6_K) {
    const int chunk = group / 4;
    const int part = group % 4;
    GroupCodes codes =
        byte_fields(block + 64 * chunk + 32 * (part % 2), 4 * (part / 2), kLowNibbles);
    add_field(codes, block + 128 + 32 * chunk, 2 * part, 0x03030303u, 4);
    return codes;
  } else {
    static_assert(type == TensorType::IQ4_XS);
    return split_nibbles(block + 8 + 16 * group);
  }
}

// Q4_K, Q5_K: the 6-bit scale and minimum of a group, from the 12 packed bytes.
struct ScaleMin {
  std::uint8_t scale;
  std::uint8_t min;
};
inline ScaleMin load_scale_min(const std::uint8_t* packed, int group) {
  if (group < 4) {
    return {static_cast<std::uint8_t>(packed[group] & 63),
            static_cast<std::uint8_t>(packed[group + 4] & 63)};
  }
  return {static_cast<std::uint8_t>((packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4),
          static_cast<std::uint8_t>((packed[group + 4] >> 4) | (packed[group] >> 6) << 4)};
}

// Q3_K: the signed scale of half group i (0..15), from the 12 packed bytes.
inline std::int8_t load_q3_scale(const std::uint8_t* packed, int i) {
  const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
  const int high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
  return static_cast<std::int8_t>((low | high << 4) - 32);
}

// IQ4_XS: the signed scale of a group.
inline std::int8_t load_iq4_scale(const std::uint8_t* block, int group) {
  const int low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
  const int high = load_u16(block + 2) >> (2 * group) & 3;
  return static_cast<std::int8_t>((low | high << 4) - 32);
}

// MXFP4: half of 2^(e - 127), so that the doubled integer values apply.
inline float half_e8m0(std::uint8_t e) {
  return bits_to_float(e < 2 ? 0x00200000u << e : static_cast<std::uint32_t>(e - 1) << 23);
}

}  // namespace tidemill
